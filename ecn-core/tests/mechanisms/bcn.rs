//! Backward congestion notification: notifications, rates, and a loop of both points.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::VecDeque;

use ecn_core::bcn::{
    CongestionPoint, Feedback, Gains, Granularity, Key, Limiter, Policy, PolicyError,
};
use ecn_core::response::Ratio;
use proptest::prelude::*;

/// 10 Gb/s.
const LINE: u64 = 1_250_000_000;
const FRAME: u32 = 1_500;

fn policy() -> Policy {
    Policy::new(&Gains::defaults(LINE)).unwrap()
}

fn frames(offset: i32, delta: i32) -> Feedback {
    Feedback {
        offset_bytes: offset * FRAME as i32,
        delta_bytes: delta * FRAME as i32,
    }
}

#[test]
fn untagged_frames_are_answered_beyond_the_equilibrium_only() {
    let policy = policy();
    let mut point = CongestionPoint::default();
    assert_eq!(point.sample(policy.equilibrium_bytes, 24_000, false), None);
    // Samples without a notification count for Qdelta.
    let feedback = point
        .sample(policy.equilibrium_bytes, 25_500, false)
        .unwrap();
    assert_eq!(feedback, frames(-1, 1));
    assert_eq!(feedback.value(policy.weight), -3 * 1_500);
    // Tagged frames always, with either sign.
    assert_eq!(
        point.sample(policy.equilibrium_bytes, 25_500, true),
        Some(frames(-1, 0))
    );
    assert_eq!(
        point.sample(policy.equilibrium_bytes, 0, true),
        Some(frames(16, -17))
    );
    assert_eq!(
        point.sample(policy.equilibrium_bytes, 0, true),
        Some(frames(16, 0))
    );
}

#[test]
fn decrease_is_a_share_and_increase_a_sum() {
    let policy = policy();
    let mut limiter = Limiter::default();
    // Nothing to raise.
    limiter.on_feedback(&policy, frames(16, 0));
    assert_eq!(limiter.rate(), None);
    // Fb = -64 frames of 128: half, but for the rounding of Gd to 2^-40 a byte.
    limiter.on_feedback(&policy, frames(-64, 0));
    let rate = limiter.rate().unwrap();
    assert!(rate.abs_diff(LINE / 2) < 100, "{rate}");
    // Gi Fb Ru = 4 * 16 * 8 Mb/s.
    limiter.on_feedback(&policy, frames(16, 0));
    assert!(limiter.rate().unwrap().abs_diff(rate + 64_000_000) <= 1);
    // B6: at the link's rate there is no limiter.
    for _ in 0..8 {
        limiter.on_feedback(&policy, frames(16, 0));
        assert!(limiter.rate().is_some());
    }
    limiter.on_feedback(&policy, frames(16, 0));
    assert_eq!(limiter.rate(), None);
    // A decrease below zero leaves the lowest rate.
    limiter.on_feedback(&policy, frames(-200, 0));
    assert_eq!(limiter.rate(), Some(1_000_000));
}

#[test]
fn exhausted_limiters_are_shared() {
    let fall_back = |most: Granularity| {
        Key::fall_back(Granularity::Flow, 1, 2, 3, |key| {
            key.granularity >= most as u32
        })
    };
    let key = |source, destination, priority, granularity| Key {
        source,
        destination,
        priority,
        granularity,
    };
    assert_eq!(fall_back(Granularity::Flow), key(1, 2, 3, 0));
    assert_eq!(fall_back(Granularity::Destination), key(0, 2, 3, 1));
    assert_eq!(fall_back(Granularity::Priority), key(0, 0, 3, 2));
    assert_eq!(fall_back(Granularity::Link), key(0, 0, 0, 3));
    let none = Key::fall_back(Granularity::Priority, 1, 2, 3, |_| false);
    assert_eq!(none, Key::new(Granularity::Link, 0, 0, 0));
}

#[test]
fn gains_out_of_range_are_refused() {
    let usual = Gains::defaults(LINE);
    let refused = |gains| Policy::new(&gains).unwrap_err();
    let rmin = |min_bytes_per_s| Gains {
        min_bytes_per_s,
        ..usual
    };
    assert_eq!(refused(rmin(0)), PolicyError::Rate);
    assert_eq!(refused(rmin(LINE + 1)), PolicyError::Rate);
    let gd = |decrease| Gains { decrease, ..usual };
    assert_eq!(refused(gd(Ratio::new(3, 2))), PolicyError::Decrease);
    assert_eq!(refused(gd(Ratio::new(0, 1))), PolicyError::Decrease);
    assert_eq!(refused(gd(Ratio::new(1, 0))), PolicyError::Decrease);
    let gi = |increase| Gains { increase, ..usual };
    assert_eq!(refused(gi(Ratio::new(0, 1))), PolicyError::Increase);
    assert_eq!(refused(gi(Ratio::new(u64::MAX, 1))), PolicyError::Increase);
    let frame = Gains {
        frame_bytes: 0,
        ..usual
    };
    assert_eq!(refused(frame), PolicyError::Frame);
    let weight = Gains {
        weight: 1_025,
        ..usual
    };
    assert_eq!(refused(weight), PolicyError::Weight);
}

/// Sources of 10 Gb/s share a link of 10 Gb/s, simulated in frame times. Every 100th frame is sampled, and its source is
/// notified `delay` frame times later. Returns the queue at each frame time, frames; lost frames are not counted.
fn closed_loop(sources: usize, delay: u64, answer: impl Fn(Feedback) -> Feedback) -> Vec<u32> {
    const LIMIT: u32 = 1_000;
    let policy = policy();
    let mut point = CongestionPoint::default();
    let mut limiters = vec![Limiter::default(); sources];
    let mut credits: Vec<u64> = (0..sources as u64).map(|n| n * LINE / 7).collect();
    let mut notifications: VecDeque<(u64, usize, Feedback)> = VecDeque::new();
    let (mut queue, mut arrived) = (0_u32, 0_u32);
    (0..400_000)
        .map(|now| {
            while let Some((_, source, feedback)) =
                notifications.pop_front_if(|(at, ..)| *at <= now)
            {
                limiters[source].on_feedback(&policy, feedback);
            }
            for source in 0..sources {
                let rate = limiters[source].rate();
                credits[source] += rate.unwrap_or(LINE);
                if credits[source] < LINE {
                    continue;
                }
                credits[source] -= LINE;
                arrived += 1;
                queue = (queue + 1).min(LIMIT);
                if arrived.is_multiple_of(100)
                    && let Some(feedback) =
                        point.sample(policy.equilibrium_bytes, queue * FRAME, rate.is_some())
                {
                    notifications.push_back((now + delay, source, answer(feedback)));
                }
            }
            queue = queue.saturating_sub(1);
            queue
        })
        .collect()
}

fn mean(queue: &[u32]) -> f64 {
    queue.iter().copied().map(f64::from).sum::<f64>() / queue.len() as f64
}

/// B2 for one queue and a short delay: around Qeq, 16 frames.
#[test]
fn the_queue_stays_about_its_equilibrium() {
    for sources in [2, 5, 10] {
        let queue = closed_loop(sources, 8, |feedback| feedback);
        let settled = mean(&queue[200_000..]);
        assert!((8.0..24.0).contains(&settled), "{sources}: {settled}");
    }
}

/// B7: with the offset's sign reversed the queue parks at its limit.
#[test]
fn with_the_wrong_sign_the_queue_stays_at_its_limit() {
    let queue = closed_loop(5, 8, |feedback| Feedback {
        offset_bytes: -feedback.offset_bytes,
        ..feedback
    });
    assert!(mean(&queue[200_000..]) > 900.0);
}

proptest! {
    /// Rates stay in their bounds, move with the sign of Fb, and no limiter is at the link's rate.
    #[test]
    fn rates_stay_in_their_bounds(
        feedback in prop::collection::vec((any::<i32>(), any::<i32>()), 1..200),
        small in prop::collection::vec((-100_000..100_000_i32, -30_000..30_000_i32), 1..200),
    ) {
        let policy = policy();
        let mut limiter = Limiter::default();
        for (offset_bytes, delta_bytes) in small.into_iter().chain(feedback) {
            let feedback = Feedback { offset_bytes, delta_bytes };
            let before = limiter.rate().unwrap_or(LINE);
            limiter.on_feedback(&policy, feedback);
            let after = limiter.rate().unwrap_or(LINE);
            prop_assert!((1_000_000..=LINE).contains(&after));
            prop_assert!(limiter.rate() != Some(LINE));
            if feedback.value(policy.weight) < 0 {
                prop_assert!(after <= before);
            } else {
                prop_assert!(after >= before);
            }
        }
    }

    /// A long queue that does not shrink never causes an increase.
    #[test]
    fn a_long_queue_that_grows_slows_down(q in 24_000..u32::MAX, before in 0..u32::MAX, tagged: bool) {
        let policy = policy();
        let mut point = CongestionPoint::default();
        point.sample(policy.equilibrium_bytes, before.min(q), tagged);
        if let Some(feedback) = point.sample(policy.equilibrium_bytes, q, tagged) {
            prop_assert!(feedback.value(policy.weight) <= 0);
        }
    }
}
