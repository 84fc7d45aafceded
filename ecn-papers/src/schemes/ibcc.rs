//! Statements about IB CC.

use ecn_core::fixed::ONE;
use ecn_core::response::{Function, IPD_LIMIT, Policy, Ratio, marked};
use ecn_core::tcd::{Mark, State};
use ecn_report::statistics::jain;
use ecn_sim::ModelError;
use ecn_sim::engine::{NS, Time, US};
use ecn_sim::fabric::Kind as Fabric;
use ecn_sim::fabric::cc::ibcc::{IbccFlow, IbccRules};
use ecn_sim::fabric::measure::slowdowns;
use ecn_sim::fabric::series::Change;
use ecn_sim::fabric::workload::Arrival;
use ecn_units::Rate;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::chain::{
    ALTERNATING, C, CBFC, ONCE, S0, chain, changes, incast, notified, periodic, ports,
};
use super::tcd::flips;
use super::{Bench, Claim, Judged, flow, over, parameters, scenario, with};
use crate::ReproduceError;
use crate::statement::{Found, Kind, Verdict};

/// A source's rules at 40 Gb/s.
fn rules(settings: &str) -> Result<IbccRules, ReproduceError> {
    let line = Rate::from_bits_per_s(40_000_000_000).unwrap_or(Rate::MAX);
    Ok(parameters(settings)?.ibcc.rules(line, 320_000)?)
}

/// Unit of CCTI_Timer, us.
const UNIT_US: f64 = 1.024;

fn i1(bench: &Bench, found: &mut Found) -> Judged {
    for (least, limit) in [(0, 127), (27, 100)] {
        let settings = format!("ibcc.ccti_min={least} ibcc.ccti_limit={limit}");
        let rules = rules(&settings)?;
        let (mut lowest, mut highest) = (u16::MAX, 0);
        for seed in bench.seeds() {
            let mut random = Pcg64Mcg::seed_from_u64(seed);
            let mut flow = IbccFlow::new(&rules);
            let mut now = 0;
            for step in 0..20_000 {
                now += random.random_range(0..20) * US;
                // Alternate between one notification after another and long periods without any.
                if step / 500 % 2 == 0 {
                    flow.on_notification(&rules, now, Mark::Congestion);
                }
                let index = flow.index(&rules, now);
                (lowest, highest) = (lowest.min(index), highest.max(index));
            }
        }
        // Both bounds must be reached, or the test would be insignificant.
        found.require(u32::from(lowest) == least && u32::from(highest) == limit);
        found.value(format!("lowest index, CCTI_Min {least}"), lowest);
        found.value(format!("highest, CCTI_Limit {limit}"), highest);
    }
    Ok(())
}

/// When the index of a flow has fallen to `target`, us; searched up to `until`.
fn down_at(rules: &IbccRules, flow: IbccFlow, target: u16, (from, until): (Time, Time)) -> f64 {
    let (mut above, mut at) = (from, until);
    while at - above > NS {
        let middle = above + (at - above) / 2;
        let mut copy = flow;
        if copy.index(rules, middle) <= target {
            at = middle;
        } else {
            above = middle;
        }
    }
    at as f64 / US as f64
}

fn i2(_: &Bench, found: &mut Found) -> Judged {
    let rules = rules("ibcc.ccti_timer=150")?;
    let mut flow = IbccFlow::new(&rules);
    let mut off = 0;
    for k in 1..=40_u16 {
        flow.on_notification(&rules, Time::from(k) * US, Mark::Congestion);
        off += u32::from(flow.index(&rules, Time::from(k) * US) != (5 * k).min(127));
    }
    let (first, second) = (US, 150 * US);
    let mut again = IbccFlow::new(&rules);
    again.on_notification(&rules, first, Mark::Congestion);
    again.on_notification(&rules, second, Mark::Congestion);
    let falls = down_at(&rules, again, 9, (second, 1_000 * US));
    let expected = 1.0 + 150.0 * UNIT_US;
    found.require(off == 0 && (falls - expected).abs() < 0.01);
    let name = "of 40 notifications, those after which the index is not min(5 k, 127)";
    found.value(name, off);
    let name = format!(
        "timer started at 1 us, notified again at 150 us: first step down, us (expected {expected})"
    );
    found.value(name, falls);
    Ok(())
}

fn i3(_: &Bench, found: &mut Found) -> Judged {
    for (timer, least) in [(10, 0), (150, 0), (10, 27)] {
        let settings = format!("ibcc.ccti_timer={timer} ibcc.ccti_min={least}");
        let rules = rules(&settings)?;
        let mut flow = IbccFlow::new(&rules);
        (0..26).for_each(|_| flow.on_notification(&rules, 0, Mark::Congestion));
        let from = flow.index(&rules, 0);
        let took = down_at(&rules, flow, least as u16, (0, 100_000 * US));
        let expected = f64::from(u32::from(from) - least) * f64::from(timer) * UNIT_US;
        found.require(from == 127 && (took - expected).abs() <= f64::from(timer) * UNIT_US);
        let name = format!("{from} to {least} with timer {timer}, us (expected {expected:.2})");
        found.value(name, took);
    }
    Ok(())
}

fn i4(bench: &Bench, found: &mut Found) -> Judged {
    for (index, step, multiple) in [
        (1, "1", 1.0),
        (5, "1", 5.0),
        (31, "1", 31.0),
        (31, "1/8", 31.0 / 8.0),
    ] {
        let settings = format!(
            "hosts=2 link_rate=40gbit scheme=ibcc ibcc.marking_threshold=0 ibcc.ccti_min={index} \
             ibcc.cct_step={step}"
        );
        // The difference of two lengths, which eliminates the common round trip.
        let time = |packets: u64| -> Result<f64, ReproduceError> {
            let flows = [flow(0, 0, 1, packets * 1_000)];
            let counts = bench.run(&scenario(Fabric::Dumbbell, &settings, flows)?, 1)?;
            let first = counts.finished.first();
            Ok(first.map_or(f64::NAN, |flow| flow.time as f64))
        };
        let (few, many) = (100, 300);
        let alone = 1_062.0 / C * 1e12;
        let rate = (many - few) as f64 * alone / (time(many)? - time(few)?);
        let expected = 1.0 / (1.0 + multiple);
        found.require((rate / expected - 1.0).abs() <= 0.01);
        let name = format!("rate with a delay of {multiple} packets ({expected:.4})");
        found.value(name, rate);
    }
    Ok(())
}

fn i5(_: &Bench, found: &mut Found) -> Judged {
    let rules = rules("ibcc.ccti_increase=1 ibcc.cct_step=1")?;
    let lipd = Policy::new(Function::Lipd, Ratio::new(1, IPD_LIMIT), Policy::HP_M)
        .map_err(|_| ModelError::new("ccti_increase", 1, "no policy of LIPD"))?;
    let mut flow = IbccFlow::new(&rules);
    let (mut delay, mut most) = (ONE, 0.0_f64);
    for _ in 0..127 {
        flow.on_notification(&rules, 0, Mark::Congestion);
        delay = marked(&lipd, delay);
        let rate = flow.on_send(&rules, 0).map_or(1.0, |rate| rate as f64 / C);
        most = most.max((rate * delay as f64 / ONE as f64 - 1.0).abs());
    }
    // Rates are in whole bytes per second.
    found.require(most < 1e-6);
    let name = "127 notifications: largest difference of the rates, relative";
    found.value(name, most);
    Ok(())
}

fn i6(bench: &Bench, found: &mut Found) -> Judged {
    // All packets queued in the chain arrive before it resumes. Later packets would find a long queue with credits: P2
    // is then a root (I7).
    let chain = chain(&format!("{CBFC} scheme=ibcc"), ONCE, 330 * US)?;
    let counts = bench.traced(&chain)?;
    let [flows, victims, _] = notified(&counts, |flow| flow.from == S0);
    let [bursts, roots, _] = notified(&counts, |flow| flow.from > 3);
    let p2 = ports(&chain)?[2];
    let as_victim = changes(&counts, p2)
        .filter(|t| t.change == Change::State(State::Undetermined))
        .count();
    found.require(victims == 0 && roots > 0 && as_victim > 0);
    found.value("times that P2 counts as a victim", as_victim as f64);
    found.value(format!("victim flows of {flows} with FECN"), victims);
    let name = format!("bursts of {bursts} with FECN, from the root's port");
    found.value(name, roots);
    Ok(())
}

fn i7(bench: &Bench, found: &mut Found) -> Judged {
    let ([off, root, victim], counts) = flips(bench, "ibcc")?;
    let [flows, marked, _] = notified(&counts, |flow| flow.from == S0);
    found.require(root >= 10 && victim >= 10 && marked > 0);
    found.value("P2: OFF", off);
    found.value("to root", root);
    found.value("to victim", victim);
    found.value(format!("victim flows of {flows} with FECN"), marked);
    Ok(())
}

/// Flows are marked, but do not respond.
const UNRESPONSIVE: &str = "scheme=ibcc ibcc.ccti_increase=0";

fn i8(bench: &Bench, found: &mut Found) -> Judged {
    let mut counts = Vec::new();
    for threshold in [0, 1, 4, 8, 12, 15] {
        let settings = format!("{CBFC} {UNRESPONSIVE} ibcc.marking_threshold={threshold}");
        let chain = chain(&settings, ALTERNATING, 600 * US)?;
        let marks = bench.run(&chain, 1)?.marked_packets;
        found.value(format!("marks, Threshold {threshold}"), marks as f64);
        counts.push(marks);
    }
    found.require(counts[0] == 0 && counts.is_sorted() && counts.last() > Some(&0));
    Ok(())
}

fn i9(bench: &Bench, found: &mut Found) -> Judged {
    let small = |size: &str| -> Result<[u32; 3], ReproduceError> {
        let settings = format!("{CBFC} hosts=8 {UNRESPONSIVE} ibcc.marking_size={size}");
        let large = (0..2).map(|from| flow(0, from, 3, 1_000_000));
        // Packets of 162 bytes.
        let flows = large.chain(periodic((2, 3), 100, 0.01, (0, 300 * US)));
        let counts = bench.run(&scenario(Fabric::Dumbbell, &settings, flows)?, 1)?;
        Ok(notified(&counts, |flow| flow.from == 2))
    };
    let ([flows, with, _], [_, without, _]) = (small("512B")?, small("0B")?);
    found.require(with == 0 && without > 0);
    let name = format!("packets of 162 bytes, of {flows}, with FECN, Packet_Size 512 bytes");
    found.value(name, with);
    found.value("Packet_Size 0", without);
    Ok(())
}

fn i10(bench: &Bench, found: &mut Found) -> Judged {
    let count = |rate: u32| -> Result<u64, ReproduceError> {
        let settings = format!("{CBFC} {UNRESPONSIVE} ibcc.marking_rate={rate}");
        let counts = bench.run(&incast(3, &settings, 1_000_000)?, 1)?;
        Ok(counts.marked_packets)
    };
    let eligible = count(0)?;
    found.require(eligible > 1_000);
    found.value("eligible packets", eligible as f64);
    for rate in [3, 10, 30] {
        let gap = eligible as f64 / count(rate)? as f64;
        found.require((gap / f64::from(rate) - 1.0).abs() <= 0.05);
        found.value(format!("mean gap, Marking_Rate {rate}"), gap);
    }
    Ok(())
}

/// Parameters of the study by Gran, Reinemo et al. (from memory).
const GRAN: &str = "scheme=ibcc ibcc.marking_threshold=15 ibcc.victim_mask=hosts ibcc.ccti_increase=1 \
    ibcc.ccti_timer=150";

/// A set that keeps the bottleneck in use and its queue short (I13).
const GENTLE: &str = "scheme=ibcc ibcc.ccti_increase=1 ibcc.cct_step=1/32";

/// Payload of each flow, Gb/s, by sender; and mean data queued in switches in the second half, kB.
fn throughputs(
    bench: &Bench,
    kind: Fabric,
    settings: &str,
    limit_ms: u64,
    flows: impl IntoIterator<Item = Arrival>,
) -> Result<(Vec<f64>, f64), ReproduceError> {
    let settings = format!("{CBFC} limit={limit_ms}ms {settings}");
    let counts = bench.run(&scenario(kind, &settings, flows)?, 1)?;
    let mut flows: Vec<_> = counts.finished.iter().chain(&counts.unfinished).collect();
    flows.sort_by_key(|flow| flow.from);
    let gbit = |bytes: u64| bytes as f64 * 8.0 / (limit_ms as f64 * 1e6);
    let rates = flows.iter().map(|flow| gbit(flow.bytes)).collect();
    let points = counts.series.map(|series| series.points);
    let points = points.unwrap_or_default();
    let half = &points[points.len() / 2..];
    let queued = over(half, |point| point.queued as f64 / 1e3);
    Ok((rates, queued.mean))
}

fn i11(bench: &Bench, found: &mut Found) -> Judged {
    // S0 to R0 is the victim; the others share the hot spot.
    let ends = [(0, 2), (1, 3), (4, 3), (5, 3), (6, 3), (7, 3)];
    let hot = ends.map(|(from, to)| flow(0, from, to, 100_000_000));
    let row = [0, 2, 4, 6].map(|from| flow(0, from, 7, 100_000_000));
    for (name, scheme) in [
        ("none", "scheme=none"),
        ("the study's", GRAN),
        ("gentle", GENTLE),
    ] {
        let settings = format!("link_rate=10gbit {scheme}");
        let (chain, _) = throughputs(bench, Fabric::Chain, &settings, 40, hot)?;
        let settings = format!("hosts=8 link_rate=10gbit {scheme}");
        let (lot, _) = throughputs(bench, Fabric::ParkingLot, &settings, 40, row)?;
        let [victim, others @ ..] = &*chain else {
            continue;
        };
        found.value(format!("{name}: victim, Gb/s"), *victim);
        found.value("hot spot, Gb/s", others.iter().sum::<f64>());
        let index = jain(lot).unwrap_or_default();
        found.value("Jain's index in a parking lot", index);
    }
    found.verdict = Verdict::Reported;
    found.note =
        "40 ms on links of 10 Gb/s. The study's parameters are from memory too; gentle: as in \
        I13."
            .to_owned();
    Ok(())
}

fn i12(bench: &Bench, found: &mut Found) -> Judged {
    const WORKLOAD: &str = "hosts=24 leaves=4 spines=3 workload=poisson cdf=hadoop load=0.3 \
        incast_load=0.2 incast_senders=12 duration=1ms";
    for (name, size) in [("bursts of 256 kB", "256kB"), ("of 32 kB", "32kB")] {
        for (label, scheme) in [("none", "scheme=none"), ("IB CC", GRAN)] {
            let settings = format!("{CBFC} {WORKLOAD} incast_size={size} {scheme}");
            let mut counts = bench.run(&with(Fabric::LeafSpine, &settings)?, 1)?;
            let p99 = slowdowns(&mut counts.finished).p99.unwrap_or(f64::NAN);
            found.value(format!("{name}: p99 slowdown, {label}"), p99);
        }
    }
    found.verdict = Verdict::Reported;
    found.note = "On 24 hosts in two tiers, not 648 ports in three.".to_owned();
    Ok(())
}

fn i13(bench: &Bench, found: &mut Found) -> Judged {
    let flows = [0, 1, 2, 3].map(|from| flow(0, from, 4, 50_000_000));
    let full = C * 8e-9 * 1_000.0 / 1_062.0;
    for delay_us in [1, 20] {
        let mut uncontrolled = f64::NAN;
        for (name, scheme) in [
            ("none", "scheme=none"),
            ("defaults", "scheme=ibcc"),
            ("gentle", GENTLE),
        ] {
            let settings = format!("hosts=10 link_delay={delay_us}us {scheme}");
            let (gbit, queued) = throughputs(bench, Fabric::Dumbbell, &settings, 5, flows)?;
            let share = gbit.iter().sum::<f64>() / full;
            match name {
                "none" => uncontrolled = queued,
                "gentle" => found.require(share > 0.9 && queued < 0.5 * uncontrolled),
                _ => {}
            }
            let name = format!("{name}, {delay_us} us links: use of the bottleneck");
            found.value(name, share);
            found.value("queue, kB", queued);
        }
    }
    found.note =
        "Four senders into one; gentle: CCTI_Increase 1 and a table in steps of 1/32, else \
        the defaults."
            .to_owned();
    Ok(())
}

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        id: "I1",
        kind: Kind::Public,
        published: "CCTI never exceeds CCTI_Limit, and the timer never lowers it below CCTI_Min",
        band: "random notifications and pauses reach both bounds and no more",
        judge: i1,
    },
    Claim {
        id: "I2",
        kind: Kind::Public,
        published: "k BECNs from 0 give min(k Increase, Limit); a BECN does not postpone the running timer",
        band: "exact",
        judge: i2,
    },
    Claim {
        id: "I3",
        kind: Kind::Derived,
        published: "from i to Min takes (i - Min) Timer 1.024 us",
        band: "within one period",
        judge: i3,
    },
    Claim {
        id: "I4",
        kind: Kind::Derived,
        published: "a greedy flow at a fixed index has the rate 1/(1 + M_i)",
        band: "within 1 %",
        judge: i4,
    },
    Claim {
        id: "I5",
        kind: Kind::Derived,
        published: "with a step of 1 and Increase 1, the rate after each BECN is that of LIPD's fdec",
        band: "within 1e-6",
        judge: i5,
    },
    Claim {
        id: "I6",
        kind: Kind::Seed,
        published: "chain with one root: only the root's port sets FECN when Victim_Mask = 0",
        band: "no flow of the victim has FECN, bursts have; traffic ends at 330 us, before P2 has credits again: \
               from then on its long queue makes it a root (I7)",
        judge: i6,
    },
    Claim {
        id: "I7",
        kind: Kind::Seed,
        published: "under credit-based ON-OFF a port in the chain alternates between victim and root, so victim flows get FECN",
        band: "10 changes and more each way; some of the victim's flows",
        judge: i7,
    },
    Claim {
        id: "I8",
        kind: Kind::Public,
        published: "Threshold 0 disables marking; raising it never lowers the count of marks",
        band: "0, then not falling",
        judge: i8,
    },
    Claim {
        id: "I9",
        kind: Kind::Public,
        published: "packets below Packet_Size are never marked",
        band: "none; some without it",
        judge: i9,
    },
    Claim {
        id: "I10",
        kind: Kind::Public,
        published: "the mean gap between marks of eligible packets is Marking_Rate",
        band: "within 5 %",
        judge: i10,
    },
    Claim {
        id: "I11",
        kind: Kind::Memory,
        published: "CC removes head-of-line blocking in hot spots and makes a parking lot fairer (Gran et al.)",
        band: "reported",
        judge: i11,
    },
    Claim {
        id: "I12",
        kind: Kind::Public,
        published: "one set of parameters works well as traffic gets more dynamic, 648 ports in three stages (Gran et al.)",
        band: "reported",
        judge: i12,
    },
    Claim {
        id: "I13",
        kind: Kind::Public,
        published: "settings exist for which the scheme works despite the feedback's delay (Gusat et al. 2005)",
        band: "gentle: use > 0.9 and less than half of the queue without control, with links of 1 and 20 us",
        judge: i13,
    },
];
