//! Departure times in packets, at the tcx egress hook of an endpoint: before the qdisc, which is fq.
//!
//! Since 5.18 a packet's time stamp has a clock type, which programs set with it; older kernels have only the time.
//! The constant [`STAMP_TYPES`] selects one of the two at load time.

use aya_ebpf::{helpers::bpf_skb_set_tstamp, programs::TcContext};

use crate::{
    maps::{STAMP_TYPES, constant},
    skb::{field, raw},
};

/// `BPF_SKB_TSTAMP_DELIVERY_MONO`, later `BPF_SKB_CLOCK_MONOTONIC`.
const MONOTONIC: u32 = 1;

/// The departure time that TCP gave the packet; 0 if it carries none, or a time of another clock. Without clock
/// types, a time of another clock is recognised by its size ([`ecn_core::pacing::Pacer::departure`]).
#[inline(always)]
pub fn departure_time(ctx: &TcContext) -> u64 {
    if constant(&STAMP_TYPES) != 0 && field!(ctx, tstamp_type) as u32 != MONOTONIC {
        return 0;
    }
    field!(ctx, tstamp)
}

#[inline(always)]
pub fn set_departure_time(ctx: &TcContext, at_ns: u64) {
    if constant(&STAMP_TYPES) != 0 {
        // SAFETY: takes the context only.
        let ret = unsafe { bpf_skb_set_tstamp(raw(ctx), at_ns, MONOTONIC) };
        if ret == 0 {
            return;
        }
    }
    // The helper refuses frames with an in-band VLAN tag. At egress the time alone is enough.
    // SAFETY: tc programs may write this field.
    unsafe { (*raw(ctx)).tstamp = at_ns };
}
