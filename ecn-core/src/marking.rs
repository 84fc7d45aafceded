//! Marking at the switch: who caused a full buffer, and whose packets say so.
//!
//! State per switch (G/T): how many packets wait for each output (`cnt1`), how many of them are
//! still to be marked (`cnt2`), and what each input buffer holds. A Linux bridge queues at its
//! outputs, so an input buffer is *logical*: a packet occupies a slot of its input port from the
//! moment the bridge has chosen the output until it leaves the device.
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
//! A packet whose source has clearly less than its share of the output is spared, and its mark goes to the next
//! whose turn it is; one that cannot be marked is dropped where too much waits, if its source has its
//! share: [`crate::shares`]. Where nobody measures shares, as in the papers, all are alike.
//!
//! A super-packet is marked as a whole; what is marked too much of one is spared of the next
//! ([`Port::debt`]).
//!
//! A second trigger overwrites `cnt2`, it never adds. Naive marking marks what is in the full input
//! buffer instead, so its count belongs to the input ([`Port::to_mark_from`]).

/// When a packet is marked ([`Policy::mark_at`]).
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "text",
    derive(schemars::JsonSchema),
    schemars(inline, rename_all = "kebab-case")
)]
pub enum MarkAt {
    /// As it enters the queue: the next `cnt2` packets that arrive. Works on every device.
    #[default]
    Arrival = 0,
    /// As it leaves (the papers' own place). On Linux: where the veth peer is ours.
    Departure = 1,
}

impl MarkAt {
    /// Both.
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
}

impl Marking {
    /// All policies, in the papers' order.
    pub const ALL: [Self; 4] = [Self::None, Self::Naive, Self::Input, Self::InputOutput];

    /// The one that a policy says by number.
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
        }
    }
}

/// Marking policy of one switch, as the programs read it.
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
    /// A [`crate::shares::By`]: whose packets are spared, and whose are dropped.
    pub shares: u32,
    /// Packets that cannot be marked, of sources over their share, are dropped where more than this many
    /// wait; of sources at their share, where more than twice as many do. 0: they pass.
    pub drop_threshold: u32,
    /// Padding.
    pub _pad: u32,
}

/// Slot of packets whose input is no port of the switch: sent by the host itself. It has no input
/// buffer and so never triggers.
pub const HOST: u8 = 0;

/// What [`Switch::depart`] is told where the device's queue cannot be read.
pub const BACKLOG_UNKNOWN: u32 = u32::MAX;

/// Departures over which the backlog check takes its minimum, beside the segments of the largest
/// super-packet: those leave one by one although their queue is empty already.
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
    /// Packets that came in here and wait for any output: the logical input buffer.
    pub occupancy: u32,
    /// Naive marking: packets from this input still to be marked.
    pub to_mark_from: u32,
    /// Departure marking: packets that left marked and whose mark the wire's end has yet to write.
    pub owed: u32,
    /// Least excess of `cnt1` over the device's own queue length in this window.
    pub surplus: u32,
    /// Departures in this window.
    pub surplus_samples: u32,
    /// Segments of the largest super-packet that came.
    pub largest: u32,
    /// Segments marked beyond what was to be marked, because a super-packet is marked as a whole; those
    /// behind it are spared. Of an output; with naive marking, of an input.
    pub debt: u32,
    /// Padding.
    pub _pad: u32,
    /// Packets that entered the queue.
    pub arrived: u64,
    /// Packets that left the device.
    pub departed: u64,
    /// Packets dropped by the queue.
    pub dropped: u64,
    /// Packets marked CE.
    pub marked: u64,
    /// Packets whose turn it was, but that were not ECN-capable.
    pub unmarkable: u64,
    /// Arrivals that found this input's buffer full.
    pub input_triggers: u64,
    /// Arrivals that found more than `threshold` waiting for this output.
    pub output_triggers: u64,
    /// Packets taken off the counters because the device's queue was empty without them.
    pub repaired: u64,
    /// Packets that could not be marked and were dropped before they entered the queue, because their
    /// source had its share.
    pub dropped_unmarkable: u64,
}

/// What an arrival or a departure decided.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// 1: mark this packet (all its segments).
    pub mark: u32,
    /// 1: the packet's turn, but it cannot be marked.
    pub unmarkable: u32,
    /// 1: the input buffer was full.
    pub input_trigger: u32,
    /// 1: the output trigger fired.
    pub output_trigger: u32,
    /// 1: drop the packet; nothing else was decided, and it was not counted.
    pub drop: u32,
    /// The [`Share`] that its source has.
    pub share: u32,
}

/// What a source has of an output, beside what it would have if all that want more had the same.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// Not known: it is marked when its turn comes, and never dropped.
    #[default]
    Unknown = 0,
    /// Less than three quarters: it is spared, and the mark goes to the next whose turn it is.
    Light = 1,
    /// Clearly less: it is spared unless the queue is long.
    Below = 2,
    /// A little less: it is spared while the queue is short.
    Under = 3,
    /// About as much.
    At = 4,
    /// More.
    Over = 5,
}

/// How a packet stands when its turn comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The [`Share`] that its source has.
    pub share: u32,
    /// It can be marked.
    pub markable: bool,
    /// Where it cannot be marked, it may be dropped.
    pub droppable: bool,
}

impl Standing {
    /// Of a packet whose source is not looked at.
    #[inline(always)]
    #[must_use]
    pub const fn unknown(markable: bool) -> Self {
        Self {
            share: Share::Unknown as u32,
            markable,
            droppable: false,
        }
    }

    /// Whether it is passed over where so many packets wait. Of equal sources about half are under their share at any
    /// time, and of sources with many flows some are below it: if the others alone cannot take the marks that keep the
    /// queue short, all do.
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

    /// Whether it is dropped where so many packets wait.
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
/// The caller serialises the calls: in the kernel a spin lock per bridge, in the simulator the
/// event loop. `N` is at most 256, so that a slot is a `u8`.
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
        // The mask is what the BPF verifier believes; with N = 256 it changes nothing.
        &mut self.ports[slot as usize & (N - 1)]
    }

    #[inline(always)]
    fn waiting(&mut self, i: u8, o: u8) -> &mut u32 {
        &mut self.waiting[i as usize & (N - 1)][o as usize & (N - 1)]
    }

    /// A packet of `n` segments from input `i` enters the queue of output `o`.
    ///
    /// Arrival marking: `cnt2` is first clipped to what waits ahead of this packet, so that no
    /// stale mark outlives its queue; the packet takes a mark if one is left, then its own
    /// triggers set the marks of the packets behind it.
    ///
    /// A packet alone at its output does not fill a buffer: before a trigger is evaluated, a packet
    /// has its chance to cut through. Here it is not known whether it will have to wait; where it
    /// is, call [`Switch::wait`].
    #[inline(always)]
    pub fn arrive(&mut self, policy: &Policy, i: u8, o: u8, n: u32, markable: bool) -> Decision {
        self.enter(policy, i, o, n, Standing::unknown(markable), true)
    }

    /// [`Switch::arrive`] of a packet that had its chance to cut through and has to wait: alone at
    /// its output or not.
    #[inline(always)]
    pub fn wait(&mut self, policy: &Policy, i: u8, o: u8, n: u32, markable: bool) -> Decision {
        self.enter(policy, i, o, n, Standing::unknown(markable), false)
    }

    #[inline(always)]
    pub(crate) fn enter(
        &mut self,
        policy: &Policy,
        i: u8,
        o: u8,
        n: u32,
        standing: Standing,
        alone_cuts_through: bool,
    ) -> Decision {
        let mut decision = Decision {
            share: standing.share,
            ..Decision::default()
        };
        let output = self.port(o);
        if standing.is_dropped(policy, output.cnt1) {
            output.dropped_unmarkable += n as u64;
            decision.drop = 1;
            return decision;
        }
        let spared = standing.is_spared(policy, output.cnt1);
        let w = self.waiting(i, o);
        *w = w.wrapping_add(n);
        let naive = policy.marking == Marking::Naive as u32;

        let input = self.port(i);
        let held_before = input.occupancy;
        let occupancy = held_before.wrapping_add(n);
        input.occupancy = occupancy;
        let full = i != HOST && occupancy >= policy.buffer && policy.marking != 0;
        let mut turn = false;
        if policy.mark_at == MarkAt::Arrival as u32 && naive {
            if input.to_mark_from > held_before {
                input.to_mark_from = held_before;
            }
            let renewed = held_before >= policy.buffer;
            if !spared {
                let due = due(input.to_mark_from, n, renewed);
                input.to_mark_from = input.to_mark_from.saturating_sub(n);
                turn = input.is_turn(n, due);
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
                turn = output.is_turn(n, due);
            }
        }
        if turn {
            output.take_turn(n, standing.markable, &mut decision);
        }
        if policy.marking == Marking::InputOutput as u32 && cnt1 > policy.threshold {
            output.output_triggers += 1;
            decision.output_trigger = 1;
            output.cnt2 = cnt1;
        }
        if full && !naive {
            let own = *self.waiting(i, o);
            if alone_cuts_through && ahead == 0 {
                *self.waiting(i, o) = 0;
            }
            self.mark_waiting_for_outputs_of(i, policy.ports);
            *self.waiting(i, o) = own;
        }
        decision
    }

    /// Input buffer `i` is full although no packet came to wait in it, as where a packet that cuts
    /// through takes a slot till its tail has left.
    pub fn fill(&mut self, policy: &Policy, i: u8) {
        if policy.marking == Marking::None as u32 {
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

    /// Output `o` is congested: every packet that waits for it is to be marked (mechanisms 2 and 3).
    pub fn congest(&mut self, policy: &Policy, o: u8) {
        if policy.marking == Marking::Input as u32 || policy.marking == Marking::InputOutput as u32
        {
            let output = self.port(o);
            output.cnt2 = output.cnt1;
        }
    }

    /// Input trigger, mechanisms 2 and 3: every packet anywhere in the switch that waits for an
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
    pub fn depart(
        &mut self,
        policy: &Policy,
        i: u8,
        o: u8,
        n: u32,
        markable: bool,
        backlog: u32,
    ) -> Decision {
        let decision = self.leave(policy, i, o, n, markable);
        if self.is_surplus(o, backlog) {
            self.repair(o, policy.ports);
        }
        decision
    }

    /// [`Switch::depart`] up to the comparison with the queue.
    #[inline(always)]
    pub fn leave(&mut self, policy: &Policy, i: u8, o: u8, n: u32, markable: bool) -> Decision {
        self.leave_standing(policy, i, o, n, Standing::unknown(markable))
    }

    /// [`Switch::leave`] of a packet whose source is looked at.
    #[inline(always)]
    pub(crate) fn leave_standing(
        &mut self,
        policy: &Policy,
        i: u8,
        o: u8,
        n: u32,
        standing: Standing,
    ) -> Decision {
        let mut decision = Decision {
            share: standing.share,
            ..Decision::default()
        };
        self.take(i, o, n);
        let at_departure = policy.mark_at == MarkAt::Departure as u32;
        let naive = policy.marking == Marking::Naive as u32;
        let asked = at_departure && !standing.is_spared(policy, self.port(o).cnt1);
        let mut turn = false;
        if asked && naive {
            let input = self.port(i);
            let due = due(input.to_mark_from, n, false);
            input.to_mark_from = input.to_mark_from.saturating_sub(n);
            turn = input.is_turn(n, due);
        } else if at_departure && naive {
            self.port(i).clip_marks_from();
        }
        let output = self.port(o);
        output.departed += n as u64;
        if asked && !naive {
            let due = due(output.cnt2, n, false);
            output.cnt2 = output.cnt2.saturating_sub(n);
            turn = output.is_turn(n, due);
        } else if at_departure && output.cnt2 > output.cnt1 {
            // Left for those behind it, of which there are no more.
            output.cnt2 = output.cnt1;
        }
        if turn {
            output.take_turn(n, standing.markable, &mut decision);
            if decision.mark != 0 {
                output.owed = output.owed.wrapping_add(n);
            }
        }
        decision
    }

    /// Departure marking, at the wire's end: whether this packet is one that left marked.
    #[inline(always)]
    pub fn wire_end(&mut self, o: u8, n: u32) -> bool {
        let output = self.port(o);
        let mark = output.owed > 0;
        output.owed = output.owed.saturating_sub(n);
        mark
    }

    /// The queue of output `o` dropped a packet of `n` segments from input `i`.
    #[inline(always)]
    pub fn drop_queued(&mut self, i: u8, o: u8, n: u32) {
        self.take(i, o, n);
        let output = self.port(o);
        output.dropped += n as u64;
        // Marks are for packets that wait; one that is gone cannot take its own.
        if output.cnt2 > output.cnt1 {
            output.cnt2 = output.cnt1;
        }
        self.port(i).clip_marks_from();
    }

    /// Whether `n` packets more may fill the buffer of input `i`, or some from it are to be marked: what
    /// it holds must be known exactly then.
    #[inline(always)]
    pub(crate) fn may_fill(&mut self, policy: &Policy, i: u8, n: u32) -> bool {
        let input = self.port(i);
        let fills = input.occupancy.wrapping_add(n) >= policy.buffer || input.to_mark_from > 0;
        i != HOST && policy.marking != Marking::None as u32 && fills
    }

    /// Whether input `i` holds a packet for output `o`.
    #[inline(always)]
    pub(crate) fn holds(&mut self, i: u8, o: u8) -> bool {
        *self.waiting(i, o) > 0
    }

    /// A packet of `n` segments leaves the virtual queue of `o`. What waits there is what was put into
    /// the queue, so nothing goes below zero; the BPF verifier, which meets this in a loop, has no
    /// branch to follow.
    #[inline(always)]
    pub(crate) fn leave_virtual(&mut self, i: u8, o: u8, n: u32) {
        let waiting = self.waiting(i, o);
        *waiting = waiting.wrapping_sub(n);
        let input = self.port(i);
        input.occupancy = input.occupancy.wrapping_sub(n);
        let output = self.port(o);
        output.cnt1 = output.cnt1.wrapping_sub(n);
        output.departed += n as u64;
    }

    /// As [`Switch::remove_port`], where queues are virtual: what the port sent in goes on waiting as
    /// its own, and leaves its row in time, whoever has the slot by then.
    #[inline(always)]
    pub(crate) fn remove_output(&mut self, p: u8, ports: u32) {
        self.keep_waiting(p, ports, 0);
        let port = self.port(p);
        *port = Port {
            occupancy: port.occupancy,
            ..Port::default()
        };
    }

    /// Takes a packet off the counters, and only what was put on them: a packet that was queued
    /// before the counting began finds nothing.
    #[inline(always)]
    fn take(&mut self, i: u8, o: u8, n: u32) {
        let w = self.waiting(i, o);
        let taken = if n < *w { n } else { *w };
        *w -= taken;
        let input = self.port(i);
        input.occupancy = input.occupancy.saturating_sub(taken);
        let output = self.port(o);
        output.cnt1 = output.cnt1.saturating_sub(taken);
    }

    /// Compares `cnt1` with the device's queue. An excess is packets between the hook and the queue
    /// on another CPU, gone a moment later, or packets that were never taken off: a missed
    /// tracepoint run, a purged queue. What stays for a whole window is the latter: then it is to be
    /// [repaired](Switch::repair).
    #[inline(always)]
    pub fn is_surplus(&mut self, o: u8, backlog: u32) -> bool {
        if backlog == BACKLOG_UNKNOWN {
            return false;
        }
        let output = self.port(o);
        // The queue counts super-packets once: then only an empty one can be compared.
        // What was seen before does not count either: of a super-packet on its way out only the last
        // segment sees the true excess, and that one may be gone behind a queue.
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

    /// Takes off the surplus that stayed for a whole window. A call of its own: the walk over all
    /// inputs is what a verifier looks at longest, and before 6.4 for each way that leads to it.
    #[inline(always)]
    pub fn repair(&mut self, o: u8, ports: u32) {
        let output = self.port(o);
        let keep = output.cnt1.saturating_sub(output.surplus);
        self.keep_waiting(o, ports, keep);
    }

    /// Corrects what waits for output `o` to `keep` packets in all, each input's part in proportion:
    /// whose packets were missed is not known.
    #[inline(always)]
    pub fn keep_waiting(&mut self, o: u8, ports: u32, keep: u32) {
        // cnt1 is the sum of what waits; 0 only if nothing does.
        let cnt1 = (self.port(o).cnt1 as u64).max(1);
        let mut seen = 0u64;
        let mut kept = 0;
        let mut i = 0usize;
        while i < N {
            if i as u32 >= ports {
                break;
            }
            let w = self.waiting(i as u8, o);
            let before = *w;
            if before > 0 {
                // Rounding the running sum and not each part, so that the parts add up to `keep`.
                seen += before as u64;
                let after = ((seen * keep as u64 / cnt1) as u32).saturating_sub(kept);
                let after = if after < before { after } else { before };
                *w = after;
                kept += after;
                let input = self.port(i as u8);
                input.occupancy = input.occupancy.saturating_sub(before - after);
                input.clip_marks_from();
            }
            i += 1;
        }
        let output = self.port(o);
        output.repaired += output.cnt1.saturating_sub(kept) as u64;
        output.cnt1 = kept;
        if output.cnt2 > kept {
            output.cnt2 = kept;
        }
    }

    /// Port `p` left the switch: nothing waits for it, nothing came from it, and its slot is as new.
    #[inline(always)]
    pub fn remove_port(&mut self, p: u8, ports: u32) {
        self.keep_waiting(p, ports, 0);
        let mut o = 0usize;
        while o < N {
            if o as u32 >= ports {
                break;
            }
            // What it sent in still waits elsewhere: it is the host's from now on, so that columns
            // go on summing to cnt1.
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

/// Of a packet of `n` segments, those that are to be marked when so many still are. Where the trigger
/// holds without this packet (`renewed`), each segment by itself would find it renewed.
#[inline(always)]
const fn due(to_mark: u32, n: u32, renewed: bool) -> u32 {
    if to_mark > 0 && (renewed || to_mark > n) {
        n
    } else {
        to_mark
    }
}

impl Port {
    /// Whether a packet of `n` segments, of which `due` are to be marked, is marked as a whole: what is
    /// too much is charged to those behind it, so that over time as many segments are marked as are
    /// due. An ordinary packet is marked if it is due.
    #[inline(always)]
    fn is_turn(&mut self, n: u32, due: u32) -> bool {
        let turn = due > self.debt;
        self.debt = if turn {
            self.debt + (n - due)
        } else {
            self.debt - due
        };
        turn
    }

    /// Naive marking: no more marks than packets that can take them.
    #[inline(always)]
    fn clip_marks_from(&mut self) {
        if self.to_mark_from > self.occupancy {
            self.to_mark_from = self.occupancy;
        }
    }

    #[inline(always)]
    fn take_turn(&mut self, n: u32, markable: bool, decision: &mut Decision) {
        if markable {
            self.marked += n as u64;
            decision.mark = 1;
        } else {
            self.unmarkable += n as u64;
            decision.unmarkable = 1;
        }
    }
}
