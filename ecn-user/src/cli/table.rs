//! Tables of ports and flows: rows as `ecn port show` and `ecn flow show` print them, in order and
//! filtered as asked.
//!
//! The structs are the JSON contract of both commands; the tables show the same rows to people,
//! with rates in tc syntax and large counts shortened.

use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

pub use ecn_sim::cli::table::{plain_table, short_count, table_text};
use serde::{Deserialize, Serialize};

use crate::cli::key::{FlowName, protocol_number};
use crate::config::{Function, Marking, suggestion};
use crate::datapath::AttachedBy;
use crate::units::Rate;

/// A port of a bridge, as in `ecn port show -j`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// What the program at this port hangs from.
    #[serde(default)]
    pub attached: AttachedBy,
}

/// A controlled flow, as in `ecn flow show -j`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Whether the rate was set by hand and stays.
    pub pinned: bool,
    /// Time since its last packet, in milliseconds.
    pub idle_ms: u64,
}

/// What is asked for does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectError(String);

type Order<T> = fn(&T, &T) -> Ordering;

/// Text and numbers that name something ascend, counts descend.
const PORT_KEYS: [(&str, Order<PortRow>); 12] = [
    ("bridge", |a, b| natural(&a.bridge, &b.bridge)),
    ("port", |a, b| natural(&a.port, &b.port)),
    ("ifindex", |a, b| a.ifindex.cmp(&b.ifindex)),
    ("marking", |a, b| a.marking.name().cmp(b.marking.name())),
    ("waiting_packets", |a, b| {
        b.waiting_packets.cmp(&a.waiting_packets)
    }),
    ("to_mark_packets", |a, b| {
        b.to_mark_packets.cmp(&a.to_mark_packets)
    }),
    ("occupancy_packets", |a, b| {
        b.occupancy_packets.cmp(&a.occupancy_packets)
    }),
    ("marked_packets", |a, b| {
        b.marked_packets.cmp(&a.marked_packets)
    }),
    ("unmarkable_packets", |a, b| {
        b.unmarkable_packets.cmp(&a.unmarkable_packets)
    }),
    ("input_triggers", |a, b| {
        b.input_triggers.cmp(&a.input_triggers)
    }),
    ("output_triggers", |a, b| {
        b.output_triggers.cmp(&a.output_triggers)
    }),
    ("dropped_packets", |a, b| {
        b.dropped_packets.cmp(&a.dropped_packets)
    }),
];

const FLOW_KEYS: [(&str, Order<FlowRow>); 15] = [
    ("src", |a, b| a.src.cmp(&b.src)),
    ("dst", |a, b| a.dst.cmp(&b.dst)),
    ("protocol", |a, b| natural(&a.protocol, &b.protocol)),
    ("src_port", |a, b| a.src_port.cmp(&b.src_port)),
    ("dst_port", |a, b| a.dst_port.cmp(&b.dst_port)),
    ("device", |a, b| natural(&a.device, &b.device)),
    ("netns", |a, b| natural(&a.netns, &b.netns)),
    ("response", |a, b| a.response.name().cmp(b.response.name())),
    // A flow without a limit may be the fastest of all.
    ("rate_bytes_per_s", |a, b| {
        let rate = |row: &FlowRow| (row.rate_bytes_per_s != 0, Reverse(row.rate_bytes_per_s));
        rate(a).cmp(&rate(b))
    }),
    ("ipd_packet_times", |a, b| {
        b.ipd_packet_times.total_cmp(&a.ipd_packet_times)
    }),
    ("marked_packets", |a, b| {
        b.marked_packets.cmp(&a.marked_packets)
    }),
    ("acked_packets", |a, b| {
        b.acked_packets.cmp(&a.acked_packets)
    }),
    ("enforcement", |a, b| {
        natural(&a.enforcement, &b.enforcement)
    }),
    ("pinned", |a, b| b.pinned.cmp(&a.pinned)),
    ("idle_ms", |a, b| a.idle_ms.cmp(&b.idle_ms)),
];

/// Ends of keys that say a unit; a key may be given without.
const UNITS: [&str; 4] = ["_packets", "_bytes_per_s", "_packet_times", "_ms"];

fn find_key<T>(key: &str, keys: &[(&str, Order<T>)]) -> Result<Order<T>, SelectError> {
    let without_unit = |name: &str| {
        UNITS
            .iter()
            .any(|unit| name.strip_suffix(unit).is_some_and(|short| short == key))
    };
    keys.iter()
        .find(|(name, _)| *name == key || without_unit(name))
        .map(|(_, order)| *order)
        .ok_or_else(|| {
            let names: Vec<_> = keys.iter().map(|(name, _)| *name).collect();
            SelectError(format!(
                "cannot sort by `{key}`: {}",
                suggestion(key, &names)
            ))
        })
}

/// Compares names as people count: `a2` before `a10`.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a_rest, mut b_rest) = (a, b);
    loop {
        let ((a_text, a_number), (b_text, b_number)) = (head(&mut a_rest), head(&mut b_rest));
        let by_part = a_text.cmp(b_text).then_with(|| {
            let (a, b) = (
                a_number.trim_start_matches('0'),
                b_number.trim_start_matches('0'),
            );
            a.len().cmp(&b.len()).then_with(|| a.cmp(b))
        });
        if by_part != Ordering::Equal {
            return by_part;
        }
        if a_rest.is_empty() || b_rest.is_empty() {
            return a_rest.len().cmp(&b_rest.len()).then_with(|| a.cmp(b));
        }
    }
}

/// Takes the leading text without digits and the digits that follow it.
fn head<'a>(rest: &mut &'a str) -> (&'a str, &'a str) {
    let is_digit = |c: char| c.is_ascii_digit();
    let (text, tail) = rest.split_at(rest.find(is_digit).unwrap_or(rest.len()));
    let end = tail.find(|c| !is_digit(c)).unwrap_or(tail.len());
    let (number, tail) = tail.split_at(end);
    *rest = tail;
    (text, number)
}

/// Puts ports in order: by bridge and port, or first by `key`, a key of the JSON form with or
/// without its unit. Names ascend, counts descend.
///
/// # Errors
///
/// When there is no such key; the message names the nearest, or all.
pub fn sort_ports(rows: &mut [PortRow], key: Option<&str>) -> Result<(), SelectError> {
    let first = key.map(|key| find_key(key, &PORT_KEYS)).transpose()?;
    rows.sort_by(|a, b| {
        first
            .map_or(Ordering::Equal, |order| order(a, b))
            .then_with(|| natural(&a.bridge, &b.bridge))
            .then_with(|| natural(&a.port, &b.port))
    });
    Ok(())
}

/// Puts flows in order: by namespace, source and destination, or first by `key`, a key of the JSON
/// form with or without its unit. Names ascend, counts descend; flows that are not limited count
/// as the fastest, flows that were active last come first.
///
/// # Errors
///
/// When there is no such key; the message names the nearest, or all.
pub fn sort_flows(rows: &mut [FlowRow], key: Option<&str>) -> Result<(), SelectError> {
    let first = key.map(|key| find_key(key, &FLOW_KEYS)).transpose()?;
    rows.sort_by(|a, b| {
        first
            .map_or(Ordering::Equal, |order| order(a, b))
            .then_with(|| natural(&a.netns, &b.netns))
            .then_with(|| {
                (a.src, a.src_port, a.dst, a.dst_port).cmp(&(b.src, b.src_port, b.dst, b.dst_port))
            })
    });
    Ok(())
}

/// Reads pairs of words such as `dev eth0 src 10.0.0.1` and hands each to `set`.
fn read_pairs<'a>(
    words: impl IntoIterator<Item = &'a str>,
    names: &[&str],
    mut set: impl FnMut(&str, &'a str) -> Result<(), SelectError>,
) -> Result<(), SelectError> {
    let mut words = words.into_iter();
    let mut seen = Vec::new();
    while let Some(name) = words.next() {
        if !names.contains(&name) {
            let hint = suggestion(name, names);
            return Err(SelectError(format!("cannot select by `{name}`: {hint}")));
        }
        if seen.contains(&name) {
            return Err(SelectError(format!("`{name}` is given twice")));
        }
        seen.push(name);
        let value = words
            .next()
            .ok_or_else(|| SelectError(format!("a value is missing after `{name}`")))?;
        set(name, value)?;
    }
    Ok(())
}

/// Which ports to show: `dev X`, `bridge X`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortFilter {
    /// Only this port.
    pub dev: Option<String>,
    /// Only ports of this bridge.
    pub bridge: Option<String>,
}

impl PortFilter {
    /// Reads a filter from the words of a command line.
    ///
    /// # Errors
    ///
    /// On unknown words, a word given twice, and a missing value.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, SelectError> {
        let mut filter = Self::default();
        read_pairs(words, &["dev", "bridge"], |name, value| {
            match name {
                "dev" => filter.dev = Some(value.to_owned()),
                _ => filter.bridge = Some(value.to_owned()),
            }
            Ok(())
        })?;
        Ok(filter)
    }

    /// Whether the port is to be shown.
    pub fn matches(&self, row: &PortRow) -> bool {
        is_or_any(&self.dev, &row.port) && is_or_any(&self.bridge, &row.bridge)
    }
}

fn is_or_any(wanted: &Option<String>, value: &str) -> bool {
    wanted.as_deref().is_none_or(|wanted| wanted == value)
}

/// An address, or all addresses with a prefix, with or without a port: `10.0.0.1`,
/// `10.0.0.0/24`, `10.0.0.1:5000`, `[fd00::1]:5000`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressFilter {
    address: IpAddr,
    prefix: u8,
    port: Option<u16>,
}

impl AddressFilter {
    fn matches(&self, address: IpAddr, port: u16) -> bool {
        let same = |a: u128, b: u128, bits: u8| {
            let different = (a ^ b)
                .checked_shr(u32::from(bits - self.prefix))
                .unwrap_or(0);
            different == 0
        };
        let address = match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
            (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
            _ => false,
        };
        address && self.port.is_none_or(|wanted| wanted == port)
    }
}

impl FromStr for AddressFilter {
    type Err = SelectError;

    fn from_str(text: &str) -> Result<Self, SelectError> {
        let bits = |address: IpAddr| if address.is_ipv4() { 32 } else { 128 };
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self {
                address,
                prefix: bits(address),
                port: None,
            });
        }
        if let Ok(socket) = text.parse::<SocketAddr>() {
            let (address, port) = (socket.ip(), Some(socket.port()));
            return Ok(Self {
                address,
                prefix: bits(address),
                port,
            });
        }
        text.split_once('/')
            .and_then(|(address, prefix)| {
                let address = address.parse().ok()?;
                let prefix = prefix
                    .parse()
                    .ok()
                    .filter(|prefix| *prefix <= bits(address))?;
                Some(Self {
                    address,
                    prefix,
                    port: None,
                })
            })
            .ok_or_else(|| {
                SelectError(format!(
                    "`{text}` is not an address: accepted are 10.0.0.1, 10.0.0.0/24, \
                     10.0.0.1:5000 and the same for IPv6, such as [fd00::1]:5000"
                ))
            })
    }
}

impl fmt::Display for AddressFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}", SocketAddr::new(self.address, port)),
            None => write!(f, "{}/{}", self.address, self.prefix),
        }
    }
}

/// Which flows to show: `dev X`, `src A`, `dst A`, `netns N`, `protocol P`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowFilter {
    /// Only flows that leave through this device.
    pub dev: Option<String>,
    /// Only flows from here.
    pub src: Option<AddressFilter>,
    /// Only flows to here.
    pub dst: Option<AddressFilter>,
    /// Only flows of this network namespace.
    pub netns: Option<String>,
    /// Only flows of this transport protocol.
    pub protocol: Option<String>,
}

impl FlowFilter {
    /// Reads a filter from the words of a command line.
    ///
    /// # Errors
    ///
    /// On unknown words, a word given twice, a missing value, and bad addresses.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, SelectError> {
        let mut filter = Self::default();
        let names = ["dev", "src", "dst", "netns", "protocol"];
        read_pairs(words, &names, |name, value| {
            match name {
                "dev" => filter.dev = Some(value.to_owned()),
                "src" => filter.src = Some(value.parse()?),
                "dst" => filter.dst = Some(value.parse()?),
                "netns" => filter.netns = Some(value.to_owned()),
                _ => filter.protocol = Some(value.to_ascii_lowercase()),
            }
            Ok(())
        })?;
        Ok(filter)
    }

    /// Whether the flow is to be shown.
    pub fn matches(&self, row: &FlowRow) -> bool {
        is_or_any(&self.dev, &row.device)
            && is_or_any(&self.netns, &row.netns)
            && is_or_any(&self.protocol, &row.protocol)
            && self
                .src
                .is_none_or(|src| src.matches(row.src, row.src_port))
            && self
                .dst
                .is_none_or(|dst| dst.matches(row.dst, row.dst_port))
    }
}

fn or_dash(text: &str) -> &str {
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
        "marking",
        "wait",
        "to\nmark",
        "in\nbuf",
        "marked",
        "not\nECT",
        "trig\nin",
        "trig\nout",
        "drops",
    ];
    let mut table = plain_table(&header, &[0, 1, 2]);
    for row in rows {
        table.add_row([
            row.bridge.clone(),
            row.port.clone(),
            row.marking.to_string(),
            short_count(row.waiting_packets),
            short_count(row.to_mark_packets),
            short_count(row.occupancy_packets),
            short_count(row.marked_packets),
            short_count(row.unmarkable_packets),
            short_count(row.input_triggers),
            short_count(row.output_triggers),
            short_count(row.dropped_packets),
        ]);
    }
    let mut text = table_text(&table);
    if rows.iter().any(|row| row.attached == AttachedBy::Clsact) {
        text.push_str("attached by clsact: this kernel has no tcx\n");
    }
    text
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
}

/// An address out of a flow's key: IPv4 stands there as `::ffff:a.b.c.d`.
pub fn address(bytes: &[u8; 16]) -> IpAddr {
    std::net::Ipv6Addr::from(*bytes).to_canonical()
}

fn idle_text(ms: u64) -> String {
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
    let header = [
        "flow", "device", "netns", "resp", "rate", "ipd", "marked", "acked", "by", "idle",
    ];
    let mut table = plain_table(&header, &[0, 1, 2, 3, 8]);
    for row in rows {
        // A pinned rate is set by hand: no function moves it.
        let response = if row.pinned {
            "pinned"
        } else {
            row.response.name()
        };
        table.add_row([
            row.name(),
            or_dash(&row.device).to_owned(),
            or_dash(&row.netns).to_owned(),
            if response == "none" { "-" } else { response }.to_owned(),
            rate_text(row.rate_bytes_per_s),
            format!("{:.1}", row.ipd_packet_times),
            short_count(row.marked_packets),
            short_count(row.acked_packets),
            or_dash(&row.enforcement).to_owned(),
            idle_text(row.idle_ms),
        ]);
    }
    table_text(&table)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Section 7 of the design, word for word.
    const PORT_CONTRACT: &str = r#"[{"bridge": "brb", "port": "root", "ifindex": 7, "marking": "input-output", "waiting_packets": 0, "to_mark_packets": 0,
      "occupancy_packets": 0, "marked_packets": 0, "unmarkable_packets": 0, "input_triggers": 0, "output_triggers": 0, "dropped_packets": 0}]"#;
    const FLOW_CONTRACT: &str = r#"[{"src": "10.0.0.1", "dst": "10.0.1.1", "protocol": "udp", "src_port": 1, "dst_port": 2, "device": "eth0", "netns": "a1",
      "response": "lipd", "rate_bytes_per_s": 0, "ipd_packet_times": 20.0, "marked_packets": 0, "acked_packets": 0,
      "enforcement": "htb", "pinned": false, "idle_ms": 0}]"#;

    fn squeezed(json: &str) -> String {
        json.split_whitespace().collect()
    }

    fn ports() -> Vec<PortRow> {
        serde_json::from_str(PORT_CONTRACT).unwrap()
    }

    fn flows() -> Vec<FlowRow> {
        serde_json::from_str(FLOW_CONTRACT).unwrap()
    }

    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split_whitespace()
    }

    #[test]
    fn json_is_that_of_the_contract() {
        // What came after the contract was written stands behind it.
        let text = serde_json::to_string(&ports()).unwrap();
        let contract = squeezed(PORT_CONTRACT);
        assert_eq!(
            text,
            contract.replace("}]", r#","attached":"tcx"}]"#),
            "ports"
        );
        let text = serde_json::to_string(&flows()).unwrap();
        assert_eq!(text, squeezed(FLOW_CONTRACT), "flows");
    }

    #[test]
    fn every_json_key_sorts() {
        fn keys(json: &str) -> Vec<String> {
            let rows: Vec<serde_json::Map<String, serde_json::Value>> =
                serde_json::from_str(json).unwrap();
            rows[0].keys().cloned().collect()
        }
        assert_eq!(keys(PORT_CONTRACT).len(), PORT_KEYS.len());
        for key in keys(PORT_CONTRACT) {
            sort_ports(&mut ports(), Some(&key)).unwrap();
        }
        assert_eq!(keys(FLOW_CONTRACT).len(), FLOW_KEYS.len());
        for key in keys(FLOW_CONTRACT) {
            sort_flows(&mut flows(), Some(&key)).unwrap();
        }
    }

    #[test]
    fn ports_sort_by_name_and_by_count() {
        let port = |port: &str, marked_packets| PortRow {
            port: port.to_owned(),
            marked_packets,
            ..ports().remove(0)
        };
        let mut rows = vec![port("a10", 5), port("a2", 5), port("b1", 9)];
        let names = |rows: &[PortRow]| {
            rows.iter()
                .map(|row| row.port.clone())
                .collect::<Vec<_>>()
                .join(" ")
        };
        sort_ports(&mut rows, None).unwrap();
        assert_eq!(names(&rows), "a2 a10 b1");
        sort_ports(&mut rows, Some("marked")).unwrap();
        assert_eq!(names(&rows), "b1 a2 a10");
    }

    #[test]
    fn unlimited_flows_sort_as_the_fastest() {
        let flow = |src_port, rate_bytes_per_s| FlowRow {
            src_port,
            rate_bytes_per_s,
            ..flows().remove(0)
        };
        let mut rows = vec![flow(1, 5), flow(2, 0), flow(3, 9)];
        sort_flows(&mut rows, Some("rate")).unwrap();
        assert_eq!(
            rows.iter().map(|row| row.src_port).collect::<Vec<_>>(),
            [2, 3, 1]
        );
    }

    #[test]
    fn unknown_sort_keys_are_refused_with_the_valid_ones() {
        assert_eq!(
            sort_ports(&mut ports(), Some("marked_packet"))
                .unwrap_err()
                .to_string(),
            "cannot sort by `marked_packet`: did you mean `marked_packets`?"
        );
        assert_eq!(
            sort_flows(&mut flows(), Some("color"))
                .unwrap_err()
                .to_string(),
            "cannot sort by `color`: allowed are src, dst, protocol, src_port, dst_port, device, \
             netns, response, rate_bytes_per_s, ipd_packet_times, marked_packets, acked_packets, \
             enforcement, pinned, idle_ms"
        );
    }

    #[test]
    fn names_compare_as_people_count() {
        for (a, b) in [
            ("a2", "a10"),
            ("a", "a1"),
            ("a1b2", "a1b10"),
            ("a1", "b0"),
            ("a01", "a1"),
        ] {
            assert_eq!(natural(a, b), Ordering::Less, "{a} {b}");
            assert_eq!(natural(b, a), Ordering::Greater, "{a} {b}");
        }
        assert_eq!(natural("eth0", "eth0"), Ordering::Equal);
    }

    #[test]
    fn flows_are_filtered() {
        let row = &flows()[0];
        for (filter, expected) in [
            ("", true),
            ("dev eth0", true),
            ("dev eth1", false),
            ("src 10.0.0.1", true),
            ("src 10.0.0.2", false),
            ("src 10.0.0.0/24 dst 10.0.1.1:2", true),
            ("dst 10.0.1.1:3", false),
            ("src 10.0.0.128/25", false),
            ("src 0.0.0.0/0", true),
            ("src ::/0", false),
            ("netns a1 protocol UDP", true),
            ("netns a2", false),
            ("protocol tcp", false),
        ] {
            let filter = FlowFilter::parse(words(filter)).unwrap();
            assert_eq!(filter.matches(row), expected, "{filter:?}");
        }
        let v6 = FlowRow {
            src: "fd00::7".parse().unwrap(),
            ..row.clone()
        };
        for (filter, expected) in [
            ("src fd00::/64", true),
            ("src ::/0", true),
            ("src [fd00::7]:1", true),
            ("src fd01::/64", false),
            ("src 0.0.0.0/0", false),
        ] {
            assert_eq!(
                FlowFilter::parse(words(filter)).unwrap().matches(&v6),
                expected
            );
        }
    }

    #[test]
    fn ports_are_filtered() {
        let row = &ports()[0];
        for (filter, expected) in [
            ("", true),
            ("dev root", true),
            ("dev x", false),
            ("bridge brb dev root", true),
        ] {
            assert_eq!(
                PortFilter::parse(words(filter)).unwrap().matches(row),
                expected
            );
        }
    }

    #[test]
    fn bad_filters_are_refused() {
        for (filter, expected) in [
            (
                "device eth0",
                "cannot select by `device`: allowed are dev, src, dst, netns, protocol",
            ),
            (
                "protocl udp",
                "cannot select by `protocl`: did you mean `protocol`?",
            ),
            ("dev", "a value is missing after `dev`"),
            ("dev a dev b", "`dev` is given twice"),
            (
                "src 10.0.0.0/33",
                "`10.0.0.0/33` is not an address: accepted are 10.0.0.1, 10.0.0.0/24, \
                 10.0.0.1:5000 and the same for IPv6, such as [fd00::1]:5000",
            ),
        ] {
            assert_eq!(
                FlowFilter::parse(words(filter)).unwrap_err().to_string(),
                expected
            );
        }
    }

    #[test]
    fn counts_stay_short() {
        for (count, text) in [
            (0, "0"),
            (99_999, "99999"),
            (100_000, "100k"),
            (588_123, "588k"),
            (999_499, "999k"),
            (999_500, "1.00M"),
            (1_234_567, "1.23M"),
            (12_345_678, "12.3M"),
            (u64::MAX, "18.4E"),
        ] {
            assert_eq!(short_count(count), text);
        }
    }

    #[test]
    fn rates_in_tables_are_short_and_in_tc_syntax() {
        assert_eq!(rate_text(0), "-");
        assert_eq!(rate_text(12_500_000), "100mbit");
        assert_eq!(rate_text(195_312), "1.56mbit");
    }

    #[test]
    fn the_port_table_fits_80_columns() {
        let row = PortRow {
            waiting_packets: 128,
            to_mark_packets: 100,
            occupancy_packets: 1000,
            marked_packets: 1_234_567,
            unmarkable_packets: 1_234_567,
            input_triggers: 1_234_567,
            output_triggers: 1_234_567,
            dropped_packets: 588_123,
            attached: AttachedBy::Tcx,
            ..ports().remove(0)
        };
        let text = ports_table(&[row]);
        let expected = "\
bridge  port  marking       wait    to    in  marked    not   trig   trig  drops
                                  mark   buf            ECT     in    out
brb     root  input-output   128   100  1000   1.23M  1.23M  1.23M  1.23M   588k
";
        assert_eq!(text, expected);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        assert_eq!(ports_table(&[]), "no ports\n");
    }

    #[test]
    fn the_flow_table_shows_what_there_is() {
        let mut rows = flows();
        rows.push(FlowRow {
            src: "fd00::7".parse().unwrap(),
            dst: "fd00::8".parse().unwrap(),
            netns: String::new(),
            rate_bytes_per_s: 12_345_678,
            pinned: true,
            idle_ms: 12_345,
            ..rows[0].clone()
        });
        let expected = "\
flow                         device  netns  resp        rate   ipd  marked  acked  by   idle
10.0.0.1:1>10.0.1.1:2/udp    eth0    a1     lipd           -  20.0       0      0  htb   0ms
[fd00::7]:1>[fd00::8]:2/udp  eth0    -      pinned  98.8mbit  20.0       0      0  htb   12s
";
        assert_eq!(flows_table(&rows), expected);
        assert_eq!(flows_table(&[]), "no flows\n");
    }
}
