//! `ecn top` on a terminal, with an agent and traffic.

use std::{fs, thread::sleep, time::Duration};

use ecn_tests::{
    agent::Agent, ecn_or_skip, eventually, kernel_test, lab::Lab, note, process, running, s,
    terminal::Terminal, tmux_or_skip, traffic::Stream,
};
use ecn_user::{cli::table::FlowRow, config::Marking, units::Rate};

/// Columns and lines.
const SIZES: [(u16, u16); 3] = [(60, 15), (80, 24), (200, 50)];
/// 40 Mbit/s.
const LINK: u64 = 5_000_000;
/// Rate of the port through which both flows leave, 10 Mbit/s.
const PORT: u64 = LINK / 4;
/// Payload of a packet, whose headers have 42 bytes.
const PAYLOAD: usize = 1000;

/// An agent and two flows through one port.
struct Busy {
    // Dropped in this order.
    _streams: [Stream; 2],
    _agent: Agent,
    _lab: Lab,
    command: String,
}

impl Busy {
    fn new(ecn: &std::path::Path) -> Self {
        let lab = Lab::new(3);
        lab.limit(2, PORT, 100);
        let config = running::config(&lab, Marking::InputOutput);
        let config = running::with_endpoints(config, &lab, &[0, 1, 2], LINK);
        let agent = Agent::start(ecn, &config);
        let streams = [0, 1].map(|from| {
            let port = 7001 + from as u16;
            Stream::start(&lab.hosts[from], &lab.hosts[2], port, PAYLOAD)
        });
        let marked = || {
            let rows = process::stdout(&process::run(ecn, &["flow", "show", "-j"]));
            let rows: Vec<FlowRow> = serde_json::from_str(&rows).expect("flows");
            rows.len() == 2 && rows.iter().all(|row| row.marked_packets > 0)
        };
        assert!(eventually(s(20), marked), "{}", agent.log());
        Self {
            _streams: streams,
            _agent: agent,
            _lab: lab,
            command: ecn.to_str().expect("a path").to_owned(),
        }
    }
}

fn has(lines: &[String], word: &str) -> bool {
    lines.iter().any(|line| line.contains(word))
}

/// The rows of flows, with their allowed and offered rates; bytes per second.
fn flows(lines: &[String]) -> Vec<(String, Option<u64>, Option<u64>)> {
    let rate = |word: &str| match word {
        "0bit" => Some(0),
        word => word.parse::<Rate>().ok().map(|rate| rate.bytes_per_s()),
    };
    let row = |line: &String| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [name, allowed, offered, ..] = words[..] else {
            return None;
        };
        let is_flow = name.contains('>') && name.ends_with("/udp") && allowed != "peak";
        is_flow.then(|| (name.to_owned(), rate(allowed), rate(offered)))
    };
    lines.iter().filter_map(row).collect()
}

/// Acknowledged packets per second in the title.
fn acked(lines: &[String]) -> Option<u64> {
    let (_, rest) = lines.first()?.split_once("packets/s: ")?;
    rest.split(' ').next()?.parse().ok()
}

/// Both flows fill the port, in bytes and in packets per second; totals would be larger.
fn rates_are_of_the_port(lines: &[String]) -> bool {
    let bytes: u64 = flows(lines).iter().filter_map(|(_, _, sent)| *sent).sum();
    let packets = PORT / (PAYLOAD as u64 + 42);
    let about = |value: u64, expected: u64| (expected / 2..=expected * 3 / 2).contains(&value);
    about(bytes, PORT) && acked(lines).is_some_and(|acked| about(acked, packets))
}

#[test]
fn a_screen_of_any_size() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    tmux_or_skip!();
    let busy = Busy::new(&ecn);
    for size in SIZES {
        on_a_screen(&busy, size);
    }
}

fn on_a_screen(busy: &Busy, (columns, height): (u16, u16)) {
    let terminal = Terminal::new(columns, height);
    let bars = |lines: &[String]| lines.iter().any(|line| line.contains(['▇', '█']));
    let order = |lines: &[String]| -> Vec<String> {
        flows(lines).into_iter().map(|(name, ..)| name).collect()
    };
    terminal.line(&format!("{} top -s 0.5; echo code=$?", busy.command));
    let lines = terminal.until("rates", |lines| {
        flows(lines).len() == 2 && rates_are_of_the_port(lines) && bars(lines)
    });
    note(&lines.join("\n"));
    assert!(terminal.is_taken());
    assert_eq!(terminal.joined_lines(), lines, "a line goes on in the next");
    assert_eq!(lines.len(), usize::from(height));
    assert!(lines[0].starts_with("3 ports, 2 flows; "), "{lines:#?}");
    for word in ["marks/s", "drops/s", "allowed", "offered", " peak "] {
        assert!(has(&lines, word), "no {word}: {lines:#?}");
    }
    assert!(lines[lines.len() - 1].starts_with("q quit"), "{lines:#?}");
    let is_limited = |(_, allowed, _): &(_, Option<u64>, _)| allowed.is_some_and(|of| of <= LINK);
    assert!(flows(&lines).iter().all(is_limited), "{lines:#?}");

    terminal.text("s");
    let sorted = terminal.until("the column", |lines| has(lines, "flowv"));
    terminal.text("r");
    let reversed = terminal.until("the other order", |lines| has(lines, "flow^"));
    let mut names = order(&reversed);
    assert!(names.is_sorted_by(|a, b| a > b), "{names:?}");
    names.reverse();
    assert_eq!(order(&sorted), names);

    terminal.text("/:7002>");
    terminal.key("Enter");
    let filtered = terminal.until("one flow", |lines| {
        flows(lines).len() == 1 && has(lines, "/ filter: :7002>")
    });
    assert!(order(&filtered)[0].contains(":7002>"));
    terminal.text("/");
    terminal.key("Escape");
    terminal.until("both flows", |lines| flows(lines).len() == 2);

    terminal.text(" ");
    let paused = |lines: &[String]| lines[0].starts_with("[paused] ");
    let held = terminal.until("a pause", paused);
    sleep(Duration::from_millis(1200));
    assert_eq!(terminal.lines(), held);
    terminal.text(" ");
    terminal.until("no pause", |lines| !paused(lines));

    terminal.text("q");
    terminal.until("the exit code", |lines| has(lines, "code=0"));
    assert!(!terminal.is_taken());
    terminal.line("clear; stty -a | tr ' ;' '\\n\\n' | grep -xE -- '-?(icanon|echo)'; echo done");
    let after = terminal.until("the settings", |lines| {
        lines.iter().any(|line| line == "done")
    });
    for word in ["icanon", "echo"] {
        let is_on = after.iter().any(|line| line == word);
        assert!(is_on, "no {word}: {after:#?}");
    }
    assert!(terminal.has_cursor());
}

#[test]
fn a_dumb_terminal_gets_lines() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    tmux_or_skip!();
    let busy = Busy::new(&ecn);
    let terminal = Terminal::new(80, 50);
    terminal.line(&format!("TERM=dumb {} top -s 0.5", busy.command));
    let twice = |lines: &[String]| {
        let titles = lines
            .iter()
            .filter(|line| line.starts_with("3 ports, 2 flows; "));
        titles.count() >= 2
    };
    terminal.until("two looks", twice);
    assert!(!terminal.is_taken());
    assert_eq!(terminal.joined_lines().len(), terminal.lines().len());
}

#[test]
fn top_ends_with_its_terminal() {
    kernel_test!();
    let ecn = ecn_or_skip!();
    tmux_or_skip!();
    let busy = Busy::new(&ecn);
    let terminal = Terminal::new(80, 24);
    terminal.line(&format!("exec {} top", busy.command));
    terminal.until("flows", |lines| flows(lines).len() == 2);
    let pid = terminal.process();
    let runs = || {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.starts_with(busy.command.as_bytes())
    };
    assert!(runs());
    drop(terminal);
    assert!(eventually(s(5), || !runs()), "process {pid} runs on");
}
