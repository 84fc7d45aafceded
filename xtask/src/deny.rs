//! What ecn is made of, against `deny.toml`, by cargo-deny.
//!
//! Where the machine has none, one is compiled, in a minute on two processors, and kept in `target/tools`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::machine::{Lacks, cargo, program, root};
use crate::step;

/// The version that is installed. One that is here already is taken as it is.
const VERSION: &str = "0.20.2";
/// Cargo's workspaces.
const WORKSPACES: [&str; 2] = ["Cargo.toml", "ecn-ebpf/Cargo.toml"];

fn folder() -> PathBuf {
    root().join("target/tools/cargo-deny")
}

/// The program, if it is here and starts.
pub fn find() -> Option<PathBuf> {
    let installed = folder().join("bin/cargo-deny");
    program("cargo-deny")
        .into_iter()
        .chain([installed])
        .find(|path| step::asked(Command::new(path).arg("--version")).is_some())
}

/// The program: found, or compiled.
pub fn ensure() -> Result<PathBuf> {
    if let Some(found) = find() {
        return Ok(found);
    }
    let mut command = cargo();
    command
        .args(["install", "cargo-deny", "--version", VERSION, "--locked"])
        .arg("--root")
        .arg(folder())
        .arg("--target-dir")
        .arg(folder().join("build"))
        // It has little to do: compiled fast, it is done in a second all the same.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0");
    step::logged(
        "what compares crates with deny.toml",
        "cargo-deny",
        &mut command,
    )?;
    // Best effort: it is only space.
    let _ = fs::remove_dir_all(folder().join("build"));
    find().ok_or_else(|| Lacks("the cargo-deny just compiled does not start".into()).into())
}

/// Licences, duplicates and sources: all that is known without a network.
pub fn check() -> Result<()> {
    let deny = ensure()?;
    compare(&deny, &["licenses", "bans", "sources"])
}

/// Known faults and yanked versions, by RustSec's database; where it is out of reach, that is what the machine lacks.
pub fn advisories() -> Result<()> {
    let deny = ensure()?;
    let mut fetch = Command::new(&deny);
    fetch.current_dir(root()).args(["fetch", "db"]);
    if let Err(error) = step::logged("known faults of crates", "advisories", &mut fetch) {
        step::say(&format!("{error:#}"));
        return Err(
            Lacks("no crate was checked: RustSec's database is out of reach".into()).into(),
        );
    }
    compare(&deny, &["advisories"])
}

fn compare(deny: &Path, checks: &[&str]) -> Result<()> {
    for workspace in WORKSPACES {
        let mut command = Command::new(deny);
        command
            .current_dir(root())
            .args(["--manifest-path", workspace, "check"])
            .args(checks);
        step::run("crates against deny.toml", &mut command)?;
    }
    Ok(())
}
