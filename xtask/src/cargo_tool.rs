//! Programs from crates.io that checks call: found in PATH, or compiled into `target/tools`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::machine::{Lacks, cargo, program, root};
use crate::step;

/// One such program.
pub struct CargoTool {
    /// Name of the crate and of the program.
    pub name: &'static str,
    /// The version to compile.
    version: &'static str,
    /// Required prefix of the output of `--version`; a program in PATH with another version is not used.
    required: Option<&'static str>,
    /// Additional arguments of `cargo install`.
    arguments: &'static [&'static str],
    /// Its purpose, for messages.
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

/// Builds the book. Its version is fixed: its warnings, and the anchors that it generates, are part of the checks.
pub const MDBOOK: CargoTool = CargoTool {
    name: "mdbook",
    version: "0.5.4",
    required: Some("mdbook v0.5.4"),
    arguments: &["--no-default-features", "--features", "search"],
    why: "to build the book",
};

/// Runs tests in parallel, those that need the whole machine one at a time, and retries failed ones.
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

    /// The program, if it is installed and starts.
    pub fn find(&self) -> Option<PathBuf> {
        let compiled = self.folder().join("bin").join(self.name);
        let fits = |path: &PathBuf| {
            let version = step::asked(Command::new(path).arg("--version"));
            version.is_some_and(|version| version.starts_with(self.required.unwrap_or_default()))
        };
        program(self.name).into_iter().chain([compiled]).find(fits)
    }

    /// The program, compiled if necessary.
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
            // The tools have little to do: without optimization they compile fast, and still take only a second.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0");
        step::logged(self.why, self.name, &mut command)?;
        // Best effort: it only uses space.
        let _ = fs::remove_dir_all(self.folder().join("build"));
        let fails = || Lacks(format!("the compiled {} does not start", self.name));
        self.find().ok_or_else(|| fails().into())
    }
}
