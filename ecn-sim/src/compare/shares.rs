//! Compares markings and responses of HP's networks and of bridges: shares of links, by window.

use ecn_units::suggestion;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use super::{CompareError, Compared, Plan};
use crate::engine::Time;
use crate::records::{self, Cell, Row, Table};
use crate::report::{self, RunReport};
use crate::scenario::{Scenario, ScenarioError};
use crate::statistics::Sample;

/// A quantity over all runs.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct Measure {
    /// Mean; null if a run has no value.
    pub mean: Option<f64>,
    /// Half the width of its 95 % confidence interval; null with a single run.
    pub ci95: Option<f64>,
}

/// Results of a scheme in a window.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct SharesWindow {
    /// Start, ms.
    pub from_ms: f64,
    /// End, ms.
    pub to_ms: f64,
    /// By name of the column in the table of runs.
    pub measures: BTreeMap<String, Measure>,
}

/// Results of a scheme over all seeds.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct SharesOutcome {
    /// Its name.
    pub scheme: String,
    /// Keys whose values differ between schemes.
    pub parameters: BTreeMap<String, String>,
    /// By window.
    pub windows: Vec<SharesWindow>,
    /// The runs, by seed; only one if all are identical.
    pub runs: Vec<RunReport>,
}

/// A comparison of schemes.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub(crate) struct SharesComparison {
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
    pub(crate) fn run(
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
            SharesOutcome {
                scheme: scheme.clone(),
                parameters,
                windows: windows(&runs),
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

/// The rows of a run, without its seed.
fn results(run: &RunReport) -> Vec<Row> {
    let run = serde_json::to_value(run).unwrap_or_default();
    let mut rows = records::rows(&run);
    for row in &mut rows {
        row.remove("seed");
    }
    rows
}

/// All runs, or only one if seeds make no difference.
fn distinct(mut runs: Vec<RunReport>) -> Vec<RunReport> {
    if runs.iter().all(|run| results(run) == results(&runs[0])) {
        runs.truncate(1);
    }
    runs
}

/// Means of all runs by window.
fn windows(runs: &[RunReport]) -> Vec<SharesWindow> {
    let rows: Vec<Vec<Row>> = runs.iter().map(results).collect();
    let window = |number: usize| {
        let of = |name: &str| {
            let values = rows.iter().map(|rows| rows[number].get(name)?.number());
            values.collect::<Option<Vec<f64>>>()
        };
        let first = &rows[0][number];
        let names = first.iter().filter(|(name, cell)| {
            !matches!(cell, Cell::Text(_)) && !records::FIRST.contains(&name.as_str())
        });
        let measure = |(name, _): (&String, &Cell)| {
            let sample = of(name).map(Sample::of);
            let measure = Measure {
                mean: sample.map(|sample| sample.mean),
                ci95: sample.and_then(|sample| sample.half_width()),
            };
            (name.clone(), measure)
        };
        let time = |name| first.get(name).and_then(Cell::number).unwrap_or_default();
        SharesWindow {
            from_ms: time("from_ms"),
            to_ms: time("to_ms"),
            measures: names.map(measure).collect(),
        }
    };
    (0..rows[0].len()).map(window).collect()
}

/// Columns of [`SharesComparison::rows`].
pub(crate) const COLUMNS: [&str; 6] = ["scheme", "from_ms", "to_ms", "measure", "mean", "ci95"];

impl SharesComparison {
    /// A row per scheme, window and measure, under [`COLUMNS`].
    pub(crate) fn rows(&self) -> impl Iterator<Item = [String; 6]> {
        let known = |value: Option<f64>| value.map_or_else(String::new, |v| v.to_string());
        self.schemes.iter().flat_map(move |one| {
            one.windows.iter().flat_map(move |window| {
                window.measures.iter().map(move |(name, measure)| {
                    [
                        one.scheme.clone(),
                        window.from_ms.to_string(),
                        window.to_ms.to_string(),
                        name.clone(),
                        known(measure.mean),
                        known(measure.ci95),
                    ]
                })
            })
        })
    }

    /// A row per scheme, run and window.
    pub(crate) fn runs(&self) -> Table {
        let runs = (self.schemes.iter())
            .flat_map(|one| one.runs.iter().map(|run| (one.scheme.as_str(), run)));
        super::table_of_runs(runs)
    }

    /// The table for display: a row per window and measure, a column per scheme.
    pub(crate) fn table(&self) -> impl Iterator<Item = Vec<String>> {
        let shown = |measure: Option<&Measure>| {
            let Some(Measure {
                mean: Some(mean),
                ci95,
            }) = measure
            else {
                return "-".to_owned();
            };
            let digits = if mean.abs() < 100.0 { 3 } else { 0 };
            match ci95 {
                None => format!("{mean:.digits$}"),
                Some(ci95) => format!("{mean:.digits$} \u{b1} {ci95:.digits$}"),
            }
        };
        let windows = self.schemes[0].windows.iter().enumerate();
        windows.flat_map(move |(number, window)| {
            let names = window.measures.keys().filter(|name| is_of_interest(name));
            names.map(move |name| {
                let label = format!("{}..{} ms  {name}", window.from_ms, window.to_ms);
                let own = self.schemes.iter();
                let own = own.map(|one| shown(one.windows[number].measures.get(name)));
                std::iter::once(label).chain(own).collect()
            })
        })
    }
}

/// Whether a measure is of interest: not how much work the simulator had.
fn is_of_interest(name: &str) -> bool {
    !["events", "packet_hops"].contains(&name)
}
