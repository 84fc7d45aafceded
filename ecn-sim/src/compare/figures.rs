//! The figures of a comparison.

use ecn_report::figure::{DotColumn, DotFigure, Line, LineFigure, MOST_LINES, Panel, decades};
use ecn_units::Size;

use super::{Comparison, Outcome};
use crate::fabric::measure::OfSize;

/// A figure with its file name and caption.
#[derive(Clone, Debug)]
pub struct Figure {
    /// `NAME.svg`.
    pub file: String,
    /// Description in one sentence.
    pub caption: String,
    /// SVG text.
    pub svg: String,
}

fn plain(value: f64) -> String {
    format!("{value}")
}

fn size(bytes: f64) -> String {
    Size::from_bytes(bytes as u64).short()
}

impl Comparison {
    /// All figures: means, with confidence intervals if there are several runs; the distribution of slowdowns;
    /// slowdowns by size, if flow sizes differ; samples over time; the network.
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let any = |holds: fn(&Outcome) -> bool| self.schemes.iter().any(holds);
        if any(|one| one.runs.len() > 1) {
            figures.push(self.means());
        }
        if any(|one| !one.fct_slowdown_cdf.is_empty()) {
            figures.push(self.cdf());
        }
        if any(|one| one.fct_slowdown.by_size.len() > 1) {
            figures.push(self.by_size());
        }
        let mut names: Vec<&str> = Vec::new();
        for series in self.schemes.iter().flat_map(|one| &one.series) {
            if !names.contains(&series.name.as_str()) {
                names.push(&series.name);
            }
        }
        for name in names {
            figures.push(self.over_time(name));
        }
        figures.push(Figure {
            file: "network.svg".to_owned(),
            caption: "The network".to_owned(),
            svg: self.network.to_svg(),
        });
        figures
    }

    /// The schemes' lines in panels with the same axes, with at most as many lines per panel as readers can
    /// distinguish.
    fn panels(&self, title: &str, points: impl Fn(&Outcome) -> Vec<(f64, f64)>) -> Vec<Panel> {
        let parts = self.schemes.chunks(MOST_LINES);
        let panel = |part: &[Outcome]| Panel {
            title: title.to_owned(),
            note: String::new(),
            lines: (part.iter().enumerate())
                .map(|(look, one)| Line {
                    label: one.scheme.clone(),
                    points: points(one),
                    look,
                    ..Line::default()
                })
                .collect(),
        };
        parts.map(panel).collect()
    }

    fn means(&self) -> Figure {
        let column = |title: &str, unit: &str, of: fn(&Outcome) -> (Option<f64>, Option<f64>)| {
            let (values, half_widths) = self.schemes.iter().map(of).unzip();
            DotColumn {
                title: title.to_owned(),
                unit: unit.to_owned(),
                values,
                half_widths,
                reference: None,
            }
        };
        let figure = DotFigure {
            title: format!(
                "{}: estimates and their confidence intervals",
                self.scenario
            ),
            rows: (self.schemes.iter())
                .map(|one| (String::new(), one.scheme.clone()))
                .collect(),
            columns: vec![
                column("Slowdown", "median", |one| {
                    (one.fct_slowdown.p50, one.ci95.fct_slowdown_p50)
                }),
                column("Slowdown", "99th percentile", |one| {
                    (one.fct_slowdown.p99, one.ci95.fct_slowdown_p99)
                }),
                column("Goodput", "payload (Gb/s)", |one| {
                    let gbit = |bytes: f64| bytes * 8e-9;
                    (
                        Some(gbit(one.goodput_bytes_per_s as f64)),
                        one.ci95.goodput_bytes_per_s.map(gbit),
                    )
                }),
                column("Fairness", "Jain's index", |one| (one.jain, one.ci95.jain)),
            ],
        };
        Figure {
            file: "means.svg".to_owned(),
            caption: "Percentiles of the flows of all runs, and means of the runs, with 95 % confidence intervals \
                      (Student's t over the runs)"
                .to_owned(),
            svg: figure.to_svg(),
        }
    }

    fn cdf(&self) -> Figure {
        let most = self.schemes.iter().flat_map(|one| &one.fct_slowdown_cdf);
        let most = most.map(|point| point.0).fold(2.0, f64::max);
        let points = |one: &Outcome| {
            let cdf = &one.fct_slowdown_cdf;
            let Some(first) = cdf.first() else {
                return Vec::new();
            };
            let rise = cdf.iter().map(|(slowdown, part)| (slowdown.log10(), *part));
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
        Figure {
            file: "slowdown-cdf.svg".to_owned(),
            caption: caption.to_owned(),
            svg: figure.to_svg(),
        }
    }

    fn by_size(&self) -> Figure {
        let schemes = self.schemes.iter();
        let groups = schemes.flat_map(|one| &one.fct_slowdown.by_size);
        let sizes = groups.clone().map(|group| group.to_bytes.max(1) as f64);
        let least = sizes.clone().fold(f64::MAX, f64::min);
        let most = sizes.fold(1.0, f64::max);
        let slowest = groups.map(|group| group.p99).fold(2.0, f64::max);
        let panels = |title: &str, value: fn(&OfSize) -> f64| {
            self.panels(title, |one| {
                let groups = one.fct_slowdown.by_size.iter();
                let x = |group: &OfSize| (group.to_bytes.max(1) as f64).log10();
                let points = groups.map(|group| (x(group), value(group).log10()));
                points.collect()
            })
        };
        let both = [
            panels("Median slowdown", |group| group.p50),
            panels("99th percentile of the slowdown", |group| group.p99),
        ];
        let caption = "Slowdown by flow size, in groups of equally many flows: a point is at the largest \
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
        Figure {
            file: "slowdown-by-size.svg".to_owned(),
            caption: caption.to_owned(),
            svg: figure.to_svg(),
        }
    }

    /// The samples of this name, of all schemes. Schemes that take much longer than the others would squeeze these to
    /// the left edge: the axis ends with the others, and the panel names the schemes that continue.
    fn over_time(&self, name: &str) -> Figure {
        let series = |one: &Outcome| {
            let mut all = one.series.iter();
            all.find(|series| series.name == name).cloned()
        };
        let found = |one: &Outcome| series(one).map(|series| series.points).unwrap_or_default();
        let unit = self.schemes.iter().find_map(series);
        let ends = |part: &[Outcome]| -> Vec<(String, f64)> {
            let end = |one: &Outcome| Some((one.scheme.clone(), found(one).last()?.0));
            part.iter().filter_map(end).collect()
        };
        let end = axis_end(ends(&self.schemes).iter().map(|one| one.1).collect());
        let mut panels = self.panels(name, |one| up_to(found(one), end));
        for (panel, part) in panels.iter_mut().zip(self.schemes.chunks(MOST_LINES)) {
            panel.note = cut_lines(&ends(part), end);
        }
        let figure = LineFigure {
            title: format!("{}: {name} over time", self.scenario),
            x_label: "time (ms)".to_owned(),
            y_label: unit.map(|series| series.unit).unwrap_or_default(),
            panels,
            ..LineFigure::default()
        };
        let mut caption = format!("{name}, over time, with seed 1");
        let later = cut_lines(&ends(&self.schemes), end);
        if !later.is_empty() {
            caption += "; not drawn to the end: ";
            caption += &later;
        }
        Figure {
            file: format!("{}.svg", name.to_lowercase().replace(' ', "-")),
            caption,
            svg: figure.to_svg(),
        }
    }
}

/// A run is much longer than the others if it exceeds their median by this factor.
const FAR: f64 = 2.0;

/// The latest of these end times that is not far beyond the others.
fn axis_end(mut ends: Vec<f64>) -> f64 {
    ends.sort_by(f64::total_cmp);
    let Some(median) = ends.get(ends.len().saturating_sub(1) / 2).copied() else {
        return f64::INFINITY;
    };
    ends.retain(|end| *end <= FAR * median);
    ends.last().copied().unwrap_or(f64::INFINITY)
}

/// The points up to `end` on the x axis; the line through them is cut there.
fn up_to(mut points: Vec<(f64, f64)>, end: f64) -> Vec<(f64, f64)> {
    let within = points.partition_point(|point| point.0 < end);
    if let (Some(cut), Some(after)) = (within.checked_sub(1), points.get(within)) {
        let ((x, y), (next_x, next_y)) = (points[cut], *after);
        let at_end = y + (next_y - y) * (end - x) / (next_x - x);
        points.truncate(within);
        points.push((end, at_end));
    }
    points
}

/// Names and end times of the lines that are cut: up to two, or their number.
fn cut_lines(ends: &[(String, f64)], axis_end: f64) -> String {
    let time = |ms: f64| {
        let decimals = if ms < 10.0 { 2 } else { 1 };
        format!("{ms:.decimals$} ms")
    };
    let later: Vec<_> = ends.iter().filter(|(_, end)| *end > axis_end).collect();
    let last = later.iter().map(|(_, end)| *end).fold(0.0, f64::max);
    match &later[..] {
        [] => String::new(),
        [(name, end)] => format!("{name} ends at {}", time(*end)),
        [(first, _), (second, _)] => {
            format!("{first} and {second} end later, the last at {}", time(last))
        }
        more => format!("{} end later, the last at {}", more.len(), time(last)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_with_the_others() {
        // One much longer, none, all the same; most are slow; two, one of them slow.
        for (ends, end) in [
            (vec![29.2, 10.4, 10.8, 10.7, 13.8, 9.8], 13.8),
            (vec![10.0, 20.0, 15.0], 20.0),
            (vec![5.0; 4], 5.0),
            (vec![1.0, 100.0, 110.0, 120.0], 120.0),
            (vec![100.0, 1.0], 1.0),
            (vec![3.0], 3.0),
            (vec![], f64::INFINITY),
        ] {
            assert_eq!(axis_end(ends.clone()), end, "{ends:?}");
        }
    }

    #[test]
    fn lines_are_cut_where_the_axis_ends() {
        let line = vec![(1.0, 0.0), (3.0, 4.0), (5.0, 0.0)];
        assert_eq!(up_to(line.clone(), 2.0), [(1.0, 0.0), (2.0, 2.0)]);
        assert_eq!(up_to(line.clone(), 3.0), [(1.0, 0.0), (3.0, 4.0)]);
        assert_eq!(up_to(line.clone(), 5.0), line);
        assert_eq!(up_to(line.clone(), f64::INFINITY), line);
        assert_eq!(up_to(vec![], 1.0), []);
    }

    #[test]
    fn cut_lines_are_named() {
        let all = ["a", "b", "c", "d"].map(|name| (name.to_owned(), 1.0));
        let mut all = all.to_vec();
        assert_eq!(cut_lines(&all, 1.0), "");
        all[2].1 = 29.25;
        assert_eq!(cut_lines(&all, 1.0), "c ends at 29.2 ms");
        all[0].1 = 5.0;
        assert_eq!(
            cut_lines(&all, 1.0),
            "a and c end later, the last at 29.2 ms"
        );
        all[3].1 = 5.0;
        assert_eq!(cut_lines(&all, 1.0), "3 end later, the last at 29.2 ms");
    }
}
