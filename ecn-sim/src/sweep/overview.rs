//! A sweep over one number, or over that and a few values of another key, as a figure.

use std::collections::BTreeMap;

use toml::Value;

use super::Sweep;
use super::values::Axis;
use crate::figure::{FigureError, LOOKS, Line, LineFigure, Panel};

/// A record's values in one window, by column of the table.
pub(super) type Row = BTreeMap<String, String>;

/// Columns of Fig. 1 that have a panel.
const SHARES: &[&str] = &["root", "inter_switch", "local", "remote", "victim"];

/// Sum and number of values.
type Mean = (f64, f64);

impl Sweep {
    /// The figure: a panel per share, its mean over the seeds; a line per window, or per value of the
    /// other key if there is one window. None if the sweep has other keys than that, or too many lines.
    pub(super) fn overview(
        &self,
        rows: impl Iterator<Item = (usize, Row)>,
    ) -> Option<Result<String, FigureError>> {
        let is_number = |axis: &&Axis| axis.values.iter().all(Value::is_integer);
        let x = self.axes.iter().filter(is_number);
        let x = x.max_by_key(|axis| axis.values.len())?;
        let other = self.axes.iter().find(|axis| axis.key != x.key);
        if self.axes.len() > 2 || x.values.len() < 2 {
            return None;
        }
        // By share, then by line, then by x.
        let mut means: BTreeMap<String, BTreeMap<usize, BTreeMap<i64, Mean>>> = BTreeMap::new();
        let mut windows: Vec<String> = Vec::new();
        for (index, row) in rows {
            let number = |column: &str| row.get(column)?.parse::<f64>().ok();
            let (Some(from), Some(to)) = (row.get("from_ms"), row.get("to_ms")) else {
                continue;
            };
            let window = format!("{from}..{to} ms");
            let known = windows.iter().position(|known| *known == window);
            let mut line = known.unwrap_or_else(|| {
                windows.push(window);
                windows.len() - 1
            });
            let value = |axis: &Axis| {
                let mut swept = self.swept(index);
                swept.find(|(key, _)| **key == axis.key).map(|(_, v)| v)
            };
            if let Some(other) = other {
                line = other.values.iter().position(|v| Some(v) == value(other))?;
            }
            let at = value(x)?.as_integer()?;
            for column in row.keys() {
                let class = column.strip_prefix("classes.");
                let class = class.and_then(|class| class.strip_suffix(".share"));
                if class.is_none() && !SHARES.contains(&column.as_str()) {
                    continue;
                }
                let lines = means.entry(class.unwrap_or(column).to_owned()).or_default();
                let mean = lines.entry(line).or_default().entry(at).or_default();
                *mean = (mean.0 + number(column)?, mean.1 + 1.0);
            }
        }
        let (labels, note) = match other {
            Some(_) if windows.len() != 1 => return None,
            Some(axis) => {
                let labels = axis.values.iter().map(super::plain).collect();
                (labels, format!("lines: {}, in {}", axis.key, windows[0]))
            }
            None => (windows, String::new()),
        };
        if labels.len() > LOOKS.len() || means.is_empty() {
            return None;
        }
        let line = |(line, points): (usize, BTreeMap<i64, Mean>)| Line {
            label: labels[line].clone(),
            points: points
                .into_iter()
                .map(|(x, (sum, count))| (x as f64, sum / count))
                .collect(),
            look: line,
        };
        let panels = means.into_iter().map(|(share, lines)| Panel {
            title: share.replace('_', "-"),
            note: note.clone(),
            lines: lines.into_iter().map(line).collect(),
        });
        let figure = LineFigure {
            title: format!("{} over {}", self.base.name, x.key),
            x_label: x.key.clone(),
            y_label: "share of the link's rate, mean over the seeds".to_owned(),
            y_at_least: 1.0,
            panels: panels.collect(),
            ..LineFigure::default()
        };
        Some(figure.to_svg())
    }
}
