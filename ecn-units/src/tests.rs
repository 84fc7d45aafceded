use std::time::Duration;

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
        ("8", 1),
        ("8bit", 1),
        ("1kibit", 128),
        ("1mibit", 131_072),
        ("1gibit", 134_217_728),
        ("8tibit", 1 << 40),
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
        ("5.mbit", "no digit after the point"),
        ("1.2.3mbit", "the number is not a plain decimal number"),
        ("100mbits", "unknown unit"),
        ("100 mbit", "unknown unit"),
        ("50%", "unknown unit"),
        ("1e3", "unknown unit"),
        ("-1mbit", "it is negative"),
        ("0", "it is less than one byte per second"),
        ("0mbit", "it is less than one byte per second"),
        ("7", "it is less than one byte per second"),
        ("99999999999tbit", "the number is too large"),
        ("99999999999999999999", "the number is too large"),
        (
            "99999999999999999999.999999tibit",
            "the number is too large",
        ),
        ("1bps", Rate::BPS),
        ("10Gbps", Rate::BPS),
        ("12.5MBps", Rate::BPS),
        ("1kibps", Rate::BPS),
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
        ("1/0", "the denominator is zero"),
        ("1/", "each side of the slash must be a whole number"),
        ("1/2/3", "each side of the slash must be a whole number"),
        ("+1/2", "each side of the slash must be a whole number"),
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
        ("5 s", "unknown unit"),
        ("5sec", "unknown unit"),
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
