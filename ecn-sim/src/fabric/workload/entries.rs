//! Flows described by `[[flows]]` in a scenario file.

use std::collections::HashMap;

use ecn_units::{DurationText, Rate, Size, suggestion};
use serde::Deserialize;

use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::{Arrival, UNLIMITED, packet_time, round_robin};
use crate::bounds::ModelError;
use crate::engine::{NS, Time};
use crate::fabric::parameters::FabricParameters;
use crate::settings::pairs;

/// Maximum number of names in a message.
const NAMES: usize = 8;

/// An entry of `[[flows]]`; with ranges of names, several flows.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowEntry {
    /// Class for which reports sum up flows.
    pub class: String,
    from: String,
    to: String,
    #[serde(default = "zero")]
    start: DurationText,
    /// Delay of each of several flows relative to the previous one.
    #[serde(default = "zero")]
    stagger: DurationText,
    /// Data not sent by this time is not sent at all.
    stop: Option<DurationText>,
    /// Payload; if missing, the flow sends until it stops or the run ends.
    size: Option<Size>,
    /// Maximum rate offered by the application, including headers; if missing, limited by the link only.
    rate: Option<Rate>,
    /// Class of the data (`priorities`); if missing, round-robin.
    priority: Option<u8>,
}

const fn zero() -> DurationText {
    DurationText::from_nanos(0)
}

/// Names of the classes, in order of first appearance.
pub(crate) fn classes(entries: &[FlowEntry]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for entry in entries {
        if !names.contains(&entry.class) {
            names.push(entry.class.clone());
        }
    }
    names
}

/// The flows in order of starts, between hosts with these names. Seeds other than 1 shift starts by less than a packet
/// time.
///
/// # Errors
///
/// A host that does not exist, or a value out of its range, by class.
pub(crate) fn flows(
    entries: &[FlowEntry],
    hosts: &[String],
    parameters: &FabricParameters,
    seed: u64,
) -> Result<Vec<Arrival>, ModelError> {
    let numbers: HashMap<&str, u32> = hosts.iter().map(String::as_str).zip(0..).collect();
    let classes = classes(entries);
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut flows = Vec::new();
    for entry in entries {
        let refused = |reason: String| ModelError::new("flows", &entry.class, reason);
        let label = classes.iter().position(|class| *class == entry.class);
        for (index, (from, to)) in (0..).zip(pairs(&entry.from, &entry.to).map_err(refused)?) {
            let host = |name: &String| {
                numbers.get(name.as_str()).copied().ok_or_else(|| {
                    let known: Vec<&str> = hosts.iter().map(String::as_str).collect();
                    let few = match known.len() {
                        few if few <= NAMES => suggestion(name, &known),
                        _ => match ecn_units::nearest(name, known.iter().copied()) {
                            Some(near) => format!("did you mean `{near}`?"),
                            None => format!("hosts are {} to {}", known[0], known[known.len() - 1]),
                        },
                    };
                    refused(format!("unknown host `{name}`: {few}"))
                })
            };
            let flow = entry.flow(host(&from)?, host(&to)?, index, parameters);
            let flow = flow.map_err(refused)?;
            // With seed 1, flows are as listed.
            let later = match seed {
                1 => 0,
                _ => random.random_range(0..packet_time(parameters)),
            };
            let flow = Arrival {
                start: flow.start + later,
                label: label.unwrap_or_default() as u16,
                ..flow
            };
            flows.push((flow, entry.priority));
        }
    }
    flows.sort_by_key(|(flow, _)| flow.start);
    let numbered = (1..).zip(flows).map(|(id, (flow, priority))| Arrival {
        priority: priority.unwrap_or_else(|| round_robin(id, parameters.priorities)),
        ..flow
    });
    Ok(numbered.collect())
}

impl FlowEntry {
    /// The flow between its `index`-th pair of hosts.
    fn flow(
        &self,
        from: u32,
        to: u32,
        index: u64,
        parameters: &FabricParameters,
    ) -> Result<Arrival, String> {
        if from == to {
            return Err(format!("`{}` sends to itself", self.from));
        }
        let start = self.start.as_nanos() + self.stagger.as_nanos().saturating_mul(index);
        let limit = parameters.limit;
        if start >= limit.as_nanos() {
            let start = DurationText::from_nanos(start);
            return Err(format!(
                "must start before the end, limit={limit}, not at {start}"
            ));
        }
        if let Some(stop) = self.stop.filter(|stop| stop.as_nanos() <= start) {
            let start = DurationText::from_nanos(start);
            return Err(format!(
                "must stop after its start at {start}, not at {stop}"
            ));
        }
        let most = u64::from(parameters.payload) * u64::from(u32::MAX / 2);
        let bytes = self.size.map_or(most, Size::bytes);
        if !(1..=most).contains(&bytes) {
            return Err(format!("size must be between 1 and {most} bytes"));
        }
        let most = parameters.priorities;
        if self
            .priority
            .is_some_and(|priority| u32::from(priority) >= most)
        {
            return Err(format!("priority must be below priorities={most}"));
        }
        Ok(Arrival {
            stop: self.stop.map_or(Time::MAX, |stop| stop.as_nanos() * NS),
            rate: self.rate.map_or(UNLIMITED, Rate::bytes_per_s),
            ..Arrival::new(start * NS, from, to, bytes)
        })
    }
}
