//! Decimal numbers without rounding.

use std::fmt;

/// A positive decimal number as digits, without rounding: `mantissa / 10^decimals`.
pub(crate) struct Decimal {
    pub mantissa: u128,
    pub decimals: u32,
}

impl Decimal {
    /// Maximum number of digits before and after the point: that of `u64`, and as many as keep the mantissa inside
    /// `u128`.
    const MAX_WHOLE: usize = 20;
    const MAX_DECIMALS: usize = 6;

    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let (whole, decimals) = match text.split_once('.') {
            Some((_, "")) => return Err("no digit after the point"),
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
    pub(crate) fn scale(&self, numerator: u128, denominator: u128) -> Option<u64> {
        let product = self.mantissa.checked_mul(numerator)?;
        u64::try_from(product / (denominator * 10_u128.pow(self.decimals))).ok()
    }

    /// Whether `self * numerator` is a whole number.
    pub(crate) fn is_whole(&self, numerator: u128) -> bool {
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

/// A number and what its unit stands for; `bare` without a unit.
pub(crate) fn with_unit<U: Copy>(
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
        known.ok_or("unknown unit")?.1
    };
    Ok((number, found))
}

/// Prints `value / 10^decimals` without trailing zeros.
pub(crate) fn write_decimal(f: &mut fmt::Formatter<'_>, value: u128, decimals: u32) -> fmt::Result {
    let base = 10_u128.pow(decimals);
    let (whole, part) = (value / base, value % base);
    if part == 0 {
        return write!(f, "{whole}");
    }
    let part = format!("{part:0width$}", width = decimals as usize);
    write!(f, "{whole}.{}", part.trim_end_matches('0'))
}
