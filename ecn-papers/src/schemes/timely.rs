//! Statements about TIMELY: the authors' published code (V5 in `docs/sources.md`).

use ecn_core::tcd::Mark;
use ecn_sim::engine::{MS, Time, US};
use ecn_sim::fabric::cc::timely::{TimelyFlow, TimelyRules};
use ecn_units::Rate;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::{Bench, Claim, ENDLESS, Judged, Settled, flow, one_switch, parameters};
use crate::ReproduceError;
use crate::statement::{Found, Kind};

/// 10 Gb/s in bytes per second.
const LINE: f64 = 1_250_000_000.0;
/// 10 Mb/s.
const DELTA: f64 = 1_250_000.0;
const MIN_RTT: Time = 20 * US;

/// The rules with the paper's Tlow and Thigh, and other settings.
fn rules(settings: &str) -> Result<TimelyRules, ReproduceError> {
    let settings = format!("timely.t_low=50us timely.t_high=500us {settings}");
    let line = Rate::from_bytes_per_s(LINE as u64).unwrap_or(Rate::MAX);
    Ok(parameters(&settings)?.timely.rules(line, MIN_RTT, false)?)
}

fn rate(flow: &TimelyFlow, rules: &TimelyRules) -> f64 {
    flow.on_send(rules).map_or(LINE, |rate| rate as f64)
}

/// Increase of the rate, in deltas, with each of these round-trip times, one per `MIN_RTT`.
fn steps(rules: &TimelyRules, rtts: impl IntoIterator<Item = Time>) -> Vec<f64> {
    let mut flow = TimelyFlow::at(LINE / 4.0);
    let step = |(number, rtt)| {
        let before = rate(&flow, rules);
        flow.acknowledged(rules, number * MIN_RTT, rtt, Mark::None);
        (rate(&flow, rules) - before) / DELTA
    };
    (1..).zip(rtts).map(step).collect()
}

/// M1.
fn increases(rules: &TimelyRules, found: &mut Found) -> Judged {
    let constant = steps(rules, [100 * US; 20]);
    let falling = steps(rules, (0..12).map(|number| (200 - number) * US));
    // The first RTT has no predecessor, so the sixth is the fifth decreasing one.
    let faster = falling.iter().position(|step| *step > 1.5).unwrap_or(0);
    // A round-trip time that does not decrease restarts the count, even after a faster step.
    let (mut rtt, mut rtts, mut expected) = (200, Vec::new(), Vec::new());
    for falls in [4, 4, 6, 4] {
        rtts.push(rtt * US);
        expected.push(1.0);
        for fall in 1..=falls {
            rtt -= 1;
            rtts.push(rtt * US);
            expected.push(if fall < 5 { 1.0 } else { 5.0 });
        }
    }
    let restarted = steps(rules, rtts);
    // More frequent ACKs do not increase the rate faster.
    let mut flow = TimelyFlow::at(LINE / 4.0);
    let before = rate(&flow, rules);
    for number in 1..=200 {
        flow.acknowledged(rules, number * MIN_RTT / 10, 100 * US, Mark::None);
    }
    let often = (rate(&flow, rules) - before) / DELTA / 20.0;
    found.require(constant.iter().all(|step| *step == 1.0));
    found.require((often - 1.0).abs() < 1e-6);
    found.require(restarted == expected);
    found.require(falling[..faster].iter().all(|step| *step == 1.0));
    found.require(falling[faster..].iter().all(|step| *step == 5.0));
    found.require(faster == 5);
    let mean = constant.iter().sum::<f64>() / constant.len() as f64;
    found.value("deltas per minRTT at a constant 100 us", mean);
    found.value("with 10 ACKs in each", often);
    let name = "falling ones up to the first faster step";
    found.value(name, faster as f64);
    found.value("deltas of that one", falling[faster]);
    let name = "faster steps where 4, 4, 6 and 4 fall, with an equal one between (2)";
    let count = restarted.iter().filter(|step| **step > 1.5).count();
    found.value(name, count as f64);
    Ok(())
}

/// Random round-trip times at random intervals: calls `check` with each, and the rates before and after.
fn random_updates(rules: &TimelyRules, mut check: impl FnMut(Time, f64, f64)) {
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let mut flow = TimelyFlow::at(LINE);
    let mut now = 0;
    for _ in 0..200_000 {
        now += random.random_range(1..100) * US;
        // Below Tlow, between, and above Thigh.
        let most = [50, 500, 5_000][random.random_range(0..3)];
        let rtt = random.random_range(1..most) * US;
        let before = rate(&flow, rules);
        flow.acknowledged(rules, now, rtt, Mark::None);
        check(rtt, before, rate(&flow, rules));
    }
}

fn m2(_: &Bench, found: &mut Found) -> Judged {
    let (mut least, mut cuts) = (1.0_f64, 0_u32);
    random_updates(&rules("")?, |_, before, after| {
        // Rates are in whole bytes per second here.
        least = least.min((after + 1.0) / before);
        cuts += u32::from(after < before);
    });
    found.require(least >= 0.5 && cuts > 0);
    found.value("cuts in 200,000 random updates", cuts);
    found.value("lowest rate after one, over that before", least);
    Ok(())
}

/// M3.
fn cuts(rules: &TimelyRules, found: &mut Found) -> Judged {
    let factor = |rtt_us: u64| {
        let mut flow = TimelyFlow::at(LINE);
        flow.acknowledged(rules, MIN_RTT, rtt_us * US, Mark::None);
        rate(&flow, rules) / LINE
    };
    let mut worst = 0.0_f64;
    // Up to 1,333 us, where the decrease would be by half.
    for rtt_us in 501..=1_300_u32 {
        let expected = 1.0 - 0.8 * (1.0 - 500.0 / f64::from(rtt_us));
        worst = worst.max((factor(rtt_us.into()) - expected).abs());
    }
    found.require(worst < 2.0 / LINE);
    found.value("factor at 1000 us (0.6)", factor(1_000));
    found.value("largest distance, 501 to 1300 us", worst);
    Ok(())
}

fn m4(_: &Bench, found: &mut Found) -> Judged {
    let rules = rules("")?;
    // Random round-trip times hardly ever give a gradient above 0 there; increasing ones do, all but the first.
    let rising = |from: Time| steps(&rules, (from + 1..from + 50).map(|rtt| rtt * US));
    let rises = rising(0).iter().filter(|step| **step == 1.0).count();
    // Where the gradient applies, the same one causes a decrease: an average of differences of 1 us, with weight 1/50,
    // over minRTT.
    let (mut before, mut worst) = (LINE / 4.0, 0.0_f64);
    for (number, step) in (0..).zip(rising(100)) {
        let gradient = (1.0 - 0.98_f64.powi(number)) / 20.0;
        let expected = if number > 0 {
            -0.8 * gradient * before
        } else {
            DELTA
        };
        worst = worst.max((step * DELTA - expected).abs());
        before += step * DELTA;
    }
    let (mut low, mut not_raised) = (0_u32, 0_u32);
    random_updates(&rules, |rtt, before, after| {
        if rtt < 50 * US && before < LINE {
            low += 1;
            not_raised += u32::from(after <= before);
        }
    });
    found.require(low > 0 && not_raised == 0 && rises == 49 && worst < 2.0);
    found.value("updates below Tlow, of 200,000 random ones", low);
    found.value("of these without an increase", not_raised);
    let name = "increases by delta in 49 from 1 to 49 us";
    found.value(name, rises as f64);
    let name = "from 101 to 149 us: largest distance from a cut by beta gradient, bytes per second";
    found.value(name, worst);
    Ok(())
}

/// An incast, as observed by a probe packet.
pub(crate) struct Incast {
    /// 99th percentile of the probe's round-trip time, us.
    pub p99_us: f64,
    /// Part of the link's rate that is used.
    pub used: f64,
}

/// 16 to 1 at 10 Gb/s; from 20 ms on, a probe packet takes the same path every 50 us.
fn incast(bench: &Bench, scheme: &str) -> Result<Incast, ReproduceError> {
    let settings = format!("hosts=18 link_rate=10gbit limit=40ms {scheme}");
    let bulk = (0..16).map(|from| flow(0, from, 17, ENDLESS));
    let probes = (0..380).map(|number| flow(20 * MS + number * 50 * US, 16, 17, 1_000));
    let scenario = one_switch(&settings, bulk.chain(probes))?;
    let (payload, header) = (scenario.parameters.payload, scenario.parameters.header);
    // Deterministic: a single run suffices.
    let counts = bench.run(&scenario, 1)?;
    let bulk = Settled::of(&counts, 20 * MS, 16, 17);
    let wire = f64::from(payload + header) / f64::from(payload);
    let all = counts.finished.iter().chain(&counts.unfinished);
    let probes = all.filter(|flow| flow.from == 16);
    let mut times: Vec<f64> = probes.map(|flow| flow.time as f64 / US as f64).collect();
    times.sort_by(f64::total_cmp);
    let p99 = times.get(times.len() * 99 / 100);
    Ok(Incast {
        p99_us: p99.copied().unwrap_or(f64::NAN),
        used: bulk.rates.iter().sum::<f64>() * wire / LINE,
    })
}

fn m5(bench: &Bench, found: &mut Found) -> Judged {
    let pfc = incast(bench, "scheme=none")?;
    let timely = incast(bench, "scheme=timely")?;
    judge_incast(&pfc, &timely, found);
    Ok(())
}

/// M5: judges an incast with PFC only and one with TIMELY.
pub(crate) fn judge_incast(pfc: &Incast, timely: &Incast, found: &mut Found) {
    let times = pfc.p99_us / timely.p99_us;
    found.require(times >= 9.0 && timely.used >= 0.9);
    let name = "99th percentile of a packet's time, PFC only, us";
    found.value(name, pfc.p99_us);
    found.value("with TIMELY, us", timely.p99_us);
    found.value("times shorter", times);
    found.value("use of the link, with TIMELY", timely.used);
}

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        id: "M1",
        kind: Kind::Public,
        published: "TIMELY: at a constant RTT between Tlow and Thigh the rate grows by delta per minRTT, by 5 delta only after 5 falling ones",
        band: "exact",
        judge: |_, found| increases(&rules("")?, found),
    },
    Claim {
        id: "M2",
        kind: Kind::Public,
        published: "TIMELY: no update cuts more than half",
        band: ">= 0.5",
        judge: m2,
    },
    Claim {
        id: "M3",
        kind: Kind::Public,
        published: "TIMELY: above Thigh the rate is multiplied by 1 - beta (1 - Thigh/rtt)",
        band: "to 2 bytes per second",
        judge: |_, found| cuts(&rules("")?, found),
    },
    Claim {
        id: "M4",
        kind: Kind::Derived,
        published: "TIMELY: below Tlow the rate always rises, whatever the gradient",
        band: "in each update below the line rate; by delta where the RTT rises, which cuts by beta gradient 100 us above",
        judge: m4,
    },
    Claim {
        id: "M5",
        kind: Kind::Public,
        published: "TIMELY in an incast: the tail's RTT is 9 times shorter than with PFC only, near the line rate",
        band: "99th percentile at least 9 times shorter, at least 0.9 of the link used",
        judge: m5,
    },
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::statement::Verdict;

    #[test]
    fn other_parameters_are_noticed() {
        let verdict = |judge: fn(&TimelyRules, &mut Found) -> Judged, rules: &TimelyRules| {
            let mut found = Found::default();
            judge(rules, &mut found).unwrap();
            found.verdict
        };
        let usual = rules("").unwrap();
        assert_eq!(verdict(increases, &usual), Verdict::Holds);
        assert_eq!(verdict(cuts, &usual), Verdict::Holds);
        let sooner = rules("timely.hai_after=4").unwrap();
        assert_eq!(verdict(increases, &sooner), Verdict::DoesNotHold);
        let less = rules("timely.beta=1/2").unwrap();
        assert_eq!(verdict(cuts, &less), Verdict::DoesNotHold);
    }
}
