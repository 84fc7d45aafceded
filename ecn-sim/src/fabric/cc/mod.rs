//! Congestion control: one file per scheme, with both of its halves.
//!
//! [`Switch`] is the part in switches: it observes data entering and leaving queues, marks it, and notifies senders.
//! [`Sender`] is the part in hosts: it paces the packets of each flow according to the feedback. A [`Scheme`] creates
//! both for a network. A run is monomorphised for its scheme, without dynamic dispatch; the built-in ones share
//! [`Name`], an enumeration over one list.
//!
//! # Adding a scheme
//!
//! A custom scheme needs a file with the two halves, and a call of [`fabric::run_with`](super::run_with). In this
//! example, each mark halves a flow's rate, and each unmarked ACK adds a thousandth of the link's:
//!
//! ```
//! use ecn_sim::fabric::cc::{Acknowledged, Endpoints, Mark, Network, Cnm, QueueView, Scheme, Hooks, Sender, Sending, Switch};
//! use ecn_sim::fabric::{self, Options, Scenario, packet::Packet};
//! use ecn_sim::{ModelError, engine::Time};
//!
//! struct Halving;
//!
//! impl Scheme for Halving {
//!     type Sender = Source;
//!     type Switch = Threshold;
//!
//!     fn sender(&self, network: &Network) -> Result<Source, ModelError> {
//!         Ok(Source { line: network.line.bytes_per_s() })
//!     }
//!
//!     fn switch(&self, _: &Network) -> Result<Threshold, ModelError> {
//!         Ok(Threshold { bytes: 50_000 })
//!     }
//! }
//!
//! #[derive(Debug)]
//! struct Threshold {
//!     bytes: u32,
//! }
//!
//! impl Switch for Threshold {
//!     fn hooks(&self) -> Hooks {
//!         Hooks::ENQUEUE_QUEUED
//!     }
//!
//!     fn on_enqueue(&mut self, at: &QueueView, packet: &mut Packet, _: bool) -> Option<Cnm> {
//!         if at.queued > self.bytes {
//!             packet.mark = Mark::Congestion;
//!         }
//!         None
//!     }
//! }
//!
//! #[derive(Debug)]
//! struct Source {
//!     line: u64,
//! }
//!
//! impl Sender for Source {
//!     /// Its rate, bytes per second.
//!     type Flow = u64;
//!
//!     fn on_start(&mut self, _: Endpoints) -> u64 {
//!         self.line
//!     }
//!
//!     fn on_send(&mut self, rate: &mut u64, packet: &Sending) -> Option<Time> {
//!         Some(packet.time_at(*rate))
//!     }
//!
//!     fn on_ack(&mut self, rate: &mut u64, ack: &Acknowledged) -> Option<Time> {
//!         let unit = self.line / 1_000;
//!         *rate = match ack.mark {
//!             Mark::Congestion => (*rate / 2).max(unit),
//!             _ => (*rate + unit).min(self.line),
//!         };
//!         None
//!     }
//! }
//!
//! let mut scenario = Scenario::find("fat-tree").expect("a built-in one");
//! for setting in ["hosts=16", "senders=8", "flow_size=500kB", "buffer=200kB"] {
//!     scenario.set_text(setting)?;
//! }
//! let options = Options::default();
//! let (without, _) = fabric::run(&scenario, 1, &options)?;
//! let (with, _) = fabric::run_with(&Halving, &scenario, 1, &options)?;
//! assert!(with.pause_frames < without.pause_frames);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! `examples/own_scheme.rs` is a longer example, which compares the scheme with others in a table.
//!
//! To build a scheme in, with names and a table of parameters in scenarios, add its file here, with its parameters and
//! a [`Scheme`] that takes them from [`Network::schemes`], and a line in the list at the end of this file.

pub mod bcn;
pub mod dcqcn;
pub mod hp;
pub mod ibcc;
mod list;
pub mod qcn;
pub mod tcd;
pub mod timely;

use std::fmt::Debug;

use ecn_core::marking::Marking;
use ecn_core::response::Function;
pub use ecn_core::tcd::{Mark, State};
use ecn_units::{Rate, Size};
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::auto::Auto;
use super::packet::Packet;
use crate::bounds::ModelError;
use crate::engine::Time;

/// A scheme, which creates both of its halves for a network.
pub trait Scheme: Sync {
    /// The hosts' half.
    type Sender: Sender;
    /// The switches' half.
    type Switch: Switch;

    /// Its name in reports; by default that of its type.
    fn name(&self) -> &str {
        let path = std::any::type_name::<Self>();
        path.rsplit("::").next().unwrap_or(path)
    }

    /// Whether its switches mark packets or notify their sources.
    fn is_in_switches(&self) -> bool {
        true
    }

    /// Creates the hosts' half; also used to check a scenario before its topology is built.
    ///
    /// # Errors
    ///
    /// A parameter out of its range, by its name in the scheme's table.
    fn sender(&self, network: &Network) -> Result<Self::Sender, ModelError>;

    /// Creates the switches' half.
    ///
    /// # Errors
    ///
    /// A parameter that does not fit the network, by its full name.
    fn switch(&self, network: &Network) -> Result<Self::Switch, ModelError>;
}

/// Properties of a network that are known to a scheme.
#[derive(Clone, Copy, Debug)]
pub struct Network<'a> {
    /// Parameters of the built-in schemes.
    pub schemes: &'a SchemeParameters,
    /// The links' rate.
    pub line: Rate,
    /// Memory of a port, or of each virtual lane if there are any, bytes.
    pub buffer: u64,
    /// Bytes of a queue or input at which packets are dropped or a pause is sent, if fixed.
    pub limit: Option<u64>,
    /// A full data packet, bytes.
    pub frame: u32,
    /// Its payload.
    pub payload: u32,
    /// Round trip on the longest path of an idle network.
    pub idle_rtt: Time,
    /// The cause of ports' alternation between ON and OFF.
    pub pause_model: tcd::PauseModel,
    /// Whether switches are input-queued and do their own marking.
    pub marks_in_slots: bool,
    /// Number of hosts.
    pub hosts: u32,
    /// Number of switches.
    pub switches: u32,
    /// Number of queues: classes of all ports, including those of hosts.
    pub queues: u32,
    /// Classes of a port.
    pub classes: u32,
    /// Number of ports of the largest switch.
    pub most_ports: u32,
    /// The run's seed.
    pub seed: u64,
}

impl Network<'_> {
    /// The equilibrium queue: the chosen one, else `usual`, limited to half of an input's slots.
    fn equilibrium(&self, chosen: Auto<Size>, usual: impl FnOnce() -> u64) -> Auto<Size> {
        match (chosen, self.limit) {
            (Auto::Auto, Some(limit)) if self.marks_in_slots => {
                Auto::Is(Size::from_bytes(usual().min(limit / 2)))
            }
            _ => chosen,
        }
    }
}

/// The hosts' half of a scheme: senders with flows, and their receivers. One value represents all hosts of a part of
/// the network.
pub trait Sender: Debug + Send {
    /// A sender's state of a flow.
    type Flow: Copy + Debug + Send;

    /// Maximum number of bytes in flight per flow, unless the scenario sets it; `None`: unlimited.
    fn window(&self, _network: &Network) -> Option<u64> {
        None
    }

    /// A flow starts.
    fn on_start(&mut self, endpoints: Endpoints) -> Self::Flow;

    /// A flow sends a packet. Returns the time from its start to the start of the next one, if that exceeds its
    /// transmission time.
    fn on_send(&mut self, _flow: &mut Self::Flow, _packet: &Sending) -> Option<Time> {
        None
    }

    /// The [`Packet::note`] of a packet about to be sent, for switches to read. `None`: its departure time, from which
    /// round-trip times are measured.
    fn tag(&self, _endpoints: Endpoints) -> Option<u32> {
        None
    }

    /// An ACK arrives. Returns when the flow may send its next packet, if that changes.
    fn on_ack(&mut self, _flow: &mut Self::Flow, _ack: &Acknowledged) -> Option<Time> {
        None
    }

    /// A receiver gets a marked packet. Returns whether it notifies the sender (CNP). `last`: its last notification.
    fn on_mark(&self, _last: &mut LastNotification, _now: Time, _mark: Mark) -> bool {
        false
    }

    /// A sender gets a receiver's notification.
    fn on_notification(&mut self, _flow: &mut Self::Flow, _now: Time, _mark: Mark) {}

    /// A sender gets a switch's message about a flow between these hosts.
    fn on_feedback(
        &mut self,
        _flow: &mut Self::Flow,
        _now: Time,
        _endpoints: Endpoints,
        _notice: Cnm,
    ) {
    }

    /// A flow between two hosts is finished.
    fn on_finish(&mut self, _endpoints: Endpoints) {}
}

/// The switches' half of a scheme. One value represents all switches of a part of the network. Runs are bit-identical
/// however the network is split, provided that switches do not depend on each other: each has its own random stream,
/// [`Random`].
pub trait Switch: Debug + Send {
    /// Which packets it handles; others cost nothing.
    fn hooks(&self) -> Hooks;

    /// A packet enters a queue (`waits`) or passes at once. Returns a message for its sender, if any.
    fn on_enqueue(&mut self, _at: &QueueView, _packet: &mut Packet, _waits: bool) -> Option<Cnm> {
        None
    }

    /// A packet leaves a queue, or passes at once.
    fn on_dequeue(&mut self, _at: &QueueView, _packet: &mut Packet, _waited: bool) {}

    /// A packet is dropped instead of queued.
    fn on_drop(&mut self, _at: &QueueView) {}

    /// A queue, by its number, is paused (or lacks credits), or resumed.
    fn on_pause(&mut self, _now: Time, _queue: u32, _paused: bool) {}

    /// The state of a port, for traces.
    fn state(&self, _at: &QueueView) -> Option<State> {
        None
    }
}

/// Which packets a switch handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Packets that pass at once.
    pub passing: bool,
    /// Packets that are queued.
    pub waiting: bool,
    /// Packets that leave a queue.
    pub leaving: bool,
}

impl Hooks {
    /// Packets that are queued, for schemes to which an empty queue is never too long.
    pub const ENQUEUE_QUEUED: Self = Self::these(false, true, false);
    /// Packets that are queued, when they enter and when they leave.
    pub const QUEUED: Self = Self::these(false, true, true);
    /// All packets, on arrival.
    pub const ENQUEUE: Self = Self::these(true, true, false);
    /// All packets, on departure.
    pub const DEQUEUE: Self = Self::these(true, false, true);

    const fn these(passing: bool, waiting: bool, leaving: bool) -> Self {
        Self {
            passing,
            waiting,
            leaving,
        }
    }
}

/// The queue through which a data packet will leave a switch.
#[derive(Clone, Copy, Debug)]
pub struct QueueView {
    /// Current time.
    pub now: Time,
    /// The switch.
    pub switch: u32,
    /// The port through which it leaves.
    pub port: u32,
    /// Its class.
    pub class: u8,
    /// Number of the queue: that of this class of the port.
    pub queue: u32,
    /// Index of that port at its switch.
    pub egress: u16,
    /// Index of the port at which it arrived.
    pub ingress: u16,
    /// Bytes in that queue, without this packet.
    pub queued: u32,
    /// False while the queue is paused or lacks credits.
    pub on: bool,
    /// Whether the port leads to a host.
    pub to_host: bool,
}

/// Hosts and class of a flow; flows with the same endpoints share a limiter (BCN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The sending host.
    pub from: u32,
    /// The receiving host.
    pub to: u32,
    /// Class of its data.
    pub class: u8,
}

/// A packet that is being sent.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Current time.
    pub now: Time,
    /// Hosts and class.
    pub endpoints: Endpoints,
    /// Its length.
    pub bytes: u32,
    /// Its transmission time on the link.
    pub wire: Time,
}

impl Sending {
    /// Its transmission time at `rate` bytes per second.
    #[inline]
    pub fn time_at(&self, rate: u64) -> Time {
        // Less than 2^64: packets are shorter than 2^14 bytes.
        u64::from(self.bytes) * 1_000_000_000_000 / rate
    }
}

/// An ACK at the sender.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// Current time.
    pub now: Time,
    /// Round-trip time, from the start of the data's transmission.
    pub rtt: Time,
    /// The mark of that data.
    pub mark: Mark,
    /// Packets not yet acknowledged.
    pub in_flight: u32,
    /// Transmission time of a full packet on the link.
    pub wire: Time,
}

/// A receiver's last notification to the sender of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LastNotification {
    /// Earliest time of the next one.
    pub until: Time,
    /// Its mark.
    pub mark: Mark,
}

/// A congestion notification message from a switch to a sender (IEEE 802.1Qau).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cnm {
    /// The queue (congestion point) that sent it.
    pub point: u32,
    /// QCN: 6 bits. BCN: see [`ecn_core::bcn::Feedback::to_word`].
    pub feedback: u32,
}

/// A random stream per switch, so that the order of events at different switches does not matter.
#[derive(Debug)]
pub struct Random(Vec<Pcg64Mcg>);

impl Random {
    /// The streams of a network's switches; independent of the workload's.
    pub fn new(network: &Network) -> Self {
        let stream = |switch| Pcg64Mcg::seed_from_u64(network.seed ^ (u64::from(switch) + 1) << 32);
        Self((0..network.switches).map(stream).collect())
    }

    /// The next 32 bits of a switch's stream.
    #[inline]
    pub fn draw(&mut self, switch: u32) -> u32 {
        self.0[switch as usize].random()
    }
}

/// No congestion control.
impl Sender for () {
    type Flow = ();

    fn on_start(&mut self, _: Endpoints) {}
}

impl Switch for () {
    fn hooks(&self) -> Hooks {
        Hooks::default()
    }
}

list::either! {
    /// What switches do in a scheme, or in a variation of it.
    Either<P, Q> {
        /// The scheme.
        Plain(P),
        /// The variation.
        Other(Q),
    }
}

list::schemes! {
    /// Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015.
    dcqcn::Dcqcn(DcqcnParameters) { "dcqcn" => Dcqcn { tcd: false }, "dcqcn+tcd" => Dcqcn { tcd: true } }
    /// Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter", SIGCOMM 2015.
    timely::Timely(TimelyParameters) { "timely" => Timely { tcd: false }, "timely+tcd" => Timely { tcd: true } }
    /// InfiniBand congestion control, annex A10.
    ibcc::Ibcc(IbccParameters) { "ibcc" => Ibcc { tcd: false }, "ibcc+tcd" => Ibcc { tcd: true } }
    /// QCN, IEEE 802.1Qau.
    qcn::Qcn(QcnParameters) { "qcn" => Qcn }
    /// Barrass, 2006.
    bcn::Bcn(BcnParameters) { "bcn" => Bcn }
    /// Santos, Turner, Janakiraman, INFOCOM 2003: response, and marking.
    hp::Hp(HpParameters) {
        "lipd/naive" => Hp(Function::Lipd, Marking::Naive),
        "lipd/input" => Hp(Function::Lipd, Marking::Input),
        "lipd/input-output" => Hp(Function::Lipd, Marking::InputOutput),
        "fimd/naive" => Hp(Function::Fimd, Marking::Naive),
        "fimd/input" => Hp(Function::Fimd, Marking::Input),
        "fimd/input-output" => Hp(Function::Fimd, Marking::InputOutput),
        "aimd/naive" => Hp(Function::Aimd, Marking::Naive),
        "aimd/input" => Hp(Function::Aimd, Marking::Input),
        "aimd/input-output" => Hp(Function::Aimd, Marking::InputOutput),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::Scenario;
    use crate::fabric::cc::bcn::UNTAGGED;
    use crate::fabric::packet::{Kind, NONE};

    /// The switches of a scheme for one leaf with eight hosts and a spine, with these settings.
    pub(super) fn switches(settings: &[&str]) -> Switches {
        seeded(settings, 1)
    }

    fn seeded(settings: &[&str], seed: u64) -> Switches {
        let mut scenario = Scenario::find("leaf-spine").unwrap();
        for setting in ["hosts=8", "leaves=1", "spines=1", "senders=7"]
            .iter()
            .chain(settings)
        {
            scenario.set_text(setting).unwrap();
        }
        let topology = scenario.topology().unwrap();
        let scheme = scenario.parameters.scheme;
        scheme
            .switch(&scenario.network_of(&topology, seed))
            .unwrap()
    }

    /// The view of a packet at the first switch, from one of its ports to another, with `queued` bytes in the queue.
    pub(super) fn queue_view(
        ingress: u16,
        egress: u16,
        class: u8,
        classes: u32,
        queued: u32,
    ) -> QueueView {
        let port = 8 + u32::from(egress);
        QueueView {
            now: 0,
            switch: 0,
            port,
            class,
            queue: port * classes + u32::from(class),
            egress,
            ingress,
            queued,
            on: true,
            to_host: true,
        }
    }

    pub(super) fn packet(note: u32) -> Packet {
        Packet {
            bytes: 1_062,
            note,
            ..Packet::of_link(Kind::Data, 0, 0)
        }
    }

    /// Packets arrive at each of these queues, and wait.
    pub(super) fn enqueue(switches: &mut Switches, views: &[QueueView]) {
        for view in views {
            let notice = switches.on_enqueue(view, &mut packet(NONE), true);
            assert_eq!(notice, None);
        }
    }

    /// The number of marked packets among those that leave these queues.
    pub(super) fn marked(switches: &mut Switches, views: &[QueueView]) -> usize {
        let marked = views.iter().filter(|view| {
            let mut packet = packet(NONE);
            switches.on_dequeue(view, &mut packet, true);
            packet.mark == Mark::Congestion
        });
        marked.count()
    }

    /// Random bits differ between seeds and between switches, and are reproducible.
    #[test]
    fn switches_draw_by_themselves() {
        let drawn = |seed, switch| -> Vec<bool> {
            let mut switches = seeded(&["scheme=bcn", "bcn.pm=1/2"], seed);
            let at = QueueView {
                switch,
                ..queue_view(0, 1, 0, 1, 900_000)
            };
            let mut notified = || switches.on_enqueue(&at, &mut packet(UNTAGGED), true);
            (0..64).map(|_| notified().is_some()).collect()
        };
        assert_eq!(drawn(1, 0), drawn(1, 0));
        assert_ne!(drawn(1, 0), drawn(2, 0));
        assert_ne!(drawn(1, 0), drawn(1, 1));
    }

    #[test]
    fn names_are_read_as_they_are_shown() {
        for name in Name::NAMES {
            assert_eq!(name.parse::<Name>().unwrap().to_string(), *name);
        }
        let error = "lipd/inputs".parse::<Name>().unwrap_err().to_string();
        assert!(error.contains("did you mean `lipd/input`?"), "{error}");
    }
}
