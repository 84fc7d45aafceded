//! Whether the machine had enough CPU time during a measurement.

/// CPU time of the machine so far, ticks of all its CPUs.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuTime {
    /// Neither idle nor stolen.
    pub busy: u64,
    /// Taken by the hypervisor, for other virtual machines.
    pub stolen: u64,
    /// All of it.
    pub total: u64,
}

impl CpuTime {
    /// Reads the first line of `/proc/stat`, see proc_stat(5); zeros if it is not readable.
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let words = line.split_whitespace();
        let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests' time is included in the first two.
        let total = ticks.iter().take(8).sum();
        let idle: u64 = ticks.iter().skip(3).take(2).sum();
        let stolen = ticks.get(7).copied().unwrap_or(0);
        Self {
            busy: total - idle - stolen,
            stolen,
            total,
        }
    }

    /// Shares of the CPU time since `start` that was busy, and that was stolen.
    pub fn shares_since(&self, start: &Self) -> [f64; 2] {
        let total = (self.total - start.total).max(1) as f64;
        [self.busy - start.busy, self.stolen - start.stolen].map(|part| part as f64 / total)
    }
}
