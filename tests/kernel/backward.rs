//! Messages from a congested port to the source: receivers have no program, and nothing is written into packets.

use std::{
    io::{Read as _, Write as _},
    net::SocketAddr,
    time::Duration,
};

use ecn_core::{
    abi::Count,
    backward::{self, Message},
    echo::PROTOCOL,
    flow::Flow,
    packet::{self, protocol},
};
use ecn_tests::{
    emulated, eventually,
    frames::{Ip, ecn_of},
    kernel_test,
    lab::Lab,
    running::{self, Running},
    s,
    traffic::udp,
    wire::Wire,
};
use ecn_user::{
    agent::Options,
    config::{Config, Feedback, Key, Marking},
};

use super::tcp::connect;

/// Link of the source: less than what it can send, also when emulated.
fn link() -> u64 {
    if emulated() { 1_250_000 } else { 12_500_000 }
}

/// Host 0 is an endpoint, at whose bridge the port to host 1 marks if it has a limit.
fn config(lab: &Lab, marking: Marking) -> Config {
    let mut config = running::config(lab, marking);
    config.bridges[0].feedback = Feedback::Backward;
    // One for each mark.
    config.bridges[0].messages_per_s = 1_000_000;
    running::with_endpoints(config, lab, &[0], link())
}

/// The port to host 1 has a queue that marks.
fn marked(lab: &Lab) -> Running {
    // Room for all: on a busy machine the first mark may be answered after the last packet.
    lab.limit(1, link() / 5, 5000);
    lab.link(0, link());
    Running::start(config(lab, Marking::InputOutput), Options::default())
}

fn only_flow(running: &Running, protocol: u8) -> Flow {
    let is = |key: &ecn_core::flow::Key| key.endpoint == 1 && key.protocol == protocol;
    running.flow(is).1
}

/// Each mark came to its source by a message of its own, and nothing else happened.
#[track_caller]
fn all_heard(lab: &Lab, running: &Running, protocol: u8) -> Flow {
    let port = || running.port(&lab.hosts[1].port);
    // Two packets may have one place where the source remembers them: the older one is not known any more.
    let forgotten = || running.count(Count::MessageImpossible);
    let heard = || only_flow(running, protocol).marked_packets + forgotten() == port().marked;
    assert!(eventually(s(5), heard), "{:?} {}", port(), running.counts());
    let flow = only_flow(running, protocol);
    assert!(port().marked > 0 && flow.decreases > 0, "{flow:?}");
    let sent = running.count(Count::MessageSent);
    assert_eq!(sent, running.count(Count::MessageAccepted) + forgotten());
    assert!(forgotten() * 100 <= sent, "{}", running.counts());
    assert_eq!(port().unmarkable, 0);
    for what in Count::ALL {
        let expected = matches!(
            what,
            Count::MessageSent
                | Count::MessageAccepted
                | Count::MessageImpossible
                | Count::Marked
                | Count::Shared
        );
        assert!(
            expected || running.count(what) == 0,
            "{what:?}: {}",
            running.counts()
        );
    }
    assert_eq!(running.maps.receivers().expect("receivers"), []);
    flow
}

fn udp_is_slowed(ipv6: bool) {
    const N: usize = 2_000;
    let lab = Lab::new(2);
    let running = marked(&lab);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, receiving) = (udp(from, ipv6, 7001), udp(to, ipv6, 7002));
    let seen = Wire::open(&to.ns, to.ifindex);
    let target = SocketAddr::new(to.address(ipv6), 7002);
    for n in 0..N {
        let sent = sending.send_to(&[n as u8; 600], target);
        sent.expect("send");
    }
    let mut buffer = [0; 1000];
    for _ in 0..N {
        assert_eq!(receiving.recv(&mut buffer).expect("receive"), 600);
    }
    let flow = all_heard(&lab, &running, protocol::UDP);
    assert_eq!(flow.sent_packets, N as u64);
    assert!(sending.recv(&mut buffer).is_err(), "something came back");
    let frames = seen.all(Duration::from_millis(100));
    let of_flow: Vec<_> = frames.iter().filter(|frame| frame.len() > 600).collect();
    assert_eq!(of_flow.len(), N);
    assert!(
        of_flow
            .iter()
            .all(|frame| ecn_of(frame) == Some(packet::NOT_ECT))
    );
}

#[test]
fn udp_over_ipv4_is_slowed() {
    kernel_test!();
    udp_is_slowed(false);
}

#[test]
fn udp_over_ipv6_is_slowed() {
    kernel_test!();
    udp_is_slowed(true);
}

#[test]
fn tcp_is_slowed() {
    kernel_test!();
    const BYTES: usize = 4 << 20;
    let lab = Lab::new(2);
    let running = marked(&lab);
    let (mut sending, mut receiving) = connect(&lab.hosts[0], &lab.hosts[1], false, None);
    let received = std::thread::spawn(move || {
        let mut all = Vec::new();
        receiving.read_to_end(&mut all).expect("receive");
        all.len()
    });
    sending.write_all(&vec![7; BYTES]).expect("send");
    // While the connection is there: its flow goes with it.
    all_heard(&lab, &running, protocol::TCP);
    drop(sending);
    assert_eq!(received.join().expect("the receiver"), BYTES);
}

/// A flow that nothing marks any more comes back to its link's rate, though it hears of nothing.
#[test]
fn what_is_not_marked_grows_again() {
    kernel_test!();
    let lab = Lab::new(2);
    let running = marked(&lab);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, _receiving) = (udp(from, false, 7001), udp(to, false, 7002));
    let target = SocketAddr::new(to.v4.into(), 7002);
    let rate = || only_flow(&running, protocol::UDP).rate_bytes_per_s;
    let sends = |n: u8| {
        sending.send_to(&[n; 600], target).expect("send");
    };
    (0..2_000).for_each(|n| sends(n as u8));
    let slowed = rate();
    assert!(slowed < link() / 2, "{slowed}");
    let agent = running.agent();
    let none = agent.set_marking(0, |bridge| bridge.marking = Marking::None);
    none.expect("no marking");
    let grown = eventually(s(20), || {
        (0..50).for_each(&sends);
        rate() > link() * 9 / 10
    });
    assert!(grown, "{slowed} {}", rate());
}

/// A port sends so many messages, and each stands for all marks since the one before.
#[test]
fn few_messages_say_all_marks() {
    kernel_test!();
    let lab = Lab::new(2);
    lab.limit(1, link() / 5, 5000);
    lab.link(0, link());
    let mut config = config(&lab, Marking::InputOutput);
    config.bridges[0].messages_per_s = 100;
    let running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, _receiving) = (udp(from, false, 7001), udp(to, false, 7002));
    let target = SocketAddr::new(to.v4.into(), 7002);
    for n in 0..3_000u32 {
        let sent = sending.send_to(&[n as u8; 600], target);
        sent.expect("send");
    }
    let slot = running.slot(&to.port);
    let told = || {
        let point = running.maps.point(0, slot).expect("what it has to say");
        let flow = only_flow(&running, protocol::UDP);
        (point, flow.marked_packets + u64::from(point.pending))
    };
    let all = || told().1 == running.port(&to.port).marked;
    assert!(eventually(s(5), all), "{:?} {}", told(), running.counts());
    let (point, _) = told();
    assert!(point.held > 0, "{point:?}");
    assert_eq!(point.held, running.count(Count::MessageHeld));
    assert_eq!(point.sent, running.count(Count::MessageAccepted));
}

/// Messages in the name of host 1, about what host 0 has sent there.
struct Forger<'a> {
    lab: &'a Lab,
    stranger: Wire,
}

impl<'a> Forger<'a> {
    /// At host 2, another port of the bridge.
    fn new(lab: &'a Lab) -> Self {
        Self {
            lab,
            stranger: Wire::open(&lab.hosts[2].ns, lab.hosts[2].ifindex),
        }
    }

    fn ip(&self) -> Ip {
        let hosts = &self.lab.hosts;
        Ip::between(&hosts[2], &hosts[0], false)
            .addresses(hosts[1].v4, hosts[0].v4)
            .ecn(packet::NOT_ECT)
            .ttl(backward::TTL)
    }

    fn send(&self, m: &Message) {
        self.stranger.send(&self.ip().with(PROTOCOL, &m.to_bytes()));
    }

    fn send_signed(&self, m: &Message, key: [u64; 2]) {
        let m = Message { signed: true, ..*m };
        let mapped = |host: usize| self.lab.hosts[host].v4.to_ipv6_mapped().octets();
        let tag = m.tag(key, &mapped(1), &mapped(0)).to_be_bytes();
        let payload = [&m.to_bytes()[..], &tag].concat();
        self.stranger.send(&self.ip().with(PROTOCOL, &payload));
    }
}

/// A message about an IPv4 frame with a UDP packet, as a port on its way makes it.
fn about(frame: &[u8], sequence: u32) -> Message {
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"));
    let body = frame[42..50].try_into().expect("eight bytes");
    Message {
        protocol: protocol::UDP,
        src_port: 7001,
        dst_port: 7002,
        quote: backward::fingerprint(word(16), body),
        sequence,
        feedback: 1,
        point: 0x0200_0000_0001_0001,
        ..Message::default()
    }
}

/// Who forges what is quoted, copies what was accepted, or comes from afar is refused and counted, and the flow keeps
/// its rate. Only who sees a packet can quote it, and not even that one without the key, if there is one.
#[test]
fn forgers_slow_no_flow() {
    kernel_test!();
    const FORGED: u32 = 10_000;
    let lab = Lab::new(3);
    let key = Key::try_from("05".repeat(16)).expect("32 digits");
    let mut config = config(&lab, Marking::None);
    let running = Running::start(config.clone(), Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, _receiving) = (udp(from, false, 7001), udp(to, false, 7002));
    let seen = Wire::open(&to.ns, to.ifindex);
    let target = SocketAddr::new(to.v4.into(), 7002);
    let next_frame = |n: u64| {
        let text = [&n.to_be_bytes()[..], &[9; 200]].concat();
        sending.send_to(&text, target).expect("send");
        let frame = std::iter::from_fn(|| seen.next(s(5)));
        let frame = frame.into_iter().find(|frame| frame.len() > 200);
        frame.expect("the packet")
    };
    let forger = Forger::new(&lab);
    let counted = |what: Count, n: u64| {
        let all = eventually(s(10), || running.count(what) == n);
        assert!(all, "{what:?} {n}: {}", running.counts());
    };

    // Of a flow that is there, about packets that it has not sent.
    let frame = next_frame(1);
    for n in 0..FORGED {
        let quote = n.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995;
        let m = about(&frame, n);
        forger.send(&Message { quote, ..m });
        if n % 10 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // One of them may be right by chance: they have 32 bits.
    let refused = || running.count(Count::MessageImpossible);
    assert!(eventually(s(10), || refused() + 1 >= u64::from(FORGED)));
    let refused = refused();
    let before = only_flow(&running, protocol::UDP);
    assert_eq!(before.rate_bytes_per_s % link(), 0, "{before:?}");

    // Right in all that it says, but from behind a router; of a flow that is not there.
    let m = about(&next_frame(2), FORGED);
    let far = forger.ip().ttl(backward::TTL - 1);
    forger.stranger.send(&far.with(PROTOCOL, &m.to_bytes()));
    counted(Count::MessageFar, 1);
    let other = |src_port| Message { src_port, ..m };
    forger.send(&other(7003));
    counted(Count::MessageImpossible, refused + 1);
    let tcp = Message {
        protocol: protocol::TCP,
        flags: backward::BY_NUMBER,
        ..m
    };
    forger.send(&tcp);
    counted(Count::MessageUnknown, 1);
    for odd in [Message { kind: 77, ..m }, Message { signed: true, ..m }] {
        forger.send(&odd);
    }
    counted(Count::MessageMalformed, 2);
    for feedback in [0, backward::MOST_MARKS + 1] {
        forger.send(&Message { feedback, ..m });
    }
    counted(Count::MessageImpossible, refused + 3);
    assert_eq!(only_flow(&running, protocol::UDP).marked_packets, 0);

    // Who sees the packet is believed, once.
    forger.send(&m);
    counted(Count::MessageAccepted, 1);
    for _ in 0..100 {
        forger.send(&m);
    }
    counted(Count::MessageDuplicate, 100);
    let older = Message {
        sequence: m.sequence - 1,
        ..m
    };
    forger.send(&older);
    counted(Count::MessageDuplicate, 101);
    assert_eq!(only_flow(&running, protocol::UDP).marked_packets, 1);

    // And with a key, not at all.
    config.echo.key = Some(key);
    running.agent().reload(config).expect("reload");
    let m = about(&next_frame(3), FORGED + 1);
    forger.send(&m);
    forger.send_signed(&m, [1, 2]);
    counted(Count::MessageForged, 2);
    forger.send_signed(&m, key.words());
    counted(Count::MessageAccepted, 2);
    // A packet of long ago is not quoted any more.
    std::thread::sleep(s(3));
    let late = Message {
        sequence: m.sequence + 1,
        ..m
    };
    forger.send_signed(&late, key.words());
    counted(Count::MessageImpossible, refused + 4);
    assert_eq!(only_flow(&running, protocol::UDP).marked_packets, 2);
}

/// The tag of a port's own messages is right, and the hosts' programs agree on it.
#[test]
fn signed_messages_are_heard() {
    kernel_test!();
    let lab = Lab::new(2);
    lab.limit(1, link() / 5, 5000);
    lab.link(0, link());
    let mut config = config(&lab, Marking::InputOutput);
    config.echo.key = Some(Key::try_from("17".repeat(16)).expect("32 digits"));
    let running = Running::start(config, Options::default());
    for ipv6 in [false, true] {
        let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
        let (sending, _receiving) = (udp(from, ipv6, 7001), udp(to, ipv6, 7002));
        let target = SocketAddr::new(to.address(ipv6), 7002);
        for n in 0..500u32 {
            let sent = sending.send_to(&[n as u8; 600], target);
            sent.expect("send");
        }
    }
    let port = || running.port(&lab.hosts[1].port).marked;
    // As in `all_heard`.
    let forgotten = || running.count(Count::MessageImpossible);
    let heard = || running.count(Count::MessageAccepted) + forgotten();
    let all = eventually(s(5), || port() > 0 && heard() == port());
    let most = forgotten() * 100 <= port();
    assert!(all && most, "{} {}", port(), running.counts());
    assert_eq!(running.count(Count::MessageForged), 0);
}
