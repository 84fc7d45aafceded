//! Sweeps: runs of a scenario for every combination of given values of its keys, with several seeds.
//!
//! A sweep is a TOML file. Its runs have a fixed order (keys sorted by name; seeds vary fastest, then the last key) and
//! are named by a hash of their contents. Parts of a sweep that were run at other times or on other machines can
//! therefore be merged.

mod execute;
mod merge;
mod overview;
mod values;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ecn_report::output::OutputError;
use ecn_units::suggestion;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

pub use execute::{Job, Summary};
pub use merge::Merged;
use values::{Axis, seeds, windows};

use crate::engine::Time;
use crate::experiment::Experiment;
use crate::settings::located;
use crate::settings::{ScenarioError, dotted, shown};

/// Maximum number of runs in a sweep: the plan of a larger one would take a noticeable share of memory.
const MOST_RUNS: usize = 1_000_000;

/// Top-level tables and keys of a sweep file.
const KEYS: &[&str] = &["scenario", "seeds", "windows", "set", "sweep"];

/// Name of the file that identifies the sweep in a folder.
const MANIFEST: &str = "sweep.json";

/// Errors of sweeps and merges.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// An invalid sweep file.
    #[error("{}: {reason}", file.display())]
    File {
        /// Its path.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A folder with another sweep, or with other files.
    #[error("{}: {reason}", folder.display())]
    Folder {
        /// Its path.
        folder: PathBuf,
        /// The problem.
        reason: String,
    },
    /// Output that cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// A file that cannot be read, or can no longer be written.
    #[error("{}: {error}", file.display())]
    Io {
        /// Its path.
        file: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// Records of the same run that differ.
    #[error("records of the same run differ: {0}")]
    Differ(String),
}

/// A part of a sweep: every N-th run, starting at the K-th.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: usize,
    of: usize,
}

impl Shard {
    /// All runs.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// Whether the shard contains the run with this index.
    pub fn has(self, index: usize) -> bool {
        index % self.of == self.number - 1
    }

    /// Name of its file of records.
    fn file_name(self) -> String {
        match self {
            Self::WHOLE => "runs.jsonl".to_owned(),
            Self { number, of } => format!("runs-{number}-of-{of}.jsonl"),
        }
    }

    /// The shard whose records are in a file of this name, if any.
    fn of_file(name: &str) -> Option<Self> {
        let middle = name.strip_prefix("runs")?.strip_suffix(".jsonl")?;
        if middle.is_empty() {
            return Some(Self::WHOLE);
        }
        let (number, of) = middle.strip_prefix('-')?.split_once("-of-")?;
        format!("{number}/{of}").parse().ok()
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((number, of)) if 1 <= number && number <= of => Ok(Self { number, of }),
            _ => Err("must be K/N, with K from 1 to N, such as 3/8".to_owned()),
        }
    }
}

/// Contents of [`MANIFEST`]: sufficient to name every run of the sweep without its original files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    /// Version of this program: other versions may give other results.
    version: String,
    /// Digest of all runs' names and of everything else that determines the results.
    digest: String,
    /// Number of runs over all shards.
    runs: usize,
    /// Text of the sweep file.
    sweep: String,
    /// Name and text of the scenario file, if the sweep uses one.
    scenario: Option<(String, String)>,
}

/// A parsed and checked sweep.
#[derive(Clone, Debug)]
pub struct Sweep {
    base: Experiment,
    axes: Vec<Axis>,
    seeds: Vec<u64>,
    windows: Vec<(Time, Time)>,
    ids: Vec<u64>,
    manifest: Manifest,
}

impl Sweep {
    /// Reads a sweep file, and the scenario file that it may name (relative to the sweep file).
    ///
    /// # Errors
    ///
    /// A file cannot be read, has an unknown key or value, or describes a run that could not start.
    pub fn load(file: &Path) -> Result<Self, SweepError> {
        let error = |reason: String| SweepError::File {
            file: file.to_owned(),
            reason,
        };
        let text = crate::text_file::read(file).map_err(|io| error(io.to_string()))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        let sweep = Self::parse(&text, |name| scenario_of(name, folder)).map_err(error)?;
        sweep.check().map_err(error)?;
        Ok(sweep)
    }

    /// The sweep in a folder with this manifest.
    fn of_manifest(manifest: Manifest) -> Result<Self, String> {
        let given = manifest.scenario.clone();
        let sweep = Self::parse(&manifest.sweep, |name| match given {
            Some((name, text)) => {
                let scenario = Experiment::parse(&text, &name);
                Ok((scenario.map_err(one_line)?, Some((name, text))))
            }
            None => Ok((Experiment::find(name).map_err(one_line)?, None)),
        })?;
        // Keep the manifest's digest, which may include files that are not on this machine.
        Ok(Self { manifest, ..sweep })
    }

    fn parse(
        text: &str,
        scenario: impl FnOnce(&str) -> Result<(Experiment, Option<(String, String)>), String>,
    ) -> Result<Self, String> {
        let file: Table = toml::from_str(text).map_err(|error| one_line(located(text, &error)))?;
        if let Some(key) = file.keys().find(|key| !KEYS.contains(&key.as_str())) {
            return Err(format!("unknown key `{key}`: {}", suggestion(key, KEYS)));
        }
        if file.is_empty() {
            let reason = "the file is empty: `scenario` names what to run, and [sweep] what varies";
            return Err(reason.to_owned());
        }
        let table = |key: &str| match file.get(key) {
            None => Ok(Table::new()),
            Some(Value::Table(table)) => Ok(table.clone()),
            Some(other) => Err(format!("{key} = {other}: must be a table [{key}]")),
        };
        let name = match file.get("scenario") {
            None => "hp",
            Some(Value::String(name)) => name,
            Some(other) => return Err(format!("scenario = {other}: must be a name or a file")),
        };
        let (mut base, scenario) = scenario(name)?;
        let known = base.keys();
        let set = dotted(&table("set")?, |key, _| known.contains_key(key));
        for (key, value) in &set {
            base.set(key, value).map_err(|e| format!("[set] {e}"))?;
        }
        let mut axes = Vec::new();
        // `{ from = 2, to = 4 }` is a range.
        let is_range =
            |key: &str, table: &Table| known.contains_key(key) || table.contains_key("from");
        for (key, value) in dotted(&table("sweep")?, is_range) {
            if set.contains_key(&key) {
                return Err(format!("`{key}` is both in [set] and in [sweep]"));
            }
            axes.push(Axis::new(key, &value, &base).map_err(|reason| format!("[sweep] {reason}"))?);
        }
        let seeds = match file.get("seeds") {
            None => vec![1],
            Some(value) => seeds(value)?,
        };
        let windows = match file.get("windows") {
            None => Vec::new(),
            Some(value) => windows(value)?,
        };
        let runs = axes.iter().try_fold(seeds.len(), |runs, axis| {
            runs.checked_mul(axis.values.len())
        });
        if runs.is_none_or(|runs| runs > MOST_RUNS) {
            return Err(format!("more than {MOST_RUNS} runs: split the sweep"));
        }
        let manifest = Manifest {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            digest: String::new(),
            runs: runs.unwrap_or_default(),
            sweep: text.to_owned(),
            scenario,
        };
        let mut sweep = Self {
            base,
            axes,
            seeds,
            windows,
            ids: Vec::new(),
            manifest,
        };
        sweep.name_runs()?;
        Ok(sweep)
    }

    /// Names each run by a hash of everything that determines its result, so that the name is the same on every
    /// machine.
    fn name_runs(&mut self) -> Result<(), String> {
        let scenario = self.manifest.scenario.as_ref().map(|(_, text)| text);
        let common = json(&(self.base.name(), scenario, &self.windows))?;
        let common = fnv(FNV_START, common.as_bytes());
        let mut parameters = self.base.keys();
        let mut digest = FNV_START;
        for point in 0..self.manifest.runs / self.seeds.len() {
            for (key, value) in self.values(point) {
                parameters.insert(key.clone(), value.clone());
            }
            let here = fnv(common, json(&parameters)?.as_bytes());
            for seed in &self.seeds {
                let id = fnv(here, &seed.to_le_bytes());
                digest = fnv(digest, &id.to_le_bytes());
                self.ids.push(id);
            }
        }
        let mut files: BTreeSet<PathBuf> = BTreeSet::new();
        for axis in &self.axes {
            for value in axis.values.iter().filter(|value| value.is_str()) {
                let mut scenario = self.base.clone();
                scenario.set(&axis.key, value).map_err(one_line)?;
                files.extend(scenario.files().into_iter().map(Path::to_owned));
            }
        }
        files.extend(self.base.files().into_iter().map(Path::to_owned));
        // Unreadable files are reported by the check.
        for text in files.iter().filter_map(|file| std::fs::read(file).ok()) {
            digest = fnv(digest, &text);
        }
        self.manifest.digest = format!("{digest:016x}");
        Ok(())
    }

    /// Checks that every run can start.
    fn check(&self) -> Result<(), String> {
        let mut inapplicable_in_all: Option<Vec<String>> = None;
        for index in (0..self.runs()).step_by(self.seeds.len()) {
            let check = || {
                let (scenario, inapplicable) = self.scenario(index).map_err(one_line)?;
                scenario.check(&self.windows).map_err(one_line)?;
                Ok(inapplicable)
            };
            let inapplicable = check().map_err(|error: String| match self.swept_text(index) {
                swept if swept.is_empty() => error,
                swept => format!("{error} (with {swept})"),
            })?;
            match &mut inapplicable_in_all {
                Some(keys) => keys.retain(|key| inapplicable.contains(key)),
                None => inapplicable_in_all = Some(inapplicable),
            }
        }
        match inapplicable_in_all.iter().flatten().next() {
            Some(key) => Err(format!("`{key}` does not apply to any of these runs")),
            None => Ok(()),
        }
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.manifest.runs
    }

    /// The swept keys with their values at a point.
    fn values(&self, point: usize) -> impl Iterator<Item = (&String, &Value)> {
        let mut stride: usize = self.axes.iter().map(|axis| axis.values.len()).product();
        self.axes.iter().map(move |axis| {
            stride /= axis.values.len();
            let at = point / stride % axis.values.len();
            (&axis.key, &axis.values[at])
        })
    }

    fn swept(&self, index: usize) -> impl Iterator<Item = (&String, &Value)> {
        self.values(index / self.seeds.len())
    }

    fn seed(&self, index: usize) -> u64 {
        self.seeds[index % self.seeds.len()]
    }

    fn id(&self, index: usize) -> String {
        format!("{:016x}", self.ids[index])
    }

    /// The experiment of a run, and the keys that were reset to their defaults because they do not apply to it: some
    /// are meant for other runs, such as `dcqcn.kmin` in a sweep over schemes.
    fn scenario(&self, index: usize) -> Result<(Experiment, Vec<String>), ScenarioError> {
        let mut scenario = self.base.clone();
        for (key, value) in self.swept(index) {
            scenario.set(key, value)?;
        }
        let mut inapplicable = scenario.set_but_inapplicable();
        inapplicable.retain(|key| self.axes.iter().all(|axis| axis.key != *key));
        for key in &inapplicable {
            scenario.reset(key)?;
        }
        Ok((scenario, inapplicable))
    }

    fn swept_text(&self, index: usize) -> String {
        let swept = self.swept(index);
        let swept: Vec<String> = swept
            .map(|(key, value)| format!("{key}={}", shown(value)))
            .collect();
        swept.join(" ")
    }

    /// A description of a run: `buffer=4 threshold=8 seed=1`.
    pub fn describe(&self, index: usize) -> String {
        let text = format!("{} seed={}", self.swept_text(index), self.seed(index));
        text.trim_start().to_owned()
    }
}

/// A built-in scenario, or the one from a file with its name and text.
fn scenario_of(
    name: &str,
    folder: &Path,
) -> Result<(Experiment, Option<(String, String)>), String> {
    if let Some(scenario) = Experiment::built_in(name) {
        return Ok((scenario, None));
    }
    let path = folder.join(name);
    if !path.is_file() {
        let hint = suggestion(name, &Experiment::names());
        return Err(format!(
            "scenario = \"{name}\": neither built in ({hint}) nor a file beside the sweep"
        ));
    }
    let (scenario, text) = Experiment::load(&path).map_err(one_line)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    Ok((scenario, Some((stem.into_owned(), text))))
}

fn one_line(error: impl fmt::Display) -> String {
    error.to_string().lines().collect::<Vec<_>>().join(" ")
}

fn json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string(value).map_err(one_line)
}

/// Offset basis of the 64-bit FNV-1a hash, which is the same on all machines and in all versions.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
