//! BCN and QCN: ports that notify sources of their queues, and sources that react. Receivers run no program.

use std::{net::SocketAddr, path::Path, time::Duration};

use ecn_core::{
    abi::Count,
    backward,
    echo::PROTOCOL,
    flow::{ANY_PROTOCOL, Flow, Key},
    packet::{self, protocol},
    reaction,
};
use ecn_tests::{
    ecn_or_skip, emulated, eventually,
    frames::ecn_of,
    kernel_test,
    lab::Lab,
    process,
    running::{self, Running},
    s,
    traffic::udp,
    wire::Wire,
};
use ecn_user::{
    agent::Options,
    cli::table::{FlowRow, PortRow},
    config::{Config, LimitBy, Marking},
};

use super::{
    attacks::FORGED,
    backward::Forger,
    tcp::{connect, send},
};

/// Rate of the source's link: lower than what it can send, also when emulated.
fn link() -> u64 {
    if emulated() { 1_250_000 } else { 12_500_000 }
}

/// The port to host 1, at a fifth of host 0's link, sends notifications.
fn notifying(lab: &Lab, marking: Marking) -> Running {
    Running::start(notifications(lab, marking), Options::default())
}

fn notifications(lab: &Lab, marking: Marking) -> Config {
    lab.limit(1, link() / 5, 5000);
    lab.link(0, link());
    configuration(lab, marking)
}

fn configuration(lab: &Lab, marking: Marking) -> Config {
    let mut config = running::config(lab, marking);
    // Often enough for few packets.
    config.bcn.0.pm = "1/10".parse().expect("a fraction");
    running::with_endpoints(config, lab, &[0], link())
}

fn flow_of(running: &Running) -> Flow {
    let is = |key: &Key| key.endpoint == 1 && key.protocol == protocol::UDP;
    running.flow(is).1
}

/// The commands show what the port has sent and the queue's state, and the point that limits the flow.
fn is_shown(ecn: &Path, marking: Marking, port: &str, sent: u64) {
    let printed = |words: &[&str]| process::stdout(&process::run(ecn, words));
    let ports = printed(&["port", "show", "-j", "dev", port]);
    let [port]: [PortRow; 1] = serde_json::from_str(&ports).expect("one port");
    let flows = printed(&["flow", "show", "-j", "proto", "udp"]);
    let [flow]: [FlowRow; 1] = serde_json::from_str(&flows).expect("one flow");
    let messages = port.messages;
    assert_eq!(
        (port.marking, messages.sent_messages),
        (marking, Some(sent))
    );
    // The equilibrium is at least 8 packets at any rate.
    assert!(messages.equilibrium_packets >= Some(8), "{messages:?}");
    assert!(messages.sampled_packets.is_some(), "{messages:?}");
    let feedback = messages.sampled_feedback.expect("a sample");
    assert!(marking == Marking::Bcn || (0..=63).contains(&feedback));
    assert_eq!(flow.limiter, Some(marking));
    assert_eq!(flow.congestion_point, messages.congestion_point);
    assert_eq!(
        flow.target_rate_bytes_per_s.is_some(),
        marking == Marking::Qcn
    );
    for (object, column) in [("port", "Qeq"), ("flow", "point")] {
        let table = printed(&[object, "show"]);
        assert!(table.contains(column), "{table}");
    }
}

/// A flow that fills a port is slowed down by notifications alone, and recovers its link's rate when the port has room.
fn udp_reacts(ecn: &Path, marking: Marking, ipv6: bool) {
    const N: usize = 2_000;
    let lab = Lab::new(2);
    let running = notifying(&lab, marking);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, receiving) = (udp(from, ipv6, 7001), udp(to, ipv6, 7002));
    let seen = Wire::open(&to.ns, to.ifindex);
    let target = SocketAddr::new(to.address(ipv6), 7002);
    let sends = |n: usize| {
        sending.send_to(&[n as u8; 600], target).expect("send");
    };
    (0..N).for_each(sends);
    let mut buffer = [0; 1000];
    for _ in 0..N {
        assert_eq!(receiving.recv(&mut buffer).expect("receive"), 600);
    }
    let slowed = flow_of(&running);
    assert!(slowed.decreases > 0, "{slowed:?} {}", running.counts());
    assert!(slowed.is_limited(link()), "{slowed:?}");
    let slot = running.slot(&to.port);
    let sent = || running.maps.point(0, slot).expect("a point").sent;
    assert!(sent() > 0 && sent() == running.count(Count::MessageSent));
    let received =
        || running.count(Count::MessageAccepted) + running.count(Count::MessageImpossible);
    assert!(
        eventually(s(5), || received() == sent()),
        "{}",
        running.counts()
    );
    is_shown(ecn, marking, &to.port, sent());
    // Nothing was marked, receivers have no state, and applications received nothing.
    assert_eq!(running.port(&to.port).marked, 0);
    assert_eq!(running.maps.receivers().expect("receivers"), []);
    assert!(sending.recv(&mut buffer).is_err(), "something came back");
    let frames = seen.all(Duration::from_millis(100));
    let of_flow: Vec<_> = frames.iter().filter(|frame| frame.len() > 600).collect();
    assert_eq!(of_flow.len(), N);
    let untouched = |frame: &&Vec<u8>| ecn_of(frame) == Some(packet::NOT_ECT);
    assert!(of_flow.iter().all(untouched));
    lab.limit(1, 10 * link(), 5000);
    if !running::watches_queues() {
        // The rates of virtual queues are configured.
        let faster = configuration(&lab, marking);
        running.agent().reload(faster).expect("reload");
    }
    // By notifications or by stages: without notifications a flow recovers by itself only after a longer time.
    let slowed = flow_of(&running).rate_bytes_per_s;
    let rises = eventually(Duration::from_nanos(reaction::SILENCE_NS * 3 / 4), || {
        (0..50).for_each(sends);
        flow_of(&running).rate_bytes_per_s > slowed
    });
    assert!(rises, "{slowed} {:?}", flow_of(&running));
    let grown = eventually(s(20), || {
        (0..50).for_each(sends);
        flow_of(&running).reaction.rate().is_none()
    });
    assert!(grown, "{:?}", flow_of(&running));
    // The next port in this slot starts from zero.
    lab.unplug(1);
    assert!(eventually(s(3), || sent() == 0), "{}", sent());
}

#[test]
fn bcn_over_ipv4() {
    kernel_test!();
    udp_reacts(&ecn_or_skip!(), Marking::Bcn, false);
}

#[test]
fn bcn_over_ipv6() {
    kernel_test!();
    udp_reacts(&ecn_or_skip!(), Marking::Bcn, true);
}

#[test]
fn qcn_over_ipv4() {
    kernel_test!();
    udp_reacts(&ecn_or_skip!(), Marking::Qcn, false);
}

#[test]
fn qcn_over_ipv6() {
    kernel_test!();
    udp_reacts(&ecn_or_skip!(), Marking::Qcn, true);
}

/// What the new configuration needs is loaded while the agent runs.
#[test]
fn a_reload_replaces_echoes() {
    kernel_test!();
    const N: usize = 1_000;
    let lab = Lab::new(2);
    let config = notifications(&lab, Marking::Bcn);
    let mut echoes = config.clone();
    echoes.bridges[0].marking = Marking::InputOutput;
    let mut shared = config.clone();
    shared.endpoints[0].limit_by = LimitBy::Device;
    let running = Running::start(echoes, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, receiving) = (udp(from, false, 7001), udp(to, false, 7002));
    let target = SocketAddr::new(to.address(false), 7002);
    for (config, protocol) in [(config, protocol::UDP), (shared, ANY_PROTOCOL)] {
        running.agent().reload(config).expect("reload");
        for n in 0..N {
            sending.send_to(&[n as u8; 600], target).expect("send");
        }
        let mut buffer = [0; 1000];
        for _ in 0..N {
            assert_eq!(receiving.recv(&mut buffer).expect("receive"), 600);
        }
        let is = |key: &Key| key.endpoint == 1 && key.protocol == protocol;
        let (_, flow) = running.flow(is);
        assert!(
            flow.reaction.rate().is_some(),
            "{flow:?} {}",
            running.counts()
        );
    }
}

/// All flows with the same limiter are one flow: its rate falls with any of their packets.
#[test]
fn flows_share_a_limiter() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    const N: usize = 500;
    const BYTES: usize = 1 << 20;
    for (limit_by, named) in [
        (LimitBy::Addresses, "10.77.0.1>10.77.0.2/any"),
        (LimitBy::Destination, "*>10.77.0.2/any"),
        (LimitBy::Device, "*>*/any"),
    ] {
        let lab = Lab::new(2);
        let mut config = notifications(&lab, Marking::Bcn);
        config.endpoints[0].limit_by = limit_by;
        let running = Running::start(config, Options::default());
        let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
        let receiving = udp(to, false, 7002);
        let sending = [7001, 7003].map(|port| udp(from, false, port));
        let target = SocketAddr::new(to.address(false), 7002);
        for n in 0..N {
            for socket in &sending {
                socket.send_to(&[n as u8; 600], target).expect("send");
            }
        }
        // Closed at once: that must not end the limiter.
        let (one, other) = connect(from, to, false, None);
        drop(send(one, other, BYTES));
        let mut buffer = [0; 1000];
        for _ in 0..2 * N {
            assert_eq!(receiving.recv(&mut buffer).expect("receive"), 600);
        }
        let of_source = |key: &Key| key.endpoint == 1 && *key != Key::short(1);
        let (key, flow) = running.flow(of_source);
        assert_eq!(key.protocol, ANY_PROTOCOL);
        assert!(flow.decreases > 0 && flow.is_limited(link()), "{flow:?}");
        assert!(
            flow.sent_packets > 2 * N as u64 && flow.ended == 0,
            "{flow:?}"
        );
        let counts = || running.counts();
        let all = |what| running.count(what);
        // Two packets may share an entry of the source's table: the older one is then unknown.
        let received = || all(Count::MessageAccepted) + all(Count::MessageImpossible);
        let sent = || all(Count::MessageSent);
        assert!(
            sent() > 0 && eventually(s(5), || received() == sent()),
            "{}",
            counts()
        );
        assert!(all(Count::MessageImpossible) * 20 <= sent(), "{}", counts());
        let shown = process::stdout(&process::run(&ecn, &["flow", "show"]));
        assert!(shown.contains(named), "{shown}");
        process::stdout(&process::run(
            &ecn,
            &["flow", "set", named, "--rate", "1mbit"],
        ));
    }
}

/// A port's notifications, copied by a host at another port: each is accepted at most once, and a flow that is already slow
/// gets no slower.
fn copies_slow_no_flow(marking: Marking) {
    const N: u32 = 2_000;
    const COPIES: u64 = 10;
    let lab = Lab::new(3);
    let running = notifying(&lab, marking);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, receiving) = (udp(from, false, 7001), udp(to, false, 7002));
    let capture = Wire::open(&from.ns, from.ifindex);
    let forger = Forger::new(&lab);
    let target = SocketAddr::new(to.v4.into(), 7002);
    // From the port, not one of the copies.
    let is_message = |frame: &[u8]| {
        frame[6..12] != lab.hosts[2].mac && frame[23] == PROTOCOL && frame[34] == backward::VERSION
    };
    let (mut last, mut copied) = (None, 0);
    for n in 0..N {
        sending.send_to(&[n as u8; 600], target).expect("send");
        // While the quoted packet is remembered.
        while let Some(frame) = capture.next(Duration::ZERO) {
            if is_message(&frame) {
                (0..COPIES).for_each(|_| forger.send(&forger.copy(&frame)));
                copied += COPIES;
                last = Some(frame);
            }
        }
    }
    let last = last.expect("a message");
    let mut buffer = [0; 1000];
    for _ in 0..N {
        assert_eq!(receiving.recv(&mut buffer).expect("receive"), 600);
    }
    let counts = || {
        [
            Count::MessageAccepted,
            Count::MessageImpossible,
            Count::MessageDuplicate,
        ]
        .map(|what| running.count(what))
    };
    let sent = || running.count(Count::MessageSent);
    let all = |copies: u64| counts().iter().sum::<u64>() == sent() + copies;
    assert!(eventually(s(5), || all(copied)), "{}", running.counts());
    let [accepted, _, duplicate] = counts();
    assert!(accepted <= sent(), "{}", running.counts());
    assert!(duplicate > 0, "{}", running.counts());
    let slow = flow_of(&running);
    assert!(slow.decreases > 0 && slow.is_limited(link()), "{slow:?}");

    // Nothing more is sent, so only the copies could change the flow.
    let copy = forger.copy(&last);
    forger.floods(|_| copy.clone());
    let flooded = || all(copied + u64::from(FORGED));
    assert!(eventually(s(10), flooded), "{}", running.counts());
    assert_eq!(counts()[0], accepted, "{}", running.counts());
    assert_eq!(flow_of(&running), slow);
}

#[test]
fn copies_of_bcn_slow_no_flow() {
    kernel_test!();
    copies_slow_no_flow(Marking::Bcn);
}

#[test]
fn copies_of_qcn_slow_no_flow() {
    kernel_test!();
    copies_slow_no_flow(Marking::Qcn);
}
