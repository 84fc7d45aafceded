//! Parameters of a fabric, as set by `--set KEY=VALUE`.

use ecn_units::{DurationText, Fraction, Rate, Size, keywords};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::Value;

use super::auto::Auto;
use super::cc;
use super::workload::cdf::Cdf;
use super::workload::kind::Workload;
use crate::model::{Arbitration, Bypass, BypassCounts, Crossbar, Forwarding, MarkIn, SlotFreed};
use crate::settings::{Victim, table};

keywords! {
    /// How switches avoid overflow.
    FlowControl {
        /// Priority flow control (IEEE 802.1Qbb): a port that holds too much data pauses the upstream port.
        #[default]
        Pfc = "pfc",
        /// Credit-based flow control (InfiniBand): each port has its own buffer, and the upstream port sends no more
        /// than it has credits for.
        Cbfc = "cbfc",
        /// Tail drop: packets that do not fit are dropped, and the flow resends from there on (go-back-N).
        None = "none",
    }
}

keywords! {
    /// Where packets wait in switches.
    Switch {
        /// In queues of the outputs, which share one memory; with `cbfc` in buffers of the inputs, each of which feeds
        /// any number of outputs at a time.
        #[default]
        SharedMemory = "shared-memory",
        /// In queues of the inputs, each of which feeds one output at a time, in order.
        Crossbar = "crossbar",
        /// In slots of the inputs, each of which feeds any number of outputs at a time; headers are forwarded before
        /// the rest has arrived (cut-through). HP's switch, with `cbfc`: the credit for a slot returns at once.
        InputQueued = "input-queued",
    }
}

keywords! {
    /// How much of a switch's shared memory a port may use.
    Thresholds {
        /// `alpha` times the free memory.
        #[default]
        Dynamic = "dynamic",
        /// `xoff`, fixed.
        Static = "static",
    }
}

/// All keys except the schemes'.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricParameters {
    /// Number of hosts.
    #[schemars(extend("unit" = "hosts"))]
    pub hosts: u32,
    /// Fat tree: ports per switch, an even number. `auto`: the fewest with `k^3 / 4 >= hosts`; reports contain the
    /// number.
    #[schemars(extend("unit" = "ports"))]
    pub k: Auto<u32>,
    /// Leaf-spine: number of leaves.
    #[schemars(extend("unit" = "switches"))]
    pub leaves: u32,
    /// Leaf-spine: number of spines.
    #[schemars(extend("unit" = "switches"))]
    pub spines: u32,
    /// Parking lot: number of switches. `auto`: 4, or the number of hosts if that is less.
    #[schemars(extend("unit" = "switches"))]
    pub switches: Auto<u32>,
    /// Traffic pattern: who sends what to whom, and when.
    pub workload: Workload,
    /// Incast and chain: number of hosts that send to one.
    #[schemars(extend("unit" = "hosts"))]
    pub senders: u32,
    /// Incast, permutation, all-to-all and on-off: payload of each flow. All-reduce: size of the vector. Chain: payload
    /// of each sender in a burst.
    pub flow_size: Size,
    /// Poisson and on-off: offered payload, as a fraction of the rate of the hosts' links. Chain: offered payload of
    /// `S0` and of `S1`. Above 0 and at most 1.
    pub load: Fraction,
    /// Poisson: distribution of flow sizes.
    pub cdf: Cdf,
    /// Poisson: payload offered in addition to `load`, in bursts of many hosts to one, as a fraction of the rate of the
    /// hosts' links. 0: no bursts; 0.02 is usual (HPCC's studies).
    pub incast_load: Fraction,
    /// Poisson: number of senders in such a burst (HPCC's studies).
    #[schemars(extend("unit" = "hosts"))]
    pub incast_senders: u32,
    /// Poisson: payload of each sender in such a burst (HPCC's studies).
    pub incast_size: Size,
    /// Chain: time between the starts of two bursts.
    pub burst_gap: DurationText,
    /// Fig. 1: delay between the starts of successive flows, local ones first.
    pub stagger: DurationText,
    /// Fig. 1: when the victim sends: `off`, `on`, or `FROM..TO`.
    pub victim: Victim,
    /// Poisson and on-off: time during which flows start; all of them are run to completion. Greedy: a flow has the
    /// payload that a link carries in this time. Chain: time during which `S0` and `S1` offer data and bursts start.
    pub duration: DurationText,
    /// End of the run, even if flows are unfinished. At most 3600s.
    pub limit: DurationText,
    /// Payload of a full data packet.
    #[schemars(extend("unit" = "bytes"))]
    pub payload: u32,
    /// Header of a data packet. RoCEv2: Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4. An ACK has an AETH of 4
    /// bytes instead of payload, a CNP 16 reserved bytes. Preamble and inter-frame gap, 20 bytes, are not included, as
    /// in the simulators that this is compared with; 82 includes them.
    #[schemars(extend("unit" = "bytes"))]
    pub header: u32,
    /// Rate of every link.
    pub link_rate: Rate,
    /// Propagation delay of every link.
    pub link_delay: DurationText,
    /// Where packets wait in switches.
    pub switch: Switch,
    /// How switches avoid overflow.
    pub flow_control: FlowControl,
    /// Number of classes of data: PFC's priorities, InfiniBand's data lanes; also with tail drop. Each has its queues,
    /// limits, and pauses or credits. Flows are assigned to them round-robin, in the order of their starts, unless
    /// their file specifies a class. ACKs and notifications have another class, which is never paused.
    #[schemars(extend("unit" = "classes"))]
    pub priorities: u32,
    /// Memory of a switch, per port (V2 has 32 MB for 32 ports). `cbfc` and `crossbar`: buffer of each port, in equal
    /// parts for its lanes or priorities.
    pub buffer: Size,
    /// Input-queued: size of the buffer of an input.
    #[schemars(extend("unit" = "packets"))]
    pub slots: u32,
    /// Input-queued: maximum number of packets that may overtake a waiting one at the same input: a number, or
    /// `unlimited`.
    pub bypass: Bypass,
    /// Input-queued: what counts against the limit on overtaking, `bypass`.
    pub bypass_counts: BypassCounts,
    /// Input-queued: which waiting packet an output sends first.
    pub arbitration: Arbitration,
    /// Input-queued: whether an input can feed several outputs at once.
    pub crossbar: Crossbar,
    /// Input-queued: when a slot is freed; its credit returns at once.
    pub slot_freed: SlotFreed,
    /// Input-queued: how much of a data packet must have arrived before it is forwarded. For an ACK, the header
    /// suffices.
    pub forwarding: Forwarding,
    /// Input-queued: delay from when enough of a packet has arrived to its earliest departure.
    pub forwarding_delay: DurationText,
    /// `cbfc`: interval at which a port advertises its free buffer, if that has changed. Between 100ns and 1ms.
    pub credit_period: DurationText,
    /// How much of a switch's memory a port may use for a class before it pauses the upstream port (`pfc`: counted at
    /// the ingress port) or drops packets (`none`: counted at the egress port).
    pub thresholds: Thresholds,
    /// Factor of the dynamic threshold (V2: a shift of 3).
    pub alpha: Fraction,
    /// With `thresholds=static`: the threshold.
    pub xoff: Size,
    /// How far below the threshold a paused class resumes. `auto`: two packets (V1).
    pub xon_gap: Auto<Size>,
    /// Memory of each port for data that still arrives after it sent a pause, in equal parts for its priorities.
    /// `auto`: the most that can arrive.
    pub headroom: Auto<Size>,
    /// Maximum bytes in flight per flow. `auto`: no limit; with HP's schemes, which have a fixed window in addition to
    /// the rate, the bandwidth-delay product of the longest path.
    pub window: Auto<Size>,
    /// Retransmission timeout, with tail drop or links that fail or return: a flow without progress for this long
    /// resends everything unacknowledged, and doubles the timeout, up to 64 times as long. `auto`: 1 ms, or three round
    /// trips of an idle network and the longest queue if that is more. Between 1us and 1s.
    pub retransmit_after: Auto<DurationText>,
    /// Congestion control scheme.
    pub scheme: cc::Name,
    /// Switches that mark packets or notify their sources; the others only forward.
    pub mark_in: MarkIn,
}

/// Whether data centres have this key, of any topology; those of schemes are `scheme.key`.
pub(crate) fn is_key(key: &str) -> bool {
    match key.split_once('.') {
        None => table(&FabricParameters::default()).contains_key(key),
        Some((scheme, key)) => {
            let schemes = table(&cc::SchemeParameters::default());
            let own = schemes.get(scheme).and_then(Value::as_table);
            own.is_some_and(|own| own.contains_key(key))
        }
    }
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
            mark_in: MarkIn::All,
        }
    }
}
