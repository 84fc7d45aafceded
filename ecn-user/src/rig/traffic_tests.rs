use super::super::topology::Rig;
use super::*;
use crate::net::testing::require_root;

#[test]
fn kinds_have_the_names_of_the_plan() {
    for kind in Kind::ALL {
        assert_eq!(serde_json::to_value(kind).expect("json"), kind.name());
    }
}

#[test]
fn mixed_is_half_of_each_class() {
    let plan = Plan::new(&Topology::default(), Kind::Mixed, false);
    let tcp = |class: &str| {
        let flows = plan
            .flows
            .iter()
            .filter(|flow| flow.name.starts_with(class));
        let (tcp, udp): (Vec<_>, Vec<_>) = flows.partition(|flow| flow.transport == Transport::Tcp);
        (tcp.len(), udp.len())
    };
    assert_eq!((tcp("b"), tcp("av")), ((5, 5), (1, 0)));
    assert_eq!(tcp("a"), (6, 5), "the victim among them");
}

#[test]
fn a_plan_fills_the_frames_and_starts_the_victim_last() {
    let plan = Plan::new(&Topology::default(), Kind::Udp, false);
    let names: Vec<_> = plan.flows.iter().map(|flow| flow.name.as_str()).collect();
    assert_eq!(
        (names[0], names[10], names[20], names.len()),
        ("b1", "a1", "av", 21)
    );
    assert_eq!(plan.payload_bytes, 2026);
    assert_eq!(
        Plan::new(&Topology::default(), Kind::Udp, true).payload_bytes,
        2006
    );
    let text = serde_json::to_string(&plan).expect("json");
    assert_eq!(serde_json::from_str::<Plan>(&text).expect("plan"), plan);
}

/// Not a test: the traffic process that the tests below start.
#[test]
fn traffic_process() {
    if std::env::var_os("ECN_TEST_TRAFFIC").is_some() {
        println!(); // ends the line that the test harness has begun
        main_traffic().expect("traffic");
    }
}

fn command() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args([
        "--exact",
        "rig::traffic::tests::traffic_process",
        "--nocapture",
    ]);
    command.env("ECN_TEST_TRAFFIC", "1");
    command
}

fn topology(tag: &str) -> Topology {
    let name_prefix = format!("ecntest-{}-{tag}", std::process::id());
    Topology {
        name_prefix,
        ..Topology::default()
    }
}

/// Minimum share of a link that greedy senders fill: on a busy machine some timers are later than HTB's burst makes up
/// for.
const LEAST: f64 = 0.9;

/// Share of the link that each class of sources got between two reports, in frames.
fn shares(before: &Report, after: &Report, topology: &Topology) -> [f64; 3] {
    let seconds = (after.monotonic_ns - before.monotonic_ns) as f64 / 1e9;
    let link = topology.link_rate_bytes_per_s as f64 * seconds;
    let share = |kind: &str| {
        let flows = before.flows.iter().zip(&after.flows);
        let flows = flows.filter(|(flow, _)| match kind {
            "av" => flow.name == "av",
            kind => flow.name != "av" && flow.name.starts_with(kind),
        });
        let packets = flows.map(|(before, after)| {
            let packets = |count: &FlowCount| count.received_packets.expect("known for UDP");
            packets(after) - packets(before)
        });
        packets.sum::<u64>() as f64 * f64::from(topology.frame_bytes()) / link
    };
    [share("b"), share("a"), share("av")]
}

#[test]
fn without_control_congestion_spreads() {
    require_root!();
    let rig = Rig::up(&topology("udp")).expect("up");
    let plan = Plan::new(rig.topology(), Kind::Udp, false);
    check_congestion(rig, &plan);
}

/// As on a kernel without br_netfilter, where a packet counts against its socket's buffer all the way.
#[test]
fn without_control_and_br_netfilter_congestion_spreads() {
    require_root!();
    let rig = Rig::up(&topology("udp-nonf")).expect("up");
    rig.switch().run(|| {
        let _ = std::fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0");
    });
    let mut plan = Plan::new(rig.topology(), Kind::Udp, false);
    plan.socket_buffer_bytes = COVERING_BUFFER;
    check_congestion(rig, &plan);
}

fn check_congestion(rig: Rig, plan: &Plan) {
    let topology = rig.topology().clone();
    let mut traffic = Traffic::start_command(command(), plan).expect("start");
    std::thread::sleep(Duration::from_secs(1));

    let probe = rig.probe("root").expect("probe");
    let (before, class, start) = (
        traffic.snapshot().expect("snapshot"),
        probe.class().expect("class"),
        Instant::now(),
    );
    let dropped = |port: usize| {
        rig.port_counters().expect("counters")[port]
            .1
            .dropped_packets
    };
    let (dropped_before, mut queue) = (dropped(1), Vec::new());
    while start.elapsed() < Duration::from_secs(5) {
        queue.push(probe.class().expect("class").qlen_packets);
        std::thread::sleep(Duration::from_millis(2));
    }
    let (after, class_after, seconds) = (
        traffic.snapshot().expect("snapshot"),
        probe.class().expect("class"),
        start.elapsed(),
    );
    let drops = dropped(1) - dropped_before;
    let end = traffic.stop().expect("stop");

    let link = topology.link_rate_bytes_per_s as f64;
    let root = (class_after.bytes - class.bytes) as f64 / (link * seconds.as_secs_f64());
    let [local, remote, victim] = shares(&before, &after, &topology);
    let mean = queue.iter().map(|q| f64::from(*q)).sum::<f64>() / queue.len() as f64;
    println!(
        "root {root:.3} local {local:.3} remote {remote:.3} victim {victim:.3} drops {drops} \
         queue mean {mean:.1} max {:?}",
        queue.iter().max()
    );
    // The clock is read together with the counters.
    assert!((LEAST..=1.1).contains(&root), "root {root}");
    let through = class_after.packets - class.packets;
    assert!(drops > through / 4, "drops {drops}, {through} came through");
    // Half of what it gets with control. Whether local or remote flows get more depends on the order in which the
    // machine runs the senders: .08 to .15 for the victim, and local from .2 to 7 times remote were observed.
    assert!(victim <= 0.25, "victim {victim}");
    // All received packets came over the root link; sinks that start late lose most of them.
    let received = (local + remote) / root;
    assert!(
        (0.1..=1.1).contains(&received),
        "local {local}, remote {remote}, root {root}"
    );
    // Of 100 packets: whatever the senders get, the port is the bottleneck.
    assert!(mean > 50.0, "queue {mean}");

    // Everything that a source sent was counted, by its socket and by its HTB.
    let sources = rig.source_counters().expect("counters");
    for ((name, htb), flow) in sources.iter().zip(&end.flows) {
        assert_eq!(name, &flow.name);
        let sent = flow.sent_packets.expect("known for UDP");
        assert!(
            sent > 100 && htb.packets.abs_diff(sent) < 30,
            "{name}: {htb:?}, {sent} sent"
        );
    }
    rig.down().expect("down");
}

#[test]
fn tcp_fills_the_root_link() {
    require_root!();
    let topology = Topology {
        local: 2,
        remote: 2,
        ..topology("tcp")
    };
    let rig = Rig::up(&topology).expect("up");
    let plan = Plan::new(&topology, Kind::Tcp, false);
    let mut traffic = Traffic::start_command(command(), &plan).expect("start");
    std::thread::sleep(Duration::from_secs(1));
    let probe = rig.probe("root").expect("probe");
    let (before, class, start) = (
        traffic.snapshot().expect("snapshot"),
        probe.class().expect("class"),
        Instant::now(),
    );
    std::thread::sleep(Duration::from_secs(3));
    let (class_after, seconds) = (probe.class().expect("class"), start.elapsed().as_secs_f64());
    let end = traffic.stop().expect("stop");
    let link = topology.link_rate_bytes_per_s as f64 * seconds;
    let root = (class_after.bytes - class.bytes) as f64 / link;
    let frames = class_after.packets - class.packets;
    let mean_frame = (class_after.bytes - class.bytes) as f64 / frames as f64;
    println!("root {root:.3}, mean frame {mean_frame:.0}, {end:?}");
    assert!((LEAST..=1.1).contains(&root), "root {root}");
    assert!(
        mean_frame < f64::from(topology.frame_bytes()) + 1.0,
        "super-packets: {mean_frame}"
    );
    for (before, after) in before.flows.iter().zip(&end.flows) {
        assert!(after.received_bytes > before.received_bytes, "{after:?}");
        assert_eq!(after.sent_packets, None);
    }
    rig.down().expect("down");
}

#[test]
fn the_sinks_know_ipv6_sources() {
    require_root!();
    let topology = Topology {
        local: 2,
        remote: 1,
        ..topology("v6")
    };
    let rig = Rig::up(&topology).expect("up");
    let plan = Plan::new(&topology, Kind::Udp, true);
    let traffic = Traffic::start_command(command(), &plan).expect("start");
    std::thread::sleep(Duration::from_secs(1));
    let end = traffic.stop().expect("stop");
    for flow in &end.flows {
        let packets = flow.received_packets.expect("known for UDP");
        assert!(packets > 0, "{flow:?}");
        assert_eq!(flow.received_bytes, Some(packets * 2006), "{flow:?}");
    }
    let frames = &rig.port_counters().expect("counters")[1].1;
    assert!(frames.bytes.div_ceil(frames.packets) == 2068, "{frames:?}");
    rig.down().expect("down");
}

#[test]
fn traffic_ends_with_its_handle() {
    require_root!();
    let topology = Topology {
        local: 1,
        remote: 1,
        victim: false,
        ..topology("drop")
    };
    let rig = Rig::up(&topology).expect("up");
    let plan = Plan::new(&topology, Kind::Udp, false);
    let traffic = Traffic::start_command(command(), &plan).expect("start");
    let process = format!("/proc/{}", traffic.pid());
    assert!(std::path::Path::new(&process).exists());
    drop(traffic);
    assert!(!std::path::Path::new(&process).exists());
    rig.down().expect("down");
}

#[test]
fn a_missing_congestion_control_is_reported() {
    require_root!();
    let topology = Topology {
        local: 1,
        remote: 1,
        victim: false,
        ..topology("cc")
    };
    let rig = Rig::up(&topology).expect("up");
    let mut plan = Plan::new(&topology, Kind::Tcp, false);
    plan.congestion_control = "nosuch".to_owned();
    let plan = serde_json::to_string(&plan).expect("json");
    for error in [
        run(io::Cursor::new(plan), io::sink()).expect_err("no such algorithm"),
        check_congestion_control("nosuch").expect_err("no such algorithm"),
    ] {
        let message = error.to_string();
        assert!(
            message.contains("\"nosuch\"") && message.contains("reno"),
            "{message}"
        );
    }
    check_congestion_control("reno").expect("every kernel has it");
    rig.down().expect("down");
}

#[test]
fn iperf3_makes_the_same_flows() {
    require_root!();
    if Command::new("iperf3").arg("--version").output().is_err() {
        println!("skipped: no iperf3");
        return;
    }
    for kind in [Kind::Iperf3Udp, Kind::Iperf3Tcp] {
        let topology = Topology {
            local: 2,
            remote: 1,
            ..topology(kind.name())
        };
        let rig = Rig::up(&topology).expect("up");
        let plan = Plan::new(&topology, kind, kind == Kind::Iperf3Tcp);
        let traffic = Traffic::start_command(command(), &plan).expect("start");
        // Until each has sent for a while: a connection request may have to be repeated, through full queues.
        let until = Instant::now() + Duration::from_secs(40);
        let sends = || {
            let sources = rig.source_counters().expect("counters");
            sources.iter().all(|(_, htb)| htb.packets > 1000)
        };
        while !sends() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(sends(), "{:?}", rig.source_counters());
        std::thread::sleep(Duration::from_secs(1));
        let end = traffic.stop().expect("stop");
        println!("{end:?}");
        let total: u64 = end
            .flows
            .iter()
            .filter_map(|flow| flow.received_bytes)
            .sum();
        // In a second or more.
        let least = topology.link_rate_bytes_per_s as f64 * LEAST;
        assert!(total as f64 > least, "{end:?}");
        // Without control, a full queue can block a UDP source for this long.
        let least = if kind == Kind::Iperf3Udp { 0 } else { 1 };
        assert!(
            end.flows
                .iter()
                .all(|flow| flow.received_bytes >= Some(least)),
            "{end:?}"
        );
        assert_eq!(
            end.flows.iter().all(|f| f.received_packets.is_some()),
            kind == Kind::Iperf3Udp
        );
        rig.down().expect("down");
    }
}

#[test]
fn a_process_that_exits_early_is_reported() {
    require_root!();
    let topology = topology("absent"); // never up
    let plan = Plan::new(&topology, Kind::Udp, false);
    let error = Traffic::start_command(command(), &plan).expect_err("no namespaces");
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    let text = serde_json::to_string(&plan).expect("json");
    let error = run(io::Cursor::new(text), io::sink())
        .expect_err("no namespaces")
        .to_string();
    assert!(
        error.contains("no network namespace") && error.contains("absent"),
        "{error}"
    );
    let mut command = command();
    command.env_remove("ECN_TEST_TRAFFIC");
    let error = Traffic::start_command(command, &plan).expect_err("not a traffic process");
    assert!(matches!(error, Error::Ended { .. }), "{error}");
}
