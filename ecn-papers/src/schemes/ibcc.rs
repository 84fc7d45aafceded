//! Statements about IB CC.

use ecn_core::fixed::ONE;
use ecn_core::response::{Function, IPD_LIMIT, Policy, Ratio, marked};
use ecn_core::tcd::{Mark, State};
use ecn_report::statistics::jain;
use ecn_sim::engine::{NS, Time, US};
use ecn_sim::fabric;
use ecn_sim::fabric::cc::ibcc::{IbccFlow, IbccParameters, IbccRules};
use ecn_sim::fabric::measure::slowdowns;
use ecn_sim::fabric::workload::Arrival;
use ecn_sim::model::ModelError;
use ecn_units::{Fraction, Rate};
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::chain::{BY_TURNS, C, CBFC, ONCE, S0, TRACE, chain, changes, merge, ports, told, train};
use super::tcd::flips;
use super::{Bench, Claim, Found, Judged, Kind, ReproduceError, flow, scenario, with};
use crate::assertions::{exact, found};

/// A source's rules at 40 Gb/s.
fn rules(change: impl FnOnce(&mut IbccParameters)) -> Result<IbccRules, ModelError> {
    let mut parameters = IbccParameters::default();
    change(&mut parameters);
    let line = Rate::from_bits_per_s(40_000_000_000).unwrap_or(Rate::MAX);
    parameters.rules(line, 320_000)
}

/// Unit of CCTI_Timer, us.
const UNIT_US: f64 = 1.024;

fn i1(bench: &Bench) -> Judged {
    let mut found = Found::default();
    for (least, limit) in [(0, 127), (27, 100)] {
        let rules = rules(|p| (p.ccti_min, p.ccti_limit) = (least, limit))?;
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
    Ok(found)
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

fn i2(_: &Bench) -> Judged {
    let rules = rules(|p| p.ccti_timer = 150)?;
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
    Ok(found(
        off == 0 && (falls - expected).abs() < 0.01,
        [
            exact(
                "of 40 notifications, those after which the index is not min(5 k, 127)",
                off,
            ),
            exact(
                format!(
                    "timer started at 1 us, notified again at 150 us: first step down, us (expected {expected})"
                ),
                falls,
            ),
        ],
    ))
}

fn i3(_: &Bench) -> Judged {
    let mut found = Found::default();
    for (timer, least) in [(10, 0), (150, 0), (10, 27)] {
        let rules = rules(|p| (p.ccti_timer, p.ccti_min) = (timer, least))?;
        let mut flow = IbccFlow::new(&rules);
        (0..26).for_each(|_| flow.on_notification(&rules, 0, Mark::Congestion));
        let from = flow.index(&rules, 0);
        let took = down_at(&rules, flow, least as u16, (0, 100_000 * US));
        let expected = f64::from(u32::from(from) - least) * f64::from(timer) * UNIT_US;
        found.require(from == 127 && (took - expected).abs() <= f64::from(timer) * UNIT_US);
        found.value(
            format!("{from} to {least} with timer {timer}, us (expected {expected:.2})"),
            took,
        );
    }
    Ok(found)
}

fn i4(bench: &Bench) -> Judged {
    let mut found = Found::default();
    for (index, step, multiple) in [
        (1, "1", 1.0),
        (5, "1", 5.0),
        (31, "1", 31.0),
        (31, "1/8", 31.0 / 8.0),
    ] {
        let (index, step) = (
            format!("ibcc.ccti_min={index}"),
            format!("ibcc.cct_step={step}"),
        );
        // The difference of two lengths, which eliminates the common round trip.
        let time = |packets: u64| -> Result<f64, ReproduceError> {
            let settings = [
                "hosts=2",
                "link_rate=40gbit",
                "scheme=ibcc",
                "ibcc.marking_threshold=0",
                &index,
                &step,
            ];
            let scenario = scenario(
                fabric::Kind::Dumbbell,
                &settings,
                vec![flow(0, 0, 1, packets * 1_000)],
            )?;
            let counts = bench.run(&scenario, 1)?;
            Ok(counts
                .finished
                .first()
                .map_or(f64::NAN, |flow| flow.time as f64))
        };
        let (few, many) = (100, 300);
        let alone = 1_062.0 / C * 1e12;
        let rate = (many - few) as f64 * alone / (time(many)? - time(few)?);
        let expected = 1.0 / (1.0 + multiple);
        found.require((rate / expected - 1.0).abs() <= 0.01);
        found.value(
            format!("rate with a delay of {multiple} packets ({expected:.4})"),
            rate,
        );
    }
    Ok(found)
}

fn i5(_: &Bench) -> Judged {
    let rules = rules(|p| (p.ccti_increase, p.cct_step) = (1, Fraction::ratio(1, 1)))?;
    let none = || ModelError::new("ccti_increase", 1, "no policy of LIPD");
    let lipd =
        Policy::new(Function::Lipd, Ratio::new(1, IPD_LIMIT), Policy::HP_M).map_err(|_| none())?;
    let mut flow = IbccFlow::new(&rules);
    let (mut delay, mut most) = (ONE, 0.0_f64);
    for _ in 0..127 {
        flow.on_notification(&rules, 0, Mark::Congestion);
        delay = marked(&lipd, delay);
        let own = flow.on_send(&rules, 0).map_or(1.0, |rate| rate as f64 / C);
        most = most.max((own * delay as f64 / ONE as f64 - 1.0).abs());
    }
    // Rates are in whole bytes per second.
    Ok(found(
        most < 1e-6,
        [exact(
            "127 notifications: largest difference of the rates, relative",
            most,
        )],
    ))
}

fn i6(bench: &Bench) -> Judged {
    // All packets queued in the chain arrive before it resumes. Later packets would find a long queue with credits: P2
    // is then a root (I7).
    let chain = chain(&[CBFC, &["scheme=ibcc"]], ONCE, 330 * US)?;
    let counts = bench.run_with(&chain, 1, &TRACE)?;
    let [flows, victims, _] = told(&counts, |flow| flow.from == S0);
    let [bursts, roots, _] = told(&counts, |flow| flow.from > 3);
    let p2 = ports(&chain)?[2];
    let as_victim = changes(&counts, p2)
        .filter(|t| t.change == fabric::series::Change::State(State::Undetermined))
        .count();
    Ok(found(
        victims == 0 && roots > 0 && as_victim > 0,
        [
            exact("times that P2 counts as a victim", as_victim as f64),
            exact(format!("victim flows of {flows} with FECN"), victims),
            exact(
                format!("bursts of {bursts} with FECN, from the root's port"),
                roots,
            ),
        ],
    ))
}

fn i7(bench: &Bench) -> Judged {
    let ([off, root, victim], counts) = flips(bench, "ibcc")?;
    let [flows, marked, _] = told(&counts, |flow| flow.from == S0);
    Ok(found(
        root >= 10 && victim >= 10 && marked > 0,
        [
            exact("P2: OFF", off),
            exact("to root", root),
            exact("to victim", victim),
            exact(format!("victim flows of {flows} with FECN"), marked),
        ],
    ))
}

/// Packets marked in the chain, whose flows do not respond.
fn marks(bench: &Bench, setting: &str) -> Result<u64, ReproduceError> {
    let chain = chain(
        &[CBFC, &["scheme=ibcc", "ibcc.ccti_increase=0", setting]],
        BY_TURNS,
        600 * US,
    )?;
    Ok(bench.run(&chain, 1)?.marked_packets)
}

fn i8(bench: &Bench) -> Judged {
    let mut measured = Vec::new();
    let mut all = Vec::new();
    for threshold in [0, 1, 4, 8, 12, 15] {
        let count = marks(bench, &format!("ibcc.marking_threshold={threshold}"))?;
        measured.push(exact(format!("marks, Threshold {threshold}"), count as f64));
        all.push(count);
    }
    let holds = all[0] == 0 && all.is_sorted() && all.last() > Some(&0);
    Ok(found(holds, measured))
}

fn i9(bench: &Bench) -> Judged {
    let small = |size: &str| -> Result<[u32; 3], ReproduceError> {
        let mut flows: Vec<Arrival> = (0..2).map(|from| flow(0, from, 3, 1_000_000)).collect();
        // Packets of 162 bytes.
        flows.extend(train((2, 3), 100, 0.01, (0, 300 * US)));
        let settings = [
            CBFC,
            &["hosts=8", "scheme=ibcc", "ibcc.ccti_increase=0", size],
        ]
        .concat();
        let scenario = scenario(fabric::Kind::Dumbbell, &settings, flows)?;
        Ok(told(&bench.run(&scenario, 1)?, |flow| flow.from == 2))
    };
    let ([flows, with, _], [_, without, _]) = (
        small("ibcc.marking_size=512B")?,
        small("ibcc.marking_size=0B")?,
    );
    Ok(found(
        with == 0 && without > 0,
        [
            exact(
                format!("packets of 162 bytes, of {flows}, with FECN, Packet_Size 512 bytes"),
                with,
            ),
            exact("Packet_Size 0", without),
        ],
    ))
}

fn i10(bench: &Bench) -> Judged {
    let count = |rate: u32| -> Result<u64, ReproduceError> {
        let rate = format!("ibcc.marking_rate={rate}");
        let settings = [
            "flow_control=cbfc",
            "buffer=320kB",
            "scheme=ibcc",
            "ibcc.ccti_increase=0",
            &rate,
        ];
        Ok(bench
            .run(&merge(3, &settings, 1_000_000)?, 1)?
            .marked_packets)
    };
    let eligible = count(0)?;
    let mut found = found(
        eligible > 1_000,
        [exact("eligible packets", eligible as f64)],
    );
    for rate in [3, 10, 30] {
        let gap = eligible as f64 / count(rate)? as f64;
        found.require((gap / f64::from(rate) - 1.0).abs() <= 0.05);
        found.value(format!("mean gap, Marking_Rate {rate}"), gap);
    }
    Ok(found)
}

/// Parameters of the study by Gran, Reinemo et al. (from memory).
const GRAN: [&str; 5] = [
    "scheme=ibcc",
    "ibcc.marking_threshold=15",
    "ibcc.victim_mask=hosts",
    "ibcc.ccti_increase=1",
    "ibcc.ccti_timer=150",
];

/// A set that keeps the bottleneck in use and its queue short (I13).
const GENTLE: [&str; 3] = ["scheme=ibcc", "ibcc.ccti_increase=1", "ibcc.cct_step=1/32"];

/// Results of a run.
struct Through {
    /// Payload of each flow, Gb/s, by sender.
    gbit: Vec<f64>,
    /// Mean data queued in switches in the second half, kB.
    queued: f64,
}

fn through(
    bench: &Bench,
    kind: fabric::Kind,
    settings: &[&str],
    (limit_ms, flows): (u64, &[Arrival]),
) -> Result<Through, ReproduceError> {
    let limit = format!("limit={limit_ms}ms");
    let all = [CBFC, &[&limit], settings].concat();
    let counts = bench.run(&scenario(kind, &all, flows.to_vec())?, 1)?;
    let mut flows: Vec<_> = counts.finished.iter().chain(&counts.unfinished).collect();
    flows.sort_by_key(|flow| flow.from);
    let gbit = |bytes: u64| bytes as f64 * 8.0 / (limit_ms as f64 * 1e6);
    let points = counts.series.iter().flat_map(|series| &series.points);
    let queued: Vec<f64> = points.map(|point| point.queued as f64 / 1e3).collect();
    let half = &queued[queued.len() / 2..];
    Ok(Through {
        gbit: flows.iter().map(|flow| gbit(flow.bytes)).collect(),
        queued: half.iter().sum::<f64>() / half.len() as f64,
    })
}

fn i11(bench: &Bench) -> Judged {
    let mut found = Found::default();
    // S0 to R0 is the victim; the others share the hot spot.
    let ends = [(0, 2), (1, 3), (4, 3), (5, 3), (6, 3), (7, 3)];
    let hot = ends.map(|(from, to)| flow(0, from, to, 100_000_000));
    let row = [0, 2, 4, 6].map(|from| flow(0, from, 7, 100_000_000));
    for (name, scheme) in [
        ("none", &["scheme=none"][..]),
        ("the study's", &GRAN),
        ("gentle", &GENTLE),
    ] {
        let chain = [&["link_rate=10gbit"], scheme].concat();
        let chain = through(bench, fabric::Kind::Chain, &chain, (40, &hot))?.gbit;
        let lot = [&["hosts=8", "link_rate=10gbit"], scheme].concat();
        let lot = through(bench, fabric::Kind::ParkingLot, &lot, (40, &row))?.gbit;
        let [victim, others @ ..] = &*chain else {
            continue;
        };
        found.value(format!("{name}: victim, Gb/s"), *victim);
        found.value("hot spot, Gb/s", others.iter().sum::<f64>());
        let index = jain(lot).unwrap_or_default();
        found.value("Jain's index in a parking lot", index);
    }
    Ok(found.reported().noted(
        "40 ms on links of 10 Gb/s. The study's parameters are from memory too; gentle: as in I13.",
    ))
}

fn i12(bench: &Bench) -> Judged {
    let mut found = Found::default();
    let settings = ["hosts=24", "leaves=4", "spines=3"];
    let bursts = |duration: &'static str, size: &'static str| {
        let load = [
            "workload=poisson",
            "cdf=hadoop",
            "load=0.3",
            "incast_load=0.2",
            "incast_senders=12",
        ];
        [&load[..], &[duration, size]].concat()
    };
    for (name, workload) in [
        (
            "bursts of 256 kB",
            bursts("duration=1ms", "incast_size=256kB"),
        ),
        ("of 32 kB", bursts("duration=1ms", "incast_size=32kB")),
    ] {
        for (label, scheme) in [("none", &["scheme=none"][..]), ("IB CC", &GRAN)] {
            let all = [CBFC, &settings, &workload, scheme].concat();
            let mut counts = bench.run(&with(fabric::Kind::LeafSpine, &all)?, 1)?;
            let p99 = slowdowns(&mut counts.finished).p99.unwrap_or(f64::NAN);
            found.value(format!("{name}: p99 slowdown, {label}"), p99);
        }
    }
    let note = "On 24 hosts in two tiers, not 648 ports in three.";
    Ok(found.reported().noted(note))
}

fn i13(bench: &Bench) -> Judged {
    let mut found = Found::default();
    let flows = [0, 1, 2, 3].map(|from| flow(0, from, 4, 50_000_000));
    let full = C * 8e-9 * 1_000.0 / 1_062.0;
    for delay_us in [1, 20] {
        let delay = format!("link_delay={delay_us}us");
        let mut uncontrolled = f64::NAN;
        for (name, settings) in [
            ("none", &["scheme=none"][..]),
            ("defaults", &["scheme=ibcc"]),
            ("gentle", &GENTLE),
        ] {
            let all = [&["hosts=10", &delay], settings].concat();
            let Through { gbit, queued } =
                through(bench, fabric::Kind::Dumbbell, &all, (5, &flows))?;
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
    Ok(found.noted(
        "Four senders into one; gentle: CCTI_Increase 1 and a table in steps of 1/32, else the defaults.",
    ))
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
