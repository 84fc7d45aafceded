//! TCP feedback: the receiver's running CE count, modulo 8, in the three ECN flags of the ACKs that its TCP sends
//! anyway. No packet is added, and neither TCP sees the count.
//!
//! The flags form one number, ACE = AE CWR ECE, as in RFC 9768 section 3.2.2. Our count starts at 0 with the
//! connection; that of RFC 9768 starts at 5, on connections that negotiated it.
//!
//! A super-packet has up to 45 segments, more than three bits can count. Receiver and sender therefore agree on
//! what a counter step d means, given the n packets that the segment newly acknowledges:
//!
//! * 0 and 1 are literal;
//! * 2 to 7 mean the largest number up to n that is congruent to d modulo 8: all of a marked super-packet, or all
//!   but one or two. (RFC 9768 appendix A.2.1 also assumes the largest, for safety; here the receiver relies on it.)
//!
//! The receiver encodes the largest number that this can express and carries up to [`MAX_CARRIED`] over to the next
//! ACKs; the rest would be stale by then and is discarded. With an ACK for every second packet nothing is carried
//! over, and a lost ACK loses nothing while the sum of the steps can still be decoded: two in a row if all packets are
//! marked.
//!
//! n is (bytes acknowledged since the last segment that carried a count) / (longest segment), rounded up; both ends
//! know both. Only segments without payload carry a count. The others are data of the reverse path: they wait for
//! its rate limit while later ACKs overtake them, and both ends must agree on which segment was the last. Where every
//! ACK is piggybacked on data, an echo carries the count ([`BLOCKED_NS`]).

use crate::feedback::FeedbackDelta;

/// Steps below this are literal.
const LITERAL: u32 = 2;
/// How long CE counts may stay pending while only data is sent back, before an echo carries them.
pub const BLOCKED_NS: u64 = 2_000_000;
/// Most CE packets that can be pending.
pub const MAX_PENDING: u32 = 256;
/// Most pending CE packets that an ACK carries over to the next ones.
pub const MAX_CARRIED: u32 = 8;

/// The TCP header's bytes 12 and 13 with this ACE.
#[inline(always)]
#[must_use]
pub const fn with_ace(bytes: [u8; 2], ace: u8) -> [u8; 2] {
    [
        bytes[0] & !0x01 | (ace >> 2) & 1,
        bytes[1] & !0xc0 | (ace & 3) << 6,
    ]
}

/// Packets in `bytes`, given the longest segment; 0 if none was seen.
#[inline(always)]
const fn packets(bytes: u32, segment: u32) -> u32 {
    match bytes
        .wrapping_add(segment.wrapping_sub(1))
        .checked_div(segment)
    {
        Some(n) => n,
        None => 0,
    }
}

/// Whether a sequence number lies behind another, RFC 9293 section 3.4.
#[inline(always)]
#[must_use]
pub const fn is_later(number: u32, other: u32) -> bool {
    number.wrapping_sub(other) as i32 > 0
}

/// The CE packets that a counter step stands for when `n` packets are newly acknowledged. `None`: no receiver encodes
/// this step; the segment was overtaken, or several were lost.
#[inline(always)]
#[must_use]
pub const fn decode(step: u32, n: u32) -> Option<u32> {
    if step < LITERAL {
        Some(step)
    } else if step <= n {
        Some(n - ((n - step) & 7))
    } else {
        None
    }
}

/// The largest number up to `pending` that an ACK of `n` packets can encode.
#[inline(always)]
#[must_use]
pub const fn max_encodable(pending: u32, n: u32) -> u32 {
    let most = if pending < n { pending } else { n };
    let low = most & 7;
    // Residues 0 and 1 are literal: the next number below.
    let most = if low < LITERAL {
        most.wrapping_sub(low + 1)
    } else {
        most
    };
    // Below LITERAL the subtraction may have wrapped. Larger numbers are decoded from n - 7 on.
    if most <= n && most >= LITERAL && most + 8 > n {
        most
    } else if pending < LITERAL {
        pending
    } else {
        LITERAL - 1
    }
}

/// A receiver's state of a TCP connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receiver {
    /// CE packets that no ACK has encoded yet.
    pub pending: u32,
    /// CE packets that ACKs have encoded, modulo 2^32; ACE is its last three bits.
    pub encoded: u32,
    /// Longest segment seen, bytes of payload.
    pub segment: u32,
    /// Acknowledgement number of the source's FIN; 0: not received.
    pub fin: u32,
    /// Since when CE packets are pending while only data is sent back; 0: not blocked.
    pub blocked_ns: u64,
    /// End of a marked segment whose mark TCP was shown, see [`crate::echo::PROBING`].
    pub probe_end: u32,
    /// CE packets that echoes carried, modulo 2^32. A count of its own: an echo may overtake an ACK.
    pub echoed: u32,
    /// CE packets that were discarded, see [`MAX_PENDING`] and [`MAX_CARRIED`].
    pub discarded: u32,
    /// Acknowledgement number of the last segment that carried a count.
    pub ack: u32,
}

impl Receiver {
    /// Nothing received.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            blocked_ns: 0,
            encoded: 0,
            pending: 0,
            discarded: 0,
            ack: 0,
            segment: 0,
            probe_end: 0,
            echoed: 0,
            fin: 0,
        }
    }

    /// Starts a connection: the next byte is number `next`.
    #[inline(always)]
    pub fn begin(&mut self, next: u32) {
        *self = Self::new();
        self.ack = next;
    }

    /// Counts data: segments of `segment` bytes, `ce` of them marked. Returns whether an echo must carry the count,
    /// because only data was sent back for [`BLOCKED_NS`].
    #[inline(always)]
    pub fn count(&mut self, segment: u32, ce: u32, now_ns: u64) -> bool {
        if segment > self.segment {
            self.segment = segment;
        }
        self.pending = self.pending.wrapping_add(ce);
        self.discard_above(MAX_PENDING);
        self.pending != 0
            && self.blocked_ns != 0
            && now_ns.saturating_sub(self.blocked_ns) >= BLOCKED_NS
    }

    /// Discards pending marks above a maximum.
    #[inline(always)]
    fn discard_above(&mut self, most: u32) {
        if self.pending > most {
            self.discarded = self.discarded.wrapping_add(self.pending - most);
            self.pending = most;
        }
    }

    /// The ACE of a segment without payload that acknowledges up to `ack`.
    /// Encodes as many pending marks as that segment can carry.
    #[inline(always)]
    pub fn encode(&mut self, ack: u32) -> u8 {
        let newly = ack.wrapping_sub(self.ack);
        // A segment that another CPU's overtook repeats the last count.
        if newly as i32 > -1 {
            let step = max_encodable(self.pending, packets(newly, self.segment));
            self.encoded = self.encoded.wrapping_add(step);
            self.pending -= step;
            self.discard_above(MAX_CARRIED);
            self.blocked_ns = 0;
            self.ack = ack;
        }
        self.encoded as u8 & 7
    }

    /// Data is sent back, which cannot carry a count.
    #[inline(always)]
    pub fn on_data_sent(&mut self, now_ns: u64) {
        if self.pending != 0 && self.blocked_ns == 0 {
            self.blocked_ns = now_ns;
        }
    }

    /// Moves pending marks to the count that echoes carry, if they are blocked. Returns that count.
    #[inline(always)]
    pub fn encode_blocked(&mut self) -> u32 {
        if self.blocked_ns != 0 {
            self.echoed = self.echoed.wrapping_add(self.pending);
            self.pending = 0;
            self.blocked_ns = 0;
        }
        self.echoed
    }
}

/// [`Sender::state`]: data was seen, [`Sender::end`] is known.
const SENT: u32 = 1;
/// [`Sender::state`]: [`Sender::decoded`] matches the receiver's count.
const SYNCED: u32 = 4;
/// [`Sender::state`]: the receiver's count of echoes is known.
const ECHO_SYNCED: u32 = 8;

/// How far numbers may be behind the last one: ACKs may overtake data, other ACKs, and echoes.
const MAX_REORDERED: u32 = 1 << 18;
/// How far sequence numbers may be from the expected one: more than the receiver's send window.
const WINDOW: u32 = 1 << 24;

/// Bytes that may wait at a source and be on their way to a bridge.
const LATELY: u32 = 1 << 22;

/// A segment from the receiver.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub ack: u32,
    /// ACE.
    pub ace: u32,
    /// 1: it has payload, so no count.
    pub payload: u32,
}

/// A sender's state of a TCP connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// The receiver's running CE count as decoded, modulo 2^32.
    pub decoded: u32,
    /// Acknowledgement number of the last segment that carried a count.
    pub ack: u32,
    /// Highest acknowledgement number (SND.UNA).
    pub acked: u32,
    /// Sequence number after the last byte sent (SND.NXT).
    pub end: u32,
    /// Longest segment sent, bytes of payload.
    pub segment: u32,
    /// Packets of this source, in its own count, that are no longer in flight.
    pub received: u32,
    /// Lowest difference of departed and received packets, at most 0: departures that were missed.
    pub floor: i32,
    /// Which of the fields are valid: `SENT`, `SYNCED`, `ECHO_SYNCED`.
    pub state: u32,
    /// Retransmitted packets that have not been subtracted from acknowledged ones yet.
    pub retransmitted: u32,
    /// Sequence number that the source's own TCP expected when it last sent data (RCV.NXT); 0: unknown. Off-path
    /// attackers do not know it.
    pub expected: u32,
}

impl Sender {
    /// Nothing sent.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            decoded: 0,
            ack: 0,
            acked: 0,
            end: 0,
            segment: 0,
            received: 0,
            floor: 0,
            state: 0,
            retransmitted: 0,
            expected: 0,
        }
    }

    /// Starts a connection: the next byte is number `next`, and `sent` packets were sent before it.
    #[inline(always)]
    pub fn begin(&mut self, next: u32, sent: u32) {
        let floor = self.floor;
        *self = Self::new();
        (self.ack, self.acked, self.end) = (next, next, next);
        self.received = sent;
        self.floor = floor;
        self.state = SENT | SYNCED | ECHO_SYNCED;
    }

    /// Whether [`Sender::on_send`] would change nothing but [`Sender::end`] and [`Sender::retransmitted`].
    #[inline(always)]
    #[must_use]
    pub const fn is_fast_send(state: u32, longest: u32, segment: u32) -> bool {
        state & SENT != 0 && segment <= longest
    }

    /// Data is sent: `bytes` from `sequence` on, in segments of `segment` bytes. Returns whether it is certainly no
    /// retransmission.
    #[inline(always)]
    pub fn on_send(&mut self, sequence: u32, bytes: u32, segment: u32) -> bool {
        if segment > self.segment {
            self.segment = segment;
        }
        let end = sequence.wrapping_add(bytes);
        let known = self.state & SENT != 0;
        let new = is_later(end, self.end);
        if !known {
            (self.ack, self.acked) = (sequence, sequence);
            self.state |= SENT;
        }
        if new || !known {
            self.end = end;
        } else {
            self.retransmitted = self.retransmitted.wrapping_add(packets(bytes, segment));
        }
        new && known
    }

    /// Processes a segment from the receiver, if its numbers are within the connection's windows (RFC 5961 section 5.2),
    /// which off-path attackers do not know. `sent`: packets that the source had handed to its device; `departed`: those
    /// of them that had left it (both modulo 2^32). Returns an empty delta for other segments.
    ///
    /// [`Sender::end`] may be ahead of `sent`, by what is being counted right now: as much seems to be in flight still,
    /// until the next segment. If it were behind, packets would seem to arrive before they left, and
    /// [`Sender::floor`] would fall for good.
    #[inline(always)]
    pub fn on_ack(&mut self, a: Ack, sent: u32, departed: u32) -> FeedbackDelta {
        let on_way = self.end.wrapping_sub(a.ack) as i32;
        let old = self.acked.wrapping_sub(a.ack) as i32 > MAX_REORDERED as i32;
        // A FIN takes a number too; numbers above it were never sent.
        if self.state & SENT == 0 || on_way < -1 || old {
            return self.delta(self.received, 0, sent, departed);
        }
        let apart = a.sequence.wrapping_sub(self.expected).wrapping_add(WINDOW);
        if self.expected != 0 && apart > 2 * WINDOW {
            return self.delta(self.received, 0, sent, departed);
        }
        let mut received = self.received;
        if a.ack.wrapping_sub(self.acked) as i32 > -1 {
            self.acked = a.ack;
            let on_way = if on_way > 0 { on_way as u32 } else { 0 };
            received = sent.wrapping_sub(packets(on_way, self.segment));
        }
        // Data may have overtaken it, which carries no count; a later count may not.
        let newly = a.ack.wrapping_sub(self.ack);
        let mut ce = 0;
        let has_count = a.payload == 0 && newly as i32 > -1;
        if has_count && self.state & SYNCED == 0 {
            // Marks from before this point are not ours to answer.
            self.decoded = a.ace;
            self.ack = a.ack;
            self.state |= SYNCED;
        } else if has_count {
            let step = a.ace.wrapping_sub(self.decoded) & 7;
            if let Some(marks) = decode(step, packets(newly, self.segment)) {
                ce = marks;
                self.decoded = self.decoded.wrapping_add(marks);
                self.ack = a.ack;
            }
        }
        self.delta(received, ce, sent, departed)
    }

    /// Whether data of this sequence number may just have arrived: it is unacknowledged, or was acknowledged recently.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn has_sent(&self, sequence: u32) -> bool {
        // A FIN has the number after the end.
        let on_way = self.end.wrapping_sub(self.acked);
        let on_way = if on_way as i32 > 0 { on_way } else { 0 };
        self.end.wrapping_sub(sequence) <= on_way + MAX_REORDERED
    }

    /// Whether a segment with these numbers may be on its way from the source to a bridge: its data is less far behind
    /// than for `has_sent`, whatever is acknowledged.
    #[inline(always)]
    #[must_use]
    pub const fn has_sent_lately(&self, sequence: u32, acknowledgment: u32) -> bool {
        // Segments that are sent at once by several processors may be recorded in another order.
        let behind = self
            .expected
            .wrapping_sub(acknowledgment)
            .wrapping_add(MAX_REORDERED);
        self.has_sent(sequence)
            && self.end.wrapping_sub(sequence) <= LATELY
            && (self.expected == 0 || behind <= LATELY)
    }

    /// Processes an echo, which the receiver sends while ACKs cannot carry the count: `ce` marks since the last one.
    #[inline(always)]
    pub fn on_echo(&mut self, mut ce: u32, sent: u32, departed: u32) -> FeedbackDelta {
        if self.state & ECHO_SYNCED == 0 || ce > MAX_PENDING {
            // Not the count that was followed so far.
            ce = 0;
        }
        self.state |= ECHO_SYNCED;
        self.delta(self.received, ce, sent, departed)
    }

    /// The delta for `ce` marked packets when all up to `received` have arrived.
    #[inline(always)]
    fn delta(&mut self, received: u32, ce: u32, sent: u32, departed: u32) -> FeedbackDelta {
        let open = sent.wrapping_sub(self.received);
        let mut packets = received.wrapping_sub(self.received);
        if packets > open {
            packets = 0;
        }
        let mut late = 0;
        if ce > packets {
            // A duplicate ACK moves no number but reports packets that arrived. Others were acknowledged before their
            // marks could be encoded.
            let arrived = if ce < open { ce } else { open };
            if arrived > packets {
                packets = arrived;
            }
            late = ce - packets;
        }
        self.received = self.received.wrapping_add(packets);
        let unmarked = packets - if ce < packets { ce } else { packets };
        let retransmitted = if self.retransmitted < unmarked {
            self.retransmitted
        } else {
            unmarked
        };
        self.retransmitted -= retransmitted;
        let difference = departed.wrapping_sub(self.received) as i32;
        if difference < self.floor {
            self.floor = difference;
        }
        let position = self.received.wrapping_add(self.floor as u32);
        FeedbackDelta {
            packets: packets + late,
            late,
            ce,
            lost_echoes: 0,
            position,
            outstanding: departed.wrapping_sub(position),
            headroom: 0,
            retransmitted,
        }
    }
}
