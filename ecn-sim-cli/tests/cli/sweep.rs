//! `sweep` and `merge` by the program: killed, divided into shards, merged, and given invalid input.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use ecn_sim::design::{Design, Table};
use serde_json::Value;

use super::{Folder, Ran, cases, sim};

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

/// A folder with a sweep file.
fn folder_of(sweep: &str) -> Folder {
    let folder = Folder::new();
    folder.write("f.toml", sweep);
    folder
}

impl Folder {
    /// Runs the sweep of `f.toml`; `words`: its folder, and options.
    fn sweep(&self, words: &str) -> Ran {
        self.sim(&format!("sweep f.toml --out {words}"))
    }

    /// The records of a file.
    fn records(&self, file: &str) -> Vec<String> {
        let lines = self.read(file);
        lines.lines().map(|line| record(line).to_string()).collect()
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

fn sorted(mut records: Vec<String>) -> Vec<String> {
    records.sort();
    records
}

#[test]
fn a_killed_sweep_resumes_to_the_same_records() {
    killed(SWEEP, 32);
}

#[test]
fn a_killed_sweep_of_data_centres_resumes() {
    killed(FABRIC, 8);
}

fn killed(sweep: &str, runs: usize) {
    let folder = folder_of(sweep);
    folder.sweep("whole").done();
    let whole = sorted(folder.records("whole/runs.jsonl"));
    assert_eq!(whole.len(), runs);
    let text = folder.read("whole/runs.jsonl");

    // Killed once some records are written, at any point.
    let file = folder.path("killed/runs.jsonl");
    for least in [1_000, 4_000, 20_000] {
        let mut child = folder
            .command("sweep f.toml --threads 2 --out killed")
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
    folder.sweep("killed").done();
    assert_eq!(sorted(folder.records("killed/runs.jsonl")), whole);

    // Cut off anywhere in a line, at its end, and before the first one's.
    let manifest = folder.read("whole/sweep.json");
    for cut in [0, 7, text.len() / 3, text.len() / 2, text.len() - 1] {
        let out = format!("cut{cut}");
        fs::create_dir(folder.path(&out)).unwrap();
        folder.write(&format!("{out}/sweep.json"), &manifest);
        let file = format!("{out}/runs.jsonl");
        folder.write(&file, &text[..cut]);
        let summary = folder.sweep(&format!("{out} -j")).json();
        let there = text[..cut].matches('\n').count();
        assert_eq!(summary["resumed"], there);
        assert_eq!(sorted(folder.records(&file)), whole, "{cut}");
    }
}

/// The lines of the table of a sweep in whole and in three shards, merged in different ways.
fn sharded(folder: &Folder) -> Vec<String> {
    folder.sweep("whole");
    let whole = folder.records("whole/runs.jsonl");
    let mut all = Vec::new();
    for shard in 1..=3 {
        folder.sweep(&format!("s{shard} --shard {shard}/3")).done();
        all.extend(folder.records(&format!("s{shard}/runs-{shard}-of-3.jsonl")));
    }
    assert_eq!(sorted(all), sorted(whole.clone()));

    for from_and_out in [
        "s3 s1 s2 --out m",
        "whole --out w",
        "whole s1 s2 s3 --out a",
    ] {
        folder.sim(&format!("merge {from_and_out}")).done();
    }
    let merged = folder.records("m/runs.jsonl");
    assert_eq!(merged, folder.records("w/runs.jsonl"));
    assert_eq!(sorted(merged), sorted(whole));
    let csv = folder.read("m/runs.csv");
    assert_eq!(csv, folder.read("w/runs.csv"));
    assert_eq!(csv, folder.read("a/runs.csv"));
    assert!(folder.path("m/runs.svg").exists());

    // Merged records can be merged again, into a file this time; all in one folder works, too.
    folder.sim("merge m s2 --out all.jsonl").done();
    assert_eq!(folder.read("all.csv"), csv);
    folder.sweep("shared --shard 1/2");
    folder.sweep("shared --shard 2/2");
    folder.sim("merge shared --out shared").done();
    assert_eq!(folder.read("shared/runs.csv"), csv);
    csv.lines().map(str::to_owned).collect()
}

#[test]
fn shards_are_disjoint_and_merge_to_the_whole() {
    let table = sharded(&folder_of(SWEEP));
    assert_eq!(table.len(), 33);
    assert!(table[0].starts_with("run,buffer,rmin,seed,from_ms,to_ms,"));
    assert!(table[1].contains(",2,0.015625,1,2,4,"), "{}", table[1]);
}

#[test]
fn data_centres_are_swept_like_others() {
    let folder = folder_of(FABRIC);
    let table = sharded(&folder);
    assert_eq!(table.len(), 9);
    let keys = "run,load,scheme,seed,data_packet_hops,data_packets,dropped_packets,events,\
                fct_slowdown_p50,fct_slowdown_p95,fct_slowdown_p99,flows_finished,flows_started,\
                goodput_bytes_per_s,head_of_line_victims,jain,last_flow_end_ms,marked_packets,packet_hops,pause_frames,\
                undetermined_packets,error";
    assert_eq!(table[0], keys);
    // A run of a sweep equals that of `run`; settings that do not apply have their default.
    let lines = folder.read("m/runs.jsonl");
    let mut parameters = Vec::new();
    for (line, load, scheme, more) in [
        (0, "1/4", "none", "--seed 1"),
        (7, "1/2", "dcqcn", "--seed 2 --set dcqcn.kmin=20kB"),
    ] {
        let mut swept = record(lines.lines().nth(line).unwrap());
        let object = swept.as_object_mut().unwrap();
        object.remove("run");
        let expected = serde_json::json!({"load": load, "scheme": scheme});
        assert_eq!(object.remove("swept").unwrap(), expected);
        let words = format!(
            "run fat-tree -j --set hosts=16 --set workload=poisson --set duration=100us \
             --set load={load} --set scheme={scheme} {more}"
        );
        assert_eq!(swept, record(&sim(&words).done()));
        parameters.push(swept["parameters"].clone());
    }
    assert_eq!(parameters[0]["dcqcn"], Value::Null);
    assert_eq!(parameters[1]["dcqcn"]["kmin"], "20kB");
}

/// Windows count as with `--window`, a row each, and means over seeds have their intervals.
#[test]
fn windows_of_data_centres_are_rows() {
    let windows = "windows = [\"0us..50us\", \"50us..5s\"]\nscenario";
    let sweep = FABRIC.replace("scenario", windows);
    let folder = folder_of(&sweep);
    let table = sharded(&folder);
    assert_eq!(table.len(), 17);
    let columns: Vec<&str> = table[0].split(',').collect();
    assert!(table[0].starts_with("run,load,scheme,seed,from_ms,to_ms,"));
    let cell = |line: usize, name: &str| {
        let at = columns.iter().position(|column| *column == name).unwrap();
        table[line].split(',').nth(at).unwrap()
    };
    assert_eq!(cell(1, "to_ms"), "0.05");
    let words = "run fat-tree --set hosts=16 --set workload=poisson --set duration=100us --set load=1/4 \
                 --window 0us..50us --window 50us..5s -j";
    let run = sim(words).json();
    for (line, window) in [(1, 0), (2, 1)] {
        let own = &run["windows"][window];
        let goodput = own["goodput_bytes_per_s"].to_string();
        assert_eq!(cell(line, "window_goodput_bytes_per_s"), goodput);
        assert_eq!(cell(line, "flows"), own["flows"].to_string());
        // Those of the whole run are in both.
        let all = run["goodput_bytes_per_s"].to_string();
        assert_eq!(cell(line, "goodput_bytes_per_s"), all);
    }
    let both = folder.read("m/runs.svg");
    assert!(both.contains("mean over the seeds and its 95 % interval"));
    // Four points in each of three panels, with an error bar of three strokes each, of their own width.
    let one = folder_of(&sweep.replace("seeds = [1, 2]", "seeds = [1]"));
    sharded(&one);
    let one = one.read("m/runs.svg");
    let strokes = |svg: &str| svg.matches(r#"stroke-width="1.2""#).count();
    assert_eq!([strokes(&both), strokes(&one)], [36, 0]);
    assert!(one.contains("slowdown, of one seed"));
}

#[test]
fn missing_runs_are_named() {
    let folder = folder_of(SWEEP);
    folder.sweep("s1 --shard 1/2");
    let ran = folder.sim("merge s1 --out m");
    ran.failed(1, "16 of 32 runs are missing (shard 2/2 lacks 16)");
    ran.failed(1, "buffer=2 rmin=1/64 seed=2;");
    ran.failed(1, "; and 6 more");
    assert!(!folder.path("m").exists());

    let summary = folder.sim("merge s1 --out m --partial -j").json();
    assert_eq!(summary["missing"].as_array().unwrap().len(), 16);
    assert_eq!(folder.records("m/runs.jsonl").len(), 16);
}

#[test]
fn duplicates_that_differ_are_refused() {
    let folder = folder_of(SWEEP);
    folder.sweep("a");
    folder.sweep("b");
    folder.sim("merge a b --out same").done();

    let text = folder.read("b/runs.jsonl");
    let record: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let events = format!("\"events\":{}", record["events"]);
    folder.write("b/runs.jsonl", &text.replacen(&events, "\"events\":1", 1));
    let ran = folder.sim("merge a b --out m");
    let swept = &record["swept"];
    let rmin = swept["rmin"].as_str().unwrap();
    let named = format!(
        "records of the same run differ: buffer={} rmin={rmin} seed={}\n",
        swept["buffer"], record["seed"]
    );
    assert_eq!(ran.code, 1);
    assert!(ran.error.ends_with(&named), "{}", ran.error);
    assert!(!folder.path("m").exists());
}

#[test]
fn a_folder_of_another_sweep_is_refused() {
    let folder = folder_of(SWEEP);
    folder.sweep("a");
    let before = folder.read("a/runs.jsonl");
    // The same sweep, written differently, is continued.
    let other_words = SWEEP
        .replace("\"2..=5\"", "{ from = 2, to = 5 }")
        .replace("\"1/64\"", "\"2/128\"");
    folder.write("f.toml", &other_words);
    assert_eq!(folder.sweep("a -j").json()["resumed"], 32);

    folder.write("f.toml", &SWEEP.replace("2..=5", "2..=6"));
    let needed = "holds a different sweep, of 32 runs (this one has 40)";
    folder.sweep("a").refused(needed);
    folder.sweep("b --shard 1/8");
    let needed = " b: holds a different sweep";
    folder.sim("merge a b --out m").refused(needed);

    // Records of an unknown sweep.
    fs::remove_file(folder.path("a/sweep.json")).unwrap();
    folder.sweep("a").refused("there is no sweep.json");
    assert_eq!(folder.read("a/runs.jsonl"), before);

    // A damaged line that is not the last.
    folder.write("b/runs.jsonl", "{}\n{}\n");
    folder.sweep("b").failed(1, "line 1: ");
}

#[test]
fn a_scenario_file_stands_beside_the_sweep() {
    let folder = folder_of("scenario = \"net/star.toml\"\n[sweep]\nbuffer = [2, 4]");
    fs::create_dir(folder.path("net")).unwrap();
    let network = r#"
        duration = "1ms"
        switches = ["S"]
        hosts = ["h[1-3]"]
        links = [{ between = ["h[1-3]", "S"], rate = "8gbit" }]
        flows = [{ class = "in, cast", from = "h[1-2]", to = "h3" }]
    "#;
    folder.write("net/star.toml", network);
    folder.sweep("a").done();
    // The file is not needed to merge, but decides whether it is the same sweep.
    folder.write("net/star.toml", &network.replace("8gbit", "4gbit"));
    assert_eq!(folder.sweep("a").code, 2);
    fs::remove_file(folder.path("net/star.toml")).unwrap();
    folder.sim("merge a --out m").done();
    let csv = folder.read("m/runs.csv");
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
    let folder = folder_of(
        "scenario = \"star.toml\"\n[sweep]\nscheme = [\"none\", \"dcqcn\"]\n\
         workload = [\"file:flows.csv\"]",
    );
    let flows = |bytes: &str| {
        let text = format!("start_ns,from,to,bytes\n0,0,2,{bytes}\n0,1,2,{bytes}\n");
        folder.write("flows.csv", &text);
    };
    folder.write("star.toml", network);
    flows("100000");
    for resumed in [0, 2] {
        let summary = folder.sweep("a -j").json();
        assert_eq!(summary["runs"], 2);
        assert_eq!(summary["resumed"], resumed);
    }
    flows("200000");
    folder.sweep("a").refused(CHANGED_FILE);
    fs::remove_file(folder.path("star.toml")).unwrap();
    folder.sim("merge a --out m").done();
}

const CHANGED_FILE: &str = "before a file that its runs read was changed";

#[test]
fn a_designed_response_is_part_of_the_sweep() {
    let sweep = SWEEP.split("[sweep]").next().unwrap().to_owned();
    let responses = "rmin = \"1/64\"\n[sweep]\nresponse = [\"lipd\", \"table:table.toml\"]";
    let folder = folder_of(&(sweep + responses));
    let table = |decrease: &str| {
        let design = Design::new(decrease, "1/64".parse().unwrap()).unwrap();
        folder.write("table.toml", &Table::of(&design).0.to_toml());
    };
    table("r/2");
    folder.sweep("a").done();
    folder.sweep("a").done();
    // The file's name is the same, its contents are not.
    table("r/(1+r)");
    folder.sweep("a").refused(CHANGED_FILE);
    // Merging needs no table.
    fs::remove_file(folder.path("table.toml")).unwrap();
    folder.sim("merge a --out m").done();
}

/// Sweep files, and part of the error.
const BAD_FILES: &str = r#"
[sweep]\nbufer = [2] => [sweep] unknown key `bufer`: did you mean `buffer`?
[sweep]\nbufer = 2 => did you mean `buffer`?
[set]\nmarkin = "none" => [set] unknown key `markin`: did you mean `mark
[sweeps]\nbuffer = [2] => unknown key `sweeps`: did you mean `sweep`?
[sweep]\nbuffer = 2 => buffer = 2: must be a list such as
[sweep]\nbuffer = [] => buffer: the list is empty
[sweep]\nbuffer = "4..=2" => the range is empty
[sweep]\nbuffer = "2..2" => the range is empty
[sweep]\nbuffer = "2-4" => a range such as
[sweep]\nbuffer = { from = 1, to = 4, stop = 2 } => did you mean `step`?
[sweep]\nbuffer = { from = 1, to = 4, step = 0 } => the range is empty
[sweep]\nbuffer = [0, 2] => buffer = 0: must be between 1 and 1000000 packets (with buffer=0)
[sweep]\nbuffer = "0..=9223372036854775807" => more than 1000000 values
[sweep]\nbuffer = "1..=2000"\nthreshold = "1..=2000" => more than 1000000 runs
[sweep]\nbuffer = [2.5] => must be a whole number
[sweep]\nrmin = ["1/64", "2/128"] => rmin: 1/64 is given twice
[sweep]\nmarking = ["naiv"] => did you mean `naive`?
[set]\nbuffer = 2\n[sweep]\nbuffer = [2] => `buffer` is both in [set] and in [sweep]
[sweep]\nresponse = ["lipd", "table:/no/file"] => (with response=table:/no/file)
seeds = [1, 1] => seeds: 1 is given twice
seeds = [-1] => seeds: -1 is not a whole number
seeds = 3 => seeds = 3: must be a list such as
windows = ["99ms..101ms"] => the run ends at 100 ms
windows = "1ms..2ms" => must be a list such as ["42ms..59ms"]
windows = ["2ms..1ms"] => FROM must be before TO
scenario = "hpp" => did you mean `hp`?
scenario = "fat-tre" => did you mean `fat-tree`?
scenario = "fat-tree"\nwindows = ["2ms..1ms"] => FROM must be before TO
scenario = "fat-tree"\n[sweep]\nscheme = ["none", "dqcn"] => scheme = dqcn: unknown value `dqcn`: did you mean `dcqcn`?
scenario = "fat-tree"\n[sweep]\nsenders = [20, 128] => senders = 128: must be between 1 and 127 with hosts=128 (with senders=128)
scenario = "fat-tree"\n[sweep]\ndcqn.kmin = ["1kB"] => [sweep] unknown key `dcqn.kmin`: did you mean `dcqcn.kmin`?
scenario = "fat-tree"\n[sweep]\nscheme = ["none", "dcqcn"]\ndcqcn.kmin = ["1kB"] => scheme=none (with dcqcn.kmin=1kB scheme=none)
scenario = "fat-tree"\n[set]\ndcqcn.kmin = "1kB" => `dcqcn.kmin` does not apply to any of these runs
scenario = "fat-tree"\n[set]\nworkload = "file:/no" => workload = file:/no: No such file
scenario = 3 => must be a name or a file
set = 3 => must be a table [set]
seeds = [1\n\n[sweep => line 
"#;

#[test]
fn bad_input_is_one_line_and_writes_nothing() {
    let folder = Folder::new();
    for (text, expected) in cases(BAD_FILES) {
        folder.write("f.toml", &text);
        folder.sweep("out").refused(expected);
        assert!(!folder.path("out").exists(), "{text}");
    }
    folder.write("f.toml", SWEEP);
    for shard in ["0/2", "3/2", "1", "a/b", "1/0"] {
        assert_eq!(folder.sweep(&format!("out --shard {shard}")).code, 2);
        assert!(!folder.path("out").exists(), "{shard}");
    }
    assert_eq!(folder.sweep("f.toml").code, 2);
    folder.sim("merge nowhere --out m").refused("nowhere");
}

#[test]
fn a_failed_run_is_a_record() {
    let folder = folder_of(SWEEP);
    folder.sweep("a");
    let text = folder.read("a/runs.jsonl");
    let first = text.lines().next().unwrap();
    let record: Value = serde_json::from_str(first).unwrap();
    let failed = serde_json::json!({
        "run": record["run"], "swept": record["swept"], "scenario": "hp", "seed": record["seed"],
        "parameters": record["parameters"], "error": "at 5 ps in switch `A`: something, broken",
    });
    let failed = text.replacen(first, &failed.to_string(), 1);
    folder.write("a/runs.jsonl", &failed);
    // It is not run again: it would fail again.
    let ran = folder.sweep("a");
    ran.failed(1, "1 of 32 runs failed, the first: buffer=");
    let end = ": at 5 ps in switch `A`: something, broken\n";
    assert!(ran.error.ends_with(end), "{}", ran.error);

    let printed = folder.sim("merge a --out m").done();
    assert!(printed.contains("32 runs (1 of them failed)"), "{printed}");
    let csv = folder.read("m/runs.csv");
    assert!(csv.contains(",\"at 5 ps in switch `A`: something, broken\"\n"));
    assert!(folder.path("m/runs.svg").exists());
}

#[test]
fn only_one_sweep_writes_a_file() {
    let folder = folder_of(SWEEP);
    folder.sweep("a --shard 1/32");
    let path = folder.path("a/runs-1-of-32.jsonl");
    let mut file = fs::OpenOptions::new().append(true).open(path).unwrap();
    file.lock().unwrap();
    let needed = "a sweep is writing it just now";
    folder.sweep("a --shard 1/32").refused(needed);
    // Of another's file, complete lines are read and nothing is truncated.
    file.write_all(b"{\"run").unwrap();
    folder.sweep("a --shard 2/32").done();
    assert!(folder.read("a/runs-1-of-32.jsonl").ends_with("{\"run"));
}
