//! Endpoint role: the flow's device at the source, and at the receiver.
//!
//! * `ecn_ep_out`, `ecn_flow_out`, tcx egress: before the queueing discipline. Classifies the flow, makes it
//!   ECN-capable, puts it into its class or gives it its departure time; turns a receiver's clone into an echo.
//!   What TCP sends says what was marked ([`tcp`]).
//! * `ecn_ep_in`, `ecn_flow_in`, tcx ingress: before the IP stack. Takes echoes and moves the flow's rate; counts
//!   what was received, takes marks off that TCP must not see, and sends a clone back where an echo is due.

use aya_ebpf::{
    helpers::{bpf_clone_redirect, bpf_redirect, bpf_skb_change_tail},
    macros::classifier,
    programs::TcContext,
};
use ecn_core::{
    abi::{self, Count, Endpoint, LockedFlow, LockedReceiver},
    ace,
    echo::{self, Echo, Headroom, Receiver},
    flow::{self, Flow, Key},
    pacing::{DROPPED, nonzero_or, priority, queue_bytes, standing_queue_ns},
    packet::{self, ETHERNET, IPV6, Ip},
};

use crate::{
    maps::{
        ECN_DEPARTED, ECN_ENDPOINT, ECN_FLOW, ECN_IN_FORCE, ECN_LIMIT, ECN_RECEIVER, ENDPOINT,
        constant, control, count,
    },
    pacing, quota,
    response::{self, atomic_add, class_of, coarse_now, now, read_once, read_word, with_lock},
    skb::{NEXT, Packet, SHOT, field, load, raw, store, tail_call},
    socket, tcp,
};

/// `skb->mark` of a clone on its way from the ingress to the egress hook of one device.
const ECHO_MARK: u32 = 0xec0e_ec0e;
/// `skb->pkt_type` of a frame for another host, `PACKET_OTHERHOST` of linux/if_packet.h.
const OTHER_HOST: u32 = 3;
/// Insert only if there is none yet.
const BPF_NOEXIST: u64 = 1;

/// What a packet is to an endpoint.
struct Classified {
    ip: Ip,
    /// TCP's flags, for TCP only.
    tcp: Option<packet::Tcp>,
    /// Has payload to be limited by: everything but TCP's pure control segments.
    data: bool,
    /// Bytes of all headers.
    headers: u32,
}

impl Classified {
    /// TCP whose header may be changed: an authentication header would tell.
    #[inline(always)]
    fn tcp(&self) -> Option<&packet::Tcp> {
        match &self.tcp {
            Some(t) if !self.ip.authenticated => Some(t),
            _ => None,
        }
    }
}

/// Writes the flow's key; of fragments the addresses and the protocol only. `None`: control frames,
/// multicast, what cannot be parsed. They pass untouched.
#[inline(always)]
fn classify(p: &Packet, key: &mut Key) -> Option<Classified> {
    let ip = p.parse()?;
    if !ip.unicast {
        return None;
    }
    let t = p.transport(&ip)?;
    if !p.addresses(&ip, key) {
        return None;
    }
    key.protocol = ip.protocol;
    key.endpoint = endpoint_number(&p.ctx) as u16;
    key.src_port = t.src_port;
    key.dst_port = t.dst_port;
    Some(Classified {
        ip,
        tcp: t.tcp,
        data: t.tcp.is_none() || ip.upper_len() > t.header_len,
        headers: ip.upper() + t.header_len,
    })
}

/// What a new flow begins with; in read-only data, since the stack is small.
static FRESH_FLOW: LockedFlow = LockedFlow {
    lock: abi::bpf_spin_lock { val: 0 },
    _pad: 0,
    flow: Flow::new(),
};
/// What a new receiver begins with.
static FRESH_RECEIVER: LockedReceiver = LockedReceiver {
    lock: abi::bpf_spin_lock { val: 0 },
    _pad: 0,
    receiver: Receiver::new(),
};

/// The flow's entry, made if there is none.
#[inline(always)]
fn flow_entry(key: &Key) -> Option<*mut LockedFlow> {
    if let Some(f) = ECN_FLOW.get_ptr_mut(key) {
        return Some(f);
    }
    add_flow(key);
    ECN_FLOW.get_ptr_mut(key)
}

/// Makes a flow's entry, if there is room for it. Not inlined, nor is [`add_receiver`]: with more in one function the
/// compiler spills registers that hold nothing, which the verifier refuses.
#[inline(never)]
fn add_flow(key: &Key) {
    if !quota::has_room(abi::TABLE_FLOWS, key) {
        return;
    }
    // Two CPUs may meet on the first packet: the second finds what the first has put there.
    if ECN_FLOW.insert(key, &FRESH_FLOW, BPF_NOEXIST).is_ok() {
        quota::added(abi::TABLE_FLOWS, key);
    }
}

/// Makes a receiver's entry, if there is room for it.
#[inline(never)]
fn add_receiver(key: &Key) {
    if !quota::has_room(abi::TABLE_RECEIVERS, key) {
        return;
    }
    if ECN_RECEIVER
        .insert(key, &FRESH_RECEIVER, BPF_NOEXIST)
        .is_ok()
    {
        quota::added(abi::TABLE_RECEIVERS, key);
    }
}

#[inline(always)]
pub fn receiver_entry(key: &Key) -> Option<*mut LockedReceiver> {
    if let Some(r) = ECN_RECEIVER.get_ptr_mut(key) {
        return Some(r);
    }
    add_receiver(key);
    ECN_RECEIVER.get_ptr_mut(key)
}

/// Which endpoint this packet is at: see [`tail_call`].
#[inline(always)]
fn endpoint_number(ctx: &TcContext) -> u32 {
    field!(ctx, cb)[0]
}

#[classifier]
pub fn ecn_ep_out(ctx: TcContext) -> i32 {
    tail_call(&ctx, abi::TAIL_OUT, constant(&ENDPOINT))
}

#[classifier]
pub fn ecn_ep_in(ctx: TcContext) -> i32 {
    tail_call(&ctx, abi::TAIL_IN, constant(&ENDPOINT))
}

#[classifier]
pub fn ecn_flow_out(ctx: TcContext) -> i32 {
    match egress(ctx) {
        Some(verdict) => verdict,
        None => NEXT,
    }
}

/// Whether `a < b`, 1 or 0, both below 2^63: a comparison would be two ways for the verifier.
#[inline(always)]
fn is_below(a: u64, b: u64) -> u64 {
    core::hint::black_box(a.wrapping_sub(b)) >> 63
}

#[inline(always)]
fn egress(ctx: TcContext) -> Option<i32> {
    let control = control()?;
    let endpoint = ECN_ENDPOINT.get(endpoint_number(&ctx))?;
    let echo =
        field!(&ctx, mark) == ECHO_MARK && field!(&ctx, ingress_ifindex) == field!(&ctx, ifindex);
    let does = endpoint.flags & (abi::CONTROL_FLOWS | abi::ECHO) != 0;
    if !echo && (control.flags & abi::BYPASS != 0 || !does) {
        return None;
    }
    let p = Packet::new(ctx);
    let mut key = Key::default();
    let c = classify(&p, &mut key)?;
    if echo {
        // A clone that could not become an echo must not go back as it is.
        let sent = send_echo(&p, &c, &key, &endpoint.echo).is_some();
        count(
            if sent {
                Count::EchoSent
            } else {
                Count::EchoFailed
            },
            1,
        );
        if !sent {
            return Some(SHOT);
        }
        // Once more, from the start: queueing disciplines take the length that a packet had before this hook
        // for its length, and this one had its data then. HTB charges that to its class: with as many bytes for echoes
        // as for a flow, three flows there and four back had 72 % of a port each way.
        let ifindex = field!(&p.ctx, ifindex);
        // SAFETY: takes numbers only.
        return Some(unsafe { bpf_redirect(ifindex, 0) } as i32);
    }
    if c.ip.protocol as u32 == endpoint.echo.protocol {
        return None;
    }
    if let Some(t) = c.tcp()
        && endpoint.flags & abi::ECHO != 0
    {
        if t.syn {
            tcp::handshake(&p, &c.ip, t, &mut key, endpoint, false);
        }
        if (t.fin || t.rst) && !c.data && endpoint.flags & abi::CONTROL_FLOWS != 0 {
            queue_behind_data(&p, &key, endpoint, control.valid_until_ns);
        }
        if t.rst {
            on_reset(&key);
        }
        if t.fin && !c.data {
            on_fin(&key);
        }
        if t.syn || t.rst {
            return None;
        }
    }
    let limited = c.data && endpoint.flags & abi::CONTROL_FLOWS != 0;
    let number = u32::from(key.endpoint);
    let (now, f) = if limited {
        // Only departure times are to the microsecond.
        let now = if endpoint.flags & abi::EDT != 0 {
            now()
        } else {
            coarse_now()
        };
        (now, flow_entry(&key))
    } else {
        (0, None)
    };
    let mut known = 0;
    let (mut sequence, mut expected, mut len, mut segment, mut tcp_set_ecn) = (0, 0, 0, 0, false);
    if let Some(t) = c.tcp() {
        if endpoint.flags & abi::ECHO != 0 {
            known = tcp::encode(&p, &c.ip, t, c.data, f, &mut key);
        }
        (len, segment) = tcp::lengths(&p, &c.ip, t);
        (sequence, expected) = (t.sequence, t.ack_number);
        tcp_set_ecn = t.ecn || c.ip.ecn() != packet::NOT_ECT;
    }
    let Some(f) = f else {
        if limited {
            count(Count::FlowsFull, 1);
            use_short_class(&p, number, now > control.valid_until_ns, 1);
        }
        return None;
    };
    let n = p.segments(&c.ip);
    let by_socket = endpoint.flags & abi::PACE != 0;
    if by_socket && !(c.tcp().is_some() && socket::remember(&p.ctx, f, &key)) {
        // Seen, and said to be unlimited: without a class it shows as that.
        with_lock!(f, flow as f => f.on_send(now));
        count(Count::Unpaced, n as u64);
        return None;
    }
    let bytes = field!(&p.ctx, wire_len) as u64;
    let link = endpoint.link_bytes_per_s;
    let expired = now > control.valid_until_ns;
    let before = read_once!(f, flow.sent_packets);
    let mut short = !by_socket;
    let created = if before < flow::SHORT_PACKETS {
        read_once!(f, flow.created_ns)
    } else {
        0
    };
    if short && !Flow::is_short(before, created, now) {
        // A rate of its own, once it is heard of: until then it may be one of many whose packets are lost. A receiver
        // that echoes nothing is not waited for; TCP's acknowledges.
        let silent = now.saturating_sub(read_once!(f, flow.last_sent_ns)) > flow::IDLE_NS;
        if silent || read_once!(f, flow.has_own_rate) == 0 {
            let has_feedback = read_once!(f, flow.last_echo_ns) != 0;
            let created = read_once!(f, flow.created_ns);
            let alone = c.tcp().is_none() && now.saturating_sub(created) > flow::NO_FEEDBACK_NS;
            if has_feedback || alone {
                // SAFETY: a place in the value. Twice does no harm.
                unsafe { core::ptr::write_volatile(&raw mut (*f).flow.has_own_rate, 1) };
                if has_feedback && read_once!(f, flow.flags) & flow::NEGOTIATED == 0 {
                    response::start_own_rate(f, &key, endpoint);
                }
            }
        }
        short = (read_once!(f, flow.has_own_rate) == 0) | (read_once!(f, flow.shared) != 0);
    }
    let own = class_of(f) & 0xffff;
    let in_force = read_word(ECN_IN_FORCE.get(own)) != 0;
    // Seldom needed, and written with each acknowledgement.
    let rate = if own != 0 {
        read_once!(f, flow.rate_bytes_per_s)
    } else {
        0
    };
    let held = is_below(0, own.into()) & is_below(0, rate) & is_below(rate, link) != 0;
    let paced = endpoint.flags & abi::EDT != 0 && !expired;
    let mut limit = 0;
    // The flow that has the rate which holds for this packet, if any does.
    let mut timed = None;
    if paced {
        if own != 0 {
            limit = read_word(ECN_LIMIT.get(own));
        }
        if held || limit != 0 {
            timed = Some(f);
        } else if short && read_word(ECN_IN_FORCE.get(abi::short_class(number))) != 0 {
            timed = ECN_FLOW.get_ptr_mut(&Key::short(number as u16));
        }
    }
    let same = len == 0
        || (Flow::is_ecn_decided(read_once!(f, flow.flags), known, tcp_set_ecn)
            && ace::Sender::is_fast_send(
                read_once!(f, flow.ace.state),
                read_once!(f, flow.ace.segment),
                segment,
            ));
    // The first packet says when it came.
    let flags = if same && before != 0 {
        // A connection's socket is locked while it sends. Where its packets only pass, two CPUs may have some of
        // them at a time, and the earlier one's number may be written last. Until more is sent, the later one seems
        // to have come already, by which a round may be longer, and its ACK says nothing, which the next one does.
        let end = sequence.wrapping_add(len);
        let later = len != 0 && ace::is_later(end, read_once!(f, flow.ace.end));
        let retransmitted = read_once!(f, flow.ace.retransmitted).wrapping_add(n);
        // SAFETY: places in the value.
        unsafe {
            if later {
                core::ptr::write_volatile(&raw mut (*f).flow.ace.end, end);
                core::ptr::write_volatile(&raw mut (*f).flow.ace.expected, expected);
            } else if len != 0 {
                core::ptr::write_volatile(&raw mut (*f).flow.ace.retransmitted, retransmitted);
            }
            core::ptr::write_volatile(&raw mut (*f).flow.last_sent_ns, now);
        }
        read_once!(f, flow.flags)
    } else {
        with_lock!(f, flow as f => {
            if len != 0 {
                f.on_tcp_send(known, tcp_set_ecn, sequence, len, segment);
                f.ace.expected = expected;
            }
            f.on_send(now);
            f.flags
        })
    };
    if let Some(timed) = timed
        && flags & flow::NEGOTIATED == 0
    {
        let stamp = pacing::departure_time(&p.ctx);
        let least = endpoint.queue_bytes;
        let standing = standing_queue_ns(c.tcp().is_some());
        let at = with_lock!(timed, flow as f => {
            let rate = nonzero_or(limit, nonzero_or(f.rate_bytes_per_s, link));
            f.pacer.departure(now, stamp, bytes, rate, least + queue_bytes(rate), standing)
        });
        if at == DROPPED {
            count(Count::SourceDropped, n as u64);
            return Some(SHOT);
        }
        pacing::set_departure_time(&p.ctx, at);
    }
    // SAFETY: places in the value.
    unsafe {
        atomic_add(&raw mut (*f).flow.sent_packets, n as u64);
        atomic_add(&raw mut (*f).flow.sent_bytes, bytes);
    }
    if flags & flow::NEGOTIATED != 0 {
        return None;
    }
    if c.ip.ecn() == packet::NOT_ECT
        && !packet::is_tunnel(c.ip.protocol, key.dst_port)
        && !p.set_ecn(&c.ip, packet::ECT_0)
    {
        count(Count::EctFailed, n as u64);
        return None;
    }
    if let Some(t) = c.tcp()
        && t.fin
    {
        // SAFETY: a place in the value.
        unsafe { core::ptr::write_volatile(&raw mut (*f).flow.ended, 1) };
    }
    let by_class = !by_socket && endpoint.flags & abi::EDT == 0;
    if by_class && !in_force && (short || held) {
        // The rest of who is limited here: who is short, who waits for a class, who cannot have one.
        if use_short_class(&p, number, expired, if short { 0 } else { n }) {
            return None;
        }
    }
    if own == 0 {
        return None;
    }
    if expired {
        count(Count::LimitExpired, n as u64);
        return None;
    }
    // HTB sends a packet to the class whose handle is its priority. Before the agent says that the class
    // is there with its queue, what it takes would be lost with the queue that it is born with.
    let priority = if by_class && in_force {
        (abi::HTB_MAJOR as u32) << 16 | own
    } else {
        priority(own, field!(&p.ctx, priority))
    };
    // SAFETY: tc programs may write this field.
    unsafe { (*raw(&p.ctx)).priority = priority };
    None
}

/// A FIN or RST without data waits behind the data that its connection has sent. In front of it, the FIN has the
/// receiver report everything before it as missing, and the source sends that again (RACK, RFC 8985); the RST
/// cuts it off.
#[inline(always)]
fn queue_behind_data(p: &Packet, key: &Key, endpoint: &Endpoint, valid_until_ns: u64) {
    let now = coarse_now();
    if endpoint.flags & abi::PACE != 0 || now > valid_until_ns {
        return;
    }
    let Some(f) = ECN_FLOW.get_ptr_mut(key) else {
        return;
    };
    let number = u32::from(key.endpoint);
    let own = class_of(f) & 0xffff;
    let rate = read_once!(f, flow.rate_bytes_per_s);
    let held = own != 0 && rate != 0 && rate < endpoint.link_bytes_per_s;
    let short = read_once!(f, flow.has_own_rate) == 0 || read_once!(f, flow.shared) != 0;
    if endpoint.flags & abi::EDT != 0 {
        let timed = if short {
            ECN_FLOW.get_ptr_mut(&Key::short(key.endpoint))
        } else {
            Some(f)
        };
        if let Some(timed) = timed {
            let at = read_once!(timed, flow.pacer.last_ns);
            if at > now {
                pacing::set_departure_time(&p.ctx, at);
            }
        }
    } else if read_word(ECN_IN_FORCE.get(own)) != 0 {
        // SAFETY: a place in the value; tc programs may write the field.
        unsafe {
            // As every packet that leaves through the class.
            atomic_add(&raw mut (*f).flow.sent_packets, 1);
            (*raw(&p.ctx)).priority = (abi::HTB_MAJOR as u32) << 16 | own;
        }
    } else if short || held {
        use_short_class(p, number, false, 0);
    }
}

/// Sends a packet to the class of the short flows, if there is one: they are limited, and so is whoever has no class.
/// Counts it as `n` packets that have to.
#[inline(always)]
fn use_short_class(p: &Packet, number: u32, expired: bool, n: u32) -> bool {
    let class = abi::short_class(number);
    if expired || read_word(ECN_IN_FORCE.get(class)) == 0 {
        return false;
    }
    if n != 0 {
        count(Count::Shared, n as u64);
    }
    // SAFETY: tc programs may write this field.
    unsafe { (*raw(&p.ctx)).priority = (abi::HTB_MAJOR as u32) << 16 | class };
    true
}

/// A TCP connection is reset. Without a class its entry goes at once, so that short connections do not fill the
/// table; otherwise the agent takes both away.
#[inline(always)]
fn on_reset(key: &Key) {
    let Some(f) = ECN_FLOW.get_ptr_mut(key) else {
        return;
    };
    if class_of(f) == 0 && read_once!(f, flow.socket) == 0 {
        quota::remove_flow(key);
    } else {
        // SAFETY: a place in the value.
        unsafe { core::ptr::write_volatile(&raw mut (*f).flow.ended, 1) };
    }
}

/// A TCP connection sends no more: its entry goes with the ACK of that, whose marks still count.
#[inline(always)]
fn on_fin(key: &Key) {
    if let Some(f) = ECN_FLOW.get_ptr_mut(key) {
        // SAFETY: a place in the value.
        unsafe { core::ptr::write_volatile(&raw mut (*f).flow.ended, 1) };
    }
}

/// Run by the agent, with an [`abi::FlowChange`] for a packet: user space cannot change a part of a flow, a program
/// under the lock can. Returns the class that the flow has then; 0: none, or there is no such flow.
#[classifier]
pub fn ecn_flow_change(ctx: TcContext) -> i32 {
    try_flow_change(&ctx).unwrap_or(0)
}

#[inline(always)]
fn try_flow_change(ctx: &TcContext) -> Option<i32> {
    let mut key = Key {
        src: load::<16>(ctx, 0)?,
        dst: load::<16>(ctx, 16)?,
        ..Key::default()
    };
    let b = load::<12>(ctx, 32)?;
    key.src_port = u16::from_ne_bytes([b[0], b[1]]);
    key.dst_port = u16::from_ne_bytes([b[2], b[3]]);
    key.endpoint = u16::from_ne_bytes([b[4], b[5]]);
    key.protocol = b[6];
    let class = u32::from_ne_bytes([b[8], b[9], b[10], b[11]]);
    let f = ECN_FLOW.get_ptr_mut(&key)?;
    let sent = read_once!(f, flow.sent_packets);
    if class != 0
        && class_of(f) == 0
        && let Some(departed) = ECN_DEPARTED.get_ptr_mut(class & 0xffff)
    {
        // SAFETY: nothing is in this class yet.
        unsafe { *departed = sent };
    }
    Some(with_lock!(f, flow as f => {
        if class == 0 {
            f.shared = 1;
            f.pending = 0;
        } else {
            if f.class == 0 {
                f.class = class;
            }
            f.shared = 0;
        }
        f.class as i32
    }))
}

/// Turns a clone of a data packet into the echo for its flow.
#[inline(always)]
fn send_echo(p: &Packet, c: &Classified, key: &Key, policy: &echo::Policy) -> Option<()> {
    // SAFETY: tc programs may write this field.
    unsafe { (*raw(&p.ctx)).mark = 0 };
    let r = ECN_RECEIVER.get_ptr_mut(key)?;
    let (protocol, src_port, dst_port) = (key.protocol, key.src_port, key.dst_port);
    let (mut e, marked_ns) =
        with_lock!(r, receiver as r => (r.echo(protocol, src_port, dst_port), r.last_ce_ns));
    if let Some(t) = c.tcp() {
        e.packets = t.sequence;
    }
    let mut len = echo::LEN;
    let mut tag = 0;
    if policy.signs() {
        e.signed = true;
        len += echo::TAG_LEN;
        tag = e.tag(policy.keys[0], &key.dst, &key.src);
    }
    let ecn = if Receiver::requests_headroom(marked_ns, coarse_now()) {
        packet::ECT_0
    } else {
        packet::NOT_ECT
    };
    let macs = load::<ETHERNET>(&p.ctx, 0)?;
    let mut swapped = [0u8; 12];
    swapped[..6].copy_from_slice(&macs[6..12]);
    swapped[6..].copy_from_slice(&macs[..6]);
    let l3 = c.ip.l3;
    let version4 = c.ip.version == 4;
    let header = if version4 { 20 } else { IPV6 as u32 };
    // SAFETY: takes the context; packet pointers are not held.
    let ret = unsafe { bpf_skb_change_tail(raw(&p.ctx).cast(), l3 + header + len as u32, 0) };
    // What comes through a tunnel from a device on this machine the kernel does not cut: what is behind the echo is
    // padding then. Of a super-packet every segment would have a piece of it.
    let whole = ret != 0 && field!(&p.ctx, gso_size) != 0;
    if whole || !store(&p.ctx, 0, &swapped, 0) {
        return None;
    }
    let written = if version4 {
        let mut b = [0u8; 20];
        // RFC 791: version and length; ECN field; total length; do not fragment; 64 hops.
        b[0] = 0x45;
        b[1] = ecn;
        b[3] = 20 + len as u8;
        b[6] = 0x40;
        b[8] = 64;
        b[9] = policy.protocol as u8;
        b[12..16].copy_from_slice(&key.dst[12..]);
        b[16..20].copy_from_slice(&key.src[12..]);
        let sum = checksum(&b);
        b[10..12].copy_from_slice(&sum.to_be_bytes());
        store(&p.ctx, l3, &b, 0)
    } else {
        let mut b = [0u8; IPV6];
        // RFC 8200: version; ECN field; payload length; next header; 64 hops.
        b[0] = 0x60;
        b[1] = ecn << 4;
        b[5] = len as u8;
        b[6] = policy.protocol as u8;
        b[7] = 64;
        b[8..24].copy_from_slice(&key.dst);
        b[24..40].copy_from_slice(&key.src);
        store(&p.ctx, l3, &b, 0)
    };
    let at = l3 + header;
    let whole = written
        && store(&p.ctx, at, &e.to_bytes(), 0)
        && (!e.signed || store(&p.ctx, at + echo::LEN as u32, &tag.to_be_bytes(), 0));
    whole.then_some(())
}

/// IPv4 header checksum, RFC 791 section 3.1.
#[inline(always)]
fn checksum(b: &[u8; 20]) -> u16 {
    let mut sum = 0u32;
    let mut i = 0;
    while i < 20 {
        sum += (b[i] as u32) << 8 | b[i + 1] as u32;
        i += 2;
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

// Without a frame of its own: before 6.13 the frames of all calls have 512 bytes together.
#[classifier]
#[inline(always)]
pub fn ecn_flow_in(ctx: TcContext) -> i32 {
    match ingress(ctx) {
        Some(verdict) => verdict,
        None => NEXT,
    }
}

#[inline(always)]
fn ingress(ctx: TcContext) -> Option<i32> {
    let control = control()?;
    if control.flags & abi::BYPASS != 0 {
        return None;
    }
    // A bridge floods what it has not learnt. An echo from here would carry the receiver's address,
    // and the bridge would learn that the receiver is here: its frames would go nowhere.
    if field!(&ctx, pkt_type) == OTHER_HOST {
        return None;
    }
    let endpoint = ECN_ENDPOINT.get(endpoint_number(&ctx))?;
    let p = Packet::new(ctx);
    let mut key = Key::default();
    let c = classify(&p, &mut key)?;
    let limited = endpoint.flags & abi::CONTROL_FLOWS != 0;
    if c.ip.protocol as u32 == endpoint.echo.protocol {
        if !limited {
            return None;
        }
        return take_echo(&p, &c, &mut key, endpoint, control.flags);
    }
    if let Some(t) = c.tcp()
        && endpoint.flags & abi::ECHO != 0
    {
        if t.syn {
            tcp::handshake(&p, &c.ip, t, &mut key, endpoint, true);
        }
        // A RST may be anybody's. What is known of a connection that one has ended goes when it is idle.
        if t.syn || t.rst {
            return None;
        }
        let fresh = receive(&p, &c, &mut key, endpoint);
        if t.fin {
            tcp::on_fin(&p, &c.ip, t, &key);
        }
        if fresh == 0 && limited && t.ack {
            tcp::handle_ack(&p, &c.ip, t, c.data, &mut key);
        }
        return None;
    }
    receive(&p, &c, &mut key, endpoint);
    None
}

/// Counts a packet at its receiver, and echoes; TCP's echo is in its ACKs ([`tcp::encode`]). Returns 0, but while TCP has sent nothing since the handshake. As a number, since a
/// `bool` would be two ways for the verifier.
#[inline(always)]
fn receive(p: &Packet, c: &Classified, key: &mut Key, endpoint: &Endpoint) -> u32 {
    let echoed = endpoint.flags & abi::ECHO != 0 && c.ip.ecn() != packet::NOT_ECT;
    if !c.data || (!echoed && endpoint.flags & abi::OBSERVE == 0) {
        return 0;
    }
    let Some(r) = receiver_entry(key) else {
        count(Count::ReceiversFull, 1);
        return 0;
    };
    let fresh = core::hint::black_box(read_once!(r, receiver.flags) & echo::FRESH);
    let exact = match c.tcp() {
        Some(_) => read_once!(r, receiver.ace.blocked_ns) != 0,
        None => endpoint.echo.is_timed(),
    };
    let now = if exact { now() } else { coarse_now() };
    let n = p.segments(&c.ip);
    let bytes = packet::wire_bytes(field!(&p.ctx, len), n, c.headers);
    let policy = endpoint.echo;
    let ce = c.ip.ecn() == packet::CE;
    let due = if let Some(t) = c.tcp() {
        let ce = ce && echoed;
        let (len, segment) = tcp::lengths(p, &c.ip, t);
        let (pending, longest) = (
            read_once!(r, receiver.ace.pending),
            read_once!(r, receiver.ace.segment),
        );
        let asks = echoed
            && !ce
            && read_once!(r, receiver.flags) & echo::PLAIN != 0
            && Receiver::headroom_request_due(
                read_once!(r, receiver.last_ce_ns),
                read_once!(r, receiver.last_echo_ns),
                now,
            );
        if !ce && !asks && Receiver::is_fast_receive(pending, longest, segment) {
            // SAFETY: a place in the value.
            add_totals(unsafe { &raw mut (*r).receiver }, n, bytes, ce, now);
            return fresh;
        }
        let end = t.sequence.wrapping_add(len);
        let verdict = with_lock!(r, receiver as r => {
            add_totals(&raw mut *r, n, bytes, ce, now);
            if asks {
                r.last_echo_ns = now;
            }
            r.on_tcp_data(n, ce, segment, end, now)
        });
        if verdict & echo::SEND_ECHO != 0 {
            count(Count::AceBlocked, 1);
        } else if asks {
            count(Count::EchoAsked, 1);
        }
        if verdict & echo::NEW_FEEDBACK != 0 {
            tcp::new_feedback(key);
        }
        if verdict & echo::CLEAR_CE != 0 {
            if !p.set_ecn(&c.ip, packet::ECT_0) {
                count(Count::EctFailed, n as u64);
            }
            tcp::set_psh(p, &c.ip);
        }
        asks || verdict & echo::SEND_ECHO != 0
    } else {
        let echoed_ns = read_once!(r, receiver.last_echo_ns);
        if policy.is_due(echoed_ns, ce, now) {
            with_lock!(r, receiver as r => {
                add_totals(&raw mut *r, n, bytes, ce, now);
                r.due(&policy, ce, now)
            })
        } else {
            // SAFETY: a place in the value.
            add_totals(unsafe { &raw mut (*r).receiver }, n, bytes, ce, now);
            false
        }
    };
    if !(due && echoed) {
        return fresh;
    }
    let context = raw(&p.ctx);
    // SAFETY: tc programs may write this field; the packet itself gets its mark back.
    let ret = unsafe {
        let mark = (*context).mark;
        (*context).mark = ECHO_MARK;
        let ret = bpf_clone_redirect(context.cast(), (*context).ifindex, 0);
        (*context).mark = mark;
        ret
    };
    if ret != 0 {
        count(Count::EchoFailed, 1);
    }
    fresh
}

/// The totals of [`Receiver::count`] and [`Receiver::on_tcp_packet`]. Of a marked packet under the lock: an echo that
/// another CPU makes meanwhile has all of it, or nothing.
#[inline(always)]
fn add_totals(r: *mut Receiver, n: u32, bytes: u64, ce: bool, now: u64) {
    // SAFETY: places in a map value.
    unsafe {
        atomic_add(&raw mut (*r).packets, n as u64);
        atomic_add(&raw mut (*r).bytes, bytes);
        if ce {
            atomic_add(&raw mut (*r).ce, n as u64);
            core::ptr::write_volatile(&raw mut (*r).last_ce_ns, now);
        }
        core::ptr::write_volatile(&raw mut (*r).last_packet_ns, now);
    }
}

/// Takes an echo. One that cannot be read is somebody else's experiment, perhaps.
#[inline(always)]
fn take_echo(
    p: &Packet,
    c: &Classified,
    key: &mut Key,
    endpoint: &Endpoint,
    flags: u32,
) -> Option<i32> {
    let whole = !c.ip.fragment && c.ip.upper_len() >= echo::LEN as u32;
    let bytes = if whole {
        load::<{ echo::LEN }>(&p.ctx, c.ip.upper())
    } else {
        None
    };
    let parsed = bytes.and_then(|b| Echo::parse(&b));
    let Some(mut e) = parsed else {
        count(Count::EchoMalformed, 1);
        return None;
    };
    let mut tag = 0;
    if e.signed {
        let signed = c.ip.upper_len() >= (echo::LEN + echo::TAG_LEN) as u32;
        let bytes =
            signed.then(|| load::<{ echo::TAG_LEN }>(&p.ctx, c.ip.upper() + echo::LEN as u32));
        let Some(bytes) = bytes.flatten() else {
            count(Count::EchoMalformed, 1);
            return None;
        };
        tag = u64::from_be_bytes(bytes);
    }
    if !endpoint.echo.accepts(&e, tag, &key.src, &key.dst) {
        count(Count::EchoForged, 1);
        return Some(SHOT);
    }
    e.headroom = Headroom::of(c.ip.ecn());
    match response::find_flow(&e, key) {
        Some(f) => response::on_echo(&p.ctx, &e, f, key, endpoint, flags),
        None => count(Count::EchoUnknown, 1),
    }
    Some(SHOT)
}
