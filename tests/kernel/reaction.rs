//! The programs of a source against the same core on the host, on random notifications and packets, by `BPF_PROG_TEST_RUN`:
//! the whole state of a flow is the same after each of them, and the agent hears the same. The programs' times are read from
//! the state that they leave.

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

/// Random traces; `PROPTEST_CASES` asks for more.
const TRACES: u32 = 200;
/// Number of the endpoint.
const ENDPOINT: u16 = 1;
/// 100 Mb/s.
const LINK: u64 = 12_500_000;
const MS: u64 = 1_000_000;
const FRAME: u32 = 1514;
/// Packets after which a flow has a rate of its own.
const FIRST: u64 = 2 * flow::SHORT_PACKETS;

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// A notification is heard.
    Heard(Heard),
    /// So many packets are sent.
    Sent(u8),
    /// So many milliseconds go by.
    Wait(u64),
}

#[derive(Clone, Debug)]
struct Heard {
    kind: Kind,
    feedback: u32,
    /// Which port says it.
    point: u64,
    /// How far its number is from the last one's.
    ahead: i32,
    /// It quotes a packet that was sent.
    quoted: bool,
}

/// A trace, and the flow that it is of.
#[derive(Clone, Debug)]
struct Trace {
    protocol: u8,
    policy: reaction::Policy,
    steps: Vec<Step>,
}

fn heard() -> impl Strategy<Value = Heard> {
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
    // A third port shares the place of another one.
    let point = prop_oneof![6 => Just(1u64), 2 => Just(2), 1 => Just(3)];
    let ahead = prop_oneof![8 => Just(1), 2 => 2..40i32, 2 => -20..=0i32, 1 => any::<i32>()];
    let quoted = proptest::bool::weighted(0.9);
    (what, point, ahead, quoted).prop_map(|((kind, feedback), point, ahead, quoted)| Heard {
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
        3 => heard().prop_map(Step::Heard),
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

/// What the traces contained.
#[derive(Debug, Default)]
struct Seen {
    accepted: u64,
    duplicate: u64,
    impossible: u64,
    /// Before the flow had a rate of its own.
    early: u64,
    /// Rates that a notification lowered, and raised.
    lowered: u64,
    raised: u64,
    stopped: u64,
    /// Packets at which a limiter did something by itself, and those at which its rate rose.
    clocked: u64,
    rose: u64,
    /// Limiters that went.
    freed: u64,
    /// What the agent heard.
    events: u64,
}

type Outcome = Result<(), TestCaseError>;

/// The loaded programs.
struct Kernel {
    copy: Copy,
    maps: Maps,
    events: RateEvents,
    /// Flows so far, each with a port of its own.
    flows: u16,
    seen: Seen,
}

/// A flow on its way through both.
struct Both<'a> {
    kernel: &'a mut Kernel,
    policy: reaction::Policy,
    key: Key,
    host: Flow,
    /// The class that it gets when it is limited.
    class: u32,
    /// Packets sent, TCP's next number, and what quotes the last packet.
    sent: u64,
    next: u32,
    quote: u32,
    /// Number of the last notification.
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
        let mut maps = datapath.maps().expect("maps");
        let control = abi::Control {
            abi: abi::ABI,
            flags: 0,
            valid_until_ns: u64::MAX,
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
                Step::Heard(heard) => both.hear(heard)?,
                Step::Sent(n) => (0..*n).try_for_each(|_| both.send())?,
                Step::Wait(ms) => std::thread::sleep(std::time::Duration::from_millis(*ms)),
            }
        }
        Ok(())
    }

    /// A new flow, which has a rate of its own.
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
        // What an earlier flow has not taken goes first.
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
        both.hear(&Heard {
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

    /// A packet of the flow goes out; how long it is, and when the program ran.
    fn pass(&mut self) -> (u64, [u64; 2]) {
        const DATA: usize = 1_000;
        // To the loopback device, which has no address.
        let ip = Ip::of([10, 77, 0, 1], [10, 77, 0, 2]).to_mac([0; 6]);
        let ip = ip.ecn(packet::NOT_ECT);
        let frame = if self.is_tcp() {
            let mut tcp = vec![0; 20 + DATA];
            tcp[..2].copy_from_slice(&self.key.src_port.to_be_bytes());
            tcp[2..4].copy_from_slice(&self.key.dst_port.to_be_bytes());
            tcp[4..8].copy_from_slice(&self.next.to_be_bytes());
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

    /// A packet is sent, at which the limiter does what it does by itself.
    fn send(&mut self) -> Outcome {
        let before = self.host;
        let sequence = self.next;
        let (bytes, ran) = self.pass();
        let after = self.flow();
        let host = &mut self.host;
        // By the coarse clock, which is behind.
        let now_ns = after.last_sent_ns;
        prop_assert!((before.last_sent_ns..=ran[1]).contains(&now_ns));
        if self.key.protocol == protocol::TCP {
            let data = self.next - sequence;
            host.on_tcp_send(0, false, sequence, data, data);
        }
        host.on_send(now_ns);
        host.sent_packets += 1;
        host.sent_bytes += bytes;
        // Before the agent has given it a class, a flow's limiter does nothing by itself.
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

    /// A notification comes in.
    fn hear(&mut self, heard: &Heard) -> Outcome {
        let before = self.host;
        self.sequence = self.sequence.wrapping_add_signed(heard.ahead);
        let by_number = if self.is_tcp() {
            backward::BY_NUMBER
        } else {
            0
        };
        let m = Message {
            protocol: self.key.protocol,
            src_port: self.key.src_port,
            dst_port: self.key.dst_port,
            // Of packets that differ in their number, fingerprints differ in the first byte.
            quote: if heard.quoted {
                self.quote
            } else {
                !self.quote
            },
            sequence: self.sequence,
            kind: heard.kind as u8,
            flags: by_number,
            feedback: heard.feedback,
            point: heard.point,
            signed: false,
        };
        let report = Report {
            point: m.point,
            sequence: m.sequence,
            marks: m.feedback,
            quote: m.quote,
            flags: backward::BY_MESSAGE | u32::from(by_number),
            kind: m.kind.into(),
            ..Report::default()
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
        let refusal = if heard.quoted || self.is_tcp() {
            self.host.accept_notification(&report).err()
        } else {
            Some(echo::Refusal::Impossible)
        };
        let seen = &mut self.kernel.seen;
        match refusal {
            None => {
                expected[0] += 1;
                seen.accepted += 1;
                seen.stopped += u64::from(heard.kind == Kind::Bcn && heard.feedback == bcn::STOP);
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

    /// The reaction, at the time that the kernel's is from. Returns whether the agent hears of it.
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

    /// Flow and event are those of the host, and no other.
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

/// Loads the programs, and says what was seen.
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
    // Not vacuous.
    let traces = u64::from(cases);
    assert!(seen.accepted > 4 * traces, "{seen:?}");
    if emulated() {
        // A fifth of the traces: the rarest of these may be missing.
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

/// A flow that hears nothing any more doubles its rate each second.
#[test]
fn a_flow_without_notifications_recovers() {
    kernel_test!();
    let heard = |feedback| {
        Step::Heard(Heard {
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
        heard(falls.to_word()),
        Step::Sent(1),
        heard(falls.to_word()),
    ];
    // A flow that is idle for longer starts over.
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
