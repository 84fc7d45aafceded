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

//!
//! # Mark a trace
//!
//! Packets of a switch with buffers of four: the last one fills that of input 1, so all that wait for output 2 are
//! marked, whatever their input.
//!
//! ```
//! use ecn_core::marking::{BACKLOG_UNKNOWN, MarkAt, Marking, Policy, Switch};
//! use ecn_core::response::{self, Function};
//! use ecn_core::{fixed, shares::ShareBy};
//!
//! let policy = Policy {
//!     marking: Marking::Input as u32,
//!     mark_at: MarkAt::Departure as u32,
//!     buffer: 4,
//!     threshold: 8,
//!     ports: 8,
//!     shares: ShareBy::Off as u32,
//!     drop_threshold: 0,
//!     _pad: 0,
//! };
//! let mut switch = Switch::<8>::default();
//! let trace = [(3, 2), (1, 2), (4, 5), (1, 2), (1, 2), (1, 2)];
//! for (input, output) in trace {
//!     switch.on_enqueue(&policy, input, output, 1, true);
//! }
//! let marks = trace.map(|(input, output)| {
//!     switch.on_dequeue(&policy, input, output, 1, true, BACKLOG_UNKNOWN).mark
//! });
//! assert_eq!(marks, [1, 1, 0, 1, 1, 1]);
//!
//! // A source that sent at its link's rate, 1 GB/s, answers to a mark.
//! let ipd = response::marked(&response::Policy::hp(Function::Lipd), fixed::ONE);
//! assert_eq!(response::rate(ipd, 1_000_000_000), 500_000_000);
//! ```

#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![no_std]
#![warn(unreachable_pub)]

pub mod abi;
pub mod ace;
pub mod backward;
pub mod bcn;
pub mod echo;
pub mod feedback;
pub mod fixed;
pub mod flow;
pub mod marking;
pub mod pacing;
pub mod packet;
pub mod qcn;
pub mod reaction;
pub mod response;
pub mod shares;
pub mod siphash;
pub mod tcd;
#[cfg(feature = "text")]
mod text;
pub mod vqueue;
