//! `ecn sim list`: scenarios and keys.

use clap::Args;
use serde_json::json;

use super::table::{plain_table, table_text};
use super::{Error, json as to_json, print};
use crate::fabric;
use crate::scenario::{BUILT_IN, Scenario};

/// What `list` is told.
#[derive(Args, Debug)]
pub struct ListArgs {
    /// One JSON document
    #[arg(long, short)]
    json: bool,
}

pub(super) fn run(args: &ListArgs) -> Result<(), Error> {
    let mut scenarios = Vec::new();
    for (name, about) in BUILT_IN {
        let parameters = Scenario::find(name)?.parameters();
        scenarios.push((*name, *about, parameters));
    }
    for kind in fabric::Kind::ALL {
        let (name, about) = (kind.name(), kind.about());
        let keys = fabric::Scenario::find(name).map(|scenario| scenario.keys());
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
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            keys.add_row([key.clone(), value]);
        }
        print(&format!("{name}: {about}\n\n{}", table_text(&keys)))?;
    }
    Ok(())
}
