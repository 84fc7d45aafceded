//! Rig.

pub mod figure;
pub mod report;
