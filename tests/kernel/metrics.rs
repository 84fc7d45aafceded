//! What the agent shows over HTTP.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use ecn_tests::{
    eventually, kernel_test,
    lab::Lab,
    running::{self, Running},
    s,
    traffic::Stream,
};
use ecn_user::{agent::Options, config::Marking};

const DASHBOARD: &str = include_str!("../../dist/grafana-dashboard.json");
/// 40 Mbit/s.
const LINK: u64 = 5_000_000;

/// An address that was free a moment ago.
fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number")
}

/// Status and body of an answer.
fn get(at: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(at).expect("connect");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .expect("ask");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("headers");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// Values by name and labels.
fn scrape(at: SocketAddr) -> BTreeMap<String, f64> {
    let (status, text) = get(at, "/metrics");
    assert_eq!(status, 200, "{text}");
    assert!(text.ends_with("# EOF\n"), "{text}");
    let values = text.lines().filter(|line| !line.starts_with('#'));
    let value = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a value");
        (name.to_owned(), value.parse().expect("a number"))
    };
    values.map(value).collect()
}

/// Names of metrics in the dashboard's queries.
fn queried() -> Vec<String> {
    let mut names = Vec::new();
    let document: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let mut open = vec![&document];
    while let Some(value) = open.pop() {
        match value {
            serde_json::Value::Object(fields) => {
                if let Some(query) = fields.get("expr").and_then(|query| query.as_str()) {
                    let word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
                    let words = query.split(word).filter(|word| word.starts_with("ecn_"));
                    names.extend(words.map(str::to_owned));
                }
                open.extend(fields.values());
            }
            serde_json::Value::Array(values) => open.extend(values),
            _ => {}
        }
    }
    names.sort();
    names.dedup();
    names
}

#[test]
fn metrics_and_health() {
    kernel_test!();
    let lab = Lab::new(3);
    lab.limit(2, LINK / 4, 100);
    let config = running::config(&lab, Marking::InputOutput);
    let mut config = running::with_endpoints(config, &lab, &[0, 1, 2], LINK);
    let at = free();
    config.metrics.listen = Some(at);
    config.metrics.top_flows = 1;
    let running = Running::start(config, Options::default());
    let _streams = [0, 1].map(|from| {
        let port = 7001 + from as u16;
        Stream::start(&lab.hosts[from], &lab.hosts[2], port, 1000)
    });
    let name = |metric: &str, labels: &str| {
        let netns = lab.switch.name();
        let port = &lab.hosts[2].port;
        format!("{metric}{{bridge=\"br0\",netns=\"{netns}\",port=\"{port}\"{labels}}}")
    };
    let marked = name("ecn_port_marked_packets_total", "");
    let seen = || {
        scrape(at)
            .get(&marked)
            .is_some_and(|marked| *marked > 100.0)
    };
    assert!(eventually(s(10), seen), "{:?}", scrape(at));

    // What it says is what the maps say, and only grows.
    let before = scrape(at);
    let now = running.port(&lab.hosts[2].port).marked as f64;
    let after = scrape(at);
    assert!((before[&marked]..=after[&marked]).contains(&now));
    for (name, value) in before.iter().filter(|(name, _)| name.contains("_total")) {
        if !name.starts_with("ecn_flow_") {
            assert!(after[name] >= *value, "{name} fell");
        }
    }
    let flows = after
        .keys()
        .filter(|name| name.starts_with("ecn_flow_rate_"));
    assert_eq!(
        flows.count(),
        1,
        "only as many flows as are asked for: {after:?}"
    );
    for name in queried() {
        let has = |of: &&String| of.split('{').next() == Some(name.as_str());
        assert!(
            after.keys().any(|of| has(&of)),
            "the dashboard's {name} is not there"
        );
    }

    assert_eq!(
        get(at, "/healthz"),
        (200, "{\"status\":\"ok\"}\n".to_owned())
    );
    assert_eq!(get(at, "/").0, 404);
    // Who asks slowly holds nobody up.
    let _slow: Vec<_> = (0..8)
        .map(|_| TcpStream::connect(at).expect("connect"))
        .collect();
    let begun = Instant::now();
    assert_eq!(get(at, "/healthz").0, 200);
    assert!(begun.elapsed() < Duration::from_secs(2));
}
