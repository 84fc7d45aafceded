//! Notifications of a port, BCN and QCN: what is sampled, which sources are notified, and how flows react.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ecn_core::backward::{
    BY_CLOCK, BY_MESSAGE, Kind, Point, Quoted, Report, Sample, Sampling, TAG_NS,
};
use ecn_core::bcn::{self, Feedback, Gains};
use ecn_core::echo::Refusal;
use ecn_core::flow::Flow;
use ecn_core::reaction::{Policy, Reaction, SILENCE_NS};
use ecn_core::{fixed, qcn, response};
use proptest::prelude::*;

/// 100 Mb/s.
const LINE: u64 = 12_500_000;
const FRAME: u32 = 1_500;
const SECOND: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

fn sampling(kind: Kind) -> Sampling {
    Sampling {
        kind: kind as u32,
        equilibrium_bytes: 8 * FRAME,
        weight: 2,
        packet_bytes: FRAME,
        interval: if kind == Kind::Qcn { 50 * FRAME } else { 1 },
        severe_bytes: 0,
        jitter: 0,
    }
}

fn policy() -> Policy {
    let gains = Gains {
        frame_bytes: FRAME,
        equilibrium_bytes: 8 * FRAME,
        ..Gains::defaults(LINE)
    };
    Policy {
        bcn: bcn::Policy::new(&gains).unwrap(),
        qcn: qcn::Policy {
            line_bytes_per_s: LINE,
            min_bytes_per_s: LINE / 2_000,
            decrease: (1 << 32) / 128,
            min_decrease: 1 << 31,
            volume_bytes: 75_000,
            volume_time: 0,
            stage_time: 150 * MS,
            active_bytes_per_s: LINE / 2_000,
            hyper_bytes_per_s: LINE / 200,
            stages: 5,
            clamp_target: 0,
        },
    }
}

fn notification(kind: Kind, point: u64, sequence: u32, feedback: u32) -> Report {
    Report {
        point,
        sequence,
        marks: feedback,
        flags: BY_MESSAGE,
        kind: kind as u32,
        ..Report::default()
    }
}

/// Frames.
fn word(offset: i32, delta: i32) -> u32 {
    let feedback = Feedback {
        offset_bytes: offset * FRAME as i32,
        delta_bytes: delta * FRAME as i32,
    };
    feedback.to_word()
}

const CLOCK: Report = Report {
    point: 0,
    sequence: 0,
    marks: 0,
    quote: 0,
    flags: BY_CLOCK,
    kind: 0,
    acknowledgment: 0,
};

#[test]
fn bcn_notifies_all_above_equilibrium_and_tagged_flows_below() {
    let sampling = sampling(Kind::Bcn);
    let mut point = Point::default();
    let mut at = |waiting| point.sample(&sampling, 1, FRAME, waiting).unwrap();
    // Long and growing.
    let long = at(9);
    assert_eq!(long.0 & Sample::FALLS, Sample::FALLS);
    assert!(long.is_for(false) && long.is_for(true));
    assert_eq!(Feedback::from_word(long.0 as u32).offset_bytes, -1_472);
    // Shrinking fast, it may increase: only slowed-down sources are notified, although the queue is beyond the equilibrium.
    point.sampled.sampled_bytes = 20 * FRAME;
    let mut at = |waiting| point.sample(&sampling, 1, FRAME, waiting).unwrap();
    let shrinking = at(9);
    assert_eq!(shrinking.0 & Sample::FALLS, 0);
    assert!(!shrinking.is_for(false) && shrinking.is_for(true));
    // Short, but growing.
    at(0);
    let growing = at(7);
    assert_eq!(growing.0 & Sample::FALLS, Sample::FALLS);
    assert!(!growing.is_for(false) && growing.is_for(true));
}

#[test]
fn zero_feedback_is_not_sent_as_a_stop() {
    let mut sampling = sampling(Kind::Bcn);
    let mut point = Point::default();
    assert_eq!(
        point.sample(&sampling, 1, FRAME, 8).map(|s| s.0 as u32),
        Some(word(0, 8))
    );
    assert_eq!(point.sample(&sampling, 1, FRAME, 8), None);
    sampling.severe_bytes = 30 * FRAME;
    let stop = point.sample(&sampling, 1, FRAME, 31).unwrap();
    assert_eq!(stop.0 as u32, bcn::STOP);
    assert!(stop.is_for(false) && stop.0 & Sample::FALLS != 0);
}

/// BCN counts packets, QCN bytes, and QCN samples sooner with larger feedback.
#[test]
fn queues_are_sampled_after_packets_or_bytes() {
    let between = |sampling: &Sampling, waiting| {
        let mut point = Point::default();
        point.sampled.sampled_bytes = waiting * FRAME;
        point.sample(sampling, 1, FRAME, waiting);
        (1..).find(|_| point.sample(sampling, 1, FRAME, waiting).is_some())
    };
    let often = Sampling {
        interval: 70,
        ..sampling(Kind::Bcn)
    };
    assert_eq!(between(&often, 20), Some(70));
    // 12 frames too many, of 40 for the largest feedback: 63 12/40 = 18, the third interval.
    let qcn = sampling(Kind::Qcn);
    assert_eq!(between(&qcn, 20), Some(25_000_u32.div_ceil(FRAME)));
}

#[test]
fn intervals_are_spread_evenly() {
    let sampling = Sampling {
        interval: 70,
        jitter: (1 << 32) - 1,
        ..sampling(Kind::Bcn)
    };
    let mut point = Point::default();
    let samples = (0..700_000).filter(|n| point.sample(&sampling, 1, FRAME, 9 + n % 2).is_some());
    let samples = samples.count();
    // Of 10,000 the standard deviation is 58.
    assert!((9_800..10_200).contains(&samples), "{samples}");
}

#[test]
fn a_port_remembers_the_flows_it_slowed_down() {
    let (now, flow, point) = (1 << 40, 77, 0x1234_5601);
    let tag = Quoted::tag(point, flow);
    let entry = tag.entry(now);
    assert!(tag.is_tagged(entry, now) && tag.is_tagged(entry, now + TAG_NS - SECOND));
    assert!(!tag.is_tagged(entry, now + TAG_NS + SECOND));
    for other in [Quoted::tag(point, flow + 1), Quoted::tag(point + 1, flow)] {
        assert!(other.place != tag.place || !other.is_tagged(entry, now));
    }
}

#[test]
fn only_the_point_that_lowered_a_rate_raises_it() {
    let (policy, mut flow) = (policy(), Reaction::new());
    let mut receive = |point, sequence, word| {
        flow.on_notification(
            &policy,
            &notification(Kind::Bcn, point, sequence, word),
            0,
            0,
        );
        flow.rate()
    };
    assert_eq!(receive(1, 1, word(4, 0)), None);
    let lowered = receive(1, 2, word(-32, 0)).unwrap();
    assert!(lowered.abs_diff(LINE * 3 / 4) < LINE / 1_000, "{lowered}");
    assert_eq!(receive(2, 1, word(8, 0)), Some(lowered));
    assert!(receive(1, 3, word(2, 0)).unwrap() > lowered);
    // Until another one lowers it.
    let lowered = receive(2, 2, word(-8, 0)).unwrap();
    assert_eq!(receive(1, 4, word(2, 0)), Some(lowered));
    // B6: at the link's rate the limiter is removed.
    for sequence in 3..40 {
        if receive(2, sequence, word(8, 0)).is_none() {
            return;
        }
    }
    panic!("the limiter stays");
}

#[test]
fn no_single_sample_takes_all_of_a_rate() {
    let (sampling, policy) = (sampling(Kind::Bcn), policy());
    let (mut point, mut flow) = (Point::default(), Reaction::new());
    let longest = point.sample(&sampling, 1, FRAME, 10_000).unwrap();
    let feedback = Feedback::from_word(longest.0 as u32);
    let (qeq, weight) = (sampling.equilibrium_bytes as i64, sampling.weight);
    let range = qeq * (2 * weight as i64 + 1);
    // In units of 64 bytes, rounded to zero.
    assert!(feedback.value(weight) >= -range && feedback.value(weight) < -range + 64 * 5);
    flow.on_notification(
        &policy,
        &notification(Kind::Bcn, 1, 1, longest.0 as u32),
        0,
        0,
    );
    assert!(flow.rate() > Some(LINE / 4), "{:?} of {LINE}", flow.rate());
}

#[test]
fn a_stopped_source_restarts_with_a_tenth() {
    let (policy, mut flow) = (policy(), Reaction::new());
    flow.on_notification(&policy, &notification(Kind::Bcn, 1, 7, bcn::STOP), 0, 0);
    assert_eq!(flow.rate(), Some(policy.bcn.min_bytes_per_s));
    let waits = flow.limiter.stage_due;
    assert!(waits > 0 && waits <= 50 * MS);
    flow.advance(&policy, 0, waits - 1);
    // Sampled before: neither raises the rate nor ends the stop.
    flow.on_notification(
        &policy,
        &notification(Kind::Bcn, 1, 8, word(100, 0)),
        0,
        waits - 1,
    );
    assert_eq!(flow.rate(), Some(policy.bcn.min_bytes_per_s));
    flow.advance(&policy, 0, waits);
    assert_eq!(flow.rate(), Some(LINE / 10));
}

#[test]
fn a_forgotten_flow_recovers() {
    let (policy, mut flow) = (policy(), Reaction::new());
    flow.on_notification(&policy, &notification(Kind::Bcn, 1, 1, word(-300, 0)), 0, 0);
    let least = flow.rate().unwrap();
    assert_eq!(least, policy.bcn.min_bytes_per_s);
    flow.advance(&policy, 0, SILENCE_NS - 1);
    assert_eq!(flow.rate(), Some(least));
    let mut now = SILENCE_NS;
    while let Some(rate) = flow.rate() {
        flow.advance(&policy, 0, now);
        assert!(flow.rate().is_none_or(|next| next == 2 * rate));
        now += SECOND;
    }
    assert!(now < SILENCE_NS + 13 * SECOND, "{now}");
}

/// Of a flow: checks, rate, delay, and when the agent is notified.
#[test]
fn a_flow_obeys_new_notifications_once() {
    let (policy, mut flow) = (policy(), Flow::new());
    flow.sent_bytes = 1_000_000;
    let cut = notification(Kind::Qcn, 1, 5, 63);
    assert_eq!(flow.accept_notification(&cut), Ok(()));
    assert_eq!(flow.accept_notification(&cut), Err(Refusal::Duplicate));
    assert!(flow.react(&policy, &cut, LINE, SECOND));
    let rate = flow.rate_bytes_per_s;
    assert_eq!(rate, LINE - LINE * 63 / 128);
    assert_eq!((flow.decreases, flow.is_limited(LINE)), (1, true));
    let back = response::rate(flow.response.ipd, LINE);
    assert!(back.abs_diff(rate) <= 1, "{back} {rate}");
    // Half-way back after the first stage, by time or by volume.
    flow.class = 7;
    assert!(!flow.react(&policy, &CLOCK, LINE, SECOND + 149 * MS));
    assert!(flow.react(&policy, &CLOCK, LINE, SECOND + 150 * MS));
    assert_eq!(flow.rate_bytes_per_s, (rate + LINE).div_ceil(2));
    flow.sent_bytes += 75_000;
    assert!(flow.react(&policy, &CLOCK, LINE, SECOND + 151 * MS));
    // Once it is back, at full rate.
    let mut now = SECOND + 151 * MS;
    while flow.is_limited(LINE) {
        now += 150 * MS;
        flow.react(&policy, &CLOCK, LINE, now);
    }
    assert_eq!(
        (flow.reaction.rate(), flow.response.ipd),
        (None, fixed::ONE)
    );
    assert_eq!(flow.notified_bytes_per_s, LINE);
}

#[test]
fn a_notification_of_tcp_quotes_what_was_sent() {
    let mut flow = Flow::new();
    let mut report = notification(Kind::Bcn, 1, 1, word(-8, 0));
    report.flags |= u32::from(ecn_core::backward::BY_NUMBER);
    flow.on_tcp_send(0, false, 5_000, 1_000, 1_000);
    report.quote = 900_000;
    assert_eq!(flow.accept_notification(&report), Err(Refusal::Impossible));
    report.quote = 5_000;
    assert_eq!(flow.accept_notification(&report), Ok(()));
}

proptest! {
    /// For any notifications at any time, rates stay between the lowest and the link's.
    #[test]
    fn rates_keep_their_bounds(
        notifications in prop::collection::vec((0_u8..4, 0_u64..3, any::<u32>(), 0_u64..3 * SECOND, 0_u64..200_000), 1..200)
    ) {
        let (policy, mut flow) = (policy(), Flow::new());
        let mut now = SECOND;
        for (sequence, (what, point, feedback, later, bytes)) in notifications.into_iter().enumerate() {
            now += later;
            flow.sent_bytes += bytes;
            let report = match what {
                0 => CLOCK,
                1 => notification(Kind::Qcn, point, sequence as u32, feedback % 64),
                _ => notification(Kind::Bcn, point, sequence as u32, feedback),
            };
            flow.react(&policy, &report, LINE, now);
            let least = policy.qcn.min_bytes_per_s.min(policy.bcn.min_bytes_per_s);
            prop_assert!((least..=LINE).contains(&flow.rate_bytes_per_s));
            prop_assert_eq!(flow.is_limited(LINE), flow.reaction.rate().is_some());
        }
    }
}
