//! Counters at ports: exact for a known number of packets.

use std::net::SocketAddr;

use ecn_core::{marking::Port, packet};
use ecn_tests::running::Running;
use ecn_tests::{
    eventually, frames::Ip, kernel_test, lab::Lab, note, running, s, traffic::udp, wire::Wire,
};
use ecn_user::{agent::Options, config::Marking};
use nix::sys::socket::{setsockopt, sockopt};

const N: u64 = 2_000;

/// Sends `N` frames of each kind from host 0 to host 1.
fn send(lab: &Lab, frames: &[Vec<u8>]) {
    let wire = Wire::open(&lab.hosts[0].ns, lab.hosts[0].ifindex).send_slowly();
    for _ in 0..N {
        for frame in frames {
            wire.send(frame);
        }
    }
}

fn settled(running: &Running) {
    assert!(
        eventually(s(3), || running.waiting().is_empty()),
        "{:?}",
        running.waiting()
    );
}

#[test]
fn a_counted_number_of_packets() {
    kernel_test!();
    let lab = Lab::new(3);
    let running = Running::start(running::config(&lab, Marking::None), Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    // Else the host would reply to them.
    let _listening = [false, true].map(|ipv6| udp(to, ipv6, 2));
    let frames = [false, true].map(|ipv6| Ip::between(from, to, ipv6).udp(1, 2, &[7; 200]));
    send(&lab, &frames);
    settled(&running);
    let expected = Port {
        arrived: 2 * N,
        departed: 2 * N,
        largest: 1,
        ..Port::default()
    };
    let found = running.port(&to.port);
    // What the sweep remembers of the device's queue is no packet count.
    let found = Port {
        surplus: 0,
        surplus_samples: 0,
        ..found
    };
    assert_eq!(found, expected);
    for other in [0, 2] {
        let found = running.port(&lab.hosts[other].port);
        assert_eq!(
            (found.arrived, found.departed, found.input_triggers),
            (0, 0, 0),
            "{other}"
        );
    }
}

#[test]
fn frames_that_are_not_counted() {
    kernel_test!();
    let lab = Lab::new(2);
    let running = Running::start(running::config(&lab, Marking::None), Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    send(
        &lab,
        &super::untouched::control_frames(from, to).map(|(_, frame)| frame),
    );
    let port = running.port(&to.port);
    assert_eq!((port.arrived, port.departed, port.dropped), (0, 0, 0));
    // The counters work, though.
    send(&lab, &[Ip::between(from, to, false).udp(1, 2, &[7; 200])]);
    settled(&running);
    assert_eq!(running.port(&to.port).arrived, N);
}

/// A queue that overflows: the kernel's drops, the counted drops, and both against arrivals.
#[test]
fn drops_match_the_kernels() {
    kernel_test!();
    let lab = Lab::new(2);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    lab.no_flood(1);
    lab.limit(1, 1_250_000, 10);
    let running = Running::start(running::config(&lab, Marking::None), Options::default());
    let _listening = udp(to, false, 2);
    let before = lab.qdisc(1);
    let frame = Ip::between(from, to, false).udp(1, 2, &[7; 1000]);
    let wire = Wire::open(&from.ns, from.ifindex);
    for _ in 0..20_000 {
        wire.send(&frame);
    }
    settled(&running);
    let (port, kernel) = (running.port(&to.port), lab.qdisc(1));
    note(&format!(
        "drops: kernel {} counted {} arrived {} departed {} (kernel {}) repaired {}",
        kernel.drops, port.dropped, port.arrived, port.departed, kernel.packets, port.repaired
    ));
    assert_eq!(port.arrived, 20_000);
    assert!(
        kernel.drops > 5_000,
        "the queue hardly overflowed: {kernel:?}"
    );
    assert_eq!(u64::from(kernel.drops), port.dropped);
    let left = kernel.packets - before.packets;
    assert_eq!(port.arrived, left + port.dropped);
    // See [`Running::all_left`]: of the departures and drops, some are missed on a busy machine.
    assert!(port.repaired * 100 <= port.arrived, "{port:?}");
    assert!((port.departed..=port.departed + port.repaired).contains(&left));
}

#[test]
fn super_packets_count_their_segments() {
    kernel_test!();
    let lab = Lab::with_super_packets(2);
    let running = Running::start(running::config(&lab, Marking::None), Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    super::tcp::transfer(from, to, 4 << 20);
    settled(&running);
    let port = running.port(&to.port);
    assert!(port.largest > 1, "no super-packet came: {port:?}");
    running.all_left(&to.port, port.arrived);
    // 4 MB in segments of at most 1448 bytes.
    assert!(port.arrived >= (4 << 20) / 1448, "{port:?}");
}

/// Two VLAN tags: one in metadata, one in the frame.
#[test]
fn tagged_packets_leave_unchanged() {
    kernel_test!();
    let lab = Lab::new(2);
    let running = Running::start(running::config(&lab, Marking::None), Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let plain = Ip::between(from, to, false).udp(1, 2, &[7; 200]);
    let one = ecn_tests::frames::tagged(&plain, packet::ETHERTYPE_VLAN, 5);
    let two = ecn_tests::frames::tagged(&one, packet::ETHERTYPE_QINQ, 6);
    send(&lab, std::slice::from_ref(&one));
    settled(&running);
    running.all_left(&to.port, N);
    send(&lab, &[two]);
    settled(&running);
    running.all_left(&to.port, 2 * N);
}

/// A port without a queue never holds packets: super-packets there are neither counted nor marked. They are as soon as
/// the port gets a queue, and no longer once it is removed.
#[test]
fn ports_without_a_queue_are_not_counted() {
    const LINK: u64 = 12_500_000;
    const SEGMENTS: usize = 20;
    const SENDS: u64 = 50;
    kernel_test!();
    let lab = Lab::with_super_packets(2);
    lab.no_queue(0);
    lab.no_queue(1);
    let mut config = running::config(&lab, Marking::InputOutput);
    config.bridges[0].buffer = 2;
    config.bridges[0].threshold = 1;
    let config = running::with_endpoints(config, &lab, &[0, 1], LINK);
    let running = Running::start(config, Options::default());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, _receiving) = (udp(from, false, 5000), udp(to, false, 5001));
    setsockopt(&sending, sockopt::UdpGsoSegment, &1200).expect("segments");
    let target = SocketAddr::new(to.v4.into(), 5001);
    let send = |times: u64| {
        for _ in 0..times {
            let sent = sending.send_to(&[5; SEGMENTS * 1200], target);
            sent.expect("send");
        }
    };
    let came = || {
        let receivers = running.maps.receivers().expect("receivers");
        let data = receivers.iter().find(|(key, _)| key.dst_port == 5001);
        data.map_or((0, 0), |(_, receiver)| (receiver.packets, receiver.ce))
    };
    let counted = |number: usize| running.port(&lab.hosts[number].port);
    send(SENDS);
    let all = SENDS * SEGMENTS as u64;
    assert!(eventually(s(3), || came().0 == all), "{:?}", came());
    assert_eq!(came().1, 0, "marked");
    for number in [0, 1] {
        let port = counted(number);
        let seen = (port.arrived, port.departed, port.marked, port.unmarkable);
        assert_eq!(seen, (0, 0, 0, 0), "{number}: {port:?}");
        assert_eq!((port.input_triggers, port.output_triggers), (0, 0));
    }
    // The agent notices it within a tick.
    lab.queue(1);
    let counted_all = || {
        send(1);
        counted(1).arrived > 0
    };
    assert!(eventually(s(3), counted_all), "{:?}", counted(1));
    lab.limit(1, LINK / 4, 1000);
    let marked = || {
        send(10);
        counted(1).marked > 0
    };
    assert!(eventually(s(3), marked), "{:?}", counted(1));
    assert_eq!(counted(0).arrived, 0, "{:?}", counted(0));

    lab.no_queue(1);
    let silent = || {
        let before = counted(1).arrived;
        send(1);
        counted(1).arrived == before
    };
    assert!(eventually(s(3), silent), "{:?}", counted(1));
    // Packets dropped with their queue no longer wait either.
    assert!(
        eventually(s(5), || running.waiting().is_empty()),
        "{:?}",
        running.waiting()
    );
    let before = (counted(1).arrived, came());
    let after = (before.1.0 + all, before.1.1);
    send(SENDS);
    assert!(eventually(s(3), || came() == after), "{:?}", came());
    assert_eq!(counted(1).arrived, before.0);
}
