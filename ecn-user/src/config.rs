//! The agent's configuration file, `ecn.toml`.
//!
//! Every key has a documented default except the two that name a device; `ecn.example.toml`
//! ([`EXAMPLE`]) shows them all. A file is checked as a whole when it is loaded: unknown keys and
//! values are refused with the nearest valid one, values out of range with what is allowed, each
//! with its line. A [`Config`] built by code is checked by [`Config::validate`].

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};

use ecn_core::vqueue::DEPTH;
pub use ecn_sim::keyword::{KeywordError, nearest, suggestion};
use ecn_sim::keywords;
pub use ecn_sim::model::{Function, Marking};
pub use ecn_sim::policy::{Every, MarkAt, Round};

use crate::units::{DurationText, Fraction, Rate};

/// The commented example, whose every key is its default.
pub const EXAMPLE: &str = include_str!("../ecn.example.toml");

/// The version of the file format that this program reads.
pub const VERSION: u32 = 1;

keywords! {
    /// How the rates of flows are enforced at an endpoint.
    Enforcement {
        /// The first of these that the device and the kernel can do.
        #[default]
        Auto = "auto",
        /// A departure time per packet, kept by fq.
        Edt = "edt",
        /// An HTB class per flow.
        Htb = "htb",
        /// TCP's own pacing of sockets on this machine; nothing else is limited.
        Pacing = "pacing",
        /// Rates are computed and shown, but not enforced.
        None = "none",
    }
}

keywords! {
    /// Where an endpoint takes the echoes that come.
    Hook {
        /// `xdp` where it costs nothing: the driver takes XDP programs and is not veth, whose peer
        /// would lose its segmentation offload. Else `tc`.
        #[default]
        Auto = "auto",
        /// At tc ingress.
        Tc = "tc",
        /// In the driver.
        Xdp = "xdp",
    }
}

keywords! {
    /// Which queue of a port is watched.
    Queue {
        /// That of the device: its queueing discipline.
        #[default]
        Device = "device",
        /// What would wait if the port sent at `queue_rate`: for ports without a queue of their own.
        Virtual = "virtual",
    }
}

keywords! {
    /// What happens to TCP connections that would negotiate ECN.
    Tcp {
        /// They do, and control themselves.
        #[default]
        Leave = "leave",
        /// They are kept from it, and controlled as others are.
        Control = "control",
    }
}

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Version of the format; [`VERSION`].
    pub version: u32,
    /// The bridges whose ports mark.
    #[serde(rename = "bridge", skip_serializing_if = "Vec::is_empty")]
    pub bridges: Vec<Bridge>,
    /// The devices through which controlled flows leave and arrive.
    #[serde(rename = "endpoint", skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// How flows of all endpoints answer to marks.
    pub response: Response,
    /// How receivers report marks to senders.
    pub echo: Echo,
    /// Limits of the flow table.
    pub flow: Flow,
    /// The agent itself.
    pub agent: Agent,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: VERSION,
            bridges: Vec::new(),
            endpoints: Vec::new(),
            response: Response::default(),
            echo: Echo::default(),
            flow: Flow::default(),
            agent: Agent::default(),
        }
    }
}

fn default_buffer() -> u32 {
    4
}

fn default_threshold() -> u32 {
    8
}

/// A bridge whose ports mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bridge {
    /// Name of the bridge device.
    pub name: String,
    /// Its network namespace: a name in `/run/netns`, or a path. Default: the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Which packets are marked. Default: [`Marking::InputOutput`].
    #[serde(default)]
    pub marking: Marking,
    /// Packets per input buffer, 1 to 65535. Default: 4.
    #[serde(default = "default_buffer")]
    pub buffer: u32,
    /// Packets waiting for one output, above which they are marked, 1 to 65535. Default: 8.
    #[serde(default = "default_threshold")]
    pub threshold: u32,
    /// Where packets are marked. Default: [`MarkAt::Arrival`].
    #[serde(default)]
    pub mark_at: MarkAt,
    /// Only these ports. Default: all, also those that join later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<String>>,
    /// Which queues are watched. Default: [`Queue::Device`].
    #[serde(default)]
    pub queue: Queue,
    /// Rate of the ports' virtual queues, frames with Ethernet headers as tc counts them. Needed with
    /// [`Queue::Virtual`], and only there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_rate: Option<Rate>,
    /// Rates of single ports that have another than `queue_rate`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub queue_rates: BTreeMap<String, Rate>,
}

impl Bridge {
    /// The bridge `name` in the agent's own namespace with all defaults.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            netns: None,
            marking: Marking::default(),
            buffer: default_buffer(),
            threshold: default_threshold(),
            mark_at: MarkAt::default(),
            ports: None,
            queue: Queue::default(),
            queue_rate: None,
            queue_rates: BTreeMap::new(),
        }
    }

    /// The rate of a port's virtual queue, if it has one.
    pub fn virtual_rate(&self, port: &str) -> Option<Rate> {
        match self.queue {
            Queue::Device => None,
            Queue::Virtual => self.queue_rates.get(port).copied().or(self.queue_rate),
        }
    }
}

/// A device through which controlled flows leave and arrive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Name of the device.
    pub device: String,
    /// Its network namespace: a name in `/run/netns`, or a path. Default: the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// The highest rate of a flow, Rmax. Default: the device's speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_rate: Option<Rate>,
    /// How rates are enforced. Default: [`Enforcement::Auto`].
    #[serde(default)]
    pub enforcement: Enforcement,
    /// Where echoes are taken. Default: [`Hook::Auto`].
    #[serde(default)]
    pub hook: Hook,
    /// What happens to TCP connections that would negotiate ECN. Default: [`Tcp::Leave`].
    #[serde(default)]
    pub tcp: Tcp,
}

impl Endpoint {
    /// The device `device` in the agent's own namespace with all defaults.
    pub fn new(device: impl Into<String>) -> Self {
        Self {
            device: device.into(),
            netns: None,
            link_rate: None,
            enforcement: Enforcement::default(),
            hook: Hook::default(),
            tcp: Tcp::default(),
        }
    }
}

/// How flows answer to marks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Response {
    /// The response function. Default: [`Function::Lipd`].
    pub function: Function,
    /// The lowest rate as a fraction of the link rate, 1/65536 to below 1. Default: 1/64.
    pub rmin: Fraction,
    /// The factor of FIMD's and AIMD's multiplicative decrease, above 1 to 16. Default: 2.
    pub m: f64,
    /// Within what a flow decreases its rate at most once. Default: [`Round::Packets`].
    pub round: Round,
}

impl Default for Response {
    fn default() -> Self {
        Self {
            function: Function::default(),
            rmin: RMIN,
            m: 2.0,
            round: Round::default(),
        }
    }
}

const fn fraction(numerator: u32, denominator: u32) -> Fraction {
    match Fraction::new(numerator, denominator) {
        Some(fraction) => fraction,
        None => panic!("the denominator is zero"),
    }
}

const RMIN: Fraction = fraction(1, 64);
const RMIN_LOWEST: Fraction = fraction(1, 65536);
const ONE: Fraction = fraction(1, 1);

/// How receivers report marks to senders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Echo {
    /// IP protocol number of echo ACKs, 148 to 254. Default: 253, for experiments (RFC 3692).
    pub protocol: u8,
    /// How often. Default: [`Every::Packet`].
    pub every: Every,
}

impl Default for Echo {
    fn default() -> Self {
        Self {
            protocol: 253,
            every: Every::default(),
        }
    }
}

/// Limits of the flow table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Flow {
    /// The state of a flow that was idle this long is removed. Default: 30 s.
    pub idle: DurationText,
    /// Most flows at a time, 1 to 16777216. Default: 65536.
    pub max: u32,
}

impl Default for Flow {
    fn default() -> Self {
        Self {
            idle: DurationText::from_secs(30),
            max: 65536,
        }
    }
}

/// The agent itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Agent {
    /// How often class rates are moved. Default: 1 ms.
    pub period: DurationText,
    /// Limits expire this long after the agent's last sign of life. Default: 1 s.
    pub heartbeat: DurationText,
    /// Directory of pinned maps, below a BPF file system. Default: `/sys/fs/bpf/ecn`.
    pub pin: PathBuf,
    /// The cgroup whose sockets [`Enforcement::Pacing`] is for. Default: the root of cgroup v2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            period: DurationText::from_millis(1),
            heartbeat: DurationText::from_secs(1),
            pin: PathBuf::from("/sys/fs/bpf/ecn"),
            cgroup: None,
        }
    }
}

/// The file of a network namespace: a bare name is one in `/run/netns`, anything else a path.
pub fn netns_path(netns: &str) -> PathBuf {
    // `ip netns` writes to /run/netns; /var/run is a link to /run.
    match netns.strip_prefix("/var/run/netns/") {
        Some(name) => Path::new("/run/netns").join(name),
        None => Path::new("/run/netns").join(netns),
    }
}

/// Why a configuration is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The configuration does not say what it should; one line for each problem.
    #[error("{}", lines(.0))]
    Invalid(Vec<Problem>),
}

fn lines(problems: &[Problem]) -> String {
    problems
        .iter()
        .map(Problem::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// One thing that is wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong, and what is allowed.
    pub message: String,
    /// The file, if the configuration came from one.
    pub path: Option<PathBuf>,
    /// The line in it, counted from 1, if one line is to blame.
    pub line: Option<usize>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match (&self.path, self.line) {
            (Some(path), Some(line)) => write!(f, " ({}:{line})", path.display()),
            (Some(path), None) => write!(f, " ({})", path.display()),
            _ => Ok(()),
        }
    }
}

/// A section of the file and the keys it takes.
struct Section {
    name: &'static str,
    /// Written `[[name]]`, as often as needed.
    is_list: bool,
    required: &'static [&'static str],
    keys: &'static [&'static str],
}

impl Section {
    fn header(&self) -> String {
        if self.is_list {
            format!("[[{}]]", self.name)
        } else {
            format!("[{}]", self.name)
        }
    }
}

const SECTIONS: [Section; 6] = [
    Section {
        name: "bridge",
        is_list: true,
        required: &["name"],
        keys: &[
            "name",
            "netns",
            "marking",
            "buffer",
            "threshold",
            "mark_at",
            "ports",
            "queue",
            "queue_rate",
            "queue_rates",
        ],
    },
    Section {
        name: "endpoint",
        is_list: true,
        required: &["device"],
        keys: &["device", "netns", "link_rate", "enforcement", "hook", "tcp"],
    },
    Section {
        name: "response",
        is_list: false,
        required: &[],
        keys: &["function", "rmin", "m", "round"],
    },
    Section {
        name: "echo",
        is_list: false,
        required: &[],
        keys: &["protocol", "every"],
    },
    Section {
        name: "flow",
        is_list: false,
        required: &[],
        keys: &["idle", "max"],
    },
    Section {
        name: "agent",
        is_list: false,
        required: &[],
        keys: &["period", "heartbeat", "pin", "cgroup"],
    },
];

const TOP_KEYS: [&str; 7] = [
    "version", "bridge", "endpoint", "response", "echo", "flow", "agent",
];

/// Which value of the file a problem is about.
#[derive(Clone, Copy)]
struct Place {
    section: &'static str,
    /// Which of the sections of this name, for `[[section]]`.
    index: usize,
    key: &'static str,
}

/// A text together with what it was parsed into, to say where things are.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
    table: DeTable<'a>,
}

impl Source<'_> {
    fn line(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn problem(&self, offset: Option<usize>, message: String) -> Problem {
        Problem {
            message,
            path: Some(self.path.to_owned()),
            line: offset.map(|offset| self.line(offset)),
        }
    }

    /// Sections of this name as (offset of the header, keys and values).
    fn sections(&self, name: &str) -> Vec<(usize, &DeTable<'_>)> {
        let Some(value) = self.table.get(name) else {
            return Vec::new();
        };
        match value.get_ref() {
            DeValue::Table(table) => vec![(value.span().start, table)],
            DeValue::Array(array) => array
                .iter()
                .filter_map(|item| match item.get_ref() {
                    DeValue::Table(table) => Some((item.span().start, table)),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Where a value is; where its section begins if it is not in the file.
    fn locate(&self, place: Place) -> Option<usize> {
        if place.section.is_empty() {
            return self.table.get(place.key).map(|value| value.span().start);
        }
        let sections = self.sections(place.section);
        let (header, table) = sections.get(place.index)?;
        Some(
            table
                .get(place.key)
                .map_or(*header, |value| value.span().start),
        )
    }

    /// Names the key whose value covers `offset`: `` `marking` in [[bridge]] ``.
    fn name_at(&self, offset: usize) -> Option<String> {
        for section in &SECTIONS {
            for (_, table) in self.sections(section.name) {
                for (key, value) in table.iter() {
                    if value.span().contains(&offset) {
                        return Some(format!("`{}` in {}", key.get_ref(), section.header()));
                    }
                }
            }
        }
        let (key, _) = self
            .table
            .iter()
            .find(|(_, value)| value.span().contains(&offset))?;
        Some(format!("`{}`", key.get_ref()))
    }

    /// What keys and sections are wrong, whatever their values.
    fn unknown_and_missing(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (key, value) in self.table.iter() {
            let name = key.get_ref().as_ref();
            if !TOP_KEYS.contains(&name) {
                problems.push(self.problem(Some(key.span().start), unknown_top(name, value)));
                continue;
            }
            let Some(section) = SECTIONS.iter().find(|section| section.name == name) else {
                continue;
            };
            let fits = match value.get_ref() {
                DeValue::Table(_) => !section.is_list,
                DeValue::Array(array) => {
                    section.is_list && array.iter().all(|item| item.get_ref().is_table())
                }
                _ => false,
            };
            if !fits {
                let header = section.header();
                let message = format!("`{name}` is a section: write {header}");
                problems.push(self.problem(Some(key.span().start), message));
                continue;
            }
            for (header, table) in self.sections(name) {
                for (key, _) in table.iter() {
                    let name = key.get_ref().as_ref();
                    if !section.keys.contains(&name) {
                        let hint = suggestion(name, section.keys);
                        let message =
                            format!("unknown key `{name}` in {}: {hint}", section.header());
                        problems.push(self.problem(Some(key.span().start), message));
                    }
                }
                for required in section.required {
                    if !table.contains_key(*required) {
                        let message = format!("`{required}` is missing in {}", section.header());
                        problems.push(self.problem(Some(header), message));
                    }
                }
            }
        }
        problems.sort_by_key(|problem| problem.line);
        problems
    }
}

/// Describes a key or section that the file as a whole does not take.
fn unknown_top(name: &str, value: &toml::Spanned<DeValue<'_>>) -> String {
    let is_section = match value.get_ref() {
        DeValue::Table(_) => true,
        DeValue::Array(array) => array.iter().all(|item| item.get_ref().is_table()),
        _ => false,
    };
    if is_section {
        return format!(
            "unknown section `{name}`: {}",
            suggestion(name, &TOP_KEYS[1..])
        );
    }
    // A key that belongs into a section but stands before its header.
    match SECTIONS.iter().find(|section| section.keys.contains(&name)) {
        Some(section) => {
            format!(
                "unknown key `{name}` outside of any section: it belongs in {}",
                { section.header() }
            )
        }
        None => format!("unknown key `{name}`: {}", suggestion(name, &TOP_KEYS)),
    }
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read, or with everything that is wrong in it.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// Checks the text of a file; `path` is only for the messages.
    ///
    /// # Errors
    ///
    /// With everything that is wrong in the text.
    pub fn parse(text: &str, path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let table = DeTable::parse(text).map_err(|error| {
            let source = Source {
                path,
                text,
                table: DeTable::new(),
            };
            let offset = error.span().map(|span| span.start);
            ConfigError::Invalid(vec![source.problem(offset, syntax(error.message()))])
        })?;
        let source = Source {
            path,
            text,
            table: table.into_inner(),
        };

        let problems = source.unknown_and_missing();
        if !problems.is_empty() {
            return Err(ConfigError::Invalid(problems));
        }

        let config: Self = toml::from_str(text).map_err(|error| {
            let offset = error.span().map(|span| span.start);
            let message = plain(error.message());
            let message = match offset.and_then(|offset| source.name_at(offset)) {
                Some(name) => format!("{name}: {message}"),
                None => message,
            };
            ConfigError::Invalid(vec![source.problem(offset, message)])
        })?;

        let problems: Vec<_> = config
            .check()
            .into_iter()
            .map(|(place, message)| source.problem(place.and_then(|p| source.locate(p)), message))
            .collect();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Invalid(problems))
        }
    }

    /// Checks a configuration that code has built.
    ///
    /// # Errors
    ///
    /// With everything that is out of range or contradicts itself.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let problems: Vec<_> = self
            .check()
            .into_iter()
            .map(|(_, message)| Problem {
                message,
                path: None,
                line: None,
            })
            .collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(ConfigError::Invalid(problems))
        }
    }

    /// The configuration as the text of a file; reading it gives the same configuration.
    ///
    /// # Errors
    ///
    /// When a value has no TOML form, such as a path that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    fn check(&self) -> Vec<(Option<Place>, String)> {
        let mut check = Check {
            problems: Vec::new(),
        };
        if self.version != VERSION {
            check.problems.push((
                Some(Place {
                    section: "",
                    index: 0,
                    key: "version",
                }),
                format!(
                    "`version`: {} is not supported: allowed is {VERSION}",
                    self.version
                ),
            ));
        }
        if self.bridges.is_empty() && self.endpoints.is_empty() {
            check.problems.push((
                None,
                "nothing to do: at least one [[bridge]] or [[endpoint]] is needed".to_owned(),
            ));
        }

        let mut seen = HashSet::new();
        for (index, bridge) in self.bridges.iter().enumerate() {
            let at = |key| Place {
                section: "bridge",
                index,
                key,
            };
            check.device(at("name"), &bridge.name);
            check.netns(at("netns"), bridge.netns.as_deref());
            if !seen.insert((&bridge.name, bridge.netns.as_deref().map(netns_path))) {
                check.duplicate(at("name"), &bridge.name, bridge.netns.as_deref());
            }
            // A virtual queue holds so many, and no more.
            let (buffer, threshold) = match bridge.queue {
                Queue::Device => (65535, 65535),
                Queue::Virtual => (DEPTH as u32, DEPTH as u32 - 1),
            };
            check.range(at("buffer"), bridge.buffer, 1..=buffer);
            check.range(at("threshold"), bridge.threshold, 1..=threshold);
            check.queue(at, bridge);
            if let Some(ports) = &bridge.ports {
                if ports.is_empty() {
                    check.fail(at("ports"), "the list is empty: leave it out for all ports");
                }
                let mut seen = HashSet::new();
                for port in ports {
                    check.device(at("ports"), port);
                    if !seen.insert(port) {
                        check.fail(at("ports"), format!("`{port}` is there twice"));
                    }
                }
            }
        }

        let mut seen = HashSet::new();
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let at = |key| Place {
                section: "endpoint",
                index,
                key,
            };
            check.device(at("device"), &endpoint.device);
            check.netns(at("netns"), endpoint.netns.as_deref());
            if !seen.insert((&endpoint.device, endpoint.netns.as_deref().map(netns_path))) {
                check.duplicate(at("device"), &endpoint.device, endpoint.netns.as_deref());
            }
        }

        let at = |key| Place {
            section: "response",
            index: 0,
            key,
        };
        let Response { rmin, m, round, .. } = self.response;
        if rmin < RMIN_LOWEST || rmin >= ONE {
            check.fail(
                at("rmin"),
                format!("{rmin} is out of range: allowed are 1/65536 to below 1"),
            );
        }
        if !(m > 1.0 && m <= 16.0) {
            check.fail(
                at("m"),
                format!("{m} is out of range: allowed are above 1 to 16"),
            );
        }
        if let Round::Time(duration) = round {
            check.not_zero(at("round"), duration);
        }

        let at = |key| Place {
            section: "echo",
            index: 0,
            key,
        };
        // Below 148, protocols are assigned (IANA); 255 is reserved.
        check.range(at("protocol"), u32::from(self.echo.protocol), 148..=254);
        if let Every::Time(duration) = self.echo.every {
            check.not_zero(at("every"), duration);
        }

        let at = |key| Place {
            section: "flow",
            index: 0,
            key,
        };
        check.not_zero(at("idle"), self.flow.idle);
        check.range(at("max"), self.flow.max, 1..=1 << 24);

        let at = |key| Place {
            section: "agent",
            index: 0,
            key,
        };
        let Agent {
            period,
            heartbeat,
            pin,
            cgroup,
        } = &self.agent;
        check.not_zero(at("period"), *period);
        check.not_zero(at("heartbeat"), *heartbeat);
        if !heartbeat.is_zero() && heartbeat <= period {
            check.fail(
                at("heartbeat"),
                format!("{heartbeat} is not longer than `period`, {period}: limits would expire"),
            );
        }
        if !pin.is_absolute() {
            check.fail(
                at("pin"),
                format!(
                    "`{}` is not an absolute path such as /sys/fs/bpf/ecn",
                    pin.display()
                ),
            );
        }
        if let Some(cgroup) = cgroup.as_ref().filter(|path| !path.is_absolute()) {
            check.fail(
                at("cgroup"),
                format!(
                    "`{}` is not an absolute path such as /sys/fs/cgroup/system.slice",
                    cgroup.display()
                ),
            );
        }
        check.problems
    }
}

/// Collects what is wrong with values.
struct Check {
    problems: Vec<(Option<Place>, String)>,
}

impl Check {
    fn fail(&mut self, place: Place, message: impl fmt::Display) {
        let header = SECTIONS
            .iter()
            .find(|section| section.name == place.section)
            .map_or_else(String::new, Section::header);
        self.problems.push((
            Some(place),
            format!("`{}` in {header}: {message}", place.key),
        ));
    }

    fn range(&mut self, place: Place, value: u32, allowed: RangeInclusive<u32>) {
        if !allowed.contains(&value) {
            let (low, high) = (allowed.start(), allowed.end());
            self.fail(
                place,
                format!("{value} is out of range: allowed are {low} to {high}"),
            );
        }
    }

    fn not_zero(&mut self, place: Place, duration: DurationText) {
        if duration.is_zero() {
            self.fail(place, "0s is out of range: allowed is any longer time");
        }
    }

    /// What goes with which kind of queue.
    fn queue(&mut self, at: impl Fn(&'static str) -> Place, bridge: &Bridge) {
        match bridge.queue {
            Queue::Virtual => {
                if bridge.queue_rate.is_none() {
                    self.fail(
                        at("queue"),
                        "\"virtual\" needs `queue_rate`, such as queue_rate = \"1gbit\"",
                    );
                }
                if bridge.mark_at == MarkAt::Departure {
                    self.fail(
                        at("mark_at"),
                        "nothing departs from a virtual queue: allowed with it is \"arrival\"",
                    );
                }
            }
            Queue::Device => {
                for (key, given) in [
                    ("queue_rate", bridge.queue_rate.is_some()),
                    ("queue_rates", !bridge.queue_rates.is_empty()),
                ] {
                    if given {
                        self.fail(
                            at(key),
                            "only for queue = \"virtual\": a device's own queue has its own rate",
                        );
                    }
                }
            }
        }
        for port in bridge.queue_rates.keys() {
            self.device(at("queue_rates"), port);
            if let Some(ports) = &bridge.ports
                && !ports.contains(port)
            {
                self.fail(at("queue_rates"), format!("`{port}` is not among `ports`"));
            }
        }
    }

    /// Names that the kernel takes: `dev_valid_name()` in net/core/dev.c.
    fn device(&mut self, place: Place, name: &str) {
        let reason = if name.is_empty() {
            "it is empty"
        } else if name.len() > 15 {
            "it is longer than 15 bytes"
        } else if name == "." || name == ".." {
            "it names a directory"
        } else if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
            "it contains a space, `/` or `:`"
        } else {
            return;
        };
        self.fail(
            place,
            format!("`{name}` cannot be the name of a device: {reason}"),
        );
    }

    fn netns(&mut self, place: Place, netns: Option<&str>) {
        let Some(netns) = netns else { return };
        let is_name = !netns.is_empty() && netns != "." && netns != ".." && !netns.contains('/');
        if !is_name && !netns.starts_with('/') {
            self.fail(
                place,
                format!("`{netns}` is neither a name in /run/netns nor an absolute path"),
            );
        }
    }

    fn duplicate(&mut self, place: Place, name: &str, netns: Option<&str>) {
        let whose = match netns {
            Some(netns) => format!("in netns `{netns}`"),
            None => "in the agent's own netns".to_owned(),
        };
        self.fail(place, format!("`{name}` {whose} is there twice"));
    }
}

/// A syntax error in one line.
fn syntax(message: &str) -> String {
    format!("not valid TOML: {}", message.trim().replace('\n', ", "))
}

/// A message of serde without the names of Rust's types.
fn plain(message: &str) -> String {
    let mut message = message.trim().replace('\n', ", ");
    for (rust, words) in [
        ("expected u8", "expected a whole number from 0 to 255"),
        (
            "expected u32",
            "expected a whole number from 0 to 4294967295",
        ),
        ("expected f64", "expected a number such as 2.0"),
        ("expected a string", "expected text in quotes"),
        ("expected path string", "expected a path in quotes"),
        ("expected a sequence", "expected a list such as [\"veth1\"]"),
    ] {
        if message.ends_with(rust) {
            message.truncate(message.len() - rust.len());
            message.push_str(words);
            break;
        }
    }
    message
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// Everything that is wrong with `text`, as printed.
    fn errors(text: &str) -> String {
        Config::parse(text, "ecn.toml").unwrap_err().to_string()
    }

    /// What is wrong with a key of a section in an otherwise fit file; the key is on line 5.
    fn error_of(section: &str, key_value: &str) -> String {
        errors(&format!(
            "version = 1\n[[bridge]]\nname = \"br0\"\n{section}\n{key_value}\n"
        ))
    }

    /// The example with every key that is commented out put back.
    fn example_uncommented() -> String {
        EXAMPLE
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(key) if key.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => key,
                _ => line,
            })
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn every_key_of_the_example_is_its_default() {
        let expected = Config {
            bridges: vec![Bridge::new("br0")],
            endpoints: vec![Endpoint::new("eth0")],
            ..Config::default()
        };
        assert_eq!(
            Config::parse(EXAMPLE, "ecn.example.toml").unwrap(),
            expected
        );
        let uncommented = example_uncommented();
        assert_ne!(uncommented, EXAMPLE);
        assert_eq!(
            Config::parse(&uncommented, "ecn.example.toml").unwrap(),
            expected
        );
    }

    #[test]
    fn the_example_has_every_key() {
        let uncommented = example_uncommented();
        let table: toml::Table = uncommented.parse().unwrap();
        for section in &SECTIONS {
            let value = &table[section.name];
            let keys = value.get(0).unwrap_or(value).as_table().unwrap();
            for key in section.keys {
                // Keys that have no value by default are shown as `# key = ...`.
                let shown = format!("\n# {key} = ");
                assert!(
                    keys.contains_key(*key) || EXAMPLE.contains(&shown),
                    "{key} of {}",
                    section.name
                );
            }
        }
        assert!(table.contains_key("version"));
    }

    #[test]
    fn the_table_of_keys_is_that_of_the_structs() {
        let bridge = Bridge {
            netns: Some("web".into()),
            ports: Some(vec!["p".into()]),
            queue: Queue::Virtual,
            queue_rate: "1gbit".parse().ok(),
            queue_rates: BTreeMap::from([("p".to_owned(), "1mbit".parse().unwrap())]),
            ..Bridge::new("br0")
        };
        let endpoint = Endpoint {
            netns: Some("web".into()),
            link_rate: "1gbit".parse().ok(),
            ..Endpoint::new("eth0")
        };
        let config = Config {
            bridges: vec![bridge],
            endpoints: vec![endpoint],
            agent: Agent {
                cgroup: Some("/sys/fs/cgroup/web".into()),
                ..Agent::default()
            },
            ..Config::default()
        };
        let table = toml::Table::try_from(&config).unwrap();
        assert_eq!(table.keys().collect::<HashSet<_>>().len(), TOP_KEYS.len());
        assert!(TOP_KEYS.iter().all(|key| table.contains_key(*key)));
        for section in &SECTIONS {
            let value = &table[section.name];
            assert_eq!(value.is_array(), section.is_list);
            let keys = value.get(0).unwrap_or(value).as_table().unwrap();
            let expected: HashSet<_> = section.keys.iter().copied().collect();
            assert_eq!(
                keys.keys().map(String::as_str).collect::<HashSet<_>>(),
                expected
            );
        }
    }

    #[test]
    fn a_full_file_is_read_as_it_says() {
        let text = r#"
            version = 1
            [[bridge]]
            name = "br0"
            netns = "web"
            marking = "naive"
            buffer = 5
            threshold = 16
            mark_at = "departure"
            ports = ["veth1", "veth2"]
            [[bridge]]
            name = "br0"
            [[endpoint]]
            device = "eth0"
            netns = "/proc/1/ns/net"
            link_rate = "100mbit"
            enforcement = "none"
            hook = "xdp"
            tcp = "control"
            [response]
            function = "aimd"
            rmin = "1/256"
            m = 3
            round = "1500us"
            [echo]
            protocol = 254
            every = "5ms"
            [flow]
            idle = "10s"
            max = 1024
            [agent]
            period = "200us"
            heartbeat = "3s"
            pin = "/run/bpf/ecn"
            cgroup = "/sys/fs/cgroup/web"
        "#;
        let config = Config::parse(text, "ecn.toml").unwrap();
        let expected = Config {
            version: 1,
            bridges: vec![
                Bridge {
                    name: "br0".into(),
                    netns: Some("web".into()),
                    marking: Marking::Naive,
                    buffer: 5,
                    threshold: 16,
                    mark_at: MarkAt::Departure,
                    ports: Some(vec!["veth1".into(), "veth2".into()]),
                    ..Bridge::new("br0")
                },
                Bridge::new("br0"),
            ],
            endpoints: vec![Endpoint {
                device: "eth0".into(),
                netns: Some("/proc/1/ns/net".into()),
                link_rate: Rate::from_bytes_per_s(12_500_000),
                enforcement: Enforcement::None,
                hook: Hook::Xdp,
                tcp: Tcp::Control,
            }],
            response: Response {
                function: Function::Aimd,
                rmin: fraction(1, 256),
                m: 3.0,
                round: Round::Time(DurationText::from_micros(1500)),
            },
            echo: Echo {
                protocol: 254,
                every: Every::Time(DurationText::from_millis(5)),
            },
            flow: Flow {
                idle: DurationText::from_secs(10),
                max: 1024,
            },
            agent: Agent {
                period: DurationText::from_micros(200),
                heartbeat: DurationText::from_secs(3),
                pin: "/run/bpf/ecn".into(),
                cgroup: Some("/sys/fs/cgroup/web".into()),
            },
        };
        assert_eq!(config, expected);
        let written = config.to_toml().unwrap();
        assert_eq!(
            Config::parse(&written, "ecn.toml").unwrap(),
            config,
            "{written}"
        );
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest() {
        assert_eq!(
            error_of("netns = \"web\"\nbuffer = 4", "makring = \"naive\""),
            "unknown key `makring` in [[bridge]]: did you mean `marking`? (ecn.toml:6)"
        );
        assert_eq!(
            error_of("[echo]", "frobnicate = 1"),
            "unknown key `frobnicate` in [echo]: allowed are protocol, every (ecn.toml:5)"
        );
        assert_eq!(
            error_of("[ehco]", "protocol = 253"),
            "unknown section `ehco`: did you mean `echo`? (ecn.toml:4)"
        );
        assert_eq!(
            errors("marking = \"naive\"\nvresion = 1\n[[bridge]]\nname = \"br0\"\n"),
            "unknown key `marking` outside of any section: it belongs in [[bridge]] (ecn.toml:1)\n\
             unknown key `vresion`: did you mean `version`? (ecn.toml:2)"
        );
    }

    #[test]
    fn every_unknown_key_is_reported_in_the_order_of_the_file() {
        assert_eq!(
            errors("[agent]\nperoid = \"1ms\"\n[[bridge]]\nname = \"b\"\n[[bridge]]\nbufer = 4\n"),
            "unknown key `peroid` in [agent]: did you mean `period`? (ecn.toml:2)\n\
             `name` is missing in [[bridge]] (ecn.toml:5)\n\
             unknown key `bufer` in [[bridge]]: did you mean `buffer`? (ecn.toml:6)"
        );
    }

    #[test]
    fn sections_of_the_wrong_kind_are_refused() {
        assert_eq!(
            errors("[bridge]\nname = \"br0\"\n"),
            "`bridge` is a section: write [[bridge]] (ecn.toml:1)"
        );
        assert_eq!(
            error_of("[[flow]]", "max = 1"),
            "`flow` is a section: write [flow] (ecn.toml:4)"
        );
        assert_eq!(
            errors("endpoint = \"eth0\"\n"),
            "`endpoint` is a section: write [[endpoint]] (ecn.toml:1)"
        );
    }

    #[test]
    fn unknown_values_are_refused_with_the_nearest() {
        for (section, key_value, expected) in [
            (
                "",
                "marking = \"inptu\"",
                "`marking` in [[bridge]]: unknown value `inptu`: did you mean `input`?",
            ),
            (
                "",
                "marking = \"red\"",
                "`marking` in [[bridge]]: unknown value `red`: \
                 allowed are none, naive, input, input-output",
            ),
            (
                "",
                "mark_at = \"depature\"",
                "`mark_at` in [[bridge]]: unknown value `depature`: did you mean `departure`?",
            ),
            (
                "[response]",
                "function = \"LIPD\"",
                "`function` in [response]: unknown value `LIPD`: did you mean `lipd`?",
            ),
            (
                "[response]",
                "round = \"packet\"",
                "`round` in [response]: unknown value `packet`: did you mean `packets`?",
            ),
            (
                "[response]",
                "round = \"rtt\"",
                "`round` in [response]: unknown value `rtt`: \
                 allowed are off, packets, or a duration such as 1500us",
            ),
            (
                "[response]",
                "round = \"1500\"",
                "`round` in [response]: `1500` is not a duration: the unit is missing \
                 (accepted: a number and ns, us, ms, s, min or h, such as 1500us)",
            ),
            (
                "[response]",
                "rmin = \"1/0\"",
                "`rmin` in [response]: `1/0` is not a fraction: it is divided by zero \
                 (accepted: two whole numbers such as 1/64, or a decimal such as 0.25)",
            ),
            (
                "[response]",
                "rmin = 0.1",
                "`rmin` in [response]: invalid type: floating point `0.1`, \
                 expected a fraction in quotes, such as \"1/64\"",
            ),
            (
                "",
                "buffer = \"4\"",
                "`buffer` in [[bridge]]: invalid type: string \"4\", \
                 expected a whole number from 0 to 4294967295",
            ),
            (
                "",
                "ports = \"veth1\"",
                "`ports` in [[bridge]]: invalid type: string \"veth1\", \
                 expected a list such as [\"veth1\"]",
            ),
            (
                "[echo]",
                "protocol = 300",
                "`protocol` in [echo]: invalid value: integer `300`, \
                 expected a whole number from 0 to 255",
            ),
            (
                "[agent]",
                "period = 1",
                "`period` in [agent]: invalid type: integer `1`, \
                 expected a duration in quotes, such as \"1500us\"",
            ),
        ] {
            assert_eq!(
                error_of(section, key_value),
                format!("{expected} (ecn.toml:5)")
            );
        }
        assert_eq!(
            errors("[[endpoint]]\ndevice = \"eth0\"\nenforcement = \"hbt\"\n"),
            "`enforcement` in [[endpoint]]: unknown value `hbt`: did you mean `htb`? (ecn.toml:3)"
        );
        assert_eq!(
            errors("version = \"1\"\n[[bridge]]\nname = \"br0\"\n"),
            "`version`: invalid type: string \"1\", \
             expected a whole number from 0 to 4294967295 (ecn.toml:1)"
        );
    }

    #[test]
    fn values_out_of_range_are_refused_with_what_is_allowed() {
        for (section, key_value, expected) in [
            (
                "",
                "buffer = 0",
                "`buffer` in [[bridge]]: 0 is out of range: allowed are 1 to 65535",
            ),
            (
                "",
                "buffer = 65536",
                "`buffer` in [[bridge]]: 65536 is out of range: allowed are 1 to 65535",
            ),
            (
                "",
                "queue = \"virtual\"",
                "`queue` in [[bridge]]: \"virtual\" needs `queue_rate`, such as queue_rate = \"1gbit\"",
            ),
            (
                "",
                "queue_rate = \"1gbit\"",
                "`queue_rate` in [[bridge]]: only for queue = \"virtual\": a device's own queue has its own rate",
            ),
            (
                "",
                "mark_at = \"departure\"\nqueue = \"virtual\"\nqueue_rate = \"1gbit\"",
                "`mark_at` in [[bridge]]: nothing departs from a virtual queue: allowed with it is \"arrival\"",
            ),
            (
                "",
                "threshold = 64\nqueue = \"virtual\"\nqueue_rate = \"1gbit\"",
                "`threshold` in [[bridge]]: 64 is out of range: allowed are 1 to 63",
            ),
            (
                "",
                "threshold = 0",
                "`threshold` in [[bridge]]: 0 is out of range: allowed are 1 to 65535",
            ),
            (
                "",
                "ports = []",
                "`ports` in [[bridge]]: the list is empty: leave it out for all ports",
            ),
            (
                "",
                "ports = [\"p1\", \"p1\"]",
                "`ports` in [[bridge]]: `p1` is there twice",
            ),
            (
                "",
                "netns = \"a/b\"",
                "`netns` in [[bridge]]: \
                 `a/b` is neither a name in /run/netns nor an absolute path",
            ),
            (
                "[response]",
                "rmin = \"1\"",
                "`rmin` in [response]: 1 is out of range: allowed are 1/65536 to below 1",
            ),
            (
                "[response]",
                "rmin = \"1/65537\"",
                "`rmin` in [response]: 1/65537 is out of range: allowed are 1/65536 to below 1",
            ),
            (
                "[response]",
                "rmin = \"0\"",
                "`rmin` in [response]: 0 is out of range: allowed are 1/65536 to below 1",
            ),
            (
                "[response]",
                "m = 1",
                "`m` in [response]: 1 is out of range: allowed are above 1 to 16",
            ),
            (
                "[response]",
                "m = 16.5",
                "`m` in [response]: 16.5 is out of range: allowed are above 1 to 16",
            ),
            (
                "[response]",
                "m = nan",
                "`m` in [response]: NaN is out of range: allowed are above 1 to 16",
            ),
            (
                "[response]",
                "round = \"0ms\"",
                "`round` in [response]: 0s is out of range: allowed is any longer time",
            ),
            (
                "[echo]",
                "every = \"0ms\"",
                "`every` in [echo]: 0s is out of range: allowed is any longer time",
            ),
            (
                "[echo]",
                "protocol = 6",
                "`protocol` in [echo]: 6 is out of range: allowed are 148 to 254",
            ),
            (
                "[flow]",
                "idle = \"0s\"",
                "`idle` in [flow]: 0s is out of range: allowed is any longer time",
            ),
            (
                "[flow]",
                "max = 0",
                "`max` in [flow]: 0 is out of range: allowed are 1 to 16777216",
            ),
            (
                "[agent]",
                "period = \"0s\"",
                "`period` in [agent]: 0s is out of range: allowed is any longer time",
            ),
            (
                "[agent]",
                "heartbeat = \"0s\"",
                "`heartbeat` in [agent]: 0s is out of range: allowed is any longer time",
            ),
            (
                "[agent]",
                "heartbeat = \"1ms\"",
                "`heartbeat` in [agent]: 1ms is not longer than `period`, 1ms: \
                 limits would expire",
            ),
            (
                "[agent]",
                "pin = \"ecn\"",
                "`pin` in [agent]: `ecn` is not an absolute path such as /sys/fs/bpf/ecn",
            ),
        ] {
            assert_eq!(
                error_of(section, key_value),
                format!("{expected} (ecn.toml:5)")
            );
        }
        let error = errors("[[endpoint]]\ndevice = \"eth0\"\nlink_rate = \"0mbit\"\n");
        assert!(
            error.starts_with(
                "`link_rate` in [[endpoint]]: `0mbit` is not a rate: \
                 it is less than one byte per second (accepted: "
            ),
            "{error}"
        );
        assert!(error.ends_with("such as 100mbit) (ecn.toml:3)"), "{error}");
    }

    #[test]
    fn bad_names_of_devices_are_refused() {
        for (name, reason) in [
            ("", "it is empty"),
            ("a-name-of-16-byt", "it is longer than 15 bytes"),
            ("..", "it names a directory"),
            ("a b", "it contains a space, `/` or `:`"),
            ("a/b", "it contains a space, `/` or `:`"),
        ] {
            assert_eq!(
                errors(&format!("[[endpoint]]\ndevice = \"{name}\"\n")),
                format!(
                    "`device` in [[endpoint]]: `{name}` cannot be the name of a device: {reason} \
                     (ecn.toml:2)"
                )
            );
        }
    }

    #[test]
    fn duplicates_are_refused_at_the_second() {
        assert_eq!(
            errors("[[bridge]]\nname = \"br0\"\n[[bridge]]\nbuffer = 2\nname = \"br0\"\n"),
            "`name` in [[bridge]]: `br0` in the agent's own netns is there twice (ecn.toml:5)"
        );
        // The same namespace under two names.
        assert_eq!(
            errors(
                "[[endpoint]]\ndevice = \"eth0\"\nnetns = \"web\"\n\
                 [[endpoint]]\ndevice = \"eth0\"\nnetns = \"/var/run/netns/web\"\n"
            ),
            "`device` in [[endpoint]]: `eth0` in netns `/var/run/netns/web` is there twice \
             (ecn.toml:5)"
        );
        let apart = "[[endpoint]]\ndevice = \"eth0\"\nnetns = \"web\"\n\
                     [[endpoint]]\ndevice = \"eth0\"\nnetns = \"db\"\n\
                     [[endpoint]]\ndevice = \"eth0\"\n";
        assert_eq!(Config::parse(apart, "ecn.toml").unwrap().endpoints.len(), 3);
    }

    #[test]
    fn a_file_without_work_is_refused() {
        let nothing = "nothing to do: at least one [[bridge]] or [[endpoint]] is needed";
        assert_eq!(errors(""), format!("{nothing} (ecn.toml)"));
        assert_eq!(
            Config::default().validate().unwrap_err().to_string(),
            nothing
        );
    }

    #[test]
    fn a_later_version_is_refused() {
        assert_eq!(
            errors("\nversion = 2\n[[bridge]]\nname = \"br0\"\n"),
            "`version`: 2 is not supported: allowed is 1 (ecn.toml:2)"
        );
    }

    #[test]
    fn bad_syntax_is_one_line_with_its_place() {
        let error = errors("version = 1\n[[bridge]]\nname = \n");
        assert!(error.starts_with("not valid TOML: "), "{error}");
        assert!(error.ends_with(" (ecn.toml:3)"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none.toml");
        let error = Config::load(&path).unwrap_err().to_string();
        let start = format!("cannot read the configuration file {}: ", path.display());
        assert!(error.starts_with(&start), "{error}");

        let path = dir.path().join("ecn.toml");
        std::fs::write(&path, "[[bridge]]\nname = \"br0\"\nbufer = 1\n").unwrap();
        assert_eq!(
            Config::load(&path).unwrap_err().to_string(),
            format!(
                "unknown key `bufer` in [[bridge]]: did you mean `buffer`? ({}:3)",
                path.display()
            )
        );
    }

    #[test]
    fn code_built_configurations_are_checked_too() {
        let mut config = Config {
            bridges: vec![Bridge::new("br0")],
            ..Config::default()
        };
        config.validate().unwrap();
        config.bridges[0].buffer = 0;
        config.response.m = 0.5;
        assert_eq!(
            config.validate().unwrap_err().to_string(),
            "`buffer` in [[bridge]]: 0 is out of range: allowed are 1 to 65535\n\
             `m` in [response]: 0.5 is out of range: allowed are above 1 to 16"
        );
    }

    #[test]
    fn namespaces_are_named_or_paths() {
        assert_eq!(netns_path("web"), Path::new("/run/netns/web"));
        assert_eq!(
            netns_path("/var/run/netns/web"),
            Path::new("/run/netns/web")
        );
        assert_eq!(netns_path("/proc/1/ns/net"), Path::new("/proc/1/ns/net"));
    }
}
