//! What P11 to P14 depend on.

use ecn_report::statistics::Sample;
use ecn_sim::scenario::ScenarioError;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Lengths;
use crate::figures::{ratio, root};
use crate::runs::{Case, Rates, Runs, Scheme};

/// What P11 to P14 depend on, measured with one changed choice of the model.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
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

/// Settings of the model: the defaults, and other choices where the papers leave one.
const CHOICES: [&str; 18] = [
    "",
    "full_counts=waiting",
    "threshold_counts=present",
    "full_counts=waiting threshold_counts=present",
    "mark_in=B",
    "victim=off",
    "output_trigger=crossing",
    "trigger=before-dispatch",
    "spacing=at-send",
    "response=fimd",
    "response=aimd",
    "rmin=1/64",
    "rmin=1/1024",
    "crossbar=single",
    "bypass=0",
    "arbitration=round-robin",
    "forwarding=store-and-forward",
    "ack_delay=1us",
];

/// Measures P11 to P14 with the defaults and under each of the other choices.
pub(crate) fn choices(runs: &Runs, lengths: Lengths) -> Result<Vec<Choice>, ScenarioError> {
    CHOICES
        .map(|settings| choice(runs, lengths, settings))
        .into_iter()
        .collect()
}

fn choice(runs: &Runs, lengths: Lengths, settings: &str) -> Result<Choice, ScenarioError> {
    let under = |mut case: Case| -> Result<Case, ScenarioError> {
        for setting in settings.split_whitespace() {
            case.set(setting)?;
        }
        Ok(case)
    };
    let short = |scheme| under(Case::fig3(scheme));
    let long = |threshold, buffer, value: fn(&Rates) -> f64| -> Result<Sample, ScenarioError> {
        let case = Case::fig4(Scheme::Threshold(threshold), buffer, lengths.choice);
        Ok(runs.last(&under(case)?, value))
    };
    let schemes = [
        short(Scheme::Input)?,
        short(Scheme::Threshold(4))?,
        short(Scheme::Threshold(8))?,
    ];
    let [ratio_input, ratio_4, ratio_8] =
        schemes.each_ref().map(|case| runs.last(case, ratio).mean);
    let [far_input, far_4, far_8] = schemes.each_ref().map(|case| runs.last(case, inequality));
    let local_4 = long(4, 16, |r| r.shares.local)?;
    let local_8 = long(8, 16, |r| r.shares.local)?;
    let name = if settings.is_empty() {
        "default"
    } else {
        settings
    };
    Ok(Choice {
        choice: name.to_owned(),
        ratio_input,
        ratio_4,
        ratio_8,
        local_4: local_4.mean,
        local_8: local_8.mean,
        root_2: long(6, 2, root)?.mean,
        root_4: long(6, 4, root)?.mean,
        p11_holds: far_input.is_above(&far_8),
        g_holds: about_equal(ratio_8),
        t_holds: far_8.is_above(&far_4),
        p14_holds: local_4.is_above(&local_8),
    })
}
