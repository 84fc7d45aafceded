//! Departure times with fq: the configured rate is met, and the root qdisc is managed.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use ecn_core::{abi::Count, flow::Key, packet::protocol};
use ecn_tests::{
    Skip, emulated, eventually, kernel_test,
    lab::{DEVICE, Lab},
    name_of, note,
    running::{self, Running},
    s, skipped,
    traffic::{Stream, Tcp},
};
use ecn_user::{
    agent::{Options, root::FQ_MAJOR},
    config::{Enforcement, Marking},
    datapath,
    net::{FqDrops, Netlink, Qdisc, VethEnd},
};
use nix::sys::socket::{setsockopt, sockopt};

const MBIT: u64 = 125_000;
const LINK: u64 = 2_000 * MBIT;
/// Tolerance of a rate.
const WITHIN: f64 = 0.02;
/// Tolerance below it with TCP, which queues at most two packets (TSQ): a busy machine is late.
const WITHIN_TCP: f64 = 0.1;

/// Skips the test if the kernel has no fq.
macro_rules! needs_fq {
    ($lab:expr) => {
        if !has_fq($lab) {
            skipped(name_of(|| {}), Skip::Kernel, "this kernel has no fq");
            return;
        }
    };
}

fn has_fq(lab: &Lab) -> bool {
    let nl = Netlink::open(&lab.switch).expect("netlink");
    let [near, far] = ["fq-near", "fq-far"].map(|name| VethEnd {
        name,
        ..VethEnd::default()
    });
    let link = nl.add_veth(&near, &far, &lab.switch, 1500).expect("veth");
    let found = nl.fq(link.index, FQ_MAJOR, ecn_user::net::ROOT, 100, 1000);
    nl.delete_link(link.index).expect("delete the veth");
    found.is_ok()
}

fn start(lab: &Lab, enforcement: Enforcement) -> Running {
    let config = running::config(lab, Marking::None);
    let mut config = running::with_endpoints(config, lab, &[0, 1], LINK);
    for endpoint in &mut config.endpoints {
        endpoint.enforcement = enforcement;
    }
    Running::start(config, Options::default())
}

fn root(lab: &Lab) -> Qdisc {
    let host = &lab.hosts[0];
    let found = host.nl.root_qdisc(host.ifindex).expect("qdiscs");
    found.expect("a root qdisc")
}

fn enforcement(running: &Running) -> Enforcement {
    running.agent().state().endpoints[0].enforcement
}

/// `tc` in the namespace of the first host. False: it is not installed.
fn tc(lab: &Lab, words: &str) -> bool {
    let run = || Command::new("tc").args(words.split_whitespace()).status();
    match lab.hosts[0].ns.run(run) {
        Ok(status) => {
            assert!(status.success(), "tc {words}");
            true
        }
        Err(_) => false,
    }
}

/// Frame bytes per second that left the sender's fq; super-packets count as their segments. Measured from one departure to
/// another: at 1 Mbit/s a super-packet takes half a second.
fn left(lab: &Lab, over: Duration) -> f64 {
    let departure = || {
        let before = root(lab).bytes;
        let mut bytes = before;
        for _ in 0..2000 {
            if bytes != before {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
            bytes = root(lab).bytes;
        }
        (Instant::now(), bytes)
    };
    let (start, before) = departure();
    std::thread::sleep(over);
    let (end, after) = departure();
    (after - before) as f64 / (end - start).as_secs_f64()
}

/// Pins the one flow of a protocol at each of these rates that the machine can send, and compares: never faster, and not
/// slower. Returns how many were within 2 %. An emulated kernel stalls at times: late packets then leave at once, so
/// only the best of its measurements counts.
fn hold(lab: &Lab, running: &mut Running, protocol: u8, below: f64, mbits: &[u64]) -> u32 {
    let is_there = || {
        let flows = running.maps.flows().expect("flows");
        flows.iter().any(|(key, _)| key.protocol == protocol)
    };
    assert!(eventually(s(10), is_there), "no flow");
    // Packets still queued at the flow's last rate leave first.
    std::thread::sleep(s(2));
    let lowest = mbits.iter().min().expect("rates") * MBIT;
    let of_it = |key: &Key| key.endpoint == 1 && key.protocol == protocol;
    // By the flow's own count: nothing is limited yet, so the root is not fq.
    let sent = |over: Duration| {
        let before = running.flow(of_it).1.sent_bytes;
        let start = Instant::now();
        std::thread::sleep(over);
        let after = running.flow(of_it).1.sent_bytes;
        (after - before) as f64 / start.elapsed().as_secs_f64()
    };
    let mut carried: f64 = 0.0;
    for _ in 0..if emulated() { 5 } else { 1 } {
        carried = carried.max(sent(s(2)));
        if carried >= lowest as f64 * 1.3 {
            break;
        }
    }
    let (key, _) = running.flow(of_it);
    let mut held = 0;
    for &mbit in mbits {
        let target = (mbit * MBIT) as f64;
        if carried < target * 1.3 {
            let most = carried / MBIT as f64;
            note(&format!(
                "edt: {mbit} mbit left out, this machine carries {most:.0} mbit"
            ));
            continue;
        }
        running.maps.set_pin(&key, mbit * MBIT).expect("pin");
        // The agent polls every 100 ms; packets stamped before leave at the old rate.
        std::thread::sleep(Duration::from_millis(1500));
        // A busy machine can only make it slower.
        let mut windows = Vec::new();
        // At 1 Mbit/s one packet more or less matters.
        let window = Duration::from_millis(if mbit == 1 { 5000 } else { 2500 });
        let exact = (0..4).any(|_| {
            let ratio = left(lab, window) / target;
            windows.push(ratio);
            (ratio - 1.0).abs() <= WITHIN
        });
        note(&format!(
            "edt: protocol {protocol} at {mbit} mbit: {windows:.4?}"
        ));
        let most = windows.iter().copied().fold(0.0, f64::max);
        let least = windows.iter().copied().fold(f64::MAX, f64::min);
        let (low, high) = if emulated() {
            (0.0, least)
        } else {
            (1.0 - below, most)
        };
        assert!(high <= 1.0 + WITHIN, "{mbit} mbit: {windows:?}");
        assert!(most >= low, "{mbit} mbit: {windows:?}");
        held += u32::from(exact);
    }
    let _ = running.maps.remove_pin(&key);
    held
}

#[test]
fn udp() {
    kernel_test!();
    let lab = Lab::new(2);
    needs_fq!(&lab);
    let mut running = start(&lab, Enforcement::Auto);
    assert_eq!(enforcement(&running), Enforcement::Edt);
    assert_eq!(root(&lab).major(), 0, "nothing is limited");
    let stream = Stream::deep(&lab.hosts[0], &lab.hosts[1], 7001, 500);
    let check_fq = |running: &Running| {
        let fq = root(&lab);
        assert_eq!((fq.kind.as_str(), fq.major()), ("fq", FQ_MAJOR));
        assert_eq!(fq.drops, 0, "in fq: {}", running.counts());
    };
    // An emulated kernel is late where packets are many.
    let short: &[u64] = if emulated() { &[1] } else { &[1, 10] };
    assert!(hold(&lab, &mut running, protocol::UDP, WITHIN, short) > 0);
    check_fq(&running);
    drop(stream);
    if !emulated() {
        let _stream = Stream::deep(&lab.hosts[0], &lab.hosts[1], 7001, 1458);
        // A machine that cannot send at any of these rates limits nothing, and has its own root back by then.
        let long = [100, 300, 1000, 10];
        if hold(&lab, &mut running, protocol::UDP, WITHIN, &long) > 0 {
            check_fq(&running);
        }
    }
    drop(running);
    assert_eq!(root(&lab).major(), 0, "the default is back");
}

#[test]
fn tcp() {
    kernel_test!();
    let lab = Lab::with_super_packets(2);
    needs_fq!(&lab);
    let mut running = start(&lab, Enforcement::Edt);
    let stream = Tcp::start(&lab, 5001);
    let rates = [1, 10, 100, 1000];
    assert!(hold(&lab, &mut running, protocol::TCP, WITHIN_TCP, &rates) > 0);
    assert_eq!(root(&lab).drops, 0, "in fq");
    drop(stream);
}

/// A sender that does not wait is dropped by our program, before fq and uncharged: its rate stays the same.
#[test]
fn excess_is_dropped_before_fq() {
    kernel_test!();
    let lab = Lab::new(2);
    needs_fq!(&lab);
    let mut running = start(&lab, Enforcement::Edt);
    let stream = Stream::flood(&lab.hosts[0], &lab.hosts[1], 7001, 500);
    assert!(hold(&lab, &mut running, protocol::UDP, WITHIN, &[1, 10]) > 0);
    assert!(running.count(Count::SourceDropped) > 100);
    assert_eq!(root(&lab).drops, 0, "in fq");
    drop(stream);
}

/// Receive timestamps are of another clock, decades ahead. Where a program requests them (as ping does), fq must not drop
/// packets that are forwarded or echoed with one.
#[test]
fn receive_timestamps_are_not_departure_times() {
    kernel_test!();
    let lab = Lab::new(2);
    needs_fq!(&lab);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let _asking = [from, to].map(|host| {
        let socket = ecn_tests::traffic::udp(host, false, 7009);
        setsockopt(&socket, sockopt::ReceiveTimestamp, &true).expect("receive times");
        socket
    });
    lab.nl.delete_root_qdisc(to.port_index).expect("no queue");
    // The sender's root is fq once its flow is limited.
    for (nl, ifindex) in [(&to.nl, to.ifindex), (&lab.nl, to.port_index)] {
        let fq = nl.fq(ifindex, 0x77, ecn_user::net::ROOT, 1000, 10_000);
        fq.expect("fq");
    }
    let mut running = start(&lab, Enforcement::Edt);
    let stream = Stream::deep(from, to, 7001, 500);
    assert!(hold(&lab, &mut running, protocol::UDP, WITHIN, &[1, 10]) > 0);
    drop(stream);
    let flow = running
        .flow(|key| key.endpoint == 1 && key.dst_port == 7001)
        .1;
    assert!(flow.acked_packets > 1000, "{flow:?}");
    for (nl, ifindex) in [
        (&from.nl, from.ifindex),
        (&to.nl, to.ifindex),
        (&lab.nl, to.port_index),
    ] {
        let root = nl
            .root_qdisc(ifindex)
            .expect("qdiscs")
            .expect("a root qdisc");
        assert_eq!((root.kind.as_str(), root.drops), ("fq", 0), "{root:?}");
        assert!(root.packets > 1000, "{root:?}");
        assert_eq!(root.fq, Some(FqDrops::default()));
    }
}

/// The root qdisc is deleted, replaced and restored under load.
#[test]
fn a_changed_root_qdisc_is_noticed() {
    kernel_test!();
    let lab = Lab::new(2);
    if !tc(&lab, "qdisc show") {
        skipped(name_of(|| {}), Skip::Missing, "no tc command");
        return;
    }
    let mut running = start(&lab, Enforcement::Auto);
    let first = enforcement(&running);
    let stream = Stream::start(&lab.hosts[0], &lab.hosts[1], 7001, 1400);
    let flows = || stream.rate(Duration::from_millis(300)) > 0.0;
    assert!(eventually(s(5), flows), "nothing flows");
    let (key, _) = running.flow(|key| key.endpoint == 1);
    running.maps.set_pin(&key, 10 * MBIT).expect("pin");
    assert!(
        eventually(s(5), || root(&lab).major() != 0),
        "nothing is limited"
    );
    let kind = root(&lab).kind;
    let running = running;
    let becomes = |expected: Enforcement| {
        let now = eventually(s(5), || enforcement(&running) == expected);
        assert!(now, "{} instead of {expected}", enforcement(&running));
        assert!(eventually(s(5), flows), "{expected}: nothing flows");
    };
    // Deleted: ours is added again.
    assert!(tc(&lab, &format!("qdisc del dev {DEVICE} root")));
    let back = || root(&lab).kind == kind && root(&lab).major() != 0;
    assert!(eventually(s(5), back), "{:?}", root(&lab));
    becomes(first);
    // Replaced by one that cannot pace: it stays, and sockets are paced where they can be.
    let without = match datapath::cgroup(None) {
        Ok(_) => Enforcement::Pacing,
        Err(_) => Enforcement::None,
    };
    assert!(tc(
        &lab,
        &format!("qdisc replace dev {DEVICE} root handle 77: pfifo limit 50")
    ));
    becomes(without);
    assert_eq!(root(&lab).kind, "pfifo");
    // Removed again: ours is added again.
    assert!(tc(&lab, &format!("qdisc del dev {DEVICE} root")));
    becomes(first);
    assert!(eventually(s(5), back), "{:?}", root(&lab));
    if first == Enforcement::Edt {
        assert!(tc(
            &lab,
            &format!("qdisc replace dev {DEVICE} root handle 78: fq")
        ));
        assert!(eventually(s(5), || root(&lab).major() == 0x78));
        becomes(Enforcement::Edt);
        drop(stream);
        drop(running);
        assert_eq!(root(&lab).major(), 0x78, "it was not ours to remove");
    }
}
