//! Statements about DCQCN: public simulators (V1 to V3 in `docs/sources.md`), and what follows from the rules.

use ecn_core::tcd::Mark;
use ecn_sim::engine::{MS, NS, Time, US};
use ecn_sim::fabric::Kind as Fabric;
use ecn_sim::fabric::cc::dcqcn::{DcqcnFlow, DcqcnRules, Red};
use ecn_sim::fabric::cc::{LastNotification, Sender as _};
use ecn_units::Rate;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::{
    Bench, Claim, ENDLESS, Judged, Settled, flow, highest, lowest, one_switch, over, parameters,
    scenario,
};
use crate::ReproduceError;
use crate::statement::{Found, Kind, Verdict};

/// 40 Gb/s in bytes per second.
const LINE: u64 = 5_000_000_000;

/// The paper's set, for 40 Gb/s (V7; RHAI and Pmax from memory).
const PAPER: &str = "dcqcn.kmin=5kB dcqcn.kmax=200kB dcqcn.pmax=1/100 dcqcn.alpha_timer=55us \
    dcqcn.rate_timer=55us dcqcn.byte_counter=10MB dcqcn.fast_steps=5 dcqcn.rai=40mbit \
    dcqcn.rhai=400mbit dcqcn.min_rate=100mbit";

/// Of [`PAPER`], with changes.
fn rules(settings: &str) -> Result<DcqcnRules, ReproduceError> {
    let line = Rate::from_bytes_per_s(LINE).unwrap_or(Rate::MAX);
    Ok(parameters(&format!("{PAPER} {settings}"))?
        .dcqcn
        .rules(line)?)
}

/// A flow's rate for its next packet.
fn rate(flow: &mut DcqcnFlow, rules: &DcqcnRules, now: Time) -> u64 {
    flow.on_send(rules, now, 0).unwrap_or(LINE)
}

fn d1(_: &Bench, found: &mut Found) -> Judged {
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
    found.require(below == 0.0 && worst < 0.02 * 0.2 && above == 1.0);
    found.value("marked up to Kmin", below);
    found.value("largest distance from the line, over Pmax", worst / 0.2);
    found.value("marked above Kmax", above);
    Ok(())
}

/// Two flows into one port that marks everything queued, whose rates stay at that of the port: notifications and marks
/// of the run, and the maximum number of notifications.
fn notifications(bench: &Bench) -> Result<[f64; 3], ReproduceError> {
    let settings =
        "hosts=3 link_rate=40gbit scheme=dcqcn dcqcn.kmin=0B dcqcn.kmax=0B dcqcn.min_rate=20gbit";
    let flows = (0..2).map(|from| flow(0, from, 2, 5_000_000));
    let counts = bench.run(&one_switch(settings, flows)?, 1)?;
    // Each packet has an ACK over the same distance; all other packets are notifications, over two links, if nothing
    // was paused.
    let rest = counts.packet_hops - 2 * counts.data_packet_hops;
    let is_clear = counts.pause_frames == 0 && counts.finished.len() == 2;
    let sent = if is_clear {
        rest as f64 / 2.0
    } else {
        f64::NAN
    };
    let most = counts.finished.iter().map(|flow| flow.time / (50 * US) + 1);
    let most = most.sum::<Time>() as f64;
    Ok([sent, counts.marked_packets as f64, most])
}

fn d2(bench: &Bench, found: &mut Found) -> Judged {
    let [notified, marked, most] = notifications(bench)?;
    let rules = rules("")?;
    let mut last = LastNotification::default();
    // 100,000 marked packets, 217 ns apart: 1,000 bytes at 37 Gb/s.
    let sent: Vec<Time> = (0..100_000)
        .map(|packet| packet * 217 * NS)
        .filter(|now| rules.on_mark(&mut last, *now, Mark::Congestion))
        .collect();
    let gaps = sent.windows(2).map(|pair| pair[1] - pair[0]);
    let least = gaps.min().unwrap_or_default();
    found.require(sent.first() == Some(&0) && least >= 50 * US);
    found.require((2.0..=most).contains(&notified) && marked > 10.0 * most);
    let name = "notifications for 100,000 marked packets in 21.7 ms";
    found.value(name, sent.len() as f64);
    found.value("shortest time between two, us", least as f64 / US as f64);
    found.value("two flows of 5 MB: marked packets", marked);
    found.value(format!("notifications (at most {most})"), notified);
    Ok(())
}

/// D3.
fn recovery(rules: &DcqcnRules, found: &mut Found) -> Judged {
    let mut flow = DcqcnFlow::new(rules);
    flow.on_notification(rules, 0);
    for (step, mbit) in (0..).zip([20_000_u64, 30_000, 35_000, 37_500, 38_750, 39_375]) {
        let now = rate(&mut flow, rules, step * 55 * US);
        found.require(now == mbit * 125_000);
        found.value(format!("Gb/s after {step} steps"), now as f64 * 8e-9);
    }
    Ok(())
}

/// Alpha shows in the next cut, which is half of it. Increases are a second away.
fn d4(_: &Bench, found: &mut Found) -> Judged {
    let rules = rules("dcqcn.rate_timer=1s")?;
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
    found.require(worst < 1e-6);
    found.value("alpha after 177 periods", alpha_after(177));
    found.value("largest distance from (255/256)^n, n <= 1000", worst);
    Ok(())
}

fn d5(_: &Bench, found: &mut Found) -> Judged {
    let rules = rules("")?;
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let (mut fell, mut out_of_order, mut cuts) = (0_u32, 0_u32, 0_u32);
    let (mut flow, mut now) = (DcqcnFlow::new(&rules), 0);
    for _ in 0..200_000 {
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
    found.require(fell == 0 && out_of_order == 0 && cuts > 0);
    found.value("decreases by notifications", cuts);
    found.value("others", fell);
    found.value("steps with RC > RT or RT > line rate", out_of_order);
    Ok(())
}

/// Two to one at 40 Gb/s with the paper's set, which is for that rate, from 20 ms on. The defaults, V2's, need longer
/// to be as fair: from 40 to 100 ms one flow has a share of 0.43 to 0.54, by the seed.
fn two_to_one(bench: &Bench, limit: &str) -> Result<Vec<Settled>, ReproduceError> {
    let settings = format!("hosts=3 link_rate=40gbit {limit} scheme=dcqcn {PAPER}");
    let flows = [0, 1].map(|from| flow(0, from, 2, ENDLESS));
    bench.settled(&one_switch(&settings, flows)?, 20 * MS, 2)
}

/// Of [`PAPER`], kB.
const KMAX: f64 = 200.0;

fn mean_queue_kb(run: &Settled) -> f64 {
    run.queue().mean / 1e3
}

fn d6(bench: &Bench, found: &mut Found) -> Judged {
    // The shares drift: within 40 ms, one flow has 0.41 to 0.58, depending on the seed.
    let runs = two_to_one(bench, "limit=320ms")?;
    // Payload rate of 40 Gb/s in frames of 1,062 bytes.
    let line = LINE as f64 * 1_000.0 / 1_062.0;
    let share = |flow: usize| move |run: &Settled| run.rates[flow] / line;
    let both = |run: &Settled| share(0)(run) + share(1)(run);
    let dropped: u64 = runs.iter().map(|run| run.dropped_packets).sum();
    for flow in [0, 1] {
        found.require(lowest(&runs, share(flow)) > 0.45 && highest(&runs, share(flow)) < 0.55);
    }
    found.require(lowest(&runs, both) > 0.9 && dropped == 0);
    found.require(highest(&runs, mean_queue_kb) < KMAX);
    found.sample("share of one flow", &over(&runs, share(0)));
    found.sample("of the other", &over(&runs, share(1)));
    found.sample("utilisation", &over(&runs, both));
    found.sample("mean queue, kB", &over(&runs, mean_queue_kb));
    found.value("packets dropped", dropped as f64);
    Ok(())
}

fn d7(bench: &Bench, found: &mut Found) -> Judged {
    let runs = two_to_one(bench, "limit=60ms")?;
    let longest = |run: &Settled| highest(&run.queues, |bytes| bytes / 1e3);
    let name = "mean queue, kB (Kmax: 200)";
    found.sample(name, &over(&runs, mean_queue_kb));
    found.sample("longest, kB", &over(&runs, longest));
    found.verdict = Verdict::Reported;
    Ok(())
}

/// TCD's chain at 40 Gb/s: S0 sends 8 Gb/s to R0, S1 optionally as much to R1, which also receives this many bursts.
/// Marks on the packets of S0, whose path never has a load above 16 Gb/s.
fn victim(
    bench: &Bench,
    settings: &str,
    from_s1: bool,
    bursts: u32,
) -> Result<f64, ReproduceError> {
    let settings = format!("link_rate=40gbit limit=4ms thresholds=static scheme=dcqcn {settings}");
    let steady = |from, to| (0..100).map(move |n| flow(n * 20 * US, from, to, 20_000));
    let other = from_s1.then(|| steady(1, 3)).into_iter().flatten();
    let bursts = (0..bursts).map(|burst| flow(200 * US, 4 + burst, 3, 500_000));
    let flows = steady(0, 2).chain(other).chain(bursts);
    let counts = bench.run(&scenario(Fabric::Chain, &settings, flows)?, 1)?;
    let all = counts.finished.iter().chain(&counts.unfinished);
    let victims = all.filter(|flow| flow.from == 0);
    Ok(victims.map(|flow| f64::from(flow.marked)).sum())
}

/// The HPCC artifact's thresholds for 40 Gb/s (V2): longer than the queues that a few flows build up by chance.
pub(super) const V2: &str = "dcqcn.kmin=160kB dcqcn.kmax=640kB";

fn d8(bench: &Bench, found: &mut Found) -> Judged {
    let marks = |from_s1, bursts| victim(bench, V2, from_s1, bursts);
    let (both, idle, alone) = (marks(true, 15)?, marks(true, 0)?, marks(false, 15)?);
    found.require(both > 0.0 && idle == 0.0 && alone == 0.0);
    found.value("marked packets of the victim, of 2000", both);
    found.value("without the bursts", idle);
    found.value("without the flow that spreads the pauses", alone);
    Ok(())
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
        judge: |_, found| recovery(&rules("")?, found),
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

    #[test]
    fn a_later_recovery_is_noticed() {
        for (us, verdict) in [(55, Verdict::Holds), (60, Verdict::DoesNotHold)] {
            let rules = rules(&format!("dcqcn.rate_timer={us}us")).unwrap();
            let mut found = Found::default();
            recovery(&rules, &mut found).unwrap();
            assert_eq!(found.verdict, verdict);
        }
    }

    /// If everything queued is marked, a path with a load of 16 Gb/s is no longer free of marks.
    #[test]
    fn a_victim_that_is_marked_anyway_is_noticed() {
        let marks = |settings| victim(&Bench::new(1), settings, true, 0).unwrap();
        assert_eq!(marks(V2), 0.0);
        assert!(marks("dcqcn.kmin=0B dcqcn.kmax=0B") > 0.0);
    }
}
