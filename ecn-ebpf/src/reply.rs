//! Replies built from the packet that they answer and sent back to its source.

use aya_ebpf::helpers::bpf_skb_change_tail;
use ecn_core::{
    flow::Key,
    packet::{ETHERNET, IPV6, Ip},
};

use crate::skb::{Packet, field, load, raw, store};

/// Headers of a reply.
pub struct Reply {
    /// IP protocol.
    pub protocol: u8,
    /// TTL or hop limit.
    pub ttl: u8,
    /// ECN field.
    pub ecn: u8,
    /// Length of the IP payload, bytes.
    pub len: u8,
}

impl Reply {
    /// Truncates a packet of the flow `key` to its headers and reverses these. Returns the offset at which to write
    /// the payload of the reply.
    #[inline(always)]
    pub fn reverse(&self, p: &Packet, ip: &Ip, key: &Key) -> Option<u32> {
        let macs = load::<ETHERNET>(&p.ctx, 0)?;
        let mut swapped = [0u8; 12];
        swapped[..6].copy_from_slice(&macs[6..12]);
        swapped[6..].copy_from_slice(&macs[..6]);
        let l3 = ip.l3;
        let version4 = ip.version == 4;
        let header = if version4 { 20 } else { IPV6 as u32 };
        let len = l3 + header + self.len as u32;
        // SAFETY: takes the context; packet pointers are not held.
        let ret = unsafe { bpf_skb_change_tail(raw(&p.ctx).cast(), len, 0) };
        // The kernel does not truncate packets that come through a tunnel from a device of this machine. The rest
        // then stays behind the reply as padding; of a super-packet, every segment would contain a piece of it.
        let whole = ret != 0 && field!(&p.ctx, gso_size) != 0;
        if whole || !store(&p.ctx, 0, &swapped, 0) {
            return None;
        }
        let written = if version4 {
            let mut b = [0u8; 20];
            // RFC 791: version and length; ECN field; total length; do not fragment; time to live.
            b[0] = 0x45;
            b[1] = self.ecn;
            b[3] = 20 + self.len;
            b[6] = 0x40;
            b[8] = self.ttl;
            b[9] = self.protocol;
            b[12..16].copy_from_slice(&key.dst[12..]);
            b[16..20].copy_from_slice(&key.src[12..]);
            let sum = checksum(&b);
            b[10..12].copy_from_slice(&sum.to_be_bytes());
            store(&p.ctx, l3, &b, 0)
        } else {
            let mut b = [0u8; IPV6];
            // RFC 8200: version; ECN field; payload length; next header; hop limit.
            b[0] = 0x60;
            b[1] = self.ecn << 4;
            b[5] = self.len;
            b[6] = self.protocol;
            b[7] = self.ttl;
            b[8..24].copy_from_slice(&key.dst);
            b[24..40].copy_from_slice(&key.src);
            store(&p.ctx, l3, &b, 0)
        };
        written.then_some(l3 + header)
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
