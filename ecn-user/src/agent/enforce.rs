//! Changes class rates: the user-space part of the control loop.
//!
//! The programs write every new rate into a ring buffer. A dedicated thread reads it and sends one batch of class
//! changes per endpoint: at the end of each period, and immediately when a rate has to fall. The heartbeats of another
//! thread keep the limits valid: if the first one or the main loop is stuck, they expire.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::AsFd as _,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle, Thread},
    time::{Duration, Instant},
};

use ecn_core::{
    abi::{self, RateEvent},
    flow::{self, Key},
};
use hdrhistogram::Histogram;
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    time::{ClockId, clock_gettime},
};

use super::{Error, Result, target::Target};
use crate::{
    config::Config,
    datapath::{self, Maps, RateEvents},
    net::{
        htb::{ClassBatch, EndpointHtb},
        sys,
    },
};

/// Monotonic time, ns: the clock of the programs.
pub fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map(|t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
        .unwrap_or(0)
}

/// Whether [`now_ns`] is the clock of the programs: a time namespace may add an offset (time_namespaces(7)).
pub(super) fn has_kernels_clock() -> bool {
    // Without this file, the kernel has no time namespaces.
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let monotonic = offsets
        .lines()
        .find_map(|line| line.strip_prefix("monotonic"));
    monotonic.is_none_or(|offset| offset.split_whitespace().all(|part| part == "0"))
}

/// State shared by the thread and the agent.
pub struct Shared {
    /// Devices by endpoint number.
    pub targets: Mutex<HashMap<u32, Target>>,
    /// Rates set by users, by (endpoint, class): they override those of the response.
    pub pinned: Mutex<HashMap<(u32, u32), u64>>,
    /// Class minors that no flow uses and that are not offered to the programs.
    pub free: Mutex<VecDeque<u32>>,
    /// Flows for which the kernel refused a class: limited with the short flows. At most `UNFIT`.
    pub unfit: Mutex<Vec<Key>>,
    /// A root qdisc was installed or removed.
    pub roots_changed: AtomicBool,
    /// [`abi::Control::flags`].
    pub flags: AtomicU32,
    /// How often class rates are changed, and how long limits remain valid after a heartbeat.
    period_ns: AtomicU64,
    heartbeat_ns: AtomicU64,
    /// Programs are still being loaded, and the main loop does not run yet.
    is_starting: AtomicBool,
    /// When the main loop, and the thread that changes class rates, last made progress.
    alive_ns: AtomicU64,
    enforced_ns: AtomicU64,
    /// Class changes made.
    pub changes: AtomicU64,
    /// Class changes that the kernel refused.
    pub refused: AtomicU64,
    /// Time from a mark until the new rate is in force, microseconds.
    pub latency_us: Mutex<Histogram<u64>>,
    /// The thread of the heartbeats.
    heart: OnceLock<Thread>,
    stop: AtomicBool,
}

/// Locks, even if poisoned: a thread that panics leaves nothing relevant half-updated.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum length of [`Shared::unfit`].
const UNFIT: usize = 1024;
/// Interval between reviews of limited flows.
const REVIEW: Duration = Duration::from_millis(250);
/// Longest sleep while nothing is limited: `stop` is polled, and progress is recorded.
const IDLE: Duration = Duration::from_millis(100);
/// Longest time between heartbeats.
const LONGEST_INTERVAL: Duration = Duration::from_millis(125);
/// Responses are held when class rates have not been changed for this many heartbeats.
const MISSED: u32 = 3;
/// Maximum time without progress, even if the heartbeat is shorter: while namespaces with many devices are removed, the
/// kernel blocks all netlink requests, on a busy machine for more than 3 s.
const STEP: Duration = Duration::from_secs(10);
/// Maximum time of the start: on a busy or emulated processor the verifier takes seconds for a program, and limits that
/// were taken over stay in force meanwhile.
const START: Duration = Duration::from_secs(60);
/// Maximum number of rates enforced together; later ones wait in the ring buffer.
const TOGETHER: usize = 4096;
/// Maximum number of these per batch of an endpoint: between batches, progress is recorded.
const AT_ONCE: usize = 512;

/// Highest latency that the histogram resolves, microseconds.
const LATENCY_MAX_US: u64 = 60_000_000;

impl Shared {
    /// `flags`: [`abi::Control::flags`].
    pub fn new(flags: u32) -> Self {
        // Three significant digits: the bounds are constants that the histogram takes.
        let latency = Histogram::new_with_max(LATENCY_MAX_US, 3)
            .unwrap_or_else(|_| unreachable!("constant bounds"));
        Self {
            targets: Mutex::default(),
            pinned: Mutex::default(),
            free: Mutex::new((abi::FIRST_CLASS..abi::CLASSES).collect()),
            unfit: Mutex::default(),
            roots_changed: AtomicBool::new(false),
            flags: AtomicU32::new(flags),
            period_ns: AtomicU64::new(0),
            heartbeat_ns: AtomicU64::new(0),
            is_starting: AtomicBool::new(true),
            alive_ns: AtomicU64::new(now_ns()),
            enforced_ns: AtomicU64::new(now_ns()),
            changes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            latency_us: Mutex::new(latency),
            heart: OnceLock::new(),
            stop: AtomicBool::new(false),
        }
    }

    /// Applies the timing and the echo protocol of the configuration.
    pub fn set_timing(&self, config: &Config) {
        let (period, heartbeat) = (config.agent.period, config.agent.heartbeat);
        self.period_ns.store(period.as_nanos(), Ordering::Relaxed);
        self.heartbeat_ns
            .store(heartbeat.as_nanos(), Ordering::Relaxed);
        let protocol = |number: u8| u32::from(number) << abi::ECHO_PROTOCOL_AT;
        let flags = self.flags.load(Ordering::Relaxed) & !protocol(u8::MAX);
        self.flags
            .store(flags | protocol(config.echo.protocol), Ordering::Relaxed);
    }

    /// How long limits remain valid after a heartbeat.
    pub fn heartbeat(&self) -> Duration {
        Duration::from_nanos(self.heartbeat_ns.load(Ordering::Relaxed))
    }

    /// Activates the tracepoint programs of this generation ([`abi::GENERATION`] or 0), and waits until the heartbeat has
    /// published that: it alone writes the control entry.
    pub(super) fn switch_to(&self, generation: u32, maps: &Maps) -> datapath::Result<()> {
        let flags = self.flags.load(Ordering::Relaxed) & !abi::GENERATION | generation;
        self.flags.store(flags, Ordering::Relaxed);
        self.is_alive();
        if let Some(heart) = self.heart.get() {
            heart.unpark();
        }
        while maps.control()?.flags & abi::GENERATION != generation {
            thread::sleep(self.period().min(Duration::from_millis(1)));
        }
        Ok(())
    }

    /// Records that the main loop has made progress.
    pub fn is_alive(&self) {
        self.alive_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// Records that class rates can be changed.
    fn has_enforced(&self) {
        self.enforced_ns.store(now_ns(), Ordering::Relaxed);
    }

    /// Whether the agent is still setting up what it found.
    pub(super) fn is_starting(&self) -> bool {
        self.is_starting.load(Ordering::Relaxed)
    }

    /// Records that the main loop runs from now on.
    pub(super) fn has_started(&self) {
        self.is_alive();
        self.is_starting.store(false, Ordering::Relaxed);
    }

    /// Time since the main loop last made progress.
    pub(super) fn loop_age(&self) -> Duration {
        let alive_ns = self.alive_ns.load(Ordering::Relaxed);
        Duration::from_nanos(now_ns().saturating_sub(alive_ns))
    }

    /// How long the main loop, or the thread that changes class rates, may go without progress.
    fn patience(&self) -> Duration {
        let step = if self.is_starting() { START } else { STEP };
        self.heartbeat().max(step)
    }

    /// Whether the main loop or that thread is stuck; limits are not renewed then.
    pub(super) fn is_stuck(&self) -> bool {
        self.age() >= self.patience()
    }

    /// Whether the thread that changes class rates makes progress.
    pub(super) fn is_enforcing(&self) -> bool {
        self.enforcement_age() < self.patience()
    }

    /// Time since that thread last made progress.
    fn enforcement_age(&self) -> Duration {
        let enforced_ns = self.enforced_ns.load(Ordering::Relaxed);
        Duration::from_nanos(now_ns().saturating_sub(enforced_ns))
    }

    /// Time in which either has made no progress.
    pub(super) fn age(&self) -> Duration {
        self.loop_age().max(self.enforcement_age())
    }

    /// How long limits hold from now on: a heartbeat, but not beyond `patience` after the last progress.
    fn validity(&self) -> Duration {
        let left = self.patience().saturating_sub(self.age());
        self.heartbeat().min(left)
    }

    /// Writes the control entry: flags, and the new times from which responses are held and at which limits lapse.
    pub(super) fn beat(
        &self,
        maps: &mut Maps,
        flags: u32,
        validity: Duration,
    ) -> datapath::Result<()> {
        let missed = MISSED * self.beat_interval().max(self.period());
        let valid_until_ns = now_ns() + validity.as_nanos() as u64;
        let held_from_ns = self.enforced_ns.load(Ordering::Relaxed) + missed.as_nanos() as u64;
        maps.set_control(abi::Control {
            abi: abi::ABI,
            flags,
            valid_until_ns,
            held_from_ns: held_from_ns.min(valid_until_ns),
        })
    }

    /// Time between heartbeats.
    fn beat_interval(&self) -> Duration {
        (self.heartbeat() / 8).min(LONGEST_INTERVAL)
    }

    fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns.load(Ordering::Relaxed))
    }

    /// Enforces one flow's rate immediately.
    ///
    /// # Errors
    ///
    /// The kernel refused it.
    pub fn set_rate(&self, maps: &mut Maps, event: RateEvent) -> std::io::Result<()> {
        match lock(&self.targets).get_mut(&event.endpoint) {
            Some(target) => {
                let mut batch = ClassBatch::new();
                let done = target.enforce(maps, &mut batch, &[event], now_ns())?;
                self.refuse(done.refused);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Whether flows are limited anywhere, or were recently.
    pub(super) fn has_limits(&self) -> bool {
        lock(&self.targets).values().any(Target::is_in_use)
    }

    /// Offers free classes to flows, until the queue is full.
    pub fn offer_classes(&self, maps: &mut Maps) {
        let mut free = lock(&self.free);
        while let Some(class) = free.pop_front() {
            if !maps.offer_class(class) {
                free.push_front(class);
                return;
            }
        }
    }

    /// Records flows for which the kernel refused a class.
    fn refuse(&self, flows: Vec<(Key, u32)>) {
        self.refused
            .fetch_add(flows.len() as u64, Ordering::Relaxed);
        let mut unfit = lock(&self.unfit);
        for (key, _) in flows {
            if unfit.len() < UNFIT {
                unfit.push(key);
            }
        }
    }

    /// Removes limits that are no longer needed, and frees their classes.
    fn review(&self, maps: &mut Maps, batch: &mut ClassBatch) {
        let pinned = lock(&self.pinned).clone();
        let mut freed = Vec::new();
        for (&endpoint, target) in lock(&self.targets).iter_mut() {
            let installed = target.is_installed();
            let is_pinned = |class| pinned.contains_key(&(endpoint, class));
            match target.review(maps, batch, is_pinned, now_ns()) {
                Ok(review) => {
                    freed.extend(review.freed);
                    for (key, flow) in review.ended {
                        maps.remove_flow(&key, &flow);
                        freed.push(flow.class);
                    }
                }
                Err(error) => tracing::debug!("{error}"),
            }
            if target.is_installed() != installed {
                self.roots_changed.store(true, Ordering::Relaxed);
            }
        }
        lock(&self.free).extend(freed);
        self.offer_classes(maps);
    }
}

/// The running threads.
pub struct Enforcer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Enforcer {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// A map is not readable, or the system starts no thread.
    pub fn start(shared: Arc<Shared>, pin: &Path) -> Result<Self> {
        let (mut control, mut maps) = (Maps::open(pin)?, Maps::open(pin)?);
        let mut events = RateEvents::open(pin)?;
        // Limits become valid before anything else is done.
        shared.has_enforced();
        let flags = shared.flags.load(Ordering::Relaxed);
        shared.beat(&mut control, flags, shared.heartbeat())?;
        let mut enforcer = Self {
            shared,
            threads: Vec::new(),
        };
        let shared = Arc::clone(&enforcer.shared);
        enforcer.spawn("ecn-heartbeat", move || keep_valid(&shared, &mut control))?;
        let shared = Arc::clone(&enforcer.shared);
        enforcer.spawn("ecn-enforce", move || run(&shared, &mut maps, &mut events))?;
        Ok(enforcer)
    }

    fn spawn(&mut self, name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            // Its delay is part of the control loop, or limits lapse: traffic must not delay it.
            if !sys::prefer_this_thread() {
                tracing::debug!("cannot raise the priority of thread {name}");
            }
            body();
        });
        let thread = thread.map_err(|error| Error::Io {
            what: "start a thread",
            error,
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Keeps limits valid while the agent makes progress, in a thread of its own: the others wait for the kernel.
fn keep_valid(shared: &Shared, maps: &mut Maps) {
    let _ = shared.heart.set(thread::current());
    let mut was_stuck = false;
    while !shared.stop.load(Ordering::Relaxed) {
        let is_stuck = shared.is_stuck();
        if is_stuck && !was_stuck {
            tracing::error!("the agent is stuck: rate limits lapse");
        } else if was_stuck && !is_stuck {
            tracing::warn!("the agent runs again: rate limits hold");
        }
        was_stuck = is_stuck;
        let flags = shared.flags.load(Ordering::Relaxed);
        if !is_stuck && let Err(error) = shared.beat(maps, flags, shared.validity()) {
            tracing::error!("heartbeat: {error}");
        }
        thread::park_timeout(shared.beat_interval());
    }
}

fn run(shared: &Shared, maps: &mut Maps, events: &mut RateEvents) {
    // The latest rate per class, which bounds their number; and the times of the marks behind them.
    let mut rates: HashMap<(u32, u32), RateEvent> = HashMap::new();
    let mut marks: Vec<u64> = Vec::new();
    let mut batch = ClassBatch::new();
    let mut last_review = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let period = shared.period();
        shared.has_enforced();
        if last_review.elapsed() >= REVIEW {
            shared.review(maps, &mut batch);
            last_review = Instant::now();
        }
        // The programs wake this thread for decreases only; increases wait for the end of the period. Where nothing is
        // limited there are no increases, and a thread that wakes a thousand times a second takes up to 18 % of a
        // connection's rate. While the agent starts, limits of the previous one may be taken over at any moment.
        let wait = if shared.has_limits() || shared.is_starting() {
            period
        } else {
            period.max(shared.beat_interval().min(IDLE))
        };
        let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
        let _ = ppoll(&mut fds, Some(wait.into()), None);
        while rates.len() < TOGETHER
            && let Some(event) = events.next()
        {
            if event.in_force_ns != 0 && event.marked_ns != 0 {
                // The program has already enforced this rate.
                let latency = event.in_force_ns.saturating_sub(event.marked_ns);
                lock(&shared.latency_us).saturating_record(latency / 1000);
            } else if event.marked_ns != 0 {
                marks.push(event.marked_ns);
            }
            rates.insert((event.endpoint, event.class), event);
        }
        if rates.is_empty() {
            continue;
        }
        if enforce(shared, maps, &mut rates, &mut batch) {
            shared.offer_classes(maps);
        }
        if !marks.is_empty() {
            let now = now_ns();
            let mut latency = lock(&shared.latency_us);
            for marked in marks.drain(..) {
                latency.saturating_record(now.saturating_sub(marked) / 1000);
            }
        }
        thread::sleep(pause(shared, period));
    }
}

/// How long decreases are collected before they are applied: this bounds the number of batches, however many decreases
/// there are.
fn pause(shared: &Shared, period: Duration) -> Duration {
    let packet_ns = |htb: &EndpointHtb| {
        u64::from(htb.frame_bytes) * 1_000_000_000 / htb.link_bytes_per_s.max(1)
    };
    let shortest = lock(&shared.targets)
        .values()
        .map(|target| packet_ns(target.layout()))
        .min();
    let period_ns = period.as_nanos() as u64;
    Duration::from_nanos(flow::batch_delay(period_ns, shortest.unwrap_or(u64::MAX)))
}

/// Enforces the rates and clears the map. Returns whether any flow is newly limited.
fn enforce(
    shared: &Shared,
    maps: &mut Maps,
    rates: &mut HashMap<(u32, u32), RateEvent>,
    batch: &mut ClassBatch,
) -> bool {
    let mut is_new = false;
    let mut events: Vec<RateEvent> = rates.drain().map(|(_, event)| event).collect();
    events.sort_unstable_by_key(|event| (event.endpoint, event.class));
    {
        let pinned = lock(&shared.pinned);
        for event in &mut events {
            if let Some(rate) = pinned.get(&(event.endpoint, event.class)) {
                event.rate_bytes_per_s = *rate;
            }
        }
    }
    let mut targets = lock(&shared.targets);
    for of_endpoint in events.chunk_by(|a, b| a.endpoint == b.endpoint) {
        let Some(target) = of_endpoint
            .first()
            .and_then(|event| targets.get_mut(&event.endpoint))
        else {
            continue;
        };
        let installed = target.is_installed();
        for some in of_endpoint.chunks(AT_ONCE) {
            match target.enforce(maps, batch, some, now_ns()) {
                Ok(done) => {
                    let changed = done.changed as u64;
                    shared.changes.fetch_add(changed, Ordering::Relaxed);
                    shared.refuse(done.refused);
                    is_new |= done.is_new;
                }
                Err(error) => tracing::warn!("cannot change class rates: {error}"),
            }
            shared.has_enforced();
        }
        if target.is_installed() != installed {
            shared.roots_changed.store(true, Ordering::Relaxed);
        }
    }
    is_new
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eleven seconds without progress are too long for the main loop, but not for loading programs.
    #[test]
    fn limits_hold_while_programs_are_loaded() {
        let heartbeat = Duration::from_secs(1);
        let shared = Shared::new(0);
        let heartbeat_ns = heartbeat.as_nanos() as u64;
        shared.heartbeat_ns.store(heartbeat_ns, Ordering::Relaxed);
        let silent = || {
            let since = now_ns() - 11_000_000_000;
            shared.alive_ns.store(since, Ordering::Relaxed);
        };
        silent();
        assert!(!shared.is_stuck());
        assert_eq!(shared.validity(), heartbeat);
        shared.has_started();
        assert!(!shared.is_stuck());
        silent();
        assert!(shared.is_stuck());
        assert_eq!(shared.validity(), Duration::ZERO);
        shared.is_alive();
        assert!(!shared.is_stuck());
        shared
            .enforced_ns
            .store(now_ns() - 11_000_000_000, Ordering::Relaxed);
        assert!(shared.is_stuck() && !shared.is_enforcing());
    }
}
