//! The ABI between kernel programs and user space: names and layouts of maps.
//!
//! Map values are `#[repr(C)]`, of integers only, with explicit padding; sizes and offsets are asserted here. [`ABI`]
//! is part of the pin path and of the control map, and changes with any of them.

use crate::{ace, backward, echo, flow, marking, reaction, response, shares, vqueue};
pub use crate::{flow::in_force, pacing::HTB_MAJOR};

/// ABI version. An agent takes over the maps of another one with the same version, and the programs of both use them
/// for a moment: it must therefore also change when the meaning of values does.
pub const ABI: u32 = 17;

/// Port slots of a bridge: 255 ports and the host itself (slot 0).
pub const PORTS: usize = 256;
/// Sources of a bridge whose shares of the outputs are measured.
pub const SOURCES: usize = 4096;
/// Endpoints (devices) of one agent.
pub const ENDPOINTS: u32 = 1024;
/// Flows of one agent unless configured otherwise.
pub const FLOWS: u32 = 65_536;

/// First flow class; below are those of short flows ([`short_class`]) and the device's own (1: link, 2: unclassified).
pub const FIRST_CLASS: u32 = SHORT_CLASS + ENDPOINTS;
/// The class of short flows at endpoint 0.
const SHORT_CLASS: u32 = 0x10;
/// End of the range of minor numbers. They are unique among all endpoints of an agent, so that the class of a departing
/// packet identifies its flow.
pub const CLASSES: u32 = 0x1_0000;

/// The class of an endpoint's short flows, [`flow::Key::short`].
#[inline(always)]
#[must_use]
pub const fn short_class(endpoint: u32) -> u32 {
    SHORT_CLASS + endpoint % ENDPOINTS
}

/// [`quota_index`]: the table of sent flows, [`name::FLOW`].
pub const TABLE_FLOWS: u32 = 0;
/// [`quota_index`]: the table of received flows, [`name::RECEIVER`].
pub const TABLE_RECEIVERS: u32 = 1;
/// [`quota_index`]: all endpoints together.
pub const ALL_ENDPOINTS: u32 = ENDPOINTS;
/// Entries in [`name::ADDED`] and [`name::REMOVED`].
pub const QUOTA_SLOTS: u32 = 2 * (ENDPOINTS + 1);

/// Index of an endpoint, or of [`ALL_ENDPOINTS`], in [`name::ADDED`] and [`name::REMOVED`].
#[inline(always)]
#[must_use]
pub const fn quota_index(table: u32, endpoint: u32) -> u32 {
    endpoint * 2 + table
}

/// Whether an endpoint may add an entry to a table that all endpoints share: it may hold as many entries as are free.
/// So a single endpoint gets at most half of the table, n greedy ones 1/(n + 1) each, and some entries stay free for
/// others: dynamic thresholds, Choudhury and Hahne, IEEE/ACM Trans. Networking 6(2), 1998, with alpha = 1.
///
/// `added`, `removed`: the endpoint's counts in [`name::ADDED`] and [`name::REMOVED`]; `all_added`, `all_removed`: those
/// of [`ALL_ENDPOINTS`].
#[inline(always)]
#[must_use]
pub const fn has_room(added: u64, removed: u64, all_added: u64, all_removed: u64) -> bool {
    let held = added.wrapping_sub(removed) as i64;
    let free = all_removed.wrapping_sub(all_added) as i64;
    all_removed == 0 || held < free
}

/// Names of maps and programs, as `bpftool` shows them (at most 15 characters).
pub mod name {
    /// `Control`, one entry.
    pub const CONTROL: &str = "ECN_CONTROL";
    /// `DeviceKey` to `Device`.
    pub const DEVICE: &str = "ECN_DEVICE";
    /// [`super::Near`] by [`super::DeviceKey::near`]: a cache of [`DEVICE`], ten times as fast.
    pub const NEAR: &str = "ECN_NEAR";
    /// `Bridge` per bridge number.
    pub const BRIDGE: &str = "ECN_BRIDGE";
    /// `marking::Policy` per bridge number.
    pub const MARKING: &str = "ECN_MARKING";
    /// [`super::Virtual`] per bridge number.
    pub const VIRTUAL: &str = "ECN_VIRTUAL";
    /// [`super::backward::Policy`] per bridge number.
    pub const BACKWARD: &str = "ECN_BACKWARD";
    /// [`super::LockedPoint`] per bridge number and port slot, [`super::PORTS`] for each bridge.
    pub const POINT: &str = "ECN_POINT";
    /// Recently sent packets, by [`super::backward::Quoted`].
    pub const QUOTED: &str = "ECN_QUOTED";
    /// Flows that ports have recently slowed down, by [`super::backward::Quoted::tag`].
    pub const TAGGED: &str = "ECN_TAGGED";
    /// `Endpoint` per endpoint number.
    pub const ENDPOINT: &str = "ECN_ENDPOINT";
    /// `flow::Key` to `LockedFlow`.
    pub const FLOW: &str = "ECN_FLOW";
    /// Hosts behind ports, by [`super::host`].
    pub const HOST: &str = "ECN_HOST";
    /// `flow::Key` (as received) to `LockedReceiver`.
    pub const RECEIVER: &str = "ECN_RECEIVER";
    /// Per [`super::quota_index`], entries that programs have added to a table, minus those that they have removed.
    pub const ADDED: &str = "ECN_ADDED";
    /// Per [`super::quota_index`], entries that the agent has removed from a table; for [`super::ALL_ENDPOINTS`] plus
    /// the table's capacity (0: no quotas). A separate map, since user space cannot atomically add to a word that
    /// programs update.
    pub const REMOVED: &str = "ECN_REMOVED";
    /// Packets that left the device, per class minor.
    pub const DEPARTED: &str = "ECN_DEPARTED";
    /// Free class minors.
    pub const CLASS: &str = "ECN_CLASS";
    /// Per class minor, which decrease is in force and since which departed packet; 0 while the class does not exist.
    /// Written by the agent, see [`super::in_force`].
    pub const IN_FORCE: &str = "ECN_IN_FORCE";
    /// `flow::Key` to a pinned rate in bytes per second, which replaces the response's.
    pub const PIN: &str = "ECN_PIN";
    /// Per class minor, the pinned rate in bytes per second, 0 for none: written by the agent from [`PIN`], read where
    /// programs enforce rates.
    pub const LIMIT: &str = "ECN_LIMIT";
    /// Cookie of a local TCP socket to the `flow::Key` that it sends, with [`super::PACE`].
    pub const SOCKET: &str = "ECN_SOCKET";
    /// [`super::Siblings`] per endpoint number.
    pub const SIBLINGS: &str = "ECN_SIBLINGS";
    /// `RateEvent` ring.
    pub const RATE: &str = "ECN_RATE";
    /// `PortEvent` ring, filled when [`super::TRACE_PORTS`] is set.
    pub const TRACE: &str = "ECN_TRACE";
    /// `flow::Key` to the time of its oldest unanswered mark, with [`super::TRACE_LATENCY`].
    pub const MARKED: &str = "ECN_MARKED";
    /// Targets of tail calls: [`super::TAIL_OUT`], [`super::TAIL_IN`], [`super::TAIL_ACK`], [`super::TAIL_VIRTUAL`],
    /// [`super::TAIL_FLOW_MESSAGE`], [`super::TAIL_PORT_MESSAGE`], [`super::TAIL_SAMPLE`], [`super::TAIL_REACTION`].
    pub const TAIL: &str = "ECN_TAIL";
    /// `Scratch` per CPU, one entry.
    pub const WORK: &str = "ECN_WORK";
    /// Per-CPU counters, see [`super::Count`].
    pub const COUNT: &str = "ECN_COUNT";

    /// All maps; pinned, and shared by all loaded copies of the object.
    pub const SHARED: [&str; 29] = [
        CONTROL, DEVICE, NEAR, BRIDGE, MARKING, VIRTUAL, BACKWARD, POINT, QUOTED, TAGGED, ENDPOINT,
        HOST, FLOW, RECEIVER, ADDED, REMOVED, DEPARTED, IN_FORCE, CLASS, PIN, LIMIT, SOCKET,
        SIBLINGS, RATE, TRACE, MARKED, TAIL, WORK, COUNT,
    ];

    /// tcx egress of a bridge port.
    pub const PORT_OUT: &str = "ecn_port_out";
    /// Tail of [`PORT_OUT`] at a port with a virtual queue, loaded once.
    pub const PORT_VIRTUAL: &str = "ecn_port_virt";
    /// Tail of [`PORT_OUT`] that turns a clone into a message, loaded once.
    pub const PORT_MESSAGE: &str = "ecn_port_msg";
    /// tcx ingress of the veth peer of a bridge port.
    pub const WIRE_END: &str = "ecn_wire_end";
    /// `tp_btf/net_dev_start_xmit`.
    pub const DEPART: &str = "ecn_depart";
    /// `tp_btf/kfree_skb`.
    pub const DROP: &str = "ecn_drop";
    /// Run by the agent: see [`super::PortReset`].
    pub const PORT_RESET: &str = "ecn_port_reset";
    /// Run by tests: [`DEPART`] and [`DROP`] for a test packet.
    pub const PORT_REPLAY: &str = "ecn_port_replay";
    /// Run by benchmarks: a program that does nothing, as the baseline.
    pub const EMPTY: &str = "ecn_empty";
    /// tcx egress of an endpoint: sets the endpoint's number, and tail-calls [`FLOW_OUT`].
    pub const ENDPOINT_OUT: &str = "ecn_ep_out";
    /// tcx ingress of an endpoint: sets the endpoint's number, and tail-calls [`FLOW_IN`].
    pub const ENDPOINT_IN: &str = "ecn_ep_in";
    /// XDP of an endpoint: consumes echoes.
    pub const ENDPOINT_XDP: &str = "ecn_ep_xdp";
    /// [`ENDPOINT_XDP`] for multi-buffer frames (kernel 5.18).
    pub const ENDPOINT_XDP_FRAGS: &str = "ecn_ep_xdp_f";
    /// Egress of an endpoint, loaded once.
    pub const FLOW_OUT: &str = "ecn_flow_out";
    /// Ingress of an endpoint, loaded once.
    pub const FLOW_IN: &str = "ecn_flow_in";
    /// Response to TCP's ACKs, to messages of ports, and to the count of a flow's departed packets, loaded once.
    pub const TCP_ACK: &str = "ecn_tcp_ack";
    /// Tail of [`FLOW_IN`] for messages of ports, loaded once.
    pub const FLOW_MESSAGE: &str = "ecn_flow_msg";
    /// Tail of [`PORT_OUT`] at a port that samples its queue, loaded once.
    pub const PORT_SAMPLE: &str = "ecn_port_sample";
    /// Reaction to notifications, and updates of limiters between them, loaded once.
    pub const FLOW_REACTION: &str = "ecn_flow_react";
    /// Run by the agent: changes a flow, see [`super::FlowChange`].
    pub const FLOW_CHANGE: &str = "ecn_flow_change";
    /// sock_ops of a cgroup: pacing rates of TCP sockets.
    pub const SOCK: &str = "ecn_sock";
    /// All programs.
    pub const PROGRAMS: [&str; 20] = [
        SOCK,
        PORT_OUT,
        WIRE_END,
        DEPART,
        DROP,
        PORT_RESET,
        PORT_REPLAY,
        EMPTY,
        ENDPOINT_OUT,
        ENDPOINT_IN,
        ENDPOINT_XDP,
        FLOW_OUT,
        FLOW_IN,
        TCP_ACK,
        PORT_VIRTUAL,
        FLOW_CHANGE,
        PORT_MESSAGE,
        FLOW_MESSAGE,
        PORT_SAMPLE,
        FLOW_REACTION,
    ];
}

/// Index of [`name::FLOW_OUT`] in [`name::TAIL`].
pub const TAIL_OUT: u32 = 0;
/// Index of [`name::FLOW_IN`] in [`name::TAIL`].
pub const TAIL_IN: u32 = 1;
/// Index of [`name::TCP_ACK`] in [`name::TAIL`].
pub const TAIL_ACK: u32 = 2;
/// Index of [`name::PORT_VIRTUAL`] in [`name::TAIL`].
pub const TAIL_VIRTUAL: u32 = 3;
/// Index of [`name::FLOW_MESSAGE`] in [`name::TAIL`].
pub const TAIL_FLOW_MESSAGE: u32 = 4;
/// Index of [`name::PORT_MESSAGE`] in [`name::TAIL`].
pub const TAIL_PORT_MESSAGE: u32 = 5;
/// Index of [`name::PORT_SAMPLE`] in [`name::TAIL`].
pub const TAIL_SAMPLE: u32 = 6;
/// Index of [`name::FLOW_REACTION`] in [`name::TAIL`].
pub const TAIL_REACTION: u32 = 7;
/// Entries of [`name::TAIL`].
pub const TAILS: u32 = 8;

/// The kernel's spin lock, which the kernel recognises in a map value by this BTF name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bpf_spin_lock {
    /// Not for user space: reads as 0.
    pub val: u32,
}

/// [`Control::flags`]: all programs pass every packet unchanged.
pub const BYPASS: u32 = 1;
/// [`Control::flags`]: write a [`PortEvent`] for every event at a port.
pub const TRACE_PORTS: u32 = 2;
/// [`Control::flags`]: measure the time from a mark to the new rate.
pub const TRACE_LATENCY: u32 = 4;

/// [`Control::flags`]: which generation of tracepoint programs counts. While an agent takes over from another, the
/// programs of both are attached, and each packet must be counted once.
pub const GENERATION: u32 = 8;

/// [`Control::flags`]: shift of the IP protocol of echoes.
pub const ECHO_PROTOCOL_AT: u32 = 24;

/// Entry of [`name::CONTROL`], written by the agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// [`ABI`].
    pub abi: u32,
    /// [`BYPASS`], [`TRACE_PORTS`], [`TRACE_LATENCY`], [`GENERATION`], and [`ECHO_PROTOCOL_AT`].
    pub flags: u32,
    /// When rate limits lapse (monotonic clock); extended by the agent's heartbeat.
    pub valid_until_ns: u64,
    /// When responses no longer change rates, for want of heartbeats: never after [`Self::valid_until_ns`]. In between,
    /// flows send at the rates of their classes, which nobody changes.
    pub held_from_ns: u64,
}

/// Identifies a device; interface numbers are per namespace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceKey {
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Interface number.
    pub ifindex: u32,
}

impl DeviceKey {
    /// Its index in [`name::NEAR`]: consecutive numbers of one namespace do not collide.
    #[inline(always)]
    #[must_use]
    pub const fn near(self) -> u32 {
        let namespace = self.netns.wrapping_mul(0x9e37_79b1) >> 16;
        (self.ifindex ^ namespace) % NEAR
    }
}

/// Entries of [`name::NEAR`].
pub const NEAR: u32 = 4096;

/// [`Device::role`]: port `b` of bridge `a`.
pub const ROLE_PORT: u32 = 1;
/// [`Device::role`]: endpoint `a`.
pub const ROLE_ENDPOINT: u32 = 2;
/// [`Device::role`]: veth peer of port `b` of bridge `a`.
pub const ROLE_WIRE_END: u32 = 4;

/// [`Device::role`]: the length of the port's queue can be read from its root qdisc.
pub const ROLE_BACKLOG: u32 = 8;

/// [`Device::role`]: the port has no queue (`noqueue`), so nothing is counted or marked unless it has a virtual one.
pub const ROLE_NO_QUEUE: u32 = 16;

/// [`Device::role`]: the port samples its queue, [`backward::Sampling`].
pub const ROLE_SAMPLES: u32 = 32;

/// The roles of a device. One device can be a port and the wire end of another port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Bit mask of roles.
    pub role: u32,
    /// Bridge number of the port.
    pub bridge: u32,
    /// Slot of the port.
    pub port: u32,
    /// Endpoint number.
    pub endpoint: u32,
    /// Bridge number of the port that is its veth peer.
    pub wire_bridge: u32,
    /// Slot of the port that is its veth peer.
    pub wire_port: u32,
    /// Transmission time of a byte at the port's virtual queue, see [`vqueue::ns_per_byte`]; 0: the device's own
    /// queue is counted.
    pub virtual_ns_per_byte: u64,
}

/// An entry of the device cache: the first device with this index; others are in [`name::DEVICE`] only. Without a device
/// the interface number is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Near {
    /// Sequence count, odd during a write: a read between two different counts is invalid.
    pub writes: u32,
    #[doc(hidden)]
    pub _pad: u32,
    /// Which device.
    pub key: DeviceKey,
    /// Its entry in [`name::DEVICE`].
    pub device: Device,
}

/// A bridge's counters.
#[repr(C)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Protects all fields, and the bridge's [`Virtual`] queues.
    pub lock: bpf_spin_lock,
    /// Events so far, modulo 2^32, for [`PortEvent::sequence`].
    pub sequence: u32,
    /// Marking state.
    pub switch: marking::Switch<PORTS>,
    /// Shares of the sources.
    pub shares: Shares,
}

/// The shares of a bridge.
pub type Shares = shares::Shares<PORTS, SOURCES>;

/// The virtual queues of a bridge, protected by the lock of its [`Bridge`].
pub type Virtual = vqueue::Queues<PORTS>;

/// [`Endpoint::flags`]: limit the rates of sent flows.
pub const CONTROL_FLOWS: u32 = 1;
/// [`Endpoint::flags`]: count every received flow, ECN-capable or not.
pub const OBSERVE: u32 = 2;
/// [`Endpoint::flags`]: echo received marks.
pub const ECHO: u32 = 4;
/// [`Endpoint::flags`]: enforce rates by departure times, see [`crate::pacing`].
pub const EDT: u32 = 8;
/// [`Endpoint::flags`]: enforce rates by TCP's own pacing, see [`name::SOCK`].
pub const PACE: u32 = 16;
/// [`Endpoint::flags`]: keep TCP from negotiating ECN, so that it can be controlled.
pub const CONTROL_TCP: u32 = 32;

/// [`Endpoint::flags`]: accept messages of ports, [`crate::backward`].
pub const BACKWARD: u32 = 64;

/// Key of a host in [`name::HOST`]: the endpoint through which it sends, and its Ethernet address.
#[inline(always)]
#[must_use]
pub const fn host(endpoint: u32, mac: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = mac;
    (endpoint as u64) << 48 | u64::from_be_bytes([0, 0, a, b, c, d, e, f])
}

/// Policy of an endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// [`CONTROL_FLOWS`], [`OBSERVE`], [`ECHO`], [`EDT`], [`PACE`], [`CONTROL_TCP`], [`BACKWARD`].
    pub flags: u32,
    /// Number of the device (an ifb) at which flows are limited, if the endpoint is a bridge port, the bridge's end
    /// of a host's link; else 0. The host's packets arrive at the port, and those for the host leave by it, so the
    /// programs are attached to the opposite hooks.
    pub shaper: u32,
    /// Rmax, bytes per second.
    pub link_bytes_per_s: u64,
    /// Queue limit of a flow with [`EDT`], in addition to what it sends in [`crate::pacing::QUEUE_NS`].
    pub queue_bytes: u64,
    /// Rate response.
    pub response: response::Policy,
    /// Echoes.
    pub echo: echo::Policy,
    /// Reaction to notifications.
    pub reaction: reaction::Policy,
    /// Which flows share a rate limiter; only without [`ECHO`] and [`PACE`], which need each flow's own state.
    pub limit_by: flow::KeyMask,
    #[doc(hidden)]
    pub _pad: u32,
}

/// Message state of a port with its lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockedPoint {
    /// Protects `point`.
    pub lock: bpf_spin_lock,
    #[doc(hidden)]
    pub _pad: u32,
    /// The state.
    pub point: backward::Point,
}

/// A flow with its lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockedFlow {
    /// Protects `flow`.
    pub lock: bpf_spin_lock,
    #[doc(hidden)]
    pub _pad: u32,
    /// The flow.
    pub flow: flow::Flow,
}

/// A received flow with its lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockedReceiver {
    /// The received flow.
    pub receiver: echo::Receiver,
    /// Protects `receiver`.
    pub lock: bpf_spin_lock,
    #[doc(hidden)]
    pub _pad: u32,
}

/// Rates of an endpoint's flows, from which new ones start.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Siblings {
    /// Inter-packet delay of the short flows, [`flow::Key::short`]; 0: never marked.
    pub short_ipd: u64,
    /// Mean inter-packet delay of its limited flows, [`Siblings::mean_ipd`].
    pub ipd: u64,
    /// Time of the last decrease.
    pub at_ns: u64,
}

impl Siblings {
    /// The mean delay after a decrease to `ipd`: over about 8 decreases, unless there were none for
    /// [`flow::SIBLING_NS`]. Flows are decreased in proportion to their rates, so it is the delay of their mean rate.
    /// Over 32 decreases it would lag behind at a start, and delay convergence.
    #[inline(always)]
    #[must_use]
    pub const fn mean_ipd(&self, ipd: u64, now_ns: u64) -> u64 {
        if self.ipd > crate::fixed::ONE && now_ns < self.at_ns.saturating_add(flow::SIBLING_NS) {
            self.ipd - (self.ipd >> 3) + (ipd >> 3)
        } else {
            ipd
        }
    }

    /// Initial inter-packet delay of a flow: that of a flow that was marked recently, else that of the short flows, else
    /// that of full rate.
    #[inline(always)]
    #[must_use]
    pub const fn initial_ipd(&self, now_ns: u64) -> u64 {
        if self.ipd > crate::fixed::ONE && now_ns < self.at_ns.saturating_add(flow::SIBLING_NS) {
            self.ipd
        } else if self.short_ipd > crate::fixed::ONE {
            self.short_ipd
        } else {
            crate::fixed::ONE
        }
    }
}

/// A flow's limit changed, or it needs a class.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateEvent {
    /// Endpoint number.
    pub endpoint: u32,
    /// Minor number of the flow's class.
    pub class: u32,
    /// New limit, bytes per second.
    pub rate_bytes_per_s: u64,
    /// Time of the mark that caused it; 0: no mark, or not measured.
    pub marked_ns: u64,
    /// Number of the flow's last decrease, modulo 2^32.
    pub decrease: u32,
    /// 1: that decrease is not confirmed to be in force.
    pub pending: u32,
    /// When the limit takes effect without the agent; 0: the agent enforces it.
    pub in_force_ns: u64,
    /// The flow.
    pub key: flow::Key,
}

/// Per-CPU scratch space: a TCP segment handed from one program to the next, and the input of the response. Values are
/// written and read back ([`crate::fixed::opaque`]), so that the verifier, which does not track memory, verifies the
/// response once and not once per path to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scratch {
    /// The flow that the segment acknowledges.
    pub key: flow::Key,
    /// The segment's numbers and ACE.
    pub ack: ace::Ack,
    /// Offset of the segment's TCP header.
    pub at: u32,
    /// 1: the segment acknowledges all of the flow, and its FIN.
    pub complete: u32,
    /// Input of the response.
    pub input: ResponseInput,
    /// Copy of `key`, which the response may replace by the short flows' key.
    pub flow: flow::Key,
    /// A port's report about the flow.
    pub backward: backward::Report,
}

/// Input of a source's response.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseInput {
    /// Counts that the feedback reports.
    pub delta: echo::FeedbackDelta,
    /// Entry of [`name::IN_FORCE`].
    pub in_force: u64,
    /// Time of the mark; 0: unknown.
    pub marked_ns: u64,
    /// The endpoint's [`EDT`] and [`PACE`].
    pub flags: u32,
    /// Packets of the class that have departed, modulo 2^32.
    pub departed: u32,
    /// The delay of its siblings, [`Siblings::initial_ipd`].
    pub sibling_ipd: u64,
    /// Class of the flow that responds; 0: none yet.
    pub class: u32,
    /// 1: the aggregate of short flows responds, else 0.
    pub short: u32,
}

/// Event at a port ([`PortEvent::kind`]).
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEventKind {
    /// [`shares::Shares::on_enqueue`], or with [`PortEvent::virtual_ns_per_byte`]
    /// [`shares::Shares::on_enqueue_virtual`].
    Enqueue = 1,
    /// [`shares::Shares::on_dequeue`] and the repair of [`marking::Switch::on_dequeue`].
    Dequeue = 2,
    /// [`marking::Switch::on_drop`].
    Drop = 3,
    /// [`marking::Switch::wire_end`].
    WireEnd = 4,
}

/// An event at a port with its decision, which a replay on the host must reproduce.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortEvent {
    /// A [`PortEventKind`].
    pub kind: u32,
    /// Bridge number.
    pub bridge: u32,
    /// Sequence number of the event at this bridge.
    pub sequence: u32,
    /// Slot of the input port.
    pub input: u32,
    /// Slot of the output port.
    pub output: u32,
    /// Segments.
    pub segments: u32,
    /// 1: the packet can be marked.
    pub markable: u32,
    /// Dequeue: length of the device's queue, or [`marking::BACKLOG_UNKNOWN`].
    pub backlog: u32,
    /// The decision.
    pub decision: marking::Decision,
    /// Enqueue: time; by the coarse clock except at a virtual queue.
    pub now_ns: u64,
    /// Enqueue at a virtual queue: [`Device::virtual_ns_per_byte`]; else 0.
    pub virtual_ns_per_byte: u64,
    /// Enqueue: bytes on the wire.
    pub bytes: u32,
    /// Enqueue and dequeue: [`vqueue::PacketMeta::source`].
    pub source: u32,
    /// Enqueue: 1: it may be dropped if it cannot be marked.
    pub droppable: u32,
    #[doc(hidden)]
    pub _pad: u32,
}

/// Argument of the program [`name::PORT_RESET`], as the packet that it runs on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortReset {
    /// Bridge number.
    pub bridge: u32,
    /// Slot of the port.
    pub port: u32,
    /// A [`PortAction`].
    pub action: u32,
    /// [`PortAction::Forget`]: only if exactly this many packets have been enqueued (low 32 bits).
    pub arrived: u32,
}

/// Argument of the program [`name::FLOW_CHANGE`], as the packet that it runs on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowChange {
    /// The flow.
    pub key: flow::Key,
    /// The class to assign unless it has one; 0: none is available, it is limited with the short flows.
    pub class: u32,
    #[doc(hidden)]
    pub _pad: u32,
}

/// Action of [`name::PORT_RESET`] ([`PortReset::action`]).
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortAction {
    /// [`marking::Switch::set_waiting`] to 0.
    Forget = 0,
    /// The same, then [`marking::Switch::remove_input`].
    Remove = 1,
    /// The same, then [`vqueue::Queues::remove_port`].
    RemoveVirtual = 2,
    /// [`vqueue::Queues::catch_up`]
    CatchUp = 3,
}

/// Counters of [`name::COUNT`].
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The flow table, or the endpoint's quota of it, was full: the flow is limited with the short flows and not
    /// ECN-capable.
    FlowsFull,
    /// No class was free: the flow is limited with the short flows.
    ClassesFull,
    /// The receiver table, or the endpoint's quota of it, was full: the flow is not echoed.
    ReceiversFull,
    /// Packets that were not rate-limited, because the agent's heartbeat had stopped.
    LimitExpired,
    /// Echoes sent.
    EchoSent,
    /// Echoes that could not be cloned or built.
    EchoFailed,
    /// Echoes accepted.
    EchoAccepted,
    /// Echoes lost, by their sequence numbers.
    EchoLost,
    /// Echoes refused: another version, or too short.
    EchoMalformed,
    /// Echoes refused: unknown flow.
    EchoUnknown,
    /// Echoes refused: sequence number not after the last one.
    EchoDuplicate,
    /// Echoes refused: impossible counts.
    EchoImpossible,
    /// Echoes refused: no valid signature.
    EchoForged,
    /// Events lost, because the ring buffer was full.
    RingFull,
    /// Packets that could not be made ECN-capable.
    EctFailed,
    /// Packets due to be marked that could not be written to.
    MarkFailed,
    /// Packets marked.
    Marked,
    /// Packets dropped at their source, because the flow's queue limit was reached.
    SourceDropped,
    /// Packets passed untouched, because their headers are truncated or inconsistent.
    Unparsed,
    /// Packets that were not rate-limited with [`PACE`], because no local TCP socket sends them.
    Unpaced,
    /// Accepted echoes that an XDP program consumed.
    EchoXdp,
    /// Echoes sent for TCP, because no ACK could carry the CE count.
    AceBlocked,
    /// Echoes sent for TCP only to request headroom.
    EchoAsked,
    /// TCP segments whose ECN flags could not be written.
    AceFailed,
    /// Packets limited with the short flows, because their flow has no class, or not yet.
    Shared,
    /// Messages of ports sent.
    MessageSent,
    /// Messages of ports that could not be cloned or built.
    MessageFailed,
    /// Messages held back by the port's limit; their marks wait for a later one.
    MessageHeld,
    /// Messages accepted.
    MessageAccepted,
    /// Messages refused: unknown kind, or too short.
    MessageMalformed,
    /// Messages refused: they have passed a router.
    MessageFar,
    /// Messages refused: no valid signature.
    MessageForged,
    /// Messages refused: unknown flow, or the endpoint accepts no messages.
    MessageUnknown,
    /// Messages refused: duplicates, messages overtaken by too many others, or about marks that echoes also report.
    MessageDuplicate,
    /// Messages refused: about a packet that was not sent, or with impossible counts.
    MessageImpossible,
}

impl Count {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 35] = [
        Self::FlowsFull,
        Self::ClassesFull,
        Self::ReceiversFull,
        Self::LimitExpired,
        Self::EchoSent,
        Self::EchoFailed,
        Self::EchoAccepted,
        Self::EchoLost,
        Self::EchoMalformed,
        Self::EchoUnknown,
        Self::EchoDuplicate,
        Self::EchoImpossible,
        Self::EchoForged,
        Self::RingFull,
        Self::EctFailed,
        Self::MarkFailed,
        Self::Marked,
        Self::SourceDropped,
        Self::Unparsed,
        Self::Unpaced,
        Self::EchoXdp,
        Self::AceBlocked,
        Self::EchoAsked,
        Self::AceFailed,
        Self::Shared,
        Self::MessageSent,
        Self::MessageFailed,
        Self::MessageHeld,
        Self::MessageAccepted,
        Self::MessageMalformed,
        Self::MessageFar,
        Self::MessageForged,
        Self::MessageUnknown,
        Self::MessageDuplicate,
        Self::MessageImpossible,
    ];
}

/// Offsets of kernel structure members, bytes, from the running kernel's BTF: Rust has no CO-RE.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// `sk_buff.dev`
    pub skb_dev: u32,
    /// `sk_buff.skb_iif`
    pub skb_iif: u32,
    /// `sk_buff.len`
    pub skb_len: u32,
    /// `sk_buff.data_len`
    pub skb_data_len: u32,
    /// `sk_buff.priority`
    pub skb_priority: u32,
    /// `sk_buff.mac_header`
    pub skb_mac_header: u32,
    /// `sk_buff.head`
    pub skb_head: u32,
    /// `sk_buff.end`
    pub skb_end: u32,
    /// `skb_shared_info.gso_size`; `gso_segs` follows it
    pub shinfo_gso_size: u32,
    /// `net_device.ifindex`
    pub dev_ifindex: u32,
    /// `net_device.nd_net.net`
    pub dev_net: u32,
    /// `net.ns.inum`
    pub net_inum: u32,
    /// `net_device.qdisc`
    pub dev_qdisc: u32,
    /// `Qdisc.q.qlen`
    pub qdisc_qlen: u32,
    /// Bit r: `skb_drop_reason` r is a qdisc's.
    pub drop_reasons: [u64; 2],
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<marking::Port>() == 112);
    assert!(size_of::<marking::Policy>() == 32);
    assert!(size_of::<marking::Decision>() == 24);
    assert!(size_of::<shares::Source>() == 16);
    assert!(size_of::<shares::Output>() == 64);
    assert!(size_of::<Shares>() == 24 + PORTS * 64 + (PORTS + SOURCES) * 16);
    assert!(size_of::<Bridge>() == 8 + PORTS * 112 + PORTS * PORTS * 4 + size_of::<Shares>());
    assert!(offset_of!(Bridge, switch) == 8);
    assert!(size_of::<backward::Policy>() == 88);
    assert!(size_of::<LockedPoint>() == 64);
    assert!(size_of::<backward::Sender>() == 24);
    assert!(size_of::<Control>() == 24);
    assert!(size_of::<DeviceKey>() == 8);
    assert!(size_of::<Near>() == 48);
    assert!(size_of::<Device>() == 32);
    assert!(size_of::<vqueue::Queue>() == 32 + vqueue::DEPTH * 16);
    assert!(size_of::<Virtual>() == 8 + PORTS * size_of::<vqueue::Queue>());
    assert!(size_of::<flow::Key>() == 40);
    assert!(align_of::<flow::Key>() == 2);
    assert!(size_of::<echo::Sender>() == 40);
    assert!(size_of::<Scratch>() == 208 && size_of::<ResponseInput>() == 72);
    assert!(size_of::<backward::Report>() == 32);
    assert!(size_of::<ace::Sender>() == 40);
    assert!(size_of::<ace::Receiver>() == 40);
    assert!(size_of::<echo::Receiver>() == 96);
    assert!(size_of::<LockedReceiver>() == 104);
    assert!(offset_of!(LockedFlow, flow) == 8);
    // In the kernel's table, 48 bytes (struct htab_elem) precede the key: both kinds of entries fill whole cache
    // lines.
    assert!((48 + size_of::<flow::Key>() + size_of::<LockedFlow>()).is_multiple_of(64));
    assert!((48 + size_of::<flow::Key>() + size_of::<LockedReceiver>()).is_multiple_of(64));
    assert!(size_of::<RateEvent>() == 80);
    assert!(size_of::<Siblings>() == 24);
    assert!(size_of::<FlowChange>() == 48);
    assert!(size_of::<PortEvent>() == 88);
    assert!(size_of::<PortReset>() == 16);
    assert!(size_of::<Offsets>() == 72);
};
