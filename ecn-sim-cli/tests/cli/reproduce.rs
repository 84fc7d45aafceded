//! `reproduce` as a command: which statements, files and errors.

use super::Folder;

#[test]
fn a_named_figure_includes_only_its_statements() {
    let folder = Folder::new();
    let ran = folder.sim("reproduce slide14 --out new/folder -j");
    assert_eq!(ran.error, "");
    let report = ran.json();
    let statements = report["statements"].as_array().unwrap().iter();
    let ids: Vec<&str> = statements.filter_map(|one| one["id"].as_str()).collect();
    assert_eq!(ids, ["R1", "R2", "R3", "R7", "R8", "R9"]);
    let expected = "report.json report.md slide14.csv slide14.svg";
    assert_eq!(folder.files("new/folder"), expected);
}

#[test]
fn other_schemes_are_judged_alone() {
    let folder = Folder::new();
    let ran = folder.sim("reproduce schemes --seeds=2 --out . -j");
    assert_eq!(ran.error, "");
    assert_eq!(ran.json()["statements"][0]["id"], "B1");
    assert_eq!(folder.files("."), "report.json report.md");
}

#[test]
fn bad_usage_writes_nothing() {
    let folder = Folder::new();
    folder.write("file", "");
    for (words, reason) in [
        ("fig5 --out x", "unknown value `fig5`: did you mean `fig2`?"),
        ("scheme --out x", "did you mean `schemes`?"),
        ("--seeds=1 --out x", "2..=1000"),
        ("fig2 --out file/folder", "cannot write"),
    ] {
        let ran = folder.sim(&format!("reproduce {words}"));
        assert_eq!(ran.code, 2, "{}", ran.error);
        assert!(ran.error.contains(reason), "{words}: {}", ran.error);
    }
    assert_eq!(folder.files("."), "file");
}
