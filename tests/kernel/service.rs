//! The agent as systemd runs it: with its unit's restrictions, and with notifications of its state.

use std::{
    fs,
    os::unix::{fs::MetadataExt as _, net::UnixDatagram},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use ecn_tests::{
    ecn_or_skip, eventually, kernel_test,
    lab::Lab,
    process::{self, Process, Snapshot},
    running::{self, pin},
    s,
    traffic::Stream,
};
use ecn_user::{
    config::{Config, Marking},
    datapath::Maps,
};
use nix::{
    mount::{MsFlags, mount},
    sys::signal::Signal,
};

const UNIT: &str = include_str!("../../dist/ecn.service");
/// GID of the group `ecn`.
const GROUP: u32 = 4321;
/// 40 Mbit/s.
const LINK: u64 = 5_000_000;

/// A setting of the unit.
fn setting(name: &str) -> Vec<&'static str> {
    let of_name = |line: &'static str| line.strip_prefix(name)?.strip_prefix('=');
    let value = UNIT.lines().find_map(of_name).expect("a setting");
    value.split_whitespace().collect()
}

/// Files of a test, and the socket for notifications to systemd; removed when dropped.
struct Manager {
    folder: PathBuf,
    socket: UnixDatagram,
    /// Group of lock and state when an agent last ran.
    group: AtomicU32,
}

impl Manager {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("ecn-t-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let socket = UnixDatagram::bind(folder.join("notify")).expect("a socket");
        let some = Some(Duration::from_millis(200));
        socket.set_read_timeout(some).expect("timeout");
        Self {
            folder,
            socket,
            group: AtomicU32::default(),
        }
    }

    /// Runs the unit's command, with these capabilities.
    fn start(&self, ecn: &Path, config: &Config, capabilities: &[&str]) -> Process {
        let file = self.folder.join("ecn.toml");
        fs::write(&file, toml::to_string(config).expect("a configuration")).expect("write it");
        let mut bounds = "--bounding-set=-all".to_owned();
        for capability in capabilities {
            bounds.push_str(",+");
            bounds.push_str(&capability.trim_start_matches("CAP_").to_lowercase());
        }
        let socket = format!("NOTIFY_SOCKET={}/notify", self.folder.display());
        let (ecn, file) = (
            ecn.to_str().expect("a path"),
            file.to_str().expect("a path"),
        );
        let mut words = vec![socket.as_str(), "setpriv", "--no-new-privs", &bounds];
        words.extend(setting("ExecStart").into_iter().map(|word| match word {
            "/usr/bin/ecn" => ecn,
            "/etc/ecn/ecn.toml" => file,
            word => word,
        }));
        Process::start(Path::new("env"), &words, &self.folder.join("agent"))
    }

    /// Waits for this notification.
    fn receives(&self, state: &str, patience: Duration) -> bool {
        let start = Instant::now();
        let mut buffer = [0; 64];
        while start.elapsed() < patience {
            if let Ok(length) = self.socket.recv(&mut buffer)
                && buffer[..length].trim_ascii() == state.as_bytes()
            {
                return true;
            }
        }
        false
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.join("agent.err")).unwrap_or_default()
    }

    /// Whether the agent starts with these capabilities.
    fn runs(&self, ecn: &Path, config: &Config, capabilities: &[&str]) -> bool {
        let mut agent = self.start(ecn, config, capabilities);
        let ready = eventually(s(20), || {
            self.receives("READY=1", Duration::from_millis(300)) || agent.ended(s(0)).is_some()
        });
        assert!(ready, "neither runs nor ends: {}", self.log());
        match agent.ended(s(0)) {
            Some(code) => {
                assert!(code.is_some_and(|code| code != 0), "{}", self.log());
                false
            }
            None => {
                let folder = fs::metadata("/run/ecn").expect("the agent's folder");
                self.group.store(folder.gid(), Ordering::Relaxed);
                agent.signal(Signal::SIGTERM);
                assert_eq!(agent.ended(s(20)), Some(Some(0)), "{}", self.log());
                process::stdout(&process::run(ecn, &["clean"]));
                true
            }
        }
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn the_unit_marks_and_notifies_systemd() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, manager) = (Lab::new(3), Manager::new());
    lab.limit(2, LINK / 4, 100);
    let before = Snapshot::take();
    let config = running::config(&lab, Marking::InputOutput);
    let config = running::with_endpoints(config, &lab, &[0, 1, 2], LINK);
    let mut agent = manager.start(&ecn, &config, &setting("CapabilityBoundingSet"));
    assert!(manager.receives("READY=1", s(20)), "{}", manager.log());
    let streams = [0, 1].map(|from| {
        let (from, port) = (&lab.hosts[from], 7001 + from as u16);
        Stream::start(from, &lab.hosts[2], port, 1000)
    });
    let maps = Maps::open(&pin()).expect("maps");
    let marked = || {
        let view = maps.bridge(0).expect("counters");
        (0..4).map(|slot| view.port(slot).marked).sum::<u64>()
    };
    assert!(eventually(s(10), || marked() > 100), "{}", manager.log());
    let limited = || {
        let flows = maps.flows().expect("flows");
        flows.iter().any(|(_, flow)| flow.marked_packets > 0)
    };
    assert!(eventually(s(10), limited), "{}", manager.log());
    agent.signal(Signal::SIGHUP);
    for _ in 0..3 {
        assert!(manager.receives("WATCHDOG=1", s(5)), "{}", manager.log());
    }
    drop((streams, maps));
    agent.signal(Signal::SIGTERM);
    assert!(manager.receives("STOPPING=1", s(10)), "{}", manager.log());
    assert_eq!(agent.ended(s(20)), Some(Some(0)), "{}", manager.log());
    // The kept state remains for the next agent, or for `ecn clean`.
    assert!(Maps::open(&pin()).is_ok());
    process::stdout(&process::run(&ecn, &["clean"]));
    let left = Snapshot::take().beyond(&before);
    assert_eq!(left, Vec::<String>::new());
}

/// Each capability is needed for what the unit's comments say.
#[test]
fn each_capability_is_needed() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let (lab, manager) = (Lab::new(1), Manager::new());
    let elsewhere = running::config(&lab, Marking::InputOutput);
    let mut here = elsewhere.clone();
    here.bridges[0].netns = None;
    let mut of_a_process = elsewhere.clone();
    let netns = format!("--net=/run/netns/{}", lab.switch.name());
    let words = [netns.as_str(), "sleep", "600"];
    let other = Process::start(Path::new("nsenter"), &words, &manager.folder.join("sleep"));
    of_a_process.bridges[0].netns = Some(format!("/proc/{}/ns/net", other.id()));

    let own = ["CAP_BPF", "CAP_PERFMON", "CAP_NET_ADMIN"];
    let runs_here =
        |capabilities: &[&str]| lab.switch.run(|| manager.runs(&ecn, &here, capabilities));
    assert!(runs_here(&own), "{}", manager.log());
    for without in own {
        let rest: Vec<_> = own.into_iter().filter(|own| *own != without).collect();
        assert!(!runs_here(&rest), "{without} is not needed");
    }
    let mut all = own.to_vec();
    for (more, config) in [
        ("CAP_SYS_ADMIN", &elsewhere),
        ("CAP_SYS_PTRACE", &of_a_process),
    ] {
        assert!(!manager.runs(&ecn, config, &all), "{more} is not needed");
        all.push(more);
        assert!(manager.runs(&ecn, config, &all), "{}", manager.log());
    }
    // Lock and state belong to the group `ecn`, if it exists.
    let groups = manager.folder.join("group");
    fs::write(&groups, format!("root:x:0:\necn:x:{GROUP}:\n")).expect("groups");
    let (none, to) = (None::<&str>, "/etc/group");
    mount(Some(&groups), to, none, MsFlags::MS_BIND, none).expect("groups of this test");
    let why = "CAP_CHOWN is not needed";
    assert!(!manager.runs(&ecn, &of_a_process, &all), "{why}");
    all.push("CAP_CHOWN");
    assert!(manager.runs(&ecn, &of_a_process, &all), "{}", manager.log());
    assert_eq!(manager.group.load(Ordering::Relaxed), GROUP);

    let mut unit = setting("CapabilityBoundingSet");
    unit.sort_unstable();
    all.sort_unstable();
    assert_eq!(unit, all);
}
