//! Which of the existing namespaces and devices a configuration matches.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use super::state::{Waiting, WaitingFor};
use crate::{
    config::{self, Config, is_pattern, netns_path},
    net::{self, Link, LinkChanges, NetNs, Netlink, Qdisc, Watch, netns},
};

/// A namespace as the configuration names it; `None`: the agent's own.
pub(super) type Spec = Option<String>;

/// The qdiscs of a namespace, by device index.
pub(super) type Qdiscs = HashMap<u32, Vec<Qdisc>>;

/// Where Docker names the namespaces of containers.
const DOCKER: &str = "/run/docker/netns";

/// An open namespace.
///
/// While it is open, the namespace and its devices persist, even without a name. So it has to be dropped when
/// [`Space::is_named`] returns false.
pub(super) struct Space {
    pub(super) spec: Spec,
    pub(super) ns: NetNs,
    pub(super) nl: Netlink,
    watch: Watch,
}

impl Space {
    pub(super) fn open(spec: &Spec) -> net::Result<Self> {
        let ns = NetNs::open(spec.as_deref())?;
        Ok(Self {
            spec: spec.clone(),
            // Before anything is listed, so that no change is missed.
            watch: Watch::open(&ns)?,
            nl: Netlink::open(&ns)?,
            ns,
        })
    }

    /// Whether its name still refers to it.
    pub(super) fn is_named(&self) -> bool {
        let Some(spec) = &self.spec else { return true };
        fs::metadata(netns_path(spec)).is_ok_and(|found| found.ino() as u32 == self.ns.inum())
    }

    /// Its name in the state; empty: the agent's own.
    pub(super) fn name(&self) -> &str {
        self.spec.as_deref().unwrap_or_default()
    }

    pub(super) fn changes(&self) -> net::Result<LinkChanges> {
        self.watch.drain()
    }

    /// The current qdiscs of its devices.
    pub(super) fn qdiscs(&self) -> net::Result<Qdiscs> {
        let mut all = Qdiscs::new();
        for qdisc in self.nl.qdiscs()? {
            all.entry(qdisc.ifindex).or_default().push(qdisc);
        }
        Ok(all)
    }
}

/// Directories that contain names of namespaces.
pub(super) const DIRECTORIES: [&str; 2] = [netns::DIRECTORY, DOCKER];

/// The namespaces that a name or pattern matches. A pattern matches those that exist now.
pub(super) fn namespaces(netns: Option<&str>) -> Vec<Spec> {
    let Some(netns) = netns else {
        return vec![None];
    };
    if !is_pattern(netns) {
        return vec![Some(netns.to_owned())];
    }
    let path = netns_path(netns);
    let found = glob::glob(&path.to_string_lossy()).into_iter().flatten();
    let spelled = |path: PathBuf| {
        let whole = netns.contains('/');
        let text = if whole {
            path.as_os_str()
        } else {
            path.file_name()?
        };
        text.to_str().map(|text| Some(text.to_owned()))
    };
    found.flatten().filter_map(spelled).collect()
}

/// All namespaces that the configuration names.
pub(super) fn all_namespaces(config: &Config) -> BTreeSet<Spec> {
    let bridges = config.bridges.iter().map(|bridge| &bridge.netns);
    let endpoints = config.endpoints.iter().map(|endpoint| &endpoint.netns);
    let named: BTreeSet<_> = bridges.chain(endpoints).collect();
    let meant = named
        .into_iter()
        .flat_map(|netns| namespaces(netns.as_deref()));
    meant.collect()
}

/// Whether a name or pattern matches a namespace.
fn means(netns: Option<&str>, spec: &Spec) -> bool {
    match (netns, spec) {
        (None, None) => true,
        (Some(netns), Some(spec)) if netns.contains('/') == spec.contains('/') => {
            config::means(netns, spec)
        }
        _ => false,
    }
}

/// The configuration of a bridge: the first section that matches it.
pub(super) fn bridge(config: &Config, spec: &Spec, link: &Link) -> Option<config::Bridge> {
    let is_bridge = link.kind.as_deref() == Some("bridge");
    let of = config.bridges.iter().find(|bridge| {
        // If the name is not a pattern, a device of another kind is an error, which is reported.
        (is_bridge || bridge.name == link.name)
            && means(bridge.netns.as_deref(), spec)
            && config::means(&bridge.name, &link.name)
    })?;
    Some(config::Bridge {
        name: link.name.clone(),
        netns: spec.clone(),
        ..of.clone()
    })
}

/// The configuration of an endpoint: the first section that matches the device.
pub(super) fn endpoint(config: &Config, spec: &Spec, link: &Link) -> Option<config::Endpoint> {
    let of = config.endpoints.iter().find(|endpoint| {
        means(endpoint.netns.as_deref(), spec) && config::means(&endpoint.device, &link.name)
    })?;
    Some(config::Endpoint {
        device: link.name.clone(),
        netns: spec.clone(),
        ..of.clone()
    })
}

/// The veth peer of a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Peer {
    /// Its namespace.
    pub(super) spec: Spec,
    /// Its index there.
    pub(super) ifindex: u32,
}

/// The veth peers of devices in `space`, by the devices' ifindexes. Peers in a namespace that has neither a name nor a
/// process are not found.
pub(super) fn peers(space: &Space, links: &[&Link]) -> BTreeMap<u32, Peer> {
    let mut found = BTreeMap::new();
    let mut wanted: BTreeMap<i32, Vec<(u32, u32)>> = BTreeMap::new();
    for link in links {
        let Some(peer) = link.peer.filter(|_| link.kind.as_deref() == Some("veth")) else {
            continue;
        };
        match link.peer_nsid {
            None => {
                let spec = space.spec.clone();
                found.insert(
                    link.index,
                    Peer {
                        spec,
                        ifindex: peer,
                    },
                );
            }
            Some(nsid) => wanted.entry(nsid).or_default().push((link.index, peer)),
        }
    }
    let mut seen = BTreeSet::new();
    if let Ok(own) = NetNs::current()
        && let Some(nsid) = space.nl.nsid(&own).ok().flatten()
    {
        for (port, ifindex) in wanted.remove(&nsid).unwrap_or_default() {
            found.insert(
                port,
                Peer {
                    spec: None,
                    ifindex,
                },
            );
        }
    }
    for path in places() {
        if wanted.is_empty() {
            break;
        }
        // A namespace may have several paths.
        if !fs::metadata(&path).is_ok_and(|at| seen.insert(at.ino())) {
            continue;
        }
        let text = path.to_string_lossy().into_owned();
        let Ok(ns) = NetNs::from_path(&path) else {
            continue;
        };
        let Some(nsid) = space.nl.nsid(&ns).ok().flatten() else {
            continue;
        };
        let name = path.strip_prefix(netns::DIRECTORY).ok();
        let spec = Some(name.map_or(text, |name| name.to_string_lossy().into_owned()));
        for (port, ifindex) in wanted.remove(&nsid).unwrap_or_default() {
            let spec = spec.clone();
            found.insert(port, Peer { spec, ifindex });
        }
    }
    found
}

/// The entries of a directory, sorted; empty if it does not exist.
fn list(directory: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Files of all namespaces: named ones first, then those of processes.
fn places() -> impl Iterator<Item = PathBuf> {
    let processes = || {
        let mut pids: Vec<u32> = list("/proc")
            .iter()
            .filter_map(|path| path.file_name()?.to_str()?.parse().ok())
            .collect();
        pids.sort_unstable();
        pids.into_iter()
            .map(|pid| Path::new("/proc").join(pid.to_string()).join("ns/net"))
    };
    let named = DIRECTORIES.into_iter().flat_map(list);
    // Evaluated only if the named namespaces do not suffice.
    named.chain(std::iter::once_with(processes).flatten())
}

/// What a configuration matches on this machine.
#[derive(Debug, Default)]
pub struct Survey {
    /// Bridges, with their namespaces and the settings of their sections.
    pub bridges: Vec<config::Bridge>,
    /// Devices that `[[endpoint]]` sections match.
    pub endpoints: Vec<config::Endpoint>,
    /// Other endpoints: the hosts at the ports of bridges with `peers`.
    pub peers: Vec<config::Endpoint>,
    /// What is configured but does not exist.
    pub waiting: Vec<Waiting>,
}

/// Finds what a configuration matches, without changing anything.
///
/// # Errors
///
/// An existing namespace cannot be examined.
pub fn survey(config: &Config) -> net::Result<Survey> {
    let mut survey = Survey::default();
    for spec in all_namespaces(config) {
        let space = match Space::open(&spec) {
            Ok(space) => space,
            Err(net::Error::NoNamespace { .. }) => continue,
            Err(error) => return Err(error),
        };
        let links = space.nl.links()?;
        for link in &links {
            let Some(bridge) = bridge(config, &spec, link) else {
                continue;
            };
            if bridge.peers {
                let ports = links.iter().filter(|of| of.master == Some(link.index));
                survey
                    .peers
                    .extend(hosts(config, &space, &ports.collect::<Vec<_>>()));
            }
            survey.bridges.push(bridge);
        }
        let endpoints = links
            .iter()
            .filter_map(|link| endpoint(config, &spec, link));
        survey.endpoints.extend(endpoints);
    }
    let bridges = survey.bridges.iter().map(|b| (&b.netns, b.name.as_str()));
    let endpoints = survey
        .endpoints
        .iter()
        .map(|e| (&e.netns, e.device.as_str()));
    survey.waiting = waiting(config, bridges, endpoints);
    let listed = &survey.endpoints;
    let is_listed = |of: &config::Endpoint| {
        let mut listed = listed.iter();
        listed.any(|e| (&e.netns, &e.device) == (&of.netns, &of.device))
    };
    survey.peers.retain(|peer| !is_listed(peer));
    Ok(survey)
}

/// The endpoints of those hosts at these ports that are on this machine.
fn hosts(config: &Config, space: &Space, ports: &[&Link]) -> Vec<config::Endpoint> {
    let endpoint = |netns: &Spec, device: &str| config::Endpoint {
        netns: netns.clone(),
        ..config::Endpoint::new(device)
    };
    let taps = ports.iter().filter(|port| port.is_tap());
    let mut hosts: Vec<_> = taps.map(|tap| endpoint(&space.spec, &tap.name)).collect();
    for peer in peers(space, ports).into_values() {
        let links = || Netlink::open(&NetNs::open(peer.spec.as_deref())?)?.links();
        // The container may have been removed since.
        let Ok(links) = links() else {
            continue;
        };
        let link = links.iter().find(|link| link.index == peer.ifindex);
        // A link between two bridges does not lead to a host.
        let is_host = |link: &&Link| {
            let mut masters = links.iter().filter(|of| link.master == Some(of.index));
            !masters.any(|of| bridge(config, &peer.spec, of).is_some())
        };
        let link = link.filter(is_host);
        hosts.extend(link.map(|link| endpoint(&peer.spec, &link.name)));
    }
    hosts
}

/// The sections of a configuration that match nothing.
pub(super) fn waiting<'a>(
    config: &Config,
    bridges: impl Iterator<Item = (&'a Spec, &'a str)>,
    endpoints: impl Iterator<Item = (&'a Spec, &'a str)>,
) -> Vec<Waiting> {
    let (bridges, endpoints): (Vec<_>, Vec<_>) = (bridges.collect(), endpoints.collect());
    let is_there = |found: &[(&Spec, &str)], netns: &Option<String>, name: &str| {
        let mut found = found.iter();
        found.any(|(spec, n)| means(netns.as_deref(), spec) && config::means(name, n))
    };
    let mut waiting = Vec::new();
    let mut add = |kind, netns: &Option<String>, name: &str| {
        waiting.push(Waiting {
            kind,
            name: name.to_owned(),
            netns: netns.clone().unwrap_or_default(),
            why: why_not(netns.as_deref(), name),
        });
    };
    for of in &config.bridges {
        if !is_there(&bridges, &of.netns, &of.name) {
            add(WaitingFor::Bridge, &of.netns, &of.name);
        }
    }
    for of in &config.endpoints {
        if !is_there(&endpoints, &of.netns, &of.device) {
            add(WaitingFor::Endpoint, &of.netns, &of.device);
        }
    }
    waiting
}

/// Why a section matches nothing.
fn why_not(netns: Option<&str>, name: &str) -> String {
    if let Some(netns) = netns {
        let path = netns_path(netns);
        if is_pattern(netns) {
            if namespaces(Some(netns)).is_empty() {
                return format!("no namespace matches {}", path.display());
            }
        } else if !path.exists() {
            return format!("there is no namespace {}", path.display());
        }
    }
    if is_pattern(name) {
        "no device matches".to_owned()
    } else {
        "there is no such device".to_owned()
    }
}
