//! Whether the machine kept up while something was measured.

use crate::note;

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
