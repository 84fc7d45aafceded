//! Lock, state and maps belong to root: other users can neither hold nor change them.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use ecn_tests::{
    ecn_or_skip, eventually, kernel_test,
    lab::Lab,
    process::{self, Process},
    running::{self, pin},
    s,
};
use ecn_user::{agent::state::Lock, config::Marking, datapath::Maps};
use nix::sys::signal::Signal;

/// Runs a command as an unprivileged user with this group; returns whether it succeeded.
fn as_another(command: &str, group: u32) -> bool {
    let words = ["--reuid=65534", "--clear-groups", "--inh-caps=-all"];
    let status = Command::new("setpriv")
        .args(words)
        .arg(format!("--regid={group}"))
        .args(["sh", "-c", command])
        .stderr(std::process::Stdio::null())
        .status();
    status.expect("setpriv").success()
}

/// A path and everything below it.
fn all_below(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let below = entries.flat_map(|entry| all_below(&entry.path()));
    std::iter::once(path.to_owned()).chain(below).collect()
}

#[test]
fn other_users_can_neither_hold_nor_read_anything() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let lab = Lab::new(1);
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("ecn.toml");
    let text = toml::to_string(&running::config(&lab, Marking::InputOutput));
    fs::write(&config, text.expect("a configuration")).expect("write it");
    let words = ["run", "--config", config.to_str().expect("a path")];
    for round in 0..2 {
        let mut agent = Process::start(&ecn, &words, &folder.path().join("agent"));
        let runs = || Maps::open(&pin()).is_ok() && Path::new("/run/ecn/state.json").exists();
        assert!(eventually(s(20), runs), "round {round}");

        for path in all_below(Path::new("/run/ecn"))
            .iter()
            .chain(&all_below(&pin()))
        {
            let of = fs::symlink_metadata(path).expect("what is there");
            assert_eq!(of.uid(), 0, "{}", path.display());
            let mode = of.permissions().mode() & 0o027;
            assert_eq!(mode, 0, "{}: {mode:o}", path.display());
        }
        // Neither an unprivileged user, nor a member of the group that may read the state.
        let group = fs::metadata("/run/ecn").expect("the folder").gid();
        for (command, group) in [
            ("flock -n /run/ecn/lock true", 65534),
            ("flock -n /run/ecn true", 65534),
            ("cat /run/ecn/state.json", 65534),
            ("flock -n /run/ecn/lock true", group),
            ("rm -f /run/ecn/lock && test ! -e /run/ecn/lock", group),
        ] {
            let command = format!("{command} >/dev/null");
            assert!(!as_another(&command, group), "{command} by group {group}");
        }
        let list = format!("ls {}", pin().display());
        assert!(!as_another(&list, 65534), "pins");
        assert_eq!(Lock::holder(), Some(agent.id().to_string()));
        agent.signal(Signal::SIGTERM);
        assert_eq!(agent.ended(s(10)), Some(Some(0)));
        // The next agent corrects modes that another umask has left.
        for (path, mode) in [("/run/ecn", 0o755), ("/run/ecn/lock", 0o666)] {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(path, mode).expect("a mode");
        }
    }
}

/// The file may name any process: only the one that holds the lock is stopped.
#[test]
fn force_stops_who_holds_the_lock() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let folder = tempfile::tempdir().expect("a folder");
    let sleep =
        |name: &str| Process::start(Path::new("sleep"), &["600"], &folder.path().join(name));
    let mut named = sleep("named");
    let line = format!("{}\n", named.id());
    let write = || {
        fs::create_dir_all("/run/ecn")?;
        fs::write("/run/ecn/lock", &line)
    };
    write().expect("a lock file");
    let clean = || process::run(&ecn, &["clean", "--force"]);

    // No process holds it.
    process::stdout(&clean());
    assert_eq!(named.ended(s(0)), None, "a process that the file names");
    write().expect("a lock file");
    let words = ["--no-fork", "/run/ecn/lock", "sleep", "600"];
    let mut holder = Process::start(Path::new("flock"), &words, &folder.path().join("holder"));
    let held = || Lock::holder() == Some(holder.id().to_string());
    assert!(eventually(s(5), held), "{:?}", Lock::holder());
    process::stdout(&clean());
    assert_eq!(holder.ended(s(5)), Some(None), "the holder");
    assert_eq!(named.ended(s(0)), None, "a process that the file names");
}
