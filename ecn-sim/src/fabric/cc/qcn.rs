//! QCN (IEEE 802.1Qau): a queue's congestion point, and the reaction point of a flow. `docs/sources.md`.
//!
//! Timers are not events: what they do matters when the next packet is sent, and is worked out then.

use ecn_units::{DurationText, Fraction, Rate, Size};
use serde::{Deserialize, Serialize};

use super::dcqcn::ClampTarget;
use super::{
    Cnm, Endpoints, Hooks, Network, QueueView, Random, SECOND, Scheme, Sender, Sending, Switch,
};
use crate::engine::{NS, Time};
use crate::fabric::auto::Auto;
use crate::fabric::packet::Packet;
use crate::model::{ModelError, in_range};

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

/// QCN's parameters: the defaults of the 802.1Q congestion notification MIB, which are for 10 Gb/s.
///
/// `auto` is the MIB's value at 10 Gb/s and in proportion to the link's rate elsewhere, so that a queue or a
/// stage lasts as long as there: the loop is the same, and only packets are smaller. On slow links it is at least half as many
/// full packets as the MIB's value has frames of 1500 B: else a single one would be congestion.
#[derive(Clone, Debug, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QcnParameters {
    /// Queue that is aimed at. `auto`: 26 kB x rate / 10 Gb/s (V).
    pub qeq: Auto<Size>,
    /// How much more a change of the queue counts than its length (V: the MIB has the exponent, 1).
    pub w: u32,
    /// Bytes between two samples of a queue that is not congested. `auto`: 150 kB x rate / 10 Gb/s (V).
    pub sample: Auto<Size>,
    /// The bytes to a sample vary by so much each way: else one of several flows that take turns is
    /// sampled again and again (from memory).
    pub jitter: Fraction,
    /// Gd: share of the rate that a unit of feedback, of 63, takes (V: the MIB has the exponent, 7).
    pub gd: Fraction,
    /// What a single notification leaves of the rate at least (V).
    pub min_decrease: Fraction,
    /// Bytes of a stage by volume. `auto`: 150 kB x rate / 10 Gb/s (V).
    pub byte_limit: Auto<Size>,
    /// Not 0: a stage by volume has what the current rate sends in this time instead, so that fast flows have no more
    /// of them than slow ones (Hayashi et al. 2011: 240us). The standard has no such thing.
    pub volume_time: DurationText,
    /// Time of a stage by time (V).
    pub stage_timer: DurationText,
    /// From this stage on the target rises; fast recovery are the stages before (`< 5`, V).
    #[schemars(extend("unit" = "stages"))]
    pub stages: u32,
    /// Active increase. `auto`: 1/2000 of the link's rate (V: 5 Mb/s at 10 Gb/s).
    pub rai: Auto<Rate>,
    /// Hyper-active increase. `auto`: 1/200.
    pub rhai: Auto<Rate>,
    /// Lowest rate. `auto`: 1/2000.
    pub min_rate: Auto<Rate>,
    /// Whether a notification lowers the target to the rate even if no stage by volume was complete
    /// since the last one. The standard does not.
    pub clamp_target: ClampTarget,
}

impl Default for QcnParameters {
    fn default() -> Self {
        Self {
            qeq: Auto::Auto,
            w: 2,
            sample: Auto::Auto,
            jitter: Fraction::ratio(3, 20),
            gd: Fraction::ratio(1, 128),
            min_decrease: Fraction::ratio(1, 2),
            byte_limit: Auto::Auto,
            volume_time: DurationText::from_nanos(0),
            stage_timer: DurationText::from_millis(15),
            stages: 5,
            rai: Auto::Auto,
            rhai: Auto::Auto,
            min_rate: Auto::Auto,
            clamp_target: ClampTarget::Off,
        }
    }
}

/// A frame of Ethernet: how many packets the MIB's bytes are.
const FRAME: u64 = 1_500;

/// Largest feedback: 6 bits.
const MOST: u64 = 63;

/// Bytes to the next sample by the feedback of the last one, in eights, for 150 kB.
const INTERVALS: [u64; 8] = [
    150_000, 75_000, 50_000, 37_500, 30_000, 25_000, 21_500, 18_500,
];

/// A timer that does not run.
const NEVER: Time = Time::MAX;

/// The parameters as they are computed with: bytes per second, bytes and picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct QcnRules {
    line: u64,
    qeq: u32,
    w: u32,
    intervals: [u32; 8],
    /// In 2^-32.
    jitter: u64,
    gd: Fraction,
    min_decrease: Fraction,
    byte_limit: u64,
    volume_time: Time,
    stage_timer: Time,
    stages: u32,
    rai: u64,
    rhai: u64,
    min_rate: u64,
    clamp_target: bool,
}

impl QcnParameters {
    /// Checks what the types leave open.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name. `frame`: a full packet, bytes.
    pub fn rules(&self, line: Rate, frame: u32) -> Result<QcnRules, ModelError> {
        let zero = Fraction::ratio(0, 1);
        for (key, value) in [("gd", self.gd), ("min_decrease", self.min_decrease)] {
            in_range(key, value, zero..=Fraction::ratio(1, 1))?;
        }
        in_range("jitter", self.jitter, zero..=Fraction::ratio(1, 2))?;
        in_range("w", self.w, 0..=64)?;
        in_range("stages", self.stages, 0..=1_000)?;
        let shortest = DurationText::from_micros(1);
        in_range("stage_timer", self.stage_timer, shortest..=SECOND)?;
        if self.volume_time > SECOND {
            let reason = "must be at most 1s";
            return Err(ModelError::new("volume_time", self.volume_time, reason));
        }
        let bytes = |key, size: Auto<Size>, at_10_gbit: u64| {
            let scaled = u128::from(line.bytes_per_s()) * u128::from(at_10_gbit) / 1_250_000_000;
            let packets = at_10_gbit / FRAME * u64::from(frame) / 2;
            let size = size.or(Size::from_bytes((scaled as u64).max(packets).max(1_000)));
            let (least, most) = (Size::from_bytes(1_000), Size::from_bytes(1_000_000_000));
            in_range(key, size, least..=most).map(Size::bytes)
        };
        let share = |rate: Auto<Rate>, of: u64| match rate {
            Auto::Auto => (line.bytes_per_s() / of).max(1),
            Auto::Is(rate) => rate.bytes_per_s(),
        };
        let min_rate = share(self.min_rate, 2_000);
        if min_rate > line.bytes_per_s() {
            let reason = format!("must be at most the links' rate, {line}");
            return Err(ModelError::new("min_rate", self.min_rate, reason));
        }
        let sample = bytes("sample", self.sample, INTERVALS[0])?;
        Ok(QcnRules {
            line: line.bytes_per_s(),
            qeq: bytes("qeq", self.qeq, 26_000)? as u32,
            w: self.w,
            intervals: INTERVALS.map(|interval| (sample * interval / INTERVALS[0]) as u32),
            jitter: self.jitter.of(1 << 32),
            gd: self.gd,
            min_decrease: self.min_decrease,
            byte_limit: bytes("byte_limit", self.byte_limit, 150_000)?,
            volume_time: self.volume_time.as_nanos() * NS,
            stage_timer: self.stage_timer.as_nanos() * NS,
            stages: self.stages,
            // No more than a link has: sums stay far from overflow.
            rai: share(self.rai, 2_000).min(line.bytes_per_s()),
            rhai: share(self.rhai, 200).min(line.bytes_per_s()),
            min_rate,
            clamp_target: self.clamp_target == ClampTarget::On,
        })
    }
}

impl QcnRules {
    /// -Fb of a queue and of how long it was at the last sample, bytes; negative: there is nothing to say.
    fn excess(&self, queued: u32, before: u32) -> i64 {
        let (queued, w) = (i64::from(queued), i64::from(self.w));
        queued - i64::from(self.qeq) + w * (queued - i64::from(before))
    }

    /// Feedback in 6 bits: |Fb| 63 / (Qeq (2 w + 1)).
    fn quantised(&self, excess: u64) -> u8 {
        let range = u64::from(self.qeq) * (2 * u64::from(self.w) + 1);
        (excess * MOST / range).min(MOST) as u8
    }
}

/// A queue that notifies.
#[derive(Clone, Copy, Debug)]
pub struct CongestionPoint {
    /// Bytes until it is sampled again.
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

    /// A packet comes and makes the queue so long: the feedback that its sender is to be notified of, if it is sampled
    /// and Fb < 0. Of 32 random bits for the next interval.
    pub fn arrives(
        &mut self,
        rules: &QcnRules,
        bytes: u32,
        queued: u32,
        random: impl FnOnce() -> u32,
    ) -> Option<u8> {
        self.until_sample -= i64::from(bytes);
        if self.until_sample > 0 {
            return None;
        }
        let excess = rules.excess(queued, self.before);
        self.before = queued;
        let feedback = rules.quantised(excess.max(0) as u64);
        let interval = u64::from(rules.intervals[usize::from(feedback >> 3)]);
        // From 1 - jitter to 1 + jitter.
        let spread = (rules.jitter * u64::from(random())) >> 31;
        let factor = (1 << 32) - rules.jitter + spread;
        self.until_sample = ((u128::from(interval) * u128::from(factor)) >> 32) as i64;
        (excess > 0).then_some(feedback)
    }
}

/// All queues, which sample what comes.
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
            feedback: feedback.into(),
        })
    }
}

impl Sender for QcnRules {
    type Flow = QcnFlow;

    fn on_start(&mut self, _: Endpoints) -> QcnFlow {
        QcnFlow::new(self)
    }

    fn on_send(&mut self, flow: &mut QcnFlow, packet: &Sending) -> Option<Time> {
        let rate = flow.on_send(self, packet.now, packet.bytes)?;
        Some(packet.time_at(rate))
    }

    fn on_feedback(&mut self, flow: &mut QcnFlow, now: Time, _: Endpoints, notice: Cnm) {
        flow.on_notification(self, now, notice.feedback as u8);
    }
}

/// What a sender knows of a flow; at the link's rate nothing.
#[derive(Clone, Copy, Debug)]
pub struct QcnFlow {
    /// Current rate CR, bytes per second.
    rate: u64,
    /// Target rate TR.
    target: u64,
    /// Bytes since the last stage by volume.
    bytes: u64,
    stage_due: Time,
    /// BS: stages by volume since the last notification.
    by_volume: u32,
    /// TS: stages by time.
    by_time: u32,
}

impl QcnFlow {
    /// At the link's rate, without a limiter.
    pub const fn new(rules: &QcnRules) -> Self {
        Self {
            rate: rules.line,
            target: rules.line,
            bytes: 0,
            stage_due: NEVER,
            by_volume: 0,
            by_time: 0,
        }
    }

    /// A notification with this feedback, 0 to 63.
    pub fn on_notification(&mut self, rules: &QcnRules, now: Time, feedback: u8) {
        self.advance(rules, now);
        if rules.clamp_target || self.by_volume > 0 {
            self.target = self.rate;
        }
        let feedback = u64::from(feedback).min(MOST);
        let cut = rules.gd.of(self.rate.saturating_mul(feedback));
        let least = rules.min_decrease.of(self.rate).max(rules.min_rate);
        self.rate = self.rate.saturating_sub(cut).max(least);
        (self.by_volume, self.by_time, self.bytes) = (0, 0, 0);
        self.stage_due = now + rules.stage_timer;
        // Feedback that rounds to 0 sets no limiter.
        if self.rate >= rules.line {
            *self = Self::new(rules);
        }
    }

    /// It sends so many bytes: its rate for the packet after them, if it is below the link's.
    pub fn on_send(&mut self, rules: &QcnRules, now: Time, bytes: u32) -> Option<u64> {
        self.advance(rules, now);
        self.bytes += u64::from(bytes);
        while self.stage_due != NEVER {
            let limit = self.volume(rules) >> u32::from(self.is_hyper(rules));
            if self.bytes < limit {
                break;
            }
            self.bytes -= limit;
            self.by_volume = self.by_volume.saturating_add(1);
            self.increase(rules);
        }
        (self.stage_due != NEVER).then_some(self.rate)
    }

    /// Bytes of a stage by volume.
    fn volume(&self, rules: &QcnRules) -> u64 {
        if rules.volume_time == 0 {
            return rules.byte_limit;
        }
        let bytes = u128::from(self.rate) * u128::from(rules.volume_time) / 1_000_000_000_000;
        (bytes as u64).max(1_000)
    }

    /// What the timer has done by now.
    fn advance(&mut self, rules: &QcnRules, now: Time) {
        while self.stage_due <= now && self.stage_due != NEVER {
            self.by_time = self.by_time.saturating_add(1);
            self.stage_due += rules.stage_timer >> u32::from(self.is_hyper(rules));
            self.increase(rules);
        }
    }

    /// Both counters are beyond fast recovery: stages are half as long.
    fn is_hyper(&self, rules: &QcnRules) -> bool {
        self.by_volume.min(self.by_time) >= rules.stages
    }

    fn increase(&mut self, rules: &QcnRules) {
        let first = self.by_volume == 1 || self.by_time == 1;
        if first && self.target > self.rate.saturating_mul(10) {
            self.target /= 8;
        }
        if self.is_hyper(rules) {
            let i = self.by_volume.min(self.by_time) - rules.stages + 1;
            let step = rules.rhai.saturating_mul(i.into());
            self.target = self.target.saturating_add(step).min(rules.line);
        } else if self.by_volume.max(self.by_time) >= rules.stages {
            self.target = (self.target + rules.rai).min(rules.line);
        }
        // Half-way, rounded up: it arrives.
        self.rate = (self.target + self.rate).div_ceil(2);
        if self.rate >= rules.line {
            *self = Self::new(rules);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::cc::tests::{packet, queue_view, switches};
    use crate::fabric::packet::NONE;
    use proptest::prelude::*;

    const US: Time = 1_000 * NS;
    const MS: Time = 1_000 * US;
    /// 10 Gb/s.
    const LINE: u64 = 1_250_000_000;
    /// 5 Mb/s and 50 Mb/s.
    const RAI: u64 = 625_000;
    const RHAI: u64 = 6_250_000;

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
            let mut flow = QcnFlow::new(&rules);
            if let Some(feedback) = feedback {
                flow.on_notification(&rules, 0, feedback);
                let exact = LINE * (128 - u64::from(feedback)) / 128;
                assert_eq!(flow.rate, exact);
            }
            assert_eq!((flow.rate * 1_000 + LINE / 2) / LINE, percent);
        }
    }

    /// The longer the queue, the sooner the next sample.
    #[test]
    fn samples_come_sooner_with_more_feedback() {
        let rules = rules();
        for (feedback, interval) in [
            (1_u8, 150_000),
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
            let queued = 26_000 + (130_000 * u32::from(feedback)).div_ceil(63);
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

    /// Within 15 % each way of the interval.
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

    /// Q4, and what the stages after fast recovery add: by time alone.
    #[test]
    fn stages_are_exact() {
        let rules = rules();
        let mut flow = QcnFlow::new(&rules);
        flow.on_notification(&rules, 0, 63);
        // Another one before any stage: the target stays.
        flow.on_notification(&rules, 0, 63);
        assert_eq!(flow.target, LINE);
        // Not the link's rate, which is no target that could rise.
        flow.target = LINE / 2;
        let (start, target) = (flow.rate, flow.target);
        let mut rate = start;
        for n in 1..=4 {
            rate = (rate + target).div_ceil(2);
            assert_eq!(flow.on_send(&rules, n * 15 * MS, 0), Some(rate));
        }
        // The fifth is already an active one.
        assert_eq!(flow.target, target);
        let rate = (rate + target + RAI).div_ceil(2);
        assert_eq!(flow.on_send(&rules, 5 * 15 * MS, 0), Some(rate));
        assert!(rate >= target - (target - start) / 32);
        flow.on_send(&rules, 6 * 15 * MS, 0);
        assert_eq!(flow.target, target + 2 * RAI);
    }

    /// i RHAI when both are beyond, and half as long stages.
    #[test]
    fn hyper_active_stages_are_half_as_long() {
        let rules = rules();
        let mut flow = QcnFlow::new(&rules);
        flow.on_notification(&rules, 0, 63);
        flow.target = LINE / 2;
        // Five by volume, the fifth active.
        assert!(flow.on_send(&rules, 0, 749_999).is_some());
        assert_eq!((flow.by_volume, flow.target), (4, LINE / 2));
        flow.on_send(&rules, 0, 1);
        assert_eq!((flow.by_volume, flow.target), (5, LINE / 2 + RAI));
        // Five by time: four active ones, then RHAI.
        flow.on_send(&rules, 5 * 15 * MS, 0);
        let target = LINE / 2 + 5 * RAI + RHAI;
        assert_eq!((flow.by_time, flow.target), (5, target));
        // The sixth by time after 7.5 ms leaves i at 1; the sixth by volume after 75 kB makes it 2.
        flow.on_send(&rules, 5 * 15 * MS + 7_500 * US, 0);
        assert_eq!((flow.by_time, flow.target), (6, target + RHAI));
        flow.on_send(&rules, 5 * 15 * MS + 7_500 * US, 75_000);
        assert_eq!(flow.target, target + 3 * RHAI);
    }

    /// With a time for them, stages by volume come as often at each rate.
    #[test]
    fn stages_by_volume_may_last_as_long_at_each_rate() {
        let rules = QcnRules {
            volume_time: 240 * US,
            ..rules()
        };
        for cuts in [1, 2, 5] {
            let mut flow = QcnFlow::new(&rules);
            (0..cuts).for_each(|_| flow.on_notification(&rules, 0, 63));
            let bytes = flow.rate * 240 / 1_000_000;
            flow.on_send(&rules, 0, bytes as u32 - 1);
            assert_eq!(flow.by_volume, 0);
            flow.on_send(&rules, 0, 1);
            assert_eq!(flow.by_volume, 1);
        }
    }

    #[test]
    fn a_target_far_away_is_brought_nearer_once() {
        let rules = rules();
        let mut flow = QcnFlow::new(&rules);
        for _ in 0..5 {
            flow.on_notification(&rules, 0, 63);
        }
        let rate = flow.rate;
        assert!(flow.target == LINE && rate < LINE / 10);
        flow.on_send(&rules, 15 * MS, 0);
        assert_eq!(flow.target, LINE / 8);
        assert_eq!(flow.rate, (rate + LINE / 8).div_ceil(2));
        flow.target = LINE;
        flow.on_send(&rules, 30 * MS, 0);
        assert_eq!(flow.target, LINE);
    }

    #[test]
    fn at_the_links_rate_there_is_no_limiter() {
        let rules = rules();
        let mut flow = QcnFlow::new(&rules);
        assert_eq!(flow.on_send(&rules, 0, 1_000_000_000), None);
        flow.on_notification(&rules, 0, 20);
        assert!(flow.on_send(&rules, 1, 0).is_some());
        assert_eq!(flow.on_send(&rules, 1_000 * MS, 0), None);
        assert_eq!(flow.stage_due, NEVER);
        // The next one restarts.
        flow.on_notification(&rules, 2_000 * MS, 20);
        assert_eq!((flow.target, flow.by_time), (LINE, 0));
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
        let mut switches = switches(&settings);
        // So long that it is sampled in an eighth of that, a packet at a time, from the first sample on.
        let [first, other] = [0, 1].map(|class| queue_view(0, 1, class, 2, 900_000));
        let mut told = |place: QueueView| {
            let notice = switches.on_enqueue(&place, &mut packet(NONE), true);
            notice.map(|notice| (notice.point, notice.feedback))
        };
        assert_eq!([first, first].map(&mut told), [None; 2]);
        assert_eq!([other, other].map(&mut told), [None; 2]);
        assert_eq!(told(first), Some((first.queue, 63)));
        assert_eq!(told(other), Some((other.queue, 63)));
    }

    proptest! {
        /// Q1: only a queue that is too long or grows is answered, and always with a decrease. Q2: of at most
        /// 63/128. Else a rate never falls, and keeps its bounds.
        #[test]
        fn feedback_is_never_positive(
            steps in prop::collection::vec((0u64..20_000, 0u32..200_000, 0u32..400_000), 1..300)
        ) {
            let rules = rules();
            let mut point = CongestionPoint::new(&rules);
            let mut flow = QcnFlow::new(&rules);
            let mut now = 0;
            for (us, bytes, queued) in steps {
                now += us * US;
                let before = flow.rate;
                flow.on_send(&rules, now, bytes);
                prop_assert!(flow.rate >= before);
                let (before, old) = (flow.rate, point.before);
                if let Some(feedback) = point.arrives(&rules, bytes, queued, || 0) {
                    prop_assert!(queued > 26_000 || queued > old);
                    prop_assert!(feedback <= 63);
                    flow.on_notification(&rules, now, feedback);
                    prop_assert!(flow.rate <= before);
                    prop_assert!(flow.rate * 128 >= before * 65 || flow.rate == rules.min_rate);
                }
                prop_assert!(flow.rate <= flow.target && flow.target <= rules.line);
                prop_assert!(flow.rate >= rules.min_rate);
            }
        }
    }
}
