//! What HP's papers say (P1 to P29 on marking, R1 to R9 on the response), as bands, and whether it holds.

mod choices;
mod marking;
mod response;
mod variants;

use std::ops::RangeInclusive;

use ecn_report::statistics::Sample;

pub use choices::Choice;
pub(crate) use choices::choices;

use crate::runs::{Case, Outcome, Rates, Runs, Scheme};
use crate::statement::{Found, Kind, Statement};
use crate::{Figure, Lengths};

/// What a judge can use.
struct Bench<'a> {
    runs: &'a Runs,
    lengths: Lengths,
    choices: &'a [Choice],
}

impl Bench<'_> {
    /// While the victim is active, Fig. 2 and 3.
    fn with_victim(&self, scheme: Scheme, value: fn(&Rates) -> f64) -> Sample {
        self.runs.last(&Case::fig3(scheme), value)
    }

    /// Fig. 4.
    fn long(&self, scheme: Scheme, buffer: u32, value: fn(&Rates) -> f64) -> Sample {
        let case = Case::fig4(scheme, buffer, self.lengths.long);
        self.runs.last(&case, value)
    }

    fn long_outcomes(&self, scheme: Scheme, buffer: u32) -> &[Outcome] {
        self.runs.of(&Case::fig4(scheme, buffer, self.lengths.long))
    }

    /// Whether packets were marked in each run: without marks, orders of rates say nothing about marking.
    fn marks(&self, case: &Case) -> bool {
        all_marked(self.runs.of(case))
    }
}

fn all_marked(outcomes: &[Outcome]) -> bool {
    !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome.marked > 0)
}

fn in_band(sample: &Sample, band: RangeInclusive<f64>) -> bool {
    band.contains(&sample.mean)
}

/// A statement before it is judged.
struct Claim {
    id: &'static str,
    kind: Kind,
    /// The figures that it is about; none for what holds everywhere.
    about: &'static [Figure],
    published: &'static str,
    band: &'static str,
    judge: fn(&Bench<'_>, &mut Found),
}

/// Judges the statements about figures that are `wanted`.
pub(crate) fn judge_all(
    runs: &Runs,
    lengths: Lengths,
    choices: &[Choice],
    wanted: impl Fn(&[Figure]) -> bool,
) -> Vec<Statement> {
    let bench = Bench {
        runs,
        lengths,
        choices,
    };
    [marking::CLAIMS, variants::CLAIMS, response::CLAIMS]
        .into_iter()
        .flatten()
        .filter(|claim| wanted(claim.about))
        .map(|claim| {
            let mut found = Found::default();
            (claim.judge)(&bench, &mut found);
            found.about(claim.id, claim.kind, claim.published, claim.band)
        })
        .collect()
}
