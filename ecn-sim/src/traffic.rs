//! Traffic of hosts' applications, and its transport.

use std::fmt;
use std::str::FromStr;

use ecn_units::{Rate, nearest, serde_as_text};
use schemars::JsonSchema;

/// What an application sends: `greedy`, `reno`, `cubic`, or a rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Traffic {
    /// As much as its host permits, like greedy UDP.
    #[default]
    Greedy,
    /// Packets at this rate, regardless of losses.
    #[schemars(untagged)]
    Constant(Rate),
    /// TCP that always has data to send.
    #[schemars(untagged)]
    Tcp(Algorithm),
}

/// How a TCP connection's window answers to losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Algorithm {
    /// Half of it, and a packet more per round trip; RFC 5681.
    Reno,
    /// RFC 9438.
    Cubic,
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Greedy => f.write_str("greedy"),
            Self::Constant(rate) => rate.fmt(f),
            Self::Tcp(Algorithm::Reno) => f.write_str("reno"),
            Self::Tcp(Algorithm::Cubic) => f.write_str("cubic"),
        }
    }
}

impl FromStr for Traffic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const WORDS: [&str; 3] = ["greedy", "reno", "cubic"];
        match text {
            "greedy" => return Ok(Self::Greedy),
            "reno" => return Ok(Self::Tcp(Algorithm::Reno)),
            "cubic" => return Ok(Self::Tcp(Algorithm::Cubic)),
            _ => {}
        }
        text.parse()
            .map(Self::Constant)
            .map_err(|_| match nearest(text, WORDS) {
                Some(word) => format!("unknown value `{text}`: did you mean `{word}`?"),
                None => format!(
                    "unknown value `{text}`: expected one of {}, or a rate such as 5mbit",
                    WORDS.join(", ")
                ),
            })
    }
}

serde_as_text!(@serde Traffic);

/// A sequence of flows that start at random times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrivals {
    /// Mean number of new flows per second; intervals are exponentially distributed.
    pub per_s: u32,
    /// Packets per flow.
    pub packets: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_is_its_text() {
        for text in ["greedy", "reno", "cubic", "5mbit"] {
            let traffic: Traffic = text.parse().expect("traffic");
            assert_eq!(traffic.to_string(), text);
        }
        let error = "cubik".parse::<Traffic>().expect_err("a word");
        assert!(error.contains("`cubic`"), "{error}");
        let error = "some".parse::<Traffic>().expect_err("a word");
        assert!(error.contains("5mbit"), "{error}");
    }
}
