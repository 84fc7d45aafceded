//! `ecn sim list`: scenarios and keys.

use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use toml::Table;

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

/// A scenario, as in `ecn sim list -j`.
#[derive(JsonSchema, Serialize)]
pub struct Listed {
    scenario: &'static str,
    about: &'static str,
    /// Keys and defaults.
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    parameters: Table,
}

pub(super) fn run(args: &ListArgs) -> Result<(), Error> {
    let mut scenarios = Vec::new();
    let kinds = fabric::Kind::ALL.iter();
    let kinds = kinds.map(|kind| (kind.name(), kind.about()));
    for (name, about) in BUILT_IN.iter().copied().chain(kinds) {
        let keys = Experiment::built_in(name).map(|experiment| experiment.keys());
        scenarios.push(Listed {
            scenario: name,
            about,
            parameters: keys.unwrap_or_default(),
        });
    }
    if args.json {
        return print(&to_json(&scenarios)?);
    }
    for Listed {
        scenario,
        about,
        parameters,
    } in scenarios
    {
        let mut keys = plain_table(&["KEY", "DEFAULT"], &[0, 1]);
        for (key, value) in &parameters {
            keys.add_row([key.clone(), shown(value)]);
        }
        print(&format!("{scenario}: {about}\n\n{}", table_text(&keys)))?;
    }
    Ok(())
}
