//! Links with their own rate or delay.

use ecn_units::{DurationText, Rate};

use super::parameters::FabricParameters;
use crate::engine::{NS, Time};

/// Picoseconds per byte, in 2^-20.
pub(super) fn byte_time(line: Rate) -> u64 {
    ((1_000_000_000_000 << 20) / u128::from(line.bytes_per_s())) as u64
}

/// Transmission time of `bytes` bytes; `byte_time`: picoseconds per byte in 2^-20.
pub(super) const fn wire_time(byte_time: u64, bytes: u32) -> Time {
    (bytes as u64 * byte_time) >> 20
}

/// Properties of a link that differ from `link_rate` and `link_delay`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkOverride {
    /// Rate, in both directions.
    pub rate: Option<Rate>,
    /// Delay, in both directions.
    pub delay: Option<DurationText>,
}

/// A port's link in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    byte_time: u64,
    /// Propagation delay.
    pub delay: Time,
    /// Whether it has the rate and delay of `link_rate` and `link_delay`.
    pub is_usual: bool,
}

impl Link {
    /// Transmission time of `bytes` bytes.
    #[inline]
    pub const fn wire_time(&self, bytes: u32) -> Time {
        wire_time(self.byte_time, bytes)
    }
}

impl LinkOverride {
    /// A link with these properties.
    pub fn link(&self, usual: &FabricParameters) -> Link {
        let rate = self.rate.unwrap_or(usual.link_rate);
        let delay = self.delay.unwrap_or(usual.link_delay);
        Link {
            byte_time: byte_time(rate),
            delay: delay.as_nanos() * NS,
            is_usual: (rate, delay) == (usual.link_rate, usual.link_delay),
        }
    }
}

/// Arrival times of the last two packets of a flow at the end of a path, where the first one is valid only if there are
/// two. The last packet has `rest` bytes and the others `full`; all are sent from time 0 on, back to back or `gap` apart
/// if that is more, in an idle network of store-and-forward switches.
fn arrivals(path: &[Link], packets: u64, gap: Time, full: u32, rest: u32) -> [Time; 2] {
    let (mut sum, mut slowest, mut delays) = (0, gap, 0);
    let (mut before, mut last) = (0, (packets - 1) * gap);
    for link in path {
        let wire = link.wire_time(full);
        (sum, slowest) = (sum + wire, slowest.max(wire));
        // When all but the last have left this link: they are spaced by the slowest link so far.
        before = match packets {
            1 => 0,
            more => sum + (more - 2) * slowest + delays,
        };
        last = before.max(last) + link.wire_time(rest) + link.delay;
        delays += link.delay;
    }
    let end = path.last().map_or(0, |link| link.delay);
    [before + end, last]
}

/// Completion time of a flow alone in an idle network, over these links to its destination and back: all packets are
/// sent back to back, or `gap` apart if that is more, and the ACK of the last one follows that of the one before it.
pub fn ideal(
    there: &[Link],
    back: &[Link],
    packets: u64,
    gap: Time,
    [full, rest, ack]: [u32; 3],
) -> Time {
    let [before, last] = arrivals(there, packets, gap, full, rest);
    let (mut ahead, mut time) = (before, last);
    for link in back {
        let wire = link.wire_time(ack);
        if packets > 1 {
            ahead += wire;
            time = time.max(ahead);
            ahead += link.delay;
        }
        time += wire + link.delay;
    }
    time
}

/// Parameters of cut-through switches.
#[derive(Clone, Copy, Debug)]
pub struct CutThrough {
    /// From the arrival of the data needed for forwarding to the earliest departure.
    pub delay: Time,
    /// Whether all of a data packet is needed.
    pub stores: bool,
}

impl CutThrough {
    /// From a packet's start on a link to its earliest start on the next one.
    fn hop(self, path: &[Link], at: usize, bytes: u32, stores: bool) -> Time {
        let wire = path[at].wire_time(bytes);
        let needed = match stores {
            true => wire,
            // A faster output must not run dry.
            false => wire.saturating_sub(path[at + 1].wire_time(bytes)),
        };
        path[at].delay + self.delay + needed
    }

    /// [`arrivals`] for such switches.
    fn arrivals(self, path: &[Link], packets: u64, gap: Time, full: u32, rest: u32) -> [Time; 2] {
        let wire = |at: usize, bytes| path[at].wire_time(bytes);
        // Starts of the first and last packets on a link. Full ones are spaced by the slowest link so far.
        let (mut first, mut slowest) = (0, wire(0, full).max(gap));
        let mut last = (packets - 1) * slowest;
        let end = path.len() - 1;
        for at in 0..end {
            first += self.hop(path, at, full, self.stores);
            slowest = wire(at + 1, full).max(slowest);
            last += self.hop(path, at, rest, self.stores);
            if packets > 1 {
                last = last.max(first + (packets - 2) * slowest + wire(at + 1, full));
            }
        }
        let before = match packets {
            1 => 0,
            more => first + (more - 2) * slowest + wire(end, full) + path[end].delay,
        };
        [before, last + wire(end, rest) + path[end].delay]
    }

    /// [`ideal`] for such switches.
    pub fn ideal(
        self,
        there: &[Link],
        back: &[Link],
        packets: u64,
        gap: Time,
        [full, rest, ack]: [u32; 3],
    ) -> Time {
        let [mut ahead, mut start] = self.arrivals(there, packets, gap, full, rest);
        for (at, link) in back.iter().enumerate() {
            if packets > 1 {
                start = start.max(ahead + link.wire_time(ack));
            }
            if at + 1 < back.len() {
                let hop = self.hop(back, at, ack, false);
                (ahead, start) = (ahead + hop, start + hop);
            }
        }
        start
            + back
                .last()
                .map_or(0, |link| link.wire_time(ack) + link.delay)
    }
}
