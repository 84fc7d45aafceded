//! What this machine has, and permission to install what it lacks.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The machine lacks something: exit code 3. Displayed as what is missing, and what to do.
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
    // Set by `cargo run`; otherwise, the folder at compile time is used.
    let xtask = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask
        .parent()
        .map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// The cargo that runs this program, in the workspace's folder.
pub fn cargo() -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root());
    command
}

/// Whether the user is root.
pub fn is_root() -> bool {
    // /proc/self belongs to the effective user of the process.
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
}

/// Whether this is continuous integration, which sets `CI`.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

/// Whether, and how, packages may be installed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// As root.
    Root,
    /// Through sudo, as requested by `--yes` or ECN_YES=1.
    Sudo,
    /// Not permitted: missing packages are reported.
    No,
}

impl Permission {
    /// The permission of this user.
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

/// Finds a program in PATH, /usr/sbin or /sbin; an absolute path is only checked for existence.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}
