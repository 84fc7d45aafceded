//! Data rates.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::decimal::{with_unit, write_decimal};
use crate::{UnitError, serde_as_text};

/// A data rate, in whole bytes per second, never zero.
///
/// Read and printed in the syntax of `tc`: a number and a unit, upper and lower case alike.
/// `bit`, `kbit`, `mbit`, `gbit`, `tbit` count bits per second in steps of 1000, `kibit` ...
/// in steps of 1024. A number without a unit counts bits per second, as in `tc`. A part of a byte
/// per second is dropped, as in `tc`. `bps`, `kbps`, ... are refused: they are bytes per second in
/// `tc`, and bits per second everywhere else.
///
/// ```
/// use ecn_units::Rate;
/// let rate: Rate = "0.1gbit".parse()?;
/// assert_eq!(rate.bytes_per_s(), 12_500_000);
/// assert_eq!(rate.to_string(), "100mbit");
/// # Ok::<(), ecn_units::UnitError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(NonZeroU64);

/// Unit names and the bits per second they stand for.
const RATE_UNITS: [(&str, u128); 9] = [
    ("bit", 1),
    ("kbit", 1_000),
    ("mbit", 1_000_000),
    ("gbit", 1_000_000_000),
    ("tbit", 1_000_000_000_000),
    ("kibit", 1 << 10),
    ("mibit", 1 << 20),
    ("gibit", 1 << 30),
    ("tibit", 1 << 40),
];

impl Rate {
    /// The highest rate: its number of bits per second still fits 64 bits.
    pub const MAX: Self = match NonZeroU64::new(u64::MAX / 8) {
        Some(bytes) => Self(bytes),
        None => unreachable!(),
    };

    pub(crate) const ACCEPTED: &'static str = "a number and bit, kbit, mbit, gbit, tbit, kibit.. (bits/s), \
                                    such as 100mbit";
    pub(crate) const BPS: &'static str = "bps means bytes per second in tc, and bits elsewhere: write \
                                    gbit for Gbps in bits, and 8 times as many gbit for bytes";

    /// A rate of `bytes` per second; `None` for zero and above [`Rate::MAX`].
    pub const fn from_bytes_per_s(bytes: u64) -> Option<Self> {
        match NonZeroU64::new(bytes) {
            Some(rate) if bytes <= u64::MAX / 8 => Some(Self(rate)),
            _ => None,
        }
    }

    /// A rate of `bits` per second, the part of a byte dropped; `None` below 8 bits per second.
    pub const fn from_bits_per_s(bits: u64) -> Option<Self> {
        Self::from_bytes_per_s(bits / 8)
    }

    /// Bytes per second.
    pub const fn bytes_per_s(self) -> u64 {
        self.0.get()
    }

    /// Bits per second.
    pub const fn bits_per_s(self) -> u64 {
        self.0.get() * 8
    }

    /// The time that `bytes` take on a link of this rate, in nanoseconds, rounded up.
    pub const fn time_ns(self, bytes: u64) -> u64 {
        let ns = (bytes as u128 * 1_000_000_000).div_ceil(self.bytes_per_s() as u128);
        if ns > u64::MAX as u128 {
            u64::MAX
        } else {
            ns as u64
        }
    }

    /// About three significant digits, for tables: `98.8mbit`.
    ///
    /// Unlike the text of [`fmt::Display`], this is not exact.
    pub fn short(self) -> String {
        let bits = u128::from(self.bits_per_s());
        let mut step = 1;
        while bits / step >= 1000 {
            step *= 10;
        }
        let rounded = (bits + step / 2) / step * step;
        Text(rounded).to_string()
    }
}

/// A number of bits per second in the largest decimal unit in which three decimals are exact.
struct Text(u128);

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, unit) in RATE_UNITS[1..5].iter().rev() {
            if self.0 >= *unit && self.0.is_multiple_of(*unit / 1000) {
                write_decimal(f, self.0 / (*unit / 1000), 3)?;
                return f.write_str(name);
            }
        }
        write!(f, "{}bit", self.0)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&Text(u128::from(self.bits_per_s())).to_string())
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = |reason| UnitError {
            text: text.to_owned(),
            what: "a rate",
            reason,
            accepted: Self::ACCEPTED,
        };
        let (number, bits) = with_unit(text, &RATE_UNITS, Some(1), str::eq_ignore_ascii_case)
            .map_err(|reason| match text.to_ascii_lowercase().ends_with("bps") {
                true => error(Self::BPS),
                false => error(reason),
            })?;
        let too_large = || error("the number is too large");
        match number.scale(bits, 8).ok_or_else(too_large)? {
            0 => Err(error("it is less than one byte per second")),
            bytes => Self::from_bytes_per_s(bytes).ok_or_else(too_large),
        }
    }
}

serde_as_text!(Rate, "rate", "100mbit");
