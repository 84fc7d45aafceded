//! A figure of a sweep over one number, optionally with a few values of a second key.

use std::collections::BTreeMap;

use ecn_report::figure::{Line, LineFigure, MOST_LINES, Panel, decades};
use ecn_report::statistics::Sample;
use ecn_report::table::Row;
use ecn_units::{DurationText, Fraction, Rate, Size};
use toml::Value;

use super::Sweep;
use super::values::Axis;
use crate::experiment::Experiment;
use crate::settings::shown;

/// Columns of Fig. 1 that have a panel.
const SHARES: &[&str] = &["root", "inter_switch", "local", "remote", "victim"];

/// Columns of data centres with a panel, and its title.
const SLOWDOWNS: &[(&str, &str)] = &[
    ("fct_slowdown_p50", "Median slowdown"),
    ("fct_slowdown_p95", "Slowdown, 95th percentile"),
    ("fct_slowdown_p99", "Slowdown, 99th percentile"),
];

/// Values of all seeds, by position on the x axis.
type Points = BTreeMap<usize, Vec<f64>>;

/// Means over seeds with confidence intervals; computed from logarithms for slowdowns.
fn line(label: String, look: usize, points: Vec<(f64, Vec<f64>)>, are_slowdowns: bool) -> Line {
    let scaled = |value: f64| match are_slowdowns {
        true => value.max(1.0).log10(),
        false => value,
    };
    let mut points: Vec<(f64, Sample)> = (points.into_iter())
        .map(|(x, values)| (x, Sample::of(values)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let bar = |(_, sample): &(f64, Sample)| {
        let half = sample.half_width().unwrap_or(0.0);
        (scaled(sample.mean - half), scaled(sample.mean + half))
    };
    Line {
        label,
        bars: points.iter().map(bar).collect(),
        points: (points.iter())
            .map(|(x, sample)| (*x, scaled(sample.mean)))
            .collect(),
        look,
    }
}

/// A key's value as a number, with its unit.
fn number(value: &Value) -> Option<(f64, &'static str)> {
    if let Some(whole) = value.as_integer() {
        return Some((whole as f64, ""));
    }
    let text = value.as_str()?;
    if let Ok(fraction) = text.parse::<Fraction>() {
        return Some((fraction.as_f64(), ""));
    }
    if let Ok(size) = text.parse::<Size>() {
        return Some((size.bytes() as f64 / 1e3, " (kB)"));
    }
    if let Ok(rate) = text.parse::<Rate>() {
        return Some((rate.bits_per_s() as f64 / 1e9, " (Gb/s)"));
    }
    let time = text.parse::<DurationText>().ok()?;
    Some((time.as_nanos() as f64 / 1e3, " (us)"))
}

/// The panel of a column, if it has one: position and title.
fn panel(column: &str) -> Option<(usize, &str)> {
    if let Some(place) = SLOWDOWNS.iter().position(|(name, _)| *name == column) {
        return Some((place, SLOWDOWNS[place].1));
    }
    let class = column.strip_prefix("classes_");
    let class = class.and_then(|class| class.strip_suffix("_share"));
    let share = class.or_else(|| SHARES.contains(&column).then_some(column));
    share.map(|share| (0, share))
}

impl Sweep {
    const fn over_seeds(&self) -> &'static str {
        match self.seeds.len() {
            0 | 1 => "of one seed",
            _ => "mean over the seeds and its 95 % interval",
        }
    }

    /// The figure: a panel per share or percentile, with the mean over seeds and its 95 % confidence interval; a line
    /// per window, or per value of the second key if there is at most one window. `None` if the sweep has other keys,
    /// or too many lines.
    pub(super) fn overview(&self, rows: impl Iterator<Item = (usize, Row)>) -> Option<String> {
        let numbers = |axis: &Axis| -> Option<(Vec<f64>, &'static str)> {
            let all: Vec<_> = axis.values.iter().map(number).collect::<Option<_>>()?;
            let unit = all.first()?.1;
            let same = all.iter().all(|(_, other)| *other == unit);
            same.then(|| (all.into_iter().map(|(number, _)| number).collect(), unit))
        };
        let of_numbers = self.axes.iter().filter(|axis| numbers(axis).is_some());
        // Prefer a key with whole numbers for the x axis.
        let x = of_numbers
            .max_by_key(|axis| (axis.values.iter().all(Value::is_integer), axis.values.len()))?;
        let (numbers, unit) = numbers(x)?;
        let other = self.axes.iter().find(|axis| axis.key != x.key);
        if self.axes.len() > 2 || x.values.len() < 2 {
            return None;
        }
        let is_fabric = matches!(self.base, Experiment::Fabric(_));
        // By panel, then by line.
        let mut values: BTreeMap<_, BTreeMap<usize, Points>> = BTreeMap::new();
        let mut windows: Vec<String> = Vec::new();
        let mut last = None;
        for (index, row) in rows {
            let window = match (row.get("from_ms"), row.get("to_ms")) {
                // Slowdowns are of whole runs and repeated in each row of a run.
                _ if is_fabric && last.replace(index) == Some(index) => continue,
                _ if is_fabric => "all".to_owned(),
                (Some(from), Some(to)) => format!("{from}..{to} ms"),
                _ => continue,
            };
            let known = windows.iter().position(|known| *known == window);
            let mut line = known.unwrap_or_else(|| {
                windows.push(window);
                windows.len() - 1
            });
            let place = |axis: &Axis| {
                let mut swept = self.swept(index);
                let (_, value) = swept.find(|(key, _)| **key == axis.key)?;
                axis.values.iter().position(|known| known == value)
            };
            if let Some(other) = other {
                line = place(other)?;
            }
            let at = place(x)?;
            for (column, value) in &row {
                let (Some((order, title)), Some(number)) = (panel(column), value.number()) else {
                    continue;
                };
                let lines = values.entry((order, title.to_owned())).or_default();
                let here = lines.entry(line).or_default().entry(at).or_default();
                here.push(number);
            }
        }
        let (labels, note) = match other {
            Some(_) if windows.len() != 1 => return None,
            Some(axis) => {
                let labels = axis.values.iter().map(shown).collect();
                let window = match is_fabric {
                    true => String::new(),
                    false => format!(", in {}", windows[0]),
                };
                (labels, format!("lines: {}{window}", axis.key))
            }
            None => (windows, String::new()),
        };
        if labels.len() > MOST_LINES || values.is_empty() {
            return None;
        }
        let line = |(look, points): (usize, Points)| {
            let points = points.into_iter().map(|(at, values)| (numbers[at], values));
            line(labels[look].clone(), look, points.collect(), is_fabric)
        };
        let panels = values.into_iter().map(|((_, title), lines)| Panel {
            title: title.replace('_', "-"),
            note: note.clone(),
            lines: lines.into_iter().map(line).collect(),
        });
        let mut figure = LineFigure {
            title: format!("{} over {}", self.base.name(), x.key),
            x_label: format!("{}{unit}", x.key),
            y_label: format!("share of the link's rate, {}", self.over_seeds()),
            y_at_least: 1.0,
            panels: panels.collect(),
            ..LineFigure::default()
        };
        if is_fabric {
            let lines = figure.panels.iter().flat_map(|panel| &panel.lines);
            let bars = lines.flat_map(|line| &line.bars);
            let most = bars.map(|bar| bar.1).fold(2_f64.log10(), f64::max);
            figure.y_label = format!("slowdown, {}", self.over_seeds());
            figure.y_at_least = most;
            figure.y_ticks = decades(1.0, 1.5 * 10_f64.powf(most), |value| format!("{value}"));
            figure.every_point = true;
        }
        Some(figure.to_svg())
    }
}
