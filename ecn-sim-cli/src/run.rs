//! `ecn sim run`: one run of a scenario.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use ecn_report::figure::{Line, LineFigure, Panel};
use ecn_report::output::{Output, Target};
use ecn_report::table::{Cell, Table};
use ecn_report::terminal::{plain_table, table_text};
use ecn_sim::engine::{MS, NS, Time};
use ecn_sim::experiment::Experiment;
use ecn_sim::report::{self, Run, RunReport, WindowReport};
use ecn_sim::scenario::{ScenarioError, span};

use super::{Error, check_set_once, json, print};
use crate::progress;
use ecn_sim::records::table_of_report;

/// Arguments of `run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// A built-in scenario (see `list`) or a TOML file
    #[arg(default_value = "hp")]
    scenario: String,
    /// Set a key (see `list`), such as buffer=8; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// Report on the interval from FROM up to TO (exclusive), such as 42ms..59ms; may be repeated
    #[arg(long, value_name = "FROM..TO")]
    pub(super) window: Vec<String>,
    /// Folder for time series (CSV, Parquet), figures (SVG) and the report (JSON); or a *.csv or *.parquet file for the
    /// report as a table
    #[arg(long, value_name = "DIR|FILE")]
    pub(super) out: Option<PathBuf>,
    /// Threads for one run of a data centre: results are bit-identical with any number; at most one per core is used,
    /// and one for an incast
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) threads: u16,
    /// One JSON document
    #[arg(long, short)]
    pub(super) json: bool,
}

impl RunArgs {
    /// The windows, ps.
    pub(super) fn windows(&self) -> Result<Vec<(Time, Time)>, Error> {
        windows(&self.window)
    }
}

/// The windows of `--window`, ps.
pub(super) fn windows(texts: &[String]) -> Result<Vec<(Time, Time)>, Error> {
    let window = |text: &String| {
        let (from, to) =
            span(text).map_err(|reason| Error::usage(format!("--window: {reason}")))?;
        Ok((from.as_nanos() * NS, to.as_nanos() * NS))
    };
    texts.iter().map(window).collect()
}

/// Width of the sliding window in the papers' figures; a hundredth of the run for longer runs.
const SLIDING: Time = 2 * MS;
/// Maximum number of points in a series.
const POINTS: Time = 1_000;

fn sliding(duration: Time) -> Time {
    (duration / 100 / MS * MS).max(SLIDING)
}

pub(super) fn run(args: &RunArgs) -> Result<(), Error> {
    check_set_once(&args.set)?;
    let mut scenario = match Experiment::find(&args.scenario)? {
        Experiment::Shares(scenario) => *scenario,
        Experiment::Fabric(fabric) => return super::fabric::run(*fabric, args),
    };
    if args.threads > 1 {
        let reason = format!(
            "--threads {}: does not apply to `{}`: only runs of data centres are split",
            args.threads, scenario.name
        );
        return Err(Error::usage(reason));
    }
    scenario.check_applicable().map_err(ScenarioError::from)?;
    for setting in &args.set {
        scenario.set_text(setting)?;
    }
    scenario
        .check_settings(&args.set)
        .map_err(ScenarioError::from)?;
    let windows = args.windows()?;
    let target = args.out.as_deref().map(Target::new).transpose()?;
    let output = target.as_ref().and_then(Target::folder);
    let duration = scenario.duration();
    // The sliding window is a whole number of steps.
    let sliding = sliding(duration);
    let step = sliding / (sliding / (duration / POINTS).max(1)).clamp(1, 20);
    let step = if output.is_some() {
        step.min(duration)
    } else {
        0
    };
    let bar = progress::Bar::of_time(duration);
    let run = report::run(&scenario, args.seed, &windows, step, Some(bar.position()))?;
    bar.finish();
    let report = run.report(&scenario, args.seed);
    if let Some(output) = output {
        write(output, &run, &report, sliding)?;
    }
    if let Some(target) = target {
        target.write_table(&table_of_report(&report))?;
    }
    if args.json {
        return print(&json(&report)?);
    }
    print(&shown(&report))
}

/// The report as a table for display.
fn shown(report: &RunReport) -> String {
    let mut text = String::new();
    let header = |from: f64, to: f64| format!("{from}..{to} ms");
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let mut columns = vec!["SHARE OF THE LINK".to_owned()];
    for (column, window) in report.windows.iter().enumerate() {
        let mut put = |name: &str, value: Option<f64>| {
            let at = rows
                .iter()
                .position(|(row, _)| row == name)
                .unwrap_or_else(|| {
                    rows.push((name.to_owned(), Vec::new()));
                    rows.len() - 1
                });
            rows[at].1.resize(column, String::new());
            rows[at]
                .1
                .push(value.map_or("-".to_owned(), |value| format!("{value:.3}")));
        };
        match window {
            WindowReport::Hp(w) => {
                columns.push(header(w.from_ms, w.to_ms));
                put("root", Some(w.root));
                put("inter-switch", Some(w.inter_switch));
                put("local flows", Some(w.local));
                put("remote flows", Some(w.remote));
                put("victim", Some(w.victim));
                put("remote / local", w.remote_local_ratio);
                put("Jain's index, local", w.jain_local);
                put("Jain's index, remote", w.jain_remote);
                if let Some(mean) = w.root_queue_mean_packets {
                    put("root queue, mean (packets)", Some(mean));
                    put("root queue, most", w.root_queue_max_packets.map(f64::from));
                    put("drops", w.dropped_packets.map(|packets| packets as f64));
                }
            }
            WindowReport::Any(w) => {
                columns.push(header(w.from_ms, w.to_ms));
                for (class, share) in &w.classes {
                    put(&format!("class {class}"), Some(share.share));
                    put(&format!("Jain's index, {class}"), share.jain);
                    if let Some(hosts) = &share.by_host {
                        let row = format!("Jain's index of hosts, {class}");
                        put(&row, hosts.jain_hosts);
                        let mut put = |what: &str, value| {
                            put(&format!("{what}, {class}"), value);
                        };
                        put("drops", Some(hosts.dropped_packets as f64));
                        put("delay p99 (ms)", hosts.delay_us_p99.map(|us| us / 1e3));
                        if let Some(finished) = &hosts.finished {
                            put("finished flows", Some(finished.finished_flows as f64));
                            put("completion p50 (ms)", finished.completion_ms_p50);
                            put("completion p99 (ms)", finished.completion_ms_p99);
                        }
                    }
                }
                // For a bridge, only its ports: a host's link shows no more than its flows.
                let shown = |link: &str| w.queues.is_empty() || w.queues.contains_key(link);
                for (link, share) in w.links.iter().filter(|(link, _)| shown(link)) {
                    put(&format!("link {link}"), Some(*share));
                }
                for (link, queue) in &w.queues {
                    let row = |what: &str| format!("queue of {link}, {what}");
                    put(&row("mean (packets)"), Some(queue.mean_packets));
                    put(&row("most"), Some(queue.max_packets.into()));
                    put(&row("drops"), Some(queue.dropped_packets as f64));
                }
            }
        }
    }
    let header: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut shares = plain_table(&header, &[0]);
    for (name, mut values) in rows {
        values.insert(0, name);
        values.resize(columns.len(), String::new());
        shares.add_row(values);
    }
    let marked: Vec<String> = report
        .marked_packets
        .iter()
        .map(|(class, packets)| format!("{class} {packets}"))
        .collect();
    let _ = writeln!(text, "{}", table_text(&shares));
    let _ = writeln!(
        text,
        "whole run: marked packets: {}; input triggers {}, output triggers {}, drops {}",
        marked.join(", "),
        report.input_triggers,
        report.output_triggers,
        report.dropped_packets
    );
    let _ = write!(
        text,
        "{} packet-hops in {:.3} s",
        report.packet_hops, report.wall_s
    );
    text
}

/// All files that `run` may write into a folder.
pub(super) const FILES: &[&str] = &[
    "run.json",
    "run.svg",
    "series.csv",
    "series.parquet",
    "flows.csv",
    "flows.parquet",
    "rates.svg",
    "queues.svg",
];

/// Writes series, figure and report.
fn write(output: &Output, run: &Run, report: &RunReport, sliding: Time) -> Result<(), Error> {
    let series = run.series(sliding);
    let points = series.first().map_or(0, |(_, points)| points.len());
    let rows = (0..points).flat_map(|at| {
        let row = |(name, points): &(String, Vec<(f64, f64)>)| {
            let (time, share) = points[at];
            vec![time.into(), name.as_str().into(), share.into()]
        };
        series.iter().map(row).collect::<Vec<Vec<Cell>>>()
    });
    let table = Table::new(report::SERIES, rows);
    let mut files = table.files("series").map_err(Error::failed)?;
    let title = report.scenario.clone();
    let lines = series
        .into_iter()
        .enumerate()
        .map(|(look, (label, points))| Line {
            label,
            points,
            look,
            ..Line::default()
        });
    let figure = LineFigure {
        title: format!("{title}: rates over time"),
        x_label: format!("time (ms), in windows of {} ms", sliding / MS),
        y_label: "share of the link's rate".to_owned(),
        y_at_least: 1.0,
        panels: vec![Panel {
            title,
            note: String::new(),
            lines: lines.collect(),
        }],
        ..LineFigure::default()
    };
    let svg = figure.to_svg();
    files.push(("run.svg".to_owned(), svg.into_bytes()));
    files.push(("run.json".to_owned(), (json(report)? + "\n").into_bytes()));
    Ok(output.replace_all(&files, FILES)?)
}
