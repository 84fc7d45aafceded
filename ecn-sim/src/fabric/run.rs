//! A run, event by event.
//!
//! A packet takes one event per link, its arrival at the other end, and one more where something waits
//! for the port that it leaves by. Links are alike, so arrivals of packets of one size come in the
//! order in which they were sent, and are not sorted.
//!
//! Events at the same time have an order that does not depend on who else is in the same part of the
//! network: arrivals by port, then flows that start, then what a node scheduled for itself. So a run is
//! the same however it is [split](super::parts).

mod invariants;

pub use invariants::finish;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ecn_core::tcd::Mark;
use foldhash::fast::FixedState;

use super::congestion::{Detection, Detects, Place};
use super::credit::Credits;
use super::host::{Flow, Receiver};
use super::measure::Finished;
use super::packet::{Kind, Packet};
use super::parameters::{ACK_EXTRA, CNP_EXTRA, FlowControl, Scenario, Thresholds};
use super::parts::Part;
use super::scheme::{Control, Notice};
use super::series::{Series, Trace, Traced};
use super::switch::{Limits, Memory, Port, Threshold};
use super::topology::Topology;
use super::workload::{Arrival, Arrivals, Ring};
use crate::engine::{Calendar, Lanes, NS, Slab, Time, WORD};
use crate::model::ModelError;

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
    /// A port is to tell of its credits.
    Credit,
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

/// Time of so many bytes, at so many picoseconds per byte in 2^-20.
const fn wire_time(byte_time: u64, bytes: u32) -> Time {
    (bytes as u64 * byte_time) >> 20
}

/// Events between two looks at everything.
const CHECK_EVENTS: u64 = 1 << 21;

/// What a run counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Flows that started.
    pub flows_started: u64,
    /// Those that are finished.
    pub finished: Vec<Finished>,
    /// The others, with what is acknowledged of them and without a slowdown.
    pub unfinished: Vec<Finished>,
    /// When the last flow was finished.
    pub last_end: Time,
    /// Data packets that did not fit.
    pub dropped_packets: u64,
    /// PFC frames that ask for a pause.
    pub pause_frames: u64,
    /// Data packets that were marked.
    pub marked_packets: u64,
    /// Data packets that were marked as those of undetermined ports (TCD).
    pub undetermined_packets: u64,
    /// Links that data packets crossed.
    pub data_packet_hops: u64,
    /// Links that packets crossed.
    pub packet_hops: u64,
    /// Events, without the starts of flows.
    pub events: u64,
    /// Most packets at once.
    pub most_packets: u64,
    /// What happened when, if that was asked for.
    pub series: Option<Series>,
    /// What happened to ports, by time and port, if that was asked for.
    pub trace: Option<Vec<Traced>>,
}

/// A part of a run that goes on: all of the network, or some of its nodes.
pub struct Run<'a> {
    pub(super) topology: &'a Topology,
    part: Part<'a>,
    agenda: Lanes<Calendar, { Line::COUNT }>,
    pub(super) ports: Vec<Port>,
    memories: Vec<Memory>,
    pub(super) packets: Slab<Packet>,
    pub(super) flows: Slab<Flow>,
    pub(super) receivers: HashMap<u32, Receiver, FixedState>,
    pub(super) control: Control,
    detection: Detection,
    detects: Detects,
    arrivals: Arrivals,
    /// Flows that start when others are there.
    pub(super) ring: Option<Ring>,
    upcoming: Option<Arrival>,
    /// Number of that one.
    upcoming_id: u32,
    /// By part, what has left for there, and when it arrives.
    pub(super) leaving: Vec<Vec<(Time, Packet)>>,
    limits: Limits,
    /// With credit-based flow control.
    credits: Option<Credits>,
    pub(super) lossless: bool,
    pub(super) payload: u32,
    pub(super) header: u32,
    pub(super) ack_bytes: u32,
    pub(super) cnp_bytes: u32,
    /// Packets that a flow may have in flight.
    pub(super) window: u32,
    pub(super) retransmit_after: Time,
    pub(super) delay: Time,
    pub(super) limit: Time,
    /// Picoseconds per byte, in 2^-20.
    byte_time: u64,
    data_time: Time,
    ack_time: Time,
    pub(super) counts: Counts,
    pub(super) data_sent: u64,
    pub(super) data_delivered: u64,
    /// Less than none, where more came from other parts than left for them.
    pub(super) data_on_links: i64,
    until_check: u64,
    pub(super) series: Option<Series>,
    pub(super) trace: Option<Trace>,
    /// Where it says how far it is.
    pub(super) position: Option<Arc<AtomicU64>>,
    /// When its next sample is due.
    pub(super) sample_due: Time,
    pub(super) error: Option<RunError>,
}

impl<'a> Run<'a> {
    /// A run of a scenario on its topology, of this part of it.
    ///
    /// # Errors
    ///
    /// A value that makes no sense, or a file that cannot be read.
    pub fn new(
        scenario: &Scenario,
        topology: &'a Topology,
        part: Part<'a>,
        seed: u64,
    ) -> Result<Self, ModelError> {
        scenario.check()?;
        let own = &scenario.parameters;
        let lossless = own.flow_control != FlowControl::None;
        let frame = scenario.frame();
        let headroom = scenario.headroom();
        let ports = (0..).zip(topology.peer.iter().zip(&topology.node));
        let ports = ports.map(|(number, (&peer, &node))| Port {
            peer,
            node,
            own: topology.own(number),
            part: part.of(topology, peer),
            ..Port::default()
        });
        let shared = own.buffer.bytes() - headroom;
        let switches = 0..topology.names.len() as u32;
        let memories = switches.map(|switch| Memory {
            pool: shared * topology.ports(switch).len() as u64,
            used: 0,
        });
        let rate = u128::from(own.link_rate.bytes_per_s());
        let network = scenario.network(topology.longest());
        let rules = scenario.schemes.rules(own.scheme, &network)?;
        let window = own.window.or(scenario.usual_window(&network)).bytes();
        let window = (window / u64::from(own.payload)).max(1);
        let detection = Detection::new(scenario, &rules, topology, seed)?;
        let mut run = Self {
            agenda: Lanes::default(),
            ports: ports.collect(),
            memories: memories.collect(),
            packets: Slab::default(),
            flows: Slab::default(),
            receivers: HashMap::default(),
            detects: detection.detects(),
            detection,
            control: Control::new(rules, topology.hosts),
            arrivals: scenario.arrivals(seed)?,
            ring: Ring::of(own),
            upcoming: None,
            upcoming_id: 0,
            leaving: vec![Vec::new(); part.count()],
            limits: Limits {
                threshold: match own.thresholds {
                    Thresholds::Dynamic => {
                        let (n, d) = (own.alpha.numerator(), own.alpha.denominator());
                        Threshold::Dynamic((u64::from(n) << 16) / u64::from(d))
                    }
                    Thresholds::Static => Threshold::Static(own.xoff.bytes()),
                },
                gap: scenario.xon_gap(),
                headroom: headroom as u32,
            },
            credits: (own.flow_control == FlowControl::Cbfc).then(|| {
                let period = own.credit_period.as_nanos() * NS;
                Credits::new(topology.peer.len(), own.buffer.bytes(), frame, period)
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
            part,
            counts: Counts::default(),
            data_sent: 0,
            data_delivered: 0,
            data_on_links: 0,
            until_check: CHECK_EVENTS,
            series: None,
            trace: None,
            position: None,
            sample_due: Time::MAX,
            error: None,
        };
        (run.data_time, run.ack_time) = (run.wire_time(frame), run.wire_time(run.ack_bytes));
        run.find_upcoming();
        Ok(run)
    }

    /// What happens before `until`. Stops at an error.
    pub(super) fn advance(&mut self, until: Time) {
        // Those of one time, the last one first.
        let mut ties: Vec<u64> = Vec::new();
        loop {
            let event = match ties.pop() {
                Some(tie) => tie,
                None => match self.next_event(until, &mut ties) {
                    Some(event) => event,
                    None => return,
                },
            };
            self.happens(event as u32 & ((1 << WORD) - 1));
            if self.until_check <= self.counts.events {
                if self.error.is_some() {
                    return;
                }
                self.until_check = self.counts.events + CHECK_EVENTS;
                if let Some(position) = &self.position {
                    position.store(self.now(), Ordering::Relaxed);
                }
                self.check();
            }
        }
    }

    /// The next event before `until`, and others of its time.
    #[inline(always)]
    fn next_event(&mut self, until: Time, ties: &mut Vec<u64>) -> Option<u64> {
        let event = self.agenda.pop(until, ties)?;
        if self.now() >= self.sample_due {
            self.sample(self.now());
        }
        if ties.is_empty() {
            return Some(event);
        }
        for event in &mut *ties {
            *event = self.ranked(*event);
        }
        ties.sort_unstable_by(|a, b| b.cmp(a));
        ties.pop()
    }

    /// An event with its place among those of the same time before its word, instead of its number:
    /// arrivals by port, then flows that start, then the others as they were scheduled.
    #[inline]
    fn ranked(&self, event: u64) -> u64 {
        let word = event & ((1 << WORD) - 1);
        let number = word as u32 & ((1 << INDEX) - 1);
        match word >> INDEX {
            0 => u64::from(self.packets[number].link) << WORD | word,
            4 => 1 << 62 | word,
            _ => 1 << 63 | event,
        }
    }

    #[inline(always)]
    fn happens(&mut self, word: u32) {
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
            4 => self.start_due(),
            _ => {
                self.ports[number as usize].credit = true;
                self.wake(number);
            }
        }
    }

    /// Takes in what comes from another part.
    pub(super) fn take_in(&mut self, time: Time, packet: Packet) {
        self.data_on_links += i64::from(packet.kind == Kind::Data);
        if time < self.now() {
            return self.broken("a packet of another part comes too late", packet.link);
        }
        match self.packets.insert(packet) {
            Some(id) => self.at(time, Event::Arrive, id),
            None => self.too_many("packets"),
        }
    }

    /// When something happens next; `Time::MAX`: nothing is to come.
    pub(super) fn next_time(&self) -> Time {
        self.agenda.next_time()
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

    /// The next flow that starts here.
    fn find_upcoming(&mut self) {
        loop {
            self.upcoming = self.arrivals.next();
            self.upcoming_id = self.upcoming_id.wrapping_add(1);
            let Some(arrival) = self.upcoming else {
                return;
            };
            if self.part.has(self.topology, arrival.from) {
                return self.at(arrival.start, Event::Start, 0);
            }
        }
    }

    fn start_due(&mut self) {
        self.counts.events -= 1;
        if let Some(arrival) = self.upcoming {
            self.start(self.upcoming_id, arrival);
            self.find_upcoming();
        }
    }

    /// Time that a packet takes to go on a link.
    #[inline]
    pub(super) const fn wire_time(&self, bytes: u32) -> Time {
        wire_time(self.byte_time, bytes)
    }

    /// A port sends, and is busy until that is done.
    #[inline]
    pub(super) fn transmit(&mut self, number: u32, id: u32) {
        let now = self.now();
        let byte_time = self.byte_time;
        let packet = &mut self.packets[id];
        let bytes = u32::from(packet.bytes);
        let port = &mut self.ports[number as usize];
        packet.link = port.peer;
        let (time, arrives, ends) = match packet.kind {
            Kind::Ack | Kind::Nak => (self.ack_time, Line::ACKS, Line::ACK_ENDS),
            Kind::Data if bytes == self.payload + self.header => {
                (self.data_time, Line::DATA, Line::DATA_ENDS)
            }
            _ => (wire_time(byte_time, bytes), Line::OTHERS, Line::OTHERS),
        };
        self.counts.packet_hops += 1;
        let is_data = packet.kind == Kind::Data;
        self.counts.data_packet_hops += u64::from(is_data);
        let end = now + time;
        port.busy_until = end;
        if is_data && let Some(credits) = &mut self.credits {
            let on = credits.send(number, bytes);
            self.turn(number, on);
        }
        let port = &mut self.ports[number as usize];
        if port.has_work() {
            port.wakes = true;
            self.agenda.at(ends, end, Event::Free.word(number));
        }
        let (part, arrival) = (port.part, end + self.delay);
        if part == self.part.number() {
            self.data_on_links += i64::from(is_data);
            self.agenda.at(arrives, arrival, Event::Arrive.word(id));
        } else {
            let packet = self.packets[id];
            self.packets.remove(id);
            self.leaving[usize::from(part)].push((arrival, packet));
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
        if port.has_to_tell() {
            return self.tell(number);
        }
        if let Some(id) = port.control.pop(&mut self.packets) {
            return self.transmit(number, id);
        }
        if port.off {
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
        port.queued -= bytes;
        let switch = port.node;
        let ingress = packet.ingress;
        if self.detects.leaving {
            let place = self.place(id, number);
            let mark = self.packets[id].mark;
            self.detection.leaves(place, &mut self.packets[id], true);
            self.is_detected(place, mark, id);
        }
        self.transmit(number, id);
        let memory = &mut self.memories[switch as usize];
        if let Some(credits) = &mut self.credits {
            let ingress = self.topology.ports(switch).start + u32::from(ingress);
            credits.give(ingress, bytes);
            self.has_credits(ingress);
        } else if self.lossless {
            let ingress = self.topology.ports(switch).start + u32::from(ingress);
            let port = &mut self.ports[ingress as usize];
            self.limits.give(memory, port, bytes);
            if port.pause_wanted != port.pause_sent {
                self.wake(ingress);
            }
        } else {
            memory.used -= u64::from(bytes);
        }
    }

    /// A port tells the other end to pause, to go on, or of its credits.
    #[cold]
    fn tell(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        let message = if let Some(credits) = &mut self.credits {
            port.credit = false;
            Packet::of_link(Kind::Credit, credits.tell(number))
        } else if port.pause_wanted {
            self.counts.pause_frames += 1;
            Packet::of_link(Kind::Pause, 0)
        } else {
            Packet::of_link(Kind::Resume, 0)
        };
        port.pause_sent = port.pause_wanted;
        match self.packets.insert(message) {
            Some(id) => self.transmit(number, id),
            None => self.too_many("packets"),
        }
    }

    /// Where a data packet is that is to leave by a port.
    fn place(&self, id: u32, number: u32) -> Place {
        let port = &self.ports[number as usize];
        Place {
            now: self.now(),
            switch: port.node,
            port: number,
            egress: port.own,
            ingress: self.packets[id].ingress,
            queued: port.queued,
            on: !port.off,
            to_host: port.peer < self.topology.hosts,
        }
    }

    /// A packet comes, and waits for its port or leaves at once.
    fn detect(&mut self, id: u32, number: u32, waits: bool) {
        let place = self.place(id, number);
        let packet = &mut self.packets[id];
        let mark = packet.mark;
        let notice = self.detection.comes(place, packet, waits);
        if !waits {
            self.detection.leaves(place, packet, false);
        }
        self.is_detected(place, mark, id);
        if let Some(notice) = notice {
            self.notify(place.switch, id, notice);
        }
    }

    /// What a packet that said this before has come to, and the state of its port.
    fn is_detected(&mut self, place: Place, before: Mark, id: u32) {
        if let Some(trace) = &mut self.trace
            && let Some(state) = self.detection.state(place)
        {
            trace.is(place.now, place.port, state);
        }
        if self.packets[id].mark == before {
            return;
        }
        if self.packets[id].mark == Mark::Undetermined {
            self.counts.undetermined_packets += 1;
        } else if before < Mark::Congestion {
            self.counts.marked_packets += 1;
            if let Some(series) = &mut self.series {
                series.mark();
            }
        }
    }

    /// A switch notifies the sender of a packet.
    #[cold]
    fn notify(&mut self, switch: u32, id: u32, notice: Notice) {
        let packet = self.packets[id];
        let message = Packet {
            number: notice.point,
            note: notice.feedback,
            source: packet.destination,
            destination: packet.source,
            bytes: self.cnp_bytes as u16,
            kind: Kind::Cnm,
            mark: Mark::None,
            ..packet
        };
        let to = u32::from(message.destination);
        let out = self.topology.route(switch, to, message.hash());
        match self.packets.insert(message) {
            Some(id) => self.send_control(out, id),
            None => self.too_many("packets"),
        }
    }

    /// A port may send data from now on, or may not.
    fn turn(&mut self, number: u32, on: bool) {
        let port = &mut self.ports[number as usize];
        if port.off == on {
            port.off = !on;
            let now = self.agenda.now();
            self.detection.turns(now, number, on);
            if let Some(trace) = &mut self.trace {
                trace.turns(now, number, on);
            }
        }
    }

    /// A host takes data off its link: with credits, it has them again at once.
    #[inline]
    pub(super) fn takes(&mut self, number: u32, bytes: u32) {
        if let Some(credits) = &mut self.credits {
            credits.take(number, bytes, false);
            self.has_credits(number);
        }
    }

    /// A port has credits to tell of, perhaps.
    #[inline]
    fn has_credits(&mut self, number: u32) {
        let now = self.agenda.now();
        if let Some(credits) = &mut self.credits
            && let Some(due) = credits.due(number, now)
        {
            self.at(due, Event::Credit, number);
        }
    }

    /// A host sends an ACK or a CNP.
    #[inline]
    pub(super) fn send_control(&mut self, number: u32, id: u32) {
        let now = self.now();
        let port = &mut self.ports[number as usize];
        if !port.wakes && port.busy_until <= now && !port.has_to_tell() {
            return self.transmit(number, id);
        }
        port.control.push(&mut self.packets, id);
        self.wake(number);
    }

    /// A packet is at the end of its link.
    #[inline]
    fn arrive(&mut self, id: u32) {
        let packet = &self.packets[id];
        let (number, kind) = (packet.link, packet.kind);
        self.data_on_links -= i64::from(kind == Kind::Data);
        match kind {
            Kind::Pause | Kind::Resume => {
                self.packets.remove(id);
                self.turn(number, kind == Kind::Resume);
                self.wake(number);
            }
            Kind::Credit => {
                let limit = packet.number;
                self.packets.remove(id);
                if let Some(credits) = &mut self.credits {
                    let on = credits.hear(number, limit);
                    self.turn(number, on);
                }
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
        let came_by = &self.ports[ingress as usize];
        let (switch, own) = (came_by.node, came_by.own);
        let to = u32::from(packet.destination);
        let out = self.topology.route(switch, to, packet.hash());
        let port = &mut self.ports[out as usize];
        if packet.kind != Kind::Data {
            return self.send_control(out, id);
        }
        let bytes = u32::from(packet.bytes);
        packet.ingress = own;
        // What does not wait takes no memory.
        let waits = port.wakes || port.busy_until > now || port.off || !port.data.is_empty();
        if waits && self.detects.waiting || self.detects.passing {
            self.detect(id, out, waits);
        }
        if !waits {
            if let Some(credits) = &mut self.credits {
                credits.take(ingress, bytes, false);
                self.has_credits(ingress);
            }
            return self.transmit(out, id);
        }
        let port = &self.ports[out as usize];
        let memory = &mut self.memories[switch as usize];
        if let Some(credits) = &mut self.credits {
            if !credits.take(ingress, bytes, true) {
                return self.broken("more than the credits allow", ingress);
            }
        } else if self.lossless {
            let came_by = &mut self.ports[ingress as usize];
            if !self.limits.take(memory, came_by, bytes) {
                return self.broken("a drop in a lossless run", ingress);
            }
            if came_by.pause_wanted != came_by.pause_sent {
                self.wake(ingress);
            }
        } else if !self.limits.take_tail(memory, port, bytes) {
            self.counts.dropped_packets += 1;
            let place = self.place(id, out);
            self.detection.dropped(place);
            self.packets.remove(id);
            return;
        }
        let port = &mut self.ports[out as usize];
        port.queued += bytes;
        port.data.push(&mut self.packets, id);
        self.wake(out);
    }
}
