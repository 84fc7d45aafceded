//! What the mechanisms need to know of a packet, read from its headers.
//!
//! Hosts hand over fixed windows of bytes, so that the same code passes the BPF verifier and runs
//! in tests. Fields are in network byte order until they are read here.

/// Ethernet header, bytes.
pub const ETHERNET: usize = 14;
/// Longest network header that is parsed: IPv6, RFC 8200 section 3. IPv4 needs the first 20.
pub const IP_WINDOW: usize = 40;
/// First bytes of the transport header: enough for ports and for TCP's flags and data offset.
pub const TRANSPORT_WINDOW: usize = 14;

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

/// IP protocol numbers.
pub mod protocol {
    /// ICMP.
    pub const ICMP: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 6;
    /// UDP.
    pub const UDP: u8 = 17;
    /// DCCP.
    pub const DCCP: u8 = 33;
    /// IPv6 fragment header.
    pub const FRAGMENT: u8 = 44;
    /// ICMPv6.
    pub const ICMPV6: u8 = 58;
    /// SCTP.
    pub const SCTP: u8 = 132;
    /// UDP-Lite.
    pub const UDPLITE: u8 = 136;
}

/// A network header, without its addresses (see [`source`], [`destination`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Upper-layer protocol (IPv6: the first header after the fixed one).
    pub protocol: u8,
    /// ECN field.
    pub ecn: u8,
    /// 4 or 6.
    pub version: u8,
    /// Any fragment, the first included: it has no ports that one could rely on.
    pub fragment: bool,
    /// To one receiver, which can echo.
    pub unicast: bool,
    /// Bytes to the upper-layer header.
    pub header_len: u32,
    /// Bytes of header and payload, as the header states (0: longer than it can state).
    pub total_len: u32,
}

#[inline(always)]
const fn be16(hi: u8, lo: u8) -> u16 {
    (hi as u16) << 8 | lo as u16
}

/// IPv4 (RFC 791 section 3.1) or IPv6 (RFC 8200 section 3), by the version nibble.
#[inline(always)]
#[must_use]
pub fn ip(b: &[u8; IP_WINDOW]) -> Option<Ip> {
    match b[0] >> 4 {
        4 if b[0] & 0xf >= 5 => Some(Ip {
            protocol: b[9],
            ecn: b[1] & 3,
            version: 4,
            // More fragments, or an offset.
            fragment: be16(b[6], b[7]) & 0x3fff != 0,
            unicast: b[16] < 224 && b[16] != 0,
            header_len: ((b[0] & 0xf) as u32) * 4,
            total_len: be16(b[2], b[3]) as u32,
        }),
        6 => {
            let payload = be16(b[4], b[5]) as u32;
            Some(Ip {
                protocol: b[6],
                ecn: b[1] >> 4 & 3,
                version: 6,
                fragment: b[6] == protocol::FRAGMENT,
                unicast: b[24] != 0xff,
                header_len: 40,
                total_len: if payload == 0 { 0 } else { payload + 40 },
            })
        }
        _ => None,
    }
}

/// Writes the source address; IPv4 as `::ffff:a.b.c.d`.
#[inline(always)]
pub fn source(b: &[u8; IP_WINDOW], to: &mut [u8; 16]) {
    if b[0] >> 4 == 4 {
        to[10] = 0xff;
        to[11] = 0xff;
        to[12..16].copy_from_slice(&b[12..16]);
    } else {
        to.copy_from_slice(&b[8..24]);
    }
}

/// Writes the destination address, likewise.
#[inline(always)]
pub fn destination(b: &[u8; IP_WINDOW], to: &mut [u8; 16]) {
    if b[0] >> 4 == 4 {
        to[10] = 0xff;
        to[11] = 0xff;
        to[12..16].copy_from_slice(&b[16..20]);
    } else {
        to.copy_from_slice(&b[24..40]);
    }
}

/// Frames that keep the network itself alive: link-local scope (RFC 3927, RFC 4291 section 2.4,
/// RFC 5771 section 4) and neighbour discovery (RFC 4861, ICMPv6 types 133-137, recognised by
/// `upper`, the first byte behind an IPv6 header). They are neither counted nor controlled.
///
/// Takes the bytes, not an [`Ip`]: this runs at every arrival and departure of a port.
#[inline(always)]
#[must_use]
pub fn is_control(b: &[u8; IP_WINDOW], upper: u8) -> bool {
    if b[0] >> 4 == 4 {
        (b[12] == 169 && b[13] == 254)
            || (b[16] == 169 && b[17] == 254)
            || (b[16] == 224 && b[17] == 0 && b[18] == 0)
    } else {
        (b[8] == 0xfe && b[9] & 0xc0 == 0x80)
            || (b[24] == 0xfe && b[25] & 0xc0 == 0x80)
            || (b[24] == 0xff && b[25] & 0x0f <= 2)
            || (b[6] == protocol::ICMPV6 && (133..=137).contains(&upper))
    }
}

/// ECN field of an IP header window of either family.
#[inline(always)]
#[must_use]
pub fn ecn(b: &[u8; IP_WINDOW]) -> u8 {
    if b[0] >> 4 == 4 {
        b[1] & 3
    } else {
        b[1] >> 4 & 3
    }
}

/// Whether a marking point may set CE: ECN-capable and no fragment (a fragment has no flow that an
/// echo could name).
#[inline(always)]
#[must_use]
pub fn markable(b: &[u8; IP_WINDOW]) -> bool {
    let fragment = if b[0] >> 4 == 4 {
        be16(b[6], b[7]) & 0x3fff != 0
    } else {
        b[6] == protocol::FRAGMENT
    };
    ecn(b) != NOT_ECT && !fragment
}

impl Ip {
    /// Whether the transport header begins with a source and a destination port.
    #[inline(always)]
    #[must_use]
    pub const fn has_ports(&self) -> bool {
        matches!(
            self.protocol,
            protocol::TCP | protocol::UDP | protocol::SCTP | protocol::DCCP | protocol::UDPLITE
        )
    }
}

/// What decides how a TCP segment is treated, RFC 9293 section 3.1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// SYN set.
    pub syn: bool,
    /// ACK set.
    pub ack: bool,
    /// Any of ECE, CWR (RFC 3168 section 6.1) and AE (RFC 9768 section 3.1): on a SYN, ECN is
    /// asked for; on a SYN-ACK, it is granted.
    pub ecn: bool,
    /// Header length, bytes.
    pub header_len: u32,
}

/// TCP flags from the first bytes of its header.
#[inline(always)]
#[must_use]
pub fn tcp(b: &[u8; TRANSPORT_WINDOW]) -> Tcp {
    Tcp {
        syn: b[13] & 0x02 != 0,
        ack: b[13] & 0x10 != 0,
        ecn: b[13] & 0xc0 != 0 || b[12] & 0x01 != 0,
        header_len: ((b[12] >> 4) as u32) * 4,
    }
}
