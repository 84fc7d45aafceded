//! What the tests on the real kernel share: a bridge with hosts in namespaces, frames, raw sockets, the agent in this
//! process, and the `ecn` command.
//!
//! Each test begins with [`kernel_test!`]. It gives the test private `/run` and `/sys/fs/bpf`, so that it conflicts neither
//! with an agent on this machine nor with another rig, and leaves nothing behind, even if it is killed. Without the rights
//! the test is skipped and named.

pub mod agent;
pub mod frames;
pub mod lab;
pub mod process;
pub mod quiet;
pub mod running;
pub mod terminal;
pub mod traffic;
pub mod wire;

use std::{
    cell::Cell,
    fs::File,
    io::Write as _,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use ecn_user::{datapath, rig::pm_qos::AwakeCpus, sys::calls as sys};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::geteuid,
};

/// Serializes the tests of a process, for `cargo test`; those that must run alone are listed in `.config/nextest.toml`.
static TURN: Mutex<()> = Mutex::new(());

/// Lock that a running test holds.
pub struct Turn {
    _turn: MutexGuard<'static, ()>,
    _awake: Option<AwakeCpus>,
}

/// Begins a test on the real kernel, or skips it with the reason.
#[macro_export]
macro_rules! kernel_test {
    () => {
        let Some(_turn) = $crate::begin($crate::name_of(|| {})) else {
            return;
        };
    };
}

/// Path of the function that contains a closure.
pub fn name_of<T>(_: T) -> &'static str {
    let name = std::any::type_name::<T>();
    let name = name.trim_end_matches("::{{closure}}");
    name.split_once("::").map_or(name, |(_, name)| name)
}

/// Tests for which an emulated kernel is too slow.
const NOT_EMULATED: [(&str, &str); 2] = [("rig::", TOO_SLOW), ("twin::", TOO_SLOW)];
const TOO_SLOW: &str = "twenty senders are slower than their links when emulated";

/// Tests of ports' own queues. On kernels that cannot watch them, all other tests use virtual queues.
const OWN_QUEUES: [&str; 9] = [
    "attach::nothing_is_attached",
    "chaos::",
    "counters::drops_match_the_kernels",
    "counters::ports_without_a_queue_are_not_counted",
    "_on_arrival",
    "_at_departure",
    "rig::",
    "twin::",
    "zero::",
];
const UNWATCHED: &str =
    "this kernel cannot count what leaves ports' own queues (tracing programs get no spin lock)";

/// See [`kernel_test!`].
pub fn begin(name: &str) -> Option<Turn> {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let too_slow = || NOT_EMULATED.iter().find(|(test, _)| name.contains(test));
    let too_slow = emulated().then(too_slow).flatten();
    if let Some(reason) = unfit().or(too_slow.map(|(_, reason)| *reason)) {
        skipped(name, Skip::Missing, reason);
        return None;
    }
    isolate();
    let own_queues = OWN_QUEUES.iter().any(|test| name.contains(test));
    if own_queues && !running::watches_queues() {
        skipped(name, Skip::Kernel, UNWATCHED);
        return None;
    }
    Some(Turn {
        _turn: turn,
        _awake: AwakeCpus::request(),
    })
}

/// Why no test can run here.
fn unfit() -> Option<&'static str> {
    if !geteuid().is_root() {
        Some("needs root")
    } else if !Path::new(datapath::BTF).exists() {
        Some("the kernel has no BTF")
    } else if !datapath::built() {
        Some("built without the kernel programs, run `cargo xtask build-ebpf`")
    } else {
        None
    }
}

/// Whether this kernel is emulated, several times slower: tests then use lower rates.
pub fn emulated() -> bool {
    std::env::var_os("ECN_EMULATED").is_some()
}

/// Gives the calling thread, and those that it starts, private `/run` and `/sys/fs/bpf`.
fn isolate() {
    thread_local!(static DONE: Cell<bool> = const { Cell::new(false) });
    if DONE.replace(true) {
        return;
    }
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    sys::keep_mounts_private().expect("private mounts");
    for (kind, at) in [("tmpfs", "/run"), ("bpf", sys::BPFFS)] {
        // Where no bpffs is mounted yet, the agent mounts one.
        let mounted = mount(Some(kind), at, Some(kind), MsFlags::empty(), none);
        assert!(
            mounted.is_ok() || kind == "bpf",
            "a private {at}: {mounted:?}"
        );
    }
}

/// Why a test is skipped. On a machine with all tools, `cargo xtask test` accepts only the first.
#[derive(Clone, Copy)]
pub enum Skip {
    /// The kernel lacks a feature.
    Kernel,
    /// A program, a right or a file is missing.
    Missing,
}

/// Reports a skipped test; `cargo xtask test` reads the file that `ECN_SKIPPED` names.
pub fn skipped(name: &str, why: Skip, reason: &str) {
    // One line in both places.
    let line = format!("{name}: {}", reason.replace('\n', "; "));
    note(&format!("skipped {line}"));
    let word = match why {
        Skip::Kernel => "kernel",
        Skip::Missing => "missing",
    };
    if let Some(list) = std::env::var_os("ECN_SKIPPED") {
        let list = File::options().append(true).create(true).open(list);
        writeln!(list.expect("the list of skipped tests"), "{word} {line}").expect("a line of it");
    }
}

/// Prints a line past the test harness, which captures the output of passing tests.
pub fn note(line: &str) {
    // The harness has already printed the test's name without a newline.
    let _ = writeln!(std::io::stdout(), "\n{line}");
}

/// Factor by which a shared machine may be slower than an idle one.
const BUSY: u32 = 4;

/// Polls until a condition holds; false on timeout. `patience` is for an idle machine.
pub fn eventually(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + patience * BUSY;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Seconds, for timeouts.
pub const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
