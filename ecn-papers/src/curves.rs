//! The three response functions: the papers' equations in floating point beside `ecn-core`'s fixed
//! point, which is what runs.

use ecn_core::fixed::{FRAC, ONE};
use ecn_core::response::{self, Function, Policy};
use ecn_sim::model::Model;

/// Rmin/Rmax: the only value that ends slide 14's curves at 2K and 65K packet times.
pub(crate) const RMIN: f64 = 1.0 / 256.0;
/// Factor of the decrease of FIMD and AIMD (slide 14).
const M: f64 = 2.0;

/// A function of the papers, with Rmin = Rmax/256 and m = 2. Rates are fractions of Rmax, times in
/// packet times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Curve {
    pub(crate) function: Function,
    policy: Policy,
}

/// The rate of an inter-packet delay.
fn rate(ipd: u64) -> f64 {
    ONE as f64 / ipd as f64
}

impl Curve {
    /// LIPD, FIMD and AIMD with the defaults of sources.
    pub(crate) fn all() -> [Self; 3] {
        let model = Model::default();
        [Function::Lipd, Function::Fimd, Function::Aimd].map(|function| Self {
            function,
            policy: model.policy(function).unwrap_or_default(),
        })
    }

    /// The lowest rate at which finc(fdec(r)) <= r is required: there fdec(r) = Rmin.
    fn least_decreasing(self) -> f64 {
        match self.function {
            Function::Lipd => RMIN / (1.0 - RMIN),
            _ => M * RMIN,
        }
    }

    /// fdec(r) by the equation.
    fn fdec(self, r: f64) -> f64 {
        let lower = match self.function {
            Function::Lipd => r / (1.0 + r),
            _ => r / M,
        };
        lower.max(RMIN)
    }

    /// finc(r) by the equation.
    fn finc(self, r: f64) -> f64 {
        let higher = match self.function {
            Function::Lipd => r / (1.0 - RMIN),
            Function::Fimd => r * M.powf(RMIN / r),
            _ => r + (M - 1.0) * RMIN * RMIN / r,
        };
        higher.min(1.0)
    }

    /// Finc(t): the rate after `t` of uninterrupted increase from Rmin.
    pub(crate) fn increase(self, t: f64) -> f64 {
        let rate = match self.function {
            Function::Lipd => RMIN / (1.0 - RMIN * RMIN * t),
            Function::Fimd => RMIN * M.powf(RMIN * t),
            _ => RMIN + (M - 1.0) * RMIN * RMIN * t,
        };
        rate.min(1.0)
    }

    /// When Finc is `r`.
    pub(crate) fn time_of(self, r: f64) -> f64 {
        match self.function {
            Function::Lipd => (1.0 / RMIN - 1.0 / r) / RMIN,
            Function::Fimd => (r / RMIN).log(M) / RMIN,
            _ => (r - RMIN) / ((M - 1.0) * RMIN * RMIN),
        }
    }

    /// Trec(r) by the equations.
    fn recovery(self, r: f64) -> f64 {
        match self.function {
            Function::Aimd => r / (M * RMIN * RMIN),
            _ => 1.0 / RMIN,
        }
    }

    /// The rate after a marked ACK, in fixed point.
    pub(crate) fn marked(self, r: f64) -> f64 {
        rate(response::marked(&self.policy, delay(r)))
    }

    /// The rate after an unmarked ACK, in fixed point.
    fn unmarked(self, r: f64) -> f64 {
        rate(response::unmarked(&self.policy, delay(r), 1))
    }

    /// Time and rate at each unmarked ACK in fixed point, from rate `r` on, an ACK per inter-packet
    /// delay; ends at Rmax, or where the rate rises no more.
    pub(crate) fn walk(self, r: f64) -> impl Iterator<Item = (f64, f64)> {
        let first = (0u64, delay(r));
        std::iter::successors(Some(first), move |&(time, ipd)| {
            // The sum of 32765 delays of up to 256 does not overflow.
            let next = response::unmarked(&self.policy, ipd, 1);
            (ipd > ONE && next < ipd).then_some((time + ipd, next))
        })
        .map(|(time, ipd)| (time as f64 / ONE as f64, rate(ipd)))
    }

    /// Trec(r), fixed point: from a mark at `r` until the rate is `r` again. The part after the last
    /// ACK below `r` is taken from Finc, on which ACKs land.
    pub(crate) fn measured_recovery(self, r: f64) -> f64 {
        self.time_to(self.marked(r), r)
    }

    /// The time from one rate to a higher one; infinite if it is never reached.
    fn time_to(self, low: f64, high: f64) -> f64 {
        let mut before = (0.0, low);
        for (time, rate) in self.walk(low) {
            if rate >= high {
                return before.0 + self.time_of(high) - self.time_of(before.1);
            }
            before = (time, rate);
        }
        f64::INFINITY
    }

    /// Rmin to Rmax in fixed point: time, and ACKs.
    pub(crate) fn full_increase(self) -> (f64, usize) {
        (self.time_to(RMIN, 1.0), self.walk(RMIN).count() - 1)
    }

    /// Largest relative difference between fixed point and equations: every ACK from Rmin to Rmax
    /// against Finc, the length of that, one step and the recovery at rates from `least_decreasing`
    /// to 1, and one step below, where the decrease ends at Rmin.
    pub(crate) fn largest_error(self) -> f64 {
        let off = |measured: f64, exact: f64| (measured / exact - 1.0).abs();
        let mut worst = off(self.full_increase().0, self.time_of(1.0));
        for (time, rate) in self.walk(RMIN) {
            worst = worst.max(off(rate, self.increase(time)));
        }
        for r in self.rates() {
            worst = worst
                .max(off(self.marked(r), self.fdec(r)))
                .max(off(self.unmarked(r), self.finc(r)))
                .max(off(self.measured_recovery(r), self.recovery(r)));
        }
        for r in [RMIN, (RMIN * self.least_decreasing()).sqrt()] {
            worst = worst
                .max(off(self.marked(r), self.fdec(r)))
                .max(off(self.unmarked(r), self.finc(r)));
        }
        worst
    }

    /// Relative excess of finc(fdec(r)) over r, in fixed point: at [`Self::least_decreasing`], where the
    /// two are equal, and the largest above.
    pub(crate) fn avoidance(self) -> (f64, f64) {
        let excess = |r: f64| self.unmarked(self.marked(r)) / r - 1.0;
        let least = self.least_decreasing();
        let above = self.rates().filter(|r| *r > least).map(excess);
        (excess(least), above.fold(f64::NEG_INFINITY, f64::max))
    }

    /// Rates from [`Self::least_decreasing`] to 1: those of the reference's tables, and between.
    fn rates(self) -> impl Iterator<Item = f64> {
        let low = self.least_decreasing();
        let between = (0..=100).map(move |n| low * (1.0 / low).powf(f64::from(n) / 100.0));
        let named = [1.0 / 64.0, 1.0 / 32.0, 0.05, 0.1, 0.25, 0.5, 1.0];
        between.map(|r| r.min(1.0)).chain(named)
    }
}

/// The delay of a rate, in fixed point.
fn delay(r: f64) -> u64 {
    // The lower limit of rates is exact; others are rounded to the nearest 2^-40 packet times.
    (f64::from(FRAC).exp2() / r).round() as u64
}
