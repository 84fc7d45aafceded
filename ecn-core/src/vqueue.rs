//! Virtual queues: what would wait at an output if the line behind it were so fast and no faster.
//!
//! Some ports have no queue that could be watched: a card queues where no program sees it, and a veth
//! device not at all (`noqueue`). A virtual queue stands in for it. Each packet that the bridge sends
//! to such an output is put on the time when it would begin to be sent at the configured rate, and
//! waits until then; the packet itself goes its way at once. Counters and triggers are
//! [`marking`](crate::marking)'s, as with a real queue:
//!
//! ```text
//! arrival at t of b bytes for output o:   what began before t departs, in its order: cnt1[o] -= 1, ...
//!     line of o free:                     it departs at once,    free[o] = t + b / rate
//!     else:                               it begins at free[o],  free[o] += b / rate
//! ```
//!
//! The order is kept packet by packet, not in proportion, because the inputs' buffers are what the
//! triggers are about: an input that sent its burst first is free of it first.
//!
//! Nothing happens by itself: time is an argument, and a queue is brought up to date when somebody
//! looks. That is its own next arrival, and for other outputs an arrival that would find its
//! input's buffer full: before that counts, what the input still holds elsewhere is brought up to
//! date too. So decisions are the same as if every packet had departed on its time.

use crate::{
    fixed,
    marking::{Decision, Policy, Standing, Switch},
};

/// Packets (super-packets count once) that a virtual queue holds. One that finds it full passes
/// uncounted, as if a real queue of this length had dropped it.
pub const DEPTH: usize = 64;

/// Outputs and departures together that one look at other outputs goes through; the next look goes on
/// there. What it did not come to still counts as waiting: only where ports, and packets that began at
/// outputs to which nothing came since, are more than 64 together. The BPF verifier follows
/// each step, and takes a million instructions in all: on 6.1 549,311 with 96 steps, 445,887 with 64.
const STEPS: u32 = 64;

/// Time that a byte takes, [`ns_per_byte`].
pub const FRAC: u32 = 32;

/// Nanoseconds per byte at a rate, [`FRAC`] fractional bits. `None`: no rate.
#[must_use]
pub const fn ns_per_byte(bytes_per_s: u64) -> Option<u64> {
    fixed::ratio(1_000_000_000, bytes_per_s, FRAC)
}

/// A packet that waits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// When it begins to be sent.
    pub start_ns: u64,
    /// Its segments.
    pub packets: u32,
    /// Slot of its input.
    pub input: u32,
}

/// The virtual queue of one output.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// When everything in it has been sent.
    pub free_ns: u64,
    /// Packets that passed uncounted, because it was full.
    pub overflowed: u64,
    /// Fraction of [`Queue::free_ns`], [`FRAC`] bits.
    pub fraction: u32,
    /// Running number of the first that waits, modulo 2^32.
    pub head: u32,
    /// Running number of the next to come.
    pub tail: u32,
    /// Padding.
    pub _pad: u32,
    /// By running number, modulo [`DEPTH`].
    pub waiting: [Waiting; DEPTH],
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            free_ns: 0,
            overflowed: 0,
            fraction: 0,
            head: 0,
            tail: 0,
            _pad: 0,
            waiting: [Waiting::default(); DEPTH],
        }
    }
}

impl Queue {
    #[inline(always)]
    fn place(&mut self, number: u32) -> &mut Waiting {
        &mut self.waiting[number as usize & (DEPTH - 1)]
    }

    #[inline(always)]
    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// What has begun to be sent by `now_ns` but was not taken off the counters yet: for those who
    /// only look.
    pub fn begun(&self, now_ns: u64) -> impl Iterator<Item = Waiting> + '_ {
        (0..self.len().min(DEPTH as u32))
            .map(|n| self.waiting[self.head.wrapping_add(n) as usize & (DEPTH - 1)])
            .take_while(move |packet| packet.start_ns <= now_ns)
    }
}

/// A packet on its way to an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Slot of its input.
    pub input: u8,
    /// Slot of its output.
    pub output: u8,
    /// It can be marked.
    pub markable: bool,
    /// Where it cannot be marked, it may be dropped.
    pub droppable: bool,
    /// Segments.
    pub packets: u32,
    /// Bytes with link headers, those of all segments.
    pub bytes: u32,
    /// Its source's address, see [`crate::shares::source`].
    pub source: u32,
    /// When it came.
    pub now_ns: u64,
    /// What the line takes for a byte, see [`ns_per_byte`]; 0 at a queue of a device's own.
    pub ns_per_byte: u64,
}

/// The virtual queues of a switch, beside its counters and under the same lock.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues<const N: usize> {
    /// Output at which the next look at several begins.
    pub next: u32,
    /// Padding.
    pub _pad: u32,
    /// By slot.
    pub of: [Queue; N],
}

impl<const N: usize> Default for Queues<N> {
    fn default() -> Self {
        Self {
            next: 0,
            _pad: 0,
            of: [Queue::default(); N],
        }
    }
}

impl<const N: usize> Queues<N> {
    #[inline(always)]
    fn queue(&mut self, o: u8) -> &mut Queue {
        &mut self.of[o as usize & (N - 1)]
    }

    /// A packet comes for an output: [`Switch::arrive`], and its departure at its time.
    #[inline(always)]
    pub fn arrive(&mut self, switch: &mut Switch<N>, policy: &Policy, a: &Arrival) -> Decision {
        // Whether the packet will have to wait is known here, as it is not of a device's own queue.
        let (free, full) = self.prepare(switch, policy, a);
        let standing = Standing::unknown(a.markable);
        let decision = switch.enter(policy, a.input, a.output, a.packets, standing, free);
        self.put(switch, a, free, full);
        decision
    }

    /// Makes room for the packet; whether the line is free, and whether its queue is full.
    #[inline(always)]
    pub(crate) fn prepare(
        &mut self,
        switch: &mut Switch<N>,
        policy: &Policy,
        a: &Arrival,
    ) -> (bool, bool) {
        self.catch_up(switch, a.output, a.now_ns);
        if switch.may_fill(policy, a.input, a.packets) {
            self.catch_up_outputs_of(switch, policy, a.input, a.now_ns);
        }
        let queue = self.queue(a.output);
        let free = queue.len() == 0 && queue.free_ns <= a.now_ns;
        (free, queue.len() >= DEPTH as u32)
    }

    /// Puts the packet on its time.
    #[inline(always)]
    pub(crate) fn put(&mut self, switch: &mut Switch<N>, a: &Arrival, free: bool, full: bool) {
        if free || full {
            switch.leave_virtual(a.input, a.output, a.packets);
        }
        let queue = self.queue(a.output);
        if full {
            queue.overflowed += a.packets as u64;
            return;
        }
        if free {
            queue.free_ns = a.now_ns;
            queue.fraction = 0;
        } else {
            let number = queue.tail;
            queue.tail = number.wrapping_add(1);
            let start_ns = queue.free_ns;
            *queue.place(number) = Waiting {
                start_ns,
                packets: a.packets,
                input: a.input as u32,
            };
        }
        // 64 KiB at 1 byte per second are below 2^46 ns; the sum of two fractions fits.
        let bytes = (a.bytes & 0x7fff_ffff) as u64;
        let fraction = (a.ns_per_byte & 0xffff_ffff) * bytes + queue.fraction as u64;
        queue.fraction = fraction as u32;
        queue.free_ns = queue
            .free_ns
            .wrapping_add((a.ns_per_byte >> FRAC) * bytes)
            .wrapping_add(fraction >> FRAC);
    }

    /// The first packet departs if it has begun by `now_ns`.
    #[inline(always)]
    fn depart_first(&mut self, switch: &mut Switch<N>, o: u8, now_ns: u64) -> bool {
        let queue = self.queue(o);
        if queue.len() == 0 {
            return false;
        }
        let first = *queue.place(queue.head);
        if first.start_ns > now_ns {
            return false;
        }
        queue.head = queue.head.wrapping_add(1);
        switch.leave_virtual(first.input as u8, o, first.packets);
        true
    }

    /// Everything that has begun by `now_ns` departs from output `o`.
    #[inline(always)]
    pub fn catch_up(&mut self, switch: &mut Switch<N>, o: u8, now_ns: u64) {
        let mut step = 0;
        while step < DEPTH {
            if !self.depart_first(switch, o, now_ns) {
                break;
            }
            step += 1;
        }
    }

    /// The same at every output for which input `i` still holds a packet.
    #[inline(always)]
    fn catch_up_outputs_of(&mut self, switch: &mut Switch<N>, policy: &Policy, i: u8, now_ns: u64) {
        let ports = if policy.ports == 0 { 1 } else { policy.ports };
        // Where it begins and how it goes round is not known to the BPF verifier. With a number that
        // it knows it would follow each pair of output and step on its own.
        let first = self.next % ports;
        let mut o = first;
        let mut step = 0;
        while step < STEPS {
            step += 1;
            if switch.holds(i, o as u8) && self.depart_first(switch, o as u8, now_ns) {
                continue;
            }
            o = (o + 1) % ports;
            if o == first {
                break;
            }
        }
        self.next = o;
    }

    /// Port `p` left the switch: nothing waits for it, and its slot is as new, but for what it sent in
    /// that still waits elsewhere.
    #[inline(always)]
    pub fn remove_port(&mut self, switch: &mut Switch<N>, p: u8, ports: u32) {
        switch.remove_output(p, ports);
        let queue = self.queue(p);
        queue.head = queue.tail;
        queue.free_ns = 0;
    }
}
