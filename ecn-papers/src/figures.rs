//! The papers' figures, drawn from [`Runs`].

use std::fmt::Write as _;
use std::ops::RangeInclusive;

use ecn_core::response::Function;
use ecn_report::figure::{Line, LineFigure, Panel};
use ecn_sim::report::HpWindow;
use schemars::JsonSchema;
use serde::Serialize;

use super::curves::{Curve, RMIN};
use super::runs::{Case, Rates, Runs, Scheme};
use super::{Figure, Lengths};

/// Buffer sizes of Fig. 4, packets.
pub const BUFFERS: RangeInclusive<u32> = 2..=16;
/// Buffer sizes of slide 15, packets.
pub const SLIDE_BUFFERS: RangeInclusive<u32> = 4..=11;
/// The lines of Fig. 4; input-triggered marking has no output threshold.
pub const THRESHOLDS: [(&str, Scheme); 5] = [
    ("none", Scheme::Input),
    ("4", Scheme::Threshold(4)),
    ("6", Scheme::Threshold(6)),
    ("8", Scheme::Threshold(8)),
    ("16", Scheme::Threshold(16)),
];
/// Flows of each class, in the papers' other sweep.
pub const FLOWS: [u32; 4] = [5, 10, 15, 20];
/// The responses of slide 15.
pub const RESPONSES: [Function; 3] = [Function::Lipd, Function::Fimd, Function::Aimd];

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
pub fn ratio(rates: &Rates) -> f64 {
    rates.shares.remote_local_ratio.unwrap_or(f64::NAN)
}

/// Use of the root link.
pub fn root(rates: &Rates) -> f64 {
    rates.shares.root
}

/// A number in a CSV file, or nothing.
fn number(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.6}")
    } else {
        String::new()
    }
}

/// Draws a figure from the available runs, and requests those that it needs.
pub fn draw(figure: Figure, runs: &Runs, lengths: Lengths) -> Drawing {
    let (lines, csv) = match figure {
        Figure::Fig2 => over_time(runs, Scheme::Uncontrolled, "Fig. 2: no congestion control"),
        Figure::Fig3a => over_time(runs, Scheme::Naive, "Fig. 3(a): naive marking"),
        Figure::Fig3b => over_time(runs, Scheme::Input, "Fig. 3(b): input-triggered marking"),
        Figure::Fig3c => {
            let title = "Fig. 3(c): input-output-triggered marking, threshold 4";
            over_time(runs, Scheme::Threshold(4), title)
        }
        Figure::Fig3d => {
            let title = "Fig. 3(d): input-output-triggered marking, threshold 8";
            over_time(runs, Scheme::Threshold(8), title)
        }
        Figure::Fig4a => {
            let title = "Fig. 4(a): root link utilization";
            thresholds(runs, lengths, (title, UTILIZATION), root)
        }
        Figure::Fig4b => {
            let title = "Fig. 4(b): remote rate over local rate";
            thresholds(runs, lengths, (title, RATIO), ratio)
        }
        Figure::FlowsRoot => {
            let title = "5 to 20 flows of each class, threshold 6: root link utilization";
            flows(runs, lengths, (title, UTILIZATION), root)
        }
        Figure::FlowsRatio => {
            let title = "5 to 20 flows of each class, threshold 6: remote rate over local rate";
            flows(runs, lengths, (title, RATIO), ratio)
        }
        Figure::Slide14 => slide14(),
        Figure::Slide15 => slide15(runs, lengths),
    };
    Drawing { figure, lines, csv }
}

const UTILIZATION: &str = "utilization (fraction of the link rate)";
const RATIO: &str = "remote rate / local rate";
const BUFFER: &str = "input buffer (packets)";

/// Fig. 2 and 3.
fn over_time(runs: &Runs, scheme: Scheme, title: &str) -> (LineFigure, String) {
    type Value = fn(&HpWindow) -> f64;
    let values: [(&str, Value); 5] = [
        ("root", |w| w.root),
        ("inter-switch", |w| w.inter_switch),
        ("local", |w| w.local),
        ("remote", |w| w.remote),
        ("victim", |w| w.victim),
    ];
    let outcomes = runs.of(&Case::fig3(scheme).series());
    let series = outcomes.first().map_or(&[][..], |outcome| &outcome.series);
    let lines = values
        .iter()
        .enumerate()
        .map(|(look, (label, value))| Line {
            label: (*label).to_owned(),
            points: series.iter().map(|(at, w)| (*at, value(w))).collect(),
            look,
            ..Line::default()
        });
    let mut csv = "time_ms,root,inter_switch,local,remote,victim\n".to_owned();
    for (at, window) in series {
        let _ = write!(csv, "{at}");
        for (_, value) in &values {
            let _ = write!(csv, ",{}", number(value(window)));
        }
        csv.push('\n');
    }
    let figure = LineFigure {
        title: title.to_owned(),
        x_label: "time (ms)".to_owned(),
        y_label: "rate (fraction of the link rate)".to_owned(),
        x_at_least: 100.0,
        y_at_least: 1.0,
        panels: vec![Panel {
            title: title.to_owned(),
            note: "(2 ms sliding window)".to_owned(),
            lines: lines.collect(),
        }],
        ..LineFigure::default()
    };
    (figure, csv)
}

/// A quantity of the last window, with its title.
type Quantity<'a> = (&'a str, fn(&Rates) -> f64);

/// Panels over buffer sizes, one per quantity, with a line per setting; means over the seeds.
fn over_buffers(
    runs: &Runs,
    buffers: &[u32],
    settings: &[(String, Case)],
    quantities: &[Quantity<'_>],
) -> (Vec<Panel>, String) {
    let mut csv = "buffer_packets".to_owned();
    let mut rows: Vec<String> = buffers.iter().map(u32::to_string).collect();
    let mut panels = Vec::new();
    for (title, value) in quantities {
        let mut lines = Vec::new();
        for (look, (label, case)) in settings.iter().enumerate() {
            let name = label.replace(' ', "_");
            let name = if quantities.len() > 1 {
                format!("{}_{name}", title.replace([' ', '-'], "_"))
            } else {
                name
            };
            let _ = write!(csv, ",{name}_mean,{name}_sd");
            let mut points = Vec::new();
            for (&buffer, row) in buffers.iter().zip(&mut rows) {
                let sample = runs.last(&case.clone().buffer(buffer), value);
                let _ = write!(row, ",{},{}", number(sample.mean), number(sample.sd));
                points.push((f64::from(buffer), sample.mean));
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
    csv.push('\n');
    for row in rows {
        csv.push_str(&row);
        csv.push('\n');
    }
    (panels, csv)
}

/// A figure of [`over_buffers`].
fn buffer_figure(
    runs: &Runs,
    (title, y_label): (&str, &str),
    buffers: RangeInclusive<u32>,
    settings: &[(String, Case)],
    quantities: &[Quantity<'_>],
) -> (LineFigure, String) {
    let x_from = f64::from(*buffers.start());
    let buffers: Vec<u32> = buffers.collect();
    let (panels, csv) = over_buffers(runs, &buffers, settings, quantities);
    let points = || {
        panels
            .iter()
            .flat_map(|panel| &panel.lines)
            .flat_map(|line| &line.points)
    };
    let lowest = points()
        .map(|(_, y)| *y)
        .filter(|y| y.is_finite())
        .fold(1.0, f64::min);
    // The lines of the root link are close to each other below 1.
    let y_from = if y_label == UTILIZATION {
        (lowest * 10.0).floor() / 10.0
    } else {
        0.0
    };
    let figure = LineFigure {
        title: title.to_owned(),
        x_label: BUFFER.to_owned(),
        y_label: y_label.to_owned(),
        x_from,
        y_from,
        y_at_least: 1.0,
        every_point: true,
        panels,
        ..LineFigure::default()
    };
    (figure, csv)
}

/// Settings of Fig. 4, of which [`over_buffers`] sets the buffer.
fn fig4(scheme: Scheme, lengths: Lengths) -> Case {
    Case::fig4(scheme, *BUFFERS.start(), lengths.long)
}

/// A line per threshold.
fn thresholds(
    runs: &Runs,
    lengths: Lengths,
    (title, y_label): (&str, &str),
    value: fn(&Rates) -> f64,
) -> (LineFigure, String) {
    let line = |(name, scheme)| (format!("threshold {name}"), fig4(scheme, lengths));
    let lines = THRESHOLDS.map(line);
    buffer_figure(runs, (title, y_label), BUFFERS, &lines, &[(title, value)])
}

/// A line per number of flows.
fn flows(
    runs: &Runs,
    lengths: Lengths,
    (title, y_label): (&str, &str),
    value: fn(&Rates) -> f64,
) -> (LineFigure, String) {
    let lines = FLOWS.map(|flows| {
        let case = fig4(Scheme::Threshold(6), lengths).flows(flows);
        (format!("{flows} + {flows} flows"), case)
    });
    buffer_figure(runs, (title, y_label), BUFFERS, &lines, &[(title, value)])
}

fn slide15(runs: &Runs, lengths: Lengths) -> (LineFigure, String) {
    let lines = RESPONSES.map(|response| {
        let case = fig4(Scheme::Input, lengths).response(response);
        (response.name().to_uppercase(), case)
    });
    let quantities: [Quantity<'_>; 4] = [
        ("root link", root),
        ("inter-switch link", |r| r.shares.inter_switch),
        ("local flows", |r| r.shares.local),
        ("remote flows", |r| r.shares.remote),
    ];
    let titles = (
        "Slide 15: rates over the buffer size, for LIPD, FIMD and AIMD",
        "rate (fraction of the link rate)",
    );
    buffer_figure(runs, titles, SLIDE_BUFFERS, &lines, &quantities)
}

/// Finc, from the fixed point of `ecn-core`.
fn slide14() -> (LineFigure, String) {
    let end = Curve::all().map(|curve| curve.time_of(1.0)).into_iter();
    let end = end.fold(0.0, f64::max);
    let mut lines = Vec::new();
    let mut csv = "function,time_packet_times,rate\n".to_owned();
    for (look, curve) in Curve::all().into_iter().enumerate() {
        let name = curve.function.name().to_uppercase();
        // One ACK per 16 packet times is sufficient for the figure.
        let mut next = 0.0;
        let mut points: Vec<(f64, f64)> = curve
            .walk(RMIN)
            .filter(|(time, rate)| {
                let keep = *time >= next || *rate >= 1.0;
                if keep {
                    next = time + 16.0;
                }
                keep
            })
            .collect();
        points.push((end, 1.0));
        for (time, rate) in &points {
            let _ = writeln!(csv, "{name},{time:.3},{rate:.6}");
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
    let title = "Slide 14: rate after time t without marks, from Rmin = Rmax/256";
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
    (figure, csv)
}
