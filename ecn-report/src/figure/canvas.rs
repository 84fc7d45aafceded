//! Drawing primitives of figures: coordinates and sizes are in pixels, with y downwards.

use svg::Document;
use svg::node::Node as _;
use svg::node::element::{Circle, Polygon, Polyline, Rectangle, Text, Title};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Ring,
    Cross,
}

/// Style of a line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    pub(super) color: &'static str,
    pub(super) width: f64,
    /// Lengths of dashes and gaps in turn; [`NONE`] for a solid line.
    pub(super) dash: &'static str,
    pub(super) marker: Marker,
}

/// Maximum number of lines in a panel that readers can distinguish.
pub const MOST_LINES: usize = 6;

/// No fill, outline or gaps.
pub(super) const NONE: &str = "none";

pub(super) const fn look(
    color: &'static str,
    width: f64,
    dash: &'static str,
    marker: Marker,
) -> Look {
    Look {
        color,
        width,
        dash,
        marker,
    }
}

/// Colours of Okabe and Ito (2008), each with its own dash pattern and marker.
pub(super) const LOOKS: [Look; MOST_LINES] = [
    look("#000000", 1.8, NONE, Marker::Circle),
    look("#0072b2", 1.8, "9 4", Marker::Square),
    look("#009e73", 1.8, "4 3", Marker::Triangle),
    look("#cc79a7", 1.8, "9 3 2 3", Marker::Diamond),
    look("#d55e00", 2.6, NONE, Marker::Ring),
    look("#56b4e9", 1.8, "2 3", Marker::Cross),
];

pub(super) const INK: &str = "#222222";
pub(super) const GREY: &str = "#666666";
pub(super) const GRID: &str = "#e2e2e2";
pub(super) const WHITE: &str = "#ffffff";

/// Width of figures.
pub(super) const WIDTH: f64 = 800.0;
/// Size of text.
const TEXT: f64 = 13.0;

/// Approximate width of a text, for a wide font such as DejaVu Sans.
pub(super) fn text_width(text: &str, style: TextStyle) -> f64 {
    let em = |c: char| match c {
        'i' | 'j' | 'l' | '|' | '\'' => 0.29,
        ' ' | '.' | ',' | ':' | ';' | '/' | '-' | '(' | ')' | 'f' | 't' | 'r' => 0.40,
        'm' | 'w' | '%' | 'M' | 'W' | '@' | '…' => 1.0,
        'A'..='Z' => 0.75,
        'c' | 's' | 'z' | 'k' | 'x' | 'y' | 'v' => 0.58,
        _ => 0.64,
    };
    let em_width = if style.bold { TEXT * 1.12 } else { TEXT };
    text.chars().map(em).sum::<f64>() * em_width
}

/// Width of the widest text.
pub(super) fn widest<'a>(texts: impl Iterator<Item = &'a String>, style: TextStyle) -> f64 {
    texts
        .map(|text| text_width(text, style))
        .fold(0.0, f64::max)
}

/// Truncates a text to a width.
pub(super) fn fit(text: &str, style: TextStyle, width: f64) -> String {
    if text_width(text, style) <= width {
        return text.to_owned();
    }
    let mut short = text.to_owned();
    while !short.is_empty() && text_width(&short, style) + text_width("…", style) > width {
        short.pop();
    }
    short.push('…');
    short
}

/// A hundredth of a pixel is not visible; more digits would only make files longer.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Value of the attribute `points`.
fn list(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    points.iter().map(|(x, y)| (round(*x), round(*y))).collect()
}

/// A figure that is being drawn.
pub(super) struct Canvas(Document);

impl Canvas {
    /// An empty figure; its title is not drawn, but read by viewers and screen readers.
    pub(super) fn new((width, height): (f64, f64), title: &str) -> Self {
        let document = Document::new()
            .set("role", "img")
            .set("width", width)
            .set("height", height)
            .set("viewBox", (0, 0, width, height))
            .set("fill", NONE)
            .set("stroke-linejoin", "round")
            .set("font-family", "sans-serif")
            .set("font-size", TEXT);
        let mut canvas = Self(document.add(Title::new(title)));
        canvas.rectangle((0.0, 0.0), (width, height), WHITE, NONE);
        canvas
    }

    /// The text of an SVG file.
    pub(super) fn into_svg(self) -> String {
        format!("{}\n", self.0)
    }

    pub(super) fn path(&mut self, points: &[(f64, f64)], color: &str, width: f64) {
        self.stroke(points, color, width, NONE);
    }

    pub(super) fn line(&mut self, points: &[(f64, f64)], look: &Look) {
        self.stroke(points, look.color, look.width, look.dash);
    }

    fn stroke(&mut self, points: &[(f64, f64)], color: &str, width: f64, dash: &str) {
        let line = Polyline::new()
            .set("points", list(points))
            .set("stroke", color)
            .set("stroke-width", width);
        self.0.append(match dash {
            NONE => line,
            dash => line.set("stroke-dasharray", dash),
        });
    }

    /// A rectangle, from its upper left corner.
    pub(super) fn rectangle(
        &mut self,
        (left, top): (f64, f64),
        (width, height): (f64, f64),
        fill: &str,
        outline: &str,
    ) {
        let rectangle = Rectangle::new()
            .set("x", round(left))
            .set("y", round(top))
            .set("width", round(width))
            .set("height", round(height))
            .set("fill", fill);
        self.0.append(match outline {
            NONE => rectangle,
            color => rectangle.set("stroke", color).set("stroke-width", 0.8),
        });
    }

    fn polygon(&mut self, points: &[(f64, f64)], color: &str) {
        let polygon = Polygon::new().set("points", list(points));
        self.0.append(polygon.set("fill", color));
    }

    fn circle(&mut self, (x, y): (f64, f64), radius: f64, color: &str) {
        let circle = Circle::new().set("cx", round(x)).set("cy", round(y));
        self.0.append(circle.set("r", radius).set("fill", color));
    }

    /// A marker with a white outline, so that it stands out from its line.
    pub(super) fn marker(&mut self, at: (f64, f64), look: &Look) {
        let (x, y) = at;
        let mut polygon = |corners: &[(f64, f64)]| {
            for (r, color) in [(4.6, WHITE), (3.4, look.color)] {
                let corner = |(dx, dy): &(f64, f64)| (x + dx * r, y + dy * r);
                self.polygon(&corners.iter().map(corner).collect::<Vec<_>>(), color);
            }
        };
        match look.marker {
            Marker::Square => polygon(&[(-1.0, -1.0), (1.0, -1.0), (1.0, 1.0), (-1.0, 1.0)]),
            Marker::Triangle => polygon(&[(0.0, -1.25), (1.2, 0.85), (-1.2, 0.85)]),
            Marker::Diamond => polygon(&[(0.0, -1.35), (1.35, 0.0), (0.0, 1.35), (-1.35, 0.0)]),
            Marker::Circle => {
                self.circle(at, 4.6, WHITE);
                self.circle(at, 3.5, look.color);
            }
            Marker::Ring => {
                self.circle(at, 5.4, WHITE);
                self.circle(at, 4.4, look.color);
                self.circle(at, 2.3, WHITE);
            }
            Marker::Cross => {
                let r = 3.6;
                self.circle(at, 5.0, WHITE);
                self.path(&[(x - r, y - r), (x + r, y + r)], look.color, 1.8);
                self.path(&[(x - r, y + r), (x + r, y - r)], look.color, 1.8);
            }
        }
    }

    /// A text, vertically centred.
    pub(super) fn text(
        &mut self,
        text: &str,
        (x, y): (f64, f64),
        anchor: Anchor,
        style: TextStyle,
    ) {
        let (x, y) = (round(x), round(y));
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let mut text = Text::new(text)
            .set("x", x)
            .set("y", y)
            .set("dy", "0.5ex")
            .set("text-anchor", anchor)
            .set("fill", style.color);
        if style.bold {
            text.assign("font-weight", "bold");
        }
        if style.upwards {
            text.assign("transform", format!("rotate(270, {x}, {y})"));
        }
        self.0.append(text);
    }
}

/// The part of a text that is at its position.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Style of a text.
#[derive(Clone, Copy)]
pub(super) struct TextStyle {
    pub(super) color: &'static str,
    pub(super) bold: bool,
    pub(super) upwards: bool,
}

pub(super) const PLAIN: TextStyle = TextStyle {
    color: INK,
    bold: false,
    upwards: false,
};
pub(super) const QUIET: TextStyle = TextStyle {
    color: GREY,
    ..PLAIN
};
pub(super) const BOLD: TextStyle = TextStyle {
    bold: true,
    ..PLAIN
};
pub(super) const VERTICAL: TextStyle = TextStyle {
    upwards: true,
    ..PLAIN
};

/// Keeps the first, lowest, highest and last point of each pixel column: a long series stays small and keeps its
/// extremes.
pub(super) fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut thinned: Vec<(f64, f64)> = Vec::new();
    for column in points.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
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
