//! Progress of a running simulation.

use std::fmt::Debug;

use super::cc::Scheme;
use super::run::{Counts, Run, RunError};
use super::series::Series;
use crate::engine::{NS, Time};

/// An observer of a running simulation.
pub trait Watch: Debug + Send + Sync {
    /// Called by each part of a run every few million events, and when all have ended; whether to continue.
    fn on_progress(&self, part: &RunProgress<'_>) -> bool;
}

/// A part of a run so far.
#[derive(Clone, Copy, Debug)]
pub struct RunProgress<'a> {
    /// Which part.
    pub part: usize,
    /// Of so many.
    pub parts: usize,
    /// It has ended, if not well.
    pub ended: bool,
    /// Its time.
    pub now: Time,
    /// What it counted; its finished flows as they finished.
    pub counts: &'a Counts,
    /// What happened when, if that was asked for.
    pub series: Option<&'a Series>,
}

impl<S: Scheme> Run<'_, S> {
    /// Reports the progress to the observer; whether to continue.
    #[cold]
    pub(super) fn report_progress(&self, ended: bool) -> bool {
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

    /// The same, and stops if asked to.
    #[cold]
    pub(super) fn poll_watch(&mut self) {
        if !self.report_progress(false) {
            self.stop(RunError::Stopped {
                ns: self.now() / NS,
            });
        }
    }
}
