//! All of this crate's `unsafe`: system calls without a safe wrapper, and values exchanged as bytes.

pub mod calls;
pub mod names;
pub(crate) mod pod;
