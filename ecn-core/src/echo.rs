//! The echo: the receiver tells the source how many packets came, and how many of them marked.
//!
//! HP's ACK is 20 bytes and carries one bit (G/T, Table I). Ours is 20 bytes too, the payload of an
//! IP protocol of its own, and carries running counts instead, so that a lost echo loses nothing:
//!
//! ```text
//!  0         1          2          4          6      8         12   16     18         20
//!  | version | protocol | src port | dst port | zero | packets | CE | zero | sequence |
//! ```
//!
//! All fields are big-endian. Addresses are those of the IP header, exchanged; ports are those of
//! the data packets. `packets` and `CE` count modulo 2^32 since the receiver began to count; of TCP, `packets` is the
//! sequence number of the data packet instead, which only those know who see the connection. An echo
//! is made of a clone of the data packet, whose transport checksum may still be left to a device:
//! the two zeros lie where UDP and TCP have it, and are ignored.
//!
//! With a key ([`Policy::keys`]) the version is [`VERSION_SIGNED`], and a tag of 8 bytes follows: [`siphash`] of addresses and
//! fields, big-endian. Who does not know the key can send no echo then, whatever else he knows. A copy of one that was
//! accepted is refused as before, by its number.

use crate::{ace, packet, siphash::siphash};

/// Version of the format.
pub const VERSION: u8 = 1;
/// Version of the format with a tag.
pub const VERSION_SIGNED: u8 = 2;
/// Length, bytes, without a tag.
pub const LEN: usize = 20;
/// Length of a tag, bytes.
pub const TAG_LEN: usize = 8;
/// IP protocol number unless configured otherwise: for experimentation, RFC 3692 and RFC 4727.
pub const PROTOCOL: u8 = 253;

/// One echo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Echo {
    /// IP protocol of the flow.
    pub protocol: u8,
    /// Source port of the data packets (0: none).
    pub src_port: u16,
    /// Destination port of the data packets.
    pub dst_port: u16,
    /// Packets received so far, modulo 2^32; of TCP, the sequence number of the one that this echo is made of.
    pub packets: u32,
    /// Packets received so far that were marked CE.
    pub ce: u32,
    /// Running number of this echo, modulo 2^16.
    pub sequence: u16,
    /// What bridges said of the way, in the ECN field of the echo itself.
    pub room: Room,
    /// Whether a tag follows.
    pub signed: bool,
}

/// Whether there is room on a flow's way for more.
///
/// A source cannot tell a free link from luck: marks have long gaps. The bridges know. An echo comes back
/// through the same ports, since bridges make a tree, and has no use for its own ECN field. A receiver that was marked not long
/// ago sends echoes with ECT(0), which asks; a port at which packets waited a short time ago
/// ([`Output::is_busy`](crate::shares::Output::is_busy)) makes it CE; one at which none did makes ECT(0) ECT(1). So ECT(1)
/// comes home if some bridge has seen the way, and none was busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Room {
    /// Nobody said, or it was not asked.
    #[default]
    Unknown = 0,
    /// A port is busy.
    Busy = 1,
    /// No port is.
    Free = 2,
}

impl Room {
    /// From the ECN field of an echo.
    #[inline(always)]
    #[must_use]
    pub const fn of(ecn: u8) -> Self {
        match ecn {
            packet::ECT_1 => Self::Free,
            packet::CE => Self::Busy,
            _ => Self::Unknown,
        }
    }

    /// ECN field of an echo that goes by a port with that of its way so far.
    #[inline(always)]
    #[must_use]
    pub const fn at_port(ecn: u8, busy: bool) -> u8 {
        match (ecn, busy) {
            (packet::NOT_ECT | packet::CE, _) => ecn,
            (_, true) => packet::CE,
            (_, false) => packet::ECT_1,
        }
    }
}

/// So long after a mark, echoes ask whether there is room.
pub const ASK_NS: u64 = 10_000_000_000;
/// How often TCP's receiver asks, whose marks need no echoes.
pub const ASK_EVERY_NS: u64 = 20_000_000;
/// Age of the last mark from which on it asks: while marks come, there is no room.
pub const ASK_AFTER_NS: u64 = 40_000_000;

impl Echo {
    /// The echo as it goes into the packet.
    #[inline(always)]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; LEN] {
        let mut b = [0u8; LEN];
        b[0] = self.version();
        b[1] = self.protocol;
        b[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        b[4..6].copy_from_slice(&self.dst_port.to_be_bytes());
        b[8..12].copy_from_slice(&self.packets.to_be_bytes());
        b[12..16].copy_from_slice(&self.ce.to_be_bytes());
        b[18..20].copy_from_slice(&self.sequence.to_be_bytes());
        b
    }

    /// Reads an echo. `None`: another version.
    #[inline(always)]
    #[must_use]
    pub fn parse(b: &[u8; LEN]) -> Option<Self> {
        if b[0] != VERSION && b[0] != VERSION_SIGNED {
            return None;
        }
        Some(Self {
            protocol: b[1],
            src_port: u16::from_be_bytes([b[2], b[3]]),
            dst_port: u16::from_be_bytes([b[4], b[5]]),
            packets: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
            ce: u32::from_be_bytes([b[12], b[13], b[14], b[15]]),
            sequence: u16::from_be_bytes([b[18], b[19]]),
            room: Room::Unknown,
            signed: b[0] == VERSION_SIGNED,
        })
    }

    const fn version(&self) -> u8 {
        if self.signed { VERSION_SIGNED } else { VERSION }
    }

    /// The tag of this echo on its way `from` the receiver `to` the source, IPv4 addresses mapped into IPv6. Not of its
    /// ECN field, which bridges change.
    #[inline(always)]
    #[must_use]
    pub fn tag(&self, key: [u64; 2], from: &[u8; 16], to: &[u8; 16]) -> u64 {
        let flow = (self.version() as u64) << 56
            | (self.protocol as u64) << 48
            | (self.src_port as u64) << 32
            | (self.dst_port as u64) << 16
            | self.sequence as u64;
        let counts = (self.packets as u64) << 32 | self.ce as u64;
        let ([f0, f1], [t0, t1]) = (words(from), words(to));
        siphash(key, [f0, f1, t0, t1, flow, counts])
    }
}

/// An address as two words.
#[inline(always)]
fn words(address: &[u8; 16]) -> [u64; 2] {
    let [a, b, c, d, e, f, g, h, low @ ..] = *address;
    [
        u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        u64::from_le_bytes(low),
    ]
}

/// [`Policy::auth`]: echoes are signed by the first key, and refused unless signed by an accepted one.
pub const SIGN: u32 = 1;
/// [`Policy::auth`]: the second key is accepted, too.
pub const ACCEPT_SECOND: u32 = 2;
/// [`Policy::auth`]: echoes without a tag are accepted, too.
pub const ACCEPT_UNSIGNED: u32 = 4;

/// How often a receiver echoes, as the programs read it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// At most one echo per this time, and one at once for every marked packet; 0: an echo per
    /// packet. Never by count alone: at a low rate a count is a long time.
    pub every_ns: u64,
    /// IP protocol number of echoes.
    pub protocol: u32,
    /// [`SIGN`], [`ACCEPT_SECOND`], [`ACCEPT_UNSIGNED`].
    pub auth: u32,
    /// Keys of 16 bytes, as little-endian words: the one that signs, and another that is accepted.
    pub keys: [[u64; 2]; 2],
}

impl Policy {
    /// Whether echoes wait for a time that a clock of 10 ms would miss.
    #[inline(always)]
    #[must_use]
    pub const fn is_timed(&self) -> bool {
        const LONG_NS: u64 = 1_000_000_000;
        self.every_ns != 0 && self.every_ns < LONG_NS
    }

    /// Whether echoes are signed.
    #[inline(always)]
    #[must_use]
    pub const fn signs(&self) -> bool {
        self.auth & SIGN != 0
    }

    /// Whether an echo may be believed that came `from` there `to` here, with the tag of a signed one.
    #[inline(always)]
    #[must_use]
    pub fn accepts(&self, e: &Echo, tag: u64, from: &[u8; 16], to: &[u8; 16]) -> bool {
        if !self.signs() {
            return true;
        }
        if !e.signed {
            return self.auth & ACCEPT_UNSIGNED != 0;
        }
        tag == e.tag(self.keys[0], from, to)
            || self.auth & ACCEPT_SECOND != 0 && tag == e.tag(self.keys[1], from, to)
    }

    /// Whether a packet is to be echoed, of a receiver whose last echo became due at `last_echo_ns`.
    #[inline(always)]
    #[must_use]
    pub const fn is_due(&self, last_echo_ns: u64, ce: bool, now_ns: u64) -> bool {
        ce || now_ns.wrapping_sub(last_echo_ns) >= self.every_ns
    }
}

/// [`Receiver::flags`]: a TCP connection that negotiated ECN; it is not echoed.
pub const NEGOTIATED: u32 = 1;
/// [`Receiver::flags`]: a TCP connection that did not; its ACKs say what was marked, see [`ace`].
pub const PLAIN: u32 = 2;
/// [`Receiver::flags`]: a TCP connection whose handshake was not seen. Its TCP was let see a mark:
/// the ACK of that packet has ECE if ECN was negotiated, RFC 3168 section 6.1.3.
pub const PROBING: u32 = 4;
/// [`Receiver::flags`]: its handshake was seen, and nothing sent since.
pub const FRESH: u32 = 8;
/// [`Receiver::flags`]: a SYN left for it; only the SYN-ACK that acknowledges this one says what the connection is.
pub const ASKED: u32 = 16;

/// Data that a SYN may carry (RFC 7413), so that its SYN-ACK acknowledges up to so many bytes more.
const SYN_DATA: u32 = 1460;

/// [`Receiver::count_tcp`]: take the mark off before TCP sees it.
pub const HIDE: u32 = 1;
/// [`Receiver::count_tcp`]: an echo must say what ACKs cannot.
pub const SAY: u32 = 2;
/// [`Receiver::count_tcp`]: it was settled ([`Receiver::is_settled`]) and is not any more.
pub const STIR: u32 = 4;

/// What a receiver keeps per flow. As in [`crate::flow::Flow`], what is seldom written is on the cache line of the key.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receiver {
    /// Echoes made.
    pub echoes: u32,
    /// [`NEGOTIATED`], [`PLAIN`], [`PROBING`], [`FRESH`].
    pub flags: u32,
    /// TCP's.
    pub ace: ace::Receiver,
    /// Of these, marked CE.
    pub ce: u64,
    /// Time of the last marked packet; 0: none came.
    pub last_ce_ns: u64,
    /// Time when the last echo became due.
    pub last_echo_ns: u64,
    /// Packets received.
    pub packets: u64,
    /// Bytes received, with link headers.
    pub bytes: u64,
    /// Time of the last packet.
    pub last_packet_ns: u64,
}

impl Receiver {
    /// Nothing received yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            packets: 0,
            ce: 0,
            bytes: 0,
            last_packet_ns: 0,
            last_echo_ns: 0,
            last_ce_ns: 0,
            echoes: 0,
            flags: 0,
            ace: ace::Receiver::new(),
        }
    }

    /// Counts a packet of `n` segments. Returns whether to echo now.
    #[inline(always)]
    pub fn count(&mut self, policy: &Policy, n: u32, bytes: u64, ce: bool, now_ns: u64) -> bool {
        self.tally(n, bytes, ce, now_ns);
        self.due(policy, ce, now_ns)
    }

    /// The totals of [`Receiver::count`]: the programs add to them without a lock.
    #[inline(always)]
    fn tally(&mut self, n: u32, bytes: u64, ce: bool, now_ns: u64) {
        self.packets = self.packets.wrapping_add(n as u64);
        self.bytes = self.bytes.wrapping_add(bytes);
        self.last_packet_ns = now_ns;
        if ce {
            self.ce = self.ce.wrapping_add(n as u64);
            self.last_ce_ns = now_ns;
        }
    }

    /// Whether an echo asks if there is room.
    #[inline(always)]
    #[must_use]
    pub const fn asks(last_ce_ns: u64, now_ns: u64) -> bool {
        last_ce_ns != 0 && now_ns.saturating_sub(last_ce_ns) < ASK_NS
    }

    /// Whether TCP's receiver is to ask now.
    #[inline(always)]
    #[must_use]
    pub const fn asks_now(last_ce_ns: u64, last_echo_ns: u64, now_ns: u64) -> bool {
        Self::asks(last_ce_ns, now_ns)
            && now_ns.wrapping_sub(last_ce_ns) >= ASK_AFTER_NS
            && now_ns.wrapping_sub(last_echo_ns) >= ASK_EVERY_NS
    }

    /// The rest of [`Receiver::count`].
    #[inline(always)]
    pub fn due(&mut self, policy: &Policy, ce: bool, now_ns: u64) -> bool {
        let due = policy.is_due(self.last_echo_ns, ce, now_ns);
        if due {
            self.last_echo_ns = now_ns;
        }
        due
    }

    /// A SYN leaves, whose first byte of data would be `next`. Whatever was known of an earlier connection is over.
    #[inline(always)]
    pub fn ask(&mut self, next: u32, now_ns: u64) {
        self.flags = ASKED;
        self.ace.probe_end = next;
        self.last_packet_ns = now_ns;
    }

    /// A SYN-ACK comes that acknowledges up to `ack`: whether it answers the SYN that left. Anybody can send others.
    #[inline(always)]
    #[must_use]
    pub const fn is_answer(&self, ack: u32) -> bool {
        self.flags & ASKED != 0 && ack.wrapping_sub(self.ace.probe_end) <= SYN_DATA
    }

    /// A TCP connection begins; `next` is the number of the first byte to come.
    #[inline(always)]
    pub fn begin(&mut self, negotiated: bool, next: u32, now_ns: u64) {
        self.flags = FRESH | if negotiated { NEGOTIATED } else { PLAIN };
        self.ace.begin(next);
        self.last_packet_ns = now_ns;
    }

    /// Counts a TCP super-packet of `n` segments of `segment` bytes, which ends before sequence number
    /// `end`. Returns [`HIDE`], [`SAY`] and [`STIR`], or-ed.
    #[inline(always)]
    pub fn count_tcp(
        &mut self,
        n: u32,
        bytes: u64,
        ce: bool,
        segment: u32,
        end: u32,
        now_ns: u64,
    ) -> u32 {
        self.tally(n, bytes, ce, now_ns);
        self.take_tcp(n, ce, segment, end, now_ns)
    }

    /// What [`Receiver::count_tcp`] does beside its totals.
    #[inline(always)]
    pub fn take_tcp(&mut self, n: u32, ce: bool, segment: u32, end: u32, now_ns: u64) -> u32 {
        if self.flags & NEGOTIATED != 0 {
            return 0;
        }
        let settled = Self::is_settled(self.flags, self.ace.unsaid);
        let say = self.ace.count(segment, if ce { n } else { 0 }, now_ns);
        let stir = if settled && ce { STIR } else { 0 };
        if self.flags & PLAIN != 0 {
            return if ce { HIDE } else { 0 } | if say { SAY } else { 0 } | stir;
        }
        if ce && self.flags & PROBING == 0 {
            self.flags |= PROBING;
            self.ace.probe_end = end;
        }
        stir
    }

    /// Whether [`Receiver::take_tcp`] would change nothing for a super-packet that is not marked.
    #[inline(always)]
    #[must_use]
    pub const fn is_quiet(unsaid: u32, longest: u32, segment: u32) -> bool {
        unsaid == 0 && segment <= longest
    }

    /// Whether [`Receiver::say`] would change nothing for a segment with payload, whose TCP has set no flags.
    #[inline(always)]
    #[must_use]
    pub const fn is_settled(flags: u32, unsaid: u32) -> bool {
        flags & (FRESH | PROBING) == 0 && unsaid == 0
    }

    /// Whether [`Receiver::say`] would only move [`ace::Receiver::ack`] on, for a segment without payload whose TCP has set
    /// no flags.
    #[inline(always)]
    #[must_use]
    pub const fn is_told(flags: u32, unsaid: u32) -> bool {
        flags & PROBING == 0 && unsaid == 0
    }

    /// The ACE of a TCP segment towards the source, which acknowledges up to `ack`; 0: its flags stay as
    /// they are. `data`: it has payload; `own`: its TCP has set flags itself. Also returns what is known of
    /// the connection.
    #[inline(always)]
    pub fn say(&mut self, data: bool, ack: u32, own: bool, now_ns: u64) -> (u8, u32) {
        let known = self.flags;
        if own {
            self.flags = NEGOTIATED;
        } else if known & PROBING != 0 && ack.wrapping_sub(self.ace.probe_end) as i32 > -1 {
            self.flags = PLAIN;
            // What was counted meanwhile is old.
            self.ace.begin(ack);
        } else if data {
            self.flags &= !FRESH;
        }
        if known & PLAIN == 0 || own {
            return (0, known);
        }
        if data {
            self.ace.wait(now_ns);
            return (0, known);
        }
        (self.ace.say(ack), known)
    }

    /// The echo to send now; each has its own number. Of TCP it says the marks that ACKs cannot, and leaves the others
    /// to them.
    #[inline(always)]
    pub fn echo(&mut self, protocol: u8, src_port: u16, dst_port: u16) -> Echo {
        self.echoes = self.echoes.wrapping_add(1);
        Echo {
            protocol,
            src_port,
            dst_port,
            packets: self.packets as u32,
            ce: if self.flags & PLAIN != 0 {
                self.ace.say_blocked()
            } else {
                self.ce as u32
            },
            sequence: self.echoes as u16,
            room: Room::Unknown,
            signed: false,
        }
    }
}

/// Why an echo was refused.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its number is not later than the last one's: a copy, or overtaken by a later one that
    /// already told the same.
    Duplicate = 1,
    /// It counts more packets than were sent, fewer than before, or more marks than packets: a
    /// forgery or a fault.
    Impossible = 2,
}

/// News of an accepted echo.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// Packets that the receiver counted since the last accepted echo.
    pub packets: u32,
    /// Of these, counted before, without their marks.
    pub late: u32,
    /// Of these, marked CE.
    pub ce: u32,
    /// Echoes that were sent in between and did not come.
    pub lost_echoes: u32,
    /// Up to which of the source's own packets the echo speaks, see [`Sender::position`].
    pub position: u32,
    /// Packets that left after that one.
    pub outstanding: u32,
    /// A [`Room`].
    pub room: u32,
    /// Of the unmarked ones, sent again, so that as many did not come, most likely.
    pub resent: u32,
}

/// Echoes per window of the loss estimate, see [`Sender::position`].
pub const LOSS_WINDOW: u32 = 8;
/// What a flow at full rate may have on its way at the quietest moment of a window, in packet times
/// of the link; more than that is loss.
pub const QUIET_PACKET_TIMES: u64 = 16;

/// So many echoes refused in a row, for long enough, and the receiver is taken to have begun anew
/// ([`Flow::hear_echo`](crate::flow::Flow::hear_echo)).
pub const REFUSALS: u16 = 32;

/// What a source keeps of its receiver's echoes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Receiver's running count of packets.
    pub packets: u32,
    /// Receiver's running count of marked packets.
    pub ce: u32,
    /// Running number of the last accepted echo.
    pub sequence: u16,
    /// Echoes refused since then.
    pub refused: u16,
    /// 0 until the first echo.
    pub synced: u32,
    /// The source's count of sent packets minus the receiver's count when the receiver was first
    /// heard: not 0 if it counted before the source did, or began anew.
    pub offset: u32,
    /// Up to which of the source's own departed packets the echoes speak (modulo 2^32, never back).
    ///
    /// The receiver counts what arrived, so its count lags behind the source's by every packet that
    /// was ever lost, and runs ahead by every departure that was not seen. Both stay in the
    /// difference of the counts for good; its lowest value ever holds nothing else if the flow once
    /// had nothing on its way. Without loss it is 0 from the first packet on. With loss the
    /// difference stays above it: when a whole window does so by more than can be on the way, the
    /// window's lowest value takes its place, and sinks to the true one at the next quiet moment.
    pub position: u32,
    /// Lowest difference of departed and received packets: the losses.
    pub floor: i32,
    /// The same in this window.
    pub least: i32,
    /// Echoes in this window.
    pub samples: u32,
    /// When the first of [`Sender::refused`] was, in units of 2^20 ns, modulo 2^32.
    pub refused_since: u32,
}

impl Sender {
    /// No echo seen yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            packets: 0,
            ce: 0,
            sequence: 0,
            refused: 0,
            synced: 0,
            offset: 0,
            position: 0,
            floor: 0,
            least: i32::MAX,
            samples: 0,
            refused_since: 0,
        }
    }

    /// Takes an echo. `sent`: packets that the source had handed to its device; `departed`: of
    /// these, packets that had left it (both modulo 2^32); `quiet`: packets of this flow that may be
    /// on their way at its quietest moment.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; then no count has changed.
    #[inline(always)]
    pub fn accept(
        &mut self,
        echo: &Echo,
        sent: u32,
        departed: u32,
        quiet: u32,
    ) -> Result<News, Refusal> {
        let step = echo.sequence.wrapping_sub(self.sequence);
        let packets = echo.packets.wrapping_sub(self.packets);
        let ce = echo.ce.wrapping_sub(self.ce);
        let unaccounted = sent.wrapping_sub(self.packets).wrapping_sub(self.offset);
        if self.synced == 0 || self.refused >= REFUSALS {
            return self.sync(echo, sent, departed, quiet);
        }
        if step == 0 || step > i16::MAX as u16 {
            self.refused += 1;
            return Err(Refusal::Duplicate);
        }
        if packets > unaccounted || ce > packets {
            self.refused += 1;
            return Err(Refusal::Impossible);
        }
        self.take(echo);
        let outstanding = self.observe(departed, quiet);
        let position = self.position;
        Ok(News {
            packets,
            late: 0,
            ce,
            lost_echoes: step as u32 - 1,
            position,
            outstanding,
            room: echo.room as u32,
            resent: 0,
        })
    }

    #[inline(always)]
    fn take(&mut self, echo: &Echo) {
        self.packets = echo.packets;
        self.ce = echo.ce;
        self.sequence = echo.sequence;
        self.refused = 0;
    }

    /// The first echo, or the first of a receiver that began anew. A receiver that began with this
    /// flow has counted no more than was sent, and its counts are news; of one that counted before,
    /// only the later counts are.
    #[inline(always)]
    fn sync(&mut self, echo: &Echo, sent: u32, departed: u32, quiet: u32) -> Result<News, Refusal> {
        let fresh = self.synced == 0 && echo.packets <= sent;
        if fresh && echo.ce > echo.packets {
            return Err(Refusal::Impossible);
        }
        self.take(echo);
        self.synced = 1;
        self.offset = if fresh {
            0
        } else {
            sent.wrapping_sub(echo.packets)
        };
        self.position = echo.packets.wrapping_add(self.offset);
        self.floor = 0;
        self.least = i32::MAX;
        self.samples = 0;
        let outstanding = self.observe(departed, quiet);
        let mut news = News {
            position: self.position,
            outstanding,
            room: echo.room as u32,
            ..News::default()
        };
        if fresh {
            news.packets = echo.packets;
            news.ce = echo.ce;
            news.lost_echoes = (echo.sequence as u32).saturating_sub(1);
        }
        Ok(news)
    }

    /// Moves [`Sender::position`] on; returns what is outstanding.
    #[inline(always)]
    fn observe(&mut self, departed: u32, quiet: u32) -> u32 {
        let received = self.packets.wrapping_add(self.offset);
        let difference = departed.wrapping_sub(received) as i32;
        if difference < self.least {
            self.least = difference;
        }
        if difference < self.floor {
            self.floor = difference;
        }
        self.samples += 1;
        if self.samples >= LOSS_WINDOW {
            if self.least.wrapping_sub(self.floor) > quiet as i32 {
                self.floor = self.least;
            }
            self.samples = 0;
            self.least = i32::MAX;
        }
        let position = received.wrapping_add(self.floor as u32);
        if position.wrapping_sub(self.position) as i32 > 0 {
            self.position = position;
        }
        let outstanding = departed.wrapping_sub(self.position) as i32;
        if outstanding > 0 {
            outstanding as u32
        } else {
            0
        }
    }
}
