//! Ports of bridges: they come, go, and change their number.

use std::{cmp::Reverse, collections::BTreeMap};

use ecn_core::{
    abi::{self, DeviceKey, PortAction, name},
    marking, vqueue,
};

use super::{
    Error, Inner, Result,
    health::{PortReading, Subject},
    marking_policy, state,
};
use crate::{
    config::{self, Config, MarkAt},
    datapath::{Attached, BridgeView},
    net::{
        NetNs, Netlink, QdiscWatch, ROOT,
        ethtool::Ethtool,
        netlink::{Link, LinkEvent, LinkWatch},
    },
    units::Rate,
};

/// A bridge and its ports.
pub(super) struct Bridge {
    number: u32,
    ns: NetNs,
    nl: Netlink,
    watch: LinkWatch,
    queues: QdiscWatch,
    ifindex: u32,
    ports: BTreeMap<u32, Port>,
    /// Its ports could not be brought up to date.
    unsettled: bool,
    /// Per slot, what had arrived and left at the last sweep.
    seen: BTreeMap<u32, (u64, u64)>,
}

struct Port {
    slot: u32,
    name: String,
    /// Its queue is virtual.
    is_virtual: bool,
    out: Attached,
    wire_end: Option<WireEnd>,
}

struct WireEnd {
    key: DeviceKey,
    _attached: Attached,
}

/// Root qdiscs whose own length says nothing: their queues lie in their children.
const WITHOUT_BACKLOG: [&str; 4] = ["mq", "mqprio", "multiq", "taprio"];

/// What programs are told of the queue of a port with this root qdisc.
fn queue_roles(kind: &str) -> u32 {
    if kind == "noqueue" {
        abi::ROLE_NO_QUEUE
    } else if WITHOUT_BACKLOG.contains(&kind) {
        0
    } else {
        abi::ROLE_BACKLOG
    }
}

/// Of a port, what [`Inner::remove_port`] takes back.
const PORT_ROLES: u32 = abi::ROLE_PORT | QUEUE_ROLES;
/// What [`queue_roles`] can say.
const QUEUE_ROLES: u32 = abi::ROLE_BACKLOG | abi::ROLE_NO_QUEUE;

impl Bridge {
    pub(super) fn find(config: &config::Bridge, number: u32) -> Result<Self> {
        let ns = NetNs::open(config.netns.as_deref())?;
        // Before the first listing, so that nothing is missed.
        let watch = LinkWatch::open(&ns)?;
        let queues = QdiscWatch::open(&ns)?;
        let nl = Netlink::open(&ns)?;
        let link = nl.link(&config.name)?;
        if link.kind.as_deref() != Some("bridge") {
            return Err(Error::Configuration(format!(
                "{} (namespace {}) is no bridge",
                config.name,
                ns.name()
            )));
        }
        Ok(Self {
            number,
            ns,
            nl,
            watch,
            queues,
            ifindex: link.index,
            ports: BTreeMap::new(),
            unsettled: false,
            seen: BTreeMap::new(),
        })
    }

    /// Whether devices changed since the last call; if so, the numbers of those that went.
    pub(super) fn links_changed(&self) -> Result<Option<Vec<u32>>> {
        let events = self.watch.drain()?;
        if events.is_empty() {
            return Ok(None);
        }
        let gone = events.iter().filter_map(|event| match event {
            LinkEvent::Gone { index, .. } => Some(*index),
            _ => None,
        });
        Ok(Some(gone.collect()))
    }

    pub(super) fn state(&self, config: &Config) -> state::BridgeState {
        let of = &config.bridges[self.number as usize];
        let mut ports: Vec<_> = self
            .ports
            .iter()
            .map(|(&ifindex, port)| state::PortState {
                slot: port.slot,
                name: port.name.clone(),
                ifindex,
                attached: port.out.hook(),
            })
            .collect();
        ports.sort_by_key(|port| port.slot);
        state::BridgeState {
            number: self.number,
            name: of.name.clone(),
            netns: of.netns.clone().unwrap_or_default(),
            marking: of.marking,
            queue: of.queue,
            ports,
        }
    }

    fn key(&self, ifindex: u32) -> DeviceKey {
        DeviceKey {
            netns: self.ns.inum(),
            ifindex,
        }
    }

    fn free_slot(&self) -> Option<u32> {
        (1..abi::PORTS as u32).find(|slot| self.ports.values().all(|port| port.slot != *slot))
    }

    /// What its ports have counted.
    fn readings(&self, config: &Config, view: &BridgeView) -> Vec<PortReading> {
        let of = &config.bridges[self.number as usize];
        let netns = of.netns.as_deref().unwrap_or_default();
        let by_output = of.marking == config::Marking::InputOutput;
        let readings = self.ports.values().map(|port| {
            let counters = view.port(port.slot);
            let mut inputs: Vec<(u32, &str)> = Vec::new();
            if counters.cnt1 > of.threshold {
                let waiting = |slot| view.waiting(slot, port.slot);
                let by_port = self
                    .ports
                    .values()
                    .map(|input| (waiting(input.slot), &*input.name));
                inputs.extend(by_port);
                inputs.push((waiting(u32::from(marking::HOST)), "the host itself"));
                // What has little there does not fill it.
                inputs.retain(|(packets, _)| packets.saturating_mul(8) > counters.cnt1);
                inputs.sort_unstable_by_key(|(packets, _)| Reverse(*packets));
            }
            PortReading {
                id: (self.number, port.slot),
                subject: Subject::port(&of.name, netns, &port.name),
                counters,
                by_output,
                level_packets: if by_output { of.threshold } else { of.buffer },
                most_packets: port.is_virtual.then_some(vqueue::DEPTH as u32),
                drops_unmarkable: of.drops_above().is_some(),
                inputs: inputs
                    .into_iter()
                    .map(|(_, name)| name.to_owned())
                    .collect(),
                bytes_per_s: None,
            }
        });
        readings.collect()
    }

    /// What the port in a slot can send, bytes per second, if its queue, its driver or the configuration says so.
    pub(super) fn port_rate(&self, config: &Config, slot: u32) -> Option<u64> {
        let (&ifindex, port) = self.ports.iter().find(|(_, port)| port.slot == slot)?;
        if port.is_virtual {
            let rate = config.bridges[self.number as usize].virtual_rate(&port.name);
            return rate.map(Rate::bytes_per_s);
        }
        let root = self.nl.root_qdisc(ifindex).ok()??;
        if root.kind == "htb" {
            let classes = self.nl.class_stats(ifindex).ok()?;
            let top = classes.iter().filter(|class| class.parent == ROOT);
            return top.map(|class| class.ceil_bytes_per_s).max();
        }
        root.rate_bytes_per_s.or_else(|| {
            let ethtool = Ethtool::open(&self.ns).ok()?;
            let mbit = ethtool.speed_mbit_per_s(&port.name).ok()??;
            Some(u64::from(mbit) * 125_000)
        })
    }

    /// One more than the highest slot in use.
    fn slots(&self) -> u32 {
        self.ports.values().map(|port| port.slot).max().unwrap_or(0) + 1
    }
}

impl Inner {
    /// Follows what has become of the bridges' devices. Returns whether anything has changed. What fails
    /// is tried again at the next tick, and said once: a device may have gone between two calls.
    pub(super) fn follow_bridges(&mut self) -> bool {
        let mut changed = false;
        for number in 0..self.bridges.len() {
            match self.follow_bridge(number) {
                Ok(followed) => {
                    changed |= followed;
                    self.bridges[number].unsettled = false;
                }
                Err(error) => {
                    changed = true;
                    if !std::mem::replace(&mut self.bridges[number].unsettled, true) {
                        tracing::warn!("{error}");
                    }
                }
            }
        }
        changed
    }

    fn follow_bridge(&mut self, number: usize) -> Result<bool> {
        let bridge = &self.bridges[number];
        let (gone, queues) = (bridge.links_changed()?, bridge.queues.any_root_changed()?);
        let Some(gone) = gone else {
            let unsettled = bridge.unsettled;
            if unsettled {
                self.sync_bridge(number)?;
            } else if queues {
                self.look_at_queues(number)?;
            }
            return Ok(unsettled);
        };
        // By now another device may have the number, and even the name.
        for ifindex in gone {
            self.remove_port(number, ifindex)?;
        }
        self.sync_bridge(number)?;
        Ok(true)
    }

    /// Brings ports and policy of a bridge up to date with the kernel and the configuration.
    pub(super) fn sync_bridge(&mut self, number: usize) -> Result<()> {
        let config = self.config.bridges[number].clone();
        let bridge = &mut self.bridges[number];
        let all = bridge.nl.links()?;
        // It may have been deleted and made again. 0 is no device's number, and no port's master.
        let is_it = |l: &&Link| l.name == config.name && l.kind.as_deref() == Some("bridge");
        let found = all.iter().find(is_it).map_or(0, |link| link.index);
        if std::mem::replace(&mut bridge.ifindex, found) != found {
            let what = if found == 0 { "gone" } else { "there again" };
            tracing::warn!("bridge {} is {what}", config.name);
        }
        let bridge = &self.bridges[number];
        let wanted = |link: &&Link| {
            link.master == Some(bridge.ifindex)
                && config
                    .ports
                    .as_ref()
                    .is_none_or(|names| names.contains(&link.name))
        };
        let links: Vec<&Link> = all.iter().filter(wanted).collect();
        let gone: Vec<u32> = bridge
            .ports
            .iter()
            // A number may have been given to another device meanwhile.
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
        let known: Vec<u32> = self.bridges[number].ports.keys().copied().collect();
        let fresh: Vec<&Link> = links
            .into_iter()
            .filter(|link| !known.contains(&link.index))
            .collect();
        for link in &fresh {
            self.add_port(number, link)?;
        }
        // Also of those that were there: a device that comes up gets its queue without a message of its own.
        self.look_at_queues(number)?;
        let bridge = &self.bridges[number];
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
        let slots = self.bridges[number].slots();
        self.maps
            .set_marking(number as u32, marking_policy(&config, slots))?;
        // After the policy: an end of the wire has something to write only under it.
        if config.mark_at == MarkAt::Departure {
            let bridge = &self.bridges[number];
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

    /// Tells the programs which ports have a queue, and whether its length can be read.
    fn look_at_queues(&mut self, number: usize) -> Result<()> {
        let bridge = &self.bridges[number];
        let qdiscs = bridge.nl.qdiscs()?;
        for (&ifindex, port) in &bridge.ports {
            let root = qdiscs
                .iter()
                .find(|qdisc| qdisc.ifindex == ifindex && qdisc.parent == ROOT);
            // The device may be gone by now; that comes as news of its own.
            let Some(root) = root.filter(|_| !port.is_virtual) else {
                continue;
            };
            let key = bridge.key(ifindex);
            let mut device = self.maps.device(key);
            let role = device.role & !QUEUE_ROLES | queue_roles(&root.kind);
            if std::mem::replace(&mut device.role, role) != role {
                tracing::debug!("port {} has a {} queue", port.name, root.kind);
                self.maps.set_device(key, device)?;
            }
        }
        Ok(())
    }

    fn add_port(&mut self, number: usize, link: &Link) -> Result<()> {
        let bridge = &self.bridges[number];
        let Some(slot) = bridge.free_slot() else {
            tracing::warn!(
                "port {} of bridge {} is not marked: {} ports are the most",
                link.name,
                self.config.bridges[number].name,
                abi::PORTS - 1
            );
            return Ok(());
        };
        let netns = bridge.ns.inum();
        let key = bridge.key(link.index);
        let rate = self.config.bridges[number].virtual_rate(&link.name);
        let mut device = self.maps.device(key);
        device.role |= abi::ROLE_PORT;
        // What its queue is says [`Inner::look_at_queues`]; until then, packets pass by.
        if let Some(rate) = rate {
            self.datapath.virtual_queues()?;
            device.virtual_ns_per_byte = vqueue::ns_per_byte(rate.bytes_per_s()).unwrap_or(0);
        } else {
            device.role |= abi::ROLE_NO_QUEUE;
        }
        device.bridge = number as u32;
        device.port = slot;
        self.maps.set_device(key, device)?;
        let slots = bridge.slots().max(slot + 1);
        self.maps.set_marking(
            number as u32,
            marking_policy(&self.config.bridges[number], slots),
        )?;
        let ns = NetNs::clone_of(&self.bridges[number].ns)?;
        let out = match self.copy(netns)?.attach(&ns, &link.name, name::PORT_OUT) {
            Ok(attached) => attached,
            Err(error) => {
                self.maps.remove_device(key);
                return Err(error.into());
            }
        };
        tracing::debug!("port {} has slot {slot}", link.name);
        let port = Port {
            slot,
            name: link.name.clone(),
            is_virtual: rate.is_some(),
            out,
            wire_end: None,
        };
        self.bridges[number].ports.insert(link.index, port);
        Ok(())
    }

    /// Attaches to the other end of a port's veth pair.
    fn add_wire_end(&mut self, number: usize, link: &Link) -> Result<()> {
        let bridge = &self.bridges[number];
        let refuse = |why: &str| {
            Error::Configuration(format!(
                "port {} of bridge {}: {why}; departure marking writes the mark at the other end of \
                 a veth pair: use mark_at = \"arrival\"",
                link.name, self.config.bridges[number].name
            ))
        };
        let peer = match (link.kind.as_deref(), link.peer) {
            (Some("veth"), Some(peer)) => peer,
            _ => return Err(refuse("it is no veth")),
        };
        let ns = match link.peer_nsid {
            None => NetNs::clone_of(&bridge.ns)?,
            Some(nsid) => self
                .known_namespaces()
                .into_iter()
                .find(|ns| bridge.nl.nsid(ns).ok().flatten() == Some(nsid))
                .ok_or_else(|| {
                    refuse("its peer is in a namespace that has no name in /run/netns")
                })?,
        };
        let peers = Netlink::open(&ns)?.links()?;
        let Some(far) = peers.iter().find(|l| l.index == peer) else {
            return Err(refuse("its peer is gone"));
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
        device.wire_bridge = number as u32;
        device.wire_port = slot;
        self.maps.set_device(key, device)?;
        let attached = self
            .copy(ns.inum())?
            .attach(&ns, &far.name, name::WIRE_END)?;
        if let Some(port) = self.bridges[number].ports.get_mut(&link.index) {
            port.wire_end = Some(WireEnd {
                key,
                _attached: attached,
            });
        }
        Ok(())
    }

    /// Namespaces that have a name, or that the configuration names.
    fn known_namespaces(&self) -> Vec<NetNs> {
        let mut specs: Vec<String> = NetNs::list().unwrap_or_default();
        specs.extend(self.config.endpoints.iter().filter_map(|e| e.netns.clone()));
        specs.extend(self.config.bridges.iter().filter_map(|b| b.netns.clone()));
        let mut known: Vec<NetNs> = specs
            .iter()
            .filter_map(|spec| NetNs::open(Some(spec)).ok())
            .collect();
        known.extend(NetNs::current().ok());
        known
    }

    pub(super) fn remove_port(&mut self, number: usize, ifindex: u32) -> Result<()> {
        let bridge = &mut self.bridges[number];
        let Some(port) = bridge.ports.remove(&ifindex) else {
            return Ok(());
        };
        tracing::debug!("port {} is gone", port.name);
        bridge.seen.remove(&port.slot);
        let key = bridge.key(ifindex);
        self.forget_role(key, PORT_ROLES);
        if let Some(end) = &port.wire_end {
            self.forget_role(end.key, abi::ROLE_WIRE_END);
        }
        self.datapath.reset_port(abi::PortReset {
            bridge: number as u32,
            port: port.slot,
            action: if port.is_virtual {
                PortAction::RemoveVirtual
            } else {
                PortAction::Remove
            } as u32,
            arrived: 0,
        })?;
        Ok(())
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

    /// Counters that stand still while the device's queue is empty have missed something: a qdisc
    /// replaced with packets in it, a tracepoint run lost on the last packet. Returns what was read.
    pub(super) fn sweep_bridges(&mut self) -> Result<Vec<PortReading>> {
        let mut readings = Vec::new();
        for number in 0..self.bridges.len() {
            let view = self.maps.bridge(number as u32)?;
            let bridge = &mut self.bridges[number];
            readings.extend(bridge.readings(&self.config, &view));
            let mut stuck = Vec::new();
            for (&ifindex, port) in &bridge.ports {
                let p = view.port(port.slot);
                if port.is_virtual {
                    // Its departures are computed when something comes; nothing did for a while, perhaps.
                    if p.cnt1 > 0 {
                        self.datapath.reset_port(abi::PortReset {
                            bridge: number as u32,
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
            let qdiscs = bridge.nl.qdiscs()?;
            for (ifindex, slot, arrived) in stuck {
                let waits = qdiscs
                    .iter()
                    .any(|q| q.ifindex == ifindex && q.qlen_packets > 0);
                if !waits {
                    self.datapath.reset_port(abi::PortReset {
                        bridge: number as u32,
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
