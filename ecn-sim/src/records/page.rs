//! The columns of all tables as Markdown.

use std::fmt::Write as _;

use serde_json::Value;

use super::{is_omitted, of_window};
use crate::fabric;
use crate::keys::{about, inlined};
use crate::report::{AnyWindow, HpWindow, RunReport};

/// A column of a report: its name, type and meaning.
type Column = (String, String, String);

/// The columns that [`super::rows`] generates for a document with this schema.
fn columns(name: &str, schema: &Value, into: &mut Vec<Column>) {
    // Values that can be null, or exist only in some networks, are a choice with one object or type.
    let branches = ["anyOf", "oneOf"]
        .iter()
        .find_map(|key| schema[key].as_array());
    let of = |inner: &str| match name {
        "" => inner.to_owned(),
        _ => format!("{name}_{inner}"),
    };
    if let Some(branches) = branches {
        branches
            .iter()
            .for_each(|branch| columns(name, branch, into));
    }
    let own = schema["properties"].as_object().into_iter().flatten();
    for (key, inner) in own.filter(|(key, _)| !is_omitted(key)) {
        columns(&of(key), inner, into);
    }
    if let Some(inner) = schema
        .get("additionalProperties")
        .filter(|inner| inner.is_object())
    {
        let begin = into.len();
        columns(&of("NAME"), inner, into);
        // For maps of plain numbers, the map's description applies.
        for (_, _, text) in into[begin..]
            .iter_mut()
            .filter(|column| column.2.is_empty())
        {
            *text = about(schema);
        }
    }
    let types = match &schema["type"] {
        Value::String(one) => vec![one.as_str()],
        Value::Array(some) => some.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let scalar = types.iter().find_map(|name| match *name {
        "integer" => Some("whole"),
        "number" => Some("number"),
        "string" => Some("text"),
        _ => None,
    });
    if let Some(scalar) = scalar {
        let null = if types.contains(&"null") {
            " or null"
        } else {
            ""
        };
        into.push((name.to_owned(), format!("{scalar}{null}"), about(schema)));
    }
}

/// The columns of a report type.
fn columns_of<T: schemars::JsonSchema>() -> Vec<Column> {
    let mut all = Vec::new();
    let mut schema = inlined::<T>();
    // Windows are separate rows.
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.remove("windows");
    }
    columns("", &schema, &mut all);
    all
}

/// The columns of a window; those that its run has, too, are renamed.
fn columns_of_window<T: schemars::JsonSchema>(run: &Value) -> Vec<Column> {
    let mut all = columns_of::<T>();
    for (name, _, _) in &mut all {
        let top = name.split("_NAME").next().unwrap_or_default();
        *name = of_window(name, run["properties"].get(top).is_some());
    }
    all
}

/// The page: all tables, each with its columns.
pub fn page() -> String {
    let mut text = String::new();
    let mut table = |title: &str, columns: Vec<Column>| {
        let _ = writeln!(
            text,
            "\n### {title}\n\n| column | type | what it is |\n|---|---|---|"
        );
        for (name, of, about) in columns {
            let _ = writeln!(text, "| `{name}` | {of} | {about} |");
        }
    };
    table("A run of a data centre", columns_of::<fabric::Report>());
    let window = columns_of_window::<fabric::WindowReport>;
    table("A window of it", window(&inlined::<fabric::Report>()));
    table(
        "A run of `hp`, `rig`, `bridge` or a network of your own",
        columns_of::<RunReport>(),
    );
    let run = inlined::<RunReport>();
    table(
        "A window of `hp` and `rig`",
        columns_of_window::<HpWindow>(&run),
    );
    table(
        "A window of `bridge` and of a network of your own",
        columns_of_window::<AnyWindow>(&run),
    );
    for (title, columns) in [
        (
            "`flows`: the flows of a data centre",
            fabric::measure::COLUMNS,
        ),
        ("`series` of a data centre", fabric::series::COLUMNS),
        ("`series` of the others", crate::report::SERIES),
    ] {
        let _ = writeln!(text, "\n### {title}\n\n| column | what it is |\n|---|---|");
        for (name, about) in columns {
            let _ = writeln!(text, "| `{name}` | {about} |");
        }
    }
    text
}
