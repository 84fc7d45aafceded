//! Statements about QCN, IEEE 802.1Qau.

use ecn_report::statistics::Sample;
use ecn_sim::engine::{MS, Time};
use ecn_sim::fabric::cc::qcn::{CongestionPoint, QcnFlow, QcnRules};
use ecn_units::Rate;

use super::{BOTTLENECK, Bench, Claim, Judged, Settled, bottleneck, highest, over, parameters};
use crate::ReproduceError;
use crate::statement::{Found, Kind, Verdict};

/// Bytes per second.
const LINE: u64 = 1_250_000_000;
/// A sample is due after at most this many bytes.
const SAMPLED: u32 = 1_000_000;

fn rules(settings: &str) -> Result<QcnRules, ReproduceError> {
    let line = Rate::from_bytes_per_s(LINE).unwrap_or(Rate::MAX);
    Ok(parameters(settings)?.qcn.rules(line, 1_500)?)
}

const UNCLAMPED: &str = "qcn.clamp_target=off";

/// The feedback of a queue whose length at the last sample was another.
fn feedback(rules: &QcnRules, before: u32, queued: u32) -> Option<u32> {
    let mut point = CongestionPoint::new(rules);
    point.arrives(rules, SAMPLED, before, || 0);
    point.arrives(rules, SAMPLED, queued, || 0)
}

/// Current rate of a flow; at the link's rate it has no limiter.
fn rate(flow: &mut QcnFlow, rules: &QcnRules, now: Time) -> u64 {
    flow.on_send(rules, now, 0).unwrap_or(LINE)
}

fn q1(_: &Bench, found: &mut Found) -> Judged {
    let rules = rules(UNCLAMPED)?;
    let (mut queues, mut notified, mut wrong, mut raised) = (0_u32, 0_u32, 0_u32, 0_u32);
    for before in (0..200_000_u32).step_by(1_000) {
        for queued in (0..200_000_u32).step_by(1_000) {
            queues += 1;
            let fb = 26_000 - i64::from(queued) - 2 * (i64::from(queued) - i64::from(before));
            let feedback = feedback(&rules, before, queued);
            wrong += u32::from(feedback.is_some() != (fb < 0));
            if let Some(feedback) = feedback {
                notified += 1;
                let mut flow = QcnFlow::default();
                flow.on_notification(&rules, 0, 10);
                let start = rate(&mut flow, &rules, 0);
                flow.on_notification(&rules, 0, feedback);
                raised += u32::from(rate(&mut flow, &rules, 0) > start);
            }
        }
    }
    found.require(wrong == 0 && raised == 0 && notified > 0 && notified < queues);
    found.value("queues", queues);
    found.value("notified", notified);
    let name = "of these with Fb >= 0, or not notified with Fb < 0";
    found.value(name, wrong);
    found.value("rates raised", raised);
    Ok(())
}

fn q2(_: &Bench, found: &mut Found) -> Judged {
    let usual = lowest_factor(&rules(UNCLAMPED)?);
    // With the usual Gd, no feedback would reduce a rate by more than half.
    let large_gd = lowest_factor(&rules("qcn.gd=1/64")?);
    let is = |factor: f64, bound: f64| (bound..bound + 1e-6).contains(&factor);
    found.require(is(usual, 65.0 / 128.0) && is(large_gd, 0.5));
    found.value("lowest rate after a notification, over that before", usual);
    found.value("with Gd = 1/64", large_gd);
    Ok(())
}

/// The lowest rate after a notification, over that before.
fn lowest_factor(rules: &QcnRules) -> f64 {
    let mut least = 1.0_f64;
    for feedback in 0..=255 {
        let mut flow = QcnFlow::default();
        let mut before = LINE;
        // Until the minimum rate, which limits any decrease.
        for _ in 0..20 {
            flow.on_notification(rules, 0, feedback);
            let after = rate(&mut flow, rules, 0);
            // Rates are in whole bytes per second here.
            least = least.min((after + 1) as f64 / before as f64);
            before = after;
        }
    }
    least
}

/// Queue, queue before, feedback, factor.
const WORKED: [(u32, u32, Option<u32>, f64); 5] = [
    (26_000, 26_000, None, 1.0),
    (30_000, 26_000, Some(5), 0.961),
    (52_000, 52_000, Some(12), 0.906),
    (52_000, 26_000, Some(37), 0.711),
    (78_000, 26_000, Some(63), 0.508),
];

/// Q3.
fn worked(rules: &QcnRules, found: &mut Found) -> Judged {
    for (queued, before, expected, factor) in WORKED {
        let feedback = feedback(rules, before, queued);
        let mut flow = QcnFlow::default();
        if let Some(feedback) = feedback {
            flow.on_notification(rules, 0, feedback);
        }
        let after = rate(&mut flow, rules, 0) as f64 / LINE as f64;
        found.require(feedback == expected && (after - factor).abs() < 0.000_5);
        let fb = feedback.map_or_else(|| "-".to_owned(), |feedback| feedback.to_string());
        let name = format!("factor, {queued} after {before} bytes (feedback {fb})");
        found.value(name, after);
    }
    Ok(())
}

/// What five undisturbed cycles leave of the way to the target, at most; by volume or by time.
fn left_of_cut(clamp: bool, by_volume: bool) -> Result<f64, ReproduceError> {
    let rules = rules(if clamp {
        "qcn.clamp_target=on"
    } else {
        UNCLAMPED
    })?;
    let mut most = 0.0_f64;
    for feedback in 1..=63 {
        let mut flow = QcnFlow::default();
        flow.on_notification(&rules, 0, feedback);
        // With a clamped target, the target of the second decrease is the rate before it; otherwise it is still the
        // link's rate.
        let target = match clamp {
            true => rate(&mut flow, &rules, 0),
            false => LINE,
        };
        flow.on_notification(&rules, 0, feedback);
        let start = rate(&mut flow, &rules, 0);
        let after = if by_volume {
            flow.on_send(&rules, 0, 5 * 150_000)
        } else {
            flow.on_send(&rules, 5 * 15 * MS, 0)
        };
        let after = after.unwrap_or(LINE) as f64;
        most = most.max((target as f64 - after) / (target - start) as f64);
    }
    Ok(most)
}

fn q4(_: &Bench, found: &mut Found) -> Judged {
    for (clamp, target) in [(false, "the link's rate"), (true, "below")] {
        for (by_volume, cycles) in [(true, "volume"), (false, "time")] {
            let left = left_of_cut(clamp, by_volume)?;
            // The fifth stage already adds R_AI to a target below the link's rate.
            found.require(left > 1.0 / 33.5 && left <= 1.0 / 32.0);
            let name = format!("(TR - CR) / (TR - CR0), by {cycles}, TR {target}");
            found.value(name, left);
        }
    }
    Ok(())
}

/// Four flows, from 100 ms on.
fn runs(bench: &Bench, settings: &str) -> Result<Vec<Settled>, ReproduceError> {
    let scenario = bottleneck(4, &format!("scheme=qcn {settings}"))?;
    bench.settled(&scenario, 100 * MS, 4)
}

/// Share of the fastest flow.
fn largest(run: &Settled) -> f64 {
    highest(&run.rates, |rate| rate / BOTTLENECK)
}

fn q5(bench: &Bench, found: &mut Found) -> Judged {
    let volume = runs(bench, "limit=300ms")?;
    let equal_cycles = runs(bench, "limit=300ms qcn.volume_time=240us")?;
    let [unequal, equal] = [&volume, &equal_cycles].map(|runs| over(runs, Settled::jain));
    found.require(unequal.mean < 0.9 && equal.mean > 0.95);
    found.sample("Jain's index, 150 kB", &unequal);
    found.sample("with 240 us", &equal);
    found.sample("share of the fastest of 4, 150 kB", &over(&volume, largest));
    found.sample("with 240 us", &over(&equal_cycles, largest));
    Ok(())
}

/// The fastest flow's share in 8 runs for each seed: shares settle early, and persist.
fn fastest(bench: &Bench, settings: &str) -> Result<Vec<f64>, ReproduceError> {
    const RUNS: u64 = 8;
    let scenario = bottleneck(4, &format!("scheme=qcn limit=100ms {settings}"))?;
    let seeds = bench
        .seeds()
        .flat_map(|seed| (seed - 1) * RUNS + 1..=seed * RUNS);
    let run = |seed| {
        let counts = bench.run(&scenario, seed)?;
        Ok(largest(&Settled::of(&counts, 50 * MS, 4, 4)))
    };
    seeds.map(run).collect()
}

fn q6(bench: &Bench, found: &mut Found) -> Judged {
    let long = fastest(bench, "qcn.qeq=66kB")?;
    let equal_cycles = fastest(bench, "qcn.qeq=66kB qcn.volume_time=240us")?;
    judge_fastest(&long, &equal_cycles, &fastest(bench, "")?, found);
    Ok(())
}

/// Q6: judges the fastest flow's share in runs, compared with that with equal cycles, which must not be as large, and
/// that with the usual Qeq.
pub(crate) fn judge_fastest(long: &[f64], equal_cycles: &[f64], usual: &[f64], found: &mut Found) {
    let above = |shares: &[f64]| over(shares, |share| f64::from(u8::from(*share > 0.4)));
    let [often, seldom, usually] = [long, equal_cycles, usual].map(above);
    let share = |shares: &[f64]| Sample::of(shares.iter().copied());
    found.require(often.is_above(&seldom));
    found.sample("share of the fastest of 4", &share(long));
    found.value("runs with more than 0.4", often.mean);
    found.value("two standard errors of that", often.error());
    found.sample("share with cycles of 240 us", &share(equal_cycles));
    found.value("runs with more than 0.4", seldom.mean);
    found.sample("share with Qeq = 26 kB", &share(usual));
    let qeq = match often.is_above(&usually) {
        true => "The long Qeq adds to it",
        false => "The long Qeq does not decide it",
    };
    found.note = format!(
        "{qeq}: with the usual one, 26 kB, the fastest has more than 0.4 in {:.2} of the runs.",
        usually.mean
    );
}

fn q7(bench: &Bench, found: &mut Found) -> Judged {
    for (delay, trip) in [("1us", "4 us"), ("150us", "600 us")] {
        let runs = runs(bench, &format!("limit=200ms link_delay={delay}"))?;
        let name = format!("utilisation, round trip {trip}");
        found.sample(name, &over(&runs, Settled::utilisation));
        let queue = |run: &Settled| run.queue().mean / 26_000.0;
        found.sample(format!("mean queue / Qeq, {trip}"), &over(&runs, queue));
        let deviation = |run: &Settled| run.queue().sd / 26_000.0;
        let name = format!("its deviation / Qeq, {trip}");
        found.sample(name, &over(&runs, deviation));
    }
    found.verdict = Verdict::Reported;
    Ok(())
}

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        id: "Q1",
        kind: Kind::Public,
        published: "QCN never sends positive feedback",
        band: "notified only with Fb < 0, and no rate raised",
        judge: q1,
    },
    Claim {
        id: "Q2",
        kind: Kind::Derived,
        published: "QCN: one notification cuts by at most 63/128, and never below 50 %",
        band: "lowest factor 65/128; 1/2 where Gd alone would take more",
        judge: q2,
    },
    Claim {
        id: "Q3",
        kind: Kind::Derived,
        published: "QCN: feedback none, 5, 12, 37, 63 and factors 1, 0.961, 0.906, 0.711, 0.508 for five queues",
        band: "exact, factors to three digits",
        judge: |_, found| worked(&rules(UNCLAMPED)?, found),
    },
    Claim {
        id: "Q4",
        kind: Kind::Derived,
        published: "QCN: five undisturbed cycles recover 31/32 of a cut",
        band: "the most that any feedback leaves: > 1/33.5 and <= 1/32",
        judge: q4,
    },
    Claim {
        id: "Q5",
        kind: Kind::Public,
        published: "QCN: the byte counter keeps parallel flows unequal for long; cycles of 240 us correct that (Hayashi et al. 2011)",
        band: "mean of Jain's index < 0.9 (single runs of 4 flows in 200 ms: up to 0.92) and > 0.95",
        judge: q5,
    },
    Claim {
        id: "Q6",
        kind: Kind::Public,
        published: "QCN with Qeq = 66 kB at 10 Gb/s: one flow can hold more than 40 % (Crisan et al. 2011)",
        band: "4 flows, 8 runs for each seed: > 0.4 more often than with cycles of 240 us (Q5), by more than 2 standard errors",
        judge: q6,
    },
    Claim {
        id: "Q7",
        kind: Kind::Memory,
        published: "QCN: queue near Qeq and 95 % used with short round trips, worse from a few hundred us on",
        band: "",
        judge: q7,
    },
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn another_weight_is_noticed() {
        for (w, verdict) in [(2, Verdict::Holds), (1, Verdict::DoesNotHold)] {
            let rules = rules(&format!("qcn.w={w}")).unwrap();
            let mut found = Found::default();
            worked(&rules, &mut found).unwrap();
            assert_eq!(found.verdict, verdict);
        }
    }
}
