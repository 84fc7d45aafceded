//! `ecn schema`: the JSON documents that commands print with `-j`, as JSON Schemas.
//!
//! They describe the output: keys that are always present are required, and unknown keys are refused.

use clap::Args;
use ecn_sim_cli::{SchemaOf, schema_of};
use schemars::Schema;
use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use serde_json::{Value, json};

use super::exit::{Failure, print, print_json};
use super::run::Checked;
use super::table::{FlowRow, PortRow};
use super::{clean, doctor, monitor, reload, rig, top};
use crate::agent::state::State;
use crate::config::suggestion;

/// `ecn schema`.
#[derive(Args, Debug)]
pub struct SchemaArgs {
    /// Command, such as `flow show`; if omitted, list the commands that have a schema
    #[arg(value_name = "COMMAND")]
    command: Vec<String>,
    /// The schema of `run --check`
    #[arg(long, requires = "command")]
    check: bool,
    /// Print the list as JSON, or the schema on one line
    #[arg(long, short = 'j')]
    json: bool,
}

/// By command. With `--watch`, and for `top` and `monitor`, each line of the output is a document.
const SCHEMAS: [(&str, SchemaOf); 15] = [
    ("clean", schema_of::<clean::Report<'_>>),
    ("doctor", schema_of::<doctor::Report>),
    ("flow set", schema_of::<Option<FlowRow>>),
    ("flow show", schema_of::<Vec<FlowRow>>),
    ("flow unset", schema_of::<Option<FlowRow>>),
    ("monitor", schema_of::<monitor::Line<'_>>),
    ("port show", schema_of::<Vec<PortRow>>),
    ("reload", schema_of::<reload::Outcome>),
    ("rig down", schema_of::<Vec<String>>),
    ("rig run", schema_of::<ecn_sim_cli::rig::report::Report>),
    ("rig show", schema_of::<rig::Shown>),
    ("rig up", schema_of::<rig::Shown>),
    ("run --check", schema_of::<Checked>),
    // No command prints it: /run/ecn/state.json.
    ("state", schema_of::<State>),
    ("top", schema_of::<top::rates::Top>),
];

fn all() -> impl Iterator<Item = (&'static str, SchemaOf)> {
    SCHEMAS.into_iter().chain(ecn_sim_cli::SCHEMAS)
}

/// Commands that print JSON documents with a schema.
pub fn commands() -> Vec<&'static str> {
    all().map(|(command, _)| command).collect()
}

/// The schema of a command's output; `None` if the command has none.
pub fn schema(command: &str) -> Option<Value> {
    let (_, schema) = all().find(|(known, _)| *known == command)?;
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema = schema(settings.into_generator());
    close(&mut schema);
    schema.insert("title".to_owned(), json!(format!("ecn {command}")));
    Some(schema.into())
}

/// Refuses keys that a schema does not name.
fn close(schema: &mut Schema) {
    const BRANCHES: [&str; 3] = ["allOf", "anyOf", "oneOf"];
    const OTHERS: &str = "additionalProperties";
    transform_subschemas(&mut close, schema);
    let Some(object) = schema.as_object_mut() else {
        return;
    };
    if !object.contains_key("properties") || object.contains_key(OTHERS) {
        return;
    }
    let mut is_branched = false;
    for branch in BRANCHES {
        let Some(Value::Array(branches)) = object.get_mut(branch) else {
            continue;
        };
        is_branched = true;
        // A branch does not name the keys beside it, so it must not refuse them. Flattened types are inline: a branch
        // that is a reference could not be changed here.
        for branch in branches.iter_mut().filter_map(Value::as_object_mut) {
            branch.remove(OTHERS);
        }
    }
    let others = if is_branched {
        "unevaluatedProperties"
    } else {
        OTHERS
    };
    object.insert(others.to_owned(), json!(false));
}

/// Runs the verb.
///
/// # Errors
///
/// Unknown command, or one without a schema.
pub fn run(args: &SchemaArgs) -> anyhow::Result<()> {
    let commands = commands();
    if args.command.is_empty() {
        if args.json {
            return print_json(&commands);
        }
        return print(&(commands.join("\n") + "\n"));
    }
    let mut command = args.command.join(" ");
    if args.check {
        command += " --check";
    }
    let Some(schema) = schema(&command) else {
        let hint = suggestion(&command, &commands);
        return Err(Failure::usage(format!("no schema for `{command}`: {hint}")).into());
    };
    if args.json {
        return print_json(&schema);
    }
    print(&(serde_json::to_string_pretty(&schema)? + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_is_closed() {
        fn check(command: &str, value: &Value, is_branch: bool) {
            match value {
                Value::Object(object) => {
                    let is_closed = ["additionalProperties", "unevaluatedProperties"]
                        .iter()
                        .any(|key| object.contains_key(*key));
                    let is_object = object.get("properties").is_some_and(Value::is_object);
                    assert!(is_closed || is_branch || !is_object, "{command}: {value}");
                    for (key, value) in object {
                        let is_branch = key == "oneOf" && is_closed;
                        check(command, value, is_branch);
                    }
                }
                Value::Array(values) => {
                    for value in values {
                        check(command, value, is_branch);
                    }
                }
                _ => {}
            }
        }
        for command in commands() {
            check(command, &schema(command).expect(command), false);
        }
    }

    #[test]
    fn schemas_are_those_of_commands() {
        use clap::CommandFactory as _;
        let cli = super::super::Cli::command();
        for command in commands() {
            let mut verbs = command.split(' ').filter(|word| !word.starts_with('-'));
            let found = verbs.try_fold(&cli, |of, verb| of.find_subcommand(verb));
            let prints =
                |of: &clap::Command| of.get_arguments().any(|arg| arg.get_short() == Some('j'));
            assert!(found.is_some_and(prints) || command == "state", "{command}");
        }
    }

    #[test]
    fn each_json_output_has_a_schema() {
        use clap::CommandFactory as _;
        fn walk(of: &clap::Command, path: &str, found: &mut Vec<String>) {
            if of.get_arguments().any(|arg| arg.get_short() == Some('j')) {
                found.push(path.trim().to_owned());
            }
            for verb in of.get_subcommands() {
                walk(verb, &format!("{path} {}", verb.get_name()), found);
            }
        }
        let mut found = Vec::new();
        walk(&super::super::Cli::command(), "", &mut found);
        let known = commands();
        for command in found.iter().filter(|command| *command != "schema") {
            let command = if command == "run" {
                "run --check"
            } else {
                command
            };
            assert!(known.contains(&command), "{command}");
        }
        assert!(found.len() > 20, "{found:?}");
    }
}
