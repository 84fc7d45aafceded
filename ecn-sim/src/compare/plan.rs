//! The runs of a comparison: one scenario per scheme, each with the same seeds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::CompareError;
use crate::engine::Time;
use crate::experiment;
use crate::parallel::in_parallel;
use crate::settings::{ScenarioError, dotted, shown};

/// A scenario that can be run with several schemes.
pub trait Compared: Clone + Send + Sync {
    /// Keys that name the scheme.
    const SCHEME: &'static [&'static str];

    /// The scenario with a scheme, and with the parameters after its name, as in `NAME:KEY=VALUE:KEY=VALUE`.
    ///
    /// # Errors
    ///
    /// A name or key is unknown or given twice.
    fn with_scheme(&self, text: &str) -> Result<Self, CompareError>;

    /// Keys that are set but have no effect with the other values.
    fn set_but_inapplicable(&self) -> Vec<String>;

    /// Resets a key to its default.
    ///
    /// # Errors
    ///
    /// The key is unknown.
    fn reset(&mut self, key: &str) -> Result<(), ScenarioError>;

    /// All keys and their values.
    fn parameters(&self) -> toml::Table;

    /// Checks that it can be run, with windows in ps.
    ///
    /// # Errors
    ///
    /// It cannot be run.
    fn check(&self, windows: &[(Time, Time)]) -> Result<(), CompareError>;
}

/// A planned comparison.
#[derive(Clone, Debug)]
pub struct Plan<T> {
    pub(super) schemes: Vec<(String, T)>,
    pub(super) seeds: u64,
    pub(super) windows: Vec<(Time, Time)>,
}

impl<T: Compared> Plan<T> {
    /// The scenario with each scheme, seeds 1 to `seeds`, and windows from and up to these times, ps. A key that applies
    /// only to some of the schemes keeps its default with the others.
    ///
    /// # Errors
    ///
    /// No scheme, a duplicate or unknown one, an unknown parameter, no seed, or a run that is not possible.
    pub fn new(
        base: &T,
        schemes: &[String],
        seeds: u64,
        windows: &[(Time, Time)],
    ) -> Result<Self, CompareError> {
        check_names(schemes, seeds)?;
        let mut all = Vec::new();
        for scheme in schemes {
            all.push((scheme.clone(), base.with_scheme(scheme)?));
        }
        reset_inapplicable(&mut all)?;
        for (_, scenario) in &all {
            scenario.check(windows)?;
        }
        Ok(Self {
            schemes: all,
            seeds,
            windows: windows.to_vec(),
        })
    }

    /// Number of runs.
    pub const fn runs(&self) -> usize {
        // Both factors are far below 2^32.
        self.schemes.len() * self.seeds as usize
    }

    /// Runs everything on `threads` threads; `progress` counts runs. Returns the values common to all schemes, and the
    /// outcome of each, which `outcome` makes from its name, its other values and the results of its runs.
    pub(super) fn outcomes<R: Send, E: Into<experiment::Error>, O>(
        &self,
        threads: usize,
        progress: &AtomicU64,
        run: impl Fn(&T, u64) -> Result<R, E> + Sync,
        outcome: impl Fn(String, BTreeMap<String, String>, Vec<R>) -> O,
    ) -> Result<(BTreeMap<String, String>, Vec<O>), CompareError> {
        let results = in_parallel(self.runs(), threads, |index| {
            let (scheme, scenario) = &self.schemes[index / self.seeds as usize];
            let seed = index as u64 % self.seeds + 1;
            let result = run(scenario, seed);
            progress.fetch_add(1, Ordering::Relaxed);
            result.map_err(|error| CompareError::Run {
                scheme: scheme.clone(),
                seed,
                error: error.into(),
            })
        })?;
        let mut results = results.into_iter();
        let (common, own) = self.parameters();
        let schemes = self.schemes.iter().zip(own).map(|((scheme, _), own)| {
            let runs = results.by_ref().take(self.seeds as usize).collect();
            outcome(scheme.clone(), own, runs)
        });
        Ok((common, schemes.collect()))
    }

    /// Values common to all schemes, and the values of each scheme that are not; without the scheme's name.
    fn parameters(&self) -> (BTreeMap<String, String>, Vec<BTreeMap<String, String>>) {
        let mut all: Vec<_> = (self.schemes.iter())
            .map(|(_, scenario)| flat(&scenario.parameters()))
            .collect();
        let is_name = |key: &str| T::SCHEME.contains(&key);
        let mut common = all[0].clone();
        common.retain(|key, value| {
            !is_name(key) && all.iter().all(|own| own.get(key) == Some(value))
        });
        for own in &mut all {
            own.retain(|key, _| !is_name(key) && !common.contains_key(key));
        }
        (common, all)
    }
}

/// All runs, or only one if all are the same: repeating a scenario without randomness adds no information. The order of
/// seeds is kept, because schemes are compared seed by seed.
pub(super) fn distinct<R>(mut runs: Vec<R>, are_same: impl Fn(&R, &R) -> bool) -> Vec<R> {
    if runs.iter().all(|run| are_same(run, &runs[0])) {
        runs.truncate(1);
    }
    runs
}

/// The key of a setting in the scheme `text`.
pub(super) fn key<'a>(text: &str, setting: &'a str) -> Result<&'a str, CompareError> {
    let (key, _) = setting.split_once('=').ok_or_else(|| {
        let reason = format!("KEY=VALUE is needed, not `{setting}`");
        CompareError::scheme(text, &reason)
    })?;
    Ok(key)
}

/// Keys and values as in the command line; keys of inner tables as `table.key`.
fn flat(table: &toml::Table) -> BTreeMap<String, String> {
    let all = dotted(table, |_, _| false).into_iter();
    all.map(|(key, value)| (key, shown(&value))).collect()
}

/// Rejects duplicate schemes and empty lists of schemes or seeds.
fn check_names(schemes: &[String], seeds: u64) -> Result<(), CompareError> {
    let twice = |index: usize| schemes[..index].contains(&schemes[index]);
    if let Some(index) = (0..schemes.len()).find(|index| twice(*index)) {
        let reason = format!("the scheme `{}` is given twice", schemes[index]);
        return Err(CompareError::Schemes(reason));
    }
    if schemes.is_empty() || seeds == 0 {
        let reason = "at least one scheme and one seed are needed";
        return Err(CompareError::Schemes(reason.to_owned()));
    }
    Ok(())
}

/// Resets keys of each scheme's scenario that apply only to other schemes.
fn reset_inapplicable<T: Compared>(all: &mut [(String, T)]) -> Result<(), CompareError> {
    let inapplicable: Vec<_> = (all.iter())
        .map(|(_, one)| one.set_but_inapplicable())
        .collect();
    for ((_, scenario), own) in all.iter_mut().zip(&inapplicable) {
        let elsewhere = |key: &&String| inapplicable.iter().any(|other| !other.contains(key));
        for key in own.iter().filter(elsewhere) {
            scenario.reset(key)?;
        }
    }
    Ok(())
}
