//! Merges the folders of a sweep's shards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::iter;
use std::path::{Path, PathBuf};

use ecn_report::output::{Output, Target};
use ecn_report::table::{Cell, Format, Row, Table};
use serde_json::Value;

use super::execute::{lock, read_manifest, read_records, record_files};
use super::{MANIFEST, Shard, Sweep, SweepError};
use crate::keys::Kind;
use crate::records::{self, TIMES};

/// Maximum number of differing or missing runs listed in a message.
const NAMED: usize = 10;

/// The records of a sweep, from one or more folders.
#[derive(Debug)]
pub struct Merged {
    sweep: Sweep,
    /// By run index.
    records: Vec<Option<String>>,
    failed: usize,
    /// Number of shards of the sweep, if all files agree.
    shards: Option<usize>,
}

impl Merged {
    /// Reads the folders.
    ///
    /// # Errors
    ///
    /// A folder holds no sweep or another one than the first folder, a file is not a file of records, or records of the
    /// same run differ (other than in wall-clock times).
    pub fn read(folders: &[PathBuf]) -> Result<Self, SweepError> {
        let bad = |folder: &Path, reason: String| SweepError::Folder {
            folder: folder.to_owned(),
            reason,
        };
        let Some(first) = folders.first() else {
            return Err(bad(Path::new("."), "no folder".to_owned()));
        };
        let none = |folder| bad(folder, format!("holds no sweep: no {MANIFEST}"));
        let manifest = read_manifest(first)?.ok_or_else(|| none(first))?;
        let sweep = Sweep::of_manifest(manifest).map_err(|reason| bad(first, reason))?;
        for folder in folders {
            if !sweep.expect_in(folder)? {
                return Err(none(folder));
            }
        }
        let index_of = sweep.index_of();
        let mut records: Vec<Option<String>> = vec![None; sweep.runs()];
        let (mut differ, mut failed) = (BTreeSet::new(), BTreeSet::new());
        let mut shards = BTreeSet::new();
        for folder in folders {
            for (file, shard) in record_files(folder)? {
                shards.insert(shard.of);
                for found in read_records(&file, &index_of)?.0 {
                    if found.error.is_some() {
                        failed.insert(found.index);
                    }
                    match &records[found.index] {
                        Some(text) if !same(text, &found.text) => {
                            differ.insert(found.index);
                        }
                        Some(_) => {}
                        None => records[found.index] = Some(found.text),
                    }
                }
            }
        }
        if !differ.is_empty() {
            return Err(SweepError::Differ(sweep.name_some(&differ)));
        }
        Ok(Self {
            sweep,
            records,
            failed: failed.len(),
            shards: shards.first().copied().filter(|_| shards.len() == 1),
        })
    }

    /// Number of runs in the sweep.
    pub fn runs(&self) -> usize {
        self.sweep.runs()
    }

    /// Number of failed runs.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// The runs without a record.
    pub fn missing(&self) -> BTreeSet<usize> {
        let records = self.records.iter().enumerate();
        let missing = records.filter(|(_, record)| record.is_none());
        missing.map(|(index, _)| index).collect()
    }

    /// Descriptions of the missing runs.
    pub fn missing_runs(&self) -> Vec<String> {
        let missing = self.missing();
        missing.iter().map(|i| self.sweep.describe(*i)).collect()
    }

    /// A line about missing records: number of runs, their shards, and the first runs by name. `None` if all are
    /// present.
    pub fn missing_text(&self) -> Option<String> {
        let missing = self.missing();
        if missing.is_empty() {
            return None;
        }
        let mut shards = String::new();
        if let Some(of) = self.shards.filter(|of| *of > 1) {
            let mut runs = BTreeMap::new();
            for index in &missing {
                *runs.entry(index % of + 1).or_insert(0) += 1;
            }
            let lacks = |(number, runs)| format!("{} lacks {runs}", Shard { number, of });
            let texts: Vec<String> = runs.into_iter().map(lacks).collect();
            shards = format!(" (shard {})", texts.join(", "));
        }
        let (count, runs) = (missing.len(), self.runs());
        let names = self.sweep.name_some(&missing);
        Some(format!(
            "{count} of {runs} runs are missing{shards}: {names}"
        ))
    }

    /// Writes the records in the order of the sweep as JSON lines, as a table (CSV and Parquet) with a row per run and
    /// window and, for a sweep over one number or two keys, as a figure (SVG). `out`: a folder; a file `*.jsonl`, with
    /// the others written next to it; or a file `*.csv` or `*.parquet`, for the table alone. Returns the paths.
    ///
    /// # Errors
    ///
    /// A file cannot be written, or the folder holds a different sweep.
    pub fn write(&self, out: &Path) -> Result<Vec<PathBuf>, SweepError> {
        if Format::of(out).is_some() {
            let written = Target::new(out)?.write_table(&self.table())?;
            return Ok(written.into_iter().collect());
        }
        let extension = out.extension();
        let is_file = extension.is_some_and(|extension| extension == "jsonl");
        let (folder, stem) = match (is_file, out.parent(), out.file_stem()) {
            (true, Some(parent), Some(stem)) if parent == Path::new("") => (Path::new("."), stem),
            (true, Some(parent), Some(stem)) => (parent, stem),
            _ => (out, "runs".as_ref()),
        };
        let name = |extension| format!("{}.{extension}", stem.to_string_lossy());
        let lines = name("jsonl");
        if !is_file {
            self.sweep.expect_in(folder)?;
        }
        if let Ok(file) = File::open(folder.join(&lines)) {
            lock(&file, &folder.join(&lines))?;
        }
        let records = self.records.iter().flatten();
        let text: String = records.map(|record| format!("{record}\n")).collect();
        let mut files = vec![(lines, text.into_bytes())];
        let tables = self.table().files(&stem.to_string_lossy());
        files.extend(tables.map_err(|error| SweepError::Io {
            file: out.to_owned(),
            error,
        })?);
        let figure = self.sweep.overview(self.rows());
        files.extend(figure.map(|svg| (name("svg"), svg.into_bytes())));
        let output = Output::new(folder)?;
        output.write_all(&files)?;
        if !is_file {
            self.sweep.write_manifest(&output)?;
        }
        Ok(files.iter().map(|(name, _)| output.path(name)).collect())
    }

    /// The rows of the records, each with its run's index.
    fn rows(&self) -> impl Iterator<Item = (usize, Row)> {
        let records = self.records.iter().enumerate();
        records
            .filter_map(|(index, record)| {
                let record = serde_json::from_str(record.as_deref()?).ok()?;
                Some((index, records::rows(&record)))
            })
            .flat_map(|(index, rows)| rows.into_iter().map(move |row| (index, row)))
    }

    /// The table: first the run's name, swept keys, seed and window, then the results.
    fn table(&self) -> Table {
        let keys = self.sweep.axes.iter().map(|axis| {
            let kind = Kind::of(&self.sweep.base, &axis.key);
            (kind.column(&axis.key), kind)
        });
        let keys: Vec<(String, Kind)> = keys.collect();
        let rows = self.rows().map(|(index, mut row)| {
            row.insert("run".to_owned(), Cell::Text(self.sweep.id(index)));
            for ((name, kind), (_, value)) in keys.iter().zip(self.sweep.swept(index)) {
                row.insert(name.clone(), kind.cell(value));
            }
            row
        });
        let rows = rows.collect();
        let keys = keys.into_iter().map(|(name, _)| name);
        let first = iter::once("run".to_owned()).chain(keys);
        records::table(first.collect(), rows)
    }
}

impl Sweep {
    /// The first of the given runs by name, and the number of others.
    fn name_some(&self, runs: &BTreeSet<usize>) -> String {
        let names: Vec<String> = runs.iter().take(NAMED).map(|i| self.describe(*i)).collect();
        let more = match runs.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        names.join("; ") + &more
    }
}

/// Whether two records are equal except for wall-clock times.
fn same(one: &str, other: &str) -> bool {
    let content = |text: &str| {
        let mut value: Value = serde_json::from_str(text).unwrap_or_default();
        if let Some(object) = value.as_object_mut() {
            object.retain(|key, _| !TIMES.contains(&key.as_str()));
        }
        value
    };
    one == other || content(one) == content(other)
}
