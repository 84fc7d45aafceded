//! HTB for the enforcement of rates: its layout on a device, and fast changes of many rates.
//!
//! At an endpoint (major [`ENDPOINT_MAJOR`]), as long as any of its flows is limited:
//!
//! ```text
//! ec0e:            root, default class 0: unlimited packets bypass all classes, ahead of them
//! └─ ec0e:1        rate = ceil = link rate
//!    ├─ ec0e:11    the short flows of endpoint 1, if they were marked: a small rate, may borrow up to theirs
//!    ├─ ec0e:410   first limited flow: a small rate, may borrow up to the rate of the flow
//!    └─ ec0e:411   ...
//! ```
//!
//! At a source of the rig, HTB emulates a link of that rate, so no traffic bypasses it: its default class is `ec0e:2`,
//! which may borrow up to the link rate ([`EndpointHtb::install_link`]).
//!
//! A packet goes to the class whose number is in `skb->priority`. The flow's rate is the class's *ceil*, not its rate:
//! HTB lets a class send at its guaranteed rate whatever the parent has left, and only limits borrowed bandwidth to the
//! parent's rate. Measured on Linux 6.18, 100 Mbit/s, 2068-byte frames: four flows of 0.6 of the link each got 2.40 of
//! the link together when the rate was guaranteed, 0.997 when it was borrowed. One flow alone kept to within 0.4 % of
//! 1, 10 and 100 Mbit/s either way. Guaranteed rates have a second cost: traffic beyond the link rate becomes the
//! parent's debt, and borrowers get nothing until it is paid, up to a minute. So the guaranteed rates are small
//! ([`GUARANTEED_BYTES_PER_S`]).
//!
//! At a switch port (major [`PORT_MAJOR`]) there is one class with all traffic.

use super::netlink::{self, Netlink};
use super::wire::{self, Message, u32_at, u64_at};
use super::{HtbRate, NetNs, Result};
use ecn_core::pacing;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NLMSG_ERROR};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use std::io;
use std::os::fd::AsRawFd;

/// Handle of the HTB at an endpoint's device.
pub const ENDPOINT_MAJOR: u16 = ecn_core::abi::HTB_MAJOR;
/// Handle of the HTB at a switch port.
pub const PORT_MAJOR: u16 = 0xec0f;
/// The class above all others, at endpoints and ports.
pub const TOP_MINOR: u16 = 1;
/// At a source of the rig: class of traffic other than limited flows.
pub const DEFAULT_MINOR: u16 = 2;
/// At an endpoint: the first flow.
pub const FIRST_FLOW_MINOR: u16 = ecn_core::abi::FIRST_CLASS as u16;
/// Guaranteed to each class that borrows, since HTB has no rate of 0. 100 of them are 0.8 % of 100 Mbit/s.
pub const GUARANTEED_BYTES_PER_S: u64 = 1_000;

const TC_LINKLAYER_ETHERNET: u8 = 1;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
/// `struct tc_htb_opt`.
const PARMS: usize = 44;
/// Size of the options: the structure and the two 64-bit rates, each with its header.
const OPTIONS: usize = (4 + PARMS) + (4 + 8) + (4 + 8);
/// `struct tcmsg`, the kind `htb` and the options.
const PAYLOAD: usize = 20 + 8 + (4 + OPTIONS);
/// Maximum number of classes changed by one system call.
const TOGETHER: usize = 256;

/// Number of a class: `major << 16 | minor`; at an endpoint also the `skb->priority` that selects it.
pub const fn classid(major: u16, minor: u16) -> u32 {
    (major as u32) << 16 | minor as u32
}

/// A class's number as printed by tc.
pub(super) fn show_classid(classid: u32) -> String {
    format!("{:x}:{:x}", classid >> 16, classid & 0xffff)
}

/// How long `bytes` take at a rate, in the units of the packet scheduler (64 ns).
fn ticks(bytes: u32, bytes_per_s: u64) -> u32 {
    const PSCHED_SHIFT: u32 = 6;
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
    // Rounded up: a burst of one frame holds one frame.
    u32::try_from((ns >> PSCHED_SHIFT) + 1).unwrap_or(u32::MAX)
}

/// `tcmsg` and attributes of a class: with a header in front, this is the message.
pub(super) fn class_payload(
    ifindex: u32,
    classid: u32,
    parent: u32,
    rate: &HtbRate,
) -> [u8; PAYLOAD] {
    let mut bytes = [0; PAYLOAD];
    let mut at = 0;
    let mut put = |value: &[u8]| {
        bytes[at..at + value.len()].copy_from_slice(value);
        at += value.len();
    };
    let attr = |len: usize, kind: u16| {
        let ([a, b], [c, d]) = ((len as u16).to_ne_bytes(), kind.to_ne_bytes());
        [a, b, c, d]
    };
    put(&[0; 4]);
    put(&ifindex.to_ne_bytes());
    put(&classid.to_ne_bytes());
    put(&parent.to_ne_bytes());
    put(&[0; 4]);
    put(&attr(8, TCA_KIND));
    put(b"htb\0");
    put(&attr(4 + OPTIONS, TCA_OPTIONS));
    put(&attr(4 + PARMS, TCA_HTB_PARMS));
    for rate in [rate.rate_bytes_per_s, rate.ceil_bytes_per_s] {
        // struct tc_ratespec. With a link layer, the kernel needs no rate table.
        put(&[0, TC_LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
        put(&u32::try_from(rate).unwrap_or(u32::MAX).to_ne_bytes());
    }
    put(&ticks(rate.burst_bytes, rate.rate_bytes_per_s).to_ne_bytes());
    put(&ticks(rate.cburst_bytes, rate.ceil_bytes_per_s).to_ne_bytes());
    // Set, so that the kernel does not log that its own choice is too big or too small.
    put(&rate.quantum_bytes.max(1).to_ne_bytes());
    put(&[0; 8]); // level, priority
    // The kernel takes the larger of these and of the 32-bit rates above.
    put(&attr(12, TCA_HTB_RATE64));
    put(&rate.rate_bytes_per_s.to_ne_bytes());
    put(&attr(12, TCA_HTB_CEIL64));
    put(&rate.ceil_bytes_per_s.to_ne_bytes());
    bytes
}

/// Rate and ceil from the options of a dumped class.
pub(super) fn parse_rates(options: &[u8]) -> Option<(u64, u64)> {
    let (mut rate, mut ceil) = (0, 0);
    for (kind, value) in wire::attributes(options) {
        match kind {
            TCA_HTB_PARMS => {
                rate = rate.max(u64::from(u32_at(value, 8)?));
                ceil = ceil.max(u64::from(u32_at(value, 20)?));
            }
            TCA_HTB_RATE64 => rate = u64_at(value, 0)?,
            TCA_HTB_CEIL64 => ceil = u64_at(value, 0)?,
            _ => {}
        }
    }
    Some((rate, ceil))
}

/// A change that the kernel refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassFailure {
    /// The device.
    pub ifindex: u32,
    /// The class.
    pub classid: u32,
    /// Cause: `ENOENT` if no such class exists, `ENODEV` if no such device exists.
    pub errno: Errno,
}

/// The socket for batches, opened inside the namespace of the devices.
#[derive(Debug)]
pub struct ClassSocket {
    socket: Socket,
    errors: Box<[u8]>,
}

impl ClassSocket {
    /// Opens the socket.
    pub fn open(ns: &NetNs) -> Result<Self> {
        Ok(Self {
            socket: netlink::open_socket(ns, NETLINK_ROUTE)?,
            errors: vec![0; 8 << 10].into(),
        })
    }

    /// The kernel's next answer, without waiting for one.
    fn receive(&mut self) -> nix::Result<Option<&[u8]>> {
        let fd = self.socket.as_raw_fd();
        loop {
            match recv(fd, &mut self.errors, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => return Ok(Some(&self.errors[..len])),
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}

/// Changes to classes and their queues, sent together and without acknowledgements.
///
/// The kernel makes the changes within the system call. It takes the rtnl lock for each, so a batch waits while others
/// configure the network.
#[derive(Debug, Default)]
pub struct ClassBatch {
    bytes: Vec<u8>,
    changes: Vec<Change>,
    failures: Vec<ClassFailure>,
}

/// A message of a batch.
#[derive(Debug, Clone, Copy)]
struct Change {
    /// Where the message ends in the buffer.
    end: usize,
    ifindex: u32,
    classid: u32,
}

impl ClassBatch {
    /// An empty batch; it keeps its buffers after sending.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a message about a class: kind, flags, and what follows the header.
    fn message(&mut self, ifindex: u32, classid: u32, kind: u16, flags: u16, payload: &[u8]) {
        // Numbered from 1 within its system call, so that a refusal identifies its class.
        let sequence = (self.changes.len() % TOGETHER) as u32 + 1;
        let len = (wire::HEADER + payload.len()) as u32;
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes
            .extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&sequence.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(wire::align(self.bytes.len()), 0);
        self.changes.push(Change {
            end: self.bytes.len(),
            ifindex,
            classid,
        });
    }

    /// Adds a change of an existing class. `parent`: its current parent.
    pub fn push(&mut self, ifindex: u32, classid: u32, parent: u32, rate: &HtbRate) {
        let payload = class_payload(ifindex, classid, parent, rate);
        self.message(ifindex, classid, libc::RTM_NEWTCLASS, 0, &payload);
    }

    /// Adds the creation of a class, or its change if it exists.
    pub fn make(&mut self, ifindex: u32, classid: u32, parent: u32, rate: &HtbRate) {
        let payload = class_payload(ifindex, classid, parent, rate);
        self.message(
            ifindex,
            classid,
            libc::RTM_NEWTCLASS,
            NLM_F_CREATE,
            &payload,
        );
    }

    /// Adds a queue of `limit_bytes` under a class, or the change of its limit.
    pub fn leaf(&mut self, ifindex: u32, classid: u32, limit_bytes: u32) {
        let message = Message::raw(0, 0)
            .tc(ifindex, 0, classid)
            .attr_str(TCA_KIND, "bfifo")
            .attr_u32(TCA_OPTIONS, limit_bytes);
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        let payload = &message.bytes[wire::HEADER..];
        self.message(ifindex, classid, libc::RTM_NEWQDISC, flags, payload);
    }

    /// Adds the removal of a class with its queued packets.
    pub fn remove(&mut self, ifindex: u32, classid: u32) {
        let message = Message::raw(0, 0).tc(ifindex, classid, 0);
        let payload = &message.bytes[wire::HEADER..];
        self.message(ifindex, classid, libc::RTM_DELTCLASS, 0, payload);
    }

    /// Number of pending changes.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether no changes are pending.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Makes the changes and empties the batch; returns how many the kernel accepted. The refused ones are in
    /// [`ClassBatch::failures`] until the next call.
    pub fn send(&mut self, socket: &mut ClassSocket) -> io::Result<usize> {
        self.failures.clear();
        let result = self.send_all(socket);
        let sent = self.changes.len();
        self.bytes.clear();
        self.changes.clear();
        result
            .map(|()| sent.saturating_sub(self.failures.len()))
            .map_err(io::Error::from)
    }

    /// The changes that the kernel refused in the last [`ClassBatch::send`].
    pub fn failures(&self) -> &[ClassFailure] {
        &self.failures
    }

    fn send_all(&mut self, socket: &mut ClassSocket) -> nix::Result<()> {
        let mut start = 0;
        for changes in self.changes.chunks(TOGETHER) {
            let end = changes.last().map_or(start, |change| change.end);
            let fd = socket.socket.as_raw_fd();
            send(fd, &self.bytes[start..end], MsgFlags::empty())?;
            start = end;
            // The kernel is done when the call returns: errors are in the receive buffer by then.
            while let Some(errors) = socket.receive()? {
                self.failures.extend(failures(errors, changes));
            }
        }
        Ok(())
    }
}

/// The failed changes of a batch, from the kernel's answer.
fn failures(errors: &[u8], changes: &[Change]) -> impl Iterator<Item = ClassFailure> {
    wire::messages(errors)
        .filter(|message| message.kind == NLMSG_ERROR)
        .filter_map(|message| {
            let (errno, _) = netlink::refusal(&message)?;
            let at = (message.sequence as usize).checked_sub(1)?;
            let change = changes.get(at)?;
            Some(ClassFailure {
                ifindex: change.ifindex,
                classid: change.classid,
                errno,
            })
        })
}

impl std::fmt::Display for ClassFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let class = show_classid(self.classid);
        write!(
            f,
            "cannot change class {class} of interface {}: {}",
            self.ifindex, self.errno
        )
    }
}

/// The HTB of an endpoint's device, as laid out above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointHtb {
    /// The device.
    pub ifindex: u32,
    /// The rate that all flows share.
    pub link_bytes_per_s: u64,
    /// Largest frame, Ethernet header included (MTU + 14): the least burst of a class.
    pub frame_bytes: u32,
}

/// Minimum size of a flow's queue, frames, however low its rate: more than small socket buffers hold (8 KiB are 7), so
/// that their senders block instead of losing packets.
pub const LEAF_FRAMES: u32 = 10;
/// The same of a class that many flows share, such as that of the short flows: some initial windows of TCP, and a
/// super-packet of any length.
pub const SHARED_LEAF_FRAMES: u32 = 64;

/// Segments of the longest super-packet, 64 KiB.
const LONGEST: u32 = 45;
/// Maximum wait for a super-packet of another flow and the packet before it, at the link's rate, us.
const SUPER_PACKET_US: u64 = 333;

impl EndpointHtb {
    /// Maximum segments of a super-packet. A queueing discipline releases it as a whole, however low the flow's rate
    /// is, and marks arrive for many packets at once.
    ///
    /// Measured on the rig at 100 Mbit/s, cubic, input buffers of 4 packets (link use, mean root queue,
    /// fairness of local flows): without a limit 0.73 to 0.93, 11 to 14 packets, 0.76 to 0.85; 3 segments
    /// 0.96, 7.7, 0.996; 2 segments 0.98, 6.7, 0.999; 1 segment, which this gives there, 0.98, 4.8, 1.000.
    /// The victim's share with 2 segments and with 1, medians of 3 beside other load: 0.43, 0.46.
    ///
    /// `bytes_per_s`: the total rate of the device's limited flows, which is what the port behind it leaves them,
    /// however fast the device is.
    pub fn super_packet_segments(&self, bytes_per_s: u64) -> u32 {
        let frame = u64::from(self.frame_bytes.max(1));
        let bytes_per_s = bytes_per_s.min(self.link_bytes_per_s);
        let packets = bytes_per_s * SUPER_PACKET_US / 1_000_000 / frame;
        u32::try_from(packets.saturating_sub(1).max(1)).unwrap_or(u32::MAX)
    }

    /// The maximum number of segments in a super-packet of this size, if each has at least half the length of a frame; 0
    /// for a packet that fits in a frame.
    pub fn segments_of(&self, packet_bytes: u32) -> u32 {
        if packet_bytes <= self.frame_bytes {
            return 0;
        }
        packet_bytes.saturating_mul(2) / self.frame_bytes.max(1)
    }

    const TOP: u32 = classid(ENDPOINT_MAJOR, TOP_MINOR);

    /// Installs the layout, without flows, in place of the device's root qdisc.
    pub fn install(&self, nl: &Netlink) -> Result<()> {
        nl.replace_htb_root(self.ifindex, ENDPOINT_MAJOR, 0)?;
        let link = self.link_bytes_per_s;
        let top = HtbRate::fixed(link, burst_bytes(link, self.frame_bytes));
        nl.htb_class(self.ifindex, Self::TOP, classid(ENDPOINT_MAJOR, 0), &top)
    }

    /// Installs a layout that emulates a link of its rate: packets outside of all classes wait in a queue of
    /// `leaf_packets`.
    pub fn install_link(&self, nl: &Netlink, leaf_packets: u32) -> Result<()> {
        let default = classid(ENDPOINT_MAJOR, DEFAULT_MINOR);
        let link = self.link_bytes_per_s;
        nl.replace_htb_root(self.ifindex, ENDPOINT_MAJOR, DEFAULT_MINOR)?;
        let top = HtbRate::fixed(link, self.frame_bytes);
        nl.htb_class(self.ifindex, Self::TOP, classid(ENDPOINT_MAJOR, 0), &top)?;
        nl.htb_class(self.ifindex, default, Self::TOP, &self.flow_rate(link))?;
        nl.pfifo_leaf(self.ifindex, default, 0, leaf_packets)
    }

    /// Whether the installed HTB is one of [`EndpointHtb::install_link`].
    pub fn is_link(&self, nl: &Netlink) -> Result<bool> {
        let default = classid(ENDPOINT_MAJOR, DEFAULT_MINOR);
        let classes = nl.class_stats(self.ifindex)?;
        Ok(classes.iter().any(|class| class.classid == default))
    }

    /// Removes the layout; the device gets its default qdisc back.
    pub fn uninstall(&self, nl: &Netlink) -> Result<()> {
        nl.delete_root_qdisc(self.ifindex)
    }

    /// The class of a flow; also the `skb->priority` that selects it.
    pub const fn flow_classid(minor: u16) -> u32 {
        classid(ENDPOINT_MAJOR, minor)
    }

    /// Size of a flow's queue, bytes: what it sends in [`pacing::QUEUE_NS`], and at least a few frames, two
    /// super-packets of `segments`, or two of its largest packets (`largest_bytes`; UDP's super-packets do not follow
    /// the device's limit). Each of its packets waits for the whole queue, and a socket with a smaller buffer blocks
    /// before anything is dropped; 100 packets were 86 ms at 10 Mbit/s.
    pub fn leaf_bytes(
        &self,
        minor: u16,
        bytes_per_s: u64,
        segments: u32,
        largest_bytes: u32,
    ) -> u32 {
        let frames = if minor < FIRST_FLOW_MINOR {
            SHARED_LEAF_FRAMES
        } else {
            LEAF_FRAMES.max(2 * segments.min(LONGEST))
        };
        let of_rate = u32::try_from(pacing::queue_bytes(bytes_per_s)).unwrap_or(u32::MAX);
        of_rate
            .max(frames * self.frame_bytes)
            .max(largest_bytes.saturating_mul(2))
    }

    /// The same of flows that share a limiter: several sockets fill it.
    pub fn shared_leaf_bytes(&self, bytes_per_s: u64) -> u32 {
        self.leaf_bytes(0, bytes_per_s, 1, 0)
    }

    /// Adds a flow's class ([`FIRST_FLOW_MINOR`] and up) with its queue to a batch.
    pub fn make_flow(&self, batch: &mut ClassBatch, minor: u16, bytes_per_s: u64, leaf_bytes: u32) {
        let class = Self::flow_classid(minor);
        batch.make(self.ifindex, class, Self::TOP, &self.flow_rate(bytes_per_s));
        batch.leaf(self.ifindex, class, leaf_bytes);
    }

    /// Creates a flow's class with its queue, without a batch.
    pub fn add_flow_class(&self, nl: &Netlink, minor: u16, bytes_per_s: u64) -> Result<()> {
        let class = Self::flow_classid(minor);
        nl.htb_class(self.ifindex, class, Self::TOP, &self.flow_rate(bytes_per_s))?;
        let leaf_bytes = self.leaf_bytes(minor, bytes_per_s, 1, 0);
        nl.fifo_leaf("bfifo", self.ifindex, class, 0, leaf_bytes)
    }

    /// Adds the removal of a flow's class to a batch, with its queued packets.
    pub fn remove_flow(&self, batch: &mut ClassBatch, minor: u16) {
        batch.remove(self.ifindex, Self::flow_classid(minor));
    }

    /// Adds the change of a flow's queue to a batch.
    pub fn set_flow_leaf(&self, batch: &mut ClassBatch, minor: u16, leaf_bytes: u32) {
        batch.leaf(self.ifindex, Self::flow_classid(minor), leaf_bytes);
    }

    /// Adds the change of a flow's rate to a batch.
    pub fn set_flow_rate(&self, batch: &mut ClassBatch, minor: u16, bytes_per_s: u64) {
        let class = Self::flow_classid(minor);
        batch.push(self.ifindex, class, Self::TOP, &self.flow_rate(bytes_per_s));
    }

    fn flow_rate(&self, bytes_per_s: u64) -> HtbRate {
        let guaranteed = GUARANTEED_BYTES_PER_S.min(bytes_per_s);
        HtbRate {
            cburst_bytes: burst_bytes(bytes_per_s, self.frame_bytes),
            ..HtbRate::borrowing(guaranteed, bytes_per_s, self.frame_bytes)
        }
    }
}

/// How late a timer of a busy machine may wake HTB before a class loses bandwidth, microseconds.
///
/// HTB compensates for lateness up to its burst. With bursts of one frame, 41 us at 400 Mbit/s, a full port carries
/// .90 of its rate there, and ten TCP flows use .69 of a link of 1 Gbit/s (.88 with 200 us); at 60 Mbit/s and below a
/// frame takes longer than this.
const TIMER_LATE_US: u64 = 200;

/// What a class sends while a timer is late, and at least one frame.
fn burst_bytes(bytes_per_s: u64, frame_bytes: u32) -> u32 {
    let late = u32::try_from(bytes_per_s / 1_000_000 * TIMER_LATE_US).unwrap_or(u32::MAX);
    frame_bytes.max(late)
}

/// Installs the HTB of a switch port: one class, one rate, one queue.
pub fn install_port(
    nl: &Netlink,
    ifindex: u32,
    bytes_per_s: u64,
    frame_bytes: u32,
    queue_packets: u32,
) -> Result<()> {
    let class = port_class();
    nl.replace_htb_root(ifindex, PORT_MAJOR, TOP_MINOR)?;
    let rate = HtbRate::fixed(bytes_per_s, burst_bytes(bytes_per_s, frame_bytes));
    nl.htb_class(ifindex, class, classid(PORT_MAJOR, 0), &rate)?;
    nl.pfifo_leaf(ifindex, class, 0, queue_packets)
}

/// The class that [`install_port`] creates.
pub const fn port_class() -> u32 {
    classid(PORT_MAJOR, TOP_MINOR)
}

#[cfg(test)]
#[path = "htb_tests.rs"]
mod tests;
