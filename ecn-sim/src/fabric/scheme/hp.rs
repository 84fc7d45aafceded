//! HP's response (Santos, Turner, Janakiraman, INFOCOM 2003): each ACK moves the inter-packet delay, by
//! the code that runs in the kernel. Marking is in [`crate::fabric::congestion`].

use ecn_core::fixed::{FRAC, ONE};
use ecn_core::marking::{self, Marking};
use ecn_core::response::{Feedback, Function, Policy, State};
use ecn_core::tcd::Mark;
use ecn_units::{Fraction, Rate, Round};
use serde::{Deserialize, Serialize};

use super::Acknowledged;
use crate::engine::{NS, Time};
use crate::fabric::auto::Auto;
use crate::model::{Counting, MarkIn, Model, ModelError, OutputTrigger, Spacing, Trigger};

/// Parameters of response and marking.
#[derive(Clone, Debug, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Lowest rate, as a share of the link's (S, slide 14).
    pub rmin: Fraction,
    /// Decrease factor of FIMD and AIMD (S, slide 14).
    pub m: Fraction,
    /// What counts as one round, within which a source decreases its rate at most once. The papers
    /// decrease at each mark, and have a window of one packet; where more are in flight, all those of
    /// one queue would (R).
    pub round: Round,
    /// Which rate spaces a packet from the one before (R).
    pub spacing: Spacing,
    /// Packets from one input that fill its buffer. `auto`: 32 us at the link's rate, as DCQCN's Kmin: the
    /// papers' buffers hold a round trip too (R).
    #[schemars(extend("unit" = "packets"))]
    pub buffer: Auto<u32>,
    /// Input-output: more packets than this for one output. `auto`: as `buffer` (R).
    #[schemars(extend("unit" = "packets"))]
    pub threshold: Auto<u32>,
    /// Input-queued switches: when triggers are evaluated.
    pub trigger: Trigger,
    /// Input-queued switches: what fills a buffer.
    pub full_counts: Counting,
    /// Input-queued switches: what is compared with the threshold.
    pub threshold_counts: Counting,
    /// Input-queued switches: when the output trigger fires.
    pub output_trigger: OutputTrigger,
    /// Input-queued switches: those that mark.
    pub mark_in: MarkIn,
}

impl Default for Parameters {
    fn default() -> Self {
        let papers = Model::default();
        Self {
            rmin: papers.rmin,
            m: papers.m,
            round: Round::Packets,
            spacing: Spacing::AtSend,
            buffer: Auto::Auto,
            threshold: Auto::Auto,
            trigger: papers.trigger,
            full_counts: papers.full_counts,
            threshold_counts: papers.threshold_counts,
            output_trigger: papers.output_trigger,
            mark_in: papers.mark_in,
        }
    }
}

/// The response, computed with.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    policy: Policy,
    after_ack: bool,
}

impl Parameters {
    /// As in the papers: windows of a packet, and switches that count slots.
    pub fn of_the_papers() -> Self {
        let papers = Model::default();
        Self {
            round: papers.round,
            spacing: papers.spacing,
            threshold: Auto::Is(papers.threshold),
            ..Self::default()
        }
    }

    /// Checks what the types leave open.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn rules(&self, function: Function) -> Result<Rules, ModelError> {
        let model = Model {
            rmin: self.rmin,
            m: self.m,
            round: self.round,
            ..Model::default()
        };
        Ok(Rules {
            policy: model.policy(function)?,
            after_ack: self.spacing == Spacing::AfterAck,
        })
    }

    /// More packets than this for one output are congestion.
    fn threshold(&self, line: Rate, frame: u32) -> u32 {
        self.threshold.or(usual(line, frame))
    }

    /// What input-queued switches mark by, and whatever else is the papers'.
    pub fn model(&self, marking: Marking, line: Rate, frame: u32) -> Model {
        Model {
            marking,
            threshold: self.threshold(line, frame),
            trigger: self.trigger,
            full_counts: self.full_counts,
            threshold_counts: self.threshold_counts,
            output_trigger: self.output_trigger,
            mark_in: self.mark_in.clone(),
            ..Model::default()
        }
    }

    /// The marking of a switch with so many ports, at most 255, for frames of this length.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn marking(
        &self,
        marking: Marking,
        ports: u32,
        line: Rate,
        frame: u32,
    ) -> Result<marking::Policy, ModelError> {
        let model = Model {
            marking,
            buffer: self.buffer.or(usual(line, frame)),
            threshold: self.threshold(line, frame),
            ..Model::default()
        };
        if model.buffer == 0 {
            return Err(ModelError::new("buffer", 0, "1 and more is allowed"));
        }
        Ok(model.marking_policy("", ports + 1))
    }
}

/// Packets of 32 us.
fn usual(line: Rate, frame: u32) -> u32 {
    let packets = line.bytes_per_s() * 32 / 1_000_000 / u64::from(frame);
    (packets as u32).max(2)
}

/// What a source knows of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    state: State,
    received: u32,
    /// When it last began to send a packet.
    sent: Time,
}

impl Flow {
    /// At the link's rate.
    pub const fn at_full_rate() -> Self {
        Self {
            state: State::new(),
            received: 0,
            sent: 0,
        }
    }

    /// From the start of a packet to that of the next one, if that is longer than its time on the wire.
    #[inline]
    pub fn sends(&mut self, now: Time, wire: Time) -> Option<Time> {
        self.sent = now;
        self.gap(wire)
    }

    fn gap(&self, wire: Time) -> Option<Time> {
        (self.state.ipd > ONE)
            .then(|| ((u128::from(self.state.ipd) * u128::from(wire)) >> FRAC) as Time)
    }

    /// When it may send the next packet by its rate now, if that counts; `wire`: what the last one took.
    #[inline]
    pub fn next_time(&self, rules: &Rules, wire: Time) -> Option<Time> {
        (rules.after_ack).then(|| self.sent + self.gap(wire).unwrap_or(wire))
    }

    /// An ACK is back.
    #[inline]
    pub fn acknowledged(&mut self, rules: &Rules, ack: &Acknowledged) {
        self.received = self.received.wrapping_add(1);
        let echo = Feedback {
            packets: 1,
            ce: u32::from(ack.mark == Mark::Congestion),
            received: self.received,
            outstanding: ack.in_flight,
        };
        self.state.on_echo(&rules.policy, echo, ack.now / NS);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// LIPD, a packet time more per decrease: marks on what was under way at a decrease are of its round, and cost
    /// nothing more.
    #[test]
    fn a_round_decreases_once() {
        // Time from packet to packet after each of eight marked ACKs.
        let times = |round, in_flight| {
            let parameters = Parameters {
                round,
                ..Parameters::default()
            };
            let rules = parameters.rules(Function::Lipd).unwrap();
            let mut flow = Flow::at_full_rate();
            assert_eq!(flow.sends(0, 1_000), None);
            let mut next = |mark| {
                let ack = Acknowledged {
                    now: 0,
                    rtt: 0,
                    mark,
                    in_flight,
                };
                flow.acknowledged(&rules, &ack);
                flow.sends(0, 1_000)
            };
            // At the full rate there is nothing to raise.
            assert_eq!(next(Mark::None), None);
            [Mark::Congestion; 8].map(|mark| next(mark).unwrap() / 1_000)
        };
        assert_eq!(times(Round::Packets, 3), [2, 2, 2, 2, 3, 3, 3, 3]);
        // A window of one packet, and no rounds.
        let each = [2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(times(Round::Packets, 0), each);
        assert_eq!(times(Round::Off, 3), each);
    }
}
