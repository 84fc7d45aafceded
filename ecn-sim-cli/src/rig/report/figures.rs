//! Figures with the axes of Fig. 2 and 3 of the HP papers.

use ecn_core::marking::Marking;
use ecn_core::response::Function;
use ecn_report::figure::{DotColumn, DotFigure, Line, LineFigure, Panel};

use super::{Phase, Report, Sample};

pub(super) const TIME_LABEL: &str = "time in s";
pub(super) const SHARE_LABEL: &str = "fraction of the link rate";

impl Phase {
    /// This phase's panel in the line figure; colours and patterns mean the same in all figures.
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
                    ..Line::default()
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
            ..Line::default()
        }
    }
}

impl Report {
    pub(super) fn rates_figure(&self, phases: &[Phase]) -> LineFigure {
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

    pub(super) fn queue_figure(&self) -> LineFigure {
        // A few lines fit one panel; with more, each phase gets a panel.
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

    pub(super) fn compare_figure(&self) -> DotFigure {
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
            half_widths: Vec::new(),
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
            values: phases
                .iter()
                .map(|phase| phase.remote_local_ratio)
                .collect(),
            ..column("remote / local", "1 is equal", |_| 0.0)
        });
        // Phases with the same marking and response are distinguished by name.
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
}
