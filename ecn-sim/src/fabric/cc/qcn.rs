//! QCN (IEEE 802.1Qau): the congestion point of a queue and the reaction point of a flow, both from [`ecn_core::qcn`].
//!
//! Timers are not events: their effects are computed when the next packet is sent, which is when they matter.

use ecn_core::qcn::{Limiter, feedback, jittered};

use super::{Cnm, Endpoints, Hooks, Network, QueueView, Random, Scheme, Sender, Sending, Switch};
use crate::bounds::ModelError;
use crate::engine::Time;
use crate::fabric::packet::Packet;
pub use crate::notifications::qcn::{QcnParameters, QcnRules};

/// QCN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qcn;

impl Scheme for Qcn {
    type Sender = QcnRules;
    type Switch = CongestionPoints;

    fn sender(&self, network: &Network) -> Result<QcnRules, ModelError> {
        let params = &network.schemes.qcn;
        let usual = || {
            u64::from(
                params
                    .rules(network.line, network.frame)
                    .map_or(0, |r| r.qeq),
            )
        };
        let params = QcnParameters {
            qeq: network.equilibrium(params.qeq, usual),
            ..params.clone()
        };
        params.rules(network.line, network.frame)
    }

    fn switch(&self, network: &Network) -> Result<CongestionPoints, ModelError> {
        let rules = self.sender(network)?;
        Ok(CongestionPoints {
            rules,
            queues: vec![CongestionPoint::new(&rules); network.queues as usize],
            random: Random::new(network),
        })
    }
}

/// The state of a queue that notifies senders.
#[derive(Clone, Copy, Debug)]
pub struct CongestionPoint {
    /// Bytes until the next sample.
    until_sample: i64,
    /// Its length at the last sample.
    before: u32,
}

impl CongestionPoint {
    /// An empty queue.
    pub fn new(rules: &QcnRules) -> Self {
        Self {
            until_sample: rules.intervals[0].into(),
            before: 0,
        }
    }

    /// A packet arrives, after which the queue has `queued` bytes. Returns the feedback for its sender if it is sampled
    /// and Fb < 0. `random`: 32 random bits for the next interval.
    pub fn arrives(
        &mut self,
        rules: &QcnRules,
        bytes: u32,
        queued: u32,
        random: impl FnOnce() -> u32,
    ) -> Option<u32> {
        self.until_sample -= i64::from(bytes);
        if self.until_sample > 0 {
            return None;
        }
        let before = std::mem::replace(&mut self.before, queued);
        let feedback = feedback(rules.qeq, rules.w, queued, before);
        let interval = rules.intervals[feedback.unwrap_or(0) as usize >> 3];
        self.until_sample = jittered(interval, rules.jitter, random()).into();
        feedback
    }
}

/// All queues, which sample arriving packets.
#[derive(Debug)]
pub struct CongestionPoints {
    rules: QcnRules,
    queues: Vec<CongestionPoint>,
    random: Random,
}

impl Switch for CongestionPoints {
    fn hooks(&self) -> Hooks {
        Hooks::ENQUEUE
    }

    fn on_enqueue(&mut self, at: &QueueView, packet: &mut Packet, _: bool) -> Option<Cnm> {
        let bytes = u32::from(packet.bytes);
        let random = || self.random.draw(at.switch);
        let point = &mut self.queues[at.queue as usize];
        let feedback = point.arrives(&self.rules, bytes, at.queued + bytes, random)?;
        Some(Cnm {
            point: at.queue,
            feedback,
        })
    }
}

impl Sender for QcnRules {
    type Flow = QcnFlow;

    fn on_start(&mut self, _: Endpoints) -> QcnFlow {
        QcnFlow::default()
    }

    fn on_send(&mut self, flow: &mut QcnFlow, packet: &Sending) -> Option<Time> {
        let rate = flow.on_send(self, packet.now, packet.bytes)?;
        Some(packet.time_at(rate))
    }

    fn on_feedback(&mut self, flow: &mut QcnFlow, now: Time, _: Endpoints, notice: Cnm) {
        flow.on_notification(self, now, notice.feedback);
    }
}

/// A sender's state of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub struct QcnFlow {
    limiter: Limiter,
    sent_bytes: u64,
}

impl QcnFlow {
    /// Handles a notification with this feedback, 0 to 63.
    pub fn on_notification(&mut self, rules: &QcnRules, now: Time, feedback: u32) {
        self.advance(rules, now);
        let sent = self.sent_bytes;
        self.limiter
            .on_notification(&rules.policy, feedback, sent, now);
    }

    /// The flow sends `bytes` bytes. Returns its rate for the packet after them, if it is below the link's.
    pub fn on_send(&mut self, rules: &QcnRules, now: Time, bytes: u32) -> Option<u64> {
        // Complete the stages by time that end before this packet.
        self.advance(rules, now);
        self.sent_bytes += u64::from(bytes);
        self.advance(rules, now);
        self.limiter.limit()
    }

    /// Completes the stages that have ended by `now`, by time and by volume.
    fn advance(&mut self, rules: &QcnRules, now: Time) {
        while self.limiter.advance(&rules.policy, self.sent_bytes, now) {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::engine::{MS, US};
    use crate::fabric::auto::Auto;
    use crate::fabric::cc::tests::{packet, queue_view, switches};
    use crate::fabric::packet::NONE;
    use ecn_units::{DurationText, Fraction, Size};
    use proptest::prelude::*;

    /// 10 Gb/s.
    const LINE: u64 = 1_250_000_000;
    /// 5 Mb/s and 50 Mb/s.
    const RAI: u64 = 625_000;
    const RHAI: u64 = 6_250_000;

    fn rate_of(flow: &QcnFlow) -> u64 {
        flow.limiter.limit().unwrap_or(LINE)
    }

    fn rules() -> QcnRules {
        let parameters = QcnParameters {
            jitter: Fraction::ratio(0, 1),
            ..QcnParameters::default()
        };
        parameters.rules("10gbit".parse().unwrap(), 1_062).unwrap()
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut QcnParameters)| {
            let mut parameters = QcnParameters::default();
            change(&mut parameters);
            let rules = parameters.rules("10gbit".parse().unwrap(), 1_062);
            rules.unwrap_err().key
        };
        let two = Fraction::ratio(2, 1);
        assert_eq!(refused(&|p| p.gd = two), "gd");
        assert_eq!(refused(&|p| p.min_decrease = two), "min_decrease");
        assert_eq!(refused(&|p| p.jitter = two), "jitter");
        assert_eq!(refused(&|p| p.w = 65), "w");
        assert_eq!(refused(&|p| p.stages = 1_001), "stages");
        let none = DurationText::from_nanos(0);
        assert_eq!(refused(&|p| p.stage_timer = none), "stage_timer");
        let long = DurationText::from_secs(2);
        assert_eq!(refused(&|p| p.volume_time = long), "volume_time");
        let tiny = Auto::Is(Size::from_bytes(999));
        assert_eq!(refused(&|p| p.qeq = tiny), "qeq");
        assert_eq!(refused(&|p| p.sample = tiny), "sample");
        assert_eq!(refused(&|p| p.byte_limit = tiny), "byte_limit");
        let rate = Auto::Is("11gbit".parse().unwrap());
        assert_eq!(refused(&|p| p.min_rate = rate), "min_rate");
    }

    /// Q3: the worked values, from the queue to the rate.
    #[test]
    fn worked_values_are_exact() {
        let rules = rules();
        for (queued, before, feedback, percent) in [
            (26_000, 26_000, None, 1_000),
            (30_000, 26_000, Some(5), 961),
            (52_000, 52_000, Some(12), 906),
            (52_000, 26_000, Some(37), 711),
            (78_000, 26_000, Some(63), 508),
        ] {
            let mut point = CongestionPoint {
                until_sample: 1,
                before,
            };
            assert_eq!(point.arrives(&rules, 1_000, queued, || 0), feedback);
            assert_eq!(point.before, queued);
            let mut flow = QcnFlow::default();
            if let Some(feedback) = feedback {
                flow.on_notification(&rules, 0, feedback);
                let exact = LINE * (128 - u64::from(feedback)) / 128;
                assert_eq!(rate_of(&flow), exact);
            }
            assert_eq!((rate_of(&flow) * 1_000 + LINE / 2) / LINE, percent);
        }
    }

    /// More feedback, earlier samples.
    #[test]
    fn samples_come_sooner_with_more_feedback() {
        let rules = rules();
        for (feedback, interval) in [
            (1_u32, 150_000),
            (7, 150_000),
            (8, 75_000),
            (16, 50_000),
            (24, 37_500),
            (32, 30_000),
            (40, 25_000),
            (48, 21_500),
            (56, 18_500),
            (63, 18_500),
        ] {
            let queued = 26_000 + (130_000 * feedback).div_ceil(63);
            let mut point = CongestionPoint {
                until_sample: 1,
                before: queued,
            };
            for packets in [1, interval / 100, interval / 100] {
                let last = (1..).find_map(|n| Some((n, point.arrives(&rules, 100, queued, || 0)?)));
                assert_eq!(last, Some((packets, feedback)));
            }
        }
    }

    /// Intervals vary by up to 15 % in each direction.
    #[test]
    fn intervals_vary_by_the_jitter() {
        let rules = QcnParameters::default()
            .rules("10gbit".parse().unwrap(), 1_062)
            .unwrap();
        let after = |random| {
            let mut point = CongestionPoint::new(&rules);
            point.arrives(&rules, 150_000, 0, || random);
            point.until_sample
        };
        for (random, bytes) in [(0, 127_500), (1 << 31, 150_000), (u32::MAX, 172_500)] {
            assert!((after(random) - bytes).abs() <= 1, "{}", after(random));
        }
    }

    /// Q4, and the increases of the stages after fast recovery: by time alone.
    #[test]
    fn stages_are_exact() {
        let rules = rules();
        let mut flow = QcnFlow::default();
        flow.on_notification(&rules, 0, 63);
        // Another notification before the first stage ends: the target is unchanged.
        flow.on_notification(&rules, 0, 63);
        assert_eq!(flow.limiter.target, LINE);
        // Not the link's rate: a target at that rate could not rise.
        flow.limiter.target = LINE / 2;
        let (start, target) = (rate_of(&flow), flow.limiter.target);
        let mut rate = start;
        for n in 1..=4 {
            rate = (rate + target).div_ceil(2);
            assert_eq!(flow.on_send(&rules, n * 15 * MS, 0), Some(rate));
        }
        // The fifth is already an active one.
        assert_eq!(flow.limiter.target, target);
        let rate = (rate + target + RAI).div_ceil(2);
        assert_eq!(flow.on_send(&rules, 5 * 15 * MS, 0), Some(rate));
        assert!(rate >= target - (target - start) / 32);
        flow.on_send(&rules, 6 * 15 * MS, 0);
        assert_eq!(flow.limiter.target, target + 2 * RAI);
    }

    /// Increases by i RHAI once both counters are beyond fast recovery, and stages half as long.
    #[test]
    fn hyper_active_stages_are_half_as_long() {
        let rules = rules();
        let mut flow = QcnFlow::default();
        flow.on_notification(&rules, 0, 63);
        flow.limiter.target = LINE / 2;
        // Five stages by volume, the fifth active.
        assert!(flow.on_send(&rules, 0, 749_999).is_some());
        assert_eq!((flow.limiter.by_volume, flow.limiter.target), (4, LINE / 2));
        flow.on_send(&rules, 0, 1);
        assert_eq!(
            (flow.limiter.by_volume, flow.limiter.target),
            (5, LINE / 2 + RAI)
        );
        // Five by time: four active ones, then RHAI.
        flow.on_send(&rules, 5 * 15 * MS, 0);
        let target = LINE / 2 + 5 * RAI + RHAI;
        assert_eq!((flow.limiter.by_time, flow.limiter.target), (5, target));
        // The sixth by time, after 7.5 ms, leaves i at 1; the sixth by volume, after 75 kB, makes it 2.
        flow.on_send(&rules, 5 * 15 * MS + 7_500 * US, 0);
        assert_eq!(
            (flow.limiter.by_time, flow.limiter.target),
            (6, target + RHAI)
        );
        flow.on_send(&rules, 5 * 15 * MS + 7_500 * US, 75_000);
        assert_eq!(flow.limiter.target, target + 3 * RHAI);
    }

    /// If a time is set for them, stages by volume last equally long at every rate.
    #[test]
    fn stages_by_volume_may_last_as_long_at_each_rate() {
        let mut rules = rules();
        rules.policy.volume_time = (240_u64 << 32).div_ceil(1_000_000);
        for cuts in [1, 2, 5] {
            let mut flow = QcnFlow::default();
            (0..cuts).for_each(|_| flow.on_notification(&rules, 0, 63));
            let bytes = rate_of(&flow) * 240 / 1_000_000;
            flow.on_send(&rules, 0, bytes as u32 - 1);
            assert_eq!(flow.limiter.by_volume, 0);
            flow.on_send(&rules, 0, 1);
            assert_eq!(flow.limiter.by_volume, 1);
        }
    }

    #[test]
    fn a_target_far_away_is_brought_nearer_once() {
        let rules = rules();
        let mut flow = QcnFlow::default();
        for _ in 0..5 {
            flow.on_notification(&rules, 0, 63);
        }
        let rate = rate_of(&flow);
        assert!(flow.limiter.target == LINE && rate < LINE / 10);
        flow.on_send(&rules, 15 * MS, 0);
        assert_eq!(flow.limiter.target, LINE / 8);
        assert_eq!(rate_of(&flow), (rate + LINE / 8).div_ceil(2));
        flow.limiter.target = LINE;
        flow.on_send(&rules, 30 * MS, 0);
        assert_eq!(flow.limiter.target, LINE);
    }

    #[test]
    fn at_the_links_rate_there_is_no_limiter() {
        let rules = rules();
        let mut flow = QcnFlow::default();
        assert_eq!(flow.on_send(&rules, 0, 1_000_000_000), None);
        flow.on_notification(&rules, 0, 20);
        assert!(flow.on_send(&rules, 1, 0).is_some());
        assert_eq!(flow.on_send(&rules, 1_000 * MS, 0), None);
        assert_eq!(flow.limiter, Limiter::new());
        // The next one restarts.
        flow.on_notification(&rules, 2_000 * MS, 20);
        assert_eq!((flow.limiter.target, flow.limiter.by_time), (LINE, 0));
    }

    /// QCN samples each class of a port separately, after a number of bytes of that class.
    #[test]
    fn qcn_samples_by_class() {
        let settings = [
            "scheme=qcn",
            "priorities=2",
            "qcn.sample=3kB",
            "qcn.jitter=0",
        ];
        let mut switches = switches(&settings);
        // Long enough to be sampled after an eighth of that, which is one packet, from the first sample on.
        let [first, other] = [0, 1].map(|class| queue_view(0, 1, class, 2, 900_000));
        let mut notified = |view: QueueView| {
            let notice = switches.on_enqueue(&view, &mut packet(NONE), true);
            notice.map(|notice| (notice.point, notice.feedback))
        };
        assert_eq!([first, first].map(&mut notified), [None; 2]);
        assert_eq!([other, other].map(&mut notified), [None; 2]);
        assert_eq!(notified(first), Some((first.queue, 63)));
        assert_eq!(notified(other), Some((other.queue, 63)));
    }

    proptest! {
        /// Q1: only a queue that is too long or grows causes feedback, and always a decrease. Q2: of at most 63/128.
        /// Otherwise a rate never falls, and stays within its bounds.
        #[test]
        fn feedback_is_never_positive(
            steps in prop::collection::vec((0u64..20_000, 0u32..200_000, 0u32..400_000), 1..300)
        ) {
            let rules = rules();
            let mut point = CongestionPoint::new(&rules);
            let mut flow = QcnFlow::default();
            let mut now = 0;
            for (us, bytes, queued) in steps {
                now += us * US;
                let before = rate_of(&flow);
                flow.on_send(&rules, now, bytes);
                prop_assert!(rate_of(&flow) >= before);
                let (before, old) = (rate_of(&flow), point.before);
                if let Some(feedback) = point.arrives(&rules, bytes, queued, || 0) {
                    prop_assert!(queued > 26_000 || queued > old);
                    prop_assert!(feedback <= 63);
                    flow.on_notification(&rules, now, feedback);
                    prop_assert!(rate_of(&flow) <= before);
                    prop_assert!(rate_of(&flow) * 128 >= before * 65 || rate_of(&flow) == rules.policy.min_bytes_per_s);
                }
                let target = flow.limiter.target;
                prop_assert!(rate_of(&flow) <= target || flow.limiter == Limiter::new());
                prop_assert!(target <= rules.policy.line_bytes_per_s);
                prop_assert!(rate_of(&flow) >= rules.policy.min_bytes_per_s);
            }
        }
    }
}
