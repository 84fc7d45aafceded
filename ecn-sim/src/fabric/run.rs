//! A run, event by event.
//!
//! A packet takes one event per link, its arrival at the other end, and one more if anything waits for the port through
//! which it leaves. If all links are alike, packets of one size arrive in the order in which they were sent: only those
//! that arrive at the same time are sorted.
//!
//! The order of events at the same time does not depend on how the network is divided: arrivals by port, then starts of
//! flows, then events that nodes scheduled for themselves. A run is therefore the same however it is
//! [split](super::parts).

mod counts;
pub mod crossbar;
pub mod host;
pub mod input_queued;
mod invariants;
mod outages;
pub mod series;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
pub mod transfers;
pub mod watch;

pub use counts::{Counts, RunError};
pub use invariants::{end_of, finish};
use outages::Outages;

use std::collections::HashMap;
use std::sync::Arc;

use ecn_core::tcd::Mark;
use ecn_units::Size;
use foldhash::fast::FixedState;

use super::cc::{Cnm, Hooks, Name, QueueView, Scheme, Sender, Switch as _};
use super::credit::Credits;
use super::failures;
use super::links::{Link, LinkOverride};
use super::packet::{CROSSES, HELD, Kind, Packet};
use super::parameters::{FlowControl, Switch};
use super::part::Part;
use super::scenario::{ACK_EXTRA, CNP_EXTRA, Scenario};
use super::switch::{Limits, Memory, Port, Ports};
use super::topology::Topology;
use super::workload::{Arrival, Arrivals, Ring};
use crate::bounds::ModelError;
use crate::engine::{Calendar, Lanes, NS, Slab, Time, WORD, prefetch};
use crossbar::Inputs;
use host::{Receiver, SenderFlow};
use input_queued::InputQueued;
use series::{Series, Trace};
use transfers::Reading;
use watch::Watch;

/// An event, which concerns the packet, port or flow with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A packet is at the end of its link.
    Arrive,
    /// A port's transmission ends.
    Free,
    /// A flow's rate permits its next packet.
    Paced,
    /// A flow's retransmission timer expires.
    Timer,
    /// The next flow starts.
    Start,
    /// A port is due to advertise its credits of a class.
    Credit,
    /// An input of a crossbar has read a packet of a class.
    Read,
}

/// Bits of an event's number.
const INDEX: u32 = WORD - 3;

impl Event {
    const fn word(self, number: u32) -> u32 {
        (self as u32) << INDEX | number
    }
}

/// Input-queued: ranks below this one are for ends of transmissions, which precede arrivals. Of two back-to-back
/// packets, the first one's tail has then left when the second one's header arrives, which cuts through.
const ENDS: u64 = 1 << 31;

/// Rank of a flow's start: after arrivals, whose ranks are port numbers.
const START: u64 = 1 << 32;

/// Width of a calendar bucket, 2^11 ps: with a thousand hosts, thousands of events per microsecond are not in lanes.
const BUCKET: u32 = 11;

/// FIFO lanes of the scheduler: arrivals of full packets and of ACKs, ends of full packets' transmissions, and arrivals
/// from other parts. [`Self::OTHERS`] go to the calendar.
struct Lane;

impl Lane {
    const DATA: usize = 0;
    const ACKS: usize = 1;
    const DATA_ENDS: usize = 2;
    const FROM_OTHERS: usize = 3;
    const COUNT: usize = 4;
    const OTHERS: usize = Self::COUNT;
}

/// Up to this number, packets stay in the CPU caches.
const FEW_PACKETS: usize = 1 << 16;

/// Events between two reports to the observer.
const WATCH_EVENTS: u64 = 1 << 23;

/// A part of a running simulation: the whole network, or some of its nodes.
pub struct Run<'a, S: Scheme = Name> {
    pub(super) topology: &'a Topology,
    /// Routes: those of `topology`, or as changed by failed links.
    pub(super) routes: &'a Topology,
    /// Links that fail or return.
    pub(super) outages: Option<Box<Outages<'a>>>,
    pub(super) part: Part<'a>,
    scheduler: Lanes<Calendar<BUCKET>, { Lane::COUNT }>,
    pub(super) ports: Ports,
    memories: Vec<Memory>,
    pub(super) packets: Slab<Packet>,
    pub(super) flows: Slab<SenderFlow<<S::Sender as Sender>::Flow>>,
    pub(super) receivers: HashMap<u32, Receiver, FixedState>,
    pub(super) sender: S::Sender,
    pub(super) switch: S::Switch,
    pub(super) hooks: Hooks,
    /// By switch, whether it takes part in the scheme; `None` if all do.
    marking: Option<Vec<bool>>,
    arrivals: Arrivals,
    /// Flows that start when others have arrived.
    pub(super) ring: Option<Ring>,
    upcoming: Option<Arrival>,
    /// Number of `upcoming`.
    upcoming_id: u32,
    /// By destination part: packets with their arrival times.
    pub(super) leaving: Vec<Vec<(Time, Packet)>>,
    limits: Limits,
    /// A queue longer than this is congested, unless it is held up.
    root_bytes: u32,
    /// Only with credit-based flow control.
    credits: Option<Credits>,
    /// Only with crossbars.
    pub(super) inputs: Option<Inputs>,
    /// Only with HP's switches.
    pub(super) input_queued: Option<InputQueued>,
    pub(super) lossless: bool,
    /// Whether packets can be lost or reordered, so that flows retransmit missing ones.
    pub(super) repeats: bool,
    pub(super) payload: u32,
    pub(super) header: u32,
    pub(super) ack_bytes: u32,
    pub(super) cnp_bytes: u32,
    /// Maximum number of packets in flight per flow.
    pub(super) window: u32,
    pub(super) retransmit_after: Time,
    pub(super) limit: Time,
    /// A link with `link_rate` and `link_delay`.
    pub(super) link: Link,
    /// By port; `None` if all links are alike.
    pub(super) links: Option<Vec<Link>>,
    /// Bytes of a full packet.
    pub(super) full: u32,
    pub(super) data_time: Time,
    ack_time: Time,
    pub(super) counts: Counts,
    /// Hops of control and of data; added to `counts` at the end.
    pub(super) hops: [u64; 2],
    pub(super) data_sent: u64,
    pub(super) data_delivered: u64,
    /// Negative if more packets have arrived from other parts than have left for them.
    pub(super) data_on_links: i64,
    /// Events after which the observer is polled next.
    watch_due: u64,
    /// Events after which everything is checked next, which doubles: a check takes a time in proportion to what waits.
    check_due: u64,
    pub(super) series: Option<Series>,
    pub(super) trace: Option<Trace>,
    /// Payload transferred in windows, by flow.
    pub(super) reading: Reading,
    /// Observer of the run.
    pub(super) watch: Option<Arc<dyn Watch>>,
    /// When its next sample is due.
    pub(super) sample_due: Time,
    pub(super) error: Option<RunError>,
}

impl<'a> Run<'a> {
    /// A run of a scenario with its own scheme; otherwise as [`Self::with`].
    ///
    /// # Errors
    ///
    /// As for [`Self::with`].
    pub fn new(
        scenario: &Scenario,
        topology: &'a Topology,
        part: Part<'a>,
        seed: u64,
    ) -> Result<Self, ModelError> {
        let scheme = &scenario.parameters.scheme;
        Self::with(scheme, scenario, topology, part, seed)
    }
}

impl<'a, S: Scheme> Run<'a, S> {
    /// A run of a part of a scenario on its topology.
    ///
    /// # Errors
    ///
    /// An invalid value, or a file that cannot be read.
    pub fn with(
        scheme: &S,
        scenario: &Scenario,
        topology: &'a Topology,
        part: Part<'a>,
        seed: u64,
    ) -> Result<Self, ModelError> {
        scenario.check()?;
        let params = &scenario.parameters;
        let lossless = params.flow_control != FlowControl::None;
        let frame = scenario.frame();
        let headroom = scenario.headroom();
        let ends = topology.peer.iter().zip(&topology.node).enumerate();
        let ports = ends.map(|(number, (&peer, &node))| {
            let number = number as u32;
            let part = part.of(topology, peer);
            Port::new(peer, node, topology.port_index(number), part)
        });
        let shared = scenario.buffer() - headroom;
        let switches = 0..topology.names.len() as u32;
        let memories = switches.map(|switch| Memory {
            pool: shared * topology.ports(switch).len() as u64,
            used: 0,
        });
        let network = scenario.network_of(topology, seed);
        let (sender, switch) = (scheme.sender(&network)?, scheme.switch(&network)?);
        let window = sender.window(&network).unwrap_or(u64::MAX);
        let window = params.window.or(Size::from_bytes(window)).bytes();
        let window = (window / u64::from(params.payload)).max(1);
        failures::check(topology, || scenario.arrivals(topology, seed))?;
        let mut run = Self {
            scheduler: Lanes::default(),
            ports: Ports::new(ports, params.priorities as u8),
            memories: memories.collect(),
            packets: Slab::default(),
            flows: Slab::default(),
            receivers: HashMap::default(),
            hooks: switch.hooks(),
            marking: scenario.marking_switches(topology)?,
            sender,
            switch,
            arrivals: scenario.arrivals(topology, seed)?,
            ring: Ring::of(params),
            upcoming: None,
            upcoming_id: 0,
            leaving: vec![Vec::new(); part.count()],
            limits: Limits {
                threshold: scenario.threshold(),
                gap: scenario.xon_gap(),
                headroom: (headroom / u64::from(params.priorities)) as u32,
            },
            root_bytes: scenario.root_bytes(topology.fewest_ports()),
            credits: scenario.advertises_credits().then(|| {
                let period = params.credit_period.as_nanos() * NS;
                let lanes = params.priorities as usize;
                let buffer = scenario.buffer() / u64::from(params.priorities);
                Credits::new(topology.peer.len() * lanes, buffer, frame, period)
            }),
            inputs: (params.switch == Switch::Crossbar)
                .then(|| Inputs::new(topology.peer.len() as u32 * params.priorities)),
            input_queued: InputQueued::new(scenario, topology)?,
            lossless,
            repeats: !lossless || scenario.links_change(),
            payload: params.payload,
            header: params.header,
            ack_bytes: params.header + ACK_EXTRA,
            cnp_bytes: params.header + CNP_EXTRA,
            window: u32::try_from(window).unwrap_or(u32::MAX),
            retransmit_after: scenario.retransmit_after(&network, topology.most_ports()),
            limit: params.limit.as_nanos() * NS,
            link: LinkOverride::default().link(params),
            links: (!topology.link_overrides.is_empty()).then(|| {
                let links = topology.link_overrides.iter().map(|link| link.link(params));
                links.collect()
            }),
            full: frame,
            data_time: 0,
            ack_time: 0,
            topology,
            routes: topology,
            outages: Outages::of(topology),
            part,
            counts: Counts::default(),
            hops: [0; 2],
            data_sent: 0,
            data_delivered: 0,
            data_on_links: 0,
            watch_due: WATCH_EVENTS,
            check_due: 2 * WATCH_EVENTS,
            series: None,
            trace: None,
            reading: Reading::default(),
            watch: None,
            sample_due: Time::MAX,
            error: None,
        };
        (run.data_time, run.ack_time) = (run.wire_time(frame), run.wire_time(run.ack_bytes));
        run.find_upcoming();
        Ok(run)
    }

    /// Whether any flow has yet to start.
    pub const fn has_flows(&self) -> bool {
        self.upcoming.is_some()
    }

    /// Runs the events before `until`. Stops at an error.
    pub(super) fn advance(&mut self, until: Time) {
        while let Some((lane, event)) = self.scheduler.pop(until) {
            let word = event as u32 & ((1 << WORD) - 1);
            if self.packets.most() > FEW_PACKETS && self.scheduler.prefetch_due(lane) {
                self.prefetch_ahead(lane);
            }
            if self.now() >= self.sample_due {
                self.sample(self.now());
            }
            self.counts.events += 1;
            let number = word & ((1 << INDEX) - 1);
            match lane {
                Lane::DATA => self.arrive_data(number, Lane::DATA),
                Lane::ACKS => self.arrive_control(number, Lane::ACKS),
                Lane::DATA_ENDS => self.free(number),
                _ => self.dispatch(word >> INDEX, number),
            }
            if self.watch_due <= self.counts.events {
                if self.error.is_some() {
                    return;
                }
                self.watch_due = self.counts.events + WATCH_EVENTS;
                self.poll_watch();
                if self.check_due <= self.counts.events {
                    self.check_due = 2 * self.counts.events;
                    self.check();
                }
            }
        }
    }

    /// Prefetches data for the next events: if a run exceeds the caches, each event would otherwise wait for memory.
    #[inline(always)]
    fn prefetch_ahead(&self, lane: usize) {
        for event in self.scheduler.ahead(lane) {
            let number = event as u32 & ((1 << INDEX) - 1);
            if lane == Lane::DATA_ENDS {
                self.ports.get(number as usize).map(prefetch);
            } else {
                self.packets.get(number).map(prefetch);
                self.ports.get((event >> WORD) as usize).map(prefetch);
            }
        }
    }

    /// Handles an event of the calendar.
    fn dispatch(&mut self, event: u32, number: u32) {
        match event {
            0 => self.arrive(number),
            1 => self.free(number),
            2 => self.paced(number),
            3 => self.timer(number),
            4 => self.start_due(),
            6 => self.request_next(number),
            _ => {
                let (port, class) = self.ports.port_and_class(number);
                self.ports[port as usize].credit |= 1 << class;
                self.wake(port);
            }
        }
    }

    /// Handles the end of a port's transmission.
    #[inline(always)]
    fn free(&mut self, number: u32) {
        if self.is_down(number) {
            return;
        }
        self.ports[number as usize].wakes = false;
        if self.input_queued.is_some() && number >= self.topology.hosts {
            return self.tail_left(number);
        }
        self.serve(number);
    }

    /// Schedules packets that other parts sent in one window; hardly any of them arrive before those of the previous
    /// window.
    pub(super) fn receive_mail(&mut self, mail: &mut Vec<(Time, Packet)>) {
        mail.sort_unstable_by_key(|(time, packet)| (*time, packet.link));
        for (time, packet) in mail.drain(..) {
            self.data_on_links += i64::from(packet.kind == Kind::Data);
            if time < self.now() {
                return self.broken("a packet of another part comes too late", packet.link);
            }
            let Some(id) = self.packets.insert(packet) else {
                return self.too_many("packets");
            };
            let word = Event::Arrive.word(id);
            let port = packet.link.into();
            self.scheduler.at_rank(Lane::FROM_OTHERS, time, port, word);
        }
    }

    /// Time of the next event; `Time::MAX` if none is pending.
    pub(super) fn next_time(&self) -> Time {
        self.scheduler.next_time()
    }

    /// Current time.
    #[inline]
    pub(super) const fn now(&self) -> Time {
        self.scheduler.now()
    }

    #[inline]
    pub(super) fn at(&mut self, time: Time, event: Event, number: u32) {
        self.scheduler.at(Lane::OTHERS, time, event.word(number));
    }

    /// Finds the next flow that starts in this part.
    fn find_upcoming(&mut self) {
        loop {
            self.upcoming = self.arrivals.next();
            self.upcoming_id = self.upcoming_id.wrapping_add(1);
            let Some(arrival) = self.upcoming else {
                return;
            };
            if self.part.has(self.topology, arrival.from) {
                let word = Event::Start.word(0);
                let scheduler = &mut self.scheduler;
                return scheduler.at_rank(Lane::OTHERS, arrival.start, START, word);
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

    /// Transmission time of a packet.
    #[inline]
    pub(super) const fn wire_time(&self, bytes: u32) -> Time {
        self.link.wire_time(bytes)
    }

    /// Transmission time of a packet on the link of a port.
    #[inline]
    pub(super) fn wire_time_at(&self, port: u32, bytes: u32) -> Time {
        match &self.links {
            None => self.wire_time(bytes),
            Some(links) => links[port as usize].wire_time(bytes),
        }
    }

    /// The lane of a packet's arrivals.
    #[inline(always)]
    pub(super) fn lane(&self, id: u32) -> usize {
        let packet = &self.packets[id];
        match packet.kind {
            Kind::Data if u32::from(packet.bytes) == self.full => Lane::DATA,
            Kind::Ack | Kind::Nak => Lane::ACKS,
            _ => Lane::OTHERS,
        }
    }

    /// An idle port sends a packet of this lane, which keeps it busy until the end of the transmission.
    #[inline(always)]
    pub(super) fn send(&mut self, number: u32, id: u32, lane: usize) {
        let underrun = match (&self.input_queued, &self.links) {
            (Some(switches), Some(links)) => self.underrun(switches, links, number, id),
            _ => 0,
        };
        let packet = &mut self.packets[id];
        let port = &mut self.ports[number as usize];
        packet.link = port.peer;
        let bytes = u32::from(packet.bytes);
        let (mut time, is_data) = match lane {
            Lane::DATA => (self.data_time, true),
            Lane::ACKS => (self.ack_time, false),
            _ => (self.link.wire_time(bytes), packet.kind == Kind::Data),
        };
        let (mut lane, mut delay) = (lane, self.link.delay);
        if let Some(links) = &self.links
            && let link = &links[number as usize]
            && !link.is_usual
        {
            // Packets on links that differ arrive in another order.
            (time, delay, lane) = (link.wire_time(bytes), link.delay, Lane::OTHERS);
        }
        self.hops[usize::from(is_data)] += 1;
        let end = self.scheduler.now() + time;
        port.busy_until = end;
        let mut arrival = end + delay;
        let mut rank = port.peer.into();
        if let Some(switches) = &self.input_queued {
            rank += ENDS;
            if port.peer >= self.topology.hosts {
                // Usually the header suffices.
                let data = if is_data { time } else { 0 };
                arrival = self.scheduler.now() + delay + switches.forwarding(data);
                arrival += underrun;
            }
        }
        if port.part == self.part.number() {
            self.data_on_links += i64::from(is_data);
            let word = Event::Arrive.word(id);
            self.scheduler.at_rank(lane, arrival, rank, word);
        } else {
            let part = usize::from(port.part);
            self.leaving[part].push((arrival, *packet));
            self.packets.remove(id);
        }
        if is_data && let Some(credits) = &mut self.credits {
            // Also valid if the packet has left for another part: freed slots keep their value.
            let class = self.packets[id].class;
            let on = credits.send(self.ports.queue_index(number, class), bytes);
            self.set_on(number, class, on);
        }
        if is_data && let Some(switches) = &mut self.input_queued {
            let on = switches.on_transmit(number);
            self.set_on(number, 0, on);
        }
    }

    /// Input-queued: how much longer than for the header a switch must wait for a packet, so that a faster output does
    /// not run dry.
    #[cold]
    fn underrun(&self, switches: &InputQueued, links: &[Link], number: u32, id: u32) -> Time {
        let (packet, peer) = (&self.packets[id], self.ports[number as usize].peer);
        if peer < self.topology.hosts || switches.stores() && packet.kind == Kind::Data {
            return 0;
        }
        let switch = self.ports[peer as usize].node;
        let out = (self.routes).route(switch, packet.destination.into(), packet.hash());
        let wire = |port: u32| links[port as usize].wire_time(packet.bytes.into());
        wire(number).saturating_sub(wire(out))
    }

    /// Sends a packet through a port, which serves its queues again afterwards.
    #[inline(always)]
    pub(super) fn transmit(&mut self, number: u32, id: u32) {
        self.send(number, id, self.lane(id));
        if self.ports[number as usize].has_work() {
            self.wakes_at_end(number);
        }
    }

    /// Makes a port serve its queues when its transmission ends.
    #[inline(always)]
    pub(super) fn wakes_at_end(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        port.wakes = true;
        let end = port.busy_until;
        let ends = if end - self.scheduler.now() == self.data_time {
            Lane::DATA_ENDS
        } else {
            Lane::OTHERS
        };
        let word = Event::Free.word(number);
        if self.input_queued.is_some() {
            return self.scheduler.at_rank(ends, end, number.into(), word);
        }
        self.scheduler.at(ends, end, word);
    }

    /// Makes a port serve its queues now, or when its transmission ends.
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

    /// An idle port sends the first packet in order of priority: PFC, control, data.
    #[inline]
    pub(super) fn serve(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        if port.has_link_control() {
            return self.send_link_control(number);
        }
        if let Some(id) = port.control.pop(&mut self.packets) {
            return self.transmit(number, id);
        }
        if number < self.topology.hosts {
            self.send_next(number);
            return;
        }
        if self.input_queued.is_some() {
            return self.take_next(number);
        }
        let switch = port.node;
        let Some((id, packet)) = self.ports.dequeue(number, &mut self.packets) else {
            return;
        };
        let (bytes, class) = (u32::from(packet.bytes), packet.class);
        let ingress = self.topology.ports(switch).start + u32::from(packet.ingress);
        if self.hooks.leaving && self.marks(switch) {
            let view = self.queue_view(id, number);
            let mark = self.packets[id].mark;
            self.switch.on_dequeue(&view, &mut self.packets[id], true);
            self.record_mark(&view, mark, id);
        }
        self.transmit(number, id);
        if self.inputs.is_some() {
            self.on_read(self.ports.queue_index(ingress, class), number);
        }
        self.release(switch, (ingress, class), bytes);
    }

    /// Frees the memory of a packet that has waited; `from`: its ingress port and its class.
    #[inline(always)]
    fn release(&mut self, switch: u32, from: (u32, u8), bytes: u32) {
        let (ingress, class) = from;
        let memory = &mut self.memories[switch as usize];
        if let Some(credits) = &mut self.credits {
            let queue = self.ports.queue_index(ingress, class);
            credits.give(queue, bytes);
            self.schedule_credit(queue);
        } else if self.lossless {
            if self.ports.release(&self.limits, memory, from, bytes) {
                self.wake(ingress);
            }
        } else {
            memory.used -= u64::from(bytes);
        }
    }

    /// Sends a port's pause or resume frame, or its credits.
    #[cold]
    fn send_link_control(&mut self, number: u32) {
        let port = &mut self.ports[number as usize];
        let message = if let Some(credits) = &mut self.credits {
            // One lane per message.
            let class = port.credit.trailing_zeros() as u8;
            port.credit &= port.credit - 1;
            let limit = credits.advertise(self.ports.queue_index(number, class));
            Packet::of_link(Kind::Credit, class, limit)
        } else {
            let wanted = port.pause_wanted;
            let kind = if wanted & !port.pause_sent == 0 {
                Kind::Resume
            } else {
                self.counts.pause_frames += 1;
                Kind::Pause
            };
            port.pause_sent = wanted;
            Packet::of_link(kind, 0, wanted.into())
        };
        match self.packets.insert(message) {
            Some(id) => self.transmit(number, id),
            None => self.too_many("packets"),
        }
    }

    /// The scheme's view of a data packet that will leave through a port.
    #[inline(always)]
    pub(super) fn queue_view(&self, id: u32, number: u32) -> QueueView {
        let port = &self.ports[number as usize];
        let class = self.packets[id].class;
        QueueView {
            now: self.now(),
            switch: port.node,
            port: number,
            class,
            queue: self.ports.queue_index(number, class),
            egress: port.index,
            ingress: self.packets[id].ingress,
            queued: self.ports.class(number, class).queued,
            on: port.off >> class & 1 == 0,
            to_host: port.peer < self.topology.hosts,
        }
    }

    /// A packet enters the queue of its port, or passes at once.
    pub(super) fn on_enqueue(&mut self, id: u32, number: u32, waits: bool) {
        let view = self.queue_view(id, number);
        let packet = &mut self.packets[id];
        let mark = packet.mark;
        let notice = self.switch.on_enqueue(&view, packet, waits);
        if !waits {
            self.switch.on_dequeue(&view, packet, false);
        }
        self.record_mark(&view, mark, id);
        if let Some(notice) = notice {
            self.notify(view.switch, id, notice);
        }
    }

    /// A packet that a port would have sent is dropped.
    pub(super) fn on_drop(&mut self, id: u32, number: u32) {
        let view = self.queue_view(id, number);
        if self.marks(view.switch) {
            self.switch.on_drop(&view);
        }
    }

    /// Whether a switch takes part in the scheme.
    #[inline]
    pub(super) fn marks(&self, switch: u32) -> bool {
        match &self.marking {
            None => true,
            Some(marking) => marking[switch as usize],
        }
    }

    /// Counts and traces a packet's mark if it differs from `before`, and traces the port's state.
    pub(super) fn record_mark(&mut self, view: &QueueView, before: Mark, id: u32) {
        if let Some(trace) = &mut self.trace {
            let packet = &self.packets[id];
            if packet.mark != before {
                trace.on_mark(view.now, view.port, packet);
            }
            if let Some(state) = self.switch.state(view) {
                trace.on_state(view, state);
            }
        }
        if self.packets[id].mark == before {
            return;
        }
        if self.packets[id].mark == Mark::Undetermined {
            self.counts.undetermined_packets += 1;
        } else {
            self.counts.marked_packets += 1;
            if let Some(series) = &mut self.series {
                series.mark();
            }
        }
    }

    /// A switch notifies the sender of a packet.
    #[cold]
    fn notify(&mut self, switch: u32, id: u32, notice: Cnm) {
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
        let out = self.routes.route(switch, to, message.hash());
        match self.packets.insert(message) {
            Some(id) if self.is_down(out) => self.lose(id, |lost| &mut lost.no_route),
            Some(id) => self.send_control(out, id),
            None => self.too_many("packets"),
        }
    }

    /// Sets whether a port may send data of a class.
    pub(super) fn set_on(&mut self, number: u32, class: u8, on: bool) {
        if self.ports[number as usize].set_on(class, on) {
            let (now, queue) = (self.scheduler.now(), self.ports.queue_index(number, class));
            self.switch.on_pause(now, queue, !on);
            if let Some(trace) = &mut self.trace {
                trace.on_pause(now, (number, class), on);
            }
        }
    }

    /// A host receives data from its link, and frees the memory at once.
    #[inline]
    pub(super) fn host_takes(&mut self, number: u32, class: u8, bytes: u32) {
        if let Some(credits) = &mut self.credits {
            let queue = self.ports.queue_index(number, class);
            credits.take(queue, bytes, false);
            self.schedule_credit(queue);
        }
    }

    /// Schedules a port's credit message, if one is due.
    #[inline]
    fn schedule_credit(&mut self, queue: u32) {
        let now = self.scheduler.now();
        if let Some(credits) = &mut self.credits
            && let Some(due) = credits.due(queue, now)
        {
            self.at(due, Event::Credit, queue);
        }
    }

    /// A host sends an ACK or a CNP.
    pub(super) fn send_control(&mut self, number: u32, id: u32) {
        self.send_or_queue(number, id, self.lane(id));
    }

    /// Sends control at once if its port is idle, else queues it.
    #[inline(always)]
    fn send_or_queue(&mut self, number: u32, id: u32, lane: usize) {
        let port = &self.ports[number as usize];
        if !port.wakes && port.busy_until <= self.scheduler.now() && !port.has_link_control() {
            return self.send(number, id, lane);
        }
        self.queue_control(number, id);
    }

    #[inline(never)]
    fn queue_control(&mut self, number: u32, id: u32) {
        let port = &mut self.ports[number as usize];
        port.control.push(&mut self.packets, id);
        self.wake(number);
    }

    /// Handles a packet at the end of its link.
    fn arrive(&mut self, id: u32) {
        let packet = &self.packets[id];
        let (number, kind) = (packet.link, packet.kind);
        match kind {
            Kind::Data => self.arrive_data(id, self.lane(id)),
            Kind::Pause | Kind::Resume | Kind::Credit if self.is_down(number) => {
                self.lose(id, |lost| &mut lost.on_link);
            }
            Kind::Pause | Kind::Resume => {
                let paused = packet.number;
                self.packets.remove(id);
                let mut changed = paused as u8 ^ self.ports[number as usize].off;
                while changed != 0 {
                    let class = changed.trailing_zeros() as u8;
                    changed &= changed - 1;
                    self.set_on(number, class, paused >> class & 1 == 0);
                }
                self.wake(number);
            }
            Kind::Credit => {
                let (limit, class) = (packet.number, packet.class);
                self.packets.remove(id);
                if let Some(credits) = &mut self.credits {
                    let on = credits.on_update(self.ports.queue_index(number, class), limit);
                    self.set_on(number, class, on);
                }
                self.wake(number);
            }
            _ => self.arrive_control(id, self.lane(id)),
        }
    }

    /// Handles an ACK or notification at the end of its link.
    #[inline(always)]
    fn arrive_control(&mut self, id: u32, lane: usize) {
        let packet = &self.packets[id];
        if self.is_down(packet.link) {
            return self.lose(id, |lost| &mut lost.on_link);
        }
        if packet.link < self.topology.hosts {
            return self.receive(id);
        }
        let switch = self.ports[packet.link as usize].node;
        let (to, hash) = (packet.destination.into(), packet.hash());
        let out = self.routes.route(switch, to, hash);
        if self.is_down(out) {
            return self.lose(id, |lost| &mut lost.no_route);
        }
        self.send_or_queue(out, id, lane);
    }

    /// Handles data at the end of its link.
    #[inline(always)]
    fn arrive_data(&mut self, id: u32, lane: usize) {
        self.data_on_links -= 1;
        let number = self.packets[id].link;
        if self.is_down(number) {
            self.lose(id, |lost| &mut lost.on_link);
        } else if number < self.topology.hosts {
            self.receive_data(id);
        } else if self.input_queued.is_some() {
            self.arrive_input_queued(id, number, lane);
        } else {
            self.forward(id, number, lane);
        }
    }

    /// Forwards data through a switch, or queues it.
    #[inline(always)]
    fn forward(&mut self, id: u32, ingress: u32, lane: usize) {
        let now = self.now();
        let packet = &mut self.packets[id];
        let came_by = &self.ports[ingress as usize];
        let (switch, own) = (came_by.node, came_by.index);
        let to = u32::from(packet.destination);
        let out = self.routes.route(switch, to, packet.hash());
        if self.is_down(out) {
            return self.lose(id, |lost| &mut lost.no_route);
        }
        let packet = &mut self.packets[id];
        let port = &self.ports[out as usize];
        let (bytes, class) = (u32::from(packet.bytes), packet.class);
        packet.ingress = own;
        // Packets that do not wait take no memory.
        let mut waits = port.wakes || port.busy_until > now || port.blocks(class);
        if let Some(inputs) = &self.inputs {
            waits |= inputs.is_busy(self.ports.queue_index(ingress, class), now);
        }
        if (waits && self.hooks.waiting || self.hooks.passing) && self.marks(switch) {
            self.on_enqueue(id, out, waits);
        }
        if !waits {
            if let Some(credits) = &mut self.credits {
                let queue = self.ports.queue_index(ingress, class);
                credits.take(queue, bytes, false);
                self.schedule_credit(queue);
            }
            self.send(out, id, lane);
            if self.inputs.is_some() {
                self.on_read(self.ports.queue_index(ingress, class), out);
            }
            return;
        }
        let memory = &mut self.memories[switch as usize];
        if let Some(credits) = &mut self.credits {
            if !credits.take(self.ports.queue_index(ingress, class), bytes, true) {
                return self.broken_in("more than the credits allow", ingress, class);
            }
        } else if self.lossless {
            let from = (ingress, class);
            match self.ports.admit(&self.limits, memory, from, bytes) {
                Some(true) => self.wake(ingress),
                Some(false) => {}
                None => return self.broken_in("a drop in a lossless run", ingress, class),
            }
        } else if !self
            .limits
            .admit_tail(memory, self.ports.class(out, class), bytes)
        {
            self.counts.dropped_packets += 1;
            self.on_drop(id, out);
            self.packets.remove(id);
            return;
        }
        if self.inputs.is_some() {
            return self.enqueue_at_input(id, ingress, out);
        }
        if let Some(met) = self.congestion_met(out, class) {
            self.packets[id].flags |= met;
        }
        let out_class = (out, class);
        if self.ports.enqueue(out_class, &mut self.packets, id, bytes) {
            self.wake(out);
        }
    }

    /// The flag for a packet that meets a queue that is or was paused, or that is long without a pause.
    #[inline(always)]
    pub(super) fn congestion_met(&self, out: u32, class: u8) -> Option<u8> {
        let held = self.ports[out as usize].held() >> class & 1 != 0;
        let long = held || self.ports.class(out, class).queued > self.root_bytes;
        long.then_some(if held { HELD } else { CROSSES })
    }
}
