//! Enforces rates by TCP's own pacing: a sock_ops program at a cgroup.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use aya::programs::{CgroupAttachMode, ProgramType, SockOps, links::FdLink};
use ecn_core::abi::name;

use super::{Datapath, Error, Result, attach::pin_link, create_private, get, pin_dir};

/// The first mounted cgroup v2.
fn mounted() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let fields = mounts.lines().map(|line| line.split(' '));
    fields
        .filter_map(|mut fields| Some((fields.nth(1)?.to_owned(), fields.next()?.to_owned())))
        .find(|(_, kind)| kind == "cgroup2")
        .map(|(at, _)| at.into())
}

/// The cgroup whose sockets are paced: the configured one, or the root of cgroup v2.
///
/// # Errors
///
/// What is missing.
pub fn cgroup(configured: Option<&Path>) -> std::result::Result<PathBuf, &'static str> {
    if !aya::sys::is_program_supported(ProgramType::SockOps).unwrap_or(false) {
        return Err("no sock_ops programs in this kernel (CONFIG_CGROUP_BPF)");
    }
    match configured {
        Some(path) if path.join("cgroup.procs").exists() => Ok(path.to_owned()),
        Some(_) => Err("`cgroup` in [agent] is not a cgroup"),
        None => mounted().ok_or("no cgroup v2 is mounted"),
    }
}

impl Datapath {
    /// Starts to pace the sockets of a cgroup. The link is pinned: sockets keep their rates, so the program has to
    /// outlive a killed agent, to lift the rates when limits expire.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn pace_sockets(&mut self, cgroup: &Path) -> Result<()> {
        if self.sockets.is_some() {
            return Ok(());
        }
        let file = |what, path: &Path| {
            let path = path.to_owned();
            move |error| Error::File { what, path, error }
        };
        let links = pin_dir(&self.pin).join("links");
        create_private(&links)?;
        let group = File::open(cgroup).map_err(file("open", cgroup))?;
        let program: &mut SockOps = get(&mut self.common, name::SOCK)?;
        let attach = || {
            if program.fd().is_err() {
                program.load()?;
            }
            // A link takes no flags: others can always attach too.
            let id = program.attach(group, CgroupAttachMode::Single)?;
            program.take_link(id)
        };
        let link = attach().map_err(Error::program(name::SOCK))?;
        // Before Linux 5.7 there are no links to pin.
        let link: FdLink = link
            .try_into()
            .map_err(|error| file("pin", &links)(std::io::Error::other(error)))?;
        // Replaces the link of a previous agent: until here both are attached, and set the same rates.
        let pinned = pin_link(link, &links.join(name::SOCK))?;
        self.sockets = Some(pinned);
        Ok(())
    }
}

/// See [`Datapath::pace_sockets`].
pub(super) type Sockets = Option<FdLink>;
