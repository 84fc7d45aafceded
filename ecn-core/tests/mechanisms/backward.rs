//! Messages from ports to sources: the format, who is believed, and that no mark is lost or counted twice.

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
        signed: false,
    }
}

#[test]
fn the_format_is_as_documented() {
    let bytes = message().to_bytes();
    let expected = [
        3, 17, 0x11, 0x22, 0x33, 0x44, 0, 0, // version, protocol, ports; a checksum's place
        0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, // quote, sequence
        0, 0, 0, 1, 0, 0, 0, 3, // a checksum's place, kind, flags, feedback
        2, 0, 0, 0, 0, 1, 0, 7, // point
    ];
    assert_eq!(bytes, expected);
    assert_eq!(Message::parse(&bytes), Some(message()));
    for version in [0, 1, 2, 5, 255] {
        let other = [&[version], &bytes[1..]].concat();
        assert_eq!(Message::parse(&other.try_into().unwrap()), None);
    }
}

/// A device that finishes the checksum of the packet that a message is made of writes where nothing is read.
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

/// At most one for each interval in the long run, a burst after a pause, and the marks between are not lost.
#[test]
fn messages_are_limited_and_marks_are_not() {
    let policy = Policy::new(Feedback::Backward, 1_000);
    let mut point = Point::default();
    let (mut said, mut sent, mut last) = (0, 0, None);
    for n in 0..10_000u64 {
        // Ten marks in a millisecond, for a second.
        let Some((marks, sequence)) = point.mark(&policy, 1, MS * 1000 + n * MS / 10) else {
            continue;
        };
        assert!(last.is_none_or(|last| sequence > last));
        (said, sent, last) = (said + marks, sent + 1, Some(sequence));
    }
    assert_eq!(said + point.pending, 10_000);
    assert!((1_000..=1_000 + BURST + 1).contains(&sent), "{sent}");
    assert_eq!(point.held + sent, 10_000);
}

/// A bridge that restarts, and one that sends much at one time, go on with higher numbers.
#[test]
fn numbers_only_rise() {
    let policy = Policy::new(Feedback::Backward, 1_000_000);
    let mut point = Point::default();
    let at_once: Vec<u32> = (0..50)
        .map(|_| point.mark(&policy, 1, 5_000 * MS).unwrap().1)
        .collect();
    assert!(at_once.is_sorted_by(|a, b| a < b));
    let mut anew = Point::default();
    let (_, later) = anew.mark(&policy, 1, 5_001 * MS).unwrap();
    assert!(later > at_once[49]);
}

fn heard(sender: &mut Sender, point: u64, sequence: u32) -> Result<FeedbackDelta, Refusal> {
    sender.on_message(point, sequence, 1, 0, true)
}

#[test]
fn copies_are_refused_port_by_port() {
    let mut sender = Sender::new();
    let (a, b) = (0x0200_0000_0001_0001, 0x0200_0000_0002_0001);
    assert!(heard(&mut sender, a, 1_000).is_ok());
    assert!(heard(&mut sender, b, 10).is_ok());
    for sequence in [1_000, 999, 1_000u32.wrapping_sub(1 << 21)] {
        assert_eq!(heard(&mut sender, a, sequence), Err(Refusal::Duplicate));
    }
    assert_eq!(heard(&mut sender, b, 10), Err(Refusal::Duplicate));
    assert!(heard(&mut sender, a, 1_001).is_ok());
    assert!(heard(&mut sender, b, 11).is_ok());
    for marks in [0, MOST_MARKS + 1] {
        let refused = sender.on_message(a, 2_000, marks, 0, true);
        assert_eq!(refused, Err(Refusal::Impossible));
    }
}

/// The processors of a bridge send at the same time: a message may come after later ones, but only once.
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
        let heard = heard(&mut sender, 1, sequence);
        assert_eq!(heard.is_ok(), accepted, "{sequence}");
    }
}

/// Whatever the order, no message is accepted twice, and all are if at most 16 later ones overtake them.
#[test]
fn any_order_is_a_window() {
    let mut rng = 1u64;
    for _ in 0..1_000 {
        let mut sender = Sender::new();
        let first = u32::MAX - 50;
        assert!(heard(&mut sender, 1, first.wrapping_sub(1)).is_ok());
        let mut numbers: Vec<u32> = (0..100).collect();
        for n in 0..numbers.len() {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let ahead = (rng >> 33) as usize % 8;
            numbers.swap(n, (n + ahead).min(99));
        }
        let mut most = 0;
        for n in numbers {
            let accepted = heard(&mut sender, 1, first.wrapping_add(n)).is_ok();
            most = most.max(n);
            assert!(accepted || most - n > 16, "{n} of {most}");
            assert!(heard(&mut sender, 1, first.wrapping_add(n)).is_err());
        }
    }
}

/// Of who hears nothing else, all that left and no message was about came unmarked.
#[test]
fn a_flow_alone_counts_what_departs() {
    let mut sender = Sender::new();
    let delta = sender.self_clock(10);
    assert_eq!((delta.packets, delta.ce, delta.position), (10, 0, 10));
    let delta = sender.on_message(1, 1, 2, 15, true).unwrap();
    assert_eq!((delta.packets, delta.ce, delta.position), (5, 2, 15));
    // More are marked than have left, by this count: a message may stand for others' marks, too.
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

/// As echoes are: without a key all, with one only what it signed, and while keys change what the other one did.
#[test]
fn who_is_trusted() {
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

/// What a receiver echoes, too, counts once; of TCP only what was sent lately is believed.
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
    let clock = backward::Report {
        flags: backward::BY_CLOCK,
        ..backward::Report::default()
    };
    let delta = flow.on_report(&clock, 9, false).unwrap();
    assert_eq!((delta.packets, delta.ce), (3, 0));
}
