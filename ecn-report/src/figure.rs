//! Figures as SVG text.
//!
//! Lines over time in panels with the same axes, as in Fig. 2 and 3 of the HP papers; points per setting for
//! comparisons; networks. Lines differ in colour (the palette of Okabe and Ito, which colour-blind readers can
//! distinguish), dash pattern and marker. Each line is labelled at its right end, so that no legend can cover data.
//!
//! Viewers choose the font, so the layout uses estimated text widths, which err on the wide side.

mod axis;
mod canvas;
mod dots;
mod lines;
mod network;
#[cfg(test)]
mod tests;

pub use axis::decades;
pub use canvas::MOST_LINES;
pub use dots::{DotColumn, DotFigure};
pub use lines::{Line, LineFigure, Panel};
pub use network::{NetworkFigure, Special};
