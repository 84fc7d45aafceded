//! TIMELY: a sender adjusts its rate to round-trip times, following the authors' published code (V5 in
//! `docs/sources.md`); and TIMELY+TCD.
//!
//! Uses floating point, as it models a host's engine and not a switch. Only `+ - * /` and comparisons are used, which
//! IEEE 754 defines exactly, so results are bit-identical on all machines.

use ecn_units::{DurationText, Fraction, Rate};
use serde::{Deserialize, Serialize};

use super::{Acknowledged, Either, Endpoints, Mark, Network, Scheme, Sender, Sending, tcd};
use crate::bounds::{LONGEST_DELAY, ModelError, in_range};
use crate::engine::{NS, Time};
use crate::fabric::auto::Auto;

/// TIMELY. Switches are not involved, except with TCD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timely {
    /// With TCD.
    pub tcd: bool,
}

impl Scheme for Timely {
    type Sender = TimelyRules;
    type Switch = Either<(), tcd::Ports>;

    fn is_in_switches(&self) -> bool {
        self.tcd
    }

    fn sender(&self, network: &Network) -> Result<TimelyRules, ModelError> {
        let params = &network.schemes.timely;
        params.rules(network.line, network.idle_rtt, self.tcd)
    }

    fn switch(&self, network: &Network) -> Result<Self::Switch, ModelError> {
        if !self.tcd {
            return Ok(Either::Plain(()));
        }
        // TIMELY has no threshold of its own.
        let (kmin, _) = network
            .schemes
            .dcqcn
            .thresholds(network.line, network.limit);
        tcd::Ports::new(network, kmin, None).map(Either::Other)
    }
}

/// TIMELY's parameters, with the source of each default in `docs/sources.md`: V5's recommendations for a sender that
/// paces packet by packet, as here.
///
/// The paper's are `ewma` 7/8 (from memory), `t_low` 50us, `t_high` 500us, for one completion per 16 to 64 kB.
#[derive(Clone, Debug, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimelyParameters {
    /// Weight of a new difference of round-trip times in their moving average (V5).
    pub ewma: Fraction,
    /// Decrease factor (V5, V7).
    pub beta: Fraction,
    /// Additive increase per `min_rtt`. `auto`: 1/1000 of the link's rate (V5, V7: 10 Mb/s at 10 Gb/s).
    pub delta: Auto<Rate>,
    /// T_low: below this round-trip time the rate always rises (V5: 0 with per-packet pacing).
    pub t_low: DurationText,
    /// T_high: above this round-trip time the rate always falls. `auto`: the largest of 1 ms (V5), `t_low` and five
    /// round trips of an idle network, as otherwise the rate would keep falling on slow or long links.
    pub t_high: Auto<DurationText>,
    /// Number of consecutive falling round-trip times from which on the increase is `hai_factor` times as large (V5,
    /// V7).
    #[schemars(extend("unit" = "round trips"))]
    pub hai_after: u32,
    /// Factor of the increase after `hai_after` falling round-trip times (V5, V7).
    pub hai_factor: u32,
    /// Round-trip time that normalises gradients. `auto`: that of the longest path in an idle network (V5: fixed
    /// network minimum).
    pub min_rtt: Auto<DurationText>,
    /// Lowest rate. `auto`: 1/1000 of the link's (V2 has 100 Mb/s at 100 Gb/s for DCQCN; V5 names none).
    pub min_rate: Auto<Rate>,
}

impl Default for TimelyParameters {
    fn default() -> Self {
        Self {
            ewma: Fraction::ratio(1, 50),
            beta: Fraction::ratio(4, 5),
            delta: Auto::Auto,
            t_low: DurationText::from_nanos(0),
            t_high: Auto::Auto,
            hai_after: 5,
            hai_factor: 5,
            min_rtt: Auto::Auto,
            min_rate: Auto::Auto,
        }
    }
}

/// The parameters in computational form: bytes per second and picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct TimelyRules {
    line: f64,
    ewma: f64,
    beta: f64,
    delta: f64,
    t_low: Time,
    t_high: Time,
    hai_after: u32,
    hai_factor: f64,
    min_rtt: f64,
    min_rate: f64,
    tcd: bool,
}

impl TimelyParameters {
    /// Checks constraints that the types do not express. `idle_rtt`: of the longest path in an idle network, ps. `tcd`:
    /// TIMELY+TCD.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn rules(&self, line: Rate, idle_rtt: Time, tcd: bool) -> Result<TimelyRules, ModelError> {
        let one = Fraction::ratio(1, 1);
        for (key, value) in [("ewma", self.ewma), ("beta", self.beta)] {
            if value.numerator() == 0 || value > one {
                return Err(ModelError::new(key, value, "must be above 0 and at most 1"));
            }
        }
        for (key, value) in [("delta", self.delta), ("min_rate", self.min_rate)] {
            if value.or(line) > line {
                let reason = format!("must be at most the links' rate, {line}");
                return Err(ModelError::new(key, value, reason));
            }
        }
        if self.t_low > LONGEST_DELAY {
            let reason = "must be at most 1s";
            return Err(ModelError::new("t_low", self.t_low, reason));
        }
        let t_low = self.t_low.as_nanos() * NS;
        let t_high = match self.t_high {
            Auto::Auto => (5 * idle_rtt).max(1_000_000 * NS).max(t_low),
            Auto::Is(time) if time <= LONGEST_DELAY => time.as_nanos() * NS,
            Auto::Is(time) => return Err(ModelError::new("t_high", time, "must be at most 1s")),
        };
        if t_low > t_high {
            let t_high = DurationText::from_nanos(t_high / NS);
            let reason = format!("must be at most t_high, {t_high}");
            return Err(ModelError::new("t_low", self.t_low, reason));
        }
        in_range("hai_factor", self.hai_factor, 1..=1_000)?;
        let min_rtt = match self.min_rtt {
            Auto::Auto => idle_rtt.max(1),
            Auto::Is(rtt) if !rtt.is_zero() && rtt <= LONGEST_DELAY => rtt.as_nanos() * NS,
            Auto::Is(rtt) => {
                return Err(ModelError::new(
                    "min_rtt",
                    rtt,
                    "must be between 1ns and 1s",
                ));
            }
        };
        let line = line.bytes_per_s() as f64;
        let share = |rate: Auto<Rate>| match rate {
            Auto::Auto => line / 1_000.0,
            Auto::Is(rate) => rate.bytes_per_s() as f64,
        };
        Ok(TimelyRules {
            line,
            ewma: self.ewma.as_f64(),
            beta: self.beta.as_f64(),
            delta: share(self.delta),
            t_low,
            t_high,
            hai_after: self.hai_after,
            hai_factor: self.hai_factor.into(),
            min_rtt: min_rtt as f64,
            min_rate: share(self.min_rate),
            tcd,
        })
    }
}

impl Sender for TimelyRules {
    type Flow = TimelyFlow;

    fn on_start(&mut self, _: Endpoints) -> TimelyFlow {
        TimelyFlow::new(self)
    }

    fn on_send(&mut self, flow: &mut TimelyFlow, packet: &Sending) -> Option<Time> {
        Some(packet.time_at(flow.on_send(self)?))
    }

    fn on_ack(&mut self, flow: &mut TimelyFlow, ack: &Acknowledged) -> Option<Time> {
        flow.acknowledged(self, ack.now, ack.rtt, ack.mark);
        None
    }
}

/// A sender's state of a flow.
#[derive(Clone, Copy, Debug)]
pub struct TimelyFlow {
    /// Rate, bytes per second.
    rate: f64,
    /// Average difference of successive round-trip times, ps.
    difference: f64,
    /// The last round-trip time, ps; 0 before the first.
    rtt: Time,
    /// When the last ACK arrived.
    last: Time,
    /// Number of consecutive negative differences.
    falling: u32,
}

impl TimelyFlow {
    /// At the link's rate.
    pub const fn new(rules: &TimelyRules) -> Self {
        Self::at(rules.line)
    }

    /// At a rate, bytes per second.
    pub const fn at(rate: f64) -> Self {
        Self {
            rate,
            difference: 0.0,
            rtt: 0,
            last: 0,
            falling: 0,
        }
    }

    /// The rate for the next packet, bytes per second, if it is below the link's.
    pub fn on_send(&self, rules: &TimelyRules) -> Option<u64> {
        (self.rate < rules.line).then_some(self.rate as u64)
    }

    /// Handles an ACK, `rtt` after its packet was sent.
    ///
    /// With TCD the packet's mark takes precedence (R): a flow that passed undetermined ports only holds its rate
    /// regardless of the round-trip time; one that passed a congested port decreases regardless of the gradient, by
    /// `beta` per `min_rtt` of such ACKs.
    pub fn acknowledged(&mut self, rules: &TimelyRules, now: Time, rtt: Time, mark: Mark) {
        if self.rtt == 0 {
            self.rtt = rtt;
        }
        let difference = rtt as f64 - self.rtt as f64;
        self.falling = if rtt < self.rtt {
            self.falling.saturating_add(1)
        } else {
            0
        };
        self.difference = (1.0 - rules.ewma) * self.difference + rules.ewma * difference;
        let gradient = self.difference / rules.min_rtt;
        let share = ((now - self.last) as f64 / rules.min_rtt).min(1.0);
        (self.rtt, self.last) = (rtt, now);

        let mark = if rules.tcd { mark } else { Mark::None };
        let next = if mark == Mark::Undetermined {
            self.rate
        } else if mark == Mark::Congestion {
            self.rate * (1.0 - share * rules.beta)
        } else if rtt < rules.t_low {
            self.rate + rules.delta * share
        } else if rtt > rules.t_high {
            let above = 1.0 - rules.t_high as f64 / rtt as f64;
            self.rate * (1.0 - share * rules.beta * above)
        } else if gradient <= 0.0 {
            let hyperactive = self.falling >= rules.hai_after;
            let times = if hyperactive { rules.hai_factor } else { 1.0 };
            self.rate + times * rules.delta * share
        } else {
            self.rate * (1.0 - rules.beta * gradient)
        };
        // Not `clamp`, which panics if a bound is not a number.
        self.rate = next
            .max(self.rate / 2.0)
            .max(rules.min_rate)
            .min(rules.line);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::engine::US;
    use proptest::prelude::*;

    /// 10 Gb/s.
    const LINE: f64 = 1_250_000_000.0;
    /// `delta`: 10 Mb/s.
    const DELTA: f64 = 1_250_000.0;

    fn rules(tcd: bool) -> TimelyRules {
        let parameters = TimelyParameters {
            t_low: DurationText::from_micros(50),
            t_high: Auto::Is(DurationText::from_micros(500)),
            ..TimelyParameters::default()
        };
        let line = "10gbit".parse().unwrap();
        parameters.rules(line, 20 * US, tcd).unwrap()
    }

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 1e-9 * expected
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut TimelyParameters)| {
            let mut parameters = TimelyParameters::default();
            change(&mut parameters);
            let rules = parameters.rules("10gbit".parse().unwrap(), 20 * US, false);
            rules.unwrap_err().key
        };
        assert_eq!(refused(&|p| p.beta = "5/4".parse().unwrap()), "beta");
        assert_eq!(refused(&|p| p.ewma = "0".parse().unwrap()), "ewma");
        let rate = Auto::Is("11gbit".parse().unwrap());
        assert_eq!(refused(&|p| p.delta = rate), "delta");
        assert_eq!(refused(&|p| p.min_rate = rate), "min_rate");
        let long = DurationText::from_secs(2);
        assert_eq!(refused(&|p| p.t_high = Auto::Is(long)), "t_high");
        assert_eq!(refused(&|p| p.t_low = long), "t_low");
        assert_eq!(refused(&|p| p.min_rtt = Auto::Is(long)), "min_rtt");
        assert_eq!(refused(&|p| p.hai_factor = 0), "hai_factor");
    }

    /// M1: at a constant round-trip time, the rate increases by delta per `min_rtt`, regardless of the number of ACKs.
    #[test]
    fn a_constant_rtt_gives_delta_per_min_rtt() {
        let rules = rules(false);
        for per_rtt in [1, 2, 10] {
            let mut flow = TimelyFlow::at(LINE / 4.0);
            flow.last = 1_000 * US;
            for n in 1..=10 * per_rtt {
                let now = 1_000 * US + n * 20 * US / per_rtt;
                flow.acknowledged(&rules, now, 100 * US, Mark::None);
            }
            assert!(close(flow.rate, LINE / 4.0 + 10.0 * DELTA));
        }
    }

    /// M1: five times as much from the fifth decreasing round-trip time on, until they no longer decrease.
    #[test]
    fn hyperactive_increase_after_five_falling_rtts() {
        let rules = rules(false);
        let mut flow = TimelyFlow::at(LINE / 4.0);
        let mut rtt = 200 * US;
        flow.acknowledged(&rules, 20 * US, rtt, Mark::None);
        for n in 2..=10_u32 {
            let before = flow.rate;
            rtt -= US;
            flow.acknowledged(&rules, Time::from(n) * 20 * US, rtt, Mark::None);
            let times = if n > 5 { 5.0 } else { 1.0 };
            assert!(close(flow.rate, before + times * DELTA), "{n}");
        }
        let before = flow.rate;
        flow.acknowledged(&rules, 220 * US, rtt, Mark::None);
        assert!(close(flow.rate, before + DELTA));
    }

    /// M3: a factor of 1 - beta (1 - Thigh/rtt) per `min_rtt`; a proportional decrease for shorter intervals.
    #[test]
    fn above_t_high_it_falls_in_proportion() {
        let rules = rules(false);
        let mut flow = TimelyFlow::at(LINE);
        flow.acknowledged(&rules, 1_000 * US, 1_000 * US, Mark::None);
        assert!(close(flow.rate, LINE * 0.6));
        flow.acknowledged(&rules, 1_005 * US, 1_000 * US, Mark::None);
        assert!(close(flow.rate, LINE * 0.6 * 0.9));
        assert_eq!(flow.on_send(&rules), Some(675_000_000));
    }

    #[test]
    fn a_rising_rtt_cuts_by_its_gradient() {
        let rules = rules(false);
        let mut flow = TimelyFlow::at(LINE);
        flow.acknowledged(&rules, 20 * US, 100 * US, Mark::None);
        assert_eq!(flow.on_send(&rules), None);
        // 50 us per 20 us with weight 1/50: 0.05.
        flow.acknowledged(&rules, 40 * US, 150 * US, Mark::None);
        assert!(close(flow.rate, LINE * (1.0 - 0.8 * 0.05)));
    }

    /// TIMELY+TCD: the round-trip time rises, and the mark determines the response.
    #[test]
    fn a_mark_picks_the_branch() {
        let after = |tcd, mark| {
            let mut flow = TimelyFlow::at(LINE / 2.0);
            flow.acknowledged(&rules(tcd), 20 * US, 100 * US, Mark::Undetermined);
            flow.rate = LINE / 2.0;
            flow.acknowledged(&rules(tcd), 30 * US, 150 * US, mark);
            flow.rate / (LINE / 2.0)
        };
        let plain = 1.0 - 0.8 * 0.05;
        for mark in [Mark::None, Mark::Undetermined, Mark::Congestion] {
            assert!(close(after(false, mark), plain));
        }
        assert!(close(after(true, Mark::None), plain));
        assert!(close(after(true, Mark::Undetermined), 1.0));
        // Half a `min_rtt`: half of beta.
        assert!(close(after(true, Mark::Congestion), 0.6));
    }

    proptest! {
        /// M2, M4: no ACK more than halves the rate, and below Tlow the rate rises regardless of the gradient.
        #[test]
        fn rates_stay_in_their_bounds(
            acks in prop::collection::vec((0u64..100, 1u64..2_000, 0u8..3), 1..500),
            tcd: bool,
        ) {
            let rules = rules(tcd);
            let mut flow = TimelyFlow::new(&rules);
            let mut now = 0;
            for (later, rtt, mark) in acks {
                now += later * US;
                let before = flow.rate;
                let mark = [Mark::None, Mark::Undetermined, Mark::Congestion][usize::from(mark)];
                flow.acknowledged(&rules, now, rtt * US, mark);
                prop_assert!(flow.rate >= before / 2.0);
                prop_assert!((rules.min_rate..=rules.line).contains(&flow.rate));
                if rtt < 50 && (!tcd || mark == Mark::None) {
                    prop_assert!(flow.rate > before || later == 0 || flow.rate == rules.line);
                }
                if tcd && mark == Mark::Undetermined {
                    prop_assert!(flow.rate == before);
                }
            }
        }
    }
}
