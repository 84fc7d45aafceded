//! `ecn top`: a live view of the rates of ports and flows.

mod app;
mod columns;
pub(super) mod rates;
mod screen;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use ecn_report::number::short_count;
use ratatui::crossterm::terminal;

use self::columns::{FLOWS, PORTS};
use self::rates::{Meter, Top};
use super::exit;
use super::table::warnings_text;
use super::view::View;
use super::watch::{self, Show, seconds};

/// `ecn top`.
#[derive(Args, Debug)]
pub(super) struct TopArgs {
    /// Seconds of each measurement, 0.05 to 86400
    #[arg(long, short = 's', alias = "seconds", value_name = "SECONDS", default_value = "1",
          value_parser = seconds)]
    interval: Duration,
    /// Maximum number of ports, and of flows, to print; the live view on a terminal shows all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 12)]
    rows: usize,
    /// Print one measurement and exit
    #[arg(long)]
    once: bool,
    /// Directory of the pinned maps; by default that of the running agent
    #[arg(long, value_name = "DIR")]
    pin: Option<PathBuf>,
    /// Print one JSON document per interval, each on a line, and nothing else
    #[arg(long, short = 'j')]
    json: bool,
}

/// Repeated readings of a datapath.
struct Looks<'a> {
    args: &'a TopArgs,
    meter: Meter,
}

impl Looks<'_> {
    /// What was measured since the previous reading, and why the numbers do not change, if they do not.
    fn next(&mut self) -> anyhow::Result<(Top, Option<String>)> {
        let view = View::open(self.args.pin.as_deref())?;
        let mut top = self
            .meter
            .measure(view.ports()?, view.flows()?, Instant::now());
        top.warnings = view.warnings().to_vec();
        top.waiting.clone_from(&view.state.waiting);
        Ok((top, view.stale()))
    }
}

/// The totals in one line.
fn summary(top: &Top) -> String {
    let count = |rate: Option<u64>| rate.map_or_else(|| "-".to_owned(), short_count);
    format!(
        "{} ports, {} flows; packets/s: {} acked, {} marked, {} dropped",
        top.ports_in_all,
        top.flows_in_all,
        count(top.acked_packets_per_s),
        count(top.marked_packets_per_s),
        count(top.dropped_packets_per_s)
    )
}

fn text(top: &Top, width: usize) -> String {
    let ports: Vec<_> = top.ports.iter().collect();
    let flows: Vec<_> = top.flows.iter().collect();
    let mut text = format!(
        "{}\n\n{}\n{}",
        summary(top),
        columns::table(&PORTS, &ports, width),
        columns::table(&FLOWS, &flows, width)
    );
    text.push_str(&warnings_text(&top.warnings));
    for waiting in &top.waiting {
        text.push_str(&format!("waiting: {waiting}\n"));
    }
    text
}

/// Runs the verb until it is stopped.
///
/// # Errors
///
/// No datapath; the terminal cannot be used.
pub(super) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let mut looks = Looks {
        args,
        meter: Meter::default(),
    };
    // Fails if there is no datapath.
    let (_, stale) = looks.next()?;
    if !args.json && !args.once && watch::can_redraw() {
        return screen::run(args.interval, || match looks.next() {
            Ok(found) => found,
            Err(error) => {
                // Another agent's counters start from 0.
                looks.meter = Meter::default();
                (Top::default(), Some(exit::message(&error)))
            }
        });
    }
    if let Some(stale) = stale {
        exit::note(&stale);
    }
    sleep(args.interval);
    let how = Show {
        watch: (!args.once).then_some(args.interval),
        json: args.json,
    };
    let width = terminal_width();
    let look = || {
        let (mut top, _) = looks.next()?;
        top.ports.truncate(args.rows);
        top.flows.truncate(args.rows);
        Ok(top)
    };
    watch::show(&how, look, |top| text(top, width))
}

/// Width of the terminal; unlimited without one.
fn terminal_width() -> usize {
    use std::io::{IsTerminal as _, stdout};
    let size = stdout().is_terminal().then(terminal::size);
    size.and_then(Result::ok)
        .map_or(usize::MAX, |(width, _)| usize::from(width))
}
