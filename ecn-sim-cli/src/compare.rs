//! `ecn sim compare`: the same runs with several schemes.

use std::iter::once;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use ecn_report::output::Target;
use ecn_report::table::{Table, csv};
use ecn_report::terminal::{plain_table, table_text};
use ecn_sim::compare::{CompareError, Comparison, HEADER, Plan, SharesComparison};
use ecn_sim::experiment::Experiment;
use ecn_sim::fabric;
use ecn_sim::scenario::Scenario;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Error, json, print, set_all, threads, windows};
use crate::progress::Bar;

/// Arguments of `compare`.
#[derive(Args, Debug)]
pub struct CompareArgs {
    /// A built-in scenario (see `list`) or a TOML file
    scenario: String,
    /// Schemes to compare, such as none,dcqcn,dcqcn:cnp_gap=4us; for HP's networks and bridges RESPONSE/MARKING, such
    /// as none,lipd/input-output
    #[arg(long, value_name = "A,B,...", required = true, value_delimiter = ',')]
    schemes: Vec<String>,
    /// Folder for the results (JSON, CSV, Parquet) and, for a data centre, report.html and its figures (SVG); or a
    /// *.csv or *.parquet file for the table of runs
    #[arg(long, value_name = "DIR|FILE")]
    out: PathBuf,
    /// Run each scheme with seeds 1 to N; if nothing is random, the identical runs count as one
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Set a key (see `list`), such as hosts=16; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Report also on the interval from FROM up to TO (exclusive), such as 42ms..59ms; may be repeated
    #[arg(long, value_name = "FROM..TO")]
    window: Vec<String>,
    /// Number of parallel runs; default: one per core
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// One JSON document
    #[arg(long, short)]
    json: bool,
}

/// A comparison, as `compare -j` prints it.
#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its schema is printed")]
pub(super) enum Any {
    /// A data centre: its flows.
    Flows(Comparison),
    /// HP's networks and bridges: shares of links.
    Shares(SharesComparison),
}

impl From<CompareError> for Error {
    fn from(error: CompareError) -> Self {
        match error {
            CompareError::Run { error: ref run, .. } => {
                let code = Self::from(run.clone()).code;
                Self::new(code, error)
            }
            CompareError::Panic(_) => Self::failed(error),
            _ => Self::usage(error),
        }
    }
}

pub(super) fn run(args: &CompareArgs) -> Result<(), Error> {
    let is_scheme = |setting: &String| setting.split('=').next().map(str::trim) == Some("scheme");
    if args.set.iter().any(is_scheme) {
        let reason = "`scheme` cannot be set in a comparison: use --schemes";
        return Err(Error::usage(reason));
    }
    let mut experiment = Experiment::find(&args.scenario)?;
    set_all(&mut experiment, &args.set)?;
    let windows = windows(&args.window)?;
    let trimmed = |scheme: &String| {
        let words: Vec<&str> = scheme.split(':').map(str::trim).collect();
        words.join(":")
    };
    let schemes: Vec<String> = args.schemes.iter().map(trimmed).collect();
    if schemes.iter().any(String::is_empty) {
        let reason = "--schemes: empty name between commas";
        return Err(Error::usage(reason));
    }
    match experiment {
        Experiment::Fabric(scenario) => of_flows(
            args,
            &Plan::new(&*scenario, &schemes, args.seeds, &windows)?,
        ),
        Experiment::Shares(scenario) => of_shares(
            args,
            &Plan::new(&*scenario, &schemes, args.seeds, &windows)?,
        ),
    }
}

/// All files that `compare` may write into a folder.
const FILES: &[&str] = &[
    "compare.json",
    "compare.csv",
    "runs.csv",
    "runs.parquet",
    "slowdown-by-size.csv",
    "report.html",
    "network.svg",
    "means.svg",
    "slowdown-cdf.svg",
    "slowdown-by-size.svg",
    "goodput.svg",
    "data-that-waits-in-switches.svg",
    "longest-queue.svg",
    "ports-that-may-not-send.svg",
];

/// Writes the table of runs into a folder with these other files, or alone; returns its path then.
fn write(
    target: &Target,
    runs: &Table,
    others: impl FnOnce() -> Vec<(String, String)>,
) -> Result<Option<PathBuf>, Error> {
    if let Some(output) = target.folder() {
        let mut files = runs.files("runs").map_err(Error::failed)?;
        let others = others().into_iter();
        files.extend(others.map(|(name, text)| (name, text.into_bytes())));
        output.replace_all(&files, FILES)?;
    }
    Ok(target.write_table(runs)?)
}

/// A data centre: completion times of flows.
fn of_flows(args: &CompareArgs, plan: &Plan<fabric::Scenario>) -> Result<(), Error> {
    let target = Target::new(&args.out)?;
    let bar = Bar::of_runs(plan.runs() as u64);
    let comparison = plan.run(threads(args.threads), &bar.position())?;
    drop(bar);
    for note in plan.notes() {
        eprintln!("{note}");
    }
    let document = json(&comparison)?;
    let others = || {
        let figures = comparison.figures();
        let texts = [
            ("compare.json", format!("{document}\n")),
            ("compare.csv", csv(comparison.rows())),
            ("slowdown-by-size.csv", csv(comparison.rows_by_size())),
            ("report.html", comparison.html(&figures)),
        ];
        let texts = texts.map(|(name, text)| (name.to_owned(), text));
        let figures = figures.into_iter().map(|figure| (figure.file, figure.svg));
        texts.into_iter().chain(figures).collect()
    };
    let table = write(&target, &comparison.runs(), others)?;
    if args.json {
        return print(&document);
    }
    let mut shown = plain_table(&HEADER, &[0]);
    shown.add_rows(comparison.table());
    let mut text = table_text(&shown) + "\n";
    let windows = comparison.windows();
    if !windows.is_empty() {
        let schemes = comparison.schemes.iter().map(|one| one.scheme.as_str());
        text += &format!("{}\n", by_window(schemes, windows));
    }
    let path = table.unwrap_or_else(|| args.out.join("report.html"));
    print(&format!("{text}{}", path.display()))
}

/// HP's networks, and bridges: shares of links.
fn of_shares(args: &CompareArgs, plan: &Plan<Scenario>) -> Result<(), Error> {
    let target = Target::new(&args.out)?;
    let bar = Bar::of_runs(plan.runs() as u64);
    let comparison = plan.run(threads(args.threads), &bar.position())?;
    drop(bar);
    let document = json(&comparison)?;
    let others = || {
        vec![
            ("compare.json".to_owned(), format!("{document}\n")),
            ("compare.csv".to_owned(), csv(comparison.rows())),
        ]
    };
    write(&target, &comparison.runs(), others)?;
    if args.json {
        return print(&document);
    }
    let schemes = comparison.schemes.iter().map(|one| one.scheme.as_str());
    let shown = by_window(schemes, comparison.table());
    print(&format!("{shown}\n{}", args.out.display()))
}

/// The text of a table with a column per scheme.
fn by_window<'a>(schemes: impl Iterator<Item = &'a str>, rows: Vec<Vec<String>>) -> String {
    let header: Vec<&str> = once("WINDOW, MEASURE").chain(schemes).collect();
    let mut table = plain_table(&header, &[0]);
    table.add_rows(rows);
    table_text(&table)
}
