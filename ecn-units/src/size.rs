//! Numbers of bytes.

use std::fmt;
use std::str::FromStr;

use crate::decimal::with_unit;
use crate::{UnitError, serde_as_text};

/// A number of bytes.
///
/// Read as a number and one of `B`, `kB`, `MB`, `GB`, `KiB`, `MiB`, `GiB`, upper and lower case alike;
/// without a unit it counts bytes. Printed in the largest decimal unit in which it is a whole number.
///
/// ```
/// use ecn_units::Size;
/// let size: Size = "0.625MB".parse()?;
/// assert_eq!((size.bytes(), size.to_string()), (625_000, "625kB".to_owned()));
/// # Ok::<(), ecn_units::UnitError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// Unit names and the bytes they stand for.
const SIZE_UNITS: [(&str, u64); 7] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
];

impl Size {
    const ACCEPTED: &'static str = "a number and B, kB, MB, GB, KiB, MiB or GiB, such as 20MB";

    /// A size of this many bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// About three significant digits, for figures: `23.4kB`. Not exact, unlike [`fmt::Display`].
    pub fn short(self) -> String {
        let mut step = 1;
        while self.0 / step >= 1000 {
            step *= 10;
        }
        let rounded = self.0.saturating_add(step / 2) / step * step;
        let units = SIZE_UNITS[..4].iter().rev();
        let (name, unit) = units
            .copied()
            .find(|(_, unit)| rounded >= *unit)
            .unwrap_or(SIZE_UNITS[0]);
        format!("{}{name}", rounded as f64 / unit as f64)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = SIZE_UNITS[..4]
            .iter()
            .rev()
            .find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit))
            .unwrap_or(&SIZE_UNITS[0]);
        f.pad(&format!("{}{name}", self.0 / unit))
    }
}

impl FromStr for Size {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = |reason| UnitError {
            text: text.to_owned(),
            what: "a size",
            reason,
            accepted: Self::ACCEPTED,
        };
        let (number, bytes) =
            with_unit(text, &SIZE_UNITS, Some(1), str::eq_ignore_ascii_case).map_err(error)?;
        if !number.is_whole(u128::from(bytes)) {
            return Err(error("it is not a whole number of bytes"));
        }
        number
            .scale(u128::from(bytes), 1)
            .map(Self)
            .ok_or_else(|| error("the number is too large"))
    }
}

serde_as_text!(Size, "size", "20MB");
