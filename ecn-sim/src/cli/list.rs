//! `ecn sim list`: scenarios and keys.

use clap::Args;
use serde_json::json;

use super::table::{plain_table, table_text};
use super::{Error, json as to_json, print};
use crate::experiment::Experiment;
use crate::fabric;
use crate::scenario::{BUILT_IN, shown};

/// What `list` is told.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// One JSON document
    #[arg(long, short)]
    json: bool,
}

pub(super) fn run(args: &ListArgs) -> Result<(), Error> {
    let mut scenarios = Vec::new();
    let kinds = fabric::Kind::ALL.iter();
    let kinds = kinds.map(|kind| (kind.name(), kind.about()));
    for (name, about) in BUILT_IN.iter().copied().chain(kinds) {
        let keys = Experiment::built_in(name).map(|experiment| experiment.keys());
        scenarios.push((name, about, keys.unwrap_or_default()));
    }
    if args.json {
        let list: Vec<_> = scenarios
            .iter()
            .map(|(name, about, parameters)| json!({"scenario": name, "about": about, "parameters": parameters}))
            .collect();
        return print(&to_json(&list)?);
    }
    for (name, about, parameters) in scenarios {
        let mut keys = plain_table(&["KEY", "DEFAULT"], &[0, 1]);
        for (key, value) in &parameters {
            keys.add_row([key.clone(), shown(value)]);
        }
        print(&format!("{name}: {about}\n\n{}", table_text(&keys)))?;
    }
    Ok(())
}
