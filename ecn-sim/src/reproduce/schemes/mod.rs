//! What is published about the other schemes, or follows from it, beside what is measured: formulas by the
//! schemes' own functions, behaviour in small fabrics.

mod bcn;
mod dcqcn;
mod ibcc;
mod qcn;
mod tcd;
mod timely;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::ReproduceError;
use super::assertions::{Found, Kind, Statement};
use super::runs::in_parallel;
use crate::engine::Time;
use crate::fabric::workload::Arrival;
use crate::fabric::{self, Counts, Options, Scenario};

/// A statement before it is judged.
struct Claim {
    /// As in the reference.
    id: &'static str,
    kind: Kind,
    published: &'static str,
    band: &'static str,
    judge: fn(&Bench) -> Result<Found, ReproduceError>,
}

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
    /// Most seeds: verdicts are far from their bands' ends, or there is no chance in them.
    const SEEDS: u64 = 3;

    /// Runs that have chance in them are made with seeds 1 to this, 3 at most.
    pub fn new(seeds: u64) -> Self {
        Self {
            seeds: seeds.min(Self::SEEDS),
            runs: AtomicUsize::new(0),
            packet_hops: AtomicU64::new(0),
        }
    }

    /// Judges everything, over all cores.
    ///
    /// # Errors
    ///
    /// A run that cannot be made, or breaks what always holds.
    pub fn judge_all(&self) -> Result<Vec<Statement>, ReproduceError> {
        let claims: Vec<&Claim> = FAMILIES.into_iter().flatten().collect();
        let judge = |index: usize| {
            let claim = claims[index];
            let found = (claim.judge)(self)?;
            let texts = (claim.published, claim.band);
            Ok(Statement::new((claim.id, claim.kind), texts, found))
        };
        in_parallel(claims.len(), judge).into_iter().collect()
    }

    /// Number of runs so far, and packets that crossed a link in them.
    pub fn totals(&self) -> (usize, u64) {
        (
            self.runs.load(Ordering::Relaxed),
            self.packet_hops.load(Ordering::Relaxed),
        )
    }

    /// The seeds of runs that have chance in them.
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
    trace: false,
};

/// A fabric with settings, and flows of its own.
fn scenario(
    kind: fabric::Kind,
    settings: &[&str],
    flows: Vec<Arrival>,
) -> Result<Scenario, ReproduceError> {
    let mut scenario = Scenario::of(kind);
    for setting in settings {
        scenario.set_text(setting)?;
    }
    Ok(scenario.with_flows(flows))
}

/// A flow that starts at this time.
const fn flow(start: Time, from: u32, to: u32, bytes: u64) -> Arrival {
    Arrival {
        start,
        from,
        to,
        bytes,
    }
}
