//! Execution of a sweep, or of a shard, on all cores.

use ecn_report::output::Output;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use toml::Table;

use super::{MANIFEST, Manifest, Shard, Sweep, SweepError, one_line};
use crate::experiment::Report;
use crate::parallel::in_parallel;

/// A record in its file, one per line.
#[derive(Serialize)]
struct Line<'a> {
    /// The run's name.
    run: String,
    /// The swept keys.
    swept: Table,
    #[serde(flatten)]
    outcome: Outcome<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome<'a> {
    Done(Report),
    Failed {
        scenario: &'a str,
        seed: u64,
        parameters: Table,
        error: String,
    },
}

/// The fields of a record that a sweep reads.
#[derive(Deserialize)]
struct Known {
    run: String,
    error: Option<String>,
}

/// A record read from a file: its run's index, its text, and the error if the run failed.
pub(super) struct Found {
    pub index: usize,
    pub text: String,
    pub error: Option<String>,
}

/// The records of a file, and the length of its valid part. An incomplete last line, as left by a killed sweep, is
/// ignored.
pub(super) fn read_records(
    file: &Path,
    index_of: &HashMap<String, usize>,
) -> Result<(Vec<Found>, u64), SweepError> {
    let io = |error| SweepError::Io {
        file: file.to_owned(),
        error,
    };
    let bytes = std::fs::read(file).map_err(io)?;
    let (mut records, mut whole) = (Vec::new(), 0);
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        let known = serde_json::from_slice::<Known>(line).map_err(|error| error.to_string());
        let is_last = lines.peek().is_none();
        if is_last && (known.is_err() || line.last() != Some(&b'\n')) {
            break;
        }
        let found = known.and_then(|known| match index_of.get(&known.run) {
            Some(&index) => Ok(Found {
                index,
                text: String::from_utf8_lossy(line).trim_end().to_owned(),
                error: known.error,
            }),
            None => Err(format!("run {} is not part of this sweep", known.run)),
        });
        match found {
            Ok(found) => records.push(found),
            Err(reason) => {
                let reason = format!("line {}: {reason}", records.len() + 1);
                return Err(io(io::Error::new(io::ErrorKind::InvalidData, reason)));
            }
        }
        whole += line.len() as u64;
    }
    Ok((records, whole))
}

/// The files of records in a folder, by name.
pub(super) fn record_files(folder: &Path) -> Result<Vec<(PathBuf, Shard)>, SweepError> {
    let error = |error| SweepError::Io {
        file: folder.to_owned(),
        error,
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(error)? {
        let path = entry.map_err(error)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(shard) = Shard::of_file(&name) {
            files.push((path, shard));
        }
    }
    files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(files)
}

/// The manifest of a folder, if it has one.
pub(super) fn read_manifest(folder: &Path) -> Result<Option<Manifest>, SweepError> {
    let file = folder.join(MANIFEST);
    let io = |error| SweepError::Io {
        file: file.clone(),
        error,
    };
    match std::fs::read(&file) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| io(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io(error)),
    }
}

/// Locks a file of records until it is closed. On file systems without locks this has no effect.
pub(super) fn lock(file: &File, path: &Path) -> Result<(), SweepError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(SweepError::Folder {
            folder: path.to_owned(),
            reason: "a sweep is writing it just now".to_owned(),
        }),
        _ => Ok(()),
    }
}

impl Sweep {
    pub(super) fn index_of(&self) -> HashMap<String, usize> {
        (0..self.runs())
            .map(|index| (self.id(index), index))
            .collect()
    }

    /// Rejects folders of another sweep, or of another version of this program.
    pub(super) fn expect_in(&self, folder: &Path) -> Result<bool, SweepError> {
        let error = |reason| {
            Err(SweepError::Folder {
                folder: folder.to_owned(),
                reason,
            })
        };
        let Some(found) = read_manifest(folder)? else {
            return Ok(false);
        };
        let version = &self.manifest.version;
        if found.version != *version {
            let there = found.version;
            return error(format!(
                "its runs are of version {there}, this is {version}"
            ));
        }
        if found.digest != self.manifest.digest {
            let (there, runs) = (found.runs, self.runs());
            if found.sweep == self.manifest.sweep {
                let reason =
                    "holds this sweep as it was before a file that its runs read was changed";
                return error(reason.to_owned());
            }
            return error(format!(
                "holds a different sweep, of {there} runs (this one has {runs})"
            ));
        }
        Ok(true)
    }

    pub(super) fn write_manifest(&self, output: &Output) -> Result<(), SweepError> {
        let text = serde_json::to_string_pretty(&self.manifest).unwrap_or_default() + "\n";
        output.write(MANIFEST, text)?;
        Ok(())
    }

    /// Executes a run; a failure is recorded, too.
    fn record(&self, index: usize) -> (String, Option<String>) {
        let seed = self.seed(index);
        let scenario = self.scenario(index).map_err(one_line);
        let done = scenario.as_ref().map_err(Clone::clone);
        let done =
            done.and_then(|(scenario, _)| scenario.run(seed, &self.windows).map_err(one_line));
        let error = done.as_ref().err().cloned();
        let outcome = match done {
            Ok(report) => Outcome::Done(report),
            Err(error) => Outcome::Failed {
                scenario: self.base.name(),
                seed,
                parameters: scenario
                    .map(|(scenario, _)| scenario.parameters())
                    .unwrap_or_default(),
                error,
            },
        };
        let line = Line {
            run: self.id(index),
            swept: self
                .swept(index)
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
            outcome,
        };
        let text = serde_json::to_string(&line).unwrap_or_default();
        (text + "\n", error)
    }
}

/// Results of a sweep, as in `ecn sim sweep -j`.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Summary {
    /// The file with the records.
    pub file: PathBuf,
    /// Runs of this shard.
    pub runs: usize,
    /// Of these, runs that had been completed before.
    pub resumed: usize,
    /// Runs that failed, now or earlier.
    pub failed: usize,
    /// The first of them in the order of the sweep, and why.
    pub first_failure: Option<String>,
    /// Wall-clock time, seconds.
    pub wall_s: f64,
}

/// A sweep or shard with its folder, ready to be resumed.
#[derive(Debug)]
pub struct Job<'a> {
    sweep: &'a Sweep,
    path: PathBuf,
    file: File,
    runs: usize,
    left: Vec<usize>,
    failures: Vec<(usize, String)>,
}

impl<'a> Job<'a> {
    /// Opens the folder, creating it if necessary, and finds the completed runs.
    ///
    /// # Errors
    ///
    /// The folder cannot be written, holds a different sweep or a file without records of runs, or another process is
    /// running this part of the sweep.
    pub fn open(sweep: &'a Sweep, folder: &Path, shard: Shard) -> Result<Self, SweepError> {
        let output = Output::new(folder)?;
        let files = record_files(folder)?;
        if !sweep.expect_in(folder)? {
            if let Some((file, _)) = files.first() {
                let reason = format!("there is no {MANIFEST} to identify its sweep");
                return Err(SweepError::File {
                    file: file.clone(),
                    reason,
                });
            }
            sweep.write_manifest(&output)?;
        }
        let path = output.path(&shard.file_name());
        let io = |error| SweepError::Io {
            file: path.clone(),
            error,
        };
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.map_err(io)?;
        lock(&file, &path)?;
        let index_of = sweep.index_of();
        let (mut done, mut failures) = (HashSet::new(), Vec::new());
        for (other, _) in record_files(folder)? {
            let (records, whole) = read_records(&other, &index_of)?;
            if other == path {
                file.set_len(whole).map_err(io)?;
            }
            for record in records {
                // Runs recorded under two different shardings count once.
                if done.insert(record.index)
                    && shard.has(record.index)
                    && let Some(error) = record.error
                {
                    failures.push((record.index, error));
                }
            }
        }
        let all = || (0..sweep.runs()).filter(|index| shard.has(*index));
        Ok(Self {
            sweep,
            file,
            runs: all().count(),
            left: all().filter(|index| !done.contains(index)).collect(),
            failures,
            path,
        })
    }

    /// Number of remaining runs.
    pub fn left(&self) -> usize {
        self.left.len()
    }

    /// Executes the remaining runs on `threads` threads; each record is written when its run ends. `progress` counts
    /// runs.
    ///
    /// # Errors
    ///
    /// The file can no longer be written; its contents remain valid.
    pub fn run(self, threads: usize, progress: &AtomicU64) -> Result<Summary, SweepError> {
        let start = Instant::now();
        let shared = Mutex::new((Some(self.file), self.failures));
        in_parallel(self.left.len(), threads, |job| {
            let index = self.left[job];
            let (line, error) = self.sweep.record(index);
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(file) = &mut shared.0 else {
                return Ok(());
            };
            if let Err(error) = file.write_all(line.as_bytes()) {
                // Nothing may be written after an incomplete line.
                shared.0 = None;
                return Err(error);
            }
            shared.1.extend(error.map(|error| (index, error)));
            progress.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .map_err(|error| SweepError::Io {
            file: self.path.clone(),
            error,
        })?;
        let (_, mut failures) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
        failures.sort();
        let first_failure = failures
            .first()
            .map(|(index, error)| format!("{}: {error}", self.sweep.describe(*index)));
        Ok(Summary {
            file: self.path,
            runs: self.runs,
            resumed: self.runs - self.left.len(),
            failed: failures.len(),
            first_failure,
            wall_s: start.elapsed().as_secs_f64(),
        })
    }
}
