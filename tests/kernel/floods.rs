//! An attacker or one endpoint floods shared tables and CPUs. Other flows stay controlled.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use ecn_core::{
    abi::{Count, TABLE_FLOWS, TABLE_RECEIVERS},
    echo::{self, Echo},
    flow::{Flow, Key},
    packet::{self, protocol},
};
use ecn_tests::{
    emulated, eventually,
    frames::Ip,
    kernel_test,
    lab::{Host, Lab},
    note,
    running::{self, Running},
    s,
    traffic::{Stream, udp},
    wire::Wire,
};
use ecn_user::{
    agent::{
        Options,
        health::{Kind, Warning},
    },
    config::{Config, Marking},
};

/// 100 Mbit/s.
const LINK: u64 = 12_500_000;
/// Rate of the port to host 1: 20 Mbit/s.
const PORT: u64 = 2_500_000;
/// `[flow] max`; a single endpoint may use half of that.
const MAX: u32 = 8192;
/// New flows per second.
const PER_S: u32 = 20_000;
const FLOOD: Duration = s(6);

/// Repeats until it is stopped.
struct Sending {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<()>,
    began: Instant,
}

impl Sending {
    /// Sends the frames that `frame` returns for each number.
    fn start(
        from: &Host,
        per_s: Option<u32>,
        frame: impl Fn(u32) -> Vec<u8> + Send + 'static,
    ) -> Self {
        let wire = Wire::open(&from.ns, from.ifindex);
        Self::repeat(per_s, move |n| wire.send(&frame(n)))
    }

    /// Repeats `send`, `per_s` or as fast as it can.
    fn repeat(per_s: Option<u32>, send: impl Fn(u32) + Send + 'static) -> Self {
        let (stop, sent) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(0)),
        );
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&sent));
        let began = Instant::now();
        let thread = std::thread::spawn(move || {
            for n in 0u32.. {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                if let Some(per_s) = per_s
                    && (per_s < 1000 || n.is_multiple_of(20))
                {
                    let due = began + s(1) * n / per_s;
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                }
                send(n);
                counted.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self {
            stop,
            sent,
            thread,
            began,
        }
    }

    /// Stops, and returns how many were sent; prints the rate.
    fn stop(self, what: &str) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the sender");
        let sent = self.sent.load(Ordering::Relaxed);
        let per_s = sent as f64 / self.began.elapsed().as_secs_f64();
        note(&format!("{sent} {what}, {per_s:.0} per second"));
        sent
    }
}

/// The controlled flow during a flood: host 0 sends to host 1, whose port is slower, and reacts to its marks.
struct Controlled {
    stream: Stream,
}

impl Controlled {
    fn start(lab: &Lab, running: &Running) -> Self {
        let stream = Stream::start(&lab.hosts[0], &lab.hosts[1], 7001, 1000);
        let controlled = Self { stream };
        let answers = || {
            let before = controlled.flow(running);
            std::thread::sleep(Duration::from_millis(500));
            before.is_some_and(|flow| flow.is_limited(LINK) && flow.marked_packets > 10)
        };
        assert!(eventually(s(10), answers), "{}", running.counts());
        // The initial queue has drained.
        std::thread::sleep(s(1));
        controlled
    }

    fn flow(&self, running: &Running) -> Option<Flow> {
        flow_from(running, 7001)
    }

    /// Runs `during`, and asserts that the flow stayed controlled: it is marked and reacts, and the port drops almost
    /// nothing. Uncontrolled, 4 of 5 packets are dropped.
    #[track_caller]
    fn goes_on<T>(&self, lab: &Lab, running: &Running, during: impl FnOnce() -> T) -> T {
        let port = || running.port(&lab.hosts[1].port);
        let flow = || self.flow(running).expect("the controlled flow");
        let (before, before_flow, received) = (port(), flow(), self.stream.received_bytes());
        let began = Instant::now();
        let result = during();
        let (after, after_flow) = (port(), flow());
        let rate = (self.stream.received_bytes() - received) as f64 / began.elapsed().as_secs_f64();
        let (arrived, dropped) = (
            after.arrived - before.arrived,
            after.dropped - before.dropped,
        );
        let marked = after_flow.marked_packets - before_flow.marked_packets;
        note(&format!(
            "{:.2} of the port, {marked} marks, {dropped} of {arrived} dropped",
            rate / PORT as f64
        ));
        assert!(after_flow.is_limited(LINK), "{after_flow:?}");
        assert!(marked > 10, "{before_flow:?} {after_flow:?}");
        assert!(dropped * 50 <= arrived, "{dropped} of {arrived} dropped");
        // The flood takes some of the CPU time.
        assert!(rate > 0.4 * PORT as f64, "{rate} bytes per second");
        result
    }
}

/// The flow from this port of host 0.
fn flow_from(running: &Running, port: u16) -> Option<Flow> {
    let flows = running.maps.flows().expect("flows");
    let is = |key: &Key| key.endpoint == 1 && key.src_port == port;
    flows.iter().find(|(key, _)| is(key)).map(|(_, flow)| *flow)
}

/// Hosts 0, 1 and 2 are endpoints of the same numbers and one more, host 3 is the attacker.
fn start(lab: &Lab, change: impl FnOnce(&mut Config)) -> Running {
    lab.limit(1, PORT, 100);
    lab.link(0, LINK);
    let mut config = running::config(lab, Marking::InputOutput);
    config.flow.max = MAX;
    change(&mut config);
    let config = running::with_endpoints(config, lab, &[0, 1, 2], LINK);
    Running::start(config, Options::default())
}

/// A flow that sends a packet every 5 ms: how many until the first echo.
#[track_caller]
fn echoed_after(running: &Running, from: &Host, to: &Host, port: u16) -> u64 {
    let _receiving = udp(to, false, port);
    let sending = udp(from, false, port);
    let mut sent = 0;
    let echoed = || {
        let at = SocketAddr::new(to.v4.into(), port);
        sending.send_to(&[7; 100], at).expect("send");
        sent += 1;
        std::thread::sleep(Duration::from_millis(5));
        flow_from(running, port).is_some_and(|flow| flow.acked_packets > 0)
    };
    assert!(eventually(s(5), echoed), "{port}: {}", running.counts());
    sent
}

/// Waits until all packets of a flow are echoed.
#[track_caller]
fn all_echoed(running: &Running, port: u16) {
    let flow = || flow_from(running, port).expect("its flow");
    let all = || flow().acked_packets == flow().sent_packets;
    assert!(eventually(s(2), all), "{:?}", flow());
}

fn warning(running: &Running, kind: Kind) -> Option<Warning> {
    let warnings = running.agent().state().warnings;
    warnings.into_iter().find(|warning| warning.kind == kind)
}

/// A different source address for each number.
fn spoofed(n: u32) -> Ipv4Addr {
    let [a, b, c, _] = n.wrapping_mul(0x9e37_79b9).to_be_bytes();
    Ipv4Addr::new(11, a, b, c)
}

#[test]
fn spoofed_sources_fill_the_receiver_table() {
    kernel_test!();
    let lab = Lab::new(4);
    let running = start(&lab, |_| {});
    let controlled = Controlled::start(&lab, &running);
    let (attacked, attacker) = (&lab.hosts[2], &lab.hosts[3]);
    // An existing flow that sends a packet every 10 ms.
    let _receiving = udp(attacked, false, 7100);
    let datagrams = udp(&lab.hosts[0], false, 7100);
    let at = SocketAddr::new(attacked.v4.into(), 7100);
    let before = Sending::repeat(Some(100), move |_| {
        datagrams.send_to(&[7; 100], at).expect("send");
    });
    std::thread::sleep(Duration::from_millis(500));
    let held = || running.maps.held(TABLE_RECEIVERS, 3).expect("entries");
    controlled.goes_on(&lab, &running, || {
        let frames = Ip::between(attacker, attacked, false);
        let to = attacked.v4;
        let flood = Sending::start(attacker, Some(PER_S), move |n| {
            let frame = frames.clone().addresses(spoofed(n), to);
            frame.udp(7000, 9, &[7; 4])
        });
        let until = Instant::now() + FLOOD;
        let full = || running.count(Count::ReceiversFull) > 0;
        assert!(eventually(s(5), full), "{}", running.counts());
        // At other endpoints: from the first packet on.
        let other = echoed_after(&running, &lab.hosts[0], &lab.hosts[1], 7200);
        all_echoed(&running, 7200);
        // At the attacked endpoint: after an eviction.
        let new = echoed_after(&running, &lab.hosts[0], attacked, 7300);
        note(&format!(
            "echoed from packet {other} on elsewhere, from {new} on here"
        ));
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(100));
            assert!(held() <= u64::from(MAX) / 2 + 4, "{} entries", held());
        }
        let reported = || warning(&running, Kind::ReceiverTableFull);
        assert!(
            eventually(s(5), || reported().is_some()),
            "{}",
            running.counts()
        );
        let warning = reported().expect("reported a moment ago");
        assert_eq!(warning.subject.netns, attacked.ns.name(), "{warning}");
        flood.stop("spoofed sources");
    });
    // The existing flow has lost no count.
    let sent = before.stop("packets of a flow that was there before");
    all_echoed(&running, 7100);
    let flow = flow_from(&running, 7100).expect("its flow");
    assert_eq!((flow.sent_packets, flow.echo.offset), (sent, 0), "{flow:?}");
}

#[test]
fn one_endpoint_fills_the_flow_table() {
    kernel_test!();
    let lab = Lab::new(4);
    let running = start(&lab, |_| {});
    let controlled = Controlled::start(&lab, &running);
    let (hog, to) = (&lab.hosts[2], &lab.hosts[3]);
    let held = || running.maps.held(TABLE_FLOWS, 3).expect("entries");
    controlled.goes_on(&lab, &running, || {
        let frames = Ip::between(hog, to, false).ecn(packet::NOT_ECT);
        let flood = Sending::start(hog, Some(PER_S), move |n| {
            let (from, to) = (1024 + n % 50_000, 1 + n / 50_000);
            frames.udp(from as u16, to as u16, &[7; 4])
        });
        let until = Instant::now() + FLOOD;
        let full = || running.count(Count::FlowsFull) > 0;
        assert!(eventually(s(5), full), "{}", running.counts());
        echoed_after(&running, &lab.hosts[0], &lab.hosts[1], 7200);
        all_echoed(&running, 7200);
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(100));
            assert!(held() <= u64::from(MAX) / 2 + 4, "{} entries", held());
        }
        let reported = || warning(&running, Kind::FlowTableFull);
        assert!(
            eventually(s(5), || reported().is_some()),
            "{}",
            running.counts()
        );
        let warning = reported().expect("reported a moment ago");
        assert_eq!(warning.subject.netns, hog.ns.name(), "{warning}");
        flood.stop("flows");
    });
}

/// Echoes as fast as the machine can send them: for the controlled flow if there is a key, else for other flows.
#[test]
fn echoes_at_the_speed_of_the_machine() {
    kernel_test!();
    for signed in [true, false] {
        let lab = Lab::new(4);
        let running = start(&lab, |config| {
            config.echo.key = signed.then(|| "5a".repeat(16).try_into().expect("32 digits"));
        });
        let controlled = Controlled::start(&lab, &running);
        let (from, to, attacker) = (&lab.hosts[0], &lab.hosts[1], &lab.hosts[3]);
        let attacked = if signed { 7001 } else { 7200 };
        echoed_after(&running, from, to, 7200);
        controlled.goes_on(&lab, &running, || {
            let frames = Ip::between(attacker, from, false)
                .addresses(to.v4, from.v4)
                .ecn(packet::NOT_ECT);
            let flood = Sending::start(attacker, None, move |n| {
                let e = Echo {
                    protocol: protocol::UDP,
                    // For an existing flow, and for many unknown ones.
                    src_port: if n % 2 == 0 {
                        attacked
                    } else {
                        10_000 + n as u16 % 10_000
                    },
                    dst_port: attacked,
                    packets: n,
                    ce: n,
                    sequence: n as u16,
                    headroom: echo::Headroom::Unknown,
                    signed,
                };
                let tag = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let tag = tag.to_be_bytes();
                let tag = if signed { &tag[..] } else { &[] };
                frames.with(echo::PROTOCOL, &[&e.to_bytes()[..], tag].concat())
            });
            std::thread::sleep(FLOOD);
            let sent = flood.stop("forged echoes");
            let enough = if emulated() { 1_000 } else { 100_000 };
            assert!(sent > enough, "only {sent} echoes");
        });
        let refused = if signed {
            running.count(Count::EchoForged)
        } else {
            running.count(Count::EchoUnknown)
        };
        assert!(refused > 100, "{}", running.counts());
        if signed {
            let (accepted, sent) = (
                running.count(Count::EchoAccepted),
                running.count(Count::EchoSent),
            );
            assert!(accepted <= sent, "{accepted} of {sent} echoes accepted");
        }
    }
}
