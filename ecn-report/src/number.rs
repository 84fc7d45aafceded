//! Numbers as text.

/// A count in at most five characters: `99999`, `588k`, `1.23M`.
pub fn short_count(count: u64) -> String {
    if count < 100_000 {
        return count.to_string();
    }
    let mut value = count as f64;
    for unit in ["k", "M", "G", "T", "P", "E"] {
        value /= 1000.0;
        let decimals = match value {
            v if v >= 99.95 => 0,
            v if v >= 9.995 => 1,
            _ => 2,
        };
        if value < 999.5 {
            return format!("{value:.decimals$}{unit}");
        }
    }
    count.to_string()
}

/// A number that is not negative, with commas as thousands separators: `1,234.5`.
pub fn thousands(number: impl ToString) -> String {
    let number = number.to_string();
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stay_short() {
        for (count, text) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (588_123, "588k"),
            (999_499, "999k"),
            (999_500, "1.00M"),
            (1_234_567, "1.23M"),
            (12_345_678, "12.3M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(short_count(count), text);
        }
    }

    #[test]
    fn only_the_integer_part_has_separators() {
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands("1234567.1234"), "1,234,567.1234");
    }
}
