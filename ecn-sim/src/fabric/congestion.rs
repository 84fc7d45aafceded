//! What switches detect, and say: marks on packets.

use ecn_core::marking::{BACKLOG_UNKNOWN, Policy};
use ecn_core::tcd::{Mark, State};
use ecn_core::{bcn, tcd};
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::packet::Packet;
use super::parameters::{FlowControl, Switch};
use super::scenario::Scenario;
use super::scheme::bcn::{Rules as Bcn, UNTAGGED, packed};
use super::scheme::ibcc::{Marker, Rules as Ibcc};
use super::scheme::qcn::{CongestionPoint, Rules as Qcn};
use super::scheme::tcd::{Pattern, Turns};
use super::scheme::{Name, Notice, Rules};
use super::topology::Topology;
use crate::counters::{Counters, counters};
use crate::engine::{NS, Time};
use crate::model::ModelError;

/// A data packet at a switch that is to leave by a port.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// When.
    pub now: Time,
    /// The switch.
    pub switch: u32,
    /// The port by which it leaves.
    pub port: u32,
    /// Its class.
    pub class: u8,
    /// Number of this class of the port.
    pub number: u32,
    /// Which of the switch's ports that is.
    pub egress: u16,
    /// By which it came.
    pub ingress: u16,
    /// Bytes of its class that wait for that port, without this packet.
    pub queued: u32,
    /// The port may send data of that class.
    pub on: bool,
    /// There is a host at its other end.
    pub to_host: bool,
}

impl Place {
    /// What its switch counts of its class.
    fn of(self, switches: &mut [Vec<Counters>]) -> &mut Counters {
        &mut switches[self.switch as usize][usize::from(self.class)]
    }
}

/// How congestion is detected, with the state of all switches of a part of the network, by port and class. Each
/// switch draws by itself: the order of what happens at different switches does not matter.
#[derive(Debug)]
pub(super) enum Detection {
    /// Not at all, or by the hosts.
    None,
    /// By the queue's length.
    Red(Red, Vec<Pcg64Mcg>),
    /// HP's marking, by `ecn-core`: what waits for each output from each input, by switch and class.
    Hp(Policy, Vec<Vec<Counters>>),
    /// IB CC: by the queue's length and the credits.
    Ibcc(Ibcc, Vec<Marker>),
    /// By the ports' states; with IB CC, which of these packets are marked.
    Tcd(tcd::Policy, Vec<tcd::Port>, Option<(Ibcc, Vec<Marker>)>),
    /// QCN's congestion points.
    Qcn(Qcn, Vec<CongestionPoint>, Vec<Pcg64Mcg>),
    /// BCN's.
    Bcn(Bcn, Vec<bcn::CongestionPoint>, Vec<Pcg64Mcg>),
}

/// Which packets it has to see: what it need not costs nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Detects {
    /// Those that come and leave at once.
    pub passing: bool,
    /// Those that come to wait.
    pub waiting: bool,
    /// Those that waited, when they leave.
    pub leaving: bool,
}

impl Detection {
    /// Which packets it has to see. A queue that is empty is never too long.
    pub const fn detects(&self) -> Detects {
        let (passing, waiting, leaving) = match self {
            Self::None => (false, false, false),
            Self::Red(..) | Self::Ibcc(..) => (false, true, false),
            Self::Hp(..) => (false, true, true),
            Self::Tcd(..) => (true, false, true),
            Self::Qcn(..) | Self::Bcn(..) => (true, true, false),
        };
        Detects {
            passing,
            waiting,
            leaving,
        }
    }

    /// What the scenario's scheme asks for.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn new(
        scenario: &Scenario,
        rules: &Rules,
        topology: &Topology,
        seed: u64,
    ) -> Result<Self, ModelError> {
        let own = &scenario.parameters;
        let switches = topology.names.len() as u32;
        let ports = topology.peer.len() * own.priorities as usize;
        // Not the workload's stream, and one per switch.
        let stream = |switch| Pcg64Mcg::seed_from_u64(seed ^ (u64::from(switch) + 1) << 32);
        let streams = || (0..switches).map(stream).collect();
        let tcd = |threshold, ibcc| {
            let policy = scenario.schemes.tcd.rules(pattern(scenario), threshold);
            let policy = policy.map_err(|error| error.within("tcd"))?;
            Ok(Self::Tcd(policy, vec![tcd::Port::default(); ports], ibcc))
        };
        let (kmin, kmax) = scenario.red_thresholds(topology.fewest_ports());
        if let Name::Dcqcn { .. } = own.scheme {
            let checked = scenario.schemes.dcqcn.check_thresholds((kmin, kmax));
            checked.map_err(|error| error.within("dcqcn"))?;
        }
        Ok(match (own.scheme, *rules) {
            (Name::Dcqcn { tcd: false }, _) => {
                let pmax = scenario.schemes.dcqcn.pmax;
                let red = Red {
                    kmin: kmin as u32,
                    kmax: kmax as u32,
                    pmax: (u64::from(pmax.numerator()) << 32) / u64::from(pmax.denominator()),
                };
                Self::Red(red, streams())
            }
            (Name::Dcqcn { tcd: true } | Name::Timely { tcd: true }, _) => tcd(kmin, None)?,
            (Name::Ibcc { tcd: with }, Rules::Ibcc(rules)) => {
                let markers = vec![Marker::default(); ports];
                match (with, rules.threshold()) {
                    (true, Some(threshold)) => tcd(threshold, Some((rules, markers)))?,
                    _ => Self::Ibcc(rules, markers),
                }
            }
            (_, Rules::Qcn(rules)) => {
                let points = vec![CongestionPoint::new(&rules); ports];
                Self::Qcn(rules, points, streams())
            }
            (_, Rules::Bcn(rules)) => {
                let points = vec![bcn::CongestionPoint::default(); ports];
                Self::Bcn(rules, points, streams())
            }
            // The switches mark by themselves.
            (Name::Hp(..), _) if own.switch == Switch::InputQueued => Self::None,
            (Name::Hp(_, marking), _) => {
                let most = topology.most_ports();
                if most > 255 {
                    let reason = format!(
                        "HP's marking counts for switches with up to 255 ports, and one has {most}"
                    );
                    return Err(ModelError::new("scheme", own.scheme, reason));
                }
                let hp = &scenario.schemes.hp;
                let policy = hp.marking(marking, most, own.link_rate, scenario.frame());
                let policy = policy.map_err(|error| error.within("hp"))?;
                let counters = |_| Counters::new(most as usize + 1);
                let classes = |_| (0..own.priorities).map(counters).collect();
                Self::Hp(policy, (0..switches).map(classes).collect())
            }
            _ => Self::None,
        })
    }

    /// A packet comes, and waits or leaves at once: what its sender is to be told.
    #[inline]
    pub fn comes(&mut self, at: Place, packet: &mut Packet, waits: bool) -> Option<Notice> {
        let (port, switch) = (at.number as usize, at.switch as usize);
        let long = at.queued + u32::from(packet.bytes);
        match self {
            Self::None | Self::Tcd(..) => {}
            Self::Red(red, random) => {
                if packet.mark != Mark::Congestion
                    && red.marks(at.queued, || random[switch].random())
                {
                    packet.mark = Mark::Congestion;
                }
            }
            Self::Hp(policy, switches) => {
                if waits {
                    counters!(at.of(switches), c => {
                        c.wait(policy, at.ingress as u8 + 1, at.egress as u8 + 1, 1, true)
                    });
                }
            }
            Self::Ibcc(rules, markers) => {
                let (bytes, queued) = (packet.bytes.into(), at.queued.into());
                if markers[port].marks(rules, bytes, queued, at.on, at.to_host) {
                    packet.mark = Mark::Congestion;
                }
            }
            Self::Qcn(rules, points, random) => {
                let bytes = packet.bytes.into();
                let random = || random[switch].random();
                let feedback = points[port].arrives(rules, bytes, long, random)?;
                return Some(Notice {
                    point: at.number,
                    feedback: feedback.into(),
                });
            }
            Self::Bcn(rules, points, random) => {
                if rules.samples(random[switch].random()) {
                    // Only the congestion point that a limiter obeys may raise its rate: others on the way are
                    // not congested, and would undo what that one says.
                    let tagged = packet.note == at.number;
                    let other = !tagged && packet.note != UNTAGGED;
                    let feedback = points[port].sample(&rules.policy, long, tagged)?;
                    if other && feedback.value(&rules.policy) >= 0 {
                        return None;
                    }
                    return Some(Notice {
                        point: at.number,
                        feedback: packed(feedback),
                    });
                }
            }
        }
        None
    }

    /// A packet that waited is dropped instead.
    pub fn dropped(&mut self, at: Place) {
        if let Self::Hp(_, switches) = self {
            counters!(at.of(switches), c => {
                c.drop_queued(at.ingress as u8 + 1, at.egress as u8 + 1, 1)
            });
        }
    }

    /// A packet leaves, after it waited or at once.
    #[inline]
    pub fn leaves(&mut self, at: Place, packet: &mut Packet, waited: bool) {
        match self {
            Self::Hp(policy, switches) if waited => {
                let decision = counters!(at.of(switches), c => {
                    let (input, output) = (at.ingress as u8 + 1, at.egress as u8 + 1);
                    c.depart(policy, input, output, 1, true, BACKLOG_UNKNOWN)
                });
                if decision.mark != 0 {
                    packet.mark = Mark::Congestion;
                }
            }
            Self::Tcd(policy, ports, ibcc) => {
                let port = at.number as usize;
                let state = ports[port].dequeue(policy, at.now / NS, at.queued.into());
                packet.mark = match ibcc {
                    None => packet.mark.leaves_by(state),
                    Some((rules, markers)) => {
                        let own = Mark::None.leaves_by(state);
                        let bytes = packet.bytes.into();
                        packet
                            .mark
                            .max(markers[port].marks_by_state(rules, bytes, own))
                    }
                };
            }
            _ => {}
        }
    }

    /// A port may send data of a class again, or may not. `number`: of this class.
    pub fn turns(&mut self, now: Time, number: u32, on: bool) {
        if let Self::Tcd(policy, ports, _) = self {
            let port = &mut ports[number as usize];
            if on {
                port.on(now / NS);
            } else {
                port.off(policy, now / NS);
            }
        }
    }

    /// What a port is taken for: with IB CC, a root is congested and a victim undetermined.
    pub fn state(&self, at: Place) -> Option<State> {
        match self {
            Self::Tcd(policy, ports, _) => {
                let port = &ports[at.number as usize];
                Some(port.state(policy, at.now / NS, at.queued.into()))
            }
            Self::Ibcc(rules, _) => Some(match (rules.threshold(), at.on) {
                (Some(threshold), true) if u64::from(at.queued) > threshold => State::Congestion,
                (Some(threshold), false) if u64::from(at.queued) > threshold => State::Undetermined,
                _ => State::NonCongestion,
            }),
            _ => None,
        }
    }
}

/// How ports go ON and OFF.
pub(crate) fn pattern(scenario: &Scenario) -> Pattern {
    let own = &scenario.parameters;
    let (line, frame) = (own.link_rate.bytes_per_s(), scenario.frame());
    let turns = if own.flow_control == FlowControl::Cbfc {
        let period_ns = own.credit_period.as_nanos();
        Turns::Credits { period_ns }
    } else {
        // A frame of the port's own, the pause, and the first data after it.
        let bytes = 2 * u64::from(frame) + u64::from(super::packet::LINK_BYTES);
        Turns::Pfc {
            gap: scenario.xon_gap() as u32,
            tau_ns: 2 * scenario.delay() / NS + bytes * 1_000_000_000 / line,
        }
    };
    Pattern { turns, line, frame }
}

/// Random early detection of DCQCN's congestion point, on the instantaneous queue (V1, V2):
/// no mark up to `kmin`, with a probability that rises to `pmax` up to `kmax`, all
/// above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Red {
    /// Bytes.
    pub kmin: u32,
    /// Bytes.
    pub kmax: u32,
    /// Probability at `kmax`, in 2^-32.
    pub pmax: u64,
}

impl Red {
    /// Whether a packet that finds so many bytes waiting is marked, by 32 random bits.
    #[inline]
    pub fn marks(&self, queued: u32, random: impl FnOnce() -> u32) -> bool {
        if queued <= self.kmin {
            return false;
        }
        if queued > self.kmax {
            return true;
        }
        let (above, range) = (queued - self.kmin, self.kmax - self.kmin);
        let probability = u128::from(self.pmax) * u128::from(above) / u128::from(range.max(1));
        u128::from(random()) < probability
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::packet::{Kind, NONE};

    /// What a leaf with eight hosts and a spine does with these settings.
    fn detection(settings: &[&str]) -> Detection {
        seeded(settings, 1)
    }

    fn seeded(settings: &[&str], seed: u64) -> Detection {
        let mut scenario = Scenario::find("leaf-spine").unwrap();
        for setting in ["hosts=8", "leaves=1", "spines=1", "senders=7"]
            .iter()
            .chain(settings)
        {
            scenario.set_text(setting).unwrap();
        }
        let topology = scenario.topology().unwrap();
        let network = scenario.network(topology.longest(), topology.fewest_ports());
        let own = &scenario.parameters;
        let rules = scenario.schemes.rules(own.scheme, &network).unwrap();
        Detection::new(&scenario, &rules, &topology, seed).unwrap()
    }

    /// At the first switch, from one of its ports to another one, with `queued` bytes before it.
    fn place(ingress: u16, egress: u16, class: u8, classes: u32, queued: u32) -> Place {
        let port = 8 + u32::from(egress);
        Place {
            now: 0,
            switch: 0,
            port,
            class,
            number: port * classes + u32::from(class),
            egress,
            ingress,
            queued,
            on: true,
            to_host: true,
        }
    }

    fn packet(note: u32) -> Packet {
        Packet {
            bytes: 1_062,
            note,
            ..Packet::of_link(Kind::Data, 0, 0)
        }
    }

    /// One that comes at each of these places, and waits.
    fn come(detection: &mut Detection, places: &[Place]) {
        for place in places {
            let notice = detection.comes(*place, &mut packet(NONE), true);
            assert_eq!(notice, None);
        }
    }

    /// How many of those that leave from there are marked.
    fn marked(detection: &mut Detection, places: &[Place]) -> usize {
        let marked = places.iter().filter(|place| {
            let mut packet = packet(NONE);
            detection.leaves(**place, &mut packet, true);
            packet.mark == Mark::Congestion
        });
        marked.count()
    }

    /// HP's buffers are those of inputs: four packets of one input fill its own, whichever outputs they wait
    /// for; four of different inputs fill none.
    #[test]
    fn hp_marks_those_of_a_full_input() {
        let new = || detection(&["scheme=lipd/input", "hp.buffer=4"]);
        let same = [1, 2, 1, 2].map(|out| place(0, out, 0, 1, 0));
        let mut full = new();
        come(&mut full, &same);
        assert_eq!(marked(&mut full, &same), 4);
        let others = [3, 4, 5, 6].map(|input| place(input, 1, 0, 1, 0));
        let mut shared = new();
        come(&mut shared, &others);
        assert_eq!(marked(&mut shared, &others), 0);
    }

    /// What is dropped holds no slot of its input any more.
    #[test]
    fn hp_does_not_count_what_is_dropped() {
        let mut detection = detection(&["scheme=lipd/input", "hp.buffer=4", "flow_control=none"]);
        let one = [place(0, 1, 0, 1, 0)];
        for _ in 0..10 {
            come(&mut detection, &one);
            detection.dropped(one[0]);
        }
        let three = [one[0]; 3];
        come(&mut detection, &three);
        assert_eq!(marked(&mut detection, &three), 0);
    }

    /// A class fills buffers of its own.
    #[test]
    fn hp_counts_by_class() {
        let mut detection = detection(&["scheme=lipd/input", "hp.buffer=4", "priorities=2"]);
        let both = [0, 0, 0, 1, 1, 1].map(|class| place(0, 1, class, 2, 0));
        come(&mut detection, &both);
        assert_eq!(marked(&mut detection, &both), 0);
        let own = [both[0]; 4];
        come(&mut detection, &own);
        come(&mut detection, &both[3..]);
        assert_eq!(marked(&mut detection, &both[3..]), 0);
        assert_eq!(marked(&mut detection, &own), 4);
    }

    /// IB CC: without credits a long queue is a victim, which is marked before a host only, and there only if its
    /// ports have the mask.
    #[test]
    fn ibcc_marks_victims_before_hosts_with_the_mask() {
        for (mask, marks) in [("none", 0), ("hosts", 1)] {
            let mask = format!("ibcc.victim_mask={mask}");
            let settings = ["scheme=ibcc", "flow_control=cbfc", &mask];
            let mut detection = detection(&settings);
            let full = place(0, 1, 0, 1, 900_000);
            for (on, to_host, expected) in [
                (true, true, 1),
                (true, false, 1),
                (false, true, marks),
                (false, false, 0),
            ] {
                let place = Place {
                    on,
                    to_host,
                    ..full
                };
                let mut packet = packet(NONE);
                detection.comes(place, &mut packet, true);
                let marked = u32::from(packet.mark == Mark::Congestion);
                assert_eq!(marked, expected, "{mask} {on} {to_host}");
            }
        }
    }

    /// QCN samples each class of a port by itself, after so many bytes of it.
    #[test]
    fn qcn_samples_by_class() {
        let settings = [
            "scheme=qcn",
            "priorities=2",
            "qcn.sample=3kB",
            "qcn.jitter=0",
        ];
        let mut detection = detection(&settings);
        // So long that it is sampled in an eighth of that, a packet at a time, from the first sample on.
        let [first, other] = [0, 1].map(|class| place(0, 1, class, 2, 900_000));
        let mut told = |place: Place| {
            let notice = detection.comes(place, &mut packet(NONE), true);
            notice.map(|notice| (notice.point, notice.feedback))
        };
        assert_eq!([first, first].map(&mut told), [None; 2]);
        assert_eq!([other, other].map(&mut told), [None; 2]);
        assert_eq!(told(first), Some((first.number, 63)));
        assert_eq!(told(other), Some((other.number, 63)));
    }

    /// BCN compares a queue with the last sample of its own class, and what raises a rate comes only from the point
    /// that lowered it.
    #[test]
    fn bcn_points_are_of_one_class_and_do_not_speak_for_each_other() {
        let settings = [
            "scheme=bcn",
            "priorities=2",
            "bcn.pm=1",
            "link_rate=10gbit",
            "bcn.qeq=24kB",
        ];
        let mut detection = detection(&settings);
        let mut told = |class, queued, note: u32| {
            let place = place(0, 1, class, 2, queued);
            detection.comes(place, &mut packet(note), true)
        };
        let number = |class| place(0, 1, class, 2, 0).number;
        let [first, other] = [0, 1].map(|class| told(class, 60_000, UNTAGGED).unwrap());
        assert_eq!((first.point, other.point), (number(0), number(1)));
        assert_eq!(first.feedback, other.feedback);
        // Still long, but much shorter than before: there is room again.
        assert_eq!(told(0, 30_000, number(1)), None);
        assert!(told(0, 60_000, number(1)).is_some());
        assert!(told(0, 30_000, number(0)).is_some());
        // A short queue tells only those whom it slowed down.
        assert_eq!(told(0, 0, UNTAGGED), None);
        assert!(told(0, 0, number(0)).is_some());
    }

    /// Chance is another one with each seed and at each switch, and the same each time.
    #[test]
    fn switches_draw_by_themselves() {
        let drawn = |seed, switch| -> Vec<bool> {
            let mut detection = seeded(&["scheme=bcn", "bcn.pm=1/2"], seed);
            let at = Place {
                switch,
                ..place(0, 1, 0, 1, 900_000)
            };
            let mut told = || detection.comes(at, &mut packet(UNTAGGED), true);
            (0..64).map(|_| told().is_some()).collect()
        };
        assert_eq!(drawn(1, 0), drawn(1, 0));
        assert_ne!(drawn(1, 0), drawn(2, 0));
        assert_ne!(drawn(1, 0), drawn(1, 1));
    }

    /// D1: nothing, then a line up to Pmax, then everything; within 2 %.
    #[test]
    fn red_marks_along_its_curve() {
        let red = Red {
            kmin: 100_000,
            kmax: 400_000,
            pmax: (1 << 32) / 5,
        };
        let mut random = Pcg64Mcg::seed_from_u64(1);
        for queued in (0..600_000).step_by(20_000) {
            let trials = 200_000;
            let marked = (0..trials).filter(|_| red.marks(queued, || random.random()));
            let found = marked.count() as f64 / f64::from(trials);
            let expected = match queued {
                0..=100_000 => 0.0,
                400_001.. => 1.0,
                _ => 0.2 * f64::from(queued - 100_000) / 300_000.0,
            };
            // 2 % of the value; at small ones the 4 sigma of so many trials.
            let sigma = (expected * (1.0 - expected) / f64::from(trials)).sqrt();
            let tolerance = (0.02 * expected).max(4.0 * sigma);
            assert!((found - expected).abs() <= tolerance, "{queued}: {found}");
        }
        assert!(red.marks(400_001, || u32::MAX));
        assert!(!red.marks(100_000, || 0));
    }
}
