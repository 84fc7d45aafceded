//! What ecn is made of, against `deny.toml`, by cargo-deny.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::cargo_tool::DENY;
use crate::machine::{Lacks, root};
use crate::step;

/// Cargo's workspaces.
const WORKSPACES: [&str; 2] = ["Cargo.toml", "ecn-ebpf/Cargo.toml"];

/// Licences, duplicates and sources: all that is known without a network.
pub fn check() -> Result<()> {
    let deny = DENY.ensure()?;
    compare(&deny, &["licenses", "bans", "sources"])
}

/// Known faults and yanked versions, by RustSec's database; where it is out of reach, that is what the machine lacks.
pub fn advisories() -> Result<()> {
    let deny = DENY.ensure()?;
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
