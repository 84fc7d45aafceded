//! Endpoints: how the rates of their flows are enforced, and the flows' entries.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ecn_core::{
    abi::{self, DeviceKey, name},
    flow,
};

use super::{
    Error, Inner, Result, endpoint_policy,
    enforce::{self, Target, lock},
    root::{Choice, Device, Root},
    state::{self, State},
};
use crate::{
    config::{Config, Enforcement, Hook},
    datapath::{self, Attached, Copy},
    net::{
        NetNs, Netlink, QdiscWatch,
        ethtool::Ethtool,
        htb::{ClassSocket, EndpointHtb},
        netlink::{Link, LinkEvent, LinkWatch},
    },
};

/// An endpoint's device.
pub(super) struct Endpoint {
    number: u32,
    ns: NetNs,
    nl: Netlink,
    link: Link,
    htb: EndpointHtb,
    watch: QdiscWatch,
    choice: Choice,
    /// Its root qdisc could not be looked after when it was changed.
    unsettled: bool,
    links: LinkWatch,
    /// Segments of a super-packet at most before we came, where that was more.
    gso_max_segs: Option<u32>,
    /// Its device was deleted and has not come back, or could not be taken back.
    away: bool,
    /// That was said.
    said: bool,
    /// Classes that exist.
    made: HashSet<u32>,
    /// Where echoes are taken.
    hook: Hook,
    attached: Vec<Attached>,
    copy: Copy,
}

impl Endpoint {
    pub(super) fn state(&self, config: &Config) -> state::EndpointState {
        let of = &config.endpoints[self.number as usize - 1];
        state::EndpointState {
            number: self.number,
            device: of.device.clone(),
            netns: of.netns.clone().unwrap_or_default(),
            ifindex: self.link.index,
            response: config.response.function,
            enforcement: self.choice.enforcement,
            why: self.choice.why.clone(),
            hook: self.hook,
            installed_qdisc: self.choice.installed,
            gso_max_segs: self.gso_max_segs,
        }
    }

    fn key(&self) -> DeviceKey {
        DeviceKey {
            netns: self.ns.inum(),
            ifindex: self.link.index,
        }
    }

    fn device(&self, config: &Config, wanted: Enforcement) -> Device<'_> {
        Device {
            nl: &self.nl,
            ns: &self.ns,
            link: &self.link,
            layout: &self.htb,
            wanted,
            sockets: datapath::cgroup(config.agent.cgroup.as_deref()).map(drop),
        }
    }

    /// For people.
    fn name(&self) -> String {
        format!("{} (namespace {})", self.link.name, self.ns.name())
    }

    /// Whether the device was deleted; by now another one may have its name and number.
    fn has_gone(&self) -> bool {
        let gone = |event: &LinkEvent| match event {
            LinkEvent::Gone { index, .. } => *index == self.link.index,
            LinkEvent::Changed(_) => false,
            LinkEvent::Overrun => {
                let link = self.nl.link(&self.link.name);
                link.is_ok_and(|link| link.index != self.link.index)
            }
        };
        self.links
            .drain()
            .is_ok_and(|events| events.iter().any(gone))
    }

    /// Keeps super-packets short: see [`EndpointHtb::super_packet_segments`].
    fn limit_super_packets(&mut self, netns: &str) {
        let most = self.htb.super_packet_segments();
        // A killed agent may have left its limit there.
        let left = State::read().and_then(|state| state.gso_max_segs(netns, self.link.index));
        let before = left.or(self.link.gso_max_segs).filter(|n| *n > most);
        if before.is_none() || self.choice.enforcement == Enforcement::None {
            return;
        }
        match self.nl.set_gso_max_segs(self.link.index, most) {
            Ok(()) => self.gso_max_segs = before,
            // Old kernels: it works, with longer bursts.
            Err(error) => tracing::warn!("{error}"),
        }
    }

    /// Takes everything off its device.
    fn take_off(self) {
        // Programs first: no packet may choose a class that is going.
        drop(self.attached);
        if let (Some(segments), false) = (self.gso_max_segs, self.away)
            && let Err(error) = self.nl.set_gso_max_segs(self.link.index, segments)
        {
            tracing::debug!("{error}");
        }
        let remove = || -> crate::net::Result<()> {
            if self.choice.installed {
                return self.nl.delete_root_qdisc(self.link.index);
            }
            let remove = |&class| self.htb.remove_flow_class(&self.nl, class as u16);
            self.made.iter().try_for_each(remove)
        };
        // Unless somebody put another one there just now, or the device is another one.
        let ours = !self.away
            && Root::look(&self.nl, self.link.index)
                .is_ok_and(|root| root.is_some_and(|root| root == self.choice.root));
        let result = if ours { remove() } else { Ok(()) };
        if let Err(error) = result {
            // The device may be gone with its namespace.
            tracing::debug!("{error}");
        }
    }
}

impl Inner {
    pub(super) fn add_endpoint(&mut self, number: u32) -> Result<()> {
        let config = self.config.endpoints[number as usize - 1].clone();
        if number >= abi::ENDPOINTS {
            return Err(Error::Configuration(format!(
                "{} endpoints are the most",
                abi::ENDPOINTS - 1
            )));
        }
        let ns = NetNs::open(config.netns.as_deref())?;
        // Before the first look, so that nothing is missed.
        let links = LinkWatch::open(&ns)?;
        let nl = Netlink::open(&ns)?;
        let link = nl.link(&config.device)?;
        let rate = match config.link_rate {
            Some(rate) => rate.bytes_per_s(),
            None => speed(&ns, &config.device)?,
        };
        let layout = EndpointHtb {
            ifindex: link.index,
            link_bytes_per_s: rate,
            frame_bytes: link.mtu + 14,
            leaf_packets: 100,
        };
        let watch = QdiscWatch::open(&ns)?;
        let copy = self.datapath.copy(ns.inum(), number)?;
        let device = Device {
            nl: &nl,
            ns: &ns,
            link: &link,
            layout: &layout,
            wanted: config.enforcement,
            sockets: datapath::cgroup(self.config.agent.cgroup.as_deref()).map(drop),
        };
        let choice = device.choose()?;
        let mut endpoint = Endpoint {
            number,
            ns,
            nl,
            link,
            htb: layout,
            watch,
            choice,
            unsettled: false,
            links,
            gso_max_segs: None,
            away: false,
            said: false,
            made: HashSet::new(),
            hook: Hook::Tc,
            attached: Vec::new(),
            copy,
        };
        if let Err(error) = self.enforce(&endpoint) {
            self.endpoints.push(endpoint);
            return Err(error);
        }
        endpoint.limit_super_packets(config.netns.as_deref().unwrap_or_default());
        let key = endpoint.key();
        let mut device = self.maps.device(key);
        device.role |= abi::ROLE_ENDPOINT;
        device.endpoint = number;
        self.maps.set_device(key, device)?;
        for program in [name::ENDPOINT_IN, name::ENDPOINT_OUT] {
            let attached = endpoint.copy.attach(&endpoint.ns, &config.device, program);
            match attached {
                Ok(attached) => endpoint.attached.push(attached),
                Err(error) => {
                    self.endpoints.push(endpoint);
                    return Err(error.into());
                }
            }
        }
        // tc stays behind it: there data is counted, and echoes too where XDP lets them pass.
        if config.hook == Hook::Xdp
            || config.hook == Hook::Auto && endpoint.link.kind.as_deref() != Some("veth")
        {
            match endpoint.copy.attach_xdp(&endpoint.ns, &config.device) {
                Ok(attached) => {
                    endpoint.attached.push(attached);
                    endpoint.hook = Hook::Xdp;
                }
                Err(error) if config.hook == Hook::Auto => tracing::debug!("{error}"),
                Err(error) => {
                    self.endpoints.push(endpoint);
                    return Err(Error::Configuration(error.to_string()));
                }
            }
        }
        self.endpoints.push(endpoint);
        Ok(())
    }

    /// Devices that were deleted and made again get programs, queueing and their flows' classes again.
    /// Returns whether anything has changed. What fails is tried again at the next tick.
    pub(super) fn follow_endpoints(&mut self) -> bool {
        let mut changed = false;
        for at in 0..self.endpoints.len() {
            if !self.endpoints[at].away {
                if !self.endpoints[at].has_gone() {
                    continue;
                }
                self.release_endpoint(at);
            }
            let device = &self.config.endpoints[at].device;
            if self.endpoints[at].nl.link(device).is_err() {
                continue;
            }
            match self.remake_endpoint(at) {
                Ok(()) => {
                    changed = true;
                    tracing::warn!("endpoint {} is there again", self.endpoints[at].name());
                }
                Err(error) => {
                    let endpoint = &mut self.endpoints[at];
                    if !std::mem::replace(&mut endpoint.said, true) {
                        tracing::warn!("endpoint {}: {error}", endpoint.name());
                    }
                }
            }
        }
        changed
    }

    /// What holds on to a device that is gone.
    fn release_endpoint(&mut self, at: usize) {
        let endpoint = &mut self.endpoints[at];
        tracing::warn!("endpoint {}: its device is gone", endpoint.name());
        endpoint.away = true;
        endpoint.made.clear();
        endpoint.attached.clear();
        let (key, number) = (endpoint.key(), endpoint.number);
        lock(&self.shared.targets).remove(&number);
        self.forget_role(key, abi::ROLE_ENDPOINT);
    }

    fn remake_endpoint(&mut self, at: usize) -> Result<()> {
        let others = self.endpoints.len();
        let added = self.add_endpoint(self.endpoints[at].number);
        let new = self.endpoints.drain(others..).next();
        match (added, new) {
            (Ok(()), Some(new)) => {
                self.endpoints[at] = new;
                Ok(())
            }
            (added, half) => {
                half.into_iter().for_each(Endpoint::take_off);
                added
            }
        }
    }

    /// Gives every endpoint the policy of the configuration as it is now.
    pub(super) fn update_endpoints(&mut self) -> Result<()> {
        for endpoint in &self.endpoints {
            let policy = endpoint_policy(
                &self.config,
                self.options,
                &self.config.endpoints[endpoint.number as usize - 1],
                &endpoint.choice,
                &endpoint.htb,
            )?;
            self.maps.set_endpoint(endpoint.number, policy)?;
        }
        Ok(())
    }

    /// Brings the choice of an endpoint into force.
    fn enforce(&mut self, endpoint: &Endpoint) -> Result<()> {
        let number = endpoint.number;
        if endpoint.choice.enforcement == Enforcement::Htb {
            let target = Target {
                htb: endpoint.htb,
                socket: ClassSocket::open(&endpoint.ns)?,
            };
            lock(&self.shared.targets).insert(number, target);
        } else {
            lock(&self.shared.targets).remove(&number);
        }
        if endpoint.choice.enforcement == Enforcement::Pacing {
            let cgroup = datapath::cgroup(self.config.agent.cgroup.as_deref());
            let cgroup = cgroup.map_err(|missing| Error::Configuration(missing.to_owned()))?;
            self.datapath.pace_sockets(&cgroup)?;
        }
        let config = &self.config.endpoints[number as usize - 1];
        let policy = endpoint_policy(
            &self.config,
            self.options,
            config,
            &endpoint.choice,
            &endpoint.htb,
        )?;
        Ok(self.maps.set_endpoint(number, policy)?)
    }

    /// Looks after root qdiscs that somebody else has changed: what was deleted comes back, what was
    /// replaced is respected. Returns whether anything is enforced in another way now.
    pub(super) fn watch_roots(&mut self) -> Result<bool> {
        let mut changed = false;
        for at in 0..self.endpoints.len() {
            match self.watch_root(at) {
                Ok(switched) => {
                    changed |= switched;
                    self.endpoints[at].unsettled = false;
                }
                Err(error) => {
                    // Again at the next tick; said once.
                    if !std::mem::replace(&mut self.endpoints[at].unsettled, true) {
                        tracing::warn!("{error}");
                    }
                }
            }
        }
        Ok(changed)
    }

    fn watch_root(&mut self, at: usize) -> Result<bool> {
        let endpoint = &self.endpoints[at];
        let wanted = self.config.endpoints[at].enforcement;
        let (index, before) = (endpoint.link.index, &endpoint.choice.root);
        let heard = endpoint.watch.changed(index, before.major())?;
        if (!heard && !endpoint.unsettled) || endpoint.away || wanted == Enforcement::None {
            return Ok(false);
        }
        match Root::look(&endpoint.nl, index)? {
            Some(root) if root != *before => {}
            // Nothing that matters; or the device itself went, and there is nothing to look after.
            _ => return Ok(false),
        }
        let choice = endpoint.device(&self.config, wanted).choose_again()?;
        tracing::warn!(
            "endpoint {} (namespace {}): its root qdisc was changed; rates are enforced by {} now ({})",
            endpoint.link.name,
            endpoint.ns.name(),
            choice.enforcement,
            choice.why
        );
        self.switch(at, choice)?;
        Ok(true)
    }

    /// Another way of enforcement, while flows run.
    fn switch(&mut self, at: usize, choice: Choice) -> Result<()> {
        let mut endpoint = self.endpoints.remove(at);
        endpoint.choice = choice;
        endpoint.made.clear();
        let result = self.enforce(&endpoint);
        let number = endpoint.number;
        self.endpoints.insert(at, endpoint);
        result?;
        for (key, flow) in self.maps.flows()? {
            if u32::from(key.endpoint) != number || flow.class == 0 {
                continue;
            }
            self.make_class(&key, flow.class)?;
            // Who was to say so before cannot any more.
            self.maps.set_in_force(flow.class, flow.decreases as u32)?;
        }
        Ok(())
    }

    fn endpoint(&mut self, number: u32) -> Option<&mut Endpoint> {
        self.endpoints.get_mut((number as usize).wrapping_sub(1))
    }

    /// A new flow took a class.
    pub(super) fn class_taken(&mut self, number: u32, class: u32) -> Result<()> {
        self.offer_classes();
        let flows = self.maps.flows()?;
        let of_class = |(key, flow): &&(flow::Key, flow::Flow)| {
            u32::from(key.endpoint) == number && flow.class == class
        };
        // Not found: it is gone, or the walk has missed it and the sweep will not.
        match flows.iter().find(of_class) {
            Some((key, _)) => self.make_class(key, class),
            None => Ok(()),
        }
    }

    /// A flow's class comes into being, if it has not, with the rate that the flow has by now.
    fn make_class(&mut self, key: &flow::Key, class: u32) -> Result<()> {
        let number = u32::from(key.endpoint);
        let Some(endpoint) = self.endpoint(number) else {
            return Ok(());
        };
        if endpoint.away
            || endpoint.choice.enforcement != Enforcement::Htb
            || endpoint.made.contains(&class)
        {
            return Ok(());
        }
        let link = endpoint.htb.link_bytes_per_s;
        endpoint
            .htb
            .add_flow_class(&endpoint.nl, class as u16, link)?;
        // Set by hand before there was a class to set.
        let pinned = lock(&self.shared.pinned).get(&(number, class)).copied();
        let opened = self.shared.open_class(&mut self.maps, key, pinned);
        opened.map_err(not_changed)?;
        // Only now: what went wrong above is tried again at the next sweep.
        if let Some(endpoint) = self.endpoint(number) {
            endpoint.made.insert(class);
        }
        Ok(())
    }

    fn set_rate(&self, at: (u32, u32), rate_bytes_per_s: u64) -> Result<()> {
        self.shared
            .set_rate(at.0, at.1, rate_bytes_per_s)
            .map_err(not_changed)
    }

    /// Offers free classes to new flows, as many as the queue takes.
    pub(super) fn offer_classes(&mut self) {
        while let Some(class) = self.free_classes.pop_front() {
            if !self.maps.offer_class(class) {
                self.free_classes.push_front(class);
                return;
            }
        }
    }

    /// Rates set by people: `ecn flow set` writes them, here they come into force.
    pub(super) fn apply_pins(&mut self) -> Result<()> {
        let wanted = self.maps.pins()?;
        let mut known = HashMap::new();
        for (key, rate) in wanted {
            if let Some(flow) = self.maps.flow(&key)
                && flow.class != 0
            {
                known.insert((u32::from(key.endpoint), flow.class), rate);
            }
        }
        let before = lock(&self.shared.pinned).clone();
        if before == known {
            return Ok(());
        }
        *lock(&self.shared.pinned) = known.clone();
        for (&at, &rate) in &known {
            if before.get(&at) != Some(&rate) {
                self.maps.set_limit(at.1, rate)?;
                self.set_rate(at, rate)?;
            }
        }
        // Given back: the response's rate holds again.
        let flows = self.maps.flows()?;
        for &at in before.keys().filter(|at| !known.contains_key(at)) {
            self.maps.set_limit(at.1, 0)?;
            let flow = flows
                .iter()
                .find(|(k, f)| (u32::from(k.endpoint), f.class) == at);
            if let Some((_, flow)) = flow {
                self.set_rate(at, flow.rate_bytes_per_s)?;
            }
        }
        Ok(())
    }

    /// Removes what has been idle, and mends what stands still.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let now = enforce::now_ns();
        let idle = self.config.flow.idle.as_nanos();
        for (key, flow) in self.maps.flows()? {
            // The ring was full when it took its class, or its device was made again. One device's
            // trouble must not keep the others waiting.
            if flow.class != 0
                && let Err(error) = self.make_class(&key, flow.class)
            {
                tracing::debug!("{error}");
            }
            let last = flow.last_sent_ns.max(flow.created_ns);
            if now.saturating_sub(last) < idle {
                continue;
            }
            self.maps.remove_flow(&key, &flow);
            self.maps.remove_pin(&key);
            let at = (u32::from(key.endpoint), flow.class);
            if flow.class == 0 {
                continue;
            }
            lock(&self.shared.pinned).remove(&at);
            if let Some(endpoint) = self.endpoint(at.0)
                && endpoint.made.remove(&flow.class)
                && let Err(error) = endpoint
                    .htb
                    .remove_flow_class(&endpoint.nl, flow.class as u16)
            {
                tracing::debug!("{error}");
            }
            self.free_classes.push_back(flow.class);
        }
        self.offer_classes();
        for (key, receiver) in self.maps.receivers()? {
            if now.saturating_sub(receiver.last_packet_ns) >= idle {
                self.maps.remove_receiver(&key);
            }
        }
        self.sweep_bridges()
    }

    /// Sockets keep the rate that they were given: their next round-trip time takes it off.
    fn free_sockets(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        let paces = |endpoint: &Endpoint| endpoint.choice.enforcement == Enforcement::Pacing;
        if !self.endpoints.iter().any(paces) {
            return;
        }
        let until = Instant::now() + PATIENCE;
        let flags = self.shared.flags.load(Ordering::Relaxed) | abi::BYPASS;
        loop {
            // Each time: a heartbeat may just have been under way.
            let _ = enforce::beat(&mut self.maps, flags, PATIENCE);
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

    /// Takes everything off again. Also when the start failed in the middle.
    pub(super) fn close(&mut self) {
        self.free_sockets();
        self.bridges.clear();
        lock(&self.shared.targets).clear();
        self.endpoints.drain(..).for_each(Endpoint::take_off);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

fn not_changed(error: std::io::Error) -> Error {
    Error::Io {
        what: "change a class rate",
        error,
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
