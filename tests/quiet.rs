//! Whether the machine kept up while something was measured.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    sched::{CpuSet, sched_setaffinity},
    unistd::Pid,
};

use crate::note;

/// What a wake-up is after.
const SLEEP: Duration = Duration::from_millis(1);

/// Where a hundredth of the wake-ups came later than this, something else had the processors: 0.1 to 0.6 ms were seen
/// on a quiet machine, 1.5 to 3 ms with twice as many busy threads as processors.
const LATE: Duration = Duration::from_millis(1);

/// Of the processors' time: more than this part was given to other virtual machines.
const STOLEN: f64 = 0.02;

/// Measures which part of a rate is reached, until it is `enough`, some times at most; returns all parts. Where each
/// time was disturbed, `floor` is enough: what is late at a timer or a sender is not made up for.
#[track_caller]
pub fn reach(
    what: &str,
    times: usize,
    enough: f64,
    floor: f64,
    mut measure: impl FnMut() -> f64,
) -> Vec<f64> {
    let (mut parts, mut most, mut disturbed) = (Vec::new(), 0.0_f64, true);
    while parts.len() < times && most < enough {
        let wakeups = Wakeups::watch();
        parts.push(measure());
        disturbed &= wakeups.were_disturbed();
        most = parts.iter().copied().fold(most, f64::max);
    }
    note(&format!("{what}: {parts:.4?}, disturbed {disturbed}"));
    let least = if disturbed { floor } else { enough };
    assert!(most >= least, "{what}: {parts:?}, disturbed {disturbed}");
    parts
}

/// How late threads are woken: where others have the processors, so are senders and the kernel's timers.
pub struct Wakeups {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
    ticks: Ticks,
}

/// Of all processors, since the machine started: 1/100 s each.
#[derive(Clone, Copy, Default)]
struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    /// The first line of `/proc/stat`, see proc_stat(5); zeros where it is not readable.
    fn now() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let numbers: Vec<u64> = line
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in the first two already.
        Self {
            all: numbers.iter().take(8).sum(),
            stolen: numbers.get(7).copied().unwrap_or(0),
        }
    }

    fn stolen_since(self, before: Self) -> f64 {
        (self.stolen - before.stolen) as f64 / (self.all - before.all).max(1) as f64
    }
}

impl Wakeups {
    /// Begins to look.
    pub fn watch() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut late = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                std::thread::sleep(SLEEP);
                late.push(start.elapsed().saturating_sub(SLEEP));
            }
            late
        });
        let ticks = Ticks::now();
        Self {
            stop,
            thread,
            ticks,
        }
    }

    /// Ends it. Returns whether other programs or machines had the processors.
    pub fn were_disturbed(self) -> bool {
        let stolen = Ticks::now().stolen_since(self.ticks);
        let late = self.p99();
        note(&format!(
            "wake-ups {late:?} late, {:.1} % of the processors stolen",
            100.0 * stolen
        ));
        late > LATE || stolen > STOLEN
    }

    /// A hundredth came later than this.
    fn p99(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let mut late = self.thread.join().expect("the sleeper");
        late.sort_unstable();
        let worst = late.len().saturating_sub(1 + late.len() / 100);
        late.get(worst).copied().unwrap_or(Duration::MAX)
    }
}

/// Times in which a processor ran nothing of what it should: a thread of the highest priority on each of them was woken
/// too late. Neither senders nor the kernel's timers ran there then.
pub struct Stalls {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Range<Instant>>>>,
}

impl Stalls {
    /// Begins to look.
    pub fn watch() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..processors)
            .map(|processor| {
                let stopped = Arc::clone(&stop);
                std::thread::spawn(move || {
                    run_first_on(processor);
                    let mut stalls = Vec::new();
                    while !stopped.load(Ordering::Relaxed) {
                        let due = Instant::now() + SLEEP / 2;
                        std::thread::sleep(SLEEP / 2);
                        let now = Instant::now();
                        if now > due + LATE {
                            stalls.push(due..now);
                        }
                    }
                    stalls
                })
            })
            .collect();
        Self { stop, threads }
    }

    /// Ends it, and returns them.
    pub fn stop(self) -> Vec<Range<Instant>> {
        self.stop.store(true, Ordering::Relaxed);
        let stalls = self.threads.into_iter().map(JoinHandle::join);
        stalls.flat_map(|stalls| stalls.expect("stalls")).collect()
    }
}

/// Puts the calling thread on a processor, ahead of all others there.
fn run_first_on(processor: usize) {
    let mut set = CpuSet::new();
    set.set(processor).expect("a processor");
    sched_setaffinity(Pid::from_raw(0), &set).expect("to be there");
    // SAFETY: a structure of numbers.
    let mut parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    parameters.sched_priority = 50;
    // SAFETY: of the calling thread.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    assert_eq!(set, 0, "a priority: {}", std::io::Error::last_os_error());
}
