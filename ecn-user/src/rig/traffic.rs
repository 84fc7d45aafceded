//! The rig's traffic: greedy senders in every source's namespace, counting sinks at the other end.
//!
//! It runs in its own process (`ecn traffic`, hidden), to separate its processor time from the agent's, and to be
//! killed as a whole. The parent writes lines to its standard input and reads JSON lines from its standard output:
//!
//! ```text
//! parent  {plan}        child  report once every sender has started
//! parent  snapshot      child  report
//! parent  stop, or EOF  child  report, then it ends
//! ```

use super::topology::{HOST_DEVICE, Role, Topology, bridge_releases_sockets};
use crate::agent::enforce::now_ns;
use crate::net::{self, NetNs, sys};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

mod iperf3;
mod sockets;

pub use sockets::check_congestion_control;

/// Send buffer if packets on their way count against it: 28 packets of 2068 bytes.
const COVERING_BUFFER: usize = 64 << 10;
/// How long the parent waits for a reply.
const ANSWER: Duration = Duration::from_secs(20);
/// Interval at which a blocked thread checks whether it should end.
const LOOK: Duration = Duration::from_millis(50);

/// An error of the traffic.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket call failed.
    #[error("flow {flow}: cannot {what} in namespace {netns:?}: {errno}")]
    Socket {
        /// The flow, or the sink's address.
        flow: String,
        /// Operation.
        what: &'static str,
        /// Namespace.
        netns: String,
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel does not support the requested congestion control.
    #[error(
        "this kernel does not support the TCP congestion control {asked:?} ({because}); it has {available}"
    )]
    CongestionControl {
        /// The requested one.
        asked: String,
        /// The kernel's error.
        because: String,
        /// Those that it supports.
        available: String,
    },
    /// iperf3 could not be started.
    #[error(
        "cannot start iperf3: {source}; install it (apt-get install iperf3), or use the traffic \
         \"udp\", \"tcp\" or \"mixed\", which do not need it"
    )]
    NoIperf3 {
        /// Cause.
        source: io::Error,
    },
    /// iperf3 ended early or printed something unexpected.
    #[error("flow {flow}: iperf3 failed: {message}")]
    Iperf3 {
        /// The flow.
        flow: String,
        /// Its output.
        message: String,
    },
    /// The traffic process could not be started, or its pipes broke.
    #[error("cannot {what} the traffic process: {source}")]
    Process {
        /// Operation.
        what: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The traffic process ended early.
    #[error("the traffic process ended early ({status}); see its messages above")]
    Ended {
        /// Its exit status.
        status: String,
    },
    /// The traffic process does not answer.
    #[error("the traffic process has not answered for {} s", ANSWER.as_secs())]
    Silent,
    /// The traffic process has read an unexpected line.
    #[error("the traffic process cannot parse {0}")]
    Line(String),
    /// Error of the network layer.
    #[error(transparent)]
    Net(#[from] net::Error),
}

/// Result of the traffic.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Transport protocol of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Frames of maximum size, as fast as the socket accepts them; its buffer is the window.
    #[default]
    Udp,
    /// A bulk transfer.
    Tcp,
}

/// The kind of traffic, and its generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// UDP from our own sockets.
    #[default]
    Udp,
    /// TCP from our own sockets.
    Tcp,
    /// TCP for every other source of a class, beginning with the first, hence also for the victim.
    Mixed,
    /// `iperf3 -u -b 0`.
    Iperf3Udp,
    /// `iperf3`.
    Iperf3Tcp,
    /// As `Mixed`, with iperf3.
    Iperf3Mixed,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Udp,
        Self::Tcp,
        Self::Mixed,
        Self::Iperf3Udp,
        Self::Iperf3Tcp,
        Self::Iperf3Mixed,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Mixed => "mixed",
            Self::Iperf3Udp => "iperf3-udp",
            Self::Iperf3Tcp => "iperf3-tcp",
            Self::Iperf3Mixed => "iperf3-mixed",
        }
    }

    /// Whether iperf3 sends, instead of our own sockets.
    pub const fn is_iperf3(self) -> bool {
        matches!(self, Self::Iperf3Udp | Self::Iperf3Tcp | Self::Iperf3Mixed)
    }

    /// Whether any flow is TCP.
    pub const fn has_tcp(self) -> bool {
        !matches!(self, Self::Udp | Self::Iperf3Udp)
    }

    /// Transport of the n-th flow of a class.
    const fn transport(self, n: usize) -> Transport {
        match self {
            Self::Udp | Self::Iperf3Udp => Transport::Udp,
            Self::Tcp | Self::Iperf3Tcp => Transport::Tcp,
            Self::Mixed | Self::Iperf3Mixed if n.is_multiple_of(2) => Transport::Tcp,
            Self::Mixed | Self::Iperf3Mixed => Transport::Udp,
        }
    }
}

/// One flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Name of the source's host.
    pub name: String,
    /// Its transport.
    pub transport: Transport,
    /// Namespace of the source.
    pub netns: String,
    /// Address and port from which it sends.
    pub source: SocketAddr,
    /// Namespace of the sink.
    pub sink_netns: String,
    /// Address and port to which it sends.
    pub destination: SocketAddr,
}

/// The task of the traffic process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What to send.
    pub kind: Kind,
    /// The flows, in the order in which they start.
    pub flows: Vec<Flow>,
    /// Time between two starts, us.
    pub stagger_us: u64,
    /// Bytes of UDP payload in a packet.
    pub payload_bytes: usize,
    /// Send buffer of a UDP socket. The kernel doubles it, charges some 4.6 KB for a frame of 2068 bytes, and wakes the
    /// sender when half of it is free.
    pub socket_buffer_bytes: usize,
    /// Congestion control of TCP.
    pub congestion_control: String,
}

impl Plan {
    /// The flows of the rig: local sources first, then remote ones, the victim last.
    pub fn new(topology: &Topology, kind: Kind, ipv6: bool) -> Self {
        let hosts = topology.hosts();
        let mut of_class = BTreeMap::new();
        let address = |host: &super::topology::Host| -> IpAddr {
            if ipv6 {
                host.ipv6.into()
            } else {
                host.ipv4.into()
            }
        };
        let sources = hosts.iter().filter(|host| host.is_source());
        let flows = sources.enumerate().filter_map(|(n, host)| {
            let role = if host.role == Role::Victim {
                Role::VictimSink
            } else {
                Role::Sink
            };
            let sink = hosts.iter().find(|host| host.role == role)?;
            // iperf3 serves one client per port.
            let port = if kind.is_iperf3() {
                5201 + n as u16
            } else {
                5000
            };
            let before = of_class.entry(host.role).or_insert(0);
            let transport = kind.transport(*before);
            *before += 1;
            Some(Flow {
                name: host.name.clone(),
                transport,
                netns: host.netns.clone(),
                source: SocketAddr::new(address(host), 20_000 + n as u16),
                sink_netns: sink.netns.clone(),
                destination: SocketAddr::new(address(sink), port),
            })
        });
        let headers = if ipv6 { 40 + 8 } else { 20 + 8 };
        Self {
            kind,
            flows: flows.collect(),
            stagger_us: 100,
            payload_bytes: topology.mtu as usize - headers,
            socket_buffer_bytes: socket_buffer_bytes(),
            congestion_control: "cubic".to_owned(),
        }
    }

    /// Gives the n-th such plan of a rig its own source ports: connections of the previous one may not be closed yet,
    /// which iperf3 treats as an error.
    pub fn of_phase(mut self, n: usize) -> Self {
        for flow in &mut self.flows {
            flow.source.set_port(flow.source.port() + 1000 * n as u16);
        }
        self
    }
}

/// About four packets of a flow wait at its source. If the buffer covers the whole path, the flows together must be
/// able to fill the queues, or there is no congestion.
fn socket_buffer_bytes() -> usize {
    if bridge_releases_sockets() {
        8 << 10
    } else {
        COVERING_BUFFER
    }
}

/// What a flow has done since its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct FlowCount {
    /// Name of the source's host.
    pub name: String,
    /// Packets passed to the socket; unknown for TCP and iperf3 (the source's HTB counts them).
    pub sent_packets: Option<u64>,
    /// Packets at the sink; unknown for TCP.
    pub received_packets: Option<u64>,
    /// Bytes at the sink, without headers; with iperf3, unknown before the end.
    pub received_bytes: Option<u64>,
}

/// Counts at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// `CLOCK_MONOTONIC`, for comparison with other counters.
    pub monotonic_ns: u64,
    /// In the order of the plan.
    pub flows: Vec<FlowCount>,
}

/// Counters of one flow, shared by its threads.
#[derive(Debug, Default)]
struct Count {
    sent_packets: AtomicU64,
    received_packets: AtomicU64,
    received_bytes: AtomicU64,
}

/// State shared by the threads of the traffic process.
#[derive(Debug)]
struct Shared {
    plan: Plan,
    counts: Vec<Count>,
    /// Zero until every socket is open; then the time of the first start, `CLOCK_MONOTONIC`.
    start_ns: AtomicU64,
    stop: AtomicBool,
}

impl Shared {
    fn stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    /// Waits for the start of the n-th flow; false if the traffic ends first.
    fn wait_for_start(&self, flow: usize) -> bool {
        while !self.stopped() {
            match self.start_ns.load(Relaxed) {
                0 => std::thread::sleep(Duration::from_millis(1)),
                start => {
                    let at = start + flow as u64 * self.plan.stagger_us * 1000;
                    std::thread::sleep(Duration::from_nanos(at.saturating_sub(now_ns())));
                    return true;
                }
            }
        }
        false
    }

    fn report(&self) -> Report {
        let flows = self
            .plan
            .flows
            .iter()
            .zip(&self.counts)
            .map(|(flow, count)| {
                let ours = !self.plan.kind.is_iperf3();
                let udp = ours && flow.transport == Transport::Udp;
                let read = |known: bool, counter: &AtomicU64| known.then(|| counter.load(Relaxed));
                FlowCount {
                    name: flow.name.clone(),
                    sent_packets: read(udp, &count.sent_packets),
                    received_packets: read(udp, &count.received_packets),
                    received_bytes: read(ours, &count.received_bytes),
                }
            });
        Report {
            monotonic_ns: now_ns(),
            flows: flows.collect(),
        }
    }
}

/// The body of `ecn traffic`: plan and commands on standard input, reports on standard output.
pub fn main_traffic() -> Result<()> {
    let process = |what| move |source| Error::Process { what, source };
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|errno| process("tie to its parent")(errno.into()))?;
    run(io::stdin().lock(), io::stdout())
}

/// [`main_traffic`] on any input and output.
pub fn run(mut input: impl BufRead, mut output: impl Write) -> Result<()> {
    let process = |what| move |source| Error::Process { what, source };
    let mut line = String::new();
    input
        .read_line(&mut line)
        .map_err(process("read the plan of"))?;
    let plan: Plan =
        serde_json::from_str(&line).map_err(|error| Error::Line(format!("the plan: {error}")))?;
    let counts = plan.flows.iter().map(|_| Count::default()).collect();
    let shared = Shared {
        plan,
        counts,
        start_ns: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    };
    let mut write_report = move |report: &Report| {
        let text = serde_json::to_string(report).map_err(io::Error::from);
        text.and_then(|text| writeln!(output, "{text}").and_then(|()| output.flush()))
            .map_err(process("write the report of"))
    };
    std::thread::scope(|scope| {
        // The threads end in any case.
        let _stop = OnDrop(|| shared.stop.store(true, Relaxed));
        let mut threads = if shared.plan.kind.is_iperf3() {
            iperf3::start(scope, &shared)?
        } else {
            sockets::start(scope, &shared)?
        };
        shared.start_ns.store(now_ns(), Relaxed);
        let all = Duration::from_micros(shared.plan.stagger_us) * shared.plan.flows.len() as u32;
        std::thread::sleep(all);
        write_report(&shared.report())?;
        loop {
            line.clear();
            let len = input.read_line(&mut line).map_err(process("command"))?;
            match line.trim() {
                _ if len == 0 => break,
                "stop" => break,
                "snapshot" => write_report(&shared.report())?,
                "" => {}
                other => return Err(Error::Line(format!("{other:?}; expected snapshot or stop"))),
            }
        }
        let mut report = shared.report();
        shared.stop.store(true, Relaxed);
        for thread in threads.drain(..) {
            match thread.join() {
                Ok(Ok(Some((flow, count)))) => report.flows[flow] = count, // iperf3's own
                Ok(Ok(None)) => {}
                Ok(Err(error)) => return Err(error),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        write_report(&report)
    })
}

/// Result of a thread, with a flow's counts if iperf3 reports them.
type Ending = Result<Option<(usize, FlowCount)>>;

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A running traffic process. Dropping this stops it and waits for it.
#[derive(Debug)]
pub struct Traffic {
    stdin: Option<ChildStdin>,
    reports: Receiver<Report>,
    keeper: Option<JoinHandle<io::Result<ExitStatus>>>,
    pid: u32,
}

impl Traffic {
    /// Starts `ecn traffic` with this executable, and returns once every sender has started.
    pub fn start(plan: &Plan) -> Result<Self> {
        let own = std::env::current_exe().map_err(|source| Error::Process {
            what: "find the executable of",
            source,
        })?;
        let mut command = Command::new(own);
        command.arg("traffic");
        Self::start_command(command, plan)
    }

    /// The same with a given command, which has to call [`main_traffic`].
    pub fn start_command(mut command: Command, plan: &Plan) -> Result<Self> {
        let process = |what| move |source| Error::Process { what, source };
        // In its own process group: an interrupt from the keyboard is for the parent, which then stops it.
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        sys::die_with_parent(&mut command);
        let (to_us, from_keeper) = channel();
        let (to_reports, reports) = channel();
        // The kernel kills the child when the thread that started it ends, so that thread is kept.
        let keeper = std::thread::Builder::new()
            .name("traffic".to_owned())
            .spawn(move || -> io::Result<ExitStatus> {
                let mut child: Child = match command.spawn() {
                    Ok(child) => child,
                    Err(error) => {
                        let _ = to_us.send(Err(error));
                        return Err(io::ErrorKind::NotFound.into());
                    }
                };
                let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
                let _ = to_us.send(Ok((stdin, child.id())));
                if let Some(stdout) = stdout {
                    for line in BufReader::new(stdout).lines() {
                        // Lines that are not a report (of a test harness, say) are skipped.
                        if let Ok(report) = serde_json::from_str(&line?) {
                            let _ = to_reports.send(report);
                        }
                    }
                }
                child.wait()
            })
            .map_err(process("start a thread for"))?;
        let (stdin, pid) = from_keeper
            .recv()
            .map_err(|_| Error::Silent)?
            .map_err(process("start"))?;
        let mut traffic = Self {
            stdin,
            reports,
            keeper: Some(keeper),
            pid,
        };
        let plan = serde_json::to_string(plan).map_err(io::Error::from);
        traffic.write(&plan.map_err(process("encode the plan of"))?)?;
        traffic.report()?;
        Ok(traffic)
    }

    /// Process ID, for its processor time.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The current counts.
    pub fn snapshot(&mut self) -> Result<Report> {
        self.write("snapshot")?;
        self.report()
    }

    /// Stops all senders; returns the counts of the whole run.
    pub fn stop(mut self) -> Result<Report> {
        self.write("stop")?;
        let report = self.report()?;
        self.end();
        Ok(report)
    }

    fn write(&mut self, line: &str) -> Result<()> {
        let written = match &mut self.stdin {
            Some(stdin) => stdin.write_all(format!("{line}\n").as_bytes()),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        // The exit of a process is more informative than the broken pipe.
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(self.ended()),
            other => other.map_err(|source| Error::Process {
                what: "command",
                source,
            }),
        }
    }

    fn report(&mut self) -> Result<Report> {
        match self.reports.recv_timeout(ANSWER) {
            Ok(report) => Ok(report),
            Err(RecvTimeoutError::Timeout) => Err(Error::Silent),
            Err(RecvTimeoutError::Disconnected) => Err(self.ended()),
        }
    }

    fn ended(&mut self) -> Error {
        let status = match self.end() {
            Some(Ok(status)) => status.to_string(),
            Some(Err(error)) => error.to_string(),
            None => "already waited for".to_owned(),
        };
        Error::Ended { status }
    }

    /// Closes the pipe and waits; kills a process that does not end by itself.
    fn end(&mut self) -> Option<io::Result<ExitStatus>> {
        self.stdin = None;
        let keeper = self.keeper.take()?;
        let deadline = Instant::now() + ANSWER;
        while !keeper.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !keeper.is_finished() {
            let pid = nix::unistd::Pid::from_raw(self.pid as i32);
            let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
        }
        keeper.join().ok()
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.end();
    }
}

/// Enters the namespace of a host, and checks that it has the rig's device.
fn enter(netns: &str) -> Result<()> {
    let ns = NetNs::named(netns)?;
    net::Netlink::open(&ns)?.link(HOST_DEVICE)?;
    Ok(ns.enter()?)
}

#[cfg(test)]
#[path = "traffic_tests.rs"]
mod tests;
