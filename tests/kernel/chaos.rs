//! An agent under load while its surroundings change.
//!
//! `ECN_CHAOS_SECONDS` sets the duration (10), `ECN_CHAOS_SEED` repeats a run.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use ecn_tests::{
    ecn_or_skip, eventually, kernel_test,
    lab::{DEVICE, Host, Lab, MTU},
    note,
    process::{self, Folder, Process, Snapshot},
    running, s,
    traffic::{Stream, udp},
};
use ecn_user::{
    config::{self, Config, Marking},
    net::ethtool::{Ethtool, Offload},
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// 40 Mbit/s.
const LINK: u64 = 5_000_000;
/// The receiver.
const SINK: usize = 3;
/// A host without the agent: its packets cannot be marked.
const GREEDY: usize = 4;
const HOSTS: usize = 5;

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn limit(lab: &Lab) {
    lab.limit(SINK, LINK, 100);
}

fn rows(ecn: &Path, object: &str) -> Vec<Value> {
    let output = process::run(ecn, &[object, "show", "-j"]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// Applies a random change; returns its name.
fn change(
    lab: &mut Lab,
    random: &mut Random,
    agent: &Process,
    config: &mut Config,
    folder: &Folder,
) -> &'static str {
    let host = random.below(HOSTS);
    let source = random.below(SINK);
    match random.below(9) {
        0 => {
            limit(lab);
            "the port's qdisc replaced"
        }
        1 => {
            let port = lab.hosts[SINK].port_index;
            lab.nl.delete_root_qdisc(port).expect("delete the qdisc");
            std::thread::sleep(Duration::from_millis(50));
            limit(lab);
            "the port's qdisc deleted and made again"
        }
        2 => {
            let source = &lab.hosts[source];
            let deleted = source.nl.delete_root_qdisc(source.ifindex);
            deleted.expect("delete the qdisc");
            "an endpoint's qdisc deleted"
        }
        3 => {
            let (port, index) = (lab.hosts[host].port.clone(), lab.hosts[host].port_index);
            lab.unplug(host);
            if !lab.plug_in_as(host, &port, index) {
                lab.plug_in(host); // no `ip`: with another device index
            }
            limit(lab);
            "a port made again under its number"
        }
        4 => {
            lab.unplug(host);
            std::thread::sleep(Duration::from_millis(random.below(300) as u64));
            lab.plug_in(host);
            limit(lab);
            "a port made again later"
        }
        5 => {
            lab.delete_bridge();
            std::thread::sleep(Duration::from_millis(random.below(300) as u64));
            lab.make_bridge();
            "the bridge made again"
        }
        6 => {
            let on = random.below(2) == 1;
            let offload = [Offload::Tso, Offload::Gso, Offload::Gro][random.below(3)];
            let at = &lab.hosts[host];
            for (ns, device) in [(&lab.switch, at.port.as_str()), (&at.ns, DEVICE)] {
                let ethtool = Ethtool::open(ns).expect("ethtool");
                ethtool.set(device, offload, on).expect("switch it");
            }
            "an offload switched"
        }
        7 => {
            let mtu = [1280, 1400, MTU][random.below(3)];
            let at = &lab.hosts[host];
            lab.nl.set_mtu(at.port_index, mtu).expect("the port's MTU");
            at.nl.set_mtu(at.ifindex, mtu).expect("the host's MTU");
            "an MTU changed"
        }
        _ => {
            use config::{Shares, Unmarkable};
            let bridge = &mut config.bridges[0];
            bridge.threshold = 4 + random.below(8) as u32;
            bridge.shares = [Shares::Off, Shares::Source, Shares::Port][random.below(3)];
            bridge.unmarkable = [Unmarkable::Drop, Unmarkable::Pass][random.below(2)];
            folder.write(config);
            agent.signal(Signal::SIGHUP);
            "SIGHUP"
        }
    }
}

/// Pairs of hosts between which no packet gets through.
fn blocked(lab: &Lab) -> Vec<(usize, usize)> {
    let sockets: Vec<_> = (0..HOSTS)
        .map(|host| udp(&lab.hosts[host], false, 7100))
        .collect();
    let passes = |from: usize, to: usize| {
        let at = SocketAddr::new(lab.hosts[to].v4.into(), 7100);
        eventually(s(2), || {
            let _ = sockets[from].send_to(b"hello", at);
            sockets[to].recv_from(&mut [0; 16]).is_ok()
        })
    };
    let pairs = (0..HOSTS).flat_map(|from| (0..HOSTS).map(move |to| (from, to)));
    pairs
        .filter(|(from, to)| from != to && !passes(*from, *to))
        .collect()
}

/// Traffic of all sources to the sink.
fn load(lab: &Lab) -> Vec<Stream> {
    let sources = (0..SINK).chain([GREEDY]);
    let to = &lab.hosts[SINK];
    let stream = |n: usize| Stream::start(&lab.hosts[n], to, 7001 + n as u16, 1000);
    sources.map(stream).collect()
}

/// Without traffic nothing waits by any counter, and every port is known.
fn assert_is_at_rest(lab: &Lab, ecn: &Path, folder: &Folder) {
    let mut ports = Vec::new();
    let at_rest = eventually(s(8), || {
        ports = rows(ecn, "port");
        let rest = |port: &Value| port["waiting_packets"] == 0 && port["occupancy_packets"] == 0;
        let is_there = |host: &Host| ports.iter().any(|port| port["ifindex"] == host.port_index);
        ports.len() == HOSTS && ports.iter().all(rest) && lab.hosts.iter().all(is_there)
    });
    assert!(at_rest, "{ports:#?}\n{}", folder.log());
}

/// The port marks, sources receive echoes and follow their rates, and a source whose packets cannot be marked is limited
/// to its share.
fn assert_is_controlled(lab: &Lab, ecn: &Path, folder: &Folder) {
    let mut flows = Vec::new();
    let controlled = eventually(s(30), || {
        flows = rows(ecn, "flow");
        let limited = |flow: &&Value| {
            flow["marked_packets"].as_u64() > Some(100)
                && flow["rate_bytes_per_s"].as_u64() < Some(LINK * 9 / 10)
                && flow["idle_ms"].as_u64() < Some(1000)
        };
        flows.iter().filter(limited).count() == SINK
    });
    assert!(controlled, "{flows:#?}\n{}", folder.log());
    let held = |port: &Value| {
        port["ifindex"] == lab.hosts[SINK].port_index
            && port["dropped_unmarkable_packets"].as_u64() > Some(100)
    };
    // Its share is known a moment later.
    let mut ports = Vec::new();
    let is_held = eventually(s(5), || {
        ports = rows(ecn, "port");
        ports.iter().any(held)
    });
    assert!(is_held, "{ports:#?}\n{}", folder.log());
    let qdisc = |n: usize| {
        let host = &lab.hosts[n];
        let root = host.nl.root_qdisc(host.ifindex).expect("qdiscs");
        root.map(|root| (root.kind, root.handle))
    };
    // The agent has installed its qdisc at every limited source, also where the device was re-created.
    assert!((0..SINK).all(|n| qdisc(n).is_some_and(|(_, handle)| handle != 0)));
}

#[test]
fn everything_changes_under_load() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let seconds = number("ECN_CHAOS_SECONDS").unwrap_or(10);
    let seed = number("ECN_CHAOS_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64 % 1_000_000)
    });
    note(&format!("chaos: {seconds} s, ECN_CHAOS_SEED={seed}"));
    let mut random = Random(seed);
    let (mut lab, folder) = (Lab::new(HOSTS), Folder::new());
    limit(&lab);
    let before = Snapshot::take();
    let config = running::config(&lab, Marking::InputOutput);
    let mut config = running::with_endpoints(config, &lab, &[0, 1, 2, SINK], LINK);
    let before_chaos = config.bridges[0].clone();
    let mut agent = folder.start(&ecn, &config);
    let objects = agent.objects();

    let streams = load(&lab);
    let mut happened = BTreeMap::new();
    let end = Instant::now() + s(seconds);
    while Instant::now() < end {
        let what = change(&mut lab, &mut random, &agent, &mut config, &folder);
        *happened.entry(what).or_insert(0usize) += 1;
        std::thread::sleep(Duration::from_millis(100 + random.below(400) as u64));
    }
    for host in &lab.hosts {
        lab.nl.set_mtu(host.port_index, MTU).expect("MTU");
        host.nl.set_mtu(host.ifindex, MTU).expect("MTU");
    }
    let happened_in_all: usize = happened.values().sum();
    note(&format!("chaos: {happened_in_all} changes: {happened:?}"));
    drop(streams);

    assert_is_at_rest(&lab, &ecn, &folder);
    assert_eq!(blocked(&lab), [], "nothing passes\n{}", folder.log());

    config.bridges[0] = before_chaos;
    folder.write(&config);
    agent.signal(Signal::SIGHUP);
    let streams = load(&lab);
    assert_is_controlled(&lab, &ecn, &folder);
    drop(streams);

    // A line or two per change, none per packet or tick.
    let lines = folder.log().lines().count();
    assert!(
        lines <= 20 + 4 * happened_in_all,
        "{lines} lines for {happened_in_all} changes:\n{}",
        folder.log()
    );
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended(s(20)), Some(Some(0)), "{}", folder.log());
    objects.wait_removed();
    let mut left = Snapshot::take().beyond(&before);
    // The lock file remains, and ports that the lab recreated have new indexes.
    left.retain(|what| !what.ends_with("/run/ecn/lock") && !what.contains(lab.switch.name()));
    assert_eq!(left, Vec::<String>::new(), "{}", folder.log());
}
