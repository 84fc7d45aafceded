//! The same transfer with and without super-packets has the same counters.

use std::net::SocketAddr;

use ecn_core::{
    flow::Key,
    packet::{self, protocol},
};
use ecn_tests::{
    eventually,
    frames::Ip,
    kernel_test,
    lab::Lab,
    note,
    running::{self, Running},
    s,
    traffic::udp,
    wire::Wire,
};
use ecn_user::{
    agent::Options,
    config::{Enforcement, Marking, Round},
};
use nix::sys::socket::{setsockopt, sockopt};

/// 1 Gbit/s.
const LINK: u64 = 125_000_000;

/// Counters of one flow: at its source, at the port and at its receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counted {
    sent_packets: u64,
    sent_bytes: u64,
    port_packets: u64,
    received_packets: u64,
    received_bytes: u64,
    ce: u64,
}

impl Counted {
    fn all(self) -> [u64; 6] {
        [
            self.sent_packets,
            self.sent_bytes,
            self.port_packets,
            self.received_packets,
            self.received_bytes,
            self.ce,
        ]
    }
}

/// `send` returns what must stay open until everything was counted: a TCP connection's flow ends with it.
fn run<T>(super_packets: bool, number: u8, send: impl Fn(&Lab) -> T) -> Counted {
    let lab = if super_packets {
        Lab::with_super_packets(2)
    } else {
        Lab::new(2)
    };
    let mut config = running::config(&lab, Marking::None);
    // Only counters are compared: rates must not depend on what a slow machine delivers.
    config.response.round = Round::Packets;
    config.response.rmin = "9/10".parse().expect("a fraction");
    lab.link(0, LINK);
    let config = running::with_endpoints(config, &lab, &[0, 1], LINK);
    let running = Running::start(config, Options::default());
    let _open = send(&lab);
    let of = |key: &Key, endpoint: u16| {
        (key.endpoint, key.protocol, key.dst_port) == (endpoint, number, 5001)
    };
    let source = || running.flow(|key| of(key, 1)).1;
    let receiver = || running.receiver(|key| of(key, 2));
    let same = || source().sent_packets == receiver().packets;
    assert!(eventually(s(5), same), "{:?} {:?}", source(), receiver());
    let port = running.port(&lab.hosts[1].port);
    assert_eq!(port.largest > 1, super_packets, "{port:?}");
    let (source, receiver) = (source(), receiver());
    Counted {
        sent_packets: source.sent_packets,
        sent_bytes: source.sent_bytes,
        port_packets: port.arrived,
        received_packets: receiver.packets,
        received_bytes: receiver.bytes,
        ce: receiver.ce,
    }
}

#[test]
fn udp_segments_are_counted_one_by_one() {
    const SENDS: u64 = 400;
    const SEGMENTS: u64 = 20;
    const PAYLOAD: u64 = 1200;
    kernel_test!();
    let send = |lab: &Lab| {
        let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
        let receiving = udp(to, false, 5001);
        let sending = udp(from, false, 5000);
        setsockopt(&sending, sockopt::SndBuf, &(100 << 10)).expect("send buffer");
        setsockopt(&sending, sockopt::UdpGsoSegment, &(PAYLOAD as i32)).expect("segments");
        setsockopt(&sending, sockopt::Ipv4Tos, &i32::from(packet::CE)).expect("TOS");
        let target = SocketAddr::new(to.v4.into(), 5001);
        for _ in 0..SENDS {
            let sent = sending.send_to(&[5; (SEGMENTS * PAYLOAD) as usize], target);
            assert_eq!(sent.expect("send") as u64, SEGMENTS * PAYLOAD);
            // Not faster than they are received: a veth queues 256 frames, and drops more.
            for _ in 0..SEGMENTS {
                let received = receiving.recv(&mut [0; PAYLOAD as usize]);
                assert_eq!(received.expect("receive") as u64, PAYLOAD);
            }
        }
    };
    let with = run(true, protocol::UDP, send);
    let without = run(false, protocol::UDP, send);
    let packets = SENDS * SEGMENTS;
    let bytes = packets * (14 + 20 + 8 + PAYLOAD);
    let expected = Counted {
        sent_packets: packets,
        sent_bytes: bytes,
        port_packets: packets,
        received_packets: packets,
        received_bytes: bytes,
        ce: packets,
    };
    for counted in [with, without] {
        // The host also sends other packets.
        let port = counted.port_packets;
        assert!((packets..packets + packets / 100).contains(&port), "{port}");
        let counted = Counted {
            port_packets: packets,
            ..counted
        };
        assert_eq!(counted, expected);
    }
}

/// A flow's queue at a low rate is shorter than a super-packet; UDP's are as long as the application makes them.
#[test]
fn udp_segments_fit_the_queue_of_a_slow_flow() {
    const SEGMENTS: usize = 20;
    const PAYLOAD: usize = 1200;
    /// 4 Mbit/s: a super-packet takes 50 ms.
    const RATE: u64 = 500_000;
    kernel_test!();
    let lab = Lab::with_super_packets(2);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let config = running::config(&lab, Marking::None);
    let mut config = running::with_endpoints(config, &lab, &[0, 1], LINK);
    config.endpoints[0].enforcement = Enforcement::Htb;
    let mut running = Running::start(config, Options::default());
    let receiving = udp(to, false, 5001);
    let sending = udp(from, false, 5000);
    let target = SocketAddr::new(to.v4.into(), 5001);
    let send = |bytes: usize| {
        let sent = sending.send_to(&vec![5; bytes], target).expect("send");
        assert_eq!(sent, bytes);
    };
    let mut buffer = [0; PAYLOAD];
    // The flow is limited before its packets are long.
    send(PAYLOAD);
    receiving.recv(&mut buffer).expect("receive");
    let (key, _) = running.flow(|key| key.dst_port == 5001);
    running.maps.set_pin(&key, RATE).expect("pin");
    let limited = || running.maps.flow(&key).is_some_and(|flow| flow.class != 0);
    assert!(eventually(s(5), limited), "no class");
    setsockopt(&sending, sockopt::UdpGsoSegment, &(PAYLOAD as i32)).expect("segments");
    send(SEGMENTS * PAYLOAD);
    let queue = || {
        let leaves = from.nl.qdiscs().expect("queues");
        let limits = leaves.iter().filter(|leaf| leaf.kind == "bfifo");
        limits.filter_map(|leaf| leaf.limit).max()
    };
    let fits = || queue() >= Some((SEGMENTS * PAYLOAD) as u32);
    assert!(eventually(s(5), fits), "{:?}", queue());
    while receiving.recv(&mut buffer).is_ok() {}
    for _ in 0..5 {
        send(SEGMENTS * PAYLOAD);
        for _ in 0..SEGMENTS {
            assert_eq!(receiving.recv(&mut buffer).expect("receive"), PAYLOAD);
        }
    }
}

#[test]
fn tcp_counters_agree() {
    kernel_test!();
    let send = |lab: &Lab| {
        let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
        let (sending, receiving) = super::tcp::connect(from, to, false, None);
        super::tcp::send(sending, receiving, 16 << 20)
    };
    let with = run(true, protocol::TCP, send);
    let without = run(false, protocol::TCP, send);
    note(&format!("super-packets: {with:?}, without: {without:?}"));
    for (a, b) in with.all().into_iter().zip(without.all()) {
        assert!(a.abs_diff(b) * 100 <= a.max(b), "{with:?} {without:?}");
    }
}

/// A guest's network card gives the length of the segments, but not their number.
#[test]
fn super_packets_without_a_segment_count() {
    const SENDS: u64 = 100;
    const SEGMENTS: u64 = 11;
    const SIZE: usize = 1000;
    kernel_test!();
    for super_packets in [true, false] {
        let lab = if super_packets {
            Lab::with_super_packets(2)
        } else {
            Lab::new(2)
        };
        let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
        let config = running::config(&lab, Marking::None);
        let config = running::with_endpoints(config, &lab, &[0], LINK);
        let running = Running::start(config, Options::default());
        let mut segment = vec![0; 20 + (SEGMENTS as usize - 1) * SIZE + 1];
        segment[..4].copy_from_slice(&[0x13, 0x88, 0x13, 0x89]);
        segment[12..14].copy_from_slice(&[0x50, 0x10]);
        let frame = Ip::between(from, to, false).with(protocol::TCP, &segment);
        // struct virtio_net_hdr: checksum needed; TCP over IPv4; lengths; offset of the checksum.
        let mut header = vec![1, 1];
        for word in [54u16, SIZE as u16, 34, 16] {
            header.extend(word.to_ne_bytes());
        }
        let wire = Wire::open(&from.ns, from.ifindex).with_offload();
        for _ in 0..SENDS {
            wire.send(&[&header[..], &frame].concat());
        }
        running.all_left(&to.port, SENDS * SEGMENTS);
        assert_eq!(running.waiting(), Vec::<String>::new());
        let (_, flow) = running.flow(|key| key.dst_port == 5001);
        assert_eq!(flow.sent_packets, SENDS * SEGMENTS);
    }
}
