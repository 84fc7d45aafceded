//! Packets, and the queues that they wait in.

use ecn_core::tcd::Mark;

use crate::engine::{Slab, prefetch};

/// No packet, flow or port.
pub const NONE: u32 = u32::MAX;

/// Bytes of what a port tells the other end: the shortest frame that Ethernet has.
pub const LINK_BYTES: u32 = 64;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data of a flow.
    Data,
    /// All packets before this number have arrived.
    Ack,
    /// The same, and a later one came instead: send again from this number on.
    Nak,
    /// A receiver's notification of marks.
    Cnp,
    /// A switch's notification.
    Cnm,
    /// PFC: no more data of these classes, and all of the others.
    Pause,
    /// The same, of no class that was not paused already.
    Resume,
    /// CBFC: so many blocks of a class may have been sent in all (FCCL).
    Credit,
}

/// Flag of a flow's last packet.
pub const LAST: u8 = 1;
/// Flag of packets that met a queue that a pause, or a lack of credits, holds or held up.
pub const HELD: u8 = 2;
/// Flag of packets that met a long one that nothing held up: congestion.
pub const CROSSES: u8 = 4;

/// A packet, on a link or in a queue: two in a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct Packet {
    /// The place of its flow at the sender, [`NONE`] for what does not leave its link.
    pub flow: u32,
    /// Its flow, by the order of the starts.
    pub id: u32,
    /// Number of a data packet in its flow; of an ACK: the number of the packet expected next; of a
    /// switch's notification: the port and class; of a pause: the classes, as bits.
    pub number: u32,
    /// On a link: the port that it arrives at. In a queue: the one behind it.
    pub link: u32,
    /// When the sender began to send the data, ns, modulo 2^32; with BCN, its tag. Answers say it again; of a
    /// switch's notification, the feedback.
    pub note: u32,
    /// The host that it is from; of answers, the one that they are for.
    pub source: u16,
    /// The host that it is for.
    pub destination: u16,
    /// While it waits in a switch: which of the switch's ports it came by.
    pub ingress: u16,
    /// Length on the wire.
    pub bytes: u16,
    /// What it is.
    pub kind: Kind,
    /// Congestion experienced, or not to be judged; of answers, what the data said.
    pub mark: Mark,
    /// [`LAST`], [`HELD`] and [`CROSSES`]; of answers, what the data said.
    pub flags: u8,
    /// Its class of data; of answers, that of what they answer.
    pub class: u8,
}

const _: () = assert!(size_of::<Packet>() == 32);

impl Packet {
    /// Chooses among equal paths; what goes back takes ways of its own.
    #[inline]
    pub const fn hash(&self) -> u32 {
        match self.kind {
            Kind::Data => self.id,
            _ => !self.id,
        }
    }

    /// What a port tells the one at the other end.
    pub const fn of_link(kind: Kind, class: u8, number: u32) -> Self {
        Self {
            flow: NONE,
            id: 0,
            number,
            link: NONE,
            note: 0,
            source: 0,
            destination: 0,
            ingress: 0,
            bytes: LINK_BYTES as u16,
            kind,
            mark: Mark::None,
            flags: 0,
            class,
        }
    }
}

/// What can be in a [`List`].
pub trait Linked {
    /// The link to the one behind.
    fn next(&mut self) -> &mut u32;
}

impl Linked for Packet {
    #[inline]
    fn next(&mut self) -> &mut u32 {
        &mut self.link
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
        (!self.is_empty()).then(|| self.shift(slab))
    }

    /// Takes the first, which has to be there.
    #[inline]
    pub fn shift<T: Linked>(&mut self, slab: &mut Slab<T>) -> u32 {
        let number = self.head;
        self.head = *slab[number].next();
        // It is next.
        slab.get(self.head).map(prefetch);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a flow all packets take one way, and all answers another one, where there are several.
    #[test]
    fn answers_take_ways_of_their_own() {
        let hash = |kind, id| {
            let packet = Packet {
                id,
                ..Packet::of_link(kind, 0, 0)
            };
            packet.hash()
        };
        for id in 1..100 {
            let [ack, nak, cnp, cnm] =
                [Kind::Ack, Kind::Nak, Kind::Cnp, Kind::Cnm].map(|kind| hash(kind, id));
            assert_ne!(hash(Kind::Data, id), ack);
            assert!([nak, cnp, cnm] == [ack; 3]);
            assert_ne!(hash(Kind::Data, id), hash(Kind::Data, id + 1));
        }
    }
}
