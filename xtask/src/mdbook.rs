//! mdbook, which builds the book.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::machine::{Lacks, cargo, program, root};
use crate::step;

/// The version of mdbook: what it warns of, and the anchors it makes, are part of the checks.
const VERSION: &str = "0.5.4";

fn folder() -> PathBuf {
    root().join("target/tools/mdbook")
}

/// mdbook of this version, if it is here and starts.
pub fn find() -> Option<PathBuf> {
    let installed = folder().join("bin/mdbook");
    let expected = format!("mdbook v{VERSION}");
    program("mdbook")
        .into_iter()
        .chain([installed])
        .find(|path| {
            let version = step::asked(Command::new(path).arg("--version"));
            version.is_some_and(|version| version == expected)
        })
}

/// mdbook: found, or compiled.
pub fn ensure() -> Result<PathBuf> {
    if let Some(found) = find() {
        return Ok(found);
    }
    let mut command = cargo();
    command
        .args([
            "install",
            "mdbook",
            "--version",
            VERSION,
            "--locked",
            "--force",
        ])
        .args(["--no-default-features", "--features", "search"])
        .arg("--root")
        .arg(folder())
        .arg("--target-dir")
        .arg(folder().join("build"))
        // The book takes a second all the same.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    step::logged("what builds the book", "mdbook", &mut command)?;
    // Best effort: it is only space.
    let _ = fs::remove_dir_all(folder().join("build"));
    find().ok_or_else(|| Lacks("the mdbook just compiled does not start".into()).into())
}
