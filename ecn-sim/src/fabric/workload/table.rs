//! CSV files, and their errors.

use std::fmt;
use std::path::Path;

use crate::text_file;

/// An error about a line of a file.
pub(super) fn at(line: u64, what: impl fmt::Display) -> String {
    format!("line {line}: {what}")
}

/// The lines of a file with their numbers, without empty ones and those that begin with `#`.
fn lines(file: &Path) -> Result<Vec<(u64, String)>, String> {
    let text = text_file::read(file).map_err(|error| error.to_string())?;
    let text = text.trim_start_matches('\u{feff}');
    let has_fields = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let lines = (1..).zip(text.lines()).filter(|(_, line)| has_fields(line));
    Ok(lines.map(|(at, line)| (at, line.to_owned())).collect())
}

/// Reads a CSV file with this header: the fields of each row, with its line number. Columns after the first `least` may
/// be missing, and are then empty. Empty lines and lines that begin with `#` are ignored.
pub(super) fn rows<const N: usize>(
    file: &Path,
    header: [&str; N],
    least: usize,
) -> Result<Vec<(u64, [String; N])>, String> {
    // The reader does not count omitted lines.
    let (numbers, lines): (Vec<u64>, Vec<String>) = lines(file)?.into_iter().unzip();
    let text = lines.join("\n");
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .quoting(false)
        .flexible(true)
        .from_reader(text.as_bytes());
    let found = reader.headers().map_err(|error| error.to_string())?;
    let columns = found.len();
    if found.iter().ne(header) && !found.iter().eq(header[..least].iter().copied()) {
        let optional = header[least..].iter().map(|name| format!("[,{name}]"));
        let needed = header[..least].join(",") + &optional.collect::<String>();
        return Err(format!("the first line must be {needed}"));
    }
    let mut rows = Vec::new();
    for (record, line) in reader.records().zip(numbers.into_iter().skip(1)) {
        let record = record.map_err(|error| at(line, error))?;
        if record.len() != columns {
            let what = format_args!(
                "{} values, where the first line has {columns}",
                record.len()
            );
            return Err(at(line, what));
        }
        let mut texts = record.iter().map(str::to_owned);
        rows.push((line, [(); N].map(|()| texts.next().unwrap_or_default())));
    }
    Ok(rows)
}

/// Reads a file of numbers, separated by commas or blanks. Its first line may contain column names, as in CSV; empty
/// lines and lines that begin with `#` are ignored.
pub(super) fn points<const N: usize>(
    file: &Path,
    header: [&str; N],
) -> Result<Vec<(u64, [f64; N])>, String> {
    let mut points = Vec::new();
    for (at_first, (line, text)) in lines(file)?.into_iter().enumerate() {
        let texts: Vec<&str> = match text.contains(',') {
            true => text.split(',').map(str::trim).collect(),
            false => text.split_whitespace().collect(),
        };
        if at_first == 0 && texts[0].parse::<f64>().is_err() {
            if texts != header {
                let header = header.join(",");
                return Err(format!("the first line must be {header}, or numbers"));
            }
            continue;
        }
        let texts: [&str; N] = texts.try_into().map_err(|_| {
            let header = header.join(",");
            at(line, format_args!("`{text}` instead of {header}"))
        })?;
        let mut point = [0.0; N];
        for (value, text) in point.iter_mut().zip(texts) {
            *value = number(line, text)?;
        }
        points.push((line, point));
    }
    Ok(points)
}

/// Parses a number in a file.
pub(super) fn number(line: u64, text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    number
        .filter(|number| (0.0..=9e15).contains(number))
        .ok_or_else(|| at(line, format_args!("`{text}` is not a number from 0 up")))
}
