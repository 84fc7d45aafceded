//! The counters of the marking policies compared with the papers' own form: lists of waiting packets per input buffer,
//! scanned whenever a count is needed.

use std::collections::BTreeSet;

use ecn_core::marking::{
    BACKLOG_UNKNOWN, BACKLOG_WINDOW, Decision, HOST, MarkAt, Marking, Policy, Switch,
};
use proptest::prelude::*;

fn policy(marking: Marking, mark_at: MarkAt, buffer: u32, threshold: u32, ports: u32) -> Policy {
    Policy {
        marking: marking as u32,
        mark_at: mark_at as u32,
        buffer,
        threshold,
        ports,
        shares: 0,
        drop_threshold: 0,
        _pad: 0,
    }
}

const PLACES: [MarkAt; 2] = [MarkAt::Arrival, MarkAt::Departure];

/// A waiting packet, of which `left` segments are still queued.
#[derive(Clone, Debug)]
struct Waiting {
    id: usize,
    output: u8,
    left: u32,
    markable: bool,
    /// Taken from the queue, but not all of its segments have departed.
    leaving: bool,
}

/// Input-buffered switch: packets in the order of their arrival, per input.
struct Model {
    policy: Policy,
    buffers: Vec<Vec<Waiting>>,
    cnt2: [u32; 256],
    to_mark_from: [u32; 256],
    /// Segments due and not marked (less than 0: marked and not due), per output; of inputs with naive
    /// marking.
    credit: [i64; 256],
    /// Outputs for which a full buffer ever held a packet, outputs that ever had too many waiting, and inputs whose
    /// buffer was ever full.
    congested: BTreeSet<u8>,
    full: BTreeSet<u8>,
}

impl Model {
    fn new(policy: Policy) -> Self {
        Self {
            policy,
            buffers: vec![Vec::new(); 256],
            cnt2: [0; 256],
            to_mark_from: [0; 256],
            credit: [0; 256],
            congested: BTreeSet::new(),
            full: BTreeSet::new(),
        }
    }

    fn waiting(&self, i: u8, o: u8) -> u32 {
        self.buffers[i as usize]
            .iter()
            .filter(|p| p.output == o)
            .map(|p| p.left)
            .sum()
    }

    fn occupancy(&self, i: u8) -> u32 {
        self.buffers[i as usize].iter().map(|p| p.left).sum()
    }

    fn cnt1(&self, o: u8) -> u32 {
        self.buffers
            .iter()
            .flatten()
            .filter(|p| p.output == o)
            .map(|p| p.left)
            .sum()
    }

    /// Packets (not segments) in the device's queue.
    fn queue(&self, o: u8) -> u32 {
        self.buffers
            .iter()
            .flatten()
            .filter(|p| p.output == o && !p.leaving)
            .count() as u32
    }

    fn is(&self, marking: Marking, place: MarkAt) -> bool {
        self.policy.marking == marking as u32 && self.policy.mark_at == place as u32
    }

    /// Whether a packet of input `i` and output `o` takes a mark now. `renewed`: segment by segment, each
    /// would find the trigger fired again.
    fn turn(&mut self, i: u8, o: u8, n: u32, place: MarkAt, renewed: bool) -> bool {
        let (count, credit) = if self.is(Marking::Naive, place) {
            let i = i as usize;
            (&mut self.to_mark_from[i], &mut self.credit[i])
        } else if self.policy.mark_at == place as u32 && self.policy.marking >= 2 {
            let o = o as usize;
            (&mut self.cnt2[o], &mut self.credit[o])
        } else {
            return false;
        };
        let due = if *count > 0 && renewed {
            n
        } else {
            n.min(*count)
        };
        *count = count.saturating_sub(n);
        *credit += i64::from(due);
        let turn = *credit > 0;
        if turn {
            *credit -= i64::from(n);
        }
        turn
    }

    fn on_enqueue(&mut self, id: usize, i: u8, o: u8, n: u32, markable: bool) -> Decision {
        let arrival = self.policy.mark_at == MarkAt::Arrival as u32;
        if arrival {
            // Only packets that wait ahead can still be meant.
            self.to_mark_from[i as usize] = self.to_mark_from[i as usize].min(self.occupancy(i));
            self.cnt2[o as usize] = self.cnt2[o as usize].min(self.cnt1(o));
        }
        let full = i != HOST && self.occupancy(i) >= self.policy.buffer;
        let long = self.policy.marking == Marking::InputOutput as u32
            && self.cnt1(o) > self.policy.threshold;
        let renewed = full || (long && self.policy.marking != Marking::Naive as u32);
        let turn = self.turn(i, o, n, MarkAt::Arrival, renewed);
        let alone = self.cnt1(o) == 0;
        self.buffers[i as usize].push(Waiting {
            id,
            output: o,
            left: n,
            markable,
            leaving: false,
        });
        let mut decision = Decision {
            mark: (turn && markable) as u32,
            unmarkable: (turn && !markable) as u32,
            ..Decision::default()
        };
        let marking = self.policy.marking;
        if marking == Marking::InputOutput as u32 && self.cnt1(o) > self.policy.threshold {
            decision.output_trigger = 1;
            self.cnt2[o as usize] = self.cnt1(o);
            self.congested.insert(o);
        }
        if marking != 0 && i != HOST && self.occupancy(i) >= self.policy.buffer {
            decision.input_trigger = 1;
            self.full.insert(i);
            if marking == Marking::Naive as u32 {
                self.to_mark_from[i as usize] = self.occupancy(i);
            } else {
                let outputs: BTreeSet<u8> = self.buffers[i as usize]
                    .iter()
                    .filter(|p| !(alone && p.id == id))
                    .map(|p| p.output)
                    .collect();
                for x in outputs {
                    self.cnt2[x as usize] = self.cnt1(x);
                    self.congested.insert(x);
                }
            }
        }
        decision
    }

    /// Takes up to `n` segments of a packet away.
    fn remove(&mut self, i: u8, id: usize, n: u32) {
        let buffer = &mut self.buffers[i as usize];
        let at = buffer
            .iter()
            .position(|p| p.id == id)
            .expect("a packet that waits");
        if buffer[at].left > n {
            buffer[at].left -= n;
            buffer[at].leaving = true;
        } else {
            buffer.remove(at);
        }
    }

    fn on_dequeue(&mut self, i: u8, id: usize, o: u8, n: u32, markable: bool) -> Decision {
        self.remove(i, id, n);
        let turn = self.turn(i, o, n, MarkAt::Departure, false);
        Decision {
            mark: (turn && markable) as u32,
            unmarkable: (turn && !markable) as u32,
            ..Decision::default()
        }
    }

    fn on_drop(&mut self, i: u8, id: usize, o: u8, n: u32) {
        self.remove(i, id, n);
        self.cnt2[o as usize] = self.cnt2[o as usize].min(self.cnt1(o));
        self.to_mark_from[i as usize] = self.to_mark_from[i as usize].min(self.occupancy(i));
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// Indices into the slots in use.
    Arrive {
        i: usize,
        o: usize,
        n: u32,
        markable: bool,
    },
    /// Of output `o`, the `which`-th waiting packet, whole or segment by segment.
    Depart {
        o: usize,
        which: usize,
        whole: bool,
        backlog: bool,
    },
    Drop {
        which: usize,
    },
}

fn event(slots: usize, supers: bool) -> impl Strategy<Value = Event> {
    let n = if supers {
        prop_oneof![3 => Just(1u32), 1 => 2u32..=6].boxed()
    } else {
        Just(1).boxed()
    };
    prop_oneof![
        10 => (0..slots, 0..slots, n, prop::bool::weighted(0.9))
            .prop_map(|(i, o, n, markable)| Event::Arrive { i, o, n, markable }),
        9 => (0..slots, 0..64usize, any::<bool>(), any::<bool>())
            .prop_map(|(o, which, whole, backlog)| Event::Depart { o, which, whole, backlog }),
        1 => (0..64usize).prop_map(|which| Event::Drop { which }),
    ]
}

fn any_policy(ports: u32) -> impl Strategy<Value = Policy> {
    (0..4usize, 0..2usize, 1..10u32, 0..12u32).prop_map(
        move |(marking, place, buffer, threshold)| {
            policy(
                Marking::ALL[marking],
                PLACES[place],
                buffer,
                threshold,
                ports,
            )
        },
    )
}

/// Model and switch agree in every count.
fn check<const N: usize>(switch: &Switch<N>, model: &Model, slots: &[u8]) {
    for &a in slots {
        let port = &switch.ports[a as usize];
        let (mut row, mut column) = (0, 0);
        for &b in slots {
            let w = switch.waiting[a as usize][b as usize];
            assert_eq!(w, model.waiting(a, b), "waiting {a} -> {b}");
            row += w;
            column += switch.waiting[b as usize][a as usize];
        }
        assert_eq!(port.occupancy, row, "row of {a}");
        assert_eq!(port.cnt1, column, "column of {a}");
        assert_eq!(port.occupancy, model.occupancy(a));
        assert_eq!(port.cnt1, model.cnt1(a), "P22: cnt1 is the scan's count");
        assert_eq!(port.cnt2, model.cnt2[a as usize], "cnt2 of {a}");
        assert_eq!(
            port.to_mark_from, model.to_mark_from[a as usize],
            "to mark from {a}"
        );
        if model.policy.mark_at == MarkAt::Departure as u32 {
            assert!(port.cnt2 <= port.cnt1, "P22");
            assert!(port.to_mark_from <= port.occupancy);
        }
        assert_eq!(
            port.arrived,
            port.departed + port.dropped + port.cnt1 as u64
        );
        assert_eq!(port.repaired, 0, "the counts were right");
    }
}

fn run<const N: usize>(policy: Policy, slots: &[u8], events: &[Event]) {
    let mut both = Both::<N>::new(policy, slots);
    for (id, event) in events.iter().enumerate() {
        match *event {
            Event::Arrive { i, o, n, markable } => both.arrive(id, slots[i], slots[o], n, markable),
            Event::Depart {
                o,
                which,
                whole,
                backlog,
            } => both.depart(slots[o], which, whole, backlog),
            Event::Drop { which } => both.drop(which),
        }
        check(&both.switch, &both.model, slots);
    }
    for &o in slots {
        while both.model.cnt1(o) > 0 {
            both.depart(o, 0, true, true);
            check(&both.switch, &both.model, slots);
        }
    }
    both.check_empty();
}

/// The switch and its model, side by side.
struct Both<'a, const N: usize> {
    policy: Policy,
    slots: &'a [u8],
    switch: Box<Switch<N>>,
    model: Model,
    /// Packets that have departed, by output.
    on_wire: [u32; 256],
    /// Of them, those marked at departure.
    decided: [u64; 256],
    arrival_marks: u64,
}

impl<'a, const N: usize> Both<'a, N> {
    fn new(policy: Policy, slots: &'a [u8]) -> Self {
        Self {
            policy,
            slots,
            switch: Box::new(Switch::default()),
            model: Model::new(policy),
            on_wire: [0; 256],
            decided: [0; 256],
            arrival_marks: 0,
        }
    }

    fn arrive(&mut self, id: usize, i: u8, o: u8, n: u32, markable: bool) {
        let (policy, switch) = (&self.policy, &mut self.switch);
        let want = self.model.on_enqueue(id, i, o, n, markable);
        let before = switch.ports[o as usize].cnt1;
        let got = switch.on_enqueue(policy, i, o, n, markable);
        assert_eq!(got, want, "arrival from {i} for {o}");
        let output = &switch.ports[o as usize];
        if policy.mark_at == MarkAt::Arrival as u32 {
            assert!(output.cnt2 <= output.cnt1, "P22");
            assert!(switch.ports[i as usize].to_mark_from <= switch.ports[i as usize].occupancy);
        } else {
            assert_eq!(got.mark + got.unmarkable, 0);
        }
        if got.output_trigger != 0 {
            assert_eq!(policy.marking, Marking::InputOutput as u32);
            assert!(before + n > policy.threshold);
            assert_eq!(output.cnt2, output.cnt1, "overwritten, not added to");
        }
        assert!(
            !(i == HOST && got.input_trigger != 0),
            "the host has no buffer"
        );
        if got.mark != 0 {
            assert!(markable);
            self.arrival_marks += n as u64;
            may_be_marked(&self.model, i, o);
        }
    }

    /// Waiting packets, and their inputs.
    fn waiting(&self, which: impl Fn(&Waiting) -> bool) -> Vec<(u8, Waiting)> {
        let buffers = self.model.buffers.iter().enumerate();
        buffers
            .flat_map(|(i, buffer)| buffer.iter().map(move |p| (i as u8, p)))
            .filter(|(_, p)| which(p))
            .map(|(i, p)| (i, p.clone()))
            .collect()
    }

    /// A packet leaves by an output, one at a time: a segment of it, or the `whole`.
    fn depart(&mut self, o: u8, pick: usize, whole: bool, known: bool) {
        let candidates = self.waiting(|p| p.output == o);
        if candidates.is_empty() {
            return;
        }
        let under_way = candidates.iter().find(|(_, p)| p.leaving).cloned();
        let whole = whole && under_way.is_none();
        let (i, p) = under_way.unwrap_or_else(|| candidates[pick % candidates.len()].clone());
        let n = if whole { p.left } else { 1 };
        let want = self.model.on_dequeue(i, p.id, o, n, p.markable);
        // A packet with segments left is no longer in the queue.
        let queue = self.model.queue(o);
        let backlog = if known { queue } else { BACKLOG_UNKNOWN };
        let (policy, switch) = (&self.policy, &mut self.switch);
        let got = switch.on_dequeue(policy, i, o, n, p.markable, backlog);
        assert_eq!(got, want, "departure from {i} at {o}");
        self.on_wire[o as usize] += 1;
        if got.mark != 0 {
            assert!(p.markable);
            self.decided[o as usize] += n as u64;
            may_be_marked(&self.model, i, o);
        }
    }

    fn drop(&mut self, which: usize) {
        let candidates = self.waiting(|p| !p.leaving);
        if !candidates.is_empty() {
            let (i, p) = candidates[which % candidates.len()].clone();
            self.model.on_drop(i, p.id, p.output, p.left);
            self.switch.on_drop(i, p.output, p.left);
        }
    }

    /// All counters when nothing waits any more.
    fn check_empty(mut self) {
        let switch = &self.switch;
        assert!(switch.waiting.iter().flatten().all(|w| *w == 0));
        let total: u64 = switch.ports.iter().map(|p| p.marked).sum();
        let decided: u64 = self.decided.iter().sum();
        assert_eq!(total, decided + self.arrival_marks);
        if self.policy.marking == 0 {
            assert_eq!(total, 0);
            let triggers = switch.ports.iter();
            let triggers: u64 = triggers.map(|p| p.input_triggers + p.output_triggers).sum();
            assert_eq!(triggers, 0);
        }
        for (o, port) in switch.ports.iter().enumerate() {
            assert_eq!((port.cnt1, port.occupancy), (0, 0));
            if self.policy.mark_at == MarkAt::Departure as u32 {
                assert_eq!(
                    (port.cnt2, port.to_mark_from),
                    (0, 0),
                    "no mark outlives its packet"
                );
            }
            assert_eq!(port.owed as u64, self.decided[o]);
        }
        // Segment by segment, the wire's end gives out what was decided, and no more.
        for &o in self.slots {
            let decided = self.decided[o as usize];
            let mut written = 0;
            for _ in 0..u64::from(self.on_wire[o as usize]) + decided {
                written += self.switch.wire_end(o, 1) as u64;
            }
            assert_eq!(written, decided);
            assert!(!self.switch.wire_end(o, 1));
        }
    }
}

/// The papers' marked sets, from the scans at all triggers so far.
fn may_be_marked(model: &Model, i: u8, o: u8) {
    match model.policy.marking {
        0 => panic!("none marks nothing"),
        1 => assert!(model.full.contains(&i), "naive: from a full buffer only"),
        _ => assert!(model.congested.contains(&o), "for a congested output only"),
    }
}

const SIXTEEN: [u8; 7] = [HOST, 1, 2, 3, 8, 14, 15];
const ALL: [u8; 7] = [HOST, 1, 16, 127, 128, 254, 255];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn sixteen_ports(
        policy in any_policy(16),
        events in prop::collection::vec(event(SIXTEEN.len(), false), 1..300),
    ) {
        run::<16>(policy, &SIXTEEN, &events);
    }

    #[test]
    fn sixteen_ports_super_packets(
        policy in any_policy(16),
        events in prop::collection::vec(event(SIXTEEN.len(), true), 1..300),
    ) {
        run::<16>(policy, &SIXTEEN, &events);
    }

    /// Few outputs: queues grow, and the same output empties again and again.
    #[test]
    fn one_busy_port(
        policy in any_policy(16),
        events in prop::collection::vec(event(2, true), 1..400),
    ) {
        run::<16>(policy, &[1, 2], &events);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn all_ports(
        policy in any_policy(256),
        events in prop::collection::vec(event(ALL.len(), true), 1..200),
    ) {
        run::<256>(policy, &ALL, &events);
    }
}

// The papers' marked set, packet by packet: with FIFO outputs the counters mark exactly the packets
// that waited when the trigger fired.

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn fifo_departures_mark_the_papers_set(
        both in any::<bool>(),
        buffer in 1..8u32,
        threshold in 0..12u32,
        // Input and output of an arrival, or (input 9) a departure of the output.
        events in prop::collection::vec((1..=9u8, 10..13u8), 1..300),
    ) {
        let marking = if both { Marking::InputOutput } else { Marking::Input };
        let policy = policy(marking, MarkAt::Departure, buffer, threshold, 16);
        let mut switch = Switch::<16>::default();
        // Input, output, is to be marked; in the order of arrival.
        let mut packets: Vec<(u8, u8, bool)> = Vec::new();
        for (i, o) in events {
            if i < 8 {
                let alone = !packets.iter().any(|p| p.1 == o);
                packets.push((i, o, false));
                let last = packets.len() - 1;
                let mut congested = BTreeSet::new();
                if packets.iter().filter(|p| p.0 == i).count() as u32 >= buffer {
                    congested.extend(
                        packets.iter().enumerate()
                            .filter(|(at, p)| p.0 == i && !(alone && *at == last))
                            .map(|(_, p)| p.1),
                    );
                }
                if both && packets.iter().filter(|p| p.1 == o).count() as u32 > threshold {
                    congested.insert(o);
                }
                for p in &mut packets {
                    p.2 |= congested.contains(&p.1);
                }
                switch.on_enqueue(&policy, i, o, 1, true);
            } else if let Some(at) = packets.iter().position(|p| p.1 == o) {
                let (i, o, marked) = packets.remove(at);
                let decision = switch.on_dequeue(&policy, i, o, 1, true, BACKLOG_UNKNOWN);
                prop_assert_eq!(decision.mark == 1, marked);
            }
        }
    }
}

// Worked out manually. Fig. 1's switch B: buffer of 4, the inter-switch link comes in at slot 1, local
// sources at 2 to 5, the root link leaves at 10, the victim's at 11.

const REMOTE: u8 = 1;
const ROOT: u8 = 10;
const VICTIM: u8 = 11;

fn put(s: &mut Switch<16>, p: &Policy, i: u8, o: u8) -> Decision {
    s.on_enqueue(p, i, o, 1, true)
}

fn dequeue(s: &mut Switch<16>, p: &Policy, i: u8, o: u8) -> u32 {
    s.on_dequeue(p, i, o, 1, true, BACKLOG_UNKNOWN).mark
}

fn trigger() -> Decision {
    Decision {
        input_trigger: 1,
        ..Decision::default()
    }
}

/// Two local packets, then three remote ones of which one is the victim's and waits behind another
/// local packet for its link; a fourth remote packet fills the buffer.
fn full_remote_buffer(p: &Policy) -> Switch<16> {
    let mut s = Switch::<16>::default();
    for (i, o) in [
        (2, ROOT),
        (3, ROOT),
        (4, VICTIM),
        (REMOTE, ROOT),
        (REMOTE, ROOT),
        (REMOTE, VICTIM),
    ] {
        assert_eq!(put(&mut s, p, i, o), Decision::default());
    }
    assert_eq!(put(&mut s, p, REMOTE, ROOT), trigger());
    s
}

#[test]
fn naive_marks_the_full_buffer() {
    let p = policy(Marking::Naive, MarkAt::Departure, 4, 0, 16);
    let mut s = full_remote_buffer(&p);
    assert_eq!(s.ports[REMOTE as usize].to_mark_from, 4);
    assert_eq!(s.ports[REMOTE as usize].input_triggers, 1);
    // P6: a local packet is never marked, the victim's is.
    assert_eq!(
        [dequeue(&mut s, &p, 2, ROOT), dequeue(&mut s, &p, 3, ROOT)],
        [0, 0]
    );
    assert_eq!(dequeue(&mut s, &p, 4, VICTIM), 0);
    assert_eq!(dequeue(&mut s, &p, REMOTE, ROOT), 1);
    assert_eq!(dequeue(&mut s, &p, REMOTE, VICTIM), 1);
    assert_eq!(put(&mut s, &p, REMOTE, ROOT), Decision::default());
    assert_eq!(
        [
            dequeue(&mut s, &p, REMOTE, ROOT),
            dequeue(&mut s, &p, REMOTE, ROOT)
        ],
        [1, 1]
    );
    // The packet that arrived after the trigger.
    assert_eq!(dequeue(&mut s, &p, REMOTE, ROOT), 0);
    assert_eq!((s.ports[10].marked, s.ports[11].marked), (3, 1));
}

#[test]
fn input_marks_all_that_wait_for_the_outputs_of_the_full_buffer() {
    let p = policy(Marking::Input, MarkAt::Departure, 4, 0, 16);
    let mut s = full_remote_buffer(&p);
    assert_eq!((s.ports[10].cnt1, s.ports[10].cnt2), (5, 5));
    assert_eq!((s.ports[11].cnt1, s.ports[11].cnt2), (2, 2));
    // Local packets are marked, the victim's too: its link had a packet of the full buffer.
    assert_eq!(
        [dequeue(&mut s, &p, 2, ROOT), dequeue(&mut s, &p, 3, ROOT)],
        [1, 1]
    );
    assert_eq!(
        [
            dequeue(&mut s, &p, 4, VICTIM),
            dequeue(&mut s, &p, REMOTE, VICTIM)
        ],
        [1, 1]
    );
    // Three marks are left; a later packet does not add to them, and the fourth goes unmarked.
    assert_eq!(put(&mut s, &p, 5, ROOT), Decision::default());
    assert_eq!(s.ports[10].cnt2, 3);
    for _ in 0..3 {
        assert_eq!(dequeue(&mut s, &p, REMOTE, ROOT), 1);
    }
    assert_eq!(dequeue(&mut s, &p, 5, ROOT), 0);
}

#[test]
fn a_second_trigger_overwrites() {
    let p = policy(Marking::Input, MarkAt::Departure, 4, 0, 16);
    let mut s = full_remote_buffer(&p);
    dequeue(&mut s, &p, 2, ROOT);
    dequeue(&mut s, &p, REMOTE, ROOT);
    assert_eq!((s.ports[10].cnt1, s.ports[10].cnt2), (3, 3));
    assert_eq!(put(&mut s, &p, REMOTE, ROOT), trigger());
    // 3 + 4 if it added.
    assert_eq!((s.ports[10].cnt1, s.ports[10].cnt2), (4, 4));
    assert_eq!(s.ports[1].input_triggers, 2);
}

#[test]
fn input_marking_leaves_other_outputs_alone() {
    let p = policy(Marking::Input, MarkAt::Departure, 4, 0, 16);
    let mut s = Switch::<16>::default();
    for _ in 0..3 {
        put(&mut s, &p, 5, 12);
        put(&mut s, &p, REMOTE, ROOT);
    }
    assert_eq!(put(&mut s, &p, REMOTE, ROOT), trigger());
    assert_eq!(
        (s.ports[10].cnt2, s.ports[12].cnt1, s.ports[12].cnt2),
        (4, 3, 0)
    );
}

#[test]
fn output_trigger_strictly_above_the_threshold() {
    let p = policy(Marking::InputOutput, MarkAt::Departure, 100, 4, 16);
    let mut s = Switch::<16>::default();
    for i in 2..6 {
        assert_eq!(put(&mut s, &p, i, ROOT), Decision::default());
    }
    assert_eq!(s.ports[10].cnt2, 0);
    let fired = Decision {
        output_trigger: 1,
        ..Decision::default()
    };
    assert_eq!(put(&mut s, &p, REMOTE, ROOT), fired);
    assert_eq!(s.ports[10].cnt2, 5);
    // Every arrival above it triggers, not only the crossing: triggering only at the crossing locks up.
    assert_eq!(put(&mut s, &p, REMOTE, ROOT), fired);
    assert_eq!((s.ports[10].cnt2, s.ports[10].output_triggers), (6, 2));
    // Neither mechanism 1 nor 2 has it.
    for marking in [Marking::None, Marking::Naive, Marking::Input] {
        let p = policy(marking, MarkAt::Departure, 100, 4, 16);
        let mut s = Switch::<16>::default();
        for _ in 0..20 {
            assert_eq!(put(&mut s, &p, 2, ROOT), Decision::default());
        }
    }
}

#[test]
fn input_output_has_both_triggers() {
    let p = policy(Marking::InputOutput, MarkAt::Departure, 4, 4, 16);
    let mut s = full_remote_buffer_until_last(&p);
    let decision = put(&mut s, &p, REMOTE, ROOT);
    assert_eq!(
        decision,
        Decision {
            input_trigger: 1,
            output_trigger: 1,
            ..Decision::default()
        }
    );
    assert_eq!((s.ports[10].cnt2, s.ports[11].cnt2), (5, 2));
}

fn full_remote_buffer_until_last(p: &Policy) -> Switch<16> {
    let mut s = Switch::<16>::default();
    for (i, o) in [
        (2, ROOT),
        (3, ROOT),
        (4, VICTIM),
        (REMOTE, ROOT),
        (REMOTE, ROOT),
        (REMOTE, VICTIM),
    ] {
        assert_eq!(put(&mut s, p, i, o), Decision::default());
    }
    s
}

#[test]
fn marking_none_only_counts() {
    for place in PLACES {
        let p = policy(Marking::None, place, 1, 0, 16);
        let mut s = Switch::<16>::default();
        for n in 1..=50 {
            assert_eq!(put(&mut s, &p, REMOTE, ROOT), Decision::default());
            assert_eq!((s.ports[1].occupancy, s.ports[10].cnt1), (n, n));
        }
        for _ in 0..50 {
            assert_eq!(dequeue(&mut s, &p, REMOTE, ROOT), 0);
        }
        assert_eq!(
            (
                s.ports[10].arrived,
                s.ports[10].departed,
                s.ports[10].marked
            ),
            (50, 50, 0)
        );
    }
}

#[test]
fn the_host_has_no_buffer() {
    for marking in [Marking::Naive, Marking::Input, Marking::InputOutput] {
        let p = policy(marking, MarkAt::Departure, 1, 1000, 16);
        let mut s = Switch::<16>::default();
        for _ in 0..50 {
            assert_eq!(put(&mut s, &p, HOST, ROOT), Decision::default());
        }
        assert_eq!((s.ports[0].occupancy, s.ports[0].input_triggers), (50, 0));
        // Its packets wait like others, and are marked with them.
        assert_eq!(put(&mut s, &p, REMOTE, ROOT), trigger());
        let marked = dequeue(&mut s, &p, HOST, ROOT);
        assert_eq!(marked, (marking != Marking::Naive) as u32);
    }
}

#[test]
fn cut_through_is_not_marked_by_its_own_trigger() {
    for place in PLACES {
        let p = policy(Marking::Input, place, 4, 0, 16);
        let mut s = Switch::<16>::default();
        for _ in 0..3 {
            put(&mut s, &p, REMOTE, ROOT);
        }
        // The victim's packet finds its link idle.
        assert_eq!(put(&mut s, &p, REMOTE, VICTIM), trigger());
        assert_eq!((s.ports[10].cnt2, s.ports[11].cnt2), (3, 0));
        assert_eq!(s.waiting[1][11], 1);
        assert_eq!((s.ports[11].cnt1, s.ports[1].occupancy), (1, 4));
        // A second one has to wait, and both are marked.
        assert_eq!(put(&mut s, &p, REMOTE, VICTIM), trigger());
        assert_eq!(s.ports[11].cnt2, 2);
    }
}

#[test]
fn arrival_marking_marks_later_packets() {
    let p = policy(Marking::Input, MarkAt::Arrival, 4, 0, 16);
    let mut s = full_remote_buffer(&p);
    assert_eq!(s.ports[10].cnt2, 5);
    assert_eq!(dequeue(&mut s, &p, 2, ROOT), 0);
    // The next to arrive for the root link takes one, whatever its input.
    assert_eq!(put(&mut s, &p, 5, ROOT).mark, 1);
    // 4 waited ahead of it, so that 4 marks stood; it took one.
    assert_eq!(s.ports[10].cnt2, 3);
    for (i, o) in [(3, ROOT), (REMOTE, ROOT), (REMOTE, ROOT), (REMOTE, ROOT)] {
        assert_eq!(dequeue(&mut s, &p, i, o), 0);
    }
    // One waits ahead: of three stale marks one is left, and taken.
    assert_eq!(put(&mut s, &p, 2, ROOT).mark, 1);
    assert_eq!((s.ports[10].cnt1, s.ports[10].cnt2), (2, 0));
    assert_eq!(put(&mut s, &p, 2, ROOT).mark, 0);
}

#[test]
fn no_mark_outlives_its_queue() {
    for marking in [Marking::Naive, Marking::Input, Marking::InputOutput] {
        for place in PLACES {
            let p = policy(marking, place, 4, 3, 16);
            let mut s = Switch::<16>::default();
            for _ in 0..6 {
                put(&mut s, &p, REMOTE, ROOT);
            }
            assert!(s.ports[1].to_mark_from + s.ports[10].cnt2 > 0);
            for _ in 0..6 {
                dequeue(&mut s, &p, REMOTE, ROOT);
            }
            assert_eq!(put(&mut s, &p, REMOTE, ROOT), Decision::default());
            assert_eq!(
                dequeue(&mut s, &p, REMOTE, ROOT),
                0,
                "{marking:?} {place:?}"
            );
        }
    }
}

#[test]
fn a_dropped_packet_takes_its_mark_along() {
    for marking in [Marking::Naive, Marking::Input, Marking::InputOutput] {
        let p = policy(marking, MarkAt::Departure, 4, 3, 16);
        let mut s = Switch::<16>::default();
        for _ in 0..4 {
            put(&mut s, &p, REMOTE, ROOT);
        }
        for _ in 0..4 {
            s.on_drop(REMOTE, ROOT, 1);
        }
        assert_eq!(s.ports[10].dropped, 4);
        assert_eq!(put(&mut s, &p, REMOTE, ROOT), Decision::default());
        assert_eq!(dequeue(&mut s, &p, REMOTE, ROOT), 0, "{marking:?}");
    }
}

#[test]
fn a_removed_packet_takes_its_mark_along() {
    for marking in [Marking::Naive, Marking::Input, Marking::InputOutput] {
        let p = policy(marking, MarkAt::Departure, 4, 3, 16);
        let mut s = Switch::<16>::default();
        for _ in 0..4 {
            put(&mut s, &p, REMOTE, ROOT);
        }
        s.set_waiting(ROOT, 16, 0);
        assert_eq!(put(&mut s, &p, REMOTE, ROOT), Decision::default());
        assert_eq!(dequeue(&mut s, &p, REMOTE, ROOT), 0, "{marking:?}");
    }
}

#[test]
fn unmarkable_packets_use_up_their_turn() {
    let p = policy(Marking::Input, MarkAt::Departure, 2, 0, 16);
    let mut s = Switch::<16>::default();
    s.on_enqueue(&p, REMOTE, ROOT, 1, false);
    s.on_enqueue(&p, REMOTE, ROOT, 1, true);
    let first = s.on_dequeue(&p, REMOTE, ROOT, 1, false, BACKLOG_UNKNOWN);
    assert_eq!(
        first,
        Decision {
            unmarkable: 1,
            ..Decision::default()
        }
    );
    let second = s.on_dequeue(&p, REMOTE, ROOT, 1, true, BACKLOG_UNKNOWN);
    assert_eq!(
        second,
        Decision {
            mark: 1,
            ..Decision::default()
        }
    );
    assert_eq!(
        (s.ports[10].marked, s.ports[10].unmarkable, s.ports[10].owed),
        (1, 1, 1)
    );
    assert!(s.wire_end(ROOT, 1));
    assert!(!s.wire_end(ROOT, 1));
}

#[test]
fn super_packets_count_their_segments() {
    let p = policy(Marking::Input, MarkAt::Departure, 8, 0, 16);
    let mut s = Switch::<16>::default();
    assert_eq!(s.on_enqueue(&p, REMOTE, ROOT, 7, true), Decision::default());
    assert_eq!(s.on_enqueue(&p, REMOTE, ROOT, 1, true), trigger());
    assert_eq!(
        (s.ports[10].cnt1, s.ports[10].cnt2, s.ports[10].largest),
        (8, 8, 7)
    );
    assert_eq!(
        s.on_dequeue(&p, REMOTE, ROOT, 7, true, BACKLOG_UNKNOWN)
            .mark,
        1
    );
    assert_eq!(
        (s.ports[10].cnt2, s.ports[10].marked, s.ports[10].owed),
        (1, 7, 7)
    );
    assert!(s.wire_end(ROOT, 7));
    assert_eq!(s.ports[10].owed, 0);
}

/// A queue that is nearly empty when a super-packet comes has few marks left: of 45 segments 3 are due,
/// so one super-packet in 15 is marked.
#[test]
fn super_packets_are_charged_whole() {
    const N: u32 = 45;
    let p = policy(Marking::InputOutput, MarkAt::Arrival, 1000, 44, 16);
    let mut s = Switch::<16>::default();
    s.on_enqueue(&p, REMOTE, ROOT, N, true);
    let mut marked = 0;
    for _ in 0..150 {
        // The trigger fired for all of the last one, and only its tail is left.
        s.on_dequeue(&p, REMOTE, ROOT, N - 3, true, BACKLOG_UNKNOWN);
        marked += s.on_enqueue(&p, REMOTE, ROOT, N, true).mark;
        s.on_dequeue(&p, REMOTE, ROOT, 3, true, BACKLOG_UNKNOWN);
    }
    assert_eq!(marked, 10);
    assert_eq!(s.ports[10].marked, 10 * u64::from(N));
    // Where the queue stays too long, all are, as all single packets would be.
    s.on_enqueue(&p, REMOTE, ROOT, N, true);
    for _ in 0..20 {
        assert_eq!(s.on_enqueue(&p, REMOTE, ROOT, N, true).mark, 1);
        s.on_dequeue(&p, REMOTE, ROOT, N, true, BACKLOG_UNKNOWN);
    }
}

#[test]
fn departures_of_packets_never_counted() {
    let p = policy(Marking::Input, MarkAt::Departure, 4, 0, 16);
    let mut s = Switch::<16>::default();
    put(&mut s, &p, 2, ROOT);
    // Queued before counting began.
    for _ in 0..10 {
        dequeue(&mut s, &p, 3, ROOT);
        s.on_drop(3, ROOT, 2);
    }
    assert_eq!(
        (s.ports[10].cnt1, s.waiting[2][10], s.ports[2].occupancy),
        (1, 1, 1)
    );
    // Of a super-packet only one segment was counted.
    put(&mut s, &p, 3, ROOT);
    s.on_dequeue(&p, 3, ROOT, 5, true, BACKLOG_UNKNOWN);
    assert_eq!(
        (s.ports[10].cnt1, s.waiting[2][10], s.ports[3].occupancy),
        (1, 1, 0)
    );
}

// Backlog repair.

#[test]
fn missed_departures_are_repaired_after_a_window() {
    let p = policy(Marking::None, MarkAt::Departure, 4, 0, 16);
    for missed_by_drop in [false, true] {
        let mut s = Switch::<16>::default();
        // 6 of input 2 and 3 of input 3 never depart, by the counters.
        for (i, n) in [(2, 6), (3, 3)] {
            for _ in 0..n {
                put(&mut s, &p, i, ROOT);
            }
        }
        if missed_by_drop {
            s.on_drop(2, ROOT, 1);
            put(&mut s, &p, 2, ROOT);
        }
        let window = BACKLOG_WINDOW + 1;
        for k in 1..=window {
            put(&mut s, &p, 4, ROOT);
            put(&mut s, &p, 4, 12);
            s.on_dequeue(&p, 4, ROOT, 1, true, 0);
            let want = if k < window { 9 } else { 0 };
            assert_eq!(s.ports[10].cnt1, want, "after {k} departures");
        }
        assert_eq!(s.ports[10].repaired, 9);
        assert_eq!((s.ports[2].occupancy, s.ports[3].occupancy), (0, 0));
        assert_eq!(s.waiting[2][10] + s.waiting[3][10], 0);
        // Another output's packets stay.
        assert_eq!(s.ports[12].cnt1, window);
        assert_eq!(s.ports[4].occupancy, window);
    }
}

#[test]
fn a_repair_keeps_what_is_in_the_queue() {
    let p = policy(Marking::None, MarkAt::Departure, 4, 0, 16);
    for (missed, queue) in [(9u32, 1u32), (8, 2), (1, 9), (3, 40), (7, 7)] {
        let mut s = Switch::<16>::default();
        for _ in 0..missed + queue {
            put(&mut s, &p, 2, ROOT);
        }
        for k in 1..=BACKLOG_WINDOW + 1 {
            assert_eq!(s.ports[10].repaired, 0, "before departure {k}");
            put(&mut s, &p, 2, ROOT);
            s.on_dequeue(&p, 2, ROOT, 1, true, queue);
        }
        assert_eq!(
            (s.ports[10].repaired, s.ports[10].cnt1),
            (missed.into(), queue)
        );
        assert_eq!((s.ports[2].occupancy, s.waiting[2][10]), (queue, queue));
    }
}

#[test]
fn transient_excess_is_not_repaired() {
    let p = policy(Marking::None, MarkAt::Departure, 4, 0, 16);
    let mut s = Switch::<16>::default();
    for round in 0..100u32 {
        // Two packets between hook and queue while others leave; then they are in the queue.
        put(&mut s, &p, 2, ROOT);
        put(&mut s, &p, 2, ROOT);
        for _ in 0..BACKLOG_WINDOW {
            put(&mut s, &p, 3, ROOT);
            s.on_dequeue(&p, 3, ROOT, 1, true, 0);
        }
        put(&mut s, &p, 3, ROOT);
        s.on_dequeue(&p, 3, ROOT, 1, true, 2);
        s.on_dequeue(&p, 2, ROOT, 1, true, 1);
        s.on_dequeue(&p, 2, ROOT, 1, true, 0);
        assert_eq!(
            (s.ports[10].cnt1, s.ports[10].repaired),
            (0, 0),
            "round {round}"
        );
    }
    // Only the minimum excess of a window counts as missed.
    let mut s = Switch::<16>::default();
    for _ in 0..5 {
        put(&mut s, &p, 2, ROOT);
    }
    for k in 0..=BACKLOG_WINDOW {
        put(&mut s, &p, 3, ROOT);
        s.on_dequeue(&p, 3, ROOT, 1, true, if k == 4 { 3 } else { 0 });
    }
    assert_eq!((s.ports[10].repaired, s.ports[10].cnt1), (2, 3));
}

#[test]
fn segments_of_a_super_packet_are_not_missed() {
    let p = policy(Marking::None, MarkAt::Departure, 4, 0, 16);
    let mut s = Switch::<16>::default();
    for _ in 0..20 {
        s.on_enqueue(&p, 2, ROOT, 44, true);
        for left in (0..44).rev() {
            s.on_dequeue(&p, 2, ROOT, 1, true, 0);
            assert_eq!(s.ports[10].cnt1, left);
        }
    }
    assert_eq!((s.ports[10].departed, s.ports[10].repaired), (20 * 44, 0));
}

/// The queue is empty while the first segments leave, and never while the last ones do.
#[test]
fn super_packets_that_follow_each_other_are_not_missed() {
    let p = policy(Marking::None, MarkAt::Departure, 4, 0, 16);
    let mut s = Switch::<16>::default();
    s.on_enqueue(&p, 2, ROOT, 8, true);
    for _ in 0..20 {
        for k in 0..8 {
            if k == 4 {
                s.on_enqueue(&p, 2, ROOT, 8, true);
            }
            s.on_dequeue(&p, 2, ROOT, 1, true, (k >= 4) as u32);
        }
        assert_eq!((s.ports[10].cnt1, s.ports[10].repaired), (8, 0));
    }
}

#[test]
fn missed_super_packets_are_repaired_when_the_queue_is_empty() {
    let p = policy(Marking::None, MarkAt::Departure, 4, 0, 16);
    let mut s = Switch::<16>::default();
    s.on_enqueue(&p, 2, ROOT, 10, true);
    // The queue counts super-packets, the counters segments: not comparable.
    for _ in 0..100 {
        s.on_enqueue(&p, 3, ROOT, 4, true);
        s.on_dequeue(&p, 3, ROOT, 4, true, 3);
    }
    assert_eq!((s.ports[10].cnt1, s.ports[10].repaired), (10, 0));
    for k in 1..=BACKLOG_WINDOW + 10 {
        assert_eq!(s.ports[10].repaired, 0, "before departure {k}");
        s.on_enqueue(&p, 3, ROOT, 4, true);
        s.on_dequeue(&p, 3, ROOT, 4, true, 0);
    }
    assert_eq!((s.ports[10].cnt1, s.ports[10].repaired), (0, 10));
}

proptest! {
    #[test]
    fn keep_waiting_is_proportional(
        parts in prop::collection::vec((0..16u8, 0..2000u32), 1..20),
        share in 0..=1000u64,
    ) {
        let p = policy(Marking::Input, MarkAt::Departure, 4, 0, 16);
        let mut s = Switch::<16>::default();
        for &(i, n) in &parts {
            s.on_enqueue(&p, i, ROOT, n, true);
            s.on_enqueue(&p, i, VICTIM, 1, true);
        }
        let before = s.clone();
        let cnt1 = before.ports[10].cnt1;
        let keep = (cnt1 as u64 * share / 1000) as u32;
        s.set_waiting(ROOT, 16, keep);
        prop_assert_eq!(s.ports[10].cnt1, keep);
        prop_assert_eq!(s.ports[10].repaired, (cnt1 - keep) as u64);
        prop_assert!(s.ports[10].cnt2 <= keep);
        let mut column = 0;
        for i in 0..16 {
            let (was, is) = (before.waiting[i][10], s.waiting[i][10]);
            let exact = was as f64 * keep as f64 / (cnt1.max(1) as f64);
            prop_assert!((is as f64 - exact).abs() < 1.0 + 1e-9, "{} of {}: {}", is, was, exact);
            prop_assert!(is <= was);
            column += is;
            prop_assert_eq!(s.waiting[i][11], before.waiting[i][11]);
            prop_assert_eq!(s.ports[i].occupancy, s.waiting[i].iter().sum::<u32>());
        }
        prop_assert_eq!(column, keep);
    }

    #[test]
    fn remove_port_leaves_sums(
        packets in prop::collection::vec((0..16u8, 0..16u8, 1..5u32), 0..60),
        gone in 1..16u8,
    ) {
        let p = policy(Marking::InputOutput, MarkAt::Departure, 4, 3, 16);
        let mut s = Switch::<16>::default();
        for &(i, o, n) in &packets {
            s.on_enqueue(&p, i, o, n, true);
        }
        let before = s.clone();
        s.set_waiting(gone, 16, 0);
        s.remove_input(gone, 16);
        let g = gone as usize;
        prop_assert_eq!(s.ports[g], Default::default());
        for x in 0..16 {
            prop_assert_eq!(s.waiting[g][x] + s.waiting[x][g], 0);
            prop_assert_eq!(s.ports[x].occupancy, s.waiting[x].iter().sum::<u32>());
            prop_assert_eq!(s.ports[x].cnt1, s.waiting.iter().map(|row| row[x]).sum::<u32>());
            prop_assert!(s.ports[x].cnt2 <= s.ports[x].cnt1);
            if x != g {
                prop_assert_eq!(s.ports[x].cnt1, before.ports[x].cnt1, "others still wait");
            }
        }
        // Its packets that still depart find no counts of their own, and take no others'.
        let now = s.clone();
        for o in 0..16 {
            s.on_dequeue(&p, gone, o, 1, true, BACKLOG_UNKNOWN);
        }
        prop_assert_eq!(now.waiting, s.waiting);
    }
}

#[test]
fn names() {
    let names: Vec<_> = Marking::ALL.iter().map(|m| m.name()).collect();
    assert_eq!(
        names,
        ["none", "naive", "input", "input-output", "bcn", "qcn"]
    );
    for (number, marking) in Marking::ALL.into_iter().enumerate() {
        assert_eq!(marking as usize, number);
    }
    assert_eq!((MarkAt::Arrival as u32, MarkAt::Departure as u32), (0, 1));
}

/// A packet that is known to wait fills the buffer even alone at its output; one that may yet cut
/// through does not.
#[test]
fn waiting_packets_fill_the_buffer_unless_they_may_cut_through() {
    let policy = policy(Marking::Input, MarkAt::Departure, 2, 100, 8);
    let (mut known, mut unknown) = (Switch::<8>::default(), Switch::<8>::default());
    for switch in [&mut known, &mut unknown] {
        assert_eq!(
            switch
                .on_enqueue_waiting(&policy, 1, 2, 1, true)
                .input_trigger,
            0
        );
    }
    assert_eq!(
        known
            .on_enqueue_waiting(&policy, 1, 3, 1, true)
            .input_trigger,
        1
    );
    assert_eq!(unknown.on_enqueue(&policy, 1, 3, 1, true).input_trigger, 1);
    assert_eq!([known.ports[2].cnt2, known.ports[3].cnt2], [1, 1]);
    assert_eq!([unknown.ports[2].cnt2, unknown.ports[3].cnt2], [1, 0]);
}

/// A buffer that fills without a packet coming to wait, and outputs that are congested because of
/// packets that are leaving it.
#[test]
fn leaving_packets_count_in_a_full_buffer() {
    let queued = |marking| {
        let mut switch = Switch::<8>::default();
        let policy = policy(marking, MarkAt::Departure, 4, 100, 8);
        for (input, output) in [(1, 2), (1, 2), (3, 2), (3, 4)] {
            switch.on_enqueue_waiting(&policy, input, output, 1, true);
        }
        (switch, policy)
    };
    for (marking, fill, congest) in [
        (Marking::None, [0, 0], [0, 0]),
        (Marking::Naive, [0, 0], [0, 0]),
        (Marking::Input, [3, 0], [0, 1]),
        (Marking::InputOutput, [3, 0], [0, 1]),
    ] {
        let (mut switch, policy) = queued(marking);
        switch.on_input_full(&policy, 1);
        assert_eq!([switch.ports[2].cnt2, switch.ports[4].cnt2], fill);
        let triggers = u64::from(marking != Marking::None);
        assert_eq!(switch.ports[1].input_triggers, triggers);
        let own = if marking == Marking::Naive { 2 } else { 0 };
        assert_eq!(switch.ports[1].to_mark_from, own);

        let (mut switch, policy) = queued(marking);
        switch.on_output_congested(&policy, 4);
        assert_eq!([switch.ports[2].cnt2, switch.ports[4].cnt2], congest);
    }
}
