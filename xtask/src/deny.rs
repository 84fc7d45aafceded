//! Checks dependencies against `deny.toml`, with cargo-deny.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::cargo_tool::DENY;
use crate::machine::{Lacks, root};
use crate::step;

/// Cargo's workspaces.
const WORKSPACES: [&str; 2] = ["Cargo.toml", "ecn-ebpf/Cargo.toml"];

/// Checks licences, duplicates and sources, which needs no network.
pub fn check() -> Result<()> {
    let deny = DENY.ensure()?;
    compare(&deny, &["licenses", "bans", "sources"])
}

/// Checks for known vulnerabilities and yanked versions; skipped if RustSec's database cannot be fetched.
pub fn advisories() -> Result<()> {
    let deny = DENY.ensure()?;
    let mut fetch = Command::new(&deny);
    fetch.current_dir(root()).args(["fetch", "db"]);
    if let Err(error) = step::logged("known vulnerabilities of crates", "advisories", &mut fetch) {
        step::print(&format!("{error:#}"));
        return Err(
            Lacks("crates were not checked: RustSec's database cannot be fetched".into()).into(),
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
