//! What a run of the rig measured: JSON, table, verdict, samples and figures from one record.
//!
//! [`Report`] is the JSON contract of `ecn rig run -j`. Everything else is derived from it: the
//! table sets the phases side by side, the verdict says in words what the numbers say (also when
//! control did not help), and the figures have the axes of Fig. 2 and 3 of the HP papers.
//!
//! All shares are fractions of the link rate. Numbers that a run could not measure are 0, as the
//! contract has no other value for them: `victim` without a victim, latencies without marks.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, Serializer};

use crate::cli::table::{plain_table, short_count, table_text};
use crate::figure::{DotColumn, DotFigure, FigureError, Line, LineFigure, Panel};
use crate::model::{Function, Marking};
use crate::output::{Output, OutputError};
use crate::policy::{Every, MarkAt, Round};
use crate::units::Fraction;

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Release of the kernel, as `uname -r` prints it.
    pub kernel: String,
    /// What the phases have in common.
    pub parameters: Parameters,
    /// The phases in the order in which they ran.
    pub phases: Vec<Phase>,
}

/// What all phases of a run have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parameters {
    /// Rate of every link of the rig.
    pub link_rate_bytes_per_s: u64,
    /// Size of a data packet on the link.
    pub packet_bytes: u32,
    /// Flows whose sources are at the congested switch.
    pub local_flows: u32,
    /// Flows that come over the inter-switch link.
    pub remote_flows: u32,
    /// Whether there is a victim: a flow over the inter-switch link to an output of its own.
    pub victim: bool,
    /// `udp`, `tcp`, `mixed`, ...
    pub transport: String,
    /// Congestion control of TCP flows, where there are any.
    pub congestion_control: Option<String>,
    /// Whether there may be super-packets.
    pub offload: bool,
    /// Packets per input buffer.
    pub buffer: u32,
    /// Packets waiting for one output, above which they are marked.
    pub threshold: u32,
    /// Where packets are marked.
    pub mark_at: MarkAt,
    /// The lowest rate of a flow as a fraction of the link rate.
    pub rmin: Fraction,
    /// The factor of multiplicative decrease.
    pub m: f64,
    /// Within what a flow decreases its rate at most once.
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Name of the phase, such as `uncontrolled`.
    pub name: String,
    /// Which packets the bridges marked.
    pub marking: Marking,
    /// How sources answered to marks.
    pub response: Function,
    /// Length of the measurement.
    pub seconds: u64,
    /// Share carried by the root link, which all local and remote flows want.
    #[serde(serialize_with = "rounded")]
    pub root: f64,
    /// Share carried by the inter-switch link, which all remote flows and the victim want.
    #[serde(serialize_with = "rounded")]
    pub inter_switch: f64,
    /// What the local flows got of the root link together.
    #[serde(serialize_with = "rounded")]
    pub local: f64,
    /// What the remote flows got of the root link together.
    #[serde(serialize_with = "rounded")]
    pub remote: f64,
    /// What the victim got; 0 without a victim.
    #[serde(serialize_with = "rounded")]
    pub victim: f64,
    /// [`remote_local_ratio`] of the two above.
    #[serde(serialize_with = "rounded")]
    pub remote_local_ratio: f64,
    /// [`jain`](crate::measure::jain) over the local flows.
    #[serde(serialize_with = "rounded")]
    pub jain_local: f64,
    /// [`jain`](crate::measure::jain) over the remote flows.
    #[serde(serialize_with = "rounded")]
    pub jain_remote: f64,
    /// Packets that the sources sent.
    pub sent_packets: u64,
    /// Packets that were dropped on their way.
    pub dropped_packets: u64,
    /// Packets that were marked.
    pub marked_packets: u64,
    /// Mean number of packets in the queue of the root port.
    #[serde(serialize_with = "rounded")]
    pub root_queue_mean_packets: f64,
    /// Most packets in that queue.
    pub root_queue_max_packets: u64,
    /// Median time from a mark to the changed rate; 0 if none was seen.
    pub control_latency_us_p50: u64,
    /// The time that 99 % of the marks stay below; 0 if none was seen.
    pub control_latency_us_p99: u64,
    /// Processor time of the agent (its threads, without measurement and traffic) over the time that
    /// passed: the share of one core.
    #[serde(serialize_with = "rounded")]
    pub cpu_share: f64,
    /// Median round-trip time of a ping beside the victim's flow; 0 if none came back.
    #[serde(default)]
    pub victim_ping_us_p50: u64,
    /// The time that 99 % of these pings stay below.
    #[serde(default)]
    pub victim_ping_us_p99: u64,
    /// Median of the round-trip time that the victim's TCP reckons with, its wait at the source included; 0
    /// if the victim is not TCP.
    #[serde(default)]
    pub victim_tcp_rtt_us_p50: u64,
    /// The time that 99 % of these stay below.
    #[serde(default)]
    pub victim_tcp_rtt_us_p99: u64,
    /// Segments that TCP sent again.
    #[serde(default)]
    pub tcp_retransmitted_segments: u64,
    /// TCP connections that a reset ended.
    #[serde(default)]
    pub tcp_resets: u64,
    /// TCP segments that came with a wrong checksum.
    #[serde(default)]
    pub checksum_errors: u64,
    /// Rates over time, for figures and `rig-samples.csv`; not part of the JSON document.
    #[serde(skip)]
    pub samples: Vec<Sample>,
}

/// Rates over the last interval, as fractions of the link rate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sample {
    /// End of the interval, in seconds since the phase began.
    pub t_s: f64,
    /// Share carried by the root link.
    pub root: f64,
    /// Share carried by the inter-switch link.
    pub inter_switch: f64,
    /// What the local flows got together.
    pub local: f64,
    /// What the remote flows got together.
    pub remote: f64,
    /// What the victim got; 0 without a victim.
    pub victim: f64,
    /// Packets in the queue of the root port at the end of the interval.
    pub root_queue_packets: u32,
}

/// Six decimals are more than any measurement here is worth.
fn rounded<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let value = if value.is_finite() {
        (value * 1e6).round() / 1e6
    } else {
        0.0
    };
    serializer.serialize_f64(value)
}

/// What remote flows got in relation to local ones; 0 if local flows got nothing.
pub fn remote_local_ratio(remote: f64, local: f64) -> f64 {
    if local > 0.0 { remote / local } else { 0.0 }
}

/// The smallest of `values` that at least a fraction `q` of them does not exceed; `None` if there
/// are no values. Sorts them.
pub fn quantile(values: &mut [u64], q: f64) -> Option<u64> {
    values.sort_unstable();
    let rank = (q.clamp(0.0, 1.0) * values.len() as f64).ceil().max(1.0) as usize;
    values.get(rank - 1).copied()
}

/// A report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file could not be written.
    #[error(transparent)]
    Write(#[from] OutputError),
    /// The record has no JSON form.
    #[error("cannot write the report as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A figure could not be drawn.
    #[error(transparent)]
    Figure(#[from] FigureError),
}

impl Phase {
    /// Whether sources could answer to marks in this phase.
    pub fn is_controlled(&self) -> bool {
        self.marking != Marking::None && self.response != Function::None
    }

    /// What the phase tried, in brackets or beside its name: `input-output, lipd`.
    fn setting(&self) -> String {
        match (self.marking, self.response) {
            (Marking::None, Function::None) => "no control".to_owned(),
            (marking, response) => format!("{marking}, {response}"),
        }
    }

    /// Whether the name says what the phase tried, as `naive-lipd` does.
    fn is_named_by_setting(&self) -> bool {
        [self.marking.name(), self.response.name()]
            .iter()
            .all(|word| self.name.contains(word))
    }

    fn drop_share(&self) -> f64 {
        if self.sent_packets == 0 {
            return 0.0;
        }
        self.dropped_packets as f64 / self.sent_packets as f64
    }

    /// The line figure's panel of this phase; colours and patterns mean the same in all figures.
    fn rates_panel(&self, with_victim: bool) -> Panel {
        type Get = fn(&Sample) -> f64;
        let lines: [(&str, Get); 5] = [
            ("root", |sample| sample.root),
            ("inter-switch", |sample| sample.inter_switch),
            ("local", |sample| sample.local),
            ("remote", |sample| sample.remote),
            ("victim", |sample| sample.victim),
        ];
        Panel {
            title: self.name.clone(),
            note: if self.is_named_by_setting() {
                String::new()
            } else {
                self.setting()
            },
            lines: lines[..if with_victim { 5 } else { 4 }]
                .iter()
                .enumerate()
                .map(|(look, (label, get))| Line {
                    label: (*label).to_owned(),
                    points: self.samples.iter().map(|s| (s.t_s, get(s))).collect(),
                    look,
                })
                .collect(),
        }
    }

    fn queue_line(&self, look: usize) -> Line {
        Line {
            label: self.name.clone(),
            points: self
                .samples
                .iter()
                .map(|sample| (sample.t_s, f64::from(sample.root_queue_packets)))
                .collect(),
            look,
        }
    }
}

const TIME_LABEL: &str = "time in s";
const SHARE_LABEL: &str = "fraction of the link rate";

impl Report {
    /// The JSON document of `ecn rig run -j`.
    ///
    /// # Errors
    ///
    /// Only if a further parameter has no JSON form.
    pub fn to_json(&self) -> Result<String, ReportError> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// All samples of all phases, with a header.
    pub fn samples_csv(&self) -> String {
        let mut csv =
            String::from("phase,t_s,root,inter_switch,local,remote,victim,root_queue_packets\n");
        for phase in &self.phases {
            let name = csv_field(&phase.name);
            for sample in &phase.samples {
                let Sample {
                    t_s,
                    root,
                    inter_switch,
                    local,
                    remote,
                    victim,
                    ..
                } = sample;
                // Writing into a String does not fail.
                let _ = writeln!(
                    csv,
                    "{name},{t_s:.3},{root:.6},{inter_switch:.6},{local:.6},{remote:.6},\
                     {victim:.6},{}",
                    sample.root_queue_packets
                );
            }
        }
        csv
    }

    /// Writes the report, its samples and its figures into `dir`, which is made if needed, and
    /// returns the files: all of them appear whole, or none.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn write(&self, dir: impl AsRef<Path>) -> Result<Vec<PathBuf>, ReportError> {
        let output = Output::new(dir.as_ref())?;
        let mut files = vec![
            ("rig-report.json".to_owned(), self.to_json()?),
            ("rig-samples.csv".to_owned(), self.samples_csv()),
        ];
        for (phase, name) in self.phases.iter().zip(self.file_names()) {
            let figure = self.rates_figure(std::slice::from_ref(phase));
            files.push((format!("rig-rates-{name}.svg"), figure.to_svg()?));
        }
        files.push((
            "rig-rates.svg".to_owned(),
            self.rates_figure(&self.phases).to_svg()?,
        ));
        files.push((
            "rig-root-queue.svg".to_owned(),
            self.queue_figure().to_svg()?,
        ));
        if self.phases.len() > 2 {
            files.push((
                "rig-compare.svg".to_owned(),
                self.compare_figure().to_svg()?,
            ));
        }
        let texts: Vec<_> = files
            .iter()
            .map(|(name, text)| (name.as_str(), text.as_bytes()))
            .collect();
        output.write_all(&texts)?;
        Ok(files.iter().map(|(name, _)| output.path(name)).collect())
    }

    /// A name for the files of each phase, of letters, digits and dashes, no two alike.
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

    fn rates_figure(&self, phases: &[Phase]) -> LineFigure {
        let panels = phases
            .iter()
            .map(|phase| phase.rates_panel(self.parameters.victim));
        LineFigure {
            title: "Shares of the link rate over time".to_owned(),
            x_label: TIME_LABEL.to_owned(),
            y_label: SHARE_LABEL.to_owned(),
            y_at_least: 1.0,
            panels: panels.collect(),
            ..LineFigure::default()
        }
    }

    fn queue_figure(&self) -> LineFigure {
        // A few lines fit one panel; more get a panel each.
        let panels = if self.phases.len() <= 3 {
            let lines = self.phases.iter().zip([0, 4, 1]);
            let mean =
                |phase: &Phase| format!("{:.1} {}", phase.root_queue_mean_packets, phase.name);
            let means: Vec<_> = self.phases.iter().map(mean).collect();
            vec![Panel {
                title: "queue of the root port".to_owned(),
                note: format!("mean {}", means.join(", ")),
                lines: lines.map(|(phase, look)| phase.queue_line(look)).collect(),
            }]
        } else {
            let panel = |phase: &Phase| Panel {
                title: phase.name.clone(),
                note: String::new(),
                lines: vec![Line {
                    label: format!("mean {:.1}", phase.root_queue_mean_packets),
                    ..phase.queue_line(0)
                }],
            };
            self.phases.iter().map(panel).collect()
        };
        LineFigure {
            title: "Packets in the queue of the root port over time".to_owned(),
            x_label: TIME_LABEL.to_owned(),
            y_label: "packets".to_owned(),
            y_at_least: 10.0,
            panels,
            ..LineFigure::default()
        }
    }

    fn compare_figure(&self) -> DotFigure {
        let mut phases: Vec<&Phase> = self.phases.iter().collect();
        let place = |phase: &Phase| {
            let marking = Marking::ALL
                .iter()
                .position(|marking| *marking == phase.marking);
            let response = Function::ALL
                .iter()
                .position(|function| *function == phase.response);
            (marking, response)
        };
        phases.sort_by_key(|phase| place(phase));
        let column = |title: &str, unit: &str, get: fn(&Phase) -> f64| DotColumn {
            title: title.to_owned(),
            unit: unit.to_owned(),
            values: phases.iter().map(|phase| Some(get(phase))).collect(),
            reference: None,
        };
        let share = "of link rate";
        let mut columns = vec![
            column("root", share, |phase| phase.root),
            column("inter-switch", share, |phase| phase.inter_switch),
        ];
        if self.parameters.victim {
            columns.push(column("victim", share, |phase| phase.victim));
        }
        columns.push(DotColumn {
            reference: Some(1.0),
            ..column("remote / local", "1 is equal", |phase| {
                phase.remote_local_ratio
            })
        });
        // Phases with the same marking and response are told apart by their names.
        let name = |phase: &&Phase| {
            let alike = phases
                .iter()
                .filter(|other| place(other) == place(phase))
                .count();
            if alike > 1 {
                phase.name.clone()
            } else {
                phase.response.to_string()
            }
        };
        DotFigure {
            title: "Markings and responses compared".to_owned(),
            rows: phases
                .iter()
                .map(|phase| (phase.marking.to_string(), name(phase)))
                .collect(),
            columns,
        }
    }

    /// The phases side by side; a phase per row if there are more than four.
    pub fn table(&self) -> String {
        if self.phases.len() > 4 {
            self.table_of_many()
        } else {
            self.table_side_by_side()
        }
    }

    fn table_side_by_side(&self) -> String {
        /// Name, unit, and value of a phase.
        type Row<'a> = (&'a str, &'a str, &'a dyn Fn(&Phase) -> String);
        let percent: fn(f64) -> String = |share| format!("{:.1}", share * 100.0);
        let victim = self.parameters.victim;
        let has_tcp = self.parameters.congestion_control.is_some();
        // Rows that say nothing for this traffic are left out.
        let shown = |name: &str| match name {
            "TCP, sent again" | "TCP, resets" | "TCP, bad checksum" => has_tcp,
            "victim TCP, 50 %" | "victim TCP, 99 %" => victim && has_tcp,
            "victim ping, 50 %" | "victim ping, 99 %" => victim,
            _ => true,
        };
        let rows: [Row<'_>; 26] = [
            ("marking", "", &|p| p.marking.to_string()),
            ("response", "", &|p| p.response.to_string()),
            ("measured", "s", &|p| p.seconds.to_string()),
            ("root link", "% of link", &|p| percent(p.root)),
            ("inter-switch link", "% of link", &|p| {
                percent(p.inter_switch)
            }),
            ("local flows", "% of link", &|p| percent(p.local)),
            ("remote flows", "% of link", &|p| percent(p.remote)),
            ("victim", "% of link", &|p| {
                if victim {
                    percent(p.victim)
                } else {
                    "-".to_owned()
                }
            }),
            ("remote / local", "ratio", &|p| {
                format!("{:.2}", p.remote_local_ratio)
            }),
            ("fairness, local", "Jain", &|p| {
                format!("{:.3}", p.jain_local)
            }),
            ("fairness, remote", "Jain", &|p| {
                format!("{:.3}", p.jain_remote)
            }),
            ("sent", "packets", &|p| count(p.sent_packets)),
            ("dropped", "packets", &|p| count(p.dropped_packets)),
            ("marked", "packets", &|p| count(p.marked_packets)),
            ("root queue, mean", "packets", &|p| {
                format!("{:.1}", p.root_queue_mean_packets)
            }),
            ("root queue, most", "packets", &|p| {
                count(p.root_queue_max_packets)
            }),
            ("victim ping, 50 %", "us", &|p| {
                or_dash(p.victim_ping_us_p50)
            }),
            ("victim ping, 99 %", "us", &|p| {
                or_dash(p.victim_ping_us_p99)
            }),
            ("victim TCP, 50 %", "us", &|p| {
                or_dash(p.victim_tcp_rtt_us_p50)
            }),
            ("victim TCP, 99 %", "us", &|p| {
                or_dash(p.victim_tcp_rtt_us_p99)
            }),
            ("TCP, sent again", "packets", &|p| {
                count(p.tcp_retransmitted_segments)
            }),
            ("TCP, resets", "", &|p| count(p.tcp_resets)),
            ("TCP, bad checksum", "packets", &|p| {
                count(p.checksum_errors)
            }),
            ("mark to rate, 50 %", "us", &|p| {
                or_dash(p.control_latency_us_p50)
            }),
            ("mark to rate, 99 %", "us", &|p| {
                or_dash(p.control_latency_us_p99)
            }),
            ("agent", "% of core", &|p| percent(p.cpu_share)),
        ];
        let mut header = vec!["", ""];
        header.extend(self.phases.iter().map(|phase| phase.name.as_str()));
        let mut table = plain_table(&header, &[0, 1]);
        for (name, unit, value) in rows.into_iter().filter(|(name, ..)| shown(name)) {
            let mut cells = vec![name.to_owned(), unit.to_owned()];
            cells.extend(self.phases.iter().map(value));
            table.add_row(cells);
        }
        table_text(&table)
    }

    fn table_of_many(&self) -> String {
        let header = [
            "marking",
            "response",
            "root",
            "inter\nswitch",
            "local",
            "remote",
            "victim",
            "rem/\nloc.",
            "queue\nmean",
            "drops",
        ];
        let mut table = plain_table(&header, &[0, 1]);
        for phase in &self.phases {
            let share = |share: f64| format!("{share:.3}");
            table.add_row([
                phase.marking.to_string(),
                phase.response.to_string(),
                share(phase.root),
                share(phase.inter_switch),
                share(phase.local),
                share(phase.remote),
                if self.parameters.victim {
                    share(phase.victim)
                } else {
                    "-".to_owned()
                },
                format!("{:.2}", phase.remote_local_ratio),
                format!("{:.1}", phase.root_queue_mean_packets),
                short_count(phase.dropped_packets),
            ]);
        }
        table_text(&table)
    }

    /// What the numbers say, in a few sentences of at most 80 columns.
    ///
    /// The phase without control, if there is one, is what the others are compared with.
    pub fn verdict(&self) -> String {
        let paragraphs = self.paragraphs();
        paragraphs
            .iter()
            .map(|paragraph| wrap(paragraph, 80))
            .collect()
    }

    fn paragraphs(&self) -> Vec<String> {
        if self.phases.is_empty() {
            return vec!["Nothing was measured.".to_owned()];
        }
        let mut paragraphs = Vec::new();
        let idle = |phase: &&Phase| phase.root < 0.005 && phase.inter_switch < 0.005;
        for phase in self.phases.iter().filter(idle) {
            paragraphs.push(format!(
                "Phase {}: next to no traffic arrived. Its numbers say nothing about control.",
                phase.name
            ));
        }
        let phases: Vec<_> = self.phases.iter().filter(|phase| !idle(phase)).collect();
        let baseline = phases.iter().find(|phase| !phase.is_controlled()).copied();
        let others: Vec<_> = phases
            .iter()
            .copied()
            .filter(|phase| !baseline.is_some_and(|baseline| std::ptr::eq(baseline, *phase)))
            .collect();
        if let Some(baseline) = baseline {
            paragraphs.push(self.describe(baseline, None));
        }
        match (baseline, &others[..]) {
            (None, []) | (Some(_), []) => {}
            (None, [phase]) => paragraphs.push(format!(
                "{} There is no phase without control to compare it with.",
                self.describe(phase, None)
            )),
            (Some(baseline), [phase]) => {
                paragraphs.push(self.describe(phase, Some(baseline)));
                paragraphs.push(self.conclusion(baseline, phase));
            }
            (baseline, phases) => paragraphs.extend(self.compare(baseline, phases)),
        }
        paragraphs
    }

    /// What the inter-switch link has left for the victim if each flow to the root link gets the
    /// same share of it.
    fn fair_room(&self) -> f64 {
        let Parameters {
            local_flows,
            remote_flows,
            ..
        } = self.parameters;
        let flows = f64::from(local_flows) + f64::from(remote_flows);
        if flows > 0.0 {
            1.0 - f64::from(remote_flows) / flows
        } else {
            1.0
        }
    }

    fn describe(&self, phase: &Phase, before: Option<&Phase>) -> String {
        let mut text = if phase.is_controlled() {
            format!("Controlled ({})", phase.setting())
        } else if phase.marking == Marking::None {
            "Uncontrolled".to_owned()
        } else {
            format!("Marked ({}) but not controlled", phase.marking)
        };
        if self.parameters.victim {
            text += &format!(
                ", the victim got {} of the link rate",
                percent(phase.victim)
            );
            if let Some(before) = before {
                text += &format!(", {}", times(before.victim, phase.victim));
            } else if !phase.is_controlled() {
                let room = self.fair_room();
                text += &if phase.victim < 0.8 * room {
                    format!(
                        ". Nobody shares its output port, and with fair shares the inter-switch \
                         link has room for {}: the congestion of the root port has spread to it",
                        percent(room)
                    )
                } else {
                    format!(
                        ", and with fair shares the inter-switch link has room for {}: hardly any \
                         congestion spread to it",
                        percent(room)
                    )
                };
            }
            text += ".";
        } else {
            text += &format!(", the root link was used to {}.", percent(phase.root));
        }

        let queue = phase.root_queue_mean_packets;
        text += &match (phase.dropped_packets, phase.sent_packets) {
            (0, _) => " No packet was dropped".to_owned(),
            (1, sent) => format!(" 1 of {} packets was dropped", count(sent)),
            (dropped, sent) => {
                format!(
                    " {} of {} packets were dropped",
                    count(dropped),
                    count(sent)
                )
            }
        };
        text += &format!("; {} waited at the root port on average", packets(queue));
        if let Some(before) = before {
            text += &format!(", {} before", packets(before.root_queue_mean_packets));
        }
        text += ".";

        let ratio = percent(phase.remote_local_ratio);
        let ratio_before = before.map_or(String::new(), |p| {
            format!(" ({} before)", percent(p.remote_local_ratio))
        });
        let has_both = self.parameters.local_flows > 0 && self.parameters.remote_flows > 0;
        if self.parameters.victim {
            text += &format!(" The root link was used to {}", percent(phase.root));
            if let Some(before) = before {
                text += &format!(" ({} before)", percent(before.root));
            }
            text += if has_both { "; remote" } else { "." };
        } else if has_both {
            text += " Remote";
        }
        if has_both {
            text += &format!(" flows got {ratio} of what local flows got{ratio_before}.");
        }
        text
    }

    /// What changed between two phases by more than a measurement may by chance.
    fn changes(&self, before: &Phase, after: &Phase) -> Changes {
        let mut changes = Changes::default();
        let by_percent =
            |name: &str, a: f64, b: f64| format!("{name} {} instead of {}", percent(b), percent(a));
        if self.parameters.victim {
            let (a, b) = (before.victim, after.victim);
            changes.victim = change(a, b, 0.02, 0.1);
            changes.add(changes.victim, || by_percent("victim", a, b));
        }
        let (a, b) = (before.drop_share(), after.drop_share());
        changes.add(change(b, a, 0.001, 0.1), || {
            let (a, b) = (before.dropped_packets, after.dropped_packets);
            format!("{} drops instead of {}", count(b), count(a))
        });
        let (a, b) = (
            before.root_queue_mean_packets,
            after.root_queue_mean_packets,
        );
        changes.add(change(b, a, 1.0, 0.1), || {
            format!("root queue {} instead of {}", packets(b), packets(a))
        });
        let (a, b) = (before.remote_local_ratio, after.remote_local_ratio);
        if a > 0.0 || b > 0.0 {
            changes.add(change(evenness(a), evenness(b), 0.05, 0.1), || {
                format!("remote/local {b:.2} instead of {a:.2}")
            });
        }
        let (a, b) = (before.root, after.root);
        changes.add(change(a, b, 0.02, 0.0), || by_percent("root link", a, b));
        changes
    }

    fn conclusion(&self, before: &Phase, after: &Phase) -> String {
        let changes = self.changes(before, after);
        let Changes {
            victim,
            better,
            worse,
        } = &changes;
        // A victim that had its share already cannot show whether control helps.
        let had_its_share = before.victim >= 0.8 * self.fair_room();
        let victim = match victim {
            Change::Same if had_its_share => None,
            change => Some(*change).filter(|_| self.parameters.victim),
        };
        let mut text = match victim {
            Some(Change::Better) if worse.is_empty() => "Control helped.",
            Some(Change::Better) => "Control helped, at a price.",
            Some(Change::Worse) => "Control did harm: the victim got less than without it.",
            _ if better.is_empty() && worse.is_empty() => "Control changed next to nothing.",
            Some(Change::Same) if better.is_empty() => "Control did not help.",
            Some(Change::Same) => {
                "Control did not help the victim, though something else improved."
            }
            None if worse.is_empty() => "Control helped.",
            None if better.is_empty() => "Control did harm.",
            None if better.len() > worse.len() => "Control helped, at a price.",
            None => "Control helped in one way and did harm in another.",
        }
        .to_owned();
        if !better.is_empty() {
            text += &format!(" Better: {}.", better.join(", "));
        }
        if !worse.is_empty() {
            text += &format!(" Worse: {}.", worse.join(", "));
        }
        text
    }

    fn compare(&self, baseline: Option<&Phase>, phases: &[&Phase]) -> Vec<String> {
        let mut paragraphs = Vec::new();
        let name = |phase: &Phase| match phase.is_controlled() {
            true => format!("{} with {}", phase.marking, phase.response),
            false => phase.setting(),
        };
        let top = |get: &dyn Fn(&Phase) -> f64| {
            phases
                .iter()
                .copied()
                .max_by(|a, b| get(a).total_cmp(&get(b)))
        };
        if let (Some(baseline), true) = (baseline, self.parameters.victim) {
            let helped = |phase: &&&Phase| self.changes(baseline, phase).victim == Change::Better;
            let count_helped = phases.iter().filter(helped).count();
            let mut text = match count_helped {
                0 => format!(
                    "None of the {} other settings gave the victim more.",
                    phases.len()
                ),
                n if n == phases.len() => {
                    format!("All {n} other settings gave the victim more.")
                }
                n => format!(
                    "{n} of {} other settings gave the victim more.",
                    phases.len()
                ),
            };
            let not: Vec<_> = phases
                .iter()
                .filter(|phase| !helped(phase))
                .map(|phase| format!("{} ({})", name(phase), percent(phase.victim)))
                .collect();
            if count_helped > 0 && !not.is_empty() {
                text += &format!(" Not so: {}.", not.join(", "));
            }
            paragraphs.push(text);
        }
        let mut best = Vec::new();
        if self.parameters.victim
            && let Some(phase) = top(&|phase| phase.victim)
        {
            best.push(format!(
                "Most for the victim: {} ({}).",
                name(phase),
                percent(phase.victim)
            ));
        }
        if let Some(phase) = top(&|phase| phase.root) {
            best.push(format!(
                "Busiest root link: {} ({}).",
                name(phase),
                percent(phase.root)
            ));
        }
        if let Some(phase) = top(&|phase| evenness(phase.remote_local_ratio))
            .filter(|phase| phase.remote_local_ratio > 0.0)
        {
            best.push(format!(
                "Most even shares: {} (remote/local {:.2}).",
                name(phase),
                phase.remote_local_ratio
            ));
        }
        let most_drops = phases.iter().map(|phase| phase.dropped_packets).max();
        if most_drops == Some(0) {
            best.push("None of them dropped a packet.".to_owned());
        } else if let (Some(phase), Some(most)) = (top(&|phase| -phase.drop_share()), most_drops) {
            best.push(format!(
                "Fewest drops: {} ({}; the most were {}).",
                name(phase),
                count(phase.dropped_packets),
                count(most)
            ));
        }
        paragraphs.push(best.join(" "));
        paragraphs
    }
}

/// 1 for equal shares; twice as much and half as much are equally far from it.
fn evenness(ratio: f64) -> f64 {
    if ratio > 1.0 { 1.0 / ratio } else { ratio }
}

/// How a number changed, in the direction that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Change {
    Better,
    #[default]
    Same,
    Worse,
}

/// Whether `after` is more than `before` by more than `least` and the fraction `part` of it.
fn change(before: f64, after: f64, least: f64, part: f64) -> Change {
    let tolerance = least.max(part * before.max(after));
    match after - before {
        difference if difference > tolerance => Change::Better,
        difference if difference < -tolerance => Change::Worse,
        _ => Change::Same,
    }
}

/// What improved and what did not, in words.
#[derive(Debug, Default)]
struct Changes {
    victim: Change,
    better: Vec<String>,
    worse: Vec<String>,
}

impl Changes {
    fn add(&mut self, change: Change, words: impl FnOnce() -> String) {
        match change {
            Change::Better => self.better.push(words()),
            Change::Worse => self.worse.push(words()),
            Change::Same => {}
        }
    }
}

/// The header of [`live_row`].
pub fn live_header() -> String {
    format!(
        "{:<24}{:>6}{:>8}{:>8}{:>8}{:>8}{:>8}{:>8}",
        "phase", "s", "root", "inter", "local", "remote", "victim", "queue"
    )
}

/// One line for one sample, to be printed once a second.
pub fn live_row(phase: &str, sample: &Sample, with_victim: bool) -> String {
    let name: String = phase.chars().take(23).collect();
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    let victim = if with_victim {
        share(sample.victim)
    } else {
        "-".to_owned()
    };
    format!(
        "{name:<24}{:>6.0}{:>8}{:>8}{:>8}{:>8}{victim:>8}{:>8}",
        sample.t_s,
        share(sample.root),
        share(sample.inter_switch),
        share(sample.local),
        share(sample.remote),
        sample.root_queue_packets,
    )
}

/// The running phase as bars, for a terminal: the caller overwrites the lines of the last view
/// with it. `before` is an earlier phase to set beside it.
pub fn live_view(
    phase: &str,
    of_s: f64,
    now: &Sample,
    before: Option<&Phase>,
    with_victim: bool,
) -> String {
    const BAR: usize = 40;
    let name: String = phase.chars().take(50).collect();
    let time = format!("{:.0} s of {of_s:.0} s", now.t_s);
    let mut view = format!("{name:<56}{time:>15}\n");
    let head = before.map_or("", |_| "before");
    let _ = writeln!(view, "{:14}0 %{:>37}{:>8}{head:>9}", "", "100 %", "now");
    let rows = [
        ("root", now.root, before.map(|phase| phase.root)),
        (
            "inter-switch",
            now.inter_switch,
            before.map(|phase| phase.inter_switch),
        ),
        ("local", now.local, before.map(|phase| phase.local)),
        ("remote", now.remote, before.map(|phase| phase.remote)),
        ("victim", now.victim, before.map(|phase| phase.victim)),
    ];
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    for (label, value, before) in &rows[..if with_victim { 5 } else { 4 }] {
        let full = ((value.clamp(0.0, 1.0)) * BAR as f64).round() as usize;
        let bar = "█".repeat(full) + &"·".repeat(BAR - full);
        let before = before.map_or(String::new(), share);
        let line = format!("{label:<14}{bar}{:>8}{before:>9}", share(*value));
        let _ = writeln!(view, "{}", line.trim_end());
    }
    let queue = before.map_or(String::new(), |p| {
        format!("{:.0}", p.root_queue_mean_packets)
    });
    let line = format!(
        "{:<14}{:BAR$}{:>8}{queue:>9}",
        "root queue", "packets", now.root_queue_packets
    );
    let _ = writeln!(view, "{}", line.trim_end());
    view
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent > 0.0 && percent < 0.95 {
        format!("{percent:.1} %")
    } else {
        format!("{percent:.0} %")
    }
}

/// How much more or less than before, as a clause.
fn times(before: f64, after: f64) -> String {
    if before < 0.001 {
        return if after < 0.001 {
            "as before"
        } else {
            "after next to nothing"
        }
        .to_owned();
    }
    match after / before {
        ratio if ratio >= 1.1 => format!("{ratio:.1} times as much"),
        ratio if ratio > 0.9 => "about as much as without".to_owned(),
        _ => format!("down from {}", percent(before)),
    }
}

/// A number of packets that need not be whole.
fn packets(number: f64) -> String {
    let text = if number < 9.95 {
        format!("{number:.1}")
    } else {
        format!("{number:.0}")
    };
    match text.as_str() {
        "0.0" => "no packet".to_owned(),
        "1.0" => "1 packet".to_owned(),
        _ => format!("{} packets", text.trim_end_matches(".0")),
    }
}

fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn or_dash(number: u64) -> String {
    if number == 0 {
        "-".to_owned()
    } else {
        count(number)
    }
}

/// Breaks a text into lines; a number stays on one line with its per cent sign.
fn wrap(text: &str, width: usize) -> String {
    let text = text.replace(" %", "\u{a0}%");
    let mut lines = String::new();
    let mut length = 0;
    for word in text.split(' ') {
        let word_length = word.chars().count();
        if length > 0 && length + 1 + word_length > width {
            lines.push('\n');
            length = 0;
        } else if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(word);
        length += word_length;
    }
    lines.replace('\u{a0}', " ") + "\n"
}

fn csv_field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn parameters() -> Parameters {
        Parameters {
            link_rate_bytes_per_s: 12_500_000,
            packet_bytes: 2068,
            local_flows: 10,
            remote_flows: 10,
            victim: true,
            transport: "udp".to_owned(),
            congestion_control: None,
            offload: false,
            buffer: 4,
            threshold: 8,
            mark_at: MarkAt::Arrival,
            rmin: Fraction::new(1, 64).unwrap(),
            m: 2.0,
            round: Round::Packets,
            echo: Every::Packet,
            warm_up_s: 4,
            other: BTreeMap::new(),
        }
    }

    fn uncontrolled() -> Phase {
        Phase {
            name: "uncontrolled".to_owned(),
            marking: Marking::None,
            response: Function::None,
            seconds: 10,
            root: 0.998,
            inter_switch: 0.99,
            local: 0.88,
            remote: 0.12,
            victim: 0.09,
            remote_local_ratio: 0.12 / 0.88,
            jain_local: 0.999,
            jain_remote: 0.998,
            sent_packets: 1_176_000,
            dropped_packets: 588_000,
            marked_packets: 0,
            root_queue_mean_packets: 99.2,
            root_queue_max_packets: 116,
            control_latency_us_p50: 0,
            control_latency_us_p99: 0,
            cpu_share: 0.06,
            victim_ping_us_p50: 16_900,
            victim_ping_us_p99: 17_300,
            victim_tcp_rtt_us_p50: 0,
            victim_tcp_rtt_us_p99: 0,
            tcp_retransmitted_segments: 0,
            tcp_resets: 0,
            checksum_errors: 0,
            samples: samples(0.88, 0.12, 0.09, 99.0, 0.01),
        }
    }

    fn controlled() -> Phase {
        Phase {
            name: "controlled".to_owned(),
            marking: Marking::InputOutput,
            response: Function::Lipd,
            seconds: 10,
            root: 0.945,
            inter_switch: 0.85,
            local: 0.58,
            remote: 0.36,
            victim: 0.49,
            remote_local_ratio: 0.36 / 0.58,
            jain_local: 0.999,
            jain_remote: 0.999,
            sent_packets: 64_000,
            dropped_packets: 0,
            marked_packets: 13_440,
            root_queue_mean_packets: 3.2,
            root_queue_max_packets: 39,
            control_latency_us_p50: 1_200,
            control_latency_us_p99: 2_900,
            cpu_share: 0.07,
            victim_ping_us_p50: 1_200,
            victim_ping_us_p99: 3_900,
            victim_tcp_rtt_us_p50: 0,
            victim_tcp_rtt_us_p99: 0,
            tcp_retransmitted_segments: 0,
            tcp_resets: 0,
            checksum_errors: 0,
            samples: samples(0.58, 0.36, 0.49, 3.2, 0.05),
        }
    }

    /// Made-up series around given means.
    fn samples(local: f64, remote: f64, victim: f64, queue: f64, noise: f64) -> Vec<Sample> {
        let wave = |index: u32, speed: f64| (f64::from(index) * speed).sin();
        (1..=100_u32)
            .map(|index| {
                let local = local + noise * wave(index, 0.9) * wave(index, 0.37);
                let remote = remote + noise * wave(index, 1.3) * wave(index, 0.21);
                let victim = victim + noise * wave(index, 1.1) * wave(index, 0.33);
                Sample {
                    t_s: f64::from(index) / 10.0,
                    root: (local + remote).min(1.0),
                    inter_switch: (remote + victim).min(1.0),
                    local,
                    remote,
                    victim,
                    root_queue_packets: (queue * (1.0 + noise * 8.0 * wave(index, 2.3))).max(0.0)
                        as u32,
                }
            })
            .collect()
    }

    fn report(phases: Vec<Phase>) -> Report {
        Report {
            kernel: "6.18.0".to_owned(),
            parameters: parameters(),
            phases,
        }
    }

    fn without_victim(mut report: Report) -> Report {
        report.parameters.victim = false;
        report
            .phases
            .iter_mut()
            .for_each(|phase| phase.victim = 0.0);
        report
    }

    fn many() -> Report {
        let mut phases = vec![uncontrolled()];
        for (index, marking) in [Marking::Naive, Marking::Input, Marking::InputOutput]
            .into_iter()
            .enumerate()
        {
            for (step, response) in [Function::Lipd, Function::Fimd, Function::Aimd]
                .into_iter()
                .enumerate()
            {
                let (index, step) = (index as f64, step as f64);
                let (local, remote) = (0.6 - 0.12 * step, 0.26 + 0.06 * index);
                let victim = 0.3 + 0.1 * index - 0.12 * step;
                phases.push(Phase {
                    name: format!("{marking}-{response}"),
                    marking,
                    response,
                    root: local + remote,
                    inter_switch: remote + victim,
                    local,
                    remote,
                    victim,
                    remote_local_ratio: remote_local_ratio(remote, local),
                    samples: samples(local, remote, victim, 3.0 + step, 0.05),
                    ..controlled()
                });
            }
        }
        phases[3].victim = 0.08;
        report(phases)
    }

    #[test]
    fn json_is_that_of_the_contract() {
        // Section 7 of the design, word for word but for the parameters.
        let contract = r#"{"kernel": "...", "parameters": {...},
     "phases": [{"name": "uncontrolled", "marking": "none", "response": "none", "seconds": 10,
                 "root": 0.98, "inter_switch": 0.97, "local": 0.9, "remote": 0.08, "victim": 0.09,
                 "remote_local_ratio": 0.09, "jain_local": 0.99, "jain_remote": 0.99,
                 "sent_packets": 0, "dropped_packets": 0, "marked_packets": 0,
                 "root_queue_mean_packets": 0.0, "root_queue_max_packets": 0,
                 "control_latency_us_p50": 0, "control_latency_us_p99": 0, "cpu_share": 0.0}]}"#;
        let given = serde_json::to_string(&parameters()).unwrap();
        let contract = contract.replace("{...}", &given);
        let report: Report = serde_json::from_str(&contract).unwrap();
        // Compared as text, so that order, names and kinds of numbers count. What came later follows.
        let squeezed: String = contract.split_whitespace().collect();
        let json = serde_json::to_string(&report).unwrap();
        let (theirs, ours) = json.split_once(",\"victim_ping_us_p50\":").unwrap();
        assert_eq!(format!("{theirs}}}]}}"), squeezed);
        assert!(ours.ends_with(",\"checksum_errors\":0}]}"), "{json}");
        assert!(report.to_json().unwrap().ends_with("}\n"));
    }

    #[test]
    fn json_keeps_no_noise_and_only_numbers() {
        let mut phase = uncontrolled();
        phase.root = 0.1 + 0.2;
        phase.jain_remote = f64::NAN;
        let json = serde_json::to_string(&phase).unwrap();
        assert!(json.contains("\"root\":0.3,"), "{json}");
        assert!(json.contains("\"jain_remote\":0.0,"), "{json}");
        assert!(
            !json.contains("samples") && !json.contains("null"),
            "{json}"
        );
    }

    #[test]
    fn further_parameters_stand_beside_the_others() {
        let mut report = report(vec![]);
        report
            .parameters
            .other
            .insert("window_packets".to_owned(), 1.into());
        let json = report.to_json().unwrap();
        assert!(json.contains("\n    \"window_packets\": 1\n"), "{json}");
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
    }

    #[test]
    fn ratios_and_quantiles_have_their_known_values() {
        assert_eq!(remote_local_ratio(0.3, 0.6), 0.5);
        assert_eq!(remote_local_ratio(0.3, 0.0), 0.0);
        let mut values = [5, 1, 4, 2, 3];
        assert_eq!(quantile(&mut values, 0.5), Some(3));
        assert_eq!(quantile(&mut values, 0.0), Some(1));
        assert_eq!(quantile(&mut values, 0.2), Some(1));
        assert_eq!(quantile(&mut values, 0.21), Some(2));
        assert_eq!(quantile(&mut values, 0.99), Some(5));
        assert_eq!(quantile(&mut values, 1.0), Some(5));
        assert_eq!(quantile(&mut [], 0.5), None);
    }

    #[test]
    fn the_table_sets_phases_side_by_side() {
        let expected = "                               uncontrolled    controlled
marking                                none  input-output
response                               none          lipd
measured            s                    10            10
root link           % of link          99.8          94.5
inter-switch link   % of link          99.0          85.0
local flows         % of link          88.0          58.0
remote flows        % of link          12.0          36.0
victim              % of link           9.0          49.0
remote / local      ratio              0.14          0.62
fairness, local     Jain              0.999         0.999
fairness, remote    Jain              0.998         0.999
sent                packets       1,176,000        64,000
dropped             packets         588,000             0
marked              packets               0        13,440
root queue, mean    packets            99.2           3.2
root queue, most    packets             116            39
victim ping, 50 %   us               16,900         1,200
victim ping, 99 %   us               17,300         3,900
mark to rate, 50 %  us                    -         1,200
mark to rate, 99 %  us                    -         2,900
agent               % of core           6.0           7.0
";
        let mut record = report(vec![uncontrolled(), controlled()]);
        assert_eq!(record.table(), expected);

        record.parameters.congestion_control = Some("bbr".to_owned());
        record.phases[1].tcp_retransmitted_segments = 1_234;
        record.phases[1].victim_tcp_rtt_us_p99 = 4_321;
        let table = record.table();
        for row in [
            "TCP, sent again packets 0 1,234",
            "victim TCP, 99 % us - 4,321",
            "TCP, bad checksum packets 0 0",
        ] {
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(table.lines().any(|line| words(line) == row), "{table}");
        }
        let table = without_victim(report(vec![uncontrolled()])).table();
        assert!(
            table.contains("victim              % of link             -\n"),
            "{table}"
        );
    }

    #[test]
    fn many_phases_are_rows_that_fit_80_columns() {
        let table = many().table();
        assert_eq!(table.lines().count(), 2 + 10, "{table}");
        assert!(
            table.lines().all(|line| line.chars().count() <= 80),
            "{table}"
        );
        assert!(table.contains("588k"), "{table}");
    }

    fn unwrapped(report: &Report) -> String {
        let verdict = report.verdict();
        assert!(
            verdict.lines().all(|line| line.chars().count() <= 80),
            "{verdict}"
        );
        report.paragraphs().join("\n")
    }

    const BEFORE: &str = "Uncontrolled, the victim got 9 % of the link rate. Nobody shares its \
        output port, and with fair shares the inter-switch link has room for 50 %: the congestion \
        of the root port has spread to it. 588,000 of 1,176,000 packets were dropped; 99 packets \
        waited at the root port on average. The root link was used to 100 %; remote flows got \
        14 % of what local flows got.";

    #[test]
    fn the_verdict_says_that_control_helped() {
        assert_eq!(
            unwrapped(&report(vec![uncontrolled(), controlled()])),
            format!(
                "{BEFORE}\n\
                 Controlled (input-output, lipd), the victim got 49 % of the link rate, 5.4 times \
                 as much. No packet was dropped; 3.2 packets waited at the root port on average, \
                 99 packets before. The root link was used to 94 % (100 % before); remote flows \
                 got 62 % of what local flows got (14 % before).\n\
                 Control helped, at a price. Better: victim 49 % instead of 9 %, 0 drops instead \
                 of 588,000, root queue 3.2 packets instead of 99 packets, remote/local 0.62 \
                 instead of 0.14. Worse: root link 94 % instead of 100 %."
            )
        );
    }

    #[test]
    fn the_verdict_says_that_control_did_not_help() {
        let useless = Phase {
            name: "controlled".into(),
            marking: Marking::Naive,
            response: Function::Aimd,
            ..uncontrolled()
        };
        let text = unwrapped(&report(vec![uncontrolled(), useless.clone()]));
        assert!(
            text.contains("got 9 % of the link rate, about as much as without."),
            "{text}"
        );
        assert!(
            text.ends_with("\nControl changed next to nothing."),
            "{text}"
        );

        let slow = Phase {
            root: 0.7,
            local: 0.6,
            remote: 0.1,
            ..useless.clone()
        };
        let text = unwrapped(&report(vec![uncontrolled(), slow]));
        assert!(
            text.ends_with("\nControl did not help. Worse: root link 70 % instead of 100 %."),
            "{text}"
        );

        let harm = Phase {
            victim: 0.03,
            dropped_packets: 0,
            ..useless.clone()
        };
        let text = unwrapped(&report(vec![uncontrolled(), harm]));
        assert!(
            text.contains("got 3 % of the link rate, down from 9 %."),
            "{text}"
        );
        assert!(
            text.ends_with(
                "\nControl did harm: the victim got less than without it. \
                 Better: 0 drops instead of 588,000. Worse: victim 3 % instead of 9 %."
            ),
            "{text}"
        );

        let elsewhere = Phase {
            dropped_packets: 10,
            ..useless
        };
        let text = unwrapped(&report(vec![uncontrolled(), elsewhere]));
        assert!(
            text.ends_with(
                "\nControl did not help the victim, though something else improved. \
                 Better: 10 drops instead of 588,000."
            ),
            "{text}"
        );
    }

    #[test]
    fn the_verdict_does_without_a_victim() {
        let report = without_victim(report(vec![uncontrolled(), controlled()]));
        let text = unwrapped(&report);
        assert!(!text.contains("victim"), "{text}");
        assert!(
            text.starts_with(
                "Uncontrolled, the root link was used to 100 %. 588,000 of 1,176,000 packets were \
                 dropped; 99 packets waited at the root port on average. Remote flows got 14 % of \
                 what local flows got.\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("\nControl helped, at a price. Better: 0 drops"),
            "{text}"
        );
    }

    #[test]
    fn the_verdict_says_when_there_was_nothing_to_stop() {
        let text = unwrapped(&report(vec![Phase {
            victim: 0.5,
            ..uncontrolled()
        }]));
        assert!(
            text.starts_with(
                "Uncontrolled, the victim got 50 % of the link rate, and with fair shares the \
                 inter-switch link has room for 50 %: hardly any congestion spread to it."
            ),
            "{text}"
        );
    }

    #[test]
    fn a_victim_with_its_share_is_no_measure_of_control() {
        let before = Phase {
            victim: 0.49,
            ..uncontrolled()
        };
        let text = unwrapped(&report(vec![before, controlled()]));
        assert!(
            text.contains("\nControl helped, at a price. Better: 0 drops instead"),
            "{text}"
        );
    }

    #[test]
    fn the_verdict_has_no_baseline_in_a_comparison_without_one() {
        let mut report = many();
        report.phases.remove(0);
        report.phases[4].dropped_packets = 1_234;
        let text = unwrapped(&report);
        assert!(
            text.starts_with("Most for the victim: input-output with lipd (50 %). "),
            "{text}"
        );
        assert!(
            text.ends_with("Fewest drops: input-output with aimd (0; the most were 1,234)."),
            "{text}"
        );
    }

    #[test]
    fn marks_that_nobody_answers_are_no_control() {
        let text = unwrapped(&report(vec![Phase {
            marking: Marking::Input,
            ..uncontrolled()
        }]));
        assert!(
            text.starts_with("Marked (input) but not controlled, the victim got 9 %"),
            "{text}"
        );
    }

    #[test]
    fn the_verdict_needs_no_baseline() {
        let text = unwrapped(&report(vec![controlled()]));
        assert!(
            text.starts_with(
                "Controlled (input-output, lipd), the victim got 49 % of the link rate. No"
            ),
            "{text}"
        );
        assert!(
            text.ends_with("There is no phase without control to compare it with."),
            "{text}"
        );
        assert_eq!(unwrapped(&report(vec![])), "Nothing was measured.");
    }

    #[test]
    fn the_verdict_ranks_many_phases() {
        let text = unwrapped(&many());
        assert_eq!(
            text,
            format!(
                "{BEFORE}\n\
                 8 of 9 other settings gave the victim more. Not so: naive with aimd (8 %).\n\
                 Most for the victim: input-output with lipd (50 %). Busiest root link: \
                 input-output with lipd (98 %). Most even shares: input-output with aimd \
                 (remote/local 1.06). None of them dropped a packet."
            ),
            "{text}"
        );
    }

    #[test]
    fn a_phase_without_traffic_is_no_evidence() {
        let silent = Phase {
            root: 0.0,
            inter_switch: 0.0,
            victim: 0.0,
            ..controlled()
        };
        let text = unwrapped(&report(vec![uncontrolled(), silent]));
        assert_eq!(
            text,
            format!(
                "Phase controlled: next to no traffic arrived. Its numbers say nothing about \
                 control.\n{BEFORE}"
            )
        );
    }

    #[test]
    fn live_lines_fit_80_columns() {
        let sample = uncontrolled().samples[99];
        let row = live_row("uncontrolled", &sample, true);
        assert_eq!(
            format!("{}\n{row}\n", live_header()),
            "\
phase                        s    root   inter   local  remote  victim   queue
uncontrolled                10    99 %    20 %    87 %    11 %     9 %      94
"
        );
        let view = live_view("controlled", 10.0, &sample, Some(&uncontrolled()), true);
        assert!(
            view.lines().all(|line| line.chars().count() <= 80),
            "{view}"
        );
        assert_eq!(view.lines().count(), 8, "{view}");
        let view = live_view("controlled", 10.0, &sample, None, false);
        assert!(
            !view.contains("victim") && !view.contains("before"),
            "{view}"
        );
    }

    /// Checks that tags close in turn, attributes are quoted and all else is escaped.
    fn assert_well_formed(xml: &str) {
        let body = xml
            .strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n")
            .unwrap();
        let mut open = Vec::new();
        let mut rest = body;
        while let Some(start) = rest.find('<') {
            let text = &rest[..start];
            assert!(!text.contains('>'), "{text}");
            for entity in text.split('&').skip(1) {
                let name = entity.split_once(';').unwrap().0;
                assert!(
                    ["amp", "lt", "gt", "quot", "apos"].contains(&name),
                    "{text}"
                );
            }
            let end = start + rest[start..].find('>').unwrap();
            let tag = &rest[start + 1..end];
            rest = &rest[end + 1..];
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
                continue;
            }
            let (tag, is_closed) = tag
                .strip_suffix('/')
                .map_or((tag, false), |tag| (tag, true));
            assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
            assert_eq!(
                tag.matches('=').count(),
                tag.matches('"').count() / 2,
                "{tag}"
            );
            if !is_closed {
                open.push(tag.split_whitespace().next().unwrap());
            }
        }
        assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
    }

    /// Writes a report to a directory; with `ECN_FIGURES=dir`, there, to be looked at.
    fn written(report: &Report, name: &str) -> (tempfile::TempDir, BTreeMap<String, String>) {
        let temporary = tempfile::tempdir().unwrap();
        let dir = match std::env::var_os("ECN_FIGURES") {
            Some(dir) => Path::new(&dir).join(name),
            None => temporary.path().join("made"),
        };
        let paths = report.write(&dir).unwrap();
        let files: BTreeMap<_, _> = paths
            .iter()
            .map(|path| {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, std::fs::read_to_string(path).unwrap())
            })
            .collect();
        assert_eq!(files.len(), paths.len());
        assert_eq!(
            std::fs::read_dir(&dir).unwrap().count(),
            paths.len(),
            "no temporary file stays"
        );
        for (name, text) in &files {
            if name.ends_with(".svg") {
                assert_well_formed(text);
            }
        }
        (temporary, files)
    }

    fn texts(svg: &str) -> Vec<&str> {
        let mut texts = Vec::new();
        for part in svg.split("<text ").skip(1) {
            let (_, rest) = part.split_once('>').unwrap();
            texts.push(rest.split_once('<').unwrap().0.trim());
        }
        texts
    }

    #[test]
    fn two_phases_are_written_as_files() {
        let report = report(vec![uncontrolled(), controlled()]);
        let (_dir, files) = written(&report, "two");
        assert_eq!(
            files.keys().map(String::as_str).collect::<Vec<_>>(),
            [
                "rig-rates-controlled.svg",
                "rig-rates-uncontrolled.svg",
                "rig-rates.svg",
                "rig-report.json",
                "rig-root-queue.svg",
                "rig-samples.csv"
            ]
        );
        assert_eq!(files["rig-report.json"], report.to_json().unwrap());
        let csv = &files["rig-samples.csv"];
        assert_eq!(csv.lines().count(), 1 + 200);
        assert!(csv.lines().all(|line| line.split(',').count() == 8));

        let labels = texts(&files["rig-rates.svg"]);
        for series in ["root", "inter-switch", "local", "remote", "victim"] {
            assert_eq!(
                labels.iter().filter(|text| **text == series).count(),
                2,
                "{series}"
            );
        }
        for text in ["uncontrolled", "controlled", TIME_LABEL, SHARE_LABEL] {
            assert!(labels.contains(&text), "{text}: {labels:?}");
        }
        let labels = texts(&files["rig-root-queue.svg"]);
        for text in ["uncontrolled", "controlled", TIME_LABEL, "packets"] {
            assert!(labels.contains(&text), "{text}: {labels:?}");
        }
    }

    #[test]
    fn without_a_victim_no_figure_shows_one() {
        let (_dir, files) = written(&without_victim(report(vec![uncontrolled()])), "no-victim");
        assert!(!texts(&files["rig-rates.svg"]).contains(&"victim"));
    }

    #[test]
    fn many_phases_are_compared() {
        let report = many();
        let (_dir, files) = written(&report, "many");
        let labels = texts(&files["rig-compare.svg"]);
        for text in [
            "root",
            "inter-switch",
            "victim",
            "remote / local",
            "input-output",
            "aimd",
        ] {
            assert!(labels.contains(&text), "{text}: {labels:?}");
        }
        for phase in &report.phases {
            let number = format!("{:.2}", phase.inter_switch);
            assert!(labels.contains(&number.as_str()), "{number}: {labels:?}");
        }
    }

    #[test]
    fn odd_names_stay_inside_the_directory_and_the_markup() {
        let odd = "../a<b> & \"c\",d";
        let phase = |name: &str| Phase {
            name: name.to_owned(),
            ..uncontrolled()
        };
        let report = report(vec![phase(odd), phase(odd)]);
        let (_dir, files) = written(&report, "odd");
        assert!(
            files.contains_key("rig-rates----a-b-----c--d.svg"),
            "{:?}",
            files.keys()
        );
        assert!(
            files.contains_key("rig-rates----a-b-----c--d-2.svg"),
            "{:?}",
            files.keys()
        );
        assert!(files["rig-samples.csv"].contains("\n\"../a<b> & \"\"c\"\",d\",0.100,"));
    }

    #[test]
    fn phases_without_samples_are_drawn_too() {
        let phase = Phase {
            samples: Vec::new(),
            ..uncontrolled()
        };
        written(&report(vec![phase]), "empty");
        written(&report(Vec::new()), "none");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        let error = report(Vec::new()).write(&path).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("cannot write {}: ", path.display())),
            "{error}"
        );
    }
}
