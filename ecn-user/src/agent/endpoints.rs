//! Endpoints: enforcement of their flows' rates, and the flows' map entries.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use ecn_core::{
    abi::{self, DeviceKey, name},
    flow, response,
};

use super::{
    Error, Inner, Options, Result,
    discover::{Qdiscs, Space, Spec},
    endpoint_policy,
    enforce::{self, Shared, lock},
    health::Subject,
    root::{Choice, Device, Root},
    shaper,
    state::{self, State},
    target::Target,
};
use crate::{
    config::{self, Config, Enforcement, Hook},
    datapath::{self, Attached, Maps, Place},
    net::{self, Link, NetNs, ethtool::Ethtool, htb::EndpointHtb},
};

/// Bytes of a frame that are not part of the MTU.
const ETHERNET_HEADER: u32 = 14;

/// Rate of a tap without a `link_rate`, bytes per second: that of veth.
const TAP_RATE: u64 = 1_250_000_000;

/// Ended connections are removed with the last ACK, or after this time, ns.
const ENDED_NS: u64 = 1_000_000_000;

/// An endpoint whose device exists.
pub(super) struct Endpoint {
    number: u32,
    /// Its configuration section, with patterns replaced by the matched names.
    pub(super) config: config::Endpoint,
    pub(super) space: Arc<Space>,
    pub(super) link: Link,
    htb: EndpointHtb,
    choice: Choice,
    /// Its root qdisc was changed, and handling the change failed; it is retried.
    unsettled: bool,
    /// Maximum segments of a super-packet before the agent changed it.
    gso_max_segs: Option<u32>,
    /// The ifb on which its flows are limited, if it is a tap that is a bridge port.
    shaper: Option<Link>,
    /// Whether it is a tap that is a bridge port, and represents the host behind it.
    at_port: bool,
    /// Hook at which echoes are processed.
    hook: Hook,
    attached: Vec<Attached>,
}

impl Endpoint {
    /// Whether this root qdisc is the expected one; `target`: the endpoint's.
    fn expects(&self, target: Option<&Target>, root: &Root) -> bool {
        let without = &self.choice.root;
        target.map_or(root == without, |target| target.expects(root, without))
    }

    pub(super) fn state(&self, config: &Config, shared: &Shared) -> state::EndpointState {
        let targets = lock(&shared.targets);
        let installed = targets.get(&self.number).is_some_and(Target::is_installed);
        state::EndpointState {
            number: self.number,
            device: self.config.device.clone(),
            netns: self.space.name().to_owned(),
            ifindex: self.link.index,
            shaper: self.shaper.as_ref().map(|ifb| ifb.index),
            response: config.response.function,
            enforcement: self.choice.enforcement,
            why: self.choice.why.clone(),
            hook: self.hook,
            installed_qdisc: installed,
            gso_max_segs: self.gso_max_segs,
        }
    }

    /// The device on which its flows are limited.
    pub(super) fn key(&self) -> DeviceKey {
        DeviceKey {
            netns: self.space.ns.inum(),
            ifindex: self.htb.ifindex,
        }
    }

    fn device<'a>(&'a self, config: &'a Config, wanted: Enforcement) -> Device<'a> {
        Device {
            nl: &self.space.nl,
            ns: &self.space.ns,
            link: self.shaper.as_ref().unwrap_or(&self.link),
            layout: &self.htb,
            wanted,
            limit_by: self.config.limit_by,
            cgroup: config.agent.cgroup.as_deref(),
        }
    }

    /// Whether its device still is, or is not, a tap at a bridge, and its ifb, if it has one, still exists.
    pub(super) fn is_in_place(&self, link: &Link, links: &[Link]) -> bool {
        let is_there = |ifb: &Link| links.iter().any(|link| link.index == ifb.index);
        link.is_tap_port() == self.at_port && self.shaper.as_ref().is_none_or(is_there)
    }

    fn policy(&self, config: &Config, options: Options) -> Result<abi::Endpoint> {
        let mut policy = endpoint_policy(config, options, &self.config, &self.choice, &self.htb)?;
        if self.at_port {
            policy.shaper = self.htb.ifindex;
        }
        Ok(policy)
    }

    /// For messages.
    fn name(&self) -> String {
        format!("{} (namespace {})", self.link.name, self.space.ns.name())
    }

    /// The subject of warnings about it.
    pub(super) fn subject(&self) -> Subject {
        Subject::endpoint(&self.config.device, self.space.name())
    }

    /// Why not all of its flows are limited, if they should be.
    pub(super) fn lacking(&self) -> Option<&str> {
        self.choice.lacking.as_deref()
    }

    /// Removes everything from its device; `is_there`: whether the device still exists.
    fn detach(mut self, is_there: bool, shared: &Shared, maps: &mut Maps) {
        // Programs first: no packet may choose a class that is being removed.
        self.attached.clear();
        if self.shaper.is_some() {
            shaper::remove(&self.space.nl, self.link.index);
        }
        let Some(mut target) = lock(&shared.targets).remove(&self.number) else {
            return;
        };
        // Unless another root qdisc has just been installed.
        let ours = is_there
            && self.shaper.is_none()
            && Root::of_device(&self.space.nl, self.htb.ifindex).is_ok_and(|root| {
                root.is_some_and(|root| target.expects(&root, &self.choice.root))
            });
        if ours {
            target.detach(maps);
        } else {
            target.forget(maps);
        }
    }
}

impl Inner {
    /// Sets up a device as an endpoint.
    pub(super) fn add_endpoint(
        &mut self,
        config: config::Endpoint,
        space: &Arc<Space>,
        link: &Link,
    ) -> Result<()> {
        let name = (space.spec.clone(), config.device.clone());
        let Some(number) = self
            .numbers
            .of_endpoint(name, |number| self.endpoints.contains_key(&number))
        else {
            return Err(Error::Configuration(format!(
                "{} endpoints are the most",
                abi::ENDPOINTS - 1
            )));
        };
        let at_port = link.is_tap_port();
        check_tap(&config, space, link)?;
        let rate = link_rate(&config, space, link)?;
        // Without limits, nothing is redirected.
        let limited = at_port && config.enforcement != Enforcement::None;
        let shaper = limited.then(|| shaper::open(space, link)).transpose()?;
        let at = shaper.as_ref().unwrap_or(link);
        let layout = layout(at, link, rate);
        let kept = self.kept.as_ref().and_then(|kept| kept.endpoint(number));
        let wanted = config.enforcement;
        if kept.is_some_and(|of| {
            of.installed_qdisc && ![of.enforcement, Enforcement::Auto].contains(&wanted)
        }) {
            // The configured enforcement has changed.
            space.nl.delete_root_qdisc(at.index)?;
        }
        let device = Device {
            nl: &space.nl,
            ns: &space.ns,
            link: at,
            layout: &layout,
            wanted,
            limit_by: config.limit_by,
            cgroup: self.config.agent.cgroup.as_deref(),
        };
        let choice = device.choose().inspect_err(|_| {
            if shaper.is_some() {
                shaper::remove(&space.nl, link.index);
            }
        })?;
        // A previous agent that was killed, or kept its state, may have left its limit.
        let left = State::read().and_then(|state| state.gso_max_segs(space.name(), link.index));
        // A tap's own limit applies to what the tap sends, not to the flows that are limited.
        let gso_max_segs = left.or(link.gso_max_segs).filter(|_| !at_port);
        let is_limited = kept.is_some() && choice.enforcement != Enforcement::None;
        if let (Some(before), true, false) = (left, left != link.gso_max_segs, is_limited)
            && let Err(error) = space.nl.set_gso_max_segs(link.index, before)
        {
            tracing::debug!("{error}");
        }
        self.load_programs()?;
        let mut endpoint = Endpoint {
            number,
            config,
            space: Arc::clone(space),
            link: link.clone(),
            htb: layout,
            choice,
            unsettled: false,
            shaper,
            at_port,
            gso_max_segs,
            hook: Hook::Tc,
            attached: Vec::new(),
        };
        match self.attach_endpoint(&mut endpoint) {
            Ok(()) => {
                self.endpoints.insert(number, endpoint);
                Ok(())
            }
            Err(error) => {
                self.detach_endpoint(endpoint, true);
                Err(error)
            }
        }
    }

    /// Loads what endpoints need, unless already loaded.
    fn load_programs(&mut self) -> Result<()> {
        self.datapath.load_endpoints()?;
        if self.config.is_backward() {
            self.datapath.load_backward()?;
        }
        Ok(())
    }

    fn attach_endpoint(&mut self, endpoint: &mut Endpoint) -> Result<()> {
        self.enforce(endpoint)?;
        let key = endpoint.key();
        let mut device = self.maps.device(key);
        device.role |= abi::ROLE_ENDPOINT;
        device.endpoint = endpoint.number;
        self.maps.set_device(key, device)?;
        let (ns, device) = (&endpoint.space.ns, &endpoint.config.device);
        // The kernel keeps attached programs; the others are unloaded here.
        let mut programs = self.datapath.endpoint(endpoint.number)?;
        let place = if endpoint.at_port {
            Place::Opposite
        } else {
            Place::Last
        };
        for program in [name::ENDPOINT_IN, name::ENDPOINT_OUT] {
            let attached = programs.attach_at(place, ns, device, program)?;
            endpoint.attached.push(attached);
        }
        // The tc program remains attached, after XDP: it counts data, and echoes that XDP passes.
        let hook = endpoint.config.hook;
        let is_veth = endpoint.link.kind.as_deref() == Some("veth");
        if !endpoint.at_port && (hook == Hook::Xdp || hook == Hook::Auto && !is_veth) {
            let mut programs = self.datapath.copy(ns.inum(), endpoint.number)?;
            match programs.attach_xdp(ns, device) {
                Ok(attached) => {
                    endpoint.attached.push(attached);
                    endpoint.hook = Hook::Xdp;
                    #[cfg(feature = "trace")]
                    self.endpoint_copies.insert(endpoint.number, programs);
                }
                Err(error) if hook == Hook::Auto => tracing::debug!("{error}"),
                Err(error) => return Err(Error::Configuration(error.to_string())),
            }
        }
        Ok(())
    }

    /// Removes everything from a device; its flows' entries are kept in case it reappears.
    fn detach_endpoint(&mut self, endpoint: Endpoint, is_there: bool) {
        let key = endpoint.key();
        endpoint.detach(is_there, &self.shared, &mut self.maps);
        self.forget_role(key, abi::ROLE_ENDPOINT);
    }

    /// Removes an endpoint that has disappeared or is no longer configured; `is_there`: whether its device still
    /// exists.
    pub(super) fn remove_endpoint(&mut self, number: u32, is_there: bool) {
        if let Some(endpoint) = self.endpoints.remove(&number) {
            tracing::info!("endpoint {}: removed", endpoint.name());
            self.detach_endpoint(endpoint, is_there);
        }
    }

    /// Updates the policies of all endpoints from the current configuration.
    pub(super) fn update_endpoints(&mut self) -> Result<()> {
        if !self.endpoints.is_empty() {
            self.load_programs()?;
        }
        for endpoint in self.endpoints.values() {
            let policy = endpoint.policy(&self.config, self.options)?;
            self.maps.set_endpoint(endpoint.number, policy)?;
        }
        Ok(())
    }

    /// Updates what depends on a device's MTU: packet times and bursts. Returns whether it has changed.
    pub(super) fn follow_mtu(&mut self, number: u32, mtu: u32) -> Result<bool> {
        let Some(endpoint) = self.endpoints.get_mut(&number) else {
            return Ok(false);
        };
        if std::mem::replace(&mut endpoint.link.mtu, mtu) == mtu {
            return Ok(false);
        }
        let before = std::mem::replace(&mut endpoint.htb.frame_bytes, mtu + ETHERNET_HEADER);
        // The queue's limit is a number of frames.
        endpoint.choice.queue_bytes /= u64::from(before);
        endpoint.choice.queue_bytes *= u64::from(endpoint.htb.frame_bytes);
        if let Some(target) = lock(&self.shared.targets).get_mut(&number) {
            target.set_layout(endpoint.htb);
        }
        let policy = endpoint.policy(&self.config, self.options)?;
        self.maps.set_endpoint(number, policy)?;
        Ok(true)
    }

    /// Applies the chosen enforcement of an endpoint.
    fn enforce(&mut self, endpoint: &Endpoint) -> Result<()> {
        let number = endpoint.number;
        let kept = self.kept.as_ref();
        let kept = kept.filter(|kept| kept.endpoint(number).is_some());
        if kept.is_none() {
            self.maps.reset_short(number);
        }
        let before = if endpoint.choice.enforcement == Enforcement::None {
            lock(&self.shared.targets).remove(&number)
        } else {
            let segments = match kept {
                Some(_) => endpoint.link.gso_max_segs,
                None => endpoint.gso_max_segs,
            };
            let target = Target::open(
                &endpoint.space,
                endpoint.name(),
                endpoint.htb,
                endpoint.choice.enforcement,
                endpoint.choice.whose,
                (endpoint.gso_max_segs, segments),
                enforce::now_ns(),
            )?;
            match kept {
                Some(kept) => {
                    kept.adopt(number, target, &mut self.maps, &self.shared)?;
                    None
                }
                None => lock(&self.shared.targets).insert(number, target),
            }
        };
        if let Some(mut before) = before {
            before.forget(&mut self.maps);
        }
        if endpoint.choice.enforcement == Enforcement::Pacing {
            let cgroup = datapath::cgroup(self.config.agent.cgroup.as_deref());
            let cgroup = cgroup.map_err(|missing| Error::Configuration(missing.to_owned()))?;
            self.datapath.pace_sockets(&cgroup)?;
        }
        let policy = endpoint.policy(&self.config, self.options)?;
        Ok(self.maps.set_endpoint(number, policy)?)
    }

    /// Reacts to root qdiscs that somebody else has changed: deleted ones are reinstalled, replacements are respected.
    /// Returns whether any endpoint's enforcement has changed.
    pub(super) fn watch_roots(&mut self, qdiscs: &BTreeMap<Spec, Qdiscs>) -> bool {
        let mut changed = false;
        for number in self.changed_roots(qdiscs) {
            let watched = self.watch_root(number);
            let Some(endpoint) = self.endpoints.get_mut(&number) else {
                continue;
            };
            let failed = watched.is_err();
            let was_logged = std::mem::replace(&mut endpoint.unsettled, failed);
            match watched {
                Ok(switched) => changed |= switched,
                // Retried at the next tick; logged once.
                Err(error) if !was_logged => tracing::warn!("{error}"),
                Err(_) => {}
            }
        }
        changed
    }

    /// Endpoints whose listed root qdisc is not the expected one, or whose last change could not be handled.
    fn changed_roots(&self, qdiscs: &BTreeMap<Spec, Qdiscs>) -> Vec<u32> {
        let targets = lock(&self.shared.targets);
        let is_wanted = |endpoint: &Endpoint| endpoint.config.enforcement != Enforcement::None;
        let is_other = |number: &u32, endpoint: &Endpoint| {
            let of_device = qdiscs.get(&endpoint.space.spec);
            let of_device = of_device.and_then(|all| all.get(&endpoint.htb.ifindex));
            let root = of_device.and_then(|its| Root::among(its, endpoint.htb.ifindex));
            root.is_some_and(|root| !endpoint.expects(targets.get(number), &root))
        };
        let endpoints = self.endpoints.iter();
        endpoints
            .filter(|(_, endpoint)| is_wanted(endpoint))
            .filter(|(number, endpoint)| endpoint.unsettled || is_other(number, endpoint))
            .map(|(number, _)| *number)
            .collect()
    }

    fn watch_root(&mut self, number: u32) -> Result<bool> {
        let Some(endpoint) = self.endpoints.get(&number) else {
            return Ok(false);
        };
        {
            // While this lock is held, the enforcing thread neither installs nor removes a root qdisc.
            let targets = lock(&self.shared.targets);
            let target = targets.get(&number);
            match Root::of_device(&endpoint.space.nl, endpoint.htb.ifindex)? {
                Some(root) if !endpoint.expects(target, &root) => {}
                // No relevant change, or the device itself was removed.
                _ => return Ok(false),
            }
        }
        let wanted = endpoint.config.enforcement;
        let choice = endpoint.device(&self.config, wanted).choose_again()?;
        tracing::warn!(
            "endpoint {}: its root qdisc was changed; rates are enforced by {} now ({})",
            endpoint.name(),
            choice.enforcement,
            choice.why
        );
        self.switch(number, choice)?;
        Ok(true)
    }

    /// Switches to another enforcement while flows run.
    fn switch(&mut self, number: u32, choice: Choice) -> Result<()> {
        let Some(mut endpoint) = self.endpoints.remove(&number) else {
            return Ok(());
        };
        endpoint.choice = choice;
        // Its flows' classes were removed: each is recreated at the flow's next decrease.
        let result = self.enforce(&endpoint);
        self.endpoints.insert(number, endpoint);
        result
    }

    /// Applies rates set with `ecn flow set`.
    pub(super) fn apply_pins(&mut self) -> Result<()> {
        let wanted = self.maps.pins()?;
        let mut known = HashMap::new();
        for (key, rate) in wanted {
            if let Some(flow) = self.maps.flow(&key)
                && let Some(class) = self.class_for(&key, &flow)?
            {
                known.insert((u32::from(key.endpoint), class), (key, rate));
            }
        }
        let rates: HashMap<_, _> = known.iter().map(|(&at, &(_, rate))| (at, rate)).collect();
        let before = std::mem::replace(&mut *lock(&self.shared.pinned), rates.clone());
        for (&at, &(key, rate)) in &known {
            let (has, held) = {
                let targets = lock(&self.shared.targets);
                let target = targets.get(&at.0);
                let held = target.and_then(|target| target.rate(at.1));
                (target.is_some_and(|target| target.has(at.1)), held)
            };
            if before.get(&at) != Some(&rate) {
                self.maps.set_limit(at.1, rate)?;
            }
            if !has || held != Some(rate) {
                self.set_rate(at, &key, rate)?;
            }
        }
        // No longer set: the response's rate applies again.
        for &at in before.keys().filter(|at| !known.contains_key(at)) {
            self.maps.set_limit(at.1, 0)?;
            let key = lock(&self.shared.targets)
                .get(&at.0)
                .and_then(|target| target.key(at.1));
            if let Some(key) = key
                && let Some(flow) = self.maps.flow(&key)
            {
                let link = self.maps.endpoint(at.0)?.link_bytes_per_s;
                let rate = match flow.rate_bytes_per_s {
                    0 => link,
                    rate => rate,
                };
                self.set_rate(at, &key, rate)?;
            }
        }
        Ok(())
    }

    /// The class of a flow whose rate is set by a user, whether it was ever marked or not. `None`: no class is free.
    fn class_for(&mut self, key: &flow::Key, flow: &flow::Flow) -> Result<Option<u32>> {
        if flow.class != 0 {
            return Ok(Some(flow.class));
        }
        let Some(class) = lock(&self.shared.free).pop_front() else {
            return Ok(None);
        };
        let change = abi::FlowChange {
            key: *key,
            class,
            _pad: 0,
        };
        let cleared = self.maps.clear_in_force(class);
        let given = cleared.and_then(|()| self.datapath.change_flow(change));
        if !matches!(given, Ok(its) if its == class) {
            lock(&self.shared.free).push_front(class);
        }
        Ok(given.map(|its| (its != 0).then_some(its))?)
    }

    fn set_rate(&mut self, at: (u32, u32), key: &flow::Key, rate_bytes_per_s: u64) -> Result<()> {
        let event = abi::RateEvent {
            endpoint: at.0,
            class: at.1,
            rate_bytes_per_s,
            decrease: self.maps.flow(key).map_or(0, |flow| flow.decreases as u32),
            key: *key,
            ..abi::RateEvent::default()
        };
        self.shared
            .set_rate(&mut self.maps, event)
            .map_err(not_changed)
    }

    /// Lets flows for which the kernel refused a class share that of the short flows.
    pub(super) fn move_unfit_to_short_class(&mut self) -> Result<()> {
        for key in std::mem::take(&mut *lock(&self.shared.unfit)) {
            let change = abi::FlowChange {
                key,
                ..abi::FlowChange::default()
            };
            self.datapath.change_flow(change)?;
        }
        Ok(())
    }

    /// Removes entries that are idle, or must make room for others; each call examines a part of the tables.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let now = enforce::now_ns();
        let idle = self.config.flow.idle.as_nanos();
        let mut freed = Vec::new();
        let max = self.config.flow.max.into();
        let [sent_ages, received_ages] = &mut self.ages;
        let flows = self.sweeper.flows(&self.maps)?;
        if let Some(flows) = &flows {
            let is_over = self.sweeper.sent.is_over();
            self.watch.add_flows(&self.maps, flows, is_over, now);
        }
        for (key, flow) in flows.iter().flatten().copied() {
            if key == flow::Key::short(key.endpoint) {
                continue;
            }
            let last = flow.last_sent_ns.max(flow.created_ns);
            let age = now.saturating_sub(last);
            let unlimited = sent_ages.most(key.endpoint, age).min(idle);
            let over = age
                >= match (flow.class, flow.ended) {
                    (0, 0) => unlimited,
                    (0, _) => unlimited.min(ENDED_NS),
                    (_, 0) => idle,
                    (..) => 0,
                };
            if !over {
                continue;
            }
            let number = u32::from(key.endpoint);
            // While its class is installed, only the review may free it.
            if lock(&self.shared.targets)
                .get(&number)
                .is_some_and(|target| target.has(flow.class))
            {
                if now.saturating_sub(last) >= idle {
                    self.maps.remove_flow(&key, &flow);
                    self.maps.remove_pin(&key);
                }
                continue;
            }
            self.maps.remove_flow(&key, &flow);
            self.maps.remove_pin(&key);
            if flow.class != 0 {
                lock(&self.shared.pinned).remove(&(number, flow.class));
                freed.push(flow.class);
            }
        }
        lock(&self.shared.free).extend(freed);
        if flows.is_some() && self.sweeper.sent.is_over() {
            sent_ages.end_walk(max);
        }
        let receivers = self.sweeper.receivers(&self.maps)?;
        for (key, receiver) in receivers.iter().flatten() {
            let age = now.saturating_sub(receiver.last_packet_ns);
            if age >= received_ages.most(key.endpoint, age).min(idle) {
                self.maps.remove_receiver(key);
            }
        }
        if receivers.is_some() && self.sweeper.received.is_over() {
            received_ages.end_walk(max);
        }
        Ok(())
    }

    /// Lifts the rates of paced sockets, each of which keeps its rate until its next RTT sample.
    fn stop_pacing_sockets(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        let paces = |endpoint: &Endpoint| endpoint.choice.enforcement == Enforcement::Pacing;
        if !self.endpoints.values().any(paces) {
            return;
        }
        let until = Instant::now() + PATIENCE;
        let flags = self.shared.flags.load(Ordering::Relaxed) | abi::BYPASS;
        loop {
            // In each round: a concurrent heartbeat may have overwritten the flags.
            let _ = self.shared.beat(&mut self.maps, flags, PATIENCE);
            let held = self.maps.flows().unwrap_or_default();
            let held = held.iter().filter(|(_, f)| f.socket_bytes_per_s != 0);
            match held.count() {
                0 => return,
                left if Instant::now() >= until => {
                    return tracing::warn!(
                        "{left} idle TCP connections keep their last rate: nothing came from the other end"
                    );
                }
                _ => std::thread::sleep(PATIENCE / 20),
            }
        }
    }

    /// Removes everything. Also called when the start failed halfway.
    pub(super) fn close(&mut self) {
        self.stop_pacing_sockets();
        let _expedited = datapath::ExpeditedRcu::begin();
        self.bridges.clear();
        for endpoint in std::mem::take(&mut self.endpoints).into_values() {
            // No effect if the device was removed with its namespace.
            endpoint.detach(true, &self.shared, &mut self.maps);
        }
    }

    /// Whether a device is an endpoint.
    pub(super) fn has_endpoint(&self, key: DeviceKey) -> bool {
        self.endpoints.values().any(|of| of.key() == key)
    }

    /// Pins of the links of programs at devices.
    pub(super) fn links(&self) -> impl Iterator<Item = &Path> {
        let endpoints = self.endpoints.values().flat_map(|of| &of.attached);
        self.links_at_ports()
            .chain(endpoints.filter_map(Attached::pin))
    }

    /// Leaves everything in place for another agent to take over; limits remain valid for one more heartbeat.
    fn leave(&mut self) {
        let pinned = lock(&self.shared.pinned).clone();
        for (&number, target) in lock(&self.shared.targets).iter_mut() {
            if !target.leave(|class| pinned.contains_key(&(number, class))) {
                continue;
            }
            // The rates of the response would not be enforced: they rose by a sixth in 60 ms, unused, and overran the
            // port as soon as they were enforced.
            if let Err(error) = hold_rates(&mut self.maps, number) {
                tracing::debug!("endpoint {number}: {error}");
            }
        }
        let flags = self.shared.flags.load(Ordering::Relaxed);
        if let Err(error) = self
            .shared
            .beat(&mut self.maps, flags, self.shared.heartbeat())
        {
            tracing::warn!("{error}");
        }
        let endpoints = std::mem::take(&mut self.endpoints).into_values();
        let at_endpoints = endpoints.flat_map(|of| of.attached);
        for attached in at_endpoints.chain(self.attached_at_ports()) {
            attached.leave();
        }
        self.datapath.leave();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.leaves {
            self.leave();
        } else {
            self.close();
        }
    }
}

/// Freezes an endpoint's rates: the programs no longer change them.
fn hold_rates(maps: &mut Maps, number: u32) -> datapath::Result<()> {
    let mut policy = maps.endpoint(number)?;
    policy.response.function = response::Function::None as u32;
    maps.set_endpoint(number, policy)
}

fn not_changed(error: std::io::Error) -> Error {
    Error::Io {
        what: "change a class rate",
        error,
    }
}

/// Checks whether an agent that starts now could limit flows at an endpoint, which may not exist. Changes nothing.
///
/// # Errors
///
/// Those of a start: a root qdisc of another kind, no known rate, or settings that do not apply to the device.
pub fn check_endpoint(config: &Config, endpoint: &config::Endpoint) -> Result<()> {
    let space = match Space::open(&endpoint.netns) {
        Err(net::Error::NoNamespace { .. }) => return Ok(()),
        opened => opened?,
    };
    let links = space.nl.links()?;
    let Some(link) = links.iter().find(|link| link.name == endpoint.device) else {
        return Ok(());
    };
    check_tap(endpoint, &space, link)?;
    let rate = link_rate(endpoint, &space, link)?;
    let root = Root::of_device(&space.nl, link.index)?;
    // A tap's flows are limited at an ifb of ours, and an agent replaces what another one left.
    if link.is_tap_port() || root.is_some_and(|root| root.is_ours()) {
        return Ok(());
    }
    let device = Device {
        nl: &space.nl,
        ns: &space.ns,
        link,
        layout: &layout(link, link, rate),
        wanted: endpoint.enforcement,
        limit_by: endpoint.limit_by,
        cgroup: config.agent.cgroup.as_deref(),
    };
    device.choose().map(drop)
}

/// Fails if settings do not apply to a tap that is a bridge port.
fn check_tap(config: &config::Endpoint, space: &Space, link: &Link) -> Result<()> {
    // The sockets are not on this machine, and XDP sees what the host sends.
    let is_impossible = config.hook == Hook::Xdp || config.enforcement == Enforcement::Pacing;
    if link.is_tap_port() && is_impossible {
        return Err(Error::Configuration(format!(
            "device {} (namespace {}) is a tap and a port of a bridge: hook = \"xdp\" and enforcement = \"pacing\" \
             are not possible there; use \"auto\"",
            config.device,
            space.ns.name()
        )));
    }
    Ok(())
}

/// The link rate of an endpoint, bytes per second: as configured, or the device's own.
fn link_rate(config: &config::Endpoint, space: &Space, link: &Link) -> Result<u64> {
    match config.link_rate {
        Some(rate) => Ok(rate.bytes_per_s()),
        // Drivers of taps report 10 Mbit/s, whatever their real rate.
        None if link.is_tap_port() => Ok(TAP_RATE),
        None => speed(&space.ns, &config.device),
    }
}

/// Layout of the HTB at `at`, which limits the flows of `link`.
const fn layout(at: &Link, link: &Link, link_bytes_per_s: u64) -> EndpointHtb {
    EndpointHtb {
        ifindex: at.index,
        link_bytes_per_s,
        frame_bytes: link.mtu + ETHERNET_HEADER,
    }
}

/// The device's own rate, bytes per second.
fn speed(ns: &NetNs, device: &str) -> Result<u64> {
    match Ethtool::open(ns)?.speed_mbit_per_s(device)? {
        Some(mbit) if mbit > 0 => Ok(u64::from(mbit) * 125_000),
        _ => Err(Error::Configuration(format!(
            "device {device} (namespace {}) does not tell its speed: give link_rate",
            ns.name()
        ))),
    }
}
