//! Results for people and for programs: figures, tables, HTML pages, and the files that contain them.
//!
//! The simulator, the testbed and the benchmarks write their results with it; it knows nothing about networks.
//!
//! # A figure and its data
//!
//! ```
//! use ecn_report::figure::{Line, LineFigure, Panel};
//! use ecn_report::output::Output;
//! use ecn_report::table::{Format, Table};
//!
//! let points = [(0.0, 0.5), (1.0, 0.75), (2.0, 1.0)];
//! let figure = LineFigure {
//!     title: "Share of a link".to_owned(),
//!     x_label: "time (ms)".to_owned(),
//!     y_label: "share".to_owned(),
//!     panels: vec![Panel {
//!         lines: vec![Line { label: "flow 1".to_owned(), points: points.to_vec(), ..Line::default() }],
//!         ..Panel::default()
//!     }],
//!     ..LineFigure::default()
//! };
//! let columns = [("time_ms", "End of the interval."), ("share", "Of the link's rate.")];
//! let table = Table::new(&columns, points.map(|(time, share)| vec![time.into(), share.into()]));
//! assert_eq!(table.csv(), "time_ms,share\n0,0.5\n1,0.75\n2,1\n");
//!
//! # let folder = std::env::temp_dir().join(format!("ecn-report-{}", std::process::id()));
//! let output = Output::new(&folder)?;
//! output.write_all(&[
//!     ("share.svg", figure.to_svg().into_bytes()),
//!     ("share.csv", table.encoded(Format::Csv)?),
//! ])?;
//! # std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![warn(unreachable_pub)]

pub mod figure;
pub mod html;
pub mod number;
pub mod output;
pub mod statistics;
pub mod table;
pub mod terminal;
