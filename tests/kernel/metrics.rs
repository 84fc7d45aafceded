//! The agent's metrics over HTTP.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ecn_tests::{
    Skip, eventually, kernel_test,
    lab::Lab,
    process::Process,
    running::{self, Running},
    s, skipped,
    traffic::Stream,
};
use ecn_user::{agent::Options, config::Marking};
use serde_json::Value;

const DASHBOARD: &str = include_str!("../../dist/grafana-dashboard.json");
/// 40 Mbit/s.
const LINK: u64 = 5_000_000;

/// An address that was free a moment ago.
fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number")
}

/// Status and body of a response.
fn get(at: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(at).expect("connect");
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {at}\r\n\r\n").expect("ask");
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

/// The dashboard's queries, each with its legend.
fn dashboard() -> Vec<(String, String)> {
    let mut queries = Vec::new();
    let document: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let mut open = vec![&document];
    while let Some(value) = open.pop() {
        match value {
            Value::Object(fields) => {
                let text = |key: &str| fields.get(key).and_then(Value::as_str);
                if let Some(query) = text("expr") {
                    let legend = text("legendFormat").unwrap_or_default();
                    queries.push((query.to_owned(), legend.to_owned()));
                }
                open.extend(fields.values());
            }
            Value::Array(values) => open.extend(values),
            _ => {}
        }
    }
    queries
}

/// Names of metrics in the dashboard's queries.
fn queried() -> BTreeSet<String> {
    let word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let queries = dashboard();
    let words = queries.iter().flat_map(|(query, _)| query.split(word));
    let names = words.filter(|word| word.starts_with("ecn_"));
    names.map(str::to_owned).collect()
}

/// Prometheus: in PATH, or where `cargo xtask setup` puts it.
fn prometheus() -> Option<PathBuf> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/prometheus/usr/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([tools])
        .map(|folder| folder.join("prometheus"))
        .find(|file| file.is_file())
}

/// A Prometheus that scrapes an agent; stopped when dropped.
struct Prometheus {
    _process: Process,
    folder: PathBuf,
    at: SocketAddr,
}

impl Prometheus {
    #[track_caller]
    fn start(program: &Path, agent: SocketAddr) -> Self {
        let folder = std::env::temp_dir().join(format!("ecn-t-prom-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let config = format!(
            "scrape_configs:\n\
             - job_name: ecn\n  \
               scrape_interval: 250ms\n  \
               scrape_timeout: 250ms\n  \
               static_configs: [{{targets: ['{agent}']}}]\n"
        );
        fs::write(folder.join("prometheus.yml"), config).expect("a configuration");
        let at = free();
        let words = [
            format!("--config.file={}/prometheus.yml", folder.display()),
            format!("--storage.tsdb.path={}/data", folder.display()),
            format!("--web.listen-address={at}"),
        ];
        let words = words.each_ref().map(String::as_str);
        let prometheus = Self {
            _process: Process::start(program, &words, &folder.join("log")),
            folder,
            at,
        };
        let is_ready = || TcpStream::connect(at).is_ok() && get(at, "/-/ready").0 == 200;
        let log = || fs::read_to_string(prometheus.folder.join("log.err")).unwrap_or_default();
        assert!(eventually(s(20), is_ready), "{}", log());
        prometheus
    }

    /// The data of an API response.
    #[track_caller]
    fn ask(&self, path: &str) -> Value {
        let (status, text) = get(self.at, path);
        let mut answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (status, answer["status"].as_str()),
            (200, Some("success")),
            "{path}: {text}"
        );
        answer["data"].take()
    }

    /// The result of a dashboard query for all agents and bridges: labels and values.
    #[track_caller]
    fn query(&self, query: &str) -> Vec<(Value, f64)> {
        let query = query.replace("$__rate_interval", "5s");
        let query = query.replace("$instance", ".*").replace("$bridge", ".*");
        let data = self.ask(&format!("/api/v1/query?query={}", percent(&query)));
        let series = data["result"].as_array().expect("series").iter();
        let value = |of: &Value| of["value"][1].as_str()?.parse().ok();
        series
            .map(|of| (of["metric"].clone(), value(of).expect("a number")))
            .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Percent-encodes a text.
fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
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

    // The metrics agree with the maps, and only increase.
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
        "only the configured number of flows: {after:?}"
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
    // Slow clients do not block others.
    let _slow: Vec<_> = (0..8)
        .map(|_| TcpStream::connect(at).expect("connect"))
        .collect();
    let begun = Instant::now();
    assert_eq!(get(at, "/healthz").0, 200);
    assert!(begun.elapsed() < Duration::from_secs(2));
}

/// Prometheus scrapes the metrics, and each query of the dashboard has a result.
#[test]
fn a_prometheus_answers_the_dashboard() {
    kernel_test!();
    let Some(program) = prometheus() else {
        skipped(ecn_tests::name_of(|| {}), Skip::Missing, "no prometheus");
        return;
    };
    let lab = Lab::new(3);
    lab.limit(2, LINK / 4, 100);
    let config = running::config(&lab, Marking::InputOutput);
    let mut config = running::with_endpoints(config, &lab, &[0, 1, 2], LINK);
    let at = free();
    config.metrics.listen = Some(at);
    config.metrics.top_flows = 2;
    let running = Running::start(config, Options::default());
    let _streams = [0, 1].map(|from| {
        let port = 7001 + from as u16;
        Stream::start(&lab.hosts[from], &lab.hosts[2], port, 1000)
    });
    let prometheus = Prometheus::start(&program, at);

    let queries = dashboard();
    assert!(queries.len() > 20, "{queries:?}");
    let mut silent = Vec::new();
    let answered = eventually(s(20), || {
        let is_silent = |(query, _): &&(String, String)| prometheus.query(query).is_empty();
        silent = queries.iter().filter(is_silent).cloned().collect();
        silent.is_empty()
    });
    let targets = prometheus.ask("/api/v1/targets");
    assert!(answered, "no answer to {silent:#?}; {targets:#}");
    let target = &targets["activeTargets"][0];
    assert_eq!(
        (&target["health"], &target["lastError"]),
        (&"up".into(), &"".into())
    );

    // Each legend uses existing labels.
    for (query, legend) in &queries {
        let labels = legend.split("{{").skip(1);
        let labels: Vec<_> = labels.filter_map(|rest| rest.split("}}").next()).collect();
        for (metric, _) in prometheus.query(query) {
            let missing = labels.iter().find(|label| metric.get(label).is_none());
            assert_eq!(missing, None, "{query}: {metric}");
        }
    }
    // Types are known, and counters agree with the maps.
    let types = prometheus.ask("/api/v1/metadata");
    for (name, kind) in [
        ("ecn_port_queue_packets", "gauge"),
        ("ecn_port_marked_packets", "counter"),
        ("ecn_flow_rate_bytes_per_second", "gauge"),
    ] {
        assert_eq!(types[name][0]["type"], kind, "{name}: {types:#}");
    }
    let port = &lab.hosts[2].port;
    let marked = || running.port(port).marked as f64;
    let before = marked();
    std::thread::sleep(s(1));
    let query = format!("ecn_port_marked_packets_total{{port=\"{port}\"}}");
    let found = prometheus.query(&query);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        (before..=marked()).contains(&found[0].1),
        "{before} {found:?}"
    );
}
