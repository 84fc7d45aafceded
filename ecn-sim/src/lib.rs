//! Packet-level simulator of lossless networks, and of Linux bridges.
//!
//! It needs no kernel: marking and response are the functions of `ecn-core` that the kernel
//! programs call.

mod bridged;
pub mod cli;
pub mod compare;
mod counters;
pub mod design;
pub mod endpoint;
pub mod engine;
pub mod experiment;
pub mod fabric;
pub mod figure;
pub mod keys;
pub mod measure;
pub mod model;
pub mod network;
pub mod output;
pub mod progress;
pub mod records;
pub mod report;
pub mod reproduce;
pub mod rig;
pub mod scenario;
mod scenario_file;
pub mod simulation;
pub mod statistics;
pub mod sweep;
pub mod switch;
pub mod trace;
pub mod traffic;
