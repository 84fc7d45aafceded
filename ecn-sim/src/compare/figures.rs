//! The figures of a comparison.

use super::{Comparison, Outcome};
use crate::fabric::measure::OfSize;
use crate::figure::{FigureError, LOOKS, Line, LineFigure, Panel};
use crate::units::Size;

/// A figure with the name of its file and what it shows.
#[derive(Clone, Debug)]
pub struct Figure {
    /// `NAME.svg`.
    pub file: String,
    /// In a sentence.
    pub caption: String,
    /// Its text.
    pub svg: String,
}

/// Numbers for an axis of logarithms up to `most`: 1, 2, 5, 10 and so on, or powers of ten if these are many.
fn decades(least: f64, most: f64, label: fn(f64) -> String) -> Vec<(f64, String)> {
    let (first, last) = (least.log10().floor() as i32, most.log10().ceil() as i32);
    let factors: &[f64] = if last - first <= 3 {
        &[1.0, 2.0, 5.0]
    } else {
        &[1.0]
    };
    let powers = (first..=last).map(|power| 10_f64.powi(power));
    let values = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
    let within = values.filter(|value| (least..=most * 1.000_001).contains(value));
    within.map(|value| (value.log10(), label(value))).collect()
}

fn plain(value: f64) -> String {
    format!("{value}")
}

fn size(bytes: f64) -> String {
    Size::from_bytes(bytes as u64).short()
}

impl Comparison {
    /// All figures: the distribution of slowdowns; slowdowns by size, if there are flows of several
    /// sizes; what was sampled over time; the network.
    ///
    /// # Errors
    ///
    /// One cannot be drawn.
    pub fn figures(&self) -> Result<Vec<Figure>, FigureError> {
        let mut figures = Vec::new();
        let finished = |one: &&Outcome| !one.fct_slowdown_cdf.is_empty();
        if self.schemes.iter().any(|one| finished(&one)) {
            figures.push(self.cdf()?);
        }
        if self
            .schemes
            .iter()
            .any(|one| one.fct_slowdown.by_size.len() > 1)
        {
            figures.push(self.by_size()?);
        }
        let mut names: Vec<&str> = Vec::new();
        for series in self.schemes.iter().flat_map(|one| &one.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        for name in names {
            figures.push(self.over_time(name)?);
        }
        figures.push(Figure {
            file: "network.svg".to_owned(),
            caption: "The network".to_owned(),
            svg: self.network.to_svg()?,
        });
        Ok(figures)
    }

    /// The schemes' lines in panels with the same axes, no more in one than can be told apart.
    fn panels(&self, title: &str, points: impl Fn(&Outcome) -> Vec<(f64, f64)>) -> Vec<Panel> {
        let parts = self.schemes.chunks(LOOKS.len());
        let panel = |part: &[Outcome]| Panel {
            title: title.to_owned(),
            note: String::new(),
            lines: (part.iter().enumerate())
                .map(|(look, one)| Line {
                    label: one.scheme.clone(),
                    points: points(one),
                    look,
                })
                .collect(),
        };
        parts.map(panel).collect()
    }

    fn cdf(&self) -> Result<Figure, FigureError> {
        let most = self.schemes.iter().flat_map(|one| &one.fct_slowdown_cdf);
        let most = most.map(|point| point.0).fold(2.0, f64::max);
        let points = |one: &Outcome| {
            let (Some(first), Some(_)) =
                (one.fct_slowdown_cdf.first(), one.fct_slowdown_cdf.last())
            else {
                return Vec::new();
            };
            let rise = one
                .fct_slowdown_cdf
                .iter()
                .map(|(slowdown, part)| (slowdown.log10(), *part));
            let start = [(0.0, 0.0), (first.0.log10(), 0.0)];
            let end = [(most.log10(), 1.0)];
            start.into_iter().chain(rise).chain(end).collect()
        };
        let caption = "Flow completion time over that in an idle network: share of the finished flows \
                       that have at most this slowdown";
        let figure = LineFigure {
            title: format!("{}: distribution of slowdowns", self.scenario),
            x_label: "slowdown (completion time over that in an idle network)".to_owned(),
            y_label: "share of the flows".to_owned(),
            x_at_least: most.log10(),
            x_ticks: decades(1.0, most, plain),
            y_at_least: 1.0,
            panels: self.panels("Slowdown of flows", points),
            ..LineFigure::default()
        };
        Ok(Figure {
            file: "slowdown-cdf.svg".to_owned(),
            caption: caption.to_owned(),
            svg: figure.to_svg()?,
        })
    }

    fn by_size(&self) -> Result<Figure, FigureError> {
        let groups = || {
            self.schemes
                .iter()
                .flat_map(|one| &one.fct_slowdown.by_size)
        };
        let sizes = || groups().map(|group| group.to_bytes.max(1) as f64);
        let (least, most) = (
            sizes().fold(f64::MAX, f64::min),
            sizes().fold(1.0, f64::max),
        );
        let slowest = groups().map(|group| group.p99).fold(2.0, f64::max);
        let panels = |title: &str, value: fn(&OfSize) -> f64| {
            self.panels(title, |one| {
                let groups = one.fct_slowdown.by_size.iter();
                let x = |group: &OfSize| (group.to_bytes.max(1) as f64).log10();
                groups
                    .map(|group| (x(group), value(group).log10()))
                    .collect()
            })
        };
        let both = [
            panels("Median slowdown", |group| group.p50),
            panels("99th percentile of the slowdown", |group| group.p99),
        ];
        let caption = "Slowdown by size of the flows, in groups of as many flows each: a point is at the largest \
                       size of its group";
        let figure = LineFigure {
            title: format!("{}: slowdown by size", self.scenario),
            x_label: "payload of a flow".to_owned(),
            y_label: "slowdown".to_owned(),
            x_from: least.log10(),
            x_at_least: most.log10(),
            x_ticks: decades(least, most, size),
            y_at_least: slowest.log10(),
            y_ticks: decades(1.0, slowest * 1.5, plain),
            every_point: true,
            panels: both.concat(),
            ..LineFigure::default()
        };
        Ok(Figure {
            file: "slowdown-by-size.svg".to_owned(),
            caption: caption.to_owned(),
            svg: figure.to_svg()?,
        })
    }

    /// What all schemes sampled under this name.
    fn over_time(&self, name: &str) -> Result<Figure, FigureError> {
        let series = |one: &Outcome| {
            one.series
                .iter()
                .find(|series| series.name == name)
                .cloned()
        };
        let unit = self
            .schemes
            .iter()
            .find_map(series)
            .map(|series| series.unit);
        let points = |one: &Outcome| series(one).map(|series| series.points).unwrap_or_default();
        let figure = LineFigure {
            title: format!("{}: {name} over time", self.scenario),
            x_label: "time (ms)".to_owned(),
            y_label: unit.unwrap_or_default(),
            panels: self.panels(name, points),
            ..LineFigure::default()
        };
        Ok(Figure {
            file: format!("{}.svg", name.to_lowercase().replace(' ', "-")),
            caption: format!("{name}, over time, with seed 1"),
            svg: figure.to_svg()?,
        })
    }
}
