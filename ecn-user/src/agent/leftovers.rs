//! What an agent leaves behind if it was killed, or configured to keep its state: root qdiscs, filters, pins.

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
};

use schemars::JsonSchema;
use serde::Serialize;

use super::{root::FQ_MAJOR, shaper, state::State};
use crate::{
    config::Agent,
    datapath,
    net::{self, Link, NetNs, Netlink, Qdisc, ROOT, filter::Filter, htb::ENDPOINT_MAJOR},
};

/// Something that was left behind.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Leftover {
    /// The root qdisc of an endpoint.
    Qdisc {
        /// Kind and handle, as in tc: `htb ec0e:`.
        qdisc: String,
        /// Its device.
        device: String,
        /// Network namespace; empty for this process's own.
        netns: String,
        /// Interface number of its device.
        ifindex: u32,
    },
    /// The ifb on which flows from behind a tap are limited.
    Shaper {
        /// Its name.
        device: String,
        /// Network namespace; empty for this process's own.
        netns: String,
        /// Its interface number.
        ifindex: u32,
    },
    /// A program on clsact.
    Filter {
        /// Its name.
        program: String,
        /// Its device.
        device: String,
        /// Network namespace; empty for this process's own.
        netns: String,
        /// Its position on clsact.
        #[serde(skip)]
        filter: Filter,
    },
    /// A directory of pinned maps, and of pinned links that keep programs attached.
    Pins {
        /// The directory.
        path: PathBuf,
    },
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, netns) = match self {
            Self::Qdisc {
                qdisc,
                device,
                netns,
                ..
            } => (format!("{qdisc} of {device}"), netns.as_str()),
            Self::Shaper { device, netns, .. } => (format!("device {device}"), netns.as_str()),
            Self::Filter {
                program,
                device,
                netns,
                ..
            } => (format!("program {program} of {device}"), netns.as_str()),
            Self::Pins { path } => (format!("pinned maps {}", path.display()), ""),
        };
        match netns {
            "" => f.write_str(&what),
            netns => write!(f, "{what} in namespace {netns}"),
        }
    }
}

/// All leftovers, in the order of removal; `except`: namespaces to ignore.
pub fn find(state: Option<&State>, except: &[String]) -> Vec<Leftover> {
    let mut found = queueing(state, except);
    let pins: BTreeSet<_> = state
        .map(|state| state.pin.clone())
        .into_iter()
        .chain([Agent::default().pin])
        .collect();
    let pins = pins.into_iter().filter(|path| is_ours(path));
    found.extend(pins.map(|path| Leftover::Pins { path }));
    found
}

/// Whether a directory of pins contains only what an agent puts there: the state file that names it could contain any
/// path.
fn is_ours(pin: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(pin) else {
        return false;
    };
    entries.all(|entry| entry.is_ok_and(|entry| datapath::is_version(&entry.file_name())))
}

/// Our root qdiscs and filters in the current and all named namespaces, and in those of the state's endpoints and
/// bridges.
fn queueing(state: Option<&State>, except: &[String]) -> Vec<Leftover> {
    let named = NetNs::list().unwrap_or_default();
    let endpoints = state.into_iter().flat_map(|state| &state.endpoints);
    let bridges = state.into_iter().flat_map(|state| &state.bridges);
    let configured = endpoints
        .map(|endpoint| endpoint.netns.clone())
        .chain(bridges.map(|bridge| bridge.netns.clone()));
    let places: BTreeSet<_> = named
        .into_iter()
        .chain(configured)
        .filter(|name| !except.contains(name))
        .chain([String::new()])
        .collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for place in places {
        // A namespace that no longer exists holds nothing.
        let Ok(netns) = open(&place) else {
            continue;
        };
        if seen.insert(netns.inum()) {
            found.extend(queueing_in(&netns, &place).unwrap_or_default());
        }
    }
    found
}

/// Opens a namespace as spelled in [`State`]; empty: this process's own.
pub(super) fn open(netns: &str) -> net::Result<NetNs> {
    NetNs::open(Some(netns).filter(|netns| !netns.is_empty()))
}

fn is_ours_at_root(qdisc: &Qdisc) -> bool {
    qdisc.parent == ROOT
        && matches!(
            (qdisc.major(), qdisc.kind.as_str()),
            (ENDPOINT_MAJOR, "htb") | (FQ_MAJOR, "fq" | "mq")
        )
}

fn queueing_in(netns: &NetNs, place: &str) -> net::Result<Vec<Leftover>> {
    let netlink = Netlink::open(netns)?;
    let qdiscs = netlink.qdiscs()?;
    let with_clsact = qdiscs.iter().filter(|qdisc| qdisc.kind == "clsact");
    let mut filters = Vec::new();
    for qdisc in with_clsact {
        filters.extend(datapath::leftovers(&netlink, qdisc.ifindex)?);
    }
    let links = netlink.links()?;
    // Their qdiscs are removed with them.
    let shapers: Vec<&Link> = links.iter().filter(|link| shaper::is_ours(link)).collect();
    let is_at_shaper = |of: &Qdisc| shapers.iter().any(|link| link.index == of.ifindex);
    let ours = |of: &Qdisc| is_ours_at_root(of) && !is_at_shaper(of);
    let ours: Vec<_> = qdiscs.into_iter().filter(ours).collect();
    let device = |ifindex: u32| {
        let link = links.iter().find(|link| link.index == ifindex);
        link.map_or_else(|| ifindex.to_string(), |link| link.name.clone())
    };
    let filters = filters.into_iter().map(|filter| Leftover::Filter {
        program: filter.name.clone(),
        device: device(filter.ifindex),
        netns: place.to_owned(),
        filter,
    });
    let qdiscs = ours.into_iter().map(|qdisc| Leftover::Qdisc {
        qdisc: format!("{} {:x}:", qdisc.kind, qdisc.major()),
        device: device(qdisc.ifindex),
        netns: place.to_owned(),
        ifindex: qdisc.ifindex,
    });
    let shapers = shapers.iter().map(|link| Leftover::Shaper {
        device: link.name.clone(),
        netns: place.to_owned(),
        ifindex: link.index,
    });
    Ok(filters.chain(qdiscs).chain(shapers).collect())
}

impl Leftover {
    /// Removes it; `state`: that of the agent that left it.
    ///
    /// # Errors
    ///
    /// It cannot be removed.
    pub fn remove(&self, state: Option<&State>) -> datapath::Result<()> {
        match self {
            Self::Qdisc { netns, ifindex, .. } => {
                let netlink = Netlink::open(&open(netns)?)?;
                netlink.delete_root_qdisc(*ifindex)?;
                let before = state.and_then(|state| state.gso_max_segs(netns, *ifindex));
                if let Some(segments) = before {
                    netlink.set_gso_max_segs(*ifindex, segments)?;
                }
                Ok(())
            }
            Self::Shaper { netns, ifindex, .. } => {
                Ok(Netlink::open(&open(netns)?)?.delete_link(*ifindex)?)
            }
            Self::Filter { netns, filter, .. } => Ok(datapath::remove_leftover(
                &Netlink::open(&open(netns)?)?,
                filter,
            )?),
            Self::Pins { path } => datapath::remove_pins(path),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_pins_are_ours() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("v1/maps")).unwrap();
        assert!(is_ours(folder.path()));
        fs::write(folder.path().join("notes"), "").unwrap();
        assert!(!is_ours(folder.path()));
        assert!(!is_ours(Path::new("/nowhere")));
    }
}
