//! Golden results: the results of all kinds of runs, one snapshot each in `tests/golden`.
//!
//! A change that must not alter a result leaves all of them unchanged. The commit of one that does names the results,
//! and the reason. To see differences: `cargo insta review`, or accept all with `INSTA_UPDATE=always cargo test -p
//! ecn-sim-cli golden` and read `git diff`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use ecn_sim::design::{Design, Table};
use insta::Settings;
use serde_json::Value;

use super::Folder;

/// `NAME: COMMAND | SETTINGS`: the snapshot's name, a command of `ecn-sim` in this crate's folder, and its `--set`. `OUT` is
/// a folder of the scenario, `scenarios` that of `ecn-sim`.
const SCENARIOS: &str = "
# HP's networks.
hp-uncontrolled: run hp | marking=none response=none
hp-naive: run hp | marking=naive
hp-input: run hp | marking=input response=fimd buffer=6
hp-input-output: run hp --seed 2
hp-markings-and-responses: sweep tests/golden/markings-and-responses.toml --out OUT --threads 1
hp-window: run hp --window 10ms..100ms | response=aimd m=3 window=4 round=packets buffer=12 flows=5 \
    link_delay=200ns
hp-choices: run hp | arbitration=round-robin crossbar=single bypass=unlimited full_counts=waiting \
    slot_freed=head forwarding=store-and-forward spacing=at-send output_trigger=crossing mark_in=B
hp-designed: run hp | response=table:OUT/design.toml
hp-parking-lot: run scenarios/parking-lot.toml | duration=60ms
# The model of Linux bridges.
rig: rig --seconds 3 --warm-up 1 --out OUT
rig-rounds: run rig --seed 2 | round=packets response=fimd warm_up=1s duration=4s
rig-departure: run rig | marking=input mark_at=departure round=off echo=2ms warm_up=1s duration=4s
bridge-mixed: run bridge | hosts=4 flows=2 others=2 voice=6mbit short=50 short_packets=10 warm_up=1s duration=3s
bridge-tcp: run bridge | hosts=4 traffic=cubic others=2 others_traffic=reno warm_up=1s duration=4s
# Data centres.
incast-schemes: sweep tests/golden/schemes.toml --out OUT --threads 1
incast-credits: run fat-tree | senders=40 flow_size=200kB flow_control=cbfc scheme=ibcc
incast-tail-drop: run leaf-spine | hosts=32 senders=15 flow_size=200kB flow_control=none buffer=200kB \
    scheme=dcqcn dcqcn.cnp_gap=4us
fig1: run fig1 | scheme=lipd/input-output
chain-tcd: compare chain --schemes dcqcn,dcqcn+tcd,timely,timely+tcd --out OUT
chain-credits: run chain | flow_control=cbfc buffer=200kB scheme=ibcc+tcd
permutation: run fat-tree --threads 2 | hosts=128 workload=permutation flow_size=200kB
permutation-crossbar: run leaf-spine | hosts=64 workload=permutation flow_size=100kB switch=crossbar \
    scheme=lipd/input-output
all-reduce: run dumbbell | hosts=16 workload=all-reduce flow_size=1MB scheme=timely
on-off: run parking-lot | workload=on-off flow_size=50kB load=2/5 duration=500us scheme=qcn
poisson: run leaf-spine --seed 3 | hosts=32 workload=poisson load=3/5 incast_load=1/50 incast_senders=16 \
    duration=1ms priorities=2 scheme=dcqcn
poisson-schemes: compare leaf-spine --schemes none,dcqcn:cnp_gap=4us,bcn --seeds 2 --out OUT | hosts=16 \
    workload=poisson cdf=hadoop duration=500us
flows-of-a-file: run chain --seed 2 | workload=file:tests/golden/flows.csv priorities=2
network-of-a-file: run scenarios/two-racks.toml | scheme=dcqcn
# Statements of the papers.
reproduce: reproduce fig2 fig3b fig3d flows-root slide14 schemes --quick --seeds 2 --out OUT
";

/// Not part of snapshots: times of this machine and names of temporary files; settings, which are in the command, so
/// that renaming keys does not change results; names of runs, which are hashes of settings; and time series of hundreds
/// of points.
const LEFT_OUT: &[&str] = &[
    "wall_s",
    "setup_s",
    "file",
    "parameters",
    "run",
    "series",
    "samples",
    "fct_slowdown_cdf",
];

/// Names, commands and settings of all scenarios.
fn scenarios() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let lines = SCENARIOS.lines();
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let (name, command) = line.split_once(": ").expect(line);
        let (command, set) = command.split_once(" | ").unwrap_or((command, ""));
        (name, command, set)
    })
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

#[test]
fn results_are_those_of_before() {
    let failed = thread::scope(|scope| {
        let start = |scenario: (_, _, _)| (scenario.0, scope.spawn(move || check(scenario)));
        let all: Vec<_> = scenarios().map(start).collect();
        all.into_iter()
            .filter_map(|(name, run)| run.join().is_err().then_some(name))
            .collect::<Vec<_>>()
    });
    assert!(
        failed.is_empty(),
        "{} of {} results differ: {}. Look at them with `cargo insta review`, or accept all with \
         `INSTA_UPDATE=always cargo test -p ecn-sim-cli golden` and read `git diff`; say in the commit why they moved",
        failed.len(),
        scenarios().count(),
        failed.join(", ")
    );
}

/// A snapshot without its scenario would be kept for ever, and never be checked.
#[test]
fn every_snapshot_has_its_scenario() {
    for entry in fs::read_dir(folder()).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        if let Some(name) = file.strip_suffix(".snap") {
            let known = scenarios().any(|(known, ..)| known == name);
            assert!(known, "{file} belongs to no scenario: remove it");
        }
    }
}

/// Runs a scenario, and compares its results with its snapshot.
fn check((name, command, set): (&str, &str, &str)) {
    let mut settings = Settings::new();
    settings.set_snapshot_path(folder());
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_description([command, set].join(" ").trim_end());
    let results = results(command, set);
    settings.bind(|| insta::assert_yaml_snapshot!(name, results));
}

/// A command's output or, for a sweep, its records.
fn results(command: &str, set: &str) -> Value {
    let out = Folder::new();
    if set.contains("design.toml") {
        let design = Design::new("r/(1+r)^2", "1/256".parse().unwrap()).unwrap();
        out.write("design.toml", &Table::of(&design).0.to_toml());
    }
    let settings = set.split_whitespace().flat_map(|one| ["--set", one]);
    let words = command.split_whitespace().chain(settings).chain(["-j"]);
    let output = Command::new(env!("CARGO_BIN_EXE_ecn-sim"))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(words.map(|word| {
            let word = word.replace("scenarios/", "../ecn-sim/scenarios/");
            word.replace("OUT", &out.path("").to_string_lossy())
        }))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command} {set}: {error}");
    let json = |text: &[u8]| -> Value { serde_json::from_slice(text).expect("JSON") };
    rounded(match fs::read(out.path("runs.jsonl")) {
        Ok(records) => records
            .trim_ascii_end()
            .split(|byte| *byte == b'\n')
            .map(json)
            .collect(),
        Err(_) => json(&output.stdout),
    })
}

/// Without [`LEFT_OUT`], and with four significant digits of each number that is not an integer: enough to see a
/// difference of .002 in a share, and independent of the order of additions.
fn rounded(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields
                .into_iter()
                .filter(|(key, _)| !LEFT_OUT.contains(&key.as_str()));
            kept.map(|(key, value)| (key, rounded(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(rounded).collect(),
        Value::Number(number) if number.is_f64() => {
            let digits = format!("{:.3e}", number.as_f64().unwrap_or_default());
            digits.parse::<f64>().expect("a number").into()
        }
        other => other,
    }
}
