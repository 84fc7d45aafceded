//! Switch role: counting and marking at bridge ports.
//!
//! * `ecn_port_out`, tcx egress of a port: after the bridge has chosen the output, before the queue. The input port
//!   is `ingress_ifindex` (0: sent by the host). Packets that cannot be marked are dropped here if their source has
//!   its share. At a port with a virtual queue, `ecn_port_virt` continues. Ports without a queue are ignored.
//! * `ecn_depart`, `tp_btf/net_dev_start_xmit`: the packet has left the queue. Runs for every device of the machine, so it
//!   looks up the device first. Where tracing programs cannot lock (5.10), it counts departures of flows' classes, but
//!   not those of ports.
//! * `ecn_drop`, `tp_btf/kfree_skb`: the queue dropped the packet. Both tracepoint programs ignore ports with a
//!   virtual queue, whose departures are computed at the next enqueue.
//! * `ecn_wire_end`, tcx ingress of a port's veth peer: the first hook behind the queue where CE can be written to a
//!   packet that was marked at departure.
//!
//! The arguments of an enqueue are packed into words ([`pack`]) for a global function ([`ecn_enqueue`]), whose
//! decision is carried out by [`apply_decision`].

use core::ptr::read_volatile;

use aya_ebpf::{
    helpers::{bpf_spin_lock, bpf_spin_unlock},
    macros::{btf_tracepoint, classifier},
    programs::{BtfTracePointContext, TcContext},
};
use ecn_core::{
    abi::{self, Bridge, Count, Device, DeviceKey, PortAction, PortEvent, PortEventKind},
    backward::Feedback,
    echo::Headroom,
    flow,
    marking::{BACKLOG_UNKNOWN, Decision, HOST, Policy},
    pacing,
    packet::{self, Ip},
    shares::Output,
    vqueue::PacketMeta,
};

use crate::{
    backward,
    clock::{coarse_now, now},
    maps::{
        ECN_BRIDGE, ECN_DEPARTED, ECN_DEVICE, ECN_MARKED, ECN_MARKING, ECN_NEAR, ECN_TRACE,
        ECN_VIRTUAL, GENERATION, OFFSETS, TRACING_LOCKS, constant, control, count, netns,
    },
    skb::{Linear, NEXT, Packet, SHOT, field, kernel, load, member, raw, tail_call},
    value::Zero,
};

/// Looks up a device's roles. `None`: a device without roles.
#[inline(always)]
fn lookup_device(netns: u32, ifindex: u32) -> Option<Device> {
    let key = DeviceKey { netns, ifindex };
    let near = ECN_NEAR.get_ptr(key.near())?;
    // SAFETY: a map value, which the agent may write meanwhile: hence volatile reads in this order.
    unsafe {
        let writes = read_volatile(&raw const (*near).writes);
        let holder = read_volatile(&raw const (*near).key);
        let device = read_volatile(&raw const (*near).device);
        if writes & 1 == 0 && writes == read_volatile(&raw const (*near).writes) {
            if holder == key {
                return Some(device);
            }
            if holder.ifindex == 0 {
                return None;
            }
        }
    }
    // SAFETY: only the agent writes entries, and replaces them as a whole.
    unsafe { ECN_DEVICE.get(key).copied() }
}

/// Slot of the input port, or [`HOST`]; hidden from the verifier, so that it verifies the rest once instead of once
/// per path.
#[inline(always)]
fn input_slot(netns: u32, ifindex: u32, bridge: u32, zero: Zero) -> u8 {
    let mut slot = HOST;
    if ifindex != 0
        && let Some(d) = lookup_device(netns, ifindex)
        && d.role & abi::ROLE_PORT != 0
        && d.bridge == bridge
    {
        slot = d.port as u8;
    }
    zero.hide(slot.into()) as u8
}

/// Runs `$body` with `$bridge` (a `&mut Bridge`) locked; it must not call functions.
macro_rules! with_bridge_lock {
    ($pointer:expr, $bridge:ident => $body:expr) => {{
        // SAFETY: the lock serialises all programs that access the value.
        unsafe {
            bpf_spin_lock((&raw mut (*$pointer).lock).cast());
            let $bridge: &mut Bridge = &mut *$pointer;
            $bridge.sequence = $bridge.sequence.wrapping_add(1);
            let result = $body;
            bpf_spin_unlock((&raw mut (*$pointer).lock).cast());
            result
        }
    }};
}

/// Writes an event to the trace ring, if ports are traced.
#[inline(always)]
fn trace(flags: u32, event: PortEvent) {
    if flags & abi::TRACE_PORTS == 0 {
        return;
    }
    match ECN_TRACE.reserve(0) {
        Some(mut entry) => {
            entry.write(event);
            entry.submit(0);
        }
        None => count(Count::RingFull, 1),
    }
}

#[classifier]
pub fn ecn_port_out(ctx: TcContext) -> i32 {
    try_port_out(ctx).unwrap_or(NEXT)
}

#[inline(always)]
fn try_port_out(ctx: TcContext) -> Option<i32> {
    let flags = control()?.flags;
    if flags & abi::BYPASS != 0 {
        return None;
    }
    let p = Packet::new(ctx);
    let netns = netns();
    let d = lookup_device(netns, field!(&p.ctx, ifindex))?;
    if d.role & abi::ROLE_PORT == 0 {
        return None;
    }
    if backward::is_clone(&p.ctx) {
        tail_call(&p.ctx, abi::TAIL_PORT_MESSAGE, netns);
        return Some(SHOT);
    }
    if d.role & abi::ROLE_ENDPOINT == 0 && field!(&p.ctx, priority) >> 16 == abi::HTB_MAJOR as u32 {
        // Clears a flow class of the source's device, whose low bits would select a band of this queue.
        // SAFETY: tc programs may write this field.
        unsafe { (*raw(&p.ctx)).priority = 0 };
    }
    if d.virtual_ns_per_byte != 0 {
        // Not in `ecn_port_virt`, which has no stack left. Longer packets are not echoes.
        if field!(&p.ctx, len) <= MAX_ECHO_LEN {
            // What cannot be parsed is counted here, and not again there.
            let ip = p.parse()?;
            if requests_headroom(&ip, flags) {
                write_headroom(&p, &ip, netns, &d, coarse_now());
            }
        }
        tail_call(&p.ctx, abi::TAIL_VIRTUAL, netns);
        return None;
    }
    if d.role & abi::ROLE_NO_QUEUE != 0 && field!(&p.ctx, len) > MAX_ECHO_LEN {
        return None;
    }
    let ip = p.parse()?;
    let now_ns = coarse_now();
    let asks = requests_headroom(&ip, flags);
    if asks {
        write_headroom(&p, &ip, netns, &d, now_ns);
    }
    if d.role & abi::ROLE_NO_QUEUE != 0 {
        return None;
    }
    let c = pack(&p, &ip, netns, &d, asks, flags);
    let decision = ecn_enqueue(c.ports, c.source, c.bytes, now_ns);
    apply_decision(decision, &p, &ip, &c, &d, now_ns, flags)
}

/// Processes a packet that enters its queue. Returns the decision ([`pack_decision`]). A global function, so that the
/// verifier checks it once, with unknown arguments, instead of once per path.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ecn_enqueue(ports: u64, source: u64, bytes: u32, now_ns: u64) -> u64 {
    let a = unpack(ports, source, bytes, now_ns);
    let (policy, bridge) = match bridge(ports as u32) {
        Some(found) => found,
        None => return 0,
    };
    with_bridge_lock!(bridge, b => {
        pack_decision(b.sequence, b.shares.on_enqueue(&mut b.switch, policy, &a))
    })
}

/// Tail of [`ecn_port_out`] at a port with a virtual queue: updating the queues of other outputs is complex, and in a
/// separate program it costs other ports nothing.
#[classifier]
pub fn ecn_port_virt(ctx: TcContext) -> i32 {
    try_port_virt(ctx).unwrap_or(NEXT)
}

#[inline(always)]
fn try_port_virt(ctx: TcContext) -> Option<i32> {
    let p = Packet::new(ctx);
    let [netns, ..] = field!(&p.ctx, cb);
    let d = lookup_device(netns, field!(&p.ctx, ifindex))?;
    let ip = p.parse()?;
    let (now_ns, per_byte) = (now(), d.virtual_ns_per_byte);
    let flags = control()?.flags;
    // An echo that requests headroom may be marked here: the port is then busy anyway.
    let c = pack(&p, &ip, netns, &d, false, flags);
    let decision = ecn_enqueue_virt(c.ports, c.source, c.bytes, now_ns, per_byte);
    apply_decision(decision, &p, &ip, &c, &d, now_ns, flags)
}

/// [`ecn_enqueue`] at a virtual queue.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ecn_enqueue_virt(
    ports: u64,
    source: u64,
    bytes: u32,
    now_ns: u64,
    ns_per_byte: u64,
) -> u64 {
    let a = PacketMeta {
        ns_per_byte,
        ..unpack(ports, source, bytes, now_ns)
    };
    let (policy, bridge) = match bridge(ports as u32) {
        Some(found) => found,
        None => return 0,
    };
    let Some(queues) = ECN_VIRTUAL.get_ptr_mut(ports as u32) else {
        return 0;
    };
    with_bridge_lock!(bridge, b => {
        // The bridge's lock also protects its virtual queues.
        pack_decision(b.sequence, b.shares.on_enqueue_virtual(&mut *queues, &mut b.switch, policy, &a))
    })
}

/// A bridge's policy and counters. The policy is not copied, since the stack is too small.
#[inline(always)]
fn bridge(number: u32) -> Option<(&'static Policy, *mut Bridge)> {
    Some((ECN_MARKING.get(number)?, ECN_BRIDGE.get_ptr_mut(number)?))
}

/// A packet in the form of [`ecn_enqueue`]'s arguments: BPF functions have at most five.
struct PackedPacket {
    /// Bridge (32 bits), input and output slot (8 bits each), markable and droppable (1 bit each).
    ports: u64,
    /// Segments (32 bits), source (32 bits).
    source: u64,
    bytes: u32,
}

/// Upper bound for frames with an echo, bytes: two VLAN tags and IPv6.
const MAX_ECHO_LEN: u32 = 128;

/// Whether a packet is an echo that requests headroom: such echoes are never marked, since their ECN field has
/// another meaning.
#[inline(always)]
fn requests_headroom(ip: &Ip, flags: u32) -> bool {
    ip.protocol as u32 == flags >> abi::ECHO_PROTOCOL_AT && ip.markable()
}

/// Writes into an echo whether the port at which it arrived, the output of its flow, is busy.
#[inline(always)]
fn write_headroom(p: &Packet, ip: &Ip, netns: u32, d: &Device, now_ns: u64) {
    let from = input_slot(netns, field!(&p.ctx, ingress_ifindex), d.bridge, p.zero);
    if from == HOST {
        return;
    }
    let Some(bridge) = ECN_BRIDGE.get_ptr_mut(d.bridge) else {
        return;
    };
    // SAFETY: one word of a map value.
    let busy_until =
        unsafe { read_volatile(&raw const (*bridge).shares.outputs[from as usize].busy_until) };
    let ecn = Headroom::at_port(ip.ecn(), Output::is_busy(busy_until, now_ns));
    if ecn != ip.ecn() && !p.set_ecn(ip, ecn) {
        count(Count::EctFailed, 1);
    }
}

#[inline(always)]
fn pack(p: &Packet, ip: &Ip, netns: u32, d: &Device, asks: bool, flags: u32) -> PackedPacket {
    let iif = field!(&p.ctx, ingress_ifindex);
    let input = input_slot(netns, iif, d.bridge, p.zero);
    let (packets, bytes) = (p.segments(ip), field!(&p.ctx, wire_len));
    // Counters that cannot be compared with the queue's length may be wrong for long: packets are not dropped by
    // them.
    let compared = d.role & abi::ROLE_BACKLOG != 0 || d.virtual_ns_per_byte != 0;
    let answerable =
        input != HOST && ip.answerable(packets, bytes, (flags >> abi::ECHO_PROTOCOL_AT) as u8);
    let markable =
        backward::is_markable(d.bridge, (ip.markable() && !asks) as u32, answerable as u32);
    let droppable = input != HOST && compared && ip.droppable(packets, bytes);
    let c = PackedPacket {
        ports: d.bridge as u64
            | (input as u64) << 32
            | (d.port as u8 as u64) << 40
            | (markable as u64 & 1) << 48
            | (droppable as u64) << 49,
        source: packets as u64 | (ip.source as u64) << 32,
        bytes,
    };
    p.pull_headers(ip);
    c
}

/// The inverse of [`pack`].
#[inline(always)]
fn unpack(ports: u64, source: u64, bytes: u32, now_ns: u64) -> PacketMeta {
    PacketMeta {
        input: (ports >> 32) as u8,
        output: (ports >> 40) as u8,
        markable: ports >> 48 & 1 != 0,
        droppable: ports >> 49 & 1 != 0,
        packets: source as u32,
        bytes,
        source: (source >> 32) as u32,
        now_ns,
        ns_per_byte: 0,
    }
}

const MARK: u64 = 1 << 32;
const DROP: u64 = 1 << 36;

/// An event's sequence number (32 bits) and decision (8 bits).
#[inline(always)]
fn pack_decision(sequence: u32, d: Decision) -> u64 {
    let flags = d.mark
        | d.unmarkable << 1
        | d.input_trigger << 2
        | d.output_trigger << 3
        | d.drop << 4
        | d.share << 5;
    sequence as u64 | (flags as u64) << 32
}

/// Marks or drops the packet.
#[inline(always)]
fn apply_decision(
    decision: u64,
    p: &Packet,
    ip: &Ip,
    c: &PackedPacket,
    d: &Device,
    now_ns: u64,
    flags: u32,
) -> Option<i32> {
    if flags & abi::TRACE_PORTS != 0 {
        let decision = decision | (c.bytes as u64) << BYTES_AT;
        ecn_trace_enqueue(c.ports, c.source, decision, now_ns, d.virtual_ns_per_byte);
    }
    if decision & DROP != 0 {
        return Some(SHOT);
    }
    if decision & MARK != 0 && mark_enqueued(p, ip, c) != 0 {
        trace_latency(p, ip, flags);
    }
    // Only sources behind a port of the bridge can be notified.
    if d.role & abi::ROLE_SAMPLES != 0 && (c.ports >> 32) as u8 != HOST {
        tail_call(
            &p.ctx,
            abi::TAIL_SAMPLE,
            d.bridge * abi::PORTS as u32 + d.port,
        );
    }
    Some(NEXT)
}

/// Shift of the packet's bytes in [`ecn_trace_enqueue`]'s decision.
const BYTES_AT: u32 = 40;

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ecn_trace_enqueue(
    ports: u64,
    source: u64,
    decision: u64,
    now_ns: u64,
    ns_per_byte: u64,
) -> u32 {
    let bytes = (decision >> BYTES_AT) as u32;
    let a = unpack(ports, source, bytes, now_ns);
    let flag = |n: u32| (decision >> (32 + n)) as u32 & 1;
    trace(
        abi::TRACE_PORTS,
        PortEvent {
            kind: PortEventKind::Enqueue as u32,
            bridge: ports as u32,
            sequence: decision as u32,
            input: a.input as u32,
            output: a.output as u32,
            segments: a.packets,
            markable: a.markable as u32,
            backlog: 0,
            decision: Decision {
                mark: flag(0),
                unmarkable: flag(1),
                input_trigger: flag(2),
                output_trigger: flag(3),
                drop: flag(4),
                share: (decision >> 37) as u32 & 7,
            },
            now_ns,
            virtual_ns_per_byte: ns_per_byte,
            bytes,
            source: a.source,
            droppable: a.droppable as u32,
            _pad: 0,
        },
    );
    0
}

/// Marks an enqueued packet in its ECN field, by a backward message, or both. Returns 1 if it is marked, else 0.
#[inline(never)]
fn mark_enqueued(p: &Packet, ip: &Ip, c: &PackedPacket) -> u32 {
    let (bridge, n) = (c.ports as u32, c.source as u32);
    let feedback = backward::feedback(bridge);
    let in_packet = feedback != Feedback::Backward as u32 && ip.markable();
    let marked = mark(p, ip, n, in_packet);
    if feedback != Feedback::Echo as u32 {
        backward::send(p, bridge, (c.ports >> 40) as u8, n, in_packet);
    }
    #[cfg(feature = "trace")]
    aya_log_ebpf::debug!(
        &p.ctx,
        "bridge {} port {} -> {}: marked {} packets",
        c.ports as u32,
        (c.ports >> 32) as u8,
        (c.ports >> 40) as u8,
        c.source as u32
    );
    marked.into()
}

#[inline(always)]
fn mark(p: &Packet, ip: &Ip, n: u32, in_packet: bool) -> bool {
    let marked = !in_packet || p.mark(ip);
    let counter = if marked {
        Count::Marked
    } else {
        Count::MarkFailed
    };
    count(counter, n as u64);
    marked
}

/// Records when a packet was marked, to measure the time until its source responds.
#[inline(always)]
fn trace_latency(p: &Packet, ip: &Ip, flags: u32) {
    if flags & abi::TRACE_LATENCY != 0 {
        record_mark(p, ip);
    }
}

/// Not inlined: callers have no stack left for the key.
#[inline(never)]
fn record_mark(p: &Packet, ip: &Ip) -> u32 {
    let mut flow = flow::Key::default();
    // Only the ports: the whole header takes too much stack.
    if let Some(ports) = p.ports(ip)
        && key(p, ip, ports, &mut flow)
    {
        // Keeps the oldest unanswered mark.
        let _ = ECN_MARKED.insert(&flow, &now(), 1 /* BPF_NOEXIST */);
    }
    0
}

/// Writes the flow key of a packet with these ports, without an endpoint number, into an empty one. False: its
/// addresses cannot be read.
#[inline(always)]
pub fn key(p: &Packet, ip: &Ip, (src_port, dst_port): (u16, u16), key: &mut flow::Key) -> bool {
    key.protocol = ip.protocol;
    key.src_port = src_port;
    key.dst_port = dst_port;
    p.addresses(ip, key)
}

#[classifier]
pub fn ecn_wire_end(ctx: TcContext) -> i32 {
    let _ = try_wire_end(ctx);
    NEXT
}

#[inline(always)]
fn try_wire_end(ctx: TcContext) -> Option<()> {
    let flags = control()?.flags;
    if flags & abi::BYPASS != 0 {
        return None;
    }
    let p = Packet::new(ctx);
    let d = lookup_device(netns(), field!(&p.ctx, ifindex))?;
    if d.role & abi::ROLE_WIRE_END == 0 {
        return None;
    }
    let ip = p.parse()?;
    if !ip.markable() {
        return None;
    }
    let (o, n) = (d.wire_port as u8, p.segments(&ip));
    let bridge = ECN_BRIDGE.get_ptr_mut(d.wire_bridge)?;
    let (sequence, marked) = with_bridge_lock!(bridge, b => (b.sequence, b.switch.wire_end(o, n)));
    if marked && mark(&p, &ip, n, true) {
        trace_latency(&p, &ip, flags);
    }
    trace(
        flags,
        PortEvent {
            kind: PortEventKind::WireEnd as u32,
            bridge: d.wire_bridge,
            sequence,
            output: o as u32,
            segments: n,
            markable: 1,
            decision: Decision {
                mark: marked as u32,
                ..Decision::default()
            },
            ..PortEvent::default()
        },
    );
    Some(())
}

/// A packet that leaves a queue or is dropped by it.
struct QueuedSkb {
    device: Device,
    netns: u32,
    gso_segs: u32,
    gso_size: u32,
    /// Zero, but unknown to the verifier.
    zero: Zero,
}

/// Whether the device is a port whose own queue is counted, not a virtual one.
#[inline(always)]
fn is_watched(device: &Device) -> bool {
    let role = device.role & (abi::ROLE_PORT | abi::ROLE_NO_QUEUE);
    role == abi::ROLE_PORT && device.virtual_ns_per_byte == 0
}

/// A device's roles and namespace. `None`: a device without roles.
#[inline(always)]
fn find_device(dev: *const u8) -> Option<(Device, u32)> {
    // SAFETY: a BTF pointer, and offsets of the running kernel.
    let (netns, ifindex) = unsafe {
        let net: *const u8 = member(dev, constant(&OFFSETS.dev_net));
        (
            member::<u32>(net, constant(&OFFSETS.net_inum)),
            member::<u32>(dev, constant(&OFFSETS.dev_ifindex)),
        )
    };
    Some((lookup_device(netns, ifindex)?, netns))
}

impl QueuedSkb {
    /// Reads a packet's offload fields at a device.
    #[inline(always)]
    fn at(device: Device, netns: u32, skb: *const u8) -> Option<Self> {
        // SAFETY: a BTF pointer, and offsets of the running kernel.
        unsafe {
            let head: u64 = member(skb, constant(&OFFSETS.skb_head));
            let end: u32 = member(skb, constant(&OFFSETS.skb_end));
            let [s0, s1, n0, n1] =
                kernel::<4>(head + end as u64 + constant(&OFFSETS.shinfo_gso_size) as u64)?;
            Some(Self {
                device,
                netns,
                gso_segs: u16::from_ne_bytes([n0, n1]) as u32,
                gso_size: u16::from_ne_bytes([s0, s1]) as u32,
                zero: Zero::from_reads(
                    member(skb, constant(&OFFSETS.skb_len)),
                    member(skb, constant(&OFFSETS.skb_len)),
                ),
            })
        }
    }
}

/// A packet that was counted when it was enqueued.
struct ParsedSkb {
    ip: Ip,
    /// Segments.
    n: u32,
}

/// Parses a packet at a tracepoint. `None`: it was not counted.
#[inline(always)]
fn parse_skb(skb: *const u8, s: &QueuedSkb) -> Option<ParsedSkb> {
    // SAFETY: a BTF pointer, and offsets of the running kernel.
    let frame = unsafe {
        let header: u16 = member(skb, constant(&OFFSETS.skb_mac_header));
        let head: u64 = member(skb, constant(&OFFSETS.skb_head));
        let len: u32 = member(skb, constant(&OFFSETS.skb_len));
        let paged: u32 = member(skb, constant(&OFFSETS.skb_data_len));
        Linear {
            start: head + header as u64,
            len,
            linear: len.saturating_sub(paged),
            zero: s.zero,
        }
    };
    let ip = packet::parse(&frame).ok()?;
    let mut payload = 0;
    if s.gso_segs == 0 && s.gso_size != 0 {
        let header = match packet::transport(&frame, &ip) {
            Ok(t) => t.header_len,
            Err(_) => 0,
        };
        payload = ip.upper_len().saturating_sub(header);
    }
    let n = packet::segments(s.gso_segs, s.gso_size, payload);
    Some(ParsedSkb { ip, n })
}

/// Whether this loaded copy of the tracepoint programs is the one that counts, not that of the previous or next
/// agent.
#[inline(always)]
fn is_current_generation(flags: u32) -> bool {
    flags & abi::GENERATION == constant(&GENERATION)
}

#[btf_tracepoint(function = "net_dev_start_xmit")]
pub fn ecn_depart(ctx: BtfTracePointContext) -> i32 {
    let _ = try_depart(&ctx);
    0
}

#[inline(always)]
fn try_depart(ctx: &BtfTracePointContext) -> Option<()> {
    let skb: *const u8 = ctx.arg(0);
    let dev: *const u8 = ctx.arg(1);
    let (device, netns) = find_device(dev)?;
    let class = if device.role & abi::ROLE_ENDPOINT != 0 {
        // SAFETY: as in `find_device`.
        pacing::class(unsafe { member(skb, constant(&OFFSETS.skb_priority)) })
    } else {
        0
    };
    let watched = constant(&TRACING_LOCKS) != 0 && is_watched(&device);
    // Most packets of a machine have no class and leave by unwatched devices. They are skipped before the packet is
    // read, which costs more than reading the device.
    if class == 0 && !watched {
        return None;
    }
    let flags = control()?.flags;
    if !is_current_generation(flags) {
        return None;
    }
    let s = QueuedSkb::at(device, netns, skb)?;
    if class != 0
        && let Some(departed) = ECN_DEPARTED.get_ptr_mut(class)
    {
        // SAFETY: a class belongs to one queue, whose transmission is serialised. An addition for packets that leave
        // with the short flows may be lost meanwhile: the response expects missing departures.
        unsafe { *departed += packet::segments(s.gso_segs, s.gso_size, 0) as u64 };
    }
    if !watched || flags & abi::BYPASS != 0 {
        return None;
    }
    let c = parse_skb(skb, &s)?;
    // SAFETY: as in `find_device`.
    let (iif, backlog) = unsafe {
        let iif: u32 = member(skb, constant(&OFFSETS.skb_iif));
        let backlog = if s.device.role & abi::ROLE_BACKLOG != 0 {
            let qdisc: *const u8 = member(dev, constant(&OFFSETS.dev_qdisc));
            member::<u32>(qdisc, constant(&OFFSETS.qdisc_qlen))
        } else {
            BACKLOG_UNKNOWN
        };
        (iif, backlog)
    };
    on_dequeue(flags, &s, &c, iif, backlog)
}

/// A packet from `iif` left its queue; `backlog` is the length of the device's queue without it.
#[inline(always)]
fn on_dequeue(flags: u32, s: &QueuedSkb, c: &ParsedSkb, iif: u32, backlog: u32) -> Option<()> {
    let number = s.device.bridge;
    let policy = *ECN_MARKING.get(number)?;
    let i = input_slot(s.netns, iif, number, s.zero);
    let (o, n) = (s.device.port as u8, c.n);
    let markable = c.ip.markable();
    let a = PacketMeta {
        input: i,
        output: o,
        markable,
        packets: n,
        source: c.ip.source,
        ..PacketMeta::default()
    };
    let bridge = ECN_BRIDGE.get_ptr_mut(number)?;
    let (sequence, decision, surplus) = with_bridge_lock!(bridge, b => {
        let decision = b.shares.on_dequeue(&mut b.switch, &policy, &a);
        (b.sequence, decision, b.switch.is_surplus(o, backlog))
    });
    trace(
        flags,
        PortEvent {
            kind: PortEventKind::Dequeue as u32,
            bridge: number,
            sequence,
            input: i as u32,
            output: o as u32,
            segments: n,
            markable: markable as u32,
            backlog,
            decision,
            source: c.ip.source,
            ..PortEvent::default()
        },
    );
    if surplus {
        // Last, where paths have merged and few registers are live: see `Switch::repair`.
        with_bridge_lock!(bridge, b => {
            // The repair belongs to the same event.
            b.sequence = b.sequence.wrapping_sub(1);
            b.switch.repair(o, policy.ports);
        });
    }
    Some(())
}

#[btf_tracepoint(function = "kfree_skb")]
pub fn ecn_drop(ctx: BtfTracePointContext) -> i32 {
    let _ = try_drop(&ctx);
    0
}

#[inline(always)]
fn try_drop(ctx: &BtfTracePointContext) -> Option<()> {
    let reason: u32 = ctx.arg(2);
    let bits = match reason >> 6 {
        0 => constant(&OFFSETS.drop_reasons[0]),
        1 => constant(&OFFSETS.drop_reasons[1]),
        _ => 0,
    };
    if bits >> (reason & 63) & 1 == 0 {
        return None;
    }
    let skb: *const u8 = ctx.arg(0);
    // SAFETY: a BTF pointer, and offsets of the running kernel.
    let dev: *const u8 = unsafe { member(skb, constant(&OFFSETS.skb_dev)) };
    let (device, netns) = find_device(dev)?;
    if !is_watched(&device) {
        return None;
    }
    let s = QueuedSkb::at(device, netns, skb)?;
    let flags = control()?.flags;
    if !is_current_generation(flags) || flags & abi::BYPASS != 0 {
        return None;
    }
    let c = parse_skb(skb, &s)?;
    // SAFETY: as above.
    let iif: u32 = unsafe { member(skb, constant(&OFFSETS.skb_iif)) };
    on_drop(flags, &s, &c, iif)
}

/// The queue dropped a packet from `iif`.
#[inline(always)]
fn on_drop(flags: u32, s: &QueuedSkb, c: &ParsedSkb, iif: u32) -> Option<()> {
    let number = s.device.bridge;
    let i = input_slot(s.netns, iif, number, s.zero);
    let (o, n) = (s.device.port as u8, c.n);
    let bridge = ECN_BRIDGE.get_ptr_mut(number)?;
    let sequence = with_bridge_lock!(bridge, b => {
        b.switch.on_drop(i, o, n);
        b.sequence
    });
    trace(
        flags,
        PortEvent {
            kind: PortEventKind::Drop as u32,
            bridge: number,
            sequence,
            input: i as u32,
            output: o as u32,
            segments: n,
            ..PortEvent::default()
        },
    );
    Some(())
}

/// Run by the agent with an [`abi::PortReset`] as its packet: user space cannot update part of a map value under its
/// lock. Returns 1 if the counters were changed, else 0.
#[classifier]
pub fn ecn_port_reset(ctx: TcContext) -> i32 {
    try_port_reset(&ctx).unwrap_or(0)
}

#[inline(always)]
fn try_port_reset(ctx: &TcContext) -> Option<i32> {
    let b = load::<16>(ctx, 0)?;
    let word = |at: usize| u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    let (number, port, action, arrived) = (word(0), word(4) as u8, word(8), word(12));
    ECN_MARKING.get(number)?;
    let ports = abi::PORTS as u32;
    let bridge = ECN_BRIDGE.get_ptr_mut(number)?;
    let queues = ECN_VIRTUAL.get_ptr_mut(number);
    let now = now();
    let done = with_bridge_lock!(bridge, b => {
        let idle = b.switch.ports[port as usize].arrived as u32 == arrived;
        if action == PortAction::CatchUp as u32 {
            match queues {
                Some(queues) => {
                    (*queues).catch_up(&mut b.switch, port, now);
                    1
                }
                None => 0,
            }
        } else if action != PortAction::Forget as u32 || idle {
            b.switch.set_waiting(port, ports, 0);
            if action == PortAction::Remove as u32 {
                b.switch.remove_input(port, ports);
                b.shares.remove_port(port);
            } else if let Some(queues) = queues
                && action == PortAction::RemoveVirtual as u32
            {
                (*queues).remove_port(&mut b.switch, port);
                b.shares.remove_port(port);
            }
            1
        } else {
            0
        }
    });
    Some(done)
}

/// Never attached: tracing programs cannot be run on a test packet, so tests run this instead of [`ecn_depart`] and
/// [`ecn_drop`]. `cb[0]`: a [`PortEventKind`]; `cb[1]`: length of the device's queue at a departure.
#[classifier]
pub fn ecn_port_replay(ctx: TcContext) -> i32 {
    let _ = try_port_replay(ctx);
    NEXT
}

#[inline(always)]
fn try_port_replay(ctx: TcContext) -> Option<()> {
    let flags = control()?.flags;
    let p = Packet::new(ctx);
    let ip = p.parse()?;
    let netns = netns();
    let s = QueuedSkb {
        device: lookup_device(netns, field!(&p.ctx, ifindex))?,
        netns,
        gso_segs: field!(&p.ctx, gso_segs),
        gso_size: field!(&p.ctx, gso_size),
        zero: p.zero,
    };
    let c = ParsedSkb {
        n: p.segments(&ip),
        ip,
    };
    let iif = field!(&p.ctx, ingress_ifindex);
    let [kind, backlog, ..] = field!(&p.ctx, cb);
    if kind == PortEventKind::Dequeue as u32 {
        on_dequeue(flags, &s, &c, iif, backlog)
    } else {
        on_drop(flags, &s, &c, iif)
    }
}

/// Attached only by benchmarks, as the baseline for the cost of the other programs.
#[classifier]
pub fn ecn_empty(_: TcContext) -> i32 {
    NEXT
}
