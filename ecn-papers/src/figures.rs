//! The papers' figures, drawn from [`Runs`].

use std::ops::RangeInclusive;

use ecn_core::response::Function;
use ecn_report::figure::{Line, LineFigure, Panel};
use ecn_report::table::csv;
use ecn_sim::report::HpWindow;
use schemars::JsonSchema;
use serde::Serialize;

use crate::curves::{Curve, RMIN};
use crate::runs::{Case, Rates, Runs, Scheme};
use crate::{Figure, Lengths};

/// Buffer sizes of Fig. 4, packets.
pub(crate) const BUFFERS: RangeInclusive<u32> = 2..=16;
/// Buffer sizes of slide 15, packets.
pub(crate) const SLIDE_BUFFERS: RangeInclusive<u32> = 4..=11;
/// The lines of Fig. 4; input-triggered marking has no output threshold.
pub(crate) const THRESHOLDS: [(&str, Scheme); 5] = [
    ("none", Scheme::Input),
    ("4", Scheme::Threshold(4)),
    ("6", Scheme::Threshold(6)),
    ("8", Scheme::Threshold(8)),
    ("16", Scheme::Threshold(16)),
];
/// Flows of each class, in the papers' other sweep.
pub(crate) const FLOWS: [u32; 4] = [5, 10, 15, 20];
/// The responses of slide 15.
pub(crate) const RESPONSES: [Function; 3] = [Function::Lipd, Function::Fimd, Function::Aimd];

/// A figure before it is drawn, and its numbers.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// Which.
    pub figure: Figure,
    lines: LineFigure,
    /// The numbers, as CSV.
    pub csv: String,
}

/// The files of a figure.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Files {
    /// Its name.
    pub figure: Figure,
    /// What it shows.
    pub shows: String,
    /// The drawing.
    pub svg: String,
    /// The numbers.
    pub csv: String,
}

impl Drawing {
    /// The text of an SVG file.
    pub fn to_svg(&self) -> String {
        self.lines.to_svg()
    }

    /// Names of its files.
    pub fn files(&self) -> Files {
        Files {
            figure: self.figure,
            shows: self.lines.title.clone(),
            svg: format!("{}.svg", self.figure),
            csv: format!("{}.csv", self.figure),
        }
    }
}

/// Remote over local rate.
pub(crate) fn ratio(rates: &Rates) -> f64 {
    rates.shares.remote_local_ratio.unwrap_or(f64::NAN)
}

/// Use of the root link.
pub(crate) fn root(rates: &Rates) -> f64 {
    rates.shares.root
}

/// A function's name as the papers write it.
pub(crate) fn upper(function: Function) -> String {
    function.name().to_uppercase()
}

/// A number in a CSV file, or nothing.
fn number(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.6}")
    } else {
        String::new()
    }
}

const fn title(figure: Figure) -> &'static str {
    use Figure as F;
    match figure {
        F::Fig2 => "Fig. 2: no congestion control",
        F::Fig3a => "Fig. 3(a): naive marking",
        F::Fig3b => "Fig. 3(b): input-triggered marking",
        F::Fig3c => "Fig. 3(c): input-output-triggered marking, threshold 4",
        F::Fig3d => "Fig. 3(d): input-output-triggered marking, threshold 8",
        F::Fig4a => "Fig. 4(a): root link utilization",
        F::Fig4b => "Fig. 4(b): remote rate over local rate",
        F::FlowsRoot => "5 to 20 flows of each class, threshold 6: root link utilization",
        F::FlowsRatio => "5 to 20 flows of each class, threshold 6: remote rate over local rate",
        F::Slide14 => "Slide 14: rate after time t without marks, from Rmin = Rmax/256",
        F::Slide15 => "Slide 15: rates over the buffer size, for LIPD, FIMD and AIMD",
    }
}

/// Draws a figure from the available runs, and requests those that it needs.
pub(crate) fn draw(figure: Figure, runs: &Runs, lengths: Lengths) -> Drawing {
    let title = title(figure);
    let over_time = |scheme| over_time(runs, title, scheme);
    let over_all_buffers = |settings: &[(String, Case)], y_label, value: fn(&Rates) -> f64| {
        over_buffers(runs, title, y_label, BUFFERS, settings, &[(title, value)])
    };
    let (lines, csv) = match figure {
        Figure::Fig2 => over_time(Scheme::Uncontrolled),
        Figure::Fig3a => over_time(Scheme::Naive),
        Figure::Fig3b => over_time(Scheme::Input),
        Figure::Fig3c => over_time(Scheme::Threshold(4)),
        Figure::Fig3d => over_time(Scheme::Threshold(8)),
        Figure::Fig4a => over_all_buffers(&thresholds(lengths), UTILIZATION, root),
        Figure::Fig4b => over_all_buffers(&thresholds(lengths), RATIO, ratio),
        Figure::FlowsRoot => over_all_buffers(&flows(lengths), UTILIZATION, root),
        Figure::FlowsRatio => over_all_buffers(&flows(lengths), RATIO, ratio),
        Figure::Slide14 => slide14(title),
        Figure::Slide15 => slide15(runs, title, lengths),
    };
    Drawing { figure, lines, csv }
}

const UTILIZATION: &str = "utilization (fraction of the link rate)";
const RATIO: &str = "remote rate / local rate";

/// A quantity of a window, with its name.
type Quantity<W> = (&'static str, fn(&W) -> f64);

/// Fig. 2 and 3.
fn over_time(runs: &Runs, title: &str, scheme: Scheme) -> (LineFigure, String) {
    let values: [Quantity<HpWindow>; 5] = [
        ("root", |w| w.root),
        ("inter-switch", |w| w.inter_switch),
        ("local", |w| w.local),
        ("remote", |w| w.remote),
        ("victim", |w| w.victim),
    ];
    let outcomes = runs.of(&Case::fig3(scheme));
    let series = outcomes.first().map_or(&[][..], |outcome| &outcome.series);
    let header = values.map(|(label, _)| label.replace('-', "_"));
    let mut rows = vec![[&["time_ms".to_owned()], &header[..]].concat()];
    for (at, window) in series {
        let cells = values.map(|(_, value)| number(value(window)));
        rows.push([&[at.to_string()], &cells[..]].concat());
    }
    let line = |(look, (label, value)): (usize, Quantity<HpWindow>)| Line {
        label: label.to_owned(),
        points: series.iter().map(|(at, w)| (*at, value(w))).collect(),
        look,
        ..Line::default()
    };
    let figure = LineFigure {
        title: title.to_owned(),
        x_label: "time (ms)".to_owned(),
        y_label: "rate (fraction of the link rate)".to_owned(),
        x_at_least: 100.0,
        y_at_least: 1.0,
        panels: vec![Panel {
            title: title.to_owned(),
            note: "(2 ms sliding window)".to_owned(),
            lines: values.into_iter().enumerate().map(line).collect(),
        }],
        ..LineFigure::default()
    };
    (figure, csv(rows))
}

/// A panel per quantity of the last window, with a line per setting over buffer sizes; means over the seeds.
fn over_buffers(
    runs: &Runs,
    title: &str,
    y_label: &str,
    buffers: RangeInclusive<u32>,
    settings: &[(String, Case)],
    quantities: &[Quantity<Rates>],
) -> (LineFigure, String) {
    let mut header = vec!["buffer_packets".to_owned()];
    let mut rows: Vec<Vec<String>> = buffers.clone().map(|n| vec![n.to_string()]).collect();
    let mut panels = Vec::new();
    let mut lowest = 1.0;
    for (title, value) in quantities {
        let mut lines = Vec::new();
        for (look, (label, case)) in settings.iter().enumerate() {
            let mut name = label.replace(' ', "_");
            if quantities.len() > 1 {
                name = format!("{}_{name}", title.replace([' ', '-'], "_"));
            }
            header.extend([format!("{name}_mean"), format!("{name}_sd")]);
            let mut points = Vec::new();
            for (buffer, row) in buffers.clone().zip(&mut rows) {
                let sample = runs.last(&case.clone().buffer(buffer), value);
                row.extend([number(sample.mean), number(sample.sd)]);
                points.push((f64::from(buffer), sample.mean));
                lowest = f64::min(lowest, sample.mean);
            }
            lines.push(Line {
                label: label.clone(),
                points,
                look,
                ..Line::default()
            });
        }
        panels.push(Panel {
            title: (*title).to_owned(),
            note: String::new(),
            lines,
        });
    }
    // The lines of the root link are close to each other below 1.
    let y_from = match y_label {
        UTILIZATION => (lowest * 10.0).floor() / 10.0,
        _ => 0.0,
    };
    let figure = LineFigure {
        title: title.to_owned(),
        x_label: "input buffer (packets)".to_owned(),
        y_label: y_label.to_owned(),
        x_from: f64::from(*buffers.start()),
        y_from,
        y_at_least: 1.0,
        every_point: true,
        panels,
        ..LineFigure::default()
    };
    rows.insert(0, header);
    (figure, csv(rows))
}

/// Settings of Fig. 4, of which [`over_buffers`] sets the buffer.
fn fig4(scheme: Scheme, lengths: Lengths) -> Case {
    Case::fig4(scheme, *BUFFERS.start(), lengths.long)
}

fn thresholds(lengths: Lengths) -> [(String, Case); 5] {
    THRESHOLDS.map(|(name, scheme)| (format!("threshold {name}"), fig4(scheme, lengths)))
}

fn flows(lengths: Lengths) -> [(String, Case); 4] {
    FLOWS.map(|flows| {
        let case = fig4(Scheme::Threshold(6), lengths).flows(flows);
        (format!("{flows} + {flows} flows"), case)
    })
}

fn slide15(runs: &Runs, title: &str, lengths: Lengths) -> (LineFigure, String) {
    let y_label = "rate (fraction of the link rate)";
    let responses = RESPONSES.map(|response| {
        let case = fig4(Scheme::Input, lengths).response(response);
        (upper(response), case)
    });
    let quantities: [Quantity<Rates>; 4] = [
        ("root link", root),
        ("inter-switch link", |r| r.shares.inter_switch),
        ("local flows", |r| r.shares.local),
        ("remote flows", |r| r.shares.remote),
    ];
    over_buffers(runs, title, y_label, SLIDE_BUFFERS, &responses, &quantities)
}

/// Finc, from the fixed point of `ecn-core`.
fn slide14(title: &str) -> (LineFigure, String) {
    let ends = Curve::all().map(|curve| curve.time_of(1.0));
    let end = ends.into_iter().fold(0.0, f64::max);
    let mut lines = Vec::new();
    let mut rows = vec![["function", "time_packet_times", "rate"].map(str::to_owned)];
    for (look, curve) in Curve::all().into_iter().enumerate() {
        let name = upper(curve.function);
        // One ACK per 16 packet times is sufficient for the figure.
        let mut next = 0.0;
        let mut points: Vec<(f64, f64)> = Vec::new();
        for (time, rate) in curve.walk(RMIN) {
            if time >= next || rate >= 1.0 {
                points.push((time, rate));
                next = time + 16.0;
            }
        }
        points.push((end, 1.0));
        for (time, rate) in &points {
            rows.push([name.clone(), format!("{time:.3}"), format!("{rate:.6}")]);
        }
        lines.push(Line {
            label: name,
            points,
            look,
            ..Line::default()
        });
    }
    let thousands = |k: u32| match k {
        0 => (0.0, "0".to_owned()),
        k => (f64::from(k) * 1000.0, format!("{k}K")),
    };
    let figure = LineFigure {
        title: title.to_owned(),
        x_label: "time t (packet transmission times)".to_owned(),
        y_label: "rate (fraction of Rmax)".to_owned(),
        x_ticks: [0, 2, 10, 20, 30, 40, 50, 60, 65].map(thousands).to_vec(),
        y_at_least: 1.0,
        panels: vec![Panel {
            title: title.to_owned(),
            note: "(m = 2)".to_owned(),
            lines,
        }],
        ..LineFigure::default()
    };
    (figure, csv(rows))
}
