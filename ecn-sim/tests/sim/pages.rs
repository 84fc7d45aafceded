//! Pages of `docs` that are generated from the code.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use ecn_sim::{keys, records};

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(name)
}

/// Compares a page, from this line on, with its expected text; with `INSTA_UPDATE=always`, as for golden results, writes it.
fn compare(name: &str, from: &str, expected: &str) {
    let text = fs::read_to_string(docs(name)).unwrap();
    let (head, found) = text.split_once(from).expect(from);
    if std::env::var_os("INSTA_UPDATE").is_some_and(|how| how == "always") {
        fs::write(docs(name), format!("{head}{from}{expected}")).unwrap();
        return;
    }
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(
            found, expected,
            "{name} differs from the code: see the comment at its top"
        );
    }
    assert_eq!(found.len(), expected.len(), "{name}: the end");
}

#[test]
fn parameters_are_those_of_the_code() {
    compare("parameters.md", "", &keys::page());
}

#[test]
fn columns_are_those_of_the_code() {
    let from = "cargo test -p ecn-sim pages -->\n";
    compare("results.md", from, &records::page());
}

/// Every documented key has a meaning and a range.
#[test]
fn every_key_is_documented() {
    let all = keys::all();
    assert!(all.len() > 150, "{}", all.len());
    for key in &all {
        assert!(
            key.about.len() > 3 && key.about.ends_with(['.', '!']),
            "{key:?}"
        );
        assert!(!key.values.is_empty(), "{key:?}");
        let explained = |choice: &keys::Choice| choice.about.is_some() || choice.value == "auto";
        let several =
            key.values.len() > 1 && !key.values.iter().any(|choice| choice.value == "auto");
        assert!(!several || key.values.iter().all(explained), "{key:?}");
    }
}
