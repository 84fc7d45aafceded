//! Tables for programs: a row per observation, with the same columns in CSV and Parquet.
//!
//! CSV is RFC 4180 with line feeds, numbers have the fewest digits from which they are read back exactly, and null is
//! empty. In Parquet all columns are optional: 64-bit integers if all cells of a column are whole numbers or null, text
//! (UTF-8) if one is a text or the column is [`ERROR`], otherwise 64-bit floating point.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::Path;

#[cfg(feature = "parquet")]
mod parquet;

/// The name of a column of error messages: always text, even if all of its cells are null.
pub const ERROR: &str = "error";

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

    /// A table of rows by column: first the columns `first`, last [`ERROR`], and between them all others sorted by name.
    pub fn of_rows(first: &[String], rows: Vec<Row>) -> Self {
        let names: BTreeSet<&String> = rows.iter().flat_map(Row::keys).collect();
        let middle = names
            .into_iter()
            .filter(|name| !first.contains(name) && *name != ERROR);
        let middle: Vec<String> = middle.cloned().collect();
        let columns = [first, &middle, &[ERROR.to_owned()]].concat();
        let values = |mut row: Row| {
            let values = columns.iter().map(|name| row.remove(name));
            values.map(|value| value.unwrap_or(Cell::Null)).collect()
        };
        let rows = rows.into_iter().map(values).collect();
        Self { columns, rows }
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

/// A table as CSV (RFC 4180, but lines end in a line feed only).
pub fn csv<R>(rows: impl IntoIterator<Item = R>) -> String
where
    R: IntoIterator<Item: AsRef<[u8]>>,
{
    let mut writer = csv::WriterBuilder::new()
        .flexible(true)
        .from_writer(Vec::new());
    for row in rows {
        // Writing to memory cannot fail.
        let _ = writer.write_record(row);
    }
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_values_are_empty_cells() {
        let row = |cells: &[(&str, Cell)]| -> Row {
            let cells = cells.iter().cloned();
            cells.map(|(name, cell)| (name.to_owned(), cell)).collect()
        };
        let rows = vec![
            row(&[
                ("seed", Cell::Whole(3)),
                ("rate", Cell::Number(0.5)),
                ("jain", Cell::Null),
            ]),
            row(&[("seed", u64::MAX.into()), (ERROR, "a, b".into())]),
        ];
        let table = Table::of_rows(&["seed".to_owned()], rows);
        let expected = "seed,jain,rate,error\n3,,0.5,\n18446744073709551615,,,\"a, b\"\n";
        assert_eq!(table.csv(), expected);
    }
}
