//! A runnable fabric: its network, its parameters, and values derived from these.

mod check;

use std::path::Path;

use ecn_report::figure::NetworkFigure;
use ecn_units::{DurationText, Fraction, Rate, Size, keywords};
use toml::{Table, Value};

use super::auto::Auto;
use super::cc::{self, Scheme as _, tcd::PauseModel};
use super::credit;
use super::failures::{self, Failure};
use super::links::{LinkOverride, byte_time, wire_time};
use super::packet::LINK_BYTES;
use super::parameters::{FabricParameters, FlowControl, Switch, Thresholds};
use super::switch::{Threshold, headroom_needed};
use super::topology::{
    Plan, Topology, chain, dumbbell, fat_tree, fat_tree_ports, fig1, leaf_spine, parking_lot,
};
use super::workload::{Arrival, Arrivals, Cdf, FlowEntry, Workload, arrivals, entries};
use crate::bounds::ModelError;
use crate::engine::{NS, Time};
use crate::model::MarkIn;
use crate::scenario;
use crate::settings::{ScenarioError, dotted, parted, with_key};

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
        /// HP's Fig. 1: local and remote flows to one host, and a victim.
        Fig1 = "fig1",
    }
}

impl Kind {
    /// A one-line description.
    pub const fn about(self) -> &'static str {
        match self {
            Self::FatTree => {
                "a data centre: k-ary fat tree, with PFC, credits or tail drop, and any scheme"
            }
            Self::LeafSpine => "a data centre: leaves and spines; otherwise as fat-tree",
            Self::Dumbbell => {
                "a data centre: two switches and one link between them; otherwise as fat-tree"
            }
            Self::ParkingLot => {
                "a data centre: switches in a row and hosts at each; otherwise as fat-tree"
            }
            Self::Chain => {
                "TCD's chain: two flows share it, and bursts congest the end of one of them"
            }
            Self::Fig1 => {
                "HP's Fig. 1 as a data centre: input-queued switches, local and remote flows, and a victim"
            }
        }
    }
}

/// A runnable fabric.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its name, if that differs from its topology's.
    pub name: Option<String>,
    /// Its topology, unless it has its own plan.
    pub kind: Kind,
    /// The network described by its file.
    plan: Option<Plan>,
    /// Links that are down at some time.
    pub(super) failures: Vec<Failure>,
    /// The file's `[[flows]]`.
    pub(super) entries: Vec<FlowEntry>,
    /// Flows in order of starts, which replace the workload.
    flows: Option<Vec<Arrival>>,
    /// Parameters of the fabric.
    pub parameters: FabricParameters,
    /// Parameters of the schemes.
    pub schemes: cc::SchemeParameters,
}

/// Length of an ACK beyond a data packet's header, bytes.
pub(super) const ACK_EXTRA: u32 = 4;
/// Length of a CNP beyond a data packet's header, bytes.
pub(super) const CNP_EXTRA: u32 = 16;

/// Why a key of HP's networks and of bridges does not apply to a data centre.
fn hint_of_shares(key: &str) -> Option<String> {
    if key.starts_with("model.") {
        return Some("in files with `topology`, keys are at the top, not in [model]".to_owned());
    }
    let others = [scenario::Scenario::hp(), scenario::Scenario::rig()];
    if !others.iter().any(|one| one.parameters().contains_key(key)) {
        return None;
    }
    let instead = match key {
        "marking" | "response" => "; use scheme=RESPONSE/MARKING here",
        _ => "",
    };
    Some(format!("applies to `hp`, `rig` and `bridge`{instead}"))
}

/// Keys of HP's switch.
const INPUT_QUEUED: &[&str] = &[
    "slots",
    "bypass",
    "bypass_counts",
    "arbitration",
    "crossbar",
    "slot_freed",
    "forwarding",
    "forwarding_delay",
    "hp.trigger",
    "hp.full_counts",
    "hp.threshold_counts",
    "hp.output_trigger",
];

impl Scenario {
    /// A built-in fabric by name.
    pub fn find(name: &str) -> Option<Self> {
        Some(Self::of(name.parse().ok()?))
    }

    /// A built-in fabric.
    pub fn of(kind: Kind) -> Self {
        let mut parameters = FabricParameters::default();
        if kind == Kind::ParkingLot {
            // Two per switch.
            parameters.hosts = 8;
            parameters.workload = Workload::Greedy;
        }
        if kind == Kind::Chain {
            // The fifteen of the paper, and S0, S1, R0 and R1.
            parameters.hosts = 19;
            parameters.senders = 15;
            parameters.workload = Workload::Chain;
            // Both flows fit on the chain: its queues grow only because it is paused.
            parameters.load = Fraction::ratio(2, 5);
            // Together with `load`, nine tenths of the link to R1.
            parameters.flow_size = Size::from_bytes(100_000);
            parameters.thresholds = Thresholds::Static;
        }
        let mut schemes = cc::SchemeParameters::default();
        if kind == Kind::Fig1 {
            // Ten local, ten remote, and three others.
            parameters.hosts = 23;
            parameters.workload = Workload::Fig1;
            parameters.limit = DurationText::from_millis(100);
            // 2068 bytes on the wire, and ACKs of 20, as in the papers (Table I).
            (parameters.payload, parameters.header) = (2_052, 20 - ACK_EXTRA);
            let gigabyte = Rate::from_bytes_per_s(1_000_000_000);
            parameters.link_rate = gigabyte.unwrap_or(parameters.link_rate);
            parameters.link_delay = DurationText::from_nanos(0);
            parameters.switch = Switch::InputQueued;
            parameters.flow_control = FlowControl::Cbfc;
            parameters.window = Auto::Is(Size::from_bytes(2_052));
            schemes.hp = cc::hp::HpParameters::of_the_papers();
        }
        Self {
            name: None,
            kind,
            plan: None,
            failures: Vec::new(),
            entries: Vec::new(),
            flows: None,
            parameters,
            schemes,
        }
    }

    /// A custom network.
    pub(super) fn custom(plan: Plan) -> Self {
        let mut scenario = Self::of(Kind::default());
        scenario.parameters.hosts = plan.hosts;
        scenario.plan = Some(plan);
        scenario
    }

    /// Replaces the workload by these flows, sorted by their starts.
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
    /// As for [`arrivals`].
    pub(super) fn arrivals(&self, topology: &Topology, seed: u64) -> Result<Arrivals, ModelError> {
        match &self.flows {
            Some(flows) => Ok(Box::new(flows.clone().into_iter())),
            None => arrivals(
                &self.parameters,
                &self.entries,
                |host| topology.host_name(host),
                seed,
            ),
        }
    }

    /// Names of the flows' classes; empty if they have none.
    pub fn classes(&self) -> Vec<String> {
        match self.parameters.workload {
            Workload::Flows => entries::classes(&self.entries),
            Workload::Fig1 => ["local", "remote", "victim"].map(str::to_owned).to_vec(),
            _ => Vec::new(),
        }
    }

    /// By switch, whether it takes part in the scheme; `None` if all do.
    ///
    /// # Errors
    ///
    /// An unknown switch.
    pub(super) fn marking_switches(
        &self,
        topology: &Topology,
    ) -> Result<Option<Vec<bool>>, ModelError> {
        let all = &topology.names;
        self.parameters.mark_in.check(all)?;
        Ok(match &self.parameters.mark_in {
            MarkIn::All => None,
            MarkIn::Named(names) => Some(all.iter().map(|name| names.contains(name)).collect()),
        })
    }

    /// Whether links fail or return during a run.
    pub(super) fn links_change(&self) -> bool {
        self.failures.iter().any(|failure| !failure.is_permanent())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(self.kind.name())
    }

    /// The same scenario with default parameters.
    #[must_use]
    pub fn defaults(&self) -> Self {
        match &self.plan {
            Some(plan) => Self::custom(plan.clone()),
            None => Self::of(self.kind),
        }
    }

    /// Keys that do not apply to the other values.
    fn inapplicable_keys(&self) -> Vec<&'static str> {
        let params = &self.parameters;
        let mut inapplicable = self.of_other_topologies().to_vec();
        let mut only = |holds: bool, keys: &[&'static str]| {
            if !holds {
                inapplicable.extend(keys);
            }
        };
        let chain = params.workload == Workload::Chain;
        only(chain || params.workload == Workload::Incast, &["senders"]);
        only(chain, &["burst_gap"]);
        let fig1 = params.workload == Workload::Fig1;
        only(fig1, &["stagger", "victim"]);
        let poisson = params.workload == Workload::Poisson;
        only(poisson, &["cdf", "incast_load"]);
        let bursts = poisson && params.incast_load.numerator() > 0;
        only(bursts, &["incast_senders", "incast_size"]);
        let lasts = poisson || params.workload == Workload::OnOff;
        only(lasts || chain, &["load"]);
        let greedy = params.workload == Workload::Greedy;
        only(lasts || greedy || chain, &["duration"]);
        let is_file = matches!(params.workload, Workload::File(_));
        let listed = is_file || params.workload == Workload::Flows;
        only(!poisson && !greedy && !listed && !fig1, &["flow_size"]);
        only(params.scheme.is_in_switches(), &["mark_in"]);
        let pfc = params.flow_control == FlowControl::Pfc;
        only(pfc, &["headroom", "xon_gap"]);
        let cbfc = params.flow_control == FlowControl::Cbfc;
        let input_queued = params.switch == Switch::InputQueued;
        only(input_queued, INPUT_QUEUED);
        only(!input_queued, &["buffer", "hp.buffer"]);
        only(self.advertises_credits(), &["credit_period"]);
        let lossless = pfc || cbfc;
        only(!lossless || self.links_change(), &["retransmit_after"]);
        let shared = !cbfc && params.switch == Switch::SharedMemory;
        only(shared, &["thresholds"]);
        let dynamic = params.thresholds == Thresholds::Dynamic;
        only(shared && dynamic, &["alpha"]);
        only(shared && !dynamic, &["xoff"]);
        inapplicable
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

    /// The applicable keys with their values: resolved values for `k` and `switches`, and a table for the scheme's own
    /// keys.
    pub fn parameters(&self) -> Table {
        let mut all = Table::try_from(&self.parameters).unwrap_or_default();
        for key in self.inapplicable_keys() {
            all.remove(key);
        }
        let mut tables = self.tables();
        for scheme in self.parameters.scheme.tables() {
            if let Some(table) = tables.remove(scheme) {
                all.insert(scheme.to_owned(), table);
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
        if !self.failures.is_empty() {
            let failures: Vec<_> = self.failures.iter().map(Failure::to_string).collect();
            all.insert("failures".to_owned(), failures.into());
        }
        all
    }

    /// All keys of this topology, regardless of the other values.
    pub fn keys(&self) -> Table {
        let mut all = self.all_keys();
        for key in self.of_other_topologies() {
            all.remove(*key);
        }
        if self.plan.is_some() {
            // The file determines their number.
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
            Kind::Dumbbell | Kind::Chain | Kind::Fig1 => &["k", "leaves", "spines", "switches"],
        }
    }

    fn ports_of_a_switch(&self) -> u32 {
        let params = &self.parameters;
        params.k.or(fat_tree_ports(params.hosts))
    }

    fn switches_in_a_row(&self) -> u32 {
        let params = &self.parameters;
        params.switches.or(params.hosts.min(4))
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
        let keys = self.keys();
        if !keys.contains_key(key)
            && let Some(hint) = hint_of_shares(key)
        {
            return Err(ScenarioError::UnknownKey {
                key: key.to_owned(),
                hint,
            });
        }
        let (all, error) = with_key(keys, key, value)?;
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
        let parameters: FabricParameters = own.try_into().map_err(reason)?;
        if key == "link_rate" && !check::is_link_rate(parameters.link_rate) {
            return Err(error(check::LINK_RATES));
        }
        self.schemes = schemes.try_into().map_err(reason)?;
        self.parameters = parameters;
        if let Some(plan) = &self.plan {
            self.parameters.hosts = plan.hosts;
        }
        Ok(())
    }

    /// Keys that are set but do not apply to the other values.
    pub fn set_but_inapplicable(&self) -> Vec<String> {
        let (all, defaults) = (self.all_keys(), self.defaults().all_keys());
        let tables = self.parameters.scheme.tables();
        let is_of_other = |key: &&str| {
            let table = key.split_once('.').map(|(table, _)| table);
            table.is_some_and(|table| !tables.contains(&table))
        };
        let of_others = all.keys().map(String::as_str).filter(is_of_other);
        let inapplicable = self.inapplicable_keys().into_iter().chain(of_others);
        let chosen = inapplicable.filter(|key| all.get(*key) != defaults.get(*key));
        chosen.map(str::to_owned).collect()
    }

    /// Resets a key to its default.
    ///
    /// # Errors
    ///
    /// The key is unknown.
    pub fn reset(&mut self, key: &str) -> Result<(), ScenarioError> {
        let default = self.defaults().keys().remove(key);
        self.set(key, &default.unwrap_or(Value::Boolean(false)))
    }

    /// Files that a run may read.
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

    /// Transmission time of a full packet.
    pub fn packet_time(&self) -> Time {
        wire_time(byte_time(self.parameters.link_rate), self.frame())
    }

    /// Whether ports advertise credits to each other.
    pub(super) fn advertises_credits(&self) -> bool {
        let params = &self.parameters;
        params.flow_control == FlowControl::Cbfc && params.switch != Switch::InputQueued
    }

    /// Memory of a switch per port, bytes.
    pub fn buffer(&self) -> u64 {
        let params = &self.parameters;
        match params.switch {
            Switch::InputQueued => u64::from(params.slots) * u64::from(self.frame()),
            Switch::SharedMemory | Switch::Crossbar => params.buffer.bytes(),
        }
    }

    /// Delay of a link.
    pub fn delay(&self) -> Time {
        self.parameters.link_delay.as_nanos() * NS
    }

    fn link_overrides(&self) -> impl Iterator<Item = &LinkOverride> {
        self.plan
            .iter()
            .flat_map(|plan| plan.link_overrides.values())
    }

    /// The lowest and the highest rate of links.
    pub fn rates(&self) -> (Rate, Rate) {
        let usual = self.parameters.link_rate;
        let rates = self.link_overrides().filter_map(|own| own.rate);
        rates.fold((usual, usual), |(least, most), rate| {
            (least.min(rate), most.max(rate))
        })
    }

    /// The shortest and the longest delay of links.
    fn delays(&self) -> (Time, Time) {
        let usual = self.delay();
        let delays = self.link_overrides().filter_map(|own| own.delay);
        let delays = delays.map(|delay| delay.as_nanos() * NS);
        delays.fold((usual, usual), |(least, most), delay| {
            (least.min(delay), most.max(delay))
        })
    }

    /// Minimum time from when a switch sends something until another one receives it: that of the shortest packet (a
    /// message, or a byte of data), and the delay of its link.
    pub(super) fn look_ahead(&self) -> Time {
        let params = &self.parameters;
        if params.switch == Switch::InputQueued {
            // Credits return at once.
            return 0;
        }
        let bytes = LINK_BYTES.min(params.header + 1);
        self.delays().0 + wire_time(byte_time(self.rates().1), bytes)
    }

    /// Number of threads for which a run has work, up to `most`. All flows of an incast wait for one link, and too
    /// little happens in the time for which parts can run independently.
    pub fn useful_threads(&self, most: u16) -> u16 {
        match self.parameters.workload {
            Workload::Incast if self.flows.is_none() => 1,
            _ => most,
        }
    }

    /// How far below its threshold a paused port resumes, bytes.
    pub fn xon_gap(&self) -> u64 {
        let auto = Size::from_bytes(2 * u64::from(self.frame()));
        self.parameters.xon_gap.or(auto).bytes()
    }

    /// Queue lengths at which DCQCN's switches start to mark, and mark everything, bytes. Unless set, they are below
    /// the length at which ports pause others or drop, if that is known. `ports`: the fewest of a switch.
    pub fn red_thresholds(&self, ports: u32) -> (u64, u64) {
        let (line, limit) = (self.parameters.link_rate, self.limit_of_queue(ports));
        self.schemes.dcqcn.thresholds(line, limit)
    }

    /// A note if DCQCN's default thresholds are so high that ports pause others before anything is marked.
    pub fn note(&self) -> Option<String> {
        let params = &self.parameters;
        let is_auto = self.schemes.dcqcn.kmin == Auto::Auto;
        if !is_auto
            || params.flow_control != FlowControl::Pfc
            || !params.scheme.tables().contains(&"dcqcn")
        {
            return None;
        }
        let ports = self.planned().ok()?.fewest_ports();
        let (kmin, pause) = (self.red_thresholds(ports).0, self.longest_tail(ports));
        let size = |bytes| Size::from_bytes(bytes).short();
        (kmin > pause).then(|| {
            format!(
                "note: dcqcn.kmin is {}, but a port of a switch with {ports} ports pauses the port before it at {} or \
                 less: pauses come before marks, and perhaps instead of them; set dcqcn.kmin={} and dcqcn.kmax={}, for \
                 example",
                size(kmin),
                size(pause),
                size(pause / 8),
                size(pause / 2)
            )
        })
    }

    /// Queue length at which a port pauses others or drops, bytes, if known in advance. `ports`: the fewest of a
    /// switch.
    fn limit_of_queue(&self, ports: u32) -> Option<u64> {
        if self.parameters.switch == Switch::InputQueued {
            return Some(self.buffer());
        }
        match (self.parameters.flow_control, self.threshold()) {
            (FlowControl::Pfc, Threshold::Static(xoff)) => Some(xoff),
            (FlowControl::None, _) => Some(self.longest_tail(ports)),
            _ => None,
        }
    }

    /// The most memory of one class at one port of a switch with `ports` ports, if the others use none, bytes: without
    /// flow control the longest queue, with PFC where it pauses the port before it.
    pub(super) fn longest_tail(&self, ports: u32) -> u64 {
        let params = &self.parameters;
        let shared = self.buffer().saturating_sub(self.headroom());
        let pool = u128::from(shared) * u128::from(ports);
        match self.threshold() {
            Threshold::Static(most) => most.min(pool as u64),
            // Its length is alpha times the memory that it leaves free.
            Threshold::Dynamic(_) => {
                let (n, d) = (params.alpha.numerator(), params.alpha.denominator());
                (pool * u128::from(n) / (u128::from(n) + u128::from(d))) as u64
            }
        }
    }

    /// Retransmission timeout of a flow without progress; `ports`: the most of a switch.
    pub(super) fn retransmit_after(&self, network: &cc::Network<'_>, ports: u32) -> Time {
        let time = self.parameters.retransmit_after;
        let least = DurationText::from_millis(1).as_nanos() * NS;
        match time {
            Auto::Is(time) => time.as_nanos() * NS,
            Auto::Auto => {
                let tail = u128::from(self.longest_tail(ports));
                let slowest = u128::from(self.rates().0.bytes_per_s());
                let waits = (tail * 1_000_000_000_000 / slowest) as Time;
                (3 * network.idle_rtt + waits).max(least)
            }
        }
    }

    /// How much memory a port may use for a class: for data that arrived at it (PFC), or that waits for it (tail drop).
    /// An input of a crossbar has its own buffer.
    pub fn threshold(&self) -> Threshold {
        let params = &self.parameters;
        match (params.switch, params.thresholds) {
            (Switch::Crossbar | Switch::InputQueued, _) => {
                let without_headroom = self.buffer().saturating_sub(self.headroom());
                Threshold::Static(without_headroom / u64::from(params.priorities.max(1)))
            }
            (Switch::SharedMemory, Thresholds::Static) => Threshold::Static(params.xoff.bytes()),
            (Switch::SharedMemory, Thresholds::Dynamic) => {
                let (n, d) = (params.alpha.numerator(), params.alpha.denominator());
                Threshold::Dynamic((u64::from(n) << 16) / u64::from(d))
            }
        }
    }

    /// Length above which a class's queue that is not held up is congested, bytes: where DCQCN's switches start to
    /// mark, or an eighth of a port's memory if that is less. `ports`: the fewest of a switch.
    pub(super) fn root_bytes(&self, ports: u32) -> u32 {
        let params = &self.parameters;
        let eighth = self.buffer() / u64::from(params.priorities) / 8;
        self.red_thresholds(ports).0.min(eighth) as u32
    }

    /// The properties of a network for a scheme.
    pub(super) fn network_of(&self, topology: &Topology, seed: u64) -> cc::Network<'_> {
        let classes = self.parameters.priorities;
        cc::Network {
            switches: topology.names.len() as u32,
            queues: topology.peer.len() as u32 * classes,
            most_ports: topology.most_ports(),
            seed,
            ..self.network(topology.longest(), topology.fewest_ports())
        }
    }

    /// The properties for its hosts, with `links` links on the longest path, and at least `ports` ports per switch.
    pub fn network(&self, links: u32, ports: u32) -> cc::Network<'_> {
        let params = &self.parameters;
        let line = params.link_rate;
        let bytes = u64::from(self.frame()) + u64::from(params.header + ACK_EXTRA);
        let wire = bytes * 1_000_000_000_000 / self.rates().0.bytes_per_s();
        cc::Network {
            schemes: &self.schemes,
            line,
            buffer: match params.flow_control {
                FlowControl::Cbfc => self.buffer() / u64::from(params.priorities.max(1)),
                FlowControl::Pfc => self.buffer(),
                FlowControl::None => self.buffer().min(self.longest_tail(ports)),
            },
            limit: self.limit_of_queue(ports),
            frame: self.frame(),
            payload: params.payload,
            idle_rtt: u64::from(links) * (2 * self.delays().1 + wire),
            pause_model: self.pause_model(),
            marks_in_slots: params.switch == Switch::InputQueued,
            hosts: params.hosts,
            classes: params.priorities,
            switches: 0,
            queues: 0,
            most_ports: 0,
            seed: 0,
        }
    }

    /// The cause of ports' ON and OFF periods.
    fn pause_model(&self) -> PauseModel {
        let params = &self.parameters;
        if params.flow_control == FlowControl::Cbfc {
            let period_ns = params.credit_period.as_nanos();
            return PauseModel::Credits { period_ns };
        }
        // A frame of the port's own, the pause, and the first data after it.
        let bytes = 2 * u64::from(self.frame()) + u64::from(LINK_BYTES);
        PauseModel::Pfc {
            gap: self.xon_gap() as u32,
            tau_ns: 2 * self.delay() / NS + bytes * 1_000_000_000 / params.link_rate.bytes_per_s(),
        }
    }

    /// Headroom of a port for all its priorities, bytes; 0 without PFC. Each priority may have to pause while another
    /// one's headroom is full.
    pub fn headroom(&self) -> u64 {
        let params = &self.parameters;
        let needed = Size::from_bytes(self.needed_headroom());
        match params.flow_control {
            FlowControl::Pfc => params.headroom.or(needed).bytes(),
            FlowControl::Cbfc | FlowControl::None => 0,
        }
    }

    /// The least headroom with which PFC loses nothing, bytes.
    fn needed_headroom(&self) -> u64 {
        let (rate, delay) = (self.rates().1.bytes_per_s(), self.delays().1);
        let of_each = headroom_needed(rate, delay, self.frame().into(), LINK_BYTES.into());
        u64::from(self.parameters.priorities) * of_each
    }

    /// The minimum memory of a port, bytes: its headroom and two packets, or whole blocks for two packets in each lane.
    pub fn least_buffer(&self) -> u64 {
        match self.parameters.flow_control {
            FlowControl::Cbfc => {
                let packet = u64::from(credit::blocks(self.frame())) * credit::BLOCK;
                2 * packet * u64::from(self.parameters.priorities)
            }
            _ => self.headroom().saturating_add(2 * u64::from(self.frame())),
        }
    }

    /// A figure of the network, independent of the workload.
    ///
    /// # Errors
    ///
    /// The topology is invalid.
    pub fn figure(&self) -> Result<NetworkFigure, ModelError> {
        let params = &self.parameters;
        self.check_plan()?;
        let topology = self.planned()?;
        let others = match self.link_overrides().count() {
            0 => String::new(),
            several => format!(" ({several} others)"),
        };
        let note = format!(
            "{} hosts, {} switches, {} links of {}, {}{others}",
            topology.hosts,
            topology.names.len(),
            topology.peer.len() / 2,
            params.link_rate,
            params.link_delay
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
        let params = &self.parameters;
        let ports = u64::from(topology.most_ports());
        // Ports are numbered in 16 bits.
        if ports > 1 << 16 {
            let reason = format!("a switch would have {ports} ports, more than 65536");
            return Err(ModelError::new("hosts", params.hosts, reason));
        }
        // Queues are counted in 32 bits.
        let most = u64::from(u32::MAX) / ports.max(1);
        if params.buffer.bytes() > most {
            let reason = format!("must be at most {most} bytes for a switch of {ports} ports");
            return Err(ModelError::new("buffer", params.buffer, reason));
        }
        // The built-in ones go up and down, or along a chain, and thus have no cycles.
        if (self.plan.is_some() || !self.failures.is_empty())
            && params.flow_control != FlowControl::None
            && let Some(cycle) = topology.wait_cycle()
        {
            let names = cycle.iter().map(|port| topology.port_name(*port));
            let names: Vec<_> = names.collect();
            let reason = format!(
                "cyclic routing: {} wait for each other in a cycle, and can deadlock; remove a link, or \
                 set flow_control=none",
                names.join(", ")
            );
            return Err(ModelError::new("flow_control", params.flow_control, reason));
        }
        Ok(topology)
    }

    pub(super) fn planned(&self) -> Result<Topology, ModelError> {
        let params = &self.parameters;
        let mut plan = match (&self.plan, self.kind) {
            (Some(plan), _) => plan.clone(),
            (None, Kind::FatTree) => fat_tree(params.hosts, self.ports_of_a_switch()),
            (None, Kind::LeafSpine) => leaf_spine(params.hosts, params.leaves, params.spines),
            (None, Kind::Dumbbell) => dumbbell(params.hosts),
            (None, Kind::ParkingLot) => parking_lot(params.hosts, self.switches_in_a_row()),
            (None, Kind::Chain) => chain(params.hosts),
            (None, Kind::Fig1) => fig1(params.hosts),
        };
        plan.outages = failures::outages(&self.failures, &plan, params)?;
        Topology::new(plan).map_err(|reason| ModelError::new("hosts", params.hosts, reason))
    }
}
