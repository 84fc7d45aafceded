//! Tables of ports and flows: rows as `ecn port show` and `ecn flow show` print them, in order and
//! filtered as asked.
//!
//! The structs are the JSON contract of both commands; the tables show the same rows to people,
//! with rates in tc syntax and large counts shortened.

mod filter;
mod sort;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

use std::net::IpAddr;

pub use ecn_sim::cli::table::{plain_table, short_count, table_text, wrapped_table};
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
    /// Interface number of the port.
    pub ifindex: u32,
    /// What the bridge marks.
    pub marking: Marking,
    /// Packets that wait in the port's output queue: cnt1.
    pub waiting_packets: u64,
    /// Packets still to be marked at this output: cnt2.
    pub to_mark_packets: u64,
    /// Packets in the port's logical input buffer.
    pub occupancy_packets: u64,
    /// Packets marked so far.
    pub marked_packets: u64,
    /// Packets that were to be marked but are not ECN-capable.
    pub unmarkable_packets: u64,
    /// How often the input buffer became full.
    pub input_triggers: u64,
    /// How often more packets than the threshold waited.
    pub output_triggers: u64,
    /// Packets dropped in the output queue.
    pub dropped_packets: u64,
    /// Packets dropped before it that could not be marked, of sources that had their share.
    #[serde(default)]
    pub dropped_unmarkable_packets: u64,
    /// What the program at this port hangs from; none where no port of the bridge has a queue.
    #[serde(default)]
    pub attached: Option<AttachedBy>,
    /// What does not work at this port.
    #[serde(default)]
    pub warnings: Vec<Warning>,
    /// The network namespace of the bridge; empty for the agent's own.
    #[serde(default)]
    pub netns: String,
    /// Packets that entered the output queue. 0 where there is no queue to watch.
    #[serde(default)]
    pub arrived_packets: u64,
    /// What it tells sources itself.
    #[serde(flatten)]
    pub messages: Messages,
}

/// What a port tells sources itself. The first two are none where the bridge sends no messages, the others where it
/// does not sample its queues; nothing is sampled before the first packets.
#[derive(Debug, Clone, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct Messages {
    /// Messages sent.
    pub sent_messages: Option<u64>,
    /// Marks that had to wait for a later message, and notifications left out, since a port sends `messages_per_s` at most.
    pub held_messages: Option<u64>,
    /// The port, as flows name it that it has slowed down: 8 hexadecimal digits.
    pub congestion_point: Option<String>,
    /// Qeq: the queue that is aimed at, in full packets, rounded.
    pub equilibrium_packets: Option<u64>,
    /// The queue at the last sample.
    pub sampled_packets: Option<u64>,
    /// Fb at the last sample: of BCN in bytes, negative where it is congested; of QCN 0 to 63.
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
    /// The rate that the flow is held to; 0 if it is not limited.
    pub rate_bytes_per_s: u64,
    /// Inter-packet delay, in times of one packet at the link rate.
    pub ipd_packet_times: f64,
    /// Packets whose echo said marked.
    pub marked_packets: u64,
    /// Packets that were echoed.
    pub acked_packets: u64,
    /// How the rate is enforced.
    pub enforcement: String,
    /// Where its echoes are taken: tc or xdp. Left out if the endpoint is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hook: String,
    /// Whether the rate is pinned.
    pub pinned: bool,
    /// Time since its last packet, in milliseconds.
    pub idle_ms: u64,
    /// Bytes handed to the device, with link headers.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Whose notifications limit it instead of its response: bcn or qcn. None, and what follows too, where none do.
    #[serde(default)]
    pub limiter: Option<Marking>,
    /// The port that it obeys, the last that slowed it down: as in `ecn port show -j` where its bridge is.
    #[serde(default)]
    pub congestion_point: Option<String>,
    /// QCN's target rate, to which the rate recovers.
    #[serde(default)]
    pub target_rate_bytes_per_s: Option<u64>,
}

/// What is asked for does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectError(String);

pub(super) fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

/// A rate in tc syntax: exactly if that is short, else with three digits; `-` for none.
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

/// The ports as a table for people.
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
            // A row has 80 columns.
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

/// The messages of ports that send any, below the other table: in it a row would have more than 80 columns.
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

/// Warnings for people, in lines of at most 80 columns.
pub fn warnings_text(warnings: &[Warning]) -> String {
    const COLUMNS: u16 = 80;
    let lines = warnings
        .iter()
        .map(|of| wrapped(&format!("warning: {of}"), COLUMNS));
    lines.collect()
}

/// A line in as many as it needs, none longer than this; those after the first are indented.
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

    /// What sets the rate, in tables. No function changes a pinned rate, nor one of a notification.
    pub(super) fn response_text(&self) -> &str {
        match (self.limiter, self.response) {
            _ if self.pinned => "pinned",
            (Some(limiter), _) => limiter.name(),
            (None, Function::None) => "-",
            (None, response) => response.name(),
        }
    }
}

/// An address out of a flow's key: IPv4 stands there as `::ffff:a.b.c.d`.
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

/// The flows as a table for people.
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
