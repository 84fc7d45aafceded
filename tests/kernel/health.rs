//! The agent's warnings: given when control does not work, and not given when it does.

use std::{
    net::UdpSocket,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use ecn_core::packet::{ECT_0, NOT_ECT};
use ecn_tests::{
    ecn_or_skip, eventually,
    frames::Ip,
    kernel_test,
    lab::{Host, Lab},
    note, process,
    running::{self, Running},
    s,
    traffic::{Stream, udp},
    wire::Wire,
};
use ecn_user::{
    agent::{
        Options,
        health::{Kind, Warning},
    },
    config::{Config, Marking, Queue, Round},
};

const MBIT: u64 = 125_000;
/// Rate of the port to host 1.
const PORT: u64 = 10 * MBIT;

fn kinds(running: &Running) -> Vec<Kind> {
    let warnings = running.agent().state().warnings;
    warnings.iter().map(|warning| warning.kind).collect()
}

/// Waits until a warning is reported.
#[track_caller]
fn reported(running: &Running, kind: Kind, patience: Duration) -> Warning {
    let find = || {
        let warnings = running.agent().state().warnings;
        warnings.into_iter().find(|warning| warning.kind == kind)
    };
    let found = eventually(patience, || find().is_some());
    assert!(found, "{:?}", running.agent().state().warnings);
    let warning = find().expect("it was there a moment ago");
    note(&warning.to_string());
    warning
}

/// Sends about three times what [`PORT`] carries to a host that receives it.
fn overload(from: &Host, to: &Host, ecn: u8) -> (Sending, UdpSocket) {
    let receiving = udp(to, false, 7002);
    let frame = Ip::between(from, to, false)
        .ecn(ecn)
        .udp(7001, 7002, &[5; 1000]);
    (Sending::start(from, frame, 4000), receiving)
}

/// Waits until no warning is reported.
#[track_caller]
fn all_cleared(running: &Running) {
    let all_cleared = eventually(s(15), || kinds(running).is_empty());
    assert!(all_cleared, "{:?}", kinds(running));
}

/// Sends frames at a rate until it is dropped.
struct Sending {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sending {
    fn start(from: &Host, frame: Vec<u8>, per_s: u32) -> Self {
        const AT_ONCE: u32 = 10;
        let wire = Wire::open(&from.ns, from.ifindex);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                (0..AT_ONCE).for_each(|_| wire.send(&frame));
                std::thread::sleep(s(1) * AT_ONCE / per_s);
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Hosts 0 and 1 are endpoints with this link rate; the port to host 1 is slower.
fn start(lab: &Lab, link: u64, change: impl FnOnce(&mut Config)) -> Running {
    lab.limit(1, PORT, 100);
    lab.link(0, link);
    let mut config = running::config(lab, Marking::InputOutput);
    change(&mut config);
    let config = running::with_endpoints(config, lab, &[0, 1], link);
    Running::start(config, Options::default())
}

/// Flows start, slow down to the port's rate, and end without warnings.
#[test]
fn no_warning_while_control_works() {
    kernel_test!();
    for round in [Round::Fractional, Round::Packets] {
        let lab = Lab::new(2);
        let running = start(&lab, 4 * PORT, |config| config.response.round = round);
        let streams: Vec<Stream> = (0..4)
            .map(|n| Stream::start(&lab.hosts[0], &lab.hosts[1], 7001 + n, 1000))
            .collect();
        for _ in 0..120 {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(kinds(&running), [], "{:?}", running.agent().state());
        }
        let port = running.port(&lab.hosts[1].port);
        assert!(port.marked > 0, "{port:?}");
        drop(streams);
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(kinds(&running), [], "{:?}", running.agent().state());
        }
    }
}

/// Two flows that may not be slower than half of the link each, four times what the port sends.
#[test]
fn flows_at_their_lowest_rate() {
    kernel_test!();
    let lab = Lab::new(2);
    let running = start(&lab, 4 * PORT, |config| {
        config.response.rmin = "1/2".parse().expect("a fraction");
        config.response.round = Round::Packets;
    });
    let streams = [7001, 7002].map(|port| Stream::start(&lab.hosts[0], &lab.hosts[1], port, 1000));
    let warning = reported(&running, Kind::FlowsAtFloor, s(12));
    assert_eq!(warning.subject.port, lab.hosts[1].port);
    // The second one may get there later.
    let counts = [
        "1 flow is at its lowest rate (20mbit)",
        "2 flows are at their lowest rate (20mbit)",
    ];
    let counted = counts.iter().any(|text| warning.message.contains(text));
    assert!(counted, "{}", warning.message);
    // They do react, as far as they can.
    std::thread::sleep(s(6));
    assert_eq!(kinds(&running), [Kind::FlowsAtFloor]);
    drop(streams);
    all_cleared(&running);
}

/// Data arrives, but its echoes do not: they are sent to the Ethernet source address of the data, here a wrong one.
#[test]
fn echoes_that_do_not_reach_the_source() {
    kernel_test!();
    let lab = Lab::new(2);
    let config = running::config(&lab, Marking::InputOutput);
    let config = running::with_endpoints(config, &lab, &[0, 1], 10 * PORT);
    let running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let _receiving = udp(to, false, 7002);
    let frame = Ip::between(from, to, false)
        .ecn(NOT_ECT)
        .udp(7001, 7002, &[5; 100]);
    let sending = Sending::start(from, frame.clone(), 500);
    std::thread::sleep(s(8));
    assert_eq!(kinds(&running), []);
    drop(sending);
    let mut elsewhere = frame.clone();
    elsewhere[11] = 99;
    let sending = Sending::start(from, elsewhere, 500);
    let warning = reported(&running, Kind::NoEcho, s(12));
    assert_eq!(warning.subject.receiver, Some(to.v4.into()));
    assert!(warning.message.starts_with("it has stopped echoing: "));
    assert!(warning.message.contains("IP protocol 253"));
    drop(sending);
    let _sending = Sending::start(from, frame, 500);
    all_cleared(&running);
}

/// The receiver runs no agent, so nothing is echoed.
#[test]
fn a_receiver_without_the_agent() {
    kernel_test!();
    let lab = Lab::new(2);
    let config = running::config(&lab, Marking::InputOutput);
    let config = running::with_endpoints(config, &lab, &[0], 10 * PORT);
    let running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let _receiving = udp(to, false, 7002);
    let frame = Ip::between(from, to, false)
        .ecn(NOT_ECT)
        .udp(7001, 7002, &[5; 100]);
    let sending = Sending::start(from, frame, 500);
    let warning = reported(&running, Kind::NoEcho, s(12));
    assert!(warning.message.starts_with("it has never echoed: "));
    assert_eq!(kinds(&running), [Kind::NoEcho]);
    drop(sending);
    all_cleared(&running);
}

/// Somebody else's root qdisc at a source, and marks that its flows do not answer.
#[test]
fn a_source_with_another_root_qdisc() {
    kernel_test!();
    let lab = Lab::new(2);
    let running = start(&lab, 4 * PORT, |config| config.agent.cgroup = None);
    let host = &lab.hosts[0];
    let root = ecn_user::net::ROOT;
    let installed = host.nl.pfifo_leaf(host.ifindex, root, 7 << 16, 100);
    installed.expect("a qdisc");
    let warning = reported(&running, Kind::NotEnforced, s(5));
    assert!(
        warning
            .message
            .contains("has a pfifo root qdisc of its own")
    );
    let frame = Ip::between(host, &lab.hosts[1], false)
        .ecn(NOT_ECT)
        .udp(7001, 7002, &[5; 1000]);
    let sending = Sending::start(host, frame, 4000);
    let warning = reported(&running, Kind::UnansweredMarks, s(20));
    assert!(warning.message.contains("does not limit its flows"));
    drop(sending);
    host.nl.delete_root_qdisc(host.ifindex).expect("delete");
    all_cleared(&running);
}

/// A port whose queue holds fewer packets than must wait before they are marked.
#[test]
fn a_queue_shorter_than_the_threshold() {
    kernel_test!();
    let lab = Lab::new(2);
    lab.limit(1, PORT, 3);
    let config = running::config(&lab, Marking::InputOutput);
    let running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, _receiving) = overload(from, to, ECT_0);
    let warning = reported(&running, Kind::ShortQueue, s(20));
    assert_eq!(warning.subject.port, to.port);
    assert!(warning.message.contains("at least 32 packets"), "{warning}");
    assert_eq!(kinds(&running), [Kind::ShortQueue]);
    drop(sending);
    all_cleared(&running);
}

/// More flows than the table holds, for seconds.
#[test]
fn a_table_that_is_full() {
    const FLOWS: u16 = 40;
    kernel_test!();
    let lab = Lab::new(2);
    let mut config = running::config(&lab, Marking::InputOutput);
    config.flow.max = 10;
    let config = running::with_endpoints(config, &lab, &[0, 1], 10 * PORT);
    let running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let _receiving = udp(to, false, 7002);
    let wire = Wire::open(&from.ns, from.ifindex);
    let packets = Ip::between(from, to, false).ecn(NOT_ECT);
    let send = || {
        for flow in 0..FLOWS {
            wire.send(&packets.udp(10_000 + flow, 7002, &[5; 100]));
        }
        std::thread::sleep(Duration::from_millis(200));
        kinds(&running).contains(&Kind::FlowTableFull)
    };
    assert!(eventually(s(8), send), "{}", running.counts());
    let warning = reported(&running, Kind::FlowTableFull, s(1));
    assert!(warning.message.contains("(now 10)"), "{warning}");
    assert_eq!(warning.subject.netns, from.ns.name());
    all_cleared(&running);
}

/// A link rate of ten times the port's rate, as when the NIC's speed is used.
#[test]
fn a_link_rate_far_above_the_ports() {
    kernel_test!();
    for round in [Round::Packets, Round::Fractional] {
        let lab = Lab::new(2);
        let running = start(&lab, 10 * PORT, |config| config.response.round = round);
        let streams: Vec<Stream> = (0..4)
            .map(|n| Stream::start(&lab.hosts[0], &lab.hosts[1], 7001 + n, 1000))
            .collect();
        let warning = reported(&running, Kind::LinkRate, s(12));
        assert_eq!(warning.subject.netns, lab.hosts[0].ns.name());
        assert!(warning.message.contains("`link_rate` is 100mbit"));
        assert!(warning.message.contains("(10mbit)"), "{warning}");
        drop(streams);
        all_cleared(&running);
    }
}

/// A source that is ECN-capable and does not react; only the port is controlled. The command shows the warning.
#[test]
fn unanswered_marks() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let lab = Lab::new(2);
    lab.limit(1, PORT, 100);
    let config = running::config(&lab, Marking::InputOutput);
    let running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, _receiving) = overload(from, to, ECT_0);
    let warning = reported(&running, Kind::UnansweredMarks, s(20));
    assert_eq!(warning.subject.port, to.port);
    let inputs = format!("enters at {}.", from.port);
    assert!(warning.message.contains(&inputs), "{warning}");

    let shown = process::stdout(&process::run(&ecn, &["port", "show"]));
    assert!(shown.contains("(unanswered-marks)"), "{shown}");
    let other = process::stdout(&process::run(&ecn, &["port", "show", "dev", &from.port]));
    assert!(!other.contains("warning:"), "{other}");
    let json = process::stdout(&process::run(
        &ecn,
        &["port", "show", "dev", &to.port, "-j"],
    ));
    let rows: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(rows[0]["warnings"][0]["kind"], "unanswered-marks", "{rows}");
    let json = process::stdout(&process::run(&ecn, &["doctor", "-j"]));
    let report: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(report["warnings"][0]["port"], to.port.as_str(), "{report}");
    drop(sending);
    all_cleared(&running);
    let shown = process::stdout(&process::run(&ecn, &["port", "show"]));
    assert!(!shown.contains("warning:"), "{shown}");
}

/// As above, at a port without its own queue, where nothing is ever dropped.
#[test]
fn unanswered_marks_at_a_virtual_queue() {
    kernel_test!();
    let lab = Lab::new(2);
    let mut config = running::config(&lab, Marking::InputOutput);
    let bridge = &mut config.bridges[0];
    bridge.queue = Queue::Virtual;
    bridge.queue_rate = Some(running::rate(PORT));
    let running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, _receiving) = overload(from, to, ECT_0);
    let warning = reported(&running, Kind::UnansweredMarks, s(20));
    assert_eq!(warning.subject.port, to.port);
    assert!(warning.message.contains("packets wait"), "{warning}");
    drop(sending);
    all_cleared(&running);
}

/// No packet is ECN-capable: the excess is dropped before the queue, and nothing else happens.
#[test]
fn what_cannot_be_marked() {
    kernel_test!();
    let lab = Lab::new(2);
    lab.limit(1, PORT, 100);
    let config = running::config(&lab, Marking::InputOutput);
    let running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, _receiving) = overload(from, to, NOT_ECT);
    let warning = reported(&running, Kind::UnansweredMarks, s(20));
    assert!(warning.message.contains("not ECN-capable"), "{warning}");
    drop(sending);
    all_cleared(&running);
}
