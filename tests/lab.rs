//! A bridge in its own namespace, and hosts around it.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use crate::{traffic::Repeated, wire::Tap};
use ecn_user::net::{NetNs, Netlink, Qdisc, ROOT, VethEnd, ethtool::Ethtool, htb};

/// The bridge.
pub const BRIDGE: &str = "br0";
/// A host's device.
pub const DEVICE: &str = "eth0";
/// MTU of all devices.
pub const MTU: u32 = 1500;
/// Frame length at that MTU.
pub const FRAME: u32 = MTU + 14;
/// Queue length of a port without a limit.
const PORT_PACKETS: u32 = 1000;

/// Bridge and hosts; removed when dropped.
pub struct Lab {
    /// Namespace of the bridge.
    pub switch: NetNs,
    /// Netlink there.
    pub nl: Netlink,
    /// Device index of the bridge.
    pub bridge: u32,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// Rates of ports with limited queues, bytes per second.
    pub limits: RefCell<BTreeMap<String, u64>>,
    super_packets: bool,
}

/// A host.
pub struct Host {
    /// Its namespace.
    pub ns: NetNs,
    /// Netlink there.
    pub nl: Netlink,
    /// Device index of [`DEVICE`].
    pub ifindex: u32,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// IPv4 address.
    pub v4: Ipv4Addr,
    /// IPv6 address.
    pub v6: Ipv6Addr,
    /// Bridge port that it is connected to.
    pub port: String,
    /// Device index of that port.
    pub port_index: u32,
}

impl Host {
    /// Its address of this family.
    pub fn address(&self, ipv6: bool) -> IpAddr {
        if ipv6 { self.v6.into() } else { self.v4.into() }
    }
}

/// Disables IPv6 there, so that the kernel sends nothing by itself.
fn quiet(ns: &NetNs, device: &str) {
    let path = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
    // Fails without IPv6, where the kernel is quiet anyway.
    let _ = ns.run(|| std::fs::write(path, "1"));
}

fn mac(number: usize) -> [u8; 6] {
    [0x02, 0x77, 0, 0, 0, number as u8 + 1]
}

fn add_queue(nl: &Netlink, port: u32) {
    let queue = nl.pfifo_leaf(port, ROOT, 0, PORT_PACKETS);
    queue.expect("a queue");
}

impl Lab {
    /// A lab with this number of hosts; every packet is a frame of its own (no offloads).
    pub fn new(hosts: usize) -> Self {
        Self::with(hosts, false)
    }

    /// With super-packets (GSO, GRO), the default of devices.
    pub fn with_super_packets(hosts: usize) -> Self {
        Self::with(hosts, true)
    }

    fn with(hosts: usize, super_packets: bool) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let lab = NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("ecn-t-{}-{lab}", std::process::id());
        let switch = NetNs::create(&format!("{prefix}-sw")).expect("namespace of the bridge");
        let nl = Netlink::open(&switch).expect("netlink");
        let bridge = nl.add_bridge(BRIDGE).expect("bridge").index;
        quiet(&switch, BRIDGE);
        nl.set_up(bridge).expect("bridge up");
        let mut lab = Self {
            switch,
            nl,
            bridge,
            hosts: Vec::new(),
            limits: RefCell::default(),
            super_packets,
        };
        for number in 0..hosts {
            let name = format!("{prefix}-h{number}");
            let ns = NetNs::create(&name).expect("namespace of a host");
            let nl = Netlink::open(&ns).expect("netlink");
            lab.hosts.push(Host {
                ns,
                nl,
                ifindex: 0,
                mac: mac(number),
                v4: Ipv4Addr::new(10, 77, 0, number as u8 + 1),
                v6: Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, number as u16 + 1),
                port: format!("p{number}"),
                port_index: 0,
            });
            lab.plug_in(number);
        }
        lab
    }

    /// Connects a host to the bridge; also again after [`Lab::unplug`].
    pub fn plug_in(&mut self, number: usize) {
        let gso_max_segs = (!self.super_packets).then_some(1);
        let host = &self.hosts[number];
        let near = VethEnd {
            name: &host.port,
            mac: None,
            gso_max_segs,
        };
        let far = VethEnd {
            name: DEVICE,
            mac: Some(host.mac),
            gso_max_segs,
        };
        self.nl
            .add_veth(&near, &far, &host.ns, MTU)
            .expect("veth pair");
        self.connect(number);
    }

    /// As [`Lab::plug_in`], with this port name and device index. False if `ip` is not installed.
    pub fn plug_in_as(&mut self, number: usize, port: &str, index: u32) -> bool {
        let host = &mut self.hosts[number];
        host.port = port.to_owned();
        let mac = host.mac.map(|byte| format!("{byte:02x}")).join(":");
        let host = host.ns.name();
        let words = format!(
            "link add name {port} index {index} type veth \
             peer name {DEVICE} address {mac} netns {host}"
        );
        // Not `ip -n`: it remounts /sys, which fails in a chroot.
        let ip = || Command::new("ip").args(words.split_whitespace()).status();
        match self.switch.run(ip) {
            Ok(status) => assert!(status.success(), "ip {words}"),
            Err(_) => return false,
        }
        self.connect(number);
        true
    }

    /// As [`Lab::plug_in`], for a virtual machine: its port is a tap. The returned thread plays the hypervisor and carries
    /// frames between the tap and the machine's device.
    pub fn plug_in_machine(&mut self, number: usize) -> Repeated {
        let host = &self.hosts[number];
        let port = Tap::make(&self.switch, &host.port, None);
        let device = Tap::make(&host.ns, DEVICE, Some(host.mac));
        self.connect(number);
        Repeated::start(move || {
            port.wait(&device, Duration::from_millis(50));
            port.carry_to(&device);
            device.carry_to(&port);
        })
    }

    fn connect(&mut self, number: usize) {
        let neighbours: Vec<_> = (0..32)
            .filter(|other| *other != number)
            .flat_map(|other| {
                let last = other as u16 + 1;
                let v4 = IpAddr::from([10, 77, 0, last as u8]);
                let v6 = IpAddr::from([0xfd77, 0, 0, 0, 0, 0, 0, last]);
                [(v4, mac(other)), (v6, mac(other))]
            })
            .collect();
        let host = &mut self.hosts[number];
        let port = self.nl.link(&host.port).expect("the port");
        host.port_index = port.index;
        host.ifindex = host.nl.link(DEVICE).expect("the host's end").index;
        if !self.super_packets {
            for (ns, device) in [(&self.switch, host.port.as_str()), (&host.ns, DEVICE)] {
                let ethtool = Ethtool::open(ns).expect("ethtool");
                ethtool.all_off(device).expect("offloads off");
            }
        }
        quiet(&self.switch, &host.port);
        self.nl.set_master(port.index, self.bridge).expect("a port");
        self.nl.set_up(port.index).expect("port up");
        // A veth has no queue by default, and ports without one are not watched.
        add_queue(&self.nl, port.index);
        host.nl.set_up(host.ifindex).expect("host up");
        host.nl
            .add_address(host.ifindex, host.v4.into(), 24)
            .expect("IPv4");
        host.nl
            .add_address(host.ifindex, host.v6.into(), 64)
            .expect("IPv6");
        host.nl
            .add_neighbours(host.ifindex, &neighbours)
            .expect("neighbours");
        self.nl
            .add_fdb(&[(port.index, host.mac)])
            .expect("bridge entry");
    }

    /// Deletes the bridge; its ports remain, without a master.
    pub fn delete_bridge(&self) {
        self.nl.delete_link(self.bridge).expect("delete the bridge");
    }

    /// Creates it again, with all ports.
    pub fn make_bridge(&mut self) {
        self.bridge = self.nl.add_bridge(BRIDGE).expect("bridge").index;
        quiet(&self.switch, BRIDGE);
        self.nl.set_up(self.bridge).expect("bridge up");
        let mut entries = Vec::new();
        for host in &self.hosts {
            let port = host.port_index;
            self.nl.set_master(port, self.bridge).expect("a port");
            entries.push((port, host.mac));
        }
        self.nl.add_fdb(&entries).expect("bridge entries");
    }

    /// Deletes the veth pair.
    pub fn unplug(&self, number: usize) {
        self.nl
            .delete_link(self.hosts[number].port_index)
            .expect("delete the port");
    }

    /// Limits a host's port to a rate, with a queue of so many packets.
    pub fn limit(&self, number: usize, bytes_per_s: u64, queue_packets: u32) {
        let port = self.hosts[number].port_index;
        htb::install_port(&self.nl, port, bytes_per_s, FRAME, queue_packets).expect("HTB");
        let port = self.hosts[number].port.clone();
        self.limits.borrow_mut().insert(port, bytes_per_s);
    }

    /// Gives a host a link of this rate, with HTB from the start: if HTB is only installed at the first mark, some packets
    /// of that moment are lost.
    pub fn link(&self, number: usize, bytes_per_s: u64) {
        let host = &self.hosts[number];
        let layout = htb::EndpointHtb {
            ifindex: host.ifindex,
            link_bytes_per_s: bytes_per_s,
            frame_bytes: FRAME,
        };
        layout.install_link(&host.nl, 1000).expect("HTB");
    }

    /// Adds a port's queue again after [`Lab::no_queue`].
    pub fn queue(&self, number: usize) {
        add_queue(&self.nl, self.hosts[number].port_index);
    }

    /// Removes a port's queue: it becomes `noqueue`, the kernel's default for veth.
    pub fn no_queue(&self, number: usize) {
        let port = self.hosts[number].port_index;
        self.nl.delete_root_qdisc(port).expect("no queue");
        assert_eq!(self.qdisc(number).kind, "noqueue");
    }

    /// Disables flooding to a host's port, such as unknown multicast.
    pub fn no_flood(&self, number: usize) {
        self.nl
            .set_no_flood(self.hosts[number].port_index)
            .expect("no flooding");
    }

    /// Root qdisc of a host's port.
    pub fn qdisc(&self, number: usize) -> Qdisc {
        let port = self.hosts[number].port_index;
        let found = self.nl.root_qdisc(port).expect("qdiscs");
        found.expect("a root qdisc")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for ns in self.hosts.iter().map(|host| &host.ns).chain([&self.switch]) {
            let _ = NetNs::delete(ns.name());
        }
    }
}
