//! The chapters that are generated from the code: `docs/configuration.md` and `docs/cli.md`.

use std::fmt::Write as _;
use std::{env, fs};

use clap::{Arg, Command, CommandFactory as _};
use ecn_user::{cli::Cli, config::EXAMPLE};

use crate::blocks::root;

/// Compares a page with its expected text; with `INSTA_UPDATE=always`, as for snapshots, writes it.
fn compare(name: &str, expected: &str) {
    let path = root().join("docs").join(name);
    if env::var_os("INSTA_UPDATE").is_some_and(|how| how == "always") {
        fs::write(path, expected).expect("the page is written");
        return;
    }
    let found = fs::read_to_string(path).expect("the page");
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected, "{name} is out of date: see its comment");
    }
    assert_eq!(found.len(), expected.len(), "{name}: the end");
}

const CONFIGURATION: &str = "# Configuration

<!-- Generated from ecn-user/ecn.example.toml: INSTA_UPDATE=always cargo test -p ecn-tests --test book generated -->

The agent reads TOML from `/etc/ecn/ecn.toml`, or the file that `--config` names. At least one `[[bridge]]` or `[[endpoint]]`
is needed. Unknown keys and values are refused with the nearest valid one. `ecn run --check --offline` checks a file;
[`ecn reload`](service.md#reload) applies a changed one. The package has the same text as `/etc/ecn/ecn.toml.example`.
";

/// The page of keys, from the example file.
fn configuration(example: &str) -> String {
    let mut page = CONFIGURATION.to_owned();
    // The head explains the format, and then what applies to all names.
    let (head, body) = example.split_once("\n\n").expect("a head");
    let (_, names) = head.rsplit_once("\n#\n").expect("paragraphs");
    let names: Vec<_> = names
        .lines()
        .map(|line| line.trim_start_matches('#'))
        .collect();
    let _ = writeln!(page, "\n{}", prose(&names));
    let mut about: Vec<&str> = Vec::new();
    for line in body.lines() {
        if line.is_empty() {
            about.clear();
        } else if line.starts_with('[') {
            let _ = writeln!(page, "\n## `{line}`\n\n{}", prose(&about));
            about.clear();
        } else if let Some((key, default)) = key(line) {
            let _ = writeln!(page, "\n### `{key}`\n\n{}\n\n{default}", prose(&about));
            about.clear();
        } else {
            about.push(line.strip_prefix('#').expect("a comment"));
        }
    }
    page
}

/// The key of a line, and its value as the page shows it.
fn key(line: &str) -> Option<(&str, String)> {
    let (name, value) = line.trim_start_matches(['#', ' ']).split_once(" = ")?;
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    if !name.chars().all(is_name) {
        return None;
    }
    let text = match line.as_bytes() {
        [b'#', b' ', ..] => format!("No default. Example: `{name} = {value}`"),
        [b'#', ..] => format!("Default: `{value}`"),
        // The text says that it is required.
        _ => format!("Example: `{name} = {value}`"),
    };
    Some((name, text))
}

/// Comments as Markdown; lines indented by three are a list of values.
fn prose(lines: &[&str]) -> String {
    let mut text = String::new();
    let mut in_list = false;
    for line in lines {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if indent == 3 {
            let (value, about) = line.split_once("  ").expect("a value and what it means");
            let start = if in_list { "" } else { "\n" };
            let _ = write!(text, "{start}\n- `{value}`: {}", about.trim());
        } else if in_list && indent > 3 {
            let _ = write!(text, "\n  {line}");
        } else {
            let start = if text.is_empty() { "" } else { "\n" };
            let _ = write!(text, "{start}{line}");
        }
        in_list = indent >= 3;
    }
    text
}

#[test]
fn configuration_is_that_of_the_example() {
    compare("configuration.md", &configuration(EXAMPLE));
}

const CLI: &str = "# Command line

<!-- Generated from the command line's definition: INSTA_UPDATE=always cargo test -p ecn-tests --test book generated -->

`-j` prints one JSON document to standard output and nothing else there; logs and messages go to standard error. Rates are
written as in tc (`100mbit`); in JSON they are integers with the unit in the key. Each command has `--help`, and a manual
page in the package (`man ecn-port-show`).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed |
| 2 | bad usage or configuration |
| 3 | the machine lacks something, which is named; also: an agent or rig is running, or none is |
| 130 | Ctrl-C |

`ecn-sim` is `ecn sim` without the agent.
";

/// Text in a table's cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// An argument as it is typed, and its meaning.
fn argument(arg: &Arg) -> (String, String) {
    let mut name = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (None, Some(long)) => format!("--{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, None) => String::new(),
    };
    if arg.get_action().takes_values() {
        let values = arg.get_value_names().unwrap_or_default();
        let values: Vec<_> = values.iter().map(ToString::to_string).collect();
        let values = values.join(" ");
        name = if arg.is_require_equals_set() {
            format!("{name}[={values}]")
        } else {
            format!("{name} {values}").trim().to_owned()
        };
    }
    let mut about = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let possible = arg.get_possible_values();
    if arg.get_action().takes_values() && !arg.is_hide_possible_values_set() && !possible.is_empty()
    {
        let values = possible.iter().filter(|value| !value.is_hide_set());
        let values: Vec<_> = values
            .map(|value| format!("`{}`", value.get_name()))
            .collect();
        let _ = write!(about, " ({})", values.join(", "));
    }
    let defaults: Vec<_> = arg.get_default_values().iter().collect();
    if arg.get_action().takes_values() && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        let defaults: Vec<_> = defaults
            .iter()
            .map(|value| value.to_string_lossy())
            .collect();
        let _ = write!(about, " [default: {}]", defaults.join(" "));
    }
    (cell(&name), cell(&about))
}

/// Appends a command and its subcommands.
fn command(page: &mut String, path: &str, command: &mut Command) {
    let about = command.get_about().map(ToString::to_string);
    let _ = writeln!(page, "\n## `{path}`\n\n{}.", about.unwrap_or_default());
    if !command.has_subcommands() {
        let usage = command.render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ");
        let _ = writeln!(page, "\n```text\n{usage}\n```");
        let shown = command.get_arguments().filter(|arg| {
            !arg.is_hide_set() && !["help", "version", "verbose"].contains(&arg.get_id().as_str())
        });
        let rows: Vec<_> = shown.map(argument).collect();
        if !rows.is_empty() {
            let _ = writeln!(page, "\n| argument | meaning |\n|---|---|");
        }
        for (name, about) in rows {
            let _ = writeln!(page, "| `{name}` | {about} |");
        }
    }
    for below in command.get_subcommands_mut() {
        if !below.is_hide_set() && below.get_name() != "help" {
            let path = format!("{path} {}", below.get_name());
            self::command(page, &path, below);
        }
    }
}

#[test]
fn the_command_line_is_that_of_its_definition() {
    let mut page = CLI.to_owned();
    let mut cli = Cli::command();
    cli.build();
    command(&mut page, "ecn", &mut cli);
    compare("cli.md", &page);
}
