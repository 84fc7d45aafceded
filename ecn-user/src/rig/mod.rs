//! Rig.
pub mod topology;
pub mod traffic;
