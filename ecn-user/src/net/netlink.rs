//! Links, addresses and neighbours over rtnetlink; the queueing half is in `queueing` and `htb`.

use super::wire::{self, Message, Received, text, u32_at};
use super::{Error, NetNs, Result, errno_of};
use netlink_packet_core::{
    NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLMSG_DONE, NLMSG_ERROR,
};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SetSockOpt, recv, send, sockopt};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Receive buffer of a socket: dumps of some thousand classes fit at once.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Maximum size of a datagram of a dump.
const DATAGRAM: usize = 64 << 10;
/// Maximum number of requests sent together: their acknowledgements wait in the receive buffer.
const TOGETHER: usize = 256;

const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const RTNLGRP_LINK: u32 = 1;
/// Omits counters from a link's description.
const RTEXT_FILTER_SKIP_STATS: u32 = 8;
const IFINFOMSG: usize = 16;
const IFLA_GSO_MAX_SEGS: u16 = 40;
const VETH_INFO_PEER: u16 = 1;
const IFLA_BR_STP_STATE: u16 = 5;
const IFLA_BR_MCAST_SNOOPING: u16 = 23;
const IFLA_BRPORT_UNICAST_FLOOD: u16 = 9;
const IFLA_BRPORT_MCAST_FLOOD: u16 = 27;
const IFLA_BRPORT_BCAST_FLOOD: u16 = 30;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
const NUD_NOARP: u16 = 0x40;
const NUD_PERMANENT: u16 = 0x80;
const NTF_MASTER: u8 = 0x04;
const UP: u32 = libc::IFF_UP as u32;

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Its index, unique within its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Largest layer 3 packet in bytes.
    pub mtu: u32,
    /// Ethernet address, if it has one.
    pub mac: Option<[u8; 6]>,
    /// Index of the bridge (or bond, ...) of which it is a port.
    pub master: Option<u32>,
    /// `veth`, `bridge`, ...; `None` for a physical device.
    pub kind: Option<String>,
    /// Index of the device at the other end (veth) or below (vlan), in the namespace `peer_nsid`.
    pub peer: Option<u32>,
    /// Namespace of `peer`, as numbered in this namespace (see [`Netlink::nsid`]); `None` if it is the same one.
    pub peer_nsid: Option<i32>,
    /// Administratively up.
    pub up: bool,
    /// Maximum segments of a super-packet, if the kernel reports it.
    pub gso_max_segs: Option<u32>,
}

/// One end of a veth pair to be created.
#[derive(Debug, Clone, Copy, Default)]
pub struct VethEnd<'a> {
    /// Name of the device.
    pub name: &'a str,
    /// Ethernet address; random if not given.
    pub mac: Option<[u8; 6]>,
    /// Maximum segments of a super-packet. 1 keeps TCP from building any: `tso off gso off` alone does not, and HTB
    /// then releases a super-packet as a whole.
    pub gso_max_segs: Option<u32>,
}

/// A socket for requests in one namespace. Threads can share it; requests are serialized.
#[derive(Debug)]
pub struct Netlink {
    connection: Mutex<Connection>,
    netns: String,
}

#[derive(Debug)]
struct Connection {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Opens a socket of a netlink protocol inside a namespace, with a large receive buffer.
pub(super) fn open_socket(ns: &NetNs, protocol: isize) -> Result<Socket> {
    let open = || -> std::io::Result<Socket> {
        let mut socket = Socket::new(protocol)?;
        // Without CAP_NET_ADMIN, the kernel's maximum must suffice.
        if sockopt::RcvBufForce.set(&socket, &RECEIVE_BUFFER).is_err() {
            sockopt::RcvBuf.set(&socket, &RECEIVE_BUFFER)?;
        }
        // Errors do not contain the refused message, but the kernel's explanation.
        socket.set_cap_ack(true)?;
        socket.set_ext_ack(true)?;
        socket.bind_auto()?;
        Ok(socket)
    };
    ns.run(open).map_err(|io| Error::Netlink {
        what: "open a netlink socket".to_owned(),
        netns: ns.name().to_owned(),
        errno: errno_of(&io),
        kernel: None,
    })
}

/// Content of an `NLMSG_ERROR`; `None` if it is an acknowledgement.
pub(super) fn refusal(message: &Received<'_>) -> Option<(Errno, Option<String>)> {
    let code = u32_at(message.payload, 0).map_or(-libc::EIO, |code| code as i32);
    if code == 0 {
        return None;
    }
    let words = || {
        if message.flags & NLM_F_ACK_TLVS == 0 {
            return None;
        }
        // The header of the refused message, and its payload unless the kernel omitted it.
        let refused = match message.flags & NLM_F_CAPPED {
            0 => wire::align(u32_at(message.payload, 4)? as usize),
            _ => wire::HEADER,
        };
        wire::attributes_after(message.payload, 4 + refused)
            .find(|(kind, _)| *kind == NLMSGERR_ATTR_MSG)
            .map(|(_, value)| text(value))
    };
    Some((Errno::from_raw(code.saturating_neg()), words()))
}

impl Netlink {
    /// Opens a socket inside `ns`; later calls work from any thread.
    pub fn open(ns: &NetNs) -> Result<Self> {
        Ok(Self::over(open_socket(ns, NETLINK_ROUTE)?, ns))
    }

    /// Sends requests over a socket that was opened inside `ns`.
    pub(super) fn over(socket: Socket, ns: &NetNs) -> Self {
        let connection = Connection {
            socket,
            sequence: 0,
            buffer: vec![0; DATAGRAM],
        };
        Self {
            connection: Mutex::new(connection),
            netns: ns.name().to_owned(),
        }
    }

    /// Name of the socket's namespace.
    pub fn netns(&self) -> &str {
        &self.netns
    }

    /// All devices.
    pub fn links(&self) -> Result<Vec<Link>> {
        let message = Message::raw(libc::RTM_GETLINK, 0)
            .ifinfo(0, 0, 0)
            .attr_u32(libc::IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
        self.dump("list the interfaces", &message, |kind, payload| {
            if kind == libc::RTM_NEWLINK {
                parse_link(payload)
            } else {
                None
            }
        })
    }

    /// The device with this name.
    pub fn link(&self, name: &str) -> Result<Link> {
        check_name(name)?;
        let message = get_link(0).attr_str(libc::IFLA_IFNAME, name);
        let mut found = None;
        self.exchange(
            vec![message],
            |_| format!("find interface {name:?}"),
            |kind, payload| {
                if kind == libc::RTM_NEWLINK {
                    found = parse_link(payload);
                }
            },
        )
        .map_err(|error| self.or_no_link(error, name))?;
        found.ok_or_else(|| Error::NoLink {
            name: name.to_owned(),
            netns: self.netns.clone(),
        })
    }

    /// Adds an intermediate functional block: packets redirected to it wait in its queue, and continue where they came
    /// from.
    ///
    /// # Errors
    ///
    /// A device of that name exists, or the kernel does not support this kind.
    pub fn add_ifb(&self, name: &str) -> Result<Link> {
        check_name(name)?;
        let message = Message::request(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL)
            .ifinfo(0, 0, 0)
            .attr_str(libc::IFLA_IFNAME, name)
            .nest(libc::IFLA_LINKINFO, |info| {
                info.attr_str(libc::IFLA_INFO_KIND, "ifb")
            });
        self.request(message, || format!("add ifb {name:?}"))?;
        self.link(name)
    }

    /// Creates a bridge without STP and multicast snooping; it is still down.
    pub fn add_bridge(&self, name: &str) -> Result<Link> {
        check_name(name)?;
        let message = Message::request(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL)
            .ifinfo(0, 0, 0)
            .attr_str(libc::IFLA_IFNAME, name)
            .nest(libc::IFLA_LINKINFO, |info| {
                info.attr_str(libc::IFLA_INFO_KIND, "bridge")
                    .nest(libc::IFLA_INFO_DATA, |data| {
                        data.attr_u32(IFLA_BR_STP_STATE, 0)
                            .attr_u8(IFLA_BR_MCAST_SNOOPING, 0)
                    })
            });
        self.request(message, || format!("add bridge {name:?}"))?;
        self.link(name)
    }

    /// Creates a veth pair with one transmit queue each; `far` is moved to `far_ns`. Both are still down.
    pub fn add_veth(
        &self,
        near: &VethEnd<'_>,
        far: &VethEnd<'_>,
        far_ns: &NetNs,
        mtu: u32,
    ) -> Result<Link> {
        check_name(near.name)?;
        check_name(far.name)?;
        let end = |message: Message, end: &VethEnd<'_>| {
            let mut message = message
                .attr_str(libc::IFLA_IFNAME, end.name)
                .attr_u32(libc::IFLA_MTU, mtu)
                .attr_u32(libc::IFLA_NUM_TX_QUEUES, 1)
                .attr_u32(libc::IFLA_NUM_RX_QUEUES, 1);
            if let Some(mac) = end.mac {
                message = message.attr(libc::IFLA_ADDRESS, &mac);
            }
            match end.gso_max_segs {
                Some(segments) => message.attr_u32(IFLA_GSO_MAX_SEGS, segments),
                None => message,
            }
        };
        let message = Message::request(libc::RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL);
        let message = end(message.ifinfo(0, 0, 0), near).nest(libc::IFLA_LINKINFO, |info| {
            info.attr_str(libc::IFLA_INFO_KIND, "veth")
                .nest(libc::IFLA_INFO_DATA, |data| {
                    data.nest(VETH_INFO_PEER, |peer| {
                        end(peer.ifinfo(0, 0, 0), far)
                            .attr_u32(libc::IFLA_NET_NS_FD, far_ns.as_fd().as_raw_fd() as u32)
                    })
                })
        });
        self.request(message, || {
            let (near, far) = (near.name, far.name);
            format!("add veth {near:?} with peer {far:?} in {:?}", far_ns.name())
        })?;
        self.link(near.name)
    }

    /// Makes a device a port of a bridge.
    pub fn set_master(&self, index: u32, master: u32) -> Result<()> {
        let message = Message::request(libc::RTM_SETLINK, 0)
            .ifinfo(index, 0, 0)
            .attr_u32(libc::IFLA_MASTER, master);
        self.request(message, || {
            format!("make interface {index} a port of {master}")
        })
    }

    /// Tries to attach an XDP program to a device's driver, and returns the reason if the kernel refuses. `None`: it
    /// was accepted, and has been detached again.
    pub(crate) fn xdp_refusal(&self, index: u32, program: BorrowedFd<'_>) -> Option<String> {
        // linux/if_link.h: IFLA_XDP_FD, IFLA_XDP_FLAGS; XDP_FLAGS_UPDATE_IF_NOEXIST, XDP_FLAGS_DRV_MODE.
        let set = |fd: i32, flags: u32| {
            let message = Message::request(libc::RTM_SETLINK, 0)
                .ifinfo(index, 0, 0)
                .nest(libc::IFLA_XDP, |xdp| {
                    xdp.attr(1, &fd.to_ne_bytes()).attr_u32(3, flags)
                });
            self.request(message, || format!("attach XDP to interface {index}"))
        };
        match set(program.as_raw_fd(), 1 | 1 << 2) {
            Err(error) => Some(error.to_string()),
            Ok(()) => {
                let _ = set(-1, 1 << 2);
                None
            }
        }
    }

    /// Keeps a bridge from flooding to a port: it only gets frames for known addresses.
    pub fn set_no_flood(&self, port: u32) -> Result<()> {
        let message = Message::request(libc::RTM_SETLINK, 0)
            .put(&[libc::AF_BRIDGE as u8])
            .put(&port.to_ne_bytes())
            .put(&[0; 8])
            .nest(libc::IFLA_PROTINFO, |info| {
                info.attr_u8(IFLA_BRPORT_UNICAST_FLOOD, 0)
                    .attr_u8(IFLA_BRPORT_MCAST_FLOOD, 0)
                    .attr_u8(IFLA_BRPORT_BCAST_FLOOD, 0)
            });
        self.request(message, || format!("stop flooding to port {port}"))
    }

    /// Sets a device up.
    pub fn set_up(&self, index: u32) -> Result<()> {
        let message = Message::request(libc::RTM_SETLINK, 0).ifinfo(index, UP, UP);
        self.request(message, || format!("set interface {index} up"))
    }

    /// Changes the MTU.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> Result<()> {
        let message = Message::request(libc::RTM_SETLINK, 0)
            .ifinfo(index, 0, 0)
            .attr_u32(libc::IFLA_MTU, mtu);
        self.request(message, || {
            format!("set the MTU of interface {index} to {mtu}")
        })
    }

    /// The maximum segments of super-packets sent through a device; `None` if the kernel does not report it.
    pub fn gso_max_segs(&self, index: u32) -> Result<Option<u32>> {
        let get = get_link(index);
        let mut found = None;
        self.exchange(
            vec![get],
            |_| format!("find interface {index}"),
            |kind, payload| {
                if kind == libc::RTM_NEWLINK {
                    found = parse_link(payload).and_then(|link| link.gso_max_segs);
                }
            },
        )?;
        Ok(found)
    }

    /// Limits the segments of super-packets sent through a device. Connected sockets keep the limit from their last
    /// route lookup. They repeat the lookup when the device reports a change, which it does when an alias is set, even
    /// to its current value.
    pub fn set_gso_max_segs(&self, index: u32, segments: u32) -> Result<()> {
        let get = get_link(index);
        let mut alias = Vec::new();
        self.exchange(
            vec![get],
            |_| format!("find interface {index}"),
            |_, payload| {
                let found = wire::attributes_after(payload, IFINFOMSG)
                    .find(|(kind, _)| *kind == libc::IFLA_IFALIAS);
                if let Some((_, value)) = found {
                    alias = text(value).into_bytes();
                }
            },
        )?;
        let message = Message::request(libc::RTM_SETLINK, 0)
            .ifinfo(index, 0, 0)
            .attr_u32(IFLA_GSO_MAX_SEGS, segments)
            .attr(libc::IFLA_IFALIAS, &alias);
        self.request(message, || {
            format!("limit the super-packets of interface {index} to {segments} segments")
        })
    }

    /// Removes a device, and with it the other end of a veth pair.
    pub fn delete_link(&self, index: u32) -> Result<()> {
        let message = Message::request(libc::RTM_DELLINK, 0).ifinfo(index, 0, 0);
        self.request(message, || format!("delete interface {index}"))
    }

    /// Adds an address to a device, usable at once (no duplicate address detection).
    pub fn add_address(&self, index: u32, address: IpAddr, prefix: u8) -> Result<()> {
        let (family, bytes) = family_and_bytes(address);
        let mut message = Message::request(libc::RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE)
            .put(&[family, prefix, libc::IFA_F_NODAD as u8, 0])
            .put(&index.to_ne_bytes())
            .attr(libc::IFA_LOCAL, &bytes)
            .attr(libc::IFA_ADDRESS, &bytes);
        if address.is_ipv6() {
            message = message.attr_u32(libc::IFA_FLAGS, libc::IFA_F_NODAD);
        }
        self.request(message, || {
            format!("add {address}/{prefix} to interface {index}")
        })
    }

    /// Adds permanent neighbours, so that no ARP or neighbour discovery is needed.
    pub fn add_neighbours(&self, index: u32, neighbours: &[(IpAddr, [u8; 6])]) -> Result<()> {
        let messages = neighbours.iter().map(|(address, mac)| {
            let (family, bytes) = family_and_bytes(*address);
            neighbour(family, index, NUD_PERMANENT, 0)
                .attr(libc::NDA_DST, &bytes)
                .attr(libc::NDA_LLADDR, mac)
        });
        self.exchange(
            messages.collect(),
            |at| format!("add neighbour {} to interface {index}", neighbours[at].0),
            |_, _| {},
        )
    }

    /// Adds Ethernet addresses to a bridge's forwarding database.
    pub fn add_fdb(&self, entries: &[(u32, [u8; 6])]) -> Result<()> {
        let messages = entries.iter().map(|(port, mac)| {
            neighbour(libc::AF_BRIDGE as u8, *port, NUD_NOARP, NTF_MASTER)
                .attr(libc::NDA_LLADDR, mac)
        });
        self.exchange(
            messages.collect(),
            |at| format!("add a bridge entry for port {}", entries[at].0),
            |_, _| {},
        )
    }

    /// The number of another namespace in this one ([`Link::peer_nsid`]), if it has one.
    pub fn nsid(&self, other: &NetNs) -> Result<Option<i32>> {
        let message = Message::request(libc::RTM_GETNSID, 0)
            .put(&[libc::AF_UNSPEC as u8])
            .attr_u32(NETNSA_FD, other.as_fd().as_raw_fd() as u32);
        let mut nsid = None;
        self.exchange(
            vec![message],
            |_| format!("number namespace {:?}", other.name()),
            |_, p| {
                nsid = wire::attributes_after(p, 4)
                    .find(|(kind, _)| *kind == NETNSA_NSID)
                    .and_then(|(_, value)| u32_at(value, 0))
                    .map(|id| id as i32)
                    .filter(|id| *id >= 0);
            },
        )?;
        Ok(nsid)
    }

    /// Sends one request and waits for its acknowledgement.
    pub(super) fn request(&self, message: Message, what: impl Fn() -> String) -> Result<()> {
        self.exchange(vec![message], |_| what(), |_, _| {})
    }

    /// Sends requests together and waits for all acknowledgements. The first refusal is the error; `what` describes the
    /// n-th request for it. `reply` gets the kernel's other replies.
    pub(super) fn exchange(
        &self,
        mut requests: Vec<Message>,
        what: impl Fn(usize) -> String,
        mut reply: impl FnMut(u16, &[u8]),
    ) -> Result<()> {
        let mut connection = self.lock();
        let mut first_refusal = None;
        for (chunk_number, chunk) in requests.chunks_mut(TOGETHER).enumerate() {
            let error = |errno| self.error(what(chunk_number * TOGETHER), errno, None);
            let base = connection.send(chunk).map_err(error)?;
            let mut open = chunk.len();
            while open > 0 {
                connection
                    .receive(|message| {
                        let at = message.sequence.wrapping_sub(base) as usize;
                        if at >= chunk.len() {
                            return; // of an earlier, failed exchange
                        }
                        if message.kind != NLMSG_ERROR {
                            reply(message.kind, message.payload);
                            return;
                        }
                        open -= 1;
                        if let (Some((errno, kernel)), None) = (refusal(&message), &first_refusal) {
                            let what = what(chunk_number * TOGETHER + at);
                            first_refusal = Some(self.error(what, errno, kernel));
                        }
                    })
                    .map_err(error)?;
            }
        }
        first_refusal.map_or(Ok(()), Err)
    }

    /// A dump, repeated if the kernel reports that the table changed meanwhile.
    pub(super) fn dump<T>(
        &self,
        what: &str,
        request: &Message,
        parse: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>> {
        /// After this number of tries, an inconsistent dump is accepted: callers that poll see the rest next time.
        const TRIES: u32 = 5;
        let mut connection = self.lock();
        let flags = libc::NLM_F_REQUEST as u16 | NLM_F_DUMP;
        let mut request = request.clone();
        request.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        for tried in 1.. {
            let error = |errno| self.error(what.to_owned(), errno, None);
            let base = connection
                .send(std::slice::from_mut(&mut request))
                .map_err(error)?;
            let mut entries = Vec::new();
            let (mut done, mut interrupted, mut refused) = (false, false, None);
            while !done {
                connection
                    .receive(|message| {
                        if message.sequence != base {
                            return;
                        }
                        interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                        match message.kind {
                            NLMSG_DONE | NLMSG_ERROR => {
                                done = true;
                                refused = refusal(&message);
                            }
                            kind => entries.extend(parse(kind, message.payload)),
                        }
                    })
                    .map_err(error)?;
            }
            if let Some((errno, kernel)) = refused {
                return Err(self.error(what.to_owned(), errno, kernel));
            }
            if !interrupted || tried == TRIES {
                return Ok(entries);
            }
        }
        Ok(Vec::new())
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, what: String, errno: Errno, kernel: Option<String>) -> Error {
        Error::Netlink {
            what,
            netns: self.netns.clone(),
            errno,
            kernel,
        }
    }

    fn or_no_link(&self, error: Error, name: &str) -> Error {
        match error.errno() {
            Some(Errno::ENODEV) => Error::NoLink {
                name: name.to_owned(),
                netns: self.netns.clone(),
            },
            _ => error,
        }
    }
}

impl Connection {
    /// Sends messages as one datagram; returns the sequence number of the first.
    fn send(&mut self, messages: &mut [Message]) -> nix::Result<u32> {
        let base = self.sequence.wrapping_add(1);
        let mut bytes = Vec::new();
        for message in messages {
            self.sequence = self.sequence.wrapping_add(1);
            message.seal(self.sequence);
            bytes.extend_from_slice(&message.bytes);
            bytes.resize(wire::align(bytes.len()), 0);
        }
        send(self.socket.as_raw_fd(), &bytes, MsgFlags::empty())?;
        Ok(base)
    }

    /// Receives one datagram and passes on its messages.
    fn receive(&mut self, each: impl FnMut(Received<'_>)) -> nix::Result<()> {
        let len = loop {
            match recv(self.socket.as_raw_fd(), &mut self.buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                other => break other?,
            }
        };
        wire::messages(&self.buffer[..len]).for_each(each);
        Ok(())
    }
}

/// A device that was added, changed or removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// The device is new or has changed (also its bridge).
    Changed(Link),
    /// The device was removed; its index may be reused.
    Removed {
        /// Its index.
        index: u32,
        /// Its name.
        name: String,
    },
}

/// Changes of links in a namespace, oldest first.
#[derive(Debug, Default)]
pub struct LinkChanges {
    /// Changes of devices.
    pub links: Vec<LinkEvent>,
    /// Some changes were lost.
    overrun: bool,
}

impl Link {
    /// A tun or tap device: its other end is a process.
    pub fn is_tap(&self) -> bool {
        self.kind.as_deref() == Some("tun")
    }

    /// An intermediate functional block.
    pub fn is_ifb(&self) -> bool {
        self.kind.as_deref() == Some("ifb")
    }

    /// A tap that is a port of a bridge: its other end is a virtual machine.
    pub fn is_tap_port(&self) -> bool {
        self.is_tap() && self.master.is_some()
    }
}

impl LinkChanges {
    /// Whether devices were added, changed or removed.
    pub fn of_links(&self) -> bool {
        self.overrun || !self.links.is_empty()
    }

    /// Indexes of devices that were removed; they may be in use again.
    pub fn removed(&self) -> impl Iterator<Item = u32> {
        self.links.iter().filter_map(|event| match event {
            LinkEvent::Removed { index, .. } => Some(*index),
            LinkEvent::Changed(_) => None,
        })
    }
}

/// Follows the devices of a namespace.
///
/// Not their qdiscs: while any socket of the machine is in `RTNLGRP_TC`, the kernel builds a message for each class
/// that is changed anywhere, which takes as long as the change.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
    netns: String,
}

impl Watch {
    /// Starts to follow. List the existing devices after this, not before, so that no change is missed.
    pub fn open(ns: &NetNs) -> Result<Self> {
        let mut socket = open_socket(ns, NETLINK_ROUTE)?;
        let start = |socket: &mut Socket| {
            socket.add_membership(RTNLGRP_LINK)?;
            socket.set_non_blocking(true)
        };
        let netns = ns.name().to_owned();
        match start(&mut socket) {
            Ok(()) => Ok(Self { socket, netns }),
            Err(io) => Err(follow_error(netns, errno_of(&io))),
        }
    }

    /// All pending changes; does not block.
    pub fn drain(&self) -> Result<LinkChanges> {
        let mut changes = LinkChanges::default();
        let mut buffer = vec![0; DATAGRAM];
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => wire::messages(&buffer[..len]).for_each(|message| changes.add(&message)),
                Err(Errno::EAGAIN) => return Ok(changes),
                Err(Errno::EINTR) => {}
                Err(Errno::ENOBUFS) => changes.overrun = true,
                Err(errno) => return Err(follow_error(self.netns.clone(), errno)),
            }
        }
    }
}

fn follow_error(netns: String, errno: Errno) -> Error {
    Error::Netlink {
        what: "follow the interfaces".to_owned(),
        netns,
        errno,
        kernel: None,
    }
}

impl LinkChanges {
    fn add(&mut self, message: &Received<'_>) {
        match message.kind {
            libc::RTM_NEWLINK | libc::RTM_DELLINK => self.links.extend(link_event(message)),
            _ => {}
        }
    }
}

/// A request for a device by its index, or, with index 0, by an attribute to be added.
fn get_link(index: u32) -> Message {
    Message::request(libc::RTM_GETLINK, 0)
        .ifinfo(index, 0, 0)
        .attr_u32(libc::IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS)
}

fn link_event(message: &Received<'_>) -> Option<LinkEvent> {
    // With the family of bridges, the same message types report membership: DELLINK means that the device left the
    // bridge, not that it was removed. The plain message follows in each case.
    if message.payload.first() != Some(&(libc::AF_UNSPEC as u8)) {
        return None;
    }
    let link = parse_link(message.payload)?;
    match message.kind {
        libc::RTM_NEWLINK => Some(LinkEvent::Changed(link)),
        libc::RTM_DELLINK => Some(LinkEvent::Removed {
            index: link.index,
            name: link.name,
        }),
        _ => None,
    }
}

fn parse_link(payload: &[u8]) -> Option<Link> {
    let mut link = Link {
        index: u32_at(payload, 4)?,
        name: String::new(),
        mtu: 0,
        mac: None,
        master: None,
        kind: None,
        peer: None,
        peer_nsid: None,
        up: u32_at(payload, 8)? & UP != 0,
        gso_max_segs: None,
    };
    for (kind, value) in wire::attributes_after(payload, IFINFOMSG) {
        match kind {
            libc::IFLA_IFNAME => link.name = text(value),
            IFLA_GSO_MAX_SEGS => link.gso_max_segs = u32_at(value, 0),
            libc::IFLA_MTU => link.mtu = u32_at(value, 0)?,
            libc::IFLA_ADDRESS => link.mac = value.try_into().ok(),
            libc::IFLA_MASTER => link.master = u32_at(value, 0),
            libc::IFLA_LINK => link.peer = u32_at(value, 0).filter(|index| *index != 0),
            libc::IFLA_LINK_NETNSID => link.peer_nsid = u32_at(value, 0).map(|id| id as i32),
            libc::IFLA_LINKINFO => {
                link.kind = wire::attributes(value)
                    .find(|(kind, _)| *kind == libc::IFLA_INFO_KIND)
                    .map(|(_, value)| text(value));
            }
            _ => {}
        }
    }
    Some(link)
}

fn neighbour(family: u8, index: u32, state: u16, flags: u8) -> Message {
    let state = state.to_ne_bytes();
    Message::request(libc::RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE)
        .put(&[family, 0, 0, 0])
        .put(&index.to_ne_bytes())
        .put(&[state[0], state[1], flags, 0])
}

fn family_and_bytes(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (libc::AF_INET as u8, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6 as u8, address.octets().to_vec()),
    }
}

fn check_name(name: &str) -> Result<()> {
    let good = !name.is_empty()
        && name.len() < libc::IFNAMSIZ
        && !name.contains(|c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace());
    if good {
        Ok(())
    } else {
        Err(Error::LinkName {
            name: name.to_owned(),
        })
    }
}

#[cfg(test)]
#[path = "netlink_tests.rs"]
mod tests;
