//! `ecn design`: from a decrease function to its increase function, with HP's method.

use std::path::PathBuf;

use clap::Args;
use ecn_report::output::Output;
use ecn_report::terminal::{plain_table, table_text};
use ecn_sim::design::{Curve, Design, Report, Table, figure};
use ecn_units::Fraction;

use super::{Error, json, print};

/// Arguments of `design`.
#[derive(Args, Debug)]
pub struct DesignArgs {
    /// Decrease function: an expression in the rate r (a fraction of Rmax), such as r/2 or r/(1+r)
    #[arg(
        long,
        value_name = "EXPRESSION",
        default_value = "r/(1+r)",
        allow_hyphen_values = true
    )]
    decrease: String,
    /// Lowest rate, as a fraction of Rmax
    #[arg(long, default_value = "1/256")]
    rmin: Fraction,
    /// Folder for the table (design.toml), the figure (design.svg) and the report (design.json)
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// One JSON document
    #[arg(long, short)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
///
/// Bad usage: the decrease function is invalid, or the folder cannot be written.
pub fn run(args: &DesignArgs) -> Result<(), Error> {
    let design = Design::new(&args.decrease, args.rmin).map_err(Error::usage)?;
    let output = args.out.as_deref().map(Output::new).transpose()?;
    let (table, fit) = Table::of(&design);
    let report = Report::of(&design, &table, fit);
    if let Some(output) = output {
        output.write("design.toml", table.to_toml())?;
        output.write("design.svg", figure(&design))?;
        output.write("design.json", json(&report)? + "\n")?;
    }
    if args.json {
        return print(&json(&report)?);
    }
    print(&shown(&report))
}

/// The report as tables for display.
fn shown(report: &Report) -> String {
    let mut conditions = plain_table(&["CONDITION", "HOLDS", "WORST EXCESS", "AT r"], &[0, 1]);
    for condition in &report.conditions {
        conditions.add_row([
            format!("{}: {}", condition.name, condition.statement),
            if condition.holds { "yes" } else { "NO" }.to_owned(),
            format!("{:+.1e}", condition.worst_excess),
            format!("{:.4}", condition.at_rate),
        ]);
    }
    let names: Vec<_> = report
        .curves
        .iter()
        .map(|curve| curve.name.to_uppercase())
        .collect();
    let mut header = vec!["PACKET TIMES", "fdec(r)"];
    header.extend(names.iter().map(String::as_str));
    let mut times = plain_table(&header, &[0]);
    let own = report.curves.first().map_or(&[][..], |own| &own.recovery);
    for (index, recovery) in own.iter().enumerate() {
        let mut row = vec![
            format!("recovery from a mark at r = {:.4}", recovery.rate),
            format!("{:.6}", recovery.marked_rate),
        ];
        let times_of = report.curves.iter().map(|curve| &curve.recovery[index]);
        row.extend(times_of.map(|recovery| format!("{:.1}", recovery.recovery_packet_times)));
        times.add_row(row);
    }
    let mut last = |name: &str, value: fn(&Curve) -> String| {
        let mut row = vec![name.to_owned(), String::new()];
        row.extend(report.curves.iter().map(value));
        times.add_row(row);
    };
    last("Rmin to Rmax", |curve| {
        format!("{:.1}", curve.rmin_to_rmax_packet_times)
    });
    last("Rmin to Rmax, unmarked ACKs", |curve| {
        curve.rmin_to_rmax_acks.to_string()
    });
    let mut text = format!(
        "fdec(r) = {}, Rmin = {}, Trec = 1/Rmin = {} packet times\n\n{}\n{}\n",
        report.decrease,
        report.rmin,
        report.trec_packet_times,
        table_text(&conditions),
        table_text(&times),
    );
    let fit = report.table_fit;
    text += &format!(
        "table: {} points, new delays within {:.1e} (worst from r = {:.4}), finc(fdec(r)) <= r (1 {:+.1e})",
        report.table_points, fit.relative_error, fit.at_rate, report.table_avoidance_excess
    );
    if report.shape_error_trec > 1e-6 {
        text += &format!(
            "\nthe curve between two marks is a choice here: it is within {:.1e} Trec of the smoothest \
             one that could be found",
            report.shape_error_trec
        );
    }
    text
}
