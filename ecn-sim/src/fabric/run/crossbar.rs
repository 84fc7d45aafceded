//! Inputs of an input-buffered switch: a FIFO queue per class in front of a crossbar, through which an input feeds one
//! output at a time, at the link's rate.
//!
//! The first packet of a queue requests its output, and outputs serve requests in order of arrival. Packets behind one
//! whose output is busy wait, even if their own outputs are idle: head-of-line blocking. With random outputs, an input
//! can therefore use 2 - sqrt(2), 59 %, of its link if there are many ports, and 3/4 if there are two (Karol, Hluchyj
//! and Morgan, "Input versus output queueing on a space-division packet switch", 1987).

use super::{Event, Run};
use crate::engine::{Slab, Time};
use crate::fabric::cc::Scheme;
use crate::fabric::packet::{HELD, List, NONE, Packet};

/// The packets of one class that wait at an input.
#[derive(Clone, Copy, Debug)]
struct Input {
    /// The output requested by its first packet; [`NONE`] if none waits.
    output: u32,
    /// The packets behind it.
    behind: List,
    /// End of the transmission that reads from it.
    reads_until: Time,
}

/// State of a packet that must wait at an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// First in its queue; it requests its output.
    First,
    /// Behind other waiting packets.
    Behind,
    /// Behind a packet that is being read until this time; it requests its output then.
    Until(Time),
}

/// The inputs of all switches, by port and class.
#[derive(Clone, Debug)]
pub struct Inputs(Vec<Input>);

impl Inputs {
    /// `queues` empty inputs.
    pub fn new(queues: u32) -> Self {
        let input = Input {
            output: NONE,
            behind: List::default(),
            reads_until: 0,
        };
        Self(vec![input; queues as usize])
    }

    /// Whether an arriving packet must wait, even if its output is idle.
    pub const fn is_busy(&self, queue: u32, now: Time) -> bool {
        let input = &self.0.as_slice()[queue as usize];
        input.output != NONE || !input.behind.is_empty() || input.reads_until > now
    }

    /// The output requested by the first packet, if one waits.
    pub const fn requested(&self, queue: u32) -> Option<u32> {
        match self.0.as_slice()[queue as usize].output {
            NONE => None,
            output => Some(output),
        }
    }

    /// Queues a packet for this output, which must wait.
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

    /// The first packet, or one that need not wait, is read until `until`. Returns whether another one waits for that.
    pub fn on_read(&mut self, queue: u32, until: Time) -> bool {
        let input = &mut self.0[queue as usize];
        input.output = NONE;
        input.reads_until = until;
        !input.behind.is_empty()
    }

    /// Dequeues the packet that requests its output next, after the one before it was read.
    pub fn next(&mut self, queue: u32, packets: &mut Slab<Packet>) -> Option<u32> {
        self.0[queue as usize].behind.pop(packets)
    }

    /// Records the output that is requested.
    pub fn request(&mut self, queue: u32, output: u32) {
        self.0[queue as usize].output = output;
    }

    /// The second waiting packet, or [`NONE`]: the first is in its output's queue.
    pub fn second(&self, queue: u32) -> u32 {
        self.0[queue as usize].behind.head
    }
}

impl<S: Scheme> Run<'_, S> {
    /// Queues a packet at the input of a crossbar at which it arrived.
    #[inline(never)]
    pub(in crate::fabric) fn enqueue_at_input(&mut self, id: u32, ingress: u32, out: u32) {
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
            // Held up by a packet for another output, wherever that is held up.
            Some(before) if before != out && self.congestion_met(before, class).is_some() => {
                self.packets[id].flags |= HELD;
            }
            _ => {
                // If only its own input keeps it from an idle output, that output is not congested.
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

    /// An input of a crossbar feeds a port that has started to send.
    #[inline(never)]
    pub(in crate::fabric) fn on_read(&mut self, queue: u32, out: u32) {
        let until = self.ports[out as usize].busy_until;
        if let Some(inputs) = &mut self.inputs
            && inputs.on_read(queue, until)
        {
            self.at(until, Event::Read, queue);
        }
    }

    /// The next packet of an input requests its output.
    #[inline(never)]
    pub(in crate::fabric) fn request_next(&mut self, queue: u32) {
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

    /// Packets of one input leave in order, each after the previous one has been read.
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
        // A packet that arrives while the last one is read waits for that, although no other packet waits.
        assert!(inputs.is_busy(1, 299) && !inputs.is_busy(1, 300));
        let enqueued = inputs.enqueue(1, &mut packets, late, 9, 299);
        assert_eq!(enqueued, Enqueued::Until(300));
        assert_eq!(inputs.next(1, &mut packets), Some(late));
    }
}
