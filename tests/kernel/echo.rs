//! Echoes end to end: exact counts for every protocol.

use std::net::SocketAddr;

use ecn_core::{abi::Count, echo, flow, packet::protocol};
use ecn_tests::{
    emulated, eventually,
    frames::Ip,
    kernel_test,
    lab::{DEVICE, Lab},
    running::{self, Running},
    s,
    traffic::{raw, udp},
    wire::Wire,
};
use ecn_user::{
    agent::Options,
    config::{Every, Marking},
    net::ethtool::{Ethtool, Offload},
    units::DurationText,
};

/// Rate of both endpoints' links: lower than what senders can send, also when emulated.
fn link() -> u64 {
    if emulated() { 1_250_000 } else { 12_500_000 }
}

/// Hosts 0 and 1 are endpoints; with `marked`, the port to host 1 has a queue that marks.
fn start(lab: &Lab, marked: bool, every: Every) -> Running {
    start_limited(lab, marked.then(|| link() / 5), every)
}

/// As [`start`], with a rate of the port, bytes per second. Its queue is not replaced later: the port would be detached
/// for a moment.
fn start_limited(lab: &Lab, port: Option<u64>, every: Every) -> Running {
    let mut marking = Marking::None;
    if let Some(rate) = port {
        // No drops: on a busy machine the reaction to the first mark may come after the last packet.
        lab.limit(1, rate, 5000);
        lab.link(0, link());
        marking = Marking::InputOutput;
    }
    let mut config = running::config(lab, marking);
    config.bridges[0].buffer = 2;
    config.response.rmin = "1/4".parse().expect("a fraction");
    config.echo.every = every;
    // Entries are still there when a test has failed.
    config.flow.idle = DurationText::from_secs(600);
    Running::start(
        running::with_endpoints(config, lab, &[0, 1], link()),
        Options::default(),
    )
}

fn is_sent(key: &flow::Key, protocol: u8) -> bool {
    key.endpoint == 1 && key.protocol == protocol
}

/// All counters, for assertion messages.
fn all(lab: &Lab, running: &Running) -> String {
    let flows = running.maps.flows();
    let receivers = running.maps.receivers();
    let ports = [0, 1].map(|number| running.port(&lab.hosts[number].port));
    let hosts = [0, 1].map(|number| lab.hosts[number].nl.qdiscs());
    let counts = running.counts();
    format!(
        "{flows:#?}\n{receivers:#?}\n{ports:#?}\n{:?}\n{hosts:#?}\n{counts}",
        lab.qdisc(1)
    )
}

/// All sent packets were echoed, and nothing else happened.
fn exact(lab: &Lab, running: &Running, protocol: u8, sent: u64, marked: bool) {
    let acked = || running.acked(|key| is_sent(key, protocol));
    assert!(
        eventually(s(10), || acked() == sent),
        "{} of {sent}: {}",
        acked(),
        all(lab, running)
    );
    assert!(
        eventually(s(3), || running.waiting().is_empty()),
        "{:?}",
        running.waiting()
    );
    let (_, flow) = running.flow(|key| is_sent(key, protocol));
    let receiver = running.receiver(|key| key.endpoint == 2 && key.protocol == protocol);
    let port = running.port(&lab.hosts[1].port);
    assert_eq!(flow.sent_packets, sent);
    assert_eq!(receiver.packets, sent);
    assert_eq!(flow.marked_packets, receiver.ce);
    assert_eq!(flow.marked_packets, port.marked);
    assert_eq!(flow.marked_packets > 0, marked, "{port:?}");
    assert_eq!(flow.decreases > 0, marked, "{flow:?}");
    assert!(flow.ignored_marks < flow.marked_packets.max(1));
    assert_eq!(flow.class != 0, marked, "a class is for who is marked");
    if marked {
        // Rounds count what has left the flow's class; under load some runs of the tracepoint are missing.
        let departed = running.maps.departed(flow.class & 0xffff).expect("a class");
        assert!(
            departed <= sent && departed * 10 >= sent * 9,
            "{departed} of {sent} left"
        );
    }
    // The echoes passed the port to the sender: all counted, none marked.
    let back = running.port(&lab.hosts[0].port);
    assert_eq!((back.marked, back.dropped), (0, 0));
    // Receivers run on several CPUs: an echo that a later one overtakes reports nothing new.
    let overtaken = running.count(Count::EchoDuplicate);
    assert_eq!(
        running.count(Count::EchoSent),
        running.count(Count::EchoAccepted) + overtaken
    );
    assert_eq!(running.count(Count::EchoLost), overtaken);
    assert!(
        overtaken <= sent / 50,
        "{overtaken} of {sent} echoes were overtaken"
    );
    assert_eq!(back.arrived, running.count(Count::EchoSent));
    for what in [
        Count::EchoFailed,
        Count::EchoMalformed,
        Count::EchoUnknown,
        Count::EchoImpossible,
        Count::RingFull,
        Count::EctFailed,
        Count::MarkFailed,
        Count::LimitExpired,
        Count::ClassesFull,
    ] {
        assert_eq!(running.count(what), 0, "{what:?}");
    }
}

fn udp_round_trip(ipv6: bool, marked: bool) {
    round_trip_in(&Lab::new(2), ipv6, marked);
}

fn round_trip_in(lab: &Lab, ipv6: bool, marked: bool) {
    const N: u64 = 2_000;
    // The receiver's device has no queue, and nothing is limited there: this one counts echoes.
    lab.link(1, link());
    let running = start(lab, marked, Every::Packet);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, receiving) = (udp(from, ipv6, 7001), udp(to, ipv6, 7002));
    let target = SocketAddr::new(to.address(ipv6), 7002);
    for _ in 0..N {
        sending.send_to(&[5; 600], target).expect("send");
    }
    exact(lab, &running, protocol::UDP, N, marked);
    assert_eq!(running.count(Count::EchoSent), N, "an echo per packet");
    // The receiver got the packets, and the sender no echo.
    let mut buffer = [0; 1000];
    for _ in 0..N {
        assert_eq!(receiving.recv(&mut buffer).expect("receive"), 600);
    }
    assert!(sending.recv(&mut buffer).is_err(), "something came back");
    let (key, _) = running.flow(|key| is_sent(key, protocol::UDP));
    assert_eq!((key.src_port, key.dst_port), (7001, 7002));
    // A queue counts an echo by its own length, not by that of the data from which it was made.
    let queue = to.nl.root_qdisc(to.ifindex).expect("qdiscs");
    let queue = queue.expect("that of an endpoint");
    assert!(queue.packets >= N && queue.bytes < N * 150, "{queue:?}");
}

#[test]
fn udp_over_ipv4() {
    kernel_test!();
    udp_round_trip(false, false);
}

#[test]
fn udp_over_ipv6() {
    kernel_test!();
    udp_round_trip(true, false);
}

#[test]
fn udp_over_ipv4_marked() {
    kernel_test!();
    udp_round_trip(false, true);
}

#[test]
fn udp_over_ipv6_marked() {
    kernel_test!();
    udp_round_trip(true, true);
}

/// Data may arrive with a checksum that a device was to complete. If its echo leaves through a device without checksum
/// offload, the kernel completes the checksum at the data's offset, which must not be in the echo.
#[test]
fn unfinished_checksums() {
    kernel_test!();
    for ipv6 in [false, true] {
        let lab = Lab::new(2);
        let ethtool = Ethtool::open(&lab.hosts[0].ns).expect("ethtool");
        let offload = Offload::TxChecksum;
        ethtool.set(DEVICE, offload, true).expect("set");
        assert!(ethtool.is_on(DEVICE, offload).expect("is on"));
        round_trip_in(&lab, ipv6, true);
    }
}

/// An unknown protocol without ports, from a raw socket, marked on its way.
#[test]
fn an_unknown_protocol() {
    const N: u64 = 1_500;
    const PROTOCOL: u8 = 254;
    kernel_test!();
    let lab = Lab::new(2);
    let running = start(&lab, true, Every::Packet);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, receiving) = (raw(from, PROTOCOL), raw(to, PROTOCOL));
    // Applications receive no echo.
    let spying = [raw(from, echo::PROTOCOL), raw(to, echo::PROTOCOL)];
    let target = SocketAddr::new(to.v4.into(), 0).into();
    for _ in 0..N {
        // Raw sockets do not wait for queue space.
        let sent = || sending.send_to(&[9; 600], &target).is_ok();
        assert!(eventually(s(5), sent), "send");
    }
    exact(&lab, &running, PROTOCOL, N, true);
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1000];
    let came = (0..N)
        .take_while(|_| receiving.recv(&mut buffer).is_ok())
        .count();
    assert!(came > 0, "the data did not reach its application");
    for spy in &spying {
        assert!(spy.recv(&mut buffer).is_err(), "an application saw an echo");
    }
    assert!(sending.recv(&mut buffer).is_err());
}

/// SCTP, DCCP and UDP-Lite have their ports where UDP has them; IPv4 and IPv6.
#[test]
fn protocols_with_ports() {
    const N: u64 = 300;
    kernel_test!();
    let lab = Lab::new(2);
    let running = start(&lab, false, Every::Packet);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    // Else hosts would reply that the protocol is unknown.
    let wire = Wire::open(&from.ns, from.ifindex).send_slowly();
    let kinds = [protocol::SCTP, protocol::DCCP, protocol::UDPLITE];
    let header = [0x1b, 0x59, 0x1b, 0x5a];
    for number in kinds {
        for ipv6 in [false, true] {
            let frame = Ip::between(from, to, ipv6).with(number, &[&header[..], &[0; 60]].concat());
            for _ in 0..N {
                wire.send(&frame);
            }
        }
    }
    for number in kinds {
        for ipv6 in [false, true] {
            let is_this =
                |key: &flow::Key| is_sent(key, number) && (key.src[..2] == [0xfd, 0x77]) == ipv6;
            let acked = || running.acked(is_this);
            assert!(
                eventually(s(5), || acked() == N),
                "{number}: {} of {N}",
                acked()
            );
            let (key, flow) = running.flow(is_this);
            assert_eq!((key.src_port, key.dst_port), (7001, 7002), "{number}");
            assert_eq!((flow.sent_packets, flow.marked_packets), (N, 0), "{number}");
        }
    }
}

/// `ping`: each direction is a flow.
#[test]
fn icmp() {
    const N: u64 = 200;
    kernel_test!();
    let lab = Lab::new(2);
    let running = start(&lab, false, Every::Packet);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let wire = Wire::open(&from.ns, from.ifindex).send_slowly();
    let request = icmp_echo_request();
    for _ in 0..N {
        wire.send(&Ip::between(from, to, false).with(protocol::ICMP, &request));
    }
    for endpoint in [1, 2] {
        let is_this = |key: &flow::Key| key.endpoint == endpoint && key.protocol == protocol::ICMP;
        let acked = || {
            let flows = running.maps.flows().expect("flows");
            flows
                .iter()
                .find(|(key, _)| is_this(key))
                .map_or(0, |(_, flow)| flow.acked_packets)
        };
        assert!(
            eventually(s(5), || acked() == N),
            "endpoint {endpoint}: {} of {N}",
            acked()
        );
    }
    let taken = running.count(Count::EchoAccepted) + running.count(Count::EchoDuplicate);
    assert_eq!(taken, 2 * N);
}

/// RFC 792.
fn icmp_echo_request() -> Vec<u8> {
    let mut bytes = vec![8, 0, 0, 0, 0, 7, 0, 1];
    bytes.extend([0x77; 56]);
    let sum = bytes
        .chunks(2)
        .map(|b| u32::from(b[0]) << 8 | u32::from(b[1]))
        .sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Fewer echoes, the same counts; marks are echoed at once.
#[test]
fn coalesced() {
    const N: u64 = 1_500;
    kernel_test!();
    let lab = Lab::new(2);
    let every: DurationText = "5ms".parse().expect("a duration");
    // Above Rmin, so that not everything is marked.
    let running = start_limited(&lab, Some(link() / 2), Every::Time(every));
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, _receiving) = (udp(from, false, 7001), udp(to, false, 7002));
    let target = SocketAddr::new(to.v4.into(), 7002);
    let start = std::time::Instant::now();
    for _ in 0..N {
        sending.send_to(&[5; 600], target).expect("send");
    }
    // The last packets of a burst wait for the next echo.
    let acked = || {
        running
            .flow(|key| is_sent(key, protocol::UDP))
            .1
            .acked_packets
    };
    eventually(s(20), || {
        running.receiver(|key| key.endpoint == 2).packets == N
    });
    std::thread::sleep(std::time::Duration::from_millis(10));
    sending.send_to(&[5; 600], target).expect("send");
    assert!(eventually(s(5), || acked() == N + 1), "{} of {N}", acked());
    exact(&lab, &running, protocol::UDP, N + 1, true);
    let (_, flow) = running.flow(|key| is_sent(key, protocol::UDP));
    let echoes = running.count(Count::EchoSent);
    let by_time = start.elapsed().as_millis() as u64 / 5 + 2;
    let marked = flow.marked_packets;
    assert!(
        echoes <= marked + by_time && echoes < N,
        "{echoes} echoes, {marked} marked"
    );
    assert!(echoes > marked, "{echoes} echoes, {marked} marked");
}

/// Frames that a bridge floods also reach other hosts: an echo from one of those would make the bridge learn a wrong
/// port for the receiver.
#[test]
fn flooded_copies_are_not_echoed() {
    kernel_test!();
    const N: u64 = 100;
    let lab = Lab::new(2);
    let running = start(&lab, false, Every::Packet);
    let sending = udp(&lab.hosts[0], false, 7001);
    let flooded = || running.port(&lab.hosts[1].port).arrived;
    let before = flooded();
    // Hosts have neighbour entries of hosts that do not exist.
    for _ in 0..N {
        let sent = sending.send_to(b"hello", ("10.77.0.9", 7002));
        sent.expect("send");
    }
    assert!(eventually(s(5), || flooded() >= before + N));
    assert!(eventually(s(5), || running.waiting().is_empty()));
    let (_, flow) = running.flow(|key| is_sent(key, protocol::UDP));
    assert_eq!((flow.sent_packets, flow.acked_packets), (N, 0));
    assert_eq!(running.count(Count::EchoSent), 0);
    assert_eq!(running.maps.receivers().expect("receivers"), []);
}
