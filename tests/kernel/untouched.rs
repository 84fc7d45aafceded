//! What must pass untouched.

use ecn_core::packet::{self, protocol};
use ecn_tests::{
    frames::{BRIDGE_GROUP, ETHERTYPE_ARP, ETHERTYPE_LLDP, Ip, ethernet, llc},
    lab::Host,
};

/// Frames that keep the network itself alive, each with its name. Those of IP are ECT(0).
pub fn control_frames(from: &Host, to: &Host) -> [(&'static str, Vec<u8>); 11] {
    let v4 = Ip::between(from, to, false);
    let v6 = Ip::between(from, to, true);
    let local4 = [169, 254, 7, 7];
    let local6 = [0xfe80, 0, 0, 0, 0, 0, 0, 7];
    let group6 = [0xff02, 0, 0, 0, 0, 0, 0, 0xfb];
    let solicitation = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &to.v6.octets()].concat();
    [
        (
            "ARP",
            ethernet(to.mac, from.mac, ETHERTYPE_ARP, &[0x11; 28]),
        ),
        ("STP", llc(BRIDGE_GROUP, from.mac, &[0; 35])),
        (
            "LLDP",
            ethernet(BRIDGE_GROUP, from.mac, ETHERTYPE_LLDP, &[2; 50]),
        ),
        (
            "unknown EtherType",
            ethernet(to.mac, from.mac, 0x88b5, &[0x45; 60]),
        ),
        (
            "from link-local IPv4",
            v4.clone()
                .addresses(local4, to.v4.octets())
                .udp(1, 2, b"hello"),
        ),
        (
            "to link-local IPv4",
            v4.clone()
                .addresses(from.v4.octets(), local4)
                .udp(1, 2, b"hello"),
        ),
        (
            "to 224.0.0.251",
            v4.addresses(from.v4.octets(), [224, 0, 0, 251])
                .to_mac([1, 0, 0x5e, 0, 0, 251])
                .udp(5353, 5353, b"hello"),
        ),
        (
            "from link-local IPv6",
            v6.clone().addresses(local6, to.v6).udp(1, 2, b"hello"),
        ),
        (
            "to link-local IPv6",
            v6.clone().addresses(from.v6, local6).udp(1, 2, b"hello"),
        ),
        (
            "to ff02::fb",
            v6.clone()
                .addresses(from.v6, group6)
                .to_mac([0x33, 0x33, 0, 0, 0, 0xfb])
                .udp(5353, 5353, b"hello"),
        ),
        (
            "neighbour solicitation",
            v6.with(protocol::ICMPV6, &solicitation),
        ),
    ]
}

const _: u8 = packet::ECT_0;
