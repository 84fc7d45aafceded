//! The HP papers again: their figures, and each of their statements set beside what is measured.
//!
//! G and T are the two versions of "Evaluation of Congestion Detection Mechanisms for InfiniBand
//! Switches" (G the conference's, T the report HPL-2002-224), S the slides of "End-to-End Congestion
//! Control for InfiniBand".

pub mod assertions;
pub mod curves;
pub mod figures;
pub mod report;
pub mod runs;

use crate::figure::FigureError;
use crate::report::RunError;
use crate::units::DurationText;
use crate::{keywords, output::OutputError};

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
        /// Use of the root link over buffer sizes and thresholds.
        Fig4a = "fig4a",
        /// Remote over local rate, over the same.
        Fig4b = "fig4b",
        /// Use of the root link with 5 to 20 flows.
        FlowsRoot = "flows-root",
        /// Remote over local rate with 5 to 20 flows.
        FlowsRatio = "flows-ratio",
        /// Finc over time.
        Slide14 = "slide14",
        /// Rates over buffer sizes and responses.
        Slide15 = "slide15",
    }
}

/// Lengths of runs that are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Of a run of Fig. 4; the last four fifths count.
    pub long: DurationText,
    /// Of a run that compares modelling choices at the settings of Fig. 4.
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

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The figures, with the statements about them; all if empty.
    pub figures: Vec<Figure>,
    /// Seeds 1 to this.
    pub seeds: u64,
    /// Lengths of the runs.
    pub lengths: Lengths,
}

/// Why there is no reproduction.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// A run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A drawing.
    #[error(transparent)]
    Figure(#[from] FigureError),
    /// A file.
    #[error(transparent)]
    Output(#[from] OutputError),
    /// The report as JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Figures and verdicts.
#[derive(Clone, Debug)]
pub struct Reproduction {
    /// What was drawn.
    pub drawings: Vec<figures::Drawing>,
    /// What was judged, and at what cost.
    pub report: report::Report,
}

/// Runs what figures and statements need, each run once, and judges.
///
/// # Errors
///
/// A run that cannot be made.
pub fn reproduce(options: &Options) -> Result<Reproduction, RunError> {
    let start = std::time::Instant::now();
    let wanted: &[Figure] = if options.figures.is_empty() {
        Figure::ALL
    } else {
        &options.figures
    };
    let complete = Figure::ALL.iter().all(|figure| wanted.contains(figure));
    let lengths = options.lengths;
    let mut runs = runs::Runs::new(options.seeds);
    loop {
        // The first time round only shows which runs are needed.
        let drawings: Vec<_> = (Figure::ALL.iter())
            .filter(|figure| wanted.contains(figure))
            .map(|&figure| figures::draw(figure, &runs, lengths))
            .collect();
        let choices = if complete {
            assertions::choices(&runs, lengths)
        } else {
            Vec::new()
        };
        let statements = assertions::judge_all(&runs, lengths, &choices, |about| {
            complete || about.iter().any(|figure| wanted.contains(figure))
        });
        if !runs.run_wanted()? {
            let (run_count, packet_hops) = runs.totals();
            let report = report::Report {
                seeds: options.seeds,
                long_run_ms: lengths.long.as_nanos() / 1_000_000,
                choice_run_ms: lengths.choice.as_nanos() / 1_000_000,
                statements,
                choices,
                figures: drawings.iter().map(figures::Drawing::files).collect(),
                runs: run_count,
                packet_hops,
                wall_s: start.elapsed().as_secs_f64(),
            };
            return Ok(Reproduction { drawings, report });
        }
    }
}
