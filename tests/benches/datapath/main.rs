//! `cargo xtask bench datapath`: the cost of the programs.
//!
//! Every figure is a median, and is compared with one without our programs, measured alternately: programs with an empty
//! one, a bridge hop with the same hop without programs.

mod hop;
mod micro;
mod rates;
mod table;

use std::{fs, path::PathBuf, process::ExitCode};

use ecn_report::figure::{DotColumn, DotFigure};
use serde_json::{Value, json};

/// Maximum cost of a program per packet compared with an empty one, on a flow-table hit.
const ACCEPTED_NS: f64 = 150.0;
/// Minimum share of its throughput that a bridge hop keeps.
const ACCEPTED_SHARE: f64 = 0.9;

/// The median; 0 of nothing.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// The slowest of the fastest tenth; 0 of nothing.
fn quick(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 10).copied().unwrap_or(0.0)
}

/// Rounded to one decimal place.
fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

fn main() -> ExitCode {
    // `cargo test --benches` passes no arguments.
    if !std::env::args().any(|word| word == "--bench") {
        return ExitCode::SUCCESS;
    }
    let Some(_turn) = ecn_tests::begin("bench datapath") else {
        return ExitCode::from(3);
    };
    let runs = micro::runs();
    print_runs(&runs);
    if std::env::args().any(|word| word == "--runs") {
        return ExitCode::SUCCESS;
    }
    let load = hop::under_load();
    println!(
        "\nwith the kernel's own statistics, {} rounds of traffic over a bridge:\n",
        hop::ROUNDS
    );
    println!(
        "{:<16} {:>9} {:>9} {:>12}",
        "program", "ns", "- empty", "runs"
    );
    for row in &load {
        println!(
            "{:<16} {:>9.1} {:>9.1} {:>12}",
            row.program, row.ns, row.over_ns, row.runs
        );
    }
    let hops = hop::throughput();
    println!(
        "\nTCP over a bridge hop, medians of {} turns:\n",
        hop::TURNS
    );
    println!(
        "{:<14} {:<22} {:>10} {:>7}",
        "packets", "programs", "Mbit/s", "ratio"
    );
    for row in &hops {
        println!(
            "{:<14} {:<22} {:>10.0} {:>7.2}",
            row.packets, row.programs, row.mbit, row.ratio
        );
    }
    let tables = table::sizes();
    println!("\nflow table, ecn_ep_out on a flow that is there:\n");
    println!(
        "{:>9} {:>12} {:>16} {:>12}",
        "flows", "same flow ns", "random flow ns", "memory MiB"
    );
    for row in &tables {
        println!(
            "{:>9} {:>12.1} {:>16.1} {:>12.1}",
            row.flows, row.same_ns, row.random_ns, row.mebibytes
        );
    }
    let rates = rates::htb();
    println!("\nrate changes:\n");
    println!(
        "{:<12} {:>8} {:>12} {:>10}",
        "enforcement", "batch", "changes/s", "us each"
    );
    for row in &rates {
        println!(
            "{:<12} {:>8} {:>12.0} {:>10.2}",
            "htb",
            row.batch,
            row.per_s,
            1e6 / row.per_s
        );
    }
    let document = json!({
        "kernel": kernel(),
        "test_runs": runs.iter().map(micro::Row::json).collect::<Vec<_>>(),
        "under_load": load.iter().map(hop::Load::json).collect::<Vec<_>>(),
        "bridge_hop": hops.iter().map(hop::Hop::json).collect::<Vec<_>>(),
        "flow_table": tables.iter().map(table::Size::json).collect::<Vec<_>>(),
        "rate_changes": rates.iter().map(rates::Rate::json).collect::<Vec<_>>(),
    });
    if let Err(error) = write(&document, &runs) {
        eprintln!("cannot write the results: {error}");
        return ExitCode::FAILURE;
    }
    verdict(&runs, &hops);
    ExitCode::SUCCESS
}

fn print_runs(runs: &[micro::Row]) {
    println!(
        "BPF_PROG_TEST_RUN, the quickest tenth of the turns; an empty program is taken off:\n"
    );
    println!(
        "{:<16} {:<34} {:>8} {:>8} {:>8} {:>13}",
        "program", "packet", "ns", "- empty", "median", "instructions"
    );
    for row in runs {
        println!(
            "{:<16} {:<34} {:>8.1} {:>8.1} {:>8.1} {:>13}",
            row.program, row.case, row.ns, row.over_ns, row.median_over_ns, row.instructions
        );
    }
}

/// A summary in one line.
fn verdict(runs: &[micro::Row], hops: &[hop::Hop]) {
    let above: Vec<String> = runs
        .iter()
        .filter(|row| row.over_ns > ACCEPTED_NS)
        .map(|row| format!("{} ({})", row.program, row.case))
        .collect();
    println!();
    match above.as_slice() {
        [] => println!("every program costs at most {ACCEPTED_NS} ns over an empty one"),
        above => println!(
            "more than {ACCEPTED_NS} ns over an empty program: {}",
            above.join(", ")
        ),
    }
    let least = hops.iter().map(|hop| hop.ratio).fold(1.0, f64::min);
    let word = if least >= ACCEPTED_SHARE {
        "keeps"
    } else {
        "keeps only"
    };
    println!(
        "a bridge hop {word} {:.0} % of its throughput or more",
        least * 100.0
    );
}

fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

/// Writes JSON and SVG into `ECN_BENCH_OUT`.
fn write(document: &Value, runs: &[micro::Row]) -> std::io::Result<()> {
    let out =
        std::env::var_os("ECN_BENCH_OUT").map_or_else(|| "target/bench".into(), PathBuf::from);
    fs::create_dir_all(&out)?;
    let shown = runs.iter().filter(|row| row.program != micro::EMPTY);
    let figure = DotFigure {
        title: "Cost of the programs per packet".to_owned(),
        rows: shown
            .clone()
            .map(|row| (row.program.to_owned(), row.case.to_owned()))
            .collect(),
        columns: vec![DotColumn {
            title: "over an empty program".to_owned(),
            unit: "ns per packet".to_owned(),
            values: shown.map(|row| Some(tenth(row.over_ns))).collect(),
            half_widths: Vec::new(),
            reference: Some(ACCEPTED_NS),
        }],
    };
    fs::write(out.join("datapath.svg"), figure.to_svg())?;
    fs::write(out.join("datapath.json"), format!("{document:#}\n"))?;
    println!("\nin {}: datapath.json, datapath.svg", out.display());
    Ok(())
}
