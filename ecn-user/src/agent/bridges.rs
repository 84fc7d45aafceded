//! Ports of bridges, which appear, disappear, and change their index.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use ecn_core::{
    abi::{self, DeviceKey, PortAction, name},
    marking, vqueue,
};

use super::{
    Error, Inner, Result, backward_policy, copy,
    discover::{self, Peer, Qdiscs, Space, Spec},
    health::{PortQueue, PortReading, Subject},
    marking_policy,
    state::{self, Waiting, WaitingFor},
};
use crate::{
    config::{self, FRAME_BYTES, MarkAt},
    datapath::{self, Attached, BridgeView, Place},
    net::{Link, LinkChanges, NetNs, Netlink, ROOT, ethtool::Ethtool},
    units::Rate,
};

/// Delay before missing veth peers are searched for again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// An existing bridge and its ports.
pub(super) struct Bridge {
    number: u32,
    /// Its configuration section, with patterns replaced by the matched names.
    pub(super) config: config::Bridge,
    pub(super) space: Arc<Space>,
    pub(super) ifindex: u32,
    mac: Option<[u8; 6]>,
    ports: BTreeMap<u32, Port>,
    /// Port slots kept by a previous agent, until all of them are found or given up.
    kept_slots: BTreeSet<u32>,
    /// Veth peers of its ports that are endpoints, by the ports' ifindexes.
    pub(super) peers: BTreeMap<u32, Peer>,
    /// When these were last searched for, and the ports for which none was found.
    looked: Option<Instant>,
    lost: Vec<String>,
    /// The last update of its ports failed; it is retried.
    unsettled: bool,
    /// Packets that had arrived and departed at the last sweep, per slot.
    seen: BTreeMap<u32, (u64, u64)>,
}

struct Port {
    slot: u32,
    name: String,
    is_virtual: bool,
    /// The kind of its device's root qdisc, as last seen.
    queue: String,
    /// Whether its device has a queue, or the port a virtual one.
    has_queue: bool,
    /// Attached while any port of the bridge has a queue: echoes get headroom at the others too.
    out: Option<Attached>,
    /// Position of `out` among the programs of its hook.
    place: Place,
    wire_end: Option<WireEnd>,
}

struct WireEnd {
    key: DeviceKey,
    attached: Attached,
}

/// Root qdiscs whose own length is meaningless: packets wait in their children.
const WITHOUT_BACKLOG: [&str; 4] = ["mq", "mqprio", "multiq", "taprio"];

/// Roles of a port with this root qdisc.
fn queue_roles(kind: &str) -> u32 {
    if kind == "noqueue" {
        abi::ROLE_NO_QUEUE
    } else if WITHOUT_BACKLOG.contains(&kind) {
        0
    } else {
        abi::ROLE_BACKLOG
    }
}

/// [`abi::ROLE_SAMPLES`] if the ports sample their queues.
const fn sampling_role(config: &config::Bridge) -> u32 {
    match config.marking.notifications() {
        Some(_) => abi::ROLE_SAMPLES,
        None => 0,
    }
}

/// The roles of a port, which [`Inner::remove_port`] clears.
pub(super) const PORT_ROLES: u32 = abi::ROLE_PORT | QUEUE_ROLES | abi::ROLE_SAMPLES;
/// All roles that [`queue_roles`] returns.
const QUEUE_ROLES: u32 = abi::ROLE_BACKLOG | abi::ROLE_NO_QUEUE;

impl Bridge {
    pub(super) fn state(&self) -> state::BridgeState {
        let of = &self.config;
        let mut ports: Vec<_> = self
            .ports
            .iter()
            .map(|(&ifindex, port)| state::PortState {
                slot: port.slot,
                name: port.name.clone(),
                ifindex,
                attached: port.out.as_ref().map(Attached::hook),
            })
            .collect();
        ports.sort_by_key(|port| port.slot);
        state::BridgeState {
            number: self.number,
            name: of.name.clone(),
            netns: self.space.name().to_owned(),
            marking: of.marking,
            queue: of.queue,
            ports,
        }
    }

    /// Forgets peers in a namespace that has lost its name: it may have another name.
    pub(super) fn forget_peers_in(&mut self, spec: &Spec) {
        let before = self.peers.len();
        self.peers.retain(|_, peer| peer.spec != *spec);
        if self.peers.len() < before {
            self.looked = None;
        }
    }

    /// Ports whose veth peers should be endpoints but were not found.
    pub(super) fn missing_peers(&self) -> impl Iterator<Item = Waiting> {
        self.lost.iter().map(|port| Waiting {
            kind: WaitingFor::Endpoint,
            name: format!("at port {port} of {}", self.config.name),
            netns: self.space.name().to_owned(),
            why: "its namespace has neither a name nor a process here".to_owned(),
        })
    }

    /// Whether packets can wait at any of its ports.
    fn has_queue(&self) -> bool {
        self.ports.values().any(|port| port.has_queue)
    }

    /// Whether departures from its ports' own queues have to be counted.
    pub(super) fn is_watched(&self) -> bool {
        let mut ports = self.ports.values();
        ports.any(|port| port.has_queue && !port.is_virtual)
    }

    fn key(&self, ifindex: u32) -> DeviceKey {
        DeviceKey {
            netns: self.space.ns.inum(),
            ifindex,
        }
    }

    fn free_slot(&self) -> Option<u32> {
        let is_free = |slot: &u32| {
            !self.kept_slots.contains(slot) && self.ports.values().all(|port| port.slot != *slot)
        };
        (1..abi::PORTS as u32).find(is_free)
    }

    /// Current counters of its ports.
    fn readings(&self, view: &BridgeView) -> Vec<PortReading> {
        let (of, netns) = (&self.config, self.space.name());
        let by_output = of.marking == config::Marking::InputOutput;
        let readings = self.ports.values().map(|port| {
            let counters = view.port(port.slot);
            let mut inputs: Vec<(u32, &str)> = Vec::new();
            if counters.cnt1 > of.threshold {
                let waiting = |slot| view.waiting(slot, port.slot);
                // What enters from this agent's own endpoints fills the queue, too, but is controlled.
                let others = self
                    .ports
                    .iter()
                    .filter(|(ifindex, _)| !self.peers.contains_key(ifindex));
                inputs.extend(others.map(|(_, input)| (waiting(input.slot), &*input.name)));
                inputs.push((waiting(u32::from(marking::HOST)), "the host itself"));
                // Inputs with few packets there do not fill it.
                inputs.retain(|(packets, _)| packets.saturating_mul(8) > counters.cnt1);
                inputs.sort_unstable_by_key(|(packets, _)| Reverse(*packets));
            }
            PortReading {
                id: (self.number, port.slot),
                subject: Subject::port(&of.name, netns, &port.name),
                counters,
                by_output,
                level_packets: match of.marking {
                    config::Marking::None => 0,
                    config::Marking::InputOutput => of.threshold,
                    _ => of.buffer,
                },
                most_packets: port.is_virtual.then_some(vqueue::DEPTH as u32),
                drops_unmarkable: of.drops_above().is_some(),
                inputs: inputs
                    .into_iter()
                    .map(|(_, name)| name.to_owned())
                    .collect(),
                ..PortReading::default()
            }
        });
        readings.collect()
    }

    /// The queue of the port in a slot, as far as its qdisc, its driver or the configuration says.
    pub(super) fn port_queue(&self, slot: u32) -> PortQueue {
        self.find_queue(slot).unwrap_or_default()
    }

    fn find_queue(&self, slot: u32) -> Option<PortQueue> {
        let (&ifindex, port) = self.ports.iter().find(|(_, port)| port.slot == slot)?;
        if port.is_virtual {
            return Some(PortQueue {
                bytes_per_s: self.config.virtual_rate(&port.name).map(Rate::bytes_per_s),
                full_packets: None,
            });
        }
        let nl = &self.space.nl;
        let (root, full_packets) = nl.root_queue(ifindex, FRAME_BYTES).ok()??;
        let bytes_per_s = match root.rate_bytes_per_s {
            None if root.kind == "htb" => {
                let classes = nl.class_stats(ifindex).ok()?;
                let top = classes.iter().filter(|class| class.parent == ROOT);
                top.map(|class| class.ceil_bytes_per_s).max()
            }
            None => Ethtool::open(&self.space.ns)
                .and_then(|ethtool| ethtool.speed_mbit_per_s(&port.name))
                .ok()
                .flatten()
                .map(|mbit| u64::from(mbit) * 125_000),
            rate => rate,
        };
        Some(PortQueue {
            bytes_per_s,
            full_packets,
        })
    }

    /// One more than the highest slot in use.
    fn slots(&self) -> u32 {
        let used = self.ports.values().map(|port| port.slot);
        used.chain(self.kept_slots.iter().copied())
            .max()
            .unwrap_or(0)
            + 1
    }
}

impl Inner {
    /// Sets up a bridge.
    pub(super) fn add_bridge(
        &mut self,
        config: config::Bridge,
        space: &Arc<Space>,
        link: &Link,
    ) -> Result<()> {
        if link.kind.as_deref() != Some("bridge") {
            return Err(Error::Configuration(format!(
                "{} (namespace {}) is no bridge",
                link.name,
                space.ns.name()
            )));
        }
        if config.queue == config::Queue::Device && !self.datapath.watches_queues() {
            return Err(datapath::Error::NoTracingLock.into());
        }
        let name = (space.spec.clone(), config.name.clone());
        let Some(number) = self
            .numbers
            .of_bridge(name, |number| self.bridges.contains_key(&number))
        else {
            return Err(Error::Configuration(format!(
                "{} bridges are the most until the agent is restarted",
                self.numbers.bridges()
            )));
        };
        let kept_slots = self.kept_slots(number, &config)?;
        if kept_slots.is_empty() {
            self.maps.clear_bridge(number)?;
        }
        let bridge = Bridge {
            number,
            config,
            space: Arc::clone(space),
            ifindex: link.index,
            mac: link.mac,
            ports: BTreeMap::new(),
            kept_slots,
            peers: BTreeMap::new(),
            looked: None,
            lost: Vec::new(),
            unsettled: false,
            seen: BTreeMap::new(),
        };
        self.bridges.insert(number, bridge);
        self.sync_bridge(number)
            .inspect_err(|_| self.remove_bridge(number))
    }

    /// The slots of ports that a previous agent has kept for a bridge; empty if the bridge's queues have changed.
    fn kept_slots(&mut self, number: u32, config: &config::Bridge) -> Result<BTreeSet<u32>> {
        let netns = config.netns.as_deref().unwrap_or_default();
        let kept = self.kept.as_ref();
        if !kept.is_some_and(|kept| kept.has_bridge(number, netns, &config.name)) {
            return Ok(BTreeSet::new());
        }
        let mut slots = BTreeSet::new();
        for (key, device) in self.maps.devices() {
            if device.role & abi::ROLE_PORT == 0 || device.bridge != number {
                continue;
            }
            if (device.virtual_ns_per_byte != 0) == (config.queue == config::Queue::Virtual) {
                slots.insert(device.port);
            } else {
                self.forget_port(key, device)?;
            }
        }
        Ok(slots)
    }

    pub(super) fn release_slots(&mut self) {
        self.bridges
            .values_mut()
            .for_each(|of| of.kept_slots.clear());
    }

    /// Whether a device is one of a bridge's ports.
    pub(super) fn has_port(&self, key: DeviceKey, number: u32) -> bool {
        let bridge = self.bridges.get(&number);
        bridge.is_some_and(|of| of.key(key.ifindex) == key && of.ports.contains_key(&key.ifindex))
    }

    pub(super) fn has_wire_end(&self, key: DeviceKey) -> bool {
        let mut ports = self.bridges.values().flat_map(|of| of.ports.values());
        ports.any(|port| port.wire_end.as_ref().is_some_and(|end| end.key == key))
    }

    /// The programs attached at all ports, taken out of their bridges.
    pub(super) fn attached_at_ports(&mut self) -> impl Iterator<Item = Attached> {
        let bridges = std::mem::take(&mut self.bridges).into_values();
        let ports = bridges.flat_map(|of| of.ports.into_values());
        ports.flat_map(|port| {
            let end = port.wire_end.map(|end| end.attached);
            port.out.into_iter().chain(end)
        })
    }

    /// Pins of the links of programs at ports.
    pub(super) fn links_at_ports(&self) -> impl Iterator<Item = &Path> {
        let ports = self.bridges.values().flat_map(|of| of.ports.values());
        let attached = ports.flat_map(|port| {
            let end = port.wire_end.as_ref().map(|end| &end.attached);
            port.out.iter().chain(end)
        });
        attached.filter_map(Attached::pin)
    }

    /// Removes a bridge that no longer exists or is no longer configured.
    pub(super) fn remove_bridge(&mut self, number: u32) {
        let Some(bridge) = self.bridges.get(&number) else {
            return;
        };
        tracing::info!("bridge {}: removed", bridge.config.name);
        let ports: Vec<u32> = bridge.ports.keys().copied().collect();
        for ifindex in ports {
            if let Err(error) = self.remove_port(number, ifindex) {
                tracing::warn!("{error}");
            }
        }
        let bridge = self.bridges.remove(&number);
        if let Some(netns) = bridge.map(|bridge| bridge.space.ns.inum())
            && !self
                .bridges
                .values()
                .any(|other| other.space.ns.inum() == netns)
        {
            self.copies.remove(&netns);
        }
    }

    /// Follows changes of a bridge's ports. Returns whether anything has changed. Failures are retried at the next tick
    /// and logged once: a device may have been removed between two calls.
    pub(super) fn follow_bridge(
        &mut self,
        number: u32,
        changes: &LinkChanges,
        qdiscs: Option<&Qdiscs>,
    ) -> bool {
        let followed = self.try_to_follow_bridge(number, changes, qdiscs);
        let Some(bridge) = self.bridges.get_mut(&number) else {
            return false;
        };
        let was_logged = std::mem::replace(&mut bridge.unsettled, followed.is_err());
        match followed {
            Ok(changed) => changed,
            Err(error) => {
                if !was_logged {
                    tracing::warn!("{error}");
                }
                true
            }
        }
    }

    fn try_to_follow_bridge(
        &mut self,
        number: u32,
        changes: &LinkChanges,
        qdiscs: Option<&Qdiscs>,
    ) -> Result<bool> {
        let unsettled = self.bridges.get(&number).is_some_and(|b| b.unsettled);
        if changes.of_links() || unsettled {
            // By now another device may have the ifindex, and even the name.
            for ifindex in changes.removed() {
                self.remove_port(number, ifindex)?;
            }
            let ports = |inner: &Self| -> BTreeSet<u32> {
                let bridge = inner.bridges.get(&number);
                bridge
                    .into_iter()
                    .flat_map(|b| b.ports.keys().copied())
                    .collect()
            };
            let before = ports(self);
            self.sync_bridge(number)?;
            if let Some(bridge) = self.bridges.get(&number)
                && !self.shared.is_starting()
            {
                for added in ports(self).difference(&before) {
                    let (name, port) = (&bridge.config.name, &bridge.ports[added].name);
                    tracing::info!("bridge {name}: port {port} added");
                }
            }
            return Ok(true);
        }
        if let Some(qdiscs) = qdiscs {
            self.sync_queues(number, qdiscs)?;
        }
        Ok(false)
    }

    /// Searches for veth peers of ports that should be endpoints. Returns whether any was found.
    pub(super) fn find_peers(&mut self) -> bool {
        let mut found = false;
        for bridge in self.bridges.values_mut().filter(|b| b.config.peers) {
            let again = |at: Instant| !bridge.lost.is_empty() && at.elapsed() >= LOOK_AGAIN;
            if !bridge.looked.is_none_or(again) {
                continue;
            }
            let Ok(links) = bridge.space.nl.links() else {
                continue;
            };
            let missing: Vec<&Link> = links
                .iter()
                .filter(|link| link.kind.as_deref() == Some("veth"))
                .filter(|link| bridge.ports.contains_key(&link.index))
                .filter(|link| !bridge.peers.contains_key(&link.index))
                .collect();
            let peers = discover::peers(&bridge.space, &missing);
            found |= !peers.is_empty();
            let lost = missing
                .iter()
                .filter(|link| !peers.contains_key(&link.index));
            bridge.lost = lost.map(|link| link.name.clone()).collect();
            bridge.looked = Some(Instant::now());
            bridge.peers.extend(peers);
        }
        found
    }

    /// Synchronizes ports and policy of a bridge with the kernel and the configuration.
    pub(super) fn sync_bridge(&mut self, number: u32) -> Result<()> {
        let Some(bridge) = self.bridges.get_mut(&number) else {
            return Ok(());
        };
        let config = bridge.config.clone();
        let all = bridge.space.nl.links()?;
        bridge.looked = None;
        let wanted =
            |link: &&Link| link.master == Some(bridge.ifindex) && config.has_port(&link.name);
        let links: Vec<&Link> = all.iter().filter(wanted).collect();
        let gone: Vec<u32> = bridge
            .ports
            .iter()
            // The ifindex may have been reused by another device.
            .filter(|(ifindex, port)| {
                !links
                    .iter()
                    .any(|link| link.index == **ifindex && link.name == port.name)
            })
            .map(|(&ifindex, _)| ifindex)
            .collect();
        for ifindex in gone {
            self.remove_port(number, ifindex)?;
        }
        let known = |link: &&Link| self.bridges[&number].ports.contains_key(&link.index);
        let fresh: Vec<&Link> = links.into_iter().filter(|link| !known(link)).collect();
        for link in &fresh {
            self.add_port(number, link)?;
        }
        // Also for existing ports: a device that comes up gets its queue without a notification.
        let qdiscs = self.bridges[&number].space.qdiscs()?;
        self.sync_queues(number, &qdiscs)?;
        let bridge = &self.bridges[&number];
        let without_queue: Vec<&str> = fresh
            .iter()
            .filter(|link| {
                let port = bridge.ports.get(&link.index);
                let role = self.maps.device(bridge.key(link.index)).role;
                port.is_some_and(|port| !port.is_virtual) && role & abi::ROLE_NO_QUEUE != 0
            })
            .map(|link| link.name.as_str())
            .collect();
        if !without_queue.is_empty() {
            tracing::info!(
                "bridge {}: no queue at {} (noqueue), so nothing waits or is marked there; \
                 a queueing discipline or queue = \"virtual\" gives one",
                config.name,
                without_queue.join(" ")
            );
        }
        if config.feedback().is_backward() {
            self.datapath.load_messages()?;
        }
        if config.marking.notifications().is_some() {
            self.datapath.load_sampling()?;
        }
        let bridge = &self.bridges[&number];
        let backward = backward_policy(&config, &self.config, bridge.mac)?;
        self.maps.set_backward(number, backward)?;
        for &ifindex in bridge.ports.keys() {
            let key = bridge.key(ifindex);
            let mut device = self.maps.device(key);
            let role = device.role & !abi::ROLE_SAMPLES | sampling_role(&config);
            if std::mem::replace(&mut device.role, role) != role {
                self.maps.set_device(key, device)?;
            }
        }
        self.maps
            .set_marking(number, marking_policy(&config, bridge.slots()))?;
        // After the policy, without which a wire end has nothing to write.
        if config.mark_at == MarkAt::Departure {
            let bridge = &self.bridges[&number];
            let links: Vec<Link> = all
                .iter()
                .filter(|link| {
                    bridge
                        .ports
                        .get(&link.index)
                        .is_some_and(|port| port.wire_end.is_none())
                })
                .cloned()
                .collect();
            for link in links {
                self.add_wire_end(number, &link)?;
            }
        }
        Ok(())
    }

    /// Writes to the maps which ports have a queue, and whether its length can be read. If none has, nothing is
    /// attached.
    fn sync_queues(&mut self, number: u32, qdiscs: &Qdiscs) -> Result<()> {
        let Some(bridge) = self.bridges.get_mut(&number) else {
            return Ok(());
        };
        let netns = bridge.space.ns.inum();
        let mut changed = Vec::new();
        for (&ifindex, port) in &mut bridge.ports {
            let mut its = qdiscs.get(&ifindex).into_iter().flatten();
            let root = its.find(|qdisc| qdisc.parent == ROOT);
            // The device may have been removed; that is notified separately.
            let Some(root) = root.filter(|root| !port.is_virtual && root.kind != port.queue) else {
                continue;
            };
            port.has_queue = queue_roles(&root.kind) & abi::ROLE_NO_QUEUE == 0;
            changed.push((ifindex, &root.kind));
        }
        if bridge.is_watched() && !changed.is_empty() {
            // First, so that departures are counted for all packets whose arrival is.
            self.datapath.watch(true)?;
        }
        for (ifindex, kind) in changed {
            let key = DeviceKey { netns, ifindex };
            let mut device = self.maps.device(key);
            device.role = device.role & !QUEUE_ROLES | queue_roles(kind);
            self.maps.set_device(key, device)?;
            if let Some(port) = bridge.ports.get_mut(&ifindex) {
                tracing::debug!("port {} has a {kind} queue", port.name);
                port.queue.clone_from(kind);
            }
        }
        self.attach_ports(number)
    }

    /// Attaches to the ports of a bridge if one of them has a queue, and detaches if none has.
    fn attach_ports(&mut self, number: u32) -> Result<()> {
        let Some(bridge) = self.bridges.get_mut(&number) else {
            return Ok(());
        };
        if !bridge.has_queue() {
            bridge.ports.values_mut().for_each(|port| port.out = None);
            return Ok(());
        }
        let missing = bridge.ports.values_mut().filter(|port| port.out.is_none());
        let missing: Vec<&mut Port> = missing.collect();
        if missing.is_empty() {
            return Ok(());
        }
        let _expedited = datapath::ExpeditedRcu::begin();
        let netns = bridge.space.ns.inum();
        let copy = copy(&mut self.copies, &self.datapath, netns)?;
        for port in missing {
            let ns = &bridge.space.ns;
            port.out = Some(copy.attach_at(port.place, ns, &port.name, name::PORT_OUT)?);
        }
        Ok(())
    }

    fn add_port(&mut self, number: u32, link: &Link) -> Result<()> {
        let bridge = &self.bridges[&number];
        let key = bridge.key(link.index);
        let mut device = self.maps.device(key);
        let is_kept = device.role & abi::ROLE_PORT != 0 && device.bridge == number;
        let slot = if is_kept {
            Some(device.port)
        } else {
            bridge.free_slot()
        };
        let Some(slot) = slot else {
            tracing::warn!(
                "port {} of bridge {} is not marked: {} ports are the most",
                link.name,
                bridge.config.name,
                abi::PORTS - 1
            );
            return Ok(());
        };
        let rate = bridge.config.virtual_rate(&link.name);
        device.role |= abi::ROLE_PORT | sampling_role(&bridge.config);
        // [`Inner::sync_queues`] adds the kind of its queue; until then, packets pass unprocessed.
        if let Some(rate) = rate {
            self.datapath.virtual_queues()?;
            device.virtual_ns_per_byte = vqueue::ns_per_byte(rate.bytes_per_s()).unwrap_or(0);
        } else if !is_kept {
            device.role |= abi::ROLE_NO_QUEUE;
        }
        device.bridge = number;
        device.port = slot;
        self.maps.set_device(key, device)?;
        let slots = bridge.slots().max(slot + 1);
        let policy = marking_policy(&bridge.config, slots);
        self.maps.set_marking(number, policy)?;
        // An endpoint's program at the same hook has to see the marks.
        let place = if link.is_tap() {
            Place::First
        } else {
            Place::Last
        };
        // A program that was kept there is taken over first, even if only to be detached.
        let space = Arc::clone(&bridge.space);
        let out = if is_kept {
            let copy = copy(&mut self.copies, &self.datapath, space.ns.inum())?;
            Some(copy.attach_at(place, &space.ns, &link.name, name::PORT_OUT)?)
        } else {
            None
        };
        tracing::debug!("port {} has slot {slot}", link.name);
        let port = Port {
            slot,
            name: link.name.clone(),
            is_virtual: rate.is_some(),
            queue: String::new(),
            has_queue: rate.is_some(),
            out,
            place,
            wire_end: None,
        };
        if let Some(bridge) = self.bridges.get_mut(&number) {
            bridge.ports.insert(link.index, port);
        }
        Ok(())
    }

    /// Attaches to the veth peer of a port.
    fn add_wire_end(&mut self, number: u32, link: &Link) -> Result<()> {
        let bridge = &self.bridges[&number];
        let refuse = |why: &str| {
            Error::Configuration(format!(
                "port {} of bridge {}: {why}; departure marking writes the mark at the other end of \
                 a veth pair: use mark_at = \"arrival\"",
                link.name, bridge.config.name
            ))
        };
        let peer = match (link.kind.as_deref(), link.peer) {
            (Some("veth"), Some(peer)) => peer,
            _ => return Err(refuse("it is no veth")),
        };
        let found = discover::peers(&bridge.space, &[link]);
        let Some(of_peer) = found.get(&link.index) else {
            return Err(refuse(
                "its peer is in a namespace that has neither a name nor a process here",
            ));
        };
        let ns = NetNs::open(of_peer.spec.as_deref())?;
        let peers = Netlink::open(&ns)?.links()?;
        let Some(far) = peers.iter().find(|l| l.index == peer) else {
            return Err(refuse("its peer was removed"));
        };
        let Some(port) = bridge.ports.get(&link.index) else {
            return Ok(());
        };
        let (key, slot) = (
            DeviceKey {
                netns: ns.inum(),
                ifindex: peer,
            },
            port.slot,
        );
        let mut device = self.maps.device(key);
        device.role |= abi::ROLE_WIRE_END;
        device.wire_bridge = number;
        device.wire_port = slot;
        self.maps.set_device(key, device)?;
        // Not kept: nothing of ours may remain in a namespace that is removed.
        let mut copy = self.datapath.copy(ns.inum(), 0)?;
        let attached = copy.attach(&ns, &far.name, name::WIRE_END)?;
        let bridge = self.bridges.get_mut(&number);
        if let Some(port) = bridge.and_then(|bridge| bridge.ports.get_mut(&link.index)) {
            port.wire_end = Some(WireEnd { key, attached });
        }
        Ok(())
    }

    pub(super) fn remove_port(&mut self, number: u32, ifindex: u32) -> Result<()> {
        let Some(bridge) = self.bridges.get_mut(&number) else {
            return Ok(());
        };
        let Some(port) = bridge.ports.remove(&ifindex) else {
            return Ok(());
        };
        bridge.peers.remove(&ifindex);
        tracing::info!("bridge {}: port {} removed", bridge.config.name, port.name);
        bridge.seen.remove(&port.slot);
        let key = bridge.key(ifindex);
        self.forget_role(key, PORT_ROLES);
        if let Some(end) = &port.wire_end {
            self.forget_role(end.key, abi::ROLE_WIRE_END);
        }
        self.clear_slot(number, port.slot, port.is_virtual)
    }

    /// Clears a slot, so that the next port there inherits nothing.
    pub(super) fn clear_slot(&mut self, bridge: u32, port: u32, is_virtual: bool) -> Result<()> {
        let action = if is_virtual {
            PortAction::RemoveVirtual
        } else {
            PortAction::Remove
        };
        self.datapath.reset_port(abi::PortReset {
            bridge,
            port,
            action: action as u32,
            arrived: 0,
        })?;
        Ok(self.maps.clear_point(bridge, port)?)
    }

    pub(super) fn forget_role(&mut self, key: DeviceKey, role: u32) {
        let mut device = self.maps.device(key);
        device.role &= !role;
        if role & abi::ROLE_PORT != 0 {
            device.virtual_ns_per_byte = 0;
        }
        if device.role == 0 {
            self.maps.remove_device(key);
        } else if let Err(error) = self.maps.set_device(key, device) {
            tracing::warn!("{error}");
        }
    }

    /// Resets counters that are above 0 and unchanged while the device's queue is empty. They have missed departures: a
    /// qdisc was replaced with packets in it, or a tracepoint run was lost on the last packet. Returns the readings.
    pub(super) fn sweep_bridges(&mut self) -> Result<Vec<PortReading>> {
        let mut readings = Vec::new();
        for (&number, bridge) in &mut self.bridges {
            let view = self.maps.bridge(number)?;
            readings.extend(bridge.readings(&view));
            let mut stuck = Vec::new();
            for (&ifindex, port) in &bridge.ports {
                let p = view.port(port.slot);
                if port.is_virtual {
                    // Departures are computed when a packet arrives, which may be long ago.
                    if p.cnt1 > 0 {
                        self.datapath.reset_port(abi::PortReset {
                            bridge: number,
                            port: port.slot,
                            action: PortAction::CatchUp as u32,
                            arrived: 0,
                        })?;
                    }
                    continue;
                }
                let now = (p.arrived, p.departed + p.dropped);
                let before = bridge.seen.insert(port.slot, now);
                if p.cnt1 > 0 && before == Some(now) {
                    stuck.push((ifindex, port.slot, p.arrived));
                }
            }
            if stuck.is_empty() {
                continue;
            }
            let qdiscs = bridge.space.nl.qdiscs()?;
            for (ifindex, slot, arrived) in stuck {
                let waits = qdiscs
                    .iter()
                    .any(|q| q.ifindex == ifindex && q.qlen_packets > 0);
                if !waits {
                    self.datapath.reset_port(abi::PortReset {
                        bridge: number,
                        port: slot,
                        action: PortAction::Forget as u32,
                        arrived: arrived as u32,
                    })?;
                }
            }
        }
        Ok(readings)
    }
}
