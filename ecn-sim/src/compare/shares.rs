//! Compares markings and responses of HP's networks and of bridges: shares of links, by window.

use ecn_report::table::Table;
use ecn_units::suggestion;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::iter;
use std::sync::atomic::AtomicU64;

use super::measures::{self, Measures, Results, WindowMeasures, means};
use super::plan::{self, distinct};
use super::{CompareError, Compared, Plan, known, table_of_runs};
use crate::engine::Time;
use crate::report::{self, RunReport};
use crate::scenario::Scenario;
use crate::settings::ScenarioError;

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
        let run = |scenario: &Scenario, seed| {
            let run = report::run(scenario, seed, &self.windows, 0, None)?;
            Ok::<_, report::RunError>(run.report(scenario, seed))
        };
        let (common, schemes) =
            self.outcomes(threads, progress, run, |scheme, parameters, runs| {
                let runs = distinct(runs, |a, b| Results::of(a) == Results::of(b));
                let (whole_run, windows) = means(&runs);
                SharesOutcome {
                    scheme,
                    parameters,
                    windows,
                    whole_run,
                    runs,
                }
            })?;
        Ok(SharesComparison {
            scenario: self.schemes[0].1.name.clone(),
            seeds: self.seeds,
            parameters: common,
            schemes,
        })
    }
}

impl Compared for Scenario {
    const SCHEME: &'static [&'static str] = &["marking", "response"];

    /// `none` or `RESPONSE/MARKING`, as in `lipd/input-output:threshold=4`.
    fn with_scheme(&self, text: &str) -> Result<Self, CompareError> {
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        let (response, marking) = match name {
            "none" => ("none", "none"),
            _ => name.split_once('/').ok_or_else(|| {
                let mut known = crate::fabric::cc::Name::NAMES.to_vec();
                known.retain(|known| *known == "none" || known.contains('/'));
                let (name, hint) = (&self.name, suggestion(text, &known));
                let reason = format!("must be one of `{name}`, RESPONSE/MARKING: {hint}");
                CompareError::scheme(text, &reason)
            })?,
        };
        let mut settings = vec![format!("response={response}"), format!("marking={marking}")];
        for word in words {
            let key = plan::key(text, word)?;
            let same = |other: &String| other.split('=').next() == Some(key);
            if settings.iter().any(same) {
                let reason = format!("`{key}` is given twice");
                return Err(CompareError::scheme(text, &reason));
            }
            settings.push(word.to_owned());
        }
        let mut scenario = self.clone();
        for setting in settings {
            scenario.set_text(&setting)?;
        }
        Ok(scenario)
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

impl SharesComparison {
    /// The names of the columns, and a row per scheme, window and measure; those over the whole run have no times.
    pub fn rows(&self) -> Vec<[String; 6]> {
        let header = ["scheme", "from_ms", "to_ms", "measure", "mean", "ci95"];
        let mut rows = vec![header.map(str::to_owned)];
        for one in &self.schemes {
            let windows = one.windows.iter();
            let windows = windows.map(|w| ([w.from_ms, w.to_ms].map(Some), &w.measures));
            for (time, measures) in iter::once(([None; 2], &one.whole_run)).chain(windows) {
                let [from, to] = time.map(known);
                rows.extend(measures.iter().map(|(name, measure)| {
                    [
                        one.scheme.clone(),
                        from.clone(),
                        to.clone(),
                        name.clone(),
                        known(measure.mean),
                        known(measure.ci95),
                    ]
                }));
            }
        }
        rows
    }

    /// A row per scheme, run and window.
    pub fn runs(&self) -> Table {
        table_of_runs(self.schemes.iter().map(|one| (&one.scheme, &one.runs)))
    }

    /// The table for display: a row per window (or the whole run) and measure, a column per scheme.
    pub fn table(&self) -> Vec<Vec<String>> {
        let sections = |one: &SharesOutcome| {
            let whole_run = ("whole run".to_owned(), one.whole_run.clone());
            let windows = one.windows.iter().map(WindowMeasures::section);
            windows.chain(iter::once(whole_run)).collect()
        };
        let schemes: Vec<Vec<_>> = self.schemes.iter().map(sections).collect();
        measures::table(&schemes)
    }
}
