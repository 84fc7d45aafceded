//! Runs phases on the rig and measures them.
//!
//! All measurements are outside of the control loop: link use and drops by the ports' own HTB, the root queue by
//! sampling that HTB, each flow's share by the packets that reached its sink.

use std::{
    cell::RefCell,
    collections::HashMap,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    cpu,
    report::{Phase, Report, RigParameters, Sample, remote_local_ratio},
    rtt::{RoundTrips, RttMeter},
    topology::{HOST_DEVICE, PortProbe, Rig, Role, Topology},
    traffic::{self, Traffic},
};
use ecn_core::{abi::Count, packet::protocol};
use ecn_report::statistics::jain;
use ecn_sim::fabric::cc::{bcn::BcnParameters, qcn::QcnParameters};
use ecn_sim_cli::rig::PhasePlan;

use crate::{
    agent::{self, Agent, Options, enforce::lock, state::Lock},
    cli::table,
    config::{
        self, Config, Endpoint, Enforcement, Every, Feedback, Function, MarkAt, Response, Round,
    },
    net::{ClassStats, diag::TcpCounters},
    units::{Fraction, Rate},
};

/// Interval at which rates are sampled.
const SAMPLE: Duration = Duration::from_millis(100);
/// Interval at which the root queue is sampled.
const QUEUE_SAMPLE: Duration = Duration::from_millis(5);

/// An error of a run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Error of the rig.
    #[error(transparent)]
    Rig(#[from] super::topology::Error),
    /// Error of the agent.
    #[error(transparent)]
    Agent(#[from] agent::Error),
    /// Error of the programs' maps.
    #[error(transparent)]
    Datapath(#[from] crate::datapath::Error),
    /// Error of the traffic.
    #[error(transparent)]
    Traffic(#[from] traffic::Error),
    /// Interrupted by Ctrl-C or SIGTERM.
    #[error("stopped; the rig was removed")]
    Stopped,
}

/// Result of a run.
pub type Result<T> = std::result::Result<T, Error>;

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The rig.
    pub topology: Topology,
    /// The phases, in order.
    pub phases: Vec<PhasePlan>,
    /// Kind of traffic; `None`: traffic is generated elsewhere.
    pub traffic: Option<traffic::Kind>,
    /// Congestion control of TCP sources.
    pub congestion_control: String,
    /// IPv6 instead of IPv4.
    pub ipv6: bool,
    /// Warm-up before a measurement, seconds.
    pub warm_up_s: u64,
    /// Length of a measurement, seconds.
    pub seconds: u64,
    /// Packets per input buffer.
    pub buffer: u32,
    /// Output trigger, packets.
    pub threshold: u32,
    /// Where packets are marked.
    pub mark_at: MarkAt,
    /// How marks are reported to the sources.
    pub feedback: Feedback,
    /// Parameters of BCN and of QCN.
    pub notifications: (BcnParameters, QcnParameters),
    /// Lowest rate.
    pub rmin: Fraction,
    /// Decrease factor of FIMD and AIMD.
    pub m: f64,
    /// Round within which marks decrease a rate at most once, if any.
    pub round: Round,
    /// How often receivers echo.
    pub every: Every,
}

impl Plan {
    fn config(&self, phase: &PhasePlan, rig: &Rig) -> Config {
        let switch = rig.switch().name().to_owned();
        let bridge = |name: &str| config::Bridge {
            netns: Some(switch.clone()),
            marking: phase.marking,
            buffer: self.buffer,
            threshold: self.threshold,
            mark_at: self.mark_at,
            feedback: self.feedback,
            // Only HP's marking. In the simulated bridge with shares, remote to local is .99 instead of .64, but the
            // victim gets .41 of its link instead of .51.
            shares: config::Shares::Off,
            ..config::Bridge::new(name)
        };
        let controlled = phase.response != Function::None;
        let (bcn, qcn) = self.notifications.clone();
        let hosts = rig.hosts().iter();
        let hosts = hosts.filter(|host| host.is_source() || self.has_receivers());
        let endpoint = |host: &super::topology::Host| Endpoint {
            netns: Some(host.netns.clone()),
            link_rate: Rate::from_bytes_per_s(self.topology.link_rate_bytes_per_s),
            enforcement: if controlled && host.is_source() {
                Enforcement::Htb
            } else {
                Enforcement::None
            },
            ..Endpoint::new(HOST_DEVICE)
        };
        Config {
            bridges: vec![bridge("bra"), bridge("brb")],
            endpoints: hosts.map(endpoint).collect(),
            response: Response {
                function: phase.response,
                rmin: self.rmin,
                m: self.m,
                round: self.round,
            },
            echo: config::Echo {
                every: self.every,
                ..config::Echo::default()
            },
            bcn: config::Bcn(bcn),
            qcn: config::Qcn(qcn),
            ..Config::default()
        }
    }

    /// Whether receivers have programs. Backward messages alone do not need them, but they count arrivals for traffic
    /// that does not do so itself.
    fn has_receivers(&self) -> bool {
        let echoed = |phase: &PhasePlan| {
            self.feedback.is_echoed()
                && phase.response != Function::None
                && phase.marking.notifications().is_none()
        };
        self.phases.iter().any(echoed) || self.traffic.is_none_or(traffic::Kind::is_iperf3)
    }

    /// What a flow's sink has received, in bytes on the link.
    fn received_bytes(&self, count: &traffic::FlowCount) -> u64 {
        /// Headers of IP and TCP, with timestamps.
        const TCP_HEADERS: u32 = 52;
        let frame = u64::from(self.topology.frame_bytes());
        let payload = u64::from(self.topology.mtu - TCP_HEADERS);
        match (count.received_packets, count.received_bytes) {
            (Some(packets), _) => packets * frame,
            (None, bytes) => bytes.unwrap_or(0) * frame / payload,
        }
    }

    fn parameters(&self) -> RigParameters {
        RigParameters {
            link_rate_bytes_per_s: self.topology.link_rate_bytes_per_s,
            packet_bytes: self.topology.frame_bytes(),
            local_flows: self.topology.local,
            remote_flows: self.topology.remote,
            victim: self.topology.victim,
            transport: self.traffic.map_or("none", traffic::Kind::name).to_owned(),
            congestion_control: self
                .traffic
                .filter(|kind| kind.has_tcp())
                .map(|_| self.congestion_control.clone()),
            offload: self.topology.offload,
            buffer: self.buffer,
            threshold: self.threshold,
            mark_at: self.mark_at,
            feedback: self.feedback,
            rmin: self.rmin,
            m: self.m,
            round: self.round,
            echo: self.every,
            warm_up_s: self.warm_up_s,
            other: std::collections::BTreeMap::new(),
        }
    }
}

/// Progress of a run.
pub enum Progress<'a> {
    /// A phase begins: `number` of `of`.
    Begin {
        /// The phase.
        phase: &'a PhasePlan,
        /// Its number, from 1.
        number: usize,
        /// Number of phases.
        of: usize,
    },
    /// Another interval of 100 ms.
    Sample {
        /// The phase.
        phase: &'a PhasePlan,
        /// Its rates; `t_s` counts from the end of the warm-up and is negative before.
        sample: &'a Sample,
        /// Completed phases.
        done: &'a [Phase],
    },
    /// A phase is complete.
    End {
        /// Its results.
        phase: &'a Phase,
    },
}

/// Counters at one moment; results are differences.
struct Snapshot {
    /// Each with the time after it was read: on a busy machine, reading can take long.
    ports: HashMap<&'static str, (Instant, ClassStats)>,
    /// When `received` was read.
    at: Instant,
    /// Bytes that reached the sinks, per source.
    received: HashMap<String, u64>,
}

impl Snapshot {
    /// Packets that the rated ports have dropped.
    fn dropped(&self) -> u64 {
        let ports = self.ports.values();
        ports.map(|(_, class)| u64::from(class.drops)).sum()
    }
}

/// Totals that are only read at both ends of a measurement, since reading them costs more.
struct Totals {
    sent: u64,
    marked: u64,
    messages: u64,
    tcp: TcpCounters,
    cpu: Duration,
}

struct Meter<'a> {
    plan: &'a Plan,
    rig: &'a Rig,
    agent: &'a Agent,
    maps: crate::datapath::Maps,
    probes: Vec<(&'static str, PortProbe)>,
    /// Source address to host name and role.
    sources: HashMap<IpAddr, (String, Role)>,
    /// Counts arrivals if receivers have no programs.
    traffic: RefCell<Option<Traffic>>,
}

impl<'a> Meter<'a> {
    fn new(plan: &'a Plan, rig: &'a Rig, agent: &'a Agent) -> Result<Self> {
        let mut sources = HashMap::new();
        for host in rig.hosts().iter().filter(|host| host.is_source()) {
            sources.insert(IpAddr::V4(host.ipv4), (host.name.clone(), host.role));
            sources.insert(IpAddr::V6(host.ipv6), (host.name.clone(), host.role));
        }
        let ports = plan.topology.rated_ports().iter();
        let probes = ports
            .map(|&port| Ok((port, rig.probe(port)?)))
            .collect::<Result<_>>()?;
        Ok(Self {
            plan,
            rig,
            agent,
            maps: agent.maps()?,
            probes,
            sources,
            traffic: RefCell::default(),
        })
    }

    fn victim(&self) -> Option<&String> {
        let mut hosts = self.rig.hosts().iter();
        let victim = hosts.find(|host| host.role == Role::Victim);
        victim.map(|host| &host.name)
    }

    fn received(&self) -> Result<HashMap<String, u64>> {
        let mut received: HashMap<String, u64> = HashMap::new();
        if let Some(traffic) = self.traffic.borrow_mut().as_mut()
            && !self.plan.has_receivers()
        {
            for count in traffic.snapshot()?.flows {
                let bytes = self.plan.received_bytes(&count);
                received.insert(count.name, bytes);
            }
            return Ok(received);
        }
        for (key, receiver) in self.maps.receivers()? {
            let source = table::address(&key.src);
            // The pings beside the victim's flow are not its own.
            let ping = matches!(key.protocol, protocol::ICMP | protocol::ICMPV6);
            if let Some((name, _)) = self.sources.get(&source).filter(|_| !ping) {
                // The hook also sees the Ethernet header.
                *received.entry(name.clone()).or_default() += receiver.bytes;
            }
        }
        Ok(received)
    }

    fn snapshot(&self) -> Result<Snapshot> {
        let look = |(port, probe): &(&'static str, PortProbe)| {
            let class = probe.class()?;
            Ok((*port, (Instant::now(), class)))
        };
        let ports = self.probes.iter().map(look).collect::<Result<_>>()?;
        let received = self.received()?;
        Ok(Snapshot {
            ports,
            at: Instant::now(),
            received,
        })
    }

    fn totals(&self) -> Result<Totals> {
        let mut marked = 0;
        for bridge in &self.agent.state().bridges {
            let view = self.maps.bridge(bridge.number)?;
            marked += bridge
                .ports
                .iter()
                .map(|p| view.port(p.slot).marked)
                .sum::<u64>();
        }
        let sent = self
            .rig
            .source_counters()?
            .iter()
            .map(|(_, c)| c.packets)
            .sum();
        let mut tcp = TcpCounters::default();
        for host in self.rig.hosts() {
            let counters = TcpCounters::read(&self.rig.netns(host)?);
            // Both ends count a reset.
            let resets = if host.is_source() { counters.resets } else { 0 };
            tcp += TcpCounters { resets, ..counters };
        }
        Ok(Totals {
            sent,
            marked,
            messages: self.maps.count(Count::MessageSent)?,
            tcp,
            cpu: cpu::of_others(),
        })
    }

    /// `bytes` in `time`, as a share of the link.
    fn share(&self, bytes: u64, time: Duration) -> f64 {
        bytes as f64 / (self.plan.topology.link_rate_bytes_per_s as f64 * time.as_secs_f64())
    }

    /// Per-flow shares of a role between two moments.
    fn flows(&self, role: Role, from: &Snapshot, to: &Snapshot) -> Vec<f64> {
        let time = to.at - from.at;
        let hosts = self.rig.hosts().iter().filter(|host| host.role == role);
        hosts
            .map(|host| {
                let of = |s: &Snapshot| s.received.get(&host.name).copied().unwrap_or(0);
                self.share(of(to).saturating_sub(of(from)), time)
            })
            .collect()
    }

    fn port(&self, name: &str, from: &Snapshot, to: &Snapshot) -> f64 {
        match (from.ports.get(name), to.ports.get(name)) {
            (Some((began, before)), Some((ended, after))) => {
                self.share(after.bytes - before.bytes, *ended - *began)
            }
            _ => 0.0,
        }
    }

    fn sample(&self, from: &Snapshot, to: &Snapshot, t_s: f64) -> Sample {
        let sum = |role| self.flows(role, from, to).iter().sum();
        Sample {
            t_s,
            root: self.port("root", from, to),
            inter_switch: self.port("tob", from, to),
            local: sum(Role::Local),
            remote: sum(Role::Remote),
            victim: sum(Role::Victim),
            root_queue_packets: to.ports.get("root").map_or(0, |(_, c)| c.qlen_packets),
        }
    }
}

/// Samples the root queue on its own thread; returns mean and maximum when stopped.
struct QueueMeter {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Queue>,
}

/// Result of a [`QueueMeter`].
#[derive(Default)]
struct Queue {
    mean: f64,
    max: u64,
    /// Processor time of the sampling.
    cpu: Duration,
}

impl QueueMeter {
    fn start(probe: PortProbe) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut sum, mut samples, mut max) = (0u64, 0u64, 0u64);
            while !stopped.load(Ordering::Relaxed) {
                if let Ok(class) = probe.class() {
                    let queue = u64::from(class.qlen_packets);
                    sum += queue;
                    samples += 1;
                    max = max.max(queue);
                }
                thread::sleep(QUEUE_SAMPLE);
            }
            let mean = if samples == 0 {
                0.0
            } else {
                sum as f64 / samples as f64
            };
            Queue {
                mean,
                max,
                cpu: cpu::of_thread(),
            }
        });
        Self { stop, thread }
    }

    fn stop(self) -> Queue {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Runs all phases on its own rig. Blocks; needs a tokio runtime for the agent.
///
/// # Errors
///
/// See [`Error`]; the rig is removed in that case too.
pub fn run(
    plan: &Plan,
    stop: &AtomicBool,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<Report> {
    if plan.traffic.is_some_and(traffic::Kind::has_tcp) {
        traffic::check_congestion_control(&plan.congestion_control)?;
    }
    let process_lock = Lock::take()?;
    let rig = Rig::up(&plan.topology)?;
    let mut phases = Vec::new();
    for (number, phase) in plan.phases.iter().enumerate() {
        progress(Progress::Begin {
            phase,
            number: number + 1,
            of: plan.phases.len(),
        });
        let done = run_phase(
            plan,
            phase,
            &rig,
            &process_lock,
            stop,
            &phases,
            &mut progress,
        )?;
        progress(Progress::End { phase: &done });
        phases.push(done);
    }
    rig.down()?;
    Ok(Report {
        kernel: kernel(),
        parameters: plan.parameters(),
        phases,
    })
}

/// Release of the running kernel.
pub fn kernel() -> String {
    nix::sys::utsname::uname()
        .map(|name| name.release().to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn run_phase(
    plan: &Plan,
    phase: &PhasePlan,
    rig: &Rig,
    process_lock: &Lock,
    stop: &AtomicBool,
    done: &[Phase],
    progress: &mut impl FnMut(Progress<'_>),
) -> Result<Phase> {
    let options = Options {
        trace_latency: phase.response != Function::None,
        observe: true,
        ..Options::default()
    };
    let agent = Agent::start(plan.config(phase, rig), options, process_lock)?;
    let meter = Meter::new(plan, rig, &agent)?;
    let traffic_plan = plan.traffic.map(|kind| traffic::Plan {
        congestion_control: plan.congestion_control.clone(),
        ..traffic::Plan::new(&plan.topology, kind, plan.ipv6).of_phase(done.len())
    });
    let victim = traffic_plan
        .iter()
        .flat_map(|plan| &plan.flows)
        .find(|flow| Some(&flow.name) == meter.victim());
    let traffic = traffic_plan.as_ref().map(Traffic::start).transpose()?;
    meter.traffic.replace(traffic);
    let measured = meter.measure(victim, stop, |sample| {
        progress(Progress::Sample {
            phase,
            sample,
            done,
        });
    })?;
    if let Some(traffic) = meter.traffic.take() {
        traffic.stop()?;
    }
    Ok(meter.phase(phase, measured))
}

/// The measurements of a phase, after its warm-up.
struct Measured {
    /// Counts at its start and end.
    from: Snapshot,
    to: Snapshot,
    began: Totals,
    ended: Totals,
    queue: Queue,
    trips: RoundTrips,
    /// Rates, warm-up included.
    samples: Vec<Sample>,
}

/// Time until the next multiple of [`SAMPLE`] that is at least half of it away: after a late sample, rates over a shorter
/// interval would be those of a few packets.
fn until_sample(elapsed: Duration) -> Duration {
    let interval = SAMPLE.as_nanos() as u64;
    let elapsed = elapsed.as_nanos() as u64;
    let next = (elapsed + interval / 2) / interval + 1;
    Duration::from_nanos(next * interval - elapsed)
}

impl Meter<'_> {
    /// Samples a phase until its end.
    fn measure(
        &self,
        victim: Option<&traffic::Flow>,
        stop: &AtomicBool,
        mut on_sample: impl FnMut(&Sample),
    ) -> Result<Measured> {
        let began = Instant::now();
        let warm_up = Duration::from_secs(self.plan.warm_up_s);
        let end = warm_up + Duration::from_secs(self.plan.seconds);
        let mut samples = Vec::new();
        let mut last = self.snapshot()?;
        let mut first: Option<(Snapshot, Totals)> = None;
        let mut queue: Option<QueueMeter> = None;
        let mut round_trips: Option<RttMeter> = None;
        while began.elapsed() < end {
            thread::sleep(until_sample(began.elapsed()));
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Stopped);
            }
            let now = self.snapshot()?;
            let t_s = (now.at - began).as_secs_f64() - warm_up.as_secs_f64();
            let sample = self.sample(&last, &now, t_s);
            on_sample(&sample);
            samples.push(Sample {
                t_s: t_s + warm_up.as_secs_f64(),
                ..sample
            });
            if first.is_none() && began.elapsed() >= warm_up {
                queue = Some(QueueMeter::start(self.rig.probe("root")?));
                round_trips = RttMeter::start(self.rig, self.plan.ipv6, victim)?;
                lock(&self.agent.enforcement().latency_us).reset();
                let totals = self.totals()?;
                first = Some((self.snapshot()?, totals));
            }
            last = now;
        }
        let to = self.snapshot()?;
        let ended = self.totals()?;
        let (from, began) = first.ok_or(Error::Stopped)?;
        Ok(Measured {
            from,
            to,
            began,
            ended,
            queue: queue.map(QueueMeter::stop).unwrap_or_default(),
            trips: round_trips.map(RttMeter::stop).unwrap_or_default(),
            samples,
        })
    }

    /// The report of a phase.
    fn phase(&self, phase: &PhasePlan, measured: Measured) -> Phase {
        let Measured {
            from,
            to,
            began,
            ended,
            queue,
            mut trips,
            samples,
        } = measured;
        let tcp = ended.tcp - began.tcp;
        let time = to.at - from.at;
        let cpu = ended
            .cpu
            .saturating_sub(began.cpu)
            .saturating_sub(queue.cpu + trips.cpu);
        let local = self.flows(Role::Local, &from, &to);
        let remote = self.flows(Role::Remote, &from, &to);
        let (local_sum, remote_sum) = (local.iter().sum(), remote.iter().sum());
        let ([ping_p50, ping_p99], [tcp_p50, tcp_p99]) = (trips.ping(), trips.tcp());
        let latency = lock(&self.agent.enforcement().latency_us).clone();
        let quantile = |q| (!latency.is_empty()).then(|| latency.value_at_quantile(q));
        Phase {
            name: phase.name.clone(),
            marking: phase.marking,
            response: phase.response,
            seconds: self.plan.seconds,
            root: self.port("root", &from, &to),
            inter_switch: self.port("tob", &from, &to),
            local: local_sum,
            remote: remote_sum,
            victim: self.flows(Role::Victim, &from, &to).iter().sum(),
            remote_local_ratio: remote_local_ratio(remote_sum, local_sum),
            jain_local: jain(local),
            jain_remote: jain(remote),
            sent_packets: ended.sent - began.sent,
            dropped_packets: to.dropped() - from.dropped(),
            marked_packets: ended.marked - began.marked,
            messages: Some(ended.messages - began.messages),
            root_queue_mean_packets: queue.mean,
            root_queue_max_packets: queue.max,
            control_latency_us_p50: quantile(0.5),
            control_latency_us_p99: quantile(0.99),
            cpu_share: Some(cpu.as_secs_f64() / time.as_secs_f64()),
            victim_ping_us_p50: ping_p50,
            victim_ping_us_p99: ping_p99,
            victim_tcp_rtt_us_p50: tcp_p50,
            victim_tcp_rtt_us_p99: tcp_p99,
            tcp_retransmitted_segments: Some(tcp.retransmitted_segments),
            tcp_resets: Some(tcp.resets),
            checksum_errors: Some(tcp.checksum_errors),
            samples,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples are at multiples of the interval, and at least half of it apart.
    #[test]
    fn a_late_sample_is_not_followed_by_a_burst() {
        for (elapsed, next) in [
            (0, 100),
            (101, 200),
            (140, 200),
            (160, 300),
            (440, 500),
            (460, 600),
        ] {
            let elapsed = Duration::from_millis(elapsed);
            let at = elapsed + until_sample(elapsed);
            assert_eq!(at, Duration::from_millis(next));
        }
    }
}
