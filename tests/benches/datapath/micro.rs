//! Programs by `BPF_PROG_TEST_RUN`, alternating with an empty one.

use std::net::Ipv4Addr;

use ecn_core::{
    abi::{self, Count, Device, DeviceKey, PortEventKind, name},
    backward::{self, Feedback, Kind, Message},
    bcn,
    echo::{self, Echo},
    marking::{MarkAt, Marking, Policy},
    packet::{self, protocol},
    qcn, reaction,
    response::{self, Function},
    shares::ShareBy,
};
use ecn_tests::{frames::Ip, lab::Lab, running::pin};
use ecn_user::{
    datapath::{Copy, Datapath, Maps, Sizes, TestPacket},
    net::Link,
};
use serde_json::{Value, json};

use super::{median, quick, tenth};

/// The program with which all others are compared.
pub const EMPTY: &str = name::EMPTY;
/// Repetitions, and runs in each: short, so that other load on the machine affects only some of them.
const TURNS: usize = 400;
const REPEAT: u32 = 1_000;
/// Single runs, for cases that change with each packet.
const SINGLE: usize = 4_000;
/// The endpoint.
const ENDPOINT: u32 = 1;
/// 10 Gbit/s.
const LINK: u64 = 1_250_000_000;

/// A program on some packet.
pub struct Row {
    pub program: &'static str,
    pub case: &'static str,
    /// Of the fastest tenth of the repetitions, which nothing has disturbed.
    pub ns: f64,
    pub over_ns: f64,
    /// The same of the median.
    pub median_over_ns: f64,
    pub instructions: u32,
}

impl Row {
    pub fn json(&self) -> Value {
        json!({
            "program": self.program, "packet": self.case, "ns": tenth(self.ns),
            "over_empty_ns": tenth(self.over_ns),
            "median_over_empty_ns": tenth(self.median_over_ns), "instructions": self.instructions,
        })
    }
}

/// A packet that a program is run on.
struct Case {
    program: &'static str,
    case: &'static str,
    ifindex: u32,
    frame: Vec<u8>,
    cb: [u32; 2],
    /// Whether runs change what they read: each is measured by itself, with a frame of its own.
    single: Option<fn(u32) -> Vec<u8>>,
    /// The phase in which it is measured, if single.
    phase: Phase,
    /// `skb->mark`.
    mark: u32,
}

/// Configuration of the endpoint while single cases are measured.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    /// It echoes.
    Echo,
    /// It signs echoes.
    Signed,
    /// It expects messages of ports, not signed.
    Backward,
    /// The same, with QCN: reactions to it would change those to the other messages.
    Quantised,
}

/// Programs loaded once, on devices of the calling thread's namespace.
pub struct Loaded {
    pub datapath: Datapath,
    pub copy: Copy,
    pub maps: Maps,
    netns: u32,
}

impl Loaded {
    pub fn new(netns: u32, sizes: Sizes) -> Self {
        let mut datapath = Datapath::open(&pin(), sizes).expect("load");
        datapath.load_endpoints().expect("load");
        datapath.load_backward().expect("load");
        datapath.load_messages().expect("load");
        datapath.load_sampling().expect("load");
        let mut maps = datapath.maps().expect("maps");
        let control = abi::Control {
            abi: abi::ABI,
            flags: 0,
            valid_until_ns: u64::MAX,
            held_from_ns: u64::MAX,
        };
        maps.set_control(control).expect("control");
        let endpoint = abi::Endpoint {
            flags: abi::CONTROL_FLOWS | abi::OBSERVE | abi::ECHO,
            link_bytes_per_s: LINK,
            response: response::Policy::hp(Function::Lipd),
            reaction: reaction::Policy {
                bcn: bcn::Policy::new(&bcn::Gains::defaults(LINK)).expect("gains"),
                qcn: qcn::Policy {
                    line_bytes_per_s: LINK,
                    min_bytes_per_s: LINK / 2_000,
                    decrease: (1 << 32) / 128,
                    min_decrease: 1 << 31,
                    volume_bytes: 75_000,
                    volume_time: 0,
                    stage_time: 150_000_000,
                    active_bytes_per_s: LINK / 2_000,
                    hyper_bytes_per_s: LINK / 200,
                    stages: 5,
                    clamp_target: 0,
                },
            },
            echo: echo::Policy {
                // No echo is due while the receiver is measured: echoes are separate packets.
                every_ns: u64::MAX >> 1,
                protocol: echo::PROTOCOL.into(),
                ..echo::Policy::default()
            },
            ..abi::Endpoint::default()
        };
        maps.set_endpoint(ENDPOINT, endpoint).expect("an endpoint");
        Self {
            copy: datapath.copy(netns, ENDPOINT).expect("a copy"),
            datapath,
            maps,
            netns,
        }
    }

    pub fn device(&mut self, ifindex: u32, device: Device) {
        let key = DeviceKey {
            netns: self.netns,
            ifindex,
        };
        self.maps.set_device(key, device).expect("a device");
    }

    fn port(&mut self, ifindex: u32, bridge: u32, port: u32) {
        let device = Device {
            role: abi::ROLE_PORT | abi::ROLE_WIRE_END,
            bridge,
            port,
            wire_bridge: bridge,
            wire_port: port,
            ..Device::default()
        };
        self.device(ifindex, device);
    }

    fn begin(&mut self, phase: Phase) {
        let mut endpoint = self.maps.endpoint(ENDPOINT).expect("an endpoint");
        match phase {
            Phase::Echo | Phase::Quantised => {}
            Phase::Signed => {
                endpoint.echo.auth = echo::SIGN;
                endpoint.echo.keys[0] = KEY;
            }
            Phase::Backward => {
                endpoint.echo.auth = 0;
                endpoint.flags |= abi::BACKWARD;
            }
        }
        self.maps.set_endpoint(ENDPOINT, endpoint).expect("flags");
    }

    /// A port of a bridge samples its queue, as BCN does by default, and finds it short.
    fn sampled_port(&mut self, ifindex: u32, bridge: u32) {
        let device = Device {
            role: abi::ROLE_PORT | abi::ROLE_SAMPLES,
            bridge,
            port: 1,
            ..Device::default()
        };
        self.device(ifindex, device);
        let policy = backward::Policy {
            sampling: backward::Sampling {
                kind: Kind::Bcn as u32,
                equilibrium_bytes: u32::MAX,
                packet_bytes: 1,
                interval: 90,
                jitter: (1 << 32) - 1,
                ..backward::Sampling::default()
            },
            ..backward::Policy::new(Feedback::Backward, backward::MESSAGES_PER_S)
        };
        self.maps.set_backward(bridge, policy).expect("a policy");
    }

    fn policy(&mut self, bridge: u32, mark_at: MarkAt, buffer: u32, threshold: u32) {
        let policy = Policy {
            marking: Marking::InputOutput as u32,
            mark_at: mark_at as u32,
            buffer,
            threshold,
            ports: 9,
            shares: ShareBy::Source as u32,
            drop_threshold: 2 * threshold,
            _pad: 0,
        };
        self.maps.set_marking(bridge, policy).expect("a policy");
    }

    /// Nanoseconds of a run.
    pub fn run(&mut self, program: &str, packet: &TestPacket<'_>, repeat: u32) -> f64 {
        let verdict = self.copy.test_run(program, packet, repeat).expect("run");
        verdict.time.as_nanos() as f64
    }
}

fn data() -> Ip {
    Ip::of([10, 77, 0, 1], [10, 77, 0, 2])
}

fn udp(ip: &Ip) -> Vec<u8> {
    ip.udp(1, 2, &[7; 1400])
}

/// A data segment.
fn tcp(ip: &Ip) -> Vec<u8> {
    segment(ip, [1, 2], 0x10, 1400)
}

/// Its checksum is not read.
fn segment(ip: &Ip, [from, to]: [u8; 2], flags: u8, payload: usize) -> Vec<u8> {
    let mut segment = vec![0; 20 + payload];
    segment[..4].copy_from_slice(&[0, from, 0, to]);
    (segment[12], segment[13]) = (0x50, flags);
    ip.with(protocol::TCP, &segment)
}

fn fresh_udp(_: u32) -> Vec<u8> {
    udp(&data().ecn(packet::NOT_ECT))
}

fn fresh_tcp(number: u32) -> Vec<u8> {
    let mut frame = tcp(&data().ecn(packet::NOT_ECT));
    // New data each time.
    let sequence = 1400 * number;
    frame[14 + 20 + 4..][..4].copy_from_slice(&sequence.to_be_bytes());
    frame
}

/// Addressed to a device, which otherwise drops the frame.
fn to_mac(frame: &mut [u8], mac: [u8; 6]) {
    frame[..6].copy_from_slice(&mac);
}

/// The direction of signed echoes.
const KEY: [u64; 2] = [7, 9];

fn back() -> Ip {
    Ip::of([10, 77, 0, 2], [10, 77, 0, 1])
}

fn next_echo(number: u32) -> Vec<u8> {
    back().echo(&echo(number))
}

fn next_signed(number: u32) -> Vec<u8> {
    let echo = Echo {
        signed: true,
        ..echo(number + SINGLE as u32)
    };
    let [from, to] = [2, 1].map(|last| Ipv4Addr::new(10, 77, 0, last).to_ipv6_mapped().octets());
    let tag = echo.tag(KEY, &from, &to).to_be_bytes();
    let payload = [&echo.to_bytes()[..], &tag].concat();
    back().ecn(packet::NOT_ECT).with(echo::PROTOCOL, &payload)
}

fn echo(number: u32) -> Echo {
    Echo {
        protocol: protocol::UDP,
        src_port: 1,
        dst_port: 2,
        packets: number + 1,
        // Every tenth packet was marked.
        ce: number / 10,
        sequence: number as u16 + 1,
        ..Echo::default()
    }
}

/// A port's message about the packet that was just sent, or will be sent again.
fn message(kind: Kind, point: u64, number: u32, feedback: u32) -> Vec<u8> {
    let quoted = fresh_udp(0);
    let header = u32::from_be_bytes([quoted[16], quoted[17], quoted[18], quoted[19]]);
    let message = Message {
        protocol: protocol::UDP,
        src_port: 1,
        dst_port: 2,
        quote: backward::fingerprint(header, [7; 8]),
        sequence: number + 1,
        kind: kind as u8,
        feedback,
        point,
        ..Message::default()
    };
    let ip = back().ecn(packet::NOT_ECT).ttl(backward::TTL);
    ip.with(echo::PROTOCOL, &message.to_bytes())
}

fn next_message(number: u32) -> Vec<u8> {
    message(Kind::Marks, 1 << 8, number, 1)
}

fn next_notification(number: u32) -> Vec<u8> {
    let feedback = bcn::Feedback {
        offset_bytes: -1_500,
        delta_bytes: 0,
    };
    message(Kind::Bcn, 2 << 8, number, feedback.to_word())
}

fn next_quantised(number: u32) -> Vec<u8> {
    message(Kind::Qcn, 3 << 8, number, qcn::MAX_FEEDBACK / 4)
}

/// The cases; devices are three pairs of ports on bridges of different policies, an endpoint, and a port that is sampled.
fn cases(devices: &[u32]) -> Vec<Case> {
    let v4 = udp(&data());
    let v6 = udp(&Ip::of(
        [0xfd77u16, 0, 0, 0, 0, 0, 0, 1],
        [0xfd77u16, 0, 0, 0, 0, 0, 0, 2],
    ));
    let tcp4 = tcp(&data());
    let depart = [PortEventKind::Dequeue as u32, 1];
    let lost = [PortEventKind::Drop as u32, 0];
    let none = [0; 2];
    let case = |program, case, device: usize, frame: &Vec<u8>, cb| Case {
        program,
        case,
        ifindex: devices[device],
        frame: frame.clone(),
        cb,
        single: None,
        phase: Phase::Echo,
        mark: 0,
    };
    let single = |program, name, frame| Case {
        single: Some(frame),
        ..case(program, name, 4, &v4, none)
    };
    // A clone of a received packet, on its way back.
    let sent = |name, phase| Case {
        phase,
        mark: 0xec0e_ec0e,
        ..single(name::ENDPOINT_OUT, name, fresh_udp)
    };
    let backward = |program, name, frame| Case {
        phase: Phase::Backward,
        ..single(program, name, frame)
    };
    vec![
        case(name::EMPTY, "", 0, &v4, none),
        case(name::PORT_OUT, "counted", 0, &v4, none),
        case(name::PORT_OUT, "counted, IPv6", 0, &v6, none),
        case(name::PORT_OUT, "marked, output trigger", 1, &v4, none),
        case(name::PORT_OUT, "marked, full buffer, 8 ports", 2, &v4, none),
        case(name::WIRE_END, "not its turn", 0, &v4, none),
        case(name::WIRE_END, "marked", 3, &v4, none),
        case(
            name::PORT_REPLAY,
            "departure, behind the skb",
            0,
            &v4,
            depart,
        ),
        case(name::PORT_REPLAY, "drop, behind the skb", 0, &v4, lost),
        case(name::ENDPOINT_OUT, "UDP, flow-table hit", 4, &v4, none),
        case(name::ENDPOINT_IN, "UDP, flow-table hit", 4, &v4, none),
        case(name::ENDPOINT_IN, "UDP IPv6, flow-table hit", 4, &v6, none),
        case(name::ENDPOINT_OUT, "TCP, flow-table hit", 4, &tcp4, none),
        case(name::ENDPOINT_IN, "TCP, flow-table hit", 4, &tcp4, none),
        single(name::ENDPOINT_OUT, "UDP made ECT, one by one", fresh_udp),
        single(name::ENDPOINT_OUT, "TCP made ECT, one by one", fresh_tcp),
        single(name::ENDPOINT_IN, "echo, response, one by one", next_echo),
        sent("echo made, one by one", Phase::Echo),
        sent("echo made and signed, one by one", Phase::Signed),
        Case {
            phase: Phase::Signed,
            ..single(
                name::ENDPOINT_IN,
                "signed echo, response, one by one",
                next_signed,
            )
        },
        case(name::PORT_OUT, "counted, BCN samples 1 of 90", 5, &v4, none),
        Case {
            phase: Phase::Backward,
            ifindex: devices[5],
            // As the port leaves it in a clone.
            cb: [0, 4 * abi::PORTS as u32 + 1],
            mark: 0xec0e_bac0,
            ..single(name::PORT_OUT, "message made, one by one", fresh_udp)
        },
        backward(name::ENDPOINT_OUT, "UDP remembered, one by one", fresh_udp),
        backward(
            name::ENDPOINT_IN,
            "message of a mark, response, one by one",
            next_message,
        ),
        backward(
            name::ENDPOINT_IN,
            "BCN notification, reaction, one by one",
            next_notification,
        ),
        Case {
            phase: Phase::Quantised,
            ..single(
                name::ENDPOINT_IN,
                "QCN notification, reaction, one by one",
                next_quantised,
            )
        },
    ]
}

/// Asserts that the measured paths were taken, by their counters.
fn check(maps: &Maps) {
    let received = maps.receivers().expect("receivers");
    let counts = received.iter().map(|(_, r)| r.packets);
    let counts: Vec<u64> = counts.filter(|&packets| packets != 0).collect();
    let ran = (TURNS as u64 + 1) * u64::from(REPEAT);
    assert_eq!(counts, [ran; 3], "packets of three flows received");
    let acked: u64 = maps
        .flows()
        .expect("flows")
        .iter()
        .map(|(_, flow)| flow.acked_packets)
        .sum();
    assert_eq!(
        acked,
        3 * SINGLE as u64,
        "packets reported by echoes and messages"
    );
    let count = |what| maps.count(what).expect("a counter");
    assert_eq!(count(Count::EchoAccepted), 2 * SINGLE as u64);
    assert_eq!(count(Count::EchoSent), 2 * SINGLE as u64);
    assert_eq!(count(Count::MessageSent), SINGLE as u64);
    assert_eq!(count(Count::MessageAccepted), 3 * SINGLE as u64);
}

/// All programs with all packets.
pub fn runs() -> Vec<Row> {
    let lab = Lab::new(0);
    let add = |n| lab.nl.add_bridge(&format!("port{n}")).expect("a device");
    let devices: Vec<Link> = (0..6).map(add).collect();
    lab.switch.run(|| measure(lab.switch.inum(), &devices))
}

fn measure(netns: u32, links: &[Link]) -> Vec<Row> {
    let devices: Vec<u32> = links.iter().map(|link| link.index).collect();
    let sizes = Sizes {
        bridges: 5,
        flows: abi::FLOWS,
    };
    let mut loaded = Loaded::new(netns, sizes);
    for (bridge, &ifindex) in (0..4).zip(&devices) {
        loaded.port(ifindex, bridge, 1);
    }
    loaded.sampled_port(devices[5], 4);
    loaded.policy(0, MarkAt::Arrival, u32::MAX, u32::MAX);
    loaded.policy(1, MarkAt::Arrival, u32::MAX, 1);
    loaded.policy(2, MarkAt::Arrival, 1, 1);
    loaded.policy(3, MarkAt::Departure, u32::MAX, 1);
    loaded.policy(4, MarkAt::Arrival, u32::MAX, u32::MAX);
    for class in abi::FIRST_CLASS..abi::FIRST_CLASS + 16 {
        loaded.maps.offer_class(class);
    }
    let mut cases = cases(&devices);
    let endpoint = links[4].mac.expect("a bridge's address");
    for case in &mut cases {
        to_mac(&mut case.frame, endpoint);
    }
    prepare(&mut loaded, &devices, endpoint);
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); cases.len()];
    repeat(&mut loaded, &cases, devices[0], &mut times);
    let empty_singly = singly(&mut loaded, &cases, endpoint, &mut times);
    check(&loaded.maps);
    let empty = times[0].clone();
    let verified = loaded.datapath.verify().expect("verify");
    let instructions = |program: &str| {
        let behind = match program {
            name::ENDPOINT_OUT => name::FLOW_OUT,
            name::ENDPOINT_IN => name::FLOW_IN,
            other => other,
        };
        let of = |name: &str| {
            verified
                .iter()
                .find(|v| v.program == name)
                .map_or(0, |v| v.instructions)
        };
        if behind == program {
            of(program)
        } else {
            of(program) + of(behind)
        }
    };
    let row = |(case, times): (&Case, Vec<f64>)| {
        let empty = if case.single.is_some() {
            &empty_singly
        } else {
            &empty
        };
        let ns = quick(times.clone());
        Row {
            program: case.program,
            case: case.case,
            ns,
            over_ns: ns - quick(empty.clone()),
            median_over_ns: median(times) - median(empty.clone()),
            instructions: instructions(case.program),
        }
    };
    cases.iter().zip(times).map(row).collect()
}

/// Creates marks that are pending at the wire's end, and sets up connections.
fn prepare(loaded: &mut Loaded, devices: &[u32], endpoint: [u8; 6]) {
    // Departures with marks, which are set at the wire's end: enough for all repetitions.
    let frame = udp(&data());
    let at = |cb| TestPacket {
        frame: &frame,
        ifindex: devices[3],
        cb,
        ..TestPacket::default()
    };
    let owed = REPEAT * (TURNS as u32 + 2);
    loaded.run(name::PORT_OUT, &at([0; 2]), owed);
    let depart = [PortEventKind::Dequeue as u32, u32::MAX];
    loaded.run(name::PORT_REPLAY, &at(depart), owed);

    // TCP's handshake, both ways: connections that did not negotiate ECN.
    let back = Ip::of([10, 77, 0, 2], [10, 77, 0, 1]);
    for (ip, ports) in [(data(), [1, 2]), (back, [2, 1])] {
        let mut frame = segment(&ip, ports, 0x12, 0);
        to_mac(&mut frame, endpoint);
        let packet = TestPacket {
            frame: &frame,
            ifindex: devices[4],
            ..TestPacket::default()
        };
        loaded.run(name::ENDPOINT_IN, &packet, 1);
    }
}

/// Measures each packet's program over many runs, alternating.
fn repeat(loaded: &mut Loaded, cases: &[Case], from: u32, times: &mut [Vec<f64>]) {
    for turn in 0..=TURNS {
        for (case, times) in cases.iter().zip(times.iter_mut()) {
            if case.single.is_some() {
                continue;
            }
            let packet = TestPacket {
                frame: &case.frame,
                ifindex: case.ifindex,
                ingress_ifindex: from,
                cb: case.cb,
                ..TestPacket::default()
            };
            let ns = loaded.run(case.program, &packet, REPEAT);
            // The first warms up.
            if turn > 0 {
                times.push(ns);
            }
        }
    }
}

/// Measures packets that are each the first of their flow. Returns the empty program's time for each of them.
fn singly(
    loaded: &mut Loaded,
    cases: &[Case],
    endpoint: [u8; 6],
    times: &mut [Vec<f64>],
) -> Vec<f64> {
    let mut empty_singly = Vec::new();
    for (phase, number) in [
        Phase::Echo,
        Phase::Signed,
        Phase::Backward,
        Phase::Quantised,
    ]
    .into_iter()
    .flat_map(|phase| (0..SINGLE as u32).map(move |number| (phase, number)))
    {
        if number == 0 {
            loaded.begin(phase);
        }
        for (case, times) in cases.iter().zip(times.iter_mut()) {
            let Some(frame) = case.single.filter(|_| case.phase == phase) else {
                continue;
            };
            let mut one = |program, frame: &[u8]| {
                let packet = TestPacket {
                    frame,
                    ifindex: case.ifindex,
                    ingress_ifindex: if case.mark == 0 { 0 } else { case.ifindex },
                    mark: case.mark,
                    cb: case.cb,
                    ..TestPacket::default()
                };
                loaded.run(program, &packet, 1)
            };
            let mut frame = frame(number);
            to_mac(&mut frame, endpoint);
            empty_singly.push(one(name::EMPTY, &frame));
            times.push(one(case.program, &frame));
        }
    }
    empty_singly
}
