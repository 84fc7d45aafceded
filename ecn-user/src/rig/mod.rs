//! Rig.

pub mod args;
pub mod figure;
pub mod report;
pub mod topology;
pub mod traffic;
