//! Inputs of an input-buffered switch: of each class a first-in, first-out queue before a crossbar, which feeds one
//! output at a time, at the link's rate.
//!
//! The first of a queue requests its output, and outputs serve requests in the order in which they came. What is
//! behind a packet whose output is busy waits, though its own may be idle: head-of-line blocking. With random outputs an input
//! so carries 2 - sqrt(2), 59 %, of its link where there are many ports, and 3/4 where there are two (Karol, Hluchyj and
//! Morgan, "Input versus output queueing on a space-division packet switch", 1987).

use super::cc::Scheme;
use super::packet::{HELD, List, NONE, Packet};
use super::run::{Event, Run};
use crate::engine::{Slab, Time};

/// What waits at an input of one class.
#[derive(Clone, Copy, Debug)]
struct Input {
    /// The output that its first packet requests; [`NONE`] if none does.
    output: u32,
    /// Those behind it.
    behind: List,
    /// End of the transmission that reads it.
    reads_until: Time,
}

/// State of a packet that has to wait at an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is the first, and requests its output.
    First,
    /// It is behind others.
    Behind,
    /// It is behind one that is being read until then, and requests its output afterwards.
    Until(Time),
}

/// The inputs of all switches, by port and class.
#[derive(Clone, Debug)]
pub struct Inputs(Vec<Input>);

impl Inputs {
    /// So many, all empty.
    pub fn new(queues: u32) -> Self {
        let input = Input {
            output: NONE,
            behind: List::default(),
            reads_until: 0,
        };
        Self(vec![input; queues as usize])
    }

    /// Has an arriving packet to wait, even if its output is idle?
    pub const fn is_busy(&self, queue: u32, now: Time) -> bool {
        let input = &self.0.as_slice()[queue as usize];
        input.output != NONE || !input.behind.is_empty() || input.reads_until > now
    }

    /// The output that the first requests, if one waits.
    pub const fn requested(&self, queue: u32) -> Option<u32> {
        match self.0.as_slice()[queue as usize].output {
            NONE => None,
            output => Some(output),
        }
    }

    /// A packet for this output has to wait.
    pub fn enqueue(
        &mut self,
        queue: u32,
        packets: &mut Slab<Packet>,
        id: u32,
        output: u32,
        now: Time,
    ) -> Enqueued {
        let busy = self.is_busy(queue, now);
        let input = &mut self.0[queue as usize];
        if !busy {
            input.output = output;
            return Enqueued::First;
        }
        let reads = input.output == NONE && input.behind.is_empty();
        input.behind.push(packets, id);
        if reads {
            Enqueued::Until(input.reads_until)
        } else {
            Enqueued::Behind
        }
    }

    /// Its first packet, or one that need not wait, is read until then: does another one wait for that?
    pub fn on_read(&mut self, queue: u32, until: Time) -> bool {
        let input = &mut self.0[queue as usize];
        input.output = NONE;
        input.reads_until = until;
        !input.behind.is_empty()
    }

    /// The next to request its output, now that the one before it is read.
    pub fn next(&mut self, queue: u32, packets: &mut Slab<Packet>) -> Option<u32> {
        self.0[queue as usize].behind.pop(packets)
    }

    /// It requests this output.
    pub fn request(&mut self, queue: u32, output: u32) {
        self.0[queue as usize].output = output;
    }

    /// The second of those that wait, or [`NONE`]: the first is at its output.
    pub fn second(&self, queue: u32) -> u32 {
        self.0[queue as usize].behind.head
    }
}

impl<S: Scheme> Run<'_, S> {
    /// A packet waits at the input of a crossbar that it came by.
    #[inline(never)]
    pub(super) fn enqueue_at_input(&mut self, id: u32, ingress: u32, out: u32) {
        let now = self.now();
        let packet = &self.packets[id];
        let (bytes, class) = (u32::from(packet.bytes), packet.class);
        let queue = self.ports.queue_index(ingress, class);
        let Some(inputs) = &mut self.inputs else {
            return;
        };
        let before = inputs.requested(queue);
        let enqueued = inputs.enqueue(queue, &mut self.packets, id, out, now);
        match before {
            // Held up by what goes elsewhere, wherever that is held up.
            Some(before) if before != out && self.congestion_met(before, class).is_some() => {
                self.packets[id].flags |= HELD;
            }
            _ => {
                // What only its own input keeps from an idle output is not congested there.
                let asked = self.ports.class(out, class).first() != NONE;
                let met = self.congestion_met(out, class);
                self.packets[id].flags |= met.filter(|met| *met == HELD || asked).unwrap_or(0);
            }
        }
        if enqueued == Enqueued::First {
            let out_class = (out, class);
            if self.ports.enqueue(out_class, &mut self.packets, id, bytes) {
                self.wake(out);
            }
            return;
        }
        self.ports.expect(out, class, bytes);
        if let Enqueued::Until(read) = enqueued {
            self.at(read, Event::Read, queue);
        }
    }

    /// An input of a crossbar feeds a port that has begun to send.
    #[inline(never)]
    pub(super) fn on_read(&mut self, queue: u32, out: u32) {
        let until = self.ports[out as usize].busy_until;
        if let Some(inputs) = &mut self.inputs
            && inputs.on_read(queue, until)
        {
            self.at(until, Event::Read, queue);
        }
    }

    /// The next packet of an input requests its output.
    #[inline(never)]
    pub(super) fn request_next(&mut self, queue: u32) {
        let (ingress, class) = self.ports.port_and_class(queue);
        let Some(inputs) = &mut self.inputs else {
            return;
        };
        let Some(id) = inputs.next(queue, &mut self.packets) else {
            return;
        };
        let packet = &self.packets[id];
        let switch = self.ports[ingress as usize].node;
        let out = self
            .topology
            .route(switch, packet.destination.into(), packet.hash());
        inputs.request(queue, out);
        self.ports.push(out, class, &mut self.packets, id);
        self.wake(out);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::packet::Kind;

    /// Packets of one input go out in their order, each when the one before it has been read.
    #[test]
    fn an_input_is_read_one_by_one() {
        let mut inputs = Inputs::new(2);
        let mut packets = Slab::default();
        let [first, second, third, late] =
            [0; 4].map(|_| packets.insert(Packet::of_link(Kind::Data, 0, 0)).unwrap());
        assert!(!inputs.is_busy(1, 0));
        assert_eq!(
            inputs.enqueue(1, &mut packets, first, 7, 0),
            Enqueued::First
        );
        assert_eq!((inputs.requested(1), inputs.second(1)), (Some(7), NONE));
        assert_eq!(
            inputs.enqueue(1, &mut packets, second, 8, 0),
            Enqueued::Behind
        );
        assert_eq!(
            inputs.enqueue(1, &mut packets, third, 7, 0),
            Enqueued::Behind
        );
        assert_eq!(inputs.second(1), second);
        // Other inputs are not affected.
        assert!(!inputs.is_busy(0, 0) && inputs.requested(0).is_none());
        assert!(inputs.on_read(1, 100), "another one waits for the end");
        assert!(inputs.is_busy(1, 50) && inputs.requested(1).is_none());
        assert_eq!(inputs.next(1, &mut packets), Some(second));
        inputs.request(1, 8);
        assert_eq!((inputs.requested(1), inputs.second(1)), (Some(8), third));
        assert!(inputs.on_read(1, 200));
        assert_eq!(inputs.next(1, &mut packets), Some(third));
        inputs.request(1, 7);
        assert!(!inputs.on_read(1, 300), "none is behind it");
        // What comes while the last one is read waits for that, though no other does.
        assert!(inputs.is_busy(1, 299) && !inputs.is_busy(1, 300));
        let enqueued = inputs.enqueue(1, &mut packets, late, 9, 299);
        assert_eq!(enqueued, Enqueued::Until(300));
        assert_eq!(inputs.next(1, &mut packets), Some(late));
    }
}
