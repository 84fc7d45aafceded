//! Keys and values of scenarios, in options and in files, and errors about them.
//!
//! In files a name such as `h[1-4]` stands for `h1` to `h4`. A link or flow between such names stands for one per name,
//! in pairs if both sides have a range.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::str::FromStr;

use ecn_units::{DurationText, nearest, serde_as_text, suggestion};
use schemars::JsonSchema;
use serde::Serialize;
use toml::{Table, Value};

use crate::bounds::ModelError;
use crate::engine::{NS, Time};
use crate::network::NetworkError;

/// Maximum number of nodes, links or flows that one entry may stand for.
const MOST: u64 = 10_000;

/// A scenario that cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// An unknown key.
    #[error("unknown key `{key}`: {hint}")]
    UnknownKey {
        /// The key.
        key: String,
        /// The nearest key, or all.
        hint: String,
    },
    /// An invalid value of a key.
    #[error("{key} = {value}: {reason}")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What is accepted.
        reason: String,
    },
    /// An option of the rig that applies only to a kernel.
    #[error("{0} does not apply to the simulator: leave it out, or run the rig on a kernel")]
    OnlyOnAKernel(&'static str),
    /// Not KEY=VALUE.
    #[error("`{0}` is not KEY=VALUE")]
    NotASetting(String),
    /// A value out of its range.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The network cannot be built.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The text is not a valid scenario.
    #[error("{0}")]
    Text(String),
    /// The file is not a valid scenario.
    #[error("{file}: {reason}")]
    File {
        /// Its path.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// Neither a built-in name nor a file.
    #[error("unknown scenario `{name}`: neither a file nor built in ({hint})")]
    NoScenario {
        /// The name given.
        name: String,
        /// The nearest built-in name, or all.
        hint: String,
    },
}

/// When the victim is active: `off`, `on`, or `FROM..TO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Victim {
    /// Never.
    Off,
    /// From the first flow's start to the end.
    On,
    /// During this interval.
    #[schemars(untagged, with = "String", title = "FROM..TO")]
    During(DurationText, DurationText),
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On => f.write_str("on"),
            Self::During(from, to) => write!(f, "{from}..{to}"),
        }
    }
}

impl FromStr for Victim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => return Ok(Self::Off),
            "on" => return Ok(Self::On),
            _ => {}
        }
        span(text)
            .map(|(from, to)| Self::During(from, to))
            .map_err(|reason| match nearest(text, ["off", "on"]) {
                Some(word) => format!("did you mean `{word}`?"),
                None => format!("must be off, on, or a time such as 40ms..60ms; {reason}"),
            })
    }
}

serde_as_text!(@serde Victim);

/// `FROM..TO`, with FROM before TO.
fn span(text: &str) -> Result<(DurationText, DurationText), String> {
    let (from, to) = text
        .split_once("..")
        .ok_or_else(|| format!("`{text}` is not FROM..TO, such as 40ms..60ms"))?;
    let time = |text: &str| {
        text.parse::<DurationText>()
            .map_err(|error| error.to_string())
    };
    let (from, to) = (time(from)?, time(to)?);
    if from.as_nanos() >= to.as_nanos() {
        return Err(format!("`{text}`: FROM must be before TO"));
    }
    Ok((from, to))
}

/// A time window `FROM..TO`, ps.
///
/// # Errors
///
/// A description of the problem.
pub fn window(text: &str) -> Result<(Time, Time), String> {
    let (from, to) = span(text)?;
    let ps = |time: DurationText| time.as_nanos().saturating_mul(NS);
    Ok((ps(from), ps(to)))
}

/// A value as written on the command line.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Key and value of `KEY=VALUE`.
///
/// # Errors
///
/// `=` is missing.
pub(crate) fn parted(setting: &str) -> Result<(&str, Value), ScenarioError> {
    let (key, value) = setting
        .split_once('=')
        .ok_or_else(|| ScenarioError::NotASetting(setting.to_owned()))?;
    Ok((key.trim(), Value::String(value.trim().to_owned())))
}

/// `all` with one key set, given as a number or as text, and the error for an invalid value of that key.
///
/// # Errors
///
/// The key is unknown, or accepts only whole numbers.
pub(crate) fn with_key(
    mut all: Table,
    key: &str,
    value: &Value,
) -> Result<(Table, impl Fn(&str) -> ScenarioError), ScenarioError> {
    let Some(current) = all.get(key) else {
        let keys: Vec<&str> = all.keys().map(String::as_str).collect();
        return Err(ScenarioError::UnknownKey {
            key: key.to_owned(),
            hint: suggestion(key, &keys),
        });
    };
    let (key, value) = (key.to_owned(), shown(value));
    let error = {
        let (key, value) = (key.clone(), value.clone());
        // serde adds the position in a document that exists only here.
        move |reason: &str| ScenarioError::Value {
            key: key.clone(),
            value: value.clone(),
            reason: reason.lines().next().unwrap_or_default().to_owned(),
        }
    };
    let value = if current.is_integer() {
        let whole = |_| error("must be a whole number from 0 to 4294967295");
        Value::Integer(value.parse::<u32>().map_err(whole)?.into())
    } else {
        Value::String(value)
    };
    all.insert(key, value);
    Ok((all, error))
}

/// The keys of a table, with keys of inner tables as `table.key` unless the inner table is a value.
pub(crate) fn dotted(
    table: &Table,
    is_value: impl Fn(&str, &Table) -> bool + Copy,
) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) if !is_value(key, inner) => {
                let inner = dotted(inner, is_value).into_iter();
                all.extend(inner.map(|(name, value)| (format!("{key}.{name}"), value)));
            }
            value => drop(all.insert(key.clone(), value.clone())),
        }
    }
    all
}

/// A structure as a table of its fields.
pub(crate) fn table(value: &impl Serialize) -> Table {
    Table::try_from(value).unwrap_or_default()
}

/// Describes an error in a file, with its line.
pub(crate) fn located(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().map_or(0, |span| span.start.min(text.len()));
    let line = text[..before].matches('\n').count() + 1;
    format!("line {line}: {}", with_nearest(error.message()))
}

/// Replaces serde's list of all fields with the closest match.
fn with_nearest(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    match (message.starts_with("unknown field"), quoted.next()) {
        (true, Some(word)) => {
            let known: Vec<&str> = quoted.collect();
            format!("unknown key `{word}`: {}", suggestion(word, &known))
        }
        _ => message.replace('\n', ", "),
    }
}

/// Expands a name with a range.
pub(crate) fn expand(name: &str) -> Result<Vec<String>, String> {
    let Some((before, rest)) = name.split_once('[') else {
        return Ok(vec![name.to_owned()]);
    };
    let wrong = || format!("`{name}` is not a name with a range such as h[1-4]");
    let (range, after) = rest.split_once(']').ok_or_else(wrong)?;
    let (first, last) = range.split_once('-').ok_or_else(wrong)?;
    let number = |text: &str| u64::from_str(text).map_err(|_| wrong());
    let (first, last) = (number(first)?, number(last)?);
    if first > last || last - first >= MOST {
        return Err(format!(
            "`{name}`: a range must ascend, and stand for at most {MOST} names"
        ));
    }
    Ok((first..=last)
        .map(|n| format!("{before}{n}{after}"))
        .collect())
}

/// Expands each of several names.
pub(crate) fn expand_all(names: &[String]) -> Result<Vec<String>, String> {
    let lists: Result<Vec<_>, _> = names.iter().map(|name| expand(name)).collect();
    Ok(lists?.concat())
}

/// Expands both ends of a link or flow: in pairs, or a single name with each name at the other end.
pub(crate) fn pairs(from: &str, to: &str) -> Result<Vec<(String, String)>, String> {
    let (froms, tos) = (expand(from)?, expand(to)?);
    match (froms.len(), tos.len()) {
        (a, b) if a == b => Ok(froms.into_iter().zip(tos).collect()),
        (_, 1) => Ok(froms
            .into_iter()
            .zip(iter::repeat(tos[0].clone()))
            .collect()),
        (1, _) => Ok(iter::repeat(froms[0].clone()).zip(tos).collect()),
        (a, b) => Err(format!(
            "`{from}` stands for {a} names and `{to}` for {b}: the numbers must be equal, or one of them 1"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_names() {
        assert_eq!(expand("h[2-4]x").unwrap_or_default(), ["h2x", "h3x", "h4x"]);
        assert_eq!(expand("h").unwrap_or_default(), ["h"]);
        for bad in ["h[4-2]", "h[1-", "h[a-b]", "h[1-99999]", "h[3]"] {
            assert!(expand(bad).is_err(), "{bad}");
        }
        assert_eq!(pairs("a[1-2]", "b").unwrap_or_default().len(), 2);
        assert!(pairs("a[1-2]", "b[1-3]").is_err());
    }
}
