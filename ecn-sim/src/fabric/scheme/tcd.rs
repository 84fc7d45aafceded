//! TCD's parameters; the ports' states are [`ecn_core::tcd`].

use ecn_core::response::Ratio;
use ecn_core::tcd::{Policy, max_on_cbfc_ns, max_on_pfc_ns};
use serde::{Deserialize, Serialize};

use crate::fabric::parameters::Auto;
use crate::model::ModelError;
use crate::units::{DurationText, Fraction, Size};

/// TCD's parameters, with the source of each default in `tcd.md`, section 3.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Least congestion degree that matters (the paper's, from memory).
    pub epsilon: Fraction,
    /// max(T_on). `auto`: by the flow control and `epsilon`.
    pub max_on: Auto<DurationText>,
    /// How long a port looks whether its queue drains. `auto`: `max_on` (R).
    pub drain_window: Auto<DurationText>,
    /// A longer queue is congestion. `auto`: the scheme's threshold.
    pub threshold: Auto<Size>,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            epsilon: Fraction::ratio(1, 20),
            max_on: Auto::Auto,
            drain_window: Auto::Auto,
            threshold: Auto::Auto,
        }
    }
}

/// What makes ports go ON and OFF.
#[derive(Clone, Copy, Debug)]
pub enum Pattern {
    /// Pauses.
    Pfc {
        /// Xoff - Xon, bytes.
        gap: u32,
        /// The links' rate, bytes per second.
        line: u64,
        /// From a pause to its effect, ns.
        tau_ns: u64,
    },
    /// Credits.
    Credits {
        /// Time from one message to the next, ns.
        period_ns: u64,
    },
}

impl Parameters {
    /// Checks what the types leave open. `threshold`: the scheme's, bytes.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn rules(&self, pattern: Pattern, threshold: u64) -> Result<Policy, ModelError> {
        const MOST_NS: u64 = 1_000_000_000;
        let within = |key, time: DurationText| {
            let reason = "up to 1s is allowed";
            let ns = time.as_nanos();
            (ns <= MOST_NS)
                .then_some(ns)
                .ok_or_else(|| ModelError::new(key, time, reason))
        };
        let max_on_ns = match (self.max_on, pattern) {
            (Auto::Is(time), _) => within("max_on", time)?,
            (Auto::Auto, Pattern::Credits { period_ns }) => max_on_cbfc_ns(period_ns),
            (Auto::Auto, Pattern::Pfc { gap, line, tau_ns }) => {
                let (num, den) = (self.epsilon.numerator(), self.epsilon.denominator());
                max_on_pfc_ns(gap, line, tau_ns, Ratio::new(num.into(), den.into()))
                    .filter(|ns| *ns <= MOST_NS)
                    .ok_or_else(|| {
                        let reason = "a value above 0 with max_on up to 1s is allowed";
                        ModelError::new("epsilon", self.epsilon, reason)
                    })?
            }
        };
        Ok(Policy {
            threshold_bytes: self.threshold.or(Size::from_bytes(threshold)).bytes(),
            max_on_ns,
            window_ns: match self.drain_window {
                Auto::Auto => max_on_ns,
                Auto::Is(time) => within("drain_window", time)?,
            },
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const PFC: Pattern = Pattern::Pfc {
        gap: 3_000,
        line: 12_500_000_000,
        tau_ns: 2_000,
    };

    #[test]
    fn auto_follows_from_the_flow_control() {
        let policy = |max_on_ns, window_ns| Policy {
            threshold_bytes: 400_000,
            max_on_ns,
            window_ns,
        };
        let mut own = Parameters::default();
        let found = own.rules(PFC, 400_000).unwrap();
        assert_eq!(found, policy(47_040, 47_040));
        let credits = Pattern::Credits { period_ns: 5_243 };
        let found = own.rules(credits, 400_000).unwrap();
        assert_eq!(found, policy(5_243, 5_243));
        own.max_on = Auto::Is(DurationText::from_micros(10));
        own.drain_window = Auto::Is(DurationText::from_micros(5));
        assert_eq!(own.rules(PFC, 400_000).unwrap(), policy(10_000, 5_000));
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut Parameters)| {
            let mut parameters = Parameters::default();
            change(&mut parameters);
            parameters.rules(PFC, 400_000).unwrap_err().key
        };
        assert_eq!(refused(&|p| p.epsilon = Fraction::ratio(0, 1)), "epsilon");
        assert_eq!(
            refused(&|p| p.epsilon = Fraction::ratio(1, 1_000_000)),
            "epsilon"
        );
        let long = Auto::Is(DurationText::from_secs(2));
        assert_eq!(refused(&|p| p.max_on = long), "max_on");
        assert_eq!(refused(&|p| p.drain_window = long), "drain_window");
    }
}
