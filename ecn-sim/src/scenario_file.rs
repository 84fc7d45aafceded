//! Files that describe a network: nodes, links, flows and times in TOML.

use ecn_units::{DurationText, Rate, suggestion};
use serde::Deserialize;
use toml::Table;

use crate::fabric::parameters;
use crate::model::Model;
use crate::network::{Description, FlowSpec, LinkSpec};
use crate::scenario::{BUILT_IN, Scenario, Topology};
use crate::settings::{ScenarioError, expand_all, located, pairs, shown};
use crate::traffic::{Arrivals, Traffic};

/// Key of `[model]`: a built-in scenario whose model the other keys modify.
const PRESET: &str = "preset";

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
    let is_of_another =
        |key: &str| parameters::is_key(key) || ["failures", "size", "priority"].contains(&key);
    let of_another = message == "missing field `rate`" || unknown.is_some_and(is_of_another);
    match of_another {
        true => format!("{reason}; a data centre needs `topology = \"custom\"`"),
        false => reason,
    }
}
