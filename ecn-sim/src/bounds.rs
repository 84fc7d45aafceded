//! Bounds of parameters, and the error of a value beyond them.

use std::fmt;

use ecn_units::DurationText;

/// An invalid value of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {reason}")]
pub struct ModelError {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// The problem, with the valid range.
    pub reason: String,
}

impl ModelError {
    /// An error for `value` of `key`.
    pub fn new(
        key: impl Into<String>,
        value: impl fmt::Display,
        reason: impl fmt::Display,
    ) -> Self {
        Self {
            key: key.into(),
            value: value.to_string(),
            reason: reason.to_string(),
        }
    }

    /// The same error, for a key of the table `table`.
    pub fn within(self, table: &str) -> Self {
        Self {
            key: format!("{table}.{}", self.key),
            ..self
        }
    }
}

/// Returns a value that is in its range.
///
/// # Errors
///
/// The value is out of range; the error names the key and the range.
pub(crate) fn in_range<T: PartialOrd + fmt::Display>(
    key: &str,
    value: T,
    range: std::ops::RangeInclusive<T>,
) -> Result<T, ModelError> {
    if range.contains(&value) {
        return Ok(value);
    }
    let reason = format!("must be between {} and {}", range.start(), range.end());
    Err(ModelError::new(key, value, reason))
}

/// Maximum number of slots, threshold or window, packets.
pub(crate) const MOST_PACKETS: u32 = 1_000_000;
/// Maximum of all delays other than the length of a run.
pub(crate) const LONGEST_DELAY: DurationText = DurationText::from_secs(1);
