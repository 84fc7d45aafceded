//! What is simulated: HP's Fig. 1 (`hp`), the testbed model (`rig`), a bridge with hosts (`bridge`), or a network
//! described by a TOML file.

mod bridge;

use std::borrow::Cow;
use std::sync::Arc;

use ecn_report::figure::NetworkFigure;
use ecn_units::{DurationText, Fraction, Rate, Round, UnitError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

pub use self::bridge::{Bridge, Moment};
use crate::bounds::{LONGEST_DELAY, ModelError, in_range};
use crate::design;
use crate::endpoint::Designed;
use crate::engine::{NS, Time};
use crate::fabric::parameters;
use crate::model::{Model, Response, SwitchKind};
use crate::network::{Description, FlowSpec, LinkSpec, Network};
pub use crate::settings::{ScenarioError, Victim, shown, window};
use crate::settings::{parted, table, with_key};
use crate::traffic::Traffic;

/// HP's Fig. 1: its parameters in addition to the [`Model`].
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct Hp {
    /// Number of local flows, and of remote flows (G: 5 to 20).
    #[schemars(extend("unit" = "flows"))]
    pub flows: u32,
    /// When the victim sends (G).
    pub victim: Victim,
    /// Length of the run (G; 500ms for Fig. 4).
    pub duration: DurationText,
    /// Rate of every link (G: 4X, 1 GB/s).
    pub link_rate: Rate,
    /// Propagation delay of every link (R).
    pub link_delay: DurationText,
    /// Size of a data packet, header included (G: 20 and 2048 bytes).
    #[schemars(extend("unit" = "bytes"))]
    pub packet_bytes: u32,
    /// Delay between the starts of successive flows (G).
    pub stagger: DurationText,
}

impl Default for Hp {
    fn default() -> Self {
        let ms = DurationText::from_millis;
        Self {
            flows: 10,
            victim: Victim::During(ms(40), ms(60)),
            duration: ms(100),
            link_rate: Rate::from_bytes_per_s(1_000_000_000).unwrap_or(Rate::MAX),
            link_delay: ms(0),
            packet_bytes: 2068,
            stagger: DurationText::from_micros(100),
        }
    }
}

fn check_duration(duration: DurationText) -> Result<(), ModelError> {
    let (shortest, longest) = (DurationText::from_micros(1), DurationText::from_secs(3600));
    if (shortest.as_nanos()..=longest.as_nanos()).contains(&duration.as_nanos()) {
        return Ok(());
    }
    let reason = format!("must be between {shortest} and {longest}");
    Err(ModelError::new("duration", duration, reason))
}

fn check_warm_up(warm_up: DurationText, duration: DurationText) -> Result<(), ModelError> {
    if warm_up < duration {
        return Ok(());
    }
    let reason = format!("must be less than the duration, {duration}");
    Err(ModelError::new("warm_up", warm_up, reason))
}

fn check_delay(key: &str, delay: DurationText) -> Result<(), ModelError> {
    if delay <= LONGEST_DELAY {
        return Ok(());
    }
    let reason = format!("must be at most {LONGEST_DELAY}");
    Err(ModelError::new(key, delay, reason))
}

/// The model of the testbed of `ecn rig run`: Fig. 1 as bridges. Its parameters in addition to the [`Model`].
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct Rig {
    /// Number of local flows.
    #[schemars(extend("unit" = "flows"))]
    pub local: u32,
    /// Number of remote flows.
    #[schemars(extend("unit" = "flows"))]
    pub remote: u32,
    /// When the victim sends.
    pub victim: Victim,
    /// Warm-up time before the measurement.
    pub warm_up: DurationText,
    /// Length of the run, warm-up included.
    pub duration: DurationText,
    /// Rate of every link.
    pub link_rate: Rate,
    /// Propagation delay of every link.
    pub link_delay: DurationText,
    /// Size of a data packet, header included.
    #[schemars(extend("unit" = "bytes"))]
    pub packet_bytes: u32,
    /// Delay between the starts of successive flows.
    pub stagger: DurationText,
}

impl Default for Rig {
    fn default() -> Self {
        Self {
            local: 10,
            remote: 10,
            victim: Victim::On,
            warm_up: DurationText::from_secs(4),
            duration: DurationText::from_secs(14),
            link_rate: Rate::from_bytes_per_s(12_500_000).unwrap_or(Rate::MAX),
            link_delay: DurationText::from_nanos(0),
            packet_bytes: 2068,
            stagger: DurationText::from_micros(100),
        }
    }
}

impl Rig {
    /// Model of bridges and endpoints: the rig's defaults, and delays measured on it.
    fn model() -> Model {
        Model {
            switch: SwitchKind::Output,
            rmin: Fraction::new(1, 64).unwrap_or(Model::default().rmin),
            round: Round::Fractional,
            // A ping through the idle rig returns after 25 us: two bridges, two hosts. The echo's programs take less
            // than the rest. Delays ten times as long change no share by 0.02.
            forwarding_delay: DurationText::from_micros(3),
            ack_delay: DurationText::from_micros(15),
            ..Model::default()
        }
    }

    /// Fig. 1, as [`Hp::describe`].
    ///
    /// # Errors
    ///
    /// A number out of range.
    pub fn describe(&self) -> Result<Description, ModelError> {
        in_range("local", self.local, 0..=250)?;
        in_range("remote", self.remote, 0..=250)?;
        check_warm_up(self.warm_up, self.duration)?;
        self.fig1()
    }
}

/// Names in Fig. 1.
const A: &str = "A";
const B: &str = "B";

impl Hp {
    /// Fig. 1: remote sources A1.. and the victim's AV at switch A, local ones B1.. and the
    /// destinations BC and BV at switch B.
    ///
    /// # Errors
    ///
    /// A number out of range.
    pub fn describe(&self) -> Result<Description, ModelError> {
        in_range("flows", self.flows, 1..=250)?;
        Rig {
            local: self.flows,
            remote: self.flows,
            victim: self.victim,
            warm_up: DurationText::from_nanos(0),
            duration: self.duration,
            link_rate: self.link_rate,
            link_delay: self.link_delay,
            packet_bytes: self.packet_bytes,
            stagger: self.stagger,
        }
        .fig1()
    }
}

impl Rig {
    /// The network of Fig. 1, with any kind of switch.
    fn fig1(&self) -> Result<Description, ModelError> {
        in_range("packet_bytes", self.packet_bytes, 64..=1_000_000)?;
        check_duration(self.duration)?;
        check_delay("link_delay", self.link_delay)?;
        check_delay("stagger", self.stagger)?;
        let mut description = Description {
            switches: vec![A.into(), B.into()],
            ..Description::default()
        };
        let mut link = |name: &str, from: &str, to: &str| {
            description.links.push(LinkSpec {
                name: name.to_owned(),
                between: [from.to_owned(), to.to_owned()],
                rate: self.link_rate,
                delay: self.link_delay,
            });
        };
        let numbered = |letter: &str, count| -> Vec<String> {
            (1..=count).map(|n| format!("{letter}{n}")).collect()
        };
        let (remote, local) = (numbered("A", self.remote), numbered("B", self.local));
        link("inter-switch", A, B);
        link("root", B, "BC");
        link("victim", B, "BV");
        link("AV", "AV", A);
        remote.iter().for_each(|host| link(host, host, A));
        local.iter().for_each(|host| link(host, host, B));
        description.hosts = ["BC", "BV", "AV"].map(str::to_owned).to_vec();
        description
            .hosts
            .extend(remote.iter().chain(&local).cloned());
        let flow = |class: &str, from: &str, to: &str, start, stop| FlowSpec {
            class: class.to_owned(),
            from: from.to_owned(),
            to: to.to_owned(),
            start,
            stop,
            packet_bytes: self.packet_bytes,
            traffic: Traffic::Greedy,
            controlled: true,
            arrivals: None,
        };
        let classes = local.iter().map(|host| ("local", host));
        let classes = classes.chain(remote.iter().map(|host| ("remote", host)));
        for (index, (class, host)) in classes.enumerate() {
            let start = DurationText::from_nanos(self.stagger.as_nanos() * index as u64);
            description.flows.push(flow(class, host, "BC", start, None));
        }
        let active = match self.victim {
            Victim::Off => None,
            Victim::On => Some((DurationText::from_nanos(0), None)),
            Victim::During(from, to) => Some((from, Some(to))),
        };
        let victim = active.map(|(from, to)| flow("victim", "AV", "BV", from, to));
        description.flows.extend(victim);
        Ok(description)
    }
}

/// Kind of network.
#[derive(Clone, Debug, PartialEq)]
pub enum Topology {
    /// Fig. 1.
    Hp(Hp),
    /// Fig. 1 as the testbed model.
    Rig(Rig),
    /// One bridge.
    Bridge(Bridge),
    /// From a file.
    Described {
        /// The network.
        description: Description,
        /// Length of the run.
        duration: DurationText,
    },
}

/// Everything that a run needs except its seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Who is connected to whom.
    pub topology: Topology,
    /// Parameters of switches and endpoints.
    pub model: Model,
    /// The model before any key was set.
    pub default_model: Model,
}

/// Names and descriptions of the built-in scenarios.
pub const BUILT_IN: &[(&str, &str)] = &[
    (
        "hp",
        "Fig. 1 of the HP papers: local and remote flows to one destination, and a victim",
    ),
    (
        "rig",
        "the testbed model of `ecn rig run`: Fig. 1 as Linux bridges, with measured delays",
    ),
    (
        "bridge",
        "a Linux bridge: hosts, each at its own port, send to one receiver",
    ),
];

impl Scenario {
    pub(crate) fn new(name: String, topology: Topology, model: Model) -> Self {
        Self {
            name,
            topology,
            default_model: model.clone(),
            model,
        }
    }

    /// HP's Fig. 1 with the papers' values.
    pub fn hp() -> Self {
        let topology = Topology::Hp(Hp::default());
        Self::new("hp".to_owned(), topology, Model::default())
    }

    /// The testbed model with its default values.
    pub fn rig() -> Self {
        let topology = Topology::Rig(Rig::default());
        Self::new("rig".to_owned(), topology, Rig::model())
    }

    /// A Linux bridge with its default values.
    pub fn bridge() -> Self {
        let topology = Topology::Bridge(Bridge::default());
        Self::new("bridge".to_owned(), topology, Bridge::model())
    }

    /// A built-in scenario by name.
    pub fn built_in(name: &str) -> Option<Self> {
        match name {
            "hp" => Some(Self::hp()),
            "rig" => Some(Self::rig()),
            "bridge" => Some(Self::bridge()),
            _ => None,
        }
    }

    /// Length of the run.
    pub fn duration(&self) -> Time {
        let duration = match &self.topology {
            Topology::Hp(hp) => hp.duration,
            Topology::Rig(rig) => rig.duration,
            Topology::Bridge(bridge) => bridge.duration,
            Topology::Described { duration, .. } => *duration,
        };
        duration.as_nanos().saturating_mul(NS)
    }

    /// The network as described.
    ///
    /// # Errors
    ///
    /// A value out of its range.
    fn description(&self) -> Result<Cow<'_, Description>, ModelError> {
        Ok(match &self.topology {
            Topology::Hp(hp) => Cow::Owned(hp.describe()?),
            Topology::Rig(rig) => Cow::Owned(rig.describe()?),
            Topology::Bridge(bridge) => Cow::Owned(bridge.describe()?),
            Topology::Described {
                description,
                duration,
            } => {
                check_duration(*duration)?;
                let late = description.flows.iter().map(|flow| flow.start).max();
                if let Some(start) = late.filter(|start| start >= duration) {
                    let reason = format!("must be before the end of the run, duration={duration}");
                    return Err(ModelError::new("start", start, reason));
                }
                Cow::Borrowed(description)
            }
        })
    }

    /// A figure of the network.
    ///
    /// # Errors
    ///
    /// As for [`Self::network`].
    pub fn figure(&self) -> Result<NetworkFigure, ScenarioError> {
        self.network()?;
        let described = self.description()?;
        let switch = |name: &String| described.switches.iter().position(|one| one == name);
        let (mut hosts, mut links) = (Vec::new(), Vec::new());
        for link in &described.links {
            let [a, b] = &link.between;
            match (switch(a), switch(b)) {
                (Some(a), Some(b)) => links.push((a, b)),
                (None, Some(switch)) => hosts.push((a.clone(), switch)),
                (Some(switch), None) => hosts.push((b.clone(), switch)),
                (None, None) => {}
            }
        }
        Ok(NetworkFigure {
            title: self.name.clone(),
            note: format!(
                "{} hosts, {} switches, {} links",
                described.hosts.len(),
                described.switches.len(),
                described.links.len()
            ),
            switches: described.switches.clone(),
            hosts,
            links,
            ..NetworkFigure::default()
        })
    }

    /// The network, ready to run.
    ///
    /// # Errors
    ///
    /// A value out of range, or an invalid network.
    pub fn network(&self) -> Result<Network, ScenarioError> {
        self.model.check()?;
        let described = &*self.description()?;
        self.model.mark_in.check(&described.switches)?;
        Ok(Network::new(described, &self.model)?)
    }

    /// The designed function, if the response is one.
    ///
    /// # Errors
    ///
    /// Its file cannot be read, or was made for another Rmin.
    pub fn table(&self) -> Result<Option<Arc<dyn Designed>>, ScenarioError> {
        let Response::Table(file) = &self.model.response else {
            return Ok(None);
        };
        let error = |reason: String| ScenarioError::Value {
            key: "response".to_owned(),
            value: self.model.response.to_string(),
            reason,
        };
        let table = design::Table::load(file).map_err(|e| error(e.to_string()))?;
        if table.rmin() != self.model.rmin {
            let (made, set) = (table.rmin(), self.model.rmin);
            return Err(error(format!(
                "made for rmin={made}, but rmin is {set}: set rmin={made}, or design a table for {set}"
            )));
        }
        Ok(Some(Arc::new(table)))
    }

    /// The applicable keys with their values, as in `--set` and sweep files.
    pub fn parameters(&self) -> Table {
        let mut all = self.all_keys();
        for key in self.model.inapplicable_keys() {
            all.remove(*key);
        }
        all
    }

    /// Keys that are set although they have no effect with the other values.
    pub fn set_but_inapplicable(&self) -> Vec<String> {
        let (own, defaults) = (table(&self.model), table(&self.default_model));
        let mut keys = self.model.without_effect();
        keys.retain(|key| own.get(*key) != defaults.get(*key));
        keys.into_iter().map(str::to_owned).collect()
    }

    /// Checks that no such key is set.
    ///
    /// # Errors
    ///
    /// The first such key.
    pub fn check_applicable(&self) -> Result<(), ModelError> {
        self.check_keys(|_| true)
    }

    /// [`Self::check_applicable`] for these settings, `KEY=VALUE`: a key from a file that no longer applies after these
    /// settings is not an error.
    ///
    /// # Errors
    ///
    /// The first such key.
    pub fn check_settings(&self, settings: &[String]) -> Result<(), ModelError> {
        let keys = settings
            .iter()
            .filter_map(|setting| setting.split_once('='));
        let keys: Vec<&str> = keys.map(|(key, _)| key.trim()).collect();
        self.check_keys(|key| keys.contains(&key))
    }

    fn check_keys(&self, is_checked: impl Fn(&str) -> bool) -> Result<(), ModelError> {
        let inapplicable = self.set_but_inapplicable();
        let Some(key) = inapplicable.into_iter().find(|key| is_checked(key)) else {
            return Ok(());
        };
        let (name, model) = (&self.name, &self.model);
        let reason = format!(
            "does not apply to {name}, marking={}, response={}, round={}, switch={}",
            model.marking, model.response, model.round, model.switch
        );
        let value = table(model).get(&key).map(shown).unwrap_or_default();
        Err(ModelError::new(key, value, reason))
    }

    /// Resets a key of the model to its default.
    ///
    /// # Errors
    ///
    /// The key is unknown.
    pub fn reset(&mut self, key: &str) -> Result<(), ScenarioError> {
        let default = table(&self.default_model).remove(key);
        self.set(key, &default.unwrap_or(Value::Boolean(false)))
    }

    /// All keys, including those that do not apply to the kind of switch.
    fn all_keys(&self) -> Table {
        let mut all = table(&self.model);
        match &self.topology {
            Topology::Hp(hp) => all.extend(table(hp)),
            Topology::Rig(rig) => all.extend(table(rig)),
            Topology::Bridge(bridge) => all.extend(table(bridge)),
            Topology::Described { duration, .. } => {
                all.insert("duration".into(), Value::String(duration.to_string()));
            }
        }
        all
    }

    /// Sets one key from `KEY=VALUE`.
    ///
    /// # Errors
    ///
    /// The key is unknown, or does not accept the value; the scenario is then unchanged.
    pub fn set_text(&mut self, setting: &str) -> Result<(), ScenarioError> {
        let (key, value) = parted(setting)?;
        self.set(key, &value)
    }

    /// Sets one key. Numbers may be given as text, and texts that are numbers as numbers.
    ///
    /// # Errors
    ///
    /// As for [`Self::set_text`].
    pub fn set(&mut self, key: &str, value: &Value) -> Result<(), ScenarioError> {
        let all = self.all_keys();
        if !all.contains_key(key) && parameters::is_key(key) {
            let name = &self.name;
            let hint = format!(
                "applies to data centres, such as `fig1` (HP's Fig. 1 as a data centre), not to `{name}`"
            );
            return Err(ScenarioError::UnknownKey {
                key: key.to_owned(),
                hint,
            });
        }
        let (all, reason) = with_key(all, key, value)?;
        let bad = |error: toml::de::Error| reason(error.message());
        let model: Model = all.clone().try_into().map_err(bad)?;
        match &mut self.topology {
            Topology::Hp(hp) => *hp = all.try_into().map_err(bad)?,
            Topology::Rig(rig) => *rig = all.try_into().map_err(bad)?,
            Topology::Bridge(bridge) => *bridge = all.try_into().map_err(bad)?,
            Topology::Described { duration, .. } => {
                if key == "duration" {
                    *duration = shown(value)
                        .parse()
                        .map_err(|e: UnitError| reason(&e.to_string()))?;
                }
            }
        }
        self.model = model;
        Ok(())
    }
}
