//! Figures as SVG text.
//!
//! Two kinds: lines over time in panels with the same axes, as the HP papers' Fig. 2 and 3, and
//! points per setting for comparisons. Lines differ in colour (the palette of Okabe and Ito, which
//! colour-blind readers can tell apart), in dash pattern and in marker, and each is labelled at
//! its right end, so no legend can cover the data.
//!
//! plotters is built without fonts here, so it knows no text extents: everything is placed from
//! an estimate of their width that is on the wide side.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// A figure could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the figure: {0}")]
pub struct FigureError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for FigureError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}

/// A line of a panel.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The label at its right end.
    pub label: String,
    /// Points in the order of x; points that are not finite leave a gap.
    pub points: Vec<(f64, f64)>,
    /// Which of the [`LOOKS`] it has; the same number looks the same in every figure.
    pub look: usize,
}

/// One panel of a figure.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Panel {
    /// What is shown, above the panel.
    pub title: String,
    /// A remark beside the title, in grey.
    pub note: String,
    /// The lines.
    pub lines: Vec<Line>,
}

/// Panels with lines and the same axes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LineFigure {
    /// Title of the document, for readers that show or speak it; not drawn.
    pub title: String,
    /// Name and unit of the x axis.
    pub x_label: String,
    /// Name and unit of the y axis.
    pub y_label: String,
    /// The x axis begins here.
    pub x_from: f64,
    /// The x axis reaches at least to here.
    pub x_at_least: f64,
    /// Where the x axis has numbers, and what they say; round steps if there are none.
    pub x_ticks: Vec<(f64, String)>,
    /// The y axis begins here.
    pub y_from: f64,
    /// The y axis reaches at least to here.
    pub y_at_least: f64,
    /// A marker at each point, for few points that were measured at the same x (where some coincide,
    /// they take turns); else some along each line.
    pub every_point: bool,
    /// The panels, one above the other; in two columns if there are more than three.
    pub panels: Vec<Panel>,
}

/// One column of a [`DotFigure`]: a quantity with its value in each row.
#[derive(Debug, Clone, PartialEq)]
pub struct DotColumn {
    /// Name of the quantity.
    pub title: String,
    /// Its unit, or what it is a fraction of.
    pub unit: String,
    /// A value per row; `None` where there is none.
    pub values: Vec<Option<f64>>,
    /// A value that deserves a line, such as 1 for equal shares.
    pub reference: Option<f64>,
}

/// Settings as rows, quantities as columns, values as points with their number beside them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DotFigure {
    /// Title of the document, for readers that show or speak it; not drawn.
    pub title: String,
    /// Group and name of each row; rows of one group stand together.
    pub rows: Vec<(String, String)>,
    /// The quantities.
    pub columns: Vec<DotColumn>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Ring,
    Cross,
}

/// How a line looks.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    color: RGBColor,
    width: f64,
    /// Lengths of dashes and gaps in turn; none for a solid line.
    dash: &'static [f64],
    marker: Marker,
}

/// Colours of Okabe and Ito (2008), each with its own dash pattern and marker.
pub const LOOKS: [Look; 6] = [
    Look {
        color: RGBColor(0, 0, 0),
        width: 1.8,
        dash: &[],
        marker: Marker::Circle,
    },
    Look {
        color: RGBColor(0, 114, 178),
        width: 1.8,
        dash: &[9.0, 4.0],
        marker: Marker::Square,
    },
    Look {
        color: RGBColor(0, 158, 115),
        width: 1.8,
        dash: &[4.0, 3.0],
        marker: Marker::Triangle,
    },
    Look {
        color: RGBColor(204, 121, 167),
        width: 1.8,
        dash: &[9.0, 3.0, 2.0, 3.0],
        marker: Marker::Diamond,
    },
    Look {
        color: RGBColor(213, 94, 0),
        width: 2.6,
        dash: &[],
        marker: Marker::Ring,
    },
    Look {
        color: RGBColor(86, 180, 233),
        width: 1.8,
        dash: &[2.0, 3.0],
        marker: Marker::Cross,
    },
];

const INK: RGBColor = RGBColor(34, 34, 34);
const GREY: RGBColor = RGBColor(102, 102, 102);
const GRID: RGBColor = RGBColor(226, 226, 226);

/// Width of every figure in pixels.
const WIDTH: f64 = 800.0;
/// Units of the drawing per pixel: plotters takes whole numbers only.
const SCALE: f64 = 20.0;
/// Size of ordinary text, in pixels.
const TEXT: f64 = 13.0;

/// About the width of a text in pixels, as set in a wide font such as DejaVu Sans.
fn text_width(text: &str, size: f64) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | '|' | '\'' => 0.29,
        ' ' | '.' | ',' | ':' | ';' | '/' | '-' | '(' | ')' | 'f' | 't' | 'r' => 0.40,
        'm' | 'w' | '%' | 'M' | 'W' | '@' | '…' => 1.0,
        'A'..='Z' => 0.75,
        'c' | 's' | 'z' | 'k' | 'x' | 'y' | 'v' => 0.58,
        _ => 0.64,
    };
    text.chars().map(em).sum::<f64>() * size
}

/// Shortens a text to a width.
fn fit(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let mut short = text.to_owned();
    while !short.is_empty() && text_width(&short, size) + size > width {
        short.pop();
    }
    short.push('…');
    short
}

/// Draws in pixels as floating point numbers.
struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

type Drawn = Result<(), FigureError>;

fn px((x, y): (f64, f64)) -> (i32, i32) {
    ((x * SCALE).round() as i32, (y * SCALE).round() as i32)
}

fn stroke(color: RGBColor, width: f64) -> ShapeStyle {
    let stroke_width = (width * SCALE).round() as u32;
    ShapeStyle {
        color: color.to_rgba(),
        filled: false,
        stroke_width,
    }
}

impl Canvas<'_> {
    /// Draws a figure of `height` pixels and returns its text.
    fn draw(
        height: f64,
        title: &str,
        paint: impl FnOnce(&Canvas<'_>) -> Drawn,
    ) -> Result<String, FigureError> {
        let mut svg = String::new();
        let size = px((WIDTH, height));
        {
            let backend = SVGBackend::with_string(&mut svg, (size.0 as u32, size.1 as u32));
            let canvas = Canvas {
                area: backend.into_drawing_area(),
            };
            canvas.area.fill(&WHITE)?;
            paint(&canvas)?;
            canvas.area.present()?;
        }
        // The drawing has SCALE units per pixel; give it its size in pixels, and its title.
        let body = svg.split_once(">\n").map_or("", |(_, body)| body);
        Ok(format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{WIDTH}\" \
             height=\"{height}\" viewBox=\"0 0 {} {}\" stroke-linejoin=\"round\">\n\
             <title>{}</title>\n{body}",
            size.0,
            size.1,
            escape(title),
        ))
    }

    fn path(&self, points: &[(f64, f64)], color: RGBColor, width: f64) -> Drawn {
        let points: Vec<_> = points.iter().copied().map(px).collect();
        self.area
            .draw(&PathElement::new(points, stroke(color, width)))?;
        Ok(())
    }

    fn dashed(&self, points: &[(f64, f64)], look: &Look) -> Drawn {
        if look.dash.is_empty() {
            return self.path(points, look.color, look.width);
        }
        for piece in dashes(points, look.dash) {
            self.path(&piece, look.color, look.width)?;
        }
        Ok(())
    }

    fn polygon(&self, points: &[(f64, f64)], color: RGBColor) -> Drawn {
        let points: Vec<_> = points.iter().copied().map(px).collect();
        self.area.draw(&Polygon::new(points, color.filled()))?;
        Ok(())
    }

    fn circle(&self, at: (f64, f64), radius: f64, color: RGBColor) -> Drawn {
        self.area
            .draw(&Circle::new(px(at), radius * SCALE, color.filled()))?;
        Ok(())
    }

    /// A marker on a white rim, so that it stands out from its line.
    fn marker(&self, (x, y): (f64, f64), look: &Look) -> Drawn {
        let shape = |r: f64| -> Vec<(f64, f64)> {
            match look.marker {
                Marker::Square => vec![(-r, -r), (r, -r), (r, r), (-r, r)],
                Marker::Triangle => {
                    vec![(0.0, -1.25 * r), (1.2 * r, 0.85 * r), (-1.2 * r, 0.85 * r)]
                }
                Marker::Diamond => {
                    vec![
                        (0.0, -1.35 * r),
                        (1.35 * r, 0.0),
                        (0.0, 1.35 * r),
                        (-1.35 * r, 0.0),
                    ]
                }
                Marker::Circle | Marker::Ring | Marker::Cross => Vec::new(),
            }
            .into_iter()
            .map(|(dx, dy)| (x + dx, y + dy))
            .collect()
        };
        match look.marker {
            Marker::Circle => {
                self.circle((x, y), 4.6, WHITE)?;
                self.circle((x, y), 3.5, look.color)
            }
            Marker::Ring => {
                self.circle((x, y), 5.4, WHITE)?;
                self.circle((x, y), 4.4, look.color)?;
                self.circle((x, y), 2.3, WHITE)
            }
            Marker::Cross => {
                let r = 3.6;
                self.circle((x, y), 5.0, WHITE)?;
                self.path(&[(x - r, y - r), (x + r, y + r)], look.color, 1.8)?;
                self.path(&[(x - r, y + r), (x + r, y - r)], look.color, 1.8)
            }
            _ => {
                self.polygon(&shape(4.6), WHITE)?;
                self.polygon(&shape(3.4), look.color)
            }
        }
    }

    fn text(&self, text: &str, at: (f64, f64), h: HPos, how: Type) -> Drawn {
        let style = if how.bold {
            FontStyle::Bold
        } else {
            FontStyle::Normal
        };
        // The backend divides by 1.24 for the font size.
        let font = FontDesc::new(FontFamily::SansSerif, how.size * 1.24 * SCALE, style);
        let font = if how.upwards {
            font.transform(FontTransform::Rotate270)
        } else {
            font
        };
        let style = TextStyle::from(font)
            .color(&how.color)
            .pos(Pos::new(h, VPos::Center));
        self.area.draw(&Text::new(text, px(at), style))?;
        Ok(())
    }
}

/// How a text is set.
#[derive(Clone, Copy)]
struct Type {
    size: f64,
    color: RGBColor,
    bold: bool,
    upwards: bool,
}

const PLAIN: Type = Type {
    size: TEXT,
    color: INK,
    bold: false,
    upwards: false,
};

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Cuts a path into dashes; lengths of dashes and gaps take turns and go on around corners.
fn dashes(points: &[(f64, f64)], pattern: &[f64]) -> Vec<Vec<(f64, f64)>> {
    let mut pieces = Vec::new();
    let Some(first) = points.first() else {
        return pieces;
    };
    let mut piece = vec![*first];
    let (mut index, mut left) = (0, pattern[0]);
    for pair in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let length = (x1 - x0).hypot(y1 - y0);
        let mut done = 0.0;
        while length - done > left {
            done += left;
            let part = done / length;
            let here = (x0 + (x1 - x0) * part, y0 + (y1 - y0) * part);
            if index % 2 == 0 {
                piece.push(here);
                pieces.push(std::mem::take(&mut piece));
            } else {
                piece = vec![here];
            }
            index += 1;
            left = pattern[index % pattern.len()];
        }
        left -= length - done;
        if index % 2 == 0 {
            piece.push((x1, y1));
        }
    }
    if piece.len() > 1 {
        pieces.push(piece);
    }
    pieces
}

/// Keeps the first, lowest, highest and last point of each pixel column, so that a long series
/// stays small and keeps its extremes.
fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut thinned: Vec<(f64, f64)> = Vec::new();
    let same_column = |a: &(f64, f64), b: &(f64, f64)| a.0.floor() == b.0.floor();
    for column in points.chunk_by(same_column) {
        if column.len() <= 4 {
            thinned.extend_from_slice(column);
            continue;
        }
        let by_y = |a: &usize, b: &usize| column[*a].1.total_cmp(&column[*b].1);
        let mut keep = vec![0, column.len() - 1];
        keep.extend((0..column.len()).min_by(by_y));
        keep.extend((0..column.len()).max_by(by_y));
        keep.sort_unstable();
        keep.dedup();
        thinned.extend(keep.into_iter().map(|index| column[index]));
    }
    thinned
}

/// An axis with round steps.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Axis {
    start: f64,
    end: f64,
    step: f64,
}

impl Axis {
    /// An axis from `start` that reaches `max`, in about `steps` steps of 1, 2 or 5 times a power of
    /// ten. With `whole` it ends on a step, and may fall short of `max` by a little: a link that is
    /// measured to carry 1.01 of its rate needs no axis up to 1.2.
    fn new(start: f64, max: f64, steps: f64, whole: bool) -> Self {
        let length = if max.is_finite() && max > start {
            max - start
        } else {
            1.0
        };
        let rough = length / steps;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * power)
            .find(|step| *step >= rough * 0.8)
            .unwrap_or(10.0 * power);
        let length = if whole {
            (length / step - 0.15).ceil().max(1.0) * step
        } else {
            length
        };
        let end = start + length;
        Self { start, end, step }
    }

    fn ticks(self) -> impl Iterator<Item = (f64, String)> {
        let decimals = (-self.step.log10().floor()).max(0.0) as usize;
        let first = (self.start / self.step - 1e-6).ceil() as u32;
        let last = (self.end / self.step + 1e-6).floor() as u32;
        (first..=last).map(move |index| {
            let value = f64::from(index) * self.step;
            (value, thousands(&format!("{value:.decimals$}")))
        })
    }
}

/// Puts commas into the whole part of a number.
fn thousands(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut text = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// Moves labels apart by at least `gap`, as little as possible, within `low..=high`.
fn spread(wanted: &[f64], gap: f64, low: f64, high: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    // Groups of touching labels: (number of labels, sum of (wanted - offset inside the group)).
    let mut groups: Vec<(usize, f64)> = Vec::new();
    let start = |(count, sum): (usize, f64)| {
        let length = (count - 1) as f64 * gap;
        (sum / count as f64).min(high - length).max(low)
    };
    for index in &order {
        groups.push((1, wanted[*index]));
        while let [.., before, last] = groups[..] {
            if start(before) + before.0 as f64 * gap <= start(last) + 1e-9 {
                break;
            }
            let moved = last.1 - (before.0 * last.0) as f64 * gap;
            groups.truncate(groups.len() - 2);
            groups.push((before.0 + last.0, before.1 + moved));
        }
    }
    let mut placed = vec![0.0; wanted.len()];
    let mut next = order.into_iter();
    for group in groups {
        for offset in 0..group.0 {
            if let Some(index) = next.next() {
                placed[index] = start(group) + offset as f64 * gap;
            }
        }
    }
    placed
}

/// A rectangle of the figure with an axis on its left and below.
struct Frame<'a> {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Axis,
    x_ticks: &'a [(f64, String)],
    y: Axis,
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

    fn draw_axes(&self, canvas: &Canvas<'_>) -> Drawn {
        for (value, label) in self.y.ticks() {
            let (_, y) = self.at((self.x.start, value));
            if value > self.y.start {
                canvas.path(&[(self.left, y), (self.right, y)], GRID, 1.0)?;
            }
            canvas.path(&[(self.left - 4.0, y), (self.left, y)], INK, 1.0)?;
            canvas.text(&label, (self.left - 8.0, y), HPos::Right, PLAIN)?;
        }
        for (value, label) in self.x_ticks {
            let (x, _) = self.at((*value, self.y.start));
            canvas.path(&[(x, self.bottom), (x, self.bottom + 4.0)], INK, 1.0)?;
            canvas.text(label, (x, self.bottom + 14.0), HPos::Center, PLAIN)?;
        }
        let corner = (self.left, self.bottom);
        canvas.path(
            &[(self.left, self.top), corner, (self.right, self.bottom)],
            INK,
            1.0,
        )
    }

    fn draw_lines(&self, canvas: &Canvas<'_>, panel: &Panel, x_stop: f64) -> Drawn {
        let look = |line: &Line| &LOOKS[line.look % LOOKS.len()];
        let inside = |line: &Line| -> Vec<Vec<(f64, f64)>> {
            line.points
                .chunk_by(|a, b| a.1.is_finite() == b.1.is_finite())
                .filter(|part| part.iter().all(|(x, y)| x.is_finite() && y.is_finite()))
                .map(|part| thin(&part.iter().map(|point| self.at(*point)).collect::<Vec<_>>()))
                .collect()
        };
        let parts: Vec<_> = panel.lines.iter().map(inside).collect();
        // Broken lines over solid ones, thin over wide: what coincides can still be told apart.
        let mut order: Vec<_> = panel.lines.iter().zip(&parts).collect();
        order.sort_by(|(a, _), (b, _)| {
            let (a, b) = (look(a), look(b));
            (!a.dash.is_empty())
                .cmp(&!b.dash.is_empty())
                .then(b.width.total_cmp(&a.width))
        });
        for (line, parts) in order {
            for part in parts {
                canvas.dashed(part, look(line))?;
            }
        }
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
                        canvas.marker((x, y), look(line))?;
                    }
                }
                continue;
            }
            // Markers of different lines stand at different x, about 110 pixels apart on each.
            let mut next = self.left + 24.0 + 22.0 * number as f64;
            for (x, y) in points(number) {
                if x >= next && x <= self.right - 4.0 {
                    canvas.marker((x, y), look(line))?;
                    next = x + 110.0;
                }
            }
        }
        self.draw_labels(canvas, panel, x_stop)
    }

    /// Labels at the right, at the height where the lines end, moved apart where they would touch.
    fn draw_labels(&self, canvas: &Canvas<'_>, panel: &Panel, x_stop: f64) -> Drawn {
        let ends: Vec<_> = panel
            .lines
            .iter()
            .filter_map(|line| {
                // A mean over the end of the line, for its last point may be far off.
                let points: Vec<_> = line
                    .points
                    .iter()
                    .filter(|(x, y)| x.is_finite() && y.is_finite())
                    .collect();
                let last = &points[points.len() - points.len().div_ceil(8).min(points.len())..];
                let mean = last.iter().map(|(_, y)| y).sum::<f64>() / last.len() as f64;
                let end = last.last()?;
                Some((line, self.at((end.0, mean))))
            })
            .collect();
        let wanted: Vec<f64> = ends.iter().map(|(_, (_, y))| *y).collect();
        let placed = spread(&wanted, 18.0, self.top + 4.0, self.bottom - 6.0);
        for ((line, (x, y)), label_y) in ends.into_iter().zip(placed) {
            let look = &LOOKS[line.look % LOOKS.len()];
            let start = self.right + 14.0;
            canvas.path(&[(x + 3.0, y), (start - 2.0, label_y)], GRID, 1.0)?;
            canvas.dashed(&[(start, label_y), (start + 26.0, label_y)], look)?;
            canvas.marker((start + 13.0, label_y), look)?;
            let room = x_stop - (start + 32.0);
            let text = fit(&line.label, TEXT, room);
            canvas.text(&text, (start + 32.0, label_y), HPos::Left, PLAIN)?;
        }
        Ok(())
    }
}

impl LineFigure {
    /// The figure as the text of an SVG file, 800 pixels wide.
    ///
    /// # Errors
    ///
    /// Only if plotters fails, which it does not when it writes into memory.
    pub fn to_svg(&self) -> Result<String, FigureError> {
        let columns = if self.panels.len() > 3 { 2 } else { 1 };
        let rows = self.panels.len().div_ceil(columns).max(1);
        let all = || {
            let lines = self.panels.iter().flat_map(|panel| &panel.lines);
            lines
                .flat_map(|line| &line.points)
                .filter(|(x, y)| x.is_finite() && y.is_finite())
        };
        let x_max = all().map(|point| point.0).fold(self.x_at_least, f64::max);
        let y_max = all().map(|point| point.1).fold(self.y_at_least, f64::max);
        let y = Axis::new(self.y_from, y_max, 5.0, true);
        let x_steps = if columns == 1 { 10.0 } else { 5.0 };
        let x = Axis::new(self.x_from, x_max, x_steps, false);
        let x_ticks = if self.x_ticks.is_empty() {
            x.ticks().collect()
        } else {
            self.x_ticks.clone()
        };

        let tick_width = y
            .ticks()
            .map(|(_, label)| text_width(&label, TEXT))
            .fold(0.0, f64::max);
        let label_width = self
            .panels
            .iter()
            .flat_map(|panel| &panel.lines)
            .map(|line| text_width(&line.label, TEXT))
            .fold(0.0, f64::max)
            .min(if columns == 1 { 200.0 } else { 90.0 });
        let (left_margin, right_margin) = (tick_width + 12.0, label_width + 50.0);
        let (outer_left, outer_bottom) = (30.0, 18.0);
        let cell_width = (WIDTH - outer_left) / columns as f64;
        let plot_height = if columns == 1 { 230.0 } else { 150.0 };
        let cell_height = 34.0 + plot_height + 30.0;
        let height = (rows as f64 * cell_height + outer_bottom).round();

        Canvas::draw(height, &self.title, |canvas| {
            let upwards = Type {
                upwards: true,
                ..PLAIN
            };
            let middle = (height - outer_bottom) / 2.0;
            canvas.text(&self.y_label, (15.0, middle), HPos::Center, upwards)?;
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
                    every_point: self.every_point,
                };
                let stop = cell_left + cell_width - 2.0;
                let bold = Type {
                    bold: true,
                    ..PLAIN
                };
                // Bold text is wider.
                let title = fit(&panel.title, TEXT * 1.12, stop - frame.left);
                canvas.text(&title, (frame.left, cell_top + 16.0), HPos::Left, bold)?;
                let note_left = frame.left + text_width(&title, TEXT * 1.12) + 8.0;
                if stop - note_left >= text_width(&panel.note, TEXT) {
                    let grey = Type {
                        color: GREY,
                        ..PLAIN
                    };
                    canvas.text(&panel.note, (note_left, cell_top + 16.0), HPos::Left, grey)?;
                }
                frame.draw_axes(canvas)?;
                frame.draw_lines(canvas, panel, stop)?;
                let is_lowest = number + columns >= self.panels.len();
                if is_lowest {
                    let at = ((frame.left + frame.right) / 2.0, frame.bottom + 36.0);
                    canvas.text(&self.x_label, at, HPos::Center, PLAIN)?;
                }
            }
            Ok(())
        })
    }
}

impl DotFigure {
    /// The figure as the text of an SVG file, 800 pixels wide.
    ///
    /// # Errors
    ///
    /// Only if plotters fails, which it does not when it writes into memory.
    pub fn to_svg(&self) -> Result<String, FigureError> {
        let row_height = 24.0;
        let top = 56.0;
        let bottom = top + self.rows.len() as f64 * row_height + 8.0;
        let height = bottom + 28.0;
        let widest = |text: fn(&(String, String)) -> &String, size: f64| {
            self.rows
                .iter()
                .map(|row| text_width(text(row), size))
                .fold(0.0, f64::max)
        };
        let group_width = widest(|row| &row.0, TEXT * 1.12).min(140.0);
        let name_width = widest(|row| &row.1, TEXT).min(140.0);
        let left = 12.0 + group_width + 14.0 + name_width + 14.0;
        let column_width = (WIDTH - left - 6.0) / self.columns.len().max(1) as f64;

        Canvas::draw(height, &self.title, |canvas| {
            let bold = Type {
                bold: true,
                ..PLAIN
            };
            let grey = Type {
                color: GREY,
                ..PLAIN
            };
            let row_y = |row: usize| top + (row as f64 + 0.5) * row_height + 4.0;
            let mut before = None;
            for (number, (group, name)) in self.rows.iter().enumerate() {
                let y = row_y(number);
                if before != Some(group) {
                    if number > 0 {
                        let line_y = y - row_height / 2.0;
                        canvas.path(&[(12.0, line_y), (WIDTH - 12.0, line_y)], GRID, 1.0)?;
                    }
                    let text = fit(group, TEXT * 1.12, group_width);
                    canvas.text(&text, (12.0, y), HPos::Left, bold)?;
                }
                before = Some(group);
                let at = (12.0 + group_width + 14.0, y);
                canvas.text(&fit(name, TEXT, name_width), at, HPos::Left, PLAIN)?;
            }
            for (number, column) in self.columns.iter().enumerate() {
                let cell = left + number as f64 * column_width;
                // The number stands right of its point, also of a point at the right end.
                let (plot_left, plot_right) = (cell + 8.0, cell + column_width - 42.0);
                let max = column
                    .values
                    .iter()
                    .flatten()
                    .copied()
                    .filter(|v| v.is_finite());
                let axis = Axis::new(0.0, max.fold(1.0, f64::max), 2.0, true);
                let at = |value: f64| plot_left + value / axis.end * (plot_right - plot_left);
                let room = column_width - 8.0;
                let title = fit(&column.title, TEXT * 1.12, room);
                canvas.text(&title, (plot_left, 18.0), HPos::Left, bold)?;
                let unit = fit(&column.unit, TEXT, room);
                canvas.text(&unit, (plot_left, 36.0), HPos::Left, grey)?;
                for (value, label) in axis.ticks() {
                    let x = at(value);
                    canvas.path(&[(x, top), (x, bottom)], GRID, 1.0)?;
                    canvas.path(&[(x, bottom), (x, bottom + 4.0)], INK, 1.0)?;
                    canvas.text(&label, (x, bottom + 15.0), HPos::Center, PLAIN)?;
                }
                canvas.path(&[(plot_left, bottom), (plot_right, bottom)], INK, 1.0)?;
                if let Some(reference) = column.reference.filter(|value| *value <= axis.end) {
                    let x = at(reference);
                    canvas.path(&[(x, top), (x, bottom)], GREY, 1.2)?;
                }
                let look = &LOOKS[1];
                for (row, value) in column.values.iter().enumerate().take(self.rows.len()) {
                    let y = row_y(row);
                    let Some(value) = value.filter(|value| value.is_finite()) else {
                        canvas.text("–", (plot_left + 2.0, y), HPos::Left, grey)?;
                        continue;
                    };
                    let x = at(value);
                    canvas.path(&[(plot_left, y), (x, y)], look.color, 1.4)?;
                    canvas.marker(
                        (x, y),
                        &Look {
                            marker: Marker::Circle,
                            ..*look
                        },
                    )?;
                    let number = format!("{value:.2}");
                    // A white ground keeps grid lines out of the number.
                    let width = text_width(&number, TEXT) + 2.0;
                    canvas.polygon(
                        &[
                            (x + 6.0, y - 8.0),
                            (x + 6.0 + width, y - 8.0),
                            (x + 6.0 + width, y + 8.0),
                            (x + 6.0, y + 8.0),
                        ],
                        WHITE,
                    )?;
                    canvas.text(&number, (x + 8.0, y), HPos::Left, PLAIN)?;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn figure(points: Vec<(f64, f64)>) -> LineFigure {
        let line = |look| Line {
            label: format!("line {look}"),
            points: points.clone(),
            look,
        };
        LineFigure {
            title: "a < b & c".to_owned(),
            x_label: "time in s".to_owned(),
            y_label: "packets".to_owned(),
            y_at_least: 1.0,
            panels: vec![Panel {
                title: "panel".to_owned(),
                note: "note".to_owned(),
                lines: (0..LOOKS.len()).map(line).collect(),
            }],
            ..LineFigure::default()
        }
    }

    #[test]
    fn a_figure_is_800_pixels_wide_and_titled() {
        let svg = figure(vec![(0.0, 0.2), (1.0, 0.8)]).to_svg().unwrap();
        assert!(
            svg.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg "),
            "{svg}"
        );
        assert!(
            svg.contains(" width=\"800\" height=\"312\" viewBox=\"0 0 16000 6240\""),
            "{svg}"
        );
        assert!(svg.contains("<title>a &lt; b &amp; c</title>"), "{svg}");
        assert!(svg.ends_with("</svg>\n"), "{svg}");
    }

    #[test]
    fn looks_differ_without_colour() {
        for (index, look) in LOOKS.iter().enumerate() {
            for other in &LOOKS[..index] {
                assert_ne!(look.marker, other.marker);
                assert_ne!(look.color, other.color);
                assert!(look.dash != other.dash || look.width != other.width);
            }
        }
    }

    #[test]
    fn points_that_are_no_numbers_leave_a_gap() {
        let whole = figure(vec![(0.0, 0.5), (1.0, 0.5), (2.0, 0.5), (3.0, 0.5)]);
        let gap = figure(vec![(0.0, 0.5), (1.0, f64::NAN), (2.0, 0.5), (3.0, 0.5)]);
        let (whole, gap) = (whole.to_svg().unwrap(), gap.to_svg().unwrap());
        assert!(!gap.contains("NaN"), "{gap}");
        let solid = |svg: &str| svg.matches("stroke-width=\"52\"").count();
        assert_eq!(solid(&gap), solid(&whole) + 1);
    }

    #[test]
    fn axes_end_on_round_numbers() {
        for (max, end, step) in [
            (1.0, 1.0, 0.2),
            (1.02, 1.0, 0.2),
            (1.1, 1.2, 0.2),
            (106.0, 120.0, 20.0),
            (9.0, 10.0, 2.0),
            (39.0, 40.0, 10.0),
            (0.0, 1.0, 0.2),
            (f64::NAN, 1.0, 0.2),
        ] {
            let axis = Axis::new(0.0, max, 5.0, true);
            assert!(
                (axis.end - end).abs() < 1e-9 && (axis.step - step).abs() < 1e-9,
                "{max} {axis:?}"
            );
        }
        let labels: Vec<_> = Axis::new(0.0, 4000.0, 5.0, true)
            .ticks()
            .map(|tick| tick.1)
            .collect();
        assert_eq!(labels, ["0", "1,000", "2,000", "3,000", "4,000"]);
        let labels: Vec<_> = Axis::new(0.0, 10.0, 10.0, false)
            .ticks()
            .map(|tick| tick.1)
            .collect();
        assert_eq!(labels.len(), 11);
    }

    #[test]
    fn dashes_go_on_around_corners() {
        let path = [(0.0, 0.0), (3.0, 0.0), (3.0, 4.0)];
        assert_eq!(
            dashes(&path, &[4.0, 2.0]),
            [
                vec![(0.0, 0.0), (3.0, 0.0), (3.0, 1.0)],
                vec![(3.0, 3.0), (3.0, 4.0)]
            ]
        );
        assert!(dashes(&[], &[4.0, 2.0]).is_empty());
    }

    #[test]
    fn thinning_keeps_extremes() {
        let points: Vec<_> = (0..1000)
            .map(|index| {
                (
                    f64::from(index) / 100.0,
                    if index == 555 { 9.0 } else { 1.0 },
                )
            })
            .collect();
        let thinned = thin(&points);
        assert!(thinned.len() <= 40, "{}", thinned.len());
        assert!(thinned.contains(&(5.55, 9.0)));
        assert_eq!(
            (thinned.first(), thinned.last()),
            (points.first(), points.last())
        );
    }

    #[test]
    fn long_texts_are_cut_to_fit() {
        assert_eq!(fit("root", 13.0, 100.0), "root");
        let short = fit("a-very-long-name-of-a-phase", 13.0, 100.0);
        assert!(
            short.ends_with('…') && text_width(&short, 13.0) <= 100.0,
            "{short}"
        );
    }

    proptest! {
        #[test]
        fn labels_keep_their_distance_and_order(
            wanted in proptest::collection::vec(0.0..200.0_f64, 0..8)
        ) {
            let placed = spread(&wanted, 18.0, 0.0, 200.0);
            let mut both: Vec<_> = wanted.iter().zip(&placed).collect();
            both.sort_by(|a, b| a.0.total_cmp(b.0).then(a.1.total_cmp(b.1)));
            for pair in both.windows(2) {
                prop_assert!(pair[1].1 - pair[0].1 >= 18.0 - 1e-6, "{:?}", placed);
            }
            for place in &placed {
                prop_assert!((-1e-6..=200.0 + 1e-6).contains(place), "{:?}", placed);
            }
        }

        #[test]
        fn labels_far_apart_stay_where_they_are(first in 0.0..80.0_f64) {
            prop_assert_eq!(spread(&[first + 100.0, first], 18.0, 0.0, 200.0), [first + 100.0, first]);
        }
    }
}
