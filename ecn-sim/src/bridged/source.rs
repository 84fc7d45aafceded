//! Traffic sources: what an application has to send at a given time.

use std::collections::VecDeque;

use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::bridged::tcp::Tcp;
use crate::engine::Time;
use crate::traffic::{Arrivals, Traffic};

/// Packets queued at a host before further ones are dropped there: `leaf_packets` of the agent.
pub(crate) const HOST_PACKETS: usize = 100;

/// A traffic source.
#[derive(Debug)]
pub(crate) enum Source {
    /// Always has a packet.
    Greedy,
    /// Generates packets at a constant rate.
    Constant(Constant),
    /// A TCP connection.
    Tcp(Box<Tcp>),
    /// Opens connections, and sends nothing itself.
    Arrivals(Opens),
}

/// Packets at a constant rate.
#[derive(Debug)]
pub(crate) struct Constant {
    every: Time,
    /// When the next one is due.
    due: Time,
    /// When the queued packets were generated.
    waiting: VecDeque<Time>,
    /// Packets dropped because the queue was full.
    pub dropped: u64,
    late: Late,
}

/// New connections at random times.
#[derive(Debug)]
pub(crate) struct Opens {
    /// Mean interval between them.
    every: f64,
    random: Pcg64Mcg,
    /// Packets per connection.
    pub packets: u32,
}

/// Random lateness of an application's timer.
#[derive(Debug)]
struct Late {
    mean: f64,
    random: Pcg64Mcg,
}

/// An exponentially distributed time.
fn exponential(mean: f64, random: &mut Pcg64Mcg) -> Time {
    (-mean * (1.0 - random.random::<f64>()).ln()) as Time
}

impl Source {
    /// The source of a flow. `packet_time`: of a packet at the rate of [`Traffic::Constant`]; `seed`: unique to this
    /// flow.
    pub(crate) fn new(
        traffic: Traffic,
        arrivals: Option<Arrivals>,
        packet_bytes: u32,
        timer_delay: f64,
        seed: u64,
    ) -> Self {
        let random = Pcg64Mcg::seed_from_u64(seed);
        match (arrivals, traffic) {
            (Some(arrivals), _) => Self::Arrivals(Opens {
                every: 1e12 / f64::from(arrivals.per_s.max(1)),
                random,
                packets: arrivals.packets,
            }),
            (None, Traffic::Greedy) => Self::Greedy,
            (None, Traffic::Constant(rate)) => {
                let ps = u128::from(packet_bytes) * 1_000_000_000_000;
                let every = ps.div_ceil(u128::from(rate.bytes_per_s()));
                Self::Constant(Constant {
                    every: Time::try_from(every).unwrap_or(Time::MAX),
                    due: 0,
                    waiting: VecDeque::new(),
                    dropped: 0,
                    late: Late {
                        mean: timer_delay,
                        random,
                    },
                })
            }
            (None, Traffic::Tcp(algorithm)) => Self::Tcp(Box::new(Tcp::new(algorithm, u64::MAX))),
        }
    }

    /// Whether it has a packet to send.
    pub(crate) fn has_packet(&self) -> bool {
        match self {
            Self::Greedy => true,
            Self::Constant(constant) => !constant.waiting.is_empty(),
            Self::Tcp(tcp) => tcp.may_send(),
            Self::Arrivals(_) => false,
        }
    }

    /// Sends a packet: returns its number in the connection, and when it was generated.
    pub(crate) fn send(&mut self, now: Time) -> (u64, Time) {
        match self {
            Self::Greedy | Self::Arrivals(_) => (0, now),
            Self::Constant(constant) => (0, constant.waiting.pop_front().unwrap_or(now)),
            Self::Tcp(tcp) => (tcp.send(now), now),
        }
    }

    /// Handles its timer: generates a packet, opens a connection or times out. Returns whether it did anything.
    pub(crate) fn on_timer(&mut self, now: Time) -> bool {
        match self {
            Self::Greedy => false,
            Self::Constant(constant) => {
                if constant.waiting.len() < HOST_PACKETS {
                    constant.waiting.push_back(now);
                } else {
                    constant.dropped += 1;
                }
                true
            }
            Self::Tcp(tcp) => tcp.on_timeout(now),
            Self::Arrivals(_) => true,
        }
    }

    /// When its timer fires next, after it became active or its timer fired at `now`.
    pub(crate) fn next_timer(&mut self, now: Time) -> Option<Time> {
        match self {
            Self::Greedy => None,
            Self::Constant(constant) => {
                // The schedule does not drift: lateness is made up for.
                constant.due = if constant.due == 0 {
                    now
                } else {
                    constant.due + constant.every
                };
                let late = exponential(constant.late.mean, &mut constant.late.random);
                Some((constant.due + late).max(now))
            }
            Self::Tcp(tcp) => (tcp.deadline != Time::MAX).then_some(tcp.deadline),
            Self::Arrivals(opens) => Some(now + exponential(opens.every, &mut opens.random)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{MS, NS};
    use ecn_units::Rate;

    #[test]
    fn a_constant_rate_is_kept_by_a_timer_that_is_late() {
        let rate = Rate::from_bytes_per_s(1_000_000).expect("a rate");
        let traffic = Traffic::Constant(rate);
        let mut source = Source::new(traffic, None, 1000, 300_000.0 * NS as f64, 7);
        let (mut now, mut made) = (5 * MS, 0);
        while let Some(next) = source.next_timer(now)
            && next < 1_005 * MS
        {
            assert!(next >= now);
            now = next;
            assert!(source.on_timer(now) && source.has_packet());
            assert_eq!(source.send(now), (0, now));
            made += 1;
        }
        assert!((998..=1_001).contains(&made), "{made}");
    }

    #[test]
    fn a_host_holds_so_many_packets() {
        let rate = Rate::from_bytes_per_s(1_000_000).expect("a rate");
        let mut source = Source::new(Traffic::Constant(rate), None, 1000, 0.0, 7);
        for n in 0..150 {
            source.on_timer(n);
        }
        let Source::Constant(constant) = &source else {
            panic!("{source:?}");
        };
        assert_eq!((constant.waiting.len(), constant.dropped), (100, 50));
    }

    #[test]
    fn connections_come_as_often_as_they_should() {
        let arrivals = Arrivals {
            per_s: 400,
            packets: 3,
        };
        let mut source = Source::new(Traffic::Greedy, Some(arrivals), 1000, 0.0, 7);
        assert!(!source.has_packet());
        let (mut now, mut opened, mut short) = (0, 0u32, 0u32);
        while let Some(next) = source.next_timer(now)
            && next < 10_000 * MS
        {
            // Exponential distribution: 63 % are below the mean.
            short += u32::from(next - now < 2_500_000 * NS);
            now = next;
            opened += 1;
        }
        assert!((3_800..4_200).contains(&opened), "{opened}");
        let share = f64::from(short) / f64::from(opened);
        assert!((0.6..0.66).contains(&share), "{share}");
    }
}
