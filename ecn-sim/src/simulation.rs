//! A run: sources, channels and switches, event by event.
//!
//! A packet takes one event per switch ([`Event::Arrive`]: its header can be forwarded) and one per switch output
//! ([`Event::Tail`]: the output is idle again and the slot free). With a window of one packet, nothing else happens to
//! its flow until the ACK is back. The ACK's effect is therefore computed when the last hop starts, and the flow's next
//! event is its next packet.
//!
//! [Data centres](crate::fabric) have the same switches (`fig1`), with the same results: of Fig. 1 over two seconds,
//! 2,211,599 packet-hops in both without control, and 2,182,504 there and 2,182,868 here with LIPD. HP's networks are
//! not among them for the speed: there a run takes 2.5 to 2.9 times as long, with ACKs that are packets, and would take
//! 2.0 to 2.4 times as long if ACKs arrived at once, as they do here.

pub(crate) mod instants;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::bounds::ModelError;
use crate::bridged;
use crate::endpoint::{Control, Designed, Source};
use crate::engine::{Calendar, Event, INDEX, Queue, Scheduler, Slab, Time};
use crate::measure::{Record, Snapshot};
use crate::model::{Model, Response, SlotFreed, SwitchKind, Trigger};
use crate::network::{Hop, Network};
use crate::switch::{Port, Switch};
use instants::{Instant, counted, schedule};
pub use instants::{Options, SimulationError};

/// Events between two reports of progress.
const PROGRESS_EVENTS: u64 = 1 << 18;

/// All packet numbers are in use.
struct TooMany;

impl From<TooMany> for SimulationError {
    fn from(_: TooMany) -> Self {
        Self::TooMany
    }
}

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
struct Packet {
    flow: u32,
    /// Index of its current hop, or of the one that it waits for.
    hop: u32,
    marked: bool,
}

/// State of a channel during a run, with its ends as in [`Network::channels`].
#[derive(Clone, Debug, Default)]
struct Wire {
    sender: Option<(u32, u8)>,
    /// Whether it leads to a switch, where packets take slots.
    to_switch: bool,
    /// Free slots at its end; hosts always have room.
    credits: u32,
    /// Packets of a host that wait for it.
    queue: VecDeque<u32>,
    busy_until: Time,
    /// Whether a tail event is scheduled.
    tail: bool,
    bytes: u64,
}

struct Simulation<'a, Q> {
    network: &'a Network,
    scheduler: Scheduler<Q>,
    packets: Slab<Packet>,
    wires: Vec<Wire>,
    switches: Vec<Switch>,
    sources: Vec<Source>,
    control: Control,
    window: u32,
    buffer: u32,
    free_at_head: bool,
    trigger_first: bool,
    flow_packets: Vec<u64>,
    marked_packets: Vec<u64>,
    packet_hops: u64,
}

/// Runs a network under a model, with the fastest event queue.
///
/// # Errors
///
/// The model is invalid, or an invariant is violated.
pub fn run(
    network: &Network,
    model: &Model,
    table: Option<Arc<dyn Designed>>,
    options: &Options,
) -> Result<Record, SimulationError> {
    run_with::<Calendar>(network, model, table, options)
}

/// [`run`] with an event queue of the caller's choice.
///
/// # Errors
///
/// As for [`run`].
pub fn run_with<Q: Queue>(
    network: &Network,
    model: &Model,
    table: Option<Arc<dyn Designed>>,
    options: &Options,
) -> Result<Record, SimulationError> {
    model.check()?;
    let ipd = model.initial_ipd()?;
    let most = 1usize << INDEX;
    if network.flows.len() >= most || network.channels.len() >= most {
        return Err(SimulationError::TooMany);
    }
    if model.switch == SwitchKind::Output {
        return bridged::run(network, model, options);
    }
    let control = match (&model.response, table) {
        (_, Some(table)) => Control::Table(table),
        (Response::Function(function), None) => Control::Policy(model.policy(*function)?),
        (Response::Table(file), None) => {
            let reason = "the table was not loaded";
            return Err(ModelError::new("response", file.display(), reason).into());
        }
    };
    let mut simulation = Simulation::<Q> {
        network,
        scheduler: Scheduler::default(),
        packets: Slab::default(),
        wires: network
            .channels
            .iter()
            .map(|channel| Wire {
                sender: channel.sender,
                to_switch: channel.receiver.is_some(),
                credits: model.buffer,
                ..Wire::default()
            })
            .collect(),
        switches: std::iter::zip(&network.switches, &network.receiving)
            .map(|(name, receiving)| Switch::new(name, receiving, model))
            .collect(),
        sources: network
            .flows
            .iter()
            .map(|flow| Source::new(flow.packet_time, ipd, model.spacing))
            .collect(),
        control,
        window: model.window,
        buffer: model.buffer,
        free_at_head: model.slot_freed == SlotFreed::Head,
        trigger_first: model.trigger == Trigger::BeforeDispatch,
        flow_packets: vec![0; network.flows.len()],
        marked_packets: vec![0; network.flows.len()],
        packet_hops: 0,
    };
    simulation.run(model, options)
}

impl<Q: Queue> Simulation<'_, Q> {
    fn run(&mut self, model: &Model, options: &Options) -> Result<Record, SimulationError> {
        let instants = schedule(&mut self.scheduler, self.network, model, options)?;
        let mut read: Vec<(Time, Snapshot)> = Vec::new();
        let (mut events, mut checked_events) = (0u64, 0u64);
        while let Some(event) = self.scheduler.pop() {
            let now = self.scheduler.now();
            if now > options.duration {
                self.scheduler.at(now, event);
                break;
            }
            match event {
                Event::Arrive(packet) => self.arrive(now, packet)?,
                Event::Tail(channel) => self.tail(now, channel),
                Event::Source(flow) => {
                    if self.sources[flow as usize].wake(now) {
                        self.send(now, flow)?;
                    }
                }
                Event::Instant(number) => match instants[number as usize].1 {
                    Instant::Start(flow) => {
                        self.sources[flow as usize].active = true;
                        self.send(now, flow)?;
                    }
                    Instant::Stop(flow) => self.sources[flow as usize].active = false,
                    Instant::Read => read.push((now, self.snapshot())),
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
                checked_events += 1;
            }
        }
        let in_flight = self.in_flight(options)?;
        Ok(Record {
            in_flight_packets: in_flight,
            checked_events,
            ..self.record(&read, options, events)
        })
    }

    /// Checks that counters and buffers are consistent, and that no packet waits that could be sent.
    fn check(&self, now: Time) -> Result<(), SimulationError> {
        let broken = |at: &str, what: String| SimulationError::Invariant {
            at_ps: now,
            at: at.to_owned(),
            what,
        };
        for (switch, name) in self.switches.iter().zip(&self.network.switches) {
            switch
                .check(self.free_at_head)
                .map_err(|what| broken(name, what))?;
        }
        for (channel, wire) in self.network.channels.iter().zip(&self.wires) {
            let could_go = match channel.sender {
                Some((switch, output)) => self.switches[switch as usize].could_go(output),
                None => !wire.queue.is_empty() && now >= wire.busy_until && !wire.tail,
            };
            let credits = wire.credits;
            if could_go && credits > 0 {
                return Err(broken(
                    &channel.name,
                    "a packet waits that could go".to_owned(),
                ));
            }
            if credits > self.buffer {
                return Err(broken(
                    &channel.name,
                    format!("{credits} credits for {} slots", self.buffer),
                ));
            }
        }
        for (flow, source) in self.sources.iter().enumerate() {
            // With a window of one, the wait ends with an event other than a timer.
            let could_send = source.may_send(self.window) && source.timer.is_none();
            if self.window > 1 && could_send {
                return Err(broken(
                    &self.network.classes[self.network.flows[flow].class as usize],
                    format!("flow {flow} does not send, although it could"),
                ));
            }
        }
        Ok(())
    }

    /// Packets between their source and their last hop at the end of the run, by flow, counted where they are: in a
    /// queue, or on a channel to a switch. With [`Options::check`] also compares the slots that they take.
    fn in_flight(&mut self, options: &Options) -> Result<Vec<u64>, SimulationError> {
        let mut by_flow = vec![0u64; self.network.flows.len()];
        let mut slots: Vec<Vec<u32>> = std::iter::zip(&self.switches, &self.network.slots)
            .map(|(switch, &slots)| {
                (0..slots)
                    .map(|slot| switch.slots_taken(slot as u8, self.free_at_head))
                    .collect()
            })
            .collect();
        let hosts = self.wires.iter().flat_map(|wire| &wire.queue).copied();
        let ports = self.switches.iter().flat_map(|switch| &switch.ports);
        let waiting = ports
            .flat_map(|port| &port.queue)
            .map(|waiting| waiting.packet);
        for packet in hosts.chain(waiting) {
            by_flow[self.packets[packet].flow as usize] += 1;
        }
        while let Some(event) = self.scheduler.pop() {
            let Event::Arrive(packet) = event else {
                continue;
            };
            let Packet { flow, hop, .. } = self.packets[packet];
            let channel = self.network.hops[hop as usize].channel as usize;
            if let Some((switch, input)) = self.network.channels[channel].receiver {
                by_flow[flow as usize] += 1;
                slots[switch as usize][input as usize] += 1;
            }
        }
        if options.check {
            for ((switch, name), slots) in
                (self.switches.iter().zip(&self.network.switches)).zip(slots)
            {
                let taken = |port: &Port| self.buffer - self.wires[port.upstream as usize].credits;
                let differs = |slot: &usize| taken(&switch.ports[*slot]) != slots[*slot];
                if let Some(port) = (1..slots.len()).find(differs) {
                    return Err(SimulationError::Invariant {
                        at_ps: options.duration,
                        at: name.clone(),
                        what: format!(
                            "port {port}: {} slots taken by {} packets",
                            taken(&switch.ports[port]),
                            slots[port]
                        ),
                    });
                }
            }
        }
        Ok(by_flow)
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            channel_bytes: self.wires.iter().map(|wire| wire.bytes).collect(),
            flow_packets: self.flow_packets.clone(),
            flow_marked: self.marked_packets.clone(),
            line_packets: self
                .wires
                .iter()
                .map(|wire| match wire.sender {
                    Some((switch, output)) => {
                        let port = &self.switches[switch as usize].ports[output as usize];
                        port.queue.len() as u32
                    }
                    None => wire.queue.len() as u32,
                })
                .collect(),
            ..Snapshot::default()
        }
    }

    fn record(&self, read: &[(Time, Snapshot)], options: &Options, events: u64) -> Record {
        Record {
            marked_packets: self.marked_packets.clone(),
            sent_packets: self.sources.iter().map(|source| source.sent).collect(),
            delivered_packets: self.flow_packets.clone(),
            in_flight_packets: Vec::new(),
            ports: std::iter::zip(&self.switches, &self.network.slots)
                .map(|(switch, &slots)| (0..slots).map(|slot| switch.totals(slot as u8)).collect())
                .collect(),
            packet_hops: self.packet_hops,
            events,
            ..counted(read, &self.snapshot(), options)
        }
    }

    /// Sends a packet if window and rate permit it now.
    #[inline]
    fn send(&mut self, now: Time, flow: u32) -> Result<(), TooMany> {
        let source = &mut self.sources[flow as usize];
        if !source.may_send(self.window) {
            return Ok(());
        }
        if now < source.not_before {
            self.set_timer(flow);
            return Ok(());
        }
        source.send();
        let first = self.network.flows[flow as usize].hops.start;
        let packet = Packet {
            flow,
            hop: first,
            marked: false,
        };
        let number = self.packets.insert(packet).ok_or(TooMany)?;
        let hop = &self.network.hops[first as usize];
        let wire = &mut self.wires[hop.channel as usize];
        if wire.queue.is_empty() && !wire.tail && now >= wire.busy_until && wire.credits > 0 {
            self.start_host(now, number, packet, hop);
        } else {
            wire.queue.push_back(number);
            self.dispatch_host(now, hop.channel);
        }
        Ok(())
    }

    /// Schedules the wake-up of a source that is limited only by its rate.
    fn set_timer(&mut self, flow: u32) {
        let source = &mut self.sources[flow as usize];
        let wake = source.not_before;
        if source.may_send(self.window) && source.timer.is_none_or(|timer| timer > wake) {
            source.timer = Some(wake);
            self.scheduler.at(wake, Event::Source(flow));
        }
    }

    /// Starts the next packet of a host's channel, if possible.
    fn dispatch_host(&mut self, now: Time, channel: u32) {
        loop {
            let wire = &mut self.wires[channel as usize];
            if wire.queue.is_empty() || wire.tail {
                return;
            }
            if now < wire.busy_until {
                wire.tail = true;
                self.scheduler.at(wire.busy_until, Event::Tail(channel));
                return;
            }
            if wire.credits == 0 {
                return;
            }
            let Some(packet) = wire.queue.pop_front() else {
                return;
            };
            let of = self.packets[packet];
            self.start_host(now, packet, of, &self.network.hops[of.hop as usize]);
        }
    }

    /// Starts a host's packet.
    #[inline]
    fn start_host(&mut self, now: Time, number: u32, packet: Packet, hop: &Hop) {
        self.sources[packet.flow as usize].start(now);
        self.start(now, number, hop);
        if self.window > 1 {
            self.set_timer(packet.flow);
        }
    }

    /// Starts the next packet of a channel, if possible.
    #[inline]
    fn dispatch(&mut self, now: Time, channel: u32) {
        match self.wires[channel as usize].sender {
            Some((switch, output)) => self.dispatch_output(now, channel, switch, output),
            None => self.dispatch_host(now, channel),
        }
    }

    /// Starts the next packet of a switch's output, if possible.
    fn dispatch_output(&mut self, now: Time, channel: u32, switch: u32, output: u8) {
        if self.wires[channel as usize].credits == 0 {
            return self.switches[switch as usize].lacks_credit(output);
        }
        let Some((next, mark)) = self.switches[switch as usize].next(output) else {
            return;
        };
        let packet = &mut self.packets[next.packet];
        if mark && !packet.marked {
            packet.marked = true;
            self.marked_packets[packet.flow as usize] += 1;
        }
        let hop = &self.network.hops[packet.hop as usize];
        self.start(now, next.packet, hop);
        self.dispatch_held_up(now, switch, next.input, output);
    }

    /// Dispatches the outputs with packets that were held up by the packet that has left `input` through `output`.
    #[inline(always)]
    fn dispatch_held_up(&mut self, now: Time, switch: u32, input: u8, output: u8) {
        if !self.switches[switch as usize].is_plain() {
            self.dispatch_blocked(now, switch, input, output);
        }
    }

    #[cold]
    fn dispatch_blocked(&mut self, now: Time, switch: u32, input: u8, output: u8) {
        for output in self.switches[switch as usize].held_up(input, output) {
            let other = self.network.sending[switch as usize][output as usize];
            self.dispatch(now, other);
        }
    }

    /// Starts the transmission of a packet.
    #[inline(always)]
    fn start(&mut self, now: Time, number: u32, hop: &Hop) {
        let wire = &mut self.wires[hop.channel as usize];
        wire.bytes += u64::from(hop.packet_bytes);
        wire.busy_until = now + hop.transmission;
        wire.credits -= u32::from(wire.to_switch);
        let to_switch = wire.to_switch;
        self.packet_hops += 1;
        if let Some(through) = hop.through {
            self.scheduler
                .at(now + hop.transmission, Event::Tail(hop.channel));
            if self.free_at_head {
                self.free_slot(now, through.switch, through.input);
            }
        }
        if to_switch {
            self.scheduler
                .at(now + hop.to_forward, Event::Arrive(number));
            return;
        }
        let packet = self.packets[number];
        let flow = packet.flow as usize;
        let to_ack = self.network.flows[flow].to_ack;
        self.flow_packets[flow] += 1;
        if self.window == 1 {
            self.packets.remove(number);
            let source = &mut self.sources[flow];
            source.on_ack(&self.control, packet.marked, now + to_ack);
            let back = (now + to_ack).max(source.not_before);
            source.timer = Some(back);
            self.scheduler.at(back, Event::Source(packet.flow));
        } else {
            // The ACK carries the mark, so it is represented by the packet's number on the way back.
            self.scheduler.at(now + to_ack, Event::Arrive(number));
        }
    }

    /// Handles a packet whose header can be forwarded or, past its last hop, its ACK at the source.
    #[inline]
    fn arrive(&mut self, now: Time, number: u32) -> Result<(), TooMany> {
        let packet = &mut self.packets[number];
        let flow = packet.flow as usize;
        if self.window > 1 && packet.hop + 1 == self.network.flows[flow].hops.end {
            let marked = packet.marked;
            self.packets.remove(number);
            self.sources[flow].on_ack(&self.control, marked, now);
            return self.send(now, flow as u32);
        }
        packet.hop += 1;
        let hop = &self.network.hops[packet.hop as usize];
        let Some(through) = hop.through else {
            return Ok(());
        };
        let has_credit = self.wires[hop.channel as usize].credits > 0;
        let switch = &mut self.switches[through.switch as usize];
        if switch.arrive(now, number, through.input, through.output, has_credit) {
            self.start(now, number, hop);
        } else if self.trigger_first {
            // Otherwise `Switch::arrive` has already checked whether the packet can be sent now.
            self.dispatch(now, hop.channel);
        }
        Ok(())
    }

    /// Handles the end of a transmission: the channel is idle again.
    #[inline]
    fn tail(&mut self, now: Time, channel: u32) {
        let wire = &mut self.wires[channel as usize];
        let Some((switch, output)) = wire.sender else {
            wire.tail = false;
            return self.dispatch_host(now, channel);
        };
        let input = self.switches[switch as usize].leave(output);
        self.dispatch_output(now, channel, switch, output);
        self.dispatch_held_up(now, switch, input, output);
        if !self.free_at_head {
            self.free_slot(now, switch, input);
        }
    }

    /// Frees a slot: its credit may release the channel upstream.
    #[inline(always)]
    fn free_slot(&mut self, now: Time, switch: u32, input: u8) {
        let upstream = self.switches[switch as usize].ports[input as usize].upstream;
        let wire = &mut self.wires[upstream as usize];
        wire.credits += 1;
        if let Some((switch, output)) = wire.sender {
            self.switches[switch as usize].has_credit(now, output);
        }
        self.dispatch(now, upstream);
    }
}
