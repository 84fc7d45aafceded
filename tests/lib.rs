//! What the tests on the real kernel share: a bridge with hosts in namespaces of their own, frames,
//! raw sockets, the agent in this process, and the `ecn` command beside it.
//!
//! Each test begins with [`kernel_test!`]. It gives the test private `/run` and `/sys/fs/bpf`, so
//! that it meets neither the machine's own agent nor another rig, and so that nothing outlives the
//! process, even one that is killed. Where the rights are missing the test is skipped, by name.

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

use ecn_user::{datapath, sys::calls as sys};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    unistd::geteuid,
};

/// One test of a process at a time, for `cargo test`: those that must be alone do not say so here but in `.config/nextest.toml`.
static TURN: Mutex<()> = Mutex::new(());

/// A test's turn; the next one begins when it is dropped.
pub struct Turn {
    _turn: MutexGuard<'static, ()>,
}

/// Begins a test on the real kernel, or leaves it, saying why.
#[macro_export]
macro_rules! kernel_test {
    () => {
        let Some(_turn) = $crate::begin($crate::name_of(|| {})) else {
            return;
        };
    };
}

/// The path of the function around a closure.
pub fn name_of<T>(_: T) -> &'static str {
    let name = std::any::type_name::<T>();
    let name = name.trim_end_matches("::{{closure}}");
    name.split_once("::").map_or(name, |(_, name)| name)
}

/// Tests that an emulated kernel is too slow for.
const NOT_EMULATED: [(&str, &str); 2] = [("rig::", TOO_SLOW), ("twin::", TOO_SLOW)];
const TOO_SLOW: &str = "twenty senders are slower than their links when emulated";

/// Tests of ports' own queues. All others of a bridge do with virtual ones where there is nothing else.
const OWN_QUEUES: [&str; 8] = [
    "attach::nothing_is_attached",
    "chaos::",
    "counters::drops_match_the_kernels",
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
    Some(Turn { _turn: turn })
}

/// Why nothing can be tested here.
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

/// Whether this kernel is emulated, several times slower: rates that a test asks for have to be low then.
pub fn emulated() -> bool {
    std::env::var_os("ECN_EMULATED").is_some()
}

/// Gives the calling thread, and those that it starts, `/run` and `/sys/fs/bpf` of their own.
fn isolate() {
    thread_local!(static DONE: Cell<bool> = const { Cell::new(false) });
    if DONE.replace(true) {
        return;
    }
    let none = None::<&str>;
    unshare(CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    sys::keep_mounts_private().expect("private mounts");
    for (kind, at) in [("tmpfs", "/run"), ("bpf", sys::BPFFS)] {
        // Where there is no bpffs yet, the agent mounts one.
        let mounted = mount(Some(kind), at, Some(kind), MsFlags::empty(), none);
        assert!(
            mounted.is_ok() || kind == "bpf",
            "a private {at}: {mounted:?}"
        );
    }
}

/// Why a test is skipped, for `cargo xtask test`: a machine with all tools must run what is missing, not the others.
#[derive(Clone, Copy)]
pub enum Skip {
    /// The kernel lacks a feature.
    Kernel,
    /// Other programs disturbed every run.
    Disturbed,
    /// A program, a right or a file is missing.
    Missing,
}

/// Reports a skipped test; `cargo xtask test` reads the lines of the file `ECN_SKIPPED`.
pub fn skipped(name: &str, why: Skip, reason: &str) {
    // One line in both places.
    let line = format!("{name}: {}", reason.replace('\n', "; "));
    note(&format!("skipped {line}"));
    let word = match why {
        Skip::Kernel => "kernel",
        Skip::Disturbed => "disturbed",
        Skip::Missing => "missing",
    };
    if let Some(list) = std::env::var_os("ECN_SKIPPED") {
        let list = File::options().append(true).create(true).open(list);
        writeln!(list.expect("the list of skipped tests"), "{word} {line}").expect("a line of it");
    }
}

/// Prints a line past the test harness, which hides what passing tests print.
pub fn note(line: &str) {
    // The harness has begun a line with the test's name.
    let _ = writeln!(std::io::stdout(), "\n{line}");
}

/// How much longer than a quiet machine one may take that others use too.
const BUSY: u32 = 4;

/// Waits until something holds; false if it never does. `patience` is for a quiet machine.
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

/// Seconds, for the many waits.
pub const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
