//! Net.
