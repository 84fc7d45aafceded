//! Flow completion times, in the metrics of the literature.

use ecn_report::statistics::percentile;
use ecn_report::table::{Cell, Columns};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

use super::packet::{CROSSES, HELD};
use crate::engine::{NS, Time};

/// A finished flow.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Finished {
    /// Its number, in order of starts.
    pub id: u32,
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// Class of its data.
    pub priority: u8,
    /// Number of its report class.
    pub label: u16,
    /// Its payload.
    pub bytes: u64,
    /// When it started.
    pub start: Time,
    /// From its start until its last ACK arrived.
    pub time: Time,
    /// Its completion time over that in an idle network, at the rate that its application offers.
    pub slowdown: f64,
    /// ACKs that reported a congested port.
    pub marked: u32,
    /// ACKs that reported undetermined ports only (TCD).
    pub undetermined: u32,
    /// Union of the flags of its ACKs, about queues on its path ([`HELD`], [`CROSSES`]).
    pub flags: u8,
}

impl Finished {
    /// Whether it was held up by congestion that is not on its path (head-of-line blocking).
    ///
    /// Its packets met queues held up by pauses (or missing credits), and none that was long without being held up. TCD
    /// defines undetermined flows in the same way, by undetermined and congested ports; here no TCD is needed, as each
    /// queue's history since it was last empty is known.
    pub const fn is_victim(&self) -> bool {
        self.flags & (HELD | CROSSES) == HELD
    }
}

/// Columns of a table of flows.
pub const COLUMNS: &Columns = &[
    ("id", "number of the flow, by the order of the starts"),
    ("from", "number of the sending host"),
    ("to", "number of the receiving host"),
    (
        "bytes",
        "payload; of an unfinished flow, its acknowledged part",
    ),
    ("start_ns", "when it started, ns"),
    (
        "time_ns",
        "from its start until its last ACK arrived, ns; of an unfinished flow, until the end of the run",
    ),
    (
        "slowdown",
        "completion time over that in an idle network, at the rate that its application offers (`rate` of `[[flows]]`); null if unfinished",
    ),
    ("marked_acks", "ACKs that reported a congested port"),
    (
        "undetermined_acks",
        "ACKs that reported undetermined ports only (TCD)",
    ),
    (
        "head_of_line_victim",
        "1 if it was held up by congestion that is not on its path, else 0",
    ),
    ("priority", "class of its data"),
];

impl Finished {
    /// Its values under [`COLUMNS`].
    pub fn row(&self, is_finished: bool) -> Vec<Cell> {
        vec![
            self.id.into(),
            self.from.into(),
            self.to.into(),
            self.bytes.into(),
            (self.start / NS).into(),
            (self.time / NS).into(),
            is_finished.then_some(self.slowdown).into(),
            self.marked.into(),
            self.undetermined.into(),
            u32::from(self.is_victim()).into(),
            u32::from(self.priority).into(),
        ]
    }
}

/// Slowdowns of flows: completion time over that of the same flow alone in an idle network, at the rate that its
/// application offers. Percentiles are of the nearest rank: the median of an even number is the lower of the middle two.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Slowdowns {
    /// Median, of an even number the lower of the middle two; null if no flow finished.
    pub p50: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// By size: up to 20 groups with about equal numbers of flows; flows of one size are in one group, and a small
    /// remainder joins the last group.
    pub by_size: Vec<OfSize>,
    /// By class of data, if flows of several classes finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_priority: Vec<OfPriority>,
}

/// Slowdowns of the flows of some sizes.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct OfSize {
    /// Smallest payload, bytes.
    pub from_bytes: u64,
    /// Largest payload, bytes.
    pub to_bytes: u64,
    /// Number of flows.
    pub flows: u64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Slowdowns of the flows of a class.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct OfPriority {
    /// PFC's priority, or virtual lane.
    pub priority: u8,
    /// Number of flows.
    pub flows: u64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Maximum number of groups by size.
const GROUPS: usize = 20;

fn sorted<'a>(flows: impl Iterator<Item = &'a Finished>) -> Vec<f64> {
    let mut slowdowns: Vec<f64> = flows.map(|flow| flow.slowdown).collect();
    slowdowns.sort_by(f64::total_cmp);
    slowdowns
}

/// Median, 95th and 99th percentile of sorted values; zeros without values.
fn of_group(sorted: &[f64]) -> [f64; 3] {
    [50, 95, 99].map(|percent| percentile(sorted, percent).unwrap_or_default())
}

fn by_priority(flows: &[Finished]) -> Vec<OfPriority> {
    let group = |priority| {
        let values = sorted(flows.iter().filter(|flow| flow.priority == priority));
        let [p50, p95, p99] = of_group(&values);
        OfPriority {
            priority,
            flows: values.len() as u64,
            p50,
            p95,
            p99,
        }
    };
    let priorities: BTreeSet<u8> = flows.iter().map(|flow| flow.priority).collect();
    if priorities.len() > 1 {
        priorities.into_iter().map(group).collect()
    } else {
        Vec::new()
    }
}

/// Percentiles overall, by size and by class; sorts the flows by size.
pub fn slowdowns(flows: &mut [Finished]) -> Slowdowns {
    flows.sort_by_key(|flow| flow.bytes);
    let all = sorted(flows.iter());
    let mut by_size = Vec::new();
    let mut rest = &*flows;
    let each = flows.len().div_ceil(GROUPS).max(1);
    while !rest.is_empty() {
        let largest = rest[each.min(rest.len()) - 1].bytes;
        let mut end = rest.partition_point(|flow| flow.bytes <= largest);
        if rest.len() - end < each / 2 {
            // Percentiles of few values would be insignificant.
            end = rest.len();
        }
        let (group, others) = rest.split_at(end);
        rest = others;
        let [p50, p95, p99] = of_group(&sorted(group.iter()));
        by_size.push(OfSize {
            from_bytes: group[0].bytes,
            to_bytes: group[end - 1].bytes,
            flows: group.len() as u64,
            p50,
            p95,
            p99,
        });
    }
    Slowdowns {
        p50: percentile(&all, 50),
        p95: percentile(&all, 95),
        p99: percentile(&all, 99),
        by_size,
        by_priority: by_priority(flows),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(bytes: u64, slowdown: f64) -> Finished {
        Finished {
            bytes,
            slowdown,
            ..Finished::default()
        }
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut flows: Vec<_> = (1..=200).map(|n| flow(201 - n, n as f64)).collect();
        let found = slowdowns(&mut flows);
        assert_eq!(
            (found.p50, found.p95, found.p99),
            (Some(100.0), Some(190.0), Some(198.0))
        );
        assert_eq!(found.by_size.len(), 20);
        assert!(found.by_size.iter().all(|group| group.flows == 10));
        // The smallest flows are the slowest here.
        let first = &found.by_size[0];
        assert_eq!(
            (first.from_bytes, first.to_bytes, first.p50),
            (1, 10, 195.0)
        );
    }

    #[test]
    fn few_flows_are_no_group() {
        // 148 of one size, then 12 groups of 21, and 4 left over.
        let mut flows: Vec<_> = (0..404).map(|n| flow(n.max(147), 1.0)).collect();
        let found = slowdowns(&mut flows).by_size;
        assert_eq!(found.iter().map(|group| group.flows).sum::<u64>(), 404);
        assert_eq!((found.len(), found[0].flows, found[1].flows), (13, 148, 21));
        assert_eq!((found[12].flows, found[12].to_bytes), (25, 403));
    }

    #[test]
    fn classes_have_their_own() {
        let of = |n: u8| Finished {
            priority: n % 3 * 2,
            ..flow(7, f64::from(n))
        };
        let mut flows: Vec<_> = (0..30).map(of).collect();
        let found = slowdowns(&mut flows).by_priority;
        let group = |of: &OfPriority| (of.priority, of.flows, of.p50, of.p99);
        let found: Vec<_> = found.iter().map(group).collect();
        let expected = [
            (0, 10, 12.0, 27.0),
            (2, 10, 13.0, 28.0),
            (4, 10, 14.0, 29.0),
        ];
        assert_eq!(found, expected);
        flows.retain(|flow| flow.priority == 2);
        assert!(slowdowns(&mut flows).by_priority.is_empty());
    }

    #[test]
    fn one_size_is_one_group_and_no_flow_none() {
        let mut flows: Vec<_> = (0..100).map(|n| flow(7, n as f64)).collect();
        assert_eq!(slowdowns(&mut flows).by_size.len(), 1);
        assert_eq!(slowdowns(&mut []), Slowdowns::default());
    }
}
