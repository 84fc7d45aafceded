//! Links that have a rate or a delay of their own.

use ecn_units::{DurationText, Rate};

use super::run::{byte_time, wire_time};
use super::scenario::Scenario;
use super::topology::Topology;
use crate::engine::{NS, Time};

/// What a link has of its own. Its other properties are those of `link_rate` and `link_delay`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Own {
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

/// The links of all ports, if some have properties of their own.
pub fn of_ports(scenario: &Scenario, topology: &Topology) -> Option<Vec<Link>> {
    let usual = &scenario.parameters;
    let link = |own: &Own| {
        let rate = own.rate.unwrap_or(usual.link_rate);
        let delay = own.delay.unwrap_or(usual.link_delay);
        Link {
            byte_time: byte_time(rate),
            delay: delay.as_nanos() * NS,
            is_usual: (rate, delay) == (usual.link_rate, usual.link_delay),
        }
    };
    let own = &topology.own_links;
    (!own.is_empty()).then(|| own.iter().map(link).collect())
}

/// When the tails of the last two packets of a flow leave the ports of its way, of which the last packet has `rest`
/// bytes and the others `full`; alone, and sent back to back from time 0 on. Two times: those at the way's end.
fn arrivals(way: &[Link], packets: u64, full: u32, rest: u32) -> [Time; 2] {
    let (mut sum, mut slowest, mut delays, mut last) = (0, 0, 0, 0);
    let mut before = 0;
    for link in way {
        let wire = link.wire_time(full);
        (sum, slowest) = (sum + wire, slowest.max(wire));
        // All but the last, the slowest link so far being what spaces them.
        before = match packets {
            1 => 0,
            more => sum + (more - 2) * slowest + delays,
        };
        last = before.max(last) + link.wire_time(rest) + link.delay;
        delays += link.delay;
    }
    let end = way.last().map_or(0, |link| link.delay);
    [before + end, last]
}

/// Completion time of a flow alone in an idle network, on these links to its destination and back.
pub fn ideal(there: &[Link], back: &[Link], packets: u64, [full, rest, ack]: [u32; 3]) -> Time {
    let [before, last] = arrivals(there, packets, full, rest);
    // The last ACK is behind the one before it, if there is one.
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
