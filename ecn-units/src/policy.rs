//! Keys shared by the agent and the simulator.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;

use crate::{DurationText, UnitError, keywords, nearest, serde_as_text};

keywords! {
    /// What happens to packets that cannot be marked if their source has its share.
    Unmarkable {
        /// They are dropped if more than `drop_threshold` wait.
        #[default]
        Drop = "drop",
        /// They pass.
        Pass = "pass",
    }
}

/// Which marks decrease a rate: one per round by a whole step, or each by a part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Round {
    /// Every mark decreases the rate.
    Off,
    /// Marks on packets that were sent before the last decrease are ignored.
    Packets,
    /// No rounds: each packet applies a fraction of a step, see `ecn_core::response`.
    #[default]
    Fractional,
    /// Marks are ignored for this long after a decrease.
    #[schemars(untagged)]
    Time(DurationText),
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.pad("off"),
            Self::Packets => f.pad("packets"),
            Self::Time(duration) => duration.fmt(f),
            Self::Fractional => f.pad("fractional"),
        }
    }
}

impl FromStr for Round {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "packets" => Ok(Self::Packets),
            "fractional" => Ok(Self::Fractional),
            _ => word_or_duration(text, &["off", "packets", "fractional"]).map(Self::Time),
        }
    }
}

serde_as_text!(@serde Round);

/// How often the receiver of a flow sends an echo.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Every {
    /// One echo for each packet.
    #[default]
    Packet,
    /// At most one in this time, plus one at once for each packet that carries CE.
    #[schemars(untagged)]
    Time(DurationText),
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packet => f.pad("packet"),
            Self::Time(duration) => duration.fmt(f),
        }
    }
}

impl FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "packet" => Ok(Self::Packet),
            _ => word_or_duration(text, &["packet"]).map(Self::Time),
        }
    }
}

serde_as_text!(@serde Every);

/// Reads a duration where one of `words` was possible too.
fn word_or_duration(text: &str, words: &[&str]) -> Result<DurationText, String> {
    if text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.') {
        return text.parse().map_err(|error: UnitError| error.to_string());
    }
    Err(match nearest(text, words.iter().copied()) {
        Some(word) => format!("unknown value `{text}`: did you mean `{word}`?"),
        None => format!(
            "unknown value `{text}`: expected one of {}, or a duration such as 1500us",
            words.join(", ")
        ),
    })
}
