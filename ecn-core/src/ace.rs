//! TCP's echo: the receiver's running count of CE packets, modulo 8, in the three ECN flags of the ACKs
//! that its TCP sends anyway. No packet is added, and neither TCP sees a bit of it.
//!
//! The flags are read as one number, ACE = AE CWR ECE, as in RFC 9768 section 3.2.2. Ours begins at 0
//! with the connection; that of RFC 9768 begins at 5, and is of connections that negotiated it.
//!
//! Three bits are few: one super-packet is 45 segments. Receiver and source therefore agree on what a
//! step d of the counter means, given the n packets that the segment newly acknowledges:
//!
//! * 0 and 1 mean themselves;
//! * 2 to 7 mean the largest number up to n that is d modulo 8: all of a marked super-packet, or all but
//!   one or two. (RFC 9768 appendix A.2.1 takes the largest too, for safety; here the receiver counts on it.)
//!
//! The receiver says the largest number that it can say so, and keeps up to [`MOST_KEPT`] for the next
//! ACKs; more would be old news by then, and is forgotten. With an ACK for every second packet nothing is
//! ever kept, and a lost ACK loses nothing while the sum of the steps is still understood: two lost in a
//! row when all packets are marked.
//!
//! n is (bytes acknowledged since the last segment that said something) / (longest segment), rounded
//! up; both ends see both. Only segments without payload say something. The others are the reverse path's
//! data: they wait for its rate limit while later ACKs overtake them, and both ends must agree which segment
//! was the last. Where all ACKs come with data, an echo says what was marked ([`WAIT_NS`]).

use crate::echo::News;

/// Steps below this mean themselves.
const LITERAL: u32 = 2;
/// How long marks may wait while only data goes back, before an echo of the ordinary kind says them.
pub const WAIT_NS: u64 = 2_000_000;
/// Marks that wait for the next ACK, at most.
pub const MOST_UNSAID: u32 = 256;
/// Marks that an ACK leaves to the ones after it, at most.
pub const MOST_KEPT: u32 = 8;

/// The TCP header's bytes 12 and 13 with this ACE.
#[inline(always)]
#[must_use]
pub const fn with_ace(bytes: [u8; 2], ace: u8) -> [u8; 2] {
    [
        bytes[0] & !0x01 | (ace >> 2) & 1,
        bytes[1] & !0xc0 | (ace & 3) << 6,
    ]
}

/// Packets in so many bytes, given the longest; 0 if none was seen.
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

/// What a step of the counter means when `n` packets are newly acknowledged. `None`: nothing that the
/// receiver would say; an overtaken segment, or several lost ones.
#[inline(always)]
#[must_use]
pub const fn meaning(step: u32, n: u32) -> Option<u32> {
    if step < LITERAL {
        Some(step)
    } else if step <= n {
        Some(n - ((n - step) & 7))
    } else {
        None
    }
}

/// The largest number up to `unsaid` that can be said with `n` packets newly acknowledged.
#[inline(always)]
#[must_use]
pub const fn sayable(unsaid: u32, n: u32) -> u32 {
    let most = if unsaid < n { unsaid } else { n };
    let low = most & 7;
    // Residues 0 and 1 mean themselves: the next number below.
    let most = if low < LITERAL {
        most.wrapping_sub(low + 1)
    } else {
        most
    };
    // Below LITERAL the subtraction may have wrapped. Larger ones are meant from n - 7 on.
    if most <= n && most >= LITERAL && most + 8 > n {
        most
    } else if unsaid < LITERAL {
        unsaid
    } else {
        LITERAL - 1
    }
}

/// What a receiver keeps of a TCP connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receiver {
    /// Marked packets that are still to be said.
    pub unsaid: u32,
    /// Marked packets that were said, modulo 2^32; ACE is its last three bits.
    pub said: u32,
    /// Longest segment seen, bytes of payload.
    pub segment: u32,
    /// Acknowledgement number of the source's FIN; 0: none came.
    pub fin: u32,
    /// Since when marks wait, while only data goes back; 0: they do not.
    pub blocked_ns: u64,
    /// Sequence number behind a marked segment that TCP saw the mark of, see
    /// [`crate::echo::PROBING`].
    pub probe_end: u32,
    /// Marked packets that echoes said, modulo 2^32. Counted apart: an echo may overtake an ACK.
    pub echoed: u32,
    /// Marked packets that will never be, see [`MOST_UNSAID`] and [`MOST_KEPT`].
    pub forgotten: u32,
    /// Acknowledgement number of the last segment that said something.
    pub ack: u32,
}

impl Receiver {
    /// Nothing received.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            blocked_ns: 0,
            said: 0,
            unsaid: 0,
            forgotten: 0,
            ack: 0,
            segment: 0,
            probe_end: 0,
            echoed: 0,
            fin: 0,
        }
    }

    /// A connection begins: the next byte is number `next`.
    #[inline(always)]
    pub fn begin(&mut self, next: u32) {
        *self = Self::new();
        self.ack = next;
    }

    /// Counts data: segments of `segment` bytes, of which `ce` are marked. Returns whether an echo
    /// must say it, because only data went back for a while.
    #[inline(always)]
    pub fn count(&mut self, segment: u32, ce: u32, now_ns: u64) -> bool {
        if segment > self.segment {
            self.segment = segment;
        }
        self.unsaid = self.unsaid.wrapping_add(ce);
        self.forget(MOST_UNSAID);
        self.unsaid != 0
            && self.blocked_ns != 0
            && now_ns.saturating_sub(self.blocked_ns) >= WAIT_NS
    }

    /// Keeps so many marks at most.
    #[inline(always)]
    fn forget(&mut self, most: u32) {
        if self.unsaid > most {
            self.forgotten = self.forgotten.wrapping_add(self.unsaid - most);
            self.unsaid = most;
        }
    }

    /// The ACE of a segment without payload that acknowledges up to `ack`.
    #[inline(always)]
    pub fn say(&mut self, ack: u32) -> u8 {
        let newly = ack.wrapping_sub(self.ack);
        // One that a later one overtook on another CPU says nothing new.
        if newly as i32 > -1 {
            let step = sayable(self.unsaid, packets(newly, self.segment));
            self.said = self.said.wrapping_add(step);
            self.unsaid -= step;
            self.forget(MOST_KEPT);
            self.blocked_ns = 0;
            self.ack = ack;
        }
        self.said as u8 & 7
    }

    /// Data goes back, and no ACK of its own.
    #[inline(always)]
    pub fn wait(&mut self, now_ns: u64) {
        if self.unsaid != 0 && self.blocked_ns == 0 {
            self.blocked_ns = now_ns;
        }
    }

    /// Says all at once, in an echo, if only data went back since they came; returns the running count of echoes.
    #[inline(always)]
    pub fn say_blocked(&mut self) -> u32 {
        if self.blocked_ns != 0 {
            self.echoed = self.echoed.wrapping_add(self.unsaid);
            self.unsaid = 0;
            self.blocked_ns = 0;
        }
        self.echoed
    }
}

/// [`Sender::state`]: [`Sender::end`] is known, and where the connection's numbers begin for us.
const SENT: u32 = 1;
/// [`Sender::state`]: [`Sender::said`] is the receiver's.
const SYNCED: u32 = 4;
/// [`Sender::state`]: the receiver's count of echoes is known.
const HEARD: u32 = 8;

/// Numbers so far before the last one: ACKs may overtake data, other ACKs, and echoes.
const BEFORE: u32 = 1 << 18;
/// Numbers so far from the one that is expected: more than a window of what the receiver sends.
const NEAR: u32 = 1 << 24;

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
    /// 1: it has payload.
    pub payload: u32,
}

/// What a source keeps of a TCP connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Receiver's running count of marked packets, modulo 2^32.
    pub said: u32,
    /// Acknowledgement number of the last segment that said something.
    pub ack: u32,
    /// Highest acknowledgement number.
    pub acked: u32,
    /// Sequence number behind the last byte sent.
    pub end: u32,
    /// Longest segment sent, bytes of payload.
    pub segment: u32,
    /// Packets of this source (as it counts what it sends) that are not on their way any more.
    pub received: u32,
    /// Lowest difference of departed and received packets, at most 0: departures that were not seen.
    pub floor: i32,
    /// What of the above is known.
    pub state: u32,
    /// Packets sent again that are not taken off what is acknowledged yet.
    pub resent: u32,
    /// Up to where the source's own TCP acknowledged when it last sent data: the sequence number that it expected from the
    /// receiver; 0: not known. Nobody else can say it.
    pub expected: u32,
}

impl Sender {
    /// Nothing sent.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            said: 0,
            ack: 0,
            acked: 0,
            end: 0,
            segment: 0,
            received: 0,
            floor: 0,
            state: 0,
            resent: 0,
            expected: 0,
        }
    }

    /// A connection begins: the next byte is number `next`; `sent` packets had been sent before it.
    #[inline(always)]
    pub fn begin(&mut self, next: u32, sent: u32) {
        let floor = self.floor;
        *self = Self::new();
        (self.ack, self.acked, self.end) = (next, next, next);
        self.received = sent;
        self.floor = floor;
        self.state = SENT | SYNCED | HEARD;
    }

    /// Whether [`Sender::send`] would change nothing but [`Sender::end`] and [`Sender::resent`].
    #[inline(always)]
    #[must_use]
    pub const fn is_known(state: u32, longest: u32, segment: u32) -> bool {
        state & SENT != 0 && segment <= longest
    }

    /// Data leaves: `bytes` from number `sequence` on, in segments of `segment` bytes. Returns whether
    /// it is surely sent for the first time.
    #[inline(always)]
    pub fn send(&mut self, sequence: u32, bytes: u32, segment: u32) -> bool {
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
            self.resent = self.resent.wrapping_add(packets(bytes, segment));
        }
        new && known
    }

    /// Takes a segment from the receiver, if it can be one: its numbers are in the windows of the connection (RFC 5961
    /// section 5.2), which nobody knows who does not see it. `sent`: packets that the source had handed to its device;
    /// `departed`: of these, packets that had left it (both modulo 2^32). No packets: no news.
    ///
    /// [`Sender::end`] may be ahead of `sent`, by what is being counted at this moment: as much seems to be on its
    /// way still, until the next segment. Behind it, packets would seem to have come before they left, and
    /// [`Sender::floor`] would fall for good.
    #[inline(always)]
    pub fn take(&mut self, a: Ack, sent: u32, departed: u32) -> News {
        let on_way = self.end.wrapping_sub(a.ack) as i32;
        let old = self.acked.wrapping_sub(a.ack) as i32 > BEFORE as i32;
        // A FIN has a number too. More than that was never sent here.
        if self.state & SENT == 0 || on_way < -1 || old {
            return self.news(self.received, 0, sent, departed);
        }
        let apart = a.sequence.wrapping_sub(self.expected).wrapping_add(NEAR);
        if self.expected != 0 && apart > 2 * NEAR {
            return self.news(self.received, 0, sent, departed);
        }
        let mut received = self.received;
        if a.ack.wrapping_sub(self.acked) as i32 > -1 {
            self.acked = a.ack;
            let on_way = if on_way > 0 { on_way as u32 } else { 0 };
            received = sent.wrapping_sub(packets(on_way, self.segment));
        }
        // Data may have overtaken it, and says nothing; a later one that does may not.
        let newly = a.ack.wrapping_sub(self.ack);
        let mut ce = 0;
        let says = a.payload == 0 && newly as i32 > -1;
        if says && self.state & SYNCED == 0 {
            // Counts from before we looked are no news.
            self.said = a.ace;
            self.ack = a.ack;
            self.state |= SYNCED;
        } else if says {
            let step = a.ace.wrapping_sub(self.said) & 7;
            if let Some(meant) = meaning(step, packets(newly, self.segment)) {
                ce = meant;
                self.said = self.said.wrapping_add(meant);
                self.ack = a.ack;
            }
        }
        self.news(received, ce, sent, departed)
    }

    /// Whether data of this sequence number was sent and may just have arrived: it is among what is not acknowledged,
    /// or a little before.
    #[inline(always)]
    #[must_use]
    pub const fn has_sent(&self, sequence: u32) -> bool {
        // The number of a FIN is behind the end.
        let on_way = self.end.wrapping_sub(self.acked);
        let on_way = if on_way as i32 > 0 { on_way } else { 0 };
        self.end.wrapping_sub(sequence) <= on_way + BEFORE
    }

    /// Takes an echo, which the receiver sends when segments cannot say it, with `ce` marks more than the
    /// last one.
    #[inline(always)]
    pub fn take_echo(&mut self, mut ce: u32, sent: u32, departed: u32) -> News {
        if self.state & HEARD == 0 || ce > MOST_UNSAID {
            // Another count than the one followed so far.
            ce = 0;
        }
        self.state |= HEARD;
        self.news(self.received, ce, sent, departed)
    }

    /// Of `ce` packets that were marked, and all up to `received` that came.
    #[inline(always)]
    fn news(&mut self, received: u32, ce: u32, sent: u32, departed: u32) -> News {
        let open = sent.wrapping_sub(self.received);
        let mut packets = received.wrapping_sub(self.received);
        if packets > open {
            packets = 0;
        }
        let mut late = 0;
        if ce > packets {
            // A duplicate ACK moves no number, and yet tells of packets that came. Others were
            // acknowledged before their marks could be said.
            let came = if ce < open { ce } else { open };
            if came > packets {
                packets = came;
            }
            late = ce - packets;
        }
        self.received = self.received.wrapping_add(packets);
        let unmarked = packets - if ce < packets { ce } else { packets };
        let resent = if self.resent < unmarked {
            self.resent
        } else {
            unmarked
        };
        self.resent -= resent;
        let difference = departed.wrapping_sub(self.received) as i32;
        if difference < self.floor {
            self.floor = difference;
        }
        let position = self.received.wrapping_add(self.floor as u32);
        News {
            packets: packets + late,
            late,
            ce,
            lost_echoes: 0,
            position,
            outstanding: departed.wrapping_sub(position),
            room: 0,
            resent,
        }
    }
}
