//! When flows start and stop and counters are read, and what the readings say; for networks of either kind of switch.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use crate::bounds::ModelError;
use crate::engine::{Event, INDEX, Queue, Scheduler, Time};
use crate::measure::{Record, Snapshot, Window};
use crate::model::{Model, Phases};
use crate::network::Network;

/// Options of a run, besides network and model.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Seed of all random numbers.
    pub seed: u64,
    /// When the run ends.
    pub duration: Time,
    /// Windows in which to count.
    pub windows: Vec<(Time, Time)>,
    /// Step of the time series; 0 for no series.
    pub series_step: Time,
    /// Whether to compare all counters with a scan after each event.
    pub check: bool,
    /// Maximum number of events to record per bridge with output queues.
    pub trace: usize,
    /// Updated regularly with the simulated time.
    pub progress: Option<Arc<AtomicU64>>,
}

impl Options {
    /// The sampling times of the series.
    fn steps(&self) -> impl Iterator<Item = Time> + use<> {
        let step = self.series_step;
        let count = self.duration.checked_div(step).map_or(0, |last| last + 1);
        (0..count).map(move |n| n * step)
    }
}

/// A failed run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimulationError {
    /// An invalid model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A violated invariant.
    #[error("at {at_ps} ps, `{at}`: {what}")]
    Invariant {
        /// When.
        at_ps: Time,
        /// The switch, channel or class.
        at: String,
        /// The violation.
        what: String,
    },
    /// More concurrent objects than events can number.
    #[error("more than {} flows, channels, packets in flight or times to count at", 1u32 << INDEX)]
    TooMany,
}

/// The purpose of an instant.
pub(crate) enum Instant {
    Start(u32),
    Stop(u32),
    Read,
}

/// Schedules all instants. Readings precede all other events of the same time.
pub(crate) fn schedule<Q: Queue>(
    scheduler: &mut Scheduler<Q>,
    network: &Network,
    model: &Model,
    options: &Options,
) -> Result<Vec<(Time, Instant)>, SimulationError> {
    let most = 1u64 << INDEX;
    let steps = options.duration.checked_div(options.series_step);
    if steps.is_some_and(|steps| steps >= most) {
        return Err(SimulationError::TooMany);
    }
    let mut times: Vec<Time> = options
        .windows
        .iter()
        .flat_map(|&(from, to)| [from, to])
        .collect();
    times.extend(options.steps());
    times.sort_unstable();
    times.dedup();
    let mut instants: Vec<_> = times
        .into_iter()
        .map(|time| (time, Instant::Read))
        .collect();
    for (index, flow) in network.flows.iter().enumerate() {
        let phase = match model.phases {
            // One random stream per flow, so that adding a flow does not change the others.
            Phases::Random => Pcg64Mcg::seed_from_u64(options.seed ^ (index as u64) << 32)
                .random_range(0..flow.packet_time.max(1)),
            Phases::Aligned => 0,
        };
        let start = flow.active.start.saturating_add(phase);
        if start < flow.active.end {
            instants.push((start, Instant::Start(index as u32)));
            if flow.active.end <= options.duration {
                instants.push((flow.active.end, Instant::Stop(index as u32)));
            }
        }
    }
    if instants.len() as u64 > most {
        return Err(SimulationError::TooMany);
    }
    for (number, (time, _)) in instants.iter().enumerate() {
        if *time <= options.duration {
            scheduler.at(*time, Event::Instant(number as u32));
        }
    }
    Ok(instants)
}

/// Computes windows and series from the readings and from the final counters.
pub(crate) fn counted(read: &[(Time, Snapshot)], last: &Snapshot, options: &Options) -> Record {
    let at = |time: Time| match read.binary_search_by_key(&time, |(at, _)| *at) {
        Ok(index) => &read[index].1,
        Err(_) => last,
    };
    let windows = options.windows.iter().map(|&(from, to)| {
        let within = |(at, snapshot): &(Time, Snapshot)| {
            (from < *at && *at <= to).then(|| snapshot.queue_peaks.clone())
        };
        Window {
            from,
            to,
            counts: at(to).since(at(from)),
            queue_peaks: read
                .iter()
                .filter_map(within)
                .reduce(higher)
                .unwrap_or_default(),
            delays: Vec::new(),
            completions: Vec::new(),
        }
    });
    Record {
        windows: windows.collect(),
        series: options.steps().map(|time| at(time).clone()).collect(),
        series_step: options.series_step,
        ..Record::default()
    }
}

/// Element-wise maximum.
fn higher(mut peaks: Vec<u32>, others: Vec<u32>) -> Vec<u32> {
    for (peak, other) in peaks.iter_mut().zip(others) {
        *peak = other.max(*peak);
    }
    peaks
}
