//! Packet-level simulator of lossless networks.
//!
//! It needs no kernel: marking and response are the functions of `ecn-core` that the kernel
//! programs call.

pub mod figure;
pub mod keyword;
pub mod model;
pub mod units;
