//! Echoes as packets: written from a clone of a data packet, and read.

use aya_ebpf::helpers::bpf_skb_change_tail;
use ecn_core::{
    abi::{Count, Endpoint},
    echo::{self, Echo, Headroom, Receiver},
    flow::Key,
    packet::{self, ETHERNET, IPV6},
};

use crate::{
    classify::Classified,
    clock::coarse_now,
    maps::{ECN_RECEIVER, count},
    response,
    skb::{Packet, SHOT, field, load, raw, store},
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
    let macs = load::<ETHERNET>(&p.ctx, 0)?;
    let mut swapped = [0u8; 12];
    swapped[..6].copy_from_slice(&macs[6..12]);
    swapped[6..].copy_from_slice(&macs[..6]);
    let l3 = c.ip.l3;
    let header = if c.ip.version == 4 { 20 } else { IPV6 as u32 };
    // SAFETY: takes the context; packet pointers are not held.
    let ret = unsafe { bpf_skb_change_tail(raw(&p.ctx).cast(), l3 + header + len as u32, 0) };
    // The kernel cannot shorten packets from a tunnel of a local device: then the rest follows as padding. Of a
    // super-packet every segment would have a part of it.
    let padded = ret != 0 && field!(&p.ctx, gso_size) != 0;
    if padded || !store(&p.ctx, 0, &swapped, 0) {
        return None;
    }
    let at = l3 + header;
    let written = write_ip(p, c, key, policy, ecn, len)
        && store(&p.ctx, at, &e.to_bytes(), 0)
        && (!e.signed || store(&p.ctx, at + echo::LEN as u32, &tag.to_be_bytes(), 0));
    written.then_some(())
}

/// Writes the IP header of an echo of `len` bytes.
#[inline(always)]
fn write_ip(
    p: &Packet,
    c: &Classified,
    key: &Key,
    policy: &echo::Policy,
    ecn: u8,
    len: usize,
) -> bool {
    if c.ip.version == 4 {
        let mut b = [0u8; 20];
        // RFC 791: version and length; ECN field; total length; do not fragment; 64 hops.
        b[0] = 0x45;
        b[1] = ecn;
        b[3] = 20 + len as u8;
        b[6] = 0x40;
        b[8] = 64;
        b[9] = policy.protocol as u8;
        b[12..16].copy_from_slice(&key.dst[12..]);
        b[16..20].copy_from_slice(&key.src[12..]);
        let sum = checksum(&b);
        b[10..12].copy_from_slice(&sum.to_be_bytes());
        store(&p.ctx, c.ip.l3, &b, 0)
    } else {
        let mut b = [0u8; IPV6];
        // RFC 8200: version; ECN field; payload length; next header; 64 hops.
        b[0] = 0x60;
        b[1] = ecn << 4;
        b[5] = len as u8;
        b[6] = policy.protocol as u8;
        b[7] = 64;
        b[8..24].copy_from_slice(&key.dst);
        b[24..40].copy_from_slice(&key.src);
        store(&p.ctx, c.ip.l3, &b, 0)
    }
}

/// IPv4 header checksum, RFC 791 section 3.1.
#[inline(always)]
fn checksum(b: &[u8; 20]) -> u16 {
    let mut sum = 0u32;
    let mut i = 0;
    while i < 20 {
        sum += (b[i] as u32) << 8 | b[i + 1] as u32;
        i += 2;
    }
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}

/// Processes an echo. One that cannot be parsed passes: another protocol may use the same number.
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
        count(Count::EchoMalformed, 1);
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
