//! `ecn design` from outside: the tables of HP's functions, tables in files compared with the functions of `ecn-core`,
//! and random decrease functions.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use ecn_core::fixed::ONE;
use ecn_core::response::{Function, Policy, Ratio, marked, unmarked};
use ecn_sim::design::{Design, Report, Table, figure};
use ecn_units::Fraction;
use proptest::prelude::*;

fn rmin(denominator: u32) -> Fraction {
    Fraction::new(1, denominator).unwrap()
}

fn design(text: &str, denominator: u32) -> Design {
    Design::new(text, rmin(denominator)).unwrap()
}

fn close(found: f64, expected: f64, what: &str) {
    // The reference prints six places.
    assert!(
        (found - expected).abs() < 1e-6,
        "{what}: {found}, not {expected}"
    );
}

#[test]
fn increase_over_time_is_that_of_section_8() {
    let (fimd, lipd) = (design("r/2", 256), design("r/(1+r)", 256));
    for (t, f, l) in [
        (0.0, 0.003906, 0.003906),
        (256.0, 0.007812, 0.003922),
        (512.0, 0.015625, 0.003937),
        (1024.0, 0.0625, 0.003968),
        (1536.0, 0.25, 0.004),
        (2048.0, 1.0, 0.004032),
        (8192.0, 1.0, 0.004464),
        (16384.0, 1.0, 0.005208),
        (32768.0, 1.0, 0.007812),
        (49152.0, 1.0, 0.015625),
        (60000.0, 1.0, 0.046243),
        (64000.0, 1.0, 0.166667),
        (65024.0, 1.0, 0.5),
        (65280.0, 1.0, 1.0),
    ] {
        close(fimd.rate_after(t), f, &format!("FIMD at {t}"));
        close(lipd.rate_after(t), l, &format!("LIPD at {t}"));
    }
}

#[test]
fn one_step_is_that_of_section_8() {
    let (fimd, lipd) = (design("r/2", 256), design("r/(1+r)", 256));
    for (r, l, f) in [
        (1.0 / 256.0, 0.003922, 0.007812),
        (1.0 / 128.0, 0.007843, 0.011049),
        (1.0 / 64.0, 0.015686, 0.018581),
        (1.0 / 32.0, 0.031373, 0.034078),
        (0.05, 0.050196, 0.052782),
        (0.1, 0.100392, 0.102745),
        (0.25, 0.250980, 0.252722),
        (0.5, 0.501961, 0.502715),
        (1.0, 1.0, 1.0),
    ] {
        close(lipd.increase(r), l, &format!("LIPD at {r}"));
        close(fimd.increase(r), f, &format!("FIMD at {r}"));
    }
}

#[test]
fn properties_are_those_of_section_5() {
    for (text, time, acks) in [("r/(1+r)", 65280.0, 1417), ("r/2", 2048.0, 365)] {
        let design = design(text, 256);
        let (table, fit) = Table::of(&design);
        let report = Report::of(&design, &table, fit);
        assert!((report.curves[0].rmin_to_rmax_packet_times - time).abs() < 1e-6 * time);
        assert_eq!(report.curves[0].rmin_to_rmax_acks, acks);
        let acks: Vec<_> = report.curves[1..]
            .iter()
            .map(|c| c.rmin_to_rmax_acks)
            .collect();
        assert_eq!(acks, [1417, 365, 32765]);
        for condition in &report.conditions {
            assert!(
                condition.holds && condition.worst_excess < 1e-9,
                "{condition:?}"
            );
        }
        assert!(report.table_avoidance_excess < 1e-6);
        for recovery in &report.curves[0].recovery {
            assert!(
                (recovery.recovery_packet_times - 256.0).abs() < 1e-6,
                "{recovery:?}"
            );
        }
        let aimd = &report.curves[3].recovery;
        assert_eq!(aimd[0].recovery_packet_times, 32768.0);
        assert!((aimd[4].recovery_packet_times - 1638.4).abs() < 1e-9);
        assert!(figure(&design).contains("</svg>"));
    }
}

/// Delays from 1 to somewhat beyond 1/Rmin, as fixed point.
fn delays(largest: u64) -> impl Iterator<Item = u64> {
    (0..=20_000_u64).map(move |i| ONE / 2 + largest * ONE / 20_000 * i)
}

#[test]
fn tables_of_lipd_and_fimd_are_the_functions_of_the_core() {
    for (text, function) in [("r/(1+r)", Function::Lipd), ("r/2", Function::Fimd)] {
        for denominator in [16, 256, 65536] {
            let (table, _) = Table::of(&design(text, denominator));
            let policy =
                Policy::new(function, Ratio::new(1, denominator.into()), Policy::HP_M).unwrap();
            for ipd in delays(denominator.into()) {
                let near = |found: u64, expected: u64| {
                    assert!(
                        found.abs_diff(expected) as f64 <= 1e-5 * expected as f64,
                        "{text} 1/{denominator} at {ipd}: {found}, not {expected}"
                    );
                };
                near(table.marked(ipd), marked(&policy, ipd));
                near(table.unmarked(ipd), unmarked(&policy, ipd, 1));
            }
        }
    }
}

#[test]
fn table_rates_stay_in_range_and_are_monotonic() {
    let (table, _) = Table::of(&design("r/2", 256));
    for ipd in [
        0,
        1,
        ONE - 1,
        ONE,
        ONE + 1,
        255 * ONE,
        256 * ONE,
        257 * ONE,
        u64::MAX,
    ] {
        for next in [table.marked(ipd), table.unmarked(ipd)] {
            assert!((ONE..=256 * ONE).contains(&next), "{ipd}: {next}");
        }
    }
    assert_eq!(table.unmarked(ONE), ONE);
    assert_eq!(table.marked(256 * ONE), 256 * ONE);
}

/// A file with this text.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("design.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn a_table_is_the_same_after_it_was_written() {
    let (table, _) = Table::of(&design("0.7*r/(1 + sqrt(r))", 100));
    let (_folder, path) = file(&table.to_toml());
    let loaded = Table::load(&path).unwrap();
    assert_eq!(loaded.rmin(), rmin(100));
    assert_eq!(loaded.decrease_text(), "0.7*r/(1 + sqrt(r))");
    for ipd in delays(100) {
        // 64 fractional bits do not fit exactly into a number of the file.
        assert!(loaded.unmarked(ipd).abs_diff(table.unmarked(ipd)) <= 1);
        assert_eq!(loaded.marked(ipd), table.marked(ipd));
    }
}

#[test]
fn bad_tables_are_refused_in_one_line() {
    let good = Table::of(&design("r/2", 16)).0.to_toml();
    let cases = r#"
        version = 1 -> version = 2 => version 2 is not known, only 1
        version = 1 -> # => missing field `version`
        response table" -> sponge table" => format is `ecn sponge table`
        rmin = "1/16" -> rmin = "1/32" => 258 points, but rmin = 1/32
        rmin = "1/16" -> rmin = "0" => rmin = 0 is not from 1/65536
        rmin = "1/16" -> rmin = "x" => line 9:
        octave = 64 -> octave = 63 => steps_per_octave = 63: must be a power
        octave = 64 -> octave = 4294967295 => must be a power
        octave = 64 -> octave = 64\nshape = 1 => unknown field `shape`
        [1.0, 1.0, -> [1.5, 1.0, => point 0 is at 1.5 instead of 1
        [1.0, 1.0, -> [1.0, nan, => point 0: a mark adds NaN
        [1.0, 1.0, -> [1.0, -1.0, => point 0: a mark adds -1
        [1.0, 1.0, -> [1.0, => line 13:
        ]\n -> # => line
    "#;
    for case in cases.trim().lines().map(str::trim) {
        let (change, expected) = case.split_once(" => ").unwrap();
        let change = change.replace("\\n", "\n");
        let (from, to) = change.split_once(" -> ").unwrap();
        assert!(good.contains(from), "{from}");
        let (_folder, path) = file(&good.replacen(from, to, 1));
        let error = Table::load(&path).unwrap_err().to_string();
        assert!(
            error.starts_with("cannot use the response table /"),
            "{error}"
        );
        assert!(
            error.contains(expected) && !error.contains('\n'),
            "{to}: {error}"
        );
    }
    for text in ["", "\0\u{feff}", "points = 3"] {
        let (_folder, path) = file(text);
        assert!(Table::load(&path).is_err());
    }
    let nowhere = Table::load("/nonexistent/design.toml".as_ref()).unwrap_err();
    assert!(nowhere.to_string().contains("No such file"), "{nowhere}");
}

/// Expressions of many kinds, most of them decrease functions.
fn decreases() -> impl Strategy<Value = String> {
    let (a, b, p) = (0.02..0.98, 0.0..3.0, 0.3..3.0);
    (0..7_u32, a, b, p).prop_map(|(kind, a, b, p)| match kind {
        0 => format!("{a}*r"),
        1 => format!("{a}*r/(1 + {b}*r^{p})"),
        2 => format!("r/(1 + {b}*r + {a}*r^{p})"),
        3 => format!("r - {a}*r^(1 + {p})/(1 + {p})"),
        4 => format!("r*({a} + {}*exp(-{b}*r))", (1.0 - a) / 2.0),
        5 => format!("max({a}*r, r - {b}/10)"),
        _ => format!("{a}*r^(1 + {p}/3)"),
    })
}

/// Found by chance: many short steps, and a few long ones at the end.
#[test]
fn a_bend_near_the_floor_is_detected() {
    let text = "max(0.34333018857129605*r, r - 0.026977556930664233/10)";
    let design = Design::new(text, rmin(128)).unwrap();
    for step in 0..1_000 {
        let r = (1.0_f64 / 128.0).powf(f64::from(step) / 1_000.0);
        let lowered = design.decrease(r);
        if lowered >= 1.0 / 128.0 {
            let time = design.time_to(r) - design.time_to(lowered);
            assert!((time - 128.0).abs() < 1e-6 * 128.0, "{r}: {time}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_design_fulfils_the_conditions(text in decreases(), share in 0.0..1.0_f64) {
        let Ok(design) = Design::new(&text, rmin(128)) else {
            return Ok(());
        };
        let r = (1.0_f64 / 128.0).powf(share);
        let lowered = design.decrease(r);
        prop_assert!(design.increase(r) > r * (1.0 + 1e-9) || r > 0.99 || design.increase(r) == 1.0);
        if lowered >= 1.0 / 128.0 {
            let back = design.increase(lowered);
            prop_assert!(back <= r * (1.0 + 1e-6), "{text}: {r} -> {lowered} -> {back}");
            let time = design.time_to(r) - design.time_to(lowered);
            prop_assert!((time - 128.0).abs() < 1e-6 * 128.0, "{text} at {r}: {time}");
        }
        // Finc is the inverse of t_r.
        let rate = design.rate_after(design.time_to(r));
        prop_assert!((rate / r - 1.0).abs() < 1e-6, "{text} at {r}: {rate}");
    }
}
