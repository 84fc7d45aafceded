//! The metrics by name, and their text in the OpenMetrics format.

use std::fmt;

use ecn_core::{abi, backward, marking};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::Registry,
};

use super::{Agent, Endpoint, Labels, Sample, Table};
use crate::cli::table::FlowRow;

/// Prefix of all metrics' names.
const PREFIX: &str = "ecn";

/// How a value is obtained, and whether it may decrease.
enum Value<T> {
    /// Only increases, until the agent restarts or the port is recreated. Its name gets `_total`.
    Counter(fn(&T) -> u64),
    Gauge(fn(&T) -> u64),
    Seconds(fn(&T) -> f64),
}
use Value::{Counter, Gauge, Seconds};

struct Metric<T> {
    name: &'static str,
    help: &'static str,
    value: Value<T>,
}

const fn metric<T>(name: &'static str, help: &'static str, value: Value<T>) -> Metric<T> {
    Metric { name, help, value }
}

const PORT: [Metric<marking::Port>; 11] = [
    metric(
        "port_queue_packets",
        "Packets waiting for this output",
        Gauge(|p| p.cnt1.into()),
    ),
    metric(
        "port_input_buffer_packets",
        "Packets in the input buffer of this port: they entered here and wait for any output",
        Gauge(|p| p.occupancy.into()),
    ),
    metric(
        "port_to_mark_packets",
        "Packets for this output that are still to be marked",
        Gauge(|p| p.cnt2.into()),
    ),
    metric(
        "port_arrived_packets",
        "Packets that entered the queue",
        Counter(|p| p.arrived),
    ),
    metric(
        "port_departed_packets",
        "Packets that left the queue",
        Counter(|p| p.departed),
    ),
    metric(
        "port_marked_packets",
        "Packets marked, by CE or by a message to their source",
        Counter(|p| p.marked),
    ),
    metric(
        "port_unmarkable_packets",
        "Packets due to be marked that could not be, such as those that are not ECN-capable",
        Counter(|p| p.unmarkable),
    ),
    metric(
        "port_dropped_packets",
        "Packets dropped by the queue",
        Counter(|p| p.dropped),
    ),
    metric(
        "port_dropped_unmarkable_packets",
        "Packets dropped before the queue, since they could not be marked and their source had its share",
        Counter(|p| p.dropped_unmarkable),
    ),
    metric(
        "port_input_triggers",
        "Arrivals that found the input buffer of this port full",
        Counter(|p| p.input_triggers),
    ),
    metric(
        "port_output_triggers",
        "Arrivals that found more than the threshold waiting for this output",
        Counter(|p| p.output_triggers),
    ),
];

const MESSAGE: [Metric<backward::Point>; 2] = [
    metric(
        "port_sent_messages",
        "Messages sent to sources: backward feedback, BCN or QCN",
        Counter(|p| p.sent),
    ),
    metric(
        "port_held_messages",
        "Messages held back by messages_per_s: a later one reports their marks, notifications are omitted",
        Counter(|p| p.held),
    ),
];

const ENDPOINT: [Metric<Endpoint>; 5] = [
    metric(
        "endpoint_flows",
        "Flows in the flow table",
        Gauge(|e| e.flows),
    ),
    metric(
        "endpoint_limited_flows",
        "Flows limited below the link rate",
        Gauge(|e| e.limited),
    ),
    metric(
        "endpoint_pinned_flows",
        "Flows with a pinned rate",
        Gauge(|e| e.pinned),
    ),
    metric(
        "endpoint_limited_rate_bytes_per_second",
        "Sum of the allowed rates of limited flows",
        Gauge(|e| e.limited_bytes_per_s),
    ),
    metric(
        "endpoint_link_rate_bytes_per_second",
        "Maximum rate of a flow",
        Gauge(|e| e.link_bytes_per_s),
    ),
];

const FLOW: [Metric<FlowRow>; 3] = [
    metric(
        "flow_rate_bytes_per_second",
        "Allowed rate of the flow; only `top_flows` flows",
        Gauge(|f| f.rate_bytes_per_s),
    ),
    metric(
        "flow_marked_packets",
        "Packets of the flow acknowledged as marked; only `top_flows` flows",
        Counter(|f| f.marked_packets),
    ),
    metric(
        "flow_acked_packets",
        "Packets of the flow acknowledged; only `top_flows` flows",
        Counter(|f| f.acked_packets),
    ),
];

const TABLE: [Metric<Table>; 2] = [
    metric(
        "table_entries",
        "Entries in use in the tables of flows, receivers and classes",
        Gauge(|t| t.entries),
    ),
    metric(
        "table_max_entries",
        "Capacity of the tables of flows, receivers and classes",
        Gauge(|t| t.most),
    ),
];

const EVENT: [Metric<u64>; 1] = [metric(
    "datapath_events",
    "Events counted by the programs, with the keys of ecn doctor",
    Counter(|n| *n),
)];

const WARNING: [Metric<u64>; 1] = [metric("warnings", "Current warnings", Gauge(|n| *n))];

const WAITING: [Metric<u64>; 1] = [metric(
    "waiting",
    "Configured bridges and endpoints that do not exist yet or could not be set up",
    Gauge(|n| *n),
)];

const AGENT: [Metric<Agent>; 8] = [
    metric(
        "heartbeat_age_seconds",
        "Time since the last heartbeat, which extends rate limits",
        Seconds(|a| a.heartbeat_age.as_secs_f64()),
    ),
    metric(
        "loop_age_seconds",
        "Time since the agent's main loop last made progress",
        Seconds(|a| a.loop_age.as_secs_f64()),
    ),
    metric(
        "rate_changes",
        "Changes of class rates",
        Counter(|a| a.rate_changes),
    ),
    metric(
        "rate_changes_refused",
        "Flows for which the kernel refused a class",
        Counter(|a| a.refused_changes),
    ),
    metric(
        "config_reloads",
        "Reloads of the configuration, including failed ones",
        Counter(|a| a.reloads),
    ),
    metric(
        "config_last_reload_successful",
        "Whether the last reload of the configuration succeeded; 1 before the first",
        Gauge(|a| a.last_reload_successful.into()),
    ),
    metric(
        "log_lines_lost",
        "Log lines that could not be written",
        Counter(|a| a.log_lines_lost),
    ),
    metric(
        "scrape_read_seconds",
        "Time taken to read the values of this scrape",
        Seconds(|a| a.reading.as_secs_f64()),
    ),
];

const BUILD: [Metric<()>; 1] = [metric(
    "build_info",
    "Versions of the agent and of its maps' layout; always 1",
    Gauge(|()| 1),
)];

impl<T> Metric<T> {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, series: &[(Labels, T)]) -> fmt::Result {
        let kind = match self.value {
            Counter(_) => MetricType::Counter,
            Gauge(_) | Seconds(_) => MetricType::Gauge,
        };
        let mut family = encoder.encode_descriptor(self.name, self.help, None, kind)?;
        for (labels, of) in series {
            let mut one = family.encode_family(labels)?;
            match self.value {
                Counter(value) => one.encode_counter::<NoLabelSet, _, u64>(&value(of), None)?,
                Gauge(value) => one.encode_gauge(&value(of))?,
                Seconds(value) => one.encode_gauge(&value(of))?,
            }
        }
        Ok(())
    }
}

impl Collector for Sample {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let to = &mut encoder;
        let version = vec![
            ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ("abi", abi::ABI.to_string()),
        ];
        PORT.iter().try_for_each(|m| m.encode(to, &self.ports))?;
        MESSAGE
            .iter()
            .try_for_each(|m| m.encode(to, &self.messages))?;
        ENDPOINT
            .iter()
            .try_for_each(|m| m.encode(to, &self.endpoints))?;
        FLOW.iter().try_for_each(|m| m.encode(to, &self.flows))?;
        TABLE.iter().try_for_each(|m| m.encode(to, &self.tables))?;
        EVENT.iter().try_for_each(|m| m.encode(to, &self.events))?;
        WARNING
            .iter()
            .try_for_each(|m| m.encode(to, &self.warnings))?;
        WAITING
            .iter()
            .try_for_each(|m| m.encode(to, &self.waiting))?;
        AGENT
            .iter()
            .try_for_each(|m| m.encode(to, &[(Labels::new(), self.agent)]))?;
        BUILD
            .iter()
            .try_for_each(|m| m.encode(to, &[(version.clone(), ())]))
    }
}

/// The complete response to a scrape.
pub(super) fn text(sample: Sample) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(sample));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}
