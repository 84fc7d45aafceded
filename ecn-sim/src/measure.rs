//! Counters of a run, and shares of a link's rate derived from them.

use ecn_report::statistics::jain;

use crate::engine::{MS, NS, Time};
use crate::network::Network;
use crate::switch::PortTotals;
use crate::trace::Trace;

/// Counters at one instant. A packet counts when its transmission starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Bytes started, by channel.
    pub channel_bytes: Vec<u64>,
    /// Packets started on their last hop, by flow.
    pub flow_packets: Vec<u64>,
    /// Marked packets by flow, each counted once.
    pub flow_marked: Vec<u64>,
    /// Packets that wait for each channel at this instant.
    pub line_packets: Vec<u32>,
    /// Output queues: packets dropped so far, by channel.
    pub dropped: Vec<u64>,
    /// Output queues: cumulative waiting time, packets x ns, by channel.
    pub waited_ns: Vec<u64>,
    /// Output queues: maximum queue length since the previous instant, packets, by channel.
    pub queue_peaks: Vec<u32>,
    /// Output queues: packets dropped at bridges so far, by flow.
    pub flow_dropped: Vec<u64>,
    /// Output queues: packets dropped so far at their own host for lack of room, by flow.
    pub host_dropped: Vec<u64>,
    /// Output queues: messages sent by ports to sources so far.
    pub messages: u64,
}

/// A window of time; instants with `from <= t < to` are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its beginning.
    pub from: Time,
    /// Its end.
    pub to: Time,
    /// Transmissions started in the window.
    pub counts: Snapshot,
    /// Output queues: maximum queue length, packets, by channel.
    pub queue_peaks: Vec<u32>,
    /// Output queues: from a packet's generation to its departure from the last queue, by class.
    pub delays: Vec<Times>,
    /// Output queues: from a flow's start until its last packet was acknowledged, by class.
    pub completions: Vec<Times>,
}

/// A histogram of durations, in buckets of a 128th of a power of two: quantiles are within 0.4 %. A crate with buckets by
/// decimal digits (`hdrhistogram`) made runs of bridges 5 % slower.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    counts: Vec<u64>,
    total: u64,
}

impl Times {
    const STEPS: u32 = 7;

    /// Adds a duration.
    pub fn record(&mut self, time: Time) {
        let ns = time / NS;
        let place = match ns.checked_ilog2() {
            Some(bits) if bits >= Self::STEPS => {
                let step = ns >> (bits - Self::STEPS) & ((1 << Self::STEPS) - 1);
                ((bits - Self::STEPS + 1) << Self::STEPS) as usize + step as usize
            }
            _ => ns as usize,
        };
        if place >= self.counts.len() {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
        self.total += 1;
    }

    /// Number of durations.
    pub const fn count(&self) -> u64 {
        self.total
    }

    /// The value that `percent` percent of the durations do not exceed (nearest rank), ns: the middle of its bucket.
    /// `None` if there are no durations.
    pub fn quantile_ns(&self, percent: u64) -> Option<u64> {
        let mut left = (self.total * percent).div_ceil(100).max(1);
        let place = self.counts.iter().position(|&count| {
            let found = count >= left;
            left = left.saturating_sub(count);
            found
        })? as u64;
        let steps = 1 << Self::STEPS;
        Some(if place < steps {
            place
        } else {
            let shift = place / steps - 1;
            let from = (steps + place % steps) << shift;
            from + (1 << shift) / 2
        })
    }
}

/// A run's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The requested windows.
    pub windows: Vec<Window>,
    /// Counters at each step of the series, from time 0 on.
    pub series: Vec<Snapshot>,
    /// Interval of the series, 0 without a series.
    pub series_step: Time,
    /// Marked packets by flow over the whole run, each counted once.
    pub marked_packets: Vec<u64>,
    /// Packets sent by the end of the run, by flow.
    pub sent_packets: Vec<u64>,
    /// Packets that started on their last hop, by flow. All other sent packets are in flight or were dropped.
    pub delivered_packets: Vec<u64>,
    /// Packets in flight at the end, by flow, counted individually.
    pub in_flight_packets: Vec<u64>,
    /// Totals by switch and port slot.
    pub ports: Vec<Vec<PortTotals>>,
    /// Packets that crossed a link.
    pub packet_hops: u64,
    /// Events handled.
    pub events: u64,
    /// Events after which all counters were compared with a scan.
    pub checked_events: u64,
    /// Output queues: when each decreased rate came into force, and the time since the mark that caused it.
    pub control_latencies: Vec<(Time, Time)>,
    /// Traces of bridges, if requested.
    pub traces: Vec<Trace>,
}

impl Snapshot {
    /// Counts since an earlier snapshot; waiting packets are the current ones.
    pub fn since(&self, earlier: &Self) -> Self {
        let difference =
            |now: &[u64], then: &[u64]| now.iter().zip(then).map(|(a, b)| a - b).collect();
        Self {
            channel_bytes: difference(&self.channel_bytes, &earlier.channel_bytes),
            flow_packets: difference(&self.flow_packets, &earlier.flow_packets),
            flow_marked: difference(&self.flow_marked, &earlier.flow_marked),
            line_packets: self.line_packets.clone(),
            dropped: difference(&self.dropped, &earlier.dropped),
            waited_ns: difference(&self.waited_ns, &earlier.waited_ns),
            queue_peaks: self.queue_peaks.clone(),
            flow_dropped: difference(&self.flow_dropped, &earlier.flow_dropped),
            host_dropped: difference(&self.host_dropped, &earlier.host_dropped),
            messages: self.messages - earlier.messages,
        }
    }

    /// Share of a channel's rate over `time`.
    pub(crate) fn channel_share(&self, network: &Network, channel: usize, time: Time) -> f64 {
        share(self.channel_bytes[channel], network, channel, time)
    }

    /// A flow's share of the rate of its last link, over `time`.
    pub fn flow_share(&self, network: &Network, flow: usize, time: Time) -> f64 {
        let bytes = self.flow_bytes(network, flow);
        share(bytes, network, network.last_channel(flow), time)
    }

    /// Bytes of a flow that started on its last hop.
    pub(crate) fn flow_bytes(&self, network: &Network, flow: usize) -> u64 {
        self.flow_packets[flow] * u64::from(network.flows[flow].packet_bytes)
    }

    /// A class's share: the sum over its flows.
    pub(crate) fn class_share(&self, network: &Network, class: usize, time: Time) -> f64 {
        flows_of(network, class)
            .map(|flow| self.flow_share(network, flow, time))
            .sum()
    }

    /// Jain's index over a class's flows; `None` without traffic.
    pub(crate) fn class_jain(&self, network: &Network, class: usize) -> Option<f64> {
        jain(flows_of(network, class).map(|flow| self.flow_packets[flow] as f64))
    }
}

/// The flows of a class.
pub fn flows_of(network: &Network, class: usize) -> impl Iterator<Item = usize> {
    let flows = network.flows.iter().enumerate();
    flows
        .filter(move |(_, flow)| flow.class as usize == class)
        .map(|(index, _)| index)
}

fn share(bytes: u64, network: &Network, channel: usize, time: Time) -> f64 {
    let capacity =
        network.channels[channel].rate.bytes_per_s() as f64 * (time as f64 / (1e3 * MS as f64));
    if capacity == 0.0 {
        0.0
    } else {
        bytes as f64 / capacity
    }
}

impl Record {
    /// Packets that left their sources and are neither delivered nor anywhere in the network.
    pub fn dropped_packets(&self) -> u64 {
        let sum = |packets: &[u64]| packets.iter().sum::<u64>();
        let found = sum(&self.delivered_packets) + sum(&self.in_flight_packets);
        sum(&self.sent_packets).saturating_sub(found)
    }

    /// Sliding windows of `width`, around each step of the series where one fits: its middle, in ms, and its counts.
    pub fn sliding(&self, width: Time) -> impl Iterator<Item = (f64, Snapshot)> + '_ {
        let steps = (width / self.series_step.max(1)).max(1) as usize;
        self.series
            .windows(steps + 1)
            .enumerate()
            .filter_map(move |(first, window)| {
                let (start, end) = (window.first()?, window.last()?);
                let middle = first as f64 + steps as f64 / 2.0;
                Some((
                    middle * self.series_step as f64 / MS as f64,
                    end.since(start),
                ))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_within_a_256th() {
        let mut times = Times::default();
        assert_eq!(times.quantile_ns(50), None);
        (1..=100_000u64).for_each(|n| times.record(n * 17 * NS));
        for percent in [1, 25, 50, 99, 100] {
            let exact = percent * 1_000 * 17;
            let found = times.quantile_ns(percent).expect("a time");
            assert!(
                found.abs_diff(exact) <= exact / 256,
                "{percent}: {found} of {exact}"
            );
        }
        assert_eq!(times.count(), 100_000);
        let mut small = Times::default();
        for ns in [0, 3, 15, 16, 17] {
            small.record(ns * NS);
        }
        let exact = [1, 21, 41, 61, 81].map(|percent| small.quantile_ns(percent));
        assert_eq!(exact, [0, 3, 15, 16, 17].map(Some));
    }
}
