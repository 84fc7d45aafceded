//! `ecn sim list`: scenarios and keys.

use clap::Args;
use ecn_report::terminal::{plain_table, table_text};
use ecn_sim::experiment::Experiment;
use ecn_sim::fabric;
use ecn_sim::keys::{self, Key};
use ecn_sim::scenario::{BUILT_IN, shown};
use schemars::JsonSchema;
use serde::Serialize;
use toml::Table;

use super::{Error, json as to_json, print};

/// Arguments of `list`.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// Key to describe (dcqcn.kmin, buffer), or a scheme, table (dcqcn) or scenario (hp) for all of its keys; without
    /// it, all scenarios with their keys
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Key of the scenario NAME, as it applies there
    #[arg(value_name = "KEY")]
    key: Option<String>,
    /// One JSON document
    #[arg(long, short)]
    json: bool,
}

/// A scenario, as in `ecn sim list -j`.
#[derive(JsonSchema, Serialize)]
pub(super) struct Listed {
    scenario: &'static str,
    about: &'static str,
    /// Its keys and their defaults.
    #[schemars(with = "std::collections::BTreeMap<String, serde_json::Value>")]
    parameters: Table,
}

/// What `list -j` prints.
#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
pub(super) enum List {
    /// Without a name: all scenarios.
    Scenarios(Vec<Listed>),
    /// The keys that a name stands for.
    Keys(Vec<Key>),
}

/// Line width of texts.
const COLUMNS: usize = 100;

fn scenarios() -> Vec<Listed> {
    let kinds = fabric::Kind::ALL.iter();
    let kinds = kinds.map(|kind| (kind.name(), kind.about()));
    let all = BUILT_IN.iter().copied().chain(kinds);
    let listed = all.map(|(scenario, about)| Listed {
        scenario,
        about,
        parameters: Experiment::built_in(scenario).map_or_else(Table::new, |one| one.keys()),
    });
    listed.collect()
}

pub(super) fn run(args: &ListArgs) -> Result<(), Error> {
    let list = match (&args.name, &args.key) {
        (None, _) => List::Scenarios(scenarios()),
        (Some(name), None) => List::Keys(keys::find(name).map_err(Error::usage)?),
        (Some(scenario), Some(key)) => {
            List::Keys(keys::find_in(scenario, key).map_err(Error::usage)?)
        }
    };
    if args.json {
        return print(&to_json(&list)?);
    }
    match list {
        List::Keys(keys) => {
            let texts: Vec<String> = keys.iter().map(|key| key.text(COLUMNS)).collect();
            print(&texts.join("\n"))
        }
        List::Scenarios(scenarios) => {
            for one in &scenarios {
                let mut keys = plain_table(&["KEY", "DEFAULT"], &[0, 1]);
                for (key, value) in &one.parameters {
                    keys.add_row([key.clone(), shown(value)]);
                }
                let Listed {
                    scenario, about, ..
                } = one;
                print(&format!("{scenario}: {about}\n\n{}", table_text(&keys)))?;
            }
            print(
                "`list KEY` describes a key; `list dcqcn` and `list hp` describe all keys of a scheme or scenario.",
            )
        }
    }
}
