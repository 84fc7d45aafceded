//! Entries of the flow and receiver tables: looked up, added within the endpoint's quota, and removed.

use ecn_core::{
    abi::{self, LockedFlow, LockedReceiver},
    echo::Receiver,
    flow::{Flow, Key},
};

use crate::{
    maps::{ECN_ADDED, ECN_FLOW, ECN_RECEIVER, ECN_REMOVED},
    value::{atomic_add, read_word},
};

/// Insert only if the key does not exist.
const BPF_NOEXIST: u64 = 1;

/// A new flow; in read-only data, since the stack is small.
static NEW_FLOW: LockedFlow = LockedFlow {
    lock: abi::bpf_spin_lock { val: 0 },
    _pad: 0,
    flow: Flow::new(),
};
static NEW_RECEIVER: LockedReceiver = LockedReceiver {
    lock: abi::bpf_spin_lock { val: 0 },
    _pad: 0,
    receiver: Receiver::new(),
};

/// The flow's entry, added if it does not exist. `None`: the table or the quota is full.
#[inline(always)]
pub fn flow_entry(key: &Key) -> Option<*mut LockedFlow> {
    if let Some(f) = ECN_FLOW.get_ptr_mut(key) {
        return Some(f);
    }
    add_flow(key);
    ECN_FLOW.get_ptr_mut(key)
}

/// Adds a flow's entry, if there is room for it. Not inlined, like [`add_receiver`]: with more code in one function
/// the compiler spills uninitialised registers, which the verifier rejects.
#[inline(never)]
fn add_flow(key: &Key) {
    if !has_room(abi::TABLE_FLOWS, key) {
        return;
    }
    // Two CPUs may process first packets at once: the second one finds the entry of the first.
    if ECN_FLOW.insert(key, &NEW_FLOW, BPF_NOEXIST).is_ok() {
        count_entries(abi::TABLE_FLOWS, key, 1);
    }
}

/// The receiver's entry, added if it does not exist. `None`: the table or the quota is full.
#[inline(always)]
pub fn receiver_entry(key: &Key) -> Option<*mut LockedReceiver> {
    if let Some(r) = ECN_RECEIVER.get_ptr_mut(key) {
        return Some(r);
    }
    add_receiver(key);
    ECN_RECEIVER.get_ptr_mut(key)
}

#[inline(never)]
fn add_receiver(key: &Key) {
    if !has_room(abi::TABLE_RECEIVERS, key) {
        return;
    }
    if ECN_RECEIVER.insert(key, &NEW_RECEIVER, BPF_NOEXIST).is_ok() {
        count_entries(abi::TABLE_RECEIVERS, key, 1);
    }
}

#[inline(always)]
pub fn remove_flow(key: &Key) {
    if ECN_FLOW.remove(key).is_ok() {
        count_entries(abi::TABLE_FLOWS, key, u64::MAX);
    }
}

#[inline(always)]
pub fn remove_receiver(key: &Key) {
    if ECN_RECEIVER.remove(key).is_ok() {
        count_entries(abi::TABLE_RECEIVERS, key, u64::MAX);
    }
}

/// Whether the flow's endpoint may add an entry: [`abi::has_room`].
#[inline(always)]
fn has_room(table: u32, key: &Key) -> bool {
    let endpoint = abi::quota_index(table, key.endpoint.into());
    let all = abi::quota_index(table, abi::ALL_ENDPOINTS);
    abi::has_room(
        read_word(ECN_ADDED.get(endpoint)),
        read_word(ECN_REMOVED.get(endpoint)),
        read_word(ECN_ADDED.get(all)),
        read_word(ECN_REMOVED.get(all)),
    )
}

/// Adds `n`, modulo 2^64, to the entry counts of the flow's endpoint and of all endpoints.
#[inline(always)]
fn count_entries(table: u32, key: &Key, n: u64) {
    for of in [u32::from(key.endpoint), abi::ALL_ENDPOINTS] {
        if let Some(count) = ECN_ADDED.get_ptr_mut(abi::quota_index(table, of)) {
            atomic_add(count, n);
        }
    }
}
