//! Congestion control: what a sender answers, one module per scheme. What switches say is in
//! [`super::congestion`].

pub mod bcn;
pub mod dcqcn;
pub mod hp;
pub mod ibcc;
pub mod qcn;
pub mod tcd;
pub mod timely;

use std::fmt;
use std::str::FromStr;

use ecn_core::marking::Marking;
use ecn_core::response::Function;
use ecn_core::tcd::Mark;
use ecn_units::{KeywordError, Rate, serde_as_text};
use schemars::JsonSchema;

use crate::engine::Time;
use crate::model::ModelError;

/// How the network's congestion is controlled. `tcd`: ports tell congestion from pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Name {
    /// Not at all: every flow sends at the rate of its link.
    #[default]
    None,
    /// Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015.
    #[schemars(untagged, with = "String", title = "dcqcn, dcqcn+tcd")]
    Dcqcn {
        /// With TCD.
        tcd: bool,
    },
    /// Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015.
    #[schemars(untagged, with = "String", title = "timely, timely+tcd")]
    Timely {
        /// With TCD.
        tcd: bool,
    },
    /// InfiniBand's, annex A10.
    #[schemars(untagged, with = "String", title = "ibcc, ibcc+tcd")]
    Ibcc {
        /// With TCD.
        tcd: bool,
    },
    /// IEEE 802.1Qau.
    #[schemars(untagged, with = "String", title = "qcn")]
    Qcn,
    /// Barrass, 2006.
    #[schemars(untagged, with = "String", title = "bcn")]
    Bcn,
    /// Santos, Turner, Janakiraman, INFOCOM 2003: `lipd/input-output` and its like.
    #[schemars(untagged, with = "String", title = "RESPONSE/MARKING")]
    Hp(Function, Marking),
}

/// All names.
pub const NAMES: &[&str] = &[
    "none",
    "dcqcn",
    "dcqcn+tcd",
    "timely",
    "timely+tcd",
    "ibcc",
    "ibcc+tcd",
    "qcn",
    "bcn",
    "lipd/naive",
    "lipd/input",
    "lipd/input-output",
    "fimd/naive",
    "fimd/input",
    "fimd/input-output",
    "aimd/naive",
    "aimd/input",
    "aimd/input-output",
];

impl Name {
    /// The scheme's tables of parameters in a scenario.
    pub const fn tables(self) -> &'static [&'static str] {
        match self {
            Self::None => &[],
            Self::Dcqcn { tcd: false } => &["dcqcn"],
            Self::Dcqcn { tcd: true } => &["dcqcn", "tcd"],
            Self::Timely { tcd: false } => &["timely"],
            Self::Timely { tcd: true } => &["timely", "tcd"],
            Self::Ibcc { tcd: false } => &["ibcc"],
            Self::Ibcc { tcd: true } => &["ibcc", "tcd"],
            Self::Qcn => &["qcn"],
            Self::Bcn => &["bcn"],
            Self::Hp(..) => &["hp"],
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Hp(function, marking) => f.pad(&format!("{function}/{marking}")),
            _ => f.pad(&self.tables().join("+")),
        }
    }
}

impl FromStr for Name {
    type Err = KeywordError;

    fn from_str(text: &str) -> Result<Self, KeywordError> {
        let unknown = || KeywordError::new(text, NAMES);
        if !NAMES.contains(&text) {
            return Err(unknown());
        }
        if let Some((function, marking)) = text.split_once('/') {
            let function = function.parse().map_err(|_| unknown())?;
            return Ok(Self::Hp(function, marking.parse().map_err(|_| unknown())?));
        }
        let (name, tcd) = match text.strip_suffix("+tcd") {
            Some(name) => (name, true),
            None => (text, false),
        };
        Ok(match name {
            "dcqcn" => Self::Dcqcn { tcd },
            "timely" => Self::Timely { tcd },
            "ibcc" => Self::Ibcc { tcd },
            "qcn" => Self::Qcn,
            "bcn" => Self::Bcn,
            _ => Self::None,
        })
    }
}

serde_as_text!(@serde Name);

/// The parameters of all schemes, each in a table of its own.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// BCN's.
    pub bcn: bcn::Parameters,
    /// DCQCN's.
    pub dcqcn: dcqcn::Parameters,
    /// HP's.
    pub hp: hp::Parameters,
    /// IB CC's.
    pub ibcc: ibcc::Parameters,
    /// QCN's.
    pub qcn: qcn::Parameters,
    /// TCD's.
    pub tcd: tcd::Parameters,
    /// TIMELY's.
    pub timely: timely::Parameters,
}

/// What a scheme has to know of a network.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    /// The links' rate.
    pub line: Rate,
    /// Memory of a port, of each virtual lane if it has those, bytes.
    pub buffer: u64,
    /// A full data packet, bytes.
    pub frame: u32,
    /// Round trip on the longest path, while nothing else is sent.
    pub idle_rtt: Time,
}

impl Parameters {
    /// The rules of a scheme.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn rules(&self, scheme: Name, network: &Network) -> Result<Rules, ModelError> {
        let Network {
            line,
            buffer,
            frame,
            idle_rtt,
        } = *network;
        match scheme {
            Name::None => Ok(Rules::None),
            Name::Dcqcn { .. } => self.dcqcn.rules(line).map(Rules::Dcqcn),
            Name::Timely { tcd } => self.timely.rules(line, idle_rtt, tcd).map(Rules::Timely),
            Name::Ibcc { .. } => self.ibcc.rules(line, buffer).map(Rules::Ibcc),
            Name::Qcn => self.qcn.rules(line, frame).map(Rules::Qcn),
            Name::Bcn => self.bcn.rules(line, frame).map(Rules::Bcn),
            Name::Hp(function, _) => self.hp.rules(function).map(Rules::Hp),
        }
        .map_err(|error| error.within(scheme.tables()[0]))
    }
}

/// A scheme as it is computed with. Matching on it costs nothing that can be measured: it is the same
/// in every call of a run.
#[derive(Clone, Copy, Debug)]
pub enum Rules {
    /// No control.
    None,
    /// DCQCN.
    Dcqcn(dcqcn::Rules),
    /// TIMELY.
    Timely(timely::Rules),
    /// IB CC.
    Ibcc(ibcc::Rules),
    /// QCN.
    Qcn(qcn::Rules),
    /// BCN.
    Bcn(bcn::Rules),
    /// HP's.
    Hp(hp::Rules),
}

/// What a sender keeps of a flow.
#[derive(Clone, Copy, Debug)]
pub enum Sender {
    /// Nothing: there is no control, or what there is, is the host's ([`bcn::Limiters`]).
    None,
    /// DCQCN's reaction point.
    Dcqcn(dcqcn::Flow),
    /// TIMELY's engine.
    Timely(timely::Flow),
    /// IB CC's source.
    Ibcc(ibcc::Flow),
    /// QCN's reaction point.
    Qcn(qcn::Flow),
    /// HP's source.
    Hp(hp::Flow),
}

/// What flows have in common that share a limiter (BCN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// By which host.
    pub from: u32,
    /// To which.
    pub to: u32,
    /// In which class of data.
    pub class: u8,
}

/// A packet that a sender sends.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// When.
    pub now: Time,
    /// Between whom.
    pub ends: Ends,
    /// Its length.
    pub bytes: u32,
    /// How long it takes on the link.
    pub wire: Time,
}

/// An ACK at the sender.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// When.
    pub now: Time,
    /// Since the data that it answers began to be sent.
    pub rtt: Time,
    /// What that data said.
    pub mark: Mark,
    /// Packets that are still on their way, or their ACKs.
    pub in_flight: u32,
}

/// A scheme at the hosts of a part of the network.
#[derive(Debug)]
pub struct Control {
    rules: Rules,
    limiters: Vec<bcn::Limiters>,
}

impl Control {
    /// Of so many hosts.
    pub fn new(rules: Rules, hosts: u32) -> Self {
        let limiters = match rules {
            Rules::Bcn(_) => vec![bcn::Limiters::default(); hosts as usize],
            _ => Vec::new(),
        };
        Self { rules, limiters }
    }

    /// A flow starts: what its sender knows of it.
    pub fn starts(&mut self, ends: Ends) -> Sender {
        if let Some(limiters) = self.limiters.get_mut(ends.from as usize) {
            limiters.starts(ends);
        }
        match &self.rules {
            Rules::None | Rules::Bcn(_) => Sender::None,
            Rules::Dcqcn(rules) => Sender::Dcqcn(dcqcn::Flow::new(rules)),
            Rules::Timely(rules) => Sender::Timely(timely::Flow::new(rules)),
            Rules::Ibcc(rules) => Sender::Ibcc(ibcc::Flow::new(rules)),
            Rules::Qcn(rules) => Sender::Qcn(qcn::Flow::new(rules)),
            Rules::Hp(_) => Sender::Hp(hp::Flow::at_full_rate()),
        }
    }

    /// A flow sends a packet: from the start of this to that of the next one, if that is longer than its
    /// time on the link.
    #[inline]
    pub fn sends(&mut self, sender: &mut Sender, packet: &Sending) -> Option<Time> {
        let Sending { now, bytes, .. } = *packet;
        let rate = match (&self.rules, sender) {
            (Rules::Dcqcn(rules), Sender::Dcqcn(flow)) => flow.sends(rules, now, bytes),
            (Rules::Timely(rules), Sender::Timely(flow)) => flow.sends(rules),
            (Rules::Ibcc(rules), Sender::Ibcc(flow)) => flow.sends(rules, now),
            (Rules::Qcn(rules), Sender::Qcn(flow)) => flow.sends(rules, now, bytes),
            (Rules::Hp(_), Sender::Hp(flow)) => return flow.sends(now, packet.wire),
            (Rules::Bcn(rules), _) => {
                return self.limiters[packet.ends.from as usize].sends(rules, packet);
            }
            _ => None,
        };
        rate.map(|rate| transmission(bytes, rate))
    }

    /// When a flow may send its next packet after an ACK, if that is to be said anew; `wire`: what the last one took.
    #[inline]
    pub fn next_time(&self, sender: &Sender, wire: Time) -> Option<Time> {
        match (&self.rules, sender) {
            (Rules::Hp(rules), Sender::Hp(flow)) => flow.next_time(rules, wire),
            _ => None,
        }
    }

    /// The tag of a packet to come: the congestion point that its limiter obeys (BCN).
    #[inline]
    pub fn tag(&self, ends: Ends) -> Option<u32> {
        match &self.rules {
            Rules::Bcn(rules) => Some(self.limiters[ends.from as usize].tag(rules, ends)),
            _ => None,
        }
    }

    /// A flow between two hosts is finished.
    pub fn ends(&mut self, ends: Ends) {
        if let Some(limiters) = self.limiters.get_mut(ends.from as usize) {
            limiters.ends(ends);
        }
    }

    /// An ACK is back.
    #[inline]
    pub fn acknowledged(&self, sender: &mut Sender, ack: &Acknowledged) {
        match (&self.rules, sender) {
            (Rules::Timely(rules), Sender::Timely(flow)) => {
                flow.acknowledged(rules, ack.now, ack.rtt, ack.mark);
            }
            (Rules::Ibcc(rules), Sender::Ibcc(flow)) => flow.notified(rules, ack.now, ack.mark),
            (Rules::Hp(rules), Sender::Hp(flow)) => flow.acknowledged(rules, ack),
            _ => {}
        }
    }

    /// A receiver gets a marked packet: what it remembers, if it notifies the sender.
    #[inline]
    pub fn notifies(&self, quiet: dcqcn::Quiet, now: Time, mark: Mark) -> Option<dcqcn::Quiet> {
        match &self.rules {
            Rules::Dcqcn(rules) => rules.notifies(quiet, now, mark),
            _ => None,
        }
    }

    /// A sender gets a receiver's notification.
    pub fn notified(&self, sender: &mut Sender, now: Time, mark: Mark) {
        if let (Rules::Dcqcn(rules), Sender::Dcqcn(flow)) = (&self.rules, sender) {
            flow.notified_of(rules, now, mark);
        }
    }

    /// A sender gets the notification of a switch's port, for a packet of a flow between these hosts.
    pub fn told(&mut self, sender: &mut Sender, now: Time, ends: Ends, notice: Notice) {
        match (&self.rules, sender) {
            (Rules::Qcn(rules), Sender::Qcn(flow)) => {
                flow.notified(rules, now, notice.feedback as u8);
            }
            (Rules::Bcn(rules), _) => {
                self.limiters[ends.from as usize].notified(rules, now, ends, notice);
            }
            _ => {}
        }
    }
}

/// What a switch's port tells a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The port, and class of its data.
    pub point: u32,
    /// QCN: 6 bits. BCN: see [`bcn::packed`].
    pub feedback: u32,
}

/// Time of so many bytes at a rate in bytes per second.
#[inline]
fn transmission(bytes: u32, rate: u64) -> Time {
    // Less than 2^64: a packet has less than 2^14 bytes.
    u64::from(bytes) * 1_000_000_000_000 / rate
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_shown() {
        for name in NAMES {
            assert_eq!(name.parse::<Name>().unwrap().to_string(), *name);
        }
        let error = "lipd/inputs".parse::<Name>().unwrap_err().to_string();
        assert!(error.contains("did you mean `lipd/input`?"), "{error}");
    }
}
