use super::*;
use crate::net::testing::{TempNs, require_root};
use crate::net::{ClassStats, VethEnd};
use crate::rig::pm_qos::AwakeCpus;
use nix::sys::socket::{SetSockOpt, sockopt};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FRAME: u32 = 2068;
const LINK: u64 = 12_500_000;
const FLOW: u16 = FIRST_FLOW_MINOR;
/// Some 50 frames: enough for a sender that waits for a busy processor, less than the queue holds.
const SOCKET_BUFFER: usize = 128 << 10;

/// Two namespaces and a veth with the layout at one end.
struct Pair {
    source: TempNs,
    _sink: TempNs,
    nl: Netlink,
    htb: EndpointHtb,
    _awake: Option<AwakeCpus>,
}

/// Stops the senders when dropped.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Pair {
    fn new() -> Self {
        let (source, sink) = (TempNs::new("src"), TempNs::new("snk"));
        let nl = Netlink::open(&source).expect("open");
        let far = Netlink::open(&sink).expect("open");
        let end = |mac| VethEnd {
            name: "eth0",
            mac: Some([2, 0, 0, 0, 0, mac]),
            gso_max_segs: None,
        };
        let link = nl
            .add_veth(&end(1), &end(2), &sink, FRAME - 14)
            .expect("veth");
        let far_link = far.link("eth0").expect("eth0");
        for (nl, link, own, other) in [(&nl, &link, 1, 2), (&far, &far_link, 2, 1)] {
            nl.add_address(link.index, IpAddr::from([10, 83, 0, own]), 24)
                .expect("address");
            nl.set_up(link.index).expect("up");
            let neighbour = (IpAddr::from([10, 83, 0, other]), [2, 0, 0, 0, 0, other]);
            nl.add_neighbours(link.index, &[neighbour])
                .expect("neighbour");
        }
        let htb = EndpointHtb {
            ifindex: link.index,
            link_bytes_per_s: LINK,
            frame_bytes: FRAME,
        };
        htb.install_link(&nl, 100).expect("install");
        Self {
            source,
            _sink: sink,
            nl,
            htb,
            _awake: AwakeCpus::request(),
        }
    }

    fn class(&self, minor: u16) -> ClassStats {
        let all = self.nl.class_stats(self.htb.ifindex).expect("stats");
        let expected = EndpointHtb::flow_classid(minor);
        all.into_iter()
            .find(|class| class.classid == expected)
            .expect("the class")
    }

    /// Runs `f` while greedy senders fill these classes.
    fn with_senders<T>(&self, minors: &[u16], f: impl FnOnce() -> T) -> T {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Even if the body panics: the scope waits for its threads.
            let stopper = StopOnDrop(&stop);
            for &minor in minors {
                let socket = self
                    .source
                    .run(|| UdpSocket::bind("0.0.0.0:0"))
                    .expect("bind");
                socket.connect("10.83.0.2:9").expect("connect");
                let timeout = Some(Duration::from_millis(50));
                socket.set_write_timeout(timeout).expect("timeout");
                sockopt::SndBuf
                    .set(&socket, &SOCKET_BUFFER)
                    .expect("buffer");
                let class = EndpointHtb::flow_classid(minor) as i32;
                sockopt::Priority
                    .set(&socket.as_fd(), &class)
                    .expect("priority");
                let stop = &stop;
                scope.spawn(move || {
                    let payload = [0; (FRAME - 42) as usize];
                    while !stop.load(Ordering::Relaxed) {
                        let _ = socket.send(&payload); // refused: nobody listens at port 9
                    }
                });
            }
            let value = f();
            drop(stopper);
            value
        })
    }

    /// Rates at which these classes send, bytes per second, over at least two seconds.
    fn rates(&self, minors: &[u16]) -> Vec<f64> {
        std::thread::sleep(Duration::from_millis(300));
        let read = || {
            minors
                .iter()
                .map(|minor| self.class(*minor).bytes)
                .collect::<Vec<_>>()
        };
        let (start, before) = (Instant::now(), read());
        std::thread::sleep(Duration::from_millis(2100));
        let (after, seconds) = (read(), start.elapsed().as_secs_f64());
        after
            .iter()
            .zip(before)
            .map(|(after, before)| (after - before) as f64 / seconds)
            .collect()
    }
}

/// Share of its rate that a class must reach: on a busy machine some timers are later than its burst makes up for.
const REACHED: std::ops::Range<f64> = 0.9..1.03;

#[test]
fn burst_times_count_64_ns() {
    // One 2068-byte frame at 100 Mbit/s takes 165.44 us.
    assert_eq!(ticks(2068, 12_500_000), 165_440 / 64 + 1);
    assert_eq!(ticks(2068, 0), u32::MAX);
    assert_eq!(ticks(1, u64::MAX), 1);
}

#[test]
fn the_layout_of_a_class_message() {
    let rate = HtbRate::borrowing(1000, 5_000_000_000, FRAME);
    let payload = class_payload(7, classid(0xec0e, 0x10), classid(0xec0e, 1), &rate);
    assert_eq!(u32_at(&payload, 4), Some(7));
    assert_eq!(u32_at(&payload, 8), Some(0xec0e_0010));
    assert_eq!(u32_at(&payload, 12), Some(0xec0e_0001));
    let attrs: Vec<_> = wire::attributes_after(&payload, 20).collect();
    assert_eq!(attrs[0], (TCA_KIND, &b"htb\0"[..]));
    assert_eq!(attrs[1].0, TCA_OPTIONS);
    assert_eq!(parse_rates(attrs[1].1), Some((1000, 5_000_000_000)));
    let inner: Vec<_> = wire::attributes(attrs[1].1)
        .map(|(k, v)| (k, v.len()))
        .collect();
    assert_eq!(
        inner,
        [
            (TCA_HTB_PARMS, PARMS),
            (TCA_HTB_RATE64, 8),
            (TCA_HTB_CEIL64, 8)
        ]
    );
}

#[test]
fn a_flow_gets_its_rate() {
    require_root!();
    let pair = Pair::new();
    pair.htb
        .add_flow_class(&pair.nl, FLOW, 125_000)
        .expect("class");
    let mut socket = ClassSocket::open(&pair.source).expect("socket");
    let mut batch = ClassBatch::new();
    // More than the socket's buffer: the class always has packets, even if its sender waits for a processor.
    pair.htb.set_flow_leaf(&mut batch, FLOW, 100 * FRAME);
    assert_eq!(batch.send(&mut socket).expect("send"), 1);
    pair.with_senders(&[FLOW], || {
        for mbit in [1, 10, 100] {
            let rate = mbit * 125_000;
            pair.htb.set_flow_rate(&mut batch, FLOW, rate);
            assert_eq!(batch.send(&mut socket).expect("send"), 1);
            assert_eq!(pair.class(FLOW).ceil_bytes_per_s, rate);
            let ratio = pair.rates(&[FLOW])[0] / rate as f64;
            println!("{mbit} mbit: {ratio:.4}");
            assert!(REACHED.contains(&ratio), "{mbit} mbit: {ratio}");
        }
    });
}

#[test]
fn flows_share_the_link_rate() {
    require_root!();
    let pair = Pair::new();
    let minors = [FLOW, FLOW + 1, FLOW + 2, FLOW + 3];
    for minor in minors {
        pair.htb
            .add_flow_class(&pair.nl, minor, LINK * 6 / 10)
            .expect("class");
    }
    let rates = pair.with_senders(&minors, || pair.rates(&minors));
    println!("{rates:.0?} of {LINK}");
    let sum: f64 = rates.iter().sum();
    let fair = |rate: &f64| (rate / sum * 4.0 - 1.0).abs() <= 0.1;
    assert!(rates.iter().all(fair), "{rates:?}");
    assert!(REACHED.contains(&(sum / LINK as f64)), "{rates:?}");
}

#[test]
fn refused_changes_are_reported_one_by_one() {
    require_root!();
    let pair = Pair::new();
    pair.htb
        .add_flow_class(&pair.nl, FLOW, 125_000)
        .expect("class");
    let mut socket = ClassSocket::open(&pair.source).expect("socket");
    let mut batch = ClassBatch::new();
    // More than one system call takes, every 100th for a class that does not exist.
    for n in 0..1000 {
        pair.htb
            .set_flow_rate(&mut batch, FLOW + u16::from(n % 100 == 99), 125_000 + n);
    }
    assert_eq!(batch.send(&mut socket).expect("send"), 990);
    let failure = ClassFailure {
        ifindex: pair.htb.ifindex,
        classid: EndpointHtb::flow_classid(FLOW + 1),
        errno: Errno::ENOENT,
    };
    assert_eq!(batch.failures(), [failure; 10]);
    assert!(batch.is_empty());
    assert_eq!(pair.class(FLOW).ceil_bytes_per_s, 125_998);

    pair.htb.remove_flow(&mut batch, FLOW);
    assert_eq!(batch.send(&mut socket).expect("send"), 1);
    pair.htb.set_flow_rate(&mut batch, FLOW, 125_000);
    assert_eq!(batch.send(&mut socket).expect("send"), 0);
    assert_eq!(batch.failures().len(), 1);

    pair.htb.uninstall(&pair.nl).expect("uninstall");
    let root = pair
        .nl
        .root_qdisc(pair.htb.ifindex)
        .expect("qdisc")
        .expect("a root");
    assert_eq!(root.kind, "noqueue");
    pair.htb
        .uninstall(&pair.nl)
        .expect("nothing left to uninstall");
}

/// Packets outside of all classes bypass full ones, and are not limited to the link rate.
#[test]
fn what_is_not_limited_passes_by() {
    require_root!();
    let pair = Pair::new();
    pair.htb.install(&pair.nl).expect("install");
    assert!(!pair.htb.is_link(&pair.nl).expect("classes"));
    let mut socket = ClassSocket::open(&pair.source).expect("socket");
    let mut batch = ClassBatch::new();
    let leaf = pair.htb.leaf_bytes(FLOW, 125_000, 1, 0);
    assert_eq!(leaf, LEAF_FRAMES * FRAME);
    pair.htb.make_flow(&mut batch, FLOW, 125_000, leaf);
    assert_eq!(batch.send(&mut socket).expect("send"), 2);
    let root = || {
        let found = pair.nl.root_qdisc(pair.htb.ifindex).expect("qdisc");
        found.expect("a root")
    };
    // One class of 1 Mbit/s, and one that does not exist.
    pair.with_senders(&[FLOW, FLOW + 1], || {
        let (start, before) = (Instant::now(), root().bytes);
        let passed = || (root().bytes - before) as f64 / start.elapsed().as_secs_f64();
        let full = || pair.class(FLOW).backlog_bytes > 0 && passed() > 1.2 * LINK as f64;
        while start.elapsed() < Duration::from_secs(10) && !full() {
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(passed() > 1.2 * LINK as f64, "{}", passed());
        let class = pair.class(FLOW);
        assert!(
            class.backlog_bytes > 0 && class.backlog_bytes <= leaf,
            "{class:?}"
        );
        // Twice the time in which that leaves.
        let slow = (class.bytes as f64) < 2.0 * 125_000.0 * start.elapsed().as_secs_f64() + 1e5;
        assert!(slow, "{class:?}");
    });
    // A queue can be enlarged while it is full, and removing a class discards its packets.
    pair.htb.set_flow_leaf(&mut batch, FLOW, 2 * leaf);
    pair.htb.remove_flow(&mut batch, FLOW);
    assert_eq!(batch.send(&mut socket).expect("send"), 2);
    assert!(
        pair.nl
            .class_stats(pair.htb.ifindex)
            .expect("classes")
            .len()
            == 1
    );
}

#[test]
fn a_full_port_queue_drops() {
    require_root!();
    let pair = Pair::new();
    install_port(&pair.nl, pair.htb.ifindex, 125_000, FRAME, 3).expect("install");
    let root = pair.with_senders(&[1, 2, 3], || {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let found = pair.nl.root_qdisc(pair.htb.ifindex).expect("qdisc");
            let root = found.expect("a root");
            if root.drops > 0 && root.packets > 0 || Instant::now() > until {
                return root;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert_eq!(
        (root.kind.as_str(), root.handle),
        ("htb", u32::from(PORT_MAJOR) << 16)
    );
    assert!(
        root.drops > 0 && root.packets > 0 && root.qlen_packets <= 3,
        "{root:?}"
    );
}

#[test]
fn the_cost_of_a_change() {
    require_root!();
    let pair = Pair::new();
    pair.htb
        .add_flow_class(&pair.nl, FLOW, 125_000)
        .expect("class");
    let mut socket = ClassSocket::open(&pair.source).expect("socket");
    let mut batch = ClassBatch::new();
    for together in [1, 20, 200] {
        let rounds = 2000 / together;
        let start = Instant::now();
        for n in 0..rounds * together {
            pair.htb.set_flow_rate(&mut batch, FLOW, 125_000 + n);
            if batch.len() as u64 == together {
                assert_eq!(batch.send(&mut socket).expect("send"), together as usize);
            }
        }
        let each = start.elapsed() / (rounds * together) as u32;
        println!("{together} together: {each:?} each");
        assert!(each < Duration::from_millis(1), "{each:?}");
    }
}

#[test]
fn super_packets_are_as_long_as_the_link_is_fast() {
    let segments = |link_bytes_per_s, frame_bytes| {
        let layout = EndpointHtb {
            ifindex: 1,
            link_bytes_per_s,
            frame_bytes,
        };
        let segments = layout.super_packet_segments(u64::MAX);
        assert_eq!(
            layout.super_packet_segments(12_500_000),
            1,
            "what limited flows have decides"
        );
        segments
    };
    assert_eq!(segments(125_000, 1514), 1); // 1 Mbit/s
    assert_eq!(segments(12_500_000, 2068), 1);
    assert_eq!(segments(125_000_000, 1514), 26);
    assert!(segments(1_250_000_000, 1514) > 64);
}
