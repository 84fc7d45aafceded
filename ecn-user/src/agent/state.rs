//! What a running agent publishes: a lock, and names for the numbers that the maps use.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{
        DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
    },
    path::{Path, PathBuf},
};

use nix::{
    fcntl::{FallocateFlags, Flock, FlockArg, fallocate},
    sys::stat::{major, minor},
    unistd::{Group, chown},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Error, health::Warning};
use crate::{
    config::{Enforcement, Function, Hook, Marking, Queue},
    datapath::AttachedBy,
};

/// Directory of lock and state.
pub const DIR: &str = "/run/ecn";

/// The space reserved for a state is a multiple of this, bytes.
const RESERVED: usize = 16 << 10;

/// The bridges and endpoints that the agent manages, with the numbers that the maps use.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct State {
    /// Process ID; 0: the agent has ended, and what it had attached was kept.
    pub pid: u32,
    /// Whether programs, maps and queueing disciplines outlive the process.
    #[serde(default)]
    pub keep: bool,
    /// Directory of the pins.
    pub pin: PathBuf,
    /// The configuration file, if SIGHUP rereads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<PathBuf>,
    /// Number of reloads, including failed ones.
    #[serde(default)]
    pub reloads: u32,
    /// Error of the last reload, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reload_error: Option<String>,
    /// Bridges by number.
    pub bridges: Vec<BridgeState>,
    /// Endpoints by number, from 1.
    pub endpoints: Vec<EndpointState>,
    /// Current warnings.
    #[serde(default)]
    pub warnings: Vec<Warning>,
    /// Configured bridges and endpoints that do not exist yet or could not be set up.
    #[serde(default)]
    pub waiting: Vec<Waiting>,
    /// Log lines lost since the agent started.
    #[serde(default)]
    pub log_lines_lost: u64,
}

/// What is waited for.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum WaitingFor {
    /// A bridge.
    Bridge,
    /// An endpoint.
    Endpoint,
}

/// A bridge or an endpoint that does not exist yet or could not be set up. The agent keeps trying.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(inline)]
pub struct Waiting {
    /// Bridge or endpoint.
    pub kind: WaitingFor,
    /// Name of the device, or a pattern.
    pub name: String,
    /// Namespace as configured; empty: the agent's own.
    pub netns: String,
    /// What is missing, or the error.
    pub why: String,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            WaitingFor::Bridge => "bridge",
            WaitingFor::Endpoint => "endpoint",
        };
        write!(f, "{kind} {}", self.name)?;
        if !self.netns.is_empty() {
            write!(f, " (namespace {})", self.netns)?;
        }
        write!(f, ": {}", self.why)
    }
}

/// A bridge.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct BridgeState {
    /// Number in the maps.
    pub number: u32,
    /// Name of the device.
    pub name: String,
    /// Namespace as configured; empty: the agent's own.
    pub netns: String,
    /// Which packets are marked.
    pub marking: Marking,
    /// Which queues are watched.
    #[serde(default)]
    pub queue: Queue,
    /// Ports.
    pub ports: Vec<PortState>,
}

impl fmt::Display for BridgeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ports: Vec<&str> = self.ports.iter().map(|port| port.name.as_str()).collect();
        let ports = match ports.as_slice() {
            [] => "no port yet".to_owned(),
            ports => ports.join(" "),
        };
        write!(f, "bridge {}", named(&self.name, &self.netns))?;
        write!(f, ": {} marking at {ports}", self.marking)?;
        match self.queue {
            Queue::Device => Ok(()),
            Queue::Virtual => f.write_str(", by virtual queues"),
        }
    }
}

/// A device and its namespace.
fn named(device: &str, netns: &str) -> String {
    match netns {
        "" => device.to_owned(),
        netns => format!("{device} in {netns}"),
    }
}

/// A port.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct PortState {
    /// Slot in the bridge's maps.
    pub slot: u32,
    /// Name of the device.
    pub name: String,
    /// Interface number.
    pub ifindex: u32,
    /// How the program is attached; null if no port of the bridge has a queue.
    #[serde(default)]
    pub attached: Option<AttachedBy>,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct EndpointState {
    /// Number in the maps.
    pub number: u32,
    /// Name of the device.
    pub device: String,
    /// Namespace as configured; empty: the agent's own.
    pub netns: String,
    /// Interface number.
    pub ifindex: u32,
    /// For a tap at a bridge: interface number of the ifb on which its flows are limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaper: Option<u32>,
    /// The response function.
    pub response: Function,
    /// How rates are enforced; with `auto`, the method that was chosen.
    pub enforcement: Enforcement,
    /// Why this method was chosen.
    #[serde(default)]
    pub why: String,
    /// Where echoes are processed; with `auto`, the hook that was chosen.
    #[serde(default)]
    pub hook: Hook,
    /// Whether the agent has installed the root qdisc, and removes it.
    pub installed_qdisc: bool,
    /// The device's `gso_max_segs` to be restored; null if the agent has not changed it.
    #[serde(default)]
    pub gso_max_segs: Option<u32>,
}

impl EndpointState {
    /// Interface number of the device whose qdisc limits flows.
    pub fn limited_at(&self) -> u32 {
        self.shaper.unwrap_or(self.ifindex)
    }
}

impl fmt::Display for EndpointState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (response, enforcement) = (self.response, self.enforcement);
        write!(f, "endpoint {}", named(&self.device, &self.netns))?;
        write!(f, ": {response} by {enforcement} ({})", self.why)?;
        match self.hook {
            Hook::Xdp => f.write_str(", echoes at XDP"),
            Hook::Tc | Hook::Auto => Ok(()),
        }
    }
}

impl State {
    /// The `gso_max_segs` to restore at a device, recorded by a running or killed agent.
    pub fn gso_max_segs(&self, netns: &str, ifindex: u32) -> Option<u32> {
        let endpoints = &mut self.endpoints.iter();
        let endpoint = endpoints.find(|e| e.netns == netns && e.ifindex == ifindex);
        endpoint.and_then(|endpoint| endpoint.gso_max_segs)
    }

    fn path() -> PathBuf {
        Path::new(DIR).join("state.json")
    }

    /// The file that the next state is written to.
    fn next() -> PathBuf {
        Path::new(DIR).join("state.next")
    }

    /// Writes the state, completely or not at all. The space of the next one is reserved, so that a file system that fills
    /// up later does not stop the agent from answering.
    ///
    /// # Errors
    ///
    /// The directory cannot be written.
    pub fn write(&self) -> Result<(), Error> {
        let (path, next) = (Self::path(), Self::next());
        let open = || {
            let mut options = File::options();
            private(
                options.write(true).create(true).truncate(false),
                &next,
                0o640,
            )
        };
        let write = || {
            prepare()?;
            let json = serde_json::to_vec_pretty(self)?;
            let mut file = open()?;
            // A write that failed may have left more.
            if file.metadata()?.len() > 0 {
                file.set_len(0)?;
            }
            file.write_all(&json)?;
            fs::rename(&next, &path)?;
            // The space of the previous state has just become free.
            reserve(&open()?, &json);
            Ok(())
        };
        write().map_err(|error| Error::State {
            path: path.clone(),
            error,
        })
    }

    /// The state of a running agent, or of one that was killed.
    pub fn read() -> Option<Self> {
        serde_json::from_slice(&fs::read(Self::path()).ok()?).ok()
    }

    /// Removes the files of the state.
    pub fn remove() {
        let _ = fs::remove_file(Self::path());
        let _ = fs::remove_file(Self::next());
    }
}

/// Reserves the space of the next state. Fails silently: a file system may be unable to, or full.
fn reserve(file: &File, json: &[u8]) {
    let space = (2 * json.len()).next_multiple_of(RESERVED) as i64;
    let _ = fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, space);
}

/// Held while an agent or a rig runs, since both would use the same pins.
pub struct Lock {
    _file: Flock<File>,
}

impl Lock {
    fn path() -> PathBuf {
        Path::new(DIR).join("lock")
    }

    /// Takes the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Running`] if another process has it.
    pub fn take() -> Result<Self, Error> {
        let path = Self::path();
        let open = || {
            prepare()?;
            let mut options = File::options();
            // Any process that may open a file may lock it.
            private(
                options.create(true).truncate(false).read(true).write(true),
                &path,
                0o600,
            )
        };
        let failed = |error| Error::State {
            path: path.clone(),
            error,
        };
        loop {
            let file = open().map_err(failed)?;
            let mut file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(file) => file,
                Err((file, _)) => return Err(Error::Running { pid: owner(&file) }),
            };
            // `ecn clean` may just have removed the file: then the next process would lock another one of that name.
            let locked = file.metadata().map_err(failed)?;
            if fs::metadata(&path).is_ok_and(|named| named.ino() == locked.ino()) {
                let _ = file.set_len(0);
                let _ = writeln!(file, "{}", std::process::id());
                return Ok(Self { _file: file });
            }
        }
    }

    /// The process that holds the lock, if any, according to the kernel: the file may contain anything.
    pub fn holder() -> Option<String> {
        let file = File::open(Self::path()).ok()?;
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => None,
            Err((file, _)) => Some(owner(&file)),
        }
    }
}

/// The process that has a file locked (proc_locks(5)); `unknown` if it is not in this PID namespace.
fn owner(file: &File) -> String {
    let find = || {
        let of = file.metadata().ok()?;
        let device = of.dev();
        let id = format!("{:02x}:{:02x}:{}", major(device), minor(device), of.ino());
        let locks = fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, "FLOCK", _, "WRITE", pid, at, ..] = words.as_slice() else {
                return None;
            };
            let pid = pid.parse::<u32>().ok().filter(|pid| *pid > 0);
            pid.filter(|_| *at == id).map(|pid| pid.to_string())
        })
    };
    find().unwrap_or_else(|| "unknown".to_owned())
}

/// Writes as much as a state takes and removes it again.
///
/// # Errors
///
/// An agent could not write its state.
pub fn try_writing() -> io::Result<()> {
    let exists = Path::new(DIR).exists();
    let dir = if exists { DIR } else { "/run" };
    let path = Path::new(dir).join(format!("ecn-{}.tried", std::process::id()));
    let written = fs::write(&path, [b' '; RESERVED]);
    let _ = fs::remove_file(&path);
    written
}

/// The group whose members may read the state, if it exists.
const GROUP: &str = "ecn";

/// Creates the directory of lock and state, accessible to root and [`GROUP`] only.
fn prepare() -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o750).create(DIR) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let of = fs::metadata(DIR)?;
    if of.mode() & 0o7777 != 0o750 {
        fs::set_permissions(DIR, fs::Permissions::from_mode(0o750))?;
    }
    set_group(Path::new(DIR), of.gid())
}

/// Opens a file owned by root, which [`GROUP`] may read if the mode permits it.
fn private(options: &mut fs::OpenOptions, path: &Path, mode: u32) -> io::Result<File> {
    let file = options.mode(mode).open(path)?;
    let of = file.metadata()?;
    if of.mode() & 0o7777 != mode {
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    set_group(path, of.gid())?;
    Ok(file)
}

fn set_group(path: &Path, now: u32) -> io::Result<()> {
    let group = Group::from_name(GROUP).ok().flatten();
    match group.filter(|group| group.gid.as_raw() != now) {
        Some(group) => Ok(chown(path, None, Some(group.gid))?),
        None => Ok(()),
    }
}
