//! A port's three states: each of the six transitions, and invariants of any run.

use ecn_core::packet::{CE, NOT_ECT};
use ecn_core::response::Ratio;
use ecn_core::tcd::{
    CAPABLE, Mark, Policy, Port, State, UE, growth_bytes, mark_ecn, max_on_cbfc_ns, max_on_pfc_ns,
};
use proptest::prelude::*;

const POLICY: Policy = Policy {
    threshold_bytes: 40_000,
    max_on_ns: 50_400,
    // 2 kB and 2 us of 40 Gb/s.
    growth_bytes: 12_000,
    patience: 2,
};
const SHORT: u64 = 10_000;
const LONG: u64 = 80_000;

/// Paused for 100 us, then resumed.
const ON: u64 = 100_000;
/// Packets that were held up may need until then.
const DRAINED: u64 = 3 * ON;

fn resumed() -> Port {
    let mut port = Port::default();
    port.on_pause(&POLICY, 0);
    port.on_resume(ON);
    port
}

#[test]
fn never_paused_it_is_the_threshold_that_decides() {
    let mut port = Port::default();
    assert_eq!(port.on_dequeue(&POLICY, 0, 40_000), State::NonCongestion);
    assert_eq!(port.on_dequeue(&POLICY, 1, 40_001), State::Congestion);
    assert_eq!(port.on_dequeue(&POLICY, 2, 40_000), State::NonCongestion);
    // Resumed, but not waiting.
    port.on_resume(3);
    assert_eq!(port.on_dequeue(&POLICY, 4, LONG), State::Congestion);
}

#[test]
fn a_pause_hides_either_state() {
    for queue in [SHORT, LONG] {
        let mut port = Port::default();
        port.on_dequeue(&POLICY, 0, queue);
        port.on_pause(&POLICY, 1);
        assert_eq!(port.state(&POLICY, u64::MAX, 0), State::Undetermined);
        port.on_resume(10);
        assert_eq!(port.on_dequeue(&POLICY, 11, queue), State::Undetermined);
    }
}

#[test]
fn a_queue_built_while_paused_is_not_congestion() {
    let mut port = resumed();
    for (after, queue) in [(1, LONG), (50_400, LONG)] {
        assert_eq!(
            port.on_dequeue(&POLICY, ON + after, queue),
            State::Undetermined
        );
    }
    // It drains or, behind a port that was paused as well, arrivals equal departures: above the threshold, and not
    // congested.
    for (after, queue) in [
        (50_401, LONG),
        (60_000, 60_000),
        (100_000, LONG),
        (199_000, LONG + 12_000),
    ] {
        assert_eq!(
            port.on_dequeue(&POLICY, ON + after, queue),
            State::NonCongestion
        );
    }
    // After twice its time it must be empty, or not grow.
    let mut stays = resumed();
    for after in (1..1_000_000).step_by(1_000) {
        let queue = LONG + after % 12_000;
        assert_ne!(
            stays.on_dequeue(&POLICY, ON + after, queue),
            State::Congestion
        );
    }
    assert_eq!(
        port.on_dequeue(&POLICY, DRAINED, LONG),
        State::NonCongestion
    );
    assert_eq!(
        port.on_dequeue(&POLICY, DRAINED + 1, 72_000),
        State::NonCongestion
    );
    assert_eq!(
        port.on_dequeue(&POLICY, DRAINED + 1, 72_001),
        State::Congestion
    );
}

#[test]
fn a_queue_that_grows_is_congestion() {
    let mut port = resumed();
    port.on_dequeue(&POLICY, ON + 1, LONG);
    let mut below = resumed();
    below.on_dequeue(&POLICY, ON + 1, 1_000);
    let now = ON + 50_401;
    assert_eq!(
        port.on_dequeue(&POLICY, now, LONG + 12_001),
        State::Congestion
    );
    // From then on it is an ordinary queue.
    assert_eq!(port.on_dequeue(&POLICY, now, 40_000), State::NonCongestion);
    assert_eq!(port.on_dequeue(&POLICY, now, 40_001), State::Congestion);
    // Below the threshold it is not congested.
    assert_eq!(below.on_dequeue(&POLICY, now, 40_000), State::NonCongestion);
    assert_eq!(below.on_dequeue(&POLICY, now, 40_001), State::Congestion);
}

/// Nothing is held up in a queue that was empty, however short it is.
#[test]
fn a_short_queue_that_was_empty_is_not_held_up() {
    let policy = Policy {
        threshold_bytes: 5_000,
        ..POLICY
    };
    let mut port = resumed();
    port.on_dequeue(&policy, ON + 1, 1);
    let mut empty = port;
    empty.on_dequeue(&policy, ON + 2, 0);
    let now = ON + 50_401;
    assert_eq!(port.on_dequeue(&policy, now, 5_001), State::NonCongestion);
    assert_eq!(empty.on_dequeue(&policy, now, 5_001), State::Congestion);
}

#[test]
fn a_pause_restarts_the_detection() {
    let mut port = resumed();
    port.on_dequeue(&POLICY, ON + 1, SHORT);
    let again = ON + 50_000;
    port.on_pause(&POLICY, again);
    // A second pause in a row is ignored.
    port.on_pause(&POLICY, again + 900);
    port.on_resume(again + 1_000);
    for after in [1_001, 50_000, 51_400] {
        assert_eq!(
            port.on_dequeue(&POLICY, again + after, LONG),
            State::Undetermined
        );
    }
    // The first queue is forgotten; the port was OFF for 101 us.
    let state = |after, queue| {
        let mut port = port;
        port.on_dequeue(&POLICY, again + 60_000, LONG - 1);
        port.on_dequeue(&POLICY, again + 1_000 + after, queue)
    };
    assert_eq!(state(202_000, LONG + 12_000), State::NonCongestion);
    assert_eq!(state(202_001, LONG + 12_000), State::Congestion);
    // The pattern had ended: another one begins.
    port.on_pause(&POLICY, 1_000_000);
    port.on_resume(1_010_000);
    port.on_dequeue(&POLICY, 1_010_000, LONG);
    port.on_dequeue(&POLICY, 1_060_401, 60_000);
    assert_eq!(
        port.on_dequeue(&POLICY, 1_060_402, 72_001),
        State::Congestion
    );
}

/// Congestion ends without another packet.
#[test]
fn a_port_without_a_queue_is_not_congested() {
    let port = resumed();
    assert_eq!(port.state(&POLICY, ON + 50_400, 0), State::Undetermined);
    assert_eq!(port.state(&POLICY, ON + 50_401, 0), State::NonCongestion);
    assert_eq!(port.state(&POLICY, ON + 50_401, 1), State::Undetermined);
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

/// Congestion of this degree adds as much as Xoff - Xon and C tau, whatever the degree is.
#[test]
fn what_congestion_adds_in_the_longest_on() {
    for epsilon in [(1, 20), (1, 4), (1, 1)] {
        let epsilon = Ratio::new(epsilon.0, epsilon.1);
        let on = max_on_pfc_ns(2_000, 5_000_000_000, 2_000, epsilon);
        let growth = on.and_then(|on| growth_bytes(on, 5_000_000_000, epsilon));
        let expected = 11_998..=12_000;
        assert!(
            growth.is_some_and(|bytes| expected.contains(&bytes)),
            "{growth:?}"
        );
    }
    let twentieth = Ratio::new(1, 20);
    // A second at 400 Gb/s.
    let most = growth_bytes(1_000_000_000, 50_000_000_000, twentieth);
    assert!(most.is_some_and(|bytes| (2_380_952_375..=2_380_952_380).contains(&bytes)));
    assert_eq!(
        growth_bytes(50_400, 5_000_000_000, Ratio::new(0, 1)),
        Some(0)
    );
    assert_eq!(growth_bytes(50_400, 5_000_000_000, Ratio::new(1, 0)), None);
    assert_eq!(growth_bytes(u64::MAX, u64::MAX, twentieth), None);
}

#[test]
fn codepoints_are_read_as_they_are_written() {
    for mark in [Mark::None, Mark::Undetermined, Mark::Congestion] {
        assert_eq!(Mark::from_ecn(mark.ecn()), mark);
    }
    assert_eq!(mark_ecn(CAPABLE, State::Undetermined), UE);
    assert_eq!(mark_ecn(UE, State::Congestion), CE);
    assert_eq!(mark_ecn(CE, State::Undetermined), CE);
    assert_eq!(mark_ecn(NOT_ECT, State::Congestion), NOT_ECT);
}

fn state() -> impl Strategy<Value = State> {
    prop::sample::select(vec![
        State::NonCongestion,
        State::Congestion,
        State::Undetermined,
    ])
}

/// Events of a port: nanoseconds later, 0 paused, 1 resumed, else a packet is sent.
fn events() -> impl Strategy<Value = Vec<(u64, u8, u64)>> {
    prop::collection::vec((0u64..5_000, 0u8..40, 0u64..100_000), 1..500)
}

proptest! {
    /// T9: along a path no mark is removed, and CE is set if and only if a port was congested.
    #[test]
    fn marks_are_never_taken_back(path in prop::collection::vec(state(), 0..10)) {
        let mut field = CAPABLE;
        let mut mark = Mark::None;
        for state in &path {
            let next = mark_ecn(field, *state);
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
            port.on_pause(&POLICY, now);
            now += off;
            port.on_resume(now);
            for sent in (0..=on).step_by(200) {
                prop_assert_eq!(port.on_dequeue(&POLICY, now + sent, queue + sent), State::Undetermined);
            }
            now += on;
        }
    }

    /// T2, T10: whatever was before, max(T_on) after the last pause and one packet, the port is congested if and only if
    /// its queue grows; it stays so, and never was the other.
    #[test]
    fn the_state_is_known_in_time(before in events(), gap in 1u64..2_000, grows: bool) {
        let mut port = Port::default();
        let mut now = 0;
        for (later, event, queue) in before {
            now += later;
            match event {
                0 => port.on_pause(&POLICY, now),
                1 => port.on_resume(now),
                _ => {
                    port.on_dequeue(&POLICY, now, queue);
                }
            }
        }
        port.on_pause(&POLICY, now);
        port.on_resume(now);
        let known = now + POLICY.max_on_ns + gap;
        let mut queue = 2_000_000;
        let verdict = if grows { State::Congestion } else { State::NonCongestion };
        let mut was = State::Undetermined;
        while now < known + 100_000 {
            let state = port.on_dequeue(&POLICY, now, queue);
            prop_assert!(state == verdict || was == State::Undetermined && state == was && now < known);
            prop_assert_eq!(state, port.state(&POLICY, now, queue));
            was = state;
            now += gap;
            queue = if grows { queue + gap } else { queue - 9 * gap };
        }
    }
}
