//! A comparison as a self-contained HTML document.

use std::collections::BTreeMap;

use ecn_report::html::Page;
use ecn_units::{Rate, Size};

use super::figures::Figure;
use super::{Comparison, Outcome};

/// Columns of [`Comparison::table`].
pub const HEADER: [&str; 12] = [
    "SCHEME",
    "FLOWS",
    "SLOWDOWN 50 %",
    "95 %",
    "99 %",
    "LAST END",
    "GOODPUT",
    "JAIN",
    "DROPPED",
    "PAUSES",
    "MARKED",
    "VICTIMS",
];

/// A value, and half the width of its confidence interval if known.
fn with(value: String, half: Option<String>) -> String {
    match half {
        Some(half) => format!("{value} ± {half}"),
        None => value,
    }
}

impl Comparison {
    /// A row per scheme for display, under [`HEADER`].
    pub fn table(&self) -> impl Iterator<Item = [String; 12]> {
        let decimal = |value: Option<f64>, half: Option<f64>| match value {
            Some(value) => with(format!("{value:.2}"), half.map(|half| format!("{half:.2}"))),
            None => "-".to_owned(),
        };
        let flows = |one: &Outcome| match (one.flows_finished, one.flows_started) {
            (finished, started) if finished == started => started.to_string(),
            (finished, started) => format!("{finished} of {started}"),
        };
        self.schemes.iter().map(move |one| {
            let rate = |bytes: u64| Rate::from_bytes_per_s(bytes).map(Rate::short);
            let ci95 = &one.ci95;
            [
                one.scheme.clone(),
                flows(one),
                decimal(one.fct_slowdown.p50, ci95.fct_slowdown_p50),
                decimal(one.fct_slowdown.p95, ci95.fct_slowdown_p95),
                decimal(one.fct_slowdown.p99, ci95.fct_slowdown_p99),
                one.last_flow_end_ms.map_or("-".to_owned(), |end| {
                    let half = ci95.last_flow_end_ms.map(|half| format!("{half:.3}"));
                    with(format!("{end:.3}"), half) + " ms"
                }),
                rate(one.goodput_bytes_per_s).map_or("-".to_owned(), |goodput| {
                    let half = ci95.goodput_bytes_per_s.map(|half| half.round() as u64);
                    with(
                        goodput,
                        half.map(|half| rate(half).unwrap_or("0bit".to_owned())),
                    )
                }),
                one.jain.map_or("-".to_owned(), |jain| {
                    let half = ci95.jain.map(|half| format!("{half:.3}"));
                    with(format!("{jain:.3}"), half)
                }),
                one.dropped_packets.to_string(),
                one.pause_frames.to_string(),
                one.marked_packets.to_string(),
                one.head_of_line_victims.to_string(),
            ]
        })
    }

    /// The document.
    pub fn html(&self, figures: &[Figure]) -> String {
        let mut page = Page::new(&format!("{}: schemes side by side", self.scenario));
        let seeds = match self.seeds {
            1 => "one run with seed 1".to_owned(),
            seeds => format!("{seeds} runs with seeds 1 to {seeds}"),
        };
        page.paragraph(&format!(
            "Each scheme had {seeds}: the same flows on the same network. Slowdown is a flow's completion time \
             over that of the same flow alone in an idle network. Slowdowns, drops, pauses (PFC frames that request \
             one), marked packets and victims (flows that met queues held up by pauses, but no congestion) are over \
             all runs; last end, goodput and Jain's index are means of the \
             runs. ± is half the width of the 95 % confidence interval, by Student's t over the runs."
        ));
        page.table(&HEADER, self.table());
        for figure in figures {
            page.figure(&figure.svg, &figure.caption);
        }
        self.write_sizes(&mut page);
        let windows = self.windows();
        if !windows.is_empty() {
            page.heading("Windows");
            page.paragraph("Means of the runs.");
            let names = self.schemes.iter().map(|one| &*one.scheme);
            let header: Vec<&str> = std::iter::once("").chain(names).collect();
            page.table(&header, windows);
        }
        page.heading("Parameters");
        let rows = |keys: &BTreeMap<String, String>| -> Vec<[String; 2]> {
            let pairs = keys.iter();
            pairs
                .map(|(key, value)| [key.clone(), value.clone()])
                .collect()
        };
        page.text_table(&["all schemes", ""], rows(&self.parameters));
        for one in self.schemes.iter().filter(|one| !one.parameters.is_empty()) {
            page.text_table(&[&one.scheme, ""], rows(&one.parameters));
        }
        page.finish()
    }

    /// Slowdowns by size: one table if all schemes have the same groups, else one per scheme. Groups may differ because
    /// unfinished flows are in none.
    fn write_sizes(&self, page: &mut Page) {
        let several = |one: &Outcome| one.fct_slowdown.by_size.len() > 1;
        if !self.schemes.iter().any(several) {
            return;
        }
        page.heading("Slowdown by size");
        page.paragraph("Median / 99th percentile.");
        let sizes = |one: &Outcome| -> Vec<[u64; 3]> {
            let groups = one.fct_slowdown.by_size.iter();
            groups
                .map(|group| [group.from_bytes, group.to_bytes, group.flows])
                .collect()
        };
        let alike = |pair: &[Outcome]| sizes(&pair[0]) == sizes(&pair[1]);
        let tables: Vec<&[Outcome]> = if self.schemes.windows(2).all(alike) {
            vec![&self.schemes]
        } else {
            self.schemes.chunks(1).collect()
        };
        for schemes in tables {
            let names = schemes.iter().map(|one| &*one.scheme);
            let header: Vec<&str> = ["payload", "flows"].into_iter().chain(names).collect();
            let rows =
                (sizes(&schemes[0]).into_iter().enumerate()).map(|(row, [from, to, flows])| {
                    let size = |bytes| Size::from_bytes(bytes).short();
                    let mut cells =
                        vec![format!("{} to {}", size(from), size(to)), flows.to_string()];
                    let groups = schemes.iter().map(|one| &one.fct_slowdown.by_size[row]);
                    cells
                        .extend(groups.map(|group| format!("{:.2} / {:.2}", group.p50, group.p99)));
                    cells
                });
            page.table(&header, rows);
        }
    }
}
