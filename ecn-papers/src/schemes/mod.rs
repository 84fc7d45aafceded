//! Published statements about the other schemes, or conclusions from these, compared with measurements: formulas with
//! the schemes' own functions, behaviour in small fabrics.

pub(super) mod bcn;
mod chain;
mod dcqcn;
mod ibcc;
pub(super) mod qcn;
pub(super) mod tcd;
pub(super) mod timely;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ecn_report::statistics::{Sample, jain};
use ecn_sim::engine::{MS, Time};
use ecn_sim::fabric::cc::SchemeParameters;
use ecn_sim::fabric::workload::Arrival;
use ecn_sim::fabric::{self, Counts, Options, Scenario};
use ecn_sim::parallel::{cores, in_parallel};

use crate::ReproduceError;
use crate::statement::{Found, Kind, Statement};

/// A statement to be judged.
struct Claim {
    /// As in the reference.
    id: &'static str,
    kind: Kind,
    published: &'static str,
    band: &'static str,
    judge: fn(&Bench, &mut Found) -> Judged,
}

/// Fails if a run does.
type Judged = Result<(), ReproduceError>;

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
pub(crate) struct Bench {
    seeds: u64,
    runs: AtomicUsize,
    packet_hops: AtomicU64,
}

impl Bench {
    /// Runs with randomness use seeds 1 to this number.
    pub(crate) fn new(seeds: u64) -> Self {
        Self {
            seeds,
            runs: AtomicUsize::new(0),
            packet_hops: AtomicU64::new(0),
        }
    }

    /// Judges everything, over all cores.
    pub(crate) fn judge_all(&self) -> Result<Vec<Statement>, ReproduceError> {
        let claims: Vec<&Claim> = FAMILIES.into_iter().flatten().collect();
        in_parallel(claims.len(), cores(), |index| {
            let claim = claims[index];
            let mut found = Found::default();
            (claim.judge)(self, &mut found)?;
            Ok(found.about(claim.id, claim.kind, claim.published, claim.band))
        })
    }

    /// Number of runs so far, and packets that crossed a link in them.
    pub(crate) fn totals(&self) -> (usize, u64) {
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
        self.run_with(scenario, seed, false)
    }

    /// One run, with its series and all events of ports.
    fn traced(&self, scenario: &Scenario) -> Result<Counts, ReproduceError> {
        self.run_with(scenario, 1, true)
    }

    fn run_with(
        &self,
        scenario: &Scenario,
        seed: u64,
        trace: bool,
    ) -> Result<Counts, ReproduceError> {
        let options = Options {
            series: true,
            trace,
            ..Options::default()
        };
        let (_, counts) = fabric::run(scenario, seed, &options)?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.packet_hops
            .fetch_add(counts.packet_hops, Ordering::Relaxed);
        Ok(counts)
    }

    /// From some time on, with each seed: the first senders, this many, send to the next host of [`one_switch`].
    fn settled(
        &self,
        scenario: &Scenario,
        from: Time,
        senders: u32,
    ) -> Result<Vec<Settled>, ReproduceError> {
        let port = senders as usize;
        let run = |seed| Ok(Settled::of(&self.run(scenario, seed)?, from, port, port));
        self.seeds().map(run).collect()
    }
}

/// A fabric with these settings, separated by spaces.
fn with(kind: fabric::Kind, settings: &str) -> Result<Scenario, ReproduceError> {
    let mut scenario = Scenario::of(kind);
    for setting in settings.split_whitespace() {
        scenario.set_text(setting)?;
    }
    Ok(scenario)
}

/// Parameters of schemes with these settings.
fn parameters(settings: &str) -> Result<SchemeParameters, ReproduceError> {
    Ok(with(fabric::Kind::LeafSpine, settings)?.schemes)
}

/// A fabric with these settings and flows.
fn scenario(
    kind: fabric::Kind,
    settings: &str,
    flows: impl IntoIterator<Item = Arrival>,
) -> Result<Scenario, ReproduceError> {
    Ok(with(kind, settings)?.with_flows(flows.into_iter().collect()))
}

/// One switch (the spine is unused): its port to a host is watched under the host's number.
fn one_switch(
    settings: &str,
    flows: impl IntoIterator<Item = Arrival>,
) -> Result<Scenario, ReproduceError> {
    let settings = format!("leaves=1 spines=1 {settings}");
    scenario(fabric::Kind::LeafSpine, &settings, flows)
}

/// A flow that starts at this time.
const fn flow(start: Time, from: u32, to: u32, bytes: u64) -> Arrival {
    Arrival::new(start, from, to, bytes)
}

/// More than any run sends.
const ENDLESS: u64 = 1_000_000_000_000;

/// This many long flows to one host: 10 Gb/s, frames of 1500 bytes.
fn bottleneck(flows: u32, settings: &str) -> Result<Scenario, ReproduceError> {
    let hosts = flows + 1;
    let settings = format!("hosts={hosts} payload=1438 link_rate=10gbit {settings}");
    let flows = (0..flows).map(|from| flow(0, from, flows, ENDLESS));
    one_switch(&settings, flows)
}

/// Payload that the link of a [`bottleneck`] carries, bytes per second.
const BOTTLENECK: f64 = 1_250_000_000.0 * 1_438.0 / 1_500.0;

/// Results of a run from some time on.
struct Settled {
    /// Payload per second of each flow.
    rates: Vec<f64>,
    /// The bottleneck's queue at the end of each step, bytes.
    queues: Vec<f64>,
    /// In the whole run.
    dropped_packets: u64,
}

impl Settled {
    /// Results of this many flows, and of this watched port.
    fn of(counts: &Counts, from: Time, flows: usize, port: usize) -> Self {
        let mut settled = Self {
            rates: Vec::new(),
            queues: Vec::new(),
            dropped_packets: counts.dropped_packets,
        };
        if let Some(series) = &counts.series {
            let all = series.points.len();
            let first = all.min((from / series.step) as usize);
            let points = &series.points[first..];
            let seconds = (series.time(all) - series.time(first)) as f64 / (1e3 * MS as f64);
            let bytes = |flow: usize| points.iter().map(|point| point.flows[flow]).sum::<u64>();
            let rates = (0..flows).map(|flow| bytes(flow) as f64 / seconds);
            settled.rates = rates.collect();
            settled.queues = points
                .iter()
                .map(|point| point.ports[port].into())
                .collect();
        }
        settled
    }

    /// Share of what a [`bottleneck`] carries.
    fn utilisation(&self) -> f64 {
        self.rates.iter().sum::<f64>() / BOTTLENECK
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

/// NaN, which is within no band, if a value was not measured.
fn extreme<T>(runs: &[T], value: impl Fn(&T) -> f64, of: fn(f64, f64) -> f64) -> f64 {
    let values: Vec<f64> = runs.iter().map(value).collect();
    let measured = values.iter().all(|value| !value.is_nan());
    let extreme = values.into_iter().reduce(of).filter(|_| measured);
    extreme.unwrap_or(f64::NAN)
}

fn lowest<T>(runs: &[T], value: impl Fn(&T) -> f64) -> f64 {
    extreme(runs, value, f64::min)
}

fn highest<T>(runs: &[T], value: impl Fn(&T) -> f64) -> f64 {
    extreme(runs, value, f64::max)
}
