//! Time series of a run, with a bounded number of points.
//!
//! The state is constant between two events, so a sample is taken when the first event after it is due: sampling needs
//! no events, and does not depend on how the run is split.

use std::mem;
use std::ops::Range;

use ecn_core::tcd::{Mark, State};
use ecn_report::table::{Cell, Columns, Table};

use super::Run;
use crate::engine::{NS, Time};
use crate::fabric::cc::{QueueView, Scheme};
use crate::fabric::packet::Packet;
use crate::fabric::switch::Ports;

/// Maximum number of points; if exceeded, pairs of points are merged, and the step is doubled.
pub const POINTS: usize = 1_000;

/// Maximum numbers of flows and of ports with separate series.
pub const SINGLE: usize = 32;

/// Minimum number of packets per rate: over fewer, rates fluctuate.
pub const WINDOW_PACKETS: u64 = 50;

/// One step of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Payload that arrived in order during the step, bytes.
    pub delivered: u64,
    /// Packets marked during the step.
    pub marked: u64,
    /// Bytes waiting in switches at the end of the step.
    pub queued: u64,
    /// The longest queue at the end of the step, bytes; the maximum over merged steps.
    pub longest: u32,
    /// Ports that must not send data of some or all classes, at the end of the step.
    pub off: u32,
    /// Payload of each of the first flows, in order of starts.
    pub flows: Vec<u64>,
    /// Bytes waiting at each of the [`Series::ports`], at the end of the step.
    pub ports: Vec<u32>,
}

/// The steps of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// Length of a step.
    pub step: Time,
    /// The steps, from time 0 on.
    pub points: Vec<Point>,
    /// End of the last step, if the run ended during it.
    pub end: Option<Time>,
    /// Observed ports: those of all switches, if there are few.
    pub ports: Vec<u32>,
    /// Changes since the last sample.
    since: Point,
}

/// Columns of a series as a table.
pub const COLUMNS: &Columns = &[
    (
        "time_ms",
        "end of the step, ms; the last step ends with the run",
    ),
    (
        "of",
        "`network`: the whole network; `flow`: one of the first 32; `port`: a port of a switch, if there are few",
    ),
    (
        "name",
        "number of the flow, or name of the port; null for the network",
    ),
    (
        "delivered_bytes",
        "payload that arrived in order during the step; null for a port",
    ),
    (
        "marked_packets",
        "packets marked during the step; null except for the network",
    ),
    (
        "longest_queue_bytes",
        "longest queue during the step; null except for the network",
    ),
    (
        "off_ports",
        "ports that may not send data of at least one class, at its end; null except for the network",
    ),
    (
        "queued_bytes",
        "data queued in switches, or at the port, at its end; null for a flow",
    ),
];

impl Series {
    /// The table: a row per step and quantity. `port_name`: names of ports.
    pub fn table(&self, port_name: impl Fn(u32) -> String) -> Table {
        let flows = self.flows();
        let rows = (1..).zip(&self.points).flat_map(|(number, point)| {
            let time = (self.time(number) / NS) as f64 / 1e6;
            let row = |of: &str, name: Cell, delivered: Option<u64>, queued: Option<u64>| {
                let whole = |value: u64| Cell::from((of == "network").then_some(value));
                vec![
                    time.into(),
                    of.into(),
                    name,
                    delivered.into(),
                    whole(point.marked),
                    whole(point.longest.into()),
                    whole(point.off.into()),
                    queued.into(),
                ]
            };
            let (delivered, queued) = (Some(point.delivered), Some(point.queued));
            let mut rows = vec![row("network", Cell::Null, delivered, queued)];
            for (id, bytes) in (1_u32..).zip(&point.flows[..flows]) {
                let name = Cell::Text(id.to_string());
                rows.push(row("flow", name, Some(*bytes), None));
            }
            for (port, bytes) in self.ports.iter().zip(&point.ports) {
                let name = Cell::Text(port_name(*port));
                rows.push(row("port", name, None, Some((*bytes).into())));
            }
            rows
        });
        Table::new(COLUMNS, rows)
    }
}

/// Bytes over a time, ps, as a rate in Gb/s.
pub fn gbit_per_s(bytes: u64, time: Time) -> f64 {
    // Bytes per picosecond, times 8e3.
    bytes as f64 * 8e3 / time as f64
}

/// A change at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is paused.
    Off,
    /// It is resumed.
    On,
    /// Its state changes (TCD, IB CC).
    State(State),
    /// It holds this number of bytes that arrived at it (PFC); only for [`Series::ports`], if there is a series.
    Holds(u32),
    /// A packet gets this mark or, at a host, arrives with it; with its flow and its number.
    Mark(Mark, u32, u32),
}

/// A change with its time and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// Time of the change.
    pub time: Time,
    /// The port.
    pub port: u32,
    /// Class of the port's data.
    pub class: u8,
    /// The change.
    pub change: Change,
}

/// The changes in order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Each change.
    pub changes: Vec<Traced>,
    /// By port and class.
    states: Vec<State>,
    /// By port and class: bytes held by the observed ports at the last observation; and its time.
    held: Vec<u32>,
    seen: Time,
}

impl Trace {
    /// A trace for `queues` classes of ports.
    pub fn new(queues: usize) -> Self {
        Self {
            changes: Vec::new(),
            states: vec![State::default(); queues],
            held: vec![0; queues],
            seen: 0,
        }
    }

    fn add(&mut self, time: Time, port: u32, class: u8, change: Change) {
        self.changes.push(Traced {
            time,
            port,
            class,
            change,
        });
    }

    /// Records what these ports hold, before the events at `now` and after all earlier ones.
    fn look(&mut self, now: Time, watched: &[u32], ports: &Ports) {
        let time = mem::replace(&mut self.seen, now);
        for &port in watched {
            for (class, own) in ports.classes(port) {
                let holds = own.shared + own.headroom;
                let held = &mut self.held[ports.queue_index(port, class) as usize];
                if mem::replace(held, holds) != holds {
                    self.add(time, port, class, Change::Holds(holds));
                }
            }
        }
    }

    /// A packet is marked at a port, or arrives at a host with a mark.
    #[cold]
    pub fn on_mark(&mut self, time: Time, port: u32, packet: &Packet) {
        let change = Change::Mark(packet.mark, packet.id, packet.number);
        self.add(time, port, packet.class, change);
    }

    /// A class of a port is paused or resumed.
    pub fn on_pause(&mut self, time: Time, (port, class): (u32, u8), on: bool) {
        let change = if on { Change::On } else { Change::Off };
        self.add(time, port, class, change);
    }

    /// Records the state of a class of a port, if it has changed.
    pub fn on_state(&mut self, at: &QueueView, state: State) {
        let own = &mut self.states[at.queue as usize];
        if *own != state {
            *own = state;
            self.add(at.now, at.port, at.class, Change::State(state));
        }
    }
}

impl Point {
    /// Adds the same step of another part of the network.
    fn join(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.marked += other.marked;
        self.queued += other.queued;
        self.longest = self.longest.max(other.longest);
        self.off += other.off;
        for (own, other) in self.flows.iter_mut().zip(&other.flows) {
            *own += other;
        }
        for (own, other) in self.ports.iter_mut().zip(&other.ports) {
            *own += other;
        }
    }

    /// Merges this step with the next one.
    fn and(self, next: &Self) -> Self {
        let mut both = Self {
            queued: 0,
            off: 0,
            ports: vec![0; self.ports.len()],
            ..self
        };
        both.join(next);
        both
    }
}

impl Series {
    /// A series with this initial step.
    pub fn new(step: Time, ports: Vec<u32>) -> Self {
        let since = Point {
            flows: vec![0; SINGLE],
            ports: vec![0; ports.len()],
            ..Point::default()
        };
        Self {
            step,
            points: Vec::new(),
            end: None,
            ports,
            since,
        }
    }

    /// Number of flows with separate series.
    pub fn flows(&self) -> usize {
        let last = |point: &Point| point.flows.iter().rposition(|bytes| *bytes > 0);
        let most = self.points.iter().filter_map(last).max();
        most.map_or(0, |last| last + 1)
    }

    /// When the first `steps` steps end.
    pub fn time(&self, steps: usize) -> Time {
        let end = steps as Time * self.step;
        self.end.map_or(end, |last| last.min(end))
    }

    /// Windows of `steps` steps each, as ranges of [`points`](Self::points). A remainder of less than half a window
    /// belongs to the last one: over a short time, a few packets make a high rate.
    pub fn windows(&self, steps: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let all = self.points.len();
        let width = (steps as Time * self.step).max(1);
        let count = (self.time(all) + width / 2) / width;
        let count = (count as usize).max(usize::from(all > 0));
        (0..count).map(move |number| {
            let end = if number + 1 == count {
                all
            } else {
                (number + 1) * steps
            };
            number * steps..end
        })
    }

    /// When the next sample is due.
    #[inline]
    pub const fn due(&self) -> Time {
        (self.points.len() as Time + 1) * self.step
    }

    /// Adds a flow's arriving payload.
    #[inline]
    pub fn deliver(&mut self, id: u32, bytes: u64) {
        self.since.delivered += bytes;
        if let Some(flow) = self.since.flows.get_mut((id as usize).wrapping_sub(1)) {
            *flow += bytes;
        }
    }

    /// Counts a marked packet.
    #[inline]
    pub const fn mark(&mut self) {
        self.since.marked += 1;
    }

    fn push(&mut self) {
        let point = self.since.clone();
        self.points.push(point);
        (self.since.delivered, self.since.marked) = (0, 0);
        self.since.flows.fill(0);
        if self.points.len() == 2 * POINTS {
            self.halve();
        }
    }

    /// Merges pairs of steps.
    fn halve(&mut self) {
        let pairs = self.points.chunks_exact(2);
        self.points = pairs.map(|pair| pair[0].clone().and(&pair[1])).collect();
        self.step *= 2;
    }

    /// Ends at `time`, up to which all samples were taken: what happened since the last one is an incomplete step.
    fn finish(&mut self, time: Time) {
        let rest = mem::take(&mut self.since);
        if time > self.time(self.points.len()) {
            self.points.push(rest);
            self.end = Some(time);
        }
    }

    /// Adds the series of another part of the network over the same time: up to the end of the shorter one, if they
    /// continue.
    pub fn join(&mut self, other: &Self) {
        while self.step < other.step {
            self.halve();
        }
        if other.step < self.step {
            let mut other = other.clone();
            other.halve();
            return self.join(&other);
        }
        if self.points.len() != other.points.len() {
            self.end = None;
        }
        self.points.truncate(other.points.len());
        for (own, other) in self.points.iter_mut().zip(&other.points) {
            own.join(other);
        }
    }
}

impl<S: Scheme> Run<'_, S> {
    /// Starts a series, with this initial step.
    pub(in crate::fabric) fn watch(&mut self, step: Time) {
        let switches = self.topology.hosts..self.ports.len() as u32;
        let ports = if switches.len() <= SINGLE {
            switches.collect()
        } else {
            Vec::new()
        };
        self.series = Some(Series::new(step, ports));
        self.sample_due = step;
    }

    /// Takes the samples that are due before `time`'s events.
    #[cold]
    pub(in crate::fabric) fn sample(&mut self, time: Time) {
        let next = self.read_flows(time);
        let Some(series) = &mut self.series else {
            self.sample_due = next;
            return;
        };
        if let Some(trace) = &mut self.trace {
            // At each event.
            trace.look(time, &series.ports, &self.ports);
            self.sample_due = 0;
            if time < series.due() {
                return;
            }
        }
        self.look();
        let Some(series) = &mut self.series else {
            return;
        };
        while series.due() <= time {
            series.push();
        }
        if self.trace.is_none() {
            self.sample_due = series.due().min(next);
        }
    }

    /// Ends the series at `time`, the end of the run, up to which all samples were taken.
    pub(in crate::fabric) fn end_series(&mut self, time: Time) {
        self.look();
        if let Some(series) = &mut self.series {
            series.finish(time);
        }
    }

    /// Records what waits now as the state at the end of the next step.
    fn look(&mut self) {
        let Some(series) = &mut self.series else {
            return;
        };
        let switches = self.topology.hosts..self.ports.len() as u32;
        let (mut all, mut longest) = (0, 0);
        for queued in switches.map(|port| self.ports.queued(port)) {
            all += u64::from(queued);
            longest = longest.max(queued);
        }
        let now = &mut series.since;
        (now.queued, now.longest) = (all, longest);
        now.off = self.ports.iter().filter(|port| port.off != 0).count() as u32;
        for (queued, port) in now.ports.iter_mut().zip(&series.ports) {
            *queued = self.ports.queued(*port);
        }
    }
}
