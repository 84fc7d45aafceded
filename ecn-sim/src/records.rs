//! Reports as tables for programs: a row per run, or per window.
//!
//! The columns are documented in `docs/results.md`, which is generated from the doc comments of the reports.

use ecn_report::table::{Cell, Row, Table};
use serde::Serialize;
use serde_json::Value;

mod page;

pub use page::page;

/// Columns before the results: the seed, and the time of a window.
pub(crate) const FIRST: [&str; 3] = ["seed", "from_ms", "to_ms"];

/// A table of rows: first the columns `first`, the seed and, if any row has them, window times; then all others sorted by
/// name, and last the error.
pub(crate) fn table(mut first: Vec<String>, rows: Vec<Row>) -> Table {
    let [seed, times @ ..] = FIRST.map(str::to_owned);
    first.push(seed);
    first.extend(
        times
            .into_iter()
            .filter(|name| rows.iter().any(|row| row.contains_key(name))),
    );
    Table::of_rows(&first, rows)
}

/// The table of one run: a single row, or one per window.
pub fn table_of_report(report: &impl Serialize) -> Table {
    let report = serde_json::to_value(report).unwrap_or_default();
    table(Vec::new(), rows(&report))
}

/// Parts of a report that are not results; callers add columns for them.
const OMITTED: &[&str] = &["run", "swept", "parameters", "scenario"];

/// Columns that depend on the machine's speed, not on the run.
pub(crate) const TIMES: &[&str] = &["wall_s", "setup_s"];

fn is_omitted(name: &str) -> bool {
    OMITTED.contains(&name) || TIMES.contains(&name)
}

/// Bytes sent by each host in a window, and the maximum number of hosts for which tables contain them.
pub(crate) const SENDERS: &str = "senders_bytes_per_s";
const MOST_SENDERS: usize = 64;

/// The results of a JSON report over the whole run.
pub(crate) fn whole_run(report: &Value) -> Row {
    let mut row = Row::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        if name != "windows" && !is_omitted(name) {
            flatten(name, value, &mut row);
        }
    }
    row
}

/// The rows of a JSON report: a single one, or one per window. If a run and its windows have a value of the same name,
/// the window's is called `window_NAME`.
pub(crate) fn rows(report: &Value) -> Vec<Row> {
    let common = whole_run(report);
    let Value::Object(report) = report else {
        return Vec::new();
    };
    let windows = match report.get("windows") {
        Some(Value::Array(windows)) if !windows.is_empty() => windows.as_slice(),
        _ => &[Value::Null],
    };
    let row = |window: &Value| {
        let mut row = common.clone();
        for (name, value) in window.as_object().into_iter().flatten() {
            let of_each = value.as_object().filter(|_| name == SENDERS);
            let is_left_out = value.is_null() && name == SENDERS;
            if is_left_out || of_each.is_some_and(|hosts| hosts.len() > MOST_SENDERS) {
                continue;
            }
            flatten(&of_window(name, report.contains_key(name)), value, &mut row);
        }
        row
    };
    windows.iter().map(row).collect()
}

/// The name of a window's column.
fn of_window(name: &str, is_of_run: bool) -> String {
    match is_of_run {
        true => format!("window_{name}"),
        false => name.to_owned(),
    }
}

/// Flattens nested objects; keys are joined by `_`.
fn flatten(name: &str, value: &Value, into: &mut Row) {
    let cell = match value {
        Value::Object(object) => {
            for (key, value) in object {
                flatten(&format!("{name}_{key}"), value, into);
            }
            return;
        }
        // Groups by size differ between runs.
        Value::Array(_) => return,
        Value::Null => Cell::Null,
        Value::String(text) => Cell::Text(text.clone()),
        Value::Number(number) => match number.as_u64() {
            Some(whole) => whole.into(),
            None => number.as_f64().into(),
        },
        Value::Bool(value) => Cell::Text(value.to_string()),
    };
    into.insert(name.to_owned(), cell);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_not_measured_is_an_empty_cell() {
        let report = json!({
            "scenario": "x", "seed": 3, "slowdown": { "p50": null, "groups": [1] }, "wall_s": 0.1,
            "jain": 0.9,
            "windows": [{ "from_ms": 0.5, "share": 0.1, "jain": 0.8 }, { "from_ms": 2.0, "share": null, "jain": null }],
        });
        let failed = json!({ "seed": u64::MAX, "error": "a, b" });
        let table = table(Vec::new(), [rows(&report), rows(&failed)].concat());
        let expected = "seed,from_ms,jain,share,slowdown_p50,window_jain,error\n\
                        3,0.5,0.9,0.1,,0.8,\n3,2,0.9,,,,\n18446744073709551615,,,,,,\"a, b\"\n";
        assert_eq!(table.csv(), expected);
    }
}
