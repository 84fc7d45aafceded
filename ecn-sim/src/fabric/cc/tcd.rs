//! TCD, a variant of the switches' part of other schemes: port states, by [`ecn_core::tcd`], and its parameters.

use ecn_core::response::Ratio;
use ecn_core::tcd::{Policy, Port, growth_bytes, max_on_cbfc_ns, max_on_pfc_ns};
use ecn_units::{DurationText, Fraction, Size};
use serde::{Deserialize, Serialize};

use super::ibcc::Markers;
use super::{Hooks, Mark, Network, QueueView, State, Switch};
use crate::bounds::ModelError;
use crate::engine::{NS, Time};
use crate::fabric::auto::Auto;
use crate::fabric::packet::Packet;

/// TCD's parameters, with the source of each default in `docs/sources.md`.
#[derive(Clone, Debug, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TcdParameters {
    /// Lowest congestion degree to be detected (the paper's, from memory).
    pub epsilon: Fraction,
    /// max(T_on): longest ON period that pauses or credits cause. `auto`: derived from the flow control and `epsilon`.
    pub max_on: Auto<DurationText>,
    /// Increase above which a queue counts as grown. `auto`: what congestion of degree `epsilon` adds in `max_on`, or
    /// two packets (one arriving, one leaving) if that is more.
    pub growth: Auto<Size>,
    /// How many times as long as the pauses the data that they held back may take to drain: r/(1 - r) if the
    /// utilisation of the link is r without them (R).
    pub patience: u32,
    /// Queue length above which a port is congested. `auto`: the scheme's threshold.
    pub threshold: Auto<Size>,
}

impl Default for TcdParameters {
    fn default() -> Self {
        Self {
            epsilon: Fraction::ratio(1, 20),
            max_on: Auto::Auto,
            growth: Auto::Auto,
            patience: 2,
            threshold: Auto::Auto,
        }
    }
}

/// The cause of ports' ON and OFF periods.
#[derive(Clone, Copy, Debug)]
pub enum PauseModel {
    /// Pauses.
    Pfc {
        /// Xoff - Xon, bytes.
        gap: u32,
        /// From sending a pause until it takes effect, ns.
        tau_ns: u64,
    },
    /// Credits.
    Credits {
        /// Interval between credit messages, ns.
        period_ns: u64,
    },
}

/// ON and OFF periods of ports.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// Their cause.
    pub pause_model: PauseModel,
    /// The links' rate, bytes per second.
    pub line: u64,
    /// A full packet, bytes.
    pub frame: u32,
}

impl TcdParameters {
    /// Checks constraints that the types do not express. `threshold`: the scheme's, bytes.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn rules(&self, pattern: Pattern, threshold: u64) -> Result<Policy, ModelError> {
        const MOST_NS: u64 = 1_000_000_000;
        let within = |key, time: DurationText| {
            let reason = "must be at most 1s";
            let ns = time.as_nanos();
            (ns <= MOST_NS)
                .then_some(ns)
                .ok_or_else(|| ModelError::new(key, time, reason))
        };
        let (num, den) = (self.epsilon.numerator(), self.epsilon.denominator());
        let epsilon = Ratio::new(num.into(), den.into());
        let refused = || {
            let reason = "must be above 0, and such that max_on is at most 1s";
            ModelError::new("epsilon", self.epsilon, reason)
        };
        let line = pattern.line;
        let max_on_ns = match (self.max_on, pattern.pause_model) {
            (Auto::Is(time), _) => within("max_on", time)?,
            (Auto::Auto, PauseModel::Credits { period_ns }) => max_on_cbfc_ns(period_ns),
            (Auto::Auto, PauseModel::Pfc { gap, tau_ns }) => {
                max_on_pfc_ns(gap, line, tau_ns, epsilon)
                    .filter(|ns| *ns <= MOST_NS)
                    .ok_or_else(refused)?
            }
        };
        let growth = match self.growth {
            Auto::Is(size) => size.bytes(),
            Auto::Auto => growth_bytes(max_on_ns, line, epsilon)
                .ok_or_else(refused)?
                .max(2 * u64::from(pattern.frame)),
        };
        Ok(Policy {
            threshold_bytes: self.threshold.or(Size::from_bytes(threshold)).bytes(),
            max_on_ns,
            growth_bytes: growth,
            patience: self.patience.into(),
        })
    }
}

/// Switches that distinguish congestion from pauses, and mark packets accordingly.
#[derive(Debug)]
pub struct Ports {
    policy: Policy,
    /// By queue.
    ports: Vec<Port>,
    /// With IB CC, selects which of these packets are marked.
    markers: Option<Markers>,
}

impl Ports {
    /// The ports of a network. `threshold`: the scheme's, bytes.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn new(
        network: &Network,
        threshold: u64,
        markers: Option<Markers>,
    ) -> Result<Self, ModelError> {
        let pattern = Pattern {
            pause_model: network.pause_model,
            line: network.line.bytes_per_s(),
            frame: network.frame,
        };
        let policy = network.schemes.tcd.rules(pattern, threshold);
        Ok(Self {
            policy: policy.map_err(|error| error.within("tcd"))?,
            ports: vec![Port::default(); network.queues as usize],
            markers,
        })
    }
}

impl Switch for Ports {
    fn hooks(&self) -> Hooks {
        Hooks::DEQUEUE
    }

    fn on_dequeue(&mut self, at: &QueueView, packet: &mut Packet, _: bool) {
        let port = &mut self.ports[at.queue as usize];
        let own =
            Mark::None.combined_with(port.on_dequeue(&self.policy, at.now / NS, at.queued.into()));
        packet.mark = packet.mark.max(match &mut self.markers {
            None => own,
            Some(markers) => markers.by_state(at, packet, own),
        });
    }

    fn on_pause(&mut self, now: Time, queue: u32, paused: bool) {
        let port = &mut self.ports[queue as usize];
        if paused {
            port.on_pause(&self.policy, now / NS);
        } else {
            port.on_resume(now / NS);
        }
    }

    fn state(&self, at: &QueueView) -> Option<State> {
        let port = &self.ports[at.queue as usize];
        Some(port.state(&self.policy, at.now / NS, at.queued.into()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const PFC: Pattern = Pattern {
        pause_model: PauseModel::Pfc {
            gap: 3_000,
            tau_ns: 2_000,
        },
        line: 12_500_000_000,
        frame: 1_062,
    };

    #[test]
    fn auto_follows_from_the_flow_control() {
        let policy = |max_on_ns, growth_bytes| Policy {
            threshold_bytes: 400_000,
            max_on_ns,
            growth_bytes,
            patience: 2,
        };
        let mut own = TcdParameters::default();
        let found = own.rules(PFC, 400_000).unwrap();
        // Xoff - Xon + C tau.
        assert_eq!(found, policy(47_040, 27_999));
        let period_ns = 5_243;
        let credits = Pattern {
            pause_model: PauseModel::Credits { period_ns },
            ..PFC
        };
        let found = own.rules(credits, 400_000).unwrap();
        assert_eq!(found, policy(5_243, 3_120));
        let slow = Pattern {
            line: 1_250_000_000,
            ..credits
        };
        let found = own.rules(slow, 400_000).unwrap();
        assert_eq!(found, policy(5_243, 2_124));
        own.max_on = Auto::Is(DurationText::from_micros(10));
        assert_eq!(own.rules(PFC, 400_000).unwrap(), policy(10_000, 5_952));
        own.growth = Auto::Is(Size::from_bytes(5_000));
        assert_eq!(own.rules(PFC, 400_000).unwrap(), policy(10_000, 5_000));
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |change: &dyn Fn(&mut TcdParameters)| {
            let mut parameters = TcdParameters::default();
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
    }
}
