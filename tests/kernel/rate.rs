//! A flow pinned at a rate gets that rate.

use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    process::Command,
    time::{Duration, Instant},
};

use ecn_core::{
    flow::{Flow, Key},
    packet::protocol,
};
use ecn_tests::{
    eventually, kernel_test,
    lab::{DEVICE, Lab},
    note,
    running::{self, Running},
    s,
    traffic::{self, Stream, Tcp},
};
use ecn_user::{agent::Options, config::Marking};

const MBIT: u64 = 125_000;
const LINK: u64 = 200 * MBIT;

/// Tolerance of the rate: HTB counts whole frames, and so does the test. On a busy machine some timers are later than a
/// class's burst makes up for; the class's configured rate must be exact.
const EXPECTED: RangeInclusive<f64> = 0.9..=1.03;

fn start(lab: &Lab) -> Running {
    let config = running::config(lab, Marking::None);
    Running::start(
        running::with_endpoints(config, lab, &[0, 1], LINK),
        Options::default(),
    )
}

/// Frame bytes per second that the receiver counted.
fn measured(running: &Running, protocol: u8, over: Duration) -> f64 {
    let bytes = || {
        running
            .receiver(|key| key.endpoint == 2 && key.protocol == protocol)
            .bytes
    };
    let (start, before) = (Instant::now(), bytes());
    std::thread::sleep(over);
    (bytes() - before) as f64 / start.elapsed().as_secs_f64()
}

/// The classes of the first host's device, by tc(8).
fn classes(lab: &Lab) -> String {
    let netns = lab.hosts[0].ns.name();
    let words = ["-n", netns, "class", "show", "dev", DEVICE];
    let tc = Command::new("tc").args(words).output().expect("tc");
    String::from_utf8_lossy(&tc.stdout).into_owned()
}

/// Pins the one flow of a protocol to rates, one after the other.
fn hold(lab: &Lab, running: &mut Running, protocol: u8, mbits: &[u64]) {
    let is_there = || {
        let flows = running.maps.flows().expect("flows");
        flows.iter().any(|(key, _)| key.protocol == protocol)
    };
    assert!(eventually(s(5), is_there), "no flow");
    let (key, _) = running.flow(|key| key.endpoint == 1 && key.protocol == protocol);
    for &mbit in mbits {
        let target = (mbit * MBIT) as f64;
        running.maps.set_pin(&key, mbit * MBIT).expect("pin");
        // The agent polls every 100 ms; packets queued then also leave at the new rate.
        std::thread::sleep(Duration::from_millis(500));
        if device(lab).0 == "htb" {
            let classes = classes(lab);
            let ceil = format!(" ceil {mbit}Mbit ");
            assert!(classes.contains(&ceil), "{mbit} mbit: {classes}");
        }
        let part = measured(running, protocol, Duration::from_millis(2500)) / target;
        note(&format!("protocol {protocol} at {mbit} mbit: {part:.3}"));
        assert!(EXPECTED.contains(&part), "{mbit} mbit: {part}");
    }
}

#[test]
fn udp() {
    kernel_test!();
    let lab = Lab::new(2);
    let mut running = start(&lab);
    // Small packets at 1 Mbit/s, where a window contains few; large ones at 100 Mbit/s.
    let stream = Stream::deep(&lab.hosts[0], &lab.hosts[1], 7001, 500);
    hold(&lab, &mut running, protocol::UDP, &[1, 10]);
    drop(stream);
    let _stream = Stream::deep(&lab.hosts[0], &lab.hosts[1], 7001, 1458);
    hold(&lab, &mut running, protocol::UDP, &[100, 10]);
}

#[test]
fn tcp() {
    kernel_test!();
    let lab = Lab::new(2);
    let mut running = start(&lab);
    let stream = Tcp::start(&lab, 5001);
    hold(&lab, &mut running, protocol::TCP, &[10]);
    drop(stream);
}

/// Unclassified packets bypass all classes: a flow that is at full rate again keeps its class while it uses the link, since
/// it would otherwise overtake its own packets.
#[test]
fn a_flow_that_uses_the_link_keeps_its_class() {
    kernel_test!();
    let lab = Lab::new(2);
    let mut running = start(&lab);
    let stream = Tcp::start(&lab, 5001);
    hold(&lab, &mut running, protocol::TCP, &[100]);
    let (key, _) = running.flow(|key| key.endpoint == 1 && key.protocol == protocol::TCP);
    assert!(running.maps.remove_pin(&key));
    // Three times as long as the class of a slow flow is kept.
    std::thread::sleep(s(3));
    // The link's class and the flow's.
    assert_eq!(device(&lab).1, 2, "{}", classes(&lab));
    drop(stream);
    let is_gone = || device(&lab).1 == 1;
    assert!(eventually(s(5), is_gone), "{}", classes(&lab));
}

/// Without its pin, the flow follows its response again: here, the whole link.
#[test]
fn a_removed_pin_restores_the_response() {
    kernel_test!();
    let lab = Lab::new(2);
    let mut running = start(&lab);
    let stream = Stream::deep(&lab.hosts[0], &lab.hosts[1], 7001, 1400);
    hold(&lab, &mut running, protocol::UDP, &[10]);
    let (key, _) = running.flow(|key| key.endpoint == 1);
    assert!(running.maps.remove_pin(&key));
    let free = || stream.rate(Duration::from_millis(500)) > (20 * MBIT) as f64;
    assert!(eventually(s(5), free), "still held");
}

/// The root qdisc, classes and longest super-packets of the first host's device.
fn device(lab: &Lab) -> (String, usize, Option<u32>) {
    let host = &lab.hosts[0];
    let root = host.nl.root_qdisc(host.ifindex).expect("qdiscs");
    let classes = host.nl.class_stats(host.ifindex).expect("classes");
    let link = host.nl.link(DEVICE).expect("the device");
    let kind = root.map(|root| root.kind).unwrap_or_default();
    (kind, classes.len(), link.gso_max_segs)
}

/// Unmarked flows are not touched: they have no class and no queue, and the device is unchanged. The first limited flow
/// changes that, for itself, and afterwards the device is restored.
#[test]
fn unmarked_flows_are_not_limited() {
    kernel_test!();
    const PACKETS: u64 = 60;
    let lab = Lab::with_super_packets(2);
    let before = device(&lab);
    let mut config = running::config(&lab, Marking::None);
    config = running::with_endpoints(config, &lab, &[0, 1], 10 * MBIT);
    let mut running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    for flow in 0..20 {
        let (sending, receiving) = (
            traffic::udp(from, false, 7001 + flow),
            traffic::udp(to, false, 8001 + flow),
        );
        let target = SocketAddr::new(to.address(false), 8001 + flow);
        let start = Instant::now();
        for _ in 0..PACKETS {
            sending.send_to(&[5; 1000], target).expect("send");
        }
        // 50 ms at the link's rate.
        let sent = start.elapsed();
        assert!(sent < Duration::from_millis(40), "{sent:?}");
        let mut buffer = [0; 1000];
        let received = (0..PACKETS).filter(|_| receiving.recv(&mut buffer).is_ok());
        assert_eq!(received.count() as u64, PACKETS, "flow {flow}");
    }
    let flows = running.maps.flows().expect("flows");
    let free = |flow: &&(_, Flow)| flow.1.class == 0 && flow.1.sent_packets == PACKETS;
    assert_eq!(flows.iter().filter(free).count(), 20);
    assert_eq!(device(&lab), before);

    let held = Stream::start(from, to, 7101, 1000);
    let is_flow = |key: &Key| key.endpoint == 1 && key.src_port == 7101;
    let there = || {
        let flows = running.maps.flows().expect("flows");
        flows.iter().any(|(key, _)| is_flow(key))
    };
    assert!(eventually(s(5), there), "no flow");
    let (key, _) = running.flow(is_flow);
    running.maps.set_pin(&key, MBIT).expect("pin");
    let limited = || held.rate(Duration::from_millis(500)) < 1.2 * MBIT as f64;
    assert!(eventually(s(5), limited), "{:?}", device(&lab));
    // Root, link and the one class; short super-packets.
    assert_eq!(device(&lab), ("htb".to_owned(), 2, Some(1)));
    let other = Stream::start(from, to, 7102, 1000);
    let fast = || other.rate(Duration::from_millis(300)) > 12.0 * MBIT as f64;
    assert!(
        eventually(s(5), fast),
        "an unlimited flow is held to the link's rate"
    );
    drop((held, other));
    assert!(running.maps.remove_pin(&key));
    let as_before = || device(&lab) == before;
    assert!(eventually(s(20), as_before), "{:?}", device(&lab));
}
