//! `ecn sim run`: one run of a scenario.

mod fabric;

use std::path::PathBuf;

use clap::Args;
use ecn_report::figure::{Line, LineFigure, Panel};
use ecn_report::output::{Output, Target};
use ecn_report::table::{Cell, Table};
use ecn_report::terminal::{plain_table, table_text};
use ecn_sim::engine::{MS, Time};
use ecn_sim::experiment::Experiment;
use ecn_sim::records::table_of_report;
use ecn_sim::report::{self, Run, RunReport, WindowReport};
use ecn_sim::scenario::ScenarioError;

use super::{Error, json, print, set_all, windows};
use crate::progress::Bar;

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

/// Width of the sliding window in the papers' figures; a hundredth of the run for longer runs.
const SLIDING: Time = 2 * MS;
/// Maximum number of points in a series.
const POINTS: Time = 1_000;

pub(super) fn run(args: &RunArgs) -> Result<(), Error> {
    let mut experiment = Experiment::find(&args.scenario)?;
    if let Experiment::Shares(scenario) = &experiment {
        if args.threads > 1 {
            let reason = format!(
                "--threads {}: does not apply to `{}`: only runs of data centres are split",
                args.threads, scenario.name
            );
            return Err(Error::usage(reason));
        }
        scenario.check_applicable().map_err(ScenarioError::from)?;
    }
    set_all(&mut experiment, &args.set)?;
    let scenario = match experiment {
        Experiment::Shares(scenario) => *scenario,
        Experiment::Fabric(fabric) => return fabric::run(&fabric, args),
    };
    scenario
        .check_settings(&args.set)
        .map_err(ScenarioError::from)?;
    let windows = windows(&args.window)?;
    let target = args.out.as_deref().map(Target::new).transpose()?;
    let output = target.as_ref().and_then(Target::folder);
    let duration = scenario.duration();
    // The sliding window is a whole number of steps.
    let sliding = (duration / 100 / MS * MS).max(SLIDING);
    let step = sliding / (sliding / (duration / POINTS).max(1)).clamp(1, 20);
    let step = if output.is_some() {
        step.min(duration)
    } else {
        0
    };
    let bar = Bar::of_time(duration);
    let run = report::run(&scenario, args.seed, &windows, step, Some(bar.position()))?;
    drop(bar);
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

/// A number in a table for display.
pub(super) fn decimal(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.3}"))
}

/// The report as a table for display.
fn shown(report: &RunReport) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut columns = vec!["SHARE OF THE LINK".to_owned()];
    for window in &report.windows {
        let column = columns.len();
        // A value in the row of this name.
        let mut put = |name: &str, value: Option<f64>| {
            let known = rows.iter().position(|row| row[0] == name);
            let at = known.unwrap_or(rows.len());
            if known.is_none() {
                rows.push(vec![name.to_owned()]);
            }
            rows[at].resize(column, String::new());
            rows[at].push(decimal(value));
        };
        let (from, to) = match window {
            WindowReport::Hp(w) => (w.from_ms, w.to_ms),
            WindowReport::Any(w) => (w.from_ms, w.to_ms),
        };
        columns.push(format!("{from}..{to} ms"));
        match window {
            WindowReport::Hp(w) => {
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
    for mut row in rows {
        row.resize(columns.len(), String::new());
        shares.add_row(row);
    }
    let marked = report.marked_packets.iter();
    let marked: Vec<String> = marked
        .map(|(class, packets)| format!("{class} {packets}"))
        .collect();
    format!(
        "{}\nwhole run: marked packets: {}; input triggers {}, output triggers {}, drops {}\n\
         {} packet-hops in {:.3} s",
        table_text(&shares),
        marked.join(", "),
        report.input_triggers,
        report.output_triggers,
        report.dropped_packets,
        report.packet_hops,
        report.wall_s
    )
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
    let lines = (0..).zip(series).map(|(look, (label, points))| Line {
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
    files.push(("run.svg".to_owned(), figure.to_svg().into_bytes()));
    files.push(("run.json".to_owned(), (json(report)? + "\n").into_bytes()));
    Ok(output.replace_all(&files, FILES)?)
}
