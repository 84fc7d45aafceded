//! Tables of ports and flows: the rows that `ecn port show` and `ecn flow show` print, sorted and filtered.
//!
//! The structs define the JSON output of both commands; the text tables show the same rows, with rates in tc syntax and
//! large counts shortened.

mod filter;
mod sort;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

use std::net::IpAddr;

use ecn_report::number::short_count;
use ecn_report::terminal::{plain_table, table_text};
pub use filter::{AddressFilter, FlowFilter, PortFilter};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub(super) use sort::natural;
pub use sort::{sort_flows, sort_ports};

use crate::agent::health::Warning;
use crate::cli::key::{FlowName, protocol_number};
use crate::config::{Function, Marking};
use crate::datapath::AttachedBy;
use crate::units::Rate;

/// A port of a bridge, as in `ecn port show -j`.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct PortRow {
    /// The bridge device.
    pub bridge: String,
    /// The port device.
    pub port: String,
    /// Interface index of the port.
    pub ifindex: u32,
    /// The bridge's marking.
    pub marking: Marking,
    /// Packets waiting in the port's output queue: cnt1.
    pub waiting_packets: u64,
    /// Packets still to be marked at this output: cnt2.
    pub to_mark_packets: u64,
    /// Packets in the port's logical input buffer.
    pub occupancy_packets: u64,
    /// Packets marked so far.
    pub marked_packets: u64,
    /// Packets due to be marked that were not ECN-capable.
    pub unmarkable_packets: u64,
    /// Packets that found the input buffer full.
    pub input_triggers: u64,
    /// Packets that found more than `threshold` waiting in the output queue.
    pub output_triggers: u64,
    /// Packets dropped in the output queue.
    pub dropped_packets: u64,
    /// Packets that could not be marked, dropped before the queue because their source had its share.
    #[serde(default)]
    pub dropped_unmarkable_packets: u64,
    /// How the program at this port is attached; null if no port of the bridge has a queue.
    #[serde(default)]
    pub attached: Option<AttachedBy>,
    /// Current warnings about this port.
    #[serde(default)]
    pub warnings: Vec<Warning>,
    /// The network namespace of the bridge; empty for the agent's own.
    #[serde(default)]
    pub netns: String,
    /// Packets that entered the output queue; 0 if there is no queue to watch.
    #[serde(default)]
    pub arrived_packets: u64,
    /// Its messages to sources.
    #[serde(flatten)]
    pub messages: Messages,
}

/// A port's messages to sources. The first two are null if the bridge sends no messages, the others if it does not
/// sample its queues; the samples are also null before the first packet.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct Messages {
    /// Messages sent.
    pub sent_messages: Option<u64>,
    /// Messages held back by `messages_per_s`: a later one reports their marks, while notifications are omitted.
    pub held_messages: Option<u64>,
    /// Identifies the port in flows that it has slowed down: 8 hexadecimal digits.
    pub congestion_point: Option<String>,
    /// Qeq: the target queue length, in full packets, rounded.
    pub equilibrium_packets: Option<u64>,
    /// Queue length at the last sample, in full packets, rounded.
    pub sampled_packets: Option<u64>,
    /// Fb at the last sample: for BCN in bytes, negative in congestion; for QCN 0 to 63.
    pub sampled_feedback: Option<i64>,
}

/// A controlled flow, as in `ecn flow show -j`.
#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct FlowRow {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Name of the transport protocol, or its number.
    pub protocol: String,
    /// Source port; 0 where the protocol has none.
    pub src_port: u16,
    /// Destination port; 0 where the protocol has none.
    pub dst_port: u16,
    /// The device through which the flow leaves.
    pub device: String,
    /// The network namespace of the device; empty for the agent's own.
    pub netns: String,
    /// The response function.
    pub response: Function,
    /// Rate that the flow may send at: the link's rate if it is not limited, 0 if that is unknown.
    pub rate_bytes_per_s: u64,
    /// Inter-packet delay, in times of one packet at the link rate.
    pub ipd_packet_times: f64,
    /// Packets acknowledged as marked.
    pub marked_packets: u64,
    /// Packets acknowledged.
    pub acked_packets: u64,
    /// How the rate is enforced: edt, htb or pacing; none if it is not.
    pub enforcement: String,
    /// Where its echoes are processed: tc or xdp. Omitted if the endpoint is unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hook: String,
    /// Whether the rate is pinned.
    pub pinned: bool,
    /// Time since its last packet, in milliseconds.
    pub idle_ms: u64,
    /// Bytes handed to the device, with link headers.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Whose notifications limit it instead of its response: bcn or qcn. Null, like the next two keys, if none do.
    #[serde(default)]
    pub limiter: Option<Marking>,
    /// The port that last slowed it down: `congestion_point` of `ecn port show -j` at its bridge.
    #[serde(default)]
    pub congestion_point: Option<String>,
    /// QCN's target rate, to which the rate recovers.
    #[serde(default)]
    pub target_rate_bytes_per_s: Option<u64>,
}

/// Invalid filter or sort key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectError(String);

pub(super) fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// A rate in tc syntax: exact if that is short, else with three digits; `-` for 0.
pub fn rate_text(bytes_per_s: u64) -> String {
    let Some(rate) = Rate::from_bytes_per_s(bytes_per_s) else {
        return "-".to_owned();
    };
    let exact = rate.to_string();
    if exact.len() <= 8 {
        exact
    } else {
        rate.short()
    }
}

/// The ports as a text table.
pub fn ports_table(rows: &[PortRow]) -> String {
    if rows.is_empty() {
        return "no ports\n".to_owned();
    }
    let header = [
        "bridge",
        "port",
        "mark-\ning",
        "wait",
        "to\nmark",
        "in\nbuf",
        "marks",
        "not\nECT",
        "trig\nin",
        "trig\nout",
        "drops",
        "share\ndrops",
    ];
    let mut table = plain_table(&header, &[0, 1, 2]);
    for row in rows {
        table.add_row([
            row.bridge.clone(),
            row.port.clone(),
            // A row has to fit 80 columns.
            match row.marking {
                Marking::InputOutput => "in-out".to_owned(),
                marking => marking.to_string(),
            },
            short_count(row.waiting_packets),
            short_count(row.to_mark_packets),
            short_count(row.occupancy_packets),
            short_count(row.marked_packets),
            short_count(row.unmarkable_packets),
            short_count(row.input_triggers),
            short_count(row.output_triggers),
            short_count(row.dropped_packets),
            short_count(row.dropped_unmarkable_packets),
        ]);
    }
    let mut text = table_text(&table);
    if rows
        .iter()
        .any(|row| row.attached == Some(AttachedBy::Clsact))
    {
        text.push_str("attached by clsact: this kernel has no tcx\n");
    }
    text + &messages_table(rows)
}

/// The messages of ports that send any, in a table below: with them a row of the first table would not fit 80 columns.
fn messages_table(rows: &[PortRow]) -> String {
    let sends = |row: &&PortRow| row.messages.sent_messages.is_some();
    let rows: Vec<_> = rows.iter().filter(sends).collect();
    if rows.is_empty() {
        return String::new();
    }
    let samples = rows
        .iter()
        .any(|row| row.messages.congestion_point.is_some());
    let mut header = vec!["bridge", "port", "messages", "held"];
    if samples {
        header.extend(["point", "Qeq", "sampled", "Fb"]);
    }
    let mut table = plain_table(&header, &[0, 1]);
    let count = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), short_count);
    for row in rows {
        let of = &row.messages;
        let mut cells = vec![
            row.bridge.clone(),
            row.port.clone(),
            count(of.sent_messages),
            count(of.held_messages),
        ];
        if samples {
            let feedback = of
                .sampled_feedback
                .map_or_else(|| "-".to_owned(), signed_text);
            cells.extend([
                or_dash(of.congestion_point.as_deref().unwrap_or_default()).to_owned(),
                count(of.equilibrium_packets),
                count(of.sampled_packets),
                feedback,
            ]);
        }
        table.add_row(cells);
    }
    format!("\n{}", table_text(&table))
}

fn signed_text(number: i64) -> String {
    let sign = if number < 0 { "-" } else { "" };
    format!("{sign}{}", short_count(number.unsigned_abs()))
}

/// Warnings as text, in lines of at most 80 columns.
pub fn warnings_text(warnings: &[Warning]) -> String {
    const COLUMNS: u16 = 80;
    let lines = warnings
        .iter()
        .map(|of| wrapped(&format!("warning: {of}"), COLUMNS));
    lines.collect()
}

/// Wraps a line at this width; all lines but the first are indented.
pub(super) fn wrapped(line: &str, columns: u16) -> String {
    let options = textwrap::Options::new(columns.into())
        .subsequent_indent("  ")
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .break_words(false);
    textwrap::fill(line, options) + "\n"
}

impl FlowRow {
    /// The flow as `ecn flow set` takes it.
    pub fn name(&self) -> String {
        let protocol = protocol_number(&self.protocol).unwrap_or_default();
        let (src, dst) = (self.src, self.dst);
        FlowName {
            src,
            dst,
            src_port: self.src_port,
            dst_port: self.dst_port,
            protocol,
        }
        .to_string()
    }

    /// What sets the rate, for tables: a pin, notifications, or else the response function.
    pub(super) fn response_text(&self) -> &str {
        match (self.limiter, self.response) {
            _ if self.pinned => "pinned",
            (Some(limiter), _) => limiter.name(),
            (None, Function::None) => "-",
            (None, response) => response.name(),
        }
    }
}

/// The address in a flow's key, which contains IPv4 as `::ffff:a.b.c.d`.
pub fn address(bytes: &[u8; 16]) -> IpAddr {
    std::net::Ipv6Addr::from(*bytes).to_canonical()
}

pub(super) fn idle_text(ms: u64) -> String {
    match ms {
        0..=999 => format!("{ms}ms"),
        1_000..=9_999 => format!("{}.{}s", ms / 1000, ms % 1000 / 100),
        10_000..=599_999 => format!("{}s", ms / 1000),
        _ => format!("{}min", ms / 60_000),
    }
}

/// The flows as a text table.
pub fn flows_table(rows: &[FlowRow]) -> String {
    if rows.is_empty() {
        return "no flows\n".to_owned();
    }
    let mut header = vec![
        "flow", "device", "netns", "resp", "rate", "ipd", "marked", "acked", "by", "idle",
    ];
    let notified = rows.iter().any(|row| row.congestion_point.is_some());
    if notified {
        header.push("point");
    }
    let recovers = rows.iter().any(|row| row.target_rate_bytes_per_s.is_some());
    if recovers {
        header.push("target");
    }
    let mut table = plain_table(&header, &[0, 1, 2, 3, 8]);
    for row in rows {
        let mut cells = vec![
            row.name(),
            or_dash(&row.device).to_owned(),
            or_dash(&row.netns).to_owned(),
            row.response_text().to_owned(),
            rate_text(row.rate_bytes_per_s),
            format!("{:.1}", row.ipd_packet_times),
            short_count(row.marked_packets),
            short_count(row.acked_packets),
            or_dash(&row.enforcement).to_owned(),
            idle_text(row.idle_ms),
        ];
        if notified {
            let point = row.congestion_point.as_deref();
            cells.push(or_dash(point.unwrap_or_default()).to_owned());
        }
        if recovers {
            cells.push(rate_text(row.target_rate_bytes_per_s.unwrap_or(0)));
        }
        table.add_row(cells);
    }
    table_text(&table)
}
