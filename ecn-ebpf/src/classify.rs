//! Which flow a packet belongs to.

use aya_ebpf::programs::TcContext;
use ecn_core::{
    flow::Key,
    packet::{self, Ip},
};

use crate::skb::{Packet, field};

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

/// The endpoint's number, as stored by [`tail_call`].
#[inline(always)]
pub fn endpoint_number(ctx: &TcContext) -> u32 {
    field!(ctx, cb)[0]
}
