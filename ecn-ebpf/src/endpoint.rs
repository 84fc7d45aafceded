//! Endpoint role: programs at the device of a flow's source and of its receiver.
//!
//! * `ecn_ep_out`, `ecn_flow_out`, tcx egress, before the qdisc: see [`egress`](crate::egress).
//! * `ecn_ep_in`, `ecn_flow_in`, tcx ingress, before the IP stack: see [`ingress`](crate::ingress).
//!
//! The first of each pair is loaded per endpoint, the second once.

use aya_ebpf::{bindings::__sk_buff, macros::classifier, programs::TcContext};
use ecn_core::{abi, flow::Key, pacing::class};

use crate::{
    backward,
    egress::egress,
    ingress::ingress,
    maps::{ECN_DEPARTED, ECN_FLOW, ENDPOINT, constant},
    pacing::departure_time,
    skb::{NEXT, field, load, pass, raw, set_shaper, tail_call},
    value::{class_of, read_once, with_lock},
};

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
    let context = raw(&ctx);
    // SAFETY: tc programs may write this field.
    unsafe { (*context).cb[1] = backward::NOTHING };
    set_shaper(&ctx, 0);
    if let Some(verdict) = egress(ctx) {
        return verdict;
    }
    let ctx = TcContext::new(context);
    pass_at_once(context);
    let [number, task, ..] = field!(&ctx, cb);
    if task != backward::NOTHING {
        tail_call(&ctx, task, number);
    }
    pass(&ctx)
}

/// Lets a packet without a class or departure time skip the shaper device: it need not wait.
#[inline(never)]
fn pass_at_once(context: *mut __sk_buff) -> u32 {
    let ctx = TcContext::new(context);
    if class(field!(&ctx, priority)) == 0 && departure_time(&ctx) == 0 {
        set_shaper(&ctx, 0);
    }
    0
}

// Inlined, so that it has no stack frame: before Linux 6.13 the frames of all calls share 512 bytes.
#[classifier]
#[inline(always)]
pub fn ecn_flow_in(ctx: TcContext) -> i32 {
    set_shaper(&ctx, 0);
    match ingress(ctx) {
        Some(verdict) => verdict,
        None => NEXT,
    }
}

/// Run by the agent with an [`abi::FlowChange`] as its packet: user space cannot update part of a map value under its
/// lock. Returns the flow's class after the change; 0: no class, or no such flow.
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
        // SAFETY: a class that is not assigned yet has no packets, so that no other program writes its entry.
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
