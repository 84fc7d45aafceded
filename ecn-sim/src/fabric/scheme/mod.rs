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

use crate::engine::Time;
use crate::keyword::KeywordError;
use crate::model::{Function, Marking, ModelError};
use crate::serde_as_text;
use crate::units::Rate;

/// What a packet says of the ports that it crossed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mark {
    /// Nothing.
    #[default]
    None,
    /// One was in the ON-OFF pattern (TCD).
    Undetermined,
    /// One was congested.
    Congestion,
}

/// How the network's congestion is controlled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Name {
    /// Not at all: every flow sends at the rate of its link.
    #[default]
    None,
    /// Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015.
    Dcqcn,
    /// Santos, Turner, Janakiraman, INFOCOM 2003: `lipd/input-output` and its like.
    Hp(Function, Marking),
}

/// All names.
pub const NAMES: &[&str] = &[
    "none",
    "dcqcn",
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
    /// The scheme's table of parameters in a scenario; the empty string if it has none.
    pub const fn table(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Dcqcn => "dcqcn",
            Self::Hp(..) => "hp",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Dcqcn => f.pad("dcqcn"),
            Self::Hp(function, marking) => f.pad(&format!("{function}/{marking}")),
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
        Ok(match text.split_once('/') {
            Some((function, marking)) => Self::Hp(
                function.parse().map_err(|_| unknown())?,
                marking.parse().map_err(|_| unknown())?,
            ),
            None if text == "dcqcn" => Self::Dcqcn,
            None => Self::None,
        })
    }
}

serde_as_text!(Name);

/// The parameters of all schemes, each in a table of its own.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// DCQCN's.
    pub dcqcn: dcqcn::Parameters,
    /// HP's.
    pub hp: hp::Parameters,
}

impl Parameters {
    /// The rules of a scheme for links of this rate.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn rules(&self, scheme: Name, line: Rate) -> Result<Rules, ModelError> {
        match scheme {
            Name::None => Ok(Rules::None),
            Name::Dcqcn => self.dcqcn.rules(line).map(Rules::Dcqcn),
            Name::Hp(function, _) => self.hp.rules(function).map(Rules::Hp),
        }
        .map_err(|error| error.within(scheme.table()))
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
    /// HP's.
    Hp(hp::Rules),
}

/// What a sender keeps of a flow.
#[derive(Clone, Copy, Debug)]
pub enum Sender {
    /// Nothing.
    None,
    /// DCQCN's reaction point.
    Dcqcn(dcqcn::Flow),
    /// HP's source.
    Hp(hp::Flow),
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

impl Rules {
    /// What a sender knows of a new flow.
    pub const fn sender(&self) -> Sender {
        match self {
            Self::None => Sender::None,
            Self::Dcqcn(rules) => Sender::Dcqcn(dcqcn::Flow::new(rules)),
            Self::Hp(_) => Sender::Hp(hp::Flow::at_full_rate()),
        }
    }

    /// A flow sends so many bytes, which take `wire` on its link: from the start of these to that of
    /// the next ones, if that is longer.
    #[inline]
    pub fn sends(&self, sender: &mut Sender, now: Time, bytes: u32, wire: Time) -> Option<Time> {
        // Less than 2^64: a packet has less than 2^14 bytes.
        let at = |rate: u64| u64::from(bytes) * 1_000_000_000_000 / rate;
        match (self, sender) {
            (Self::Dcqcn(rules), Sender::Dcqcn(flow)) => flow.sends(rules, now, bytes).map(at),
            (Self::Hp(_), Sender::Hp(flow)) => flow.sends(wire),
            _ => None,
        }
    }

    /// An ACK is back.
    #[inline]
    pub fn acknowledged(&self, sender: &mut Sender, ack: &Acknowledged) {
        if let (Self::Hp(rules), Sender::Hp(flow)) = (self, sender) {
            flow.acknowledged(rules, ack);
        }
    }

    /// A receiver gets a marked packet: from when on does it notify the sender of the next one, if it
    /// does now? `quiet` is what was said the last time, 0 at first.
    #[inline]
    pub const fn notifies(&self, quiet: Time, now: Time) -> Option<Time> {
        match self {
            Self::Dcqcn(rules) => rules.notifies(quiet, now),
            _ => None,
        }
    }

    /// A sender gets a notification.
    pub fn notified(&self, sender: &mut Sender, now: Time, _mark: Mark) {
        if let (Self::Dcqcn(rules), Sender::Dcqcn(flow)) = (self, sender) {
            flow.notified(rules, now);
        }
    }
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
