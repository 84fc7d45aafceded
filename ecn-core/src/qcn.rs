//! Quantised congestion notification (QCN): a congestion point that only ever slows sources down, and reaction points
//! that recover by themselves.
//!
//! ```text
//! congestion point, for a sampled frame:   Fb = -(Qoff + w Qdelta),  Qoff = q - Qeq,  Qdelta = q - q at the last sample
//!     Fb < 0:                              notify of min(63, |Fb| 63 / (Qeq (2 w + 1)))
//! reaction point, when notified of fb:     TR <- CR (if a stage by volume was complete);  CR <- CR (1 - Gd fb)
//!     each stage, by volume and by time:   CR <- (CR + TR) / 2
//!     from the fifth on:                   TR rises by R_AI; by i R_HAI, if there were as many of both kinds
//! ```
//!
//! Source: IEEE 802.1Qau, by the defaults of its MIB and by implementations (`docs/sources.md`). Times are in any unit, the
//! same everywhere.

use crate::fixed;

/// Largest feedback: 6 bits.
pub const MAX_FEEDBACK: u32 = 63;

/// Bytes to the next sample, by the upper 3 bits of the last feedback, where they are 150 kB for the smallest.
pub const INTERVALS: [u32; 8] = [
    150_000, 75_000, 50_000, 37_500, 30_000, 25_000, 21_500, 18_500,
];

/// A timer that does not run.
const NEVER: u64 = u64::MAX;

/// Feedback of a queue, if it is congested: too long or growing. `weight`: w.
#[inline(always)]
#[must_use]
pub fn feedback(
    equilibrium_bytes: u32,
    weight: u32,
    queue_bytes: u32,
    before_bytes: u32,
) -> Option<u32> {
    let (queue, weight) = (queue_bytes as i64, weight as i64);
    let excess = queue - equilibrium_bytes as i64 + weight * (queue - before_bytes as i64);
    if excess <= 0 {
        return None;
    }
    let range = (equilibrium_bytes as u64).max(1) * (2 * weight as u64 + 1);
    let quantised = excess as u64 * MAX_FEEDBACK as u64 / range;
    Some(quantised.min(MAX_FEEDBACK as u64) as u32)
}

/// What is `interval` on average, from 1 - `jitter` to 1 + `jitter` times. `jitter` in 2^-32; 32 random bits.
#[inline(always)]
#[must_use]
pub fn jittered(interval: u32, jitter: u64, random: u32) -> u32 {
    let spread = (jitter * random as u64) >> 31;
    let factor = (1 << 32) - jitter + spread;
    fixed::mul_shift(interval as u64, factor, 32) as u32
}

/// A reaction point's parameters.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The link's rate.
    pub line_bytes_per_s: u64,
    /// No limiter is slower.
    pub min_bytes_per_s: u64,
    /// Gd: share of the rate that a unit of feedback takes, in 2^-32.
    pub decrease: u64,
    /// What a single notification leaves of the rate at least, in 2^-32.
    pub min_decrease: u64,
    /// Bytes of a stage by volume.
    pub volume_bytes: u64,
    /// Not 0: such a stage has what the current rate sends in this time instead (Hayashi et al. 2011), in 2^-32 s.
    pub volume_time: u64,
    /// Time of a stage by time.
    pub stage_time: u64,
    /// R_AI.
    pub active_bytes_per_s: u64,
    /// R_HAI.
    pub hyper_bytes_per_s: u64,
    /// From this stage on the target rises.
    pub stages: u32,
    /// 1: a notification lowers the target to the rate even before any stage by volume. The standard does not.
    pub clamp_target: u32,
}

/// A reaction point's rate limiter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limiter {
    /// Current rate, CR, bytes per second; 0: no limit.
    pub rate: u64,
    /// Target rate, TR.
    pub target: u64,
    /// Bytes that had been sent when the current stage by volume began.
    pub since_bytes: u64,
    /// When the current stage by time ends.
    pub stage_due: u64,
    /// Complete stages by volume since the last notification.
    pub by_volume: u32,
    /// Complete stages by time.
    pub by_time: u32,
}

impl Default for Limiter {
    fn default() -> Self {
        Self::new()
    }
}

impl Limiter {
    /// No limit.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            rate: 0,
            target: 0,
            since_bytes: 0,
            stage_due: NEVER,
            by_volume: 0,
            by_time: 0,
        }
    }

    /// Its rate; `None`: no limit, frames are sent at the link's rate.
    #[inline(always)]
    #[must_use]
    pub const fn limit(&self) -> Option<u64> {
        match self.rate {
            0 => None,
            rate => Some(rate),
        }
    }

    /// A notification of `feedback`, 0 to 63, after `sent_bytes`. To be called after [`Limiter::advance`].
    #[inline(always)]
    pub fn on_notification(&mut self, policy: &Policy, feedback: u32, sent_bytes: u64, now: u64) {
        let line = policy.line_bytes_per_s;
        if self.rate == 0 {
            (self.rate, self.target) = (line, line);
        }
        if policy.clamp_target != 0 || self.by_volume > 0 {
            self.target = self.rate;
        }
        let feedback = feedback.min(MAX_FEEDBACK) as u64;
        // At most all of it, 32 fractional bits.
        let share = (policy.decrease * feedback).min(1 << 32);
        let cut = fixed::mul_shift(self.rate, share, 32);
        let least = fixed::mul_shift(self.rate, policy.min_decrease, 32);
        let least = least.max(policy.min_bytes_per_s);
        self.rate = self.rate.saturating_sub(cut).max(least);
        (self.by_volume, self.by_time) = (0, 0);
        self.since_bytes = sent_bytes;
        self.stage_due = now.saturating_add(policy.stage_time);
        // Feedback that rounds to 0 sets no limiter.
        if self.rate >= line {
            *self = Self::new();
        }
    }

    /// Completes a stage that is over after `sent_bytes`, those by time first. Whether there was one: then there may be
    /// another.
    #[inline(always)]
    pub fn advance(&mut self, policy: &Policy, sent_bytes: u64, now: u64) -> bool {
        if self.rate == 0 {
            return false;
        }
        let volume = self.volume(policy) >> self.is_hyper(policy) as u32;
        if self.stage_due <= now {
            self.by_time = self.by_time.saturating_add(1);
            let time = policy.stage_time >> self.is_hyper(policy) as u32;
            self.stage_due = self.stage_due.saturating_add(time);
        } else if sent_bytes.wrapping_sub(self.since_bytes) >= volume {
            self.since_bytes = self.since_bytes.wrapping_add(volume);
            self.by_volume = self.by_volume.saturating_add(1);
        } else {
            return false;
        }
        self.increase(policy);
        true
    }

    /// Bytes of a stage by volume.
    #[inline(always)]
    fn volume(&self, policy: &Policy) -> u64 {
        match policy.volume_time {
            0 => policy.volume_bytes,
            time => fixed::mul_shift(self.rate, time, 32).max(1_000),
        }
    }

    /// Both counters are beyond fast recovery: stages are half as long.
    #[inline(always)]
    fn is_hyper(&self, policy: &Policy) -> bool {
        self.by_volume.min(self.by_time) >= policy.stages
    }

    #[inline(always)]
    fn increase(&mut self, policy: &Policy) {
        let line = policy.line_bytes_per_s;
        let first = self.by_volume == 1 || self.by_time == 1;
        // Above ten times the rate.
        if first && self.target.saturating_sub(1) / 10 >= self.rate {
            self.target /= 8;
        }
        let fewer = self.by_volume.min(self.by_time);
        let step = if fewer >= policy.stages {
            let i = (fewer - policy.stages) as u64 + 1;
            fixed::mul_shift(policy.hyper_bytes_per_s, i << 1, 1)
        } else if self.by_volume.max(self.by_time) >= policy.stages {
            policy.active_bytes_per_s
        } else {
            0
        };
        if step != 0 {
            self.target = self.target.saturating_add(step).min(line);
        }
        // Half-way, rounded up: it arrives.
        self.rate = (self.target + self.rate).div_ceil(2);
        if self.rate >= line {
            *self = Self::new();
        }
    }
}
