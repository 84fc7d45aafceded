//! The programs of a source against the same core on the host, with random notifications and packets, by
//! `BPF_PROG_TEST_RUN`: after each of them the state of the flow is the same, and so are the events for the agent. The
//! programs' times are read from the state that they leave.

use std::cell::RefCell;

use ecn_core::{
    abi::{self, Count, name},
    backward::{self, Kind, Message, Report},
    bcn, echo,
    flow::{self, Flow, Key},
    packet::{self, protocol},
    qcn, reaction, response,
};
use ecn_tests::{emulated, frames::Ip, kernel_test, lab::Lab, note, running::pin};
use ecn_user::{
    agent::enforce::now_ns,
    datapath::{Copy, Datapath, Maps, RateEvents, Sizes, TestPacket, Verdict},
};
use proptest::{
    collection::vec,
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, TestCaseError, TestRunner},
};

/// Random traces; overridden by `PROPTEST_CASES`.
const TRACES: u32 = 200;
/// The endpoint's number.
const ENDPOINT: u16 = 1;
/// 100 Mb/s.
const LINK: u64 = 12_500_000;
const MS: u64 = 1_000_000;
const FRAME: u32 = 1514;
/// In all TCP segments.
const ACKNOWLEDGMENT: u32 = 0x1234_5678;
/// Packets after which a flow has a rate of its own.
const FIRST: u64 = 2 * flow::SHORT_PACKETS;

/// Events.
#[derive(Clone, Debug)]
enum Step {
    /// A notification arrives.
    Notification(Notification),
    /// This number of packets is sent.
    Sent(u8),
    /// This number of milliseconds passes.
    Wait(u64),
}

#[derive(Clone, Debug)]
struct Notification {
    kind: Kind,
    feedback: u32,
    /// The port that sent it.
    point: u64,
    /// Its sequence number, relative to the last one.
    ahead: i32,
    /// Whether it quotes a packet that was sent.
    quoted: bool,
}

/// A trace, and its flow.
#[derive(Clone, Debug)]
struct Trace {
    protocol: u8,
    policy: reaction::Policy,
    steps: Vec<Step>,
}

fn notification() -> impl Strategy<Value = Notification> {
    let frames = |n: i32| (n * FRAME as i32).cast_unsigned();
    let field = move || (-40..40i32).prop_map(move |n| (frames(n) / 64) & 0xffff);
    let bcn = prop_oneof![
        6 => (field(), field()).prop_map(|(offset, delta)| offset << 16 | delta),
        1 => Just(bcn::STOP),
        1 => any::<u32>(),
    ];
    let qcn = prop_oneof![4 => 0..=qcn::MAX_FEEDBACK, 1 => any::<u32>()];
    let what = prop_oneof![
        bcn.prop_map(|feedback| (Kind::Bcn, feedback)),
        qcn.prop_map(|feedback| (Kind::Qcn, feedback)),
    ];
    // The third port shares an entry with another one.
    let point = prop_oneof![6 => Just(1u64), 2 => Just(2), 1 => Just(3)];
    let ahead = prop_oneof![8 => Just(1), 2 => 2..40i32, 2 => -20..=0i32, 1 => any::<i32>()];
    let quoted = proptest::bool::weighted(0.9);
    (what, point, ahead, quoted).prop_map(|((kind, feedback), point, ahead, quoted)| Notification {
        kind,
        feedback,
        point,
        ahead,
        quoted,
    })
}

fn policy() -> impl Strategy<Value = reaction::Policy> {
    let volume_time = prop_oneof![2 => Just(0u64), 1 => 1..=(1u64 << 32) / 500];
    let clamp = proptest::bool::ANY;
    (0..=4u32, 1..=10u64, volume_time, 1..=5u32, clamp).prop_map(
        |(weight, stage_ms, volume_time, stages, clamp)| {
            let gains = bcn::Gains {
                frame_bytes: FRAME,
                equilibrium_bytes: 16 * FRAME,
                weight,
                ..bcn::Gains::defaults(LINK)
            };
            reaction::Policy {
                bcn: bcn::Policy::new(&gains).expect("gains"),
                // Short stages, for short traces.
                qcn: qcn::Policy {
                    line_bytes_per_s: LINK,
                    min_bytes_per_s: LINK / 2_000,
                    decrease: (1 << 32) / 128,
                    min_decrease: 1 << 31,
                    volume_bytes: 2_000,
                    volume_time,
                    stage_time: stage_ms * MS,
                    active_bytes_per_s: LINK / 20,
                    hyper_bytes_per_s: LINK / 4,
                    stages,
                    clamp_target: clamp.into(),
                },
            }
        },
    )
}

fn trace() -> impl Strategy<Value = Trace> {
    let step = prop_oneof![
        3 => notification().prop_map(Step::Notification),
        4 => (1..=6u8).prop_map(Step::Sent),
        3 => (1..=6u64).prop_map(Step::Wait),
    ];
    let protocol = prop_oneof![Just(protocol::UDP), Just(protocol::TCP)];
    (protocol, policy(), vec(step, 10..=60)).prop_map(|(protocol, policy, steps)| Trace {
        protocol,
        policy,
        steps,
    })
}

/// Coverage of the traces.
#[derive(Debug, Default)]
struct Seen {
    accepted: u64,
    duplicate: u64,
    impossible: u64,
    /// Before the flow had a rate of its own.
    early: u64,
    /// Decreases and increases by notifications.
    lowered: u64,
    raised: u64,
    stopped: u64,
    /// Packets at which a limiter recovered by itself, and those at which its rate increased.
    clocked: u64,
    rose: u64,
    /// Limiters that ended.
    freed: u64,
    /// Events for the agent.
    events: u64,
}

type Outcome = Result<(), TestCaseError>;

/// The loaded programs.
struct Kernel {
    copy: Copy,
    maps: Maps,
    events: RateEvents,
    /// Number of flows so far, each with its own port.
    flows: u16,
    seen: Seen,
}

/// A flow, run on both.
struct Both<'a> {
    kernel: &'a mut Kernel,
    policy: reaction::Policy,
    key: Key,
    host: Flow,
    /// The class that it gets when it is limited.
    class: u32,
    /// Packets sent, TCP's next sequence number, and the quote of the last packet.
    sent: u64,
    next: u32,
    quote: u32,
    /// Sequence number of the last notification.
    sequence: u32,
}

impl Kernel {
    fn new(netns: u32) -> Self {
        let sizes = Sizes {
            bridges: 1,
            flows: 4096,
        };
        let mut datapath = Datapath::open(&pin(), sizes).expect("load");
        datapath.load_endpoints().expect("load");
        datapath.load_backward().expect("load");
        let mut maps = datapath.maps().expect("maps");
        let control = abi::Control {
            abi: abi::ABI,
            flags: 0,
            valid_until_ns: u64::MAX,
            held_from_ns: u64::MAX,
        };
        maps.set_control(control).expect("control");
        Self {
            copy: datapath.copy(netns, ENDPOINT.into()).expect("a copy"),
            events: RateEvents::open(&pin()).expect("the ring"),
            maps,
            flows: 0,
            seen: Seen::default(),
        }
    }

    fn run(&mut self, trace: &Trace) -> Outcome {
        let mut both = self.begin(trace)?;
        for step in &trace.steps {
            match step {
                Step::Notification(notification) => both.receive(notification)?,
                Step::Sent(n) => (0..*n).try_for_each(|_| both.send())?,
                Step::Wait(ms) => std::thread::sleep(std::time::Duration::from_millis(*ms)),
            }
        }
        Ok(())
    }

    /// Starts a flow, and gives it a rate of its own.
    fn begin(&mut self, trace: &Trace) -> Result<Both<'_>, TestCaseError> {
        let endpoint = abi::Endpoint {
            flags: abi::CONTROL_FLOWS | abi::BACKWARD,
            link_bytes_per_s: LINK,
            response: response::Policy::hp(response::Function::Lipd),
            echo: echo::Policy {
                protocol: echo::PROTOCOL.into(),
                ..echo::Policy::default()
            },
            reaction: trace.policy,
            ..abi::Endpoint::default()
        };
        let set = self.maps.set_endpoint(ENDPOINT.into(), endpoint);
        set.expect("an endpoint");
        self.flows += 1;
        let class = abi::FIRST_CLASS + u32::from(self.flows);
        // Drains events of earlier flows.
        let offered = self.maps.offered_classes();
        let class = offered.first().copied().unwrap_or(class);
        if offered.is_empty() {
            assert!(self.maps.offer_class(class), "a class");
        }
        let v4 = |n: u8| {
            std::net::Ipv4Addr::new(10, 77, 0, n)
                .to_ipv6_mapped()
                .octets()
        };
        let mut both = Both {
            policy: trace.policy,
            key: Key {
                src: v4(1),
                dst: v4(2),
                src_port: self.flows,
                dst_port: 2,
                endpoint: ENDPOINT,
                protocol: trace.protocol,
                ..Key::default()
            },
            host: Flow::new(),
            class,
            sent: 0,
            next: 100,
            quote: 0,
            sequence: 1_000,
            kernel: self,
        };
        both.pass();
        both.host = both.flow();
        both.receive(&Notification {
            kind: Kind::Bcn,
            feedback: bcn::STOP,
            point: 1,
            ahead: 1,
            quoted: true,
        })?;
        (1..FIRST).for_each(|_| {
            both.pass();
        });
        // Short flows do not react.
        both.host = both.flow();
        prop_assert_eq!(both.host.has_own_rate, 1);
        prop_assert_eq!(both.host.reaction, reaction::Reaction::new());
        Ok(both)
    }
}

impl Both<'_> {
    fn flow(&self) -> Flow {
        self.kernel.maps.flow(&self.key).expect("the flow")
    }

    fn is_tcp(&self) -> bool {
        self.key.protocol == protocol::TCP
    }

    fn test(&mut self, program: &str, frame: &[u8]) -> (Verdict, [u64; 2]) {
        let packet = TestPacket {
            frame,
            ..TestPacket::default()
        };
        let begun = now_ns();
        let verdict = self.kernel.copy.test_run(program, &packet, 1);
        (verdict.expect("run"), [begun, now_ns()])
    }

    /// Sends a packet of the flow; returns its length, and when the program ran.
    fn pass(&mut self) -> (u64, [u64; 2]) {
        const DATA: usize = 1_000;
        // Addressed to the loopback device, whose address is zero.
        let ip = Ip::of([10, 77, 0, 1], [10, 77, 0, 2]).to_mac([0; 6]);
        let ip = ip.ecn(packet::NOT_ECT);
        let frame = if self.is_tcp() {
            let mut tcp = vec![0; 20 + DATA];
            tcp[..2].copy_from_slice(&self.key.src_port.to_be_bytes());
            tcp[2..4].copy_from_slice(&self.key.dst_port.to_be_bytes());
            tcp[4..8].copy_from_slice(&self.next.to_be_bytes());
            tcp[8..12].copy_from_slice(&ACKNOWLEDGMENT.to_be_bytes());
            (tcp[12], tcp[13]) = (0x50, 0x10);
            self.quote = self.next;
            self.next += DATA as u32;
            ip.with(protocol::TCP, &tcp)
        } else {
            let data = [&self.sent.to_be_bytes()[..], &[7; DATA - 8]].concat();
            let frame = ip.udp(self.key.src_port, self.key.dst_port, &data);
            let header = frame[16..20].try_into().expect("four bytes");
            let body = frame[42..50].try_into().expect("eight bytes");
            self.quote = backward::fingerprint(u32::from_be_bytes(header), body);
            frame
        };
        self.sent += 1;
        let (verdict, ran) = self.test(name::ENDPOINT_OUT, &frame);
        assert_eq!(verdict.value, -1);
        assert_eq!(verdict.frame, frame);
        (frame.len() as u64, ran)
    }

    /// Sends a packet, at which the limiter may recover by itself.
    fn send(&mut self) -> Outcome {
        let before = self.host;
        let sequence = self.next;
        let (bytes, ran) = self.pass();
        let after = self.flow();
        let host = &mut self.host;
        // By the coarse clock, which lags behind.
        let now_ns = after.last_sent_ns;
        prop_assert!((before.last_sent_ns..=ran[1]).contains(&now_ns));
        if self.key.protocol == protocol::TCP {
            let data = self.next - sequence;
            host.on_tcp_send(0, false, sequence, data, data);
            host.ace.expected = ACKNOWLEDGMENT;
        }
        host.on_send(now_ns);
        host.sent_packets += 1;
        host.sent_bytes += bytes;
        // Until the agent has assigned a class, a flow's limiter does nothing by itself.
        let reacts = before.class != 0
            && before.is_limited(LINK)
            && now_ns.saturating_sub(before.last_echo_ns) >= backward::CLOCK_NS;
        let mut notify = false;
        if reacts {
            let report = Report {
                flags: backward::BY_CLOCK,
                ..Report::default()
            };
            notify = self.react(&report, &after, ran)?;
        }
        let seen = &mut self.kernel.seen;
        seen.clocked += u64::from(reacts);
        seen.rose += u64::from(after.rate_bytes_per_s > before.rate_bytes_per_s);
        self.compare(&before, &after, notify)
    }

    /// A notification arrives.
    fn receive(&mut self, notification: &Notification) -> Outcome {
        let before = self.host;
        self.sequence = self.sequence.wrapping_add_signed(notification.ahead);
        let by_number = if self.is_tcp() {
            backward::BY_NUMBER
        } else {
            0
        };
        let m = Message {
            protocol: self.key.protocol,
            src_port: self.key.src_port,
            dst_port: self.key.dst_port,
            // Fingerprints of packets with different numbers differ in the first byte.
            quote: if notification.quoted {
                self.quote
            } else {
                !self.quote
            },
            sequence: self.sequence,
            kind: notification.kind as u8,
            flags: by_number,
            feedback: notification.feedback,
            point: notification.point,
            acknowledgment: if self.is_tcp() { ACKNOWLEDGMENT } else { 0 },
            signed: false,
        };
        let report = Report {
            point: m.point,
            sequence: m.sequence,
            marks: m.feedback,
            quote: m.quote,
            flags: backward::BY_MESSAGE | u32::from(by_number),
            kind: m.kind.into(),
            acknowledgment: m.acknowledgment,
        };
        let ip = Ip::of([10, 77, 0, 2], [10, 77, 0, 1]).to_mac([0; 6]);
        let ip = ip.ecn(packet::NOT_ECT).ttl(backward::TTL);
        let frame = ip.with(echo::PROTOCOL, &m.to_bytes());
        let what = [
            Count::MessageAccepted,
            Count::MessageDuplicate,
            Count::MessageImpossible,
        ];
        let counts = |kernel: &Kernel| what.map(|what| kernel.maps.count(what).expect("it"));
        let counted = counts(self.kernel);
        let (verdict, ran) = self.test(name::ENDPOINT_IN, &frame);
        prop_assert_eq!(verdict.value, 2);
        let mut expected = counted;
        let after = self.flow();
        let mut notify = false;
        // A quote of an unknown packet is refused before the flow is looked up.
        let refusal = if notification.quoted || self.is_tcp() {
            self.host.accept_notification(&report).err()
        } else {
            Some(echo::Refusal::Impossible)
        };
        let seen = &mut self.kernel.seen;
        match refusal {
            None => {
                expected[0] += 1;
                seen.accepted += 1;
                seen.stopped +=
                    u64::from(notification.kind == Kind::Bcn && notification.feedback == bcn::STOP);
                if before.has_own_rate == 0 {
                    seen.early += 1;
                } else {
                    notify = self.react(&report, &after, ran)?;
                }
            }
            Some(echo::Refusal::Duplicate) => {
                expected[1] += 1;
                seen.duplicate += 1;
            }
            Some(echo::Refusal::Impossible) => {
                expected[2] += 1;
                seen.impossible += 1;
            }
        }
        prop_assert_eq!(counts(self.kernel), expected);
        let rate = |flow: &Flow| flow.reaction.rate().unwrap_or(LINK);
        let seen = &mut self.kernel.seen;
        seen.lowered += u64::from(rate(&after) < rate(&before));
        seen.raised += u64::from(rate(&after) > rate(&before));
        self.compare(&before, &after, notify)
    }

    /// The core's reaction, at the time that the kernel's state shows. Returns whether the agent is notified.
    fn react(
        &mut self,
        report: &Report,
        after: &Flow,
        ran: [u64; 2],
    ) -> Result<bool, TestCaseError> {
        let now_ns = after.last_echo_ns;
        prop_assert!((ran[0]..=ran[1]).contains(&now_ns), "{} {:?}", now_ns, ran);
        Ok(self.host.react(&self.policy, report, LINK, now_ns))
    }

    /// Flow and event are the same as on the host.
    fn compare(&mut self, before: &Flow, after: &Flow, notify: bool) -> Outcome {
        if notify && self.host.class == 0 {
            self.host.class = self.class;
        }
        prop_assert_eq!(after, &self.host);
        let expected = notify.then(|| abi::RateEvent {
            endpoint: ENDPOINT.into(),
            class: self.host.class,
            rate_bytes_per_s: self.host.rate_bytes_per_s,
            marked_ns: 0,
            decrease: self.host.decreases as u32,
            pending: 0,
            in_force_ns: 0,
            key: self.key,
        });
        prop_assert_eq!(self.kernel.events.next(), expected);
        prop_assert_eq!(self.kernel.events.next(), None);
        self.kernel.seen.events += u64::from(notify);
        let freed = before.is_limited(LINK) && !after.is_limited(LINK);
        self.kernel.seen.freed += u64::from(freed);
        Ok(())
    }
}

/// Loads the programs, runs a test, and returns the coverage.
fn in_kernel(test: impl FnOnce(&mut Kernel) + Send) -> Seen {
    let lab = Lab::new(0);
    lab.switch.run(|| {
        let mut kernel = Kernel::new(lab.switch.inum());
        test(&mut kernel);
        let count = |what| kernel.maps.count(what).expect("a counter");
        assert_eq!((count(Count::RingFull), count(Count::ClassesFull)), (0, 0));
        kernel.seen
    })
}

#[test]
fn random_notifications() {
    kernel_test!();
    let cases = if emulated() {
        TRACES / 5
    } else {
        TRACES.max(Config::default().cases)
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
    note(&format!("reaction: {cases} traces, {seen:?}"));
    // Coverage.
    let traces = u64::from(cases);
    assert!(seen.accepted > 4 * traces, "{seen:?}");
    if emulated() {
        // A fifth of the traces: the rarest may be missing.
        return;
    }
    for (often, what) in [
        (seen.duplicate, traces / 2),
        (seen.impossible, traces / 4),
        (seen.early, traces / 2),
        (seen.lowered, traces),
        (seen.raised, traces / 10),
        (seen.stopped, traces / 2),
        (seen.clocked, traces),
        (seen.rose, traces / 2),
        (seen.freed, traces / 20),
        (seen.events, 2 * traces),
    ] {
        assert!(often > what, "{seen:?}");
    }
}

/// Without notifications a flow doubles its rate each second.
#[test]
fn a_flow_without_notifications_recovers() {
    kernel_test!();
    let notification = |feedback| {
        Step::Notification(Notification {
            kind: Kind::Bcn,
            feedback,
            point: 1,
            ahead: 1,
            quoted: true,
        })
    };
    let falls = bcn::Feedback {
        offset_bytes: -100 * FRAME as i32,
        delta_bytes: 0,
    };
    let steps = [
        notification(falls.to_word()),
        Step::Sent(1),
        notification(falls.to_word()),
    ];
    // A flow that is idle for longer restarts.
    let silence = (0..70).flat_map(|_| [Step::Wait(100), Step::Sent(1)]);
    let policy = {
        let mut runner = TestRunner::deterministic();
        let tree = policy().new_tree(&mut runner).expect("a policy");
        tree.current()
    };
    let trace = Trace {
        protocol: protocol::UDP,
        policy,
        steps: steps.into_iter().chain(silence).collect(),
    };
    let seen = in_kernel(|kernel| {
        if let Err(difference) = kernel.run(&trace) {
            panic!("{difference}");
        }
    });
    assert!(seen.lowered == 2 && seen.rose >= 2, "{seen:?}");
}
