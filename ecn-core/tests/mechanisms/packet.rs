//! Headers as other implementations write them, and as the RFCs define them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::{Ipv4Addr, Ipv6Addr};

use ecn_core::packet::source;
use ecn_core::packet::{
    CE, ECT_0, ECT_1, ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN,
    EXTENSIONS, IPV6, Ip, NOT_ECT, Pass, TRANSPORT_WINDOW, Transport, addresses, is_tunnel, parse,
    protocol, segments, tcp, transport, wire_bytes,
};
use etherparse::{TcpHeader, TcpOptionElement};
use proptest::prelude::*;

/// A frame with these EtherTypes (tags first) and this content.
fn ethernet(types: &[u16], content: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; ETHERNET - 2];
    for (number, ethertype) in types.iter().enumerate() {
        if number > 0 {
            frame.extend([0x60, 5]);
        }
        frame.extend(ethertype.to_be_bytes());
    }
    frame.extend(content);
    frame
}

/// An IP header in a frame, followed by the length that it states.
fn frame(header: &[u8; IPV6]) -> Vec<u8> {
    let (ethertype, header_len, len) = if header[0] >> 4 == 4 {
        (
            ETHERTYPE_IPV4,
            20,
            u16::from_be_bytes([header[2], header[3]]),
        )
    } else {
        (
            ETHERTYPE_IPV6,
            40,
            u16::from_be_bytes([header[4], header[5]]) + 40,
        )
    };
    let mut content = header[..header_len].to_vec();
    content.resize(usize::from(len).max(header_len), 0x50);
    ethernet(&[ethertype], &content)
}

fn read(frame: &[u8]) -> Result<Ip, Pass> {
    parse(frame)
}

fn headers(header: &[u8; IPV6]) -> Result<Ip, Pass> {
    read(&frame(header))
}

fn is_control(header: &[u8; IPV6]) -> bool {
    headers(header) == Err(Pass::Control)
}

fn v4(src: [u8; 4], dst: [u8; 4]) -> [u8; IPV6] {
    let mut w = [0u8; IPV6];
    w[0] = 0x45;
    w[1] = ECT_0;
    w[2..4].copy_from_slice(&[0x05, 0xdc]);
    w[8] = 64;
    w[9] = protocol::UDP;
    w[12..16].copy_from_slice(&src);
    w[16..20].copy_from_slice(&dst);
    w
}

fn v6(src: &str, dst: &str, next: u8) -> [u8; IPV6] {
    let mut w = [0u8; IPV6];
    w[0] = 0x60;
    w[1] = ECT_0 << 4;
    w[4..6].copy_from_slice(&[0x01, 0x00]);
    w[6] = next;
    w[7] = 64;
    w[8..24].copy_from_slice(&src.parse::<Ipv6Addr>().unwrap().octets());
    w[24..40].copy_from_slice(&dst.parse::<Ipv6Addr>().unwrap().octets());
    w
}

fn plain4() -> [u8; IPV6] {
    v4([10, 0, 0, 1], [10, 0, 1, 2])
}

fn plain6(next: u8) -> [u8; IPV6] {
    v6("2001:db8::1", "2001:db8:1::2", next)
}

/// An IPv6 frame with these extension headers: protocol and bytes, whose first is set to what follows.
fn extended(extensions: &[(u8, &[u8])], last: u8, payload: &[u8]) -> Vec<u8> {
    let mut content = plain6(extensions.first().map_or(last, |e| e.0)).to_vec();
    for (number, (_, bytes)) in extensions.iter().enumerate() {
        let at = content.len();
        content.extend(*bytes);
        content[at] = extensions.get(number + 1).map_or(last, |e| e.0);
    }
    content.extend(payload);
    let len = (content.len() - IPV6) as u16;
    content[4..6].copy_from_slice(&len.to_be_bytes());
    ethernet(&[ETHERTYPE_IPV6], &content)
}

fn word(packet: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(packet[at..at + 4].try_into().unwrap())
}

#[test]
fn ipv4_by_hand() {
    let ip = headers(&plain4()).unwrap();
    let expected = Ip {
        l3: 14,
        protocol: 17,
        start: [0x45, 0b10],
        version: 4,
        fragment: false,
        authenticated: false,
        unicast: true,
        header_len: 20,
        total_len: 1500,
        source: source(&[0, 0, 0, word(&plain4(), 12)]),
    };
    assert_eq!(ip, expected);
    assert_eq!((ip.upper(), ip.upper_len()), (34, 1480));
}

#[test]
fn ipv6_by_hand() {
    let ip = headers(&plain6(6)).unwrap();
    let expected = Ip {
        l3: 14,
        protocol: 6,
        start: [0x60, 0b10_0000],
        version: 6,
        fragment: false,
        authenticated: false,
        unicast: true,
        header_len: 40,
        total_len: 296,
        source: source(&[8, 12, 16, 20].map(|at| word(&plain6(6), at))),
    };
    assert_eq!(ip, expected);
    assert_eq!((ip.upper(), ip.upper_len()), (54, 256));
}

#[test]
fn tags_in_the_bytes() {
    let content = &frame(&plain4())[ETHERNET..];
    for (types, l3) in [
        (&[ETHERTYPE_IPV4][..], Ok(14)),
        (&[ETHERTYPE_VLAN, ETHERTYPE_IPV4], Ok(18)),
        (&[ETHERTYPE_QINQ, ETHERTYPE_IPV4], Ok(18)),
        (&[ETHERTYPE_QINQ, ETHERTYPE_VLAN, ETHERTYPE_IPV4], Ok(22)),
        (&[ETHERTYPE_VLAN, ETHERTYPE_VLAN, ETHERTYPE_IPV4], Ok(22)),
        (
            &[
                ETHERTYPE_VLAN,
                ETHERTYPE_VLAN,
                ETHERTYPE_VLAN,
                ETHERTYPE_IPV4,
            ],
            Err(Pass::Other),
        ),
        (&[0x9100, ETHERTYPE_IPV4], Err(Pass::Other)),
        // The version contradicts the EtherType.
        (&[ETHERTYPE_IPV6], Err(Pass::Malformed)),
        (&[ETHERTYPE_VLAN, ETHERTYPE_IPV6], Err(Pass::Malformed)),
        (&[0x0806], Err(Pass::Other)),
        (&[38], Err(Pass::Other)),
    ] {
        assert_eq!(
            read(&ethernet(types, content)).map(|ip| ip.l3),
            l3,
            "{types:x?}"
        );
    }
}

#[test]
fn every_shorter_frame_is_refused() {
    let tagged = [ETHERTYPE_QINQ, ETHERTYPE_VLAN, ETHERTYPE_IPV4];
    let v6 = extended(
        &[
            (protocol::HOP_BY_HOP, &[0; 8]),
            (
                protocol::AUTHENTICATION,
                &[
                    0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                ],
            ),
        ],
        protocol::UDP,
        &[0, 1, 0, 2, 0, 8, 0, 0],
    );
    for whole in [
        frame(&plain4()),
        ethernet(&tagged, &frame(&plain4())[ETHERNET..]),
        v6,
    ] {
        assert!(read(&whole).is_ok());
        for len in 0..whole.len() {
            let shorter = if len < ETHERNET {
                Pass::Other
            } else {
                Pass::Malformed
            };
            assert_eq!(read(&whole[..len]), Err(shorter), "{len} bytes");
        }
        // Padding does not belong to the packet.
        let padded = [&whole[..], &[0; 46]].concat();
        assert_eq!(read(&padded), read(&whole));
    }
}

#[test]
fn lengths_that_contradict_each_other() {
    for (header_words, total, expected) in [
        (5, 20, Ok((20, 20))),
        (4, 20, Err(Pass::Malformed)),
        (0, 20, Err(Pass::Malformed)),
        (6, 20, Err(Pass::Malformed)),
        (6, 24, Ok((24, 24))),
        (15, 60, Ok((60, 60))),
        (15, 59, Err(Pass::Malformed)),
        (5, 61, Err(Pass::Malformed)),
        (5, 19, Err(Pass::Malformed)),
        // Left to segmentation, or more than can be stated.
        (5, 0, Ok((20, 60))),
    ] {
        let mut content = vec![0; 60];
        content[..20].copy_from_slice(&plain4()[..20]);
        content[0] = 0x40 | header_words;
        content[2..4].copy_from_slice(&[0, total]);
        let found = read(&ethernet(&[ETHERTYPE_IPV4], &content));
        assert_eq!(
            found.map(|ip| (ip.header_len, ip.total_len)),
            expected,
            "{header_words} {total}"
        );
    }
    // IPv6: nothing stated is nothing there, but for more than could be stated.
    let mut content = plain6(59).to_vec();
    content[4..6].copy_from_slice(&[0, 0]);
    for (len, total) in [
        (40, 40),
        (60, 40),
        (40 + 65_535, 40),
        (40 + 65_536, 40 + 65_536),
    ] {
        content.resize(len, 0);
        let found = read(&ethernet(&[ETHERTYPE_IPV6], &content));
        assert_eq!(found.map(|ip| ip.total_len), Ok(total), "{len}");
    }
}

#[test]
fn not_ip() {
    for first in 0..=255u8 {
        let mut w = plain4();
        w[0] = first;
        let content = &[&w[..], &[0; 1460]].concat();
        let v4 = read(&ethernet(&[ETHERTYPE_IPV4], content));
        assert_eq!(v4.is_ok(), first >> 4 == 4 && first & 15 >= 5, "{first:#x}");
        let mut w = plain6(17);
        w[0] = first;
        let content = &[&w[..], &[0; 1460]].concat();
        let v6 = read(&ethernet(&[ETHERTYPE_IPV6], content));
        assert_eq!(v6.is_ok(), first >> 4 == 6, "{first:#x}");
    }
}

#[test]
fn ipv4_fragments() {
    // Flags and offset, is a fragment.
    for (word, fragment) in [
        (0x0000u16, false),
        (0x4000, false),
        (0x8000, false),
        (0x2000, true),
        (0x0001, true),
        (0x1fff, true),
        (0x20b9, true),
        (0x6000, true),
        (0x0100, true),
    ] {
        let mut w = plain4();
        w[6..8].copy_from_slice(&word.to_be_bytes());
        let f = frame(&w);
        let ip = read(&f).unwrap();
        assert_eq!(ip.fragment, fragment, "{word:#x}");
        assert!(ip.markable());
        // Its flow is of addresses and protocol.
        let ports = transport(&f[..], &ip).unwrap();
        assert_eq!(ports.src_port == 0x5050, !fragment, "{word:#x}");
        assert_eq!(ports == Transport::default(), fragment, "{word:#x}");
    }
}

#[test]
fn ipv6_fragments() {
    for (word, fragment) in [
        (0u16, false),
        (0x0006, false),
        (1, true),
        (0x0008, true),
        (0xfff9, true),
    ] {
        let mut header = [0u8; 8];
        header[2..4].copy_from_slice(&word.to_be_bytes());
        // Behind it: looks like another extension, and is payload if this is a fragment.
        let f = extended(
            &[
                (protocol::FRAGMENT, &header),
                (protocol::DESTINATION, &[0; 8]),
            ],
            protocol::UDP,
            &[0, 1, 0, 2, 0, 8, 0, 0],
        );
        let ip = read(&f).unwrap();
        assert_eq!(ip.fragment, fragment, "{word:#x}");
        assert!(ip.markable());
        let expected = if fragment {
            (protocol::DESTINATION, 48)
        } else {
            (protocol::UDP, 56)
        };
        assert_eq!((ip.protocol, ip.header_len), expected, "{word:#x}");
        let ports = transport(&f[..], &ip).unwrap();
        assert_eq!(
            (ports.src_port, ports.dst_port),
            if fragment { (0, 0) } else { (1, 2) }
        );
    }
    // Bytes that would be an IPv4 fragment offset: here next header and hop limit.
    let mut w = plain6(17);
    w[7] = 1;
    assert!(!headers(&w).unwrap().fragment);
}

#[test]
fn extension_headers() {
    let options = [0u8; 8];
    let long = [[0u8, 2].as_slice(), &[0; 22]].concat();
    let routing = [
        0, 2, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let ah = [[0u8, 4].as_slice(), &[0; 22]].concat();
    let udp = [0x12, 0x34, 0x56, 0x78, 0, 8, 0, 0];
    for (extensions, header_len, authenticated) in [
        (&[][..], 40, false),
        (&[(protocol::HOP_BY_HOP, &options[..])][..], 48, false),
        (
            &[
                (protocol::DESTINATION, &long[..]),
                (protocol::ROUTING, &routing),
            ],
            88,
            false,
        ),
        (
            &[
                (protocol::HOP_BY_HOP, &options),
                (protocol::AUTHENTICATION, &ah),
            ],
            72,
            true,
        ),
        (
            &[(protocol::DESTINATION, &options[..]); EXTENSIONS as usize],
            88,
            false,
        ),
    ] {
        let f = extended(extensions, protocol::UDP, &udp);
        let ip = read(&f).unwrap();
        let found = (ip.protocol, ip.header_len, ip.authenticated);
        assert_eq!(found, (protocol::UDP, header_len, authenticated));
        let ports = transport(&f[..], &ip).unwrap();
        assert_eq!((ports.src_port, ports.dst_port), (0x1234, 0x5678));
    }
    // One more than are followed: a flow of addresses and the next header.
    let f = extended(
        &[(protocol::DESTINATION, &options[..]); EXTENSIONS as usize + 1],
        protocol::UDP,
        &udp,
    );
    let ip = read(&f).unwrap();
    assert_eq!((ip.protocol, ip.header_len), (protocol::DESTINATION, 88));
    assert_eq!(transport(&f[..], &ip), Ok(Transport::default()));
    // Longer than the packet.
    let f = extended(
        &[(protocol::DESTINATION, &[0, 200, 0, 0, 0, 0, 0, 0])],
        protocol::UDP,
        &udp,
    );
    assert_eq!(read(&f), Err(Pass::Malformed));
}

/// RFC 4302: nothing behind it may change, so TCP's flags must not be written.
#[test]
fn authentication_header() {
    let ah = [[protocol::TCP, 4].as_slice(), &[0; 22]].concat();
    let segment = [
        0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x12, 0, 0, 0, 0, 0, 0,
    ];
    let mut w = plain4();
    w[3] = 20 + 24 + 20;
    w[2] = 0;
    w[9] = protocol::AUTHENTICATION;
    let f = ethernet(&[ETHERTYPE_IPV4], &[&w[..20], &ah, &segment].concat());
    let ip = read(&f).unwrap();
    assert_eq!(
        (ip.protocol, ip.header_len, ip.authenticated),
        (protocol::TCP, 44, true)
    );
    let t = transport(&f[..], &ip).unwrap();
    assert_eq!((t.src_port, t.dst_port, t.tcp()), (1, 2, None));
}

/// Tunnels: outer headers only; ESP has no readable ports.
#[test]
fn outer_headers() {
    for protocol in [47, 50, 4, 41, 132 /* with too short a header below */] {
        let mut w = plain4();
        w[9] = protocol;
        let f = frame(&w);
        let ip = read(&f).unwrap();
        assert_eq!((ip.protocol, ip.header_len), (protocol, 20));
        let ports = transport(&f[..], &ip).unwrap();
        assert_eq!(
            ports.src_port,
            if protocol == 132 { 0x5050 } else { 0 },
            "{protocol}"
        );
    }
    // VXLAN: the outer UDP's.
    let inner = frame(&plain4());
    let mut w = plain4();
    let len = (20 + 8 + 8 + inner.len()) as u16;
    w[2..4].copy_from_slice(&len.to_be_bytes());
    let f = ethernet(
        &[ETHERTYPE_IPV4],
        &[
            &w[..20],
            &[0xc0, 0, 0x12, 0xb5, 0, 0, 0, 0],
            &[8, 0, 0, 0, 0, 0, 7, 0],
            &inner,
        ]
        .concat(),
    );
    let t = transport(&f[..], &read(&f).unwrap()).unwrap();
    assert_eq!((t.src_port, t.dst_port, t.header_len), (0xc000, 4789, 8));
}

#[test]
fn transport_headers_that_are_not_all_there() {
    for (protocol, shortest) in [(6, 20), (17, 8), (33, 12), (132, 12), (136, 8)] {
        for len in 0..=shortest {
            let mut w = plain4();
            w[2..4].copy_from_slice(&(20 + len as u16).to_be_bytes());
            w[9] = protocol;
            // Padding looks like ports.
            let f = [frame(&w), vec![0x50; 46]].concat();
            let t = transport(&f[..], &read(&f).unwrap());
            assert_eq!(t.is_ok(), len == shortest, "{protocol}: {len} bytes");
            assert_eq!(t.is_err(), t == Err(Pass::Malformed));
        }
    }
    // TCP's own length: shorter than the least, longer than the packet.
    for (words, fits) in [
        (0, false),
        (4, false),
        (5, true),
        (10, true),
        (11, false),
        (15, false),
    ] {
        let mut w = plain4();
        w[2..4].copy_from_slice(&60u16.to_be_bytes());
        w[9] = protocol::TCP;
        let mut f = frame(&w);
        f[34 + 12] = words << 4;
        let t = transport(&f[..], &read(&f).unwrap());
        assert_eq!(
            t.map(|t| t.header_len).ok(),
            fits.then_some(u32::from(words) * 4),
            "{words}"
        );
    }
}

#[test]
fn ecn_field() {
    for (field, capable) in [(NOT_ECT, false), (ECT_1, true), (ECT_0, true), (CE, true)] {
        // All other bits of the traffic class and the flow label set, then none.
        for other in [0xffu8, 0] {
            let mut w = plain4();
            w[1] = (other & !3) | field;
            let ip = headers(&w).unwrap();
            assert_eq!((ip.ecn(), ip.markable()), (field, capable));
            let mut w = plain6(17);
            w[0] = 0x60 | (other & 0xf);
            w[1] = (other & !0x30) | field << 4;
            let ip = headers(&w).unwrap();
            assert_eq!((ip.ecn(), ip.markable()), (field, capable));
        }
    }
    assert_eq!([NOT_ECT, ECT_1, ECT_0, CE], [0, 1, 2, 3]);
}

#[test]
fn unicast() {
    for (dst, unicast) in [
        ([10, 0, 0, 1], true),
        ([223, 255, 255, 255], true),
        ([239, 1, 2, 3], false),
        ([224, 0, 1, 1], false),
        ([255, 255, 255, 255], false),
        ([0, 0, 0, 0], false),
    ] {
        assert_eq!(
            headers(&v4([10, 0, 0, 9], dst)).map(|ip| ip.unicast),
            Ok(unicast),
            "{dst:?}"
        );
    }
    for (dst, unicast) in [("2001:db8::1", true), ("ff0e::1", false)] {
        assert_eq!(
            headers(&v6("2001:db8::2", dst, 17)).map(|ip| ip.unicast),
            Ok(unicast),
            "{dst}"
        );
    }
}

#[test]
fn ipv4_control() {
    let here = [10, 0, 0, 1];
    for (other, control) in [
        ([169, 254, 0, 1], true),
        ([169, 254, 255, 255], true),
        ([169, 253, 0, 1], false),
        ([169, 255, 0, 1], false),
        ([168, 254, 0, 1], false),
        ([10, 169, 254, 1], false),
    ] {
        assert_eq!(is_control(&v4(other, here)), control, "from {other:?}");
        assert_eq!(is_control(&v4(here, other)), control, "to {other:?}");
    }
    for (group, control) in [
        ([224, 0, 0, 1], true),
        ([224, 0, 0, 255], true),
        ([224, 0, 1, 1], false),
        ([224, 1, 0, 1], false),
        ([225, 0, 0, 1], false),
        ([239, 255, 255, 250], false),
        ([255, 255, 255, 255], false),
    ] {
        assert_eq!(is_control(&v4(here, group)), control, "to {group:?}");
    }
    // IGMP reports go to the group.
    let mut w = v4(here, [239, 1, 2, 3]);
    assert!(!is_control(&w));
    w[9] = protocol::IGMP;
    assert!(is_control(&w));
    // IPv6's rules do not apply: byte 6 is not a next header.
    let mut w = plain4();
    w[6] = 58;
    assert!(!is_control(&w));
}

#[test]
fn ipv6_control() {
    let here = "2001:db8::1";
    for (other, control) in [
        ("fe80::1", true),
        ("febf:ffff::1", true),
        ("fec0::1", false),
        ("fe7f::1", false),
        ("fd00::1", false),
        ("fe00::80", false),
        ("::", false),
    ] {
        assert_eq!(is_control(&v6(other, here, 17)), control, "from {other}");
        assert_eq!(is_control(&v6(here, other, 17)), control, "to {other}");
    }
    for (group, control) in [
        ("ff01::1", true),
        ("ff02::1", true),
        ("ff02::1:ff00:1", true),
        ("ff02::16", true),
        ("ff12::1", true),
        ("ff04::1", false),
        ("ff05::2", false),
        ("ff0e::1", false),
        ("ff3e::1", false),
    ] {
        assert_eq!(is_control(&v6(here, group, 17)), control, "to {group}");
    }
}

#[test]
fn tunnels() {
    let protocols = (0..=255).filter(|protocol| is_tunnel(*protocol, 0));
    assert_eq!(protocols.collect::<Vec<u8>>(), [4, 41, 47, 97, 137]);
    let ports = (0..=u16::MAX).filter(|port| is_tunnel(protocol::UDP, *port));
    let expected = [4789, 4790, 6080, 6081, 6635, 8472];
    assert_eq!(ports.collect::<Vec<u16>>(), expected);
    assert!(!is_tunnel(protocol::TCP, 4789));
}

#[test]
fn neighbours_and_listeners() {
    for kind in 0..=255u8 {
        // 128 and 129 are ping, which is ordinary traffic.
        let control = (130..=137).contains(&kind) || kind == 143;
        let expected = if control {
            Err(Pass::Control)
        } else {
            Ok(protocol::ICMPV6)
        };
        let kind_of = |f: &[u8]| read(f).map(|ip| ip.protocol);
        assert_eq!(
            kind_of(&extended(&[], 58, &[kind, 0, 0, 0])),
            expected,
            "type {kind}"
        );
        // MLD has a router alert before it.
        let alert = [0, 0, 5, 2, 0, 0, 1, 0];
        let f = extended(&[(protocol::HOP_BY_HOP, &alert)], 58, &[kind, 0, 0, 0]);
        assert_eq!(kind_of(&f), expected, "type {kind} behind options");
        let f = extended(
            &[(protocol::FRAGMENT, &[0, 0, 0, 9, 0, 0, 0, 0])],
            58,
            &[kind, 0, 0, 0],
        );
        assert_eq!(kind_of(&f), Ok(58), "payload {kind} of a later fragment");
        assert_eq!(
            kind_of(&extended(&[], 17, &[kind; 8])),
            Ok(17),
            "UDP that begins with {kind}"
        );
    }
    assert_eq!(read(&extended(&[], 58, &[])), Err(Pass::Malformed));
}

#[test]
fn addresses_by_hand() {
    let both = |header| {
        let f = frame(&header);
        let (mut from, mut to) = ([0; 16], [0; 16]);
        assert!(addresses(&f[..], &read(&f).unwrap(), &mut from, &mut to));
        (Ipv6Addr::from(from), Ipv6Addr::from(to))
    };
    let (from, to) = both(v4([10, 1, 2, 3], [192, 168, 4, 5]));
    assert_eq!(from, Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped());
    assert_eq!(to, Ipv4Addr::new(192, 168, 4, 5).to_ipv6_mapped());
    let (from, to) = both(plain6(17));
    assert_eq!(from, "2001:db8::1".parse::<Ipv6Addr>().unwrap());
    assert_eq!(to, "2001:db8:1::2".parse::<Ipv6Addr>().unwrap());
}

#[test]
fn ports() {
    for protocol in 0..=255u8 {
        let mut w = plain4();
        w[9] = protocol;
        let f = frame(&w);
        let Ok(ip) = read(&f) else {
            assert_eq!(protocol, protocol::IGMP);
            continue;
        };
        let t = transport(&f[..], &ip).unwrap();
        let has = [6, 17, 33, 132, 136].contains(&protocol);
        assert_eq!(t.src_port != 0, has, "{protocol}");
        assert_eq!(t.tcp().is_some(), protocol == 6);
    }
}

#[test]
fn super_packets() {
    // Counted by the kernel, size of a segment, payload.
    for (counted, size, payload, n) in [
        (0, 0, 1460, 1),
        (1, 0, 0, 1),
        (45, 1448, 65_160, 45),
        (45, 1448, 0, 45),
        (0, 1448, 65_160, 45),
        (0, 1448, 65_161, 46),
        (0, 1448, 1448, 1),
        (0, 1448, 1449, 2),
        (0, 1448, 0, 1),
    ] {
        assert_eq!(
            segments(counted, size, payload),
            n,
            "{counted} {size} {payload}"
        );
    }
    // Linux-traps C2: 68,130 on the wire for a 65,226-byte frame of 45 segments.
    assert_eq!(wire_bytes(65_226, 45, 66), 68_130);
    assert_eq!(wire_bytes(1514, 1, 66), 1514);
    assert_eq!(wire_bytes(1514, 0, 66), 1514);
}

#[test]
fn tcp_flags_by_hand() {
    let segment = |offset_and_ae: u8, flags: u8| {
        let mut b = [0xff; TRANSPORT_WINDOW];
        b[12] = offset_and_ae;
        b[13] = flags;
        tcp(&b)
    };
    let t = segment(0x50, 0x02);
    assert_eq!(
        (t.syn(), t.ack(), t.ecn(), t.header_len),
        (true, false, false, 20)
    );
    let t = segment(0xa0, 0x12);
    assert_eq!(
        (t.syn(), t.ack(), t.ecn(), t.header_len),
        (true, true, false, 40)
    );
    // RFC 3168: ECE and CWR ask for ECN; RFC 9768: AE with them.
    for (ae, flags) in [(0, 0x42), (0, 0x82), (0, 0xc2), (1, 0x02), (1, 0xc2)] {
        assert!(segment(0x50 | ae, flags).ecn(), "{ae} {flags:#x}");
    }
    // FIN, PSH, URG, RST; reserved bits.
    let t = segment(0x5e, 0x2d);
    assert_eq!((t.syn(), t.ack(), t.ecn()), (false, false, false));
}

proptest! {
    #[test]
    fn tcp_as_etherparse_writes_it(
        ports in any::<(u16, u16)>(),
        numbers in any::<(u32, u32)>(),
        flags in any::<[bool; 9]>(),
        options in 0..=10usize,
    ) {
        let mut h = TcpHeader::new(ports.0, ports.1, numbers.0, 1000);
        h.acknowledgment_number = numbers.1;
        [h.fin, h.syn, h.rst, h.psh, h.ack, h.urg, h.ece, h.cwr, h.ns] = flags;
        h.set_options(&vec![TcpOptionElement::Noop; options * 4]).unwrap();
        let bytes = h.to_bytes();
        let mut b = [0; TRANSPORT_WINDOW];
        b.copy_from_slice(&bytes[..TRANSPORT_WINDOW]);
        let t = tcp(&b);
        prop_assert_eq!((t.syn(), t.ack()), (h.syn, h.ack));
        prop_assert_eq!(t.ecn(), h.ece || h.cwr || h.ns);
        prop_assert_eq!(t.header_len as usize, h.header_len());
        prop_assert_eq!((t.fin(), t.rst()), (h.fin, h.rst));
        prop_assert_eq!(t.ace(), u8::from(h.ns) << 2 | u8::from(h.cwr) << 1 | u8::from(h.ece));
        prop_assert_eq!((t.sequence, t.ack_number), (h.sequence_number, h.acknowledgment_number));
    }
}
