//! `sweep` and `merge` by the program: killed, divided into shards, merged, and given invalid input.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use ecn_sim::design::{Design, Table};
use serde_json::Value;

/// 32 runs of a few ms.
const SWEEP: &str = r#"
seeds = "1..=4"
windows = ["2ms..4ms"]
[set]
duration = "5ms"
victim = "off"
[sweep]
buffer = "2..=5"
rmin = ["1/64", "1/256"]
"#;

/// 8 runs of a small fat tree, with a key that only half of them have.
const FABRIC: &str = r#"
scenario = "fat-tree"
seeds = [1, 2]
[set]
hosts = 16
workload = "poisson"
duration = "100us"
dcqcn.kmin = "20kB"
[sweep]
scheme = ["none", "dcqcn"]
load = ["1/4", 0.5]
"#;

fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_ecn-sim"))
}

fn ecn_sim(arguments: &[&str]) -> Output {
    command().args(arguments).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self::of(SWEEP)
    }

    fn of(sweep: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("f.toml", sweep);
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn sweep(&self, out: &str, more: &[&str]) -> Output {
        let (file, out) = (self.text("f.toml"), self.text(out));
        ecn_sim(&[&["sweep", &file, "--out", &out], more].concat())
    }

    fn merge(&self, from: &[&str], out: &str, more: &[&str]) -> Output {
        let from: Vec<String> = from.iter().map(|name| self.text(name)).collect();
        let out = self.text(out);
        let mut arguments = vec!["merge"];
        arguments.extend(from.iter().map(String::as_str));
        arguments.extend(["--out", &out]);
        arguments.extend(more);
        ecn_sim(&arguments)
    }
}

/// A record without its run times.
fn record(line: &str) -> Value {
    let mut value: Value = serde_json::from_str(line).unwrap();
    let object = value.as_object_mut().unwrap();
    assert!(object.remove("wall_s").is_some());
    object.remove("setup_s");
    value
}

/// Records of a file.
fn records(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap();
    text.lines().map(|line| record(line).to_string()).collect()
}

fn sorted(mut records: Vec<String>) -> Vec<String> {
    records.sort();
    records
}

#[test]
fn a_killed_sweep_goes_on_to_the_same_records() {
    killed(&Folder::new(), 32);
}

#[test]
fn a_killed_sweep_of_data_centres_goes_on() {
    killed(&Folder::of(FABRIC), 8);
}

fn killed(folder: &Folder, runs: usize) {
    assert_eq!(code(&folder.sweep("whole", &[])), 0);
    let whole = sorted(records(&folder.path("whole/runs.jsonl")));
    assert_eq!(whole.len(), runs);
    let bytes = fs::read(folder.path("whole/runs.jsonl")).unwrap();

    // Killed once some records are written, at any point.
    let file = folder.path("killed/runs.jsonl");
    for least in [1_000, 4_000, 20_000] {
        let mut child = command()
            .args(["sweep", &folder.text("f.toml"), "--threads", "2"])
            .args(["--out", &folder.text("killed")])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while fs::metadata(&file).map_or(0, |meta| meta.len()) < least
            && child.try_wait().unwrap().is_none()
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(code(&folder.sweep("killed", &[])), 0);
    assert_eq!(sorted(records(&file)), whole);

    // Cut off anywhere in a line, at its end, and before the first one's.
    for cut in [0, 7, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1] {
        let out = format!("cut{cut}");
        fs::create_dir(folder.path(&out)).unwrap();
        for name in ["sweep.json", "runs.jsonl"] {
            let text = fs::read(folder.path(&format!("whole/{name}"))).unwrap();
            let length = if name == "runs.jsonl" {
                cut
            } else {
                text.len()
            };
            fs::write(folder.path(&format!("{out}/{name}")), &text[..length]).unwrap();
        }
        let output = folder.sweep(&out, &["-j"]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let there = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(summary["resumed"], there);
        let file = folder.path(&format!("{out}/runs.jsonl"));
        assert_eq!(sorted(records(&file)), whole, "{cut}");
    }
}

/// The lines of the table of a sweep in whole and in three shards, merged in different ways.
fn sharded(folder: &Folder) -> Vec<String> {
    folder.sweep("whole", &[]);
    let whole = records(&folder.path("whole/runs.jsonl"));
    let mut all = Vec::new();
    for shard in 1..=3 {
        let (out, shard_text) = (format!("s{shard}"), format!("{shard}/3"));
        assert_eq!(code(&folder.sweep(&out, &["--shard", &shard_text])), 0);
        let file = format!("{out}/runs-{shard}-of-3.jsonl");
        all.extend(records(&folder.path(&file)));
    }
    assert_eq!(sorted(all), sorted(whole.clone()));

    let all = &["whole", "s1", "s2", "s3"];
    for (from, out) in [
        (&["s3", "s1", "s2"][..], "m"),
        (&["whole"], "w"),
        (all, "a"),
    ] {
        let output = folder.merge(from, out, &[]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    let merged = records(&folder.path("m/runs.jsonl"));
    assert_eq!(merged, records(&folder.path("w/runs.jsonl")));
    assert_eq!(sorted(merged), sorted(whole));
    let csv = |out: &str| fs::read_to_string(folder.path(&format!("{out}/runs.csv"))).unwrap();
    assert_eq!(csv("m"), csv("w"));
    assert_eq!(csv("m"), csv("a"));
    assert!(folder.path("m/runs.svg").exists());

    // Merged records can be merged again, into a file this time; all in one folder works, too.
    assert_eq!(code(&folder.merge(&["m", "s2"], "all.jsonl", &[])), 0);
    assert_eq!(
        fs::read_to_string(folder.path("all.csv")).unwrap(),
        csv("m")
    );
    folder.sweep("shared", &["--shard", "1/2"]);
    folder.sweep("shared", &["--shard", "2/2"]);
    assert_eq!(code(&folder.merge(&["shared"], "shared", &[])), 0);
    assert_eq!(csv("shared"), csv("m"));
    csv("m").lines().map(str::to_owned).collect()
}

#[test]
fn shards_are_disjoint_and_merge_to_the_whole() {
    let table = sharded(&Folder::new());
    assert_eq!(table.len(), 33);
    assert!(table[0].starts_with("run,buffer,rmin,seed,from_ms,to_ms,"));
    assert!(table[1].contains(",2,0.015625,1,2,4,"), "{}", table[1]);
}

#[test]
fn data_centres_are_swept_like_others() {
    let folder = Folder::of(FABRIC);
    let table = sharded(&folder);
    assert_eq!(table.len(), 9);
    let keys = "run,load,scheme,seed,data_packet_hops,data_packets,dropped_packets,events,\
                fct_slowdown_p50,fct_slowdown_p95,fct_slowdown_p99,flows_finished,flows_started,\
                goodput_bytes_per_s,head_of_line_victims,jain,last_flow_end_ms,marked_packets,packet_hops,pause_frames,\
                undetermined_packets,error";
    assert_eq!(table[0], keys);
    // A run of a sweep equals that of `run`; settings that do not apply have their default.
    let lines = fs::read_to_string(folder.path("m/runs.jsonl")).unwrap();
    let mut parameters = Vec::new();
    for (line, load, scheme, seed) in [(0, "1/4", "none", "1"), (7, "1/2", "dcqcn", "2")] {
        let mut swept = record(lines.lines().nth(line).unwrap());
        let object = swept.as_object_mut().unwrap();
        object.remove("run");
        let expected = serde_json::json!({"load": load, "scheme": scheme});
        assert_eq!(object.remove("swept").unwrap(), expected);
        let (load, scheme) = (format!("load={load}"), format!("scheme={scheme}"));
        let mut arguments = vec!["run", "fat-tree", "--seed", seed, "-j"];
        let set = [
            "hosts=16",
            "workload=poisson",
            "duration=100us",
            &load,
            &scheme,
        ];
        arguments.extend(set.iter().flat_map(|setting| ["--set", setting]));
        if line == 7 {
            arguments.extend(["--set", "dcqcn.kmin=20kB"]);
        }
        let output = ecn_sim(&arguments);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(swept, record(&String::from_utf8(output.stdout).unwrap()));
        parameters.push(swept["parameters"].clone());
    }
    assert_eq!(parameters[0]["dcqcn"], Value::Null);
    assert_eq!(parameters[1]["dcqcn"]["kmin"], "20kB");
}

/// Windows count as with `--window`, a row each, and means over seeds have their intervals.
#[test]
fn windows_of_data_centres_are_rows() {
    let windows = "windows = [\"0us..50us\", \"50us..5s\"]\nscenario";
    let folder = Folder::of(&FABRIC.replace("scenario", windows));
    let table = sharded(&folder);
    assert_eq!(table.len(), 17);
    let columns: Vec<&str> = table[0].split(',').collect();
    assert_eq!(
        columns[..6],
        ["run", "load", "scheme", "seed", "from_ms", "to_ms"]
    );
    let at = |name: &str| columns.iter().position(|column| *column == name).unwrap();
    let row = |line: usize| table[line].split(',').collect::<Vec<_>>();
    assert_eq!(row(1)[at("to_ms")], "0.05");
    let words = "run fat-tree --set hosts=16 --set workload=poisson --set duration=100us --set load=1/4 \
                 --window 0us..50us --window 50us..5s -j";
    let output = ecn_sim(&words.split_whitespace().collect::<Vec<_>>());
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (line, window) in [(1, 0), (2, 1)] {
        let own = &run["windows"][window];
        let goodput = own["goodput_bytes_per_s"].to_string();
        assert_eq!(row(line)[at("window_goodput_bytes_per_s")], goodput);
        assert_eq!(row(line)[at("flows")], own["flows"].to_string());
        // Those of the whole run are in both.
        let all = run["goodput_bytes_per_s"].to_string();
        assert_eq!(row(line)[at("goodput_bytes_per_s")], all);
    }
    let svg = |folder: &Folder| fs::read_to_string(folder.path("m/runs.svg")).unwrap();
    let both = svg(&folder);
    assert!(both.contains("mean over the seeds and its 95 % interval"));
    // Four points in each of three panels, with an error bar of three strokes each, of their own width.
    let one = Folder::of(&FABRIC.replace("seeds = [1, 2]", "seeds = [1]"));
    sharded(&one);
    let strokes = |svg: &str| svg.matches(r#"stroke-width="1.2""#).count();
    assert_eq!([strokes(&both), strokes(&svg(&one))], [36, 0]);
    assert!(svg(&one).contains("slowdown, of one seed"));
}

#[test]
fn missing_runs_are_named() {
    let folder = Folder::new();
    folder.sweep("s1", &["--shard", "1/2"]);
    let output = folder.merge(&["s1"], "m", &[]);
    assert_eq!(code(&output), 1);
    let text = stderr(&output);
    assert!(text.contains("16 of 32 runs are missing (shard 2/2 lacks 16)"));
    assert!(text.contains("buffer=2 rmin=1/64 seed=2;"), "{text}");
    assert!(text.contains("; and 6 more"), "{text}");
    assert_eq!(text.lines().count(), 1);
    assert!(!folder.path("m").exists());

    let output = folder.merge(&["s1"], "m", &["--partial", "-j"]);
    assert_eq!(code(&output), 0);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["missing"].as_array().unwrap().len(), 16);
    assert_eq!(records(&folder.path("m/runs.jsonl")).len(), 16);
}

#[test]
fn duplicates_that_differ_are_refused() {
    let folder = Folder::new();
    folder.sweep("a", &[]);
    folder.sweep("b", &[]);
    assert_eq!(code(&folder.merge(&["a", "b"], "same", &[])), 0);

    let file = folder.path("b/runs.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let line = text.lines().next().unwrap();
    let record: Value = serde_json::from_str(line).unwrap();
    let events = format!("\"events\":{}", record["events"]);
    fs::write(&file, text.replacen(&events, "\"events\":1", 1)).unwrap();
    let output = folder.merge(&["a", "b"], "m", &[]);
    assert_eq!(code(&output), 1);
    let swept = &record["swept"];
    let rmin = swept["rmin"].as_str().unwrap();
    let named = format!(
        "records of the same run differ: buffer={} rmin={rmin} seed={}\n",
        swept["buffer"], record["seed"]
    );
    assert!(stderr(&output).ends_with(&named), "{}", stderr(&output));
    assert!(!folder.path("m").exists());
}

#[test]
fn a_folder_of_another_sweep_is_refused() {
    let folder = Folder::new();
    folder.sweep("a", &[]);
    let before = fs::read(folder.path("a/runs.jsonl")).unwrap();
    // The same sweep, written differently, is continued.
    let other_words = SWEEP
        .replace("\"2..=5\"", "{ from = 2, to = 5 }")
        .replace("\"1/64\"", "\"2/128\"");
    folder.write("f.toml", &other_words);
    let output = folder.sweep("a", &["-j"]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["resumed"], 32);

    folder.write("f.toml", &SWEEP.replace("2..=5", "2..=6"));
    let output = folder.sweep("a", &[]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("holds a different sweep, of 32 runs (this one has 40)"));
    folder.sweep("b", &["--shard", "1/8"]);
    let output = folder.merge(&["a", "b"], "m", &[]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("/b: holds a different sweep"));

    // Records of an unknown sweep.
    fs::remove_file(folder.path("a/sweep.json")).unwrap();
    let output = folder.sweep("a", &[]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("there is no sweep.json"));
    assert_eq!(fs::read(folder.path("a/runs.jsonl")).unwrap(), before);

    // A damaged line that is not the last.
    fs::write(folder.path("b/runs.jsonl"), "{}\n{}\n").unwrap();
    let output = folder.sweep("b", &[]);
    assert_eq!(code(&output), 1);
    assert!(stderr(&output).contains("line 1: "), "{}", stderr(&output));
}

#[test]
fn a_scenario_file_stands_beside_the_sweep() {
    let folder = Folder::new();
    fs::create_dir(folder.path("net")).unwrap();
    let network = r#"
        duration = "1ms"
        switches = ["S"]
        hosts = ["h[1-3]"]
        links = [{ between = ["h[1-3]", "S"], rate = "8gbit" }]
        flows = [{ class = "in, cast", from = "h[1-2]", to = "h3" }]
    "#;
    folder.write("net/star.toml", network);
    folder.write(
        "f.toml",
        "scenario = \"net/star.toml\"\n[sweep]\nbuffer = [2, 4]",
    );
    let output = folder.sweep("a", &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    // The file is not needed to merge, but decides whether it is the same sweep.
    folder.write("net/star.toml", &network.replace("8gbit", "4gbit"));
    assert_eq!(code(&folder.sweep("a", &[])), 2);
    fs::remove_file(folder.path("net/star.toml")).unwrap();
    let output = folder.merge(&["a"], "m", &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let csv = fs::read_to_string(folder.path("m/runs.csv")).unwrap();
    assert!(csv.contains(",\"classes_in, cast_share\","), "{csv}");
}

#[test]
fn files_of_data_centres_are_part_of_the_sweep() {
    let network = r#"
        topology = "custom"
        switches = ["S"]
        hosts = ["h[1-3]"]
        links = [{ between = ["h[1-3]", "S"] }]
        workload = "permutation"
        scheme = "dcqcn"
        [dcqcn]
        kmin = "10kB"
    "#;
    let folder = Folder::new();
    let flows = |bytes: &str| {
        let text = format!("start_ns,from,to,bytes\n0,0,2,{bytes}\n0,1,2,{bytes}\n");
        folder.write("flows.csv", &text);
    };
    folder.write("star.toml", network);
    let workload = folder.text("flows.csv");
    let sweep = format!(
        "scenario = \"star.toml\"\n[sweep]\nscheme = [\"none\", \"dcqcn\"]\n\
         workload = [\"file:{workload}\"]"
    );
    folder.write("f.toml", &sweep);
    flows("100000");
    for resumed in [0, 2] {
        let output = folder.sweep("a", &["-j"]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&summary["runs"], &summary["resumed"]),
            (&2.into(), &resumed.into())
        );
    }
    flows("200000");
    let output = folder.sweep("a", &[]);
    assert!(stderr(&output).contains("before a file that its runs read was changed"));
    fs::remove_file(folder.path("star.toml")).unwrap();
    let output = folder.merge(&["a"], "m", &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

#[test]
fn a_designed_response_is_part_of_the_sweep() {
    let folder = Folder::new();
    let table = |decrease: &str| {
        let design = Design::new(decrease, "1/64".parse().unwrap()).unwrap();
        folder.write("table.toml", &Table::of(&design).0.to_toml());
    };
    table("r/2");
    let responses = format!(
        "rmin = \"1/64\"\n[sweep]\nresponse = [\"lipd\", \"table:{}\"]",
        folder.text("table.toml")
    );
    let sweep = SWEEP.split("[sweep]").next().unwrap().to_owned() + &responses;
    folder.write("f.toml", &sweep);
    let output = folder.sweep("a", &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(code(&folder.sweep("a", &[])), 0);
    // The file's name is the same, its contents are not.
    table("r/(1+r)");
    let output = folder.sweep("a", &[]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("before a file that its runs read was changed"));
    // Merging needs no table.
    fs::remove_file(folder.path("table.toml")).unwrap();
    let output = folder.merge(&["a"], "m", &[]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}

/// A file, and part of the error.
const BAD_FILES: &[(&str, &str)] = &[
    (
        "[sweep]\nbufer = [2]",
        "[sweep] unknown key `bufer`: did you mean `buffer`?",
    ),
    ("[sweep]\nbufer = 2", "did you mean `buffer`?"),
    (
        "[set]\nmarkin = \"none\"",
        "[set] unknown key `markin`: did you mean `mark",
    ),
    (
        "[sweeps]\nbuffer = [2]",
        "unknown key `sweeps`: did you mean `sweep`?",
    ),
    ("[sweep]\nbuffer = 2", "buffer = 2: must be a list such as"),
    ("[sweep]\nbuffer = []", "buffer: the list is empty"),
    ("[sweep]\nbuffer = \"4..=2\"", "the range is empty"),
    ("[sweep]\nbuffer = \"2..2\"", "the range is empty"),
    ("[sweep]\nbuffer = \"2-4\"", "a range such as"),
    (
        "[sweep]\nbuffer = { from = 1, to = 4, stop = 2 }",
        "did you mean `step`?",
    ),
    (
        "[sweep]\nbuffer = { from = 1, to = 4, step = 0 }",
        "the range is empty",
    ),
    (
        "[sweep]\nbuffer = [0, 2]",
        "buffer = 0: must be between 1 and 1000000 packets (with buffer=0)",
    ),
    (
        "[sweep]\nbuffer = \"0..=9223372036854775807\"",
        "more than 1000000 values",
    ),
    (
        "[sweep]\nbuffer = \"1..=2000\"\nthreshold = \"1..=2000\"",
        "more than 1000000 runs",
    ),
    ("[sweep]\nbuffer = [2.5]", "must be a whole number"),
    (
        "[sweep]\nrmin = [\"1/64\", \"2/128\"]",
        "rmin: 1/64 is given twice",
    ),
    ("[sweep]\nmarking = [\"naiv\"]", "did you mean `naive`?"),
    (
        "[set]\nbuffer = 2\n[sweep]\nbuffer = [2]",
        "`buffer` is both in [set] and in [sweep]",
    ),
    (
        "[sweep]\nresponse = [\"lipd\", \"table:/no/file\"]",
        "(with response=table:/no/file)",
    ),
    ("seeds = [1, 1]", "seeds: 1 is given twice"),
    ("seeds = [-1]", "seeds: -1 is not a whole number"),
    ("seeds = 3", "seeds = 3: must be a list such as"),
    ("windows = [\"99ms..101ms\"]", "the run ends at 100 ms"),
    (
        "windows = \"1ms..2ms\"",
        "must be a list such as [\"42ms..59ms\"]",
    ),
    ("windows = [\"2ms..1ms\"]", "FROM must be before TO"),
    ("scenario = \"hpp\"", "did you mean `hp`?"),
    ("scenario = \"fat-tre\"", "did you mean `fat-tree`?"),
    (
        "scenario = \"fat-tree\"\nwindows = [\"2ms..1ms\"]",
        "FROM must be before TO",
    ),
    (
        "scenario = \"fat-tree\"\n[sweep]\nscheme = [\"none\", \"dcqn\"]",
        "scheme = dcqn: unknown value `dcqn`: did you mean `dcqcn`?",
    ),
    (
        "scenario = \"fat-tree\"\n[sweep]\nsenders = [20, 128]",
        "senders = 128: must be between 1 and 127 with hosts=128 (with senders=128)",
    ),
    (
        "scenario = \"fat-tree\"\n[sweep]\ndcqn.kmin = [\"1kB\"]",
        "[sweep] unknown key `dcqn.kmin`: did you mean `dcqcn.kmin`?",
    ),
    (
        "scenario = \"fat-tree\"\n[sweep]\nscheme = [\"none\", \"dcqcn\"]\ndcqcn.kmin = [\"1kB\"]",
        "scheme=none (with dcqcn.kmin=1kB scheme=none)",
    ),
    (
        "scenario = \"fat-tree\"\n[set]\ndcqcn.kmin = \"1kB\"",
        "`dcqcn.kmin` does not apply to any of these runs",
    ),
    (
        "scenario = \"fat-tree\"\n[set]\nworkload = \"file:/no\"",
        "workload = file:/no: No such file",
    ),
    ("scenario = 3", "must be a name or a file"),
    ("set = 3", "must be a table [set]"),
    ("seeds = [1\n\n[sweep", "line "),
];

#[test]
fn bad_input_is_one_line_and_writes_nothing() {
    let folder = Folder::new();
    for (text, expected) in BAD_FILES {
        folder.write("f.toml", text);
        let output = folder.sweep("out", &[]);
        let error = stderr(&output);
        assert_eq!(code(&output), 2, "{text}: {error}");
        assert!(error.contains(expected), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{text}: {error}");
        assert!(!folder.path("out").exists(), "{text}");
    }
    folder.write("f.toml", SWEEP);
    for shard in ["0/2", "3/2", "1", "a/b", "1/0"] {
        let output = folder.sweep("out", &["--shard", shard]);
        assert_eq!(code(&output), 2, "{shard}");
        assert!(!folder.path("out").exists());
    }
    assert_eq!(code(&folder.sweep("f.toml", &[])), 2);
    let output = folder.merge(&["nowhere"], "m", &[]);
    assert_eq!((code(&output), stderr(&output).lines().count()), (2, 1));
}

#[test]
fn a_failed_run_is_a_record() {
    let folder = Folder::new();
    folder.sweep("a", &[]);
    let file = folder.path("a/runs.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    let first = text.lines().next().unwrap();
    let record: Value = serde_json::from_str(first).unwrap();
    let failed = serde_json::json!({
        "run": record["run"], "swept": record["swept"], "scenario": "hp", "seed": record["seed"],
        "parameters": record["parameters"], "error": "at 5 ps in switch `A`: something, broken",
    });
    fs::write(&file, text.replacen(first, &failed.to_string(), 1)).unwrap();
    // It is not run again: it would fail again.
    let output = folder.sweep("a", &[]);
    assert_eq!(code(&output), 1);
    let error = stderr(&output);
    assert!(error.contains("1 of 32 runs failed, the first: buffer="));
    assert!(error.ends_with(": at 5 ps in switch `A`: something, broken\n"));

    let output = folder.merge(&["a"], "m", &[]);
    assert_eq!(code(&output), 0);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("32 runs (1 of them failed)"), "{printed}");
    let csv = fs::read_to_string(folder.path("m/runs.csv")).unwrap();
    assert!(csv.contains(",\"at 5 ps in switch `A`: something, broken\"\n"));
    assert!(folder.path("m/runs.svg").exists());
}

#[test]
fn only_one_sweep_writes_a_file() {
    let folder = Folder::new();
    folder.sweep("a", &["--shard", "1/32"]);
    let path = folder.path("a/runs-1-of-32.jsonl");
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    file.lock().unwrap();
    let output = folder.sweep("a", &["--shard", "1/32"]);
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("a sweep is writing it just now"));
    // Of another's file, complete lines are read and nothing is truncated.
    file.write_all(b"{\"run").unwrap();
    assert_eq!(code(&folder.sweep("a", &["--shard", "2/32"])), 0);
    let text = fs::read_to_string(folder.path("a/runs-1-of-32.jsonl")).unwrap();
    assert!(text.ends_with("{\"run"));
}
