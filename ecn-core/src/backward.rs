//! Backward messages: a congested port notifies the source of a packet directly, without involving the receiver.
//!
//! The message is built from a clone of the marked packet and leaves the bridge by the port at which that packet
//! arrived. So it reaches the source after the delay of the path so far, without that of the congested queue and of
//! the path to the receiver and back. It is a payload of the echoes' IP protocol ([`crate::echo`]), and its versions
//! continue those of echoes:
//!
//! ```text
//!  0         1          2          4          6      8       12         16     18     19      20         24      32               36
//!  | version | protocol | src port | dst port | zero | quote | sequence | zero | kind | flags | feedback | point | acknowledgment |
//! ```
//!
//! All fields are big-endian. Addresses are those of the IP header, exchanged: the bridge needs no address. The two
//! zero fields are at the offsets of the packet's transport checksum, which may be left to a device, as in an echo.
//! With a key the version is [`VERSION_SIGNED`], and a tag of 8 bytes follows: [`siphash`] of addresses and fields.
//!
//! A source accepts a message only if
//!
//! * it comes from the same network: its TTL or hop limit is still 255, which no router leaves as it is (RFC 5082);
//! * it quotes a recently sent packet: by its sequence and acknowledgment numbers (TCP), or by a [`fingerprint`] of
//!   content that is known only on its path;
//! * its sequence number is new: higher than any of that port for this flow, or in the window before it and not yet
//!   received;
//! * the tag is valid, if a key is configured.
//!
//! # Marks
//!
//! A message of [`Kind::Marks`] reports the packets that the port has marked since its last message: one, the
//! segments of a super-packet, or, if messages are limited ([`Policy::every_ns`]), all packets for which none could
//! be sent. Some belong to other flows, but a flow's share of the messages equals its share of the marks.
//!
//! A source without echoes has no count of arrivals, and counts departures instead ([`Sender::self_clock`]): a packet
//! that has departed is unmarked unless a message reports it.
//!
//! # Notifications
//!
//! Instead of marking packets, a port can sample its queue ([`Sampling`]) and notify the source of the sampled
//! packet: [`Kind::Bcn`], [`Kind::Qcn`], to which the source reacts as in [`crate::reaction`]. In BCN, packets of a
//! limited flow carry a tag, which shows a port whose rate it may raise. Here the port stores which flows it has
//! slowed down ([`Quoted::tag`]): no packet field is needed or has to be restored, nobody can request messages by
//! tagging packets, and no port raises a rate that another has lowered.

use crate::{
    bcn,
    echo::{self, FeedbackDelta, Headroom, Refusal},
    fixed::GOLDEN,
    packet, qcn,
    siphash::siphash,
};

/// Version of the format, among those of [`crate::echo`].
pub const VERSION: u8 = 5;
/// Version of the format with a tag.
pub const VERSION_SIGNED: u8 = 6;
/// Length, bytes, without a tag.
pub const LEN: usize = 36;
/// TTL or hop limit of a message, from its port to its source.
pub const TTL: u8 = 255;

/// How marks get back to the source.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "text",
    derive(schemars::JsonSchema),
    schemars(inline, rename_all = "kebab-case")
)]
pub enum Feedback {
    /// In the packets, which receivers echo.
    #[default]
    Echo = 0,
    /// In messages of the port; nothing is written into packets.
    Backward = 1,
    /// Both ways.
    Both = 2,
}

impl Feedback {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Echo, Self::Backward, Self::Both];

    /// The name used in configuration and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Backward => "backward",
            Self::Both => "both",
        }
    }

    /// Whether marks are written into packets.
    #[must_use]
    pub const fn is_echoed(self) -> bool {
        !matches!(self, Self::Backward)
    }

    /// Whether marks are reported by messages.
    #[must_use]
    pub const fn is_backward(self) -> bool {
        !matches!(self, Self::Echo)
    }
}

/// Type of a message.
#[repr(u8)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// [`Message::feedback`] is the number of packets marked.
    #[default]
    Marks = 0,
    /// [`Message::feedback`] is [`bcn::Feedback::to_word`].
    Bcn = 1,
    /// [`Message::feedback`] is [`qcn::feedback`].
    Qcn = 2,
}

impl Kind {
    /// The largest number.
    pub const LAST: u8 = Self::Qcn as u8;
}

/// [`Message::flags`]: the packets are also marked, so that echoes count them again.
pub const IN_PACKETS: u8 = 1;

/// [`Message::flags`]: the quote is TCP's sequence number, and there is an acknowledgment number.
pub const BY_NUMBER: u8 = 2;

/// Maximum packets that a message can report.
pub const MOST_MARKS: u32 = 256;

/// One message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// IP protocol of the flow.
    pub protocol: u8,
    /// Source port of the packet (0: none).
    pub src_port: u16,
    /// Its destination port.
    pub dst_port: u16,
    /// Identifies the packet: TCP's sequence number, or for other protocols its [`fingerprint`].
    pub quote: u32,
    /// Running number of the port's messages: [`Point::mark`].
    pub sequence: u32,
    /// A [`Kind`] by number.
    pub kind: u8,
    /// [`IN_PACKETS`], [`BY_NUMBER`].
    pub flags: u8,
    /// Feedback, in the form given by [`Message::kind`].
    pub feedback: u32,
    /// Identifier of the port, unique in the network: [`Policy::point`].
    pub point: u64,
    /// The packet's acknowledgment number, if the quote is TCP's sequence number, else 0.
    pub acknowledgment: u32,
    /// Whether a tag follows.
    pub signed: bool,
}

impl Message {
    /// Encodes the message for the wire.
    #[inline(always)]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LEN] {
        let mut b = [0u8; LEN];
        b[0] = self.version();
        b[1] = self.protocol;
        b[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        b[4..6].copy_from_slice(&self.dst_port.to_be_bytes());
        b[8..12].copy_from_slice(&self.quote.to_be_bytes());
        b[12..16].copy_from_slice(&self.sequence.to_be_bytes());
        b[18] = self.kind;
        b[19] = self.flags;
        b[20..24].copy_from_slice(&self.feedback.to_be_bytes());
        b[24..32].copy_from_slice(&self.point.to_be_bytes());
        b[32..36].copy_from_slice(&self.acknowledgment.to_be_bytes());
        b
    }

    /// Decodes a message. `None`: another version.
    #[inline(always)]
    #[must_use]
    pub fn parse(b: &[u8; LEN]) -> Option<Self> {
        if !is_version(b[0]) {
            return None;
        }
        let word = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        Some(Self {
            protocol: b[1],
            src_port: u16::from_be_bytes([b[2], b[3]]),
            dst_port: u16::from_be_bytes([b[4], b[5]]),
            quote: word(8),
            sequence: word(12),
            kind: b[18],
            flags: b[19],
            feedback: word(20),
            point: (word(24) as u64) << 32 | word(28) as u64,
            acknowledgment: word(32),
            signed: b[0] == VERSION_SIGNED,
        })
    }

    /// Whether [`Message::quote`] is TCP's sequence number.
    #[inline(always)]
    #[must_use]
    pub const fn is_by_number(&self) -> bool {
        self.protocol == packet::protocol::TCP && self.flags & BY_NUMBER != 0
    }

    /// Whether the message is authentic, given its tag and addresses (as in [`Message::tag`]): as
    /// [`echo::Policy::accepts`].
    #[inline(always)]
    #[must_use]
    pub fn is_trusted(
        &self,
        policy: &echo::Policy,
        tag: u64,
        from: &[u8; 16],
        to: &[u8; 16],
    ) -> bool {
        // One call in a loop: LLVM would compile two calls to a function with its own stack frame.
        let (mut is_signed, mut n) = (false, 0);
        while n < policy.keys.len() {
            let accepted = n == 0 || policy.auth & echo::ACCEPT_SECOND != 0;
            let key = core::hint::black_box(&policy.keys)[n];
            is_signed |= accepted && self.signed && tag == self.tag(key, from, to);
            n += 1;
        }
        !policy.signs() || is_signed || (!self.signed && policy.auth & echo::ACCEPT_UNSIGNED != 0)
    }

    const fn version(&self) -> u8 {
        if self.signed { VERSION_SIGNED } else { VERSION }
    }

    /// The tag of this message to the source `to`, sent with the receiver's address `from`; IPv4 addresses mapped
    /// into IPv6.
    #[inline(always)]
    #[must_use]
    pub fn tag(&self, key: [u64; 2], from: &[u8; 16], to: &[u8; 16]) -> u64 {
        let flow = (self.version() as u64) << 56
            | (self.protocol as u64) << 48
            | (self.src_port as u64) << 32
            | (self.dst_port as u64) << 16
            | (self.kind as u64) << 8
            | self.flags as u64;
        let which = (self.quote as u64) << 32 | self.sequence as u64;
        let ([f0, f1], [t0, t1]) = (echo::words(from), echo::words(to));
        let feedback = (self.acknowledgment as u64) << 32 | self.feedback as u64;
        siphash(key, [f0, f1, t0, t1, flow, which, feedback, self.point])
    }
}

/// Whether a payload of the echoes' protocol with this first byte is a message.
#[inline(always)]
#[must_use]
pub const fn is_version(first: u8) -> bool {
    first == VERSION || first == VERSION_SIGNED
}

/// Hash of what is the same in a packet at its source and at a bridge. `header`: total length and identification of
/// IPv4, or the flow label of IPv6; `body`: eight bytes from offset 8 of the IP payload.
#[inline(always)]
#[must_use]
pub const fn fingerprint(header: u32, body: [u8; 8]) -> u32 {
    let mixed = (header as u64 | 1 << 32).wrapping_mul(GOLDEN) ^ u64::from_le_bytes(body);
    // A product carries upwards only: without folding, the last byte would change only the upper eight bits.
    let folded = mixed ^ mixed >> 32;
    (folded.wrapping_mul(GOLDEN) >> 32) as u32
}

/// Entries of [`crate::abi::name::QUOTED`]: recently sent packets of all of a source's flows that are not TCP.
pub const QUOTES: u32 = 1 << 16;

/// A packet in the table of recently sent packets: the index and value of its entry, without the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted {
    /// Index of its entry.
    pub place: u32,
    /// Upper half of its entry; the lower half is the time.
    tag: u32,
}

/// How long a packet may be quoted, in units of 2^[`QUOTE_SHIFT`] ns (4 ms): two seconds. The packets of the slowest
/// flow wait for about as long.
const QUOTE_AGE: u16 = 480;
const QUOTE_SHIFT: u32 = 22;

impl Quoted {
    /// For a packet with this quote, of a flow with this [`crate::flow::Key::hash`].
    #[inline(always)]
    #[must_use]
    pub const fn new(quote: u32, flow: u64) -> Self {
        let mixed = (quote as u64 ^ flow).wrapping_mul(GOLDEN);
        Self {
            place: (mixed >> 48) as u32 % QUOTES,
            tag: (mixed >> 16) as u32 & 0xffff_0000,
        }
    }

    /// The entry of a packet sent now.
    #[inline(always)]
    #[must_use]
    pub const fn entry(&self, now_ns: u64) -> u32 {
        // Never 0, the value of an empty entry.
        self.tag | (now_ns >> QUOTE_SHIFT) as u16 as u32 | (self.tag == 0) as u32
    }

    /// Whether an entry is that of this packet, which was recently sent.
    #[inline(always)]
    #[must_use]
    pub const fn is_sent(&self, entry: u32, now_ns: u64) -> bool {
        self.is_since(entry, now_ns, QUOTE_AGE)
    }

    /// For a flow that a port has slowed down, by [`Policy::point`] and [`crate::flow::Key::hash`], at any endpoint.
    #[inline(always)]
    #[must_use]
    pub const fn tag(point: u64, flow: u64) -> Self {
        Self::new((point.wrapping_mul(GOLDEN) >> 32) as u32, flow)
    }

    /// Whether an entry is that of this flow, which was slowed down at most [`TAG_NS`] ago.
    #[inline(always)]
    #[must_use]
    pub const fn is_tagged(&self, entry: u32, now_ns: u64) -> bool {
        self.is_since(entry, now_ns, TAG_AGE)
    }

    #[inline(always)]
    const fn is_since(&self, entry: u32, now_ns: u64, most: u16) -> bool {
        let age = ((now_ns >> QUOTE_SHIFT) as u16).wrapping_sub(entry as u16);
        entry != 0 && entry & 0xffff_0000 == self.tag && age <= most
    }
}

/// How long a port remembers a flow that it has slowed down.
pub const TAG_NS: u64 = 60 * SECOND_NS;
/// The same, in the units of [`QUOTE_AGE`].
const TAG_AGE: u16 = (TAG_NS >> QUOTE_SHIFT) as u16;

/// Message policy of a bridge's ports, in the layout that programs read.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// A [`Feedback`].
    pub feedback: u32,
    /// IP protocol number of messages.
    pub protocol: u32,
    /// Common part of the identifiers of the bridge's ports: all but the last byte, which is 0.
    pub bridge: u64,
    /// Minimum average time between two messages of a port.
    pub every_ns: u64,
    /// Burst tolerance: messages for this much time may be sent at once after a pause.
    pub burst_ns: u64,
    /// 1: messages are signed.
    pub signs: u32,
    #[doc(hidden)]
    pub _pad: u32,
    /// Key of the signature.
    pub key: [u64; 2],
    /// How its ports sample their queues.
    pub sampling: Sampling,
}

/// How a port samples its queue to notify sources.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    /// A [`Kind`]; [`Kind::Marks`]: nothing is sampled.
    pub kind: u32,
    /// Qeq: the target length of the queue.
    pub equilibrium_bytes: u32,
    /// W: weight of a change of the queue relative to its length.
    pub weight: u32,
    /// Bytes that each waiting packet counts as.
    pub packet_bytes: u32,
    /// Interval to the next sample: packets with BCN; with QCN bytes, if the last feedback was small
    /// ([`qcn::INTERVALS`]).
    pub interval: u32,
    /// Qsc: BCN stops sources if the queue is longer; 0: never.
    pub severe_bytes: u32,
    /// Maximum random change of the interval in either direction, as a fraction in 2^-32.
    pub jitter: u64,
}

/// A sample of a port's queue: [`Message::feedback`] in the lower half, the flags below in the upper one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample(pub u64);

impl Sample {
    /// It lowers the rate.
    pub const FALLS: u64 = 1 << 32;
    /// Also for sources that this port has not slowed down.
    pub const FOR_ALL: u64 = 1 << 33;

    /// Whether the source is notified. `tagged`: this port has slowed down the flow.
    #[inline(always)]
    #[must_use]
    pub const fn is_for(self, tagged: bool) -> bool {
        tagged || self.0 & Self::FOR_ALL != 0
    }
}

impl Policy {
    /// A policy with at most `messages_per_s` messages per second of each port.
    #[must_use]
    pub const fn new(feedback: Feedback, messages_per_s: u32) -> Self {
        let per_s = if messages_per_s == 0 {
            1
        } else {
            messages_per_s
        };
        let every_ns = SECOND_NS / per_s as u64;
        Self {
            feedback: feedback as u32,
            protocol: echo::PROTOCOL as u32,
            bridge: 0,
            every_ns,
            burst_ns: every_ns * BURST,
            signs: 0,
            _pad: 0,
            key: [0; 2],
            sampling: Sampling {
                kind: Kind::Marks as u32,
                equilibrium_bytes: 0,
                weight: 0,
                packet_bytes: 0,
                interval: 0,
                severe_bytes: 0,
                jitter: 0,
            },
        }
    }

    /// Whether a packet can be marked. `capable`: it is ECN-capable; `answerable`: a message can be sent about it.
    #[inline(always)]
    #[must_use]
    pub const fn is_markable(&self, capable: bool, answerable: bool) -> bool {
        if self.feedback == Feedback::Echo as u32 {
            capable
        } else if self.feedback == Feedback::Backward as u32 {
            answerable
        } else {
            capable || answerable
        }
    }

    /// The identifier of the port in a slot.
    #[inline(always)]
    #[must_use]
    pub const fn point(&self, slot: u8) -> u64 {
        self.bridge | slot as u64
    }
}

/// Default limit on a port's messages per second: enough for all packets of a port of 100 Mbit/s.
pub const MESSAGES_PER_S: u32 = 10_000;
/// Messages that a port may send at once after a pause.
pub const BURST: u64 = 64;

/// Nanoseconds in a second.
const SECOND_NS: u64 = 1_000_000_000;

/// A congestion point (IEEE 802.1Qau): the messages of one port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Theoretical time of the next message, at one per [`Policy::every_ns`].
    pub due_ns: u64,
    /// Marked packets that no message has reported yet.
    pub pending: u32,
    /// Number of the last message.
    pub sequence: u32,
    /// Messages sent.
    pub sent: u64,
    /// Messages that were held back by the limit.
    pub held: u64,
    /// Packets or bytes until the queue is sampled.
    pub until: u32,
    /// The queue at the last sample.
    pub sampled: bcn::CongestionPoint,
    /// Feedback of that sample, as in [`Message::feedback`], also where no message was sent.
    pub feedback: u32,
    #[doc(hidden)]
    pub _pad: u32,
    /// State of the random numbers for the intervals.
    pub random: u64,
}

impl Point {
    /// `n` packets are marked. Returns the number of marks to report and the number of the message, if the port may
    /// send one now: at most one per [`Policy::every_ns`], and as many as [`Policy::burst_ns`] permits after a pause
    /// (the generic cell rate algorithm, ITU-T I.371).
    #[inline(always)]
    pub fn mark(&mut self, policy: &Policy, n: u32, now_ns: u64) -> Option<(u32, u32)> {
        let marks = self.pending.saturating_add(n).min(MOST_MARKS);
        self.pending = marks;
        let sequence = self.next_message(policy, now_ns)?;
        self.pending = 0;
        Some((marks, sequence))
    }

    /// A packet of `n` segments and `bytes` enters the queue, where `waiting` packets wait, itself included. If the
    /// queue is sampled now, returns the sample for those sources that [`Sample::is_for`] selects.
    #[inline(always)]
    pub fn sample(
        &mut self,
        sampling: &Sampling,
        n: u32,
        bytes: u32,
        waiting: u32,
    ) -> Option<Sample> {
        let is_qcn = sampling.kind == Kind::Qcn as u32;
        self.until = self.until.saturating_sub(if is_qcn { bytes } else { n });
        if self.until != 0 {
            return None;
        }
        let queue = waiting.saturating_mul(sampling.packet_bytes);
        let before = self.sampled.sampled_bytes;
        let measured = (self.sampled.measure(sampling.equilibrium_bytes, queue))
            .saturated(sampling.equilibrium_bytes);
        // xorshift (Marsaglia 2003); never 0.
        let mut x = self.random | (self.random == 0) as u64;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random = x;
        let (interval, sample) = if is_qcn {
            let feedback =
                qcn::feedback(sampling.equilibrium_bytes, sampling.weight, queue, before);
            let value = feedback.unwrap_or(0);
            self.feedback = value;
            let relative = qcn::INTERVALS[value as usize >> 3 & 7] as u64;
            let interval = sampling.interval as u64 * relative / qcn::INTERVALS[0] as u64;
            let sample = feedback.map(|value| value as u64 | Sample::FALLS | Sample::FOR_ALL);
            (interval as u32, sample)
        } else {
            self.feedback = measured.to_word();
            (sampling.interval, sampling.bcn(measured, queue))
        };
        self.until = qcn::jittered(interval, sampling.jitter, (x >> 32) as u32).max(1);
        Some(Sample(sample?))
    }

    /// The number of a message, if the port may send one now. The first number is the time, so that a bridge that
    /// restarts does not repeat numbers: no port sends more than one message in 1.024 us.
    #[inline(always)]
    pub fn next_message(&mut self, policy: &Policy, now_ns: u64) -> Option<u32> {
        if self.due_ns > now_ns.saturating_add(policy.burst_ns) {
            self.held = self.held.wrapping_add(1);
            return None;
        }
        self.due_ns = self.due_ns.max(now_ns) + policy.every_ns;
        self.sequence = if self.sent == 0 {
            (now_ns >> 10) as u32
        } else {
            self.sequence.wrapping_add(1)
        };
        self.sent = self.sent.wrapping_add(1);
        Some(self.sequence)
    }
}

impl Sampling {
    /// The sample that BCN sends, if any.
    #[inline(always)]
    fn bcn(&self, measured: bcn::Feedback, queue_bytes: u32) -> Option<u64> {
        if self.severe_bytes != 0 && queue_bytes > self.severe_bytes {
            return Some(bcn::STOP as u64 | Sample::FALLS | Sample::FOR_ALL);
        }
        let word = measured.to_word();
        if word == bcn::STOP {
            return None;
        }
        let mut sample = word as u64;
        if measured.value(self.weight) < 0 {
            sample |= Sample::FALLS;
            if queue_bytes > self.equilibrium_bytes {
                sample |= Sample::FOR_ALL;
            }
        }
        Some(sample)
    }
}

/// Window of the accepted messages of a port, against replay (RFC 4303, section 3.4.3): the CPUs of a bridge send at
/// the same time, and messages may overtake each other.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSequence {
    /// Highest number.
    pub last: u32,
    /// Hash of the port's identifier; 0: none.
    pub point: u16,
    /// Bit n: the message n + 1 before the last one was accepted.
    pub window: u16,
}

/// A message is old if its number is less than this far behind the last one; otherwise the number has wrapped.
const OLD: u32 = 1 << 22;

impl PortSequence {
    /// The window with this message included. `None`: it was accepted before, or is too old to tell.
    #[inline(always)]
    fn after(self, point: u16, sequence: u32) -> Option<Self> {
        let window = self.window as u32;
        let (ahead, behind) = (
            sequence.wrapping_sub(self.last),
            self.last.wrapping_sub(sequence),
        );
        let (last, window) = if self.point != point {
            (sequence, u32::MAX)
        } else if behind >= OLD {
            let moved = if ahead > u16::BITS {
                0
            } else {
                (window << 1 | 1) << (ahead - 1)
            };
            (sequence, moved)
        } else if behind != 0 && behind <= u16::BITS && window >> (behind - 1) & 1 == 0 {
            (self.last, window | 1 << (behind - 1))
        } else {
            return None;
        };
        Some(Self {
            last,
            point,
            window: window as u16,
        })
    }
}

/// [`Report::flags`]: not a message but periodic work of the flow, such as counting its departed packets.
pub const BY_CLOCK: u32 = 0x100;
/// [`Report::flags`]: a message.
pub const BY_MESSAGE: u32 = 0x200;

/// The parts of a message that its flow must check: [`crate::flow::Flow::on_report`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// [`Message::point`]
    pub point: u64,
    /// [`Message::sequence`]
    pub sequence: u32,
    /// [`Message::feedback`]
    pub marks: u32,
    /// [`Message::quote`]
    pub quote: u32,
    /// [`BY_MESSAGE`] with [`Message::flags`], or [`BY_CLOCK`]; 0: neither, an ACK.
    pub flags: u32,
    /// [`Message::kind`]
    pub kind: u32,
    /// [`Message::acknowledgment`]
    pub acknowledgment: u32,
}

/// State of the messages for a flow, at its source.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Departed packets covered by deltas so far, modulo 2^32.
    pub counted: u32,
    /// Accepted messages, modulo 2^32; 0: none.
    pub messages: u32,
    /// Windows of the last ports that sent them.
    pub ports: [PortSequence; 2],
}

impl Sender {
    /// No message yet.
    #[must_use]
    pub const fn new() -> Self {
        let none = PortSequence {
            last: 0,
            point: 0,
            window: 0,
        };
        Self {
            counted: 0,
            messages: 0,
            ports: [none; 2],
        }
    }

    /// Processes a message of [`Kind::Marks`]. `departed`: packets that have left (modulo 2^32); `self_clocked`:
    /// neither echoes nor ACKs report arrivals ([`crate::flow::Flow::is_self_clocked`]).
    ///
    /// # Errors
    ///
    /// [`Refusal`]; then nothing has changed.
    #[inline(always)]
    pub fn on_message(
        &mut self,
        point: u64,
        sequence: u32,
        marks: u32,
        departed: u32,
        self_clocked: bool,
    ) -> Result<FeedbackDelta, Refusal> {
        if marks == 0 || marks > MOST_MARKS {
            return Err(Refusal::Impossible);
        }
        self.accept(point, sequence)?;
        let mut packets = marks;
        if self_clocked {
            packets = packets.max(self.count(departed));
        } else {
            self.counted = departed;
        }
        Ok(FeedbackDelta {
            packets,
            ce: marks,
            position: departed,
            headroom: Headroom::Unknown as u32,
            ..FeedbackDelta::default()
        })
    }

    /// Checks that a port's message is new.
    ///
    /// # Errors
    ///
    /// [`Refusal::Duplicate`]; then nothing has changed.
    #[inline(always)]
    pub fn accept(&mut self, point: u64, sequence: u32) -> Result<(), Refusal> {
        let point = (point.wrapping_mul(GOLDEN) >> 48) as u16 | 1;
        // On paths with more than two marking ports, all but the first share the second entry.
        let place = (self.ports[0].point != point && self.ports[0].point != 0) as usize;
        let Some(after) = self.ports[place].after(point, sequence) else {
            return Err(Refusal::Duplicate);
        };
        self.ports[place] = after;
        self.messages = self.messages.wrapping_add(1) | 1;
        Ok(())
    }

    /// The delta of a flow without reports of arrivals: packets departed since the last delta are unmarked.
    #[inline(always)]
    pub fn self_clock(&mut self, departed: u32) -> FeedbackDelta {
        FeedbackDelta {
            packets: self.count(departed),
            position: departed,
            ..FeedbackDelta::default()
        }
    }

    /// Packets that have departed since the last count.
    #[inline(always)]
    fn count(&mut self, departed: u32) -> u32 {
        let packets = departed.wrapping_sub(self.counted);
        self.counted = departed;
        // A larger step: this is not the count followed so far.
        if packets > MOST_COUNTED { 0 } else { packets }
    }
}

/// Maximum packets between two counts.
const MOST_COUNTED: u32 = 1 << 20;

/// Interval at which a self-clocked flow counts its departed packets.
pub const CLOCK_NS: u64 = 1_000_000;
