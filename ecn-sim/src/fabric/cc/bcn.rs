//! BCN. Congestion point and reaction point are those of [`ecn_core::bcn`].

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use ecn_core::bcn::{CongestionPoint, Feedback, Gains, Granularity, Key, Limiter};
use foldhash::fast::FixedState;

use super::{Cnm, Endpoints, Hooks, Network, QueueView, Random, Scheme, Sender, Sending, Switch};
use crate::bounds::ModelError;
use crate::engine::Time;
use crate::fabric::packet::Packet;
pub use crate::notifications::bcn::{BcnParameters, BcnRules, Sharing};

/// The rules for a network.
fn rules(network: &Network) -> Result<BcnRules, ModelError> {
    let params = &network.schemes.bcn;
    let usual = Gains::defaults(network.line.bytes_per_s()).equilibrium_bytes;
    let usual = || u64::from(usual.max(8 * network.frame));
    let params = BcnParameters {
        qeq: network.equilibrium(params.qeq, usual),
        ..params.clone()
    };
    params.rules(network.line, network.frame)
}

/// BCN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bcn;

impl Scheme for Bcn {
    type Sender = Hosts;
    type Switch = CongestionPoints;

    fn sender(&self, network: &Network) -> Result<Hosts, ModelError> {
        let rules = rules(network)?;
        Ok(Hosts::new(rules, network.hosts))
    }

    fn switch(&self, network: &Network) -> Result<CongestionPoints, ModelError> {
        Ok(CongestionPoints {
            rules: rules(network)?,
            queues: vec![CongestionPoint::default(); network.queues as usize],
            random: Random::new(network),
        })
    }
}

/// The congestion points of all queues, which sample packets.
#[derive(Debug)]
pub struct CongestionPoints {
    rules: BcnRules,
    queues: Vec<CongestionPoint>,
    random: Random,
}

impl Switch for CongestionPoints {
    fn hooks(&self) -> Hooks {
        Hooks::ENQUEUE
    }

    fn on_enqueue(&mut self, at: &QueueView, packet: &mut Packet, _: bool) -> Option<Cnm> {
        if !self.rules.samples(self.random.draw(at.switch)) {
            return None;
        }
        // Only the congestion point that a limiter obeys may raise its rate: others on the path are not congested, and
        // would undo that one's decreases.
        let tagged = packet.note == at.queue;
        let other = !tagged && packet.note != UNTAGGED;
        let (policy, queued) = (&self.rules.policy, at.queued + u32::from(packet.bytes));
        let feedback =
            self.queues[at.queue as usize].sample(policy.equilibrium_bytes, queued, tagged)?;
        if other && feedback.value(policy.weight) >= 0 {
            return None;
        }
        Some(Cnm {
            point: at.queue,
            feedback: feedback.to_word(),
        })
    }
}

/// The limiters of all hosts, which flows may share.
#[derive(Debug)]
pub struct Hosts {
    rules: BcnRules,
    limiters: Vec<Limiters>,
}

impl Hosts {
    /// Limiters for `hosts` hosts.
    pub fn new(rules: BcnRules, hosts: u32) -> Self {
        Self {
            rules,
            limiters: vec![Limiters::default(); hosts as usize],
        }
    }
}

impl Sender for Hosts {
    type Flow = ();

    fn on_start(&mut self, endpoints: Endpoints) {
        self.limiters[endpoints.from as usize].on_start(endpoints);
    }

    fn on_send(&mut self, _: &mut (), packet: &Sending) -> Option<Time> {
        let limiters = &mut self.limiters[packet.endpoints.from as usize];
        limiters.on_send(&self.rules, packet)
    }

    /// The congestion point that the flow's limiter obeys.
    fn tag(&self, endpoints: Endpoints) -> Option<u32> {
        Some(self.limiters[endpoints.from as usize].tag(&self.rules, endpoints))
    }

    fn on_feedback(&mut self, _: &mut (), now: Time, endpoints: Endpoints, notice: Cnm) {
        let limiters = &mut self.limiters[endpoints.from as usize];
        limiters.on_notification(&self.rules, now, endpoints, notice);
    }

    fn on_finish(&mut self, endpoints: Endpoints) {
        self.limiters[endpoints.from as usize].on_finish(endpoints);
    }
}

/// A rate limiter that is in use.
#[derive(Clone, Copy, Debug)]
struct Limited {
    key: Key,
    limiter: Limiter,
    /// The congestion point that it obeys: the last one that lowered its rate.
    point: u32,
    /// Earliest departure of its next packet.
    next: Time,
}

/// Tag of packets without a limiter.
pub const UNTAGGED: u32 = u32::MAX;

/// A host's rate limiters.
#[derive(Clone, Debug, Default)]
pub struct Limiters {
    limited: Vec<Limited>,
    /// Numbers of active flows, by the key of their own limiter.
    flows: HashMap<Key, u32, FixedState>,
}

impl Endpoints {
    fn key(self, granularity: Granularity) -> Key {
        Key::new(granularity, self.from.into(), self.to.into(), self.class)
    }
}

impl Limiters {
    /// The finest existing limiter for packets between two hosts.
    fn find(&self, rules: &BcnRules, endpoints: Endpoints) -> Option<usize> {
        if self.limited.is_empty() {
            return None;
        }
        let mut granularity = Some(rules.granularity);
        while let Some(this) = granularity {
            let key = endpoints.key(this);
            let found = self.limited.iter().position(|limited| limited.key == key);
            if found.is_some() {
                return found;
            }
            granularity = this.coarser();
        }
        None
    }

    /// Time from the start of a packet to the start of the next one of its flow.
    #[inline]
    pub fn on_send(&mut self, rules: &BcnRules, packet: &Sending) -> Option<Time> {
        let found = self.find(rules, packet.endpoints)?;
        let limited = &mut self.limited[found];
        let gap = packet.time_at(limited.limiter.rate()?);
        limited.next = limited.next.max(packet.now) + gap;
        Some(limited.next - packet.now)
    }

    /// The tag of packets between two hosts: the congestion point that their limiter obeys.
    #[inline]
    pub fn tag(&self, rules: &BcnRules, endpoints: Endpoints) -> u32 {
        let found = self.find(rules, endpoints);
        found.map_or(UNTAGGED, |found| self.limited[found].point)
    }

    /// A flow between two hosts starts.
    pub fn on_start(&mut self, endpoints: Endpoints) {
        *self
            .flows
            .entry(endpoints.key(Granularity::Flow))
            .or_default() += 1;
    }

    /// A flow between two hosts ends. Their own limiter is removed with the last such flow (S); shared ones are kept.
    pub fn on_finish(&mut self, endpoints: Endpoints) {
        let key = endpoints.key(Granularity::Flow);
        let Entry::Occupied(mut flows) = self.flows.entry(key) else {
            return;
        };
        *flows.get_mut() -= 1;
        if *flows.get() == 0 {
            flows.remove();
            self.limited.retain(|limited| limited.key != key);
        }
    }

    /// Handles a notification about packets between two hosts.
    pub fn on_notification(
        &mut self,
        rules: &BcnRules,
        now: Time,
        endpoints: Endpoints,
        notice: Cnm,
    ) {
        let feedback = Feedback::from_word(notice.feedback);
        let falls = feedback.value(rules.policy.weight) < 0;
        let at = match self.find(rules, endpoints) {
            Some(at) => at,
            // There is no limiter whose rate could be raised.
            None if !falls => return,
            None => {
                // One is reserved for the link, so that one is always available.
                let free = |key: Key| {
                    let link = key.granularity == Granularity::Link as u32;
                    link || self.limited.len() + 1 < rules.limiters as usize
                };
                let (from, to) = (endpoints.from.into(), endpoints.to.into());
                self.limited.push(Limited {
                    key: Key::fall_back(rules.granularity, from, to, endpoints.class, free),
                    limiter: Limiter::default(),
                    point: notice.point,
                    next: now,
                });
                self.limited.len() - 1
            }
        };
        let limited = &mut self.limited[at];
        limited.limiter.on_feedback(&rules.policy, feedback);
        if falls {
            limited.point = notice.point;
        }
        if limited.limiter.rate().is_none() {
            self.limited.swap_remove(at);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::auto::Auto;
    use crate::fabric::cc::tests::{packet, queue_view, switches};
    use ecn_core::bcn::Policy;
    use ecn_units::{Fraction, Rate};

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut BcnParameters)| {
            let mut parameters = BcnParameters::default();
            change(&mut parameters);
            parameters
                .rules("10gbit".parse().unwrap(), 1_062)
                .unwrap_err()
                .key
        };
        assert_eq!(refused(&|p| p.w = 1_025), "w");
        assert_eq!(refused(&|p| p.pm = Fraction::ratio(0, 1)), "pm");
        assert_eq!(refused(&|p| p.pm = Fraction::ratio(2, 1)), "pm");
        assert_eq!(refused(&|p| p.gd = Fraction::ratio(2, 1)), "gd");
        assert_eq!(refused(&|p| p.gi = Fraction::ratio(0, 1)), "gi");
        let large = Auto::Is("2GB".parse().unwrap());
        assert_eq!(refused(&|p| p.qeq = large), "qeq");
        assert_eq!(refused(&|p| p.gain_frame = large), "gain_frame");
        let rate = Auto::Is("11gbit".parse().unwrap());
        assert_eq!(refused(&|p| p.min_rate = rate), "min_rate");
        assert_eq!(refused(&|p| p.limiters = 0), "limiters");
    }

    const LINE: u64 = 1_250_000_000;

    fn rules(change: impl FnOnce(&mut BcnParameters)) -> BcnRules {
        let mut parameters = BcnParameters::default();
        change(&mut parameters);
        parameters.rules("10gbit".parse().unwrap(), 1_500).unwrap()
    }

    /// From host 0 to host `to`.
    const fn endpoints(to: u32) -> Endpoints {
        Endpoints {
            from: 0,
            to,
            class: 0,
        }
    }

    /// From a queue at this offset below its equilibrium, with unchanged length.
    fn notice(point: u32, offset_bytes: i32) -> Cnm {
        let feedback = Feedback {
            offset_bytes,
            delta_bytes: 0,
        }
        .to_word();
        Cnm { point, feedback }
    }

    /// A flow obeys the last point that slowed it down, and no limiter is created in order to raise a rate.
    #[test]
    fn the_point_that_lowered_a_rate_is_obeyed() {
        let rules = rules(|_| {});
        let mut limiters = Limiters::default();
        limiters.on_notification(&rules, 0, endpoints(1), notice(5, 6_400));
        assert_eq!(
            (limiters.limited.len(), limiters.tag(&rules, endpoints(1))),
            (0, UNTAGGED)
        );
        limiters.on_notification(&rules, 0, endpoints(1), notice(5, -6_400));
        assert_eq!(limiters.tag(&rules, endpoints(1)), 5);
        let lowered = limiters.limited[0].limiter.rate().unwrap();
        assert!(lowered < LINE);
        limiters.on_notification(&rules, 0, endpoints(1), notice(7, 640));
        assert_eq!(limiters.tag(&rules, endpoints(1)), 5);
        assert!(limiters.limited[0].limiter.rate().unwrap() > lowered);
        limiters.on_notification(&rules, 0, endpoints(1), notice(7, -640));
        assert_eq!(limiters.tag(&rules, endpoints(1)), 7);
        assert_eq!(limiters.tag(&rules, endpoints(2)), UNTAGGED);
    }

    /// A flow's limiter is removed with the flow; one shared with others is kept.
    #[test]
    fn limiters_of_flows_end_with_them() {
        for (sharing, left) in [(Sharing::Flow, 1), (Sharing::Destination, 2)] {
            let rules = rules(|p| p.sharing = sharing);
            let mut limiters = Limiters::default();
            for to in [1, 2] {
                limiters.on_start(endpoints(to));
                limiters.on_notification(&rules, 0, endpoints(to), notice(5, -6_400));
            }
            limiters.on_finish(endpoints(1));
            assert_eq!(limiters.limited.len(), left, "{sharing}");
            assert_eq!(limiters.tag(&rules, endpoints(2)), 5);
        }
    }

    /// A host that runs out of limiters shares existing ones; the last one is shared by all flows without another.
    #[test]
    fn the_last_limiter_is_the_links() {
        for (limiters, shared) in [(100, UNTAGGED), (2, 6)] {
            let rules = rules(|p| p.limiters = limiters);
            let mut limiters = Limiters::default();
            for to in [1, 2] {
                limiters.on_notification(&rules, 0, endpoints(to), notice(4 + to, -6_400));
            }
            assert_eq!(limiters.limited.len(), 2);
            assert_eq!(limiters.tag(&rules, endpoints(1)), 5);
            assert_eq!(limiters.tag(&rules, endpoints(2)), 6);
            assert_eq!(limiters.tag(&rules, endpoints(3)), shared);
        }
    }

    /// `auto` gives the values of [`Gains::defaults`] at every valid rate, if packets are short enough.
    #[test]
    fn every_rate_has_gains() {
        for line in ["1mbit", "1gbit", "10gbit", "100gbit", "800gbit", "100tbit"] {
            let line: Rate = line.parse().unwrap();
            let rules = |frame| BcnParameters::default().rules(line, frame).unwrap();
            let usual = Policy::new(&Gains::defaults(line.bytes_per_s())).unwrap();
            assert_eq!(rules(0).policy, usual);
            let least = rules(9_062).policy.equilibrium_bytes;
            assert_eq!(least, usual.equilibrium_bytes.max(8 * 9_062));
        }
        let rules = rules(|_| {});
        assert_eq!(rules.policy.equilibrium_bytes, 24_000);
        assert!(rules.samples(42_949_671) && !rules.samples(42_949_672));
    }

    #[test]
    fn a_limiter_goes_with_the_last_flow_that_has_it() {
        let rules = rules(|_| {});
        let mut limiters = Limiters::default();
        for to in [1, 1, 2] {
            limiters.on_start(endpoints(to));
        }
        limiters.on_notification(&rules, 0, endpoints(1), notice(7, -6_400));
        limiters.on_finish(endpoints(2));
        limiters.on_finish(endpoints(1));
        assert_eq!(limiters.tag(&rules, endpoints(1)), 7);
        limiters.on_finish(endpoints(1));
        assert_eq!(limiters.tag(&rules, endpoints(1)), UNTAGGED);
    }

    /// BCN compares a queue with the last sample of its own class, and a rate is raised only by the point that lowered
    /// it.
    #[test]
    fn bcn_points_are_of_one_class_and_do_not_speak_for_each_other() {
        let settings = [
            "scheme=bcn",
            "priorities=2",
            "bcn.pm=1",
            "link_rate=10gbit",
            "bcn.qeq=24kB",
        ];
        let mut switches = switches(&settings);
        let mut notified = |class, queued, note: u32| {
            let view = queue_view(0, 1, class, 2, queued);
            switches.on_enqueue(&view, &mut packet(note), true)
        };
        let number = |class| queue_view(0, 1, class, 2, 0).queue;
        let [first, other] = [0, 1].map(|class| notified(class, 60_000, UNTAGGED).unwrap());
        assert_eq!((first.point, other.point), (number(0), number(1)));
        assert_eq!(first.feedback, other.feedback);
        // Still long, but much shorter than at the last sample: the feedback is positive.
        assert_eq!(notified(0, 30_000, number(1)), None);
        assert!(notified(0, 60_000, number(1)).is_some());
        assert!(notified(0, 30_000, number(0)).is_some());
        // A short queue notifies only flows that it has slowed down.
        assert_eq!(notified(0, 0, UNTAGGED), None);
        assert!(notified(0, 0, number(0)).is_some());
    }
}
