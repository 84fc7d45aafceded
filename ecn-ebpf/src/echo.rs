//! Echo packets: built from clones of data packets, and parsed.

use ecn_core::{
    abi::{self, Count, Endpoint},
    echo::{self, Echo, Headroom, Receiver},
    flow::Key,
    packet,
};

use crate::{
    classify::Classified,
    clock::coarse_now,
    maps::{ECN_RECEIVER, count},
    reply::Reply,
    response,
    skb::{Packet, SHOT, field, load, raw, store, tail_call},
    value::with_lock,
};

/// Turns a clone of a data packet into the echo for its flow. `None`: it could not be written.
#[inline(always)]
pub fn write_echo(p: &Packet, c: &Classified, key: &Key, policy: &echo::Policy) -> Option<()> {
    // SAFETY: tc programs may write this field.
    unsafe { (*raw(&p.ctx)).mark = 0 };
    let r = ECN_RECEIVER.get_ptr_mut(key)?;
    let (protocol, src_port, dst_port) = (key.protocol, key.src_port, key.dst_port);
    let (mut e, marked_ns) =
        with_lock!(r, receiver as r => (r.echo(protocol, src_port, dst_port), r.last_ce_ns));
    if let Some(t) = c.tcp() {
        e.packets = t.sequence;
    }
    let mut len = echo::LEN;
    let mut tag = 0;
    if policy.signs() {
        e.signed = true;
        len += echo::TAG_LEN;
        tag = e.tag(policy.keys[0], &key.dst, &key.src);
    }
    let ecn = if Receiver::requests_headroom(marked_ns, coarse_now()) {
        packet::ECT_0
    } else {
        packet::NOT_ECT
    };
    let reply = Reply {
        protocol: policy.protocol as u8,
        ttl: 64,
        ecn,
        len: len as u8,
    };
    let at = reply.reverse(p, &c.ip, key)?;
    let written = store(&p.ctx, at, &e.to_bytes(), 0)
        && (!e.signed || store(&p.ctx, at + echo::LEN as u32, &tag.to_be_bytes(), 0));
    written.then_some(())
}

/// Processes an echo. A packet that is not an echo passes: another protocol may use the same number.
#[inline(always)]
pub fn read_echo(
    p: &Packet,
    c: &Classified,
    key: &mut Key,
    endpoint: &Endpoint,
    flags: u32,
) -> Option<i32> {
    let whole = !c.ip.fragment && c.ip.upper_len() >= echo::LEN as u32;
    let bytes = if whole {
        load::<{ echo::LEN }>(&p.ctx, c.ip.upper())
    } else {
        None
    };
    let parsed = bytes.and_then(|b| Echo::parse(&b));
    let Some(mut e) = parsed else {
        // Perhaps a backward message of a port.
        tail_call(&p.ctx, abi::TAIL_FLOW_MESSAGE, field!(&p.ctx, cb)[0]);
        return None;
    };
    let mut tag = 0;
    if e.signed {
        let signed = c.ip.upper_len() >= (echo::LEN + echo::TAG_LEN) as u32;
        let bytes =
            signed.then(|| load::<{ echo::TAG_LEN }>(&p.ctx, c.ip.upper() + echo::LEN as u32));
        let Some(bytes) = bytes.flatten() else {
            count(Count::EchoMalformed, 1);
            return None;
        };
        tag = u64::from_be_bytes(bytes);
    }
    if !endpoint.echo.accepts(&e, tag, &key.src, &key.dst) {
        count(Count::EchoForged, 1);
        return Some(SHOT);
    }
    e.headroom = Headroom::of(c.ip.ecn());
    match response::find_flow(&e, key) {
        Some(f) => response::on_echo(&p.ctx, &e, f, key, endpoint, flags),
        None => count(Count::EchoUnknown, 1),
    }
    Some(SHOT)
}
