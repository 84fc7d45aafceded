//! Faults of the agent's surroundings: files, logs, clocks, devices. docs/operation.md lists them.

use std::{
    fs::{self, File},
    io::{PipeReader, PipeWriter, Read as _},
    os::unix::fs::{MetadataExt as _, symlink},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use ecn_core::{abi::Count, packet::NOT_ECT, response};
use ecn_tests::{
    Skip, ecn_or_skip, emulated, eventually,
    frames::Ip,
    kernel_test,
    lab::{DEVICE, Host, Lab, MTU},
    note,
    process::{self, Folder, Process, stdout},
    running::{self, Running, pin},
    s, skipped,
    traffic::{Stream, udp},
    wire::Wire,
};
use ecn_user::{
    agent::{
        Options,
        enforce::lock,
        state::{State, WaitingFor},
    },
    config::{self, Marking},
    datapath::Maps,
    net::{NetNs, Netlink, VethEnd},
    sys::calls as sys,
    units::DurationText,
};
use nix::{
    fcntl::{FcntlArg, fcntl},
    mount::{MsFlags, mount},
    sys::signal::Signal,
    unistd::mkfifo,
};

use crate::killed::{self, is_free, pinned};

/// 40 Mbit/s.
const LINK: u64 = 5_000_000;
/// Rate at which [`pinned`] limits its flow, bytes per second.
const PINNED: f64 = 125_000.0;

/// Whether the flow of [`pinned`] is limited.
fn is_held(stream: &Stream) -> bool {
    stream.rate(Duration::from_millis(500)) < 1.2 * PINNED
}

/// Makes the agent reload its configuration, and returns the new state.
#[track_caller]
fn reloaded(agent: &Process) -> State {
    let state = || State::read().filter(|state| state.pid == agent.id());
    let before = state().expect("a state").reloads;
    agent.signal(Signal::SIGHUP);
    let mut after = None;
    let done = eventually(s(5), || {
        after = state().filter(|state| state.reloads > before);
        after.is_some()
    });
    assert!(done, "the agent does not answer");
    after.expect("a state")
}

/// Stops an agent, which must still react.
#[track_caller]
fn ends(agent: &mut Process) {
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended(s(10)), Some(Some(0)));
}

#[test]
fn a_bad_file_changes_nothing() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(2), Folder::new());
    let mut agent = killed::start(&ecn, &lab, &folder);
    let (stream, _maps, _) = pinned(&lab);
    let path = folder.file("ecn.toml");
    let good = fs::read_to_string(&path).expect("the configuration");
    let write = |text: &[u8]| fs::write(&path, text).expect("write");
    let cut = good.find("name = \"").expect("a name") + "name = \"b".len();
    let long = format!("{good}\n{}", "# 16 MB\n".repeat(2 << 20));
    type Make<'a> = &'a dyn Fn();
    let files: [(&str, Make<'_>, &str); 14] = [
        ("bad syntax", &|| write(b"[[bridge]\nname ="), "ecn.toml:"),
        (
            "unknown key",
            &|| write(format!("nmae = 1\n{good}").as_bytes()),
            "nmae",
        ),
        (
            "bad value",
            &|| {
                write(
                    good.replacen("threshold = ", "threshold = 9999", 1)
                        .as_bytes(),
                )
            },
            "must be between",
        ),
        ("empty", &|| write(b""), "nothing to do"),
        ("cut off", &|| write(&good.as_bytes()[..cut]), "ecn.toml:"),
        (
            "NUL",
            &|| write(format!("{good}\0").as_bytes()),
            "ecn.toml:",
        ),
        ("not UTF-8", &|| write(b"\xff\xfe"), "UTF-8"),
        ("too long", &|| write(long.as_bytes()), "too large"),
        ("missing", &|| {}, "No such file"),
        (
            "directory",
            &|| fs::create_dir(&path).expect("a directory"),
            "is a directory",
        ),
        (
            "pipe",
            &|| mkfifo(&path, nix::sys::stat::Mode::S_IRUSR).expect("a pipe"),
            "not a regular file",
        ),
        (
            "device",
            &|| symlink("/dev/zero", &path).expect("a link"),
            "not a regular file",
        ),
        (
            "link to itself",
            &|| symlink(&path, &path).expect("a link"),
            "symbolic links",
        ),
        // Unreadable for root, too.
        (
            "not readable",
            &|| symlink("/proc/self/mem", &path).expect("a link"),
            "cannot read",
        ),
    ];
    let before = State::read().expect("a state");
    for (what, make, why) in files {
        let _ = fs::remove_file(&path);
        make();
        let state = reloaded(&agent);
        let error = state.reload_error.expect(what);
        let lower_case = error.to_lowercase();
        assert!(lower_case.contains(&why.to_lowercase()), "{what}: {error}");
        assert!(error.contains("ecn.toml"), "{what}: {error}");
        assert_eq!(state.bridges, before.bridges, "{what}");
        assert_eq!(state.endpoints.len(), before.endpoints.len(), "{what}");
        if path.is_dir() {
            fs::remove_dir(&path).expect("remove");
        }
    }
    assert!(eventually(s(5), || is_held(&stream)), "{}", folder.log());
    let refused = process::run(&ecn, &["reload"]);
    assert_eq!(refused.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(stderr.contains("nothing changed"), "{stderr}");
    let _ = fs::remove_file(&path);
    write(good.as_bytes());
    assert_eq!(reloaded(&agent).reload_error, None);
    ends(&mut agent);
}

/// Starts an agent with this standard error.
fn start_to(ecn: &Path, lab: &Lab, folder: &Folder, stderr: impl Into<Stdio>) -> Process {
    let path = folder.write(&killed::config(lab));
    let words = ["run", "--config", path.to_str().expect("a path")];
    let agent = Process::start_to(ecn, &words, Stdio::null(), stderr);
    let runs = || process::is_running(agent.id());
    assert!(eventually(s(20), runs), "the agent does not start");
    agent
}

/// A pipe with a buffer of one page.
fn small_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).expect("its size");
    (reader, writer)
}

#[test]
fn a_log_that_cannot_be_written_is_dropped_and_counted() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(2), Folder::new());
    let full = || Stdio::from(File::options().write(true).open("/dev/full").expect("open"));
    let closed = || Stdio::from(std::io::pipe().expect("a pipe").1);
    for (what, stderr) in [("full disk", full()), ("closed pipe", closed())] {
        let mut agent = start_to(&ecn, &lab, &folder, stderr);
        let (stream, _maps, _) = pinned(&lab);
        let lost = || State::read().map_or(0, |state| state.log_lines_lost);
        // "running" is one of them.
        assert!(eventually(s(3), || lost() >= 3), "{what}: {}", lost());
        let before = lost();
        fs::write(folder.file("ecn.toml"), "").expect("write");
        assert!(reloaded(&agent).reload_error.is_some(), "{what}");
        assert!(eventually(s(3), || lost() > before), "{what}: {}", lost());
        assert!(is_held(&stream), "{what}");
        let printed = stdout(&process::run(&ecn, &["doctor"]));
        assert!(
            printed.contains("lines of its log that were lost: "),
            "{what}: {printed}"
        );
        drop(stream);
        ends(&mut agent);
    }
}

#[test]
fn an_unread_log_blocks_nothing() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(2), Folder::new());
    let (mut reader, writer) = small_pipe();
    let mut agent = start_to(&ecn, &lab, &folder, writer);
    let (stream, _maps, _) = pinned(&lab);
    fs::write(folder.file("ecn.toml"), "").expect("write");
    for _ in 0..100 {
        assert!(reloaded(&agent).reload_error.is_some());
    }
    assert!(eventually(s(2), || is_held(&stream)));
    drop(stream);
    ends(&mut agent);
    let mut log = Vec::new();
    reader.read_to_end(&mut log).expect("the log");
    let length = log.len();
    assert!(
        (3000..=4096).contains(&length),
        "the pipe was not full: {length} bytes"
    );
}

#[test]
fn commands_with_closed_or_full_output() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(2), Folder::new());
    let _agent = killed::start(&ecn, &lab, &folder);
    let commands: [&[&str]; 5] = [
        &["port", "show", "-j"],
        &["port", "show"],
        &["flow", "show", "-j"],
        &["doctor", "-j"],
        &["top", "--once"],
    ];
    let stderr = folder.file("command.err");
    let run = |words: &[&str], out: Stdio| {
        let err = File::create(&stderr).expect("a file");
        let mut command = Process::start_to(&ecn, words, out, err);
        let code = command.ended(s(10)).expect("an end");
        (code, fs::read_to_string(&stderr).expect("its stderr"))
    };
    // As with `| head -0`.
    let closed = || Stdio::from(std::io::pipe().expect("a pipe").1);
    assert_eq!(run(&["monitor"], closed()), (Some(0), String::new()));
    for words in commands {
        assert_eq!(run(words, closed()), (Some(0), String::new()), "{words:?}");
        let full = File::options().write(true).open("/dev/full").expect("open");
        let (code, error) = run(words, full.into());
        assert_eq!(code, Some(1), "{words:?}: {error}");
        assert!(error.contains("No space left"), "{words:?}: {error}");
    }
}

#[test]
fn limits_lapse_when_the_main_loop_is_stuck() {
    kernel_test!();
    let lab = Lab::new(2);
    let running = Running::start(killed::config(&lab), Options::default());
    let (stream, maps, _) = pinned(&lab);
    let expired = || maps.count(Count::LimitExpired).expect("count");
    let before = expired();
    let agent = running.agent();
    let (release, released) = mpsc::channel::<()>();
    let lapsed = std::thread::scope(|scope| {
        // The main loop blocks while its configuration is locked.
        scope.spawn(move || agent.set_marking(0, |_| released.recv().unwrap_or_default()));
        let lapsed = eventually(s(5), || is_free(&stream));
        drop(release);
        lapsed
    });
    assert!(lapsed, "a stuck agent holds the flow");
    assert!(expired() > before + 100, "{before} -> {}", expired());
    assert!(eventually(s(5), || is_held(&stream)), "not held again");
}

#[test]
fn limits_lapse_when_class_rates_cannot_be_moved() {
    kernel_test!();
    let lab = Lab::new(2);
    let running = Running::start(killed::config(&lab), Options::default());
    let (stream, _maps, _) = pinned(&lab);
    let targets = lock(&running.agent().enforcement().targets);
    let lapsed = eventually(s(5), || is_free(&stream));
    drop(targets);
    assert!(lapsed, "a stuck agent holds the flow");
    assert!(eventually(s(5), || is_held(&stream)), "not held again");
}

/// The file system of lock and state fills up while the agent runs: it answers as before.
#[test]
fn a_full_file_system() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (mut lab, folder) = (Lab::new(3), Folder::new());
    lab.unplug(2);
    let mut agent = killed::start(&ecn, &lab, &folder);
    // Just after it has written its state, the agent reserves space for the next.
    let reserved = || fs::metadata("/run/ecn/state.next").is_ok_and(|next| next.blocks() > 0);
    assert!(eventually(s(5), reserved), "{}", folder.log());
    let none = None::<&str>;
    let small = mount(none, "/run", none, MsFlags::MS_REMOUNT, Some("size=256k"));
    small.expect("remount");
    let fill = fs::write("/run/rest", vec![1; 1 << 20]).expect_err("full");
    assert_eq!(fill.kind(), std::io::ErrorKind::StorageFull);
    let doctor = process::run(&ecn, &["doctor"]);
    assert_eq!(doctor.status.code(), Some(3));
    let printed = String::from_utf8_lossy(&doctor.stdout);
    assert!(
        printed.contains("cannot be written: No space left"),
        "{printed}"
    );

    lab.plug_in(2);
    let ports = || State::read().map_or(0, |state| state.bridges[0].ports.len());
    assert!(eventually(s(5), || ports() == 3), "{}", folder.log());
    for _ in 0..3 {
        let reloaded = process::run(&ecn, &["reload"]);
        assert!(reloaded.status.success(), "{reloaded:?}");
    }
    fs::remove_file("/run/rest").expect("remove");
    ends(&mut agent);
    assert_eq!(State::read(), None);
    assert!(!Path::new("/run/ecn/state.next").exists());
}

/// Remounts this test's BPF file system.
fn remount(flags: MsFlags) {
    let none = None::<&str>;
    mount(none, sys::BPFFS, none, MsFlags::MS_REMOUNT | flags, none).expect("remount");
}

#[test]
fn a_bpf_file_system_that_is_read_only() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(3), Folder::new());
    let mut config = killed::config(&lab);
    let path = folder.write(&config);
    remount(MsFlags::MS_RDONLY);
    let refused = process::run(&ecn, &["run", "--config", path.to_str().expect("a path")]);
    remount(MsFlags::empty());
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(3), "{stderr}");
    assert!(
        stderr.contains("Read-only file system")
            && stderr.contains(pin().to_str().expect("a path")),
        "{stderr}"
    );

    // While it runs, controlled devices stay so, and new ones are controlled at the latest when it is writable again.
    let mut agent = folder.start(&ecn, &config);
    let (stream, _maps, _) = pinned(&lab);
    remount(MsFlags::MS_RDONLY);
    config = running::with_endpoints(config, &lab, &[2], LINK);
    folder.write(&config);
    reloaded(&agent);
    assert!(is_held(&stream), "{}", folder.log());
    remount(MsFlags::empty());
    reloaded(&agent);
    let endpoints = || State::read().map_or(0, |state| state.endpoints.len());
    assert!(eventually(s(3), || endpoints() == 3), "{}", folder.log());
    assert!(is_held(&stream), "{}", folder.log());
    remount(MsFlags::MS_RDONLY);
    drop(stream);
    ends(&mut agent);
    remount(MsFlags::empty());
    assert!(pin().exists(), "its pins could be removed");
    ends(&mut folder.start(&ecn, &config));
    assert!(!pin().exists());
}

/// Sets a process's wall clock ten years ahead while a file exists.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t id, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, id, now);
    if (result == 0 && id == CLOCK_REALTIME && access(getenv("ECN_TEST_JUMP"), F_OK) == 0)
        now->tv_sec += 10 * 365 * 86400;
    return result;
}
"#;

#[test]
fn the_wall_clock_jumps() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(2), Folder::new());
    let (source, library) = (folder.file("clock.c"), folder.file("clock.so"));
    fs::write(&source, CLOCK).expect("write");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"])
        .args([&library, &source]);
    match cc.status() {
        Ok(status) => assert!(status.success(), "{cc:?}"),
        Err(_) => {
            return skipped(
                ecn_tests::name_of(|| {}),
                Skip::Missing,
                "no cc to build a clock with",
            );
        }
    }
    let path = folder.write(&killed::config(&lab));
    let preload = format!("LD_PRELOAD={}", library.display());
    let jump = folder.file("jump");
    let variable = format!("ECN_TEST_JUMP={}", jump.display());
    let (program, path) = (
        ecn.to_str().expect("a path"),
        path.to_str().expect("a path"),
    );
    let words = [
        preload.as_str(),
        &variable,
        program,
        "run",
        "--config",
        path,
    ];
    let mut agent = Process::start(Path::new("env"), &words, &folder.file("agent"));
    let runs = || process::is_running(agent.id());
    assert!(eventually(s(20), runs), "{}", folder.log());
    let (stream, maps, _) = pinned(&lab);
    let expired = || maps.count(Count::LimitExpired).expect("count");
    let before = expired();
    for _ in 0..5 {
        File::create(&jump).expect("ahead");
        reloaded(&agent);
        assert!(is_held(&stream), "{}", folder.log());
        fs::remove_file(&jump).expect("back");
        reloaded(&agent);
        assert!(is_held(&stream), "{}", folder.log());
    }
    // Even a late heartbeat lets some packets through; a jump would let all of them through.
    assert!(expired() - before < 100, "{before} -> {}", expired());
    // The log has the wall clock's time: it did jump.
    let log = folder.log();
    let years = log.lines().filter_map(|line| line.get(..4)?.parse().ok());
    let years: std::collections::BTreeSet<u32> = years.collect();
    let (first, last) = (years.first(), years.last());
    assert!(first.zip(last).is_some_and(|(a, b)| a + 9 <= *b), "{log}");
    drop(stream);
    ends(&mut agent);

    // A monotonic clock other than the programs' is refused.
    let words = [
        "--time",
        "--monotonic",
        "86400",
        "--fork",
        program,
        "run",
        "--config",
        path,
    ];
    let refused = process::run(Path::new("unshare"), &words);
    let stderr = String::from_utf8_lossy(&refused.stderr);
    if stderr.contains("unshare failed") {
        return note("no time namespaces here");
    }
    assert_eq!(refused.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("time namespace"), "{stderr}");
}

/// Renames a device.
fn rename(ns: &NetNs, nl: &Netlink, before: &str, after: &str) {
    let words = [
        format!("link set {before} down"),
        format!("link set {before} name {after}"),
    ];
    for words in words {
        let ip = || Command::new("ip").args(words.split(' ')).status();
        assert!(ns.run(ip).expect("ip").success(), "ip {words}");
    }
    let index = nl.link(after).expect("the device").index;
    nl.set_up(index).expect("up");
}

#[test]
fn a_device_is_renamed() {
    kernel_test!();
    let lab = Lab::new(2);
    let mut config = running::config(&lab, Marking::InputOutput);
    config.bridges[0].peers = true;
    config.bridges[0].ports = Some(vec!["p*".to_owned()]);
    let running = Running::start(config, Options::default());
    let state = || running.agent().state();
    let has_port = |name: &str| {
        state().bridges[0]
            .ports
            .iter()
            .any(|port| port.name == name)
    };
    let controlled = || {
        let devices = state().endpoints.into_iter().map(|of| of.device);
        let mut devices: Vec<_> = devices.collect();
        devices.sort();
        devices
    };
    assert_eq!(controlled(), [DEVICE, DEVICE]);

    // A port: to a configured name, and to another one.
    rename(&lab.switch, &lab.nl, "p0", "p9");
    assert!(
        eventually(s(1), || has_port("p9") && !has_port("p0")),
        "{:?}",
        state()
    );
    assert!(
        eventually(s(1), || controlled() == [DEVICE, DEVICE]),
        "{:?}",
        state()
    );
    rename(&lab.switch, &lab.nl, "p9", "other");
    assert!(eventually(s(1), || !has_port("p9")), "{:?}", state());
    rename(&lab.switch, &lab.nl, "other", "p0");
    assert!(eventually(s(1), || has_port("p0")), "{:?}", state());

    // An endpoint that is configured by its port, whatever its name.
    let host = &lab.hosts[0];
    rename(&host.ns, &host.nl, DEVICE, "lan0");
    assert!(
        eventually(s(1), || controlled() == [DEVICE, "lan0"]),
        "{:?}",
        state()
    );
    is_controlled(&running, host, &lab.hosts[1], 7001);

    // An endpoint that is configured by its name.
    let mut config = running::config(&lab, Marking::InputOutput);
    config = running::with_endpoints(config, &lab, &[0, 1], LINK);
    running
        .agent()
        .reload(config)
        .expect("a good configuration");
    assert_eq!(controlled(), [DEVICE]);
    let waits = || {
        let waiting = state().waiting;
        waiting
            .iter()
            .any(|of| of.kind == WaitingFor::Endpoint && of.name == DEVICE)
    };
    assert!(waits(), "{:?}", state());
    rename(&host.ns, &host.nl, "lan0", DEVICE);
    assert!(
        eventually(s(1), || controlled() == [DEVICE, DEVICE]),
        "{:?}",
        state()
    );
    assert!(!waits(), "{:?}", state());
    is_controlled(&running, host, &lab.hosts[1], 7002);
}

/// Sends from one host to another until echoes acknowledge new packets.
#[track_caller]
fn is_controlled(running: &Running, from: &Host, to: &Host, port: u16) {
    let _stream = Stream::start(from, to, port, 1000);
    let acked = || {
        let flows = running.maps.flows().expect("flows");
        let of_port = flows.iter().filter(|(key, _)| key.src_port == port);
        of_port.map(|(_, flow)| flow.acked_packets).sum::<u64>()
    };
    assert!(eventually(s(5), || acked() > 100), "{} packets", acked());
}

#[test]
fn an_mtu_changes() {
    const JUMBO: u32 = 9000;
    kernel_test!();
    let lab = Lab::new(2);
    let _running = Running::start(killed::config(&lab), Options::default());
    let (stream, maps, _) = pinned(&lab);
    let packet_ns = || maps.endpoint(1).expect("a policy").response.packet_ns;
    let of_mtu = |mtu: u32| response::packet_ns(mtu + 14, LINK);
    assert_eq!(packet_ns(), of_mtu(MTU));
    for host in &lab.hosts {
        lab.nl
            .set_mtu(host.port_index, JUMBO)
            .expect("the port's MTU");
        host.nl
            .set_mtu(host.ifindex, JUMBO)
            .expect("the host's MTU");
    }
    assert!(
        eventually(s(1), || packet_ns() == of_mtu(JUMBO)),
        "{}",
        packet_ns()
    );
    assert!(is_held(&stream));
    drop(stream);
    // Packets longer than when its class was created.
    let stream = Stream::start(&lab.hosts[0], &lab.hosts[1], 7001, 8000);
    let held = || stream.rate(s(2)) < 1.2 * PINNED;
    assert!(eventually(s(8), held), "{}", stream.rate(s(2)));
    for host in &lab.hosts {
        host.nl.set_mtu(host.ifindex, MTU).expect("the host's MTU");
    }
    assert!(
        eventually(s(1), || packet_ns() == of_mtu(MTU)),
        "{}",
        packet_ns()
    );
}

/// Flows that start together, and packets of each.
const FLOWS: u16 = 10_000;
const EACH: u32 = 40;
/// 100 Mbit/s.
const FAST: u64 = 12_500_000;

#[test]
fn ten_thousand_flows_at_once() {
    kernel_test!();
    let lab = Lab::new(3);
    lab.limit(1, FAST, 200);
    let mut config = running::config(&lab, Marking::InputOutput);
    // Longer than the interval of their packets.
    config.flow.idle = DurationText::from_secs(10);
    let config = running::with_endpoints(config, &lab, &[0, 1, 2], FAST);
    let running = Running::start(config, Options::default());
    // A long flow: it is controlled before, during and after.
    let stream = Stream::start(&lab.hosts[2], &lab.hosts[1], 7001, 1000);
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let _receiving = udp(to, false, 7002);
    // Most of them wait for a rate of their own.
    let wire = Wire::open(&from.ns, from.ifindex).never_waits();
    let packets = Ip::between(from, to, false).ecn(NOT_ECT);
    let of_wire = || {
        let mut flows = running.maps.flows().expect("flows");
        flows.retain(|(key, flow)| key.dst_port == 7002 && flow.sent_packets > 0);
        flows
    };
    let begun = Instant::now();
    for _ in 0..EACH {
        for flow in 0..FLOWS {
            wire.send(&packets.udp(10_000 + flow, 7002, &[5; 100]));
        }
    }
    let took = begun.elapsed();
    let flows = of_wire().len();
    note(&format!(
        "{FLOWS} flows in {took:?}: {flows} in the table; {}",
        running.counts()
    ));
    assert_eq!(flows, usize::from(FLOWS));
    for none in [Count::FlowsFull, Count::ReceiversFull, Count::LimitExpired] {
        assert_eq!(running.count(none), 0, "{none:?}: {}", running.counts());
    }
    // They expire, with their classes; the long flow is still controlled.
    assert!(
        eventually(s(20), || of_wire().is_empty()),
        "{}",
        of_wire().len()
    );
    let classes = || from.nl.class_stats(from.ifindex).expect("classes").len();
    // The root's own class may linger.
    assert!(
        eventually(s(15), || classes() <= 2),
        "{} classes",
        classes()
    );
    let others = |key: &ecn_core::flow::Key| key.src_port == 7001 && key.endpoint == 3;
    let acked = running.flow(others).1.acked_packets;
    assert!(eventually(s(5), || running.flow(others).1.acked_packets > acked + 100));
    drop(stream);
}

/// Hosts of [`a_thousand_endpoints`], and how long their agent may take to start and to stop: measured on an idle machine
/// 5.5 s and .2 s.
const ENDPOINTS: usize = 1000;
const START: Duration = Duration::from_secs(20);
const STOP: Duration = Duration::from_secs(5);
/// Maximum number of descriptors per endpoint.
const FILES: usize = 8;

#[test]
fn a_thousand_endpoints() {
    kernel_test!();
    let name = ecn_tests::name_of(|| {});
    if emulated() {
        return skipped(
            name,
            Skip::Missing,
            "a thousand namespaces take too long when emulated",
        );
    }
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(0), Folder::new());
    let containers = Containers::make(&lab, ENDPOINTS);
    let mut config = running::config(&lab, Marking::InputOutput);
    let mut endpoint = config::Endpoint::new(DEVICE);
    endpoint.netns = Some(format!("{}*", containers.prefix));
    config.endpoints.push(endpoint);
    let path = folder.write(&config);
    // The default limit of shells.
    let script = "ulimit -Sn 1024; exec \"$0\" run --config \"$1\"";
    let words = [
        "-c",
        script,
        ecn.to_str().expect("a path"),
        path.to_str().expect("a path"),
    ];
    let begun = Instant::now();
    let mut agent = Process::start(Path::new("sh"), &words, &folder.file("agent"));
    let endpoints = || State::read().map_or(0, |state| state.endpoints.len());
    let runs = || process::is_running(agent.id());
    assert!(eventually(START, runs), "{}", folder.log());
    let started = begun.elapsed();
    assert_eq!(endpoints(), ENDPOINTS, "{}", folder.log());
    let held = agent.held();
    let maps = Maps::open(&pin()).expect("maps");
    let expired = maps.control().expect("control").valid_until_ns;
    assert!(
        expired > ecn_user::agent::enforce::now_ns(),
        "limits have lapsed"
    );
    drop(maps);
    let begun = Instant::now();
    agent.signal(Signal::SIGTERM);
    assert_eq!(agent.ended(STOP), Some(Some(0)), "{}", folder.log());
    let stopped = begun.elapsed();
    note(&format!(
        "{ENDPOINTS} endpoints: started in {started:?}, stopped in {stopped:?}, {held:?}"
    ));
    let most = FILES * ENDPOINTS + 100;
    assert!(held.files <= most, "{} files", held.files);
}

/// Namespaces with a device each, whose peers are not ports.
struct Containers {
    prefix: String,
    names: Vec<String>,
}

impl Containers {
    fn make(lab: &Lab, n: usize) -> Self {
        let prefix = format!("{}-n", lab.switch.name());
        let mut made = Self {
            prefix,
            names: Vec::new(),
        };
        for number in 0..n {
            let name = format!("{}{number}", made.prefix);
            let ns = NetNs::create(&name).expect("a namespace");
            made.names.push(name);
            let near = format!("n{number}");
            let end = |name| VethEnd {
                name,
                ..VethEnd::default()
            };
            let port = lab.nl.add_veth(&end(&near), &end(DEVICE), &ns, MTU);
            lab.nl.set_up(port.expect("a veth pair").index).expect("up");
            let nl = Netlink::open(&ns).expect("netlink");
            let index = nl.link(DEVICE).expect("its end").index;
            nl.set_up(index).expect("up");
        }
        made
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = NetNs::delete(name);
        }
    }
}

/// What a start would refuse, `--check` refuses; each device is named once.
#[test]
fn endpoints_with_other_root_qdiscs() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, folder) = (Lab::new(3), Folder::new());
    let mut config = killed::config(&lab);
    let path = folder.write(&config);
    let path = path.to_str().expect("a path");
    let check = || process::run(&ecn, &["run", "--check", "--config", path]);
    assert!(check().status.success(), "{:?}", check());
    let others = &lab.hosts[..2];
    for host in others {
        let installed = host
            .nl
            .pfifo_leaf(host.ifindex, ecn_user::net::ROOT, 7 << 16, 100);
        installed.expect("a qdisc");
    }
    let started = process::run(&ecn, &["run", "--config", path]);
    let output = [started.stdout, started.stderr].concat();
    let output = String::from_utf8_lossy(&output);
    assert_eq!(started.status.code(), Some(2), "{output}");
    for host in others {
        let why = format!(
            "(namespace {}) has a pfifo root qdisc of its own",
            host.ns.name()
        );
        assert_eq!(output.matches(&why).count(), 1, "{output}");
    }
    let checked = check();
    let stderr = String::from_utf8_lossy(&checked.stderr);
    assert_eq!(checked.status.code(), Some(2), "{stderr}");
    assert!(
        stderr.contains("has a pfifo root qdisc of its own"),
        "{stderr}"
    );
    // Also of hosts that the bridge's ports lead to.
    config.endpoints.clear();
    config.bridges[0].peers = true;
    folder.write(&config);
    assert_eq!(check().status.code(), Some(2));
    for host in others {
        host.nl.delete_root_qdisc(host.ifindex).expect("delete");
    }
    assert!(check().status.success());
}
