//! A Linux bridge: a queue at each output port, and `ecn-core`'s marking called where the kernel
//! programs call it.

use std::collections::VecDeque;

use ecn_core::marking::{self, MarkAt};

use crate::counters::{Counters, PortTotals, counters};
use crate::model::Model;

/// A packet in a queue.
#[derive(Clone, Copy, Debug)]
pub struct Queued {
    /// Its number.
    pub packet: u32,
    /// Slot of its input port.
    input: u8,
}

/// What became of a packet at an output port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It waits.
    Queued {
        /// It was marked.
        marked: bool,
    },
    /// The queue was full.
    Dropped,
}

/// A bridge. Ports are numbered by their slots, from 1 on.
#[derive(Debug)]
pub struct Bridge {
    counters: Counters,
    policy: marking::Policy,
    limit: usize,
    /// The queues, by slot of the output port.
    pub queues: Vec<VecDeque<Queued>>,
}

impl Bridge {
    /// An idle bridge with port slots below `slots`.
    pub fn new(name: &str, slots: u32, model: &Model) -> Self {
        Self {
            counters: Counters::new(slots as usize),
            policy: model.marking_policy(name, slots),
            limit: model.queue as usize,
            queues: vec![VecDeque::new(); slots as usize],
        }
    }

    /// The bridge has chosen the output: `ecn_port_out`, then the queue, then `ecn_drop` if it is full.
    pub fn arrive(&mut self, packet: u32, input: u8, output: u8) -> Arrival {
        let policy = self.policy;
        let decision =
            counters!(&mut self.counters, c => c.arrive(&policy, input, output, 1, true));
        let queue = &mut self.queues[output as usize];
        if queue.len() >= self.limit {
            counters!(&mut self.counters, c => c.drop_queued(input, output, 1));
            return Arrival::Dropped;
        }
        queue.push_back(Queued { packet, input });
        Arrival::Queued {
            marked: decision.mark != 0,
        }
    }

    /// Takes the next packet off an output's queue; whether it is marked: `ecn_depart`, then
    /// `ecn_wire_end` at the device's peer, which the packet reaches at once.
    pub fn depart(&mut self, output: u8) -> Option<(u32, bool)> {
        let queue = &mut self.queues[output as usize];
        let Queued { packet, input } = queue.pop_front()?;
        let (policy, backlog) = (self.policy, queue.len() as u32);
        let marked = counters!(&mut self.counters, c => {
            c.depart(&policy, input, output, 1, true, backlog);
            policy.mark_at == MarkAt::Departure as u32 && c.wire_end(output, 1)
        });
        Some((packet, marked))
    }

    /// A port's totals.
    pub fn totals(&self, slot: u8) -> PortTotals {
        self.counters.totals(slot)
    }

    /// Compares the counters with the queues: `cnt1` of each output, the occupancy of each input, and
    /// that nothing had to be repaired.
    ///
    /// # Errors
    ///
    /// Says which differs.
    pub fn check(&self) -> Result<(), String> {
        for slot in 0..self.queues.len() {
            let port = counters!(&self.counters, c => c.ports[slot]);
            let held = self.queues.iter().flatten();
            let held = held.filter(|queued| queued.input as usize == slot).count();
            let queued = self.queues[slot].len();
            if port.cnt1 as usize != queued
                || port.occupancy as usize != held
                || port.repaired != 0
                || queued > self.limit
            {
                return Err(format!(
                    "port {slot}: cnt1 {} of {queued} queued, occupancy {} of {held}, {} repaired",
                    port.cnt1, port.occupancy, port.repaired
                ));
            }
        }
        Ok(())
    }
}
