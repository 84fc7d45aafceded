//! A comparison as a self-contained HTML document.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use ecn_units::{Rate, Size};

use super::figures::Figure;
use super::{Comparison, Outcome};

const STYLE: &str = "body{font:15px/1.5 sans-serif;color:#222;max-width:980px;margin:2em auto;padding:0 1em}\
h1{font-size:1.5em}h2{font-size:1.2em;margin-top:2em}.wide{overflow-x:auto}\
table{border-collapse:collapse;margin:1em 0;white-space:nowrap}\
th,td{padding:.2em .6em;text-align:right;border-bottom:1px solid #ddd}\
th{border-bottom-color:#888;font-size:.85em}table{font-size:.93em}th:first-child,td:first-child{text-align:left}\
table.keys td{text-align:left}figure{margin:1.5em 0}svg{max-width:100%;height:auto}\
figcaption{color:#666}";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A table. Cells are plain text, which is escaped.
fn table<R: AsRef<[String]>>(
    html: &mut String,
    class: &str,
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
) {
    let _ = write!(
        html,
        "<div class=\"wide\"><table class=\"{class}\">\n<thead><tr>"
    );
    for name in header {
        let _ = write!(html, "<th scope=\"col\">{}</th>", escape(name));
    }
    html.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        html.push_str("<tr>");
        for cell in row.as_ref() {
            let _ = write!(html, "<td>{}</td>", escape(cell));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
}

/// Columns of [`Comparison::table`].
pub(crate) const HEADER: [&str; 12] = [
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
    pub(crate) fn table(&self) -> impl Iterator<Item = [String; 12]> {
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
    pub(crate) fn html(&self, figures: &[Figure]) -> String {
        let title = format!("{}: schemes side by side", escape(&self.scenario));
        let mut html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        );
        let seeds = match self.seeds {
            1 => "one run with seed 1".to_owned(),
            seeds => format!("{seeds} runs with seeds 1 to {seeds}"),
        };
        let _ = writeln!(
            html,
            "<p>Each scheme had {seeds}: the same flows on the same network. Slowdown is a flow's completion time \
             over that of the same flow alone in an idle network. Slowdowns, drops, pauses (PFC frames that request \
             one), marked packets and victims (flows that met queues held up by pauses, but no congestion) are over \
             all runs; last end, goodput and Jain's index are means of the \
             runs. ± is half the width of the 95 % confidence interval, by Student's t over the runs.</p>"
        );
        table(&mut html, "measures", &HEADER, self.table());
        for figure in figures {
            let caption = escape(&figure.caption);
            let _ = writeln!(
                html,
                "<figure>\n{}<figcaption>{caption}</figcaption>\n</figure>",
                figure.svg
            );
        }
        self.write_sizes(&mut html);
        let windows = self.windows();
        if !windows.is_empty() {
            html.push_str("<h2>Windows</h2>\n<p>Means of the runs.</p>\n");
            let names = self.schemes.iter().map(|one| &*one.scheme);
            let header: Vec<&str> = std::iter::once("").chain(names).collect();
            table(&mut html, "windows", &header, windows);
        }
        html.push_str("<h2>Parameters</h2>\n");
        let rows = |keys: &BTreeMap<String, String>| -> Vec<[String; 2]> {
            let pairs = keys.iter();
            pairs
                .map(|(key, value)| [key.clone(), value.clone()])
                .collect()
        };
        table(
            &mut html,
            "keys",
            &["all schemes", ""],
            rows(&self.parameters),
        );
        for one in self.schemes.iter().filter(|one| !one.parameters.is_empty()) {
            table(&mut html, "keys", &[&one.scheme, ""], rows(&one.parameters));
        }
        html.push_str("</body>\n</html>\n");
        html
    }

    /// Slowdowns by size: one table if all schemes have the same groups, else one per scheme. Groups may differ because
    /// unfinished flows are in none.
    fn write_sizes(&self, html: &mut String) {
        let several = |one: &Outcome| one.fct_slowdown.by_size.len() > 1;
        if !self.schemes.iter().any(several) {
            return;
        }
        html.push_str("<h2>Slowdown by size</h2>\n<p>Median / 99th percentile.</p>\n");
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
            table(html, "sizes", &header, rows);
        }
    }
}
