//! The rig: HP's Fig. 1 in two phases, first without and then with control. On a kernel (ecn-user) it consists of
//! namespaces and bridges; elsewhere, [`run`] simulates it.

pub mod args;
pub mod report;

use std::collections::BTreeMap;

use ecn_core::marking::Marking;
use ecn_core::response::Function;
use ecn_report::output::Output;
use ecn_sim::engine::{MS, Time, US};
use ecn_sim::measure::Snapshot;
use ecn_sim::model::Response;
use ecn_sim::network::Network;
use ecn_sim::report::{RunError, hp_shares};
use ecn_sim::scenario::{Rig, Scenario, ScenarioError, Topology, Victim};
use ecn_units::DurationText;

use crate::{Error, print};
use args::{CONGESTION_CONTROL, Offload, Phases, RigArgs, Traffic};
use report::{Phase, Report, RigParameters, Sample};

/// A phase to run.
#[derive(Clone, Debug, PartialEq)]
pub struct PhasePlan {
    /// Name in reports.
    pub name: String,
    /// Marking at both bridges.
    pub marking: Marking,
    /// Response of all sources.
    pub response: Function,
}

impl PhasePlan {
    fn new(name: impl Into<String>, marking: Marking, response: Function) -> Self {
        Self {
            name: name.into(),
            marking,
            response,
        }
    }

    fn uncontrolled() -> Self {
        Self::new("uncontrolled", Marking::None, Function::None)
    }

    /// HP's scenario: first without control, then with it.
    pub fn two_phases(marking: Marking, response: Function) -> Vec<Self> {
        let controlled = Self::new("controlled", marking, response);
        vec![Self::uncontrolled(), controlled]
    }

    /// Every marking with every response, after a phase without control.
    pub fn compare() -> Vec<Self> {
        let mut phases = vec![Self::uncontrolled()];
        for &response in Function::ALL.iter().filter(|f| **f != Function::None) {
            phases.extend(
                Marking::HP
                    .map(|marking| Self::new(format!("{marking}-{response}"), marking, response)),
            );
        }
        phases
    }
}

impl RigArgs {
    /// Whether any source sends TCP.
    pub const fn has_tcp(&self) -> bool {
        match self.traffic {
            Traffic::Udp | Traffic::Iperf3 | Traffic::None => false,
            Traffic::Tcp | Traffic::Mixed | Traffic::Iperf3Tcp | Traffic::Iperf3Mixed => true,
        }
    }

    /// The phases to run, in order.
    pub fn phases(&self) -> Vec<PhasePlan> {
        let mut phases = if self.compare {
            PhasePlan::compare()
        } else {
            PhasePlan::two_phases(self.marking, self.response)
        };
        if self.phases == Phases::Controlled {
            phases.remove(0);
        }
        phases
    }
}

/// `ecn-sim rig`: simulates the rig, and writes and prints the report.
///
/// # Errors
///
/// An option that applies only to a kernel, or results that cannot be written.
pub fn run(args: &RigArgs) -> Result<(), Error> {
    // Detects an unwritable folder before any work is done.
    Output::new(&args.out)?;
    let report = simulate(args)?;
    report.write(&args.out).map_err(Error::failed)?;
    if args.json {
        return print(&report.to_json().map_err(Error::failed)?);
    }
    print(&format!(
        "{}\n{}\nfigures and samples: {}",
        report.table(),
        report.verdict(),
        args.out.display()
    ))
}

/// The first option that is not at its default although it applies only to a kernel.
fn only_on_a_kernel(args: &RigArgs) -> Option<&'static str> {
    let congestion_control = args.congestion_control != CONGESTION_CONTROL;
    [
        (args.traffic != Traffic::default(), "--traffic"),
        (congestion_control, "--congestion-control"),
        (args.hosts.offload != Offload::default(), "--offload"),
        (args.ipv6, "--ipv6"),
    ]
    .into_iter()
    .find_map(|(set, name)| set.then_some(name))
}

/// The scenario that simulates the rig.
///
/// # Errors
///
/// A value is out of its range.
pub fn scenario(args: &RigArgs) -> Result<Scenario, ScenarioError> {
    let mut scenario = Scenario::rig();
    scenario.topology = Topology::Rig(Rig {
        local: args.hosts.local,
        remote: args.hosts.remote,
        victim: if args.hosts.no_victim {
            Victim::Off
        } else {
            Victim::On
        },
        warm_up: DurationText::from_secs(args.warm_up),
        duration: DurationText::from_secs(args.warm_up + args.seconds),
        link_rate: args.hosts.link_rate,
        ..Rig::default()
    });
    let model = &mut scenario.model;
    model.threshold = args.threshold;
    model.buffer = args.buffer;
    model.rmin = args.rmin;
    model.mark_at = args.mark_at;
    model.feedback = args.feedback;
    model.round = args.round;
    model.echo = args.echo;
    scenario.set_text(&format!("m={}", args.m))?;
    // These are not keys of the scenario.
    scenario.model.bcn.clone_from(&args.bcn);
    scenario.model.qcn.clone_from(&args.qcn);
    Ok(scenario)
}

/// Runs the rig's phases in the simulator.
fn simulate(args: &RigArgs) -> Result<Report, RunError> {
    if let Some(name) = only_on_a_kernel(args) {
        return Err(ScenarioError::OnlyOnAKernel(name).into());
    }
    let mut scenario = scenario(args)?;
    let plans = args.phases().into_iter();
    let phases: Result<Vec<Phase>, RunError> =
        plans.map(|plan| phase(&mut scenario, args, plan)).collect();
    Ok(Report {
        kernel: "none: simulated".to_owned(),
        parameters: RigParameters {
            link_rate_bytes_per_s: args.hosts.link_rate.bytes_per_s(),
            packet_bytes: Rig::default().packet_bytes,
            local_flows: args.hosts.local,
            remote_flows: args.hosts.remote,
            victim: !args.hosts.no_victim,
            transport: "udp".to_owned(),
            congestion_control: None,
            offload: false,
            buffer: args.buffer,
            threshold: args.threshold,
            mark_at: args.mark_at,
            feedback: args.feedback,
            rmin: args.rmin,
            m: args.m,
            round: args.round,
            echo: args.echo,
            warm_up_s: args.warm_up,
            other: BTreeMap::new(),
        },
        phases: phases?,
    })
}

/// The rig's sampling interval: of its root queue and, every [`STEPS_PER_SAMPLE`] steps, of its rates.
const STEP: Time = 5 * MS;
const STEPS_PER_SAMPLE: usize = 20;

fn phase(scenario: &mut Scenario, args: &RigArgs, plan: PhasePlan) -> Result<Phase, RunError> {
    scenario.model.marking = plan.marking;
    scenario.model.response = Response::Function(plan.response);
    let end = scenario.duration();
    let start = args.warm_up * 1_000 * MS;
    let run = ecn_sim::report::run(scenario, 1, &[(start, end)], STEP, None)?;
    let (network, record) = (&run.network, &run.record);
    let window = &record.windows[0].counts;
    let shares = hp_shares(network, window, end - start);
    let root = network.channel("root").unwrap_or_default();
    let queue = record.series.iter().skip((start / STEP) as usize);
    let most = queue.map(|counts| counts.line_packets[root]).max();
    let packet_bytes = u64::from(Rig::default().packet_bytes);
    // Packets on the first link of each flow.
    let sent = network.flows.iter().map(|flow| {
        let first = &network.hops[flow.hops.start as usize];
        window.channel_bytes[first.channel as usize] / packet_bytes
    });
    let latencies = record.control_latencies.iter();
    let measured = latencies.filter(|(at, _)| *at >= start);
    let mut latencies: Vec<Time> = measured.map(|(_, latency)| latency / US).collect();
    latencies.sort_unstable();
    let quantile = |percent: usize| {
        let at = (latencies.len() * percent).div_ceil(100).saturating_sub(1);
        latencies.get(at).copied()
    };
    // The rest is not known of a simulation.
    Ok(Phase {
        name: plan.name,
        marking: plan.marking,
        response: plan.response,
        seconds: args.seconds,
        root: shares.root,
        inter_switch: shares.inter_switch,
        local: shares.local,
        remote: shares.remote,
        victim: shares.victim,
        remote_local_ratio: shares.remote_local_ratio,
        jain_local: shares.jain_local,
        jain_remote: shares.jain_remote,
        sent_packets: sent.sum(),
        dropped_packets: window.dropped.iter().sum(),
        marked_packets: window.flow_marked.iter().sum(),
        messages: Some(window.messages),
        root_queue_mean_packets: shares.root_queue_mean_packets.unwrap_or(0.0),
        root_queue_max_packets: most.unwrap_or(0).into(),
        control_latency_us_p50: quantile(50),
        control_latency_us_p99: quantile(99),
        samples: samples(network, &record.series, root),
        ..Phase::default()
    })
}

fn samples(network: &Network, series: &[Snapshot], root: usize) -> Vec<Sample> {
    let ends = series.iter().step_by(STEPS_PER_SAMPLE);
    let time = STEP * STEPS_PER_SAMPLE as Time;
    ends.clone()
        .zip(ends.skip(1))
        .enumerate()
        .map(|(index, (from, to))| {
            let shares = hp_shares(network, &to.since(from), time);
            Sample {
                t_s: (index + 1) as f64 * time as f64 / (1e3 * MS as f64),
                root: shares.root,
                inter_switch: shares.inter_switch,
                local: shares.local,
                remote: shares.remote,
                victim: shares.victim,
                root_queue_packets: to.line_packets[root],
            }
        })
        .collect()
}
