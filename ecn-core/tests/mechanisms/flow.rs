//! A flow at its source: its key, and one reaction per round until the new rate is in force.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::mem::{offset_of, size_of};

use ecn_core::abi::{Siblings, in_force};
use ecn_core::echo::{self, Echo, FeedbackDelta};
use ecn_core::fixed::ONE;
use ecn_core::flow::{
    ANY_PROTOCOL, Flow, Key, KeyMask, SHORT_NS, SIBLING_NS, TIMEOUT_NS, batch_delay,
};
use ecn_core::response::{Function, Policy, Ratio, Reaction, Round};
use proptest::prelude::*;

const LINK: u64 = 1_000_000_000;

fn fimd() -> Policy {
    Policy::hp(Function::Fimd)
}

/// A flow that has a class, and whose full rate the agent knows.
fn flow() -> Flow {
    Flow {
        class: 0x10,
        rate_bytes_per_s: LINK,
        notified_bytes_per_s: LINK,
        ..Flow::new()
    }
}

fn delta(packets: u32, ce: u32, position: u32, outstanding: u32) -> FeedbackDelta {
    FeedbackDelta {
        packets,
        late: 0,
        ce,
        lost_echoes: 0,
        position,
        outstanding,
        ..FeedbackDelta::default()
    }
}

#[test]
fn key_layout() {
    assert_eq!(size_of::<Key>(), 40);
    assert_eq!(offset_of!(Key, src), 0);
    assert_eq!(offset_of!(Key, dst), 16);
    assert_eq!(offset_of!(Key, src_port), 32);
    assert_eq!(offset_of!(Key, dst_port), 34);
    assert_eq!(offset_of!(Key, endpoint), 36);
    assert_eq!(offset_of!(Key, protocol), 38);
    assert_eq!(offset_of!(Key, _pad), 39);
}

#[test]
fn flows_that_share_a_limiter_have_one_key() {
    let key = Key {
        src: [1; 16],
        dst: [2; 16],
        src_port: 3,
        dst_port: 4,
        endpoint: 5,
        protocol: 6,
        ..Key::default()
    };
    let merged = |mask: KeyMask| {
        let mut merged = key;
        merged.merge(&mask);
        assert!(mask.merges() && mask.unmerged() == 0);
        merged
    };
    let any = Key {
        protocol: ANY_PROTOCOL,
        ..Key::short(5)
    };
    let (src, dst) = (key.src, key.dst);
    assert_eq!(
        merged(KeyMask::addresses(true, true)),
        Key { src, dst, ..any }
    );
    assert_eq!(merged(KeyMask::addresses(false, true)), Key { dst, ..any });
    assert_eq!(merged(KeyMask::addresses(false, false)), any);
    let each = KeyMask::default();
    assert!(!each.merges() && each.unmerged() == u32::MAX);
}

#[test]
fn a_new_flow() {
    let f = Flow::new();
    assert_eq!(f, Flow::default());
    assert_eq!(
        (f.response.ipd, f.class, f.pending, f.decreases),
        (ONE, 0, 0, 0)
    );
}

#[test]
fn totals() {
    let mut f = flow();
    f.respond(&fimd(), &delta(5, 2, 5, 3), 0, 8, LINK, 77);
    f.respond(&fimd(), &delta(3, 1, 8, 3), 0, 11, LINK, 78);
    assert_eq!(
        (f.acked_packets, f.marked_packets, f.last_echo_ns),
        (8, 3, 78)
    );
    assert_eq!((f.decreases, f.ignored_marks), (1, 2));
}

#[test]
fn a_decrease_is_notified_with_its_rate() {
    let mut f = flow();
    let (reaction, notify) = f.respond(&fimd(), &delta(1, 1, 1, 3), 0, 4, LINK, 1);
    assert_eq!(
        reaction,
        Reaction {
            decreased: 1,
            ignored: 0
        }
    );
    assert!(notify);
    assert_eq!(
        (f.rate_bytes_per_s, f.notified_bytes_per_s),
        (LINK / 2, LINK / 2)
    );
    assert_eq!(f.pending, 1);
}

#[test]
fn a_small_decrease_is_notified() {
    // LIPD at ipd 200: 1/201 of the rate, less than a 32nd.
    let policy = Policy::hp(Function::Lipd);
    let mut f = flow();
    f.response.ipd = 200 * ONE;
    f.notified_bytes_per_s = LINK / 200;
    let (reaction, notify) = f.respond(&policy, &delta(1, 1, 1, 0), 0, 1, LINK, 1);
    assert_eq!((reaction.decreased, notify, f.pending), (1, true, 1));
    assert_eq!(f.notified_bytes_per_s, LINK / 201);
    // At the floor nothing changes, so the agent is not notified, and nothing is pending.
    let mut f = flow();
    f.response.ipd = 256 * ONE;
    f.notified_bytes_per_s = LINK / 256;
    let (reaction, notify) = f.respond(&policy, &delta(1, 1, 1, 0), 0, 1, LINK, 1);
    assert_eq!((reaction.decreased, notify, f.pending), (1, false, 0));
}

/// Ports have headroom while a rate is held, and will not have it afterwards.
#[test]
fn held_rates_do_not_use_headroom() {
    let feedback = FeedbackDelta {
        headroom: echo::Headroom::Free as u32,
        ..delta(1, 0, 1, 1)
    };
    let mut f = flow();
    f.respond(&fimd(), &feedback, 0, 1, LINK, 7);
    assert_eq!(f.response.headroom_ns, 7);
    let held = Policy::hp(Function::None);
    f.respond(&held, &feedback, 0, 2, LINK, 8);
    assert_eq!(f.response.headroom_ns, 0);
}

/// Data that was acknowledged is sent again, after TCP had given up the first: half the rate.
#[test]
fn a_time_out_halves_the_rate() {
    let policy = Policy::hp(Function::Lipd).fractional(12_000);
    let again = FeedbackDelta {
        retransmitted: 1,
        ..delta(1, 0, 1, 0)
    };
    let mut f = flow();
    f.response.ipd = 8 * ONE;
    f.last_echo_ns = 1;
    f.check_timeout(&policy, &again, ONE, TIMEOUT_NS);
    assert_eq!(f.response.ipd, 8 * ONE, "soon: a duplicate showed it");
    f.check_timeout(&policy, &delta(1, 0, 1, 0), ONE, 2 * TIMEOUT_NS);
    assert_eq!(f.response.ipd, 8 * ONE, "a pause, and nothing was lost");
    f.check_timeout(&policy, &again, ONE, 2 * TIMEOUT_NS);
    assert_eq!(f.response.ipd, 16 * ONE);
}

/// Short flows are one flow: a retransmission by one of them does not show that all had been silent.
#[test]
fn a_retransmission_of_a_short_flow_is_no_timeout_of_all() {
    let policy = Policy::hp(Function::Lipd).fractional(12_000);
    let mut f = flow();
    f.response.ipd = 8 * ONE;
    f.last_echo_ns = 1;
    let again = FeedbackDelta {
        retransmitted: 2,
        ..delta(3, 0, 3, 0)
    };
    let of_all = f.aggregate_delta(&again);
    assert_eq!((of_all.packets, of_all.position), (1, 1));
    f.check_timeout(&policy, &of_all, ONE, 2 * TIMEOUT_NS);
    assert_eq!(f.response.ipd, 8 * ONE);
}

#[test]
fn increases_add_up_until_the_agent_is_notified() {
    // LIPD: each echo raises the rate by 1/255, so the fourth is the first above 1/64.
    let policy = Policy::hp(Function::Lipd);
    let mut f = flow();
    f.response.ipd = 100 * ONE;
    f.notified_bytes_per_s = LINK / 100;
    let mut at = Vec::new();
    for k in 1..=40u32 {
        let (_, notify) = f.respond(&policy, &delta(1, 0, k, 1), 0, k + 1, LINK, 1);
        if notify {
            at.push(k);
            assert_eq!(f.notified_bytes_per_s, f.rate_bytes_per_s);
        }
    }
    assert!(at.iter().copied().eq((4..=40).step_by(4)), "{at:?}");
    assert_eq!(f.pending, 0, "nobody waits for an increase");
}

#[test]
fn the_agent_is_notified_of_a_64th() {
    for (notified, rate, notify) in [
        (12_800, 12_800, false),
        (12_800, 12_999, false),
        (12_800, 13_000, true),
        (12_800, 12_601, false),
        (12_800, 12_600, true),
        (0, 1, true),
        (0, 0, false),
        (31, 32, true),
        (u64::MAX, 0, true),
        (0, u64::MAX, true),
    ] {
        let f = Flow {
            notified_bytes_per_s: notified,
            rate_bytes_per_s: rate,
            ..Flow::new()
        };
        assert_eq!(f.should_notify(), notify, "{notified} -> {rate}");
    }
}

/// The first limit of a flow without a class is notified, whatever was notified before.
#[test]
fn the_first_decrease_asks_for_a_class() {
    let mut f = Flow {
        class: 0,
        notified_bytes_per_s: 0,
        ..flow()
    };
    let (reaction, notify) = f.respond(&fimd(), &delta(1, 0, 1, 3), 0, 4, LINK, 1);
    assert_eq!(
        (reaction.decreased, notify, f.is_limited(LINK)),
        (0, false, false)
    );
    let (reaction, notify) = f.respond(&fimd(), &delta(1, 1, 2, 3), 0, 5, LINK, 1);
    assert_eq!((reaction.decreased, notify, f.pending), (1, true, 1));
    assert_eq!(f.rate_bytes_per_s, LINK / 2);
    assert!(f.is_limited(LINK));
}

/// Thirty-two packets, or a quarter of a second in which it has sent more than three.
#[test]
fn a_flow_is_short_for_its_first_packets_only() {
    const BEGAN: u64 = 7_000_000_000;
    assert!(Flow::is_short(31, BEGAN, BEGAN + SHORT_NS - 1));
    assert!(!Flow::is_short(32, BEGAN, BEGAN));
    assert!(!Flow::is_short(4, BEGAN, BEGAN + SHORT_NS));
    assert!(Flow::is_short(3, BEGAN, BEGAN + 100 * SHORT_NS));
    assert!(Flow::is_short(0, 0, BEGAN));
}

/// Three flows of 6, 3 and 1 packets per millisecond are decreased in that proportion: their mean rate is 10/3.
#[test]
fn siblings_know_their_mean_rate() {
    let mut siblings = Siblings::default();
    let delays = [ONE * 10, ONE * 20, ONE * 60];
    let mut at = 7_000_000_000;
    let mut sum = 0.0;
    for round in 0..40 {
        for n in [0, 1, 0, 0, 1, 0, 2, 0, 1, 0] {
            siblings.ipd = siblings.mean_ipd(delays[n], at);
            siblings.at_ns = at;
            at += 1_000_000;
            if round == 39 {
                sum += siblings.ipd as f64 / ONE as f64;
            }
        }
    }
    let mean = sum / 10.0;
    assert!((mean / 18.0 - 1.0).abs() < 0.01, "{mean}");
    let later = siblings.mean_ipd(ONE * 5, at + SIBLING_NS);
    assert_eq!(later, ONE * 5, "long ago");
}

/// A flow that starts beside limited flows starts with their rate, and without a history.
#[test]
fn a_flow_begins_with_its_siblings_rate() {
    const AT: u64 = 7_000_000_000;
    let none = Siblings::default();
    assert_eq!(none.initial_ipd(AT), ONE);
    let marked = Siblings {
        ipd: 4 * ONE,
        at_ns: AT,
        ..none
    };
    assert_eq!(marked.initial_ipd(AT + SIBLING_NS - 1), 4 * ONE);
    assert_eq!(marked.initial_ipd(AT + SIBLING_NS), ONE, "long ago");
    let short = Siblings {
        short_ipd: 2 * ONE,
        ..marked
    };
    assert_eq!(short.initial_ipd(AT), 4 * ONE);
    assert_eq!(short.initial_ipd(AT + 2 * SIBLING_NS), 2 * ONE);
    let free = Siblings {
        short_ipd: ONE,
        ..none
    };
    assert_eq!(free.initial_ipd(AT), ONE);

    let mut f = flow();
    f.respond(&fimd(), &delta(1, 1, 1, 3), 0, 4, LINK, 1);
    f.start_own_rate(4 * ONE, LINK);
    assert_eq!(
        (f.rate_bytes_per_s, f.notified_bytes_per_s),
        (LINK / 4, LINK / 4)
    );
    assert_eq!((f.pending, f.response.round_packets), (0, 0));
    f.start_own_rate(ONE, LINK);
    assert!(!f.is_limited(LINK));
}

#[test]
fn marks_are_ignored_until_the_rate_is_in_force() {
    let mut f = flow();
    // The echo of packet 1 arrives when 4 have departed: 5 would be the first of the next round ...
    f.respond(&fimd(), &delta(1, 1, 1, 3), 0, 4, LINK, 1);
    // ... if the agent did not take until packet 9 has departed. Number 10 was already at its time.
    for k in 2..=6u32 {
        let (reaction, notify) = f.respond(&fimd(), &delta(1, 1, k, 3), 0, k + 3, LINK, 1);
        assert_eq!(
            (reaction.decreased, reaction.ignored, notify),
            (0, 1, false),
            "packet {k}"
        );
        assert_eq!(f.pending, 1);
    }
    let in_force_at = in_force(1, 10);
    for k in 7..=10u32 {
        let (reaction, _) = f.respond(&fimd(), &delta(1, 1, k, 3), in_force_at, k + 3, LINK, 1);
        assert_eq!((reaction.decreased, reaction.ignored), (0, 1), "packet {k}");
        assert_eq!(f.pending, 0);
    }
    assert_eq!(f.rate_bytes_per_s, LINK / 2);
    let (reaction, notify) = f.respond(&fimd(), &delta(1, 1, 11, 3), in_force_at, 14, LINK, 1);
    assert_eq!((reaction.decreased, notify), (1, true));
    assert_eq!(f.rate_bytes_per_s, LINK / 4);
    assert_eq!((f.decreases, f.ignored_marks, f.pending), (2, 9, 1));
    // That the first decrease is in force does not mean that the second is.
    let (reaction, _) = f.respond(&fimd(), &delta(1, 1, 15, 3), in_force_at, 18, LINK, 1);
    assert_eq!((reaction.decreased, f.pending), (0, 1));
}

/// A flow slower than its round trip: every packet was received when its echo arrives.
#[test]
fn marks_are_ignored_until_the_rate_is_in_force_with_nothing_outstanding() {
    let mut f = flow();
    let (reaction, _) = f.respond(&fimd(), &delta(1, 1, 1, 0), 0, 1, LINK, 1);
    assert_eq!(reaction.decreased, 1);
    // Departed before the agent started.
    let (reaction, _) = f.respond(&fimd(), &delta(1, 1, 2, 0), 0, 2, LINK, 1);
    assert_eq!((reaction.decreased, f.pending), (0, 1), "not in force yet");
    // In force when 2 had departed: 3 is still of the old rate.
    let in_force_at = in_force(1, 3);
    let (reaction, _) = f.respond(&fimd(), &delta(1, 1, 3, 0), in_force_at, 3, LINK, 1);
    assert_eq!(
        (reaction.decreased, f.pending),
        (0, 0),
        "the last one of the old rate"
    );
    let (reaction, _) = f.respond(&fimd(), &delta(1, 1, 4, 0), in_force_at, 4, LINK, 1);
    assert_eq!(reaction.decreased, 1);
}

#[test]
fn an_unmarked_round_leaves_nothing_behind() {
    let mut f = flow();
    f.respond(&fimd(), &delta(1, 1, 1, 2), 0, 3, LINK, 1);
    let in_force_at = in_force(1, 5);
    for k in 2..100 {
        f.respond(&fimd(), &delta(1, 0, k, 2), in_force_at, k + 2, LINK, 1);
    }
    let (reaction, _) = f.respond(&fimd(), &delta(1, 1, 100, 2), in_force_at, 102, LINK, 1);
    assert_eq!(reaction.decreased, 1);
}

#[test]
fn other_rounds_do_not_wait_for_the_agent() {
    let off = fimd().with_round(Round::Off, 0);
    let mut f = flow();
    for k in 1..=4u32 {
        let (reaction, _) = f.respond(&off, &delta(1, 1, k, 3), 0, k + 3, LINK, 1);
        assert_eq!(reaction.decreased, 1);
        assert_eq!(f.rate_bytes_per_s, LINK >> k);
    }
    let time = fimd().with_round(Round::Time, 1000);
    let mut f = flow();
    let decreases: Vec<u64> = (0..3000u64)
        .step_by(100)
        .filter(|now| {
            let k = *now as u32 / 100 + 1;
            f.respond(&time, &delta(1, 1, k, 3), 0, k + 3, LINK, *now)
                .0
                .decreased
                != 0
        })
        .collect();
    assert_eq!(decreases, [0, 1000, 2000]);
}

#[test]
fn quiet_packets_are_proportional_to_the_rate() {
    let mut f = Flow::new();
    let full = f.quiet();
    assert!(full >= 1);
    for (ipd, want) in [(2, full / 2), (4, full / 4), (65_536, 0)] {
        f.response.ipd = ipd * ONE;
        // The divisor's last bit may cost one.
        assert!(f.quiet() <= want && f.quiet() + 1 >= want, "{ipd}");
    }
    // A zeroed flow, as a map gives it: no division by zero.
    f.response.ipd = 0;
    assert_eq!(f.quiet(), full);
}

/// The loop in packets: `rtt` packet times at full rate, the agent `delay` departures behind. Returns for each decrease the
/// packet whose mark caused it.
fn run(marks: &[bool], rtt: u32, delay: u32) -> Vec<u32> {
    let policy = Policy::new(Function::Fimd, Ratio::new(1, 65_536), Policy::HP_M).unwrap();
    let mut f = flow();
    let (mut enforced, mut notified, mut force) = (ONE, None, 0u64);
    let mut echoed = 0;
    let mut ce = 0;
    let mut caused = Vec::new();
    let last = marks.len() as u32;
    for departed in 1..=last {
        if let Some((at, ipd, decrease)) = notified
            && departed >= at
        {
            enforced = ipd;
            force = in_force(decrease, departed);
            notified = None;
        }
        let lag = (u64::from(rtt) * ONE / enforced) as u32;
        while echoed + lag < departed {
            echoed += 1;
            ce += u32::from(marks[echoed as usize - 1]);
            let e = Echo {
                protocol: 17,
                src_port: 1,
                dst_port: 2,
                packets: echoed,
                ce,
                sequence: echoed as u16,
                ..Echo::default()
            };
            let delta = f.echo.on_echo(&e, departed, departed, f.quiet()).unwrap();
            assert_eq!(delta.packets, 1);
            let (reaction, notify) = f.respond(&policy, &delta, force, departed, LINK, 1);
            if reaction.decreased != 0 {
                assert!(notify);
                caused.push(echoed);
                // In force once this many more have departed, and then for all but the next.
                notified = Some((departed + 1 + delay, f.response.ipd, f.decreases as u32));
            } else if notify && notified.is_none() {
                enforced = f.response.ipd;
            }
        }
    }
    assert_eq!(f.decreases as usize, caused.len());
    caused
}

#[test]
fn one_event_gives_one_decrease() {
    // Packets 10 to 16 are marked: a round trip of 3, the agent 4 behind.
    let marks: Vec<bool> = (1..=60).map(|k| (10..=16).contains(&k)).collect();
    assert_eq!(run(&marks, 3, 4), [10]);
    // Marks continue: the echo of 10 arrives when 13 have departed, the rate is in force when 17 have, from number 19 on.
    let marks: Vec<bool> = (1..=25).map(|k| k >= 10).collect();
    assert_eq!(run(&marks, 3, 4), [10, 19]);
    // An agent that never reacts: the flow keeps its first decrease.
    let marks = [true; 100];
    assert_eq!(run(&marks, 3, 1000), [1]);
}

proptest! {
    /// Between two decreases lie at least the packets that departed before the first was in force, and a mark on the
    /// next one after them counts.
    #[test]
    fn rounds(
        // 16 decreases at most: at the floor another one changes nothing.
        marks in prop::collection::vec(prop::bool::weighted(0.3), 1..32),
        always in any::<bool>(),
        rtt in 0..=3u32,
        delay in 0..12u32,
    ) {
        let marks: Vec<bool> = if always { vec![true; marks.len()] } else { marks };
        let caused = run(&marks, rtt, delay);
        let first = marks.iter().position(|m| *m).map(|at| at as u32 + 1);
        if first.is_some_and(|at| at + rtt <= marks.len() as u32) {
            prop_assert_eq!(caused.first().copied(), first);
        }
        for pair in caused.windows(2) {
            prop_assert!(marks[pair[1] as usize - 1]);
            // The echo arrived `lag` >= 0 later, the agent reacted `delay` after that.
            prop_assert!(pair[1] > pair[0] + delay + 1, "{:?}", caused);
            let end = pair[1] as usize - 1;
            let start = end.min((pair[0] + rtt + delay + 1) as usize);
            prop_assert!(
                !marks[start..end].contains(&true),
                "a mark of the new rate was ignored: {:?}", caused
            );
        }
    }
}

#[test]
fn the_pause_follows_the_link_within_the_period() {
    // 2068 bytes at 1 Gbit/s, 600 and 100 Mbit/s; 1 ms.
    assert_eq!(batch_delay(1_000_000, 16_544), 250_000);
    assert_eq!(batch_delay(1_000_000, 27_573), 330_876);
    assert_eq!(batch_delay(1_000_000, 165_440), 1_000_000);
    assert_eq!(batch_delay(1_000_000, u64::MAX), 1_000_000);
}

/// A receiver whose echoes arrive is not replaced by one that claims to have restarted.
#[test]
fn a_restarted_receiver_is_accepted_when_the_old_one_is_silent() {
    let echo = |sequence, packets| Echo {
        protocol: 17,
        sequence,
        packets,
        ..Echo::default()
    };
    let mut f = Flow::new();
    f.sent_packets = 1000;
    let mut now = 1_000_000_000;
    f.created_ns = now;
    // The first echo cannot report more than was sent.
    assert!(f.on_echo(&echo(7, 1001), 1000, 0, now).is_err());
    f.on_echo(&echo(100, 1000), 1000, 0, now).unwrap();
    f.last_echo_ns = now;
    for _ in 0..2 * echo::REFUSALS {
        assert!(f.on_echo(&echo(5, 5), 1000, 0, now).is_err());
    }
    now += ecn_core::flow::RESYNC_NS;
    for _ in 0..2 * echo::REFUSALS {
        assert!(
            f.on_echo(&echo(5, 5), 1000, 0, now).is_err(),
            "nothing was sent since"
        );
    }
    f.last_sent_ns = now;
    for _ in 0..2 * echo::REFUSALS {
        assert!(
            f.on_echo(&echo(5, 5), 1000, 0, now).is_err(),
            "there was no time yet for an echo"
        );
    }
    now += ecn_core::flow::RESYNC_NS + 2 * (1 << 20);
    assert!(f.on_echo(&echo(6, 6), 1000, 0, now).is_ok());
}

/// No other echoes are accepted in the receiver's place while its echoes may still arrive: of a flow that sends rarely,
/// or is limited to a low rate, or where echoes are rare.
#[test]
fn a_slow_flow_waits_for_its_receiver() {
    const MS: u64 = 1_000_000;
    for (rate, every, gap, rtt) in [
        (0, 0, 300 * MS, 20 * MS),
        (5_000, 0, 300 * MS, 1_000 * MS),
        (0, 1_000 * MS, 900 * MS, 20 * MS),
    ] {
        let mut f = Flow::new();
        f.rate_bytes_per_s = rate;
        let (mut now, mut sequence) = (1_000 * MS, 0u16);
        f.created_ns = now;
        let mut forged = 0u16;
        for n in 1..=20 {
            f.sent_packets = n;
            f.last_sent_ns = now;
            let echoed = now + rtt;
            let next = now + gap.max(rtt + MS);
            let mut accepted = false;
            while now < next {
                now += MS / 10;
                if now >= echoed && !accepted {
                    sequence += 1;
                    let echo = Echo {
                        sequence,
                        packets: n as u32,
                        ..Echo::default()
                    };
                    let result = f.on_echo(&echo, n as u32, every, now);
                    assert!(result.is_ok(), "{n} {result:?}");
                    f.last_echo_ns = now;
                    accepted = true;
                }
                forged += 1;
                let echo = Echo {
                    sequence: forged,
                    packets: 1 << 30 | u32::from(forged),
                    ce: 1 << 29,
                    ..Echo::default()
                };
                assert!(f.on_echo(&echo, n as u32, every, now).is_err(), "{n}");
                forged %= 1 << 15;
            }
        }
    }
}
