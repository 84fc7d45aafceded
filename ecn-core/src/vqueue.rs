//! Virtual queues: the packets that would wait at an output if its link had a configured rate.
//!
//! Some ports have no observable queue: a NIC queues packets where no program runs, and a veth device has no queue
//! (`noqueue`). A virtual queue replaces it: each packet that the bridge sends to such an output gets the time at
//! which its transmission would start at the configured rate, and counts as waiting until then; the packet itself is
//! sent immediately. Counters and triggers are those of [`marking`](crate::marking), as with a real queue:
//!
//! ```text
//! packet of b bytes for output o at time t:   packets that started before t are dequeued: cnt1[o] -= 1, ...
//!     link of o idle:                         it starts immediately,  free[o] = t + b / rate
//!     else:                                   it starts at free[o],   free[o] += b / rate
//! ```
//!
//! The queue stores each packet, in order, and not only their number per input: triggers depend on the inputs'
//! buffers, and an input that sent its burst first empties first.
//!
//! There are no timers: time is an argument, and a queue is brought up to date at the next packet for its output, or when
//! a packet for another output would find its input's buffer full. So decisions are the same as if every packet were
//! dequeued on time.

use crate::{
    fixed,
    marking::{Decision, Eligibility, Policy, Switch},
};

/// Packets (super-packets count once) that a virtual queue holds. Further packets pass uncounted, as if a real queue of
/// this length had dropped them.
pub const DEPTH: usize = 64;

/// Maximum outputs plus departures per update of other outputs; the next update continues there. Packets not reached
/// still count as waiting, which requires more than 64 ports and overdue packets together. The BPF verifier processes
/// each step: 65,188 instructions with 64 of them, 92,836 with 128.
const STEPS: u32 = 64;

/// Fractional bits of [`ns_per_byte`].
pub const FRAC: u32 = 32;

/// Nanoseconds per byte at a rate, [`FRAC`] fractional bits. `None`: the rate is 0.
#[must_use]
pub const fn ns_per_byte(bytes_per_s: u64) -> Option<u64> {
    fixed::ratio(1_000_000_000, bytes_per_s, FRAC)
}

/// A packet that waits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// When its transmission starts.
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
    /// When its link becomes idle.
    pub free_ns: u64,
    /// Packets that passed uncounted, because it was full.
    pub overflowed: u64,
    /// Fraction of [`Queue::free_ns`], [`FRAC`] bits.
    pub fraction: u32,
    /// Number of the first packet that waits, modulo 2^32.
    pub head: u32,
    /// Number of the next packet.
    pub tail: u32,
    #[doc(hidden)]
    pub _pad: u32,
    /// Ring of packets, indexed by number modulo [`DEPTH`].
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
    fn entry(&mut self, number: u32) -> &mut Waiting {
        &mut self.waiting[number as usize & (DEPTH - 1)]
    }

    #[inline(always)]
    fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// Packets whose transmission started by `now_ns` but that still count as waiting: for readers that cannot update.
    pub fn started(&self, now_ns: u64) -> impl Iterator<Item = Waiting> + '_ {
        (0..self.len().min(DEPTH as u32))
            .map(|n| self.waiting[self.head.wrapping_add(n) as usize & (DEPTH - 1)])
            .take_while(move |packet| packet.start_ns <= now_ns)
    }
}

/// Properties of a packet that a port's counters depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMeta {
    /// Slot of its input.
    pub input: u8,
    /// Slot of its output.
    pub output: u8,
    /// It can be marked.
    pub markable: bool,
    /// If it cannot be marked, it may be dropped.
    pub droppable: bool,
    /// Segments.
    pub packets: u32,
    /// Bytes of all segments with link headers.
    pub bytes: u32,
    /// Hash of its source address, see [`crate::packet::source`].
    pub source: u32,
    /// Current time.
    pub now_ns: u64,
    /// Transmission time of a byte, see [`ns_per_byte`]; 0 at a device's own queue.
    pub ns_per_byte: u64,
}

/// The virtual queues of a switch, protected by the same lock as its counters.
#[repr(C)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queues<const N: usize> {
    /// Output at which the next update of several starts.
    pub next: u32,
    #[doc(hidden)]
    pub _pad: u32,
    /// Queues, by slot.
    pub queues: [Queue; N],
}

impl<const N: usize> Default for Queues<N> {
    fn default() -> Self {
        Self {
            next: 0,
            _pad: 0,
            queues: [Queue::default(); N],
        }
    }
}

/// Whether a time has come; for times less than 2^63 ns apart. Not `<=`, by which the BPF verifier would tell the steps
/// of loops apart.
#[inline(always)]
const fn is_due(at_ns: u64, now_ns: u64) -> bool {
    now_ns.wrapping_sub(at_ns) as i64 >= 0
}

impl<const N: usize> Queues<N> {
    #[inline(always)]
    fn queue(&mut self, o: u8) -> &mut Queue {
        &mut self.queues[o as usize & (N - 1)]
    }

    /// A packet for an output: [`Switch::on_enqueue`], and its dequeue when it is due.
    #[inline(always)]
    pub fn on_enqueue(
        &mut self,
        switch: &mut Switch<N>,
        policy: &Policy,
        a: &PacketMeta,
    ) -> Decision {
        // Unlike at a device's own queue, it is known here whether the packet has to wait.
        let (free, full) = self.prepare(switch, policy, a);
        let eligibility = Eligibility::unknown(a.markable);
        let decision = switch.enqueue(policy, a.input, a.output, a.packets, eligibility, free);
        self.push(switch, a, free, full);
        decision
    }

    /// Brings queues up to date; returns whether the output's link is idle, and whether its queue is full.
    #[inline(always)]
    pub(crate) fn prepare(
        &mut self,
        switch: &mut Switch<N>,
        policy: &Policy,
        a: &PacketMeta,
    ) -> (bool, bool) {
        self.catch_up(switch, a.output, a.now_ns);
        if switch.may_fill(policy, a.input, a.packets) {
            self.catch_up_outputs_of(switch, policy, a.input, a.now_ns);
        }
        let queue = self.queue(a.output);
        let free = queue.len() == 0 && is_due(queue.free_ns, a.now_ns);
        (free, queue.len() >= DEPTH as u32)
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, switch: &mut Switch<N>, a: &PacketMeta, free: bool, full: bool) {
        if free || full {
            switch.dequeue_virtual(a.input, a.output, a.packets);
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
            *queue.entry(number) = Waiting {
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

    /// Dequeues the first packet if its transmission started by `now_ns`.
    #[inline(always)]
    fn dequeue_first(&mut self, switch: &mut Switch<N>, o: u8, now_ns: u64) -> bool {
        let queue = self.queue(o);
        if queue.len() == 0 {
            return false;
        }
        let first = *queue.entry(queue.head);
        if !is_due(first.start_ns, now_ns) {
            return false;
        }
        queue.head = queue.head.wrapping_add(1);
        switch.dequeue_virtual(first.input as u8, o, first.packets);
        true
    }

    /// Dequeues all packets of output `o` whose transmission started by `now_ns`.
    #[inline(always)]
    pub fn catch_up(&mut self, switch: &mut Switch<N>, o: u8, now_ns: u64) {
        let mut step = 0;
        while step < DEPTH {
            if !self.dequeue_first(switch, o, now_ns) {
                break;
            }
            step += 1;
        }
    }

    /// [`Queues::catch_up`] at every output for which input `i` holds a packet.
    #[inline(always)]
    fn catch_up_outputs_of(&mut self, switch: &mut Switch<N>, policy: &Policy, i: u8, now_ns: u64) {
        let ports = policy.ports;
        let within = |o: u32| o * fixed::is_below(o as u64, ports as u64) as u32;
        let first = within(self.next);
        self.next = first;
        let mut step = 0;
        while step < STEPS {
            step += 1;
            // Read back, since the BPF verifier would otherwise verify each pair of output and step.
            let o = fixed::opaque(&mut self.next);
            if switch.holds(i, o as u8) && self.dequeue_first(switch, o as u8, now_ns) {
                continue;
            }
            let o = within(o.wrapping_add(1));
            self.next = o;
            if o == first {
                break;
            }
        }
    }

    /// Port `p` was removed, after [`Switch::set_waiting`] to 0: its slot is reset, except for its packets that wait
    /// elsewhere.
    #[inline(always)]
    pub fn remove_port(&mut self, switch: &mut Switch<N>, p: u8) {
        switch.remove_virtual(p);
        let queue = self.queue(p);
        queue.head = queue.tail;
        queue.free_ns = 0;
    }
}
