//! Software bill of materials in CycloneDX 1.5: the crates of the agent and of the BPF programs inside it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::about;

/// The root crates, whose dependencies are listed.
const ROOTS: [(&str, &str); 2] = [
    ("../Cargo.toml", "ecn-user"),
    ("../ecn-ebpf/Cargo.toml", "ecn-ebpf"),
];
/// Architecture for which dependencies are resolved; they are the same for all.
const TARGET: &str = "x86_64-unknown-linux-musl";

pub fn bom() -> Result<Vec<u8>> {
    let mut components = BTreeMap::new();
    let mut depends = BTreeMap::new();
    let mut roots = Vec::new();
    for (manifest, root) in ROOTS {
        roots.push(crates(manifest, root, &mut components, &mut depends)?);
    }
    let own = format!("pkg:generic/{}@{}", about::NAME, about::VERSION);
    depends.insert(own.clone(), roots.into_iter().collect());
    let depends: Vec<_> = depends
        .iter()
        .map(|(from, on): (&String, &BTreeSet<String>)| json!({"ref": from, "dependsOn": on}))
        .collect();
    let bom = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {
            "type": "application", "bom-ref": own, "purl": own, "name": about::NAME, "version": about::VERSION,
            "description": about::SUMMARY, "licenses": [{"expression": about::LICENCE}],
        }},
        "components": components.into_values().collect::<Vec<Value>>(),
        "dependencies": depends,
    });
    Ok(serde_json::to_vec_pretty(&bom)?)
}

/// Adds a crate of a workspace and all its dependencies, including those of build scripts and macros.
fn crates(
    manifest: &str,
    root: &str,
    components: &mut BTreeMap<String, Value>,
    depends: &mut BTreeMap<String, BTreeSet<String>>,
) -> Result<String> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join(manifest);
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", TARGET, "--manifest-path"])
        .arg(&manifest)
        .output()
        .context("starting cargo metadata")?;
    if !output.status.success() {
        bail!(
            "cargo metadata: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let by_id = |list: &Value| -> BTreeMap<String, Value> {
        let entries = list.as_array().into_iter().flatten();
        entries
            .map(|entry| (text(entry, "id"), entry.clone()))
            .collect()
    };
    let packages = by_id(&metadata["packages"]);
    let nodes = by_id(&metadata["resolve"]["nodes"]);
    let first = packages.values().find(|package| package["name"] == root);
    let first = first.with_context(|| format!("no crate {root}"))?;
    let mut todo = vec![text(first, "id")];
    while let Some(id) = todo.pop() {
        let package = &packages[&id];
        let on = nodes[&id]["deps"].as_array().into_iter().flatten();
        let on = on.filter(|dependency| {
            let kinds = dependency["dep_kinds"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"] != "dev"))
        });
        let on: Vec<_> = on.map(|dependency| text(dependency, "pkg")).collect();
        let names = on.iter().map(|id| purl(&packages[id])).collect();
        if depends.insert(purl(package), names).is_none() {
            components.insert(purl(package), component(package));
            todo.extend(on);
        }
    }
    Ok(purl(first))
}

fn component(package: &Value) -> Value {
    let purl = purl(package);
    // Older crates write MIT/Apache-2.0.
    let licence = text(package, "license").replace('/', " OR ");
    json!({
        "type": "library", "bom-ref": purl, "purl": purl, "name": package["name"],
        "version": package["version"], "licenses": [{"expression": licence}],
    })
}

fn purl(package: &Value) -> String {
    format!(
        "pkg:cargo/{}@{}",
        text(package, "name"),
        text(package, "version")
    )
}

fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}
