//! `ecn sim run` of a data centre.

use super::run::RunArgs;
use super::table::{plain_table, table_text};
use super::{Error, json, print};
use crate::fabric::{self, Report, Scenario};
use crate::units::{Rate, Size};

pub(super) fn run(mut scenario: Scenario, args: &RunArgs) -> Result<(), Error> {
    for setting in &args.set {
        scenario.set_text(setting)?;
    }
    let name = scenario.kind;
    if args.out.is_some() || !args.window.is_empty() {
        let reason = format!("{name} has no time series: --out and --window are for the others");
        return Err(Error::usage(reason));
    }
    let report = fabric::run(&scenario, args.seed, args.threads)?;
    if args.json {
        return print(&json(&report)?);
    }
    print(&shown(&report))
}

/// The report as a table for people.
fn shown(report: &Report) -> String {
    let mut slowdowns = plain_table(
        &["FLOWS OF", "FLOWS", "SLOWDOWN 50 %", "95 %", "99 %"],
        &[0],
    );
    let decimal = |value: f64| format!("{value:.2}");
    for group in &report.fct_slowdown.by_size {
        let size = |bytes| Size::from_bytes(bytes).to_string();
        let sizes = if group.from_bytes == group.to_bytes {
            size(group.to_bytes)
        } else {
            format!("{} to {}", size(group.from_bytes), size(group.to_bytes))
        };
        let flows = group.flows.to_string();
        let [p50, p95, p99] = [group.p50, group.p95, group.p99].map(decimal);
        slowdowns.add_row([sizes, flows, p50, p95, p99]);
    }
    let all = &report.fct_slowdown;
    if let (Some(p50), Some(p95), Some(p99)) = (all.p50, all.p95, all.p99)
        && all.by_size.len() > 1
    {
        let flows = report.flows_finished.to_string();
        let [p50, p95, p99] = [p50, p95, p99].map(decimal);
        slowdowns.add_row(["all".to_owned(), flows, p50, p95, p99]);
    }
    let goodput = Rate::from_bytes_per_s(report.goodput_bytes_per_s);
    format!(
        "{}\n{} of {} flows finished, the last at {:.3} ms; goodput {}, Jain's index {:.3}\n\
         dropped {}, pause frames {}, marked {}\n\
         {} data packet-hops, {} with ACKs and control, in {:.3} s",
        table_text(&slowdowns),
        report.flows_finished,
        report.flows_started,
        report.last_flow_end_ms,
        goodput.map_or("0".to_owned(), Rate::short),
        report.jain,
        report.dropped_packets,
        report.pause_frames,
        report.marked_packets,
        report.data_packet_hops,
        report.packet_hops,
        report.wall_s,
    )
}
