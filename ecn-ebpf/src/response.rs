//! The response of a flow's source to feedback, from an echo (at tc or XDP) or from a TCP ACK.

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
};
use ecn_core::{
    abi::{self, Count, Endpoint, LockedFlow},
    backward::{self, Report},
    echo::{Echo, FeedbackDelta, Refusal},
    fixed::{self, is_below, opaque},
    flow::{Flow, Key},
};

use crate::{
    clock::now,
    maps::{
        ECN_CLASS, ECN_DEPARTED, ECN_FLOW, ECN_IN_FORCE, ECN_LIMIT, ECN_MARKED, ECN_RATE,
        ECN_SIBLINGS, ECN_WORK, control, count,
    },
    value::{class_of, read_once, read_word, with_lock, write_once},
};

/// The key of the same flow in the other direction.
#[inline(always)]
pub fn reverse(key: &mut Key) {
    core::mem::swap(&mut key.src, &mut key.dst);
    core::mem::swap(&mut key.src_port, &mut key.dst_port);
}

/// Notifies the agent of a new rate. Decreases and flows without a class wake it (`urgent`); increases wait until it
/// polls.
#[inline(always)]
fn notify(event: &abi::RateEvent, urgent: bool) {
    let flags = if urgent {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    if ECN_RATE.output(event, u64::from(flags)).is_err() {
        count(Count::RingFull, 1);
    }
}

/// Allocates a class number for the flow; the agent creates the class when it is notified. 0: no number is free, and
/// the flow is limited with the short flows.
#[inline(always)]
fn allocate_class(f: *mut LockedFlow) -> u32 {
    let class = match ECN_CLASS.pop() {
        Ok(Some(class)) => class & 0xffff,
        _ => 0,
    };
    if class == 0 {
        count(Count::ClassesFull, 1);
        with_lock!(f, flow as f => {
            f.shared = 1;
            f.pending = 0;
        });
        return 0;
    }
    // Overwrites the last owner's values. No packet of this flow has been queued in the class yet.
    let sent = read_once!(f, flow.sent_packets);
    for (counter, value) in [
        (ECN_DEPARTED.get_ptr_mut(class), sent),
        (ECN_IN_FORCE.get_ptr_mut(class), 0),
        (ECN_LIMIT.get_ptr_mut(class), 0),
    ] {
        if let Some(counter) = counter {
            // SAFETY: a class that is not assigned yet has no packets, so that no other program writes its entry.
            unsafe { *counter = value };
        }
    }
    let assigned = with_lock!(f, flow as f => {
        if f.class == 0 {
            f.class = class;
        }
        f.shared = 0;
        f.class
    });
    if assigned != class {
        let _ = ECN_CLASS.push(class, 0);
    }
    assigned
}

/// Gives a flow its own rate, initially or after a pause: that of its siblings.
#[inline(always)]
pub fn start_own_rate(f: *mut LockedFlow, key: &Key, endpoint: &Endpoint) {
    let number = u32::from(key.endpoint);
    let ipd = sibling_ipd(number, now());
    if ipd == fixed::ONE && read_once!(f, flow.class) | read_once!(f, flow.shared) == 0 {
        // At full rate already.
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

/// Initial inter-packet delay of an endpoint's new flows.
#[inline(always)]
fn sibling_ipd(number: u32, now: u64) -> u64 {
    match ECN_SIBLINGS.get(number) {
        Some(siblings) => siblings.initial_ipd(now),
        None => fixed::ONE,
    }
}

/// Looks up the flow that an echo is for. `key`: that of the echo's packet, replaced by the flow's.
#[inline(always)]
pub fn find_flow(e: &Echo, key: &mut Key) -> Option<*mut LockedFlow> {
    reverse(key);
    key.src_port = e.src_port;
    key.dst_port = e.dst_port;
    key.protocol = e.protocol;
    ECN_FLOW.get_ptr_mut(&*key)
}

/// Processes an echo for a flow.
#[inline(always)]
pub fn on_echo<C: EbpfContext>(
    ctx: &C,
    e: &Echo,
    f: *mut LockedFlow,
    key: &Key,
    endpoint: &Endpoint,
    flags: u32,
) {
    let Some(work) = ECN_WORK.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: a per-CPU entry, and nothing else runs on this CPU meanwhile.
    let work = unsafe { &mut *work };
    work.key = *key;
    let (key, input) = (&mut work.key, &mut work.input);
    let every_ns = endpoint.echo.every_ns;
    match on_feedback(ctx, f, key, input, endpoint, flags, (e, every_ns)) {
        REFUSED_DUPLICATE => count(Count::EchoDuplicate, 1),
        REFUSED_IMPOSSIBLE => count(Count::EchoImpossible, 1),
        _ => count(Count::EchoAccepted, 1),
    }
}

/// [`abi::ResponseInput::class`]
#[inline(always)]
fn class_in(input: &mut abi::ResponseInput) -> u32 {
    opaque(&mut input.class) & 0xffff
}

/// [`abi::ResponseInput::short`]
#[inline(always)]
fn is_short(input: &mut abi::ResponseInput) -> bool {
    opaque(&mut input.short) != 0
}

/// [`on_feedback`]: [`Refusal::Duplicate`].
const REFUSED_DUPLICATE: u32 = Refusal::Duplicate as u32;
/// [`on_feedback`]: [`Refusal::Impossible`].
const REFUSED_IMPOSSIBLE: u32 = Refusal::Impossible as u32;

/// Feedback to a flow. Not a closure: one shared by two programs would be compiled to a separate function, and old
/// kernels do not permit calls under a lock (6.1 does not, 6.12 does).
pub trait Feedback {
    /// Updates the flow's counts. `sent`, `departed`: packets handed to the device, and packets that have left it
    /// (modulo 2^32).
    fn apply(
        self,
        flow: &mut Flow,
        sent: u32,
        departed: u32,
        now_ns: u64,
    ) -> Result<FeedbackDelta, Refusal>;
}

/// An echo, with [`ecn_core::echo::Policy::every_ns`].
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

/// [`Response::events`]: the rate changed enough to notify the agent.
const NOTIFY: u32 = 2;
/// [`Response::events`]: a decrease whose latency is measured.
const MEASURED: u32 = 1;

struct Response {
    /// Bit mask of [`NOTIFY`] and [`MEASURED`]: each `bool` would double the verifier's paths.
    events: u32,
    rate_bytes_per_s: u64,
    ipd: u64,
    /// Decreases by this feedback.
    decreased: u32,
    ce: u32,
    /// Number of the last decrease.
    decrease: u32,
    pending: u32,
    /// Time at which the rate takes effect without the agent, or 0.
    in_force_ns: u64,
}

/// Responds to feedback for a flow. Returns the [`Refusal`] as a number, or 0.
#[expect(
    clippy::too_many_lines,
    reason = "a separate function for the response would exceed the BPF stack"
)]
#[inline(always)]
pub fn on_feedback<C: EbpfContext>(
    #[cfg_attr(
        not(feature = "trace"),
        expect(unused_variables, reason = "used only for logging")
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
    // Read before the sequence number up to which TCP has sent, which senders write first: `ace::Sender::on_ack`.
    let sent = read_once!(f, flow.sent_packets);
    let own = class_of(f);
    let departed = if own == 0 {
        // Without a class it has no queue.
        sent as u32
    } else {
        read_word(ECN_DEPARTED.get(own & 0xffff)) as u32
    };
    let marked_ns = marked_at(key, number, flags);
    let now = now();
    let policy = &endpoint.response;
    let link = endpoint.link_bytes_per_s;
    // Short flows respond as an aggregate, except with socket pacing, where each flow has its own rate.
    let mut short = endpoint.flags & abi::PACE == 0
        && (read_once!(f, flow.has_own_rate) == 0 || read_once!(f, flow.shared) != 0);
    let mut responder = f;
    let mut class = own;
    if short {
        match ECN_FLOW.get_ptr_mut(&Key::short(number as u16)) {
            Some(all) => {
                responder = all;
                class = abi::short_class(number);
            }
            None => short = false,
        }
    }
    // Read again wherever they are compared: see `opaque`.
    input.class = class;
    input.short = short as u32;
    // 0: the class does not exist (yet).
    let in_force = read_word(ECN_IN_FORCE.get(class_in(input)));
    let held = is_held(class_in(input), now);
    let limited = is_below(read_once!(responder, flow.rate_bytes_per_s), link) as u32;
    let refusal = with_lock!(f, flow as f => match feedback.apply(f, sent as u32, departed, now) {
        Ok(delta) => {
            // A flow that got no class is released once the short flows are no longer limited.
            f.shared &= limited;
            if is_short(input) || held {
                f.count_feedback(&delta, now);
            }
            input.delta = delta;
            0
        }
        Err(refusal) => refusal as u32,
    });
    if refusal != 0 {
        return refusal;
    }
    if held {
        return 0;
    }
    // The aggregate of the short flows has no siblings.
    let sibling_ipd = if is_short(input) {
        fixed::ONE
    } else {
        sibling_ipd(number, now)
    };
    let response = with_lock!(responder, flow as f => {
        let (delta, departed, in_force) = if is_short(input) {
            let delta = f.aggregate_delta(&input.delta);
            let confirmed = (in_force >> 32) as u32;
            (delta, delta.position, abi::in_force(confirmed, delta.position))
        } else {
            (input.delta, departed, in_force)
        };
        // Departure times take effect without the agent.
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
            ..*input
        };
        let abi::ResponseInput { delta, in_force, marked_ns, flags, departed, sibling_ipd, .. } =
            opaque(input);
        let paced = flags & abi::EDT != 0;
        f.response.compare_with_siblings(sibling_ipd);
        f.check_timeout(policy, &delta, sibling_ipd, now);
        let (reaction, notify) = f.respond(policy, &delta, in_force, departed, link, now);
        let in_force_ns = if paced {
            f.after_paced_response(&reaction, now);
            now.max(f.decreased_ns)
        } else {
            0
        };
        let measured = paced && marked_ns != 0 && reaction.decreased != 0;
        Response {
            events: NOTIFY * notify as u32 + MEASURED * measured as u32,
            rate_bytes_per_s: f.rate_bytes_per_s,
            ipd: f.response.ipd,
            decreased: reaction.decreased,
            ce: delta.ce,
            decrease: f.decreases as u32,
            pending: f.pending,
            in_force_ns,
        }
    });
    update_siblings(number, is_short(input), &response, now);
    #[cfg(feature = "trace")]
    if response.decreased != 0 {
        aya_log_ebpf::debug!(
            ctx,
            "class {}: {} decreases, {} B/s",
            class_in(input),
            response.decreased,
            response.rate_bytes_per_s
        );
    }
    // Read back from the map, since the stack is full.
    let lost = opaque(&mut input.delta.lost_echoes);
    if lost != 0 {
        count(Count::EchoLost, lost as u64);
    }
    let marked_ns = opaque(&mut input.marked_ns);
    forget_answered_mark(&response, marked_ns, key, number);
    let changed = Changed {
        endpoint: number,
        class: class_in(input),
        in_force,
        short: is_short(input),
    };
    notify_agent(&changed, &response, key, endpoint.flags, marked_ns);
    0
}

/// Reacts to a notification for a flow, or advances its limiter ([`backward::BY_CLOCK`]). Returns the [`Refusal`] as
/// a number, or 0.
#[inline(always)]
pub fn on_notification(
    f: *mut LockedFlow,
    key: &mut Key,
    report: &Report,
    input: &mut abi::ResponseInput,
    endpoint: &Endpoint,
    flags: u32,
) -> u32 {
    let number = u32::from(key.endpoint);
    let by_clock = report.flags & backward::BY_CLOCK != 0;
    if !by_clock {
        let refusal = with_lock!(f, flow as f => match f.accept_notification(report) {
            Ok(()) => 0,
            Err(refusal) => refusal as u32,
        });
        if refusal != 0 {
            return refusal;
        }
    }
    // Flows shorter than the control loop's delay do not react.
    if endpoint.flags & abi::PACE == 0 && read_once!(f, flow.has_own_rate) == 0 {
        return 0;
    }
    // A flow that got no class is limited with the short flows.
    let short = read_once!(f, flow.shared) != 0;
    let mut responder = f;
    let own = class_of(f);
    let mut class = own;
    if short && let Some(all) = ECN_FLOW.get_ptr_mut(&Key::short(number as u16)) {
        responder = all;
        class = abi::short_class(number);
    }
    input.class = class;
    input.short = (class != own) as u32;
    let in_force = read_word(ECN_IN_FORCE.get(class_in(input)));
    let (policy, link) = (&endpoint.reaction, endpoint.link_bytes_per_s);
    let marked_ns = marked_at(key, number, flags);
    let now = now();
    if is_held(class_in(input), now) {
        write_once!(responder, flow.last_echo_ns, now);
        return 0;
    }
    let response = with_lock!(responder, flow as f => {
        let before = f.decreases as u32;
        let notify = f.react(policy, report, link, now);
        let decreased = (f.decreases as u32).wrapping_sub(before);
        Response {
            events: NOTIFY * notify as u32 + MEASURED * (marked_ns != 0 && decreased != 0) as u32,
            rate_bytes_per_s: f.rate_bytes_per_s,
            ipd: f.response.ipd,
            decreased,
            ce: decreased,
            decrease: f.decreases as u32,
            pending: 0,
            in_force_ns: if endpoint.flags & abi::EDT != 0 { now } else { 0 },
        }
    });
    forget_answered_mark(&response, marked_ns, key, number);
    let changed = Changed {
        endpoint: number,
        class: class_in(input),
        in_force,
        short: is_short(input),
    };
    notify_agent(&changed, &response, key, endpoint.flags, marked_ns);
    0
}

/// Whether the rate of a class's flow is not the response's to change: limits have lapsed or are about to, or a user has
/// pinned it. The flow does not send at the response's rate then, which marks would lower without end.
#[inline(always)]
fn is_held(class: u32, now: u64) -> bool {
    let held_from_ns = control().map_or(0, |control| control.held_from_ns);
    now > held_from_ns || read_word(ECN_LIMIT.get(class)) != 0
}

/// Forgets the flow's oldest mark if the response answers it.
#[inline(always)]
fn forget_answered_mark(response: &Response, marked_ns: u64, key: &mut Key, endpoint: u32) {
    if response.ce != 0 && marked_ns != 0 {
        // Ports store marks without an endpoint number.
        key.endpoint = 0;
        let _ = ECN_MARKED.remove(&*key);
        key.endpoint = endpoint as u16;
    }
}

/// Time of the flow's oldest unanswered mark; 0: unknown, or not traced.
#[inline(always)]
fn marked_at(key: &mut Key, endpoint: u32, flags: u32) -> u64 {
    let mut marked_ns = 0;
    if flags & abi::TRACE_LATENCY != 0 {
        // Ports store marks without an endpoint number.
        key.endpoint = 0;
        // SAFETY: copied immediately.
        if let Some(at) = unsafe { ECN_MARKED.get(&*key) } {
            marked_ns = *at;
        }
        key.endpoint = endpoint as u16;
    }
    marked_ns
}

/// The flow, or the aggregate of short flows, whose rate has changed.
struct Changed {
    endpoint: u32,
    /// Class; 0: none.
    class: u32,
    /// The class's entry in [`abi::name::IN_FORCE`].
    in_force: u64,
    short: bool,
}

/// Stores the initial rate of new flows.
#[inline(always)]
fn update_siblings(number: u32, short: bool, response: &Response, now: u64) {
    let Some(siblings) = ECN_SIBLINGS.get_ptr_mut(number) else {
        return;
    };
    // Concurrent updates may mix: a new flow then gets the rate of one update with the time of the other, nanoseconds
    // apart.
    if short {
        write_once!(siblings, short_ipd, response.ipd);
    } else if response.decreased != 0 {
        // SAFETY: a live element; see above.
        let mean = unsafe { *siblings }.mean_ipd(response.ipd, now);
        write_once!(siblings, ipd, mean);
        write_once!(siblings, at_ns, now);
    }
}

/// Notifies the agent if it must act: with HTB it enforces each new rate, otherwise it only creates the class.
#[inline(always)]
fn notify_agent(r: &Changed, response: &Response, key: &mut Key, flags: u32, marked_ns: u64) {
    let due = if flags & (abi::EDT | abi::PACE) == 0 {
        response.events & NOTIFY != 0
    } else {
        response.events & MEASURED != 0 || response.events & NOTIFY != 0 && r.in_force == 0
    };
    if due {
        let mut class = r.class;
        if class == 0 {
            // The flow again, so that the verifier need not tell it from the aggregate of short flows until here.
            let Some(f) = ECN_FLOW.get_ptr_mut(&*key) else {
                return;
            };
            class = allocate_class(f);
            if class == 0 {
                return;
            }
        }
        if r.short {
            *key = Key::short(r.endpoint as u16);
        }
        let event = abi::RateEvent {
            endpoint: r.endpoint,
            class,
            rate_bytes_per_s: response.rate_bytes_per_s,
            marked_ns: if response.decreased != 0 {
                marked_ns
            } else {
                0
            },
            decrease: response.decrease,
            pending: response.pending,
            in_force_ns: response.in_force_ns,
            key: *key,
        };
        notify(&event, response.decreased != 0 || r.in_force == 0);
    }
}
