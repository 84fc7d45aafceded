//! What kernel programs and user space agree on: names, layouts, and the number of this agreement.
//!
//! Map values are `#[repr(C)]`, integers only, padding spelled out; sizes and offsets are asserted
//! here. [`ABI`] stands in the pin path, in the control map, and changes with any of them.

use crate::{ace, echo, flow, marking, response, shares, vqueue};

/// Number of this agreement. An agent takes over what another one with the same number has left, and for a moment programs
/// of both work on the same maps: so it also changes with what values mean.
pub const ABI: u32 = 9;

/// Port slots of a bridge: 255 ports and the host itself (slot 0).
pub const PORTS: usize = 256;
/// Sources of which a bridge knows what share of an output they have.
pub const SOURCES: usize = 4096;
/// Endpoints (devices) of one agent.
pub const ENDPOINTS: u32 = 1024;
/// Flows of one agent unless configured otherwise.
pub const FLOWS: u32 = 65_536;

/// Major number of the HTB root at an endpoint: flow classes are `ec0e:MINOR`.
pub const HTB_MAJOR: u16 = 0xec0e;
/// Flow classes begin here; below are those of short flows ([`short_class`]) and the device's own (1: link, 2:
/// unclassified).
pub const FIRST_CLASS: u32 = SHORT_CLASS + ENDPOINTS;
/// The class of short flows at endpoint 0.
const SHORT_CLASS: u32 = 0x10;
/// Minor numbers end here. They are unique over all endpoints of an agent, so that a departing
/// packet's class names its flow.
pub const CLASSES: u32 = 0x1_0000;

/// The class that all short flows of an endpoint share, [`flow::Key::short`].
#[inline(always)]
#[must_use]
pub const fn short_class(endpoint: u32) -> u32 {
    SHORT_CLASS + endpoint % ENDPOINTS
}

/// The table of sent flows, [`name::FLOW`], see [`held`].
pub const TABLE_FLOWS: u32 = 0;
/// The table of received flows, [`name::RECEIVER`], see [`held`].
pub const TABLE_RECEIVERS: u32 = 1;
/// In place of an endpoint's number in [`held`]: all endpoints together.
pub const ALL_ENDPOINTS: u32 = ENDPOINTS;
/// Entries in [`name::ADDED`] and [`name::REMOVED`].
pub const HELD: u32 = 2 * (ENDPOINTS + 1);

/// Place of an endpoint, or of [`ALL_ENDPOINTS`], in [`name::ADDED`] and [`name::REMOVED`].
#[inline(always)]
#[must_use]
pub const fn held(table: u32, endpoint: u32) -> u32 {
    endpoint * 2 + table
}

/// Whether an endpoint may have one more entry in a table that all endpoints share: it may hold as many as are free. So
/// one alone holds half of the table at most, n that want everything 1/(n + 1) each, and there is always room for
/// others: dynamic thresholds, Choudhury and Hahne, IEEE/ACM Trans. Networking 6(2), 1998, with alpha = 1.
///
/// `added`, `removed`: the endpoint's words in [`name::ADDED`] and [`name::REMOVED`]; `all_added`, `all_removed`: those of
/// [`ALL_ENDPOINTS`].
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
    /// [`super::Near`] by [`super::DeviceKey::near`]: a device is found here in a tenth of the time.
    pub const NEAR: &str = "ECN_NEAR";
    /// `Bridge` per bridge number.
    pub const BRIDGE: &str = "ECN_BRIDGE";
    /// `marking::Policy` per bridge number.
    pub const MARKING: &str = "ECN_MARKING";
    /// [`super::Virtual`] per bridge number.
    pub const VIRTUAL: &str = "ECN_VIRTUAL";
    /// `Endpoint` per endpoint number.
    pub const ENDPOINT: &str = "ECN_ENDPOINT";
    /// `flow::Key` to `LockedFlow`.
    pub const FLOW: &str = "ECN_FLOW";
    /// `flow::Key` (as received) to `LockedReceiver`.
    pub const RECEIVER: &str = "ECN_RECEIVER";
    /// Per [`super::held`], entries that programs have added to a table, less those that they have removed.
    pub const ADDED: &str = "ECN_ADDED";
    /// Per [`super::held`], entries that the agent has removed from a table; of [`super::ALL_ENDPOINTS`] these and what the
    /// table holds, 0: there are no quotas. Apart from [`ADDED`], since user space cannot add to a word that programs
    /// add to.
    pub const REMOVED: &str = "ECN_REMOVED";
    /// Packets that left the device, per class minor.
    pub const DEPARTED: &str = "ECN_DEPARTED";
    /// Free class minors.
    pub const CLASS: &str = "ECN_CLASS";
    /// Per class minor, which decrease is in force and since which departed packet; 0 as long as there is
    /// no such class. Written by the agent, see [`super::in_force`].
    pub const IN_FORCE: &str = "ECN_IN_FORCE";
    /// `flow::Key` to a rate in bytes per second, written by people: it holds instead of the
    /// response's.
    pub const PIN: &str = "ECN_PIN";
    /// Per class minor, the rate set by people in bytes per second, 0 for none: written by the agent
    /// from [`PIN`], read where programs enforce rates.
    pub const LIMIT: &str = "ECN_LIMIT";
    /// Cookie of a TCP socket of this machine to the `flow::Key` of what it sends, with
    /// [`super::PACE`].
    pub const SOCKET: &str = "ECN_SOCKET";
    /// [`super::Siblings`] per endpoint number.
    pub const SIBLINGS: &str = "ECN_SIBLINGS";
    /// `RateEvent` ring.
    pub const RATE: &str = "ECN_RATE";
    /// `PortEvent` ring, filled when [`super::TRACE_PORTS`] is set.
    pub const TRACE: &str = "ECN_TRACE";
    /// `flow::Key` to the time of its oldest unanswered mark, with [`super::TRACE_LATENCY`].
    pub const MARKED: &str = "ECN_MARKED";
    /// Programs that others go on in: [`super::TAIL_OUT`], [`super::TAIL_IN`], [`super::TAIL_ACK`],
    /// [`super::TAIL_VIRTUAL`].
    pub const TAIL: &str = "ECN_TAIL";
    /// `Work` per CPU, one entry.
    pub const WORK: &str = "ECN_WORK";
    /// Per-CPU counters, see [`super::Count`].
    pub const COUNT: &str = "ECN_COUNT";

    /// All maps that are pinned and shared by all loaded copies of the object.
    pub const SHARED: [&str; 24] = [
        CONTROL, DEVICE, NEAR, BRIDGE, MARKING, VIRTUAL, ENDPOINT, FLOW, RECEIVER, ADDED, REMOVED,
        DEPARTED, IN_FORCE, CLASS, PIN, LIMIT, SOCKET, SIBLINGS, RATE, TRACE, MARKED, TAIL, WORK,
        COUNT,
    ];

    /// tcx egress of a bridge port.
    pub const PORT_OUT: &str = "ecn_port_out";
    /// Where [`PORT_OUT`] goes on at a port with a virtual queue, loaded once.
    pub const PORT_VIRTUAL: &str = "ecn_port_virt";
    /// tcx ingress of the veth peer of a bridge port.
    pub const WIRE_END: &str = "ecn_wire_end";
    /// `tp_btf/net_dev_start_xmit`.
    pub const DEPART: &str = "ecn_depart";
    /// `tp_btf/kfree_skb`.
    pub const DROP: &str = "ecn_drop";
    /// Run by the agent: removes a port, or forgets what waits for it.
    pub const PORT_RESET: &str = "ecn_port_reset";
    /// Run by tests: what [`DEPART`] and [`DROP`] do, for a packet that is handed over.
    pub const PORT_REPLAY: &str = "ecn_port_replay";
    /// Run by benchmarks: what a program costs that does nothing.
    pub const EMPTY: &str = "ecn_empty";
    /// tcx egress of an endpoint: says which endpoint, and goes on in [`FLOW_OUT`].
    pub const ENDPOINT_OUT: &str = "ecn_ep_out";
    /// tcx ingress of an endpoint: likewise, [`FLOW_IN`].
    pub const ENDPOINT_IN: &str = "ecn_ep_in";
    /// XDP of an endpoint: takes echoes.
    pub const ENDPOINT_XDP: &str = "ecn_ep_xdp";
    /// The same for frames in several pieces (kernel 5.18).
    pub const ENDPOINT_XDP_FRAGS: &str = "ecn_ep_xdp_f";
    /// Sender's side of an endpoint, loaded once.
    pub const FLOW_OUT: &str = "ecn_flow_out";
    /// Receiver's side of an endpoint, loaded once.
    pub const FLOW_IN: &str = "ecn_flow_in";
    /// What a source makes of TCP's ACKs, loaded once.
    pub const TCP_ACK: &str = "ecn_tcp_ack";
    /// Run by the agent: changes a flow, see [`super::FlowChange`].
    pub const FLOW_CHANGE: &str = "ecn_flow_change";
    /// sock_ops of a cgroup: rates of TCP sockets.
    pub const SOCK: &str = "ecn_sock";
    /// All programs.
    pub const PROGRAMS: [&str; 16] = [
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
    ];
}

/// Place of [`name::FLOW_OUT`] in [`name::TAIL`].
pub const TAIL_OUT: u32 = 0;
/// Place of [`name::FLOW_IN`] in [`name::TAIL`].
pub const TAIL_IN: u32 = 1;
/// Place of [`name::TCP_ACK`] in [`name::TAIL`].
pub const TAIL_ACK: u32 = 2;
/// Place of [`name::PORT_VIRTUAL`] in [`name::TAIL`].
pub const TAIL_VIRTUAL: u32 = 3;
/// Places in [`name::TAIL`].
pub const TAILS: u32 = 4;

/// The kernel's spin lock, by the name under which it finds one in a map value's BTF.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct bpf_spin_lock {
    /// Not for user space: reads as 0.
    pub val: u32,
}

/// [`Control::flags`]: do nothing at all, let everything pass.
pub const BYPASS: u32 = 1;
/// [`Control::flags`]: write a [`PortEvent`] for every event at a port.
pub const TRACE_PORTS: u32 = 2;
/// [`Control::flags`]: measure the time from a mark to the new rate.
pub const TRACE_LATENCY: u32 = 4;

/// [`Control::flags`]: of which generation the programs at tracepoints are that count. When an agent takes over from
/// another, both have theirs attached for a moment, and a packet is to be counted once.
pub const GENERATION: u32 = 8;

/// [`Control::flags`], from this bit on: IP protocol of echoes.
pub const ECHO_PROTOCOL_AT: u32 = 24;

/// One entry, written by the agent.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// [`ABI`].
    pub abi: u32,
    /// [`BYPASS`], [`TRACE_PORTS`], [`TRACE_LATENCY`], [`GENERATION`], and [`ECHO_PROTOCOL_AT`].
    pub flags: u32,
    /// Limits hold until then (monotonic clock); moved on by the agent's heartbeat.
    pub valid_until_ns: u64,
}

/// A device: interface numbers are per namespace.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceKey {
    /// Inode number of the network namespace.
    pub netns: u32,
    /// Interface number.
    pub ifindex: u32,
}

impl DeviceKey {
    /// Its place in [`name::NEAR`]: neighbouring numbers of one namespace do not meet.
    #[inline(always)]
    #[must_use]
    pub const fn near(self) -> u32 {
        let namespace = self.netns.wrapping_mul(0x9e37_79b1) >> 16;
        (self.ifindex ^ namespace) % NEAR
    }
}

/// Places in [`name::NEAR`].
pub const NEAR: u32 = 4096;

/// [`Device::role`]: port `b` of bridge `a`.
pub const ROLE_PORT: u32 = 1;
/// [`Device::role`]: endpoint `a`.
pub const ROLE_ENDPOINT: u32 = 2;
/// [`Device::role`]: far end of the veth of port `b` of bridge `a`.
pub const ROLE_WIRE_END: u32 = 4;

/// [`Device::role`]: the length of the port's queue can be read from its root qdisc.
pub const ROLE_BACKLOG: u32 = 8;

/// [`Device::role`]: the port has no queue (`noqueue`): nothing waits there, so nothing is counted or marked unless it has
/// a virtual one.
pub const ROLE_NO_QUEUE: u32 = 16;

/// What a device is to us. One device can be a port and the wire's end of another port.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Roles, or-ed.
    pub role: u32,
    /// Bridge number of the port.
    pub bridge: u32,
    /// Slot of the port.
    pub port: u32,
    /// Endpoint number.
    pub endpoint: u32,
    /// Bridge number of the port at the other end of the wire.
    pub wire_bridge: u32,
    /// Slot of the port at the other end of the wire.
    pub wire_port: u32,
    /// What the port's virtual queue takes for a byte, see [`vqueue::ns_per_byte`]; 0: the device's
    /// own queue is watched.
    pub virtual_ns_per_byte: u64,
}

/// The first device of those that have this place; the others are in [`name::DEVICE`] only. Nobody's,
/// with an interface number of 0, if none has.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Near {
    /// Times that it was written; odd while it is. Who reads something else before than after has read
    /// nothing.
    pub writes: u32,
    /// Padding.
    pub _pad: u32,
    /// Which device.
    pub key: DeviceKey,
    /// What [`name::DEVICE`] says of it.
    pub device: Device,
}

/// A bridge's counters.
#[repr(C)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Lock over everything here.
    pub lock: bpf_spin_lock,
    /// Events so far, modulo 2^32: their order, for [`PortEvent`].
    pub sequence: u32,
    /// Counters.
    pub switch: marking::Switch<PORTS>,
    /// Who fills its queues.
    pub shares: Shares,
}

/// The shares of a bridge.
pub type Shares = shares::Shares<PORTS, SOURCES>;

/// The virtual queues of a bridge, under the lock of its [`Bridge`].
pub type Virtual = vqueue::Queues<PORTS>;

/// [`Endpoint::flags`]: limit flows.
pub const CONTROL_FLOWS: u32 = 1;
/// [`Endpoint::flags`]: count every received flow, whether it can be marked or not.
pub const OBSERVE: u32 = 2;
/// [`Endpoint::flags`]: echo.
pub const ECHO: u32 = 4;
/// [`Endpoint::flags`]: rates are departure times, see [`crate::pacing`].
pub const EDT: u32 = 8;
/// [`Endpoint::flags`]: rates are those of TCP's own sockets, see [`name::SOCK`].
pub const PACE: u32 = 16;
/// [`Endpoint::flags`]: keep TCP from negotiating ECN, so that it is controlled.
pub const CONTROL_TCP: u32 = 32;

/// Policy of an endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// [`CONTROL_FLOWS`], [`OBSERVE`], [`ECHO`], [`EDT`], [`PACE`], [`CONTROL_TCP`].
    pub flags: u32,
    /// Padding.
    pub _pad: u32,
    /// Rmax, bytes per second.
    pub link_bytes_per_s: u64,
    /// What a flow may always have waiting, with [`EDT`]; and as much as it sends in [`crate::pacing::QUEUE_NS`].
    pub queue_bytes: u64,
    /// Response.
    pub response: response::Policy,
    /// Echo.
    pub echo: echo::Policy,
}

/// A flow under its lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockedFlow {
    /// Lock over `flow`.
    pub lock: bpf_spin_lock,
    /// Padding.
    pub _pad: u32,
    /// The flow.
    pub flow: flow::Flow,
}

/// A receiver's counts under their lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockedReceiver {
    /// The counts.
    pub receiver: echo::Receiver,
    /// Lock over `receiver`.
    pub lock: bpf_spin_lock,
    /// Padding.
    pub _pad: u32,
}

/// What flows that begin at an endpoint are to know of those that are there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Siblings {
    /// Inter-packet delay of the short flows, [`flow::Key::short`]; 0: they were never marked.
    pub short_ipd: u64,
    /// That of the flow that was decreased last.
    pub ipd: u64,
    /// When.
    pub at_ns: u64,
}

impl Siblings {
    /// What a flow begins with: the rate of a flow that was marked just now; else what the short ones have together; at
    /// full rate if nobody is held.
    #[inline(always)]
    #[must_use]
    pub const fn first_ipd(&self, now_ns: u64) -> u64 {
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
    /// When the mark was set that caused it; 0: no mark, or not measured.
    pub marked_ns: u64,
    /// Number of the flow's last decrease, modulo 2^32.
    pub decrease: u32,
    /// 1: that decrease is not known to be in force yet.
    pub pending: u32,
    /// When the limit is in force without the agent; 0: the agent has to see to it.
    pub in_force_ns: u64,
    /// The flow.
    pub key: flow::Key,
}

/// What a CPU is at: a TCP segment on its way from one program to the next, and what a source learned from it or
/// from an echo. Written and read back ([`crate::fixed::forgotten`]), so that the verifier, which cannot know what
/// memory holds, follows the response once and not once per way there.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// The flow that the segment may be about.
    pub key: flow::Key,
    /// What it says.
    pub ack: ace::Ack,
    /// Offset of its TCP header.
    pub at: u32,
    /// Padding.
    pub _pad: u32,
    /// What the response is given.
    pub given: Given,
}

/// What a source's response is given.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// What was learned.
    pub news: echo::News,
    /// Entry of [`name::IN_FORCE`].
    pub in_force: u64,
    /// Time of the mark that is answered; 0: not known.
    pub marked_ns: u64,
    /// The endpoint's [`EDT`] and [`PACE`].
    pub flags: u32,
    /// Packets of the class that have departed, modulo 2^32.
    pub departed: u32,
    /// What its siblings have, [`Siblings::first_ipd`].
    pub sibling_ipd: u64,
}

/// Entry of [`name::IN_FORCE`]: decrease number `decrease` is in force since the class's packet
/// number `departed`.
#[inline(always)]
#[must_use]
pub const fn in_force(decrease: u32, departed: u32) -> u64 {
    (decrease as u64) << 32 | departed as u64
}

/// What happened at a port ([`PortEvent::kind`]).
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEventKind {
    /// [`shares::Shares::arrive`]; with [`PortEvent::virtual_ns_per_byte`] instead
    /// [`shares::Shares::arrive_virtual`].
    Arrive = 1,
    /// [`shares::Shares::leave`], and what [`marking::Switch::depart`] does then.
    Depart = 2,
    /// [`marking::Switch::drop_queued`].
    Drop = 3,
    /// [`marking::Switch::wire_end`].
    WireEnd = 4,
}

/// One event at a port with the decision taken: replayed on the host, it must give the same.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortEvent {
    /// A [`PortEventKind`].
    pub kind: u32,
    /// Bridge number.
    pub bridge: u32,
    /// Place in the order of events of this bridge.
    pub sequence: u32,
    /// Slot of the input port.
    pub input: u32,
    /// Slot of the output port.
    pub output: u32,
    /// Segments.
    pub segments: u32,
    /// 1: the packet can be marked.
    pub markable: u32,
    /// Length of the device's queue at a departure, or [`marking::BACKLOG_UNKNOWN`].
    pub backlog: u32,
    /// What was decided.
    pub decision: marking::Decision,
    /// Arrival: when. By the coarse clock but at a virtual queue.
    pub now_ns: u64,
    /// Arrival at a virtual queue: [`Device::virtual_ns_per_byte`]; 0 at all others.
    pub virtual_ns_per_byte: u64,
    /// Arrival: its bytes.
    pub bytes: u32,
    /// Arrival and departure: [`vqueue::Arrival::source`].
    pub source: u32,
    /// Arrival: 1: it may be dropped if it cannot be marked.
    pub droppable: u32,
    /// Padding.
    pub _pad: u32,
}

/// Argument of the program [`name::PORT_RESET`], in the packet that it is run on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortReset {
    /// Bridge number.
    pub bridge: u32,
    /// Slot of the port.
    pub port: u32,
    /// A [`PortAction`].
    pub action: u32,
    /// [`PortAction::Forget`]: only if this many packets ever arrived for it (low 32 bits) and none
    /// since.
    pub arrived: u32,
}

/// Argument of the program [`name::FLOW_CHANGE`], in the packet that it is run on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowChange {
    /// The flow.
    pub key: flow::Key,
    /// The class that it is to have unless it has one; 0: it can have none, and is limited with the short flows.
    pub class: u32,
    /// Padding.
    pub _pad: u32,
}

/// What [`name::PORT_RESET`] does ([`PortReset::action`]).
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortAction {
    /// [`marking::Switch::keep_waiting`]: nothing waits for it.
    Forget = 0,
    /// [`marking::Switch::remove_port`]
    Remove = 1,
    /// [`vqueue::Queues::remove_port`]
    RemoveVirtual = 2,
    /// [`vqueue::Queues::catch_up`]: what its virtual queue has sent by now departs.
    CatchUp = 3,
}

/// Counters of [`name::COUNT`]: things that went another way.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The flow map was full, or the endpoint's part of it: the flow goes with the short flows, and cannot be marked.
    FlowsFull,
    /// No class was free: the flow is limited with the short flows.
    ClassesFull,
    /// The receiver map was full, or the endpoint's part of it: the flow is not echoed.
    ReceiversFull,
    /// A limit was not enforced: the agent's heartbeat had stopped.
    LimitExpired,
    /// Echoes sent.
    EchoSent,
    /// An echo could not be cloned or built.
    EchoFailed,
    /// Echoes accepted.
    EchoAccepted,
    /// Echoes that never came, by their numbers.
    EchoLost,
    /// Echoes refused: of another version or too short.
    EchoMalformed,
    /// Echoes refused: of a flow that this endpoint does not have.
    EchoUnknown,
    /// Echoes refused: a number that is not later.
    EchoDuplicate,
    /// Echoes refused: counts that cannot be.
    EchoImpossible,
    /// Echoes refused: not signed by a key that is accepted.
    EchoForged,
    /// The agent was not told of a rate: the ring was full.
    RingFull,
    /// A packet could not be made ECN-capable.
    EctFailed,
    /// A packet was to be marked and was not.
    MarkFailed,
    /// Packets marked.
    Marked,
    /// Packets dropped at their source: more was waiting to depart than may.
    SourceDropped,
    /// A packet's headers end too early or contradict each other: it passed untouched.
    Unparsed,
    /// Packets that nothing limits, with [`PACE`]: of no TCP socket of this machine.
    Unpaced,
    /// Of the echoes, those that came at an XDP program.
    EchoXdp,
    /// Echoes sent for TCP, because no ACK could say the marks.
    AceBlocked,
    /// Echoes sent for TCP only to ask whether there is room.
    EchoAsked,
    /// The ECN flags of a TCP segment could not be written.
    AceFailed,
    /// Packets of flows that are limited with the short flows, since they have no class, or not yet.
    Shared,
}

impl Count {
    /// All, in the order of their numbers.
    pub const ALL: [Self; 25] = [
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
    /// Bit r: `skb_drop_reason` r is a queueing discipline's.
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
    assert!(size_of::<Control>() == 16);
    assert!(size_of::<DeviceKey>() == 8);
    assert!(size_of::<Near>() == 48);
    assert!(size_of::<Device>() == 32);
    assert!(size_of::<vqueue::Queue>() == 32 + vqueue::DEPTH * 16);
    assert!(size_of::<Virtual>() == 8 + PORTS * size_of::<vqueue::Queue>());
    assert!(size_of::<flow::Key>() == 40);
    assert!(align_of::<flow::Key>() == 2);
    assert!(size_of::<echo::Sender>() == 40);
    assert!(size_of::<Work>() == 128 && size_of::<Given>() == 64);
    assert!(size_of::<ace::Sender>() == 40);
    assert!(size_of::<ace::Receiver>() == 40);
    assert!(size_of::<echo::Receiver>() == 96);
    assert!(size_of::<LockedReceiver>() == 104);
    assert!(offset_of!(LockedFlow, flow) == 8);
    // In the kernel's table (struct htab_elem) 48 bytes go before the key: both kinds of entries are whole cache lines.
    assert!((48 + size_of::<flow::Key>() + size_of::<LockedFlow>()).is_multiple_of(64));
    assert!((48 + size_of::<flow::Key>() + size_of::<LockedReceiver>()).is_multiple_of(64));
    assert!(size_of::<RateEvent>() == 80);
    assert!(size_of::<Siblings>() == 24);
    assert!(size_of::<FlowChange>() == 48);
    assert!(size_of::<PortEvent>() == 88);
    assert!(size_of::<PortReset>() == 16);
    assert!(size_of::<Offsets>() == 72);
};
