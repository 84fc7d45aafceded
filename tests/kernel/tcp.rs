//! TCP: marks are reported by the ACKs that TCP sends anyway, and TCP does not notice.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use ecn_core::{
    abi::Count,
    ace::MAX_CARRIED,
    echo, flow,
    packet::{self, protocol},
};
use ecn_tests::{
    Skip, eventually, kernel_test,
    lab::{DEVICE, Host, Lab},
    note,
    running::{self, Running},
    s, skipped,
    traffic::{congestion_control, udp},
    wire::Wire,
};
use ecn_user::{
    agent::Options,
    config::{Config, Marking, Round, Tcp},
    net::ethtool::{Ethtool, Offload},
};
use etherparse::{NetSlice, SlicedPacket, TransportSlice};

/// The server's port.
pub const PORT: u16 = 5001;

/// Bytes per transfer.
const BYTES: usize = 4 << 20;
/// Rate of both endpoints' links.
const LINK: u64 = 12_500_000;

/// A connection between two hosts: the client's and the server's end.
pub fn connect(
    from: &Host,
    to: &Host,
    ipv6: bool,
    algorithm: Option<&str>,
) -> (TcpStream, TcpStream) {
    let at = SocketAddr::new(to.address(ipv6), PORT);
    let listener = to.ns.run(|| TcpListener::bind(at)).expect("listen");
    let at = listener.local_addr().expect("an address");
    let stream = from.ns.run(|| TcpStream::connect(at)).expect("connect");
    if let Some(name) = algorithm {
        congestion_control(&stream, name).expect("an algorithm that the kernel has");
    }
    (stream, listener.accept().expect("accept").0)
}

/// Sends so many bytes, which the other end reads. Returns both ends: a connection's entries are removed when it closes.
#[must_use]
pub fn send(mut from: TcpStream, mut to: TcpStream, bytes: usize) -> (TcpStream, TcpStream) {
    let receiving = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        let mut received = 0;
        while received < bytes {
            match to.read(&mut buffer).expect("receive") {
                0 => break,
                len => received += len,
            }
        }
        (to, received)
    });
    // Whole segments: else the number of segments depends on timing.
    let chunk = vec![0x5a; 45 * 1448];
    let mut sent = 0;
    while sent < bytes {
        let len = chunk.len().min(bytes - sent);
        from.write_all(&chunk[..len]).expect("send");
        sent += len;
    }
    let (to, received) = receiving.join().expect("the receiver");
    assert_eq!(received, bytes);
    (from, to)
}

/// Transfers so many bytes.
pub fn transfer(from: &Host, to: &Host, bytes: usize) {
    let (sending, receiving) = connect(from, to, false, None);
    drop(send(sending, receiving, bytes));
}

/// Hosts 0 and 1 are endpoints, and the port to host 1 has a queue that marks.
fn start(lab: &Lab, tcp: Tcp) -> Running {
    Running::start(config(lab, tcp), Options::default())
}

fn config(lab: &Lab, tcp: Tcp) -> Config {
    lab.limit(1, LINK / 5, 1000);
    let mut config = running::config(lab, Marking::InputOutput);
    config.bridges[0].buffer = 2;
    config.response.rmin = "1/16".parse().expect("a fraction");
    let mut config = running::with_endpoints(config, lab, &[0, 1], LINK);
    for endpoint in &mut config.endpoints {
        endpoint.tcp = tcp;
    }
    config
}

fn sent(running: &Running) -> flow::Flow {
    let is = |key: &flow::Key| key.endpoint == 1 && key.protocol == protocol::TCP;
    running.flow(is).1
}

fn received(running: &Running) -> echo::Receiver {
    running.receiver(|key| key.endpoint == 2 && key.protocol == protocol::TCP)
}

/// Echoes, except those that only ask for room.
fn carried_by_echoes(running: &Running) -> u64 {
    running.count(Count::EchoSent) - running.count(Count::EchoAsked)
}

/// A counter of a host's stack, by name; 0 if the stack does not list it.
fn nstat(host: &Host, name: &str) -> u64 {
    let read = |file: &str| host.ns.run(|| std::fs::read_to_string(file)).expect(file);
    for file in [
        "/proc/thread-self/net/snmp",
        "/proc/thread-self/net/netstat",
    ] {
        let text = read(file);
        let mut lines = text.lines();
        while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
            let (kind, names) = names.split_once(':').expect("a kind");
            let (_, values) = values.split_once(':').expect("a kind");
            let mut pairs = names.split_whitespace().zip(values.split_whitespace());
            if let Some((_, value)) = pairs.find(|(n, _)| format!("{kind}{n}") == name) {
                return value.parse().unwrap_or(0);
            }
        }
    }
    0
}

/// Neither stack has noticed anything: no mark, no flag, no bad checksum, no reset.
#[track_caller]
fn nothing_seen(lab: &Lab) {
    for host in &lab.hosts {
        for name in [
            "IpExtInCEPkts",
            "TcpExtTCPDeliveredCE",
            "TcpInCsumErrors",
            "IpExtInCsumErrors",
            "TcpOutRsts",
            "TcpEstabResets",
        ] {
            assert_eq!(nstat(host, name), 0, "{name} at {}", host.ns.name());
        }
    }
}

/// See [`same_count`].
const MAX_MISCOUNTED: u64 = 24;

/// The count in ACKs is modulo 8: an ACK that another CPU overtakes loses or adds 8, which is rare.
#[track_caller]
fn same_count(known: u64, reported: u64) {
    let difference = known.abs_diff(reported);
    assert!(
        difference <= MAX_MISCOUNTED && difference.is_multiple_of(8),
        "{known} of {reported}"
    );
}

/// The source knows the receiver's count, except for what the last ACK had no room for, and with `super_packets` one or two
/// marks of each super-packet.
#[track_caller]
fn exact(lab: &Lab, running: &Running, super_packets: bool) {
    let acked = || sent(running).acked_packets == sent(running).sent_packets;
    assert!(
        eventually(s(5), acked),
        "{:#?}\n{}",
        sent(running),
        running.counts()
    );
    let (flow, receiver) = (sent(running), received(running));
    assert_eq!(flow.flags, flow::PLAIN);
    assert_eq!(
        receiver.flags & (echo::PLAIN | echo::NEGOTIATED),
        echo::PLAIN
    );
    assert_eq!(receiver.ce, running.port(&lab.hosts[1].port).marked);
    assert!(receiver.ce > 0 && flow.decreases > 0, "{flow:#?}");
    let reported = u64::from(receiver.ace.encoded);
    same_count(flow.marked_packets, reported);
    let kept = u64::from(receiver.ace.pending + receiver.ace.discarded);
    assert_eq!(receiver.ce, reported + kept, "{receiver:#?}");
    assert!(receiver.ace.pending <= MAX_CARRIED, "{receiver:#?}");
    // On a busy machine an ACK comes late, and covers more than it can report.
    let most = receiver.ce / if super_packets { 5 } else { 10 };
    assert!(kept <= most.max(MAX_CARRIED.into()), "{receiver:#?}");
    assert_eq!(carried_by_echoes(running), 0);
    for what in [
        Count::AceBlocked,
        Count::AceFailed,
        Count::EctFailed,
        Count::MarkFailed,
        Count::RingFull,
        Count::ReceiversFull,
    ] {
        assert_eq!(running.count(what), 0, "{what:?}");
    }
    nothing_seen(lab);
}

/// Captures what arrives at each device between two hosts, before any program sees it.
struct Taps(Vec<Wire>);

/// Numbers of frames with payload and without.
#[derive(Debug, Default)]
struct Captured {
    frames: u64,
    marked: u64,
    reporting_acks: u64,
}

impl Taps {
    fn open(lab: &Lab) -> Self {
        let ends = |host: &Host| {
            [
                Wire::open(&host.ns, host.ifindex),
                Wire::open(&lab.switch, host.port_index),
            ]
        };
        Self(lab.hosts.iter().flat_map(ends).collect())
    }

    /// Every IP and TCP checksum is correct, data is ECN-capable, and handshakes are unchanged.
    #[track_caller]
    fn check(self) -> Captured {
        let mut found = Captured::default();
        for frame in self.0.iter().flat_map(|w| w.all(Duration::from_millis(50))) {
            let sliced = SlicedPacket::from_ethernet(&frame).expect("a frame");
            let Some(TransportSlice::Tcp(tcp)) = sliced.transport else {
                // The hosts' other traffic: neighbour discovery, multicast groups.
                continue;
            };
            let (sum, ecn) = match sliced.net.expect("a network header") {
                NetSlice::Ipv4(ip) => {
                    let ip = ip.header();
                    let header = ip.to_header();
                    assert_eq!(ip.header_checksum(), header.calc_header_checksum());
                    let sum = tcp.calc_checksum_ipv4(ip.source(), ip.destination());
                    (sum, ip.ecn().value())
                }
                NetSlice::Ipv6(ip) => {
                    let ip = ip.header();
                    let sum = tcp.calc_checksum_ipv6(ip.source(), ip.destination());
                    (sum, ip.ecn().value())
                }
                NetSlice::Arp(_) => continue,
            };
            // Zero has two representations in ones' complement.
            let form = |sum: u16| if sum == 0 { u16::MAX } else { sum };
            let right = sum.map(form).map_err(|_| ());
            assert_eq!(Ok(form(tcp.checksum())), right, "{frame:?}");
            let data = !tcp.payload().is_empty();
            let flags = tcp.ns() || tcp.cwr() || tcp.ece();
            assert_eq!(data, ecn != packet::NOT_ECT, "{frame:?}");
            assert!(!flags || !data && !tcp.syn(), "{frame:?}");
            found.frames += 1;
            found.marked += u64::from(ecn == packet::CE);
            found.reporting_acks += u64::from(flags);
        }
        found
    }
}

fn one_way(super_packets: bool, ipv6: bool, algorithms: &[&str]) {
    let name = ecn_tests::name_of(|| {});
    for algorithm in algorithms {
        let lab = if super_packets {
            Lab::with_super_packets(2)
        } else {
            Lab::new(2)
        };
        let running = start(&lab, Tcp::Leave);
        let available = lab.hosts[0]
            .ns
            .run(|| std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control"));
        if !available.expect("algorithms").contains(algorithm) {
            skipped(
                name,
                Skip::Kernel,
                &format!("no congestion control {algorithm}"),
            );
            continue;
        }
        let taps = (!super_packets).then(|| Taps::open(&lab));
        let (from, to) = connect(&lab.hosts[0], &lab.hosts[1], ipv6, Some(algorithm));
        let _open = send(from, to, BYTES);
        exact(&lab, &running, super_packets);
        if let Some(taps) = taps {
            let found = taps.check();
            // Marked at the bridge, and captured once; an ACK passes two devices.
            assert_eq!(found.marked, received(&running).ce, "{found:?}");
            assert!(
                found.reporting_acks > 100 && found.frames > 2 * 2900,
                "{found:?}"
            );
            note(&format!("{algorithm}: {found:?}"));
        }
        let (flow, receiver) = (sent(&running), received(&running));
        note(&format!(
            "{algorithm}, super-packets {super_packets}: {} packets, {} marked, {} reported, {} decreases",
            flow.sent_packets, receiver.ce, flow.marked_packets, flow.decreases
        ));
    }
}

#[test]
fn packets() {
    kernel_test!();
    one_way(false, false, &["cubic", "reno", "bbr"]);
}

#[test]
fn packets_of_ipv6() {
    kernel_test!();
    one_way(false, true, &["cubic"]);
}

#[test]
fn super_packets() {
    kernel_test!();
    one_way(true, false, &["cubic", "reno", "bbr"]);
}

#[test]
fn super_packets_of_ipv6() {
    kernel_test!();
    one_way(true, true, &["cubic"]);
}

fn ask_for_ecn(lab: &Lab) {
    for host in &lab.hosts {
        let write = || std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1");
        host.ns.run(write).expect("tcp_ecn");
    }
}

/// A server that sends its response and closes: marks that are reported after its last packet still count.
#[test]
fn marks_of_the_last_packets_count() {
    kernel_test!();
    const CONNECTIONS: usize = 60;
    let lab = Lab::new(2);
    // Their lowest rates together exceed the port's: marking continues.
    lab.limit(1, LINK / 20, 1000);
    let mut config = running::config(&lab, Marking::InputOutput);
    config.response.rmin = "1/16".parse().expect("a fraction");
    config.response.round = Round::Packets;
    let config = running::with_endpoints(config, &lab, &[0, 1], LINK);
    let running = Running::start(config, Options::default());
    for _ in 0..CONNECTIONS {
        let (mut server, mut client) = connect(&lab.hosts[0], &lab.hosts[1], false, None);
        server.write_all(&[7; 8 * 1448]).expect("send");
        drop(server);
        let mut received = Vec::new();
        client.read_to_end(&mut received).expect("receive");
        assert_eq!(received.len(), 8 * 1448);
    }
    let marked = running.port(&lab.hosts[1].port).marked;
    assert!(marked > CONNECTIONS as u64, "{marked} are marked");
    let acknowledged = || {
        let together = running.maps.flow(&flow::Key::short(1));
        together.expect("short flows").marked_packets
    };
    // Soon: without limits, short flows are forgotten.
    eventually(Duration::from_millis(100), || acknowledged() == marked);
    assert!(
        acknowledged() * 20 >= marked * 19,
        "{} of {marked}",
        acknowledged()
    );
    // The FIN waits behind the data.
    assert_eq!(nstat(&lab.hosts[1], "TcpExtTCPOFOQueue"), 0);
    // Entries are removed with the connection; a later packet creates another one, which expires.
    let left = || {
        let flows = running.maps.flows().expect("flows");
        let receivers = running.maps.receivers().expect("received flows");
        flows.len() + receivers.len()
    };
    assert!(
        eventually(s(5), || left() <= CONNECTIONS / 10),
        "{}",
        left()
    );
}

/// A connection that negotiated ECN keeps its own control: its marks reach TCP, which reacts to them.
#[test]
fn negotiated() {
    kernel_test!();
    let lab = Lab::new(2);
    ask_for_ecn(&lab);
    let running = start(&lab, Tcp::Leave);
    let (from, to) = connect(&lab.hosts[0], &lab.hosts[1], false, Some("reno"));
    let _open = send(from, to, BYTES);
    let (flow, receiver) = (sent(&running), received(&running));
    assert_eq!(flow.flags, flow::NEGOTIATED);
    assert_eq!(
        receiver.flags & (echo::PLAIN | echo::NEGOTIATED),
        echo::NEGOTIATED
    );
    let marked = running.port(&lab.hosts[1].port).marked;
    assert!(marked > 0);
    assert_eq!(nstat(&lab.hosts[1], "IpExtInCEPkts"), marked);
    assert!(nstat(&lab.hosts[0], "TcpExtTCPDeliveredCE") > 0);
    assert_eq!((flow.marked_packets, flow.decreases, flow.class), (0, 0, 0));
    assert_eq!(carried_by_echoes(&running), 0);
}

/// With `tcp = "control"` no connection negotiates ECN.
#[test]
fn negotiation_is_prevented() {
    kernel_test!();
    let lab = Lab::new(2);
    ask_for_ecn(&lab);
    let running = start(&lab, Tcp::Control);
    let (from, to) = connect(&lab.hosts[0], &lab.hosts[1], false, Some("cubic"));
    let _open = send(from, to, BYTES);
    exact(&lab, &running, false);
}

/// Connections from before the agent are classified by their behaviour.
#[test]
fn connections_older_than_the_agent() {
    kernel_test!();
    for ecn in [false, true] {
        let lab = Lab::new(2);
        if ecn {
            ask_for_ecn(&lab);
        }
        // New devices lose packets until the kernel has seen their carrier, and a retransmitted SYN does not ask for ECN
        // (RFC 3168 section 6.1.1.1).
        let (probe, target) = (udp(&lab.hosts[0], false, 9), udp(&lab.hosts[1], false, 9));
        let at = target.local_addr().expect("an address");
        let arrives = || probe.send_to(&[0], at).is_ok() && target.recv(&mut [0]).is_ok();
        assert!(eventually(s(5), arrives));
        let (mut from, mut to) = connect(&lab.hosts[0], &lab.hosts[1], false, Some("reno"));
        from.write_all(&[1; 1000]).expect("send");
        to.read_exact(&mut [0; 1000]).expect("receive");
        let running = start(&lab, Tcp::Leave);
        let _open = send(from, to, BYTES);
        let (flow, receiver) = (sent(&running), received(&running));
        let (ours, its) = (
            flow.flags,
            receiver.flags & (echo::PLAIN | echo::NEGOTIATED),
        );
        if ecn {
            assert_eq!((ours, its), (flow::NEGOTIATED, echo::NEGOTIATED));
            assert_eq!((flow.marked_packets, flow.decreases), (0, 0));
            let marked = running.port(&lab.hosts[1].port).marked;
            assert_eq!(nstat(&lab.hosts[1], "IpExtInCEPkts"), marked);
            continue;
        }
        assert_eq!((ours, its), (flow::PLAIN, echo::PLAIN));
        assert!(flow.marked_packets > 0 && flow.decreases > 0, "{flow:#?}");
        // One mark reached TCP, and those that arrived before TCP reacted.
        let seen = nstat(&lab.hosts[1], "IpExtInCEPkts");
        assert!((1..20).contains(&seen), "{seen}");
        // On a busy machine an ACK comes late, and covers more than it can report.
        let late = u64::from(receiver.ace.discarded);
        assert!(late <= receiver.ce / 10, "{receiver:#?}");
        assert!(
            flow.marked_packets + late + 20 > receiver.ce,
            "{flow:#?} {receiver:#?}"
        );
        assert_eq!(carried_by_echoes(&running), 0);
    }
}

/// Data in both directions at the same time; every mark is reported, by ACKs or echoes.
#[track_caller]
fn exchange(lab: &Lab, running: &Running, back: usize) {
    let (a, b) = connect(&lab.hosts[0], &lab.hosts[1], false, Some("cubic"));
    let clone = |stream: &TcpStream| stream.try_clone().expect("a clone");
    let ways = [(clone(&a), clone(&b), BYTES), (clone(&b), clone(&a), back)];
    let work = ways.map(|(mut from, mut to, bytes)| {
        let sending = std::thread::spawn(move || from.write_all(&vec![3; bytes]).expect("send"));
        let receiving = std::thread::spawn(move || {
            to.read_exact(&mut vec![0; bytes]).expect("receive");
        });
        [sending, receiving]
    });
    for thread in work.into_iter().flatten() {
        thread.join().expect("a transfer");
    }
    // Echoes of two CPUs may be reordered: the earlier one is then a duplicate, and its count is in both.
    let overtaken = || running.count(Count::EchoDuplicate);
    let taken = || running.count(Count::EchoAccepted) + overtaken();
    // The last echo is under way.
    eventually(s(5), || {
        let ace = received(running).ace;
        let known = sent(running).marked_packets;
        running.count(Count::EchoSent) == taken()
            && known.abs_diff(u64::from(ace.encoded + ace.echoed)) <= MAX_MISCOUNTED
    });
    let (flow, receiver) = (sent(running), received(running));
    note(&format!(
        "both ways: {} marked, {} known, {} echoes",
        receiver.ce,
        flow.marked_packets,
        running.count(Count::EchoSent)
    ));
    assert!(receiver.ce > 0 && flow.decreases > 0, "{flow:#?}");
    let reported = receiver.ace.encoded + receiver.ace.echoed;
    same_count(flow.marked_packets, reported.into());
    assert_eq!(carried_by_echoes(running), running.count(Count::AceBlocked));
    let echoes = running.count(Count::EchoSent);
    assert_eq!(echoes, taken(), "{}", running.counts());
    assert!(overtaken() * 50 <= echoes, "{}", running.counts());
    nothing_seen(lab);
}

/// The reverse path's data waits for its own rate limit, and ACKs overtake it. That no data has flags is checked by
/// `merged_by_gro`: an error there is often within the tolerance of [`same_count`].
#[test]
fn both_ways() {
    kernel_test!();
    for super_packets in [false, true] {
        let lab = if super_packets {
            Lab::with_super_packets(2)
        } else {
            Lab::new(2)
        };
        lab.limit(0, LINK / 5, 1000);
        let running = start(&lab, Tcp::Leave);
        exchange(&lab, &running, BYTES);
    }
}

/// Data does not report marks: where nearly all ACKs carry data, echoes do. The source's device may merge data (GRO).
#[test]
fn merged_by_gro() {
    kernel_test!();
    let lab = Lab::new(2);
    let ethtool = Ethtool::open(&lab.hosts[0].ns).expect("ethtool");
    ethtool.set(DEVICE, Offload::Gro, true).expect("GRO");
    let mut config = config(&lab, Tcp::Leave);
    // Bursts, so that there are packets to merge.
    config.endpoints[1].link_rate = Some(running::rate(10 * LINK));
    let running = Running::start(config, Options::default());
    let tap = Wire::open(&lab.hosts[0].ns, lab.hosts[0].ifindex);
    exchange(&lab, &running, 16 * BYTES);
    let (mut together, mut flagged) = (0, 0);
    for frame in tap.all(Duration::from_millis(50)) {
        let sliced = SlicedPacket::from_ethernet(&frame).expect("a frame");
        if let Some(TransportSlice::Tcp(tcp)) = sliced.transport {
            let flags = tcp.ns() || tcp.cwr() || tcp.ece();
            together += u32::from(tcp.payload().len() > 1448);
            flagged += u32::from(flags && !tcp.payload().is_empty());
        }
    }
    note(&format!("{together} super-packets came"));
    assert!(together > 0 && flagged == 0);
}

/// A program in a host's namespace; killed when dropped.
struct Program(Child);

impl Program {
    /// `None`: it is not installed.
    fn start(host: &Host, words: &[&str]) -> Option<Self> {
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        match host.ns.run(|| command.spawn()) {
            Ok(child) => Some(Self(child)),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => panic!("{words:?}: {error}"),
        }
    }

    /// Its output, if it succeeded.
    fn end(mut self) -> Option<String> {
        let mut text = String::new();
        let out = self.0.stdout.as_mut().expect("a pipe");
        out.read_to_string(&mut text).expect("text");
        self.0.wait().expect("an end").success().then_some(text)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Unmodified programs: their transfers are controlled, and complete.
#[test]
fn applications() {
    kernel_test!();
    const SERVE: &str = "import http.server as h
class H(h.BaseHTTPRequestHandler):
    def do_GET(s): s.send_response(200); s.end_headers(); s.wfile.write(bytes(4<<20))
h.HTTPServer(('', 5001), H).serve_forever()";
    const FETCH: &str = "import urllib.request as u, sys
print(len(u.urlopen(sys.argv[1]).read()), end='')";
    let iperf3 = |lab: &Lab| {
        let to = lab.hosts[1].v4.to_string();
        let _server = Program::start(&lab.hosts[1], &["iperf3", "-s", "-p", "5001"])?;
        let client = ["iperf3", "-c", &to, "-p", "5001", "-n", "4M", "-C", "cubic"];
        let run = || Program::start(&lab.hosts[0], &client).and_then(Program::end);
        assert!(eventually(s(20), || run().is_some()), "iperf3");
        Some(())
    };
    let http = |lab: &Lab| {
        let _server = Program::start(&lab.hosts[0], &["python3", "-c", SERVE])?;
        let from = format!("http://{}:5001/", lab.hosts[0].v4);
        let client = ["python3", "-c", FETCH, &from];
        let fetch = || Program::start(&lab.hosts[1], &client).and_then(Program::end);
        let whole = || fetch() == Some(BYTES.to_string());
        assert!(eventually(s(20), whole), "HTTP");
        Some(())
    };
    move_unaware("iperf3", iperf3);
    move_unaware("python3", http);
}

/// `run`: `None` if the program is not installed.
fn move_unaware(name: &str, run: impl Fn(&Lab) -> Option<()>) {
    let lab = Lab::with_super_packets(2);
    let running = start(&lab, Tcp::Leave);
    // A connection's entries are removed when it closes, so their maxima are sampled meanwhile.
    let ended = AtomicBool::new(false);
    let watch = || {
        let mut most = [0u64; 4];
        while !ended.load(Ordering::Relaxed) {
            let flows = running.maps.flows().expect("flows");
            let receivers = running.maps.receivers().expect("receivers");
            let of = |r: &echo::Receiver| u64::from(r.ace.encoded + r.ace.echoed);
            let now = [
                flows.iter().map(|(_, f)| f.decreases).sum::<u64>(),
                flows.iter().map(|(_, f)| f.marked_packets).sum::<u64>(),
                receivers.iter().map(|(_, r)| of(r)).sum::<u64>(),
                receivers.iter().map(|(_, r)| r.ce).sum::<u64>(),
            ];
            most = std::array::from_fn(|n| now[n].max(most[n]));
            std::thread::sleep(Duration::from_millis(5));
        }
        most
    };
    let (there, [decreases, known, reported, marked]) = std::thread::scope(|scope| {
        let watching = scope.spawn(watch);
        let there = run(&lab).is_some();
        ended.store(true, Ordering::Relaxed);
        (there, watching.join().expect("what was watched"))
    });
    if !there {
        skipped("tcp::applications", Skip::Missing, &format!("no {name}"));
        return;
    }
    note(&format!(
        "{name}: {marked} marked, {reported} reported, {known} known, {decreases} decreases"
    ));
    assert!(marked > 100 && decreases > 0);
    assert!(
        known.abs_diff(reported) <= MAX_MISCOUNTED,
        "{known} of {reported}"
    );
    // On a busy machine an ACK comes late, and covers more than it can report.
    assert!(
        reported <= marked && marked - reported <= marked / 5,
        "{reported} of {marked}"
    );
    for host in &lab.hosts {
        for name in ["IpExtInCEPkts", "TcpInCsumErrors", "IpExtInCsumErrors"] {
            assert_eq!(nstat(host, name), 0, "{name} at {}", host.ns.name());
        }
    }
    // Data in the other direction acknowledges, and echoes report what it cannot; bulk data needs hardly any.
    assert!(carried_by_echoes(&running) < 10);
    assert_eq!(running.count(Count::AceFailed), 0);
}
