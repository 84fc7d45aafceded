//! Flow completion times, as the field reports them.

use serde::{Deserialize, Serialize};

use super::packet::{CROSSES, HELD};
use crate::engine::Time;

/// A flow that is finished.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Finished {
    /// Its number, by the order of the starts.
    pub id: u32,
    /// From this host.
    pub from: u32,
    /// To this one.
    pub to: u32,
    /// Class of its data.
    pub priority: u8,
    /// Its payload.
    pub bytes: u64,
    /// When it started.
    pub start: Time,
    /// From its start until its last ACK was back.
    pub time: Time,
    /// That over what it takes in an idle network.
    pub slowdown: f64,
    /// ACKs that told of a congested port.
    pub marked: u32,
    /// Of undetermined ports only (TCD).
    pub undetermined: u32,
    /// What all its ACKs said of queues on its way ([`HELD`], [`CROSSES`]).
    pub flags: u8,
}

impl Finished {
    /// Was it held up by congestion that is not on its way (head-of-line blocking)?
    ///
    /// Its packets met queues that pauses (or missing credits) held up, and none that was long though nothing held it up.
    /// With TCD the same is said of undetermined and congestion ports (tcd.md, section 1: an undetermined flow);
    /// this is known without it, from each queue since it began.
    pub const fn is_victim(&self) -> bool {
        self.flags & (HELD | CROSSES) == HELD
    }
}

/// Slowdowns of flows: completion time over that of the same flow alone in an idle network.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slowdowns {
    /// Median; none if no flow is finished.
    pub p50: Option<f64>,
    /// 95th percentile.
    pub p95: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// By size: up to 20 groups with about as many flows each; flows of one size are in one group, and
    /// few flows are in none of their own.
    pub by_size: Vec<OfSize>,
}

/// Slowdowns of the flows of some sizes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OfSize {
    /// Smallest, bytes of payload.
    pub from_bytes: u64,
    /// Largest.
    pub to_bytes: u64,
    /// How many flows.
    pub flows: u64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

/// Most groups by size.
const GROUPS: usize = 20;

/// The smallest of sorted values that `percent` of them do not exceed (nearest rank).
fn percentile(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

fn sorted(flows: &[Finished]) -> Vec<f64> {
    let mut slowdowns: Vec<f64> = flows.iter().map(|flow| flow.slowdown).collect();
    slowdowns.sort_by(f64::total_cmp);
    slowdowns
}

/// Percentiles overall and by size; sorts the flows by size.
pub fn slowdowns(flows: &mut [Finished]) -> Slowdowns {
    flows.sort_by_key(|flow| flow.bytes);
    let all = sorted(flows);
    let mut by_size = Vec::new();
    let mut rest = &*flows;
    let each = flows.len().div_ceil(GROUPS).max(1);
    while !rest.is_empty() {
        let largest = rest[each.min(rest.len()) - 1].bytes;
        let mut end = rest.partition_point(|flow| flow.bytes <= largest);
        if rest.len() - end < each / 2 {
            // Percentiles of a few would say little.
            end = rest.len();
        }
        let (group, others) = rest.split_at(end);
        rest = others;
        let values = sorted(group);
        let at = |percent| percentile(&values, percent).unwrap_or_default();
        by_size.push(OfSize {
            from_bytes: group[0].bytes,
            to_bytes: group[end - 1].bytes,
            flows: group.len() as u64,
            p50: at(50),
            p95: at(95),
            p99: at(99),
        });
    }
    Slowdowns {
        p50: percentile(&all, 50),
        p95: percentile(&all, 95),
        p99: percentile(&all, 99),
        by_size,
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
        // The smallest are the slowest here.
        let first = &found.by_size[0];
        assert_eq!(
            (first.from_bytes, first.to_bytes, first.p50),
            (1, 10, 195.0)
        );
    }

    #[test]
    fn few_flows_are_no_group() {
        // 148 of one size, then 12 groups of 21, and 4 that are left.
        let mut flows: Vec<_> = (0..404).map(|n| flow(n.max(147), 1.0)).collect();
        let found = slowdowns(&mut flows).by_size;
        assert_eq!(found.iter().map(|group| group.flows).sum::<u64>(), 404);
        assert_eq!((found.len(), found[0].flows, found[1].flows), (13, 148, 21));
        assert_eq!((found[12].flows, found[12].to_bytes), (25, 403));
    }

    #[test]
    fn one_size_is_one_group_and_no_flow_none() {
        let mut flows: Vec<_> = (0..100).map(|n| flow(7, n as f64)).collect();
        assert_eq!(slowdowns(&mut flows).by_size.len(), 1);
        assert_eq!(slowdowns(&mut []), Slowdowns::default());
    }
}
