//! Cli.

pub mod table;
