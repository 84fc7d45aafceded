//! Rig.

pub mod figure;
