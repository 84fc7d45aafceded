//! TCP at an endpoint: which connections are controlled, and the three flags of ACKs that tell of marks.
//!
//! * `say`, egress: the receiver's running count of marks goes into AE, CWR, ECE of what its TCP sends.
//! * `ack`, ingress, and `ecn_tcp_ack`, where it goes on: the source reads it, answers, and takes it off
//!   again, before TCP sees it.
//! * `handshake`, both: a connection that negotiates ECN is left alone, or kept from it (`tcp = "control"`).
//!
//! A connection whose handshake was not seen shows itself: by what its TCP sends (data that is not
//! ECN-capable, or flags of its own), and at the receiver by what it answers to one mark.

use aya_ebpf::{helpers::bpf_l4_csum_replace, macros::classifier, programs::TcContext};
use ecn_core::{
    abi::{self, Count, Endpoint, LockedFlow},
    ace::{self, Ack},
    echo::{self, FeedbackDelta, Receiver, Refusal},
    flow::{self, Flow, Key},
    packet::{Ip, Tcp},
};

use crate::{
    endpoint::receiver_entry,
    maps::{ECN_ENDPOINT, ECN_FLOW, ECN_RECEIVER, ECN_TAIL, ECN_WORK, control, count},
    quota,
    response::{self, Feedback, atomic_add, class_of, now, read_once, reverse, with_lock},
    skb::{NEXT, Packet, field, load, raw, store},
};

/// Offset of the flags and the byte before them in a TCP header.
const FLAGS: u32 = 12;
/// RFC 9293 section 3.1.
const PSH: u8 = 0x08;
/// Offset of the checksum.
const CHECKSUM: u32 = 16;

impl Feedback for Ack {
    #[inline(always)]
    fn apply(
        self,
        flow: &mut Flow,
        sent: u32,
        departed: u32,
        _now_ns: u64,
    ) -> Result<FeedbackDelta, Refusal> {
        Ok(flow.ace.on_ack(self, sent, departed))
    }
}

/// Payload of a segment or super-packet, and of each segment in it.
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

/// Writes the flags of the header at `at`.
#[inline(always)]
fn write_ace(ctx: &TcContext, at: u32, ace: u8) {
    rewrite_flags(ctx, at, |old| ace::with_ace(old, ace));
}

/// Lets TCP acknowledge a marked segment as soon as it is read, not with the next one: sets PSH. Kernels before
/// 6.6 heed it with short segments only.
#[inline(always)]
pub fn set_psh(p: &Packet, ip: &Ip) {
    rewrite_flags(&p.ctx, ip.upper(), |[offset, flags]| [offset, flags | PSH]);
}

/// Changes the flags of the header at `at`. The checksum follows; where it holds the pseudo-header only, it
/// has none of them.
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

/// A SYN or SYN-ACK. A SYN that asks for ECN can be kept from it; a SYN-ACK says how it was answered: one that this
/// machine sends, or that answers a SYN that it sent. `arriving`: at ingress.
#[inline(always)]
pub fn handshake(p: &Packet, ip: &Ip, t: &Tcp, key: &mut Key, endpoint: &Endpoint, arriving: bool) {
    if !t.ack {
        if t.ecn && endpoint.flags & abi::CONTROL_TCP != 0 {
            write_ace(&p.ctx, ip.upper(), 0);
        }
        if arriving {
            return;
        }
    }
    let (negotiated, now) = (t.ecn, now());
    // What the connection is stands with the flow that is received here.
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
    if t.ack {
        let next = t.ack_number;
        with_lock!(r, receiver as r => r.begin(negotiated, next, now));
        new_feedback(key);
    } else {
        let next = t.sequence.wrapping_add(1);
        with_lock!(r, receiver as r => r.on_syn_sent(next, now));
    }
}

/// Says what was marked, in a segment towards the source. Returns what is known of the connection, as
/// flags of [`ecn_core::echo::Receiver`]; 0: no more than before. `f`: the flow of data, which remembers when there
/// is nothing to say.
#[inline(always)]
pub fn encode(
    p: &Packet,
    ip: &Ip,
    t: &Tcp,
    data: bool,
    f: Option<*mut LockedFlow>,
    key: &mut Key,
) -> u32 {
    let (tcp_set_ecn, ack) = (t.ecn, t.ack_number);
    let feedback_generation = match f {
        Some(f) => read_once!(f, flow.feedback_generation),
        None => 0,
    };
    if let Some(f) = f
        && !tcp_set_ecn
        && read_once!(f, flow.seen_generation) == feedback_generation
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
                // SAFETY: a place in the value. What is marked meanwhile is said with the next one.
                unsafe { core::ptr::write_volatile(&raw mut (*r).receiver.ace.ack, ack) };
            }
        }
    } else if let Some(r) = found
        && !nothing_new
    {
        // How long marks wait behind data.
        let now = if data { now() } else { 0 };
        (ace, known) = with_lock!(r, receiver as r => r.encode(data, ack, tcp_set_ecn, now));
        if tcp_set_ecn && known & echo::NEGOTIATED == 0 {
            new_feedback(key);
        }
    }
    if fin != 0 && fin == ack {
        // Nothing more comes, and what came has been said.
        quota::remove_receiver(key);
    }
    reverse(key);
    if let Some(f) = f
        && nothing_new
    {
        // SAFETY: a place in the value.
        unsafe {
            core::ptr::write_volatile(&raw mut (*f).flow.seen_generation, feedback_generation)
        };
    }
    if ace != 0 {
        write_ace(&p.ctx, ip.upper(), ace);
    }
    known
}

/// The source's FIN came: the entry goes when that is acknowledged.
#[inline(always)]
pub fn on_fin(p: &Packet, ip: &Ip, t: &Tcp, key: &Key) {
    let (len, _) = lengths(p, ip, t);
    if let Some(r) = ECN_RECEIVER.get_ptr_mut(key) {
        let end = t.sequence.wrapping_add(len).wrapping_add(1);
        // SAFETY: a place in the value.
        unsafe { core::ptr::write_volatile(&raw mut (*r).receiver.ace.fin, end) };
    }
}

/// Lets the flow that goes against a received one look at what was received: after that has changed.
#[inline(always)]
pub fn new_feedback(key: &mut Key) {
    reverse(key);
    if let Some(f) = ECN_FLOW.get_ptr_mut(&*key) {
        // SAFETY: a place in the value.
        atomic_add(unsafe { &raw mut (*f).flow.feedback_generation }, 1);
    }
    reverse(key);
}

/// Hands a segment from the receiver to [`ecn_tcp_ack`], if there is a flow that it could be about. Only
/// returns if not.
#[inline(always)]
pub fn handle_ack(p: &Packet, ip: &Ip, t: &Tcp, data: bool, key: &mut Key) {
    let Some(a) = ECN_WORK.get_ptr_mut(0) else {
        return;
    };
    reverse(key);
    // SAFETY: this CPU's own, and nothing runs here before the other program has read it.
    unsafe {
        (*a).key = *key;
        (*a).ack = Ack {
            sequence: t.sequence,
            ack: t.ack_number,
            ace: t.ace.into(),
            payload: data.into(),
        };
        (*a).at = ip.upper();
        ECN_TAIL.tail_call(&p.ctx, abi::TAIL_ACK);
    }
}

/// The response of the flow's source; verified by itself, since it is long.
#[classifier]
pub fn ecn_tcp_ack(ctx: TcContext) -> i32 {
    let _ = try_tcp_ack(&ctx);
    NEXT
}

#[inline(always)]
fn try_tcp_ack(ctx: &TcContext) -> Option<()> {
    let flags = control()?.flags;
    let endpoint = ECN_ENDPOINT.get(field!(ctx, cb)[0])?;
    let work = ECN_WORK.get_ptr_mut(0)?;
    // SAFETY: as in `ack`.
    let work = unsafe { &mut *work };
    let (key, a, at) = (&mut work.key, work.ack, work.at);
    let f = ECN_FLOW.get_ptr_mut(&*key)?;
    let of_flow = *key;
    if read_once!(f, flow.flags) & flow::PLAIN != 0 {
        response::on_feedback(ctx, f, key, &mut work.input, endpoint, flags, a);
        if a.ace != 0 && a.payload == 0 {
            write_ace(ctx, at, 0);
        }
    }
    // Behind the last byte is the FIN. With a class, the agent takes both away.
    if read_once!(f, flow.ended) != 0
        && ace::is_later(a.ack, read_once!(f, flow.ace.end))
        && class_of(f) == 0
        && read_once!(f, flow.socket) == 0
    {
        quota::remove_flow(&of_flow);
    }
    Some(())
}
