//! Containers on the bridge of a CNI plugin, as Kubernetes creates them: Debian's `containernetworking-plugins`.

use std::{
    fs,
    io::Write as _,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use ecn_tests::{
    Skip, ecn_or_skip, eventually, kernel_test,
    lab::Lab,
    note,
    process::{Folder, Process, is_running},
    s, skipped,
    traffic::Repeated,
};
use ecn_user::{
    agent::state::{Lock, State},
    datapath::Maps,
    net::NetNs,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

/// Debian's path of the plugins.
const PLUGINS: &str = "/usr/lib/cni";
/// The plugin's bridge.
const CNI0: &str = "cni0";
/// Time limit for a container to become controlled, or to be removed.
const SOON: Duration = Duration::from_secs(1);

/// Skips the test if a plugin is not installed.
macro_rules! plugin_or_skip {
    () => {
        if !Path::new(PLUGINS).join("bridge").is_file() {
            let name = ecn_tests::name_of(|| {});
            return skipped(
                name,
                Skip::Missing,
                "no CNI plugins, `cargo xtask setup` installs them",
            );
        }
    };
}

/// A node's network, in a namespace of its own.
struct Node {
    lab: Lab,
    folder: Folder,
}

impl Node {
    fn new() -> Self {
        Self {
            lab: Lab::new(0),
            folder: Folder::new(),
        }
    }

    /// Calls the plugin; returns its output.
    fn call(&self, command: &str, netns: &str) -> String {
        let network = json!({
            "cniVersion": "0.4.0",
            "name": "pods",
            "type": "bridge",
            "bridge": CNI0,
            "isGateway": true,
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "dataDir": self.folder.file("ipam"),
                "ranges": [[{"subnet": "10.88.0.0/16"}]],
            },
        });
        let run = || {
            let mut plugin = Command::new(Path::new(PLUGINS).join("bridge"))
                .env_clear()
                .env("CNI_COMMAND", command)
                .env("CNI_CONTAINERID", netns)
                .env("CNI_NETNS", format!("/run/netns/{netns}"))
                .env("CNI_IFNAME", "eth0")
                .env("CNI_PATH", PLUGINS)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?;
            let mut stdin = plugin.stdin.take().expect("a pipe");
            stdin.write_all(network.to_string().as_bytes())?;
            drop(stdin);
            plugin.wait_with_output()
        };
        let output = self.lab.switch.run(run).expect("the plugin");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command} {netns}: {printed}");
        printed
    }

    /// Creates a container's namespace and connects it.
    fn add(&self, number: usize) -> Pod {
        let netns = format!("{}-pod{number}", self.lab.switch.name());
        drop(NetNs::create(&netns).expect("a namespace"));
        let result: Value = serde_json::from_str(&self.call("ADD", &netns)).expect("a result");
        let address = result["ips"][0]["address"].as_str();
        let (address, _) = address
            .and_then(|text| text.split_once('/'))
            .expect("an address");
        let address = address.parse().expect("an address");
        Pod { netns, address }
    }

    /// Disconnects a container and removes its namespace.
    fn delete(&self, pod: &Pod) {
        self.call("DEL", &pod.netns);
        NetNs::delete(&pod.netns).expect("a namespace");
    }

    /// The agent on the node.
    fn start(&self, ecn: &Path, config: &str) -> Process {
        let path = self.folder.file("ecn.toml");
        fs::write(&path, config).expect("write");
        let netns = format!("--net=/run/netns/{}", self.lab.switch.name());
        let (ecn, path) = (
            ecn.to_str().expect("a path"),
            path.to_str().expect("a path"),
        );
        let words = [netns.as_str(), ecn, "run", "--config", path];
        let agent = Process::start(Path::new("nsenter"), &words, &self.folder.file("agent"));
        assert!(
            eventually(s(20), || is_running(agent.id())),
            "{}",
            self.folder.log()
        );
        agent
    }

    /// Number of the bridge's ports.
    fn ports(&self) -> usize {
        let links = self.lab.nl.links().expect("links");
        links.iter().filter(|link| link.master.is_some()).count()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let prefix = format!("{}-pod", self.lab.switch.name());
        let names = NetNs::list().unwrap_or_default();
        for name in names.iter().filter(|name| name.starts_with(&prefix)) {
            let _ = NetNs::delete(name);
        }
    }
}

/// Namespaces of controlled devices.
fn controlled() -> Vec<String> {
    let state = State::read().filter(|_| Lock::holder().is_some());
    let endpoints = state.unwrap_or_default().endpoints;
    endpoints
        .into_iter()
        .map(|endpoint| endpoint.netns)
        .collect()
}

fn is_controlled(pod: &Pod) -> bool {
    controlled().contains(&pod.netns)
}

/// A running container.
#[derive(Clone)]
struct Pod {
    netns: String,
    address: IpAddr,
}

impl Pod {
    /// Sends packets, and closes the socket. Returns its address.
    fn send(&self, to: SocketAddr, packets: u32) -> SocketAddr {
        let ns = NetNs::named(&self.netns).expect("a namespace");
        let bind = || UdpSocket::bind((self.address, 0));
        let socket = ns.run(bind).expect("a socket");
        for _ in 0..packets {
            socket.send_to(&[7; 500], to).expect("send");
            std::thread::sleep(Duration::from_micros(100));
        }
        socket.local_addr().expect("an address")
    }
}

/// A receiver there, until it is dropped.
fn receiver(pod: &Pod) -> (UdpSocket, SocketAddr) {
    let ns = NetNs::named(&pod.netns).expect("a namespace");
    let at = SocketAddr::new(pod.address, 7000);
    let socket = ns.run(|| UdpSocket::bind(at)).expect("a socket");
    (socket, at)
}

/// The agent's default pin path.
fn maps() -> Maps {
    Maps::open(&ecn_user::config::Config::default().agent.pin).expect("maps")
}

/// Packets from this address that echoes have acknowledged.
fn acked(maps: &Maps, from: SocketAddr) -> u64 {
    let IpAddr::V4(address) = from.ip() else {
        return 0;
    };
    let flows = maps.flows().expect("flows");
    let of_it = flows.iter().filter(|(key, _)| {
        key.src == address.to_ipv6_mapped().octets() && key.src_port == from.port()
    });
    of_it.map(|(_, flow)| flow.acked_packets).sum()
}

#[test]
fn three_lines_control_all_containers_of_a_bridge() {
    const NOW: usize = 20;
    const LATER: usize = 5;
    kernel_test!();
    let ecn = ecn_or_skip!();
    plugin_or_skip!();
    let node = Node::new();
    let mut pods: Vec<Pod> = (0..NOW).map(|number| node.add(number)).collect();
    let three_lines = format!("[[bridge]]\nname = \"{CNI0}\"\npeers = true\n");
    let mut agent = node.start(&ecn, &three_lines);
    let log = || node.folder.log();
    for pod in &pods {
        assert!(is_controlled(pod), "{}: {}", pod.netns, log());
    }
    for number in NOW..NOW + LATER {
        let pod = node.add(number);
        assert!(
            eventually(SOON, || is_controlled(&pod)),
            "{}: {}",
            pod.netns,
            log()
        );
        pods.push(pod);
    }
    assert_eq!(controlled().len(), NOW + LATER);
    let (maps, (_receiver, at)) = (maps(), receiver(&pods[0]));
    for pod in &pods[1..] {
        let from = pod.send(at, 100);
        assert!(
            eventually(SOON, || acked(&maps, from) == 100),
            "{}",
            acked(&maps, from)
        );
    }
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended(s(10)), Some(Some(0)));
}

#[test]
fn containers_churn_under_load() {
    const PODS: usize = 50;
    kernel_test!();
    let ecn = ecn_or_skip!();
    plugin_or_skip!();
    let node = Node::new();
    // Their ports have no queue: virtual queues mark.
    let config = format!(
        "[[bridge]]\nname = \"{CNI0}\"\npeers = true\nqueue = \"virtual\"\nqueue_rate = \"100mbit\"\n"
    );
    let mut agent = node.start(&ecn, &config);
    let log = || node.folder.log();
    let sink = node.add(PODS);
    let (_receiver, at) = receiver(&sink);
    let loader = node.add(PODS + 1);
    let mut pods: Vec<Pod> = (0..PODS).map(|number| node.add(number)).collect();
    let all = || controlled().len() == PODS + 2;
    assert!(
        eventually(2 * SOON, all),
        "{}: {}",
        controlled().len(),
        log()
    );
    let maps = maps();
    let before = agent.settled(SOON);
    let load = Repeated::start(move || {
        loader.send(at, 1000);
    });
    let mut slowest = [Duration::ZERO; 2];
    let came = |pod: &Pod| {
        let from = pod.send(at, 50);
        let came = eventually(SOON, || acked(&maps, from) >= 45);
        assert!(came, "{} of 50: {}", acked(&maps, from), log());
    };
    for (number, pod) in pods.iter_mut().enumerate() {
        came(pod);
        let ports = node.ports();
        let begun = Instant::now();
        node.delete(pod);
        let removed = || node.ports() == ports - 1 && !is_controlled(pod);
        assert!(eventually(SOON, removed), "{}: {}", pod.netns, log());
        slowest[0] = slowest[0].max(begun.elapsed());
        *pod = node.add(number);
        let begun = Instant::now();
        assert!(
            eventually(SOON, || is_controlled(pod)),
            "{}: {}",
            pod.netns,
            log()
        );
        slowest[1] = slowest[1].max(begun.elapsed());
    }
    pods.iter().for_each(came);
    drop(load);
    let after = agent.settled(SOON);
    note(&format!(
        "{PODS} containers: {before:?} -> {after:?}, slowest {slowest:?}"
    ));
    assert_eq!(
        (after.files, after.objects),
        (before.files, before.objects),
        "{}",
        log()
    );
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended(s(10)), Some(Some(0)), "{}", log());
}
