//! Statements about BCN: Barrass 2006 (S), which gives no numbers; the gains are from memory.
//!
//! The lowest rate is ours too. Flows start at once, so that most fall to it; at a rate unit, 8 Mb/s, one in
//! 100 packets is 7 notifications per second, and equal rates take a second and more. Here it is 100 Mb/s.

use std::collections::VecDeque;

use ecn_core::bcn::{CongestionPoint, Feedback, Gains, Limiter, Policy};
use ecn_report::statistics::Sample;
use ecn_sim::ModelError;
use ecn_sim::engine::MS;
use ecn_sim::fabric::Kind as Fabric;
use ecn_sim::fabric::cc::bcn::{BcnParameters, BcnRules, Hosts, UNTAGGED};
use ecn_sim::fabric::cc::{Cnm, Endpoints, Sender as _};
use ecn_units::Rate;

use super::{
    BOTTLENECK, Bench, Claim, ENDLESS, Judged, Settled, bottleneck, flow, highest, lowest,
    one_switch, over, scenario,
};
use crate::ReproduceError;
use crate::statement::{Found, Kind};

/// Qeq at 10 Gb/s: 16 frames.
const QEQ: f64 = 24_000.0;
/// Of the runs and loops here, bytes per second.
const LINE: u64 = 1_250_000_000;
const SCHEME: &str = "scheme=bcn bcn.min_rate=100mbit";

fn runs(bench: &Bench, flows: u32, settings: &str) -> Result<Vec<Settled>, ReproduceError> {
    let scenario = bottleneck(flows, &format!("{SCHEME} {settings}"))?;
    bench.settled(&scenario, 100 * MS, flows)
}

/// Mean queue / Qeq.
fn queue(run: &Settled) -> f64 {
    run.queue().mean / QEQ
}

/// PFC alone also fills the link and shares it equally, but with a queue as long as the switch permits.
fn is_short(runs: &[Settled]) -> bool {
    highest(runs, queue) < 2.0
}

fn b1(bench: &Bench, found: &mut Found) -> Judged {
    for flows in [2, 10] {
        let runs = runs(bench, flows, "limit=130ms")?;
        found.require(lowest(&runs, Settled::utilisation) > 0.9 && is_short(&runs));
        let name = format!("utilisation, {flows} flows");
        found.sample(name, &over(&runs, Settled::utilisation));
        found.sample("mean queue / Qeq", &over(&runs, queue));
    }
    Ok(())
}

/// A queue in a run, over Qeq.
#[derive(Clone, Copy)]
pub(crate) struct Oscillation {
    /// Its mean over time.
    pub mean: f64,
    /// Its deviation over time.
    pub deviation: f64,
    /// Fraction of the time in which it is longer than Qeq.
    pub above: f64,
}

impl Oscillation {
    fn of(run: &Settled) -> Self {
        let over_time = run.queue();
        let above = |queue: &f64| f64::from(u8::from(*queue > QEQ));
        Self {
            mean: over_time.mean / QEQ,
            deviation: over_time.sd / QEQ,
            above: over(&run.queues, above).mean,
        }
    }
}

fn b2(bench: &Bench, found: &mut Found) -> Judged {
    let oscillations = |settings: &str| -> Result<Vec<Oscillation>, ReproduceError> {
        let runs = runs(bench, 10, &format!("limit=250ms {settings}"))?;
        Ok(runs.iter().map(Oscillation::of).collect())
    };
    let others = [
        ("Gi x 4", oscillations("bcn.gi=16")?),
        ("Gd x 4", oscillations("bcn.gd=1/32")?),
        ("links of 50 us", oscillations("link_delay=50us")?),
    ];
    judge_oscillations(&oscillations("")?, &others, found);
    Ok(())
}

/// B2: judges runs with the usual gains, and those in which the queue must oscillate more.
pub(crate) fn judge_oscillations(
    usual: &[Oscillation],
    others: &[(&str, Vec<Oscillation>)],
    found: &mut Found,
) {
    let deviation = |runs: &[Oscillation]| over(runs, |run| run.deviation);
    let mean = over(usual, |run| run.mean);
    let usual_deviation = deviation(usual);
    found.require((mean.mean - 1.0).abs() < usual_deviation.mean);
    found.sample("mean queue / Qeq", &mean);
    let above = over(usual, |run| run.above);
    found.sample("part of the time above Qeq", &above);
    found.sample("deviation / Qeq", &usual_deviation);
    for (name, runs) in others {
        let deviation = deviation(runs);
        found.require(deviation.is_above(&usual_deviation));
        found.sample(format!("deviation / Qeq, {name}"), &deviation);
    }
}

fn b3(bench: &Bench, found: &mut Found) -> Judged {
    // In 30 runs each, the minimum fairness was 0.960; half the time is too short for some.
    for (flows, limit) in [(2, "limit=600ms"), (10, "limit=1000ms")] {
        let runs = runs(bench, flows, limit)?;
        found.require(lowest(&runs, Settled::jain) > 0.95 && is_short(&runs));
        let name = format!("Jain's index, {flows} flows");
        found.sample(name, &over(&runs, Settled::jain));
        found.sample("mean queue / Qeq", &over(&runs, queue));
    }
    Ok(())
}

/// Three switches in a row: a flow across both links, and one across each.
fn b4(bench: &Bench, found: &mut Found) -> Judged {
    let run = |settings: &str, seed| -> Result<Settled, ReproduceError> {
        let settings =
            format!("hosts=6 switches=3 payload=1438 link_rate=10gbit limit=300ms {settings}");
        let flows = [(0, 5), (1, 2), (3, 4)].map(|(from, to)| flow(0, from, to, ENDLESS));
        let scenario = scenario(Fabric::ParkingLot, &settings, flows)?;
        Ok(Settled::of(&bench.run(&scenario, seed)?, 100 * MS, 3, 0))
    };
    let runs = bench.seeds().map(|seed| run(SCHEME, seed));
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let share = |flow: usize| move |run: &Settled| run.rates[flow] / BOTTLENECK;
    let [long, first, second] = [0, 1, 2].map(|flow| over(&runs, share(flow)));
    // A flow that does not recover also gets less, but then no other flow gets the rest.
    let used = (2.0 * long.mean + first.mean + second.mean) / 2.0;
    // Deterministic: a single run suffices.
    let alone = share(0)(&run("scheme=none limit=150ms", 1)?);
    let is_less = highest(&runs, share(0)) < 0.5 && long.mean < 0.8 * alone;
    found.require(is_less && used > 0.9);
    found.sample("share of the long flow (max-min: 0.5)", &long);
    found.sample("of that on the first link", &first);
    found.sample("of that on the second", &second);
    found.value("use of both links", used);
    found.value("share of the long flow with PFC only", alone);
    Ok(())
}

/// Two flows of this many frames at once, over links of 8 us: from sender to switch and back takes 16 us. The switch
/// notifies as often as possible. Completion times relative to those without control.
fn with_and_without(bench: &Bench, frames: u64) -> Result<f64, ReproduceError> {
    let time = |scheme: &str| -> Result<f64, ReproduceError> {
        let settings = format!("hosts=3 payload=1438 link_rate=10gbit link_delay=8us {scheme}");
        let flows = (0..2).map(|from| flow(0, from, 2, frames * 1_438));
        let times = bench.run(&one_switch(&settings, flows)?, 1)?.finished;
        Ok(times.iter().map(|flow| flow.time as f64).sum())
    };
    Ok(time("scheme=bcn bcn.pm=1 bcn.qeq=1500B")? / time("")?)
}

fn b5(bench: &Bench, found: &mut Found) -> Judged {
    let short = with_and_without(bench, 10)?;
    let long = with_and_without(bench, 200)?;
    found.require(short == 1.0 && long > 1.05);
    let name = "completion, 10 frames (12 us), over that without BCN";
    found.value(name, short);
    found.value("200 frames (240 us)", long);
    Ok(())
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
    let mut tag_after = |offset_bytes| {
        let feedback = Feedback {
            offset_bytes,
            delta_bytes: 0,
        }
        .to_word();
        hosts.on_feedback(&mut (), 0, endpoints, Cnm { point: 9, feedback });
        hosts.tag(endpoints)
    };
    let mut tag = tag_after(-24_000);
    for _ in 0..positive {
        tag = tag_after(24_000);
    }
    Ok(tag != Some(UNTAGGED))
}

fn b6(bench: &Bench, found: &mut Found) -> Judged {
    let settings = format!("hosts=3 payload=1438 link_rate=10gbit limit=250ms {SCHEME}");
    let flows = [flow(0, 0, 2, ENDLESS), flow(0, 1, 2, 30_000_000)];
    let scenario = one_switch(&settings, flows)?;
    let (mut during, mut after, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for seed in bench.seeds() {
        let counts = bench.run(&scenario, seed)?;
        let end = counts.last_end;
        during.push(counts.series.as_ref().map_or(f64::NAN, |series| {
            let points = &series.points[..(end / series.step) as usize];
            let bytes: u64 = points.iter().map(|point| point.flows[0]).sum();
            bytes as f64 / (end as f64 / (1e3 * MS as f64)) / BOTTLENECK
        }));
        after.push(Settled::of(&counts, end + 50 * MS, 1, 0).utilisation());
        ends.push(end as f64 / MS as f64);
    }
    found.require(after.iter().all(|share| *share > 0.999));
    found.require(during.iter().all(|share| *share < 0.99));
    found.sample("the other is finished, ms", &Sample::of(ends));
    found.sample("share of the link until then", &Sample::of(during));
    found.sample("from 50 ms later on", &Sample::of(after));
    let (limited, unlimited) = (tagged_after(0)?, !tagged_after(1_000)?);
    found.require(limited && unlimited);
    let name = "tagged at the link's rate (0: no limiter)";
    found.value(name, u8::from(!unlimited));
    Ok(())
}

/// What a source of a [`Loop`] ignores if it is about a frame that was sent before the source's last decrease.
#[derive(Clone, Copy)]
enum Stamps {
    Nothing,
    Increases,
    Decreases,
}

/// A source of a [`Loop`].
#[derive(Clone, Copy, Default)]
struct Source {
    limiter: Limiter,
    /// A frame takes [`LINE`].
    credit: u64,
    /// Step of its last decrease.
    lowered: u64,
}

impl Source {
    /// Handles a notification about a frame that was sent at step `sent`.
    fn on_notification(
        &mut self,
        policy: &Policy,
        stamps: Stamps,
        now: u64,
        sent: u64,
        feedback: Feedback,
    ) {
        let falls = feedback.value(policy.weight) < 0;
        let ignored = match stamps {
            Stamps::Nothing => false,
            Stamps::Increases => !falls,
            Stamps::Decreases => falls,
        };
        if ignored && sent < self.lowered {
            return;
        }
        self.limiter.on_feedback(policy, feedback);
        if falls {
            self.lowered = now;
        }
    }
}

/// A control loop: ten sources, one link and a queue of at most 100 frames.
#[derive(Clone, Copy)]
struct Loop {
    /// Of Qoff as published; -1 is the wrong one.
    sign: i32,
    /// Time that a notification takes, in frames on the link.
    delay: u64,
    /// What sources use the time stamps of notifications for.
    stamps: Stamps,
}

impl Loop {
    /// Mean of the queue in the second half of a second, in steps of a frame on the link, over Qeq.
    fn mean_queue(self) -> Result<f64, ReproduceError> {
        const FRAME: u64 = 1_500;
        const LIMIT: u64 = 100 * FRAME;
        let gains = Gains {
            min_bytes_per_s: LINE / 100,
            ..Gains::defaults(LINE)
        };
        let policy =
            Policy::new(&gains).map_err(|error| ModelError::new("bcn", LINE, error.to_string()))?;
        let mut point = CongestionPoint::default();
        let mut sources = [Source::default(); 10];
        let mut notifications: VecDeque<(u64, usize, Feedback)> = VecDeque::new();
        let (mut queue, mut frames, mut sum) = (0_u64, 0_u64, 0_u64);
        let steps = LINE / FRAME;
        for step in 0..steps {
            while let Some((sent, to, feedback)) = notifications.front().copied()
                && sent + self.delay <= step
            {
                notifications.pop_front();
                sources[to].on_notification(&policy, self.stamps, step, sent, feedback);
            }
            queue = queue.saturating_sub(FRAME);
            for (from, source) in sources.iter_mut().enumerate() {
                source.credit += source.limiter.rate().unwrap_or(LINE);
                if source.credit < LINE {
                    continue;
                }
                source.credit -= LINE;
                queue = (queue + FRAME).min(LIMIT);
                frames += 1;
                if frames.is_multiple_of(101) {
                    let tagged = source.limiter.rate().is_some();
                    let feedback = point.sample(policy.equilibrium_bytes, queue as u32, tagged);
                    if let Some(mut feedback) = feedback {
                        feedback.offset_bytes *= self.sign;
                        notifications.push_back((step, from, feedback));
                    }
                }
            }
            if step >= steps / 2 {
                sum += queue;
            }
        }
        Ok(sum as f64 / (steps - steps / 2) as f64 / QEQ)
    }
}

fn b7(_: &Bench, found: &mut Found) -> Judged {
    let queue = |sign| {
        let near = Loop {
            sign,
            delay: 10,
            stamps: Stamps::Nothing,
        };
        near.mean_queue()
    };
    let (right, wrong) = (queue(1)?, queue(-1)?);
    let limit = 150_000.0 / QEQ;
    found.require((0.5..1.5).contains(&right) && wrong > 0.9 * limit);
    found.value("mean queue / Qeq, Qoff = Qeq - q", right);
    found.value("Qoff = q - Qeq (limit 6.25)", wrong);
    Ok(())
}

/// A parking lot in which three hosts, one per switch, send to a host at the last one, and a victim sends over the first
/// link only. With BCN in some switches: the shares of the three and of the victim, after 100 ms.
fn mixed(bench: &Bench, settings: &str, seed: u64) -> Result<Settled, ReproduceError> {
    let settings =
        format!("hosts=6 switches=3 payload=1438 link_rate=10gbit limit=300ms {settings}");
    let flows = [(0, 5), (2, 5), (4, 5), (1, 3)].map(|(from, to)| flow(0, from, to, ENDLESS));
    let scenario = scenario(Fabric::ParkingLot, &settings, flows)?;
    Ok(Settled::of(&bench.run(&scenario, seed)?, 100 * MS, 4, 0))
}

fn b8(bench: &Bench, found: &mut Found) -> Judged {
    let share = |flow: usize| move |run: &Settled| run.rates[flow] / BOTTLENECK;
    let [first, second, victim] = [share(0), share(1), share(3)];
    // Deterministic: a single run suffices.
    let before = victim(&mixed(bench, "scheme=none", 1)?);
    found.value("share of the victim, PFC only", before);
    for new in ["s0", "s1", "s2", "s0,s1,s2"] {
        let run = |seed| mixed(bench, &format!("{SCHEME} mark_in={new}"), seed);
        let runs = bench.seeds().map(run).collect::<Result<Vec<_>, _>>()?;
        found.require(lowest(&runs, victim) > 2.0 * before);
        found.sample(format!("BCN in {new}"), &over(&runs, victim));
        if new == "s0" {
            found.require(highest(&runs, |run| first(run) / second(run)) < 0.5);
            found.sample("flow from that switch", &over(&runs, first));
            found.sample("flow from the next", &over(&runs, second));
        }
    }
    Ok(())
}

/// Host 0 sends to a host to which two others send, and to an idle one.
fn b9(bench: &Bench, found: &mut Found) -> Judged {
    let runs = |scheme: &str| -> Result<Vec<Settled>, ReproduceError> {
        let settings = format!("hosts=5 payload=1438 link_rate=10gbit limit=300ms {scheme}");
        let flows = [(0, 3), (1, 3), (2, 3), (0, 4)].map(|(from, to)| flow(0, from, to, ENDLESS));
        bench.settled(&one_switch(&settings, flows)?, 100 * MS, 4)
    };
    let [congested, victim] = [0, 3].map(|flow| move |run: &Settled| run.rates[flow] / BOTTLENECK);
    let without = runs("scheme=none")?;
    let flows = runs(SCHEME)?;
    let priorities = runs(&format!("{SCHEME} bcn.sharing=priority"))?;
    let before = lowest(&without, victim);
    found.require(lowest(&flows, victim) > 1.5 * before);
    found.require(highest(&priorities, victim) < before);
    found.require(highest(&priorities, |run| victim(run) / congested(run)) < 1.01);
    found.sample("victim, PFC only", &over(&without, victim));
    found.sample("a limiter per flow", &over(&flows, victim));
    found.sample("a limiter per priority", &over(&priorities, victim));
    let name = "flow through the congestion point, a limiter per priority";
    found.sample(name, &over(&priorities, congested));
    Ok(())
}

fn b10(_: &Bench, found: &mut Found) -> Judged {
    for (delay, time) in [(1_000, "1.2 ms"), (3_000, "3.6 ms")] {
        let queue = |stamps| {
            let far = Loop {
                sign: 1,
                delay,
                stamps,
            };
            far.mean_queue()
        };
        let without = queue(Stamps::Nothing)?;
        let (increases, decreases) = (queue(Stamps::Increases)?, queue(Stamps::Decreases)?);
        found.require((increases - 1.0).abs() < 0.5 * (without - 1.0) && decreases > without);
        found.value(format!("mean queue / Qeq, delay of {time}"), without);
        found.value("increases ignored", increases);
        found.value("decreases ignored", decreases);
    }
    Ok(())
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
    Claim {
        id: "B8",
        kind: Kind::Derived,
        published: "BCN in some switches only: they limit what passes them and spreads the congestion of others",
        band: "in each of three switches and in all: a victim gets more than twice its share with PFC only, in each run; in the first only: the flow from it less than half of the flow from the next, which passes no such switch",
        judge: b8,
    },
    Claim {
        id: "B9",
        kind: Kind::Derived,
        published: "BCN: limiters in edge bridges, which can pause a station by priority only, limit flows that pass no congestion point, too",
        band: "such a flow of a station with a limiter per flow: more than 1.5 times its rate with PFC only; with one per priority: less than that, and at most 1 % more than the flow through the congestion point; in each run",
        judge: b9,
    },
    Claim {
        id: "B10",
        kind: Kind::Derived,
        published: "BCN: with time stamps, sources that ignore increases from before their last decrease keep the queue nearer to Qeq over long delays",
        band: "mean queue less than half as far from Qeq; with such decreases ignored instead: a longer queue than without time stamps",
        judge: b10,
    },
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// B8 can fail: a switch that samples too rarely frees no victim.
    #[test]
    fn a_switch_that_never_samples_frees_no_victim() {
        let bench = Bench::new(1);
        let victim = |settings: &str| mixed(&bench, settings, 1).unwrap().rates[3];
        let rare = format!("{SCHEME} mark_in=s0 bcn.qeq=1GB");
        assert!(victim(&rare) < 1.1 * victim("scheme=none"));
    }
}
