//! The design method against HP's closed forms (HPL-2002-359).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;

fn rmin(denominator: u32) -> Fraction {
    Fraction::new(1, denominator).unwrap()
}

/// Rates from Rmin to 1 in geometric progression.
fn rates(rmin: Fraction, steps: i32) -> impl Iterator<Item = f64> {
    let lowest = rmin.as_f64();
    (0..=steps).map(move |i| lowest.powf(f64::from(steps - i) / f64::from(steps)))
}

/// Maximum relative differences of finc, Finc and t_r to closed forms.
fn differences(
    design: &Design,
    t: impl Fn(f64, f64) -> f64,
    finc: impl Fn(f64, f64) -> f64,
) -> f64 {
    let low = design.rmin().as_f64();
    rates(design.rmin(), 500)
        .map(|r| {
            let expected = finc(low, r).min(1.0);
            let increase = (design.increase(r) / expected - 1.0).abs();
            let rate = (design.rate_after(t(low, r)) / r - 1.0).abs();
            let time = (design.time_to(r) - t(low, r)).abs() / t(low, 1.0);
            increase.max(rate).max(time)
        })
        .fold(0.0, f64::max)
}

#[test]
fn lipd_is_found_from_its_decrease() {
    for denominator in [2, 16, 255, 256, 1000, 4096, 65536] {
        let design = Design::new("r/(1+r)", rmin(denominator)).unwrap();
        let t = |low: f64, r: f64| (1.0 / low - 1.0 / r) / low;
        let worst = differences(&design, t, |low, r| r / (1.0 - low));
        assert!(worst < 1e-9, "1/{denominator}: {worst}");
        assert!(design.shape_error() < 1e-9);
    }
}

#[test]
fn fimd_is_found_from_its_decrease() {
    for (text, m) in [
        ("r/2", 2.0_f64),
        ("0.7*r", 1.0 / 0.7),
        ("r/16", 16.0),
        ("r*0.99", 1.0 / 0.99),
    ] {
        for denominator in [2, 16, 256, 65536] {
            if f64::from(denominator) < m {
                continue;
            }
            let design = Design::new(text, rmin(denominator)).unwrap();
            let t = |low: f64, r: f64| (r / low).ln() / m.ln() / low;
            let worst = differences(&design, t, |low, r| r * m.powf(low / r));
            assert!(worst < 1e-9, "{text} 1/{denominator}: {worst}");
        }
    }
}

/// Functions with a known principal solution: fdec = s⁻¹(s(r) - 1) for a scale s.
#[test]
fn other_known_solutions_are_found() {
    type Scale = fn(f64) -> f64;
    let cases: [(&str, Scale); 6] = [
        ("r/sqrt(1 + r^2)", |r| -1.0 / (r * r)),
        ("r/(1 + sqrt(r))^2", |r| -1.0 / r.sqrt()),
        ("r/(2 + r)", |r| (r / (1.0 + r)).log2()),
        ("r^2/2", |r| -(2.0 / r).ln().log2()),
        ("exp(ln(r) - 0.5)", |r| 2.0 * r.ln()),
        ("r/(1 + 3*cbrt(r) + 3*cbrt(r)^2 + r)", |r| -1.0 / r.cbrt()),
    ];
    for (text, scale) in cases {
        let design = Design::new(text, rmin(256)).unwrap();
        let t = |low: f64, r: f64| (scale(r) - scale(low)) / low;
        let worst = rates(design.rmin(), 300)
            .map(|r| (design.time_to(r) - t(1.0 / 256.0, r)).abs() / 256.0)
            .fold(0.0, f64::max);
        assert!(
            worst < 1e-6_f64.max(design.shape_error()),
            "{text}: {worst}"
        );
    }
}

#[test]
fn what_lowers_no_rate_is_refused() {
    for (text, expected) in [
        ("r", "fdec(1.000000) = 1.000000 is not below r"),
        ("r*2", "is not below r"),
        ("r/257", "is below rmin"),
        ("r - 1/512", "is not above 0"),
        ("-r", "is not above 0"),
        ("r - r^2", "fdec(1.000000) = 0.000000 is not above 0"),
        ("r - 0.9*r^2", "it does not grow: fdec("),
        ("0.01*r/r", "is not below r"),
        ("min(r/2, 0.3)", "it does not grow: fdec("),
        ("sqrt(r - 0.5)", "is not a number"),
        ("r*0.999999999", "it is too weak: "),
        ("r/(1+x)", "unknown name `x` at column 6"),
        ("", "a value is missing at column 1"),
    ] {
        let error = Design::new(text, rmin(256)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(error.contains(&format!("`{text}` is not a decrease function: ")));
        assert!(error.contains("r, numbers, pi, e"), "{error}");
        assert!(!error.contains('\n'));
    }
    let long = Design::new(&"r +\n".repeat(1000), rmin(256)).unwrap_err();
    let long = long.to_string();
    assert!(long.len() < 400 && !long.contains('\n'), "{long}");
    for bad in [(1, 1), (0, 1), (3, 2), (1, 65537)] {
        let rmin = Fraction::new(bad.0, bad.1).unwrap();
        let error = Design::new("r/2", rmin).unwrap_err().to_string();
        assert!(error.starts_with("rmin = "), "{error}");
    }
}

/// Functions that are not in the papers, but that users may try.
const OTHERS: [&str; 8] = [
    "r - r^2/2",
    "r/(1+r)^2",
    "r/(1+sqrt(r))",
    "max(r/2, r - 0.1)",
    "0.9*r - 0.2*r^3",
    "r^1.5*0.8",
    "tanh(r)",
    "r*(0.7 + 0.1*exp(-r))",
];

#[test]
fn recovery_takes_one_over_rmin_ack_by_ack() {
    for text in ["r/2", "r/(1+r)"].iter().chain(&OTHERS) {
        let design = Design::new(text, rmin(256)).unwrap();
        for r in [1.0 / 64.0, 0.05, 0.1, 0.25, 0.5, 0.9] {
            let lowered = design.decrease(r);
            if lowered < 1.0 / 256.0 {
                continue;
            }
            // Follow finc step by step until r is exceeded: Trec is within the last packet time.
            let (mut rate, mut time) = (lowered, 0.0);
            while rate < r && time < 1000.0 {
                time += 1.0 / rate;
                rate = design.increase(rate);
            }
            assert!(
                (256.0..256.0 + 1.0 / lowered).contains(&(time + 1e-6)),
                "{text} at {r}: {time}"
            );
        }
    }
}

#[test]
fn tables_are_within_a_ten_thousandth() {
    for text in ["r/2", "r/(1+r)", "0.07*r"].iter().chain(&OTHERS) {
        let (table, fit) = Table::of(&Design::new(text, rmin(16)).unwrap());
        // Where fdec is flat at r = 1, finc approaches 1 with a vertical tangent.
        let flat = ["r - r^2/2", "r/(1+r)^2"].contains(text);
        let most = if flat { 5e-3 } else { 1e-4 };
        assert!(fit.relative_error < most, "{text}: {fit:?}");
        assert!(table.points() < 10_000);
    }
}
