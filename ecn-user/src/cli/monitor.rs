//! `ecn monitor`: events as JSON lines.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ecn_core::flow;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use schemars::JsonSchema;
use serde::Serialize;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

use crate::agent::health::Warning;
use crate::agent::state::{EndpointState, Waiting};

use super::exit::print_json;
use super::table::{FlowRow, PortRow};
use super::view::View;
use super::watch::seconds;

/// A flow's rate is reported if it differs by more than this fraction from the last reported rate.
const CHANGE: f64 = 0.05;

/// `ecn monitor`.
#[derive(Args, Debug)]
pub(super) struct MonitorArgs {
    /// Seconds between two readings, 0.05 to 86400
    #[arg(long, short = 's', value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// Directory of the pinned maps; by default that of the running agent
    #[arg(long, value_name = "DIR")]
    pin: Option<PathBuf>,
    /// Print JSON lines, which is the only format
    #[arg(long = "json", short = 'j')]
    _json: bool,
}

/// A line of the output.
#[derive(JsonSchema, Serialize)]
pub(super) struct Line<'a> {
    /// Time of the reading, RFC 3339, UTC.
    time: &'a str,
    #[serde(flatten)]
    event: &'a Event,
}

/// An event since the previous reading.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(super) enum Event {
    /// An agent is running.
    AgentStarted { pid: u32 },
    /// The agent has stopped or is silent: rate limits lapse.
    AgentStopped { pid: u32 },
    /// A port is attached, and marks.
    PortAttached(Port),
    /// A port is detached, and no longer marks.
    PortDetached(Port),
    /// An endpoint is attached: flows that leave through it are controlled.
    EndpointAttached(Endpoint),
    /// An endpoint is detached: its flows are no longer controlled.
    EndpointDetached(Endpoint),
    /// A configured bridge or endpoint does not exist or could not be set up.
    Waiting(Waiting),
    /// It was set up, is no longer configured, or the datapath was removed.
    WaitingOver(Waiting),
    /// A fault was detected.
    Warning(Warning),
    /// The fault has ended, or the agent has stopped.
    WarningOver(Warning),
    /// Triggers were counted at a port.
    Triggers {
        #[serde(flatten)]
        port: Port,
        /// Since the previous reading.
        new_input_triggers: u64,
        new_output_triggers: u64,
        /// In total, as in `ecn port show`.
        input_triggers: u64,
        output_triggers: u64,
    },
    /// A flow's allowed rate changed.
    Rate {
        #[serde(flatten)]
        flow: Flow,
        rate_bytes_per_s: u64,
        /// Its rate when last reported or first read; null for a flow that is limited at its first reading.
        rate_before_bytes_per_s: Option<u64>,
        pinned: bool,
    },
}

/// Identifies a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[schemars(inline)]
pub(super) struct Port {
    bridge: String,
    port: String,
    ifindex: u32,
    netns: String,
}

/// Identifies an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(inline)]
pub(super) struct Endpoint {
    device: String,
    netns: String,
    ifindex: u32,
}

/// Identifies a flow.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
pub(super) struct Flow {
    src: std::net::IpAddr,
    dst: std::net::IpAddr,
    protocol: String,
    src_port: u16,
    dst_port: u16,
    device: String,
    netns: String,
}

impl From<&PortRow> for Port {
    fn from(row: &PortRow) -> Self {
        Self {
            bridge: row.bridge.clone(),
            port: row.port.clone(),
            ifindex: row.ifindex,
            netns: row.netns.clone(),
        }
    }
}

impl From<&EndpointState> for Endpoint {
    fn from(state: &EndpointState) -> Self {
        Self {
            device: state.device.clone(),
            netns: state.netns.clone(),
            ifindex: state.ifindex,
        }
    }
}

impl From<&FlowRow> for Flow {
    fn from(row: &FlowRow) -> Self {
        Self {
            src: row.src,
            dst: row.dst,
            protocol: row.protocol.clone(),
            src_port: row.src_port,
            dst_port: row.dst_port,
            device: row.device.clone(),
            netns: row.netns.clone(),
        }
    }
}

/// A reading of the datapath; empty if none exists.
#[derive(Clone, Debug, Default)]
struct Look {
    agent: Option<u32>,
    ports: Vec<PortRow>,
    endpoints: Vec<EndpointState>,
    waiting: Vec<Waiting>,
    warnings: Vec<Warning>,
    flows: Vec<(flow::Key, FlowRow)>,
}

impl Look {
    fn take(pin: Option<&Path>) -> anyhow::Result<Self> {
        let view = View::open(pin)?;
        Ok(Self {
            agent: view.stale().is_none().then_some(view.state.pid),
            ports: view.ports()?,
            flows: view.flows()?,
            warnings: view.warnings().to_vec(),
            endpoints: view.state.endpoints,
            waiting: view.state.waiting,
        })
    }
}

/// What was reported so far.
#[derive(Debug, Default)]
struct Reported {
    /// There was a reading before.
    begun: bool,
    agent: Option<u32>,
    /// Input and output triggers.
    ports: BTreeMap<Port, (u64, u64)>,
    endpoints: Vec<Endpoint>,
    waiting: Vec<Waiting>,
    warnings: Vec<Warning>,
    rates: HashMap<flow::Key, u64>,
}

impl Reported {
    /// Events since the previous reading. The first reports everything that exists, but no rates and no triggers.
    fn take(&mut self, look: Look) -> Vec<Event> {
        let mut events = Vec::new();
        if self.agent != look.agent {
            events.extend(self.agent.map(|pid| Event::AgentStopped { pid }));
            events.extend(look.agent.map(|pid| Event::AgentStarted { pid }));
            self.agent = look.agent;
        }
        self.ports(&look.ports, &mut events);
        let endpoints = look.endpoints.iter().map(Endpoint::from).collect();
        let (attached, detached) = (Event::EndpointAttached, Event::EndpointDetached);
        changes(
            &mut self.endpoints,
            endpoints,
            attached,
            detached,
            &mut events,
        );
        let (begun, over) = (Event::Waiting, Event::WaitingOver);
        changes(&mut self.waiting, look.waiting, begun, over, &mut events);
        let (begun, over) = (Event::Warning, Event::WarningOver);
        changes(&mut self.warnings, look.warnings, begun, over, &mut events);
        self.rates(&look.flows, &mut events);
        self.begun = true;
        events
    }

    fn ports(&mut self, rows: &[PortRow], events: &mut Vec<Event>) {
        let before = std::mem::take(&mut self.ports);
        for row in rows {
            let port = Port::from(row);
            let (input_triggers, output_triggers) = (row.input_triggers, row.output_triggers);
            match before.get(&port) {
                None => events.push(Event::PortAttached(port.clone())),
                Some((input, output)) => {
                    let new_input_triggers = input_triggers.saturating_sub(*input);
                    let new_output_triggers = output_triggers.saturating_sub(*output);
                    if new_input_triggers + new_output_triggers > 0 {
                        events.push(Event::Triggers {
                            port: port.clone(),
                            new_input_triggers,
                            new_output_triggers,
                            input_triggers,
                            output_triggers,
                        });
                    }
                }
            }
            self.ports.insert(port, (input_triggers, output_triggers));
        }
        let detached = before
            .into_keys()
            .filter(|port| !self.ports.contains_key(port));
        events.extend(detached.map(Event::PortDetached));
    }

    fn rates(&mut self, rows: &[(flow::Key, FlowRow)], events: &mut Vec<Event>) {
        let mut before = std::mem::take(&mut self.rates);
        for (key, row) in rows {
            let rate = row.rate_bytes_per_s;
            let reported = before.remove(key);
            let is_news = match reported {
                Some(reported) => (rate as f64 - reported as f64).abs() > reported as f64 * CHANGE,
                None => self.begun && (row.pinned || row.ipd_packet_times > 1.0 + CHANGE),
            };
            if is_news {
                events.push(Event::Rate {
                    flow: Flow::from(row),
                    rate_bytes_per_s: rate,
                    rate_before_bytes_per_s: reported,
                    pinned: row.pinned,
                });
            }
            let last = reported.filter(|_| !is_news).unwrap_or(rate);
            self.rates.insert(*key, last);
        }
    }
}

/// Reports what was added to a list (`begun`) and what was removed from it (`over`).
fn changes<T: Clone + PartialEq>(
    before: &mut Vec<T>,
    now: Vec<T>,
    begun: fn(T) -> Event,
    over: fn(T) -> Event,
    events: &mut Vec<Event>,
) {
    events.extend(
        before
            .iter()
            .filter(|old| !now.contains(old))
            .cloned()
            .map(over),
    );
    events.extend(
        now.iter()
            .filter(|new| !before.contains(new))
            .cloned()
            .map(begun),
    );
    *before = now;
}

/// The time as in the log: RFC 3339, UTC.
fn time_text() -> String {
    let mut text = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut text));
    text
}

/// Waits for the interval. False: the reader of standard output has closed it.
fn wait(interval: Duration) -> anyhow::Result<bool> {
    let out = io::stdout();
    // No events are requested, so only an error ends this early.
    let mut fds = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let timeout = PollTimeout::try_from(interval).unwrap_or(PollTimeout::MAX);
    Ok(poll(&mut fds, timeout)? == 0)
}

/// Runs the verb until it is stopped or its reader closes standard output.
///
/// # Errors
///
/// There is no datapath at the start.
pub(super) fn run(args: &MonitorArgs) -> anyhow::Result<()> {
    let pin = args.pin.as_deref();
    let mut reported = Reported::default();
    let mut look = Look::take(pin)?;
    loop {
        let time = time_text();
        for event in reported.take(look) {
            print_json(&Line {
                time: &time,
                event: &event,
            })?;
        }
        if !wait(args.interval)? {
            return Ok(());
        }
        // An agent that has stopped may be started again.
        look = Look::take(pin).unwrap_or_default();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::agent::health::{Kind, Subject};
    use crate::agent::state::WaitingFor;

    fn port(name: &str, output_triggers: u64) -> PortRow {
        serde_json::from_value(serde_json::json!({
            "bridge": "br0", "port": name, "ifindex": 7, "marking": "input-output",
            "waiting_packets": 0, "to_mark_packets": 0, "occupancy_packets": 0, "marked_packets": 0,
            "unmarkable_packets": 0, "input_triggers": 0, "output_triggers": output_triggers,
            "dropped_packets": 0, "netns": "sw"
        }))
        .unwrap()
    }

    fn flow(src_port: u16, rate: u64) -> (flow::Key, FlowRow) {
        let row = serde_json::from_value(serde_json::json!({
            "src": "10.0.0.1", "dst": "10.0.1.1", "protocol": "udp", "src_port": src_port,
            "dst_port": 2, "device": "eth0", "netns": "a", "response": "lipd",
            "rate_bytes_per_s": rate, "ipd_packet_times": 1e6 / rate as f64, "marked_packets": 0,
            "acked_packets": 0, "enforcement": "htb", "pinned": false, "idle_ms": 0
        }));
        let key = flow::Key {
            src_port,
            ..flow::Key::default()
        };
        (key, row.unwrap())
    }

    fn json(events: &[Event]) -> Vec<serde_json::Value> {
        let line = |event| serde_json::to_value(Line { time: "t", event }).unwrap();
        events.iter().map(line).collect()
    }

    fn names(events: &[Event]) -> Vec<String> {
        let name = |line: serde_json::Value| line["event"].as_str().unwrap().to_owned();
        json(events).into_iter().map(name).collect()
    }

    #[test]
    fn added_and_removed_flows_are_reported_once() {
        let mut reported = Reported::default();
        let look = Look {
            agent: Some(5),
            ports: vec![port("a", 9), port("b", 0)],
            endpoints: Vec::new(),
            waiting: vec![Waiting {
                kind: WaitingFor::Endpoint,
                name: "eth0".to_owned(),
                netns: "a".to_owned(),
                why: "no such namespace".to_owned(),
            }],
            warnings: vec![Warning {
                kind: Kind::NoEcho,
                subject: Subject::endpoint("eth0", "a"),
                message: "nobody answers".to_owned(),
            }],
            flows: vec![flow(1, 500_000)],
        };
        let first = reported.take(look.clone());
        let expected = [
            "agent-started",
            "port-attached",
            "port-attached",
            "waiting",
            "warning",
        ];
        assert_eq!(names(&first), expected);
        let lines = json(&first);
        assert_eq!(lines[1]["port"], "a");
        assert_eq!(lines[3]["why"], "no such namespace");
        assert_eq!(
            (&lines[4]["kind"], &lines[4]["device"]),
            (&"no-echo".into(), &"eth0".into())
        );
        assert!(lines.iter().all(|line| line["time"] == "t"));
        assert_eq!(reported.take(look), []);
        let last = reported.take(Look::default());
        let expected = [
            "agent-stopped",
            "port-detached",
            "port-detached",
            "waiting-over",
            "warning-over",
        ];
        assert_eq!(names(&last), expected);
    }

    #[test]
    fn triggers_are_those_since_the_look_before() {
        let mut reported = Reported::default();
        let look = |triggers| Look {
            ports: vec![port("a", triggers)],
            ..Look::default()
        };
        reported.take(look(9));
        let events = json(&reported.take(look(12)));
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["event"], "triggers");
        assert_eq!(
            (&events[0]["port"], &events[0]["netns"]),
            (&"a".into(), &"sw".into())
        );
        assert_eq!(events[0]["new_output_triggers"], 3);
        assert_eq!(events[0]["new_input_triggers"], 0);
        assert_eq!(events[0]["output_triggers"], 12);
        assert_eq!(reported.take(look(12)), []);
    }

    #[test]
    fn rates_are_reported_when_they_change() {
        let mut reported = Reported::default();
        let mut take = |flows: &[(u16, u64)]| {
            let flows = flows
                .iter()
                .map(|(port, rate)| flow(*port, *rate))
                .collect();
            json(&reported.take(Look {
                flows,
                ..Look::default()
            }))
        };
        // What is there at first, and at full rate later, is no change.
        assert!(take(&[(1, 500_000)]).is_empty());
        assert!(take(&[(1, 500_000), (2, 1_000_000)]).is_empty());
        // Small steps add up.
        assert!(take(&[(1, 485_000), (2, 1_000_000)]).is_empty());
        let events = take(&[(1, 470_000), (2, 1_000_000), (3, 300_000)]);
        assert_eq!(events.len(), 2, "{events:?}");
        assert_eq!(events[0]["src_port"], 1);
        assert_eq!(events[0]["rate_bytes_per_s"], 470_000);
        assert_eq!(events[0]["rate_before_bytes_per_s"], 500_000);
        assert_eq!(events[1]["src_port"], 3);
        assert!(events[1]["rate_before_bytes_per_s"].is_null());
        assert!(take(&[(1, 480_000), (3, 300_000)]).is_empty());
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        let text = time_text();
        assert!(
            text.len() >= 20 && text.ends_with('Z') && text.contains('T'),
            "{text}"
        );
    }
}
