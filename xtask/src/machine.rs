//! What this machine has, and how it gets what it lacks.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::step;

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

/// The system's packages, where apt-get is what installs them.
pub struct Apt;

impl Apt {
    /// Is this a Debian or one of its children?
    pub fn find() -> Option<Self> {
        program("apt-get").map(|_| Self)
    }

    /// The package's newest version, if the lists know one.
    pub fn candidate(&self, package: &str) -> Option<String> {
        let text = step::asked(Command::new("apt-cache").args(["policy", package]))?;
        let version = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "))?;
        (version != "(none)").then(|| version.to_owned())
    }

    /// Fetches the package lists.
    pub fn update(&self, permission: Permission) -> Result<()> {
        let mut command = self.command(permission);
        step::logged(
            "the package lists are missing or old",
            "apt-update",
            command.arg("update"),
        )
    }

    /// Installs packages; fetches the package lists first if they do not know them, or if it fails.
    pub fn install(&self, why: &str, packages: &[&str], permission: Permission) -> Result<()> {
        if packages
            .iter()
            .any(|package| self.candidate(package).is_none())
        {
            self.update(permission)?;
            return self.install_known(why, packages, permission);
        }
        self.install_known(why, packages, permission).or_else(|_| {
            self.update(permission)?;
            self.install_known(why, packages, permission)
        })
    }

    /// Fetches a package into a folder without installing it; fetches the package lists first if they are missing or old.
    pub fn download(
        &self,
        why: &str,
        package: &str,
        folder: &Path,
        permission: Permission,
    ) -> Result<()> {
        let fetch = || {
            let mut command = Command::new("apt-get");
            command
                .args(["-q", "download", package])
                .current_dir(folder);
            step::logged(why, "apt-download", &mut command)
        };
        if self.candidate(package).is_some() && fetch().is_ok() {
            return Ok(());
        }
        if permission == Permission::No {
            let message = format!("the package lists do not know {package}: sudo apt-get update");
            return Err(Lacks(message).into());
        }
        self.update(permission)?;
        fetch()
    }

    fn install_known(&self, why: &str, packages: &[&str], permission: Permission) -> Result<()> {
        let mut command = self.command(permission);
        command
            .args(["install", "-y", "--no-install-recommends"])
            .args(packages);
        step::logged(why, "apt-install", &mut command)
    }

    fn command(&self, permission: Permission) -> Command {
        let mut command = if permission == Permission::Sudo {
            let mut command = Command::new("sudo");
            command.args(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
            command
        } else {
            let mut command = Command::new("apt-get");
            command.env("DEBIAN_FRONTEND", "noninteractive");
            command
        };
        command.args(["-q", "-o", "DPkg::Lock::Timeout=300"]);
        command
    }
}
