//! P25 to P29: other ways to trigger and to mark, which the papers weigh and reject, or find no better.

use ecn_sim::model::{Arbitration, Counting, InputTrigger, MarkBy};
use ecn_units::DurationText;

use super::marking::marks;
use super::{Bench, Claim};
use crate::figures::{ratio, root};
use crate::runs::Scheme::{self, Input, Naive, Threshold};
use crate::runs::{Case, Change, Rates};
use crate::statement::{Found, Kind};

impl Bench<'_> {
    /// A setting of Fig. 4 with another choice.
    fn changed(&self, scheme: Scheme, buffer: u32, change: Change) -> Case {
        Case::fig4(scheme, buffer, self.lengths.choice).with(change)
    }
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

fn p25(b: &Bench<'_>, found: &mut Found) {
    for threshold in [8, 10, 12] {
        let cases =
            [AS_PUBLISHED, OUTPUT_ALONE].map(|change| b.changed(Threshold(threshold), 4, change));
        let [both, alone] = cases.each_ref().map(|case| b.runs.last(case, victim));
        let marked = cases.iter().all(|case| b.marks(case));
        found.require(marked && alone.mean < both.mean / 2.0);
        found.sample(format!("victim, threshold {threshold}, both"), &both);
        found.sample("with the output trigger alone", &alone);
    }
}

fn p26(b: &Bench<'_>, found: &mut Found) {
    for buffer in [3, 4] {
        let [full, below] = [AS_PUBLISHED, ONE_LESS]
            .map(|change| b.runs.last(&b.changed(Input, buffer, change), root));
        found.require(full.is_above(&below));
        found.sample(format!("root, {buffer} slots, at a full buffer"), &full);
        found.sample("one packet before", &below);
    }
}

fn p27(b: &Bench<'_>, found: &mut Found) {
    for scheme in [Naive, Input, Threshold(8)] {
        let [scanned, spared] = [SCAN, SPARE].map(|change| b.changed(scheme, 4, change));
        let difference = |value: fn(&Rates) -> f64| {
            (b.runs.last(&spared, value).mean - b.runs.last(&scanned, value).mean).abs()
        };
        let most = [root, ratio, victim]
            .map(difference)
            .into_iter()
            .fold(0.0, f64::max);
        found.require(b.marks(&spared) && most <= 0.005);
        found.value(format!("largest difference, {scheme}"), most);
    }
    // With more packets in flight, buffers before a blocked link fill, and sparing does have an effect.
    let [all, spared] = [AS_PUBLISHED, SPARE].map(|change| {
        let case = b.changed(Naive, 4, change).with(|c| c.model.window = 4);
        b.runs.last(&case, victim)
    });
    found.sample("victim, naive, windows of 4", &all);
    found.sample("spared", &spared);
    found.require(spared.is_above(&all));
}

fn p28(b: &Bench<'_>, found: &mut Found) {
    const IN_TURN: Change = |c| c.model.arbitration = Arbitration::RoundRobin;
    let of = |order: Change| {
        [AS_PUBLISHED, SCAN]
            .map(|change| marks(b.runs.of(&b.changed(Input, 4, change).with(order))))
    };
    let [counted, scanned] = of(AS_PUBLISHED);
    let [counted_in_turn, scanned_in_turn] = of(IN_TURN);
    found.require(
        counted.mean > 0.0
            && counted.mean == scanned.mean
            && counted_in_turn.mean != scanned_in_turn.mean,
    );
    found.sample("marked packets, counters", &counted);
    found.sample("scan", &scanned);
    found.sample("outputs in turn: counters", &counted_in_turn);
    found.sample("scan", &scanned_in_turn);
}

fn p29(b: &Bench<'_>, found: &mut Found) {
    const TAILS: Change = |c| c.model.threshold_counts = Counting::Present;
    let [waiting, present] =
        [AS_PUBLISHED, TAILS].map(|change| b.runs.last(&b.changed(Threshold(3), 4, change), root));
    found.require(waiting.mean - present.mean >= 0.05);
    found.sample("root, those that wait", &waiting);
    found.sample("those whose tail has not left", &present);
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
