//! Rates of ports and flows, measured between two readings of their counters.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use ecn_core::flow;
use schemars::JsonSchema;
use serde::Serialize;

use crate::agent::health::Warning;
use crate::agent::state::Waiting;
use crate::cli::table::{FlowRow, PortRow};

/// A port and its rates; null: not measured.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub(in crate::cli) struct PortRates {
    #[serde(flatten)]
    pub row: PortRow,
    /// Packets that entered the queue; null if none ever did, since there may be no queue to watch.
    pub arrived_packets_per_s: Option<u64>,
    pub marked_packets_per_s: Option<u64>,
    /// Messages to sources; null if the bridge sends none.
    pub sent_messages_per_s: Option<u64>,
    /// Packets dropped by the queue, and before it because they could not be marked.
    pub dropped_packets_per_s: Option<u64>,
    pub input_triggers_per_s: Option<u64>,
    pub output_triggers_per_s: Option<u64>,
}

/// A flow and its rates; null: not measured.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub(in crate::cli) struct FlowRates {
    #[serde(skip)]
    pub key: flow::Key,
    #[serde(flatten)]
    pub row: FlowRow,
    /// Rate offered by its sender, before the limit; `rate_bytes_per_s` is the allowed rate.
    pub sent_bytes_per_s: Option<u64>,
    pub acked_packets_per_s: Option<u64>,
    pub marked_packets_per_s: Option<u64>,
}

/// What was measured at a reading.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub(in crate::cli) struct Top {
    pub ports_in_all: usize,
    pub flows_in_all: usize,
    /// Packets that the bridges marked.
    pub marked_packets_per_s: Option<u64>,
    /// Packets dropped by their queues, and before them because they could not be marked.
    pub dropped_packets_per_s: Option<u64>,
    /// Packets acknowledged by receivers.
    pub acked_packets_per_s: Option<u64>,
    /// Ports, sorted by marks, messages and drops together, then by queue length.
    pub ports: Vec<PortRates>,
    /// Flows, the highest offered rate first.
    pub flows: Vec<FlowRates>,
    /// Current warnings.
    pub warnings: Vec<Warning>,
    /// Configured bridges and endpoints that do not exist yet, or could not be set up.
    pub waiting: Vec<Waiting>,
}

/// Identifies a port: bridges in different namespaces may have the same name.
type PortId = (String, String, u32);

fn id(row: &PortRow) -> PortId {
    (row.netns.clone(), row.bridge.clone(), row.ifindex)
}

/// Counters at the previous reading.
#[derive(Default)]
pub(super) struct Meter {
    at: Option<Instant>,
    ports: HashMap<PortId, PortRow>,
    flows: HashMap<flow::Key, FlowRow>,
}

impl Meter {
    /// Rates since the previous reading, without warnings and missing devices.
    pub(super) fn measure(
        &mut self,
        ports: Vec<PortRow>,
        flows: Vec<(flow::Key, FlowRow)>,
        now: Instant,
    ) -> Top {
        let elapsed = self.at.replace(now).map(|before| now - before);
        let ports_before = std::mem::take(&mut self.ports);
        let flows_before = std::mem::take(&mut self.flows);
        self.ports = ports.iter().map(|row| (id(row), row.clone())).collect();
        self.flows = flows.iter().cloned().collect();
        let mut ports: Vec<_> = ports
            .into_iter()
            .map(|row| port_rates(ports_before.get(&id(&row)), row, elapsed))
            .collect();
        let mut flows: Vec<_> = flows
            .into_iter()
            .map(|(key, row)| flow_rates(flows_before.get(&key), key, row, elapsed))
            .collect();
        ports.sort_by_key(|port| {
            let rates = [
                port.marked_packets_per_s,
                port.sent_messages_per_s,
                port.dropped_packets_per_s,
            ];
            let busy: u64 = rates.into_iter().flatten().sum();
            Reverse((busy, port.row.waiting_packets))
        });
        flows.sort_by_key(|flow| Reverse(flow.sent_bytes_per_s));
        Top {
            ports_in_all: ports.len(),
            flows_in_all: flows.len(),
            marked_packets_per_s: sum(elapsed, ports.iter().map(|port| port.marked_packets_per_s)),
            dropped_packets_per_s: sum(
                elapsed,
                ports.iter().map(|port| port.dropped_packets_per_s),
            ),
            acked_packets_per_s: sum(elapsed, flows.iter().map(|flow| flow.acked_packets_per_s)),
            ports,
            flows,
            warnings: Vec::new(),
            waiting: Vec::new(),
        }
    }
}

/// The sum of what was measured; `None` at the first reading.
fn sum(elapsed: Option<Duration>, rates: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    elapsed.map(|_| rates.flatten().sum())
}

/// `None` at the first reading, and if the counter restarted.
fn per_s(before: Option<u64>, now: u64, elapsed: Option<Duration>) -> Option<u64> {
    let count = now.checked_sub(before?)?;
    let seconds = elapsed?.as_secs_f64();
    (seconds > 0.0).then(|| (count as f64 / seconds).round() as u64)
}

fn port_rates(before: Option<&PortRow>, row: PortRow, elapsed: Option<Duration>) -> PortRates {
    let rate = |count: fn(&PortRow) -> u64| per_s(before.map(count), count(&row), elapsed);
    PortRates {
        arrived_packets_per_s: rate(|row| row.arrived_packets).filter(|_| row.arrived_packets != 0),
        marked_packets_per_s: rate(|row| row.marked_packets),
        sent_messages_per_s: row.messages.sent_messages.and_then(|sent| {
            let before = before.and_then(|row| row.messages.sent_messages);
            per_s(before, sent, elapsed)
        }),
        dropped_packets_per_s: rate(|row| row.dropped_packets + row.dropped_unmarkable_packets),
        input_triggers_per_s: rate(|row| row.input_triggers),
        output_triggers_per_s: rate(|row| row.output_triggers),
        row,
    }
}

fn flow_rates(
    before: Option<&FlowRow>,
    key: flow::Key,
    row: FlowRow,
    elapsed: Option<Duration>,
) -> FlowRates {
    let rate = |count: fn(&FlowRow) -> u64| per_s(before.map(count), count(&row), elapsed);
    FlowRates {
        key,
        sent_bytes_per_s: rate(|row| row.sent_bytes),
        acked_packets_per_s: rate(|row| row.acked_packets),
        marked_packets_per_s: rate(|row| row.marked_packets),
        row,
    }
}
