//! HP's Fig. 1 on this machine: topology, traffic, runs, reports.

pub mod args;
mod cpu;
pub use ecn_sim_cli::rig::report;
pub mod pm_qos;
pub mod rtt;
pub mod run;
pub mod topology;
pub mod traffic;
