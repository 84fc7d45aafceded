//! Commands with a running agent: their output and exit codes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use ecn_tests::{
    agent::Agent,
    ecn_or_skip, eventually, kernel_test,
    lab::Lab,
    process::{self, Process, stdout},
    running, s,
    traffic::Stream,
};
use ecn_user::{
    cli::{
        schema::{commands, schema},
        table::FlowRow,
    },
    config::{self, Config, Marking},
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// 40 Mbit/s.
const LINK: u64 = 5_000_000;

/// Runs commands, and compares their output with the schemas.
struct Session {
    ecn: PathBuf,
    compared: BTreeSet<String>,
}

impl Session {
    fn new(ecn: PathBuf) -> Self {
        Self {
            ecn,
            compared: BTreeSet::new(),
        }
    }

    fn run(&self, words: &str) -> Output {
        process::run(&self.ecn, &words.split(' ').collect::<Vec<_>>())
    }

    #[track_caller]
    fn compare(&mut self, command: &str, document: &str) -> Value {
        let document = serde_json::from_str(document).expect("one JSON document");
        let schema = schema(command).expect("a schema");
        let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
        compiler
            .add_resource("schema.json", schema)
            .expect("a document");
        let index = compiler
            .compile("schema.json", &mut schemas)
            .expect("a JSON Schema");
        if let Err(error) = schemas.validate(&document, index) {
            panic!("{command}: {error:#}");
        }
        self.compared.insert(command.to_owned());
        document
    }

    /// The JSON output of a command that must succeed.
    #[track_caller]
    fn json(&mut self, command: &str, words: &str) -> Value {
        let printed = stdout(&self.run(words));
        self.compare(command, &printed)
    }

    /// The first marked flow.
    fn marked(&self) -> Option<FlowRow> {
        let flows = stdout(&self.run("flow show -j"));
        let flows: Vec<FlowRow> = serde_json::from_str(&flows).expect("flows");
        flows.into_iter().find(|flow| flow.marked_packets > 0)
    }
}

fn text(of: &Path) -> &str {
    of.to_str().expect("a path")
}

/// A bridge whose third port is slow; hosts 0 and 1 fill it.
fn config(lab: &Lab) -> Config {
    lab.limit(2, LINK / 4, 100);
    let config = running::config(lab, Marking::InputOutput);
    running::with_endpoints(config, lab, &[0, 1, 2], LINK)
}

fn streams(lab: &Lab) -> [Stream; 2] {
    [0, 1].map(|from| {
        let port = 7001 + from as u16;
        Stream::start(&lab.hosts[from], &lab.hosts[2], port, 1000)
    })
}

/// The output with `-j` has exactly the keys of its schema.
#[test]
fn json_matches_the_schemas() {
    kernel_test!();
    let mut session = Session::new(ecn_or_skip!());
    of_an_agent(&mut session);
    of_the_simulator(&mut session);
    let mut expected: BTreeSet<_> = commands().into_iter().map(str::to_owned).collect();
    if running::watches_queues() {
        of_a_rig(&mut session);
    } else {
        expected.retain(|command| !command.starts_with("rig "));
    }
    assert_eq!(session.compared, expected);
}

fn of_an_agent(session: &mut Session) {
    let lab = Lab::new(3);
    let mut config = config(&lab);
    config.bridges.push(config::Bridge::new("br-later"));
    let mut agent = Agent::start(&session.ecn, &config);
    let path = agent.folder.join("monitor");
    let mut monitor = Process::start(&session.ecn, &["monitor", "-j", "-s", "0.2"], &path);
    let events = || fs::read_to_string(path.with_extension("out")).unwrap_or_default();
    let streams = streams(&lab);
    let slowed = || session.marked().is_some();
    assert!(eventually(s(10), slowed), "{}", agent.log());
    let flow = session.marked().expect("a flow").name();

    for words in ["port show -j", "port list -j", "port ls bridge br0 -j"] {
        let ports = session.json("port show", words);
        assert_eq!(ports.as_array().map(Vec::len), Some(3), "{words}");
    }
    for words in [
        "flow show -j",
        "flow list -j proto udp",
        "flow ls -j protocol 17",
    ] {
        let flows = session.json("flow show", words);
        assert_eq!(flows.as_array().map(Vec::len), Some(2), "{words}");
    }
    let tcp = session.json("flow show", "flow ls -j proto tcp");
    assert_eq!(tcp, Value::Array(Vec::new()));
    session.json("flow set", &format!("flow set {flow} --rate 2mbit -j"));
    session.json("flow unset", &format!("flow unset {flow} -j"));
    session.json("top", "top --once -s 0.2 -j");
    session.json("doctor", "doctor -j");
    let check = format!("run --check -j -c {}", text(&agent.config));
    let checked = session.json("run --check", &check);
    assert_eq!(checked["waiting"][0]["name"], "br-later");
    let offline = session.json("run --check", &format!("{check} --offline"));
    assert!(offline.get("waiting").is_none());
    session.json("reload", "reload -j");
    session.json("clean", "clean -n -j");
    let state = fs::read_to_string("/run/ecn/state.json").expect("a state");
    session.compare("state", &state);

    drop(streams);
    agent.stop();
    let ended = || events().contains("agent-stopped");
    assert!(eventually(s(10), ended), "{}", events());
    monitor.signal(Signal::SIGTERM);
    assert!(monitor.ended(s(5)).is_some());
    let events = events();
    for event in ["agent-started", "waiting", "triggers", "rate"] {
        let event = format!("\"event\":\"{event}\"");
        assert!(events.contains(&event), "no {event} in {events}");
    }
    for line in events.lines() {
        session.compare("monitor", line);
    }
}

fn of_the_simulator(session: &mut Session) {
    const SWEEP: &str = "seeds = \"1..=2\"\n[set]\nduration = \"5ms\"\n[sweep]\nbuffer = [2, 4]\n";
    const FABRIC: &str = "--set hosts=16 --set workload=poisson --set duration=100us";
    let folder = std::env::temp_dir().join(format!("ecn-t-sim-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("sweep.toml"), SWEEP).expect("a sweep");
    let at = text(&folder).to_owned();
    session.json("design", "design -j");
    session.json("sim list", "sim list -j");
    for (scenario, duration) in [("hp", "20ms"), ("bridge", "3s")] {
        let words = format!("sim run {scenario} --set duration={duration} -j");
        session.json("sim run", &words);
    }
    session.json("sim run", &format!("sim run fat-tree {FABRIC} -j"));
    session.json("sim draw", &format!("sim draw hp --out {at}/hp.svg -j"));
    let compare = format!("sim compare fat-tree --schemes none,dcqcn {FABRIC} --out {at}/c -j");
    session.json("sim compare", &compare);
    session.json(
        "sim sweep",
        &format!("sim sweep {at}/sweep.toml --out {at}/s -j"),
    );
    session.json(
        "sim merge",
        &format!("sim merge {at}/s --out {at}/all.jsonl -j"),
    );
    let reproduce = format!("sim reproduce slide14 --quick --seeds 2 --out {at}/r -j");
    session.json("sim reproduce", &reproduce);
    fs::remove_dir_all(&folder).expect("remove it");
}

fn of_a_rig(session: &mut Session) {
    const HOSTS: &str = "--local 1 --remote 1 --no-victim";
    session.json("rig up", &format!("rig up {HOSTS} -j"));
    session.json("rig show", "rig show -j");
    session.json("rig down", "rig down -j");
    let out = std::env::temp_dir().join(format!("ecn-t-out-{}", std::process::id()));
    let words = format!(
        "rig run {HOSTS} --seconds 1 --warm-up 1 --phases controlled --out {} -j",
        text(&out)
    );
    session.json("rig run", &words);
    fs::remove_dir_all(&out).expect("remove it");
}

/// Rates out of range, and objects that already exist or do not exist.
#[test]
fn exit_codes_match_the_cause() {
    const ABSENT: &str = "10.9.9.9:1>10.9.9.8:2/udp";
    kernel_test!();
    let session = Session::new(ecn_or_skip!());
    let refused = |words: &str, code: i32, why: &str| {
        let output = session.run(words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words}: {stderr}");
        assert!(stderr.contains(why), "{words}: {stderr}");
        assert!(output.stdout.is_empty(), "{words}");
    };
    let lab = Lab::new(3);
    for words in ["port ls", "flow ls", "top --once", "monitor", "reload"] {
        refused(words, 3, "start `ecn run`");
    }
    refused("rig show", 3, "no rig is up");

    let agent = Agent::start(&session.ecn, &config(&lab));
    let streams = streams(&lab);
    let slowed = || session.marked().is_some();
    assert!(eventually(s(10), slowed), "{}", agent.log());
    let flow = session.marked().expect("a flow").name();
    let set = |rate: &str| format!("flow set {flow} --rate {rate}");
    refused(&set("8bit"), 2, "below the lowest rate");
    refused(&set("7kbit"), 2, "below the lowest rate");
    refused(&set("50mbit"), 2, "above the link rate");
    refused(&format!("flow set {ABSENT} --rate 1mbit"), 1, "no flow");
    refused(&format!("flow unset {ABSENT}"), 1, "no flow");
    refused("port show dev nope", 1, "no port matches `dev nope`");
    let run = format!("run -c {}", text(&agent.config));
    for words in [run.as_str(), "clean", "rig run --seconds 1"] {
        refused(words, 3, "running");
    }
    drop(streams);
}

#[test]
fn the_doctors_report_has_a_hundred_columns() {
    kernel_test!();
    let session = Session::new(ecn_or_skip!());
    let lab = Lab::new(3);
    let mut config = config(&lab);
    config.bridges.push(config::Bridge::new("br-not-there"));
    let agent = Agent::start(&session.ecn, &config);
    let streams = streams(&lab);
    let slowed = || session.marked().is_some();
    assert!(eventually(s(10), slowed), "{}", agent.log());
    let report = stdout(&session.run("doctor"));
    drop(streams);
    for word in [
        "kernel programs",
        "endpoint eth0",
        "br-not-there",
        "marked_packets",
    ] {
        assert!(report.contains(word), "no {word} in {report}");
    }
    let widest = report.lines().map(|line| line.chars().count()).max();
    assert!(widest <= Some(100), "{widest:?} columns: {report}");
}
