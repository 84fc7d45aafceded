//! Scenario files: names of nodes, links, flows and times in TOML.
//!
//! A name such as `h[1-4]` stands for `h1` to `h4`. A link or flow between such names stands for one per name, in pairs
//! if both sides have a range.

use std::iter;
use std::str::FromStr as _;

use ecn_units::{DurationText, Rate, suggestion};
use serde::Deserialize;
use toml::Table;

use crate::fabric;
use crate::model::Model;
use crate::network::{Description, FlowSpec, LinkSpec};
use crate::scenario::{BUILT_IN, Scenario, ScenarioError, Topology, shown};
use crate::traffic::{Arrivals, Traffic};

/// Key of `[model]`: a built-in scenario whose model the other keys modify.
const PRESET: &str = "preset";

/// Maximum number of nodes, links or flows that one entry may stand for.
const MOST: u64 = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    duration: DurationText,
    switches: Vec<String>,
    hosts: Vec<String>,
    #[serde(default)]
    model: Table,
    links: Vec<LinkEntry>,
    flows: Vec<FlowEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    name: Option<String>,
    between: [String; 2],
    rate: Rate,
    delay: Option<DurationText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowEntry {
    class: String,
    from: String,
    to: String,
    #[serde(default = "zero")]
    start: DurationText,
    stop: Option<DurationText>,
    #[serde(default = "zero")]
    stagger: DurationText,
    #[serde(default = "hp_packet")]
    packet_bytes: u32,
    #[serde(default)]
    traffic: Traffic,
    #[serde(default = "yes")]
    control: bool,
    arrivals: Option<u32>,
    packets: Option<u32>,
}

const fn zero() -> DurationText {
    DurationText::from_nanos(0)
}

const fn yes() -> bool {
    true
}

const fn hp_packet() -> u32 {
    2068
}

/// Reads a scenario; `name` is used if the file contains no name.
pub(crate) fn parse(text: &str, name: &str) -> Result<Scenario, ScenarioError> {
    let bad = ScenarioError::Text;
    let file: Result<File, _> = toml::from_str(text);
    let mut file = file.map_err(|error| bad(misread(text, &error)))?;
    let mut description = Description {
        switches: expand_all(&file.switches).map_err(bad)?,
        hosts: expand_all(&file.hosts).map_err(bad)?,
        ..Description::default()
    };
    for link in &file.links {
        let [from, to] = &link.between;
        let ends = pairs(from, to).map_err(bad)?;
        let alone = ends.len() == 1;
        for (from, to) in ends {
            let name = match &link.name {
                Some(name) if alone => name.clone(),
                Some(name) => format!("{name} {from}"),
                None => format!("{from}-{to}"),
            };
            description.links.push(LinkSpec {
                name,
                between: [from, to],
                rate: link.rate,
                delay: link.delay.unwrap_or(zero()),
            });
        }
    }
    for flow in &file.flows {
        let arrivals = match (flow.arrivals, flow.packets) {
            (Some(per_s), packets) => Some(Arrivals {
                per_s,
                packets: packets.unwrap_or(1),
            }),
            (None, None) => None,
            (None, Some(_)) => {
                let class = &flow.class;
                let reason =
                    format!("flow `{class}`: `packets` needs `arrivals`, flows per second");
                return Err(bad(reason));
            }
        };
        let ends = pairs(&flow.from, &flow.to).map_err(bad)?;
        for (index, (from, to)) in (0..).zip(ends) {
            let later = flow.stagger.as_nanos().saturating_mul(index);
            let start = flow.start.as_nanos().saturating_add(later);
            if flow.stop.is_some_and(|stop| stop.as_nanos() <= start) {
                return Err(bad(format!(
                    "flow `{}` from `{from}` stops before it starts",
                    flow.class
                )));
            }
            description.flows.push(FlowSpec {
                class: flow.class.clone(),
                from,
                to,
                start: DurationText::from_nanos(start),
                stop: flow.stop,
                packet_bytes: flow.packet_bytes,
                traffic: flow.traffic,
                controlled: flow.control,
                arrivals,
            });
        }
    }
    let model = preset(&mut file.model)?;
    let topology = Topology::Described {
        description,
        duration: file.duration,
    };
    let name = file.name.unwrap_or_else(|| name.to_owned());
    let mut scenario = Scenario::new(name, topology, model);
    for (key, value) in &file.model {
        if key == "duration" {
            return Err(bad(
                "`duration` must be at the top of the file, not in [model]".to_owned(),
            ));
        }
        scenario.set(key, value)?;
    }
    scenario.network()?;
    Ok(scenario)
}

/// The model that the keys of `[model]` modify; removes `preset` from them.
fn preset(model: &mut Table) -> Result<Model, ScenarioError> {
    let Some(name) = model.remove(PRESET) else {
        return Ok(Model::default());
    };
    let name = shown(&name);
    if let Some(like) = Scenario::built_in(&name) {
        return Ok(like.model);
    }
    let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
    let hint = suggestion(&name, &known);
    let reason = format!("[model] {PRESET} = \"{name}\": {hint}");
    Err(ScenarioError::Text(reason))
}

/// Describes an error in a file; suggests `topology = "custom"` if the file looks like a data centre.
fn misread(text: &str, error: &toml::de::Error) -> String {
    let reason = located(text, error);
    let message = error.message();
    let unknown = message.strip_prefix("unknown field `");
    let unknown = unknown.and_then(|rest| rest.split('`').next());
    let keys = fabric::Scenario::of(fabric::Kind::FatTree).keys();
    let is_of_another =
        |key: &str| keys.contains_key(key) || ["failures", "size", "priority"].contains(&key);
    let of_another = message == "missing field `rate`" || unknown.is_some_and(is_of_another);
    match of_another {
        true => format!("{reason}; a data centre needs `topology = \"custom\"`"),
        false => reason,
    }
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
