//! Published statements about the other schemes, or conclusions from these, compared with measurements: formulas with
//! the schemes' own functions, behaviour in small fabrics.

mod bcn;
mod chain;
mod dcqcn;
mod ibcc;
mod qcn;
mod tcd;
mod timely;

#[cfg(test)]
pub(super) mod judges {
    //! What judges values, for tests.
    pub(crate) use super::bcn::{Swing, swings_around};
    pub(crate) use super::qcn::holds_much;
    pub(crate) use super::tcd::{Factors, improves};
    pub(crate) use super::timely::{Incast, shorter};
}

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ecn_report::statistics::{Sample, jain};
use ecn_sim::engine::{MS, NS, Time};
use ecn_sim::fabric::workload::Arrival;
use ecn_sim::fabric::{self, Counts, Options, Scenario};
use ecn_sim::parallel::{cores, in_parallel};

use super::ReproduceError;
use super::assertions::{Found, Kind, Statement};

/// A statement to be judged.
struct Claim {
    /// As in the reference.
    id: &'static str,
    kind: Kind,
    published: &'static str,
    band: &'static str,
    judge: fn(&Bench) -> Judged,
}

/// What a judge finds, unless a run fails.
type Judged = Result<Found, ReproduceError>;

/// The families, in the order of the report.
const FAMILIES: [&[Claim]; 6] = [
    bcn::CLAIMS,
    qcn::CLAIMS,
    tcd::CLAIMS,
    ibcc::CLAIMS,
    dcqcn::CLAIMS,
    timely::CLAIMS,
];

/// Makes runs, and counts them.
#[derive(Debug)]
pub struct Bench {
    seeds: u64,
    runs: AtomicUsize,
    packet_hops: AtomicU64,
}

impl Bench {
    /// Runs with randomness use seeds 1 to this number.
    pub fn new(seeds: u64) -> Self {
        Self {
            seeds,
            runs: AtomicUsize::new(0),
            packet_hops: AtomicU64::new(0),
        }
    }

    /// Judges everything, over all cores.
    ///
    /// # Errors
    ///
    /// A run is not possible, or violates an invariant.
    pub fn judge_all(&self) -> Result<Vec<Statement>, ReproduceError> {
        let claims: Vec<&Claim> = FAMILIES.into_iter().flatten().collect();
        let judge = |index: usize| {
            let claim = claims[index];
            let found = (claim.judge)(self)?;
            let texts = (claim.published, claim.band);
            Ok(Statement::new((claim.id, claim.kind), texts, found))
        };
        in_parallel(claims.len(), cores(), judge)
    }

    /// Number of runs so far, and packets that crossed a link in them.
    pub fn totals(&self) -> (usize, u64) {
        (
            self.runs.load(Ordering::Relaxed),
            self.packet_hops.load(Ordering::Relaxed),
        )
    }

    /// The seeds of runs with randomness.
    fn seeds(&self) -> RangeInclusive<u64> {
        1..=self.seeds
    }

    /// One run, with its series.
    fn run(&self, scenario: &Scenario, seed: u64) -> Result<Counts, ReproduceError> {
        self.run_with(scenario, seed, &SERIES)
    }

    fn run_with(
        &self,
        scenario: &Scenario,
        seed: u64,
        options: &Options,
    ) -> Result<Counts, ReproduceError> {
        let (_, counts) = fabric::run(scenario, seed, options)?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.packet_hops
            .fetch_add(counts.packet_hops, Ordering::Relaxed);
        Ok(counts)
    }
}

const SERIES: Options = Options {
    threads: 1,
    series: true,
    windows: Vec::new(),
    trace: false,
    watch: None,
};

/// A fabric with these settings.
fn with(kind: fabric::Kind, settings: &[&str]) -> Result<Scenario, ReproduceError> {
    let mut scenario = Scenario::of(kind);
    for setting in settings {
        scenario.set_text(setting)?;
    }
    Ok(scenario)
}

/// A fabric with these settings and flows.
fn scenario(
    kind: fabric::Kind,
    settings: &[&str],
    flows: Vec<Arrival>,
) -> Result<Scenario, ReproduceError> {
    Ok(with(kind, settings)?.with_flows(flows))
}

/// One switch (the spine is unused): its port to a host is watched under the host's number.
fn one_switch(settings: &[&str], flows: Vec<Arrival>) -> Result<Scenario, ReproduceError> {
    let settings = [&["leaves=1", "spines=1"], settings].concat();
    scenario(fabric::Kind::LeafSpine, &settings, flows)
}

/// A flow that starts at this time.
const fn flow(start: Time, from: u32, to: u32, bytes: u64) -> Arrival {
    Arrival::new(start, from, to, bytes)
}

/// Long flows to one host: 10 Gb/s, frames of 1500 bytes.
struct Bottleneck<'a> {
    flows: u32,
    /// Beside those.
    settings: &'a [&'a str],
    /// Time from which it counts as settled.
    from: Time,
    /// The end of the run.
    until: Time,
}

impl Bottleneck<'_> {
    /// Payload of a frame.
    const PAYLOAD: u32 = 1_438;
    /// Payload that the link carries, bytes per second.
    const LINE: f64 = 1_250_000_000.0 * 1_438.0 / 1_500.0;

    fn scenario(&self) -> Result<Scenario, ReproduceError> {
        let hosts = format!("hosts={}", self.flows + 1);
        let limit = format!("limit={}ns", self.until / NS);
        let payload = format!("payload={}", Self::PAYLOAD);
        let own = [hosts.as_str(), &limit, &payload, "link_rate=10gbit"];
        let settings = [&own[..], self.settings].concat();
        let flows = (0..self.flows).map(|from| flow(0, from, self.flows, ENDLESS));
        one_switch(&settings, flows.collect())
    }

    fn run(&self, bench: &Bench, seed: u64) -> Result<Settled, ReproduceError> {
        let counts = bench.run(&self.scenario()?, seed)?;
        let settled = Settled::of(&counts, self.from, self.flows as usize, self.flows as usize);
        Ok(settled)
    }

    /// With each seed.
    fn run_all(&self, bench: &Bench) -> Result<Vec<Settled>, ReproduceError> {
        bench.seeds().map(|seed| self.run(bench, seed)).collect()
    }
}

/// More than any run sends.
const ENDLESS: u64 = 1_000_000_000_000;

/// Results of a run from some time on.
struct Settled {
    /// Payload per second of each flow.
    rates: Vec<f64>,
    /// The bottleneck's queue at the end of each step, bytes.
    queues: Vec<f64>,
}

impl Settled {
    /// Results of this many flows, and of this watched port.
    fn of(counts: &Counts, from: Time, flows: usize, port: usize) -> Self {
        let Some(series) = &counts.series else {
            return Self {
                rates: Vec::new(),
                queues: Vec::new(),
            };
        };
        let all = series.points.len();
        let first = all.min((from / series.step) as usize);
        let points = &series.points[first..];
        let seconds = (series.time(all) - series.time(first)) as f64 / (1e3 * MS as f64);
        let bytes = |flow: usize| points.iter().map(|point| point.flows[flow]).sum::<u64>();
        Self {
            rates: (0..flows)
                .map(|flow| bytes(flow) as f64 / seconds)
                .collect(),
            queues: points
                .iter()
                .map(|point| point.ports[port].into())
                .collect(),
        }
    }

    /// Share of what a [`Bottleneck`] carries.
    fn utilisation(&self) -> f64 {
        self.rates.iter().sum::<f64>() / Bottleneck::LINE
    }

    fn jain(&self) -> f64 {
        jain(self.rates.iter().copied()).unwrap_or_default()
    }

    /// Mean and standard deviation over time, bytes.
    fn queue(&self) -> Sample {
        Sample::of(self.queues.iter().copied())
    }
}

/// One value per run.
fn over<T>(runs: &[T], value: impl Fn(&T) -> f64) -> Sample {
    Sample::of(runs.iter().map(value))
}

/// Nothing that was not measured is within a band.
fn extreme<T>(runs: &[T], value: impl Fn(&T) -> f64, of: fn(f64, f64) -> f64) -> f64 {
    let either = |a: f64, b: f64| {
        if a.is_nan() || b.is_nan() {
            f64::NAN
        } else {
            of(a, b)
        }
    };
    runs.iter().map(value).reduce(either).unwrap_or(f64::NAN)
}

fn lowest<T>(runs: &[T], value: impl Fn(&T) -> f64) -> f64 {
    extreme(runs, value, f64::min)
}

fn highest<T>(runs: &[T], value: impl Fn(&T) -> f64) -> f64 {
    extreme(runs, value, f64::max)
}
