//! Datapath.
