//! Data centres: runs that are stopped, and memory.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// `--out`: flows and series are streamed, and stay if the run is stopped.
#[test]
fn a_stopped_run_leaves_what_it_has() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |out: &str, threads: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ecn-sim"));
        let words = "run fat-tree --set hosts=32 --set workload=poisson --set load=3/5 --set duration=40ms \
                     --set scheme=dcqcn --threads";
        command
            .args(words.split_whitespace())
            .args([threads, "--out"]);
        command.arg(folder.path().join(out));
        command
    };
    let text = |name: &str| fs::read_to_string(folder.path().join(name));
    let output = run("whole", "2").output().expect("a run");
    assert!(output.status.success(), "{output:?}");
    let mut files: Vec<_> = fs::read_dir(folder.path().join("whole"))
        .expect("a folder")
        .map(|file| file.expect("a file").file_name())
        .collect();
    files.sort();
    let expected = [
        "flows.csv",
        "flows.parquet",
        "queues.svg",
        "rates.svg",
        "run.json",
        "series.csv",
        "series.parquet",
    ];
    assert_eq!(files, expected);
    let whole = text("whole/flows.csv").expect("flows");
    let whole: Vec<&str> = whole.lines().collect();
    for (signal, threads) in [("-INT", "1"), ("-TERM", "3")] {
        let mut child = run(threads, threads)
            .stderr(Stdio::piped())
            .spawn()
            .expect("a run");
        let flows = format!("{threads}/flows.csv.part");
        while text(&flows).map_or(0, |text| text.lines().count()) < 2 {
            assert_eq!(child.try_wait().expect("a child"), None);
            thread::sleep(Duration::from_millis(1));
        }
        // The shell's own: a minimal machine has no other.
        let killed = Command::new("sh")
            .args(["-c", &format!("kill {signal} {}", child.id())])
            .status();
        assert!(killed.expect("a shell").success());
        let output = child.wait_with_output().expect("it ends");
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(" ns of simulated time; results up to then are in "));
        assert!(
            error.contains(&flows) && error.contains("series.csv.part"),
            "{error}"
        );
        let flows = text(&flows).expect("flows");
        assert!(flows.lines().count() < whole.len());
        for line in flows.lines() {
            assert!(whole.contains(&line), "{line}");
        }
        let series = text(&format!("{threads}/series.csv.part")).expect("series");
        let columns = |line: &str| line.split(',').count();
        assert!(
            series.starts_with("time_ms,of,name,delivered_bytes,") && series.lines().count() > 10
        );
        let header = series.lines().next().map(columns);
        assert!(series.lines().all(|line| Some(columns(line)) == header));
        assert!(text(&format!("{threads}/flows.csv")).is_err());
    }
    // An output that cannot be written stops it, too.
    fs::create_dir_all(folder.path().join("full/flows.csv.part")).expect("a folder");
    let output = run("full", "1").output().expect("a run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(
        error.contains("cannot write ") && error.contains("flows.csv.part: "),
        "{error}"
    );
}

/// 1,024 hosts, 625 kB each, in an address space of 200 MiB.
#[test]
fn a_large_fabric_needs_little_memory() {
    let limit = "ulimit -v 204800 && exec \"$0\" \"$@\"";
    let words = "run fat-tree --set hosts=1024 --set workload=permutation --set flow_size=625kB -j";
    let output = Command::new("sh")
        .args(["-c", limit, env!("CARGO_BIN_EXE_ecn-sim")])
        .args(words.split(' '))
        .output()
        .expect("sh runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["flows_finished"], 1024);
}
