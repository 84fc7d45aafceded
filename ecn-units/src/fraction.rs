//! Fractions.

use std::fmt;
use std::str::FromStr;

use crate::decimal::Decimal;
use crate::{UnitError, serde_as_text};

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
    pub(crate) const ACCEPTED: &'static str =
        "two whole numbers such as 1/64, or a decimal such as 0.25";

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
                    return Err(error("each side of the slash must be a whole number"));
                }
                part.parse::<u32>()
                    .map_err(|_| error("the number is too large"))
            };
            return Self::new(part(numerator)?, part(denominator)?)
                .ok_or_else(|| error("the denominator is zero"));
        }
        let number = Decimal::parse(text).map_err(error)?;
        let denominator = 10_u32.pow(number.decimals);
        let numerator =
            u32::try_from(number.mantissa).map_err(|_| error("the number is too large"))?;
        Self::new(numerator, denominator).ok_or_else(|| error("the denominator is zero"))
    }
}

serde_as_text!(Fraction, "fraction", "1/64");
