//! `ecn sim reproduce`: the papers' figures and statements.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::Args;
use ecn_papers::report::Report;
use ecn_papers::{Lengths, Options, Part, Progress, ReproduceError, reproduce};
use ecn_report::output::Output;
use ecn_report::terminal::{plain_table, table_text};
use ecn_sim::engine::Time;

use super::{Error, json, print};
use crate::progress::Bar;

/// Arguments of `reproduce`.
#[derive(Args, Debug)]
pub struct ReproduceArgs {
    /// Only these figures and the statements about them: fig2, fig3a to fig3d, fig4a, fig4b, flows-root, flows-ratio,
    /// slide14, slide15; or `schemes`: the statements about BCN, QCN, TCD, IB CC, DCQCN and TIMELY
    #[arg(value_name = "FIGURE")]
    parts: Vec<Part>,
    /// Folder for the figures (SVG), their data (CSV) and the report (report.md, report.json)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of seeds per setting, from 2 (for a standard deviation) to 1000
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=1000))]
    seeds: u64,
    /// Use shorter runs than the papers
    #[arg(long)]
    quick: bool,
    /// One JSON document: the report
    #[arg(long, short)]
    json: bool,
}

impl From<ReproduceError> for Error {
    fn from(error: ReproduceError) -> Self {
        match error {
            ReproduceError::Run(error) => error.into(),
            ReproduceError::Fabric(error) => error.into(),
            ReproduceError::Compare(error) => error.into(),
            ReproduceError::Output(error) => error.into(),
            ReproduceError::Scenario(_)
            | ReproduceError::Value(_)
            | ReproduceError::Panic(_)
            | ReproduceError::Json(_) => Self::failed(error),
        }
    }
}

/// Shows the progress of a batch of runs.
#[derive(Default)]
struct Shown(Mutex<Option<Bar>>);

impl Shown {
    fn bar(&self) -> MutexGuard<'_, Option<Bar>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress for Shown {
    fn begin(&self, total: Time) {
        *self.bar() = Some(Bar::of_time(total));
    }

    fn advance(&self, by: Time) {
        if let Some(bar) = &*self.bar() {
            bar.position().fetch_add(by, Ordering::Relaxed);
        }
    }

    fn end(&self) {
        *self.bar() = None;
    }
}

pub(super) fn run(args: &ReproduceArgs) -> Result<(), Error> {
    let output = Output::new(&args.out)?;
    let options = Options {
        parts: args.parts.clone(),
        seeds: args.seeds,
        lengths: if args.quick {
            Lengths::QUICK
        } else {
            Lengths::PAPERS
        },
    };
    let reproduction = reproduce(&options, &Shown::default())?;
    reproduction.write(&output)?;
    let report = &reproduction.report;
    if args.json {
        print(&json(report)?)?;
    } else {
        print(&shown(report))?;
        print(&format!("figures and report: {}", args.out.display()))?;
    }
    let failed = report.failed();
    if failed.is_empty() {
        return Ok(());
    }
    let ids = failed.join(", ");
    Err(Error::failed(format!(
        "published statements that do not hold here: {ids}"
    )))
}

/// Verdicts as a table for display.
fn shown(report: &Report) -> String {
    let mut table = plain_table(&["", "VERDICT", "PUBLISHED"], &[0, 1, 2]);
    for statement in &report.statements {
        table.add_row([
            &statement.id,
            statement.verdict.name(),
            &statement.published,
        ]);
    }
    format!("{}\n{}", table_text(&table), report.summary())
}
