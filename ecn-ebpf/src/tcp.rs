//! TCP at an endpoint: which connections are controlled, and the CE count in the three ECN flags of ACKs.
//!
//! * [`encode`], egress: the receiver's CE count is written to AE, CWR, ECE of the segments that its TCP sends.
//! * [`handle_ack`], ingress, and its tail [`ecn_tcp_ack`]: the source reads the count, responds, and clears the flags
//!   before TCP sees them.
//! * [`handshake`], both: a connection that negotiates ECN is left to its own congestion control, or prevented from
//!   negotiating it (`tcp = "control"`).
//!
//! A connection whose handshake was not seen is classified by what its TCP sends (data that is not ECN-capable, or ECN
//! flags), and at the receiver by its response to one mark.

use aya_ebpf::{helpers::bpf_l4_csum_replace, macros::classifier, programs::TcContext};
use ecn_core::{
    abi::{self, Count, Endpoint, LockedFlow},
    ace::{self, Ack},
    echo::{self, FeedbackDelta, Receiver, Refusal},
    fixed::opaque,
    flow::{self, Flow, Key},
    packet::{Ip, Tcp},
};

use crate::{
    backward,
    clock::now,
    maps::{ECN_ENDPOINT, ECN_FLOW, ECN_RECEIVER, ECN_TAIL, ECN_WORK, control, count},
    response::{self, Feedback, reverse},
    skb::{NEXT, Packet, field, load, pass, raw, store},
    tables::{receiver_entry, remove_flow, remove_receiver},
    value::{atomic_add, class_of, read_once, with_lock, write_once},
};

/// Offset of the data offset and flags in a TCP header.
const FLAGS: u32 = 12;
/// The PSH flag, RFC 9293 section 3.1.
const PSH: u8 = 0x08;
/// Offset of the checksum.
const CHECKSUM: u32 = 16;

/// Feedback from an ACK, or from the report that [`backward`] has stored instead.
#[derive(Clone, Copy)]
struct Report {
    work: *const abi::Scratch,
    /// [`abi::ECHO`] of the endpoint.
    echoes: u32,
}

impl Feedback for Report {
    #[inline(always)]
    fn apply(
        self,
        flow: &mut Flow,
        sent: u32,
        departed: u32,
        _now_ns: u64,
    ) -> Result<FeedbackDelta, Refusal> {
        // SAFETY: a per-CPU entry, and nothing else runs on this CPU until the program ends.
        unsafe {
            if stored_by(self.work) != 0 {
                let report = &(*self.work).backward;
                return flow.on_report(report, departed, self.echoes != 0);
            }
            Ok(flow.ace.on_ack((*self.work).ack, sent, departed))
        }
    }
}

/// [`backward::Report::flags`] of the stored report; 0: an ACK. Read anew each time: the compiler would otherwise
/// duplicate the response for both.
///
/// # Safety
///
/// `work` is a per-CPU entry.
#[inline(always)]
unsafe fn stored_by(work: *const abi::Scratch) -> u32 {
    // SAFETY: as the caller says.
    unsafe { core::ptr::read_volatile(&raw const (*work).backward.flags) }
}

/// Payload of a packet and of each of its segments, bytes.
#[inline(always)]
pub fn lengths(p: &Packet, ip: &Ip, t: &Tcp) -> (u32, u32) {
    let bytes = ip.upper_len().saturating_sub(t.header_len);
    let segment = field!(&p.ctx, gso_size);
    if segment == 0 || segment > bytes {
        (bytes, bytes)
    } else {
        (bytes, segment)
    }
}

/// Writes ACE into the header at `at`.
#[inline(always)]
fn write_ace(ctx: &TcContext, at: u32, ace: u8) {
    rewrite_flags(ctx, at, |old| ace::with_ace(old, ace));
}

/// Sets PSH, so that TCP acknowledges a marked segment as soon as it is read. Kernels before 6.6 do so for short segments
/// only.
#[inline(always)]
pub fn set_psh(p: &Packet, ip: &Ip) {
    rewrite_flags(&p.ctx, ip.upper(), |[offset, flags]| [offset, flags | PSH]);
}

/// Changes the flags of the header at `at`, and updates the checksum unless it covers only the pseudo-header.
#[inline(always)]
fn rewrite_flags(ctx: &TcContext, at: u32, change: impl FnOnce([u8; 2]) -> [u8; 2]) {
    let written = load::<2>(ctx, at + FLAGS).is_some_and(|old| {
        let new = change(old);
        if new == old {
            return true;
        }
        let (from, to) = (u16::from_ne_bytes(old), u16::from_ne_bytes(new));
        // SAFETY: offsets within the header that was read.
        let ret = unsafe {
            bpf_l4_csum_replace(raw(ctx).cast(), at + CHECKSUM, from.into(), to.into(), 2)
        };
        ret == 0 && store(ctx, at + FLAGS, &new, 0)
    });
    if !written {
        count(Count::AceFailed, 1);
    }
}

/// Processes a SYN or SYN-ACK: clears the ECN request of a SYN if so configured, and records from a SYN-ACK whether
/// ECN was negotiated, if this machine sends it or has sent the SYN. `arriving`: at ingress.
#[inline(always)]
pub fn handshake(p: &Packet, ip: &Ip, t: &Tcp, key: &mut Key, endpoint: &Endpoint, arriving: bool) {
    if !t.ack() {
        if t.ecn() && endpoint.flags & abi::CONTROL_TCP != 0 {
            write_ace(&p.ctx, ip.upper(), 0);
        }
        if arriving {
            return;
        }
    }
    let (negotiated, now) = (t.ecn(), now());
    // The result is stored in the entry of the flow that this machine receives.
    if arriving {
        let (next, ack) = (t.sequence.wrapping_add(1), t.ack_number);
        let Some(r) = ECN_RECEIVER.get_ptr_mut(&*key) else {
            return;
        };
        let answers = with_lock!(r, receiver as r => {
            let answers = r.acknowledges_syn(ack);
            if answers {
                r.begin(negotiated, next, now);
            }
            answers
        });
        if answers {
            new_feedback(key);
        }
        return;
    }
    reverse(key);
    let Some(r) = receiver_entry(key) else {
        count(Count::ReceiversFull, 1);
        return;
    };
    if t.ack() {
        let next = t.ack_number;
        with_lock!(r, receiver as r => r.begin(negotiated, next, now));
        new_feedback(key);
    } else {
        let next = t.sequence.wrapping_add(1);
        with_lock!(r, receiver as r => r.on_syn_sent(next, now));
    }
}

/// Encodes the CE count in a segment towards the source. Returns the connection's flags of
/// [`ecn_core::echo::Receiver`]; 0: unchanged. `f`: the flow of the segment itself, which caches that there is
/// nothing to encode.
#[inline(always)]
pub fn encode(
    p: &Packet,
    ip: &Ip,
    t: &Tcp,
    data: bool,
    f: Option<*mut LockedFlow>,
    key: &mut Key,
) -> u32 {
    let (tcp_set_ecn, ack) = (t.ecn(), t.ack_number);
    let generation = match f {
        Some(f) => read_once!(f, flow.feedback_generation),
        None => 0,
    };
    if let Some(f) = f
        && !tcp_set_ecn
        && read_once!(f, flow.seen_generation) == generation
    {
        return 0;
    }
    reverse(key);
    let found = ECN_RECEIVER.get_ptr_mut(&*key);
    let (mut known, pending, encoded, fin) = match found {
        Some(r) => (
            read_once!(r, receiver.flags),
            read_once!(r, receiver.ace.pending),
            read_once!(r, receiver.ace.encoded),
            read_once!(r, receiver.ace.fin),
        ),
        None => (0, 0, 0, 0),
    };
    let nothing_new = data && !tcp_set_ecn && Receiver::is_fast_data(known, pending);
    let ack_only = !data && !tcp_set_ecn && Receiver::is_fast_ack(known, pending);
    let mut ace = 0;
    if let Some(r) = found
        && ack_only
    {
        if known & echo::PLAIN != 0 {
            ace = encoded as u8 & 7;
            if ace::is_later(ack, read_once!(r, receiver.ace.ack)) {
                // CE packets counted meanwhile are encoded in the next ACK.
                write_once!(r, receiver.ace.ack, ack);
            }
        }
    } else if let Some(r) = found
        && !nothing_new
    {
        // A segment with data cannot carry the count: record since when.
        let now = if data { now() } else { 0 };
        (ace, known) = with_lock!(r, receiver as r => r.encode(data, ack, tcp_set_ecn, now));
        if tcp_set_ecn && known & echo::NEGOTIATED == 0 {
            new_feedback(key);
        }
    }
    if fin != 0 && fin == ack {
        // The connection is closed, and its marks are encoded.
        remove_receiver(key);
    }
    reverse(key);
    if let Some(f) = f
        && nothing_new
    {
        write_once!(f, flow.seen_generation, generation);
    }
    if ace != 0 {
        write_ace(&p.ctx, ip.upper(), ace);
    }
    known
}

/// The source has sent a FIN: the entry is removed when the FIN is acknowledged.
#[inline(always)]
pub fn on_fin(p: &Packet, ip: &Ip, t: &Tcp, key: &Key) {
    let (len, _) = lengths(p, ip, t);
    if let Some(r) = ECN_RECEIVER.get_ptr_mut(key) {
        let end = t.sequence.wrapping_add(len).wrapping_add(1);
        write_once!(r, receiver.ace.fin, end);
    }
}

/// Makes the flow in the other direction look up this receiver again, after it has changed.
#[inline(always)]
pub fn new_feedback(key: &mut Key) {
    reverse(key);
    if let Some(f) = ECN_FLOW.get_ptr_mut(&*key) {
        // SAFETY: a word of a map value.
        atomic_add(unsafe { &raw mut (*f).flow.feedback_generation }, 1);
    }
    reverse(key);
}

/// Tail-calls [`ecn_tcp_ack`] for a segment from the receiver. Returns only if that failed.
#[inline(always)]
pub fn handle_ack(p: &Packet, ip: &Ip, t: &Tcp, data: bool, key: &mut Key) {
    let Some(a) = ECN_WORK.get_ptr_mut(0) else {
        return;
    };
    reverse(key);
    // SAFETY: a per-CPU entry; nothing else runs on this CPU before the next program has read it.
    unsafe {
        (*a).key = *key;
        (*a).ack = Ack {
            sequence: t.sequence,
            ack: t.ack_number,
            ace: t.ace().into(),
            payload: data.into(),
        };
        (*a).at = ip.upper();
        (*a).backward.flags = 0;
        ECN_TAIL.tail_call(&p.ctx, abi::TAIL_ACK);
    }
}

/// The response to a TCP ACK, or to the report that [`backward`] has stored instead. A separate program, since it is
/// complex to verify.
#[classifier]
pub fn ecn_tcp_ack(ctx: TcContext) -> i32 {
    match try_tcp_ack(&ctx) {
        Some(verdict) if verdict != NEXT => verdict,
        _ => pass(&ctx),
    }
}

#[inline(always)]
fn try_tcp_ack(ctx: &TcContext) -> Option<i32> {
    let flags = control()?.flags;
    let endpoint = ECN_ENDPOINT.get(field!(ctx, cb)[0])?;
    let work = ECN_WORK.get_ptr_mut(0)?;
    let entry: *const abi::Scratch = work;
    // SAFETY: a per-CPU entry.
    let by = || unsafe { stored_by(entry) };
    let report = Report {
        work,
        echoes: endpoint.flags & abi::ECHO,
    };
    // SAFETY: as in `handle_ack`.
    let work = unsafe { &mut *work };
    // Kept, since the response may replace `key` by the short flows' key.
    work.flow = work.key;
    let key = &mut work.key;
    let Some(f) = ECN_FLOW.get_ptr_mut(&*key) else {
        return (by() != 0).then(|| backward::verdict(by(), backward::UNKNOWN));
    };
    // An acknowledgement beyond the last byte covers the FIN.
    work.complete = (read_once!(f, flow.ended) != 0
        && ace::is_later(work.ack.ack, read_once!(f, flow.ace.end))
        && read_once!(f, flow.socket) == 0) as u32;
    if by() != 0 || read_once!(f, flow.flags) & flow::PLAIN != 0 {
        let input = &mut work.input;
        let refusal = response::on_feedback(ctx, f, key, input, endpoint, flags, report);
        if by() != 0 {
            return Some(backward::verdict(by(), refusal));
        }
        if work.ack.ace != 0 && work.ack.payload == 0 {
            write_ace(ctx, work.at, 0);
        }
    }
    // If there is a class, the agent removes entry and class.
    if opaque(&mut work.complete) != 0
        && let Some(f) = ECN_FLOW.get_ptr_mut(&work.flow)
        && class_of(f) == 0
    {
        remove_flow(&work.flow);
    }
    None
}
