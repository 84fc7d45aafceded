//! The simulator's commands, for `ecn sim` and for `ecn-sim`, which needs no kernel: one file per verb.

mod compare;
pub mod design;
mod draw;
mod list;
mod merge;
mod progress;
mod reproduce;
pub mod rig;
mod run;
mod sweep;

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroUsize;

use clap::Subcommand;
use ecn_report::output::OutputError;
use ecn_sim::engine::Time;
use ecn_sim::experiment::{self, Experiment};
use ecn_sim::parallel::cores;
use ecn_sim::report::RunError;
use ecn_sim::scenario::{ScenarioError, window};
use ecn_sim::simulation::SimulationError;
use ecn_sim::sweep::SweepError;
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// Success.
pub const DONE: u8 = 0;
/// The operation failed.
pub const FAILED: u8 = 1;
/// Bad usage or configuration.
pub const USAGE: u8 = 2;
/// A prerequisite is missing; the message names it.
pub const LACKING: u8 = 3;
/// Stopped by Ctrl-C: 128 + SIGINT, as shells report it.
pub const STOPPED: u8 = 130;

/// An error with its exit code and a message of one line.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// Exit code.
    pub code: u8,
    message: String,
}

impl Error {
    fn new(code: u8, message: impl fmt::Display) -> Self {
        let message = message.to_string();
        Self { code, message }
    }

    /// The operation failed.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::new(FAILED, message)
    }

    /// Bad usage or configuration.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::new(USAGE, message)
    }

    /// A prerequisite is missing.
    pub fn lacking(message: impl fmt::Display) -> Self {
        Self::new(LACKING, message)
    }
}

impl From<ScenarioError> for Error {
    fn from(error: ScenarioError) -> Self {
        Self::usage(error)
    }
}

impl From<OutputError> for Error {
    fn from(error: OutputError) -> Self {
        let code = if error.is_full() { FAILED } else { USAGE };
        Self::new(code, error)
    }
}

impl From<RunError> for Error {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Simulation(SimulationError::Invariant { .. } | SimulationError::TooMany) => {
                Self::failed(error)
            }
            _ => Self::usage(error),
        }
    }
}

impl From<ecn_sim::fabric::RunError> for Error {
    fn from(error: ecn_sim::fabric::RunError) -> Self {
        match error {
            ecn_sim::fabric::RunError::Value(_) => Self::usage(error),
            ecn_sim::fabric::RunError::Stopped { .. } => Self::new(STOPPED, error),
            _ => Self::failed(error),
        }
    }
}

impl From<experiment::Error> for Error {
    fn from(error: experiment::Error) -> Self {
        match error {
            experiment::Error::Shares(error) => error.into(),
            experiment::Error::Fabric(error) => error.into(),
        }
    }
}

impl From<SweepError> for Error {
    fn from(error: SweepError) -> Self {
        match error {
            SweepError::Output(error) => error.into(),
            SweepError::Io { .. } | SweepError::Differ(_) => Self::failed(error),
            _ => Self::usage(error),
        }
    }
}

/// Makes the JSON Schema of a type.
pub type SchemaOf = fn(SchemaGenerator) -> Schema;

/// The JSON Schema of a type, as a [`SchemaOf`].
pub fn schema_of<T: JsonSchema>(generator: SchemaGenerator) -> Schema {
    generator.into_root_schema_for::<T>()
}

/// What commands print with `-j`.
pub const SCHEMAS: [(&str, SchemaOf); 8] = [
    ("design", schema_of::<ecn_sim::design::Report>),
    ("sim compare", schema_of::<compare::Any>),
    ("sim draw", schema_of::<draw::Drawn>),
    ("sim list", schema_of::<list::List>),
    ("sim merge", schema_of::<merge::Joined>),
    ("sim reproduce", schema_of::<ecn_papers::report::Report>),
    ("sim run", schema_of::<experiment::Report>),
    ("sim sweep", schema_of::<ecn_sim::sweep::Summary>),
];

/// The simulator.
#[derive(Subcommand, Debug)]
pub enum Sim {
    /// Run a scenario and report shares of links, or flow completion times
    Run(run::RunArgs),
    /// Redraw the figures of the HP papers and check published statements
    Reproduce(reproduce::ReproduceArgs),
    /// List the built-in scenarios and the keys of `--set`, or describe a key
    List(list::ListArgs),
    /// Draw a scenario's network
    Draw(draw::DrawArgs),
    /// Run a scenario for every combination of given values, on all cores
    Sweep(sweep::SweepArgs),
    /// Run a scenario with several schemes and compare them
    Compare(compare::CompareArgs),
    /// Merge the folders of a sweep's shards
    Merge(merge::MergeArgs),
}

/// Runs a verb.
///
/// # Errors
///
/// The verb fails; the error contains the exit code.
pub fn run(sim: &Sim) -> Result<(), Error> {
    match sim {
        Sim::Run(args) => run::run(args),
        Sim::Reproduce(args) => reproduce::run(args),
        Sim::List(args) => list::run(args),
        Sim::Draw(args) => draw::run(args),
        Sim::Sweep(args) => sweep::run(args),
        Sim::Compare(args) => compare::run(args),
        Sim::Merge(args) => merge::run(args),
    }
}

/// Applies `--set`, each key of which may be set once.
fn set_all(experiment: &mut Experiment, settings: &[String]) -> Result<(), Error> {
    let mut known = BTreeSet::new();
    let keys = settings
        .iter()
        .filter_map(|setting| setting.split_once('='));
    for key in keys.map(|(key, _)| key.trim()) {
        if !known.insert(key) {
            return Err(Error::usage(format!("--set {key}: given twice")));
        }
    }
    for setting in settings {
        experiment.set_text(setting)?;
    }
    Ok(())
}

/// The windows of `--window`, ps.
fn windows(texts: &[String]) -> Result<Vec<(Time, Time)>, Error> {
    let bad = |reason| Error::usage(format!("--window: {reason}"));
    let windows = texts.iter().map(|text| window(text).map_err(bad));
    windows.collect()
}

/// Number of parallel runs for `--threads`.
fn threads(given: Option<NonZeroUsize>) -> usize {
    given.map_or_else(cores, NonZeroUsize::get)
}

/// Prints a document or table to standard output; a closed pipe is not an error.
fn print(text: &str) -> Result<(), Error> {
    use std::io::{ErrorKind, Write as _};
    match writeln!(std::io::stdout(), "{}", text.trim_end()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Error::failed(format!(
            "cannot write to the standard output: {error}"
        ))),
        _ => Ok(()),
    }
}

/// A record as one JSON document.
fn json(record: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(record).map_err(Error::failed)
}
