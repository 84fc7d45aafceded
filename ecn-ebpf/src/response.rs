//! The response of a flow's source to an echo: the same wherever the echo is taken, at tc or XDP.

use core::arch::asm;

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns},
};
use ecn_core::{
    abi::{self, Count, Endpoint, LockedFlow},
    echo::{Echo, News, Refusal},
    fixed::forgotten,
    flow::{Flow, Key},
};

use crate::maps::{
    COARSE_TIME, ECN_DEPARTED, ECN_FLOW, ECN_IN_FORCE, ECN_MARKED, ECN_RATE, ECN_WORK, constant,
    count,
};

#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: takes nothing.
    unsafe { bpf_ktime_get_ns() }
}

/// The time of the last tick, 1 to 10 ms old, for what only has to be known to a second: quicker by 25 ns.
#[inline(always)]
pub fn tick() -> u64 {
    if constant(&COARSE_TIME) == 0 {
        return now();
    }
    // SAFETY: takes nothing.
    unsafe { bpf_ktime_get_coarse_ns() }
}

/// Runs `$body` with `$value` (a `&mut` to `$field`) locked; no call may be in it.
macro_rules! locked {
    ($pointer:expr, $field:ident as $value:ident => $body:expr) => {{
        // SAFETY: the lock serialises all programs that touch the value.
        unsafe {
            let entry = $pointer;
            aya_ebpf::helpers::bpf_spin_lock((&raw mut (*entry).lock).cast());
            let $value = &mut (*entry).$field;
            let result = $body;
            aya_ebpf::helpers::bpf_spin_unlock((&raw mut (*entry).lock).cast());
            result
        }
    }};
}
pub(crate) use locked;

/// A word of a value that others write, read without its lock.
macro_rules! peek {
    ($pointer:expr, $($field:ident).+) => {
        // SAFETY: a map value; one word.
        unsafe { core::ptr::read_volatile(&raw const (*$pointer).$($field).+) }
    };
}
pub(crate) use peek;

/// Adds to a total that others add to at the same time, without a lock, for which a packet takes 50 ns more. In
/// assembly, since the target has no such type, and the compiler makes mistakes with them
/// (llvm/llvm-project#91888).
#[inline(always)]
pub fn add(total: *mut u64, n: u64) {
    // SAFETY: a word of a map value, aligned.
    unsafe {
        asm!(
            // Emptied, as nothing else could: a test tells it so from an addition that lost its result.
            "lock *(u64 *)({total} + 0) += {n}",
            "{n} = 0",
            total = in(reg) total,
            n = inout(reg) n => _,
        );
    }
}

/// The same flow seen from the other end.
#[inline(always)]
pub fn reverse(key: &mut Key) {
    core::mem::swap(&mut key.src, &mut key.dst);
    core::mem::swap(&mut key.src_port, &mut key.dst_port);
}

/// Tells the agent of a new rate (0: a class was taken). Decreases and new classes wake it; increases
/// wait until it comes by.
#[inline(always)]
pub fn tell(event: abi::RateEvent) {
    let flags = if event.rate_bytes_per_s == 0 || event.pending != 0 {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    if ECN_RATE.output(event, u64::from(flags)).is_err() {
        count(Count::RingFull, 1);
    }
}

/// The flow's class: written once, when it got it.
#[inline(always)]
pub fn class_of(f: *mut LockedFlow) -> u32 {
    peek!(f, flow.class)
}

/// An entry of an array of numbers.
#[inline(always)]
pub fn word(entry: Option<&u64>) -> u64 {
    match entry {
        // SAFETY: one word, written by others.
        Some(word) => unsafe { core::ptr::read_volatile(word) },
        None => 0,
    }
}

/// The flow that an echo is for; `key`, the echo's own, becomes that flow's.
#[inline(always)]
pub fn source(e: &Echo, key: &mut Key) -> Option<*mut LockedFlow> {
    reverse(key);
    key.src_port = e.src_port;
    key.dst_port = e.dst_port;
    key.protocol = e.protocol;
    ECN_FLOW.get_ptr_mut(&*key)
}

/// Takes an echo that came for this flow.
#[inline(always)]
pub fn take<C: EbpfContext>(
    ctx: &C,
    e: &Echo,
    f: *mut LockedFlow,
    key: &mut Key,
    endpoint: &Endpoint,
    flags: u32,
) {
    let Some(work) = ECN_WORK.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: this CPU's own, and nothing else runs here meanwhile.
    let given = unsafe { &mut (*work).given };
    match answer(ctx, f, key, given, endpoint, flags, e) {
        REFUSED_DUPLICATE => count(Count::EchoDuplicate, 1),
        REFUSED_IMPOSSIBLE => count(Count::EchoImpossible, 1),
        _ => count(Count::EchoAccepted, 1),
    }
}

/// [`answer`]: [`Refusal::Duplicate`].
const REFUSED_DUPLICATE: u32 = Refusal::Duplicate as u32;
/// [`answer`]: [`Refusal::Impossible`].
const REFUSED_IMPOSSIBLE: u32 = Refusal::Impossible as u32;

/// What a flow hears. Not a closure: one that two programs share is a function of its own to the compiler,
/// and old kernels let nothing be called under a lock (6.1 does not, 6.12 does).
pub trait Heard {
    /// Takes it, given the packets that have been sent and have departed.
    fn hear(self, flow: &mut Flow, sent: u32, departed: u32) -> Result<News, Refusal>;
}

impl Heard for &Echo {
    #[inline(always)]
    fn hear(self, flow: &mut Flow, _sent: u32, departed: u32) -> Result<News, Refusal> {
        flow.hear_echo(self, departed)
    }
}

/// The response of a flow to what it hears. Returns why that was refused, or 0.
#[inline(always)]
pub fn answer<C: EbpfContext>(
    #[cfg_attr(
        not(feature = "trace"),
        expect(unused_variables, reason = "only to log")
    )]
    ctx: &C,
    f: *mut LockedFlow,
    key: &mut Key,
    given: &mut abi::Given,
    endpoint: &Endpoint,
    flags: u32,
    heard: impl Heard,
) -> u32 {
    let (class, number) = (class_of(f), u32::from(key.endpoint));
    let departed = word(ECN_DEPARTED.get(class & 0xffff)) as u32;
    let in_force = word(ECN_IN_FORCE.get(class & 0xffff));
    let mut marked_ns = 0;
    if flags & abi::TRACE_LATENCY != 0 {
        // A switch does not know the endpoints.
        key.endpoint = 0;
        // SAFETY: copied at once.
        if let Some(at) = unsafe { ECN_MARKED.get(&*key) } {
            marked_ns = *at;
        }
    }
    let now = now();
    // Read before the sequence number up to which TCP has sent, which is written before it: `ace::Sender::take`.
    let sent = peek!(f, flow.sent_packets) as u32;
    let policy = &endpoint.response;
    let rmax = endpoint.link_bytes_per_s;
    // 0 - refused, 1 - accepted, 2 - and the agent must be told.
    let (outcome, refusal, lost, rate, decreased, ce, decreases, pending, since) = locked!(f, flow as f => {
        match heard.hear(f, sent, departed) {
            Err(refusal) => (0u32, refusal as u32, 0u32, 0u64, 0u32, 0u32, 0u32, 0u32, 0u64),
            Ok(news) => {
                // Departure times are in force without the agent: it only measures how soon.
                *given = abi::Given {
                    news,
                    in_force: if endpoint.flags & abi::EDT != 0 {
                        f.in_force_paced(departed, now)
                    } else {
                        in_force
                    },
                    marked_ns,
                    flags: endpoint.flags,
                    departed,
                };
                let abi::Given { news, in_force, marked_ns, flags, departed } = forgotten(given);
                let paced = flags & abi::EDT != 0;
                let by_socket = flags & abi::PACE != 0;
                let (reaction, told) = f.respond(policy, &news, in_force, departed, rmax, now);
                let (tell, since) = if paced {
                    f.paced(&reaction, now);
                    (reaction.decreased != 0 && marked_ns != 0, now.max(f.decreased_ns))
                } else {
                    (told && !by_socket, 0)
                };
                (
                    1 + tell as u32,
                    0,
                    news.lost_echoes,
                    f.rate_bytes_per_s,
                    reaction.decreased,
                    news.ce,
                    f.decreases as u32,
                    f.pending,
                    since,
                )
            }
        }
    });
    if outcome == 0 {
        return refusal;
    }
    #[cfg(feature = "trace")]
    if decreased != 0 {
        aya_log_ebpf::debug!(
            ctx,
            "class {}: {} decreases, {} B/s",
            class,
            decreased,
            rate
        );
    }
    if lost != 0 {
        count(Count::EchoLost, lost as u64);
    }
    let marked_ns = given.marked_ns;
    if ce != 0 && marked_ns != 0 {
        let _ = ECN_MARKED.remove(&*key);
    }
    if outcome == 2 {
        tell(abi::RateEvent {
            endpoint: number,
            class,
            rate_bytes_per_s: rate,
            marked_ns: if decreased != 0 { marked_ns } else { 0 },
            decrease: decreases,
            pending,
            in_force_ns: since,
        });
    }
    0
}
