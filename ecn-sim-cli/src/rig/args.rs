//! Options of the rig, on a kernel or in the simulator.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ecn_core::backward::Feedback;
use ecn_core::marking::{MarkAt, Marking};
use ecn_core::response::Function;
use ecn_sim::fabric::cc::{bcn::BcnParameters, qcn::QcnParameters};
use ecn_sim::notifications;
use ecn_units::{Every, Fraction, Rate, Round};

/// The rig.
#[derive(Args, Debug, Clone, PartialEq, Eq)]
pub struct HostArgs {
    /// Number of local flows, whose sources are at the congested switch
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=250))]
    pub local: u32,
    /// Number of remote flows, which cross the inter-switch link to the same sink
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=250))]
    pub remote: u32,
    /// Leave out the victim, a flow over the inter-switch link to its own sink
    #[arg(long)]
    pub no_victim: bool,
    /// Rate of all links
    #[arg(long, value_name = "RATE", default_value = "100mbit")]
    pub link_rate: Rate,
    /// Whether sources may send super-packets, and ports merge packets into them (TSO, GSO, GRO)
    #[arg(long, value_enum, value_name = "on|off", default_value_t)]
    pub offload: Offload,
}

/// Whether there may be super-packets.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offload {
    /// Segments of a flow may travel together
    On,
    /// Each packet is sent in its own frame
    #[default]
    Off,
}

/// What traffic the sources send.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Traffic {
    /// Built-in greedy UDP
    #[default]
    Udp,
    /// Built-in greedy TCP
    Tcp,
    /// Half of the sources of each class TCP, half UDP; the victim TCP
    Mixed,
    /// iperf3 with UDP
    #[value(name = "iperf3")]
    Iperf3,
    /// iperf3 with TCP
    #[value(name = "iperf3-tcp")]
    Iperf3Tcp,
    /// As mixed, with iperf3
    #[value(name = "iperf3-mixed")]
    Iperf3Mixed,
    /// None, for traffic from elsewhere
    None,
}

/// Which phases to run.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phases {
    /// Only the phase with control
    Controlled,
    /// Without control first, then with it
    #[default]
    Both,
}

fn bcn(settings: &str) -> Result<BcnParameters, String> {
    notifications::with(BcnParameters::bridge(), settings)
}

fn qcn(settings: &str) -> Result<QcnParameters, String> {
    notifications::with(QcnParameters::bridge(), settings)
}

/// Default congestion control of TCP sources.
pub const CONGESTION_CONTROL: &str = "cubic";

/// `ecn rig run`.
#[derive(Args, Debug, Clone, PartialEq)]
pub struct RigArgs {
    /// The rig.
    #[command(flatten)]
    pub hosts: HostArgs,
    /// Which packets the bridges mark: none, naive, input, input-output; or how they notify sources instead: bcn, qcn
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub marking: Marking,
    /// When packets are marked: arrival, departure
    #[arg(long, value_name = "PLACE", default_value_t)]
    pub mark_at: MarkAt,
    /// How marks are returned to the sources: echo, backward (without programs at receivers), both
    #[arg(long, value_name = "WAY", default_value_t)]
    pub feedback: Feedback,
    /// Parameters of bcn, named as in the configuration, such as w=1,gd=1/256
    #[arg(long, value_name = "KEY=VALUE,...", default_value = "", hide_default_value = true, value_parser = bcn)]
    pub bcn: BcnParameters,
    /// Parameters of qcn, named as in the configuration
    #[arg(long, value_name = "KEY=VALUE,...", default_value = "", hide_default_value = true, value_parser = qcn)]
    pub qcn: QcnParameters,
    /// Response of flows to marks: none, lipd, fimd, aimd
    #[arg(long, value_name = "FUNCTION", default_value_t)]
    pub response: Function,
    /// Lowest rate of a flow, as a fraction of the link rate; no effect with fractional rounds
    #[arg(long, value_name = "FRACTION", default_value = "1/64")]
    pub rmin: Fraction,
    /// Decrease factor of fimd and aimd
    #[arg(long, value_name = "FACTOR", default_value_t = 2.0)]
    pub m: f64,
    /// Round within which marks decrease a rate at most once: packets, a time such as 2ms, or off (each mark decreases
    /// it); or fractional (each packet applies a fraction of a step)
    #[arg(long, value_name = "ROUND", default_value_t)]
    pub round: Round,
    /// How often receivers send an echo: packet, or a time such as 5ms
    #[arg(long, value_name = "EVERY", default_value_t)]
    pub echo: Every,
    /// Packets per input buffer
    #[arg(long, value_name = "PACKETS", default_value_t = 4)]
    pub buffer: u32,
    /// Packets waiting for one output, above which they are marked
    #[arg(long, value_name = "PACKETS", default_value_t = 8)]
    pub threshold: u32,
    /// Length of the measurement in each phase
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Warm-up time before the measurement in each phase
    #[arg(long, value_name = "SECONDS", default_value_t = 4, value_parser = clap::value_parser!(u64).range(0..=3_600))]
    pub warm_up: u64,
    /// Traffic of the sources
    #[arg(long, value_enum, value_name = "KIND", default_value_t)]
    pub traffic: Traffic,
    /// Congestion control of TCP sources, such as cubic, reno, bbr
    #[arg(long, value_name = "NAME", default_value = CONGESTION_CONTROL)]
    pub congestion_control: String,
    /// IPv6 instead of IPv4
    #[arg(long)]
    pub ipv6: bool,
    /// Which phases to run
    #[arg(long, value_enum, value_name = "PHASES", default_value_t)]
    pub phases: Phases,
    /// Run every marking with every response, one after the other
    #[arg(long, conflicts_with_all = ["marking", "response", "phases"])]
    pub compare: bool,
    /// Directory for figures, samples and the report
    #[arg(long, value_name = "DIR", default_value = "out")]
    pub out: PathBuf,
    /// Print one JSON document and nothing else
    #[arg(long, short = 'j')]
    pub json: bool,
}
