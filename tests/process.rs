//! The `ecn` command as a process, and what it may leave behind.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use aya::{
    maps::loaded_maps,
    programs::{loaded_links, loaded_programs},
};
use ecn_user::{
    agent::state::State,
    config::Config,
    net::{NetNs, Netlink},
    sys::calls as sys,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{eventually, s};

/// The command: `ECN_BIN`, else the one beside the test binary.
pub fn ecn() -> Option<PathBuf> {
    let named = std::env::var_os("ECN_BIN").map(PathBuf::from);
    let beside = || {
        Some(
            std::env::current_exe()
                .ok()?
                .parent()?
                .parent()?
                .join("ecn"),
        )
    };
    named.or_else(beside).filter(|path| path.is_file())
}

/// Skips the test if there is no `ecn` command.
#[macro_export]
macro_rules! ecn_or_skip {
    () => {
        match $crate::process::ecn() {
            Some(ecn) => ecn,
            None => {
                let name = $crate::name_of(|| {});
                $crate::skipped(name, $crate::Skip::Missing, "no ecn command, set ECN_BIN");
                return;
            }
        }
    };
}

/// Runs the command until it exits.
pub fn run(ecn: &Path, words: &[&str]) -> Output {
    Command::new(ecn)
        .args(words)
        .env_remove("ECN_LOG")
        .output()
        .expect("run ecn")
}

/// Standard output of a run that must succeed.
#[track_caller]
pub fn stdout(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Temporary directory of a test; removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Creates it.
    #[expect(clippy::new_without_default, reason = "it makes a folder")]
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("ecn-t-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// Path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The agent's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.file("agent.err")).unwrap_or_default()
    }

    /// Writes `ecn.toml`.
    pub fn write(&self, config: &Config) -> PathBuf {
        let path = self.file("ecn.toml");
        fs::write(&path, toml::to_string(config).expect("a configuration")).expect("write it");
        path
    }

    /// Starts `ecn run` with a configuration, and waits until it runs.
    #[track_caller]
    pub fn start(&self, ecn: &Path, config: &Config) -> Process {
        let path = self.write(config);
        let words = ["run", "--config", path.to_str().expect("a path")];
        let agent = Process::start(ecn, &words, &self.file("agent"));
        let log = || self.log();
        assert!(eventually(s(60), || is_running(agent.id())), "{}", log());
        agent
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Whether this process is the agent, and has started.
pub fn is_running(pid: u32) -> bool {
    // The agent writes the path of its configuration last.
    State::read().is_some_and(|state| state.pid == pid && state.config.is_some())
}

/// Number of files below the BPF file system.
pub fn pins() -> usize {
    let mut found = BTreeSet::new();
    files(Path::new(sys::BPFFS), &mut found);
    found.len()
}

/// A running command; killed when dropped.
pub struct Process(Child);

impl Process {
    /// Starts it; its output goes to files with this path and the extensions `out` and `err`.
    pub fn start(ecn: &Path, words: &[&str], path: &Path) -> Self {
        let file = |kind: &str| fs::File::create(path.with_extension(kind)).expect("a file");
        Self::start_to(ecn, words, file("out"), file("err"))
    }

    /// Starts it with this output.
    pub fn start_to(
        ecn: &Path,
        words: &[&str],
        stdout: impl Into<Stdio>,
        stderr: impl Into<Stdio>,
    ) -> Self {
        let mut command = Command::new(ecn);
        command
            .args(words)
            .env_remove("ECN_LOG")
            .stdin(Stdio::null());
        command.stdout(stdout).stderr(stderr);
        sys::die_with_parent(&mut command);
        Self(command.spawn().expect("start ecn"))
    }

    /// Its programs, maps and links in the kernel.
    pub fn objects(&self) -> Objects {
        let objects = Objects::of(self.0.id());
        for kind in ["program", "map", "link"] {
            assert!(
                objects.0.iter().any(|(k, _)| *k == kind),
                "no {kind} in {objects:?}"
            );
        }
        assert_eq!(objects.left().len(), objects.0.len());
        objects
    }

    /// Its current resources.
    pub fn held(&self) -> Held {
        Held::by(self.0.id())
    }

    /// Its resources when files and BPF objects no longer change: without those that it or the kernel releases late.
    pub fn settled(&self, patience: Duration) -> Held {
        std::thread::sleep(Duration::from_millis(1_500));
        let mut held = self.held();
        eventually(patience, || {
            let before = std::mem::replace(&mut held, self.held());
            std::thread::sleep(Duration::from_millis(100));
            before.files == held.files && before.objects == held.objects
        });
        held
    }

    /// Its process ID.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("signal");
    }

    /// The exit code, if it exits in time; the inner `None`: killed by a signal.
    pub fn ended(&mut self, patience: Duration) -> Option<Option<i32>> {
        let mut status = None;
        eventually(patience, || {
            status = self.0.try_wait().expect("wait");
            status.is_some()
        });
        status.map(|status| status.code())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Resources of a process that must not grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Open file descriptors.
    pub files: usize,
    /// BPF programs, maps and links.
    pub objects: usize,
    /// Threads.
    pub threads: usize,
    /// Resident memory, KiB.
    pub memory_kib: u64,
}

impl Held {
    /// Those of a running process.
    pub fn by(pid: u32) -> Self {
        let of = PathBuf::from(format!("/proc/{pid}"));
        let count = |folder: &str| fs::read_dir(of.join(folder)).expect("a process").count();
        let status = fs::read_to_string(of.join("status")).expect("a process");
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = memory.and_then(|memory| memory.trim().strip_suffix(" kB"));
        Self {
            files: count("fd"),
            objects: Objects::of(pid).0.len(),
            threads: count("task"),
            memory_kib: memory.and_then(|kib| kib.parse().ok()).expect("VmRSS"),
        }
    }
}

/// State of the machine that an agent could change.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeSet<String>);

impl Snapshot {
    /// Takes a snapshot.
    pub fn take() -> Self {
        let mut found = BTreeSet::new();
        let own = NetNs::current().expect("own namespace");
        let names = NetNs::list().expect("namespaces");
        let named = names.iter().filter_map(|name| NetNs::named(name).ok());
        for ns in named.chain([own]) {
            found.insert(format!("netns {}", ns.name()));
            let nl = Netlink::open(&ns).expect("netlink");
            let links = nl.links().expect("links");
            for qdisc in nl.qdiscs().expect("qdiscs") {
                let link = links.iter().find(|link| link.index == qdisc.ifindex);
                let link = link.map_or("?", |link| link.name.as_str());
                found.insert(format!(
                    "qdisc {} {link} {} {:x} {:x}",
                    ns.name(),
                    qdisc.kind,
                    qdisc.handle,
                    qdisc.parent
                ));
            }
        }
        for folder in [sys::BPFFS, "/run/ecn"] {
            files(Path::new(folder), &mut found);
        }
        Self(found)
    }

    /// What this snapshot has and the other does not.
    pub fn beyond(&self, other: &Self) -> Vec<String> {
        self.0.difference(&other.0).cloned().collect()
    }
}

fn files(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        found.insert(format!("file {}", entry.path().display()));
        if entry.path().is_dir() {
            files(&entry.path(), found);
        }
    }
}

/// `BPF_MAP_TYPE_PROG_ARRAY` in a descriptor's fdinfo.
const PROGRAM_ARRAY: &str = "\nmap_type:\t3\n";

/// A process's programs, maps and links in the kernel, by kind and ID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Objects(BTreeSet<(&'static str, u32)>);

impl Objects {
    /// From the process's descriptors: lists of all objects also contain those of other agents.
    fn of(pid: u32) -> Self {
        let mut found = BTreeSet::new();
        let folder = format!("/proc/{pid}/fdinfo");
        for entry in fs::read_dir(folder).expect("descriptors").flatten() {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            // [`Objects::left`] opens every map for a moment. A program array that is opened and closed
            // while the kernel clears it keeps a reference for ever (`prog_array_map_clear`, Linux 6.18).
            if text.contains(PROGRAM_ARRAY) {
                continue;
            }
            for (kind, word) in [
                ("program", "prog_id:"),
                ("map", "map_id:"),
                ("link", "link_id:"),
            ] {
                let number = text.lines().find_map(|line| line.strip_prefix(word));
                found.extend(
                    number
                        .and_then(|n| n.trim().parse().ok())
                        .map(|n| (kind, n)),
                );
            }
        }
        Self(found)
    }

    /// Those that still exist.
    fn left(&self) -> Vec<(&'static str, u32)> {
        let programs = loaded_programs().flatten().map(|p| ("program", p.id()));
        let maps = loaded_maps().flatten().map(|m| ("map", m.id()));
        let links = loaded_links().flatten().map(|l| ("link", l.id()));
        let all: BTreeSet<_> = programs.chain(maps).chain(links).collect();
        self.0.intersection(&all).copied().collect()
    }

    /// Waits until all are removed, which the kernel does after a grace period.
    #[track_caller]
    pub fn wait_removed(&self) {
        assert!(
            eventually(s(10), || self.left().is_empty()),
            "left: {:?}",
            self.left()
        );
    }
}
