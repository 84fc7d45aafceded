//! Detects when control does not work, from readings over several seconds, and advises a remedy.
//!
//! | kind | holds when |
//! |---|---|
//! | `flows-at-floor` | a port's queue is full for 5 s while flows are at their lowest rate |
//! | `no-echo` | a receiver echoed none of a flow's packets, for 1,000 of them and 5 s |
//! | `flow-table-full`, `receiver-table-full`, `classes-full` | its counter rises for several seconds |
//! | `link-rate` | flows are marked for 5 s at ports slower than a quarter of their endpoint's `link_rate` |
//! | `not-enforced` | an endpoint's root qdisc is another one, or the kernel lacks what enforcing rates takes |
//! | `short-queue` | a port has dropped for 5 s what its queue does not hold: that is too short, or full before packets are marked |
//! | `unanswered-marks` | a port marks for 10 s, its queue stays long or drops, and arrivals do not decrease |
//!
//! Nothing here reads a map or a clock; `agent::watch` does.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use ecn_core::{
    abi,
    fixed::{FRAC, ONE},
    flow::{Flow, Key, NEGOTIATED},
    marking,
    packet::{self, protocol},
    response::{IPD_LIMIT, Round},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::Rate;

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

const SECOND_NS: u64 = 1_000_000_000;
/// Maximum time between comparable readings: beyond it, the agent was stalled.
const GAP_NS: u64 = 3 * SECOND_NS;
/// How long a full queue, flows at their lowest rate, or marks have to last.
const HOLDS_NS: u64 = 5 * SECOND_NS;
/// How long marks must go unanswered.
const UNANSWERED_NS: u64 = 10 * SECOND_NS;
/// Readings kept per port: [`UNANSWERED_NS`] and two more.
const KEPT: usize = 12;
/// Packets per second below which a port is not evaluated.
const LEAST_PACKETS_PER_S: u64 = 8;
/// Packets without an echo after which a receiver counts as not echoing.
const UNHEARD_PACKETS: u64 = 1000;
/// Receivers of one endpoint that warnings name.
const RECEIVERS: usize = 8;
/// Flows, or inputs, named in a message.
const NAMED: usize = 3;
/// Factor by which `link_rate` may exceed the rate of a port.
const LINK_TIMES: u64 = 4;
/// How many times the length at which marks begin a queue should hold.
const QUEUE_TIMES: u32 = 4;
/// Readings within [`HOLDS_NS`] in which a counter has to rise.
const RISES: usize = 3;
/// Maximum number of current warnings, so that the state file stays short.
const MOST: usize = 64;
/// A warning ends when its condition has not held for this time.
const OVER_NS: u64 = 5 * SECOND_NS;
/// Each warning is logged at most once in this time.
const AGAIN_NS: u64 = 60 * SECOND_NS;
/// Warnings of a kind that are logged in [`AGAIN_NS`]: a host may send to any number of receivers that do not echo.
const LOGGED: usize = 8;

/// What is wrong.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Flows are at their lowest rate, and the queue is full all the same.
    FlowsAtFloor,
    /// A receiver does not echo.
    NoEcho,
    /// More flows are sent than the flow table holds.
    FlowTableFull,
    /// More flows are received than their table holds.
    ReceiverTableFull,
    /// More flows are marked than can have a class.
    ClassesFull,
    /// `link_rate` is far above the rate of the ports that mark.
    LinkRate,
    /// Not all flows of an endpoint are limited, though they should be.
    NotEnforced,
    /// A port's queue is full before packets are marked.
    ShortQueue,
    /// Marks do not lower what arrives.
    UnansweredMarks,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::FlowsAtFloor,
        Self::NoEcho,
        Self::FlowTableFull,
        Self::ReceiverTableFull,
        Self::ClassesFull,
        Self::LinkRate,
        Self::NotEnforced,
        Self::ShortQueue,
        Self::UnansweredMarks,
    ];

    /// The word in JSON and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FlowsAtFloor => "flows-at-floor",
            Self::NoEcho => "no-echo",
            Self::FlowTableFull => "flow-table-full",
            Self::ReceiverTableFull => "receiver-table-full",
            Self::ClassesFull => "classes-full",
            Self::LinkRate => "link-rate",
            Self::NotEnforced => "not-enforced",
            Self::ShortQueue => "short-queue",
            Self::UnansweredMarks => "unanswered-marks",
        }
    }
}

/// What a warning is about: a port, an endpoint, a receiver of an endpoint's flows, or the agent
/// itself (all empty).
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
pub struct Subject {
    /// The bridge of the port.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub bridge: String,
    /// The port.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub port: String,
    /// The endpoint's device.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Namespace of bridge or device; empty: the agent's own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub netns: String,
    /// The receiver's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receiver: Option<IpAddr>,
}

impl Subject {
    /// A port.
    pub fn port(bridge: &str, netns: &str, port: &str) -> Self {
        Self {
            bridge: bridge.to_owned(),
            port: port.to_owned(),
            netns: netns.to_owned(),
            ..Self::default()
        }
    }

    /// An endpoint.
    pub fn endpoint(device: &str, netns: &str) -> Self {
        Self {
            device: device.to_owned(),
            netns: netns.to_owned(),
            ..Self::default()
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(receiver) = self.receiver {
            write!(f, "receiver {receiver} of ")?;
        }
        if !self.port.is_empty() {
            write!(f, "port {} of {}", self.port, self.bridge)?;
        } else if !self.device.is_empty() {
            write!(f, "endpoint {}", self.device)?;
        } else {
            f.write_str("agent")?;
        }
        if self.netns.is_empty() {
            Ok(())
        } else {
            write!(f, " in {}", self.netns)
        }
    }
}

/// Something does not work.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(inline)]
pub struct Warning {
    /// What.
    pub kind: Kind,
    /// Where.
    #[serde(flatten)]
    pub subject: Subject,
    /// What was seen when it began, and what to do.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kind,
            subject,
            message,
        } = self;
        write!(f, "{subject}: {message} ({})", kind.name())
    }
}

/// What is known of a port's queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct PortQueue {
    /// The rate at which it is emptied, bytes per second.
    pub bytes_per_s: Option<u64>,
    /// How many packets of the full size it holds.
    pub full_packets: Option<u32>,
}

/// Counters of a port at one time.
#[derive(Clone, Debug, Default)]
pub struct PortReading {
    /// Bridge number and slot.
    pub id: (u32, u32),
    /// The port.
    pub subject: Subject,
    /// Its counters.
    pub counters: marking::Port,
    /// Marks come from the output's own threshold, so that its triggers count how often it was exceeded.
    pub by_output: bool,
    /// Packets above which marks begin: the output's threshold, else an input's buffer; 0 if none are marked.
    pub level_packets: u32,
    /// Capacity of its queue, packets, if known.
    pub most_packets: Option<u32>,
    /// Packets that cannot be marked are dropped before the queue.
    pub drops_unmarkable: bool,
    /// Names of the inputs, ordered by packets waiting here, most first.
    pub inputs: Vec<String>,
    /// Its queue.
    pub queue: PortQueue,
}

impl PortReading {
    /// Whether its queue is known to hold less than it should, so that bursts of controlled flows overfill it.
    fn queue_is_short(&self) -> bool {
        let least = QUEUE_TIMES * self.level_packets;
        self.queue.full_packets.is_some_and(|most| most < least)
    }
}

/// An endpoint and what was observed of its flows.
#[derive(Clone, Debug, Default)]
pub struct EndpointReading {
    /// Its number.
    pub number: u16,
    /// The endpoint.
    pub subject: Subject,
    /// Rmax, bytes per second.
    pub link_bytes_per_s: u64,
    /// Lowest rate of a flow, bytes per second.
    pub floor_bytes_per_s: u64,
    /// Responds in fractional steps.
    pub fractional: bool,
    /// Why its rates are not enforced, if they should be, and what to do.
    pub not_enforced: Option<String>,
    /// Its flows.
    pub flows: FlowsSeen,
}

/// Running counts of how often there was no room.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shortages {
    /// [`abi::Count::FlowsFull`].
    pub flows: u64,
    /// [`abi::Count::ReceiversFull`].
    pub receivers: u64,
    /// [`abi::Count::ClassesFull`], and classes that the kernel refused.
    pub classes: u64,
    /// `[flow] max`.
    pub most_flows: u64,
}

/// All values that the rules evaluate, at one time.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// When, monotonic clock, ns.
    pub now_ns: u64,
    /// Ports with a queue.
    pub ports: Vec<PortReading>,
    /// Endpoints.
    pub endpoints: Vec<EndpointReading>,
    /// Tables and classes.
    pub shortages: Shortages,
    /// The endpoints with most entries in the tables of sent and of received flows.
    pub fullest: [Subject; 2],
    /// IP protocol of echoes.
    pub echo_protocol: u8,
}

/// What a pass over the flow table found of an endpoint's flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowsSeen {
    /// Active flows below full rate.
    pub limited: u64,
    /// Of these, flows at the lowest rate.
    pub at_floor: u64,
    /// Total packets per second of the flows at the lowest rate.
    pub floor_packets_per_s: u64,
    /// Flows without echoes, by the address of their receiver.
    pub silent: BTreeMap<IpAddr, Silent>,
}

/// Flows to a receiver that does not echo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silent {
    /// Flows.
    pub flows: u64,
    /// Their packets since the last echo.
    pub packets: u64,
    /// The receiver has echoed before.
    pub echoed_before: bool,
}

/// The lowest rate of a policy, as an inter-packet delay.
pub const fn floor_ipd(policy: &abi::Endpoint) -> u64 {
    if is_fractional(policy) {
        IPD_LIMIT << FRAC
    } else {
        policy.response.ipd_max
    }
}

/// Whether a policy has [`Round::Fractional`].
pub const fn is_fractional(policy: &abi::Endpoint) -> bool {
    policy.response.round == Round::Fractional as u32
}

impl FlowsSeen {
    /// Adds an entry of the flow table.
    pub fn add(&mut self, key: &Key, flow: &Flow, policy: &abi::Endpoint, now_ns: u64) {
        if policy.flags & abi::CONTROL_FLOWS == 0 || flow.flags & NEGOTIATED != 0 {
            return;
        }
        let short = *key == Key::short(key.endpoint);
        let last = if short {
            flow.last_echo_ns
        } else {
            flow.last_sent_ns
        };
        let ipd = flow.response.ipd.max(ONE);
        // A flow at a low rate seldom sends, and seldom gets an echo.
        let gap_ns = ((policy.response.packet_ns as u128 * ipd as u128) >> FRAC) as u64;
        let patience = gap_ns.saturating_mul(4).clamp(SECOND_NS, 60 * SECOND_NS);
        let since = |then: u64| now_ns.saturating_sub(then);
        if since(last) > patience {
            return;
        }
        if ipd > ONE && flow.last_echo_ns != 0 && since(flow.last_echo_ns) <= patience {
            self.limited += 1;
            let floor = floor_ipd(policy);
            if ipd >= floor - floor / 16 {
                self.at_floor += 1;
                let bytes = flow
                    .sent_bytes
                    .checked_div(flow.sent_packets)
                    .unwrap_or(0)
                    .max(64);
                self.floor_packets_per_s += flow.rate_bytes_per_s / bytes;
            }
        }
        if !short && let Some(packets) = unacknowledged(key, flow, policy, now_ns) {
            let receiver = Ipv6Addr::from(key.dst).to_canonical();
            if self.silent.len() < RECEIVERS || self.silent.contains_key(&receiver) {
                let silent = self.silent.entry(receiver).or_default();
                silent.flows += 1;
                silent.packets += packets;
                silent.echoed_before |= flow.echo.synced != 0;
            }
        }
    }
}

/// Packets of a flow without the echoes that it should get. TCP's ACKs look the same whether its receiver counts marks
/// or not.
fn unacknowledged(key: &Key, flow: &Flow, policy: &abi::Endpoint, now_ns: u64) -> Option<u64> {
    // Where sockets are paced, other flows are not limited, and their packets cannot be marked.
    let echoed = policy.flags & (abi::ECHO | abi::PACE) == abi::ECHO
        && key.protocol != protocol::TCP
        && !packet::is_tunnel(key.protocol, key.dst_port)
        && flow.ended == 0;
    let packets = if flow.echo.synced == 0 {
        flow.sent_packets
    } else {
        let acknowledged = flow.echo.packets.wrapping_add(flow.echo.offset);
        let unacknowledged = (flow.sent_packets as u32).wrapping_sub(acknowledged) as i32;
        u64::try_from(unacknowledged).unwrap_or(0)
    };
    let since = now_ns.saturating_sub(flow.created_ns.max(flow.last_echo_ns));
    let patience = HOLDS_NS.max(policy.echo.every_ns.saturating_mul(4));
    (echoed && flow.created_ns != 0 && packets >= UNHEARD_PACKETS && since >= patience)
        .then_some(packets)
}

/// What happened at a port between two readings.
#[derive(Clone, Copy, Debug, Default)]
struct Interval {
    ns: u64,
    arrived: u64,
    departed: u64,
    marked: u64,
    unmarkable: u64,
    dropped: u64,
    /// Dropped before the queue because they could not be marked.
    refused: u64,
    /// Packets waited above the level nearly all the time.
    above: bool,
    /// Packets waiting at the start or the end, whichever is less.
    waiting: u64,
    level: u64,
    most: u64,
    /// The queue is known to hold less than it should.
    short: bool,
}

impl Interval {
    fn between(before: &marking::Port, reading: &PortReading, ns: u64) -> Option<Self> {
        let now = &reading.counters;
        let rise = |of: fn(&marking::Port) -> u64| of(now).checked_sub(of(before));
        let mut interval = Self {
            ns,
            arrived: rise(|p| p.arrived)?,
            departed: rise(|p| p.departed)?,
            marked: rise(|p| p.marked)?,
            unmarkable: rise(|p| p.unmarkable)?,
            dropped: rise(|p| p.dropped)?,
            refused: rise(|p| p.dropped_unmarkable)?,
            above: false,
            waiting: before.cnt1.min(now.cnt1).into(),
            level: reading.level_packets.into(),
            most: reading.most_packets.map_or(u64::MAX, u64::from),
            short: reading.queue_is_short(),
        };
        // A super-packet triggers once and arrives in segments. Traffic below its share is not marked.
        let (part, all) = if reading.by_output && now.largest <= 1 {
            (rise(|p| p.output_triggers)?, interval.arrived)
        } else {
            (interval.asked(), interval.arrived.min(interval.departed))
        };
        interval.above = part > 0 && part * 8 >= all * 7;
        Some(interval)
    }

    /// Packets that should have been marked.
    const fn asked(&self) -> u64 {
        self.marked + self.unmarkable
    }

    const fn arrivals(&self) -> u64 {
        self.arrived + self.refused
    }

    const fn is_busy(&self) -> bool {
        self.asked() > 0 && self.departed.saturating_mul(SECOND_NS) >= LEAST_PACKETS_PER_S * self.ns
    }

    /// The queue is always `times` as long as the level at which marks begin, or nearly full.
    const fn is_long(&self, times: u64) -> bool {
        let nearly = self.most / 8 * 7;
        self.above && (self.waiting >= times * self.level || self.waiting >= nearly)
    }

    /// The queue is near its limit, or drops packets.
    const fn is_full(&self) -> bool {
        self.is_busy()
            && (self.is_long(2) || self.dropped * 64 >= self.arrivals() && self.dropped > 0)
    }

    /// The queue drops packets, and is full before marks can prevent that. Bursts that overfill a longer queue are marked
    /// before they are dropped, so where the length is not known, most drops must be without marks.
    const fn is_too_short(&self) -> bool {
        let before_marks =
            self.asked() < 2 * self.dropped && self.waiting < self.level && self.most == u64::MAX;
        self.dropped * 64 >= self.arrivals() && self.dropped > 0 && (self.short || before_marks)
    }

    /// Almost no packet that should be marked can be.
    const fn is_unmarkable(&self) -> bool {
        self.marked * 16 < self.asked()
    }

    /// Drops that marks should have prevented.
    const fn lost(&self) -> u64 {
        if self.is_unmarkable() {
            self.dropped + self.refused
        } else {
            // Otherwise drops before the queue are unmarkable traffic beyond its share.
            self.dropped
        }
    }

    /// The queue behaves as if there were no marks.
    const fn is_unanswered(&self) -> bool {
        self.is_busy() && (self.is_long(4) || self.lost() * 8 >= self.arrivals() && self.lost() > 0)
    }
}

/// A port's last seconds.
#[derive(Clone, Debug)]
struct History {
    read_ns: u64,
    counters: marking::Port,
    intervals: VecDeque<Interval>,
}

impl History {
    fn begin(reading: &PortReading, now_ns: u64) -> Self {
        Self {
            read_ns: now_ns,
            counters: reading.counters,
            intervals: VecDeque::new(),
        }
    }

    fn read(&mut self, reading: &PortReading, now_ns: u64) {
        let ns = now_ns.saturating_sub(self.read_ns);
        if ns < SECOND_NS / 4 {
            return;
        }
        match Interval::between(&self.counters, reading, ns) {
            Some(interval) if ns <= GAP_NS => self.intervals.push_back(interval),
            // Another port has its slot, or the readings are too far apart.
            _ => self.intervals.clear(),
        }
        if self.intervals.len() > KEPT {
            self.intervals.pop_front();
        }
        (self.read_ns, self.counters) = (now_ns, reading.counters);
    }

    /// The last intervals, of this total time, if that much is known.
    fn last(&self, ns: u64) -> Option<Vec<&Interval>> {
        let mut known = 0;
        let mut last = Vec::new();
        for interval in self.intervals.iter().rev() {
            last.push(interval);
            known += interval.ns;
            // Readings are a second apart, and occasionally late.
            if known + SECOND_NS / 4 >= ns {
                return Some(last);
            }
        }
        None
    }

    fn holds(&self, ns: u64, condition: impl Fn(&Interval) -> bool) -> bool {
        self.last(ns)
            .is_some_and(|last| last.into_iter().all(condition))
    }

    /// Sums of the last intervals; `None` if marks are answered, or not unanswered for long enough.
    fn unanswered(&self) -> Option<Interval> {
        let last = self.last(UNANSWERED_NS)?;
        if !last.iter().all(|interval| interval.is_unanswered()) {
            return None;
        }
        let (late, early) = last.split_at(last.len() / 2);
        let rate = |of: &[&Interval]| {
            let arrivals: u64 = of.iter().map(|interval| interval.arrivals()).sum();
            let ns: u64 = of.iter().map(|interval| interval.ns).sum();
            arrivals as f64 / ns.max(1) as f64
        };
        if rate(late) < 0.8 * rate(early) {
            return None;
        }
        let mut all = Interval {
            waiting: u64::MAX,
            ..Interval::default()
        };
        for interval in last {
            all.ns += interval.ns;
            all.arrived += interval.arrived;
            all.departed += interval.departed;
            all.marked += interval.marked;
            all.unmarkable += interval.unmarkable;
            all.dropped += interval.dropped;
            all.refused += interval.refused;
            all.waiting = all.waiting.min(interval.waiting);
        }
        Some(all)
    }
}

/// Since when conditions at an endpoint have held.
#[derive(Clone, Copy, Debug, Default)]
struct EndpointHistory {
    /// Half of the limited flows are at the lowest rate.
    floor_since_ns: Option<u64>,
    /// Some flow is limited.
    limited_since_ns: Option<u64>,
}

impl EndpointHistory {
    fn read(&mut self, flows: &FlowsSeen, now_ns: u64) {
        let go_on = |since: &mut Option<u64>, holds: bool| {
            *since = holds.then_some(since.unwrap_or(now_ns));
        };
        let at_floor = flows.at_floor > 0 && flows.at_floor * 2 >= flows.limited;
        go_on(&mut self.floor_since_ns, at_floor);
        go_on(&mut self.limited_since_ns, flows.limited > 0);
    }
}

fn lasts(since: Option<u64>, ns: u64, now_ns: u64) -> bool {
    since.is_some_and(|since| now_ns.saturating_sub(since) + SECOND_NS / 4 >= ns)
}

/// History of one of the [`Shortages`].
#[derive(Clone, Debug, Default)]
struct Shortage {
    count: Option<u64>,
    /// When it rose, and by how much.
    rises: VecDeque<(u64, u64)>,
}

impl Shortage {
    /// How much the count has risen within [`HOLDS_NS`], if it has risen often enough.
    fn read(&mut self, count: u64, now_ns: u64) -> Option<u64> {
        let before = self.count.replace(count).unwrap_or(count);
        let rise = count.saturating_sub(before);
        if rise > 0 {
            self.rises.push_back((now_ns, rise));
        }
        let old = |(then, _): &(u64, u64)| now_ns.saturating_sub(*then) >= HOLDS_NS;
        while self.rises.front().is_some_and(old) {
            self.rises.pop_front();
        }
        (self.rises.len() >= RISES).then(|| self.rises.iter().map(|(_, rise)| rise).sum())
    }
}

/// State of the last seconds, from which warnings follow.
#[derive(Debug, Default)]
pub struct Health {
    ports: BTreeMap<(u32, u32), History>,
    endpoints: BTreeMap<u16, EndpointHistory>,
    flows: Shortage,
    receivers: Shortage,
    classes: Shortage,
}

impl Health {
    /// Takes a reading, about every second, and returns the warnings that hold.
    pub fn read(&mut self, reading: &Reading) -> Vec<Warning> {
        let now_ns = reading.now_ns;
        let known: BTreeSet<_> = reading.ports.iter().map(|port| port.id).collect();
        self.ports.retain(|id, _| known.contains(id));
        for port in &reading.ports {
            self.ports
                .entry(port.id)
                .or_insert_with(|| History::begin(port, now_ns))
                .read(port, now_ns);
        }
        let known: BTreeSet<_> = reading.endpoints.iter().map(|e| e.number).collect();
        self.endpoints.retain(|number, _| known.contains(number));
        for endpoint in &reading.endpoints {
            let history = self.endpoints.entry(endpoint.number).or_default();
            history.read(&endpoint.flows, now_ns);
        }
        let mut found = Vec::new();
        self.shortages(reading, &mut found);
        self.at_ports(reading, &mut found);
        self.link_rates(reading, &mut found);
        for endpoint in &reading.endpoints {
            if let Some(why) = &endpoint.not_enforced {
                found.push(Warning {
                    kind: Kind::NotEnforced,
                    subject: endpoint.subject.clone(),
                    message: why.clone(),
                });
            }
            no_echo(endpoint, reading.echo_protocol, &mut found);
        }
        found.truncate(MOST);
        found
    }

    fn shortages(&mut self, reading: &Reading, found: &mut Vec<Warning>) {
        let Shortages {
            flows,
            receivers,
            classes,
            most_flows,
        } = reading.shortages;
        let now_ns = reading.now_ns;
        let mut add = |kind, subject: &Subject, message| {
            found.push(Warning {
                kind,
                subject: subject.clone(),
                message,
            });
        };
        let [sends, receives] = &reading.fullest;
        if let Some(packets) = self.flows.read(flows, now_ns) {
            add(
                Kind::FlowTableFull,
                sends,
                format!(
                    "its flows fill the table, and an endpoint may have as many entries as are free: {packets} packets in 5 s \
                     were of flows without one. They are not marked, and limited with the short flows only. Raise `max` in \
                     [flow] (now {most_flows}), or lower `idle`."
                ),
            );
        }
        if let Some(packets) = self.receivers.read(receivers, now_ns) {
            add(
                Kind::ReceiverTableFull,
                receives,
                format!(
                    "the flows that it receives fill the table, and an endpoint may have as many entries as are free: \
                     {packets} packets in 5 s were of flows without one. They are not echoed. If nothing there receives so \
                     many flows, their sources are forged; otherwise raise `max` in [flow] (now {most_flows}), or lower \
                     `idle`."
                ),
            );
        }
        if let Some(times) = self.classes.read(classes, now_ns) {
            add(
                Kind::ClassesFull,
                &Subject::default(),
                format!(
                    "{times} times in 5 s a marked flow got no class: it is limited with the short flows. \
                     Spread the flows over more machines, or use enforcement = \"edt\" or \"pacing\" where \
                     the kernel refuses HTB classes."
                ),
            );
        }
    }

    fn at_ports(&self, reading: &Reading, found: &mut Vec<Warning>) {
        let now_ns = reading.now_ns;
        let at_floor = |ns: u64| {
            let endpoints = reading.endpoints.iter();
            endpoints.filter(move |endpoint| {
                let history = self.endpoints.get(&endpoint.number);
                lasts(history.and_then(|h| h.floor_since_ns), ns, now_ns)
            })
        };
        let flows: u64 = at_floor(HOLDS_NS).map(|e| e.flows.at_floor).sum();
        let packets_per_s: u64 = at_floor(HOLDS_NS)
            .map(|e| e.flows.floor_packets_per_s)
            .sum();
        let mut full = false;
        for port in &reading.ports {
            let Some(history) = self.ports.get(&port.id) else {
                continue;
            };
            if history.holds(HOLDS_NS, Interval::is_full)
                && let Some(endpoint) = at_floor(HOLDS_NS).next()
            {
                full = true;
                found.push(Warning {
                    kind: Kind::FlowsAtFloor,
                    subject: port.subject.clone(),
                    message: format!(
                        "the queue has been full for 5 s while {}. {}",
                        floor_text(flows, endpoint),
                        floor_advice(endpoint)
                    ),
                });
            }
            if history.holds(HOLDS_NS, Interval::is_too_short) {
                // Nothing can answer marks that come too late.
                found.push(short_queue(port, history));
                continue;
            }
            let Some(all) = history.unanswered() else {
                continue;
            };
            // Flows that cannot go lower count as answering.
            let departed_per_s = per_second(all.departed, all.ns);
            if packets_per_s * 2 < departed_per_s || packets_per_s == 0 {
                found.push(unanswered(port, &all, reading));
            }
        }
        if full {
            return;
        }
        // Unless a port here marks, they are marked at a bridge of another machine.
        let marks_here = |port: &PortReading| {
            let history = self.ports.get(&port.id);
            history.is_some_and(|h| h.intervals.iter().any(|i| i.asked() > 0))
        };
        if reading.ports.iter().any(marks_here) {
            return;
        }
        for endpoint in at_floor(2 * HOLDS_NS) {
            found.push(Warning {
                kind: Kind::FlowsAtFloor,
                subject: endpoint.subject.clone(),
                message: format!(
                    "for 10 s {}, and they are still marked at a bridge. {}",
                    floor_text(endpoint.flows.at_floor, endpoint),
                    floor_advice(endpoint)
                ),
            });
        }
    }

    fn link_rates(&self, reading: &Reading, found: &mut Vec<Warning>) {
        let marks = |port: &&PortReading| {
            let history = self.ports.get(&port.id);
            history.is_some_and(|h| h.holds(HOLDS_NS, |i| i.is_busy()))
        };
        // Which port marks which flows is unknown: only what holds for all of them is reported.
        let mut fastest: Option<(u64, &PortReading)> = None;
        for port in reading.ports.iter().filter(marks) {
            let Some(rate) = port.queue.bytes_per_s else {
                return;
            };
            if fastest.is_none_or(|(most, _)| rate > most) {
                fastest = Some((rate, port));
            }
        }
        let Some((rate, port)) = fastest.filter(|(rate, _)| *rate > 0) else {
            return;
        };
        for endpoint in &reading.endpoints {
            let history = self.endpoints.get(&endpoint.number);
            let limited = history.and_then(|h| h.limited_since_ns);
            let link = endpoint.link_bytes_per_s;
            if !lasts(limited, HOLDS_NS, reading.now_ns) || link <= LINK_TIMES * rate {
                continue;
            }
            let (link, rate) = (rate_text(link), rate_text(rate));
            let advice = if endpoint.fractional {
                "With round = \"fractional\" that does no harm but to flows that begin: they send at it until they are marked."
            } else {
                "Set `link_rate` to what the slowest port on the way sends, or round = \"fractional\"."
            };
            found.push(Warning {
                kind: Kind::LinkRate,
                subject: endpoint.subject.clone(),
                message: format!(
                    "`link_rate` is {link}, more than 4 times the rate of {}, where its flows are marked ({rate}). {advice}",
                    port.subject
                ),
            });
        }
    }
}

fn per_second(n: u64, ns: u64) -> u64 {
    (u128::from(n) * u128::from(SECOND_NS) / u128::from(ns.max(1))) as u64
}

fn rate_text(bytes_per_s: u64) -> String {
    Rate::from_bytes_per_s(bytes_per_s).map_or_else(|| "0bit".to_owned(), Rate::short)
}

fn floor_text(flows: u64, endpoint: &EndpointReading) -> String {
    let (are, their) = match flows {
        1 => ("flow is", "its"),
        _ => ("flows are", "their"),
    };
    let floor = rate_text(endpoint.floor_bytes_per_s);
    format!("{flows} {are} at {their} lowest rate ({floor})")
}

const fn floor_advice(endpoint: &EndpointReading) -> &'static str {
    if endpoint.fractional {
        "Have fewer flows, or find the source that does not answer marks."
    } else {
        "Lower `rmin` in [response], set round = \"fractional\", or have fewer flows."
    }
}

fn no_echo(endpoint: &EndpointReading, echo_protocol: u8, found: &mut Vec<Warning>) {
    for (receiver, silent) in &endpoint.flows.silent {
        let Silent { flows, packets, .. } = silent;
        let flows = match flows {
            1 => "a flow".to_owned(),
            n => format!("{n} flows"),
        };
        let never = if silent.echoed_before {
            "has stopped echoing"
        } else {
            "has never echoed"
        };
        found.push(Warning {
            kind: Kind::NoEcho,
            subject: Subject {
                receiver: Some(*receiver),
                ..endpoint.subject.clone()
            },
            message: format!(
                "it {never}: {packets} packets of {flows} and no echo, so marks do not lower the rate. \
                 Run the agent at that host, or see that IP protocol {echo_protocol} passes the filters on the way back."
            ),
        });
    }
}

fn unanswered(port: &PortReading, all: &Interval, reading: &Reading) -> Warning {
    let percent = all.lost() * 100 / all.arrivals().max(1);
    let seen = if percent > 0 {
        format!("{percent} % is dropped")
    } else {
        format!("at least {} packets wait", all.waiting)
    };
    let inputs = if port.inputs.is_empty() {
        String::new()
    } else {
        let named: Vec<_> = port.inputs.iter().take(NAMED).cloned().collect();
        format!(" Most enters at {}.", named.join(", "))
    };
    let per_s = per_second(all.asked(), all.ns);
    let echo_protocol = reading.echo_protocol;
    let mut endpoints = reading.endpoints.iter();
    let message = if let Some(endpoint) = endpoints.find(|e| e.not_enforced.is_some()) {
        format!(
            "{per_s} packets per second are marked or should be, and for 10 s arrivals have not fallen: {seen}.{inputs} \
             {} does not limit its flows: see its warning.",
            endpoint.subject
        )
    } else if all.is_unmarkable() {
        let or = if port.drops_unmarkable {
            ""
        } else {
            ", or set shares = \"source\" and unmarkable = \"drop\", so that they get their share and no more"
        };
        format!(
            "{per_s} packets per second should be marked but are not ECN-capable, and for 10 s arrivals have not fallen: \
             {seen}.{inputs} Run the agent at the sources{or}."
        )
    } else {
        format!(
            "{per_s} packets per second are marked, and for 10 s arrivals have not fallen: {seen}.{inputs} Run the agent \
             at the sources and at the receiver, and see that echoes (IP protocol {echo_protocol}) get back."
        )
    };
    Warning {
        kind: Kind::UnansweredMarks,
        subject: port.subject.clone(),
        message,
    }
}

fn short_queue(port: &PortReading, history: &History) -> Warning {
    let last = history.intervals.back().copied().unwrap_or_default();
    let per_s = per_second(last.dropped, last.ns);
    let why = match port.queue.full_packets {
        Some(most) if port.queue_is_short() => format!("whose queue holds {most} of full size"),
        _ => "whose queue is full before packets are marked".to_owned(),
    };
    Warning {
        kind: Kind::ShortQueue,
        subject: port.subject.clone(),
        message: format!(
            "{per_s} packets per second are dropped by its queueing discipline, {why} (marks begin above {} that wait). \
             Let it hold at least {} packets, or lower `threshold` and `buffer`.",
            port.level_packets,
            QUEUE_TIMES * port.level_packets
        ),
    }
}

/// A change of the current warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It appeared.
    Appeared(Warning),
    /// It is over.
    Over(Warning),
}

/// The current warnings, each as it was when it appeared.
#[derive(Debug, Default)]
pub struct Journal {
    current: BTreeMap<(Kind, Subject), Held>,
    logged_ns: BTreeMap<(Kind, Subject), u64>,
}

#[derive(Debug)]
struct Held {
    warning: Warning,
    seen_ns: u64,
    logged: bool,
}

impl Journal {
    /// Takes the current findings. Returns whether the warnings changed, and what to log: each warning that appears, at
    /// most once a minute, and the end of those that were logged.
    pub fn take(&mut self, found: Vec<Warning>, now_ns: u64) -> (bool, Vec<Change>) {
        let mut changes = Vec::new();
        let mut changed = false;
        self.logged_ns
            .retain(|_, at| now_ns.saturating_sub(*at) < AGAIN_NS);
        for warning in found {
            let key = (warning.kind, warning.subject.clone());
            if let Some(held) = self.current.get_mut(&key) {
                held.seen_ns = now_ns;
                continue;
            }
            changed = true;
            let of_kind = self.logged_ns.keys().filter(|(kind, _)| *kind == key.0);
            let logged = of_kind.count() < LOGGED && !self.logged_ns.contains_key(&key);
            if logged {
                self.logged_ns.insert(key.clone(), now_ns);
                changes.push(Change::Appeared(warning.clone()));
            }
            let held = Held {
                warning,
                seen_ns: now_ns,
                logged,
            };
            self.current.insert(key, held);
        }
        self.current.retain(|_, held| {
            let holds = now_ns.saturating_sub(held.seen_ns) < OVER_NS;
            changed |= !holds;
            if !holds && held.logged {
                changes.push(Change::Over(held.warning.clone()));
            }
            holds
        });
        (changed, changes)
    }

    /// The current warnings.
    pub fn warnings(&self) -> Vec<Warning> {
        let held = self.current.values();
        held.map(|held| held.warning.clone()).collect()
    }
}
