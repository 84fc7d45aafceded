//! Virtual queues: ports without a queue of their own are kept below a rate.

use std::time::Duration;

use ecn_core::vqueue::DEPTH;
use ecn_tests::{
    emulated, eventually, kernel_test,
    lab::Lab,
    note,
    running::{self, Running},
    s,
    traffic::Stream,
};
use ecn_user::{
    agent::{Options, enforce::now_ns},
    config::{self, Marking},
};

const MBIT: u64 = 125_000;
/// Rate of the ports.
const RATE: u64 = 50 * MBIT;
/// Rate of the senders' links.
const LINK: u64 = 100 * MBIT;

/// Divisor of rates when emulated.
fn slower() -> u64 {
    if emulated() { 20 } else { 1 }
}

/// Hosts 0 and 1 send to host 2; no port has a queue.
fn start(lab: &Lab, marking: Marking, queue_rate: u64) -> Running {
    let mut config = running::config(lab, marking);
    let bridge = &mut config.bridges[0];
    bridge.queue = config::Queue::Virtual;
    bridge.queue_rate = Some(running::rate(queue_rate));
    Running::start(
        running::with_endpoints(config, lab, &[0, 1, 2], LINK / slower()),
        Options::default(),
    )
}

fn streams(lab: &Lab) -> Vec<Stream> {
    let streams = (0..10).map(|number| {
        let from = &lab.hosts[number % 2];
        Stream::start(from, &lab.hosts[2], 7001 + number as u16, 1400)
    });
    streams.collect()
}

/// Frame bytes per second of all streams.
fn rate(running: &Running, lab: &Lab, over: Duration) -> f64 {
    let port = || running.port(&lab.hosts[2].port).arrived;
    let (start, before) = (std::time::Instant::now(), port());
    std::thread::sleep(over);
    // Echoes go the other way: only data arrives here.
    (port() - before) as f64 * 1442.0 / start.elapsed().as_secs_f64()
}

#[test]
fn senders_come_down_to_its_rate() {
    kernel_test!();
    let lab = Lab::new(3);
    let queue_rate = RATE / slower();
    let running = start(&lab, Marking::InputOutput, queue_rate);
    let port = lab.hosts[2].port.clone();
    let streams = streams(&lab);
    let marked = || running.port(&port).marked > 100;
    assert!(eventually(s(10), marked), "{:?}", running.port(&port));
    // What the sources queued at first, faster than they may send now, has left.
    std::thread::sleep(s(4));
    let mut waits = Vec::new();
    let mut rates = Vec::new();
    // What the sources may send, to tell a wrong response from one that is not enforced.
    let mut limits = Vec::new();
    for _ in 0..6 {
        rates.push(rate(&running, &lab, Duration::from_millis(500)) / queue_rate as f64);
        waits.push(running.maps.bridge_at(0, now_ns()).expect("counters"));
        let flows = running.maps.flows().expect("flows");
        let limit: u64 = flows.iter().map(|(_, flow)| flow.rate_bytes_per_s).sum();
        limits.push(limit as f64 / queue_rate as f64);
    }
    let slot = running.slot(&port);
    let waits: Vec<u32> = waits.iter().map(|view| view.port(slot).cnt1).collect();
    let share = rates.iter().sum::<f64>() / rates.len() as f64;
    note(&format!(
        "virtual queue: {share:.3} of its rate ({rates:.2?}), limits {limits:.2?}, waiting {waits:?}, {:?}; {}",
        running.port(&port),
        running.counts()
    ));
    // Without control twice as much would arrive; on a busy machine senders are late.
    assert!((0.2..=1.1).contains(&share), "{rates:?}");
    let full = waits.iter().filter(|n| **n >= DEPTH as u32).count();
    assert!(full < waits.len() / 2, "{waits:?}");
    assert_eq!(running.port(&port).dropped, 0);
    drop(streams);
    idle(&running, queue_rate);
}

/// The queue empties, and this is visible at once, not at the next packet.
#[track_caller]
fn idle(running: &Running, queue_rate: u64) {
    // The time that a full queue takes to drain, in frames of 1442 bytes, and some more.
    let longest = DEPTH as f64 * 1442.0 / queue_rate as f64;
    // Packets queued at the sources arrive after their end.
    let arrived = || {
        (0..8)
            .map(|slot| running.view().port(slot).arrived)
            .sum::<u64>()
    };
    let mut known = u64::MAX;
    while known != arrived() {
        known = arrived();
        std::thread::sleep(Duration::from_secs_f64(longest * 2.0));
    }
    let view = running.maps.bridge_at(0, now_ns()).expect("counters");
    for slot in 0..8 {
        let p = view.port(slot);
        assert_eq!(
            (p.cnt1, p.cnt2, p.occupancy),
            (0, 0, 0),
            "slot {slot}: {p:?}"
        );
    }
    // In the kernel's counters, too, soon.
    let zero = eventually(s(3), || running.waiting().is_empty());
    assert!(zero, "{:?}", running.waiting());
}

/// Without control: as many packets wait as fit, and all have left afterwards.
#[test]
fn overload_does_not_accumulate() {
    kernel_test!();
    let lab = Lab::new(3);
    // When emulated, senders are slower.
    let (queue_rate, packets) = if emulated() {
        (RATE / 50, 1_000)
    } else {
        (RATE, 10_000)
    };
    let running = start(&lab, Marking::None, queue_rate);
    let port = lab.hosts[2].port.clone();
    let streams = streams(&lab);
    let full = || running.port(&port).cnt1 == DEPTH as u32;
    assert!(eventually(s(10), full), "{:?}", running.port(&port));
    let before = running.port(&port).arrived;
    let more = || running.port(&port).arrived > before + packets;
    assert!(eventually(s(10), more), "{:?}", running.port(&port));
    assert!(running.port(&port).cnt1 <= DEPTH as u32);
    drop(streams);
    idle(&running, queue_rate);
    let p = running.port(&port);
    assert_eq!(
        (p.arrived, p.marked, p.dropped),
        (p.departed, 0, 0),
        "{p:?}"
    );
}

/// A port whose packets are in others' queues is removed, and its slot is reused.
#[test]
fn a_port_is_removed_and_added() {
    kernel_test!();
    let mut lab = Lab::new(3);
    let mut config = running::config(&lab, Marking::InputOutput);
    config.bridges[0].queue = config::Queue::Virtual;
    config.bridges[0].queue_rate = Some(running::rate(RATE / 50));
    let running = Running::start(config, Options::default());
    for _ in 0..3 {
        let streams = streams(&lab);
        let port = lab.hosts[2].port.clone();
        let waits = || running.port(&port).cnt1 > 20;
        assert!(eventually(s(5), waits), "{:?}", running.port(&port));
        lab.unplug(0);
        drop(streams);
        lab.plug_in(0);
        let back = || {
            let state = running.agent().state();
            state.bridges[0].ports.len() == 3
        };
        assert!(eventually(s(5), back), "{:?}", running.agent().state());
    }
    let zero = eventually(s(10), || running.waiting().is_empty());
    assert!(zero, "{:?}", running.waiting());
}
