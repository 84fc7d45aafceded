//! `ecn clean`: removes what an agent or rig left behind.
//!
//! Programs attached by clsact are listed. Those attached by links are detached when their pins are removed, or were
//! detached when the process ended.

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

use crate::agent::leftovers;
use crate::agent::state::{DIR, Lock, State};
use crate::net::NetNs;
use crate::net::netns::DIRECTORY;
use crate::rig::topology::{self, DEFAULT_PREFIX};

use super::exit::{Failure, note, print, print_json};
use super::require_root;

/// `ecn clean`.
#[derive(Args, Debug)]
pub(super) struct CleanArgs {
    /// Only print what would be removed
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// First stop an agent or rig that is running
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
    /// A process that sends or receives the rig's traffic.
    Process { pid: i32, command: String },
    /// A namespace of the rig.
    Netns { name: String },
    /// The state file or the lock file.
    File { path: PathBuf },
    /// A leftover of an agent.
    #[serde(untagged)]
    Agent(leftovers::Leftover),
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, command } => write!(f, "process {pid} ({command})"),
            Self::Netns { name } => write!(f, "namespace {name}"),
            Self::File { path } => write!(f, "file {}", path.display()),
            Self::Agent(leftover) => leftover.fmt(f),
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub(super) struct Report<'a> {
    /// Nothing was removed; `removed` lists what would be.
    dry_run: bool,
    removed: &'a [Leftover],
}

/// Runs the verb.
///
/// # Errors
///
/// An agent or rig is running; something cannot be removed.
pub(super) fn run(args: &CleanArgs) -> anyhow::Result<()> {
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
        // No agent or rig may start meanwhile. The lock file itself is removed last.
        let _lock = Lock::take()?;
        for leftover in found {
            match remove(&leftover) {
                Ok(()) => removed.push(leftover),
                Err(error) => failures.push(format!("cannot remove {leftover}: {error}")),
            }
        }
        // Fails, as intended, if it is not empty.
        let _ = fs::remove_dir(DIR);
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

/// Asks the process that holds the lock to end, and waits for that.
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

/// Everything that was left behind, in the order of removal.
fn leftovers() -> anyhow::Result<Vec<Leftover>> {
    let rig = topology::leftovers(DEFAULT_PREFIX)?;
    let mut found = processes(&rig);
    // What is in the rig's namespaces is removed with them.
    let agents = leftovers::find(State::read().as_ref(), &rig);
    found.extend(agents.into_iter().map(Leftover::Agent));
    found.extend(rig.into_iter().map(|name| Leftover::Netns { name }));
    let files = ["state.json", "state.next", "lock"].map(|name| Path::new(DIR).join(name));
    let files = files.into_iter().filter(|path| path.exists());
    found.extend(files.map(|path| Leftover::File { path }));
    Ok(found)
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
        let words = command_line(pid);
        let in_rig = || {
            let netns = inode(entry.path().join("ns/net"));
            netns.is_some_and(|netns| namespaces.contains(&netns))
        };
        let sends = is_traffic(&words) || program(&words) == "iperf3" && in_rig();
        if pid != own && sends && !is_of_running_rig(pid) {
            let command = words.iter().take(2).cloned().collect::<Vec<_>>().join(" ");
            found.push(Leftover::Process { pid, command });
        }
    }
    found
}

/// A process's program and arguments; empty if it has ended.
fn command_line(pid: i32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    bytes
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .filter(|word| !word.is_empty())
        .collect()
}

/// The file name of a command line's program.
fn program(words: &[String]) -> &str {
    let program = words.first().and_then(|word| word.rsplit('/').next());
    program.unwrap_or_default()
}

fn is_traffic(words: &[String]) -> bool {
    program(words) == "ecn" && words.get(1).is_some_and(|word| word == "traffic")
}

fn is_rig(words: &[String]) -> bool {
    program(words) == "ecn" && words.iter().any(|word| word == "rig")
}

/// Whether a rig that still runs, in a container with its own `/run` for example, has started the process.
fn is_of_running_rig(pid: i32) -> bool {
    let parents = std::iter::successors(parent(pid), |pid| parent(*pid));
    parents
        .take_while(|pid| *pid > 1)
        .any(|pid| is_rig(&command_line(pid)))
}

fn parent(pid: i32) -> Option<i32> {
    // The fields after the name, see proc_pid_stat(5): state, parent.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(1)?.parse().ok()
}

fn remove(leftover: &Leftover) -> anyhow::Result<()> {
    match leftover {
        Leftover::Process { pid, .. } => end(*pid)?,
        Leftover::Agent(leftover) => leftover.remove(State::read().as_ref())?,
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
            if has_exited(pid) {
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
    }
    Err(Errno::ETIMEDOUT)
}

/// Whether a process has exited: it does not exist, or is a zombie.
fn has_exited(pid: Pid) -> bool {
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
    fn leftovers_have_one_line_and_one_object() {
        let leftover = Leftover::Agent(leftovers::Leftover::Qdisc {
            qdisc: "htb ec0e:".to_owned(),
            device: "eth0".to_owned(),
            netns: "web".to_owned(),
            ifindex: 2,
        });
        assert_eq!(leftover.to_string(), "htb ec0e: of eth0 in namespace web");
        assert_eq!(
            serde_json::to_string(&leftover).unwrap(),
            r#"{"kind":"qdisc","qdisc":"htb ec0e:","device":"eth0","netns":"web","ifindex":2}"#
        );
    }
}
