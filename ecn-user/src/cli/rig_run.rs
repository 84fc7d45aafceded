//! `ecn rig run`: phases on the rig, live on a terminal, then table, verdict, figures.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use super::exit::{Failure, print, print_json};
use crate::rig::args::RigArgs;
use crate::rig::report::{Phase, live_header, live_row, live_view};
use crate::rig::run::{self, Progress};

/// Runs the phases.
///
/// # Errors
///
/// What the rig, the agent or the traffic say; the results cannot be written.
pub fn run(args: &RigArgs) -> anyhow::Result<()> {
    // Before minutes of measuring, not after.
    std::fs::create_dir_all(&args.out).map_err(|error| {
        Failure::usage(format!("cannot write to {}: {error}", args.out.display()))
    })?;
    let plan = args.plan();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _entered = runtime.enter();
    let stop = Arc::new(AtomicBool::new(false));
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let stop = Arc::clone(&stop);
        let mut signal = signal(kind)?;
        runtime.spawn(async move {
            signal.recv().await;
            stop.store(true, Ordering::Relaxed);
        });
    }
    let mut live = Live::new(plan.topology.victim, args.seconds as f64);
    let report = run::run(&plan, &stop, |progress| live.show(&progress))?;
    live.clear();
    let files = report.write(&args.out)?;
    if args.json {
        return print_json(&report);
    }
    let mut text = format!("{}\n{}\n", report.table(), report.verdict().trim_end());
    text.push_str("\nwritten:");
    for file in files {
        text.push_str(&format!(" {}", file.display()));
    }
    print(&(text + "\n"))
}

/// Progress on the standard error: bars on a terminal, a line per second elsewhere.
struct Live {
    terminal: bool,
    with_victim: bool,
    seconds: f64,
    /// Lines of the last view, to be drawn over.
    lines: usize,
    last_second: i64,
}

impl Live {
    fn new(with_victim: bool, seconds: f64) -> Self {
        Self {
            terminal: stderr().is_terminal(),
            with_victim,
            seconds,
            lines: 0,
            last_second: i64::MIN,
        }
    }

    fn show(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Begin { phase, number, of } => {
                self.clear();
                self.last_second = i64::MIN;
                eprintln!(
                    "phase {number} of {of}: {} (marking {}, response {})",
                    phase.name, phase.marking, phase.response
                );
                if !self.terminal && *number == 1 {
                    eprintln!("{}", live_header());
                }
            }
            Progress::Sample { phase, sample, done } => {
                if self.terminal {
                    let title = if sample.t_s < 0.0 {
                        format!("{} (warming up)", phase.name)
                    } else {
                        phase.name.clone()
                    };
                    let before: Option<&Phase> = done.first();
                    let view = live_view(&title, self.seconds, sample, before, self.with_victim);
                    self.clear();
                    self.lines = view.lines().count();
                    eprint!("{view}");
                    let _ = stderr().flush();
                } else {
                    let second = sample.t_s.floor() as i64;
                    if second > self.last_second {
                        self.last_second = second;
                        eprintln!("{}", live_row(&phase.name, sample, self.with_victim));
                    }
                }
            }
            Progress::End { .. } => self.clear(),
        }
    }

    /// Takes the last view off the terminal.
    fn clear(&mut self) {
        if self.lines > 0 {
            eprint!("\x1b[{}A\x1b[J", self.lines);
            self.lines = 0;
        }
    }
}
