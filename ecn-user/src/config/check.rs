//! What values are allowed.

use std::{
    collections::HashSet,
    fmt,
    ops::RangeInclusive,
    path::{Component, Path},
};

use ecn_core::{abi::ENDPOINTS, vqueue::DEPTH};

use super::{
    Agent, Bridge, Config, Every, Fraction, MarkAt, Metrics, Queue, Response, Round, VERSION,
    file::{Place, SECTIONS, Section},
    fraction, is_pattern, netns_path,
};
use crate::units::{DurationText, Rate};

const RMIN_LOWEST: Fraction = fraction(1, 65536);
const ONE: Fraction = fraction(1, 1);
/// A packet of 1500 bytes takes no more than a second and a half.
pub const LOWEST_RATE_BYTES_PER_S: u64 = 1_000;
/// Each flow that is named makes new time series.
const MOST_TOP_FLOWS: u32 = 1000;
const LONGEST_PERIOD: DurationText = DurationText::from_secs(1);
/// Of marks that are answered together, and between echoes: no flow could be controlled.
const LONGEST_STEP: DurationText = DurationText::from_secs(60);
const LONGEST_IDLE: DurationText = DurationText::from_secs(86_400);
/// Limits stay in force for so long when the agent was killed.
const LONGEST_HEARTBEAT: DurationText = DurationText::from_secs(60);

impl Config {
    pub(super) fn check(&self) -> Vec<(Option<Place>, String)> {
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
            if let Some(drop_threshold) = bridge.drop_threshold {
                check.range(at("drop_threshold"), drop_threshold, 1..=threshold);
                if bridge.drops_above().is_none() {
                    check.fail(
                        at("drop_threshold"),
                        "nothing is dropped: it goes with unmarkable = \"drop\", and shares \"source\" or \"port\"",
                    );
                } else if drop_threshold < bridge.threshold {
                    let threshold = bridge.threshold;
                    check.fail(
                        at("drop_threshold"),
                        format!("{drop_threshold} is below `threshold`, {threshold}: what can be marked is marked first"),
                    );
                }
            }
            check.queue(at, bridge);
            let rates = bridge
                .queue_rates
                .values()
                .map(|rate| ("queue_rates", *rate));
            let rate = bridge.queue_rate.map(|rate| ("queue_rate", rate));
            for (key, rate) in rate.into_iter().chain(rates) {
                check.rate(at(key), rate);
            }
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
            if let Some(rate) = endpoint.link_rate {
                check.rate(at("link_rate"), rate);
            }
            if index as u32 == ENDPOINTS - 1 {
                check.fail(
                    at("device"),
                    format!("{} endpoints are the most", ENDPOINTS - 1),
                );
            }
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
            check.longest(at("round"), duration, LONGEST_STEP);
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
            check.longest(at("every"), duration, LONGEST_STEP);
        }
        if self.echo.also_accept.is_some() && self.echo.key.is_none() {
            check.fail(
                at("also_accept"),
                "does not apply without `key`: echoes are not signed then".to_owned(),
            );
        }

        let at = |key| Place {
            section: "flow",
            index: 0,
            key,
        };
        check.not_zero(at("idle"), self.flow.idle);
        check.longest(at("idle"), self.flow.idle, LONGEST_IDLE);
        check.range(at("max"), self.flow.max, 1..=1 << 24);

        let at = |key| Place {
            section: "agent",
            index: 0,
            key,
        };
        let Agent {
            period,
            heartbeat,
            keep: _,
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
        check.longest(at("period"), *period, LONGEST_PERIOD);
        check.longest(at("heartbeat"), *heartbeat, LONGEST_HEARTBEAT);
        if pin.parent().is_none() {
            check.fail(
                at("pin"),
                "`/` is no directory of its own below a BPF file system, such as /sys/fs/bpf/ecn",
            );
        } else {
            check.path(at("pin"), pin, "/sys/fs/bpf/ecn");
        }
        if let Some(cgroup) = cgroup {
            check.path(at("cgroup"), cgroup, "/sys/fs/cgroup/system.slice");
        }

        let at = |key| Place {
            section: "metrics",
            index: 0,
            key,
        };
        let Metrics { listen, top_flows } = self.metrics;
        if listen.is_some_and(|listen| listen.port() == 0) {
            check.fail(
                at("listen"),
                "port 0 would be another one at each start: allowed are 1 to 65535",
            );
        }
        if listen.is_some_and(|listen| listen.ip().is_multicast()) {
            check.fail(at("listen"), "a multicast address cannot be listened on");
        }
        check.range(at("top_flows"), top_flows, 0..=MOST_TOP_FLOWS);
        if top_flows > 0 && listen.is_none() {
            check.fail(
                at("top_flows"),
                "nothing is shown without `listen`, such as listen = \"127.0.0.1:9433\"",
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

    fn rate(&mut self, place: Place, rate: Rate) {
        if rate.bytes_per_s() < LOWEST_RATE_BYTES_PER_S {
            self.fail(
                place,
                format!("{rate} is out of range: allowed are 8kbit and more"),
            );
        }
    }

    fn longest(&mut self, place: Place, duration: DurationText, most: DurationText) {
        if duration > most {
            self.fail(
                place,
                format!("{duration} is out of range: allowed are {most} and less"),
            );
        }
    }

    fn path(&mut self, place: Place, path: &Path, example: &str) {
        let text = path.to_string_lossy();
        let reason = if !path.is_absolute() || text.contains('\0') {
            "is not an absolute path"
        } else if path.components().any(|part| part == Component::ParentDir) {
            "is not a path without `..`"
        } else {
            return;
        };
        let text = text.escape_debug();
        self.fail(place, format!("`{text}` {reason} such as {example}"));
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
            if !bridge.has_port(port) {
                self.fail(at("queue_rates"), format!("`{port}` is not among `ports`"));
            }
        }
    }

    /// Names that the kernel takes: `dev_valid_name()` in net/core/dev.c.
    fn device(&mut self, place: Place, name: &str) {
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
            return self.pattern(place, name);
        };
        self.fail(
            place,
            format!(
                "`{}` cannot be the name of a device: {reason}",
                name.escape_debug()
            ),
        );
    }

    fn netns(&mut self, place: Place, netns: Option<&str>) {
        let Some(netns) = netns else { return };
        let is_name = !netns.is_empty() && netns != "." && netns != ".." && !netns.contains('/');
        if netns.contains('\0') || !is_name && !netns.starts_with('/') {
            self.fail(
                place,
                format!(
                    "`{}` is neither a name in /run/netns nor an absolute path",
                    netns.escape_debug()
                ),
            );
        } else {
            self.pattern(place, netns);
        }
    }

    fn pattern(&mut self, place: Place, name: &str) {
        if is_pattern(name)
            && let Err(error) = glob::Pattern::new(name)
        {
            self.fail(place, format!("`{name}` is no pattern: {}", error.msg));
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
