//! Packet-level simulator of lossless networks and of Linux bridges.
//!
//! Runs without kernel support: marking and response call the same functions of `ecn-core` as the kernel programs.
//!
//! # Run an incast
//!
//! Eight hosts of a leaf-spine network send 100 kB each to one receiver, with DCQCN. Settings are documented in
//! [`keys`] (`ecn sim list KEY`); reports are also available as tables ([`records::table_of_report`]).
//!
//! ```
//! use ecn_sim::fabric::{Kind, Options, Scenario, run};
//!
//! let mut incast = Scenario::of(Kind::LeafSpine);
//! for setting in ["hosts=16", "senders=8", "flow_size=100kB", "scheme=dcqcn"] {
//!     incast.set_text(setting)?;
//! }
//! let (report, counts) = run(&incast, 1, &Options::default())?;
//! assert_eq!((report.flows_finished, report.dropped_packets), (8, 0));
//! // Eight times 100 kB at 100 Gb/s take 64 us.
//! assert!(report.last_flow_end_ms > Some(0.064));
//! let slowest = counts.finished.iter().max_by_key(|flow| flow.time);
//! println!("{:?} ms, slowest: {slowest:?}", report.last_flow_end_ms);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # More than one run
//!
//! [`parallel`] executes runs on all cores, [`ecn_report::statistics`] has means and confidence intervals over seeds,
//! and [`compare`] does both for several schemes. [`sweep`] is for grids of settings, in files and on several machines.
//! The crate `ecn-papers` reproduces papers with this interface.

#![warn(unreachable_pub)]

mod bounds;
mod bridged;
pub mod compare;
mod counters;
pub mod design;
mod endpoint;
pub mod engine;
pub mod experiment;
pub mod fabric;
pub mod keys;
pub mod measure;
pub mod model;
pub mod network;
pub mod notifications;
pub mod parallel;
pub mod records;
pub mod report;
pub mod scenario;
mod scenario_file;
mod settings;
pub mod simulation;
pub mod sweep;
mod switch;
mod text_file;
pub mod trace;
pub mod traffic;

pub use bounds::ModelError;
