//! Rig.
