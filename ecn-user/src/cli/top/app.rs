//! State of `ecn top`'s live view, and what keys do.

use std::collections::{HashMap, HashSet, VecDeque};

use ecn_core::flow;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::columns::{self, Column, FLOWS, PORTS};
use super::rates::{FlowRates, PortRates, Top};

/// Readings in a flow's history.
const HISTORY: usize = 200;
/// Maximum number of flows with a history.
const HISTORIES: usize = 4096;

/// Ports or flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pane {
    Ports,
    #[default]
    Flows,
}

/// How the rows of a pane are shown.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Column by which they are sorted; `None`: the busiest first.
    pub sort: Option<usize>,
    pub reverse: bool,
    /// Row of the cursor.
    pub cursor: usize,
    /// Only rows whose names contain this.
    pub filter: String,
}

impl Rows {
    /// Sorts by the next column; after the last one, the busiest first.
    fn next_sort(&mut self, columns: usize) {
        self.sort = match self.sort {
            None => Some(0),
            Some(last) if last + 1 >= columns => None,
            Some(column) => Some(column + 1),
        };
    }

    fn order<'a, T>(&self, columns: &[Column<T>], rows: impl Iterator<Item = &'a T>) -> Vec<&'a T> {
        let mut rows: Vec<_> = rows.collect();
        columns::sort(
            &mut rows,
            self.sort.and_then(|at| columns.get(at)),
            self.reverse,
        );
        rows
    }
}

/// What to do after a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Then {
    Go,
    Quit,
}

/// The state of the screen.
#[derive(Debug, Default)]
pub(super) struct App {
    top: Top,
    /// Why nothing is shown, or why the numbers do not change.
    pub notice: Option<String>,
    pub pane: Pane,
    pub ports: Rows,
    pub flows: Rows,
    /// The filter of the pane is being typed.
    pub typing: bool,
    pub paused: bool,
    /// The cursor stays with this flow when the order changes.
    selected: Option<flow::Key>,
    /// Offered rates, the newest last.
    history: HashMap<flow::Key, VecDeque<Option<u64>>>,
}

impl App {
    /// Shows a new reading, unless paused.
    pub(super) fn take(&mut self, top: Top, notice: Option<String>) {
        if self.paused {
            return;
        }
        let present: HashSet<_> = top.flows.iter().map(|flow| flow.key).collect();
        self.history.retain(|key, _| present.contains(key));
        for flow in &top.flows {
            if self.history.len() >= HISTORIES && !self.history.contains_key(&flow.key) {
                continue;
            }
            let history = self.history.entry(flow.key).or_default();
            if history.len() == HISTORY {
                history.pop_front();
            }
            history.push_back(flow.sent_bytes_per_s);
        }
        self.top = top;
        self.notice = notice;
        self.follow_selected();
    }

    /// The reading that is shown.
    pub(super) fn top(&self) -> &Top {
        &self.top
    }

    /// The ports to show, in order.
    pub(super) fn shown_ports(&self) -> Vec<&PortRates> {
        let ports = self
            .top
            .ports
            .iter()
            .filter(|port| port.matches(&self.ports.filter));
        self.ports.order(&PORTS, ports)
    }

    /// The flows to show, in order.
    pub(super) fn shown_flows(&self) -> Vec<&FlowRates> {
        let flows = self
            .top
            .flows
            .iter()
            .filter(|flow| flow.matches(&self.flows.filter));
        self.flows.order(&FLOWS, flows)
    }

    /// The flow at the cursor, and its history.
    pub(super) fn selected(&self) -> Option<(&FlowRates, &VecDeque<Option<u64>>)> {
        let flow = self.shown_flows().get(self.flows.cursor).copied()?;
        Some((flow, self.history.get(&flow.key)?))
    }

    /// Lines for the notice, warnings and missing devices.
    pub(super) fn warnings(&self) -> Vec<String> {
        let notice = self.notice.iter().cloned();
        let warnings = self
            .top
            .warnings
            .iter()
            .map(|warning| format!("warning: {warning}"));
        let waiting = self
            .top
            .waiting
            .iter()
            .map(|waiting| format!("waiting: {waiting}"));
        notice.chain(warnings).chain(waiting).collect()
    }

    /// Handles a key.
    pub(super) fn key(&mut self, key: KeyEvent) -> Then {
        if key.kind == KeyEventKind::Release {
            return Then::Go;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') {
                Then::Quit
            } else {
                Then::Go
            };
        }
        if self.typing {
            self.type_filter(key.code);
        } else {
            match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Then::Quit,
                KeyCode::Char(' ') => self.paused = !self.paused,
                KeyCode::Char('/') => self.typing = true,
                KeyCode::Tab | KeyCode::BackTab => {
                    self.pane = match self.pane {
                        Pane::Ports => Pane::Flows,
                        Pane::Flows => Pane::Ports,
                    };
                }
                KeyCode::Char('s') => match self.pane {
                    Pane::Ports => self.ports.next_sort(PORTS.len()),
                    Pane::Flows => self.flows.next_sort(FLOWS.len()),
                },
                KeyCode::Char('r') => {
                    let rows = self.rows();
                    rows.reverse = !rows.reverse;
                }
                code => self.move_cursor(code),
            }
        }
        self.follow_selected();
        Then::Go
    }

    fn type_filter(&mut self, code: KeyCode) {
        let filter = &mut self.rows().filter;
        match code {
            KeyCode::Char(c) => filter.push(c),
            KeyCode::Backspace => {
                filter.pop();
            }
            KeyCode::Esc => filter.clear(),
            _ => {}
        }
        self.typing = !matches!(code, KeyCode::Enter | KeyCode::Esc);
    }

    fn rows(&mut self) -> &mut Rows {
        match self.pane {
            Pane::Ports => &mut self.ports,
            Pane::Flows => &mut self.flows,
        }
    }

    fn move_cursor(&mut self, code: KeyCode) {
        const PAGE: usize = 10;
        let rows = self.rows();
        rows.cursor = match code {
            KeyCode::Up | KeyCode::Char('k') => rows.cursor.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => rows.cursor.saturating_add(1),
            KeyCode::PageUp => rows.cursor.saturating_sub(PAGE),
            KeyCode::PageDown => rows.cursor.saturating_add(PAGE),
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX,
            _ => return,
        };
        if self.pane == Pane::Flows {
            let flows = self.shown_flows();
            let flow = flows.get(self.flows.cursor).or(flows.last());
            self.selected = flow.map(|flow| flow.key);
        }
    }

    /// Keeps the cursors on rows, and that of flows on the selected flow while it is shown.
    fn follow_selected(&mut self) {
        let flows = self.shown_flows();
        let at = flows
            .iter()
            .position(|flow| Some(flow.key) == self.selected);
        let last = flows.len().saturating_sub(1);
        self.flows.cursor = at.unwrap_or(self.flows.cursor).min(last);
        self.ports.cursor = self
            .ports
            .cursor
            .min(self.shown_ports().len().saturating_sub(1));
    }
}
