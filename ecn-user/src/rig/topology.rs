//! HP's Fig. 1 as bridges and network namespaces.
//!
//! ```text
//!  a1 .. aN  (remote sources) ─┐            b1 .. bM (local sources) ─┐
//!                              bra ── tob ══════ toa ── brb ── root ── bc   (congested sink)
//!  av       (victim's source) ─┘                         └─── victim ── bv  (victim's sink)
//! ```
//!
//! The bridges share a namespace; every host has its own, with the device `eth0`. A port is named after its host,
//! except for the two that matter: `root` leads to `bc`, `victim` to `bv`. Every source and the three ports `tob`,
//! `root` and `victim` send at the link rate. No addresses are resolved and nothing is flooded: neighbours and bridge
//! entries exist from the start, and multicast of the hosts' IPv6 ends at the bridge.

use super::pm_qos::AwakeCpus;
use crate::net::ethtool::{Ethtool, Offload};
use crate::net::htb::{self, EndpointHtb};
use crate::net::{self, ClassStats, NetNs, Netlink, Qdisc, VethEnd};
use schemars::JsonSchema;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

/// Prefix of the names of the rig's namespaces.
pub const DEFAULT_PREFIX: &str = "ecn-rig";
/// The ports that send at the link rate: inter-switch, root, victim.
pub const RATED_PORTS: [&str; 3] = ["tob", "root", "victim"];
/// Name of the device at every host.
pub const HOST_DEVICE: &str = "eth0";

const SWITCH: &str = "sw";
/// What TCP may have queued at its own device: as little as the UDP sources' socket buffers, some three packets.
/// Otherwise TCP keeps 1 ms at the rate that its window would allow, and the victim's HTB class holds 6 to 10 packets
/// of it: measured on Linux 6.18, a round-trip time of 4.6 to 9.5 ms instead of the 0.4 ms of a ping beside it.
const TCP_LIMIT_OUTPUT_BYTES: &str = "8192";
const ETHERNET_HEADER: u32 = 14;
const HOSTS_MAX: u32 = 250;

/// An error of the rig.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A rig, or a part of one, exists already.
    #[error(
        "{} namespaces of a rig already exist ({}, ...); `ecn rig down` removes them",
        .found.len(), .found.first().map_or("", String::as_str)
    )]
    AlreadyUp {
        /// Names of its namespaces.
        found: Vec<String>,
    },
    /// Only a part of a rig exists.
    #[error(
        "{missing} of the rig is missing: its creation or removal was interrupted; \
         `ecn rig down` removes the rest"
    )]
    Incomplete {
        /// The missing part.
        missing: String,
    },
    /// An option is out of range.
    #[error("{option} is {value}; it must be {range}")]
    Option {
        /// The option.
        option: &'static str,
        /// Its value.
        value: u64,
        /// Valid range.
        range: &'static str,
    },
    /// Error of the network layer.
    #[error(transparent)]
    Net(#[from] net::Error),
}

/// Result of the rig.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Size and options of a rig.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Topology {
    /// Local sources, at the congested switch.
    pub local: u32,
    /// Remote sources, one switch away.
    pub remote: u32,
    /// Whether there is a victim: a flow that shares the inter-switch link, but not the congested link.
    pub victim: bool,
    /// Rate of all links.
    pub link_rate_bytes_per_s: u64,
    /// Maximum size of a packet; a frame has 14 bytes more. With 2054 frames have HP's 2068 bytes.
    pub mtu: u32,
    /// Limit of a port's or a flow's queue, packets.
    pub leaf_limit: u32,
    /// Whether sources may send super-packets, and ports may merge packets into them (TSO, GSO, GRO). A port's queue is
    /// then limited to the bytes of `leaf_limit` packets, since a packet limit would count a super-packet as one.
    pub offload: bool,
    /// Prefix of the namespaces' names.
    pub name_prefix: String,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            local: 10,
            remote: 10,
            victim: true,
            link_rate_bytes_per_s: 12_500_000,
            mtu: 2054,
            leaf_limit: 100,
            offload: false,
            name_prefix: DEFAULT_PREFIX.to_owned(),
        }
    }
}

/// Role of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Sends to the congested sink from its own switch.
    Local,
    /// Sends to the congested sink from the other switch.
    Remote,
    /// Sends to the victim's sink.
    Victim,
    /// Receives from local and remote sources.
    Sink,
    /// Receives from the victim.
    VictimSink,
}

/// An end host.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Host {
    /// `a1`, `b1`, `av`, `bc`, `bv`, ...
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its namespace.
    pub netns: String,
    /// The bridge to which it is connected.
    pub bridge: &'static str,
    /// The bridge's port to it.
    pub port: String,
    /// Ethernet address.
    pub mac: [u8; 6],
    /// IPv4 address, of 10.83.0.0/16.
    pub ipv4: Ipv4Addr,
    /// IPv6 address, of fd83::/64.
    pub ipv6: Ipv6Addr,
}

impl Host {
    /// Whether it sends.
    pub fn is_source(&self) -> bool {
        matches!(self.role, Role::Local | Role::Remote | Role::Victim)
    }
}

impl Topology {
    /// All hosts: local sources, remote sources, the victim's source, the sinks.
    pub fn hosts(&self) -> Vec<Host> {
        let host = |role, number: u32| {
            let (name, bridge, group) = match role {
                Role::Remote => (format!("a{number}"), "bra", 1),
                Role::Local => (format!("b{number}"), "brb", 2),
                Role::Victim => ("av".to_owned(), "bra", 3),
                Role::Sink => ("bc".to_owned(), "brb", 4),
                Role::VictimSink => ("bv".to_owned(), "brb", 5),
            };
            let port = match role {
                Role::Sink => "root".to_owned(),
                Role::VictimSink => "victim".to_owned(),
                _ => name.clone(),
            };
            Host {
                netns: self.netns(&name),
                role,
                bridge,
                port,
                mac: [0x02, 0x83, 0, group, 0, number as u8],
                ipv4: Ipv4Addr::new(10, 83, group, number as u8),
                ipv6: Ipv6Addr::new(0xfd83, 0, 0, 0, 0, 0, group.into(), number as u16),
                name,
            }
        };
        let mut hosts: Vec<_> = (1..=self.local).map(|n| host(Role::Local, n)).collect();
        hosts.extend((1..=self.remote).map(|n| host(Role::Remote, n)));
        hosts.extend(self.victim.then(|| host(Role::Victim, 1)));
        hosts.push(host(Role::Sink, 1));
        hosts.extend(self.victim.then(|| host(Role::VictimSink, 1)));
        hosts
    }

    /// The ports that send at the link rate: [`RATED_PORTS`], the victim's only if there is one.
    pub fn rated_ports(&self) -> &'static [&'static str] {
        &RATED_PORTS[..if self.victim { 3 } else { 2 }]
    }

    /// Maximum frame size, as counted by HTB and the papers.
    pub fn frame_bytes(&self) -> u32 {
        self.mtu + ETHERNET_HEADER
    }

    fn netns(&self, host: &str) -> String {
        format!("{}-{host}", self.name_prefix)
    }

    fn check(&self) -> Result<()> {
        let option = |good, option, value, range| {
            if good {
                Ok(())
            } else {
                Err(Error::Option {
                    option,
                    value,
                    range,
                })
            }
        };
        let (local, remote, mtu) = (self.local, self.remote, self.mtu);
        option(local <= HOSTS_MAX, "local", local.into(), "at most 250")?;
        option(remote <= HOSTS_MAX, "remote", remote.into(), "at most 250")?;
        option(
            (1280..=65_000).contains(&mtu),
            "mtu",
            mtu.into(),
            "1280 to 65000 (IPv6)",
        )?;
        let rate = self.link_rate_bytes_per_s;
        let enough = rate >= u64::from(self.frame_bytes());
        option(
            enough,
            "link rate in bytes per second",
            rate,
            "at least one frame per second",
        )?;
        option(
            self.leaf_limit > 0,
            "leaf limit",
            self.leaf_limit.into(),
            "at least 1",
        )
    }
}

/// Counters of a port or source that sends at the link rate.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize)]
pub struct Counters {
    /// Bytes sent, with Ethernet header.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets dropped because the queue was full.
    pub dropped_packets: u64,
    /// Packets waiting.
    pub queue_packets: u32,
}

impl From<Qdisc> for Counters {
    fn from(qdisc: Qdisc) -> Self {
        Self {
            bytes: qdisc.bytes,
            packets: qdisc.packets,
            dropped_packets: qdisc.drops.into(),
            queue_packets: qdisc.qlen_packets,
        }
    }
}

/// A rig that is up. Unless it is [kept](Rig::keep), it is removed when this value is dropped, also on panic. Timers
/// emulate its links, so this value keeps idle CPUs awake.
#[derive(Debug)]
pub struct Rig {
    topology: Topology,
    hosts: Vec<Host>,
    switch: NetNs,
    switch_netlink: Netlink,
    keep: bool,
    _awake: Option<AwakeCpus>,
}

impl Rig {
    /// Creates the rig; a partly created one is removed again.
    pub fn up(topology: &Topology) -> Result<Self> {
        topology.check()?;
        let found = leftovers(&topology.name_prefix)?;
        if !found.is_empty() {
            return Err(Error::AlreadyUp { found });
        }
        let switch = match NetNs::create(&topology.netns(SWITCH)) {
            // Another process was faster; what exists belongs to it.
            Err(net::Error::NamespaceExists { name }) => {
                return Err(Error::AlreadyUp { found: vec![name] });
            }
            other => other?,
        };
        Self::make(topology, switch).inspect_err(|_| {
            let _ = remove(&topology.name_prefix);
        })
    }

    fn make(topology: &Topology, switch: NetNs) -> Result<Self> {
        let switch_netlink = Netlink::open(&switch)?;
        let hosts = topology.hosts();
        let rig = Self {
            topology: topology.clone(),
            hosts,
            switch,
            switch_netlink,
            keep: false,
            _awake: AwakeCpus::request(),
        };
        rig.wire()?;
        Ok(rig)
    }

    /// The rig that is up under this prefix, if any. It stays when the value is dropped.
    pub fn find(name_prefix: &str) -> Result<Option<Self>> {
        let found = leftovers(name_prefix)?;
        if found.is_empty() {
            return Ok(None);
        }
        let mut topology = Topology {
            name_prefix: name_prefix.to_owned(),
            ..Topology::default()
        };
        let count = |kind: char| {
            let names = found.iter().filter_map(|name| host_of(name, name_prefix));
            names
                .filter(|host| host.strip_prefix(kind).is_some_and(is_number))
                .count() as u32
        };
        (topology.remote, topology.local) = (count('a'), count('b'));
        topology.victim = found.contains(&topology.netns("av"));
        let hosts = topology.hosts();
        let wanted = hosts
            .iter()
            .map(|host| host.netns.clone())
            .chain([topology.netns(SWITCH)]);
        if let Some(missing) = wanted.into_iter().find(|name| !found.contains(name)) {
            return Err(Error::Incomplete {
                missing: format!("namespace {missing:?}"),
            });
        }
        let switch = NetNs::named(&topology.netns(SWITCH))?;
        let switch_netlink = Netlink::open(&switch)?;
        let mut rig = Self {
            topology,
            hosts,
            switch,
            switch_netlink,
            keep: true,
            _awake: AwakeCpus::request(),
        };
        rig.read_back()?;
        Ok(Some(rig))
    }

    /// Removes the rig.
    pub fn down(mut self) -> Result<()> {
        self.keep = true; // what fails here would fail again in drop
        remove(&self.topology.name_prefix)?;
        Ok(())
    }

    /// Leaves the rig up when this value is dropped.
    pub fn keep(&mut self) {
        self.keep = true;
    }

    /// The topology from which it was created.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// All hosts, as [`Topology::hosts`] orders them.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The namespace of both bridges.
    pub fn switch(&self) -> &NetNs {
        &self.switch
    }

    /// The namespace of a host.
    pub fn netns(&self, host: &Host) -> Result<NetNs> {
        Ok(NetNs::named(&host.netns)?)
    }

    /// A probe of a port that sends at the link rate ([`RATED_PORTS`]), to sample its queue often, by one system call
    /// each.
    pub fn probe(&self, port: &str) -> Result<PortProbe> {
        let netlink = Netlink::open(&self.switch)?;
        let ifindex = netlink.link(port)?.index;
        Ok(PortProbe {
            netlink,
            ifindex,
            port: port.to_owned(),
            frame_bytes: self.topology.frame_bytes(),
        })
    }

    /// Counters of the ports that send at the link rate, by name.
    pub fn port_counters(&self) -> Result<Vec<(String, Counters)>> {
        let links = self.switch_netlink.links()?;
        let qdiscs = self.switch_netlink.qdiscs()?;
        let counters = self.topology.rated_ports().iter().map(|port| {
            let link = links.iter().find(|link| link.name == **port);
            let root = |qdisc: &&Qdisc| {
                link.is_some_and(|link| link.index == qdisc.ifindex) && is_root_htb(qdisc)
            };
            match qdiscs.iter().find(root) {
                Some(qdisc) => Ok(((*port).to_owned(), qdisc.clone().into())),
                None => Err(Error::Incomplete {
                    missing: format!("the HTB of port {port:?}"),
                }),
            }
        });
        counters.collect()
    }

    /// Counters of the sources' devices, in the order of [`Rig::hosts`].
    pub fn source_counters(&self) -> Result<Vec<(String, Counters)>> {
        let sources = self.hosts.iter().filter(|host| host.is_source());
        let counters = sources.map(|host| {
            let qdiscs = Netlink::open(&self.netns(host)?)?.qdiscs()?;
            match qdiscs.into_iter().find(is_root_htb) {
                Some(qdisc) => Ok((host.name.clone(), qdisc.into())),
                None => Err(Error::Incomplete {
                    missing: format!("the HTB of {:?}", host.name),
                }),
            }
        });
        counters.collect()
    }

    fn wire(&self) -> Result<()> {
        let nl = &self.switch_netlink;
        self.switch.run(quiet_switch)?;
        let bridges = [nl.add_bridge("bra")?, nl.add_bridge("brb")?];
        let bridge_index = |name: &str| {
            if name == "bra" {
                bridges[0].index
            } else {
                bridges[1].index
            }
        };
        let ethtool = Ethtool::open(&self.switch)?;
        let mut entries = Vec::new();

        let end = |name| VethEnd {
            name,
            ..VethEnd::default()
        };
        let tob = nl.add_veth(&end("tob"), &end("toa"), &self.switch, self.topology.mtu)?;
        let toa = nl.link("toa")?;
        for (name, index, bridge) in [("tob", tob.index, "bra"), ("toa", toa.index, "brb")] {
            self.set_offloads(&ethtool, name)?;
            nl.set_master(index, bridge_index(bridge))?;
            nl.set_no_flood(index)?;
            nl.set_up(index)?;
        }
        for host in &self.hosts {
            let port = self.attach(host, &ethtool)?;
            nl.set_master(port, bridge_index(host.bridge))?;
            nl.set_no_flood(port)?;
            nl.set_up(port)?;
            let far = if host.bridge == "bra" {
                toa.index
            } else {
                tob.index
            };
            entries.extend([(port, host.mac), (far, host.mac)]);
        }
        for bridge in &bridges {
            nl.set_up(bridge.index)?;
        }
        nl.add_fdb(&entries)?;
        let topology = &self.topology;
        for port in topology.rated_ports() {
            let index = nl.link(port)?.index;
            let (rate, frame) = (topology.link_rate_bytes_per_s, topology.frame_bytes());
            htb::install_port(nl, index, rate, frame, topology.leaf_limit)?;
            if topology.offload {
                let class = htb::port_class();
                nl.fifo_leaf("bfifo", index, class, 0, topology.leaf_limit * frame)?;
            }
        }
        Ok(())
    }

    /// Disables super-packets, or enables them where supported.
    fn set_offloads(&self, ethtool: &Ethtool, device: &str) -> Result<()> {
        if self.topology.offload {
            // The others are on by default; GRO of a veth is not.
            Ok(ethtool.set(device, Offload::Gro, true)?)
        } else {
            Ok(ethtool.all_off(device)?)
        }
    }

    /// Creates a host and its link; returns the index of the port.
    fn attach(&self, host: &Host, ports: &Ethtool) -> Result<u32> {
        let netns = NetNs::create(&host.netns)?;
        netns.run(quiet_host)?;
        netns.run(|| sysctl("net/ipv4/tcp_limit_output_bytes", TCP_LIMIT_OUTPUT_BYTES))?;
        // `tso off gso off` does not keep TCP from building super-packets, which HTB releases as a whole.
        let eth0 = VethEnd {
            name: HOST_DEVICE,
            mac: Some(host.mac),
            gso_max_segs: (!self.topology.offload).then_some(1),
        };
        let port = VethEnd {
            name: &host.port,
            ..VethEnd::default()
        };
        let port = self
            .switch_netlink
            .add_veth(&port, &eth0, &netns, self.topology.mtu)?;
        self.set_offloads(ports, &host.port)?;
        self.set_offloads(&Ethtool::open(&netns)?, HOST_DEVICE)?;

        let nl = Netlink::open(&netns)?;
        let index = nl.link(HOST_DEVICE)?.index;
        if host.is_source() {
            let htb = EndpointHtb {
                ifindex: index,
                link_bytes_per_s: self.topology.link_rate_bytes_per_s,
                frame_bytes: self.topology.frame_bytes(),
            };
            htb.install_link(&nl, self.topology.leaf_limit)?;
        }
        nl.set_up(index)?;
        nl.add_address(index, host.ipv4.into(), 16)?;
        let ipv6 = has_ipv6();
        if ipv6 {
            nl.add_address(index, host.ipv6.into(), 64)?;
        }
        let mut neighbours: Vec<(IpAddr, [u8; 6])> = Vec::new();
        for other in self.hosts.iter().filter(|other| other.name != host.name) {
            neighbours.push((other.ipv4.into(), other.mac));
            neighbours.extend(ipv6.then_some((other.ipv6.into(), other.mac)));
        }
        nl.add_neighbours(index, &neighbours)?;
        Ok(port.index)
    }

    /// Reads rate, MTU and limit back from the root port.
    fn read_back(&mut self) -> Result<()> {
        let missing = |what: &str| Error::Incomplete {
            missing: what.to_owned(),
        };
        let root = match self.switch_netlink.link("root") {
            Err(net::Error::NoLink { .. }) => return Err(missing("port \"root\"")),
            other => other?,
        };
        let class = self.switch_netlink.class_stats(root.index)?;
        let class = class
            .first()
            .ok_or_else(|| missing("the HTB of port \"root\""))?;
        let qdiscs = self.switch_netlink.qdiscs()?;
        let leaf = qdiscs
            .iter()
            .find(|q| q.ifindex == root.index && q.parent == class.classid);
        let (limit, in_bytes) = leaf
            .and_then(|leaf| Some((leaf.limit?, leaf.kind == "bfifo")))
            .ok_or_else(|| missing("the queue of port \"root\""))?;
        let topology = &mut self.topology;
        topology.mtu = root.mtu;
        topology.link_rate_bytes_per_s = class.rate_bytes_per_s;
        topology.offload = in_bytes;
        topology.leaf_limit = match in_bytes {
            true => limit / topology.frame_bytes(),
            false => limit,
        };
        Ok(())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !self.keep {
            let _ = remove(&self.topology.name_prefix);
        }
    }
}

/// Samples one port repeatedly.
#[derive(Debug)]
pub struct PortProbe {
    netlink: Netlink,
    ifindex: u32,
    port: String,
    frame_bytes: u32,
}

impl PortProbe {
    /// The port's class: bytes, packets, drops and queue, in packets on the wire (drops as the kernel counts them).
    pub fn class(&self) -> Result<ClassStats> {
        let class = self.netlink.class_stats(self.ifindex)?.into_iter().next();
        let missing = || format!("the HTB of port {:?}", self.port);
        let mut class = class.ok_or_else(|| Error::Incomplete { missing: missing() })?;
        // The kernel counts a super-packet as one.
        let full = class.backlog_bytes.div_ceil(self.frame_bytes);
        class.qlen_packets = class.qlen_packets.max(full);
        Ok(class)
    }
}

/// Namespaces of a rig with this prefix, complete or not.
pub fn leftovers(name_prefix: &str) -> Result<Vec<String>> {
    let mut names = NetNs::list()?;
    names.retain(|name| host_of(name, name_prefix).is_some());
    Ok(names)
}

/// Removes all namespaces of a rig, and with them its devices; returns their names. Processes that are still inside
/// keep theirs alive, without a name.
pub fn remove(name_prefix: &str) -> Result<Vec<String>> {
    let names = leftovers(name_prefix)?;
    let mut first_error = None;
    for name in &names {
        if let Err(error) = NetNs::delete(name) {
            first_error.get_or_insert(error);
        }
    }
    match first_error {
        Some(error) => Err(error.into()),
        None => Ok(names),
    }
}

/// The host to which a namespace of the rig belongs; `sw` for that of the bridges.
fn host_of<'a>(netns: &'a str, name_prefix: &str) -> Option<&'a str> {
    let host = netns.strip_prefix(name_prefix)?.strip_prefix('-')?;
    let known = matches!(host, SWITCH | "av" | "bc" | "bv")
        || host.strip_prefix(['a', 'b']).is_some_and(is_number);
    known.then_some(host)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_root_htb(qdisc: &Qdisc) -> bool {
    qdisc.parent == net::ROOT && qdisc.kind == "htb"
}

fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

/// Whether a packet is released from its socket's send buffer at the first bridge of a rig, so that the buffer limits
/// what waits at the source and not what is on its way.
///
/// A veth passes the socket on with the packet. It is br_netfilter that releases it (for its filters, of which the
/// bridges' namespace has none); a rig enables that if the kernel has it. Measured on Linux 6.18 at the defaults,
/// without control, 8 KB buffers: with br_netfilter 282,000 drops at the root in 5 s and 0.085 of the link for the
/// victim; without it the 20 flows have 3.3 packets each on their way, the root queue stays at 58 of 100, nothing is
/// dropped and the victim gets 0.51.
pub fn bridge_releases_sockets() -> bool {
    Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables").exists()
}

/// Keeps the bridges' namespace from sending anything itself. Runs inside it.
fn quiet_switch() -> Result<()> {
    sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
    sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
    for (family, on) in [("iptables", "1"), ("ip6tables", "1"), ("arptables", "0")] {
        sysctl(&format!("net/bridge/bridge-nf-call-{family}"), on)?;
    }
    Ok(())
}

/// Keeps a host from sending much itself: no link-local address, hence no solicitations; no wait for duplicate address
/// detection. Runs inside its namespace, before `eth0` exists.
fn quiet_host() -> Result<()> {
    for (key, value) in [
        ("accept_dad", "0"),
        ("addr_gen_mode", "1"),
        ("accept_ra", "0"),
        ("router_solicitations", "0"),
    ] {
        sysctl(&format!("net/ipv6/conf/default/{key}"), value)?;
    }
    Ok(())
}

/// Sets a sysctl of the calling thread's namespace. If this kernel lacks it, there is nothing to disable.
fn sysctl(key: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/{key}");
    match std::fs::write(&path, value) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            let errno = net::errno_of(&error);
            Err(net::Error::File {
                what: "set",
                path,
                errno,
            }
            .into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "topology_tests.rs"]
mod tests;
