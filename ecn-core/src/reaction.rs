//! Reaction points (IEEE 802.1Qau): what a flow does when a congested port notifies its source, by [`bcn`] or [`qcn`].
//!
//! The rate of such a flow is its limiter's; a limiter that has come back to the link's rate is removed. The source hears
//! of a queue only when a packet of the flow is sampled there, and whatever else is to happen does so when the flow sends,
//! at most once in [`crate::backward::CLOCK_NS`]: QCN's stages, the end of BCN's stop, and, if a BCN port has been
//! silent for [`SILENCE_NS`], the doubling of the rate for each second: its message may have been lost, or it has
//! forgotten the flow.

use crate::{
    backward::{Kind, Report},
    bcn, qcn,
};

/// A congestion point that sends nothing for this long has forgotten the flow.
pub const SILENCE_NS: u64 = 4_000_000_000;
/// After that its rate is doubled each time.
const DOUBLES_NS: u64 = 1_000_000_000;
/// BCN(0, 0): the longest time for which a source stops.
const STOP_NS: u64 = 50_000_000;
/// The share of the link's rate with which it restarts.
const RESTART: u64 = 10;
/// QCN's stages that can be over at a time.
const STAGES: u32 = 4;

/// Both kinds' parameters at an endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Of BCN.
    pub bcn: bcn::Policy,
    /// Of QCN, times in nanoseconds.
    pub qcn: qcn::Policy,
}

/// A flow's reaction point.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reaction {
    /// The limiter. Of BCN only its rate, the timer for silence and stops as [`qcn::Limiter::stage_due`], and 1 as
    /// [`qcn::Limiter::by_time`] while the source is stopped.
    pub limiter: qcn::Limiter,
    /// A [`Kind`]: whose limiter it is.
    pub kind: u32,
    /// The congestion point that it obeys, the last that lowered its rate: [`point`].
    pub point: u32,
}

/// A congestion point's identifier in a word.
#[inline(always)]
#[must_use]
pub const fn point(id: u64) -> u32 {
    (id.wrapping_mul(crate::fixed::GOLDEN) >> 32) as u32
}

impl Reaction {
    /// No limiter.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            limiter: qcn::Limiter::new(),
            kind: 0,
            point: 0,
        }
    }

    /// Its rate, bytes per second; `None`: no limit.
    #[inline(always)]
    #[must_use]
    pub const fn rate(&self) -> Option<u64> {
        self.limiter.limit()
    }

    /// A notification, of [`Kind::Bcn`] or [`Kind::Qcn`], after `sent_bytes`.
    #[inline(always)]
    pub fn on_notification(
        &mut self,
        policy: &Policy,
        report: &Report,
        sent_bytes: u64,
        now_ns: u64,
    ) {
        self.advance(policy, sent_bytes, now_ns);
        let point = point(report.point);
        if report.kind == Kind::Qcn as u32 {
            self.take_over(policy, report.kind);
            let limiter = &mut self.limiter;
            limiter.on_notification(&policy.qcn, report.marks, sent_bytes, now_ns);
            (self.kind, self.point) = (report.kind, point);
            return;
        }
        let feedback = bcn::Feedback::from_word(report.marks);
        let stop = report.marks == bcn::STOP;
        let falls = stop || feedback.value(policy.bcn.weight) < 0;
        // Only the congestion point that a limiter obeys may raise its rate: others on the way are not congested.
        let raises = self.rate().is_some() && self.point == point;
        // What was sampled before a stop does not end it.
        let stopped = self.kind == Kind::Bcn as u32 && self.limiter.by_time != 0;
        if (!falls && !raises) || (stopped && !stop) {
            return;
        }
        self.take_over(policy, report.kind);
        let limiter = &mut self.limiter;
        let mut of = bcn::Limiter::new(limiter.rate);
        of.on_feedback(&policy.bcn, feedback);
        limiter.rate = of.rate().unwrap_or(0);
        limiter.by_time = stop as u32;
        let wait = if stop {
            limiter.rate = policy.bcn.min_bytes_per_s;
            // As random as the number of the message.
            let random = report.sequence.wrapping_mul(0x9e37_79b1) as u64;
            (STOP_NS * random) >> 32
        } else {
            SILENCE_NS
        };
        limiter.stage_due = now_ns.saturating_add(wait);
        self.kind = report.kind;
        if falls {
            self.point = point;
        }
    }

    /// Of the other kind's limiter only the rate stays.
    #[inline(always)]
    fn take_over(&mut self, policy: &Policy, kind: u32) {
        if self.kind != kind && self.limiter.rate != 0 {
            self.limiter = qcn::Limiter {
                rate: self.limiter.rate,
                target: policy.qcn.line_bytes_per_s,
                ..qcn::Limiter::new()
            };
        }
    }

    /// What time and volume have done by now.
    #[inline(always)]
    pub fn advance(&mut self, policy: &Policy, sent_bytes: u64, now_ns: u64) {
        let limiter = &mut self.limiter;
        if self.kind == Kind::Qcn as u32 {
            let mut stage = 0;
            while stage < STAGES && limiter.advance(&policy.qcn, sent_bytes, now_ns) {
                stage += 1;
            }
        } else if limiter.rate != 0 && now_ns >= limiter.stage_due {
            let line = policy.bcn.line_bytes_per_s;
            let rate = if limiter.by_time != 0 {
                (line / RESTART).max(limiter.rate)
            } else {
                limiter.rate.saturating_add(limiter.rate)
            };
            limiter.rate = if rate >= line { 0 } else { rate };
            limiter.by_time = 0;
            limiter.stage_due = now_ns.saturating_add(DOUBLES_NS);
        }
    }
}
