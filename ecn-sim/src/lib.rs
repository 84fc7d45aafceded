//! Packet-level simulator of lossless networks, and of Linux bridges.
//!
//! It needs no kernel: marking and response are the functions of `ecn-core` that the kernel
//! programs call.
//!
//! # Run an incast
//!
//! Eight hosts of a leaf-spine network send 100 kB each to one, under DCQCN. What a setting means, [`keys`] says (`ecn sim
//! list KEY`); a report is a table of [`records`], too.
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
//! assert!(report.last_flow_end_ms > 0.064);
//! let slowest = counts.finished.iter().max_by_key(|flow| flow.time);
//! println!("{:.3} ms, slowest: {slowest:?}", report.last_flow_end_ms);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bridged;
pub mod cli;
pub mod compare;
mod counters;
pub mod design;
pub mod endpoint;
pub mod engine;
pub mod experiment;
pub mod fabric;
pub mod figure;
pub mod keys;
pub mod measure;
pub mod model;
pub mod network;
pub mod notifications;
pub mod output;
pub mod progress;
pub mod records;
pub mod report;
pub mod reproduce;
pub mod rig;
pub mod scenario;
mod scenario_file;
pub mod simulation;
pub mod statistics;
pub mod sweep;
pub mod switch;
pub mod trace;
pub mod traffic;
