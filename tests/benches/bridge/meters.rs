//! Measurements beside the greedy flows: the port's queue, a ping, a voice stream, processes.

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ecn_tests::lab::{Host, Lab};
use ecn_user::net::{NetNs, Netlink};
use hdrhistogram::Histogram;
use nix::{
    cmsg_space,
    sys::{
        socket::{
            AddressFamily, ControlMessageOwned, MsgFlags, SetSockOpt as _, SockFlag, SockProtocol,
            SockType, SockaddrStorage, connect, recvmsg, send, socket, sockopt,
        },
        time::{TimeSpec, TimeVal},
    },
    time::ClockId,
    unistd::Pid,
};

use super::load::{self, Shared, clock_ns, delays};

/// A sample of the port.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Time since the start, ns.
    pub at_ns: u64,
    /// Packets waiting.
    pub queue: u32,
    /// Dropped so far.
    pub drops: u32,
    /// Bytes that the first flow has received so far.
    pub first_bytes: u64,
}

/// Samples a port's root qdisc every millisecond.
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    /// Starts; `start_ns` is the flows' start, by the wall clock.
    pub fn start(lab: &Lab, host: usize, shared: Arc<Shared>, start_ns: u64) -> Self {
        let nl = Netlink::open(&lab.switch).expect("netlink");
        let port = lab.hosts[host].port_index;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut samples = Vec::new();
            while !stopped.load(Relaxed) {
                let qdisc = nl.root_qdisc(port).expect("qdiscs").unwrap_or_default();
                let first = shared.counts.first();
                samples.push(Sample {
                    at_ns: clock_ns().saturating_sub(start_ns),
                    queue: qdisc.qlen_packets,
                    drops: qdisc.drops,
                    first_bytes: first.map_or(0, |count| count.bytes.load(Relaxed)),
                });
                thread::sleep(Duration::from_millis(1));
            }
            samples
        });
        Self { stop, thread }
    }

    /// Stops; returns all samples.
    pub fn stop(self) -> Vec<Sample> {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("the sampler")
    }
}

/// A ping or a voice stream.
pub struct Meter {
    stop: Arc<AtomicBool>,
    measures: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
    receiver: JoinHandle<Histogram<u64>>,
}

/// Its results.
pub struct Delays {
    /// us.
    pub times: Histogram<u64>,
    /// Packets sent while it measured.
    pub sent: u64,
}

impl Delays {
    /// The given quantile of the delays, ms.
    pub fn ms(&self, share: f64) -> f64 {
        self.times.value_at_quantile(share) as f64 / 1e3
    }

    /// Share of packets that did not arrive.
    pub fn lost(&self) -> f64 {
        1.0 - (self.times.len() as f64 / self.sent.max(1) as f64).min(1.0)
    }
}

/// Ping's default payload, with the timestamp after the header.
const PING: usize = 64;
const PING_EVERY: Duration = Duration::from_millis(10);
/// 5 Mbit/s of payload in packets of 200 bytes.
const VOICE: usize = 200;
/// Their frames: with Ethernet, IPv4 and UDP headers.
pub const VOICE_FRAME: usize = VOICE + 42;
const VOICE_EVERY: Duration = Duration::from_micros(320);
const VOICE_PORT: u16 = 5002;

impl Meter {
    /// Pings a host 100 times a second.
    pub fn ping(from: &Host, to: &Host) -> Self {
        let socket = from.ns.run(|| ping_socket(to.v4.into()));
        let socket = Arc::new(socket);
        let mut meter = Flags::new();
        let (sending, flags) = (Arc::clone(&socket), meter.clone());
        let sender = thread::spawn(move || {
            flags.paced(PING_EVERY, |sequence| {
                let mut packet = [0; PING];
                packet[0] = 8;
                packet[4..6].copy_from_slice(&IDENTIFIER.to_be_bytes());
                packet[6..8].copy_from_slice(&(sequence as u16).to_be_bytes());
                packet[8..16].copy_from_slice(&clock_ns().to_ne_bytes());
                packet[16] = u8::from(flags.measures.load(Relaxed));
                let sum = checksum(&packet);
                packet[2..4].copy_from_slice(&sum.to_be_bytes());
                let _ = send(sending.as_raw_fd(), &packet, MsgFlags::MSG_DONTWAIT);
            });
        });
        let flags = meter.clone();
        let receiver = thread::spawn(move || {
            let mut times = delays();
            while !flags.stop.load(Relaxed) {
                let Some((reply, at)) = reply(&socket) else {
                    continue;
                };
                let sent = reply.get(8..16).and_then(|bytes| bytes.try_into().ok());
                let ours = reply.first() == Some(&0) && reply.get(4..6) == Some(&IDENTIFIER_BYTES);
                if let Some(sent) = sent.filter(|_| ours && reply.get(16) == Some(&1)) {
                    let sent = u64::from_ne_bytes(sent);
                    times.saturating_record(at.saturating_sub(sent) / 1000);
                }
            }
            times
        });
        meter.finish(vec![sender], receiver)
    }

    /// Sends a stream of small packets to a host.
    pub fn voice(from: &Host, to: &Host) -> Self {
        let sink = load::sink(to, VOICE_PORT);
        let target = SocketAddr::new(to.v4.into(), VOICE_PORT);
        let source = from.ns.run(|| UdpSocket::bind("0.0.0.0:0"));
        let source = source.expect("a UDP socket");
        source.set_nonblocking(true).expect("nonblocking");
        let mut meter = Flags::new();
        let flags = meter.clone();
        let sender = thread::spawn(move || {
            flags.paced(VOICE_EVERY, |_| {
                let mut packet = [0; VOICE];
                packet[..8].copy_from_slice(&clock_ns().to_ne_bytes());
                packet[8] = u8::from(flags.measures.load(Relaxed));
                let _ = source.send_to(&packet, target);
            });
        });
        let flags = meter.clone();
        let receiver = thread::spawn(move || {
            let mut times = delays();
            while !flags.stop.load(Relaxed) {
                load::receive(&sink, |_, bytes, _, at| {
                    if bytes[8] == 1 {
                        let took = at.saturating_sub(load::sent_ns(bytes));
                        times.saturating_record(took / 1000);
                    }
                });
            }
            times
        });
        meter.finish(vec![sender], receiver)
    }

    /// Whether packets sent from now on are measured.
    pub fn measure(&self, on: bool) {
        self.measures.store(on, Relaxed);
    }

    /// Stops, after waiting for the last packets.
    pub fn stop(self) -> Delays {
        self.measure(false);
        thread::sleep(Duration::from_millis(300));
        self.stop.store(true, Relaxed);
        for thread in self.threads {
            thread.join().expect("a sender");
        }
        Delays {
            times: self.receiver.join().expect("a receiver"),
            sent: self.sent.load(Relaxed),
        }
    }
}

/// What a meter's threads share.
#[derive(Clone)]
struct Flags {
    stop: Arc<AtomicBool>,
    measures: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
}

impl Flags {
    fn new() -> Self {
        Self {
            stop: Arc::default(),
            measures: Arc::default(),
            sent: Arc::default(),
        }
    }

    /// Sends at a steady rate; makes up for delays.
    fn paced(&self, every: Duration, mut one: impl FnMut(u64)) {
        let start = Instant::now();
        let mut sequence = 0u64;
        while !self.stop.load(Relaxed) {
            let due = every * u32::try_from(sequence).unwrap_or(u32::MAX);
            let now = start.elapsed();
            if now < due {
                thread::sleep(due - now);
                continue;
            }
            one(sequence);
            if self.measures.load(Relaxed) {
                self.sent.fetch_add(1, Relaxed);
            }
            sequence += 1;
        }
    }

    fn finish(
        &mut self,
        threads: Vec<JoinHandle<()>>,
        receiver: JoinHandle<Histogram<u64>>,
    ) -> Meter {
        Meter {
            stop: Arc::clone(&self.stop),
            measures: Arc::clone(&self.measures),
            sent: Arc::clone(&self.sent),
            threads,
            receiver,
        }
    }
}

/// Identifier of our pings.
const IDENTIFIER: u16 = 0xec0e;
const IDENTIFIER_BYTES: [u8; 2] = IDENTIFIER.to_be_bytes();

fn ping_socket(to: IpAddr) -> OwnedFd {
    let icmp = SockProtocol::Icmp;
    let socket = socket(
        AddressFamily::Inet,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        icmp,
    )
    .expect("a raw socket");
    let look = TimeVal::new(0, 20_000);
    sockopt::ReceiveTimeout
        .set(&socket, &look)
        .expect("timeout");
    let stamps = sockopt::ReceiveTimestampns;
    stamps.set(&socket, &true).expect("time stamps");
    let to = SockaddrStorage::from(SocketAddr::new(to, 0));
    connect(socket.as_raw_fd(), &to).expect("connect");
    socket
}

/// The next ICMP message and its receive time.
fn reply(socket: &OwnedFd) -> Option<([u8; PING], u64)> {
    let mut buffer = [0; 128];
    let mut space = cmsg_space!(TimeSpec);
    let (len, at) = {
        let mut slices = [std::io::IoSliceMut::new(&mut buffer)];
        let fd = socket.as_raw_fd();
        let flags = MsgFlags::empty();
        let message = recvmsg::<()>(fd, &mut slices, Some(&mut space), flags).ok()?;
        let stamp = message.cmsgs().ok()?.find_map(|one| match one {
            ControlMessageOwned::ScmTimestampns(at) => {
                Some(at.tv_sec() as u64 * 1_000_000_000 + at.tv_nsec() as u64)
            }
            _ => None,
        });
        (message.bytes, stamp.unwrap_or_else(clock_ns))
    };
    // After the IPv4 header.
    let header = usize::from(buffer[0] & 0xf) * 4;
    let reply = buffer[..len].get(header..header + PING)?;
    Some((reply.try_into().ok()?, at))
}

/// RFC 1071.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// A sample of the agent.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    /// When.
    pub at: Instant,
    /// CPU time so far.
    pub cpu: Duration,
    /// Bytes.
    pub memory: u64,
}

/// Samples a process ten times a second.
pub struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Cost>>,
}

impl Watch {
    /// Starts.
    pub fn start(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut all = Vec::new();
            while !stopped.load(Relaxed) {
                all.push(Cost {
                    at: Instant::now(),
                    cpu: process_cpu(pid),
                    memory: process_memory(pid),
                });
                thread::sleep(Duration::from_millis(100));
            }
            all
        });
        Self { stop, thread }
    }

    /// Stops; returns all samples.
    pub fn stop(self) -> Vec<Cost> {
        self.stop.store(true, Relaxed);
        self.thread.join().expect("the watch")
    }
}

/// Drops at the hosts' own devices so far, by all root qdiscs.
pub fn host_drops(lab: &Lab) -> u64 {
    let drops = lab.hosts.iter().map(|host| {
        let found = host.nl.root_qdisc(host.ifindex).expect("qdiscs");
        found.map_or(0, |qdisc| u64::from(qdisc.drops))
    });
    drops.sum()
}

/// CPU time of a process so far, all threads.
pub fn process_cpu(pid: u32) -> Duration {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(pid as i32));
    let time = clock.and_then(|clock| clock.now());
    time.map_or(Duration::ZERO, Duration::from)
}

/// Memory of a process, bytes.
pub fn process_memory(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Opens the same namespace again, for another thread.
pub fn same(ns: &NetNs) -> NetNs {
    NetNs::named(ns.name()).expect("a namespace")
}
