//! Figures as SVG text.
//!
//! Lines over time in panels with the same axes, as in Fig. 2 and 3 of the HP papers; points per setting for
//! comparisons; networks. Lines differ in colour (the palette of Okabe and Ito, which colour-blind readers can
//! distinguish), dash pattern and marker. Each line is labelled at its right end, so that no legend can cover data.
//!
//! plotters is built without fonts here and cannot measure text: the layout uses estimated text widths, which err on
//! the wide side.

mod axis;
mod canvas;
mod dots;
mod lines;
mod network;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

pub(crate) use axis::decades;
pub(crate) use canvas::escape;
pub use canvas::{LOOKS, Look};
pub use dots::{DotColumn, DotFigure};
pub use lines::{Line, LineFigure, Panel};
pub use network::{NetworkFigure, Special};
use plotters::prelude::DrawingAreaErrorKind;

/// A figure that cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the figure: {0}")]
pub struct FigureError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for FigureError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}
