//! What a run comes to.

use crate::engine::Time;
use crate::fabric::failures::Lost;
use crate::fabric::measure::Finished;
use crate::fabric::series::{Series, Traced};
use crate::fabric::transfers::Transfers;
use crate::model::ModelError;

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// An invalid value.
    #[error(transparent)]
    Value(#[from] ModelError),
    /// An invariant does not hold.
    #[error("broken invariant: {what}, at {place}, at {ns} ns")]
    Invariant {
        /// Which.
        what: String,
        /// Where.
        place: String,
        /// When, ns.
        ns: Time,
    },
    /// Packets wait, and no event is pending.
    #[error(
        "deadlock: {waiting} packets wait, the first at {place}, and nothing moves after {ns} ns"
    )]
    Deadlock {
        /// Packets.
        waiting: u64,
        /// Where one of them waits.
        place: String,
        /// Since when, ns.
        ns: Time,
    },
    /// More than numbers allow.
    #[error("more than 16777216 {0} at once: make the scenario smaller")]
    TooMany(&'static str),
    /// The watcher stopped it.
    #[error("stopped at {ns} ns of simulated time")]
    Stopped {
        /// When, ns.
        ns: Time,
    },
}

/// What a run counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Flows that started.
    pub flows_started: u64,
    /// Those that are finished.
    pub finished: Vec<Finished>,
    /// The others, with what is acknowledged of them and without a slowdown.
    pub unfinished: Vec<Finished>,
    /// When the last flow was finished.
    pub last_end: Time,
    /// When the last thing happened.
    pub end: Time,
    /// Data packets that did not fit.
    pub dropped_packets: u64,
    /// Those that were lost because links failed.
    pub lost: Lost,
    /// PFC frames that request a pause.
    pub pause_frames: u64,
    /// Data packets that hosts sent.
    pub data_packets: u64,
    /// Data packets that were marked.
    pub marked_packets: u64,
    /// Data packets that were marked as those of undetermined ports (TCD).
    pub undetermined_packets: u64,
    /// Flows that were held up by congestion that is not on their way.
    pub head_of_line_victims: u64,
    /// Links that data packets crossed.
    pub data_packet_hops: u64,
    /// Links that packets crossed.
    pub packet_hops: u64,
    /// Events, without the starts of flows.
    pub events: u64,
    /// Most packets at once.
    pub most_packets: u64,
    /// What happened when, if that was asked for.
    pub series: Option<Series>,
    /// Payload that each flow had acknowledged in each of the windows that were asked for.
    pub windows: Vec<Transfers>,
    /// What happened to ports, by time and port, if that was asked for.
    pub trace: Option<Vec<Traced>>,
}
