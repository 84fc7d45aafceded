//! DCQCN: congestion point, notification point and reaction point; with TCD, port states replace the congestion point.
//!
//! Timers are not events: their effects are computed when the next packet is sent, which is when they matter.

use ecn_units::{DurationText, Fraction, Rate, Size};
use serde::{Deserialize, Serialize};

use super::{
    Cnm, Either, Endpoints, Hooks, LastNotification, Mark, Network, QueueView, Random, Scheme,
    Sender, Sending, Switch, tcd,
};
use crate::bounds::{LONGEST_DELAY, ModelError, in_range};
use crate::engine::{NS, Time};
use crate::fabric::auto::Auto;
use crate::fabric::packet::Packet;
pub use crate::notifications::qcn::ClampTarget;

/// DCQCN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dcqcn {
    /// With TCD.
    pub tcd: bool,
}

impl Scheme for Dcqcn {
    type Sender = DcqcnRules;
    type Switch = Either<CongestionPoint, tcd::Ports>;

    fn sender(&self, network: &Network) -> Result<DcqcnRules, ModelError> {
        network.schemes.dcqcn.rules(network.line)
    }

    fn switch(&self, network: &Network) -> Result<Self::Switch, ModelError> {
        let params = &network.schemes.dcqcn;
        let red = params.red(network).map_err(|error| error.within("dcqcn"))?;
        Ok(if self.tcd {
            Either::Other(tcd::Ports::new(network, red.kmin.into(), None)?)
        } else {
            let random = Random::new(network);
            Either::Plain(CongestionPoint { red, random })
        })
    }
}

/// DCQCN's parameters, with the source of each default in `docs/sources.md`.
///
/// Thresholds, timers and increases are those of V2's runs, scaled with the link's rate; the rules that use them, and
/// `cnp_gap`, are those of V1, V3 and the paper, as V2 has another reaction point (no gap, alpha updated every
/// `alpha_timer`). The defaults are therefore a mix: between two notifications alpha falls by a factor of (1 - g)^50,
/// and settles near 0.02, where a notification reduces the rate by 1 %. A 20-to-1 incast of 20 MB flows at 100 Gb/s
/// then ends after 34.1 to 34.9 ms, with many pauses. With sets from one source it ends later, with a tenth of the
/// pauses: after 39.2 to 41.0 ms with the paper's for 40 Gb/s (V3, V7: `rate_timer` and `alpha_timer` 55us,
/// `byte_counter` 10MB, `fast_steps` 5, `rai` 40mbit, `rhai` 400mbit, `min_rate` 100mbit), 36.1 to 37.1 ms with its
/// increases and lowest rate scaled with the link's rate, and 42.2 to 48.3 ms with those of NICs (V4: `cnp_gap` 4us).
#[derive(Clone, Debug, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DcqcnParameters {
    /// Kmin: queue length up to which nothing is marked. `auto`: 32 us at the link's rate, 400 kB at 100 Gb/s (V2, 100
    /// kB x rate / 25 Gb/s), but at most an eighth of the queue at which ports pause others or drop, if that is known
    /// in advance, so that marks precede pauses. With dynamic thresholds it is not: where ports of switches with few
    /// ports pause others at less, a run prints a note.
    pub kmin: Auto<Size>,
    /// Kmax: queue length above which everything is marked. `auto`: 128 us at the link's rate, 1.6 MB at 100 Gb/s (V2),
    /// but at most half of the queue at which ports pause others or drop.
    pub kmax: Auto<Size>,
    /// Pmax: marking probability at `kmax` (V2).
    pub pmax: Fraction,
    /// Weight of a notification in alpha (V1, V2, V7).
    pub g: Fraction,
    /// N: minimum time between two notifications of a flow (V1, V3).
    pub cnp_gap: DurationText,
    /// Time without a notification after which alpha decays (V2, V4).
    pub alpha_timer: DurationText,
    /// Period of the increases by time (V2, V4).
    pub rate_timer: DurationText,
    /// B: bytes between increases by volume; by default these are rare (V1; V2 has none).
    pub byte_counter: Size,
    /// F: number of increases of each kind in fast recovery, towards the rate before the last decrease (V2, V4). Step F
    /// is included (`<= F`, V3), so that there are exactly F (D3).
    #[schemars(extend("unit" = "increases"))]
    pub fast_steps: u32,
    /// Additive increase. `auto`: 1/5000 of the link's rate (V2, 5 Mb/s x rate / 25 Gb/s).
    pub rai: Auto<Rate>,
    /// Hyper increase. `auto`: 1/500 (V2).
    pub rhai: Auto<Rate>,
    /// Lowest rate. `auto`: 1/100 (V2, 1 Gb/s at 100 Gb/s).
    pub min_rate: Auto<Rate>,
    /// Whether a notification lowers the target rate RT to the current rate RC. With `on`, the decreases of a burst of
    /// notifications are recovered by additive increase only.
    pub clamp_target: ClampTarget,
}

impl Default for DcqcnParameters {
    fn default() -> Self {
        Self {
            kmin: Auto::Auto,
            kmax: Auto::Auto,
            pmax: Fraction::ratio(1, 5),
            g: Fraction::ratio(1, 256),
            cnp_gap: DurationText::from_micros(50),
            alpha_timer: DurationText::from_micros(1),
            rate_timer: DurationText::from_micros(300),
            byte_counter: Size::from_bytes(300_000_000),
            fast_steps: 1,
            rai: Auto::Auto,
            rhai: Auto::Auto,
            min_rate: Auto::Auto,
            clamp_target: ClampTarget::Off,
        }
    }
}

/// Alpha of 1.
const ONE: u64 = 1 << 30;

/// A timer that does not run.
const NEVER: Time = Time::MAX;

/// The parameters in computational form: bytes per second, bytes and picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct DcqcnRules {
    line: u64,
    g: (u64, u64),
    cnp_gap: Time,
    alpha_timer: Time,
    rate_timer: Time,
    byte_counter: u64,
    fast_steps: u32,
    rai: u64,
    rhai: u64,
    min_rate: u64,
    clamp_target: bool,
}

impl DcqcnParameters {
    /// Marking thresholds, bytes, for links of this rate and ports that pause others at `xoff`.
    pub fn thresholds(&self, line: Rate, xoff: Option<u64>) -> (u64, u64) {
        let at = |us: u128, share: u64| {
            let usual = (u128::from(line.bytes_per_s()) * us / 1_000_000) as u64;
            Size::from_bytes(xoff.map_or(usual, |xoff| usual.min(xoff / share)))
        };
        (
            self.kmin.or(at(32, 8)).bytes(),
            self.kmax.or(at(128, 2)).bytes(),
        )
    }

    /// The marking of a network's switches.
    ///
    /// # Errors
    ///
    /// A threshold, which may be derived from the network, is out of its range; by name.
    fn red(&self, network: &Network) -> Result<Red, ModelError> {
        let (kmin, kmax) = self.thresholds(network.line, network.limit);
        if kmin <= kmax && kmax <= u64::from(u32::MAX) {
            return Ok(Red {
                kmin: kmin as u32,
                kmax: kmax as u32,
                pmax: (u64::from(self.pmax.numerator()) << 32) / u64::from(self.pmax.denominator()),
            });
        }
        let (kmin, kmax) = (Size::from_bytes(kmin), Size::from_bytes(kmax));
        if self.kmax == Auto::Auto {
            let reason = format!("must be at most kmax, {kmax} here unless it is set");
            return Err(ModelError::new("kmin", kmin, reason));
        }
        let reason = format!("must be between kmin, {kmin} here, and 4294967295B");
        Err(ModelError::new("kmax", kmax, reason))
    }

    /// Checks constraints that the types do not express.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn rules(&self, line: Rate) -> Result<DcqcnRules, ModelError> {
        for (key, value) in [("pmax", self.pmax), ("g", self.g)] {
            in_range(key, value, Fraction::ratio(0, 1)..=Fraction::ratio(1, 1))?;
        }
        for (key, value) in [
            ("alpha_timer", self.alpha_timer),
            ("rate_timer", self.rate_timer),
        ] {
            in_range(key, value, DurationText::from_micros(1)..=LONGEST_DELAY)?;
        }
        if self.cnp_gap > LONGEST_DELAY {
            let reason = "must be at most 1s";
            return Err(ModelError::new("cnp_gap", self.cnp_gap, reason));
        }
        if self.byte_counter.bytes() < 10_000 {
            let reason = "must be at least 10kB";
            return Err(ModelError::new("byte_counter", self.byte_counter, reason));
        }
        in_range("fast_steps", self.fast_steps, 0..=1_000)?;
        let share = |rate: Auto<Rate>, of: u64| match rate {
            Auto::Auto => (line.bytes_per_s() / of).max(1),
            Auto::Is(rate) => rate.bytes_per_s(),
        };
        let min_rate = share(self.min_rate, 100);
        if min_rate > line.bytes_per_s() {
            let reason = format!("must be at most the links' rate, {line}");
            return Err(ModelError::new("min_rate", self.min_rate, reason));
        }
        Ok(DcqcnRules {
            line: line.bytes_per_s(),
            g: (self.g.numerator().into(), self.g.denominator().into()),
            cnp_gap: self.cnp_gap.as_nanos() * NS,
            alpha_timer: self.alpha_timer.as_nanos() * NS,
            rate_timer: self.rate_timer.as_nanos() * NS,
            byte_counter: self.byte_counter.bytes(),
            fast_steps: self.fast_steps,
            // At most the rate of a link, so that sums are far from overflow.
            rai: share(self.rai, 5_000).min(line.bytes_per_s()),
            rhai: share(self.rhai, 500).min(line.bytes_per_s()),
            min_rate,
            clamp_target: self.clamp_target == ClampTarget::On,
        })
    }
}

/// Random early detection on the instantaneous queue (V1, V2): no marks up to `kmin`, a probability that rises linearly
/// to `pmax` at `kmax`, and all packets above.
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
    /// Whether to mark a packet that arrives at a queue of `queued` bytes; `random`: 32 random bits.
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

/// Switches (CP), which mark by queue length.
#[derive(Debug)]
pub struct CongestionPoint {
    red: Red,
    random: Random,
}

impl Switch for CongestionPoint {
    fn hooks(&self) -> Hooks {
        Hooks::ENQUEUE_QUEUED
    }

    fn on_enqueue(&mut self, at: &QueueView, packet: &mut Packet, _: bool) -> Option<Cnm> {
        let random = || self.random.draw(at.switch);
        if packet.mark != Mark::Congestion && self.red.marks(at.queued, random) {
            packet.mark = Mark::Congestion;
        }
        None
    }
}

impl Sender for DcqcnRules {
    type Flow = DcqcnFlow;

    fn on_start(&mut self, _: Endpoints) -> DcqcnFlow {
        DcqcnFlow::new(self)
    }

    fn on_send(&mut self, flow: &mut DcqcnFlow, packet: &Sending) -> Option<Time> {
        let rate = flow.on_send(self, packet.now, packet.bytes)?;
        Some(packet.time_at(rate))
    }

    /// Receiver (NP): answers the first marked packet at once, and later ones no earlier than `cnp_gap` after the last
    /// notification. A notification of an undetermined port (TCD) does not delay one of a congested port.
    fn on_mark(&self, last: &mut LastNotification, now: Time, mark: Mark) -> bool {
        let answers = mark > Mark::None && (now >= last.until || mark > last.mark);
        if answers {
            let until = now + self.cnp_gap;
            *last = LastNotification { until, mark };
        }
        answers
    }

    fn on_notification(&mut self, flow: &mut DcqcnFlow, now: Time, mark: Mark) {
        flow.on_marked(self, now, mark);
    }
}

/// A sender's state of a flow.
#[derive(Clone, Copy, Debug)]
pub struct DcqcnFlow {
    /// Current rate RC, bytes per second.
    rate: u64,
    /// Target rate RT.
    target: u64,
    /// Alpha, in 2^-30.
    alpha: u64,
    /// Bytes since the last increase by volume.
    bytes: u64,
    alpha_due: Time,
    rate_due: Time,
    /// BC: increases by volume since the last decrease.
    by_volume: u32,
    /// T: increases by time.
    by_time: u32,
}

impl DcqcnFlow {
    /// At the link's rate, with alpha 1. No timer runs before the first notification, as there is nothing to recover.
    pub const fn new(rules: &DcqcnRules) -> Self {
        Self {
            rate: rules.line,
            target: rules.line,
            alpha: ONE,
            bytes: 0,
            alpha_due: NEVER,
            rate_due: NEVER,
            by_volume: 0,
            by_time: 0,
        }
    }

    /// Sender (RP): decreases the rate by the current alpha, then raises alpha (V3's order).
    pub fn on_notification(&mut self, rules: &DcqcnRules, now: Time) {
        self.advance(rules, now);
        if rules.clamp_target || self.by_time > 0 || self.by_volume > 0 {
            self.target = self.rate;
        }
        let cut = u128::from(self.rate) * u128::from(self.alpha) / u128::from(2 * ONE);
        self.rate = (self.rate - cut as u64).max(rules.min_rate);
        self.alpha += (ONE - self.alpha) * rules.g.0 / rules.g.1;
        (self.by_volume, self.by_time, self.bytes) = (0, 0, 0);
        self.alpha_due = now + rules.alpha_timer;
        self.rate_due = now + rules.rate_timer;
    }

    /// [`DcqcnFlow::on_notification`] with TCD's marks. If only undetermined ports were passed, the flow holds its rate
    /// until `rate_timer` or `byte_counter` elapse without another notification, and alpha is not raised (R).
    pub fn on_marked(&mut self, rules: &DcqcnRules, now: Time, mark: Mark) {
        match mark {
            Mark::None => {}
            Mark::Congestion => self.on_notification(rules, now),
            Mark::Undetermined => {
                self.advance(rules, now);
                // At the link's rate there is no increase to hold back.
                if self.rate_due != NEVER {
                    self.rate_due = now + rules.rate_timer;
                    self.bytes = 0;
                }
            }
        }
    }

    /// Sender: the rate after this packet, if it is below the link's.
    pub fn on_send(&mut self, rules: &DcqcnRules, now: Time, bytes: u32) -> Option<u64> {
        if self.rate_due == NEVER {
            return None;
        }
        self.advance(rules, now);
        self.bytes += u64::from(bytes);
        while self.bytes >= rules.byte_counter {
            self.bytes -= rules.byte_counter;
            self.by_volume = self.by_volume.saturating_add(1);
            self.increase(rules);
        }
        (self.rate < rules.line).then_some(self.rate)
    }

    /// Its target rate RT, bytes per second.
    pub const fn target(&self) -> u64 {
        self.target
    }

    /// Applies all timers that have expired by `now`.
    fn advance(&mut self, rules: &DcqcnRules, now: Time) {
        loop {
            if self.alpha_due.min(self.rate_due) > now {
                return;
            }
            if self.alpha_due <= self.rate_due {
                self.alpha -= self.alpha * rules.g.0 / rules.g.1;
                self.alpha_due += rules.alpha_timer;
            } else {
                self.by_time = self.by_time.saturating_add(1);
                self.rate_due += rules.rate_timer;
                self.increase(rules);
            }
        }
    }

    fn increase(&mut self, rules: &DcqcnRules) {
        let fewest = self.by_volume.min(self.by_time);
        if self.by_volume.max(self.by_time) > rules.fast_steps {
            let step = match fewest.saturating_sub(rules.fast_steps) {
                0 => rules.rai,
                hyper => rules.rhai.saturating_mul(hyper.into()),
            };
            self.target = self.target.saturating_add(step).min(rules.line);
        }
        // Half-way, rounded up so that the target is reached.
        self.rate = (self.target + self.rate).div_ceil(2);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::engine::US;
    use proptest::prelude::*;
    use rand::{Rng as _, SeedableRng as _};
    use rand_pcg::Pcg64Mcg;

    /// The paper's parameters, for 40 Gb/s.
    fn rules(line: &str) -> DcqcnRules {
        let mbit = |mbit: u64| Auto::Is(Rate::from_bits_per_s(mbit * 1_000_000).unwrap());
        let paper = DcqcnParameters {
            alpha_timer: DurationText::from_micros(55),
            rate_timer: DurationText::from_micros(55),
            byte_counter: Size::from_bytes(10_000_000),
            fast_steps: 5,
            rai: mbit(40),
            rhai: mbit(400),
            min_rate: mbit(100),
            ..DcqcnParameters::default()
        };
        paper.rules(line.parse().unwrap()).unwrap()
    }

    /// D2: at most one notification in 50 us, regardless of arrivals.
    #[test]
    fn notifications_keep_their_distance() {
        let rules = rules("40gbit");
        let mut last = LastNotification::default();
        let sent: Vec<Time> = (0..100_000)
            .map(|n| n * 217 * NS)
            .filter(|now| rules.on_mark(&mut last, *now, Mark::Congestion))
            .collect();
        assert_eq!(sent[0], 0);
        assert!(sent.windows(2).all(|pair| pair[1] - pair[0] >= 50 * US));
        // And not much less often: later by at most one packet time.
        assert!(
            sent.windows(2)
                .all(|pair| pair[1] - pair[0] < 50 * US + 217 * NS)
        );
    }

    /// D3: half of 40 Gb/s, then the five steps of fast recovery.
    #[test]
    fn fast_recovery_is_exact() {
        let rules = rules("40gbit");
        let mut flow = DcqcnFlow::new(&rules);
        flow.on_notification(&rules, 0);
        assert_eq!(flow.rate * 8, 20_000_000_000);
        for (step, mbit) in [30_000, 35_000, 37_500, 38_750, 39_375].iter().enumerate() {
            let now = (step as Time + 1) * 55 * US;
            assert_eq!(flow.on_send(&rules, now, 0), Some(mbit * 125_000));
        }
        // In recovery to a target below the link's rate, the sixth step adds RAI to it.
        let rules = DcqcnRules {
            clamp_target: true,
            ..rules
        };
        flow.on_notification(&rules, 1_000 * US);
        flow.on_notification(&rules, 1_000 * US);
        let target = flow.target;
        flow.advance(&rules, 1_000 * US + 5 * 55 * US);
        assert_eq!(flow.target, target);
        flow.advance(&rules, 1_000 * US + 6 * 55 * US);
        assert_eq!(flow.target, target + 5_000_000);
    }

    /// Hyper increase needs both counters beyond F.
    #[test]
    fn hyper_increase_needs_time_and_volume() {
        let rules = DcqcnRules {
            clamp_target: true,
            ..rules("100gbit")
        };
        let mut flow = DcqcnFlow::new(&rules);
        flow.on_notification(&rules, 0);
        flow.on_notification(&rules, 0);
        let target = flow.target;
        // Six increases by volume, at time 0: the sixth is additive.
        flow.on_send(&rules, 0, 60_000_000);
        assert_eq!(flow.target, target + 5_000_000);
        // Six by time: five additive ones, because volume is already beyond F, and a hyper increase.
        flow.on_send(&rules, 6 * 55 * US, 0);
        assert_eq!(flow.target, target + 6 * 5_000_000 + 50_000_000);
    }

    /// D4: alpha after n periods without notification is (255/256)^n.
    #[test]
    fn alpha_decays() {
        let rules = rules("40gbit");
        let mut flow = DcqcnFlow::new(&rules);
        flow.on_notification(&rules, 0);
        for n in 1..=2_000 {
            flow.advance(&rules, n * 55 * US);
            let expected = (255.0_f64 / 256.0).powi(n as i32);
            let alpha = flow.alpha as f64 / ONE as f64;
            assert!((alpha - expected).abs() < 1e-6, "{n}: {alpha} {expected}");
        }
        // One notification per period raises it to 1 again.
        (0..10_000).for_each(|_| flow.on_notification(&rules, 2_000 * 55 * US));
        assert!(ONE - flow.alpha < 256);
        assert_eq!(flow.rate, rules.min_rate);
    }

    /// Undetermined ports only: neither a decrease nor an increase, and alpha decays.
    #[test]
    fn an_undetermined_flow_holds_its_rate() {
        let rules = rules("40gbit");
        let mut flow = DcqcnFlow::new(&rules);
        flow.on_marked(&rules, 0, Mark::Undetermined);
        assert_eq!(flow.on_send(&rules, 0, 0), None);
        flow.on_marked(&rules, 0, Mark::Congestion);
        let (rate, alpha) = (flow.rate, flow.alpha);
        for n in 1..=100 {
            flow.on_marked(&rules, n * 54 * US, Mark::Undetermined);
            flow.on_marked(&rules, n * 54 * US, Mark::None);
            assert_eq!(flow.on_send(&rules, n * 54 * US, 9_000_000), Some(rate));
        }
        assert!(flow.alpha < alpha);
        // One period after the last notification, it recovers.
        assert!(flow.on_send(&rules, (100 * 54 + 55) * US, 0) > Some(rate));
    }

    /// D1: no marks, then a linear increase up to Pmax, then all; within 2 %.
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
            // 2 % of the value; for small values, 4 sigma of this number of trials.
            let sigma = (expected * (1.0 - expected) / f64::from(trials)).sqrt();
            let tolerance = (0.02 * expected).max(4.0 * sigma);
            assert!((found - expected).abs() <= tolerance, "{queued}: {found}");
        }
        assert!(red.marks(400_001, || u32::MAX));
        assert!(!red.marks(100_000, || 0));
    }

    #[test]
    fn an_undetermined_port_does_not_hide_a_congested_one() {
        let rules = rules("40gbit");
        let mut last = LastNotification::default();
        let mut notifies = |us, mark| rules.on_mark(&mut last, us * US, mark);
        assert!(!notifies(0, Mark::None));
        assert!(notifies(0, Mark::Undetermined));
        assert!(!notifies(10, Mark::Undetermined));
        assert!(notifies(20, Mark::Congestion));
        assert!(!notifies(60, Mark::Congestion));
        assert!(!notifies(60, Mark::Undetermined));
        assert!(notifies(70, Mark::Undetermined));
        assert!(notifies(71, Mark::Congestion));
    }

    proptest! {
        /// D5: RC never decreases without a notification; RC <= RT <= line rate at all times.
        #[test]
        fn rates_rise_in_their_bounds(
            steps in prop::collection::vec((0u64..200, 0u32..5_000_000, prop::bool::weighted(0.1)), 1..500)
        ) {
            let rules = rules("40gbit");
            let mut flow = DcqcnFlow::new(&rules);
            let mut now = 0;
            for (us, bytes, marked) in steps {
                now += us * US;
                let before = flow.rate;
                if marked {
                    flow.on_notification(&rules, now);
                } else {
                    flow.on_send(&rules, now, bytes);
                    prop_assert!(flow.rate >= before);
                }
                prop_assert!(flow.rate <= flow.target && flow.target <= rules.line);
                prop_assert!(flow.rate >= rules.min_rate && flow.alpha <= ONE);
            }
        }
    }
}
