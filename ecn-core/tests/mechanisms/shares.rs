//! Shares: which sources are below, at and above theirs; what is spared, and what is dropped.

use std::collections::VecDeque;

use ecn_core::{
    marking::{Decision, HOST, MarkAt, Marking, Policy, Share, Switch},
    packet::source,
    shares::{FORGET_NS, Lookup, Output, ShareBy, Shares},
    vqueue::PacketMeta,
};
use proptest::prelude::*;

const N: usize = 16;
const E: usize = 1024;
const O: u8 = 10;
const SIZE: u32 = 1500;

fn policy() -> Policy {
    Policy {
        marking: Marking::InputOutput as u32,
        mark_at: MarkAt::Arrival as u32,
        buffer: 4,
        threshold: 8,
        ports: N as u32,
        shares: ShareBy::Source as u32,
        drop_threshold: 16,
        _pad: 0,
    }
}

fn address(host: u32) -> u32 {
    source(&[0, 0, 0xffff_0000, 0x0a00_0001 + host])
}

fn packet(host: u32, now_ns: u64) -> PacketMeta {
    PacketMeta {
        // Hosts are behind a few ports.
        input: 1 + (host % 7) as u8,
        output: O,
        markable: true,
        droppable: true,
        packets: 1,
        bytes: SIZE,
        source: address(host),
        now_ns,
        ns_per_byte: 0,
    }
}

/// The kernel's coarse clock, 250 times a second.
fn tick(now: f64) -> u64 {
    (now / 4e6) as u64 * 4_000_000
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 40) as f64 / f64::from(1 << 24)
    }
}

/// A port with this rate, its queue, and hosts with given rates.
struct Line {
    switch: Box<Switch<N>>,
    shares: Box<Shares<N, E>>,
    policy: Policy,
    ns_per_packet: f64,
    limit: usize,
    queue: VecDeque<(u8, u32)>,
    now: f64,
    free: f64,
    /// Decisions by share, per host.
    seen: Vec<[u64; 6]>,
    delivered: Vec<u64>,
    dropped: Vec<u64>,
    marked: Vec<u64>,
    /// Sum of the queue's length at arrivals.
    waited: u64,
    arrivals: u64,
    unmarkable: Vec<bool>,
}

impl Line {
    fn new(mbit: f64, hosts: usize) -> Self {
        Self {
            switch: Box::default(),
            shares: Box::default(),
            policy: policy(),
            ns_per_packet: f64::from(SIZE) * 8e3 / mbit,
            limit: 100,
            queue: VecDeque::new(),
            now: 5e9,
            free: 0.0,
            seen: vec![[0; 6]; hosts],
            delivered: vec![0; hosts],
            dropped: vec![0; hosts],
            marked: vec![0; hosts],
            waited: 0,
            arrivals: 0,
            unmarkable: vec![false; hosts],
        }
    }

    fn until(&mut self, now: f64) {
        while let Some(&(input, host)) = self.queue.front() {
            if self.free > now {
                break;
            }
            self.queue.pop_front();
            self.free += self.ns_per_packet;
            self.switch
                .on_dequeue_unchecked(&self.policy, input, O, 1, true);
            self.delivered[host as usize] += 1;
        }
        self.now = now;
    }

    fn send(&mut self, host: u32) -> Decision {
        let h = host as usize;
        let a = PacketMeta {
            markable: !self.unmarkable[h],
            ..packet(host, tick(self.now))
        };
        let decision = self.shares.on_enqueue(&mut self.switch, &self.policy, &a);
        self.seen[h][decision.share as usize] += 1;
        self.waited += self.queue.len() as u64;
        self.arrivals += 1;
        self.marked[h] += u64::from(decision.mark);
        if decision.drop != 0 {
            self.dropped[h] += 1;
        } else if self.queue.len() >= self.limit {
            self.switch.on_drop(a.input, O, 1);
        } else {
            if self.queue.is_empty() {
                self.free = self.free.max(self.now);
            }
            self.queue.push_back((a.input, host));
        }
        decision
    }

    /// Hosts send at these rates, as parts of the line, for this number of seconds; `jitter` of an interval.
    fn run(&mut self, rates: &[f64], seconds: f64, jitter: f64) {
        let mut random = Random(9);
        let mut next: Vec<f64> = rates
            .iter()
            .map(|rate| self.now + random.next() * self.ns_per_packet / rate)
            .collect();
        let end = self.now + seconds * 1e9;
        loop {
            let (host, at) = (0..rates.len())
                .map(|host| (host, next[host]))
                .min_by(|a, b| a.1.total_cmp(&b.1))
                .expect("hosts");
            if at > end {
                break;
            }
            self.until(at.max(self.now));
            self.send(host as u32);
            let interval = self.ns_per_packet / rates[host];
            next[host] = at + interval * (1.0 + jitter * (2.0 * random.next() - 1.0));
        }
    }

    fn forget_what_was_seen(&mut self) {
        for of in [&mut self.delivered, &mut self.dropped, &mut self.marked] {
            of.fill(0);
        }
        self.seen.fill([0; 6]);
        (self.waited, self.arrivals) = (0, 0);
    }

    fn part(&self, host: usize, share: Share) -> f64 {
        self.seen[host][share as usize] as f64 / self.seen[host].iter().sum::<u64>() as f64
    }

    /// About its share, or over it.
    fn part_near(&self, host: usize) -> f64 {
        let near = [Share::Under, Share::At, Share::Over];
        near.map(|share| self.part(host, share)).iter().sum()
    }

    fn mean_part_near(&self, hosts: std::ops::Range<usize>) -> f64 {
        let n = hosts.len() as f64;
        hosts.map(|host| self.part_near(host)).sum::<f64>() / n
    }
}

/// Equal greedy sources are at their share, however many, at 10 Mbit/s to 1 Gbit/s.
#[test]
fn equal_sources_are_at_their_share() {
    for (mbit, hosts, at_least) in [
        (100.0, 1, 0.99),
        (100.0, 2, 0.97),
        (100.0, 10, 0.97),
        (100.0, 40, 0.95),
        (100.0, 100, 0.95),
        (100.0, 400, 0.8),
        (10.0, 2, 0.97),
        (10.0, 10, 0.97),
        (1000.0, 10, 0.97),
        (1000.0, 400, 0.95),
    ] {
        let mut line = Line::new(mbit, hosts);
        let rates = vec![1.02 / hosts as f64; hosts];
        line.run(&rates, 1.0, 0.5);
        line.forget_what_was_seen();
        line.run(&rates, 2.0, 0.5);
        let at = line.mean_part_near(0..hosts);
        println!("{mbit} Mbit/s, {hosts} hosts: {at:.3} at their share");
        assert!(at >= at_least, "{mbit} Mbit/s, {hosts} hosts: {at:.3}");
    }
}

/// A voice stream beside greedy sources is below its share, and never marked.
#[test]
fn a_voice_stream_is_never_marked() {
    for greedy in [2, 10] {
        let mut rates = vec![0.97 / greedy as f64; greedy];
        rates.push(0.05);
        let mut line = Line::new(100.0, rates.len());
        line.run(&rates, 0.5, 0.5);
        line.forget_what_was_seen();
        line.run(&rates, 2.0, 0.5);
        let below = line.part(greedy, Share::Light) + line.part(greedy, Share::Below);
        assert!(below > 0.99, "beside {greedy}: {below:.3}");
        assert_eq!(line.marked[greedy], 0);
        let marked: u64 = line.marked.iter().sum();
        assert!(marked > 500, "{marked} marked in all");
        assert!(line.mean_part_near(0..greedy) > 0.9);
    }
}

/// The next packet takes the mark that a spared packet does not take.
#[test]
fn the_next_packet_takes_a_spared_mark() {
    let rates = [0.97, 0.05];
    let mut line = Line::new(100.0, 2);
    line.run(&rates, 1.0, 0.2);
    // Fill the queue over the threshold, so that everything is due.
    for _ in 0..12 {
        line.send(0);
    }
    let cnt2 = line.switch.ports[O as usize].cnt2;
    assert!(cnt2 > 8);
    let spared = line.send(1);
    assert_eq!((spared.share, spared.mark), (Share::Light as u32, 0));
    assert_eq!(line.send(0).mark, 1);
    let unknown = line.shares.on_enqueue(
        &mut line.switch,
        &Policy {
            shares: ShareBy::Off as u32,
            ..policy()
        },
        &packet(1, line.now as u64),
    );
    assert_eq!((unknown.share, unknown.mark), (Share::Unknown as u32, 1));
}

/// A source slightly below its share is spared while the queue is short; marked if the others cannot take all marks.
#[test]
fn sources_slightly_below_their_share_are_spared_in_a_short_queue() {
    let rates = [0.5, 0.47];
    let mut line = Line::new(100.0, 2);
    line.run(&rates, 1.0, 0.2);
    let eligibility = |queue: usize| {
        let mut line = Line {
            switch: line.switch.clone(),
            shares: line.shares.clone(),
            queue: line.queue.clone(),
            ..Line::new(100.0, 2)
        };
        line.now = 6e9;
        while line.queue.len() < queue {
            line.send(0);
            line.send(1);
        }
        let decision = line.send(1);
        (decision.share, decision.mark)
    };
    assert_eq!(eligibility(12), (Share::Under as u32, 0));
    assert_eq!(eligibility(22), (Share::Under as u32, 1));
}

/// A source below 7/8 of its share is spared unless the queue is long; one below 3/4 always.
#[test]
fn sources_below_their_share_are_marked_only_in_a_long_queue() {
    for (of_eleven, long) in [(3u32, 1), (1, 0)] {
        let rate = f64::from(of_eleven) / 11.0;
        let rates = [(1.0 - rate) / 2.0, (1.0 - rate) / 2.0, rate];
        let mut line = Line::new(100.0, 3);
        line.run(&rates.map(|rate| 0.97 * rate), 1.0, 0.2);
        let mut n = 0;
        let mut fill = |line: &mut Line, packets: usize| {
            while line.queue.len() < packets {
                n += 1;
                let third = n % 11 % 4 == 1 && n % 11 / 4 < of_eleven;
                line.send(if third { 2 } else { n % 2 });
            }
            line.send(2).mark
        };
        assert_eq!(fill(&mut line, 40), 0, "{rate:.2}");
        assert_eq!(fill(&mut line, 60), long, "{rate:.2}");
    }
}

/// A source that does not react to marks gets about what the others leave, and the queue stays at the threshold.
#[test]
fn unmarkable_packets_are_dropped_by_share() {
    let mut line = Line::new(100.0, 5);
    line.unmarkable[4] = true;
    let rates = [0.19, 0.19, 0.19, 0.19, 0.97];
    line.run(&rates, 0.5, 0.5);
    line.forget_what_was_seen();
    line.run(&rates, 2.0, 0.5);
    let delivered: Vec<f64> = line
        .delivered
        .iter()
        .map(|packets| *packets as f64 / 2.0 * line.ns_per_packet / 1e9)
        .collect();
    for (host, part) in delivered[..4].iter().enumerate() {
        assert!(*part > 0.185, "host {host}: {delivered:?}");
        assert_eq!(line.dropped[host], 0);
    }
    assert!((0.2..0.25).contains(&delivered[4]), "{delivered:?}");
    let queue = line.waited as f64 / line.arrivals as f64;
    assert!((10.0..20.0).contains(&queue), "queue {queue:.1}");
    let port = &line.switch.ports[O as usize];
    assert!(port.dropped_unmarkable >= line.dropped[4] && port.dropped == 0);
    assert_eq!(port.cnt1 as usize, line.queue.len());
}

/// A single source has its share and no more: its queue may be twice as long.
#[test]
fn at_its_share_the_queue_may_be_twice_as_long() {
    let mut line = Line::new(100.0, 3);
    line.unmarkable.fill(true);
    line.run(&[0.6, 0.6, 0.02], 0.5, 0.5);
    line.forget_what_was_seen();
    line.run(&[0.6, 0.6, 0.02], 2.0, 0.5);
    let queue = line.waited as f64 / line.arrivals as f64;
    assert!((14.0..34.0).contains(&queue), "queue {queue:.1}");
    assert_eq!(line.dropped[2], 0);
    let (a, b) = (line.delivered[0] as f64, line.delivered[1] as f64);
    assert!((0.9..1.1).contains(&(a / b)), "{a} {b}");
}

/// Packets that must not be dropped, and those that pass where nothing is to be dropped.
#[test]
fn nothing_else_is_dropped() {
    let rates = [0.1, 0.1, 1.5];
    let mut line = Line::new(100.0, 3);
    line.unmarkable[2] = true;
    line.limit = 60;
    line.run(&rates, 0.5, 0.2);
    assert!(line.dropped[2] > 1_000);
    line.switch.ports[O as usize].cnt1 = 50;
    let over = PacketMeta {
        markable: false,
        ..packet(2, line.now as u64)
    };
    let drops = |policy: &Policy, a: &PacketMeta| {
        let (mut switch, mut shares) = (line.switch.clone(), line.shares.clone());
        let before = switch.clone();
        let decision = shares.on_enqueue(&mut switch, policy, a);
        if decision.drop != 0 {
            // It changed nothing but the count.
            switch.ports[O as usize].dropped_unmarkable -= u64::from(a.packets);
            assert_eq!(switch, before);
            assert_eq!(decision.mark + decision.unmarkable, 0);
        }
        decision.drop != 0
    };
    let p = policy();
    assert!(drops(&p, &over));
    let spared = PacketMeta {
        droppable: false,
        ..over
    };
    assert!(!drops(&p, &spared));
    assert!(!drops(
        &p,
        &PacketMeta {
            markable: true,
            ..over
        }
    ));
    for pass in [
        Policy {
            drop_threshold: 0,
            ..p
        },
        Policy {
            drop_threshold: 1_000,
            ..p
        },
        Policy {
            shares: ShareBy::Off as u32,
            ..p
        },
        Policy {
            marking: Marking::None as u32,
            ..p
        },
    ] {
        assert!(!drops(&pass, &over), "{pass:?}");
    }
    // Of unknown share.
    assert!(!drops(
        &p,
        &PacketMeta {
            now_ns: over.now_ns + 2 * FORGET_NS,
            ..over
        }
    ));
}

/// If the counters were wrong, some packets still pass.
#[test]
fn some_packets_pass_even_with_wrong_counters() {
    let mut line = Line::new(100.0, 2);
    line.unmarkable[1] = true;
    line.run(&[0.3, 0.9], 0.5, 0.2);
    line.switch.ports[O as usize].cnt1 = 1_000;
    let passed = (0..1_000).filter(|_| line.send(1).drop == 0).count();
    assert!((20..500).contains(&passed), "{passed}");
}

/// Spoofed addresses share one share.
#[test]
fn spoofed_addresses_share_one_share() {
    let mut shares = Box::<Shares<N, E>>::default();
    let mut switch = Box::<Switch<N>>::default();
    let (mut made_up, mut dropped, mut real, mut free) = (0u32, 0u32, 0u32, 0.0);
    for step in 0..40_000u32 {
        let now = 5e9 + f64::from(step) * 60e3;
        while f64::max(free, now) <= now && switch.ports[O as usize].cnt1 > 0 {
            let from = if switch.waiting[2][O as usize] > 0 {
                2
            } else {
                1
            };
            switch.on_dequeue_unchecked(&policy(), from, O, 1, true);
            free += 120e3;
        }
        if switch.ports[O as usize].cnt1 == 0 {
            free = free.max(now);
        }
        let a = if step % 4 == 0 {
            PacketMeta {
                input: 1,
                ..packet(1, now as u64)
            }
        } else {
            PacketMeta {
                input: 2,
                source: address(1_000 + step),
                markable: false,
                ..packet(2, now as u64)
            }
        };
        let decision = shares.on_enqueue(&mut switch, &policy(), &a);
        if a.input == 1 {
            real += 1;
            assert_eq!(decision.drop, 0);
        } else {
            made_up += 1;
            dropped += decision.drop;
        }
    }
    // Half of the line belongs to the real source, and three times as much arrives with spoofed addresses.
    let passed = f64::from(made_up - dropped) / f64::from(real);
    assert!(
        (0.7..1.4).contains(&passed),
        "{passed:.2} times the real one's"
    );
}

/// By port, hosts behind one port are one source.
#[test]
fn by_port_hosts_behind_a_port_are_one() {
    let mut line = Line::new(100.0, 15);
    line.policy.shares = ShareBy::Port as u32;
    // Port 1 has hosts 0, 7, 14; the others two each.
    let rates = [1.02 / 15.0; 15];
    line.run(&rates, 0.5, 0.2);
    line.forget_what_was_seen();
    line.run(&rates, 1.0, 0.2);
    for host in 0..15 {
        let part = if host % 7 == 0 {
            line.part(host, Share::Over)
        } else {
            line.part_near(host) - line.part(host, Share::Over)
        };
        assert!(part > 0.9, "host {host}: {part:.2}");
    }
}

/// An output that was idle for long restarts, and one at which nothing ever waits is not measured.
#[test]
fn idle_outputs_are_forgotten_and_free_ones_not_measured() {
    let mut line = Line::new(100.0, 2);
    line.run(&[0.6, 0.6], 0.3, 0.2);
    assert!(line.part_near(0) > 0.5);
    line.until(line.now + 2e9);
    line.forget_what_was_seen();
    assert_eq!(line.send(0).share, Share::Unknown as u32);
    line.run(&[0.01, 0.01], 60.0, 0.2);
    let before = line.shares.clone();
    line.run(&[0.01, 0.01], 1.0, 0.2);
    let mut after = line.shares.clone();
    after.lookup = before.lookup;
    after.outputs[O as usize].quiet = before.outputs[O as usize].quiet;
    assert_eq!(after, before);
    line.run(&[0.6, 0.6], 0.3, 0.2);
    assert!(line.part_near(0) > 0.1);
}

fn busy_ms(of: &Output, now: f64) -> Option<u32> {
    let at = |later: u32| tick(now) + u64::from(later) * 1_000_000;
    let is_busy = |later| Output::is_busy(of.busy_until, at(later));
    (0..100).take_while(|&later| is_busy(later)).last()
}

/// From the moment in which packets wait.
#[test]
fn an_output_stays_busy_after_packets_waited() {
    for now_ns in (1 << 30..(1 << 30) + (1 << 22)).step_by(1 << 18) {
        let (mut switch, mut shares) =
            (Box::<Switch<N>>::default(), Box::<Shares<N, E>>::default());
        let now = f64::from(now_ns);
        shares.on_enqueue(&mut switch, &policy(), &packet(0, tick(now)));
        let busy = busy_ms(&shares.outputs[usize::from(O)], now);
        assert_eq!(busy, None, "nothing waited");
        shares.on_enqueue(&mut switch, &policy(), &packet(1, tick(now)));
        let busy = busy_ms(&shares.outputs[usize::from(O)], now);
        assert!(matches!(busy, Some(66..=67)), "not measured yet: {busy:?}");
    }
}

/// For the time of some packets, of more with few sources, whatever arrives after they waited.
#[test]
fn a_slow_output_is_busy_longer() {
    for (mbit, hosts, least, most) in [
        (10.0, 10, 62, 68),
        (20.0, 40, 48, 60),
        (100.0, 2, 62, 68),
        (100.0, 10, 16, 26),
        (100.0, 40, 13, 21),
        (1000.0, 10, 7, 12),
    ] {
        let mut line = Line::new(mbit, hosts);
        line.run(&vec![1.05 / hosts as f64; hosts], 1.0, 0.5);
        let output = |line: &Line| line.shares.outputs[usize::from(O)];
        let busy = busy_ms(&output(&line), line.now);
        let is_so_long = |busy: Option<u32>| busy.is_some_and(|ms| (least..=most).contains(&ms));
        assert!(
            is_so_long(busy),
            "{mbit} Mbit/s, {hosts} hosts: {busy:?} ms"
        );
        let until = output(&line).busy_until;
        // One continues, slowly, when the queue is empty.
        line.until(line.now + 1e9);
        line.run(&[0.05], 1.0, 0.0);
        assert_eq!(output(&line).busy_until, until, "nothing waits");
        line.run(&[1.5], 0.001, 0.0);
        let busy = busy_ms(&output(&line), line.now);
        assert!(
            is_so_long(busy),
            "{mbit} Mbit/s, after {hosts} hosts: {busy:?} ms"
        );
    }
}

/// A table that is full, or an entry with two candidates: unknown, not attributed to another source.
#[test]
fn sources_without_a_slot_are_unknown() {
    let mut switch = Box::<Switch<N>>::default();
    let mut shares = Box::<Shares<N, 16>>::default();
    let mut seen = [0u32; 4];
    for round in 0..200u64 {
        for host in 0..64 {
            let a = PacketMeta {
                markable: false,
                ..packet(host, 5_000_000_000 + round * 5_000_000)
            };
            let decision = shares.on_enqueue(&mut switch, &policy(), &a);
            if decision.share == Share::Unknown as u32 {
                assert_eq!(decision.drop, 0);
            }
            seen[decision.share as usize] += 1;
            // One always waits.
            if switch.ports[O as usize].cnt1 > 1 {
                switch.on_dequeue_unchecked(&policy(), a.input, O, 1, true);
            }
        }
    }
    assert!(seen[0] > 8_000 && seen[0] < 11_000, "{seen:?}");
}

proptest! {
    /// For any input: nothing panics, sums hold, and `off` behaves as without shares.
    #[test]
    fn off_is_as_without(
        steps in prop::collection::vec((0u8..16, 0u8..16, 1u32..50, any::<bool>(), any::<bool>(), 0u32..9, 0u64..40_000_000, 0u32..70_000), 1..400),
        on in 0u32..3,
        marking in 0u32..4,
    ) {
        let p = Policy { shares: on, marking, ..policy() };
        let mut switch = Box::<Switch<N>>::default();
        let mut plain = switch.clone();
        let mut shares = Box::<Shares<N, 16>>::default();
        let mut now = 0u64;
        let mut refused = 0u64;
        for (i, o, n, markable, leave, host, later, bytes) in steps {
            now += later;
            let a = PacketMeta {
                input: i, output: o, markable, droppable: i != HOST, packets: n, bytes,
                source: address(host), now_ns: now, ns_per_byte: 0,
            };
            if leave {
                let decision = shares.on_dequeue(&mut switch, &p, &a);
                if on == 0 {
                    prop_assert_eq!(decision, plain.on_dequeue_unchecked(&p, i, o, n, markable));
                }
            } else {
                let decision = shares.on_enqueue(&mut switch, &p, &a);
                refused += u64::from(decision.drop * n);
                prop_assert!(decision.drop == 0 || !markable && i != HOST);
                if on == 0 {
                    prop_assert_eq!(decision, plain.on_enqueue(&p, i, o, n, markable));
                }
            }
            for (o, output) in shares.outputs.iter().enumerate() {
                prop_assert!(output.bytes < 1 << 31 && output.average < 1 << 31 && output.fair <= 1 << 24);
                let of: u64 = shares.sources.iter()
                    .filter(|s| s.tag != 0 && usize::from(s.output) == o && s.epoch == output.epoch as u16)
                    .map(|s| u64::from(s.bytes)).sum();
                prop_assert!(of <= u64::from(output.bytes), "{} of {:?}", of, output);
            }
        }
        if on == 0 {
            prop_assert_eq!(&switch, &plain);
            shares.lookup = Lookup::default();
            for output in &mut shares.outputs {
                output.busy_until = 0;
            }
            prop_assert_eq!(shares, Box::default());
        }
        let counted: u64 = switch.ports.iter().map(|p| p.dropped_unmarkable).sum();
        prop_assert_eq!(counted, refused);
    }
}
