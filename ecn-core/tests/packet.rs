//! Headers as other implementations write them, and as the RFCs draw them.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::net::{Ipv4Addr, Ipv6Addr};

use ecn_core::packet::{
    self, CE, ECT_0, ECT_1, IP_WINDOW, NOT_ECT, TRANSPORT_WINDOW, destination, ecn, ip, is_control,
    markable, source, tcp,
};
use etherparse::{
    IpDscp, IpEcn, IpFragOffset, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader,
    TcpOptionElement,
};
use proptest::prelude::*;

fn window(bytes: &[u8]) -> [u8; IP_WINDOW] {
    let mut w = [0xa5; IP_WINDOW];
    let n = bytes.len().min(IP_WINDOW);
    w[..n].copy_from_slice(&bytes[..n]);
    w
}

fn v4(src: [u8; 4], dst: [u8; 4]) -> [u8; IP_WINDOW] {
    let mut w = [0u8; IP_WINDOW];
    w[0] = 0x45;
    w[1] = ECT_0;
    w[2..4].copy_from_slice(&[0x05, 0xdc]);
    w[8] = 64;
    w[9] = packet::protocol::UDP;
    w[12..16].copy_from_slice(&src);
    w[16..20].copy_from_slice(&dst);
    w
}

fn v6(src: &str, dst: &str, next: u8) -> [u8; IP_WINDOW] {
    let mut w = [0u8; IP_WINDOW];
    w[0] = 0x60;
    w[1] = ECT_0 << 4;
    w[4..6].copy_from_slice(&[0x01, 0x00]);
    w[6] = next;
    w[7] = 64;
    w[8..24].copy_from_slice(&src.parse::<Ipv6Addr>().unwrap().octets());
    w[24..40].copy_from_slice(&dst.parse::<Ipv6Addr>().unwrap().octets());
    w
}

fn plain4() -> [u8; IP_WINDOW] {
    v4([10, 0, 0, 1], [10, 0, 1, 2])
}

fn plain6(next: u8) -> [u8; IP_WINDOW] {
    v6("2001:db8::1", "2001:db8:1::2", next)
}

#[test]
fn ipv4_by_hand() {
    let p = ip(&plain4()).unwrap();
    assert_eq!(
        p,
        packet::Ip {
            protocol: 17,
            ecn: 0b10,
            version: 4,
            fragment: false,
            unicast: true,
            header_len: 20,
            total_len: 1500,
        }
    );
}

#[test]
fn ipv6_by_hand() {
    let p = ip(&plain6(6)).unwrap();
    assert_eq!(
        p,
        packet::Ip {
            protocol: 6,
            ecn: 0b10,
            version: 6,
            fragment: false,
            unicast: true,
            header_len: 40,
            total_len: 296,
        }
    );
    // Longer than it can state.
    let mut w = plain6(6);
    w[4..6].copy_from_slice(&[0, 0]);
    assert_eq!(ip(&w).unwrap().total_len, 0);
}

#[test]
fn not_ip() {
    for first in 0..=255u8 {
        let mut w = plain4();
        w[0] = first;
        let known = (first >> 4 == 4 && first & 15 >= 5) || first >> 4 == 6;
        assert_eq!(ip(&w).is_some(), known, "{first:#x}");
    }
}

#[test]
fn ipv4_options() {
    for words in 5..=15u8 {
        let mut w = plain4();
        w[0] = 0x40 | words;
        assert_eq!(ip(&w).unwrap().header_len, u32::from(words) * 4);
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
        assert_eq!(ip(&w).unwrap().fragment, fragment, "{word:#x}");
        assert_eq!(markable(&w), !fragment, "{word:#x}");
    }
}

#[test]
fn ipv6_fragments() {
    assert!(ip(&plain6(44)).unwrap().fragment);
    assert!(!markable(&plain6(44)));
    assert!(!ip(&plain6(17)).unwrap().fragment);
    assert!(markable(&plain6(17)));
    // Bytes that would be an IPv4 fragment offset: here next header and hop limit.
    let mut w = plain6(6);
    w[7] = 255;
    assert!(markable(&w) && !ip(&w).unwrap().fragment);
}

#[test]
fn ecn_field() {
    for (field, capable) in [(NOT_ECT, false), (ECT_1, true), (ECT_0, true), (CE, true)] {
        // All other bits of the traffic class and the flow label set, then none.
        for other in [0xffu8, 0] {
            let mut w = plain4();
            w[1] = (other & !3) | field;
            assert_eq!((ecn(&w), ip(&w).unwrap().ecn), (field, field));
            assert_eq!(markable(&w), capable);
            let mut w = plain6(6);
            w[0] = 0x60 | (other & 0xf);
            w[1] = (other & !0x30) | field << 4;
            assert_eq!((ecn(&w), ip(&w).unwrap().ecn), (field, field));
            assert_eq!(markable(&w), capable);
        }
    }
    assert_eq!([NOT_ECT, ECT_1, ECT_0, CE], [0, 1, 2, 3]);
}

#[test]
fn unicast() {
    for (dst, unicast) in [
        ([10, 0, 0, 1], true),
        ([223, 255, 255, 255], true),
        ([224, 0, 0, 1], false),
        ([239, 1, 2, 3], false),
        ([255, 255, 255, 255], false),
        ([0, 0, 0, 0], false),
    ] {
        assert_eq!(
            ip(&v4([10, 0, 0, 9], dst)).unwrap().unicast,
            unicast,
            "{dst:?}"
        );
    }
    for (dst, unicast) in [
        ("2001:db8::1", true),
        ("fe80::1", true),
        ("ff02::1", false),
        ("ff0e::1", false),
    ] {
        assert_eq!(
            ip(&v6("2001:db8::2", dst, 17)).unwrap().unicast,
            unicast,
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
        assert_eq!(is_control(&v4(other, here), 0), control, "from {other:?}");
        assert_eq!(is_control(&v4(here, other), 0), control, "to {other:?}");
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
        assert_eq!(is_control(&v4(here, group), 0), control, "to {group:?}");
    }
    // Nothing of IPv6's rules: `upper` is not there, and byte 6 is no next header.
    let mut w = plain4();
    w[6] = 58;
    assert!(!is_control(&w, 135));
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
        assert_eq!(is_control(&v6(other, here, 17), 0), control, "from {other}");
        assert_eq!(is_control(&v6(here, other, 17), 0), control, "to {other}");
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
        assert_eq!(is_control(&v6(here, group, 17), 0), control, "to {group}");
    }
}

#[test]
fn neighbour_discovery() {
    for kind in 0..=255u8 {
        // 128 and 129 are ping, which is traffic like any other.
        let discovery = (133..=137).contains(&kind);
        assert_eq!(is_control(&plain6(58), kind), discovery, "type {kind}");
        assert!(
            !is_control(&plain6(17), kind),
            "UDP with a first byte of {kind}"
        );
    }
}

#[test]
fn addresses() {
    let w = v4([10, 1, 2, 3], [192, 168, 4, 5]);
    let (mut from, mut to) = ([0; 16], [0; 16]);
    source(&w, &mut from);
    destination(&w, &mut to);
    assert_eq!(from, Ipv4Addr::new(10, 1, 2, 3).to_ipv6_mapped().octets());
    assert_eq!(to, Ipv4Addr::new(192, 168, 4, 5).to_ipv6_mapped().octets());
    let w = plain6(17);
    let (mut from, mut to) = ([0xee; 16], [0xee; 16]);
    source(&w, &mut from);
    destination(&w, &mut to);
    assert_eq!(from, "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
    assert_eq!(to, "2001:db8:1::2".parse::<Ipv6Addr>().unwrap().octets());
}

#[test]
fn ports() {
    for protocol in 0..=255u8 {
        let mut w = plain4();
        w[9] = protocol;
        let has = [6, 17, 33, 132, 136].contains(&protocol);
        assert_eq!(ip(&w).unwrap().has_ports(), has, "{protocol}");
    }
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
        (t.syn, t.ack, t.ecn, t.header_len),
        (true, false, false, 20)
    );
    let t = segment(0xa0, 0x12);
    assert_eq!((t.syn, t.ack, t.ecn, t.header_len), (true, true, false, 40));
    // RFC 3168: ECE and CWR ask for ECN; RFC 9768: AE with them.
    for (ae, flags) in [(0, 0x42), (0, 0x82), (0, 0xc2), (1, 0x02), (1, 0xc2)] {
        assert!(segment(0x50 | ae, flags).ecn, "{ae} {flags:#x}");
    }
    // FIN, PSH, URG, RST; reserved bits.
    let t = segment(0x5e, 0x2d);
    assert_eq!((t.syn, t.ack, t.ecn), (false, false, false));
}

proptest! {
    #[test]
    fn ipv4_as_etherparse_writes_it(
        addresses in any::<([u8; 4], [u8; 4])>(),
        protocol in any::<u8>(),
        field in 0..4u8,
        dscp in 0..64u8,
        options in 0..=10usize,
        payload in 0..60_000u16,
        offset in prop_oneof![Just(0u16), 1..0x2000u16],
        more in any::<bool>(),
        dont in any::<bool>(),
        id in any::<u16>(),
    ) {
        let mut h = Ipv4Header::new(payload, 64, IpNumber(protocol), addresses.0, addresses.1).unwrap();
        h.ecn = IpEcn::try_new(field).unwrap();
        h.dscp = IpDscp::try_new(dscp).unwrap();
        h.identification = id;
        h.fragment_offset = IpFragOffset::try_new(offset).unwrap();
        h.more_fragments = more;
        h.dont_fragment = dont;
        h.options = [1u8; 40][..options * 4].try_into().unwrap();
        h.set_payload_len(payload.into()).unwrap();
        let bytes = h.to_bytes();
        let w = window(&bytes);
        let p = ip(&w).unwrap();
        prop_assert_eq!(p.protocol, protocol);
        prop_assert_eq!((p.ecn, ecn(&w)), (field, field));
        prop_assert_eq!(p.version, 4);
        prop_assert_eq!(p.fragment, h.is_fragmenting_payload());
        prop_assert_eq!(markable(&w), field != 0 && !h.is_fragmenting_payload());
        prop_assert_eq!(p.header_len as usize, h.header_len());
        prop_assert_eq!(p.total_len, u32::from(h.total_len));
        let (src, dst) = (Ipv4Addr::from(addresses.0), Ipv4Addr::from(addresses.1));
        prop_assert_eq!(p.unicast, !dst.is_multicast() && dst.octets()[0] < 224 && dst.octets()[0] != 0);
        let local_group = dst.is_multicast() && dst.octets()[..3] == [224, 0, 0];
        let control = src.is_link_local() || dst.is_link_local() || local_group;
        prop_assert_eq!(is_control(&w, 135), control);
    }

    #[test]
    fn ipv6_as_etherparse_writes_it(
        addresses in any::<([u8; 16], [u8; 16])>(),
        // Link-local and multicast destinations are rare in random bytes.
        first in prop_oneof![Just(None), any::<(u8, u8)>().prop_map(|(b, _)| Some((0xff, b))),
                             any::<u8>().prop_map(|b| Some((0xfe, b)))],
        next in prop_oneof![any::<u8>(), Just(44), Just(58)],
        field in 0..4u8,
        dscp in 0..64u8,
        label in 0..0x10_0000u32,
        payload in 1..=u16::MAX,
        upper in any::<u8>(),
    ) {
        let mut to = addresses.1;
        if let Some((a, b)) = first {
            (to[0], to[1]) = (a, b);
        }
        let h = Ipv6Header {
            traffic_class: dscp << 2 | field,
            flow_label: Ipv6FlowLabel::try_new(label).unwrap(),
            payload_length: payload,
            next_header: IpNumber(next),
            hop_limit: 64,
            source: addresses.0,
            destination: to,
        };
        let w = window(&h.to_bytes());
        let p = ip(&w).unwrap();
        prop_assert_eq!((p.protocol, p.version, p.header_len), (next, 6, 40));
        prop_assert_eq!((p.ecn, ecn(&w)), (field, field));
        prop_assert_eq!(p.total_len, u32::from(payload) + 40);
        prop_assert_eq!(p.fragment, next == 44);
        prop_assert_eq!(markable(&w), field != 0 && next != 44);
        let (src, dst) = (Ipv6Addr::from(addresses.0), Ipv6Addr::from(to));
        prop_assert_eq!(p.unicast, !dst.is_multicast());
        let local_group = dst.is_multicast() && to[1] & 15 <= 2;
        let discovery = next == 58 && (133..=137).contains(&upper);
        let control = src.is_unicast_link_local() || dst.is_unicast_link_local() || local_group || discovery;
        prop_assert_eq!(is_control(&w, upper), control);
    }

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
        prop_assert_eq!((t.syn, t.ack), (h.syn, h.ack));
        prop_assert_eq!(t.ecn, h.ece || h.cwr || h.ns);
        prop_assert_eq!(t.header_len as usize, h.header_len());
    }
}
