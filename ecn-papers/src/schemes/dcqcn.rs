//! Statements about DCQCN: public simulators (V1 to V3 in `docs/sources.md`), and what follows from the rules.

use ecn_core::tcd::Mark;
use ecn_sim::engine::{MS, NS, Time, US};
use ecn_sim::fabric::Kind as Fabric;
use ecn_sim::fabric::auto::Auto;
use ecn_sim::fabric::cc::dcqcn::{DcqcnFlow, DcqcnParameters, DcqcnRules, Red};
use ecn_sim::fabric::cc::{LastNotification, Sender as _};
use ecn_units::{DurationText, Rate, Size};
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::{
    Bench, Claim, ENDLESS, Judged, Settled, flow, highest, lowest, one_switch, over, scenario,
};
use crate::ReproduceError;
use crate::assertions::{Found, Kind, exact, found, named};

/// 40 Gb/s in bytes per second.
const LINE: u64 = 5_000_000_000;

/// The paper's set, for 40 Gb/s (V7; RHAI and Pmax from memory).
const PAPER: &[&str] = &[
    "dcqcn.kmin=5kB",
    "dcqcn.kmax=200kB",
    "dcqcn.pmax=1/100",
    "dcqcn.alpha_timer=55us",
    "dcqcn.rate_timer=55us",
    "dcqcn.byte_counter=10MB",
    "dcqcn.fast_steps=5",
    "dcqcn.rai=40mbit",
    "dcqcn.rhai=400mbit",
    "dcqcn.min_rate=100mbit",
];

/// The same, with another period of the increases.
fn rules(rate_timer: DurationText) -> Result<DcqcnRules, ReproduceError> {
    let of = |bytes| Auto::Is(Rate::from_bytes_per_s(bytes).unwrap_or(Rate::MAX));
    let parameters = DcqcnParameters {
        alpha_timer: DurationText::from_micros(55),
        rate_timer,
        byte_counter: Size::from_bytes(10_000_000),
        fast_steps: 5,
        rai: of(LINE / 1_000),
        rhai: of(LINE / 100),
        min_rate: of(LINE / 400),
        ..DcqcnParameters::default()
    };
    let line = Rate::from_bytes_per_s(LINE).unwrap_or(Rate::MAX);
    Ok(parameters.rules(line)?)
}

/// A flow's rate for its next packet.
fn rate(flow: &mut DcqcnFlow, rules: &DcqcnRules, now: Time) -> u64 {
    flow.on_send(rules, now, 0).unwrap_or(LINE)
}

fn d1(_: &Bench) -> Judged {
    const TRIALS: u32 = 200_000;
    let red = Red {
        kmin: 100_000,
        kmax: 400_000,
        pmax: (1 << 32) / 5,
    };
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let (mut below, mut worst, mut above) = (0.0_f64, 0.0_f64, 1.0_f64);
    for queued in (0..600_000_u32).step_by(10_000) {
        let marked = (0..TRIALS).filter(|_| red.marks(queued, || random.random()));
        let share = marked.count() as f64 / f64::from(TRIALS);
        if queued <= 100_000 {
            below = below.max(share);
        } else if queued > 400_000 {
            above = above.min(share);
        } else {
            let line = 0.2 * f64::from(queued - 100_000) / 300_000.0;
            worst = worst.max((share - line).abs());
        }
    }
    Ok(found(
        below == 0.0 && worst < 0.02 * 0.2 && above == 1.0,
        [
            exact("marked up to Kmin", below),
            exact("largest distance from the line, over Pmax", worst / 0.2),
            exact("marked above Kmax", above),
        ],
    ))
}

/// Two flows into one port that marks everything queued, whose rates stay at that of the port: notifications and marks
/// of the run, and the maximum number of notifications.
fn notifications(bench: &Bench) -> Result<[f64; 3], ReproduceError> {
    let own = [
        "hosts=3",
        "link_rate=40gbit",
        "scheme=dcqcn",
        "dcqcn.kmin=0B",
        "dcqcn.kmax=0B",
        "dcqcn.min_rate=20gbit",
    ];
    let flows = (0..2).map(|from| flow(0, from, 2, 5_000_000));
    let counts = bench.run(&one_switch(&own, flows.collect())?, 1)?;
    // Each packet has an ACK over the same distance; all other packets are notifications, over two links, if nothing
    // was paused.
    let rest = counts.packet_hops - 2 * counts.data_packet_hops;
    let most = counts.finished.iter().map(|flow| flow.time / (50 * US) + 1);
    let is_clear = counts.pause_frames == 0 && counts.finished.len() == 2;
    let sent = if is_clear {
        rest as f64 / 2.0
    } else {
        f64::NAN
    };
    let most = most.sum::<Time>() as f64;
    Ok([sent, counts.marked_packets as f64, most])
}

fn d2(bench: &Bench) -> Judged {
    let [notified, marked, most] = notifications(bench)?;
    let rules = rules(DurationText::from_micros(55))?;
    let mut sent: Vec<Time> = Vec::new();
    let mut told = LastNotification::default();
    // 100,000 marked packets, 217 ns apart: 1,000 bytes at 37 Gb/s.
    for now in (0..100_000).map(|packet| packet * 217 * NS) {
        if rules.on_mark(&mut told, now, Mark::Congestion) {
            sent.push(now);
        }
    }
    let gaps = sent.windows(2).map(|pair| pair[1] - pair[0]);
    let least = gaps.min().unwrap_or_default();
    Ok(found(
        sent.first() == Some(&0)
            && least >= 50 * US
            && (2.0..=most).contains(&notified)
            && marked > 10.0 * most,
        [
            exact(
                "notifications for 100,000 marked packets in 21.7 ms",
                sent.len() as f64,
            ),
            exact("shortest time between two, us", least as f64 / US as f64),
            exact("two flows of 5 MB: marked packets", marked),
            exact(format!("notifications (at most {most})"), notified),
        ],
    ))
}

fn d3(_: &Bench) -> Judged {
    Ok(recovery(&rules(DurationText::from_micros(55))?))
}

fn recovery(rules: &DcqcnRules) -> Found {
    let mut flow = DcqcnFlow::new(rules);
    flow.on_notification(rules, 0);
    let mut found = Found::default();
    for (step, mbit) in (0..).zip([20_000_u64, 30_000, 35_000, 37_500, 38_750, 39_375]) {
        let now = rate(&mut flow, rules, step * 55 * US);
        found.require(now == mbit * 125_000);
        found.value(format!("Gb/s after {step} steps"), now as f64 * 8e-9);
    }
    found
}

/// Alpha shows in the next cut, which is half of it. Increases are a second away.
fn d4(_: &Bench) -> Judged {
    let rules = rules(DurationText::from_secs(1))?;
    let alpha_after = |periods: u64| {
        let mut flow = DcqcnFlow::new(&rules);
        flow.on_notification(&rules, 0);
        let now = periods * 55 * US;
        let before = rate(&mut flow, &rules, now);
        flow.on_notification(&rules, now);
        2.0 * (1.0 - rate(&mut flow, &rules, now) as f64 / before as f64)
    };
    let mut worst = 0.0_f64;
    for periods in 0..=1_000 {
        let expected = (255.0_f64 / 256.0).powi(periods as i32);
        worst = worst.max((alpha_after(periods) - expected).abs());
    }
    Ok(found(
        worst < 1e-6,
        [
            exact("alpha after 177 periods", alpha_after(177)),
            exact("largest distance from (255/256)^n, n <= 1000", worst),
        ],
    ))
}

fn d5(_: &Bench) -> Judged {
    let rules = rules(DurationText::from_micros(55))?;
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let (mut fell, mut out_of_order, mut cuts) = (0_u32, 0_u32, 0_u32);
    let steps = 200_000;
    let (mut flow, mut now) = (DcqcnFlow::new(&rules), 0);
    for _ in 0..steps {
        now += random.random_range(0..200) * US;
        let before = rate(&mut flow, &rules, now);
        if random.random_ratio(1, 20) {
            flow.on_notification(&rules, now);
            cuts += u32::from(rate(&mut flow, &rules, now) < before);
        } else {
            flow.on_send(&rules, now, random.random_range(0..5_000_000));
            fell += u32::from(rate(&mut flow, &rules, now) < before);
        }
        let ordered = rate(&mut flow, &rules, now) <= flow.target() && flow.target() <= LINE;
        out_of_order += u32::from(!ordered);
    }
    Ok(found(
        fell == 0 && out_of_order == 0 && cuts > 0,
        [
            exact("decreases by notifications", cuts),
            exact("others", fell),
            exact("steps with RC > RT or RT > line rate", out_of_order),
        ],
    ))
}

/// Two to one at 40 Gb/s with the paper's set, which is for that rate, from 20 ms on. The defaults, V2's, need longer
/// to be as fair: from 40 to 100 ms one flow has a share of 0.43 to 0.54, by the seed.
fn incast(bench: &Bench, limit: &str) -> Result<Vec<(Settled, u64)>, ReproduceError> {
    let own = ["hosts=3", "link_rate=40gbit", limit, "scheme=dcqcn"];
    let flows = vec![flow(0, 0, 2, ENDLESS), flow(0, 1, 2, ENDLESS)];
    let scenario = one_switch(&[&own[..], PAPER].concat(), flows)?;
    let run = |seed| -> Result<(Settled, u64), ReproduceError> {
        let counts = bench.run(&scenario, seed)?;
        Ok((Settled::of(&counts, 20 * MS, 2, 2), counts.dropped_packets))
    };
    bench.seeds().map(run).collect()
}

/// Of [`PAPER`], kB.
const KMAX: f64 = 200.0;

/// kB.
fn mean_queue((run, _): &(Settled, u64)) -> f64 {
    run.queue().mean / 1e3
}

fn d6(bench: &Bench) -> Judged {
    // The shares drift: within 40 ms, one flow has 0.41 to 0.58, depending on the seed.
    let runs = incast(bench, "limit=320ms")?;
    // Payload rate of 40 Gb/s in frames of 1,062 bytes.
    let line = LINE as f64 * 1_000.0 / 1_062.0;
    let share = |flow: usize| move |(run, _): &(Settled, u64)| run.rates[flow] / line;
    let both = |run: &(Settled, u64)| share(0)(run) + share(1)(run);
    let dropped: u64 = runs.iter().map(|(_, dropped)| dropped).sum();
    let fair = [0, 1]
        .iter()
        .all(|flow| lowest(&runs, share(*flow)) > 0.45 && highest(&runs, share(*flow)) < 0.55);
    Ok(found(
        fair && lowest(&runs, both) > 0.9 && dropped == 0 && highest(&runs, mean_queue) < KMAX,
        [
            named("share of one flow", &over(&runs, share(0))),
            named("of the other", &over(&runs, share(1))),
            named("utilisation", &over(&runs, both)),
            named("mean queue, kB", &over(&runs, mean_queue)),
            exact("packets dropped", dropped as f64),
        ],
    ))
}

fn d7(bench: &Bench) -> Judged {
    let runs = incast(bench, "limit=60ms")?;
    let most = |(run, _): &(Settled, u64)| highest(&run.queues, |bytes| bytes / 1e3);
    let mut found = Found::default();
    found.sample("mean queue, kB (Kmax: 200)", &over(&runs, mean_queue));
    found.sample("longest, kB", &over(&runs, most));
    Ok(found.reported())
}

/// TCD's chain at 40 Gb/s: S0 sends 8 Gb/s to R0, S1 optionally as much to R1, which also receives this many bursts.
/// Marks on the packets of S0, whose path never has a load above 16 Gb/s.
fn victim(
    bench: &Bench,
    settings: &[&str],
    from_s1: bool,
    bursts: u32,
) -> Result<f64, ReproduceError> {
    let own = [
        "link_rate=40gbit",
        "limit=4ms",
        "thresholds=static",
        "scheme=dcqcn",
    ];
    let steady = |from, to| (0..100).map(move |n| flow(n * 20 * US, from, to, 20_000));
    let mut flows: Vec<_> = steady(0, 2).collect();
    if from_s1 {
        flows.extend(steady(1, 3));
    }
    flows.extend((0..bursts).map(|burst| flow(200 * US, 4 + burst, 3, 500_000)));
    let scenario = scenario(Fabric::Chain, &[&own[..], settings].concat(), flows)?;
    let counts = bench.run(&scenario, 1)?;
    let all = counts.finished.iter().chain(&counts.unfinished);
    let victims = all.filter(|flow| flow.from == 0);
    Ok(victims.map(|flow| f64::from(flow.marked)).sum())
}

/// The HPCC artifact's thresholds for 40 Gb/s (V2): longer than the queues that a few flows build up by chance.
pub(super) const V2: &[&str] = &["dcqcn.kmin=160kB", "dcqcn.kmax=640kB"];

fn d8(bench: &Bench) -> Judged {
    let marks = |from_s1, bursts| victim(bench, V2, from_s1, bursts);
    let (both, idle, alone) = (marks(true, 15)?, marks(true, 0)?, marks(false, 15)?);
    Ok(found(
        both > 0.0 && idle == 0.0 && alone == 0.0,
        [
            exact("marked packets of the victim, of 2000", both),
            exact("without the bursts", idle),
            exact("without the flow that spreads the pauses", alone),
        ],
    ))
}

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        id: "D1",
        kind: Kind::Public,
        published: "DCQCN marks nothing up to Kmin, along a line up to Pmax at Kmax, everything above",
        band: "0, within 2 % of Pmax, 1",
        judge: d1,
    },
    Claim {
        id: "D2",
        kind: Kind::Public,
        published: "DCQCN: at most one CNP per flow in 50 us",
        band: ">= 50 us, the first at once; in a run no more than its flows' times allow",
        judge: d2,
    },
    Claim {
        id: "D3",
        kind: Kind::Derived,
        published: "DCQCN: from 40 Gb/s a CNP halves, then 30, 35, 37.5, 38.75, 39.375 Gb/s",
        band: "exact",
        judge: d3,
    },
    Claim {
        id: "D4",
        kind: Kind::Derived,
        published: "DCQCN: alpha decays as (255/256)^n",
        band: "within 1e-6",
        judge: d4,
    },
    Claim {
        id: "D5",
        kind: Kind::Derived,
        published: "DCQCN: without a CNP the rate never falls; RC <= RT <= line rate",
        band: "none of 200,000 random steps",
        judge: d5,
    },
    Claim {
        id: "D6",
        kind: Kind::Derived,
        published: "DCQCN, 2 to 1 at 40 Gb/s with PFC: both flows near 20 Gb/s, link used, nothing lost",
        band: "0.45 to 0.55 each, > 0.9, no loss, mean queue < Kmax (PFC alone is fair, too), in each run",
        judge: d6,
    },
    Claim {
        id: "D7",
        kind: Kind::Memory,
        published: "DCQCN with the paper's parameters: the 2:1 queue settles well below Kmax (tens of kB)",
        band: "",
        judge: d7,
    },
    Claim {
        id: "D8",
        kind: Kind::Seed,
        published: "DCQCN marks a victim that crosses paused ports, on an uncongested path (TCD's chain)",
        band: "some; none without the bursts, or without the flow that spreads the pauses",
        judge: d8,
    },
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::assertions::Verdict;

    #[test]
    fn a_later_recovery_is_noticed() {
        let with = |us| recovery(&rules(DurationText::from_micros(us)).unwrap());
        assert_eq!(with(55).verdict, Verdict::Holds);
        assert_eq!(with(60).verdict, Verdict::DoesNotHold);
    }

    /// If everything queued is marked, a path with a load of 16 Gb/s is no longer free of marks.
    #[test]
    fn a_victim_that_is_marked_anyway_is_noticed() {
        let marks = |settings: &[&str]| victim(&Bench::new(1), settings, true, 0).unwrap();
        assert_eq!(marks(V2), 0.0);
        assert!(marks(&["dcqcn.kmin=0B", "dcqcn.kmax=0B"]) > 0.0);
    }
}
