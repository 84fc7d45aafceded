//! `ecn_sock`, sock_ops of a cgroup: rate limits by TCP's own pacing, where nothing below TCP can pace.
//!
//! The egress program records which socket sends a flow ([`remember`]). TCP calls this program at every round-trip
//! time measurement, that is at nearly every ACK, and the program sets the flow's rate on the socket
//! (`SO_MAX_PACING_RATE`). So a new rate takes effect one ACK later: the echo that caused it arrives before the ACK
//! of the same packet.
//!
//! Sockets keep their rate: when limits expire or the agent ends, the next call removes it.

use aya_ebpf::{
    bindings::{
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB, BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB,
        BPF_SOCK_OPS_RTT_CB, BPF_SOCK_OPS_RTT_CB_FLAG, SO_MAX_PACING_RATE, SOL_SOCKET,
    },
    helpers::{bpf_get_socket_cookie, bpf_setsockopt},
    macros::sock_ops,
    programs::{SockOpsContext, TcContext},
};
use ecn_core::{
    abi::{self, LockedFlow},
    flow::Key,
    pacing::{UNLIMITED, socket_rate},
};

use crate::{
    clock::now,
    maps::{ECN_DEPARTED, ECN_ENDPOINT, ECN_FLOW, ECN_IN_FORCE, ECN_LIMIT, ECN_SOCKET, control},
    skb::raw,
    value::{class_of, read_once, read_word, with_lock},
};

/// Headers of a frame, bytes: Ethernet, IPv6, and TCP with time stamps; with IPv4 20 less.
const HEADERS: u32 = 14 + 40 + 32;
const AF_INET6: u32 = 10;

/// Records which socket sends a flow. False: no socket of this machine.
#[inline(always)]
pub fn remember(ctx: &TcContext, f: *mut LockedFlow, key: &Key) -> bool {
    // SAFETY: takes the context only.
    let cookie = unsafe { bpf_get_socket_cookie(raw(ctx).cast()) };
    let before = read_once!(f, flow.socket);
    if cookie == 0 || cookie == before {
        return cookie != 0;
    }
    let _ = ECN_SOCKET.insert(&cookie, key, 0);
    if before != 0 {
        let _ = ECN_SOCKET.remove(&before);
    }
    with_lock!(f, flow as f => {
        f.socket = cookie;
        f.socket_bytes_per_s = 0;
    });
    true
}

#[sock_ops]
pub fn ecn_sock(ctx: SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB | BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB => {
            let flags = ctx.cb_flags() | BPF_SOCK_OPS_RTT_CB_FLAG;
            let _ = ctx.set_cb_flags(flags as i32);
        }
        BPF_SOCK_OPS_RTT_CB => {
            let _ = pace(&ctx);
        }
        _ => {}
    }
    1
}

#[inline(always)]
fn pace(ctx: &SockOpsContext) -> Option<()> {
    // SAFETY: takes the context only.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.ops.cast()) };
    // SAFETY: copied immediately.
    let key = unsafe { ECN_SOCKET.get(&cookie) }.copied()?;
    let f = ECN_FLOW.get_ptr_mut(&key)?;
    let control = control()?;
    let endpoint = ECN_ENDPOINT.get(u32::from(key.endpoint))?;
    let class = class_of(f) & 0xffff;
    // Class 0 is never assigned: its limit is 0.
    let limit = read_word(ECN_LIMIT.get(class));
    let departed = read_word(ECN_DEPARTED.get(class)) as u32;
    let free = control.flags & abi::BYPASS != 0
        || endpoint.flags & abi::PACE == 0
        || now() > control.valid_until_ns;
    let (rate, decreases, before, owner) = with_lock!(f, flow as f => {
        (f.rate_bytes_per_s, f.decreases as u32, f.socket_bytes_per_s, f.socket)
    });
    if owner != cookie || rate == 0 && limit == 0 {
        return None;
    }
    let free = free || limit == 0 && rate >= endpoint.link_bytes_per_s;
    let wanted = if free {
        UNLIMITED
    } else {
        // SAFETY: sock_ops programs may read these fields.
        let (mss, family) = unsafe { ((*ctx.ops).mss_cache, (*ctx.ops).family) };
        let headers = if family == AF_INET6 {
            HEADERS
        } else {
            HEADERS - 20
        };
        socket_rate(if limit != 0 { limit } else { rate }, mss, headers)
    };
    let now_set = if wanted == UNLIMITED { 0 } else { wanted };
    if now_set == before {
        return None;
    }
    let mut value = wanted;
    // SAFETY: reads the value's four bytes; in this callback the socket is locked.
    let ret = unsafe {
        bpf_setsockopt(
            ctx.ops.cast(),
            SOL_SOCKET as i32,
            SO_MAX_PACING_RATE as i32,
            (&raw mut value).cast(),
            size_of::<u32>() as i32,
        )
    };
    if ret != 0 {
        return None;
    }
    with_lock!(f, flow as f => f.socket_bytes_per_s = now_set);
    if class != 0
        && let Some(in_force) = ECN_IN_FORCE.get_ptr_mut(class)
    {
        // As with classes: the next packet was already scheduled at the old rate.
        // SAFETY: one word; callbacks of one socket are serialised.
        unsafe { *in_force = abi::in_force(decreases, departed.wrapping_add(2)) };
    }
    Some(())
}
