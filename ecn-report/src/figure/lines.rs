//! Lines in panels.

use super::axis::{Axis, spread};
use super::canvas::{
    Anchor, BOLD, Canvas, GRID, INK, LOOKS, Look, NONE, PLAIN, QUIET, VERTICAL, WIDTH, fit,
    text_width, thin, widest,
};

/// A line of a panel.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Line {
    /// Label at its right end.
    pub label: String,
    /// Points in order of x; non-finite points leave a gap.
    pub points: Vec<(f64, f64)>,
    /// Selects colour, dashes and marker, modulo [`MOST_LINES`](super::MOST_LINES): the same number looks the same in
    /// every figure.
    pub look: usize,
    /// Limits of each point's confidence interval, drawn as a bar; may be empty.
    pub bars: Vec<(f64, f64)>,
}

impl Line {
    fn look(&self) -> &'static Look {
        &LOOKS[self.look % LOOKS.len()]
    }

    fn finite_points(&self) -> impl Iterator<Item = (f64, f64)> {
        let points = self.points.iter().copied();
        points.filter(|(x, y)| x.is_finite() && y.is_finite())
    }
}

/// One panel of a figure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Panel {
    /// Title above the panel.
    pub title: String,
    /// A remark beside the title, in grey.
    pub note: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// Panels with lines and the same axes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LineFigure {
    /// Title of the document for viewers and screen readers; not drawn.
    pub title: String,
    /// Name and unit of the x axis.
    pub x_label: String,
    /// Name and unit of the y axis.
    pub y_label: String,
    /// Start of the x axis.
    pub x_from: f64,
    /// Minimum end of the x axis.
    pub x_at_least: f64,
    /// Ticks of the x axis with their labels; round steps if empty.
    pub x_ticks: Vec<(f64, String)>,
    /// Start of the y axis.
    pub y_from: f64,
    /// Minimum end of the y axis.
    pub y_at_least: f64,
    /// Ticks of the y axis with their labels; round steps if empty.
    pub y_ticks: Vec<(f64, String)>,
    /// Whether to draw a marker at each point, for few points measured at common x (markers of coinciding points
    /// alternate); otherwise some markers along each line.
    pub every_point: bool,
    /// Panels from top to bottom; in two columns if there are more than three.
    pub panels: Vec<Panel>,
}

/// A rectangle in the figure with axes at its left and lower sides.
struct Frame<'a> {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Axis,
    x_ticks: &'a [(f64, String)],
    y: Axis,
    y_ticks: &'a [(f64, String)],
    every_point: bool,
}

impl Frame<'_> {
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let part = |value: f64, axis: Axis| (value - axis.start) / (axis.end - axis.start);
        (
            self.left + part(x, self.x) * (self.right - self.left),
            self.bottom - part(y, self.y) * (self.bottom - self.top),
        )
    }

    fn draw_axes(&self, canvas: &mut Canvas) {
        for (value, label) in self.y_ticks {
            let (_, y) = self.at((self.x.start, *value));
            if *value > self.y.start {
                canvas.path(&[(self.left, y), (self.right, y)], GRID, 1.0);
            }
            canvas.path(&[(self.left - 4.0, y), (self.left, y)], INK, 1.0);
            canvas.text(label, (self.left - 8.0, y), Anchor::End, PLAIN);
        }
        for (value, label) in self.x_ticks {
            let (x, _) = self.at((*value, self.y.start));
            canvas.path(&[(x, self.bottom), (x, self.bottom + 4.0)], INK, 1.0);
            canvas.text(label, (x, self.bottom + 14.0), Anchor::Middle, PLAIN);
        }
        let corner = (self.left, self.bottom);
        canvas.path(
            &[(self.left, self.top), corner, (self.right, self.bottom)],
            INK,
            1.0,
        )
    }

    fn draw_lines(&self, canvas: &mut Canvas, panel: &Panel, x_stop: f64) {
        let inside = |line: &Line| -> Vec<Vec<(f64, f64)>> {
            line.points
                .chunk_by(|a, b| a.1.is_finite() == b.1.is_finite())
                .filter(|part| part.iter().all(|(x, y)| x.is_finite() && y.is_finite()))
                .map(|part| thin(&part.iter().map(|point| self.at(*point)).collect::<Vec<_>>()))
                .collect()
        };
        let parts: Vec<_> = panel.lines.iter().map(inside).collect();
        // Dashed lines over solid ones and thin over wide ones, so that coinciding lines remain visible.
        let mut order: Vec<_> = panel.lines.iter().zip(&parts).collect();
        order.sort_by(|(a, _), (b, _)| {
            let (a, b) = (a.look(), b.look());
            (a.dash != NONE)
                .cmp(&(b.dash != NONE))
                .then(b.width.total_cmp(&a.width))
        });
        for (line, parts) in order {
            for part in parts {
                canvas.line(part, line.look());
            }
        }
        self.draw_bars(canvas, panel);
        let points = |number: usize| parts[number].iter().flatten().copied();
        for (number, line) in panel.lines.iter().enumerate() {
            if self.every_point {
                for (at, (x, y)) in points(number).enumerate() {
                    let mut here: Vec<(f64, usize)> = (0..parts.len())
                        .flat_map(|other| points(other).map(move |point| (point, other)))
                        .filter(|((other_x, _), _)| (other_x - x).abs() < 1.0)
                        .map(|((_, other_y), other)| (other_y, other))
                        .collect();
                    here.sort_by(|a, b| a.0.total_cmp(&b.0));
                    let group = here
                        .chunk_by(|a, b| b.0 - a.0 < 6.0)
                        .find(|group| group.iter().any(|(_, other)| *other == number));
                    let turn = group.map(|group| group[at % group.len()].1);
                    if turn == Some(number) {
                        canvas.marker((x, y), line.look());
                    }
                }
                continue;
            }
            // Markers of different lines are at different x, about 110 pixels apart on each line.
            let mut next = self.left + 24.0 + 22.0 * number as f64;
            for (x, y) in points(number) {
                if x >= next && x <= self.right - 4.0 {
                    canvas.marker((x, y), line.look());
                    next = x + 110.0;
                }
            }
        }
        self.draw_labels(canvas, panel, x_stop)
    }

    /// Confidence intervals; those of several lines at the same x are drawn side by side.
    fn draw_bars(&self, canvas: &mut Canvas, panel: &Panel) {
        const APART: f64 = 3.0;
        let middle = panel.lines.len().saturating_sub(1) as f64 / 2.0;
        for (number, line) in panel.lines.iter().enumerate() {
            let color = line.look().color;
            let aside = (number as f64 - middle) * APART;
            let bars = line.points.iter().zip(&line.bars);
            for ((x, _), (low, high)) in
                bars.filter(|(_, (low, high))| low < high && high.is_finite())
            {
                let [low, high] = [*low, *high].map(|y| self.at((*x, y.max(self.y.start))));
                let x = low.0 + aside;
                canvas.path(&[(x, low.1), (x, high.1)], color, 1.2);
                for y in [low.1, high.1] {
                    canvas.path(&[(x - 3.0, y), (x + 3.0, y)], color, 1.2);
                }
            }
        }
    }

    /// Labels on the right, at the heights of the line ends, moved apart where they would overlap.
    fn draw_labels(&self, canvas: &mut Canvas, panel: &Panel, x_stop: f64) {
        let mut ends = Vec::new();
        for line in &panel.lines {
            let points: Vec<_> = line.finite_points().collect();
            // The mean over the end of the line: its last point may be an outlier.
            let last = &points[points.len() - points.len().div_ceil(8)..];
            let mean = last.iter().map(|(_, y)| y).sum::<f64>() / last.len() as f64;
            if let Some((x, _)) = last.last() {
                ends.push((line, self.at((*x, mean))));
            }
        }
        let wanted: Vec<f64> = ends.iter().map(|(_, (_, y))| *y).collect();
        let placed = spread(&wanted, 18.0, self.top + 4.0, self.bottom - 6.0);
        for ((line, (x, y)), label_y) in ends.into_iter().zip(placed) {
            let look = line.look();
            let start = self.right + 14.0;
            canvas.path(&[(x + 3.0, y), (start - 2.0, label_y)], GRID, 1.0);
            canvas.line(&[(start, label_y), (start + 26.0, label_y)], look);
            canvas.marker((start + 13.0, label_y), look);
            let room = x_stop - (start + 32.0);
            let text = fit(&line.label, PLAIN, room);
            canvas.text(&text, (start + 32.0, label_y), Anchor::Start, PLAIN);
        }
    }
}

impl LineFigure {
    /// The figure as the text of an SVG file, 800 pixels wide.
    pub fn to_svg(&self) -> String {
        let columns = if self.panels.len() > 3 { 2 } else { 1 };
        let rows = self.panels.len().div_ceil(columns).max(1);
        let lines = || self.panels.iter().flat_map(|panel| &panel.lines);
        let all = || lines().flat_map(Line::finite_points);
        let x_max = all().map(|point| point.0).fold(self.x_at_least, f64::max);
        let bars = lines().flat_map(|line| &line.bars);
        let tops = all().map(|point| point.1).chain(bars.map(|bar| bar.1));
        let y_max = tops
            .filter(|top| top.is_finite())
            .fold(self.y_at_least, f64::max);
        let y = Axis::new(self.y_from, y_max, 5.0, true);
        let x_steps = if columns == 1 { 10.0 } else { 5.0 };
        let x = Axis::new(self.x_from, x_max, x_steps, false);
        let x_ticks = if self.x_ticks.is_empty() {
            x.ticks().collect()
        } else {
            self.x_ticks.clone()
        };
        let mut y_ticks = self.y_ticks.clone();
        y_ticks.retain(|(value, _)| *value <= y.end + 1e-9);
        if y_ticks.is_empty() {
            y_ticks = y.ticks().collect();
        }

        let tick_width = widest(y_ticks.iter().map(|(_, label)| label), PLAIN);
        let label_width = widest(lines().map(|line| &line.label), PLAIN).min(if columns == 1 {
            200.0
        } else {
            90.0
        });
        let (left_margin, right_margin) = (tick_width + 12.0, label_width + 50.0);
        let (outer_left, outer_bottom) = (30.0, 18.0);
        let cell_width = (WIDTH - outer_left) / columns as f64;
        let plot_height = if columns == 1 { 230.0 } else { 150.0 };
        let cell_height = 34.0 + plot_height + 30.0;
        let height = (rows as f64 * cell_height + outer_bottom).round();

        let mut canvas = Canvas::new((WIDTH, height), &self.title);
        let middle = (height - outer_bottom) / 2.0;
        canvas.text(&self.y_label, (15.0, middle), Anchor::Middle, VERTICAL);
        for (number, panel) in self.panels.iter().enumerate() {
            let cell_left = outer_left + (number % columns) as f64 * cell_width;
            let cell_top = (number / columns) as f64 * cell_height;
            let frame = Frame {
                left: cell_left + left_margin,
                right: cell_left + cell_width - right_margin,
                top: cell_top + 34.0,
                bottom: cell_top + 34.0 + plot_height,
                x,
                x_ticks: &x_ticks,
                y,
                y_ticks: &y_ticks,
                every_point: self.every_point,
            };
            let stop = cell_left + cell_width - 2.0;
            // Bold text is wider.
            let title = fit(&panel.title, BOLD, stop - frame.left);
            let title_y = cell_top + 16.0;
            canvas.text(&title, (frame.left, title_y), Anchor::Start, BOLD);
            let note_left = frame.left + text_width(&title, BOLD) + 8.0;
            if stop - note_left >= text_width(&panel.note, PLAIN) {
                canvas.text(&panel.note, (note_left, title_y), Anchor::Start, QUIET);
            }
            frame.draw_axes(&mut canvas);
            frame.draw_lines(&mut canvas, panel, stop);
            // The lowest of its column.
            if number + columns >= self.panels.len() {
                let at = ((frame.left + frame.right) / 2.0, frame.bottom + 36.0);
                canvas.text(&self.x_label, at, Anchor::Middle, PLAIN);
            }
        }
        canvas.into_svg()
    }
}
