//! Independent jobs on several threads: runs with other seeds, settings or schemes.
//!
//! ```
//! use ecn_sim::fabric::{Kind, Options, Scenario, run};
//! use ecn_sim::parallel::{cores, in_parallel};
//! use ecn_report::statistics::Sample;
//!
//! let mut incast = Scenario::of(Kind::Dumbbell);
//! for setting in ["hosts=8", "senders=4", "flow_size=50kB", "scheme=bcn"] {
//!     incast.set_text(setting)?;
//! }
//! // Seeds 1 to 3.
//! let ends = in_parallel(3, cores(), |index| -> Result<f64, Box<dyn std::error::Error + Send + Sync>> {
//!     let (report, _) = run(&incast, index as u64 + 1, &Options::default())?;
//!     Ok(report.last_flow_end_ms.unwrap_or(f64::NAN))
//! })?;
//! let end_ms = Sample::of(ends);
//! println!("{:.3} ms ± {:?}", end_ms.mean, end_ms.half_width());
//! # assert!(end_ms.mean > 0.0);
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A job panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a run ended in a panic")]
pub struct Panicked;

impl From<Panicked> for std::io::Error {
    fn from(panicked: Panicked) -> Self {
        Self::other(panicked)
    }
}

/// The number of cores that this process may use; 1 if it is unknown.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// Executes the jobs 0 to `jobs` - 1 on up to `threads` threads, and returns their results. Jobs are started in order,
/// so the longest should come first. (rayon would start them in the order of its splits.)
///
/// # Errors
///
/// The error of the first job, in their order, that failed; after an error no further job is started. [`Panicked`] if a
/// job panicked.
pub fn in_parallel<T: Send, E: Send + From<Panicked>>(
    jobs: usize,
    threads: usize,
    job: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new((0..jobs).map(|_| None).collect::<Vec<_>>());
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= jobs {
                break;
            }
            let result = job(index);
            if result.is_err() {
                next.store(jobs, Ordering::Relaxed);
            }
            done.lock().unwrap_or_else(PoisonError::into_inner)[index] = Some(result);
        }
    };
    thread::scope(|scope| {
        let workers = (0..threads.max(1).min(jobs)).map(|_| scope.spawn(work));
        let workers: Vec<_> = workers.collect();
        let ends = workers.into_iter().map(|worker| worker.join());
        ends.fold(Ok(()), Result::and)
    })
    .map_err(|_| Panicked)?;
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(
        jobs: usize,
        job: impl Fn(usize) -> std::io::Result<usize> + Sync,
    ) -> Result<Vec<usize>, String> {
        in_parallel(jobs, 3, job).map_err(|error| error.to_string())
    }

    #[test]
    fn results_are_in_the_order_of_the_jobs() {
        assert_eq!(of(100, Ok), Ok((0..100).collect()));
        assert_eq!(of(0, Ok), Ok(Vec::new()));
    }

    #[test]
    fn the_first_error_is_returned_and_a_panic_is_one() {
        let begun = AtomicUsize::new(0);
        let failing = |index| {
            begun.fetch_add(1, Ordering::Relaxed);
            match index {
                0..10 => Ok(index),
                _ => Err(std::io::Error::other(format!("job {index}"))),
            }
        };
        assert_eq!(of(1_000, failing), Err("job 10".to_owned()));
        assert!(begun.load(Ordering::Relaxed) < 20);
        let panicking = |index| {
            if index == 1 {
                panic!("of a test")
            } else {
                Ok(index)
            }
        };
        assert_eq!(of(2, panicking), Err(Panicked.to_string()));
    }
}
