//! Links that have a rate or a delay of their own.

use ecn_units::{DurationText, Rate};

use super::parameters::FabricParameters;
use super::run::{byte_time, wire_time};
use crate::engine::{NS, Time};

/// What a link has of its own. Its other properties are those of `link_rate` and `link_delay`.
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
    /// It is as `link_rate` and `link_delay` say.
    pub is_usual: bool,
}

impl Link {
    /// The time in which it takes so many bytes.
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

/// When the last two packets of a flow arrive at the end of a path, the first of these only where there are two. The
/// last packet has `rest` bytes and the others `full`; all are sent back to back from time 0 on, in an idle network of
/// switches that store and forward.
fn arrivals(path: &[Link], packets: u64, full: u32, rest: u32) -> [Time; 2] {
    let (mut sum, mut slowest, mut delays, mut last) = (0, 0, 0, 0);
    let mut before = 0;
    for link in path {
        let wire = link.wire_time(full);
        (sum, slowest) = (sum + wire, slowest.max(wire));
        // When all but the last have left this link: the slowest one so far spaces them.
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

/// Completion time of a flow alone in an idle network, over these links to its destination and back: all packets leave
/// back to back, and the last one's ACK goes back behind that of the one before it.
pub fn ideal(there: &[Link], back: &[Link], packets: u64, [full, rest, ack]: [u32; 3]) -> Time {
    let [before, last] = arrivals(there, packets, full, rest);
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
