//! Endpoints: the queueing discipline with a class per flow, and the flows' entries.

use std::collections::HashMap;

use aya::maps::{MapData, Queue};
use ecn_core::abi::{self, DeviceKey, name};

use super::{
    Error, Inner, Result, endpoint_policy,
    enforce::{self, Target, lock},
    state,
};
use crate::{
    config::{Config, Enforcement},
    datapath::{Attached, Copy},
    net::{
        NetNs, Netlink,
        ethtool::Ethtool,
        htb::{self, ClassSocket, EndpointHtb},
        netlink::Link,
    },
};

/// Classes kept ready for new flows.
const READY: usize = 8;
/// Most flow classes of all endpoints.
const LAST_CLASS: u32 = abi::CLASSES - 1;

/// An endpoint's device.
pub(super) struct Endpoint {
    number: u32,
    ns: NetNs,
    nl: Netlink,
    ifindex: u32,
    htb: EndpointHtb,
    enforced: bool,
    installed: bool,
    /// Free classes that the programs know of.
    ready: usize,
    /// Classes that a flow gave back.
    spare: Vec<u32>,
    /// All classes made.
    made: Vec<u32>,
    queue: Option<Queue<MapData, u32>>,
    _attached: Vec<Attached>,
    _copy: Copy,
}

impl Endpoint {
    pub(super) fn state(&self, config: &Config) -> state::EndpointState {
        let of = &config.endpoints[self.number as usize - 1];
        state::EndpointState {
            number: self.number,
            device: of.device.clone(),
            netns: of.netns.clone().unwrap_or_default(),
            ifindex: self.ifindex,
            response: config.response.function,
            enforcement: of.enforcement,
            installed_qdisc: self.installed,
        }
    }

    fn key(&self) -> DeviceKey {
        DeviceKey { netns: self.ns.inum(), ifindex: self.ifindex }
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
        let nl = Netlink::open(&ns)?;
        let link = nl.link(&config.device)?;
        let rate = match config.link_rate {
            Some(rate) => rate.bytes_per_s(),
            None => speed(&ns, &config.device)?,
        };
        let policy = endpoint_policy(&self.config, self.options, &config, rate)?;
        self.maps.set_endpoint(number, policy)?;
        let enforced = config.enforcement == Enforcement::Htb;
        let layout = EndpointHtb {
            ifindex: link.index,
            link_bytes_per_s: rate,
            frame_bytes: link.mtu + 14,
            leaf_packets: 100,
        };
        let installed = enforced && install(&nl, &link, &layout, &ns)?;
        let mut copy = self.datapath.copy(ns.inum(), number)?;
        let queue = copy.classes()?;
        let mut endpoint = Endpoint {
            number,
            ns,
            nl,
            ifindex: link.index,
            htb: layout,
            enforced,
            installed,
            ready: 0,
            spare: Vec::new(),
            made: Vec::new(),
            queue: Some(queue),
            _attached: Vec::new(),
            _copy: copy,
        };
        if enforced {
            let socket = ClassSocket::open(&endpoint.ns)?;
            lock(&self.shared.targets).insert(number, Target { htb: layout, socket });
        }
        let key = endpoint.key();
        let mut device = self.maps.device(key);
        device.role |= abi::ROLE_ENDPOINT;
        device.endpoint = number;
        self.maps.set_device(key, device)?;
        for program in [name::ENDPOINT_IN, name::ENDPOINT_OUT] {
            let attached = endpoint._copy.attach(&endpoint.ns, &config.device, program);
            match attached {
                Ok(attached) => endpoint._attached.push(attached),
                Err(error) => {
                    self.endpoints.push(endpoint);
                    return Err(error.into());
                }
            }
        }
        self.endpoints.push(endpoint);
        self.make_classes(number)
    }

    fn endpoint(&mut self, number: u32) -> Option<&mut Endpoint> {
        self.endpoints.get_mut((number as usize).wrapping_sub(1))
    }

    /// A flow took a class.
    pub(super) fn refill_classes(&mut self, number: u32) -> Result<()> {
        if let Some(endpoint) = self.endpoint(number) {
            endpoint.ready = endpoint.ready.saturating_sub(1);
        }
        self.make_classes(number)
    }

    /// Keeps some classes ready.
    fn make_classes(&mut self, number: u32) -> Result<()> {
        let mut next = self.next_class;
        let Some(endpoint) = self.endpoint(number) else {
            return Ok(());
        };
        let mut result = Ok(());
        while endpoint.enforced && endpoint.ready < READY {
            let class = match endpoint.spare.pop() {
                Some(class) => class,
                None if next > LAST_CLASS => break,
                None => {
                    let rate = endpoint.htb.link_bytes_per_s;
                    if let Err(error) =
                        endpoint.htb.add_flow_class(&endpoint.nl, next as u16, rate)
                    {
                        result = Err(error.into());
                        break;
                    }
                    endpoint.made.push(next);
                    next += 1;
                    next - 1
                }
            };
            let Some(queue) = endpoint.queue.as_mut() else {
                break;
            };
            if queue.push(class, 0).is_err() {
                endpoint.spare.push(class);
                break;
            }
            endpoint.ready += 1;
        }
        self.next_class = next;
        result
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
        let set = |at: (u32, u32), rate| {
            self.shared
                .set_rate(at.0, at.1, rate)
                .map_err(|error| Error::Io { what: "change a class rate", error })
        };
        for (&at, &rate) in &known {
            if before.get(&at) != Some(&rate) {
                set(at, rate)?;
            }
        }
        // Given back: the response's rate holds again.
        let flows = self.maps.flows()?;
        for &at in before.keys().filter(|at| !known.contains_key(at)) {
            let flow = flows.iter().find(|(k, f)| (u32::from(k.endpoint), f.class) == at);
            if let Some((_, flow)) = flow {
                set(at, flow.rate_bytes_per_s)?;
            }
        }
        Ok(())
    }

    /// Removes what has been idle, and mends what stands still.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let now = enforce::now_ns();
        let idle = self.config.flow.idle.as_nanos();
        for (key, flow) in self.maps.flows()? {
            let last = flow.last_sent_ns.max(flow.created_ns);
            if now.saturating_sub(last) < idle {
                continue;
            }
            self.maps.remove_flow(&key);
            self.maps.remove_pin(&key);
            let at = (u32::from(key.endpoint), flow.class);
            if flow.class == 0 {
                continue;
            }
            lock(&self.shared.pinned).remove(&at);
            if let Some(endpoint) = self.endpoint(at.0) {
                endpoint.spare.push(flow.class);
                let rate = endpoint.htb.link_bytes_per_s;
                self.shared
                    .set_rate(at.0, at.1, rate)
                    .map_err(|error| Error::Io { what: "change a class rate", error })?;
            }
            self.make_classes(at.0)?;
        }
        for (key, receiver) in self.maps.receivers()? {
            if now.saturating_sub(receiver.last_packet_ns) >= idle {
                self.maps.remove_receiver(&key);
            }
        }
        self.sweep_bridges()
    }

    /// Takes everything off again. Also when the start failed in the middle.
    pub(super) fn close(&mut self) {
        self.bridges.clear();
        lock(&self.shared.targets).clear();
        for endpoint in self.endpoints.drain(..) {
            // Programs first: no packet may choose a class that is going.
            let Endpoint { _attached: attached, nl, htb, installed, made, .. } = endpoint;
            drop(attached);
            let result = if installed {
                htb.uninstall(&nl)
            } else {
                made.iter().try_for_each(|&class| htb.remove_flow_class(&nl, class as u16))
            };
            if let Err(error) = result {
                // The device may be gone with its namespace.
                tracing::debug!("{error}");
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

/// Puts our layout onto the device. False: it was there already.
fn install(nl: &Netlink, link: &Link, layout: &EndpointHtb, ns: &NetNs) -> Result<bool> {
    match nl.root_qdisc(link.index)? {
        Some(root) if root.handle >> 16 == u32::from(htb::ENDPOINT_MAJOR) => return Ok(false),
        // Handle 0: the kernel's own choice, not the user's.
        Some(root) if root.handle >> 16 != 0 => {
            return Err(Error::Configuration(format!(
                "device {} (namespace {}) has a {} root qdisc of its own ({:x}:): remove it (tc qdisc \
                 del dev {} root), or use enforcement = \"none\"",
                link.name,
                ns.name(),
                root.kind,
                root.handle >> 16,
                link.name
            )));
        }
        _ => {}
    }
    layout.install(nl)?;
    Ok(true)
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
