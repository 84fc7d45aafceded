//! HP's Fig. 1 from the command line, end to end.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use ecn_tests::{
    Skip, ecn_or_skip, eventually, kernel_test, note,
    process::{self, Process, Snapshot, stdout},
    s, skipped,
};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::signal::Signal,
};
use serde_json::Value;

/// The machine's own lock, so that no other rig shares the CPUs, and `ecn clean` does not kill another rig's traffic:
/// processes are not private to a test.
pub fn alone() -> Option<Flock<File>> {
    let path = Path::new("/proc/1/root/run/ecn");
    fs::create_dir_all(path).ok()?;
    let open = || {
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join("lock"))
    };
    let mut held = None;
    eventually(s(30), || {
        held = Flock::lock(open().expect("lock file"), FlockArg::LockExclusiveNonblock).ok();
        held.is_some()
    });
    if held.is_none() {
        note("another rig or agent has been running for half a minute: measuring beside it");
    }
    held
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("ecn-t-rig-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn text(&self, kind: &str) -> String {
        fs::read_to_string(self.0.join("rig").with_extension(kind)).unwrap_or_default()
    }

    /// Waits until the rig ends by itself.
    #[track_caller]
    fn report(&self, rig: &mut Process) -> Value {
        assert_eq!(rig.ended(s(60)), Some(Some(0)), "{}", self.text("err"));
        serde_json::from_str(&self.text("out")).expect("one JSON document")
    }

    fn start(&self, ecn: &Path, seconds: &str, options: &str) -> Process {
        let out = self.0.join("figures");
        let out = out.to_str().expect("a path");
        let words = ["rig", "run", "--seconds", seconds, "--warm-up", "4"];
        let words = words.into_iter().chain(options.split_whitespace());
        let words: Vec<_> = words.chain(["--out", out, "-j"]).collect();
        Process::start(ecn, &words, &self.0.join("rig"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn keys(value: &Value, expected: &[&str]) {
    let found: BTreeSet<_> = value
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(found, expected.iter().copied().collect());
}

const PHASE: [&str; 28] = [
    "name",
    "marking",
    "response",
    "seconds",
    "root",
    "inter_switch",
    "local",
    "remote",
    "victim",
    "remote_local_ratio",
    "jain_local",
    "jain_remote",
    "sent_packets",
    "dropped_packets",
    "marked_packets",
    "messages",
    "root_queue_mean_packets",
    "root_queue_max_packets",
    "control_latency_us_p50",
    "control_latency_us_p99",
    "cpu_share",
    "victim_ping_us_p50",
    "victim_ping_us_p99",
    "victim_tcp_rtt_us_p50",
    "victim_tcp_rtt_us_p99",
    "tcp_retransmitted_segments",
    "tcp_resets",
    "checksum_errors",
];
const PORT: [&str; 23] = [
    "netns",
    "arrived_packets",
    "bridge",
    "port",
    "ifindex",
    "marking",
    "waiting_packets",
    "to_mark_packets",
    "occupancy_packets",
    "marked_packets",
    "unmarkable_packets",
    "input_triggers",
    "output_triggers",
    "dropped_packets",
    "dropped_unmarkable_packets",
    "attached",
    "warnings",
    "sent_messages",
    "held_messages",
    "congestion_point",
    "equilibrium_packets",
    "sampled_packets",
    "sampled_feedback",
];
const FLOW: [&str; 20] = [
    "src",
    "dst",
    "protocol",
    "src_port",
    "dst_port",
    "device",
    "netns",
    "response",
    "rate_bytes_per_s",
    "ipd_packet_times",
    "marked_packets",
    "acked_packets",
    "sent_bytes",
    "enforcement",
    "hook",
    "pinned",
    "idle_ms",
    "limiter",
    "congestion_point",
    "target_rate_bytes_per_s",
];

fn rows(ecn: &Path, object: &str) -> Vec<Value> {
    let output = process::run(ecn, &[object, "show", "-j"]);
    serde_json::from_slice::<Vec<Value>>(&output.stdout).unwrap_or_default()
}

#[test]
fn uncontrolled_and_controlled() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (_alone, folder) = (alone(), Folder::new());
    let before = Snapshot::take();
    let mut rig = folder.start(&ecn, "4", "");

    // Meanwhile, in the controlled phase.
    let controlled = || folder.text("err").contains("\ncontrolled ");
    assert!(eventually(s(60), controlled), "{}", folder.text("err"));
    let mut flows = Vec::new();
    let all = eventually(s(5), || {
        flows = rows(&ecn, "flow");
        flows.retain(|flow| flow["protocol"] == "udp"); // not the pings beside the victim's
        flows.len() >= 21
    });
    assert!(all, "{} flows: {flows:?}", flows.len());
    assert_eq!(flows.len(), 21);
    flows.iter().for_each(|flow| keys(flow, &FLOW));
    let ports = rows(&ecn, "port");
    assert!(ports.len() >= 14, "{ports:?}");
    ports.iter().for_each(|port| keys(port, &PORT));

    // A second rig and `ecn clean` are refused, with one line each.
    for (words, code) in [(&["rig", "run", "--seconds", "1"][..], 3), (&["clean"], 3)] {
        let output = process::run(&ecn, words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{words:?}: {stderr}");
        assert!(output.stdout.is_empty());
    }
    // Nor does `ecn clean` of a container, with its own `/run`, end the rig's traffic.
    let script = format!(
        "mount -t tmpfs none /run && mount -t bpf none /sys/fs/bpf && {} clean",
        ecn.display()
    );
    let elsewhere = Command::new("unshare")
        .args(["--mount", "sh", "-c", &script])
        .output();
    assert_eq!(stdout(&elsewhere.expect("unshare")), "nothing to remove\n");

    let report = folder.report(&mut rig);
    keys(&report, &["kernel", "parameters", "phases"]);
    let phases = report["phases"].as_array().expect("phases");
    assert_eq!(phases.len(), 2);
    phases.iter().for_each(|phase| keys(phase, &PHASE));
    let number = |phase: usize, key: &str| phases[phase][key].as_f64().expect("a number");
    note(&format!("rig: {phases:#}", phases = report["phases"]));
    assert!(number(0, "dropped_packets") > 1000.0);
    assert!(number(1, "dropped_packets") < number(0, "dropped_packets") / 100.0);
    assert!(number(1, "marked_packets") > 0.0);
    assert!(number(1, "jain_local") >= 0.95 && number(1, "jain_remote") >= 0.95);
    assert!(number(1, "victim") > 1.5 * number(0, "victim"));
    assert!(number(1, "root") > 0.5);

    let left = Snapshot::take().beyond(&before);
    let left: Vec<_> = left
        .iter()
        .filter(|what| !what.contains("/run/ecn"))
        .collect();
    assert_eq!(left, Vec::<&String>::new());
}

/// Independent of the machine's speed: every flow is controlled, and nothing fails.
#[test]
fn tcp_alone_and_beside_udp() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (_alone, folder) = (alone(), Folder::new());
    for (traffic, congestion_control, offload, tcp_flows) in [
        ("tcp", "cubic", "off", 21),
        ("mixed", "reno", "on", 11),
        ("iperf3-mixed", "cubic", "off", 11),
    ] {
        if traffic.starts_with("iperf3") && Command::new("iperf3").arg("-v").output().is_err() {
            skipped(ecn_tests::name_of(|| {}), Skip::Missing, "no iperf3");
            continue;
        }
        let options = format!(
            "--traffic {traffic} --congestion-control {congestion_control} --offload {offload} \
             --phases controlled"
        );
        let mut rig = folder.start(&ecn, "3", &options);
        let controlled = || folder.text("err").contains("\ncontrolled ");
        assert!(eventually(s(60), controlled), "{}", folder.text("err"));
        let mut flows = Vec::new();
        let of = |flows: &[Value], protocol: &str| {
            flows.iter().filter(|f| f["protocol"] == protocol).count()
        };
        // iperf3's control connections are flows of their own, one for each.
        let own = if traffic.starts_with("iperf3") { 21 } else { 0 };
        let expected = (tcp_flows + own, 21 - tcp_flows);
        let all = eventually(s(5), || {
            flows = rows(&ecn, "flow");
            (of(&flows, "tcp"), of(&flows, "udp")) == expected
        });
        assert!(all, "{options}: {expected:?} of {flows:?}");
        let report = folder.report(&mut rig);
        let parameters = &report["parameters"];
        assert_eq!(parameters["congestion_control"], congestion_control);
        assert_eq!(parameters["offload"], offload == "on");
        let phase = &report["phases"][0];
        note(&format!("rig, {options}: {phase:#}"));
        let number = |key: &str| phase[key].as_f64().expect("a number");
        for key in [
            "marked_packets",
            "victim_ping_us_p50",
            "victim_tcp_rtt_us_p50",
        ] {
            assert!(number(key) > 0.0, "{options}: {key}");
        }
        assert_eq!(
            (number("tcp_resets"), number("checksum_errors")),
            (0.0, 0.0)
        );
        assert!(number("root") > 0.3, "{options}");
        assert!(number("root_queue_mean_packets") < 60.0, "{options}");
    }

    // Congestion controls that this kernel lacks are refused before anything is created.
    for (options, code) in [
        ("--traffic tcp --congestion-control nosuch", 3),
        ("--congestion-control reno", 2),
    ] {
        let mut rig = folder.start(&ecn, "3", options);
        assert_eq!(rig.ended(s(10)), Some(Some(code)), "{options}");
        let stderr = folder.text("err");
        assert_eq!(stderr.lines().count(), 1, "{options}: {stderr}");
        assert!(stderr.contains("congestion"), "{stderr}");
    }
}

#[test]
fn killed_in_the_middle() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (_alone, folder) = (alone(), Folder::new());
    let before = Snapshot::take();
    let mut rig = folder.start(&ecn, "30", "");
    let uncontrolled = || folder.text("err").contains("\nuncontrolled ");
    assert!(eventually(s(60), uncontrolled), "{}", folder.text("err"));
    std::thread::sleep(s(5));
    let objects = rig.objects();
    rig.signal(Signal::SIGKILL);
    assert_eq!(rig.ended(s(5)), Some(None));
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        Snapshot::take().beyond(&before).len() > 20,
        "what `ecn clean` has to do"
    );
    let printed = stdout(&process::run(&ecn, &["clean"]));
    assert!(
        printed.contains("removed namespace ecn-rig-sw"),
        "{printed}"
    );
    assert_eq!(Snapshot::take().beyond(&before), Vec::<String>::new());
    objects.wait_removed();
}
