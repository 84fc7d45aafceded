//! `ecn top`'s live view on a terminal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Sparkline, SparklineBar, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::app::{App, Pane, Rows, Then};
use super::columns::{Column, FLOWS, GAP, PORTS, cut, fit, offered_text};
use super::rates::Top;
use super::summary;

/// Maximum delay of the response to a signal or key.
const WAKE: Duration = Duration::from_millis(100);

/// Restores the terminal when dropped; ratatui also restores it on a panic.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the readings of `look`, each with a notice if something is wrong, until a key or a signal ends it.
///
/// # Errors
///
/// The terminal cannot be used.
pub(super) fn run(
    interval: Duration,
    mut look: impl FnMut() -> (Top, Option<String>),
) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    // Not SIGHUP: without a terminal there is nothing to restore, and crossterm would read end of file for ever.
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("cannot wait for signals")?;
    }
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let _restore = Restore;
    let mut app = App::default();
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        if now >= next {
            let (top, notice) = look();
            app.take(top, notice);
            // Missed readings are skipped.
            next = (next + interval).max(now);
            draw(&mut terminal, &app)?;
        }
        let wait = next.saturating_duration_since(Instant::now()).min(WAKE);
        if !event::poll(wait).context("cannot read the terminal")? {
            continue;
        }
        let then = match event::read().context("cannot read the terminal")? {
            Event::Key(key) => app.key(key),
            _ => Then::Go,
        };
        if then == Then::Quit {
            break;
        }
        draw(&mut terminal, &app)?;
    }
    Ok(())
}

fn draw(terminal: &mut DefaultTerminal, app: &App) -> io::Result<()> {
    terminal.draw(|frame| render(frame, app)).map(|_| ())
}

/// Heights of the parts of the screen, lines.
struct Heights {
    warnings: u16,
    ports: u16,
    history: u16,
}

/// Ports get a third of the lines that the other parts leave, and the lines that flows do not need.
fn heights(area: Rect, warnings: usize, ports: usize, flows: usize) -> Heights {
    let most_warnings = match area.height {
        0..20 => 1,
        20..40 => 2,
        _ => 6,
    };
    let warnings = clamp(warnings).min(most_warnings);
    let history = match area.height {
        0..12 => 0,
        12..20 => 2,
        20..40 => 4,
        _ => 9,
    };
    // Title, keys, and the headers of both tables.
    let rest = area.height.saturating_sub(4 + warnings + history);
    let ports = clamp(ports).min((rest / 3).max(rest.saturating_sub(clamp(flows))));
    Heights {
        warnings,
        ports: ports + 1,
        history,
    }
}

fn clamp(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// Draws everything.
pub(super) fn render(frame: &mut Frame, app: &App) {
    let (ports, flows) = (app.shown_ports(), app.shown_flows());
    let warnings = app.warnings();
    let heights = heights(
        frame.area(),
        warnings.len(),
        ports.len().max(1),
        flows.len().max(1),
    );
    let [title, trouble_area, port_area, flow_area, history, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(heights.warnings),
        Constraint::Length(heights.ports),
        Constraint::Fill(1),
        Constraint::Length(heights.history),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let width = usize::from(frame.area().width);
    let state = if app.paused { "[paused] " } else { "" };
    let text = cut(&format!("{state}{}", summary(app.top())), width);
    frame.render_widget(Line::styled(text, bold), title);
    render_warnings(frame, trouble_area, &warnings);
    render_table(
        frame,
        port_area,
        &PORTS,
        &ports,
        &app.ports,
        app.pane == Pane::Ports,
    );
    render_table(
        frame,
        flow_area,
        &FLOWS,
        &flows,
        &app.flows,
        app.pane == Pane::Flows,
    );
    render_history(frame, history, app);
    frame.render_widget(Line::raw(keys_text(app, width)), keys);
}

/// Help for the keys, as many as fit.
fn keys_text(app: &App, width: usize) -> String {
    let (what, rows, sort) = match app.pane {
        Pane::Ports => ("ports", &app.ports, app.ports.sort.map(|at| PORTS[at].name)),
        Pane::Flows => ("flows", &app.flows, app.flows.sort.map(|at| FLOWS[at].name)),
    };
    let filter = rows.filter.as_str();
    if app.typing {
        let text = format!("filter of {what}: {filter}_  (Enter: keep, Esc: none)");
        return cut(&text, width);
    }
    let filter = match filter {
        "" => "/ filter".to_owned(),
        filter => format!("/ filter: {filter}"),
    };
    let sort = format!("s sort: {}", sort.unwrap_or("busiest"));
    let mut text = "q quit".to_owned();
    for key in [&filter, &sort, "space pause", "tab pane", "r reverse"] {
        if text.chars().count() + GAP + key.chars().count() > width {
            break;
        }
        text.push_str("  ");
        text.push_str(key);
    }
    text
}

fn render_warnings(frame: &mut Frame, area: Rect, warnings: &[String]) {
    let (shown, width) = (usize::from(area.height), usize::from(area.width));
    let mut lines: Vec<_> = warnings
        .iter()
        .take(shown)
        .map(|line| cut(line, width))
        .collect();
    let hidden = warnings.len() - lines.len();
    if let Some(last) = lines.last_mut().filter(|_| hidden > 0) {
        let more = format!(" (+{hidden})");
        *last = cut(last, width.saturating_sub(more.len())) + &more;
    }
    let text = Text::from_iter(lines).style(Style::new().fg(Color::Yellow));
    frame.render_widget(Paragraph::new(text), area);
}

fn render_table<T>(
    frame: &mut Frame,
    area: Rect,
    columns: &[Column<T>],
    rows: &[&T],
    of: &Rows,
    focused: bool,
) {
    let shown = fit(columns, rows, usize::from(area.width));
    let aligned = |text: String, column: &Column<T>| {
        let is_text = column.is_text();
        let side = if is_text {
            Alignment::Left
        } else {
            Alignment::Right
        };
        Cell::from(Text::from(text).alignment(side))
    };
    let head = shown.iter().map(|at| {
        let column = &columns[at.index];
        let sign = match of.sort == Some(at.index) {
            true if of.reverse => "^",
            true => "v",
            false => "",
        };
        aligned(format!("{}{sign}", column.name), column)
    });
    let marked = Style::new().add_modifier(Modifier::REVERSED);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let head = Row::new(head).style(if focused { marked } else { bold });
    let cells = |row: &&T| {
        let cells = shown.iter().map(|at| {
            let column = &columns[at.index];
            aligned(cut(&(column.cell)(row), at.width), column)
        });
        Row::new(cells.collect::<Vec<_>>())
    };
    let widths = shown.iter().map(|at| Constraint::Length(clamp(at.width)));
    let table = Table::new(rows.iter().map(cells), widths)
        .header(head)
        .column_spacing(GAP as u16)
        .row_highlight_style(if focused { marked } else { Style::new() });
    let mut state = TableState::new().with_selected((!rows.is_empty()).then_some(of.cursor));
    frame.render_stateful_widget(table, area, &mut state);
}

fn render_history(frame: &mut Frame, area: Rect, app: &App) {
    let Some((flow, history)) = app.selected().filter(|_| area.height > 1) else {
        return;
    };
    let width = usize::from(area.width);
    let newest = history.iter().skip(history.len().saturating_sub(width));
    let most = newest.clone().flatten().max().copied();
    let [title, line] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let peak = format!(" peak {}", offered_text(most));
    let name = cut(&flow.row.name(), width.saturating_sub(peak.len()));
    frame.render_widget(Line::raw(name + &peak), title);
    let bars = newest.map(|rate| SparklineBar::from(*rate));
    let sparkline = Sparkline::default()
        .data(bars)
        .max(most.unwrap_or(0).max(1))
        .absent_value_symbol("-");
    frame.render_widget(sparkline, line);
}
