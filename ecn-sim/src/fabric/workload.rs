//! Who sends what to whom, and when.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::parameters::Parameters;
use crate::engine::{NS, Time};
use crate::keyword::{KeywordError, near};
use crate::model::ModelError;
use crate::serde_as_text;
use crate::units::Fraction;

/// A pattern of flows, or `file:F`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// `senders` hosts, all to one; who, the seed says.
    Incast,
    /// Each host to another one, each from another one; a random cycle through all of them.
    Permutation,
    /// Each host to each other.
    AllToAll,
    /// At random times between random hosts, with sizes from a distribution; with `incast_load` also
    /// bursts of many hosts to one, at random times.
    Poisson,
    /// Each host to another one as in a permutation, in bursts of `flow_size` with pauses between them; where
    /// in that period a host begins is random.
    OnOff,
    /// Ring all-reduce (Patarasuk and Yuan, 2009) of a vector of `flow_size`: in each of 2 (N - 1) steps each host
    /// sends an N-th of it to the next one, as soon as it has got that of the step before.
    AllReduce,
    /// Long flows, of what a link carries in `duration`: the first host to the last, and of the others each odd
    /// one to the next. In a parking lot with two hosts per switch, one flow crosses all links between
    /// switches and one each of them.
    Greedy,
    /// TCD's chain only: `S0` to `R0`, the victim, and `S1` to `R1` offer `load` each for `duration`; every
    /// `burst_gap` each of `senders` hosts sends `flow_size` to `R1`.
    Chain,
    /// From a CSV file: a line `start_ns,from,to,bytes`, then such flows; hosts by their names, or by their numbers from 0 on.
    /// With a fifth column, `priority`, flows have the class that it says, if it says one.
    File(PathBuf),
}

const WORKLOADS: &[&str] = &[
    "incast",
    "permutation",
    "all-to-all",
    "poisson",
    "on-off",
    "all-reduce",
    "greedy",
    "chain",
    "file:FILE",
];

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incast => f.write_str("incast"),
            Self::Permutation => f.write_str("permutation"),
            Self::AllToAll => f.write_str("all-to-all"),
            Self::Poisson => f.write_str("poisson"),
            Self::OnOff => f.write_str("on-off"),
            Self::AllReduce => f.write_str("all-reduce"),
            Self::Greedy => f.write_str("greedy"),
            Self::Chain => f.write_str("chain"),
            Self::File(file) => write!(f, "file:{}", file.display()),
        }
    }
}

/// The file of `file:FILE`.
fn file_of(text: &str) -> Option<PathBuf> {
    let file = text.strip_prefix("file:").filter(|file| !file.is_empty());
    file.map(PathBuf::from)
}

impl FromStr for Workload {
    type Err = KeywordError;

    fn from_str(text: &str) -> Result<Self, KeywordError> {
        Ok(match text {
            "incast" => Self::Incast,
            "permutation" => Self::Permutation,
            "all-to-all" => Self::AllToAll,
            "poisson" => Self::Poisson,
            "on-off" => Self::OnOff,
            "all-reduce" => Self::AllReduce,
            "greedy" => Self::Greedy,
            "chain" => Self::Chain,
            _ => Self::File(file_of(text).ok_or_else(|| KeywordError::new(text, WORKLOADS))?),
        })
    }
}

serde_as_text!(Workload);

/// A distribution of flow sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cdf {
    /// Web search (DCTCP, SIGCOMM 2010).
    WebSearch,
    /// Hadoop (Roy et al., SIGCOMM 2015).
    Hadoop,
    /// From a CSV file: a line `bytes,percent`, then points, both rising, up to 100 percent.
    File(PathBuf),
}

const CDFS: &[&str] = &["web-search", "hadoop", "file:FILE"];

impl fmt::Display for Cdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSearch => f.write_str("web-search"),
            Self::Hadoop => f.write_str("hadoop"),
            Self::File(file) => write!(f, "file:{}", file.display()),
        }
    }
}

impl FromStr for Cdf {
    type Err = KeywordError;

    fn from_str(text: &str) -> Result<Self, KeywordError> {
        Ok(match text {
            "web-search" => Self::WebSearch,
            "hadoop" => Self::Hadoop,
            _ => Self::File(file_of(text).ok_or_else(|| KeywordError::new(text, CDFS))?),
        })
    }
}

serde_as_text!(Cdf);

/// Points of a distribution, bytes and percent, as in `workloads.md`; straight lines between them.
const WEB_SEARCH: &[(f64, f64)] = &[
    (0.0, 0.0),
    (10_000.0, 15.0),
    (20_000.0, 20.0),
    (30_000.0, 30.0),
    (50_000.0, 40.0),
    (80_000.0, 53.0),
    (200_000.0, 60.0),
    (1_000_000.0, 70.0),
    (2_000_000.0, 80.0),
    (5_000_000.0, 90.0),
    (10_000_000.0, 97.0),
    (30_000_000.0, 100.0),
];

const HADOOP: &[(f64, f64)] = &[
    (0.0, 0.0),
    (100.0, 1.0),
    (200.0, 2.0),
    (300.0, 5.0),
    (350.0, 15.0),
    (400.0, 20.0),
    (500.0, 30.0),
    (600.0, 40.0),
    (700.0, 50.0),
    (1_000.0, 60.0),
    (2_000.0, 67.0),
    (7_000.0, 70.0),
    (30_000.0, 72.0),
    (50_000.0, 82.0),
    (80_000.0, 87.0),
    (120_000.0, 90.0),
    (300_000.0, 95.0),
    (1_000_000.0, 97.5),
    (2_000_000.0, 99.0),
    (10_000_000.0, 100.0),
];

/// Something about a line of a file.
fn at(line: u64, what: impl fmt::Display) -> String {
    format!("line {line}: {what}")
}

/// Reads a CSV file with this first line: what the others say, with their numbers. What comes after the first `least`
/// columns may be missing, and is empty then.
fn rows<const N: usize>(
    file: &Path,
    header: [&str; N],
    least: usize,
) -> Result<Vec<(u64, [String; N])>, String> {
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .comment(Some(b'#'))
        .from_path(file)
        .map_err(|error| error.to_string())?;
    let found = reader.headers().map_err(|error| error.to_string())?;
    if found.iter().ne(header) && !found.iter().eq(header[..least].iter().copied()) {
        let optional = header[least..].iter().map(|name| format!("[,{name}]"));
        let needed = header[..least].join(",") + &optional.collect::<String>();
        return Err(format!("the first line has to be {needed}"));
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let line = record.position().map_or(0, csv::Position::line);
        // As many as the first line has.
        let mut texts = record.iter().map(str::to_owned);
        rows.push((line, [(); N].map(|()| texts.next().unwrap_or_default())));
    }
    Ok(rows)
}

/// A number of a file.
fn number(line: u64, text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok();
    number
        .filter(|number| (0.0..=9e15).contains(number))
        .ok_or_else(|| at(line, format_args!("`{text}` is not a number from 0 up")))
}

/// The points of a distribution, checked.
fn points(cdf: &Cdf) -> Result<Vec<(f64, f64)>, String> {
    let Cdf::File(file) = cdf else {
        let built_in = match cdf {
            Cdf::Hadoop => HADOOP,
            _ => WEB_SEARCH,
        };
        return Ok(built_in.to_vec());
    };
    let mut points = vec![(0.0, 0.0)];
    for (line, [bytes, percent]) in rows(file, ["bytes", "percent"], 2)? {
        let (bytes, percent) = (number(line, &bytes)?, number(line, &percent)?);
        let last = points[points.len() - 1];
        if points.len() == 1 && percent == 0.0 {
            points[0].0 = bytes;
        } else if bytes < last.0 || percent < last.1 {
            return Err(format!(
                "not monotone: {bytes} bytes, {percent} percent comes after {} bytes, {} percent",
                last.0, last.1
            ));
        } else {
            points.push((bytes, percent));
        }
    }
    match points.last() {
        Some((bytes, 100.0)) if *bytes <= 1e12 => Ok(points),
        _ => Err("the last point has to be 100 percent, at 1e12 bytes or less".to_owned()),
    }
}

/// Size at a percentage.
fn size_at(points: &[(f64, f64)], percent: f64) -> f64 {
    let after = points.partition_point(|(_, p)| *p < percent).max(1);
    let ((x0, p0), (x1, p1)) = (points[after - 1], points[after.min(points.len() - 1)]);
    if p1 > p0 {
        x0 + (x1 - x0) * (percent - p0) / (p1 - p0)
    } else {
        x1
    }
}

/// Mean size.
fn mean(points: &[(f64, f64)]) -> f64 {
    let part =
        |pair: &[(f64, f64)]| (pair[0].0 + pair[1].0) / 2.0 * (pair[1].1 - pair[0].1) / 100.0;
    points.windows(2).map(part).sum()
}

/// A flow to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub start: Time,
    /// From this host.
    pub from: u32,
    /// To this one.
    pub to: u32,
    /// Its payload.
    pub bytes: u64,
    /// Bytes per second that its application offers at most; [`UNLIMITED`]: as much as the link takes.
    pub rate: u64,
    /// Class of its data, less than the scenario's `priorities`.
    pub priority: u8,
}

/// No limit of [`Arrival::rate`].
pub const UNLIMITED: u64 = u64::MAX;

/// The class of a flow that was given none: by turns, from 0 on. Flows count from 1.
const fn turn(id: u32, priorities: u32) -> u8 {
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
    fn new(parameters: &Parameters) -> Self {
        let (hosts, bytes) = (parameters.hosts, parameters.flow_size.bytes());
        Self {
            hosts,
            bytes: bytes.div_ceil(hosts.into()),
            priorities: parameters.priorities,
        }
    }

    /// That of a workload, if it has one.
    pub fn of(parameters: &Parameters) -> Option<Self> {
        (parameters.workload == Workload::AllReduce).then(|| Self::new(parameters))
    }

    /// What a host sends in a step, and the flow's number: by steps, from 1 on.
    fn step(&self, step: u32, host: u32) -> (u32, Arrival) {
        let id = step * self.hosts + host + 1;
        let arrival = Arrival {
            start: 0,
            from: host,
            to: (host + 1) % self.hosts,
            bytes: self.bytes,
            rate: UNLIMITED,
            priority: turn(id, self.priorities),
        };
        (id, arrival)
    }

    /// What a host sends when all of this flow is there.
    pub fn after(&self, id: u32, host: u32) -> Option<(u32, Arrival)> {
        let step = (id - 1) / self.hosts + 1;
        (step < 2 * (self.hosts - 1)).then(|| self.step(step, host))
    }
}

/// Flows in the order of their starts, made as they are needed.
pub type Arrivals = Box<dyn Iterator<Item = Arrival> + Send>;

/// The flows of a run between hosts with these names.
///
/// # Errors
///
/// A file that cannot be read, or is none of flows or sizes; flows of hosts that there are not.
pub fn arrivals(
    parameters: &Parameters,
    host_name: impl Fn(u32) -> String,
    seed: u64,
) -> Result<Arrivals, ModelError> {
    let hosts = parameters.hosts;
    let bytes = parameters.flow_size.bytes();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let at_once = move |(from, to)| Arrival {
        start: 0,
        from,
        to,
        bytes,
        rate: UNLIMITED,
        priority: 0,
    };
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
        Workload::Poisson => {
            let error = |reason| ModelError::new("cdf", &parameters.cdf, reason);
            let points = points(&parameters.cdf).map_err(error)?;
            let mean = mean(&points);
            if mean < 1.0 {
                return Err(error("flows of less than a byte on average".to_owned()));
            }
            let mut times = Times::new(parameters, parameters.load, mean);
            let flows = std::iter::from_fn(move || {
                let start = times.next(&mut random)?;
                let from = random.random_range(0..hosts);
                let to = (from + random.random_range(1..hosts)) % hosts;
                let bytes = size_at(&points, random.random::<f64>() * 100.0);
                Some(Arrival {
                    start,
                    from,
                    to,
                    bytes: (bytes as u64).max(1),
                    rate: UNLIMITED,
                    priority: 0,
                })
            });
            // Not the others' stream: these are the same with and without bursts.
            let random = Pcg64Mcg::seed_from_u64(seed ^ 1 << 62);
            Box::new(merged(flows, bursts(parameters, random)))
        }
        Workload::AllReduce => {
            let ring = Ring::new(parameters);
            Box::new((0..hosts).map(move |host| ring.step(0, host).1))
        }
        Workload::OnOff => {
            let rate = parameters.link_rate.bytes_per_s() as f64 * parameters.load.as_f64();
            let period = (bytes as f64 / rate * 1e12).max(1.0) as Time;
            let end = parameters.duration.as_nanos() * NS;
            let pairs = cycle(hosts, &mut random);
            let mut first: Vec<Arrival> = pairs.map(at_once).collect();
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
        Workload::Chain => {
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
        Workload::File(file) => {
            let error = |reason| ModelError::new("workload", &parameters.workload, reason);
            let names: Vec<String> = (0..hosts).map(host_name).collect();
            let flows = listed(file, &names, parameters).map_err(error)?;
            // Which have their classes.
            return Ok(Box::new(flows.into_iter()));
        }
    };
    let priorities = parameters.priorities;
    if priorities == 1 {
        return Ok(all);
    }
    Ok(Box::new(all.zip(1..).map(move |(arrival, id)| Arrival {
        priority: turn(id, priorities),
        ..arrival
    })))
}

/// Payload that a link carries in `duration`, at least a byte.
pub fn carried(parameters: &Parameters) -> u64 {
    let frame = u128::from(parameters.payload + parameters.header);
    let bytes_ns =
        u128::from(parameters.link_rate.bytes_per_s()) * u128::from(parameters.duration.as_nanos());
    let payload = bytes_ns / 1_000_000_000 * u128::from(parameters.payload) / frame;
    u64::try_from(payload).unwrap_or(u64::MAX).max(1)
}

/// Random times at which so much is offered on average, up to the end of `duration`.
struct Times {
    gap_ps: f64,
    now: f64,
    end: f64,
}

impl Times {
    /// `load` of all hosts' links, by `bytes` at a time.
    fn new(parameters: &Parameters, load: Fraction, bytes: f64) -> Self {
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

/// Bursts of `incast_senders` hosts to one, who is random each time; none without `incast_load`.
fn bursts(parameters: &Parameters, mut random: Pcg64Mcg) -> impl Iterator<Item = Arrival> + use<> {
    let (hosts, senders) = (parameters.hosts, parameters.incast_senders);
    let bytes = parameters.incast_size.bytes();
    let of_all = bytes as f64 * f64::from(senders);
    // Without a load the first one is never.
    let mut times = Times::new(parameters, parameters.incast_load, of_all);
    let burst = std::iter::from_fn(move || {
        let start = times.next(&mut random)?;
        let mut some = shuffled(hosts, &mut random).into_iter();
        let to = some.next()?;
        Some(some.take(senders as usize).map(move |from| Arrival {
            start,
            from,
            to,
            bytes,
            rate: UNLIMITED,
            priority: 0,
        }))
    });
    burst.flatten()
}

/// Flows of both, by their starts.
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

/// Each host and another one, in a random cycle through all of them.
fn cycle(hosts: u32, random: &mut Pcg64Mcg) -> impl Iterator<Item = (u32, u32)> + use<> {
    let cycle = shuffled(hosts, random);
    (0..hosts as usize).map(move |at| (cycle[at], cycle[(at + 1) % cycle.len()]))
}

/// Most names that are suggested, or listed, at once.
const NAMES: usize = 5;

/// The flows of a file, by their starts.
fn listed(file: &Path, names: &[String], parameters: &Parameters) -> Result<Vec<Arrival>, String> {
    let priorities = parameters.priorities;
    let numbers: HashMap<&str, u32> = names.iter().map(String::as_str).zip(0..).collect();
    let hosts = names.len() as u32;
    // A host may be called by a number: names go first.
    let host = |text: &str| {
        let numbered = || text.parse().ok().filter(|number| *number < hosts);
        numbers.get(text).copied().or_else(numbered)
    };
    let unknown = |text: &str| {
        let near = near(text, names.iter().map(String::as_str));
        let hint = match &near[..near.len().min(NAMES)] {
            [] if names.len() <= NAMES => format!("the hosts are {}", names.join(", ")),
            [] => format!("the hosts are {} to {}", names[0], names[names.len() - 1]),
            some => format!("near are {}", some.join(", ")),
        };
        format!("no host is called `{text}`: {hint}, or 0 to {}", hosts - 1)
    };
    let most = u64::from(parameters.payload) * u64::from(u32::MAX / 2);
    let mut flows = Vec::new();
    let columns = ["start_ns", "from", "to", "bytes", "priority"];
    for (line, [start, from, to, bytes, priority]) in rows(file, columns, 4)? {
        let whole = |text: &str| {
            let value = number(line, text)?;
            let what = format_args!("`{text}` is not a whole number");
            let value = Some(value).filter(|value| value.fract() == 0.0);
            value
                .map(|value| value as u64)
                .ok_or_else(|| at(line, what))
        };
        let named = |text: &str| host(text).ok_or_else(|| at(line, unknown(text)));
        let (start, from, to, bytes) = (whole(&start)?, named(&from)?, named(&to)?, whole(&bytes)?);
        if from == to {
            let name = &names[from as usize];
            return Err(at(line, format_args!("a flow from {name} to itself")));
        }
        if !(1..=most).contains(&bytes) {
            return Err(at(line, format_args!("1 to {most} bytes are allowed")));
        }
        let given = match &priority[..] {
            "" => None,
            text => Some(whole(text)?),
        };
        if given.is_some_and(|priority| priority >= priorities.into()) {
            let most = priorities - 1;
            let what =
                format_args!("a priority from 0 to {most} is allowed (priorities={priorities})");
            return Err(at(line, what));
        }
        let arrival = Arrival {
            start: start * NS,
            from,
            to,
            bytes,
            rate: UNLIMITED,
            priority: 0,
        };
        flows.push((arrival, given));
    }
    flows.sort_by_key(|(flow, _)| flow.start);
    let classed = flows
        .into_iter()
        .zip(1..)
        .map(|((arrival, given), id)| Arrival {
            priority: given.map_or_else(|| turn(id, priorities), |priority| priority as u8),
            ..arrival
        });
    Ok(classed.collect())
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
    use std::fs;

    fn of(workload: Workload, hosts: u32, seed: u64) -> Vec<Arrival> {
        let parameters = Parameters {
            workload,
            hosts,
            ..Parameters::default()
        };
        arrivals(&parameters, called, seed).unwrap().collect()
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
            let parameters = Parameters {
                workload: Workload::Poisson,
                duration: crate::units::DurationText::from_millis(100),
                cdf,
                ..Parameters::default()
            };
            let (mut bytes, mut last, mut flows) = (0, 0, 0);
            for flow in arrivals(&parameters, called, 1).unwrap() {
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
        let plain = Parameters {
            workload: Workload::Poisson,
            duration: crate::units::DurationText::from_millis(100),
            ..Parameters::default()
        };
        let with = Parameters {
            incast_load: Fraction::new(2, 100).unwrap(),
            ..plain.clone()
        };
        let all: Vec<Arrival> = arrivals(&with, called, 1).unwrap().collect();
        assert!(all.is_sorted_by_key(|flow| flow.start));
        let of_bursts = |flow: &&Arrival| flow.bytes == 500_000;
        let others: Vec<Arrival> = all.iter().filter(|f| !of_bursts(f)).copied().collect();
        let alone: Vec<Arrival> = arrivals(&plain, called, 1).unwrap().collect();
        assert_eq!(others, alone);
        let bursts: Vec<Arrival> = all.iter().filter(of_bursts).copied().collect();
        for burst in bursts.chunks(60) {
            let from: HashSet<u32> = burst.iter().map(|flow| flow.from).collect();
            assert_eq!(from.len(), 60);
            let same = |flow: &Arrival| (flow.to, flow.start) == (burst[0].to, burst[0].start);
            assert!(burst.iter().all(same) && !from.contains(&burst[0].to));
        }
        // 2 % of 128 links for 0.1 s are 107 bursts of 30 MB; so many within 4 sigma.
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
            // 1 ms of 12.5 GB/s, less headers.
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
        let parameters = Parameters {
            workload: Workload::Chain,
            hosts: 19,
            senders: 15,
            load: Fraction::ratio(2, 5),
            ..Parameters::default()
        };
        let flows: Vec<Arrival> = arrivals(&parameters, called, 1).unwrap().collect();
        // A millisecond: both long flows, and a burst after each 250 us but the last.
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

    #[test]
    fn sizes_follow_the_points() {
        assert_eq!(size_at(WEB_SEARCH, 53.0), 80_000.0);
        assert_eq!(size_at(WEB_SEARCH, 100.0), 30_000_000.0);
        assert_eq!(size_at(WEB_SEARCH, 0.0), 0.0);
        assert!((size_at(HADOOP, 63.5) - 1_500.0).abs() < 1e-6);
        // By hand, from the points: 1.7 MB and 120 kB.
        assert!(
            (mean(WEB_SEARCH) - 1_711_250.0).abs() < 1.0,
            "{}",
            mean(WEB_SEARCH)
        );
        assert!((mean(HADOOP) - 120_420.75).abs() < 1.0, "{}", mean(HADOOP));
    }

    #[test]
    fn files_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let flows = file(
            "flows",
            "start_ns,from,to,bytes\n# later\n500,1,0,7\n0, 0, 1, 1000\n",
        );
        let found = of(Workload::File(flows), 2, 1);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[1].start, found[1].from, found[1].bytes),
            (500_000, 1, 7)
        );
        let cdf = file("cdf", "bytes,percent\n1000,50\n3000,100\n");
        assert_eq!(mean(&points(&Cdf::File(cdf)).unwrap()), 1_250.0);
        for (text, needed) in [
            ("bytes,percent\n10,50\n5,100\n", "not monotone"),
            ("bytes,percent\n10,50\n20,40\n", "not monotone"),
            ("bytes,percent\n10,50\n", "100 percent"),
            ("bytes,percent\nten,50\n", "line 2: `ten`"),
            ("size,p\n10,50\n", "bytes,percent"),
        ] {
            let error = points(&Cdf::File(file("bad", text))).unwrap_err();
            assert!(error.contains(needed), "{error}");
        }
    }

    #[test]
    fn hosts_of_a_file_are_named_or_numbered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows");
        let read = |names: &[&str], flows: &str| {
            fs::write(&path, format!("start_ns,from,to,bytes\n{flows}")).unwrap();
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            listed(&path, &names, &Parameters::default())
        };
        let ends = |flows: Vec<Arrival>| -> Vec<_> {
            flows.iter().map(|flow| (flow.from, flow.to)).collect()
        };
        let chain = ["S0", "S1", "R0", "R1", "A0", "A1", "A2"];
        let flows = read(&chain, "0,S1,R1,5\n0, A2 ,0,5\n0,1,R0,5\n").unwrap();
        assert_eq!(ends(flows), [(1, 3), (6, 0), (1, 2)]);
        // As they are called, where that is a number.
        let flows = read(&["1", "2", "3"], "0,1,3,5\n0,0,2,5\n");
        assert_eq!(ends(flows.unwrap()), [(0, 2), (0, 1)]);
        for (flow, reason) in [
            (
                "0,S2,R1,5",
                "line 3: no host is called `S2`: near are S0, S1, A2, or 0 to 6",
            ),
            (
                "0,S0,web,5",
                "line 3: no host is called `web`: the hosts are S0 to A2, or 0 to 6",
            ),
            (
                "0,7,S0,5",
                "line 3: no host is called `7`: the hosts are S0 to A2, or 0 to 6",
            ),
            (
                "0,S0,-1,5",
                "line 3: no host is called `-1`: near are S1, R1, A1, or 0 to 6",
            ),
            ("0,S0,0,5", "line 3: a flow from S0 to itself"),
            ("0,S0,S1,0", "line 3: 1 to 2147483647000 bytes are allowed"),
            ("0.5,S0,S1,1", "line 3: `0.5` is not a whole number"),
            ("x,S0,S1,1", "line 3: `x` is not a number from 0 up"),
        ] {
            let error = read(&chain, &format!("0,S0,S1,1\n{flow}\n")).unwrap_err();
            assert_eq!(error, reason);
        }
        let error = read(&["a", "b"], "0,host,b,1\n").unwrap_err();
        assert_eq!(
            error,
            "line 2: no host is called `host`: the hosts are a, b, or 0 to 1"
        );
        fs::write(&path, "from,to\n0,1\n").unwrap();
        let error = listed(
            &path,
            &["a".to_owned(), "b".to_owned()],
            &Parameters::default(),
        )
        .unwrap_err();
        assert!(error.contains("start_ns"), "{error}");
    }

    /// A ring's later steps too: their flows start in the run.
    #[test]
    fn flows_have_classes_by_turns_or_as_their_file_says() {
        let parameters = Parameters {
            hosts: 5,
            priorities: 3,
            workload: Workload::AllReduce,
            ..Parameters::default()
        };
        let classes =
            |flows: &[Arrival]| -> Vec<u8> { flows.iter().map(|flow| flow.priority).collect() };
        let flows: Vec<_> = arrivals(&parameters, |_| String::new(), 1)
            .unwrap()
            .collect();
        assert_eq!(classes(&flows), [0, 1, 2, 0, 1]);
        let ring = Ring::of(&parameters).unwrap();
        // Host 1 goes on when the first flow, host 0's, is there: flow 5 + 2 of all.
        let (id, next) = ring.after(1, 1).unwrap();
        assert_eq!((id, next.from, next.priority), (7, 1, 0));

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("flows");
        let names = ["a", "b"].map(str::to_owned);
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            listed(&path, &names, &parameters)
        };
        let header = "start_ns,from,to,bytes,priority";
        let flows = read(&format!("{header}\n5,a,b,7,0\n0,a,b,7,2\n1,a,b,7,\n"));
        assert_eq!(classes(&flows.unwrap()), [2, 1, 0]);
        let flows = read("start_ns,from,to,bytes\n5,a,b,7\n0,a,b,7\n");
        assert_eq!(classes(&flows.unwrap()), [0, 1]);
        for (wrong, reason) in [
            (
                "3",
                "line 2: a priority from 0 to 2 is allowed (priorities=3)",
            ),
            ("0.5", "line 2: `0.5` is not a whole number"),
            ("-1", "line 2: `-1` is not a number from 0 up"),
        ] {
            let error = read(&format!("{header}\n0,a,b,7,{wrong}\n")).unwrap_err();
            assert_eq!(error, reason);
        }
        let error = read("start_ns,from\n").unwrap_err();
        let needed = "the first line has to be start_ns,from,to,bytes[,priority]";
        assert_eq!(error, needed);
    }
}
