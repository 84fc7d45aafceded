//! HP's Fig. 1 on this machine: topology, traffic, runs, reports.

pub mod args;
pub mod figure;
pub mod report;
pub mod run;
pub mod topology;
pub mod traffic;
