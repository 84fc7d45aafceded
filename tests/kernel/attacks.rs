//! Off-path attackers who know addresses and ports do not change how flows are controlled.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use ecn_core::{
    abi::Count,
    echo::{self, Echo},
    flow::{self, Flow},
    packet::{self, protocol},
};
use ecn_tests::{
    eventually,
    frames::Ip,
    kernel_test,
    lab::{Host, Lab},
    running::{self, Running},
    s,
    traffic::udp,
    wire::Wire,
};
use ecn_user::{
    agent::Options,
    config::{AlsoAccept, Key, Marking},
};
use etherparse::TcpHeader;

use super::tcp::{PORT, connect, send};

const LINK: u64 = 12_500_000;
/// Number of packets of each kind that the attacker sends, at most 10,000 a second.
pub const FORGED: u32 = 10_000;

/// Hosts 0 and 1 are endpoints, host 2 is the attacker. Nothing is marked.
fn start(lab: &Lab) -> Running {
    let config = running::config(lab, Marking::None);
    let config = running::with_endpoints(config, lab, &[0, 1], LINK);
    Running::start(config, Options::default())
}

fn only_flow(running: &Running, protocol: u8) -> Flow {
    let is = |key: &flow::Key| key.endpoint == 1 && key.protocol == protocol;
    running.flow(is).1
}

/// Packets with the IP address of `from`, sent by the attacker. Frames with the Ethernet address of `from` would redirect
/// replies to the attacker, who would then be on the path.
pub fn in_the_name_of(from: &Host, to: &Host, attacker: &Host) -> Ip {
    Ip::between(attacker, to, false)
        .addresses(from.v4, to.v4)
        .ecn(packet::NOT_ECT)
}

fn forged(from: &Host, to: &Host, attacker: &Host, tcp: &TcpHeader) -> Vec<u8> {
    let mut tcp = tcp.clone();
    let sum = tcp.calc_checksum_ipv4_raw(from.v4.octets(), to.v4.octets(), &[]);
    tcp.checksum = sum.expect("a short segment");
    in_the_name_of(from, to, attacker).with(protocol::TCP, &tcp.to_bytes())
}

/// Pseudo-random numbers, the same in each run.
pub fn scattered(n: u32) -> u32 {
    n.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995
}

/// Sends the frames that `frame` returns for each number.
pub fn flood(attacker: &Wire, frame: impl Fn(u32) -> Vec<u8>) {
    let begun = Instant::now();
    for n in 0..FORGED {
        attacker.send(&frame(n));
        let due = Duration::from_micros(100) * n;
        if n % 10 == 0 {
            std::thread::sleep(due.saturating_sub(begun.elapsed()));
        }
    }
}

#[test]
fn a_forged_handshake_or_reset_leaves_a_connection_controlled() {
    kernel_test!();
    let lab = Lab::new(3);
    let running = start(&lab);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, receiving) = connect(from, to, false, None);
    let port = sending.local_addr().expect("its address").port();
    let (sending, receiving) = send(sending, receiving, 1 << 20);
    assert_eq!(only_flow(&running, protocol::TCP).flags, flow::PLAIN);
    let known = || running.receiver(|key| key.endpoint == 2 && key.protocol == protocol::TCP);
    assert_eq!(
        known().flags & (echo::PLAIN | echo::NEGOTIATED),
        echo::PLAIN
    );

    let attacker = Wire::open(&lab.hosts[2].ns, lab.hosts[2].ifindex);
    flood(&attacker, |n| {
        let mut syn_ack = TcpHeader::new(PORT, port, scattered(n), 65_535);
        (syn_ack.syn, syn_ack.ack, syn_ack.ece) = (true, true, true);
        syn_ack.acknowledgment_number = scattered(!n);
        forged(to, from, &lab.hosts[2], &syn_ack)
    });
    flood(&attacker, |n| {
        let mut reset = TcpHeader::new(port, PORT, scattered(n), 0);
        reset.rst = true;
        forged(from, to, &lab.hosts[2], &reset)
    });
    let received = known().packets;
    let (_sending, _receiving) = send(sending, receiving, 1 << 20);
    assert_eq!(only_flow(&running, protocol::TCP).flags, flow::PLAIN);
    let after = known();
    assert_eq!(after.flags & (echo::PLAIN | echo::NEGOTIATED), echo::PLAIN);
    assert!(after.packets > received, "{after:?}");
}

#[test]
fn forged_echoes_slow_no_flow() {
    kernel_test!();
    let lab = Lab::new(3);
    let running = start(&lab);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, receiving) = connect(from, to, false, None);
    let port = sending.local_addr().expect("its address").port();
    let _receiving = udp(to, false, 7002);
    let datagrams = udp(from, false, 7001);
    let at = SocketAddr::new(to.v4.into(), 7002);
    let attacker = Wire::open(&lab.hosts[2].ns, lab.hosts[2].ifindex);
    // The connection stays open: its flow is removed when it closes.
    let _ends = std::thread::scope(|scope| {
        // Both flows keep sending: TCP 8 MiB, UDP 1,000 datagrams a second.
        let tcp = scope.spawn(move || send(sending, receiving, 8 << 20));
        scope.spawn(|| {
            for _ in 0..2 * FORGED / 10 {
                datagrams.send_to(&[7; 200], at).expect("send");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let echoes = in_the_name_of(to, from, &lab.hosts[2]);
        for (protocol, src_port, dst_port) in
            [(protocol::UDP, 7001, 7002), (protocol::TCP, port, PORT)]
        {
            flood(&attacker, |n| {
                echoes.echo(&Echo {
                    protocol,
                    src_port,
                    dst_port,
                    packets: scattered(n),
                    ce: n * 8,
                    sequence: n as u16,
                    headroom: echo::Headroom::Unknown,
                    signed: false,
                })
            });
        }
        tcp.join().expect("the transfer")
    });
    let reported = eventually(s(2), || {
        only_flow(&running, protocol::UDP).acked_packets == u64::from(2 * FORGED / 10)
    });
    let (udp, tcp) = (
        only_flow(&running, protocol::UDP),
        only_flow(&running, protocol::TCP),
    );
    assert!(reported, "{udp:?} {}", running.counts());
    assert_eq!((udp.decreases, udp.marked_packets), (0, 0), "{udp:?}");
    assert_eq!((tcp.decreases, tcp.marked_packets), (0, 0), "{tcp:?}");
    let refused = running.count(Count::EchoDuplicate) + running.count(Count::EchoImpossible);
    assert!(refused >= u64::from(FORGED), "{}", running.counts());
}

/// ACKs whose flags would encode marks, from an attacker who does not see the connection's sequence numbers.
#[test]
fn forged_flags_of_acks_slow_no_connection() {
    kernel_test!();
    let lab = Lab::new(3);
    let running = start(&lab);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let (sending, receiving) = connect(from, to, false, None);
    let port = sending.local_addr().expect("its address").port();
    let attacker = Wire::open(&lab.hosts[2].ns, lab.hosts[2].ifindex);
    let with_flags = |sequence: u32, number: u32, n: u32| {
        let mut ack = TcpHeader::new(PORT, port, sequence, 65_535);
        ack.acknowledgment_number = number;
        (ack.ack, ack.ns, ack.cwr, ack.ece) = (true, n & 4 != 0, n & 2 != 0, n & 1 != 0);
        forged(to, from, &lab.hosts[2], &ack)
    };
    // The connection keeps sending.
    let (sending, receiving) = std::thread::scope(|scope| {
        let transfer = scope.spawn(move || {
            let mut ends = (sending, receiving);
            for _ in 0..FORGED / 1000 {
                ends = send(ends.0, ends.1, 1 << 20);
                std::thread::sleep(Duration::from_millis(20));
            }
            ends
        });
        flood(&attacker, |n| with_flags(scattered(n), scattered(!n), n));
        transfer.join().expect("the transfer")
    });
    let tcp = only_flow(&running, protocol::TCP);
    assert_eq!((tcp.decreases, tcp.marked_packets), (0, 0), "{tcp:?}");
    // The right acknowledgement number is not enough, however often one sequence number is tried.
    for far in (1..8).map(|n| tcp.ace.expected.wrapping_add(n << 29)) {
        flood(&attacker, |n| with_flags(far, tcp.ace.acked, n));
    }
    let (_sending, _receiving) = send(sending, receiving, 1 << 20);
    let tcp = only_flow(&running, protocol::TCP);
    assert_eq!((tcp.decreases, tcp.marked_packets), (0, 0), "{tcp:?}");
    assert_eq!(tcp.flags, flow::PLAIN);
}

/// Keys of `[echo]`, and echoes signed with them.
mod keys {
    use super::*;

    /// As configured, and as the programs store it.
    pub fn key(n: u8) -> (Key, [u64; 2]) {
        let text = format!("{n:02x}").repeat(16);
        let key = Key::try_from(text).expect("32 digits");
        (key, key.words())
    }

    /// From host `from` to host `to`, sent by the attacker.
    pub fn signed(lab: &Lab, from: usize, to: usize, e: &Echo, key: [u64; 2]) -> Vec<u8> {
        let e = Echo { signed: true, ..*e };
        let mapped = |host: usize| lab.hosts[host].v4.to_ipv6_mapped().octets();
        let tag = e.tag(key, &mapped(from), &mapped(to)).to_be_bytes();
        in_the_name_of(&lab.hosts[from], &lab.hosts[to], &lab.hosts[2])
            .with(echo::PROTOCOL, &[&e.to_bytes()[..], &tag].concat())
    }
}

/// Only signed echoes are accepted, also while keys change.
#[test]
fn echoes_need_the_key() {
    kernel_test!();
    let lab = Lab::new(3);
    let mut config = running::config(&lab, Marking::None);
    config = running::with_endpoints(config, &lab, &[0, 1], LINK);
    let ((first, first_words), (second, second_words)) = (keys::key(1), keys::key(2));
    config.echo.key = Some(first);
    let running = Running::start(config.clone(), Options::default());
    let accepted = |n: u64| {
        let all = eventually(s(5), || running.count(Count::EchoAccepted) == n);
        assert!(all, "{n}: {}", running.counts());
    };

    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let send = |v6: bool| {
        let (_receiving, datagrams) = (udp(to, v6, 7002), udp(from, v6, 7001));
        let address = if v6 { to.v6.into() } else { to.v4.into() };
        for _ in 0..100 {
            let sent = datagrams.send_to(&[7; 200], SocketAddr::new(address, 7002));
            sent.expect("send");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    send(true);
    accepted(100);
    send(false);
    accepted(200);

    // Correct but for the signature.
    let next = |sequence| Echo {
        protocol: protocol::UDP,
        src_port: 7001,
        dst_port: 7002,
        packets: 100,
        sequence,
        ..Echo::default()
    };
    let attacker = Wire::open(&lab.hosts[2].ns, lab.hosts[2].ifindex);
    let unsigned = in_the_name_of(to, from, &lab.hosts[2]).echo(&next(101));
    attacker.send(&unsigned);
    attacker.send(&keys::signed(&lab, 1, 0, &next(101), second_words));
    // The signature of an echo between another pair of hosts.
    let mut moved = keys::signed(&lab, 0, 1, &next(101), first_words);
    let right = keys::signed(&lab, 1, 0, &next(101), first_words);
    moved[..34 + echo::LEN].copy_from_slice(&right[..34 + echo::LEN]);
    attacker.send(&moved);
    let refused = |n: u64| {
        let all = eventually(s(5), || running.count(Count::EchoForged) == n);
        assert!(all, "{n}: {}", running.counts());
    };
    refused(3);

    // While keys change, both are accepted.
    config.echo.also_accept = Some(AlsoAccept::Key(second));
    running.agent().reload(config.clone()).expect("reload");
    send(true);
    accepted(300);
    config.echo.key = Some(second);
    config.echo.also_accept = Some(AlsoAccept::Key(first));
    running.agent().reload(config.clone()).expect("reload");
    send(true);
    accepted(400);
    attacker.send(&right);
    accepted(401);
    config.echo.also_accept = None;
    running.agent().reload(config.clone()).expect("reload");
    attacker.send(&keys::signed(&lab, 1, 0, &next(102), first_words));
    refused(4);
    config.echo.also_accept = Some(AlsoAccept::None);
    running.agent().reload(config).expect("reload");
    let unsigned = in_the_name_of(to, from, &lab.hosts[2]).echo(&next(103));
    attacker.send(&unsigned);
    accepted(402);
}
