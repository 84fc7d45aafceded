//! Compares markings and responses of HP's networks and of bridges: shares of links, by window.

use ecn_report::table::Table;
use ecn_units::suggestion;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use super::measures::{self, Measures, Results, WindowMeasures, means};
use super::{CompareError, Compared, Plan};
use crate::engine::Time;
use crate::report::{self, RunReport};
use crate::scenario::{Scenario, ScenarioError};

/// Results of a scheme over all seeds.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct SharesOutcome {
    /// Its name.
    pub scheme: String,
    /// Keys whose values differ between schemes.
    pub parameters: BTreeMap<String, String>,
    /// By window.
    pub windows: Vec<WindowMeasures>,
    /// Over the whole run, by name of the column in the table of runs.
    pub whole_run: Measures,
    /// The runs, by seed; only one if all are identical.
    pub runs: Vec<RunReport>,
}

/// A comparison of schemes.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct SharesComparison {
    /// Name of the scenario.
    pub scenario: String,
    /// Each scheme was run with seeds from 1 to this one.
    pub seeds: u64,
    /// Keys whose values are the same for all schemes.
    pub parameters: BTreeMap<String, String>,
    /// The schemes, in the order in which they were given.
    pub schemes: Vec<SharesOutcome>,
}

impl Plan<Scenario> {
    /// Runs everything on `threads` threads. `progress` counts runs.
    ///
    /// # Errors
    ///
    /// A run failed; the first known failure is reported, in the order of schemes and seeds.
    pub fn run(
        &self,
        threads: usize,
        progress: &AtomicU64,
    ) -> Result<SharesComparison, CompareError> {
        let results = self.results(threads, progress, |scenario, seed| {
            let run = report::run(scenario, seed, &self.windows, 0, None)?;
            Ok::<_, report::RunError>(run.report(scenario, seed))
        })?;
        let mut results = results.into_iter();
        let (common, own) = self.parameters();
        let outcome = |((scheme, _), parameters): (&(String, _), _)| {
            let runs = distinct(results.by_ref().take(self.seeds as usize).collect());
            let (whole_run, windows) = means(&runs);
            SharesOutcome {
                scheme: scheme.clone(),
                parameters,
                windows,
                whole_run,
                runs,
            }
        };
        Ok(SharesComparison {
            scenario: self.schemes[0].1.name.clone(),
            seeds: self.seeds,
            parameters: common,
            schemes: self.schemes.iter().zip(own).map(outcome).collect(),
        })
    }
}

impl Compared for Scenario {
    const SCHEME: &'static [&'static str] = &["marking", "response"];

    /// `none` or `RESPONSE/MARKING`, as in `lipd/input-output:threshold=4`.
    fn with_scheme(&self, text: &str) -> Result<Self, CompareError> {
        with_scheme(self, text)
    }

    fn set_but_inapplicable(&self) -> Vec<String> {
        Self::set_but_inapplicable(self)
    }

    fn reset(&mut self, key: &str) -> Result<(), ScenarioError> {
        Self::reset(self, key)
    }

    fn parameters(&self) -> toml::Table {
        Self::parameters(self)
    }

    fn check(&self, windows: &[(Time, Time)]) -> Result<(), CompareError> {
        self.check_applicable().map_err(ScenarioError::from)?;
        report::check(self, windows).map_err(|error| match error {
            report::RunError::Scenario(error) => CompareError::Scenario(error),
            error => CompareError::Schemes(error.to_string()),
        })?;
        Ok(())
    }
}

/// The scenario with a scheme, and with the keys given after its name.
fn with_scheme(base: &Scenario, text: &str) -> Result<Scenario, CompareError> {
    let bad = |reason| CompareError::Schemes(format!("--schemes {text}: {reason}"));
    let mut scenario = base.clone();
    let mut words = text.split(':');
    let name = words.next().unwrap_or_default();
    let (response, marking) = match name {
        "none" => ("none", "none"),
        _ => name.split_once('/').ok_or_else(|| {
            let known = crate::fabric::cc::Name::NAMES;
            let known: Vec<&str> = (known.iter().copied())
                .filter(|known| *known == "none" || known.contains('/'))
                .collect();
            let name = base.name.as_str();
            bad(format!(
                "must be one of `{name}`, RESPONSE/MARKING: {}",
                suggestion(text, &known)
            ))
        })?,
    };
    let mut settings = vec![format!("response={response}"), format!("marking={marking}")];
    for word in words {
        let (key, _) = word
            .split_once('=')
            .ok_or_else(|| bad(format!("KEY=VALUE is needed, not `{word}`")))?;
        let same = |other: &String| other.split('=').next() == Some(key);
        if settings.iter().any(same) {
            return Err(bad(format!("`{key}` is given twice")));
        }
        settings.push(word.to_owned());
    }
    for setting in settings {
        scenario.set_text(&setting)?;
    }
    Ok(scenario)
}

/// All runs, or only one if seeds make no difference.
fn distinct(mut runs: Vec<RunReport>) -> Vec<RunReport> {
    let first = Results::of(&runs[0]);
    if runs.iter().all(|run| Results::of(run) == first) {
        runs.truncate(1);
    }
    runs
}

/// Columns of [`SharesComparison::rows`].
pub const COLUMNS: [&str; 6] = ["scheme", "from_ms", "to_ms", "measure", "mean", "ci95"];

impl SharesComparison {
    /// A row per scheme, window and measure, under [`COLUMNS`]; those over the whole run have no times.
    pub fn rows(&self) -> impl Iterator<Item = [String; 6]> {
        let known = |value: Option<f64>| value.map_or_else(String::new, |v| v.to_string());
        self.schemes.iter().flat_map(move |one| {
            let windows = one.windows.iter();
            let windows = windows.map(|window| {
                let times = [window.from_ms, window.to_ms].map(Some);
                (times, &window.measures)
            });
            let all = std::iter::once(([None; 2], &one.whole_run)).chain(windows);
            all.flat_map(move |([from, to], measures)| {
                measures.iter().map(move |(name, measure)| {
                    [
                        one.scheme.clone(),
                        known(from),
                        known(to),
                        name.clone(),
                        known(measure.mean),
                        known(measure.ci95),
                    ]
                })
            })
        })
    }

    /// A row per scheme, run and window.
    pub fn runs(&self) -> Table {
        let runs = (self.schemes.iter())
            .flat_map(|one| one.runs.iter().map(|run| (one.scheme.as_str(), run)));
        super::table_of_runs(runs)
    }

    /// The table for display: a row per window (or the whole run) and measure, a column per scheme.
    pub fn table(&self) -> Vec<Vec<String>> {
        let sections = |one: &SharesOutcome| {
            let whole_run = ("whole run".to_owned(), one.whole_run.clone());
            let windows = one.windows.iter().map(WindowMeasures::section);
            windows.chain(std::iter::once(whole_run)).collect()
        };
        let schemes: Vec<Vec<_>> = self.schemes.iter().map(sections).collect();
        measures::table(&schemes)
    }
}
