//! Statements, and what was found about them.

use ecn_report::statistics::Sample;
use ecn_units::keywords;
use schemars::JsonSchema;
use serde::Serialize;

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
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Measured {
    /// What it is.
    pub quantity: String,
    /// Mean over the seeds; null if not measured.
    pub mean: Option<f64>,
    /// Standard deviation over the seeds; null without randomness, or with one seed.
    pub sd: Option<f64>,
}

/// A statement, judged.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
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

/// What a judge finds. By default nothing, which holds.
#[derive(Default)]
pub(crate) struct Found {
    measured: Vec<Measured>,
    pub(crate) verdict: Verdict,
    pub(crate) note: String,
    /// It does not hold, but deviates only as known, and the note names what decides this.
    explained: bool,
}

impl Found {
    /// The statement does not hold without this.
    pub(crate) fn require(&mut self, holds: bool) {
        if !holds {
            self.verdict = Verdict::DoesNotHold;
        }
    }

    /// Adds a quantity with randomness.
    pub(crate) fn sample(&mut self, quantity: impl Into<String>, sample: &Sample) {
        self.measure(quantity.into(), sample.mean, sample.sd);
    }

    /// Adds a number without randomness.
    pub(crate) fn value(&mut self, quantity: impl Into<String>, value: impl Into<f64>) {
        self.measure(quantity.into(), value.into(), f64::NAN);
    }

    fn measure(&mut self, quantity: String, mean: f64, sd: f64) {
        let [mean, sd] = [mean, sd].map(|value| value.is_finite().then_some(value));
        self.measured.push(Measured { quantity, mean, sd });
    }

    /// Explains why the statement does not hold, if it does not. `explained`: it deviates in no other way.
    pub(crate) fn explain(&mut self, explained: bool, note: String) {
        if self.verdict == Verdict::DoesNotHold {
            self.explained = explained;
            self.note = note;
        }
    }

    /// As a statement.
    pub(crate) fn about(self, id: &str, kind: Kind, published: &str, band: &str) -> Statement {
        Statement {
            id: id.to_owned(),
            kind,
            hard: !matches!(kind, Kind::Open | Kind::Memory)
                && !matches!(self.verdict, Verdict::Reported | Verdict::SourcesDisagree)
                && !self.explained,
            published: published.to_owned(),
            band: band.to_owned(),
            measured: self.measured,
            verdict: self.verdict,
            note: self.note,
        }
    }
}
