//! Rates, durations and fractions as people write them.
//!
//! Each type reads and prints one text form, the same on the command line ([`FromStr`]), in
//! configuration files and in JSON documents (serde, as strings), and keeps the number exactly:
//! what a value prints as is read back as the same value. No floating point is involved in
//! reading or printing.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

/// A text that is not the rate, duration or fraction it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {what}: {reason} (accepted: {accepted})")]
pub struct UnitError {
    text: String,
    what: &'static str,
    reason: &'static str,
    accepted: &'static str,
}

/// A positive decimal number as digits, without rounding: `mantissa / 10^decimals`.
struct Decimal {
    mantissa: u128,
    decimals: u32,
}

impl Decimal {
    /// Most digits before and after the point: those of `u64`, and so many that the mantissa
    /// stays inside `u128`.
    const MAX_WHOLE: usize = 20;
    const MAX_DECIMALS: usize = 6;

    fn parse(text: &str) -> Result<Self, &'static str> {
        let (whole, decimals) = match text.split_once('.') {
            Some((_, "")) => return Err("there is no digit after the point"),
            Some(parts) => parts,
            None => (text, ""),
        };
        if whole.is_empty() {
            return Err("it does not start with a digit");
        }
        if !whole
            .bytes()
            .chain(decimals.bytes())
            .all(|b| b.is_ascii_digit())
        {
            return Err("the number is not a plain decimal number");
        }
        let decimals = decimals.trim_end_matches('0');
        let whole = whole.trim_start_matches('0');
        if whole.len() > Self::MAX_WHOLE {
            return Err("the number is too large");
        }
        if decimals.len() > Self::MAX_DECIMALS {
            return Err("there are more than 6 digits after the point");
        }
        let mantissa = whole
            .bytes()
            .chain(decimals.bytes())
            .fold(0_u128, |sum, digit| sum * 10 + u128::from(digit - b'0'));
        Ok(Self {
            mantissa,
            decimals: decimals.len() as u32,
        })
    }

    /// `self * numerator / denominator`, rounded down; `None` if that exceeds `u64`.
    fn scale(&self, numerator: u128, denominator: u128) -> Option<u64> {
        let product = self.mantissa.checked_mul(numerator)?;
        u64::try_from(product / (denominator * 10_u128.pow(self.decimals))).ok()
    }

    /// Whether `self * numerator` is a whole number.
    fn is_whole(&self, numerator: u128) -> bool {
        // 26 digits of mantissa times at most 3.6e12 stays inside u128.
        (self.mantissa * numerator).is_multiple_of(10_u128.pow(self.decimals))
    }
}

/// Splits `12.5mbit` into `12.5` and `mbit`.
fn split_unit(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    text.split_at(end)
}

/// A number and what its unit stands for; `bare` if there is none.
fn with_unit<U: Copy>(
    text: &str,
    units: &[(&str, U)],
    bare: Option<U>,
    same: fn(&str, &str) -> bool,
) -> Result<(Decimal, U), &'static str> {
    if text.starts_with('-') {
        return Err("it is negative");
    }
    let (number, unit) = split_unit(text);
    let number = Decimal::parse(number)?;
    let found = if unit.is_empty() {
        bare.ok_or("the unit is missing")?
    } else {
        let known = units.iter().find(|(name, _)| same(name, unit));
        known.ok_or("the unit is not known")?.1
    };
    Ok((number, found))
}

/// Prints `value / 10^decimals` without trailing zeros.
fn write_decimal(f: &mut fmt::Formatter<'_>, value: u128, decimals: u32) -> fmt::Result {
    let base = 10_u128.pow(decimals);
    let (whole, part) = (value / base, value % base);
    if part == 0 {
        return write!(f, "{whole}");
    }
    let part = format!("{part:0width$}", width = decimals as usize);
    write!(f, "{whole}.{}", part.trim_end_matches('0'))
}

/// Reads a value from a string of a configuration file or JSON document.
struct TextVisitor<T> {
    expecting: &'static str,
    of: std::marker::PhantomData<T>,
}

impl<T> TextVisitor<T> {
    fn new(expecting: &'static str) -> Self {
        Self {
            expecting,
            of: std::marker::PhantomData,
        }
    }
}

impl<T> Visitor<'_> for TextVisitor<T>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expecting)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
}

macro_rules! serde_as_text {
    ($type:ty, $expecting:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(TextVisitor::new($expecting))
            }
        }

        crate::serde_as_text!(@schema $type, schemars::json_schema!({ "type": "string" }));
    };
}

/// A data rate, in whole bytes per second, never zero.
///
/// Read and printed in the syntax of `tc`: a number and a unit, upper and lower case alike.
/// `bit`, `kbit`, `mbit`, `gbit`, `tbit` count bits per second in steps of 1000, `kibit` ...
/// in steps of 1024; `bps`, `kbps`, ... and `kibps`, ... count bytes per second. A number without
/// a unit counts bits per second, as in `tc`. A part of a byte per second is dropped, as in `tc`.
///
/// ```
/// use ecn_sim::units::Rate;
/// let rate: Rate = "12.5mbps".parse()?;
/// assert_eq!(rate.bytes_per_s(), 12_500_000);
/// assert_eq!(rate.to_string(), "100mbit");
/// # Ok::<(), ecn_sim::units::UnitError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(NonZeroU64);

/// Unit names and the bits per second they stand for.
const RATE_UNITS: [(&str, u128); 18] = [
    ("bit", 1),
    ("kbit", 1_000),
    ("mbit", 1_000_000),
    ("gbit", 1_000_000_000),
    ("tbit", 1_000_000_000_000),
    ("kibit", 1 << 10),
    ("mibit", 1 << 20),
    ("gibit", 1 << 30),
    ("tibit", 1 << 40),
    ("bps", 8),
    ("kbps", 8_000),
    ("mbps", 8_000_000),
    ("gbps", 8_000_000_000),
    ("tbps", 8_000_000_000_000),
    ("kibps", 8 << 10),
    ("mibps", 8 << 20),
    ("gibps", 8 << 30),
    ("tibps", 8 << 40),
];

impl Rate {
    /// The highest rate: its number of bits per second still fits 64 bits.
    pub const MAX: Self = match NonZeroU64::new(u64::MAX / 8) {
        Some(bytes) => Self(bytes),
        None => unreachable!(),
    };

    const ACCEPTED: &'static str = "a number and bit, kbit, mbit, gbit, tbit, kibit.. (bits/s) or \
                                    bps, kbps, mbps, gbps, tbps, kibps.. (bytes/s), \
                                    such as 100mbit";

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

/// A number of bits per second in the largest decimal unit in which three decimals say it exactly.
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
        let (number, bits) =
            with_unit(text, &RATE_UNITS, Some(1), str::eq_ignore_ascii_case).map_err(error)?;
        let too_large = || error("the number is too large");
        match number.scale(bits, 8).ok_or_else(too_large)? {
            0 => Err(error("it is less than one byte per second")),
            bytes => Self::from_bytes_per_s(bytes).ok_or_else(too_large),
        }
    }
}

serde_as_text!(Rate, "a rate in quotes, such as \"100mbit\"");

/// A fraction of a link's rate or of anything else, kept as a ratio of whole numbers in lowest
/// terms.
///
/// Read as `1/64` or `0.25` or `1`; printed as `1/64`, whole numbers without a denominator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fraction {
    numerator: u32,
    denominator: u32,
}

impl Fraction {
    const ACCEPTED: &'static str = "two whole numbers such as 1/64, or a decimal such as 0.25";

    /// `numerator / denominator`; `None` if the denominator is zero.
    pub const fn new(numerator: u32, denominator: u32) -> Option<Self> {
        if denominator == 0 {
            return None;
        }
        let (mut a, mut b) = (numerator, denominator);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        Some(Self {
            numerator: numerator / a,
            denominator: denominator / a,
        })
    }

    /// `numerator / denominator`, for constants.
    ///
    /// # Panics
    ///
    /// If the denominator is zero.
    pub const fn ratio(numerator: u32, denominator: u32) -> Self {
        match Self::new(numerator, denominator) {
            Some(fraction) => fraction,
            None => panic!("a denominator of 0"),
        }
    }

    /// The upper number, in lowest terms.
    pub const fn numerator(self) -> u32 {
        self.numerator
    }

    /// The lower number, in lowest terms; never zero.
    pub const fn denominator(self) -> u32 {
        self.denominator
    }

    /// The fraction as a floating point number.
    pub fn as_f64(self) -> f64 {
        f64::from(self.numerator) / f64::from(self.denominator)
    }

    /// This fraction of `whole`, rounded down.
    pub const fn of(self, whole: u64) -> u64 {
        let part = whole as u128 * self.numerator as u128 / self.denominator as u128;
        if part > u64::MAX as u128 {
            u64::MAX
        } else {
            part as u64
        }
    }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fraction {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let left = u64::from(self.numerator) * u64::from(other.denominator);
        left.cmp(&(u64::from(other.numerator) * u64::from(self.denominator)))
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.denominator {
            1 => f.pad(&self.numerator.to_string()),
            denominator => f.pad(&format!("{}/{denominator}", self.numerator)),
        }
    }
}

impl FromStr for Fraction {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = |reason| UnitError {
            text: text.to_owned(),
            what: "a fraction",
            reason,
            accepted: Self::ACCEPTED,
        };
        if text.starts_with('-') {
            return Err(error("it is negative"));
        }
        if let Some((numerator, denominator)) = text.split_once('/') {
            let part = |part: &str| {
                if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(error("there is no whole number on each side of the stroke"));
                }
                part.parse::<u32>()
                    .map_err(|_| error("the number is too large"))
            };
            return Self::new(part(numerator)?, part(denominator)?)
                .ok_or_else(|| error("it is divided by zero"));
        }
        let number = Decimal::parse(text).map_err(error)?;
        let denominator = 10_u32.pow(number.decimals);
        let numerator =
            u32::try_from(number.mantissa).map_err(|_| error("the number is too large"))?;
        Self::new(numerator, denominator).ok_or_else(|| error("it is divided by zero"))
    }
}

serde_as_text!(Fraction, "a fraction in quotes, such as \"1/64\"");

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
    const ACCEPTED: &'static str = "a number and ns, us, ms, s, min or h, such as 1500us";

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

    /// Whether this is no time at all.
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

serde_as_text!(DurationText, "a duration in quotes, such as \"1500us\"");

/// A number of bytes.
///
/// Read as a number and one of `B`, `kB`, `MB`, `GB`, `KiB`, `MiB`, `GiB`, upper and lower case alike;
/// without a unit it counts bytes. Printed in the largest decimal unit in which it is a whole number.
///
/// ```
/// use ecn_sim::units::Size;
/// let size: Size = "0.625MB".parse()?;
/// assert_eq!((size.bytes(), size.to_string()), (625_000, "625kB".to_owned()));
/// # Ok::<(), ecn_sim::units::UnitError>(())
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

    /// So many bytes.
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// About three significant digits, for figures: `23.4kB`. Not exact, unlike what it displays as.
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

serde_as_text!(Size, "a size in quotes, such as \"20MB\"");

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> u64 {
        text.parse::<Rate>().unwrap().bytes_per_s()
    }

    #[test]
    fn rates_are_read_as_tc_reads_them() {
        for (text, expected) in [
            ("100mbit", 12_500_000),
            ("100Mbit", 12_500_000),
            ("1gbit", 125_000_000),
            ("1tbit", 125_000_000_000),
            ("12.5mbps", 12_500_000),
            ("12.5MBps", 12_500_000),
            ("8", 1),
            ("8bit", 1),
            ("1bps", 1),
            ("1kbps", 1_000),
            ("1kibps", 1_024),
            ("1kibit", 128),
            ("1mibit", 131_072),
            ("1gibit", 134_217_728),
            ("1tibps", 1 << 40),
            ("0.5kbit", 62), // 62.5, the part of a byte dropped
            ("007.50mbit", 937_500),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }

    #[test]
    fn rates_print_in_the_largest_exact_unit() {
        for (bytes, text) in [
            (12_500_000, "100mbit"),
            (125_000_000, "1gbit"),
            (1_250_000_000_000, "10tbit"),
            (187_500, "1.5mbit"),
            (195_312, "1562.496kbit"),
            (1, "8bit"),
            (124, "992bit"),
            (125, "1kbit"),
        ] {
            assert_eq!(Rate::from_bytes_per_s(bytes).unwrap().to_string(), text);
        }
        assert_eq!(
            format!("{:>8}|", Rate::from_bytes_per_s(125).unwrap()),
            "   1kbit|"
        );
    }

    #[test]
    fn short_rates_keep_three_digits() {
        for (bytes, text) in [
            (12_345_678, "98.8mbit"),
            (195_312, "1.56mbit"),
            (12_500_000, "100mbit"),
            (124_999_999, "1gbit"),
            (1, "8bit"),
        ] {
            assert_eq!(Rate::from_bytes_per_s(bytes).unwrap().short(), text);
        }
        assert_eq!(Rate::MAX.short(), "18400000tbit");
    }

    #[test]
    fn bad_rates_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "it does not start with a digit"),
            ("mbit", "it does not start with a digit"),
            (".5mbit", "it does not start with a digit"),
            ("5.mbit", "there is no digit after the point"),
            ("1.2.3mbit", "the number is not a plain decimal number"),
            ("100mbits", "the unit is not known"),
            ("100 mbit", "the unit is not known"),
            ("50%", "the unit is not known"),
            ("1e3", "the unit is not known"),
            ("-1mbit", "it is negative"),
            ("0", "it is less than one byte per second"),
            ("0mbit", "it is less than one byte per second"),
            ("7", "it is less than one byte per second"),
            ("99999999999tbit", "the number is too large"),
            ("99999999999999999999", "the number is too large"),
            (
                "99999999999999999999.999999tibps",
                "the number is too large",
            ),
            (
                "0.0000001gbit",
                "there are more than 6 digits after the point",
            ),
        ] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "`{text}` is not a rate: {reason} (accepted: {})",
                    Rate::ACCEPTED
                )
            );
        }
    }

    #[test]
    fn time_on_the_wire_is_rounded_up() {
        assert_eq!(
            Rate::from_bytes_per_s(12_500_000).unwrap().time_ns(2068),
            165_440
        );
        assert_eq!(Rate::from_bytes_per_s(3).unwrap().time_ns(1), 333_333_334);
        assert_eq!(
            Rate::from_bytes_per_s(1).unwrap().time_ns(u64::MAX),
            u64::MAX
        );
    }

    #[test]
    fn fractions_are_kept_in_lowest_terms() {
        for (text, numerator, denominator, printed) in [
            ("1/64", 1, 64, "1/64"),
            ("2/128", 1, 64, "1/64"),
            ("0.25", 1, 4, "1/4"),
            ("0.015625", 1, 64, "1/64"),
            ("0", 0, 1, "0"),
            ("0/7", 0, 1, "0"),
            ("1", 1, 1, "1"),
            ("1.5", 3, 2, "3/2"),
        ] {
            let fraction: Fraction = text.parse().unwrap();
            assert_eq!(
                (fraction.numerator(), fraction.denominator()),
                (numerator, denominator)
            );
            assert_eq!(fraction.to_string(), printed);
        }
        assert_eq!(Fraction::new(1, 64).unwrap().of(12_500_000), 195_312);
        assert!(Fraction::new(1, 3).unwrap() < Fraction::new(2, 5).unwrap());
    }

    #[test]
    fn bad_fractions_are_refused_with_the_reason() {
        for (text, reason) in [
            ("", "it does not start with a digit"),
            ("1/0", "it is divided by zero"),
            ("1/", "there is no whole number on each side of the stroke"),
            (
                "1/2/3",
                "there is no whole number on each side of the stroke",
            ),
            (
                "+1/2",
                "there is no whole number on each side of the stroke",
            ),
            ("-1/2", "it is negative"),
            ("1/4294967296", "the number is too large"),
            ("4294967296", "the number is too large"),
            ("25%", "the number is not a plain decimal number"),
        ] {
            assert_eq!(
                text.parse::<Fraction>().unwrap_err().to_string(),
                format!(
                    "`{text}` is not a fraction: {reason} (accepted: {})",
                    Fraction::ACCEPTED
                )
            );
        }
    }

    #[test]
    fn durations_are_read_and_printed() {
        for (text, ns, printed) in [
            ("1500us", 1_500_000, "1500us"),
            ("1.5ms", 1_500_000, "1500us"),
            ("1ms", 1_000_000, "1ms"),
            ("5s", 5_000_000_000, "5s"),
            ("2min", 120_000_000_000, "120s"),
            ("1h", 3_600_000_000_000, "3600s"),
            ("0us", 0, "0s"),
            ("1001ns", 1_001, "1001ns"),
        ] {
            let duration: DurationText = text.parse().unwrap();
            assert_eq!(duration.as_nanos(), ns);
            assert_eq!(duration.to_string(), printed);
        }
        assert_eq!(DurationText::from_millis(3).get(), Duration::from_millis(3));
    }

    #[test]
    fn bad_durations_are_refused_with_the_reason() {
        for (text, reason) in [
            ("5", "the unit is missing"),
            ("5 s", "the unit is not known"),
            ("5sec", "the unit is not known"),
            ("-5s", "it is negative"),
            ("1.5ns", "it is not a whole number of nanoseconds"),
            ("", "it does not start with a digit"),
            ("99999999999s", "the number is too large"),
        ] {
            assert_eq!(
                text.parse::<DurationText>().unwrap_err().to_string(),
                format!(
                    "`{text}` is not a duration: {reason} (accepted: {})",
                    DurationText::ACCEPTED
                )
            );
        }
    }

    #[test]
    fn serde_uses_the_same_text() {
        let rate: Rate = serde_json::from_str("\"100mbit\"").unwrap();
        assert_eq!(serde_json::to_string(&rate).unwrap(), "\"100mbit\"");
        let error = serde_json::from_str::<Rate>("100").unwrap_err().to_string();
        assert!(
            error.contains("expected a rate in quotes, such as \"100mbit\""),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn any_rate_is_read_back_as_it_was(bytes in 1..=u64::MAX / 8) {
            let rate = Rate::from_bytes_per_s(bytes).unwrap();
            prop_assert_eq!(rate.to_string().parse::<Rate>(), Ok(rate));
        }

        #[test]
        fn small_rates_are_read_back_too(bytes in 1..=2_000_000_u64) {
            let rate = Rate::from_bytes_per_s(bytes).unwrap();
            prop_assert_eq!(rate.to_string().parse::<Rate>(), Ok(rate));
        }

        #[test]
        fn a_short_rate_is_within_half_a_percent(bytes in 1..=u64::MAX / 80) {
            let rate = Rate::from_bytes_per_s(bytes).unwrap();
            let short: Rate = rate.short().parse().unwrap();
            let ratio = short.bytes_per_s() as f64 / bytes as f64;
            // Below 1 kbit the text is exact; above, half a unit of the third digit and one byte.
            prop_assert!((ratio - 1.0).abs() <= 0.005 + 1.0 / bytes as f64, "{}", ratio);
        }

        #[test]
        fn any_decimal_rate_is_scaled_exactly(whole in 0..1_000_000_u64, thousandth in 0..1000_u64) {
            let text = format!("{whole}.{thousandth:03}mbit");
            let bytes = (whole * 1_000_000 + thousandth * 1_000) / 8;
            prop_assert_eq!(text.parse::<Rate>().ok(), Rate::from_bytes_per_s(bytes));
        }

        #[test]
        fn any_duration_is_read_back_as_it_was(ns: u64) {
            let duration = DurationText::from_nanos(ns);
            prop_assert_eq!(duration.to_string().parse::<DurationText>(), Ok(duration));
        }

        #[test]
        fn any_fraction_is_read_back_as_it_was(numerator: u32, denominator in 1..=u32::MAX) {
            let fraction = Fraction::new(numerator, denominator).unwrap();
            prop_assert_eq!(fraction.to_string().parse::<Fraction>(), Ok(fraction));
        }

        #[test]
        fn no_text_makes_the_readers_panic(text in ".{0,24}") {
            let _ = text.parse::<Rate>();
            let _ = text.parse::<Fraction>();
            let _ = text.parse::<DurationText>();
        }
    }

    #[test]
    fn sizes_are_read_and_printed() {
        for (text, bytes, shown) in [
            ("20MB", 20_000_000, "20MB"),
            ("625kb", 625_000, "625kB"),
            ("1500", 1_500, "1500B"),
            ("1.5kB", 1_500, "1500B"),
            ("2KiB", 2_048, "2048B"),
            ("0", 0, "0B"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, shown));
            assert_eq!(shown.parse::<Size>().unwrap(), size);
        }
        for (bytes, shown) in [
            (0, "0B"),
            (999, "999B"),
            (23_419, "23.4kB"),
            (999_900, "1MB"),
            (u64::MAX, "18400000000GB"),
        ] {
            assert_eq!(Size::from_bytes(bytes).short(), shown);
        }
        for text in ["", "MB", "-1B", "1.5B", "1mbit", "99999999999999GB"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
