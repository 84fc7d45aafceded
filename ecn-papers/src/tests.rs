//! Verdicts that can fail: judges are given what the papers say, and then what contradicts it.

use ecn_core::marking::Marking;
use ecn_core::response::Function;
use ecn_report::statistics::Sample;
use ecn_sim::model::{Arbitration, Counting, InputTrigger, MarkBy, Response};
use ecn_sim::report::HpWindow;

use super::Lengths;
use super::assertions::{Found, Kind, Statement, Verdict, found, judge_all};
use super::runs::{Case, Outcome, Rates, Runs};
use super::schemes::judges;

/// Results of a setting.
#[derive(Clone, Copy)]
struct World {
    root: f64,
    /// Remote over local rate.
    ratio: f64,
    victim: f64,
    marked: u64,
}

/// A setting, reduced to what the judges here use.
struct Setting {
    /// Of output queues; 0 where these trigger nothing.
    threshold: u32,
    input_trigger: InputTrigger,
    /// Packets for links that were blocked lately are spared.
    spares: bool,
    window: u32,
    in_turn: bool,
    scans: bool,
    /// The threshold counts packets until their tail has departed.
    tails: bool,
    marking: Marking,
    response: Function,
    buffer: u32,
    flows: u32,
}

impl Setting {
    fn of(case: &Case) -> Self {
        let model = &case.model;
        Self {
            threshold: model.threshold,
            input_trigger: model.input_trigger,
            spares: model.spare_blocked.as_nanos() > 0,
            window: model.window,
            in_turn: model.arbitration == Arbitration::RoundRobin,
            scans: model.mark_by == MarkBy::Scan,
            tails: model.threshold_counts == Counting::Present,
            marking: model.marking,
            response: match model.response {
                Response::Function(function) => function,
                _ => Function::None,
            },
            buffer: model.buffer,
            flows: case.hp.flows,
        }
    }

    /// A world in which every published statement holds.
    fn as_published(&self) -> World {
        let (ratio, victim) = match (self.marking, self.threshold) {
            (Marking::None, _) => (0.4, 0.04),
            (Marking::Naive, _) => (0.11, 0.8),
            (Marking::InputOutput, 4) => (0.87, 0.5),
            (Marking::InputOutput, 8) if self.buffer == 16 => (1.2, 0.4),
            (Marking::InputOutput, _) => (0.5, 0.6),
            _ => (0.34, 0.7),
        };
        let root = match self.response {
            Function::Aimd => 0.9,
            Function::Fimd => 0.93,
            _ if self.threshold == 6 && self.buffer <= 4 => 0.8,
            _ => 0.97,
        };
        let root = match self.input_trigger {
            InputTrigger::At(_) => root - 0.1,
            _ => {
                root - if self.tails && self.threshold == 3 {
                    0.1
                } else {
                    0.0
                }
            }
        };
        World {
            root,
            // No two numbers of flows give exactly the same ratio.
            ratio: ratio + f64::from(self.flows) * 1e-3,
            victim: match self.input_trigger {
                InputTrigger::Off => 0.06,
                _ if self.window == 4 && self.spares => victim + 0.1,
                _ => victim,
            },
            marked: 1_000 + u64::from(self.in_turn && self.scans),
        }
    }
}

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

/// A statement about HP's networks, judged in the published world, changed in some settings.
fn judged(id: &str, is_other: fn(&Setting) -> bool, change: fn(&mut World)) -> (Verdict, bool) {
    let mut runs = Runs::new(3);
    loop {
        let statements = judge_all(&runs, Lengths::QUICK, &[], |_| true);
        let more = runs.answer_wanted(&(), |case, seed| {
            let setting = Setting::of(case);
            let mut world = setting.as_published();
            if is_other(&setting) {
                change(&mut world);
            }
            Ok(outcome(world, seed))
        });
        if !more.expect("outcomes") {
            let statement = statements.iter().find(|one| one.id == id);
            let statement = statement.expect("a statement");
            return (statement.verdict, statement.hard);
        }
    }
}

/// Of another scheme.
fn verdict(found: Found) -> (Verdict, bool) {
    let statement = Statement::new(("", Kind::Seed), ("", ""), found);
    (statement.verdict, statement.hard)
}

const HOLDS: (Verdict, bool) = (Verdict::Holds, true);
/// As the report explains it: not a failure of the reproduction.
const KNOWN: (Verdict, bool) = (Verdict::DoesNotHold, false);
const FAILS: (Verdict, bool) = (Verdict::DoesNotHold, true);
/// P12 is contested, and never hard.
const CONTESTED: (Verdict, bool) = (Verdict::SourcesDisagree, false);

/// Statements that hold in the published world, all but the contested one.
const AS_PUBLISHED: &[&str] = &[
    "P7", "P11", "P13", "P14", "P21", "P25", "P26", "P27", "P28", "P29", "R4",
];

/// Statement, world, the settings in which that differs from the published one, how, and the verdict.
type Row = (
    &'static str,
    &'static str,
    fn(&Setting) -> bool,
    fn(&mut World),
    (Verdict, bool),
);

const HP: &[Row] = &[
    (
        "P7",
        "naive marking lets something spread",
        |s| s.marking == Marking::Naive,
        |w| w.victim = 0.38,
        FAILS,
    ),
    (
        "P7",
        "naive marking helps hardly",
        |s| s.marking == Marking::Naive,
        |w| w.victim = 0.15,
        FAILS,
    ),
    (
        "P7",
        "threshold 8 lets something spread",
        |s| s.threshold == 8,
        |w| w.victim = 0.38,
        FAILS,
    ),
    (
        "P11",
        "no difference",
        |s| s.threshold == 8,
        |w| w.ratio = 0.35,
        KNOWN,
    ),
    (
        "P11",
        "less fair",
        |s| s.threshold == 8,
        |w| w.ratio = 0.3,
        FAILS,
    ),
    (
        "P12",
        "as G has it",
        |s| s.threshold == 8,
        |w| w.ratio = 1.0,
        CONTESTED,
    ),
    (
        "P12",
        "as neither has it",
        |s| s.threshold == 4,
        |w| w.ratio = 0.45,
        KNOWN,
    ),
    (
        "P13",
        "4 slots are enough",
        |s| s.threshold == 6 && s.buffer == 4,
        |w| w.root = 0.98,
        KNOWN,
    ),
    (
        "P13",
        "3 are, too",
        |s| s.threshold == 6 && s.buffer >= 3,
        |w| w.root = 0.98,
        FAILS,
    ),
    (
        "P13",
        "8 are too few",
        |s| s.threshold == 6 && s.buffer == 8,
        |w| w.root = 0.89,
        FAILS,
    ),
    (
        "P14",
        "no difference",
        |s| s.threshold == 8 && s.buffer == 16,
        |w| w.ratio = 0.88,
        FAILS,
    ),
    (
        "P14",
        "fairer",
        |s| s.threshold == 8 && s.buffer == 16,
        |w| w.ratio = 1.0,
        FAILS,
    ),
    (
        "P21",
        "4 slots are enough, and 3 for 5 flows",
        |s| s.threshold == 6 && (s.buffer == 4 || s.buffer == 3 && s.flows == 5),
        |w| w.root = 0.95,
        KNOWN,
    ),
    (
        "P21",
        "3 are enough for 15 flows",
        |s| s.threshold == 6 && s.buffer == 3 && s.flows == 15,
        |w| w.root = 0.95,
        FAILS,
    ),
    (
        "P21",
        "naive marking is fair among 20 flows",
        |s| s.marking == Marking::Naive && s.flows == 20,
        |w| w.ratio = 0.9,
        FAILS,
    ),
    (
        "P25",
        "threshold 10 alone keeps the victim",
        |s| s.input_trigger == InputTrigger::Off && s.threshold == 10,
        |w| w.victim = 0.4,
        FAILS,
    ),
    (
        "P26",
        "no difference with 3 slots",
        |s| s.buffer == 3,
        |w| w.root = 0.97,
        FAILS,
    ),
    (
        "P27",
        "the victim gains",
        |s| s.spares,
        |w| w.victim += 0.01,
        FAILS,
    ),
    (
        "P27",
        "nothing is ever spared",
        |s| s.window == 4,
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
        |s| s.scans,
        |w| w.marked = 1_001,
        FAILS,
    ),
    (
        "P29",
        "no difference",
        |s| s.tails,
        |w| w.root = 0.97,
        FAILS,
    ),
    (
        "R4",
        "FIMD is below AIMD with 5 slots",
        |s| s.response == Function::Fimd && s.buffer == 5,
        |w| w.root = 0.89,
        KNOWN,
    ),
    (
        "R4",
        "FIMD is not above AIMD with 8 slots",
        |s| s.response == Function::Fimd && s.buffer == 8,
        |w| w.root = 0.9,
        FAILS,
    ),
    (
        "R4",
        "LIPD is not above AIMD with 5 slots",
        |s| s.response == Function::Lipd && s.buffer == 5,
        |w| w.root = 0.9,
        FAILS,
    ),
];

/// The same for other schemes, whose judges are given values.
fn of_other_schemes() -> Vec<(&'static str, &'static str, Found, (Verdict, bool))> {
    let swing = |mean, deviation, above| judges::Swing {
        mean,
        deviation,
        above,
    };
    let swings = |mean, more| {
        let runs = |deviation: f64| {
            let some = [-0.01, 0.0, 0.01];
            some.map(|chance| swing(mean, deviation + chance, 0.5))
                .to_vec()
        };
        judges::swings_around(
            &runs(0.3),
            &[("Gi x 4", runs(0.3 + more)), ("Gd x 4", runs(0.6))],
        )
    };
    let shares = |above: usize| {
        let share = |run| if run < above { 0.45 } else { 0.3 };
        (0..40).map(share).collect::<Vec<f64>>()
    };
    let hold = |long, mended| judges::holds_much(&shares(long), &shares(mended), &shares(long));
    let factors = |guarded, [median, p99]: [f64; 2]| judges::Factors {
        guarded,
        factors: [median, p99].map(|mean| Sample {
            mean,
            sd: 0.05,
            n: 12,
        }),
    };
    let tcd = |dcqcn, timely| {
        let all = [factors(true, dcqcn), factors(false, timely)];
        let (holds, known) = judges::improves(&all);
        found(holds, []).known(known, String::new())
    };
    let incast = |p99_us, used| judges::Incast { p99_us, used };
    let shorter = |times, used| judges::shorter(&incast(times * 50.0, 1.0), &incast(50.0, used));
    vec![
        ("B2", "as published", swings(1.1, 0.3), HOLDS),
        ("B2", "below Qeq", swings(0.6, 0.3), FAILS),
        ("B2", "above Qeq", swings(1.4, 0.3), FAILS),
        ("B2", "Gi makes no difference", swings(1.0, 0.005), FAILS),
        ("Q6", "as published", hold(20, 0), HOLDS),
        ("Q6", "as chance has it", hold(2, 0), FAILS),
        ("Q6", "what mends it does not", hold(20, 15), FAILS),
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
        ("M5", "as published", shorter(9.5, 0.95), HOLDS),
        ("M5", "not by so much", shorter(8.0, 0.95), FAILS),
        ("M5", "at a lower rate", shorter(20.0, 0.8), FAILS),
    ]
}

#[test]
fn verdicts_can_fail() {
    let mut wrong = Vec::new();
    let mut check = |id: &str, world: &str, is: (Verdict, bool), expected: (Verdict, bool)| {
        if is != expected {
            wrong.push(format!("{id}, {world}: {is:?}, not {expected:?}"));
        }
    };
    let published = |id| judged(id, |_| false, |_| ());
    for id in AS_PUBLISHED {
        check(id, "as published", published(id), HOLDS);
    }
    check("P12", "as T has it", published("P12"), CONTESTED);
    for (id, world, is_other, change, expected) in HP {
        check(id, world, judged(id, *is_other, *change), *expected);
    }
    for (id, world, found, expected) in of_other_schemes() {
        check(id, world, verdict(found), expected);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
