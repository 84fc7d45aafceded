//! What a running agent leaves for others to find: a lock, and names for the numbers in the maps.

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};
use serde::{Deserialize, Serialize};

use super::{Error, health::Warning};
use crate::{
    config::{Enforcement, Function, Hook, Marking, Queue},
    datapath::AttachedBy,
};

/// Directory of lock and state.
pub const DIR: &str = "/run/ecn";

/// What the agent manages, by the numbers that the maps use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Process.
    pub pid: u32,
    /// Directory of the pins.
    pub pin: PathBuf,
    /// Bridges by number.
    pub bridges: Vec<BridgeState>,
    /// Endpoints by number, beginning at 1.
    pub endpoints: Vec<EndpointState>,
    /// What does not work at present.
    #[serde(default)]
    pub warnings: Vec<Warning>,
}

/// A bridge.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BridgeState {
    /// Number.
    pub number: u32,
    /// Name of the device.
    pub name: String,
    /// Namespace as configured; empty: the agent's own.
    pub netns: String,
    /// Policy.
    pub marking: Marking,
    /// Which queues are watched.
    #[serde(default)]
    pub queue: Queue,
    /// Ports.
    pub ports: Vec<PortState>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortState {
    /// Slot.
    pub slot: u32,
    /// Name of the device.
    pub name: String,
    /// Interface number.
    pub ifindex: u32,
    /// What the program hangs from.
    #[serde(default)]
    pub attached: AttachedBy,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointState {
    /// Number.
    pub number: u32,
    /// Name of the device.
    pub device: String,
    /// Namespace as configured; empty: the agent's own.
    pub netns: String,
    /// Interface number.
    pub ifindex: u32,
    /// Response.
    pub response: Function,
    /// How rates are enforced: what was chosen, where it was left to us.
    pub enforcement: Enforcement,
    /// Why that.
    #[serde(default)]
    pub why: String,
    /// Where echoes are taken: what was chosen, where it was left to us.
    #[serde(default)]
    pub hook: Hook,
    /// The root qdisc is ours to remove.
    pub installed_qdisc: bool,
    /// Segments of a super-packet at most, to be given back; nothing if the agent changed nothing.
    #[serde(default)]
    pub gso_max_segs: Option<u32>,
}

impl State {
    /// What a device's super-packets are to be given back, by a running or killed agent.
    pub fn gso_max_segs(&self, netns: &str, ifindex: u32) -> Option<u32> {
        let endpoints = &mut self.endpoints.iter();
        let endpoint = endpoints.find(|e| e.netns == netns && e.ifindex == ifindex);
        endpoint.and_then(|endpoint| endpoint.gso_max_segs)
    }

    fn path() -> PathBuf {
        Path::new(DIR).join("state.json")
    }

    /// Writes the state, whole or not at all.
    ///
    /// # Errors
    ///
    /// The directory cannot be written.
    pub fn write(&self) -> Result<(), Error> {
        let path = Self::path();
        let write = || {
            fs::create_dir_all(DIR)?;
            let next = path.with_extension("next");
            fs::write(&next, serde_json::to_vec_pretty(self)?)?;
            fs::rename(&next, &path)
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

    /// Removes it.
    pub fn remove() {
        let _ = fs::remove_file(Self::path());
    }
}

/// Held while an agent or a rig runs: they would share pins.
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
            fs::create_dir_all(DIR)?;
            File::options()
                .create(true)
                .truncate(false)
                .read(true)
                .write(true)
                .open(&path)
        };
        let file = open().map_err(|error| Error::State {
            path: path.clone(),
            error,
        })?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut file) => {
                let _ = file.set_len(0);
                let _ = writeln!(file, "{}", std::process::id());
                Ok(Self { _file: file })
            }
            Err(_) => {
                let pid = fs::read_to_string(&path).unwrap_or_default();
                Err(Error::Running {
                    pid: pid.trim().to_owned(),
                })
            }
        }
    }

    /// The process that holds the lock, if one does.
    pub fn holder() -> Option<String> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(Self::path())
            .ok()?;
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_) => None,
            Err(_) => fs::read_to_string(Self::path())
                .ok()
                .map(|pid| pid.trim().to_owned()),
        }
    }
}
