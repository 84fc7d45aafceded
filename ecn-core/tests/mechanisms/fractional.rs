//! Fractional steps compared with their equations in floating point.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use ecn_core::echo::Headroom;
use ecn_core::fixed::{FRAC, ONE};
use ecn_core::response::{Feedback, Function, IPD_LIMIT, Policy, Ratio, State};
use proptest::prelude::*;

/// A packet of 1514 bytes at 100 Mbit/s.
const PACKET_NS: u64 = 121_120;

fn policy(function: Function, packet_ns: u64) -> Policy {
    Policy::new(function, Ratio::new(1, 64), Ratio::new(2, 1))
        .unwrap()
        .fractional(packet_ns)
}

fn echo(packets: u32, ce: u32) -> Feedback {
    Feedback {
        packets,
        ce,
        ..Feedback::default()
    }
}

/// Time between the flow's packets, seconds.
fn interval(state: &State, packet_ns: u64) -> f64 {
    state.ipd as f64 / ONE as f64 * packet_ns as f64 * 1e-9
}

/// A flow at this rate, whose last echo arrived an interval before [`START_NS`].
fn at(interval_ns: u64, packet_ns: u64) -> State {
    State {
        ipd: (u128::from(interval_ns) * u128::from(ONE) / u128::from(packet_ns)) as u64,
        last_ns: START_NS - interval_ns,
        allowance: 1 << 28,
        ..State::new()
    }
}

/// Sends `packets` at its own rate, of which every `marks.1`-th run of `marks.0` is marked.
fn run(state: &mut State, policy: &Policy, packets: u32, marks: (u32, u32)) {
    let mut now = 1.0;
    for n in 0..packets {
        now += interval(state, policy.packet_ns);
        let ce = u32::from(n % marks.1 < marks.0);
        state.on_echo(policy, echo(1, ce), (now * 1e9) as u64);
    }
}

/// Time in which the rate of a slow flow grows by e, seconds.
const RECOVERY: f64 = 2.5;

/// Marks that lower the rate of a slow flow by e.
const STEP_PACKETS: f64 = 100.0;

/// Maximum decrease by a train of marks at once.
const TRAIN_ALLOWANCE: f64 = 1.0 / 16.0;

/// Start of the tests: long after the machine booted.
const START_NS: u64 = 1_000_000_000;

/// Interval by which an increase is computed, seconds: t' of the module's documentation.
fn slowed(t: f64) -> f64 {
    1.2e-4 + t * 0.08 / (0.08 + t)
}

/// w of the module's documentation at an interval in seconds.
fn weight(t: f64) -> f64 {
    weight_of_mark(t, t)
}

/// The same for a mark, with the time since the last echo.
fn weight_of_mark(t: f64, apart: f64) -> f64 {
    (t / (t + 75e-6)).max(0.125) * (1.0 + (apart / 0.014).min(2.0))
}

#[test]
fn one_packet_is_one_step() {
    for interval_ns in [150_000, 1_000_000, 7_000_000, 70_000_000] {
        let t = interval_ns as f64 * 1e-9;
        for (function, up, down) in [
            (Function::Lipd, 1.0, 1.0),
            (Function::Fimd, t / 1e-3, t / 1e-3),
            (Function::Aimd, (t / 1e-3).powi(2), t / 1e-3),
        ] {
            let policy = policy(function, PACKET_NS);
            // At the flow's own rate, and after 14 ms.
            for apart_ns in [interval_ns, interval_ns.max(14_000_000)] {
                let mut marked = at(interval_ns, PACKET_NS);
                marked.last_ns = START_NS - apart_ns;
                marked.on_echo(&policy, echo(1, 1), START_NS);
                let got = interval(&marked, PACKET_NS) / t - 1.0;
                let want = (down * weight_of_mark(t, apart_ns as f64 * 1e-9) / STEP_PACKETS)
                    .min(TRAIN_ALLOWANCE);
                assert!(
                    (got / want - 1.0).abs() < 0.01,
                    "{function:?} {t}: {got} {want}"
                );
            }

            let mut unmarked = at(interval_ns, PACKET_NS);
            unmarked.on_echo(&policy, echo(1, 0), START_NS);
            let got = 1.0 - interval(&unmarked, PACKET_NS) / t;
            let want = (up * weight(t) * slowed(t) / RECOVERY).min(0.5);
            assert!(
                (got / want - 1.0).abs() < 0.01,
                "{function:?} {t}: {got} {want}"
            );
        }
    }
}

/// p / (1 - p) = STEP_PACKETS t' / RECOVERY, from above and from below, whatever the rate of the source's link is.
#[test]
fn the_rate_settles_where_marks_and_recovery_balance() {
    for packet_ns in [PACKET_NS, PACKET_NS / 10, PACKET_NS / 100] {
        let policy = policy(Function::Lipd, packet_ns);
        for (marks, start_ns) in [
            ((1, 4), 200_000),
            ((1, 4), 90_000_000 * packet_ns / PACKET_NS),
            ((1, 20), 200_000),
            ((1, 2), 1_000_000),
        ] {
            let mut state = at(start_ns.max(packet_ns), packet_ns);
            run(&mut state, &policy, 60_000, marks);
            let t = interval(&state, packet_ns);
            let p = f64::from(marks.0) / f64::from(marks.1);
            let (got, want) = (slowed(t) * STEP_PACKETS / RECOVERY, p / (1.0 - p));
            // Whether the last step was up or down.
            let within = 0.05 + weight(t) / STEP_PACKETS;
            assert!((got / want - 1.0).abs() < within, "{marks:?}: {got} {want}");
        }
    }
}

#[test]
fn a_rate_grows_in_its_time() {
    let policy = policy(Function::Lipd, PACKET_NS);
    let mut state = at(400_000, PACKET_NS);
    let mut now = 0.0;
    while now < RECOVERY {
        now += interval(&state, PACKET_NS);
        state.on_echo(&policy, echo(1, 0), (now * 1e9) as u64);
    }
    // In a time dT the delay t falls by dT w t' / RECOVERY.
    let (mut t, mut passed) = (4e-4, 0.0);
    while t > interval(&state, PACKET_NS) {
        passed += 1e-7 / (weight(t) * slowed(t));
        t -= 1e-7;
    }
    assert!((passed - 1.0).abs() < 0.02, "{passed}");
}

/// Echoes of one marked packet each, every `every_ns`; returns when the next one would arrive.
fn marked_every(
    state: &mut State,
    policy: &Policy,
    start_ns: u64,
    every_ns: u64,
    packets: u64,
) -> u64 {
    for n in 0..packets {
        state.on_echo(policy, echo(1, 1), start_ns + n * every_ns);
    }
    start_ns + packets * every_ns
}

#[test]
fn overload_lowers_the_limit_to_the_arrival_rate() {
    let policy = policy(Function::Lipd, PACKET_NS);
    let marked_every = |state: &mut State, every_ns: u64, packets: u64| {
        marked_every(state, &policy, START_NS, every_ns, packets)
    };
    // The limit is 16 times the arrival rate: 5/8 of that, after the first packet and 4 more, of which one is left out.
    let mut state = at(PACKET_NS, PACKET_NS);
    marked_every(&mut state, 16 * PACKET_NS, 5);
    let t = interval(&state, PACKET_NS) / (25.6e-9 * PACKET_NS as f64);
    assert!((t - 1.0).abs() < 0.02, "{t}");
    // Twice: half as much again, after 12.
    let mut state = at(10 * PACKET_NS, PACKET_NS);
    marked_every(&mut state, 20 * PACKET_NS, 12);
    let t = interval(&state, PACKET_NS) / (1e-8 * PACKET_NS as f64);
    assert!((1.5..1.8).contains(&t), "{t}");
    // At the limit's rate: steps only.
    let mut state = at(10 * PACKET_NS, PACKET_NS);
    marked_every(&mut state, 10 * PACKET_NS, 12);
    let t = interval(&state, PACKET_NS) / (1e-8 * PACKET_NS as f64);
    assert!((1.05..1.2).contains(&t), "{t}");
    // One unmarked packet of five is overload all the same, two are not.
    let mut state = at(10 * PACKET_NS, PACKET_NS);
    let next = marked_every(&mut state, 20 * PACKET_NS, 6);
    state.on_echo(&policy, echo(1, 0), next);
    for n in 1..=5 {
        state.on_echo(&policy, echo(1, 1), next + n * 20 * PACKET_NS);
    }
    let t = interval(&state, PACKET_NS) / (1e-8 * PACKET_NS as f64);
    assert!((1.5..1.8).contains(&t), "{t}");
    let mut state = at(PACKET_NS, PACKET_NS);
    let next = marked_every(&mut state, 16 * PACKET_NS, 4);
    state.on_echo(&policy, echo(2, 0), next);
    let before = interval(&state, PACKET_NS);
    state.on_echo(&policy, echo(1, 1), next + 16 * PACKET_NS);
    assert!(interval(&state, PACKET_NS) < before * 1.05);
}

/// Echoes arrive at the limit's rate, except for one pause in which the machine stalled.
#[test]
fn a_pause_is_not_overload() {
    let policy = policy(Function::Lipd, PACKET_NS);
    let every_ns = 10 * PACKET_NS;
    for before in 1..11 {
        let mut state = at(every_ns, PACKET_NS);
        let next = marked_every(&mut state, &policy, START_NS, every_ns, before);
        marked_every(
            &mut state,
            &policy,
            next + 100_000_000,
            every_ns,
            12 - before,
        );
        let t = interval(&state, PACKET_NS) / (1e-9 * every_ns as f64);
        // Overload would be half as much again.
        assert!((1.05..1.2).contains(&t), "pause after {before}: {t}");
    }
}

/// Two CPUs that process echoes of one flow read the clock before they take the lock.
#[test]
fn an_old_echo_is_not_overload() {
    let policy = policy(Function::Lipd, PACKET_NS);
    let mut state = at(2 * PACKET_NS, PACKET_NS);
    state.on_echo(&policy, echo(1, 0), START_NS);
    let before = state.ipd;
    state.on_echo(&policy, echo(1, 1), START_NS - 1000);
    for n in 1..=4 {
        state.on_echo(&policy, echo(1, 1), START_NS + n * 2 * PACKET_NS);
    }
    let slower = state.ipd as f64 / before as f64;
    assert!(1.0 < slower && slower < 1.07, "{slower}");
}

/// At 1 Gbit/s packets wait while a CPU is busy, twice within 3 ms, and their marks arrive together.
#[test]
fn two_stalls_of_a_fast_flow_are_not_overload() {
    let packet_ns = 12_112;
    let policy = policy(Function::Lipd, packet_ns);
    let train = |state: &mut State, start_ns, every_ns| {
        marked_every(state, &policy, start_ns, every_ns, 10)
    };
    let mut state = at(packet_ns, packet_ns);
    let mut next = START_NS;
    for stall_ns in [1_700_000, 1_500_000, 0] {
        next = train(&mut state, next, 1000) + stall_ns;
    }
    let slower = interval(&state, packet_ns) / (1e-9 * packet_ns as f64);
    assert!((1.03..1.1).contains(&slower), "{slower}");
    // A sixteenth of what the limit allows, one packet at a time.
    let mut state = at(packet_ns, packet_ns);
    train(&mut state, START_NS, 16 * packet_ns);
    let slower = interval(&state, packet_ns) / (1e-9 * packet_ns as f64);
    assert!((25.0..27.0).contains(&slower), "{slower}");
}

/// For a slow flow a time without an echo is information: TCP that lost most of a window gets few marks.
#[test]
fn a_slow_waiting_flow_is_overload() {
    let policy = policy(Function::Lipd, PACKET_NS);
    let lowered = |every_ns: u64| {
        let mut state = at(every_ns, PACKET_NS);
        let next = marked_every(&mut state, &policy, START_NS, every_ns / 8, 2);
        marked_every(&mut state, &policy, next + 60_000_000, every_ns / 8, 3);
        interval(&state, PACKET_NS) / (1e-9 * every_ns as f64)
    };
    // At 1 ms between packets the machine stalled; three marks are steps.
    let t = lowered(1_000_000);
    assert!((1.0..1.2).contains(&t), "{t}");
    // Three packets in 52 ms of the 60, and 5/8 of the rate of what arrives.
    let t = lowered(3_000_000);
    assert!((8.5..10.0).contains(&t), "{t}");
}

/// Thousands of flows of five packets a second fill a port, too; but pauses of an application are not a slow network.
#[test]
fn flows_of_few_packets_per_second_react_to_overload() {
    const EVERY_NS: u64 = 200_000_000;
    let policy = Policy::new(Function::Lipd, Ratio::new(1, 65536), Ratio::new(2, 1))
        .unwrap()
        .fractional(PACKET_NS);
    let mut state = at(PACKET_NS, PACKET_NS);
    marked_every(&mut state, &policy, START_NS, EVERY_NS, 8);
    // Only the first time may have been a pause.
    let t = interval(&state, PACKET_NS) / (1e-9 * EVERY_NS as f64);
    assert!((0.7..1.1).contains(&t), "{t}");
    // Of a longer pause no more is counted than of the one before it, and the longest interval is excluded.
    let mut state = at(PACKET_NS, PACKET_NS);
    let next = marked_every(&mut state, &policy, START_NS, PACKET_NS, 2);
    let next = marked_every(&mut state, &policy, next + EVERY_NS / 2, PACKET_NS, 1);
    marked_every(&mut state, &policy, next + 5 * EVERY_NS, PACKET_NS, 3);
    let t = interval(&state, PACKET_NS) / (1e-9 * PACKET_NS as f64);
    assert!(t < 1.1, "{t}");
}

#[test]
fn a_time_out_halves_what_is_limited() {
    let fractional = policy(Function::Lipd, PACKET_NS);
    let mut state = at(1_000_000, PACKET_NS);
    let before = state.ipd;
    state.on_timeout(&Policy::hp(Function::Lipd), 1, 16 * before);
    assert_eq!(state.ipd, before, "HP's sources know no loss");
    state.on_timeout(&fractional, 0, 16 * before);
    assert_eq!(state.ipd, before);
    state.on_timeout(&fractional, 1, ONE);
    assert_eq!(state.ipd, 2 * before);
    state.on_timeout(&fractional, 1, 16 * before);
    assert_eq!(state.ipd, 16 * before);
    let mut free = State::new();
    free.on_timeout(&fractional, 1, 16 * before);
    assert_eq!(free.ipd, ONE, "never marked, never limited");
}

/// All marks of one moment lower a rate by a sixteenth; those of the next 20 ms by as much again.
#[test]
fn a_train_of_marks_lowers_a_rate_once() {
    for function in [Function::Lipd, Function::Fimd, Function::Aimd] {
        let policy = policy(function, PACKET_NS);
        let mut state = at(1_000_000, PACKET_NS);
        let mut lowered = |now_ns: u64| {
            let before = interval(&state, PACKET_NS);
            state.on_echo(&policy, echo(400, 400), now_ns);
            interval(&state, PACKET_NS) / before - 1.0
        };
        let first = lowered(START_NS);
        assert!(
            (first / TRAIN_ALLOWANCE - 1.0).abs() < 0.01,
            "{function:?}: {first}"
        );
        let same = lowered(START_NS);
        assert!(same < 1e-6, "{function:?}: {same}");
        let half = lowered(START_NS + 10_000_000);
        assert!(
            (half / TRAIN_ALLOWANCE - 0.5).abs() < 0.01,
            "{function:?}: {half}"
        );
        // Not saved up: a second later it is a sixteenth again. An unmarked packet between them, since nothing but
        // marks is overload.
        state.on_echo(&policy, echo(1, 0), START_NS + 1_000_000_000);
        let before = interval(&state, PACKET_NS);
        state.on_echo(&policy, echo(400, 400), START_NS + 1_000_000_000);
        let later = interval(&state, PACKET_NS) / before - 1.0;
        assert!(
            (later / TRAIN_ALLOWANCE - 1.0).abs() < 0.01,
            "{function:?}: {later}"
        );
    }
}

/// Otherwise fast and slow flows of a host would decrease alike, and stay unequal.
#[test]
fn a_train_lowers_the_faster_of_siblings_more() {
    let policy = policy(Function::Lipd, PACKET_NS);
    let lowered = |times_the_mean: f64| {
        let mut state = at(1_000_000, PACKET_NS);
        state.compare_with_siblings((state.ipd as f64 * times_the_mean) as u64);
        state.last_ns = START_NS - 20_000_000;
        state.on_echo(&policy, echo(400, 400), START_NS);
        (interval(&state, PACKET_NS) / 1e-3 - 1.0) / TRAIN_ALLOWANCE
    };
    for (times_the_mean, want) in [(1.0, 1.0), (1.5, 1.5), (0.7, 0.7), (30.0, 2.0), (0.2, 0.5)] {
        let got = lowered(times_the_mean);
        assert!((got / want - 1.0).abs() < 0.02, "{times_the_mean}: {got}");
    }
    let mut state = at(1_000_000, PACKET_NS);
    state.compare_with_siblings(ONE);
    assert_eq!(state.max_allowance, 0, "none is limited");
}

proptest! {
    /// For any input: within bounds, a mark never raises a rate, its absence never lowers one.
    #[test]
    fn within_bounds(
        function in prop::sample::select(vec![Function::Lipd, Function::Fimd, Function::Aimd]),
        packet_ns in 0u64..1 << 27,
        ipd in any::<u64>(),
        steps in prop::collection::vec((0u32..2000, 0u32..2000, 0u64..1 << 34), 1..40),
    ) {
        let policy = policy(function, packet_ns);
        let mut state = State { ipd, ..State::new() };
        let mut now = 0u64;
        state.on_echo(&policy, echo(0, 0), 0);
        for (packets, ce, passed) in steps {
            now += passed;
            let before = state.ipd;
            prop_assert!((ONE..=IPD_LIMIT << FRAC).contains(&before));
            state.on_echo(&policy, echo(packets, ce), now);
            if ce >= packets {
                prop_assert!(state.ipd >= before);
            }
            if ce == 0 {
                prop_assert!(state.ipd <= before);
            }
        }
    }
}

/// Ratio of the rates after `seconds` without marks and at the start; `headroom`: as echoes report it.
fn growth(headroom: Headroom, seconds: f64) -> f64 {
    let policy = policy(Function::Lipd, PACKET_NS);
    let mut state = at(1_200_000, PACKET_NS);
    let before = interval(&state, PACKET_NS);
    let mut now = 0.0;
    while now < seconds {
        now += interval(&state, PACKET_NS);
        let now_ns = START_NS + (now * 1e9) as u64;
        state.on_headroom(headroom as u32, now_ns);
        state.on_echo(&policy, echo(1, 0), now_ns);
    }
    before / interval(&state, PACKET_NS)
}

#[test]
fn with_headroom_a_flow_recovers_within_a_fifth_of_a_second() {
    assert!(growth(Headroom::Free, 0.2) > 9.0);
    for headroom in [Headroom::Busy, Headroom::Unknown] {
        let (got, want) = (
            growth(headroom, 0.2),
            (weight(1.2e-3) * 0.2 / RECOVERY).exp(),
        );
        assert!(
            (got / want - 1.0).abs() < 0.05,
            "{headroom:?}: {got} {want}"
        );
    }
}

#[test]
fn a_mark_or_a_busy_port_ends_headroom() {
    let policy = policy(Function::Lipd, PACKET_NS);
    let step = |end: fn(&mut State, &Policy)| {
        let mut state = at(1_200_000, PACKET_NS);
        state.last_ns = START_NS;
        for n in 0..100 {
            state.on_headroom(Headroom::Free as u32, START_NS + n * 500_000);
        }
        let now_ns = START_NS + 50_000_000;
        end(&mut state, &policy);
        let before = state.ipd;
        state.on_echo(&policy, echo(1, 0), now_ns);
        before as f64 / state.ipd as f64 - 1.0
    };
    let grown = step(|_, _| ());
    let marked = step(|state, policy| {
        state.on_echo(policy, echo(1, 1), START_NS + 49_000_000);
    });
    let busy = step(|state, _| state.on_headroom(Headroom::Busy as u32, START_NS + 49_000_000));
    let plain = weight(1.2e-3) * slowed(1.2e-3) / RECOVERY;
    assert!(grown > 6.0 * plain, "{grown} {plain}");
    for got in [marked, busy] {
        assert!((got / plain - 1.0).abs() < 0.05, "{got} {plain}");
    }
}

/// A flow below its share is not marked though the port is busy.
#[test]
fn a_flow_that_is_not_marked_grows_faster_after_400_ms() {
    let grown = |pause_ns: u64| {
        let policy = policy(Function::Lipd, PACKET_NS);
        let mut state = at(1_200_000, PACKET_NS);
        state.on_echo(&policy, echo(1, 1), START_NS);
        let before = interval(&state, PACKET_NS);
        let mut sent = 0.0;
        for pauses in 1.. {
            let now_ns = START_NS + (sent * 1e9) as u64 + pauses * pause_ns;
            if now_ns > START_NS + 1_000_000_000 {
                break;
            }
            sent += interval(&state, PACKET_NS);
            state.on_echo(&policy, echo(1, 0), now_ns);
        }
        (before / interval(&state, PACKET_NS), sent)
    };
    let (busy, _) = grown(0);
    assert!(busy > 8.0, "{busy}");
    // A flow that has nothing to send does not grow: pauses do not count.
    let (idle, sent) = grown(100_000_000);
    let plain = (weight(1.2e-3) * sent / RECOVERY).exp();
    assert!((idle / plain - 1.0).abs() < 0.01, "{idle} {plain}");
}
