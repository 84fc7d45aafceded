//! Where flows are limited that come from behind a port. A tap has no queue for what arrives there: packets of limited
//! flows are redirected to an ifb, which has one, and then go on to the bridge.

use super::{Error, Result, discover::Space};
use crate::net::{self, Link, Netlink};

/// Names of ours; the number of the tap follows.
const PREFIX: &str = "ecn-ifb";

fn name(tap: u32) -> String {
    format!("{PREFIX}{tap}")
}

/// The ifb of a tap: the one that an agent has left, or a new one.
///
/// # Errors
///
/// The kernel has none.
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

/// Whether a device is one of ours.
pub(super) fn is_ours(link: &Link) -> bool {
    link.is_ifb() && link.name.starts_with(PREFIX)
}

/// Removes the ifb of a tap, with all that waits there.
pub(super) fn remove(nl: &Netlink, tap: u32) {
    let removed = nl
        .link(&name(tap))
        .and_then(|ifb| nl.delete_link(ifb.index));
    if let Err(error) = removed {
        // Its namespace may have gone.
        tracing::debug!("{error}");
    }
}
