//! Progress of long operations, on a terminal only.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ecn_sim::engine::{MS, Time};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar on standard error, drawn only on a terminal and only after the first half second; removed when dropped.
#[derive(Debug)]
pub(crate) struct Bar {
    position: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Bar {
    /// For simulated time up to `end`.
    pub(crate) fn of_time(end: Time) -> Self {
        Self::new(
            end,
            MS,
            "{wide_bar} {pos} of {len} ms simulated, {eta} left",
        )
    }

    /// For an operation that describes its progress as text.
    pub(crate) fn of_text(text: impl Fn() -> String + Send + 'static) -> Self {
        Self::drawn(Arc::default(), 0, "{spinner} {wide_msg}", move |bar| {
            bar.set_message(text());
            bar.tick();
        })
    }

    /// For this number of runs.
    pub(crate) fn of_runs(runs: u64) -> Self {
        Self::new(runs, 1, "{wide_bar} {pos} of {len} runs, {eta} left")
    }

    fn new(end: u64, unit: u64, template: &'static str) -> Self {
        let position = Arc::new(AtomicU64::new(0));
        let known = Arc::clone(&position);
        Self::drawn(position, end / unit, template, move |bar| {
            bar.set_position(known.load(Ordering::Relaxed) / unit);
        })
    }

    fn drawn(
        position: Arc<AtomicU64>,
        length: u64,
        template: &'static str,
        show: impl Fn(&ProgressBar) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::io::stderr().is_terminal().then(|| {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || draw(show, &stop, length, template))
        });
        Self {
            position,
            stop,
            thread,
        }
    }

    /// The counter that the operation updates.
    pub(crate) fn position(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.position)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn draw(show: impl Fn(&ProgressBar), stop: &AtomicBool, length: u64, template: &str) {
    std::thread::park_timeout(Duration::from_millis(500));
    if stop.load(Ordering::Relaxed) {
        return;
    }
    let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    while !stop.load(Ordering::Relaxed) {
        show(&bar);
        std::thread::park_timeout(Duration::from_millis(100));
    }
    bar.finish_and_clear();
}
