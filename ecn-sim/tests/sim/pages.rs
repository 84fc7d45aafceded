//! Pages of `docs` that are generated from the code, and recipes on them that are run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Reports a skipped test past the harness; `cargo xtask test` counts the lines of the file `ECN_SKIPPED`.
fn skipped(name: &str, reason: &str) {
    let _ = writeln!(std::io::stdout(), "\nskipped {name}: {reason}");
    if let Some(list) = std::env::var_os("ECN_SKIPPED") {
        let mut list = File::options()
            .append(true)
            .create(true)
            .open(list)
            .unwrap();
        writeln!(list, "missing {name}: {reason}").unwrap();
    }
}

/// The command above the recipes, and each recipe of the page by the module that it imports.
fn recipes() -> (Vec<String>, BTreeMap<String, String>) {
    let text = fs::read_to_string(docs("results.md")).unwrap();
    // A command may continue on the next line.
    let text = text.replace("\\\n> ", "");
    let command = text
        .lines()
        .find(|line| line.starts_with("$ ecn sim compare"));
    let words = command.unwrap().split_whitespace().skip(3);
    let recipes = text.split("```python\n").skip(1).map(|rest| {
        let recipe = rest.split("```").next().unwrap().to_owned();
        let module = recipe.split_whitespace().nth(1).unwrap().to_owned();
        (module, recipe)
    });
    (words.map(str::to_owned).collect(), recipes.collect())
}

/// A column of a table, by its header.
fn column(csv: &str, name: &str) -> BTreeMap<String, f64> {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let at = lines
        .next()
        .unwrap()
        .iter()
        .position(|column| *column == name);
    let rows = lines.filter(|row| row.len() > 1);
    rows.map(|row| (row[0].to_owned(), row[at.unwrap()].parse().unwrap()))
        .collect()
}

/// Means and intervals of the recipe, compared with those of `compare` itself.
fn recipe_agrees_with_compare(name: &str, module: &str) {
    let python = std::env::var_os("ECN_PYTHON").unwrap_or_else(|| "python3".into());
    let import = Command::new(&python)
        .args(["-c", &format!("import {module}")])
        .output();
    if !import.is_ok_and(|import| import.status.success()) {
        return skipped(name, &format!("no {module}"));
    }
    if module == "polars" && !cfg!(feature = "parquet") {
        return skipped(name, "built without Parquet");
    }
    let folder = tempfile::tempdir().unwrap();
    let (compare, recipes) = recipes();
    let output = Command::new(env!("CARGO_BIN_EXE_ecn-sim"))
        .args(compare)
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = Command::new(&python)
        .args(["-c", &recipes[module]])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let found = String::from_utf8(output.stdout).unwrap();
    let expected = fs::read_to_string(folder.path().join("schemes/compare.csv")).unwrap();
    for (of, its) in [
        ("mean", "goodput_bytes_per_s"),
        ("ci95", "goodput_bytes_per_s_ci95"),
    ] {
        let (found, expected) = (column(&found, of), column(&expected, its));
        assert_eq!(expected.len(), 3);
        assert!(found.keys().eq(expected.keys()), "{found:?}");
        for (scheme, value) in expected {
            // The table of t has four digits.
            assert!(
                value > 0.0 && (found[&scheme] / value - 1.0).abs() < 1e-3,
                "{scheme}"
            );
        }
    }
}

#[test]
fn the_recipe_for_pandas_runs() {
    recipe_agrees_with_compare("the_recipe_for_pandas_runs", "pandas");
}

#[test]
fn the_recipe_for_polars_runs() {
    recipe_agrees_with_compare("the_recipe_for_polars_runs", "polars");
}
