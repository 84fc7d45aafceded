//! A run over Linux bridges: queues at output ports, greedy senders behind HTB, echoes, an agent.
//!
//! Models the kernel datapath event by event, calling the functions of `ecn-core` that the kernel programs call, in the
//! same order:
//!
//! ```text
//! HTB of the source ── bridge: arrive, queue or drop_queued, depart, wire_end ── ... ── receiver: count
//!        ^                                                                                  |
//!      agent <── ring ── respond, accept <───────────────────────────────────────────── echo
//! ```
//!
//! A device hands over whole packets at once, and HTB spaces them. A packet therefore takes one event per port at which
//! it waits, one per device at which it arrives, and one for its echo.
//!
//! Hosts without the agent have no classes, and their packets are not marked. Traffic sources are in [`source`].

pub(crate) mod agent;
pub(crate) mod bridge;
pub(crate) mod sender;
pub(crate) mod source;
pub(crate) mod tcp;

use std::collections::VecDeque;

use ecn_core::backward::{self, Feedback, Report};
use ecn_core::echo::Headroom;
use ecn_core::response::Function;
use ecn_core::{abi::Siblings, echo, packet, reaction, response, vqueue};
use ecn_units::{Every, Rate};
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use self::agent::Agent;
use self::bridge::{Arrival, Bridge};
use self::sender::{Bucket, Host, Kind, Sender};
use self::source::Source;
use self::tcp::Tcp;
use crate::engine::{Event, Heap, INDEX, MS, NS, Scheduler, Slab, Time};
use crate::measure::{Record, Snapshot, Times};
use crate::model::{Model, Response};
use crate::network::Network;
use crate::notifications;
use crate::simulation::instants::{Instant, Options, SimulationError, counted, schedule};
use crate::traffic::{Algorithm, Traffic};

/// Events between two reports of progress.
const PROGRESS_EVENTS: u64 = 1 << 18;
/// The agent's number in [`Event::Source`]; numbers from 1 on are timers of senders.
const AGENT: u32 = 0;
/// Packets up to this size are never dropped for their source's share: the kernel programs spare echoes and ACKs.
const SMALL_BYTES: u32 = 128;
/// A finished flow's number is reused after this time, when none of its packets are in flight any more.
const FORGOTTEN: Time = 1_000 * MS;

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
struct Packet {
    /// Index of its sender.
    flow: u32,
    /// Index of its current hop, or of the one that it waits for.
    hop: u32,
    marked: bool,
    /// Its packet number within the connection.
    number: u64,
    made: Time,
    /// Set for a port's message about a packet of this flow.
    message: Option<Report>,
}

/// A device that sends at its link's rate: the port of a bridge or of a source.
#[derive(Debug)]
struct Device {
    bucket: Bucket,
    /// The time for which its timer is set, and the later time at which it fires.
    timer: Option<(Time, Time)>,
    late: Pcg64Mcg,
    /// Mean lateness of its timer.
    timer_delay: f64,
    /// Flows of a source.
    flows: Vec<u32>,
    /// Index of the flow whose turn it is.
    turn: usize,
    bytes: u64,
    dropped: u64,
    waited_ns: u64,
    /// When `waited_ns` was last updated.
    looked: Time,
    peak: u32,
}

/// A window, with the packet delays and the flow completion times of each class.
type Timed = ((Time, Time), Vec<Times>, Vec<Times>);

struct Simulation<'a> {
    network: &'a Network,
    scheduler: Scheduler<Heap>,
    packets: Slab<Packet>,
    devices: Vec<Device>,
    /// The limited flows of each device.
    siblings: Vec<Siblings>,
    bridges: Vec<Bridge>,
    /// One sender per path, followed by those of arriving flows.
    senders: Vec<Sender>,
    /// By path: initial state of its flows.
    kinds: Vec<Kind>,
    /// Senders of finished flows, with their completion times.
    finished: VecDeque<(Time, u32)>,
    agent: Agent,
    response: response::Policy,
    echo: echo::Policy,
    feedback: Feedback,
    /// Reaction points' parameters, by path.
    reactions: Vec<reaction::Policy>,
    /// The kind of notification that ports send instead of marking.
    notifications: Option<backward::Kind>,
    /// Late or idle time that a port may make up for (HTB's burst).
    burst: Time,
    /// By path.
    sent_packets: Vec<u64>,
    flow_packets: Vec<u64>,
    marked_packets: Vec<u64>,
    dropped_packets: Vec<u64>,
    timed: Vec<Timed>,
    packet_hops: u64,
    latencies: Vec<(Time, Time)>,
}

fn ps(duration: ecn_units::DurationText) -> Time {
    duration.as_nanos() * NS
}

/// The device of each channel, with the flows that start there.
fn devices(network: &Network, model: &Model, seed: u64) -> Vec<Device> {
    let device = |channel: usize| Device {
        bucket: Bucket::default(),
        timer: None,
        // A random stream per device, independent of those for the phases of flows.
        late: Pcg64Mcg::seed_from_u64(!seed ^ (channel as u64) << 32),
        timer_delay: ps(model.timer_delay) as f64,
        flows: Vec::new(),
        turn: 0,
        bytes: 0,
        dropped: 0,
        waited_ns: 0,
        looked: 0,
        peak: 0,
    };
    let mut devices: Vec<Device> = (0..network.channels.len()).map(device).collect();
    for (number, flow) in network.flows.iter().enumerate() {
        let first = network.hops[flow.hops.start as usize].channel;
        devices[first as usize].flows.push(number as u32);
    }
    for device in &mut devices {
        let mut flows = device
            .flows
            .iter()
            .map(|&flow| &network.flows[flow as usize]);
        if flows.len() > 0 && flows.all(|flow| !flow.controlled) {
            // A NIC without HTB has no timer.
            device.timer_delay = 0.0;
        }
    }
    devices
}

/// Runs a network of bridges.
///
/// # Errors
///
/// The model is invalid, or an invariant is violated.
pub(crate) fn run(
    network: &Network,
    model: &Model,
    options: &Options,
) -> Result<Record, SimulationError> {
    let ipd = model.initial_ipd()?;
    let function = match model.response {
        Response::Function(function) => function,
        Response::Table(_) => Function::None,
    };
    let devices = devices(network, model, options.seed);
    let link = |flow: &crate::network::FlowPath| {
        let first = network.hops[flow.hops.start as usize].channel as usize;
        network.channels[first].rate.bytes_per_s()
    };
    let shortest = network.flows.iter().map(|flow| flow.packet_time).min();
    let kinds: Vec<Kind> = network
        .flows
        .iter()
        .enumerate()
        .map(|(path, flow)| Kind {
            path: path as u32,
            controlled: flow.controlled,
            device: network.hops[flow.hops.start as usize].channel,
            ipd,
            link_bytes_per_s: link(flow),
            packet_bytes: flow.packet_bytes,
        })
        .collect();
    let source = |kind: &Kind| {
        let flow = &network.flows[kind.path as usize];
        let seed = options.seed ^ (u64::from(kind.path) + 1) << 44;
        let delay = ps(model.timer_delay) as f64;
        Source::new(flow.traffic, flow.arrivals, flow.packet_bytes, delay, seed)
    };
    let schemes = (&model.bcn, &model.qcn);
    let fastest = kinds.iter().map(|kind| kind.link_bytes_per_s).max();
    let line = Rate::from_bytes_per_s(fastest.unwrap_or(1)).unwrap_or(Rate::MAX);
    let frame = kinds.iter().map(|kind| kind.packet_bytes).max();
    let frame = frame.unwrap_or_default();
    let kind = model.marking.notifications().unwrap_or_default();
    let sampling = notifications::sampling(kind, schemes, line, frame)?;
    let reactions = kinds
        .iter()
        .map(|kind| {
            let line = Rate::from_bytes_per_s(kind.link_bytes_per_s).unwrap_or(Rate::MAX);
            notifications::reaction(schemes, line, kind.packet_bytes)
        })
        .collect::<Result<_, _>>()?;
    let classes = || vec![Times::default(); network.classes.len()];
    let mut simulation = Simulation {
        network,
        scheduler: Scheduler::default(),
        packets: Slab::default(),
        siblings: vec![Siblings::default(); devices.len()],
        devices,
        bridges: std::iter::zip(&network.switches, &network.slots)
            .map(|(name, &slots)| Bridge::new(name, slots, model, sampling, options.trace))
            .collect(),
        senders: kinds
            .iter()
            .map(|kind| Sender::new(*kind, source(kind), 0))
            .collect(),
        kinds,
        finished: VecDeque::new(),
        agent: Agent::new(
            ps(model.agent_period),
            shortest.unwrap_or_default(),
            ps(model.enforcement_delay),
        ),
        response: model.policy(function)?,
        echo: echo::Policy {
            every_ns: match model.echo {
                Every::Packet => 0,
                Every::Time(time) => time.as_nanos(),
            },
            protocol: echo::PROTOCOL.into(),
            ..echo::Policy::default()
        },
        feedback: model.feedback(),
        reactions,
        notifications: model.marking.notifications(),
        burst: ps(model.burst),
        sent_packets: vec![0; network.flows.len()],
        flow_packets: vec![0; network.flows.len()],
        marked_packets: vec![0; network.flows.len()],
        dropped_packets: vec![0; network.flows.len()],
        timed: options
            .windows
            .iter()
            .map(|&window| (window, classes(), classes()))
            .collect(),
        packet_hops: 0,
        latencies: Vec::new(),
    };
    let controlled = function != Function::None;
    simulation.run(model, options, controlled)
}

impl Simulation<'_> {
    fn run(
        &mut self,
        model: &Model,
        options: &Options,
        controlled: bool,
    ) -> Result<Record, SimulationError> {
        use std::sync::atomic::Ordering;
        let instants = schedule(&mut self.scheduler, self.network, model, options)?;
        if controlled {
            self.scheduler.at(self.agent.due, Event::Source(AGENT));
        }
        let mut read: Vec<(Time, Snapshot)> = Vec::new();
        let mut events = 0u64;
        while let Some(event) = self.scheduler.pop() {
            let now = self.scheduler.now();
            if now > options.duration {
                self.scheduler.at(now, event);
                break;
            }
            match event {
                Event::Arrive(packet) => self.arrive(now, packet, controlled)?,
                Event::Tail(channel) => {
                    let timer = &mut self.devices[channel as usize].timer;
                    // Stale if the timer was reset: it then fires at another time.
                    if timer.is_some_and(|(_, fires)| fires == now) {
                        *timer = None;
                        self.dequeue(now, channel)?;
                    }
                }
                Event::Source(AGENT) => self.agent(now),
                Event::Source(number) => self.tick(now, number - 1)?,
                Event::Instant(number) => match instants[number as usize].1 {
                    Instant::Start(flow) => {
                        self.senders[flow as usize].active = true;
                        self.arm(now, flow);
                        self.dequeue(now, self.first_channel(flow))?;
                    }
                    Instant::Stop(flow) => self.senders[flow as usize].active = false,
                    Instant::Read => {
                        read.push((now, self.snapshot(now)));
                        self.devices.iter_mut().for_each(|device| device.peak = 0);
                    }
                },
            }
            events += 1;
            if events.is_multiple_of(PROGRESS_EVENTS)
                && let Some(progress) = &options.progress
            {
                progress.store(now, Ordering::Relaxed);
            }
            if options.check {
                self.check(now)?;
            }
        }
        let mut record = self.record(&read, options, events);
        for (window, (_, delays, completions)) in
            std::iter::zip(&mut record.windows, std::mem::take(&mut self.timed))
        {
            (window.delays, window.completions) = (delays, completions);
        }
        Ok(Record {
            in_flight_packets: self.in_flight(),
            traces: self
                .bridges
                .iter_mut()
                .filter_map(Bridge::take_trace)
                .collect(),
            ..record
        })
    }

    fn check(&self, now: Time) -> Result<(), SimulationError> {
        for (bridge, name) in self.bridges.iter().zip(&self.network.switches) {
            bridge.check().map_err(|what| SimulationError::Invariant {
                at_ps: now,
                at: name.clone(),
                what,
            })?;
        }
        Ok(())
    }

    /// Runs the agent, unless it has already run at this time.
    fn agent(&mut self, now: Time) {
        if now != self.agent.due {
            return;
        }
        for update in self.agent.run(now) {
            // A changed class does not wake its device, whose timer stays as it is.
            self.senders[update.flow as usize].enforce(&update);
            if let Some(marked) = update.marked {
                self.latencies.push((now, now - marked));
            }
        }
        self.scheduler.at(self.agent.due, Event::Source(AGENT));
    }

    /// The device of the flow's host.
    fn first_channel(&self, flow: u32) -> u32 {
        let path = self.senders[flow as usize].path;
        let first = self.network.flows[path as usize].hops.start;
        self.network.hops[first as usize].channel
    }

    /// Sets the timer of a flow's source, which has just started or whose timer has fired.
    fn arm(&mut self, now: Time, flow: u32) {
        let sender = &mut self.senders[flow as usize];
        if let Some(next) = sender.source.next_timer(now) {
            sender.timer = Some(next);
            self.scheduler.at(next, Event::Source(flow + 1));
        }
    }

    /// Handles the timer of a flow's source.
    fn tick(&mut self, now: Time, flow: u32) -> Result<(), SimulationError> {
        let sender = &mut self.senders[flow as usize];
        if sender.timer != Some(now) {
            return Ok(());
        }
        sender.timer = None;
        if !sender.active {
            return Ok(());
        }
        let acts = sender.source.on_timer(now);
        let channel = self.first_channel(flow);
        if acts && let Source::Arrivals(opens) = &self.senders[flow as usize].source {
            let packets = opens.packets.into();
            self.open(now, flow, channel, packets)?;
        }
        self.arm(now, flow);
        if acts {
            self.dequeue(now, channel)?;
        }
        Ok(())
    }

    /// Starts an arriving flow.
    fn open(
        &mut self,
        now: Time,
        path: u32,
        channel: u32,
        packets: u64,
    ) -> Result<(), SimulationError> {
        let algorithm = match self.network.flows[path as usize].traffic {
            Traffic::Tcp(algorithm) => algorithm,
            Traffic::Greedy | Traffic::Constant(_) => Algorithm::Cubic,
        };
        let source = Source::Tcp(Box::new(Tcp::new(algorithm, packets)));
        let mut sender = Sender::new(self.kinds[path as usize], source, now);
        sender.active = true;
        let forgotten = |(since, _): &mut (Time, u32)| *since + FORGOTTEN <= now;
        let flow = match self.finished.pop_front_if(forgotten) {
            Some((_, flow)) => {
                self.senders[flow as usize] = sender;
                flow
            }
            None if self.senders.len() + 1 < 1 << INDEX => {
                self.senders.push(sender);
                self.senders.len() as u32 - 1
            }
            None => return Err(SimulationError::TooMany),
        };
        self.devices[channel as usize].flows.push(flow);
        Ok(())
    }

    /// Handles the acknowledgement of a connection's packet.
    fn ack(&mut self, now: Time, flow: u32, number: u64) -> Result<(), SimulationError> {
        let sender = &mut self.senders[flow as usize];
        let Source::Tcp(tcp) = &mut sender.source else {
            return Ok(());
        };
        tcp.on_ack(now, number);
        let (done, began, path) = (tcp.is_done(), sender.began, sender.path);
        let channel = self.first_channel(flow);
        if !done {
            return self.dequeue(now, channel);
        }
        let sender = &mut self.senders[flow as usize];
        // Duplicates may be acknowledged, too, but a flow finishes only once.
        if std::mem::take(&mut sender.active) {
            self.finished.push_back((now, flow));
            let device = &mut self.devices[channel as usize];
            if let Some(at) = device.flows.iter().position(|one| *one == flow) {
                device.flows.remove(at);
                device.turn -= usize::from(at < device.turn);
                if device.turn >= device.flows.len() {
                    device.turn = 0;
                }
            }
            let class = self.network.flows[path as usize].class as usize;
            for ((from, to), _, completions) in &mut self.timed {
                if (*from..*to).contains(&now) {
                    completions[class].record(now - began);
                }
            }
        }
        Ok(())
    }

    /// Sends the packets that a device may send now.
    fn dequeue(&mut self, now: Time, channel: u32) -> Result<(), SimulationError> {
        let at = channel as usize;
        loop {
            let ready = self.devices[at].bucket.ready;
            let wait = match self.network.channels[at].sender {
                Some((bridge, output)) => {
                    if self.bridges[bridge as usize].queues[output as usize].is_empty() {
                        return Ok(());
                    }
                    if ready <= now {
                        self.forward(now, channel, bridge, output);
                        continue;
                    }
                    ready
                }
                None => match self.next_flow(now, at) {
                    None => return Ok(()),
                    Some(Ok(flow)) if ready <= now => {
                        self.send(now, channel, flow)?;
                        continue;
                    }
                    Some(Ok(_)) => ready,
                    Some(Err(class)) => class.max(ready),
                },
            };
            self.set_timer(at, wait);
            return Ok(());
        }
    }

    /// The next flow in turn whose class may send, or the earliest time at which one may. `None` if no flow has a
    /// packet.
    fn next_flow(&mut self, now: Time, at: usize) -> Option<Result<u32, Time>> {
        let device = &mut self.devices[at];
        let count = device.flows.len();
        let mut soonest: Option<Time> = None;
        for step in 0..count {
            let turn = (device.turn + step) % count;
            let flow = device.flows[turn];
            let sender = &self.senders[flow as usize];
            if !sender.has_packet() {
                continue;
            }
            let ready = sender.class.ready;
            if ready <= now {
                device.turn = turn;
                return Some(Ok(flow));
            }
            soonest = Some(soonest.map_or(ready, |soonest| soonest.min(ready)));
        }
        soonest.map(Err)
    }

    /// Sets a device's timer, unless it is already set for that time. It fires with a random delay.
    fn set_timer(&mut self, at: usize, wait: Time) {
        let device = &mut self.devices[at];
        if device.timer.is_some_and(|(set, _)| set == wait) {
            return;
        }
        let late = -device.timer_delay * (1.0 - device.late.random::<f64>()).ln();
        let fires = wait + late as Time;
        device.timer = Some((wait, fires));
        self.scheduler.at(fires, Event::Tail(at as u32));
    }

    /// A source sends a packet of a flow.
    fn send(&mut self, now: Time, channel: u32, flow: u32) -> Result<(), SimulationError> {
        let sender = &mut self.senders[flow as usize];
        let path = sender.path as usize;
        let (number, made) = sender.send(now);
        self.sent_packets[path] += 1;
        let armed = match &sender.source {
            Source::Tcp(tcp) => sender.timer.is_some_and(|timer| timer <= tcp.deadline),
            _ => true,
        };
        if !armed {
            self.arm(now, flow);
        }
        let first = self.network.flows[path].hops.start;
        let packet = Packet {
            flow,
            hop: first,
            marked: false,
            number,
            made,
            message: None,
        };
        let packet = self.packets.insert(packet);
        let packet = packet.ok_or(SimulationError::TooMany)?;
        let device = &mut self.devices[channel as usize];
        device.turn = (device.turn + 1) % device.flows.len();
        let transmission = self.network.hops[first as usize].transmission;
        device.bucket.charge(now, transmission, transmission);
        self.transmit(now, packet);
        let echoes = self.feedback.is_echoed();
        let sender = &mut self.senders[flow as usize];
        if self.feedback.is_backward() && sender.controlled && sender.is_due(echoes, now) {
            let clock = Report {
                flags: backward::BY_CLOCK,
                ..Report::default()
            };
            let update = if sender.reacts() {
                let policy = &self.reactions[sender.path as usize];
                sender.on_notification(policy, flow, &clock, now)
            } else {
                let host = Host {
                    policy: &self.response,
                    siblings: &mut self.siblings[sender.device as usize],
                };
                sender.on_report(host, flow, &clock, echoes, now)
            };
            self.notify_agent(now, update);
        }
        Ok(())
    }

    /// Passes an update of a program, if any, to the agent.
    fn notify_agent(&mut self, now: Time, update: Option<sender::RateUpdate>) {
        if let Some(update) = update
            && self.agent.on_rate_event(now, update)
        {
            self.scheduler.at(self.agent.due, Event::Source(AGENT));
        }
    }

    /// A port has marked a packet: sends a message back along the packet's path, if one is due.
    fn message(&mut self, now: Time, number: u32, bridge: u32, output: u8) -> Option<()> {
        let (marks, sequence) = self.bridges[bridge as usize].message(output, now / NS)?;
        self.send_back(
            now,
            number,
            (bridge, output),
            (marks, sequence),
            backward::Kind::Marks,
        )
    }

    /// Sends a message about a packet back along its path.
    fn send_back(
        &mut self,
        now: Time,
        number: u32,
        (bridge, output): (u32, u8),
        (feedback, sequence): (u32, u32),
        kind: backward::Kind,
    ) -> Option<()> {
        let packet = self.packets[number];
        let message = Packet {
            message: Some(Report {
                point: u64::from(bridge) << 8 | u64::from(output),
                sequence,
                marks: feedback,
                kind: kind as u32,
                acknowledgment: 0,
                quote: 0,
                flags: backward::BY_MESSAGE
                    | if self.feedback.is_echoed() {
                        backward::IN_PACKETS.into()
                    } else {
                        0
                    },
            }),
            ..packet
        };
        let path = &self.network.flows[self.senders[packet.flow as usize].path as usize];
        let hops = path.hops.start..packet.hop;
        let takes = self.network.back(hops);
        let message = self.packets.insert(message)?;
        self.scheduler.at(now + takes, Event::Arrive(message));
        Some(())
    }

    /// Sends the next packet of a port.
    fn forward(&mut self, now: Time, channel: u32, bridge: u32, output: u8) {
        self.look(now, channel, bridge, output);
        let Some((number, mark)) = self.bridges[bridge as usize].depart(output) else {
            return;
        };
        if mark {
            self.mark(now, number);
        }
        let hop = self.packets[number].hop;
        let transmission = self.network.hops[hop as usize].transmission;
        let burst = transmission.max(self.burst);
        self.devices[channel as usize]
            .bucket
            .charge(now, transmission, burst);
        self.transmit(now, number);
    }

    fn mark(&mut self, now: Time, number: u32) {
        let packet = &mut self.packets[number];
        if !packet.marked {
            packet.marked = true;
            let sender = &mut self.senders[packet.flow as usize];
            self.marked_packets[sender.path as usize] += 1;
            sender.marked.get_or_insert(now);
        }
    }

    /// Sends a packet towards the end of its channel.
    fn transmit(&mut self, now: Time, number: u32) {
        let Packet {
            flow, hop, made, ..
        } = self.packets[number];
        let flow = self.senders[flow as usize].path;
        let path = &self.network.flows[flow as usize];
        let hop = self.network.hops[hop as usize];
        self.devices[hop.channel as usize].bytes += u64::from(path.packet_bytes);
        self.packet_hops += 1;
        let last = self.network.channels[hop.channel as usize]
            .receiver
            .is_none();
        if last {
            self.flow_packets[flow as usize] += 1;
            for ((from, to), delays, _) in &mut self.timed {
                if (*from..*to).contains(&now) {
                    delays[path.class as usize].record(now - made);
                }
            }
        }
        let takes = if last { path.to_ack } else { hop.to_forward };
        self.scheduler.at(now + takes, Event::Arrive(number));
    }

    /// Handles a packet at the end of its channel or, past its last hop, its echo at the source.
    fn arrive(&mut self, now: Time, number: u32, controlled: bool) -> Result<(), SimulationError> {
        let packet = &mut self.packets[number];
        if let Packet {
            flow,
            message: Some(message),
            ..
        } = *packet
        {
            self.packets.remove(number);
            let (echoes, sender) = (self.feedback.is_echoed(), &mut self.senders[flow as usize]);
            if controlled && sender.controlled {
                let update = if message.kind == backward::Kind::Marks as u32 {
                    let host = Host {
                        policy: &self.response,
                        siblings: &mut self.siblings[sender.device as usize],
                    };
                    sender.on_report(host, flow, &message, echoes, now)
                } else {
                    let policy = &self.reactions[sender.path as usize];
                    sender.on_notification(policy, flow, &message, now)
                };
                self.notify_agent(now, update);
            }
            return Ok(());
        }
        let here = self.network.hops[packet.hop as usize].channel;
        let Some((bridge, input)) = self.network.channels[here as usize].receiver else {
            let packet = *packet;
            self.packets.remove(number);
            let echoed = controlled && self.feedback.is_echoed();
            if echoed && self.senders[packet.flow as usize].controlled {
                self.echo(now, packet.flow, packet.marked);
            }
            return self.ack(now, packet.flow, packet.number);
        };
        packet.hop += 1;
        let next = self.network.hops[packet.hop as usize].channel;
        let Some((_, output)) = self.network.channels[next as usize].sender else {
            return Ok(());
        };
        let flow = packet.flow as usize;
        self.look(now, next, bridge, output);
        // Packets of hosts without the agent are not ECN-capable, but messages can be sent about any packet.
        let markable = self.bridges[bridge as usize].is_markable(self.senders[flow].controlled);
        let path = &self.network.flows[self.senders[flow].path as usize];
        let host = self.network.hops[path.hops.start as usize].channel;
        let arrival = vqueue::PacketMeta {
            input,
            output,
            markable,
            droppable: path.packet_bytes > SMALL_BYTES,
            packets: 1,
            bytes: path.packet_bytes,
            source: packet::source(&[host + 1, 0, 0, 0]),
            now_ns: now / NS,
            ns_per_byte: 0,
        };
        let arrived = self.bridges[bridge as usize].arrive(number, arrival);
        let (Arrival::Queued { marked } | Arrival::Dropped { marked }) = arrived;
        let at = &mut self.bridges[bridge as usize];
        if let Some(kind) = self.notifications
            && let Some(sample) = at.sample(&arrival, flow as u32, self.senders[flow].began / NS)
        {
            self.senders[flow].marked.get_or_insert(now);
            self.send_back(now, number, (bridge, output), sample, kind);
        }
        // A dropped packet's mark is lost with it; a message is not.
        let backward = self.feedback.is_backward();
        if marked && (backward || matches!(arrived, Arrival::Queued { .. })) {
            self.mark(now, number);
            if backward {
                self.message(now, number, bridge, output);
            }
        }
        match arrived {
            Arrival::Queued { .. } => {
                let queued = self.bridges[bridge as usize].queues[output as usize].len() as u32;
                let device = &mut self.devices[next as usize];
                device.peak = device.peak.max(queued);
                self.dequeue(now, next)
            }
            Arrival::Dropped { .. } => {
                self.devices[next as usize].dropped += 1;
                self.dropped_packets[self.senders[flow].path as usize] += 1;
                self.packets.remove(number);
                Ok(())
            }
        }
    }

    fn echo(&mut self, now: Time, flow: u32, marked: bool) {
        let sender = &mut self.senders[flow as usize];
        let hops = self.network.flows[sender.path as usize].hops.clone();
        // Through the ports that the data passed, in reverse.
        let return_path = || {
            let hops = &self.network.hops[hops.start as usize..hops.end as usize];
            hops.iter().rev().fold(packet::ECT_0, |ecn, hop| {
                match self.network.channels[hop.channel as usize].sender {
                    Some((bridge, output)) => {
                        let busy = self.bridges[bridge as usize].is_busy(output, now / NS);
                        Headroom::at_port(ecn, busy)
                    }
                    None => ecn,
                }
            })
        };
        let host = Host {
            policy: &self.response,
            siblings: &mut self.siblings[sender.device as usize],
        };
        let update = sender.deliver(host, &self.echo, flow, marked, return_path, now);
        self.notify_agent(now, update);
    }

    /// Adds up the packets' waiting time, before the queue length changes.
    fn look(&mut self, now: Time, channel: u32, bridge: u32, output: u8) {
        let queued = self.bridges[bridge as usize].queues[output as usize].len() as u64;
        let device = &mut self.devices[channel as usize];
        device.waited_ns += queued * (now / NS - device.looked / NS);
        device.looked = now;
    }

    fn queued(&self, channel: usize) -> u32 {
        match self.network.channels[channel].sender {
            Some((bridge, output)) => {
                self.bridges[bridge as usize].queues[output as usize].len() as u32
            }
            None => 0,
        }
    }

    fn snapshot(&self, now: Time) -> Snapshot {
        let devices = || self.devices.iter().enumerate();
        Snapshot {
            channel_bytes: devices().map(|(_, device)| device.bytes).collect(),
            flow_packets: self.flow_packets.clone(),
            flow_marked: self.marked_packets.clone(),
            line_packets: devices().map(|(channel, _)| self.queued(channel)).collect(),
            dropped: devices().map(|(_, device)| device.dropped).collect(),
            waited_ns: devices()
                .map(|(channel, device)| {
                    let since = now / NS - device.looked / NS;
                    device.waited_ns + u64::from(self.queued(channel)) * since
                })
                .collect(),
            queue_peaks: devices().map(|(_, device)| device.peak).collect(),
            flow_dropped: self.dropped_packets.clone(),
            host_dropped: self.senders[..self.network.flows.len()]
                .iter()
                .map(|sender| match &sender.source {
                    Source::Constant(constant) => constant.dropped,
                    _ => 0,
                })
                .collect(),
            messages: self.bridges.iter().map(Bridge::messages).sum(),
        }
    }

    fn record(&self, read: &[(Time, Snapshot)], options: &Options, events: u64) -> Record {
        Record {
            marked_packets: self.marked_packets.clone(),
            sent_packets: self.sent_packets.clone(),
            delivered_packets: self.flow_packets.clone(),
            ports: std::iter::zip(&self.bridges, &self.network.slots)
                .map(|(bridge, &slots)| (0..slots).map(|slot| bridge.totals(slot as u8)).collect())
                .collect(),
            packet_hops: self.packet_hops,
            events,
            control_latencies: self.latencies.clone(),
            ..counted(read, &self.snapshot(options.duration), options)
        }
    }

    /// Packets between their source and their last hop at the end of the run, by flow, counted where they are: in a
    /// queue, or on a channel to a bridge.
    fn in_flight(&mut self) -> Vec<u64> {
        let mut by_flow = vec![0u64; self.network.flows.len()];
        let queues = self.bridges.iter().flat_map(|bridge| &bridge.queues);
        for queued in queues.flatten() {
            by_flow[self.senders[self.packets[queued.packet].flow as usize].path as usize] += 1;
        }
        while let Some(event) = self.scheduler.pop() {
            let Event::Arrive(packet) = event else {
                continue;
            };
            let Packet {
                flow, hop, message, ..
            } = self.packets[packet];
            if message.is_some() {
                continue;
            }
            let channel = self.network.hops[hop as usize].channel as usize;
            let path = self.senders[flow as usize].path as usize;
            by_flow[path] += u64::from(self.network.channels[channel].receiver.is_some());
        }
        by_flow
    }
}
