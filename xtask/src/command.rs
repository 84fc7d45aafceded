//! How the workspace's tests, and the `ecn` command that some of them run, are compiled.
//!
//! The workspace is compiled as a whole: separately, Cargo would unify features differently for each package, and
//! compile their common dependencies, the agent and the simulator included, several times.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cargo_tool::NEXTEST;
use crate::machine::{cargo, root};
use crate::step;

/// The profile of tests and lints.
const PROFILE: &str = "checked";

/// Tests that run the command.
const RUN_THE_COMMAND: [&str; 2] = ["kernel", "book"];

/// Packages, and where they are compiled.
const WORKSPACE: [&str; 3] = ["--workspace", "--target-dir", "target"];

/// `cargo VERB` for the workspace, with the profile of tests.
pub fn cargo_with_profile(verb: &str) -> Command {
    let mut command = cargo();
    command.arg(verb).args(["--profile", PROFILE]);
    command.args(WORKSPACE);
    command
}

fn select<'a>(command: &mut Command, tests: impl IntoIterator<Item = &'a str>) {
    for test in tests {
        command.args(["--test", test]);
    }
}

/// Builds the command and the tests that run it.
pub fn build() -> Result<()> {
    let mut build = cargo_with_profile("build");
    select(build.args(["--bin", "ecn"]), RUN_THE_COMMAND);
    step::run("the command, and the tests that run it", &mut build)
}

/// Path of the command.
pub fn path() -> PathBuf {
    root().join("target").join(PROFILE).join("ecn")
}

/// `cargo nextest run`.
fn nextest() -> Result<Command> {
    let mut run = Command::new(NEXTEST.ensure()?);
    run.current_dir(root()).args(["nextest", "run"]);
    run.args(["--cargo-profile", PROFILE]).args(WORKSPACE);
    Ok(run)
}

/// [`nextest`] with the tests that need no kernel programs.
pub fn host_tests() -> Result<Command> {
    let mut run = nextest()?;
    run.args(["--filterset", "not package(ecn-tests)"]);
    Ok(run)
}

/// [`nextest`] with these tests that run the command, or all if the list is empty. Arguments can be added.
pub fn tests(names: &[&str]) -> Result<Command> {
    let mut run = nextest()?;
    let names = if names.is_empty() {
        &RUN_THE_COMMAND
    } else {
        names
    };
    select(&mut run, names.iter().copied());
    run.args(["--profile", "kernel"]).env("ECN_BIN", path());
    Ok(run)
}

/// Builds the real-kernel tests. Returns Cargo's messages in JSON.
pub fn kernel_tests() -> Option<String> {
    let mut test = cargo_with_profile("test");
    select(&mut test, ["kernel"]);
    step::asked(test.args(["--no-run", "--message-format=json"]))
}
