//! Follows namespaces, bridges and endpoints as they appear and disappear.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use ecn_core::abi;
use nix::errno::Errno;

use super::{
    Error, Inner, Result,
    discover::{self, Qdiscs, Space, Spec},
    response_policy,
    state::{State, Waiting, WaitingFor},
};
use crate::{
    config::{self, Config},
    datapath,
    net::{Link, LinkChanges},
};

/// Delay before a failed setup is retried.
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// Qdiscs are listed at the longer of these intervals, the second one times the number of namespaces.
const QDISC_PERIOD: Duration = Duration::from_millis(200);
const QDISC_PERIOD_PER_NAMESPACE: Duration = Duration::from_millis(2);
/// Spare bridges beyond those configured, for reloads.
const SPARE_BRIDGES: u32 = 4;
/// Room for bridges per section with a pattern.
const BRIDGES_PER_PATTERN: u32 = 16;

/// A device and its namespace.
type Name = (Spec, String);

/// The numbers of bridges and endpoints in the maps. A device that reappears gets its previous number, and with it the
/// state of its flows.
pub(super) struct Numbers {
    bridges: Vec<Option<Name>>,
    endpoints: Vec<Option<Name>>,
}

impl Numbers {
    /// Devices that a previous agent has kept retain their numbers. Others that the configuration names are numbered
    /// from the start, in its order.
    pub(super) fn new(config: &Config, room_for_bridges: u32, kept: Option<&State>) -> Self {
        let bridges = config.bridges.iter();
        let bridges = bridges.map(|bridge| (bridge.netns.clone(), bridge.name.clone()));
        let endpoints = config.endpoints.iter();
        let endpoints = endpoints.map(|of| (of.netns.clone(), of.device.clone()));
        let spec = |netns: &String| Some(netns.clone()).filter(|netns| !netns.is_empty());
        let kept_bridges = kept.into_iter().flat_map(|state| &state.bridges);
        let kept_bridges = kept_bridges.map(|of| (of.number, (spec(&of.netns), of.name.clone())));
        let kept_endpoints = kept.into_iter().flat_map(|state| &state.endpoints);
        // Number 0 means no endpoint.
        let kept_endpoints =
            kept_endpoints.map(|of| (of.number - 1, (spec(&of.netns), of.device.clone())));
        Self {
            bridges: numbered(room_for_bridges, kept_bridges, bridges),
            endpoints: numbered(abi::ENDPOINTS - 1, kept_endpoints, endpoints),
        }
    }

    /// Maximum number of bridges.
    pub(super) fn bridges(&self) -> usize {
        self.bridges.len()
    }

    /// A bridge's number.
    pub(super) fn of_bridge(&mut self, name: Name, is_used: impl Fn(u32) -> bool) -> Option<u32> {
        claim(&mut self.bridges, name, |at| is_used(at as u32)).map(|at| at as u32)
    }

    /// An endpoint's number, from 1.
    pub(super) fn of_endpoint(&mut self, name: Name, is_used: impl Fn(u32) -> bool) -> Option<u32> {
        claim(&mut self.endpoints, name, |at| is_used(at as u32 + 1)).map(|at| at as u32 + 1)
    }
}

fn numbered(
    most: u32,
    kept: impl Iterator<Item = (u32, Name)>,
    names: impl Iterator<Item = Name>,
) -> Vec<Option<Name>> {
    let is_plain = |(netns, name): &Name| {
        !config::is_pattern(name) && !netns.as_deref().is_some_and(config::is_pattern)
    };
    let mut slots = vec![None; most as usize];
    for (number, name) in kept {
        slots[number as usize] = Some(name);
    }
    for name in names.filter(is_plain) {
        claim(&mut slots, name, |_| true);
    }
    slots
}

fn claim(slots: &mut [Option<Name>], name: Name, is_used: impl Fn(usize) -> bool) -> Option<usize> {
    let holds_name = |slot: &Option<Name>| slot.as_ref() == Some(&name);
    let at = (slots.iter().position(holds_name))
        .or_else(|| slots.iter().position(Option::is_none))
        .or_else(|| (0..slots.len()).find(|at| !is_used(*at)))?;
    slots[at] = Some(name);
    Some(at)
}

/// A bridge or an endpoint that could not be set up.
pub(super) struct Failed {
    error: Error,
    again: Instant,
}

impl Inner {
    /// Brings bridges and endpoints up to date with the system. Returns whether anything has changed.
    pub(super) fn follow(&mut self) -> bool {
        let mut changed = self.close_spaces();
        let mut unlisted = self.open_spaces();
        let mut changes: BTreeMap<Spec, LinkChanges> = BTreeMap::new();
        for (spec, space) in &self.spaces {
            match space.changes() {
                Ok(found) => {
                    if found.of_links() {
                        unlisted.insert(spec.clone());
                    }
                    changes.insert(spec.clone(), found);
                }
                Err(error) => tracing::warn!("{error}"),
            }
        }
        let qdiscs = self.list_qdiscs();
        let due = |failed: &Failed| failed.again <= Instant::now();
        let again = self.failed.iter().filter(|(_, failed)| due(failed));
        unlisted.extend(again.map(|((_, (spec, _)), _)| spec.clone()));

        let numbers: Vec<u32> = self.bridges.keys().copied().collect();
        for spec in &unlisted {
            changed |= self.sync_devices(spec, changes.get(spec), WaitingFor::Bridge);
        }
        let nothing = LinkChanges::default();
        for number in numbers {
            let spec = self.bridges.get(&number).map(|b| b.space.spec.clone());
            let listed = spec.as_ref().and_then(|spec| qdiscs.get(spec));
            let changes = spec.and_then(|spec| changes.get(&spec)).unwrap_or(&nothing);
            changed |= self.follow_bridge(number, changes, listed);
        }
        if self.find_peers() {
            let of_peers = self.bridges.values().flat_map(|b| b.peers.values());
            unlisted.extend(of_peers.map(|peer| peer.spec.clone()));
            unlisted.extend(self.open_spaces());
        }
        for spec in &unlisted {
            changed |= self.sync_devices(spec, changes.get(spec), WaitingFor::Endpoint);
        }
        changed |= self.watch_roots(&qdiscs);
        if changed || !unlisted.is_empty() {
            let waiting = self.missing_devices();
            changed |= mem::replace(&mut self.waiting, waiting) != self.waiting;
        }
        changed
    }

    /// The qdiscs of all namespaces, if they are due to be listed.
    fn list_qdiscs(&mut self) -> BTreeMap<Spec, Qdiscs> {
        let period = QDISC_PERIOD.max(QDISC_PERIOD_PER_NAMESPACE * self.spaces.len() as u32);
        if self.qdiscs_listed.elapsed() < period {
            return BTreeMap::new();
        }
        self.qdiscs_listed = Instant::now();
        let spaces = self.spaces.iter();
        let listed = spaces.filter_map(|(spec, space)| match space.qdiscs() {
            Ok(qdiscs) => Some((spec.clone(), qdiscs)),
            Err(error) => {
                tracing::warn!("{error}");
                None
            }
        });
        listed.collect()
    }

    /// The namespaces in which managed devices exist or may appear.
    fn wanted_spaces(&self) -> BTreeSet<Spec> {
        let mut wanted = discover::all_namespaces(&self.config);
        let peers = self.bridges.values().flat_map(|b| b.peers.values());
        wanted.extend(peers.map(|peer| peer.spec.clone()));
        wanted
    }

    /// Closes namespaces that have lost their names or are not needed any more. Returns whether there were any.
    fn close_spaces(&mut self) -> bool {
        let wanted = self.wanted_spaces();
        let over = |(spec, space): (&Spec, &Arc<Space>)| {
            (!wanted.contains(spec) || !space.is_named()).then(|| spec.clone())
        };
        let over: Vec<Spec> = self.spaces.iter().filter_map(over).collect();
        for spec in &over {
            let endpoints = self.endpoints.iter();
            let inside = endpoints.filter(|(_, endpoint)| endpoint.space.spec == *spec);
            for number in inside.map(|(number, _)| *number).collect::<Vec<_>>() {
                // If only the name was removed, devices are restored.
                self.remove_endpoint(number, true);
                self.shared.is_alive();
            }
            let bridges = self.bridges.iter();
            let inside = bridges.filter(|(_, bridge)| bridge.space.spec == *spec);
            for number in inside.map(|(number, _)| *number).collect::<Vec<_>>() {
                self.remove_bridge(number);
            }
            for bridge in self.bridges.values_mut() {
                bridge.forget_peers_in(spec);
            }
            self.failed.retain(|(_, (of, _)), _| of != spec);
            self.spaces.remove(spec);
        }
        !over.is_empty()
    }

    /// Opens namespaces that have appeared, and returns them.
    fn open_spaces(&mut self) -> BTreeSet<Spec> {
        let mut opened = BTreeSet::new();
        let mut closed = mem::take(&mut self.closed);
        for spec in self.wanted_spaces() {
            if self.spaces.contains_key(&spec) {
                continue;
            }
            match Space::open(&spec) {
                Ok(space) => {
                    self.spaces.insert(spec.clone(), Arc::new(space));
                    opened.insert(spec);
                }
                // `ip netns add` creates the file first, and mounts the namespace on it later (EINVAL until then).
                Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::EINVAL)) => {}
                Err(error) => {
                    if closed.remove(&spec).is_none() && !self.shared.is_starting() {
                        tracing::warn!("{error}");
                    }
                    self.closed.insert(spec, error);
                }
            }
        }
        opened
    }

    /// Sets up and removes what has appeared and disappeared in a namespace. Returns whether anything has changed.
    fn sync_devices(
        &mut self,
        spec: &Spec,
        changes: Option<&LinkChanges>,
        what: WaitingFor,
    ) -> bool {
        let Some(space) = self.spaces.get(spec).map(Arc::clone) else {
            return false;
        };
        let links = match space.nl.links() {
            Ok(links) => links,
            Err(error) => {
                tracing::warn!("{error}");
                return false;
            }
        };
        // By now another device may have the ifindex, and even the name.
        let removed: BTreeSet<u32> = changes.into_iter().flat_map(LinkChanges::removed).collect();
        let is_there = |ifindex| links.iter().any(|link| link.index == ifindex);
        let mut changed = false;
        match what {
            WaitingFor::Bridge => {
                for (number, configured) in self.bridges_in(&space, &links) {
                    let ifindex = self.bridges[&number].ifindex;
                    if !configured || removed.contains(&ifindex) {
                        self.remove_bridge(number);
                        self.shared.is_alive();
                        changed = true;
                    }
                }
            }
            WaitingFor::Endpoint => {
                for (number, configured) in self.endpoints_in(&space, &links) {
                    let ifindex = self.endpoints[&number].link.index;
                    if !configured || removed.contains(&ifindex) {
                        let is_there = is_there(ifindex) && !removed.contains(&ifindex);
                        self.remove_endpoint(number, is_there);
                        self.shared.is_alive();
                        changed = true;
                        continue;
                    }
                    let Some(link) = links.iter().find(|link| link.index == ifindex) else {
                        continue;
                    };
                    match self.follow_mtu(number, link.mtu) {
                        Ok(is_new) => changed |= is_new,
                        Err(error) => tracing::warn!("{error}"),
                    }
                }
            }
        }
        for link in &links {
            changed |= match what {
                WaitingFor::Bridge => self.set_up_bridge(&space, link),
                WaitingFor::Endpoint => self.set_up_endpoint(&space, link),
            };
        }
        let named = |name: &str| links.iter().any(|link| link.name == name);
        self.failed
            .retain(|(kind, (of, name)), _| *kind != what || of != spec || named(name));
        changed
    }

    /// Bridges in a namespace, and whether each is still configured as it is set up.
    fn bridges_in(&self, space: &Space, links: &[Link]) -> Vec<(u32, bool)> {
        let inside = self
            .bridges
            .iter()
            .filter(|(_, b)| b.space.spec == space.spec);
        let configured = inside.map(|(&number, bridge)| {
            let link = links.iter().find(|link| link.index == bridge.ifindex);
            let configured =
                link.and_then(|link| discover::bridge(&self.config, &space.spec, link));
            (
                number,
                configured.is_some_and(|configured| configured.same_queues(&bridge.config)),
            )
        });
        configured.collect()
    }

    /// Endpoints in a namespace, and whether each is still configured as it is set up.
    fn endpoints_in(&self, space: &Space, links: &[Link]) -> Vec<(u32, bool)> {
        let inside = self
            .endpoints
            .iter()
            .filter(|(_, e)| e.space.spec == space.spec);
        let configured = inside.map(|(&number, endpoint)| {
            let link = links.iter().find(|link| link.index == endpoint.link.index);
            let configured = link.and_then(|link| self.endpoint_config(space, link));
            let in_place = link.is_some_and(|link| endpoint.is_in_place(link, links));
            let same =
                in_place && configured.is_some_and(|configured| configured == endpoint.config);
            (number, same)
        });
        configured.collect()
    }

    /// The configuration of a device as an endpoint, if it is one.
    fn endpoint_config(&self, space: &Space, link: &Link) -> Option<config::Endpoint> {
        discover::endpoint(&self.config, &space.spec, link).or_else(|| {
            let mut peers = self
                .bridges
                .values()
                .flat_map(|bridge| bridge.peers.values());
            let is_peer = peers.any(|peer| peer.spec == space.spec && peer.ifindex == link.index);
            let mut with_peers = self.bridges.values().filter(|b| b.config.peers);
            let is_tap_there = link.is_tap()
                && self.can_limit_taps
                && with_peers.any(|b| b.space.spec == space.spec && link.master == Some(b.ifindex));
            // A link between two bridges does not lead to a host.
            let mut bridges = self.bridges.values();
            let is_port =
                bridges.any(|b| b.space.spec == space.spec && link.master == Some(b.ifindex));
            (is_peer && !is_port || is_tap_there).then(|| config::Endpoint {
                netns: space.spec.clone(),
                ..config::Endpoint::new(link.name.clone())
            })
        })
    }

    fn set_up_bridge(&mut self, space: &Arc<Space>, link: &Link) -> bool {
        let Some(config) = discover::bridge(&self.config, &space.spec, link) else {
            return false;
        };
        // A namespace may have two names.
        let is_it = |b: &super::bridges::Bridge| {
            b.space.ns.inum() == space.ns.inum() && b.ifindex == link.index
        };
        if self.bridges.values().any(is_it) {
            return false;
        }
        let added = self.add_bridge(config, space, link);
        self.record_setup(WaitingFor::Bridge, space, link, added)
    }

    fn set_up_endpoint(&mut self, space: &Arc<Space>, link: &Link) -> bool {
        let Some(config) = self.endpoint_config(space, link) else {
            return false;
        };
        let is_it = |e: &super::endpoints::Endpoint| {
            e.space.ns.inum() == space.ns.inum() && e.link.index == link.index
        };
        if self.endpoints.values().any(is_it) {
            return false;
        }
        let added = self.add_endpoint(config, space, link);
        self.shared.is_alive();
        if let Err(error @ (Error::NoIfb { .. } | Error::Datapath(datapath::Error::NoTcx))) = &added
            && discover::endpoint(&self.config, &space.spec, link).is_none()
        {
            tracing::warn!("{error}: `peers` leaves taps out");
            self.can_limit_taps = false;
            return false;
        }
        self.record_setup(WaitingFor::Endpoint, space, link, added)
    }

    /// Records whether a device could be set up. Each failure is logged once; at the start, by
    /// [`Inner::first_failure`].
    fn record_setup(
        &mut self,
        kind: WaitingFor,
        space: &Space,
        link: &Link,
        added: Result<()>,
    ) -> bool {
        let name = (kind, (space.spec.clone(), link.name.clone()));
        let before = self.failed.remove(&name);
        let Err(error) = added else {
            self.log_arrival(kind, space, link);
            return true;
        };
        let is_new = before.is_none_or(|before| before.error.to_string() != error.to_string());
        if is_new && !self.shared.is_starting() {
            tracing::warn!("{error}");
        }
        let again = Instant::now() + TRY_AGAIN;
        self.failed.insert(name, Failed { error, again });
        false
    }

    /// Logs what was set up after the start, at whose end everything is logged.
    fn log_arrival(&self, kind: WaitingFor, space: &Space, link: &Link) {
        if self.shared.is_starting() {
            return;
        }
        match kind {
            WaitingFor::Bridge => {
                let mut bridges = self.bridges.values();
                let found = bridges.find(|b| b.space.spec == space.spec && b.ifindex == link.index);
                if let Some(bridge) = found {
                    tracing::info!("{}", bridge.state());
                }
            }
            WaitingFor::Endpoint => {
                let mut endpoints = self.endpoints.values();
                let found =
                    endpoints.find(|e| e.space.spec == space.spec && e.link.index == link.index);
                if let Some(endpoint) = found {
                    tracing::info!("{}", endpoint.state(&self.config, &self.shared));
                }
            }
        }
    }

    /// What is configured but does not exist, or could not be set up.
    fn missing_devices(&self) -> Vec<Waiting> {
        let bridges = self.bridges.values();
        let bridges = bridges.map(|b| (&b.space.spec, b.config.name.as_str()));
        let endpoints = self.endpoints.values();
        let endpoints = endpoints.map(|e| (&e.space.spec, e.link.name.as_str()));
        let failed = self.failed.keys();
        let mut waiting = discover::waiting(
            &self.config,
            // Devices that failed exist.
            bridges.chain(failed.clone().filter_map(|(kind, (spec, name))| {
                (*kind == WaitingFor::Bridge).then_some((spec, name.as_str()))
            })),
            endpoints.chain(failed.filter_map(|(kind, (spec, name))| {
                (*kind == WaitingFor::Endpoint).then_some((spec, name.as_str()))
            })),
        );
        waiting.extend(
            self.failed
                .iter()
                .map(|((kind, (spec, name)), failed)| Waiting {
                    kind: *kind,
                    name: name.clone(),
                    netns: spec.clone().unwrap_or_default(),
                    why: failed.error.to_string(),
                }),
        );
        for waits in &mut waiting {
            let spec = Some(waits.netns.clone()).filter(|netns| !netns.is_empty());
            if let Some(error) = self.closed.get(&spec) {
                waits.why = error.to_string();
            }
        }
        for bridge in self.bridges.values() {
            waiting.extend(bridge.missing_peers());
        }
        waiting
    }

    /// The error of the first device or namespace that exists but could not be set up. Logs the others.
    pub(super) fn first_failure(&mut self) -> Result<()> {
        let closed = mem::take(&mut self.closed).into_values().map(Error::from);
        let failed = mem::take(&mut self.failed).into_values();
        let mut errors = closed.chain(failed.map(|failed| failed.error));
        let Some(first) = errors.next() else {
            return Ok(());
        };
        for error in errors {
            tracing::warn!("{error}");
        }
        Err(first)
    }

    /// Applies a new configuration without interrupting traffic, completely or not at all.
    pub(super) fn reload(&mut self, new: Config) -> Result<()> {
        let changed = changed_while_running(&self.config, &new);
        if !changed.is_empty() {
            return Err(Error::Configuration(format!(
                "{} cannot change while the agent runs: restart it for that",
                changed.join(", ")
            )));
        }
        if new.bridges.len() > self.numbers.bridges() {
            return Err(Error::Configuration(format!(
                "there is room for {} bridges until the agent is restarted",
                self.numbers.bridges()
            )));
        }
        response_policy(&new.response)?;
        let before: Vec<_> = self.failed.keys().cloned().collect();
        let old = mem::replace(&mut self.config, new);
        let applied = self.apply().and_then(|()| {
            let fresh = self
                .failed
                .keys()
                .find(|name| !before.contains(name))
                .cloned();
            match fresh.and_then(|name| self.failed.remove(&name)) {
                Some(failed) => Err(failed.error),
                None => Ok(()),
            }
        });
        if applied.is_err() {
            self.config = old;
            if let Err(error) = self.apply() {
                tracing::error!("{error}");
            }
        }
        applied
    }

    /// Applies the current configuration.
    pub(super) fn apply(&mut self) -> Result<()> {
        self.shared.set_timing(&self.config);
        // Retries everything that failed.
        self.failed.clear();
        let specs: Vec<Spec> = self.spaces.keys().cloned().collect();
        for spec in &specs {
            self.sync_devices(spec, None, WaitingFor::Bridge);
        }
        for number in self.bridges.keys().copied().collect::<Vec<_>>() {
            if let Some(bridge) = self.bridges.get_mut(&number) {
                let link = bridge.space.nl.link(&bridge.config.name);
                let configured =
                    |link: Link| discover::bridge(&self.config, &bridge.space.spec, &link);
                if let Some(configured) = link.ok().and_then(configured) {
                    bridge.config = configured;
                    if !bridge.config.peers {
                        bridge.peers.clear();
                    }
                }
            }
            self.sync_bridge(number)?;
        }
        for spec in &specs {
            self.sync_devices(spec, None, WaitingFor::Endpoint);
        }
        self.follow();
        // Even if nothing else has changed.
        self.waiting = self.missing_devices();
        self.update_endpoints()
    }
}

/// Keys that differ, of those that are fixed while the agent runs.
fn changed_while_running(old: &Config, new: &Config) -> Vec<&'static str> {
    let (was, is) = (&old.agent, &new.agent);
    let changed = [
        ("`max` of [flow]", old.flow.max != new.flow.max),
        ("`keep` of [agent]", was.keep != is.keep),
        ("`pin` of [agent]", was.pin != is.pin),
        ("`cgroup` of [agent]", was.cgroup != is.cgroup),
        (
            "`listen` of [metrics]",
            old.metrics.listen != new.metrics.listen,
        ),
    ];
    let changed = changed.into_iter().filter(|(_, differs)| *differs);
    changed.map(|(key, _)| key).collect()
}

/// Number of bridges for which the maps have room.
pub(super) fn room_for_bridges(config: &Config) -> u32 {
    let of = |bridge: &config::Bridge| {
        let netns = bridge.netns.as_deref().unwrap_or_default();
        if config::is_pattern(&bridge.name) || config::is_pattern(netns) {
            BRIDGES_PER_PATTERN
        } else {
            1
        }
    };
    SPARE_BRIDGES + config.bridges.iter().map(of).sum::<u32>()
}

/// Number of endpoints for which the maps have room beside flows.
pub(super) fn room_for_endpoints(config: &Config) -> u32 {
    let is_pattern = |of: &config::Endpoint| {
        config::is_pattern(&of.device) || of.netns.as_deref().is_some_and(config::is_pattern)
    };
    if config.bridges.iter().any(|of| of.peers) || config.endpoints.iter().any(is_pattern) {
        abi::ENDPOINTS
    } else {
        config.endpoints.len() as u32
    }
}
