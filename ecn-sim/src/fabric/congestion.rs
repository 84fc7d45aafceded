//! What switches detect, and say: marks on packets.

use ecn_core::marking::{BACKLOG_UNKNOWN, Policy};
use ecn_core::tcd::{Mark, State};
use ecn_core::{bcn, tcd};
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::packet::Packet;
use super::parameters::FlowControl;
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
            (Name::Hp(_, marking), _) => {
                let ports = (0..switches).map(|switch| topology.ports(switch).len());
                let most = ports.max().unwrap_or_default() as u32;
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

/// Random early detection of DCQCN's congestion point, on the instantaneous queue (dcqcn-timely.md,
/// section 1, CP): no mark up to `kmin`, with a probability that rises to `pmax` up to `kmax`, all
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
mod tests {
    use super::*;

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
