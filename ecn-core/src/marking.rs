//! Marking at the switch: which packets caused a full buffer.
//!
//! State per switch (G/T): packets that wait for each output (`cnt1`), how many of them are still to be marked (`cnt2`),
//! and the occupancy of each input buffer. A Linux bridge queues at its outputs, so an input buffer is *logical*: a
//! packet occupies a slot of its input port from the moment the bridge has chosen the output until it leaves the device.
//!
//! The counter form of the papers, with n = packets in a super-packet (1 without offloads):
//!
//! ```text
//! arrival of a packet from input i for output o:   cnt1[o] += n
//!     if input buffer i is now full:               cnt2[x] = cnt1[x] for each output x of a packet in i
//!     if cnt1[o] > threshold (input-output only):  cnt2[o] = cnt1[o]
//! start of transmission on o:                      cnt1[o] -= n
//!     if cnt2[o] > 0: mark the packet, cnt2[o] -= n
//! ```
//!
//! A packet whose source has clearly less than its share of the output is spared, and a later packet is marked
//! instead; a packet that cannot be marked is dropped if too many wait and its source has its share:
//! [`crate::shares`]. Without shares, as in the papers, all packets are treated alike.
//!
//! A super-packet is marked as a whole; the excess is deducted from later ones ([`Port::debt`]).
//!
//! A second trigger overwrites `cnt2`, it never adds. Naive marking marks the packets in the full input buffer instead,
//! so its count belongs to the input ([`Port::to_mark_from`]).

use core::num::NonZeroU64;

use crate::{backward::Kind, fixed};

/// When a packet is marked ([`Policy::mark_at`]).
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "text",
    derive(schemars::JsonSchema),
    schemars(inline, rename_all = "kebab-case")
)]
pub enum MarkAt {
    /// On enqueue: the next `cnt2` packets that arrive. Works on every device.
    #[default]
    Arrival = 0,
    /// On dequeue, as in the papers. On Linux this needs a veth device whose peer is ours.
    Departure = 1,
}

impl MarkAt {
    /// All values.
    pub const ALL: [Self; 2] = [Self::Arrival, Self::Departure];

    /// The name used in configuration and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Arrival => "arrival",
            Self::Departure => "departure",
        }
    }
}

/// Who is marked ([`Policy::marking`]).
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "text",
    derive(schemars::JsonSchema),
    schemars(inline, rename_all = "kebab-case")
)]
pub enum Marking {
    /// Count only.
    None = 0,
    /// All packets of the input buffer that became full (G/T, mechanism 1).
    Naive = 1,
    /// All packets that wait for an output to which the full buffer holds a packet (mechanism 2).
    Input = 2,
    /// As [`Marking::Input`], and all packets for an output with more than `threshold` waiting
    /// (mechanism 3).
    #[default]
    InputOutput = 3,
    /// None: bridges notify sources of their queues instead, as in BCN.
    Bcn = 4,
    /// None: bridges notify sources of their queues instead, as in QCN.
    Qcn = 5,
}

impl Marking {
    /// HP's policies, in the papers' order.
    pub const HP: [Self; 3] = [Self::Naive, Self::Input, Self::InputOutput];

    /// All policies.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::Naive,
        Self::Input,
        Self::InputOutput,
        Self::Bcn,
        Self::Qcn,
    ];

    /// The value of [`Policy::marking`].
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|m| *m as u32 == number)
    }

    /// The name used in configuration and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Naive => "naive",
            Self::Input => "input",
            Self::InputOutput => "input-output",
            Self::Bcn => "bcn",
            Self::Qcn => "qcn",
        }
    }

    /// The kind of notification that sources get instead of marks, if any.
    #[must_use]
    pub const fn notifications(self) -> Option<Kind> {
        match self {
            Self::Bcn => Some(Kind::Bcn),
            Self::Qcn => Some(Kind::Qcn),
            _ => None,
        }
    }
}

/// Marking policy of one switch, in the layout that kernel programs read.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A [`Marking`].
    pub marking: u32,
    /// A [`MarkAt`].
    pub mark_at: u32,
    /// Slots of an input buffer, packets: B of the papers.
    pub buffer: u32,
    /// Output trigger: more than this many packets waiting for one output.
    pub threshold: u32,
    /// Slots in use: one more than the highest port slot. Bounds the scan of a full buffer.
    pub ports: u32,
    /// A [`crate::shares::ShareBy`]: what counts as a source when packets are spared or dropped.
    pub shares: u32,
    /// Packets that cannot be marked are dropped if more than this many wait and their source is over its share, or
    /// if more than twice as many wait and their source is at its share. 0: never.
    pub drop_threshold: u32,
    #[doc(hidden)]
    pub _pad: u32,
}

impl Policy {
    /// Whether packets are marked: [`Policy::marking`] is one of [`Marking::HP`].
    #[inline(always)]
    #[must_use]
    pub const fn marks(&self) -> bool {
        let [first, .., last] = Marking::HP;
        self.marking >= first as u32 && self.marking <= last as u32
    }
}

/// Slot of packets that the host itself sends. It has no input buffer and so never triggers.
pub const HOST: u8 = 0;

/// Backlog argument of [`Switch::on_dequeue`] where the device's queue cannot be read.
pub const BACKLOG_UNKNOWN: u32 = u32::MAX;

/// Departures over which the backlog check takes its minimum, in addition to the segments of the largest
/// super-packet: those leave one by one when their queue is already empty.
pub const BACKLOG_WINDOW: u32 = 8;

/// Counters of one port: as an output (`cnt1`, `cnt2`), as an input (`occupancy`), and totals.
/// All counts are in packets; a super-packet counts its segments.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// Packets that wait for this output.
    pub cnt1: u32,
    /// Packets for this output still to be marked.
    pub cnt2: u32,
    /// Packets received here that wait for any output: the logical input buffer.
    pub occupancy: u32,
    /// Naive marking: packets from this input still to be marked.
    pub to_mark_from: u32,
    /// Departure marking: packets marked at departure, to which the wire end has yet to write CE.
    pub owed: u32,
    /// Minimum excess of `cnt1` over the device's own queue length in this window.
    pub surplus: u32,
    /// Departures in this window.
    pub surplus_samples: u32,
    /// Segments of the largest super-packet so far.
    pub largest: u32,
    /// Segments marked in excess of those due, because a super-packet is marked as a whole; as many later ones are
    /// spared. Counted per output; with naive marking, per input.
    pub debt: u32,
    #[doc(hidden)]
    pub _pad: u32,
    /// Packets that entered the queue.
    pub arrived: u64,
    /// Packets that left the device.
    pub departed: u64,
    /// Packets dropped by the queue.
    pub dropped: u64,
    /// Packets marked CE.
    pub marked: u64,
    /// Packets due to be marked that were not ECN-capable.
    pub unmarkable: u64,
    /// Enqueued packets that found this input's buffer full.
    pub input_triggers: u64,
    /// Enqueued packets that found more than `threshold` waiting for this output.
    pub output_triggers: u64,
    /// Packets removed from the counters, because the device's queue did not contain them.
    pub repaired: u64,
    /// Packets that could not be marked and were dropped before they entered the queue, because their source had its
    /// share.
    pub dropped_unmarkable: u64,
}

/// The decision on a packet at enqueue or dequeue.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// 1: mark this packet (all its segments).
    pub mark: u32,
    /// 1: a mark was due, but the packet cannot be marked.
    pub unmarkable: u32,
    /// 1: the input buffer was full.
    pub input_trigger: u32,
    /// 1: the output trigger fired.
    pub output_trigger: u32,
    /// 1: drop the packet; no other field is set, and it was not counted.
    pub drop: u32,
    /// The [`Share`] of its source.
    pub share: u32,
}

/// A source's share of an output, relative to the fair share.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// Unknown: never spared, never dropped.
    #[default]
    Unknown = 0,
    /// Less than three quarters: always spared.
    Light = 1,
    /// Clearly less: spared unless the queue is long.
    Below = 2,
    /// A little less: spared while the queue is short.
    Under = 3,
    /// About as much.
    At = 4,
    /// More.
    Over = 5,
}

/// What may be done to a packet: mark, spare or drop it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Eligibility {
    /// The [`Share`] of its source.
    pub share: u32,
    /// It can be marked.
    pub markable: bool,
    /// If it cannot be marked, it may be dropped.
    pub droppable: bool,
}

impl Eligibility {
    /// For a packet whose source is unknown.
    #[inline(always)]
    #[must_use]
    pub(crate) const fn unknown(markable: bool) -> Self {
        Self {
            share: Share::Unknown as u32,
            markable,
            droppable: false,
        }
    }

    /// Whether it is spared a mark if `waiting` packets wait. Among equal sources about half are under their share at
    /// any time, and among sources with many flows some are below it: if marks for the others cannot keep the queue
    /// short, all are marked.
    #[inline(always)]
    const fn is_spared(self, policy: &Policy, waiting: u32) -> bool {
        let at_most = if self.share == Share::Light as u32 {
            return true;
        } else if self.share == Share::Below as u32 {
            policy.threshold.saturating_mul(6)
        } else if self.share == Share::Under as u32 {
            policy.threshold.saturating_mul(5) / 2
        } else {
            return false;
        };
        waiting <= at_most
    }

    #[inline(always)]
    const fn is_dropped(self, policy: &Policy, waiting: u32) -> bool {
        let at_most = if self.share == Share::Over as u32 {
            policy.drop_threshold
        } else if self.share == Share::At as u32 || self.share == Share::Under as u32 {
            policy.drop_threshold.saturating_mul(2)
        } else {
            return false;
        };
        self.droppable && !self.markable && policy.drop_threshold > 0 && waiting > at_most
    }
}

/// The marking state of a switch with up to `N` - 1 ports and the host (slot 0).
///
/// The caller serialises calls: in the kernel by a spin lock per bridge, in the simulator by the event loop. `N` is at
/// most 256, so that a slot is a `u8`.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Switch<const N: usize> {
    /// Per port.
    pub ports: [Port; N],
    /// `waiting[i][o]`: packets from input i that wait for output o. Rows sum to `occupancy`,
    /// columns to `cnt1`.
    pub waiting: [[u32; N]; N],
}

impl<const N: usize> Default for Switch<N> {
    fn default() -> Self {
        Self {
            ports: [Port::default(); N],
            waiting: [[0; N]; N],
        }
    }
}

impl<const N: usize> Switch<N> {
    const OK: () = assert!(
        N.is_power_of_two() && N <= 256,
        "ports: a power of two up to 256"
    );

    #[inline(always)]
    fn port(&mut self, slot: u8) -> &mut Port {
        let () = Self::OK;
        // The mask is a bound for the BPF verifier; with N = 256 it changes nothing.
        &mut self.ports[slot as usize & (N - 1)]
    }

    #[inline(always)]
    fn waiting(&mut self, i: u8, o: u8) -> &mut u32 {
        &mut self.waiting[i as usize & (N - 1)][o as usize & (N - 1)]
    }

    /// A packet of `n` segments from input `i` enters the queue of output `o`.
    ///
    /// Arrival marking: `cnt2` is first clipped to the number of packets ahead of this one, so that no stale mark
    /// outlives its queue; the packet takes a mark if one is left, then its own triggers set the marks of the packets
    /// behind it.
    ///
    /// A packet alone at its output does not fill a buffer, since it may cut through before a trigger is evaluated.
    /// Here it is unknown whether it has to wait; if that is known, call [`Switch::on_enqueue_waiting`].
    #[inline(always)]
    pub fn on_enqueue(
        &mut self,
        policy: &Policy,
        i: u8,
        o: u8,
        n: u32,
        markable: bool,
    ) -> Decision {
        self.enqueue(policy, i, o, n, Eligibility::unknown(markable), true)
    }

    /// [`Switch::on_enqueue`] of a packet that could not cut through and has to wait, alone at its output or not.
    #[inline(always)]
    pub fn on_enqueue_waiting(
        &mut self,
        policy: &Policy,
        i: u8,
        o: u8,
        n: u32,
        markable: bool,
    ) -> Decision {
        self.enqueue(policy, i, o, n, Eligibility::unknown(markable), false)
    }

    #[inline(always)]
    pub(crate) fn enqueue(
        &mut self,
        policy: &Policy,
        i: u8,
        o: u8,
        n: u32,
        eligibility: Eligibility,
        alone_cuts_through: bool,
    ) -> Decision {
        let mut decision = Decision {
            share: eligibility.share,
            ..Decision::default()
        };
        let output = self.port(o);
        if eligibility.is_dropped(policy, output.cnt1) {
            output.dropped_unmarkable += n as u64;
            decision.drop = 1;
            return decision;
        }
        let spared = eligibility.is_spared(policy, output.cnt1);
        let w = self.waiting(i, o);
        *w = w.wrapping_add(n);
        let naive = policy.marking == Marking::Naive as u32;

        let input = self.port(i);
        let held_before = input.occupancy;
        let occupancy = held_before.wrapping_add(n);
        input.occupancy = occupancy;
        let full = i != HOST && occupancy >= policy.buffer && policy.marks();
        let mut mark = false;
        if policy.mark_at == MarkAt::Arrival as u32 && naive {
            if input.to_mark_from > held_before {
                input.to_mark_from = held_before;
            }
            let renewed = held_before >= policy.buffer;
            if !spared {
                let due = due(input.to_mark_from, n, renewed);
                input.to_mark_from = input.to_mark_from.saturating_sub(n);
                mark = input.should_mark(n, due);
            }
        }
        if full {
            input.input_triggers += 1;
            decision.input_trigger = 1;
            if naive {
                input.to_mark_from = occupancy;
            }
        }

        let output = self.port(o);
        let ahead = output.cnt1;
        let cnt1 = ahead.wrapping_add(n);
        output.cnt1 = cnt1;
        output.arrived += n as u64;
        if n > output.largest {
            output.largest = n;
        }
        if policy.mark_at == MarkAt::Arrival as u32 && !naive {
            if output.cnt2 > ahead {
                output.cnt2 = ahead;
            }
            let renewed = (i != HOST && held_before >= policy.buffer)
                || (policy.marking == Marking::InputOutput as u32 && ahead > policy.threshold);
            if !spared {
                let due = due(output.cnt2, n, renewed);
                output.cnt2 = output.cnt2.saturating_sub(n);
                mark = output.should_mark(n, due);
            }
        }
        if mark {
            output.apply_mark(n, eligibility.markable, &mut decision);
        }
        if policy.marking == Marking::InputOutput as u32 && cnt1 > policy.threshold {
            output.output_triggers += 1;
            decision.output_trigger = 1;
            output.cnt2 = cnt1;
        }
        if full && !naive {
            let waiting = *self.waiting(i, o);
            if alone_cuts_through && ahead == 0 {
                *self.waiting(i, o) = 0;
            }
            self.mark_waiting_for_outputs_of(i, policy.ports);
            *self.waiting(i, o) = waiting;
        }
        decision
    }

    /// Input buffer `i` became full although no packet was enqueued: a packet that cuts through occupies a slot until
    /// its tail has left.
    pub fn on_input_full(&mut self, policy: &Policy, i: u8) {
        if !policy.marks() {
            return;
        }
        let input = self.port(i);
        input.input_triggers += 1;
        if policy.marking == Marking::Naive as u32 {
            input.to_mark_from = input.occupancy;
        } else {
            self.mark_waiting_for_outputs_of(i, policy.ports);
        }
    }

    /// Output `o` is congested: requests a mark for every packet that waits for it (mechanisms 2 and 3).
    pub fn on_output_congested(&mut self, policy: &Policy, o: u8) {
        if policy.marking == Marking::Input as u32 || policy.marking == Marking::InputOutput as u32
        {
            let output = self.port(o);
            output.cnt2 = output.cnt1;
        }
    }

    /// Input trigger of mechanisms 2 and 3: requests a mark for every packet anywhere in the switch that waits for an
    /// output to which buffer `i` holds a packet.
    #[inline(always)]
    fn mark_waiting_for_outputs_of(&mut self, i: u8, ports: u32) {
        let mut x = 0usize;
        while x < N {
            if x as u32 >= ports {
                break;
            }
            if *self.waiting(i, x as u8) > 0 {
                let output = self.port(x as u8);
                output.cnt2 = output.cnt1;
            }
            x += 1;
        }
    }

    /// A packet of `n` segments from input `i` starts its transmission on output `o`; `backlog` is
    /// the length that the device's queue has then, or [`BACKLOG_UNKNOWN`].
    #[inline(always)]
    pub fn on_dequeue(
        &mut self,
        policy: &Policy,
        i: u8,
        o: u8,
        n: u32,
        markable: bool,
        backlog: u32,
    ) -> Decision {
        let decision = self.on_dequeue_unchecked(policy, i, o, n, markable);
        if self.is_surplus(o, backlog) {
            self.repair(o, policy.ports);
        }
        decision
    }

    /// [`Switch::on_dequeue`] up to the comparison with the queue.
    #[inline(always)]
    pub fn on_dequeue_unchecked(
        &mut self,
        policy: &Policy,
        i: u8,
        o: u8,
        n: u32,
        markable: bool,
    ) -> Decision {
        self.dequeue(policy, i, o, n, Eligibility::unknown(markable))
    }

    /// [`Switch::on_dequeue_unchecked`] with regard to the source's share.
    #[inline(always)]
    pub(crate) fn dequeue(
        &mut self,
        policy: &Policy,
        i: u8,
        o: u8,
        n: u32,
        eligibility: Eligibility,
    ) -> Decision {
        let mut decision = Decision {
            share: eligibility.share,
            ..Decision::default()
        };
        self.remove(i, o, n);
        let at_departure = policy.mark_at == MarkAt::Departure as u32;
        let naive = policy.marking == Marking::Naive as u32;
        let may_mark = at_departure && !eligibility.is_spared(policy, self.port(o).cnt1);
        let mut mark = false;
        if may_mark && naive {
            let input = self.port(i);
            let due = due(input.to_mark_from, n, false);
            input.to_mark_from = input.to_mark_from.saturating_sub(n);
            mark = input.should_mark(n, due);
        } else if at_departure && naive {
            self.port(i).clip_marks_from();
        }
        let output = self.port(o);
        output.departed += n as u64;
        if may_mark && !naive {
            let due = due(output.cnt2, n, false);
            output.cnt2 = output.cnt2.saturating_sub(n);
            mark = output.should_mark(n, due);
        } else if at_departure && output.cnt2 > output.cnt1 {
            // The remaining marks are for packets behind this one, of which there are fewer.
            output.cnt2 = output.cnt1;
        }
        if mark {
            output.apply_mark(n, eligibility.markable, &mut decision);
            if decision.mark != 0 {
                output.owed = output.owed.wrapping_add(n);
            }
        }
        decision
    }

    /// Departure marking, at the wire end: whether this packet left marked.
    #[inline(always)]
    pub fn wire_end(&mut self, o: u8, n: u32) -> bool {
        let output = self.port(o);
        let mark = output.owed > 0;
        output.owed = output.owed.saturating_sub(n);
        mark
    }

    /// The queue of output `o` dropped a packet of `n` segments from input `i`.
    #[inline(always)]
    pub fn on_drop(&mut self, i: u8, o: u8, n: u32) {
        self.remove(i, o, n);
        let output = self.port(o);
        output.dropped += n as u64;
        // A dropped packet cannot take its mark.
        if output.cnt2 > output.cnt1 {
            output.cnt2 = output.cnt1;
        }
        self.port(i).clip_marks_from();
    }

    /// Whether `n` more packets may fill the buffer of input `i`, or naive marks are left for it: its occupancy must
    /// then be exact.
    #[inline(always)]
    pub(crate) fn may_fill(&mut self, policy: &Policy, i: u8, n: u32) -> bool {
        let input = self.port(i);
        let fills = input.occupancy.wrapping_add(n) >= policy.buffer || input.to_mark_from > 0;
        i != HOST && policy.marks() && fills
    }

    /// Whether input `i` holds a packet for output `o`.
    #[inline(always)]
    pub(crate) fn holds(&mut self, i: u8, o: u8) -> bool {
        *self.waiting(i, o) > 0
    }

    /// A packet of `n` segments leaves the virtual queue of `o`, where it was counted, so that no counter wraps.
    /// Without branches, since the BPF verifier processes this in a loop.
    #[inline(always)]
    pub(crate) fn dequeue_virtual(&mut self, i: u8, o: u8, n: u32) {
        let waiting = self.waiting(i, o);
        *waiting = waiting.wrapping_sub(n);
        let input = self.port(i);
        input.occupancy = input.occupancy.wrapping_sub(n);
        let output = self.port(o);
        output.cnt1 = output.cnt1.wrapping_sub(n);
        output.departed += n as u64;
    }

    /// As [`Switch::remove_input`] for virtual queues: packets from the port stay in its row until they leave, even if the
    /// slot is reused.
    #[inline(always)]
    pub(crate) fn remove_virtual(&mut self, p: u8) {
        let port = self.port(p);
        *port = Port {
            occupancy: port.occupancy,
            ..Port::default()
        };
    }

    /// Removes a packet from the counters, at most what was counted: packets queued before counting started were not.
    #[inline(always)]
    fn remove(&mut self, i: u8, o: u8, n: u32) {
        let w = self.waiting(i, o);
        let taken = if n < *w { n } else { *w };
        *w -= taken;
        let input = self.port(i);
        input.occupancy = input.occupancy.saturating_sub(taken);
        let output = self.port(o);
        output.cnt1 = output.cnt1.saturating_sub(taken);
    }

    /// Compares `cnt1` with the device's queue. An excess is either packets between the hook and the queue on another CPU,
    /// for a moment, or packets that were never removed: a missed tracepoint, a purged queue. An excess that lasts a whole
    /// window is the latter and must be [repaired](Switch::repair).
    #[inline(always)]
    pub fn is_surplus(&mut self, o: u8, backlog: u32) -> bool {
        if backlog == BACKLOG_UNKNOWN {
            return false;
        }
        let output = self.port(o);
        // The queue counts a super-packet once, so only an empty queue can be compared. Earlier samples are invalid
        // too: while a super-packet is sent, only its last segment sees the true excess, and it may have left.
        if output.largest > 1 && backlog > 0 {
            output.surplus_samples = 0;
            return false;
        }
        let excess = output.cnt1.saturating_sub(backlog);
        if excess < output.surplus || output.surplus_samples == 0 {
            output.surplus = excess;
        }
        output.surplus_samples += 1;
        let due = excess > 0 && output.surplus_samples >= BACKLOG_WINDOW + output.largest;
        if excess == 0 || due {
            output.surplus_samples = 0;
        }
        due
    }

    /// Removes a surplus that lasted a whole window. A separate function: the loop over all inputs is the most
    /// complex part for the verifier, which before 6.4 repeats it for each path that leads to it.
    #[inline(always)]
    pub fn repair(&mut self, o: u8, ports: u32) {
        let output = self.port(o);
        let keep = fixed::saturating_sub(output.cnt1 as u64, output.surplus as u64);
        self.set_waiting(o, ports, keep as u32);
    }

    /// Sets the number of packets that wait for output `o` to `keep`, reducing each input's part in proportion, since
    /// it is unknown whose packets were missed.
    #[inline(always)]
    pub fn set_waiting(&mut self, o: u8, ports: u32, keep: u32) {
        // cnt1 is the sum over all inputs: 0 only if no packet waits.
        let Some(cnt1) = NonZeroU64::new(fixed::max(self.port(o).cnt1 as u64, 1)) else {
            return;
        };
        let (mut seen, mut kept) = (0, 0);
        let mut i = 0usize;
        while i < N {
            if i as u32 >= ports {
                break;
            }
            // Without branches, each of which the BPF verifier would follow at each input.
            let w = self.waiting(i as u8, o);
            let before = *w as u64;
            // Rounding the running sum and not each part, so that the parts add up to `keep`.
            seen += before;
            let share = (seen * keep as u64 / cnt1) as u32 as u64;
            let after = fixed::min(fixed::saturating_sub(share, kept), before);
            *w = after as u32;
            kept += after;
            let input = self.port(i as u8);
            let occupancy = fixed::saturating_sub(input.occupancy as u64, before - after);
            input.occupancy = occupancy as u32;
            input.to_mark_from = fixed::min(input.to_mark_from as u64, occupancy) as u32;
            i += 1;
        }
        let kept = kept as u32;
        let output = self.port(o);
        output.repaired += output.cnt1.saturating_sub(kept) as u64;
        output.cnt1 = kept;
        if output.cnt2 > kept {
            output.cnt2 = kept;
        }
    }

    /// Port `p` was removed, after [`Switch::set_waiting`] to 0: nothing came from it, and its slot is reset.
    #[inline(always)]
    pub fn remove_input(&mut self, p: u8, ports: u32) {
        let mut o = 0usize;
        while o < N {
            if o as u32 >= ports {
                break;
            }
            // Its packets at other outputs count as the host's from now on, so that columns still sum to cnt1.
            let w = self.waiting(p, o as u8);
            let orphans = *w;
            *w = 0;
            let host = self.waiting(HOST, o as u8);
            *host = host.wrapping_add(orphans);
            o += 1;
        }
        let orphans = self.port(p).occupancy;
        let host = self.port(HOST);
        host.occupancy = host.occupancy.wrapping_add(orphans);
        *self.port(p) = Port::default();
    }
}

/// Number of a packet's `n` segments that are due to be marked if `to_mark` are. If the trigger also holds without
/// this packet (`renewed`), each segment by itself would renew it.
#[inline(always)]
const fn due(to_mark: u32, n: u32, renewed: bool) -> u32 {
    if to_mark > 0 && (renewed || to_mark > n) {
        n
    } else {
        to_mark
    }
}

impl Port {
    /// Whether a packet of `n` segments, `due` of which should be marked, is marked as a whole: the excess is charged
    /// to later packets, so that over time as many segments are marked as are due. A single packet is marked if it is
    /// due.
    #[inline(always)]
    fn should_mark(&mut self, n: u32, due: u32) -> bool {
        let mark = due > self.debt;
        self.debt = if mark {
            self.debt + (n - due)
        } else {
            self.debt - due
        };
        mark
    }

    /// Naive marking: at most one mark per packet.
    #[inline(always)]
    fn clip_marks_from(&mut self) {
        if self.to_mark_from > self.occupancy {
            self.to_mark_from = self.occupancy;
        }
    }

    #[inline(always)]
    fn apply_mark(&mut self, n: u32, markable: bool, decision: &mut Decision) {
        if markable {
            self.marked += n as u64;
            decision.mark = 1;
        } else {
            self.unmarkable += n as u64;
            decision.unmarkable = 1;
        }
    }
}
