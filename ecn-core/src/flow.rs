//! A flow, as a source's device knows it.

use crate::{abi, ace, echo, fixed, pacing, response};

/// Names a flow of one endpoint. Whole-key comparison: padding is part of it and always zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Source; IPv4 as `::ffff:a.b.c.d`.
    pub src: [u8; 16],
    /// Destination, likewise.
    pub dst: [u8; 16],
    /// Source port, 0 where the protocol has none.
    pub src_port: u16,
    /// Destination port, likewise.
    pub dst_port: u16,
    /// Endpoint number given by the agent: the same addresses may exist in two namespaces.
    pub endpoint: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Padding.
    pub _pad: u8,
}

/// [`Flow::flags`]: the TCP connection negotiated ECN; it keeps its own control.
pub const NEGOTIATED: u32 = 1;
/// [`Flow::flags`]: the TCP connection did not; the receiver's ACKs say what was marked.
pub const PLAIN: u32 = 2;

/// Packets from which on a flow has a rate of its own. Before, all such flows of an endpoint are one flow, the short
/// flows': their marks move its rate, and they share its class ([`Key::short`]). A round trip at full rate, or the first
/// windows of TCP: less than that nobody can be told to slow down in.
pub const SHORT_PACKETS: u64 = 32;

/// A flow that lasts longer than this is none of the short ones, unless it has sent next to nothing
/// ([`FEW_PACKETS`]): of hundreds of flows that share a port, each takes seconds for [`SHORT_PACKETS`].
pub const SHORT_NS: u64 = 250_000_000;

/// See [`SHORT_NS`].
pub const FEW_PACKETS: u64 = 4;

/// A flow whose receiver has said nothing for so long is held by nobody's rate.
pub const UNHEARD_NS: u64 = 1_000_000_000;

/// A flow that was silent for so long begins anew, [`Flow::begin`]; its class may be gone.
pub const IDLE_NS: u64 = 2_000_000_000;

/// A receiver that counted before the flow began, or begins anew ([`echo::REFUSALS`]), is believed when all echoes were
/// refused for so long, and for [`ANEW_BYTES`] at the flow's rate, while it waited for some: as long as another's echoes
/// come, it cannot take its place.
pub const ANEW_NS: u64 = 250_000_000;

/// Four packets that are on their way at the flow's rate. See [`ANEW_NS`].
pub const ANEW_BYTES: u64 = 4 * 1500;

/// TCP waits for so long at least before it sends again what nobody acknowledged (Linux).
pub const TIMEOUT_NS: u64 = 200_000_000;

/// So long after a mark, flows that begin have the rate of the one that was marked.
pub const SIBLING_NS: u64 = 500_000_000;

impl Key {
    /// The short flows of an endpoint, as one flow.
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
}

/// State of a flow at its source. Under the flow's lock, except for totals, [`Flow::last_sent_ns`], [`Flow::stirred`],
/// [`Flow::settled`], and [`ace::Sender::end`] where nothing else changes ([`Flow::is_decided`]).
///
/// Data and acknowledgements are often on two CPUs. So on the cache line of the key is what is seldom written, on the
/// next one what both write, and behind it what only acknowledgements do.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Minor number of the flow's class, from its first decrease on; 0: it has none. Whether the class is there says
    /// [`abi::name::IN_FORCE`].
    pub class: u32,
    /// [`NEGOTIATED`], [`PLAIN`].
    pub flags: u32,
    /// 1: it could not have a class, and is limited with the short flows.
    pub shared: u32,
    /// 1: it has a rate of its own: [`Flow::is_short`] no more.
    pub began: u32,
    /// Times, and one more, that the [`echo::Receiver`] of a TCP connection's other direction was settled and came
    /// to have something for this one to say or to know.
    pub stirred: u64,
    /// [`Flow::stirred`] when that was last seen settled: as long as they are the same it need not be looked at.
    /// Read before, written after, so that what happens meanwhile is not missed.
    pub settled: u64,
    /// TCP's ACKs seen.
    pub ace: ace::Sender,
    /// Packets handed to the device.
    pub sent_packets: u64,
    /// Bytes handed to the device, with link headers.
    pub sent_bytes: u64,
    /// Time of the last packet.
    pub last_sent_ns: u64,
    /// Response: inter-packet delay, end of the round.
    pub response: response::State,
    /// Echoes seen.
    pub echo: echo::Sender,
    /// Rate limit, bytes per second.
    pub rate_bytes_per_s: u64,
    /// Rate limit last told to the agent.
    pub told_bytes_per_s: u64,
    /// Time of the last accepted echo.
    pub last_echo_ns: u64,
    /// Time of the first packet.
    pub created_ns: u64,
    /// Packets that the receiver counted.
    pub acked_packets: u64,
    /// Of these, marked CE.
    pub marked_packets: u64,
    /// Marks ignored: one reaction per round.
    pub ignored_marks: u64,
    /// Decreases.
    pub decreases: u64,
    /// Departure time of the last packet at the last decrease: what departs later does so at the decreased rate.
    pub decreased_ns: u64,
    /// Cookie of the TCP socket that sends it, with [`abi::PACE`]; 0: none is known.
    pub socket: u64,
    /// 1: its TCP connection has ended.
    pub ended: u32,
    /// 1: the last decrease was sent to the agent, which has not confirmed yet that it is in force.
    pub pending: u32,
    /// Rate that the socket was last given, payload bytes per second; 0: none.
    pub socket_bytes_per_s: u32,
    /// Padding.
    pub _pad: u32,
    /// Departure times of its packets.
    pub pacer: pacing::Pacer,
    /// Padding: with its key and the kernel's own, an entry of the table is whole cache lines.
    pub _line: [u64; 1],
}

impl Flow {
    /// TCP data leaves: `bytes` from number `sequence` on, in segments of `segment` bytes. `known`: flags of
    /// the connection's [`echo::Receiver`]; `own_ecn`: its TCP made it ECN-capable, or set flags of ECN.
    /// Before [`Flow::sent_packets`] is counted on.
    #[inline(always)]
    pub fn send_tcp(&mut self, known: u32, own_ecn: bool, sequence: u32, bytes: u32, segment: u32) {
        if known & echo::FRESH != 0 {
            self.flags = 0;
            self.ace.begin(sequence, self.sent_packets as u32);
            self.echo.ce = 0;
        }
        let new = self.ace.send(sequence, bytes, segment);
        if own_ecn || known & echo::NEGOTIATED != 0 {
            self.flags = NEGOTIATED;
        } else if self.flags == 0 && (new || known & echo::PLAIN != 0) {
            // TCP that negotiated ECN makes all new data ECN-capable; only what it sends again is not,
            // RFC 3168 section 6.1.5.
            self.flags = PLAIN;
        }
    }

    /// Whether [`Flow::send_tcp`] would leave the flow as it is, but for [`ace::Sender::send`].
    #[inline(always)]
    #[must_use]
    pub const fn is_decided(flags: u32, known: u32, own_ecn: bool) -> bool {
        let plain = flags == PLAIN && !own_ecn && known & echo::NEGOTIATED == 0;
        known & echo::FRESH == 0 && (plain || flags == NEGOTIATED)
    }

    /// A packet of the flow comes by at its source.
    #[inline(always)]
    pub fn seen(&mut self, now_ns: u64) {
        self.last_sent_ns = now_ns;
        if self.created_ns == 0 {
            self.created_ns = now_ns;
        }
    }

    /// Whether a flow that has sent so many packets since `created_ns` is one of the short ones.
    #[inline(always)]
    #[must_use]
    pub const fn is_short(sent_packets: u64, created_ns: u64, now_ns: u64) -> bool {
        sent_packets < FEW_PACKETS
            || (sent_packets < SHORT_PACKETS && now_ns.saturating_sub(created_ns) < SHORT_NS)
    }

    /// Takes an echo. `every_ns`: [`echo::Policy::every_ns`].
    ///
    /// # Errors
    ///
    /// As [`echo::Sender::accept`].
    #[inline(always)]
    pub fn hear_echo(
        &mut self,
        echo: &echo::Echo,
        departed: u32,
        every_ns: u64,
        now_ns: u64,
    ) -> Result<echo::News, echo::Refusal> {
        let sent = self.sent_packets as u32;
        if self.flags & PLAIN == 0 {
            let at_rate_ns = (ANEW_BYTES * 1_000_000_000)
                .checked_div(self.rate_bytes_per_s)
                .unwrap_or(0);
            let patience_ns = ANEW_NS + at_rate_ns + every_ns;
            let now = (now_ns >> 20) as u32;
            // Of who has sent nothing since, nothing is to be heard.
            let waits = self.last_sent_ns > self.last_echo_ns;
            if !waits || self.echo.refused == 0 {
                self.echo.refused = 0;
                self.echo.refused_since = now;
            }
            let since = now.wrapping_sub(self.echo.refused_since) as u64;
            if since <= patience_ns >> 20 && self.echo.refused >= echo::REFUSALS {
                self.echo.refused = echo::REFUSALS - 1;
            }
            // Of more packets than were sent so far only a receiver that counted before can tell.
            let early = now_ns.wrapping_sub(self.created_ns) < patience_ns;
            if self.echo.synced == 0 && early && echo.packets > sent {
                return Err(echo::Refusal::Impossible);
            }
            return self.echo.accept(echo, sent, departed, self.quiet());
        }
        // Whoever does not see the connection's packets does not know its sequence numbers.
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
        Ok(echo::News {
            room: echo.room as u32,
            ..self.ace.take_echo(ce, sent, departed)
        })
    }

    /// Takes an accepted echo of a short flow: the short flows as one respond to it, [`Flow::of_short`].
    #[inline(always)]
    pub fn heard_short(&mut self, news: &echo::News, now_ns: u64) {
        self.acked_packets += (news.packets - news.late) as u64;
        self.marked_packets += news.ce as u64;
        self.last_echo_ns = now_ns;
    }

    /// The news of a short flow as news of all of them, which are counted in packets that were acknowledged: a round
    /// lasts for as many as are on their way of the one that was marked. What one of them sent again says nothing
    /// of the others' silence, see [`Flow::time_out`].
    #[inline(always)]
    #[must_use]
    pub fn of_short(&self, news: &echo::News) -> echo::News {
        let packets = news.packets - news.resent;
        let acked = (self.acked_packets as u32).wrapping_add(packets - news.late);
        echo::News {
            packets,
            position: acked,
            resent: 0,
            ..*news
        }
    }

    /// Takes an accepted echo, before [`Flow::respond`] does: whether TCP gave up what it had sent, and sent it again.
    /// `sibling_ipd`: what its siblings have, [`abi::Siblings::first_ipd`].
    #[inline(always)]
    pub fn time_out(
        &mut self,
        policy: &response::Policy,
        news: &echo::News,
        sibling_ipd: u64,
        now_ns: u64,
    ) {
        let silent = TIMEOUT_NS.wrapping_sub(now_ns.wrapping_sub(self.last_echo_ns)) >> 63;
        let again = (news.resent as u64).wrapping_neg() >> 63;
        self.response.time_out(policy, silent & again, sibling_ipd);
    }

    /// Takes an accepted echo: the response, with a round that lasts until the decreased rate is in
    /// force. `in_force`: see [`crate::abi::in_force`]; `departed`: packets that left the device.
    /// Returns whether the rate is worth a message to the agent.
    #[inline(always)]
    pub fn respond(
        &mut self,
        policy: &response::Policy,
        news: &echo::News,
        in_force: u64,
        departed: u32,
        link_bytes_per_s: u64,
        now_ns: u64,
    ) -> (response::Reaction, bool) {
        if self.pending != 0 && policy.round == response::Round::Packets as u32 {
            let confirmed = (in_force >> 32) as u32 == self.decreases as u32;
            let until = if confirmed { in_force as u32 } else { departed };
            self.response.extend_round(news.position, until);
            self.pending = !confirmed as u32;
        }
        let feedback = response::Feedback {
            packets: news.packets - news.resent,
            ce: news.ce,
            received: news.position,
            outstanding: news.outstanding,
        };
        self.response.hear_room(news.room, now_ns);
        let reaction = self.response.on_echo(policy, feedback, now_ns);
        self.acked_packets += (news.packets - news.late) as u64;
        self.marked_packets += news.ce as u64;
        self.ignored_marks += reaction.ignored as u64;
        self.decreases += reaction.decreased as u64;
        self.last_echo_ns = now_ns;
        if self.told_bytes_per_s == 0 {
            self.told_bytes_per_s = link_bytes_per_s;
        }
        self.rate_bytes_per_s = response::rate(self.response.ipd, link_bytes_per_s);
        // Who has no class needs none before it is limited.
        let tell = (self.class != 0 || reaction.decreased != 0)
            && (self.worth_telling()
                || (reaction.decreased != 0 && self.rate_bytes_per_s != self.told_bytes_per_s));
        if tell {
            self.told_bytes_per_s = self.rate_bytes_per_s;
            if reaction.decreased != 0 {
                self.pending = 1;
            }
        }
        (reaction, tell)
    }

    /// A flow begins to have a rate of its own, or comes back after [`IDLE_NS`]: at `ipd`, that of a sibling that is
    /// limited now, or at full rate.
    #[inline(always)]
    pub fn begin(&mut self, ipd: u64, link_bytes_per_s: u64) {
        self.response = response::State::new();
        self.response.ipd = ipd;
        self.rate_bytes_per_s = response::rate(ipd, link_bytes_per_s);
        self.told_bytes_per_s = self.rate_bytes_per_s;
        self.pending = 0;
    }

    /// Whether it is held below the link's rate.
    #[inline(always)]
    #[must_use]
    pub const fn is_limited(&self, link_bytes_per_s: u64) -> bool {
        self.rate_bytes_per_s != 0 && self.rate_bytes_per_s < link_bytes_per_s
    }

    /// A flow that nothing is known of: at full rate.
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
            told_bytes_per_s: 0,
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
            began: 0,
            _pad: 0,
            _line: [0; 1],
            socket_bytes_per_s: 0,
            stirred: 1,
            settled: 0,
        }
    }

    /// As [`Flow::respond`], for a flow paced by departure times: nobody has to be told.
    ///
    /// A decreased rate holds from the next packet that is stamped. Those stamped before leave at the
    /// old one, the last of them at `decreased_ns`: until then the round goes on with what departs.
    #[inline(always)]
    pub fn respond_paced(
        &mut self,
        policy: &response::Policy,
        news: &echo::News,
        departed: u32,
        link_bytes_per_s: u64,
        now_ns: u64,
    ) -> response::Reaction {
        let in_force = self.in_force_paced(departed, now_ns);
        let (reaction, _) =
            self.respond(policy, news, in_force, departed, link_bytes_per_s, now_ns);
        self.paced(&reaction, now_ns);
        reaction
    }

    /// What [`Flow::respond`] is to take for in force, for a flow paced by departure times.
    #[inline(always)]
    #[must_use]
    pub fn in_force_paced(&self, departed: u32, now_ns: u64) -> u64 {
        let pending = now_ns < self.decreased_ns;
        abi::in_force(
            (self.decreases as u32).wrapping_sub(pending as u32),
            departed,
        )
    }

    /// What is left to do after [`Flow::respond`], for a flow paced by departure times.
    #[inline(always)]
    pub fn paced(&mut self, reaction: &response::Reaction, now_ns: u64) {
        self.told_bytes_per_s = self.rate_bytes_per_s;
        if reaction.decreased != 0 {
            self.decreased_ns = self.pacer.last_ns;
            // Nothing waits: the round ends with what has departed.
            self.pending = (now_ns < self.decreased_ns) as u32;
        }
    }

    /// Packets that may be on their way at the flow's quietest moment, see
    /// [`echo::Sender::position`].
    #[inline(always)]
    #[must_use]
    pub fn quiet(&self) -> u32 {
        // At least one packet time: the divisor is never 0.
        let ipd = self.response.ipd.max(fixed::ONE);
        ((echo::QUIET_PACKET_TIMES << fixed::FRAC) / ipd) as u32
    }

    /// Whether the new rate is worth a message to the agent: every decrease, and
    /// increases from that size on. Smaller steps add up until they are.
    #[inline(always)]
    #[must_use]
    pub fn worth_telling(&self) -> bool {
        let (told, rate) = (self.told_bytes_per_s, self.rate_bytes_per_s);
        let difference = rate.abs_diff(told);
        difference != 0 && difference >= told >> 5
    }
}

/// How long an agent waits after it moved rates, so that decreases come together; any unit of time.
///
/// A loop's delay counts in packets of the link, and so does this; faster links get more of the
/// processor, within bounds of the agent's period.
#[must_use]
pub const fn pause(period: u64, packet_time: u64) -> u64 {
    const PACKETS: u64 = 6;
    let (least, most) = (period / 4, period / 2);
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
