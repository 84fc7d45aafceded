//! How many entries each endpoint has in the tables that all share, and whether it may have more: [`abi::has_room`].

use ecn_core::{abi, flow::Key};

use crate::{
    maps::{ECN_ADDED, ECN_FLOW, ECN_RECEIVER, ECN_REMOVED},
    response::{atomic_add, read_word},
};

/// Whether the flow's endpoint may have one more entry.
#[inline(always)]
pub fn has_room(table: u32, key: &Key) -> bool {
    let own = abi::quota_index(table, key.endpoint.into());
    let all = abi::quota_index(table, abi::ALL_ENDPOINTS);
    abi::has_room(
        read_word(ECN_ADDED.get(own)),
        read_word(ECN_REMOVED.get(own)),
        read_word(ECN_ADDED.get(all)),
        read_word(ECN_REMOVED.get(all)),
    )
}

/// Counts an entry that was added.
#[inline(always)]
pub fn added(table: u32, key: &Key) {
    change(table, key, 1);
}

/// Removes a sent flow's entry.
#[inline(always)]
pub fn remove_flow(key: &Key) {
    if ECN_FLOW.remove(key).is_ok() {
        change(abi::TABLE_FLOWS, key, u64::MAX);
    }
}

/// Removes a received flow's entry.
#[inline(always)]
pub fn remove_receiver(key: &Key) {
    if ECN_RECEIVER.remove(key).is_ok() {
        change(abi::TABLE_RECEIVERS, key, u64::MAX);
    }
}

/// Adds modulo 2^64.
#[inline(always)]
fn change(table: u32, key: &Key, by: u64) {
    for of in [u32::from(key.endpoint), abi::ALL_ENDPOINTS] {
        if let Some(count) = ECN_ADDED.get_ptr_mut(abi::quota_index(table, of)) {
            atomic_add(count, by);
        }
    }
}
