//! A run of a row: set up, measured, and removed.

use std::{
    collections::BTreeMap,
    ops::Range,
    process::Command,
    sync::atomic::Ordering::Relaxed,
    thread::sleep,
    time::{Duration, Instant},
};

use ecn_report::statistics::jain;
use ecn_tests::{
    lab::{FRAME, Lab},
    quiet::CpuTime,
};
use ecn_user::rig::traffic::check_congestion_control;
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::{
    Args,
    agent::{Agent, Setup},
    load::{How, Kind, Load, PAYLOAD},
    meters::{self, Cost, Delays, Meter, Sample, Sampler, Watch},
    rows::{HOSTS, PING, Row, SERVER, SINK, Special, VOICE},
    web::{Transfers, Web},
};

/// Duration that is not measured.
const WARM_UP: Duration = Duration::from_secs(2);
/// How long the agent is observed after many connections.
const AFTER: Duration = Duration::from_secs(10);
/// Packets in the port's queue.
const QUEUE: u32 = 100;
/// Maximum rate of a host's NIC. A machine cannot send more from ten hosts: senders that never wait for their NIC keep all
/// other processes off the CPUs.
const MOST_NIC_BYTES_PER_S: u64 = 125_000_000;
/// Share of its rate that a full port carries as UDP payload.
const FULL: f64 = PAYLOAD as f64 / FRAME as f64;

/// How the port is controlled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Control {
    /// Nothing: a pfifo.
    None,
    /// The agent, endpoints at all hosts.
    Ecn,
    /// The agent, endpoints at senders only, marks reported by messages from the port.
    Backward,
    /// As `backward`, with BCN instead of marks.
    Bcn,
    /// As `backward`, with QCN.
    Qcn,
    /// At the port, an HTB class for each host that may borrow from the others.
    Htb,
    /// Both: the agent, and a class for each host at the port.
    EcnHtb,
    /// fq_codel below the port's class.
    FqCodel,
    /// fq_codel, and hosts whose TCP negotiates ECN.
    FqCodelEcn,
    /// cake below the port's class.
    Cake,
    /// RED that marks below the port's class, and hosts whose TCP is DCTCP.
    DctcpRed,
}

impl Control {
    /// Whether the agent runs.
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Ecn | Self::EcnHtb) || self.messages().is_some()
    }

    /// The bridge's configuration, if its ports send messages.
    fn messages(self) -> Option<&'static str> {
        match self {
            Self::Backward => Some("bridge.feedback=backward"),
            Self::Bcn => Some("bridge.marking=bcn"),
            Self::Qcn => Some("bridge.marking=qcn"),
            _ => None,
        }
    }

    /// As it is typed.
    pub fn name(self) -> String {
        let value = clap::ValueEnum::to_possible_value(&self);
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A measured row; what does not apply is left out.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Its name.
    pub row: String,
    /// What controlled it.
    pub control: Control,
    /// Port's rate, bytes per second; 0 without a shaper.
    rate: u64,
    values: BTreeMap<&'static str, f64>,
    /// Goodput of each host, Mbit/s.
    hosts: Vec<f64>,
    /// Goodput of each flow, Mbit/s.
    flows: Vec<f64>,
}

/// Names above [`Outcome::line`].
pub const HEAD: &str = "row                control    %rate  %full   Jain  queue   max  drops/s host-dr/s ping50 ping99  lost%  agent  MB   CE%  CPU steal% more";

impl Outcome {
    /// One of its values; NaN if it has none of that name.
    pub fn value(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(f64::NAN)
    }

    /// Medians of several runs.
    pub fn median(runs: Vec<Self>) -> Option<Self> {
        let mut median = runs.first()?.clone();
        for (name, value) in &mut median.values {
            let all = runs.iter().filter_map(|run| run.values.get(name).copied());
            *value = middle(all.collect());
        }
        median.hosts = medians(&runs, |run| &run.hosts);
        median.flows = medians(&runs, |run| &run.flows);
        Some(median)
    }

    /// Text output.
    pub fn line(&self) -> String {
        let v = |name: &str| self.value(name);
        let control = self.control.name();
        let mut line = format!(
            "{:<18} {control:<9} {:>6.1} {:>6.1} {:>6.3} {:>6.1} {:>5.0} {:>8.0} {:>8.0} {:>6.2} {:>6.2} {:>6.1} {:>6.2} {:>4.0} {:>5.1} {:>4.2} {:>6.1} ",
            self.row,
            v("rate_percent"),
            v("full_percent"),
            v("jain"),
            v("queue_mean_packets"),
            v("queue_max_packets"),
            v("drops_per_s"),
            v("host_drops_per_s"),
            v("ping_p50_ms"),
            v("ping_p99_ms"),
            v("ping_lost_percent"),
            v("agent_cores"),
            v("agent_mb"),
            v("ce_percent"),
            v("machine_cores"),
            v("stolen_percent"),
        );
        for (name, value) in &self.values {
            if !COLUMNS.contains(name) {
                line += &format!(" {name} {value:.2}");
            }
        }
        let hosts: Vec<String> = self.hosts.iter().map(|m| format!("{m:.1}")).collect();
        if hosts.len() > 1 {
            line += &format!(" hosts {}", hosts.join(" "));
        }
        line.replace("NaN", "  -")
    }

    /// JSON output.
    pub fn json(&self) -> Value {
        let control = self.control.name();
        let thousandth = |value: f64| (value * 1000.0).round() / 1000.0;
        let values = self.values.iter();
        let values: serde_json::Map<_, _> = values
            .map(|(name, value)| ((*name).to_owned(), json!(thousandth(*value))))
            .collect();
        let rounded = |rates: &[f64]| rates.iter().copied().map(thousandth).collect::<Vec<_>>();
        let mut row = json!({"row": self.row, "control": control, "rate_bytes_per_s": self.rate,
            "host_mbit_per_s": rounded(&self.hosts), "flow_mbit_per_s": rounded(&self.flows)});
        row.as_object_mut().expect("an object").extend(values);
        row
    }
}

/// Names of the columns of [`Outcome::line`].
const COLUMNS: [&str; 15] = [
    "rate_percent",
    "full_percent",
    "jain",
    "queue_mean_packets",
    "queue_max_packets",
    "drops_per_s",
    "host_drops_per_s",
    "ping_p50_ms",
    "ping_p99_ms",
    "ping_lost_percent",
    "agent_cores",
    "agent_mb",
    "ce_percent",
    "machine_cores",
    "stolen_percent",
];

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Medians of each entry of a list over several runs.
fn medians(runs: &[Outcome], list: impl Fn(&Outcome) -> &[f64]) -> Vec<f64> {
    let entries = runs.first().map_or(0, |run| list(run).len());
    (0..entries)
        .map(|n| {
            let values = runs.iter().filter_map(|run| list(run).get(n).copied());
            middle(values.collect())
        })
        .collect()
}

/// Counters at a moment.
struct Look {
    at: Instant,
    bytes: Vec<u64>,
    host_drops: u64,
    agent_cpu: Duration,
    machine: CpuTime,
    marked: u64,
    hook_drops: u64,
    departed: u64,
    web: u64,
}

impl Look {
    fn now(lab: &Lab, load: &Load, agent: Option<&Agent>, web: Option<&Web>) -> Self {
        let port = lab.hosts[SINK].port.as_str();
        let counts = load.shared.counts.iter();
        Self {
            at: Instant::now(),
            bytes: counts.map(|count| count.bytes.load(Relaxed)).collect(),
            host_drops: meters::host_drops(lab),
            agent_cpu: agent.map_or(Duration::ZERO, |agent| meters::process_cpu(agent.pid())),
            machine: CpuTime::now(),
            marked: agent.map_or(0, |agent| agent.port(port, &["marked_packets"])),
            hook_drops: hook_drops(lab, agent),
            departed: lab.qdisc(SINK).packets,
            web: web.map_or(0, Web::bytes),
        }
    }
}

/// Runs a row.
///
/// # Errors
///
/// The reason, if it cannot run.
pub fn run(row: &Row, control: Control, args: &Args) -> Result<Outcome, String> {
    for flow in &row.flows {
        if let Kind::Tcp(name) = flow.kind {
            check_congestion_control(name).map_err(|error| error.to_string())?;
        }
    }
    let rate = match row.rate {
        Some(rate) => rate.parse().map_err(|error| format!("{rate}: {error}"))?,
        None => args.rate,
    };
    let rate_bytes = rate.bytes_per_s();
    let link = match args.link_rate {
        Some(link) => link.bytes_per_s(),
        None if row.shaped.is_empty() => 10_000_000_000 / 8,
        None => rate_bytes * row.link,
    };
    let lab = if row.super_packets {
        Lab::with_super_packets(HOSTS)
    } else {
        Lab::new(HOSTS)
    };
    for host in 0..HOSTS {
        if row.shaped.contains(&host) {
            shape(&lab, host, rate_bytes, control)?;
        } else {
            // The default queue of a veth.
            lab.no_queue(host);
        }
    }
    if !row.shaped.is_empty() {
        // Behaves as a wire: at the bridge a packet is no longer charged to its socket.
        let path = "/proc/sys/net/bridge/bridge-nf-call-iptables";
        let set = lab.switch.run(|| std::fs::write(path, "1"));
        if set.is_err() {
            eprintln!(
                "no br_netfilter: sockets wait for their packets until the port has sent them"
            );
        }
    }
    let mut row = row.clone();
    if matches!(control, Control::FqCodelEcn | Control::DctcpRed) {
        for host in &lab.hosts {
            let set = || std::fs::write("/proc/sys/net/ipv4/tcp_ecn", "1");
            host.ns
                .run(set)
                .map_err(|error| format!("tcp_ecn: {error}"))?;
        }
    }
    if control == Control::DctcpRed {
        let dctcp = "dctcp";
        check_congestion_control(dctcp).map_err(|error| error.to_string())?;
        for flow in &mut row.flows {
            if let Kind::Tcp(name) = &mut flow.kind {
                *name = dctcp;
            }
        }
    }
    let row = &row;
    let folder = std::env::temp_dir().join(format!("ecn-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let agent = if control.is_ours() {
        let setup = Setup {
            ecn: args.ecn(),
            link_rate: format!("{}bit", link * 8),
            enforcement: args.enforcement.clone(),
            keys: (args.keys.iter().cloned())
                .chain(control.messages().map(str::to_owned))
                .collect(),
            endpoints: (0..HOSTS)
                .filter(|host| !row.without.contains(host))
                .filter(|&host| {
                    let sends = row.flows.iter().any(|flow| flow.from == host);
                    sends || host != SINK || control.messages().is_none()
                })
                .collect(),
        };
        Some(Agent::start(&setup, &lab, &folder)?)
    } else {
        None
    };
    let measured = measure(row, args, &lab, link, agent.as_ref());
    if let Some(agent) = agent {
        if args.log {
            eprintln!("{}", agent.log());
        }
        agent.stop();
    }
    let _ = std::fs::remove_dir_all(&folder);
    Ok(measured.outcome(row, control, rate_bytes))
}

/// What a run measured.
struct Measured {
    /// At the beginning and at the end of the measured time.
    before: Look,
    after: Look,
    /// That time, nanoseconds since the flows started.
    window: Range<u64>,
    /// [`Look::hook_drops`] before the flows started.
    first_hook_drops: u64,
    samples: Vec<Sample>,
    ping: Delays,
    voice: Option<Delays>,
    web: Option<Transfers>,
    /// One-way delays of the greedy flows, us.
    own: Histogram<u64>,
    /// Of the agent, if one ran: its memory at the end, and its CPU time.
    agent: Option<(u64, Vec<Cost>)>,
}

fn measure(row: &Row, args: &Args, lab: &Lab, link: u64, agent: Option<&Agent>) -> Measured {
    let how = How {
        nic_bytes_per_s: link.min(MOST_NIC_BYTES_PER_S),
        sndbuf: args.sndbuf,
        // Where packets are long, as much as iperf3 does.
        write: if row.super_packets { 128 } else { 16 } << 10,
    };
    let load = Load::open(lab, &row.flows, how);
    let ping = Meter::ping(&lab.hosts[PING], &lab.hosts[SINK]);
    let voice = row
        .voice
        .then(|| Meter::voice(&lab.hosts[VOICE], &lab.hosts[SINK]));
    let watch = agent.map(|agent| Watch::start(agent.pid()));
    let look = |web: Option<&Web>| Look::now(lab, &load, agent, web);
    let measures = |on: bool, web: Option<&Web>| {
        if let Some(web) = web {
            web.measure(on);
        }
        ping.measure(on);
        if let Some(voice) = &voice {
            voice.measure(on);
        }
        load.shared.measures.store(on, Relaxed);
    };
    // Learns addresses, and warms up paths.
    sleep(Duration::from_millis(200));
    let first_hook_drops = hook_drops(lab, agent);
    let start_ns = load.start();
    let start = Instant::now();
    let sampler = Sampler::start(lab, SINK, load.shared.clone(), start_ns);
    let clients = |late: bool| match row.special {
        Special::Web {
            clients,
            bytes,
            after,
        } if after == late => {
            let (server, client) = (&lab.hosts[SERVER], &lab.hosts[SINK]);
            Some(Web::start(server, client, clients, bytes))
        }
        _ => None,
    };
    let early = clients(false);
    sleep(WARM_UP.saturating_sub(start.elapsed()));
    let web = early.or_else(|| clients(true));
    let before = look(web.as_ref());
    let from_ns = start.elapsed().as_nanos() as u64;
    measures(true, web.as_ref());
    let seconds = row.seconds.unwrap_or(args.seconds);
    sleep(Duration::from_secs(seconds).saturating_sub(start.elapsed()));
    measures(false, web.as_ref());
    let to_ns = start.elapsed().as_nanos() as u64;
    let after = look(web.as_ref());
    let memory = agent.map_or(0, |agent| meters::process_memory(agent.pid()));
    let samples = sampler.stop();
    if let Some(web) = &web {
        web.close();
    }
    if let Special::Web { after: true, .. } = row.special {
        sleep(AFTER);
    }
    Measured {
        before,
        after,
        window: from_ns..to_ns,
        first_hook_drops,
        samples,
        ping: ping.stop(),
        voice: voice.map(Meter::stop),
        agent: watch.map(|watch| (memory, watch.stop())),
        web: web.map(Web::stop),
        own: load.stop(),
    }
}

type Values = BTreeMap<&'static str, f64>;

impl Measured {
    fn outcome(&self, row: &Row, control: Control, rate: u64) -> Outcome {
        let mbit = self.mbit();
        let mut values = Values::new();
        self.add_goodput(row, rate, &mbit, &mut values);
        values.insert("jain", jain(mbit.iter().copied()).unwrap_or(f64::NAN));
        self.add_queue(&mut values);
        self.add_delays(row, &mut values);
        self.add_costs(row, &mut values);
        match row.special {
            Special::None => {}
            Special::Start => self.add_start(&mut values),
            Special::Stop { at } => {
                let alone = alone_after(&self.samples, at, rate as f64 * FULL);
                values.insert("alone_after_ms", alone);
            }
            Special::Web { after: late, .. } => self.add_web(late, &mbit, &mut values),
        }
        let by_host = |with: &dyn Fn(usize) -> bool| {
            let mut hosts = BTreeMap::<usize, f64>::new();
            for (flow, mbit) in row.flows.iter().zip(&mbit) {
                if with(flow.from) {
                    *hosts.entry(flow.from).or_default() += mbit;
                }
            }
            hosts.into_values()
        };
        if !row.without.is_empty() {
            let least = by_host(&|host| !row.without.contains(&host));
            let least = least.fold(f64::INFINITY, f64::min);
            values.insert("least_host_mbit_per_s", least);
        }
        Outcome {
            row: row.name.clone(),
            control,
            rate: if row.shaped.is_empty() { 0 } else { rate },
            values,
            hosts: by_host(&|_| true).collect(),
            flows: mbit,
        }
    }

    /// Seconds between the two looks.
    fn seconds(&self) -> f64 {
        (self.after.at - self.before.at).as_secs_f64()
    }

    /// Each flow's goodput.
    fn mbit(&self) -> Vec<f64> {
        let flows = self.before.bytes.iter().zip(&self.after.bytes);
        flows
            .map(|(before, after)| (after - before) as f64 * 8e-6 / self.seconds())
            .collect()
    }

    /// Samples within the measured time.
    fn within(&self) -> Vec<&Sample> {
        let samples = self.samples.iter();
        samples
            .filter(|sample| self.window.contains(&sample.at_ns))
            .collect()
    }

    fn hook_drops(&self) -> f64 {
        self.after.hook_drops.saturating_sub(self.before.hook_drops) as f64
    }

    fn add_goodput(&self, row: &Row, rate: u64, mbit: &[f64], values: &mut Values) {
        let total = |to: usize| {
            let flows = row.flows.iter().zip(mbit);
            flows
                .filter(|(flow, _)| flow.to == to)
                .map(|(_, mbit)| mbit)
                .sum::<f64>()
        };
        if row.shaped.is_empty() {
            values.insert("goodput_mbit_per_s", total(SINK));
            return;
        }
        let rate_mbit = rate as f64 * 8e-6;
        // A full port carries the same share of frames with small packets.
        let voice = self.voice.as_ref().map_or(0.0, |voice| {
            let seconds = (self.window.end - self.window.start) as f64 / 1e9;
            voice.times.len() as f64 / seconds * meters::VOICE_FRAME as f64 * 8e-6 * FULL
        });
        let web = (self.after.web - self.before.web) as f64 * 8e-6 / self.seconds();
        let percent = (total(SINK) + voice + web) / rate_mbit * 100.0;
        values.insert("rate_percent", percent);
        values.insert("full_percent", percent / FULL);
        if row.shaped.len() > 1 {
            values.insert("back_full_percent", total(0) / rate_mbit / FULL * 100.0);
        }
    }

    fn add_queue(&self, values: &mut Values) {
        let within = self.within();
        let queue: f64 = within.iter().map(|sample| f64::from(sample.queue)).sum();
        values.insert("queue_mean_packets", queue / within.len().max(1) as f64);
        let longest = within.iter().map(|sample| sample.queue).max();
        values.insert("queue_max_packets", longest.unwrap_or(0).into());
        let drops = dropped(&within) + self.hook_drops();
        values.insert("drops_per_s", drops / self.seconds());
        let at_hosts = self.after.host_drops.saturating_sub(self.before.host_drops);
        values.insert("host_drops_per_s", at_hosts as f64 / self.seconds());
    }

    fn add_delays(&self, row: &Row, values: &mut Values) {
        values.insert("ping_p50_ms", self.ping.ms(0.5));
        values.insert("ping_p99_ms", self.ping.ms(0.99));
        values.insert("ping_lost_percent", self.ping.lost() * 100.0);
        if row.flows.iter().any(|flow| flow.kind == Kind::Udp) {
            values.insert("own_p50_ms", self.own.value_at_quantile(0.5) as f64 / 1e3);
        }
        if let Some(voice) = &self.voice {
            values.insert("voice_p50_ms", voice.ms(0.5));
            values.insert("voice_p99_ms", voice.ms(0.99));
            values.insert("voice_lost_percent", voice.lost() * 100.0);
        }
    }

    fn add_costs(&self, row: &Row, values: &mut Values) {
        let (before, after) = (&self.before, &self.after);
        let [busy, stolen] = after.machine.shares_since(&before.machine);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        values.insert("machine_cores", busy * cores as f64);
        values.insert("stolen_percent", stolen * 100.0);
        let Some((memory, _)) = &self.agent else {
            return;
        };
        let cpu = (after.agent_cpu - before.agent_cpu).as_secs_f64();
        values.insert("agent_cores", cpu / self.seconds());
        values.insert("agent_mb", *memory as f64 / 1e6);
        if !row.shaped.is_empty() {
            let departed = after.departed.saturating_sub(before.departed) as f64;
            let marked = after.marked.saturating_sub(before.marked) as f64;
            let arrived = (departed + dropped(&self.within())).max(1.0);
            values.insert("ce_percent", marked / arrived * 100.0);
        }
        if self.hook_drops() > 0.0 {
            values.insert("hook_drops_per_s", self.hook_drops() / self.seconds());
        }
    }

    /// The queue 300 ms after many flows started at once, and all drops.
    fn add_start(&self, values: &mut Values) {
        // A mean over 20 ms.
        let near = self.samples.iter();
        let near = near.filter(|sample| (290_000_000..310_000_000).contains(&sample.at_ns));
        let near: Vec<f64> = near.map(|sample| sample.queue.into()).collect();
        let mean = near.iter().sum::<f64>() / near.len().max(1) as f64;
        values.insert("queue_300ms_packets", mean);
        let all: Vec<&Sample> = self.samples.iter().collect();
        let hook = self.after.hook_drops.saturating_sub(self.first_hook_drops) as f64;
        values.insert("start_drops", dropped(&all) + hook);
    }

    /// Transfers, and with `late` how long, and how much, they cost the agent CPU time.
    fn add_web(&self, late: bool, mbit: &[f64], values: &mut Values) {
        if let Some(web) = &self.web {
            let ms = |q| web.times.value_at_quantile(q) as f64 / 1e3;
            values.insert("transfers_per_s", web.times.len() as f64 / self.seconds());
            values.insert("transfer_p50_ms", ms(0.5));
            values.insert("transfer_p99_ms", ms(0.99));
            values.insert("transfers_failed", web.failed as f64);
            let server = web.bytes as f64 * 8e-6 / self.seconds();
            values.insert("server_mbit_per_s", server);
            // Here each host has a flow.
            let equal = (mbit.iter().sum::<f64>() + server) / (mbit.len() + 1) as f64;
            let off = |share: &f64| (share / equal - 1.0).abs() * 100.0;
            let most = mbit.iter().chain([&server]).map(off).fold(0.0, f64::max);
            values.insert("share_off_percent", most);
        }
        if let Some((_, costs)) = self.agent.as_ref().filter(|_| late) {
            let most = costs.iter().map(|cost| cost.memory).max().unwrap_or(0);
            let last = costs.last().map_or(0, |cost| cost.memory);
            values.insert("agent_most_mb", most as f64 / 1e6);
            values.insert("agent_mb_after", last as f64 / 1e6);
            let idle = idle_after(costs, self.before.at, self.after.at);
            values.insert("agent_idle_after_s", idle);
        }
    }
}

/// Packets dropped by the port's queue between the first and the last sample.
fn dropped(samples: &[&Sample]) -> f64 {
    match samples {
        [first, .., last] => f64::from(last.drops.saturating_sub(first.drops)),
        _ => 0.0,
    }
}

/// Packets that the agent's program dropped at the port.
fn hook_drops(lab: &Lab, agent: Option<&Agent>) -> u64 {
    agent.map_or(0, |agent| agent.port(&lab.hosts[SINK].port, &HOOK_DROPS))
}

/// Counters of `ecn port show` for packets dropped by the program itself.
const HOOK_DROPS: [&str; 1] = ["dropped_unmarkable_packets"];

/// Time from a stop until the first flow carried 90 % of a full port for 50 ms, at the end of these; NaN if it never did.
fn alone_after(samples: &[Sample], stop: Duration, full: f64) -> f64 {
    let stop = stop.as_nanos() as u64;
    let after: Vec<&Sample> = samples.iter().filter(|s| s.at_ns >= stop).collect();
    let mut first = 0;
    for last in &after {
        while last.at_ns - after[first].at_ns > 50_000_000 {
            first += 1;
        }
        let time = (last.at_ns - after[first].at_ns) as f64 / 1e9;
        let bytes = (last.first_bytes - after[first].first_bytes) as f64;
        if time > 0.045 && bytes >= 0.9 * full * time {
            return (last.at_ns - stop) as f64 / 1e6;
        }
    }
    f64::NAN
}

/// Time from the end of many connections until the agent's CPU load is as low as before them (within .05 of a core over half
/// a second); NaN if it is not.
fn idle_after(costs: &[Cost], begin: Instant, end: Instant) -> f64 {
    let share = |from: &Cost, to: &Cost| {
        (to.cpu - from.cpu).as_secs_f64() / (to.at - from.at).as_secs_f64()
    };
    let before: Vec<&Cost> = costs.iter().filter(|cost| cost.at < begin).collect();
    // The flows start in the first half second.
    let (Some(first), Some(last)) = (before.get(5), before.last()) else {
        return f64::NAN;
    };
    let base = share(first, last);
    let after: Vec<&Cost> = costs.iter().filter(|cost| cost.at >= end).collect();
    let idle = after.iter().zip(after.iter().skip(5));
    let idle = idle
        .into_iter()
        .find(|(from, to)| share(from, to) <= base + 0.05);
    idle.map_or(f64::NAN, |(from, _)| (from.at - end).as_secs_f64())
}

/// The port's queue.
fn shape(lab: &Lab, host: usize, rate: u64, control: Control) -> Result<(), String> {
    lab.limit(host, rate, QUEUE);
    let port = &lab.hosts[host].port;
    let tc = |words: String| {
        let run = || Command::new("tc").args(words.split_whitespace()).output();
        match lab.switch.run(run) {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(format!(
                "tc {words}: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            )),
            Err(error) => Err(format!("tc: {error}")),
        }
    };
    let bits = rate * 8;
    match control {
        Control::None | Control::Ecn | Control::Backward | Control::Bcn | Control::Qcn => Ok(()),
        Control::FqCodel | Control::FqCodelEcn => tc(format!(
            "qdisc replace dev {port} parent ec0f:1 handle 2: fq_codel limit 1000"
        )),
        // Marks from 10 packets on, drops only when the queue is full.
        Control::DctcpRed => tc(format!(
            "qdisc replace dev {port} parent ec0f:1 handle 2: red limit {} min {} max {} avpkt 1000 burst 16 \
             probability 1 bandwidth {bits}bit ecn",
            QUEUE * FRAME,
            10 * FRAME,
            11 * FRAME,
        )),
        Control::Cake => tc(format!(
            "qdisc replace dev {port} parent ec0f:1 handle 2: cake besteffort unlimited"
        )),
        Control::Htb | Control::EcnHtb => {
            tc(format!("qdisc del dev {port} root"))?;
            tc(format!(
                "qdisc add dev {port} root handle 1: htb default 99"
            ))?;
            tc(format!(
                "class add dev {port} parent 1: classid 1:1 htb rate {bits}bit burst {FRAME} cburst {FRAME}"
            ))?;
            let share = bits / (HOSTS as u64 - 1);
            let class = |minor: String| {
                tc(format!(
                    "class add dev {port} parent 1:1 classid 1:{minor} htb rate {share}bit ceil {bits}bit \
                     burst {FRAME} cburst {FRAME} quantum {FRAME}"
                ))?;
                tc(format!(
                    "qdisc add dev {port} parent 1:{minor} pfifo limit {QUEUE}"
                ))
            };
            class("99".to_owned())?;
            for (n, other) in lab.hosts.iter().enumerate() {
                if n == host {
                    continue;
                }
                let minor = format!("{:x}", 0x100 + n);
                class(minor.clone())?;
                tc(format!(
                    "filter add dev {port} parent 1: protocol ip prio 1 u32 match ip src {}/32 flowid 1:{minor}",
                    other.v4
                ))?;
            }
            Ok(())
        }
    }
}
