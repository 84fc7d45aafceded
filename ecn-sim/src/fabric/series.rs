//! Time series of a run, in a bounded number of points.
//!
//! Between two events nothing changes, so a sample is taken when the first event behind it is due: it
//! costs the run no events of its own, and is the same however the run is split.

use std::mem;

use ecn_core::tcd::{Mark, State};

use super::cc::{QueueView, Scheme};
use super::packet::Packet;
use super::run::Run;
use super::switch::Ports;
use crate::engine::{NS, Time};
use crate::records::{Cell, Columns, Table};

/// Most points; when there are more, each two become one, of twice the length.
pub const POINTS: usize = 1_000;

/// Most flows and ports that have series of their own.
pub const SINGLE: usize = 32;

/// Rates over fewer packets fluctuate.
pub const WINDOW_PACKETS: u64 = 50;

/// One step of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Payload that arrived in order during it, bytes.
    pub delivered: u64,
    /// Packets marked during it.
    pub marked: u64,
    /// Bytes that wait in switches, at its end.
    pub queued: u64,
    /// The longest queue, bytes, at its end; of steps that became one, the longest of these.
    pub longest: u32,
    /// Ports that may not send data, or not of all classes, at its end.
    pub off: u32,
    /// Payload of each of the first flows, by the order of their starts.
    pub flows: Vec<u64>,
    /// Bytes that wait at each of the [`Series::ports`], at its end.
    pub ports: Vec<u32>,
}

/// The steps of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// Length of a step.
    pub step: Time,
    /// The steps, from time 0 on.
    pub points: Vec<Point>,
    /// Ports that are watched: those of all switches, if these are not many.
    pub ports: Vec<u32>,
    /// What has happened since the last sample.
    since: Point,
}

/// Columns of a series as a table.
pub const COLUMNS: &Columns = &[
    ("time_ms", "end of the step, ms"),
    (
        "of",
        "`network`, all of it; `flow`, one of the first 32; or `port`, one of a switch, where these are few",
    ),
    (
        "name",
        "number of the flow, or name of the port; null of the network",
    ),
    (
        "delivered_bytes",
        "payload that arrived in order during the step; null of a port",
    ),
    (
        "marked_packets",
        "packets marked during it; of the network only, as what follows but one",
    ),
    ("longest_queue_bytes", "the longest queue during it"),
    (
        "off_ports",
        "ports that may not send data, or not of all classes, at its end",
    ),
    (
        "queued_bytes",
        "what waits in switches, or at the port, at its end; null of a flow",
    ),
];

impl Series {
    /// The table: a row per step and what is watched. `port_name` is of ports.
    pub fn table(&self, port_name: impl Fn(u32) -> String) -> Table {
        let flows = self.flows();
        let rows = (1..).zip(&self.points).flat_map(|(number, point)| {
            let time = (number * self.step / NS) as f64 / 1e6;
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
            let mut rows = vec![row(
                "network",
                Cell::Null,
                Some(point.delivered),
                Some(point.queued),
            )];
            rows.extend(
                (1..)
                    .zip(&point.flows[..flows])
                    .map(|(id, bytes): (u32, _)| {
                        row("flow", Cell::Text(id.to_string()), Some(*bytes), None)
                    }),
            );
            rows.extend(self.ports.iter().zip(&point.ports).map(|(port, bytes)| {
                row(
                    "port",
                    Cell::Text(port_name(*port)),
                    None,
                    Some((*bytes).into()),
                )
            }));
            rows
        });
        Table::new(COLUMNS, rows)
    }
}

/// What happens to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is paused.
    Off,
    /// It is resumed.
    On,
    /// Its state changes (TCD, IB CC).
    State(State),
    /// It holds so many bytes that came by it (PFC); of the [`Series::ports`], if there is a series.
    Holds(u32),
    /// A packet gets this mark; at a host: arrives with it. Its flow, and its number.
    Mark(Mark, u32, u32),
}

/// An event of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traced {
    /// When.
    pub time: Time,
    /// The port.
    pub port: u32,
    /// Which class of its data.
    pub class: u8,
    /// What.
    pub change: Change,
}

/// All of these, in the order of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Each change.
    pub changes: Vec<Traced>,
    /// By port and class.
    states: Vec<State>,
    /// What the watched ports held, by class, when they were last looked at; and when that was.
    held: Vec<u32>,
    seen: Time,
}

impl Trace {
    /// Of so many classes of ports.
    pub fn new(queues: usize) -> Self {
        Self {
            changes: Vec::new(),
            states: vec![State::default(); queues],
            held: vec![0; queues],
            seen: 0,
        }
    }

    /// These ports, before what happens now and after all else.
    fn look(&mut self, now: Time, watched: &[u32], ports: &Ports) {
        let time = mem::replace(&mut self.seen, now);
        for &port in watched {
            for (class, own) in ports.classes(port) {
                let holds = own.shared + own.headroom;
                let held = &mut self.held[ports.queue_index(port, class) as usize];
                if mem::replace(held, holds) != holds {
                    let change = Change::Holds(holds);
                    self.changes.push(Traced {
                        time,
                        port,
                        class,
                        change,
                    });
                }
            }
        }
    }

    /// A packet gets its mark at a port, or arrives at a host with it.
    #[cold]
    pub fn on_mark(&mut self, time: Time, port: u32, packet: &Packet) {
        self.changes.push(Traced {
            time,
            port,
            class: packet.class,
            change: Change::Mark(packet.mark, packet.id, packet.number),
        });
    }

    /// A class of a port is paused or resumed.
    pub fn on_pause(&mut self, time: Time, (port, class): (u32, u8), on: bool) {
        let change = if on { Change::On } else { Change::Off };
        self.changes.push(Traced {
            time,
            port,
            class,
            change,
        });
    }

    /// The state of a class of a port.
    pub fn on_state(&mut self, at: &QueueView, state: State) {
        let own = &mut self.states[at.queue as usize];
        if *own != state {
            *own = state;
            self.changes.push(Traced {
                time: at.now,
                port: at.port,
                class: at.class,
                change: Change::State(state),
            });
        }
    }
}

impl Point {
    /// Another part of the network, at the same time.
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

    /// This step and the one after it.
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
    /// From this first length of a step on.
    pub fn new(step: Time, ports: Vec<u32>) -> Self {
        let since = Point {
            flows: vec![0; SINGLE],
            ports: vec![0; ports.len()],
            ..Point::default()
        };
        Self {
            step,
            points: Vec::new(),
            ports,
            since,
        }
    }

    /// How many flows have series of their own.
    pub fn flows(&self) -> usize {
        let last = |point: &Point| point.flows.iter().rposition(|bytes| *bytes > 0);
        let most = self.points.iter().filter_map(last).max();
        most.map_or(0, |last| last + 1)
    }

    /// When the next sample is due.
    #[inline]
    pub const fn due(&self) -> Time {
        (self.points.len() as Time + 1) * self.step
    }

    /// Payload of a flow arrives.
    #[inline]
    pub fn deliver(&mut self, id: u32, bytes: u64) {
        self.since.delivered += bytes;
        if let Some(flow) = self.since.flows.get_mut((id as usize).wrapping_sub(1)) {
            *flow += bytes;
        }
    }

    /// A packet is marked.
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

    /// Merges each two steps.
    fn halve(&mut self) {
        let pairs = self.points.chunks_exact(2);
        self.points = pairs.map(|pair| pair[0].clone().and(&pair[1])).collect();
        self.step *= 2;
    }

    /// Without what happened after the last whole step.
    pub fn ended(self) -> Self {
        Self {
            since: Point::default(),
            ..self
        }
    }

    /// Joins that of another part of the network, of the same time: as far as both have come, if they go on.
    pub fn join(&mut self, other: &Self) {
        while self.step < other.step {
            self.halve();
        }
        if other.step < self.step {
            let mut other = other.clone();
            other.halve();
            return self.join(&other);
        }
        self.points.truncate(other.points.len());
        for (own, other) in self.points.iter_mut().zip(&other.points) {
            own.join(other);
        }
    }
}

impl<S: Scheme> Run<'_, S> {
    /// Keeps what happens from now on, in steps of this length at first.
    pub(super) fn watch(&mut self, step: Time) {
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
    pub(super) fn sample(&mut self, time: Time) {
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
        while series.due() <= time {
            series.push();
        }
        if self.trace.is_none() {
            self.sample_due = series.due().min(next);
        }
    }
}
