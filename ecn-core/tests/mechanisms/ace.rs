//! TCP's feedback: the source decodes what the receiver encodes in three bits.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use ecn_core::ace::{
    Ack, BLOCKED_NS, MAX_PENDING, Receiver, Sender, decode, max_encodable, with_ace,
};
use ecn_core::packet::{TRANSPORT_WINDOW, tcp};
use ecn_core::{echo, flow};
use proptest::prelude::*;

const SEGMENT: u32 = 1448;

/// A connection between the two ends, without a network.
struct Connection {
    source: Sender,
    receiver: Receiver,
    sent: u32,
    end: u32,
    marked: u32,
    /// The counters of a source's flow.
    acked: u32,
    acked_marks: u32,
}

impl Connection {
    fn new(first: u32) -> Self {
        let (mut source, mut receiver) = (Sender::new(), Receiver::new());
        source.begin(first, 0);
        receiver.begin(first);
        Self {
            source,
            receiver,
            sent: 0,
            end: first,
            marked: 0,
            acked: 0,
            acked_marks: 0,
        }
    }

    /// Sends segments, of which some are marked.
    fn data(&mut self, n: u32, ce: u32, now_ns: u64) -> bool {
        self.source.on_send(self.end, n * SEGMENT, SEGMENT);
        self.end = self.end.wrapping_add(n * SEGMENT);
        self.sent += n;
        self.marked += ce;
        self.receiver.count(SEGMENT, ce, now_ns)
    }

    /// The segment that acknowledges everything.
    fn encode(&mut self) -> Ack {
        Ack {
            sequence: 0,
            ack: self.end,
            ace: self.receiver.encode(self.end).into(),
            payload: 0,
        }
    }

    /// Data of the reverse path that acknowledges everything.
    fn acknowledge_with_data(&mut self, now_ns: u64) -> Ack {
        self.receiver.on_data_sent(now_ns);
        Ack {
            sequence: 0,
            ack: self.end,
            ace: 0,
            payload: 1,
        }
    }

    fn on_ack(&mut self, ack: Ack) {
        let delta = self.source.on_ack(ack, self.sent, self.sent);
        assert!(delta.ce <= delta.packets && delta.late <= delta.packets);
        self.acked += delta.packets - delta.late;
        self.acked_marks += delta.ce;
    }

    fn ack(&mut self) {
        let ack = self.encode();
        self.on_ack(ack);
    }
}

#[test]
fn flags_of_a_header() {
    for ace in 0..8 {
        for (reserved, flags) in [(0x50, 0x10), (0xaf, 0xff)] {
            let mut b = [0; TRANSPORT_WINDOW];
            (b[12], b[13]) = (reserved, flags);
            let written = with_ace([b[12], b[13]], ace);
            assert_eq!(written[0] & !1, reserved & !1);
            assert_eq!(written[1] & 0x3f, flags & 0x3f);
            (b[12], b[13]) = (written[0], written[1]);
            assert_eq!(tcp(&b).ace(), ace);
            assert_eq!(tcp(&b).ecn(), ace != 0);
        }
    }
}

#[test]
fn every_encoded_count_is_decoded() {
    for n in 0..200 {
        for pending in 0..=MAX_PENDING {
            let encoded = max_encodable(pending, n);
            assert!(encoded <= pending);
            assert_eq!(decode(encoded & 7, n), Some(encoded), "{pending} of {n}");
            // Something is always encoded, and for a super-packet nearly all.
            assert!(pending == 0 || encoded > 0);
            assert!(pending < n || encoded + 2 >= n, "{encoded} of {n}");
        }
    }
}

#[test]
fn a_whole_super_packet() {
    let mut c = Connection::new(0xffff_fff0);
    for _ in 0..100 {
        c.data(45, 45, 1);
        c.ack();
    }
    assert_eq!((c.acked, c.acked_marks), (4500, 4500));
    assert_eq!(c.receiver.pending, 0);
}

/// With an ACK for every second packet, two lost in a row lose no mark; more may.
#[test]
fn lost_acks() {
    let mut c = Connection::new(7);
    for i in 0..300 {
        c.data(2, 2, 1);
        let ack = c.encode();
        if i % 3 == 2 {
            c.on_ack(ack);
        }
    }
    assert_eq!((c.acked, c.acked_marks), (600, 600));
}

#[test]
fn old_acks_are_ignored() {
    let mut c = Connection::new(0);
    c.data(2, 1, 1);
    let old = c.encode();
    c.data(2, 1, 1);
    c.ack();
    let before = c.source;
    c.on_ack(old);
    assert_eq!(c.source, before);
    // Nor is an ACK of bytes that were never sent; a FIN's number is one more.
    let ahead = Ack {
        sequence: 0,
        ack: c.end.wrapping_add(2),
        ..old
    };
    c.on_ack(ahead);
    assert_eq!(c.source, before);
    let fin = Ack {
        sequence: 0,
        ack: c.end.wrapping_add(1),
        ace: 3,
        payload: 0,
    };
    c.on_ack(fin);
    assert_eq!(c.acked_marks, 3);
    assert_eq!(c.acked, 4);
}

/// An off-path attacker does not know the connection's numbers: guesses change nothing.
#[test]
fn forged_acks_are_ignored() {
    let mut c = Connection::new(7);
    c.data(20, 0, 1);
    c.source.expected = 5_000;
    let forged = |sequence: u32, ack: u32| Ack {
        sequence,
        ack,
        ace: 5,
        payload: 0,
    };
    let before = c.source;
    for n in 0..100_000_u32 {
        let scattered = (n | 1).wrapping_mul(0x9e37_79b9);
        c.on_ack(forged(scattered, 1 << 31 | scattered >> 2));
        // Repeating a number does not help. The receiver's sequence number is not enough,
        c.on_ack(forged(5_000, 7 + 20 * SEGMENT + 2 + n));
        c.on_ack(forged(5_000, 6 - n % 7));
        // and neither is the acknowledgement number.
        c.on_ack(forged(1 << 31, 7 + SEGMENT));
        assert_eq!((c.source, c.acked, c.acked_marks), (before, 0, 0));
    }
    c.on_ack(forged(5_000, 7 + 20 * SEGMENT));
    assert_eq!(c.acked_marks, 13);
}

/// Of a connection from before the agent, ACKs of data that was not seen leaving are ignored.
#[test]
fn forged_acks_of_connections_before_the_agent() {
    let mut source = Sender::new();
    source.on_send(1_000_000, 2 * SEGMENT, SEGMENT);
    let before = source;
    for ack in [0, 999_999, 1 << 31, u32::MAX] {
        for payload in 0..2 {
            let forged = Ack {
                sequence: 0,
                ack,
                ace: 5,
                payload,
            };
            source.on_ack(forged, 2, 2);
        }
    }
    assert_eq!(source, before);
}

/// A segment that is lost and retransmitted counts once.
#[test]
fn retransmissions_count_once() {
    let mut c = Connection::new(0);
    c.data(10, 1, 1);
    // Three of them are sent twice, one of these three times.
    for first in [0, 4, 5, 5] {
        assert!(!c.source.on_send(first * SEGMENT, SEGMENT, SEGMENT));
        c.sent += 1;
    }
    for (packets, ce, retransmitted) in [(14, 1, 4), (5, 5, 0)] {
        let ack = c.encode();
        let delta = c.source.on_ack(ack, c.sent, c.sent);
        assert_eq!(
            (delta.packets, delta.ce, delta.retransmitted),
            (packets, ce, retransmitted)
        );
        c.data(5, 5, 1);
    }
}

/// The first ACK of a connection from before the agent only sets the counts.
#[test]
fn connections_before_the_agent() {
    let mut source = Sender::new();
    let ack = |ack, ace| Ack {
        sequence: 0,
        ack,
        ace,
        payload: 0,
    };
    assert_eq!(source.on_ack(ack(5, 3), 0, 0).packets, 0);
    assert!(!source.on_send(1_000_000, SEGMENT, SEGMENT));
    assert!(source.on_send(1_000_000 + SEGMENT, SEGMENT, SEGMENT));
    // Not: the same once more.
    assert!(!source.on_send(1_000_000, SEGMENT, SEGMENT));
    // 20 older packets are acknowledged, with older marks.
    assert_eq!(source.on_ack(ack(1_000_000, 5), 3, 3).ce, 0);
    let delta = source.on_ack(ack(1_000_000 + SEGMENT, 6), 3, 3);
    assert_eq!((delta.packets, delta.ce), (1, 1));
}

/// Data of the reverse path does not report marks: after a while an echo does.
#[test]
fn blocked() {
    let mut c = Connection::new(0);
    assert!(!c.data(10, 4, 100));
    let ack = c.acknowledge_with_data(100);
    c.on_ack(ack);
    // All acknowledged, no mark reported.
    assert_eq!((c.acked, c.acked_marks), (10, 0));
    assert!(!c.data(1, 0, 100 + BLOCKED_NS - 1));
    assert!(c.data(1, 0, 100 + BLOCKED_NS));
    let echoed = c.receiver.encode_blocked();
    let delta = c.source.on_echo(echoed, c.sent, c.sent);
    assert_eq!((delta.packets, delta.late, delta.ce), (4, 2, 4));
    c.acked += delta.packets - delta.late;
    assert!(!c.data(1, 0, 1 << 40));
    // The next ACK continues from there.
    c.data(2, 2, 1 << 40);
    c.ack();
    c.ack();
    assert_eq!((c.source.decoded, c.acked_marks), (2, 2));
    assert_eq!(c.acked, c.sent);
    // An echo of another count is ignored.
    assert_eq!(c.source.on_echo(100_000, c.sent, c.sent).ce, 0);
}

/// An echo overtakes an ACK: each has its own count, and nothing is counted twice.
#[test]
fn an_echo_overtakes_an_ack() {
    let mut c = Connection::new(0);
    c.data(2, 2, 100);
    let ace = c.receiver.encode(c.end).into();
    let ack = Ack {
        sequence: 0,
        ack: c.end,
        ace,
        payload: 0,
    };
    assert_eq!(ace, 2);
    c.data(3, 3, 200);
    // An echo that only asks leaves marks to ACKs.
    assert_eq!(c.receiver.encode_blocked(), 0);
    c.receiver.on_data_sent(300);
    let echoed = c.receiver.encode_blocked();
    assert_eq!(c.source.on_echo(echoed, c.sent, c.sent).ce, 3);
    c.on_ack(ack);
    assert_eq!((c.source.decoded, c.acked_marks), (2, 2));
}

#[test]
fn a_receiver_forgets_old_marks() {
    let mut r = Receiver::new();
    for _ in 0..100 {
        r.count(SEGMENT, 10, 1);
    }
    assert_eq!((r.pending, r.discarded), (MAX_PENDING, 1000 - MAX_PENDING));
}

proptest! {
    /// Any sequence of segments: what is encoded is decoded, and nothing else is lost.
    #[test]
    fn in_order(
        first in any::<u32>(),
        // Packets, number of marks, whether data carries the ACK, and by how many others it is overtaken.
        steps in prop::collection::vec((0u32..90, 0u32..90, prop::option::of(0usize..4)), 1..300),
    ) {
        let mut c = Connection::new(first);
        let mut waiting = Vec::new();
        for (i, &(n, ce, data)) in steps.iter().enumerate() {
            c.data(n, ce.min(n), 1);
            if let Some(after) = data {
                waiting.push((i + after, c.acknowledge_with_data(1)));
            } else {
                c.ack();
            }
            for (_, ack) in waiting.extract_if(.., |(until, _)| *until <= i) {
                c.on_ack(ack);
            }
            prop_assert!(c.acked <= c.sent);
            prop_assert_eq!(c.source.decoded, c.receiver.encoded);
        }
        while c.receiver.pending != 0 {
            c.ack();
        }
        c.ack();
        prop_assert_eq!(c.acked, c.sent);
        prop_assert_eq!(c.source.decoded, c.receiver.encoded);
        prop_assert_eq!(c.acked_marks, c.receiver.encoded);
        prop_assert_eq!(c.marked, c.receiver.encoded + c.receiver.discarded);
    }

    /// ACKs of one or two packets, of which any two in a row may be lost.
    #[test]
    fn with_losses(
        steps in prop::collection::vec((1u32..=2, 0u32..=2, any::<bool>()), 1..300),
    ) {
        let mut c = Connection::new(0);
        let mut lost = 0;
        for (n, ce, lose) in steps {
            c.data(n, ce.min(n), 1);
            let ack = c.encode();
            if lose && lost < 2 {
                lost += 1;
            } else {
                lost = 0;
                c.on_ack(ack);
                prop_assert_eq!(c.source.decoded, c.receiver.encoded);
                prop_assert_eq!(c.acked_marks, c.marked);
            }
        }
    }

    /// For any input, nothing overflows, and no more is acknowledged than was sent.
    #[test]
    fn garbage(
        acks in prop::collection::vec((any::<u32>(), 0u32..8, 0u32..2, any::<u32>()), 1..100),
        segment in any::<u32>(), departed in any::<u32>(),
    ) {
        let mut source = Sender::new();
        let (mut sent, mut acked) = (0u32, 0u64);
        for (ack, ace, payload, bytes) in acks {
            source.on_send(ack.wrapping_add(bytes), bytes, segment);
            sent += 1;
            let delta = source.on_ack(Ack { sequence: 0, ack, ace, payload }, sent, departed);
            prop_assert!(delta.ce <= delta.packets && delta.late <= delta.packets);
            acked += u64::from(delta.packets - delta.late);
            prop_assert!(acked <= u64::from(sent));
        }
    }
}

// How a connection is classified.

#[test]
fn negotiation_is_detected_by_the_handshake() {
    for (negotiated, hides) in [(false, echo::CLEAR_CE | echo::NEW_FEEDBACK), (true, 0)] {
        let mut r = echo::Receiver::new();
        r.begin(negotiated, 1000, 5);
        assert_eq!((r.last_packet_ns, r.ace.ack), (5, 1000));
        let known = r.encode(true, 1000, false, 6).1;
        // Its own data is the first: the flow starts with it, and only once.
        let mut f = flow::Flow::new();
        f.sent_packets = 10;
        f.on_tcp_send(known, false, 77, 100, 100);
        assert_eq!((f.ace.end, f.ace.received), (177, 10));
        assert_eq!(f.flags == flow::NEGOTIATED, negotiated);
        assert_eq!(f.flags == flow::PLAIN, !negotiated);
        assert_eq!(r.encode(true, 1000, false, 6).1 & echo::FRESH, 0);
        assert_eq!(r.on_tcp_packet(2, 3000, true, 1448, 3896, 7), hides);
        assert_eq!((r.packets, r.ce), (2, 2));
        // The first ACK reports the first mark.
        let ace = r.encode(false, 3896, false, 8).0;
        assert_eq!(ace, if negotiated { 0 } else { 2 });
    }
}

/// A receiver that did not see the handshake lets one mark reach TCP, and observes how TCP answers.
#[test]
fn negotiation_is_detected_by_the_answer() {
    for native in [false, true] {
        let mut r = echo::Receiver::new();
        assert_eq!(r.on_tcp_packet(1, 1500, false, 1448, 1448, 1), 0);
        assert_eq!(r.encode(false, 1448, false, 1).0, 0);
        let verdict = r.on_tcp_packet(1, 1500, true, 1448, 2896, 2);
        assert_eq!(verdict, echo::NEW_FEEDBACK, "seen");
        // An ACK that was in flight already carries nothing new.
        assert_eq!(r.encode(false, 1448, false, 3), (0, echo::PROBING));
        assert_eq!(r.flags, echo::PROBING);
        assert_eq!(r.encode(false, 2896, native, 4).0, 0);
        let hidden = r.on_tcp_packet(1, 1500, true, 1448, 4344, 5);
        let ace = r.encode(false, 4344, native, 6).0;
        if native {
            assert_eq!((r.flags, hidden, ace), (echo::NEGOTIATED, 0, 0));
        } else {
            assert_eq!(r.flags, echo::PLAIN);
            assert_eq!((hidden, ace), (echo::CLEAR_CE | echo::NEW_FEEDBACK, 1));
        }
    }
}

/// Flags that TCP sets itself are kept, whatever the handshake was.
#[test]
fn negotiation_is_detected_by_flags() {
    let mut r = echo::Receiver::new();
    r.begin(false, 0, 1);
    assert_eq!(r.encode(false, 0, true, 2).0, 0);
    assert_eq!(r.flags, echo::NEGOTIATED);
    let mut f = flow::Flow::new();
    f.on_tcp_send(echo::PLAIN, false, 0, 100, 100);
    assert_eq!(f.flags, flow::PLAIN);
    f.on_tcp_send(echo::PLAIN, true, 100, 100, 100);
    assert_eq!(f.flags, flow::NEGOTIATED);
}

/// A source that did not see the handshake looks at new data: retransmissions are never ECN-capable.
#[test]
fn negotiation_is_detected_by_data() {
    let mut f = flow::Flow::new();
    f.on_tcp_send(0, false, 5000, 1000, 1000);
    assert_eq!(f.flags, 0, "perhaps sent again");
    f.on_tcp_send(0, false, 5000, 1000, 1000);
    assert_eq!(f.flags, 0, "sent again");
    f.on_tcp_send(0, false, 6000, 1000, 1000);
    assert_eq!(f.flags, flow::PLAIN);
}

/// An echo carries the connection's own count, and each counts once.
#[test]
fn echoes_of_tcp() {
    let mut r = echo::Receiver::new();
    r.begin(false, 0, 1);
    let mut f = flow::Flow::new();
    f.on_tcp_send(r.flags, false, 0, 14_480, 1448);
    f.sent_packets = 10;
    r.ce = 1 << 40;
    r.on_tcp_packet(10, 15_000, true, 1448, 14_480, 2);
    r.encode(true, 0, false, 3);
    let echo = r.echo(6, 1, 2);
    assert_eq!((echo.ce, r.ace.pending), (10, 0));
    // An off-path attacker does not know the connection's numbers.
    for elsewhere in [14_481, 1 << 20, 1 << 31, u32::MAX - (1 << 18)] {
        let forged = echo::Echo {
            packets: elsewhere,
            ..echo
        };
        let result = f.on_echo(&forged, 10, 0, 4);
        assert_eq!(result, Err(echo::Refusal::Impossible), "{elsewhere}");
    }
    let echo = echo::Echo { packets: 0, ..echo };
    let delta = f.on_echo(&echo, 10, 0, 4).unwrap();
    assert_eq!((delta.packets, delta.ce), (10, 10));
    assert_eq!(f.on_echo(&echo, 10, 0, 5), Err(echo::Refusal::Duplicate));
}

/// Only an answer to the SYN that was sent classifies a connection.
#[test]
fn only_the_answer_to_a_syn_classifies() {
    let mut r = echo::Receiver::new();
    assert!(!r.acknowledges_syn(0), "none left");
    r.on_syn_sent(u32::MAX, 1);
    for (ack, answers) in [
        (u32::MAX, true),
        (1400, true),
        (u32::MAX - 1, false),
        (2000, false),
    ] {
        assert_eq!(r.acknowledges_syn(ack), answers, "{ack}");
    }
    r.begin(false, 7, 2);
    assert!(!r.acknowledges_syn(u32::MAX), "a second one");
    r.on_syn_sent(9, 3);
    assert_eq!(r.flags, echo::SYN_SENT, "another connection");
}

/// The fast path without a lock changes nothing that needs it.
#[test]
fn fast_paths_change_nothing() {
    for flags in 0..32 {
        for pending in 0..2 {
            let mut r = echo::Receiver {
                flags,
                ..echo::Receiver::new()
            };
            r.ace.pending = pending;
            let before = r;
            let encoded = r.encode(true, 9, false, 7);
            if echo::Receiver::is_fast_data(flags, pending) {
                assert_eq!((r, encoded), (before, (0, flags)));
            }
        }
    }
}

/// The same for segments without payload when there is no feedback: only the acknowledged number advances.
#[test]
fn acks_without_feedback_only_advance_the_number() {
    for (flags, pending, ack) in (0..32)
        .flat_map(|flags| (0..2).map(move |pending| (flags, pending)))
        .flat_map(|(flags, pending)| [8, 9, 10].map(|ack| (flags, pending, ack)))
        .filter(|(flags, pending, _)| echo::Receiver::is_fast_ack(*flags, *pending))
    {
        let mut r = echo::Receiver {
            flags,
            ..echo::Receiver::new()
        };
        (r.ace.segment, r.ace.encoded, r.ace.ack) = (1448, 13, 9);
        r.ace.pending = pending;
        let mut after = r;
        let plain = flags & echo::PLAIN != 0;
        if plain && ecn_core::ace::is_later(ack, r.ace.ack) {
            after.ace.ack = ack;
        }
        let encoded = r.encode(false, ack, false, 0);
        assert_eq!(
            (r, encoded),
            (after, (if plain { 13 & 7 } else { 0 }, flags))
        );
    }
}

/// The same at the receiver of data: only totals change.
#[test]
fn quiet_receivers_do_not_change() {
    for (flags, pending, segment) in (0..16)
        .flat_map(|flags| (0..2).map(move |pending| (flags, pending)))
        .flat_map(|(flags, pending)| [1447, 1448, 1449].map(|segment| (flags, pending, segment)))
    {
        let mut r = echo::Receiver {
            flags,
            ..echo::Receiver::new()
        };
        (r.ace.segment, r.ace.pending, r.ace.blocked_ns) = (1448, pending, 1);
        let before = r;
        let verdict = r.on_tcp_data(2, false, segment, 9, u64::MAX);
        if echo::Receiver::is_fast_receive(pending, 1448, segment) {
            assert_eq!((r, verdict), (before, 0));
        } else if pending == 0 {
            assert_eq!(r.ace.segment == segment, flags & echo::NEGOTIATED == 0);
        } else {
            let sends_echoes = flags & (echo::NEGOTIATED | echo::PLAIN) == echo::PLAIN;
            assert_eq!(verdict & echo::SEND_ECHO != 0, sends_echoes);
        }
    }
}

/// The same at the source of data: only the end of sent data advances.
#[test]
fn classified_flows_do_not_change() {
    let cases = (0..16).flat_map(|known| (0..16).map(move |state| (known, state)));
    let mut stayed = 0;
    for (known, state) in cases {
        for (flags, own) in [0, flow::NEGOTIATED, flow::PLAIN]
            .into_iter()
            .flat_map(|flags| [false, true].map(|own| (flags, own)))
        {
            for (sequence, segment) in [(500, 1448), (2000, 1448), (2000, 1449), (u32::MAX, 1)] {
                let mut f = flow::Flow {
                    flags,
                    ..flow::Flow::new()
                };
                (f.ace.state, f.ace.segment, f.ace.end) = (state, 1448, 2000);
                let mut after = f;
                after.on_tcp_send(known, own, sequence, 1000, segment);
                let same = flow::Flow::is_ecn_decided(flags, known, own)
                    && Sender::is_fast_send(state, 1448, segment);
                if same {
                    let new = sequence == 2000;
                    f.ace.end = if new { 3000 } else { 2000 };
                    f.ace.retransmitted = if new { 0 } else { 1000_u32.div_ceil(segment) };
                    assert_eq!(f, after);
                    stayed += 1;
                }
            }
        }
    }
    assert!(stayed > 0);
}

/// Known flags of a connection change nothing.
#[test]
fn repeated_flags_report_no_new_marks() {
    for known in (0..16).filter(|known| known & echo::FRESH == 0) {
        for (flags, own) in [0, flow::NEGOTIATED, flow::PLAIN]
            .into_iter()
            .flat_map(|flags| [false, true].map(|own| (flags, own)))
        {
            let mut f = flow::Flow {
                flags,
                ..flow::Flow::new()
            };
            f.on_tcp_send(known, false, 0, 1000, 1000);
            let mut again = f;
            f.on_tcp_send(known, own, 1000, 1000, 1000);
            again.on_tcp_send(0, own, 1000, 1000, 1000);
            assert_eq!(f, again, "{known} {flags} {own}");
        }
    }
}

/// New feedback is reported once, after there was none.
#[test]
fn a_receiver_reports_new_feedback() {
    for (flags, pending, ce) in (0..16)
        .flat_map(|flags| (0..2).map(move |pending| (flags, pending)))
        .flat_map(|(flags, pending)| [false, true].map(|ce| (flags, pending, ce)))
    {
        let mut r = echo::Receiver {
            flags,
            ..echo::Receiver::new()
        };
        r.ace.pending = pending;
        let settled = |r: &echo::Receiver| echo::Receiver::is_fast_data(r.flags, r.ace.pending);
        let before = settled(&r);
        let stirs = r.on_tcp_data(2, ce, 1448, 9, 7) & echo::NEW_FEEDBACK != 0;
        assert_eq!(stirs, before && !settled(&r));
        assert!(r.flags == flags || stirs || !before);
    }
}
