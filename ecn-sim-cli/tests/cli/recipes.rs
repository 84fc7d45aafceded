//! Recipes for Python on the page on results, which are run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use super::Folder;

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
fn recipes() -> (String, BTreeMap<String, String>) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/results.md");
    let text = fs::read_to_string(page).unwrap();
    // A command may continue on the next line.
    let text = text.replace("\\\n> ", "");
    let mut lines = text.lines();
    let command = lines.find_map(|line| line.strip_prefix("$ ecn sim compare "));
    let recipes = text.split("```python\n").skip(1).map(|rest| {
        let recipe = rest.split("```").next().unwrap().to_owned();
        let module = recipe.split_whitespace().nth(1).unwrap().to_owned();
        (module, recipe)
    });
    (command.unwrap().to_owned(), recipes.collect())
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
    let folder = Folder::new();
    let (compare, recipes) = recipes();
    folder.sim(&format!("compare {compare}")).done();
    let output = Command::new(&python)
        .args(["-c", &recipes[module]])
        .current_dir(folder.path(""))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let found = String::from_utf8(output.stdout).unwrap();
    let expected = folder.read("schemes/compare.csv");
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
