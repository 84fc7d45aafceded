//! The commands, as users run them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn sim(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ecn-sim"))
        .args(words)
        .output()
        .expect("ecn-sim runs")
}

fn document(words: &[&str]) -> Value {
    let output = sim(words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn keys(value: &Value) -> Vec<&str> {
    let object = value.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}

#[test]
fn a_run_prints_the_contract() {
    let run = document(&["run", "hp", "-j", "--seed", "7", "--window", "42ms..59ms"]);
    let expected = [
        "dropped_packets",
        "events",
        "input_triggers",
        "marked_packets",
        "output_triggers",
        "packet_hops",
        "parameters",
        "scenario",
        "seed",
        "wall_s",
        "windows",
    ];
    let mut found = keys(&run);
    found.sort_unstable();
    assert_eq!(found, expected);
    let window = &run["windows"][0];
    let mut found = keys(window);
    found.sort_unstable();
    let expected = [
        "from_ms",
        "inter_switch",
        "jain_local",
        "jain_remote",
        "local",
        "remote",
        "remote_local_ratio",
        "root",
        "to_ms",
        "victim",
    ];
    assert_eq!(found, expected);
    assert_eq!((&run["scenario"], &run["seed"]), (&"hp".into(), &7.into()));
    assert_eq!(
        (window["from_ms"].as_f64(), window["to_ms"].as_f64()),
        (Some(42.0), Some(59.0))
    );
    assert_eq!(run["dropped_packets"], 0);
    for class in ["local", "remote", "victim"] {
        assert!(run["marked_packets"][class].is_u64(), "{class}");
    }
    let share = |key: &str| window[key].as_f64().expect("a number");
    assert!((share("root") - share("local") - share("remote")).abs() < 1e-9);
    assert!((share("inter_switch") - share("remote") - share("victim")).abs() < 0.002);
}

/// P1 and P2, by the command of the issue.
#[test]
fn without_control_the_victim_starves() {
    let run = document(&[
        "run",
        "hp",
        "--set",
        "marking=none",
        "--set",
        "response=none",
        "--window",
        "42ms..59ms",
        "-j",
    ]);
    let window = &run["windows"][0];
    let victim = window["victim"].as_f64().unwrap_or_default();
    let inter_switch = window["inter_switch"].as_f64().unwrap_or_default();
    assert!((victim - 0.04).abs() <= 0.005, "{victim}");
    assert!((inter_switch - 0.325).abs() <= 0.01, "{inter_switch}");
}

#[test]
fn a_seed_gives_the_same_bytes_and_another_seed_others() {
    let run = |seed: &str| {
        let mut run = document(&["run", "--seed", seed, "-j"]);
        run["wall_s"] = 0.into();
        run.to_string()
    };
    assert_eq!(run("3"), run("3"));
    assert_ne!(run("3"), run("4"));
}

#[test]
fn results_are_written_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("a/b");
    let named = out.to_string_lossy().into_owned();
    let run = document(&["run", "--out", &named, "-j"]);
    let expected = ["run.json", "run.svg", "series.csv", "series.parquet"];
    assert_eq!(files_in(&out), expected);
    let written = fs::read_to_string(out.join("run.json")).expect("the report");
    assert_eq!(serde_json::from_str::<Value>(&written).expect("JSON"), run);
    let csv = fs::read_to_string(out.join("series.csv")).expect("the series");
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("time_ms,name,share"));
    assert!(lines.clone().count() > 500);
    for (line, name) in lines.zip(
        ["root", "inter-switch", "local", "remote", "victim"]
            .iter()
            .cycle(),
    ) {
        assert_eq!(line.split(',').nth(1), Some(*name), "{line}");
    }
    let svg = fs::read_to_string(out.join("run.svg")).expect("the figure");
    assert!(svg.trim_end().ends_with("</svg>"));
}

/// A folder contains the results of its last run only, and keeps all other files.
#[test]
fn results_of_an_earlier_run_are_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_string_lossy().into_owned();
    fs::write(folder.path().join("notes.txt"), "").expect("a file");
    let words = "run fat-tree --set hosts=32 --set flow_size=10kB -j --out";
    let words: Vec<&str> = words.split(' ').chain([out.as_str()]).collect();
    document(&words);
    assert!(folder.path().join("rates.svg").is_file());
    document(&["run", "--set", "duration=20ms", "--out", &out, "-j"]);
    let expected = [
        "notes.txt",
        "run.json",
        "run.svg",
        "series.csv",
        "series.parquet",
    ];
    assert_eq!(files_in(folder.path()), expected);
}

#[test]
fn a_scenario_file_names_its_own_classes_and_links() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ecn-sim/scenarios/parking-lot.toml");
    let file = file.to_string_lossy();
    let victim = |settings: &[&str]| {
        let run = document(&[&["run", &file, "-j", "--set", "duration=50ms"], settings].concat());
        assert_eq!(
            keys(&run["windows"][0]["classes"]),
            ["far", "middle", "near", "victim"]
        );
        assert!(run["windows"][0]["links"]["last"].as_f64() > Some(0.9));
        run["windows"][0]["classes"]["victim"]["share"].as_f64()
    };
    let alone = victim(&["--set", "marking=none", "--set", "response=none"]);
    assert!(alone < Some(0.05) && victim(&[]) > Some(0.4), "{alone:?}");
}

/// The book's example: HP's Fig. 1 with a scheme of data centres.
#[test]
fn any_scheme_runs_in_fig_1() {
    let victim = |settings: &str| {
        let words = format!("run fig1 --window 44ms..58ms -j {settings}");
        let run = document(&words.split_whitespace().collect::<Vec<_>>());
        let window = &run["windows"][0];
        assert_eq!(window["flows"], 21);
        let rate = window["senders_bytes_per_s"]["AV"].as_f64();
        rate.expect("the victim's rate") * 8e-9
    };
    let dcqcn = "--set scheme=dcqcn --set dcqcn.kmin=2kB --set dcqcn.kmax=8kB --set dcqcn.pmax=1";
    let (none, lipd) = (victim(""), victim("--set scheme=lipd/input-output"));
    let dcqcn = victim(dcqcn);
    assert!(
        none < 0.5 && 4.0 * none < dcqcn && 2.0 * dcqcn < lipd,
        "{none} {dcqcn} {lipd}"
    );
}

#[test]
fn the_rig_is_simulated_where_it_cannot_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_string_lossy().into_owned();
    let report = document(&[
        "rig",
        "--seconds",
        "2",
        "--warm-up",
        "1",
        "--out",
        &out,
        "-j",
    ]);
    let phases = report["phases"].as_array().expect("phases");
    let names: Vec<_> = phases
        .iter()
        .filter_map(|phase| phase["name"].as_str())
        .collect();
    assert_eq!(names, ["uncontrolled", "controlled"]);
    let victim = |phase: usize| phases[phase]["victim"].as_f64();
    assert!(victim(0) < Some(0.2) && victim(1) > Some(0.4));
    for key in ["control_latency_us_p50", "root_queue_mean_packets"] {
        assert!(phases[1][key].as_f64() > Some(1.0), "{key}");
    }
    assert!(folder.path().join("rig-rates.svg").is_file());
}

/// The book's incast, smaller.
#[test]
fn a_data_centre_prints_the_contract() {
    let words = "run fat-tree --set hosts=128 --set workload=incast --set senders=20 --set flow_size=100kB \
                 --set payload=1000 --set link_rate=100gbit --set link_delay=1us --set flow_control=pfc \
                 --set scheme=none -j --seed 3";
    let words: Vec<&str> = words.split_whitespace().collect();
    let run = document(&words);
    let expected = [
        "data_packet_hops",
        "data_packets",
        "dropped_packets",
        "events",
        "fct_slowdown",
        "flows_finished",
        "flows_started",
        "goodput_bytes_per_s",
        "head_of_line_victims",
        "jain",
        "last_flow_end_ms",
        "marked_packets",
        "packet_hops",
        "parameters",
        "pause_frames",
        "scenario",
        "seed",
        "setup_s",
        "undetermined_packets",
        "wall_s",
    ];
    let mut found = keys(&run);
    found.sort_unstable();
    assert_eq!(found, expected);
    let mut found = keys(&run["fct_slowdown"]);
    found.sort_unstable();
    assert_eq!(found, ["by_size", "p50", "p95", "p99"]);
    assert_eq!(
        (&run["scenario"], &run["seed"]),
        (&"fat-tree".into(), &3.into())
    );
    assert_eq!(
        (&run["flows_started"], &run["flows_finished"]),
        (&20.into(), &20.into())
    );
    assert_eq!(run["dropped_packets"], 0);
    assert_eq!(
        run["parameters"]["k"], "8",
        "the ports that were taken are printed"
    );
    // 2,000 packets over 2, 4 or 6 links, and an ACK for each.
    let hops = run["data_packet_hops"].as_u64().expect("a number");
    assert!((4_000..=12_000).contains(&hops), "{hops}");
    assert!(run["packet_hops"].as_u64() >= Some(2 * hops));
    let mut again = document(&words);
    for time in ["wall_s", "setup_s"] {
        again[time] = run[time].clone();
    }
    assert_eq!(run, again);
}

/// The lines of `list` about a name, by key.
#[test]
fn keys_are_explained() {
    let keys = |names: &[&str]| -> Vec<Value> {
        let found = document(&[&["list"], names, &["-j"]].concat());
        found.as_array().expect("keys").clone()
    };
    let [kmin] = &keys(&["dcqcn.kmin"])[..] else {
        panic!("one key")
    };
    assert_eq!((&keys(&["kmin"])[0], keys(&["kmin"]).len()), (kmin, 1));
    assert_eq!(keys(&["fig1", "kmin"]).len(), 1);
    assert!(keys(&["dcqcn"]).contains(kmin));
    let source = kmin["sources"]["V2"].as_str().expect("a source");
    assert!(source.contains("HPCC"), "{source}");
    let words: Vec<_> = keys(&["hp"])
        .iter()
        .map(|key| key["key"].as_str().expect("a name").to_owned())
        .collect();
    // The scenario, and the scheme's table.
    assert!(words.contains(&"arbitration".to_owned()) && words.contains(&"hp.mark_in".to_owned()));
    // In a data centre the same name has another meaning.
    let buffers = keys(&["buffer"]);
    assert_eq!(buffers.len(), 2);
    assert_eq!(
        (&buffers[0]["unit"], &buffers[1]["unit"]),
        (&"packets".into(), &Value::Null)
    );
    assert_eq!(buffers[1]["defaults"]["fat-tree"], "1MB");
    let workload = &keys(&["incast"])[0];
    assert_eq!(workload["key"], "workload");
    assert_eq!(workload["defaults"]["parking-lot"], "greedy");
    for (names, hint) in [
        (&["thresold"][..], "did you mean `threshold`?"),
        (&["hp", "kmin"], "`hp` has no key `kmin`"),
        (
            &["ph", "buffer"],
            "unknown scenario `ph`: did you mean `hp`?",
        ),
    ] {
        let output = sim(&[&["list"], names].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(hint), "{error}");
    }
}

/// `--out FILE`: the report as a table alone.
#[test]
fn a_report_is_a_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (csv, parquet) = (path("a/run.csv"), path("a/run.parquet"));
    let words = [
        "run",
        "dumbbell",
        "--set",
        "hosts=4",
        "--set",
        "senders=2",
        "--window",
        "1us..20us",
    ];
    for file in [&csv, &parquet] {
        let output = sim(&[&words[..], &["--out", file]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
    }
    assert_eq!(
        files_in(&folder.path().join("a")),
        ["run.csv", "run.parquet"]
    );
    let text = fs::read_to_string(csv).expect("a table");
    let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split(',').collect()).collect();
    let at = |name: &str| {
        rows[0]
            .iter()
            .position(|column| *column == name)
            .expect(name)
    };
    assert_eq!(rows[0][..3], ["seed", "from_ms", "to_ms"]);
    assert_eq!(rows[1][..3], ["1", "0.001", "0.02"]);
    // Values of the window and of the run differ.
    assert_ne!(
        rows[1][at("goodput_bytes_per_s")],
        rows[1][at("window_goodput_bytes_per_s")]
    );
    assert_eq!(rows.len(), 2);
    let bytes = fs::read(parquet).expect("a table");
    assert_eq!(
        (&bytes[..4], &bytes[bytes.len() - 4..]),
        (&b"PAR1"[..], &b"PAR1"[..])
    );
}

/// `--out`: each flow, the series, and figures of it.
#[test]
fn a_data_centre_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_string_lossy().into_owned();
    let words = ["run", "chain", "--set", "scheme=dcqcn+tcd", "--out", &out];
    let output = sim(&words);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let expected = [
        "flows.csv",
        "flows.parquet",
        "queues.svg",
        "rates.svg",
        "run.json",
        "series.csv",
        "series.parquet",
    ];
    assert_eq!(files_in(folder.path()), expected);
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).expect("a file");
    let run: Value = serde_json::from_str(&read("run.json")).expect("JSON");
    let rows = |name: &str| -> Vec<Vec<String>> {
        let text = read(name);
        let row = |row: &str| row.split(',').map(str::to_owned).collect();
        text.lines().skip(1).map(row).collect()
    };
    let number = |cell: &String| cell.parse::<f64>().expect("a number");
    let flows = rows("flows.csv");
    assert_eq!(run["flows_finished"], flows.len());
    let payload: f64 = flows.iter().map(|flow| number(&flow[3])).sum();
    let series = rows("series.csv");
    let steps: Vec<_> = series.iter().filter(|row| row[1] == "network").collect();
    let delivered: f64 = steps.iter().map(|step| number(&step[3])).sum();
    // All but the last, unfinished step.
    assert!(delivered <= payload && delivered > 0.99 * payload);
    assert!((2..2_000).contains(&steps.len()));
    assert!(
        steps
            .iter()
            .any(|step| number(&step[6]) > 0.0 && number(&step[7]) > 0.0)
    );
    let of_flow = series
        .iter()
        .filter(|row| row[1] == "flow" && row[2] == "1");
    assert_eq!(of_flow.clone().count(), steps.len());
    assert!(
        of_flow
            .clone()
            .all(|row| row[4].is_empty() && row[7].is_empty())
    );
    assert!(of_flow.map(|row| number(&row[3])).sum::<f64>() > 0.0);
}

/// A separate column if there are several.
#[test]
fn flows_are_written_with_their_priorities() {
    let folder = tempfile::tempdir().expect("a folder");
    let flows = folder.path().join("flows.csv");
    let text = "start_ns,from,to,bytes,priority\n0,0,1,5000,2\n1000,1,0,7000,0\n";
    fs::write(&flows, text).expect("flows");
    let workload = format!("workload=file:{}", flows.display());
    let out = folder.path().join("out").to_string_lossy().into_owned();
    let words = ["run", "dumbbell", "--set", &workload, "--out", &out];
    for (priorities, last) in [("priorities=3", Some(["2", "0"])), ("priorities=2", None)] {
        let output = sim(&[&words[..], &["--set", priorities]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        let Some(last) = last else {
            assert_eq!(output.status.code(), Some(2), "{error}");
            let needed = "line 2: the priority must be between 0 and 1 (priorities=2)";
            assert!(error.contains(needed), "{error}");
            continue;
        };
        assert!(output.status.success(), "{error}");
        let written = fs::read_to_string(Path::new(&out).join("flows.csv")).expect("a file");
        let columns = written.lines().map(|row| row.rsplit(',').next());
        let expected = ["priority"].into_iter().chain(last).map(Some);
        assert!(columns.eq(expected), "{written}");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains("priority 0  "), "{printed}");
        assert!(printed.contains("priority 2  "), "{printed}");
    }
}

/// Each workload and scheme by name, as a table.
#[test]
fn a_data_centre_runs_every_workload() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("flows.csv");
    fs::write(&file, "start_ns,from,to,bytes\n0,0,1,5000\n1000,1,0,7000\n").expect("flows");
    let file = format!("workload=file:{}", file.display());
    for workload in [
        "permutation",
        "all-to-all",
        "poisson",
        "on-off",
        "all-reduce",
        "greedy",
        &file,
    ] {
        let workload = if workload == file {
            file.clone()
        } else {
            format!("workload={workload}")
        };
        for (scheme, control) in [("none", "none"), ("dcqcn", "pfc")] {
            let (scheme, control) = (
                format!("scheme={scheme}"),
                format!("flow_control={control}"),
            );
            for name in ecn_sim::fabric::Kind::NAMES {
                let words = ["run", name, "--set", "hosts=8", "--set", &workload];
                let words = [&words, &["--set", "switch=shared-memory"][..]].concat();
                let words = [&words, &["--set", &scheme, "--set", &control][..]].concat();
                let output = sim(&words);
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                let error = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{words:?}: {error}");
                assert!(text.contains(" flows finished, the last at "), "{text}");
            }
        }
    }
}

fn files_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).expect("the folder is there");
    let name = |file: std::io::Result<fs::DirEntry>| file.expect("an entry").file_name();
    let mut names: Vec<_> = names
        .map(|file| name(file).into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

#[test]
fn schemes_are_set_side_by_side() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("a/b");
    let named = out.to_string_lossy().into_owned();
    let words = "compare leaf-spine --schemes none,dcqcn --seeds 2 --set hosts=16 --set dcqcn.kmin=5kB --set dcqcn.kmax=20kB \
                 --set workload=poisson --set cdf=hadoop --set duration=200us --out";
    let words = [&words.split_whitespace().collect::<Vec<_>>()[..], &[&named]].concat();
    let output = sim(&words);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    assert!(text.starts_with("SCHEME  FLOWS  SLOWDOWN 50 %"), "{text}");
    assert_eq!(text.lines().last(), out.join("report.html").to_str());
    let expected = [
        "compare.csv",
        "compare.json",
        "data-that-waits-in-switches.svg",
        "goodput.svg",
        "longest-queue.svg",
        "means.svg",
        "network.svg",
        "ports-that-may-not-send.svg",
        "report.html",
        "runs.csv",
        "runs.parquet",
        "slowdown-by-size.csv",
        "slowdown-by-size.svg",
        "slowdown-cdf.svg",
    ];
    assert_eq!(files_in(&out), expected);
    let read = |name: &str| fs::read_to_string(out.join(name)).expect("a file");
    let table = read("compare.csv");
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    assert_eq!((rows.len(), rows[1][0], rows[2][0]), (3, "none", "dcqcn"));
    let written: Value = serde_json::from_str(&read("compare.json")).expect("JSON");
    assert_eq!(
        (&written["scenario"], &written["seeds"]),
        (&"leaf-spine".into(), &2.into())
    );
    for (row, scheme) in rows[1..]
        .iter()
        .zip(written["schemes"].as_array().expect("schemes"))
    {
        assert_eq!(scheme["runs"].as_array().map(Vec::len), Some(2));
        let flows = scheme["flows_finished"].as_u64().expect("a number");
        assert_eq!((row[3].parse(), flows > 20), (Ok(flows), true));
        let sizes = scheme["fct_slowdown"]["by_size"]
            .as_array()
            .expect("groups");
        let of_all: u64 = sizes
            .iter()
            .filter_map(|group| group["flows"].as_u64())
            .sum();
        assert_eq!(of_all, flows);
    }
    let page = read("report.html");
    for figure in expected.iter().filter(|name| name.ends_with(".svg")) {
        assert!(page.contains(&read(figure)), "{figure}");
    }
    assert!(
        page.trim_end().ends_with("</html>") && page.contains("<td>dcqcn.kmin</td><td>5kB</td>")
    );
    // The same, except for wall-clock times.
    let again = document(&[&words[..], &["-j", "--threads", "1"]].concat());
    let without_times = |document: &Value| {
        let mut document = document.clone();
        for scheme in document["schemes"].as_array_mut().expect("schemes") {
            for run in scheme["runs"].as_array_mut().expect("runs") {
                (run["wall_s"], run["setup_s"]) = (0.into(), 0.into());
            }
        }
        document
    };
    assert_eq!(without_times(&again), without_times(&written));
}

#[test]
fn bad_comparisons_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().to_string_lossy().into_owned();
    for (words, needed) in [
        ("compare fat-tre --schemes none", "`fat-tree`"),
        ("compare fat-tree --schemes none,dqcn", "`dcqcn`"),
        ("compare fat-tree --schemes none,none", "twice"),
        (
            "compare fat-tree --schemes none,,dcqcn",
            "empty name between commas",
        ),
        (
            "compare fat-tree --schemes none --set scheme=dcqcn",
            "--schemes",
        ),
        (
            "compare fat-tree --schemes none --set dcqcn.kmin=5kB",
            "scheme=none",
        ),
        (
            "compare fat-tree --schemes none,dcqcn --set dcqcn.kmax=1kB",
            "kmax = 1kB",
        ),
        (
            "compare fat-tree --schemes dcqcn --set headroom=1kB",
            "are needed",
        ),
        (
            "compare fat-tree --schemes none --set hosts=8 --set hosts=9",
            "--set hosts: given twice",
        ),
        (
            "run hp --set buffer=4 --set buffer=8",
            "buffer: given twice",
        ),
        (
            "run bridge --set voice=1tbit",
            "voice = 1tbit: must be at most link_rate=100mbit",
        ),
        (
            "run bridge --set short=1000000",
            "short = 1000000: offers more than link_rate=100mbit",
        ),
        (
            "run fat-tree --set workload=file:/dev/zero",
            "not a regular file",
        ),
    ] {
        let words: Vec<&str> = words.split(' ').chain(["--out", &out]).collect();
        let output = sim(&words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{words:?}: {error}");
        assert!(error.contains(needed), "{words:?}: {error}");
        assert_eq!(files_in(folder.path()), Vec::<String>::new(), "{words:?}");
    }
}

#[test]
fn a_data_centre_comes_from_a_file() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ecn-sim/scenarios/two-racks.toml");
    let file = file.to_string_lossy();
    let run = document(&["run", &file, "-j", "--set", "duration=100us"]);
    assert_eq!(run["scenario"], "two racks");
    assert_eq!(run["parameters"]["hosts"], 16);
    assert_eq!(run["parameters"]["link_rate"], "25gbit");
    assert!(
        run["flows_finished"].as_u64() > Some(10) && run["flows_finished"] == run["flows_started"]
    );
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out").to_string_lossy().into_owned();
    let words = "--schemes none,dcqcn --set duration=100us -j --out";
    let words: Vec<&str> = words.split(' ').collect();
    let both = document(&[&["compare", &file], &words[..], &[&out]].concat());
    assert_eq!(both["scenario"], "two racks");
    let none = &both["schemes"][0]["runs"][0];
    assert_eq!(none["fct_slowdown"], run["fct_slowdown"]);
    let torn = folder.path().join("torn.toml");
    let text = fs::read_to_string(&*file).expect("the file");
    fs::write(
        &torn,
        text.replace("\"spine\", \"right\"", "\"spine\", \"rihgt\""),
    )
    .expect("a file");
    let torn = torn.to_string_lossy().into_owned();
    for words in [
        &["run", &torn][..],
        &["compare", &torn, "--schemes", "none", "--out", &out],
    ] {
        let output = sim(words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.contains("unknown host or switch `rihgt`: did you mean `right`?"),
            "{error}"
        );
    }
}

/// Spines of two ports pause the leaves at 216 kB, below DCQCN's default Kmin at 100 Gb/s.
#[test]
fn marks_that_come_after_pauses_are_noted() {
    let words = "run leaf-spine --set leaves=2 --set hosts=4 --set senders=2 --set flow_size=10kB";
    for (more, notes) in [
        ("--set scheme=dcqcn", 1),
        ("--set scheme=dcqcn --set dcqcn.kmin=20kB", 0),
        ("--set scheme=dcqcn --set thresholds=static", 0),
        ("--set scheme=dcqcn --set link_rate=25gbit", 0),
        ("--set scheme=timely", 0),
    ] {
        let words: Vec<&str> = words.split(' ').chain(more.split(' ')).collect();
        let output = sim(&words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{error}");
        assert_eq!(error.lines().count(), notes, "{more}: {error}");
        let named = ["400kB", "216kB", "set dcqcn.kmin=27kB"];
        assert!(
            notes == 0 || named.iter().all(|name| error.contains(name)),
            "{error}"
        );
    }
}

/// Each network is drawn with the names of its switches, and invalid ones are refused.
#[test]
fn networks_are_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let scenarios = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ecn-sim/scenarios");
    let file = |name: &str| scenarios.join(name).to_string_lossy().into_owned();
    let (racks, lot) = (file("two-racks.toml"), file("parking-lot.toml"));
    let (uneven, failed) = (file("uneven-spines.toml"), file("failed-link.toml"));
    for (scenario, setting, names) in [
        (
            "fat-tree",
            "hosts=128",
            &["core15", "agg31", "edge0", "h124 … h127"][..],
        ),
        ("fat-tree", "hosts=16", &["core3", "edge7", "h15"]),
        ("leaf-spine", "leaves=600", &["leaves = 600"]),
        ("fat-tree", "hosts=4000", &["edge0", "edge307", "core168"]),
        ("dumbbell", "hosts=6", &["left", "right", "h5"]),
        ("parking-lot", "switches=6", &["s0", "s5"]),
        ("chain", "hosts=19", &["T0", "T3", "S1", "R0", "A14"]),
        ("hp", "flows=3", &["AV", "BC", "B3"]),
        (&racks, "load=1/10", &["left", "other", "b8"]),
        (&lot, "buffer=5", &["s3", "victim", "aside"]),
        (&uneven, "payload=500", &["slow", "100gbit", "5us"]),
        (&failed, "hosts=15", &["edge0", "down 200us..600us"]),
    ] {
        let out = folder.path().join("a/network.svg");
        let named = out.to_string_lossy().into_owned();
        let output = sim(&["draw", scenario, "--set", setting, "--out", &named]);
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(error.contains(names[0]) && !out.exists(), "{error}");
            continue;
        }
        let svg = fs::read_to_string(&out).expect("the picture");
        for name in names {
            assert!(svg.contains(&format!("\n{name}\n")), "{scenario}: {name}");
        }
        fs::remove_file(out).expect("the picture is there");
    }
    for out in ["network", "/proc/nowhere/network.svg"] {
        assert_eq!(sim(&["draw", "hp", "--out", out]).status.code(), Some(2));
    }
}

/// A network of bridges has the delays of the rig unless its file sets others, and they matter.
#[test]
fn a_preset_is_the_model_of_a_built_in_scenario() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bridges.toml");
    let run = |model: &str| {
        let network = "duration = \"20ms\"\nswitches = [\"s\"]\nhosts = [\"h[1-2]\"]\n\
                       links = [{ between = [\"h[1-2]\", \"s\"], rate = \"100mbit\" }]\n\
                       flows = [{ class = \"x\", from = \"h1\", to = \"h2\" }]\n[model]\n";
        fs::write(&path, network.to_owned() + model).expect("a file");
        sim(&["run", &path.to_string_lossy(), "-j"])
    };
    let output = run("preset = \"rig\"\nqueue = 50\n");
    let bridges: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let rig = document(&[
        "run",
        "rig",
        "-j",
        "--set",
        "warm_up=1ms",
        "--set",
        "duration=20ms",
    ]);
    let (own, rig) = (&bridges["parameters"], &rig["parameters"]);
    assert_eq!(
        (&own["queue"], &own["switch"]),
        (&50.into(), &"output".into())
    );
    for key in [
        "rmin",
        "round",
        "forwarding_delay",
        "ack_delay",
        "agent_period",
    ] {
        assert_eq!(own[key], rig[key], "{key}");
        assert!(!own[key].is_null(), "{key}");
    }
    let output = run("preset = \"rigg\"\n");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        error.contains("preset = \"rigg\": did you mean `rig`?"),
        "{error}"
    );
}

/// Each is refused with one line that names the cause, and nothing is written.
#[test]
fn bad_input_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("a scenario");
        path.to_string_lossy().into_owned()
    };
    let network = |links: &str, flow: &str| {
        format!(
            "duration = \"1ms\"\nswitches = [\"s\"]\nhosts = [\"a\", \"b\", \"c\"]\nlinks = [{links}]\n\
             flows = [{{class = \"x\", from = \"a\", to = \"{flow}\"}}]\n"
        )
    };
    let link =
        |from: &str, to: &str| format!("{{between = [\"{from}\", \"{to}\"], rate = \"1gbit\"}}");
    let apart = file("apart", &network(&link("a", "s"), "b"));
    let unknown = file("unknown", &network(&link("a", "t"), "b"));
    let itself = file("itself", &network(&link("a", "s"), "a"));
    let torn = file("torn", "duration = ");
    let typo = file("typo", "durration = \"1ms\"");
    for (words, needed) in [
        (vec!["run", "--set", "bufer=4"], "`buffer`"),
        (vec!["run", "--set", "buffer=0"], "buffer = 0"),
        (vec!["run", "--set", "buffer=four"], "whole number"),
        (vec!["run", "--set", "marking=naiv"], "`naive`"),
        (vec!["run", "--set", "response=table:"], "table"),
        (vec!["run", "--set", "rmin=0"], "rmin"),
        (vec!["run", "--set", "rmin=1/999999"], "65536"),
        (vec!["run", "--set", "duration=-1ms"], "negative"),
        (vec!["run", "--set", "duration=9999h"], "duration"),
        (
            vec!["run", "--set", "victim=60ms..40ms"],
            "FROM must be before TO",
        ),
        (vec!["run", "--set", "mark_in=C"], "mark_in = C"),
        (vec!["run", "--set", "buffer"], "KEY=VALUE"),
        (vec!["run", "--set", "flows=0"], "flows"),
        (vec!["run", "--set", "link_rate=0bit"], "rate"),
        (vec!["run", "--set", "initial_rate=2"], "initial_rate"),
        (vec!["run", "--window", "50ms..500ms"], "ends at 100 ms"),
        (vec!["run", "--window", "soon"], "FROM..TO"),
        (vec!["run", "--out", "/proc/nowhere"], "/proc/nowhere"),
        (vec!["run", "nowhere.toml"], "nowhere.toml"),
        (vec!["run", &apart], "not connected"),
        (vec!["run", &unknown], "`t`"),
        (vec!["run", &itself], "another host"),
        (vec!["run", &torn], "line 1"),
        (vec!["run", &typo], "`duration`"),
        (vec!["run", "hp", "--set", "queue=50"], "switch = input"),
        (vec!["run", "rig", "--set", "window=4"], "switch = output"),
        (vec!["run", "rig", "--set", "queue=0"], "queue = 0"),
        (vec!["run", "rig", "--set", "warm_up=14s"], "warm_up = 14s"),
        (
            vec!["run", "rig", "--set", "agent_period=0s"],
            "agent_period",
        ),
        (vec!["run", "rig", "--set", "mark_at=arival"], "`arrival`"),
        (vec!["run", "rig", "--set", "local=251"], "local = 251"),
        (vec!["run", "rig", "--set", "flows=3"], "`flows`"),
        (vec!["run", "bridge", "--set", "hosts=251"], "hosts = 251"),
        (vec!["run", "bridge", "--set", "warm_up=9s"], "warm_up = 9s"),
        (vec!["run", "bridge", "--set", "leave=soon"], "leave = soon"),
        (
            vec!["run", "bridge", "--set", "stagger=1s"],
            "stagger = 1s: the last of 10 flows",
        ),
        (
            vec!["run", "rig", "--set", "response=table:x"],
            "a function of the papers",
        ),
        (vec!["rig", "--ipv6"], "--ipv6"),
        (vec!["run", "fat-treee"], "`fat-tree`"),
    ] {
        let mut words = words;
        let out = folder.path().join("out").to_string_lossy().into_owned();
        if !words.contains(&"--out") {
            words.extend(["--out", &out]);
        }
        let output = sim(&words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{words:?}: {error}");
        assert!(error.contains(needed), "{words:?}: {error}");
        assert!(output.stdout.is_empty(), "{words:?}");
        let written = fs::read_dir(&out).map_or(0, Iterator::count);
        assert_eq!(written, 0, "{words:?}");
    }
}

/// The same for a data centre.
#[test]
fn bad_input_of_a_data_centre_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cdf.csv");
    fs::write(&file, "bytes,percent\n1000,50\n2000,40\n").expect("a file");
    let falling = format!("cdf=file:{}", file.display());
    for (settings, needed) in [
        (&["sender=3"][..], "`senders`"),
        (&["leaves=3"], "unknown key `leaves`"),
        (&["workload=incats"], "`incast`"),
        (&["workload=file:/nowhere"], "nowhere"),
        (&["workload=poisson", "cdf=websearch"], "`web-search`"),
        (&["workload=poisson", &falling], "not monotone"),
        (&["workload=poisson", "load=2"], "load = 2"),
        (&["workload=chain"], "applies to the topology `chain` only"),
        (&["workload=poisson", "incast_load=2"], "incast_load = 2"),
        (&["workload=poisson", "incast_size=1MB"], "incast_load=0"),
        (
            &["workload=poisson", "incast_load=1/50", "hosts=16"],
            "incast_senders = 60: must be between 1 and 15",
        ),
        (&["scheme=dqcn"], "`dcqcn`"),
        (&["flow_control=pcf"], "`pfc`"),
        (&["hosts=1"], "hosts = 1"),
        (&["hosts=128", "k=6"], "must be an even number between 8"),
        (&["k=9"], "even"),
        (&["hosts=4000", "workload=all-to-all"], "at most 2048"),
        (
            &["workload=poisson", "duration=1s", "limit=1ms"],
            "duration = 1s",
        ),
        (&["senders=128"], "must be between 1 and 127"),
        (&["flow_size=0"], "flow_size"),
        (&["flow_size=20MBit"], "unknown unit"),
        (&["payload=10"], "payload = 10"),
        (&["link_rate=10"], "link_rate"),
        (&["link_delay=-1us"], "negative"),
        (&["headroom=10kB"], "28250 bytes are needed"),
        (&["buffer=30kB"], "30374 bytes"),
        (
            &["priorities=4", "headroom=100kB"],
            "113000 bytes are needed for data in flight when a pause is sent, in each of 4 priorities",
        ),
        (&["priorities=4", "buffer=100kB"], "115124 bytes"),
        (
            &["priorities=4", "flow_control=cbfc", "buffer=8000"],
            "8704 bytes",
        ),
        (&["priorities=0"], "priorities = 0: must be between 1 and 8"),
        (&["priorities=9"], "priorities = 9: must be between 1 and 8"),
        (
            &["priorities=300"],
            "priorities = 300: must be between 1 and 8",
        ),
        (
            &["switch=crossbar", "flow_control=none"],
            "must be pfc or cbfc with switch=crossbar",
        ),
        (&["switch=crossbar", "xoff=3kB"], "switch=crossbar"),
        (&["workload=poisson", "load=1/1000000000"], "no flow starts"),
        (
            &["link_delay=10ms"],
            "needs a buffer of 250005374 bytes per port",
        ),
        (
            &["scheme=dcqcn", "dcqcn.kmin=100MB"],
            "dcqcn.kmin = 100MB: must be at most kmax, 1600kB",
        ),
        (&["window=10B"], "window"),
        (&["alpha=0"], "alpha = 0"),
        (&["xoff=50kB"], "thresholds=dynamic"),
        (&["dcqcn.kmin=5kB"], "scheme=none"),
        (&["kmin=5kB"], "unknown key `kmin`"),
        (
            &["scheme=dcqcn", "dcqcn.kmin=5kB", "dcqcn.kmax=4kB"],
            "dcqcn.kmax = 4kB",
        ),
        (&["scheme=dcqcn", "dcqcn.rate_timer=0s"], "dcqcn.rate_timer"),
        (&["scheme=dcqcn", "dcqcn.min_rate=1tbit"], "dcqcn.min_rate"),
        (&["scheme=lipd/naive", "hp.rmin=2"], "hp.rmin = 2"),
        (&["scheme=lipd/naive", "hp.buffer=0"], "hp.buffer = 0"),
        (&["scheme"], "KEY=VALUE"),
    ] {
        let mut words = vec!["run", "fat-tree"];
        settings
            .iter()
            .for_each(|setting| words.extend(["--set", setting]));
        let output = sim(&words);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{words:?}: {error}");
        assert!(error.contains(needed), "{words:?}: {error}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    for more in [["--window", "2ms..1ms"], ["--threads", "0"]] {
        let output = sim(&["run", "fat-tree", more[0], more[1]]);
        assert_eq!(output.status.code(), Some(2), "{more:?}");
    }
}
