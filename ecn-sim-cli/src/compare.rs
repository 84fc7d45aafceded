//! `ecn sim compare`: the same runs with several schemes.

use std::iter::once;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use ecn_report::output::Target;
use ecn_report::table::csv;
use ecn_report::terminal::{plain_table, table_text};
use ecn_sim::compare::{
    COLUMNS, COLUMNS_BY_SIZE, CompareError, Comparison, HEADER, Plan, SharesComparison, shares,
};
use ecn_sim::experiment::Experiment;
use ecn_sim::parallel::cores;
use ecn_sim::scenario::Scenario;
use schemars::JsonSchema;
use serde::Serialize;

use super::run::windows;
use super::{Error, check_set_once, json, print};
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
                Self {
                    code,
                    ..Self::failed(error)
                }
            }
            CompareError::Panic(_) => Self::failed(error),
            _ => Self::usage(error),
        }
    }
}

pub(super) fn run(args: &CompareArgs) -> Result<(), Error> {
    check_set_once(&args.set)?;
    let mut experiment = Experiment::find(&args.scenario)?;
    for setting in &args.set {
        if setting.split('=').next().map(str::trim) == Some("scheme") {
            let reason = "`scheme` cannot be set in a comparison: use --schemes";
            return Err(Error::usage(reason));
        }
        experiment.set_text(setting)?;
    }
    let windows = windows(&args.window)?;
    let trimmed = |scheme: &String| {
        scheme
            .split(':')
            .map(str::trim)
            .collect::<Vec<_>>()
            .join(":")
    };
    let schemes: Vec<String> = args.schemes.iter().map(trimmed).collect();
    if schemes.iter().any(String::is_empty) {
        let reason = "--schemes: empty name between commas";
        return Err(Error::usage(reason));
    }
    let scenario = match experiment {
        Experiment::Fabric(scenario) => scenario,
        Experiment::Shares(scenario) => {
            let plan = Plan::new(&*scenario, &schemes, args.seeds, &windows)?;
            return of_shares(args, &plan);
        }
    };
    let plan = Plan::new(&*scenario, &schemes, args.seeds, &windows)?;
    let target = Target::new(&args.out)?;
    let threads = args.threads.map_or_else(cores, NonZeroUsize::get);
    let bar = Bar::of_runs(plan.runs() as u64);
    let comparison = plan.run(threads, &bar.position())?;
    bar.finish();
    for note in plan.notes() {
        eprintln!("{note}");
    }
    let runs = comparison.runs();
    let Some(output) = target.folder() else {
        let path = target.write_table(&runs)?;
        return shown(args, &comparison, path.as_deref().unwrap_or(&args.out));
    };
    let figures = comparison.figures();
    let document = json(&comparison)? + "\n";
    let table = csv(once(COLUMNS.map(str::to_owned)).chain(comparison.rows()));
    let by_size = once(COLUMNS_BY_SIZE.map(str::to_owned)).chain(comparison.rows_by_size());
    let report = comparison.html(&figures);
    let mut files = runs.files("runs").map_err(Error::failed)?;
    let texts = [
        ("compare.json", document),
        ("compare.csv", table),
        ("slowdown-by-size.csv", csv(by_size)),
        ("report.html", report),
    ];
    files.extend(texts.map(|(name, text)| (name.to_owned(), text.into_bytes())));
    let drawn = figures.into_iter();
    files.extend(drawn.map(|figure| (figure.file, figure.svg.into_bytes())));
    output.replace_all(&files, FILES)?;
    shown(args, &comparison, &output.path("report.html"))
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

/// HP's networks, and bridges.
fn of_shares(args: &CompareArgs, plan: &Plan<Scenario>) -> Result<(), Error> {
    let target = Target::new(&args.out)?;
    let threads = args.threads.map_or_else(cores, NonZeroUsize::get);
    let bar = Bar::of_runs(plan.runs() as u64);
    let comparison = plan.run(threads, &bar.position())?;
    bar.finish();
    let runs = comparison.runs();
    if let Some(output) = target.folder() {
        let mut files = runs.files("runs").map_err(Error::failed)?;
        let table = csv(once(shares::COLUMNS.map(str::to_owned)).chain(comparison.rows()));
        let document = json(&comparison)? + "\n";
        let texts = [("compare.json", document), ("compare.csv", table)];
        files.extend(texts.map(|(name, text)| (name.to_owned(), text.into_bytes())));
        output.replace_all(&files, FILES)?;
    } else {
        target.write_table(&runs)?;
    }
    if args.json {
        return print(&json(&comparison)?);
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

/// Prints the comparison, and the path of its files.
fn shown(args: &CompareArgs, comparison: &Comparison, path: &Path) -> Result<(), Error> {
    if args.json {
        return print(&json(comparison)?);
    }
    let mut shown = plain_table(&HEADER, &[0]);
    shown.add_rows(comparison.table());
    let mut text = table_text(&shown) + "\n";
    let windows = comparison.windows();
    if !windows.is_empty() {
        let schemes = comparison.schemes.iter().map(|one| one.scheme.as_str());
        text += &format!("{}\n", by_window(schemes, windows));
    }
    print(&format!("{text}{}", path.display()))
}
