//! Which flow a packet belongs to.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use ecn_core::{
    abi,
    flow::Key,
    packet::{self, Ip},
};

use crate::{
    maps::ECN_HOST,
    skb::{Packet, field, load},
};

/// `skb->mark` of a clone on its way from the ingress to the egress hook of one device.
pub const ECHO_MARK: u32 = 0xec0e_ec0e;

/// A packet of a flow.
pub struct Classified {
    pub ip: Ip,
    /// TCP's flags, for TCP only.
    tcp: Option<packet::Tcp>,
    /// It counts for rate limits and marks: anything but TCP's control segments without payload.
    pub data: bool,
    /// Bytes of all headers.
    pub headers: u32,
}

impl Classified {
    /// TCP whose header may be changed: an authentication header would no longer match.
    #[inline(always)]
    pub fn tcp(&self) -> Option<&packet::Tcp> {
        match &self.tcp {
            Some(t) if !self.ip.authenticated => Some(t),
            _ => None,
        }
    }
}

/// Writes the flow's key; of fragments only addresses and protocol. `None`: control frames, multicast, and packets that
/// cannot be parsed, which pass untouched.
#[inline(always)]
pub fn classify(p: &Packet, key: &mut Key) -> Option<Classified> {
    let ip = p.parse()?;
    if !ip.unicast {
        return None;
    }
    let t = p.transport(&ip)?;
    if !p.addresses(&ip, key) {
        return None;
    }
    key.protocol = ip.protocol;
    key.endpoint = endpoint_number(&p.ctx) as u16;
    key.src_port = t.src_port;
    key.dst_port = t.dst_port;
    Some(Classified {
        ip,
        tcp: t.tcp,
        data: t.tcp.is_none() || ip.upper_len() > t.header_len,
        headers: ip.upper() + t.header_len,
    })
}

/// Remembers that a frame's sender is behind the endpoint's port, if the endpoint has a `shaper`; not that of a clone, which
/// is the sender of what is answered. Not inlined, as all that a port's endpoint does beyond others: what differs between the
/// paths is forgotten where they return, or the verifier would follow each of them to the end.
#[inline(never)]
pub fn learn_host(context: *mut __sk_buff, shaper: u32) -> u32 {
    let ctx = TcContext::new(context);
    if shaper == 0 || field!(&ctx, mark) == ECHO_MARK {
        return 0;
    }
    if let Some(mac) = load(&ctx, 6) {
        let key = abi::host(endpoint_number(&ctx), mac);
        if ECN_HOST.get_ptr(&key).is_none() {
            let _ = ECN_HOST.insert(&key, &1, 0);
        }
    }
    0
}

/// `skb->pkt_type` of a frame for another host, `PACKET_OTHERHOST` of linux/if_packet.h.
const OTHER_HOST: u32 = 3;

/// Whether a frame is for another host, 1 or 0. A bridge floods frames whose receivers it does not know; where those at a
/// port are is known by what they have sent.
#[inline(never)]
pub fn is_for_other(context: *mut __sk_buff, shaper: u32) -> u32 {
    let ctx = TcContext::new(context);
    if shaper == 0 {
        return (field!(&ctx, pkt_type) == OTHER_HOST).into();
    }
    let mac = load(&ctx, 0);
    let host = |mac| abi::host(endpoint_number(&ctx), mac);
    mac.is_none_or(|mac| ECN_HOST.get_ptr(&host(mac)).is_none())
        .into()
}

/// The endpoint's number, as stored by [`tail_call`].
#[inline(always)]
pub fn endpoint_number(ctx: &TcContext) -> u32 {
    field!(ctx, cb)[0]
}
