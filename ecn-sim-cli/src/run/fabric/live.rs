//! Progress of a running data centre: flows and series are streamed to files, and one line shows the progress.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ecn_report::output::{Growing, Output, OutputError};
use ecn_report::table::csv;
use ecn_sim::engine::{MS, Time};
use ecn_sim::fabric::RunError;
use ecn_sim::fabric::measure::{COLUMNS, Finished};
use ecn_sim::fabric::series::Series;
use ecn_sim::fabric::topology::Topology;
use ecn_sim::fabric::watch::{RunProgress, Watch};
use hdrhistogram::Histogram;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::{Error, STOPPED};

/// Files streamed during a run: flows as its parts report their completion, and the series so far.
pub(super) const PARTIAL: [&str; 2] = [FLOWS, SERIES];
const FLOWS: &str = "flows.csv.part";
const SERIES: &str = "series.csv.part";

/// Interval at which the file of the series is rewritten as a whole.
const SERIES_EVERY: Duration = Duration::from_secs(1);

/// Slowdowns are limited to a million; in thousandths.
const MOST_SLOWDOWN: u64 = 1_000_000_000;

/// Progress reported by the parts of a run.
#[derive(Debug)]
pub(super) struct Live {
    state: Mutex<State>,
    /// Set by a signal to stop the run.
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
struct State {
    parts: Vec<Part>,
    /// Slowdowns of the finished flows, in thousandths, within a hundredth.
    slowdowns: Histogram<u64>,
    files: Option<Files>,
    error: Option<OutputError>,
}

/// The last report of a part.
#[derive(Clone, Debug, Default)]
struct Part {
    now: Time,
    started: u64,
    finished: usize,
    dropped: u64,
    pauses: u64,
    marked: u64,
    series: Option<Series>,
}

#[derive(Debug)]
struct Files {
    output: Output,
    topology: Topology,
    flows: Option<Growing>,
    series_at: Instant,
}

impl Live {
    /// With a folder, files are streamed there, and a signal stops the run instead of the program; a second one stops
    /// the program.
    pub(super) fn new(files: Option<(Output, Topology)>) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        if files.is_some() {
            for signal in [SIGINT, SIGTERM] {
                flag::register_conditional_shutdown(signal, STOPPED.into(), Arc::clone(&stop))
                    .and_then(|_| flag::register(signal, Arc::clone(&stop)))
                    .map_err(|error| Error::failed(format!("cannot wait for signals: {error}")))?;
            }
        }
        let files = files.map(|(output, topology)| Files {
            output,
            topology,
            flows: None,
            series_at: Instant::now(),
        });
        let state = State {
            parts: Vec::new(),
            slowdowns: Histogram::new_with_max(MOST_SLOWDOWN, 2).map_err(Error::failed)?,
            files,
            error: None,
        };
        Ok(Self {
            state: Mutex::new(state),
            stop,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The progress of the run in one line.
    pub(super) fn text(&self) -> String {
        let state = self.state();
        let sum = |of: fn(&Part) -> u64| state.parts.iter().map(of).sum::<u64>();
        let now = state.parts.iter().map(|part| part.now).max();
        let finished = state.slowdowns.len();
        let slowdown = |part| state.slowdowns.value_at_quantile(part) as f64 / 1e3;
        let slowdowns = match finished {
            0 => String::new(),
            _ => format!(", slowdown {:.1}/{:.1}", slowdown(0.5), slowdown(0.99)),
        };
        // Fits in 80 columns.
        format!(
            "{:.3} ms: {finished}/{} flows{slowdowns}, dropped {}, pauses {}, marked {}",
            now.unwrap_or_default() as f64 / MS as f64,
            sum(|part| part.started),
            sum(|part| part.dropped),
            sum(|part| part.pauses),
            sum(|part| part.marked),
        )
    }

    /// The error of a failed run, with the files that hold its results so far.
    pub(super) fn failed(&self, error: RunError) -> Error {
        let mut state = self.state();
        let error = match state.error.take() {
            Some(error) => Error::failed(error),
            None => error.into(),
        };
        let Some(Files {
            output,
            flows: Some(_),
            ..
        }) = &state.files
        else {
            return error;
        };
        let [flows, series] = PARTIAL.map(|name| output.path(name).display().to_string());
        let older = if output.path("run.json").exists() {
            "; run.json and the other files there are from an earlier run"
        } else {
            ""
        };
        Error {
            message: format!("{error}; results up to then are in {flows} and {series}{older}"),
            ..error
        }
    }
}

impl Watch for Live {
    fn on_progress(&self, part: &RunProgress<'_>) -> bool {
        let mut state = self.state();
        if let Err(error) = state.take(part) {
            state.error.get_or_insert(error);
        }
        state.error.is_none() && !self.stop.load(Ordering::Relaxed)
    }
}

impl State {
    /// Records a part's report.
    fn take(&mut self, so_far: &RunProgress<'_>) -> Result<(), OutputError> {
        self.parts.resize(so_far.parts, Part::default());
        let counts = so_far.counts;
        let part = &mut self.parts[so_far.part];
        let new = &counts.finished[part.finished..];
        for flow in new {
            let thousandths = (flow.slowdown * 1e3) as u64;
            self.slowdowns.saturating_record(thousandths);
        }
        *part = Part {
            now: so_far.now,
            started: counts.flows_started,
            finished: counts.finished.len(),
            dropped: counts.dropped_packets,
            pauses: counts.pause_frames,
            marked: counts.marked_packets,
            series: part.series.take(),
        };
        let Some(files) = &mut self.files else {
            return Ok(());
        };
        files.add(new)?;
        if so_far.parts == 1 {
            return files.write_series(so_far.series, so_far.ended);
        }
        part.series = so_far.series.cloned();
        let is_last = so_far.ended && so_far.part + 1 == so_far.parts;
        if !files.is_due(is_last) {
            return Ok(());
        }
        let mut all = self.parts.iter().map(|part| part.series.as_ref());
        let mut joined = all.next().flatten().cloned();
        for other in all {
            joined = joined.zip(other).map(|(mut joined, other)| {
                joined.join(other);
                joined
            });
        }
        files.write_series(joined.as_ref(), is_last)
    }
}

impl Files {
    /// Adds finished flows.
    fn add(&mut self, flows: &[Finished]) -> Result<(), OutputError> {
        if self.flows.is_none() {
            let mut file = self.output.grow(FLOWS)?;
            file.push(&csv([COLUMNS.iter().map(|(name, _)| name)]))?;
            self.flows = Some(file);
        }
        match &mut self.flows {
            Some(file) if !flows.is_empty() => {
                let row = |flow: &Finished| flow.row(true).into_iter().map(|cell| cell.to_string());
                file.push(&csv(flows.iter().map(row)))
            }
            _ => Ok(()),
        }
    }

    fn is_due(&self, at_once: bool) -> bool {
        at_once || self.series_at.elapsed() >= SERIES_EVERY
    }

    /// Writes the series, if due.
    fn write_series(&mut self, series: Option<&Series>, at_once: bool) -> Result<(), OutputError> {
        if let Some(series) = series
            && self.is_due(at_once)
        {
            let table = series.table(|port| self.topology.port_name(port));
            self.output.write(SERIES, table.csv())?;
            self.series_at = Instant::now();
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use ecn_sim::fabric::Counts;

    #[test]
    fn progress_is_of_all_parts() {
        let live = Live::new(None).unwrap();
        let nothing = "0.000 ms: 0/0 flows, dropped 0, pauses 0, marked 0";
        assert_eq!(live.text(), nothing);
        let flow = |slowdown| Finished {
            slowdown,
            ..Finished::default()
        };
        let mut counts = Counts {
            flows_started: 60,
            marked_packets: 4,
            pause_frames: 2,
            ..Counts::default()
        };
        let look = |part, counts: &Counts| {
            live.on_progress(&RunProgress {
                part,
                parts: 2,
                ended: false,
                now: 3 * MS / 2 * (part as Time + 1),
                counts,
                series: None,
            })
        };
        // Earlier reports are repeated, with more.
        for (part, slowdowns) in [(0, 1..26), (1, 51..76), (0, 1..51), (1, 51..101)] {
            counts.finished = slowdowns.map(|n| flow(n.into())).collect();
            assert!(look(part, &counts));
        }
        let text = "3.000 ms: 100/120 flows, slowdown 50.";
        assert!(live.text().starts_with(text), "{}", live.text());
        let text = ", dropped 0, pauses 4, marked 8";
        assert!(live.text().ends_with(text), "{}", live.text());
        live.stop.store(true, Ordering::Relaxed);
        assert!(!look(1, &counts));
    }
}
