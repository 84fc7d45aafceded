//! Progress of long work, on a terminal only.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::engine::{MS, Time};

/// A progress bar on the standard error; nothing is drawn where that is no terminal, nor in the first
/// half second.
#[derive(Debug)]
pub struct Bar {
    position: Arc<AtomicU64>,
    stop: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Bar {
    /// Of simulated time up to `end`.
    pub fn of_time(end: Time) -> Self {
        let template = "{wide_bar} {pos} of {len} ms simulated, {eta} left";
        Self::new(end, MS, template)
    }

    /// Of simulated time that nobody knows the end of.
    pub fn of_time_so_far() -> Self {
        Self::new(0, crate::engine::NS * 1_000, "{spinner} {pos} us simulated")
    }

    /// Of so many runs.
    pub fn of_runs(runs: u64) -> Self {
        Self::new(runs, 1, "{wide_bar} {pos} of {len} runs, {eta} left")
    }

    fn new(end: u64, unit: u64, template: &'static str) -> Self {
        let position = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicU64::new(0));
        let thread = std::io::stderr().is_terminal().then(|| {
            let (position, stop) = (Arc::clone(&position), Arc::clone(&stop));
            std::thread::spawn(move || draw(&position, &stop, end / unit, unit, template))
        });
        Self {
            position,
            stop,
            thread,
        }
    }

    /// Where the work writes how far it is.
    pub fn position(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.position)
    }

    /// Takes the bar away.
    pub fn finish(self) {}
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.stop.store(1, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn draw(position: &AtomicU64, stop: &AtomicU64, length: u64, unit: u64, template: &str) {
    std::thread::park_timeout(Duration::from_millis(500));
    if stop.load(Ordering::Relaxed) != 0 {
        return;
    }
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    while stop.load(Ordering::Relaxed) == 0 {
        bar.set_position(position.load(Ordering::Relaxed) / unit);
        std::thread::park_timeout(Duration::from_millis(100));
    }
    bar.finish_and_clear();
}
