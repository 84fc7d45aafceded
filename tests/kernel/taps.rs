//! Virtual machines on a bridge: hosts behind taps, which run none of our programs. The bridge's end of their link is their
//! endpoint.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use ecn_core::{abi::Count, packet::CE};
use ecn_tests::{
    Skip,
    agent::Agent,
    ecn_or_skip, emulated, eventually,
    frames::Ip,
    kernel_test,
    lab::{BRIDGE, Lab},
    note,
    process::{self, Snapshot},
    running::{self, Running},
    s, skipped,
    traffic::{Repeated, Tcp, udp},
    wire::Wire,
};
use ecn_user::{
    agent::{Options, state::State},
    config::{Config, Marking},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

const MBIT: u64 = 125_000;

/// Rate of the port to the receiver. Emulated kernels forward some 1,000 packets a second.
fn port_rate() -> u64 {
    if emulated() { 2 * MBIT } else { 8 * MBIT }
}

/// Payload of a packet, and its length on the wire.
const PAYLOAD: usize = 1_400;
const ON_WIRE: u64 = 1_442;

const NO_TCX: &str = "no tcx: taps are left out";

/// Whether this kernel has tcx.
fn has_tcx() -> bool {
    const NAME: &[u8] = b"tcx_link_attach";
    let types = fs::read("/sys/kernel/btf/vmlinux").expect("BTF");
    types.windows(NAME.len()).any(|name| name == NAME)
}

/// A bridge with machines, the last of which has a slow port.
struct Machines {
    running: Running,
    lab: Lab,
    _machines: Vec<Repeated>,
}

/// This number of machines, the last of which has a slow port, and an agent's configuration for them.
fn machines(n: usize) -> (Lab, Vec<Repeated>, Config) {
    let mut lab = Lab::new(n);
    let plug = |number| {
        lab.unplug(number);
        lab.plug_in_machine(number)
    };
    let machines = (0..n).map(plug).collect();
    lab.limit(n - 1, port_rate(), 100);
    let mut config = running::config(&lab, Marking::InputOutput);
    config.bridges[0].peers = true;
    (lab, machines, config)
}

/// Device indexes of the ifbs beside the bridge.
fn ifbs(lab: &Lab) -> Vec<u32> {
    let links = lab.nl.links().expect("links");
    let ifbs = links.iter().filter(|link| link.is_ifb());
    ifbs.map(|link| link.index).collect()
}

impl Machines {
    fn start(n: usize) -> Self {
        let (lab, machines, config) = machines(n);
        let running = Running::start(config, Options::default());
        Self {
            running,
            lab,
            _machines: machines,
        }
    }

    /// A frame that makes the bridge learn a machine's address.
    fn send_something(&self, from: usize) {
        let to = self.lab.hosts[0].address(false);
        let sent = udp(&self.lab.hosts[from], false, 7000).send_to(&[1], SocketAddr::new(to, 9));
        sent.expect("sent");
    }

    /// Sends UDP from a machine to the last one, faster than the port is.
    fn send(&self, from: usize, port: u16) -> Repeated {
        let to = self.lab.hosts.last().expect("a receiver");
        let (socket, to) = (
            udp(&self.lab.hosts[from], false, port),
            SocketAddr::new(to.address(false), port),
        );
        Repeated::paced(2 * port_rate() / ON_WIRE, move |_| {
            let _ = socket.send_to(&[7; PAYLOAD], to);
        })
    }
}

#[test]
fn flows_of_machines_are_controlled_at_their_ports() {
    kernel_test!();
    if !has_tcx() {
        return skipped(ecn_tests::name_of(|| {}), Skip::Kernel, NO_TCX);
    }
    let m = Machines::start(3);
    let (running, hosts) = (&m.running, &m.lab.hosts);
    let state = running.agent().state();
    assert_eq!(state.endpoints.len(), 3, "{:?}", state.endpoints);
    for endpoint in &state.endpoints {
        assert!(endpoint.shaper.is_some(), "{endpoint:?}");
    }
    let captures =
        [&hosts[0], &hosts[2]].map(|host| Wire::open(&host.ns, host.ifindex).never_waits());
    m.send_something(2);
    let sinks = [7001, 7002].map(|port| udp(&hosts[2], false, port));
    let _senders = [m.send(0, 7001), m.send(1, 7002)];
    for sink in &sinks {
        sink.set_nonblocking(true).expect("nonblocking");
    }
    // Arrived shares of the port's rate.
    let shares = |over: Duration| {
        let (start, mut n) = (Instant::now(), [0u64; 2]);
        while start.elapsed() < over {
            std::thread::sleep(Duration::from_millis(5));
            for (n, sink) in n.iter_mut().zip(&sinks) {
                *n += std::iter::from_fn(|| sink.recv(&mut [0; 2048]).ok()).count() as u64;
            }
        }
        n.map(|n| (n * ON_WIRE) as f64 / start.elapsed().as_secs_f64() / port_rate() as f64)
    };
    shares(s(2));
    let dropped = m.lab.qdisc(2).drops;
    let shares = shares(s(4));
    let dropped = m.lab.qdisc(2).drops - dropped;
    let echoes = running.count(Count::EchoAccepted);
    note(&format!(
        "shares {shares:.3?}, {dropped} dropped at the port, {echoes} echoes"
    ));
    assert!(echoes > 10, "{}", running.counts());
    // Without control as much would be dropped as passes; on a busy machine senders are late, and queues overflow at times.
    assert!(shares[0].min(shares[1]) > 0.2, "{shares:?}");
    let passed = (shares[0] + shares[1]) * 4.0 * port_rate() as f64 / ON_WIRE as f64;
    assert!((dropped as f64) < passed / 20.0, "{}", running.counts());
    // Neither machine receives an echo.
    for wire in captures {
        let frames = wire.all(Duration::from_millis(1));
        let echoes = frames.iter().filter(|f| f.len() > 23 && f[23] == 253);
        assert_eq!(echoes.count(), 0);
    }
}

#[test]
fn tcp_of_machines_is_controlled_at_their_ports() {
    kernel_test!();
    if !has_tcx() {
        return skipped(ecn_tests::name_of(|| {}), Skip::Kernel, NO_TCX);
    }
    let m = Machines::start(2);
    let connection = Tcp::start(&m.lab, 7001);
    connection.rate(s(3));
    let dropped = m.lab.qdisc(1).drops;
    let share = connection.rate(s(5)) / port_rate() as f64;
    let dropped = m.lab.qdisc(1).drops - dropped;
    let acked = m.running.acked(|key| key.dst_port == 7001);
    note(&format!(
        "{share:.3} of the port, {dropped} dropped there, {acked} acknowledged"
    ));
    assert!(
        acked > 100 && share > 0.4,
        "{share}, {}",
        m.running.counts()
    );
    // Without control TCP fills the queue; on a busy machine it overflows at times.
    assert!(u64::from(dropped) < acked / 100, "{}", m.running.counts());
}

/// A frame to an address that the bridge does not know is flooded: only the receiver may echo it, or the bridge would
/// learn a wrong port for the receiver.
#[test]
fn machines_do_not_echo_for_others() {
    kernel_test!();
    if !has_tcx() {
        return skipped(ecn_tests::name_of(|| {}), Skip::Kernel, NO_TCX);
    }
    let m = Machines::start(3);
    let stranger = [2, 0x77, 0, 0, 9, 9];
    let from = &m.lab.hosts[0];
    let frame = |to: [u8; 6]| {
        let ip = Ip::between(from, &m.lab.hosts[2], false);
        ip.ecn(CE).to_mac(to).udp(7001, 7001, &[7; 64])
    };
    let wire = Wire::open(&from.ns, from.ifindex);
    let capture = Wire::open(&m.lab.hosts[1].ns, m.lab.hosts[1].ifindex);
    let sent = || m.running.count(Count::EchoSent);
    // Known, but not by that address. Its own packets are echoed.
    m.send_something(1);
    std::thread::sleep(Duration::from_millis(200));
    let before = sent();
    for _ in 0..10 {
        wire.send(&frame(stranger));
    }
    assert!(capture.next(s(2)).is_some(), "it was not flooded");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(sent(), before, "{}", m.running.counts());
    // A receiver is known once it has sent something.
    m.send_something(2);
    let answered = || {
        wire.send(&frame(m.lab.hosts[2].mac));
        sent() > before + 1
    };
    assert!(eventually(s(5), answered), "{}", m.running.counts());
}

/// A machine that sends from 20,000 addresses evicts no other machine, not even one that only receives.
#[test]
fn spoofed_addresses_evict_no_machine() {
    const ADDRESSES: u32 = 20_000;
    kernel_test!();
    if !has_tcx() {
        return skipped(ecn_tests::name_of(|| {}), Skip::Kernel, NO_TCX);
    }
    let m = Machines::start(3);
    let hosts = &m.lab.hosts;
    m.send_something(2);
    let _sender = m.send(1, 7002);
    let sent = || m.running.count(Count::EchoSent);
    assert!(eventually(s(10), || sent() > 100), "{}", m.running.counts());
    let wire = Wire::open(&hosts[0].ns, hosts[0].ifindex).send_slowly();
    for number in 0..ADDRESSES {
        let mut frame = Ip::between(&hosts[0], &hosts[2], false).udp(7001, 7001, &[7; 64]);
        frame[8..12].copy_from_slice(&number.to_be_bytes());
        wire.send(&frame);
    }
    let before = sent();
    assert!(
        eventually(s(5), || sent() > before + 100),
        "{}",
        m.running.counts()
    );
}

/// Where flows behind taps cannot be limited, `peers` ignores taps, and the bridge still marks.
#[test]
fn taps_are_left_out_without_tcx() {
    kernel_test!();
    if has_tcx() {
        return skipped(
            ecn_tests::name_of(|| {}),
            Skip::Kernel,
            "this kernel has tcx",
        );
    }
    let m = Machines::start(2);
    let state = m.running.agent().state();
    assert!(state.endpoints.is_empty(), "{:?}", state.endpoints);
    assert_eq!(state.bridges.len(), 1);
    assert_eq!(ifbs(&m.lab), [0u32; 0]);
}

/// Only a tap that is a port of a bridge is an endpoint for the host behind it.
#[test]
fn a_tap_that_leaves_the_bridge() {
    kernel_test!();
    if !has_tcx() {
        return skipped(ecn_tests::name_of(|| {}), Skip::Kernel, NO_TCX);
    }
    let m = Machines::start(2);
    let taps = || m.running.agent().state().endpoints.len();
    assert_eq!(taps(), 2);
    assert_eq!(ifbs(&m.lab).len(), 2);
    // A deleted ifb is created again: packets redirected to a missing one are lost.
    let first = ifbs(&m.lab);
    m.lab.nl.delete_link(first[0]).expect("delete an ifb");
    let again = || ifbs(&m.lab).len() == 2 && ifbs(&m.lab) != first;
    assert!(eventually(s(5), again), "{:?}", ifbs(&m.lab));
    let port = m.lab.hosts[0].port_index;
    m.lab.nl.set_master(port, 0).expect("no port any more");
    assert!(eventually(s(5), || taps() == 1), "{}", taps());
    assert_eq!(ifbs(&m.lab).len(), 1);
    let bridge = m.lab.nl.link(BRIDGE).expect("the bridge").index;
    m.lab.nl.set_master(port, bridge).expect("a port again");
    assert!(eventually(s(5), || taps() == 2), "{}", taps());
    drop(m.running);
    assert_eq!(ifbs(&m.lab), [0u32; 0]);
}

#[test]
fn ifbs_are_taken_over_and_cleaned() {
    kernel_test!();
    if !has_tcx() {
        return skipped(ecn_tests::name_of(|| {}), Skip::Kernel, NO_TCX);
    }
    let ecn = ecn_or_skip!();
    let (lab, _machines, mut config) = machines(2);
    config.agent.keep = true;
    let before = Snapshot::take();
    let mut first = Agent::start(&ecn, &config);
    let kept = ifbs(&lab);
    assert_eq!(kept.len(), 2);
    first.stop();
    assert_eq!(ifbs(&lab), kept);

    let _second = Agent::start(&ecn, &config);
    let pid = || State::read().map_or(0, |state| state.pid);
    assert!(eventually(s(20), || pid() != 0), "{}", pid());
    assert_eq!(ifbs(&lab), kept);
    kill(Pid::from_raw(pid() as i32), Signal::SIGKILL).expect("kill it");
    let cleaned = || process::run(&ecn, &["clean"]).status.success();
    assert!(eventually(s(5), cleaned));
    assert_eq!(ifbs(&lab), [0u32; 0]);
    assert_eq!(Snapshot::take().beyond(&before), Vec::<String>::new());
}
