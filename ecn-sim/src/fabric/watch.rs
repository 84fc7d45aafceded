//! What a run says of itself while it goes on.

use std::fmt::Debug;

use super::cc::Scheme;
use super::run::{Counts, Run, RunError};
use super::series::Series;
use crate::engine::{NS, Time};

/// Whoever looks at a run that goes on.
pub trait Watch: Debug + Send + Sync {
    /// Called by each part of a run every few million events, and when all have ended; whether it is to go on.
    fn look(&self, part: &SoFar<'_>) -> bool;
}

/// A part of a run so far.
#[derive(Clone, Copy, Debug)]
pub struct SoFar<'a> {
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
    /// Says how far it is to whoever looks; whether it is to go on.
    #[cold]
    pub(super) fn say(&self, ended: bool) -> bool {
        let so_far = SoFar {
            part: self.part.number().into(),
            parts: self.part.count(),
            ended,
            now: self.now(),
            counts: &self.counts,
            series: self.series.as_ref(),
        };
        self.watch.as_ref().is_none_or(|watch| watch.look(&so_far))
    }

    /// The same, and stops if it is not to go on.
    #[cold]
    pub(super) fn look(&mut self) {
        if !self.say(false) {
            self.stop(RunError::Stopped {
                ns: self.now() / NS,
            });
        }
    }
}
