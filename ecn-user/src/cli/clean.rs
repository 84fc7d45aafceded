//! `ecn clean`: removes what a killed agent or rig left behind.
//!
//! Attached programs are on the list where they hang from clsact; links of tcx are descriptors, which go with the
//! process.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schemars::JsonSchema;
use serde::Serialize;

use crate::agent::root::FQ_MAJOR;
use crate::agent::state::{DIR, Lock, State};
use crate::config::Agent;
use crate::datapath;
use crate::net::filter::Filter;
use crate::net::htb::ENDPOINT_MAJOR;
use crate::net::netns::DIRECTORY;
use crate::net::{NetNs, Netlink, Qdisc, ROOT};
use crate::rig::topology::{self, DEFAULT_PREFIX};

use super::exit::{Failure, note, print, print_json};
use super::require_root;

/// `ecn clean`.
#[derive(Args, Debug)]
pub struct CleanArgs {
    /// Only say what would be removed
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Stop an agent or rig that is running first
    #[arg(long)]
    force: bool,
    /// Print what was removed as JSON
    #[arg(long, short = 'j')]
    json: bool,
}

/// How long a process may take to end.
const PATIENCE: Duration = Duration::from_secs(15);

/// Something that was left behind.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Leftover {
    /// A process that sends the rig's traffic.
    Process { pid: i32, command: String },
    /// The root qdisc of an endpoint.
    Qdisc {
        /// As tc shows it: `htb ec0e:`.
        qdisc: String,
        device: String,
        /// Empty for this process's own.
        netns: String,
        ifindex: u32,
    },
    /// A program on clsact.
    Filter {
        program: String,
        device: String,
        /// Empty for this process's own.
        netns: String,
        #[serde(skip)]
        filter: Filter,
    },
    /// A directory of pinned maps.
    Pins { path: PathBuf },
    /// A namespace of the rig.
    Netns { name: String },
    /// State or lock.
    File { path: PathBuf },
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, command } => write!(f, "process {pid} ({command})"),
            Self::Qdisc {
                qdisc,
                device,
                netns,
                ..
            } => {
                write!(f, "{qdisc} of {device}")?;
                match netns.as_str() {
                    "" => Ok(()),
                    netns => write!(f, " in namespace {netns}"),
                }
            }
            Self::Filter {
                program,
                device,
                netns,
                ..
            } => {
                write!(f, "program {program} of {device}")?;
                match netns.as_str() {
                    "" => Ok(()),
                    netns => write!(f, " in namespace {netns}"),
                }
            }
            Self::Pins { path } => write!(f, "pinned maps {}", path.display()),
            Self::Netns { name } => write!(f, "namespace {name}"),
            Self::File { path } => write!(f, "file {}", path.display()),
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub(super) struct Report<'a> {
    /// Nothing was removed: what would be is named.
    dry_run: bool,
    removed: &'a [Leftover],
}

/// Runs the verb.
///
/// # Errors
///
/// An agent or rig is running; something cannot be removed.
pub fn run(args: &CleanArgs) -> anyhow::Result<()> {
    require_root("cleaning up")?;
    if let Some(pid) = Lock::holder() {
        if args.force && !args.dry_run {
            stop(&pid)?;
        } else if !args.dry_run {
            return Err(Failure::lacking(format!(
                "an agent or rig is running (process {pid}), nothing was removed: \
                 stop it, or use --force"
            ))
            .into());
        } else {
            note(&format!(
                "an agent or rig is running (process {pid}): this is what it uses"
            ));
        }
    }
    let found = leftovers()?;
    let mut failures = Vec::new();
    let mut removed = Vec::new();
    if args.dry_run {
        removed = found;
    } else if !found.is_empty() {
        // Nobody may start meanwhile. The lock file itself goes last.
        let _lock = Lock::take()?;
        for leftover in found {
            match remove(&leftover) {
                Ok(()) => removed.push(leftover),
                Err(error) => failures.push(format!("cannot remove {leftover}: {error}")),
            }
        }
    }
    if args.json {
        print_json(&Report {
            dry_run: args.dry_run,
            removed: &removed,
        })?;
    } else if removed.is_empty() && failures.is_empty() {
        print("nothing to remove\n")?;
    } else {
        let verb = if args.dry_run {
            "would remove"
        } else {
            "removed"
        };
        let lines: String = removed
            .iter()
            .map(|leftover| format!("{verb} {leftover}\n"))
            .collect();
        print(&lines)?;
    }
    if failures.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(failures.join("\n")).into())
}

/// Asks the process that holds the lock to end, and waits until it has.
fn stop(pid: &str) -> anyhow::Result<()> {
    let number: i32 = pid.parse().ok().filter(|pid| *pid > 1).ok_or_else(|| {
        Failure::failed(format!(
            "the process that holds {DIR}/lock is in another PID namespace: stop it there"
        ))
    })?;
    match kill(Pid::from_raw(number), Signal::SIGTERM) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(errno) => {
            return Err(Failure::failed(format!("cannot stop process {pid}: {errno}")).into());
        }
    }
    let until = Instant::now() + PATIENCE;
    while Lock::holder().is_some() {
        if Instant::now() >= until {
            let patience = PATIENCE.as_secs();
            let message = format!(
                "process {pid} has not ended within {patience} s of SIGTERM: `kill -9 {pid}`, \
                 then `ecn clean`"
            );
            return Err(Failure::failed(message).into());
        }
        sleep(Duration::from_millis(50));
    }
    note(&format!("stopped process {pid}"));
    Ok(())
}

/// Everything there is, in the order in which it goes.
fn leftovers() -> anyhow::Result<Vec<Leftover>> {
    let state = State::read();
    let rig = topology::leftovers(DEFAULT_PREFIX)?;
    let mut found = processes(&rig);
    found.extend(qdiscs(&rig, state.as_ref()));
    let pins: BTreeSet<_> = state
        .iter()
        .map(|state| state.pin.clone())
        .chain([Agent::default().pin])
        .collect();
    let pins = pins.into_iter().filter(|path| is_ours(path));
    found.extend(pins.map(|path| Leftover::Pins { path }));
    found.extend(rig.into_iter().map(|name| Leftover::Netns { name }));
    let files = ["state.json", "state.next", "lock"].map(|name| Path::new(DIR).join(name));
    let files = files.into_iter().filter(|path| path.exists());
    found.extend(files.map(|path| Leftover::File { path }));
    Ok(found)
}

/// Whether a directory of pins holds what an agent puts there and nothing else: the state that
/// names it is a file like any other.
fn is_ours(pin: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(pin) else {
        return false;
    };
    entries.all(|entry| entry.is_ok_and(|entry| datapath::is_version(&entry.file_name())))
}

/// The rig's senders and receivers that outlived it: `ecn traffic`, and iperf3 in its namespaces.
fn processes(rig: &[String]) -> Vec<Leftover> {
    let inode = |path: PathBuf| fs::metadata(path).ok().map(|found| found.ino());
    let namespaces: BTreeSet<_> = rig
        .iter()
        .filter_map(|name| inode(Path::new(DIRECTORY).join(name)))
        .collect();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let own = std::process::id() as i32;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let Ok(command) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let words: Vec<_> = command
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .filter(|word| !word.is_empty())
            .collect();
        let program = words
            .first()
            .and_then(|word| word.rsplit('/').next())
            .unwrap_or_default();
        let in_rig = || {
            let netns = inode(entry.path().join("ns/net"));
            netns.is_some_and(|netns| namespaces.contains(&netns))
        };
        let is_traffic = program == "ecn" && words.get(1).is_some_and(|word| word == "traffic");
        if pid != own && (is_traffic || program == "iperf3" && in_rig()) {
            let command = words.iter().take(2).cloned().collect::<Vec<_>>().join(" ");
            found.push(Leftover::Process { pid, command });
        }
    }
    found
}

/// Our root qdiscs and filters in the current and all named namespaces, and where the state has endpoints or
/// bridges. Those of the rig go with its namespaces.
fn qdiscs(rig: &[String], state: Option<&State>) -> Vec<Leftover> {
    let named = NetNs::list().unwrap_or_default();
    let endpoints = state.iter().flat_map(|state| &state.endpoints);
    let bridges = state.iter().flat_map(|state| &state.bridges);
    let configured = endpoints
        .map(|endpoint| endpoint.netns.clone())
        .chain(bridges.map(|bridge| bridge.netns.clone()));
    let places: BTreeSet<_> = named
        .into_iter()
        .chain(configured)
        .filter(|name| !rig.contains(name))
        .chain([String::new()])
        .collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for place in places {
        // What is no namespace any more holds nothing.
        let Ok(netns) = open(&place) else {
            continue;
        };
        if seen.insert(netns.inum()) {
            found.extend(qdiscs_in(&netns, &place).unwrap_or_default());
        }
    }
    found
}

/// As [`State`] spells namespaces: empty is this process's own.
fn open(netns: &str) -> crate::net::Result<NetNs> {
    NetNs::open(Some(netns).filter(|netns| !netns.is_empty()))
}

fn qdiscs_in(netns: &NetNs, place: &str) -> crate::net::Result<Vec<Leftover>> {
    let netlink = Netlink::open(netns)?;
    let ours = |qdisc: &Qdisc| {
        qdisc.parent == ROOT
            && matches!(
                (qdisc.major(), qdisc.kind.as_str()),
                (ENDPOINT_MAJOR, "htb") | (FQ_MAJOR, "fq" | "mq")
            )
    };
    let qdiscs = netlink.qdiscs()?;
    let with_clsact = qdiscs.iter().filter(|qdisc| qdisc.kind == "clsact");
    let mut filters = Vec::new();
    for qdisc in with_clsact {
        filters.extend(datapath::leftovers(&netlink, qdisc.ifindex)?);
    }
    let ours: Vec<_> = qdiscs.into_iter().filter(ours).collect();
    if ours.is_empty() && filters.is_empty() {
        return Ok(Vec::new());
    }
    let links = netlink.links()?;
    let device = |ifindex: u32| {
        let link = links.iter().find(|link| link.index == ifindex);
        link.map_or_else(|| ifindex.to_string(), |link| link.name.clone())
    };
    let filters = filters.into_iter().map(|filter| Leftover::Filter {
        program: filter.name.clone(),
        device: device(filter.ifindex),
        netns: place.to_owned(),
        filter,
    });
    let qdiscs = ours.into_iter().map(|qdisc| Leftover::Qdisc {
        qdisc: format!("{} {:x}:", qdisc.kind, qdisc.major()),
        device: device(qdisc.ifindex),
        netns: place.to_owned(),
        ifindex: qdisc.ifindex,
    });
    Ok(filters.chain(qdiscs).collect())
}

fn remove(leftover: &Leftover) -> anyhow::Result<()> {
    match leftover {
        Leftover::Process { pid, .. } => end(*pid)?,
        Leftover::Qdisc { netns, ifindex, .. } => {
            let netlink = Netlink::open(&open(netns)?)?;
            netlink.delete_root_qdisc(*ifindex)?;
            let before = State::read().and_then(|state| state.gso_max_segs(netns, *ifindex));
            if let Some(segments) = before {
                netlink.set_gso_max_segs(*ifindex, segments)?;
            }
        }
        Leftover::Filter { netns, filter, .. } => {
            datapath::remove_leftover(&Netlink::open(&open(netns)?)?, filter)?;
        }
        Leftover::Pins { path } => datapath::remove_pins(path)?,
        Leftover::Netns { name } => NetNs::delete(name)?,
        Leftover::File { path } => fs::remove_file(path)?,
    }
    Ok(())
}

/// Ends a process: SIGTERM, and SIGKILL a second later.
fn end(pid: i32) -> nix::Result<()> {
    let pid = Pid::from_raw(pid);
    for (signal, patience_ms) in [(Signal::SIGTERM, 1_000), (Signal::SIGKILL, 2_000)] {
        match kill(pid, signal) {
            Err(Errno::ESRCH) => return Ok(()),
            other => other?,
        }
        let until = Instant::now() + Duration::from_millis(patience_ms);
        while Instant::now() < until {
            if is_gone(pid) {
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
    }
    Err(Errno::ETIMEDOUT)
}

/// Whether a process is no more, or only waits for its parent to take note.
fn is_gone(pid: Pid) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return true;
    };
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn only_directories_of_pins_are_ours() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("v1/maps")).unwrap();
        assert!(is_ours(folder.path()));
        fs::write(folder.path().join("notes"), "").unwrap();
        assert!(!is_ours(folder.path()));
        assert!(!is_ours(Path::new("/nowhere")));
    }

    #[test]
    fn leftovers_have_one_line_and_one_object() {
        let leftover = Leftover::Qdisc {
            qdisc: "htb ec0e:".to_owned(),
            device: "eth0".to_owned(),
            netns: "web".to_owned(),
            ifindex: 2,
        };
        assert_eq!(leftover.to_string(), "htb ec0e: of eth0 in namespace web");
        assert_eq!(
            serde_json::to_string(&leftover).unwrap(),
            r#"{"kind":"qdisc","qdisc":"htb ec0e:","device":"eth0","netns":"web","ifindex":2}"#
        );
    }
}
