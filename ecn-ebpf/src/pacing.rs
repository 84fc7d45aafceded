//! Departure times in packets, at the tcx egress hook of an endpoint: before the qdisc, which is fq.
//!
//! What the kernel knows of a time depends on its age. Since 5.18 a packet says of which clock its time
//! is, and a program says it with the time; before, the time alone is there. Which of the two is
//! compiled in at load time is the constant [`STAMP_TYPES`].

use aya_ebpf::{helpers::bpf_skb_set_tstamp, programs::TcContext};

use crate::{
    maps::{STAMP_TYPES, constant},
    skb::{field, raw},
};

/// `BPF_SKB_TSTAMP_DELIVERY_MONO`, later `BPF_SKB_CLOCK_MONOTONIC`.
const MONOTONIC: u32 = 1;

/// The departure time that TCP gave the packet; 0 if it carries none, or a time of another clock. Without
/// the type, a time of another clock shows by its size ([`ecn_core::pacing::departure`]).
#[inline(always)]
pub fn departure_time(ctx: &TcContext) -> u64 {
    if constant(&STAMP_TYPES) != 0 && field!(ctx, tstamp_type) as u32 != MONOTONIC {
        return 0;
    }
    field!(ctx, tstamp)
}

/// Gives the packet its departure time.
#[inline(always)]
pub fn set_departure_time(ctx: &TcContext, at_ns: u64) {
    if constant(&STAMP_TYPES) != 0 {
        // SAFETY: takes the context only.
        let ret = unsafe { bpf_skb_set_tstamp(raw(ctx), at_ns, MONOTONIC) };
        if ret == 0 {
            return;
        }
    }
    // The helper refuses frames with a tag in them. At the leaving device the time alone is enough.
    // SAFETY: tc programs may write this field.
    unsafe { (*raw(ctx)).tstamp = at_ns };
}
