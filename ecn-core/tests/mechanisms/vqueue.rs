//! A virtual queue decides like a real queue of that rate whose every departure is seen.

use std::collections::VecDeque;

use ecn_core::{
    marking::{BACKLOG_UNKNOWN, Decision, HOST, MarkAt, Marking, Policy, Switch},
    vqueue::{DEPTH, PacketMeta, Queues, ns_per_byte},
};
use proptest::prelude::*;

const N: usize = 8;

fn policy(marking: Marking, buffer: u32, threshold: u32) -> Policy {
    Policy {
        marking: marking as u32,
        mark_at: MarkAt::Arrival as u32,
        buffer,
        threshold,
        ports: N as u32,
        shares: 0,
        drop_threshold: 0,
        _pad: 0,
    }
}

/// A line and its waiting packets: exact times in 2^-32 ns.
#[derive(Clone, Default)]
struct Line {
    free: u128,
    waiting: VecDeque<(u128, u8, u32)>,
}

/// Real queues: the switch is notified of every departure on time.
struct Real {
    switch: Switch<N>,
    lines: Vec<Line>,
}

impl Real {
    fn new() -> Self {
        Self {
            switch: Switch::default(),
            lines: vec![Line::default(); N],
        }
    }

    fn until(&mut self, policy: &Policy, now_ns: u64) {
        for (o, line) in self.lines.iter_mut().enumerate() {
            while let Some(&(start, i, n)) = line.waiting.front() {
                if (start >> 32) as u64 > now_ns {
                    break;
                }
                line.waiting.pop_front();
                self.switch
                    .on_dequeue(policy, i, o as u8, n, false, BACKLOG_UNKNOWN);
            }
        }
    }

    fn on_enqueue(&mut self, policy: &Policy, a: &PacketMeta) -> Decision {
        self.until(policy, a.now_ns);
        let (i, o, n) = (a.input, a.output, a.packets);
        let line = &mut self.lines[o as usize];
        let free = line.waiting.is_empty() && (line.free >> 32) as u64 <= a.now_ns;
        let full = line.waiting.len() >= DEPTH;
        let decision = if free {
            self.switch.on_enqueue(policy, i, o, n, a.markable)
        } else {
            self.switch.on_enqueue_waiting(policy, i, o, n, a.markable)
        };
        if free || full {
            self.switch
                .on_dequeue(policy, i, o, n, false, BACKLOG_UNKNOWN);
        }
        if full {
            return decision;
        }
        if free {
            line.free = u128::from(a.now_ns) << 32;
        } else {
            line.waiting.push_back((line.free, i, n));
        }
        line.free += u128::from(a.ns_per_byte) * u128::from(a.bytes);
        decision
    }

    /// Waiting packets, counted one by one.
    fn scan(&self, input: Option<u8>, output: Option<u8>) -> u32 {
        let lines = self.lines.iter().enumerate();
        let of_output = lines.filter(|(o, _)| output.is_none_or(|output| output as usize == *o));
        of_output
            .flat_map(|(_, line)| &line.waiting)
            .filter(|(_, i, _)| input.is_none_or(|input| input == *i))
            .map(|(_, _, n)| n)
            .sum()
    }
}

/// Updates all outputs.
fn catch_up(queues: &mut Queues<N>, switch: &mut Switch<N>, now_ns: u64) {
    for o in 0..N as u8 {
        queues.catch_up(switch, o, now_ns);
    }
}

/// The counters against their sums.
fn check_sums(switch: &Switch<N>) {
    for p in 0..N {
        let row: u32 = switch.waiting[p].iter().sum();
        let column: u32 = switch.waiting.iter().map(|row| row[p]).sum();
        assert_eq!(switch.ports[p].occupancy, row, "occupancy of {p}");
        assert_eq!(switch.ports[p].cnt1, column, "cnt1 of {p}");
        let port = switch.ports[p];
        assert_eq!(
            port.arrived,
            port.departed + u64::from(port.cnt1),
            "{port:?}"
        );
    }
}

#[derive(Clone, Debug)]
struct Step {
    after_ns: u64,
    input: u8,
    output: u8,
    packets: u32,
    bytes: u32,
    markable: bool,
}

impl Step {
    fn arrival(&self, now_ns: u64, bytes_per_s: u64) -> PacketMeta {
        PacketMeta {
            input: self.input,
            output: self.output,
            markable: self.markable,
            packets: self.packets,
            bytes: self.bytes,
            now_ns,
            ns_per_byte: ns_per_byte(bytes_per_s).expect("a rate"),
            ..PacketMeta::default()
        }
    }
}

/// Bursts at one time, steps of about a packet, and long pauses.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let after = prop_oneof![
        4 => Just(0u64),
        6 => 0u64..300_000,
        1 => 0u64..40_000_000,
    ];
    let packets = prop_oneof![5 => Just(1u32), 1 => 2u32..=45];
    let step = (
        after,
        0u8..N as u8,
        0u8..2,
        packets,
        64u32..=1514,
        any::<bool>(),
    );
    let step = step.prop_map(|(after_ns, input, output, packets, bytes, markable)| Step {
        after_ns,
        input,
        // Two outputs, so that queues form, and that no more waits elsewhere than one update removes.
        output: output + 1,
        packets,
        bytes: bytes * packets,
        markable,
    });
    prop::collection::vec(step, 1..400)
}

fn any_policy() -> impl Strategy<Value = Policy> {
    (
        prop::sample::select(Marking::ALL.to_vec()),
        1u32..20,
        1u32..30,
    )
        .prop_map(|(marking, buffer, threshold)| policy(marking, buffer, threshold))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn as_a_real_queue_of_that_rate(
        policy in any_policy(),
        steps in steps(),
        rates in prop::collection::vec(100_000u64..200_000_000, N),
    ) {
        let mut real = Real::new();
        let (mut queues, mut switch) = (Queues::<N>::default(), Switch::<N>::default());
        let mut now_ns = 1_000_000_000;
        for step in &steps {
            now_ns += step.after_ns;
            let a = step.arrival(now_ns, rates[step.output as usize]);
            let expected = real.on_enqueue(&policy, &a);
            prop_assert_eq!(queues.on_enqueue(&mut switch, &policy, &a), expected, "{:?}", a);
            check_sums(&switch);
            // A reader sees what waits now, without changing later decisions.
            let (mut seen, mut looking) = (switch.clone(), queues.clone());
            catch_up(&mut looking, &mut seen, now_ns);
            check_sums(&seen);
            prop_assert_eq!(&seen.ports, &real.switch.ports);
            prop_assert_eq!(&seen.waiting, &real.switch.waiting);
            for p in 0..N as u8 {
                prop_assert_eq!(seen.ports[p as usize].cnt1, real.scan(None, Some(p)));
                prop_assert_eq!(seen.ports[p as usize].occupancy, real.scan(Some(p), None));
                // The same with read-only access.
                let begun: u32 = queues.queues[p as usize].started(now_ns).map(|w| w.packets).sum();
                let waits = switch.ports[p as usize].cnt1 - begun;
                prop_assert_eq!(waits, seen.ports[p as usize].cnt1);
            }
        }
        // Idle: everything has departed.
        catch_up(&mut queues, &mut switch, i64::MAX as u64);
        for port in &switch.ports {
            prop_assert_eq!((port.cnt1, port.occupancy, port.dropped), (0, 0, 0));
            prop_assert_eq!(port.arrived, port.departed);
        }
    }

    /// CPUs read the clock before they take the lock: times go back a little. A port is removed and its slot is reused.
    #[test]
    fn nothing_is_left_behind(
        policy in any_policy(),
        steps in steps(),
        back in prop::collection::vec(0u64..3_000, 400),
        gone in prop::collection::vec((0usize..400, 1u8..N as u8), 0..4),
    ) {
        let (mut queues, mut switch) = (Queues::<N>::default(), Switch::<N>::default());
        let mut now_ns = 1_000_000_000;
        for (number, step) in steps.iter().enumerate() {
            now_ns += step.after_ns;
            for (_, port) in gone.iter().filter(|(at, _)| *at == number) {
                switch.set_waiting(*port, N as u32, 0);
                queues.remove_port(&mut switch, *port);
                prop_assert_eq!(switch.ports[*port as usize].arrived, 0);
            }
            let a = step.arrival(now_ns - back[number], 6_250_000);
            queues.on_enqueue(&mut switch, &policy, &a);
            for p in 0..N {
                let column: u32 = switch.waiting.iter().map(|row| row[p]).sum();
                let row: u32 = switch.waiting[p].iter().sum();
                prop_assert_eq!((switch.ports[p].cnt1, switch.ports[p].occupancy), (column, row));
            }
        }
        catch_up(&mut queues, &mut switch, i64::MAX as u64);
        prop_assert!(switch.waiting.iter().flatten().all(|w| *w == 0));
        prop_assert!(switch.ports.iter().all(|p| p.cnt1 == 0 && p.occupancy == 0));
    }
}

fn arrival(input: u8, output: u8, now_ns: u64) -> PacketMeta {
    PacketMeta {
        input,
        output,
        markable: true,
        packets: 1,
        bytes: 1500,
        now_ns,
        // 12 Mbit/s: 1 ms a packet.
        ns_per_byte: ns_per_byte(1_500_000).expect("a rate"),
        ..PacketMeta::default()
    }
}

/// Ten packets at once: the first is sent at once, the others wait a millisecond each.
#[test]
fn a_virtual_queue_drains_at_its_rate() {
    let policy = policy(Marking::None, 4, 8);
    let (mut queues, mut switch) = (Queues::<N>::default(), Switch::<N>::default());
    let begin = 5_000_000_000;
    for _ in 0..10 {
        queues.on_enqueue(&mut switch, &policy, &arrival(1, 2, begin));
    }
    for (after_us, waits) in [
        (0, 9),
        (999, 9),
        (1_000, 8),
        (1_001, 8),
        (8_999, 1),
        (9_000, 0),
    ] {
        queues.catch_up(&mut switch, 2, begin + after_us * 1_000);
        let found = (switch.ports[2].cnt1, switch.ports[1].occupancy);
        assert_eq!(found, (waits, waits), "after {after_us} us");
    }
    // The last is still being sent: a packet that arrives now waits for it, a later one does not.
    queues.on_enqueue(&mut switch, &policy, &arrival(1, 2, begin + 9_500_000));
    assert_eq!(switch.ports[2].cnt1, 1);
    queues.on_enqueue(&mut switch, &policy, &arrival(1, 2, begin + 12_000_000));
    assert_eq!(switch.ports[2].cnt1, 0);
}

/// 400 Gbit/s: a byte takes 0.02 ns, and no part of it gets lost.
#[test]
fn fractions_of_a_nanosecond_add_up() {
    let policy = policy(Marking::None, 4, 8);
    let (mut queues, mut switch) = (Queues::<N>::default(), Switch::<N>::default());
    let begin = 7;
    for _ in 0..50 {
        let a = PacketMeta {
            bytes: 64,
            ns_per_byte: ns_per_byte(50_000_000_000).expect("a rate"),
            ..arrival(1, 2, begin)
        };
        queues.on_enqueue(&mut switch, &policy, &a);
    }
    assert_eq!(queues.queues[2].free_ns, begin + 64);
}

/// The packet of the other output has departed long ago, but nobody looked there since.
#[test]
fn departures_at_other_outputs_free_the_buffer() {
    let policy = policy(Marking::Input, 2, 8);
    let (mut queues, mut switch) = (Queues::<N>::default(), Switch::<N>::default());
    for _ in 0..3 {
        queues.on_enqueue(&mut switch, &policy, &arrival(1, 3, 0));
    }
    assert_eq!(switch.ports[1].input_triggers, 1);
    assert_eq!(switch.ports[1].occupancy, 2);
    let later = 1_000_000_000;
    queues.on_enqueue(&mut switch, &policy, &arrival(1, 2, later));
    queues.on_enqueue(&mut switch, &policy, &arrival(1, 2, later));
    assert_eq!((switch.ports[1].occupancy, switch.ports[3].cnt1), (1, 0));
    assert_eq!(switch.ports[1].input_triggers, 1);
    queues.on_enqueue(&mut switch, &policy, &arrival(1, 2, later));
    assert_eq!(switch.ports[1].input_triggers, 2);
}

#[test]
fn a_full_virtual_queue_still_marks() {
    let policy = policy(Marking::InputOutput, 4, 8);
    let (mut queues, mut switch) = (Queues::<N>::default(), Switch::<N>::default());
    let mut marked = 0;
    for _ in 0..1_000 {
        marked += queues
            .on_enqueue(&mut switch, &policy, &arrival(1, 2, 1))
            .mark;
    }
    assert_eq!(switch.ports[2].cnt1 as usize, DEPTH);
    // One is being sent.
    assert_eq!(queues.queues[2].overflowed, 1_000 - DEPTH as u64 - 1);
    assert_eq!(switch.ports[2].dropped, 0);
    assert!(marked > 900, "{marked}");
    queues.catch_up(&mut switch, 2, i64::MAX as u64);
    assert_eq!(switch.ports[2].cnt1, 0);
    assert_eq!(switch.ports[2].departed, 1_000);
}

/// More has departed at other outputs than one update removes: the next one finishes.
#[test]
fn an_update_is_bounded() {
    let policy = Policy {
        ports: 8,
        ..policy(Marking::Input, 4, 8)
    };
    let (mut queues, mut switch) = (Queues::<N>::default(), Switch::<N>::default());
    for o in 2..7 {
        for _ in 0..DEPTH + 1 {
            queues.on_enqueue(&mut switch, &policy, &arrival(HOST, o, 0));
            queues.on_enqueue(&mut switch, &policy, &arrival(1, o, 0));
        }
    }
    let waits = switch.ports[1].occupancy;
    assert!(waits > 128, "{waits}");
    let later = 1 << 40;
    let mut looks = 0;
    while switch.ports[1].occupancy > 1 {
        queues.on_enqueue(&mut switch, &policy, &arrival(1, 7, later + (looks << 30)));
        looks += 1;
        assert!(looks < 10, "{}", switch.ports[1].occupancy);
    }
    assert!(looks > 1);
}

#[test]
fn zero_rate_is_no_limit() {
    assert_eq!(ns_per_byte(0), None);
    assert_eq!(ns_per_byte(1_000_000_000), Some(1 << 32));
    assert_eq!(ns_per_byte(125), Some(8_000_000 << 32));
}
