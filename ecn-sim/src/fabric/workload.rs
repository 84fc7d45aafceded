//! Workloads: senders, receivers, sizes and start times of flows.

pub(super) mod cdf;
pub(super) mod entries;
mod flows;
pub(super) mod kind;
mod table;

use ecn_units::Fraction;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

pub use self::cdf::Cdf;
use self::cdf::{mean, points, size_at};
pub use self::entries::FlowEntry;
use self::flows::listed;
pub use self::kind::Workload;
use super::links::{byte_time, wire_time};
use super::parameters::FabricParameters;
use super::topology::{FIG1_OTHERS, fig1_local};
use crate::bounds::ModelError;
use crate::engine::{NS, Time};
use crate::settings::Victim;

/// A flow that has yet to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Start time.
    pub start: Time,
    /// Sending host.
    pub from: u32,
    /// Receiving host.
    pub to: u32,
    /// Its payload.
    pub bytes: u64,
    /// Data not sent by this time is not sent at all.
    pub stop: Time,
    /// Maximum rate offered by its application, bytes per second; [`UNLIMITED`]: limited by the link only.
    pub rate: u64,
    /// Class of its data, less than the scenario's `priorities`.
    pub priority: u8,
    /// Number of its report class.
    pub label: u16,
}

/// [`Arrival::rate`] without a limit.
pub const UNLIMITED: u64 = u64::MAX;

impl Arrival {
    /// A flow of class 0 whose application offers all of its payload at once.
    pub const fn new(start: Time, from: u32, to: u32, bytes: u64) -> Self {
        Self {
            start,
            from,
            to,
            bytes,
            stop: Time::MAX,
            rate: UNLIMITED,
            priority: 0,
            label: 0,
        }
    }
}

/// Default class of a flow: round-robin, starting at 0. Flows are numbered from 1.
const fn round_robin(id: u32, priorities: u32) -> u8 {
    ((id - 1) % priorities) as u8
}

/// The ring of an all-reduce.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    hosts: u32,
    bytes: u64,
    priorities: u32,
}

impl Ring {
    fn new(parameters: &FabricParameters) -> Self {
        let (hosts, bytes) = (parameters.hosts, parameters.flow_size.bytes());
        Self {
            hosts,
            bytes: bytes.div_ceil(hosts.into()),
            priorities: parameters.priorities,
        }
    }

    /// The ring of a workload, if it has one.
    pub fn of(parameters: &FabricParameters) -> Option<Self> {
        (parameters.workload == Workload::AllReduce).then(|| Self::new(parameters))
    }

    /// The flow that a host sends in a step, with its number: in order of steps, from 1 on.
    fn step(&self, step: u32, host: u32) -> (u32, Arrival) {
        let id = step * self.hosts + host + 1;
        let arrival = Arrival {
            priority: round_robin(id, self.priorities),
            ..Arrival::new(0, host, (host + 1) % self.hosts, self.bytes)
        };
        (id, arrival)
    }

    /// The flow that a host sends when all of flow `id` has arrived.
    pub fn after(&self, id: u32, host: u32) -> Option<(u32, Arrival)> {
        let step = (id - 1) / self.hosts + 1;
        (step < 2 * (self.hosts - 1)).then(|| self.step(step, host))
    }
}

/// Flows in order of their starts, generated as needed.
pub type Arrivals = Box<dyn Iterator<Item = Arrival> + Send>;

/// The flows of a run between hosts with these names. `listed_flows`: those of the scenario's file.
///
/// # Errors
///
/// A file that cannot be read, or does not contain flows or sizes, or unknown hosts of flows.
pub fn arrivals(
    parameters: &FabricParameters,
    listed_flows: &[FlowEntry],
    host_name: impl Fn(u32) -> String,
    seed: u64,
) -> Result<Arrivals, ModelError> {
    let hosts = parameters.hosts;
    let bytes = parameters.flow_size.bytes();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let at_once = move |(from, to)| Arrival::new(0, from, to, bytes);
    let all: Arrivals = match &parameters.workload {
        Workload::Incast => {
            let some = shuffled(hosts, &mut random);
            let to = some[0];
            let senders = some.into_iter().skip(1).take(parameters.senders as usize);
            Box::new(senders.map(move |from| at_once((from, to))))
        }
        Workload::Permutation => Box::new(cycle(hosts, &mut random).map(at_once)),
        Workload::AllToAll => {
            let shifts = 1..hosts;
            let pairs = shifts.flat_map(move |by| (0..hosts).map(move |h| (h, (h + by) % hosts)));
            Box::new(pairs.map(at_once))
        }
        Workload::Poisson => poisson(parameters, random, seed)?,
        Workload::AllReduce => {
            let ring = Ring::new(parameters);
            Box::new((0..hosts).map(move |host| ring.step(0, host).1))
        }
        Workload::OnOff => on_off(parameters, random),
        Workload::Greedy => {
            let bytes = carried(parameters);
            let others = (1..hosts - 1).step_by(2).map(|from| (from, from + 1));
            let pairs = std::iter::once((0, hosts - 1))
                .chain(others.filter(move |pair| pair.1 + 1 < hosts));
            Box::new(pairs.map(move |pair| Arrival {
                bytes,
                ..at_once(pair)
            }))
        }
        Workload::Chain => chain(parameters),
        Workload::Fig1 => fig1(parameters, seed),
        Workload::Flows => {
            let names: Vec<String> = (0..hosts).map(host_name).collect();
            let flows = entries::flows(listed_flows, &names, parameters, seed)?;
            return Ok(Box::new(flows.into_iter()));
        }
        Workload::File(file) => {
            let error = |reason| ModelError::new("workload", &parameters.workload, reason);
            let names: Vec<String> = (0..hosts).map(host_name).collect();
            let mut flows = listed(file, &names, parameters).map_err(error)?;
            // With seed 1, flows are as listed.
            if seed != 1 {
                out_of_step(&mut flows, parameters, &mut random);
            }
            // These have their classes.
            return Ok(Box::new(flows.into_iter()));
        }
    };
    let priorities = parameters.priorities;
    if priorities == 1 {
        return Ok(all);
    }
    Ok(Box::new(all.zip(1..).map(move |(arrival, id)| Arrival {
        priority: round_robin(id, priorities),
        ..arrival
    })))
}

/// Flows at random times between random hosts, with sizes from a distribution, combined with bursts.
fn poisson(
    parameters: &FabricParameters,
    mut random: Pcg64Mcg,
    seed: u64,
) -> Result<Arrivals, ModelError> {
    let hosts = parameters.hosts;
    let error = |reason| ModelError::new("cdf", &parameters.cdf, reason);
    let points = points(&parameters.cdf).map_err(error)?;
    let mean = mean(&points);
    if mean < 1.0 {
        return Err(error("the mean size must be at least one byte".to_owned()));
    }
    let mut times = Times::new(parameters, parameters.load, mean);
    let flows = std::iter::from_fn(move || {
        let start = times.next(&mut random)?;
        let from = random.random_range(0..hosts);
        let to = (from + random.random_range(1..hosts)) % hosts;
        let bytes = size_at(&points, random.random::<f64>() * 100.0);
        Some(Arrival::new(start, from, to, (bytes as u64).max(1)))
    });
    // A separate random stream: the other flows are the same with and without bursts.
    let random = Pcg64Mcg::seed_from_u64(seed ^ 1 << 62);
    Ok(Box::new(merged(flows, bursts(parameters, random))))
}

/// A permutation whose flows repeat in each period, so that links carry the load.
fn on_off(parameters: &FabricParameters, mut random: Pcg64Mcg) -> Arrivals {
    let bytes = parameters.flow_size.bytes();
    let rate = parameters.link_rate.bytes_per_s() as f64 * parameters.load.as_f64();
    let period = (bytes as f64 / rate * 1e12).max(1.0) as Time;
    let end = parameters.duration.as_nanos() * NS;
    let pairs = cycle(parameters.hosts, &mut random);
    let mut first: Vec<Arrival> = pairs
        .map(|(from, to)| Arrival::new(0, from, to, bytes))
        .collect();
    for arrival in &mut first {
        arrival.start = random.random_range(0..period);
    }
    first.sort_by_key(|arrival| arrival.start);
    let periods = (0..end.div_ceil(period)).map(move |number| number * period);
    let all = periods.flat_map(move |later| {
        let shift = move |arrival: Arrival| Arrival {
            start: later + arrival.start,
            ..arrival
        };
        first.clone().into_iter().map(shift)
    });
    Box::new(all.take_while(move |arrival| arrival.start < end))
}

/// Two long flows along the chain, and bursts to the end of one of them (TCD's Fig. 2).
fn chain(parameters: &FabricParameters) -> Arrivals {
    let bytes = parameters.flow_size.bytes();
    let at_once = move |(from, to)| Arrival::new(0, from, to, bytes);
    let (load, duration) = (parameters.load, parameters.duration.as_nanos() * NS);
    let long = [(0, 2), (1, 3)].map(|pair| Arrival {
        bytes: load.of(carried(parameters)).max(1),
        rate: load.of(parameters.link_rate.bytes_per_s()).max(1),
        ..at_once(pair)
    });
    let gap = parameters.burst_gap.as_nanos() * NS;
    let senders = 4..4 + parameters.senders;
    let times = (1..duration.div_ceil(gap)).map(move |number| number * gap);
    let bursts = times.flat_map(move |start| {
        let from = senders.clone();
        from.map(move |from| Arrival {
            start,
            ..at_once((from, 3))
        })
    });
    Box::new(long.into_iter().chain(bursts))
}

/// HP's Fig. 1: all but the victim send to one host.
fn fig1(parameters: &FabricParameters, seed: u64) -> Arrivals {
    let hosts = parameters.hosts;
    let bytes = u64::from(parameters.payload) * u64::from(u32::MAX / 2);
    let stagger = parameters.stagger.as_nanos() * NS;
    let senders = (FIG1_OTHERS..hosts).zip(0..);
    let local = u64::from(fig1_local(hosts));
    let sends = |(from, number)| Arrival {
        label: u16::from(number >= local),
        ..Arrival::new(number * stagger, from, 0, bytes)
    };
    let mut flows: Vec<Arrival> = senders.map(sends).collect();
    let victim = |start, stop| Arrival {
        stop,
        label: 2,
        ..Arrival::new(start, 2, 1, bytes)
    };
    flows.extend(match parameters.victim {
        Victim::Off => None,
        Victim::On => Some(victim(0, Time::MAX)),
        Victim::During(from, to) => Some(victim(from.as_nanos() * NS, to.as_nanos() * NS)),
    });
    for (index, flow) in (0_u64..).zip(&mut flows) {
        // One random stream per flow, so that adding a flow does not change the others.
        let mut random = Pcg64Mcg::seed_from_u64(seed ^ index << 32);
        flow.start += random.random_range(0..packet_time(parameters));
    }
    flows.sort_by_key(|flow| flow.start);
    Box::new(flows.into_iter())
}

/// Delays each start by a random time below a full packet's. Otherwise, flows listed for the same time would meet in
/// the order of their lines with every seed.
fn out_of_step(flows: &mut [Arrival], parameters: &FabricParameters, random: &mut Pcg64Mcg) {
    for flow in flows.iter_mut() {
        flow.start += random.random_range(0..packet_time(parameters));
    }
    flows.sort_by_key(|flow| flow.start);
}

/// Transmission time of a full packet, at least a picosecond.
fn packet_time(parameters: &FabricParameters) -> Time {
    let frame = parameters.payload + parameters.header;
    wire_time(byte_time(parameters.link_rate), frame).max(1)
}

/// Payload that a link carries in `duration`, at least one byte.
pub fn carried(parameters: &FabricParameters) -> u64 {
    let frame = u128::from(parameters.payload + parameters.header);
    let bytes_ns =
        u128::from(parameters.link_rate.bytes_per_s()) * u128::from(parameters.duration.as_nanos());
    let payload = bytes_ns / 1_000_000_000 * u128::from(parameters.payload) / frame;
    u64::try_from(payload).unwrap_or(u64::MAX).max(1)
}

/// Random times at which a load is offered on average, until the end of `duration`.
struct Times {
    gap_ps: f64,
    now: f64,
    end: f64,
}

impl Times {
    /// Offers `load` of all hosts' links, in units of `bytes`.
    fn new(parameters: &FabricParameters, load: Fraction, bytes: f64) -> Self {
        let rate = parameters.link_rate.bytes_per_s() as f64 * f64::from(parameters.hosts);
        Self {
            gap_ps: bytes / (rate * load.as_f64()) * 1e12,
            now: 0.0,
            end: (parameters.duration.as_nanos() * NS) as f64,
        }
    }

    fn next(&mut self, random: &mut Pcg64Mcg) -> Option<Time> {
        self.now -= self.gap_ps * (1.0 - random.random::<f64>()).ln();
        (self.now < self.end).then_some(self.now as Time)
    }
}

/// Bursts of `incast_senders` hosts to a random host each; none without `incast_load`.
fn bursts(
    parameters: &FabricParameters,
    mut random: Pcg64Mcg,
) -> impl Iterator<Item = Arrival> + use<> {
    let (hosts, senders) = (parameters.hosts, parameters.incast_senders);
    let bytes = parameters.incast_size.bytes();
    let of_all = bytes as f64 * f64::from(senders);
    // Without a load, the first one is never due.
    let mut times = Times::new(parameters, parameters.incast_load, of_all);
    let burst = std::iter::from_fn(move || {
        let start = times.next(&mut random)?;
        let mut some = shuffled(hosts, &mut random).into_iter();
        let to = some.next()?;
        let senders = some.take(senders as usize);
        Some(senders.map(move |from| Arrival::new(start, from, to, bytes)))
    });
    burst.flatten()
}

/// Merges two sequences, by starts.
fn merged(
    a: impl Iterator<Item = Arrival>,
    b: impl Iterator<Item = Arrival>,
) -> impl Iterator<Item = Arrival> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    std::iter::from_fn(move || match (a.peek(), b.peek()) {
        (Some(first), Some(other)) if other.start < first.start => b.next(),
        (Some(_), _) => a.next(),
        (None, _) => b.next(),
    })
}

/// Pairs of each host with another one, in a random cycle through all of them.
fn cycle(hosts: u32, random: &mut Pcg64Mcg) -> impl Iterator<Item = (u32, u32)> + use<> {
    let cycle = shuffled(hosts, random);
    (0..hosts as usize).map(move |at| (cycle[at], cycle[(at + 1) % cycle.len()]))
}

/// All hosts in a random order (Fisher and Yates).
fn shuffled(hosts: u32, random: &mut Pcg64Mcg) -> Vec<u32> {
    let mut all: Vec<u32> = (0..hosts).collect();
    for at in (1..all.len()).rev() {
        all.swap(at, random.random_range(0..=at));
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn of(workload: Workload, hosts: u32, seed: u64) -> Vec<Arrival> {
        let parameters = FabricParameters {
            workload,
            hosts,
            ..FabricParameters::default()
        };
        arrivals(&parameters, &[], called, seed).unwrap().collect()
    }

    fn called(host: u32) -> String {
        format!("h{host}")
    }

    #[test]
    fn patterns_are_what_they_are_called() {
        let incast = of(Workload::Incast, 128, 3);
        let senders: HashSet<u32> = incast.iter().map(|flow| flow.from).collect();
        assert_eq!((incast.len(), senders.len()), (20, 20));
        assert!(
            incast
                .iter()
                .all(|flow| flow.to == incast[0].to && flow.from != flow.to)
        );
        assert_ne!(incast, of(Workload::Incast, 128, 4));

        let permutation = of(Workload::Permutation, 100, 3);
        let from: HashSet<u32> = permutation.iter().map(|flow| flow.from).collect();
        let to: HashSet<u32> = permutation.iter().map(|flow| flow.to).collect();
        assert_eq!((from.len(), to.len(), permutation.len()), (100, 100, 100));
        assert!(permutation.iter().all(|flow| flow.from != flow.to));

        let all = of(Workload::AllToAll, 9, 1);
        let pairs: HashSet<_> = all.iter().map(|flow| (flow.from, flow.to)).collect();
        assert_eq!((all.len(), pairs.len()), (72, 72));
        assert!(all.iter().all(|flow| flow.from != flow.to));
    }

    #[test]
    fn poisson_offers_its_load() {
        for cdf in [Cdf::WebSearch, Cdf::Hadoop] {
            let parameters = FabricParameters {
                workload: Workload::Poisson,
                duration: ecn_units::DurationText::from_millis(100),
                cdf,
                ..FabricParameters::default()
            };
            let (mut bytes, mut last, mut flows) = (0, 0, 0);
            for flow in arrivals(&parameters, &[], called, 1).unwrap() {
                assert!(flow.start >= last && flow.from != flow.to && flow.bytes > 0);
                (last, bytes, flows) = (flow.start, bytes + flow.bytes, flows + 1);
            }
            // Half of 128 links of 12.5 GB/s for 0.1 s.
            let load = bytes as f64 / (128.0 * 12.5e9 * 0.1);
            assert!((load - 0.5).abs() < 0.02, "{load} by {flows} flows");
        }
    }

    #[test]
    fn bursts_come_on_top_of_poisson() {
        let plain = FabricParameters {
            workload: Workload::Poisson,
            duration: ecn_units::DurationText::from_millis(100),
            ..FabricParameters::default()
        };
        let with = FabricParameters {
            incast_load: Fraction::new(2, 100).unwrap(),
            ..plain.clone()
        };
        let all: Vec<Arrival> = arrivals(&with, &[], called, 1).unwrap().collect();
        assert!(all.is_sorted_by_key(|flow| flow.start));
        let of_bursts = |flow: &&Arrival| flow.bytes == 500_000;
        let others: Vec<Arrival> = all.iter().filter(|f| !of_bursts(f)).copied().collect();
        let alone: Vec<Arrival> = arrivals(&plain, &[], called, 1).unwrap().collect();
        assert_eq!(others, alone);
        let bursts: Vec<Arrival> = all.iter().filter(of_bursts).copied().collect();
        for burst in bursts.chunks(60) {
            let from: HashSet<u32> = burst.iter().map(|flow| flow.from).collect();
            assert_eq!(from.len(), 60);
            let same = |flow: &Arrival| (flow.to, flow.start) == (burst[0].to, burst[0].start);
            assert!(burst.iter().all(same) && !from.contains(&burst[0].to));
        }
        // 2 % of 128 links for 0.1 s are 107 bursts of 30 MB; this many within 4 sigma.
        assert!((65..150).contains(&(bursts.len() / 60)), "{}", bursts.len());
    }

    #[test]
    fn on_off_offers_its_load_evenly() {
        let flows = of(Workload::OnOff, 16, 1);
        // Half a link is 6.25 GB/s: 1 MB every 160 us, so 6 or 7 in a millisecond.
        assert!(flows.is_sorted_by_key(|flow| flow.start));
        for host in 0..16 {
            let own: Vec<&Arrival> = flows.iter().filter(|flow| flow.from == host).collect();
            assert!((6..=7).contains(&own.len()) && own[0].start < 160_000_000);
            for pair in own.windows(2) {
                assert_eq!(pair[1].start - pair[0].start, 160_000_000);
                assert_eq!(pair[1].to, pair[0].to);
            }
        }
        assert!(flows.iter().all(|flow| flow.start < 1_000_000_000));
    }

    #[test]
    fn greedy_flows_are_as_long_as_their_links() {
        let pairs = |hosts| -> Vec<(u32, u32)> {
            let flows = of(Workload::Greedy, hosts, 1);
            // 1 ms of 12.5 GB/s, minus headers.
            assert!(
                flows
                    .iter()
                    .all(|flow| flow.bytes == 12_500_000 * 1_000 / 1_062)
            );
            flows.iter().map(|flow| (flow.from, flow.to)).collect()
        };
        assert_eq!(pairs(8), [(0, 7), (1, 2), (3, 4), (5, 6)]);
        assert_eq!(pairs(7), [(0, 6), (1, 2), (3, 4)]);
        assert_eq!(pairs(3), [(0, 2)]);
        assert_eq!(pairs(2), [(0, 1)]);
    }

    #[test]
    fn bursts_of_a_chain_come_at_their_times() {
        let parameters = FabricParameters {
            workload: Workload::Chain,
            hosts: 19,
            senders: 15,
            load: Fraction::ratio(2, 5),
            ..FabricParameters::default()
        };
        let flows: Vec<Arrival> = arrivals(&parameters, &[], called, 1).unwrap().collect();
        // One millisecond: both long flows, and a burst after every 250 us but the last.
        assert_eq!(flows.len(), 2 + 3 * 15);
        assert_eq!(
            (flows[0].from, flows[0].to, flows[0].rate),
            (0, 2, 5_000_000_000)
        );
        assert_eq!((flows[1].from, flows[1].to), (1, 3));
        assert!(flows.is_sorted_by_key(|flow| flow.start));
        assert!(
            flows[2..]
                .iter()
                .all(|flow| flow.to == 3 && flow.rate == UNLIMITED)
        );
        assert_eq!((flows[46].start, flows[46].from), (750_000_000, 18));
    }

    /// Including the later steps of a ring, whose flows start during the run.
    #[test]
    fn flows_have_classes_by_turns() {
        let parameters = FabricParameters {
            hosts: 5,
            priorities: 3,
            workload: Workload::AllReduce,
            ..FabricParameters::default()
        };
        let flows = arrivals(&parameters, &[], called, 1).unwrap();
        let classes: Vec<u8> = flows.map(|flow| flow.priority).collect();
        assert_eq!(classes, [0, 1, 2, 0, 1]);
        let ring = Ring::of(&parameters).unwrap();
        // Host 1 continues when the first flow, host 0's, has arrived: in the second step, with flow 5 + 2.
        let (id, next) = ring.after(1, 1).unwrap();
        assert_eq!((id, next.from, next.priority), (7, 1, 0));
    }
}
