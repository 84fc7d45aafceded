//! The rig: HP's Fig. 1 in two phases, first without and then with control. On a kernel (ecn-user) it consists of
//! namespaces and bridges; elsewhere, [`simulate`] runs an equivalent simulation.

pub mod args;
pub mod report;
mod run;

pub use run::run;

use std::collections::BTreeMap;

use ecn_core::marking::Marking;
use ecn_core::response::Function;
use ecn_sim::engine::{MS, Time, US};
use ecn_sim::measure::Snapshot;
use ecn_sim::model::Response;
use ecn_sim::network::Network;
use ecn_sim::report::{RunError, hp_shares};
use ecn_sim::scenario::{Rig, Scenario, ScenarioError, Topology, Victim};
use ecn_units::DurationText;

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
    /// HP's scenario: first without control, then with it.
    pub fn two_phases(marking: Marking, response: Function) -> Vec<Self> {
        vec![
            Self {
                name: "uncontrolled".to_owned(),
                marking: Marking::None,
                response: Function::None,
            },
            Self {
                name: "controlled".to_owned(),
                marking,
                response,
            },
        ]
    }

    /// Every marking with every response, after a phase without control.
    pub fn compare() -> Vec<Self> {
        let mut phases = Self::two_phases(Marking::None, Function::None);
        phases.truncate(1);
        for &response in Function::ALL.iter().filter(|f| **f != Function::None) {
            for marking in Marking::HP {
                phases.push(Self {
                    name: format!("{marking}-{response}"),
                    marking,
                    response,
                });
            }
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

/// The first option that is not at its default although it applies only to a kernel.
fn only_on_a_kernel(args: &RigArgs) -> Option<&'static str> {
    [
        (args.traffic != Traffic::default(), "--traffic"),
        (
            args.congestion_control != CONGESTION_CONTROL,
            "--congestion-control",
        ),
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
///
/// # Errors
///
/// An option applies only to a kernel, or a value is out of its range.
pub fn simulate(args: &RigArgs) -> Result<Report, RunError> {
    if let Some(name) = only_on_a_kernel(args) {
        return Err(ScenarioError::OnlyOnAKernel(name).into());
    }
    let mut scenario = scenario(args)?;
    let packet_bytes = Rig::default().packet_bytes;
    let phases: Result<Vec<Phase>, RunError> = args
        .phases()
        .into_iter()
        .map(|plan| phase(&mut scenario, args, plan, packet_bytes))
        .collect();
    Ok(Report {
        kernel: "none: simulated".to_owned(),
        parameters: RigParameters {
            link_rate_bytes_per_s: args.hosts.link_rate.bytes_per_s(),
            packet_bytes,
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

fn phase(
    scenario: &mut Scenario,
    args: &RigArgs,
    plan: PhasePlan,
    packet_bytes: u32,
) -> Result<Phase, RunError> {
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
    let sent: u64 = network
        .flows
        .iter()
        .map(|flow| network.hops[flow.hops.start as usize].channel as usize)
        .map(|channel| window.channel_bytes[channel] / u64::from(packet_bytes))
        .sum();
    let measured = record.control_latencies.iter();
    let mut latencies: Vec<Time> = measured
        .filter(|(at, _)| *at >= start)
        .map(|(_, latency)| latency / US)
        .collect();
    latencies.sort_unstable();
    let quantile = |percent: usize| {
        let at = (latencies.len() * percent).div_ceil(100).saturating_sub(1);
        latencies.get(at).copied()
    };
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
        sent_packets: sent,
        dropped_packets: window.dropped.iter().sum(),
        marked_packets: window.flow_marked.iter().sum(),
        messages: Some(window.messages),
        root_queue_mean_packets: shares.root_queue_mean_packets.unwrap_or(0.0),
        root_queue_max_packets: most.unwrap_or(0).into(),
        control_latency_us_p50: quantile(50),
        control_latency_us_p99: quantile(99),
        cpu_share: None,
        victim_ping_us_p50: None,
        victim_ping_us_p99: None,
        victim_tcp_rtt_us_p50: None,
        victim_tcp_rtt_us_p99: None,
        tcp_retransmitted_segments: None,
        tcp_resets: None,
        checksum_errors: None,
        samples: samples(network, &record.series, root),
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
