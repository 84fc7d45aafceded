//! The cursor.

use core::mem::MaybeUninit;

use super::{
    ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, EXTENSIONS, IPV6, Ip,
    TAGS, TRANSPORT_WINDOW, Tcp, be16, is_control_icmpv6, is_link_local4, is_link_local6, protocol,
    source, tcp,
};

/// The bytes of a frame from its Ethernet header on, wherever they are: a slice on the host, a socket
/// buffer in the kernel.
pub trait Read {
    /// Length of the frame, bytes.
    fn frame_len(&self) -> u32;
    /// Reads the bytes at an offset. `None` if they are not all there.
    fn read<'a, const N: usize>(&self, at: u32, to: &'a mut Buffer<N>) -> Option<&'a [u8; N]>;
    /// The same word. In the kernel, one of which the verifier knows nothing: else it follows each
    /// combination of headers through all the rest of a program.
    #[inline(always)]
    fn opaque(&self, word: u64) -> u64 {
        word
    }
}

/// Room for `N` bytes of a frame. Not zeroed: where only one of two paths writes all bytes, the kernel's verifier would
/// go on with two states.
pub struct Buffer<const N: usize>(MaybeUninit<[u8; N]>);

impl<const N: usize> Buffer<N> {
    /// An empty buffer.
    #[inline(always)]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "one way to make it is enough")]
    pub const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// The bytes that `fill` writes, if it returns true.
    ///
    /// # Safety
    ///
    /// If `fill` returns true, it has written `N` bytes.
    #[inline(always)]
    pub unsafe fn filled(&mut self, fill: impl FnOnce(*mut u8) -> bool) -> Option<&[u8; N]> {
        if !fill(self.0.as_mut_ptr().cast()) {
            return None;
        }
        // SAFETY: written, as the caller guarantees.
        Some(unsafe { self.0.assume_init_ref() })
    }
}

impl Read for [u8] {
    fn frame_len(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }

    fn read<'a, const N: usize>(&self, at: u32, to: &'a mut Buffer<N>) -> Option<&'a [u8; N]> {
        let bytes = self.get(at as usize..)?.first_chunk()?;
        Some(to.0.write(*bytes))
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
    let mut b = Buffer::<2>::new();
    let [hi, lo] = frame.read(l3 - 2, &mut b).ok_or(Pass::Other)?;
    let mut ethertype = be16(*hi, *lo);
    let mut tags = 0;
    while ethertype == ETHERTYPE_VLAN || ethertype == ETHERTYPE_QINQ {
        if tags == TAGS {
            return Err(Pass::Other);
        }
        let [hi, lo] = frame.read(l3 + 2, &mut b).ok_or(Pass::Malformed)?;
        ethertype = be16(*hi, *lo);
        l3 += 4;
        tags += 1;
    }
    // The mask bounds it: 6.1 does not track a 32-bit xor.
    let l3 = frame.opaque(l3.into()) as u32 & 0xff;
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
            total_len: frame.opaque(self.total_len.into()) as u32,
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
    let mut b = Buffer::<20>::new();
    let b = frame.read(l3, &mut b).ok_or(Pass::Malformed)?;
    if b[0] >> 4 != 4 || b[0] & 0xf < 5 {
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
        source: source(&[0, 0, 0, word(b, 12)]),
    };
    if ip.total_len > there || ip.header_len > ip.total_len {
        return Err(Pass::Malformed);
    }
    if ip.protocol == protocol::IGMP || is_link_local4(b) {
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
    let mut b = Buffer::<IPV6>::new();
    let b = frame.read(l3, &mut b).ok_or(Pass::Malformed)?;
    if b[0] >> 4 != 6 {
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
        source: source(&[word(b, 8), word(b, 12), word(b, 16), word(b, 20)]),
    };
    if ip.total_len > there {
        return Err(Pass::Malformed);
    }
    if is_link_local6(b) {
        return Err(Pass::Control);
    }
    let mut followed = 0;
    while followed < EXTENSIONS && !ip.fragment && is_extension(ip.protocol) {
        follow(frame, &mut ip)?;
        followed += 1;
    }
    if ip.protocol == protocol::ICMPV6 && !ip.fragment {
        if ip.upper_len() == 0 {
            return Err(Pass::Malformed);
        }
        let mut kind = Buffer::<1>::new();
        let [kind] = frame.read(ip.upper(), &mut kind).ok_or(Pass::Malformed)?;
        if is_control_icmpv6(*kind) {
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
    let mut b = Buffer::<4>::new();
    let b = frame.read(ip.upper(), &mut b).ok_or(Pass::Malformed)?;
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
    if frame.opaque(ip.version.into()) == 6 {
        let mut b = Buffer::<16>::new();
        let Some(address) = frame.read(ip.l3 + 8, &mut b) else {
            return false;
        };
        *source = *address;
        let Some(address) = frame.read(ip.l3 + 24, &mut b) else {
            return false;
        };
        *destination = *address;
        return true;
    }
    let mut b = Buffer::<8>::new();
    let Some(b) = frame.read(ip.l3 + 12, &mut b) else {
        return false;
    };
    for (address, from) in [(source, 0), (destination, 4)] {
        address[10..12].copy_from_slice(&[0xff; 2]);
        address[12..].copy_from_slice(&b[from..from + 4]);
    }
    true
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

/// Length of a protocol's shortest header with ports, bytes (RFC 9293, RFC 768, RFC 3828, RFC 9260, RFC 4340); 0 for
/// protocols without ports and for fragments.
#[inline(always)]
const fn shortest_header(protocol: u8, fragment: bool) -> u32 {
    match protocol {
        _ if fragment => 0,
        protocol::TCP => 20,
        protocol::UDP | protocol::UDPLITE => 8,
        protocol::SCTP | protocol::DCCP => 12,
        _ => 0,
    }
}

/// Reads the source and destination port, 0 where there are none. `None`: the header is missing.
#[inline(always)]
pub fn ports<F: Read + ?Sized>(frame: &F, ip: &Ip) -> Option<(u16, u16)> {
    if shortest_header(ip.protocol, ip.fragment) == 0 {
        return Some((0, 0));
    }
    let mut b = Buffer::<4>::new();
    let b = frame.read(ip.upper(), &mut b)?;
    Some((be16(b[0], b[1]), be16(b[2], b[3])))
}

/// Reads the transport header of a packet.
///
/// # Errors
///
/// [`Pass::Malformed`]: it is missing or truncated.
#[inline(always)]
pub fn transport<F: Read + ?Sized>(frame: &F, ip: &Ip) -> Result<Transport, Pass> {
    // Copies: the verifier learns from comparisons.
    let word = frame.opaque(
        ip.upper_len() as u64
            | (ip.protocol as u64) << 32
            | (ip.fragment as u64) << 40
            | (ip.authenticated as u64) << 41,
    );
    let (upper_len, protocol) = (word as u32, (word >> 32) as u8);
    let shortest = shortest_header(protocol, word >> 40 & 1 != 0);
    if shortest > upper_len {
        return Err(Pass::Malformed);
    }
    let mut t = Transport {
        header_len: shortest,
        ..Transport::default()
    };
    if protocol == protocol::TCP && shortest != 0 {
        let mut b = Buffer::<TRANSPORT_WINDOW>::new();
        let b = frame.read(ip.upper(), &mut b).ok_or(Pass::Malformed)?;
        let tcp = tcp(b);
        if tcp.header_len < shortest || tcp.header_len > upper_len {
            return Err(Pass::Malformed);
        }
        t.header_len = tcp.header_len;
        (t.src_port, t.dst_port) = (be16(b[0], b[1]), be16(b[2], b[3]));
        if word >> 41 == 0 {
            t.tcp = tcp;
        }
    } else if shortest != 0 {
        let mut b = Buffer::<4>::new();
        let b = frame.read(ip.upper(), &mut b).ok_or(Pass::Malformed)?;
        (t.src_port, t.dst_port) = (be16(b[0], b[1]), be16(b[2], b[3]));
    }
    Ok(t)
}
