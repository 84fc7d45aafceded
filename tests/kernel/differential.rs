//! The programs against the same core on the host, with random events and with the simulator's: the same packets are marked,
//! and every counter of the bridge is the same after every event.
//!
//! `ecn_port_out`, `ecn_wire_end` and `ecn_port_reset` run unchanged. Tracing programs cannot be run on a given packet:
//! departures and drops go through `ecn_port_replay`, which is `ecn_depart` and `ecn_drop` without their reads of kernel
//! structures. Those are covered by [`super::replay`], with real packets.
//!
//! Ports mark or sample their queues, so that their messages are compared, too: the state of each congestion point is the
//! same after every event. Its clock is not recorded: the core must do the same at some time during the program's run,
//! and at the exact time where the state shows it. [`super::reaction`] compares how sources react to messages.

use std::{cell::RefCell, collections::VecDeque};

use ecn_core::{
    abi::{self, Count, Device, DeviceKey, PORTS, PortEvent, PortEventKind, SOURCES, name},
    backward::{self, Feedback, Kind, Point, Quoted, Sample, Sampling},
    bcn, flow,
    marking::{BACKLOG_UNKNOWN, Decision, HOST, MarkAt, Marking, Policy, Port, Share, Switch},
    packet,
    shares::{ShareBy, Shares},
    vqueue::PacketMeta,
};
use ecn_sim::{scenario::Scenario, simulation};
use ecn_tests::{
    emulated,
    frames::{Ip, tagged},
    kernel_test,
    lab::Lab,
    note,
    running::pin,
};
use ecn_user::{
    agent::enforce::now_ns,
    datapath::{Copy, Datapath, Maps, Sizes, TestPacket, TraceEvents, Verdict},
};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, TestCaseError, TestRunner},
};

/// Random traces; overridden by `PROPTEST_CASES`.
const TRACES: u32 = 500;
/// Maximum number of ports of a random bridge.
const MOST_PORTS: usize = 8;
/// Devices that can be ports; one more belongs to another bridge.
const DEVICES: usize = 32;
/// Events of each simulated bridge.
const SIMULATED: usize = 3_000;
/// The bridge under test; another bridge has a port, too.
const BRIDGE: u32 = 1;

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    /// A port of this bridge, by index.
    Port(usize),
    /// The host itself.
    Host,
    /// A device that is not a port of this bridge.
    Elsewhere,
}

/// A packet.
#[derive(Clone, Copy, Debug)]
struct Packet {
    input: Input,
    segments: u32,
    /// Its source.
    host: u8,
    ipv6: bool,
    tag: bool,
    ecn: u8,
    fragment: bool,
}

/// Events. Ports are given by index.
#[derive(Clone, Debug)]
enum Step {
    /// A packet arrives; beyond the queue's limit it is dropped.
    Arrive(Packet, usize),
    /// A frame arrives that is not counted.
    Uncounted(usize),
    /// The head of a queue departs, in segments if the device cannot send super-packets.
    Leave(usize),
    /// As `Leave`, but the tracepoint's run is missing.
    Missed(usize),
    /// A packet departs that never arrived: it was queued before counting began.
    Unknown(Packet, usize),
    /// The queue drops a waiting packet.
    Drop(usize, usize),
    /// A packet arrives at the other end of the wire.
    WireEnd(usize),
    /// The agent's sweep finds a queue idle; false: it has changed meanwhile.
    Sweep(usize, bool),
    /// A port is removed.
    Remove(usize),
    /// The policy is changed.
    Policy(Marking, MarkAt, u32, u32, ShareBy, u32, backward::Policy),
    /// This number of milliseconds passes.
    Wait(u64),
}

/// A trace, and its bridge.
#[derive(Clone, Debug)]
struct Trace {
    /// Slots of the ports.
    slots: Vec<u8>,
    /// Queue limit, packets.
    limit: usize,
    /// Whether the queue's length can be read.
    backlog: bool,
    /// Whether the devices send super-packets whole.
    whole: bool,
    policy: Step,
    steps: Vec<Step>,
}

fn packet(ports: usize) -> impl Strategy<Value = Packet> {
    let input = prop_oneof![
        12 => (0..ports).prop_map(Input::Port),
        1 => Just(Input::Host),
        1 => Just(Input::Elsewhere),
    ];
    let segments = prop_oneof![4 => Just(0u32), 1 => 1..=45u32];
    let ecn = prop_oneof![6 => Just(packet::ECT_0), 1 => Just(packet::ECT_1),
        2 => Just(packet::NOT_ECT), 1 => Just(packet::CE)];
    let rare = || proptest::bool::weighted(0.1);
    let host = prop_oneof![2 => Just(0u8), 1 => 0..6u8, 1 => 0..=255u8];
    (
        input,
        segments,
        host,
        proptest::bool::ANY,
        rare(),
        ecn,
        rare(),
    )
        .prop_map(|(input, segments, host, ipv6, tag, ecn, fragment)| Packet {
            input,
            segments,
            host,
            ipv6,
            tag,
            ecn,
            fragment,
        })
}

fn policy() -> impl Strategy<Value = Step> {
    let marking = proptest::sample::select(&Marking::ALL[..]);
    let mark_at = proptest::sample::select(&[MarkAt::Arrival, MarkAt::Departure][..]);
    let size = || prop_oneof![6 => 1..=16u32, 1 => 1..=200u32];
    let by = proptest::sample::select(
        &[
            ShareBy::Source,
            ShareBy::Source,
            ShareBy::Port,
            ShareBy::Off,
        ][..],
    );
    let drops = prop_oneof![4 => 1..=8u32, 1 => Just(0)];
    (marking, mark_at, size(), size(), by, drops, messages()).prop_map(
        |(marking, at, buffer, threshold, by, drops, messages)| {
            // Ports that mark at departure send no messages; ports that sample mark nothing.
            let (marking, messages) = match at {
                _ if messages.sampling.kind == Kind::Bcn as u32 => (Marking::Bcn, messages),
                _ if messages.sampling.kind == Kind::Qcn as u32 => (Marking::Qcn, messages),
                MarkAt::Arrival => (marking, messages),
                MarkAt::Departure => (marking, echoes()),
            };
            Step::Policy(marking, at, buffer, threshold, by, drops, messages)
        },
    )
}

/// No messages.
fn echoes() -> backward::Policy {
    backward::Policy::new(Feedback::Echo, backward::MESSAGES_PER_S)
}

/// How ports send messages.
fn messages() -> impl Strategy<Value = backward::Policy> {
    let feedback = prop_oneof![2 => Just(Feedback::Echo), 1 => Just(Feedback::Backward),
        1 => Just(Feedback::Both)];
    let per_s = prop_oneof![2 => Just(backward::MESSAGES_PER_S), 1 => Just(20), 1 => Just(1)];
    let marks = (feedback, per_s.clone()).prop_map(|(way, n)| backward::Policy::new(way, n));
    let samples = (sampling(), per_s).prop_map(|(sampling, n)| backward::Policy {
        sampling,
        ..backward::Policy::new(Feedback::Backward, n)
    });
    prop_oneof![3 => marks, 1 => samples]
}

/// How ports sample: after a few packets, since traces are short.
fn sampling() -> impl Strategy<Value = Sampling> {
    let kind = proptest::sample::select(&[Kind::Bcn, Kind::Qcn][..]);
    let size = prop_oneof![Just(100u32), Just(1514)];
    let severe = prop_oneof![2 => Just(0u32), 1 => 1..=30u32];
    let jitter = prop_oneof![1 => Just(0u64), 3 => 0..1u64 << 32];
    (kind, size, 0..=8u32, 0..=8u32, 1..=8u32, severe, jitter).prop_map(
        |(kind, packet_bytes, equilibrium, weight, interval, severe, jitter)| Sampling {
            kind: kind as u32,
            equilibrium_bytes: equilibrium * packet_bytes,
            weight,
            packet_bytes,
            interval: match kind {
                Kind::Qcn => interval * 142,
                _ => interval,
            },
            severe_bytes: severe * packet_bytes,
            jitter,
        },
    )
}

fn step(ports: usize) -> impl Strategy<Value = Step> {
    // One output is congested.
    let port = move || prop_oneof![2 => Just(0), 3 => 0..ports];
    prop_oneof![
        100 => (packet(ports), port()).prop_map(|(p, o)| Step::Arrive(p, o)),
        5 => port().prop_map(Step::Uncounted),
        80 => port().prop_map(Step::Leave),
        4 => port().prop_map(Step::Missed),
        3 => (packet(ports), port()).prop_map(|(p, o)| Step::Unknown(p, o)),
        4 => (port(), 0..64usize).prop_map(|(o, at)| Step::Drop(o, at)),
        40 => port().prop_map(Step::WireEnd),
        2 => (port(), proptest::bool::ANY).prop_map(|(o, idle)| Step::Sweep(o, idle)),
        1 => port().prop_map(Step::Remove),
        1 => policy(),
        2 => (1..=30u64).prop_map(Step::Wait),
    ]
}

fn trace() -> impl Strategy<Value = Trace> {
    (2..=MOST_PORTS).prop_flat_map(|ports| {
        let slots = prop_oneof![
            Just((1..=ports as u8).collect::<Vec<_>>()),
            proptest::sample::subsequence((1..=255u8).collect::<Vec<_>>(), ports),
        ];
        let flag = || proptest::bool::ANY;
        let steps = vec(step(ports), 20..=200);
        (slots, 4..=60usize, flag(), flag(), policy(), steps).prop_map(
            |(slots, limit, backlog, whole, policy, steps)| Trace {
                slots,
                limit,
                backlog,
                whole,
                policy,
                steps,
            },
        )
    })
}

/// A queued packet.
#[derive(Clone, Copy)]
struct Queued {
    packet: Packet,
    markable: bool,
}

/// Coverage of the traces.
#[derive(Debug, Default)]
struct Seen {
    events: u64,
    arrivals: u64,
    departures: u64,
    drops: u64,
    wire_ends: u64,
    resets: u64,
    marked: u64,
    unmarkable: u64,
    input_triggers: u64,
    output_triggers: u64,
    repaired: u64,
    super_packets: u64,
    /// Packets dropped before their queue, and those spared a turn.
    refused: u64,
    below: u64,
    /// Marks that messages report.
    backward: u64,
    /// Samples of queues, those sent only to sources that are slowed down, and those of these that were sent.
    samples: u64,
    for_tagged: u64,
    tagged: u64,
    /// Messages of ports, those delayed by the rate limit, and those whose time the state shows.
    messages: u64,
    held: u64,
    timed: u64,
    stops: u64,
}

/// The loaded programs, and the devices of the ports.
struct Kernel {
    datapath: Datapath,
    copy: Copy,
    maps: Maps,
    trace: TraceEvents,
    netns: u32,
    /// Devices of the ports, then one of another bridge.
    devices: Vec<u32>,
    /// Sources that ports have slowed down, as they remember them.
    tagged: Vec<u32>,
    /// Traces so far.
    traces: u64,
    seen: Seen,
}

type Outcome = Result<(), TestCaseError>;

/// A trace, run on both.
struct Both<'a> {
    kernel: &'a mut Kernel,
    trace: &'a Trace,
    policy: Policy,
    feedback: Feedback,
    messages: backward::Policy,
    /// Congestion points of the ports.
    points: Vec<Point>,
    host: Box<Switch<PORTS>>,
    shares: Box<Shares<PORTS, SOURCES>>,
    /// As of the last event.
    decided: Decision,
    sequence: u32,
    /// Time of the last arrival.
    now_ns: u64,
    queues: Vec<VecDeque<Queued>>,
    wires: Vec<VecDeque<Queued>>,
}

impl Kernel {
    /// The devices are in the calling thread's namespace.
    fn new(netns: u32, devices: Vec<u32>) -> Self {
        let sizes = Sizes {
            bridges: BRIDGE + 1,
            flows: 16,
        };
        let mut datapath = Datapath::open(&pin(), sizes).expect("load");
        datapath.load_sampling().expect("load");
        let mut maps = datapath.maps().expect("maps");
        let control = abi::Control {
            abi: abi::ABI,
            flags: abi::TRACE_PORTS,
            valid_until_ns: u64::MAX,
            held_from_ns: u64::MAX,
        };
        maps.set_control(control).expect("control");
        Self {
            copy: datapath.copy(netns, 0).expect("a copy"),
            trace: TraceEvents::open(&pin()).expect("trace ring"),
            datapath,
            maps,
            netns,
            devices,
            tagged: vec![0; backward::QUOTES as usize],
            traces: 0,
            seen: Seen::default(),
        }
    }

    fn run(&mut self, trace: &Trace) -> Outcome {
        let mut both = self.begin(trace);
        both.step(&trace.policy)?;
        for step in &trace.steps {
            both.step(step)?;
        }
        both.end()
    }

    /// Replays the simulator's events, with its counters after each.
    fn replay(&mut self, simulated: &ecn_sim::trace::Trace, feedback: Feedback) -> Outcome {
        let ports = simulated.policy.ports as u8;
        let trace = Trace {
            slots: (1..ports).collect(),
            limit: usize::MAX,
            backlog: true,
            whole: true,
            policy: Step::Policy(
                Marking::None,
                MarkAt::Arrival,
                1,
                1,
                ShareBy::Off,
                0,
                echoes(),
            ),
            steps: Vec::new(),
        };
        let mut both = self.begin(&trace);
        both.policy = simulated.policy;
        let set = both.kernel.maps.set_marking(BRIDGE, both.policy);
        set.expect("policy");
        both.set_messages(backward::Policy::new(feedback, backward::MESSAGES_PER_S));
        for event in &simulated.events {
            both.simulated(event)?;
        }
        both.end()
    }

    /// An empty bridge with the ports of a trace.
    fn begin<'a>(&'a mut self, trace: &'a Trace) -> Both<'a> {
        let ports = trace.slots.len();
        for (place, &ifindex) in self.devices.iter().enumerate() {
            let key = DeviceKey {
                netns: self.netns,
                ifindex,
            };
            self.maps.remove_device(key);
            let backlog = if trace.backlog { abi::ROLE_BACKLOG } else { 0 };
            let role = abi::ROLE_PORT | abi::ROLE_WIRE_END | backlog;
            let device = match trace.slots.get(place) {
                Some(&slot) => Device {
                    role,
                    bridge: BRIDGE,
                    port: slot.into(),
                    wire_bridge: BRIDGE,
                    wire_port: slot.into(),
                    ..Device::default()
                },
                // A port, but of bridge 0.
                None if place == DEVICES => Device {
                    role,
                    port: 1,
                    ..Device::default()
                },
                None => continue,
            };
            self.maps.set_device(key, device).expect("a device");
        }
        self.maps.clear_bridge(BRIDGE).expect("clear");
        // Left over from a trace that failed.
        while self.trace.next().is_some() {}
        self.traces += 1;
        // Congestion points keep their state from trace to trace, as ports do.
        let points = trace.slots.iter().map(|slot| self.point(*slot)).collect();
        Both {
            kernel: self,
            trace,
            policy: Policy {
                marking: 0,
                mark_at: 0,
                buffer: 1,
                threshold: 1,
                ports: trace.slots.iter().copied().max().map_or(1, u32::from) + 1,
                shares: ShareBy::Off as u32,
                drop_threshold: 0,
                _pad: 0,
            },
            feedback: Feedback::Echo,
            messages: echoes(),
            points,
            host: Box::default(),
            shares: Box::default(),
            decided: Decision::default(),
            sequence: 0,
            now_ns: 0,
            queues: vec![VecDeque::new(); ports],
            wires: vec![VecDeque::new(); ports],
        }
    }

    fn point(&self, slot: u8) -> Point {
        self.maps.point(BRIDGE, slot.into()).expect("a point")
    }
}

impl Packet {
    const fn segments(&self) -> u32 {
        if self.segments == 0 { 1 } else { self.segments }
    }

    const fn markable(&self) -> bool {
        self.ecn != packet::NOT_ECT
    }

    /// Wire length of this number of its segments.
    fn wire_len(&self, n: u32) -> u32 {
        self.frame(self.ecn).len() as u32 * n
    }

    /// Its flow's key, as a port computes it.
    fn key(&self) -> flow::Key {
        let frame = self.frame(self.ecn);
        let ip = packet::parse(frame.as_slice()).expect("IP");
        let transport = packet::transport(frame.as_slice(), &ip).expect("a header");
        let mut key = flow::Key {
            protocol: ip.protocol,
            src_port: transport.src_port,
            dst_port: transport.dst_port,
            ..flow::Key::default()
        };
        packet::addresses(frame.as_slice(), &ip, &mut key.src, &mut key.dst);
        key
    }

    /// The frame, with an ECN field.
    fn frame(&self, ecn: u8) -> Vec<u8> {
        let ip = if self.ipv6 {
            Ip::of(
                [0xfd77u16, 0, 0, 0, 0, 0, u16::from(self.host), 1],
                [0xfd77u16, 0, 0, 0, 0, 0, 0, 2],
            )
        } else {
            Ip::of([10, 77, self.host, 1], [10, 77, 0, 2])
        };
        let ip = ip.ecn(ecn);
        let ip = if self.fragment {
            ip.fragment(0, true)
        } else {
            ip
        };
        let frame = ip.udp(1, 2, &[7; 100]);
        if self.tag {
            tagged(&frame, packet::ETHERTYPE_VLAN, 5)
        } else {
            frame
        }
    }
}

impl Both<'_> {
    fn ifindex(&self, place: usize) -> u32 {
        self.kernel.devices[place]
    }

    fn slot(&self, place: usize) -> u8 {
        self.trace.slots[place]
    }

    /// Slot and device number of an input.
    fn input(&self, input: Input) -> (u8, u32) {
        match input {
            Input::Port(place) => (self.slot(place), self.ifindex(place)),
            Input::Host => (HOST, 0),
            Input::Elsewhere => (HOST, self.ifindex(DEVICES)),
        }
    }

    /// The last comparison, of everything; adds to the coverage.
    fn end(mut self) -> Outcome {
        self.compare(true)?;
        let of = |count: fn(&Port) -> u64| self.host.ports.iter().map(count).sum::<u64>();
        let seen = &mut self.kernel.seen;
        seen.marked += of(|p| p.marked);
        seen.unmarkable += of(|p| p.unmarkable);
        seen.input_triggers += of(|p| p.input_triggers);
        seen.output_triggers += of(|p| p.output_triggers);
        seen.repaired += of(|p| p.repaired);
        let other = self.kernel.maps.bridge(0).expect("counters");
        prop_assert_eq!(other.sequence(), 0, "the other bridge");
        Ok(())
    }

    /// The simulator, the core on the host and the kernel agree.
    fn simulated(&mut self, event: &ecn_sim::trace::Event) -> Outcome {
        let place = |slot: u8| usize::from(slot) - 1;
        let queued = Queued {
            packet: Packet {
                input: Input::Port(place(event.input)),
                segments: 0,
                host: 0,
                ipv6: false,
                tag: false,
                ecn: packet::ECT_0,
                fragment: false,
            },
            markable: true,
        };
        let o = place(event.output);
        match event.kind {
            PortEventKind::Enqueue => {
                self.enter(queued.packet, o)?;
            }
            PortEventKind::Dequeue => self.left(queued, 1, o, event.backlog)?,
            PortEventKind::Drop => self.dropped(queued, o)?,
            PortEventKind::WireEnd => self.wire_end(queued, o)?,
        }
        prop_assert_eq!(self.decided, event.decision, "{:?}", event);
        prop_assert_eq!(
            &self.host.ports[..event.ports.len()],
            &event.ports[..],
            "{:?}",
            event
        );
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Policy(marking, mark_at, buffer, threshold, by, drops, messages) => {
                self.policy.shares = *by as u32;
                self.policy.drop_threshold = *drops;
                self.policy.marking = *marking as u32;
                self.policy.mark_at = *mark_at as u32;
                self.policy.buffer = *buffer;
                self.policy.threshold = *threshold;
                let set = self.kernel.maps.set_marking(BRIDGE, self.policy);
                set.expect("policy");
                self.set_messages(*messages);
                Ok(())
            }
            Step::Arrive(packet, o) => self.arrive(*packet, *o),
            Step::Uncounted(o) => self.uncounted(*o),
            Step::Leave(o) => match self.queues[*o].pop_front() {
                Some(queued) => self.leave(queued, *o),
                None => Ok(()),
            },
            Step::Missed(o) => {
                let departed = self.queues[*o].pop_front();
                self.wires[*o].extend(departed);
                Ok(())
            }
            Step::Unknown(packet, o) => {
                let queued = Queued {
                    packet: *packet,
                    markable: packet.markable(),
                };
                self.leave(queued, *o)
            }
            Step::Drop(o, at) => {
                let waiting = self.queues[*o].len();
                match self.queues[*o].remove(at % waiting.max(1)) {
                    Some(queued) => self.dropped(queued, *o),
                    None => Ok(()),
                }
            }
            Step::WireEnd(o) => match self.wires[*o].pop_front() {
                Some(queued) => self.wire_end(queued, *o),
                None => Ok(()),
            },
            Step::Wait(ms) => {
                std::thread::sleep(std::time::Duration::from_millis(*ms));
                Ok(())
            }
            Step::Sweep(o, idle) => self.sweep(*o, *idle),
            Step::Remove(o) => self.remove(*o),
        }
    }

    fn set_messages(&mut self, policy: backward::Policy) {
        self.messages = backward::Policy {
            // Each trace has its own points: no source is slowed down at first.
            bridge: self.kernel.traces << 8,
            ..policy
        };
        self.feedback = Feedback::ALL[policy.feedback as usize];
        let set = self.kernel.maps.set_backward(BRIDGE, self.messages);
        set.expect("messages");
        for place in 0..self.trace.slots.len() {
            let key = DeviceKey {
                netns: self.kernel.netns,
                ifindex: self.ifindex(place),
            };
            let device = self.kernel.maps.device(key);
            let samples = if self.samples() { abi::ROLE_SAMPLES } else { 0 };
            let role = device.role & !abi::ROLE_SAMPLES | samples;
            let set = self.kernel.maps.set_device(key, Device { role, ..device });
            set.expect("a device");
        }
    }

    fn samples(&self) -> bool {
        self.messages.sampling.kind != Kind::Marks as u32
    }

    fn arrive(&mut self, packet: Packet, o: usize) -> Outcome {
        if !self.enter(packet, o)? {
            return Ok(());
        }
        let queued = Queued {
            packet,
            markable: packet.markable(),
        };
        if self.queues[o].len() >= self.trace.limit {
            return self.dropped(queued, o);
        }
        self.queues[o].push_back(queued);
        Ok(())
    }

    /// Whether the packet enters its queue. The kernel determines its time of arrival.
    fn enter(&mut self, packet: Packet, o: usize) -> Result<bool, TestCaseError> {
        let n = packet.segments();
        let begun = now_ns();
        let verdict = self.test(name::PORT_OUT, packet, n, o, [0; 2]);
        let ran = [begun, now_ns()];
        let event = self.kernel.trace.next();
        let now_ns = event.map_or(0, |event| event.now_ns);
        prop_assert!(now_ns >= self.now_ns, "{} after {}", now_ns, self.now_ns);
        self.now_ns = now_ns;
        let a = PacketMeta {
            now_ns,
            bytes: packet.wire_len(n),
            ..self.packet_of(packet, n, o)
        };
        let decision = self.shares.on_enqueue(&mut self.host, &self.policy, &a);
        let value = if decision.drop == 0 { -1 } else { 2 };
        prop_assert_eq!(verdict.value, value, "{:?}", decision);
        let is_written = self.feedback.is_echoed() && packet.markable();
        self.check_frame(&verdict, packet, decision.mark != 0 && is_written)?;
        let by_message = self.feedback.is_backward();
        self.kernel.seen.backward += u64::from(decision.mark * u32::from(by_message));
        if decision.drop == 0 {
            self.update_point(packet, n, o, decision.mark != 0 && by_message, ran)?;
        }
        self.kernel.seen.arrivals += 1;
        self.kernel.seen.super_packets += u64::from(n > 1);
        self.kernel.seen.refused += u64::from(decision.drop);
        self.kernel.seen.below += u64::from((1..=Share::Below as u32).contains(&decision.share));
        let expected = PortEvent {
            now_ns,
            bytes: a.bytes,
            source: a.source,
            droppable: a.droppable.into(),
            markable: a.markable.into(),
            ..self.expected(PortEventKind::Enqueue, packet, n, o, decision)
        };
        self.expect_event(event, expected)?;
        Ok(decision.drop == 0)
    }

    /// Updates the congestion point for an arrival: whether it is marked and, if sampled, how long the queue is.
    fn update_point(
        &mut self,
        packet: Packet,
        n: u32,
        o: usize,
        marked: bool,
        ran: [u64; 2],
    ) -> Outcome {
        // No source to notify.
        let samples = self.samples() && matches!(packet.input, Input::Port(_));
        let slot = self.slot(o);
        let (policy, bytes) = (self.messages, packet.wire_len(n));
        let waiting = self.host.ports[usize::from(slot)].cnt1;
        let tag = Quoted::tag(policy.point(slot), packet.key().hash());
        let entry = self.kernel.tagged[tag.place as usize];
        let (now_ns, sampled) = self.compare_point(o, ran, |point, now_ns| {
            if marked {
                point.mark(&policy, n, now_ns);
            }
            if !samples {
                return None;
            }
            let sample = point.sample(&policy.sampling, n, bytes, waiting)?;
            let is_tagged = tag.is_tagged(entry, now_ns);
            let is_sent = sample.is_for(is_tagged) && point.next_message(&policy, now_ns).is_some();
            Some((sample, is_tagged, is_sent))
        })?;
        let Some((sample, is_tagged, is_sent)) = sampled else {
            return Ok(());
        };
        if is_sent && sample.0 & Sample::FALLS != 0 {
            self.kernel.tagged[tag.place as usize] = tag.entry(now_ns);
        }
        let for_tagged = sample.0 & Sample::FOR_ALL == 0;
        let is_bcn = policy.sampling.kind == Kind::Bcn as u32;
        let seen = &mut self.kernel.seen;
        seen.samples += 1;
        seen.for_tagged += u64::from(for_tagged);
        seen.tagged += u64::from(for_tagged && is_tagged);
        seen.stops += u64::from(is_bcn && sample.0 as u32 == bcn::STOP);
        Ok(())
    }

    /// A port's state must be what `update_point` computes on the host, at some time while the program ran (`ran[0]` to
    /// `ran[1]`). The state shows the exact time if a message was sent without delay. Returns the time.
    fn compare_point<T>(
        &mut self,
        o: usize,
        ran: [u64; 2],
        update_point: impl Fn(&mut Point, u64) -> T,
    ) -> Result<(u64, T), TestCaseError> {
        let (before, after) = (self.points[o], self.kernel.point(self.slot(o)));
        // Of one message, or of one about a mark and one about the queue.
        let every_ns = self.messages.every_ns;
        let shown = [1, 2].map(|n| after.due_ns.wrapping_sub(n * every_ns));
        let times = [shown[0], shown[1], ran[0], ran[1]];
        let within = |time: &u64| (ran[0]..=ran[1]).contains(time);
        let same = times.into_iter().filter(within).find_map(|time| {
            let mut point = before;
            let result = update_point(&mut point, time);
            (point == after).then_some((time, result))
        });
        let Some((time, result)) = same else {
            let mut point = before;
            update_point(&mut point, ran[1]);
            let difference = format!("{after:?}, on the host {point:?}, after {before:?}");
            return Err(TestCaseError::fail(difference));
        };
        self.points[o] = after;
        let seen = &mut self.kernel.seen;
        seen.messages += after.sent - before.sent;
        seen.held += after.held - before.held;
        seen.timed += u64::from(after.sent != before.sent && shown.contains(&time));
        Ok((time, result))
    }

    /// The packet's metadata for marking.
    fn packet_of(&self, packet: Packet, n: u32, o: usize) -> PacketMeta {
        let frame = packet.frame(packet.ecn);
        let ip = packet::parse(frame.as_slice()).expect("IP");
        let (input, _) = self.input(packet.input);
        let compared = self.trace.backlog && input != HOST;
        PacketMeta {
            input,
            output: self.slot(o),
            markable: backward::Policy::new(self.feedback, backward::MESSAGES_PER_S)
                .is_markable(packet.markable(), input != HOST),
            droppable: compared && ip.droppable(n, packet.wire_len(n)),
            packets: n,
            source: ip.source,
            ..PacketMeta::default()
        }
    }

    /// Frames that are not IP, and control frames, change nothing.
    fn uncounted(&mut self, o: usize) -> Outcome {
        let ip = Ip::of([10, 77, 0, 1], [10, 77, 0, 2]);
        let local = Ip::of([169, 254, 0, 1], [10, 77, 0, 2]).udp(1, 2, &[7; 100]);
        let mut unknown = ip.udp(1, 2, &[7; 100]);
        unknown[12..14].copy_from_slice(&[0x88, 0xcc]);
        for frame in [local, unknown] {
            for (program, cb) in [
                (name::PORT_OUT, [0; 2]),
                (name::PORT_REPLAY, [PortEventKind::Dequeue as u32, 0]),
            ] {
                let packet = TestPacket {
                    frame: &frame,
                    ifindex: self.ifindex(o),
                    cb,
                    ..TestPacket::default()
                };
                let verdict = self.kernel.copy.test_run(program, &packet, 1);
                prop_assert_eq!(&verdict.expect("run").frame, &frame);
            }
        }
        self.compare(false)
    }

    fn leave(&mut self, queued: Queued, o: usize) -> Outcome {
        let all = queued.packet.segments();
        let (runs, n) = if self.trace.whole { (1, all) } else { (all, 1) };
        let backlog = match self.trace.backlog {
            true => self.queues[o].len() as u32,
            false => BACKLOG_UNKNOWN,
        };
        for _ in 0..runs {
            self.left(queued, n, o, backlog)?;
        }
        self.wires[o].push_back(queued);
        Ok(())
    }

    fn left(&mut self, queued: Queued, n: u32, o: usize, backlog: u32) -> Outcome {
        let Queued { packet, markable } = queued;
        let a = PacketMeta {
            markable,
            ..self.packet_of(packet, n, o)
        };
        let decision = self.shares.on_dequeue(&mut self.host, &self.policy, &a);
        if self.host.is_surplus(a.output, backlog) {
            self.host.repair(a.output, self.policy.ports);
        }
        let cb = [PortEventKind::Dequeue as u32, backlog];
        self.run(name::PORT_REPLAY, packet, n, o, cb, false)?;
        self.kernel.seen.departures += 1;
        let event = self.kernel.trace.next();
        let expected = PortEvent {
            backlog,
            source: a.source,
            ..self.expected(PortEventKind::Dequeue, packet, n, o, decision)
        };
        self.expect_event(event, expected)
    }

    fn dropped(&mut self, queued: Queued, o: usize) -> Outcome {
        let Queued { packet, .. } = queued;
        let n = packet.segments();
        let (slot, _) = self.input(packet.input);
        let output = self.slot(o);
        self.host.on_drop(slot, output, n);
        let cb = [PortEventKind::Drop as u32, 0];
        self.run(name::PORT_REPLAY, packet, n, o, cb, false)?;
        self.kernel.seen.drops += 1;
        self.event(PortEventKind::Drop, packet, n, o, Decision::default())
    }

    fn wire_end(&mut self, queued: Queued, o: usize) -> Outcome {
        let Queued { packet, markable } = queued;
        let (n, output) = (packet.segments(), self.slot(o));
        let mark = markable && self.host.wire_end(output, n);
        self.run(name::WIRE_END, packet, n, o, [0; 2], mark)?;
        if !markable {
            return self.compare(false);
        }
        self.kernel.seen.wire_ends += 1;
        let decision = Decision {
            mark: mark.into(),
            ..Decision::default()
        };
        self.event(PortEventKind::WireEnd, packet, n, o, decision)
    }

    fn sweep(&mut self, o: usize, idle: bool) -> Outcome {
        let slot = self.slot(o);
        let arrived = self.host.ports[usize::from(slot)].arrived as u32;
        let reset = abi::PortReset {
            bridge: BRIDGE,
            port: slot.into(),
            action: abi::PortAction::Forget as u32,
            arrived: if idle { arrived } else { arrived ^ 1 },
        };
        if idle {
            self.host.set_waiting(slot, PORTS as u32, 0);
        }
        let done = self.kernel.datapath.reset_port(reset).expect("reset");
        prop_assert_eq!(done, idle);
        self.reset()
    }

    fn remove(&mut self, o: usize) -> Outcome {
        let slot = self.slot(o);
        let reset = abi::PortReset {
            bridge: BRIDGE,
            port: slot.into(),
            action: abi::PortAction::Remove as u32,
            arrived: 0,
        };
        self.host.set_waiting(slot, PORTS as u32, 0);
        self.host.remove_input(slot, PORTS as u32);
        self.shares.remove_port(slot);
        let done = self.kernel.datapath.reset_port(reset).expect("reset");
        prop_assert!(done);
        self.queues[o].clear();
        self.wires[o].clear();
        self.reset()
    }

    /// A reset is an event of the bridge, but not of a port.
    fn reset(&mut self) -> Outcome {
        self.sequence += 1;
        self.kernel.seen.resets += 1;
        self.compare(false)
    }

    /// Runs a program on a packet: the frame is marked or unchanged, and programs of others run next.
    fn run(
        &mut self,
        program: &str,
        packet: Packet,
        n: u32,
        o: usize,
        cb: [u32; 2],
        mark: bool,
    ) -> Outcome {
        let verdict = self.test(program, packet, n, o, cb);
        prop_assert_eq!(verdict.value, -1);
        self.check_frame(&verdict, packet, mark)
    }

    fn test(&mut self, program: &str, packet: Packet, n: u32, o: usize, cb: [u32; 2]) -> Verdict {
        let frame = packet.frame(packet.ecn);
        let (_, ingress_ifindex) = self.input(packet.input);
        let context = TestPacket {
            frame: &frame,
            ifindex: self.ifindex(o),
            ingress_ifindex,
            gso_segs: if n > 1 { n } else { packet.segments.min(1) },
            wire_len: packet.wire_len(n),
            cb,
            ..TestPacket::default()
        };
        let verdict = self.kernel.copy.test_run(program, &context, 1);
        verdict.expect("run")
    }

    fn check_frame(&self, verdict: &Verdict, packet: Packet, mark: bool) -> Outcome {
        let ecn = if mark { packet::CE } else { packet.ecn };
        prop_assert_eq!(&verdict.frame, &packet.frame(ecn), "marked: {}", mark);
        Ok(())
    }

    /// The program recorded exactly this event, with these counters.
    fn event(
        &mut self,
        kind: PortEventKind,
        packet: Packet,
        n: u32,
        o: usize,
        decision: Decision,
    ) -> Outcome {
        let event = self.kernel.trace.next();
        let expected = self.expected(kind, packet, n, o, decision);
        self.expect_event(event, expected)
    }

    fn expected(
        &self,
        kind: PortEventKind,
        packet: Packet,
        n: u32,
        o: usize,
        decision: Decision,
    ) -> PortEvent {
        let at_wire_end = matches!(kind, PortEventKind::WireEnd);
        let (input, _) = self.input(packet.input);
        PortEvent {
            kind: kind as u32,
            bridge: BRIDGE,
            sequence: self.sequence + 1,
            input: if at_wire_end { 0 } else { input.into() },
            output: self.slot(o).into(),
            segments: n,
            markable: match kind {
                PortEventKind::Drop => 0,
                _ => packet.markable().into(),
            },
            decision,
            ..PortEvent::default()
        }
    }

    fn expect_event(&mut self, event: Option<PortEvent>, expected: PortEvent) -> Outcome {
        self.sequence += 1;
        self.decided = expected.decision;
        prop_assert_eq!(event, Some(expected));
        prop_assert_eq!(self.kernel.trace.next(), None);
        self.compare(false)
    }

    /// Compares every port's counters, and what waits between the ports in use, or between `all`.
    fn compare(&mut self, all: bool) -> Outcome {
        self.kernel.seen.events += 1;
        let view = self.kernel.maps.bridge(BRIDGE).expect("counters");
        prop_assert_eq!(view.sequence(), self.sequence);
        for (slot, port) in (0..).zip(&self.host.ports) {
            prop_assert_eq!(&view.port(slot), port, "slot {}", slot);
        }
        for (slot, output) in (0..).zip(&self.shares.outputs) {
            prop_assert_eq!(&view.output(slot), output, "output {}", slot);
        }
        for (place, source) in (0..).zip(&self.shares.sources) {
            prop_assert_eq!(&view.source(place), source, "source {}", place);
        }
        for (slot, point) in self.trace.slots.iter().zip(&self.points) {
            prop_assert_eq!(&self.kernel.point(*slot), point, "point {}", slot);
        }
        let used: Vec<u8> = if all {
            (0..=255).collect()
        } else {
            [&[HOST], &self.trace.slots[..]].concat()
        };
        for &i in &used {
            for &o in &used {
                let waits = self.host.waiting[usize::from(i)][usize::from(o)];
                prop_assert_eq!(view.waiting(i.into(), o.into()), waits, "{} to {}", i, o);
            }
        }
        Ok(())
    }
}

/// Loads the programs with devices, runs a test, and returns the coverage.
fn in_kernel(test: impl FnOnce(&mut Kernel) + Send) -> Seen {
    let lab = Lab::new(0);
    let device = |n| {
        let made = lab.nl.add_bridge(&format!("port{n}"));
        made.expect("a device").index
    };
    let devices: Vec<u32> = (0..=DEVICES).map(device).collect();
    lab.switch.run(|| {
        let mut kernel = Kernel::new(lab.switch.inum(), devices);
        test(&mut kernel);
        let count = |what| kernel.maps.count(what).expect("a counter");
        assert_eq!((count(Count::RingFull), count(Count::MarkFailed)), (0, 0));
        kernel.seen
    })
}

/// The rig as it is simulated, with every policy: simulator, core and kernel agree after each event.
#[test]
fn the_simulated_rig() {
    kernel_test!();
    let mut traces = Vec::new();
    for marking in ["naive", "input", "input-output"] {
        for (mark_at, feedback) in [
            ("arrival", Feedback::Echo),
            ("departure", Feedback::Echo),
            ("arrival", Feedback::Backward),
        ] {
            let mut scenario = Scenario::rig();
            let settings = [
                format!("marking={marking}"),
                format!("mark_at={mark_at}"),
                format!("feedback={feedback}"),
            ];
            for setting in settings {
                scenario.set_text(&setting).expect("a setting");
            }
            let options = simulation::Options {
                seed: 1,
                duration: scenario.duration() / 20,
                trace: SIMULATED,
                ..simulation::Options::default()
            };
            let network = scenario.network().expect("a network");
            let record = simulation::run(&network, &scenario.model, None, &options);
            let recorded = record.expect("a run").traces;
            traces.extend(recorded.into_iter().map(|trace| (trace, feedback)));
        }
    }
    let seen = in_kernel(|kernel| {
        for (trace, feedback) in &traces {
            if let Err(difference) = kernel.replay(trace, *feedback) {
                panic!("{difference}");
            }
        }
    });
    let bridges = traces.len();
    note(&format!(
        "differential: {bridges} simulated bridges, {seen:?}"
    ));
    assert_eq!(bridges, 18);
    let full = traces
        .iter()
        .filter(|(trace, _)| trace.events.len() == SIMULATED);
    assert!(full.count() > 9, "{seen:?}");
    assert!(seen.marked > 500 && seen.wire_ends > 500, "{seen:?}");
    assert!(seen.backward > 250, "{seen:?}");
    assert!(
        seen.input_triggers > 500 && seen.output_triggers > 100,
        "{seen:?}"
    );
}

#[test]
fn random_traces() {
    kernel_test!();
    let cases = if emulated() {
        TRACES / 5
    } else {
        Config::default().cases.max(TRACES)
    };
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let seen = in_kernel(|kernel| {
        let kernel = RefCell::new(kernel);
        let each = |trace: Trace| kernel.borrow_mut().run(&trace);
        let result = TestRunner::new(config).run(&trace(), each);
        if let Err(difference) = result {
            panic!("{difference}");
        }
    });
    note(&format!("differential: {cases} traces, {seen:?}"));
    // Coverage: each kind of event and of decision occurred.
    let traces = u64::from(cases);
    assert!(seen.events > 50 * traces, "{seen:?}");
    if emulated() {
        // A fifth of the traces, on a slow clock: the rarest may be missing.
        return;
    }
    for (often, what) in [
        (seen.arrivals, 30 * traces),
        (seen.departures, 30 * traces),
        (seen.drops, traces),
        (seen.wire_ends, traces),
        (seen.resets, traces / 2),
        (seen.marked, 5 * traces),
        (seen.unmarkable, traces),
        (seen.input_triggers, 2 * traces),
        (seen.output_triggers, traces / 2),
        (seen.repaired, traces),
        (seen.super_packets, traces),
        (seen.refused, traces / 100),
        (seen.below, traces),
        (seen.backward, traces / 2),
        (seen.samples, traces),
        (seen.for_tagged, traces / 10),
        (seen.tagged, 0),
        (seen.messages, traces),
        (seen.held, traces / 5),
        (seen.timed, traces / 5),
        (seen.stops, traces / 20),
    ] {
        assert!(often > what, "{seen:?}");
    }
}
