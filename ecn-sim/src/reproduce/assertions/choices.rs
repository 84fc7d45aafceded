//! What P11 to P14 depend on.
use ecn_core::response::Function;
use ecn_units::{DurationText, Fraction};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{
    Arbitration, Bypass, Counting, Crossbar, Forwarding, MarkIn, OutputTrigger, Response, Spacing,
    Trigger,
};
use crate::reproduce::Lengths;
use crate::reproduce::figures::{ratio, root};
use crate::reproduce::runs::{Case, Rates, Runs, Scheme};
use crate::scenario::Victim;

/// What P11 to P14 depend on, measured with one changed choice of the model.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Choice {
    /// `key=value`, or `default`.
    pub choice: String,
    /// Remote over local rate with 4 slots, input-triggered.
    pub ratio_input: f64,
    /// The same with threshold 4.
    pub ratio_4: f64,
    /// The same with threshold 8.
    pub ratio_8: f64,
    /// Local share of the root link with 16 slots and threshold 4.
    pub local_4: f64,
    /// The same with threshold 8.
    pub local_8: f64,
    /// Use of the root link with 2 slots and threshold 6 (P13).
    pub root_2: f64,
    /// The same with 4 slots.
    pub root_4: f64,
    /// P11: rates are more equal with threshold 8 than input-triggered.
    pub p11_holds: bool,
    /// P12, as G has it: local and remote flows get about equal rates with threshold 8.
    pub g_holds: bool,
    /// P12, as T has it: less equal than with threshold 4.
    pub t_holds: bool,
    /// P14: the local share is lower with threshold 8 than with 4.
    pub p14_holds: bool,
}

/// "About equal" rates: a ratio within this of 1.
pub(super) const ABOUT_EQUAL: f64 = 0.1;

pub(super) fn about_equal(ratio: f64) -> bool {
    (ratio - 1.0).abs() <= ABOUT_EQUAL
}

/// How far rates are from equal.
pub(super) fn inequality(rates: &Rates) -> f64 {
    (ratio(rates) - 1.0).abs()
}

pub(super) type Change = fn(&mut Case);

/// A fraction.
pub(super) const fn one_in(denominator: u32) -> Option<Fraction> {
    Fraction::new(1, denominator)
}

/// Other choices of the model than the defaults.
const CHANGES: &[(&str, Change)] = &[
    ("default", |_| {}),
    ("full_counts=waiting", |c| {
        c.model.full_counts = Counting::Waiting;
    }),
    ("threshold_counts=present", |c| {
        c.model.threshold_counts = Counting::Present;
    }),
    ("full_counts=waiting threshold_counts=present", |c| {
        c.model.full_counts = Counting::Waiting;
        c.model.threshold_counts = Counting::Present;
    }),
    ("mark_in=B", |c| {
        c.model.mark_in = MarkIn::Named(vec!["B".to_owned()]);
    }),
    ("victim=off", |c| c.hp.victim = Victim::Off),
    ("output_trigger=crossing", |c| {
        c.model.output_trigger = OutputTrigger::Crossing;
    }),
    ("trigger=before-dispatch", |c| {
        c.model.trigger = Trigger::BeforeDispatch;
    }),
    ("spacing=at-send", |c| c.model.spacing = Spacing::AtSend),
    ("response=fimd", |c| {
        c.model.response = Response::Function(Function::Fimd);
    }),
    ("response=aimd", |c| {
        c.model.response = Response::Function(Function::Aimd);
    }),
    ("rmin=1/64", |c| {
        c.model.rmin = one_in(64).unwrap_or(c.model.rmin);
    }),
    ("rmin=1/1024", |c| {
        c.model.rmin = one_in(1024).unwrap_or(c.model.rmin);
    }),
    ("crossbar=single", |c| c.model.crossbar = Crossbar::Single),
    ("bypass=0", |c| c.model.bypass = Bypass(0)),
    ("arbitration=round-robin", |c| {
        c.model.arbitration = Arbitration::RoundRobin;
    }),
    ("forwarding=store-and-forward", |c| {
        c.model.forwarding = Forwarding::StoreAndForward;
    }),
    ("ack_delay=1us", |c| {
        c.model.ack_delay = DurationText::from_micros(1);
    }),
];

/// Measures P11 to P14 under each of some choices that the papers leave open.
pub fn choices(runs: &Runs, lengths: Lengths) -> Vec<Choice> {
    let measure = |&(choice, change): &(&str, Change)| {
        let last = |mut case: Case, value: fn(&Rates) -> f64| {
            change(&mut case);
            runs.last(&case, value)
        };
        let at_4 = |scheme| {
            let of = |value| last(Case::fig3(scheme), value);
            (of(ratio).mean, of(inequality))
        };
        let local = |threshold| {
            let case = Case::fig4(Scheme::Threshold(threshold), 16, lengths.choice);
            last(case, |r| r.shares.local)
        };
        let (ratio_input, input) = at_4(Scheme::Input);
        let (ratio_4, four) = at_4(Scheme::Threshold(4));
        let (ratio_8, eight) = at_4(Scheme::Threshold(8));
        let used = |buffer| {
            let case = Case::fig4(Scheme::Threshold(6), buffer, lengths.choice);
            last(case, root).mean
        };
        let (local_4, local_8) = (local(4), local(8));
        Choice {
            choice: choice.to_owned(),
            ratio_input,
            ratio_4,
            ratio_8,
            local_4: local_4.mean,
            local_8: local_8.mean,
            root_2: used(2),
            root_4: used(4),
            p11_holds: input.is_above(&eight),
            g_holds: about_equal(ratio_8),
            t_holds: eight.is_above(&four),
            p14_holds: local_4.is_above(&local_8),
        }
    };
    CHANGES.iter().map(measure).collect()
}
