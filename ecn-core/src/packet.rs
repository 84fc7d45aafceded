//! What the mechanisms need to know of a packet, read from its headers.
//!
//! One cursor, [`parse`], for every place where packets are looked at: hosts hand over a [`Read`], so
//! that the same code passes the BPF verifier, runs at the kernel's tracepoints, and is fuzzed in
//! tests. It follows Ethernet, up to [`TAGS`] VLAN tags in the bytes, IPv4 with options, IPv6 with
//! up to [`EXTENSIONS`] extension headers, and stops at the first header that is not theirs: of
//! tunnels it reads the outer headers only. [`transport`] goes on from there.

mod cursor;

pub use cursor::{Buffer, Pass, Read, Transport, addresses, parse, ports, transport};

/// Ethernet header, bytes.
pub const ETHERNET: usize = 14;
/// IPv6 header without extensions, bytes, RFC 8200 section 3.
pub const IPV6: usize = 40;
/// First bytes of the transport header: enough for ports and for TCP's flags and data offset.
pub const TRANSPORT_WINDOW: usize = 14;

/// Most VLAN tags that are followed in the bytes of a frame (802.1Q in 802.1ad); others, in metadata,
/// are not counted.
pub const TAGS: u32 = 2;
/// Most extension headers that are followed: as many as RFC 8200 section 4.1 lists.
pub const EXTENSIONS: u32 = 6;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of an 802.1Q tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of an 802.1ad service tag.
pub const ETHERTYPE_QINQ: u16 = 0x88a8;

/// Not ECN-capable, RFC 3168 section 5.
pub const NOT_ECT: u8 = 0b00;
/// ECN-capable transport, codepoint 1 (L4S, RFC 9331).
pub const ECT_1: u8 = 0b01;
/// ECN-capable transport, codepoint 0.
pub const ECT_0: u8 = 0b10;
/// Congestion experienced.
pub const CE: u8 = 0b11;

/// Hash of an address, by which the sources at a port are distinguished ([`crate::shares`]).
#[inline(always)]
#[must_use]
pub const fn source(address: &[u32; 4]) -> u32 {
    const K: u32 = 0x85eb_ca6b;
    let [a, b, c, d] = *address;
    let h = (a ^ (a >> 15)).wrapping_mul(K) ^ b;
    let h = (h ^ (h >> 15)).wrapping_mul(K) ^ c;
    (h ^ (h >> 15)).wrapping_mul(K) ^ d
}

/// IP protocol numbers.
pub mod protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: u8 = 0;
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// IGMP.
    pub const IGMP: u8 = 2;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// DCCP.
    pub const DCCP: u8 = 33;
    /// IPv6 routing header.
    pub const ROUTING: u8 = 43;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// Authentication header.
    pub const AUTHENTICATION: u8 = 51;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// IPv6 destination options.
    pub const DESTINATION: u8 = 60;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// UDP-Lite.
    pub const UDPLITE: u8 = 136;
}

/// An IP packet in a frame, without its [`addresses`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ip {
    /// Offset of the IP header in the frame, bytes.
    pub l3: u32,
    /// Upper-layer protocol, behind extension headers and AH. Of a fragment: what its own header names.
    pub protocol: u8,
    /// The first two bytes of its header, which hold the ECN field.
    pub start: [u8; 2],
    /// 4 or 6.
    pub version: u8,
    /// Any fragment, the first included: it has no ports that one could rely on.
    pub fragment: bool,
    /// Covered by an authentication header (RFC 4302): nothing but the mutable fields of the IP
    /// header, the ECN field among them, may change.
    pub authenticated: bool,
    /// To one receiver, which can echo.
    pub unicast: bool,
    /// Bytes to the upper-layer header, extension headers included.
    pub header_len: u32,
    /// Bytes of headers and payload, as the header states; where it states none (BIG TCP, and
    /// senders that leave that to segmentation), to the end of the frame.
    pub total_len: u32,
    /// Its source address in a word, see [`source`]; IPv4 as the last of four.
    pub source: u32,
}

#[inline(always)]
const fn be16(hi: u8, lo: u8) -> u16 {
    (hi as u16) << 8 | lo as u16
}

/// Whether an IPv4 header's addresses are the network's own: link-local scope (RFC 3927, RFC 5771
/// section 4).
#[inline(always)]
fn is_link_local4(b: &[u8; 20]) -> bool {
    (b[12] == 169 && b[13] == 254)
        || (b[16] == 169 && b[17] == 254)
        || (b[16] == 224 && b[17] == 0 && b[18] == 0)
}

/// The same of an IPv6 header: RFC 4291 section 2.4.
#[inline(always)]
fn is_link_local6(b: &[u8; IPV6]) -> bool {
    (b[8] == 0xfe && b[9] & 0xc0 == 0x80)
        || (b[24] == 0xfe && b[25] & 0xc0 == 0x80)
        || (b[24] == 0xff && b[25] & 0x0f <= 2)
}

/// ICMPv6 types that keep the network alive: multicast listeners (RFC 2710, RFC 3810) and neighbour
/// discovery (RFC 4861).
#[inline(always)]
const fn is_control_icmpv6(kind: u8) -> bool {
    matches!(kind, 130..=137 | 143)
}

/// Whether packets of a protocol, to a UDP port, hold others whose ECN field says whether these may be marked: at the
/// tunnel's end a packet that is marked outside and not ECN-capable inside is dropped (RFC 6040 section 4.2), so
/// that nobody but the tunnel's beginning may make it ECN-capable. ESP's and WireGuard's ends only ignore the mark.
///
/// IPv4 and IPv6 in IP, GRE, EtherIP, MPLS in IP; GUE, Geneve, MPLS in UDP, VXLAN and VXLAN-GPE (also at the port that
/// Linux took before there was one), by the ports that IANA gave them.
#[inline(always)]
#[must_use]
pub const fn is_tunnel(protocol: u8, dst_port: u16) -> bool {
    match protocol {
        4 | 41 | 47 | 97 | 137 => true,
        protocol::UDP => matches!(dst_port, 4789 | 4790 | 6080 | 6081 | 6635 | 8472),
        _ => false,
    }
}

impl Ip {
    /// ECN field.
    #[inline(always)]
    #[must_use]
    pub const fn ecn(&self) -> u8 {
        let shift = if self.version == 4 { 0 } else { 4 };
        self.start[1] >> shift & 3
    }

    /// The second byte of the header with another ECN field.
    #[inline(always)]
    #[must_use]
    pub const fn with_ecn(&self, codepoint: u8) -> u8 {
        let shift = if self.version == 4 { 0 } else { 4 };
        self.start[1] & !(3 << shift) | codepoint << shift
    }

    /// Whether a marking point may set CE.
    #[inline(always)]
    #[must_use]
    pub const fn markable(&self) -> bool {
        self.ecn() != NOT_ECT
    }

    /// Offset of the upper-layer header in the frame, bytes.
    #[inline(always)]
    #[must_use]
    pub const fn upper(&self) -> u32 {
        self.l3 + self.header_len
    }

    /// Bytes behind the IP headers.
    #[inline(always)]
    #[must_use]
    pub const fn upper_len(&self) -> u32 {
        self.total_len.saturating_sub(self.header_len)
    }
}

/// Packets of at most so many bytes with link headers are never dropped for their source's share: echoes, pure ACKs,
/// connections that begin or end.
pub(crate) const SMALL: u32 = 128;

impl Ip {
    /// Whether a packet of so many segments and bytes on the wire may be dropped where it cannot be marked: not what
    /// others learn from, which is small or ICMP.
    #[inline(always)]
    #[must_use]
    pub const fn droppable(&self, segments: u32, wire_bytes: u32) -> bool {
        wire_bytes > SMALL * (segments & 0xffff)
            && self.protocol != protocol::ICMP
            && self.protocol != protocol::ICMPV6
    }

    /// Whether a message can be sent about the packet ([`crate::backward`]): not about what others learn from, as in
    /// [`Ip::droppable`], nor about echoes.
    #[inline(always)]
    #[must_use]
    pub const fn answerable(&self, segments: u32, wire_bytes: u32, echo_protocol: u8) -> bool {
        let whole = self.protocol != protocol::TCP || self.droppable(segments, wire_bytes);
        whole
            && self.unicast
            && self.protocol != protocol::ICMP
            && self.protocol != protocol::ICMPV6
            && self.protocol != echo_protocol
    }
}

/// Segments of a super-packet: as many as the kernel counted. It has not yet counted those that came
/// from a guest's network card or a packet socket, of which only the size of a segment is stated;
/// `payload` is what they carry behind the transport header. An ordinary packet states neither: 1.
#[inline(always)]
#[must_use]
pub const fn segments(counted: u32, size: u32, payload: u32) -> u32 {
    if counted != 0 {
        counted
    } else if size == 0 || payload <= size {
        1
    } else {
        payload.div_ceil(size)
    }
}

/// Bytes of a super-packet on the wire, where each segment has headers of its own (`headers` bytes
/// from the Ethernet header to the payload); `len` counts them once.
#[inline(always)]
#[must_use]
pub const fn wire_bytes(len: u32, segments: u32, headers: u32) -> u64 {
    len as u64 + segments.saturating_sub(1) as u64 * headers as u64
}

/// What decides how a TCP segment is treated, RFC 9293 section 3.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tcp {
    /// FIN (bit 0) to CWR (bit 7), and AE (bit 8), as in the header. One word instead of nine: BPF programs have 512
    /// bytes of stack.
    pub flags: u16,
    /// Header length, bytes.
    pub header_len: u32,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub ack_number: u32,
}

impl Tcp {
    const FIN: u16 = 1 << 0;
    const SYN: u16 = 1 << 1;
    const RST: u16 = 1 << 2;
    const ACK: u16 = 1 << 4;
    /// ECE, CWR (RFC 3168 section 6.1) and AE (RFC 9768 section 3.1).
    const ECN: u16 = 7 << 6;

    /// FIN is set.
    #[inline(always)]
    #[must_use]
    pub const fn fin(&self) -> bool {
        self.flags & Self::FIN != 0
    }

    /// SYN is set.
    #[inline(always)]
    #[must_use]
    pub const fn syn(&self) -> bool {
        self.flags & Self::SYN != 0
    }

    /// RST is set.
    #[inline(always)]
    #[must_use]
    pub const fn rst(&self) -> bool {
        self.flags & Self::RST != 0
    }

    /// ACK is set.
    #[inline(always)]
    #[must_use]
    pub const fn ack(&self) -> bool {
        self.flags & Self::ACK != 0
    }

    /// Any ECN flag is set: a SYN asks for ECN, a SYN-ACK grants it.
    #[inline(always)]
    #[must_use]
    pub const fn ecn(&self) -> bool {
        self.flags & Self::ECN != 0
    }

    /// The ECN flags as a number, AE CWR ECE: ACE of RFC 9768 section 3.2.2.
    #[inline(always)]
    #[must_use]
    pub const fn ace(&self) -> u8 {
        ((self.flags & Self::ECN) >> 6) as u8
    }

    /// `None` for the default, all zero: another protocol.
    #[inline(always)]
    #[must_use]
    pub const fn if_present(&self) -> Option<&Self> {
        // At least 20 for TCP.
        if self.header_len == 0 {
            None
        } else {
            Some(self)
        }
    }
}

/// TCP's fields from the first bytes of its header.
#[inline(always)]
#[must_use]
pub fn tcp(b: &[u8; TRANSPORT_WINDOW]) -> Tcp {
    Tcp {
        flags: be16(b[12] & 1, b[13]),
        header_len: ((b[12] >> 4) as u32) * 4,
        sequence: u32::from_be_bytes([b[4], b[5], b[6], b[7]]),
        ack_number: u32::from_be_bytes([b[8], b[9], b[10], b[11]]),
    }
}
