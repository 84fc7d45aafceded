//! Tests on the real kernel, in namespaces of their own.

mod counters;
mod tcp;
mod untouched;
mod verifier;
