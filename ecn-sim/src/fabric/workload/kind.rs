//! Names of workloads.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ecn_units::{KeywordError, serde_as_text};
use schemars::JsonSchema;

/// A pattern of flows, or `file:F`.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Workload {
    /// `senders` hosts send to one host; the seed selects which.
    Incast,
    /// Each host sends to another one and receives from another one: a random cycle through all hosts.
    Permutation,
    /// Each host sends to each other host.
    AllToAll,
    /// Flows between random hosts at random times, with sizes from `cdf`; with `incast_load` also bursts of many hosts
    /// to one, at random times.
    Poisson,
    /// As `permutation`, in bursts of `flow_size` with pauses between them; each host starts at a random phase of this
    /// period.
    OnOff,
    /// Ring all-reduce (Patarasuk and Yuan, 2009) of a vector of `flow_size`: in each of 2 (N - 1) steps each of the N
    /// hosts sends an N-th of it to the next one, as soon as it has received that of the step before.
    AllReduce,
    /// Long flows with the payload that a link carries in `duration`: from the first host to the last, and from every
    /// second host, starting at `h1`, to the next. In a parking lot with two hosts per switch, one flow crosses all
    /// links between switches, and each of them carries one other flow.
    Greedy,
    /// TCD's chain only: `S0` to `R0`, the victim, and `S1` to `R1` offer `load` each for `duration`; every
    /// `burst_gap` each of `senders` hosts sends `flow_size` to `R1`.
    Chain,
    /// HP's Fig. 1 only: senders start `stagger` apart, each up to a packet time later at random, and send to `BC`
    /// until the end; the victim `AV` sends to `BV` as `victim` says.
    Fig1,
    /// The flows of the scenario file's `[[flows]]`.
    Flows,
    /// From a CSV file with the header `start_ns,from,to,bytes` and one flow per line; hosts by name, or by number from
    /// 0 on. A fifth column, `priority`, may give the class of a flow.
    #[schemars(untagged, title = "file:FILE")]
    File(PathBuf),
}

const WORKLOADS: &[&str] = &[
    "incast",
    "permutation",
    "all-to-all",
    "poisson",
    "on-off",
    "all-reduce",
    "greedy",
    "chain",
    "fig1",
    "flows",
    "file:FILE",
];

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Incast => f.write_str("incast"),
            Self::Permutation => f.write_str("permutation"),
            Self::AllToAll => f.write_str("all-to-all"),
            Self::Poisson => f.write_str("poisson"),
            Self::OnOff => f.write_str("on-off"),
            Self::AllReduce => f.write_str("all-reduce"),
            Self::Greedy => f.write_str("greedy"),
            Self::Chain => f.write_str("chain"),
            Self::Fig1 => f.write_str("fig1"),
            Self::Flows => f.write_str("flows"),
            Self::File(file) => write!(f, "file:{}", file.display()),
        }
    }
}

/// The file of `file:FILE`.
pub(super) fn file_of(text: &str) -> Option<PathBuf> {
    let file = text.strip_prefix("file:").filter(|file| !file.is_empty());
    file.map(PathBuf::from)
}

impl FromStr for Workload {
    type Err = KeywordError;

    fn from_str(text: &str) -> Result<Self, KeywordError> {
        Ok(match text {
            "incast" => Self::Incast,
            "permutation" => Self::Permutation,
            "all-to-all" => Self::AllToAll,
            "poisson" => Self::Poisson,
            "on-off" => Self::OnOff,
            "all-reduce" => Self::AllReduce,
            "greedy" => Self::Greedy,
            "chain" => Self::Chain,
            "fig1" => Self::Fig1,
            "flows" => Self::Flows,
            _ => Self::File(file_of(text).ok_or_else(|| KeywordError::new(text, WORKLOADS))?),
        })
    }
}

serde_as_text!(@serde Workload);
