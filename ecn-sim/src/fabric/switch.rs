//! A switch: its ports, their memory limits, and when they pause others. It is output-queued with shared memory. With a
//! [crossbar](super::run::crossbar), only the first packet of each input is in an output's queue.
//!
//! Data has one or more classes: PFC priorities, or InfiniBand virtual lanes. Each class has its own queue at a port,
//! which serves its classes round-robin by packet, as well as its own limits and pauses.

use std::ops::{Deref, DerefMut};

use super::packet::{Linked, List, Packet};
use crate::engine::{Slab, Time, with_capacity};

/// State of one class of data at a port.
#[derive(Clone, Copy, Debug, Default)]
pub struct Class {
    /// Waiting data; at a host, the flows that are ready.
    data: List,
    /// Bytes of data waiting to leave through this port.
    pub queued: u32,
    /// Bytes that arrived at this port and wait in shared memory.
    pub shared: u32,
    /// Bytes that arrived at this port and wait in its headroom.
    pub headroom: u32,
}

impl Class {
    /// The first waiting element, or [`NONE`](super::packet::NONE).
    pub const fn first(&self) -> u32 {
        self.data.head
    }
}

/// Maximum number of classes of data: the number of PFC priorities.
pub const MOST_CLASSES: u8 = 8;

/// A set of classes, as bits.
pub type Classes = u8;

/// A port of a switch or host; it occupies a separate cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct Port {
    /// When its transmission ends.
    pub busy_until: Time,
    /// Waiting ACKs and notifications, which precede data.
    pub control: List,
    /// The first class of data; [`Ports`] has the others.
    class: Class,
    /// The port at the other end.
    pub peer: u32,
    /// Its switch, or host.
    pub node: u32,
    /// Index of the port at its switch.
    pub index: u16,
    /// The part of the network that contains the other end.
    pub part: u16,
    /// Whether an event is pending for the end of its transmission.
    pub wakes: bool,
    /// Classes with waiting data.
    waiting: Classes,
    /// Classes that must not be sent to the other end.
    pub off: Classes,
    /// Classes that were off at some time since their queues were last empty.
    held: Classes,
    /// Classes whose credits are due to be advertised.
    pub credit: Classes,
    /// Classes for which the other end should be paused.
    pub pause_wanted: Classes,
    /// Paused classes in the last pause frame.
    pub pause_sent: Classes,
    /// The class whose turn is next, or a number after the last class.
    next: u8,
}

const _: () = assert!(size_of::<Port>() == 64);

impl Port {
    /// An idle port.
    pub fn new(peer: u32, node: u32, index: u16, part: u16) -> Self {
        Self {
            peer,
            node,
            index,
            part,
            ..Self::default()
        }
    }

    /// Whether a pause frame or credit message is due; these precede everything else.
    #[inline]
    pub const fn has_link_control(&self) -> bool {
        self.credit != 0 || self.pause_wanted != self.pause_sent
    }

    /// Whether it has anything to send that it may send.
    #[inline]
    pub const fn has_work(&self) -> bool {
        self.has_link_control() || !self.control.is_empty() || self.waiting & !self.off != 0
    }

    /// Whether data of this class must wait, even if the port is idle.
    #[inline]
    pub const fn blocks(&self, class: u8) -> bool {
        (self.waiting | self.off) >> class & 1 != 0
    }

    /// Classes that were off at some time since their queues were last empty.
    #[inline]
    pub const fn held(&self) -> Classes {
        self.held
    }

    /// Sets whether a class may be sent; `false` if unchanged.
    pub const fn set_on(&mut self, class: u8, on: bool) -> bool {
        let bit = 1 << class;
        if (self.off & bit == 0) == on {
            return false;
        }
        self.off ^= bit;
        if on {
            self.held &= self.waiting | !bit;
        } else {
            self.held |= bit;
        }
        true
    }

    /// Whether anything waits, whether or not it may be sent.
    pub const fn has_waiting(&self) -> bool {
        self.waiting != 0 || !self.control.is_empty()
    }

    /// The first waiting element of the first class, or [`NONE`](super::packet::NONE).
    #[inline]
    pub const fn first(&self) -> u32 {
        self.class.first()
    }

    /// The class that sends the next packet, if any: round-robin.
    #[inline]
    const fn next_class(&mut self) -> Option<u8> {
        let may = self.waiting & !self.off;
        let class = match may {
            0 => return None,
            // The usual case: only the first class.
            1 => 0,
            _ => {
                let before = may.rotate_right(self.next as u32).trailing_zeros() as u8;
                (self.next + before) % MOST_CLASSES
            }
        };
        self.next = class + 1;
        Some(class)
    }
}

/// Mutable view of one class of a port.
struct ClassMut<'a> {
    class: &'a mut Class,
    /// The bit of the class.
    bit: Classes,
    /// Of the port.
    waiting: &'a mut Classes,
    pause_wanted: &'a mut Classes,
    pause_sent: Classes,
    wakes: bool,
}

/// All ports with their classes.
#[derive(Clone, Debug)]
pub struct Ports {
    ports: Vec<Port>,
    /// By port, the classes except the first; empty if there is only one class.
    others: Vec<Class>,
    classes: u8,
}

impl Deref for Ports {
    type Target = [Port];

    #[inline]
    fn deref(&self) -> &[Port] {
        &self.ports
    }
}

impl DerefMut for Ports {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Port] {
        &mut self.ports
    }
}

impl Ports {
    /// These ports, with `classes` classes each.
    pub fn new(all: impl ExactSizeIterator<Item = Port>, classes: u8) -> Self {
        let mut ports = with_capacity(all.len());
        ports.extend(all);
        let others = vec![Class::default(); ports.len() * (usize::from(classes) - 1)];
        Self {
            ports,
            others,
            classes,
        }
    }

    /// Number of a class among the classes of all ports.
    #[inline]
    pub const fn queue_index(&self, port: u32, class: u8) -> u32 {
        port * self.classes as u32 + class as u32
    }

    /// Port and class of such a number.
    #[inline]
    pub const fn port_and_class(&self, queue: u32) -> (u32, u8) {
        let classes = self.classes as u32;
        (queue / classes, (queue % classes) as u8)
    }

    const fn other(&self, port: u32, class: u8) -> usize {
        port as usize * (self.classes as usize - 1) + class as usize - 1
    }

    /// One class of a port.
    #[inline]
    pub fn class(&self, port: u32, class: u8) -> &Class {
        if class == 0 {
            &self.ports[port as usize].class
        } else {
            &self.others[self.other(port, class)]
        }
    }

    /// Mutable view of one class of a port.
    #[inline(always)]
    fn class_mut(&mut self, port: u32, class: u8) -> ClassMut<'_> {
        let other = (class != 0).then(|| self.other(port, class));
        let queue = &mut self.ports[port as usize];
        let (class, bit) = match other {
            None => (&mut queue.class, 1),
            Some(other) => (&mut self.others[other], 1 << class),
        };
        ClassMut {
            class,
            bit,
            waiting: &mut queue.waiting,
            pause_wanted: &mut queue.pause_wanted,
            pause_sent: queue.pause_sent,
            wakes: queue.wakes,
        }
    }

    /// Dequeues the first element that may be sent, with its class.
    #[inline(always)]
    fn next<T: Linked>(&mut self, port: u32, slab: &mut Slab<T>) -> Option<(u32, &mut Class)> {
        let queue = &mut self.ports[port as usize];
        let number = queue.next_class()?;
        let class = if number == 0 {
            &mut queue.class
        } else {
            let before = port as usize * (usize::from(self.classes) - 1);
            &mut self.others[before + usize::from(number) - 1]
        };
        let first = class.data.shift(slab);
        if class.data.is_empty() {
            queue.waiting &= !(1 << number);
            queue.held &= queue.waiting | queue.off;
        }
        Some((first, class))
    }

    /// Number of classes of all ports.
    pub const fn queues(&self) -> u32 {
        self.queue_index(self.ports.len() as u32, 0)
    }

    /// A port's classes.
    pub fn classes(&self, port: u32) -> impl ExactSizeIterator<Item = (u8, &Class)> {
        (0..self.classes).map(move |class| (class, self.class(port, class)))
    }

    /// Bytes of data waiting at a port.
    pub fn queued(&self, port: u32) -> u32 {
        self.classes(port).map(|(_, class)| class.queued).sum()
    }

    /// Appends an element to its class's queue.
    #[inline(always)]
    pub fn push<T: Linked>(&mut self, port: u32, class: u8, slab: &mut Slab<T>, number: u32) {
        let queue = self.class_mut(port, class);
        *queue.waiting |= queue.bit;
        queue.class.data.push(slab, number);
    }

    /// Dequeues the first element that may be sent.
    #[inline(always)]
    pub fn pop<T: Linked>(&mut self, port: u32, slab: &mut Slab<T>) -> Option<u32> {
        let (first, _) = self.next(port, slab)?;
        Some(first)
    }

    /// Queues data of `bytes` bytes. Returns whether the port must be woken for it.
    #[inline(always)]
    pub fn enqueue(
        &mut self,
        (port, class): (u32, u8),
        packets: &mut Slab<Packet>,
        id: u32,
        bytes: u32,
    ) -> bool {
        let queue = self.class_mut(port, class);
        *queue.waiting |= queue.bit;
        queue.class.queued += bytes;
        queue.class.data.push(packets, id);
        !queue.wakes
    }

    /// Counts data of `bytes` bytes that will leave through this port and waits elsewhere in the switch.
    pub fn expect(&mut self, port: u32, class: u8, bytes: u32) {
        self.class_mut(port, class).class.queued += bytes;
    }

    /// Counts data that enters a queue of its switch for this port.
    #[inline]
    pub fn on_enqueue(&mut self, port: u32, class: u8, bytes: u32) {
        let queue = self.class_mut(port, class);
        *queue.waiting |= queue.bit;
        queue.class.queued += bytes;
    }

    /// Counts data that leaves such a queue; `empty`: the queue is then empty.
    #[inline]
    pub fn on_dequeue(&mut self, port: u32, class: u8, bytes: u32, empty: bool) {
        let queue = self.class_mut(port, class);
        queue.class.queued -= bytes;
        if empty {
            *queue.waiting &= !queue.bit;
            let port = &mut self.ports[port as usize];
            port.held &= port.waiting | port.off;
        }
    }

    /// Dequeues data.
    #[inline(always)]
    pub fn dequeue<'a>(
        &mut self,
        port: u32,
        packets: &'a mut Slab<Packet>,
    ) -> Option<(u32, &'a Packet)> {
        let (id, class) = self.next(port, packets)?;
        let packet = &packets[id];
        class.queued -= u32::from(packet.bytes);
        Some((id, packet))
    }

    /// PFC: admits a packet that arrived at a port. Requests a pause of its class once that has used up its share of
    /// the memory. Returns whether a frame is due; `None` if even the headroom is full.
    #[inline(always)]
    pub fn admit(
        &mut self,
        limits: &Limits,
        memory: &mut Memory,
        (port, class): (u32, u8),
        bytes: u32,
    ) -> Option<bool> {
        let queue = self.class_mut(port, class);
        if !limits.admit(memory, queue.class, bytes) {
            *queue.pause_wanted |= queue.bit;
            if queue.class.headroom > limits.headroom {
                return None;
            }
        }
        Some(*queue.pause_wanted != queue.pause_sent)
    }

    /// PFC: releases the memory of a packet that arrived at this port. Returns whether a frame is due.
    #[inline(always)]
    pub fn release(
        &mut self,
        limits: &Limits,
        memory: &mut Memory,
        (port, class): (u32, u8),
        bytes: u32,
    ) -> bool {
        let queue = self.class_mut(port, class);
        limits.release(memory, queue.class, bytes);
        if *queue.pause_wanted & queue.bit != 0 && limits.may_resume(memory, queue.class) {
            *queue.pause_wanted &= !queue.bit;
        }
        *queue.pause_wanted != queue.pause_sent
    }
}

/// Memory of a switch.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes shared by its ports.
    pub pool: u64,
    /// Bytes in use.
    pub used: u64,
}

/// How much of the shared memory a port may use for a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// A number of bytes.
    Static(u64),
    /// A fraction of the free memory, in 65536ths (Choudhury and Hahne, "Dynamic queue length thresholds", 1998).
    Dynamic(u64),
}

/// Memory limits of a class at a port.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For data that arrived at the port (PFC), or waits for it (tail drop).
    pub threshold: Threshold,
    /// The other end resumes when the port is this far below, bytes.
    pub gap: u64,
    /// Bytes for data that arrives after a pause was requested.
    pub headroom: u32,
}

impl Limits {
    #[inline]
    fn threshold(&self, memory: &Memory) -> u64 {
        match self.threshold {
            Threshold::Static(bytes) => bytes,
            Threshold::Dynamic(factor) => ((memory.pool - memory.used) * factor) >> 16,
        }
    }

    fn fits(&self, memory: &Memory, held: u32, bytes: u32) -> bool {
        let held = u64::from(held) + u64::from(bytes);
        held <= self.threshold(memory) && memory.used + u64::from(bytes) <= memory.pool
    }

    /// PFC: admits a packet. `false`: into the headroom, even if that is full.
    #[inline]
    fn admit(&self, memory: &mut Memory, class: &mut Class, bytes: u32) -> bool {
        let fits = class.headroom == 0 && self.fits(memory, class.shared, bytes);
        if fits {
            memory.used += u64::from(bytes);
            class.shared += bytes;
        } else {
            class.headroom += bytes;
        }
        fits
    }

    /// PFC: frees the memory of a packet, headroom first.
    #[inline]
    fn release(&self, memory: &mut Memory, class: &mut Class, bytes: u32) {
        let kept = bytes.min(class.headroom);
        class.headroom -= kept;
        let shared = bytes - kept;
        class.shared -= shared;
        memory.used -= u64::from(shared);
    }

    /// PFC: whether a paused class has room again.
    #[inline]
    fn may_resume(&self, memory: &Memory, class: &Class) -> bool {
        class.headroom == 0
            // An empty class resumes regardless of others: nothing would notify it when they use less memory.
            && (class.shared == 0 || u64::from(class.shared) + self.gap <= self.threshold(memory))
    }

    /// Tail drop: admits a packet to this class of a port, if it fits.
    #[inline]
    pub fn admit_tail(&self, memory: &mut Memory, class: &Class, bytes: u32) -> bool {
        let fits = self.fits(memory, class.queued, bytes);
        if fits {
            memory.used += u64::from(bytes);
        }
        fits
    }
}

/// Headroom that cannot overflow. When a port requests a pause, a frame of its own may delay the pause frame, and the
/// other end starts frames until that has arrived, and completes the last one after it. One more frame is the one that
/// exceeds the threshold.
pub fn headroom_needed(bytes_per_s: u64, delay_ps: Time, frame: u64, pause: u64) -> u64 {
    let in_flight = u128::from(bytes_per_s) * 2 * u128::from(delay_ps);
    in_flight.div_ceil(1_000_000_000_000) as u64 + 3 * frame + pause
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::packet::Kind;

    #[test]
    fn memory_is_shared_up_to_the_threshold_then_headroom_then_full() {
        let limits = Limits {
            threshold: Threshold::Dynamic(1 << 15),
            gap: 2_000,
            headroom: 3_000,
        };
        let mut memory = Memory {
            pool: 12_000,
            used: 0,
        };
        // Two classes of a port are equivalent to two ports.
        let mut ports = Ports::new([Port::default()].into_iter(), 2);
        let (a, b) = ((0, 0), (0, 1));
        // Half of the free memory: one class may hold 4 of 12, as half of the rest is then 6 - 2 = 4.
        for _ in 0..4 {
            assert_eq!(ports.admit(&limits, &mut memory, a, 1_000), Some(false));
        }
        assert_eq!(ports.admit(&limits, &mut memory, a, 1_000), Some(true));
        let held = |ports: &Ports, class| {
            let class = ports.class(0, class);
            (class.shared, class.headroom)
        };
        assert_eq!((ports[0].pause_wanted, memory.used), (1, 4_000));
        assert_eq!(held(&ports, 0), (4_000, 1_000));
        ports[0].pause_sent = 1;
        assert_eq!(ports.admit(&limits, &mut memory, b, 1_000), Some(false));
        assert_eq!((ports[0].pause_wanted, held(&ports, 1)), (1, (1_000, 0)));
        assert_eq!(ports.admit(&limits, &mut memory, a, 2_000), Some(false));
        assert_eq!(ports.admit(&limits, &mut memory, a, 1), None);
        ports.release(&limits, &mut memory, a, 1);
        // Headroom is emptied first; then the port must be the gap below its threshold.
        ports.release(&limits, &mut memory, a, 3_000);
        assert_eq!((ports[0].pause_wanted, held(&ports, 0)), (1, (4_000, 0)));
        ports.release(&limits, &mut memory, a, 1_000);
        assert_eq!(ports[0].pause_wanted, 1);
        assert!(ports.release(&limits, &mut memory, a, 1_000));
        assert_eq!((ports[0].pause_wanted, held(&ports, 0)), (0, (2_000, 0)));
        assert_eq!(memory.used, 3_000);
    }

    #[test]
    fn an_empty_port_goes_on_whatever_others_hold() {
        let limits = Limits {
            threshold: Threshold::Static(500),
            gap: 2_000,
            headroom: 1_000,
        };
        let mut memory = Memory { pool: 10, used: 10 };
        let mut ports = Ports::new([Port::default()].into_iter(), 1);
        assert_eq!(ports.admit(&limits, &mut memory, (0, 0), 1_000), Some(true));
        assert!(!ports.release(&limits, &mut memory, (0, 0), 1_000));
        assert_eq!(ports[0].pause_wanted, 0);
    }

    /// A port has its share of the memory, limited to what is free.
    #[test]
    fn tail_drop_is_by_port_and_by_memory() {
        let waits = |queued| Class {
            queued,
            ..Class::default()
        };
        for (threshold, share) in [
            (Threshold::Static(3_000), 3_000),
            // A quarter of the free memory.
            (Threshold::Dynamic(1 << 14), 2_500),
        ] {
            let limits = Limits {
                threshold,
                gap: 0,
                headroom: 0,
            };
            let memory = Memory {
                pool: 10_000,
                used: 0,
            };
            for (used, queued, bytes, fits) in [
                (0, share - 500, 500, true),
                (0, share - 500, 501, false),
                (9_900, 0, 101, false),
            ] {
                let mut memory = Memory { used, ..memory };
                let taken = limits.admit_tail(&mut memory, &waits(queued), bytes);
                let after = used + if fits { u64::from(bytes) } else { 0 };
                assert_eq!((taken, memory.used), (fits, after), "{threshold:?}");
            }
        }
    }

    /// A queue counts as held up after a pause until it is empty and may be sent.
    #[test]
    fn a_queue_that_begins_anew_was_not_held_up() {
        let mut ports = Ports::new([Port::default()].into_iter(), 2);
        let mut packets = Slab::default();
        let push = |ports: &mut Ports, packets: &mut Slab<Packet>| {
            let id = packets.insert(Packet::of_link(Kind::Data, 1, 0)).unwrap();
            ports.enqueue((0, 1), packets, id, 64);
        };
        push(&mut ports, &mut packets);
        push(&mut ports, &mut packets);
        assert!(ports[0].set_on(1, false) && !ports[0].set_on(1, false));
        assert_eq!(ports[0].held(), 0b10);
        // It continues with packets that were held up.
        assert!(ports[0].set_on(1, true));
        assert_eq!(ports[0].held(), 0b10);
        ports.dequeue(0, &mut packets).unwrap();
        assert_eq!(ports[0].held(), 0b10);
        ports.dequeue(0, &mut packets).unwrap();
        assert_eq!(ports[0].held(), 0);
        // Nothing was waiting when it resumed.
        assert!(ports[0].set_on(1, false) && ports[0].set_on(1, true));
        push(&mut ports, &mut packets);
        assert_eq!(ports[0].held(), 0);
    }

    /// Classes with waiting packets that may be sent take turns, and the queues of ports are separate.
    #[test]
    fn classes_take_turns() {
        for classes in 1..=MOST_CLASSES {
            let mut ports = Ports::new([Port::default(); 3].into_iter(), classes);
            let mut packets = Slab::default();
            for class in 0..classes {
                for number in 0..3 {
                    let packet = Packet::of_link(Kind::Data, class, number);
                    let id = packets.insert(packet).unwrap();
                    assert!(ports.enqueue((1, class), &mut packets, id, 64));
                }
                assert_eq!(
                    ports.port_and_class(ports.queue_index(1, class)),
                    (1, class)
                );
            }
            assert_eq!(ports.queued(1), 3 * u32::from(classes) * 64);
            assert!(!ports[0].has_work() && ports[1].has_work() && !ports[2].has_work());
            let mut served = |ports: &mut Ports, turns: u8| -> Vec<(u8, u32)> {
                let next = (0..turns).map_while(|_| {
                    let (_, packet) = ports.dequeue(1, &mut packets)?;
                    Some((packet.class, packet.number))
                });
                next.collect()
            };
            // All but the last one, which is paused, in turn.
            ports[1].off = 1 << (classes - 1);
            let others: Vec<_> = (0..classes - 1).map(|class| (class, 0)).collect();
            assert_eq!(served(&mut ports, classes - 1), others);
            ports[1].off = 0;
            let mut all = served(&mut ports, u8::MAX);
            assert_eq!(all.first(), Some(&(classes - 1, 0)));
            assert!(ports.dequeue(1, &mut packets).is_none());
            assert!(!ports[1].has_waiting() && ports.queued(1) == 0);
            all.extend(others);
            all.sort_unstable();
            let expected = (0..classes).flat_map(|class| (0..3).map(move |n| (class, n)));
            assert!(all.into_iter().eq(expected));
        }
    }

    #[test]
    fn headroom_is_a_round_trip_and_three_frames() {
        // 100 Gb/s and 1 us: 25 kB on the link in both directions.
        let needed = headroom_needed(12_500_000_000, 1_000_000, 1_062, 64);
        assert_eq!(needed, 25_000 + 3 * 1_062 + 64);
    }
}
