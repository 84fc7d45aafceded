//! Sorting of rows.

use std::cmp::{Ordering, Reverse};

use super::{FlowRow, PortRow, SelectError};
use crate::config::{Marking, suggestion};

type Order<T> = fn(&T, &T) -> Ordering;

/// Names and identifying numbers ascend, counts descend.
pub(super) const PORT_KEYS: [(&str, Order<PortRow>); 21] = [
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
    ("dropped_unmarkable_packets", |a, b| {
        b.dropped_unmarkable_packets
            .cmp(&a.dropped_unmarkable_packets)
    }),
    ("netns", |a, b| natural(&a.netns, &b.netns)),
    ("arrived_packets", |a, b| {
        b.arrived_packets.cmp(&a.arrived_packets)
    }),
    ("sent_messages", |a, b| {
        b.messages.sent_messages.cmp(&a.messages.sent_messages)
    }),
    ("held_messages", |a, b| {
        b.messages.held_messages.cmp(&a.messages.held_messages)
    }),
    ("congestion_point", |a, b| {
        a.messages
            .congestion_point
            .cmp(&b.messages.congestion_point)
    }),
    ("equilibrium_packets", |a, b| {
        b.messages
            .equilibrium_packets
            .cmp(&a.messages.equilibrium_packets)
    }),
    ("sampled_packets", |a, b| {
        b.messages.sampled_packets.cmp(&a.messages.sampled_packets)
    }),
    ("sampled_feedback", |a, b| {
        b.messages
            .sampled_feedback
            .cmp(&a.messages.sampled_feedback)
    }),
];

pub(super) const FLOW_KEYS: [(&str, Order<FlowRow>); 19] = [
    ("src", |a, b| a.src.cmp(&b.src)),
    ("dst", |a, b| a.dst.cmp(&b.dst)),
    ("protocol", |a, b| natural(&a.protocol, &b.protocol)),
    ("src_port", |a, b| a.src_port.cmp(&b.src_port)),
    ("dst_port", |a, b| a.dst_port.cmp(&b.dst_port)),
    ("device", |a, b| natural(&a.device, &b.device)),
    ("netns", |a, b| natural(&a.netns, &b.netns)),
    ("response", |a, b| a.response.name().cmp(b.response.name())),
    // 0 is unknown: it may be the fastest.
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
    ("sent_bytes", |a, b| b.sent_bytes.cmp(&a.sent_bytes)),
    ("limiter", |a, b| {
        let name = |row: &FlowRow| row.limiter.map(Marking::name);
        name(a).cmp(&name(b))
    }),
    ("congestion_point", |a, b| {
        a.congestion_point.cmp(&b.congestion_point)
    }),
    ("target_rate_bytes_per_s", |a, b| {
        b.target_rate_bytes_per_s.cmp(&a.target_rate_bytes_per_s)
    }),
];

/// Suffixes of keys that state a unit, which may be omitted.
const UNITS: [&str; 6] = [
    "_packets",
    "_messages",
    "_bytes",
    "_bytes_per_s",
    "_packet_times",
    "_ms",
];

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

/// Compares names in natural order: `a2` before `a10`.
pub(in crate::cli) fn natural(a: &str, b: &str) -> Ordering {
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

/// Sorts ports: by bridge and port, or first by `key`, a key of the JSON form with or
/// without its unit. Names ascend, counts descend.
///
/// # Errors
///
/// Unknown key; the message names the nearest, or all.
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

/// Sorts flows: by namespace, source and destination, or first by `key`, a key of the JSON form with or without its
/// unit. Names ascend, counts descend; flows of unknown rate count as the fastest, and the most recently active flows
/// are first.
///
/// # Errors
///
/// Unknown key; the message names the nearest, or all.
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
