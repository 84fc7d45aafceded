//! The mechanisms of HP's congestion control for lossless networks, written once.
//!
//! Switches mark packets ([`marking`]), receivers echo exact counts ([`echo`], [`ace`]), sources move a rate
//! ([`response`]). The kernel programs, the agent and the simulator call the same functions, so a
//! simulated figure is evidence about the kernel code. Nothing here allocates, reads a clock or
//! makes randomness: time and random bits are arguments.
//!
//! Sources, cited as **G/T** and **S** below: Santos, Turner, Janakiraman, "Evaluation of
//! Congestion Detection Mechanisms for InfiniBand Switches" (Globecom 2002; HPL-2002-224) and
//! "End-to-End Congestion Control for InfiniBand" (INFOCOM 2003; HPL-2002-359).

#![no_std]

pub mod abi;
pub mod ace;
pub mod bcn;
pub mod echo;
pub mod fixed;
pub mod flow;
pub mod marking;
pub mod pacing;
pub mod packet;
pub mod response;
pub mod shares;
pub mod siphash;
pub mod tcd;
#[cfg(feature = "text")]
mod text;
pub mod vqueue;
