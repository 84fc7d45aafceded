//! Lengths of time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::decimal::with_unit;
use crate::{UnitError, serde_as_text};

/// A length of time, in whole nanoseconds.
///
/// Read as a number and one of `ns`, `us`, `ms`, `s`, `min`, `h`; printed in the largest of `ns`,
/// `us`, `ms`, `s` in which it is a whole number. A number without a unit is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DurationText(u64);

/// Unit names and the nanoseconds they stand for.
const DURATION_UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl DurationText {
    pub(crate) const ACCEPTED: &'static str =
        "a number and ns, us, ms, s, min or h, such as 1500us";

    /// A duration of `ns` nanoseconds.
    pub const fn from_nanos(ns: u64) -> Self {
        Self(ns)
    }

    /// A duration of `us` microseconds, at most `u64::MAX` nanoseconds.
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// A duration of `ms` milliseconds, at most `u64::MAX` nanoseconds.
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// A duration of `s` seconds, at most `u64::MAX` nanoseconds.
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }

    /// The number of nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The same length of time as the standard library's type.
    pub const fn get(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Whether it is zero.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<DurationText> for Duration {
    fn from(duration: DurationText) -> Self {
        duration.get()
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.pad("0s");
        }
        let (name, unit) = DURATION_UNITS[..4]
            .iter()
            .rev()
            .find(|(_, unit)| self.0.is_multiple_of(*unit))
            .unwrap_or(&DURATION_UNITS[0]);
        f.pad(&format!("{}{name}", self.0 / unit))
    }
}

impl FromStr for DurationText {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = |reason| UnitError {
            text: text.to_owned(),
            what: "a duration",
            reason,
            accepted: Self::ACCEPTED,
        };
        let same = |name: &str, unit: &str| name == unit;
        let (number, ns) = with_unit(text, &DURATION_UNITS, None, same).map_err(error)?;
        if !number.is_whole(u128::from(ns)) {
            return Err(error("it is not a whole number of nanoseconds"));
        }
        number
            .scale(u128::from(ns), 1)
            .map(Self)
            .ok_or_else(|| error("the number is too large"))
    }
}

serde_as_text!(DurationText, "duration", "1500us");
