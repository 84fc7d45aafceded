//! Ingress of an endpoint, before the IP stack: processes echoes and TCP feedback, which change the rates of sent flows;
//! counts received packets, clears marks that TCP must not see, and sends back a clone where an echo is due.

use aya_ebpf::{bindings::BPF_F_INGRESS, helpers::bpf_clone_redirect, programs::TcContext};
use ecn_core::{
    abi::{self, Count, Endpoint, LockedReceiver},
    echo::{self, Receiver},
    flow::Key,
    packet::{self, Tcp},
};

use crate::{
    classify::{Classified, ECHO_MARK, classify, endpoint_number, is_for_other},
    clock::{coarse_now, now},
    echo::read_echo,
    maps::{ECN_ENDPOINT, control, count},
    skb::{Packet, field, raw},
    tables::receiver_entry,
    tcp,
    value::{atomic_add, read_once, with_lock},
};

#[inline(always)]
pub fn ingress(ctx: TcContext) -> Option<i32> {
    let control = control()?;
    if control.flags & abi::BYPASS != 0 {
        return None;
    }
    let endpoint = ECN_ENDPOINT.get(endpoint_number(&ctx))?;
    // A bridge floods frames for unknown addresses. An echo to such a frame would carry the receiver's address, and
    // the bridge would learn that address at this port: frames for the receiver would be lost.
    if is_for_other(raw(&ctx), endpoint.shaper) != 0 {
        return None;
    }
    let p = Packet::new(ctx);
    let mut key = Key::default();
    let c = classify(&p, &mut key)?;
    let limited = endpoint.flags & abi::CONTROL_FLOWS != 0;
    if c.ip.protocol as u32 == endpoint.echo.protocol {
        if !limited {
            return None;
        }
        return read_echo(&p, &c, &mut key, endpoint, control.flags);
    }
    if let Some(t) = c.tcp()
        && endpoint.flags & abi::ECHO != 0
    {
        if t.syn() {
            tcp::handshake(&p, &c.ip, t, &mut key, endpoint, true);
        }
        // A RST may be forged. The state of a reset connection is removed once it is idle.
        if t.syn() || t.rst() {
            return None;
        }
        let fresh = receive(&p, &c, &mut key, endpoint);
        if t.fin() {
            tcp::on_fin(&p, &c.ip, t, &key);
        }
        if fresh == 0 && limited && t.ack() {
            tcp::handle_ack(&p, &c.ip, t, c.data, &mut key);
        }
        return None;
    }
    receive(&p, &c, &mut key, endpoint);
    None
}

/// What a received packet adds to the counts.
struct Received {
    /// Segments.
    n: u32,
    bytes: u64,
    ce: bool,
    /// Its marks are echoed: the endpoint sends echoes, and the packet is ECN-capable.
    echoed: bool,
    now: u64,
}

/// Counts a packet at its receiver, and sends an echo if one is due; TCP's ACKs carry the count ([`tcp::encode`]).
/// Returns [`echo::FRESH`] if TCP has sent nothing since the handshake, else 0: a `bool` would double the verifier's
/// paths.
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
    let m = Received {
        n,
        bytes: packet::wire_bytes(field!(&p.ctx, len), n, c.headers),
        ce: c.ip.ecn() == packet::CE,
        echoed,
        now,
    };
    let due = match c.tcp() {
        Some(t) => receive_tcp(p, c, t, r, key, &m),
        None => receive_other(r, &endpoint.echo, &m),
    };
    if due && echoed {
        send_clone(p, endpoint);
    }
    fresh
}

/// Counts a TCP packet. Returns whether an echo is due.
#[inline(always)]
fn receive_tcp(
    p: &Packet,
    c: &Classified,
    t: &Tcp,
    r: *mut LockedReceiver,
    key: &mut Key,
    m: &Received,
) -> bool {
    let (n, bytes, now) = (m.n, m.bytes, m.now);
    let ce = m.ce && m.echoed;
    let (len, segment) = tcp::lengths(p, &c.ip, t);
    let (pending, longest) = (
        read_once!(r, receiver.ace.pending),
        read_once!(r, receiver.ace.segment),
    );
    let request = m.echoed
        && !ce
        && read_once!(r, receiver.flags) & echo::PLAIN != 0
        && Receiver::headroom_request_due(
            read_once!(r, receiver.last_ce_ns),
            read_once!(r, receiver.last_echo_ns),
            now,
        );
    if !ce && !request && Receiver::is_fast_receive(pending, longest, segment) {
        // SAFETY: part of a map value.
        add_totals(unsafe { &raw mut (*r).receiver }, n, bytes, ce, now);
        return false;
    }
    let end = t.sequence.wrapping_add(len);
    let verdict = with_lock!(r, receiver as r => {
        add_totals(&raw mut *r, n, bytes, ce, now);
        if request {
            r.last_echo_ns = now;
        }
        r.on_tcp_data(n, ce, segment, end, now)
    });
    if verdict & echo::SEND_ECHO != 0 {
        count(Count::AceBlocked, 1);
    } else if request {
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
    request || verdict & echo::SEND_ECHO != 0
}

/// Counts a packet of another protocol. Returns whether an echo is due.
#[inline(always)]
fn receive_other(r: *mut LockedReceiver, policy: &echo::Policy, m: &Received) -> bool {
    let (n, bytes, ce, now) = (m.n, m.bytes, m.ce, m.now);
    let policy = *policy;
    let echoed_ns = read_once!(r, receiver.last_echo_ns);
    if policy.is_due(echoed_ns, ce, now) {
        with_lock!(r, receiver as r => {
            add_totals(&raw mut *r, n, bytes, ce, now);
            r.due(&policy, ce, now)
        })
    } else {
        // SAFETY: part of a map value.
        add_totals(unsafe { &raw mut (*r).receiver }, n, bytes, ce, now);
        false
    }
}

/// Sends a clone of the packet to the other hook, where it becomes an echo.
#[inline(always)]
fn send_clone(p: &Packet, endpoint: &Endpoint) {
    let context = raw(&p.ctx);
    let to = if endpoint.shaper != 0 {
        BPF_F_INGRESS as u64
    } else {
        0
    };
    // SAFETY: tc programs may write this field; the packet's own mark is restored.
    let ret = unsafe {
        let mark = (*context).mark;
        (*context).mark = ECHO_MARK;
        let ret = bpf_clone_redirect(context.cast(), (*context).ifindex, to);
        (*context).mark = mark;
        ret
    };
    if ret != 0 {
        count(Count::EchoFailed, 1);
    }
}

/// Updates the totals of [`Receiver::count`] and [`Receiver::on_tcp_packet`]. Marked packets require the lock, so
/// that an echo built on another CPU covers all of the packet or nothing.
#[inline(always)]
fn add_totals(r: *mut Receiver, n: u32, bytes: u64, ce: bool, now: u64) {
    // SAFETY: words of a map value.
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
