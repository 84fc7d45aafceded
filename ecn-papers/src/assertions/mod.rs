//! What the papers say (P1 to P29 on marking, R1 to R9 on the response), as bands, and whether it holds.

mod choices;
mod marking;
mod response;
mod variants;
use ecn_report::statistics::Sample;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::runs::{Case, Outcome, Rates, Runs, Scheme};
use super::{Figure, Lengths};
pub use choices::{Choice, choices};
use ecn_units::keywords;

keywords! {
    /// Source of a statement. All but `P?` and `from memory` are hard: the reproduction fails if they do not hold,
    /// unless this is known, with its cause.
    Kind {
        /// Published.
        #[default]
        Published = "P",
        /// Published, but contradicted by another version of the paper or by other models.
        Open = "P?",
        /// Derived from what is published.
        Derived = "D",
        /// Published in the slides.
        Slides = "published S",
        /// In public reading notes.
        Notes = "published B",
        /// Where the scheme was published: Barrass 2006 for BCN, Zhang et al. 2021 for TCD.
        Seed = "S",
        /// Checked in public material on the scheme.
        Public = "V",
        /// From memory.
        Memory = "from memory",
    }
}

keywords! {
    /// Result of a comparison.
    Verdict {
        /// The measured value is in the band.
        #[default]
        Holds = "holds",
        /// It is not in the band. If the note names what decides this, the reproduction does not fail.
        DoesNotHold = "does not hold here",
        /// The versions of the paper contradict each other.
        SourcesDisagree = "sources disagree",
        /// Measured, but not judged.
        Reported = "reported",
    }
}

/// A measured quantity.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Measured {
    /// What it is.
    pub quantity: String,
    /// Mean over the seeds; null if not measured.
    pub mean: Option<f64>,
    /// Standard deviation over the seeds; null without randomness, or with one seed.
    pub sd: Option<f64>,
}

/// A statement, judged.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Statement {
    /// P1 to P29 and R1 to R9 of HP's; B of BCN, Q of QCN, T of TCD, I of IB CC, D of DCQCN, M of TIMELY.
    pub id: String,
    /// Its source.
    pub kind: Kind,
    /// Whether the reproduction fails if it does not hold.
    pub hard: bool,
    /// What is published.
    pub published: String,
    /// When it counts as holding.
    pub band: String,
    /// What was measured.
    pub measured: Vec<Measured>,
    /// Whether it holds.
    pub verdict: Verdict,
    /// What decides it, if it is contested.
    pub note: String,
}

/// What a judge can use.
struct Bench<'a> {
    runs: &'a Runs,
    lengths: Lengths,
    choices: &'a [Choice],
}

/// What a judge finds. By default nothing, which holds.
#[derive(Default)]
pub(super) struct Found {
    pub measured: Vec<Measured>,
    pub verdict: Verdict,
    pub note: String,
    /// It does not hold, but deviates only as known, and the note names what decides this.
    pub explained: bool,
}

impl Found {
    /// The statement does not hold without this.
    pub(super) fn require(&mut self, holds: bool) {
        if !holds {
            self.verdict = Verdict::DoesNotHold;
        }
    }

    /// Adds a quantity with randomness.
    pub(super) fn sample(&mut self, quantity: impl Into<String>, sample: &Sample) {
        self.measured.push(named(quantity, sample));
    }

    /// Adds a number without randomness.
    pub(super) fn value(&mut self, quantity: impl Into<String>, value: impl Into<f64>) {
        self.measured.push(exact(quantity, value));
    }

    /// With a note, whatever the verdict.
    pub(super) fn noted(self, note: impl Into<String>) -> Self {
        let note = note.into();
        Self { note, ..self }
    }

    /// Not judged.
    pub(super) fn reported(self) -> Self {
        let verdict = Verdict::Reported;
        Self { verdict, ..self }
    }

    /// Adds what is known about a statement that may not hold here. `explained`: whether nothing further was found.
    pub(super) fn known(self, explained: bool, note: String) -> Self {
        if self.verdict == Verdict::DoesNotHold {
            Self {
                explained,
                note,
                ..self
            }
        } else {
            self
        }
    }
}

impl Statement {
    /// What was found about a claim.
    pub(super) fn new(
        (id, kind): (&str, Kind),
        (published, band): (&str, &str),
        found: Found,
    ) -> Self {
        Self {
            id: id.to_owned(),
            kind,
            hard: !matches!(kind, Kind::Open | Kind::Memory)
                && !matches!(found.verdict, Verdict::Reported | Verdict::SourcesDisagree)
                && !found.explained,
            published: published.to_owned(),
            band: band.to_owned(),
            measured: found.measured,
            verdict: found.verdict,
            note: found.note,
        }
    }
}

pub(super) fn found(holds: bool, measured: impl Into<Vec<Measured>>) -> Found {
    let measured = measured.into();
    let mut found = Found {
        measured,
        ..Found::default()
    };
    found.require(holds);
    found
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

pub(super) fn named(quantity: impl Into<String>, sample: &Sample) -> Measured {
    Measured {
        quantity: quantity.into(),
        mean: finite(sample.mean),
        sd: finite(sample.sd),
    }
}

/// A number without randomness.
pub(super) fn exact(quantity: impl Into<String>, value: impl Into<f64>) -> Measured {
    Measured {
        quantity: quantity.into(),
        mean: finite(value.into()),
        sd: None,
    }
}

const NAIVE: Setting = Setting("naive", Scheme::Naive);
const INPUT: Setting = Setting("input-triggered", Scheme::Input);
const FOUR: Setting = Setting("threshold 4", Scheme::Threshold(4));
const EIGHT: Setting = Setting("threshold 8", Scheme::Threshold(8));

/// A setting of Fig. 3, with its name.
#[derive(Clone, Copy)]
struct Setting(&'static str, Scheme);

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

    fn outcomes(&self, scheme: Scheme, buffer: u32) -> &[Outcome] {
        let case = Case::fig4(scheme, buffer, self.lengths.long);
        self.runs.of(&case)
    }
}

/// Whether packets were marked in each run: without marks, orders of rates say nothing about marking.
fn marked(outcomes: &[Outcome]) -> bool {
    !outcomes.is_empty() && outcomes.iter().all(|outcome| outcome.marked > 0)
}

/// One sample in a band.
fn in_band(sample: &Sample, band: std::ops::RangeInclusive<f64>) -> bool {
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
    judge: fn(&Bench<'_>) -> Found,
}

/// Judges the statements about figures that are `wanted`.
pub fn judge_all(
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
            let found = (claim.judge)(&bench);
            Statement::new((claim.id, claim.kind), (claim.published, claim.band), found)
        })
        .collect()
}
