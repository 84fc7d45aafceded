//! What switches detect, and say: marks on packets.

use ecn_core::marking::{BACKLOG_UNKNOWN, Policy};
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64Mcg;

use super::packet::Packet;
use super::parameters::Scenario;
use super::scheme::{Mark, Name};
use super::topology::Topology;
use crate::counters::{Counters, counters};
use crate::model::ModelError;

/// A data packet at a switch that is to leave by a port.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The switch.
    pub switch: u32,
    /// Which of its ports the packet came by.
    pub ingress: u16,
    /// By which it leaves.
    pub egress: u16,
    /// Bytes of data that wait for that port, without this packet.
    pub queued: u32,
}

/// How congestion is detected, with the state of all switches of a part of the network.
#[derive(Debug)]
pub(super) enum Detection {
    /// Not at all.
    None,
    /// By the queue's length. Each switch draws by itself: the order of what happens at different
    /// switches does not matter.
    Red(Red, Vec<Pcg64Mcg>),
    /// HP's marking, by `ecn-core`: what waits for each output from each input.
    Hp(Policy, Vec<Counters>),
}

impl Detection {
    /// What the scenario's scheme asks for.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn new(scenario: &Scenario, topology: &Topology, seed: u64) -> Result<Self, ModelError> {
        let own = &scenario.parameters;
        let switches = 0..topology.names.len() as u32;
        Ok(match own.scheme {
            Name::None => Self::None,
            Name::Dcqcn => {
                let dcqcn = &scenario.schemes.dcqcn;
                let (kmin, kmax) = dcqcn.thresholds(own.link_rate);
                let pmax = dcqcn.pmax;
                let red = Red {
                    kmin: kmin as u32,
                    kmax: kmax as u32,
                    pmax: (u64::from(pmax.numerator()) << 32) / u64::from(pmax.denominator()),
                };
                // Not the workload's stream, and one per switch.
                let stream = |switch| Pcg64Mcg::seed_from_u64(seed ^ (u64::from(switch) + 1) << 32);
                Self::Red(red, switches.map(stream).collect())
            }
            Name::Hp(_, marking) => {
                let most = switches.clone().map(|switch| topology.ports(switch).len());
                let most = most.max().unwrap_or_default() as u32;
                let hp = &scenario.schemes.hp;
                let policy = hp.marking(marking, most, own.link_rate, scenario.frame());
                let policy = policy.map_err(|error| error.within("hp"))?;
                let counters = switches.map(|_| Counters::new(most as usize + 1));
                Self::Hp(policy, counters.collect())
            }
        })
    }

    /// A packet comes, and is to wait.
    #[inline]
    pub fn waits(&mut self, at: Place, packet: &mut Packet) {
        match self {
            Self::None => {}
            Self::Red(red, random) => {
                if packet.mark != Mark::Congestion
                    && red.marks(at.queued, || random[at.switch as usize].random())
                {
                    packet.mark = Mark::Congestion;
                }
            }
            Self::Hp(policy, switches) => {
                counters!(&mut switches[at.switch as usize], c => {
                    c.wait(policy, at.ingress as u8 + 1, at.egress as u8 + 1, 1, true)
                });
            }
        }
    }

    /// A packet that waited is dropped instead.
    pub fn dropped(&mut self, at: Place) {
        if let Self::Hp(_, switches) = self {
            counters!(&mut switches[at.switch as usize], c => {
                c.drop_queued(at.ingress as u8 + 1, at.egress as u8 + 1, 1)
            });
        }
    }

    /// A packet that waited leaves.
    #[inline]
    pub fn leaves(&mut self, at: Place, packet: &mut Packet) {
        if let Self::Hp(policy, switches) = self {
            let decision = counters!(&mut switches[at.switch as usize], c => {
                let (input, output) = (at.ingress as u8 + 1, at.egress as u8 + 1);
                c.depart(policy, input, output, 1, true, BACKLOG_UNKNOWN)
            });
            if decision.mark != 0 {
                packet.mark = Mark::Congestion;
            }
        }
    }
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
