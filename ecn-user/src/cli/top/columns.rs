//! Columns of the tables, and which of them fit: numbers are never cut, less useful columns are omitted.

use std::cmp::Ordering;

use ecn_report::number::short_count;
use ecn_report::terminal::{plain_table, table_text};

use super::rates::{FlowRates, PortRates};
use crate::cli::table::{idle_text, natural, or_dash, rate_text};

/// Spaces between two columns.
pub(super) const GAP: usize = 2;
/// Minimum width to which a name is cut.
const NARROWEST_NAME: usize = 8;

/// How the rows are sorted by a column.
pub(super) enum Order<T> {
    /// By its text, ascending.
    Text,
    /// By a number, descending; what was not measured is last.
    Number(fn(&T) -> Option<f64>),
}

/// A column.
pub(super) struct Column<T> {
    pub name: &'static str,
    /// Columns with the highest rank are omitted first, those with rank 0 never.
    pub rank: u8,
    /// Empty if the column does not apply; a column that is empty in all rows is omitted.
    pub cell: fn(&T) -> String,
    pub order: Order<T>,
}

impl<T> Column<T> {
    /// Whether it contains names, which are aligned left, not numbers.
    pub(super) fn is_text(&self) -> bool {
        matches!(self.order, Order::Text)
    }

    fn compare(&self, a: &T, b: &T) -> Ordering {
        match self.order {
            Order::Text => natural(&(self.cell)(a), &(self.cell)(b)),
            Order::Number(of) => match (of(a), of(b)) {
                (Some(a), Some(b)) => b.total_cmp(&a),
                (a, b) => b.is_some().cmp(&a.is_some()),
            },
        }
    }
}

fn count(rate: Option<u64>) -> String {
    rate.map_or_else(|| "-".to_owned(), short_count)
}

fn number(rate: Option<u64>) -> Option<f64> {
    rate.map(|rate| rate as f64)
}

/// Columns of ports.
pub(super) const PORTS: [Column<PortRates>; 11] = [
    Column {
        name: "port",
        rank: 0,
        cell: |port| port.row.port.clone(),
        order: Order::Text,
    },
    Column {
        name: "bridge",
        rank: 3,
        cell: |port| port.row.bridge.clone(),
        order: Order::Text,
    },
    Column {
        name: "netns",
        rank: 5,
        cell: |port| or_dash(&port.row.netns).to_owned(),
        order: Order::Text,
    },
    Column {
        name: "marking",
        rank: 8,
        cell: |port| port.row.marking.to_string(),
        order: Order::Text,
    },
    Column {
        name: "packets/s",
        rank: 1,
        cell: |port| count(port.arrived_packets_per_s),
        order: Order::Number(|port| number(port.arrived_packets_per_s)),
    },
    Column {
        name: "marks/s",
        rank: 0,
        cell: |port| count(port.marked_packets_per_s),
        order: Order::Number(|port| number(port.marked_packets_per_s)),
    },
    Column {
        name: "msgs/s",
        rank: 1,
        cell: |port| match port.row.messages.sent_messages {
            Some(_) => count(port.sent_messages_per_s),
            None => String::new(),
        },
        order: Order::Number(|port| number(port.sent_messages_per_s)),
    },
    Column {
        name: "drops/s",
        rank: 0,
        cell: |port| count(port.dropped_packets_per_s),
        order: Order::Number(|port| number(port.dropped_packets_per_s)),
    },
    Column {
        name: "wait",
        rank: 2,
        cell: |port| short_count(port.row.waiting_packets),
        order: Order::Number(|port| number(Some(port.row.waiting_packets))),
    },
    Column {
        name: "trig in/s",
        rank: 6,
        cell: |port| count(port.input_triggers_per_s),
        order: Order::Number(|port| number(port.input_triggers_per_s)),
    },
    Column {
        name: "trig out/s",
        rank: 7,
        cell: |port| count(port.output_triggers_per_s),
        order: Order::Number(|port| number(port.output_triggers_per_s)),
    },
];

/// Columns of flows.
pub(super) const FLOWS: [Column<FlowRates>; 11] = [
    Column {
        name: "flow",
        rank: 0,
        cell: |flow| flow.row.name(),
        order: Order::Text,
    },
    Column {
        name: "allowed",
        rank: 0,
        cell: |flow| rate_text(flow.row.rate_bytes_per_s),
        // 0 is unknown: it may be the fastest.
        order: Order::Number(|flow| match flow.row.rate_bytes_per_s {
            0 => Some(f64::INFINITY),
            rate => number(Some(rate)),
        }),
    },
    Column {
        name: "offered",
        rank: 0,
        cell: |flow| offered_text(flow.sent_bytes_per_s),
        order: Order::Number(|flow| number(flow.sent_bytes_per_s)),
    },
    Column {
        name: "marks/s",
        rank: 1,
        cell: |flow| count(flow.marked_packets_per_s),
        order: Order::Number(|flow| number(flow.marked_packets_per_s)),
    },
    Column {
        name: "acked/s",
        rank: 2,
        cell: |flow| count(flow.acked_packets_per_s),
        order: Order::Number(|flow| number(flow.acked_packets_per_s)),
    },
    Column {
        name: "idle",
        rank: 5,
        cell: |flow| idle_text(flow.row.idle_ms),
        // The most recently active first.
        order: Order::Number(|flow| Some(-(flow.row.idle_ms as f64))),
    },
    Column {
        name: "ipd",
        rank: 8,
        cell: |flow| format!("{:.1}", flow.row.ipd_packet_times),
        order: Order::Number(|flow| Some(flow.row.ipd_packet_times)),
    },
    Column {
        name: "netns",
        rank: 3,
        cell: |flow| or_dash(&flow.row.netns).to_owned(),
        order: Order::Text,
    },
    Column {
        name: "device",
        rank: 4,
        cell: |flow| or_dash(&flow.row.device).to_owned(),
        order: Order::Text,
    },
    Column {
        name: "resp",
        rank: 6,
        cell: |flow| flow.row.response_text().to_owned(),
        order: Order::Text,
    },
    Column {
        name: "by",
        rank: 7,
        cell: |flow| or_dash(&flow.row.enforcement).to_owned(),
        order: Order::Text,
    },
];

/// The rate at which a flow sends, before its limit; unlike in [`rate_text`], 0 is a rate.
pub(super) fn offered_text(bytes_per_s: Option<u64>) -> String {
    match bytes_per_s {
        None => "-".to_owned(),
        Some(0) => "0bit".to_owned(),
        Some(rate) => rate_text(rate),
    }
}

/// A visible column.
pub(super) struct Shown {
    /// Index among all columns.
    pub index: usize,
    pub width: usize,
}

/// The columns that fit into `width` characters. If those with rank 0 are too wide, the name in the first is cut.
pub(super) fn fit<T>(columns: &[Column<T>], rows: &[&T], width: usize) -> Vec<Shown> {
    let widest = |column: &Column<T>| {
        let cells = rows.iter().map(|row| (column.cell)(row).chars().count());
        // One more for the sign of the sort column.
        cells.chain([column.name.len() + 1]).max().unwrap_or(0)
    };
    let is_used = |column: &Column<T>| rows.iter().any(|row| !(column.cell)(row).is_empty());
    let mut shown: Vec<Shown> = columns
        .iter()
        .enumerate()
        .filter(|(_, column)| rows.is_empty() || is_used(column))
        .map(|(index, column)| Shown {
            index,
            width: widest(column),
        })
        .collect();
    loop {
        let all = shown.iter().map(|column| column.width + GAP).sum::<usize>();
        let excess = all.saturating_sub(GAP).saturating_sub(width);
        if excess == 0 {
            return shown;
        }
        let last = (0..shown.len()).max_by_key(|at| columns[shown[*at].index].rank);
        match last.filter(|at| columns[shown[*at].index].rank > 0) {
            Some(at) => {
                shown.remove(at);
            }
            None => {
                if let Some(name) = shown.first_mut() {
                    let left = name.width.saturating_sub(excess);
                    name.width = left.max(NARROWEST_NAME.min(name.width));
                }
                return shown;
            }
        }
    }
}

/// The text, or its beginning and `…`.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(width.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// Sorts rows by a column; the order of equal rows does not change.
pub(super) fn sort<T>(rows: &mut [&T], by: Option<&Column<T>>, reverse: bool) {
    if let Some(column) = by {
        rows.sort_by(|a, b| column.compare(a, b));
    }
    if reverse {
        rows.reverse();
    }
}

/// The rows as a text table for `width` characters.
pub(super) fn table<T>(columns: &[Column<T>], rows: &[&T], width: usize) -> String {
    let shown = fit(columns, rows, width);
    let names: Vec<_> = shown.iter().map(|of| columns[of.index].name).collect();
    let is_text = |at: &usize| columns[shown[*at].index].is_text();
    let text: Vec<_> = (0..shown.len()).filter(is_text).collect();
    let mut table = plain_table(&names, &text);
    for row in rows {
        table.add_row(
            shown
                .iter()
                .map(|of| cut(&(columns[of.index].cell)(row), of.width)),
        );
    }
    table_text(&table)
}

impl PortRates {
    /// Whether one of its names contains the text.
    pub(crate) fn matches(&self, filter: &str) -> bool {
        let row = &self.row;
        [&row.port, &row.bridge, &row.netns]
            .iter()
            .any(|name| name.contains(filter))
    }
}

impl FlowRates {
    /// Whether one of its names contains the text.
    pub(crate) fn matches(&self, filter: &str) -> bool {
        let row = &self.row;
        row.name().contains(filter)
            || [&row.device, &row.netns]
                .iter()
                .any(|name| name.contains(filter))
    }
}
