//! The commands, as users run them.

use std::fs;

use serde_json::Value;

use super::{Folder, cases, sim};

/// The keys of an object, sorted and separated by spaces.
fn keys(value: &Value) -> String {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(|key| &**key)
        .collect();
    keys.sort_unstable();
    keys.join(" ")
}

#[test]
fn a_run_prints_the_contract() {
    let run = sim("run hp -j --seed 7 --window 42ms..59ms").json();
    assert_eq!(
        keys(&run),
        "dropped_packets events input_triggers marked_packets output_triggers packet_hops \
         parameters scenario seed wall_s windows"
    );
    let window = &run["windows"][0];
    assert_eq!(
        keys(window),
        "from_ms inter_switch jain_local jain_remote local remote remote_local_ratio root to_ms victim"
    );
    assert_eq!((&run["scenario"], &run["seed"]), (&"hp".into(), &7.into()));
    assert_eq!(window["from_ms"].as_f64(), Some(42.0));
    assert_eq!(window["to_ms"].as_f64(), Some(59.0));
    assert_eq!(run["dropped_packets"], 0);
    for class in ["local", "remote", "victim"] {
        assert!(run["marked_packets"][class].is_u64(), "{class}");
    }
    let share = |key: &str| window[key].as_f64().unwrap();
    assert!((share("root") - share("local") - share("remote")).abs() < 1e-9);
    assert!((share("inter_switch") - share("remote") - share("victim")).abs() < 0.002);
}

/// P1 and P2, by the command of the issue.
#[test]
fn without_control_the_victim_starves() {
    let run = sim("run hp --set marking=none --set response=none --window 42ms..59ms -j").json();
    let share = |key: &str| run["windows"][0][key].as_f64().unwrap();
    let (victim, inter_switch) = (share("victim"), share("inter_switch"));
    assert!((victim - 0.04).abs() <= 0.005, "{victim}");
    assert!((inter_switch - 0.325).abs() <= 0.01, "{inter_switch}");
}

#[test]
fn a_seed_gives_the_same_bytes_and_another_seed_others() {
    let run = |seed: u32| {
        let mut run = sim(&format!("run --seed {seed} -j")).json();
        run["wall_s"] = 0.into();
        run.to_string()
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn results_are_written_whole() {
    let folder = Folder::new();
    let run = folder.sim("run --out a/b -j").json();
    let expected = "run.json run.svg series.csv series.parquet";
    assert_eq!(folder.files("a/b"), expected);
    let written: Value = serde_json::from_str(&folder.read("a/b/run.json")).unwrap();
    assert_eq!(written, run);
    let csv = folder.read("a/b/series.csv");
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("time_ms,name,share"));
    assert!(lines.clone().count() > 500);
    let names = ["root", "inter-switch", "local", "remote", "victim"];
    for (line, name) in lines.zip(names.iter().cycle()) {
        assert_eq!(line.split(',').nth(1), Some(*name), "{line}");
    }
    assert!(folder.read("a/b/run.svg").trim_end().ends_with("</svg>"));
}

/// A folder contains the results of its last run only, and keeps all other files.
#[test]
fn results_of_an_earlier_run_are_removed() {
    let folder = Folder::new();
    folder.write("notes.txt", "");
    let words = "run fat-tree --set hosts=32 --set flow_size=10kB -j --out .";
    folder.sim(words).done();
    assert!(folder.path("rates.svg").is_file());
    folder.sim("run --set duration=20ms --out . -j").done();
    assert_eq!(
        folder.files("."),
        "notes.txt run.json run.svg series.csv series.parquet"
    );
}

#[test]
fn a_scenario_file_names_its_own_classes_and_links() {
    let victim = |settings: &str| {
        let words = "run SCENARIOS/parking-lot.toml -j --set duration=50ms";
        let window = &sim(&format!("{words} {settings}")).json()["windows"][0];
        assert_eq!(keys(&window["classes"]), "far middle near victim");
        assert!(window["links"]["last"].as_f64() > Some(0.9));
        window["classes"]["victim"]["share"].as_f64()
    };
    let alone = victim("--set marking=none --set response=none");
    assert!(alone < Some(0.05) && victim("") > Some(0.4), "{alone:?}");
}

/// The book's example: HP's Fig. 1 with a scheme of data centres.
#[test]
fn any_scheme_runs_in_fig_1() {
    let victim = |settings: &str| {
        let run = sim(&format!("run fig1 --window 44ms..58ms -j {settings}")).json();
        let window = &run["windows"][0];
        assert_eq!(window["flows"], 21);
        window["senders_bytes_per_s"]["AV"].as_f64().unwrap() * 8e-9
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
    let folder = Folder::new();
    let report = folder.sim("rig --seconds 2 --warm-up 1 --out . -j").json();
    let phases = report["phases"].as_array().unwrap();
    let names: Vec<_> = phases.iter().map(|phase| &phase["name"]).collect();
    assert_eq!(names, ["uncontrolled", "controlled"]);
    let victim = |phase: usize| phases[phase]["victim"].as_f64();
    assert!(victim(0) < Some(0.2) && victim(1) > Some(0.4));
    for key in ["control_latency_us_p50", "root_queue_mean_packets"] {
        assert!(phases[1][key].as_f64() > Some(1.0), "{key}");
    }
    assert!(folder.path("rig-rates.svg").is_file());
}

/// The book's incast, smaller.
#[test]
fn a_data_centre_prints_the_contract() {
    let words = "run fat-tree --set hosts=128 --set workload=incast --set senders=20 --set flow_size=100kB \
                 --set payload=1000 --set link_rate=100gbit --set link_delay=1us --set flow_control=pfc \
                 --set scheme=none -j --seed 3";
    let run = sim(words).json();
    assert_eq!(
        keys(&run),
        "data_packet_hops data_packets dropped_packets events fct_slowdown flows_finished \
         flows_started goodput_bytes_per_s head_of_line_victims jain last_flow_end_ms \
         marked_packets packet_hops parameters pause_frames scenario seed setup_s \
         undetermined_packets wall_s"
    );
    assert_eq!(keys(&run["fct_slowdown"]), "by_size p50 p95 p99");
    assert_eq!(run["scenario"], "fat-tree");
    assert_eq!(run["seed"], 3);
    assert_eq!(run["flows_started"], 20);
    assert_eq!(run["flows_finished"], 20);
    assert_eq!(run["dropped_packets"], 0);
    let ports = &run["parameters"]["k"];
    assert_eq!(ports, "8", "the ports that were taken are printed");
    // 2,000 packets over 2, 4 or 6 links, and an ACK for each.
    let hops = run["data_packet_hops"].as_u64().unwrap();
    assert!((4_000..=12_000).contains(&hops), "{hops}");
    assert!(run["packet_hops"].as_u64() >= Some(2 * hops));
    let mut again = sim(words).json();
    for time in ["wall_s", "setup_s"] {
        again[time] = run[time].clone();
    }
    assert_eq!(run, again);
}

/// The lines of `list` about a name, by key.
#[test]
fn keys_are_explained() {
    let keys = |names: &str| -> Vec<Value> {
        let found = sim(&format!("list {names} -j")).json();
        found.as_array().unwrap().clone()
    };
    let by_name = keys("dcqcn.kmin");
    assert_eq!((by_name.len(), &keys("kmin")), (1, &by_name));
    let kmin = &by_name[0];
    assert_eq!(keys("fig1 kmin").len(), 1);
    assert!(keys("dcqcn").contains(kmin));
    let source = kmin["sources"]["V2"].as_str().unwrap();
    assert!(source.contains("HPCC"), "{source}");
    // The scenario, and the scheme's table.
    let of_hp = keys("hp");
    for name in ["arbitration", "hp.trigger"] {
        assert!(of_hp.iter().any(|key| key["key"] == name), "{name}");
    }
    // In a data centre the same name has another meaning.
    let buffers = keys("buffer");
    assert_eq!(buffers.len(), 2);
    assert_eq!(buffers[0]["unit"], "packets");
    assert_eq!(buffers[1]["unit"], Value::Null);
    assert_eq!(buffers[1]["defaults"]["fat-tree"], "1MB");
    let workload = &keys("incast")[0];
    assert_eq!(workload["key"], "workload");
    assert_eq!(workload["defaults"]["parking-lot"], "greedy");
    for (names, hint) in [
        ("thresold", "did you mean `threshold`?"),
        ("hp kmin", "`hp` has no key `kmin`"),
        ("ph buffer", "unknown scenario `ph`: did you mean `hp`?"),
    ] {
        sim(&format!("list {names}")).refused(hint);
    }
}

/// `--out FILE`: the report as a table alone.
#[test]
fn a_report_is_a_table() {
    let folder = Folder::new();
    let words = "run dumbbell --set hosts=4 --set senders=2 --window 1us..20us --out";
    for file in ["a/run.csv", "a/run.parquet"] {
        folder.sim(&format!("{words} {file}")).done();
    }
    assert_eq!(folder.files("a"), "run.csv run.parquet");
    let text = folder.read("a/run.csv");
    let rows: Vec<Vec<&str>> = text.lines().map(|row| row.split(',').collect()).collect();
    let at = |name: &str| {
        let mut columns = rows[0].iter();
        columns.position(|column| *column == name).expect(name)
    };
    assert_eq!(rows[0][..3], ["seed", "from_ms", "to_ms"]);
    assert_eq!(rows[1][..3], ["1", "0.001", "0.02"]);
    // Values of the window and of the run differ.
    assert_ne!(
        rows[1][at("goodput_bytes_per_s")],
        rows[1][at("window_goodput_bytes_per_s")]
    );
    assert_eq!(rows.len(), 2);
    let bytes = fs::read(folder.path("a/run.parquet")).unwrap();
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
}

/// `--out`: each flow, the series, and figures of it.
#[test]
fn a_data_centre_is_written() {
    let folder = Folder::new();
    let words = "run chain --set scheme=dcqcn+tcd --out .";
    folder.sim(words).done();
    assert_eq!(
        folder.files("."),
        "flows.csv flows.parquet queues.svg rates.svg run.json series.csv series.parquet"
    );
    let run: Value = serde_json::from_str(&folder.read("run.json")).unwrap();
    let rows = |name: &str| -> Vec<Vec<String>> {
        let row = |row: &str| row.split(',').map(str::to_owned).collect();
        folder.read(name).lines().skip(1).map(row).collect()
    };
    let number = |cell: &String| cell.parse::<f64>().unwrap();
    let flows = rows("flows.csv");
    assert_eq!(run["flows_finished"], flows.len());
    let payload: f64 = flows.iter().map(|flow| number(&flow[3])).sum();
    let series = rows("series.csv");
    let steps: Vec<_> = series.iter().filter(|row| row[1] == "network").collect();
    let delivered: f64 = steps.iter().map(|step| number(&step[3])).sum();
    // All but the last, unfinished step.
    assert!(delivered <= payload && delivered > 0.99 * payload);
    assert!((2..2_000).contains(&steps.len()));
    let mut steps_with_both = steps
        .iter()
        .filter(|step| number(&step[6]) > 0.0 && number(&step[7]) > 0.0);
    assert!(steps_with_both.next().is_some());
    let of_flow = series
        .iter()
        .filter(|row| row[1] == "flow" && row[2] == "1");
    assert_eq!(of_flow.clone().count(), steps.len());
    let mut others = of_flow.clone().flat_map(|row| [&row[4], &row[7]]);
    assert!(others.all(String::is_empty));
    assert!(of_flow.map(|row| number(&row[3])).sum::<f64>() > 0.0);
}

/// A separate column if there are several.
#[test]
fn flows_are_written_with_their_priorities() {
    let folder = Folder::new();
    let text = "start_ns,from,to,bytes,priority\n0,0,1,5000,2\n1000,1,0,7000,0\n";
    folder.write("flows.csv", text);
    let words = "run dumbbell --set workload=file:flows.csv --out out --set";
    let printed = folder.sim(&format!("{words} priorities=3")).done();
    let written = folder.read("out/flows.csv");
    let columns = written.lines().filter_map(|row| row.rsplit(',').next());
    assert!(columns.eq(["priority", "2", "0"]), "{written}");
    assert!(printed.contains("priority 0  "), "{printed}");
    assert!(printed.contains("priority 2  "), "{printed}");
    folder
        .sim(&format!("{words} priorities=2"))
        .refused("line 2: the priority must be between 0 and 1 (priorities=2)");
}

/// Each workload and scheme by name, as a table.
#[test]
fn a_data_centre_runs_every_workload() {
    let folder = Folder::new();
    let flows = "start_ns,from,to,bytes\n0,0,1,5000\n1000,1,0,7000\n";
    folder.write("flows.csv", flows);
    let workloads = "permutation all-to-all poisson on-off all-reduce greedy file:flows.csv";
    for workload in workloads.split(' ') {
        for (scheme, control) in [("none", "none"), ("dcqcn", "pfc")] {
            for name in ecn_sim::fabric::Kind::NAMES {
                let words = format!(
                    "run {name} --set hosts=8 --set workload={workload} --set switch=shared-memory \
                     --set scheme={scheme} --set flow_control={control}"
                );
                let text = folder.sim(&words).done();
                assert!(text.contains(" flows finished, the last at "), "{text}");
            }
        }
    }
}

#[test]
fn schemes_are_compared_side_by_side() {
    let folder = Folder::new();
    let words = "compare leaf-spine --schemes none,dcqcn --seeds 2 --set hosts=16 --set dcqcn.kmin=5kB \
                 --set dcqcn.kmax=20kB --set workload=poisson --set cdf=hadoop --set duration=200us --out a/b";
    let text = folder.sim(words).done();
    assert!(text.starts_with("SCHEME  FLOWS  SLOWDOWN 50 %"), "{text}");
    assert_eq!(text.lines().last(), Some("a/b/report.html"));
    let expected = "compare.csv compare.json data-that-waits-in-switches.svg goodput.svg longest-queue.svg \
                    means.svg network.svg ports-that-may-not-send.svg report.html runs.csv runs.parquet \
                    slowdown-by-size.csv slowdown-by-size.svg slowdown-cdf.svg";
    assert_eq!(folder.files("a/b"), expected);
    let read = |name: &str| folder.read(&format!("a/b/{name}"));
    let table = read("compare.csv");
    let rows: Vec<Vec<&str>> = table.lines().map(|row| row.split(',').collect()).collect();
    assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    assert_eq!((rows.len(), rows[1][0], rows[2][0]), (3, "none", "dcqcn"));
    let written: Value = serde_json::from_str(&read("compare.json")).unwrap();
    assert_eq!(written["scenario"], "leaf-spine");
    assert_eq!(written["seeds"], 2);
    for (row, scheme) in rows[1..].iter().zip(written["schemes"].as_array().unwrap()) {
        assert_eq!(scheme["runs"].as_array().map(Vec::len), Some(2));
        let flows = scheme["flows_finished"].as_u64().unwrap();
        assert_eq!((row[3].parse(), flows > 20), (Ok(flows), true));
        let sizes = scheme["fct_slowdown"]["by_size"].as_array().unwrap();
        let of_size = sizes.iter().filter_map(|group| group["flows"].as_u64());
        assert_eq!(of_size.sum::<u64>(), flows);
    }
    let page = read("report.html");
    for figure in expected.split(' ').filter(|name| name.ends_with(".svg")) {
        assert!(page.contains(&read(figure)), "{figure}");
    }
    assert!(page.trim_end().ends_with("</html>"));
    assert!(page.contains("<td>dcqcn.kmin</td><td>5kB</td>"));
    // The same, except for wall-clock times.
    let again = folder.sim(&format!("{words} -j --threads 1")).json();
    let without_times = |mut document: Value| {
        for scheme in document["schemes"].as_array_mut().unwrap() {
            for run in scheme["runs"].as_array_mut().unwrap() {
                (run["wall_s"], run["setup_s"]) = (0.into(), 0.into());
            }
        }
        document
    };
    assert_eq!(without_times(again), without_times(written));
}

#[test]
fn bad_comparisons_are_refused() {
    let folder = Folder::new();
    for (words, needed) in cases(
        "
compare fat-tre --schemes none => `fat-tree`
compare fat-tree --schemes none,dqcn => `dcqcn`
compare fat-tree --schemes none,none => twice
compare fat-tree --schemes none,,dcqcn => empty name between commas
compare fat-tree --schemes none --set scheme=dcqcn => --schemes
compare fat-tree --schemes none --set dcqcn.kmin=5kB => scheme=none
compare fat-tree --schemes none,dcqcn --set dcqcn.kmax=1kB => kmax = 1kB
compare fat-tree --schemes dcqcn --set headroom=1kB => are needed
compare fat-tree --schemes none --set hosts=8 --set hosts=9 => --set hosts: given twice
run hp --set buffer=4 --set buffer=8 => buffer: given twice
run bridge --set voice=1tbit => voice = 1tbit: must be at most link_rate=100mbit
run bridge --set short=1000000 => short = 1000000: offers more than link_rate=100mbit
run fat-tree --set workload=file:/dev/zero => not a regular file
",
    ) {
        folder.sim(&format!("{words} --out .")).refused(needed);
        assert_eq!(folder.files("."), "", "{words}");
    }
}

#[test]
fn a_data_centre_comes_from_a_file() {
    let folder = Folder::new();
    let file = "SCENARIOS/two-racks.toml";
    let run = sim(&format!("run {file} -j --set duration=100us")).json();
    assert_eq!(run["scenario"], "two racks");
    assert_eq!(run["parameters"]["hosts"], 16);
    assert_eq!(run["parameters"]["link_rate"], "25gbit");
    assert!(run["flows_finished"].as_u64() > Some(10));
    assert_eq!(run["flows_finished"], run["flows_started"]);
    let words = "--schemes none,dcqcn --set duration=100us -j --out out";
    let both = folder.sim(&format!("compare {file} {words}")).json();
    assert_eq!(both["scenario"], "two racks");
    let none = &both["schemes"][0]["runs"][0];
    assert_eq!(none["fct_slowdown"], run["fct_slowdown"]);
    let text = fs::read_to_string(super::scenarios().join("two-racks.toml")).unwrap();
    let torn = text.replace("\"spine\", \"right\"", "\"spine\", \"rihgt\"");
    folder.write("torn.toml", &torn);
    for words in [
        "run torn.toml",
        "compare torn.toml --schemes none --out out",
    ] {
        let needed = "unknown host or switch `rihgt`: did you mean `right`?";
        folder.sim(words).refused(needed);
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
        let ran = sim(&format!("{words} {more}"));
        let error = ran.error.clone();
        ran.done();
        assert_eq!(error.lines().count(), notes, "{more}: {error}");
        for named in ["400kB", "216kB", "set dcqcn.kmin=27kB"] {
            assert!(notes == 0 || error.contains(named), "{error}");
        }
    }
}

/// Each network is drawn with the names of its switches, and invalid ones are refused.
#[test]
fn networks_are_drawn() {
    let folder = Folder::new();
    for (words, names) in [
        (
            "fat-tree --set hosts=128",
            "core15, agg31, edge0, h124 … h127",
        ),
        ("fat-tree --set hosts=16", "core3, edge7, h15"),
        ("fat-tree --set hosts=4000", "edge0, edge307, core168"),
        ("dumbbell --set hosts=6", "left, right, h5"),
        ("parking-lot --set switches=6", "s0, s5"),
        ("chain --set hosts=19", "T0, T3, S1, R0, A14"),
        ("hp --set flows=3", "AV, BC, B3"),
        (
            "SCENARIOS/two-racks.toml --set load=1/10",
            "left, other, b8",
        ),
        (
            "SCENARIOS/parking-lot.toml --set buffer=5",
            "s3, victim, aside",
        ),
        (
            "SCENARIOS/uneven-spines.toml --set payload=500",
            "slow, 100gbit, 5us",
        ),
        (
            "SCENARIOS/failed-link.toml --set hosts=15",
            "edge0, down 200us..600us",
        ),
    ] {
        let out = "a/network.svg";
        folder.sim(&format!("draw {words} --out {out}")).done();
        let svg = folder.read(out);
        for name in names.split(", ") {
            assert!(svg.contains(&format!("\n{name}\n")), "{words}: {name}");
        }
        fs::remove_file(folder.path(out)).unwrap();
    }
    let refused = folder.sim("draw leaf-spine --set leaves=600 --out a/network.svg");
    refused.refused("leaves = 600");
    assert!(!folder.path("a/network.svg").exists());
    for out in ["network", "/proc/nowhere/network.svg"] {
        assert_eq!(folder.sim(&format!("draw hp --out {out}")).code, 2);
    }
}

/// A network of bridges has the delays of the rig unless its file sets others, and they matter.
#[test]
fn a_preset_is_the_model_of_a_built_in_scenario() {
    let folder = Folder::new();
    let run = |model: &str| {
        let network = "duration = \"20ms\"\nswitches = [\"s\"]\nhosts = [\"h[1-2]\"]\n\
                       links = [{ between = [\"h[1-2]\", \"s\"], rate = \"100mbit\" }]\n\
                       flows = [{ class = \"x\", from = \"h1\", to = \"h2\" }]\n[model]\n";
        folder.write("bridges.toml", &format!("{network}{model}"));
        folder.sim("run bridges.toml -j")
    };
    let bridges = run("preset = \"rig\"\nqueue = 50\n").json();
    let rig = sim("run rig -j --set warm_up=1ms --set duration=20ms").json();
    let (own, rig) = (&bridges["parameters"], &rig["parameters"]);
    assert_eq!(own["queue"], 50);
    assert_eq!(own["switch"], "output");
    for key in "rmin round forwarding_delay ack_delay agent_period".split(' ') {
        assert_eq!(own[key], rig[key], "{key}");
        assert!(!own[key].is_null(), "{key}");
    }
    run("preset = \"rigg\"\n").refused("preset = \"rigg\": did you mean `rig`?");
}

/// Each is refused with one line that names the cause, and nothing is written.
#[test]
fn bad_input_is_refused() {
    let folder = Folder::new();
    let network = |name: &str, switch: &str, to: &str| {
        let text = format!(
            "duration = \"1ms\"\nswitches = [\"s\"]\nhosts = [\"a\", \"b\", \"c\"]\n\
             links = [{{between = [\"a\", \"{switch}\"], rate = \"1gbit\"}}]\n\
             flows = [{{class = \"x\", from = \"a\", to = \"{to}\"}}]\n"
        );
        folder.write(name, &text);
    };
    network("apart", "s", "b");
    network("unknown", "t", "b");
    network("itself", "s", "a");
    folder.write("torn", "duration = ");
    folder.write("typo", "durration = \"1ms\"");
    for (words, needed) in cases(
        "
run --set bufer=4 => `buffer`
run --set buffer=0 => buffer = 0
run --set buffer=four => whole number
run --set marking=naiv => `naive`
run --set response=table: => table
run --set rmin=0 => rmin
run --set rmin=1/999999 => 65536
run --set duration=-1ms => negative
run --set duration=9999h => duration
run --set victim=60ms..40ms => FROM must be before TO
run --set mark_in=C => mark_in = C
run --set buffer => KEY=VALUE
run --set flows=0 => flows
run --set link_rate=0bit => rate
run --set initial_rate=2 => initial_rate
run --window 50ms..500ms => ends at 100 ms
run --window soon => FROM..TO
run nowhere.toml => nowhere.toml
run apart => not connected
run unknown => `t`
run itself => another host
run torn => line 1
run typo => `duration`
run hp --set queue=50 => switch = input
run rig --set window=4 => switch = output
run rig --set queue=0 => queue = 0
run rig --set warm_up=14s => warm_up = 14s
run rig --set agent_period=0s => agent_period
run rig --set mark_at=arival => `arrival`
run rig --set local=251 => local = 251
run rig --set flows=3 => `flows`
run bridge --set hosts=251 => hosts = 251
run bridge --set warm_up=9s => warm_up = 9s
run bridge --set leave=soon => leave = soon
run bridge --set stagger=1s => stagger = 1s: the last of 10 flows
run rig --set response=table:x => a function of the papers
rig --ipv6 => --ipv6
run fat-treee => `fat-tree`
run parking-lot --set scheme=bcn --set mark_in=s9 => mark_in = s9: unknown switch
run parking-lot --set scheme=timely --set mark_in=s0 => does not apply
",
    ) {
        folder.sim(&format!("{words} --out out")).refused(needed);
        let written = fs::read_dir(folder.path("out")).map_or(0, Iterator::count);
        assert_eq!(written, 0, "{words}");
    }
    sim("run --out /proc/nowhere").refused("/proc/nowhere");
}

/// The same for a data centre.
#[test]
fn bad_input_of_a_data_centre_is_refused() {
    let folder = Folder::new();
    folder.write("cdf.csv", "bytes,percent\n1000,50\n2000,40\n");
    for (settings, needed) in cases(
        "
sender=3 => `senders`
leaves=3 => unknown key `leaves`
workload=incats => `incast`
workload=file:/nowhere => nowhere
workload=poisson cdf=websearch => `web-search`
workload=poisson cdf=file:cdf.csv => not monotone
workload=poisson load=2 => load = 2
workload=chain => applies to the topology `chain` only
workload=poisson incast_load=2 => incast_load = 2
workload=poisson incast_size=1MB => incast_load=0
workload=poisson incast_load=1/50 hosts=16 => incast_senders = 60: must be between 1 and 15
scheme=dqcn => `dcqcn`
flow_control=pcf => `pfc`
hosts=1 => hosts = 1
hosts=128 k=6 => must be an even number between 8
k=9 => even
hosts=4000 workload=all-to-all => at most 2048
workload=poisson duration=1s limit=1ms => duration = 1s
senders=128 => must be between 1 and 127
flow_size=0 => flow_size
flow_size=20MBit => unknown unit
payload=10 => payload = 10
link_rate=10 => link_rate
link_delay=-1us => negative
headroom=10kB => 28250 bytes are needed
buffer=30kB => 30374 bytes
priorities=4 headroom=100kB => \
113000 bytes are needed for data in flight when a pause is sent, in each of 4 priorities
priorities=4 buffer=100kB => 115124 bytes
priorities=4 flow_control=cbfc buffer=8000 => 8704 bytes
priorities=0 => priorities = 0: must be between 1 and 8
priorities=9 => priorities = 9: must be between 1 and 8
priorities=300 => priorities = 300: must be between 1 and 8
switch=crossbar flow_control=none => must be pfc or cbfc with switch=crossbar
switch=crossbar xoff=3kB => switch=crossbar
workload=poisson load=1/1000000000 => no flow starts
link_delay=10ms => needs a buffer of 250005374 bytes per port
scheme=dcqcn dcqcn.kmin=100MB => dcqcn.kmin = 100MB: must be at most kmax, 1600kB
window=10B => window
alpha=0 => alpha = 0
xoff=50kB => thresholds=dynamic
dcqcn.kmin=5kB => scheme=none
kmin=5kB => unknown key `kmin`
scheme=dcqcn dcqcn.kmin=5kB dcqcn.kmax=4kB => dcqcn.kmax = 4kB
scheme=dcqcn dcqcn.rate_timer=0s => dcqcn.rate_timer
scheme=dcqcn dcqcn.min_rate=1tbit => dcqcn.min_rate
scheme=lipd/naive hp.rmin=2 => hp.rmin = 2
scheme=lipd/naive hp.buffer=0 => hp.buffer = 0
scheme => KEY=VALUE
",
    ) {
        let settings = settings.replace(' ', " --set ");
        let words = format!("run fat-tree --set {settings}");
        folder.sim(&words).refused(needed);
    }
    for more in ["--window 2ms..1ms", "--threads 0"] {
        assert_eq!(sim(&format!("run fat-tree {more}")).code, 2, "{more}");
    }
}
