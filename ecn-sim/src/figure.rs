//! Figures as SVG text.
//!
//! Lines over time in panels with the same axes, as the HP papers' Fig. 2 and 3; points per setting for
//! comparisons; networks. Lines differ in colour (the palette of Okabe and Ito, which
//! colour-blind readers can tell apart), in dash pattern and in marker, and each is labelled at
//! its right end, so no legend can cover the data.
//!
//! plotters is built without fonts here, so it knows no text extents: everything is placed from
//! an estimate of their width that is on the wide side.

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

/// A figure could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw the figure: {0}")]
pub struct FigureError(String);

impl<E: std::error::Error + Send + Sync> From<DrawingAreaErrorKind<E>> for FigureError {
    fn from(error: DrawingAreaErrorKind<E>) -> Self {
        Self(error.to_string())
    }
}
