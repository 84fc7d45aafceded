//! An agent that is killed, stopped or terminated.

use std::{net::SocketAddr, path::Path, time::Duration};

use ecn_core::{abi::Count, flow::Key};
use ecn_tests::{
    ecn_or_skip, eventually, kernel_test,
    lab::{DEVICE, Lab},
    process::{self, Folder, Process, Snapshot, stdout},
    running::{self, pin},
    s,
    traffic::{self, Stream},
};
use ecn_user::{
    config::{Config, Marking},
    datapath::Maps,
};
use nix::sys::{
    signal::Signal,
    socket::{setsockopt, sockopt},
};

/// 40 Mbit/s.
const LINK: u64 = 5_000_000;
/// 1 Mbit/s.
const PINNED: u64 = 125_000;

/// Starts `ecn run` with two endpoints and waits until it runs.
pub(crate) fn start(ecn: &Path, lab: &Lab, folder: &Folder) -> Process {
    folder.start(ecn, &config(lab))
}

/// The lab's bridge and its first two hosts.
pub(crate) fn config(lab: &Lab) -> Config {
    let config = running::config(lab, Marking::InputOutput);
    running::with_endpoints(config, lab, &[0, 1], LINK)
}

fn flow_of(maps: &Maps) -> Option<Key> {
    let flows = maps.flows().ok()?;
    flows
        .iter()
        .find(|(key, _)| key.src_port == 7001)
        .map(|(key, _)| *key)
}

/// Limits the stream's flow to 1 Mbit/s.
pub(crate) fn pinned(lab: &Lab) -> (Stream, Maps, Key) {
    let stream = Stream::start(&lab.hosts[0], &lab.hosts[1], 7001, 1000);
    let mut maps = Maps::open(&pin()).expect("maps");
    let there = || flow_of(&maps).is_some();
    assert!(eventually(s(5), there), "no flow");
    let key = flow_of(&maps).expect("the flow");
    maps.set_pin(&key, PINNED).expect("pin");
    let held = || stream.rate(Duration::from_millis(500)) < 1.2 * PINNED as f64;
    let why = || {
        let host = &lab.hosts[0];
        let classes = host.nl.class_stats(host.ifindex);
        let (flow, pins, control) = (maps.flow(&key), maps.pins(), maps.control());
        let expired = maps.count(Count::LimitExpired);
        format!("{flow:?}\n{pins:?}\n{control:?} {expired:?}\n{classes:?}")
    };
    assert!(eventually(s(10), held), "the flow is not held: {}", why());
    (stream, maps, key)
}

pub(crate) fn is_free(stream: &Stream) -> bool {
    stream.rate(Duration::from_millis(400)) > LINK as f64 / 2.0
}

#[test]
fn killed() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(2), Folder::new());
    let before = Snapshot::take();
    let mut agent = start(&ecn, &lab, &folder);
    let (stream, maps, _) = pinned(&lab);
    let objects = agent.objects();
    agent.signal(Signal::SIGKILL);
    assert!(
        eventually(s(2), || is_free(&stream)),
        "the flow is still held after the agent's end"
    );
    drop((stream, maps));
    assert_eq!(agent.ended(s(5)), Some(None));
    let left = Snapshot::take().beyond(&before);
    assert!(left.len() > 4, "what `ecn clean` has to do: {left:?}");
    let printed = stdout(&process::run(&ecn, &["clean"]));
    assert!(printed.contains("removed htb ec0e: of eth0"), "{printed}");
    assert_eq!(Snapshot::take().beyond(&before), Vec::<String>::new());
    assert_eq!(before.beyond(&Snapshot::take()), Vec::<String>::new());
    objects.wait_removed();
    assert_eq!(
        stdout(&process::run(&ecn, &["clean"])),
        "nothing to remove\n"
    );
}

#[test]
fn sigterm() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(2), Folder::new());
    let before = Snapshot::take();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut agent = start(&ecn, &lab, &folder);
        let (stream, maps, _) = pinned(&lab);
        let objects = agent.objects();
        agent.signal(signal);
        assert_eq!(agent.ended(s(10)), Some(Some(0)), "{signal}");
        assert!(
            eventually(s(2), || is_free(&stream)),
            "{signal}: the flow is still held"
        );
        drop((stream, maps));
        let left = Snapshot::take().beyond(&before);
        // The lock file stays, unlocked: removing it could take it from another process.
        let left: Vec<_> = left
            .iter()
            .filter(|what| *what != "file /run/ecn/lock")
            .collect();
        assert_eq!(left, Vec::<&String>::new(), "{signal}");
        objects.wait_removed();
    }
}

#[test]
fn stopped() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(2), Folder::new());
    let agent = start(&ecn, &lab, &folder);
    let (stream, maps, _) = pinned(&lab);
    let before = maps.count(Count::LimitExpired).expect("count");
    agent.signal(Signal::SIGSTOP);
    let freed = eventually(s(3), || is_free(&stream));
    let expired = maps.count(Count::LimitExpired).expect("count") - before;
    agent.signal(Signal::SIGCONT);
    assert!(freed, "an agent that does nothing holds the flow");
    assert!(expired > 100, "{expired} packets went past their limit");
    let held = || stream.rate(Duration::from_millis(500)) < 1.2 * PINNED as f64;
    assert!(
        eventually(s(5), held),
        "the agent is back, the limit is not"
    );
}

#[test]
fn a_second_agent_is_refused() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(2), Folder::new());
    let mut agent = start(&ecn, &lab, &folder);
    let config = folder.file("ecn.toml");
    let second = process::run(&ecn, &["run", "--config", config.to_str().expect("a path")]);
    assert_eq!(second.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert!(
        stderr.contains("another ecn agent or rig is running"),
        "{stderr}"
    );
    assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    // Neither it nor `clean` affected the first one.
    assert_eq!(process::run(&ecn, &["clean"]).status.code(), Some(3));
    let (stream, _, _) = pinned(&lab);
    drop(stream);
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended(s(10)), Some(Some(0)));
}

/// Super-packets are limited while a flow is, and restored when the agent exits.
#[test]
fn super_packet_sizes_are_restored() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::with_super_packets(2), Folder::new());
    let most = || {
        let host = &lab.hosts[0];
        host.nl.link(DEVICE).expect("the device").gso_max_segs
    };
    let before = most();
    assert!(before > Some(1), "{before:?}");
    let mut agent = start(&ecn, &lab, &folder);
    assert_eq!(most(), before, "nothing is limited");
    let held = pinned(&lab);
    assert_eq!(most(), Some(1), "at 40 Mbit/s");
    drop(held);
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended(s(20)), Some(Some(0)));
    assert_eq!(most(), before);

    // A killed agent cannot restore them; `ecn clean` does.
    let mut agent = start(&ecn, &lab, &folder);
    let held = pinned(&lab);
    agent.signal(Signal::SIGKILL);
    assert_eq!(agent.ended(s(5)), Some(None));
    drop(held);
    assert_eq!(most(), Some(1));
    let printed = stdout(&process::run(&ecn, &["clean"]));
    assert_eq!(most(), before, "{printed}");
}

/// The cap leaves room for UDP's super-packets, which would be segmented behind their class, into bursts.
#[test]
fn super_packets_of_udp_stay_whole() {
    const SEGMENTS: usize = 20;
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::with_super_packets(2), Folder::new());
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let most = || from.nl.link(DEVICE).expect("the device").gso_max_segs;
    let before = most();
    let _agent = start(&ecn, &lab, &folder);
    let socket = traffic::udp(from, false, 7001);
    setsockopt(&socket, sockopt::UdpGsoSegment, &1000).expect("super-packets");
    setsockopt(&socket, sockopt::SndBufForce, &(1 << 20)).expect("send buffer");
    let target = SocketAddr::new(to.address(false), 7002);
    let send = || {
        let sent = socket.send_to(&[0; SEGMENTS * 1000], target);
        assert_eq!(sent.ok(), Some(SEGMENTS * 1000));
    };
    let mut maps = Maps::open(&pin()).expect("maps");
    let is_there = || {
        send();
        flow_of(&maps).is_some()
    };
    assert!(eventually(s(5), is_there), "no flow");
    let key = flow_of(&maps).expect("the flow");
    maps.set_pin(&key, PINNED).expect("pin");
    let is_capped = || {
        send();
        most() != before
    };
    assert!(eventually(s(5), is_capped), "no limit");
    assert!(most() >= Some(SEGMENTS as u32), "{:?}", most());
}

/// A maximum that a user sets while flows are limited is lowered again, and restored at the end.
#[test]
fn a_changed_maximum_of_segments_is_followed() {
    const CHANGED: u32 = 40;
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::with_super_packets(2), Folder::new());
    let host = &lab.hosts[0];
    let most = || host.nl.link(DEVICE).expect("the device").gso_max_segs;
    let mut agent = start(&ecn, &lab, &folder);
    let held = pinned(&lab);
    assert_eq!(most(), Some(1), "at 40 Mbit/s");
    host.nl
        .set_gso_max_segs(host.ifindex, CHANGED)
        .expect("a change");
    assert!(eventually(s(5), || most() == Some(1)), "{:?}", most());
    drop(held);
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended(s(20)), Some(Some(0)));
    assert_eq!(most(), Some(CHANGED));
}

/// While limits have lapsed, and while a user has pinned a flow's rate, marks do not lower the rate of its response: it
/// resumes from where it was.
#[test]
fn responses_are_held_while_they_are_not_enforced() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(2), Folder::new());
    // 10 Mbit/s.
    lab.limit(1, LINK / 4, 100);
    let agent = start(&ecn, &lab, &folder);
    let _stream = Stream::start(&lab.hosts[0], &lab.hosts[1], 7001, 1000);
    let mut maps = Maps::open(&pin()).expect("maps");
    let rate = |maps: &Maps| {
        let flow = flow_of(maps).and_then(|key| maps.flow(&key));
        flow.map_or(0, |flow| flow.rate_bytes_per_s)
    };
    let marked = |maps: &Maps| maps.bridge(0).expect("counters").port(2).marked;
    // Marks go on, and the rate stays as it is half a second later: before limits lapse.
    let is_held = |maps: &Maps| {
        std::thread::sleep(Duration::from_millis(500));
        let before = (rate(maps), marked(maps));
        std::thread::sleep(s(4));
        let after = (rate(maps), marked(maps));
        assert!(after.1 > before.1 + 1000, "{before:?} {after:?}");
        assert_eq!(before.0, after.0);
    };
    let is_limited = |maps: &Maps| (LINK / 8..LINK / 3).contains(&rate(maps));
    assert!(eventually(s(10), || is_limited(&maps)), "{}", rate(&maps));

    agent.signal(Signal::SIGSTOP);
    is_held(&maps);
    agent.signal(Signal::SIGCONT);
    assert!(eventually(s(5), || is_limited(&maps)), "{}", rate(&maps));

    let key = flow_of(&maps).expect("the flow");
    maps.set_pin(&key, LINK / 2).expect("pin");
    is_held(&maps);
    maps.remove_pin(&key);
    assert!(eventually(s(5), || is_limited(&maps)), "{}", rate(&maps));
}
