//! Who fills a queue: what each source has of an output, measured over some milliseconds.
//!
//! The papers mark every packet that waits for a congested output. On a bridge that punishes the wrong ones: a
//! 5 Mbit/s voice stream gets the marks of the ten greedy flows beside it, and of a host that does not
//! answer marks at all, the others pay for what it takes. So each output keeps, per source, what it let in:
//!
//! ```text
//! epoch of an output:   8 ms, and 16 packets for each source that wants its share; at most 250 ms
//! at its end:          A <- (A + bytes of the epoch) / 2     of the output, and of each source
//! share of a source:   (A + bytes so far) / (the output's A + bytes so far)
//! heavy source:        A of at least half of the fair share
//! fair share:          mean of the heavy sources' shares
//! ```
//!
//! A source of less than 3/4 of the fair share is spared: its packets are not marked, and the marks go to the next
//! ones. So is one of less than 7/8, while at most six times the threshold wait, and one of less than all of it, while at
//! most 5/2 of the threshold wait: then those that have more take the marks, until all have the same. The others are marked when their turn comes, as always. What cannot be marked is
//! dropped, before it enters the queue, where more than [`Policy::drop_threshold`] packets wait and its source has more
//! than 17/16 of the fair share, or where twice as many wait and it is not below 7/8. Only what is let in counts, so a
//! source that is held back this way has what it gets and not what it sends. That what fills the queue is dropped, by
//! its share, is approximate fair dropping (Pan, Breslau, Prabhakar, Shenker 2003) and RFC 3168
//! section 5, which expects drops where packets that are not ECN-capable would be marked.
//!
//! A source is an input port with an IP address ([`By::Source`]), since many hosts come by one port from another
//! bridge, or the input port alone ([`By::Port`]). Until it has been there for an epoch, what it sends
//! counts for its port's newcomers together as well: addresses that are made up have one share among them.
//!
//! Everything is O(1): an average decays when its source is seen again. The sources of a bridge share one table; who
//! finds no place in it is [unknown](Share::Unknown), which means as without shares, and never
//! dropped. As in [`marking`](crate::marking) the caller serialises, and says what time it is; the kernel's
//! coarse clock will do.

use crate::{
    fixed::forgotten,
    marking::{Decision, Marking, Policy, Share, Standing, Switch},
    vqueue::{Arrival, Queues},
};

/// What a source is ([`Policy::shares`]).
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "text",
    derive(schemars::JsonSchema),
    schemars(inline, rename_all = "kebab-case")
)]
pub enum By {
    /// Nobody's share is measured: all are marked alike, and nothing is dropped.
    Off = 0,
    /// The source IP address at an input port: many hosts come by one port from another bridge.
    #[default]
    Source = 1,
    /// The input port.
    Port = 2,
}

impl By {
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

/// Least length of an epoch. At 100 Mbit/s 80 packets.
pub const EPOCH_NS: u64 = 8_000_000;
/// Most, however slow the output is.
pub const LONGEST_EPOCH_NS: u64 = 250_000_000;
/// What was longer ago is forgotten.
pub const FORGET_NS: u64 = 1_000_000_000;
/// Packets of an epoch for each heavy source, so that one more or less is 6 %.
const PACKETS_PER_SOURCE: u32 = 16;
/// More bytes end an epoch whatever its length, so that two epochs' fit 32 bits.
const MOST_BYTES: u32 = 1 << 30;
/// Fractional bits of a share.
const FRAC: u32 = 24;
/// Of packets that are refused one after the other, one in so many is let in: should the counters be wrong, its departure
/// shows it.
const REFUSED_IN_A_ROW: u32 = 32;
/// Arrivals in a row that find an output empty, after which its sources are not looked at till something waits.
const QUIET: u32 = 256;
/// Packets that a packet has to find at an output for the output to count as busy.
const WAITING: u32 = 1;
/// Unit of [`Output::busy_until`].
const BUSY_SHIFT: u32 = 20;
/// After packets waited, an output is busy for the time in which it sends so many: at a slow port a queue of few packets is
/// empty for longer;
const BUSY_PACKETS: u64 = 80;
/// and of so many divided by the square of the number of its heavy sources, since a mark takes more of the port from few;
const BUSY_SOURCES: u64 = 2700;
/// and so much longer, in units of 2^20 ns,
const LEAST_BUSY: u64 = 8;
/// but no longer than this.
const MOST_BUSY: u32 = 64;
/// A tick of the coarse clock at 250 Hz, rounded up, in the same units.
const CLOCK_TICK: u32 = 4;
/// Epochs after which nothing is left of an average.
const GONE: u32 = 32;

/// A source, or a port's newcomers.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Its name's hash; 0: a free place.
    pub tag: u32,
    /// Epoch of its output in which it was last seen, modulo 2^16.
    pub epoch: u16,
    /// Slot of its output.
    pub output: u8,
    /// Padding.
    pub _pad: u8,
    /// Bytes of an epoch, averaged over those before.
    pub average: u32,
    /// Bytes of this epoch.
    pub bytes: u32,
}

/// An output.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// When its epoch began.
    pub start_ns: u64,
    /// Running number of the epoch.
    pub epoch: u32,
    /// As of a [`Source`], of all together.
    pub average: u32,
    /// Likewise.
    pub bytes: u32,
    /// Packets of this epoch.
    pub packets: u32,
    /// Fair share, `FRAC` bits; 0: not known.
    pub fair: u32,
    /// Sources seen in this epoch.
    pub sources: u32,
    /// Of these, heavy ones.
    pub heavy: u32,
    /// Their averages, together.
    pub heavy_bytes: u32,
    /// Sources that wanted their share in the last epoch.
    pub heavy_before: u32,
    /// Packets refused one after the other.
    pub refused: u32,
    /// Arrivals in a row that found nothing waiting.
    pub quiet: u32,
    /// Until when it is busy, in units of 2^20 ns; 0: packets never waited.
    pub busy_until: u32,
    /// By how much less than the most it is busy after packets waited, in the same units.
    pub less_busy: u32,
    /// Time since packets waited, at the end of an epoch, in the same units.
    pub since_waited: u32,
}

impl Output {
    /// Whether packets waited here a short time ago, 9 to 67 ms: longer where the port is slow, or few sources
    /// fill it. An echo that asks is told so, [`crate::echo::Room`].
    #[inline(always)]
    #[must_use]
    pub const fn is_busy(busy_until: u32, now_ns: u64) -> bool {
        busy_until
            .wrapping_sub((now_ns >> BUSY_SHIFT) as u32)
            .wrapping_sub(1)
            < MOST_BUSY
    }

    /// How long it is busy after packets waited, by what came in an epoch in which they did: what comes is what leaves
    /// then. Without branches, each of which would be two ways for the verifier.
    #[inline(always)]
    fn measure_busy(&mut self, elapsed_ns: u64, now_ns: u64) {
        let heavy = self.heavy_before as u64;
        let packets = BUSY_PACKETS + BUSY_SOURCES / (heavy.wrapping_mul(heavy) | 1);
        let time = elapsed_ns.wrapping_mul(packets) / (self.packets as u64 | 1);
        let less = MOST_BUSY.saturating_sub((LEAST_BUSY + (time >> BUSY_SHIFT)) as u32);
        let waited = self.busy_until.wrapping_sub(MOST_BUSY - self.less_busy);
        self.since_waited = ((now_ns >> BUSY_SHIFT) as u32).wrapping_sub(waited);
        let long_ago = CLOCK_TICK.wrapping_sub(forgotten(&mut self.since_waited));
        // All ones or none.
        let keep = (long_ago as i32 >> 31) as u32;
        self.less_busy = self.less_busy & keep | less & !keep;
    }

    /// Notes that packets wait.
    #[inline(always)]
    fn wait(&mut self, now_ns: u64) {
        self.busy_until = ((now_ns >> BUSY_SHIFT) as u32).wrapping_add(MOST_BUSY - self.less_busy);
    }
}

/// The shares of a bridge with port slots below `N`, for `E` sources.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares<const N: usize, const E: usize> {
    /// Of the packet at hand.
    pub look: Look,
    /// By slot.
    pub outputs: [Output; N],
    /// Newcomers, by input and output; pairs that have the same place have it in turn.
    pub newcomers: [Source; N],
    /// By hash.
    pub sources: [Source; E],
}

impl<const N: usize, const E: usize> Default for Shares<N, E> {
    fn default() -> Self {
        Self {
            look: Look::default(),
            outputs: [Output::default(); N],
            newcomers: [Source::default(); N],
            sources: [Source::default(); E],
        }
    }
}

/// Where the bytes of the packet at hand are counted: kept here and not in variables, of which kernel programs cannot
/// have many, and of which the verifier would know too much.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Place of its source, [`NOWHERE`] or [`UNCOUNTED`].
    pub place: u32,
    /// Place of the newcomers that it is one of, or [`NOWHERE`].
    pub newcomers: u32,
    /// The [`Share`] of its source.
    pub share: u32,
    /// Padding.
    pub _pad: u32,
    /// At a virtual queue: [`Arrival::ns_per_byte`].
    pub ns_per_byte: u64,
}

/// No place: only the output counts its bytes.
pub const NOWHERE: u32 = u32::MAX;
/// Nothing counts its bytes.
pub const UNCOUNTED: u32 = u32::MAX - 1;

/// An address in a word: for a [`Arrival::source`].
#[inline(always)]
#[must_use]
pub const fn source(address: &[u32; 4]) -> u32 {
    const K: u32 = 0x85eb_ca6b;
    let [a, b, c, d] = *address;
    let h = (a ^ (a >> 15)).wrapping_mul(K) ^ b;
    let h = (h ^ (h >> 15)).wrapping_mul(K) ^ c;
    (h ^ (h >> 15)).wrapping_mul(K) ^ d
}

/// The same place, of which the compiler does not know that: else it keeps addresses of what it needed before, in room
/// that kernel programs do not have.
#[inline(always)]
fn hidden<T>(place: &mut T) -> &mut T {
    #[cfg(target_arch = "bpf")]
    return core::hint::black_box(place);
    #[cfg(not(target_arch = "bpf"))]
    place
}

impl Source {
    /// Ends its epochs up to this one of its output. Whether it had not been seen in this one.
    #[inline(always)]
    fn go_on(&mut self, epoch: u32) -> bool {
        let ended = (epoch as u16).wrapping_sub(self.epoch) as u32;
        let sum = self.average as u64 + self.bytes as u64;
        if ended == 0 {
            return false;
        }
        self.epoch = epoch as u16;
        self.average = (sum >> (if ended < GONE { ended } else { GONE })) as u32;
        self.bytes = 0;
        true
    }
}

impl Output {
    /// Ends the epoch if it is time to.
    #[inline(always)]
    fn go_on(&mut self, now_ns: u64) {
        let elapsed = now_ns.saturating_sub(self.start_ns);
        let enough = self.packets >= PACKETS_PER_SOURCE.saturating_mul(self.heavy_before);
        let over = elapsed >= EPOCH_NS && (enough || elapsed >= LONGEST_EPOCH_NS);
        if !over && self.bytes < MOST_BYTES {
            return;
        }
        self.measure_busy(elapsed, now_ns);
        if elapsed >= FORGET_NS {
            self.epoch = self.epoch.wrapping_add(GONE);
            self.average = 0;
            self.fair = 0;
            self.heavy_before = 0;
        } else {
            let all = self.heavy as u64 * self.average as u64;
            let of_heavy = ((self.heavy_bytes as u64) << FRAC).checked_div(all);
            let equal = (1u32 << FRAC).checked_div(self.sources);
            (self.fair, self.heavy_before) = match (of_heavy, equal) {
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

    /// The fair share in bytes, where so many more have come.
    #[inline(always)]
    fn fair_bytes(&self, more: u32) -> u64 {
        let all = self.average as u64 + self.bytes as u64 + more as u64;
        (self.fair as u64 * (all & 0xffff_ffff)) >> FRAC
    }

    /// What a source of so many bytes has, while a packet of `more` is on its way.
    #[inline(always)]
    fn share(&self, source: &Source, more: u32) -> Share {
        if self.fair == 0 || self.average == 0 {
            return Share::Unknown;
        }
        // Before this packet it has least, with it most: half of it is in the middle.
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
    fn source(&mut self, place: u32) -> &mut Source {
        &mut self.sources[place as usize & (E - 1)]
    }

    /// A packet comes for a device's queue: [`Switch::arrive`], with regard to shares.
    #[inline(always)]
    pub fn arrive(&mut self, switch: &mut Switch<N>, policy: &Policy, a: &Arrival) -> Decision {
        let share = self.look(switch, policy, a);
        let standing = self.standing(share, a);
        self.wait(switch, a);
        let decision = switch.enter(policy, a.input, a.output, a.packets, standing, true);
        self.count(a, decision.drop != 0);
        decision
    }

    /// The same for a virtual queue: [`Queues::arrive`].
    #[inline(always)]
    pub fn arrive_virtual(
        &mut self,
        queues: &mut Queues<N>,
        switch: &mut Switch<N>,
        policy: &Policy,
        a: &Arrival,
    ) -> Decision {
        self.look.ns_per_byte = a.ns_per_byte;
        let (free, full) = queues.prepare(switch, policy, a);
        let (queues, switch, this) = (hidden(queues), hidden(switch), hidden(self));
        let share = this.look(switch, policy, a);
        let standing = this.standing(share, a);
        let switch = hidden(switch);
        this.wait(switch, a);
        let decision = switch.enter(policy, a.input, a.output, a.packets, standing, free);
        if decision.drop == 0 {
            let a = Arrival {
                ns_per_byte: hidden(&mut this.look).ns_per_byte,
                ..*a
            };
            queues.put(hidden(switch), &a, free, full);
        }
        hidden(this).count(a, decision.drop != 0);
        decision
    }

    /// A packet leaves a device's queue: [`Switch::leave`]. Of the arrival, slots, source and what can be
    /// marked say something here.
    #[inline(always)]
    pub fn leave(&mut self, switch: &mut Switch<N>, policy: &Policy, a: &Arrival) -> Decision {
        let mut standing = Standing::unknown(a.markable);
        if policy.mark_at == crate::marking::MarkAt::Departure as u32 {
            standing.share = self.share(policy, a) as u32;
        }
        switch.leave_standing(policy, a.input, a.output, a.packets, standing)
    }

    /// What a source has. It does not count as seen.
    #[inline(always)]
    pub fn share(&mut self, policy: &Policy, a: &Arrival) -> Share {
        if policy.shares == By::Off as u32 {
            return Share::Unknown;
        }
        let (tag, first) = Self::name(policy, a);
        let is_it = |s: &Source| s.tag == tag && s.output == a.output;
        let mut found = *self.source(first);
        if !is_it(&found) {
            found = *self.source(first ^ 1);
        }
        if !is_it(&found) {
            return Share::Unknown;
        }
        let output = self.output(a.output);
        found.go_on(output.epoch);
        output.share(&found, 0)
    }

    /// Port `p` left the switch: its slot is as new.
    #[inline(always)]
    pub fn remove_port(&mut self, p: u8) {
        let output = self.output(p);
        *output = Output {
            epoch: output.epoch.wrapping_add(GONE),
            ..Output::default()
        };
    }

    #[inline(always)]
    fn standing(&mut self, share: Share, a: &Arrival) -> Standing {
        self.look.share = share as u32;
        Standing {
            share: forgotten(&mut self.look.share),
            markable: a.markable,
            droppable: a.droppable
                && self.outputs[a.output as usize & (N - 1)].refused < REFUSED_IN_A_ROW - 1,
        }
    }

    /// Hash of a source's name, and its place: the same whatever waits, so that two sources that share one do
    /// so for ever.
    #[inline(always)]
    fn name(policy: &Policy, a: &Arrival) -> (u32, u32) {
        let address = if policy.shares == By::Port as u32 {
            0
        } else {
            a.source
        };
        let name = address as u64 | (a.input as u64) << 32 | (a.output as u64) << 40;
        let hash = (name ^ (name >> 15)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The highest bits are those that depend on all of the name.
        ((hash >> 16) as u32 | 1, (hash >> 48) as u32)
    }

    /// Finds or makes the source of a packet, and what it has.
    #[inline(always)]
    fn look(&mut self, switch: &Switch<N>, policy: &Policy, a: &Arrival) -> Share {
        self.look.place = UNCOUNTED;
        self.look.newcomers = NOWHERE;
        if policy.shares == By::Off as u32 || policy.marking == Marking::None as u32 {
            return Share::Unknown;
        }
        let ahead = switch.ports[a.output as usize & (N - 1)].cnt1;
        let output = self.output(a.output);
        output.quiet = if ahead > 0 {
            0
        } else {
            output.quiet.saturating_add(1)
        };
        if output.quiet > QUIET {
            return Share::Unknown;
        }
        output.go_on(a.now_ns);
        let epoch = output.epoch;
        let (tag, first) = Self::name(policy, a);
        let is_it = |s: &Source| s.tag == tag && s.output == a.output;
        let mut place = first;
        if !is_it(self.source(place)) {
            place = first ^ 1;
        }
        if !is_it(self.source(place)) {
            place = if self.is_free(first, a.now_ns) {
                first
            } else if self.is_free(first ^ 1, a.now_ns) {
                first ^ 1
            } else {
                self.look.place = NOWHERE;
                return Share::Unknown;
            };
            *self.source(place) = Source {
                tag,
                output: a.output,
                // It has not been seen in this epoch.
                epoch: epoch.wrapping_sub(GONE) as u16,
                ..Source::default()
            };
        }
        let first_of_epoch = self.source(place).go_on(epoch);
        let source = *self.source(place);
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
        self.look.place = place;
        if source.average == 0 && policy.shares == By::Source as u32 {
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
            newcomers.go_on(epoch);
            // They have at least as much as one of them.
            share = self.outputs[a.output as usize & (N - 1)].share(newcomers, a.bytes);
            self.look.newcomers = among;
        }
        share
    }

    /// Whether a place may be given to another source: its holder did not come in this epoch and the last, or only
    /// in the last and not before, or its output has been idle.
    #[inline(always)]
    fn is_free(&mut self, place: u32, now_ns: u64) -> bool {
        let Source {
            tag,
            epoch,
            output,
            average,
            ..
        } = *self.source(place);
        let output = self.output(output);
        let ended = (output.epoch as u16).wrapping_sub(epoch);
        tag == 0
            || ended > 1
            || (ended == 1 && average == 0)
            || now_ns.saturating_sub(output.start_ns) >= FORGET_NS
    }

    /// Notes that packets wait.
    #[inline(always)]
    fn wait(&mut self, switch: &Switch<N>, a: &Arrival) {
        let o = a.output as usize & (N - 1);
        if switch.ports[o].cnt1 >= WAITING {
            self.outputs[o].wait(a.now_ns);
        }
    }

    /// Counts the bytes of a packet that is let in.
    #[inline(always)]
    fn count(&mut self, a: &Arrival, refused: bool) {
        let look = self.look;
        if look.place == UNCOUNTED {
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
        if look.place != NOWHERE {
            let source = self.source(look.place);
            source.bytes = source.bytes.saturating_add(a.bytes);
        }
        if look.newcomers != NOWHERE {
            let newcomers = &mut self.newcomers[look.newcomers as usize & (N - 1)];
            newcomers.bytes = newcomers.bytes.saturating_add(a.bytes);
        }
    }
}
