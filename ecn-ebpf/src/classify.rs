//! Classification of packets into flows.

use aya_ebpf::{bindings::__sk_buff, programs::TcContext};
use ecn_core::{
    abi,
    fixed::is_below,
    flow::{Key, KeyMask},
    packet::{self, Ip},
};

use crate::{
    maps::ECN_HOST,
    skb::{Packet, field, load},
};

/// `skb->mark` of a clone on its way from the ingress to the egress hook of one device.
pub const ECHO_MARK: u32 = 0xec0e_ec0e;

pub struct Classified {
    pub ip: Ip,
    tcp: packet::Tcp,
    /// Subject to rate limits and marks: any packet except TCP segments without payload.
    pub data: bool,
    /// Length of all headers, bytes.
    pub headers: u32,
}

impl Classified {
    /// See [`packet::Transport::tcp`].
    #[inline(always)]
    pub fn tcp(&self) -> Option<&packet::Tcp> {
        self.tcp.if_present()
    }
}

/// Parses a packet and fills in its flow key; for fragments, only addresses and protocol. `None`: control frames,
/// multicast, and packets that cannot be parsed, all of which pass unchanged.
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
        data: is_below(t.header_len.into(), ip.upper_len().into())
            | is_below(t.tcp.header_len.into(), 1)
            != 0,
        headers: ip.upper() + t.header_len,
    })
}

/// Records a frame's source address as a host behind the endpoint's port, if the endpoint has a `shaper`. Not for
/// clones, whose source address is that of the packet to be echoed. Not inlined, like everything that only endpoints
/// at ports do: the verifier discards a function's registers when it returns, so that the paths through it merge
/// instead of each being verified to the end of the program.
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

/// Replaces a flow's key by that of its limiter, if flows share limiters. Not inlined, as [`learn_host`].
#[inline(never)]
pub fn merge(key: &mut Key, mask: &KeyMask) -> u32 {
    if mask.merges() {
        key.merge(mask);
    }
    0
}

/// `skb->pkt_type` of a frame for another host, `PACKET_OTHERHOST` of linux/if_packet.h.
const OTHER_HOST: u32 = 3;

/// Whether a frame is addressed to another host, 1 or 0. Bridges flood frames for unknown destinations. The hosts
/// behind a port are those that have sent through it ([`learn_host`]).
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
