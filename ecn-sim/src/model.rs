//! Parameters of a run: the mechanisms under study, each choice that the papers leave open, and the delays of a Linux
//! bridge and its agent.

use std::fmt;
use std::num::ParseIntError;
use std::path::PathBuf;
use std::str::FromStr;

use crate::bounds::{LONGEST_DELAY, MOST_PACKETS, ModelError};
use crate::notifications::bcn::BcnParameters;
use crate::notifications::qcn::QcnParameters;
use ecn_core::backward::{self, Feedback};
use ecn_core::fixed::{self, FRAC, ONE};
use ecn_core::marking::{self, MarkAt, Marking};
use ecn_core::response::{self, Function};
use ecn_core::shares::ShareBy;
use ecn_units::{
    DurationText, Every, Fraction, KeywordError, Round, Unmarkable, keywords, serde_as_text,
    suggestion,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

keywords! {
    /// Which of the packets that wait for an output is sent first.
    Arbitration {
        /// The packet that has been in the switch longest, over all inputs.
        #[default]
        Oldest = "oldest",
        /// Round-robin over the inputs; of each, the packet that has been there longest.
        RoundRobin = "round-robin",
    }
}

keywords! {
    /// Which overtaking counts against the limit on bypasses.
    BypassCounts {
        /// Overtaking by packets for the same output, which arbitration by age never does.
        #[default]
        SameOutput = "same-output",
        /// Overtaking by packets for any output.
        AnyOutput = "any-output",
    }
}

keywords! {
    /// How many outputs an input buffer can feed at a time.
    Crossbar {
        /// Any number of outputs.
        #[default]
        Multiple = "multiple",
        /// One output: a single read port.
        Single = "single",
    }
}

keywords! {
    /// When the triggers of marking are evaluated.
    Trigger {
        /// After the arriving packet had its chance to cut through.
        #[default]
        AfterDispatch = "after-dispatch",
        /// Before that.
        BeforeDispatch = "before-dispatch",
    }
}

keywords! {
    /// What counts in a comparison: of a buffer with its size, or of `cnt1` with the threshold.
    Counting {
        /// Waiting packets.
        #[default]
        Waiting = "waiting",
        /// Packets whose tail has not left yet.
        Present = "present",
    }
}

keywords! {
    /// When a slot of an input buffer is free again.
    SlotFreed {
        /// When the tail has left.
        #[default]
        Tail = "tail",
        /// When the header leaves.
        Head = "head",
    }
}

keywords! {
    /// How much of a packet a switch needs before it forwards it.
    Forwarding {
        /// The header (and as much as a faster output needs, so as not to run dry).
        #[default]
        CutThrough = "cut-through",
        /// The whole packet.
        StoreAndForward = "store-and-forward",
    }
}

keywords! {
    /// At which arrivals the output trigger fires.
    OutputTrigger {
        /// At each arrival that finds more than the threshold.
        #[default]
        Above = "above",
        /// At the arrival that crosses the threshold.
        Crossing = "crossing",
    }
}

keywords! {
    /// Which packets a trigger marks.
    MarkBy {
        /// As many packets as wait for a congested output, whichever leave by it next: `cnt2` of the papers.
        #[default]
        Counters = "counters",
        /// The packets that wait, found by a scan of the buffers.
        Scan = "scan",
    }
}

keywords! {
    /// Which rate determines the gap between a packet and the one before.
    Spacing {
        /// The rate after the ACK just received.
        #[default]
        AfterAck = "after-ack",
        /// The rate when the packet before was sent.
        AtSend = "at-send",
    }
}

keywords! {
    /// Phase within a packet time at which each flow starts.
    Phases {
        /// Random, from the seed.
        #[default]
        Random = "random",
        /// The beginning of a packet time.
        Aligned = "aligned",
    }
}

keywords! {
    /// Where packets wait in a switch.
    SwitchKind {
        /// In buffers of its inputs; a full buffer stops the upstream link: HP's switch.
        #[default]
        Input = "input",
        /// In queues of its outputs; a full queue drops packets: a Linux bridge with HTB at its ports. Sources are then
        /// greedy, HTB classes limit their rates, and an agent sets these.
        Output = "output",
    }
}

/// How a source responds to marked and unmarked ACKs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(inline)]
pub enum Response {
    /// One of the papers' functions, or none.
    #[schemars(untagged)]
    Function(Function),
    /// A designed function from a table file of `ecn design`.
    #[schemars(untagged, title = "table:FILE")]
    Table(PathBuf),
}

impl Default for Response {
    fn default() -> Self {
        Self::Function(Function::default())
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function(function) => function.fmt(f),
            Self::Table(file) => write!(f, "table:{}", file.display()),
        }
    }
}

impl FromStr for Response {
    type Err = KeywordError;

    fn from_str(text: &str) -> Result<Self, KeywordError> {
        match text.strip_prefix("table:") {
            Some(file) if !file.is_empty() => Ok(Self::Table(file.into())),
            Some(_) => Err(KeywordError::new(text, &["table:FILE"])),
            None => text.parse().map(Self::Function).map_err(|_| {
                let mut names = Function::ALL.map(Function::name).to_vec();
                names.push("table:FILE");
                KeywordError::new(text, &names)
            }),
        }
    }
}

serde_as_text!(@serde Response);

/// Maximum number of younger packets that may overtake a waiting one: a number, or `unlimited`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bypass(pub u32);

impl Bypass {
    /// No limit.
    pub const UNLIMITED: Self = Self(u32::MAX);
}

impl fmt::Display for Bypass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNLIMITED => f.write_str("unlimited"),
            Self(limit) => write!(f, "{limit}"),
        }
    }
}

impl FromStr for Bypass {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unlimited" {
            return Ok(Self::UNLIMITED);
        }
        text.parse().map(Self).map_err(|error: ParseIntError| {
            format!("`{text}` is not a number of packets, or `unlimited`: {error}")
        })
    }
}

serde_as_text!(@serde Bypass);
serde_as_text!(@schema Bypass, schemars::json_schema!({
    "type": "string", "title": "number, or `unlimited`", "examples": ["4"], "unit": "packets",
}));

/// Number of packets in an input buffer that triggers marking: `full`, a number, or `off`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum InputTrigger {
    /// As many as the buffer has slots.
    #[default]
    Full,
    /// No input trigger: only the output trigger marks.
    Off,
    /// This many packets.
    #[schemars(untagged, title = "number")]
    At(u32),
}

impl InputTrigger {
    /// The smallest number of packets that triggers, for a buffer with `slots` slots.
    const fn least(self, slots: u32) -> u32 {
        match self {
            Self::Full => slots,
            Self::At(packets) => packets,
            Self::Off => u32::MAX,
        }
    }
}

impl fmt::Display for InputTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("full"),
            Self::At(packets) => packets.fmt(f),
            Self::Off => f.write_str("off"),
        }
    }
}

impl FromStr for InputTrigger {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "full" => Ok(Self::Full),
            "off" => Ok(Self::Off),
            _ => text
                .parse()
                .map(Self::At)
                .map_err(|_| format!("`{text}` is not a number of packets, `full` or `off`")),
        }
    }
}

serde_as_text!(@serde InputTrigger);

/// The switches that mark: `all`, or their names with commas between them.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum MarkIn {
    /// Every switch.
    All,
    /// These.
    #[schemars(untagged, with = "String", title = "NAME,NAME,...")]
    Named(Vec<String>),
}

impl fmt::Display for MarkIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Named(names) => f.write_str(&names.join(",")),
        }
    }
}

impl MarkIn {
    /// Checks that these are names of switches.
    ///
    /// # Errors
    ///
    /// The first unknown name.
    pub fn check(&self, switches: &[String]) -> Result<(), ModelError> {
        let Self::Named(names) = self else {
            return Ok(());
        };
        let known: Vec<&str> = switches.iter().map(String::as_str).collect();
        match names.iter().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => {
                let reason = format!("unknown switch: {}", suggestion(name, &known));
                Err(ModelError::new("mark_in", name, reason))
            }
        }
    }
}

impl FromStr for MarkIn {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(if text == "all" {
            Self::All
        } else {
            Self::Named(text.split(',').map(|name| name.trim().to_owned()).collect())
        })
    }
}

serde_as_text!(@serde MarkIn);

/// The mechanisms of a run, and each choice that the papers leave open.
///
/// The defaults are the papers' values where they state one, and otherwise those that reproduce
/// their statements.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct Model {
    /// Which packets a switch marks (G).
    pub marking: Marking,
    /// Output trigger: more than this many packets for one output (G: 4, 6, 8 and 16 in Fig. 4).
    #[schemars(extend("unit" = "packets"))]
    pub threshold: u32,
    /// Slots of an input buffer (G).
    #[schemars(extend("unit" = "packets"))]
    pub buffer: u32,
    /// How a source responds to marked and unmarked ACKs (S).
    pub response: Response,
    /// Lowest rate of a source, as a fraction of its link's rate. The papers do not state it; slide 14's curves end
    /// where they do only with 1/256 (D).
    pub rmin: Fraction,
    /// Decrease factor of FIMD and AIMD (S, slide 14).
    pub m: Fraction,
    /// Packets that a flow may have in flight (G).
    #[schemars(extend("unit" = "packets"))]
    pub window: u32,
    /// Round within which a source decreases its rate at most once. HP's sources respond to each mark, which with their
    /// window of one packet is once per round (S).
    pub round: Round,
    /// Which waiting packet an output sends first (R).
    pub arbitration: Arbitration,
    /// Limit on overtaking within an input buffer (G).
    pub bypass: Bypass,
    /// What counts against the limit on overtaking, `bypass` (R).
    pub bypass_counts: BypassCounts,
    /// Whether an input can feed several outputs at once (R).
    pub crossbar: Crossbar,
    /// When triggers are evaluated (R).
    pub trigger: Trigger,
    /// Which packets fill a buffer (R): the input trigger counts them, and their outputs are then congested. With
    /// `present`, a packet that is being sent still holds its slot: buffers of 12 never fill, as the papers say, and
    /// the smallest ones cost much bandwidth (P13). With `waiting`, buffers of 11 never fill, and the smallest ones do
    /// not.
    pub full_counts: Counting,
    /// Which packets are compared with the threshold (D: waiting ones, as only these can still be marked).
    pub threshold_counts: Counting,
    /// Number of packets in an input buffer at which the input trigger fires. If it is less than the slots, small
    /// buffers cost bandwidth (P26); without the trigger, congestion that spreads through full buffers is not detected
    /// (G, P25).
    pub input_trigger: InputTrigger,
    /// When the output trigger fires (R).
    pub output_trigger: OutputTrigger,
    /// Which packets a trigger marks. The papers use counters; a scan marks the packets present at the trigger (G,
    /// P28).
    pub mark_by: MarkBy,
    /// With `mark_by=scan`: an output that lacked a credit within this time is not congested, and the input trigger
    /// does not mark its packets (G, P27). 0s: no output is spared.
    pub spare_blocked: DurationText,
    /// The switches that mark (R).
    pub mark_in: MarkIn,
    /// When a slot is freed; its credit returns at once (R).
    pub slot_freed: SlotFreed,
    /// How much of a packet must have arrived before it is forwarded (G).
    pub forwarding: Forwarding,
    /// Delay from the arrival of a header to its earliest departure (G).
    pub forwarding_delay: DurationText,
    /// Additional delay of an ACK or echo; ACKs do not contend with data (R).
    pub ack_delay: DurationText,
    /// Which rate determines the gap between packets (R).
    pub spacing: Spacing,
    /// Rate of a flow at its start, as a fraction of its link's rate (R).
    pub initial_rate: Fraction,
    /// Phase within a packet time at which each flow starts (R).
    pub phases: Phases,
    /// Where packets wait in switches.
    pub switch: SwitchKind,
    /// Output queues: size of a queue. Packets that do not fit are dropped.
    #[schemars(extend("unit" = "packets"))]
    pub queue: u32,
    /// Output queues: whether packets are marked on arrival or on departure.
    pub mark_at: MarkAt,
    /// Output queues: how marks are returned to the source.
    pub feedback: Feedback,
    /// Output queues: what counts as one source when shares of an output are measured; sources below the fair share are
    /// not marked.
    pub shares: ShareBy,
    /// Output queues: whether packets of hosts without the agent are dropped if more than twice the threshold wait and
    /// their source has at least its share.
    pub unmarkable: Unmarkable,
    /// Output queues: how often receivers send an echo.
    pub echo: Every,
    /// Output queues: how much time lost by being late or idle a port can make up for (HTB's burst); at least a packet.
    pub burst: DurationText,
    /// Output queues: mean lateness of the timers of ports and sources, exponentially distributed. A thread's timers
    /// are 25 to 30 us late on four shared CPUs, including its wake-up. Without control all devices send at one rate,
    /// and only this lateness shifts their phases: a packet that arrives just after a slot is freed gets it, for
    /// seconds.
    pub timer_delay: DurationText,
    /// Output queues: how often the agent applies rate increases. It applies decreases at once, unless it is busy or
    /// pauses after the last changes, see [`ecn_core::flow::batch_delay`].
    pub agent_period: DurationText,
    /// Output queues: time from the agent's wake-up until the new rates are in force: the wake-up, and about twenty
    /// class changes of 3 to 7 us each.
    pub enforcement_delay: DurationText,
    /// Output queues: parameters of `marking=bcn`.
    #[serde(skip)]
    pub bcn: BcnParameters,
    /// Output queues: parameters of `marking=qcn`.
    #[serde(skip)]
    pub qcn: QcnParameters,
}

/// Keys of [`Model`] that apply only to switches with input buffers.
const INPUT_ONLY: &[&str] = &[
    "window",
    "arbitration",
    "bypass",
    "bypass_counts",
    "crossbar",
    "trigger",
    "full_counts",
    "threshold_counts",
    "input_trigger",
    "output_trigger",
    "mark_by",
    "spare_blocked",
    "slot_freed",
    "forwarding",
    "spacing",
];
/// Keys of [`Model`] that apply only to switches with output queues.
const OUTPUT_ONLY: &[&str] = &[
    "queue",
    "mark_at",
    "feedback",
    "shares",
    "unmarkable",
    "echo",
    "burst",
    "timer_delay",
    "agent_period",
    "enforcement_delay",
];

/// Keys of the output trigger, except the threshold.
const OF_OUTPUT_TRIGGER: &[&str] = &["threshold_counts", "output_trigger"];
/// Keys that apply to every marking.
const OF_MARKING: &[&str] = &[
    "threshold",
    "threshold_counts",
    "output_trigger",
    "trigger",
    "full_counts",
    "input_trigger",
    "mark_by",
    "mark_in",
    "mark_at",
    "spare_blocked",
];
/// Keys of bridges' senders that respond to echoes.
const OF_ECHO: &[&str] = &["ack_delay", "echo", "agent_period", "enforcement_delay"];

impl Default for Model {
    fn default() -> Self {
        Self {
            marking: Marking::InputOutput,
            threshold: 8,
            buffer: 4,
            response: Response::default(),
            rmin: Fraction::ratio(1, 256),
            m: Fraction::ratio(2, 1),
            window: 1,
            round: Round::Off,
            arbitration: Arbitration::default(),
            bypass: Bypass(4),
            bypass_counts: BypassCounts::default(),
            crossbar: Crossbar::default(),
            trigger: Trigger::default(),
            full_counts: Counting::Present,
            threshold_counts: Counting::default(),
            input_trigger: InputTrigger::default(),
            output_trigger: OutputTrigger::default(),
            mark_by: MarkBy::default(),
            spare_blocked: DurationText::from_nanos(0),
            mark_in: MarkIn::All,
            slot_freed: SlotFreed::default(),
            forwarding: Forwarding::default(),
            forwarding_delay: DurationText::from_nanos(40),
            ack_delay: DurationText::from_nanos(0),
            spacing: Spacing::default(),
            initial_rate: Fraction::ratio(1, 1),
            phases: Phases::default(),
            switch: SwitchKind::default(),
            queue: 100,
            mark_at: MarkAt::default(),
            feedback: Feedback::default(),
            // As in the papers.
            shares: ShareBy::Off,
            unmarkable: Unmarkable::default(),
            echo: Every::default(),
            burst: DurationText::from_micros(130),
            timer_delay: DurationText::from_micros(20),
            agent_period: DurationText::from_millis(1),
            enforcement_delay: DurationText::from_micros(150),
            bcn: BcnParameters::bridge(),
            qcn: QcnParameters::bridge(),
        }
    }
}

impl Model {
    /// Checks constraints that the types do not express.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn check(&self) -> Result<(), ModelError> {
        for (key, value) in [
            ("buffer", self.buffer),
            ("window", self.window),
            ("threshold", self.threshold),
            ("queue", self.queue),
        ] {
            let least = u32::from(key != "threshold");
            if !(least..=MOST_PACKETS).contains(&value) {
                let reason = format!("must be between {least} and {MOST_PACKETS} packets");
                return Err(ModelError::new(key, value, reason));
            }
        }
        for (key, delay) in [
            ("forwarding_delay", self.forwarding_delay),
            ("ack_delay", self.ack_delay),
            ("spare_blocked", self.spare_blocked),
            ("burst", self.burst),
            ("timer_delay", self.timer_delay),
            ("agent_period", self.agent_period),
            ("enforcement_delay", self.enforcement_delay),
        ] {
            if delay.as_nanos() > LONGEST_DELAY.as_nanos() {
                let reason = format!("must be at most {LONGEST_DELAY}");
                return Err(ModelError::new(key, delay, reason));
            }
        }
        if self.agent_period.as_nanos() == 0 {
            let reason = "must be above 0";
            return Err(ModelError::new("agent_period", self.agent_period, reason));
        }
        if let InputTrigger::At(packets) = self.input_trigger
            && !(1..=self.buffer).contains(&packets)
        {
            let buffer = self.buffer;
            let reason = format!("must be between 1 and the buffer's {buffer} slots, or `off`");
            return Err(ModelError::new("input_trigger", packets, reason));
        }
        if self.spare_blocked.as_nanos() > 0 && self.mark_by != MarkBy::Scan {
            let reason = "needs mark_by=scan: counters do not select the packets that they mark";
            return Err(ModelError::new("spare_blocked", self.spare_blocked, reason));
        }
        self.check_kind()?;
        self.initial_ipd()?;
        self.policy(Function::Lipd).map(drop)
    }

    /// Checks that keys that do not apply to the kind of switch have their defaults.
    fn check_kind(&self) -> Result<(), ModelError> {
        if self.switch == SwitchKind::Output && matches!(self.response, Response::Table(_)) {
            let reason = "must be a function of the papers with switch=output";
            return Err(ModelError::new("response", &self.response, reason));
        }
        if self.feedback.is_backward() && self.mark_at == MarkAt::Departure {
            let reason =
                "needs mark_at=arrival: at departure the path back to the source is not known";
            return Err(ModelError::new("feedback", self.feedback, reason));
        }
        if self.switch == SwitchKind::Input && self.marking.notifications().is_some() {
            let reason = "only bridges notify sources: use switch=output";
            return Err(ModelError::new("marking", self.marking, reason));
        }
        if self.switch == SwitchKind::Input && self.round == Round::Fractional {
            let reason = "applies to bridges only: use switch=output, or round=off";
            return Err(ModelError::new("round", self.round, reason));
        }
        let (Ok(own), Ok(default)) = (
            toml::Table::try_from(self),
            toml::Table::try_from(Self::default()),
        ) else {
            return Ok(());
        };
        match self
            .inapplicable_keys()
            .iter()
            .find(|key| own.get(**key) != default.get(**key))
        {
            None => Ok(()),
            Some(key) => {
                let value = own.get(*key).map(ToString::to_string).unwrap_or_default();
                let reason = format!("does not apply to switch = {}", self.switch);
                Err(ModelError::new(*key, value.trim_matches('"'), reason))
            }
        }
    }

    /// Keys without effect besides those of the other kind of switch: those of markings and responses that are not
    /// chosen.
    pub fn without_effect(&self) -> Vec<&'static str> {
        let mut keys = Vec::new();
        let has_shares = self.switch == SwitchKind::Output && self.shares != ShareBy::Off;
        match self.marking {
            Marking::None => keys.extend(OF_MARKING),
            // The threshold also decides whose packets bridges may drop.
            Marking::Naive | Marking::Input if has_shares => keys.extend(OF_OUTPUT_TRIGGER),
            Marking::Naive | Marking::Input => {
                keys.extend(OF_OUTPUT_TRIGGER);
                keys.push("threshold");
            }
            Marking::InputOutput => {}
            Marking::Bcn | Marking::Qcn => {
                keys.extend(OF_MARKING);
                keys.extend(["buffer", "feedback", "shares", "unmarkable"]);
            }
        }
        match &self.response {
            Response::Function(Function::None) => {
                keys.extend(["m", "rmin", "round"]);
                if self.switch == SwitchKind::Output {
                    keys.extend(OF_ECHO);
                }
            }
            Response::Function(Function::Lipd) | Response::Table(_) => keys.push("m"),
            Response::Function(_) => {}
        }
        if self.round == Round::Fractional {
            keys.push("rmin");
        }
        keys
    }

    /// Keys that do not apply to the kind of switch.
    pub const fn inapplicable_keys(&self) -> &'static [&'static str] {
        match self.switch {
            SwitchKind::Input => OUTPUT_ONLY,
            SwitchKind::Output => INPUT_ONLY,
        }
    }

    /// A source's initial inter-packet delay, in `ecn-core`'s fixed point.
    ///
    /// # Errors
    ///
    /// `initial_rate` out of range.
    pub fn initial_ipd(&self) -> Result<u64, ModelError> {
        let rate = self.initial_rate;
        let (num, den) = (rate.numerator().into(), rate.denominator().into());
        fixed::ratio(den, num, FRAC)
            .filter(|ipd| (ONE..=response::IPD_LIMIT << FRAC).contains(ipd))
            .ok_or_else(|| {
                let least = response::IPD_LIMIT;
                let reason =
                    format!("must be between 1/{least} of the link's rate and all of it, 1");
                ModelError::new("initial_rate", rate, reason)
            })
    }

    /// The response of `ecn-core` for one of the papers' functions.
    ///
    /// # Errors
    ///
    /// `rmin` or `m` out of range.
    pub fn policy(&self, function: Function) -> Result<response::Policy, ModelError> {
        use response::PolicyError as E;
        response::Policy::new(function, self.rmin.into(), self.m.into())
            .map(|policy| policy.with_rounds(self.round))
            .map_err(|error| match error {
                E::FactorTooSmall | E::FactorTooLarge => ModelError::new("m", self.m, error),
                _ => ModelError::new("rmin", self.rmin, error),
            })
    }

    /// The policy for messages sent by the ports of a bridge.
    pub const fn backward_policy(&self) -> backward::Policy {
        backward::Policy::new(self.feedback(), backward::MESSAGES_PER_S)
    }

    /// The feedback that sources get about congestion.
    pub const fn feedback(&self) -> Feedback {
        match self.marking.notifications() {
            Some(_) => Feedback::Backward,
            None => self.feedback,
        }
    }

    /// The marking of `ecn-core`, for a switch named `name` with port slots below `ports`.
    pub fn marking_policy(&self, name: &str, ports: u32) -> marking::Policy {
        let marks = match &self.mark_in {
            MarkIn::All => true,
            MarkIn::Named(names) => names.iter().any(|named| named == name),
        };
        let marking = if marks { self.marking } else { Marking::None };
        let mark_at = match (self.switch, self.mark_at) {
            (SwitchKind::Output, mark_at) => mark_at,
            _ => MarkAt::Departure,
        };
        marking::Policy {
            marking: marking as u32,
            mark_at: mark_at as u32,
            buffer: self.input_trigger.least(self.buffer),
            threshold: self.threshold,
            ports,
            shares: self.shares as u32,
            drop_threshold: match (self.shares, self.unmarkable) {
                (ShareBy::Off, _) | (_, Unmarkable::Pass) => 0,
                _ if self.marking.notifications().is_some() => 0,
                _ => self.threshold.saturating_mul(2),
            },
            _pad: 0,
        }
    }
}
