//! Verdicts that can fail: judges are given what the papers say, and then what contradicts it.

use ecn_core::marking::Marking;
use ecn_core::response::Function;
use ecn_report::statistics::Sample;
use ecn_sim::model::{Arbitration, Counting, InputTrigger, MarkBy, Response};
use ecn_sim::report::HpWindow;

use crate::Lengths;
use crate::hp::judge_all;
use crate::runs::{Case, Outcome, Rates, Runs};
use crate::schemes::{bcn, qcn, tcd, timely};
use crate::statement::{Found, Kind, Verdict};

/// Results of a case.
#[derive(Clone, Copy)]
struct World {
    root: f64,
    /// Remote over local rate.
    ratio: f64,
    victim: f64,
    marked: u64,
}

/// A world in which every published statement holds.
fn as_published(case: &Case) -> World {
    let model = &case.model;
    let (ratio, victim) = match (model.marking, model.threshold) {
        (Marking::None, _) => (0.4, 0.04),
        (Marking::Naive, _) => (0.11, 0.8),
        (Marking::InputOutput, 4) => (0.87, 0.5),
        (Marking::InputOutput, 8) if model.buffer == 16 => (1.2, 0.4),
        (Marking::InputOutput, _) => (0.5, 0.6),
        _ => (0.34, 0.7),
    };
    let root = match model.response {
        Response::Function(Function::Aimd) => 0.9,
        Response::Function(Function::Fimd) => 0.93,
        _ if model.threshold == 6 && model.buffer <= 4 => 0.8,
        _ => 0.97,
    };
    let is_lower = match model.input_trigger {
        InputTrigger::At(_) => true,
        _ => model.threshold_counts == Counting::Present && model.threshold == 3,
    };
    let scans = model.mark_by == MarkBy::Scan;
    World {
        root: if is_lower { root - 0.1 } else { root },
        // No two numbers of flows give exactly the same ratio.
        ratio: ratio + f64::from(case.hp.flows) * 1e-3,
        victim: match model.input_trigger {
            InputTrigger::Off => 0.06,
            _ if model.window == 4 && spares(case) => victim + 0.1,
            _ => victim,
        },
        marked: 1_000 + u64::from(scans && model.arbitration == Arbitration::RoundRobin),
    }
}

/// Packets for links that were blocked lately are spared.
fn spares(case: &Case) -> bool {
    case.model.spare_blocked.as_nanos() > 0
}

fn responds(case: &Case, function: Function, buffer: u32) -> bool {
    case.model.response == Response::Function(function) && case.model.buffer == buffer
}

/// A verdict, and whether the reproduction depends on it.
type Judged = (Verdict, bool);

/// As in a run, with some noise.
fn outcome(world: World, seed: u64) -> Outcome {
    let chance = (seed as f64 - 2.0) * 1e-3;
    let (root, ratio) = (world.root + chance, world.ratio + chance);
    let local = root / (1.0 + ratio);
    let remote = root - local;
    let shares = HpWindow {
        from_ms: 0.0,
        to_ms: 100.0,
        root,
        inter_switch: remote + world.victim,
        local,
        remote,
        victim: world.victim + chance,
        remote_local_ratio: Some(ratio),
        jain_local: Some(1.0),
        jain_remote: Some(1.0),
        root_queue_mean_packets: None,
        root_queue_max_packets: None,
        dropped_packets: None,
    };
    Outcome {
        windows: vec![Rates {
            shares,
            spread_local: 1.1,
            spread_remote: 1.1,
        }],
        marked: world.marked,
        ..Outcome::default()
    }
}

/// A statement about HP's networks, judged in the published world, changed in some cases.
fn judged(id: &str, is_other: fn(&Case) -> bool, change: fn(&mut World)) -> Judged {
    let mut runs = Runs::new(3);
    let run = |case: &Case, seed| {
        let mut world = as_published(case);
        if is_other(case) {
            change(&mut world);
        }
        Ok(outcome(world, seed))
    };
    loop {
        let statements = judge_all(&runs, Lengths::QUICK, &[], |_| true);
        if !runs.run_wanted(&(), run).expect("outcomes") {
            let mut statements = statements.iter();
            let statement = statements.find(|one| one.id == id);
            let statement = statement.expect("a statement");
            return (statement.verdict, statement.hard);
        }
    }
}

const HOLDS: Judged = (Verdict::Holds, true);
/// As the report explains it: not a failure of the reproduction.
const KNOWN: Judged = (Verdict::DoesNotHold, false);
const FAILS: Judged = (Verdict::DoesNotHold, true);
/// P12 is contested, and never hard.
const CONTESTED: Judged = (Verdict::SourcesDisagree, false);

/// Statement, world, the cases in which that differs from the published one, how, and the verdict.
type Row = (
    &'static str,
    &'static str,
    fn(&Case) -> bool,
    fn(&mut World),
    Judged,
);

const HP: &[Row] = &[
    (
        "P7",
        "naive marking lets something spread",
        |c| c.model.marking == Marking::Naive,
        |w| w.victim = 0.38,
        FAILS,
    ),
    (
        "P7",
        "naive marking helps hardly",
        |c| c.model.marking == Marking::Naive,
        |w| w.victim = 0.15,
        FAILS,
    ),
    (
        "P7",
        "threshold 8 lets something spread",
        |c| c.model.threshold == 8,
        |w| w.victim = 0.38,
        FAILS,
    ),
    (
        "P11",
        "no difference",
        |c| c.model.threshold == 8,
        |w| w.ratio = 0.35,
        KNOWN,
    ),
    (
        "P11",
        "less fair",
        |c| c.model.threshold == 8,
        |w| w.ratio = 0.3,
        FAILS,
    ),
    (
        "P12",
        "as G has it",
        |c| c.model.threshold == 8,
        |w| w.ratio = 1.0,
        CONTESTED,
    ),
    (
        "P12",
        "as neither has it",
        |c| c.model.threshold == 4,
        |w| w.ratio = 0.45,
        KNOWN,
    ),
    (
        "P13",
        "4 slots are enough",
        |c| c.model.threshold == 6 && c.model.buffer == 4,
        |w| w.root = 0.98,
        KNOWN,
    ),
    (
        "P13",
        "3 are, too",
        |c| c.model.threshold == 6 && c.model.buffer >= 3,
        |w| w.root = 0.98,
        FAILS,
    ),
    (
        "P13",
        "8 are too few",
        |c| c.model.threshold == 6 && c.model.buffer == 8,
        |w| w.root = 0.89,
        FAILS,
    ),
    (
        "P14",
        "no difference",
        |c| c.model.threshold == 8 && c.model.buffer == 16,
        |w| w.ratio = 0.88,
        FAILS,
    ),
    (
        "P14",
        "fairer",
        |c| c.model.threshold == 8 && c.model.buffer == 16,
        |w| w.ratio = 1.0,
        FAILS,
    ),
    (
        "P21",
        "4 slots are enough, and 3 for 5 flows",
        |c| {
            c.model.threshold == 6
                && (c.model.buffer == 4 || c.model.buffer == 3 && c.hp.flows == 5)
        },
        |w| w.root = 0.95,
        KNOWN,
    ),
    (
        "P21",
        "3 are enough for 15 flows",
        |c| c.model.threshold == 6 && c.model.buffer == 3 && c.hp.flows == 15,
        |w| w.root = 0.95,
        FAILS,
    ),
    (
        "P21",
        "naive marking is fair among 20 flows",
        |c| c.model.marking == Marking::Naive && c.hp.flows == 20,
        |w| w.ratio = 0.9,
        FAILS,
    ),
    (
        "P25",
        "threshold 10 alone keeps the victim",
        |c| c.model.input_trigger == InputTrigger::Off && c.model.threshold == 10,
        |w| w.victim = 0.4,
        FAILS,
    ),
    (
        "P26",
        "no difference with 3 slots",
        |c| c.model.buffer == 3,
        |w| w.root = 0.97,
        FAILS,
    ),
    (
        "P27",
        "the victim gains",
        |c| spares(c),
        |w| w.victim += 0.01,
        FAILS,
    ),
    (
        "P27",
        "nothing is ever spared",
        |c| c.model.window == 4,
        |w| w.victim = 0.4,
        FAILS,
    ),
    (
        "P28",
        "no difference",
        |_| true,
        |w| w.marked = 1_000,
        FAILS,
    ),
    (
        "P28",
        "always another",
        |c| c.model.mark_by == MarkBy::Scan,
        |w| w.marked = 1_001,
        FAILS,
    ),
    (
        "P29",
        "no difference",
        |c| c.model.threshold_counts == Counting::Present,
        |w| w.root = 0.97,
        FAILS,
    ),
    (
        "R4",
        "FIMD is below AIMD with 5 slots",
        |c| responds(c, Function::Fimd, 5),
        |w| w.root = 0.89,
        KNOWN,
    ),
    (
        "R4",
        "FIMD is not above AIMD with 8 slots",
        |c| responds(c, Function::Fimd, 8),
        |w| w.root = 0.9,
        FAILS,
    ),
    (
        "R4",
        "LIPD is not above AIMD with 5 slots",
        |c| responds(c, Function::Lipd, 5),
        |w| w.root = 0.9,
        FAILS,
    ),
];

/// The verdict on a statement about another scheme, and whether it is hard.
fn verdict(judge: impl FnOnce(&mut Found)) -> Judged {
    let mut found = Found::default();
    judge(&mut found);
    let statement = found.about("", Kind::Seed, "", "");
    (statement.verdict, statement.hard)
}

/// The same for other schemes, whose judges are given values.
fn of_other_schemes() -> Vec<(&'static str, &'static str, Judged, Judged)> {
    let oscillating = |mean, more| {
        let runs = |deviation: f64| {
            let run = |chance| bcn::Oscillation {
                mean,
                deviation: deviation + chance,
                above: 0.5,
            };
            [-0.01, 0.0, 0.01].map(run).to_vec()
        };
        let others = [("Gi x 4", runs(0.3 + more)), ("Gd x 4", runs(0.6))];
        verdict(|found| bcn::judge_oscillations(&runs(0.3), &others, found))
    };
    let fastest = |long, equal_cycles| {
        let shares = |above: usize| {
            let share = |run| if run < above { 0.45 } else { 0.3 };
            (0..40).map(share).collect::<Vec<f64>>()
        };
        let (long, equal_cycles) = (shares(long), shares(equal_cycles));
        verdict(|found| qcn::judge_fastest(&long, &equal_cycles, &long, found))
    };
    let tcd = |dcqcn: [f64; 2], timely: [f64; 2]| {
        let all = [(true, dcqcn), (false, timely)].map(|(guarded, means)| tcd::Factors {
            guarded,
            factors: means.map(|mean| Sample {
                mean,
                sd: 0.05,
                n: 12,
            }),
        });
        verdict(|found| tcd::judge_factors(&all, String::new(), found))
    };
    let incast = |times, used| {
        let [pfc, timely] = [(times * 50.0, 1.0), (50.0, used)]
            .map(|(p99_us, used)| timely::Incast { p99_us, used });
        verdict(|found| timely::judge_incast(&pfc, &timely, found))
    };
    vec![
        ("B2", "as published", oscillating(1.1, 0.3), HOLDS),
        ("B2", "below Qeq", oscillating(0.6, 0.3), FAILS),
        ("B2", "above Qeq", oscillating(1.4, 0.3), FAILS),
        (
            "B2",
            "Gi makes no difference",
            oscillating(1.0, 0.005),
            FAILS,
        ),
        ("Q6", "as published", fastest(20, 0), HOLDS),
        ("Q6", "as chance has it", fastest(2, 0), FAILS),
        ("Q6", "equal cycles do not help", fastest(20, 15), FAILS),
        ("T11", "as published", tcd([1.1, 1.1], [3.4, 2.1]), HOLDS),
        ("T11", "less", tcd([1.1, 1.1], [2.8, 1.4]), KNOWN),
        (
            "T11",
            "less in the tail",
            tcd([1.1, 1.1], [3.4, 1.9]),
            KNOWN,
        ),
        ("T11", "not at all", tcd([1.0, 1.0], [1.0, 1.0]), FAILS),
        ("T11", "DCQCN is worse", tcd([1.1, 0.9], [3.4, 2.1]), FAILS),
        ("M5", "as published", incast(9.5, 0.95), HOLDS),
        ("M5", "not by so much", incast(8.0, 0.95), FAILS),
        ("M5", "at a lower rate", incast(20.0, 0.8), FAILS),
    ]
}

#[test]
fn verdicts_can_fail() {
    let mut wrong = Vec::new();
    let mut check = |id: &str, world: &str, is: Judged, expected: Judged| {
        if is != expected {
            wrong.push(format!("{id}, {world}: {is:?}, not {expected:?}"));
        }
    };
    for rows in HP.chunk_by(|a, b| a.0 == b.0) {
        let id = rows[0].0;
        let published = judged(id, |_| false, |_| ());
        match id {
            "P12" => check(id, "as T has it", published, CONTESTED),
            _ => check(id, "as published", published, HOLDS),
        }
        for (id, world, is_other, change, expected) in rows {
            check(id, world, judged(id, *is_other, *change), *expected);
        }
    }
    for (id, world, is, expected) in of_other_schemes() {
        check(id, world, is, expected);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
