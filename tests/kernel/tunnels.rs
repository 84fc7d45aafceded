//! VXLAN through marking ports: an outer packet may be ECN-capable only if the inner packet is.

use std::{net::UdpSocket, process::Command, time::Duration};

use ecn_core::{
    flow::{Flow, Key},
    packet::{self, protocol},
};
use ecn_tests::{
    Skip, eventually, kernel_test,
    lab::{DEVICE, Host, Lab},
    name_of,
    running::{self, Running},
    s, skipped,
    wire::Wire,
};
use ecn_user::{
    agent::Options,
    config::{Marking, Shares},
};
use nix::sys::socket::{setsockopt, sockopt};

/// 100 Mbit/s, of which the port passes 10.
const LINK: u64 = 12_500_000;
const PORT: u64 = 1_250_000;
const SENT: usize = 600;
const TUNNEL: &str = "vx0";
/// UDP port of the tunnel.
const VXLAN: u16 = 4789;

/// A tunnel between the two hosts. False: not available on this kernel or machine.
fn tunnel(lab: &Lab) -> bool {
    [(0, 1), (1, 0)].into_iter().all(|(here, there)| {
        let (host, other) = (&lab.hosts[here], &lab.hosts[there]);
        let ip = |words: &str| {
            let ip = || Command::new("ip").args(words.split_whitespace()).output();
            host.ns.run(ip).is_ok_and(|output| output.status.success())
        };
        ip(&format!(
            "link add {TUNNEL} type vxlan id 5 dstport {VXLAN} remote {} dev {DEVICE}",
            other.v4
        )) && ip(&format!("address add {}/24 dev {TUNNEL}", inside(here)))
            && ip(&format!("link set {TUNNEL} up"))
    })
}

fn inside(number: usize) -> String {
    format!("10.78.0.{}", number + 1)
}

macro_rules! needs_tunnel {
    ($lab:expr) => {
        if !tunnel($lab) {
            skipped(
                name_of(|| {}),
                Skip::Kernel,
                "no vxlan, or no ip command to create one",
            );
            return;
        }
    };
}

fn socket(host: &Host, number: usize, port: u16) -> UdpSocket {
    let bind = || UdpSocket::bind(format!("{}:{port}", inside(number)));
    let socket = host.ns.run(bind).expect("a socket in the tunnel");
    let patience = Some(Duration::from_secs(1));
    socket.set_read_timeout(patience).expect("timeout");
    // Fewer packets than the class of a limited flow holds: they wait, and none is dropped.
    setsockopt(&socket, sockopt::SndBuf, &(8 << 10)).expect("send buffer");
    setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20)).expect("receive buffer");
    socket
}

/// Sends through the tunnel with this inner ECN field; returns the inner fields that arrived.
fn through(lab: &Lab, ecn: u8) -> Vec<u8> {
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sender, receiver) = (socket(from, 0, 40_001), socket(to, 1, 7001));
    let target = format!("{}:7001", inside(1));
    let hello = |_| {
        sender.send_to(b"hello", &target).expect("send");
        receiver.recv(&mut [0; 9]).is_ok()
    };
    assert!((0..5).any(hello), "the tunnel carries nothing");
    // Not before: it could wait behind what the tunnel sends when it comes up, and be marked.
    setsockopt(&sender, sockopt::Ipv4Tos, &i32::from(ecn)).expect("TOS");
    let index = to.nl.link(TUNNEL).expect("the tunnel").index;
    let wire = Wire::open(&to.ns, index);
    for _ in 0..SENT {
        sender.send_to(&[7; 1000], &target).expect("send");
    }
    let mut arrived = wire.all(s(1));
    arrived.retain(|frame| frame.ends_with(&[7; 1000]));
    let ecn = |frame: &Vec<u8>| ecn_tests::frames::ecn_of(frame).expect("IPv4");
    arrived.iter().map(ecn).collect()
}

fn start(lab: &Lab, device: &str) -> Running {
    lab.limit(1, PORT, 1000);
    let config = running::config(lab, Marking::InputOutput);
    let mut config = running::with_endpoints(config, lab, &[0, 1], LINK);
    for endpoint in &mut config.endpoints {
        endpoint.device = device.to_owned();
    }
    for bridge in &mut config.bridges {
        bridge.shares = Shares::Off;
    }
    Running::start(config, Options::default())
}

/// The flow of the tunnel from the first host, without the few packets that maintain the tunnel itself.
fn outside(running: &Running) -> Vec<Flow> {
    let flows = running.maps.flows().expect("flows");
    let is_ours = |(key, flow): &(Key, Flow)| {
        let to = (key.endpoint, key.protocol, key.dst_port);
        to == (1, protocol::UDP, VXLAN) && flow.sent_packets >= SENT as u64
    };
    flows
        .into_iter()
        .filter(is_ours)
        .map(|(_, flow)| flow)
        .collect()
}

fn count(arrived: &[u8], ecn: u8) -> usize {
    arrived.iter().filter(|found| **found == ecn).count()
}

/// The tunnel's end drops packets that are marked outside and not ECN-capable inside (RFC 6040 section 4.2): these must not
/// become ECN-capable outside. What is ECN-capable inside is so outside, too, and is controlled as the tunnel's flow.
#[test]
fn at_the_devices_below() {
    kernel_test!();
    let lab = Lab::new(2);
    needs_tunnel!(&lab);
    // Not only at the first mark: packets of that moment are lost.
    lab.link(0, LINK);
    let running = start(&lab, DEVICE);
    let arrived = through(&lab, packet::NOT_ECT);
    assert_eq!(
        count(&arrived, packet::NOT_ECT),
        SENT,
        "{} arrived",
        arrived.len()
    );
    assert_eq!(outside(&running).len(), 1, "one flow, by its ports outside");
    assert_eq!(outside(&running)[0].marked_packets, 0);
    let port = running.port(&lab.hosts[1].port);
    assert!(port.unmarkable > 0, "{port:?}");

    let arrived = through(&lab, packet::ECT_0);
    assert_eq!(arrived.len(), SENT);
    let marked = running.port(&lab.hosts[1].port).marked;
    assert!(marked > 0);
    assert_eq!(
        count(&arrived, packet::CE) as u64,
        marked,
        "the mark goes inside"
    );
    let echoed = || {
        let flows = outside(&running);
        flows.iter().map(|flow| flow.marked_packets).sum::<u64>() == marked
    };
    assert!(
        eventually(s(3), echoed),
        "{marked} marked: {} {:?}",
        running.counts(),
        outside(&running)
    );
}

/// An endpoint may be the tunnel's own device: inner flows are made ECN-capable, their marks come from outside, and echoes
/// return through the tunnel.
#[test]
fn at_the_tunnels_device() {
    kernel_test!();
    let lab = Lab::new(2);
    needs_tunnel!(&lab);
    let running = start(&lab, TUNNEL);
    let arrived = through(&lab, packet::NOT_ECT);
    let marked = count(&arrived, packet::CE) as u64;
    assert!(marked > 0, "{}", running.counts());
    let is_inside =
        |key: &Key| key.endpoint == 1 && (key.protocol, key.dst_port) == (protocol::UDP, 7001);
    let answered = || {
        let (_, flow) = running.flow(is_inside);
        // Packets beyond its limit are dropped at the source.
        flow.marked_packets >= marked && flow.acked_packets >= arrived.len() as u64
    };
    assert!(
        eventually(s(3), answered),
        "{marked} marked of {}: {} {:?}",
        arrived.len(),
        running.counts(),
        running.flow(is_inside)
    );
}
