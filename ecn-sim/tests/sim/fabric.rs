//! Data centres: invariants of every run, and known results.

use std::sync::{Arc, Mutex};

use ecn_sim::engine::{MS, Time};
use ecn_sim::fabric::cc::{Name, Scheme as _};
use ecn_sim::fabric::failures::Lost;
use ecn_sim::fabric::measure::Finished;
use ecn_sim::fabric::parameters::FlowControl;
use ecn_sim::fabric::series::{Change, Point, Series};
use ecn_sim::fabric::watch::{RunProgress, Watch};
use ecn_sim::fabric::workload::{Arrival, arrivals};
use ecn_sim::fabric::{self, Counts, Kind, Options, RunError, Scenario, parts};
use proptest::prelude::*;
use proptest::sample::select;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

fn scenario(kind: Kind, settings: &[String]) -> Scenario {
    let mut scenario = Scenario::find(kind.name()).expect("built in");
    for setting in settings {
        scenario.set_text(setting).expect("a setting");
    }
    scenario
}

fn counts(scenario: &Scenario, seed: u64) -> Counts {
    counts_by(scenario, seed, 1)
}

fn counts_by(scenario: &Scenario, seed: u64, threads: u16) -> Counts {
    let topology = scenario.topology().expect("a topology");
    let options = Options {
        threads,
        series: true,
        windows: Vec::new(),
        trace: true,
        watch: None,
    };
    parts::run(scenario, &topology, seed, &options).expect("a run without a broken invariant")
}

/// The keys of a workload whose flows have up to this number of bytes.
fn of_workload(workload: &str, hosts: u32, bytes: u64) -> Vec<String> {
    let size = format!("flow_size={bytes}B");
    match workload {
        "poisson" => set(&["cdf=hadoop", "duration=50us"]),
        "on-off" => vec![size, "duration=50us".to_owned()],
        "greedy" => set(&["duration=20us"]),
        // So many pairs that fewer bytes each are enough.
        "all-to-all" => vec![format!("flow_size={}B", bytes / 20 + 1)],
        "incast" => vec![size, format!("senders={}", hosts - 1)],
        _ => vec![size],
    }
}

/// Thresholds so low that they matter.
fn of_scheme(scheme: &str) -> Vec<String> {
    let (base, tcd) = match scheme.strip_suffix("+tcd") {
        Some(base) => (base, &["tcd.threshold=3kB", "tcd.max_on=5us"][..]),
        None => (scheme, &[][..]),
    };
    let thresholds: &[&str] = match base {
        "dcqcn" => &["dcqcn.kmin=5kB", "dcqcn.kmax=20kB"],
        "timely" => &["timely.t_high=20us"],
        "ibcc" => &["ibcc.marking_threshold=15"],
        "qcn" => &["qcn.qeq=2kB", "qcn.sample=5kB", "qcn.byte_limit=10kB"],
        "bcn" => &["bcn.qeq=2kB", "bcn.pm=1/5", "bcn.limiters=2"],
        "none" => &[],
        _ => &["hp.buffer=5", "hp.threshold=3"],
    };
    set(&[thresholds, tcd].concat())
}

/// A small data centre, with memories from the smallest valid size.
fn any_scenario() -> impl Strategy<Value = Scenario> {
    let size = (select(Kind::ALL), 2u32..40, 64u32..2_000, 1u64..200_000);
    let links = (
        select(vec!["1gbit", "10gbit", "100gbit", "99.9gbit"]),
        0u64..5_000,
    );
    let workload = select(vec![
        "incast",
        "permutation",
        "all-to-all",
        "poisson",
        "on-off",
        "greedy",
    ]);
    let choices = (
        workload,
        select(vec![
            ("shared-memory", "pfc"),
            ("shared-memory", "cbfc"),
            ("shared-memory", "none"),
            ("crossbar", "pfc"),
            ("crossbar", "cbfc"),
            ("input-queued", "cbfc"),
        ]),
        1u8..=4,
        select(Name::NAMES),
    );
    let memory = (
        0u64..60_000,
        select(vec!["1/64", "1/8", "1", "8"]),
        prop::bool::ANY,
    );
    let window = select(vec!["auto", "2000B", "50kB"]);
    (size, links, choices, memory, window).prop_map(
        |(
            (kind, hosts, payload, bytes),
            (rate, delay),
            (workload, (switch, control), priorities, scheme),
            memory,
            window,
        )| {
            let (extra, alpha, dynamic) = memory;
            let mut settings = vec![
                format!("hosts={hosts}"),
                format!("payload={payload}"),
                format!("link_rate={rate}"),
                format!("link_delay={delay}ns"),
                format!("workload={workload}"),
                format!("switch={switch}"),
                format!("flow_control={control}"),
                format!("priorities={priorities}"),
                format!("scheme={scheme}"),
                format!("window={window}"),
                // The longest flows, at the lowest rate of a scheme.
                "limit=1000s".to_owned(),
            ];
            settings.extend(of_workload(workload, hosts, bytes));
            settings.extend(of_scheme(scheme));
            let slots = switch == "input-queued";
            if slots {
                settings.retain(|setting| setting != "hp.buffer=5");
                let choice =
                    |number: u64, values: [&'static str; 2]| values[(extra >> number) as usize % 2];
                settings.extend(set(&[
                    "priorities=1",
                    &format!("slots={}", 1 + extra % 8),
                    &format!("bypass={}", extra % 5),
                    choice(4, ["bypass_counts=any-output", "bypass=unlimited"]),
                    choice(5, ["crossbar=single", "crossbar=multiple"]),
                    choice(6, ["arbitration=round-robin", "arbitration=oldest"]),
                    choice(7, ["forwarding=store-and-forward", "slot_freed=head"]),
                ]));
            }
            let shared = control != "cbfc" && switch == "shared-memory";
            if shared {
                if dynamic {
                    settings.extend(["thresholds=dynamic".to_owned(), format!("alpha={alpha}")]);
                } else {
                    settings.push("thresholds=static".to_owned());
                }
            }
            let mut scenario = scenario(kind, &settings);
            if shared && !dynamic {
                let xoff = u64::from(scenario.frame()) + extra / 4;
                scenario.set_text(&format!("xoff={xoff}")).expect("xoff");
            }
            let least = scenario.least_buffer();
            if !slots {
                scenario
                    .set_text(&format!("buffer={}", least + extra))
                    .expect("a buffer");
            }
            scenario
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Everything arrives, nothing is dropped with PFC, each packet crosses as many links as its path has, no flow is
    /// faster than alone, and a run is reproducible with any number of threads. The run itself checks that packets and
    /// memory are accounted for.
    #[test]
    fn all_that_is_sent_arrives(scenario in any_scenario(), seed in 0u64..1_000, threads in 1u16..6) {
        let counts = counts(&scenario, seed);
        let again = counts_by(&scenario, seed, threads);
        prop_assert_eq!(&Counts { most_packets: counts.most_packets, ..again }, &counts);
        let topology = scenario.topology().expect("a topology");
        let payload = u64::from(scenario.parameters.payload);
        let (mut flows, mut bytes, mut hops) = (0, 0, 0);
        for flow in arrivals(&scenario.parameters, &[], |host| format!("h{host}"), seed).expect("flows") {
            flows += 1;
            bytes += flow.bytes;
            hops += flow.bytes.div_ceil(payload) * u64::from(topology.hops(flow.from, flow.to));
        }
        prop_assert_eq!(counts.flows_started, flows);
        prop_assert_eq!(counts.finished.len() as u64, flows);
        prop_assert_eq!(counts.finished.iter().map(|flow| flow.bytes).sum::<u64>(), bytes);
        for flow in &counts.finished {
            prop_assert!(flow.slowdown > 1.0 - 1e-12, "{:?}", flow);
            let turn = (flow.id - 1) % scenario.parameters.priorities;
            prop_assert_eq!(u32::from(flow.priority), turn);
        }
        let control = scenario.parameters.flow_control;
        if control == FlowControl::None {
            prop_assert!(counts.data_packet_hops >= hops);
        } else {
            prop_assert_eq!(counts.dropped_packets, 0);
            prop_assert_eq!(counts.data_packet_hops, hops);
        }
        prop_assert!(control == FlowControl::Pfc || counts.pause_frames == 0);
    }
}

/// Two tiers whose links have their own rates and delays; some fail, before the run or during it. All paths over the first
/// spine stay up.
fn any_links() -> impl Strategy<Value = String> {
    let rate = || select(vec!["10gbit", "25gbit", "40gbit", "100gbit"]);
    let delay = || select(vec!["0ns", "300ns", "1us", "7us"]);
    let outage = (
        prop::option::of(0u64..80),
        prop::option::of(10u64..100),
        prop::option::of(0u64..20),
    );
    let link = (rate(), delay(), prop::option::weighted(0.4, outage));
    let tiers = (2usize..4, 2usize..4, 1usize..4);
    let workload = (
        select(vec!["permutation", "all-to-all", "incast", "all-reduce"]),
        select(vec!["pfc", "cbfc", "none"]),
        select(vec![
            "none",
            "dcqcn",
            "dcqcn+tcd",
            "ibcc",
            "qcn",
            "bcn",
            "timely",
            "lipd/input-output",
        ]),
        1u64..60_000,
        1u8..=3,
    );
    let links = prop::collection::vec(link, 9);
    (tiers, links, workload).prop_map(|((leaves, spines, hosts), links, workload)| {
        let (kind, control, scheme, bytes, priorities) = workload;
        let bytes = bytes.max(leaves as u64 * hosts as u64);
        let names: Vec<_> = (0..leaves * hosts).map(|host| format!("\"h{host}\"")).collect();
        let mut text = format!(
            "topology = \"custom\"\nhosts = [{}]\nswitches = [\"leaf[1-{leaves}]\", \"spine[1-{spines}]\"]\n\
             workload = \"{kind}\"\nflow_control = \"{control}\"\nscheme = \"{scheme}\"\nflow_size = \"{bytes}\"\n\
             priorities = {priorities}\nlimit = \"1000s\"\n",
            names.join(", ")
        );
        if kind == "incast" {
            text += &format!("senders = {}\n", leaves * hosts - 1);
        }
        for host in 0..leaves * hosts {
            text += &format!("[[links]]\nbetween = [\"h{host}\", \"leaf{}\"]\n", host / hosts + 1);
        }
        let between = (1..=leaves).flat_map(|leaf| (1..=spines).map(move |spine| (leaf, spine)));
        for ((leaf, spine), (rate, delay, outage)) in between.zip(links) {
            let link = format!("[\"leaf{leaf}\", \"spine{spine}\"]");
            text += &format!("[[links]]\nbetween = {link}\nrate = \"{rate}\"\ndelay = \"{delay}\"\n");
            let Some((from, lasts, reroute)) = outage.filter(|_| spine > 1) else {
                continue;
            };
            text += &format!("[[failures]]\nlink = {link}\n");
            for (key, time) in [
                ("from", from),
                ("to", lasts.map(|lasts| from.unwrap_or(0) + lasts)),
                ("reroute", reroute),
            ] {
                text += &time.map_or_else(String::new, |time| format!("{key} = \"{time}us\"\n"));
            }
        }
        text
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    /// Whatever fails, everything sent is delivered, counted as lost, or retransmitted: every flow finishes, with the
    /// same results for any number of threads. Without a change during the run nothing is lost.
    #[test]
    fn flows_survive_links_that_fail(text in any_links(), seed in 0u64..1_000, threads in 2u16..6) {
        let scenario = fabric::file::parse(&text, "links").expect("a file").expect("a data centre");
        let topology = match scenario.topology() {
            Ok(topology) => topology.seeded(seed),
            // Three failures can leave paths that go up again.
            Err(error) => {
                prop_assert!(error.to_string().contains("cyclic routing"), "{}", error);
                return Ok(());
            }
        };
        let run = |scenario: &Scenario, threads| {
            let options = Options { threads, series: true, trace: true, ..Options::default() };
            let counts = parts::run(scenario, &topology, seed, &options);
            counts.map_err(|error| TestCaseError::fail(error.to_string()))
        };
        // Also where it ends with packets in flight.
        let mut cut = scenario.clone();
        cut.set_text("limit=70us").expect("a limit");
        let early = run(&cut, 1)?;
        prop_assert_eq!(&Counts { most_packets: early.most_packets, ..run(&cut, threads)? }, &early);
        let counts = run(&scenario, 1)?;
        let again = run(&scenario, threads)?;
        prop_assert_eq!(&Counts { most_packets: counts.most_packets, ..again }, &counts);
        let flows = arrivals(&scenario.parameters, &[], |host| format!("h{host}"), seed).expect("flows");
        let payload = u64::from(scenario.parameters.payload);
        let (mut bytes, mut packets, mut hops) = (0, 0, 0);
        let all_reduce = scenario.parameters.workload.to_string() == "all-reduce";
        for flow in flows.filter(|_| !all_reduce) {
            bytes += flow.bytes;
            packets += flow.bytes.div_ceil(payload);
            hops += flow.bytes.div_ceil(payload) * u64::from(topology.hops(flow.from, flow.to));
        }
        prop_assert_eq!(counts.flows_started, counts.finished.len() as u64);
        let finished: u64 = counts.finished.iter().map(|flow| flow.bytes).sum();
        prop_assert!(all_reduce || finished == bytes);
        prop_assert!(counts.data_packets >= packets + counts.lost.data() + counts.dropped_packets);
        let lossless = scenario.parameters.flow_control != FlowControl::None;
        prop_assert!(!lossless || counts.dropped_packets == 0);
        if topology.changes.is_empty() {
            prop_assert_eq!(counts.lost, Lost::default());
            prop_assert!(counts.finished.iter().all(|flow| flow.slowdown > 1.0 - 1e-12));
            prop_assert!(!lossless || all_reduce || counts.data_packet_hops == hops);
        }
    }
}

fn set(settings: &[&str]) -> Vec<String> {
    settings
        .iter()
        .map(|setting| (*setting).to_owned())
        .collect()
}

/// Links of one path, packets back to back: exactly the time of an idle network.
#[test]
fn a_flow_alone_has_a_slowdown_of_1() {
    for bytes in ["1B", "1000B", "1001B", "20500B", "1MB"] {
        for kind in Kind::ALL {
            let settings = set(&[
                "workload=incast",
                "hosts=16",
                "senders=1",
                "window=auto",
                &format!("flow_size={bytes}"),
            ]);
            let counts = counts(&scenario(*kind, &settings), 5);
            assert_eq!(counts.finished[0].slowdown, 1.0, "{kind} {bytes}");
        }
    }
}

/// The share of their links that the inputs of one switch carry, always backlogged: packets for random others.
fn carried_by_one_switch(switch: &str, hosts: u32) -> f64 {
    let settings = set(&[
        "leaves=1",
        &format!("hosts={hosts}"),
        &format!("switch={switch}"),
        "flow_control=cbfc",
        "buffer=2MB",
        // Few of the bytes are ACKs; time for 1,000 packets.
        "payload=9000",
        "limit=725us",
    ]);
    let mut random = Pcg64Mcg::seed_from_u64(1);
    let flows = (0..hosts * 1_200).map(|number| {
        let from = number % hosts;
        let to = (from + random.random_range(1..hosts)) % hosts;
        Arrival::new(0, from, to, 9_000)
    });
    let scenario = scenario(Kind::LeafSpine, &settings).with_flows(flows.collect());
    counts(&scenario, 1).finished.len() as f64 / (f64::from(hosts) * 1_000.0)
}

/// Head-of-line blocking: 2 - sqrt(2) of the links of many ports, more of few (Karol, Hluchyj and Morgan 1987, section III; .6184
/// for 8, if inputs send to themselves too). One or two per cent are lost to the first round trip and to ACKs.
#[test]
fn crossbar_throughput_is_that_of_karol() {
    let carried = [4, 8, 64].map(|hosts| carried_by_one_switch("crossbar", hosts));
    assert!(carried.is_sorted_by(|few, many| few > many), "{carried:?}");
    assert!((carried[1] / 0.6184 - 1.0).abs() < 0.03, "{carried:?}");
    let limit = 2.0 - 2.0_f64.sqrt();
    assert!((carried[2] / limit - 1.0).abs() < 0.02, "{carried:?}");
    let shared = carried_by_one_switch("shared-memory", 64);
    assert!(shared > 0.94, "{shared}");
}

/// In a crossbar, a flow behind one whose output is congested is held up, and is a victim.
#[test]
fn a_crossbar_has_head_of_line_blocking() {
    let of = |switch: &str| {
        let settings = set(&[
            "leaves=1",
            "hosts=8",
            &format!("switch={switch}"),
            "flow_control=cbfc",
            "dcqcn.kmin=20kB",
            "scheme=dcqcn+tcd",
        ]);
        let flow = |from, to, bytes| Arrival::new(0, from, to, bytes);
        // All congest host 7, except host 0's second flow to an idle one.
        let mut flows: Vec<_> = (0..6).map(|from| flow(from, 7, 300_000)).collect();
        flows.push(flow(0, 6, 100_000));
        counts(&scenario(Kind::LeafSpine, &settings).with_flows(flows), 1)
    };
    let slowdown = |counts: &Counts| counts.finished[6].slowdown;
    let (shared, crossbar) = (of("shared-memory"), of("crossbar"));
    assert!(slowdown(&shared) < 3.0, "{}", slowdown(&shared));
    assert!(
        slowdown(&crossbar) > 2.0 * slowdown(&shared),
        "{}",
        slowdown(&crossbar)
    );
    assert_eq!(shared.head_of_line_victims, 0);
    // The others congest it themselves.
    let victims = crossbar.finished.iter().filter(|flow| flow.is_victim());
    let victims: Vec<u32> = victims.map(|flow| flow.id).collect();
    assert_eq!(victims, [7], "{:?}", crossbar.finished);
}

/// 34.1 ms within 1 % on average over the seeds, each within 3 %, without a drop: two other simulators have 34.06 and
/// 34.30. Ends depend on the paths that a seed selects.
#[test]
fn incast_ends_when_it_should() {
    for (scheme, seeds) in [("none", 1..2), ("dcqcn", 1..9)] {
        let runs = seeds.end - seeds.start;
        let mut sum = 0.0;
        for seed in seeds {
            let scheme = format!("scheme={scheme}");
            let settings = set(&["senders=20", "flow_size=20MB", &scheme]);
            let (report, _) = fabric::run(
                &scenario(Kind::FatTree, &settings),
                seed,
                &Options::default(),
            )
            .expect("a run");
            let end = report.last_flow_end_ms.expect("all finish");
            assert!((end / 34.1 - 1.0).abs() < 0.03, "{scheme} {seed}: {end}");
            assert_eq!((report.flows_finished, report.dropped_packets), (20, 0));
            assert_eq!(report.marked_packets > 0, scheme == "scheme=dcqcn");
            sum += end;
        }
        let mean = sum / runs as f64;
        assert!((mean / 34.1 - 1.0).abs() < 0.01, "{scheme}: {mean}");
    }
}

/// D6, with the DCQCN paper's parameters, which are for 40 Gb/s: two flows share a link of that rate
/// within 10 % of each other, use more than 90 % of it, and nothing is dropped.
#[test]
fn dcqcn_shares_a_link() {
    let settings = set(&[
        "hosts=4",
        "senders=2",
        "link_rate=40gbit",
        "flow_size=300MB",
        "scheme=dcqcn",
        "dcqcn.kmin=5kB",
        "dcqcn.kmax=200kB",
        "dcqcn.pmax=1/100",
        "dcqcn.alpha_timer=55us",
        "dcqcn.rate_timer=55us",
        "dcqcn.byte_counter=10MB",
        "dcqcn.fast_steps=5",
        "dcqcn.rai=40mbit",
        "dcqcn.rhai=400mbit",
        "dcqcn.clamp_target=on",
    ]);
    let scenario = scenario(Kind::LeafSpine, &settings);
    let counts = counts(&scenario, 1);
    assert_eq!(counts.dropped_packets, 0);
    let wire_bytes = 2.0 * 300e6 * 1.062;
    let used = wire_bytes / (counts.last_end as f64 / 1e12) / 5e9;
    assert!(used > 0.9, "{used}");
    let [a, b] = [0, 1].map(|flow| counts.finished[flow].time as f64);
    assert!((a / b - 1.0).abs() < 0.1, "{a} {b}");
}

/// A ring of eight: 14 steps, each a separate flow between neighbours, one after the other.
#[test]
fn all_reduce_completes_the_ring() {
    let settings = set(&["hosts=8", "workload=all-reduce", "flow_size=800kB"]);
    let scenario = scenario(Kind::LeafSpine, &settings);
    let counts = counts(&scenario, 1);
    assert_eq!(
        counts,
        Counts {
            most_packets: counts.most_packets,
            ..counts_by(&scenario, 1, 3)
        }
    );
    assert_eq!(counts.finished.len(), 8 * 14);
    for flow in &counts.finished {
        assert_eq!((flow.to, flow.bytes), ((flow.from + 1) % 8, 100_000));
        let step = (flow.id - 1) / 8;
        let Some(before) = step.checked_sub(1) else {
            assert_eq!(flow.start, 0);
            continue;
        };
        // It starts when the flow of the step before has arrived at its sender, an ACK's delay before that is finished.
        let id = before * 8 + (flow.from + 7) % 8 + 1;
        let before = counts
            .finished
            .iter()
            .find(|flow| flow.id == id)
            .expect("a flow");
        let end = before.start + before.time;
        assert!(
            (end - 5_000_000..end).contains(&flow.start),
            "{flow:?} {before:?}"
        );
    }
}

/// Unfinished flows count with their acknowledged bytes: here a link is full, and no flow is finished.
#[test]
fn a_run_that_is_cut_off_counts_what_arrived() {
    let settings = set(&["hosts=16", "senders=8", "flow_size=3MB", "limit=200us"]);
    let scenario = scenario(Kind::FatTree, &settings);
    let (whole, parts) = (counts(&scenario, 1), counts_by(&scenario, 1, 4));
    let most_packets = whole.most_packets;
    assert_eq!(
        whole,
        Counts {
            most_packets,
            ..parts
        }
    );
    let (report, _) = fabric::run(&scenario, 1, &Options::default()).expect("a run");
    assert_eq!((report.flows_started, report.flows_finished), (8, 0));
    // 100 Gb/s, of which headers take 6 % and the first round trip another 6.
    let goodput = report.goodput_bytes_per_s;
    assert!((10_500_000_000..11_800_000_000).contains(&goodput));
    assert!(report.jain > Some(0.2), "{:?}", report.jain);
}

/// Also where nothing happens for a long time before: rates and windows refer to the time until the limit.
#[test]
fn a_run_ends_at_its_limit() {
    // A packet takes 72 ms.
    let settings = set(&["hosts=4", "link_rate=1mbit", "payload=9000", "limit=300ms"]);
    let scenario =
        scenario(Kind::Dumbbell, &settings).with_flows(vec![Arrival::new(0, 0, 1, 90_000)]);
    let options = Options {
        windows: vec![(0, 290 * MS)],
        ..Options::default()
    };
    let (report, counts) = fabric::run(&scenario, 1, &options).expect("a run");
    assert_eq!(
        (counts.end, counts.unfinished[0].time),
        (300 * MS, 300 * MS)
    );
    assert_eq!(report.last_flow_end_ms, None);
    let window = &report.windows[0];
    let (line, goodput) = (1_000_000 / 8, report.goodput_bytes_per_s);
    assert!((1..line).contains(&goodput), "{goodput}");
    assert_eq!((window.to_ms, window.flows), (290.0, 1));
    assert!(window.goodput_bytes_per_s < Some(line), "{window:?}");
}

/// T1 and T3: pauses fill the chain's queues, so that plain marking marks the victim, which crosses no congested port;
/// TCD does not, and its slowdown is nearer to that of its offered load, 2.46.
#[test]
fn tcd_spares_the_victim_of_a_chain() {
    let victim = |scheme: &str| {
        let scheme = format!("scheme={scheme}");
        let settings = set(&[&scheme]);
        let counts = counts(&scenario(Kind::Chain, &settings), 1);
        assert!(counts.pause_frames > 0 && counts.marked_packets > 0);
        *(counts.finished.iter().find(|flow| flow.id == 1)).expect("it finished")
    };
    let (plain, tcd) = (victim("dcqcn"), victim("dcqcn+tcd"));
    assert_eq!((plain.from, plain.to, tcd.marked), (0, 2, 0));
    assert!(
        plain.marked > 0 && tcd.undetermined > 0,
        "{plain:?} {tcd:?}"
    );
    assert!(
        plain.slowdown > 1.1 * tcd.slowdown && tcd.slowdown < 2.8,
        "{plain:?} {tcd:?}"
    );
}

/// Two flows meet at the second switch. It marks or notifies if it takes part in the scheme; the first one never has to.
#[test]
fn only_switches_that_take_part_have_an_effect() {
    let flows = || {
        [0, 2]
            .map(|from| Arrival::new(0, from, 3, 1_000_000))
            .to_vec()
    };
    let run = |scheme: &str, settings: &[&str]| {
        let mut all = set(&[
            "hosts=4",
            "switches=2",
            "thresholds=static",
            "xoff=10MB",
            "buffer=20MB",
            "window=1MB",
        ]);
        all.push(format!("scheme={scheme}"));
        all.extend(set(settings));
        counts(&scenario(Kind::ParkingLot, &all).with_flows(flows()), 1)
    };
    let rated = |of: &Counts| of.finished.iter().map(|flow| flow.time).collect::<Vec<_>>();
    let mut controlled = 0;
    for scheme in Name::ALL.iter().filter(|scheme| scheme.is_in_switches()) {
        let scheme = scheme.name();
        let [first, second, both] =
            ["mark_in=s0", "mark_in=s1", "mark_in=s0,s1"].map(|setting| run(scheme, &[setting]));
        let marked = first.marked_packets + first.undetermined_packets;
        assert_eq!(marked, 0, "{scheme}");
        assert_eq!(rated(&second), rated(&both), "{scheme}");
        controlled += u32::from(rated(&first) != rated(&second));
    }
    // Without pauses TIMELY gets no marks, and IB's threshold is a part of the buffer.
    assert!(controlled >= 10, "{controlled}");
}

/// An incast of class 0 pauses that class all along TCD's chain: a flow that shares the chain with it, or even its host, has
/// nearly the slowdown of an idle network in its own class, and is much slower in the same class.
#[test]
fn a_paused_class_holds_up_no_other() {
    let flow = |start, from, to, priority| Arrival {
        priority,
        ..Arrival::new(start, from, to, 1_000_000)
    };
    // To R1, by S1 and the fifteen. Some time later to R0, from S0 or S1: by then pauses have reached these.
    let incast = [1].into_iter().chain(4..19).map(|from| flow(0, from, 3, 0));
    for control in ["pfc", "cbfc"] {
        for from in [0, 1] {
            let other = |priorities: u8| {
                let settings = set(&[
                    &format!("flow_control={control}"),
                    &format!("priorities={priorities}"),
                    "buffer=200kB",
                ]);
                let last = flow(300_000_000, from, 2, priorities - 1);
                let flows = incast.clone().chain([last]).collect();
                let scenario = scenario(Kind::Chain, &settings).with_flows(flows);
                let counts = counts_by(&scenario, 1, 2);
                assert_eq!(counts.dropped_packets, 0);
                assert_eq!(counts.finished.len(), 17);
                let off = |class| {
                    let mut all = counts.trace.iter().flatten();
                    all.any(|t| (t.port, t.class, t.change) == (from, class, Change::Off))
                };
                (counts.finished[16], off(0), off(1))
            };
            let ((same, ..), (own, off_0, off_1)) = (other(1), other(2));
            assert_eq!((same.priority, own.priority), (0, 1));
            assert_eq!((same.from, own.from, own.to), (from, from, 2));
            // By PFC 11.2 and 11.0 in the same class and 1.05 in its own, by credits 10.2, 10.3 and 1.08.
            assert!(same.slowdown > 8.0, "{control} {from}: {}", same.slowdown);
            assert!(own.slowdown < 1.15, "{control} {from}: {}", own.slowdown);
            // S1 also pauses the incast's class, and only that; any flow may use up credits at times.
            assert_eq!(off_0, from == 1);
            assert!(control == "cbfc" || !off_1);
        }
    }
}

/// In the chain, only one flow is paused by congestion that it does not cross: with any scheme, with pauses or credits.
/// In an incast all cross it, and without flow control nothing is held up.
#[test]
fn victims_do_not_cross_the_congestion_that_holds_them_up() {
    let victims = |kind, settings: &[&str]| -> Vec<u32> {
        let counts = counts(&scenario(kind, &set(settings)), 1);
        let all = counts.finished.iter().chain(&counts.unfinished);
        let ids: Vec<_> = all.filter(|f| f.is_victim()).map(|f| f.id).collect();
        assert_eq!(ids.len() as u64, counts.head_of_line_victims);
        ids
    };
    for scheme in ["none", "dcqcn", "timely+tcd"] {
        let scheme = format!("scheme={scheme}");
        assert_eq!(victims(Kind::Chain, &[&scheme]), [1], "{scheme}");
    }
    let credits = ["flow_control=cbfc", "buffer=200kB"];
    assert_eq!(victims(Kind::Chain, &credits), [1]);
    assert!(victims(Kind::Chain, &["flow_control=none"]).is_empty());
    assert!(victims(Kind::FatTree, &["hosts=16", "senders=8"]).is_empty());
}

/// A flow to an idle host is held up only at its own host's port, which is paused, or has no credits, because of what
/// the host sends to a congested one: no switch queues it.
#[test]
fn victims_of_a_paused_host_are_reported() {
    for control in [
        ["flow_control=pfc", "thresholds=static", "xoff=20kB"].as_slice(),
        &["flow_control=cbfc", "buffer=100kB"],
    ] {
        let settings = [&["leaves=1", "hosts=8"], control].concat();
        let flow = |from, to, bytes| Arrival::new(0, from, to, bytes);
        let mut flows: Vec<_> = (0..6).map(|from| flow(from, 7, 300_000)).collect();
        flows.push(flow(0, 6, 100_000));
        let scenario = scenario(Kind::LeafSpine, &set(&settings)).with_flows(flows);
        let counts = counts(&scenario, 1);
        let victims = counts.finished.iter().filter(|flow| flow.is_victim());
        let ids: Vec<u32> = victims.map(|flow| flow.id).collect();
        assert_eq!(ids, [7], "{control:?}");
    }
}

/// A window of packets in flight, and the next one when an ACK is back.
#[test]
fn a_flow_keeps_to_its_window() {
    for packets in [1, 3] {
        let window = format!("window={}B", 1_000 * packets + 999);
        let settings = [
            "leaves=1",
            "hosts=2",
            "senders=1",
            "flow_size=30kB",
            &window,
        ];
        let counts = counts(&scenario(Kind::LeafSpine, &set(&settings)), 1);
        // 1,062 and 66 bytes at 100 Gb/s, over two links of 1 us there and back.
        let (data, ack) = (84_960, 5_280);
        let round_trip = 2 * (data + ack) + 4 * 1_000_000;
        let rounds = 30 / packets;
        // Packets of one round follow each other.
        let expected = rounds * round_trip + (packets - 1) * data;
        assert_eq!(counts.finished[0].time, expected, "{packets}");
    }
}

/// What does not fit is dropped, and retransmitted.
#[test]
fn tail_drop_loses_and_repeats() {
    let settings = set(&["hosts=16", "senders=15", "flow_control=none", "buffer=50kB"]);
    let (report, _) =
        fabric::run(&scenario(Kind::FatTree, &settings), 1, &Options::default()).expect("a run");
    assert!(report.dropped_packets > 0);
    assert_eq!(report.flows_finished, 15);
    assert_eq!(report.pause_frames, 0);
}

/// Records the reports of a run's parts, and stops it at the first one if it is not patient.
#[derive(Debug)]
struct Onlooker {
    patient: bool,
    parts: Mutex<Vec<(Vec<Finished>, Option<Series>)>>,
}

impl Watch for Onlooker {
    fn on_progress(&self, part: &RunProgress<'_>) -> bool {
        let mut parts = self.parts.lock().expect("no panic");
        parts.resize(part.parts, Default::default());
        let (known, series) = &mut parts[part.part];
        let finished = &part.counts.finished;
        assert_eq!(*known, finished[..known.len()], "only more of them");
        (*known, *series) = (finished.clone(), part.series.cloned());
        self.patient
    }
}

/// Of a second or so.
fn long() -> Scenario {
    let settings = [
        "hosts=32",
        "workload=poisson",
        "load=3/5",
        "duration=5ms",
        "scheme=dcqcn",
    ];
    scenario(Kind::FatTree, &set(&settings))
}

/// An observer of a run gets each finished flow and the series, and changes nothing.
#[test]
fn a_run_can_be_watched() {
    let scenario = long();
    let topology = scenario.topology().expect("a topology");
    let alone = Counts {
        trace: None,
        ..counts(&scenario, 1)
    };
    for (patient, threads) in [(true, 1), (true, 3), (false, 1), (false, 3)] {
        let watch = Arc::new(Onlooker {
            patient,
            parts: Mutex::default(),
        });
        let options = Options {
            threads,
            series: true,
            windows: Vec::new(),
            trace: false,
            watch: Some(watch.clone()),
        };
        let result = parts::run(&scenario, &topology, 1, &options);
        let parts = std::mem::take(&mut *watch.parts.lock().expect("no panic"));
        let (finished, series): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        let mut finished = finished.concat();
        finished.sort_by_key(|flow| flow.id);
        let mut series = series.into_iter().map(|series| series.expect("asked for"));
        let mut joined = series.next().expect("a part");
        series.for_each(|other| joined.join(&other));
        let mut whole = alone.series.clone().expect("asked for");
        let length = joined.points.len();
        if patient {
            let counts = result.expect("a run");
            let most_packets = counts.most_packets;
            assert_eq!(finished, counts.finished);
            assert_eq!(
                counts,
                Counts {
                    most_packets,
                    ..alone.clone()
                }
            );
            assert_eq!(joined.points, whole.points);
        } else {
            let error = result.map(drop).expect_err("stopped");
            assert!(matches!(error, RunError::Stopped { ns: 1.. }), "{error}");
            assert!(!finished.is_empty() && finished.len() < alone.finished.len());
            let known = |flow| alone.finished.contains(flow);
            assert!(finished.iter().all(known));
        }
        // Its steps may have been shorter then.
        joined.join(&whole);
        whole.points.truncate(joined.points.len());
        let twice = |point: &Point| (2 * point.delivered, 2 * point.queued, 2 * point.marked);
        for (both, whole) in joined.points.iter().zip(&whole.points) {
            assert_eq!((both.delivered, both.queued, both.marked), twice(whole));
        }
        assert!(joined.points.len() > 10, "{length}");
    }
}

/// Ten times as many bytes need the same number of packets at a time, or hardly more.
#[test]
fn memory_is_for_what_is_in_flight() {
    let most = |size: &str| {
        let settings = set(&["hosts=54", "workload=permutation", size, "scheme=dcqcn"]);
        counts(&scenario(Kind::FatTree, &settings), 1).most_packets
    };
    let (little, much) = (most("flow_size=2MB"), most("flow_size=20MB"));
    assert!(much < 2 * little, "{little} {much}");
}

/// Two windows that divide a run cover all of it; a window after its end is empty.
#[test]
fn windows_divide_a_run() {
    let settings = ["hosts=16", "workload=all-to-all", "flow_size=30kB"].map(str::to_owned);
    let scenario = scenario(Kind::FatTree, &settings);
    let run = |windows: Vec<(Time, Time)>, threads| {
        let options = Options {
            windows,
            threads,
            ..Options::default()
        };
        let (report, counts) = fabric::run(&scenario, 1, &options).expect("a run");
        (report.windows, counts.end)
    };
    let (none, end) = run(Vec::new(), 1);
    assert_eq!(none, []);
    let middle = end / 2;
    let windows = vec![(0, middle), (middle, end + 1), (2 * end, 3 * end)];
    let (found, _) = run(windows.clone(), 1);
    assert_eq!(found, run(windows, 2).0);
    let payload = |window: &fabric::WindowReport| {
        let rate = window.goodput_bytes_per_s.expect("known") as f64;
        let senders = window.senders_bytes_per_s.clone().expect("known");
        // Each is rounded down.
        let sum: u64 = senders.values().sum();
        assert!((0.0..17.0).contains(&(rate - sum as f64)), "{window:?}");
        rate * (window.to_ms - window.from_ms) / 1e3
    };
    let [first, second, after] = &found[..] else {
        panic!("{found:?}")
    };
    let sum = payload(first) + payload(second);
    assert!((sum - 16.0 * 15.0 * 30e3).abs() < 10.0, "{sum}");
    assert!(payload(first) > payload(second) / 2.0);
    assert_eq!((first.flows, after.flows), (240, 0));
    assert!(first.jain.is_some_and(|jain| jain > 0.5 && jain <= 1.0));
    assert_eq!((after.goodput_bytes_per_s, after.jain), (None, None));
}

/// Two leaves and two spines; one flow from each of two hosts on the left to the right.
fn two_flows(failures: &str, settings: &[&str]) -> Result<Scenario, String> {
    let text = format!(
        "topology = \"leaf-spine\"\nhosts = 4\nleaves = 2\nspines = 2\nworkload = \"permutation\"\n\
         link_rate = \"10gbit\"\n{failures}"
    );
    let scenario = fabric::file::parse(&text, "two flows").map_err(|error| error.to_string())?;
    let mut scenario = scenario.expect("a data centre");
    for setting in settings {
        scenario.set_text(setting).expect("a setting");
    }
    let flow = |from, to| Arrival::new(0, from, to, 5_000_000);
    Ok(scenario.with_flows(vec![flow(0, 2), flow(1, 3)]))
}

fn run_of(scenario: &Scenario, windows: &[(Time, Time)]) -> Counts {
    let topology = scenario.topology().expect("a topology");
    // The first two flows take different paths, where they can.
    let apart = |seed: &u64| {
        let seeded = topology.clone().seeded(*seed);
        seeded.path(0, 2, 1)[1] != seeded.path(1, 3, 2)[1]
    };
    let topology = match (1..20).find(apart) {
        Some(seed) => topology.seeded(seed),
        None => topology,
    };
    let options = |threads| Options {
        threads,
        windows: windows.to_vec(),
        ..Options::default()
    };
    let of = |threads| parts::run(scenario, &topology, 1, &options(threads)).expect("a run");
    let (one, two) = (of(1), of(2));
    assert_eq!(
        Counts {
            most_packets: one.most_packets,
            ..two
        },
        one
    );
    one
}

/// With one of two spines both flows share its link, and nothing is lost.
#[test]
fn a_link_that_is_down_is_not_used() {
    let end = |failures: &str| {
        let counts = run_of(&two_flows(failures, &[]).expect("a scenario"), &[]);
        assert_eq!((counts.finished.len(), counts.dropped_packets), (2, 0));
        assert_eq!(counts.lost, Lost::default());
        counts.last_end as f64 / MS as f64
    };
    // 5 MB at 10 Gb/s: 4.25 ms with headers, for each alone.
    let whole = end("");
    let cut = end("[[failures]]\nlink = [\"spine1\", \"leaf0\"]\n");
    let other = end("[[failures]]\nlink = [\"leaf[0-1]\", \"spine0\"]\n");
    assert!(
        (whole - 4.25).abs() < 0.1 && (cut - 8.5).abs() < 0.1,
        "{whole} {cut}"
    );
    assert!((other - cut).abs() < 0.01, "{other} {cut}");
}

/// A link fails after 1 ms, routes change .1 ms later, and it returns after 2: what was on it and in its queue is lost
/// once, and so is what follows until routes change; the flows finish with PFC, credits and neither.
#[test]
fn a_link_fails_and_returns() {
    for control in ["pfc", "cbfc", "none"] {
        let control_key = format!("flow_control={control}");
        // With a larger one, its whole queue is retransmitted when later packets overtake it on the restored path.
        let settings = [&*control_key, "buffer=200kB"];
        let lost = |spine: u32, more: &str| {
            let failures = format!(
                "[[failures]]\nlink = [\"leaf0\", \"spine{spine}\"]\nfrom = \"1ms\"\n{more}"
            );
            let windows = [(MS / 2, MS), (3 * MS, 3 * MS + MS / 2)];
            let scenario = two_flows(&failures, &settings).expect("a scenario");
            let counts = run_of(&scenario, &windows);
            assert_eq!(counts.finished.len(), 2, "{control}");
            assert!(counts.data_packets >= 10_000 + counts.lost.data());
            let rates: Vec<f64> = counts
                .windows
                .iter()
                .map(|window| window.rate(|_| true) * 8e-9)
                .collect();
            (counts.lost, rates)
        };
        // Each spine carries one of the flows.
        for spine in 0..2 {
            let (at_once, rates) = lost(spine, "to = \"2ms\"\n");
            let (later, _) = lost(spine, "to = \"2ms\"\nreroute = \"100us\"\n");
            assert_eq!(
                (at_once.on_link, at_once.queued),
                (later.on_link, later.queued),
                "{control}"
            );
            // A microsecond of delay, and the packet that is being sent.
            assert!((2..=3).contains(&at_once.on_link), "{control} {at_once:?}");
            // In 0.1 ms a port sends 117 packets of 1062 bytes; a window may be in flight.
            assert!(
                at_once.no_route <= 1 && (100..=125).contains(&later.no_route),
                "{control} {later:?}"
            );
            assert!(rates.iter().all(|rate| *rate > 18.0), "{control} {rates:?}");
        }
        let (_, rates) = lost(0, "");
        assert!(rates[0] > 18.0 && rates[1] < 9.5, "{control} {rates:?}");
    }
}

/// What routers need not decide, or cannot: each is refused with its name.
#[test]
fn failures_that_make_no_sense_are_refused() {
    let spine = "link = [\"leaf0\", \"spine0\"]\n";
    for (failures, settings, needed) in [
        (
            "link = [\"leaf0\", \"spine2\"]\n".to_owned(),
            &[][..],
            "unknown host or switch `spine2`: did you mean `spine0`?",
        ),
        (
            "link = [\"leaf0\", \"leaf1\"]\n".to_owned(),
            &[],
            "no link from `leaf0` to `leaf1`",
        ),
        (
            format!("{spine}from = \"1ms\"\nto = \"1ms\"\n"),
            &[],
            "must be down for at least 1851ns",
        ),
        (
            format!("{spine}[[failures]]\n{spine}from = \"1ms\"\n"),
            &[],
            "is down in another of [[failures]]",
        ),
        (
            "link = [\"h2\", \"leaf1\"]\nfrom = \"1ms\"\n".to_owned(),
            &[],
            "no path is left from 1ms on for flows from h0 to h2",
        ),
        (
            "link = [\"leaf0\", \"spine[0-1]\"]\n".to_owned(),
            &[],
            "no path is left from 0s on for flows from h0 to h2, h1 to h3",
        ),
        (
            format!("{spine}from = \"1ms\"\n"),
            &["switch=crossbar"],
            "must be shared-memory",
        ),
    ] {
        let scenario = two_flows(&format!("[[failures]]\n{failures}"), settings);
        let checked = scenario.and_then(|scenario| {
            fabric::check_run(&scenario, 1).map_err(|error| error.to_string())
        });
        let error = checked.expect_err(needed);
        assert!(error.contains(needed), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    // Hosts without flows may be cut off.
    let aside = "[[failures]]\nlink = [\"h2\", \"leaf1\"]\n";
    let flows = vec![Arrival::new(0, 0, 3, 1_000)];
    let scenario = two_flows(aside, &[]).expect("a scenario");
    let counts = run_of(&scenario.with_flows(flows), &[]);
    assert_eq!(counts.finished.len(), 1);
}

/// Two failures by which packets between two leaves go up again at others, and can wait for each other.
#[test]
fn failures_that_make_routes_cyclic_are_refused() {
    let text = "topology = \"leaf-spine\"\nhosts = 4\nleaves = 4\nspines = 2\nworkload = \"all-to-all\"\n\
                flow_size = \"5kB\"\n[[failures]]\nlink = [\"leaf0\", \"spine1\"]\n\
                [[failures]]\nlink = [\"leaf2\", \"spine0\"]\n";
    let parse = |text: &str| {
        let scenario = fabric::file::parse(text, "x").expect("a file");
        scenario.expect("a data centre")
    };
    let mut both = parse(text);
    let error = fabric::check_run(&both, 1).expect_err("a circle");
    assert!(error.to_string().contains("cyclic routing: "), "{error}");
    both.set_text("flow_control=none").expect("a setting");
    assert_eq!(run_of(&both, &[]).finished.len(), 12);
    // Also if it happens only until routes change.
    let later = "[[failures]]\nlink = [\"leaf2\", \"spine0\"]\nfrom = \"1ms\"\n";
    let one = text
        .split_once("[[failures]]\nlink = [\"leaf2\"")
        .expect("two")
        .0;
    assert!(fabric::check_run(&parse(one), 1).is_ok());
    let error = fabric::check_run(&parse(&format!("{one}{later}")), 1);
    let error = error.expect_err("a circle").to_string();
    assert!(error.contains("cyclic routing: "), "{error}");
}
