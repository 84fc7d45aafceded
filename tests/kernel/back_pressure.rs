//! Back-pressure on the sockets of limited flows: excess is refused, or a small send buffer blocks.

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use ecn_core::flow::{self, Key};
use ecn_tests::{
    eventually, kernel_test,
    lab::Lab,
    running::{self, Running},
    s,
    traffic::{self, Stream},
};
use ecn_user::{agent::Options, config::Marking};
use nix::{
    errno::Errno,
    sys::socket::{setsockopt, sockopt},
};

const MBIT: u64 = 125_000;
const LINK: u64 = 100 * MBIT;
const PAYLOAD: usize = 1000;

/// A UDP socket whose flow is limited to 1 Mbit/s, by fq where the kernel has it and else by HTB.
struct Limited {
    sending: UdpSocket,
    receiving: UdpSocket,
    target: SocketAddr,
    /// Packets that the kernel accepted.
    accepted: u64,
    // Before the lab, which it refers to.
    running: Running,
    _lab: Lab,
}

impl Limited {
    fn new(send_buffer: usize) -> Self {
        let lab = Lab::new(2);
        let config = running::config(&lab, Marking::None);
        let config = running::with_endpoints(config, &lab, &[0, 1], LINK);
        let running = Running::start(config, Options::default());
        let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
        let sending = traffic::udp(from, false, 7001);
        setsockopt(&sending, sockopt::SndBufForce, &send_buffer).expect("send buffer");
        // Without this, UDP does not report drops by a queue.
        setsockopt(&sending, sockopt::Ipv4RecvErr, &true).expect("IP_RECVERR");
        let receiving = traffic::udp(to, false, 7001);
        setsockopt(&receiving, sockopt::RcvBufForce, &(8 << 20)).expect("receive buffer");
        let mut limited = Self {
            target: SocketAddr::new(to.address(false), 7001),
            sending,
            receiving,
            accepted: 0,
            running,
            _lab: lab,
        };
        limited.hold();
        limited
    }

    fn hold(&mut self) {
        let of_it = |key: &Key| key.endpoint == 1 && key.dst_port == 7001;
        self.send().expect("send");
        let (key, _) = self.running.flow(of_it);
        self.running.maps.set_pin(&key, MBIT).expect("pin");
        let limited = || {
            let (_, flow) = self.running.flow(of_it);
            flow.class != 0 || self.root() == "fq"
        };
        assert!(eventually(s(5), limited), "the flow is not limited");
    }

    fn root(&self) -> String {
        let host = &self._lab.hosts[0];
        let root = host.nl.root_qdisc(host.ifindex).expect("qdiscs");
        root.map(|root| root.kind).unwrap_or_default()
    }

    fn send(&mut self) -> std::io::Result<()> {
        self.sending.send_to(&[3; PAYLOAD], self.target)?;
        self.accepted += 1;
        Ok(())
    }

    /// Number of received packets, until no more arrive.
    fn received(&self) -> u64 {
        let timeout = Some(s(2));
        self.receiving.set_read_timeout(timeout).expect("timeout");
        let mut buffer = [0; PAYLOAD];
        (0..)
            .take_while(|_| self.receiving.recv(&mut buffer).is_ok())
            .count() as u64
    }
}

/// No silent loss: accepted packets arrive, and all others fail with `ENOBUFS`.
#[test]
fn a_full_queue_returns_enobufs() {
    kernel_test!();
    let mut limited = Limited::new(4 << 20);
    let start = Instant::now();
    let mut refused = 0;
    while start.elapsed() < s(1) {
        match limited.send() {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(Errno::ENOBUFS as i32), "{error}");
                refused += 1;
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
    assert!(refused > 100, "{refused} of {}", limited.accepted);
    assert_eq!(limited.received(), limited.accepted, "{refused} refused");
}

/// A send buffer shorter than the flow's queue blocks the sender, and nothing is dropped.
#[test]
fn a_small_send_buffer_waits() {
    kernel_test!();
    let mut limited = Limited::new(8 << 10);
    let start = Instant::now();
    for _ in 0..100 {
        limited.send().expect("room, after a while");
    }
    // .83 s at the flow's rate, less the packets that are still queued.
    assert!(start.elapsed() > Duration::from_millis(650));
    assert_eq!(limited.received(), limited.accepted);
    // A non-blocking socket does not wait.
    limited.sending.set_nonblocking(true).expect("fcntl");
    let full = (0..100).find_map(|_| limited.send().err());
    assert_eq!(full.map(|e| e.kind()), Some(ErrorKind::WouldBlock));
}

/// Short flows share one rate. A longer flow leaves their class, even if its receiver never echoes.
#[test]
fn a_long_flow_without_echoes_is_not_limited_with_short_flows() {
    kernel_test!();
    let lab = Lab::new(3);
    lab.limit(1, MBIT, 100);
    let config = running::config(&lab, Marking::InputOutput);
    let config = running::with_endpoints(config, &lab, &[0, 1], LINK);
    let running = Running::start(config, Options::default());
    let rate_of_short = || {
        let together = running.maps.flow(&Key::short(1));
        together.map_or(0, |flow| flow.rate_bytes_per_s)
    };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let target = SocketAddr::new(lab.hosts[1].address(false), 7001);
            let _receiving = traffic::udp(&lab.hosts[1], false, 7001);
            for port in (10_000..30_000).cycle() {
                let sending = traffic::udp(&lab.hosts[0], false, port);
                for _ in 0..16 {
                    let _ = sending.send_to(&[3; PAYLOAD], target);
                }
                std::thread::sleep(Duration::from_millis(20));
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let held = || (1..10 * MBIT).contains(&rate_of_short());
        let limited = eventually(s(20), held);
        let silent = Stream::start(&lab.hosts[0], &lab.hosts[2], 7002, PAYLOAD);
        std::thread::sleep(2 * Duration::from_nanos(flow::NO_FEEDBACK_NS));
        let (rate, short) = (silent.rate(s(1)), rate_of_short());
        stop.store(true, Ordering::Relaxed);
        assert!(limited && short > 0, "short flows were not limited");
        assert!(rate > 2.0 * short as f64, "{rate} beside {short}");
    });
}
