//! The agent at the highest rate that the machine sustains, with flows that start and end: none of its resources may grow.
//!
//! `ECN_SOAK_SECONDS` sets the duration (15) after a warm-up; `cargo xtask bench soak` runs for ten minutes.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ecn_core::{abi::Count, packet::NOT_ECT};
use ecn_tests::{
    ecn_or_skip,
    frames::Ip,
    kernel_test,
    lab::Lab,
    note,
    process::{Folder, Held, Process},
    running::{self, pin},
    s,
    traffic::{Repeated, Stream},
    wire::Wire,
};
use ecn_user::{config::Marking, datapath::Maps, net::NetNs, units::DurationText};
use nix::sys::signal::Signal;

/// UDP flows of three packets and TCP connections of one request that start per second.
const UDP_FLOWS: u64 = 900;
const TCP_FLOWS: u64 = 100;
/// Lifetime of an idle entry.
const IDLE: Duration = Duration::from_secs(2);
/// From then on nothing may grow: entries have begun to expire, and the heap has its size (measured: after 23 s).
const WARM_UP: Duration = Duration::from_secs(25);
/// How much the heap may still grow, see [`growth_kib`].
const GROWTH_KIB: u64 = 512;
/// Worker threads, which exit when idle.
const POOL: usize = 2;
/// Log lines per minute: warnings that start and end.
const LINES: u64 = 10;
/// 1 Gbit/s.
const LINK: u64 = 125_000_000;

/// Resources at one time.
#[derive(Clone, Copy)]
struct Sample {
    at: Duration,
    held: Held,
    flows: usize,
    receivers: usize,
    classes: usize,
    log_lines: u64,
    packets: u64,
    begun: u64,
}

struct Soak {
    lab: Lab,
    folder: Folder,
    agent: Process,
    maps: Maps,
    start: Instant,
    begun: Arc<AtomicU64>,
}

impl Soak {
    fn sample(&self, streams: &[Stream]) -> Sample {
        let classes = |host: &ecn_tests::lab::Host| host.nl.class_stats(host.ifindex);
        let classes = self.lab.hosts.iter().flat_map(classes).map(|of| of.len());
        Sample {
            at: self.start.elapsed(),
            held: self.agent.held(),
            flows: self.maps.flows().expect("flows").len(),
            receivers: self.maps.receivers().expect("receivers").len(),
            classes: classes.sum(),
            log_lines: self.folder.log().lines().count() as u64,
            packets: streams.iter().map(Stream::sent).sum(),
            begun: self.begun.load(Ordering::Relaxed),
        }
    }

    /// The least memory that the agent has in a time, KiB: memory for a burst of flows is returned within a second.
    fn least_memory(&self, time: Duration) -> u64 {
        let end = Instant::now() + time;
        let mut least = u64::MAX;
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100).min(time));
            least = least.min(self.agent.held().memory_kib);
        }
        least
    }
}

/// UDP flows, each from its own port.
fn udp_flows(lab: &Lab, begun: Arc<AtomicU64>) -> Repeated {
    let (from, to) = (&lab.hosts[0], &lab.hosts[2]);
    let wire = Wire::open(&from.ns, from.ifindex).send_slowly();
    let packets = Ip::between(from, to, false).ecn(NOT_ECT);
    Repeated::paced(UDP_FLOWS, move |n| {
        let frame = packets.udp(10_000 + (n % 50_000) as u16, 9, &[5; 200]);
        (0..3).for_each(|_| wire.send(&frame));
        begun.fetch_add(1, Ordering::Relaxed);
    })
}

/// TCP connections with a request and a response.
fn tcp_flows(lab: &Lab, begun: Arc<AtomicU64>) -> [Repeated; 2] {
    let (client, server) = (&lab.hosts[1], &lab.hosts[3]);
    let at = SocketAddr::new(server.v4.into(), 80);
    let listener = server.ns.run(|| TcpListener::bind(at)).expect("listen");
    listener.set_nonblocking(true).expect("non-blocking");
    let answering = Repeated::start(move || {
        let Ok((mut connection, _)) = listener.accept() else {
            return std::thread::sleep(Duration::from_millis(1));
        };
        let _ = connection.set_read_timeout(Some(s(1)));
        let _ = connection.read_exact(&mut [0; 100]);
        let _ = connection.write_all(&[2; 1000]);
    });
    let ns = NetNs::clone_of(&client.ns).expect("a namespace");
    let asking = Repeated::paced(TCP_FLOWS, move |_| {
        let Ok(mut connection) = ns.run(|| TcpStream::connect_timeout(&at, s(1))) else {
            return;
        };
        let _ = connection.set_read_timeout(Some(s(1)));
        let _ = connection.write_all(&[1; 100]);
        let _ = connection.read_to_end(&mut Vec::new());
        begun.fetch_add(1, Ordering::Relaxed);
    });
    [asking, answering]
}

fn row(sample: &Sample, before: &Sample) -> String {
    let seconds = (sample.at - before.at).as_secs_f64().max(1e-9);
    let per_s = |now: u64, then: u64| (now - then) as f64 / seconds;
    format!(
        "{:>6.0} {:>9} {:>6} {:>8} {:>8} {:>7} {:>9} {:>8} {:>6} {:>10.0} {:>8.0}",
        sample.at.as_secs_f64(),
        sample.held.memory_kib,
        sample.held.files,
        sample.held.objects,
        sample.held.threads,
        sample.flows,
        sample.receivers,
        sample.classes,
        sample.log_lines,
        per_s(sample.packets, before.packets),
        per_s(sample.begun, before.begun),
    )
}

/// How much more memory the agent has in the second half of the samples, without the largest step between two of them: a
/// buffer that doubles is one step, a leak grows in every interval.
fn growth_kib(samples: &[Sample]) -> u64 {
    let memory = samples.iter().map(|sample| sample.held.memory_kib);
    let memory: Vec<_> = memory.collect();
    let (early, late) = memory.split_at(memory.len() / 2);
    let (early, late) = (early.iter().min(), late.iter().min());
    let grown = late
        .expect("samples")
        .saturating_sub(*early.expect("samples"));
    let steps = memory
        .windows(2)
        .map(|pair| pair[1].saturating_sub(pair[0]));
    grown.saturating_sub(steps.max().unwrap_or(0))
}

#[test]
fn nothing_grows() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    let seconds = std::env::var("ECN_SOAK_SECONDS").ok();
    let seconds = seconds.and_then(|text| text.parse().ok()).unwrap_or(15);
    let (lab, folder) = (Lab::new(4), Folder::new());
    let mut config = running::config(&lab, Marking::InputOutput);
    config.flow.idle = DurationText::from_secs(IDLE.as_secs());
    let config = running::with_endpoints(config, &lab, &[0, 1, 2, 3], LINK);
    let agent = folder.start(&ecn, &config);
    let mut soak = Soak {
        lab,
        folder,
        agent,
        maps: Maps::open(&pin()).expect("maps"),
        start: Instant::now(),
        begun: Arc::default(),
    };
    let hosts = &soak.lab.hosts;
    let streams = [
        Stream::start(&hosts[0], &hosts[2], 7001, 1400),
        Stream::start(&hosts[1], &hosts[2], 7002, 1400),
    ];
    let flows = (
        udp_flows(&soak.lab, Arc::clone(&soak.begun)),
        tcp_flows(&soak.lab, Arc::clone(&soak.begun)),
    );
    let end = WARM_UP + s(seconds);
    // Few enough rows to read.
    let every = (end / 12).clamp(s(1), s(60));
    let mut before = soak.sample(&streams);
    let mut rows = vec![
        format!(
            "{:>6} {:>9} {:>6} {:>8} {:>8} {:>7} {:>9} {:>8} {:>6} {:>10} {:>8}",
            "s",
            "RSS KiB",
            "files",
            "objects",
            "threads",
            "flows",
            "receivers",
            "classes",
            "log",
            "packets/s",
            "flows/s"
        ),
        row(&before, &before),
    ];
    std::thread::sleep(WARM_UP);
    let mut samples = Vec::new();
    loop {
        let left = end.saturating_sub(soak.start.elapsed());
        if left.is_zero() {
            break;
        }
        let least_kib = soak.least_memory(left.min(every));
        let mut now = soak.sample(&streams);
        now.held.memory_kib = now.held.memory_kib.min(least_kib);
        rows.push(row(&now, &before));
        before = now;
        samples.push(now);
    }
    note(&rows.join("\n"));
    drop(flows);
    drop(streams);
    let expired = soak.maps.count(Count::LimitExpired).expect("a counter");
    let log = soak.folder.log();
    soak.agent.signal(Signal::SIGTERM);
    assert_eq!(soak.agent.ended(s(10)), Some(Some(0)), "{log}");

    let (first, last) = (samples[0], samples[samples.len() - 1]);
    let minutes = (last.at - first.at).as_secs().div_ceil(60);
    assert_eq!(
        (last.held.files, last.held.objects),
        (first.held.files, first.held.objects),
        "{log}"
    );
    assert!(last.held.threads <= first.held.threads + POOL, "{log}");
    let grown = growth_kib(&samples);
    assert!(grown <= GROWTH_KIB, "{grown} KiB more");
    let lines = last.log_lines - first.log_lines;
    assert!(
        lines <= LINES * minutes,
        "{lines} lines in {minutes} min: {log}"
    );
    // As many as start within one's lifetime, and those that the sweep has not removed yet.
    let most = (UDP_FLOWS + TCP_FLOWS) as usize * 2 * (IDLE.as_secs() as usize + 4);
    for sample in &samples {
        assert!(sample.flows <= most, "{} flows", sample.flows);
        assert!(sample.receivers <= most, "{} receivers", sample.receivers);
    }
    assert_eq!(expired, 0, "limits have lapsed: {log}");
}
