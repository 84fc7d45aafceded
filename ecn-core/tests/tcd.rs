//! A port's three states: each of the six arrows, and what holds in any run.

use ecn_core::packet::{CE, NOT_ECT};
use ecn_core::response::Ratio;
use ecn_core::tcd::{
    CAPABLE, Mark, Policy, Port, State, UE, ecn_leaving_by, max_on_cbfc_ns, max_on_pfc_ns,
};
use proptest::prelude::*;

const POLICY: Policy = Policy {
    threshold_bytes: 40_000,
    max_on_ns: 50_400,
    window_ns: 50_400,
};
const SHORT: u64 = 10_000;
const LONG: u64 = 80_000;

/// Paused, and going on at time 0.
fn resumed() -> Port {
    let mut port = Port::default();
    port.off();
    port.on(0);
    port
}

#[test]
fn never_paused_it_is_the_threshold_that_decides() {
    let mut port = Port::default();
    assert_eq!(port.dequeue(&POLICY, 0, 40_000), State::NonCongestion);
    assert_eq!(port.dequeue(&POLICY, 1, 40_001), State::Congestion);
    assert_eq!(port.dequeue(&POLICY, 2, 40_000), State::NonCongestion);
    // Told to go on, it was not waiting.
    port.on(3);
    assert_eq!(port.dequeue(&POLICY, 4, LONG), State::Congestion);
}

#[test]
fn a_pause_hides_either_state() {
    for queue in [SHORT, LONG] {
        let mut port = Port::default();
        port.dequeue(&POLICY, 0, queue);
        port.off();
        assert_eq!(port.state(&POLICY, u64::MAX), State::Undetermined);
        port.on(10);
        assert_eq!(port.dequeue(&POLICY, 11, queue), State::Undetermined);
    }
}

#[test]
fn a_queue_that_drains_after_the_pattern_was_left_over() {
    let mut port = resumed();
    assert_eq!(port.dequeue(&POLICY, 50_399, 90_000), State::Undetermined);
    assert_eq!(port.dequeue(&POLICY, 50_400, 90_000), State::Undetermined);
    assert_eq!(port.dequeue(&POLICY, 100_799, 90_000), State::Undetermined);
    // Still above the threshold, but less; and so it goes on.
    for (now, queue) in [(100_800, 89_999), (120_000, 95_000), (151_200, 60_000)] {
        assert_eq!(port.dequeue(&POLICY, now, queue), State::NonCongestion);
    }
    // Until it grows, or is gone: then it is a queue as any other.
    let mut gone = port;
    assert_eq!(gone.dequeue(&POLICY, 160_000, 40_000), State::NonCongestion);
    assert_eq!(gone.dequeue(&POLICY, 160_001, 40_001), State::Congestion);
    assert_eq!(port.dequeue(&POLICY, 201_600, 60_001), State::Congestion);
}

#[test]
fn a_queue_that_grows_is_congestion() {
    let mut port = resumed();
    port.dequeue(&POLICY, 50_400, LONG);
    assert_eq!(port.dequeue(&POLICY, 100_800, LONG + 1), State::Congestion);
    // Below the threshold it is none.
    let mut port = resumed();
    port.dequeue(&POLICY, 50_400, SHORT);
    assert_eq!(port.dequeue(&POLICY, 100_800, 40_000), State::NonCongestion);
}

/// Behind a port that was paused as well and sends what it holds, as much comes as goes.
#[test]
fn a_queue_that_stays_was_left_over() {
    let mut port = resumed();
    for window in 1..10 {
        let now = window * 50_400;
        let state = port.dequeue(&POLICY, now, LONG);
        assert_eq!(state == State::Undetermined, window < 2);
        assert_ne!(state, State::Congestion);
    }
}

#[test]
fn another_pause_begins_anew() {
    let mut port = resumed();
    port.dequeue(&POLICY, 50_400, LONG);
    port.off();
    port.on(60_000);
    for now in [60_000, 100_800, 110_399, 110_400, 160_799] {
        assert_eq!(port.dequeue(&POLICY, now, LONG), State::Undetermined);
    }
    assert_eq!(port.dequeue(&POLICY, 160_800, LONG + 1), State::Congestion);
}

#[test]
fn a_queue_that_empties_after_the_pattern_is_none() {
    let mut port = resumed();
    // Before its end it may be what the pattern does.
    assert_eq!(port.dequeue(&POLICY, 50_000, 0), State::Undetermined);
    port.dequeue(&POLICY, 50_400, 1_000);
    assert_eq!(port.dequeue(&POLICY, 50_500, 0), State::NonCongestion);
    // Nor does it wait for a packet to find out.
    let port = resumed();
    assert_eq!(port.state(&POLICY, 100_800), State::Undetermined);
    assert_eq!(port.state(&POLICY, 100_801), State::NonCongestion);
}

/// Section 3, derived values.
#[test]
fn the_longest_on_of_pfc() {
    let gbit = |gbit: u64| gbit * 125_000_000;
    let twentieth = Ratio::new(1, 20);
    let on = |gap, rate, tau, epsilon| max_on_pfc_ns(gap, gbit(rate), tau, epsilon);
    assert_eq!(on(2_000, 40, 8_000, twentieth), Some(176_400));
    assert_eq!(on(2_000, 40, 2_000, twentieth), Some(50_400));
    assert_eq!(on(3_000, 100, 2_000, twentieth), Some(47_040));
    assert_eq!(on(2_000, 40, 2_000, Ratio::new(1, 4)), Some(12_000));
    // epsilon = 1, checked there with a fluid simulation.
    assert_eq!(on(4_000, 40, 4_000, Ratio::new(1, 1)), Some(9_600));
    for epsilon in [Ratio::new(0, 1), Ratio::new(1, 0)] {
        assert_eq!(on(2_000, 40, 2_000, epsilon), None);
    }
    assert_eq!(on(2_000, 0, 2_000, twentieth), None);
    assert_eq!(on(2_000, 40, u64::MAX, twentieth), None);
    assert_eq!(max_on_cbfc_ns(65_536), 65_536);
}

#[test]
fn codepoints_are_read_as_they_are_written() {
    for mark in [Mark::None, Mark::Undetermined, Mark::Congestion] {
        assert_eq!(Mark::from_ecn(mark.ecn()), mark);
    }
    assert_eq!(ecn_leaving_by(CAPABLE, State::Undetermined), UE);
    assert_eq!(ecn_leaving_by(UE, State::Congestion), CE);
    assert_eq!(ecn_leaving_by(CE, State::Undetermined), CE);
    assert_eq!(ecn_leaving_by(NOT_ECT, State::Congestion), NOT_ECT);
}

fn state() -> impl Strategy<Value = State> {
    prop::sample::select(vec![
        State::NonCongestion,
        State::Congestion,
        State::Undetermined,
    ])
}

/// What happens to a port: nanoseconds later, 0 paused, 1 goes on, else a packet is sent.
fn events() -> impl Strategy<Value = Vec<(u64, u8, u64)>> {
    prop::collection::vec((0u64..5_000, 0u8..40, 0u64..100_000), 1..500)
}

proptest! {
    /// T9: along a path nothing is taken back, and CE is there if and only if a port was congested.
    #[test]
    fn marks_are_never_taken_back(path in prop::collection::vec(state(), 0..10)) {
        let mut field = CAPABLE;
        let mut mark = Mark::None;
        for state in &path {
            let next = ecn_leaving_by(field, *state);
            prop_assert!(Mark::from_ecn(next) >= mark);
            (field, mark) = (next, Mark::from_ecn(next));
        }
        prop_assert_eq!(mark == Mark::Congestion, path.contains(&State::Congestion));
        prop_assert_eq!(mark == Mark::None, path.iter().all(|s| *s == State::NonCongestion));
    }

    /// T1: as long as no ON is longer than max(T_on), no queue is congestion.
    #[test]
    fn in_the_pattern_nothing_is_congestion(
        ons in prop::collection::vec((0u64..50_400, 1u64..50_000), 1..20),
        queue in 0u64..1_000_000,
    ) {
        let mut port = Port::default();
        let mut now = 0;
        for (on, off) in ons {
            port.off();
            now += off;
            port.on(now);
            for sent in (0..=on).step_by(200) {
                prop_assert_eq!(port.dequeue(&POLICY, now + sent, queue + sent), State::Undetermined);
            }
            now += on;
        }
    }

    /// T2, T10: whatever was before, max(T_on) and a window after the last pause and a packet each to
    /// notice, the port is congested if its queue grows, and else not; it stays so, and never
    /// was the other.
    #[test]
    fn the_state_is_known_in_time(before in events(), gap in 1u64..2_000, grows: bool) {
        let mut port = Port::default();
        let mut now = 0;
        for (later, event, queue) in before {
            now += later;
            match event {
                0 => port.off(),
                1 => port.on(now),
                _ => {
                    port.dequeue(&POLICY, now, queue);
                }
            }
        }
        port.off();
        port.on(now);
        let known = now + POLICY.max_on_ns + POLICY.window_ns + 2 * gap;
        let mut queue = 2_000_000;
        let verdict = if grows { State::Congestion } else { State::NonCongestion };
        let mut was = State::Undetermined;
        while now < known + 100_000 {
            let state = port.dequeue(&POLICY, now, queue);
            prop_assert!(state == verdict || was == State::Undetermined && state == was && now < known);
            prop_assert_eq!(state, port.state(&POLICY, now));
            was = state;
            now += gap;
            queue = if grows { queue + gap } else { queue - 9 * gap };
        }
    }
}
