//! Echoes: their bytes, when a receiver sends one, and how a source reacts.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use ecn_core::echo::{
    ACCEPT_SECOND, ACCEPT_UNSIGNED, Echo, FeedbackDelta, Headroom, LEN, LOSS_WINDOW, PROTOCOL,
    Policy, REFUSALS, REQUEST_DELAY_NS, REQUEST_INTERVAL_NS, REQUEST_NS, Receiver, Refusal, SIGN,
    Sender, VERSION, VERSION_SIGNED,
};
use ecn_core::packet;
use proptest::prelude::*;

fn every(ns: u64) -> Policy {
    Policy {
        every_ns: ns,
        ..Policy::default()
    }
}

// Bytes.

#[test]
fn layout() {
    let echo = Echo {
        protocol: 17,
        src_port: 0x1122,
        dst_port: 0x3344,
        packets: 0x5566_7788,
        ce: 0x99aa_bbcc,
        sequence: 0xddee,
        headroom: Headroom::Unknown,
        signed: false,
    };
    let bytes = [
        1, 17, 0x11, 0x22, 0x33, 0x44, 0, 0, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0, 0,
        0xdd, 0xee,
    ];
    assert_eq!(echo.to_bytes(), bytes);
    assert_eq!(Echo::parse(&bytes), Some(echo));
    assert_eq!((VERSION, LEN, PROTOCOL), (1, 20, 253));
}

proptest! {
    #[test]
    fn bytes_round_trip(
        protocol in any::<u8>(), src_port in any::<u16>(), dst_port in any::<u16>(),
        packets in any::<u32>(), ce in any::<u32>(), sequence in any::<u16>(),
        checksums in any::<[u8; 4]>(), version in any::<u8>(),
    ) {
        let echo = Echo { protocol, src_port, dst_port, packets, ce, sequence, headroom: Headroom::Unknown, signed: version == 2 };
        let mut bytes = echo.to_bytes();
        prop_assert_eq!(Echo::parse(&bytes), Some(echo));
        // A device may write a checksum where UDP and TCP have theirs.
        (bytes[6], bytes[7], bytes[16], bytes[17]) =
            (checksums[0], checksums[1], checksums[2], checksums[3]);
        prop_assert_eq!(Echo::parse(&bytes), Some(echo));
        bytes[0] = version;
        prop_assert_eq!(Echo::parse(&bytes).is_some(), matches!(version, 1 | 2));
    }

    /// Every field and both addresses are signed; without the key no tag is correct.
    #[test]
    fn what_is_changed_on_the_way_is_refused(
        keys in any::<[[u64; 2]; 2]>(), bytes in any::<[u8; LEN]>(), from in any::<[u8; 16]>(), to in any::<[u8; 16]>(),
        at in 0..LEN + 32, bit in 0..8u8, auth in 0..8u32,
    ) {
        let mut policy = Policy { auth: SIGN, keys, ..Policy::default() };
        let mut signed = bytes;
        signed[0] = VERSION_SIGNED;
        let e = Echo::parse(&signed).unwrap();
        let tag = e.tag(keys[0], &from, &to);
        prop_assert!(policy.accepts(&e, tag, &from, &to));
        prop_assert!(!policy.accepts(&e, tag ^ 1, &from, &to));

        let (mut changed, mut other_from, mut other_to) = (signed, from, to);
        match at {
            0..LEN => changed[at] ^= 1u8 << bit,
            20..36 => other_from[at - LEN] ^= 1u8 << bit,
            _ => other_to[at - LEN - 16] ^= 1u8 << bit,
        }
        // Other versions are not echoes; a device writes into the two zeros.
        if let Some(other) = Echo::parse(&changed).filter(|other| other.signed) {
            let zero = matches!(at, 6 | 7 | 16 | 17);
            prop_assert_eq!(policy.accepts(&other, tag, &other_from, &other_to), zero);
        }

        policy.auth = auth;
        let none = auth & SIGN == 0;
        prop_assert!(policy.accepts(&e, tag, &from, &to));
        let of_second = e.tag(keys[1], &from, &to);
        let second = none || auth & ACCEPT_SECOND != 0 || keys[0] == keys[1];
        prop_assert_eq!(policy.accepts(&e, of_second, &from, &to), second);
        let unsigned = Echo { signed: false, ..e };
        let accepted = none || auth & ACCEPT_UNSIGNED != 0;
        prop_assert_eq!(policy.accepts(&unsigned, 0, &from, &to), accepted);
    }
}

// Receiver.

#[test]
fn an_echo_per_packet() {
    let mut r = Receiver::new();
    for now in [0, 1, 1, 5, 5] {
        assert!(r.count(&every(0), 1, 100, false, now));
    }
    assert_eq!((r.packets, r.ce, r.bytes, r.last_packet_ns), (5, 0, 500, 5));
}

#[test]
fn an_echo_per_time() {
    let mut r = Receiver::new();
    let p = every(100);
    let due: Vec<u64> = (1000..1500)
        .step_by(7)
        .filter(|now| r.count(&p, 1, 1, false, *now))
        .collect();
    // 100 later, at the first packet from then on.
    assert_eq!(due, [1000, 1105, 1210, 1315, 1420]);
    assert_eq!(r.packets, 72);
    // Exactly the time is enough, one less is not.
    assert!(!r.count(&p, 1, 1, false, 1519));
    assert!(r.count(&p, 1, 1, false, 1520));
}

#[test]
fn a_mark_is_echoed_at_once() {
    let mut r = Receiver::new();
    let p = every(1_000_000);
    assert!(r.count(&p, 1, 1, false, 2_000_000));
    assert!(!r.count(&p, 1, 1, false, 2_000_001));
    assert!(r.count(&p, 1, 1, true, 2_000_002));
    assert!(r.count(&p, 1, 1, true, 2_000_003));
    // An echo was sent: the time starts there.
    assert!(!r.count(&p, 1, 1, false, 3_000_002));
    assert!(r.count(&p, 1, 1, false, 3_000_003));
    assert_eq!((r.packets, r.ce), (6, 2));
}

#[test]
fn super_packets_count_their_segments() {
    let mut r = Receiver::new();
    r.count(&every(0), 44, 65_000, true, 1);
    r.count(&every(0), 3, 4_000, false, 2);
    assert_eq!((r.packets, r.ce, r.bytes), (47, 44, 69_000));
}

#[test]
fn echoes_are_numbered_and_carry_the_counts() {
    let mut r = Receiver::new();
    r.count(&every(0), 5, 1, true, 1);
    r.count(&every(0), 2, 1, false, 1);
    let want = Echo {
        protocol: 6,
        src_port: 7,
        dst_port: 8,
        packets: 7,
        ce: 5,
        sequence: 1,
        headroom: Headroom::Unknown,
        signed: false,
    };
    assert_eq!(r.echo(6, 7, 8), want);
    assert_eq!(
        r.echo(6, 7, 8),
        Echo {
            sequence: 2,
            ..want
        }
    );
    // Modulo 2^32, modulo 2^16.
    r.packets = (1 << 32) + 9;
    r.ce = (3 << 32) + 4;
    r.echoes = 0xffff;
    assert_eq!(
        r.echo(6, 7, 8),
        Echo {
            packets: 9,
            ce: 4,
            sequence: 0,
            ..want
        }
    );
}

// Sender.

const QUIET: u32 = 8;

fn echo(sequence: u16, packets: u32, ce: u32) -> Echo {
    Echo {
        protocol: 17,
        src_port: 1,
        dst_port: 2,
        packets,
        ce,
        sequence,
        headroom: Headroom::Unknown,
        signed: false,
    }
}

fn counts(delta: FeedbackDelta) -> (u32, u32, u32) {
    (delta.packets, delta.ce, delta.lost_echoes)
}

/// All packets sent so far have departed.
fn on_echo(s: &mut Sender, e: Echo, sent: u32) -> Result<(u32, u32, u32), Refusal> {
    s.on_echo(&e, sent, sent, QUIET).map(counts)
}

#[test]
fn new_counts_in_order() {
    let mut s = Sender::new();
    assert_eq!(on_echo(&mut s, echo(1, 1, 0), 4), Ok((1, 0, 0)));
    assert_eq!(on_echo(&mut s, echo(2, 3, 1), 4), Ok((2, 1, 0)));
    // No new counts, but an echo.
    assert_eq!(on_echo(&mut s, echo(3, 3, 1), 4), Ok((0, 0, 0)));
    assert_eq!(on_echo(&mut s, echo(4, 4, 2), 4), Ok((1, 1, 0)));
}

#[test]
fn lost_echoes_lose_nothing() {
    let mut s = Sender::new();
    // The first two were lost.
    assert_eq!(on_echo(&mut s, echo(3, 5, 2), 100), Ok((5, 2, 2)));
    assert_eq!(on_echo(&mut s, echo(4, 6, 2), 100), Ok((1, 0, 0)));
    assert_eq!(on_echo(&mut s, echo(10, 50, 9), 100), Ok((44, 7, 5)));
    // 2^15 - 1 ahead is later, 2^15 is not.
    assert_eq!(
        on_echo(&mut s, echo(10 + 0x7fff, 60, 9), 100),
        Ok((10, 0, 0x7ffe))
    );
    let before = s;
    assert_eq!(
        on_echo(&mut s, echo(9, 70, 9), 100),
        Err(Refusal::Duplicate)
    );
    assert_eq!(
        s,
        Sender {
            refused: 1,
            ..before
        }
    );
}

#[test]
fn duplicates_and_reordering() {
    let mut s = Sender::new();
    on_echo(&mut s, echo(1, 1, 0), 10).unwrap();
    assert_eq!(on_echo(&mut s, echo(4, 4, 1), 10), Ok((3, 1, 2)));
    for late in [echo(4, 4, 1), echo(3, 3, 1), echo(2, 2, 0), echo(1, 1, 0)] {
        let before = s;
        assert_eq!(on_echo(&mut s, late, 10), Err(Refusal::Duplicate));
        assert_eq!(
            s,
            Sender {
                refused: before.refused + 1,
                ..before
            }
        );
    }
    // An accepted one in between: the refusals are not consecutive.
    assert_eq!(on_echo(&mut s, echo(5, 5, 1), 10), Ok((1, 0, 0)));
    assert_eq!(s.refused, 0);
}

#[test]
fn sequence_wraps() {
    let mut s = Sender::new();
    on_echo(&mut s, echo(0xfffe, 1, 0), 100).unwrap();
    assert_eq!(on_echo(&mut s, echo(0xffff, 2, 0), 100), Ok((1, 0, 0)));
    assert_eq!(on_echo(&mut s, echo(0, 3, 0), 100), Ok((1, 0, 0)));
    assert_eq!(on_echo(&mut s, echo(2, 5, 1), 100), Ok((2, 1, 1)));
    assert_eq!(
        on_echo(&mut s, echo(0xffff, 2, 0), 100),
        Err(Refusal::Duplicate)
    );
}

#[test]
fn counts_wrap() {
    let mut s = Sender::new();
    let base = u32::MAX - 2;
    on_echo(&mut s, echo(1, base, base), base).unwrap();
    let delta = s.on_echo(&echo(2, 3, 2), 5, 5, QUIET).unwrap();
    assert_eq!(counts(delta), (6, 5, 0));
    assert_eq!((delta.position, delta.outstanding), (3, 2));
    let before = s;
    assert_eq!(on_echo(&mut s, echo(3, 6, 2), 5), Err(Refusal::Impossible));
    assert_eq!(
        s,
        Sender {
            refused: 1,
            ..before
        }
    );
}

#[test]
fn impossible_counts_change_nothing() {
    let mut s = Sender::new();
    on_echo(&mut s, echo(1, 10, 5), 20).unwrap();
    for (packets, ce, why) in [
        (21, 5, "more than were sent"),
        (9, 5, "fewer than before"),
        (12, 8, "more marks than packets"),
        (12, 4, "fewer marks than before"),
        (u32::MAX, 5, "far fewer than before"),
    ] {
        let before = s;
        assert_eq!(
            on_echo(&mut s, echo(2, packets, ce), 20),
            Err(Refusal::Impossible),
            "{why}"
        );
        assert_eq!(
            s,
            Sender {
                refused: before.refused + 1,
                ..before
            },
            "{why}"
        );
    }
    assert_eq!(
        on_echo(&mut s, echo(2, 20, 15), 20),
        Ok((10, 10, 0)),
        "the most there can be"
    );
    // The first echo too.
    let mut s = Sender::new();
    assert_eq!(on_echo(&mut s, echo(1, 3, 4), 20), Err(Refusal::Impossible));
    assert_eq!(s, Sender::new());
    assert_eq!(on_echo(&mut s, echo(2, 4, 4), 20), Ok((4, 4, 1)));
}

#[test]
fn a_receiver_that_counted_before() {
    // The source has restarted: its count is below the receiver's.
    let mut s = Sender::new();
    let delta = s.on_echo(&echo(700, 50_000, 300), 3, 3, QUIET).unwrap();
    assert_eq!(counts(delta), (0, 0, 0));
    assert_eq!((delta.position, delta.outstanding), (3, 0));
    assert_eq!(on_echo(&mut s, echo(701, 50_002, 301), 5), Ok((2, 1, 0)));
    // No more than was sent since.
    assert_eq!(
        on_echo(&mut s, echo(702, 50_003, 301), 5),
        Err(Refusal::Impossible)
    );
    assert_eq!(on_echo(&mut s, echo(702, 50_004, 301), 7), Ok((2, 0, 0)));
}

#[test]
fn a_receiver_that_restarts() {
    let mut s = Sender::new();
    on_echo(&mut s, echo(1, 1, 0), 1).unwrap();
    on_echo(&mut s, echo(1000, 5000, 100), 5000).unwrap();
    // Its numbers are earlier, or its counts lower.
    let mut restarted = Receiver::new();
    let mut sent = 5000;
    for _ in 0..REFUSALS {
        sent += 1;
        restarted.count(&every(0), 1, 1, false, 0);
        let e = restarted.echo(17, 1, 2);
        assert!(on_echo(&mut s, e, sent).is_err());
        assert_eq!((s.packets, s.ce, s.sequence), (5000, 100, 1000));
    }
    sent += 1;
    restarted.count(&every(0), 1, 1, true, 0);
    let e = restarted.echo(17, 1, 2);
    let delta = s.on_echo(&e, sent, sent, QUIET).unwrap();
    assert_eq!(counts(delta), (0, 0, 0));
    assert_eq!(delta.position, sent);
    restarted.count(&every(0), 1, 1, true, 0);
    assert_eq!(
        on_echo(&mut s, restarted.echo(17, 1, 2), sent + 1),
        Ok((1, 1, 0))
    );
    // One refusal fewer is not enough.
    for _ in 1..REFUSALS {
        assert!(on_echo(&mut s, echo(1, 1, 0), sent + 1).is_err());
    }
    restarted.count(&every(0), 1, 1, false, 0);
    assert_eq!(
        on_echo(&mut s, restarted.echo(17, 1, 2), sent + 2),
        Ok((1, 0, 0))
    );
    assert_eq!(s.refused, 0);
}

// Position.

#[test]
fn position_without_loss_is_exact() {
    let mut s = Sender::new();
    for k in 1..200u32 {
        // Some wait in the device, some are on the wire.
        let (on_wire, waiting) = (k % (QUIET + 1), k % 5);
        let departed = k + on_wire;
        let delta = s
            .on_echo(&echo(k as u16, k, 0), departed + waiting, departed, QUIET)
            .unwrap();
        assert_eq!((delta.position, delta.outstanding), (k, on_wire));
    }
}

/// Lost packets are never echoed. Within two windows the position is exact, except for packets that may be under way.
#[test]
fn position_converges_after_loss() {
    for lost in [0, 1, 9, 50, 1000, 1_000_000] {
        for on_wire in 0..=QUIET {
            let mut s = Sender::new();
            let mut number = 0;
            let mut received = 0;
            for _ in 0..20 {
                (number, received) = (number + 1, received + 1);
                let departed = received + on_wire;
                s.on_echo(&echo(number, received, 0), departed, departed, QUIET)
                    .unwrap();
            }
            let mut delta = FeedbackDelta::default();
            for _ in 0..2 * LOSS_WINDOW {
                (number, received) = (number + 1, received + 1);
                let departed = received + lost + on_wire;
                delta = s
                    .on_echo(&echo(number, received, 0), departed, departed, QUIET)
                    .unwrap();
            }
            let error = delta.position.wrapping_sub(received + lost) as i32;
            assert!(
                error.unsigned_abs() <= QUIET,
                "{lost} lost, {on_wire} on the wire: {error}"
            );
            assert!(delta.outstanding <= 2 * QUIET);
        }
    }
}

#[test]
fn missed_departures() {
    for missed in [1, 5, 100] {
        let mut s = Sender::new();
        let mut last = 0;
        for k in 1..100u32 {
            let missed = if k < 30 { 0 } else { missed };
            let sent = k + 2;
            let departed = sent.saturating_sub(missed);
            let delta = s
                .on_echo(&echo(k as u16, k, 0), sent, departed, QUIET)
                .unwrap();
            assert!(delta.outstanding <= QUIET, "{delta:?}");
            assert!(delta.position >= last, "never back");
            assert!(delta.position <= k);
            last = delta.position;
        }
        assert!(last >= 99u32.saturating_sub(missed), "it goes on: {last}");
    }
}

// A network that loses, duplicates and reorders.

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Packets sent, how many of them depart, and how many of those arrive (in 8ths).
    Send {
        n: u32,
        arrive: u32,
        ce: bool,
    },
    /// All packets waiting in the device depart.
    Flush,
    /// The echo at this index of those under way arrives; a copy stays.
    Deliver {
        which: usize,
        copy: bool,
    },
    /// It is lost.
    Lose {
        which: usize,
    },
    Time {
        ns: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..5u32, 0..=8u32, any::<bool>())
            .prop_map(|(n, arrive, ce)| Step::Send { n, arrive, ce }),
        2 => Just(Step::Flush),
        // Mostly from the front.
        5 => (prop_oneof![3 => Just(0usize), 1 => 0..16usize], prop::bool::weighted(0.2))
            .prop_map(|(which, copy)| Step::Deliver { which, copy }),
        1 => (0..16usize).prop_map(|which| Step::Lose { which }),
        2 => (0..300u64).prop_map(|ns| Step::Time { ns }),
    ]
}

/// A receiver and a sender, and the feedback that the sender received.
struct Network {
    receiver: Receiver,
    sender: Sender,
    sent: u32,
    departed: u32,
    now: u64,
    /// Initial counts of both sides (they wrap).
    start: u32,
    /// Reported since.
    packets: u32,
    ce: u32,
    lost: u32,
    /// Sequence number of the latest echo, and refusals since.
    latest: u32,
    refusals: i32,
    position: u32,
}

impl Network {
    fn new(start: u32) -> Self {
        let mut receiver = Receiver {
            packets: start.into(),
            ce: start.into(),
            ..Receiver::new()
        };
        receiver.echoes = start;
        let mut sender = Sender::new();
        // Both sides agree on the initial counts.
        let first = receiver.echo(17, 1, 2);
        sender.on_echo(&first, start, start, QUIET).unwrap();
        Self {
            sent: start,
            departed: start,
            now: 1_000,
            start,
            packets: 0,
            ce: 0,
            lost: 0,
            latest: receiver.echoes,
            refusals: 0,
            position: sender.position,
            receiver,
            sender,
        }
    }

    /// Delivers an echo. Returns whether the test goes on: a receiver that restarts looks like too many old echoes, and
    /// has a test of its own.
    fn deliver(&mut self, e: &Echo) -> bool {
        // What every echo reports was received, so it is never impossible; exactly those not later than the latest are
        // refused.
        let ahead = e.sequence.wrapping_sub(self.latest as u16) as i16;
        let number = self.latest.wrapping_add_signed(ahead.into());
        let later = number.wrapping_sub(self.latest) as i32 > 0;
        if !later && self.refusals + 1 >= i32::from(REFUSALS) {
            return false;
        }
        let got = self.sender.on_echo(e, self.sent, self.departed, QUIET);
        if later {
            let delta = got.unwrap();
            assert_eq!(delta.lost_echoes, number.wrapping_sub(self.latest) - 1);
            assert!(delta.ce <= delta.packets);
            self.add(&delta);
            self.lost += delta.lost_echoes;
            (self.latest, self.refusals) = (number, 0);
            assert_eq!(self.start.wrapping_add(self.packets), e.packets);
            assert_eq!(self.start.wrapping_add(self.ce), e.ce);
            let moved = delta.position.wrapping_sub(self.position) as i32;
            assert!(moved >= 0, "never back");
            let behind = self.sent.wrapping_sub(delta.position) as i32;
            assert!(behind >= 0, "never ahead of what was sent");
            assert!(delta.outstanding <= self.departed.wrapping_sub(self.start));
            self.position = delta.position;
        } else {
            assert_eq!(got, Err(Refusal::Duplicate));
            self.refusals += 1;
            assert_eq!(self.sender.position, self.position);
        }
        let received = (self.receiver.packets as u32).wrapping_sub(self.start);
        assert!(self.packets <= received, "no packet is reported twice");
        assert!(self.ce <= (self.receiver.ce as u32).wrapping_sub(self.start));
        true
    }

    fn add(&mut self, delta: &FeedbackDelta) {
        self.packets = self.packets.wrapping_add(delta.packets);
        self.ce = self.ce.wrapping_add(delta.ce);
    }
}

/// `start`: initial counts of both sides.
fn network(steps: &[Step], every_ns: u64, start: u32, faithful: bool) {
    let mut n = Network::new(start);
    let mut under_way: Vec<Echo> = Vec::new();
    for step in steps {
        match *step {
            Step::Send {
                n: packets,
                arrive,
                ce,
            } => {
                n.sent = n.sent.wrapping_add(packets);
                let arrive = if faithful {
                    packets
                } else {
                    packets * arrive / 8
                };
                if faithful || arrive > 0 {
                    n.departed = n.sent;
                }
                for _ in 0..arrive {
                    if n.receiver.count(&every(every_ns), 1, 100, ce, n.now) {
                        under_way.push(n.receiver.echo(17, 1, 2));
                    }
                }
            }
            Step::Flush => n.departed = n.sent,
            Step::Time { ns } => n.now += ns,
            Step::Lose { which } => {
                if !under_way.is_empty() && !faithful {
                    under_way.remove(which % under_way.len());
                }
            }
            Step::Deliver { which, copy } => {
                if under_way.is_empty() {
                    continue;
                }
                let at = if faithful { 0 } else { which % under_way.len() };
                let e = if copy && !faithful {
                    under_way[at]
                } else {
                    under_way.remove(at)
                };
                if !n.deliver(&e) {
                    return;
                }
            }
        }
    }
    if faithful {
        assert_eq!(n.lost, 0);
        for e in under_way {
            let delta = n.sender.on_echo(&e, n.sent, n.departed, QUIET).unwrap();
            n.add(&delta);
        }
    }
    // One last echo reports everything, whatever was lost.
    let last = n.receiver.echo(17, 1, 2);
    let delta = n.sender.on_echo(&last, n.sent, n.departed, QUIET).unwrap();
    n.add(&delta);
    assert_eq!(start.wrapping_add(n.packets), n.receiver.packets as u32);
    assert_eq!(start.wrapping_add(n.ce), n.receiver.ce as u32);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn bad_network(
        steps in prop::collection::vec(step(), 1..300),
        every_ns in prop_oneof![Just(0u64), 1..500u64],
        start in prop_oneof![Just(0u32), Just(u32::MAX - 40), Just(0xffe0), any::<u32>()],
    ) {
        network(&steps, every_ns, start, false);
    }

    #[test]
    fn good_network(
        steps in prop::collection::vec(step(), 1..300),
        every_ns in prop_oneof![Just(0u64), 1..500u64],
        start in prop_oneof![Just(0u32), Just(u32::MAX - 40), any::<u32>()],
    ) {
        network(&steps, every_ns, start, true);
    }

    /// For any input, forged echoes never make the counts exceed what was sent.
    #[test]
    fn forged(
        echoes in prop::collection::vec((any::<u16>(), any::<u32>(), any::<u32>(), 0..50u32), 1..300),
        start in any::<u32>(),
    ) {
        let mut s = Sender::new();
        let (mut sent, mut acknowledged, mut sent_since) = (start, 0u64, 0u64);
        s.on_echo(&echo(0, start, 0), sent, sent, QUIET).unwrap();
        for (sequence, packets, ce, n) in echoes {
            sent = sent.wrapping_add(n);
            sent_since += u64::from(n);
            let before = s;
            match s.on_echo(&echo(sequence, packets, ce), sent, sent, QUIET) {
                Ok(delta) => {
                    prop_assert!(delta.ce <= delta.packets);
                    acknowledged += u64::from(delta.packets);
                    prop_assert!(acknowledged <= sent_since);
                }
                Err(_) => prop_assert_eq!(s, Sender { refused: before.refused + 1, ..before }),
            }
        }
    }
}

// Headroom.

/// How an echo that asks arrives, after these ports.
fn after(ports: &[bool]) -> Headroom {
    let ecn = ports
        .iter()
        .fold(packet::ECT_0, |ecn, busy| Headroom::at_port(ecn, *busy));
    Headroom::of(ecn)
}

#[test]
fn headroom_needs_a_port_and_no_busy_one() {
    assert_eq!(after(&[]), Headroom::Unknown);
    assert_eq!(after(&[false]), Headroom::Free);
    assert_eq!(after(&[false, false, false]), Headroom::Free);
    for busy in 0..3 {
        let mut ports = [false; 3];
        ports[busy] = true;
        assert_eq!(after(&ports), Headroom::Busy);
    }
}

#[test]
fn echoes_without_a_request_are_unchanged() {
    for busy in [false, true] {
        assert_eq!(Headroom::at_port(packet::NOT_ECT, busy), packet::NOT_ECT);
    }
    assert_eq!(Headroom::of(packet::NOT_ECT), Headroom::Unknown);
}

#[test]
fn receivers_request_headroom_for_a_time_after_a_mark() {
    let mut r = Receiver::new();
    r.count(&every(0), 1, 1, false, 5);
    assert!(!Receiver::requests_headroom(r.last_ce_ns, 5));
    r.count(&every(0), 1, 1, true, 7);
    assert!(Receiver::requests_headroom(
        r.last_ce_ns,
        7 + REQUEST_NS - 1
    ));
    assert!(!Receiver::requests_headroom(r.last_ce_ns, 7 + REQUEST_NS));
    let headroom_request_due =
        |last_echo_ns, now_ns| Receiver::headroom_request_due(r.last_ce_ns, last_echo_ns, now_ns);
    assert!(headroom_request_due(7, 7 + REQUEST_DELAY_NS));
    assert!(!headroom_request_due(7, 6 + REQUEST_DELAY_NS));
    assert!(!headroom_request_due(
        8 + REQUEST_DELAY_NS - REQUEST_INTERVAL_NS,
        7 + REQUEST_DELAY_NS
    ));
    assert!(!headroom_request_due(7, 7 + REQUEST_NS));
}
