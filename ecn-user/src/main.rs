//! The `ecn` command.

fn main() {}
