//! `reproduce` as a command: which statements, files and errors.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Every file of a folder by name; none may be half-written.
fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into()
        })
        .collect();
    names.sort();
    names
}

fn sim(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ecn-sim"))
        .args(words)
        .output()
        .expect("ecn-sim runs")
}

#[test]
fn a_figure_by_name_brings_its_statements_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("new/folder");
    let path = out.to_str().expect("a path");
    let output = sim(&["reproduce", "slide14", "--out", path, "-j"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    let ids: Vec<&str> = report["statements"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|statement| statement["id"].as_str())
        .collect();
    assert_eq!(ids, ["R1", "R2", "R3", "R7", "R8", "R9"]);
    let expected = ["report.json", "report.md", "slide14.csv", "slide14.svg"];
    assert_eq!(files(&out), expected);
}

#[test]
fn other_schemes_are_judged_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let output = sim(&["reproduce", "schemes", "--seeds=2", "--out", path, "-j"]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{error}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!(report["statements"][0]["id"], "B1");
    assert_eq!(files(folder.path()), ["report.json", "report.md"]);
}

#[test]
fn bad_usage_writes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("a file");
    let below = file.join("folder");
    for (words, reason) in [
        (
            ["fig5", "--out", "x"],
            "unknown value `fig5`: did you mean `fig2`?",
        ),
        (["scheme", "--out", "x"], "did you mean `schemes`?"),
        (["--seeds=1", "--out", "x"], "2..=1000"),
        (
            ["fig2", "--out", below.to_str().expect("a path")],
            "cannot write",
        ),
    ] {
        let output = sim(&[&["reproduce"], &words[..]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(reason), "{words:?}: {error}");
    }
    assert_eq!(files(folder.path()), ["file"]);
    assert!(!Path::new("x").exists());
}
