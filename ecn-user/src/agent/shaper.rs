//! Limits for flows from behind a port. A tap has no queue for the packets that it receives: those of limited flows are
//! redirected to an ifb, which has one, and then continue to the bridge.

use super::{Error, Result, discover::Space};
use crate::net::{self, Link, Netlink};

/// Prefix of our ifbs' names; the index of the tap follows.
const PREFIX: &str = "ecn-ifb";

fn name(tap: u32) -> String {
    format!("{PREFIX}{tap}")
}

/// The ifb of a tap: one that an agent left, or a new one.
///
/// # Errors
///
/// The kernel does not support ifb devices.
pub(super) fn open(space: &Space, tap: &Link) -> Result<Link> {
    let name = name(tap.index);
    let ifb = match space.nl.link(&name) {
        Err(net::Error::NoLink { .. }) => space.nl.add_ifb(&name),
        found => found,
    };
    let ifb = ifb.map_err(|error| Error::NoIfb {
        tap: tap.name.clone(),
        error,
    })?;
    space.nl.set_up(ifb.index)?;
    Ok(ifb)
}

/// Whether a device is one of our ifbs.
pub(super) fn is_ours(link: &Link) -> bool {
    link.is_ifb() && link.name.starts_with(PREFIX)
}

/// Removes the ifb of a tap, with all packets that wait there.
pub(super) fn remove(nl: &Netlink, tap: u32) {
    let removed = nl
        .link(&name(tap))
        .and_then(|ifb| nl.delete_link(ifb.index));
    if let Err(error) = removed {
        // Its namespace may have been removed.
        tracing::debug!("{error}");
    }
}
