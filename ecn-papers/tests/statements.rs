//! The papers' statements, with shorter runs than theirs and fewer seeds.

use std::ffi::OsString;
use std::{fs, io};

use ecn_papers::statement::{Statement, Verdict};
use ecn_papers::{Figure, Lengths, Options, reproduce};

/// Statements whose failure is not a failure of the reproduction.
const OPEN: &[(&str, Verdict)] = &[
    ("P11", Verdict::DoesNotHold),
    ("P12", Verdict::SourcesDisagree),
    ("P13", Verdict::DoesNotHold),
    ("P21", Verdict::DoesNotHold),
    ("R4", Verdict::DoesNotHold),
    ("Q7", Verdict::Reported),
    ("T11", Verdict::DoesNotHold),
    ("I11", Verdict::Reported),
    ("I12", Verdict::Reported),
    ("D7", Verdict::Reported),
];

#[test]
fn every_hard_statement_holds() {
    let options = Options {
        parts: Vec::new(),
        seeds: 3,
        lengths: Lengths::QUICK,
    };
    let reproduction = reproduce(&options, &()).expect("a reproduction");
    let report = &reproduction.report;
    let ids: Vec<&str> = report.statements.iter().map(|s| s.id.as_str()).collect();
    let families = [
        ("P", 29),
        ("R", 9),
        ("B", 7),
        ("Q", 7),
        ("T", 11),
        ("I", 13),
        ("D", 8),
        ("M", 5),
    ];
    let expected = families
        .iter()
        .flat_map(|(family, count)| (1..=*count).map(move |n| format!("{family}{n}")));
    assert_eq!(ids, expected.collect::<Vec<_>>());
    let markdown = report.to_markdown();
    // What does not hold here is known, with the reason; only statements that are contested, from memory or of another
    // testbed have no verdict.
    let open = report.statements.iter().filter(|s| !s.hard);
    let open: Vec<(&str, Verdict)> = open.map(|s| (s.id.as_str(), s.verdict)).collect();
    assert_eq!(open, OPEN, "{markdown}");
    for (id, verdict) in OPEN {
        let of = |s: &&Statement| s.id == *id;
        let statement = report.statements.iter().find(of).expect("a statement");
        assert!(
            *verdict == Verdict::Reported || !statement.note.is_empty(),
            "{id}"
        );
    }
    assert!(report.failed().is_empty(), "{markdown}");
    for statement in &report.statements {
        assert!(!statement.measured.is_empty(), "{}", statement.id);
        for measured in &statement.measured {
            assert!(measured.mean.is_some(), "{}: {measured:?}", statement.id);
        }
        assert!(markdown.contains(&format!("| {} | {} |", statement.id, statement.kind)));
    }
    let contested = report.statements.iter().find(|s| s.id == "P12");
    let contested = contested.expect("P12");
    assert_eq!(contested.verdict, Verdict::SourcesDisagree);
    assert!(
        contested.note.contains("T's statement holds"),
        "{}",
        contested.note
    );
    assert!(report.choices[0].choice == "default" && report.choices[0].t_holds);

    let folder = tempfile::tempdir().expect("a folder");
    let output = ecn_report::output::Output::new(folder.path()).expect("writable");
    reproduction.write(&output).expect("written");
    let mut expected: Vec<OsString> = Figure::NAMES
        .iter()
        .flat_map(|name| [format!("{name}.csv"), format!("{name}.svg")])
        .chain(["report.json", "report.md"].map(str::to_owned))
        .map(OsString::from)
        .collect();
    expected.sort();
    let written = fs::read_dir(folder.path()).expect("a folder");
    let name = |entry: io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
    let mut written: Vec<_> = written.map(name).collect();
    written.sort();
    assert_eq!(written, expected);
    for name in Figure::NAMES {
        let read = |end: &str| {
            fs::read_to_string(folder.path().join(format!("{name}.{end}"))).expect("a file")
        };
        let svg = read("svg");
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
            "{name}"
        );
        assert!(!svg.contains("NaN"), "{name}");
        let csv = read("csv");
        let mut rows = csv.lines().map(|row| row.split(','));
        let columns = rows.next().expect("a header").count();
        let mut count = 0;
        for row in rows {
            let cells: Vec<&str> = row.collect();
            assert_eq!(cells.len(), columns, "{name}: {cells:?}");
            assert!(
                cells.iter().all(|cell| !cell.is_empty()),
                "{name}: {cells:?}"
            );
            count += 1;
        }
        let rows = match *name {
            "fig2" | "fig3a" | "fig3b" | "fig3c" | "fig3d" => 981,
            "fig4a" | "fig4b" | "flows-root" | "flows-ratio" => 15,
            "slide15" => 8,
            _ => count,
        };
        assert_eq!(count, rows, "{name}");
    }
    let report = fs::read_to_string(folder.path().join("report.json")).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["statements"][0]["verdict"], "holds");
}
