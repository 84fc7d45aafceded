use std::time::{Duration, Instant};

use ecn_core::flow;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::app::{App, Pane, Then};
use super::rates::{Meter, Top};
use super::{screen, text};
use crate::agent::health::{Kind, Subject, Warning};
use crate::agent::state::{Waiting, WaitingFor};
use crate::cli::table::{FlowRow, PortRow};

const SIZES: [(u16, u16); 3] = [(60, 15), (80, 24), (200, 50)];

fn port(name: &str, ifindex: u32, marked: u64, dropped: u64) -> PortRow {
    serde_json::from_value(serde_json::json!({
        "bridge": "br0", "port": name, "ifindex": ifindex, "marking": "input-output",
        "waiting_packets": 0, "to_mark_packets": 0, "occupancy_packets": 0,
        "marked_packets": marked, "unmarkable_packets": 0, "input_triggers": 0,
        "output_triggers": 0, "dropped_packets": dropped, "arrived_packets": marked * 10
    }))
    .unwrap()
}

fn flow(src_port: u16, acked: u64) -> (flow::Key, FlowRow) {
    let row: FlowRow = serde_json::from_value(serde_json::json!({
        "src": "10.0.0.1", "dst": "10.0.1.1", "protocol": "udp", "src_port": src_port, "dst_port": 2,
        "device": "eth0", "netns": "demo-a", "response": "lipd", "rate_bytes_per_s": 1_250_000,
        "ipd_packet_times": 1.0, "marked_packets": 0, "acked_packets": acked,
        "enforcement": "htb", "pinned": false, "idle_ms": 0, "sent_bytes": acked * 1000
    }))
    .unwrap();
    let key = flow::Key {
        src_port,
        ..flow::Key::default()
    };
    (key, row)
}

/// Two samples, two seconds apart: port `b` and flow 2 are the busiest, port `a` had nothing to count.
fn two_looks() -> (Top, Top) {
    let (mut meter, start) = (Meter::default(), Instant::now());
    let first = meter.measure(
        vec![port("a", 1, 0, 0), port("b", 2, 100, 0)],
        vec![flow(1, 9_000), flow(2, 10), flow(3, 0)],
        start,
    );
    let second = meter.measure(
        vec![port("a", 1, 0, 0), port("b", 2, 160, 40)],
        vec![flow(1, 9_000), flow(2, 410), flow(3, 200), flow(4, 7)],
        start + Duration::from_secs(2),
    );
    (first, second)
}

/// An app after two samples, with a warning and something to wait for.
fn app() -> App {
    let (first, mut second) = two_looks();
    second.warnings.push(Warning {
        kind: Kind::NoEcho,
        subject: Subject::endpoint("eth0", "demo-a"),
        message: "nobody answers".to_owned(),
    });
    second.waiting.push(Waiting {
        kind: WaitingFor::Bridge,
        name: "br9".to_owned(),
        netns: String::new(),
        why: "no such device".to_owned(),
    });
    let mut app = App::default();
    app.take(first, None);
    app.take(second, None);
    app
}

fn lines(app: &App, (width, height): (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen::render(frame, app)).unwrap();
    let cells = terminal.backend().buffer().content();
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned()
    };
    cells.chunks(width.into()).map(line).collect()
}

#[track_caller]
fn line_with<'a>(lines: &'a [String], word: &str) -> &'a str {
    let found = lines.iter().find(|line| line.contains(word));
    found.unwrap_or_else(|| panic!("no {word} in {lines:#?}"))
}

/// Position behind the last character of a word.
#[track_caller]
fn end_of(line: &str, word: &str) -> usize {
    let at = line
        .find(word)
        .unwrap_or_else(|| panic!("no {word} in {line}"));
    line[..at + word.len()].chars().count()
}

fn press(app: &mut App, keys: &str) {
    for key in keys.chars() {
        assert_eq!(app.key(KeyCode::Char(key).into()), Then::Go);
    }
}

#[test]
fn rates_are_since_the_last_look() {
    let (first, second) = two_looks();
    assert_eq!(first.acked_packets_per_s, None);
    assert_eq!(first.ports[0].marked_packets_per_s, None);
    assert_eq!((second.ports_in_all, second.flows_in_all), (2, 4));
    assert_eq!(second.marked_packets_per_s, Some(30));
    assert_eq!(second.dropped_packets_per_s, Some(20));
    assert_eq!(second.acked_packets_per_s, Some(300));
    assert_eq!(second.ports[0].row.port, "b");
    assert_eq!(second.ports[0].arrived_packets_per_s, Some(300));
    // Nothing was ever counted there.
    assert_eq!(second.ports[1].arrived_packets_per_s, None);
    let flows: Vec<_> = second
        .flows
        .iter()
        .map(|flow| (flow.row.src_port, flow.sent_bytes_per_s))
        .collect();
    let expected = [
        (2, Some(200_000)),
        (3, Some(100_000)),
        (1, Some(0)),
        (4, None),
    ];
    assert_eq!(flows, expected);
}

#[test]
fn json_has_null_for_what_was_not_measured() {
    let (first, second) = two_looks();
    let json = serde_json::to_value(&first).unwrap();
    assert!(
        json["marked_packets_per_s"].is_null() && json["flows"][0]["sent_bytes_per_s"].is_null()
    );
    let json = serde_json::to_value(&second).unwrap();
    for key in [
        "ports_in_all",
        "flows_in_all",
        "marked_packets_per_s",
        "dropped_packets_per_s",
    ] {
        assert!(json[key].is_u64(), "{key}");
    }
    assert_eq!(json["ports"][0]["marked_packets"], 160);
    assert_eq!(json["ports"][0]["marked_packets_per_s"], 30);
    assert_eq!(json["flows"][0]["rate_bytes_per_s"], 1_250_000);
}

/// Counters that restart, as with a new agent, give no rates.
#[test]
fn counters_may_restart() {
    let (mut meter, start) = (Meter::default(), Instant::now());
    meter.measure(vec![port("a", 1, 500, 5)], vec![flow(1, 50)], start);
    let later = start + Duration::from_secs(1);
    let top = meter.measure(vec![port("a", 1, 3, 0)], vec![flow(1, 2)], later);
    assert_eq!(top.ports[0].marked_packets_per_s, None);
    assert_eq!(top.flows[0].sent_bytes_per_s, None);
}

/// There is a column of messages where a port sends any.
#[test]
fn messages_have_a_column_where_they_are_sent() {
    let sends = |messages| {
        let mut port = port("bcn", 1, 0, 0);
        port.messages.sent_messages = Some(messages);
        port
    };
    let (mut meter, start) = (Meter::default(), Instant::now());
    let marks = |marked| port("hp", 2, marked, 0);
    meter.measure(vec![marks(0), sends(9)], Vec::new(), start);
    let later = start + Duration::from_secs(2);
    let top = meter.measure(vec![marks(20), sends(109)], Vec::new(), later);
    let rates: Vec<_> = top
        .ports
        .iter()
        .map(|port| port.sent_messages_per_s)
        .collect();
    assert_eq!(rates, [Some(50), None]);
    let mut notified = App::default();
    notified.take(top, None);
    for size in SIZES {
        let with = lines(&notified, size);
        let (head, row) = (line_with(&with, "marks/s"), line_with(&with, "bcn   "));
        assert!(head.contains("msgs/s"), "{with:#?}");
        assert_eq!(end_of(head, "msgs/s"), end_of(row, "50"), "{with:#?}");
        let without = lines(&app(), size);
        assert!(!line_with(&without, "marks/s").contains("msgs/s"));
    }
}

/// Ports of bridges with the same name, in two namespaces.
#[test]
fn namespaces_are_distinguished() {
    let (mut meter, start) = (Meter::default(), Instant::now());
    let ports = |marked: [u64; 2]| {
        let other = PortRow {
            netns: "other".to_owned(),
            ..port("a", 1, marked[1], 0)
        };
        vec![port("a", 1, marked[0], 0), other]
    };
    meter.measure(ports([5, 1_000]), Vec::new(), start);
    let top = meter.measure(
        ports([6, 1_007]),
        Vec::new(),
        start + Duration::from_secs(1),
    );
    assert_eq!(top.marked_packets_per_s, Some(8));
}

#[test]
fn plain_text_has_every_column() {
    let (_, top) = two_looks();
    let text = text(&top, usize::MAX);
    assert!(text.starts_with("2 ports, 4 flows; packets/s: 300 acked, 30 marked, 20 dropped\n"));
    for word in ["trig out/s", "ipd", "1.6mbit", "800kbit", "10mbit"] {
        assert!(text.contains(word), "{word} in {text}");
    }
    let new = text
        .lines()
        .find(|line| line.contains("10.0.0.1:4>"))
        .unwrap();
    assert_eq!(new.split_whitespace().nth(2), Some("-"), "{text}");
}

#[test]
fn the_screen_fits_every_size() {
    let app = app();
    for size in SIZES {
        let lines = lines(&app, size);
        assert!(
            lines[0].starts_with("2 ports, 4 flows; packets/s: 300 acked"),
            "{lines:#?}"
        );
        assert!(
            lines[1].starts_with("warning: endpoint eth0 in demo-a: nobody"),
            "{lines:#?}"
        );
        assert!(lines.last().unwrap().starts_with("q quit"), "{lines:#?}");
        // Numbers are right-aligned below their names.
        let (head, row) = (line_with(&lines, "marks/s"), line_with(&lines, "b   "));
        assert!(row.contains("30") && row.contains("20"), "{row}");
        assert!(end_of(head, "drops/s") > end_of(head, "marks/s"));
        let (head, row) = (
            line_with(&lines, "allowed"),
            line_with(&lines, "10.0.0.1:2>"),
        );
        let gap = end_of(head, "allowed") - end_of(row, "10mbit");
        assert_eq!(
            end_of(head, "offered") - end_of(row, "1.6mbit"),
            gap,
            "{lines:#?}"
        );
        assert!(line_with(&lines, "peak").contains("10.0.0.1:2>10.0.1.1:2/udp peak 1.6mbit"));
    }
    assert!(line_with(&lines(&app, SIZES[0]), "warning").ends_with("(+1)"));
    let wide = lines(&app, SIZES[2]);
    line_with(&wide, "waiting: bridge br9: no such device");
}

/// Whole columns, with whole numbers.
#[test]
fn narrow_screens_drop_columns() {
    let app = app();
    let heads = SIZES.map(|size| line_with(&lines(&app, size), "allowed").to_owned());
    let count = |head: &str| head.split_whitespace().count();
    assert!(
        count(&heads[0]) < count(&heads[1]) && count(&heads[1]) < count(&heads[2]),
        "{heads:?}"
    );
    assert!(
        heads[2].contains("ipd") && !heads[1].contains("ipd"),
        "{heads:?}"
    );
    // What is left of the narrowest: names are cut, numbers are not.
    let lines = lines(&app, (30, 15));
    let row = line_with(&lines, "1.6mbit");
    assert!(row.contains('…') && row.contains("10mbit"), "{lines:#?}");
}

#[test]
fn the_smallest_screens_are_no_panic() {
    let (empty, app) = (App::default(), app());
    for width in 1..30 {
        for height in 1..14 {
            lines(&empty, (width, height));
            lines(&app, (width, height));
        }
    }
}

#[test]
fn keys_sort_and_reverse() {
    let mut app = app();
    let order = |app: &App| -> Vec<_> {
        app.shown_flows()
            .iter()
            .map(|flow| flow.row.src_port)
            .collect()
    };
    assert_eq!(order(&app), [2, 3, 1, 4]);
    press(&mut app, "s");
    assert_eq!(order(&app), [1, 2, 3, 4]);
    line_with(&lines(&app, SIZES[1]), "flowv");
    line_with(&lines(&app, SIZES[1]), "s sort: flow");
    press(&mut app, "r");
    assert_eq!(order(&app), [4, 3, 2, 1]);
    line_with(&lines(&app, SIZES[1]), "flow^");
    // By the allowed rate, which is the same, then by the offered one.
    press(&mut app, "rss");
    assert_eq!(order(&app), [2, 3, 1, 4]);
    line_with(&lines(&app, SIZES[0]), "offeredv");
    // Those of ports are their own.
    app.key(KeyCode::Tab.into());
    assert_eq!(app.pane, Pane::Ports);
    press(&mut app, "s");
    assert_eq!(app.shown_ports()[0].row.port, "a");
    assert_eq!(app.flows.sort, Some(2));
}

#[test]
fn a_filter_is_typed() {
    let mut app = app();
    press(&mut app, "/:3>q");
    assert!(app.shown_flows().is_empty());
    line_with(&lines(&app, SIZES[0]), "filter of flows: :3>q_");
    app.key(KeyCode::Backspace.into());
    app.key(KeyCode::Enter.into());
    assert_eq!(app.shown_flows().len(), 1);
    assert_eq!(app.shown_flows()[0].row.src_port, 3);
    line_with(&lines(&app, SIZES[0]), "/ filter: :3>");
    // Ports have their own.
    assert_eq!(app.shown_ports().len(), 2);
    app.key(KeyCode::Tab.into());
    press(&mut app, "/a");
    line_with(&lines(&app, SIZES[0]), "filter of ports: a_");
    assert_eq!((app.shown_ports().len(), app.shown_flows().len()), (1, 1));
    app.key(KeyCode::Esc.into());
    app.key(KeyCode::Tab.into());
    press(&mut app, "/");
    app.key(KeyCode::Esc.into());
    assert_eq!((app.shown_flows().len(), app.shown_ports().len()), (4, 2));
}

#[test]
fn a_pause_holds_what_is_shown() {
    let mut app = app();
    press(&mut app, " ");
    app.take(Top::default(), Some("no datapath".to_owned()));
    assert_eq!(app.top().flows_in_all, 4);
    assert!(lines(&app, SIZES[0])[0].starts_with("[paused] "));
    press(&mut app, " ");
    app.take(Top::default(), Some("no datapath".to_owned()));
    assert_eq!(app.top().flows_in_all, 0);
    let lines = lines(&app, SIZES[0]);
    assert_eq!(lines[1], "no datapath");
}

/// The cursor stays on a flow that changes its place, and its rates are drawn.
#[test]
fn the_cursor_follows_its_flow() {
    let mut app = app();
    app.key(KeyCode::Down.into());
    let selected = |app: &App| app.selected().unwrap().0.row.src_port;
    assert_eq!(selected(&app), 3);
    press(&mut app, "s");
    assert_eq!((selected(&app), app.flows.cursor), (3, 2));
    let history = app.selected().unwrap().1;
    assert_eq!(history, &[None, Some(100_000)]);
    let lines = lines(&app, SIZES[1]);
    let title = lines.iter().position(|line| line.contains("peak")).unwrap();
    assert!(
        lines[title + 1..].iter().any(|line| line.contains('█')),
        "{lines:#?}"
    );
    app.key(KeyCode::End.into());
    assert_eq!(selected(&app), 4);
    app.key(KeyCode::PageUp.into());
    assert_eq!(selected(&app), 1);
}

#[test]
fn keys_quit() {
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for key in [KeyCode::Char('q').into(), KeyCode::Esc.into(), control_c] {
        assert_eq!(app().key(key), Then::Quit);
    }
    let mut typing = app();
    press(&mut typing, "/q");
    assert_eq!(typing.key(control_c), Then::Quit);
}
