//! A run, event by event.
//!
//! A packet takes one event per link, its arrival at the other end, and one more where something waits
//! for the port that it leaves by. Links are alike, so arrivals of packets of one size come in the
//! order in which they were sent, and are not sorted.

mod invariants;

use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::host::Flow;
use super::measure::Finished;
use super::packet::{Kind, NONE, Packet};
use super::parameters::{ACK_EXTRA, CNP_EXTRA, FlowControl, PAUSE_BYTES, Scenario, Thresholds};
use super::scheme::{self, Scheme};
use super::switch::{Limits, Memory, Port, Red, Threshold};
use super::topology::Topology;
use super::workload::{Arrival, Arrivals, arrivals};
use crate::engine::{Calendar, Lanes, NS, Slab, Time, WORD};
use crate::model::ModelError;
use crate::units::Size;

/// What happens to the packet, port or flow whose number comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A packet is at the end of its link.
    Arrive,
    /// A port's transmission ends.
    Free,
    /// A flow's rate allows its next packet.
    Paced,
    /// A flow looks for progress.
    Timer,
    /// The next flow starts.
    Start,
}

/// Bits of an event's number.
const INDEX: u32 = WORD - 3;

impl Event {
    const fn word(self, number: u32) -> u32 {
        (self as u32) << INDEX | number
    }
}

/// Lines of the agenda: arrivals and ends of full packets and of ACKs. [`Self::OTHERS`] is none.
struct Line;

impl Line {
    const DATA: usize = 0;
    const ACKS: usize = 1;
    const DATA_ENDS: usize = 2;
    const ACK_ENDS: usize = 3;
    const COUNT: usize = 4;
    const OTHERS: usize = Self::COUNT;
}

/// Why there is no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// A value that makes no sense.
    #[error(transparent)]
    Value(#[from] ModelError),
    /// What always holds does not.
    #[error("broken invariant: {what}, at {place}, at {ns} ns")]
    Invariant {
        /// Which.
        what: String,
        /// Where.
        place: String,
        /// When, ns.
        ns: Time,
    },
    /// There is something waiting, and nothing to come.
    #[error(
        "deadlock: {waiting} packets wait, the first at {place}, and nothing moves after {ns} ns"
    )]
    Deadlock {
        /// Packets.
        waiting: u64,
        /// Where one of them waits.
        place: String,
        /// Since when, ns.
        ns: Time,
    },
    /// More than can be told apart.
    #[error("more than 16777216 {0} at once: make the scenario smaller")]
    TooMany(&'static str),
}

/// Events between two looks at everything.
const CHECK_EVENTS: u64 = 1 << 22;

/// What a run counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Flows that started.
    pub flows_started: u64,
    /// Those that are finished.
    pub finished: Vec<Finished>,
    /// When the last of them was.
    pub last_end: Time,
    /// Data packets that did not fit.
    pub dropped_packets: u64,
    /// PFC frames that ask for a pause.
    pub pause_frames: u64,
    /// Data packets that were marked.
    pub marked_packets: u64,
    /// Links that data packets crossed.
    pub data_packet_hops: u64,
    /// Links that packets crossed.
    pub packet_hops: u64,
    /// Events.
    pub events: u64,
    /// Most packets at once.
    pub most_packets: u64,
}

/// A run that goes on.
pub struct Run<'a> {
    pub(super) topology: &'a Topology,
    agenda: Lanes<Calendar, { Line::COUNT }>,
    pub(super) ports: Vec<Port>,
    memories: Vec<Memory>,
    pub(super) packets: Slab<Packet>,
    pub(super) flows: Slab<Flow>,
    pub(super) scheme: Scheme,
    arrivals: Arrivals,
    upcoming: Option<Arrival>,
    random: Pcg64Mcg,
    limits: Limits,
    red: Option<Red>,
    pub(super) lossless: bool,
    pub(super) payload: u32,
    pub(super) header: u32,
    pub(super) ack_bytes: u32,
    pub(super) cnp_bytes: u32,
    /// Packets that a flow may have in flight.
    pub(super) window: u32,
    pub(super) retransmit_after: Time,
    pub(super) delay: Time,
    limit: Time,
    /// Picoseconds per byte, in 2^-20.
    byte_time: u64,
    data_time: Time,
    ack_time: Time,
    pub(super) counts: Counts,
    pub(super) data_sent: u64,
    pub(super) data_delivered: u64,
    data_on_links: u64,
    error: Option<RunError>,
}

impl<'a> Run<'a> {
    /// A run of a scenario on its topology.
    ///
    /// # Errors
    ///
    /// A value that makes no sense, or a file that cannot be read.
    pub fn new(scenario: &Scenario, topology: &'a Topology, seed: u64) -> Result<Self, ModelError> {
        scenario.check()?;
        let own = &scenario.parameters;
        let rules = scenario.dcqcn.rules(own.link_rate)?;
        let lossless = own.flow_control == FlowControl::Pfc;
        let frame = scenario.frame();
        let headroom = scenario.headroom();
        let ports = topology.peer.iter().zip(&topology.node);
        let ports = ports.map(|(&peer, &node)| Port {
            peer,
            node,
            ..Port::default()
        });
        let shared = own.buffer.bytes() - headroom;
        let switches = 0..topology.names.len() as u32;
        let memories = switches.map(|switch| Memory {
            pool: shared * topology.ports(switch).len() as u64,
            used: 0,
        });
        let dcqcn = own.scheme == scheme::Name::Dcqcn;
        let (kmin, kmax) = scenario.dcqcn.thresholds(own.link_rate);
        let pmax = scenario.dcqcn.pmax;
        let rate = u128::from(own.link_rate.bytes_per_s());
        let window = own.window.or(Size::from_bytes(u64::MAX)).bytes() / u64::from(own.payload);
        let mut arrivals = arrivals(own, seed)?;
        let mut run = Self {
            agenda: Lanes::default(),
            ports: ports.collect(),
            memories: memories.collect(),
            packets: Slab::default(),
            flows: Slab::default(),
            scheme: if dcqcn {
                Scheme::Dcqcn(rules, Vec::new())
            } else {
                Scheme::None
            },
            upcoming: arrivals.next(),
            arrivals,
            // Not the workload's stream.
            random: Pcg64Mcg::seed_from_u64(seed ^ 1 << 63),
            limits: Limits {
                threshold: match own.thresholds {
                    Thresholds::Dynamic => {
                        let (n, d) = (own.alpha.numerator(), own.alpha.denominator());
                        Threshold::Dynamic((u64::from(n) << 16) / u64::from(d))
                    }
                    Thresholds::Static => Threshold::Static(own.xoff.bytes()),
                },
                gap: own
                    .xon_gap
                    .or(Size::from_bytes(2 * u64::from(frame)))
                    .bytes(),
                headroom: headroom as u32,
            },
            red: dcqcn.then(|| Red {
                kmin: kmin as u32,
                kmax: kmax as u32,
                pmax: (u64::from(pmax.numerator()) << 32) / u64::from(pmax.denominator()),
            }),
            lossless,
            payload: own.payload,
            header: own.header,
            ack_bytes: own.header + ACK_EXTRA,
            cnp_bytes: own.header + CNP_EXTRA,
            window: u32::try_from(window).unwrap_or(u32::MAX),
            retransmit_after: own.retransmit_after.as_nanos().saturating_mul(NS),
            delay: scenario.delay(),
            limit: own.limit.as_nanos() * NS,
            byte_time: ((1_000_000_000_000 << 20) / rate) as u64,
            data_time: 0,
            ack_time: 0,
            topology,
            counts: Counts::default(),
            data_sent: 0,
            data_delivered: 0,
            data_on_links: 0,
            error: None,
        };
        (run.data_time, run.ack_time) = (run.wire_time(frame), run.wire_time(run.ack_bytes));
        Ok(run)
    }

    /// Runs to the end: all flows are finished, or time is up.
    ///
    /// # Errors
    ///
    /// What always holds does not: nothing is dropped with PFC, nothing gets lost otherwise, and
    /// something moves as long as packets wait.
    pub fn run(mut self) -> Result<Counts, RunError> {
        if let Some(first) = self.upcoming {
            self.at(first.start, Event::Start, 0);
        }
        let mut until_check = CHECK_EVENTS;
        while let Some(word) = self.agenda.pop() {
            if self.now() > self.limit {
                break;
            }
            self.counts.events += 1;
            let number = word & ((1 << INDEX) - 1);
            match word >> INDEX {
                0 => self.arrive(number),
                1 => {
                    self.ports[number as usize].wakes = false;
                    self.serve(number);
                }
                2 => self.paced(number),
                3 => self.timer(number),
                _ => self.start_due(),
            }
            until_check -= 1;
            if until_check == 0 {
                until_check = CHECK_EVENTS;
                self.check();
            }
            if let Some(error) = self.error.take() {
                return Err(error);
            }
        }
        self.check();
        let unfinished = self.counts.flows_started - self.counts.finished.len() as u64;
        if self.error.is_none() && self.now() <= self.limit {
            if unfinished > 0 {
                self.deadlock();
            } else if !(self.packets.is_empty() && self.flows.is_empty()) {
                self.broken("packets or flows are left when all is finished", 0);
            }
        }
        self.counts.most_packets = self.packets.most() as u64;
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.counts),
        }
    }

    /// The time.
    #[inline]
    pub(super) const fn now(&self) -> Time {
        self.agenda.now()
    }

    #[inline]
    pub(super) fn at(&mut self, time: Time, event: Event, number: u32) {
        self.agenda.at(Line::OTHERS, time, event.word(number));
    }

    fn start_due(&mut self) {
        while let Some(arrival) = self.upcoming {
            if arrival.start > self.now() {
                return self.at(arrival.start, Event::Start, 0);
            }
            self.upcoming = self.arrivals.next();
            self.start(arrival);
        }
    }

    /// Time that a packet takes to go on a link.
    #[inline]
    pub(super) const fn wire_time(&self, bytes: u32) -> Time {
        (bytes as u64 * self.byte_time) >> 20
    }

    /// A port sends, and is busy until that is done.
    #[inline]
    pub(super) fn transmit(&mut self, number: u32, id: u32) {
        let now = self.now();
        let bytes = u32::from(self.packets[id].bytes);
        let other_time = self.wire_time(bytes);
        let packet = &mut self.packets[id];
        let port = &mut self.ports[number as usize];
        packet.port = port.peer;
        let (time, arrives, ends) = match packet.kind {
            Kind::Ack | Kind::Nak => (self.ack_time, Line::ACKS, Line::ACK_ENDS),
            Kind::Data if bytes == self.payload + self.header => {
                (self.data_time, Line::DATA, Line::DATA_ENDS)
            }
            _ => (other_time, Line::OTHERS, Line::OTHERS),
        };
        self.counts.packet_hops += 1;
        let is_data = u64::from(packet.kind == Kind::Data);
        self.counts.data_packet_hops += is_data;
        self.data_on_links += is_data;
        let end = now + time;
        port.busy_until = end;
        self.agenda
            .at(arrives, end + self.delay, Event::Arrive.word(id));
        if port.has_work() {
            port.wakes = true;
            self.agenda.at(ends, end, Event::Free.word(number));
        }
    }

    /// A port has something new to do: it does it now, or when its transmission ends.
    #[inline]
    pub(super) fn wake(&mut self, number: u32) {
        let now = self.now();
        let port = &mut self.ports[number as usize];
        if port.wakes || !port.has_work() {
            return;
        }
        if port.busy_until > now {
            port.wakes = true;
            let end = port.busy_until;
            self.at(end, Event::Free, number);
        } else {
            self.serve(number);
        }
    }

    /// An idle port sends what comes first: PFC, control, data.
    #[inline]
    fn serve(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        if port.pause_wanted != port.pause_sent {
            return self.send_pause(number);
        }
        if let Some(id) = port.control.pop(&mut self.packets) {
            return self.transmit(number, id);
        }
        if port.paused {
            return;
        }
        if number < self.topology.hosts {
            self.emit(number);
            return;
        }
        let Some(id) = port.data.pop(&mut self.packets) else {
            return;
        };
        let packet = &self.packets[id];
        let bytes = u32::from(packet.bytes);
        let ingress = packet.ingress;
        port.queued -= bytes;
        let switch = port.node as usize;
        self.transmit(number, id);
        let memory = &mut self.memories[switch];
        if self.lossless {
            let port = &mut self.ports[ingress as usize];
            self.limits.give(memory, port, bytes);
            if port.pause_wanted != port.pause_sent {
                self.wake(ingress);
            }
        } else {
            memory.used -= u64::from(bytes);
        }
    }

    #[cold]
    fn send_pause(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        port.pause_sent = port.pause_wanted;
        let kind = if port.pause_sent {
            self.counts.pause_frames += 1;
            Kind::Pause
        } else {
            Kind::Resume
        };
        let frame = Packet {
            flow: NONE,
            number: 0,
            next: NONE,
            port: NONE,
            ingress: NONE,
            destination: NONE,
            hash: 0,
            bytes: PAUSE_BYTES as u16,
            kind,
            marked: false,
        };
        match self.packets.insert(frame) {
            Some(id) => self.transmit(number, id),
            None => self.too_many("packets"),
        }
    }

    /// A host sends an ACK or a CNP.
    #[inline]
    pub(super) fn send_control(&mut self, number: u32, id: u32) {
        let now = self.now();
        let port = &mut self.ports[number as usize];
        if !port.wakes && port.busy_until <= now && port.pause_wanted == port.pause_sent {
            return self.transmit(number, id);
        }
        port.control.push(&mut self.packets, id);
        self.wake(number);
    }

    /// A packet is at the end of its link.
    #[inline]
    fn arrive(&mut self, id: u32) {
        let packet = &self.packets[id];
        let (number, kind) = (packet.port, packet.kind);
        self.data_on_links -= u64::from(kind == Kind::Data);
        match kind {
            Kind::Pause | Kind::Resume => {
                self.packets.remove(id);
                self.ports[number as usize].paused = kind == Kind::Pause;
                self.wake(number);
            }
            _ if number < self.topology.hosts => self.receive(id),
            _ => self.forward(id, number),
        }
    }

    /// A switch sends a packet on, or lets it wait.
    #[inline]
    fn forward(&mut self, id: u32, ingress: u32) {
        let now = self.now();
        let packet = &mut self.packets[id];
        let switch = self.ports[ingress as usize].node;
        let out = self.topology.route(switch, packet.destination, packet.hash);
        let port = &mut self.ports[out as usize];
        if packet.kind != Kind::Data {
            return self.send_control(out, id);
        }
        if !port.wakes && port.busy_until <= now && !port.paused && port.data.is_empty() {
            // It does not wait: it takes no memory.
            return self.transmit(out, id);
        }
        let bytes = u32::from(packet.bytes);
        if let Some(red) = &self.red
            && !packet.marked
            && red.marks(port.queued, || self.random.random())
        {
            packet.marked = true;
            self.counts.marked_packets += 1;
        }
        let memory = &mut self.memories[switch as usize];
        if self.lossless {
            packet.ingress = ingress;
            let came_by = &mut self.ports[ingress as usize];
            if !self.limits.take(memory, came_by, bytes) {
                return self.broken("a drop in a lossless run", ingress);
            }
            if came_by.pause_wanted != came_by.pause_sent {
                self.wake(ingress);
            }
        } else if !self.limits.take_tail(memory, port, bytes) {
            self.counts.dropped_packets += 1;
            return self.forget(id);
        }
        let port = &mut self.ports[out as usize];
        port.queued += bytes;
        port.data.push(&mut self.packets, id);
        self.wake(out);
    }
}
