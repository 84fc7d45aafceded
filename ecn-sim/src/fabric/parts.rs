//! Parallel execution of a run in parts, with one thread each.
//!
//! A node affects others no earlier than a link delay later. All parts of a network can therefore run for that long
//! without exchanging events (conservative synchronisation: Chandy and Misra, CACM 24(4), 1981; here with windows), and
//! then exchange the packets sent to other parts.

use std::mem;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{hint, thread};

use super::Scenario;
use super::cc::Scheme;
use super::packet::Packet;
use super::part::Part;
use super::run::series::Trace;
use super::run::watch::Watch;
use super::run::{Counts, Run, RunError, end_of, finish};
use super::topology::Topology;
use crate::bounds::ModelError;
use crate::engine::{NS, Time};

/// The part of each switch: consecutive switches together, with each tier divided into as many pieces as there are
/// parts, so that every part has about the same share of each tier.
fn split(topology: &Topology, parts: u16) -> Vec<u16> {
    let mut of_switch = vec![0; topology.names.len()];
    for tier in topology.tiers() {
        let all: usize = tier
            .iter()
            .map(|switch| topology.ports(*switch).len())
            .sum();
        let mut before = 0;
        for switch in tier {
            let ports = topology.ports(switch).len();
            // Determined by the middle of its ports.
            let part = (2 * before + ports) * usize::from(parts) / (2 * all).max(1);
            of_switch[switch as usize] = part as u16;
            before += ports;
        }
    }
    of_switch
}

/// Options of a run, besides its scenario.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of threads; results do not depend on it.
    pub threads: u16,
    /// Record time series.
    pub series: bool,
    /// Time windows in which to count each flow's transfers.
    pub windows: Vec<(Time, Time)>,
    /// Whether to record each event of ports; memory grows with the length of the run.
    pub trace: bool,
    /// Observer of the run.
    pub watch: Option<Arc<dyn Watch>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            threads: 1,
            series: false,
            windows: Vec::new(),
            trace: false,
            watch: None,
        }
    }
}

/// Initial step of a series: any run is many times as long.
const FIRST_STEP: Time = 100 * NS;

/// Runs a scenario on its topology, with its scheme.
///
/// # Errors
///
/// As for [`run_with`].
pub fn run(
    scenario: &Scenario,
    topology: &Topology,
    seed: u64,
    options: &Options,
) -> Result<Counts, RunError> {
    run_with(
        &scenario.parameters.scheme,
        scenario,
        topology,
        seed,
        options,
    )
}

/// Runs a scenario on its topology.
///
/// # Errors
///
/// An invalid value, or a violated invariant: nothing is dropped in a lossless run, nothing is lost otherwise, and
/// something moves as long as packets wait.
pub fn run_with<S: Scheme>(
    scheme: &S,
    scenario: &Scenario,
    topology: &Topology,
    seed: u64,
    options: &Options,
) -> Result<Counts, RunError> {
    let start = |part| -> Result<Run<S>, ModelError> {
        let mut run = Run::with(scheme, scenario, topology, part, seed)?;
        if options.series {
            run.watch(FIRST_STEP);
        }
        run.read_in(&options.windows);
        run.watch.clone_from(&options.watch);
        if options.trace {
            run.trace = Some(Trace::new(run.ports.queues() as usize));
        }
        Ok(run)
    };
    let most = topology.names.len().min(64) as u16;
    // Without look-ahead, parts cannot run independently: a byte without delay takes less than 1 ps at 8 Tb/s.
    let parts = match scenario.look_ahead() {
        0 => 1,
        _ => options.threads.clamp(1, most),
    };
    if parts == 1 {
        let mut run = start(Part::ALL)?;
        while run.error.is_none() && run.next_time() <= run.limit {
            let (_, until) = run.change_links(run.next_time());
            run.advance(until.min(run.limit + 1));
        }
        return end(vec![run]);
    }
    let of_switch = split(topology, parts);
    let part = |number| Part {
        number,
        count: parts,
        of_switch: &of_switch,
    };
    let numbers: Vec<_> = (0..parts).collect();
    let runs = at_once(numbers, |number| start(part(number)));
    let runs = runs.into_iter().collect::<Result<_, _>>()?;
    end(together(runs, scenario.look_ahead()))
}

/// Finishes all parts, and adds up their counts.
fn end<S: Scheme>(mut runs: Vec<Run<S>>) -> Result<Counts, RunError> {
    let stopped = runs.iter().filter(|run| run.error.is_some());
    let stopped = stopped.map(Run::now).min();
    let time = stopped.unwrap_or_else(|| end_of(&runs));
    for run in &mut runs {
        run.sample(time);
        if stopped.is_none() {
            run.end_series(time);
        }
        run.report_progress(true);
    }
    finish(runs)
}

/// Time between two progress reports, and number of windows between two readings of the clock.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const CLOCK_WINDOWS: u32 = 64;

/// Packets for another part, with their arrival times.
type Mail = Mutex<Vec<(Time, Packet)>>;

/// State shared by the threads.
struct Shared {
    /// By destination part, then source part.
    mail: Vec<Vec<Mail>>,
    /// Time of each part's next event.
    next: Vec<AtomicU64>,
    /// Whether a part has failed.
    failed: AtomicBool,
    barrier: Barrier,
}

/// Runs all parts to completion.
fn together<S: Scheme>(runs: Vec<Run<S>>, ahead: Time) -> Vec<Run<S>> {
    let count = runs.len();
    let row = || (0..count).map(|_| Mutex::default()).collect();
    let shared = Shared {
        mail: (0..count).map(|_| row()).collect(),
        next: runs.iter().map(|_| AtomicU64::new(0)).collect(),
        failed: AtomicBool::new(false),
        barrier: Barrier::new(count),
    };
    at_once(runs.into_iter().enumerate().collect(), |(part, run)| {
        windows(part, run, ahead, &shared)
    })
}

/// Calls a function on each element, each in its own thread.
fn at_once<T: Send, R: Send>(these: Vec<T>, what: impl Fn(T) -> R + Sync) -> Vec<R> {
    let what = &what;
    thread::scope(|scope| {
        let start = |one| scope.spawn(move || what(one));
        let threads: Vec<_> = these.into_iter().map(start).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        threads.into_iter().map(join).collect()
    })
}

/// Runs a part window by window, each `ahead` long.
fn windows<'a, S: Scheme>(
    part: usize,
    mut run: Run<'a, S>,
    ahead: Time,
    shared: &Shared,
) -> Run<'a, S> {
    let (mut round, mut looked) = (0_u32, Instant::now());
    let mut all = Vec::new();
    loop {
        shared.next[part].store(run.next_time(), Ordering::Relaxed);
        if run.error.is_some() {
            shared.failed.store(true, Ordering::Relaxed);
        }
        shared.barrier.wait();
        let times = shared.next.iter().map(|next| next.load(Ordering::Relaxed));
        let first = times.min().unwrap_or(Time::MAX);
        if first > run.limit || shared.failed.load(Ordering::Relaxed) {
            return run;
        }
        round = round.wrapping_add(1);
        let (begin, until) = run.change_links(first);
        if round.is_multiple_of(CLOCK_WINDOWS) && looked.elapsed() >= LOOK_EVERY {
            // With few events, the next event-driven report may be far away. Samples only up to `begin`: links may
            // change before `first`.
            run.sample(begin);
            run.poll_watch();
            looked = Instant::now();
        }
        run.advance((begin + ahead).min(until).min(run.limit + 1));
        for (to, leaving) in run.leaving.iter_mut().enumerate() {
            if !leaving.is_empty() {
                mem::swap(&mut *lock(&shared.mail[to][part]), leaving);
            }
        }
        shared.barrier.wait();
        for mail in &shared.mail[part] {
            all.append(&mut lock(mail));
        }
        run.receive_mail(&mut all);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A barrier at which threads spin, then yield, then sleep: windows are short, and that of the standard library sleeps for
/// longer than many of them. But a thread that only yields keeps the core from one that another process has displaced.
struct Barrier {
    count: usize,
    /// Spins before a thread yields the core; none where others wait for it.
    spins: u32,
    arrived: AtomicUsize,
    round: AtomicUsize,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Barrier {
    /// Spins where each thread has its own core.
    const SPINS: u32 = 200;
    /// Yields before a thread sleeps.
    const YIELDS: u32 = 100;

    fn new(count: usize) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            count,
            spins: if count <= cores { Self::SPINS } else { 0 },
            arrived: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    fn wait(&self) {
        let round = self.round.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            self.arrived.store(0, Ordering::Relaxed);
            // Either this sees the sleeper, or the sleeper sees the round: both orders are sequentially consistent.
            self.round.store(round.wrapping_add(1), Ordering::SeqCst);
            if self.sleepers.load(Ordering::SeqCst) > 0 {
                let _asleep = lock(&self.sleep);
                self.wake.notify_all();
            }
            return;
        }
        let is_over = || self.round.load(Ordering::SeqCst) != round;
        for turn in 0..self.spins + Self::YIELDS {
            if is_over() {
                return;
            }
            if turn < self.spins {
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        let asleep = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let wait = self.wake.wait_while(asleep, |()| !is_over());
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
    }
}
