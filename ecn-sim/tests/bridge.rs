//! One bridge of greedy hosts against what such bridges gave on Linux 6.18: HTB and a pfifo of 100 packets
//! at the receiver's port, UDP, `response=lipd` with one decrease per round, 1/64 of the link as the floor.

use ecn_sim::report::{AnyWindow, WindowReport, run};
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
