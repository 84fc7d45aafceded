//! The response of a flow's source to an echo: the same wherever the echo is taken, at tc or XDP.

use core::arch::asm;

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{bpf_ktime_get_coarse_ns, bpf_ktime_get_ns},
};
use ecn_core::{
    abi::{self, Count, Endpoint, LockedFlow},
    echo::{Echo, FeedbackDelta, Refusal},
    fixed::{self, opaque},
    flow::{Flow, Key},
};

use crate::maps::{
    COARSE_TIME, ECN_CLASS, ECN_DEPARTED, ECN_FLOW, ECN_IN_FORCE, ECN_LIMIT, ECN_MARKED, ECN_RATE,
    ECN_SIBLINGS, ECN_WORK, constant, count,
};

#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: takes nothing.
    unsafe { bpf_ktime_get_ns() }
}

/// The time of the last tick, 1 to 10 ms old, for what only has to be known to a second: quicker by 25 ns.
#[inline(always)]
pub fn coarse_now() -> u64 {
    if constant(&COARSE_TIME) == 0 {
        return now();
    }
    // SAFETY: takes nothing.
    unsafe { bpf_ktime_get_coarse_ns() }
}

/// Runs `$body` with `$value` (a `&mut` to `$field`) locked; no call may be in it.
macro_rules! with_lock {
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
pub(crate) use with_lock;

/// A word of a value that others write, read without its lock.
macro_rules! read_once {
    ($pointer:expr, $($field:ident).+) => {
        // SAFETY: a map value; one word.
        unsafe { core::ptr::read_volatile(&raw const (*$pointer).$($field).+) }
    };
}
pub(crate) use read_once;

/// Adds to a total that others add to at the same time, without a lock, for which a packet takes 50 ns more. In
/// assembly, since the target has no such type, and the compiler makes mistakes with them
/// (llvm/llvm-project#91888).
#[inline(always)]
pub fn atomic_add(total: *mut u64, n: u64) {
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

/// Tells the agent of a new rate. Decreases and flows without a class wake it (`urgent`); increases wait until it
/// comes by.
#[inline(always)]
pub fn notify(event: &abi::RateEvent, urgent: bool) {
    let flags = if urgent {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    if ECN_RATE.output(event, u64::from(flags)).is_err() {
        count(Count::RingFull, 1);
    }
}

/// Gives a flow a number for a class of its own, which the agent makes when it is told. 0: none is free, and the
/// flow goes with the short flows.
#[inline(always)]
pub fn allocate_class(f: *mut LockedFlow) -> u32 {
    let taken = match ECN_CLASS.pop() {
        Ok(Some(class)) => class,
        _ => 0,
    };
    let class = taken & 0xffff;
    if class == 0 {
        count(Count::ClassesFull, 1);
        with_lock!(f, flow as f => {
            f.shared = 1;
            f.pending = 0;
        });
        return 0;
    }
    // What left through this class before, which decrease was in force, and what it was held at is
    // another flow's. So far nothing of this one has waited.
    let sent = read_once!(f, flow.sent_packets);
    for (counter, value) in [
        (ECN_DEPARTED.get_ptr_mut(class), sent),
        (ECN_IN_FORCE.get_ptr_mut(class), 0),
        (ECN_LIMIT.get_ptr_mut(class), 0),
    ] {
        if let Some(counter) = counter {
            // SAFETY: nothing is in this class yet.
            unsafe { *counter = value };
        }
    }
    let its = with_lock!(f, flow as f => {
        if f.class == 0 {
            f.class = class;
        }
        f.shared = 0;
        f.class
    });
    if its != class {
        let _ = ECN_CLASS.push(class, 0);
    }
    its
}

/// A flow begins to have a rate of its own, or comes back after a pause: with what its siblings have.
#[inline(always)]
pub fn start_own_rate(f: *mut LockedFlow, key: &Key, endpoint: &Endpoint) {
    let number = u32::from(key.endpoint);
    let ipd = match ECN_SIBLINGS.get(number) {
        Some(siblings) => siblings.initial_ipd(now()),
        None => fixed::ONE,
    };
    if ipd == fixed::ONE && read_once!(f, flow.class) | read_once!(f, flow.shared) == 0 {
        // At full rate, as it is.
        return;
    }
    let link = endpoint.link_bytes_per_s;
    let (rate, decreases) = with_lock!(f, flow as f => {
        f.start_own_rate(ipd, link);
        f.shared = 0;
        (f.rate_bytes_per_s, f.decreases as u32)
    });
    if rate >= link {
        return;
    }
    let mut class = class_of(f);
    if class == 0 {
        class = allocate_class(f);
    }
    if class != 0 {
        let event = abi::RateEvent {
            endpoint: number,
            class,
            rate_bytes_per_s: rate,
            decrease: decreases,
            key: *key,
            ..abi::RateEvent::default()
        };
        notify(&event, true);
    }
}

/// The flow's class: written once, when it got it. 0 before.
#[inline(always)]
pub fn class_of(f: *mut LockedFlow) -> u32 {
    read_once!(f, flow.class)
}

/// An entry of an array of numbers.
#[inline(always)]
pub fn read_word(entry: Option<&u64>) -> u64 {
    match entry {
        // SAFETY: one word, written by others.
        Some(word) => unsafe { core::ptr::read_volatile(word) },
        None => 0,
    }
}

/// The flow that an echo is for; `key`, the echo's own, becomes that flow's.
#[inline(always)]
pub fn find_flow(e: &Echo, key: &mut Key) -> Option<*mut LockedFlow> {
    reverse(key);
    key.src_port = e.src_port;
    key.dst_port = e.dst_port;
    key.protocol = e.protocol;
    ECN_FLOW.get_ptr_mut(&*key)
}

/// Takes an echo that came for this flow.
#[inline(always)]
pub fn on_echo<C: EbpfContext>(
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
    let input = unsafe { &mut (*work).input };
    let every_ns = endpoint.echo.every_ns;
    match on_feedback(ctx, f, key, input, endpoint, flags, (e, every_ns)) {
        REFUSED_DUPLICATE => count(Count::EchoDuplicate, 1),
        REFUSED_IMPOSSIBLE => count(Count::EchoImpossible, 1),
        _ => count(Count::EchoAccepted, 1),
    }
}

/// [`on_feedback`]: [`Refusal::Duplicate`].
const REFUSED_DUPLICATE: u32 = Refusal::Duplicate as u32;
/// [`on_feedback`]: [`Refusal::Impossible`].
const REFUSED_IMPOSSIBLE: u32 = Refusal::Impossible as u32;

/// What a flow hears. Not a closure: one that two programs share is a function of its own to the compiler,
/// and old kernels let nothing be called under a lock (6.1 does not, 6.12 does).
pub trait Feedback {
    /// Takes it, input the packets that have been sent and have departed.
    fn apply(
        self,
        flow: &mut Flow,
        sent: u32,
        departed: u32,
        now_ns: u64,
    ) -> Result<FeedbackDelta, Refusal>;
}

/// With [`ecn_core::echo::Policy::every_ns`].
impl Feedback for (&Echo, u64) {
    #[inline(always)]
    fn apply(
        self,
        flow: &mut Flow,
        _sent: u32,
        departed: u32,
        now_ns: u64,
    ) -> Result<FeedbackDelta, Refusal> {
        flow.on_echo(self.0, departed, self.1, now_ns)
    }
}

/// The response of a flow to what it hears. Returns why that was refused, or 0.
#[inline(always)]
pub fn on_feedback<C: EbpfContext>(
    #[cfg_attr(
        not(feature = "trace"),
        expect(unused_variables, reason = "only to log")
    )]
    ctx: &C,
    f: *mut LockedFlow,
    key: &mut Key,
    input: &mut abi::ResponseInput,
    endpoint: &Endpoint,
    flags: u32,
    feedback: impl Feedback,
) -> u32 {
    let number = u32::from(key.endpoint);
    // Read before the sequence number up to which TCP has sent, which is written before it: `ace::Sender::take`.
    let sent = read_once!(f, flow.sent_packets);
    let own = class_of(f);
    let departed = if own == 0 {
        // Nothing waits: it has no queue.
        sent as u32
    } else {
        read_word(ECN_DEPARTED.get(own & 0xffff)) as u32
    };
    let mut marked_ns = 0;
    if flags & abi::TRACE_LATENCY != 0 {
        // A switch does not know the endpoints.
        key.endpoint = 0;
        // SAFETY: copied at once.
        if let Some(at) = unsafe { ECN_MARKED.get(&*key) } {
            marked_ns = *at;
        }
        key.endpoint = number as u16;
    }
    let now = now();
    let policy = &endpoint.response;
    let rmax = endpoint.link_bytes_per_s;
    // Short flows are one flow, whose rate moves by what any of them hears. Sockets are paced one by one.
    let mut short = endpoint.flags & abi::PACE == 0
        && (read_once!(f, flow.has_own_rate) == 0 || read_once!(f, flow.shared) != 0);
    let mut of = f;
    let mut class = own;
    if short {
        let all = Key::short(number as u16);
        match ECN_FLOW.get_ptr_mut(&all) {
            Some(all) => {
                of = all;
                class = abi::short_class(number);
            }
            None => short = false,
        }
    }
    let class = class & 0xffff;
    // 0: there is no such class, or not yet.
    let before = read_word(ECN_IN_FORCE.get(class));
    let in_force = before;
    let refusal = with_lock!(f, flow as f => match feedback.apply(f, sent as u32, departed, now) {
        Ok(delta) => {
            if short {
                f.on_short_feedback(&delta, now);
            }
            input.delta = delta;
            0
        }
        Err(refusal) => refusal as u32,
    });
    if refusal != 0 {
        return refusal;
    }
    let sibling_ipd = match ECN_SIBLINGS.get(number) {
        Some(siblings) => siblings.initial_ipd(now),
        None => fixed::ONE,
    };
    let lost = input.delta.lost_echoes;
    let (notify_agent, rate, ipd, decreased, ce, decreases, pending, since) = with_lock!(of, flow as f => {
        let (delta, departed, in_force) = if short {
            let delta = f.aggregate_delta(&input.delta);
            let confirmed = (in_force >> 32) as u32;
            (delta, delta.position, abi::in_force(confirmed, delta.position))
        } else {
            (input.delta, departed, in_force)
        };
        // Departure times are in force without the agent: it only measures how soon.
        *input = abi::ResponseInput {
            delta,
            in_force: if endpoint.flags & abi::EDT != 0 {
                f.paced_in_force(departed, now)
            } else {
                in_force
            },
            marked_ns,
            flags: endpoint.flags,
            departed,
            sibling_ipd,
        };
        let abi::ResponseInput { delta, in_force, marked_ns, flags, departed, sibling_ipd } = opaque(input);
        let paced = flags & abi::EDT != 0;
        f.check_timeout(policy, &delta, sibling_ipd, now);
        let (reaction, notify_agent) = f.respond(policy, &delta, in_force, departed, rmax, now);
        let since = if paced {
            f.after_paced_response(&reaction, now);
            now.max(f.decreased_ns)
        } else {
            0
        };
        let measured = paced && marked_ns != 0 && reaction.decreased != 0;
        (
            2 * notify_agent as u32 + measured as u32,
            f.rate_bytes_per_s,
            f.response.ipd,
            reaction.decreased,
            delta.ce,
            f.decreases as u32,
            f.pending,
            since,
        )
    });
    if short && rate >= rmax && read_once!(f, flow.has_own_rate) != 0 {
        // It was limited with them since it had no class; now nobody is.
        // SAFETY: a place in the value.
        unsafe { core::ptr::write_volatile(&raw mut (*f).flow.shared, 0) };
    }
    if let Some(siblings) = ECN_SIBLINGS.get_ptr_mut(number) {
        // SAFETY: words of a map value. Another CPU's may be mixed with them: then what begins has the one's rate
        // at the other's time, nanoseconds apart.
        unsafe {
            if short {
                core::ptr::write_volatile(&raw mut (*siblings).short_ipd, ipd);
            } else if decreased != 0 {
                core::ptr::write_volatile(&raw mut (*siblings).ipd, ipd);
                core::ptr::write_volatile(&raw mut (*siblings).at_ns, now);
            }
        }
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
    let marked_ns = input.marked_ns;
    if ce != 0 && marked_ns != 0 {
        key.endpoint = 0;
        let _ = ECN_MARKED.remove(&*key);
        key.endpoint = number as u16;
    }
    // By HTB every new rate is the agent's to bring into force; otherwise only what has to be there for it.
    let notify_now = if endpoint.flags & (abi::EDT | abi::PACE) == 0 {
        notify_agent & 2 != 0
    } else {
        notify_agent & 1 != 0 || notify_agent & 2 != 0 && before == 0
    };
    if notify_now {
        let mut class = class;
        if class == 0 {
            class = allocate_class(f);
            if class == 0 {
                return 0;
            }
        }
        if short {
            *key = Key::short(number as u16);
        }
        let event = abi::RateEvent {
            endpoint: number,
            class,
            rate_bytes_per_s: rate,
            marked_ns: if decreased != 0 { marked_ns } else { 0 },
            decrease: decreases,
            pending,
            in_force_ns: since,
            key: *key,
        };
        notify(&event, pending != 0 || before == 0);
    }
    0
}
