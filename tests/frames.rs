//! Frames, byte by byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ecn_core::{echo::Echo, packet};
use etherparse::{IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv6Header, UdpHeader};

use crate::lab::Host;

/// ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// LLDP, IEEE 802.1AB.
pub const ETHERTYPE_LLDP: u16 = 0x88cc;
/// Bridge group address, IEEE 802.1D: spanning tree.
pub const BRIDGE_GROUP: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 0];

/// A frame of any type.
pub fn ethernet(dst: [u8; 6], src: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    [&dst[..], &src, &ethertype.to_be_bytes(), payload].concat()
}

/// IEEE 802.3 with a length and an LLC header, such as spanning tree.
pub fn llc(dst: [u8; 6], src: [u8; 6], payload: &[u8]) -> Vec<u8> {
    let body = [&[0x42, 0x42, 0x03], payload].concat();
    ethernet(dst, src, body.len() as u16, &body)
}

/// Inserts a VLAN tag after the addresses.
pub fn tagged(frame: &[u8], ethertype: u16, tci: u16) -> Vec<u8> {
    let tag = [ethertype.to_be_bytes(), tci.to_be_bytes()].concat();
    [&frame[..12], &tag, &frame[12..]].concat()
}

/// An IP packet of one host to another, or with other addresses.
#[derive(Clone)]
pub struct Ip {
    src: IpAddr,
    dst: IpAddr,
    src_mac: [u8; 6],
    dst_mac: [u8; 6],
    ecn: u8,
    /// `None`: 64 (IPv4) or 255 (IPv6).
    ttl: Option<u8>,
    more_fragments: bool,
    fragment_offset: u16,
}

impl Ip {
    /// ECT(0), between two hosts.
    pub fn between(from: &Host, to: &Host, ipv6: bool) -> Self {
        Self {
            src: from.address(ipv6),
            dst: to.address(ipv6),
            src_mac: from.mac,
            dst_mac: to.mac,
            ecn: packet::ECT_0,
            ttl: None,
            more_fragments: false,
            fragment_offset: 0,
        }
    }

    /// ECT(0), between two addresses that belong to no host.
    pub fn of(src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Self {
        Self {
            src: src.into(),
            dst: dst.into(),
            src_mac: [2, 0, 0, 0, 0, 1],
            dst_mac: [2, 0, 0, 0, 0, 2],
            ecn: packet::ECT_0,
            ttl: None,
            more_fragments: false,
            fragment_offset: 0,
        }
    }

    /// With this ECN field.
    pub fn ecn(mut self, ecn: u8) -> Self {
        self.ecn = ecn;
        self
    }

    /// With this TTL or hop limit.
    pub fn ttl(mut self, ttl: u8) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// With other addresses in the IP header.
    pub fn addresses(mut self, src: impl Into<IpAddr>, dst: impl Into<IpAddr>) -> Self {
        (self.src, self.dst) = (src.into(), dst.into());
        self
    }

    /// With another destination in the Ethernet header.
    pub fn to_mac(mut self, mac: [u8; 6]) -> Self {
        self.dst_mac = mac;
        self
    }

    /// A fragment at this offset, in units of 8 bytes.
    pub fn fragment(mut self, offset: u16, more: bool) -> Self {
        (self.fragment_offset, self.more_fragments) = (offset, more);
        self
    }

    fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// The frame, with any upper-layer protocol.
    pub fn with(&self, protocol: u8, payload: &[u8]) -> Vec<u8> {
        match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => self.v4(src, dst, protocol, payload),
            (IpAddr::V6(src), IpAddr::V6(dst)) => self.v6(src, dst, protocol, payload),
            mixed => panic!("{mixed:?}"),
        }
    }

    fn v4(&self, src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let len = payload.len() as u16;
        let ttl = self.ttl.unwrap_or(64);
        let header = Ipv4Header::new(len, ttl, IpNumber(protocol), src.octets(), dst.octets());
        let mut header = header.expect("a short payload");
        header.ecn = IpEcn::try_new(self.ecn).expect("two bits");
        header.more_fragments = self.more_fragments;
        header.dont_fragment = !self.is_fragment();
        header.fragment_offset = IpFragOffset::try_new(self.fragment_offset).expect("13 bits");
        header.header_checksum = header.calc_header_checksum();
        let packet = [&header.to_bytes()[..], payload].concat();
        ethernet(self.dst_mac, self.src_mac, packet::ETHERTYPE_IPV4, &packet)
    }

    fn v6(&self, src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        let mut next = protocol;
        if self.is_fragment() {
            // RFC 8200 section 4.5.
            let word = self.fragment_offset << 3 | u16::from(self.more_fragments);
            body.extend([protocol, 0]);
            body.extend(word.to_be_bytes());
            body.extend(0x7777_7777u32.to_be_bytes());
            next = packet::protocol::FRAGMENT;
        }
        body.extend(payload);
        let header = Ipv6Header {
            traffic_class: self.ecn,
            payload_length: body.len() as u16,
            next_header: IpNumber(next),
            hop_limit: self.ttl.unwrap_or(255),
            source: src.octets(),
            destination: dst.octets(),
            ..Ipv6Header::default()
        };
        let packet = [&header.to_bytes()[..], &body].concat();
        ethernet(self.dst_mac, self.src_mac, packet::ETHERTYPE_IPV6, &packet)
    }

    /// A UDP packet.
    pub fn udp(&self, src_port: u16, dst_port: u16, payload: &[u8]) -> Vec<u8> {
        let header = match (self.src, self.dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let (src, dst) = (src.octets(), dst.octets());
                let len = payload.len() as u16;
                let ip = Ipv4Header::new(len, 64, IpNumber::UDP, src, dst).expect("short");
                UdpHeader::with_ipv4_checksum(src_port, dst_port, &ip, payload)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let ip = Ipv6Header {
                    source: src.octets(),
                    destination: dst.octets(),
                    ..Ipv6Header::default()
                };
                UdpHeader::with_ipv6_checksum(src_port, dst_port, &ip, payload)
            }
            mixed => panic!("{mixed:?}"),
        };
        let header = header.expect("a short payload").to_bytes();
        self.with(packet::protocol::UDP, &[&header[..], payload].concat())
    }

    /// An echo.
    pub fn echo(&self, echo: &Echo) -> Vec<u8> {
        self.clone()
            .ecn(packet::NOT_ECT)
            .with(ecn_core::echo::PROTOCOL, &echo.to_bytes())
    }
}

/// ECN field of an untagged frame, if it is IP.
pub fn ecn_of(frame: &[u8]) -> Option<u8> {
    match u16::from_be_bytes([frame[12], frame[13]]) {
        packet::ETHERTYPE_IPV4 => Some(frame[15] & 3),
        packet::ETHERTYPE_IPV6 => Some(frame[15] >> 4 & 3),
        packet::ETHERTYPE_VLAN | packet::ETHERTYPE_QINQ => {
            ecn_of(&[&frame[..12], &frame[16..]].concat())
        }
        _ => None,
    }
}

/// The echo in a frame, if it contains one: IPv4 or IPv6 without options.
pub fn echo_of(frame: &[u8]) -> Option<Echo> {
    let (protocol, at) = match u16::from_be_bytes([*frame.get(12)?, *frame.get(13)?]) {
        packet::ETHERTYPE_IPV4 => (*frame.get(23)?, 34),
        packet::ETHERTYPE_IPV6 => (*frame.get(20)?, 54),
        _ => return None,
    };
    if protocol != ecn_core::echo::PROTOCOL {
        return None;
    }
    Echo::parse(frame.get(at..at + ecn_core::echo::LEN)?.try_into().ok()?)
}
