//! The cursor.

use super::{
    ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, EXTENSIONS, IPV6, Ip,
    TAGS, TRANSPORT_WINDOW, Tcp, be16, is_control_icmpv6, is_link_local4, is_link_local6, protocol,
    tcp,
};
use crate::shares;

/// The bytes of a frame from its Ethernet header on, wherever they are: a slice on the host, a socket
/// buffer in the kernel.
pub trait Read {
    /// Length of the frame, bytes.
    fn frame_len(&self) -> u32;
    /// Copies the bytes at an offset. False if they are not all there: then `to` holds anything.
    fn read(&self, at: u32, to: &mut [u8]) -> bool;
    /// The same word. In the kernel, one of which the verifier knows nothing: else it follows each
    /// combination of headers through all the rest of a program.
    #[inline(always)]
    fn opaque(&self, word: u64) -> u64 {
        word
    }
}

impl Read for [u8] {
    fn frame_len(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    fn read(&self, at: u32, to: &mut [u8]) -> bool {
        let at = at as usize;
        let there = at.checked_add(to.len()).and_then(|end| self.get(at..end));
        if let Some(bytes) = there {
            to.copy_from_slice(bytes);
        }
        there.is_some()
    }
}

/// Why a frame passes untouched and uncounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Not IP, or behind more than [`TAGS`] tags.
    Other,
    /// It keeps the network itself alive: link-local scope, neighbour discovery, IGMP, MLD.
    Control,
    /// Its headers end too early, or contradict each other.
    Malformed,
}

/// Reads the headers of a frame up to the upper layer's.
///
/// # Errors
///
/// [`Pass`]: nobody's flow.
#[inline(always)]
pub fn parse<F: Read + ?Sized>(frame: &F) -> Result<Ip, Pass> {
    let mut l3 = ETHERNET as u32;
    let mut b = [0u8; 2];
    if !frame.read(l3 - 2, &mut b) {
        return Err(Pass::Other);
    }
    let mut ethertype = be16(b[0], b[1]);
    let mut tags = 0;
    while ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ {
        if tags == TAGS {
            return Err(Pass::Other);
        }
        if !frame.read(l3 + 2, &mut b) {
            return Err(Pass::Malformed);
        }
        ethertype = be16(b[0], b[1]);
        l3 += 4;
        tags += 1;
    }
    let ip = if ethertype == ETHERTYPE_IPV4 {
        ipv4(frame, l3)
    } else if ethertype == ETHERTYPE_IPV6 {
        ipv6(frame, l3)
    } else {
        Err(Pass::Other)
    };
    ip.map(|ip| ip.opaque(frame))
}

impl Ip {
    /// The same, of which the verifier knows nothing.
    #[inline(always)]
    fn opaque<F: Read + ?Sized>(self, frame: &F) -> Self {
        let word = frame.opaque(
            self.l3 as u64
                | (self.protocol as u64) << 8
                | (self.start[0] as u64) << 16
                | (self.start[1] as u64) << 24
                | (self.header_len as u64) << 32
                | (self.fragment as u64) << 48
                | (self.authenticated as u64) << 49
                | (self.unicast as u64) << 50
                | (self.version as u64) << 56,
        );
        Self {
            l3: word as u32 & 0xff,
            protocol: (word >> 8) as u8,
            start: [(word >> 16) as u8, (word >> 24) as u8],
            header_len: (word >> 32) as u32 & 0xffff,
            fragment: word >> 48 & 1 != 0,
            authenticated: word >> 49 & 1 != 0,
            unicast: word >> 50 & 1 != 0,
            version: (word >> 56) as u8,
            total_len: self.total_len,
            source: self.source,
        }
    }
}

#[inline(always)]
const fn word(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// RFC 791 section 3.1.
#[inline(always)]
fn ipv4<F: Read + ?Sized>(frame: &F, l3: u32) -> Result<Ip, Pass> {
    let mut b = [0u8; 20];
    if !frame.read(l3, &mut b) || b[0] >> 4 != 4 || b[0] & 0xf < 5 {
        return Err(Pass::Malformed);
    }
    let there = frame.frame_len() - l3;
    let stated = be16(b[2], b[3]) as u32;
    let mut ip = Ip {
        l3,
        protocol: b[9],
        start: [b[0], b[1]],
        version: 4,
        // More fragments, or an offset.
        fragment: be16(b[6], b[7]) & 0x3fff != 0,
        authenticated: false,
        unicast: b[16] < 224 && b[16] != 0,
        header_len: ((b[0] & 0xf) as u32) * 4,
        total_len: if stated == 0 { there } else { stated },
        source: shares::source(&[0, 0, 0, word(&b, 12)]),
    };
    if ip.total_len > there || ip.header_len > ip.total_len {
        return Err(Pass::Malformed);
    }
    if ip.protocol == protocol::IGMP || is_link_local4(&b) {
        return Err(Pass::Control);
    }
    if ip.protocol == protocol::AUTHENTICATION && !ip.fragment {
        follow(frame, &mut ip)?;
    }
    Ok(ip)
}

/// RFC 8200 section 3.
#[inline(always)]
fn ipv6<F: Read + ?Sized>(frame: &F, l3: u32) -> Result<Ip, Pass> {
    let mut b = [0u8; IPV6];
    if !frame.read(l3, &mut b) || b[0] >> 4 != 6 {
        return Err(Pass::Malformed);
    }
    let there = frame.frame_len() - l3;
    let stated = IPV6 as u32 + be16(b[4], b[5]) as u32;
    let mut ip = Ip {
        l3,
        protocol: b[6],
        start: [b[0], b[1]],
        version: 6,
        fragment: false,
        authenticated: false,
        unicast: b[24] != 0xff,
        header_len: IPV6 as u32,
        // A jumbo payload is stated elsewhere.
        total_len: if stated == IPV6 as u32 && there > stated + u16::MAX as u32 {
            there
        } else {
            stated
        },
        source: shares::source(&[word(&b, 8), word(&b, 12), word(&b, 16), word(&b, 20)]),
    };
    if ip.total_len > there {
        return Err(Pass::Malformed);
    }
    if is_link_local6(&b) {
        return Err(Pass::Control);
    }
    let mut followed = 0;
    while followed < EXTENSIONS && !ip.fragment && is_extension(ip.protocol) {
        follow(frame, &mut ip)?;
        followed += 1;
    }
    if ip.protocol == protocol::ICMPV6 && !ip.fragment {
        let mut kind = [0u8; 1];
        if ip.upper_len() == 0 || !frame.read(ip.upper(), &mut kind) {
            return Err(Pass::Malformed);
        }
        if is_control_icmpv6(kind[0]) {
            return Err(Pass::Control);
        }
    }
    Ok(ip)
}

#[inline(always)]
const fn is_extension(next: u8) -> bool {
    matches!(
        next,
        protocol::HOP_BY_HOP
            | protocol::ROUTING
            | protocol::FRAGMENT
            | protocol::AUTHENTICATION
            | protocol::DESTINATION
    )
}

/// 1 if a word below 2^31 equals `byte`, else 0: without a branch, which would double the verifier's paths.
#[inline(always)]
const fn is_equal(word: u64, byte: u8) -> u32 {
    (word as u32 ^ byte as u32).wrapping_sub(1) >> 31
}

/// Steps over the extension header that `ip.protocol` names, RFC 8200 section 4, RFC 4302 section 2.
#[inline(always)]
fn follow<F: Read + ?Sized>(frame: &F, ip: &mut Ip) -> Result<(), Pass> {
    let mut b = [0u8; 4];
    if !frame.read(ip.upper(), &mut b) {
        return Err(Pass::Malformed);
    }
    let kind = frame.opaque(ip.protocol.into());
    let fragment = is_equal(kind, protocol::FRAGMENT);
    let authentication = is_equal(kind, protocol::AUTHENTICATION);
    // A fragment header has a reserved byte instead of a length, and AH counts in units of 4 bytes, less 2.
    let units = (b[1] as u32 & fragment.wrapping_sub(1)) + 1 + authentication;
    ip.header_len += units * (8 >> authentication);
    ip.protocol = b[0];
    // An offset, or more fragments: else it is whole (RFC 6946).
    let offset = frame.opaque((be16(b[2], b[3]) & 0xfff9).into()) as u32;
    ip.fragment = fragment & (offset + 0xffff) >> 16 & 1 != 0;
    ip.authenticated |= authentication & 1 != 0;
    *ip = ip.opaque(frame);
    if ip.header_len > ip.total_len {
        return Err(Pass::Malformed);
    }
    Ok(())
}

/// Writes the addresses of a packet, each as IPv6; IPv4 as `::ffff:a.b.c.d`, into zeros. False: they
/// are not there.
#[inline(always)]
pub fn addresses<F: Read + ?Sized>(
    frame: &F,
    ip: &Ip,
    source: &mut [u8; 16],
    destination: &mut [u8; 16],
) -> bool {
    if ip.version == 6 {
        return frame.read(ip.l3 + 8, source) && frame.read(ip.l3 + 24, destination);
    }
    let mut b = [0u8; 8];
    let there = frame.read(ip.l3 + 12, &mut b);
    source[10..12].copy_from_slice(&[0xff; 2]);
    source[12..].copy_from_slice(&b[..4]);
    destination[10..12].copy_from_slice(&[0xff; 2]);
    destination[12..].copy_from_slice(&b[4..]);
    there
}

/// What the transport header adds. All zero for protocols without ports and for fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transport {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of the transport header, bytes.
    pub header_len: u32,
    /// See [`Self::tcp`]. Not an `Option`, whose content is unset if it is `None`: the compiler copies it all the same,
    /// and up to Linux 5.11 the verifier refuses to read what was not written.
    pub tcp: Tcp,
}

impl Transport {
    /// TCP's header, unless it must not change ([`Ip::authenticated`]).
    #[inline(always)]
    #[must_use]
    pub const fn tcp(&self) -> Option<&Tcp> {
        self.tcp.if_present()
    }
}

/// Reads the transport header of a packet.
///
/// # Errors
///
/// [`Pass::Malformed`]: it is missing or truncated.
#[inline(always)]
pub fn transport<F: Read + ?Sized>(frame: &F, ip: &Ip) -> Result<Transport, Pass> {
    let mut t = Transport::default();
    // Shortest header: RFC 9293, RFC 768, RFC 3828, RFC 9260, RFC 4340.
    let shortest = match ip.protocol {
        _ if ip.fragment => 0,
        protocol::TCP => 20,
        protocol::UDP | protocol::UDPLITE => 8,
        protocol::SCTP | protocol::DCCP => 12,
        _ => 0,
    };
    if shortest == 0 {
        return Ok(t);
    }
    t.header_len = shortest;
    if shortest > ip.upper_len() {
        return Err(Pass::Malformed);
    }
    let mut b = [0u8; TRANSPORT_WINDOW];
    if ip.protocol == protocol::TCP {
        if !frame.read(ip.upper(), &mut b) {
            return Err(Pass::Malformed);
        }
        let flags = tcp(&b);
        t.header_len = flags.header_len;
        if t.header_len < shortest || t.header_len > ip.upper_len() {
            return Err(Pass::Malformed);
        }
        if !ip.authenticated {
            t.tcp = flags;
        }
    } else if !frame.read(ip.upper(), &mut b[..4]) {
        return Err(Pass::Malformed);
    }
    t.src_port = be16(b[0], b[1]);
    t.dst_port = be16(b[2], b[3]);
    Ok(t)
}
