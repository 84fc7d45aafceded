//! Columns of the tables, and which of them fit: numbers are never cut, columns of less use are left out.

use std::cmp::Ordering;

use super::rates::{FlowRates, PortRates};
use crate::cli::table::{
    idle_text, natural, or_dash, plain_table, rate_text, short_count, table_text,
};

/// Between two columns.
pub(super) const GAP: usize = 2;
/// A name is cut to no less than this.
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
    /// The highest is left out first; columns of 0 stay.
    pub rank: u8,
    /// Empty where there can be none; a column that is empty everywhere is left out.
    pub cell: fn(&T) -> String,
    pub order: Order<T>,
}

impl<T> Column<T> {
    /// Names stand on the left, numbers on the right.
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

/// Of ports.
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

/// Of flows.
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
        // Without a limit it may be the fastest of all.
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
        // Those that were active last come first.
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

/// The rate at which a flow sends, before its limit: 0 is one.
pub(super) fn offered_text(bytes_per_s: Option<u64>) -> String {
    match bytes_per_s {
        None => "-".to_owned(),
        Some(0) => "0bit".to_owned(),
        Some(rate) => rate_text(rate),
    }
}

/// A column that is shown.
pub(super) struct Shown {
    /// In the table of all columns.
    pub index: usize,
    pub width: usize,
}

/// The columns that fit into `width` characters. If the last ones that stay are too wide, the name in the first is cut.
pub(super) fn fit<T>(columns: &[Column<T>], rows: &[&T], width: usize) -> Vec<Shown> {
    let widest = |column: &Column<T>| {
        let cells = rows.iter().map(|row| (column.cell)(row).chars().count());
        // One more for the sign of what is sorted by.
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

/// Rows in the order of a column; those that are equal in it stay as they are.
pub(super) fn sort<T>(rows: &mut [&T], by: Option<&Column<T>>, reverse: bool) {
    if let Some(column) = by {
        rows.sort_by(|a, b| column.compare(a, b));
    }
    if reverse {
        rows.reverse();
    }
}

/// The rows as a table for people, in `width` characters.
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
    /// Whether its names contain the text.
    pub(crate) fn matches(&self, filter: &str) -> bool {
        let row = &self.row;
        [&row.port, &row.bridge, &row.netns]
            .iter()
            .any(|name| name.contains(filter))
    }
}

impl FlowRates {
    /// Whether its names contain the text.
    pub(crate) fn matches(&self, filter: &str) -> bool {
        let row = &self.row;
        row.name().contains(filter)
            || [&row.device, &row.netns]
                .iter()
                .any(|name| name.contains(filter))
    }
}
