//! The `ecn` command, and the tests that run it.
//!
//! They are compiled together: on its own each would get other features of what both are made of, the agent and the
//! simulator included, and have it compiled for itself.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::machine::{cargo, root};
use crate::step;

/// Programs of tests.
const TESTS: [&str; 2] = ["kernel", "book"];

/// A verb of cargo for both.
fn both(verb: &str, tests: &[&str]) -> Command {
    let mut command = cargo();
    command
        .args([verb, "--release", "--target-dir", "target"])
        .args(["--package", "ecn-user", "--package", "ecn-tests"]);
    for test in tests {
        command.args(["--test", test]);
    }
    command
}

/// Builds the command and the tests.
pub fn build() -> Result<()> {
    let mut build = both("build", &TESTS);
    build.args(["--bin", "ecn"]);
    step::run("the command, and the tests that run it", &mut build)
}

/// Where the command is.
pub fn path() -> PathBuf {
    root().join("target/release/ecn")
}

/// `cargo test` for these programs of tests, all if there are none: arguments for it, or after `--` for them, may follow.
pub fn tests(names: &[&str]) -> Command {
    let mut test = both("test", if names.is_empty() { &TESTS } else { names });
    test.env("ECN_BIN", path());
    test
}
