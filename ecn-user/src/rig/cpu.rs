//! CPU time of this process.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};

fn cpu(who: UsageWho) -> Duration {
    getrusage(who).map_or(Duration::ZERO, |usage| {
        let time = |t: nix::sys::time::TimeVal| {
            Duration::from_micros(t.tv_sec() as u64 * 1_000_000 + t.tv_usec() as u64)
        };
        time(usage.user_time()) + time(usage.system_time())
    })
}

/// CPU time of the calling thread.
pub(super) fn of_thread() -> Duration {
    cpu(UsageWho::RUSAGE_THREAD)
}

/// CPU time of this process without the calling thread, which measures.
pub(super) fn of_others() -> Duration {
    cpu(UsageWho::RUSAGE_SELF).saturating_sub(of_thread())
}
