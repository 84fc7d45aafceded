//! Output of the results: a table, accepted values, JSON, an SVG.

use std::{fs, path::PathBuf};

use ecn_report::figure::{DotColumn, DotFigure};
use serde_json::{Value, json};

use super::run::{Control, Outcome};

/// A requirement: the row, the value, and its lower or upper bound.
struct Bar {
    rows: &'static [&'static str],
    value: &'static str,
    bound: Bound,
}

enum Bound {
    Least(f64),
    Most(f64),
}

use Bound::{Least, Most};

const FEW: &[&str] = &[
    "udp-2", "udp-3", "udp-5", "udp-10", "cubic-2", "cubic-3", "cubic-5", "cubic-10", "reno-2",
    "reno-3", "reno-5", "reno-10",
];
const FORTY: &[&str] = &["udp-40", "cubic-40", "reno-40"];
const MANY: &[&str] = &[
    "udp-100",
    "udp-400",
    "cubic-100",
    "cubic-400",
    "reno-100",
    "reno-400",
];
const MIXED: &[&str] = &[
    "mixed-udp-udp",
    "mixed-cubic-udp",
    "mixed-udp-cubic",
    "mixed-cubic-cubic",
];

const fn bar(rows: &'static [&'static str], value: &'static str, bound: Bound) -> Bar {
    Bar { rows, value, bound }
}

/// Requirements at 100 Mbit/s.
const BARS: &[Bar] = &[
    bar(&["udp-1", "cubic-1", "reno-1"], "full_percent", Least(96.0)),
    bar(FEW, "full_percent", Least(95.0)),
    bar(FEW, "jain", Least(0.97)),
    bar(FEW, "queue_mean_packets", Most(10.0)),
    bar(FEW, "ping_p99_ms", Most(4.0)),
    bar(FEW, "drops_per_s", Most(0.0)),
    bar(FORTY, "full_percent", Least(97.0)),
    bar(FORTY, "jain", Least(0.95)),
    bar(FORTY, "queue_mean_packets", Most(15.0)),
    bar(FORTY, "ping_p99_ms", Most(6.0)),
    bar(FORTY, "drops_per_s", Most(0.0)),
    bar(MANY, "full_percent", Least(95.0)),
    bar(MANY, "jain", Least(0.9)),
    bar(MANY, "queue_mean_packets", Most(25.0)),
    bar(MANY, "drops_per_s", Most(50.0)),
    bar(&["bbr-10"], "jain", Least(0.9)),
    bar(&["start-40"], "queue_300ms_packets", Most(16.0)),
    bar(&["start-40"], "start_drops", Most(5000.0)),
    bar(
        &["stop-10", "stop-40", "stop-cubic-10"],
        "alone_after_ms",
        Most(300.0),
    ),
    bar(&["churn", "churn-cubic"], "full_percent", Least(90.0)),
    bar(MIXED, "least_host_mbit_per_s", Least(15.0)),
    bar(MIXED, "queue_mean_packets", Most(20.0)),
    bar(MIXED, "ping_p99_ms", Most(5.0)),
    bar(
        &["voice-10", "voice-cubic-10"],
        "voice_lost_percent",
        Most(0.1),
    ),
    bar(&["voice-40"], "voice_lost_percent", Most(0.5)),
    bar(&["voice-10", "voice-cubic-10"], "voice_p99_ms", Most(3.0)),
    bar(&["voice-40"], "voice_p99_ms", Most(8.0)),
    bar(&["conns-200"], "transfer_p99_ms", Most(6.0)),
    bar(&["conns-200"], "transfers_failed", Most(0.0)),
    bar(&["web"], "transfer_p99_ms", Most(300.0)),
    bar(&["web"], "share_off_percent", Most(25.0)),
    bar(&["conns-1000"], "agent_cores", Most(0.3)),
    bar(&["conns-4000"], "agent_cores", Most(0.8)),
    bar(&["conns-1000", "conns-4000"], "agent_most_mb", Most(80.0)),
    bar(
        &["conns-1000", "conns-4000"],
        "agent_idle_after_s",
        Most(2.0),
    ),
    bar(
        &["conns-1000", "conns-4000"],
        "voice_lost_percent",
        Most(1.0),
    ),
    bar(&["udp-10"], "own_p50_ms", Most(15.0)),
    bar(&["udp-40"], "own_p50_ms", Most(60.0)),
];

/// Requirements that a run does not meet, in words; none for controls other than HP's marks.
pub fn misses(outcome: &Outcome) -> Vec<String> {
    if !matches!(outcome.control, Control::Ecn | Control::Backward) {
        return Vec::new();
    }
    let row = outcome.row.as_str();
    let bars = BARS.iter().filter(|bar| bar.rows.contains(&row));
    let missed = bars.filter_map(|bar| {
        let value = outcome.value(bar.value);
        let (good, word, limit) = match bar.bound {
            Least(limit) => (value >= limit, ">=", limit),
            Most(limit) => (value <= limit, "<=", limit),
        };
        (!good).then(|| format!("{} {value:.2}, not {word} {limit}", bar.value))
    });
    missed.collect()
}

/// A line per row, and per control goodput, queue, ping and drops.
pub fn table(outcomes: &[Outcome]) -> String {
    let mut controls: Vec<Control> = Vec::new();
    let mut rows: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !controls.contains(&outcome.control) {
            controls.push(outcome.control);
        }
        if !rows.contains(&outcome.row.as_str()) {
            rows.push(&outcome.row);
        }
    }
    let mut text = format!("{:<18}", "");
    for control in &controls {
        text += &format!("  {:<29}", control.name());
    }
    text += &format!("\n{:<18}", "row");
    for _ in &controls {
        text += &format!(
            "  {:>6} {:>6} {:>7} {:>7}",
            "% full", "queue", "p99 ms", "drops/s"
        );
    }
    for row in rows {
        text += &format!("\n{row:<18}");
        for control in &controls {
            let of = |outcome: &&Outcome| outcome.row == row && outcome.control == *control;
            let Some(outcome) = outcomes.iter().find(of) else {
                text += &format!("  {:>6} {:>6} {:>7} {:>7}", "-", "-", "-", "-");
                continue;
            };
            let value = |name: &str, digits: usize| {
                let value = outcome.value(name);
                if value.is_nan() {
                    "-".to_owned()
                } else {
                    format!("{value:.digits$}")
                }
            };
            text += &format!(
                "  {:>6} {:>6} {:>7} {:>7}",
                value("full_percent", 1),
                value("queue_mean_packets", 1),
                value("ping_p99_ms", 1),
                value("drops_per_s", 0)
            );
        }
        while text.ends_with(' ') {
            text.pop();
        }
    }
    text
}

/// The JSON document.
pub fn document(outcomes: &[Outcome]) -> Value {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let rows: Vec<Value> = outcomes.iter().map(Outcome::json).collect();
    json!({"kernel": release.trim(), "rows": rows})
}

/// Writes JSON and SVG into `ECN_BENCH_OUT`, else `target/bench`.
///
/// # Errors
///
/// Those of writing.
pub fn write(outcomes: &[Outcome]) -> std::io::Result<PathBuf> {
    let out =
        std::env::var_os("ECN_BENCH_OUT").map_or_else(|| "target/bench".into(), PathBuf::from);
    fs::create_dir_all(&out)?;
    let column = |title: &str, unit: &str, name: &str, reference| DotColumn {
        title: title.to_owned(),
        unit: unit.to_owned(),
        values: outcomes
            .iter()
            .map(|outcome| Some(outcome.value(name)).filter(|value| value.is_finite()))
            .collect(),
        half_widths: Vec::new(),
        reference,
    };
    let figure = DotFigure {
        title: "Control on an ordinary bridge".to_owned(),
        rows: outcomes
            .iter()
            .map(|outcome| (outcome.row.clone(), outcome.control.name()))
            .collect(),
        columns: vec![
            column("goodput", "% of a full port", "full_percent", Some(100.0)),
            column("queue", "packets, mean", "queue_mean_packets", None),
            column("ping", "ms, 99 %", "ping_p99_ms", None),
        ],
    };
    fs::write(out.join("bridge.svg"), figure.to_svg())?;
    let document = document(outcomes);
    fs::write(out.join("bridge.json"), format!("{document:#}\n"))?;
    Ok(out)
}
