//! Moves class rates: the part of the loop that runs in user space.
//!
//! The programs write every new rate into a ring. A thread of its own takes what is there and sends
//! one batch of class changes per endpoint: at the end of each period, and as soon as a rate has to
//! come down. Its heartbeat keeps the limits valid: if this thread stops, they expire.

use std::{
    collections::HashMap,
    os::fd::AsFd as _,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ecn_core::{
    abi::{self, RateEvent},
    flow,
};
use hdrhistogram::Histogram;
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    time::{ClockId, clock_gettime},
};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    datapath::{self, Maps, RateEvents},
    net::{
        htb::{ClassBatch, ClassFailure, ClassSocket, EndpointHtb},
        sys,
    },
};

/// Monotonic time, as the programs see it.
pub fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map(|t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
        .unwrap_or(0)
}

/// A device whose classes are moved.
pub struct Target {
    /// The layout of its queueing discipline.
    pub htb: EndpointHtb,
    /// Socket in its namespace.
    pub socket: ClassSocket,
}

impl Target {
    fn set_rate(&mut self, class: u32, rate_bytes_per_s: u64) -> std::io::Result<()> {
        let mut batch = ClassBatch::new();
        self.htb
            .set_flow_rate(&mut batch, class as u16, rate_bytes_per_s);
        batch.send(&mut self.socket).map(drop)
    }
}

/// What the thread and the agent share.
pub struct Shared {
    /// Devices by endpoint number.
    pub targets: Mutex<HashMap<u32, Target>>,
    /// Rates set by people, by (endpoint, class): the response's do not count.
    pub pinned: Mutex<HashMap<(u32, u32), u64>>,
    /// [`abi::Control::flags`].
    pub flags: AtomicU32,
    /// Class changes made.
    pub changes: AtomicU64,
    /// Class changes that the kernel refused.
    pub refused: AtomicU64,
    /// Time from a mark to the new rate in force, microseconds.
    pub latency_us: Mutex<Histogram<u64>>,
    stop: AtomicBool,
}

/// Locks; a thread that panicked while it held the lock left nothing half-done that matters.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Highest latency that is told apart, microseconds.
const LATENCY_MAX_US: u64 = 60_000_000;

impl Shared {
    /// With these flags for the programs.
    pub fn new(flags: u32) -> Self {
        // Three significant digits: the bounds are constants that the histogram takes.
        let latency = Histogram::new_with_max(LATENCY_MAX_US, 3)
            .unwrap_or_else(|_| unreachable!("constant bounds"));
        Self {
            targets: Mutex::default(),
            pinned: Mutex::default(),
            flags: AtomicU32::new(flags),
            changes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            latency_us: Mutex::new(latency),
            stop: AtomicBool::new(false),
        }
    }

    /// Moves one class now.
    ///
    /// # Errors
    ///
    /// The kernel did not take it.
    pub fn set_rate(
        &self,
        endpoint: u32,
        class: u32,
        rate_bytes_per_s: u64,
    ) -> std::io::Result<()> {
        match lock(&self.targets).get_mut(&endpoint) {
            Some(target) => target.set_rate(class, rate_bytes_per_s),
            None => Ok(()),
        }
    }

    /// Gives a flow's class, just made, the flow's rate of now (`pinned` if people hold it at one), and
    /// the flow its class.
    ///
    /// # Errors
    ///
    /// The kernel did not take it.
    pub fn open_class(
        &self,
        maps: &mut Maps,
        key: &flow::Key,
        pinned: Option<u64>,
    ) -> std::io::Result<()> {
        // Held to the end: what the thread says of a later decrease must stand.
        let mut targets = lock(&self.targets);
        let Some(flow) = maps.flow(key) else {
            return Ok(());
        };
        if let Some(target) = targets.get_mut(&u32::from(key.endpoint)) {
            target.set_rate(flow.class, pinned.unwrap_or(flow.rate_bytes_per_s))?;
        }
        let in_force = maps.set_in_force(flow.class, flow.decreases as u32);
        in_force.map_err(std::io::Error::other)
    }
}

/// The running thread.
pub struct Enforcer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Enforcer {
    /// Starts it. `taken` is told of (endpoint, class) of new flows.
    pub fn start(
        shared: Arc<Shared>,
        mut maps: Maps,
        mut events: RateEvents,
        period: Duration,
        heartbeat: Duration,
        taken: UnboundedSender<(u32, u32)>,
    ) -> std::io::Result<Self> {
        // What came before may have taken longer than the first sign of life lasts.
        let flags = shared.flags.load(Ordering::Relaxed);
        beat(&mut maps, flags, heartbeat).map_err(std::io::Error::other)?;
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("ecn-enforce".to_owned())
            .spawn(move || {
                // Its delay is part of the loop: senders must not be able to hold it up.
                if !sys::prefer_this_thread() {
                    tracing::debug!("cannot raise the priority of this thread");
                }
                run(&worker, &mut maps, &mut events, period, heartbeat, &taken);
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }
}

impl Drop for Enforcer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes the control entry: flags, and a new end of the limits' validity.
pub fn beat(maps: &mut Maps, flags: u32, heartbeat: Duration) -> datapath::Result<()> {
    let valid_until_ns = now_ns() + heartbeat.as_nanos() as u64;
    maps.set_control(abi::Control {
        abi: abi::ABI,
        flags,
        valid_until_ns,
    })
}

fn run(
    shared: &Shared,
    maps: &mut Maps,
    events: &mut RateEvents,
    period: Duration,
    heartbeat: Duration,
    taken: &UnboundedSender<(u32, u32)>,
) {
    let every = heartbeat / 8;
    let mut last_beat: Option<Instant> = None;
    let mut flags = shared.flags.load(Ordering::Relaxed);
    // Latest rate per class, and the marks behind it.
    let mut rates: HashMap<(u32, u32), RateEvent> = HashMap::new();
    let mut marks: Vec<u64> = Vec::new();
    let mut batch = ClassBatch::new();
    while !shared.stop.load(Ordering::Relaxed) {
        let wanted = shared.flags.load(Ordering::Relaxed);
        if last_beat.is_none_or(|at| at.elapsed() >= every) || wanted != flags {
            flags = wanted;
            if let Err(error) = beat(maps, flags, heartbeat) {
                tracing::error!("heartbeat: {error}");
            }
            last_beat = Some(Instant::now());
        }
        // The programs wake us for decreases only; increases wait for the end of the period.
        let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLIN)];
        let _ = ppoll(&mut fds, Some(period.into()), None);
        while let Some(event) = events.next() {
            if event.rate_bytes_per_s == 0 {
                let _ = taken.send((event.endpoint, event.class));
                continue;
            }
            if event.in_force_ns != 0 {
                // The program has seen to it.
                let latency = event.in_force_ns.saturating_sub(event.marked_ns);
                lock(&shared.latency_us).saturating_record(latency / 1000);
                continue;
            }
            rates.insert((event.endpoint, event.class), event);
            if event.marked_ns != 0 {
                marks.push(event.marked_ns);
            }
        }
        if rates.is_empty() {
            continue;
        }
        enforce(shared, maps, &rates, &mut batch);
        rates.clear();
        if !marks.is_empty() {
            let now = now_ns();
            let mut latency = lock(&shared.latency_us);
            for marked in marks.drain(..) {
                latency.saturating_record(now.saturating_sub(marked) / 1000);
            }
        }
        std::thread::sleep(pause(shared, period));
    }
}

/// How long decreases wait for each other: however many come, this bounds how often they are acted on.
fn pause(shared: &Shared, period: Duration) -> Duration {
    let packet_ns = |htb: &EndpointHtb| {
        u64::from(htb.frame_bytes) * 1_000_000_000 / htb.link_bytes_per_s.max(1)
    };
    let shortest = lock(&shared.targets)
        .values()
        .map(|target| packet_ns(&target.htb))
        .min();
    let period_ns = period.as_nanos() as u64;
    Duration::from_nanos(flow::pause(period_ns, shortest.unwrap_or(u64::MAX)))
}

fn enforce(
    shared: &Shared,
    maps: &mut Maps,
    rates: &HashMap<(u32, u32), RateEvent>,
    batch: &mut ClassBatch,
) {
    let pinned = lock(&shared.pinned);
    let mut targets = lock(&shared.targets);
    for (&endpoint, target) in targets.iter_mut() {
        let of_endpoint = || rates.iter().filter(move |((of, _), _)| *of == endpoint);
        for (&(_, class), event) in of_endpoint().filter(|(at, _)| !pinned.contains_key(at)) {
            target
                .htb
                .set_flow_rate(batch, class as u16, event.rate_bytes_per_s);
        }
        match batch.send(&mut target.socket) {
            Ok(changed) => {
                shared.changes.fetch_add(changed as u64, Ordering::Relaxed);
                let failures = batch.failures();
                shared
                    .refused
                    .fetch_add(failures.len() as u64, Ordering::Relaxed);
                for failure in failures {
                    tracing::debug!("{failure}");
                }
            }
            Err(error) => tracing::warn!("cannot change class rates: {error}"),
        }
        for (&(_, class), event) in of_endpoint().filter(|(_, event)| event.pending != 0) {
            // No such class yet: who makes it says so.
            let refused = |f: &ClassFailure| f.classid == EndpointHtb::flow_classid(class as u16);
            if !batch.failures().iter().any(refused)
                && let Err(error) = maps.set_in_force(class, event.decrease)
            {
                tracing::error!("{error}");
            }
        }
    }
}
