//! The `ecn` command, and the tests that run it.
//!
//! They are compiled together: separately, Cargo would unify features differently for each of them, and compile their
//! common dependencies, the agent and the simulator included, twice.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cargo_tool::NEXTEST;
use crate::machine::{cargo, root};
use crate::step;

/// Test binaries.
const TESTS: [&str; 2] = ["kernel", "book"];

/// Adds arguments that select the packages and test binaries.
fn both(command: &mut Command, tests: &[&str]) {
    command.args(["--release", "--target-dir", "target"]);
    for package in ["ecn-user", "ecn-tests"] {
        command.args(["--package", package]);
    }
    for test in tests {
        command.args(["--test", test]);
    }
}

/// Builds the command and the tests.
pub fn build() -> Result<()> {
    let mut build = cargo();
    both(build.arg("build"), &TESTS);
    build.args(["--bin", "ecn"]);
    step::run("the command, and the tests that run it", &mut build)
}

/// Path of the command.
pub fn path() -> PathBuf {
    root().join("target/release/ecn")
}

/// `cargo nextest run`, to which arguments can be added.
pub fn nextest() -> Result<Command> {
    let mut run = Command::new(NEXTEST.ensure()?);
    run.current_dir(root()).args(["nextest", "run"]);
    Ok(run)
}

/// [`nextest`] with these test binaries, or all if the list is empty.
pub fn tests(names: &[&str]) -> Result<Command> {
    let mut run = nextest()?;
    both(&mut run, if names.is_empty() { &TESTS } else { names });
    run.args(["--profile", "kernel"]).env("ECN_BIN", path());
    Ok(run)
}

/// Builds the real-kernel tests. Returns Cargo's messages in JSON.
pub fn kernel_tests() -> Option<String> {
    let mut test = cargo();
    both(test.arg("test"), &["kernel"]);
    step::asked(test.args(["--no-run", "--message-format=json"]))
}
