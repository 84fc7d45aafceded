//! Departure times: never above the rate, dropped packets are not charged, no clock but the monotonic one.

use ecn_core::abi::HTB_MAJOR;
use ecn_core::echo::FeedbackDelta;
use ecn_core::flow::Flow;
use ecn_core::pacing::{
    DROPPED, HORIZON_NS, MAX_AHEAD_NS, Pacer, STANDING_QUEUE_NS, UNLIMITED, class, duration_ns,
    priority, queue_bytes, socket_rate, standing_queue_ns,
};
use ecn_core::response::{Function, Policy};
use proptest::prelude::*;

const NOW: u64 = 1_000_000_000_000;
const MBIT: u64 = 125_000;
/// A limit so long that only the horizon counts.
const ENDLESS: u64 = 1 << 40;
const TCP: u64 = standing_queue_ns(true);

#[test]
fn durations_round_up() {
    assert_eq!(duration_ns(1514, 125_000_000), 12_112);
    assert_eq!(duration_ns(1, 3), 333_333_334);
    assert_eq!(duration_ns(0, 3), 0);
    assert_eq!(duration_ns(1, 0), 1_000_000_000);
    // A packet of 16 MB at any rate.
    assert_eq!(duration_ns(1 << 24, 1), (1 << 24) * 1_000_000_000);
}

#[test]
fn packets_leave_a_packet_time_apart() {
    let mut pacer = Pacer::new();
    let mut send = |now| pacer.departure(now, 0, 1250, MBIT, ENDLESS, TCP);
    assert_eq!(send(NOW), NOW);
    assert_eq!(send(NOW), NOW + 10_000_000);
    assert_eq!(send(NOW + 15_000_000), NOW + 20_000_000);
    // Idle time is not made up for.
    assert_eq!(send(NOW + 90_000_000), NOW + 90_000_000);
    assert_eq!(send(NOW + 90_000_000), NOW + 100_000_000);
}

#[test]
fn a_higher_rate_holds_from_the_next_packet() {
    let mut pacer = Pacer::new();
    for k in 0..3 {
        let at = pacer.departure(NOW, 0, 1250, MBIT, ENDLESS, TCP);
        assert_eq!(at, NOW + k * 10_000_000);
    }
    assert_eq!(
        pacer.departure(NOW, 0, 1250, 10 * MBIT, ENDLESS, TCP),
        NOW + 21_000_000
    );
}

/// The two waiting packets leave within 2 ms, and would take 20 ms at the new rate.
#[test]
fn after_a_decrease_the_next_packet_makes_up_for_those_that_wait() {
    let mut pacer = Pacer::new();
    for k in 0..3 {
        let at = pacer.departure(NOW, 0, 1250, 10 * MBIT, ENDLESS, TCP);
        assert_eq!(at, NOW + k * 1_000_000);
    }
    let at = pacer.departure(NOW, 0, 1250, MBIT, ENDLESS, TCP);
    assert!(at.abs_diff(NOW + 30_000_000) <= 20_000, "{}", at - NOW);
    // Once only.
    assert_eq!(
        pacer.departure(NOW, 0, 1250, MBIT, ENDLESS, TCP),
        at + 10_000_000
    );
}

#[test]
fn a_later_stamp_is_kept_and_one_of_another_clock_is_not() {
    for (stamp, at) in [
        (NOW - 5, NOW),
        (NOW + 5, NOW + 5),
        (NOW + MAX_AHEAD_NS, NOW + MAX_AHEAD_NS),
        // CLOCK_REALTIME in 2026; CLOCK_TAI is beside it.
        (1_790_000_000_000_000_000, NOW),
        (u64::MAX, NOW),
    ] {
        let mut pacer = Pacer::new();
        assert_eq!(pacer.departure(NOW, stamp, 100, MBIT, ENDLESS, TCP), at);
        assert_eq!(pacer.last_ns, at);
    }
}

#[test]
fn dropped_packets_are_not_charged() {
    let mut pacer = Pacer::new();
    let mut sent = 0;
    // 1 s at this rate is 100 packets.
    while pacer.departure(NOW, 0, 1250, MBIT, 100 * 1250, TCP) != DROPPED {
        sent += 1;
    }
    assert!((100..=102).contains(&sent), "{sent}");
    let before = pacer;
    for _ in 0..1000 {
        assert_eq!(
            pacer.departure(NOW, 0, 1250, MBIT, 100 * 1250, TCP),
            DROPPED
        );
    }
    assert_eq!(pacer, before);
    // As soon as one has departed there is room for one.
    let later = NOW + 30_000_000;
    assert_ne!(
        pacer.departure(later, 0, 1250, MBIT, 100 * 1250, TCP),
        DROPPED
    );
}

/// Packets waiting at a low rate do not fill the queue at a high one: nothing is dropped when the rate rises.
#[test]
fn a_rising_rate_gets_headroom() {
    let mut pacer = Pacer::new();
    // 0.5 s of packets.
    while pacer.last_ns < NOW + 500_000_000 {
        pacer.departure(NOW, 0, 1250, MBIT, 256 << 10, TCP);
    }
    let mut sent = 0;
    while pacer.departure(NOW, 0, 1250, 1_000 * MBIT, 256 << 10, TCP) != DROPPED {
        sent += 1250;
    }
    assert!((256 << 10..258 << 10).contains(&sent), "{sent}");
    // Slowly, a bit with each packet: this is limited, too.
    let (mut pacer, mut rate, mut sent) = (Pacer::new(), MBIT, 0u64);
    while pacer.departure(NOW, 0, 1250, rate, 64 << 10, TCP) != DROPPED {
        rate = (rate + rate / 64).min(1_000 * MBIT);
        sent += 1250;
    }
    assert!(sent < 1 << 20, "{sent}");
}

/// A burst has all of the queue; a sender that keeps exceeding the rate has a few milliseconds of it, from .1 s on.
#[test]
fn a_standing_queue_is_limited() {
    let mut pacer = Pacer::new();
    let mut send = |now| {
        let queue_bytes = 10 * 1250 + queue_bytes(MBIT);
        let at = pacer.departure(now, 0, 1250, MBIT, queue_bytes, STANDING_QUEUE_NS);
        (at != DROPPED).then(|| at - now)
    };
    // A packet takes 10 ms.
    let burst = (0..20).filter_map(|_| send(NOW)).collect::<Vec<_>>();
    assert_eq!(burst.len(), 13);
    assert_eq!(burst.last(), Some(&120_000_000));
    let waited = |ms: u64| (ms >= 200).then_some(ms);
    let longest = (1..1_000)
        .filter_map(|ms| waited(ms).and(send(NOW + ms * 1_000_000)))
        .max();
    assert_eq!(longest, Some(24_000_000));
    // It was empty: there is room for a burst again.
    let later = NOW + 2_000_000_000;
    assert_eq!((0..20).filter_map(|_| send(later)).count(), 13);
}

#[test]
fn the_horizon_limits_the_queue() {
    let mut pacer = Pacer::new();
    while pacer.departure(NOW, 0, 1250, MBIT, ENDLESS, TCP) != DROPPED {}
    assert!(pacer.last_ns > NOW + HORIZON_NS && pacer.last_ns <= NOW + HORIZON_NS + 10_000_000);
}

#[test]
fn packets_pass_at_the_lowest_rates() {
    let mut pacer = Pacer::new();
    let mut now = NOW;
    for _ in 0..10 {
        let at = pacer.departure(now, 0, 65_536, 1, 1, TCP);
        assert_ne!(at, DROPPED);
        assert!(at <= now + MAX_AHEAD_NS);
        now = at;
    }
}

#[test]
fn classes_go_through_priorities() {
    for number in [0x10, 0x17, 0x1234, 0xffff] {
        assert_eq!(class(u32::from(HTB_MAJOR) << 16 | number), number);
        for old in [0, 1, 6, 0x37, u32::MAX] {
            assert_eq!(class(priority(number, old)), number);
        }
    }
    // Chosen by applications and other HTBs.
    for other in [0, 6, 7, 0x0001_0010, u32::from(HTB_MAJOR - 1) << 16 | 0x10] {
        assert_eq!(class(other), 0, "{other:x}");
    }
    // Qdiscs sort by the low four bits, and fq does not pace 7.
    assert_eq!(priority(0x17, 4) & 15, 4);
    assert_eq!(priority(0x17, 7) & 15, 6);
}

#[test]
fn sockets_count_payload() {
    assert_eq!(socket_rate(1514, 1448, 66), 1448);
    assert_eq!(socket_rate(12_500_000, 1448, 66), 11_955_085);
    assert_eq!(socket_rate(0, 1448, 66), 1);
    assert_eq!(socket_rate(u64::MAX, 1448, 66), UNLIMITED - 1);
    assert_eq!(socket_rate(602, 0, 66), 536);
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

/// Ten packets are stamped when the first mark arrives; the last of them departs 9 ms later. Marks on these ten do not
/// reflect the decreased rate, the next one does.
#[test]
fn a_round_lasts_until_stamped_packets_have_left() {
    let policy = Policy::hp(Function::Fimd);
    let link = 10 * MBIT;
    let mut f = Flow::new();
    for _ in 0..10 {
        f.pacer.departure(NOW, 0, 1250, link, ENDLESS, TCP);
    }
    let ms = |k: u64| NOW + k * 1_000_000;
    let reaction = f.respond_paced(&policy, &delta(1, 1, 1, 1), 2, link, ms(1));
    assert_eq!((reaction.decreased, f.pending), (1, 1));
    assert_eq!((f.decreased_ns, f.rate_bytes_per_s), (ms(9), link / 2));
    // One more, at the new rate: the 8 ms that wait take twice as long, and it 2 ms.
    let at = f
        .pacer
        .departure(ms(1), 0, 1250, f.rate_bytes_per_s, ENDLESS, TCP);
    assert!(at.abs_diff(ms(19)) <= 3_000, "{}", at - NOW);
    for k in 2..=9u32 {
        let reaction = f.respond_paced(&policy, &delta(1, 1, k, 1), k + 1, link, ms(k.into()));
        assert_eq!((reaction.decreased, reaction.ignored), (0, 1), "packet {k}");
    }
    let reaction = f.respond_paced(&policy, &delta(1, 1, 10, 0), 10, link, ms(10));
    assert_eq!((reaction.decreased, f.pending), (0, 0), "the last old one");
    let reaction = f.respond_paced(&policy, &delta(1, 1, 11, 0), 11, link, ms(20));
    assert_eq!((reaction.decreased, f.pending), (1, 0), "the first new one");
}

/// Nothing waits: the decrease is in force at once, and the next packet's mark counts.
#[test]
fn a_decrease_with_nothing_waiting_is_in_force_at_once() {
    let policy = Policy::hp(Function::Fimd);
    let mut f = Flow::new();
    for k in 1..=3u32 {
        let now = NOW + u64::from(k) * 1_000_000_000;
        f.pacer.departure(now, 0, 1250, MBIT, ENDLESS, TCP);
        let reaction = f.respond_paced(&policy, &delta(1, 1, k, 0), k, MBIT, now + 1_000_000);
        assert_eq!((reaction.decreased, f.pending), (1, 0), "packet {k}");
    }
}

proptest! {
    /// In any interval at most rate x interval and one packet, for any sizes and pauses.
    #[test]
    fn never_above_the_rate(
        rate in 1_000u64..20_000_000_000,
        packets in prop::collection::vec((60u64..65_536, 0u64..50_000_000, any::<bool>()), 2..200),
    ) {
        let (mut pacer, mut now) = (Pacer::new(), NOW);
        let mut departures: Vec<(u64, u64)> = Vec::new();
        for (bytes, pause, stamped) in packets {
            now += pause;
            let stamp = if stamped { now + pause / 2 } else { 0 };
            let at = pacer.departure(now, stamp, bytes, rate, 256 << 10, TCP);
            if at == DROPPED {
                continue;
            }
            prop_assert!(at >= now);
            // Only below this does the horizon not limit it.
            if bytes * 1_000_000_000 / rate < MAX_AHEAD_NS - HORIZON_NS {
                departures.push((at, bytes));
            } else {
                departures.clear();
            }
        }
        for (first, &(from, _)) in departures.iter().enumerate() {
            let mut sent = 0u128;
            for &(at, bytes) in &departures[first + 1..] {
                sent += u128::from(bytes);
                let allowed = u128::from(at - from) * u128::from(rate) / 1_000_000_000;
                prop_assert!(sent <= allowed, "{sent} in {} ns at {rate}", at - from);
            }
        }
    }

    /// A sender that always has something to send gets the whole rate, to within the rounding.
    #[test]
    fn a_greedy_sender_gets_its_rate(
        rate in 10_000u64..20_000_000_000,
        sizes in prop::collection::vec(60u64..9_000, 10..300),
    ) {
        let (mut pacer, mut now) = (Pacer::new(), NOW);
        let mut sent = 0u64;
        for (k, &bytes) in sizes.iter().enumerate() {
            let at = pacer.departure(now, 0, bytes, rate, ENDLESS, TCP);
            prop_assert_ne!(at, DROPPED);
            if k > 0 {
                sent += bytes;
            }
            // Greedy, and limited by its socket.
            now = now.max(at.saturating_sub(HORIZON_NS / 2));
        }
        let least = u128::from(sent) * 1_000_000_000 / u128::from(rate);
        let took = u128::from(pacer.last_ns - NOW);
        prop_assert!(took >= least && took <= least + sizes.len() as u128 + 1);
    }
}
