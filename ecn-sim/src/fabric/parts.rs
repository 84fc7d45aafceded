//! Parallel execution of a run in parts, by as many threads as there are cores for them.
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
const CLOCK_WINDOWS: usize = 64;

/// Packets for another part, with their arrival times.
type Mail = Mutex<Vec<(Time, Packet)>>;

/// A part's run.
struct Task<'a, S: Scheme> {
    run: Run<'a, S>,
    number: usize,
    /// Buffer for the packets received.
    received: Vec<(Time, Packet)>,
    /// Time of the last progress report.
    looked: Instant,
}

/// State shared by the threads.
struct Shared<'a, S: Scheme> {
    tasks: Vec<Mutex<Task<'a, S>>>,
    /// Number of windows for which each part has been claimed.
    claimed: Vec<AtomicUsize>,
    /// Number of parts that have completed the current window.
    completed: AtomicUsize,
    /// By parity of the window in which they are sent, destination part, and source part.
    mail: [Vec<Vec<Mail>>; 2],
    /// Time of each part's next event, or of the first packet that it has sent to others.
    next: Vec<AtomicU64>,
    /// Time of the first event of the current window; `Time::MAX` after the last window.
    first: AtomicU64,
    /// Whether a part has failed.
    failed: AtomicBool,
    /// Time limit of the run.
    limit: Time,
    window: Gate,
}

/// Runs all parts to completion.
///
/// In each window, every thread runs the parts that no other thread has claimed, starting with its own. So a thread that
/// another process displaces from its core delays the others by the part that it is running, and never by those that it
/// has yet to run.
fn together<'a, S: Scheme>(runs: Vec<Run<'a, S>>, ahead: Time) -> Vec<Run<'a, S>> {
    let count = runs.len();
    let row = || (0..count).map(|_| Mutex::default()).collect();
    let mail = || (0..count).map(|_| row()).collect();
    let limit = runs.first().map_or(0, |run| run.limit);
    let next = runs.iter().map(|run| AtomicU64::new(run.next_time()));
    let next: Vec<_> = next.collect();
    let has_failed = runs.iter().any(|run| run.error.is_some());
    let task = |(number, run)| {
        Mutex::new(Task {
            run,
            number,
            received: Vec::new(),
            looked: Instant::now(),
        })
    };
    let shared = Shared {
        tasks: runs.into_iter().enumerate().map(task).collect(),
        claimed: (0..count).map(|_| AtomicUsize::new(0)).collect(),
        completed: AtomicUsize::new(0),
        mail: [mail(), mail()],
        next,
        first: AtomicU64::new(Time::MAX),
        failed: AtomicBool::new(has_failed),
        limit,
        window: Gate::default(),
    };
    shared.find_first();
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = count.min(cores);
    let own = (0..threads).map(|thread| thread * count / threads);
    at_once(own.collect(), |own| shared.work(own, ahead));
    let Shared {
        tasks,
        mail,
        window,
        ..
    } = shared;
    let end = |task: Mutex<Task<'a, S>>| {
        let mut task = task.into_inner().unwrap_or_else(PoisonError::into_inner);
        task.receive(&mail, window.number());
        task.run
    };
    tasks.into_iter().map(end).collect()
}

impl<S: Scheme> Shared<'_, S> {
    /// Runs parts window by window, `own` before others.
    fn work(&self, own: usize, ahead: Time) {
        let count = self.tasks.len();
        loop {
            let window = self.window.number();
            if self.first.load(Ordering::Relaxed) == Time::MAX {
                return;
            }
            for part in (own..count).chain(0..own) {
                // Fails for a part of this window that is claimed already, and for a window that is over.
                let claim = self.claimed[part].compare_exchange(
                    window,
                    window.wrapping_add(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                if claim.is_ok() {
                    self.advance(part, window, ahead);
                }
            }
            self.window.wait(window);
        }
    }

    /// Runs a part for one window; the last part opens the next window.
    fn advance(&self, part: usize, window: usize, ahead: Time) {
        let mut task = lock(&self.tasks[part]);
        let next = task.advance(self, window, ahead);
        if task.run.error.is_some() {
            self.failed.store(true, Ordering::Relaxed);
        }
        drop(task);
        self.next[part].store(next, Ordering::Relaxed);
        if self.completed.fetch_add(1, Ordering::AcqRel) + 1 < self.tasks.len() {
            return;
        }
        self.completed.store(0, Ordering::Relaxed);
        self.find_first();
        self.window.open();
    }

    /// Finds the first event of the next window.
    fn find_first(&self) {
        let times = self.next.iter().map(|next| next.load(Ordering::Relaxed));
        let first = times.min().filter(|first| *first <= self.limit);
        let first = first.filter(|_| !self.failed.load(Ordering::Relaxed));
        self.first
            .store(first.unwrap_or(Time::MAX), Ordering::Relaxed);
    }
}

impl<S: Scheme> Task<'_, S> {
    /// Runs for one window, and returns the time of the next event or of the first packet sent to other parts.
    fn advance(&mut self, shared: &Shared<'_, S>, window: usize, ahead: Time) -> Time {
        self.receive(&shared.mail, window);
        let run = &mut self.run;
        let first = shared.first.load(Ordering::Relaxed);
        let (begin, until) = run.change_links(first);
        if window.is_multiple_of(CLOCK_WINDOWS) && self.looked.elapsed() >= LOOK_EVERY {
            // With few events, the next event-driven report may be far away. Samples only up to `begin`: links may
            // change before `first`.
            run.sample(begin);
            run.poll_watch();
            self.looked = Instant::now();
        }
        run.advance((begin + ahead).min(until).min(run.limit + 1));
        let mut next = run.next_time();
        for (to, leaving) in run.leaving.iter_mut().enumerate() {
            if let Some(first) = leaving.iter().map(|(time, _)| *time).min() {
                next = next.min(first);
                mem::swap(
                    &mut *lock(&shared.mail[window % 2][to][self.number]),
                    leaving,
                );
            }
        }
        next
    }

    /// Receives the packets that other parts sent in the window before.
    fn receive(&mut self, mail: &[Vec<Vec<Mail>>; 2], window: usize) {
        for mail in &mail[window.wrapping_add(1) % 2][self.number] {
            self.received.append(&mut lock(mail));
        }
        self.run.receive_mail(&mut self.received);
    }
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of the current window. Threads that wait for the next one spin, then yield, then sleep: windows are short, and
/// sleeping at once takes longer than many of them. But a thread that only yields keeps its core from one that another
/// process has displaced.
#[derive(Default)]
struct Gate {
    number: AtomicUsize,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
}

impl Gate {
    /// Spins before a thread yields its core.
    const SPINS: u32 = 200;
    /// Yields before a thread sleeps.
    const YIELDS: u32 = 100;

    fn number(&self) -> usize {
        self.number.load(Ordering::SeqCst)
    }

    /// Opens the next window.
    fn open(&self) {
        // Either this sees the sleeper, or the sleeper sees the new number: both orders are sequentially consistent.
        self.number.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _asleep = lock(&self.sleep);
            self.wake.notify_all();
        }
    }

    /// Waits until a window is over.
    fn wait(&self, window: usize) {
        let is_over = || self.number() != window;
        for turn in 0..Self::SPINS + Self::YIELDS {
            if is_over() {
                return;
            }
            if turn < Self::SPINS {
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
