//! A data centre: hosts; switches with shared memory, crossbars or slots at their inputs; PFC, credits or tail drop;
//! and congestion control, simulated packet by packet.

pub mod auto;
pub mod cc;
pub mod credit;
pub mod failures;
pub mod file;
pub mod links;
pub mod measure;
pub mod packet;
pub mod parameters;
mod part;
pub mod parts;
pub mod run;
pub mod scenario;
pub mod switch;
pub mod topology;
pub mod workload;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

use crate::bounds::ModelError;
use crate::engine::MS;
use cc::{Name, Scheme};
use failures::Lost;
use measure::Slowdowns;

pub use parts::Options;
pub use run::{Counts, RunError, series, transfers, watch};
pub use scenario::{Kind, Scenario};
use topology::Topology;
use transfers::Transfers;
pub use transfers::{ClassReport, WindowReport};
use workload::Workload;

/// One run, as `ecn sim run -j` prints it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Report {
    /// Name of the scenario.
    pub scenario: String,
    /// The run's seed.
    pub seed: u64,
    /// The applicable keys with their values.
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    pub parameters: toml::Table,
    /// Flows that started.
    pub flows_started: u64,
    /// Flows whose last ACK had arrived by the end.
    pub flows_finished: u64,
    /// When the last of these finished, ms; null if none did.
    pub last_flow_end_ms: Option<f64>,
    /// Slowdowns: completion times over those in an idle network.
    pub fct_slowdown: Slowdowns,
    /// Acknowledged payload over the time until the last flow finished, or until the end of the run if some did not.
    pub goodput_bytes_per_s: u64,
    /// Jain's index of the flows' goodputs: acknowledged payload over the time from a flow's start until it finished,
    /// or until the end of the run; null if nothing was acknowledged.
    pub jain: Option<f64>,
    /// Data packets sent by hosts, including retransmissions.
    pub data_packets: u64,
    /// Data packets dropped for lack of memory: none with PFC or credits.
    pub dropped_packets: u64,
    /// Packets lost because links failed; only if links fail or return during the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_packets: Option<Lost>,
    /// PFC frames that request a pause.
    pub pause_frames: u64,
    /// Data packets that were marked.
    pub marked_packets: u64,
    /// Data packets marked by undetermined ports (TCD).
    pub undetermined_packets: u64,
    /// Flows held up by congestion that is not on their path.
    pub head_of_line_victims: u64,
    /// Hops of data packets: links crossed by all of them.
    pub data_packet_hops: u64,
    /// Hops of all packets, including ACKs and control.
    pub packet_hops: u64,
    /// Events handled.
    pub events: u64,
    /// By class, if flows have classes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, ClassReport>,
    /// The requested time windows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub windows: Vec<WindowReport>,
    /// Wall-clock time of the run, seconds.
    pub wall_s: f64,
    /// Wall-clock time to build the network before the run, seconds.
    pub setup_s: f64,
}

/// Checks that a scenario can be run.
///
/// # Errors
///
/// An invalid value, or a file that cannot be read.
pub fn check(scenario: &Scenario) -> Result<(), RunError> {
    let topology = scenario.topology()?;
    run::Run::new(scenario, &topology, part::Part::ALL, 1)?;
    Ok(())
}

/// [`check`], and that a run with this seed has at least one flow.
///
/// # Errors
///
/// As for [`check`], or no flow starts.
pub fn check_run(scenario: &Scenario, seed: u64) -> Result<(), RunError> {
    let topology = scenario.topology()?;
    let run = run::Run::new(scenario, &topology, part::Part::ALL, seed)?;
    if run.has_flows() {
        return Ok(());
    }
    Err(none_starts(scenario))
}

fn none_starts(scenario: &Scenario) -> RunError {
    let params = &scenario.parameters;
    let reason = match params.workload {
        Workload::Poisson => format!(
            "no flow starts within duration={}, at load={}",
            params.duration, params.load
        ),
        _ => "no flow starts".to_owned(),
    };
    ModelError::new("workload", &params.workload, reason).into()
}

/// Runs a scenario.
///
/// # Errors
///
/// An invalid value, a violated invariant, or no flow to run.
pub fn run(
    scenario: &Scenario,
    seed: u64,
    options: &Options,
) -> Result<(Report, Counts), RunError> {
    run_with(&scenario.parameters.scheme, scenario, seed, options)
}

/// Runs a scenario that has no scheme with a custom one ([`cc`]).
///
/// # Errors
///
/// As for [`run()`], or the scenario has another scheme.
pub fn run_with<S: Scheme>(
    scheme: &S,
    scenario: &Scenario,
    seed: u64,
    options: &Options,
) -> Result<(Report, Counts), RunError> {
    let own = scenario.parameters.scheme;
    if own != Name::None && own.name() != scheme.name() {
        let reason = format!("must be none to run with `{}`", scheme.name());
        return Err(ModelError::new("scheme", own, reason).into());
    }
    let begin = Instant::now();
    let topology = scenario.topology()?.seeded(seed);
    let setup_s = begin.elapsed().as_secs_f64();
    let begin = Instant::now();
    let mut counts = parts::run_with(scheme, scenario, &topology, seed, options)?;
    let wall_s = begin.elapsed().as_secs_f64();
    if counts.flows_started == 0 {
        return Err(none_starts(scenario));
    }
    let mut report = report(scenario, &topology, seed, &mut counts, wall_s, setup_s);
    let name = scheme.name().to_owned();
    report.parameters.insert("scheme".to_owned(), name.into());
    Ok((report, counts))
}

fn report(
    scenario: &Scenario,
    topology: &Topology,
    seed: u64,
    counts: &mut Counts,
    wall_s: f64,
    setup_s: f64,
) -> Report {
    let fct_slowdown = measure::slowdowns(&mut counts.finished);
    let flows = || counts.finished.iter().chain(&counts.unfinished);
    let bytes: u64 = flows().map(|flow| flow.bytes).sum();
    let rates = flows().map(|flow| flow.bytes as f64 / flow.time.max(1) as f64);
    let end = if counts.unfinished.is_empty() {
        counts.last_end
    } else {
        counts.end
    };
    let classes = scenario.classes();
    let all = Transfers {
        from: 0,
        to: end,
        flows: match classes[..] {
            [] => Vec::new(),
            _ => flows().copied().collect(),
        },
    };
    let end_s = end as f64 / (1e3 * MS as f64);
    Report {
        scenario: scenario.name().to_owned(),
        seed,
        parameters: scenario.parameters(),
        flows_started: counts.flows_started,
        flows_finished: counts.finished.len() as u64,
        last_flow_end_ms: (!counts.finished.is_empty())
            .then_some(counts.last_end as f64 / MS as f64),
        fct_slowdown,
        goodput_bytes_per_s: if end_s > 0.0 {
            (bytes as f64 / end_s) as u64
        } else {
            0
        },
        jain: ecn_report::statistics::jain(rates),
        data_packets: counts.data_packets,
        dropped_packets: counts.dropped_packets,
        lost_packets: scenario.links_change().then_some(counts.lost),
        pause_frames: counts.pause_frames,
        marked_packets: counts.marked_packets,
        undetermined_packets: counts.undetermined_packets,
        head_of_line_victims: counts.head_of_line_victims,
        data_packet_hops: counts.data_packet_hops,
        packet_hops: counts.packet_hops,
        events: counts.events,
        classes: all.by_class(&classes, end),
        windows: (counts.windows.iter())
            .map(|window| window.report(topology, &classes, counts.end))
            .collect(),
        wall_s,
        setup_s,
    }
}
