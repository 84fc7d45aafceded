//! Values as people write them: rates, sizes, durations, fractions, and words.
//!
//! Each type reads and prints one text form, the same on the command line ([`FromStr`]), in configuration files and in
//! JSON documents (serde, as strings), and keeps the number exactly: what a value prints as is read back as the same
//! value. No floating point is involved in reading or printing.
//!
//! [`FromStr`]: std::str::FromStr

#![warn(unreachable_pub)]

mod decimal;
mod duration;
mod fraction;
mod keyword;
mod policy;
mod rate;
mod size;
mod text;

pub use duration::DurationText;
pub use fraction::Fraction;
pub use keyword::{KeywordError, near, nearest, suggestion};
pub use policy::{Every, Round, Unmarkable};
pub use rate::Rate;
pub use size::Size;

/// What the macros need in crates that may be without it.
#[doc(hidden)]
pub mod __private {
    pub use schemars;
    pub use serde;
    pub extern crate std;

    pub use crate::text::TextVisitor;
}

/// A text that is not the rate, duration or fraction it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}: {reason} (accepted: {accepted})")]
pub struct UnitError {
    pub(crate) text: String,
    pub(crate) what: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) accepted: &'static str,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
