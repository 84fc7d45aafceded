//! Parameters of a fabric, as set by `--set KEY=VALUE`.

use ecn_units::{DurationText, Fraction, Rate, Size, keywords};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::auto::Auto;
use super::cc;
use super::workload::{Cdf, Workload};
use crate::model::{Arbitration, Bypass, BypassCounts, Crossbar, Forwarding, SlotFreed};
use crate::scenario::Victim;

keywords! {
    /// What keeps switches from overflowing.
    FlowControl {
        /// Priority flow control (IEEE 802.1Qbb): a port that holds too much pauses the one before it.
        #[default]
        Pfc = "pfc",
        /// Credit-based flow control (InfiniBand): each port has a buffer of its own, and the one before
        /// it sends what that has told it of.
        Cbfc = "cbfc",
        /// Nothing: what does not fit is dropped, and sent again from there on (go-back-N).
        None = "none",
    }
}

keywords! {
    /// Where packets wait in switches.
    Switch {
        /// In queues of their outputs, in one memory; with `cbfc` in buffers of their inputs, of which any number of outputs
        /// are fed at a time.
        #[default]
        SharedMemory = "shared-memory",
        /// In queues of their inputs, each of which feeds one output at a time, in order.
        Crossbar = "crossbar",
        /// In slots of their inputs, each of which feeds any number of outputs at a time; headers are forwarded before
        /// their packets are there (cut-through). HP's switch, with `cbfc`: the credit for a slot is back at once.
        InputQueued = "input-queued",
    }
}

keywords! {
    /// How much of a switch's shared memory a port may use.
    Thresholds {
        /// `alpha` times what is free.
        #[default]
        Dynamic = "dynamic",
        /// `xoff`.
        Static = "static",
    }
}

/// Everything but the scheme.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricParameters {
    /// Number of hosts.
    #[schemars(extend("unit" = "hosts"))]
    pub hosts: u32,
    /// Fat tree: ports per switch, even. `auto`: the fewest with `k^3 / 4 >= hosts`; reports say which.
    #[schemars(extend("unit" = "ports"))]
    pub k: Auto<u32>,
    /// Leaf-spine: number of leaves.
    #[schemars(extend("unit" = "switches"))]
    pub leaves: u32,
    /// Leaf-spine: number of spines.
    #[schemars(extend("unit" = "switches"))]
    pub spines: u32,
    /// Parking lot: number of switches. `auto`: 4, or as many as hosts.
    #[schemars(extend("unit" = "switches"))]
    pub switches: Auto<u32>,
    /// Who sends what to whom.
    pub workload: Workload,
    /// Incast and chain: how many send to one.
    #[schemars(extend("unit" = "hosts"))]
    pub senders: u32,
    /// Incast, permutation, all-to-all and on-off: payload of each flow. All-reduce: the vector. Chain: of each
    /// sender of a burst.
    pub flow_size: Size,
    /// Poisson and on-off: payload that is offered, as a share of the hosts' links. Chain: what `S0` and `S1`
    /// offer each.
    pub load: Fraction,
    /// Poisson: the distribution of the flows' sizes.
    pub cdf: Cdf,
    /// Poisson: payload that is offered beside `load` in bursts of many hosts to one, as a share of the
    /// hosts' links; 0 is none, and 0.02 is usual (HPCC's studies).
    pub incast_load: Fraction,
    /// Poisson: hosts of such a burst that send (HPCC's studies).
    #[schemars(extend("unit" = "hosts"))]
    pub incast_senders: u32,
    /// Poisson: what each host of such a burst sends (HPCC's studies).
    pub incast_size: Size,
    /// Chain: time between two bursts.
    pub burst_gap: DurationText,
    /// Fig. 1: flows start this long after each other, the local ones first.
    pub stagger: DurationText,
    /// Fig. 1: when the victim sends: `off`, `on`, or `FROM..TO`.
    pub victim: Victim,
    /// Poisson and on-off: flows start for so long; all of them are finished. Greedy: so long a flow takes alone.
    /// Chain: so long `S0` and `S1` send, and bursts come.
    pub duration: DurationText,
    /// The run ends here, with whatever is finished then.
    pub limit: DurationText,
    /// Payload of a packet, bytes.
    #[schemars(extend("unit" = "bytes"))]
    pub payload: u32,
    /// Header bytes of a data packet. RoCEv2: Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4. An
    /// ACK has an AETH of 4 instead of payload, a CNP 16 reserved bytes. Preamble and gap, 20 bytes, are
    /// not in it, as in the simulators that this is compared with; 82 has them.
    #[schemars(extend("unit" = "bytes"))]
    pub header: u32,
    /// Rate of every link.
    pub link_rate: Rate,
    /// Propagation delay of every link.
    pub link_delay: DurationText,
    /// Where packets wait in switches.
    pub switch: Switch,
    /// What keeps switches from overflowing.
    pub flow_control: FlowControl,
    /// Classes of data: PFC's priorities, InfiniBand's data lanes; also with tail drop. Each has its queues, limits and
    /// pauses or credits. Flows have them by turns, in the order of their starts, unless their file says which. ACKs and
    /// notifications have another one, which is never paused.
    #[schemars(extend("unit" = "classes"))]
    pub priorities: u32,
    /// Memory of a switch, per port (V2 has 32 MB for 32 ports). `cbfc` and `crossbar`: the buffer of each port, in
    /// equal parts for its lanes or priorities.
    pub buffer: Size,
    /// Input-queued: packets that an input has room for.
    #[schemars(extend("unit" = "packets"))]
    pub slots: u32,
    /// Input-queued: how many packets may overtake one that waits at the same input: a number, or `unlimited`.
    pub bypass: Bypass,
    /// Input-queued: what counts against the limit on overtaking, `bypass`.
    pub bypass_counts: BypassCounts,
    /// Input-queued: order of an output's packets.
    pub arbitration: Arbitration,
    /// Input-queued: whether an input can feed several outputs at once.
    pub crossbar: Crossbar,
    /// Input-queued: when a slot is free again; the credit for it is back at once.
    pub slot_freed: SlotFreed,
    /// Input-queued: how much of a data packet must be there before it is forwarded. Of an ACK, the header is enough.
    pub forwarding: Forwarding,
    /// Input-queued: from when enough of a packet is there to its earliest departure.
    pub forwarding_delay: DurationText,
    /// `cbfc`: a port tells of its buffer so often, where there is something new to tell.
    pub credit_period: DurationText,
    /// How much of a switch's memory a port may use for a class before it pauses the one before it (`pfc`: counted where packets
    /// came in) or drops (`none`: counted where they go out).
    pub thresholds: Thresholds,
    /// Factor of the dynamic threshold (V2: a shift of 3).
    pub alpha: Fraction,
    /// With `thresholds=static`: how much that is.
    pub xoff: Size,
    /// A paused class goes on this far below the threshold. `auto`: two packets (V1).
    pub xon_gap: Auto<Size>,
    /// Memory of each port for what still arrives after it asked for a pause, in equal parts for its priorities. `auto`:
    /// as much as can.
    pub headroom: Auto<Size>,
    /// Bytes that a flow may have in flight. `auto`: no limit; with HP's schemes, which have a fixed window
    /// beside the rate, what the longest path takes in a round trip.
    pub window: Auto<Size>,
    /// Tail drop, or links that fail or return: a flow that got no ACK for so long sends again what is not acknowledged;
    /// the time doubles up to 64 times as long while there is no progress. `auto`: 1 ms, or three round trips of an
    /// idle network and the longest queue if that is more.
    pub retransmit_after: Auto<DurationText>,
    /// Congestion control.
    pub scheme: cc::Name,
}

impl Default for FabricParameters {
    fn default() -> Self {
        Self {
            hosts: 128,
            k: Auto::Auto,
            leaves: 8,
            spines: 8,
            switches: Auto::Auto,
            workload: Workload::Incast,
            senders: 20,
            flow_size: Size::from_bytes(1_000_000),
            load: Fraction::ratio(1, 2),
            cdf: Cdf::WebSearch,
            burst_gap: DurationText::from_micros(250),
            incast_load: Fraction::ratio(0, 1),
            incast_senders: 60,
            incast_size: Size::from_bytes(500_000),
            stagger: DurationText::from_micros(100),
            victim: Victim::During(DurationText::from_millis(40), DurationText::from_millis(60)),
            duration: DurationText::from_millis(1),
            limit: DurationText::from_secs(10),
            payload: 1_000,
            header: 62,
            link_rate: Rate::from_bits_per_s(100_000_000_000).unwrap_or(Rate::MAX),
            link_delay: DurationText::from_micros(1),
            switch: Switch::SharedMemory,
            flow_control: FlowControl::Pfc,
            priorities: 1,
            buffer: Size::from_bytes(1_000_000),
            slots: 4,
            bypass: Bypass(4),
            bypass_counts: BypassCounts::default(),
            arbitration: Arbitration::default(),
            crossbar: Crossbar::default(),
            slot_freed: SlotFreed::default(),
            forwarding: Forwarding::default(),
            forwarding_delay: DurationText::from_nanos(40),
            credit_period: DurationText::from_micros(4),
            thresholds: Thresholds::Dynamic,
            alpha: Fraction::ratio(1, 8),
            xoff: Size::from_bytes(100_000),
            xon_gap: Auto::Auto,
            headroom: Auto::Auto,
            window: Auto::Auto,
            retransmit_after: Auto::Auto,
            scheme: cc::Name::None,
        }
    }
}
