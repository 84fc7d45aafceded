//! Figures with the axes of Fig. 2 and 3 of the HP papers.

use ecn_core::marking::Marking;
use ecn_core::response::Function;
use ecn_report::figure::{DotColumn, DotFigure, Line, LineFigure, Panel};

use super::{Phase, Report, shares};

pub(super) const TIME_LABEL: &str = "time in s";
pub(super) const SHARE_LABEL: &str = "fraction of the link rate";

impl Phase {
    /// This phase's panel in the line figure; colours and patterns mean the same in all figures.
    fn rates_panel(&self, with_victim: bool) -> Panel {
        let lines = (0..)
            .zip(shares(with_victim))
            .map(|(look, (label, share))| {
                let points = self
                    .samples
                    .iter()
                    .map(|sample| (sample.t_s, share(sample)));
                Line {
                    label: (*label).to_owned(),
                    points: points.collect(),
                    look,
                    ..Line::default()
                }
            });
        Panel {
            title: self.name.clone(),
            note: if self.is_named_by_setting() {
                String::new()
            } else {
                self.setting()
            },
            lines: lines.collect(),
        }
    }

    fn queue_line(&self, look: usize) -> Line {
        let samples = self.samples.iter();
        let points = samples.map(|sample| (sample.t_s, f64::from(sample.root_queue_packets)));
        Line {
            label: self.name.clone(),
            points: points.collect(),
            look,
            ..Line::default()
        }
    }
}

impl Report {
    pub(super) fn rates_figure(&self, phases: &[Phase]) -> LineFigure {
        let victim = self.parameters.victim;
        let panels = phases.iter().map(|phase| phase.rates_panel(victim));
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
            let (mut markings, mut responses) = (Marking::ALL.iter(), Function::ALL.iter());
            (
                markings.position(|marking| *marking == phase.marking),
                responses.position(|response| *response == phase.response),
            )
        };
        phases.sort_by_key(|phase| place(phase));
        let column = |title: &str, unit: &str, get: fn(&Phase) -> Option<f64>| DotColumn {
            title: title.to_owned(),
            unit: unit.to_owned(),
            values: phases.iter().map(|phase| get(phase)).collect(),
            half_widths: Vec::new(),
            reference: None,
        };
        let share = "of link rate";
        let mut columns = vec![
            column("root", share, |phase| Some(phase.root)),
            column("inter-switch", share, |phase| Some(phase.inter_switch)),
        ];
        if self.parameters.victim {
            columns.push(column("victim", share, |phase| Some(phase.victim)));
        }
        columns.push(DotColumn {
            reference: Some(1.0),
            ..column("remote / local", "1 is equal", |phase| {
                phase.remote_local_ratio
            })
        });
        // Phases with the same marking and response are distinguished by name.
        let row = |phase: &&Phase| {
            let alike = phases.iter().filter(|other| place(other) == place(phase));
            let name = match alike.count() {
                1 => phase.response.to_string(),
                _ => phase.name.clone(),
            };
            (phase.marking.to_string(), name)
        };
        DotFigure {
            title: "Markings and responses compared".to_owned(),
            rows: phases.iter().map(row).collect(),
            columns,
        }
    }
}
