//! Agent, rig and command line.

#![warn(unreachable_pub)]

pub mod agent;
pub mod cli;
pub mod config;
pub mod datapath;
pub mod net;
pub mod rig;
pub mod sys;
pub use ecn_units as units;
