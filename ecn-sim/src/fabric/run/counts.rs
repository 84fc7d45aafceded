//! Results of a run.

use crate::bounds::ModelError;
use crate::engine::Time;
use crate::fabric::failures::Lost;
use crate::fabric::measure::Finished;
use crate::fabric::series::{Series, Traced};
use crate::fabric::transfers::Transfers;

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// An invalid value.
    #[error(transparent)]
    Value(#[from] ModelError),
    /// A violated invariant.
    #[error("broken invariant: {what}, at {place}, at {ns} ns")]
    Invariant {
        /// Its description.
        what: String,
        /// Where it was found.
        place: String,
        /// When, ns.
        ns: Time,
    },
    /// Packets wait, and no event is pending.
    #[error(
        "deadlock: {waiting} packets wait, the first at {place}, and nothing moves after {ns} ns"
    )]
    Deadlock {
        /// Number of waiting packets.
        waiting: u64,
        /// Location of one of them.
        place: String,
        /// Since when, ns.
        ns: Time,
    },
    /// More concurrent objects than event numbers.
    #[error("more than 16777216 {0} at once: make the scenario smaller")]
    TooMany(&'static str),
    /// The watcher stopped it.
    #[error("stopped at {ns} ns of simulated time")]
    Stopped {
        /// When, ns.
        ns: Time,
    },
}

/// Counters and results of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Flows that started.
    pub flows_started: u64,
    /// Finished flows.
    pub finished: Vec<Finished>,
    /// Other flows, with their acknowledged payload and without a slowdown.
    pub unfinished: Vec<Finished>,
    /// When the last flow finished.
    pub last_end: Time,
    /// When the run ended: at its limit, or with the last event.
    pub end: Time,
    /// Data packets dropped for lack of memory.
    pub dropped_packets: u64,
    /// Packets lost because links failed.
    pub lost: Lost,
    /// PFC frames that request a pause.
    pub pause_frames: u64,
    /// Data packets sent by hosts.
    pub data_packets: u64,
    /// Data packets that were marked.
    pub marked_packets: u64,
    /// Data packets marked by undetermined ports (TCD).
    pub undetermined_packets: u64,
    /// Flows held up by congestion that is not on their paths.
    pub head_of_line_victims: u64,
    /// Hops of data packets.
    pub data_packet_hops: u64,
    /// Hops of all packets.
    pub packet_hops: u64,
    /// Events, not counting starts of flows.
    pub events: u64,
    /// Maximum number of concurrent packets.
    pub most_packets: u64,
    /// Time series, if requested.
    pub series: Option<Series>,
    /// Payload acknowledged per flow in each requested window.
    pub windows: Vec<Transfers>,
    /// Events of ports, by time and port, if requested.
    pub trace: Option<Vec<Traced>>,
}
