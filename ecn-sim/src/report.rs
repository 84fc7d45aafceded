//! The results of a run for users and programs: shares of links, by window.

use ecn_report::statistics::jain;
use ecn_report::table::Columns;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::engine::{MS, NS, Time};
use crate::measure::{Record, Snapshot, Times, Window, flows_of};
use crate::network::{Channel, Network};
use crate::scenario::{Bridge, Rig, Scenario, Topology};
use crate::settings::{ScenarioError, Victim};
use crate::simulation::{self, Options, SimulationError};

/// One run, as `ecn sim run -j` prints it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct RunReport {
    /// Name of the scenario.
    pub scenario: String,
    /// The run's seed.
    pub seed: u64,
    /// The applicable keys with their values.
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    pub parameters: toml::Table,
    /// Shares over time windows.
    pub windows: Vec<WindowReport>,
    /// Marked packets by class. This and what follows is over the whole run.
    pub marked_packets: BTreeMap<String, u64>,
    /// Arrivals that found an input buffer full, over all switches.
    pub input_triggers: u64,
    /// Arrivals that found more than the threshold waiting for an output, over all switches.
    pub output_triggers: u64,
    /// Packets sent that are neither delivered nor in flight: none with input buffers.
    pub dropped_packets: u64,
    /// Packets that crossed a link.
    pub packet_hops: u64,
    /// Events handled.
    pub events: u64,
    /// Wall-clock time of the run, seconds.
    pub wall_s: f64,
}

/// One window.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WindowReport {
    /// Fig. 1.
    Hp(HpWindow),
    /// Any other network.
    Any(AnyWindow),
}

/// Shares of a link's rate in Fig. 1, counted when a packet starts on its last link (`inter_switch`: on that link).
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct HpWindow {
    /// Start, ms.
    pub from_ms: f64,
    /// End, ms.
    pub to_ms: f64,
    /// Utilisation of the link to the congested destination.
    pub root: f64,
    /// Utilisation of the link between the switches.
    pub inter_switch: f64,
    /// Total share of the local flows.
    pub local: f64,
    /// Total share of the remote flows.
    pub remote: f64,
    /// Share of the victim.
    pub victim: f64,
    /// Remote over local share; null without local packets.
    pub remote_local_ratio: Option<f64>,
    /// Jain's index over the local flows; null without local packets.
    pub jain_local: Option<f64>,
    /// Jain's index over the remote flows; null without remote packets.
    pub jain_remote: Option<f64>,
    /// Output queues only: mean number of packets that waited for the root link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_queue_mean_packets: Option<f64>,
    /// Output queues only: maximum number of packets that waited for the root link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_queue_max_packets: Option<u32>,
    /// Output queues only: packets that found a queue full, at all ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dropped_packets: Option<u64>,
}

/// Shares in any network.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct AnyWindow {
    /// Start, ms.
    pub from_ms: f64,
    /// End, ms.
    pub to_ms: f64,
    /// Utilisation of the links that flows use, by name.
    pub links: BTreeMap<String, f64>,
    /// By class.
    pub classes: BTreeMap<String, ClassShare>,
    /// Output queues only: the queues in which flows wait, by link.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queues: BTreeMap<String, QueueCounts>,
}

/// An output queue in a window.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct QueueCounts {
    /// Mean number of packets that waited.
    pub mean_packets: f64,
    /// Maximum number of packets that waited.
    pub max_packets: u32,
    /// Packets that found it full.
    pub dropped_packets: u64,
}

/// A class in a window.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ClassShare {
    /// Sum of its flows' shares of the rates of their last links.
    pub share: f64,
    /// Rate received, headers included, bytes per second.
    pub bytes_per_s: u64,
    /// Jain's index over its flows; null if none received anything.
    pub jain: Option<f64>,
    /// Output queues only: results by host.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub by_host: Option<HostShares>,
}

/// A class's hosts in a window.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct HostShares {
    /// Rate received from each host, headers included, bytes per second.
    pub hosts_bytes_per_s: BTreeMap<String, u64>,
    /// Jain's index over the hosts; null if nothing arrived from any.
    pub jain_hosts: Option<f64>,
    /// Packets that were marked.
    pub marked_packets: u64,
    /// Packets dropped by bridges.
    pub dropped_packets: u64,
    /// Packets of constant-rate flows that found a full queue at their host.
    pub host_dropped_packets: u64,
    /// Median time from the creation of a packet until it left the last queue, us, within 0.4 %; null if none left.
    pub delay_us_p50: Option<f64>,
    /// The 99th percentile, us, within 0.4 %.
    pub delay_us_p99: Option<f64>,
    /// Finished flows, of those with arrivals.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub finished: Option<Finished>,
}

/// Finished flows in a window.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Finished {
    /// Number of finished flows.
    pub finished_flows: u64,
    /// Median time from the arrival of a flow until its last packet was acknowledged, ms, within 0.4 %; null if none
    /// finished.
    pub completion_ms_p50: Option<f64>,
    /// The 99th percentile, ms, within 0.4 %.
    pub completion_ms_p99: Option<f64>,
}

/// A failed run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// An invalid scenario.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The simulation failed.
    #[error(transparent)]
    Simulation(#[from] SimulationError),
    /// A window that is not within the run.
    #[error("window {from_ms}..{to_ms} ms: the run ends at {end_ms} ms")]
    Window {
        /// Start, ms.
        from_ms: u64,
        /// End, ms.
        to_ms: u64,
        /// The run's end, ms.
        end_ms: u64,
    },
}

/// A run's network, record and length.
#[derive(Clone, Debug)]
pub struct Run {
    /// The network.
    pub network: Network,
    /// What was counted.
    pub record: Record,
    /// Wall-clock time of the run.
    pub wall: Duration,
}

/// Runs a scenario. `windows` in ps; if empty, those of the scenario. `progress` is updated regularly with the simulated
/// time.
///
/// # Errors
///
/// The scenario cannot be run, or a window is not within the run.
pub fn run(
    scenario: &Scenario,
    seed: u64,
    windows: &[(Time, Time)],
    series_step: Time,
    progress: Option<Arc<AtomicU64>>,
) -> Result<Run, RunError> {
    let network = check(scenario, windows)?;
    let duration = scenario.duration();
    let windows = if windows.is_empty() {
        default_windows(scenario)
    } else {
        windows.to_vec()
    };
    let options = Options {
        seed,
        duration,
        windows,
        series_step,
        check: false,
        trace: 0,
        progress,
    };
    let start = Instant::now();
    let record = simulation::run(&network, &scenario.model, scenario.table()?, &options)?;
    Ok(Run {
        network,
        record,
        wall: start.elapsed(),
    })
}

/// Checks that a scenario can be run, with windows in ps. Returns its network.
///
/// # Errors
///
/// It cannot be run, or a window is not within the run.
pub fn check(scenario: &Scenario, windows: &[(Time, Time)]) -> Result<Network, RunError> {
    let network = scenario.network()?;
    let end = scenario.duration();
    match windows.iter().find(|(from, to)| *to > end || from >= to) {
        None => Ok(network),
        Some((from, to)) => Err(RunError::Window {
            from_ms: from / MS,
            to_ms: to / MS,
            end_ms: end / MS,
        }),
    }
}

/// The periods before, during and after the victim's activity, each without its first ms. If the victim's activity does
/// not change, everything after the first fifth; for the rig and for bridges, everything after the warm-up.
fn default_windows(scenario: &Scenario) -> Vec<(Time, Time)> {
    let end = scenario.duration();
    match &scenario.topology {
        Topology::Rig(Rig { warm_up, .. }) | Topology::Bridge(Bridge { warm_up, .. }) => {
            return vec![(warm_up.as_nanos() * NS, end)];
        }
        _ => {}
    }
    if let Topology::Hp(hp) = &scenario.topology
        && let Victim::During(from, to) = hp.victim
    {
        let (from, to) = (from.as_nanos() * NS, to.as_nanos() * NS);
        let parts = [
            (10 * MS, from.saturating_sub(MS)),
            (from + 2 * MS, to.saturating_sub(MS)),
            (to + 5 * MS, end.saturating_sub(MS)),
        ];
        if parts.iter().all(|(from, to)| from < to && *to <= end) {
            return parts.to_vec();
        }
    }
    vec![(end / 5, end)]
}

/// Columns of a series as a table.
pub const SERIES: &Columns = &[
    ("time_ms", "middle of the window, ms"),
    (
        "name",
        "a link (`root`, `inter-switch`), or a class of flows",
    ),
    ("share", "what it got of the link's rate in the window"),
];

impl Run {
    /// Lines of the figure over time, in windows of this width: those of the papers for Fig. 1, one per class for other
    /// networks. Names and points (ms, share).
    pub fn series(&self, width: Time) -> Vec<(String, Vec<(f64, f64)>)> {
        let Self {
            network, record, ..
        } = self;
        let hp = network.channel("root").zip(network.channel("inter-switch"));
        let links = hp.map_or_else(Vec::new, |(root, inter)| {
            vec![("root", root), ("inter-switch", inter)]
        });
        let windows: Vec<(f64, Snapshot)> = record.sliding(width).collect();
        let points = |share: &dyn Fn(&Snapshot) -> f64| {
            let windows = windows.iter();
            windows
                .map(|(middle, counts)| (*middle, share(counts)))
                .collect()
        };
        let of_links = links.into_iter().map(|(name, channel)| {
            let share = |counts: &Snapshot| counts.channel_share(network, channel, width);
            (name.to_owned(), points(&share))
        });
        let of_classes = network.classes.iter().enumerate().map(|(class, name)| {
            let share = |counts: &Snapshot| counts.class_share(network, class, width);
            (name.clone(), points(&share))
        });
        of_links.chain(of_classes).collect()
    }

    /// The report of this run.
    pub fn report(&self, scenario: &Scenario, seed: u64) -> RunReport {
        let Self {
            network,
            record,
            wall,
        } = self;
        let hp = matches!(scenario.topology, Topology::Hp(_) | Topology::Rig(_));
        let windows = record.windows.iter().map(|window| {
            if hp {
                WindowReport::Hp(hp_window(network, window))
            } else {
                WindowReport::Any(any_window(network, window))
            }
        });
        let marked = |class: usize| {
            flows_of(network, class)
                .map(|flow| record.marked_packets[flow])
                .sum()
        };
        let classes = network.classes.iter().enumerate();
        let mut marked_packets: BTreeMap<String, u64> = classes
            .map(|(class, name)| (name.clone(), marked(class)))
            .collect();
        if hp {
            marked_packets.entry("victim".to_owned()).or_default();
        }
        let ports = || record.ports.iter().flatten();
        RunReport {
            scenario: scenario.name.clone(),
            seed,
            parameters: scenario.parameters(),
            windows: windows.collect(),
            marked_packets,
            input_triggers: ports().map(|port| port.input_triggers).sum(),
            output_triggers: ports().map(|port| port.output_triggers).sum(),
            dropped_packets: record.dropped_packets(),
            packet_hops: record.packet_hops,
            events: record.events,
            wall_s: wall.as_secs_f64(),
        }
    }
}

fn ms(time: Time) -> f64 {
    time as f64 / MS as f64
}

/// The shares of Fig. 1 from counters over `time`.
pub fn hp_shares(network: &Network, counts: &Snapshot, time: Time) -> HpWindow {
    let class = |name: &str| network.classes.iter().position(|class| class == name);
    let share =
        |name: &str| class(name).map_or(0.0, |class| counts.class_share(network, class, time));
    let jain = |name: &str| class(name).and_then(|class| counts.class_jain(network, class));
    let link = |name: &str| {
        network
            .channel(name)
            .map_or(0.0, |channel| counts.channel_share(network, channel, time))
    };
    let (local, remote) = (share("local"), share("remote"));
    HpWindow {
        from_ms: 0.0,
        to_ms: ms(time),
        root: link("root"),
        inter_switch: link("inter-switch"),
        local,
        remote,
        victim: share("victim"),
        remote_local_ratio: (local > 0.0).then(|| remote / local),
        jain_local: jain("local"),
        jain_remote: jain("remote"),
        root_queue_mean_packets: network
            .channel("root")
            .and_then(|root| counts.waited_ns.get(root))
            .map(|&waited| waited as f64 / (time / NS).max(1) as f64),
        root_queue_max_packets: None,
        dropped_packets: (!counts.dropped.is_empty()).then(|| counts.dropped.iter().sum()),
    }
}

/// A window of Fig. 1.
pub fn hp_window(network: &Network, window: &Window) -> HpWindow {
    let root = network.channel("root");
    HpWindow {
        from_ms: ms(window.from),
        to_ms: ms(window.to),
        root_queue_max_packets: root.and_then(|root| window.queue_peaks.get(root).copied()),
        ..hp_shares(network, &window.counts, window.to - window.from)
    }
}

fn any_window(network: &Network, window: &Window) -> AnyWindow {
    let time = window.to - window.from;
    let counts = &window.counts;
    let mut used = vec![false; network.channels.len()];
    for hop in &network.hops {
        used[hop.channel as usize] = true;
    }
    let links = || {
        let channels = network.channels.iter().enumerate();
        channels.filter(|(index, _)| used[*index])
    };
    let share = |(index, channel): (usize, &Channel)| {
        let share = counts.channel_share(network, index, time);
        (channel.name.clone(), share)
    };
    let queue = |(index, channel): (usize, &Channel)| {
        channel.sender.as_ref()?;
        let queue = QueueCounts {
            mean_packets: *counts.waited_ns.get(index)? as f64 / (time / NS).max(1) as f64,
            max_packets: window.queue_peaks.get(index).copied().unwrap_or_default(),
            dropped_packets: counts.dropped[index],
        };
        Some((channel.name.clone(), queue))
    };
    let classes = network.classes.iter().enumerate().map(|(class, name)| {
        let bytes = flows_of(network, class).map(|flow| counts.flow_bytes(network, flow));
        let share = ClassShare {
            share: counts.class_share(network, class, time),
            bytes_per_s: per_s(bytes.sum(), time),
            jain: counts.class_jain(network, class),
            by_host: (!counts.waited_ns.is_empty()).then(|| host_shares(network, window, class)),
        };
        (name.clone(), share)
    });
    AnyWindow {
        from_ms: ms(window.from),
        to_ms: ms(window.to),
        links: links().map(share).collect(),
        classes: classes.collect(),
        queues: links().filter_map(queue).collect(),
    }
}

fn per_s(bytes: u64, time: Time) -> u64 {
    (bytes as f64 / (time as f64 * 1e-12)) as u64
}

fn host_shares(network: &Network, window: &Window, class: usize) -> HostShares {
    let sum = |counts: &[u64]| flows_of(network, class).map(|flow| counts[flow]).sum();
    let in_us = |times: &[Times], percent| {
        let ns = times.get(class)?.quantile_ns(percent)?;
        Some(ns as f64 / 1e3)
    };
    let arrive = flows_of(network, class).any(|flow| network.flows[flow].arrivals.is_some());
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for flow in flows_of(network, class) {
        *bytes.entry(network.flows[flow].host).or_default() +=
            window.counts.flow_bytes(network, flow);
    }
    let of_host = |(host, bytes)| {
        let name = network.hosts[host as usize].clone();
        (name, per_s(bytes, window.to - window.from))
    };
    HostShares {
        jain_hosts: jain(bytes.values().map(|&bytes| bytes as f64)),
        hosts_bytes_per_s: bytes.into_iter().map(of_host).collect(),
        marked_packets: sum(&window.counts.flow_marked),
        dropped_packets: sum(&window.counts.flow_dropped),
        host_dropped_packets: sum(&window.counts.host_dropped),
        delay_us_p50: in_us(&window.delays, 50),
        delay_us_p99: in_us(&window.delays, 99),
        finished: arrive.then(|| Finished {
            finished_flows: window.completions.get(class).map_or(0, Times::count),
            completion_ms_p50: in_us(&window.completions, 50).map(|us| us / 1e3),
            completion_ms_p99: in_us(&window.completions, 99).map(|us| us / 1e3),
        }),
    }
}
