//! Display of the running phase.

use std::fmt::Write as _;

use super::{Phase, Sample};

/// The header of [`live_row`].
pub fn live_header() -> String {
    format!(
        "{:<24}{:>6}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}",
        "phase", "s", "root", "inter", "local", "remote", "victim", "queue"
    )
}

/// One line for one sample, to be printed once a second.
pub fn live_row(phase: &str, sample: &Sample, with_victim: bool) -> String {
    let name: String = phase.chars().take(23).collect();
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    let victim = if with_victim {
        share(sample.victim)
    } else {
        "-".to_owned()
    };
    format!(
        "{name:<24}{:>6.0}{:>8}{:>8}{:>8}{:>8}{victim:>8}{:>8}",
        sample.t_s,
        share(sample.root),
        share(sample.inter_switch),
        share(sample.local),
        share(sample.remote),
        sample.root_queue_packets,
    )
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
    let rows = [
        ("root", now.root, before.map(|phase| phase.root)),
        (
            "inter-switch",
            now.inter_switch,
            before.map(|phase| phase.inter_switch),
        ),
        ("local", now.local, before.map(|phase| phase.local)),
        ("remote", now.remote, before.map(|phase| phase.remote)),
        ("victim", now.victim, before.map(|phase| phase.victim)),
    ];
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    for (label, value, before) in &rows[..if with_victim { 5 } else { 4 }] {
        let full = ((value.clamp(0.0, 1.0)) * BAR as f64).round() as usize;
        let bar = "█".repeat(full) + &"·".repeat(BAR - full);
        let before = before.map_or(String::new(), share);
        let line = format!("{label:<14}{bar}{:>8}{before:>9}", share(*value));
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
