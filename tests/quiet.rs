//! Whether the machine had enough CPU time during a measurement.

use crate::note;

/// CPU time stolen by other virtual machines since a start.
pub struct Steal {
    all: u64,
    stolen: u64,
}

impl Steal {
    /// Above this share a measurement is discarded.
    const MOST: f64 = 0.02;

    /// Starts: reads the first line of `/proc/stat`, see proc_stat(5); zeros if it is not readable.
    pub fn watch() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let words = line.split_whitespace();
        let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        Self {
            // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is included in the first two.
            all: ticks.iter().take(8).sum(),
            stolen: ticks.get(7).copied().unwrap_or(0),
        }
    }

    /// Whether the stolen share is too high.
    pub fn is_disturbing(&self) -> bool {
        let now = Self::watch();
        let part = (now.stolen - self.stolen) as f64 / (now.all - self.all).max(1) as f64;
        note(&format!("{:.1} % of the processors stolen", 100.0 * part));
        part > Self::MOST
    }
}
