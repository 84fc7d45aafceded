//! Results of a rig run: JSON, table, verdict, samples and figures, all from one record.
//!
//! [`Report`] is the JSON contract of `ecn rig run -j`. Everything else is derived from it: a table with the phases
//! side by side, a verdict in words (also if control did not help), and figures with the axes of Fig. 2 and 3 of the HP
//! papers.
//!
//! All shares are fractions of the link rate. Numbers that a run could not measure are 0, as the
//! contract has no other value for them: `victim` without a victim, latencies without marks.

mod figures;
mod live;
mod table;
mod verdict;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ecn_core::backward::Feedback;
use ecn_core::marking::{MarkAt, Marking};
use ecn_core::response::Function;
use ecn_report::output::{Output, OutputError};
use ecn_report::table::csv;
use ecn_units::{Every, Fraction, Round};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

pub use live::{live_header, live_row, live_view};

/// A whole run.
#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Report {
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// What the phases have in common.
    pub parameters: RigParameters,
    /// The phases in the order in which they ran.
    pub phases: Vec<Phase>,
}

/// What all phases of a run have in common.
#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct RigParameters {
    /// Rate of every link of the rig.
    pub link_rate_bytes_per_s: u64,
    /// Size of a data packet on the link.
    pub packet_bytes: u32,
    /// Flows whose sources are at the congested switch.
    pub local_flows: u32,
    /// Flows that come over the inter-switch link.
    pub remote_flows: u32,
    /// Whether there is a victim: a flow over the inter-switch link to its own output.
    pub victim: bool,
    /// `udp`, `tcp`, `mixed`, ...
    pub transport: String,
    /// Congestion control of TCP flows, if any.
    pub congestion_control: Option<String>,
    /// Whether sources may send super-packets.
    pub offload: bool,
    /// Packets per input buffer.
    pub buffer: u32,
    /// Packets waiting for one output, above which they are marked.
    pub threshold: u32,
    /// Where packets are marked.
    pub mark_at: MarkAt,
    /// How marks are returned to the sources.
    #[serde(default)]
    pub feedback: Feedback,
    /// The lowest rate of a flow as a fraction of the link rate.
    pub rmin: Fraction,
    /// The factor of multiplicative decrease.
    pub m: f64,
    /// Round within which a flow decreases its rate at most once.
    pub round: Round,
    /// How often receivers send an echo.
    pub echo: Every,
    /// Seconds of each phase before the measurement.
    pub warm_up_s: u64,
    /// Further parameters, by their names.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// The measured part of one phase, its keys in the order of the contract.
#[derive(Debug, Clone, PartialEq, Default, JsonSchema, Serialize, Deserialize)]
pub struct Phase {
    /// Name of the phase, such as `uncontrolled`.
    pub name: String,
    /// Which packets the bridges marked.
    pub marking: Marking,
    /// How sources responded to marks.
    pub response: Function,
    /// Length of the measurement.
    pub seconds: u64,
    /// Utilisation of the root link, which all local and remote flows cross.
    #[serde(serialize_with = "rounded")]
    pub root: f64,
    /// Utilisation of the inter-switch link, which all remote flows and the victim cross.
    #[serde(serialize_with = "rounded")]
    pub inter_switch: f64,
    /// Total share of the local flows on the root link.
    #[serde(serialize_with = "rounded")]
    pub local: f64,
    /// Total share of the remote flows on the root link.
    #[serde(serialize_with = "rounded")]
    pub remote: f64,
    /// Share of the victim; 0 without a victim.
    #[serde(serialize_with = "rounded")]
    pub victim: f64,
    /// [`remote_local_ratio`] of `remote` and `local`.
    #[serde(serialize_with = "rounded_if_known")]
    pub remote_local_ratio: Option<f64>,
    /// [`jain`](ecn_report::statistics::jain) over the local flows; null without any.
    #[serde(serialize_with = "rounded_if_known")]
    pub jain_local: Option<f64>,
    /// [`jain`](ecn_report::statistics::jain) over the remote flows; null without any.
    #[serde(serialize_with = "rounded_if_known")]
    pub jain_remote: Option<f64>,
    /// Packets that the sources sent.
    pub sent_packets: u64,
    /// Packets dropped on their path.
    pub dropped_packets: u64,
    /// Packets that were marked.
    pub marked_packets: u64,
    /// Mean number of packets in the queue of the root port.
    #[serde(serialize_with = "rounded")]
    pub root_queue_mean_packets: f64,
    /// Maximum number of packets in that queue.
    pub root_queue_max_packets: u64,
    /// Median time from a mark to the changed rate; null if none was seen.
    pub control_latency_us_p50: Option<u64>,
    /// The time that 99 % of the marks stay below; null if none was seen.
    pub control_latency_us_p99: Option<u64>,
    /// CPU time of the agent (its threads, without measurement and traffic) over elapsed time: share of one core. Null
    /// in simulation.
    #[serde(serialize_with = "rounded_if_known")]
    pub cpu_share: Option<f64>,
    /// Median round-trip time of a ping beside the victim's flow; null if none returned, and in simulation.
    #[serde(default)]
    pub victim_ping_us_p50: Option<u64>,
    /// The time that 99 % of these pings stay below.
    #[serde(default)]
    pub victim_ping_us_p99: Option<u64>,
    /// Median of the round-trip time estimated by the victim's TCP, including the wait at the source; null if the
    /// victim is not TCP.
    #[serde(default)]
    pub victim_tcp_rtt_us_p50: Option<u64>,
    /// The time that 99 % of these stay below.
    #[serde(default)]
    pub victim_tcp_rtt_us_p99: Option<u64>,
    /// Segments retransmitted by TCP; null in simulation, like the next two.
    #[serde(default)]
    pub tcp_retransmitted_segments: Option<u64>,
    /// TCP connections ended by a reset.
    #[serde(default)]
    pub tcp_resets: Option<u64>,
    /// TCP segments received with a wrong checksum.
    #[serde(default)]
    pub checksum_errors: Option<u64>,
    /// Messages from ports to sources: for marks, BCN or QCN.
    #[serde(default)]
    pub messages: Option<u64>,
    /// Rates over time, for figures and `rig-samples.csv`; not part of the JSON document.
    #[serde(skip)]
    pub samples: Vec<Sample>,
}

/// Rates over the last interval, as fractions of the link rate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sample {
    /// End of the interval, in seconds since the phase began.
    pub t_s: f64,
    /// Utilisation of the root link.
    pub root: f64,
    /// Utilisation of the inter-switch link.
    pub inter_switch: f64,
    /// Total share of the local flows.
    pub local: f64,
    /// Total share of the remote flows.
    pub remote: f64,
    /// Share of the victim; 0 without a victim.
    pub victim: f64,
    /// Packets in the queue of the root port at the end of the interval.
    pub root_queue_packets: u32,
}

/// Name and value of a share.
type Share = (&'static str, fn(&Sample) -> f64);

/// The shares of a sample, the victim's last.
const SHARES: [Share; 5] = [
    ("root", |sample| sample.root),
    ("inter-switch", |sample| sample.inter_switch),
    ("local", |sample| sample.local),
    ("remote", |sample| sample.remote),
    ("victim", |sample| sample.victim),
];

/// [`SHARES`], the victim's only if the rig has one.
fn shares(with_victim: bool) -> &'static [Share] {
    &SHARES[..if with_victim { 5 } else { 4 }]
}

/// Rounds to six decimals: more are not significant in any measurement here.
fn rounded<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let value = if value.is_finite() {
        (value * 1e6).round() / 1e6
    } else {
        0.0
    };
    serializer.serialize_f64(value)
}

/// [`rounded`], or null.
fn rounded_if_known<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) if value.is_finite() => rounded(value, serializer),
        _ => serializer.serialize_none(),
    }
}

/// Ratio of the shares of remote and local flows; `None` if local flows got nothing.
pub fn remote_local_ratio(remote: f64, local: f64) -> Option<f64> {
    (local > 0.0).then(|| remote / local)
}

/// A report that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] OutputError),
    /// The record has no JSON form.
    #[error("cannot write the report as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl Phase {
    /// Whether sources could respond to marks in this phase.
    pub fn is_controlled(&self) -> bool {
        self.marking != Marking::None && self.response != Function::None
    }

    /// The phase's marking and response, for use in brackets or next to its name: `input-output, lipd`.
    fn setting(&self) -> String {
        match (self.marking, self.response) {
            (Marking::None, Function::None) => "no control".to_owned(),
            (marking, response) => format!("{marking}, {response}"),
        }
    }

    /// Whether the name contains the phase's marking and response, as `naive-lipd` does.
    fn is_named_by_setting(&self) -> bool {
        let words = [self.marking.name(), self.response.name()];
        words.iter().all(|word| self.name.contains(word))
    }
}

impl Report {
    /// The JSON document of `ecn rig run -j`.
    ///
    /// # Errors
    ///
    /// Only if an additional parameter has no JSON form.
    pub fn to_json(&self) -> Result<String, ReportError> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// All samples of all phases, with a header.
    fn samples_csv(&self) -> String {
        let shares = SHARES.map(|(name, _)| name.replace('-', "_"));
        let mut rows = vec![["phase".to_owned(), "t_s".to_owned()].to_vec()];
        rows[0].extend(shares);
        rows[0].push("root_queue_packets".to_owned());
        for phase in &self.phases {
            rows.extend(phase.samples.iter().map(|sample| {
                let mut row = vec![phase.name.clone(), format!("{:.3}", sample.t_s)];
                row.extend(SHARES.map(|(_, share)| format!("{:.6}", share(sample))));
                row.push(sample.root_queue_packets.to_string());
                row
            }));
        }
        csv(rows)
    }

    /// Writes the report, its samples and its figures to `dir`, which is created if necessary. Returns the files; if
    /// writing fails, none of them appears.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn write(&self, dir: impl AsRef<Path>) -> Result<Vec<PathBuf>, ReportError> {
        let output = Output::new(dir.as_ref())?;
        let mut files = Vec::new();
        let mut add = |name: &str, text: String| files.push((name.to_owned(), text));
        add("rig-report.json", self.to_json()?);
        add("rig-samples.csv", self.samples_csv());
        for (phase, name) in self.phases.iter().zip(self.file_names()) {
            let figure = self.rates_figure(std::slice::from_ref(phase));
            add(&format!("rig-rates-{name}.svg"), figure.to_svg());
        }
        add("rig-rates.svg", self.rates_figure(&self.phases).to_svg());
        add("rig-root-queue.svg", self.queue_figure().to_svg());
        if self.phases.len() > 2 {
            add("rig-compare.svg", self.compare_figure().to_svg());
        }
        output.write_all(&files)?;
        Ok(files.iter().map(|(name, _)| output.path(name)).collect())
    }

    /// Unique names for the phases' files, of letters, digits and dashes.
    fn file_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for phase in &self.phases {
            let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
            let name: String = phase.name.to_lowercase().chars().map(safe).collect();
            let mut unique = name.clone();
            let mut number = 2;
            while names.contains(&unique) {
                unique = format!("{name}-{number}");
                number += 1;
            }
            names.push(unique);
        }
        names
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
