//! What this machine has, and how it gets what it lacks.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The machine lacks something: exit code 3. Displays as what, and what to do.
#[derive(Debug)]
pub struct Lacks(pub String);

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Lacks {}

/// The workspace's folder.
pub fn root() -> PathBuf {
    // Set by `cargo run`; the folder of the build otherwise.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The cargo that runs this, in the workspace's folder.
pub fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}

/// The user is root.
pub fn is_root() -> bool {
    // The folder of a process belongs to its effective user.
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Nobody looks on: continuous integration sets `CI`.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

/// Whether, and how, packages may be installed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// As root.
    Root,
    /// Asked for with `--yes` or ECN_YES=1: through sudo.
    Sudo,
    /// Not at all: what is missing is named.
    No,
}

impl Permission {
    /// What this user allows.
    pub fn find(yes: bool) -> Self {
        let yes = yes || std::env::var_os("ECN_YES").is_some_and(|value| value == "1");
        if is_root() {
            Self::Root
        } else if yes {
            Self::Sudo
        } else {
            Self::No
        }
    }
}

/// Finds a program in PATH, or where root's programs are; one that is named by its path only there.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}
