//! Rig.
pub mod topology;
