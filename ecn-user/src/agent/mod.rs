//! The agent: attaches the programs, follows ports, changes class rates, cleans up.
//!
//! The programs mark, echo and respond, [`enforce`] changes class rates; this module follows devices and configuration.

mod bridges;
mod discover;
mod endpoints;
pub mod enforce;
mod eviction;
mod follow;
pub mod health;
mod kept;
pub mod leftovers;
mod metrics;
pub mod root;
mod shaper;
pub mod state;
mod target;
mod watch;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use ecn_core::{abi, backward, echo, flow, marking, reaction, response};
use ecn_sim::notifications;
use ecn_units::Rate;
use sd_notify::NotifyState;
use tokio::{signal::unix::SignalKind, task::JoinHandle};

use crate::{
    config::{self, Config, Enforcement},
    datapath::{self, Copy, Datapath, Life, Maps, Sizes, Sweeper},
    net::{self, htb::EndpointHtb},
    sys::names::Names,
};
use bridges::Bridge;
use discover::{Space, Spec};
pub use discover::{Survey, survey};
use endpoints::Endpoint;
pub use endpoints::check_endpoint;
use enforce::{Enforcer, Shared, lock};
use eviction::Ages;
use follow::{Failed, Numbers};
use kept::Kept;
use state::{Lock, State, Waiting, WaitingFor};
use watch::Watch;

/// An error of the agent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another agent or rig is running.
    #[error("another ecn agent or rig is running (process {pid}): stop it first")]
    Running {
        /// Its process ID.
        pid: String,
    },
    /// The agent's monotonic clock is not the kernel's.
    #[error(
        "the monotonic clock of this time namespace is not the kernel's, by which rate limits lapse: \
         start ecn outside of it (time_namespaces(7))"
    )]
    TimeNamespace,
    /// The lock or the state file cannot be used.
    #[error("cannot use {path}: {error}")]
    State {
        /// File.
        path: PathBuf,
        /// Cause.
        error: io::Error,
    },
    /// The configuration names something that does not exist or is impossible.
    #[error("{0}")]
    Configuration(String),
    /// Flows from behind a tap cannot be limited.
    #[error(
        "device {tap} is a tap and a port of a bridge, where rates are enforced at an ifb: {error} (CONFIG_IFB, module ifb)"
    )]
    NoIfb {
        /// The tap.
        tap: String,
        /// The kernel's error.
        error: net::Error,
    },
    /// Error of programs or maps.
    #[error(transparent)]
    Datapath(#[from] datapath::Error),
    /// Error of namespaces or netlink.
    #[error(transparent)]
    Net(#[from] net::Error),
    /// The address of `[metrics]` cannot be used.
    #[error("cannot listen on {address} for metrics: {error}; set another `listen` in [metrics]")]
    Listen {
        /// Address and port.
        address: SocketAddr,
        /// Cause.
        error: io::Error,
    },
    /// Error of the operating system.
    #[error("cannot {what}: {error}")]
    Io {
        /// Operation.
        what: &'static str,
        /// Cause.
        error: io::Error,
    },
}

/// Result of the agent.
pub type Result<T> = std::result::Result<T, Error>;

/// Settings beyond the configuration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Measure the time from a mark to the new rate in force.
    pub trace_latency: bool,
    /// Write a trace event for everything that happens at a port.
    pub trace_ports: bool,
    /// Count every flow at its receiver, controlled or not.
    pub observe: bool,
    /// Overrides `keep` of the configuration.
    pub keep: Option<bool>,
}

impl Options {
    /// Overrides the configuration.
    fn apply(self, config: &mut Config) {
        if let Some(keep) = self.keep {
            config.agent.keep = keep;
        }
    }
}

/// All state of the agent. Dropping it removes everything that was installed, unless `leaves` is set.
struct Inner {
    config: Config,
    options: Options,
    // Dropped in this order: attached programs before the maps that they use.
    bridges: BTreeMap<u32, Bridge>,
    endpoints: BTreeMap<u32, Endpoint>,
    /// Open namespaces, in which configured devices exist or may appear.
    spaces: BTreeMap<Spec, Arc<Space>>,
    numbers: Numbers,
    /// Namespaces that exist but cannot be entered.
    closed: BTreeMap<Spec, net::Error>,
    /// Bridges and endpoints whose setup failed.
    failed: BTreeMap<(WaitingFor, (Spec, String)), Failed>,
    waiting: Vec<Waiting>,
    /// The configuration file; see [`State`].
    path: Option<PathBuf>,
    reloads: u32,
    reload_error: Option<String>,
    /// The last write of the state failed; it is retried.
    unwritten: bool,
    log_lines_lost: u64,
    /// Programs for the ports in a namespace, by its inode number.
    copies: HashMap<u32, Copy>,
    /// False once the kernel has refused what limiting flows at taps requires.
    can_limit_taps: bool,
    /// Programs of single endpoints, for their logs.
    #[cfg(feature = "trace")]
    endpoint_copies: HashMap<u32, Copy>,
    sweeper: Sweeper,
    /// For the tables of sent and of received flows.
    ages: [Ages; 2],
    watch: Watch,
    /// When the qdiscs of all namespaces were last listed.
    qdiscs_listed: Instant,
    maps: Maps,
    datapath: Datapath,
    shared: Arc<Shared>,
    /// What a previous agent left, while this one starts.
    kept: Option<Kept>,
    /// When dropped, leave everything in place.
    leaves: bool,
}

/// The agent's state, shared with its tasks. Taken out when the agent stops, so that a task that is still running keeps
/// no program loaded.
type SharedInner = Arc<Mutex<Option<Inner>>>;

/// A running agent. Needs a tokio runtime; stops when dropped.
pub struct Agent {
    inner: SharedInner,
    shared: Arc<Shared>,
    tasks: Vec<JoinHandle<()>>,
    enforcer: Option<Enforcer>,
}

/// Interval for link events and pinned rates.
const TICK: Duration = Duration::from_millis(100);
/// Interval for stale counters and health checks.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);

/// The kernel side of a marking policy.
pub fn marking_policy(bridge: &config::Bridge, ports: u32) -> marking::Policy {
    marking::Policy {
        marking: bridge.marking as u32,
        mark_at: bridge.mark_at as u32,
        buffer: bridge.buffer,
        threshold: bridge.threshold,
        ports,
        shares: bridge.shares as u32,
        drop_threshold: bridge.drops_above().unwrap_or(0),
        _pad: 0,
    }
}

/// The kernel side of a bridge's backward messages; `mac`: the bridge's address.
fn backward_policy(
    bridge: &config::Bridge,
    config: &Config,
    mac: Option<[u8; 6]>,
) -> Result<backward::Policy> {
    let [a, b, c, d, e, f] = mac.unwrap_or_default();
    let keys = echo_keys(&config.echo);
    let kind = bridge.marking.notifications().unwrap_or_default();
    // The automatic values of a port assume full packets, at any rate up to 5 Gbit/s.
    let line = bridge.queue_rate.unwrap_or(config::PORT_RATE);
    let schemes = (&config.bcn.0, &config.qcn.0);
    let sampling = notifications::sampling(kind, schemes, line, config::FRAME_BYTES)
        .map_err(|error| Error::Configuration(format!("[{}]: {error}", bridge.marking)))?;
    let severe = bridge.severe_threshold.unwrap_or(0);
    Ok(backward::Policy {
        sampling: backward::Sampling {
            severe_bytes: severe * config::FRAME_BYTES,
            ..sampling
        },
        protocol: config.echo.protocol.into(),
        bridge: u64::from_be_bytes([a, b, c, d, e, f, 0, 0]),
        signs: u32::from(keys.signs()),
        key: keys.keys[0],
        ..backward::Policy::new(bridge.feedback(), bridge.messages_per_s)
    })
}

/// The kernel side of a response.
///
/// # Errors
///
/// The parameters are out of range.
pub fn response_policy(config: &config::Response) -> Result<response::Policy> {
    // Six decimals are exact, which suffices for what users write.
    let m = response::Ratio::new((config.m * 1e6).round() as u64, 1_000_000);
    let policy = response::Policy::new(config.function, config.rmin.into(), m)
        .map_err(|error| Error::Configuration(format!("[response]: {error}")))?;
    Ok(policy.with_rounds(config.round))
}

/// The keys of an echo policy.
fn echo_keys(config: &config::Echo) -> echo::Policy {
    let mut policy = echo::Policy::default();
    if let Some(key) = config.key {
        policy.auth = echo::SIGN;
        policy.keys[0] = key.words();
    }
    match config.also_accept {
        Some(config::AlsoAccept::Key(key)) => {
            policy.auth |= echo::ACCEPT_SECOND;
            policy.keys[1] = key.words();
        }
        Some(config::AlsoAccept::None) => policy.auth |= echo::ACCEPT_UNSIGNED,
        None => {}
    }
    policy
}

/// The kernel side of an endpoint's policy.
fn endpoint_policy(
    config: &Config,
    options: Options,
    endpoint: &config::Endpoint,
    choice: &root::Choice,
    htb: &EndpointHtb,
) -> Result<abi::Endpoint> {
    let mut flags = 0;
    if config.response.function != config::Function::None {
        flags |= match choice.enforcement {
            Enforcement::Htb => abi::CONTROL_FLOWS,
            Enforcement::Edt => abi::CONTROL_FLOWS | abi::EDT,
            Enforcement::Pacing => abi::CONTROL_FLOWS | abi::PACE,
            Enforcement::Auto | Enforcement::None => 0,
        };
    }
    let feedback = endpoint.feedback.unwrap_or_else(|| config.feedback());
    if config.response.function != config::Function::None {
        flags |= if feedback.is_echoed() { abi::ECHO } else { 0 };
        flags |= if feedback.is_backward() {
            abi::BACKWARD
        } else {
            0
        };
    }
    if options.observe {
        flags |= abi::OBSERVE;
    }
    if endpoint.tcp == config::Tcp::Control {
        flags |= abi::CONTROL_TCP;
    }
    Ok(abi::Endpoint {
        flags,
        shaper: 0,
        link_bytes_per_s: htb.link_bytes_per_s,
        queue_bytes: choice.queue_bytes,
        response: response::Policy {
            packet_ns: response::packet_ns(htb.frame_bytes, htb.link_bytes_per_s),
            ..response_policy(&config.response)?
        },
        echo: echo::Policy {
            every_ns: match config.echo.every {
                config::Every::Packet => 0,
                config::Every::Time(t) => t.as_nanos(),
            },
            protocol: config.echo.protocol.into(),
            ..echo_keys(&config.echo)
        },
        reaction: reaction_policy(config, htb)?,
        limit_by: match endpoint.limit_by {
            config::LimitBy::Flow => flow::KeyMask::default(),
            config::LimitBy::Addresses => flow::KeyMask::addresses(true, true),
            config::LimitBy::Destination => flow::KeyMask::addresses(false, true),
            config::LimitBy::Device => flow::KeyMask::addresses(false, false),
        },
        _pad: 0,
    })
}

/// How flows of an endpoint react to notifications.
fn reaction_policy(config: &Config, htb: &EndpointHtb) -> Result<reaction::Policy> {
    let line = Rate::from_bytes_per_s(htb.link_bytes_per_s).unwrap_or(Rate::MAX);
    notifications::reaction((&config.bcn.0, &config.qcn.0), line, htb.frame_bytes)
        .map_err(|error| Error::Configuration(format!("[bcn] or [qcn]: {error}")))
}

impl Inner {
    /// Starts everything. When taking over, the thread that changes rates starts first, as limits must remain in force.
    fn start(config: Config, options: Options, shared: Arc<Shared>) -> Result<(Self, Enforcer)> {
        response_policy(&config.response)?;
        let pin = config.agent.pin.clone();
        let sizes = Sizes {
            bridges: follow::room_for_bridges(&config),
            // The short flows of each endpoint share one more entry.
            flows: config.flow.max + follow::room_for_endpoints(&config),
        };
        let life = |adopt| Life {
            adopt,
            keep: config.agent.keep,
            endpoints: !config.endpoints.is_empty()
                || config.bridges.iter().any(|bridge| bridge.peers),
            backward: config.is_backward(),
        };
        let (maps, datapath, kept, enforcer) = match kept::find(&config) {
            Some((state, mut maps)) => {
                let (kept, enforcer) = Kept::resume(state, &mut maps, &shared)?;
                let mut datapath = Datapath::open_for(&pin, sizes, life(true))?;
                shared.switch_to(datapath.generation(), &maps)?;
                datapath.take_over()?;
                (maps, datapath, Some(kept), enforcer)
            }
            None => {
                let mut datapath = Datapath::open_for(&pin, sizes, life(false))?;
                datapath.take_over()?;
                let mut maps = datapath.maps()?;
                maps.set_quotas(config.flow.max.into())?;
                let enforcer = Enforcer::start(Arc::clone(&shared), &pin)?;
                (maps, datapath, None, enforcer)
            }
        };
        let numbers = Numbers::new(
            &config,
            maps.bridges()?,
            kept.as_ref().map(|kept| &kept.state),
        );
        let mut inner = Self {
            numbers,
            config,
            options,
            bridges: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            spaces: BTreeMap::new(),
            closed: BTreeMap::new(),
            failed: BTreeMap::new(),
            waiting: Vec::new(),
            path: None,
            reloads: 0,
            reload_error: None,
            unwritten: false,
            log_lines_lost: 0,
            copies: HashMap::new(),
            can_limit_taps: true,
            #[cfg(feature = "trace")]
            endpoint_copies: HashMap::new(),
            sweeper: Sweeper::default(),
            ages: Default::default(),
            watch: Watch::default(),
            qdiscs_listed: Instant::now(),
            maps,
            datapath,
            shared,
            // A start that fails leaves what the previous agent kept.
            leaves: kept.is_some(),
            kept,
        };
        {
            let _expedited = datapath::ExpeditedRcu::begin();
            inner.follow();
        }
        inner.first_failure()?;
        inner.settle()?;
        inner.watch_queues()?;
        inner.apply_pins()?;
        inner.shared.offer_classes(&mut inner.maps);
        inner.write_state()?;
        inner.leaves = inner.config.agent.keep;
        inner.shared.has_started();
        Ok((inner, enforcer))
    }

    fn state(&self) -> State {
        let (config, shared) = (&self.config, &self.shared);
        State {
            pid: std::process::id(),
            keep: config.agent.keep,
            pin: config.agent.pin.clone(),
            config: self.path.clone(),
            reloads: self.reloads,
            reload_error: self.reload_error.clone(),
            bridges: self.bridges.values().map(Bridge::state).collect(),
            endpoints: self
                .endpoints
                .values()
                .map(|e| e.state(config, shared))
                .collect(),
            warnings: self.watch.warnings(),
            waiting: self.waiting.clone(),
            log_lines_lost: self.log_lines_lost,
        }
    }

    fn write_state(&mut self) -> Result<()> {
        let written = self.state().write();
        self.unwritten = written.is_err();
        written
    }

    /// [`Inner::write_state`] for callers that can continue: errors are logged once, and the write is retried every
    /// second.
    fn save_state(&mut self) {
        let was_unwritten = self.unwritten;
        if let Err(error) = self.write_state()
            && !was_unwritten
        {
            tracing::warn!("{error}");
        }
    }

    /// Follows devices and ports, and applies rates set by users.
    fn tick(&mut self) -> Result<()> {
        self.shared.is_alive();
        if self.shared.is_enforcing() {
            notify_systemd(NotifyState::Watchdog);
        }
        let mut changed = self.follow();
        changed |= self.shared.roots_changed.swap(false, Ordering::Relaxed);
        if changed {
            self.save_state();
        }
        #[cfg(feature = "trace")]
        {
            self.datapath.flush_log();
            self.copies.values_mut().for_each(Copy::flush_log);
            let endpoints = &self.endpoints;
            self.endpoint_copies
                .retain(|number, _| endpoints.contains_key(number));
            self.endpoint_copies.values_mut().for_each(Copy::flush_log);
        }
        self.watch_queues()?;
        self.move_unfit_to_short_class()?;
        self.sweep()?;
        self.apply_pins()
    }

    /// Enables the counting of departures while packets can wait, in a port's queue or in a flow's class.
    fn watch_queues(&mut self) -> Result<()> {
        let wanted = self.bridges.values().any(Bridge::is_watched) || self.shared.has_limits();
        Ok(self.datapath.watch(wanted)?)
    }
}

/// The copy of the programs for a namespace's ports, loaded if necessary.
fn copy<'a>(
    copies: &'a mut HashMap<u32, Copy>,
    datapath: &Datapath,
    netns: u32,
) -> datapath::Result<&'a mut Copy> {
    use std::collections::hash_map::Entry;
    match copies.entry(netns) {
        Entry::Occupied(entry) => Ok(entry.into_mut()),
        Entry::Vacant(entry) => Ok(entry.insert(datapath.copy(netns, 0)?)),
    }
}

impl Agent {
    /// Starts everything that the configuration names. The caller holds the lock, since a rig runs several agents in
    /// succession.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nothing is left behind then.
    pub fn start(mut config: Config, options: Options, _lock: &Lock) -> Result<Self> {
        if !enforce::has_kernels_clock() {
            return Err(Error::TimeNamespace);
        }
        options.apply(&mut config);
        let listener = config.metrics.listen.map(metrics::listen).transpose()?;
        let mut flags = 0;
        if options.trace_latency {
            flags |= abi::TRACE_LATENCY;
        }
        if options.trace_ports {
            flags |= abi::TRACE_PORTS;
        }
        let shared = Arc::new(Shared::new(flags));
        shared.set_timing(&config);
        let (inner, enforcer) = Inner::start(config, options, Arc::clone(&shared))?;
        let inner = Arc::new(Mutex::new(Some(inner)));
        let sweep = every(SWEEP_PERIOD, Arc::clone(&inner), Inner::every_second);
        let mut tasks = vec![
            tokio::spawn(every(TICK, Arc::clone(&inner), Inner::tick)),
            tokio::spawn(sweep),
            tokio::spawn(watch_names(Arc::clone(&inner))),
        ];
        if let Some(listener) = listener {
            let served = lock(&inner)
                .as_ref()
                .map(|of| metrics::serve(listener, &inner, of));
            if let Some(served) = served {
                tasks.push(tokio::spawn(served?));
            }
        }
        Ok(Self {
            inner,
            shared,
            tasks,
            enforcer: Some(enforcer),
        })
    }

    /// Opens the shared maps again.
    ///
    /// # Errors
    ///
    /// See [`datapath::Error`].
    pub fn maps(&self) -> Result<Maps> {
        Ok(self.with(|inner| inner.datapath.maps())?)
    }

    /// Counters and measurements of [`enforce`].
    pub fn enforcement(&self) -> &Shared {
        &self.shared
    }

    /// Names for the numbers in the maps, and current warnings.
    pub fn state(&self) -> State {
        self.with(|inner| inner.state())
    }

    /// Changes a bridge's policy without interrupting traffic.
    ///
    /// # Errors
    ///
    /// See [`Error`].
    pub fn set_marking(
        &self,
        number: usize,
        change: impl FnOnce(&mut config::Bridge),
    ) -> Result<()> {
        self.with(|inner| {
            let mut config = inner.config.clone();
            let Some(bridge) = config.bridges.get_mut(number) else {
                return Err(Error::Configuration(format!(
                    "there is no bridge number {number}"
                )));
            };
            change(bridge);
            inner.reload(config)?;
            inner.write_state()
        })
    }

    /// Applies a new configuration without interrupting traffic, completely or not at all.
    ///
    /// # Errors
    ///
    /// See [`Error`]; the previous configuration stays in force then.
    pub fn reload(&self, new: Config) -> Result<()> {
        self.with(|inner| {
            inner.reload(new)?;
            inner.write_state()
        })
    }

    /// Reads the configuration file again and applies it; the state records the result.
    fn reload_from(&self, path: &Path) -> std::result::Result<(), String> {
        let read = Config::load_file(path).map_err(|error| error.to_string());
        self.with(|inner| {
            let done = read.and_then(|mut new| {
                inner.options.apply(&mut new);
                inner.reload(new).map_err(|error| error.to_string())
            });
            inner.reloads += 1;
            inner.reload_error = done.clone().err();
            inner.save_state();
            done
        })
    }

    /// Loads every program and returns how many instructions the verifier processed.
    ///
    /// # Errors
    ///
    /// See [`datapath::Error`].
    pub fn verify(&self) -> Result<Vec<datapath::Verified>> {
        Ok(self.with(|inner| inner.datapath.verify())?)
    }

    fn with<T>(&self, work: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = lock(&self.inner);
        work(
            inner
                .as_mut()
                .expect("taken out only when the agent is dropped"),
        )
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        // Waits for a step in progress; rates are changed until then.
        let inner = lock(&self.inner).take();
        self.enforcer.take();
        match inner.filter(|inner| inner.leaves) {
            Some(inner) => {
                let state = State {
                    pid: 0,
                    ..inner.state()
                };
                if let Err(error) = state.write() {
                    tracing::warn!("{error}");
                }
            }
            None => State::remove(),
        }
    }
}

/// Runs a step that may block, and logs its error.
async fn on_inner(
    inner: &SharedInner,
    step: impl FnOnce(&mut Inner) -> Result<()> + Send + 'static,
) {
    let inner = Arc::clone(inner);
    let take = move || {
        // Limits lapse if steps are late, so traffic must not delay them.
        let _preferred = net::sys::Preferred::begin();
        lock(&inner).as_mut().map_or(Ok(()), step)
    };
    let done = tokio::task::spawn_blocking(take).await;
    if let Ok(Err(error)) = done {
        tracing::warn!("{error}");
    }
}

async fn every(period: Duration, inner: SharedInner, step: fn(&mut Inner) -> Result<()>) {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        on_inner(&inner, step).await;
    }
}

/// Runs a step at once when a namespace gets or loses its name: while it is open here, its devices persist.
async fn watch_names(inner: SharedInner) {
    let names = match Names::follow(&discover::DIRECTORIES) {
        Ok(names) => names,
        Err(error) => return tracing::debug!("inotify: {error}"),
    };
    loop {
        tokio::select! {
            changed = names.changed() => match changed {
                Ok(()) => on_inner(&inner, Inner::tick).await,
                Err(_) => return,
            },
            () = tokio::time::sleep(SWEEP_PERIOD) => names.find_directories(),
        }
    }
}

/// Raises the limit of open files to the maximum: an endpoint takes about eight, and the default of 1,024 is for
/// `select`.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, most)| setrlimit(Resource::RLIMIT_NOFILE, most, most));
    if let Err(errno) = raised {
        tracing::debug!("cannot raise the limit of open files: {errno}");
    }
}

/// Notifies systemd, if it has started this process as a service of `Type=notify`.
fn notify_systemd(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!("cannot reach the service manager: {error}");
    }
}

/// `ecn run`: the agent in the foreground, until SIGINT or SIGTERM. SIGHUP rereads the configuration from `path`.
/// `keep`: overrides that of the configuration.
///
/// # Errors
///
/// See [`Error`].
pub async fn run(config: Config, path: PathBuf, keep: Option<bool>) -> Result<()> {
    raise_open_files();
    let mut signals = Vec::new();
    for kind in [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ] {
        let signal = tokio::signal::unix::signal(kind).map_err(|error| Error::Io {
            what: "wait for signals",
            error,
        })?;
        signals.push(signal);
    }
    let process_lock = Lock::take()?;
    let starting = tokio::task::spawn_blocking(move || {
        let options = Options {
            keep,
            ..Options::default()
        };
        Agent::start(config, options, &process_lock).map(|agent| (agent, process_lock))
    });
    let (agent, _process_lock) = starting.await.map_err(|error| Error::Io {
        what: "start the agent",
        error: io::Error::other(error),
    })??;
    agent.with(|inner| {
        inner.path = Some(path.clone());
        inner.write_state()
    })?;
    let state = agent.state();
    for bridge in &state.bridges {
        tracing::info!("{bridge}");
    }
    for endpoint in &state.endpoints {
        tracing::info!("{endpoint}");
    }
    for waiting in &state.waiting {
        tracing::info!("waiting for {waiting}");
    }
    tracing::info!("running");
    notify_systemd(NotifyState::Ready);
    let [interrupt, terminate, hangup] = signals.as_mut_slice() else {
        return Ok(());
    };
    let agent = Arc::new(agent);
    loop {
        tokio::select! {
            _ = interrupt.recv() => break tracing::info!("SIGINT: stopping"),
            _ = terminate.recv() => break tracing::info!("SIGTERM: stopping"),
            _ = hangup.recv() => {}
        }
        let (running, path) = (Arc::clone(&agent), path.clone());
        match tokio::task::spawn_blocking(move || running.reload_from(&path)).await {
            Ok(Ok(())) => tracing::info!("SIGHUP: the new configuration is in force"),
            Ok(Err(error)) => tracing::error!("SIGHUP: nothing changed: {error}"),
            Err(error) => tracing::error!("SIGHUP: {error}"),
        }
    }
    notify_systemd(NotifyState::Stopping);
    if agent.with(|inner| inner.leaves) {
        tracing::info!("programs, maps and queues stay: ports still mark, rate limits lapse");
    }
    tokio::task::spawn_blocking(move || drop(agent))
        .await
        .map_err(|error| Error::Io {
            what: "stop the agent",
            error: io::Error::other(error),
        })
}
