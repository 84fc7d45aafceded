//! A Linux bridge: a queue at each output port, and the marking of `ecn-core` at the hooks of the kernel programs.

use std::collections::{HashMap, VecDeque};

use ecn_core::abi::PortEventKind;
use ecn_core::backward::{self, Point, Sample, Sampling};
use ecn_core::marking::{self, BACKLOG_UNKNOWN, Decision, MarkAt, Switch};
use ecn_core::shares::{self, Shares};
use ecn_core::vqueue;
use foldhash::fast::FixedState;

use crate::counters::{BySize, PortTotals, counters};
use crate::model::Model;
use crate::trace::{Event, Trace};

/// A packet in a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    /// The packet's number.
    pub packet: u32,
    arrival: vqueue::PacketMeta,
}

/// Outcome of a packet's arrival at an output port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The packet waits.
    Queued {
        /// Whether it was marked.
        marked: bool,
    },
    /// The queue was full, or the packet cannot be marked and exceeded its source's share.
    Dropped {
        /// Whether it was marked before.
        marked: bool,
    },
}

/// Maximum number of sources that a bridge counts.
const SOURCES: usize = 1024;

/// Counters and shares, which one lock protects in the kernel programs.
#[derive(Debug, Default)]
struct Marked<const N: usize> {
    switch: Switch<N>,
    shares: Shares<N, SOURCES>,
}

/// A bridge. Ports are numbered by their slots, from 1 on.
#[derive(Debug)]
pub(crate) struct Bridge {
    counters: BySize<Marked<16>, Marked<64>, Marked<256>>,
    policy: marking::Policy,
    limit: usize,
    trace: Option<Box<Trace>>,
    backward: backward::Policy,
    /// By slot of the output port.
    points: Vec<Point>,
    /// Flows that an output port has slowed down, with the time of the last such notification.
    tagged: HashMap<(u8, u32), u64, FixedState>,
    /// By slot of the output port.
    pub queues: Vec<VecDeque<Queued>>,
}

impl Bridge {
    /// An idle bridge with port slots below `slots`.
    ///
    /// Its first `traced` events are recorded.
    pub(crate) fn new(
        name: &str,
        slots: u32,
        model: &Model,
        sampling: Sampling,
        traced: usize,
    ) -> Self {
        let policy = model.marking_policy(name, slots);
        Self {
            counters: BySize::new(slots as usize),
            policy,
            backward: backward::Policy {
                sampling,
                ..model.backward_policy()
            },
            tagged: HashMap::default(),
            points: vec![Point::default(); slots as usize],
            trace: (traced > 0).then(|| Box::new(Trace::new(policy, traced))),
            limit: model.queue as usize,
            queues: vec![VecDeque::new(); slots as usize],
        }
    }

    /// The bridge has chosen the output port: `ecn_port_out`, then the queue, then `ecn_drop` if the queue is full.
    pub(crate) fn arrive(&mut self, packet: u32, arrival: vqueue::PacketMeta) -> Arrival {
        let (policy, vqueue::PacketMeta { input, output, .. }) = (self.policy, arrival);
        let decision = counters!(&mut self.counters, c => c.shares.on_enqueue(&mut c.switch, &policy, &arrival));
        self.record(PortEventKind::Enqueue, input, output, decision);
        if decision.drop != 0 {
            return Arrival::Dropped { marked: false };
        }
        let marked = decision.mark != 0;
        let queue = &mut self.queues[output as usize];
        if queue.len() >= self.limit {
            counters!(&mut self.counters, c => c.switch.on_drop(input, output, 1));
            self.record(PortEventKind::Drop, input, output, Decision::default());
            return Arrival::Dropped { marked };
        }
        queue.push_back(Queued { packet, arrival });
        Arrival::Queued { marked }
    }

    /// Whether a packet can be marked; `capable`: it is ECN-capable.
    pub(crate) const fn is_markable(&self, capable: bool) -> bool {
        self.backward.is_markable(capable, true)
    }

    /// Accounts for a packet marked at an output port. Returns the number of marks that the message reports and the
    /// message's number, if one is due.
    pub(crate) fn message(&mut self, output: u8, now_ns: u64) -> Option<(u32, u32)> {
        self.points[output as usize].mark(&self.backward, 1, now_ns)
    }

    /// Decides whether to sample a packet that enters an output's queue (or would, if the queue were not full). If so,
    /// returns the feedback for its source and the message's number. `began_ns`: when the packet's flow began.
    pub(crate) fn sample(
        &mut self,
        arrival: &vqueue::PacketMeta,
        flow: u32,
        began_ns: u64,
    ) -> Option<(u32, u32)> {
        let (output, now_ns) = (arrival.output, arrival.now_ns);
        let waiting = counters!(&self.counters, c => c.switch.ports[output as usize]).cnt1;
        let point = &mut self.points[output as usize];
        let sampling = &self.backward.sampling;
        let sample = point.sample(sampling, arrival.packets, arrival.bytes, waiting)?;
        let tag = self.tagged.get(&(output, flow));
        // The number may have belonged to an earlier flow.
        let tagged =
            tag.is_some_and(|&since| since >= began_ns && now_ns - since <= backward::TAG_NS);
        if !sample.is_for(tagged) {
            return None;
        }
        let sequence = point.next_message(&self.backward, now_ns)?;
        if sample.0 & Sample::FALLS != 0 {
            self.tagged.insert((output, flow), now_ns);
        }
        Some((sample.0 as u32, sequence))
    }

    /// Messages sent by its ports.
    pub(crate) fn messages(&self) -> u64 {
        self.points.iter().map(|point| point.sent).sum()
    }

    /// Dequeues the next packet of an output. Returns its number, and whether it is marked: `ecn_depart`, then
    /// `ecn_wire_end` at the device's peer, which the packet reaches at once.
    pub(crate) fn depart(&mut self, output: u8) -> Option<(u32, bool)> {
        let queue = &mut self.queues[output as usize];
        let Queued { packet, arrival } = queue.pop_front()?;
        let (policy, input) = (self.policy, arrival.input);
        let decision = counters!(&mut self.counters, c => c.shares.on_dequeue(&mut c.switch, &policy, &arrival));
        self.record(PortEventKind::Dequeue, input, output, decision);
        let marked = policy.mark_at == MarkAt::Departure as u32 && {
            let marked = counters!(&mut self.counters, c => c.switch.wire_end(output, 1));
            let decision = Decision {
                mark: marked.into(),
                ..Decision::default()
            };
            self.record(PortEventKind::WireEnd, input, output, decision);
            marked
        };
        Some((packet, marked))
    }

    /// Adds a completed event to the trace, if the bridge is traced.
    #[inline]
    fn record(&mut self, kind: PortEventKind, input: u8, output: u8, decision: Decision) {
        let Some(trace) = self.trace.as_mut().filter(|trace| !trace.is_full()) else {
            return;
        };
        let slots = self.queues.len();
        trace.events.push(Event {
            kind,
            input,
            output,
            backlog: match kind {
                PortEventKind::Dequeue => self.queues[output as usize].len() as u32,
                _ => BACKLOG_UNKNOWN,
            },
            decision,
            ports: counters!(&self.counters, c => c.switch.ports[..slots].to_vec()),
        });
    }

    /// Takes the recorded trace.
    pub(crate) fn take_trace(&mut self) -> Option<Trace> {
        self.trace.take().map(|trace| *trace)
    }

    /// A port's totals.
    pub(crate) fn totals(&self, slot: u8) -> PortTotals {
        counters!(&self.counters, c => c.switch.ports[slot as usize]).into()
    }

    /// Whether packets recently waited at an output, for echoes that request headroom.
    pub(crate) fn is_busy(&self, output: u8, now_ns: u64) -> bool {
        let busy_until =
            counters!(&self.counters, c => c.shares.outputs[output as usize].busy_until);
        shares::Output::is_busy(busy_until, now_ns)
    }

    /// Compares counters with queues: `cnt1` of each output, the occupancy of each input; also checks that nothing had
    /// to be repaired.
    ///
    /// # Errors
    ///
    /// Describes the first difference.
    pub(crate) fn check(&self) -> Result<(), String> {
        for slot in 0..self.queues.len() {
            let port = counters!(&self.counters, c => c.switch.ports[slot]);
            let held = self.queues.iter().flatten();
            let held = held
                .filter(|queued| queued.arrival.input as usize == slot)
                .count();
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
