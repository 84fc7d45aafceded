//! The cursor and the echo parser with any input: constructed frames, the same with changed bytes, and noise; compared with
//! etherparse, an independent implementation.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::cell::Cell;

use ecn_core::{
    echo::{self, Echo, Sender},
    packet::{
        self, Buffer, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_QINQ, ETHERTYPE_VLAN, EXTENSIONS,
        Ip, Pass, Read, TAGS, Transport, addresses, parse, ports, protocol, transport,
    },
};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

const CASES: u32 = 10_000;

/// A frame that records whether bytes behind its end were read.
struct Watched<'a> {
    bytes: &'a [u8],
    reads: Cell<u32>,
}

impl Read for Watched<'_> {
    fn frame_len(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn read<'a, const N: usize>(&self, at: u32, to: &'a mut Buffer<N>) -> Option<&'a [u8; N]> {
        self.reads.set(self.reads.get() + 1);
        let bytes = self.bytes.read(at, to);
        assert_eq!(bytes.is_some(), at as usize + N <= self.bytes.len());
        bytes
    }
}

/// Everything that the cursor reports of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Found {
    ip: Ip,
    src: [u8; 16],
    dst: [u8; 16],
    transport: Result<Transport, Pass>,
}

fn find(frame: &[u8]) -> Result<Found, Pass> {
    let watched = Watched {
        bytes: frame,
        reads: Cell::new(0),
    };
    let ip = parse(&watched)?;
    let (mut src, mut dst) = ([0; 16], [0; 16]);
    assert!(addresses(&watched, &ip, &mut src, &mut dst));
    let transport = transport(&watched, &ip);
    if let Ok(t) = transport {
        assert_eq!(ports(frame, &ip), Some((t.src_port, t.dst_port)));
    }
    // EtherType, tags, header, extensions, ICMPv6 type, addresses, transport.
    assert!(watched.reads.get() <= 1 + TAGS + 1 + EXTENSIONS + 1 + 2 + 1);
    Ok(Found {
        ip,
        src,
        dst,
        transport,
    })
}

/// Invariants of any frame.
fn consistent(frame: &[u8]) {
    let Ok(found) = find(frame) else {
        return;
    };
    let ip = found.ip;
    assert!(matches!(ip.l3, 14 | 18 | 22), "{ip:?}");
    assert!(ip.header_len >= if ip.version == 4 { 20 } else { 40 });
    assert!(ip.header_len <= ip.total_len);
    assert!((ip.l3 + ip.total_len) as usize <= frame.len());
    assert_eq!(ip.start[..], frame[ip.l3 as usize..][..2]);
    if let Ok(t) = found.transport {
        assert!(t.header_len <= ip.upper_len(), "{found:?}");
        assert!(!ip.fragment || t == Transport::default());
        assert!(t.tcp().is_none() || (ip.protocol == protocol::TCP && !ip.authenticated));
    }
    remarked(frame, &found);
}

/// Writes another ECN field as the programs do: nothing else may change, and the header's checksum is as right or as wrong
/// as before.
fn remarked(frame: &[u8], found: &Found) {
    let (ip, at) = (found.ip, found.ip.l3 as usize);
    for codepoint in 0..4 {
        let mut changed = frame.to_vec();
        changed[at + 1] = ip.with_ecn(codepoint);
        let mut expected = *found;
        expected.ip.start[1] = changed[at + 1];
        if ip.version == 4 {
            assert_eq!(changed[at + 1] & !3, frame[at + 1] & !3);
            let word = |b: &[u8], i: usize| u16::from_be_bytes([b[at + i], b[at + i + 1]]);
            // RFC 1624, equation 3, as bpf_l3_csum_replace has it.
            let sum = u32::from(!word(frame, 10))
                + u32::from(!word(frame, 0))
                + u32::from(word(&changed, 0));
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
            changed[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
            let residue = |b: &[u8]| {
                let words = (0..ip.version as usize * 5).step_by(2);
                words.map(|i| u64::from(word(b, i))).sum::<u64>() % 0xffff
            };
            assert_eq!(residue(&changed), residue(frame));
        } else {
            assert_eq!(changed[at + 1] & !0x30, frame[at + 1] & !0x30);
        }
        assert_eq!(expected.ip.ecn(), codepoint);
        assert_eq!(find(&changed), Ok(expected));
    }
}

/// The same by etherparse, where both define a result.
fn compare(frame: &[u8]) -> bool {
    let (Ok(found), Ok(theirs)) = (find(frame), SlicedPacket::from_ethernet(frame)) else {
        return false;
    };
    let ip = found.ip;
    let start = frame.as_ptr() as usize;
    let (src, dst, fragment, payload) = match &theirs.net {
        Some(NetSlice::Ipv4(v4)) => {
            let h = v4.header();
            let (src, dst) = (h.source_addr(), h.destination_addr());
            assert_eq!((ip.version, ip.ecn()), (4, h.ecn().value()));
            (
                src.to_ipv6_mapped().octets(),
                dst.to_ipv6_mapped().octets(),
                v4.is_payload_fragmented(),
                v4.payload(),
            )
        }
        Some(NetSlice::Ipv6(v6)) => {
            let h = v6.header();
            assert_eq!((ip.version, ip.ecn()), (6, h.traffic_class() & 3));
            // Without a stated length etherparse treats the padding as payload.
            if h.payload_length() == 0 {
                return false;
            }
            let fragment = v6.is_payload_fragmented();
            (h.source(), h.destination(), fragment, v6.payload())
        }
        other => panic!("ours is {found:?}, theirs {other:?}"),
    };
    assert_eq!((found.src, found.dst), (src, dst));
    // It continues behind a fragment header, and through any number of others.
    assert!(fragment || !ip.fragment);
    if ip.fragment || is_extension(ip.protocol) {
        return true;
    }
    assert_eq!((fragment, ip.protocol), (false, payload.ip_number.0));
    assert_eq!(
        ip.upper() as usize,
        payload.payload.as_ptr() as usize - start
    );
    assert_eq!(ip.upper_len() as usize, payload.payload.len());
    match theirs.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let t = found.transport.unwrap();
            assert_eq!(
                (t.src_port, t.dst_port),
                (tcp.source_port(), tcp.destination_port())
            );
            assert_eq!(t.header_len as usize, tcp.header_len());
            if let Some(ours) = t.tcp() {
                assert_eq!((ours.syn(), ours.ack()), (tcp.syn(), tcp.ack()));
                assert_eq!(ours.ecn(), tcp.ece() || tcp.cwr() || tcp.ns());
            }
        }
        Some(TransportSlice::Udp(udp)) => {
            let t = found.transport.unwrap();
            let ports = (udp.source_port(), udp.destination_port());
            assert_eq!(
                (t.src_port, t.dst_port, t.header_len),
                (ports.0, ports.1, 8)
            );
        }
        _ => assert!(found.transport.is_err() || found.transport.unwrap().tcp().is_none()),
    }
    true
}

fn is_extension(next: u8) -> bool {
    [
        protocol::HOP_BY_HOP,
        protocol::ROUTING,
        protocol::FRAGMENT,
        protocol::AUTHENTICATION,
        protocol::DESTINATION,
    ]
    .contains(&next)
}

/// A frame, and the expected result.
#[derive(Clone, Debug)]
struct Built {
    bytes: Vec<u8>,
    expected: Result<Found, Pass>,
}

/// Upper layers: protocol, header, its length as transport header, expected result.
fn upper() -> impl Strategy<Value = (u8, Vec<u8>, Transport)> {
    let ports = any::<(u16, u16)>();
    prop_oneof![
        (ports, any::<u8>(), any::<u8>(), 5..=15u8, any::<u8>()).prop_map(
            |((src, dst), ae, flags, words, rest)| {
                let mut b = vec![rest; usize::from(words) * 4];
                b[..2].copy_from_slice(&src.to_be_bytes());
                b[2..4].copy_from_slice(&dst.to_be_bytes());
                b[12] = words << 4 | ae & 1;
                b[13] = flags;
                let header_len = u32::from(words) * 4;
                let tcp = packet::Tcp {
                    flags: u16::from_be_bytes([ae & 1, flags]),
                    header_len,
                    sequence: u32::from_be_bytes([rest; 4]),
                    ack_number: u32::from_be_bytes([rest; 4]),
                };
                let t = Transport {
                    src_port: src,
                    dst_port: dst,
                    header_len,
                    tcp,
                };
                (protocol::TCP, b, t)
            }
        ),
        (
            ports,
            prop_oneof![
                Just((protocol::UDP, 8)),
                Just((protocol::UDPLITE, 8)),
                Just((protocol::SCTP, 12)),
                Just((protocol::DCCP, 12))
            ]
        )
            .prop_map(|((src, dst), (protocol, header_len))| {
                let mut b = vec![0; header_len as usize];
                b[..2].copy_from_slice(&src.to_be_bytes());
                b[2..4].copy_from_slice(&dst.to_be_bytes());
                // UDP's own length.
                b[5] = 8;
                let t = Transport {
                    src_port: src,
                    dst_port: dst,
                    header_len,
                    ..Transport::default()
                };
                (protocol, b, t)
            }),
        // ICMP, ESP, GRE, IP in IP, and ICMPv6 of a kind that is traffic.
        prop_oneof![
            Just(1u8),
            Just(50),
            Just(47),
            Just(4),
            Just(41),
            Just(58),
            Just(200)
        ]
        .prop_map(|protocol| (protocol, vec![128; 8], Transport::default())),
    ]
}

/// An extension header: protocol, units of length; of fragment headers the offset and flags.
fn extension() -> impl Strategy<Value = (u8, u8, u16)> {
    let kind = prop_oneof![
        2 => Just(protocol::DESTINATION),
        2 => Just(protocol::ROUTING),
        2 => Just(protocol::AUTHENTICATION),
        1 => Just(protocol::FRAGMENT),
    ];
    let word = prop_oneof![Just(0u16), any::<u16>()];
    (kind, 0..6u8, word)
}

fn append(chain: &[(u8, u8, u16)], upper: u8, body: &mut Vec<u8>, ip: &mut Ip) {
    for (number, &(kind, units, word)) in chain.iter().enumerate() {
        let next = chain.get(number + 1).map_or(upper, |e| e.0);
        let word = word.to_be_bytes();
        let (len, second) = match kind {
            protocol::FRAGMENT => (8, 0),
            protocol::AUTHENTICATION => ((usize::from(units) + 3) * 4, units + 1),
            _ => ((usize::from(units) + 1) * 8, units),
        };
        let mut header = vec![0; len];
        (header[0], header[1]) = (next, second);
        if kind == protocol::FRAGMENT {
            header[2..4].copy_from_slice(&word);
        }
        body.extend(&header);
        if ip.fragment || number as u32 >= EXTENSIONS {
            continue;
        }
        ip.header_len += len as u32;
        ip.protocol = next;
        ip.authenticated |= kind == protocol::AUTHENTICATION;
        ip.fragment = kind == protocol::FRAGMENT && u16::from_be_bytes(word) & 0xfff9 != 0;
    }
}

/// An Ethernet header's addresses and VLAN tags: whether of a service provider, and the tag.
fn link_header(macs: &[u8; 12], tags: &[(bool, u16)]) -> Vec<u8> {
    let mut bytes = macs.to_vec();
    for (service, tci) in tags {
        let ethertype = if *service {
            ETHERTYPE_QINQ
        } else {
            ETHERTYPE_VLAN
        };
        bytes.extend(ethertype.to_be_bytes());
        bytes.extend(tci.to_be_bytes());
    }
    bytes
}

/// A global address of IPv6.
fn global(rest: [u8; 14]) -> [u8; 16] {
    let mut address = [0; 16];
    (address[0], address[1]) = (0x20, 0x01);
    address[2..].copy_from_slice(&rest);
    address
}

/// The source to which shares are attributed, of an address or one of IPv4 that is mapped.
fn source(address: &[u8; 16], v6: bool) -> u32 {
    let word = |at: usize| u32::from_ne_bytes(address[at..at + 4].try_into().expect("a word"));
    if v6 {
        packet::source(&[0, 4, 8, 12].map(word))
    } else {
        packet::source(&[0, 0, 0, word(12)])
    }
}

/// An address of 10.0.0.0/8, as IPv6 has it.
fn mapped(b: [u8; 14]) -> [u8; 16] {
    let address = std::net::Ipv4Addr::new(10, b[0], b[1], b[2]);
    address.to_ipv6_mapped().octets()
}

fn built() -> impl Strategy<Value = Built> {
    let link = (
        proptest::collection::vec((any::<bool>(), any::<u16>()), 0..=3),
        any::<[u8; 12]>(),
        0..70usize,
    );
    // Global addresses; control traffic has its own test.
    let network = (
        any::<bool>(),
        any::<[u8; 14]>(),
        any::<[u8; 14]>(),
        any::<u8>(),
        prop_oneof![3 => Just(0u16), 1 => any::<u16>()],
        0..=10usize,
    );
    let chain = proptest::collection::vec(extension(), 0..=8);
    let content = (upper(), 0..300usize);
    (link, network, chain, content).prop_map(
        |(
            (tags, macs, padding),
            (v6, src, dst, tos, word, options),
            chain,
            ((upper, header, found), payload),
        )| {
            let mut bytes = link_header(&macs, &tags);
            let mut ip = Ip {
                l3: 14 + 4 * tags.len() as u32,
                unicast: true,
                ..Ip::default()
            };
            let mut body = Vec::new();
            // Of extensions, IPv4 has AH only.
            let ah = chain.first().filter(|e| e.0 == protocol::AUTHENTICATION);
            let chain = if v6 {
                &chain[..]
            } else {
                ah.map_or(&[][..], std::slice::from_ref)
            };
            let first = chain.first().map_or(upper, |e| e.0);
            ip.protocol = first;
            if v6 {
                ip.version = 6;
                ip.header_len = 40;
                ip.start = [0x60 | tos >> 4, tos.rotate_right(4)];
            } else {
                ip.version = 4;
                ip.header_len = 20 + 4 * options as u32;
                ip.fragment = word & 0x3fff != 0;
                ip.start = [0x40 | (5 + options as u8), tos];
            }
            let header_only = ip.header_len;
            append(chain, upper, &mut body, &mut ip);
            body.extend(&header);
            body.resize(body.len() + payload, 0x42);
            ip.total_len = header_only + body.len() as u32;
            let (src, dst) = if v6 {
                bytes.extend(ETHERTYPE_IPV6.to_be_bytes());
                bytes.extend(ip.start);
                bytes.extend([0, 0]);
                bytes.extend((body.len() as u16).to_be_bytes());
                bytes.extend([first, 64]);
                let (src, dst) = (global(src), global(dst));
                bytes.extend([src, dst].as_flattened());
                (src, dst)
            } else {
                bytes.extend(ETHERTYPE_IPV4.to_be_bytes());
                bytes.extend(ip.start);
                bytes.extend((ip.total_len as u16).to_be_bytes());
                bytes.extend([0, 0]);
                bytes.extend(word.to_be_bytes());
                bytes.extend([64, first, 0, 0]);
                let (src, dst) = (mapped(src), mapped(dst));
                bytes.extend([&src[12..], &dst[12..]].concat());
                bytes.resize(bytes.len() + options * 4, 1);
                (src, dst)
            };
            ip.source = source(&src, v6);
            bytes.extend(&body);
            bytes.resize(bytes.len() + padding, 0x99);
            // Behind fragment headers, or more extensions than are followed, no transport is read.
            let reached = !ip.fragment && ip.protocol == upper;
            let mut transport = if reached { found } else { Transport::default() };
            if ip.authenticated {
                transport.tcp = packet::Tcp::default();
            }
            let expected = if tags.len() as u32 > TAGS {
                Err(Pass::Other)
            } else {
                Ok(Found {
                    ip,
                    src,
                    dst,
                    transport: Ok(transport),
                })
            };
            Built { bytes, expected }
        },
    )
}

/// Mutations of a frame: bytes written, bytes cut off at the end.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    // Most relevant fields are in the first bytes.
    let place = prop_oneof![3 => 12..80usize, 1 => 0..400usize];
    let changes = proptest::collection::vec((place, any::<u8>()), 0..6);
    let cut = prop_oneof![2 => Just(None), 1 => (0..400usize).prop_map(Some)];
    (built(), changes, cut).prop_map(|(built, changes, cut)| {
        let mut bytes = built.bytes;
        for (at, value) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn frames_by_construction(built in built()) {
        prop_assert_eq!(find(&built.bytes), built.expected);
        consistent(&built.bytes);
        compare(&built.bytes);
    }

    #[test]
    fn changed_frames(frame in mutated()) {
        consistent(&frame);
        compare(&frame);
    }

    #[test]
    fn noise(
        mut frame in proptest::collection::vec(any::<u8>(), 0..200),
        ethertype in proptest::option::of(prop_oneof![
            Just(ETHERTYPE_IPV4), Just(ETHERTYPE_IPV6), Just(ETHERTYPE_VLAN), Just(ETHERTYPE_QINQ)
        ]),
    ) {
        if let (Some(ethertype), true) = (ethertype, frame.len() > 14) {
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
            frame[14] = frame[14] & 0xf | if ethertype == ETHERTYPE_IPV6 { 0x60 } else { 0x40 };
        }
        consistent(&frame);
        compare(&frame);
    }

    /// Any input as an echo: no panic; what is parsed is written unchanged.
    #[test]
    fn echoes_of_noise(bytes in any::<[u8; echo::LEN]>(), known in any::<bool>()) {
        let mut bytes = bytes;
        if known {
            bytes[0] = echo::VERSION;
        }
        match Echo::parse(&bytes) {
            None => prop_assert_ne!(bytes[0], echo::VERSION),
            Some(echo) => {
                // The two fields that a device may write its checksum into.
                for zero in [6, 7, 16, 17] {
                    bytes[zero] = 0;
                }
                prop_assert_eq!(echo.to_bytes(), bytes);
                prop_assert_eq!(Echo::parse(&echo.to_bytes()), Some(echo));
            }
        }
    }

    /// A sender that receives true and forged echoes: it never accepts more packets than it sent, nor more marks than
    /// packets, and a refused echo changes nothing.
    #[test]
    fn a_sender_among_forgers(
        steps in proptest::collection::vec(
            (0..50u32, any::<Option<(u32, u32, u16)>>(), 0..4u32), 1..60
        ),
        start in any::<u32>(),
    ) {
        let mut sender = Sender::new();
        let (mut sent, mut received, mut number) = (0u32, 0u32, 0u16);
        let (mut new_packets, mut new_ce, mut resyncs) = (0u64, 0u64, 0u64);
        for (more, forged, near) in steps {
            sent = sent.wrapping_add(more);
            // One in four forgeries is close to the truth.
            let echo = match forged {
                Some((packets, ce, sequence)) if near != 0 => Echo { packets, ce, sequence, ..Echo::default() },
                Some((packets, ce, sequence)) => Echo {
                    packets: received.wrapping_add(packets % 64),
                    ce: ce % 64,
                    sequence: number.wrapping_add(sequence % 8),
                    ..Echo::default()
                },
                None => {
                    received = sent;
                    number = number.wrapping_add(1);
                    Echo { packets: received, ce: start % (received + 1), sequence: number, ..Echo::default() }
                }
            };
            let before = sender;
            match sender.on_echo(&echo, sent, sent, 16) {
                Ok(delta) => {
                    prop_assert!(delta.ce <= delta.packets, "{:?}", delta);
                    prop_assert!(delta.packets <= sent, "{:?} of {}", delta, sent);
                    new_packets += u64::from(delta.packets);
                    new_ce += u64::from(delta.ce);
                    if before.refused >= echo::REFUSALS {
                        resyncs += 1;
                    }
                }
                Err(_) => {
                    let refused = Sender { refused: before.refused, ..sender };
                    prop_assert_eq!(refused, before);
                }
            }
        }
        // Unless it accepted a restart of the receiver, which may begin anywhere.
        if resyncs == 0 {
            prop_assert!(new_packets <= u64::from(sent), "{} of {}", new_packets, sent);
            prop_assert!(new_ce <= new_packets);
        }
    }
}

/// The comparison is not vacuous.
#[test]
fn most_changed_frames_are_compared() {
    use proptest::{strategy::ValueTree as _, test_runner::TestRunner};
    let mut runner = TestRunner::deterministic();
    let (mut whole, mut changed, mut malformed) = (0, 0, 0);
    for _ in 0..1000 {
        let frame = built().new_tree(&mut runner).unwrap().current().bytes;
        whole += u32::from(compare(&frame));
        let frame = mutated().new_tree(&mut runner).unwrap().current();
        changed += u32::from(compare(&frame));
        malformed += u32::from(find(&frame) == Err(Pass::Malformed));
    }
    assert!(
        whole > 500 && changed > 200 && malformed > 100,
        "{whole} {changed} {malformed}"
    );
}
