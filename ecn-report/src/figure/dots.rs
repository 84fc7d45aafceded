//! Points per setting.

use super::axis::Axis;
use super::canvas::{
    Anchor, BOLD, Canvas, GREY, GRID, INK, LOOKS, Look, Marker, NONE, PLAIN, QUIET, WHITE, WIDTH,
    fit, text_width, widest,
};

/// One column of a [`DotFigure`]: a quantity with its value in each row.
#[derive(Debug, Clone, PartialEq)]
pub struct DotColumn {
    /// Name of the quantity.
    pub title: String,
    /// Its unit, or what it is a fraction of.
    pub unit: String,
    /// A value per row; `None` if it has none.
    pub values: Vec<Option<f64>>,
    /// Half the width of each value's confidence interval, drawn as a bar; may be empty.
    pub half_widths: Vec<Option<f64>>,
    /// A value marked by a line, such as 1 for equal shares.
    pub reference: Option<f64>,
}

const LOOK: Look = Look {
    marker: Marker::Circle,
    ..LOOKS[1]
};

impl DotColumn {
    fn half_width(&self, row: usize) -> Option<f64> {
        self.half_widths.get(row).copied().flatten()
    }

    /// The points with bars and numbers; `at`: x position of a value, `row_y`: y position of a row.
    fn draw_points(
        &self,
        canvas: &mut Canvas,
        at: impl Fn(f64) -> f64,
        row_y: impl Fn(usize) -> f64,
    ) {
        for (row, value) in self.values.iter().enumerate() {
            let y = row_y(row);
            let Some(value) = value.filter(|value| value.is_finite()) else {
                canvas.text("–", (at(0.0) + 2.0, y), Anchor::Start, QUIET);
                continue;
            };
            let x = at(value);
            canvas.path(&[(at(0.0), y), (x, y)], LOOK.color, 1.4);
            let mut right = x;
            if let Some(half) = self.half_width(row).filter(|half| half.is_finite()) {
                let from = at((value - half).max(0.0));
                right = at(value + half).max(x);
                canvas.path(&[(from, y), (right, y)], INK, 1.4);
                for end in [from, right] {
                    canvas.path(&[(end, y - 4.0), (end, y + 4.0)], INK, 1.4);
                }
            }
            canvas.marker((x, y), &LOOK);
            let number = short(value);
            // A white background keeps grid lines out of the number.
            let width = text_width(&number, PLAIN) + 2.0;
            canvas.rectangle((right + 6.0, y - 8.0), (width, 16.0), WHITE, NONE);
            canvas.text(&number, (right + 8.0, y), Anchor::Start, PLAIN);
        }
    }
}

/// A short number to print next to its point: two decimals, fewer for large ones.
fn short(value: f64) -> String {
    let decimals = match value.abs() {
        ..100.0 => 2,
        ..1000.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Settings as rows, quantities as columns, values as points with numbers next to them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DotFigure {
    /// Title of the document for viewers and screen readers; not drawn.
    pub title: String,
    /// Group and name of each row; rows of a group are adjacent.
    pub rows: Vec<(String, String)>,
    /// The quantities.
    pub columns: Vec<DotColumn>,
}

impl DotFigure {
    /// The figure as the text of an SVG file, 800 pixels wide.
    pub fn to_svg(&self) -> String {
        let row_height = 24.0;
        let top = 56.0;
        let bottom = top + self.rows.len() as f64 * row_height + 8.0;
        let height = bottom + 28.0;
        let group_width = widest(self.rows.iter().map(|row| &row.0), BOLD).min(140.0);
        let name_width = widest(self.rows.iter().map(|row| &row.1), PLAIN).min(280.0 - group_width);
        let left = 12.0 + group_width + 14.0 + name_width + 14.0;
        let column_width = (WIDTH - left - 6.0) / self.columns.len().max(1) as f64;

        let mut canvas = Canvas::new((WIDTH, height), &self.title);
        let row_y = |row: usize| top + (row as f64 + 0.5) * row_height + 4.0;
        let mut before = None;
        for (number, (group, name)) in self.rows.iter().enumerate() {
            let y = row_y(number);
            if before != Some(group) {
                if number > 0 {
                    let line_y = y - row_height / 2.0;
                    canvas.path(&[(12.0, line_y), (WIDTH - 12.0, line_y)], GRID, 1.0);
                }
                let text = fit(group, BOLD, group_width);
                canvas.text(&text, (12.0, y), Anchor::Start, BOLD);
            }
            before = Some(group);
            let at = (12.0 + group_width + 14.0, y);
            canvas.text(&fit(name, PLAIN, name_width), at, Anchor::Start, PLAIN);
        }
        for (number, column) in self.columns.iter().enumerate() {
            let cell = left + number as f64 * column_width;
            // The number is to the right of its point, even at the right end.
            let (plot_left, plot_right) = (cell + 8.0, cell + column_width - 42.0);
            let ends = column.values.iter().enumerate();
            let ends =
                ends.map(|(row, value)| Some((*value)? + column.half_width(row).unwrap_or(0.0)));
            let max = ends.flatten().filter(|end| end.is_finite());
            let axis = Axis::new(0.0, max.fold(1.0, f64::max), 2.0, true);
            let at = |value: f64| plot_left + value / axis.end * (plot_right - plot_left);
            let room = column_width - 8.0;
            let title = fit(&column.title, BOLD, room);
            canvas.text(&title, (plot_left, 18.0), Anchor::Start, BOLD);
            let unit = fit(&column.unit, PLAIN, room);
            canvas.text(&unit, (plot_left, 36.0), Anchor::Start, QUIET);
            for (value, label) in axis.ticks() {
                let x = at(value);
                canvas.path(&[(x, top), (x, bottom)], GRID, 1.0);
                canvas.path(&[(x, bottom), (x, bottom + 4.0)], INK, 1.0);
                canvas.text(&label, (x, bottom + 15.0), Anchor::Middle, PLAIN);
            }
            canvas.path(&[(plot_left, bottom), (plot_right, bottom)], INK, 1.0);
            if let Some(reference) = column.reference.filter(|value| *value <= axis.end) {
                let x = at(reference);
                canvas.path(&[(x, top), (x, bottom)], GREY, 1.2);
            }
            column.draw_points(&mut canvas, at, row_y);
        }
        canvas.into_svg()
    }
}
