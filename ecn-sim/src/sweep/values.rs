//! Lists and ranges of values in a sweep file.

use ecn_units::suggestion;
use toml::Value;

use super::{MOST_RUNS, one_line};
use crate::engine::Time;
use crate::experiment::Experiment;
use crate::settings::{shown, window};

/// A key and the values that it takes in turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    pub key: String,
    pub values: Vec<Value>,
}

impl Axis {
    /// The values of `key` from a list or range, each checked and in canonical form.
    pub(super) fn new(key: String, value: &Value, base: &Experiment) -> Result<Self, String> {
        // The key first: it determines the valid values.
        let current = base.keys().remove(&key);
        let current = current.unwrap_or(Value::Boolean(false));
        base.clone().set(&key, &current).map_err(one_line)?;
        let mut values = Vec::new();
        for value in list(&key, value)? {
            let mut scenario = base.clone();
            scenario.set(&key, &value).map_err(one_line)?;
            let value = scenario.keys().remove(&key).unwrap_or(value);
            if values.contains(&value) {
                return Err(format!("{key}: {} is given twice", shown(&value)));
            }
            values.push(value);
        }
        Ok(Self { key, values })
    }
}

/// The values of a list `[2, 4]`, a range `"2..=16"` or a table `{ from = 2, to = 16, step = 2 }`.
fn list(key: &str, value: &Value) -> Result<Vec<Value>, String> {
    let needed = || {
        let needed = "must be a list such as [2, 4], a range such as \"2..=16\", or \
                      { from = 2, to = 16, step = 2 }";
        format!("{key} = {value}: {needed}")
    };
    let numbers = |from: i64, to: i64, step: i64| {
        let count = to.checked_sub(from).map(|length| length / step.max(1));
        if to < from || step < 1 {
            return Err(format!("{key} = {value}: the range is empty"));
        }
        if count.is_none_or(|count| count >= MOST_RUNS as i64) {
            return Err(format!("{key} = {value}: more than {MOST_RUNS} values"));
        }
        let numbers = (from..=to).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        Ok(numbers.map(Value::Integer).collect())
    };
    match value {
        Value::Array(values) if values.is_empty() => Err(format!("{key}: the list is empty")),
        Value::Array(values) => match values.iter().find(|v| v.is_array() || v.is_table()) {
            Some(_) => Err(needed()),
            None => Ok(values.clone()),
        },
        Value::String(text) => {
            let (from, to) = text.split_once("..").ok_or_else(needed)?;
            let number = |text: &str| text.trim().parse::<i64>().map_err(|_| needed());
            match to.strip_prefix('=') {
                Some(to) => numbers(number(from)?, number(to)?, 1),
                None => numbers(number(from)?, number(to)?.saturating_sub(1), 1),
            }
        }
        Value::Table(table) => {
            let keys = ["from", "to", "step"];
            if let Some(unknown) = table.keys().find(|key| !keys.contains(&key.as_str())) {
                let hint = suggestion(unknown, &keys);
                return Err(format!("{key}: unknown key `{unknown}`: {hint}"));
            }
            let number = |name| table.get(name).and_then(Value::as_integer);
            let step = if table.contains_key("step") {
                number("step").ok_or_else(needed)?
            } else {
                1
            };
            let (from, to) = number("from").zip(number("to")).ok_or_else(needed)?;
            numbers(from, to, step)
        }
        _ => Err(needed()),
    }
}

/// The seeds of a list or range.
pub(super) fn seeds(value: &Value) -> Result<Vec<u64>, String> {
    let mut seeds = Vec::new();
    for value in list("seeds", value)? {
        let seed = value.as_integer().and_then(|seed| u64::try_from(seed).ok());
        let seed = seed.ok_or_else(|| format!("seeds: {value} is not a whole number from 0 on"))?;
        seeds.push(seed);
    }
    let mut sorted = seeds.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(format!("seeds: {} is given twice", two[0])),
        None => Ok(seeds),
    }
}

/// Time windows, in ps.
pub(super) fn windows(value: &Value) -> Result<Vec<(Time, Time)>, String> {
    let needed = || format!("windows = {value}: must be a list such as [\"42ms..59ms\"]");
    let windows = value.as_array().ok_or_else(needed)?;
    let window = |text: &Value| {
        let text = text.as_str().ok_or_else(needed)?;
        window(text).map_err(|reason| format!("windows: {reason}"))
    };
    windows.iter().map(window).collect()
}
