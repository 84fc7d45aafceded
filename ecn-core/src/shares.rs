//! Fairness at a queue: each source's share of an output, measured over some milliseconds.
//!
//! The papers mark every packet that waits for a congested output. On a bridge this affects the wrong flows: a 5
//! Mbit/s voice stream is marked like the ten greedy flows beside it, and a host that ignores marks takes bandwidth
//! from the others. So each output counts what it admits per source:
//!
//! ```text
//! epoch of an output:   8 ms, and 16 packets for each heavy source; at most 250 ms
//! at its end:          A <- (A + bytes of the epoch) / 2     of the output, and of each source
//! share of a source:   (A + bytes so far) / (the output's A + bytes so far)
//! heavy source:        A of at least half of the fair share
//! fair share:          mean of the heavy sources' shares
//! ```
//!
//! A source below 3/4 of the fair share is spared: its packets are not marked, and later packets are instead. So is one
//! below 7/8 while at most six times the threshold wait, and one below 1 while at most 5/2 of the threshold wait: then
//! sources with more are marked, until all have the same. Others are marked as without shares. A packet that cannot be
//! marked is dropped before it enters the queue if more than [`Policy::drop_threshold`] wait and its source has more than
//! 17/16 of the fair share, or if twice as many wait and its source has at least 7/8. Only admitted packets count, so a
//! source that is held back is measured by what it gets, not by what it sends. This is approximate fair dropping (Pan,
//! Breslau, Prabhakar, Shenker 2003), and RFC 3168 section 5, which expects drops where packets that are not ECN-capable
//! would be marked.
//!
//! A source is an input port with an IP address ([`ShareBy::Source`]), since many hosts may be behind one port, or
//! the input port alone ([`ShareBy::Port`]). During its first epoch its bytes also count for the newcomers of its
//! port, so that spoofed addresses together get one share.
//!
//! Everything is O(1): an average decays when its source is seen again. The sources of a bridge share one table; a source
//! without a slot is [unknown](Share::Unknown), treated as without shares, and never dropped. As in
//! [`marking`](crate::marking) the caller serialises calls and passes the time; the kernel's coarse clock is sufficient.

use crate::{
    fixed::{GOLDEN, opaque},
    marking::{Decision, Eligibility, Policy, Share, Switch},
    vqueue::{PacketMeta, Queues},
};

/// What counts as a source ([`Policy::shares`]).
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "text",
    derive(schemars::JsonSchema),
    schemars(inline, rename_all = "kebab-case")
)]
pub enum ShareBy {
    /// No shares are measured: all packets are marked alike, and none is dropped.
    Off = 0,
    /// The source IP address at an input port: many hosts may be behind one port.
    #[default]
    Source = 1,
    /// The input port.
    Port = 2,
}

impl ShareBy {
    /// Every value, the default first.
    pub const ALL: [Self; 3] = [Self::Source, Self::Port, Self::Off];

    /// The name used in configuration and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Source => "source",
            Self::Port => "port",
        }
    }
}

/// Minimum length of an epoch. At 100 Mbit/s 80 packets.
pub(crate) const EPOCH_NS: u64 = 8_000_000;
/// Maximum length of an epoch, however slow the output is.
pub(crate) const MAX_EPOCH_NS: u64 = 250_000_000;
/// Epochs that ended longer ago do not count.
pub const FORGET_NS: u64 = 1_000_000_000;
/// Packets of an epoch for each heavy source, so that the error of one packet is 6 %.
const PACKETS_PER_SOURCE: u32 = 16;
/// An epoch ends with this many bytes, whatever its length, so that the sum of two fits 32 bits.
const MAX_EPOCH_BYTES: u32 = 1 << 30;
/// Fractional bits of a share.
const FRAC: u32 = 24;
/// One in this many consecutive packets is admitted although it should be dropped: if the counters are wrong, its
/// departure repairs them.
const MAX_REFUSED_RUN: u32 = 32;
/// Consecutive packets at an empty output after which its sources are not measured until packets wait again.
const QUIET_ARRIVALS: u32 = 256;
/// Packets that must wait at an output for it to count as busy.
const WAITING: u32 = 1;
/// log2 of the unit of [`Output::busy_until`], 2^20 ns.
const BUSY_SHIFT: u32 = 20;
/// An output stays busy for the transmission time of this many packets after packets waited: at a slow port a queue of few
/// packets is empty for longer.
const BUSY_PACKETS: u64 = 80;
/// Added to [`BUSY_PACKETS`], divided by the square of the number of heavy sources: with few sources a mark reduces
/// the load more.
const BUSY_SOURCES: u64 = 2700;
/// Added to the busy time, in units of 2^20 ns.
const MIN_BUSY: u64 = 8;
/// Maximum busy time, in the same units.
const MAX_BUSY: u32 = 64;
/// A tick of the coarse clock at 250 Hz, rounded up, in the same units.
const CLOCK_TICK: u32 = 4;
/// Epochs after which an average has decayed to 0.
const DECAY_EPOCHS: u32 = 32;

/// A source, or the newcomers of a port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Hash of port, address and output; 0: a free slot.
    pub tag: u32,
    /// Epoch of its output in which it was last seen, modulo 2^16.
    pub epoch: u16,
    /// Slot of its output.
    pub output: u8,
    #[doc(hidden)]
    pub _pad: u8,
    /// Moving average of the bytes per epoch.
    pub average: u32,
    /// Bytes of this epoch.
    pub bytes: u32,
}

/// The sum of an output's sources, and its epoch.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// Start of the epoch.
    pub start_ns: u64,
    /// Number of the epoch.
    pub epoch: u32,
    /// Moving average of the bytes per epoch.
    pub average: u32,
    /// Bytes of this epoch.
    pub bytes: u32,
    /// Packets of this epoch.
    pub packets: u32,
    /// Fair share, `FRAC` bits; 0: unknown.
    pub fair: u32,
    /// Sources seen in this epoch.
    pub sources: u32,
    /// Heavy sources seen in this epoch.
    pub heavy: u32,
    /// Sum of their averages.
    pub heavy_bytes: u32,
    /// Heavy sources of the last epoch.
    pub last_heavy: u32,
    /// Consecutive packets that were dropped.
    pub refused: u32,
    /// Consecutive packets that found the output empty.
    pub quiet: u32,
    /// End of its busy time, in units of 2^20 ns; 0: packets never waited.
    pub busy_until: u32,
    /// `MAX_BUSY` minus the busy time after packets waited, in the same units.
    pub less_busy: u32,
    /// Time since packets waited, at the end of an epoch, in the same units.
    pub since_waited: u32,
}

impl Output {
    /// Whether packets waited here within the last 9 to 67 ms; the time is longer if the port is slow, or few sources
    /// fill it. Reported to echoes that request it, [`crate::echo::Headroom`].
    #[inline(always)]
    #[must_use]
    pub const fn is_busy(busy_until: u32, now_ns: u64) -> bool {
        busy_until
            .wrapping_sub((now_ns >> BUSY_SHIFT) as u32)
            .wrapping_sub(1)
            < MAX_BUSY
    }

    /// Updates the busy time from the number of packets in an epoch in which some waited, so that arrivals equal
    /// departures. Without branches, each of which would double the verifier's paths.
    #[inline(always)]
    fn measure_busy(&mut self, elapsed_ns: u64, now_ns: u64) {
        let heavy = self.last_heavy as u64;
        let packets = BUSY_PACKETS + BUSY_SOURCES / (heavy.wrapping_mul(heavy) | 1);
        let time = elapsed_ns.wrapping_mul(packets) / (self.packets as u64 | 1);
        let less = MAX_BUSY.saturating_sub((MIN_BUSY + (time >> BUSY_SHIFT)) as u32);
        let waited = self.busy_until.wrapping_sub(MAX_BUSY - self.less_busy);
        self.since_waited = ((now_ns >> BUSY_SHIFT) as u32).wrapping_sub(waited);
        let long_ago = CLOCK_TICK.wrapping_sub(opaque(&mut self.since_waited));
        // All bits set, or none.
        let keep = (long_ago as i32 >> 31) as u32;
        self.less_busy = self.less_busy & keep | less & !keep;
    }

    #[inline(always)]
    fn note_waiting(&mut self, now_ns: u64) {
        self.busy_until = ((now_ns >> BUSY_SHIFT) as u32).wrapping_add(MAX_BUSY - self.less_busy);
    }
}

/// The shares of a bridge with port slots below `N`, for `E` sources.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares<const N: usize, const E: usize> {
    /// Look-up of the current packet.
    pub lookup: Lookup,
    /// Outputs, by slot.
    pub outputs: [Output; N],
    /// Newcomers, by input and output; colliding pairs replace each other.
    pub newcomers: [Source; N],
    /// Sources, by hash.
    pub sources: [Source; E],
}

impl<const N: usize, const E: usize> Default for Shares<N, E> {
    fn default() -> Self {
        Self {
            lookup: Lookup::default(),
            outputs: [Output::default(); N],
            newcomers: [Source::default(); N],
            sources: [Source::default(); E],
        }
    }
}

/// Where the bytes of the current packet are counted. In memory and not in variables, since kernel programs have few
/// registers, and so that the verifier does not track the values.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    /// Slot of its source, [`NO_SLOT`] or [`UNCOUNTED`].
    pub slot: u32,
    /// Slot of its port's newcomers if it is one, or [`NO_SLOT`].
    pub newcomers: u32,
    /// The [`Share`] of its source.
    pub share: u32,
    #[doc(hidden)]
    pub _pad: u32,
    /// At a virtual queue: [`PacketMeta::ns_per_byte`].
    pub ns_per_byte: u64,
}

/// [`Lookup::slot`]: only the output counts its bytes.
pub const NO_SLOT: u32 = u32::MAX;
/// [`Lookup::slot`]: its bytes are not counted.
pub const UNCOUNTED: u32 = u32::MAX - 1;

/// The same reference, hidden from the compiler, which would otherwise keep previously computed addresses on the
/// stack; kernel programs have too little of it.
#[inline(always)]
fn opaque_ref<T>(slot: &mut T) -> &mut T {
    #[cfg(target_arch = "bpf")]
    return core::hint::black_box(slot);
    #[cfg(not(target_arch = "bpf"))]
    slot
}

impl Source {
    /// Advances to an epoch of its output. Returns whether the source was not yet seen in that epoch.
    #[inline(always)]
    fn advance_epoch(&mut self, epoch: u32) -> bool {
        let ended = (epoch as u16).wrapping_sub(self.epoch) as u32;
        let sum = self.average as u64 + self.bytes as u64;
        if ended == 0 {
            return false;
        }
        self.epoch = epoch as u16;
        self.average = (sum
            >> (if ended < DECAY_EPOCHS {
                ended
            } else {
                DECAY_EPOCHS
            })) as u32;
        self.bytes = 0;
        true
    }
}

impl Output {
    /// Ends the epoch if it is due.
    #[inline(always)]
    fn advance_epoch(&mut self, now_ns: u64) {
        let elapsed = now_ns.saturating_sub(self.start_ns);
        let enough = self.packets >= PACKETS_PER_SOURCE.saturating_mul(self.last_heavy);
        let over = elapsed >= EPOCH_NS && (enough || elapsed >= MAX_EPOCH_NS);
        if !over && self.bytes < MAX_EPOCH_BYTES {
            return;
        }
        self.measure_busy(elapsed, now_ns);
        if elapsed >= FORGET_NS {
            self.epoch = self.epoch.wrapping_add(DECAY_EPOCHS);
            self.average = 0;
            self.fair = 0;
            self.last_heavy = 0;
        } else {
            let all = self.heavy as u64 * self.average as u64;
            let of_heavy = ((self.heavy_bytes as u64) << FRAC).checked_div(all);
            let equal = (1u32 << FRAC).checked_div(self.sources);
            (self.fair, self.last_heavy) = match (of_heavy, equal) {
                (Some(fair), _) => (fair as u32, self.heavy),
                (None, Some(fair)) => (fair, self.sources),
                (None, None) => (0, 0),
            };
            self.epoch = self.epoch.wrapping_add(1);
            self.average = ((self.average as u64 + self.bytes as u64) >> 1) as u32;
        }
        self.start_ns = now_ns;
        self.bytes = 0;
        self.packets = 0;
        self.sources = 0;
        self.heavy = 0;
        self.heavy_bytes = 0;
    }

    /// The fair share in bytes after `more` bytes.
    #[inline(always)]
    fn fair_bytes(&self, more: u32) -> u64 {
        let all = self.average as u64 + self.bytes as u64 + more as u64;
        (self.fair as u64 * (all & 0xffff_ffff)) >> FRAC
    }

    /// The share of a source when a packet of `more` bytes is enqueued.
    #[inline(always)]
    fn share(&self, source: &Source, more: u32) -> Share {
        if self.fair == 0 || self.average == 0 {
            return Share::Unknown;
        }
        // Halfway between its share before and after this packet.
        let half = more / 2;
        let fair = self.fair_bytes(half);
        let its = source.average as u64 + source.bytes as u64 + half as u64;
        if its * 4 < fair * 3 {
            Share::Light
        } else if its * 8 < fair * 7 {
            Share::Below
        } else if its < fair {
            Share::Under
        } else if its * 16 <= fair * 17 {
            Share::At
        } else {
            Share::Over
        }
    }
}

impl<const N: usize, const E: usize> Shares<N, E> {
    const OK: () = assert!(
        N.is_power_of_two() && N <= 256 && E.is_power_of_two() && E <= 65536,
        "ports: a power of two up to 256, sources: up to 65536"
    );

    #[inline(always)]
    fn output(&mut self, o: u8) -> &mut Output {
        let () = Self::OK;
        &mut self.outputs[o as usize & (N - 1)]
    }

    #[inline(always)]
    fn source(&mut self, slot: u32) -> &mut Source {
        &mut self.sources[slot as usize & (E - 1)]
    }

    /// A packet enters a device's queue: [`Switch::on_enqueue`] with regard to shares.
    #[inline(always)]
    pub fn on_enqueue(
        &mut self,
        switch: &mut Switch<N>,
        policy: &Policy,
        a: &PacketMeta,
    ) -> Decision {
        let share = self.classify(switch, policy, a);
        let eligibility = self.eligibility(share, a);
        self.note_waiting(switch, a);
        let decision = switch.enqueue(policy, a.input, a.output, a.packets, eligibility, true);
        self.count(a, decision.drop != 0);
        decision
    }

    /// A packet enters a virtual queue: [`Queues::on_enqueue`] with regard to shares.
    #[inline(always)]
    pub fn on_enqueue_virtual(
        &mut self,
        queues: &mut Queues<N>,
        switch: &mut Switch<N>,
        policy: &Policy,
        a: &PacketMeta,
    ) -> Decision {
        self.lookup.ns_per_byte = a.ns_per_byte;
        let (free, full) = queues.prepare(switch, policy, a);
        let (queues, switch, this) = (opaque_ref(queues), opaque_ref(switch), opaque_ref(self));
        let share = this.classify(switch, policy, a);
        let eligibility = this.eligibility(share, a);
        let switch = opaque_ref(switch);
        this.note_waiting(switch, a);
        let decision = switch.enqueue(policy, a.input, a.output, a.packets, eligibility, free);
        if decision.drop == 0 {
            let a = PacketMeta {
                ns_per_byte: opaque_ref(&mut this.lookup).ns_per_byte,
                ..*a
            };
            queues.push(opaque_ref(switch), &a, free, full);
        }
        opaque_ref(this).count(a, decision.drop != 0);
        decision
    }

    /// A packet leaves a device's queue: [`Switch::on_dequeue_unchecked`] with regard to shares. Uses slots, source,
    /// packets and `markable` of `a`.
    #[inline(always)]
    pub fn on_dequeue(
        &mut self,
        switch: &mut Switch<N>,
        policy: &Policy,
        a: &PacketMeta,
    ) -> Decision {
        let mut eligibility = Eligibility::unknown(a.markable);
        if policy.mark_at == crate::marking::MarkAt::Departure as u32 {
            eligibility.share = self.share(policy, a) as u32;
        }
        switch.dequeue(policy, a.input, a.output, a.packets, eligibility)
    }

    /// The share of a packet's source, without counting the packet.
    #[inline(always)]
    pub fn share(&mut self, policy: &Policy, a: &PacketMeta) -> Share {
        if policy.shares == ShareBy::Off as u32 {
            return Share::Unknown;
        }
        let (tag, first) = Self::hash(policy, a);
        let is_it = |s: &Source| s.tag == tag && s.output == a.output;
        let mut found = *self.source(first);
        if !is_it(&found) {
            found = *self.source(first ^ 1);
        }
        if !is_it(&found) {
            return Share::Unknown;
        }
        let output = self.output(a.output);
        found.advance_epoch(output.epoch);
        output.share(&found, 0)
    }

    /// Resets the slot of port `p`, which was removed.
    #[inline(always)]
    pub fn remove_port(&mut self, p: u8) {
        let output = self.output(p);
        *output = Output {
            epoch: output.epoch.wrapping_add(DECAY_EPOCHS),
            ..Output::default()
        };
    }

    #[inline(always)]
    fn eligibility(&mut self, share: Share, a: &PacketMeta) -> Eligibility {
        self.lookup.share = share as u32;
        Eligibility {
            share: opaque(&mut self.lookup.share),
            markable: a.markable,
            droppable: a.droppable
                && self.outputs[a.output as usize & (N - 1)].refused < MAX_REFUSED_RUN - 1,
        }
    }

    /// A source's tag and first slot.
    #[inline(always)]
    fn hash(policy: &Policy, a: &PacketMeta) -> (u32, u32) {
        let address = if policy.shares == ShareBy::Port as u32 {
            0
        } else {
            a.source
        };
        let name = address as u64 | (a.input as u64) << 32 | (a.output as u64) << 40;
        let hash = (name ^ (name >> 15)).wrapping_mul(GOLDEN);
        // Only the highest bits depend on the whole name.
        ((hash >> 16) as u32 | 1, (hash >> 48) as u32)
    }

    /// Looks up or adds the source of a packet; returns its share.
    #[inline(always)]
    fn classify(&mut self, switch: &Switch<N>, policy: &Policy, a: &PacketMeta) -> Share {
        self.lookup.slot = UNCOUNTED;
        self.lookup.newcomers = NO_SLOT;
        if policy.shares == ShareBy::Off as u32 || !policy.marks() {
            return Share::Unknown;
        }
        let ahead = switch.ports[a.output as usize & (N - 1)].cnt1;
        let output = self.output(a.output);
        output.quiet = if ahead > 0 {
            0
        } else {
            output.quiet.saturating_add(1)
        };
        if output.quiet > QUIET_ARRIVALS {
            return Share::Unknown;
        }
        output.advance_epoch(a.now_ns);
        let epoch = output.epoch;
        let (tag, first) = Self::hash(policy, a);
        let is_it = |s: &Source| s.tag == tag && s.output == a.output;
        let mut slot = first;
        if !is_it(self.source(slot)) {
            slot = first ^ 1;
        }
        if !is_it(self.source(slot)) {
            slot = if self.is_free(first, a.now_ns) {
                first
            } else if self.is_free(first ^ 1, a.now_ns) {
                first ^ 1
            } else {
                self.lookup.slot = NO_SLOT;
                return Share::Unknown;
            };
            *self.source(slot) = Source {
                tag,
                output: a.output,
                // Not seen in this epoch.
                epoch: epoch.wrapping_sub(DECAY_EPOCHS) as u16,
                ..Source::default()
            };
        }
        let first_of_epoch = self.source(slot).advance_epoch(epoch);
        let source = *self.source(slot);
        let output = self.output(a.output);
        if first_of_epoch {
            output.sources += 1;
            let average = output.average as u64;
            if source.average > 0
                && (source.average as u64) << (FRAC + 1) >= output.fair as u64 * average
            {
                output.heavy += 1;
                output.heavy_bytes = output.heavy_bytes.saturating_add(source.average);
            }
        }
        let mut share = output.share(&source, a.bytes);
        self.lookup.slot = slot;
        if source.average == 0 && policy.shares == ShareBy::Source as u32 {
            let among = (a.input as u32).wrapping_add(a.output as u32 * 37) & (N as u32 - 1);
            let newcomers = &mut self.newcomers[among as usize];
            let tag = a.input as u32 | 0x100;
            if newcomers.tag != tag || newcomers.output != a.output {
                *newcomers = Source {
                    tag,
                    output: a.output,
                    epoch: epoch as u16,
                    ..Source::default()
                };
            }
            newcomers.advance_epoch(epoch);
            // The newcomers together have at least the share of this one.
            share = self.outputs[a.output as usize & (N - 1)].share(newcomers, a.bytes);
            self.lookup.newcomers = among;
        }
        share
    }

    /// Whether a slot may be reused: it is free, its source was seen neither in this epoch nor in the last one, or in
    /// the last one for the first time, or its output was idle.
    #[inline(always)]
    fn is_free(&mut self, slot: u32, now_ns: u64) -> bool {
        let Source {
            tag,
            epoch,
            output,
            average,
            ..
        } = *self.source(slot);
        let output = self.output(output);
        let ended = (output.epoch as u16).wrapping_sub(epoch);
        tag == 0
            || ended > 1
            || (ended == 1 && average == 0)
            || now_ns.saturating_sub(output.start_ns) >= FORGET_NS
    }

    /// Restarts an output's busy time if packets wait there.
    #[inline(always)]
    fn note_waiting(&mut self, switch: &Switch<N>, a: &PacketMeta) {
        let o = a.output as usize & (N - 1);
        if switch.ports[o].cnt1 >= WAITING {
            self.outputs[o].note_waiting(a.now_ns);
        }
    }

    /// Counts the bytes of an admitted packet, or a refused packet.
    #[inline(always)]
    fn count(&mut self, a: &PacketMeta, refused: bool) {
        let lookup = self.lookup;
        if lookup.slot == UNCOUNTED {
            return;
        }
        let output = self.output(a.output);
        if refused {
            output.refused += 1;
            return;
        }
        output.refused = 0;
        output.bytes = output.bytes.saturating_add(a.bytes);
        output.packets = output.packets.saturating_add(a.packets);
        if lookup.slot != NO_SLOT {
            let source = self.source(lookup.slot);
            source.bytes = source.bytes.saturating_add(a.bytes);
        }
        if lookup.newcomers != NO_SLOT {
            let newcomers = &mut self.newcomers[lookup.newcomers as usize & (N - 1)];
            newcomers.bytes = newcomers.bytes.saturating_add(a.bytes);
        }
    }
}
