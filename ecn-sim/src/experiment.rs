//! Scenarios of all kinds, by name or from a file: networks, for which shares of links are measured, and data centres,
//! for which flow completion times are.

use ecn_report::figure::NetworkFigure;
use ecn_units::suggestion;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;
use toml::{Table, Value};

use crate::engine::Time;
use crate::fabric::{self, Options};
use crate::model::Response;
use crate::report::{self, RunReport};
use crate::scenario::{BUILT_IN, Scenario};
use crate::settings::ScenarioError;

/// A scenario of either kind.
#[derive(Clone, Debug)]
pub enum Experiment {
    /// HP's Fig. 1, the testbed model, or another network for which shares of links are measured.
    Shares(Box<Scenario>),
    /// A data centre.
    Fabric(Box<fabric::Scenario>),
}

/// A run of it, as `ecn sim run -j` prints it.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[serde(untagged)]
pub enum Report {
    /// Shares over windows.
    Shares(Box<RunReport>),
    /// Completion times of flows.
    Fabric(Box<fabric::Report>),
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A run for shares of links.
    #[error(transparent)]
    Shares(#[from] report::RunError),
    /// A run of a data centre.
    #[error(transparent)]
    Fabric(#[from] fabric::RunError),
}

impl Experiment {
    /// A built-in scenario by name.
    pub fn built_in(name: &str) -> Option<Self> {
        match fabric::Scenario::find(name) {
            Some(fabric) => Some(Self::Fabric(Box::new(fabric))),
            None => Some(Self::Shares(Box::new(Scenario::built_in(name)?))),
        }
    }

    /// The names of the built-in scenarios.
    pub fn names() -> Vec<&'static str> {
        let shares = BUILT_IN.iter().map(|(name, _)| *name);
        shares.chain(fabric::Kind::NAMES.iter().copied()).collect()
    }

    /// A built-in scenario by name, or one from a file.
    ///
    /// # Errors
    ///
    /// No built-in scenario has this name, and it is not the path of a valid scenario file.
    pub fn find(name: &str) -> Result<Self, ScenarioError> {
        if let Some(found) = Self::built_in(name) {
            return Ok(found);
        }
        if Path::new(name).is_file() {
            return Self::load(Path::new(name)).map(|(found, _)| found);
        }
        Err(ScenarioError::NoScenario {
            name: name.to_owned(),
            hint: suggestion(name, &Self::names()),
        })
    }

    /// Reads a file. Also returns its text.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not a valid scenario.
    pub fn load(path: &Path) -> Result<(Self, String), ScenarioError> {
        let error = |reason: String| ScenarioError::File {
            file: path.display().to_string(),
            reason,
        };
        let text = crate::text_file::read(path).map_err(|io| error(io.to_string()))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let found = Self::parse(&text, &stem).map_err(|reason| error(reason.to_string()))?;
        Ok((found, text))
    }

    /// Reads the text of a file: that of a data centre has a `topology`. `name` is used if the file contains no name.
    ///
    /// # Errors
    ///
    /// The text is not a valid scenario.
    pub fn parse(text: &str, name: &str) -> Result<Self, ScenarioError> {
        Ok(match fabric::file::parse(text, name)? {
            Some(fabric) => Self::Fabric(Box::new(fabric)),
            None => Self::Shares(Box::new(crate::scenario_file::parse(text, name)?)),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::Shares(scenario) => &scenario.name,
            Self::Fabric(fabric) => fabric.name(),
        }
    }

    /// All keys with their values; those of a data centre's schemes as `scheme.key`.
    pub fn keys(&self) -> Table {
        match self {
            Self::Shares(scenario) => scenario.parameters(),
            Self::Fabric(fabric) => fabric.keys(),
        }
    }

    /// The applicable keys with their values, as in a report.
    pub fn parameters(&self) -> Table {
        match self {
            Self::Shares(scenario) => scenario.parameters(),
            Self::Fabric(fabric) => fabric.parameters(),
        }
    }

    /// Sets one key.
    ///
    /// # Errors
    ///
    /// The key is unknown, or does not accept the value; the scenario is then unchanged.
    pub fn set(&mut self, key: &str, value: &Value) -> Result<(), ScenarioError> {
        match self {
            Self::Shares(scenario) => scenario.set(key, value),
            Self::Fabric(fabric) => fabric.set(key, value),
        }
    }

    /// Sets one key from `KEY=VALUE`.
    ///
    /// # Errors
    ///
    /// As for [`Self::set`].
    pub fn set_text(&mut self, setting: &str) -> Result<(), ScenarioError> {
        match self {
            Self::Shares(scenario) => scenario.set_text(setting),
            Self::Fabric(fabric) => fabric.set_text(setting),
        }
    }

    /// Keys that are set but do not apply to the other values, such as those of other schemes in a comparison. They can
    /// be [reset](Self::reset) if this is not an error.
    pub fn set_but_inapplicable(&self) -> Vec<String> {
        match self {
            Self::Shares(scenario) => scenario.set_but_inapplicable(),
            Self::Fabric(fabric) => fabric.set_but_inapplicable(),
        }
    }

    /// Resets a key to its default.
    ///
    /// # Errors
    ///
    /// The key is unknown.
    pub fn reset(&mut self, key: &str) -> Result<(), ScenarioError> {
        match self {
            Self::Shares(scenario) => scenario.reset(key),
            Self::Fabric(fabric) => fabric.reset(key),
        }
    }

    /// Files that a run may read.
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Self::Shares(scenario) => match &scenario.model.response {
                Response::Table(file) => vec![file],
                _ => Vec::new(),
            },
            Self::Fabric(fabric) => fabric.files(),
        }
    }

    /// Checks that the scenario can be run, with windows in ps.
    ///
    /// # Errors
    ///
    /// It cannot be run.
    pub fn check(&self, windows: &[(Time, Time)]) -> Result<(), Error> {
        match self {
            Self::Shares(scenario) => {
                let applies = scenario.check_applicable();
                applies.map_err(|error| report::RunError::Scenario(error.into()))?;
                scenario.table().map_err(report::RunError::from)?;
                report::check(scenario, windows)?;
            }
            Self::Fabric(fabric) => fabric::check(fabric)?,
        }
        Ok(())
    }

    /// Runs the scenario on this thread.
    ///
    /// # Errors
    ///
    /// It cannot be run, or an invariant is violated.
    pub fn run(&self, seed: u64, windows: &[(Time, Time)]) -> Result<Report, Error> {
        Ok(match self {
            Self::Shares(scenario) => {
                let run = report::run(scenario, seed, windows, 0, None)?;
                Report::Shares(Box::new(run.report(scenario, seed)))
            }
            Self::Fabric(fabric) => {
                let options = Options {
                    windows: windows.to_vec(),
                    ..Options::default()
                };
                let (report, _) = fabric::run(fabric, seed, &options)?;
                Report::Fabric(Box::new(report))
            }
        })
    }

    /// A figure of its network.
    ///
    /// # Errors
    ///
    /// The network is invalid.
    pub fn figure(&self) -> Result<NetworkFigure, ScenarioError> {
        match self {
            Self::Shares(scenario) => scenario.figure(),
            Self::Fabric(fabric) => Ok(fabric.figure()?),
        }
    }
}
