//! Messages from ports to sources: the format, which are accepted, and that no mark is lost or counted twice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ecn_core::backward::{
    self, BURST, Feedback, IN_PACKETS, LEN, MOST_MARKS, Message, Point, Policy, Quoted, Sender,
};
use ecn_core::echo::{self, FeedbackDelta, Refusal};
use ecn_core::flow::{Flow, Key};
use ecn_core::packet::protocol;

const MS: u64 = 1_000_000;

fn message() -> Message {
    Message {
        protocol: protocol::UDP,
        src_port: 0x1122,
        dst_port: 0x3344,
        quote: 0x5566_7788,
        sequence: 0x99aa_bbcc,
        kind: 0,
        flags: IN_PACKETS,
        feedback: 3,
        point: 0x0200_0000_0001_0007,
        acknowledgment: 0xddee_ff01,
        signed: false,
    }
}

#[test]
fn the_format_is_as_documented() {
    let bytes = message().to_bytes();
    let expected = [
        5, 17, 0x11, 0x22, 0x33, 0x44, 0, 0, // version, protocol, ports; offset of a checksum
        0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, // quote, sequence
        0, 0, 0, 1, 0, 0, 0, 3, // offset of a checksum, kind, flags, feedback
        2, 0, 0, 0, 0, 1, 0, 7, // point
        0xdd, 0xee, 0xff, 0x01, // acknowledgment
    ];
    assert_eq!(bytes, expected);
    assert_eq!(Message::parse(&bytes), Some(message()));
    for version in [0, 1, 2, 3, 4, 255] {
        let other = [&[version], &bytes[1..]].concat();
        assert_eq!(Message::parse(&other.try_into().unwrap()), None);
    }
}

/// A device that completes the checksum of the packet from which a message is made writes to bytes that are not read.
#[test]
fn checksums_of_the_packet_change_nothing() {
    let mut bytes = message().to_bytes();
    for at in [6, 7, 16, 17] {
        bytes[at] = 0xff;
    }
    assert_eq!(Message::parse(&bytes), Some(message()));
}

#[test]
fn every_field_is_signed() {
    let (key, from, to) = ([7, 8], [1; 16], [2; 16]);
    let tag = message().tag(key, &from, &to);
    for bit in 0..LEN * 8 {
        let mut bytes = message().to_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let ignored = matches!(bit / 8, 6 | 7 | 16 | 17);
        if let Some(other) = Message::parse(&bytes) {
            assert_eq!(other.tag(key, &from, &to) == tag, ignored, "bit {bit}");
        }
    }
    assert_ne!(message().tag([7, 9], &from, &to), tag);
    assert_ne!(message().tag(key, &to, &from), tag);
}

/// At most one message per interval in the long run, a burst after a pause, and marks between them are not lost.
#[test]
fn messages_are_rate_limited_and_lose_no_mark() {
    let policy = Policy::new(Feedback::Backward, 1_000);
    let mut point = Point::default();
    let (mut reported, mut sent, mut last) = (0, 0, None);
    for n in 0..10_000u64 {
        // Ten marks per millisecond, for a second.
        let Some((marks, sequence)) = point.mark(&policy, 1, MS * 1000 + n * MS / 10) else {
            continue;
        };
        assert!(last.is_none_or(|last| sequence > last));
        (reported, sent, last) = (reported + marks, sent + 1, Some(sequence));
    }
    assert_eq!(reported + point.pending, 10_000);
    assert!((1_000..=1_000 + BURST + 1).contains(&sent), "{sent}");
    assert_eq!(point.held + sent, 10_000);
}

/// A bridge that restarts continues with higher numbers, also after it has sent many at one time.
#[test]
fn numbers_increase_after_a_restart() {
    let policy = Policy::new(Feedback::Backward, 1_000_000);
    let mut point = Point::default();
    let at_once: Vec<u32> = (0..50)
        .map(|_| point.mark(&policy, 1, 5_000 * MS).unwrap().1)
        .collect();
    assert!(at_once.is_sorted_by(|a, b| a < b));
    let mut restarted = Point::default();
    let (_, later) = restarted.mark(&policy, 1, 5_001 * MS).unwrap();
    assert!(later > at_once[49]);
}

fn receive(sender: &mut Sender, point: u64, sequence: u32) -> Result<FeedbackDelta, Refusal> {
    sender.on_message(point, sequence, 1, 0, true)
}

#[test]
fn copies_are_refused_port_by_port() {
    let mut sender = Sender::new();
    let (a, b) = (0x0200_0000_0001_0001, 0x0200_0000_0002_0001);
    assert!(receive(&mut sender, a, 1_000).is_ok());
    assert!(receive(&mut sender, b, 10).is_ok());
    for sequence in [1_000, 999, 1_000u32.wrapping_sub(1 << 21)] {
        assert_eq!(receive(&mut sender, a, sequence), Err(Refusal::Duplicate));
    }
    assert_eq!(receive(&mut sender, b, 10), Err(Refusal::Duplicate));
    assert!(receive(&mut sender, a, 1_001).is_ok());
    assert!(receive(&mut sender, b, 11).is_ok());
    for marks in [0, MOST_MARKS + 1] {
        let refused = sender.on_message(a, 2_000, marks, 0, true);
        assert_eq!(refused, Err(Refusal::Impossible));
    }
}

/// The CPUs of a bridge send at the same time: a message may arrive after later ones, but is accepted only once.
#[test]
fn an_overtaken_message_is_accepted_once() {
    let mut sender = Sender::new();
    for (sequence, accepted) in [
        (10, true),
        (9, false),
        (14, true),
        (11, true),
        (11, false),
        (10, false),
        (14, false),
        (13, true),
        (30, true),
        (14, false),
        (13, false),
        (15, true),
        (15, false),
        (100, true),
        (84, true),
        (83, false),
        (30, false),
    ] {
        let received = receive(&mut sender, 1, sequence);
        assert_eq!(received.is_ok(), accepted, "{sequence}");
    }
}

/// In any order, no message is accepted twice, and all are accepted if at most 16 later ones overtake them.
#[test]
fn messages_are_accepted_once_in_any_order() {
    let mut rng = 1u64;
    for _ in 0..1_000 {
        let mut sender = Sender::new();
        let first = u32::MAX - 50;
        assert!(receive(&mut sender, 1, first.wrapping_sub(1)).is_ok());
        let mut numbers: Vec<u32> = (0..100).collect();
        for n in 0..numbers.len() {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let ahead = (rng >> 33) as usize % 8;
            numbers.swap(n, (n + ahead).min(99));
        }
        let mut most = 0;
        for n in numbers {
            let accepted = receive(&mut sender, 1, first.wrapping_add(n)).is_ok();
            most = most.max(n);
            assert!(accepted || most - n > 16, "{n} of {most}");
            assert!(receive(&mut sender, 1, first.wrapping_add(n)).is_err());
        }
    }
}

/// A flow without other feedback counts everything that departed without a message as unmarked.
#[test]
fn a_flow_alone_counts_what_departs() {
    let mut sender = Sender::new();
    let delta = sender.self_clock(10);
    assert_eq!((delta.packets, delta.ce, delta.position), (10, 0, 10));
    let delta = sender.on_message(1, 1, 2, 15, true).unwrap();
    assert_eq!((delta.packets, delta.ce, delta.position), (5, 2, 15));
    // More marks than departures, by this count: a message may also report marks of others.
    let delta = sender.on_message(1, 2, 9, 16, true).unwrap();
    assert_eq!((delta.packets, delta.ce), (9, 9));
    // Another class, another count.
    assert_eq!(sender.self_clock(3).packets, 0);
    assert_eq!(sender.self_clock(4).packets, 1);
}

#[test]
fn a_quoted_packet_is_known_for_a_while() {
    let key = Key {
        src_port: 5,
        protocol: protocol::UDP,
        ..Key::default()
    };
    let quoted = Quoted::new(7, key.hash());
    let now = 12_345_678_901;
    let entry = quoted.entry(now);
    assert!(quoted.is_sent(entry, now) && quoted.is_sent(entry, now + 1_900 * MS));
    assert!(!quoted.is_sent(entry, now + 2_100 * MS) && !quoted.is_sent(0, now));
    assert!(quoted.place < backward::QUOTES);
    let others = (0..10_000).map(|n| Quoted::new(n, key.hash()));
    let believed = others.filter(|other| other.place == quoted.place && other.is_sent(entry, now));
    assert!(believed.eq([quoted]));
    let of_another = Key { src_port: 6, ..key };
    assert!(!Quoted::new(7, of_another.hash()).is_sent(entry, now));
}

/// As for echoes: without a key all are accepted, with a key only signed ones, and while keys change also those of the
/// other.
#[test]
fn messages_need_a_valid_signature() {
    let (keys, from, to) = ([[1, 2], [3, 4]], [1; 16], [2; 16]);
    let unsigned = message();
    let signed = Message {
        signed: true,
        ..unsigned
    };
    let policy = |auth| echo::Policy {
        auth,
        keys,
        ..echo::Policy::default()
    };
    let by = |auth: u32, key: [u64; 2]| {
        let tag = signed.tag(key, &from, &to);
        signed.is_trusted(&policy(auth), tag, &from, &to)
    };
    let plain = |auth: u32| unsigned.is_trusted(&policy(auth), 0, &from, &to);
    let with_second = echo::SIGN | echo::ACCEPT_SECOND;
    let with_unsigned = echo::SIGN | echo::ACCEPT_UNSIGNED;
    assert!(plain(0) && !plain(echo::SIGN) && plain(with_unsigned));
    assert!(by(echo::SIGN, keys[0]) && !by(echo::SIGN, keys[1]));
    assert!(by(with_second, keys[0]) && by(with_second, keys[1]));
    assert!(!by(with_second, [5, 6]) && !by(with_unsigned, [5, 6]));
}

#[test]
fn what_can_be_marked() {
    for (feedback, expected) in [
        (Feedback::Echo, [false, false, true, true]),
        (Feedback::Backward, [false, true, false, true]),
        (Feedback::Both, [false, true, true, true]),
    ] {
        let policy = Policy::new(feedback, 1);
        let all = [(false, false), (false, true), (true, false), (true, true)];
        let seen = all.map(|(capable, answerable)| policy.is_markable(capable, answerable));
        assert_eq!(seen, expected, "{feedback:?}");
    }
}

/// Marks that a receiver also echoes count once; for TCP only quotes of recently sent packets are accepted.
#[test]
fn a_flow_checks_its_reports() {
    let report = backward::Report {
        point: 1,
        sequence: 1,
        marks: 2,
        quote: 0,
        flags: backward::BY_MESSAGE | u32::from(IN_PACKETS),
        ..backward::Report::default()
    };
    let mut flow = Flow::default();
    assert!(flow.on_report(&report, 5, true).is_ok());
    flow.echo.synced = 1;
    let next = backward::Report {
        sequence: 2,
        ..report
    };
    assert_eq!(flow.on_report(&next, 6, true), Err(Refusal::Duplicate));
    assert!(flow.on_report(&next, 6, false).is_ok());
    let by_number = backward::Report {
        flags: backward::BY_MESSAGE | u32::from(backward::BY_NUMBER),
        ..report
    };
    let mut tcp = Flow::default();
    tcp.ace.end = 1 << 24;
    let old = tcp.on_report(&by_number, 5, true);
    assert_eq!(old, Err(Refusal::Impossible));
    tcp.ace.end = 1 << 10;
    assert!(tcp.on_report(&by_number, 5, true).is_ok());
    // Acknowledgment numbers: sent lately, by another processor a moment ago, or never.
    tcp.ace.expected = 1 << 20;
    for (sequence, acknowledgment) in [(2, 1), (3, (1 << 20) + (1 << 18))] {
        let report = backward::Report {
            sequence,
            acknowledgment,
            ..by_number
        };
        assert!(tcp.on_report(&report, 6, true).is_ok(), "{report:?}");
    }
    for acknowledgment in [
        1 << 31,
        (1 << 20) + (1 << 18) + 1,
        (1u32 << 20).wrapping_sub(1 << 22),
    ] {
        let report = backward::Report {
            sequence: 4,
            acknowledgment,
            ..by_number
        };
        let refused = tcp.on_report(&report, 7, true);
        assert_eq!(refused, Err(Refusal::Impossible), "{report:?}");
    }
    let clock = backward::Report {
        flags: backward::BY_CLOCK,
        ..backward::Report::default()
    };
    let delta = flow.on_report(&clock, 9, false).unwrap();
    assert_eq!((delta.packets, delta.ce), (3, 0));
}
