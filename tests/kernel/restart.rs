//! An agent that exits or is replaced, and leaves its programs, maps and queues to the next one.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ecn_core::{
    abi::{Count, name},
    flow::Key,
};
use ecn_tests::{
    ecn_or_skip, eventually, kernel_test,
    lab::Lab,
    note,
    process::{self, Process, Snapshot, stdout},
    running,
    running::pin,
    s,
    traffic::Stream,
};
use ecn_user::{
    agent::{enforce::now_ns, state::State},
    config::{Config, Marking},
    datapath::{AttachedBy, Maps, pin_dir},
    net::Netlink,
};
use nix::sys::signal::Signal;

/// 100 Mbit/s.
const LINK: u64 = 12_500_000;
/// 1 Mbit/s.
const PINNED: u64 = 125_000;
/// Packets in the port's queue.
const CAPACITY: u32 = 100;
const PAYLOAD: usize = 1400;
/// Ports of the streams; the last one's rate is pinned.
const STREAMS: [u16; 3] = [7001, 7002, 7003];

/// A lab, and files of a test; removed when dropped.
struct Site {
    lab: Lab,
    folder: PathBuf,
}

impl Site {
    /// Three hosts; the last one is connected to a port of 100 Mbit/s.
    fn new() -> Self {
        let lab = Lab::new(3);
        lab.limit(2, LINK, CAPACITY);
        let folder = std::env::temp_dir().join(format!("ecn-t-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        Self { lab, folder }
    }

    fn config(&self, hosts: &[usize]) -> Config {
        let config = running::config(&self.lab, Marking::InputOutput);
        running::with_endpoints(config, &self.lab, hosts, LINK)
    }

    /// Starts `ecn run` and waits until it runs. Returns also how long it took until limits were kept in force again.
    fn start(&self, ecn: &Path, config: &Config, more: &[&str]) -> (Process, Duration) {
        let path = self.folder.join("ecn.toml");
        fs::write(&path, toml::to_string(config).expect("a configuration")).expect("write it");
        let mut words = vec!["run", "--config", path.to_str().expect("a path")];
        words.extend(more);
        let maps = Maps::open(&pin()).ok();
        let beat = || Some(maps.as_ref()?.control().ok()?.valid_until_ns);
        let (before, began) = (beat(), Instant::now());
        let mut process = Process::start(ecn, &words, &self.folder.join("agent"));
        let pid = process.id();
        let mut beats = None;
        while State::read().is_none_or(|state| state.pid != pid) {
            if beats.is_none() && beat() != before {
                beats = Some(began.elapsed());
            }
            assert_eq!(process.ended(Duration::ZERO), None, "{}", self.log());
            assert!(began.elapsed() < s(60), "it does not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        (process, beats.unwrap_or_else(|| began.elapsed()))
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("agent.err")).unwrap_or_default()
    }

    /// Stops an agent, which must exit with code 0.
    fn end(&self, agent: &mut Process) {
        agent.signal(Signal::SIGTERM);
        assert_eq!(agent.ended(s(10)), Some(Some(0)), "{}", self.log());
    }

    /// Two flows from different hosts that share the port, and a pinned one.
    fn streams(&self) -> [Stream; 3] {
        let [a, b, c] = STREAMS;
        let hosts = &self.lab.hosts;
        [(0, a), (1, b), (1, c)]
            .map(|(from, port)| Stream::start(&hosts[from], &hosts[2], port, PAYLOAD))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn key_of(maps: &Maps, port: u16) -> Option<Key> {
    let flows = maps.flows().ok()?;
    let mut keys = flows.iter().map(|(key, _)| *key);
    keys.find(|key| key.src_port == port)
}

/// Pins the last stream's flow at 1 Mbit/s, and waits until all three are limited.
fn limited(site: &Site) -> [Key; 3] {
    let mut maps = Maps::open(&pin()).expect("maps");
    let there = || STREAMS.iter().all(|port| key_of(&maps, *port).is_some());
    assert!(eventually(s(5), there), "no flows: {}", site.log());
    let keys = STREAMS.map(|port| key_of(&maps, port).expect("a flow"));
    maps.set_pin(&keys[2], PINNED).expect("pin");
    let limited = || {
        let classes = keys.map(|key| maps.flow(&key).map_or(0, |flow| flow.class));
        classes
            .iter()
            .all(|class| *class != 0 && maps.is_in_force(*class))
    };
    assert!(eventually(s(10), limited), "not limited: {}", site.log());
    keys
}

/// What is observed while agents are replaced.
#[derive(Clone, Debug, Default)]
struct Seen {
    looks: u32,
    /// Maximum number of packets that waited at the port.
    queue: u32,
    /// Longest time without limits of one of the flows.
    off: Duration,
    /// Longest time between two samples.
    late: Duration,
    /// Rates of the pinned flow's class.
    held: BTreeSet<u64>,
}

/// Samples every 2 ms.
struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// What is sampled.
struct Place {
    maps: Maps,
    switch: Netlink,
    port: u32,
    /// Each flow, with netlink and device of its host.
    flows: Vec<(Key, Netlink, u32)>,
}

impl Place {
    fn new(site: &Site, keys: [Key; 3]) -> Self {
        let host = |at: usize| {
            let host = &site.lab.hosts[at];
            (Netlink::open(&host.ns).expect("netlink"), host.ifindex)
        };
        let flows = [0, 1, 1].into_iter().zip(keys);
        Self {
            maps: Maps::open(&pin()).expect("maps"),
            switch: Netlink::open(&site.lab.switch).expect("netlink"),
            port: site.lab.hosts[2].port_index,
            flows: flows
                .map(|(at, key)| {
                    let (nl, ifindex) = host(at);
                    (key, nl, ifindex)
                })
                .collect(),
        }
    }

    /// The rate to which a flow is limited, if it is.
    fn rate(&self, (key, nl, ifindex): &(Key, Netlink, u32)) -> Option<u64> {
        let flow = self.maps.flow(key)?;
        let valid = now_ns() < self.maps.control().ok()?.valid_until_ns;
        let classes = nl.class_stats(*ifindex).ok()?;
        let mut own = classes
            .iter()
            .filter(|of| of.classid & 0xffff == flow.class);
        let ceil = own.next()?.ceil_bytes_per_s;
        (valid && flow.class != 0 && self.maps.is_in_force(flow.class)).then_some(ceil)
    }
}

impl Watch {
    fn start(place: Place) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut seen = Seen::default();
            let mut limited = vec![Instant::now(); place.flows.len()];
            let mut last = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let queue = place.switch.root_qdisc(place.port).expect("qdiscs");
                seen.queue = seen.queue.max(queue.map_or(0, |root| root.qlen_packets));
                for (n, flow) in place.flows.iter().enumerate() {
                    let rate = place.rate(flow);
                    if rate.is_some_and(|rate| rate < LINK) {
                        limited[n] = Instant::now();
                    }
                    seen.off = seen.off.max(limited[n].elapsed());
                    if n == 2 {
                        seen.held.extend(rate);
                    }
                }
                seen.looks += 1;
                seen.late = seen.late.max(last.elapsed());
                last = Instant::now();
                std::thread::sleep(Duration::from_millis(2));
            }
            seen
        });
        Self { stop, thread }
    }

    fn stop(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("what was seen")
    }
}

/// Packets dropped by queues on the path, at the hosts and at the port.
fn drops(site: &Site) -> u64 {
    let port = (&site.lab.nl, site.lab.hosts[2].port_index);
    let hosts = site.lab.hosts[..2]
        .iter()
        .map(|host| (&host.nl, host.ifindex));
    let roots = hosts.chain([port]).map(|(nl, ifindex)| {
        let root = nl.root_qdisc(ifindex).expect("qdiscs");
        root.map_or(0, |root| u64::from(root.drops))
    });
    roots.sum()
}

/// Five replacements of the agent, each by another binary, with two greedy flows at a full port and a pinned one.
#[test]
fn an_upgrade_under_load_leaves_no_gap() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let site = Site::new();
    let copy = site.folder.join("ecn-upgraded");
    fs::copy(&ecn, &copy).expect("a copy");
    let config = site.config(&[0, 1, 2]);
    let (mut agent, _) = site.start(&ecn, &config, &["--keep"]);
    let streams = site.streams();
    let keys = limited(&site);
    std::thread::sleep(s(3));
    let maps = Maps::open(&pin()).expect("maps");
    let flows = || keys.map(|key| maps.flow(&key).expect("the flow"));
    let marked = || {
        (0..4)
            .map(|slot| maps.bridge(0).expect("counters").port(slot).marked)
            .sum::<u64>()
    };
    let expired = || maps.count(Count::LimitExpired).expect("a counter");

    let counted = (drops(&site), expired());
    let received = || streams.iter().map(Stream::received_bytes).sum::<u64>();
    let missing = || {
        let sent: u64 = streams.iter().map(Stream::sent).sum();
        sent.saturating_sub(received() / PAYLOAD as u64)
    };
    let on_the_way = missing();
    let watch = Watch::start(Place::new(&site, keys));
    let (mut slowest, mut last, mut marks) = (Duration::ZERO, flows(), marked());
    let (began, at_first) = (Instant::now(), received());
    for next in [&copy, &ecn, &copy, &ecn, &copy] {
        site.end(&mut agent);
        let took;
        (agent, took) = site.start(next, &config, &["--keep"]);
        slowest = slowest.max(took);
        std::thread::sleep(s(1));
        assert!(!site.log().contains("WARN"), "{}", site.log());
        let now = flows();
        for (now, last) in now.iter().zip(&last) {
            assert!(now.sent_packets > last.sent_packets, "{last:?} {now:?}");
            assert!(
                now.marked_packets >= last.marked_packets,
                "{last:?} {now:?}"
            );
            assert_eq!(now.class, last.class);
        }
        assert!(marked() > marks, "nothing is marked any more");
        (last, marks) = (now, marked());
        let pins = maps.pins().expect("pins");
        assert_eq!(pins, [(keys[2], PINNED)]);
    }
    let part = (received() - at_first) as f64 / began.elapsed().as_secs_f64() / LINK as f64;
    // On a busy machine, senders are late.
    assert!(part >= 0.5, "{part} of the port");
    let during = watch.stop();
    let lost = missing().saturating_sub(on_the_way);
    note(&format!(
        "restart: limits kept in force after {slowest:?} at most; {part:.3} of the port; queue {} packets; \
         without limits {:?}, looks {:?} apart; \
         {lost} packets missing",
        during.queue, during.off, during.late
    ));
    // Limits hold for a second without an agent.
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    assert_eq!((drops(&site), expired()), counted, "{during:?}");
    assert!(lost < 100, "{lost} packets");
    // Nothing is seen between two samples.
    let off = during.off.saturating_sub(during.late);
    assert!(off < Duration::from_millis(50), "{during:?}");
    // Without limits the queue would be full. If the port's timer is a millisecond late, eight packets more wait.
    assert!(during.queue <= CAPACITY / 2, "{during:?}");
    assert_eq!(during.held, BTreeSet::from([PINNED]));
    // Without an agent no new rate comes into force: the programs hold rates until the next agent has taken over.
    site.end(&mut agent);
    let rates = || flows().map(|flow| flow.rate_bytes_per_s);
    let left = rates();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(rates(), left, "rates change between two agents");
    let (mut agent, _) = site.start(&ecn, &config, &["--keep"]);
    assert!(eventually(s(5), || rates() != left), "no rate changes");
    drop(streams);
    site.end(&mut agent);
}

/// A killed agent leaves what it leaves at a normal exit, except that limits lapse.
#[test]
fn after_a_kill_limits_lapse_and_the_next_agent_continues() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let site = Site::new();
    let config = site.config(&[0, 1, 2]);
    let (mut agent, _) = site.start(&ecn, &config, &["--keep"]);
    let streams = site.streams();
    let keys = limited(&site);
    let is_held = |stream: &Stream| stream.rate(Duration::from_millis(400)) < 1.2 * PINNED as f64;
    assert!(eventually(s(10), || is_held(&streams[2])), "not held");
    let maps = Maps::open(&pin()).expect("maps");
    agent.signal(Signal::SIGKILL);
    let killed = Instant::now();
    assert_eq!(agent.ended(s(5)), Some(None));
    let free = || streams[2].rate(Duration::from_millis(100)) > 4.0 * PINNED as f64;
    assert!(eventually(s(3), free), "the flow is still held");
    let lapsed = killed.elapsed();
    let marked = || {
        (0..4)
            .map(|slot| maps.bridge(0).expect("counters").port(slot).marked)
            .sum::<u64>()
    };
    let marks = marked();
    assert!(
        eventually(s(3), || marked() > marks + 100),
        "marking has stopped"
    );

    let sent = maps.flow(&keys[2]).expect("the flow").sent_packets;
    let (mut agent, took) = site.start(&ecn, &config, &["--keep"]);
    assert!(!site.log().contains("WARN"), "{}", site.log());
    note(&format!(
        "restart: limits lapsed after {lapsed:?}, and were in force {took:?} after the next start"
    ));
    assert!(lapsed < Duration::from_millis(1_500), "{lapsed:?}");
    assert!(eventually(s(5), || is_held(&streams[2])), "not held again");
    assert!(maps.flow(&keys[2]).expect("the flow").sent_packets > sent);
    drop(streams);
    site.end(&mut agent);
}

/// After `ecn clean` nothing of an agent remains; until then, commands report that none runs.
#[test]
fn kept_programs_are_cleaned() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let site = Site::new();
    let before = Snapshot::take();
    let config = site.config(&[0, 1, 2]);
    let (mut agent, _) = site.start(&ecn, &config, &["--keep"]);
    let streams = site.streams();
    limited(&site);
    let objects = agent.objects();
    site.end(&mut agent);
    assert_eq!(State::read().map(|state| state.pid), Some(0));
    let output_of = |words: &[&str]| {
        let output = process::run(&ecn, words);
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    for words in [&["port", "show"][..], &["flow", "show"]] {
        let printed = output_of(words);
        assert!(
            printed.contains("no agent is running: ports still mark"),
            "{printed}"
        );
    }
    let printed = output_of(&["doctor"]);
    assert!(
        printed.contains("running agent or rig: none; programs that an earlier one kept"),
        "{printed}"
    );
    drop(streams);
    let printed = stdout(&process::run(&ecn, &["clean"]));
    assert!(printed.contains("pinned maps"), "{printed}");
    assert_eq!(Snapshot::take().beyond(&before), Vec::<String>::new());
    assert_eq!(before.beyond(&Snapshot::take()), Vec::<String>::new());
    objects.wait_removed();
}

/// Maps that do not fit, or a start without `keep`: the existing state is removed, and the log says why.
#[test]
fn state_that_cannot_be_taken_over_is_replaced() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let site = Site::new();
    let before = Snapshot::take();
    let config = site.config(&[0, 1, 2]);
    let maps = pin_dir(&pin()).join("maps");
    let put = |of: &str, at: &str| fs::rename(maps.join(of), maps.join(at)).expect("rename a pin");
    let another_layout = || {
        put(name::RECEIVER, "aside");
        put(name::LIMIT, name::RECEIVER);
        put("aside", name::LIMIT);
    };
    let missing = || fs::remove_file(maps.join(name::WORK)).expect("remove a pin");
    let another_version =
        || fs::rename(pin_dir(&pin()), pin().join("v1")).expect("rename the pins");
    let no_state = || fs::remove_file("/run/ecn/state.json").expect("remove the state");
    let nothing = || {};
    let cases: [(&dyn Fn(), &str, &str); 5] = [
        (
            &another_layout,
            "--keep",
            "map ECN_RECEIVER: Array with keys of 4 and values of 8 bytes",
        ),
        (&missing, "--keep", "map ECN_WORK"),
        (&another_version, "--keep", "the maps are of layout v1"),
        (&no_state, "--keep", "its state is missing"),
        (&nothing, "--keep=false", "`keep` is not set"),
    ];
    for (spoil, keep, why) in cases {
        let (mut agent, _) = site.start(&ecn, &config, &["--keep"]);
        let objects = agent.objects();
        site.end(&mut agent);
        spoil();
        let (mut agent, _) = site.start(&ecn, &config, &[keep]);
        let log = site.log();
        let reasons = log
            .lines()
            .filter(|line| line.contains("cannot take over"))
            .collect::<Vec<_>>();
        assert_eq!(reasons.len(), 1, "{log}");
        assert!(reasons[0].contains(why), "{log}");
        objects.wait_removed();
        agent.signal(Signal::SIGTERM);
        assert_eq!(agent.ended(s(10)), Some(Some(0)), "{}", site.log());
        if keep == "--keep" {
            stdout(&process::run(&ecn, &["clean"]));
        }
        let left = Snapshot::take().beyond(&before);
        let left: Vec<_> = left
            .iter()
            .filter(|what| *what != "file /run/ecn/lock")
            .collect();
        assert_eq!(left, Vec::<&String>::new(), "{why}");
    }
}

/// An endpoint that is no longer configured is restored, and a removed port's slot is free.
#[test]
fn unconfigured_devices_are_detached() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let site = Site::new();
    let (mut agent, _) = site.start(&ecn, &site.config(&[0, 1, 2]), &["--keep"]);
    let streams = site.streams();
    let keys = limited(&site);
    site.end(&mut agent);
    let root = |host: usize| {
        let host = &site.lab.hosts[host];
        let root = host.nl.root_qdisc(host.ifindex).expect("qdiscs");
        root.map(|root| root.kind)
    };
    assert_eq!(root(0).as_deref(), Some("htb"));
    drop(streams);
    // Both are named in the configuration's old order.
    let (mut agent, _) = site.start(&ecn, &site.config(&[1, 2]), &["--keep"]);
    assert!(!site.log().contains("WARN"), "{}", site.log());
    assert_ne!(root(0).as_deref(), Some("htb"));
    assert_eq!(root(1).as_deref(), Some("htb"));
    let state = State::read().expect("the state");
    let numbers: Vec<u32> = state.endpoints.iter().map(|of| of.number).collect();
    assert_eq!(numbers, [2, 3]);
    let links = fs::read_dir(pin_dir(&pin()).join("links")).expect("links");
    // Two tracing programs; with tcx three ports, and two programs at each of two endpoints.
    let by_links = state.bridges[0].ports[0].attached == Some(AttachedBy::Tcx);
    let at_devices = if by_links { 3 + 2 * 2 } else { 0 };
    assert_eq!(links.count(), 2 + at_devices);
    let maps = Maps::open(&pin()).expect("maps");
    assert_eq!(u32::from(keys[1].endpoint), 2);
    assert_eq!(maps.devices().len(), 5);
    site.end(&mut agent);
    assert!(stdout(&process::run(&ecn, &["clean"])).contains("pinned maps"));
}
