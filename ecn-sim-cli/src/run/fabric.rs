//! `ecn sim run` of a data centre.

mod live;

use std::collections::BTreeSet;
use std::sync::Arc;

use ecn_report::figure::{Line, LineFigure, MOST_LINES, Panel};
use ecn_report::output::{Output, Target};
use ecn_report::table::Table;
use ecn_report::terminal::{plain_table, table_text};
use ecn_sim::engine::{MS, Time};
use ecn_sim::fabric::measure::COLUMNS;
use ecn_sim::fabric::series::{self, Point, Series, WINDOW_PACKETS};
use ecn_sim::fabric::topology::Topology;
use ecn_sim::fabric::watch::Watch;
use ecn_sim::fabric::{self, Counts, Options, Report, Scenario, WindowReport};
use ecn_sim::parallel::cores;
use ecn_sim::records::table_of_report;
use ecn_units::{Rate, Size};

use super::{FILES, RunArgs, decimal};
use crate::progress::Bar;
use crate::{Error, json, print, windows};
use live::Live;

pub(super) fn run(scenario: &Scenario, args: &RunArgs) -> Result<(), Error> {
    let windows = windows(&args.window)?;
    if args.out.is_some() {
        fabric::check_run(scenario, args.seed)?;
    }
    let target = args.out.as_deref().map(Target::new).transpose()?;
    let files = match target.as_ref().and_then(Target::folder) {
        None => None,
        Some(folder) => {
            let topology = scenario.topology().map_err(fabric::RunError::from)?;
            Some((folder.clone(), topology))
        }
    };
    let live = Arc::new(Live::new(files.clone())?);
    let bar = Bar::of_text({
        let live = Arc::clone(&live);
        move || live.text()
    });
    let threads = scenario.useful_threads(args.threads);
    if threads < args.threads {
        eprintln!("an incast runs on one thread: all of its flows wait for one link");
    }
    let options = Options {
        // More threads than cores would wait for each other.
        threads: threads.min(u16::try_from(cores()).unwrap_or(u16::MAX)),
        series: files.is_some(),
        windows,
        trace: false,
        watch: Some(Arc::clone(&live) as Arc<dyn Watch>),
    };
    let result = fabric::run(scenario, args.seed, &options);
    drop(bar);
    let (report, counts) = result.map_err(|error| live.failed(error))?;
    if let Some(note) = scenario.note() {
        eprintln!("{note}");
    }
    if let Some((output, topology)) = &files {
        let window = WINDOW_PACKETS * scenario.packet_time();
        write(output, topology, &counts, &report, window)?;
        output.remove(&live::PARTIAL)?;
    }
    if let Some(target) = target {
        target.write_table(&table_of_report(&report))?;
    }
    if args.json {
        return print(&json(&report)?);
    }
    print(&shown(&report))
}

/// Writes flows, series, figures and report.
fn write(
    output: &Output,
    topology: &Topology,
    counts: &Counts,
    report: &Report,
    window: Time,
) -> Result<(), Error> {
    let finished = counts.finished.iter().map(|flow| flow.row(true));
    let unfinished = counts.unfinished.iter().map(|flow| flow.row(false));
    let flows = Table::new(COLUMNS, finished.chain(unfinished));
    let mut files = flows.files("flows").map_err(Error::failed)?;
    files.push(("run.json".to_owned(), (json(report)? + "\n").into_bytes()));
    if let Some(series) = &counts.series {
        let table = series.table(|port| topology.port_name(port));
        files.extend(table.files("series").map_err(Error::failed)?);
        let pictures = figures(&report.scenario, topology, series, window);
        for (name, figure) in ["rates.svg", "queues.svg"].into_iter().zip(pictures) {
            files.push((name.to_owned(), figure.to_svg().into_bytes()));
        }
    }
    Ok(output.replace_all(&files, FILES)?)
}

/// Goodput, in windows of at least this width if there are enough samples, and queues over time.
fn figures(name: &str, topology: &Topology, series: &Series, window: Time) -> [LineFigure; 2] {
    let line = |label: &str, look, value: &dyn Fn(usize) -> f64| {
        let at = |number: usize| series.time(number + 1) as f64 / MS as f64;
        let points = (0..series.points.len()).map(|number| (at(number), value(number)));
        Line {
            label: label.to_owned(),
            points: points.collect(),
            look,
            ..Line::default()
        }
    };
    let point = |number: usize| &series.points[number];
    // Number of steps per window.
    let most = (series.points.len() / 10).max(1);
    let steps = (window.div_ceil(series.step) as usize).min(most);
    let rate = |label: &str, look, bytes: &dyn Fn(&Point) -> u64| {
        let points = series.windows(steps).map(|window| {
            let (start, end) = (series.time(window.start), series.time(window.end));
            let sum: u64 = series.points[window].iter().map(bytes).sum();
            (end as f64 / MS as f64, series::gbit_per_s(sum, end - start))
        });
        Line {
            label: label.to_owned(),
            points: points.collect(),
            look,
            ..Line::default()
        }
    };
    let mut rates = vec![rate("all", 0, &|point| point.delivered)];
    if series.flows() < MOST_LINES {
        rates.extend((0..series.flows()).map(|flow| {
            let label = format!("flow {}", flow + 1);
            rate(&label, flow + 1, &|point| point.flows[flow])
        }));
    }
    let kbytes = |bytes: u32| f64::from(bytes) / 1e3;
    let mut queues = vec![line("longest", 0, &|n| kbytes(point(n).longest))];
    // The longest queues.
    let most = |port: usize| series.points.iter().map(|point| point.ports[port]).max();
    let mut ports: Vec<usize> = (0..series.ports.len())
        .filter(|port| most(*port) > Some(0))
        .collect();
    ports.sort_by_key(|port| std::cmp::Reverse(most(*port)));
    for (look, port) in (1..MOST_LINES).zip(ports) {
        let name = topology.port_name(series.ports[port]);
        queues.push(line(&name, look, &|n| kbytes(point(n).ports[port])));
    }
    let figure = |what: &str, y_label: &str, lines| LineFigure {
        title: format!("{name}: {what} over time"),
        x_label: "time (ms)".to_owned(),
        y_label: y_label.to_owned(),
        panels: vec![Panel {
            title: format!("{name}: {what}"),
            note: String::new(),
            lines,
        }],
        ..LineFigure::default()
    };
    [
        figure("goodput", "payload (Gb/s)", rates),
        figure("queues", "queued data (kB)", queues),
    ]
}

/// The report as a table for display.
fn shown(report: &Report) -> String {
    let mut slowdowns = plain_table(
        &["FLOWS OF", "FLOWS", "SLOWDOWN 50 %", "95 %", "99 %"],
        &[0],
    );
    let mut row = |name: String, flows: u64, percentiles: [f64; 3]| {
        let [p50, p95, p99] = percentiles.map(|value| format!("{value:.2}"));
        slowdowns.add_row([name, flows.to_string(), p50, p95, p99]);
    };
    for group in &report.fct_slowdown.by_size {
        let size = |bytes| Size::from_bytes(bytes).to_string();
        let sizes = if group.from_bytes == group.to_bytes {
            size(group.to_bytes)
        } else {
            format!("{} to {}", size(group.from_bytes), size(group.to_bytes))
        };
        row(sizes, group.flows, [group.p50, group.p95, group.p99]);
    }
    for group in &report.fct_slowdown.by_priority {
        let name = format!("priority {}", group.priority);
        row(name, group.flows, [group.p50, group.p95, group.p99]);
    }
    let all = &report.fct_slowdown;
    if let (Some(p50), Some(p95), Some(p99)) = (all.p50, all.p95, all.p99)
        && all.by_size.len() + all.by_priority.len() > 1
    {
        row("all".to_owned(), report.flows_finished, [p50, p95, p99]);
    }
    let rate = |bytes| Rate::from_bytes_per_s(bytes).map_or("0".to_owned(), Rate::short);
    let undetermined = match report.undetermined_packets {
        0 => String::new(),
        packets => format!(", undetermined {packets}"),
    };
    let lost = report.lost_packets.map_or_else(String::new, |lost| {
        format!(
            "\nlost to failed links: {} in flight, {} queued, {} without a route; control {}",
            lost.on_link, lost.queued, lost.no_route, lost.control
        )
    });
    let jain = decimal(report.jain);
    let last = report
        .last_flow_end_ms
        .map_or_else(String::new, |end| format!(", the last at {end:.3} ms"));
    format!(
        "{}\n{} of {} flows finished{last}; goodput {}, Jain's index {jain}\n\
         of {} data packets dropped {}, marked {}{}; pause frames {}, head-of-line victims {}{lost}\n\
         {} data packet-hops, {} with ACKs and control, in {:.3} s",
        table_text(&slowdowns),
        report.flows_finished,
        report.flows_started,
        rate(report.goodput_bytes_per_s),
        report.data_packets,
        report.dropped_packets,
        report.marked_packets,
        undetermined,
        report.pause_frames,
        report.head_of_line_victims,
        report.data_packet_hops,
        report.packet_hops,
        report.wall_s,
    ) + &shown_classes(report, rate)
        + &shown_windows(report, rate)
}

/// A row for each class, if flows have classes.
fn shown_classes(report: &Report, rate: impl Fn(u64) -> String) -> String {
    if report.classes.is_empty() {
        return String::new();
    }
    let mut table = plain_table(&["CLASS", "FLOWS", "GOODPUT", "JAIN"], &[0]);
    for (name, class) in &report.classes {
        table.add_row([
            name.clone(),
            class.flows.to_string(),
            rate(class.goodput_bytes_per_s),
            decimal(class.jain),
        ]);
    }
    format!("\n\n{}", table_text(&table).trim_end())
}

/// Maximum number of classes or senders with a column each.
const SENDERS: usize = 8;

/// A row for each window, if any.
fn shown_windows(report: &Report, rate: impl Fn(u64) -> String) -> String {
    if report.windows.is_empty() {
        return String::new();
    }
    // By class if flows have classes, else by sender.
    let rates = |window: &WindowReport| match window.classes.is_empty() {
        true => window.senders_bytes_per_s.clone().unwrap_or_default(),
        false => (window.classes.iter())
            .map(|(name, class)| (name.clone(), class.goodput_bytes_per_s))
            .collect(),
    };
    let senders: BTreeSet<String> = (report.windows.iter())
        .flat_map(|window| rates(window).into_keys())
        .collect();
    let few = Some(&senders).filter(|senders| senders.len() <= SENDERS);
    let mut header = vec!["WINDOW", "FLOWS", "GOODPUT", "JAIN"];
    header.extend(few.into_iter().flatten().map(String::as_str));
    let mut table = plain_table(&header, &[0]);
    let none = || "-".to_owned();
    let ms = |ms: f64| (ms * 1e3).round() / 1e3;
    for window in &report.windows {
        let mut row = vec![
            format!("{}..{} ms", ms(window.from_ms), ms(window.to_ms)),
            window.flows.to_string(),
            window.goodput_bytes_per_s.map_or_else(none, &rate),
            decimal(window.jain),
        ];
        let rates = rates(window);
        let of = |sender| rates.get(sender).copied().map_or_else(none, &rate);
        row.extend(few.into_iter().flatten().map(of));
        table.add_row(row);
    }
    format!("\n\n{}", table_text(&table).trim_end())
}
