//! Containers that start and stop: nothing keeps them alive, and new ones are controlled.

use std::{
    fs,
    net::IpAddr,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use ecn_tests::{
    ecn_or_skip, eventually, kernel_test,
    lab::{BRIDGE, DEVICE, Lab, MTU},
    note,
    process::{Folder, pins},
    running::{Running, config as lab_config},
    traffic::{Repeated, Stream, udp},
};
use ecn_user::{
    agent::{Options, state::State, survey},
    config::{self, Config, Marking},
    net::{NetNs, Netlink, VethEnd},
};

/// Time limit for noticing that a container started or stopped.
const SOON: Duration = Duration::from_secs(1);

/// A container as runtimes create it: a named namespace, and a veth pair to the bridge. Nothing here keeps it open.
struct Container<'a> {
    lab: &'a Lab,
    netns: String,
    port: String,
}

impl<'a> Container<'a> {
    fn new(lab: &'a Lab, number: u8) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let container = Self {
            lab,
            netns: format!("{}-c{next}", lab.switch.name()),
            port: format!("c{number}"),
        };
        container.make(number);
        container
    }

    fn make(&self, number: u8) {
        let ns = NetNs::create(&self.netns).expect("a namespace");
        let end = |name| VethEnd {
            name,
            ..VethEnd::default()
        };
        let port = self
            .lab
            .nl
            .add_veth(&end(&self.port), &end(DEVICE), &ns, MTU)
            .expect("a veth pair");
        self.lab
            .nl
            .set_master(port.index, self.lab.bridge)
            .expect("a port");
        self.lab.nl.set_up(port.index).expect("port up");
        let nl = Netlink::open(&ns).expect("netlink");
        let device = nl.link(DEVICE).expect("its end").index;
        nl.set_up(device).expect("up");
        let address = IpAddr::from([10, 77, 0, 100 + number]);
        nl.add_address(device, address, 24).expect("an address");
    }

    fn remove(&self) {
        NetNs::delete(&self.netns).expect("a namespace");
    }

    /// Whether its port still exists.
    fn has_port(&self) -> bool {
        self.lab.nl.link(&self.port).is_ok()
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let _ = NetNs::delete(&self.netns);
    }
}

/// Configures the lab's bridge and the peers of its ports.
fn peers(lab: &Lab) -> Config {
    let mut config = lab_config(lab, Marking::InputOutput);
    config.bridges[0].peers = true;
    config
}

fn controls(state: &State, netns: &str) -> bool {
    let is_it = |of: &ecn_user::agent::state::EndpointState| of.netns == netns;
    state.endpoints.iter().any(is_it)
}

fn open_files() -> usize {
    fs::read_dir("/proc/self/fd").expect("own files").count()
}

/// Iterations of [`a_removed_namespace_is_dropped_and_a_new_one_is_adopted`], and those before the first measurement.
const TURNS: u32 = 200;
const WARM_UP: u32 = 20;
/// 20 Mbit/s, of the full ports.
const PORT: u64 = 2_500_000;
/// How much the agent's heap may grow in 180 iterations, and per additional thread: glibc gives each thread a heap.
const GROWTH_KIB: u64 = 2048;
const GROWTH_PER_THREAD_KIB: u64 = 4096;

/// As in production: with two full ports, and traffic to the container.
#[test]
fn a_removed_namespace_is_dropped_and_a_new_one_is_adopted() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(3), Folder::new());
    lab.limit(1, PORT, 100);
    lab.limit(2, PORT, 100);
    let agent = folder.start(&ecn, &peers(&lab));
    let log = || folder.log();
    let container = Container::new(&lab, 1);
    let taken_up = || State::read().is_some_and(|state| controls(&state, &container.netns));
    assert!(eventually(SOON, taken_up), "{}", log());
    let streams = [
        Stream::start(&lab.hosts[0], &lab.hosts[1], 7001, 1000),
        Stream::start(&lab.hosts[0], &lab.hosts[2], 7002, 1000),
    ];
    let socket = udp(&lab.hosts[2], false, 7003);
    let to_container = Repeated::paced(1000, move |_| {
        // No process receives there, and at times there is no namespace.
        let _ = socket.send_to(&[7; 1000], "10.77.0.101:7003");
    });
    let settled = || {
        let held = agent.settled(SOON);
        let pins = pins();
        let qdiscs = lab.nl.qdiscs().expect("qdiscs").len();
        (held, pins, qdiscs)
    };
    let mut slowest = [Duration::ZERO; 2];
    let turn = |slowest: &mut [Duration; 2]| {
        let begun = Instant::now();
        container.remove();
        let is_removed = eventually(SOON, || !container.has_port());
        assert!(is_removed, "its port is still there: {}", log());
        let removed = Instant::now();
        // The same name must refer to the new namespace.
        assert!(eventually(SOON, || !taken_up()), "{}", log());
        container.make(1);
        let made = Instant::now();
        assert!(eventually(SOON, taken_up), "not taken up: {}", log());
        slowest[0] = slowest[0].max(removed - begun);
        slowest[1] = slowest[1].max(made.elapsed());
    };
    (0..WARM_UP).for_each(|_| turn(&mut slowest));
    let before = settled();
    (WARM_UP..TURNS).for_each(|_| turn(&mut slowest));
    let after = settled();
    let sent = streams.each_ref().map(Stream::sent);
    drop((streams, to_container));
    note(&format!(
        "{TURNS} turns: {before:?} -> {after:?}, slowest {slowest:?}, {sent:?} packets beside them"
    ));
    let ((held, pins, qdiscs), (then, pins_then, qdiscs_then)) = (before, after);
    assert_eq!(
        (then.files, then.objects, pins_then, qdiscs_then),
        (held.files, held.objects, pins, qdiscs),
        "{}",
        log()
    );
    let grown = then.memory_kib.saturating_sub(held.memory_kib);
    let threads = then.threads.saturating_sub(held.threads) as u64;
    let most = GROWTH_KIB + GROWTH_PER_THREAD_KIB * threads;
    assert!(grown <= most, "{grown} KiB and {threads} threads more");
}

#[test]
fn peers_of_ports_are_endpoints_wherever_they_are() {
    kernel_test!();
    let lab = Lab::new(2);
    let containers = [1, 2].map(|number| Container::new(&lab, number));
    let running = Running::start(peers(&lab), Options::default());
    let state = running.agent().state();
    let hosts = lab.hosts.iter().map(|host| host.ns.name().to_owned());
    let names = containers.iter().map(|container| container.netns.clone());
    for netns in hosts.chain(names) {
        assert!(controls(&state, &netns), "{netns}: {state:?}");
    }
    assert_eq!(state.endpoints.len(), 4, "{state:?}");
    assert_eq!(state.waiting, [], "{state:?}");
}

#[test]
fn few_files_are_open_for_an_endpoint() {
    kernel_test!();
    let lab = Lab::new(0);
    let running = Running::start(peers(&lab), Options::default());
    let first = Container::new(&lab, 0);
    let has = |n| running_endpoints(&running) == n;
    assert!(eventually(SOON, || has(1)));
    let before = open_files();
    let more: Vec<_> = (1..=10)
        .map(|number| Container::new(&lab, number))
        .collect();
    let all = eventually(5 * SOON, || has(11));
    assert!(all, "{:?}", running.agent().state());
    let each = (open_files() - before) as f64 / more.len() as f64;
    assert!(each <= 8.0, "{each} for each endpoint");
    drop(more);
    assert!(eventually(SOON, || has(1)));
    let closed = eventually(SOON, || open_files() == before);
    assert!(closed, "{} and {before} before", open_files());
    drop(first);
}

fn running_endpoints(running: &Running) -> usize {
    running.agent().state().endpoints.len()
}

#[test]
fn patterns_and_names_match_devices_that_appear_later() {
    kernel_test!();
    let lab = Lab::new(0);
    let mut config = lab_config(&lab, Marking::InputOutput);
    config.bridges[0].name = "br[0-9]".to_owned();
    let mut missing = config::Bridge::new("br-not-there");
    missing.netns = Some(lab.switch.name().to_owned());
    missing.queue = config.bridges[0].queue;
    missing.queue_rate = config.bridges[0].queue_rate;
    config.bridges.push(missing);
    let mut endpoint = config::Endpoint::new("eth*");
    endpoint.netns = Some(format!("{}-c*", lab.switch.name()));
    config.endpoints.push(endpoint);
    let running = Running::start(config, Options::default());
    let waits = |name: &str| {
        let state = running.agent().state();
        state.waiting.iter().any(|waiting| waiting.name == name)
    };
    let state = running.agent().state();
    assert_eq!(state.bridges.len(), 1, "{state:?}");
    assert_eq!(state.bridges[0].name, BRIDGE);
    assert!(waits("eth*") && waits("br-not-there"), "{state:?}");

    let container = Container::new(&lab, 1);
    let taken_up = || controls(&running.agent().state(), &container.netns);
    assert!(eventually(SOON, taken_up), "{:?}", running.agent().state());
    assert!(!waits("eth*"));
    lab.nl.add_bridge("br-not-there").expect("a bridge");
    let both = || running.agent().state().bridges.len() == 2;
    assert!(eventually(SOON, both), "{:?}", running.agent().state());
    assert!(!waits("br-not-there"));
}

/// The ends of a link between two bridges are ports, though each is the peer of the other.
#[test]
fn a_link_between_two_bridges_has_no_endpoints() {
    kernel_test!();
    let lab = Lab::new(2);
    let nl = &lab.nl;
    nl.add_bridge("br-2").expect("a bridge");
    let end = |name| VethEnd {
        name,
        ..VethEnd::default()
    };
    nl.add_veth(&end("trunk-1"), &end("trunk-2"), &lab.switch, MTU)
        .expect("veth pair");
    for (port, bridge) in [("trunk-1", BRIDGE), ("trunk-2", "br-2")] {
        let index = |name| nl.link(name).expect("a device").index;
        nl.set_master(index(port), index(bridge)).expect("a port");
    }
    let mut config = lab_config(&lab, Marking::InputOutput);
    config.bridges[0].peers = true;
    let mut second = config.bridges[0].clone();
    second.name = "br-2".to_owned();
    config.bridges.push(second);
    let found = survey(&config).expect("a survey");
    let peers: Vec<_> = found.peers.iter().map(|peer| &peer.device).collect();
    assert_eq!(peers, [DEVICE, DEVICE]);
    let running = Running::start(config, Options::default());
    let endpoints = running.agent().state().endpoints;
    let devices: Vec<_> = endpoints.iter().map(|of| &of.device).collect();
    assert_eq!(devices, [DEVICE, DEVICE]);
}

#[test]
fn a_new_configuration_is_applied_whole_or_not_at_all() {
    kernel_test!();
    let lab = Lab::new(2);
    let one = lab_config(&lab, Marking::InputOutput);
    let with = |host: usize| {
        let mut endpoint = config::Endpoint::new(DEVICE);
        endpoint.netns = Some(lab.hosts[host].ns.name().to_owned());
        endpoint
    };
    let mut config = one.clone();
    config.endpoints.push(with(0));
    let running = Running::start(config.clone(), Options::default());
    let agent = running.agent();

    // Another endpoint is added, another threshold is applied.
    let mut new = config.clone();
    new.endpoints.push(with(1));
    new.bridges[0].threshold = 5;
    agent.reload(new.clone()).expect("a good configuration");
    assert_eq!(agent.state().endpoints.len(), 2);
    assert_eq!(running.maps.marking(0).expect("a policy").threshold, 5);

    // A configuration that cannot be applied changes nothing: here another root qdisc exists.
    lab.hosts[0]
        .nl
        .pfifo_leaf(lab.hosts[0].ifindex, ecn_user::net::ROOT, 7 << 16, 10)
        .expect("a qdisc");
    let mut bad = new.clone();
    bad.bridges[0].threshold = 6;
    bad.endpoints[0].enforcement = config::Enforcement::Htb;
    let refused = agent.reload(bad).expect_err("a root qdisc of another");
    assert!(refused.to_string().contains("root qdisc"), "{refused}");
    assert_eq!(running.maps.marking(0).expect("a policy").threshold, 5);
    let mut bad = new.clone();
    bad.flow.max += 1;
    let refused = agent.reload(bad).expect_err("another size of the table");
    let message = "`max` of [flow] cannot change while the agent runs: restart it for that";
    assert_eq!(refused.to_string(), message);

    // What is no longer configured is removed.
    agent.reload(one).expect("a good configuration");
    assert_eq!(agent.state().endpoints, []);
    assert_eq!(running.maps.marking(0).expect("a policy").threshold, 8);
}
