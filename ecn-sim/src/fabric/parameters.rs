//! What can be chosen of a fabric, by `--set KEY=VALUE`.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::credit;
use super::packet::LINK_BYTES;
use super::scheme;
use super::switch::{MOST_CLASSES, headroom_needed};
use super::topology::{
    Plan, Topology, chain, dumbbell, fat_tree, fat_tree_ports, leaf_spine, parking_lot,
};
use super::workload::{Arrival, Arrivals, Cdf, Workload, arrivals, carried};
use crate::engine::{NS, Time};
use crate::figure::NetworkFigure;
use crate::keywords;
use crate::model::ModelError;
use crate::scenario::{ScenarioError, dotted, shown, with_key};
use crate::units::{DurationText, Fraction, Rate, Size};

/// A value, or `auto`: what follows from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auto<T> {
    /// Follows from others.
    Auto,
    /// This.
    Is(T),
}

impl<T> Auto<T> {
    /// The value, or this one.
    pub fn or(self, value: T) -> T {
        match self {
            Self::Auto => value,
            Self::Is(own) => own,
        }
    }
}

impl<T: fmt::Display> fmt::Display for Auto<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Is(value) => value.fmt(f),
        }
    }
}

impl<T: FromStr<Err: fmt::Display>> FromStr for Auto<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let reason = |error| format!("{error}; or auto");
        text.parse().map(Self::Is).map_err(reason)
    }
}

impl<T: fmt::Display> Serialize for Auto<T> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Auto<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

keywords! {
    /// What keeps switches from overflowing.
    FlowControl {
        /// Priority flow control (IEEE 802.1Qbb): a port that holds too much pauses the one before it.
        #[default]
        Pfc = "pfc",
        /// Credit-based flow control (InfiniBand): each port has a buffer of its own, and the one before
        /// it sends what that has told it of.
        Cbfc = "cbfc",
        /// Nothing: what does not fit is dropped, and sent again from there on (go-back-N).
        None = "none",
    }
}

keywords! {
    /// How much of a switch's shared memory a port may use.
    Thresholds {
        /// `alpha` times what is free.
        #[default]
        Dynamic = "dynamic",
        /// `xoff`.
        Static = "static",
    }
}

/// Everything but the scheme.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// Number of hosts.
    pub hosts: u32,
    /// Fat tree: ports per switch, even. `auto`: the fewest with `k^3 / 4 >= hosts`; reports say which.
    pub k: Auto<u32>,
    /// Leaf-spine: number of leaves.
    pub leaves: u32,
    /// Leaf-spine: number of spines.
    pub spines: u32,
    /// Parking lot: number of switches. `auto`: 4, or as many as hosts.
    pub switches: Auto<u32>,
    /// Who sends what to whom.
    pub workload: Workload,
    /// Incast and chain: how many send to one.
    pub senders: u32,
    /// Incast, permutation, all-to-all and on-off: payload of each flow. All-reduce: the vector. Chain: of each
    /// sender of a burst.
    pub flow_size: Size,
    /// Poisson and on-off: payload that is offered, as a share of the hosts' links. Chain: what `S0` and `S1`
    /// offer each.
    pub load: Fraction,
    /// Poisson: the distribution of the flows' sizes.
    pub cdf: Cdf,
    /// Poisson: payload that is offered beside `load` in bursts of many hosts to one, as a share of the
    /// hosts' links; 0 is none, and 0.02 is usual (`workloads.md`).
    pub incast_load: Fraction,
    /// Poisson: hosts of such a burst that send (`workloads.md`).
    pub incast_senders: u32,
    /// Poisson: what each of them sends (`workloads.md`).
    pub incast_size: Size,
    /// Chain: time between two bursts.
    pub burst_gap: DurationText,
    /// Poisson and on-off: flows start for so long; all of them are finished. Greedy: so long a flow takes alone.
    /// Chain: so long `S0` and `S1` send, and bursts come.
    pub duration: DurationText,
    /// The run ends here, with whatever is finished then.
    pub limit: DurationText,
    /// Payload of a packet, bytes.
    pub payload: u32,
    /// Header bytes of a data packet. RoCEv2: Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4. An
    /// ACK has an AETH of 4 instead of payload, a CNP 16 reserved bytes. Preamble and gap, 20 bytes, are
    /// not in it, as in the simulators that this is compared with; 82 has them.
    pub header: u32,
    /// Rate of every link.
    pub link_rate: Rate,
    /// Propagation delay of every link.
    pub link_delay: DurationText,
    /// What keeps switches from overflowing.
    pub flow_control: FlowControl,
    /// Classes of data: PFC's priorities, InfiniBand's data lanes; also with tail drop. Each has its queues, limits and
    /// pauses or credits. Flows have them by turns, in the order of their starts, unless their file says which. ACKs and
    /// notifications have another one, which is never paused.
    pub priorities: u32,
    /// Memory of a switch, per port (V2 has 32 MB for 32 ports). `cbfc`: the buffer of each port, in
    /// equal parts for its lanes.
    pub buffer: Size,
    /// `cbfc`: a port tells of its buffer so often, where there is something new to tell.
    pub credit_period: DurationText,
    /// How much of it a port may use for a class before it pauses the one before it (`pfc`: counted where packets
    /// came in) or drops (`none`: counted where they go out).
    pub thresholds: Thresholds,
    /// Factor of the dynamic threshold (V2: a shift of 3).
    pub alpha: Fraction,
    /// The static threshold.
    pub xoff: Size,
    /// A paused class goes on this far below the threshold. `auto`: two packets (V1).
    pub xon_gap: Auto<Size>,
    /// Memory of each port for what still arrives after it asked for a pause, in equal parts for its priorities. `auto`:
    /// as much as can.
    pub headroom: Auto<Size>,
    /// Bytes that a flow may have in flight. `auto`: no limit; with HP's schemes, which have a fixed window
    /// beside the rate, what the longest path takes in a round trip.
    pub window: Auto<Size>,
    /// Tail drop: a flow that got no ACK for so long sends again what is not acknowledged;
    /// the time doubles up to 64 times as long while there is no progress.
    pub retransmit_after: DurationText,
    /// Congestion control.
    pub scheme: scheme::Name,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            hosts: 128,
            k: Auto::Auto,
            leaves: 8,
            spines: 8,
            switches: Auto::Auto,
            workload: Workload::Incast,
            senders: 20,
            flow_size: Size::from_bytes(1_000_000),
            load: Fraction::ratio(1, 2),
            cdf: Cdf::WebSearch,
            burst_gap: DurationText::from_micros(250),
            incast_load: Fraction::ratio(0, 1),
            incast_senders: 60,
            incast_size: Size::from_bytes(500_000),
            duration: DurationText::from_millis(1),
            limit: DurationText::from_secs(10),
            payload: 1_000,
            header: 62,
            link_rate: Rate::from_bits_per_s(100_000_000_000).unwrap_or(Rate::MAX),
            link_delay: DurationText::from_micros(1),
            flow_control: FlowControl::Pfc,
            priorities: 1,
            buffer: Size::from_bytes(1_000_000),
            credit_period: DurationText::from_micros(4),
            thresholds: Thresholds::Dynamic,
            alpha: Fraction::ratio(1, 8),
            xoff: Size::from_bytes(100_000),
            xon_gap: Auto::Auto,
            headroom: Auto::Auto,
            window: Auto::Auto,
            retransmit_after: DurationText::from_millis(1),
            scheme: scheme::Name::None,
        }
    }
}

keywords! {
    /// The built-in fabrics.
    Kind {
        /// Three tiers of switches with as many ports each.
        #[default]
        FatTree = "fat-tree",
        /// Two tiers.
        LeafSpine = "leaf-spine",
        /// Two switches, one link.
        Dumbbell = "dumbbell",
        /// Switches in a row, with hosts at each.
        ParkingLot = "parking-lot",
        /// TCD's chain: two flows share it, and bursts congest the end of one of them.
        Chain = "chain",
    }
}

impl Kind {
    /// What it is, in a line.
    pub const fn about(self) -> &'static str {
        match self {
            Self::FatTree => "a data centre: k-ary fat tree, PFC or tail drop, DCQCN or none",
            Self::LeafSpine => "the same with leaves and spines",
            Self::Dumbbell => "the same with two switches and one link between them",
            Self::ParkingLot => "the same with switches in a row and hosts at each",
            Self::Chain => {
                "TCD's chain: two flows share it, and bursts congest the end of one of them"
            }
        }
    }
}

/// A fabric that can be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name, if it has another one than its topology.
    pub name: Option<String>,
    /// Its topology, unless it has a plan of its own.
    pub kind: Kind,
    /// The network that its file describes.
    plan: Option<Plan>,
    /// These flows, by their starts, instead of a workload.
    flows: Option<Vec<Arrival>>,
    /// What was chosen.
    pub parameters: Parameters,
    /// And of the schemes.
    pub schemes: scheme::Parameters,
}

/// What an ACK has beyond a data packet's header.
pub const ACK_EXTRA: u32 = 4;
/// What a CNP has beyond it.
pub const CNP_EXTRA: u32 = 16;

fn within(key: &'static str, value: u64, least: u64, most: u64) -> Result<(), ModelError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let reason = format!("{least} to {most} is allowed");
    Err(ModelError::new(key, value, reason))
}

impl Scenario {
    /// A built-in fabric by name.
    pub fn find(name: &str) -> Option<Self> {
        Some(Self::of(name.parse().ok()?))
    }

    /// A built-in fabric.
    pub fn of(kind: Kind) -> Self {
        let mut parameters = Parameters::default();
        if kind == Kind::ParkingLot {
            // Two at each switch.
            parameters.hosts = 8;
            parameters.workload = Workload::Greedy;
        }
        if kind == Kind::Chain {
            // The paper's fifteen, and S0, S1, R0 and R1.
            parameters.hosts = 19;
            parameters.senders = 15;
            parameters.workload = Workload::Chain;
            // Both fit on the chain: what fills its queues is that it is paused.
            parameters.load = Fraction::ratio(2, 5);
            // With `load`, nine tenths of the link to R1.
            parameters.flow_size = Size::from_bytes(100_000);
            parameters.thresholds = Thresholds::Static;
        }
        Self {
            name: None,
            kind,
            plan: None,
            flows: None,
            parameters,
            schemes: scheme::Parameters::default(),
        }
    }

    /// A network of one's own.
    pub(super) fn custom(plan: Plan) -> Self {
        let mut scenario = Self::of(Kind::default());
        scenario.parameters.hosts = plan.hosts;
        scenario.plan = Some(plan);
        scenario
    }

    /// With these flows, by their starts, whatever the workload is.
    #[must_use]
    pub fn with_flows(mut self, mut flows: Vec<Arrival>) -> Self {
        flows.sort_by_key(|flow| flow.start);
        self.flows = Some(flows);
        self
    }

    /// The flows of a run on its topology.
    ///
    /// # Errors
    ///
    /// As [`arrivals`].
    pub(super) fn arrivals(&self, topology: &Topology, seed: u64) -> Result<Arrivals, ModelError> {
        match &self.flows {
            Some(flows) => Ok(Box::new(flows.clone().into_iter())),
            None => arrivals(&self.parameters, |host| topology.host_name(host), seed),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.kind.name())
    }

    /// The same with nothing chosen.
    #[must_use]
    pub fn defaults(&self) -> Self {
        match &self.plan {
            Some(plan) => Self::custom(plan.clone()),
            None => Self::of(self.kind),
        }
    }

    /// Keys that mean nothing for what was chosen.
    fn strange(&self) -> Vec<&'static str> {
        let own = &self.parameters;
        let mut strange = self.of_other_topologies().to_vec();
        let mut only = |holds: bool, keys: &[&'static str]| {
            if !holds {
                strange.extend(keys);
            }
        };
        let chain = own.workload == Workload::Chain;
        only(chain || own.workload == Workload::Incast, &["senders"]);
        only(chain, &["burst_gap"]);
        let poisson = own.workload == Workload::Poisson;
        only(poisson, &["cdf", "incast_load"]);
        let bursts = poisson && own.incast_load.numerator() > 0;
        only(bursts, &["incast_senders", "incast_size"]);
        let lasts = poisson || own.workload == Workload::OnOff;
        only(lasts || chain, &["load"]);
        let greedy = own.workload == Workload::Greedy;
        only(lasts || greedy || chain, &["duration"]);
        let is_file = matches!(own.workload, Workload::File(_));
        only(!poisson && !greedy && !is_file, &["flow_size"]);
        let pfc = own.flow_control == FlowControl::Pfc;
        only(pfc, &["headroom", "xon_gap"]);
        let cbfc = own.flow_control == FlowControl::Cbfc;
        only(cbfc, &["credit_period"]);
        only(!pfc && !cbfc, &["retransmit_after"]);
        only(!cbfc, &["thresholds"]);
        let dynamic = own.thresholds == Thresholds::Dynamic;
        only(!cbfc && dynamic, &["alpha"]);
        only(!cbfc && !dynamic, &["xoff"]);
        strange
    }

    fn all_keys(&self) -> Table {
        let mut all = Table::try_from(&self.parameters).unwrap_or_default();
        all.extend(dotted(&self.tables(), |_, _| false));
        all
    }

    /// The parameters of the schemes, by scheme.
    fn tables(&self) -> Table {
        Table::try_from(&self.schemes).unwrap_or_default()
    }

    /// The keys that matter with their values; `k` and `switches` as they are taken, the scheme's own in a
    /// table.
    pub fn parameters(&self) -> Table {
        let mut all = Table::try_from(&self.parameters).unwrap_or_default();
        for key in self.strange() {
            all.remove(key);
        }
        let mut tables = self.tables();
        for scheme in self.parameters.scheme.tables() {
            if let Some(table) = tables.remove(*scheme) {
                all.insert((*scheme).to_owned(), table);
            }
        }
        for (key, taken) in [
            ("k", self.ports_of_a_switch()),
            ("switches", self.switches_in_a_row()),
        ] {
            if let Some(value) = all.get_mut(key) {
                *value = Value::String(taken.to_string());
            }
        }
        all
    }

    /// Every key of this topology, whatever else is chosen.
    pub fn keys(&self) -> Table {
        let mut all = self.all_keys();
        for key in self.of_other_topologies() {
            all.remove(*key);
        }
        if self.plan.is_some() {
            // As many as the file names.
            all.remove("hosts");
        }
        all
    }

    const fn of_other_topologies(&self) -> &'static [&'static str] {
        if self.plan.is_some() {
            return &["k", "leaves", "spines", "switches"];
        }
        match self.kind {
            Kind::FatTree => &["leaves", "spines", "switches"],
            Kind::LeafSpine => &["k", "switches"],
            Kind::ParkingLot => &["k", "leaves", "spines"],
            Kind::Dumbbell | Kind::Chain => &["k", "leaves", "spines", "switches"],
        }
    }

    fn ports_of_a_switch(&self) -> u32 {
        let own = &self.parameters;
        own.k.or(fat_tree_ports(own.hosts))
    }

    fn switches_in_a_row(&self) -> u32 {
        let own = &self.parameters;
        own.switches.or(own.hosts.min(4))
    }

    /// Sets one key from `KEY=VALUE`.
    ///
    /// # Errors
    ///
    /// There is no such key, or it does not take the value; nothing has changed then.
    pub fn set_text(&mut self, setting: &str) -> Result<(), ScenarioError> {
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| ScenarioError::NotASetting(setting.to_owned()))?;
        self.set(key.trim(), &Value::String(value.trim().to_owned()))
    }

    /// Sets one key. A number may come as a text, and a text that is a number as one.
    ///
    /// # Errors
    ///
    /// As for [`Self::set_text`].
    pub fn set(&mut self, key: &str, value: &Value) -> Result<(), ScenarioError> {
        let (all, error) = with_key(self.keys(), key, value)?;
        let reason = |e: toml::de::Error| error(e.message());
        let (mut own, mut schemes) = (Table::new(), self.tables());
        for (key, value) in all {
            let Some((scheme, key)) = key.split_once('.') else {
                own.insert(key, value);
                continue;
            };
            if let Some(Value::Table(table)) = schemes.get_mut(scheme) {
                table.insert(key.to_owned(), value);
            }
        }
        let parameters = own.try_into().map_err(reason)?;
        self.schemes = schemes.try_into().map_err(reason)?;
        self.parameters = parameters;
        if let Some(plan) = &self.plan {
            self.parameters.hosts = plan.hosts;
        }
        Ok(())
    }

    /// Keys that were chosen and mean nothing for the rest of what was.
    pub fn idle(&self) -> Vec<String> {
        let (all, defaults) = (self.all_keys(), self.defaults().all_keys());
        let tables = self.parameters.scheme.tables();
        let of_others = all.keys().filter(|key| {
            key.split_once('.')
                .is_some_and(|(table, _)| !tables.contains(&table))
        });
        let strange = self.strange().into_iter().map(str::to_owned);
        let chosen = |key: &String| all.get(key) != defaults.get(key);
        strange.chain(of_others.cloned()).filter(chosen).collect()
    }

    /// Gives a key its default.
    ///
    /// # Errors
    ///
    /// There is no such key.
    pub fn reset(&mut self, key: &str) -> Result<(), ScenarioError> {
        let default = self.defaults().keys().remove(key);
        self.set(key, &default.unwrap_or(Value::Boolean(false)))
    }

    /// Files that can be read when it runs.
    pub fn files(&self) -> Vec<&Path> {
        let mut files: Vec<&Path> = Vec::new();
        if let Workload::File(file) = &self.parameters.workload {
            files.push(file);
        }
        if let Cdf::File(file) = &self.parameters.cdf {
            files.push(file);
        }
        files
    }

    /// Bytes of a full data packet.
    pub fn frame(&self) -> u32 {
        self.parameters.payload + self.parameters.header
    }

    /// Delay of a link.
    pub fn delay(&self) -> Time {
        self.parameters.link_delay.as_nanos() * NS
    }

    /// How far below its threshold a paused port goes on, bytes.
    pub fn xon_gap(&self) -> u64 {
        let auto = Size::from_bytes(2 * u64::from(self.frame()));
        self.parameters.xon_gap.or(auto).bytes()
    }

    /// Queues that DCQCN's switches begin to mark at, and mark all of, bytes. Unless they are set, ports that
    /// pause others at a fixed length mark before.
    pub fn red_thresholds(&self) -> (u64, u64) {
        let own = &self.parameters;
        let static_pfc =
            own.flow_control == FlowControl::Pfc && own.thresholds == Thresholds::Static;
        let xoff = static_pfc.then(|| own.xoff.bytes());
        self.schemes.dcqcn.thresholds(own.link_rate, xoff)
    }

    /// A longer queue of a class that nothing holds up is congestion, bytes: where DCQCN's switches begin to mark, or
    /// an eighth of a port's memory if that is less.
    pub fn root_bytes(&self) -> u32 {
        let own = &self.parameters;
        let eighth = own.buffer.bytes() / u64::from(own.priorities) / 8;
        self.red_thresholds().0.min(eighth) as u32
    }

    /// What the scheme has to know of a network whose longest path has so many links.
    pub fn network(&self, links: u32) -> scheme::Network {
        let own = &self.parameters;
        let line = own.link_rate;
        let bytes = u64::from(self.frame()) + u64::from(own.header + ACK_EXTRA);
        let wire = bytes * 1_000_000_000_000 / line.bytes_per_s();
        scheme::Network {
            line,
            buffer: match own.flow_control {
                FlowControl::Cbfc => own.buffer.bytes() / u64::from(own.priorities.max(1)),
                _ => own.buffer.bytes(),
            },
            idle_rtt: u64::from(links) * (2 * self.delay() + wire),
        }
    }

    /// Bytes that a flow may have in flight if nothing else was said.
    pub fn usual_window(&self, network: &scheme::Network) -> Size {
        let round_trip = u128::from(network.line.bytes_per_s()) * u128::from(network.idle_rtt);
        Size::from_bytes(match self.parameters.scheme {
            scheme::Name::Hp(..) => (round_trip / 1_000_000_000_000) as u64,
            _ => u64::MAX,
        })
    }

    /// Headroom of a port for all its priorities, bytes; none without PFC. Each may be asked to pause while another's is
    /// full.
    pub fn headroom(&self) -> u64 {
        let own = &self.parameters;
        let needed = u64::from(own.priorities)
            * headroom_needed(
                own.link_rate.bytes_per_s(),
                self.delay(),
                self.frame().into(),
                LINK_BYTES.into(),
            );
        match own.flow_control {
            FlowControl::Pfc => own.headroom.or(Size::from_bytes(needed)).bytes(),
            FlowControl::Cbfc | FlowControl::None => 0,
        }
    }

    /// The smallest memory of a port, bytes: its headroom and two packets, or whole blocks of two for each lane.
    pub fn least_buffer(&self) -> u64 {
        match self.parameters.flow_control {
            FlowControl::Cbfc => {
                let packet = u64::from(credit::blocks(self.frame())) * credit::BLOCK;
                2 * packet * u64::from(self.parameters.priorities)
            }
            _ => self.headroom().saturating_add(2 * u64::from(self.frame())),
        }
    }

    /// Checks what the types leave open.
    ///
    /// # Errors
    ///
    /// A value out of its range, or one that means nothing for what was chosen, by name.
    pub fn check(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        if let Some(key) = self.idle().into_iter().next() {
            let value = self.all_keys().remove(&key);
            let reason = format!(
                "it has no meaning with {}, workload={}, incast_load={}, flow_control={}, thresholds={}, scheme={}",
                self.name(),
                own.workload,
                own.incast_load,
                own.flow_control,
                own.thresholds,
                own.scheme
            );
            let value = value.as_ref().map(shown).unwrap_or_default();
            return Err(ModelError::new(key, value, reason));
        }
        self.check_plan()?;
        if own.workload == Workload::AllReduce && own.hosts > 2_048 {
            let reason = "up to 2048 is allowed with workload=all-reduce: flows are numbered";
            return Err(ModelError::new("hosts", own.hosts, reason));
        }
        if own.workload == Workload::AllToAll && own.hosts > 2_048 {
            let reason =
                "up to 2048 is allowed with workload=all-to-all: all flows are there at once";
            return Err(ModelError::new("hosts", own.hosts, reason));
        }
        within("payload", own.payload.into(), 64, 9_216)?;
        within("priorities", own.priorities.into(), 1, MOST_CLASSES.into())?;
        let others = self.flows.iter().flatten();
        if let Some(class) = others
            .map(|flow| flow.priority)
            .max()
            .filter(|class| u32::from(*class) >= own.priorities)
        {
            let reason = format!("a flow has priority {class}, and they count from 0");
            return Err(ModelError::new("priorities", own.priorities, reason));
        }
        within("header", own.header.into(), 0, 256)?;
        let (slow, fast) = (125_000, 1_250_000_000_000);
        if !(slow..=fast).contains(&own.link_rate.bytes_per_s()) {
            let reason = "1mbit to 10tbit is allowed";
            return Err(ModelError::new("link_rate", own.link_rate, reason));
        }
        for (key, value, most) in [
            ("link_delay", own.link_delay, DurationText::from_millis(100)),
            ("limit", own.limit, DurationText::from_secs(3_600)),
            ("duration", own.duration, own.limit),
        ] {
            if value > most && !self.strange().contains(&key) {
                return Err(ModelError::new(
                    key,
                    value,
                    format!("at most {most} is allowed"),
                ));
            }
        }
        if !(1_000..=1_000_000_000).contains(&own.retransmit_after.as_nanos()) {
            let (value, reason) = (own.retransmit_after, "1us to 1s is allowed");
            return Err(ModelError::new("retransmit_after", value, reason));
        }
        if !(100..=1_000_000).contains(&own.credit_period.as_nanos()) {
            let (value, reason) = (own.credit_period, "100ns to 1ms is allowed");
            return Err(ModelError::new("credit_period", value, reason));
        }
        self.check_memory()?;
        if own.workload == Workload::Incast && self.flows.is_none() {
            within("senders", own.senders.into(), 1, u64::from(own.hosts) - 1)?;
        }
        if own.workload == Workload::Chain {
            if self.plan.is_some() || self.kind != Kind::Chain {
                let reason = "it is of the topology `chain` only";
                return Err(ModelError::new("workload", &own.workload, reason));
            }
            within("hosts", own.hosts.into(), 5, 16_384)?;
            within("senders", own.senders.into(), 1, u64::from(own.hosts) - 4)?;
            if own.burst_gap.is_zero() {
                let reason = "more than 0 is allowed";
                return Err(ModelError::new("burst_gap", own.burst_gap, reason));
            }
        }
        if own.incast_load.numerator() > 0 {
            let hosts = u64::from(own.hosts);
            within("incast_senders", own.incast_senders.into(), 1, hosts - 1)?;
        }
        let most = u64::from(own.payload) * u64::from(u32::MAX / 2);
        if own.workload == Workload::Greedy && carried(own) > most {
            let reason = format!("flows of at most {most} bytes are allowed");
            return Err(ModelError::new("duration", own.duration, reason));
        }
        for (key, size) in [
            ("flow_size", own.flow_size),
            ("incast_size", own.incast_size),
        ] {
            if !(1..=most).contains(&size.bytes()) {
                let reason = format!("1 byte to {most} bytes is allowed");
                return Err(ModelError::new(key, size, reason));
            }
        }
        if own.incast_load.as_f64() > 1.0 {
            let reason = "0 to 1 is allowed";
            return Err(ModelError::new("incast_load", own.incast_load, reason));
        }
        let (load, reason) = (own.load.as_f64(), "more than 0 up to 1 is allowed");
        if !(load > 0.0 && load <= 1.0) {
            return Err(ModelError::new("load", own.load, reason));
        }
        if own.window.or(Size::from_bytes(u64::MAX)).bytes() < u64::from(own.payload) {
            let reason = format!("at least a packet's payload, {}, is allowed", own.payload);
            return Err(ModelError::new("window", own.window, reason));
        }
        self.schemes.rules(own.scheme, &self.network(1)).map(drop)
    }

    /// Checks what the topology depends on.
    fn check_plan(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        within("hosts", own.hosts.into(), 2, 16_384)?;
        if self.plan.is_none() && self.kind == Kind::FatTree {
            let k = self.ports_of_a_switch();
            let least = fat_tree_ports(own.hosts);
            if k < least || k > 42 || !k.is_multiple_of(2) {
                let reason = format!(
                    "an even number from {least} (the fewest ports for {} hosts) to 42 is allowed",
                    own.hosts
                );
                return Err(ModelError::new("k", k, reason));
            }
        }
        if self.kind == Kind::ParkingLot {
            let most = own.hosts.min(64);
            within("switches", self.switches_in_a_row().into(), 2, most.into())?;
        }
        within("leaves", own.leaves.into(), 1, 512)?;
        within("spines", own.spines.into(), 1, 256)
    }

    fn check_memory(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        let frame = u64::from(self.frame());
        let headroom = self.headroom();
        if own.flow_control == FlowControl::Pfc {
            let auto = Self {
                parameters: Parameters {
                    headroom: Auto::Auto,
                    ..own.clone()
                },
                ..self.clone()
            };
            let needed = auto.headroom();
            if headroom < needed {
                let each = match own.priorities {
                    1 => String::new(),
                    several => format!(", of each of {several} priorities"),
                };
                let reason = format!(
                    "too little to be lossless: {needed} bytes are needed, for what is in flight when a pause is asked for{each}"
                );
                return Err(ModelError::new("headroom", own.headroom, reason));
            }
        }
        let (least, most) = (self.least_buffer(), 64_000_000);
        if !(least..=most).contains(&own.buffer.bytes()) {
            let reason = format!(
                "{least} bytes per port (headroom {headroom} and two packets) to 64MB is allowed"
            );
            return Err(ModelError::new("buffer", own.buffer, reason));
        }
        if own.alpha.numerator() == 0 || own.alpha.as_f64() > 64.0 {
            let reason = "more than 0 up to 64 is allowed";
            return Err(ModelError::new("alpha", own.alpha, reason));
        }
        if own.xoff.bytes() < frame {
            let reason = format!("at least a packet, {frame} bytes, is allowed");
            return Err(ModelError::new("xoff", own.xoff, reason));
        }
        Ok(())
    }

    /// A picture of the network, whatever runs on it.
    ///
    /// # Errors
    ///
    /// The topology makes no sense.
    pub fn figure(&self) -> Result<NetworkFigure, ModelError> {
        let own = &self.parameters;
        self.check_plan()?;
        let topology = self.planned()?;
        let note = format!(
            "{} hosts, {} switches, {} links of {}, {}",
            topology.hosts,
            topology.names.len(),
            topology.peer.len() / 2,
            own.link_rate,
            own.link_delay
        );
        Ok(topology.figure(self.name(), &note))
    }

    /// The network.
    ///
    /// # Errors
    ///
    /// As for [`Self::check`].
    pub fn topology(&self) -> Result<Topology, ModelError> {
        self.check()?;
        let topology = self.planned()?;
        let own = &self.parameters;
        // The built-in ones go up and down, or along a line.
        if self.plan.is_some()
            && own.flow_control != FlowControl::None
            && let Some(circle) = topology.circle()
        {
            let names: Vec<_> = circle
                .iter()
                .map(|port| topology.port_name(*port))
                .collect();
            let reason = format!(
                "cyclic routing: {} wait for each other in a circle, and can stand still for ever; remove a link, or \
                 take flow_control=none",
                names.join(", ")
            );
            return Err(ModelError::new("flow_control", own.flow_control, reason));
        }
        Ok(topology)
    }

    pub(super) fn planned(&self) -> Result<Topology, ModelError> {
        let own = &self.parameters;
        let plan = match (&self.plan, self.kind) {
            (Some(plan), _) => plan.clone(),
            (None, Kind::FatTree) => fat_tree(own.hosts, self.ports_of_a_switch()),
            (None, Kind::LeafSpine) => leaf_spine(own.hosts, own.leaves, own.spines),
            (None, Kind::Dumbbell) => dumbbell(own.hosts),
            (None, Kind::ParkingLot) => parking_lot(own.hosts, self.switches_in_a_row()),
            (None, Kind::Chain) => chain(own.hosts),
        };
        Topology::new(plan).map_err(|reason| ModelError::new("hosts", own.hosts, reason))
    }
}
