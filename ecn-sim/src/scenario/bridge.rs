//! One Linux bridge: each host has a port, and all flows go to one receiver.

use std::fmt;
use std::str::FromStr;

use ecn_core::shares::ShareBy;
use ecn_units::{DurationText, Rate, UnitError, nearest, serde_as_text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Rig, check_delay, check_duration, check_warm_up};
use crate::bounds::{ModelError, in_range};
use crate::model::Model;
use crate::network::{Description, FlowSpec, LinkSpec};
use crate::traffic::{Arrivals, Traffic};

/// When something happens: `off`, or a time since the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Moment {
    /// Never.
    #[default]
    Off,
    /// At this time.
    #[schemars(untagged)]
    At(DurationText),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(time) => time.fmt(f),
        }
    }
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        text.parse()
            .map(Self::At)
            .map_err(|error: UnitError| match nearest(text, ["off"]) {
                Some(word) => format!("did you mean `{word}`?"),
                None => format!("must be off, or a time such as 3s; {error}"),
            })
    }
}

serde_as_text!(@serde Moment);

/// The rate of a flow: `off`, or a rate such as `6mbit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Voice {
    /// No flow.
    #[default]
    Off,
    /// This rate.
    #[schemars(untagged)]
    At(Rate),
}

impl fmt::Display for Voice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(rate) => rate.fmt(f),
        }
    }
}

impl FromStr for Voice {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        match text {
            "off" => Ok(Self::Off),
            _ => text.parse().map(Self::At),
        }
    }
}

serde_as_text!(@serde Voice);

/// A bridge with hosts that send to one receiver. Its parameters in addition to the [`Model`].
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct Bridge {
    /// Number of sending hosts, each at its own port.
    #[schemars(extend("unit" = "hosts"))]
    pub hosts: u32,
    /// Flows per host.
    #[schemars(extend("unit" = "flows"))]
    pub flows: u32,
    /// Traffic of these flows.
    pub traffic: Traffic,
    /// Number of hosts without the agent, with one flow each.
    #[schemars(extend("unit" = "hosts"))]
    pub others: u32,
    /// Traffic of the hosts without the agent.
    pub others_traffic: Traffic,
    /// Rate, headers included, of a flow of 242-byte packets from an additional host.
    pub voice: Voice,
    /// New TCP connections per second, from an additional host.
    #[schemars(extend("unit" = "connections per second"))]
    pub short: u32,
    /// Packets per connection of `short`.
    #[schemars(extend("unit" = "packets"))]
    pub short_packets: u32,
    /// Rate of the receiver's port.
    pub port_rate: Rate,
    /// Rate of the hosts' links: the rate of an unlimited flow, of which `rmin` and `initial_rate` are fractions.
    pub link_rate: Rate,
    /// Propagation delay of every link.
    pub link_delay: DurationText,
    /// Size of a data packet, header included.
    #[schemars(extend("unit" = "bytes"))]
    pub packet_bytes: u32,
    /// Delay between the starts of successive flows; 0s: all start at once.
    pub stagger: DurationText,
    /// When the flows of `hosts` stop, except the first.
    pub leave: Moment,
    /// Warm-up time before the measurement.
    pub warm_up: DurationText,
    /// Length of the run, warm-up included.
    pub duration: DurationText,
}

impl Default for Bridge {
    fn default() -> Self {
        let rate = Rate::from_bytes_per_s(12_500_000).unwrap_or(Rate::MAX);
        Self {
            hosts: 10,
            flows: 1,
            traffic: Traffic::Greedy,
            others: 0,
            others_traffic: Traffic::Greedy,
            voice: Voice::Off,
            short: 0,
            short_packets: 1,
            port_rate: rate,
            link_rate: rate,
            link_delay: DurationText::from_nanos(0),
            packet_bytes: 1514,
            stagger: DurationText::from_micros(100),
            leave: Moment::Off,
            warm_up: DurationText::from_secs(2),
            duration: DurationText::from_secs(8),
        }
    }
}

/// Names.
const BRIDGE: &str = "bridge";
const RECEIVER: &str = "receiver";
const PORT: &str = "port";
const CLASS: &str = "controlled";
const OTHER: &str = "other";
const VOICE: &str = "voice";
const VOICE_BYTES: u32 = 242;
const SHORT: &str = "short";

impl Bridge {
    /// The model of the [`Rig`], with shares measured per source, as agents do by default.
    pub(super) fn model() -> Model {
        Model {
            shares: ShareBy::Source,
            ..Rig::model()
        }
    }

    /// Checks that the links of the additional hosts carry what these offer: queues at hosts have no limit.
    fn check_offered(&self) -> Result<(), ModelError> {
        let link = self.link_rate;
        if let Voice::At(rate) = self.voice
            && rate > link
        {
            let reason = format!("must be at most link_rate={link}");
            return Err(ModelError::new("voice", rate, reason));
        }
        let packets = u64::from(self.short) * u64::from(self.short_packets);
        if packets * u64::from(self.packet_bytes) > link.bytes_per_s() {
            let reason = format!(
                "offers more than link_rate={link} carries, with short_packets={} and packet_bytes={}",
                self.short_packets, self.packet_bytes
            );
            return Err(ModelError::new("short", self.short, reason));
        }
        Ok(())
    }

    /// The hosts `h1`.. and the `receiver`, whose port is the bottleneck.
    ///
    /// # Errors
    ///
    /// A number out of range.
    pub fn describe(&self) -> Result<Description, ModelError> {
        in_range("hosts", self.hosts, 1..=200)?;
        in_range("others", self.others, 0..=50)?;
        in_range("short", self.short, 0..=1_000_000)?;
        in_range("short_packets", self.short_packets, 1..=1_000_000)?;
        in_range("flows", self.flows, 1..=10_000)?;
        in_range("packet_bytes", self.packet_bytes, 64..=1_000_000)?;
        check_duration(self.duration)?;
        check_warm_up(self.warm_up, self.duration)?;
        check_delay("link_delay", self.link_delay)?;
        let count = u64::from(self.hosts) * u64::from(self.flows);
        let last = self.stagger.as_nanos().saturating_mul(count - 1);
        let stop = match self.leave {
            Moment::Off => None,
            Moment::At(time) => Some(time),
        };
        let end = stop.unwrap_or(self.duration).min(self.duration);
        if last >= end.as_nanos() {
            let reason = format!("the last of {count} flows must start before {end}");
            return Err(ModelError::new("stagger", self.stagger, reason));
        }
        let link = |name: &str, from: &str, to: &str, rate| LinkSpec {
            name: name.to_owned(),
            between: [from.to_owned(), to.to_owned()],
            rate,
            delay: self.link_delay,
        };
        let named = |letter: &str, count: u32| -> Vec<String> {
            (1..=count).map(|n| format!("{letter}{n}")).collect()
        };
        let (hosts, others) = (named("h", self.hosts), named("o", self.others));
        let mut description = Description {
            switches: vec![BRIDGE.into()],
            hosts: vec![RECEIVER.into()],
            links: vec![link(PORT, BRIDGE, RECEIVER, self.port_rate)],
            flows: Vec::new(),
        };
        let flow = |class: &str, from: &str, traffic| FlowSpec {
            class: class.to_owned(),
            from: from.to_owned(),
            to: RECEIVER.to_owned(),
            start: DurationText::from_nanos(0),
            stop: None,
            packet_bytes: self.packet_bytes,
            traffic,
            controlled: true,
            arrivals: None,
        };
        // Each host's first flow, then each host's second, so that no host has an advantage by starting first.
        for number in 0..count {
            let host = &hosts[(number % u64::from(self.hosts)) as usize];
            description.flows.push(FlowSpec {
                start: DurationText::from_nanos(self.stagger.as_nanos() * number),
                stop: stop.filter(|_| number > 0),
                ..flow(CLASS, host, self.traffic)
            });
        }
        description.flows.extend(others.iter().map(|host| FlowSpec {
            controlled: false,
            ..flow(OTHER, host, self.others_traffic)
        }));
        description.hosts.extend(hosts.into_iter().chain(others));
        self.check_offered()?;
        if let Voice::At(rate) = self.voice {
            description.hosts.push(VOICE.to_owned());
            description.flows.push(FlowSpec {
                packet_bytes: VOICE_BYTES,
                ..flow(VOICE, VOICE, Traffic::Constant(rate))
            });
        }
        if self.short > 0 {
            description.hosts.push(SHORT.to_owned());
            description.flows.push(FlowSpec {
                arrivals: Some(Arrivals {
                    per_s: self.short,
                    packets: self.short_packets,
                }),
                ..flow(SHORT, SHORT, Traffic::Greedy)
            });
        }
        for host in &description.hosts[1..] {
            let to_bridge = link(host, host, BRIDGE, self.link_rate);
            description.links.push(to_bridge);
        }
        Ok(description)
    }
}
