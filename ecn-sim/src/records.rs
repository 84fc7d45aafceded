//! Results as tables for programs: a row per observation, with the same columns in CSV and Parquet.
//!
//! The columns are documented in `docs/results.md`, which is generated from the doc comments of the reports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::output::csv;

mod page;
#[cfg(feature = "parquet")]
mod parquet;

pub use page::page;

/// A value of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// No value was measured.
    Null,
    /// A whole number.
    Whole(i64),
    /// Another number.
    Number(f64),
    /// A text.
    Text(String),
}

impl Cell {
    /// Its value as a number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Whole(number) => Some(*number as f64),
            Self::Number(number) => Some(*number),
            Self::Null | Self::Text(_) => None,
        }
    }
}

/// CSV form: the fewest digits from which a number is read back exactly; empty for null.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => Ok(()),
            Self::Whole(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        match i64::try_from(number) {
            Ok(number) => Self::Whole(number),
            // Kept exact as text, rather than rounded.
            Err(_) => Self::Text(number.to_string()),
        }
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::Whole(number.into())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl<T: Into<Self>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

/// The values of an observation, by column.
pub type Row = BTreeMap<String, Cell>;

/// Column names with their meanings, of a table with fixed columns.
pub type Columns = [(&'static str, &'static str)];

/// File formats of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values.
    Csv,
    /// Apache Parquet.
    Parquet,
}

impl Format {
    /// The format for a file's extension, if it is that of a table.
    pub fn of(file: &Path) -> Option<Self> {
        match file.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "parquet" => Some(Self::Parquet),
            _ => None,
        }
    }
}

/// A row of values per observation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// Names, with units.
    pub columns: Vec<String>,
    /// Rows, each with one cell per column.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// A table with these columns.
    pub fn new(columns: &Columns, rows: impl IntoIterator<Item = Vec<Cell>>) -> Self {
        Self {
            columns: columns.iter().map(|(name, _)| (*name).to_owned()).collect(),
            rows: rows.into_iter().collect(),
        }
    }

    /// A table of rows by column: first the columns of `first` (window times only if any row has them), last `error`,
    /// and between them all others sorted by name.
    pub fn of_rows(first: &[String], rows: Vec<Row>) -> Self {
        let names: BTreeSet<&String> = rows.iter().flat_map(Row::keys).collect();
        let is_here = |name: &&String| names.contains(name) || !FIRST[1..].contains(&name.as_str());
        let first: Vec<String> = first.iter().filter(is_here).cloned().collect();
        let middle = names
            .into_iter()
            .filter(|name| !first.contains(name) && *name != ERROR);
        let middle: Vec<String> = middle.cloned().collect();
        let columns = [&first[..], &middle, &[ERROR.to_owned()]].concat();
        let values = |mut row: Row| {
            let values = columns.iter().map(|name| row.remove(name));
            values.map(|value| value.unwrap_or(Cell::Null)).collect()
        };
        let rows = rows.into_iter().map(values).collect();
        Self { columns, rows }
    }

    /// The table of one run: a single row, or one per window.
    pub fn of_report(report: &impl Serialize) -> Self {
        let report = serde_json::to_value(report).unwrap_or_default();
        Self::of_rows(&FIRST.map(str::to_owned), rows(&report))
    }

    /// The table as CSV.
    pub fn csv(&self) -> String {
        let rows = self.rows.iter();
        let rows = rows.map(|row| row.iter().map(Cell::to_string).collect());
        csv(std::iter::once(self.columns.clone()).chain(rows))
    }

    /// The table as the contents of a file.
    ///
    /// # Errors
    ///
    /// This program was built without Parquet support.
    pub fn encoded(&self, format: Format) -> io::Result<Vec<u8>> {
        match format {
            Format::Csv => Ok(self.csv().into_bytes()),
            #[cfg(feature = "parquet")]
            Format::Parquet => parquet::encoded(self),
            #[cfg(not(feature = "parquet"))]
            Format::Parquet => {
                let reason = "this program was built without Parquet: use a file *.csv";
                Err(io::Error::new(io::ErrorKind::Unsupported, reason))
            }
        }
    }

    /// Files `NAME.csv` and, unless this program was built without Parquet, `NAME.parquet`.
    ///
    /// # Errors
    ///
    /// A table cannot be encoded.
    pub fn files(&self, name: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut files = vec![(format!("{name}.csv"), self.encoded(Format::Csv)?)];
        if cfg!(feature = "parquet") {
            files.push((format!("{name}.parquet"), self.encoded(Format::Parquet)?));
        }
        Ok(files)
    }
}

/// Columns before the results: the seed, and the time of a window.
pub const FIRST: [&str; 3] = ["seed", "from_ms", "to_ms"];

/// The last column: why a run failed.
const ERROR: &str = "error";

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
pub fn whole_run(report: &Value) -> Row {
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
pub fn rows(report: &Value) -> Vec<Row> {
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
        let first = ["seed", "from_ms"].map(str::to_owned);
        let table = Table::of_rows(&first, [rows(&report), rows(&failed)].concat());
        let expected = "seed,from_ms,jain,share,slowdown_p50,window_jain,error\n\
                        3,0.5,0.9,0.1,,0.8,\n3,2,0.9,,,,\n18446744073709551615,,,,,,\"a, b\"\n";
        assert_eq!(table.csv(), expected);
    }
}
