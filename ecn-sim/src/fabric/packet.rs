//! Packets and their queues.

use ecn_core::tcd::Mark;

use crate::engine::{Slab, prefetch};

/// No packet, flow or port.
pub const NONE: u32 = u32::MAX;

/// Length of messages between the two ends of a link: the minimum Ethernet frame.
pub const LINK_BYTES: u32 = 64;

/// Kind of packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data of a flow.
    Data,
    /// ACK: all packets below this number have arrived.
    Ack,
    /// NAK: like an ACK, but a later packet arrived instead of this one: resend from it on.
    Nak,
    /// A receiver's notification of marks.
    Cnp,
    /// A switch's notification.
    Cnm,
    /// PFC: send no data of these classes; all others may be sent.
    Pause,
    /// Like [`Self::Pause`], if it pauses no class that was not paused before.
    Resume,
    /// CBFC: limit of the blocks sent in a class since the start (FCCL).
    Credit,
}

/// Flag of a flow's last packet.
pub const LAST: u8 = 1;
/// Flag of packets that met a queue that is or was held up by a pause, or by a lack of credits.
pub const HELD: u8 = 2;
/// Flag of packets that met a long queue that was not held up: congestion.
pub const CROSSES: u8 = 4;

/// A packet, on a link or in a queue: two in a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub struct Packet {
    /// Slot of its flow at the sender; [`NONE`] for packets that do not leave their link.
    pub flow: u32,
    /// Number of its flow, in order of starts.
    pub id: u32,
    /// For data, the packet's number in its flow; for an ACK, the number expected next; for a switch's notification,
    /// the port and class; for a pause, the classes, as bits.
    pub number: u32,
    /// On a link: the port at which it arrives. In a queue: the next packet.
    pub link: u32,
    /// Departure time of the data at its sender, ns, modulo 2^32, or its tag with BCN; copied into answers. For a
    /// switch's notification, the feedback.
    pub note: u32,
    /// The sending host; in a switch's notification, the destination of the data.
    pub source: u16,
    /// The destination host.
    pub destination: u16,
    /// While it waits in a switch: index of the port at which it arrived.
    pub ingress: u16,
    /// Length on the wire, bytes.
    pub bytes: u16,
    /// Kind of packet.
    pub kind: Kind,
    /// Congestion experienced, or undetermined; in answers, that of the data.
    pub mark: Mark,
    /// [`LAST`], [`HELD`] and [`CROSSES`]; in answers, those of the data.
    pub flags: u8,
    /// Class of its data; in answers, that of the data answered.
    pub class: u8,
}

const _: () = assert!(size_of::<Packet>() == 32);

impl Packet {
    /// Selects among equal paths; answers take other paths than data.
    #[inline]
    pub const fn hash(&self) -> u32 {
        match self.kind {
            Kind::Data => self.id,
            _ => !self.id,
        }
    }

    /// A message of a port to the one at the other end of its link.
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

/// Elements of a [`List`].
pub trait Linked {
    /// The link to the next element.
    fn next(&mut self) -> &mut u32;
}

impl Linked for Packet {
    #[inline]
    fn next(&mut self) -> &mut u32 {
        &mut self.link
    }
}

/// A FIFO queue of numbers of a [`Slab`], linked through its elements.
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
    /// Whether the list is empty.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Appends an element.
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

    /// Removes the first element.
    #[inline]
    pub fn pop<T: Linked>(&mut self, slab: &mut Slab<T>) -> Option<u32> {
        (!self.is_empty()).then(|| self.shift(slab))
    }

    /// Removes the first element, which must exist.
    #[inline]
    pub fn shift<T: Linked>(&mut self, slab: &mut Slab<T>) -> u32 {
        let number = self.head;
        self.head = *slab[number].next();
        // It will be used next.
        slab.get(self.head).map(prefetch);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All packets of a flow take one path, and all answers another, if there are several.
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
