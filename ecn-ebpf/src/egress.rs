//! Egress of an endpoint, before the qdisc: classifies packets into flows, makes them ECN-capable, and enforces rates
//! by a class or a departure time; encodes TCP feedback in the segments of a receiver ([`tcp::encode`]); turns clones
//! of received packets into echoes.

use aya_ebpf::{helpers::bpf_redirect, programs::TcContext};
use ecn_core::{
    abi::{self, Control, Count, Endpoint, LockedFlow},
    ace, backward,
    fixed::is_below,
    flow::{self, Flow, Key},
    pacing::{DROPPED, nonzero_or, priority, queue_bytes, standing_queue_ns},
    packet,
};

use crate::{
    backward as messages,
    classify::{Classified, ECHO_MARK, classify, endpoint_number, learn_host, merge},
    clock::{coarse_now, now},
    echo::write_echo,
    maps::{ECN_DEPARTED, ECN_ENDPOINT, ECN_FLOW, ECN_IN_FORCE, ECN_LIMIT, control, count},
    pacing, response,
    skb::{NEXT, Packet, SHOT, field, raw, set_shaper},
    socket,
    tables::{flow_entry, remove_flow},
    tcp,
    value::{atomic_add, class_of, read_once, read_word, with_lock, write_once},
};

#[inline(always)]
pub fn egress(ctx: TcContext) -> Option<i32> {
    let control = control()?;
    let endpoint = ECN_ENDPOINT.get(endpoint_number(&ctx))?;
    let active = endpoint.flags & (abi::CONTROL_FLOWS | abi::ECHO) != 0;
    if (control.flags & abi::BYPASS != 0 || !active) && !is_echo(&ctx) {
        return None;
    }
    set_shaper(&ctx, endpoint.shaper);
    learn_host(raw(&ctx), endpoint.shaper);
    let p = Packet::new(ctx);
    let mut key = Key::default();
    let c = classify(&p, &mut key)?;
    if is_echo(&p.ctx) {
        return Some(send_echo(&p, &c, &key, endpoint));
    }
    if c.ip.protocol as u32 == endpoint.echo.protocol {
        return None;
    }
    tcp_events(&p, &c, &mut key, endpoint, control)?;
    send_data(&p, &c, &mut key, endpoint, control.valid_until_ns)
}

/// Whether a packet is a clone that becomes an echo.
#[inline(always)]
fn is_echo(ctx: &TcContext) -> bool {
    field!(ctx, mark) == ECHO_MARK && field!(ctx, ingress_ifindex) == field!(ctx, ifindex)
}

/// Turns a clone into an echo and sends it. If that fails, the clone is dropped: it must not be sent back as it is.
#[inline(always)]
fn send_echo(p: &Packet, c: &Classified, key: &Key, endpoint: &Endpoint) -> i32 {
    if write_echo(p, c, key, &endpoint.echo).is_none() {
        count(Count::EchoFailed, 1);
        return SHOT;
    }
    count(Count::EchoSent, 1);
    if endpoint.shaper != 0 {
        // Continues to the bridge.
        return NEXT;
    }
    // Redirected to the same device: the qdisc charges the length that a packet had before this hook, here that of
    // the data packet. HTB would then charge an echo as much as a data packet: three flows in one direction and four
    // in the other had only 72 % of a port each way.
    let ifindex = field!(&p.ctx, ifindex);
    // SAFETY: takes numbers only.
    unsafe { bpf_redirect(ifindex, 0) as i32 }
}

/// Handles the start and end of TCP connections. `None`: the packet needs no further processing.
#[inline(always)]
fn tcp_events(
    p: &Packet,
    c: &Classified,
    key: &mut Key,
    endpoint: &Endpoint,
    control: &Control,
) -> Option<()> {
    if let Some(t) = c.tcp()
        && endpoint.flags & abi::ECHO != 0
    {
        if t.syn() {
            tcp::handshake(p, &c.ip, t, key, endpoint, false);
        }
        if (t.fin() || t.rst()) && !c.data && endpoint.flags & abi::CONTROL_FLOWS != 0 {
            queue_behind_data(p, key, endpoint, control.valid_until_ns);
        }
        if t.rst() {
            on_reset(key);
        }
        if t.fin() && !c.data {
            on_fin(key);
        }
        if t.syn() || t.rst() {
            return None;
        }
    }
    Some(())
}

/// TCP fields of a packet; all zero for other protocols.
#[derive(Default)]
struct TcpData {
    /// Flags of the connection's [`ecn_core::echo::Receiver`]; 0: unchanged.
    known: u32,
    sequence: u32,
    /// Acknowledgement number: the next byte that this TCP expects.
    expected: u32,
    /// Payload of the packet and of each segment, bytes.
    len: u32,
    segment: u32,
    /// TCP itself made the packet ECN-capable or set ECN flags.
    tcp_set_ecn: bool,
}

/// Encodes pending feedback in a TCP segment.
#[inline(always)]
fn encode_feedback(
    p: &Packet,
    c: &Classified,
    f: Option<*mut LockedFlow>,
    key: &mut Key,
    endpoint: &Endpoint,
) -> TcpData {
    let Some(t) = c.tcp() else {
        return TcpData::default();
    };
    let mut known = 0;
    if endpoint.flags & abi::ECHO != 0 {
        known = tcp::encode(p, &c.ip, t, c.data, f, key);
    }
    let (mut len, segment) = tcp::lengths(p, &c.ip, t);
    // Flows that share a limiter have no sequence numbers in common.
    len &= endpoint.limit_by.unmerged();
    TcpData {
        known,
        sequence: t.sequence,
        expected: t.ack_number,
        len,
        segment,
        // Without echoes (backward messages alone), TCP's own ECN response gets no marks either.
        tcp_set_ecn: endpoint.flags & abi::ECHO != 0 && (t.ecn() || c.ip.ecn() != packet::NOT_ECT),
    }
}

#[inline(always)]
fn send_data(
    p: &Packet,
    c: &Classified,
    key: &mut Key,
    endpoint: &Endpoint,
    valid_until_ns: u64,
) -> Option<i32> {
    let limited = c.data && endpoint.flags & abi::CONTROL_FLOWS != 0;
    let number = u32::from(key.endpoint);
    let (now, f) = if limited {
        // Only departure times need the precise clock.
        let now = if endpoint.flags & abi::EDT != 0 {
            now()
        } else {
            coarse_now()
        };
        if endpoint.flags & abi::BACKWARD != 0 {
            messages::remember(raw(&p.ctx), &c.ip, key, endpoint, now);
        }
        merge(key, &endpoint.limit_by);
        (now, flow_entry(key))
    } else {
        (0, None)
    };
    let tcp = encode_feedback(p, c, f, key, endpoint);
    let Some(f) = f else {
        if limited {
            count(Count::FlowsFull, 1);
            use_short_class(p, number, now > valid_until_ns, 1);
        }
        return None;
    };
    let n = p.segments(&c.ip);
    let by_socket = endpoint.flags & abi::PACE != 0;
    if by_socket && !(c.tcp().is_some() && socket::remember(&p.ctx, f, key)) {
        // Counted without a class, so that the flow is listed as unlimited.
        with_lock!(f, flow as f => f.on_send(now));
        count(Count::Unpaced, n as u64);
        return None;
    }
    let bytes = field!(&p.ctx, wire_len) as u64;
    let expired = now > valid_until_ns;
    let sent = read_once!(f, flow.sent_packets);
    let mut short = !by_socket;
    // Not read otherwise: every acknowledgement writes this cache line.
    let created = if is_below(sent, flow::SHORT_PACKETS) != 0 {
        read_once!(f, flow.created_ns)
    } else {
        0
    };
    if short && !Flow::is_short(sent, created, now) {
        start_own_rate_if_due(f, key, c, endpoint, now);
        let (own, shared) = (read_once!(f, flow.has_own_rate), read_once!(f, flow.shared));
        short = is_below(own.into(), 1) | is_below(0, shared.into()) != 0;
    }
    let rate = Rate::of(f, endpoint.link_bytes_per_s);
    let (pacer, pinned) = if endpoint.flags & abi::EDT != 0 && !expired {
        pacer(f, &rate, short, number)
    } else {
        (None, 0)
    };
    let flags = update_sent(f, &tcp, sent, n, now);
    if let Some(pacer) = pacer
        && flags & flow::NEGOTIATED == 0
        && !pace(p, c, endpoint, pacer, pinned, bytes, now)
    {
        count(Count::SourceDropped, n as u64);
        return Some(SHOT);
    }
    // SAFETY: words of a map value.
    unsafe {
        atomic_add(&raw mut (*f).flow.sent_packets, n as u64);
        atomic_add(&raw mut (*f).flow.sent_bytes, bytes);
    }
    if bytes as u32 > read_once!(f, flow.largest_bytes) {
        write_once!(f, flow.largest_bytes, bytes as u32);
    }
    if flags & flow::NEGOTIATED != 0 {
        return None;
    }
    if endpoint.flags & abi::BACKWARD != 0 && (rate.limited || short) {
        self_clock(&p.ctx, f, key, endpoint, flags, now);
    }
    if endpoint.flags & abi::ECHO != 0
        && c.ip.ecn() == packet::NOT_ECT
        && !packet::is_tunnel(c.ip.protocol, key.dst_port)
        && !p.set_ecn(&c.ip, packet::ECT_0)
    {
        count(Count::EctFailed, n as u64);
        return None;
    }
    if let Some(t) = c.tcp()
        && t.fin()
    {
        write_once!(f, flow.ended, endpoint.limit_by.unmerged() & 1);
    }
    let by_class = !by_socket && endpoint.flags & abi::EDT == 0;
    set_class(p, number, &rate, short, by_class, expired, n);
    None
}

/// The flow or aggregate that sets a packet's departure time, if any, and the rate to which a user has pinned the flow;
/// 0: not pinned.
#[inline(always)]
fn pacer(
    f: *mut LockedFlow,
    rate: &Rate,
    short: bool,
    number: u32,
) -> (Option<*mut LockedFlow>, u64) {
    let pinned = if rate.class != 0 {
        read_word(ECN_LIMIT.get(rate.class))
    } else {
        0
    };
    // Also at full rate while the agent still considers the flow limited: without a departure time, this packet would
    // overtake those that wait for theirs.
    if rate.limited || rate.in_force || pinned != 0 {
        return (Some(f), pinned);
    }
    let pacer = if short && read_word(ECN_IN_FORCE.get(abi::short_class(number))) != 0 {
        ECN_FLOW.get_ptr_mut(&Key::short(number as u16))
    } else {
        None
    };
    (pacer, 0)
}

/// Runs a flow's periodic work if it is due: that of its rate limiter, if notifications have set one; otherwise, if
/// the flow has no other feedback, counting its departed packets.
#[inline(always)]
fn self_clock(
    ctx: &TcContext,
    f: *mut LockedFlow,
    key: &Key,
    endpoint: &Endpoint,
    flags: u32,
    now: u64,
) {
    let echoes = endpoint.flags & abi::ECHO != 0;
    let alone = flow::is_self_clocked(flags, read_once!(f, flow.echo.synced), echoes);
    let reacts = read_once!(f, flow.reaction.limiter.rate) != 0;
    if (alone || reacts)
        && now.saturating_sub(read_once!(f, flow.last_echo_ns)) >= backward::CLOCK_NS
    {
        let program = if reacts {
            abi::TAIL_REACTION
        } else {
            abi::TAIL_ACK
        };
        messages::clock(ctx, key, program);
    }
}

/// Gives a flow its own rate once it has feedback: until then it may be one of many flows whose packets are lost. A
/// receiver without an agent never echoes, so the wait is limited; not for TCP, which always acknowledges.
#[inline(always)]
fn start_own_rate_if_due(
    f: *mut LockedFlow,
    key: &Key,
    c: &Classified,
    endpoint: &Endpoint,
    now: u64,
) {
    let idle = now.saturating_sub(read_once!(f, flow.last_sent_ns)) > flow::IDLE_NS;
    if idle || read_once!(f, flow.has_own_rate) == 0 {
        // A flow that sends its last data, or retransmits after its FIN, stays in the short flows' class: it would
        // need its own class only for a moment, and the kernel walks all classes whenever one is added or removed.
        if c.tcp().is_some_and(|t| t.fin()) || read_once!(f, flow.ended) != 0 {
            return;
        }
        // Without echoes, there is no feedback to wait for.
        let has_feedback = read_once!(f, flow.last_echo_ns) != 0 || endpoint.flags & abi::ECHO == 0;
        let created = read_once!(f, flow.created_ns);
        let unanswered = c.tcp().is_none() && now.saturating_sub(created) > flow::NO_FEEDBACK_NS;
        if has_feedback || unanswered {
            // Harmless if another CPU does the same.
            write_once!(f, flow.has_own_rate, 1);
            if has_feedback && read_once!(f, flow.flags) & flow::NEGOTIATED == 0 {
                response::start_own_rate(f, key, endpoint);
            }
        }
    }
}

struct Rate {
    class: u32,
    /// The class exists.
    in_force: bool,
    /// The response limits the flow to less than the link's rate.
    limited: bool,
}

impl Rate {
    #[inline(always)]
    fn of(f: *mut LockedFlow, link: u64) -> Self {
        let class = class_of(f) & 0xffff;
        let in_force = is_set(read_word(ECN_IN_FORCE.get(class))) != 0;
        // Read only if there is a class: every acknowledgement writes this cache line.
        let rate = if class != 0 {
            read_once!(f, flow.rate_bytes_per_s)
        } else {
            0
        };
        Self {
            class,
            in_force,
            limited: is_below(0, class.into()) & is_below(0, rate) & is_below(rate, link) != 0,
        }
    }
}

/// 1 if a word is not 0, else 0: without a branch, as [`is_below`].
#[inline(always)]
fn is_set(word: u64) -> u64 {
    core::hint::black_box(word | word.wrapping_neg()) >> 63
}

/// Updates the flow for a packet of `n` segments, after `sent` earlier ones. Returns the flow's flags. Not inlined,
/// so that its paths merge for the verifier, as in [`learn_host`].
#[inline(never)]
fn update_sent(f: *mut LockedFlow, tcp: &TcpData, sent: u64, n: u32, now: u64) -> u32 {
    let fast = tcp.len == 0
        || (Flow::is_ecn_decided(read_once!(f, flow.flags), tcp.known, tcp.tcp_set_ecn)
            && ace::Sender::is_fast_send(
                read_once!(f, flow.ace.state),
                read_once!(f, flow.ace.segment),
                tcp.segment,
            ));
    // The first packet sets the time of creation.
    if !fast || sent == 0 {
        return with_lock!(f, flow as f => {
            if tcp.len != 0 {
                f.on_tcp_send(tcp.known, tcp.tcp_set_ecn, tcp.sequence, tcp.len, tcp.segment);
                f.ace.expected = tcp.expected;
            }
            f.on_send(now);
            f.flags
        });
    }
    // A local socket is locked while it sends, but forwarded packets of a connection may be processed on two CPUs at
    // once, and the lower sequence number may be written last. Until more is sent, the later packet then seems to
    // have arrived already: a round may last longer, and one ACK carries no count.
    let end = tcp.sequence.wrapping_add(tcp.len);
    let later = tcp.len != 0 && ace::is_later(end, read_once!(f, flow.ace.end));
    let retransmitted = read_once!(f, flow.ace.retransmitted).wrapping_add(n);
    if later {
        write_once!(f, flow.ace.end, end);
        write_once!(f, flow.ace.expected, tcp.expected);
    } else if tcp.len != 0 {
        write_once!(f, flow.ace.retransmitted, retransmitted);
    }
    write_once!(f, flow.last_sent_ns, now);
    read_once!(f, flow.flags)
}

/// Stamps a packet with its departure time. False: the packet must be dropped.
#[inline(always)]
fn pace(
    p: &Packet,
    c: &Classified,
    endpoint: &Endpoint,
    pacer: *mut LockedFlow,
    pinned: u64,
    bytes: u64,
    now: u64,
) -> bool {
    let stamp = pacing::departure_time(&p.ctx);
    let (least, link) = (endpoint.queue_bytes, endpoint.link_bytes_per_s);
    let standing = standing_queue_ns(c.tcp().is_some());
    let at = with_lock!(pacer, flow as f => {
        let rate = nonzero_or(pinned, nonzero_or(f.rate_bytes_per_s, link));
        f.pacer.departure(now, stamp, bytes, rate, least + queue_bytes(rate), standing)
    });
    if at == DROPPED {
        return false;
    }
    pacing::set_departure_time(&p.ctx, at);
    true
}

/// Assigns a packet of `n` segments to its class.
#[inline(always)]
fn set_class(
    p: &Packet,
    number: u32,
    rate: &Rate,
    short: bool,
    by_class: bool,
    expired: bool,
    n: u32,
) {
    if by_class && !rate.in_force && (short || rate.limited) {
        // A short flow, or one that waits for its class or got none.
        if use_short_class(p, number, expired, if short { 0 } else { n }) {
            if rate.class != 0
                && let Some(departed) = ECN_DEPARTED.get_ptr_mut(rate.class)
            {
                // It will leave with the packets of another class.
                atomic_add(departed, n as u64);
            }
            return;
        }
    }
    if rate.class == 0 {
        return;
    }
    if expired {
        count(Count::LimitExpired, n as u64);
    }
    // HTB selects the class whose handle is the packet's priority. Not before the class is in force: the agent first
    // replaces its initial queue, and packets in that would be lost.
    // Departures are counted by class also while limits have lapsed: echoes are checked against them.
    let priority = if by_class && rate.in_force && !expired {
        (abi::HTB_MAJOR as u32) << 16 | rate.class
    } else {
        priority(rate.class, field!(&p.ctx, priority))
    };
    // SAFETY: tc programs may write this field.
    unsafe { (*raw(&p.ctx)).priority = priority };
}

/// Queues a FIN or RST without data behind the data of its connection. A FIN that overtakes the data makes the
/// receiver report all of it as missing, and the source retransmits it (RACK, RFC 8985); a RST cuts it off.
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
    let class = class_of(f) & 0xffff;
    let rate = read_once!(f, flow.rate_bytes_per_s);
    let limited = class != 0 && rate != 0 && rate < endpoint.link_bytes_per_s;
    let short = read_once!(f, flow.has_own_rate) == 0 || read_once!(f, flow.shared) != 0;
    if endpoint.flags & abi::EDT != 0 {
        let pacer = if short {
            ECN_FLOW.get_ptr_mut(&Key::short(key.endpoint))
        } else {
            Some(f)
        };
        if let Some(pacer) = pacer {
            let at = read_once!(pacer, flow.pacer.last_ns);
            if at > now {
                pacing::set_departure_time(&p.ctx, at);
            }
        }
    } else if read_word(ECN_IN_FORCE.get(class)) != 0 {
        // SAFETY: a word of a map value; tc programs may write the field.
        unsafe {
            // Counted like every packet that leaves through the class.
            atomic_add(&raw mut (*f).flow.sent_packets, 1);
            (*raw(&p.ctx)).priority = (abi::HTB_MAJOR as u32) << 16 | class;
        }
    } else if short || limited {
        use_short_class(p, number, false, 0);
    }
}

/// Assigns a packet to the class of the short flows, if it exists. `n`: packets to count in [`Count::Shared`], if
/// their flow is not short.
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

/// A TCP connection is reset. Without a class its entry is removed immediately, so that short connections do not fill
/// the table; otherwise the agent removes entry and class.
#[inline(always)]
fn on_reset(key: &Key) {
    let Some(f) = ECN_FLOW.get_ptr_mut(key) else {
        return;
    };
    if class_of(f) == 0 && read_once!(f, flow.socket) == 0 {
        remove_flow(key);
    } else {
        write_once!(f, flow.ended, 1);
    }
}

/// A TCP connection has sent a FIN. Its entry is removed when the FIN is acknowledged: marks that this ACK reports
/// still count.
#[inline(always)]
fn on_fin(key: &Key) {
    if let Some(f) = ECN_FLOW.get_ptr_mut(key) {
        write_once!(f, flow.ended, 1);
    }
}
