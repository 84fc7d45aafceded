//! Drawing primitives of figures.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::FigureError;

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
pub struct Look {
    pub(super) color: RGBColor,
    pub(super) width: f64,
    /// Lengths of dashes and gaps in turn; empty for a solid line.
    pub(super) dash: &'static [f64],
    pub(super) marker: Marker,
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

pub(super) const INK: RGBColor = RGBColor(34, 34, 34);
pub(super) const GREY: RGBColor = RGBColor(102, 102, 102);
pub(super) const GRID: RGBColor = RGBColor(226, 226, 226);

/// Width of every figure in pixels.
pub(super) const WIDTH: f64 = 800.0;
/// Drawing units per pixel: plotters accepts only integers.
pub(super) const SCALE: f64 = 20.0;
/// Size of ordinary text, in pixels.
pub(super) const TEXT: f64 = 13.0;

/// Approximate width of a text in pixels, for a wide font such as DejaVu Sans.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
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

/// Truncates a text to a width.
pub(super) fn fit(text: &str, size: f64, width: f64) -> String {
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

/// Draws in pixels, as floating-point numbers.
pub(super) struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

pub(super) type Drawn = Result<(), FigureError>;

pub(super) fn px((x, y): (f64, f64)) -> (i32, i32) {
    ((x * SCALE).round() as i32, (y * SCALE).round() as i32)
}

pub(super) fn stroke(color: RGBColor, width: f64) -> ShapeStyle {
    let stroke_width = (width * SCALE).round() as u32;
    ShapeStyle {
        color: color.to_rgba(),
        filled: false,
        stroke_width,
    }
}

impl Canvas<'_> {
    /// Draws a figure of `height` pixels and returns its SVG text.
    pub(super) fn draw(
        height: f64,
        title: &str,
        paint: impl FnOnce(&Canvas<'_>) -> Drawn,
    ) -> Result<String, FigureError> {
        Self::draw_sized((WIDTH, height), title, paint)
    }

    /// [`Self::draw`] with another width.
    pub(super) fn draw_sized(
        (width, height): (f64, f64),
        title: &str,
        paint: impl FnOnce(&Canvas<'_>) -> Drawn,
    ) -> Result<String, FigureError> {
        let mut svg = String::new();
        let size = px((width, height));
        {
            let backend = SVGBackend::with_string(&mut svg, (size.0 as u32, size.1 as u32));
            let canvas = Canvas {
                area: backend.into_drawing_area(),
            };
            canvas.area.fill(&WHITE)?;
            paint(&canvas)?;
            canvas.area.present()?;
        }
        // The drawing has SCALE units per pixel; set its size in pixels, and its title.
        let body = svg.split_once(">\n").map_or("", |(_, body)| body);
        Ok(format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{width}\" \
             height=\"{height}\" viewBox=\"0 0 {} {}\" stroke-linejoin=\"round\">\n\
             <title>{}</title>\n{body}",
            size.0,
            size.1,
            escape(title),
        ))
    }

    pub(super) fn path(&self, points: &[(f64, f64)], color: RGBColor, width: f64) -> Drawn {
        let points: Vec<_> = points.iter().copied().map(px).collect();
        self.area
            .draw(&PathElement::new(points, stroke(color, width)))?;
        Ok(())
    }

    pub(super) fn dashed(&self, points: &[(f64, f64)], look: &Look) -> Drawn {
        if look.dash.is_empty() {
            return self.path(points, look.color, look.width);
        }
        for piece in dashes(points, look.dash) {
            self.path(&piece, look.color, look.width)?;
        }
        Ok(())
    }

    pub(super) fn polygon(&self, points: &[(f64, f64)], color: RGBColor) -> Drawn {
        let points: Vec<_> = points.iter().copied().map(px).collect();
        self.area.draw(&Polygon::new(points, color.filled()))?;
        Ok(())
    }

    pub(super) fn circle(&self, at: (f64, f64), radius: f64, color: RGBColor) -> Drawn {
        self.area
            .draw(&Circle::new(px(at), radius * SCALE, color.filled()))?;
        Ok(())
    }

    /// A marker with a white outline, so that it stands out from its line.
    pub(super) fn marker(&self, (x, y): (f64, f64), look: &Look) -> Drawn {
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

    pub(super) fn text(&self, text: &str, at: (f64, f64), h: HPos, how: Type) -> Drawn {
        let style = if how.bold {
            FontStyle::Bold
        } else {
            FontStyle::Normal
        };
        // The backend divides by 1.24 to get the font size.
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

/// Style of a text.
#[derive(Clone, Copy)]
pub(super) struct Type {
    pub(super) size: f64,
    pub(super) color: RGBColor,
    pub(super) bold: bool,
    pub(super) upwards: bool,
}

pub(super) const PLAIN: Type = Type {
    size: TEXT,
    color: INK,
    bold: false,
    upwards: false,
};

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Cuts a path into dashes; the pattern of dashes and gaps continues around corners.
pub(super) fn dashes(points: &[(f64, f64)], pattern: &[f64]) -> Vec<Vec<(f64, f64)>> {
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

/// Keeps the first, lowest, highest and last point of each pixel column: a long series stays small and keeps its
/// extremes.
pub(super) fn thin(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
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
