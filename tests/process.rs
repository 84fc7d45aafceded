//! The `ecn` command, as a process.
