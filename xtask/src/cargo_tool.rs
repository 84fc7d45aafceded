//! Programs from crates.io that checks call: found in PATH, or compiled into `target/tools`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::machine::{Lacks, cargo, program, root};
use crate::step;

/// One such program.
pub struct CargoTool {
    /// The crate, and the program.
    pub name: &'static str,
    /// The version that is compiled.
    version: &'static str,
    /// What `--version` must begin with; a program of another version in PATH is not used then.
    required: Option<&'static str>,
    /// More arguments of `cargo install`.
    arguments: &'static [&'static str],
    /// What it is for.
    why: &'static str,
}

/// Compares dependencies with `deny.toml`.
pub const DENY: CargoTool = CargoTool {
    name: "cargo-deny",
    version: "0.20.2",
    required: None,
    arguments: &[],
    why: "to check crates against deny.toml",
};

/// Builds the book. What it warns of, and the anchors it makes, are part of the checks.
pub const MDBOOK: CargoTool = CargoTool {
    name: "mdbook",
    version: "0.5.4",
    required: Some("mdbook v0.5.4"),
    arguments: &["--no-default-features", "--features", "search"],
    why: "to build the book",
};

/// Runs tests: in parallel, those that need the whole machine alone, and once more what failed.
pub const NEXTEST: CargoTool = CargoTool {
    name: "cargo-nextest",
    version: "0.9.143",
    required: None,
    arguments: &["--no-default-features", "--features", "default-no-update"],
    why: "to run the tests",
};

/// All of them.
pub const ALL: [&CargoTool; 3] = [&NEXTEST, &DENY, &MDBOOK];

impl CargoTool {
    fn folder(&self) -> PathBuf {
        root().join("target/tools").join(self.name)
    }

    /// The program, if it is here and starts.
    pub fn find(&self) -> Option<PathBuf> {
        let compiled = self.folder().join("bin").join(self.name);
        let fits = |path: &PathBuf| {
            let version = step::asked(Command::new(path).arg("--version"));
            version.is_some_and(|version| version.starts_with(self.required.unwrap_or_default()))
        };
        program(self.name).into_iter().chain([compiled]).find(fits)
    }

    /// The program: found, or compiled.
    pub fn ensure(&self) -> Result<PathBuf> {
        if let Some(found) = self.find() {
            return Ok(found);
        }
        let mut command = cargo();
        command
            .args(["install", self.name, "--version", self.version])
            .args(["--locked", "--force"])
            .args(self.arguments)
            .arg("--root")
            .arg(self.folder())
            .arg("--target-dir")
            .arg(self.folder().join("build"))
            // They have little to do: compiled fast, they take a second all the same.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        step::logged(self.why, self.name, &mut command)?;
        // Best effort: it is only space.
        let _ = fs::remove_dir_all(self.folder().join("build"));
        let fails = || Lacks(format!("the compiled {} does not start", self.name));
        self.find().ok_or_else(|| fails().into())
    }
}
