//! A switch: its ports, what they may hold, and when they pause others. It is output-queued, in shared memory; before a
//! [crossbar](super::crossbar) only the first of each input are in its outputs' queues.
//!
//! Data has one class or several: PFC's priorities, or InfiniBand's virtual lanes. Each has queues of its own, which
//! a port serves packet by packet in turn, limits of its own, and is paused by itself.

use std::ops::{Deref, DerefMut};

use super::packet::{Linked, List, Packet};
use crate::engine::{Slab, Time};

/// What a port keeps of one class of data.
#[derive(Clone, Copy, Debug, Default)]
pub struct Class {
    /// Data that waits; of a host: the flows that are ready.
    data: List,
    /// Bytes of data that wait here to go out.
    pub queued: u32,
    /// Bytes that came by this port and wait in the shared memory.
    pub shared: u32,
    /// Bytes that came by it and wait in its headroom.
    pub headroom: u32,
}

impl Class {
    /// The first that waits, or [`NONE`](super::packet::NONE).
    pub const fn first(&self) -> u32 {
        self.data.head
    }
}

/// Most classes of data: as many priorities as PFC has.
pub const MOST_CLASSES: u8 = 8;

/// A set of classes, as bits.
pub type Classes = u8;

/// A port, of a switch or a host: in a cache line of its own.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct Port {
    /// When its transmission ends.
    pub busy_until: Time,
    /// ACKs and notifications that wait; they go before data.
    pub control: List,
    /// Of the first class of data. [`Ports`] has the others.
    class: Class,
    /// The port at the other end.
    pub peer: u32,
    /// Its switch, or host.
    pub node: u32,
    /// Which of its switch's ports it is.
    pub index: u16,
    /// The part of the network that has the other end.
    pub part: u16,
    /// An event is pending for the end of its transmission.
    pub wakes: bool,
    /// Classes with something that waits.
    waiting: Classes,
    /// Those that the other end may not be sent.
    pub off: Classes,
    /// Those that it might not be sent at some time since their queues began.
    held: Classes,
    /// Those whose credits are to be advertised.
    pub credit: Classes,
    /// Those for which the other end is to be paused.
    pub pause_wanted: Classes,
    /// Those of the last pause frame.
    pub pause_sent: Classes,
    /// The class whose turn is next, or a number behind the last one.
    next: u8,
}

const _: () = assert!(size_of::<Port>() == 64);

impl Port {
    /// An idle one, with these at its ends.
    pub fn new(peer: u32, node: u32, index: u16, part: u16) -> Self {
        Self {
            peer,
            node,
            index,
            part,
            ..Self::default()
        }
    }

    /// Is a pause frame or credit message due? It precedes all else.
    #[inline]
    pub const fn has_link_control(&self) -> bool {
        self.credit != 0 || self.pause_wanted != self.pause_sent
    }

    /// Is there anything that it may send?
    #[inline]
    pub const fn has_work(&self) -> bool {
        self.has_link_control() || !self.control.is_empty() || self.waiting & !self.off != 0
    }

    /// Does data of this class have to wait, even if the port is idle?
    #[inline]
    pub const fn blocks(&self, class: u8) -> bool {
        (self.waiting | self.off) >> class & 1 != 0
    }

    /// Classes whose data was held up, since their queues began.
    #[inline]
    pub const fn held(&self) -> Classes {
        self.held
    }

    /// May send a class from now on, or may not; `false`: as before.
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

    /// Does anything wait, whether it may be sent or not?
    pub const fn has_waiting(&self) -> bool {
        self.waiting != 0 || !self.control.is_empty()
    }

    /// What waits first of the first class, or [`NONE`](super::packet::NONE).
    #[inline]
    pub const fn first(&self) -> u32 {
        self.class.first()
    }

    /// The class that sends the next packet, if one may: each in its turn.
    #[inline]
    const fn next_class(&mut self) -> Option<u8> {
        let may = self.waiting & !self.off;
        let class = match may {
            0 => return None,
            // The only one, mostly.
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

/// One class of a port, to change it.
struct ClassMut<'a> {
    class: &'a mut Class,
    /// It alone.
    bit: Classes,
    /// The port's.
    waiting: &'a mut Classes,
    pause_wanted: &'a mut Classes,
    pause_sent: Classes,
    wakes: bool,
}

/// All ports, with what they keep of each class.
#[derive(Clone, Debug)]
pub struct Ports {
    ports: Vec<Port>,
    /// By port, the classes but the first: runs with one class have none.
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
    /// These, with so many classes.
    pub fn new(ports: Vec<Port>, classes: u8) -> Self {
        let others = vec![Class::default(); ports.len() * (usize::from(classes) - 1)];
        Self {
            ports,
            others,
            classes,
        }
    }

    /// Number of a class among those of all ports.
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

    /// One class of a port, to change it.
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

    /// Dequeues the first that may be sent; with its class.
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

    /// Classes of all ports.
    pub const fn queues(&self) -> u32 {
        self.queue_index(self.ports.len() as u32, 0)
    }

    /// A port's classes.
    pub fn classes(&self, port: u32) -> impl ExactSizeIterator<Item = (u8, &Class)> {
        (0..self.classes).map(move |class| (class, self.class(port, class)))
    }

    /// Bytes of data that wait at a port.
    pub fn queued(&self, port: u32) -> u32 {
        self.classes(port).map(|(_, class)| class.queued).sum()
    }

    /// Puts one behind those of its class.
    #[inline(always)]
    pub fn push<T: Linked>(&mut self, port: u32, class: u8, slab: &mut Slab<T>, number: u32) {
        let queue = self.class_mut(port, class);
        *queue.waiting |= queue.bit;
        queue.class.data.push(slab, number);
    }

    /// Dequeues the first that may be sent.
    #[inline(always)]
    pub fn pop<T: Linked>(&mut self, port: u32, slab: &mut Slab<T>) -> Option<u32> {
        let (first, _) = self.next(port, slab)?;
        Some(first)
    }

    /// Data of so many bytes begins to wait: is the port to be woken for it?
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

    /// Data of so many bytes is to go out here, and waits elsewhere in the switch.
    pub fn expect(&mut self, port: u32, class: u8, bytes: u32) {
        self.class_mut(port, class).class.queued += bytes;
    }

    /// Data enters a queue of its switch for this port.
    #[inline]
    pub fn on_enqueue(&mut self, port: u32, class: u8, bytes: u32) {
        let queue = self.class_mut(port, class);
        *queue.waiting |= queue.bit;
        queue.class.queued += bytes;
    }

    /// Data leaves such a queue, which may be `empty` then.
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

    /// PFC: admits a packet that came by a port, which requests a pause of its class once that has used up its share of
    /// the memory: is a frame due? `None` if even its headroom is full.
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

    /// PFC: releases the memory of a packet that came by this port: is a frame due?
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

/// A switch's memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes that its ports share.
    pub pool: u64,
    /// Of those in use.
    pub used: u64,
}

/// How much of the shared memory a port may use for a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// So many bytes.
    Static(u64),
    /// So many 65536ths of what is free (Choudhury and Hahne, "Dynamic queue length thresholds", 1998).
    Dynamic(u64),
}

/// What ports may hold of a class.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of what came by a port (PFC), or waits for it (tail drop).
    pub threshold: Threshold,
    /// The other end resumes when the port is this far below.
    pub gap: u64,
    /// Bytes for what arrives after a pause was requested.
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

    /// PFC: admits a packet; `false`: into the headroom, full or not.
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

    /// PFC: gives the memory of a packet back; headroom first.
    #[inline]
    fn release(&self, memory: &mut Memory, class: &mut Class, bytes: u32) {
        let kept = bytes.min(class.headroom);
        class.headroom -= kept;
        let shared = bytes - kept;
        class.shared -= shared;
        memory.used -= u64::from(shared);
    }

    /// PFC: is there room again for a class that is paused?
    #[inline]
    fn may_resume(&self, memory: &Memory, class: &Class) -> bool {
        class.headroom == 0
            // An empty one goes on whatever others hold: nothing would tell it when they hold less.
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

/// Headroom that no packet overflows: from the moment that a port wants a pause, a frame of its own
/// may hold up the pause frame, and the other end starts frames until that has arrived and ends the
/// last one after it. One more is what tips the port over.
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
        // Two classes of a port are like two ports.
        let mut ports = Ports::new(vec![Port::default()], 2);
        let (a, b) = ((0, 0), (0, 1));
        // Half of what is free: 4 of 12 for one, 6 - 2 = 4 more for nobody.
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
        // Headroom empties first; then the port has to be a gap below its threshold.
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
        let mut ports = Ports::new(vec![Port::default()], 1);
        assert_eq!(ports.admit(&limits, &mut memory, (0, 0), 1_000), Some(true));
        assert!(!ports.release(&limits, &mut memory, (0, 0), 1_000));
        assert_eq!(ports[0].pause_wanted, 0);
    }

    /// A port has its share of the memory, and no more than there is.
    #[test]
    fn tail_drop_is_by_port_and_by_memory() {
        let waits = |queued| Class {
            queued,
            ..Class::default()
        };
        for (threshold, share) in [
            (Threshold::Static(3_000), 3_000),
            // A quarter of what is free.
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

    /// A queue counts as held up from a pause on, until it is empty and may be sent.
    #[test]
    fn a_queue_that_begins_anew_was_not_held_up() {
        let mut ports = Ports::new(vec![Port::default()], 2);
        let mut packets = Slab::default();
        let push = |ports: &mut Ports, packets: &mut Slab<Packet>| {
            let id = packets.insert(Packet::of_link(Kind::Data, 1, 0)).unwrap();
            ports.enqueue((0, 1), packets, id, 64);
        };
        push(&mut ports, &mut packets);
        push(&mut ports, &mut packets);
        assert!(ports[0].set_on(1, false) && !ports[0].set_on(1, false));
        assert_eq!(ports[0].held(), 0b10);
        // It goes on with what was held up.
        assert!(ports[0].set_on(1, true));
        assert_eq!(ports[0].held(), 0b10);
        ports.dequeue(0, &mut packets).unwrap();
        assert_eq!(ports[0].held(), 0b10);
        ports.dequeue(0, &mut packets).unwrap();
        assert_eq!(ports[0].held(), 0);
        // Nothing waited for it to go on.
        assert!(ports[0].set_on(1, false) && ports[0].set_on(1, true));
        push(&mut ports, &mut packets);
        assert_eq!(ports[0].held(), 0);
    }

    /// Each class that waits and may go has its turn, and a port's places are its own.
    #[test]
    fn classes_take_turns() {
        for classes in 1..=MOST_CLASSES {
            let mut ports = Ports::new(vec![Port::default(); 3], classes);
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
            // All but the last one in turn, while that is paused.
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
        // 100 Gb/s and 1 us: 25 kB on the link and back.
        let needed = headroom_needed(12_500_000_000, 1_000_000, 1_062, 64);
        assert_eq!(needed, 25_000 + 3 * 1_062 + 64);
    }
}
