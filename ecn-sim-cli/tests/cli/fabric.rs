//! Data centres: runs that are stopped, and memory.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use super::Folder;

/// `--out`: flows and series are streamed, and stay if the run is stopped.
#[test]
fn a_stopped_run_leaves_what_it_has() {
    let folder = Folder::new();
    let run = |out: &str, threads: &str| {
        folder.command(&format!(
            "run fat-tree --set hosts=32 --set workload=poisson --set load=3/5 --set duration=5ms \
             --set scheme=dcqcn --threads {threads} --out {out}"
        ))
    };
    let output = run("whole", "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        folder.files("whole"),
        "flows.csv flows.parquet queues.svg rates.svg run.json series.csv series.parquet"
    );
    let whole = folder.read("whole/flows.csv");
    let output = run("parts", "2").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    for file in ["flows.csv", "series.csv"] {
        let (one, two) = (format!("whole/{file}"), format!("parts/{file}"));
        assert!(folder.read(&one) == folder.read(&two), "{file}");
    }
    let whole: Vec<&str> = whole.lines().collect();
    for (signal, threads) in [("-INT", "1"), ("-TERM", "3")] {
        let mut child = run(threads, threads)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let flows = format!("{threads}/flows.csv.part");
        let lines =
            || fs::read_to_string(folder.path(&flows)).map_or(0, |text| text.lines().count());
        while lines() < 2 {
            assert_eq!(child.try_wait().unwrap(), None);
            thread::sleep(Duration::from_millis(1));
        }
        // The shell's own: a minimal machine has no other.
        let kill = format!("kill {signal} {}", child.id());
        let killed = Command::new("sh").args(["-c", &kill]).status();
        assert!(killed.unwrap().success());
        let output = child.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(130), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.contains(" ns of simulated time; results up to then are in "));
        assert!(
            error.contains(&flows) && error.contains("series.csv.part"),
            "{error}"
        );
        let flows = folder.read(&flows);
        assert!(flows.lines().count() < whole.len());
        for line in flows.lines() {
            assert!(whole.contains(&line), "{line}");
        }
        let series = folder.read(&format!("{threads}/series.csv.part"));
        let columns = |line: &str| line.split(',').count();
        assert!(
            series.starts_with("time_ms,of,name,delivered_bytes,") && series.lines().count() > 10
        );
        let header = series.lines().next().map(columns);
        assert!(series.lines().all(|line| Some(columns(line)) == header));
        assert!(!folder.path(&format!("{threads}/flows.csv")).exists());
    }
    // An output that cannot be written stops it, too.
    fs::create_dir_all(folder.path("full/flows.csv.part")).unwrap();
    let output = run("full", "1").output().unwrap();
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
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["flows_finished"], 1024);
}
