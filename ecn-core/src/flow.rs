//! State of a flow at its source's device.

use crate::{
    ace, backward, echo,
    fixed::{self, GOLDEN, is_below},
    pacing::{self, nonzero_or},
    reaction, response,
};

/// Identifies a flow of one endpoint. Map keys are compared as bytes, so padding is always zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Source address; IPv4 as `::ffff:a.b.c.d`.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
    /// Source port, 0 where the protocol has none.
    pub src_port: u16,
    /// Destination port, 0 where the protocol has none.
    pub dst_port: u16,
    /// Endpoint number assigned by the agent: two namespaces may use the same addresses.
    pub endpoint: u16,
    /// IP protocol number.
    pub protocol: u8,
    #[doc(hidden)]
    pub _pad: u8,
}

/// Protocol number of keys that [`KeyMask`] has merged; it is reserved (IANA).
pub const ANY_PROTOCOL: u8 = 255;

/// How the keys of an endpoint's flows are merged, so that all flows with the same merged key share a rate limiter:
/// BCN's limiters per source and destination, per destination, and per link (Barrass 2006). All zero: keys stay as they
/// are.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyMask {
    /// Mask of each byte of the source address.
    pub src: u8,
    /// Mask of each byte of the destination address.
    pub dst: u8,
    /// Mask of each byte of the ports.
    pub ports: u8,
    /// Protocol of merged keys, [`ANY_PROTOCOL`]; 0: keys stay as they are.
    pub protocol: u8,
}

impl KeyMask {
    /// Keeps these addresses, no ports and no protocol.
    #[must_use]
    pub const fn addresses(src: bool, dst: bool) -> Self {
        Self {
            src: if src { u8::MAX } else { 0 },
            dst: if dst { u8::MAX } else { 0 },
            ports: 0,
            protocol: ANY_PROTOCOL,
        }
    }

    /// Whether flows share limiters.
    #[inline(always)]
    #[must_use]
    pub const fn merges(&self) -> bool {
        self.protocol != 0
    }

    /// All ones if each flow has its own limiter, else 0: without a branch, which would double the verifier's paths.
    #[inline(always)]
    #[must_use]
    pub const fn unmerged(&self) -> u32 {
        ((self.protocol as i32 - 1) >> 31) as u32
    }
}

/// [`Flow::flags`]: TCP negotiated ECN and is left to its own congestion control.
pub const NEGOTIATED: u32 = 1;
/// [`Flow::flags`]: TCP did not negotiate ECN; ACKs carry the CE count, see [`ace`].
pub const PLAIN: u32 = 2;

/// Packets after which a flow has its own rate. Until then all such flows of an endpoint form one aggregate of short
/// flows: their marks change its rate, and they share its class ([`Key::short`]). About a round trip at full rate, or
/// TCP's first windows; no feedback could slow a flow down sooner.
pub const SHORT_PACKETS: u64 = 32;

/// A flow older than this is not short unless it has sent fewer than [`FEW_PACKETS`]: where hundreds of flows share a
/// port, each takes seconds to send [`SHORT_PACKETS`].
pub const SHORT_NS: u64 = 250_000_000;

/// A flow with fewer packets is short regardless of its age, see [`SHORT_NS`].
pub const FEW_PACKETS: u64 = 4;

/// A flow without any feedback for this long is not limited with the short flows.
pub const NO_FEEDBACK_NS: u64 = 1_000_000_000;

/// A flow that sent nothing for this long starts over, [`Flow::start_own_rate`]; its class may have been removed.
pub const IDLE_NS: u64 = 2_000_000_000;

/// A receiver that started to count before the flow, or restarted ([`echo::REFUSALS`]), is accepted once all echoes
/// were refused for this long plus the time of `RESYNC_BYTES` at the flow's rate, while echoes were due. As long as
/// valid echoes arrive, forged ones cannot replace them.
pub const RESYNC_NS: u64 = 250_000_000;

/// Four packets in flight at the flow's rate. See [`RESYNC_NS`].
pub(crate) const RESYNC_BYTES: u64 = 4 * 1500;

/// Linux's minimum retransmission timeout (`TCP_RTO_MIN`).
pub const TIMEOUT_NS: u64 = 200_000_000;

/// For this long after a mark, new flows start at the rate of the marked flow.
pub const SIBLING_NS: u64 = 500_000_000;

impl Key {
    /// The aggregate of an endpoint's short flows.
    #[must_use]
    pub const fn short(endpoint: u16) -> Self {
        Self {
            src: [0; 16],
            dst: [0; 16],
            src_port: 0,
            dst_port: 0,
            endpoint,
            protocol: 0,
            _pad: 0,
        }
    }

    /// Replaces the key by that of its limiter. By masks instead of constants, which the verifier would keep apart from
    /// keys that were not merged.
    #[inline(always)]
    pub fn merge(&mut self, mask: &KeyMask) {
        let mut i = 0;
        while i < 16 {
            self.src[i] &= mask.src;
            self.dst[i] &= mask.dst;
            i += 1;
        }
        let ports = u16::from_ne_bytes([mask.ports; 2]);
        self.src_port &= ports;
        self.dst_port &= ports;
        self.protocol = mask.protocol;
    }

    /// Hash of the whole key.
    #[inline(always)]
    #[must_use]
    pub fn hash(&self) -> u64 {
        let ports = (self.src_port as u64) << 32 | (self.dst_port as u64) << 16;
        let mut hash = ports | (self.endpoint as u64) << 48 | self.protocol as u64;
        for address in [&self.src, &self.dst] {
            let [high, low] = echo::words(address);
            hash = (hash.wrapping_mul(GOLDEN) ^ high).rotate_left(29);
            hash = (hash.wrapping_mul(GOLDEN) ^ low).rotate_left(29);
        }
        hash.wrapping_mul(GOLDEN)
    }
}

/// Whether a flow with these [`Flow::flags`] has no feedback other than backward messages: no echo ever arrived, so
/// it is not [`echo::Sender::synced`], nor does TCP acknowledge. `echoes`: its endpoint processes echoes.
#[inline(always)]
#[must_use]
pub const fn is_self_clocked(flags: u32, synced: u32, echoes: bool) -> bool {
    !echoes || (flags & PLAIN == 0 && synced == 0)
}

/// State of a flow at its source. Protected by the flow's lock, except for totals, [`Flow::last_sent_ns`],
/// [`Flow::feedback_generation`], [`Flow::seen_generation`], and [`ace::Sender::end`] where nothing else changes
/// ([`Flow::is_ecn_decided`]).
///
/// Data and acknowledgements are often processed on two CPUs. The key's cache line therefore contains the fields that
/// are rarely written, the next one those that both write, and the rest those that only acknowledgements write.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Minor number of the flow's class, assigned at its first decrease; 0: none.
    /// [`abi::name::IN_FORCE`](crate::abi::name::IN_FORCE) shows whether the class exists yet.
    pub class: u32,
    /// [`NEGOTIATED`], [`PLAIN`].
    pub flags: u32,
    /// 1: no class was available, so it is limited with the short flows.
    pub shared: u32,
    /// 1: it has its own rate, see [`Flow::is_short`].
    pub has_own_rate: u32,
    /// Incremented when the [`echo::Receiver`] of a TCP connection's other direction has new feedback to encode in this
    /// direction; starts at 1.
    pub feedback_generation: u64,
    /// [`Flow::feedback_generation`] when that receiver last had nothing to encode: while both are equal, it need not be
    /// looked up. The generation is read before the look-up and stored after it, so that no change is missed.
    pub seen_generation: u64,
    /// State of a TCP connection's feedback.
    pub ace: ace::Sender,
    /// Packets handed to the device.
    pub sent_packets: u64,
    /// Bytes handed to the device, with link headers.
    pub sent_bytes: u64,
    /// Time of the last packet.
    pub last_sent_ns: u64,
    /// Rate response.
    pub response: response::State,
    /// State of the receiver's echoes.
    pub echo: echo::Sender,
    /// Rate limit, bytes per second.
    pub rate_bytes_per_s: u64,
    /// Rate limit of the last notification to the agent.
    pub notified_bytes_per_s: u64,
    /// Time of the last accepted echo.
    pub last_echo_ns: u64,
    /// Time of the first packet.
    pub created_ns: u64,
    /// Packets that the receiver counted.
    pub acked_packets: u64,
    /// Packets that the receiver counted with CE.
    pub marked_packets: u64,
    /// Marks ignored: one reaction per round.
    pub ignored_marks: u64,
    /// Decreases.
    pub decreases: u64,
    /// Departure time of the last packet that was queued at the last decrease: later ones leave at the decreased rate.
    pub decreased_ns: u64,
    /// Cookie of the TCP socket that sends it, with [`abi::PACE`](crate::abi::PACE); 0: unknown.
    pub socket: u64,
    /// 1: its TCP connection has sent a FIN or was reset.
    pub ended: u32,
    /// 1: the agent was notified of the last decrease and has not confirmed yet that it is in force. Only rounds that are
    /// counted in packets wait for that and reset it.
    pub pending: u32,
    /// Pacing rate that the socket was last given, payload bytes per second; 0: none.
    pub socket_bytes_per_s: u32,
    /// Largest packet handed to the device, a super-packet counted as one, bytes with link headers.
    pub largest_bytes: u32,
    /// Departure times of its packets.
    pub pacer: pacing::Pacer,
    /// Backward messages.
    pub backward: backward::Sender,
    /// Reaction to notifications. With this field, an entry of the hash table fills whole cache lines, including
    /// `struct htab_elem` and the key.
    pub reaction: reaction::Reaction,
}

impl Flow {
    /// Processes TCP data that is sent: `bytes` from `sequence` on, in segments of `segment` bytes. `known`: flags of
    /// the connection's [`echo::Receiver`]; `tcp_set_ecn`: TCP made the packet ECN-capable or set ECN flags. Must be
    /// called before [`Flow::sent_packets`] is updated.
    #[inline(always)]
    pub fn on_tcp_send(
        &mut self,
        known: u32,
        tcp_set_ecn: bool,
        sequence: u32,
        bytes: u32,
        segment: u32,
    ) {
        if known & echo::FRESH != 0 {
            self.flags = 0;
            self.ace.begin(sequence, self.sent_packets as u32);
            self.echo.ce = 0;
        }
        let new = self.ace.on_send(sequence, bytes, segment);
        if tcp_set_ecn || known & echo::NEGOTIATED != 0 {
            self.flags = NEGOTIATED;
        } else if self.flags == 0 && (new || known & echo::PLAIN != 0) {
            // TCP that negotiated ECN makes all new data ECN-capable, but not retransmissions: RFC 3168 section
            // 6.1.5.
            self.flags = PLAIN;
        }
    }

    /// Fast path: whether [`Flow::on_tcp_send`] changes nothing but what [`ace::Sender::on_send`] does.
    #[inline(always)]
    #[must_use]
    pub const fn is_ecn_decided(flags: u32, known: u32, tcp_set_ecn: bool) -> bool {
        let plain = flags == PLAIN && !tcp_set_ecn && known & echo::NEGOTIATED == 0;
        known & echo::FRESH == 0 && (plain || flags == NEGOTIATED)
    }

    /// Records the time of a packet.
    #[inline(always)]
    pub fn on_send(&mut self, now_ns: u64) {
        self.last_sent_ns = now_ns;
        if self.created_ns == 0 {
            self.created_ns = now_ns;
        }
    }

    /// Whether a flow with `sent_packets` since `created_ns` is short.
    #[inline(always)]
    #[must_use]
    pub fn is_short(sent_packets: u64, created_ns: u64, now_ns: u64) -> bool {
        let age_ns = fixed::saturating_sub(now_ns, created_ns);
        let few = is_below(sent_packets, FEW_PACKETS);
        let young = is_below(sent_packets, SHORT_PACKETS) & is_below(age_ns, SHORT_NS);
        (few | young) != 0
    }

    /// Processes an echo. `every_ns`: [`echo::Policy::every_ns`].
    ///
    /// # Errors
    ///
    /// As [`echo::Sender::on_echo`].
    #[inline(always)]
    pub fn on_echo(
        &mut self,
        echo: &echo::Echo,
        departed: u32,
        every_ns: u64,
        now_ns: u64,
    ) -> Result<echo::FeedbackDelta, echo::Refusal> {
        let sent = self.sent_packets as u32;
        if self.flags & PLAIN == 0 {
            let at_rate_ns = (RESYNC_BYTES * 1_000_000_000)
                .checked_div(self.rate_bytes_per_s)
                .unwrap_or(0);
            let patience_ns = RESYNC_NS + at_rate_ns + every_ns;
            let now = (now_ns >> 20) as u32;
            // No echo is due for a flow that has sent nothing since the last one.
            let waits = self.last_sent_ns > self.last_echo_ns;
            if !waits || self.echo.refused == 0 {
                self.echo.refused = 0;
                self.echo.refused_since = now;
            }
            let since = now.wrapping_sub(self.echo.refused_since) as u64;
            if since <= patience_ns >> 20 && self.echo.refused >= echo::REFUSALS {
                self.echo.refused = echo::REFUSALS - 1;
            }
            // Only a receiver that started to count earlier can report more packets than were sent.
            let early = now_ns.wrapping_sub(self.created_ns) < patience_ns;
            if self.echo.synced == 0 && early && echo.packets > sent {
                return Err(echo::Refusal::Impossible);
            }
            return self.echo.on_echo(echo, sent, departed, self.quiet());
        }
        // Off-path attackers do not know the connection's sequence numbers.
        if !self.ace.has_sent(echo.packets) {
            return Err(echo::Refusal::Impossible);
        }
        let step = echo.sequence.wrapping_sub(self.echo.sequence);
        if self.echo.synced != 0 && (step == 0 || step > i16::MAX as u16) {
            return Err(echo::Refusal::Duplicate);
        }
        self.echo.synced = 1;
        self.echo.sequence = echo.sequence;
        let ce = echo.ce.wrapping_sub(self.echo.ce);
        self.echo.ce = echo.ce;
        Ok(echo::FeedbackDelta {
            headroom: echo.headroom as u32,
            ..self.ace.on_echo(ce, sent, departed)
        })
    }

    /// [`is_self_clocked`]
    #[inline(always)]
    #[must_use]
    pub const fn is_self_clocked(&self, echoes: bool) -> bool {
        is_self_clocked(self.flags, self.echo.synced, echoes)
    }

    /// Processes a port's message, or the periodic count of departed packets ([`backward::BY_CLOCK`]). `departed`:
    /// packets that have left (modulo 2^32); `echoes`: its endpoint processes echoes.
    ///
    /// # Errors
    ///
    /// [`echo::Refusal`]; then nothing has changed.
    #[inline(always)]
    pub fn on_report(
        &mut self,
        report: &backward::Report,
        departed: u32,
        echoes: bool,
    ) -> Result<echo::FeedbackDelta, echo::Refusal> {
        let flags = report.flags;
        if flags & backward::BY_CLOCK != 0 {
            return Ok(self.backward.self_clock(departed));
        }
        if !self.has_sent_quoted(report) {
            return Err(echo::Refusal::Impossible);
        }
        if flags & backward::IN_PACKETS as u32 != 0 && echoes && self.is_echoed() {
            return Err(echo::Refusal::Duplicate);
        }
        let self_clocked = self.is_self_clocked(echoes);
        self.backward.on_message(
            report.point,
            report.sequence,
            report.marks,
            departed,
            self_clocked,
        )
    }

    /// Checks that a port's notification is about this flow, and new.
    ///
    /// # Errors
    ///
    /// [`echo::Refusal`]; then nothing has changed.
    #[inline(always)]
    pub fn accept_notification(&mut self, report: &backward::Report) -> Result<(), echo::Refusal> {
        if !self.has_sent_quoted(report) {
            return Err(echo::Refusal::Impossible);
        }
        self.backward.accept(report.point, report.sequence)
    }

    /// Whether the flow may have sent the packet that a message quotes by TCP's numbers; other quotes are checked before.
    #[inline(always)]
    const fn has_sent_quoted(&self, report: &backward::Report) -> bool {
        report.flags & backward::BY_NUMBER as u32 == 0
            || self
                .ace
                .has_sent_lately(report.quote, report.acknowledgment)
    }

    /// Reacts to an accepted notification, or advances its limiter ([`backward::BY_CLOCK`], at most once per
    /// [`backward::CLOCK_NS`] while it is limited). Returns whether to notify the agent of the rate.
    #[inline(always)]
    pub fn react(
        &mut self,
        policy: &reaction::Policy,
        report: &backward::Report,
        link_bytes_per_s: u64,
        now_ns: u64,
    ) -> bool {
        let sent = self.sent_bytes;
        if report.flags & backward::BY_CLOCK != 0 {
            self.reaction.advance(policy, sent, now_ns);
        } else {
            self.reaction.on_notification(policy, report, sent, now_ns);
        }
        let rate = self.reaction.rate().unwrap_or(link_bytes_per_s);
        if self.notified_bytes_per_s == 0 {
            self.notified_bytes_per_s = link_bytes_per_s;
        }
        let before = nonzero_or(self.rate_bytes_per_s, link_bytes_per_s);
        let lowered = rate < before;
        self.decreases += lowered as u64;
        self.rate_bytes_per_s = rate;
        self.response.ipd = response::ipd(rate, link_bytes_per_s);
        self.last_echo_ns = now_ns;
        let unlimited = rate >= link_bytes_per_s && rate != self.notified_bytes_per_s;
        let notify = (self.class != 0 || lowered)
            && (self.should_notify()
                || unlimited
                || (lowered && rate != self.notified_bytes_per_s));
        if notify {
            self.notified_bytes_per_s = rate;
        }
        notify
    }

    /// Whether its receiver reports the marks of packets: then messages about packets that are also marked are
    /// redundant.
    #[inline(always)]
    #[must_use]
    pub const fn is_echoed(&self) -> bool {
        if self.flags & PLAIN == 0 {
            self.echo.synced != 0
        } else {
            self.ace.decoded != 0
        }
    }

    /// Counts accepted feedback to which the flow does not respond: that of a short flow, whose aggregate does
    /// ([`Flow::aggregate_delta`]), or while its response is held.
    #[inline(always)]
    pub fn count_feedback(&mut self, delta: &echo::FeedbackDelta, now_ns: u64) {
        self.acked_packets += (delta.packets - delta.late) as u64;
        self.marked_packets += delta.ce as u64;
        self.last_echo_ns = now_ns;
    }

    /// Converts a short flow's delta into one of the aggregate, which counts acknowledged packets: a round lasts for
    /// as many as the marked flow has in flight. Retransmissions of one flow do not indicate a timeout of the others,
    /// see [`Flow::check_timeout`].
    #[inline(always)]
    #[must_use]
    pub fn aggregate_delta(&self, delta: &echo::FeedbackDelta) -> echo::FeedbackDelta {
        let packets = delta.packets - delta.retransmitted;
        let acked = (self.acked_packets as u32).wrapping_add(packets - delta.late);
        echo::FeedbackDelta {
            packets,
            position: acked,
            retransmitted: 0,
            ..*delta
        }
    }

    /// Checks accepted feedback for a retransmission timeout of TCP, before [`Flow::respond`]. `sibling_ipd`: the delay of
    /// its siblings, [`abi::Siblings::initial_ipd`](crate::abi::Siblings::initial_ipd).
    #[inline(always)]
    pub fn check_timeout(
        &mut self,
        policy: &response::Policy,
        delta: &echo::FeedbackDelta,
        sibling_ipd: u64,
        now_ns: u64,
    ) {
        let silent = TIMEOUT_NS.wrapping_sub(now_ns.wrapping_sub(self.last_echo_ns)) >> 63;
        let again = (delta.retransmitted as u64).wrapping_neg() >> 63;
        self.response
            .on_timeout(policy, silent & again, sibling_ipd);
    }

    /// The response to accepted feedback, with a round that lasts until the decreased rate is in force. `in_force`: see
    /// [`in_force`]; `departed`: packets that left the device. Also returns whether to notify the agent.
    #[inline(always)]
    pub fn respond(
        &mut self,
        policy: &response::Policy,
        delta: &echo::FeedbackDelta,
        in_force: u64,
        departed: u32,
        link_bytes_per_s: u64,
        now_ns: u64,
    ) -> (response::Reaction, bool) {
        if self.pending != 0 && policy.round == response::Round::Packets as u32 {
            let confirmed = (in_force >> 32) as u32 == self.decreases as u32;
            let until = if confirmed { in_force as u32 } else { departed };
            self.response.extend_round(delta.position, until);
            self.pending = !confirmed as u32;
        }
        let feedback = response::Feedback {
            packets: delta.packets - delta.retransmitted,
            ce: delta.ce,
            received: delta.position,
            outstanding: delta.outstanding,
        };
        // While rates are held, between two agents, there may be headroom that will not last.
        let is_held = policy.function == response::Function::None as u32;
        let headroom = if is_held {
            echo::Headroom::Busy as u32
        } else {
            delta.headroom
        };
        self.response.on_headroom(headroom, now_ns);
        let reaction = self.response.on_echo(policy, feedback, now_ns);
        self.acked_packets += (delta.packets - delta.late) as u64;
        self.marked_packets += delta.ce as u64;
        self.ignored_marks += reaction.ignored as u64;
        self.decreases += reaction.decreased as u64;
        self.last_echo_ns = now_ns;
        if self.notified_bytes_per_s == 0 {
            self.notified_bytes_per_s = link_bytes_per_s;
        }
        self.rate_bytes_per_s = response::rate(self.response.ipd, link_bytes_per_s);
        // A flow without a class needs none before it is limited.
        let notify = (self.class != 0 || reaction.decreased != 0)
            && (self.should_notify()
                || (reaction.decreased != 0 && self.rate_bytes_per_s != self.notified_bytes_per_s));
        if notify {
            self.notified_bytes_per_s = self.rate_bytes_per_s;
            if reaction.decreased != 0 {
                self.pending = 1;
            }
        }
        (reaction, notify)
    }

    /// Gives the flow its own rate, initially or after [`IDLE_NS`]: that of `ipd`, the delay of a limited sibling or
    /// of full rate.
    #[inline(always)]
    pub fn start_own_rate(&mut self, ipd: u64, link_bytes_per_s: u64) {
        self.response = response::State::new();
        self.reaction = reaction::Reaction::new();
        self.response.ipd = ipd;
        self.rate_bytes_per_s = response::rate(ipd, link_bytes_per_s);
        self.notified_bytes_per_s = self.rate_bytes_per_s;
        self.pending = 0;
    }

    /// Whether it is limited to less than the link's rate.
    #[inline(always)]
    #[must_use]
    pub const fn is_limited(&self, link_bytes_per_s: u64) -> bool {
        self.rate_bytes_per_s != 0 && self.rate_bytes_per_s < link_bytes_per_s
    }

    /// A new flow at full rate.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            response: response::State::new(),
            echo: echo::Sender::new(),
            ace: ace::Sender::new(),
            sent_packets: 0,
            sent_bytes: 0,
            acked_packets: 0,
            marked_packets: 0,
            ignored_marks: 0,
            decreases: 0,
            rate_bytes_per_s: 0,
            notified_bytes_per_s: 0,
            created_ns: 0,
            last_sent_ns: 0,
            last_echo_ns: 0,
            pacer: pacing::Pacer::new(),
            decreased_ns: 0,
            socket: 0,
            class: 0,
            pending: 0,
            flags: 0,
            shared: 0,
            ended: 0,
            has_own_rate: 0,
            largest_bytes: 0,
            backward: backward::Sender::new(),
            reaction: reaction::Reaction::new(),
            socket_bytes_per_s: 0,
            feedback_generation: 1,
            seen_generation: 0,
        }
    }

    /// As [`Flow::respond`], for a flow paced by departure times, which needs no agent.
    ///
    /// A decreased rate applies from the next packet that is stamped. Packets stamped before leave at the old rate,
    /// the last of them at `decreased_ns`; until then each departure extends the round.
    #[inline(always)]
    pub fn respond_paced(
        &mut self,
        policy: &response::Policy,
        delta: &echo::FeedbackDelta,
        departed: u32,
        link_bytes_per_s: u64,
        now_ns: u64,
    ) -> response::Reaction {
        let in_force = self.paced_in_force(departed, now_ns);
        let (reaction, _) =
            self.respond(policy, delta, in_force, departed, link_bytes_per_s, now_ns);
        self.after_paced_response(&reaction, now_ns);
        reaction
    }

    /// The `in_force` argument of [`Flow::respond`] for a flow paced by departure times.
    #[inline(always)]
    #[must_use]
    pub fn paced_in_force(&self, departed: u32, now_ns: u64) -> u64 {
        let pending = now_ns < self.decreased_ns;
        in_force(
            (self.decreases as u32).wrapping_sub(pending as u32),
            departed,
        )
    }

    /// Completes [`Flow::respond`] for a flow paced by departure times.
    #[inline(always)]
    pub fn after_paced_response(&mut self, reaction: &response::Reaction, now_ns: u64) {
        self.notified_bytes_per_s = self.rate_bytes_per_s;
        if reaction.decreased != 0 {
            self.decreased_ns = self.pacer.last_ns;
            // If nothing is queued, the round ends with the packets that have departed.
            self.pending = (now_ns < self.decreased_ns) as u32;
        }
    }

    /// Packets that may be in flight at the flow's quietest moment, see [`echo::Sender::position`].
    #[inline(always)]
    #[must_use]
    pub fn quiet(&self) -> u32 {
        // At least one packet time: the divisor is never 0.
        let ipd = self.response.ipd.max(fixed::ONE);
        ((echo::QUIET_PACKET_TIMES << fixed::FRAC) / ipd) as u32
    }

    /// Whether the rate has changed by 1/64 or more since the last notification. Smaller steps add up. As decreases
    /// are not delayed, an enforced rate is below the flow's by half of this on average: with 1/32 a port carried
    /// half a percentage point less; 1/128 gains a tenth of a point for a fifth more of the agent's CPU time.
    #[inline(always)]
    #[must_use]
    pub fn should_notify(&self) -> bool {
        let (notified, rate) = (self.notified_bytes_per_s, self.rate_bytes_per_s);
        let difference = rate.abs_diff(notified);
        difference != 0 && difference >= notified >> 6
    }
}

/// Entry of [`abi::name::IN_FORCE`](crate::abi::name::IN_FORCE): decrease number `decrease` is in force since packet
/// number `departed` of the class.
#[inline(always)]
#[must_use]
pub const fn in_force(decrease: u32, departed: u32) -> u64 {
    (decrease as u64) << 32 | departed as u64
}

/// How long an agent waits after changing rates, so that decreases are batched; in any unit of time.
///
/// The delay of a control loop counts relative to the link's packet time, and so does this pause: on faster links the
/// agent uses more CPU time, within bounds given by its period.
#[must_use]
pub const fn batch_delay(period: u64, packet_time: u64) -> u64 {
    const PACKETS: u64 = 12;
    let (least, most) = (period / 4, period);
    let pause = packet_time.saturating_mul(PACKETS);
    if pause < least {
        least
    } else if pause > most {
        most
    } else {
        pause
    }
}

impl Default for Flow {
    fn default() -> Self {
        Self::new()
    }
}
