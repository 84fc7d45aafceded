//! The rows: the senders and receivers of each, by name.

use std::time::Duration;

use super::{
    load::{Flow, Kind},
    web::Clients,
};

/// Hosts that send.
pub const SENDERS: usize = 10;
/// The host that receives, behind the port under test.
pub const SINK: usize = SENDERS;
/// The host that pings it.
pub const PING: usize = SENDERS + 1;
/// The host that sends it voice.
pub const VOICE: usize = SENDERS + 2;
/// The sender of short transfers.
pub const SERVER: usize = SENDERS - 1;
/// All of them.
pub const HOSTS: usize = SENDERS + 3;

/// What a row measures beside its greedy flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Nothing.
    None,
    /// The queue 300 ms after all start at once, and what was dropped until the end.
    Start,
    /// The queue 300 ms after all flows start at once, and drops until the end.
    Stop {
        /// When they stop.
        at: Duration,
    },
    /// Short transfers from [`SERVER`].
    Web {
        /// How clients open connections.
        clients: Clients,
        /// Length of a response.
        bytes: usize,
        /// Whether the agent is observed after their end.
        after: bool,
    },
}

/// A row.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its name on the command line.
    pub name: String,
    /// Greedy flows.
    pub flows: Vec<Flow>,
    /// Hosts without an endpoint.
    pub without: Vec<usize>,
    /// Whether there is a voice stream.
    pub voice: bool,
    /// Other measurements.
    pub special: Special,
    /// Hosts whose ports are limited to the rate.
    pub shaped: Vec<usize>,
    /// Ratio of the endpoints' link rate to the port's rate.
    pub link: u64,
    /// Whether there are super-packets, as on one machine.
    pub super_packets: bool,
    /// Rate of the port, if the row sets it.
    pub rate: Option<&'static str>,
    /// Duration, if the row sets it.
    pub seconds: Option<u64>,
}

impl Row {
    fn new(name: &str, flows: Vec<Flow>) -> Self {
        Self {
            name: name.to_owned(),
            flows,
            without: Vec::new(),
            voice: false,
            special: Special::None,
            shaped: vec![SINK],
            link: 1,
            super_packets: false,
            rate: None,
            seconds: None,
        }
    }
}

/// This number of flows of a kind, spread over the senders.
fn spread(kind: &Kind, flows: usize) -> Vec<Flow> {
    (0..flows)
        .map(|n| Flow::new(n % SENDERS, SINK, kind.clone()))
        .collect()
}

/// A kind of flow by its name.
fn kind(name: &str) -> Option<Kind> {
    Some(match name {
        "udp" => Kind::Udp,
        "cubic" => Kind::Tcp("cubic"),
        "reno" => Kind::Tcp("reno"),
        "bbr" => Kind::Tcp("bbr"),
        "dctcp" => Kind::Tcp("dctcp"),
        _ => return None,
    })
}

/// The row of this name, run for this time.
pub fn row(name: &str, seconds: u64) -> Option<Row> {
    let second = Duration::from_secs;
    if let Some((rest, rate)) = name.split_once('@') {
        let rate = ["10mbit", "100mbit", "1gbit"]
            .into_iter()
            .find(|known| *known == rate)?;
        let mut row = row(rest, seconds)?;
        (row.name, row.rate) = (name.to_owned(), Some(rate));
        return Some(row);
    }
    let (first, rest) = name.split_once('-').unwrap_or((name, ""));
    let words: Vec<&str> = rest.split('-').collect();
    let number = || {
        words
            .last()?
            .parse::<usize>()
            .ok()
            .filter(|n| (1..=1000).contains(n))
    };
    let of = || kind(words.first()?).or(Some(Kind::Udp));
    match first {
        "start" => {
            let mut row = Row::new(name, spread(&of()?, number()?));
            row.special = Special::Start;
            Some(row)
        }
        "stop" => {
            // stop-40, stop-cubic-40: all but the first stop in the middle.
            let at = second(seconds / 2);
            let mut flows = spread(&of()?, number()?);
            for flow in &mut flows[1..] {
                flow.times = vec![(Duration::ZERO, at)];
            }
            let mut row = Row::new(name, flows);
            row.special = Special::Stop { at };
            Some(row)
        }
        "churn" => Some(Row::new(name, churn(&of()?, seconds))),
        "mixed" => {
            // mixed-cubic-udp: four hosts with control, the fifth without.
            let [ours, other] = words.as_slice() else {
                return None;
            };
            let mut flows = spread(&kind(ours)?, 4);
            flows.push(Flow::new(4, SINK, kind(other)?));
            let mut row = Row::new(name, flows);
            row.without = vec![4];
            Some(row)
        }
        "voice" => {
            let mut row = Row::new(name, spread(&of()?, number()?));
            row.voice = true;
            Some(row)
        }
        "idle" => {
            let mut row = Row::new(name, spread(&Kind::Tcp("cubic"), number()?));
            row.shaped.clear();
            row.super_packets = true;
            Some(row)
        }
        "conns" | "web" => {
            // conns-200: connections per second; web: 20 that stay open.
            let clients = match first {
                "conns" => Clients::New(words.last()?.parse().ok()?),
                _ => Clients::Kept(20),
            };
            Some(web(name, clients))
        }
        "both" => {
            // both-3-4: to the sink and back, through two ports.
            let [there, back] = words.as_slice() else {
                return None;
            };
            let (there, back): (usize, usize) = (there.parse().ok()?, back.parse().ok()?);
            let mut flows = vec![Flow::new(0, SINK, Kind::Udp); there];
            flows.extend(vec![Flow::new(SINK, 0, Kind::Udp); back]);
            let mut row = Row::new(name, flows);
            row.shaped = vec![SINK, 0];
            Some(row)
        }
        "link" => {
            // link-10x, link-10x-cubic
            let link = words.first()?.strip_suffix('x')?.parse().ok()?;
            let kind = words.get(1).map_or(Some(Kind::Udp), |word| kind(word))?;
            let mut row = Row::new(name, spread(&kind, 10));
            row.link = link;
            Some(row)
        }
        _ => Some(Row::new(name, spread(&kind(first)?, number()?))),
    }
}

/// Five flows stay; one of five others leaves or joins every second.
fn churn(kind: &Kind, seconds: u64) -> Vec<Flow> {
    let mut flows = spread(kind, SENDERS);
    for (n, flow) in flows.iter_mut().skip(SENDERS / 2).enumerate() {
        let on = |second: u64| (second / 5 + u64::from(second % 5 > n as u64)).is_multiple_of(2);
        let second = Duration::from_secs;
        flow.times = (0..=seconds + 1)
            .filter(|at| on(*at))
            .map(|at| (second(at), second(at + 1)))
            .collect();
    }
    flows
}

/// Transfers to a host beside five greedy ones.
fn web(name: &str, clients: Clients) -> Row {
    let bytes = match clients {
        Clients::New(_) => 1_000,
        Clients::Kept(_) => 10_000,
    };
    let mut row = Row::new(name, spread(&Kind::Udp, 5));
    let after = matches!(clients, Clients::New(1_000..));
    if after {
        (row.voice, row.seconds) = (true, Some(32));
    }
    row.special = Special::Web {
        clients,
        bytes,
        after,
    };
    row
}

/// Rows that are run by default, and what they show.
pub fn all() -> Vec<(String, &'static str)> {
    let mut rows = Vec::new();
    for (kind, what) in [
        ("udp", "greedy UDP flows"),
        ("cubic", "greedy TCP flows, cubic"),
        ("reno", "greedy TCP flows, reno"),
        ("bbr", "greedy TCP flows, bbr"),
    ] {
        for n in [1, 2, 3, 5, 10, 40, 100, 400] {
            rows.push((format!("{kind}-{n}"), what));
        }
    }
    let more = [
        ("start-40", "UDP flows that start at once"),
        ("stop-40", "UDP: all but one stop"),
        ("stop-10", "UDP: all but one stop"),
        ("stop-cubic-10", "TCP: all but one stop"),
        ("churn", "UDP: one flow leaves or joins each second"),
        ("churn-cubic", "TCP: one flow leaves or joins each second"),
        ("mixed-udp-udp", "four hosts with control, one without"),
        ("mixed-cubic-udp", "four hosts with control, one without"),
        ("mixed-udp-cubic", "four hosts with control, one without"),
        ("mixed-cubic-cubic", "four hosts with control, one without"),
        ("voice-10", "5 Mbit/s of voice beside UDP flows"),
        ("voice-40", "5 Mbit/s of voice beside UDP flows"),
        ("voice-cubic-10", "5 Mbit/s of voice beside TCP flows"),
        ("both-3-4", "UDP flows there and back"),
        (
            "link-10x",
            "endpoints' link rate 10 times the port's, 10 UDP flows",
        ),
        (
            "link-10x-cubic",
            "endpoints' link rate 10 times the port's, 10 TCP flows",
        ),
        (
            "link-100x",
            "endpoints' link rate 100 times the port's, 10 UDP flows",
        ),
        (
            "link-100x-cubic",
            "endpoints' link rate 100 times the port's, 10 TCP flows",
        ),
        (
            "udp-2@10mbit",
            "the same at another rate: any row, 10mbit or 1gbit",
        ),
        ("udp-10@10mbit", "the same at another rate"),
        ("udp-40@10mbit", "the same at another rate"),
        ("udp-2@1gbit", "the same at another rate"),
        ("udp-10@1gbit", "the same at another rate"),
        ("udp-40@1gbit", "the same at another rate"),
        ("cubic-2@1gbit", "the same at another rate"),
        ("cubic-10@1gbit", "the same at another rate"),
        (
            "conns-200",
            "200 TCP connections of 1 kB a second beside five hosts with UDP",
        ),
        (
            "web",
            "20 TCP connections with 10 kB after 10 kB beside five hosts with UDP",
        ),
        (
            "conns-1000",
            "1,000 connections a second for 30 s, voice, five hosts with UDP",
        ),
        (
            "conns-4000",
            "4,000 connections a second for 30 s, voice, five hosts with UDP",
        ),
        ("idle-1", "TCP without a shaper"),
        ("idle-4", "TCP without a shaper"),
    ];
    rows.extend(more.map(|(name, what)| (name.to_owned(), what)));
    rows
}
