//! Attaching to a device: by tcx, or to clsact on kernels without tcx.
//!
//! This is determined by trying: aya relies on the kernel's version, which is wrong for kernels built without tcx, and
//! for those with a backport.

use std::{
    collections::BTreeSet,
    fmt, fs,
    io::{self, ErrorKind},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use aya::programs::{
    LinkOrder, ProgramError, SchedClassifier, TcAttachType, Xdp, XdpMode,
    links::{FdLink, LinkError, PinnedLink},
    tc::{SchedClassifierLink, TcAttachOptions},
    xdp::XdpLink,
};
use ecn_core::abi::name;
use nix::errno::Errno;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Error, Result};
use crate::net::{
    self, NetNs, Netlink,
    filter::{Filter, PRIORITY},
};

/// Expedites RCU grace periods while it exists. For attaching or detaching many programs: each change waits for one,
/// which takes .2 ms instead of 10 ms (`rcu_expedited` in Documentation/admin-guide/kernel-parameters.txt).
pub struct ExpeditedRcu(());

const RCU_EXPEDITED: &str = "/sys/kernel/rcu_expedited";

impl ExpeditedRcu {
    /// `None` if they are expedited already, or the setting cannot be changed.
    pub fn begin() -> Option<Self> {
        let now = fs::read_to_string(RCU_EXPEDITED).ok()?;
        (now.trim() == "0").then(|| fs::write(RCU_EXPEDITED, "1").ok())??;
        Some(Self(()))
    }
}

impl Drop for ExpeditedRcu {
    fn drop(&mut self) {
        if let Err(error) = fs::write(RCU_EXPEDITED, "0") {
            tracing::warn!("{RCU_EXPEDITED}: {error}");
        }
    }
}

/// Position of a program at a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// At its own hook, behind existing programs.
    #[default]
    Last,
    /// At its own hook, before existing programs.
    First,
    /// At the opposite hook, behind existing programs: for the host at the other end
    /// ([`ecn_core::abi::Endpoint::shaper`]). By tcx only: kernels before 6.4 do not accept what a program redirects to
    /// an ifb.
    Opposite,
}

/// How a program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachedBy {
    /// A tcx link: detached when the process ends, unless it is pinned.
    #[default]
    Tcx,
    /// A filter on clsact, which outlives the process.
    Clsact,
    /// XDP in the driver, by a link.
    Xdp,
}

impl fmt::Display for AttachedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
            Self::Xdp => "xdp",
        })
    }
}

/// An attached program; dropping it detaches.
pub struct Attached {
    by: AttachedBy,
    held: Held,
    /// Pin of its link, which lets it outlive the process.
    pin: Option<PathBuf>,
}

#[expect(dead_code, reason = "dropping links detaches")]
enum Held {
    /// Pinned.
    Link(FdLink),
    Tcx(SchedClassifierLink),
    Xdp(XdpLink),
    Filter(OnClsact),
}

impl Attached {
    /// How it is attached.
    pub fn hook(&self) -> AttachedBy {
        self.by
    }

    /// Pin of its link.
    pub fn pin(&self) -> Option<&Path> {
        self.pin.as_deref()
    }

    /// Leaves it attached when the process ends, if it is a filter or its link is pinned.
    pub fn leave(mut self) {
        self.pin = None;
        if let Held::Filter(filter) = &mut self.held {
            filter.is_left = true;
        }
    }

    /// A program whose link is pinned, or is to be pinned (`is_new`).
    fn pinned<L>(by: AttachedBy, link: L, is_new: bool, at: PathBuf) -> Result<Self>
    where
        L: TryInto<FdLink, Error = LinkError>,
    {
        let link = link.try_into().map_err(|error| Error::File {
            what: "pin a link at",
            path: at.clone(),
            error: io::Error::other(error),
        })?;
        let link = if is_new { pin_link(link, &at)? } else { link };
        Ok(Self {
            by,
            held: Held::Link(link),
            pin: Some(at),
        })
    }

    fn unpinned(by: AttachedBy, held: Held) -> Self {
        Self {
            by,
            held,
            pin: None,
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Some(pin) = &self.pin {
            let _ = fs::remove_file(pin);
        }
    }
}

/// Pins a link, replacing one that may be pinned there.
pub(super) fn pin_link(link: FdLink, at: &Path) -> Result<FdLink> {
    let failed = |what| {
        move |error| Error::File {
            what,
            path: at.to_owned(),
            error,
        }
    };
    match fs::remove_file(at) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(failed("replace the link")(error));
        }
        _ => {}
    }
    // Before Linux 5.7 there are no links to pin.
    let pinned = link.pin(at);
    let pinned = pinned.map_err(|error| failed("pin a link at")(io::Error::other(error)))?;
    Ok(pinned.into())
}

/// Pin of the link of a program at a device.
fn pin_of(links: &Path, ns: &NetNs, device: &str, program: &str, place: Place) -> Result<PathBuf> {
    let ifindex = Netlink::open(ns)?.link(device)?.index;
    // A link stays at the hook for which it was created.
    let hook = if place == Place::Opposite {
        "-opposite"
    } else {
        ""
    };
    Ok(links.join(format!("{}-{ifindex}-{program}{hook}", ns.inum())))
}

/// Replaces the program of a pinned link, so that no packet passes through both. `None`: no link is pinned, or its
/// device was removed.
fn replace<L: TryFrom<FdLink, Error = LinkError>>(
    pin: Option<&Path>,
    update: impl FnOnce(L) -> std::result::Result<L, ProgramError>,
) -> Option<L> {
    let at = pin?;
    let old: FdLink = PinnedLink::from_pin(at).ok()?.into();
    let link = L::try_from(old).ok()?;
    update(link)
        .inspect_err(|error| tracing::debug!("{}: {error}", at.display()))
        .ok()
}

/// Devices, by namespace and index, whose clsact is ours.
static OURS: Mutex<BTreeSet<(u32, u32)>> = Mutex::new(BTreeSet::new());

struct OnClsact {
    nl: Netlink,
    netns: u32,
    filter: Filter,
    /// The filter stays when this is dropped.
    is_left: bool,
}

impl OnClsact {
    fn add(
        ns: &NetNs,
        device: &str,
        program: &str,
        classifier: &SchedClassifier,
    ) -> std::result::Result<Self, AddError> {
        let nl = Netlink::open(ns)?;
        let ifindex = nl.link(device)?.index;
        // Held until the filter exists: the removal of another one must not remove the clsact meanwhile.
        let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
        let place = (ns.inum(), ifindex);
        if nl.add_clsact(ifindex)? {
            ours.insert(place);
        }
        let filter = filter(program, ifindex);
        // Left by another agent: see [`remove_leftover`].
        if nl.filters(ifindex)?.contains(&filter) {
            ours.insert(place);
        }
        let set = classifier
            .fd()
            .map_err(AddError::Program)
            .and_then(|fd| Ok(nl.set_filter(&filter, fd.as_fd())?));
        let added = Self {
            nl,
            netns: ns.inum(),
            filter,
            is_left: false,
        };
        match set {
            Ok(()) => Ok(added),
            Err(error) => {
                // Dropping it removes what was added.
                drop(ours);
                drop(added);
                Err(error)
            }
        }
    }

    /// Removes the clsact if it is ours and unused.
    fn remove_clsact(&self, ours: &mut BTreeSet<(u32, u32)>) {
        let place = (self.netns, self.filter.ifindex);
        let unused =
            |filters: net::Result<Vec<Filter>>| filters.is_ok_and(|found| found.is_empty());
        if ours.contains(&place) && unused(self.nl.filters(self.filter.ifindex)) {
            let _ = self.nl.delete_clsact(self.filter.ifindex);
            ours.remove(&place);
        }
    }
}

impl Drop for OnClsact {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        // The device may have been removed, with everything on it.
        let _ = self.nl.delete_filter(&self.filter);
        let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
        self.remove_clsact(&mut ours);
    }
}

enum AddError {
    Net(net::Error),
    Program(ProgramError),
}

impl From<net::Error> for AddError {
    fn from(error: net::Error) -> Self {
        Self::Net(error)
    }
}

/// Position of our program on clsact: one priority, and a handle per program.
fn filter(program: &str, ifindex: u32) -> Filter {
    let number = name::PROGRAMS.iter().position(|name| *name == program);
    Filter {
        ifindex,
        egress: direction(program, Place::Last) == TcAttachType::Egress,
        priority: PRIORITY,
        handle: number.unwrap_or_default() as u32 + 1,
        name: program.to_owned(),
    }
}

fn direction(program: &str, place: Place) -> TcAttachType {
    let leaves = [name::PORT_OUT, name::ENDPOINT_OUT].contains(&program);
    if leaves == (place != Place::Opposite) {
        TcAttachType::Egress
    } else {
        TcAttachType::Ingress
    }
}

/// Whether this error means that the kernel has no tcx.
fn no_tcx(error: &ProgramError) -> bool {
    let ProgramError::SyscallError(error) = error else {
        return false;
    };
    // E2BIG: the kernel does not know attributes of this length. ENOTSUPP is the kernel's own, 524.
    const ENOTSUPP: i32 = 524;
    let errno = error.io_error.raw_os_error().unwrap_or_default();
    errno == ENOTSUPP
        || matches!(
            Errno::from_raw(errno),
            Errno::EINVAL | Errno::EOPNOTSUPP | Errno::E2BIG | Errno::ENOSYS
        )
}

/// Attaches a loaded program: by `only`, or by what the kernel supports. With `links`, a directory, its link is pinned
/// there; if one is pinned already, its program is replaced.
pub(super) fn attach(
    classifier: &mut SchedClassifier,
    (ns, device): (&NetNs, &str),
    program: &str,
    place: Place,
    only: Option<AttachedBy>,
    links: Option<&Path>,
) -> Result<Attached> {
    let failed = |error: ProgramError| Error::Attach {
        program: program.to_owned(),
        device: device.to_owned(),
        netns: ns.name().to_owned(),
        error: Box::new(error),
    };
    let pin = links.map(|links| pin_of(links, ns, device, program, place));
    let pin = pin.transpose()?;
    if only != Some(AttachedBy::Clsact) {
        let replaced = replace(pin.as_deref(), |link: SchedClassifierLink| {
            let id = classifier.attach_to_link(link)?;
            classifier.take_link(id)
        });
        let is_new = replaced.is_none();
        let tcx = match replaced {
            Some(link) => Ok(link),
            None => ns.run(|| {
                let order = if place == Place::First {
                    LinkOrder::first()
                } else {
                    LinkOrder::default()
                };
                let (hook, options) = (direction(program, place), TcAttachOptions::TcxOrder(order));
                let id = classifier.attach_with_options(device, hook, options)?;
                classifier.take_link(id)
            }),
        };
        match (tcx, pin) {
            (Ok(link), Some(pin)) => return Attached::pinned(AttachedBy::Tcx, link, is_new, pin),
            (Ok(link), None) => return Ok(Attached::unpinned(AttachedBy::Tcx, Held::Tcx(link))),
            (Err(error), _) if only.is_none() && no_tcx(&error) => {
                if place == Place::Opposite {
                    return Err(Error::NoTcx);
                }
            }
            (Err(error), _) => return Err(failed(error)),
        }
    }
    match OnClsact::add(ns, device, program, classifier) {
        Ok(filter) => Ok(Attached::unpinned(AttachedBy::Clsact, Held::Filter(filter))),
        Err(AddError::Net(error)) => Err(error.into()),
        Err(AddError::Program(error)) => Err(failed(error)),
    }
}

/// Attaches a loaded XDP program in the device's driver; `links` as for [`attach`].
pub(super) fn attach_xdp(
    xdp: &mut Xdp,
    ns: &NetNs,
    device: &str,
    links: Option<&Path>,
) -> Result<std::result::Result<Attached, ProgramError>> {
    let pin = links.map(|links| pin_of(links, ns, device, name::ENDPOINT_XDP, Place::Last));
    let pin = pin.transpose()?;
    let replaced = replace(pin.as_deref(), |link: XdpLink| {
        let id = xdp.attach_to_link(link)?;
        xdp.take_link(id)
    });
    let is_new = replaced.is_none();
    let attached = match replaced {
        Some(link) => Ok(link),
        None => ns.run(|| {
            let id = xdp.attach(device, XdpMode::Driver)?;
            xdp.take_link(id)
        }),
    };
    Ok(match (attached, pin) {
        (Ok(link), Some(pin)) => Ok(Attached::pinned(AttachedBy::Xdp, link, is_new, pin)?),
        (Ok(link), None) => Ok(Attached::unpinned(AttachedBy::Xdp, Held::Xdp(link))),
        (Err(error), _) => Err(error),
    })
}

/// Our programs on a device's clsact; without an agent, those that a killed one left.
///
/// # Errors
///
/// The filters cannot be listed.
pub fn leftovers(nl: &Netlink, ifindex: u32) -> net::Result<Vec<Filter>> {
    let mut filters = nl.filters(ifindex)?;
    filters.retain(|filter| {
        filter.priority == PRIORITY && name::PROGRAMS.contains(&filter.name.as_str())
    });
    Ok(filters)
}

/// Removes one, and then an unused clsact: it is not known who created it.
///
/// # Errors
///
/// It cannot be removed.
pub fn remove_leftover(nl: &Netlink, filter: &Filter) -> net::Result<()> {
    nl.delete_filter(filter)?;
    if nl.filters(filter.ifindex)?.is_empty() {
        nl.delete_clsact(filter.ifindex)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aya::sys::SyscallError;
    use std::io;

    #[test]
    fn what_means_that_there_is_no_tcx() {
        for (errno, none) in [
            (libc::EINVAL, true),
            (libc::E2BIG, true),
            (524, true),
            (libc::EPERM, false),
            (libc::ENODEV, false),
        ] {
            let error = ProgramError::SyscallError(SyscallError {
                call: "bpf_mprog_attach",
                io_error: io::Error::from_raw_os_error(errno),
            });
            assert_eq!(no_tcx(&error), none, "{errno}");
        }
    }

    #[test]
    fn programs_of_one_hook_do_not_take_each_others_place() {
        let [a, b] = [name::PORT_OUT, name::ENDPOINT_OUT].map(|name| filter(name, 2));
        assert!(a.egress && b.egress && a.handle != b.handle);
        assert!(!filter(name::WIRE_END, 2).egress);
    }
}
