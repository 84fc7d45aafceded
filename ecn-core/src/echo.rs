//! The echo: the receiver reports to the source how many packets arrived, and how many of them were marked.
//!
//! HP's ACK is 20 bytes and carries one bit (G/T, Table I). Ours is also 20 bytes, the payload of its own IP
//! protocol, and carries running counts instead, so that a lost echo loses no information:
//!
//! ```text
//!  0         1          2          4          6      8         12   16     18         20
//!  | version | protocol | src port | dst port | zero | packets | CE | zero | sequence |
//! ```
//!
//! All fields are big-endian. Addresses are those of the IP header, exchanged; ports are those of the data packets.
//! `packets` and `CE` count modulo 2^32 since the receiver started counting; for TCP, `packets` is the sequence
//! number of the data packet instead, which off-path attackers do not know. An echo is made from a clone of the data
//! packet, whose transport checksum may be left to the device: the two zero fields are at the offsets of the UDP and
//! TCP checksums, and are ignored.
//!
//! With a key ([`Policy::keys`]) the version is [`VERSION_SIGNED`] and a tag of 8 bytes follows: [`siphash`] of the
//! addresses and fields, big-endian. Without the key nobody can forge an echo; a replayed one is refused by its
//! sequence number, as before.

pub use crate::feedback::FeedbackDelta;
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
    /// Packets received so far, modulo 2^32; for TCP, the sequence number of the packet that this echo is made from.
    pub packets: u32,
    /// Packets received so far that were marked CE.
    pub ce: u32,
    /// Sequence number of this echo, modulo 2^16.
    pub sequence: u16,
    /// The bridges' report of headroom on the path, in the ECN field of the echo itself.
    pub headroom: Headroom,
    /// Whether a tag follows.
    pub signed: bool,
}

/// Whether a flow's path has room for a higher rate.
///
/// A source cannot tell an idle link from a gap between marks; the bridges can. An echo returns through the same ports,
/// since bridges form a tree, and does not need its own ECN field. A receiver of recent marks sends echoes with ECT(0)
/// as a request; a port where packets waited recently ([`Output::is_busy`](crate::shares::Output::is_busy)) sets CE, any
/// other port changes ECT(0) to ECT(1). ECT(1) arrives if at least one bridge answered and no port was busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Headroom {
    /// Not requested, or no bridge answered.
    #[default]
    Unknown = 0,
    /// Some port is busy.
    Busy = 1,
    /// No port is busy.
    Free = 2,
}

impl Headroom {
    /// Reads the ECN field of an echo.
    #[inline(always)]
    #[must_use]
    pub const fn of(ecn: u8) -> Self {
        match ecn {
            packet::ECT_1 => Self::Free,
            packet::CE => Self::Busy,
            _ => Self::Unknown,
        }
    }

    /// The ECN field of an echo after a port, given the field before it.
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

/// How long after a mark echoes request headroom.
pub const REQUEST_NS: u64 = 10_000_000_000;
/// Interval of the headroom requests of TCP receivers, which need no echoes otherwise.
pub const REQUEST_INTERVAL_NS: u64 = 20_000_000;
/// Delay of TCP receivers' first request after a mark; until then the port is busy.
pub const REQUEST_DELAY_NS: u64 = 40_000_000;

impl Echo {
    /// Encodes the echo for the wire.
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

    /// Decodes an echo. `None`: another version.
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
            headroom: Headroom::Unknown,
            signed: b[0] == VERSION_SIGNED,
        })
    }

    const fn version(&self) -> u8 {
        if self.signed { VERSION_SIGNED } else { VERSION }
    }

    /// The tag of this echo `from` the receiver `to` the source, IPv4 addresses mapped into IPv6. It does not cover the
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
pub(crate) fn words(address: &[u8; 16]) -> [u64; 2] {
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
    /// At most one echo per this interval, and one immediately for each marked packet; 0: an echo per packet. Not a
    /// packet count, which would be a long time at a low rate.
    pub every_ns: u64,
    /// IP protocol number of echoes.
    pub protocol: u32,
    /// [`SIGN`], [`ACCEPT_SECOND`], [`ACCEPT_UNSIGNED`].
    pub auth: u32,
    /// Keys of 16 bytes, as little-endian words: the signing key, and a second one that is accepted.
    pub keys: [[u64; 2]; 2],
}

impl Policy {
    /// Whether the interval needs a finer clock than one of 10 ms.
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

    /// Whether an echo is authentic, given its tag and addresses.
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

    /// Whether a packet is echoed if the last echo was due at `last_echo_ns`.
    #[inline(always)]
    #[must_use]
    pub const fn is_due(&self, last_echo_ns: u64, ce: bool, now_ns: u64) -> bool {
        ce || now_ns.wrapping_sub(last_echo_ns) >= self.every_ns
    }
}

/// [`Receiver::flags`]: TCP negotiated ECN; the connection is not echoed.
pub const NEGOTIATED: u32 = 1;
/// [`Receiver::flags`]: TCP did not negotiate ECN; ACKs carry the CE count, see [`ace`].
pub const PLAIN: u32 = 2;
/// [`Receiver::flags`]: the handshake was not seen, so one mark was passed on to TCP: the ACK of that packet has ECE
/// if ECN was negotiated, RFC 3168 section 6.1.3.
pub const PROBING: u32 = 4;
/// [`Receiver::flags`]: the handshake was seen, and nothing has been sent since.
pub const FRESH: u32 = 8;
/// [`Receiver::flags`]: a SYN was sent; only the SYN-ACK that acknowledges it decides whether ECN was negotiated.
pub const SYN_SENT: u32 = 16;

/// Most data in a SYN (RFC 7413), which its SYN-ACK acknowledges too.
const SYN_DATA: u32 = 1460;

/// [`Receiver::on_tcp_packet`]: clear CE before TCP sees it.
pub const CLEAR_CE: u32 = 1;
/// [`Receiver::on_tcp_packet`]: send an echo, since ACKs cannot carry the count.
pub const SEND_ECHO: u32 = 2;
/// [`Receiver::on_tcp_packet`]: there is new feedback to encode ([`Receiver::is_fast_data`] no longer holds).
pub const NEW_FEEDBACK: u32 = 4;

/// A receiver's state per flow. As in [`crate::flow::Flow`], fields that are rarely written share the key's cache line.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receiver {
    /// Echoes sent.
    pub echoes: u32,
    /// [`NEGOTIATED`], [`PLAIN`], [`PROBING`], [`FRESH`], [`SYN_SENT`].
    pub flags: u32,
    /// State of a TCP connection.
    pub ace: ace::Receiver,
    /// Packets received with CE.
    pub ce: u64,
    /// Time of the last packet with CE; 0: none.
    pub last_ce_ns: u64,
    /// Time at which the last echo was due.
    pub last_echo_ns: u64,
    /// Packets received.
    pub packets: u64,
    /// Bytes received, with link headers.
    pub bytes: u64,
    /// Time of the last packet.
    pub last_packet_ns: u64,
}

impl Receiver {
    /// A receiver that has not counted any packet.
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

    /// The totals of [`Receiver::count`], which kernel programs update without a lock.
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

    /// Whether an echo requests headroom.
    #[inline(always)]
    #[must_use]
    pub const fn requests_headroom(last_ce_ns: u64, now_ns: u64) -> bool {
        last_ce_ns != 0 && now_ns.saturating_sub(last_ce_ns) < REQUEST_NS
    }

    /// Whether a TCP receiver must send an echo only to request headroom.
    #[inline(always)]
    #[must_use]
    pub const fn headroom_request_due(last_ce_ns: u64, last_echo_ns: u64, now_ns: u64) -> bool {
        Self::requests_headroom(last_ce_ns, now_ns)
            && now_ns.wrapping_sub(last_ce_ns) >= REQUEST_DELAY_NS
            && now_ns.wrapping_sub(last_echo_ns) >= REQUEST_INTERVAL_NS
    }

    /// Whether an echo is due; if so, records its time. [`Receiver::count`] without the totals.
    #[inline(always)]
    pub fn due(&mut self, policy: &Policy, ce: bool, now_ns: u64) -> bool {
        let due = policy.is_due(self.last_echo_ns, ce, now_ns);
        if due {
            self.last_echo_ns = now_ns;
        }
        due
    }

    /// A SYN is sent; `next` is the sequence number after that of the SYN. Resets the state of an earlier connection.
    #[inline(always)]
    pub fn on_syn_sent(&mut self, next: u32, now_ns: u64) {
        self.flags = SYN_SENT;
        self.ace.probe_end = next;
        self.last_packet_ns = now_ns;
    }

    /// Whether a SYN-ACK that acknowledges up to `ack` answers the SYN that was sent; others may be forged.
    #[inline(always)]
    #[must_use]
    pub const fn acknowledges_syn(&self, ack: u32) -> bool {
        self.flags & SYN_SENT != 0 && ack.wrapping_sub(self.ace.probe_end) <= SYN_DATA
    }

    /// A TCP connection is established; `next` is the number of the first byte to arrive.
    #[inline(always)]
    pub fn begin(&mut self, negotiated: bool, next: u32, now_ns: u64) {
        self.flags = FRESH | if negotiated { NEGOTIATED } else { PLAIN };
        self.ace.begin(next);
        self.last_packet_ns = now_ns;
    }

    /// Counts a TCP super-packet of `n` segments of `segment` bytes that ends before sequence number `end`. Returns a
    /// bit mask of [`CLEAR_CE`], [`SEND_ECHO`] and [`NEW_FEEDBACK`].
    #[inline(always)]
    pub fn on_tcp_packet(
        &mut self,
        n: u32,
        bytes: u64,
        ce: bool,
        segment: u32,
        end: u32,
        now_ns: u64,
    ) -> u32 {
        self.tally(n, bytes, ce, now_ns);
        self.on_tcp_data(n, ce, segment, end, now_ns)
    }

    /// [`Receiver::on_tcp_packet`] without the totals.
    #[inline(always)]
    pub fn on_tcp_data(&mut self, n: u32, ce: bool, segment: u32, end: u32, now_ns: u64) -> u32 {
        if self.flags & NEGOTIATED != 0 {
            return 0;
        }
        let was_fast = Self::is_fast_data(self.flags, self.ace.pending);
        let send_echo = self.ace.count(segment, if ce { n } else { 0 }, now_ns);
        let new_feedback = if was_fast && ce { NEW_FEEDBACK } else { 0 };
        if self.flags & PLAIN != 0 {
            return if ce { CLEAR_CE } else { 0 }
                | if send_echo { SEND_ECHO } else { 0 }
                | new_feedback;
        }
        if ce && self.flags & PROBING == 0 {
            self.flags |= PROBING;
            self.ace.probe_end = end;
        }
        new_feedback
    }

    /// Fast path: whether [`Receiver::on_tcp_data`] is a no-op for an unmarked super-packet.
    #[inline(always)]
    #[must_use]
    pub const fn is_fast_receive(pending: u32, longest: u32, segment: u32) -> bool {
        pending == 0 && segment <= longest
    }

    /// Fast path: whether [`Receiver::encode`] is a no-op for a segment with payload on which TCP has set no ECN flags.
    #[inline(always)]
    #[must_use]
    pub const fn is_fast_data(flags: u32, pending: u32) -> bool {
        flags & (FRESH | PROBING) == 0 && pending == 0
    }

    /// Fast path: whether [`Receiver::encode`] only advances [`ace::Receiver::ack`], for a segment without payload on
    /// which TCP has set no ECN flags.
    #[inline(always)]
    #[must_use]
    pub const fn is_fast_ack(flags: u32, pending: u32) -> bool {
        flags & PROBING == 0 && pending == 0
    }

    /// Returns the ACE field for a TCP segment towards the source that acknowledges up to `ack` (0: its flags stay as
    /// they are), and the connection's previous flags. `data`: it has payload; `tcp_set_ecn`: TCP has set ECN flags
    /// itself.
    #[inline(always)]
    pub fn encode(&mut self, data: bool, ack: u32, tcp_set_ecn: bool, now_ns: u64) -> (u8, u32) {
        let known = self.flags;
        if tcp_set_ecn {
            self.flags = NEGOTIATED;
        } else if known & PROBING != 0 && ack.wrapping_sub(self.ace.probe_end) as i32 > -1 {
            self.flags = PLAIN;
            // What was counted meanwhile is stale.
            self.ace.begin(ack);
        } else if data {
            self.flags &= !FRESH;
        }
        if known & PLAIN == 0 || tcp_set_ecn {
            return (0, known);
        }
        if data {
            self.ace.on_data_sent(now_ns);
            return (0, known);
        }
        (self.ace.encode(ack), known)
    }

    /// Builds the next echo. For TCP it carries only the marks that ACKs cannot.
    #[inline(always)]
    pub fn echo(&mut self, protocol: u8, src_port: u16, dst_port: u16) -> Echo {
        self.echoes = self.echoes.wrapping_add(1);
        Echo {
            protocol,
            src_port,
            dst_port,
            packets: self.packets as u32,
            ce: if self.flags & PLAIN != 0 {
                self.ace.encode_blocked()
            } else {
                self.ce as u32
            },
            sequence: self.echoes as u16,
            headroom: Headroom::Unknown,
            signed: false,
        }
    }
}

/// Why an echo was refused.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Its sequence number is not after the last one's: a duplicate, or overtaken by an echo that already covers it.
    Duplicate = 1,
    /// It counts more packets than were sent, fewer than before, or more marks than packets: forged or faulty.
    Impossible = 2,
}

/// Echoes per window of the loss estimate, see [`Sender::position`].
pub const LOSS_WINDOW: u32 = 8;
/// Maximum that a flow at full rate may have in flight at the quietest moment of a window, in packet times of the
/// link; more is loss.
pub(crate) const QUIET_PACKET_TIMES: u64 = 16;

/// Consecutive echoes refused, over a long enough time, after which the receiver is considered restarted
/// ([`Flow::on_echo`](crate::flow::Flow::on_echo)).
pub const REFUSALS: u16 = 32;

/// State of a receiver's echoes at the source.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// Receiver's running count of packets.
    pub packets: u32,
    /// Receiver's running count of marked packets.
    pub ce: u32,
    /// Sequence number of the last accepted echo.
    pub sequence: u16,
    /// Echoes refused since.
    pub refused: u16,
    /// 0 until the first echo.
    pub synced: u32,
    /// The source's count of sent packets minus the receiver's count at the first echo: not 0 if the receiver counted
    /// before the source did, or restarted.
    pub offset: u32,
    /// The last of the source's own departed packets that the echoes cover (modulo 2^32, never decreases).
    ///
    /// The receiver counts arrivals, so its count lags behind the source's by all packets ever lost, and runs ahead
    /// by all departures missed. Both errors stay in the difference of the counts for good. Its lowest value contains
    /// nothing else if the flow once had nothing in flight; without loss it is 0 from the first packet on. After
    /// losses the difference stays above it: if it does so for a whole window, by more than can be in flight, the
    /// window's lowest value replaces it, and falls to the true one at the next quiet moment.
    pub position: u32,
    /// Lowest difference of departed and received packets: the losses.
    pub floor: i32,
    /// Lowest difference in this window.
    pub least: i32,
    /// Echoes in this window.
    pub samples: u32,
    /// Time of the first of [`Sender::refused`], in units of 2^20 ns, modulo 2^32.
    pub refused_since: u32,
}

impl Sender {
    /// A source without echoes yet.
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

    /// Processes an echo. `sent`: packets that the source had handed to its device; `departed`: those of them that had
    /// left it (both modulo 2^32); `quiet`: packets of this flow that may be in flight at its quietest moment.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; no count has changed then.
    #[inline(always)]
    pub fn on_echo(
        &mut self,
        echo: &Echo,
        sent: u32,
        departed: u32,
        quiet: u32,
    ) -> Result<FeedbackDelta, Refusal> {
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
        self.record(echo);
        let outstanding = self.observe(departed, quiet);
        let position = self.position;
        Ok(FeedbackDelta {
            packets,
            late: 0,
            ce,
            lost_echoes: step as u32 - 1,
            position,
            outstanding,
            headroom: echo.headroom as u32,
            retransmitted: 0,
        })
    }

    #[inline(always)]
    fn record(&mut self, echo: &Echo) {
        self.packets = echo.packets;
        self.ce = echo.ce;
        self.sequence = echo.sequence;
        self.refused = 0;
    }

    /// Processes the first echo of a receiver, or of one that restarted. A receiver that started with this flow has
    /// counted at most what was sent, and all of it is new; for one that started earlier, only later counts are new.
    #[inline(always)]
    fn sync(
        &mut self,
        echo: &Echo,
        sent: u32,
        departed: u32,
        quiet: u32,
    ) -> Result<FeedbackDelta, Refusal> {
        let fresh = self.synced == 0 && echo.packets <= sent;
        if fresh && echo.ce > echo.packets {
            return Err(Refusal::Impossible);
        }
        self.record(echo);
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
        let mut delta = FeedbackDelta {
            position: self.position,
            outstanding,
            headroom: echo.headroom as u32,
            ..FeedbackDelta::default()
        };
        if fresh {
            delta.packets = echo.packets;
            delta.ce = echo.ce;
            delta.lost_echoes = (echo.sequence as u32).saturating_sub(1);
        }
        Ok(delta)
    }

    /// Advances [`Sender::position`]; returns the packets outstanding.
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
