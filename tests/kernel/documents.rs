//! The tests that documents name exist.

use std::{fs, path::Path};

/// Tests that a document names, as `module::test`.
fn named(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter_map(|quoted| quoted.split_once("::"))
}

#[test]
fn every_test_that_is_named_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("../docs/operation.md")).expect("the document");
    assert!(named(&text).count() > 20, "too few: is the format another?");
    for (module, test) in named(&text) {
        let file = root.join("kernel").join(format!("{module}.rs"));
        let source = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        let exists = source.contains(&format!("#[test]\nfn {test}() {{"));
        assert!(exists, "{module}::{test} is not there");
    }
}
