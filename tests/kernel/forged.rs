//! Frames that no stack would send: they pass unchanged, and are counted.

use std::process::Command;

use ecn_core::{
    abi::Count,
    packet::{self, protocol},
};
use ecn_tests::{
    Skip, eventually,
    frames::{Ip, tagged},
    kernel_test,
    lab::{BRIDGE, Host, Lab},
    process::{self, stdout},
    running::{self, Running},
    s, skipped,
    traffic::udp,
};
use ecn_user::agent::Options;

use super::untouched::{configuration, identical, only_marked, start, through};

/// Two hosts and a bridge without snooping and IP filters, which would drop wrong IP headers before any program sees them.
fn lab() -> Lab {
    let lab = Lab::new(2);
    let words = format!("link set {BRIDGE} type bridge mcast_snooping 0");
    let ip = || Command::new("ip").args(words.split_whitespace()).status();
    let done = lab.switch.run(ip);
    assert!(done.is_ok_and(|status| status.success()), "ip {words}");
    for filter in ["iptables", "ip6tables"] {
        let path = format!("/proc/sys/net/bridge/bridge-nf-call-{filter}");
        // Fails without br_netfilter.
        let _ = lab.switch.run(|| std::fs::write(path, "0"));
    }
    lab
}

/// Truncates a frame.
fn cut(frame: &[u8], len: usize) -> Vec<u8> {
    frame[..len].to_vec()
}

/// Overwrites bytes of a frame.
fn with(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// IP headers that are truncated or inconsistent; all would be ECT(0).
fn malformed(from: &Host, to: &Host) -> Vec<(&'static str, Vec<u8>)> {
    let v4 = Ip::between(from, to, false).udp(1, 2, &[8; 100]);
    let ip6 = Ip::between(from, to, true);
    let v6 = ip6.udp(1, 2, &[8; 100]);
    // After the fixed header: options that are longer than the packet.
    let options = ip6.with(protocol::DESTINATION, &[protocol::UDP, 9, 1, 4, 0, 0, 0, 0]);
    let qinq = tagged(
        &tagged(&v4, packet::ETHERTYPE_VLAN, 0x2007),
        packet::ETHERTYPE_QINQ,
        5,
    );
    vec![
        ("nothing behind IPv4's EtherType", cut(&v4, 14)),
        ("half an IPv4 header", cut(&v4, 24)),
        ("IPv4 without its last byte", cut(&v4, v4.len() - 1)),
        ("IPv4 header of 16 bytes", with(&v4, 14, &[0x44])),
        (
            "IPv4 header beyond its packet",
            with(&v4, 14, &[0x4f, 2, 0, 40]),
        ),
        ("IPv4 packet beyond its frame", with(&v4, 16, &[0xff, 0xff])),
        (
            "IPv4 packet shorter than its header",
            with(&v4, 16, &[0, 19]),
        ),
        ("version 6 for IPv4", with(&v4, 14, &[0x65])),
        ("half an IPv6 header", cut(&v6, 40)),
        ("IPv6 without its last byte", cut(&v6, v6.len() - 1)),
        ("IPv6 packet beyond its frame", with(&v6, 18, &[0xff, 0xff])),
        ("version 4 for IPv6", with(&v6, 14, &[0x40])),
        ("options beyond their packet", options),
        (
            "no options behind their number",
            ip6.with(protocol::HOP_BY_HOP, &[]),
        ),
        (
            "half an authentication header",
            ip6.with(protocol::AUTHENTICATION, &[6, 4, 0, 0]),
        ),
        ("ICMPv6 without a type", ip6.with(protocol::ICMPV6, &[])),
        ("half an IPv4 header behind two tags", cut(&qinq, 32)),
        (
            "IPv4 behind two tags, beyond its frame",
            with(&qinq, 24, &[0xff, 0xff]),
        ),
    ]
}

/// Correct IP headers, and incorrect transport headers.
fn without_ports(from: &Host, to: &Host) -> Vec<(&'static str, Vec<u8>)> {
    let frames = [false, true].map(|ipv6| {
        let ip = Ip::between(from, to, ipv6).ecn(packet::NOT_ECT);
        let mut tcp = [0x50; 40];
        tcp[12] = 0x40;
        let mut long = tcp;
        long[12] = 0xb0;
        [
            ("UDP of 7 bytes", ip.with(protocol::UDP, &[7; 7])),
            ("TCP of 19 bytes", ip.with(protocol::TCP, &[0x50; 19])),
            ("TCP header of 16 bytes", ip.with(protocol::TCP, &tcp)),
            (
                "TCP header beyond its packet",
                ip.with(protocol::TCP, &long),
            ),
            ("SCTP of 11 bytes", ip.with(protocol::SCTP, &[7; 11])),
        ]
    });
    frames.into_iter().flatten().collect()
}

#[test]
fn malformed_frames_at_ports() {
    kernel_test!();
    let lab = lab();
    let running = start(&lab, &[]);
    are_counted(&lab, &running);
}

#[test]
fn malformed_frames_at_virtual_queues() {
    kernel_test!();
    let lab = lab();
    let mut config = configuration(&lab, &[]);
    running::virtual_queues(&mut config.bridges[0], &lab);
    let running = Running::start(config, Options::default());
    are_counted(&lab, &running);
}

/// Malformed frames pass a port unchanged, and each is counted once.
fn are_counted(lab: &Lab, running: &Running) {
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let _listening = [false, true].map(|ipv6| udp(to, ipv6, 2));
    let frames = malformed(from, to);
    identical(&frames, &through(lab, &frames));
    assert_eq!(running.count(Count::Unparsed), frames.len() as u64);
    let port = running.all_left(&to.port, 60);
    assert_eq!(port.unmarkable, 0);
    assert_eq!(running.waiting(), Vec::<String>::new());
    assert_eq!(running.count(Count::MarkFailed), 0);
    shown(running);
}

/// `ecn doctor` shows the counters: all as JSON, nonzero ones as text.
fn shown(running: &Running) {
    let Some(ecn) = process::ecn() else {
        return skipped(
            "forged::shown",
            Skip::Missing,
            "no ecn command, set ECN_BIN",
        );
    };
    let unparsed = running.count(Count::Unparsed);
    let json = stdout(&process::run(&ecn, &["doctor", "-j"]));
    let report: serde_json::Value = serde_json::from_str(&json).expect("one document");
    assert_eq!(report["counters"]["unparsed_packets"], unparsed);
    assert_eq!(report["counters"]["mark_failed_packets"], 0);
    let text = stdout(&process::run(&ecn, &["doctor"]));
    let line = text
        .lines()
        .find(|line| line.starts_with("unparsed_packets"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(&format!(" {unparsed} ")), "{line}");
    assert!(!text.contains("mark_failed_packets"), "{text}");
}

#[test]
fn malformed_frames_at_endpoints() {
    kernel_test!();
    let lab = lab();
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let running = start(&lab, &[0, 1]);
    let _listening = [false, true].map(|ipv6| udp(to, ipv6, 2));
    let (ip, transport) = (malformed(from, to), without_ports(from, to));
    let all = [ip.clone(), transport.clone()].concat();
    identical(&all, &through(&lab, &all));
    // Counted where it is sent, at the port and where it is received; for the port the others are ordinary IP packets.
    let expected = 3 * ip.len() + 2 * transport.len();
    assert_eq!(running.count(Count::Unparsed), expected as u64);
    // The filling is a flow, and nothing else from there.
    let (_, filling) = running.flow(|key| key.endpoint == 1);
    assert_eq!(filling.sent_packets, 60);
}

/// A packet socket puts little more than the Ethernet header of frames above a page into the linear part.
#[test]
fn giant_frames() {
    const MTU: u32 = 9000;
    kernel_test!();
    let lab = lab();
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    for host in [from, to] {
        host.nl.set_mtu(host.ifindex, MTU).expect("MTU of a host");
        lab.nl.set_mtu(host.port_index, MTU).expect("MTU of a port");
    }
    let running = start(&lab, &[]);
    let _listening = [false, true].map(|ipv6| udp(to, ipv6, 2));
    let giants = [false, true].map(|ipv6| {
        let name = if ipv6 { "giant IPv6" } else { "giant IPv4" };
        (name, Ip::between(from, to, ipv6).udp(1, 2, &[8; 8900]))
    });
    only_marked(&giants, &through(&lab, &giants));
    assert!(
        eventually(s(2), || running.waiting().is_empty()),
        "{:?}",
        running.waiting()
    );
    running.all_left(&to.port, 62);
}
