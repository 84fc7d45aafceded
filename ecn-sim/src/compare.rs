//! Compares schemes: runs the same scenario and seeds with each, and presents the results as a table, as figures and as
//! an HTML report. Numbers are means over the seeds, with 95 % confidence intervals.
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//!
//! use ecn_sim::compare::Plan;
//! use ecn_sim::fabric::{Kind, Scenario};
//! use ecn_sim::parallel::cores;
//!
//! let mut incast = Scenario::of(Kind::Dumbbell);
//! for setting in ["hosts=8", "senders=4", "flow_size=50kB"] {
//!     incast.set_text(setting)?;
//! }
//! let schemes = ["none", "dcqcn:cnp_gap=4us"].map(str::to_owned);
//! // Seeds 1 and 2, no windows; another thread could show how many runs are complete.
//! let plan = Plan::new(&incast, &schemes, 2, &[])?;
//! let complete = AtomicU64::new(0);
//! let comparison = plan.run(cores(), &complete)?;
//! for scheme in &comparison.schemes {
//!     let (p99, ci95) = (scheme.fct_slowdown.p99, scheme.ci95.fct_slowdown_p99);
//!     println!("{}: slowdown p99 {p99:?} ± {ci95:?}", scheme.scheme);
//! }
//! # assert_eq!(comparison.schemes[1].scheme, "dcqcn:cnp_gap=4us");
//! # assert!(comparison.schemes[0].fct_slowdown.p99 > Some(1.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod figures;
mod html;
mod measures;
mod plan;
mod shares;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

pub use figures::Figure;
pub use html::HEADER;
pub use measures::{Measure, Measures, WindowMeasures};
pub use plan::{Compared, Plan};
pub use shares::{SharesComparison, SharesOutcome};

use ecn_report::figure::NetworkFigure;
use ecn_report::statistics::Sample;
use ecn_report::table::Table;
use ecn_units::suggestion;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use crate::engine::{MS, Time};
use crate::experiment;
use crate::fabric::measure::{Finished, Slowdowns, slowdowns};
use crate::fabric::series::{self, Point, WINDOW_PACKETS};
use crate::fabric::{Options, Report, RunError, Scenario, run};
use crate::parallel::Panicked;
use crate::records;
use crate::settings::ScenarioError;
use plan::distinct;

/// A comparison that is not possible.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The scenario rejects a scheme or value.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The schemes or seeds cannot be compared.
    #[error("{0}")]
    Schemes(String),
    /// A failed run.
    #[error("{scheme}, seed {seed}: {error}")]
    Run {
        /// The run's scheme.
        scheme: String,
        /// The run's seed.
        seed: u64,
        /// The cause.
        error: experiment::Error,
    },
    /// A run panicked.
    #[error(transparent)]
    Panic(#[from] Panicked),
}

impl CompareError {
    /// What is wrong with a scheme.
    fn scheme(text: &str, reason: &str) -> Self {
        Self::Schemes(format!("--schemes {text}: {reason}"))
    }
}

/// A quantity over time, sampled in one run of a scheme.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Series {
    /// The quantity, and where it was sampled.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// Time (ms) and value.
    pub points: Vec<(f64, f64)>,
}

/// Half the widths of 95 % confidence intervals; null with a single run. Those of percentiles are around the percentile
/// of the flows of all runs ([`Sample::half_width_around`]), the others around the mean of the runs
/// ([`Sample::half_width`]). With fewer than about 100 flows per run, intervals of percentiles are too narrow.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Intervals {
    /// Of the median slowdown.
    pub fct_slowdown_p50: Option<f64>,
    /// Of its 95th percentile.
    pub fct_slowdown_p95: Option<f64>,
    /// Of its 99th percentile.
    pub fct_slowdown_p99: Option<f64>,
    /// Of the mean of [`Outcome::last_flow_end_ms`].
    pub last_flow_end_ms: Option<f64>,
    /// Of the mean of [`Outcome::goodput_bytes_per_s`].
    pub goodput_bytes_per_s: Option<f64>,
    /// Of the mean of [`Outcome::jain`].
    pub jain: Option<f64>,
}

impl Intervals {
    fn of(runs: &[Report], pooled: &Slowdowns) -> Self {
        let sample = |value: fn(&Report) -> Option<f64>| {
            let values: Option<Vec<f64>> = runs.iter().map(value).collect();
            values.map(Sample::of)
        };
        let mean = |value| sample(value)?.half_width();
        let percentile = |value: fn(&Slowdowns) -> Option<f64>, of_run| {
            sample(of_run)?.half_width_around(value(pooled)?)
        };
        Self {
            fct_slowdown_p50: percentile(|all| all.p50, |run| run.fct_slowdown.p50),
            fct_slowdown_p95: percentile(|all| all.p95, |run| run.fct_slowdown.p95),
            fct_slowdown_p99: percentile(|all| all.p99, |run| run.fct_slowdown.p99),
            last_flow_end_ms: mean(|run| run.last_flow_end_ms),
            goodput_bytes_per_s: mean(|run| Some(run.goodput_bytes_per_s as f64)),
            jain: mean(|run| run.jain),
        }
    }
}

/// Results of a scheme over all seeds.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Outcome {
    /// Its name.
    pub scheme: String,
    /// Keys whose values differ between schemes.
    pub parameters: BTreeMap<String, String>,
    /// Flows that started.
    pub flows_started: u64,
    /// Flows that finished.
    pub flows_finished: u64,
    /// Slowdowns: completion times over those in an idle network, of the flows of all runs.
    pub fct_slowdown: Slowdowns,
    /// Up to 501 points of the distribution of slowdowns: slowdown, and share of the flows with at most this one.
    pub fct_slowdown_cdf: Vec<(f64, f64)>,
    /// When the last flow finished, ms: mean of the runs; null if none finished in one of them.
    pub last_flow_end_ms: Option<f64>,
    /// Goodput: mean of the runs.
    pub goodput_bytes_per_s: u64,
    /// Jain's index of the flows' goodputs: mean of the runs; null if nothing was acknowledged in one of them.
    pub jain: Option<f64>,
    /// Confidence intervals of these.
    pub ci95: Intervals,
    /// Data packets dropped for lack of memory, in all runs.
    pub dropped_packets: u64,
    /// PFC frames that request a pause, in all runs.
    pub pause_frames: u64,
    /// Marked data packets, in all runs.
    pub marked_packets: u64,
    /// Data packets marked undetermined (TCD), in all runs.
    pub undetermined_packets: u64,
    /// Flows held up by congestion that is not on their path, in all runs.
    pub head_of_line_victims: u64,
    /// Means of the runs in the requested time windows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<WindowMeasures>,
    /// Samples of the first run.
    pub series: Vec<Series>,
    /// The runs, by seed; only one if all are identical.
    pub runs: Vec<Report>,
}

/// A comparison of schemes.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Comparison {
    /// Name of the scenario.
    pub scenario: String,
    /// Each scheme was run with seeds from 1 to this one. Without randomness these runs are identical, and count as
    /// one.
    pub seeds: u64,
    /// Keys whose values are the same for all schemes.
    pub parameters: BTreeMap<String, String>,
    /// The schemes, in the order in which they were given.
    pub schemes: Vec<Outcome>,
    /// A figure of the network.
    #[serde(skip)]
    pub network: NetworkFigure,
}

impl Plan<Scenario> {
    /// Notes on the schemes' values.
    pub fn notes(&self) -> BTreeSet<String> {
        let scenarios = self.schemes.iter().map(|(_, scenario)| scenario);
        scenarios.filter_map(Scenario::note).collect()
    }

    /// Runs everything on `threads` threads. `progress` counts runs.
    ///
    /// # Errors
    ///
    /// A run failed; the first known failure is reported, in the order of schemes and seeds.
    pub fn run(&self, threads: usize, progress: &AtomicU64) -> Result<Comparison, CompareError> {
        let (_, first) = &self.schemes[0];
        let network = first.figure().map_err(ScenarioError::from)?;
        let run = |scenario: &Scenario, seed| {
            let options = Options {
                series: seed == 1,
                windows: self.windows.clone(),
                ..Options::default()
            };
            let (report, counts) = run(scenario, seed, &options)?;
            Ok::<_, RunError>(One {
                report,
                finished: counts.finished,
                series: counts.series.as_ref().map_or(Vec::new(), |series| {
                    over_time(series, WINDOW_PACKETS * scenario.packet_time())
                }),
            })
        };
        let (parameters, schemes) =
            self.outcomes(threads, progress, run, |scheme, own, runs| {
                let mut outcome = outcome(scheme, own, distinct(runs, One::repeats));
                // Each run ends at its own time.
                for (window, (_, to)) in outcome.windows.iter_mut().zip(&self.windows) {
                    window.to_ms = *to as f64 / MS as f64;
                }
                outcome
            })?;
        Ok(Comparison {
            scenario: first.name().to_owned(),
            seeds: self.seeds,
            parameters,
            schemes,
            network,
        })
    }
}

impl Compared for Scenario {
    const SCHEME: &'static [&'static str] = &["scheme"];

    fn with_scheme(&self, text: &str) -> Result<Self, CompareError> {
        let mut scenario = self.clone();
        let mut words = text.split(':');
        let name = words.next().unwrap_or_default();
        scenario.set_text(&format!("scheme={name}"))?;
        let keys = scenario.keys();
        let tables = scenario.parameters.scheme.tables();
        let own = || {
            let keys = keys.keys().filter_map(|key| key.split_once('.'));
            keys.filter(|(table, _)| tables.contains(table))
        };
        let mut set = Vec::new();
        for setting in words {
            let key = plan::key(text, setting)?.trim();
            let Some((table, _)) = own().find(|(_, known)| *known == key) else {
                let known: Vec<&str> = own().map(|(_, key)| key).collect();
                let reason = match known[..] {
                    [] => format!("`{name}` has no parameters"),
                    _ => format!("`{name}` has no `{key}`: {}", suggestion(key, &known)),
                };
                return Err(CompareError::scheme(text, &reason));
            };
            if set.contains(&key) {
                let reason = format!("`{key}` is given twice");
                return Err(CompareError::scheme(text, &reason));
            }
            set.push(key);
            scenario.set_text(&format!("{table}.{setting}"))?;
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

    fn check(&self, _windows: &[(Time, Time)]) -> Result<(), CompareError> {
        crate::fabric::check(self).map_err(|error| match error {
            RunError::Value(error) => CompareError::Scenario(error.into()),
            error => CompareError::Schemes(error.to_string()),
        })
    }
}

/// Results of a run.
struct One {
    report: Report,
    finished: Vec<Finished>,
    series: Vec<Series>,
}

impl One {
    /// Whether seeds made no difference: the same events, and the same flows at the same times.
    fn repeats(&self, other: &Self) -> bool {
        let counts = |one: &Self| (one.report.events, one.report.packet_hops);
        counts(self) == counts(other) && self.finished == other.finished
    }
}

/// Maximum number of points in a series: steps of a run are merged accordingly.
const STEPS: usize = 250;

/// A run's samples for display: merged into steps of at least `window`, if there are samples.
fn over_time(sampled: &series::Series, window: Time) -> Vec<Series> {
    let most = (sampled.points.len() / 10).max(1);
    let least = (window.div_ceil(sampled.step) as usize).min(most);
    let each = sampled.points.len().div_ceil(STEPS).max(least);
    let named = |name: &str, unit: &str, value: &dyn Fn(Range<usize>) -> f64| {
        let end = |window: &Range<usize>| sampled.time(window.end) as f64 / MS as f64;
        let windows = sampled.windows(each);
        Series {
            name: name.to_owned(),
            unit: unit.to_owned(),
            points: windows.map(|steps| (end(&steps), value(steps))).collect(),
        }
    };
    let points = |window: Range<usize>| sampled.points[window].iter();
    let goodput = |window: Range<usize>| {
        let time = sampled.time(window.end) - sampled.time(window.start);
        series::gbit_per_s(points(window).map(|point| point.delivered).sum(), time)
    };
    let mean = |window: Range<usize>, value: &dyn Fn(&Point) -> f64| {
        let steps = window.len() as f64;
        points(window).map(value).sum::<f64>() / steps
    };
    vec![
        named("Goodput", "payload (Gb/s)", &goodput),
        named("Data that waits in switches", "kB, mean", &|window| {
            mean(window, &|point| point.queued as f64 / 1e3)
        }),
        named("Longest queue", "kB", &|window| {
            let longest = points(window).map(|point| point.longest).max();
            f64::from(longest.unwrap_or_default()) / 1e3
        }),
        named("Ports that may not send", "ports, mean", &|window| {
            mean(window, &|point| f64::from(point.off))
        }),
    ]
}

/// Maximum number of points in a distribution.
const POINTS: usize = 500;

/// Combines the runs of a scheme.
fn outcome(scheme: String, parameters: BTreeMap<String, String>, results: Vec<One>) -> Outcome {
    let (mut runs, mut flows, mut series) = (Vec::new(), Vec::new(), Vec::new());
    for one in results {
        runs.push(one.report);
        flows.extend(one.finished);
        series.extend(one.series);
    }
    let fct_slowdown = slowdowns(&mut flows);
    let mut all: Vec<f64> = flows.iter().map(|flow| flow.slowdown).collect();
    all.sort_by(f64::total_cmp);
    let point = |part: usize| {
        let rank = (all.len() * part).div_ceil(POINTS).max(1);
        let value = all.get(rank - 1)?;
        Some((*value, part as f64 / POINTS as f64))
    };
    let mean = |value: fn(&Report) -> Option<f64>| {
        let values: Option<Vec<f64>> = runs.iter().map(value).collect();
        values.map(|values| Sample::of(values).mean)
    };
    let total = |value: fn(&Report) -> u64| runs.iter().map(value).sum();
    let ci95 = Intervals::of(&runs, &fct_slowdown);
    Outcome {
        scheme,
        parameters,
        flows_started: total(|run| run.flows_started),
        flows_finished: total(|run| run.flows_finished),
        fct_slowdown,
        fct_slowdown_cdf: (0..=POINTS).filter_map(point).collect(),
        last_flow_end_ms: mean(|run| run.last_flow_end_ms),
        goodput_bytes_per_s: mean(|run| Some(run.goodput_bytes_per_s as f64)).unwrap_or_default()
            as u64,
        jain: mean(|run| run.jain),
        ci95,
        dropped_packets: total(|run| run.dropped_packets),
        pause_frames: total(|run| run.pause_frames),
        marked_packets: total(|run| run.marked_packets),
        undetermined_packets: total(|run| run.undetermined_packets),
        head_of_line_victims: total(|run| run.head_of_line_victims),
        windows: measures::means(&runs).1,
        series,
        runs,
    }
}

/// A row per scheme and run (and window).
fn table_of_runs<'a, R: Serialize + 'a>(
    schemes: impl Iterator<Item = (&'a String, &'a Vec<R>)>,
) -> Table {
    let mut rows = Vec::new();
    for (scheme, runs) in schemes {
        for run in runs {
            let run = serde_json::to_value(run).unwrap_or_default();
            for mut row in records::rows(&run) {
                row.insert("scheme".to_owned(), scheme.as_str().into());
                rows.push(row);
            }
        }
    }
    records::table(vec!["scheme".to_owned()], rows)
}

/// A number in a file; empty if unknown.
fn known(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Name and value of a column.
type Column = (&'static str, fn(&Outcome) -> String);

/// Columns of [`Comparison::rows`].
const COLUMNS: [Column; 21] = [
    ("scheme", |one| one.scheme.clone()),
    ("runs", |one| one.runs.len().to_string()),
    ("flows_started", |one| one.flows_started.to_string()),
    ("flows_finished", |one| one.flows_finished.to_string()),
    ("fct_slowdown_p50", |one| known(one.fct_slowdown.p50)),
    ("fct_slowdown_p95", |one| known(one.fct_slowdown.p95)),
    ("fct_slowdown_p99", |one| known(one.fct_slowdown.p99)),
    ("last_flow_end_ms", |one| known(one.last_flow_end_ms)),
    ("goodput_bytes_per_s", |one| {
        one.goodput_bytes_per_s.to_string()
    }),
    ("jain", |one| known(one.jain)),
    ("dropped_packets", |one| one.dropped_packets.to_string()),
    ("pause_frames", |one| one.pause_frames.to_string()),
    ("marked_packets", |one| one.marked_packets.to_string()),
    ("undetermined_packets", |one| {
        one.undetermined_packets.to_string()
    }),
    ("head_of_line_victims", |one| {
        one.head_of_line_victims.to_string()
    }),
    ("fct_slowdown_p50_ci95", |one| {
        known(one.ci95.fct_slowdown_p50)
    }),
    ("fct_slowdown_p95_ci95", |one| {
        known(one.ci95.fct_slowdown_p95)
    }),
    ("fct_slowdown_p99_ci95", |one| {
        known(one.ci95.fct_slowdown_p99)
    }),
    ("last_flow_end_ms_ci95", |one| {
        known(one.ci95.last_flow_end_ms)
    }),
    ("goodput_bytes_per_s_ci95", |one| {
        known(one.ci95.goodput_bytes_per_s)
    }),
    ("jain_ci95", |one| known(one.ci95.jain)),
];

/// Maximum number of sending hosts that a table for display shows.
const SENDERS_SHOWN: usize = 8;

impl Comparison {
    /// The names of the columns, and a row of numbers per scheme.
    pub fn rows(&self) -> impl Iterator<Item = [String; 21]> {
        let header = COLUMNS.map(|(name, _)| name.to_owned());
        let row = |one: &Outcome| COLUMNS.map(|(_, value)| value(one));
        iter::once(header).chain(self.schemes.iter().map(row))
    }

    /// A row per window and measure, a column per scheme; by sending host only if there are few.
    pub fn windows(&self) -> Vec<Vec<String>> {
        let sections = |one: &Outcome| {
            let section = |window: &WindowMeasures| {
                let (label, mut measures) = window.section();
                let is_of_sender = |name: &String| name.starts_with(records::SENDERS);
                if measures.keys().filter(|name| is_of_sender(name)).count() > SENDERS_SHOWN {
                    measures.retain(|name, _| !is_of_sender(name));
                }
                (label, measures)
            };
            one.windows.iter().map(section).collect()
        };
        let schemes: Vec<Vec<_>> = self.schemes.iter().map(sections).collect();
        measures::table(&schemes)
    }

    /// A row per scheme and run (and window); only one run if all seeds gave the same results.
    pub fn runs(&self) -> Table {
        table_of_runs(self.schemes.iter().map(|one| (&one.scheme, &one.runs)))
    }

    /// The names of the columns, and a row per scheme and group of sizes.
    pub fn rows_by_size(&self) -> impl Iterator<Item = [String; 7]> {
        let header = [
            "scheme",
            "from_bytes",
            "to_bytes",
            "flows",
            "fct_slowdown_p50",
            "fct_slowdown_p95",
            "fct_slowdown_p99",
        ];
        let rows = self.schemes.iter().flat_map(|one| {
            one.fct_slowdown.by_size.iter().map(|group| {
                [
                    one.scheme.clone(),
                    group.from_bytes.to_string(),
                    group.to_bytes.to_string(),
                    group.flows.to_string(),
                    group.p50.to_string(),
                    group.p95.to_string(),
                    group.p99.to_string(),
                ]
            })
        });
        iter::once(header.map(str::to_owned)).chain(rows)
    }
}
