//! Ranges of values, and keys that exclude each other.

use std::{
    collections::HashSet,
    fmt,
    ops::RangeInclusive,
    path::{Component, Path},
};

use ecn_core::{abi::ENDPOINTS, vqueue::DEPTH};

use super::{
    Agent, Bridge, Config, Echo, Endpoint, Enforcement, Every, Feedback, Fraction, LimitBy, MarkAt,
    Marking, Metrics, Queue, Response, Round, VERSION,
    file::{Location, SECTIONS, Section},
    fraction, is_pattern, netns_path,
};
use crate::units::{DurationText, Rate};

const MIN_RMIN: Fraction = fraction(1, 65536);
const ONE: Fraction = fraction(1, 1);
/// At this rate a packet of 1500 bytes takes 1.5 s.
pub const MIN_RATE_BYTES_PER_S: u64 = 1_000;
/// Each flow with metrics of its own adds time series.
const MAX_TOP_FLOWS: u32 = 1000;
/// Range of `messages_per_s`; if more packets are marked, a message reports several marks, up to 256.
const MESSAGES_PER_S: RangeInclusive<u32> = 100..=1_000_000;
const MAX_PERIOD: DurationText = DurationText::from_secs(1);
/// With longer rounds or intervals between echoes, control has no effect.
const MAX_STEP: DurationText = DurationText::from_secs(60);
const MAX_IDLE: DurationText = DurationText::from_secs(86_400);
/// Rate limits stay in force for this long after the agent was killed.
const MAX_HEARTBEAT: DurationText = DurationText::from_secs(60);

impl Config {
    pub(super) fn check(&self) -> Vec<(Option<Location>, String)> {
        let mut check = Check {
            problems: Vec::new(),
        };
        if self.version != VERSION {
            check.problems.push((
                Some(location("", "version")),
                format!("`version` must be {VERSION}, not {}", self.version),
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
            let at = |key| Location {
                section: "bridge",
                index,
                key,
            };
            check.bridge(at, bridge);
            if !seen.insert((&bridge.name, bridge.netns.as_deref().map(netns_path))) {
                check.duplicate(at("name"), &bridge.name, bridge.netns.as_deref());
            }
        }
        let mut seen = HashSet::new();
        for (index, endpoint) in self.endpoints.iter().enumerate() {
            let at = |key| Location {
                section: "endpoint",
                index,
                key,
            };
            check.endpoint(at, endpoint, self.feedback());
            if index as u32 == ENDPOINTS - 1 {
                let most = ENDPOINTS - 1;
                check.fail(
                    at("device"),
                    format!("at most {most} endpoints are supported"),
                );
            }
            if !seen.insert((&endpoint.device, endpoint.netns.as_deref().map(netns_path))) {
                check.duplicate(at("device"), &endpoint.device, endpoint.netns.as_deref());
            }
        }
        check.response(&self.response);
        check.echo(&self.echo);
        check.notifications(self);
        check.not_zero(location("flow", "idle"), self.flow.idle);
        check.at_most(location("flow", "idle"), self.flow.idle, MAX_IDLE);
        check.range(location("flow", "max"), self.flow.max, 1..=1 << 24);
        check.agent(&self.agent);
        check.metrics(&self.metrics);
        check.problems
    }
}

/// The location of a key of `[bcn]` or `[qcn]` that the simulator refuses.
fn notification_location(section: &'static str, keys: &[&'static str], key: &str) -> Location {
    let key = keys.iter().find(|one| **one == key);
    location(section, key.copied().unwrap_or_default())
}

/// The location of a key in a section that exists once.
const fn location(section: &'static str, key: &'static str) -> Location {
    Location {
        section,
        index: 0,
        key,
    }
}

/// Collects problems.
struct Check {
    problems: Vec<(Option<Location>, String)>,
}

impl Check {
    fn fail(&mut self, at: Location, message: impl fmt::Display) {
        let header = SECTIONS
            .iter()
            .find(|section| section.name == at.section)
            .map_or_else(String::new, Section::header);
        self.problems
            .push((Some(at), format!("`{}` in {header}: {message}", at.key)));
    }

    fn bridge(&mut self, at: impl Fn(&'static str) -> Location, bridge: &Bridge) {
        self.device(at("name"), &bridge.name);
        self.netns(at("netns"), bridge.netns.as_deref());
        let (buffer, threshold) = match bridge.queue {
            Queue::Device => (65535, 65535),
            Queue::Virtual => (DEPTH as u32, DEPTH as u32 - 1),
        };
        self.range(at("buffer"), bridge.buffer, 1..=buffer);
        self.range(at("threshold"), bridge.threshold, 1..=threshold);
        if let Some(drop_threshold) = bridge.drop_threshold {
            self.range(at("drop_threshold"), drop_threshold, 1..=threshold);
            if bridge.drops_above().is_none() {
                self.fail(
                    at("drop_threshold"),
                    "only applies with unmarkable = \"drop\" and shares \"source\" or \"port\"",
                );
            } else if drop_threshold < bridge.threshold {
                let threshold = bridge.threshold;
                self.fail(
                    at("drop_threshold"),
                    format!("must be at least `threshold` ({threshold}), not {drop_threshold}"),
                );
            }
        }
        self.range(at("messages_per_s"), bridge.messages_per_s, MESSAGES_PER_S);
        if bridge.feedback.is_backward() && bridge.mark_at == MarkAt::Departure {
            self.fail(
                at("feedback"),
                format!(
                    "\"{}\" only applies with mark_at = \"arrival\"",
                    bridge.feedback
                ),
            );
        }
        if bridge.marking.notifications().is_some() {
            let marking = bridge.marking;
            if bridge.feedback == Feedback::Both {
                let what = format!("\"both\" does not apply with marking = \"{marking}\"");
                self.fail(at("feedback"), what);
            }
            if bridge.mark_at == MarkAt::Departure {
                let what = format!("\"departure\" does not apply with marking = \"{marking}\"");
                self.fail(at("mark_at"), what);
            }
        }
        if let Some(packets) = bridge.severe_threshold {
            self.range(at("severe_threshold"), packets, 1..=65535);
            if bridge.marking != Marking::Bcn {
                self.fail(
                    at("severe_threshold"),
                    "only applies with marking = \"bcn\"",
                );
            }
        }
        self.queue(&at, bridge);
        if let Some(rate) = bridge.queue_rate {
            self.rate(at("queue_rate"), rate);
        }
        for rate in bridge.queue_rates.values() {
            self.rate(at("queue_rates"), *rate);
        }
        if let Some(ports) = &bridge.ports {
            if ports.is_empty() {
                self.fail(at("ports"), "must not be empty; omit it for all ports");
            }
            let mut seen = HashSet::new();
            for port in ports {
                self.device(at("ports"), port);
                if !seen.insert(port) {
                    self.fail(at("ports"), format!("duplicate port `{port}`"));
                }
            }
        }
    }

    /// Checks `[bcn]` and `[qcn]` for a link of 1 Gb/s.
    fn notifications(&mut self, config: &Config) {
        let (line, frame) = (super::PORT_RATE, super::FRAME_BYTES);
        if let Err(error) = config.bcn.0.rules(line, frame) {
            self.fail(
                notification_location("bcn", super::notifications::BCN_KEYS, &error.key),
                error.reason,
            );
        }
        if let Err(error) = config.qcn.0.rules(line, frame) {
            self.fail(
                notification_location("qcn", super::notifications::QCN_KEYS, &error.key),
                error.reason,
            );
        }
    }

    fn endpoint(
        &mut self,
        at: impl Fn(&'static str) -> Location,
        endpoint: &Endpoint,
        feedback: Feedback,
    ) {
        self.device(at("device"), &endpoint.device);
        self.netns(at("netns"), endpoint.netns.as_deref());
        if let Some(rate) = endpoint.link_rate {
            self.rate(at("link_rate"), rate);
        }
        let limit_by = endpoint.limit_by;
        if limit_by == LimitBy::Flow {
            return;
        }
        // Echoes and ACKs are about single flows, and so is the pacing of a socket.
        let feedback = endpoint.feedback.unwrap_or(feedback);
        if feedback != Feedback::Backward {
            let what = format!(
                "\"{limit_by}\" only applies with feedback = \"backward\" (or bridges with marking = \"bcn\" or \"qcn\"), \
                 not \"{feedback}\""
            );
            self.fail(at("limit_by"), what);
        } else if endpoint.enforcement == Enforcement::Pacing {
            let what = format!("\"{limit_by}\" does not apply with enforcement = \"pacing\"");
            self.fail(at("limit_by"), what);
        }
    }

    fn response(&mut self, response: &Response) {
        let Response { rmin, m, round, .. } = *response;
        if rmin < MIN_RMIN || rmin >= ONE {
            self.fail(
                location("response", "rmin"),
                format!("must be at least 1/65536 and below 1, not {rmin}"),
            );
        }
        if !(m > 1.0 && m <= 16.0) {
            self.fail(
                location("response", "m"),
                format!("must be above 1 and at most 16, not {m}"),
            );
        }
        if let Round::Time(duration) = round {
            self.not_zero(location("response", "round"), duration);
            self.at_most(location("response", "round"), duration, MAX_STEP);
        }
    }

    fn echo(&mut self, echo: &Echo) {
        // Protocols below 148 are assigned (IANA); 255 is reserved.
        let protocol = u32::from(echo.protocol);
        self.range(location("echo", "protocol"), protocol, 148..=254);
        if let Every::Time(duration) = echo.every {
            self.not_zero(location("echo", "every"), duration);
            self.at_most(location("echo", "every"), duration, MAX_STEP);
        }
        if echo.also_accept.is_some() && echo.key.is_none() {
            self.fail(
                location("echo", "also_accept"),
                "does not apply without `key`: echoes are not signed then",
            );
        }
    }

    fn agent(&mut self, agent: &Agent) {
        let at = |key| location("agent", key);
        let Agent {
            period,
            heartbeat,
            keep: _,
            pin,
            cgroup,
        } = agent;
        self.not_zero(at("period"), *period);
        self.not_zero(at("heartbeat"), *heartbeat);
        if !heartbeat.is_zero() && heartbeat <= period {
            self.fail(
                at("heartbeat"),
                format!(
                    "must be longer than `period` ({period}), not {heartbeat}: limits would lapse"
                ),
            );
        }
        self.at_most(at("period"), *period, MAX_PERIOD);
        self.at_most(at("heartbeat"), *heartbeat, MAX_HEARTBEAT);
        if pin.parent().is_none() {
            self.fail(
                at("pin"),
                "must be a directory below a BPF file system, such as /sys/fs/bpf/ecn, not `/`",
            );
        } else {
            self.path(at("pin"), pin, "/sys/fs/bpf/ecn");
        }
        if let Some(cgroup) = cgroup {
            self.path(at("cgroup"), cgroup, "/sys/fs/cgroup/system.slice");
        }
    }

    fn metrics(&mut self, metrics: &Metrics) {
        let at = |key| location("metrics", key);
        let Metrics { listen, top_flows } = *metrics;
        if listen.is_some_and(|listen| listen.port() == 0) {
            self.fail(
                at("listen"),
                "the port must be between 1 and 65535, not 0, for which the kernel chooses one at each start",
            );
        }
        if listen.is_some_and(|listen| listen.ip().is_multicast()) {
            self.fail(at("listen"), "must not be a multicast address");
        }
        self.range(at("top_flows"), top_flows, 0..=MAX_TOP_FLOWS);
        if top_flows > 0 && listen.is_none() {
            self.fail(
                at("top_flows"),
                "does not apply without `listen`, such as listen = \"127.0.0.1:9433\"",
            );
        }
    }

    fn range(&mut self, at: Location, value: u32, allowed: RangeInclusive<u32>) {
        if !allowed.contains(&value) {
            let (low, high) = (allowed.start(), allowed.end());
            self.fail(at, format!("must be between {low} and {high}, not {value}"));
        }
    }

    fn rate(&mut self, at: Location, rate: Rate) {
        if rate.bytes_per_s() < MIN_RATE_BYTES_PER_S {
            self.fail(at, format!("must be at least 8kbit, not {rate}"));
        }
    }

    fn at_most(&mut self, at: Location, duration: DurationText, most: DurationText) {
        if duration > most {
            self.fail(at, format!("must be at most {most}, not {duration}"));
        }
    }

    fn path(&mut self, at: Location, path: &Path, example: &str) {
        let text = path.to_string_lossy();
        let reason = if !path.is_absolute() || text.contains('\0') {
            "must be an absolute path"
        } else if path.components().any(|part| part == Component::ParentDir) {
            "must be a path without `..`"
        } else {
            return;
        };
        let text = text.escape_debug();
        self.fail(at, format!("{reason} (such as {example}), not `{text}`"));
    }

    fn not_zero(&mut self, at: Location, duration: DurationText) {
        if duration.is_zero() {
            self.fail(at, "must not be 0s");
        }
    }

    /// Checks keys that apply to one kind of queue.
    fn queue(&mut self, at: &impl Fn(&'static str) -> Location, bridge: &Bridge) {
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
                        "must be \"arrival\" with queue = \"virtual\", from which nothing departs",
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
                            "only applies with queue = \"virtual\": a device's own queue has its own rate",
                        );
                    }
                }
            }
        }
        for port in bridge.queue_rates.keys() {
            self.device(at("queue_rates"), port);
            if !bridge.has_port(port) {
                self.fail(at("queue_rates"), format!("`{port}` is not one of `ports`"));
            }
        }
    }

    /// Checks a name as `dev_valid_name()` in net/core/dev.c does.
    fn device(&mut self, at: Location, name: &str) {
        let reason = if name.is_empty() {
            "it is empty"
        } else if name.len() > 15 && !is_pattern(name) {
            "it is longer than 15 bytes"
        } else if name == "." || name == ".." {
            "it names a directory"
        } else if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
            "it contains a space, `/` or `:`"
        } else if name.contains(char::is_control) {
            "it contains a control character"
        } else {
            return self.pattern(at, name);
        };
        self.fail(
            at,
            format!("invalid device name `{}`: {reason}", name.escape_debug()),
        );
    }

    fn netns(&mut self, at: Location, netns: Option<&str>) {
        let Some(netns) = netns else { return };
        let is_name = !netns.is_empty() && netns != "." && netns != ".." && !netns.contains('/');
        if netns.contains('\0') || !is_name && !netns.starts_with('/') {
            self.fail(
                at,
                format!(
                    "must be a name in /run/netns or an absolute path, not `{}`",
                    netns.escape_debug()
                ),
            );
        } else {
            self.pattern(at, netns);
        }
    }

    fn pattern(&mut self, at: Location, name: &str) {
        if is_pattern(name)
            && let Err(error) = glob::Pattern::new(name)
        {
            self.fail(at, format!("invalid pattern `{name}`: {}", error.msg));
        }
    }

    fn duplicate(&mut self, at: Location, name: &str, netns: Option<&str>) {
        let whose = match netns {
            Some(netns) => format!("in netns `{netns}`"),
            None => "in the agent's own netns".to_owned(),
        };
        self.fail(at, format!("duplicate `{name}` {whose}"));
    }
}
