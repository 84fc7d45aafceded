//! Progress of a running simulation.

use std::fmt::Debug;

use super::series::Series;
use super::{Counts, Run, RunError};
use crate::engine::{NS, Time};
use crate::fabric::cc::Scheme;

/// An observer of a running simulation.
pub trait Watch: Debug + Send + Sync {
    /// Called by each part of a run every few million events, and when all have ended. Returns whether to continue.
    fn on_progress(&self, part: &RunProgress<'_>) -> bool;
}

/// Progress of a part of a run.
#[derive(Clone, Copy, Debug)]
pub struct RunProgress<'a> {
    /// Index of the part.
    pub part: usize,
    /// Number of parts.
    pub parts: usize,
    /// Whether the part has ended, successfully or not.
    pub ended: bool,
    /// Its simulated time.
    pub now: Time,
    /// Its counts, with finished flows in order of completion.
    pub counts: &'a Counts,
    /// Its time series, if requested.
    pub series: Option<&'a Series>,
}

impl<S: Scheme> Run<'_, S> {
    /// Reports the progress to the observer. Returns whether to continue.
    #[cold]
    pub(in crate::fabric) fn report_progress(&self, ended: bool) -> bool {
        let so_far = RunProgress {
            part: self.part.number().into(),
            parts: self.part.count(),
            ended,
            now: self.now(),
            counts: &self.counts,
            series: self.series.as_ref(),
        };
        self.watch
            .as_ref()
            .is_none_or(|watch| watch.on_progress(&so_far))
    }

    /// Reports the progress, and stops the run if the observer requests it.
    #[cold]
    pub(in crate::fabric) fn poll_watch(&mut self) {
        if !self.report_progress(false) {
            self.stop(RunError::Stopped {
                ns: self.now() / NS,
            });
        }
    }
}
