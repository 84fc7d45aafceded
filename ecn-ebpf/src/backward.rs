//! Backward messages ([`ecn_core::backward`]): from a congested port directly to the source.
//!
//! * [`send`], at a port that marks a packet (`ecn_port_out`): a clone is sent out of the port at which the packet
//!   arrived. There `ecn_port_out` tail-calls `ecn_port_msg`, which turns the clone into the message.
//! * [`remember`], at the source (`ecn_flow_out`): records packets that messages may quote.
//! * `ecn_flow_msg`, tail of `ecn_flow_in`: validates a message.
//! * `ecn_tcp_ack`, tail of `ecn_flow_msg`, and of `ecn_flow_out` for a flow without other feedback: the response.
//! * `ecn_port_sample`, tail of `ecn_port_out` at a port that notifies sources instead of marking.
//! * `ecn_flow_react`, tail of `ecn_flow_msg` for a notification, and of `ecn_flow_out` for a flow that obeys one:
//!   the reaction.

use core::ptr::{read_volatile, write_volatile};

use aya_ebpf::{
    bindings::__sk_buff,
    helpers::{bpf_clone_redirect, bpf_redirect},
    macros::classifier,
    programs::TcContext,
};
use ecn_core::{
    abi::{self, Count, Endpoint},
    backward::{self, Kind, Message, Quoted, Report},
    echo::{self, Refusal},
    flow::Key,
    packet::{self, Ip},
};

use crate::{
    classify::{classify, merge},
    clock::now,
    maps::{
        ECN_BACKWARD, ECN_BRIDGE, ECN_ENDPOINT, ECN_FLOW, ECN_MARKED, ECN_POINT, ECN_QUOTED,
        ECN_TAGGED, ECN_WORK, control, count,
    },
    reply::Reply,
    response::{self, reverse},
    skb::{NEXT, Packet, SHOT, field, load, pass, raw, store, tail_call},
    switch::key,
    value::with_lock,
};

/// `skb->mark` of a clone on its way between two ports of a bridge.
pub const MESSAGE_MARK: u32 = 0xec0e_bac0;
/// `cb[1]` in `ecn_flow_out`: no tail call is pending; otherwise the index in [`abi::name::TAIL`] of the program to
/// call, set by [`clock`].
pub const NOTHING: u32 = abi::TAIL_OUT;
/// Quote recorded for super-packets other than TCP: the headers of their segments are unknown until segmentation.
const SUPER: u32 = u32::MAX;

/// How a bridge's marks are reported to sources: a [`backward::Feedback`] by number.
#[inline(always)]
pub fn feedback(bridge: u32) -> u32 {
    match ECN_BACKWARD.get(bridge) {
        Some(policy) => policy.feedback,
        None => backward::Feedback::Echo as u32,
    }
}

/// [`backward::Policy::is_markable`] of a bridge: 1 or 0. Not inlined, for the same reason as [`send_clone`].
#[inline(never)]
pub fn is_markable(bridge: u32, capable: u32, answerable: u32) -> u32 {
    match ECN_BACKWARD.get(bridge) {
        Some(policy) => policy.is_markable(capable != 0, answerable != 0) as u32,
        None => capable,
    }
}

/// Reports to its source that a port has marked a packet of `n` segments.
#[inline(always)]
pub fn send(p: &Packet, bridge: u32, slot: u8, n: u32, in_packets: bool) {
    let number = bridge * abi::PORTS as u32 + slot as u32;
    send_clone(raw(&p.ctx), number, n, in_packets as u32);
}

/// Not inlined: `ecn_port_virt` and its callees have no stack left.
#[inline(never)]
fn send_clone(ctx: *mut __sk_buff, number: u32, n: u32, in_packets: u32) -> u32 {
    let Some(policy) = ECN_BACKWARD.get(number / abi::PORTS as u32) else {
        return 0;
    };
    let Some(point) = ECN_POINT.get_ptr_mut(number) else {
        return 0;
    };
    let now = now();
    let message = with_lock!(point, point as point => point.mark(policy, n, now));
    let Some((marks, sequence)) = message else {
        count(Count::MessageHeld, 1);
        return 0;
    };
    let kind = ((Kind::Marks as u32) << 8) | (in_packets * backward::IN_PACKETS as u32);
    clone_back(ctx, number, sequence, marks, kind);
    0
}

/// Sends back a clone, which `ecn_port_msg` turns into a message. `kind`: flags (bits 0 to 7) and a [`Kind`] (from
/// bit 8).
#[inline(always)]
fn clone_back(ctx: *mut __sk_buff, number: u32, sequence: u32, feedback: u32, kind: u32) {
    // SAFETY: tc programs may write these fields. The clone inherits them; the packet's own mark is restored.
    let ret = unsafe {
        let mark = (*ctx).mark;
        (*ctx).mark = MESSAGE_MARK;
        (*ctx).cb[1] = number;
        (*ctx).cb[2] = sequence;
        (*ctx).cb[3] = feedback;
        (*ctx).cb[4] = kind;
        let ret = bpf_clone_redirect(ctx.cast(), (*ctx).ingress_ifindex, 0);
        (*ctx).mark = mark;
        ret
    };
    if ret != 0 {
        count(Count::MessageFailed, 1);
    }
}

/// Runs for a packet from a port of the bridge that enters the queue of a port that samples: decides whether to
/// sample it and notify its source.
#[classifier]
pub fn ecn_port_sample(ctx: TcContext) -> i32 {
    let _ = sample(&Packet::new(ctx));
    NEXT
}

#[inline(always)]
fn sample(p: &Packet) -> Option<()> {
    let [number, ..] = field!(&p.ctx, cb);
    let policy = ECN_BACKWARD.get(number / abi::PORTS as u32)?;
    let bridge = ECN_BRIDGE.get_ptr(number / abi::PORTS as u32)?;
    let point = ECN_POINT.get_ptr_mut(number)?;
    let ip = p.parse()?;
    let (n, bytes) = (p.segments(&ip), field!(&p.ctx, wire_len));
    if !ip.answerable(n, bytes, policy.protocol as u8) {
        return None;
    }
    let slot = number as usize % abi::PORTS;
    // SAFETY: a word of a map value.
    let waiting = unsafe { read_volatile(&raw const (*bridge).switch.ports[slot].cnt1) };
    let sampling = &policy.sampling;
    let sample = with_lock!(point, point as point => point.sample(sampling, n, bytes, waiting))?;
    // A packet with a malformed header gets no message: `make` would refuse it.
    let t = p.transport(&ip)?;
    let mut flow = Key::default();
    if !key(p, &ip, (t.src_port, t.dst_port), &mut flow) {
        return None;
    }
    let now = now();
    let tag = Quoted::tag(policy.point(slot as u8), flow.hash());
    let entry = ECN_TAGGED.get_ptr_mut(tag.place)?;
    // SAFETY: a word of a map value, which other CPUs may write.
    let tagged = tag.is_tagged(unsafe { read_volatile(entry) }, now);
    if !sample.is_for(tagged) {
        return None;
    }
    let message = with_lock!(point, point as point => point.next_message(policy, now));
    let Some(sequence) = message else {
        count(Count::MessageHeld, 1);
        return None;
    };
    let falls = sample.0 & backward::Sample::FALLS != 0;
    if falls {
        // SAFETY: a word of a map value.
        unsafe { write_volatile(entry, tag.entry(now)) };
    }
    if falls && control()?.flags & abi::TRACE_LATENCY != 0 {
        // Keeps the oldest unanswered notification, as for marks.
        let _ = ECN_MARKED.insert(&flow, now, 1 /* BPF_NOEXIST */);
    }
    clone_back(
        raw(&p.ctx),
        number,
        sequence,
        sample.0 as u32,
        sampling.kind << 8,
    );
    Some(())
}

/// Reacts to a notification, or does the work scheduled by [`clock`].
#[classifier]
pub fn ecn_flow_react(ctx: TcContext) -> i32 {
    match react(&ctx) {
        Some(verdict) if verdict != NEXT => verdict,
        _ => pass(&ctx),
    }
}

#[inline(always)]
fn react(ctx: &TcContext) -> Option<i32> {
    let flags = control()?.flags;
    let endpoint = ECN_ENDPOINT.get(field!(ctx, cb)[0])?;
    let work = ECN_WORK.get_ptr_mut(0)?;
    // SAFETY: a per-CPU entry.
    let work = unsafe { &mut *work };
    let Some(f) = ECN_FLOW.get_ptr_mut(&work.key) else {
        return Some(verdict(work.backward.flags, UNKNOWN));
    };
    let (key, input) = (&mut work.key, &mut work.input);
    let refusal = response::on_notification(f, key, &work.backward, input, endpoint, flags);
    Some(verdict(work.backward.flags, refusal))
}

/// Whether a packet at a port is a clone to be turned into a message.
#[inline(always)]
pub fn is_clone(ctx: &TcContext) -> bool {
    field!(ctx, mark) == MESSAGE_MARK && field!(ctx, ingress_ifindex) == field!(ctx, ifindex)
}

/// Turns a clone of a marked or sampled packet into the message about it.
#[classifier]
#[inline(always)]
pub fn ecn_port_msg(ctx: TcContext) -> i32 {
    let p = Packet::new(ctx);
    // SAFETY: tc programs may write this field.
    unsafe { (*raw(&p.ctx)).mark = 0 };
    // A clone that could not be turned into a message must not be sent back as it is.
    if make(&p).is_none() {
        count(Count::MessageFailed, 1);
        return SHOT;
    }
    count(Count::MessageSent, 1);
    // Redirected to the same device, as an echo is, so that the queue charges the new length.
    let ifindex = field!(&p.ctx, ifindex);
    // SAFETY: takes numbers only.
    unsafe { bpf_redirect(ifindex, 0) as i32 }
}

#[inline(always)]
fn make(p: &Packet) -> Option<()> {
    let [_, number, sequence, feedback, kind] = field!(&p.ctx, cb);
    let policy = ECN_BACKWARD.get(number / abi::PORTS as u32)?;
    let ip = p.parse()?;
    let t = p.transport(&ip)?;
    let mut key = Key::default();
    if !p.addresses(&ip, &mut key) {
        return None;
    }
    let (quote, acknowledgment, by_number) = quote(p, &ip, t.tcp().is_some());
    let mut m = Message {
        protocol: ip.protocol,
        src_port: t.src_port,
        dst_port: t.dst_port,
        quote,
        sequence,
        kind: (kind >> 8) as u8,
        flags: kind as u8 | by_number,
        feedback,
        point: policy.point(number as u8),
        acknowledgment,
        signed: false,
    };
    let (mut len, mut tag) = (backward::LEN, 0);
    if policy.signs != 0 {
        m.signed = true;
        len += echo::TAG_LEN;
        tag = m.tag(policy.key, &key.dst, &key.src);
    }
    let reply = Reply {
        protocol: policy.protocol as u8,
        ttl: backward::TTL,
        ecn: packet::NOT_ECT,
        len: len as u8,
    };
    let at = reply.reverse(p, &ip, &key)?;
    let whole = store(&p.ctx, at, &m.to_bytes(), 0)
        && (!m.signed || store(&p.ctx, at + backward::LEN as u32, &tag.to_be_bytes(), 0));
    whole.then_some(())
}

/// Identifies a packet: [`Message::quote`], [`Message::acknowledgment`], and [`backward::BY_NUMBER`] if these are TCP's
/// numbers, else 0.
#[inline(always)]
fn quote(p: &Packet, ip: &Ip, is_tcp: bool) -> (u32, u32, u8) {
    if is_tcp && !ip.authenticated {
        // Read again, not passed in an `Option<Tcp>`: LLVM would spill its registers, which are uninitialised for
        // other protocols, and the verifier rejects that.
        let numbers = load::<8>(&p.ctx, ip.upper() + 4).map_or(0, u64::from_be_bytes);
        return ((numbers >> 32) as u32, numbers as u32, backward::BY_NUMBER);
    }
    // IPv4: total length and identification; IPv6: the flow label, without the traffic class.
    let (at, mask) = if ip.version == 4 {
        (2, u32::MAX)
    } else {
        (0, 0x000f_ffff)
    };
    let header = match load::<4>(&p.ctx, ip.l3 + at) {
        Some(b) => u32::from_be_bytes(b) & mask,
        None => 0,
    };
    let body = load::<8>(&p.ctx, ip.upper() + 8).unwrap_or_default();
    (backward::fingerprint(header, body), 0, 0)
}

/// Records a packet at its source, so that messages may quote it: of a non-TCP flow, or of one that shares its limiter.
/// Not inlined, as [`crate::classify::learn_host`].
#[inline(never)]
pub fn remember(
    context: *mut __sk_buff,
    ip: &Ip,
    key: &Key,
    endpoint: &Endpoint,
    now_ns: u64,
) -> u32 {
    let p = Packet::new(TcContext::new(context));
    let is_tcp = ip.protocol == packet::protocol::TCP && !ip.fragment;
    if is_tcp && !ip.authenticated && !endpoint.limit_by.merges() {
        return 0;
    }
    let flow = key.hash();
    let (quote, ..) = quote(&p, ip, is_tcp);
    write(Quoted::new(quote, flow), now_ns);
    if field!(&p.ctx, gso_size) != 0 {
        write(Quoted::new(SUPER, flow), now_ns);
    }
    0
}

#[inline(always)]
fn write(quoted: Quoted, now_ns: u64) {
    if let Some(entry) = ECN_QUOTED.get_ptr_mut(quoted.place) {
        // SAFETY: a word of a map value.
        unsafe { write_volatile(entry, quoted.entry(now_ns)) };
    }
}

/// Whether this flow recently sent a packet with this quote.
#[inline(always)]
fn was_sent(quote: u32, key: &Key, now_ns: u64) -> bool {
    let quoted = Quoted::new(quote, key.hash());
    match ECN_QUOTED.get(quoted.place) {
        // SAFETY: a word of a map value, which other CPUs may write.
        Some(entry) => quoted.is_sent(unsafe { read_volatile(entry) }, now_ns),
        None => false,
    }
}

/// Verdict on the packet whose report had these [`Report::flags`], after the flow's response. Messages are counted
/// and consumed.
#[inline(always)]
pub fn verdict(flags: u32, refusal: u32) -> i32 {
    if flags & backward::BY_CLOCK != 0 {
        return NEXT;
    }
    count(
        if refusal == Refusal::Duplicate as u32 {
            Count::MessageDuplicate
        } else if refusal == Refusal::Impossible as u32 {
            Count::MessageImpossible
        } else if refusal == UNKNOWN {
            Count::MessageUnknown
        } else {
            Count::MessageAccepted
        },
        1,
    );
    SHOT
}

/// [`verdict`]: unknown flow.
pub const UNKNOWN: u32 = u32::MAX;

/// Tail of `ecn_flow_in` for packets of the echoes' protocol that are not echoes.
// Inlined, so that it has no stack frame: before Linux 6.13 the frames of all calls share 512 bytes.
#[classifier]
#[inline(always)]
pub fn ecn_flow_msg(ctx: TcContext) -> i32 {
    match on_message(&Packet::new(ctx)) {
        Some(what) => {
            count(what, 1);
            SHOT
        }
        None => NEXT,
    }
}

/// Validates a message and tail-calls the response. Returns only if the message is refused or the endpoint is
/// unknown.
#[inline(always)]
fn on_message(p: &Packet) -> Option<Count> {
    let [number, ..] = field!(&p.ctx, cb);
    let endpoint = ECN_ENDPOINT.get(number)?;
    let work = ECN_WORK.get_ptr_mut(0)?;
    let mut key = Key::default();
    let c = classify(p, &mut key)?;
    if let Some([version]) = load::<1>(&p.ctx, c.ip.upper())
        && !backward::is_version(version)
    {
        count(Count::EchoMalformed, 1);
        return None;
    }
    let m = match take(p, &c.ip, &mut key, endpoint) {
        Ok(m) => m,
        Err(what) => return Some(what),
    };
    let by_number = if is_checked_by_number(&m, endpoint) {
        backward::BY_NUMBER
    } else {
        0
    };
    merge(&mut key, &endpoint.limit_by);
    // SAFETY: a per-CPU entry; nothing else runs on this CPU before the next program has read it.
    unsafe {
        (*work).key = key;
        (*work).backward = Report {
            point: m.point,
            sequence: m.sequence,
            marks: m.feedback,
            quote: m.quote,
            flags: backward::BY_MESSAGE | (m.flags & backward::IN_PACKETS | by_number) as u32,
            kind: m.kind.into(),
            acknowledgment: m.acknowledgment,
        };
    }
    let program = if m.kind == Kind::Marks as u8 {
        abi::TAIL_ACK
    } else {
        abi::TAIL_REACTION
    };
    tail_call(&p.ctx, program, number);
    Some(Count::MessageMalformed)
}

/// Schedules a flow's periodic work for the end of `ecn_flow_out`: counting departed packets if it has no other
/// feedback, or advancing its limiter. `program`: index in [`abi::name::TAIL`].
#[inline(always)]
pub fn clock(ctx: &TcContext, key: &Key, program: u32) {
    let Some(work) = ECN_WORK.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: a per-CPU entry; nothing else runs on this CPU before the next program has read it. tc programs may
    // write `cb`.
    unsafe {
        (*work).key = *key;
        (*work).backward = Report {
            flags: backward::BY_CLOCK,
            ..Report::default()
        };
        (*raw(ctx)).cb[1] = program;
    }
}

/// Parses a message and makes all checks for which the flow's entry is not needed. `key`: that of the message's
/// packet, replaced by the flow's.
#[inline(always)]
fn take(p: &Packet, ip: &Ip, key: &mut Key, endpoint: &Endpoint) -> Result<Message, Count> {
    if endpoint.flags & abi::BACKWARD == 0 {
        return Err(Count::MessageUnknown);
    }
    let at = if ip.version == 4 { 8 } else { 7 };
    if load::<1>(&p.ctx, ip.l3 + at) != Some([backward::TTL]) {
        return Err(Count::MessageFar);
    }
    let bytes = load::<{ backward::LEN }>(&p.ctx, ip.upper()).ok_or(Count::MessageMalformed)?;
    let m = Message::parse(&bytes).ok_or(Count::MessageMalformed)?;
    let mut tag = 0;
    if m.signed {
        let bytes = load::<{ echo::TAG_LEN }>(&p.ctx, ip.upper() + backward::LEN as u32);
        tag = u64::from_be_bytes(bytes.ok_or(Count::MessageMalformed)?);
    }
    if m.kind > Kind::LAST {
        return Err(Count::MessageMalformed);
    }
    if !m.is_trusted(&endpoint.echo, tag, &key.src, &key.dst) {
        return Err(Count::MessageForged);
    }
    reverse(key);
    (key.src_port, key.dst_port) = (m.src_port, m.dst_port);
    key.protocol = m.protocol;
    if !is_checked_by_number(&m, endpoint)
        && !was_sent(m.quote, key, now())
        && !was_sent(SUPER, key, now())
    {
        return Err(Count::MessageImpossible);
    }
    Ok(m)
}

/// Whether the quoted packet is found by its sequence number. Flows that share a limiter have no sequence numbers.
#[inline(always)]
fn is_checked_by_number(m: &Message, endpoint: &Endpoint) -> bool {
    m.is_by_number() && !endpoint.limit_by.merges()
}
