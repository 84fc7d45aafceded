//! Statements about BCN: Barrass 2006 (S), which gives no numbers; the gains are from memory.
//!
//! The lowest rate is ours too. Flows start at once, so that most fall to it; at a rate unit, 8 Mb/s, one in
//! 100 packets is 7 notifications per second, and equal rates take a second and more. Here it is 100 Mb/s.

use std::collections::VecDeque;

use ecn_core::bcn::{CongestionPoint, Feedback, Gains, Limiter, Policy};
use ecn_report::statistics::Sample;
use ecn_sim::engine::{MS, Time};
use ecn_sim::fabric::cc::bcn::{BcnParameters, BcnRules, Hosts, UNTAGGED};
use ecn_sim::fabric::cc::{Cnm, Endpoints, Sender as _};
use ecn_sim::fabric::{Counts, Kind as Fabric};
use ecn_sim::model::ModelError;
use ecn_units::Rate;

use super::{
    Bench, Bottleneck, Claim, ENDLESS, Judged, Settled, flow, highest, lowest, one_switch, over,
    scenario,
};
use crate::ReproduceError;
use crate::assertions::{Found, Kind, exact, found, named};

/// Qeq at 10 Gb/s: 16 frames.
const QEQ: f64 = 24_000.0;
/// Of the runs and loops here, bytes per second.
const LINE: u64 = 1_250_000_000;
const SCHEME: &[&str] = &["scheme=bcn", "bcn.min_rate=100mbit"];

fn runs(
    bench: &Bench,
    flows: u32,
    more: &[&str],
    until: Time,
) -> Result<Vec<Settled>, ReproduceError> {
    Bottleneck {
        flows,
        settings: &[SCHEME, more].concat(),
        from: 100 * MS,
        until,
    }
    .run_all(bench)
}

/// Mean queue / Qeq.
fn queue(run: &Settled) -> f64 {
    run.queue().mean / QEQ
}

/// PFC alone also fills the link and shares it equally, but with a queue as long as the switch permits.
fn is_short(runs: &[Settled]) -> bool {
    highest(runs, queue) < 2.0
}

fn b1(bench: &Bench) -> Judged {
    let mut found = Found::default();
    for flows in [2, 10] {
        let runs = runs(bench, flows, &[], 130 * MS)?;
        found.require(lowest(&runs, Settled::utilisation) > 0.9 && is_short(&runs));
        let name = format!("utilisation, {flows} flows");
        found.sample(name, &over(&runs, Settled::utilisation));
        found.sample("mean queue / Qeq", &over(&runs, queue));
    }
    Ok(found)
}

/// A queue in a run, over Qeq.
#[derive(Clone, Copy)]
pub(crate) struct Swing {
    /// Its mean over time.
    pub mean: f64,
    /// Its deviation over time.
    pub deviation: f64,
    /// Fraction of the time in which it is longer than Qeq.
    pub above: f64,
}

impl Swing {
    fn of(run: &Settled) -> Self {
        let over_time = run.queue();
        let above = run
            .queues
            .iter()
            .map(|queue| f64::from(u8::from(*queue > QEQ)));
        Self {
            mean: over_time.mean / QEQ,
            deviation: over_time.sd / QEQ,
            above: Sample::of(above).mean,
        }
    }
}

fn b2(bench: &Bench) -> Judged {
    let swings = |more: &[&str]| -> Result<Vec<Swing>, ReproduceError> {
        Ok(runs(bench, 10, more, 250 * MS)?
            .iter()
            .map(Swing::of)
            .collect())
    };
    let usual = swings(&[])?;
    let mut others = Vec::new();
    for (name, setting) in [
        ("Gi x 4", "bcn.gi=16"),
        ("Gd x 4", "bcn.gd=1/32"),
        ("links of 50 us", "link_delay=50us"),
    ] {
        others.push((name, swings(&[setting])?));
    }
    Ok(swings_around(&usual, &others))
}

/// B2: judges runs with the usual gains, and those in which the queue must oscillate more.
pub(crate) fn swings_around(usual: &[Swing], others: &[(&str, Vec<Swing>)]) -> Found {
    let deviation = |runs: &[Swing]| over(runs, |run| run.deviation);
    let mean = over(usual, |run| run.mean);
    let mut holds = (mean.mean - 1.0).abs() < deviation(usual).mean;
    let mut measured = vec![
        named("mean queue / Qeq", &mean),
        named("part of the time above Qeq", &over(usual, |run| run.above)),
        named("deviation / Qeq", &deviation(usual)),
    ];
    for (name, runs) in others {
        let swing = deviation(runs);
        holds &= swing.is_above(&deviation(usual));
        measured.push(named(format!("deviation / Qeq, {name}"), &swing));
    }
    found(holds, measured)
}

fn b3(bench: &Bench) -> Judged {
    let mut found = Found::default();
    // In 30 runs each, the minimum fairness was 0.960; half the time is too short for some.
    for (flows, until) in [(2, 600 * MS), (10, 1_000 * MS)] {
        let runs = runs(bench, flows, &[], until)?;
        let index = over(&runs, Settled::jain);
        found.require(lowest(&runs, Settled::jain) > 0.95 && is_short(&runs));
        found.sample(format!("Jain's index, {flows} flows"), &index);
        found.sample("mean queue / Qeq", &over(&runs, queue));
    }
    Ok(found)
}

/// Three switches in a row: a flow across both links, and one across each.
fn b4(bench: &Bench) -> Judged {
    let own = [
        "hosts=6",
        "switches=3",
        "payload=1438",
        "link_rate=10gbit",
        "limit=300ms",
    ];
    let flows = vec![
        flow(0, 0, 5, ENDLESS),
        flow(0, 1, 2, ENDLESS),
        flow(0, 3, 4, ENDLESS),
    ];
    let run = |settings: &[&str], seed| -> Result<Settled, ReproduceError> {
        let settings = [&own[..], settings].concat();
        let scenario = scenario(Fabric::ParkingLot, &settings, flows.clone())?;
        Ok(Settled::of(&bench.run(&scenario, seed)?, 100 * MS, 3, 0))
    };
    let runs = bench.seeds().map(|seed| run(SCHEME, seed));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let share = |flow: usize| move |run: &Settled| run.rates[flow] / Bottleneck::LINE;
    let [long, first, second] = [0, 1, 2].map(|flow| over(&runs, share(flow)));
    // A flow that does not recover also gets less, but then no other flow gets the rest.
    let used = (2.0 * long.mean + first.mean + second.mean) / 2.0;
    // Deterministic: a single run suffices.
    let alone = share(0)(&run(&["scheme=none", "limit=150ms"], 1)?);
    let is_less = highest(&runs, share(0)) < 0.5 && long.mean < 0.8 * alone;
    Ok(found(
        is_less && used > 0.9,
        [
            named("share of the long flow (max-min: 0.5)", &long),
            named("of that on the first link", &first),
            named("of that on the second", &second),
            exact("use of both links", used),
            exact("share of the long flow with PFC only", alone),
        ],
    ))
}

/// Two flows of this many frames at once, over links of 8 us: from sender to switch and back takes 16 us. The switch
/// notifies as often as possible. Completion times relative to those without control.
fn with_and_without(bench: &Bench, frames: u64) -> Result<f64, ReproduceError> {
    let own = [
        "hosts=3",
        "payload=1438",
        "link_rate=10gbit",
        "link_delay=8us",
    ];
    let keen = ["scheme=bcn", "bcn.pm=1", "bcn.qeq=1500B"];
    let time = |settings: &[&str]| -> Result<f64, ReproduceError> {
        let flows = (0..2).map(|from| flow(0, from, 2, frames * 1_438));
        let scenario = one_switch(settings, flows.collect())?;
        let times = bench.run(&scenario, 1)?.finished;
        Ok(times.iter().map(|flow| flow.time as f64).sum())
    };
    Ok(time(&[&own[..], &keen].concat())? / time(&own)?)
}

fn b5(bench: &Bench) -> Judged {
    let (short, long) = (with_and_without(bench, 10)?, with_and_without(bench, 200)?);
    Ok(found(
        short == 1.0 && long > 1.05,
        [
            exact(
                "completion, 10 frames (12 us), over that without BCN",
                short,
            ),
            exact("200 frames (240 us)", long),
        ],
    ))
}

/// The reaction point's rules.
fn rules() -> Result<BcnRules, ReproduceError> {
    let line = Rate::from_bytes_per_s(LINE).unwrap_or(Rate::MAX);
    Ok(BcnParameters::default().rules(line, 1_500)?)
}

/// Whether the packets of a sender are tagged after this many positive notifications.
fn tagged_after(positive: u32) -> Result<bool, ReproduceError> {
    let mut hosts = Hosts::new(rules()?, 2);
    let endpoints = Endpoints {
        from: 0,
        to: 1,
        class: 0,
    };
    let mut told = |offset_bytes| {
        let feedback = Feedback {
            offset_bytes,
            delta_bytes: 0,
        }
        .to_word();
        hosts.on_feedback(&mut (), 0, endpoints, Cnm { point: 9, feedback });
        hosts.tag(endpoints)
    };
    let mut tag = told(-24_000);
    for _ in 0..positive {
        tag = told(24_000);
    }
    Ok(tag != Some(UNTAGGED))
}

fn b6(bench: &Bench) -> Judged {
    let own = ["hosts=3", "payload=1438", "link_rate=10gbit", "limit=250ms"];
    let flows = vec![flow(0, 0, 2, ENDLESS), flow(0, 1, 2, 30_000_000)];
    let scenario = one_switch(&[&own[..], SCHEME].concat(), flows)?;
    let (mut during, mut after, mut over) = (Vec::new(), Vec::new(), Vec::new());
    for seed in bench.seeds() {
        let counts: Counts = bench.run(&scenario, seed)?;
        let end = counts.last_end;
        during.push(counts.series.as_ref().map_or(f64::NAN, |series| {
            let points = &series.points[..(end / series.step) as usize];
            let bytes: u64 = points.iter().map(|point| point.flows[0]).sum();
            bytes as f64 / (end as f64 / (1e3 * MS as f64)) / Bottleneck::LINE
        }));
        after.push(Settled::of(&counts, end + 50 * MS, 1, 0).utilisation());
        over.push(end as f64 / MS as f64);
    }
    let limited = (tagged_after(0)?, tagged_after(1_000)?);
    let holds = after.iter().all(|share| *share > 0.999)
        && during.iter().all(|share| *share < 0.99)
        && limited == (true, false);
    let sample = |values: Vec<f64>| Sample::of(values);
    Ok(found(
        holds,
        [
            named("the other is finished, ms", &sample(over)),
            named("share of the link until then", &sample(during)),
            named("from 50 ms later on", &sample(after)),
            exact(
                "tagged at the link's rate (0: no limiter)",
                f64::from(u8::from(limited.1)),
            ),
        ],
    ))
}

/// Ten limiters and a queue of at most 100 frames, in steps of a frame on the link; notifications take ten. Mean of
/// the queue over the last half of a second, bytes.
fn looped(sign: i32) -> Result<f64, ReproduceError> {
    const FRAME: u64 = 1_500;
    const LIMIT: u64 = 100 * FRAME;
    let gains = Gains {
        min_bytes_per_s: LINE / 100,
        ..Gains::defaults(LINE)
    };
    let policy =
        Policy::new(&gains).map_err(|error| ModelError::new("bcn", LINE, error.to_string()))?;
    let mut point = CongestionPoint::default();
    let mut sources = [(Limiter::default(), 0_u64); 10];
    let mut notices: VecDeque<(u64, usize, Feedback)> = VecDeque::new();
    let (mut queue, mut frames, mut sum) = (0_u64, 0_u64, 0_u64);
    let steps = LINE / FRAME;
    for step in 0..steps {
        while let Some((due, to, feedback)) = notices.front().copied()
            && due <= step
        {
            sources[to].0.on_feedback(&policy, feedback);
            notices.pop_front();
        }
        queue = queue.saturating_sub(FRAME);
        for (from, (limiter, sent)) in sources.iter_mut().enumerate() {
            // A frame is LINE units.
            *sent += limiter.rate().unwrap_or(LINE);
            if *sent < LINE {
                continue;
            }
            *sent -= LINE;
            queue = (queue + FRAME).min(LIMIT);
            frames += 1;
            if frames.is_multiple_of(101) {
                let tagged = limiter.rate().is_some();
                let feedback = point.sample(policy.equilibrium_bytes, queue as u32, tagged);
                notices.extend(feedback.map(|feedback| {
                    let offset_bytes = sign * feedback.offset_bytes;
                    (
                        step + 10,
                        from,
                        Feedback {
                            offset_bytes,
                            ..feedback
                        },
                    )
                }));
            }
        }
        if step >= steps / 2 {
            sum += queue;
        }
    }
    Ok(sum as f64 / (steps - steps / 2) as f64)
}

fn b7(_: &Bench) -> Judged {
    let (right, wrong) = (looped(1)? / QEQ, looped(-1)? / QEQ);
    let limit = 150_000.0 / QEQ;
    Ok(found(
        (0.5..1.5).contains(&right) && wrong > 0.9 * limit,
        [
            exact("mean queue / Qeq, Qoff = Qeq - q", right),
            exact("Qoff = q - Qeq (limit 6.25)", wrong),
        ],
    ))
}

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        id: "B1",
        kind: Kind::Seed,
        published: "BCN: long flows through one bottleneck use more than 90 % of it",
        band: "> 0.9, and a mean queue < 2 Qeq (PFC alone: a full link and a full switch), in each run",
        judge: b1,
    },
    Claim {
        id: "B2",
        kind: Kind::Seed,
        published: "BCN: the queue oscillates around Qeq, more with larger Gi, Gd or delay",
        band: "mean nearer to Qeq than the deviation over time; deviations above that at the usual gains, by more than 2 standard errors",
        judge: b2,
    },
    Claim {
        id: "B3",
        kind: Kind::Seed,
        published: "BCN: flows with equal round-trip times settle at equal rates",
        band: "Jain's index > 0.95, and a mean queue < 2 Qeq (PFC alone is fair, too), in each run",
        judge: b3,
    },
    Claim {
        id: "B4",
        kind: Kind::Public,
        published: "BCN: in a parking lot the long flow gets less than its max-min share (Jiang and Jain 2007)",
        band: "< 0.5 in each run, mean < 80 % of that with PFC only; both links used: mean > 0.9",
        judge: b4,
    },
    Claim {
        id: "B5",
        kind: Kind::Seed,
        published: "BCN: flows shorter than a control loop see no change of their rates",
        band: "short: exactly the time without control; long: at least 5 % more",
        judge: b5,
    },
    Claim {
        id: "B6",
        kind: Kind::Seed,
        published: "BCN: when the others stop, a flow is back at the link's rate, without a limiter",
        band: "> 0.999 of the link, 50 ms after the other ended, before < 0.99; its packets are not tagged",
        judge: b6,
    },
    Claim {
        id: "B7",
        kind: Kind::Derived,
        published: "BCN: with the wrong sign of Qoff the queue stays at its limit",
        band: "> 90 % of the limit; with the right one within 50 % of Qeq",
        judge: b7,
    },
];
