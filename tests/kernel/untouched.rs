//! Frames that must pass unchanged, although everything that can be marked is.

use ecn_core::{
    abi::Count,
    flow::Key,
    packet::{self, protocol},
};
use ecn_tests::{
    eventually,
    frames::{BRIDGE_GROUP, ETHERTYPE_ARP, ETHERTYPE_LLDP, Ip, ecn_of, ethernet, llc, tagged},
    kernel_test,
    lab::{Host, Lab},
    running::{self, Running},
    s,
    traffic::udp,
    wire::Wire,
};
use ecn_user::{
    agent::Options,
    config::{Config, Marking, Shares},
};

/// Control frames of the network itself, each with its name. Those of IP are ECT(0).
pub fn control_frames(from: &Host, to: &Host) -> [(&'static str, Vec<u8>); 11] {
    let v4 = Ip::between(from, to, false);
    let v6 = Ip::between(from, to, true);
    let local4 = [169, 254, 7, 7];
    let local6 = [0xfe80, 0, 0, 0, 0, 0, 0, 7];
    let group6 = [0xff02, 0, 0, 0, 0, 0, 0, 0xfb];
    let solicitation = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &to.v6.octets()].concat();
    [
        (
            "ARP",
            ethernet(to.mac, from.mac, ETHERTYPE_ARP, &[0x11; 28]),
        ),
        ("STP", llc(BRIDGE_GROUP, from.mac, &[0; 35])),
        (
            "LLDP",
            ethernet(BRIDGE_GROUP, from.mac, ETHERTYPE_LLDP, &[2; 50]),
        ),
        (
            "unknown EtherType",
            ethernet(to.mac, from.mac, 0x88b5, &[0x45; 60]),
        ),
        (
            "from link-local IPv4",
            v4.clone()
                .addresses(local4, to.v4.octets())
                .udp(1, 2, b"hello"),
        ),
        (
            "to link-local IPv4",
            v4.clone()
                .addresses(from.v4.octets(), local4)
                .udp(1, 2, b"hello"),
        ),
        (
            "to 224.0.0.251",
            v4.addresses(from.v4.octets(), [224, 0, 0, 251])
                .to_mac([1, 0, 0x5e, 0, 0, 251])
                .udp(5353, 5353, b"hello"),
        ),
        (
            "from link-local IPv6",
            v6.clone().addresses(local6, to.v6).udp(1, 2, b"hello"),
        ),
        (
            "to link-local IPv6",
            v6.clone().addresses(from.v6, local6).udp(1, 2, b"hello"),
        ),
        (
            "to ff02::fb",
            v6.clone()
                .addresses(from.v6, group6)
                .to_mac([0x33, 0x33, 0, 0, 0, 0xfb])
                .udp(5353, 5353, b"hello"),
        ),
        (
            "neighbour solicitation",
            v6.with(protocol::ICMPV6, &solicitation),
        ),
    ]
}

/// Fragments, first and later, all ECT(0): a flow of their addresses and protocol.
fn fragments(from: &Host, to: &Host) -> Vec<(&'static str, Vec<u8>)> {
    let (v4, v6) = (Ip::between(from, to, false), Ip::between(from, to, true));
    vec![
        (
            "first IPv4 fragment",
            v4.clone().fragment(0, true).udp(1, 2, &[3; 64]),
        ),
        (
            "later IPv4 fragment",
            v4.clone().fragment(9, true).with(protocol::UDP, &[3; 64]),
        ),
        (
            "last IPv4 fragment",
            v4.fragment(18, false).with(protocol::UDP, &[3; 40]),
        ),
        (
            "first IPv6 fragment",
            v6.clone().fragment(0, true).udp(1, 2, &[3; 64]),
        ),
        (
            "last IPv6 fragment",
            v6.fragment(9, false).with(protocol::UDP, &[3; 40]),
        ),
    ]
}

/// Packets that are counted, but not ECN-capable.
fn not_ect(from: &Host, to: &Host) -> Vec<(&'static str, Vec<u8>)> {
    let frames = [false, true].map(|ipv6| {
        let ip = Ip::between(from, to, ipv6).ecn(packet::NOT_ECT);
        [
            ("not-ECT UDP", ip.udp(1, 2, &[4; 100])),
            ("not-ECT TCP", ip.with(protocol::TCP, &[0x10; 40])),
            ("not-ECT ICMP echo reply", ip.with(protocol::ICMP, &[0; 40])),
            ("not-ECT, unknown protocol", ip.with(200, &[5; 40])),
        ]
    });
    frames.into_iter().flatten().collect()
}

/// Packets that must be marked in the same run.
fn markable(from: &Host, to: &Host) -> Vec<(&'static str, Vec<u8>)> {
    let (v4, v6) = (Ip::between(from, to, false), Ip::between(from, to, true));
    let ect1 = |ip: &Ip| ip.clone().ecn(packet::ECT_1);
    vec![
        ("ECT(0) IPv4", v4.udp(1, 2, &[6; 100])),
        ("ECT(1) IPv4", ect1(&v4).udp(1, 2, &[6; 100])),
        ("ECT(0) IPv6", v6.udp(1, 2, &[6; 100])),
        ("ECT(1) IPv6", ect1(&v6).udp(1, 2, &[6; 100])),
        ("ECT(0), unknown protocol", v4.with(200, &[6; 100])),
        (
            "ECT(0), one tag",
            tagged(&v4.udp(1, 2, &[6; 100]), packet::ETHERTYPE_VLAN, 5),
        ),
        (
            "ECT(0) IPv6, one tag",
            tagged(&v6.udp(1, 2, &[6; 100]), packet::ETHERTYPE_VLAN, 0x6005),
        ),
        // Of two tags one stays in the frame's bytes, of three two.
        ("ECT(0), QinQ", stacked(&v4.udp(1, 2, &[6; 100]), 1)),
        ("ECT(0) IPv6, QinQ", stacked(&v6.udp(1, 2, &[6; 100]), 1)),
        ("ECT(0), three tags", stacked(&v4.udp(1, 2, &[6; 100]), 2)),
        ("ECT(0), ESP", v4.with(50, &[0x77; 60])),
        (
            "ECT(0) IPv6, options before UDP",
            v6.with(protocol::HOP_BY_HOP, &OPTIONS_AND_UDP),
        ),
    ]
}

/// Eight bytes of padding options (RFC 8200 section 4.2), and a UDP header.
const OPTIONS_AND_UDP: [u8; 16] = [protocol::UDP, 0, 1, 4, 0, 0, 0, 0, 0, 1, 0, 2, 0, 8, 0, 0];

/// A customer's VLAN tag within a provider's.
fn stacked(frame: &[u8], inner: u16) -> Vec<u8> {
    let customers = (0..inner).fold(frame.to_vec(), |frame, number| {
        tagged(&frame, packet::ETHERTYPE_VLAN, 0x2007 + number)
    });
    tagged(&customers, packet::ETHERTYPE_QINQ, 5)
}

/// Address of the frames that are examined: the sender's kernel also sends frames with its own address.
const SENDER: [u8; 6] = [0x06, 0x77, 0, 0, 0, 0x99];

pub fn ours(frame: &[u8]) -> Vec<u8> {
    [&frame[..6], &SENDER, &frame[12..]].concat()
}

/// Sends frames one after the other into a queue that never empties meanwhile, with a policy that marks every packet behind
/// another one; returns what arrived, without the filling.
pub fn through(lab: &Lab, frames: &[(&'static str, Vec<u8>)]) -> Vec<Vec<u8>> {
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let arriving = Wire::open(&to.ns, to.ifindex);
    let sending = Wire::open(&from.ns, from.ifindex);
    // 60 of 1000 bytes at 250 kB/s: more than 200 ms of queue.
    let filling = ours(&Ip::between(from, to, false).udp(1, 2, &[0xf1; 958]));
    let is_filling = |frame: &[u8]| frame.ends_with(&[0xf1; 64]);
    for _ in 0..60 {
        sending.send(&filling);
    }
    for (_, frame) in frames {
        sending.send(&ours(frame));
    }
    let all = arriving.all(s(1));
    let filled = all.iter().filter(|frame| is_filling(frame)).count();
    assert_eq!(filled, 60, "the queue overflowed");
    all.into_iter()
        .filter(|frame| !is_filling(frame))
        .filter(|frame| frame[6..12] == SENDER)
        .collect()
}

fn named(frames: &[(&'static str, Vec<u8>)], frame: &[u8]) -> String {
    let found = frames.iter().find(|(_, f)| ours(f) == frame);
    found.map_or_else(
        || format!("none of those sent: {frame:02x?}"),
        |(name, _)| (*name).to_owned(),
    )
}

/// Asserts that these frames arrived unchanged. The order may differ: another CPU may forward the next one.
#[track_caller]
pub fn identical(sent: &[(&'static str, Vec<u8>)], arrived: &[Vec<u8>]) {
    let mut is: Vec<_> = arrived.iter().map(|frame| named(sent, frame)).collect();
    let mut expected: Vec<_> = sent.iter().map(|(name, _)| (*name).to_owned()).collect();
    is.sort_unstable();
    expected.sort_unstable();
    assert_eq!(is, expected);
    let mut arrived = arrived.to_vec();
    let mut sent: Vec<_> = sent.iter().map(|(_, frame)| ours(frame)).collect();
    arrived.sort_unstable();
    sent.sort_unstable();
    assert_eq!(arrived, sent);
}

/// Asserts that these frames arrived, in this order, marked: only the ECN field and its checksum changed.
#[track_caller]
pub fn only_marked(sent: &[(&'static str, Vec<u8>)], arrived: &[Vec<u8>]) {
    assert_eq!(arrived.len(), sent.len());
    for ((name, sent), arrived) in sent.iter().zip(arrived) {
        assert_eq!(ecn_of(arrived), Some(packet::CE), "{name}");
        let sent = ours(sent);
        let differ = sent.iter().zip(arrived).filter(|(a, b)| a != b).count();
        assert!(
            sent.len() == arrived.len() && (1..=3).contains(&differ),
            "{name}: {arrived:02x?}"
        );
    }
}

/// Marks everything behind another packet: every arrival finds its input buffer full, and no source is spared.
pub fn start(lab: &Lab, endpoints: &[usize]) -> Running {
    Running::start(configuration(lab, endpoints), Options::default())
}

pub fn configuration(lab: &Lab, endpoints: &[usize]) -> Config {
    lab.limit(1, 250_000, 1000);
    let mut config = running::config(lab, Marking::InputOutput);
    config.bridges[0].buffer = 1;
    config.bridges[0].threshold = 1;
    config.bridges[0].shares = Shares::Off;
    running::with_endpoints(config, lab, endpoints, 12_500_000)
}

#[test]
fn at_ports() {
    kernel_test!();
    let lab = Lab::new(2);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let running = start(&lab, &[]);
    let _listening = [false, true].map(|ipv6| udp(to, ipv6, 2));

    let control = control_frames(from, to);
    identical(&control, &through(&lab, &control));
    let port = running.port(&to.port);
    assert_eq!(port.unmarkable, 0, "a control frame had its turn");
    assert_eq!(port.arrived, 60);
    // Not the first ones, which found an empty queue.
    assert!((50..60).contains(&port.marked), "{port:?}");
    let marked_before = port.marked;

    let others = not_ect(from, to);
    identical(&others, &through(&lab, &others));
    let port = running.port(&to.port);
    assert_eq!(port.unmarkable, others.len() as u64);
    assert_eq!(port.arrived, 120 + others.len() as u64);
    assert!(
        (50..=60).contains(&(port.marked - marked_before)),
        "{port:?}"
    );

    // At the same port, everything that can be marked is, and only the ECN field and its checksum change.
    let markable = [markable(from, to), fragments(from, to)].concat();
    let arrived = through(&lab, &markable);
    only_marked(&markable, &arrived);
    for ((name, _), arrived) in markable.iter().zip(&arrived) {
        // Tags in metadata are in these bytes, so frames may have one more than programs see.
        let l3 = (14..)
            .step_by(4)
            .find(|at| matches!(arrived[*at] >> 4, 4 | 6));
        let header = &arrived[l3.expect("an IP header")..];
        if header[0] >> 4 == 4 {
            let (header, _) = etherparse::Ipv4Header::from_slice(header).expect(name);
            assert_eq!(
                header.header_checksum,
                header.calc_header_checksum(),
                "{name}"
            );
        }
    }
    assert!(
        eventually(s(3), || running.waiting().is_empty()),
        "{:?}",
        running.waiting()
    );
}

/// A bridge floods clones, which the kernel's helper does not mark: programs copy them first.
#[test]
fn flooded_frames_are_marked() {
    kernel_test!();
    const SENT: u64 = 60;
    let lab = Lab::new(3);
    lab.limit(2, 250_000, 1000);
    let running = start(&lab, &[]);
    let from = &lab.hosts[0];
    let nobody = [0x06, 0x77, 0, 0, 0, 0x98];
    for ipv6 in [false, true] {
        let ip = Ip::between(from, &lab.hosts[1], ipv6).to_mac(nobody);
        let frame = ours(&ip.udp(1, 2, &[0xf1; 958]));
        let receivers = &lab.hosts[1..];
        let marked = || receivers.iter().map(|to| running.port(&to.port).marked);
        let before: Vec<_> = marked().collect();
        let wires: Vec<_> = receivers
            .iter()
            .map(|to| Wire::open(&to.ns, to.ifindex))
            .collect();
        let sending = Wire::open(&from.ns, from.ifindex);
        (0..SENT).for_each(|_| sending.send(&frame));
        for ((wire, before), now) in wires.iter().zip(before).zip(marked()) {
            let mut arrived = wire.all(s(1));
            arrived.retain(|frame| frame[6..12] == SENDER);
            assert_eq!(arrived.len() as u64, SENT);
            arrived.retain(|frame| ecn_of(frame) == Some(packet::CE));
            // Not the first ones, which found an empty queue.
            assert!(
                arrived.len() >= 50,
                "IPv6 {ipv6}: {} are marked",
                arrived.len()
            );
            assert_eq!(now - before, arrived.len() as u64);
            only_marked(&vec![("flooded", frame.clone()); arrived.len()], &arrived);
        }
    }
    assert_eq!(running.count(Count::MarkFailed), 0);
}

/// Devices with control on them change the packets of flows, and nothing else.
#[test]
fn at_endpoints() {
    kernel_test!();
    let lab = Lab::new(2);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let running = start(&lab, &[0, 1]);
    let _listening = udp(to, false, 2);
    let group = Ip::between(from, to, false)
        .ecn(packet::NOT_ECT)
        .addresses(from.v4.octets(), [239, 1, 2, 3])
        .to_mac([1, 0, 0x5e, 1, 2, 3]);
    let mut frames = control_frames(from, to).to_vec();
    frames.push(("to a group", group.udp(1, 2, b"hello")));
    identical(&frames, &through(&lab, &frames));
    // The filling is a flow, and the only one from there.
    let (_, flow) = running.flow(|key| key.endpoint == 1);
    assert_eq!(flow.sent_packets, 60);
    assert_eq!(running.receiver(|key| key.endpoint == 2).packets, 60);
    assert_eq!(running.count(Count::Unparsed), 0);
    // Packets that are not ECN-capable are made so.
    let plain = [(
        "UDP",
        Ip::between(from, to, false)
            .ecn(packet::NOT_ECT)
            .udp(3, 2, &[1; 50]),
    )];
    let arrived = through(&lab, &plain);
    assert_eq!(ecn_of(&arrived[0]), Some(packet::CE));
    // Fragments are flows without ports, one of each family.
    // From the host's own address: an echo to another address is not for it.
    let sending = Wire::open(&from.ns, from.ifindex);
    for (_, frame) in fragments(from, to) {
        sending.send(&frame);
    }
    for (family, packets) in [(false, 3), (true, 2)] {
        let of_family = |key: &Key| {
            (key.src_port, key.dst_port, key.protocol) == (0, 0, protocol::UDP)
                && (key.src[..10] != [0; 10]) == family
        };
        let flow = || running.flow(|key| key.endpoint == 1 && of_family(key)).1;
        assert_eq!(flow().sent_packets, packets);
        assert!(
            eventually(s(2), || flow().acked_packets == packets),
            "{}",
            running.counts()
        );
        let received = running.receiver(|key| key.endpoint == 2 && of_family(key));
        assert_eq!(received.packets, packets);
    }
}
