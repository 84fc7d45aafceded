//! Congestion control: one file per scheme, with both of its halves.
//!
//! [`Switch`] is what switches do: they see data enter and leave queues, mark it, and notify senders. [`Sender`] is what
//! hosts do: they pace the packets of each flow by the feedback. A [`Scheme`] makes both for a network. A run is compiled
//! for its scheme, without dynamic dispatch; the built-in ones share [`Name`], an enumeration over one list.
//!
//! # Adding a scheme
//!
//! A scheme of one's own needs a file with the two halves, and a line that runs it,
//! [`fabric::run_with`](super::run_with). Here each mark halves a flow's rate, and each ACK without one adds a thousandth
//! of the link's:
//!
//! ```
//! use ecn_sim::fabric::cc::{Acknowledged, Endpoints, Mark, Network, Cnm, QueueView, Scheme, Hooks, Sender, Sending, Switch};
//! use ecn_sim::fabric::{self, Options, Scenario, packet::Packet};
//! use ecn_sim::{engine::Time, model::ModelError};
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
//! `examples/own_scheme.rs` is a longer one, with a table that compares it.
//!
//! To build a scheme in, with names and a table of parameters in scenarios, add its file here, with a table of parameters and a
//! [`Scheme`] that takes them from [`Network::schemes`], and its line in the list at the end of this one.

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
use ecn_units::{DurationText, Rate, Size};
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::auto::Auto;
use super::packet::Packet;
use crate::engine::Time;
use crate::model::ModelError;

/// A scheme: what makes both of its halves for a network.
pub trait Scheme: Sync {
    /// What hosts do.
    type Sender: Sender;
    /// What switches do.
    type Switch: Switch;

    /// Its name in reports; by default that of its type.
    fn name(&self) -> &str {
        let path = std::any::type_name::<Self>();
        path.rsplit("::").next().unwrap_or(path)
    }

    /// The hosts' half; also used to check a scenario before its topology is built.
    ///
    /// # Errors
    ///
    /// A parameter out of its range, by its name in the scheme's table.
    fn sender(&self, network: &Network) -> Result<Self::Sender, ModelError>;

    /// The switches' half.
    ///
    /// # Errors
    ///
    /// What does not fit the network, by its whole name.
    fn switch(&self, network: &Network) -> Result<Self::Switch, ModelError>;
}

/// What a scheme may know of a network.
#[derive(Clone, Copy, Debug)]
pub struct Network<'a> {
    /// Parameters of the built-in schemes.
    pub schemes: &'a SchemeParameters,
    /// The links' rate.
    pub line: Rate,
    /// Memory of a port, of each virtual lane if it has those, bytes.
    pub buffer: u64,
    /// Bytes in a queue, or of an input, at which packets are dropped or a pause is sent, if that is fixed.
    pub limit: Option<u64>,
    /// A full data packet, bytes.
    pub frame: u32,
    /// Its payload.
    pub payload: u32,
    /// Round trip on the longest path of an idle network.
    pub idle_rtt: Time,
    /// What makes ports alternate between ON and OFF.
    pub pause_model: tcd::PauseModel,
    /// Switches are input-queued, and mark by themselves.
    pub marks_in_slots: bool,
    /// Number of hosts.
    pub hosts: u32,
    /// Number of switches.
    pub switches: u32,
    /// Number of queues: classes of all ports, of hosts too.
    pub queues: u32,
    /// Classes of a port.
    pub classes: u32,
    /// Ports of the largest switch.
    pub most_ports: u32,
    /// The run's seed.
    pub seed: u64,
}

impl Network<'_> {
    /// A queue that is aimed at, unless it is chosen: `usual`, or half of what an input has slots for.
    fn equilibrium(&self, chosen: Auto<Size>, usual: impl FnOnce() -> u64) -> Auto<Size> {
        match (chosen, self.limit) {
            (Auto::Auto, Some(limit)) if self.marks_in_slots => {
                Auto::Is(Size::from_bytes(usual().min(limit / 2)))
            }
            _ => chosen,
        }
    }
}

/// What hosts do: senders with flows, and their receivers. One value has all hosts of a part of the network.
pub trait Sender: Debug + Send {
    /// What a sender keeps of a flow.
    type Flow: Copy + Debug + Send;

    /// Bytes that a flow may have in flight, unless the scenario says so; `None`: any number.
    fn window(&self, _network: &Network) -> Option<u64> {
        None
    }

    /// A flow starts.
    fn on_start(&mut self, endpoints: Endpoints) -> Self::Flow;

    /// A flow sends a packet: time from the start of this to that of the next one, if that is longer than its
    /// time on the link.
    fn on_send(&mut self, _flow: &mut Self::Flow, _packet: &Sending) -> Option<Time> {
        None
    }

    /// [`Packet::note`] of a packet that is about to be sent, for switches to read; `None`: its time of departure, from
    /// which round-trip times are measured.
    fn tag(&self, _endpoints: Endpoints) -> Option<u32> {
        None
    }

    /// An ACK arrives: when the flow may send its next packet, if that is to change.
    fn on_ack(&mut self, _flow: &mut Self::Flow, _ack: &Acknowledged) -> Option<Time> {
        None
    }

    /// A receiver gets a marked packet: whether it notifies the sender (CNP). `last`: its last notification.
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

/// What switches do. One value has all switches of a part of the network. Runs are bit-identical however a network is
/// split, as long as switches do not depend on each other: so each has its own random stream, [`Random`].
pub trait Switch: Debug + Send {
    /// Which packets it handles; the others cost nothing.
    fn hooks(&self) -> Hooks;

    /// A packet enters a queue (`waits`) or passes at once; returns a message to its sender, if there is one to send.
    fn on_enqueue(&mut self, _at: &QueueView, _packet: &mut Packet, _waits: bool) -> Option<Cnm> {
        None
    }

    /// A packet leaves a queue, or passes at once.
    fn on_dequeue(&mut self, _at: &QueueView, _packet: &mut Packet, _waited: bool) {}

    /// A packet is dropped instead of queued.
    fn on_drop(&mut self, _at: &QueueView) {}

    /// A queue, by its number, is paused or resumed.
    fn on_pause(&mut self, _now: Time, _queue: u32, _paused: bool) {}

    /// The state of a port, for traces.
    fn state(&self, _at: &QueueView) -> Option<State> {
        None
    }
}

/// Which packets a switch handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hooks {
    /// Those that pass at once.
    pub passing: bool,
    /// Those that are queued.
    pub waiting: bool,
    /// Those that leave a queue.
    pub leaving: bool,
}

impl Hooks {
    /// Packets that are queued: an empty queue is never too long.
    pub const ENQUEUE_QUEUED: Self = Self::these(false, true, false);
    /// Packets that are queued, when they enter and when they leave.
    pub const QUEUED: Self = Self::these(false, true, true);
    /// All packets, when they come.
    pub const ENQUEUE: Self = Self::these(true, true, false);
    /// All packets, when they leave.
    pub const DEQUEUE: Self = Self::these(true, false, true);

    const fn these(passing: bool, waiting: bool, leaving: bool) -> Self {
        Self {
            passing,
            waiting,
            leaving,
        }
    }
}

/// The queue that a data packet at a switch is to leave by.
#[derive(Clone, Copy, Debug)]
pub struct QueueView {
    /// When.
    pub now: Time,
    /// The switch.
    pub switch: u32,
    /// The port by which it leaves.
    pub port: u32,
    /// Its class.
    pub class: u8,
    /// Its queue: number of this class of the port.
    pub queue: u32,
    /// Index of that port at its switch.
    pub egress: u16,
    /// Index of the port that it came by.
    pub ingress: u16,
    /// Bytes in that queue, without this packet.
    pub queued: u32,
    /// The queue is not paused.
    pub on: bool,
    /// The port leads to a host.
    pub to_host: bool,
}

/// Hosts and class of a flow; flows that share these share a limiter (BCN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The sending host.
    pub from: u32,
    /// The receiving host.
    pub to: u32,
    /// Class of its data.
    pub class: u8,
}

/// A packet that a sender sends.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// When.
    pub now: Time,
    /// Between whom.
    pub endpoints: Endpoints,
    /// Its length.
    pub bytes: u32,
    /// Its transmission time on the link.
    pub wire: Time,
}

impl Sending {
    /// Its transmission time at a rate, bytes per second.
    #[inline]
    pub fn time_at(&self, rate: u64) -> Time {
        // Less than 2^64: a packet has less than 2^14 bytes.
        u64::from(self.bytes) * 1_000_000_000_000 / rate
    }
}

/// An ACK at the sender.
#[derive(Clone, Copy, Debug)]
pub struct Acknowledged {
    /// When.
    pub now: Time,
    /// Round-trip time, from the start of the data's transmission.
    pub rtt: Time,
    /// The mark of that data.
    pub mark: Mark,
    /// Packets that are not acknowledged yet.
    pub in_flight: u32,
    /// Transmission time of a full packet on the link.
    pub wire: Time,
}

/// The last notification of a receiver to the sender of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LastNotification {
    /// No other one is due before.
    pub until: Time,
    /// Its mark.
    pub mark: Mark,
}

/// A congestion notification message from a switch to a sender (IEEE 802.1Qau).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cnm {
    /// The queue that sends it (congestion point).
    pub point: u32,
    /// QCN: 6 bits. BCN: see [`ecn_core::bcn::Feedback::to_word`].
    pub feedback: u32,
}

/// A stream of random numbers per switch: the order of events at different switches does not matter.
#[derive(Debug)]
pub struct Random(Vec<Pcg64Mcg>);

impl Random {
    /// The streams of a network's switches; independent of the workload's.
    pub fn new(network: &Network) -> Self {
        let stream = |switch| Pcg64Mcg::seed_from_u64(network.seed ^ (u64::from(switch) + 1) << 32);
        Self((0..network.switches).map(stream).collect())
    }

    /// The next 32 bits of a switch.
    #[inline]
    pub fn draw(&mut self, switch: u32) -> u32 {
        self.0[switch as usize].random()
    }
}

const SECOND: DurationText = DurationText::from_secs(1);

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
    /// InfiniBand's, annex A10.
    ibcc::Ibcc(IbccParameters) { "ibcc" => Ibcc { tcd: false }, "ibcc+tcd" => Ibcc { tcd: true } }
    /// IEEE 802.1Qau.
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

    /// What a leaf with eight hosts and a spine does with these settings.
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

    /// At the first switch, from one of its ports to another one, with `queued` bytes before it.
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

    /// One that comes at each of these places, and waits.
    pub(super) fn come(switches: &mut Switches, places: &[QueueView]) {
        for place in places {
            let notice = switches.on_enqueue(place, &mut packet(NONE), true);
            assert_eq!(notice, None);
        }
    }

    /// How many of those that leave from there are marked.
    pub(super) fn marked(switches: &mut Switches, places: &[QueueView]) -> usize {
        let marked = places.iter().filter(|place| {
            let mut packet = packet(NONE);
            switches.on_dequeue(place, &mut packet, true);
            packet.mark == Mark::Congestion
        });
        marked.count()
    }

    /// Chance is another one with each seed and at each switch, and the same each time.
    #[test]
    fn switches_draw_by_themselves() {
        let drawn = |seed, switch| -> Vec<bool> {
            let mut switches = seeded(&["scheme=bcn", "bcn.pm=1/2"], seed);
            let at = QueueView {
                switch,
                ..queue_view(0, 1, 0, 1, 900_000)
            };
            let mut told = || switches.on_enqueue(&at, &mut packet(UNTAGGED), true);
            (0..64).map(|_| told().is_some()).collect()
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
