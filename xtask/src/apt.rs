//! Packages of Debian and its derivatives.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::machine::{Lacks, Permission, program};
use crate::step;

/// apt-get, which installs packages of the system.
pub struct Apt;

impl Apt {
    /// Finds apt-get: the system is Debian or a derivative.
    pub fn find() -> Option<Self> {
        program("apt-get").map(|_| Self)
    }

    /// The newest version of a package, if the package lists have one.
    pub fn candidate(&self, package: &str) -> Option<String> {
        let text = step::asked(Command::new("apt-cache").args(["policy", package]))?;
        let version = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "))?;
        (version != "(none)").then(|| version.to_owned())
    }

    /// Updates the package lists.
    pub fn update(&self, permission: Permission) -> Result<()> {
        let mut command = self.command(permission);
        step::logged(
            "the package lists are missing or old",
            "apt-update",
            command.arg("update"),
        )
    }

    /// Installs packages. Updates the package lists if they lack a package, or if the installation fails, which is then
    /// retried.
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

    /// Downloads a package into a folder without installing it; updates the package lists if they are missing or
    /// outdated.
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
