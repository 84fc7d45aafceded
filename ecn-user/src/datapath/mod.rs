//! The kernel programs: loading, attaching, pinned maps.
//!
//! One object file, loaded several times: tcx programs cannot see their network namespace, so a copy is loaded per
//! namespace (switch role), and a small part per endpoint with its number as a constant. All copies share their maps
//! through pins, `<pin>/v<ABI>/maps/NAME`.

mod attach;
mod btf;
mod maps;
mod offsets;
mod sockets;
mod test_run;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    io,
    os::{fd::AsFd as _, unix::fs::DirBuilderExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, OnceLock, PoisonError},
    thread,
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{MapData, MapError, ProgramArray},
    programs::{
        BtfTracePoint, ProgramError, ProgramType, SchedClassifier, SockOps, TestRun as _,
        TestRunOptions, Xdp, links::FdLink,
    },
    sys::{BpfHelper, is_helper_supported},
};
use ecn_core::abi::{self, name};
use thiserror::Error;

use crate::sys::pod::{self, Raw};
pub use attach::{Attached, AttachedBy, ExpeditedRcu, Place, leftovers, remove_leftover};
pub use maps::{BridgeView, Maps, RateEvents, Sweeper, TraceEvents, adoptable};
pub use offsets::BTF;
pub use sockets::cgroup;
pub use test_run::{TestPacket, Verdict};

use crate::net::{self, NetNs};

/// The object file; empty in a build without the BPF toolchain.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/ecn.bpf.o"));

/// The part of it that is loaded per endpoint.
static ENDPOINT_OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/endpoint.bpf.o"));

/// Whether this build contains the programs.
pub fn built() -> bool {
    !OBJECT.is_empty()
}

/// The object file of the programs; empty in a build without them.
pub fn object() -> &'static [u8] {
    OBJECT
}

/// An error of the datapath.
#[derive(Debug, Error)]
pub enum Error {
    /// Built without the programs.
    #[error("this build holds no kernel programs: run `cargo xtask build-ebpf` and build it again")]
    NoObject,
    /// The kernel has no BTF.
    #[error("the kernel has no type information ({BTF}): it needs CONFIG_DEBUG_INFO_BTF=y")]
    NoBtf,
    /// BTF cannot be read.
    #[error("cannot read {BTF}: {0}")]
    Btf(String),
    /// BTF lacks a structure or member.
    #[error("this kernel's type information has no {0}: please report it with `uname -r`")]
    NoMember(String),
    /// Tracing programs cannot use spin locks.
    #[error(
        "this kernel gives tracing programs no spin lock (bpf_spin_lock), so what leaves the ports' own queues cannot \
         be counted (6.1 does, 5.10 does not): use queue = \"virtual\" with a queue_rate"
    )]
    NoTracingLock,
    /// The kernel has no tcx, and clsact is no substitute.
    #[error(
        "this kernel has no tcx (6.6 has), without which flows from behind taps cannot be limited"
    )]
    NoTcx,
    /// aya could not load the object.
    #[error("cannot load the kernel programs: {0}")]
    Load(#[from] aya::EbpfError),
    /// A program was refused.
    #[error("program {program}: {error}")]
    Program {
        /// Its name.
        program: String,
        /// Cause.
        error: Box<ProgramError>,
    },
    /// Attaching failed.
    #[error("cannot attach {program} to {device} (namespace {netns}): {error}")]
    Attach {
        /// Program.
        program: String,
        /// Device.
        device: String,
        /// Namespace.
        netns: String,
        /// Cause.
        error: Box<ProgramError>,
    },
    /// The driver does not accept XDP programs.
    #[error(
        "device {device} (namespace {netns}) does not take an XDP program in its driver: {why}; \
         use hook = \"tc\" or \"auto\""
    )]
    Xdp {
        /// Device.
        device: String,
        /// Namespace.
        netns: String,
        /// The driver's reason.
        why: String,
    },
    /// A map operation failed.
    #[error("map {name}: {error}")]
    Map {
        /// Map.
        name: String,
        /// Cause.
        error: Box<MapError>,
    },
    /// A map differs from what this version expects.
    #[error("map {name} at {path}: {what}; it is from another version of ecn, run `ecn clean`")]
    Layout {
        /// Map.
        name: String,
        /// Pin.
        path: PathBuf,
        /// Difference.
        what: String,
    },
    /// Maps cannot be pinned there.
    #[error(
        "cannot pin maps below {0}: it is not on a BPF file system: set `pin` in [agent] to a directory below /sys/fs/bpf"
    )]
    NotBpffs(PathBuf),
    /// No datapath is running.
    #[error("no datapath at {0}: start `ecn run` or `ecn rig run` first")]
    NotRunning(PathBuf),
    /// A file operation failed.
    #[error("cannot {what} {path}: {error}")]
    File {
        /// Operation.
        what: &'static str,
        /// Path.
        path: PathBuf,
        /// Cause.
        error: io::Error,
    },
    /// The log of a trace build cannot be read.
    #[cfg(feature = "trace")]
    #[error("cannot read the programs' log: {0}")]
    Log(String),
    /// Error of namespaces or netlink.
    #[error(transparent)]
    Net(#[from] net::Error),
}

impl Error {
    fn map(name: &str) -> impl FnOnce(MapError) -> Self {
        move |error| Self::Map {
            name: name.to_owned(),
            error: Box::new(error),
        }
    }

    fn program(program: &str) -> impl FnOnce(ProgramError) -> Self {
        move |error| Self::Program {
            program: program.to_owned(),
            error: Box::new(error),
        }
    }
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// Directory of this ABI version below the configured one.
pub fn pin_dir(pin: &Path) -> PathBuf {
    pin.join(format!("v{}", abi::ABI))
}

/// Sizes of the maps that depend on the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bridges.
    pub bridges: u32,
    /// Flows, sent and received ones each.
    pub flows: u32,
}

/// How a datapath begins and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Life {
    /// Take over what is pinned, and replace programs in place. It has to be [`adoptable`].
    pub adopt: bool,
    /// Pin links, so that programs outlive the process.
    pub keep: bool,
    /// Call [`Datapath::load_endpoints`] at once.
    pub endpoints: bool,
    /// Call [`Datapath::load_backward`] at once.
    pub backward: bool,
}

/// A program that the kernel has accepted.
#[derive(Clone, Debug)]
pub struct Verified {
    /// Name.
    pub program: String,
    /// Instructions that the verifier processed.
    pub instructions: u32,
}

/// The datapath of one agent: owns the pins and the tracing programs.
pub struct Datapath {
    pin: PathBuf,
    loader: Mutex<EbpfLoader<'static>>,
    offsets: abi::Offsets,
    watches_queues: bool,
    /// Programs that are loaded once.
    common: Ebpf,
    /// Links of the tracing programs, by name, while attached.
    tracing: Vec<(&'static str, FdLink)>,
    generation: u32,
    /// [`Datapath::load_endpoints`] has been called.
    has_endpoints: bool,
    /// [`Datapath::load_backward`] has been called.
    has_backward: bool,
    /// Directory in which links are pinned, if they are.
    links: Option<PathBuf>,
    /// Pins stay when this is dropped.
    is_left: bool,
    sockets: sockets::Sockets,
    #[cfg(feature = "trace")]
    log: Log,
}

/// A loaded copy of the tcx programs.
pub struct Copy {
    ebpf: Ebpf,
    links: Option<PathBuf>,
    /// For programs that write to the log.
    #[cfg(feature = "trace")]
    log: Option<Log>,
}

/// Programs that those of endpoints tail-call, with their indexes.
const ENDPOINT_TAILS: [(u32, &str); 4] = [
    (abi::TAIL_OUT, name::FLOW_OUT),
    (abi::TAIL_IN, name::FLOW_IN),
    (abi::TAIL_ACK, name::TCP_ACK),
    (abi::TAIL_FLOW_MESSAGE, name::FLOW_MESSAGE),
];

/// Likewise where messages of ports are not refused ([`abi::BACKWARD`]).
const BACKWARD_TAILS: [(u32, &str); 1] = [(abi::TAIL_REACTION, name::FLOW_REACTION)];

impl Datapath {
    /// Creates the pins, and loads the programs that are loaded once.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`]; then nothing stays behind.
    pub fn open(pin: &Path, sizes: Sizes) -> Result<Self> {
        Self::open_for(pin, sizes, Life::default())
    }

    /// [`Datapath::open`] for a given [`Life`]. If it takes over a datapath with attached tracing programs, those of
    /// both are attached until [`Datapath::take_over`], and those of the previous one count.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`]; then nothing stays behind, or the previous datapath is unchanged.
    pub fn open_for(pin: &Path, sizes: Sizes, life: Life) -> Result<Self> {
        if OBJECT.is_empty() {
            return Err(Error::NoObject);
        }
        let offsets = offsets::resolve()?;
        net::sys::mount_bpffs()?;
        if !net::sys::is_bpffs(pin) {
            return Err(Error::NotBpffs(pin.to_owned()));
        }
        if !life.adopt {
            remove_pins(pin)?;
        }
        Self::load(pin, sizes, life, offsets).inspect_err(|_| {
            if !life.adopt {
                let _ = remove_pins(pin);
            }
        })
    }

    fn load(pin: &Path, sizes: Sizes, life: Life, offsets: abi::Offsets) -> Result<Self> {
        let maps = pin_dir(pin).join("maps");
        create_private(&maps)?;
        let links = pin_dir(pin).join("links");
        let links = (life.keep || life.adopt).then_some(links);
        if let Some(links) = &links {
            create_private(links)?;
        }
        let generation = if life.adopt {
            Maps::open(pin)?.control()?.flags & abi::GENERATION ^ abi::GENERATION
        } else {
            0
        };
        let btf = aya::Btf::from_sys_fs().map_err(|error| Error::Btf(error.to_string()))?;
        let mut watches_queues = true;
        let mut loader = loader(&maps, sizes, &offsets, true);
        loader.override_global("GENERATION", number(generation), true);
        let mut common = match load_tracing(&mut loader, &offsets, &btf, true) {
            // Old kernel: the programs do not lock, and only count departures from flows' classes.
            Err(Error::NoTracingLock) => {
                watches_queues = false;
                loader.override_global("TRACING_LOCKS", number(0), true);
                let common = load_tracing(&mut loader, &offsets, &btf, false)?;
                loader.override_global("TRACING_LOCKS", number(1), true);
                common
            }
            watching => watching?,
        };
        let mut programs = vec![name::PORT_RESET, name::FLOW_CHANGE];
        if life.endpoints {
            programs.extend(ENDPOINT_TAILS.map(|(_, program)| program));
        }
        if life.backward {
            programs.extend(BACKWARD_TAILS.map(|(_, program)| program));
        }
        load_at_once(&mut common, &programs)?;
        // The verifier has accepted all of them: only now is anything replaced.
        if life.endpoints {
            tails(&mut common, &ENDPOINT_TAILS)?;
        }
        if life.backward {
            tails(&mut common, &BACKWARD_TAILS)?;
        } else if life.adopt {
            clear_tails(&mut common, &BACKWARD_TAILS)?;
        }
        let is_watching = |links: &PathBuf| links.join(name::DEPART).exists();
        let tracing = if life.adopt && links.as_ref().is_some_and(is_watching) {
            attach_tracing(&mut common)?
        } else {
            Vec::new()
        };
        Ok(Self {
            pin: pin.to_owned(),
            loader: Mutex::new(loader),
            offsets,
            watches_queues,
            #[cfg(feature = "trace")]
            log: start_log(&mut common)?,
            tracing,
            common,
            generation,
            has_endpoints: life.endpoints,
            has_backward: life.backward,
            links,
            is_left: false,
            sockets: None,
        })
    }

    /// [`abi::GENERATION`] of its tracing programs, or 0.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Detaches the tracing programs of the previous datapath: [`abi::Control::flags`] must select this one's by now.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn take_over(&mut self) -> Result<()> {
        let Some(links) = &self.links else {
            return Ok(());
        };
        for (program, link) in std::mem::take(&mut self.tracing) {
            let link = attach::pin_link(link, &links.join(program))?;
            self.tracing.push((program, link));
        }
        Ok(())
    }

    /// Attaches or detaches the tracing programs, which count departures from queues and drops there: they run for each
    /// packet that any device of the machine sends.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn watch(&mut self, wanted: bool) -> Result<()> {
        if wanted != self.tracing.is_empty() {
            return Ok(());
        }
        if wanted {
            self.tracing = attach_tracing(&mut self.common)?;
            return self.take_over();
        }
        for (program, _) in self.tracing.drain(..) {
            if let Some(links) = &self.links {
                let _ = std::fs::remove_file(links.join(program));
            }
        }
        Ok(())
    }

    /// Removes the links of programs that are no longer needed; `wanted`: those that still are, at devices.
    pub fn remove_other_links(&self, wanted: &BTreeSet<&Path>) {
        let Some(links) = &self.links else { return };
        let of_process = |name: &OsStr| {
            let sockets = self.sockets.is_some().then_some(name::SOCK);
            let tracing = self.tracing.iter().map(|(program, _)| *program);
            tracing.chain(sockets).any(|program| name == program)
        };
        for entry in std::fs::read_dir(links).into_iter().flatten().flatten() {
            let path = entry.path();
            if !wanted.contains(path.as_path()) && !of_process(&entry.file_name()) {
                tracing::debug!("{}: not wanted any more", path.display());
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Leaves pins in place when the process ends.
    pub fn leave(&mut self) {
        self.is_left = true;
    }

    /// Whether drops by queues are seen: `kfree_skb` has a reason since Linux 5.17. Without it, counters are corrected
    /// for drops by the queue's length.
    pub fn sees_drops(&self) -> bool {
        self.watches_queues && knows_drops(&self.offsets)
    }

    /// Whether departures from the ports' own queues are counted: tracing programs can use spin locks on 6.1, but not
    /// on 5.10. Without them, only virtual queues can be observed.
    pub fn watches_queues(&self) -> bool {
        self.watches_queues
    }

    /// The shared maps.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn maps(&self) -> Result<Maps> {
        Maps::open(&self.pin)
    }

    /// The programs for the tc hooks of an endpoint.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn endpoint(&self, endpoint: u32) -> Result<Copy> {
        let mut loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Copy {
            #[cfg(feature = "trace")]
            log: None,
            links: self.links.clone(),
            ebpf: load(&mut loader, ENDPOINT_OBJECT, 0, endpoint)?,
        })
    }

    /// A copy for a namespace's ports and wire ends (`endpoint` 0) or for an endpoint.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn copy(&self, netns: u32, endpoint: u32) -> Result<Copy> {
        let mut loader = self.loader.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg_attr(
            not(feature = "trace"),
            expect(unused_mut, reason = "the log takes a map")
        )]
        let mut ebpf = load(&mut loader, OBJECT, netns, endpoint)?;
        Ok(Copy {
            #[cfg(feature = "trace")]
            log: Some(start_log(&mut ebpf)?),
            links: self.links.clone(),
            ebpf,
        })
    }

    /// Loads the tail calls of endpoints' programs, unless already loaded: the verifier takes longer for them than for
    /// all others, and a bridge without endpoints does not need them.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn load_endpoints(&mut self) -> Result<()> {
        if !self.has_endpoints {
            tails(&mut self.common, &ENDPOINT_TAILS)?;
            self.has_endpoints = true;
        }
        Ok(())
    }

    /// Loads what reacts to messages of ports at endpoints ([`ecn_core::backward`]), unless already loaded.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn load_backward(&mut self) -> Result<()> {
        if !self.has_backward {
            tails(&mut self.common, &BACKWARD_TAILS)?;
            self.has_backward = true;
        }
        Ok(())
    }

    /// Loads the tail calls of ports with virtual queues: not before any exist, since old verifiers take long for them.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn virtual_queues(&mut self) -> Result<()> {
        tails(&mut self.common, &[(abi::TAIL_VIRTUAL, name::PORT_VIRTUAL)])
    }

    /// Loads the tail calls of ports that send messages ([`ecn_core::backward`]).
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn load_messages(&mut self) -> Result<()> {
        tails(
            &mut self.common,
            &[(abi::TAIL_PORT_MESSAGE, name::PORT_MESSAGE)],
        )
    }

    /// Loads the tail calls of ports that sample their queues ([`ecn_core::backward::Sampling`]).
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn load_sampling(&mut self) -> Result<()> {
        tails(&mut self.common, &[(abi::TAIL_SAMPLE, name::PORT_SAMPLE)])
    }

    /// Runs the reset of a port, see [`abi::PortReset`]. Returns whether it had any effect.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn reset_port(&mut self, reset: abi::PortReset) -> Result<bool> {
        let program = classifier(&mut self.common, name::PORT_RESET)?;
        let mut packet = [0u8; 64];
        packet[..size_of::<abi::PortReset>()].copy_from_slice(pod::bytes(&reset));
        let options = TestRunOptions {
            data_in: Some(&packet),
            ..TestRunOptions::new()
        };
        let result = program
            .test_run(options)
            .map_err(Error::program(name::PORT_RESET))?;
        Ok(result.return_value == 1)
    }

    /// Changes a flow, see [`abi::FlowChange`]. Returns its class afterwards; 0: it has none, or does not exist.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn change_flow(&mut self, change: abi::FlowChange) -> Result<u32> {
        let program = classifier(&mut self.common, name::FLOW_CHANGE)?;
        let mut packet = [0u8; 64];
        packet[..size_of::<abi::FlowChange>()].copy_from_slice(pod::bytes(&change));
        let options = TestRunOptions {
            data_in: Some(&packet),
            ..TestRunOptions::new()
        };
        let result = program
            .test_run(options)
            .map_err(Error::program(name::FLOW_CHANGE))?;
        Ok(result.return_value)
    }

    /// Loads every program that this kernel can use, and returns how many instructions the verifier processed (0: this
    /// kernel does not report it).
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn verify(&mut self) -> Result<Vec<Verified>> {
        let mut verified = Vec::new();
        self.virtual_queues()?;
        self.load_endpoints()?;
        self.load_backward()?;
        self.load_messages()?;
        self.load_sampling()?;
        let mut copy = self.copy(0, 0)?;
        let sees_drops = self.sees_drops();
        for program in name::PROGRAMS {
            if program == name::DROP && !sees_drops {
                continue;
            }
            let info = match program {
                name::DEPART | name::DROP => {
                    let p: &mut BtfTracePoint = get(&mut self.common, program)?;
                    p.info()
                }
                name::SOCK => {
                    let p: &mut SockOps = get(&mut copy.ebpf, program)?;
                    p.load().map_err(Error::program(program))?;
                    p.info()
                }
                name::PORT_RESET
                | name::FLOW_CHANGE
                | name::PORT_VIRTUAL
                | name::FLOW_OUT
                | name::FLOW_IN
                | name::FLOW_MESSAGE
                | name::PORT_MESSAGE
                | name::PORT_SAMPLE
                | name::FLOW_REACTION
                | name::TCP_ACK => classifier(&mut self.common, program)?.info(),
                name::ENDPOINT_XDP => {
                    let p = xdp(&mut copy.ebpf, program)?;
                    p.load().map_err(Error::program(program))?;
                    p.info()
                }
                _ => {
                    let p = classifier(&mut copy.ebpf, program)?;
                    p.load().map_err(Error::program(program))?;
                    p.info()
                }
            }
            .map_err(Error::program(program))?;
            verified.push(Verified {
                program: program.to_owned(),
                instructions: info.verified_instruction_count().unwrap_or(0),
            });
        }
        Ok(verified)
    }
}

#[cfg(feature = "trace")]
type Log = aya_log::EbpfLogger<&'static dyn log::Log>;

/// Forwards the log of a trace build's programs to the agent's own log.
#[cfg(feature = "trace")]
fn start_log(ebpf: &mut Ebpf) -> Result<Log> {
    aya_log::EbpfLogger::init(ebpf).map_err(|error| Error::Log(error.to_string()))
}

#[cfg(feature = "trace")]
impl Datapath {
    /// Forwards the programs' log messages.
    pub fn flush_log(&mut self) {
        self.log.flush();
    }
}

#[cfg(feature = "trace")]
impl Copy {
    /// Forwards the programs' log messages.
    pub fn flush_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        if !self.is_left {
            let _ = remove_pins(&self.pin);
        }
    }
}

impl Copy {
    /// Attaches a program to a device, behind existing ones: by tcx, or to clsact on kernels without tcx.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn attach(&mut self, ns: &NetNs, device: &str, program: &str) -> Result<Attached> {
        self.attach_to(None, Place::Last, (ns, device), program)
    }

    /// [`Copy::attach`] at a given place.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn attach_at(
        &mut self,
        place: Place,
        ns: &NetNs,
        device: &str,
        program: &str,
    ) -> Result<Attached> {
        self.attach_to(None, place, (ns, device), program)
    }

    /// [`Copy::attach`] by a given hook only.
    ///
    /// # Errors
    ///
    /// See [`enum@Error`].
    pub fn attach_by(
        &mut self,
        hook: Option<AttachedBy>,
        ns: &NetNs,
        device: &str,
        program: &str,
    ) -> Result<Attached> {
        self.attach_to(hook, Place::Last, (ns, device), program)
    }

    fn attach_to(
        &mut self,
        hook: Option<AttachedBy>,
        place: Place,
        device: (&NetNs, &str),
        program: &str,
    ) -> Result<Attached> {
        let classifier = classifier(&mut self.ebpf, program)?;
        if classifier.fd().is_err() {
            classifier.load().map_err(Error::program(program))?;
        }
        let links = self.links.as_deref();
        attach::attach(classifier, device, program, place, hook, links)
    }

    /// Attaches the XDP program to a device, in its driver: by a link, or by netlink where the kernel has no such
    /// links. For multi-buffer frames the driver has to know that the program supports them.
    ///
    /// # Errors
    ///
    /// [`Error::Xdp`], with the driver's reason.
    pub fn attach_xdp(&mut self, ns: &NetNs, device: &str) -> Result<Attached> {
        let refuse = |error: &dyn std::error::Error, reason: Option<String>| Error::Xdp {
            device: device.to_owned(),
            netns: ns.name().to_owned(),
            why: reason.unwrap_or_else(|| chain_of(error)),
        };
        let mut name = name::ENDPOINT_XDP_FRAGS;
        if xdp(&mut self.ebpf, name)?.load().is_err() {
            name = name::ENDPOINT_XDP;
            let plain = xdp(&mut self.ebpf, name)?;
            if plain.fd().is_err() {
                plain.load().map_err(Error::program(name))?;
            }
        }
        let program = xdp(&mut self.ebpf, name)?;
        match attach::attach_xdp(program, ns, device, self.links.as_deref())? {
            Ok(attached) => Ok(attached),
            Err(error) => {
                // A link's refusal is only a number; netlink's includes a reason.
                let program = xdp(&mut self.ebpf, name)?;
                let nl = net::Netlink::open(ns)?;
                let fd = program.fd().map_err(Error::program(name))?;
                let link = nl.link(device).ok();
                let reason = link.and_then(|link| nl.xdp_refusal(link.index, fd.as_fd()));
                Err(refuse(&error, reason))
            }
        }
    }
}

/// Recognizes refusals by the verifier whose meaning is known.
fn tracing_error(program: &str) -> impl FnOnce(ProgramError) -> Error {
    move |error| match &error {
        ProgramError::LoadError { verifier_log, .. }
            if verifier_log
                .to_string()
                .contains("unknown func bpf_spin_lock") =>
        {
            Error::NoTracingLock
        }
        _ => Error::program(program)(error),
    }
}

fn knows_drops(offsets: &abi::Offsets) -> bool {
    offsets.drop_reasons != [0; 2]
}

fn get<'a, P>(ebpf: &'a mut Ebpf, program: &str) -> Result<&'a mut P>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    ebpf.program_mut(program)
        .ok_or(Error::NoObject)?
        .try_into()
        .map_err(Error::program(program))
}

/// The message of an error, followed by its causes.
fn chain_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn xdp<'a>(ebpf: &'a mut Ebpf, program: &str) -> Result<&'a mut Xdp> {
    get(ebpf, program)
}

fn classifier<'a>(ebpf: &'a mut Ebpf, program: &str) -> Result<&'a mut SchedClassifier> {
    get(ebpf, program)
}

/// Loads those of these programs that are not loaded yet, each on its own thread: the verifier takes up to half a
/// second for one.
fn load_at_once(ebpf: &mut Ebpf, programs: &[&str]) -> Result<()> {
    thread::scope(|scope| {
        let loading: Vec<_> = ebpf
            .programs_mut()
            .filter(|(name, _)| programs.contains(name))
            .map(|(name, program)| {
                scope.spawn(move || {
                    let classifier: &mut SchedClassifier =
                        program.try_into().map_err(Error::program(name))?;
                    if classifier.fd().is_err() {
                        classifier.load().map_err(Error::program(name))?;
                    }
                    Ok(())
                })
            })
            .collect();
        loading.into_iter().try_for_each(|loaded| {
            loaded
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

/// Loads tail-called programs that are not loaded yet, and stores them at their indexes.
fn tails(common: &mut Ebpf, programs: &[(u32, &str)]) -> Result<()> {
    let names: Vec<_> = programs.iter().map(|(_, program)| *program).collect();
    load_at_once(common, &names)?;
    for &(place, program) in programs {
        let fd = classifier(common, program)?
            .fd()
            .and_then(|fd| Ok(fd.try_clone()?))
            .map_err(Error::program(program))?;
        tail_array(common)?
            .set(place, &fd, 0)
            .map_err(Error::map(name::TAIL))?;
    }
    Ok(())
}

/// Removes tail calls that a previous datapath has left.
fn clear_tails(common: &mut Ebpf, programs: &[(u32, &str)]) -> Result<()> {
    let mut array = tail_array(common)?;
    for (place, _) in programs {
        match array.clear_index(place) {
            Err(MapError::SyscallError(error))
                if error.io_error.kind() == io::ErrorKind::NotFound => {}
            cleared => cleared.map_err(Error::map(name::TAIL))?,
        }
    }
    Ok(())
}

fn tail_array(common: &mut Ebpf) -> Result<ProgramArray<&mut MapData>> {
    let map = common.map_mut(name::TAIL).ok_or(Error::NoObject)?;
    map.try_into().map_err(Error::map(name::TAIL))
}

/// The tracing programs and their tracepoints.
const TRACING: [(&str, &str); 2] = [
    (name::DEPART, "net_dev_start_xmit"),
    (name::DROP, "kfree_skb"),
];

/// Loads the object and its tracing programs.
///
/// # Errors
///
/// [`Error::NoTracingLock`] if they have to lock but cannot.
fn load_tracing(
    loader: &mut EbpfLoader<'static>,
    offsets: &abi::Offsets,
    btf: &aya::Btf,
    locks: bool,
) -> Result<Ebpf> {
    let mut common = load(loader, OBJECT, 0, 0)?;
    for (program, hook) in TRACING {
        if program == name::DROP && !(locks && knows_drops(offsets)) {
            continue;
        }
        let tracing: &mut BtfTracePoint = get(&mut common, program)?;
        tracing.load(hook, btf).map_err(tracing_error(program))?;
    }
    Ok(common)
}

/// Attaches the tracing programs that are loaded.
fn attach_tracing(common: &mut Ebpf) -> Result<Vec<(&'static str, FdLink)>> {
    let mut links = Vec::new();
    for (program, _) in TRACING {
        let tracing: &mut BtfTracePoint = get(common, program)?;
        if tracing.fd().is_err() {
            continue;
        }
        let id = tracing.attach().map_err(Error::program(program))?;
        let link = tracing.take_link(id).map_err(Error::program(program))?;
        links.push((program, link.into()));
    }
    Ok(links)
}

/// A loader of the object file. It is reused: creating one reads the kernel's type information, 5 MB in 18 ms.
fn loader(
    maps: &Path,
    sizes: Sizes,
    offsets: &abi::Offsets,
    tracing_locks: bool,
) -> EbpfLoader<'static> {
    static OFFSETS: OnceLock<Raw<abi::Offsets>> = OnceLock::new();
    // `tstamp_type` was added with the helper that sets it.
    let stamp_types = has_helper(BpfHelper::BPF_FUNC_skb_set_tstamp);
    let coarse_time = has_helper(BpfHelper::BPF_FUNC_ktime_get_coarse_ns);
    let mut loader = EbpfLoader::new();
    loader
        .map_max_entries(name::BRIDGE, sizes.bridges.max(1))
        .map_max_entries(name::MARKING, sizes.bridges.max(1))
        .map_max_entries(name::VIRTUAL, sizes.bridges.max(1))
        .map_max_entries(name::BACKWARD, sizes.bridges.max(1))
        .map_max_entries(name::POINT, sizes.bridges.max(1) * abi::PORTS as u32)
        .map_max_entries(name::FLOW, sizes.flows)
        .map_max_entries(name::RECEIVER, sizes.flows)
        .map_max_entries(name::SOCKET, sizes.flows)
        .override_global("STAMP_TYPES", number(stamp_types.into()), true)
        .override_global("COARSE_TIME", number(coarse_time.into()), true)
        .override_global("TRACING_LOCKS", number(tracing_locks.into()), true)
        // Constant for the lifetime of a kernel.
        .override_global("OFFSETS", OFFSETS.get_or_init(|| Raw(*offsets)), true);
    for shared in name::SHARED {
        loader.map_pin_path(shared, maps.join(shared));
    }
    loader
}

fn has_helper(helper: BpfHelper) -> bool {
    is_helper_supported(ProgramType::SchedClassifier, helper).unwrap_or(false)
}

/// A number that lives as long as a loader; each is allocated once.
fn number(n: u32) -> &'static u32 {
    static NUMBERS: Mutex<BTreeMap<u32, &'static u32>> = Mutex::new(BTreeMap::new());
    let mut numbers = NUMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    numbers.entry(n).or_insert_with(|| Box::leak(Box::new(n)))
}

fn load(
    loader: &mut EbpfLoader<'static>,
    object: &[u8],
    netns: u32,
    endpoint: u32,
) -> Result<Ebpf> {
    loader
        .override_global("NETNS", number(netns), true)
        .override_global("ENDPOINT", number(endpoint), true);
    Ok(loader.load(object)?)
}

/// Creates a directory of pins and its parents, accessible to root only.
fn create_private(path: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    let created = builder.recursive(true).mode(0o700).create(path);
    created.map_err(|error| Error::File {
        what: "create",
        path: path.to_owned(),
        error,
    })
}

/// Removes what agents of any version have pinned below a directory. Pins of others stay, and the directory with them.
///
/// # Errors
///
/// See [`Error::File`].
pub fn remove_pins(pin: &Path) -> Result<()> {
    let failed = |error| Error::File {
        what: "remove pins below",
        path: pin.to_owned(),
        error,
    };
    let entries = match std::fs::read_dir(pin) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        if is_version(&entry.file_name()) {
            std::fs::remove_dir_all(entry.path()).map_err(failed)?;
        }
    }
    // Fails if it is not empty.
    let _ = std::fs::remove_dir(pin);
    Ok(())
}

/// Whether this is the name of a [`pin_dir`], of any version.
pub fn is_version(name: &OsStr) -> bool {
    let number = name.to_str().and_then(|name| name.strip_prefix('v'));
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}
