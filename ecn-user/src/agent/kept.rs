//! Takes over from an agent that has left its datapath running: `keep` of `[agent]`.
//!
//! Programs, maps, classes and qdiscs stay in place. The state file has the numbers of bridges and endpoints, and the
//! map of devices has the slots of ports.
//!
//! Without an agent, HTB classes keep their rates, regardless of marks. So the first step, before programs are loaded,
//! is to change their rates again.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use ecn_core::{
    abi::{self, DeviceKey, name},
    flow,
};

use super::{
    Error, Inner, Result,
    discover::Space,
    enforce::{Enforcer, Shared, lock, now_ns},
    leftovers,
    root::{Root, Whose},
    shaper,
    state::{EndpointState, State},
    target::Target,
};
use crate::{
    config::{Config, Enforcement},
    datapath::{self, Maps, Sizes},
    net::{Netlink, htb::EndpointHtb},
};

/// Flows by their endpoint's number.
type Keys = HashMap<u32, Vec<flow::Key>>;

/// What a previous agent left, while this one starts.
pub(super) struct Kept {
    pub(super) state: State,
    /// Flows that had classes, by endpoint.
    flows: Keys,
}

/// Finds what can be taken over. If something cannot be, everything is removed as by `ecn clean`, with a warning that
/// gives the reason.
pub(super) fn find(config: &Config) -> Option<(State, Maps)> {
    let state = State::read().filter(|state| state.keep);
    let pin = &config.agent.pin;
    if state.is_none() && !has_links(pin) {
        return None;
    }
    let why = match adoptable(config, state.as_ref()) {
        Ok(maps) => return state.zip(Some(maps)),
        Err(why) => why,
    };
    tracing::warn!(
        "cannot take over from the previous agent: {why}; its state is removed, and control starts from scratch"
    );
    let state = state.unwrap_or_default();
    for leftover in leftovers::find(Some(&state), &[]) {
        if let Err(error) = leftover.remove(Some(&state)) {
            tracing::warn!("cannot remove {leftover}: {error}");
        }
    }
    State::remove();
    None
}

/// Whether an agent of any version has pinned links, other than those of sockets, which are always pinned.
fn has_links(pin: &Path) -> bool {
    let list = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    list(pin)
        .filter(|entry| datapath::is_version(&entry.file_name()))
        .flat_map(|version| list(&version.path().join("links")))
        .any(|link| link.file_name() != name::SOCK)
}

fn adoptable(config: &Config, state: Option<&State>) -> std::result::Result<Maps, String> {
    if !config.agent.keep {
        return Err("`keep` is not set".to_owned());
    }
    let Some(state) = state else {
        return Err("its state is missing".to_owned());
    };
    let pin = &config.agent.pin;
    if state.pin != *pin {
        return Err(format!(
            "it pinned its maps below {}, and `pin` is {}",
            state.pin.display(),
            pin.display()
        ));
    }
    let least = Sizes {
        bridges: config.bridges.len() as u32,
        flows: config.flow.max,
    };
    let maps = datapath::adoptable(pin, least)?;
    let bridges = maps.bridges().map_err(|error| error.to_string())?;
    if state.bridges.iter().any(|of| of.number >= bridges)
        || (state.endpoints.iter()).any(|of| !(1..abi::ENDPOINTS).contains(&of.number))
    {
        return Err("its state does not fit its maps".to_owned());
    }
    Ok(maps)
}

/// Classes that no flow uses and that are not offered, and the flows that have one.
fn classes(maps: &mut Maps) -> datapath::Result<(VecDeque<u32>, Keys)> {
    let mut used = maps.offered_classes();
    let mut flows = Keys::new();
    // Flows are read after offers: if a program assigns a class in between, its flow is found here.
    for (key, flow) in maps.flows()? {
        if flow.class != 0 {
            used.insert(flow.class);
            flows.entry(key.endpoint.into()).or_default().push(key);
        }
    }
    let free = (abi::FIRST_CLASS..abi::CLASSES).filter(|class| !used.contains(class));
    Ok((free.collect(), flows))
}

impl Kept {
    /// Takes over classes, and starts to change their rates.
    pub(super) fn resume(
        state: State,
        maps: &mut Maps,
        shared: &Arc<Shared>,
    ) -> Result<(Self, Enforcer)> {
        let (free, flows) = classes(maps)?;
        *lock(&shared.free) = free;
        for (key, rate) in maps.pins()? {
            if let Some(flow) = maps.flow(&key).filter(|flow| flow.class != 0) {
                let at = (u32::from(key.endpoint), flow.class);
                lock(&shared.pinned).insert(at, rate);
            }
        }
        let generation = maps.control()?.flags & abi::GENERATION;
        shared.flags.fetch_or(generation, Ordering::Relaxed);
        let enforcer = Enforcer::start(Arc::clone(shared), &state.pin)?;
        let kept = Self { state, flows };
        for endpoint in &kept.state.endpoints {
            // Other enforcements work without an agent.
            if endpoint.enforcement == Enforcement::Htb
                && endpoint.installed_qdisc
                && let Err(error) = kept.resume_endpoint(endpoint, maps, shared)
            {
                tracing::debug!("endpoint {}: {error}", endpoint.device);
            }
            // The previous agent has frozen the rates, see `Inner::leave`.
            let mut policy = maps.endpoint(endpoint.number)?;
            policy.response.function = endpoint.response as u32;
            maps.set_endpoint(endpoint.number, policy)?;
        }
        tracing::debug!("the rates of the agent before move again");
        Ok((kept, enforcer))
    }

    fn resume_endpoint(
        &self,
        endpoint: &EndpointState,
        maps: &mut Maps,
        shared: &Shared,
    ) -> Result<()> {
        let spec = Some(endpoint.netns.clone()).filter(|netns| !netns.is_empty());
        let space = Arc::new(Space::open(&spec)?);
        let link = space.nl.link(&endpoint.device)?;
        let at = endpoint.limited_at();
        let is_ours = |root: Option<Root>| root == Some(Root::Htb);
        if link.index != endpoint.ifindex || !is_ours(Root::of_device(&space.nl, at)?) {
            return Ok(());
        }
        let layout = EndpointHtb {
            ifindex: at,
            link_bytes_per_s: maps.endpoint(endpoint.number)?.link_bytes_per_s,
            frame_bytes: link.mtu + 14,
        };
        let name = format!("{} (namespace {})", link.name, space.ns.name());
        let target = Target::open(
            &space,
            name,
            layout,
            endpoint.enforcement,
            Whose::Ours,
            (endpoint.gso_max_segs, link.gso_max_segs),
            now_ns(),
        )?;
        self.adopt(endpoint.number, target, maps, shared)
    }

    /// Adds a device, and the flows that are limited there. Rates that change meanwhile wait for this.
    pub(super) fn adopt(
        &self,
        number: u32,
        mut target: Target,
        maps: &mut Maps,
        shared: &Shared,
    ) -> Result<()> {
        let mut targets = lock(&shared.targets);
        match targets.remove(&number) {
            Some(before) if before.is_like(&target) => target.continue_from(before),
            before => {
                if let Some(mut before) = before {
                    before.forget(maps);
                }
                let flows = self.limited(number, maps, target.layout().link_bytes_per_s)?;
                let adopted = target.adopt(maps, &flows, now_ns());
                adopted.map_err(|error| Error::Io {
                    what: "take over classes",
                    error,
                })?;
            }
        }
        targets.insert(number, target);
        Ok(())
    }

    /// The flows of an endpoint that may be limited, with their intended rates, bytes per second.
    fn limited(
        &self,
        number: u32,
        maps: &Maps,
        link_bytes_per_s: u64,
    ) -> Result<Vec<(flow::Key, flow::Flow, u64)>> {
        let pins: HashMap<_, _> = maps.pins()?.into_iter().collect();
        let short = flow::Key::short(number as u16);
        let of_short = maps.flow(&short).map(|flow| flow::Flow {
            class: abi::short_class(number),
            ..flow
        });
        let keys = self.flows.get(&number).into_iter().flatten();
        let flows = keys.filter_map(|key| Some((*key, maps.flow(key)?)));
        let flows = flows.chain(of_short.map(|flow| (short, flow)));
        let with_rate = flows.map(|(key, flow)| {
            let rate = match (pins.get(&key), flow.rate_bytes_per_s) {
                (Some(pinned), _) => *pinned,
                (None, 0) => link_bytes_per_s,
                (None, rate) => rate,
            };
            (key, flow, rate)
        });
        Ok(with_rate.collect())
    }

    /// Whether the bridge with this number has this name.
    pub(super) fn has_bridge(&self, number: u32, netns: &str, name: &str) -> bool {
        let mut bridges = self.state.bridges.iter();
        bridges.any(|of| of.number == number && of.netns == netns && of.name == name)
    }

    /// The endpoint that had this number.
    pub(super) fn endpoint(&self, number: u32) -> Option<&EndpointState> {
        self.state.endpoints.iter().find(|of| of.number == number)
    }
}

impl Inner {
    /// Removes what was taken over but is no longer configured.
    pub(super) fn settle(&mut self) -> Result<()> {
        let Some(kept) = self.kept.take() else {
            return Ok(());
        };
        let (bridges, endpoints) = (kept.state.bridges.len(), kept.state.endpoints.len());
        tracing::info!("took over from the agent before: {bridges} bridges, {endpoints} endpoints");
        for (key, device) in self.maps.devices() {
            if device.role & abi::ROLE_PORT != 0 && !self.has_port(key, device.bridge) {
                self.forget_port(key, device)?;
            }
            if device.role & abi::ROLE_WIRE_END != 0 && !self.has_wire_end(key) {
                self.forget_role(key, abi::ROLE_WIRE_END);
            }
            if device.role & abi::ROLE_ENDPOINT != 0 && !self.has_endpoint(key) {
                self.forget_role(key, abi::ROLE_ENDPOINT);
            }
        }
        self.release_slots();
        let wanted: BTreeSet<&Path> = self.links().collect();
        self.datapath.remove_other_links(&wanted);
        for bridge in &kept.state.bridges {
            for port in &bridge.ports {
                self.strip(&bridge.netns, port.ifindex, None);
            }
        }
        for endpoint in &kept.state.endpoints {
            if !self.endpoints.contains_key(&endpoint.number)
                && let Some(mut target) = lock(&self.shared.targets).remove(&endpoint.number)
            {
                target.forget(&mut self.maps);
            }
            self.strip(&endpoint.netns, endpoint.ifindex, Some(endpoint));
        }
        Ok(())
    }

    /// Removes a port that exists in the maps only.
    pub(super) fn forget_port(&mut self, key: DeviceKey, device: abi::Device) -> Result<()> {
        self.forget_role(key, super::bridges::PORT_ROLES);
        let is_virtual = device.virtual_ns_per_byte != 0;
        self.clear_slot(device.bridge, device.port, is_virtual)
    }

    /// Removes from a device what is no longer wanted: filters, and the root qdisc of an endpoint.
    fn strip(&self, netns: &str, ifindex: u32, endpoint: Option<&EndpointState>) {
        let strip = || -> Result<()> {
            // A namespace that no longer exists holds nothing.
            let Ok(ns) = leftovers::open(netns) else {
                return Ok(());
            };
            let at = endpoint.map_or(ifindex, EndpointState::limited_at);
            let key = DeviceKey {
                netns: ns.inum(),
                ifindex: at,
            };
            let roles = self.maps.device(key).role;
            let role = endpoint.map_or(abi::ROLE_PORT, |_| abi::ROLE_ENDPOINT);
            if roles & role != 0 {
                return Ok(());
            }
            let nl = Netlink::open(&ns)?;
            for filter in datapath::leftovers(&nl, ifindex)? {
                if roles & role_of(&filter.name) == 0 {
                    datapath::remove_leftover(&nl, &filter)?;
                }
            }
            let Some(endpoint) = endpoint else {
                return Ok(());
            };
            if endpoint.shaper.is_some() {
                shaper::remove(&nl, ifindex);
            } else if endpoint.installed_qdisc
                && Root::of_device(&nl, ifindex)?.is_some_and(|r| r.is_ours())
            {
                nl.delete_root_qdisc(ifindex)?;
            }
            if let Some(segments) = endpoint.gso_max_segs {
                nl.set_gso_max_segs(ifindex, segments)?;
            }
            Ok(())
        };
        // The device may have been removed.
        if let Err(error) = strip() {
            tracing::debug!("{error}");
        }
    }
}

/// The role of a device to which a program is attached by a filter.
fn role_of(program: &str) -> u32 {
    match program {
        name::PORT_OUT => abi::ROLE_PORT,
        name::WIRE_END => abi::ROLE_WIRE_END,
        _ => abi::ROLE_ENDPOINT,
    }
}
