//! CSV files, and what is wrong with them.

use std::fmt;
use std::path::Path;

/// Something about a line of a file.
pub fn at(line: u64, what: impl fmt::Display) -> String {
    format!("line {line}: {what}")
}

/// Reads a CSV file with this first line: what the others say, with their numbers. What comes after the first `least`
/// columns may be missing, and is empty then.
pub fn rows<const N: usize>(
    file: &Path,
    header: [&str; N],
    least: usize,
) -> Result<Vec<(u64, [String; N])>, String> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .from_path(file)
        .map_err(|error| error.to_string())?;
    let found = reader.headers().map_err(|error| error.to_string())?;
    if found.iter().ne(header) && !found.iter().eq(header[..least].iter().copied()) {
        let optional = header[least..].iter().map(|name| format!("[,{name}]"));
        let needed = header[..least].join(",") + &optional.collect::<String>();
        return Err(format!("the first line has to be {needed}"));
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let line = record.position().map_or(0, csv::Position::line);
        // As many as the first line has.
        let mut texts = record.iter().map(str::to_owned);
        rows.push((line, [(); N].map(|()| texts.next().unwrap_or_default())));
    }
    Ok(rows)
}

/// A number of a file.
pub fn number(line: u64, text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    number
        .filter(|number| (0.0..=9e15).contains(number))
        .ok_or_else(|| at(line, format_args!("`{text}` is not a number from 0 up")))
}
