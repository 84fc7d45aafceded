//! The rig: HP's Fig. 1 in two phases, without control and with it. On a kernel (ecn-user) it is made of
//! namespaces and bridges; where that cannot be, [`simulate`] runs it here.

pub mod args;
pub mod report;

use std::collections::BTreeMap;

use args::{CONGESTION_CONTROL, Offload, Phases, RigArgs, Traffic};
use report::{Parameters, Phase, Report, Sample};

use crate::engine::{MS, Time};
use crate::measure::Snapshot;
use crate::model::{Function, Marking, Phases as FlowPhases, Response};
use crate::network::Network;
use crate::policy::{Every, MarkAt, Round};
use crate::report::{RunError, hp_shares, run};
use crate::scenario::{Hp, Scenario, ScenarioError, Topology, Victim};
use crate::units::DurationText;

/// One phase to run.
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
    /// HP's scenario: first without control, then with.
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
            for &marking in Marking::ALL.iter().filter(|m| **m != Marking::None) {
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

/// The rig's options that only a kernel knows are not at their defaults.
fn only_on_a_kernel(args: &RigArgs) -> Option<&'static str> {
    [
        (args.traffic != Traffic::default(), "--traffic"),
        (
            args.congestion_control != CONGESTION_CONTROL,
            "--congestion-control",
        ),
        (args.hosts.offload != Offload::default(), "--offload"),
        (args.ipv6, "--ipv6"),
        (args.mark_at != MarkAt::default(), "--mark-at"),
        (args.echo != Every::default(), "--echo"),
        (matches!(args.round, Round::Time(_)), "--round with a time"),
        (
            args.hosts.local != args.hosts.remote,
            "--local other than --remote",
        ),
    ]
    .into_iter()
    .find_map(|(set, name)| set.then_some(name))
}

/// Runs the rig's phases in the simulator: HP's switches instead of bridges, so that without control
/// queues stop the links before them instead of dropping.
///
/// # Errors
///
/// An option that only a kernel knows, or a value out of its range.
pub fn simulate(args: &RigArgs) -> Result<Report, RunError> {
    if let Some(name) = only_on_a_kernel(args) {
        return Err(ScenarioError::OnlyOnAKernel(name).into());
    }
    let seconds = DurationText::from_secs(args.warm_up + args.seconds);
    let m = args.m.to_string();
    let mut scenario = Scenario::hp();
    scenario.topology = Topology::Hp(Hp {
        flows: args.hosts.local,
        victim: if args.hosts.no_victim {
            Victim::Off
        } else {
            Victim::On
        },
        duration: seconds,
        link_rate: args.hosts.link_rate,
        ..Hp::default()
    });
    scenario.model.threshold = args.threshold;
    scenario.model.buffer = args.buffer;
    scenario.model.rmin = args.rmin;
    scenario.model.phases = FlowPhases::Random;
    scenario.set_text(&format!("m={m}"))?;
    let packet_bytes = Hp::default().packet_bytes;
    let phases: Result<Vec<Phase>, RunError> = args
        .phases()
        .into_iter()
        .map(|plan| phase(&mut scenario, args, plan, packet_bytes))
        .collect();
    Ok(Report {
        kernel: "none: simulated".to_owned(),
        parameters: Parameters {
            link_rate_bytes_per_s: args.hosts.link_rate.bytes_per_s(),
            packet_bytes,
            local_flows: args.hosts.local,
            remote_flows: args.hosts.remote,
            victim: !args.hosts.no_victim,
            transport: "window of 1 packet".to_owned(),
            congestion_control: None,
            offload: false,
            buffer: args.buffer,
            threshold: args.threshold,
            mark_at: MarkAt::Departure,
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

/// Steps of the rig's series, and how many of them make a sample of the figures.
const STEPS: u64 = 20_000;
const STEPS_PER_SAMPLE: usize = 100;

fn phase(
    scenario: &mut Scenario,
    args: &RigArgs,
    plan: PhasePlan,
    packet_bytes: u32,
) -> Result<Phase, RunError> {
    scenario.model.marking = plan.marking;
    scenario.model.response = Response::Function(plan.response);
    let end = scenario.duration();
    let step = (end / STEPS).max(1);
    let start = args.warm_up * 1_000 * MS;
    let run = run(scenario, 1, &[(start, end)], step, None)?;
    let (network, record) = (&run.network, &run.record);
    let window = &record.windows[0].counts;
    let shares = hp_shares(network, window, end - start);
    let root = network.channel("root").unwrap_or_default();
    let measured: Vec<u32> = record
        .series
        .iter()
        .enumerate()
        .filter(|(at, _)| *at as Time * step >= start)
        .map(|(_, counts)| counts.line_packets[root])
        .collect();
    let sent: u64 = network
        .flows
        .iter()
        .map(|flow| network.hops[flow.hops.start as usize].channel as usize)
        .map(|channel| window.channel_bytes[channel] / u64::from(packet_bytes))
        .sum();
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
        remote_local_ratio: shares.remote_local_ratio.unwrap_or(0.0),
        jain_local: shares.jain_local,
        jain_remote: shares.jain_remote,
        sent_packets: sent,
        dropped_packets: record.dropped_packets(),
        marked_packets: window.flow_marked.iter().sum(),
        root_queue_mean_packets: measured.iter().map(|&n| f64::from(n)).sum::<f64>()
            / measured.len().max(1) as f64,
        root_queue_max_packets: measured.iter().copied().max().unwrap_or(0).into(),
        control_latency_us_p50: 0,
        control_latency_us_p99: 0,
        cpu_share: 0.0,
        victim_ping_us_p50: 0,
        victim_ping_us_p99: 0,
        victim_tcp_rtt_us_p50: 0,
        victim_tcp_rtt_us_p99: 0,
        tcp_retransmitted_segments: 0,
        tcp_resets: 0,
        checksum_errors: 0,
        samples: samples(network, &record.series, step, root),
    })
}

fn samples(network: &Network, series: &[Snapshot], step: Time, root: usize) -> Vec<Sample> {
    let ends = series.iter().step_by(STEPS_PER_SAMPLE);
    let time = step * STEPS_PER_SAMPLE as Time;
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
