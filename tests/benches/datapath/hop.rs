//! Real traffic over a bridge: the programs' mean run time, and their effect on throughput.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use aya::{
    programs::loaded_programs,
    sys::{Stats, enable_stats},
};
use ecn_core::abi::name;
use ecn_tests::{
    lab::Lab,
    running::{self, Running, pin},
    traffic::Stream,
};
use ecn_user::{
    agent::Options,
    config::{Config, Enforcement, Marking},
    datapath::{Datapath, Sizes},
};
use serde_json::{Value, json};

use super::{median, tenth};

/// Rounds of traffic, with an empty program and with ours.
pub const ROUNDS: usize = 5;
/// Repetitions of the throughput measurement.
pub const TURNS: usize = 7;
/// Duration of each.
const TIME: Duration = Duration::from_millis(1000);
/// 10 Gbit/s: marks lower rates, but nothing is enforced.
const LINK: u64 = 1_250_000_000;

/// A program under load.
pub struct Load {
    pub program: String,
    pub ns: f64,
    pub over_ns: f64,
    pub runs: u64,
}

impl Load {
    pub fn json(&self) -> Value {
        json!({"program": self.program, "ns": tenth(self.ns),
            "over_empty_ns": tenth(self.over_ns), "runs": self.runs})
    }
}

/// Throughput with some programs.
pub struct Hop {
    pub packets: &'static str,
    pub programs: &'static str,
    pub mbit: f64,
    pub ratio: f64,
}

impl Hop {
    pub fn json(&self) -> Value {
        json!({"packets": self.packets, "programs": self.programs,
            "mbit_per_s": self.mbit.round(), "ratio": (self.ratio * 1000.0).round() / 1000.0})
    }
}

fn bridge_only(lab: &Lab) -> Config {
    running::config(lab, Marking::InputOutput)
}

/// Programs at the ports and at both hosts; rates are computed but not enforced, so that only the programs are measured.
fn everything(lab: &Lab) -> Config {
    let mut config = running::with_endpoints(bridge_only(lab), lab, &[0, 1], LINK);
    for endpoint in &mut config.endpoints {
        endpoint.enforcement = Enforcement::None;
    }
    config
}

/// Run time and runs so far of this process's programs, by name.
fn spent() -> BTreeMap<String, (Duration, u64)> {
    let descriptors = fs::read_dir("/proc/self/fdinfo").expect("descriptors");
    let own: Vec<u32> = descriptors
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .filter_map(|text| {
            let number = text
                .lines()
                .find_map(|line| line.strip_prefix("prog_id:"))?;
            number.trim().parse().ok()
        })
        .collect();
    let mut spent = BTreeMap::new();
    for program in loaded_programs()
        .flatten()
        .filter(|p| own.contains(&p.id()))
    {
        let name = program.name_as_str().unwrap_or_default().to_owned();
        // Links of a program also name it, but it is counted once, since programs are walked, not descriptors.
        let (time, runs) = spent.entry(name).or_insert((Duration::ZERO, 0));
        *time += program.run_time();
        *runs += program.run_count();
    }
    spent
}

/// Mean time and number of runs of each program during some UDP both ways.
fn with_traffic(lab: &Lab) -> Vec<(String, f64, u64)> {
    let (a, b) = (&lab.hosts[0], &lab.hosts[1]);
    let streams = [
        Stream::start(a, b, 7001, 1400),
        Stream::start(b, a, 7002, 1400),
    ];
    std::thread::sleep(TIME / 4);
    let before = spent();
    std::thread::sleep(TIME);
    let after = spent();
    drop(streams);
    let mut means = Vec::new();
    for (program, (time, runs)) in after {
        let (time_before, runs_before) = before.get(&program).copied().unwrap_or_default();
        let (time, runs) = (time.saturating_sub(time_before), runs - runs_before);
        if runs > 0 {
            means.push((program, time.as_nanos() as f64 / runs as f64, runs));
        }
    }
    means
}

/// Every program that runs for packets, and an empty one at the same bridge.
pub fn under_load() -> Vec<Load> {
    let _stats = enable_stats(Stats::RunTime).expect("the kernel's statistics of programs");
    let lab = Lab::new(2);
    let mut all: BTreeMap<String, (Vec<f64>, u64)> = BTreeMap::new();
    let mut add = |means: Vec<(String, f64, u64)>, selected: &dyn Fn(&str) -> bool| {
        for (program, ns, runs) in means.into_iter().filter(|(name, ..)| selected(name)) {
            let (times, total) = all.entry(program).or_default();
            times.push(ns);
            *total += runs;
        }
    };
    for _ in 0..ROUNDS {
        {
            let sizes = Sizes {
                bridges: 1,
                flows: 16,
            };
            let datapath = Datapath::open(&pin(), sizes).expect("load");
            let mut copy = datapath.copy(lab.switch.inum(), 0).expect("a copy");
            let attach = |port: &str| copy.attach(&lab.switch, port, name::EMPTY);
            let ports = lab.hosts.iter().map(|host| host.port.as_str());
            let attached: Result<Vec<_>, _> = ports.map(attach).collect();
            let _attached = attached.expect("attach");
            add(with_traffic(&lab), &|name| name == name::EMPTY);
        }
        let _running = Running::start(everything(&lab), Options::default());
        add(with_traffic(&lab), &|name| name != name::EMPTY);
    }
    let empty = all
        .get(name::EMPTY)
        .map_or(0.0, |(times, _)| median(times.clone()));
    let row = |(program, (times, runs)): (String, (Vec<f64>, u64))| {
        let ns = median(times);
        Load {
            program,
            ns,
            over_ns: ns - empty,
            runs,
        }
    };
    all.into_iter().map(row).collect()
}

/// Megabits per second of one TCP connection.
fn tcp(lab: &Lab) -> f64 {
    let (from, to) = (&lab.hosts[0], &lab.hosts[1]);
    let at = SocketAddr::new(to.address(false), 5001);
    let listener = to.ns.run(|| TcpListener::bind(at)).expect("listen");
    let receiving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        let mut buffer = vec![0; 1 << 17];
        let (start, mut bytes) = (Instant::now(), 0);
        loop {
            match stream.read(&mut buffer).expect("receive") {
                0 => return bytes as f64 * 8e-6 / start.elapsed().as_secs_f64(),
                len => bytes += len,
            }
        }
    });
    let mut stream = from.ns.run(|| TcpStream::connect(at)).expect("connect");
    let chunk = vec![0x5a; 1 << 17];
    let start = Instant::now();
    while start.elapsed() < TIME {
        stream.write_all(&chunk).expect("send");
    }
    drop(stream);
    receiving.join().expect("the receiver")
}

/// With and without programs, alternating.
pub fn throughput() -> Vec<Hop> {
    let mut rows = Vec::new();
    for (packets, lab) in [
        ("super-packets", Lab::with_super_packets(2)),
        ("single frames", Lab::new(2)),
    ] {
        let mut rates: [Vec<f64>; 3] = Default::default();
        for turn in 0..=TURNS {
            let mut measured = [tcp(&lab), 0.0, 0.0];
            for (config, rate) in [bridge_only(&lab), everything(&lab)]
                .into_iter()
                .zip(&mut measured[1..])
            {
                let _running = Running::start(config, Options::default());
                *rate = tcp(&lab);
            }
            // The first warms up.
            if turn > 0 {
                for (rates, rate) in rates.iter_mut().zip(measured) {
                    rates.push(rate);
                }
            }
        }
        // Each pair by itself: other load on the machine changes from one to the next.
        let without = rates[0].clone();
        for (programs, rates) in ["none", "bridge", "bridge and both hosts"]
            .into_iter()
            .zip(rates)
        {
            let ratios = rates
                .iter()
                .zip(&without)
                .map(|(with, without)| with / without);
            rows.push(Hop {
                packets,
                programs,
                ratio: median(ratios.collect()),
                mbit: median(rates),
            });
        }
    }
    rows
}
