//! Reproduction of papers on congestion control: the figures of the HP papers, and statements of theirs and about other
//! schemes (BCN, QCN, TCD, IB CC, DCQCN, TIMELY), each compared with measurements.
//!
//! Only the public interface of [`ecn_sim`] is used, so this crate is also an example of larger studies: many runs on all
//! cores (`src/runs.rs`), statistics over seeds, figures. The papers are called G, T and S: G and T are the two versions of
//! "Evaluation of Congestion Detection Mechanisms for InfiniBand Switches" (G the conference's, T the report
//! HPL-2002-224), S the slides of "End-to-End Congestion Control for InfiniBand".
//!
//! # Redraw a figure
//!
//! Slide 14 needs no runs; the statements about it come with it.
//!
//! ```
//! use ecn_papers::{Figure, Lengths, Options, Part, reproduce};
//!
//! let options = Options {
//!     parts: vec![Part::Figure(Figure::Slide14)],
//!     seeds: 2,
//!     lengths: Lengths::QUICK,
//! };
//! let slide = reproduce(&options, &())?;
//! assert!(slide.drawings[0].csv.starts_with("function,time_packet_times,rate"));
//! for statement in &slide.report.statements {
//!     println!("{} {}: {}", statement.id, statement.verdict, statement.published);
//! }
//! assert!(slide.report.failed().is_empty());
//! # Ok::<(), ecn_papers::ReproduceError>(())
//! ```

#![warn(unreachable_pub)]

mod curves;
mod figures;
mod hp;
pub mod report;
mod runs;
mod schemes;
pub mod statement;
#[cfg(test)]
mod tests;

pub use figures::{Drawing, Files};
pub use hp::Choice;

use ecn_report::output::OutputError;
use ecn_sim::ModelError;
use ecn_sim::compare::CompareError;
use ecn_sim::engine::Time;
use ecn_sim::fabric;
use ecn_sim::parallel::Panicked;
use ecn_sim::report::RunError;
use ecn_sim::scenario::ScenarioError;
use ecn_units::{DurationText, KeywordError, keywords};

use report::Report;
use runs::{Case, Runs};

keywords! {
    /// A figure of the papers.
    Figure {
        /// No congestion control.
        #[default]
        Fig2 = "fig2",
        /// Naive marking.
        Fig3a = "fig3a",
        /// Input-triggered marking.
        Fig3b = "fig3b",
        /// Input-output-triggered marking, threshold 4.
        Fig3c = "fig3c",
        /// The same, threshold 8.
        Fig3d = "fig3d",
        /// Utilisation of the root link, by buffer size and threshold.
        Fig4a = "fig4a",
        /// Remote over local rate, by buffer size and threshold.
        Fig4b = "fig4b",
        /// Utilisation of the root link with 5 to 20 flows.
        FlowsRoot = "flows-root",
        /// Remote over local rate with 5 to 20 flows.
        FlowsRatio = "flows-ratio",
        /// Rate over time without marks (Finc).
        Slide14 = "slide14",
        /// Rates by buffer size and response.
        Slide15 = "slide15",
    }
}

/// Lengths of runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Runs of Fig. 4, of which the last four fifths count.
    pub long: DurationText,
    /// Runs that compare modelling choices at the settings of Fig. 4.
    pub choice: DurationText,
}

impl Lengths {
    /// The papers': 500 ms, the last 400 count.
    pub const PAPERS: Self = Self {
        long: DurationText::from_millis(500),
        choice: DurationText::from_millis(100),
    };
    /// Shorter ones, for tests.
    pub const QUICK: Self = Self {
        long: DurationText::from_millis(200),
        choice: DurationText::from_millis(100),
    };
}

/// What can be requested by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A figure, with the statements about it.
    Figure(Figure),
    /// The statements about schemes other than HP's.
    Schemes,
}

impl std::str::FromStr for Part {
    type Err = KeywordError;

    fn from_str(text: &str) -> Result<Self, KeywordError> {
        const SCHEMES: &str = "schemes";
        if text == SCHEMES {
            return Ok(Self::Schemes);
        }
        let all = [Figure::NAMES, &[SCHEMES]].concat();
        let figure = text.parse().map_err(|_| KeywordError::new(text, &all));
        figure.map(Self::Figure)
    }
}

/// What to reproduce.
#[derive(Clone, Debug)]
pub struct Options {
    /// Parts to reproduce; all if empty.
    pub parts: Vec<Part>,
    /// Seeds 1 to this number.
    pub seeds: u64,
    /// Lengths of the runs.
    pub lengths: Lengths,
}

/// Why a reproduction failed.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// A run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A run of a fabric.
    #[error(transparent)]
    Fabric(#[from] fabric::RunError),
    /// The scenario of such a run.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A parameter of a scheme.
    #[error(transparent)]
    Value(#[from] ModelError),
    /// A comparison of schemes.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// A run panicked.
    #[error(transparent)]
    Panic(#[from] Panicked),
    /// A file.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The report as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Follows the runs of HP's networks, which take most of the time. `()` does nothing.
pub trait Progress: Sync {
    /// Runs begin that simulate this time altogether, ps.
    fn begin(&self, total: Time);
    /// A run of this length, ps, is complete. Called from any thread.
    fn advance(&self, by: Time);
    /// All of them are complete, or one has failed.
    fn end(&self);
}

impl Progress for () {
    fn begin(&self, _: Time) {}
    fn advance(&self, _: Time) {}
    fn end(&self) {}
}

/// Figures and verdicts.
#[derive(Clone, Debug)]
pub struct Reproduction {
    /// What was drawn.
    pub drawings: Vec<Drawing>,
    /// The judged statements, and the cost of the runs.
    pub report: Report,
}

/// Executes the runs that figures and statements need, each once, and judges the statements.
///
/// # Errors
///
/// A run is not possible.
pub fn reproduce(
    options: &Options,
    progress: &dyn Progress,
) -> Result<Reproduction, ReproduceError> {
    let start = std::time::Instant::now();
    let wants = |part| options.parts.is_empty() || options.parts.contains(&part);
    let figures = Figure::ALL.iter().copied();
    let wanted: Vec<Figure> = figures.filter(|f| wants(Part::Figure(*f))).collect();
    let complete = wanted.len() == Figure::ALL.len();
    let lengths = options.lengths;
    let mut runs = Runs::new(options.seeds);
    let (drawings, choices, mut statements) = loop {
        // The first pass only collects the runs that are needed.
        let draw = |figure: &Figure| figures::draw(*figure, &runs, lengths);
        let drawings: Vec<Drawing> = wanted.iter().map(draw).collect();
        let choices = if complete {
            hp::choices(&runs, lengths)?
        } else {
            Vec::new()
        };
        let statements = hp::judge_all(&runs, lengths, &choices, |about| {
            complete || about.iter().any(|figure| wanted.contains(figure))
        });
        if !runs.run_wanted(progress, Case::run)? {
            break (drawings, choices, statements);
        }
    };
    let (mut run_count, mut packet_hops) = runs.totals();
    if wants(Part::Schemes) {
        let bench = schemes::Bench::new(options.seeds);
        statements.extend(bench.judge_all()?);
        let (runs, hops) = bench.totals();
        run_count += runs;
        packet_hops += hops;
    }
    let report = Report {
        seeds: options.seeds,
        long_run_ms: lengths.long.as_nanos() / 1_000_000,
        choice_run_ms: lengths.choice.as_nanos() / 1_000_000,
        statements,
        choices,
        figures: drawings.iter().map(Drawing::files).collect(),
        runs: run_count,
        packet_hops,
        wall_s: start.elapsed().as_secs_f64(),
    };
    Ok(Reproduction { drawings, report })
}
