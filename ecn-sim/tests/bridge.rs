//! One bridge of greedy hosts against what such bridges gave on Linux 6.18: HTB and a pfifo of 100 packets
//! at the receiver's port, UDP, `response=lipd` with one decrease per round, 1/64 of the link as the floor.

use ecn_sim::report::{AnyWindow, ClassShare, HostShares, WindowReport, run};
use ecn_sim::scenario::Scenario;

fn windows(settings: &[&str], windows: &[(u64, u64)]) -> Vec<AnyWindow> {
    let mut scenario = Scenario::bridge();
    for setting in settings {
        scenario.set_text(setting).expect("a setting");
    }
    const MS: u64 = 1_000_000_000;
    let windows: Vec<_> = windows
        .iter()
        .map(|(from, to)| (from * MS, to * MS))
        .collect();
    let report = run(&scenario, 1, &windows, 0, None)
        .expect("a run")
        .report(&scenario, 1);
    let windows = report.windows.into_iter();
    windows
        .map(|window| match window {
            WindowReport::Any(window) => window,
            WindowReport::Hp(window) => panic!("{window:?}"),
        })
        .collect()
}

fn window(settings: &[&str]) -> AnyWindow {
    windows(settings, &[]).remove(0)
}

/// Hosts, then the port's share of its rate (goodput / .97) and its mean queue as measured.
const MEASURED: &[(&str, f64, f64)] = &[
    ("hosts=2", 0.79, 2.4),
    ("hosts=3", 0.866, 3.0),
    ("hosts=5", 0.918, 4.0),
    ("hosts=10", 0.966, 5.4),
    ("hosts=40", 0.99, 14.0),
];

#[test]
fn shares_are_those_of_a_bridge() {
    for (hosts, share, queue) in MEASURED {
        let w = window(&["response=lipd", "round=packets", "rmin=1/64", hosts]);
        let (port, waits) = (&w.queues["port"], w.links["port"]);
        assert!((waits - share).abs() < 0.03, "{hosts}: {waits:.3}");
        assert!((port.mean_packets - queue).abs() < 3.0, "{hosts}: {port:?}");
        assert_eq!(port.dropped_packets, 0, "{hosts}");
        assert!(w.classes["controlled"].jain > 0.98, "{hosts}");
    }
}

/// Too many flows for the floor, and a floor that is too high for the port: measured were 20,000 and
/// 4,900 drops a second.
#[test]
fn a_floor_above_the_share_controls_nothing() {
    for (settings, drops) in [
        (&["hosts=100"][..], 10_000.0),
        (&["hosts=10", "link_rate=1gbit"], 4_900.0),
    ] {
        let settings = [&["response=lipd", "round=packets", "rmin=1/64"], settings].concat();
        let port = window(&settings).queues["port"].clone();
        assert!(port.mean_packets > 98.0, "{settings:?}: {port:?}");
        let per_s = port.dropped_packets as f64 / 6.0;
        assert!((per_s / drops - 1.0).abs() < 0.1, "{settings:?}: {per_s}");
    }
}

#[test]
fn a_faster_nic_sends_faster() {
    // HTB with a burst of one frame makes up for no lateness of its timer.
    let free = |rate| {
        let free = ["response=none", "marking=none", "timer_delay=0s"];
        window(&[&free[..], &["hosts=1", rate]].concat())
    };
    assert_eq!(free("link_rate=100mbit").queues["port"].dropped_packets, 0);
    let w = free("link_rate=1gbit");
    // Nine tenths find no room.
    let offered = 6 * 125_000_000 / 1514;
    let dropped = w.queues["port"].dropped_packets as f64 / offered as f64;
    assert!((dropped - 0.9).abs() < 0.001, "{dropped}");
    assert!((w.classes["controlled"].share - 1.0).abs() < 0.001);
}

#[test]
fn flows_start_and_leave() {
    let settings = ["hosts=4", "flows=5", "stagger=100ms", "leave=4s"];
    let parts = windows(
        &settings,
        &[(0, 100), (100, 200), (3000, 4000), (7000, 8000)],
    );
    let hosts = |part: &AnyWindow| {
        let shares = part.classes["controlled"].by_host.clone();
        shares.expect("hosts").hosts_bytes_per_s
    };
    let active = |part: &AnyWindow| hosts(part).values().filter(|rate| **rate > 0).count();
    assert_eq!(hosts(&parts[0]).len(), 4);
    let counts: Vec<usize> = parts.iter().map(active).collect();
    assert_eq!(counts, [1, 2, 4, 1]);
    assert!(hosts(&parts[3])["h1"] > 11_000_000);
    let together = &parts[2].classes["controlled"];
    let fair = together.by_host.as_ref().expect("hosts").jain_hosts;
    assert!(together.jain > 0.98 && fair > 0.98, "{together:?}");
}

const LIPD: [&str; 3] = ["response=lipd", "round=packets", "rmin=1/64"];

fn class<'a>(w: &'a AnyWindow, name: &str) -> (&'a ClassShare, &'a HostShares) {
    let share = &w.classes[name];
    (share, share.by_host.as_ref().expect("hosts"))
}

/// Beside four controlled hosts: measured were .9 to 1.5 Mbit/s for each of them, 89 to 94 for the other.
#[test]
fn who_has_no_agent_takes_it_all() {
    for (traffic, others) in [
        ("traffic=greedy", "others_traffic=greedy"),
        ("traffic=greedy", "others_traffic=cubic"),
        ("traffic=cubic", "others_traffic=cubic"),
        ("traffic=cubic", "others_traffic=95mbit"),
    ] {
        let settings = ["hosts=4", "others=1", traffic, others];
        let w = window(&[&LIPD[..], &settings].concat());
        let (other, of_other) = class(&w, "other");
        assert!(other.share > 0.85, "{traffic}, {others}: {}", other.share);
        assert_eq!(of_other.marked_packets, 0, "{traffic}, {others}");
        assert!(class(&w, "controlled").1.marked_packets > 0);
    }
}

#[test]
fn a_rate_that_fits_is_carried() {
    let w = window(&["hosts=3", "traffic=30mbit", "marking=none", "response=none"]);
    let (all, of_all) = class(&w, "controlled");
    assert!((all.share - 0.9).abs() < 0.001, "{}", all.share);
    assert_eq!(
        (of_all.dropped_packets, of_all.host_dropped_packets),
        (0, 0)
    );
    assert!(of_all.delay_us_p99 < 1_000.0, "{}", of_all.delay_us_p99);
    // Its own link has less than that.
    let w = window(&[
        "hosts=1",
        "traffic=150mbit",
        "marking=none",
        "response=none",
    ]);
    let (_, of_one) = class(&w, "controlled");
    let over = 6.0 * 50e6 / 8.0 / 1514.0;
    let dropped = of_one.host_dropped_packets as f64 / over;
    assert!((dropped - 1.0).abs() < 0.02, "{dropped}");
    // 100 packets wait there.
    assert!(
        (of_one.delay_us_p50 / 12_112.0 - 1.0).abs() < 0.1,
        "{of_one:?}"
    );
}

/// Without control a queue is what TCP makes of it.
#[test]
fn tcp_fills_a_queue_and_shares_it() {
    for traffic in ["traffic=reno", "traffic=cubic"] {
        for hosts in ["hosts=2", "hosts=10"] {
            let free = ["marking=none", "response=none", "link_rate=1gbit"];
            let w = window(&[&free[..], &[traffic, hosts, "duration=20s"]].concat());
            let (all, of_all) = class(&w, "controlled");
            let case = format!("{traffic} {hosts}: {all:?} {:?}", w.queues);
            assert!(all.share > 0.97, "{case}");
            assert!(all.jain > 0.9, "{case}");
            let port = &w.queues["port"];
            assert!((50.0..99.0).contains(&port.mean_packets), "{case}");
            let lost = port.dropped_packets as f64 / (all.share * 18.0 * 12.5e6 / 1514.0);
            assert!((0.0001..0.02).contains(&lost), "{lost}: {case}");
            assert_eq!(of_all.dropped_packets, port.dropped_packets);
        }
    }
}

#[test]
fn short_flows_end() {
    let settings = ["hosts=5", "short=300", "short_packets=3", "duration=12s"];
    let w = window(&[&LIPD[..], &settings].concat());
    let finished = class(&w, "short").1.finished.clone().expect("flows");
    let per_s = finished.finished_flows as f64 / 10.0;
    assert!((per_s - 300.0).abs() < 18.0, "{per_s}");
    // The queue of five greedy hosts is some packets long; a timeout would take 200 ms.
    let (p50, p99) = (finished.completion_ms_p50, finished.completion_ms_p99);
    assert!((0.1..2.0).contains(&p50), "{p50}");
    assert!(p50 < p99 && p99 < 20.0, "{p99}");
    let idle = window(&["hosts=1", "traffic=1mbit", "short=10", "short_packets=40"]);
    let idle = class(&idle, "short").1.finished.clone().expect("flows");
    // 39 packets at 100 Mbit/s take 4.72 ms, and the first one nothing.
    assert!((4.7..6.0).contains(&idle.completion_ms_p50), "{idle:?}");
}

/// 5 Mbit/s of voice beside greedy hosts; measured beside 10: 2 ms for 99 %, .36 % lost.
#[test]
fn voice_is_heard_beside_ten() {
    let w = window(&[&LIPD[..], &["hosts=10", "voice=6050kbit"]].concat());
    let (voice, of_voice) = class(&w, "voice");
    let lost = of_voice.dropped_packets + of_voice.host_dropped_packets;
    let sent = lost as f64 + voice.bytes_per_s as f64 * 6.0 / 242.0;
    assert!(lost as f64 / sent < 0.05, "{lost} of {sent}");
    assert!(of_voice.delay_us_p50 < 2_000.0, "{of_voice:?}");
}

/// A file names all of these by flow.
#[test]
fn a_file_says_what_is_sent() {
    use ecn_sim::experiment::Experiment;
    let text = |more: &str, switch: &str| {
        format!(
            "duration = \"1s\"\nswitches = [\"s\"]\nhosts = [\"a\", \"b\", \"sink\"]\n\
             links = [{{between = [\"a\", \"s\"], rate = \"1gbit\"}}, \
             {{between = [\"b\", \"s\"], rate = \"1gbit\"}}, \
             {{between = [\"s\", \"sink\"], rate = \"100mbit\"}}]\n\
             flows = [{{class = \"x\", from = \"a\", to = \"sink\", traffic = \"20mbit\", control = false}}, \
             {{class = \"y\", from = \"b\", to = \"sink\"{more}}}]\n\
             model = {{switch = \"{switch}\"}}\n"
        )
    };
    let run = |text: &str| Experiment::parse(text, "a file").map(|one| one.run(1, &[]));
    let report = run(&text(", arrivals = 100, packets = 2", "output"));
    let report = report.expect("a scenario").expect("a run");
    let report = serde_json::to_value(&report).expect("JSON");
    let classes = &report["windows"][0]["classes"];
    let flows = classes["y"]["finished_flows"].as_u64();
    assert!(
        flows.is_some_and(|flows| (50..110).contains(&flows)),
        "{classes}"
    );
    let rate = classes["x"]["bytes_per_s"].as_f64().expect("a rate");
    assert!((rate / 2_500_000.0 - 1.0).abs() < 0.01, "{rate}");
    for (more, switch, needed) in [
        (", packets = 2", "output", "`arrivals`"),
        (", arrivals = 0", "output", "1 to 1000000"),
        (", traffic = \"cubik\"", "output", "`cubic`"),
        ("", "input", "switch = input"),
    ] {
        let error = run(&text(more, switch)).expect_err(more).to_string();
        assert!(error.contains(needed), "{error}");
    }
}
