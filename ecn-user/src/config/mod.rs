//! The agent's configuration file, `ecn.toml`.
//!
//! Every key has a documented default except the two that name a device; `ecn.example.toml`
//! ([`EXAMPLE`]) shows them all. Loading a file checks all of it: unknown keys and values are refused with the nearest
//! valid one, values out of range with the range, each with its line. A [`Config`] built by code is checked by
//! [`Config::validate`].

mod check;
mod file;
mod notifications;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::de::DeTable;

pub use check::MIN_RATE_BYTES_PER_S;
pub use ecn_core::backward::Feedback;
pub use ecn_core::marking::{MarkAt, Marking};
pub use ecn_core::response::Function;
pub use ecn_core::shares::ShareBy as Shares;
use ecn_units::keywords;
pub use ecn_units::{Every, KeywordError, Round, Unmarkable, nearest, suggestion};
pub use notifications::{Bcn, Qcn};

use crate::units::{DurationText, Fraction, Rate};
use file::{Source, plain, syntax};

/// The commented example, in which every key has its default.
pub const EXAMPLE: &str = include_str!("../../ecn.example.toml");

/// Maximum size of a file, bytes.
const LARGEST_FILE: u64 = 16 << 20;

/// Assumed rate of a port for which none is configured, for values derived from it.
pub(crate) const PORT_RATE: Rate = match Rate::from_bytes_per_s(125_000_000) {
    Some(rate) => rate,
    None => Rate::MAX,
};

/// Size of a full packet, bytes: what each waiting packet counts as.
pub(crate) const FRAME_BYTES: u32 = 1_514;

/// The version of the file format that this program reads.
pub const VERSION: u32 = 1;

keywords! {
    /// How the rates of flows are enforced at an endpoint.
    Enforcement {
        /// The first of these that the device and the kernel support.
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
    /// Where an endpoint processes incoming echoes.
    Hook {
        /// `xdp` if the driver supports XDP programs and is not veth, whose peer would lose its segmentation offload;
        /// else `tc`.
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
        /// The device's queueing discipline.
        #[default]
        Device = "device",
        /// What would wait if the port sent at `queue_rate`: for ports without a queue, or whose queue is in hardware.
        Virtual = "virtual",
    }
}

keywords! {
    /// What happens to TCP connections that would negotiate ECN.
    Tcp {
        /// They negotiate it, and control themselves.
        #[default]
        Leave = "leave",
        /// They are prevented from it, and controlled like other flows.
        Control = "control",
    }
}

keywords! {
    /// What has a rate limiter of its own at an endpoint: the granularities of BCN (Barrass 2006), with flows in place of
    /// its priorities.
    LimitBy {
        /// Each flow: addresses, protocol and ports.
        #[default]
        Flow = "flow",
        /// Each pair of source and destination address.
        Addresses = "addresses",
        /// Each destination address.
        Destination = "destination",
        /// The device.
        Device = "device",
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
    /// How flows of all endpoints respond to marks.
    pub response: Response,
    /// How receivers report marks to senders.
    pub echo: Echo,
    /// Both sides of BCN, for bridges with [`Marking::Bcn`] and for sources that they notify.
    pub bcn: Bcn,
    /// Both sides of QCN.
    pub qcn: Qcn,
    /// Limits of the flow table.
    pub flow: Flow,
    /// The agent itself.
    pub agent: Agent,
    /// Metrics and health over HTTP.
    pub metrics: Metrics,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            version: VERSION,
            bridges: Vec::new(),
            endpoints: Vec::new(),
            response: Response::default(),
            echo: Echo::default(),
            bcn: Bcn::default(),
            qcn: Qcn::default(),
            flow: Flow::default(),
            agent: Agent::default(),
            metrics: Metrics::default(),
        }
    }
}

fn default_buffer() -> u32 {
    4
}

fn default_threshold() -> u32 {
    8
}

fn default_messages_per_s() -> u32 {
    ecn_core::backward::MESSAGES_PER_S
}

/// A bridge whose ports mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bridge {
    /// Name of the bridge device, or a pattern ([`is_pattern`]) for all that match.
    pub name: String,
    /// Its network namespace: a name in `/run/netns`, or a path; or a pattern. Default: the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Which packets are marked. Default: [`Marking::InputOutput`].
    #[serde(default)]
    pub marking: Marking,
    /// Packets per input buffer, 1 to 65535; at most 64 with [`Queue::Virtual`]. Default: 4.
    #[serde(default = "default_buffer")]
    pub buffer: u32,
    /// Packets waiting for one output above which they are marked, 1 to 65535; at most 63 with [`Queue::Virtual`].
    /// Default: 8.
    #[serde(default = "default_threshold")]
    pub threshold: u32,
    /// Where packets are marked. Default: [`MarkAt::Arrival`].
    #[serde(default)]
    pub mark_at: MarkAt,
    /// How marks get back to the source. Default: [`Feedback::Echo`].
    #[serde(default)]
    pub feedback: Feedback,
    /// Maximum number of messages per second from each port to sources, 100 to 1000000; beyond it, a message reports
    /// several marks. Default: 10000.
    #[serde(default = "default_messages_per_s")]
    pub messages_per_s: u32,
    /// BCN: packets waiting for one output above which a source is stopped for up to 50 ms, 1 to 65535 (BCN(0, 0)).
    /// Default: no source is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severe_threshold: Option<u32>,
    /// What counts as a source whose share of an output is measured; sources below their share are not marked.
    /// Default: [`Shares::Source`].
    #[serde(default)]
    pub shares: Shares,
    /// What happens to packets that cannot be marked and whose source has its share. Default: [`Unmarkable::Drop`].
    #[serde(default)]
    pub unmarkable: Unmarkable,
    /// Packets waiting for one output above which packets that cannot be marked are dropped if their source has more
    /// than its share; if it has just its share, above twice as many. `threshold` to 65535; at most 63 with
    /// [`Queue::Virtual`]. Default: twice `threshold`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drop_threshold: Option<u32>,
    /// Whether the peers of its veth ports, in any namespace of this machine, and its ports that are taps are
    /// endpoints, with the defaults of [`Endpoint`] unless a section matches them. Default: false.
    #[serde(default)]
    pub peers: bool,
    /// The ports that mark, or patterns for them. Default: all ports, including those added later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ports: Option<Vec<String>>,
    /// Which queues are watched. Default: [`Queue::Device`].
    #[serde(default)]
    pub queue: Queue,
    /// Rate of the ports' virtual queues, frames with Ethernet headers as in tc. Required with [`Queue::Virtual`], does
    /// not apply to other queues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_rate: Option<Rate>,
    /// Rates of ports that differ from `queue_rate`.
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
            feedback: Feedback::default(),
            messages_per_s: default_messages_per_s(),
            severe_threshold: None,
            shares: Shares::default(),
            unmarkable: Unmarkable::default(),
            drop_threshold: None,
            peers: false,
            ports: None,
            queue: Queue::default(),
            queue_rate: None,
            queue_rates: BTreeMap::new(),
        }
    }

    /// Whether another section has the same bridge, queues and place of marking.
    pub(crate) fn same_queues(&self, other: &Self) -> bool {
        let of = |bridge: &Self| {
            let rates = (bridge.queue_rate, bridge.queue_rates.clone());
            let name = (bridge.name.clone(), bridge.netns.clone());
            (name, bridge.queue, rates, bridge.mark_at)
        };
        of(self) == of(other)
    }

    /// Whether it marks at a port.
    pub fn has_port(&self, port: &str) -> bool {
        let ports = self.ports.as_ref();
        ports.is_none_or(|ports| ports.iter().any(|meant| means(meant, port)))
    }

    /// How congestion at its ports is reported to sources.
    pub fn feedback(&self) -> Feedback {
        match self.marking.notifications() {
            Some(_) => Feedback::Backward,
            None => self.feedback,
        }
    }

    /// Waiting packets above which packets that cannot be marked are dropped; `None`: never.
    pub fn drops_above(&self) -> Option<u32> {
        match (self.shares, self.unmarkable) {
            (Shares::Off, _) | (_, Unmarkable::Pass) => None,
            _ if self.marking.notifications().is_some() => None,
            _ => Some(
                self.drop_threshold
                    .unwrap_or(self.threshold.saturating_mul(2)),
            ),
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
    /// Name of the device, or a pattern ([`is_pattern`]) for all that match.
    pub device: String,
    /// Its network namespace: a name in `/run/netns`, or a path; or a pattern. Default: the agent's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<String>,
    /// Maximum rate of a flow, Rmax, at least 8kbit. Default: the device's speed; 10gbit for a tap at a bridge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_rate: Option<Rate>,
    /// How rates are enforced. Default: [`Enforcement::Auto`].
    #[serde(default)]
    pub enforcement: Enforcement,
    /// Where echoes are processed. Default: [`Hook::Auto`].
    #[serde(default)]
    pub hook: Hook,
    /// What happens to TCP connections that would negotiate ECN. Default: [`Tcp::Leave`].
    #[serde(default)]
    pub tcp: Tcp,
    /// How marks are reported to its flows. With [`Feedback::Backward`] its packets are not made ECN-capable, and
    /// received marks are not echoed. Default: that of the bridges of this file ([`Config::feedback`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<Feedback>,
    /// What has a rate limiter of its own; anything but flows needs [`Feedback::Backward`]. Default: [`LimitBy::Flow`].
    #[serde(default)]
    pub limit_by: LimitBy,
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
            feedback: None,
            limit_by: LimitBy::default(),
        }
    }
}

/// How flows respond to marks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Response {
    /// The response function. Default: [`Function::Lipd`].
    pub function: Function,
    /// The lowest rate as a fraction of the link rate, from 1/65536 to below 1; no effect with [`Round::Fractional`].
    /// Default: 1/64.
    pub rmin: Fraction,
    /// The factor of FIMD's and AIMD's multiplicative decrease, above 1 and at most 16. Default: 2.
    pub m: f64,
    /// Whether each mark is a fraction of a step or a whole one, and which marks are ignored. Default:
    /// [`Round::Fractional`].
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

/// How receivers report marks to senders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Echo {
    /// IP protocol number of echo ACKs, 148 to 254. Default: 253, for experiments (RFC 3692).
    pub protocol: u8,
    /// How often an echo is sent. Default: [`Every::Packet`].
    pub every: Every,
    /// Key that signs echoes and backward messages; those without a valid signature are refused. Default: nothing is
    /// signed, and nothing is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// What is accepted besides, while keys are changed; requires `key`. Default: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub also_accept: Option<AlsoAccept>,
}

impl Default for Echo {
    fn default() -> Self {
        Self {
            protocol: 253,
            every: Every::default(),
            key: None,
            also_accept: None,
        }
    }
}

/// A secret of 16 bytes, written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key([u8; 16]);

impl Key {
    /// The words of the key for SipHash.
    pub fn words(self) -> [u64; 2] {
        let whole = u128::from_le_bytes(self.0);
        [whole as u64, (whole >> 64) as u64]
    }
}

impl TryFrom<String> for Key {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        // The text may be a secret with a typo, so the message does not contain it.
        let refused =
            || "must be 32 hexadecimal digits, as printed by `openssl rand -hex 16`".to_owned();
        if text.len() != 32 || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(refused());
        }
        let whole = u128::from_str_radix(&text, 16).map_err(|_| refused())?;
        Ok(Self(whole.to_be_bytes()))
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        format!("{:032x}", u128::from_be_bytes(key.0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// What else is accepted while keys are changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum AlsoAccept {
    /// `none`: unsigned echoes, while hosts are given their first key.
    None,
    /// Echoes signed with this key.
    Key(Key),
}

impl TryFrom<String> for AlsoAccept {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        Key::try_from(text)
            .map(Self::Key)
            .map_err(|error| format!("{error}; `none` accepts unsigned echoes"))
    }
}

impl From<AlsoAccept> for String {
    fn from(key: AlsoAccept) -> Self {
        match key {
            AlsoAccept::None => "none".to_owned(),
            AlsoAccept::Key(key) => key.into(),
        }
    }
}

/// Limits of the flow table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Flow {
    /// Idle time after which a flow's state is removed, at most 24 h. Default: 30 s.
    pub idle: DurationText,
    /// Maximum number of flows, sent and received each, 1 to 16777216; an endpoint may have at most as many as are
    /// free. Default: 65536.
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
    /// Interval at which the rates of classes are raised, at most 1 s; decreases do not wait for it. Default: 1 ms.
    pub period: DurationText,
    /// Rate limits lapse this long after the agent's last heartbeat: longer than `period`, at most 60 s. Default: 1 s.
    pub heartbeat: DurationText,
    /// Whether programs, maps and queueing disciplines stay when the agent ends, so that the next one can take them
    /// over. Default: false.
    pub keep: bool,
    /// Directory of pinned maps and links, below a BPF file system. Default: `/sys/fs/bpf/ecn`.
    pub pin: PathBuf,
    /// The cgroup whose sockets [`Enforcement::Pacing`] applies to. Default: the root of cgroup v2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            period: DurationText::from_millis(1),
            heartbeat: DurationText::from_secs(1),
            keep: false,
            pin: PathBuf::from("/sys/fs/bpf/ecn"),
            cgroup: None,
        }
    }
}

/// Metrics and health over HTTP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Metrics {
    /// Address and TCP port to listen on. Default: none, and nothing is served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Number of flows with their own metrics, 0 to 1000: the fastest limited ones, then those that sent last; requires
    /// `listen`. Default: 0.
    pub top_flows: u32,
}

/// The file of a network namespace: a bare name is one in `/run/netns`, anything else a path.
pub fn netns_path(netns: &str) -> PathBuf {
    // `ip netns` writes to /run/netns; /var/run is a link to /run.
    match netns.strip_prefix("/var/run/netns/") {
        Some(name) => Path::new("/run/netns").join(name),
        None => Path::new("/run/netns").join(netns),
    }
}

/// Whether a name is a pattern: `*`, `?`, `[a-c]`.
pub fn is_pattern(name: &str) -> bool {
    name.contains(['*', '?', '['])
}

/// Whether a configured name or pattern matches a name.
pub fn means(configured: &str, name: &str) -> bool {
    if !is_pattern(configured) {
        return configured == name;
    }
    let pattern = glob::Pattern::new(configured);
    pattern.is_ok_and(|pattern| pattern.matches_with(name, PATTERNS))
}

/// As in a shell.
const PATTERNS: glob::MatchOptions = glob::MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: true,
};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The configuration is invalid; one line for each problem.
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

/// One error in a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The problem and the valid values.
    pub message: String,
    /// The file, if the configuration came from one.
    pub path: Option<PathBuf>,
    /// The line in it, from 1, if the problem is in one line.
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

impl Config {
    /// How marks are reported to flows at endpoints without `feedback`: in all ways that bridges of this file use; by
    /// echoes if it has none.
    pub fn feedback(&self) -> Feedback {
        let has = |is: fn(Feedback) -> bool| self.bridges.iter().any(|of| is(of.feedback()));
        match (has(Feedback::is_echoed), has(Feedback::is_backward)) {
            (true, true) => Feedback::Both,
            (false, true) => Feedback::Backward,
            (_, false) => Feedback::Echo,
        }
    }

    /// Whether ports notify flows at any of its endpoints.
    pub fn is_backward(&self) -> bool {
        let own = self.endpoints.iter().filter_map(|of| of.feedback);
        own.chain([self.feedback()]).any(Feedback::is_backward)
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is invalid; all problems are listed.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let read = || {
            let mut text = String::new();
            let file = File::open(path)?;
            file.take(LARGEST_FILE).read_to_string(&mut text)?;
            if text.len() as u64 == LARGEST_FILE {
                return Err(io::Error::from(io::ErrorKind::FileTooLarge));
            }
            Ok(text)
        };
        let text = read().map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text, path)
    }

    /// As [`Config::load`], but of a regular file only: reading a pipe may block for ever.
    ///
    /// # Errors
    ///
    /// As [`Config::load`], and if it is not a regular file.
    pub fn load_file(path: &Path) -> Result<Self, ConfigError> {
        let error = match std::fs::metadata(path) {
            Ok(file) if file.is_file() => return Self::load(path),
            Ok(file) if file.is_dir() => io::ErrorKind::IsADirectory.into(),
            Ok(_) => io::Error::other("it is not a regular file"),
            Err(error) => error,
        };
        Err(ConfigError::Read {
            path: path.to_owned(),
            source: error,
        })
    }

    /// Parses and checks the text of a file; `path` is only for the messages.
    ///
    /// # Errors
    ///
    /// The text is invalid; all problems are listed.
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
            .map(|(location, message)| {
                source.problem(location.and_then(|p| source.locate(p)), message)
            })
            .collect();
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError::Invalid(problems))
        }
    }

    /// Checks a configuration that was built by code.
    ///
    /// # Errors
    ///
    /// A value is out of range, or keys exclude each other; all problems are listed.
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
    /// A value has no TOML form, such as a path that is not UTF-8.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

#[cfg(test)]
mod tests;
