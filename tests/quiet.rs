//! Whether the machine kept up while something was measured.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::note;

/// What a wake-up is after.
const SLEEP: Duration = Duration::from_millis(1);

/// Where a hundredth of the wake-ups came later than this, something else had the processors: 0.1 to 0.6 ms were seen
/// on a quiet machine, 1.5 to 3 ms with twice as many busy threads as processors.
const LATE: Duration = Duration::from_millis(1);

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
        disturbed &= wakeups.p99() > LATE;
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
        Self { stop, thread }
    }

    /// A hundredth came later than this.
    pub fn p99(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let mut late = self.thread.join().expect("the sleeper");
        late.sort_unstable();
        let worst = late.len().saturating_sub(1 + late.len() / 100);
        late.get(worst).copied().unwrap_or(Duration::MAX)
    }
}

/// The processors' time that other virtual machines had, since it began to look.
pub struct Steal {
    all: u64,
    stolen: u64,
}

impl Steal {
    /// More than this part, and a run says nothing about what was run.
    const MOST: f64 = 0.02;

    /// Begins to look: the first line of `/proc/stat`, see proc_stat(5); zeros where it is not readable.
    pub fn watch() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let words = line.split_whitespace();
        let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        Self {
            // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is in the first two already.
            all: ticks.iter().take(8).sum(),
            stolen: ticks.get(7).copied().unwrap_or(0),
        }
    }

    /// Whether it was too much.
    pub fn is_disturbing(&self) -> bool {
        let now = Self::watch();
        let part = (now.stolen - self.stolen) as f64 / (now.all - self.all).max(1) as f64;
        note(&format!("{:.1} % of the processors stolen", 100.0 * part));
        part > Self::MOST
    }
}
