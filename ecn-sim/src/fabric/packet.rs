//! Packets, and the queues that they wait in.

use crate::engine::Slab;

/// No packet, flow or port.
pub const NONE: u32 = u32::MAX;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data of a flow.
    Data,
    /// All packets before this number have arrived.
    Ack,
    /// The same, and a later one came instead: send again from this number on.
    Nak,
    /// DCQCN's congestion notification.
    Cnp,
    /// PFC: no more data.
    Pause,
    /// PFC: go on.
    Resume,
}

/// A packet, on a link or in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// The flow, [`NONE`] for PFC frames.
    pub flow: u32,
    /// Number of a data packet in its flow; of an ACK: the number of the packet expected next.
    pub number: u32,
    /// Behind it in its queue.
    pub next: u32,
    /// The port that it arrives at.
    pub port: u32,
    /// While it waits in a switch: the port that it came by.
    pub ingress: u32,
    /// The host that it is for.
    pub destination: u32,
    /// Chooses among equal paths.
    pub hash: u32,
    /// Length on the wire.
    pub bytes: u16,
    /// What it is.
    pub kind: Kind,
    /// Congestion experienced.
    pub marked: bool,
}

const _: () = assert!(size_of::<Packet>() == 32);

/// What can be in a [`List`].
pub trait Linked {
    /// The link to the one behind.
    fn next(&mut self) -> &mut u32;
}

impl Linked for Packet {
    #[inline]
    fn next(&mut self) -> &mut u32 {
        &mut self.next
    }
}

/// A first-in, first-out queue of numbers of a [`Slab`], linked through what is in that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List {
    /// The first.
    pub head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self {
            head: NONE,
            tail: NONE,
        }
    }
}

impl List {
    /// Is there none?
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Puts one at the end.
    #[inline]
    pub fn push<T: Linked>(&mut self, slab: &mut Slab<T>, number: u32) {
        *slab[number].next() = NONE;
        if self.head == NONE {
            self.head = number;
        } else {
            *slab[self.tail].next() = number;
        }
        self.tail = number;
    }

    /// Takes the first.
    #[inline]
    pub fn pop<T: Linked>(&mut self, slab: &mut Slab<T>) -> Option<u32> {
        let number = self.head;
        if number == NONE {
            return None;
        }
        self.head = *slab[number].next();
        Some(number)
    }
}
