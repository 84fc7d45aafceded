//! A run: sources, channels and switches, event by event.
//!
//! A packet takes one event per switch ([`Event::Arrive`]: its header can be forwarded) and one per
//! switch output ([`Event::Tail`]: the output is idle again and the slot free). With a window of one
//! packet nothing else happens to its flow until the ACK is back, so its effect is worked out when
//! the last hop starts, and the flow's next event is its next packet.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::bridged;
use crate::endpoint::{Control, Designed, Source};
use crate::engine::{Agenda, Calendar, Event, INDEX, Queue, Slab, Time};
use crate::measure::{Record, Snapshot, Window};
use crate::model::{Model, ModelError, Phases, Response, SlotFreed, SwitchKind, Trigger};
use crate::network::{Hop, Network};
use crate::switch::Switch;

/// Events between two reports of progress.
const PROGRESS_EVENTS: u64 = 1 << 18;

/// What a run is asked for, beside network and model.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// All randomness comes from it.
    pub seed: u64,
    /// When the run ends.
    pub duration: Time,
    /// Windows to count in.
    pub windows: Vec<(Time, Time)>,
    /// Step of the series; 0 for none.
    pub series_step: Time,
    /// Compare all counters with a scan after each event.
    pub check: bool,
    /// Record so many events of each bridge with queues at its outputs.
    pub trace: usize,
    /// Gets the simulated time now and then.
    pub progress: Option<Arc<AtomicU64>>,
}

impl Options {
    /// The times of the series.
    fn steps(&self) -> impl Iterator<Item = Time> + use<> {
        let step = self.series_step;
        let count = self.duration.checked_div(step).map_or(0, |last| last + 1);
        (0..count).map(move |n| n * step)
    }
}

/// A run that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// A model that makes no sense.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Something that must always hold did not.
    #[error("at {at_ps} ps, `{at}`: {what}")]
    Invariant {
        /// When.
        at_ps: Time,
        /// The switch, channel or class.
        at: String,
        /// What.
        what: String,
    },
    /// More at once than events can number.
    #[error("more than {} flows, channels, packets in flight or times to count at", 1u32 << INDEX)]
    TooMany,
}

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
struct Packet {
    flow: u32,
    /// Index of the hop that it is on, or waits for.
    hop: u32,
    marked: bool,
}

/// What changes of a channel.
#[derive(Clone, Debug, Default)]
struct Wire {
    /// A host's packets that wait for it.
    line: VecDeque<u32>,
    busy_until: Time,
    /// A tail is scheduled.
    tail: bool,
    bytes: u64,
}

struct Simulation<'a, Q> {
    network: &'a Network,
    agenda: Agenda<Q>,
    packets: Slab<Packet>,
    wires: Vec<Wire>,
    switches: Vec<Switch>,
    sources: Vec<Source>,
    control: Control,
    window: u32,
    free_at_head: bool,
    trigger_first: bool,
    flow_packets: Vec<u64>,
    marked_packets: Vec<u64>,
    packet_hops: u64,
}

/// Runs a network under a model, with the fastest queue.
///
/// # Errors
///
/// The model makes no sense, or an invariant is broken.
pub fn run(
    network: &Network,
    model: &Model,
    table: Option<Arc<dyn Designed>>,
    options: &Options,
) -> Result<Record, SimulationError> {
    run_with::<Calendar>(network, model, table, options)
}

/// [`run`] with a queue of one's own choice.
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
        agenda: Agenda::default(),
        packets: Slab::default(),
        wires: vec![Wire::default(); network.channels.len()],
        switches: std::iter::zip(&network.switches, &network.slots)
            .map(|(name, &slots)| Switch::new(name, slots, model))
            .collect(),
        sources: network
            .flows
            .iter()
            .map(|flow| Source::new(flow.packet_time, ipd, model.spacing))
            .collect(),
        control,
        window: model.window,
        free_at_head: model.slot_freed == SlotFreed::Head,
        trigger_first: model.trigger == Trigger::BeforeDispatch,
        flow_packets: vec![0; network.flows.len()],
        marked_packets: vec![0; network.flows.len()],
        packet_hops: 0,
    };
    simulation.run(model, options)
}

/// What an instant is for.
pub(crate) enum Instant {
    Start(u32),
    Stop(u32),
    Read,
}

/// Schedules all instants. Those of reading come before anything else at their time.
pub(crate) fn schedule<Q: Queue>(
    agenda: &mut Agenda<Q>,
    network: &Network,
    model: &Model,
    options: &Options,
) -> Result<Vec<(Time, Instant)>, SimulationError> {
    let most = 1u64 << INDEX;
    let steps = options.duration.checked_div(options.series_step);
    if steps.is_some_and(|steps| steps >= most) {
        return Err(SimulationError::TooMany);
    }
    let mut times: Vec<Time> = options
        .windows
        .iter()
        .flat_map(|&(from, to)| [from, to])
        .collect();
    times.extend(options.steps());
    times.sort_unstable();
    times.dedup();
    let mut instants: Vec<_> = times
        .into_iter()
        .map(|time| (time, Instant::Read))
        .collect();
    for (index, flow) in network.flows.iter().enumerate() {
        let phase = match model.phases {
            // A stream per flow: adding one does not change the others.
            Phases::Random => Pcg64Mcg::seed_from_u64(options.seed ^ (index as u64) << 32)
                .random_range(0..flow.packet_time.max(1)),
            Phases::Aligned => 0,
        };
        let start = flow.active.start.saturating_add(phase);
        if start < flow.active.end {
            instants.push((start, Instant::Start(index as u32)));
            if flow.active.end <= options.duration {
                instants.push((flow.active.end, Instant::Stop(index as u32)));
            }
        }
    }
    if instants.len() as u64 > most {
        return Err(SimulationError::TooMany);
    }
    for (number, (time, _)) in instants.iter().enumerate() {
        if *time <= options.duration {
            agenda.at(*time, Event::Instant(number as u32));
        }
    }
    Ok(instants)
}

/// Windows and series from what was read at the instants, and at the end.
pub(crate) fn counted(read: &[(Time, Snapshot)], last: &Snapshot, options: &Options) -> Record {
    let at = |time: Time| match read.binary_search_by_key(&time, |(at, _)| *at) {
        Ok(index) => &read[index].1,
        Err(_) => last,
    };
    let windows = options.windows.iter().map(|&(from, to)| {
        let within = |(at, snapshot): &(Time, Snapshot)| {
            (from < *at && *at <= to).then(|| snapshot.line_peaks.clone())
        };
        Window {
            from,
            to,
            counts: at(to).since(at(from)),
            line_peaks: read
                .iter()
                .filter_map(within)
                .reduce(higher)
                .unwrap_or_default(),
        }
    });
    Record {
        windows: windows.collect(),
        series: options.steps().map(|time| at(time).clone()).collect(),
        series_step: options.series_step,
        ..Record::default()
    }
}

/// The higher of each two.
fn higher(mut peaks: Vec<u32>, others: Vec<u32>) -> Vec<u32> {
    for (peak, other) in peaks.iter_mut().zip(others) {
        *peak = other.max(*peak);
    }
    peaks
}

impl<Q: Queue> Simulation<'_, Q> {
    fn run(&mut self, model: &Model, options: &Options) -> Result<Record, SimulationError> {
        let instants = schedule(&mut self.agenda, self.network, model, options)?;
        let mut read: Vec<(Time, Snapshot)> = Vec::new();
        let mut events = 0u64;
        while let Some(event) = self.agenda.pop() {
            let now = self.agenda.now();
            if now > options.duration {
                self.agenda.at(now, event);
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
            }
        }
        let in_flight = self.in_flight(options)?;
        Ok(Record {
            in_flight_packets: in_flight,
            ..self.record(&read, options, events)
        })
    }

    /// Whether counters and buffers are sound, and nothing waits that could go.
    fn check(&self, now: Time) -> Result<(), SimulationError> {
        let broken = |at: &str, what: String| SimulationError::Invariant {
            at_ps: now,
            at: at.to_owned(),
            what,
        };
        for (switch, name) in self.switches.iter().zip(&self.network.switches) {
            switch.check().map_err(|what| broken(name, what))?;
        }
        let ends = self.network.channels.iter().zip(&self.wires);
        for (number, (channel, wire)) in ends.enumerate() {
            let could_go = match channel.sender {
                Some((switch, output)) => self.switches[switch as usize].could_go(output),
                None => !wire.line.is_empty() && now >= wire.busy_until && !wire.tail,
            };
            if could_go && self.next_has_slot(number as u32) {
                return Err(broken(
                    &channel.name,
                    "a packet waits that could go".to_owned(),
                ));
            }
        }
        for (flow, source) in self.sources.iter().enumerate() {
            // With a window of one, the event that ends the wait is not a timer.
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

    /// The packets between their source and their last hop at the end of the run, by flow, found
    /// where they are: in a line, or on a channel to a switch. With [`Options::check`] the slots that
    /// they take are compared, too.
    fn in_flight(&mut self, options: &Options) -> Result<Vec<u64>, SimulationError> {
        let mut by_flow = vec![0u64; self.network.flows.len()];
        let mut slots: Vec<Vec<u32>> = std::iter::zip(&self.switches, &self.network.slots)
            .map(|(switch, &slots)| {
                (0..slots)
                    .map(|slot| switch.slots_taken(slot as u8, self.free_at_head))
                    .collect()
            })
            .collect();
        let hosts = self.wires.iter().flat_map(|wire| &wire.line).copied();
        let lines = self.switches.iter().flat_map(|switch| &switch.lines);
        let waiting = lines.flatten().map(|waiting| waiting.packet);
        for packet in hosts.chain(waiting) {
            by_flow[self.packets[packet].flow as usize] += 1;
        }
        while let Some(event) = self.agenda.pop() {
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
                if let Some(port) =
                    (0..slots.len()).find(|&slot| switch.inputs[slot].taken != slots[slot])
                {
                    return Err(SimulationError::Invariant {
                        at_ps: options.duration,
                        at: name.clone(),
                        what: format!(
                            "port {port}: {} slots taken by {} packets",
                            switch.inputs[port].taken, slots[port]
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
            line_packets: std::iter::zip(&self.network.channels, &self.wires)
                .map(|(channel, wire)| match channel.sender {
                    Some((switch, output)) => {
                        self.switches[switch as usize].lines[output as usize].len() as u32
                    }
                    None => wire.line.len() as u32,
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

    /// Sends a packet, if window and rate allow it now.
    #[inline]
    fn send(&mut self, now: Time, flow: u32) -> Result<(), SimulationError> {
        let way = &self.network.flows[flow as usize];
        let first = way.hops.start;
        let channel = self.network.hops[first as usize].channel;
        let source = &mut self.sources[flow as usize];
        if !source.may_send(self.window) {
            return Ok(());
        }
        if now < source.not_before {
            self.set_timer(flow);
            return Ok(());
        }
        source.send();
        let packet = Packet {
            flow,
            hop: first,
            marked: false,
        };
        let number = self.packets.insert(packet);
        let number = number.ok_or(SimulationError::TooMany)?;
        self.wires[channel as usize].line.push_back(number);
        self.dispatch_host(now, channel);
        Ok(())
    }

    /// Wakes a source that its rate alone holds back, when it may send again.
    fn set_timer(&mut self, flow: u32) {
        let source = &mut self.sources[flow as usize];
        let wake = source.not_before;
        if source.may_send(self.window) && source.timer.is_none_or(|timer| timer > wake) {
            source.timer = Some(wake);
            self.agenda.at(wake, Event::Source(flow));
        }
    }

    /// A host's channel takes its next packet, if it can.
    fn dispatch_host(&mut self, now: Time, channel: u32) {
        let wire = &mut self.wires[channel as usize];
        if wire.line.is_empty() || wire.tail {
            return;
        }
        if now < wire.busy_until {
            wire.tail = true;
            self.agenda.at(wire.busy_until, Event::Tail(channel));
            return;
        }
        if !self.next_has_slot(channel) {
            return;
        }
        if let Some(packet) = self.wires[channel as usize].line.pop_front() {
            let Packet { flow, hop, .. } = self.packets[packet];
            let hop = self.network.hops[hop as usize];
            self.sources[flow as usize].start(now);
            self.start(now, packet, hop);
            if self.window > 1 {
                self.set_timer(flow);
            }
            if !self.wires[channel as usize].line.is_empty() {
                self.dispatch_host(now, channel);
            }
        }
    }

    /// Whether the input at the end of a channel has a slot; hosts always have.
    #[inline]
    fn next_has_slot(&self, channel: u32) -> bool {
        match self.network.channels[channel as usize].receiver {
            Some((switch, input)) => self.switches[switch as usize].has_slot(input),
            None => true,
        }
    }

    /// A switch's output takes its next packet, if it can.
    #[inline]
    fn dispatch(&mut self, now: Time, channel: u32) {
        let Some((switch, output)) = self.network.channels[channel as usize].sender else {
            return self.dispatch_host(now, channel);
        };
        if !self.next_has_slot(channel) {
            return;
        }
        let Some((next, mark)) = self.switches[switch as usize].next(output) else {
            return;
        };
        let packet = &mut self.packets[next.packet];
        if mark && !packet.marked {
            packet.marked = true;
            self.marked_packets[packet.flow as usize] += 1;
        }
        let hop = self.network.hops[packet.hop as usize];
        self.start(now, next.packet, hop);
        self.let_go(now, switch, next.input, output);
    }

    /// Outputs whose packets the departure of one from `input` by `output` no longer holds up.
    #[inline]
    fn let_go(&mut self, now: Time, switch: u32, input: u8, output: u8) {
        let at = &self.switches[switch as usize];
        if at.is_plain() {
            return;
        }
        let held_up = at.held_up(input, output);
        for output in held_up {
            let other = self.network.sending[switch as usize][output as usize];
            self.dispatch(now, other);
        }
    }

    /// The transmission of a packet starts.
    #[inline]
    fn start(&mut self, now: Time, number: u32, hop: Hop) {
        let packet = self.packets[number];
        let flow = packet.flow as usize;
        let way = &self.network.flows[flow];
        let wire = &mut self.wires[hop.channel as usize];
        wire.bytes += u64::from(way.packet_bytes);
        wire.busy_until = now + hop.transmission;
        self.packet_hops += 1;
        let ends = &self.network.channels[hop.channel as usize];
        if let Some((switch, output)) = ends.sender {
            self.agenda
                .at(now + hop.transmission, Event::Tail(hop.channel));
            if self.free_at_head {
                let input = self.switches[switch as usize].feeding(output);
                self.free_slot(now, switch, input);
            }
        }
        if let Some((switch, input)) = ends.receiver {
            self.switches[switch as usize].inputs[input as usize].taken += 1;
            self.agenda.at(now + hop.to_forward, Event::Arrive(number));
            return;
        }
        self.flow_packets[flow] += 1;
        if self.window == 1 {
            self.packets.remove(number);
            let source = &mut self.sources[flow];
            source.on_ack(&self.control, packet.marked, now + way.to_ack);
            let back = (now + way.to_ack).max(source.not_before);
            source.timer = Some(back);
            self.agenda.at(back, Event::Source(packet.flow));
        } else {
            // The ACK carries the mark: the packet's number stands for it on the way back.
            self.agenda.at(now + way.to_ack, Event::Arrive(number));
        }
    }

    /// A packet's header can be forwarded; or, past its last hop, its ACK is back.
    #[inline]
    fn arrive(&mut self, now: Time, number: u32) -> Result<(), SimulationError> {
        let packet = &mut self.packets[number];
        let here = self.network.hops[packet.hop as usize].channel;
        let Some((switch, input)) = self.network.channels[here as usize].receiver else {
            let Packet { flow, marked, .. } = *packet;
            self.packets.remove(number);
            self.sources[flow as usize].on_ack(&self.control, marked, now);
            return self.send(now, flow);
        };
        packet.hop += 1;
        let hop = self.network.hops[packet.hop as usize];
        let Some((_, output)) = self.network.channels[hop.channel as usize].sender else {
            return Ok(());
        };
        let can_start = self.next_has_slot(hop.channel);
        if self.switches[switch as usize].arrive(number, input, output, can_start) {
            self.start(now, number, hop);
        } else if self.trigger_first {
            // What had its chance already cannot go now either.
            self.dispatch(now, hop.channel);
        }
        Ok(())
    }

    /// A channel is idle again.
    #[inline]
    fn tail(&mut self, now: Time, channel: u32) {
        let Some((switch, output)) = self.network.channels[channel as usize].sender else {
            self.wires[channel as usize].tail = false;
            return self.dispatch_host(now, channel);
        };
        let input = self.switches[switch as usize].leave(output);
        self.dispatch(now, channel);
        self.let_go(now, switch, input, output);
        if !self.free_at_head {
            self.free_slot(now, switch, input);
        }
    }

    /// A slot is free: its credit lets the channel upstream go on.
    #[inline]
    fn free_slot(&mut self, now: Time, switch: u32, input: u8) {
        self.switches[switch as usize].inputs[input as usize].taken -= 1;
        let upstream = self.network.receiving[switch as usize][input as usize];
        self.dispatch(now, upstream);
    }
}
