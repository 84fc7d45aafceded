//! `ecn sim sweep`: a scenario for every combination of some values.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use ecn_sim::sweep::{Job, Shard, Sweep};

use super::{Error, json, print, threads};
use crate::progress::Bar;

/// Arguments of `sweep`.
#[derive(Args, Debug)]
pub struct SweepArgs {
    /// Sweep file (TOML)
    file: PathBuf,
    /// Folder for the records; an interrupted sweep resumes in it
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Run only every N-th run, starting at the K-th
    #[arg(long, value_name = "K/N", default_value_t = Shard::WHOLE, hide_default_value = true)]
    shard: Shard,
    /// Number of parallel runs; default: one per core
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// One JSON document
    #[arg(long, short)]
    json: bool,
}

pub(super) fn run(args: &SweepArgs) -> Result<(), Error> {
    let sweep = Sweep::load(&args.file)?;
    let job = Job::open(&sweep, &args.out, args.shard)?;
    let bar = Bar::of_runs(job.left() as u64);
    let summary = job.run(threads(args.threads), &bar.position())?;
    drop(bar);
    if args.json {
        print(&json(&summary)?)?;
    } else {
        let there = match summary.resumed {
            0 => String::new(),
            runs => format!(", {runs} of them earlier"),
        };
        let (runs, seconds, file) = (summary.runs, summary.wall_s, summary.file.display());
        print(&format!("{runs} runs{there}, in {seconds:.1} s: {file}"))?;
    }
    match summary.first_failure {
        Some(first) => Err(Error::failed(format!(
            "{} of {} runs failed, the first: {first}",
            summary.failed, summary.runs
        ))),
        None => Ok(()),
    }
}
