//! Maps and load-time constants.

use aya_ebpf::{
    btf_maps::{Array, HashMap, LruHashMap, PerCpuArray, ProgramArray, Queue, RingBuf},
    macros::btf_map,
};
use ecn_core::{abi, backward, flow, marking};

/// The agent's heartbeat and flags.
#[btf_map]
pub static ECN_CONTROL: Array<abi::Control, 1> = Array::new();
/// Roles of devices.
#[btf_map]
pub static ECN_DEVICE: HashMap<abi::DeviceKey, abi::Device, 4096> = HashMap::new();
/// Cache of [`ECN_DEVICE`], indexed directly instead of hashed.
#[btf_map]
pub static ECN_NEAR: Array<abi::Near, { abi::NEAR as usize }> = Array::new();
/// Counters per bridge; the agent sets the number of entries.
#[btf_map]
pub static ECN_BRIDGE: Array<abi::Bridge, 1> = Array::new();
/// Marking policy per bridge; the agent sets the number of entries.
#[btf_map]
pub static ECN_MARKING: Array<marking::Policy, 1> = Array::new();
/// Virtual queues per bridge; the agent sets the number of entries.
#[btf_map]
pub static ECN_VIRTUAL: Array<abi::Virtual, 1> = Array::new();
/// Backward messages per bridge; the agent sets the number of entries.
#[btf_map]
pub static ECN_BACKWARD: Array<backward::Policy, 1> = Array::new();
/// Congestion points per bridge and port slot; the agent sets the number of entries.
#[btf_map]
pub static ECN_POINT: Array<abi::LockedPoint, { abi::PORTS }> = Array::new();
/// Recently sent packets, which messages may quote.
#[btf_map]
pub static ECN_QUOTED: Array<u32, { backward::QUOTES as usize }> = Array::new();
/// Flows that ports have recently slowed down.
#[btf_map]
pub static ECN_TAGGED: Array<u32, { backward::QUOTES as usize }> = Array::new();
/// Policy per endpoint.
#[btf_map]
pub static ECN_ENDPOINT: Array<abi::Endpoint, { abi::ENDPOINTS as usize }> = Array::new();
/// Sent flows.
#[btf_map]
pub static ECN_FLOW: HashMap<flow::Key, abi::LockedFlow, { abi::FLOWS as usize }> = HashMap::new();
/// Hosts that have sent through an endpoint at a bridge port.
#[btf_map]
pub static ECN_HOST: LruHashMap<u64, u32, 8192> = LruHashMap::new();
/// Received flows.
#[btf_map]
pub static ECN_RECEIVER: HashMap<flow::Key, abi::LockedReceiver, { abi::FLOWS as usize }> =
    HashMap::new();
/// Entries that programs have added to [`ECN_FLOW`] and [`ECN_RECEIVER`], per endpoint.
#[btf_map]
pub static ECN_ADDED: Array<u64, { abi::QUOTA_SLOTS as usize }> = Array::new();
/// Entries that the agent has removed from them, per endpoint.
#[btf_map]
pub static ECN_REMOVED: Array<u64, { abi::QUOTA_SLOTS as usize }> = Array::new();
/// Departed packets, per class.
#[btf_map]
pub static ECN_DEPARTED: Array<u64, { abi::CLASSES as usize }> = Array::new();
/// The decrease in force, per class.
#[btf_map]
pub static ECN_IN_FORCE: Array<u64, { abi::CLASSES as usize }> = Array::new();
/// Pinned rates per class, written by the agent.
#[btf_map]
pub static ECN_LIMIT: Array<u64, { abi::CLASSES as usize }> = Array::new();
/// Flow of a local TCP socket, by its cookie.
#[btf_map]
pub static ECN_SOCKET: HashMap<u64, flow::Key, { abi::FLOWS as usize }> = HashMap::new();
/// Free classes, filled by the agent.
#[btf_map]
pub static ECN_CLASS: Queue<u32, 1024> = Queue::new();
/// Initial rates of new flows, per endpoint.
#[btf_map]
pub static ECN_SIBLINGS: Array<abi::Siblings, { abi::ENDPOINTS as usize }> = Array::new();
/// Pinned rates per flow, for the agent.
#[btf_map]
pub static ECN_PIN: HashMap<flow::Key, u64, 1024> = HashMap::new();
/// New rates, for the agent.
#[btf_map]
pub static ECN_RATE: RingBuf<abi::RateEvent, 1_048_576> = RingBuf::new();
/// Events at ports, while they are traced.
#[btf_map]
pub static ECN_TRACE: RingBuf<abi::PortEvent, 8_388_608> = RingBuf::new();
/// Programs that are loaded once for all namespaces and endpoints.
#[btf_map]
pub static ECN_TAIL: ProgramArray<{ abi::TAILS as usize }> = ProgramArray::new();
/// Scratch space for the packet being processed.
#[btf_map]
pub static ECN_WORK: PerCpuArray<abi::Scratch, 1> = PerCpuArray::new();
/// Times of marks, while latency is traced.
#[btf_map]
pub static ECN_MARKED: LruHashMap<flow::Key, u64, 4096> = LruHashMap::new();
/// Event counters, see [`abi::Count`].
#[btf_map]
pub static ECN_COUNT: PerCpuArray<u64, { abi::Count::ALL.len() }> = PerCpuArray::new();

/// Network namespace of this loaded copy's tcx programs.
#[unsafe(no_mangle)]
static NETNS: u32 = 0;
/// Endpoint number of this loaded copy's tcx programs.
#[unsafe(no_mangle)]
pub static ENDPOINT: u32 = 0;
/// 1: the kernel has `bpf_skb_set_tstamp` and `__sk_buff.tstamp_type`, as detected by the agent. Otherwise the code
/// that needs them is dead code for the verifier.
#[unsafe(no_mangle)]
pub static STAMP_TYPES: u32 = 0;
/// 1: the kernel has `bpf_ktime_get_coarse_ns` (5.11), as detected by the agent.
#[unsafe(no_mangle)]
pub static COARSE_TIME: u32 = 0;
/// 1: tracing programs may use spin locks, as detected by the agent. Otherwise the code that does is dead code for
/// the verifier.
#[unsafe(no_mangle)]
pub static TRACING_LOCKS: u32 = 1;
/// [`abi::GENERATION`] of this loaded copy's tracepoint programs, or 0.
#[unsafe(no_mangle)]
pub static GENERATION: u32 = 0;
/// Offsets of structure members in the running kernel.
#[unsafe(no_mangle)]
pub static OFFSETS: abi::Offsets = abi::Offsets {
    skb_dev: 0,
    skb_iif: 0,
    skb_len: 0,
    skb_data_len: 0,
    skb_priority: 0,
    skb_mac_header: 0,
    skb_head: 0,
    skb_end: 0,
    shinfo_gso_size: 0,
    dev_ifindex: 0,
    dev_net: 0,
    net_inum: 0,
    dev_qdisc: 0,
    qdisc_qlen: 0,
    drop_reasons: [0; 2],
};

/// Reads a load-time constant: volatile, because the loader overwrites it.
#[inline(always)]
pub fn constant<T: Copy>(place: &'static T) -> T {
    // SAFETY: a reference is readable.
    unsafe { core::ptr::read_volatile(place) }
}

#[inline(always)]
pub fn netns() -> u32 {
    constant(&NETNS)
}

#[inline(always)]
pub fn count(what: abi::Count, n: u64) {
    if let Some(counter) = ECN_COUNT.get_ptr_mut(what as u32) {
        // SAFETY: this CPU's own slot.
        unsafe { *counter += n };
    }
}

/// The agent's control entry: flags, and when rate limits lapse.
#[inline(always)]
pub fn control() -> Option<&'static abi::Control> {
    ECN_CONTROL.get(0)
}
