//! Messages from a congested port to the source: receivers run no program, and packets are not changed.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use ecn_core::{
    abi::Count,
    backward::{self, Kind, Message},
    bcn,
    echo::PROTOCOL,
    flow::{self, Flow},
    packet::{self, protocol},
    qcn,
};
use ecn_tests::{
    emulated, eventually,
    frames::{Ip, ecn_of},
    kernel_test,
    lab::Lab,
    running::{self, Running},
    s,
    traffic::{Repeated, udp},
    wire::Wire,
};
use ecn_user::{
    agent::Options,
    config::{Config, Feedback, Key, Marking},
};

use super::{
    attacks::{FORGED, flood, in_the_name_of, scattered},
    tcp::{PORT, connect, send},
};

/// Rate of the source's link: lower than what it can send, also when emulated.
fn link() -> u64 {
    if emulated() { 1_250_000 } else { 12_500_000 }
}

/// Host 0 is an endpoint; the bridge's port to host 1 marks if it has a limit.
fn config(lab: &Lab, marking: Marking) -> Config {
    let mut config = running::config(lab, marking);
    config.bridges[0].feedback = Feedback::Backward;
    // One message per mark.
    config.bridges[0].messages_per_s = 1_000_000;
    running::with_endpoints(config, lab, &[0], link())
}

/// The port to host 1 has a queue that marks.
fn marked(lab: &Lab) -> Running {
    // No drops: on a busy machine the reaction to the first mark may come after the last packet.
    lab.limit(1, link() / 5, 5000);
    lab.link(0, link());
    Running::start(config(lab, Marking::InputOutput), Options::default())
}

fn only_flow(running: &Running, protocol: u8) -> Flow {
    let is = |key: &flow::Key| key.endpoint == 1 && key.protocol == protocol;
    running.flow(is).1
}

/// Each mark was reported to its source by one message, and nothing else happened.
#[track_caller]
fn all_delivered(lab: &Lab, running: &Running, protocol: u8) -> Flow {
    let port = || running.port(&lab.hosts[1].port);
    // Two packets may share an entry of the source's table: the older one is then unknown.
    let forgotten = || running.count(Count::MessageImpossible);
    let all_accepted =
        || only_flow(running, protocol).marked_packets + forgotten() == port().marked;
    assert!(
        eventually(s(5), all_accepted),
        "{:?} {}",
        port(),
        running.counts()
    );
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
    let flow = all_delivered(&lab, &running, protocol::UDP);
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
    // While the connection is open: its flow is removed with it.
    all_delivered(&lab, &running, protocol::TCP);
    drop(sending);
    assert_eq!(received.join().expect("the receiver"), BYTES);
}

/// An unmarked flow returns to its link's rate without receiving any message.
#[test]
fn an_unmarked_flow_recovers() {
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
    let slowed = eventually(s(20), || {
        (0..500).for_each(|n| sends(n as u8));
        rate() < link() / 2
    });
    assert!(slowed, "{}", rate());
    let agent = running.agent();
    let none = agent.set_marking(0, |bridge| bridge.marking = Marking::None);
    none.expect("no marking");
    let grown = eventually(s(20), || {
        (0..50).for_each(&sends);
        rate() > link() * 9 / 10
    });
    assert!(grown, "{}", rate());
}

/// A port's messages are limited in rate: each one reports all marks since the previous one.
#[test]
fn rate_limited_messages_report_all_marks() {
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
    let reported = || {
        let point = running.maps.point(0, slot).expect("a congestion point");
        let flow = only_flow(&running, protocol::UDP);
        (point, flow.marked_packets + u64::from(point.pending))
    };
    let all = || reported().1 == running.port(&to.port).marked;
    assert!(
        eventually(s(5), all),
        "{:?} {}",
        reported(),
        running.counts()
    );
    let (point, _) = reported();
    assert!(point.held > 0, "{point:?}");
    assert_eq!(point.held, running.count(Count::MessageHeld));
    assert_eq!(point.sent, running.count(Count::MessageAccepted));
}

/// Messages with host 1's address about packets that host 0 has sent there.
pub struct Forger<'a> {
    lab: &'a Lab,
    stranger: Wire,
}

impl<'a> Forger<'a> {
    /// At host 2, another port of the bridge.
    pub fn new(lab: &'a Lab) -> Self {
        Self {
            lab,
            stranger: Wire::open(&lab.hosts[2].ns, lab.hosts[2].ifindex),
        }
    }

    fn ip(&self) -> Ip {
        let hosts = &self.lab.hosts;
        in_the_name_of(&hosts[1], &hosts[0], &hosts[2]).ttl(backward::TTL)
    }

    /// The frame of a message.
    pub fn frame(&self, m: &Message) -> Vec<u8> {
        self.ip().with(PROTOCOL, &m.to_bytes())
    }

    /// The frame of a message that has passed a router.
    fn far(&self, m: &Message) -> Vec<u8> {
        let ip = self.ip().ttl(backward::TTL - 1);
        ip.with(PROTOCOL, &m.to_bytes())
    }

    fn signed(&self, m: &Message, key: [u64; 2]) -> Vec<u8> {
        let m = Message { signed: true, ..*m };
        let mapped = |host: usize| self.lab.hosts[host].v4.to_ipv6_mapped().octets();
        let tag = m.tag(key, &mapped(1), &mapped(0)).to_be_bytes();
        let payload = [&m.to_bytes()[..], &tag].concat();
        self.ip().with(PROTOCOL, &payload)
    }

    /// A frame sent by another host, sent again from here.
    pub fn copy(&self, frame: &[u8]) -> Vec<u8> {
        let from = self.lab.hosts[2].mac;
        [&frame[..6], &from, &frame[12..]].concat()
    }

    pub fn send(&self, frame: &[u8]) {
        self.stranger.send(frame);
    }

    /// Sends [`FORGED`] frames, each a function of its number.
    pub fn floods(&self, frame: impl Fn(u32) -> Vec<u8>) {
        flood(&self.stranger, frame);
    }
}

/// A message about an IPv4 frame with a UDP packet, as a congested port makes it: one mark, BCN's stop or QCN's largest
/// feedback.
pub fn about(frame: &[u8], sequence: u32, kind: Kind) -> Message {
    let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().expect("four bytes"));
    let body = frame[42..50].try_into().expect("eight bytes");
    Message {
        protocol: protocol::UDP,
        src_port: 7001,
        dst_port: 7002,
        quote: backward::fingerprint(word(16), body),
        sequence,
        kind: kind as u8,
        feedback: match kind {
            Kind::Marks => 1,
            Kind::Bcn => bcn::STOP,
            Kind::Qcn => qcn::MAX_FEEDBACK,
        },
        point: 0x0200_0000_0001_0001,
        ..Message::default()
    }
}

/// A flow of host 0 to host 1 that sends 100 datagrams a second, and has sent enough to have a rate of its own.
pub struct Victim<'a> {
    running: &'a Running,
    seen: Wire,
    _sends: Repeated,
    _receiving: UdpSocket,
}

impl<'a> Victim<'a> {
    pub fn new(lab: &Lab, running: &'a Running) -> Self {
        let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
        let (sending, receiving) = (udp(from, false, 7001), udp(to, false, 7002));
        let target = SocketAddr::new(to.v4.into(), 7002);
        let send = move |n: u64| {
            let text = [&n.to_be_bytes()[..], &[9; 200]].concat();
            sending.send_to(&text, target).expect("send");
        };
        (0..2 * flow::SHORT_PACKETS).for_each(&send);
        let victim = Self {
            running,
            seen: Wire::open(&to.ns, to.ifindex),
            _sends: Repeated::paced(100, move |n| send(n | 1 << 32)),
            _receiving: receiving,
        };
        let has_own_rate = || victim.flow().has_own_rate != 0;
        assert!(eventually(s(2), has_own_rate), "{:?}", victim.flow());
        victim
    }

    pub fn flow(&self) -> Flow {
        only_flow(self.running, protocol::UDP)
    }

    /// A frame of the flow that was just sent.
    pub fn frame(&self) -> Vec<u8> {
        while self.seen.next(Duration::ZERO).is_some() {}
        let mut frames = std::iter::from_fn(|| self.seen.next(s(5)));
        let frame = frames.find(|frame| frame.len() > 200);
        frame.expect("a packet")
    }

    /// Number of decreases by messages.
    fn lowered_by(&self, kind: Kind) -> u64 {
        let flow = self.flow();
        match kind {
            Kind::Marks => flow.marked_packets,
            Kind::Bcn | Kind::Qcn => flow.decreases,
        }
    }

    /// The flow has its link's rate, and never had a lower one.
    #[track_caller]
    pub fn kept_its_rate(&self) {
        let flow = self.flow();
        assert!(!flow.is_limited(link()), "{flow:?}");
        assert_eq!((flow.decreases, flow.marked_packets), (0, 0), "{flow:?}");
        assert_eq!(flow.reaction.rate(), None, "{flow:?}");
    }

    #[track_caller]
    pub fn counted(&self, what: Count, n: u64) {
        let all = eventually(s(10), || self.running.count(what) == n);
        assert!(all, "{what:?} {n}: {}", self.running.counts());
    }
}

/// Frames of [`Forger::floods`].
const ALL: u64 = FORGED as u64;

/// Messages with forged quotes, copies of accepted messages and messages from behind a router are refused and counted;
/// the flow keeps its rate. A forger must see a packet to quote it, and with a key that is not enough either. The bridge
/// neither marks nor samples, which changes nothing: a source does not know what its bridges send.
fn forgers_slow_no_flow(kind: Kind) {
    let lab = Lab::new(3);
    let mut config = config(&lab, Marking::None);
    let running = Running::start(config.clone(), Options::default());
    let victim = Victim::new(&lab, &running);
    let forger = Forger::new(&lab);
    let impossible = forged_messages_are_refused(&victim, &forger, kind);
    copies_are_refused(&victim, &forger, kind);

    let key = Key::try_from("05".repeat(16)).expect("32 digits");
    config.echo.key = Some(key);
    running.agent().reload(config).expect("reload");
    let m = about(&victim.frame(), FORGED + 1, kind);
    forger.floods(|_| forger.frame(&m));
    forger.floods(|n| forger.signed(&m, [1, n.into()]));
    victim.counted(Count::MessageForged, 2 * ALL);
    assert_eq!(victim.lowered_by(kind), 1, "{:?}", victim.flow());
    let m = about(&victim.frame(), FORGED + 1, kind);
    forger.send(&forger.signed(&m, key.words()));
    victim.counted(Count::MessageAccepted, 2);
    // Quotes of old packets are refused.
    std::thread::sleep(s(3));
    let late = Message {
        sequence: m.sequence + 1,
        ..m
    };
    forger.send(&forger.signed(&late, key.words()));
    victim.counted(Count::MessageImpossible, impossible + 1);
    assert_eq!(victim.lowered_by(kind), 2, "{:?}", victim.flow());
}

/// Forged messages are refused. Returns how many quoted packets that were never sent, or had impossible feedback.
fn forged_messages_are_refused(victim: &Victim<'_>, forger: &Forger<'_>, kind: Kind) -> u64 {
    // Of an existing flow, about packets that it has not sent.
    let m = about(&victim.frame(), 0, kind);
    forger.floods(|n| {
        let quote = scattered(n);
        forger.frame(&Message {
            quote,
            sequence: n,
            ..m
        })
    });
    // One of them may match by chance: probability 2^-32 for each of the 200 packets of the last two seconds.
    victim.counted(Count::MessageImpossible, ALL);
    victim.kept_its_rate();

    // Correct, but from behind a router.
    let m = about(&victim.frame(), FORGED, kind);
    forger.floods(|n| forger.far(&Message { sequence: n, ..m }));
    victim.counted(Count::MessageFar, ALL);

    // Of unknown flows: the quoted packet belongs to another flow, and TCP's packets are known only with their flow.
    let m = about(&victim.frame(), FORGED, kind);
    forger.floods(|n| {
        forger.frame(&Message {
            src_port: 7003,
            sequence: n,
            ..m
        })
    });
    victim.counted(Count::MessageImpossible, 2 * ALL);
    forger.floods(|n| {
        forger.frame(&Message {
            protocol: protocol::TCP,
            flags: backward::BY_NUMBER,
            sequence: n,
            ..m
        })
    });
    victim.counted(Count::MessageUnknown, ALL);

    let m = about(&victim.frame(), FORGED, kind);
    for odd in [Message { kind: 77, ..m }, Message { signed: true, ..m }] {
        forger.send(&forger.frame(&odd));
    }
    victim.counted(Count::MessageMalformed, 2);
    let mut impossible = 2 * ALL;
    if kind == Kind::Marks {
        for feedback in [0, backward::MOST_MARKS + 1] {
            forger.send(&forger.frame(&Message { feedback, ..m }));
        }
        impossible += 2;
    }
    victim.counted(Count::MessageImpossible, impossible);
    victim.counted(Count::MessageAccepted, 0);
    victim.kept_its_rate();
    impossible
}

/// A quote of a packet that the forger has seen is accepted, once.
fn copies_are_refused(victim: &Victim<'_>, forger: &Forger<'_>, kind: Kind) {
    let m = about(&victim.frame(), FORGED, kind);
    forger.send(&forger.frame(&m));
    victim.counted(Count::MessageAccepted, 1);
    for _ in 0..100 {
        forger.send(&forger.frame(&m));
    }
    victim.counted(Count::MessageDuplicate, 100);
    let older = Message {
        sequence: m.sequence - 1,
        ..m
    };
    forger.send(&forger.frame(&older));
    victim.counted(Count::MessageDuplicate, 101);
    assert_eq!(victim.lowered_by(kind), 1, "{:?}", victim.flow());
}

#[test]
fn forged_marks_slow_no_flow() {
    kernel_test!();
    forgers_slow_no_flow(Kind::Marks);
}

#[test]
fn forged_bcn_stops_slow_no_flow() {
    kernel_test!();
    forgers_slow_no_flow(Kind::Bcn);
}

#[test]
fn forged_qcn_feedback_slows_no_flow() {
    kernel_test!();
    forgers_slow_no_flow(Kind::Qcn);
}

/// A source that expects echoes refuses messages, even correct ones.
#[test]
fn a_source_with_echoes_refuses_messages() {
    kernel_test!();
    let lab = Lab::new(3);
    let config = running::config(&lab, Marking::None);
    assert_eq!(config.feedback(), Feedback::Echo);
    let config = running::with_endpoints(config, &lab, &[0], link());
    let running = Running::start(config, Options::default());
    let victim = Victim::new(&lab, &running);
    let forger = Forger::new(&lab);
    for (done, kind) in (1..).zip([Kind::Marks, Kind::Bcn, Kind::Qcn]) {
        let m = about(&victim.frame(), 0, kind);
        forger.floods(|n| forger.frame(&Message { sequence: n, ..m }));
        victim.counted(Count::MessageUnknown, done * u64::from(FORGED));
        victim.kept_its_rate();
    }
}

/// A forger who does not see a connection's segments knows neither of the numbers that a quote has to have.
#[test]
fn forged_messages_slow_no_connection() {
    kernel_test!();
    let lab = Lab::new(3);
    let running = Running::start(config(&lab, Marking::None), Options::default());
    let forger = Forger::new(&lab);
    let (sending, receiving) = connect(&lab.hosts[0], &lab.hosts[1], false, None);
    let src_port = sending.local_addr().expect("its address").port();
    // Enough for a rate of its own.
    let ends = send(sending, receiving, 1 << 21);
    let has_own_rate = || only_flow(&running, protocol::TCP).has_own_rate != 0;
    assert!(eventually(s(2), has_own_rate));
    let kinds = [
        (Kind::Marks, 1),
        (Kind::Bcn, bcn::STOP),
        (Kind::Qcn, qcn::MAX_FEEDBACK),
    ];
    let forged = |(kind, feedback), numbers: [u32; 2], n| {
        let [quote, acknowledgment] = numbers;
        forger.frame(&Message {
            protocol: protocol::TCP,
            src_port,
            dst_port: PORT,
            quote,
            acknowledgment,
            sequence: n,
            kind: kind as u8,
            flags: backward::BY_NUMBER,
            feedback,
            point: 0x0200_0000_0001_0001,
            signed: false,
        })
    };
    for kind in kinds {
        forger.floods(|n| forged(kind, [scattered(n), scattered(!n)], n));
    }
    let is_refused = |n| {
        let refused = || running.count(Count::MessageImpossible) == n;
        assert!(eventually(s(10), refused), "{}", running.counts());
    };
    is_refused(3 * ALL);
    // One of the numbers is not enough.
    let ace = only_flow(&running, protocol::TCP).ace;
    let (sequence, far) = (ace.end.wrapping_sub(1), 1 << 30);
    for (n, kind) in kinds.into_iter().enumerate() {
        for numbers in [
            [sequence, ace.expected.wrapping_add(far)],
            [sequence.wrapping_sub(far), ace.expected],
        ] {
            forger.send(&forged(kind, numbers, FORGED + n as u32));
        }
    }
    is_refused(3 * ALL + 6);
    let ends = send(ends.0, ends.1, 1 << 20);
    let flow = only_flow(&running, protocol::TCP);
    assert!(!flow.is_limited(link()), "{flow:?}");
    assert_eq!((flow.decreases, flow.marked_packets), (0, 0), "{flow:?}");
    assert_ne!(flow.ace.expected, 0, "{flow:?}");
    // With both it is accepted, as the ports' own are.
    let sequence = flow.ace.end.wrapping_sub(1);
    forger.send(&forged(kinds[0], [sequence, flow.ace.expected], 1));
    let accepted = || running.count(Count::MessageAccepted) == 1;
    assert!(eventually(s(2), accepted), "{}", running.counts());
    drop(ends);
}

/// Ports sign their messages correctly, and the hosts' programs accept the signatures.
#[test]
fn signed_messages_are_accepted() {
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
    // As in `all_delivered`.
    let forgotten = || running.count(Count::MessageImpossible);
    let received = || running.count(Count::MessageAccepted) + forgotten();
    let all = eventually(s(5), || port() > 0 && received() == port());
    let most = forgotten() * 100 <= port();
    assert!(all && most, "{} {}", port(), running.counts());
    assert_eq!(running.count(Count::MessageForged), 0);
}
