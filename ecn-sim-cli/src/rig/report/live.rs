//! Display of the running phase.

use std::fmt::Write as _;

use super::{Phase, SHARES, Sample, shares};

/// The header of [`live_row`].
pub fn live_header() -> String {
    format!(
        "{:<24}{:>6}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}",
        "phase", "s", "root", "inter", "local", "remote", "victim", "queue"
    )
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// One line for one sample, to be printed once a second.
pub fn live_row(phase: &str, sample: &Sample, with_victim: bool) -> String {
    let name: String = phase.chars().take(23).collect();
    let mut shares = SHARES.map(|(_, share)| percent(share(sample)));
    if !with_victim {
        shares[4] = "-".to_owned();
    }
    let shares = shares.map(|share| format!("{share:>8}")).concat();
    let (time, queue) = (sample.t_s, sample.root_queue_packets);
    format!("{name:<24}{time:>6.0}{shares}{queue:>8}")
}

/// The running phase as bars, for a terminal; the caller overwrites the lines of the previous view with it. `before`:
/// an earlier phase for comparison.
pub fn live_view(
    phase: &str,
    of_s: f64,
    now: &Sample,
    before: Option<&Phase>,
    with_victim: bool,
) -> String {
    const BAR: usize = 40;
    let name: String = phase.chars().take(50).collect();
    let time = format!("{:.0} s of {of_s:.0} s", now.t_s);
    let mut view = format!("{name:<56}{time:>15}\n");
    let head = before.map_or("", |_| "before");
    let _ = writeln!(view, "{:14}0 %{:>37}{:>8}{head:>9}", "", "100 %", "now");
    let earlier = before.map(|phase| Sample {
        root: phase.root,
        inter_switch: phase.inter_switch,
        local: phase.local,
        remote: phase.remote,
        victim: phase.victim,
        ..Sample::default()
    });
    for (label, share) in shares(with_victim) {
        let value = share(now);
        let full = (value.clamp(0.0, 1.0) * BAR as f64).round() as usize;
        let bar = "█".repeat(full) + &"·".repeat(BAR - full);
        let earlier = earlier.map_or(String::new(), |earlier| percent(share(&earlier)));
        let line = format!("{label:<14}{bar}{:>8}{earlier:>9}", percent(value));
        let _ = writeln!(view, "{}", line.trim_end());
    }
    let queue = before.map_or(String::new(), |p| {
        format!("{:.0}", p.root_queue_mean_packets)
    });
    let line = format!(
        "{:<14}{:BAR$}{:>8}{queue:>9}",
        "root queue", "packets", now.root_queue_packets
    );
    let _ = writeln!(view, "{}", line.trim_end());
    view
}
