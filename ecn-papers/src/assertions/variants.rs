//! P25 to P29: other ways to trigger and to mark, which the papers weigh and reject, or find no better.

use ecn_report::statistics::Sample;
use ecn_sim::model::{Arbitration, Counting, InputTrigger, MarkBy};
use ecn_units::DurationText;

use super::choices::Change;
use super::{Bench, Claim, EIGHT, Found, INPUT, Kind, NAIVE, Setting, found, marked, named};
use crate::figures::{ratio, root};
use crate::runs::{Case, Outcome, Rates, Scheme};

/// A setting of Fig. 4 with another choice.
fn case(b: &Bench<'_>, scheme: Scheme, buffer: u32, change: Change) -> Case {
    let mut case = Case::fig4(scheme, buffer, b.lengths.choice);
    change(&mut case);
    case
}

fn victim(rates: &Rates) -> f64 {
    rates.shares.victim
}

const AS_PUBLISHED: Change = |_| ();
const OUTPUT_ALONE: Change = |c| c.model.input_trigger = InputTrigger::Off;
const ONE_LESS: Change = |c| c.model.input_trigger = InputTrigger::At(c.model.buffer - 1);
const SCAN: Change = |c| c.model.mark_by = MarkBy::Scan;
const SPARE: Change = |c| {
    c.model.mark_by = MarkBy::Scan;
    c.model.spare_blocked = DurationText::from_micros(100);
};

fn p25(b: &Bench<'_>) -> Found {
    let mut found = Found::default();
    for threshold in [8, 10, 12] {
        let of = |change| {
            let case = case(b, Scheme::Threshold(threshold), 4, change);
            let marks = marked(b.runs.of(&case));
            (marks, b.runs.last(&case, victim))
        };
        let ((both_mark, both), (marks, alone)) = (of(AS_PUBLISHED), of(OUTPUT_ALONE));
        found.require(both_mark && marks && alone.mean < both.mean / 2.0);
        found.sample(format!("victim, threshold {threshold}, both"), &both);
        found.sample("with the output trigger alone", &alone);
    }
    found
}

fn p26(b: &Bench<'_>) -> Found {
    let mut found = Found::default();
    for buffer in [3, 4] {
        let of = |change| b.runs.last(&case(b, Scheme::Input, buffer, change), root);
        let (full, below) = (of(AS_PUBLISHED), of(ONE_LESS));
        found.require(full.is_above(&below));
        found.sample(format!("root, {buffer} slots, at a full buffer"), &full);
        found.sample("one packet before", &below);
    }
    found
}

fn p27(b: &Bench<'_>) -> Found {
    let mut found = Found::default();
    for Setting(name, scheme) in [NAIVE, INPUT, EIGHT] {
        let apart = |value: fn(&Rates) -> f64| {
            let of = |change| b.runs.last(&case(b, scheme, 4, change), value).mean;
            (of(SPARE) - of(SCAN)).abs()
        };
        let most = [root, ratio, victim]
            .map(apart)
            .into_iter()
            .fold(0.0, f64::max);
        found.require(marked(b.runs.of(&case(b, scheme, 4, SPARE))) && most <= 0.005);
        found.value(format!("largest difference, {name}"), most);
    }
    // With more packets in flight, buffers before a blocked link fill, and sparing does have an effect.
    const MORE: Change = |c| c.model.window = 4;
    const MORE_SPARED: Change = |c| {
        MORE(c);
        SPARE(c);
    };
    let of = |change| b.runs.last(&case(b, Scheme::Naive, 4, change), victim);
    let (all, spared) = (of(MORE), of(MORE_SPARED));
    found.sample("victim, naive, windows of 4", &all);
    found.sample("spared", &spared);
    found.require(spared.is_above(&all));
    found
}

fn marks<'a>(outcomes: impl IntoIterator<Item = &'a Outcome>) -> Sample {
    Sample::of(outcomes.into_iter().map(|outcome| outcome.marked as f64))
}

fn p28(b: &Bench<'_>) -> Found {
    const IN_TURN: Change = |c| c.model.arbitration = Arbitration::RoundRobin;
    const IN_TURN_SCAN: Change = |c| {
        IN_TURN(c);
        SCAN(c);
    };
    let of = |change| marks(b.runs.of(&case(b, Scheme::Input, 4, change)));
    let [counted, scanned] = [AS_PUBLISHED, SCAN].map(of);
    let [counted_in_turn, scanned_in_turn] = [IN_TURN, IN_TURN_SCAN].map(of);
    found(
        counted.mean > 0.0
            && counted.mean == scanned.mean
            && counted_in_turn.mean != scanned_in_turn.mean,
        [
            named("marked packets, counters", &counted),
            named("scan", &scanned),
            named("outputs in turn: counters", &counted_in_turn),
            named("scan", &scanned_in_turn),
        ],
    )
}

fn p29(b: &Bench<'_>) -> Found {
    const TAILS: Change = |c| c.model.threshold_counts = Counting::Present;
    let of = |change| b.runs.last(&case(b, Scheme::Threshold(3), 4, change), root);
    let (waiting, present) = (of(AS_PUBLISHED), of(TAILS));
    found(
        waiting.mean - present.mean >= 0.05,
        [
            named("root, those that wait", &waiting),
            named("those whose tail has not left", &present),
        ],
    )
}

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        id: "P25",
        kind: Kind::Published,
        about: &[],
        published: "an output trigger alone does not detect the spreading that a full input buffer causes",
        band: "thresholds 8, 10 and 12: the victim has less than half of what both triggers leave it",
        judge: p25,
    },
    Claim {
        id: "P26",
        kind: Kind::Published,
        about: &[],
        published: "an input trigger below a full buffer costs utilization with small buffers",
        band: "root lower with 3 and 4 slots, by more than 2 standard errors",
        judge: p26,
    },
    Claim {
        id: "P27",
        kind: Kind::Published,
        about: &[],
        published: "sparing packets for links that were blocked recently gives the same results",
        band: "root, r/l and the victim within 0.005; with windows of 4 packets the victim gains",
        judge: p27,
    },
    Claim {
        id: "P28",
        kind: Kind::Published,
        about: &[],
        published: "counters may mark other packets than a scan of the buffers, since departures may be out of order",
        band: "the same number of marks with the oldest packet first, another with outputs in turn",
        judge: p28,
    },
    Claim {
        id: "P29",
        kind: Kind::Derived,
        about: &[],
        published: "threshold 3: it matters whether cnt1 counts packets until their tail has left",
        band: "root lower by 0.05 at least",
        judge: p29,
    },
];
