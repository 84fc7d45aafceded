//! HP's marking and response (Santos, Turner, Janakiraman, INFOCOM 2003), using the code that runs in the kernel. Each
//! ACK changes the inter-packet delay.

use ecn_core::fixed::{FRAC, ONE};
use ecn_core::marking::{self, BACKLOG_UNKNOWN, Marking};
use ecn_core::response::{Feedback, Function, Policy, State};
use ecn_units::{Fraction, Rate, Round};
use serde::{Deserialize, Serialize};

use super::{
    Acknowledged, Cnm, Either, Endpoints, Hooks, Mark, Name, Network, QueueView, Scheme, Sender,
    Sending, Switch,
};
use crate::bounds::ModelError;
use crate::counters::{Counters, counters};
use crate::engine::{NS, Time};
use crate::fabric::auto::Auto;
use crate::fabric::packet::Packet;
use crate::model::{Counting, Model, OutputTrigger, Spacing, Trigger};

/// A response, and a marking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hp(pub Function, pub Marking);

impl Scheme for Hp {
    type Sender = HpRules;
    /// HP's own switches do their own marking.
    type Switch = Either<Markers, ()>;

    fn sender(&self, network: &Network) -> Result<HpRules, ModelError> {
        network.schemes.hp.rules(self.0)
    }

    fn switch(&self, network: &Network) -> Result<Self::Switch, ModelError> {
        if network.marks_in_slots {
            return Ok(Either::Other(()));
        }
        let most = network.most_ports;
        if most > 255 {
            let reason =
                format!("HP's marking supports switches with up to 255 ports, and one has {most}");
            return Err(ModelError::new("scheme", Name::Hp(*self), reason));
        }
        let params = &network.schemes.hp;
        let policy = params.marking(self.1, most, network.line, network.frame);
        let counters = |_| Counters::new(most as usize + 1);
        let classes = |_| (0..network.classes).map(counters).collect();
        Ok(Either::Plain(Markers {
            policy: policy.map_err(|error| error.within("hp"))?,
            counters: (0..network.switches).map(classes).collect(),
        }))
    }
}

/// Parameters of HP's response and marking.
#[derive(Clone, Debug, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HpParameters {
    /// Lowest rate, as a fraction of the link's rate (S, slide 14).
    pub rmin: Fraction,
    /// Decrease factor of FIMD and AIMD (S, slide 14).
    pub m: Fraction,
    /// Round within which a source decreases its rate at most once. The papers decrease at each mark, with a window of
    /// one packet; with more in flight, all packets of one queue would decrease the rate (R).
    pub round: Round,
    /// Which rate determines the gap between a packet and the one before (R).
    pub spacing: Spacing,
    /// Number of waiting packets from one input at which its buffer counts as full. `auto`: 32 us at the link's rate,
    /// as DCQCN's Kmin; the papers' buffers also hold a round trip (R).
    #[schemars(extend("unit" = "packets"))]
    pub buffer: Auto<u32>,
    /// Input-output marking: an output is congested if more packets than this wait for it. `auto`: as `buffer` (R).
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
}

impl Default for HpParameters {
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
        }
    }
}

/// The response in computational form.
#[derive(Clone, Copy, Debug)]
pub struct HpRules {
    policy: Policy,
    after_ack: bool,
}

impl HpParameters {
    /// The papers' parameters: windows of one packet, and switches that count slots.
    pub fn of_the_papers() -> Self {
        let papers = Model::default();
        Self {
            round: papers.round,
            spacing: papers.spacing,
            threshold: Auto::Is(papers.threshold),
            ..Self::default()
        }
    }

    /// Checks constraints that the types do not express.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name.
    pub fn rules(&self, function: Function) -> Result<HpRules, ModelError> {
        let model = Model {
            rmin: self.rmin,
            m: self.m,
            round: self.round,
            ..Model::default()
        };
        Ok(HpRules {
            policy: model.policy(function)?,
            after_ack: self.spacing == Spacing::AfterAck,
        })
    }

    /// Packets for one output above which it is congested.
    fn threshold(&self, line: Rate, frame: u32) -> u32 {
        self.threshold.or(usual(line, frame))
    }

    /// Model of input-queued switches: their marking, and the papers' values for everything else.
    pub fn model(&self, marking: Marking, line: Rate, frame: u32) -> Model {
        Model {
            marking,
            threshold: self.threshold(line, frame),
            trigger: self.trigger,
            full_counts: self.full_counts,
            threshold_counts: self.threshold_counts,
            output_trigger: self.output_trigger,
            ..Model::default()
        }
    }

    /// The marking of a switch with `ports` ports, at most 255, for frames of this length.
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
            return Err(ModelError::new("buffer", 0, "must be at least 1"));
        }
        Ok(model.marking_policy("", ports + 1))
    }
}

/// The default threshold: packets of 32 us.
fn usual(line: Rate, frame: u32) -> u32 {
    let packets = line.bytes_per_s() * 32 / 1_000_000 / u64::from(frame);
    (packets as u32).max(2)
}

/// Switches that count the packets waiting for each output from each input.
#[derive(Debug)]
pub struct Markers {
    policy: marking::Policy,
    /// By switch and class.
    counters: Vec<Vec<Counters>>,
}

impl Markers {
    fn at(&mut self, at: &QueueView) -> (&mut Counters, u8, u8) {
        let counters = &mut self.counters[at.switch as usize][usize::from(at.class)];
        (counters, at.ingress as u8 + 1, at.egress as u8 + 1)
    }
}

impl Switch for Markers {
    fn hooks(&self) -> Hooks {
        Hooks::QUEUED
    }

    fn on_enqueue(&mut self, at: &QueueView, _: &mut Packet, waits: bool) -> Option<Cnm> {
        if waits {
            let policy = self.policy;
            let (counters, input, output) = self.at(at);
            counters!(counters, c => { c.on_enqueue_waiting(&policy, input, output, 1, true) });
        }
        None
    }

    fn on_dequeue(&mut self, at: &QueueView, packet: &mut Packet, waited: bool) {
        if !waited {
            return;
        }
        let policy = self.policy;
        let (counters, input, output) = self.at(at);
        let decision = counters!(counters, c => {
            c.on_dequeue(&policy, input, output, 1, true, BACKLOG_UNKNOWN)
        });
        if decision.mark != 0 {
            packet.mark = Mark::Congestion;
        }
    }

    fn on_drop(&mut self, at: &QueueView) {
        let (counters, input, output) = self.at(at);
        counters!(counters, c => { c.on_drop(input, output, 1) });
    }
}

impl Sender for HpRules {
    type Flow = HpFlow;

    /// The bandwidth-delay product, in whole packets: the papers combine the rate with a fixed window.
    fn window(&self, network: &Network) -> Option<u64> {
        let round_trip = u128::from(network.line.bytes_per_s()) * u128::from(network.idle_rtt);
        let bytes = (round_trip / 1_000_000_000_000) as u64;
        Some(bytes.next_multiple_of(network.payload.into()))
    }

    fn on_start(&mut self, _: Endpoints) -> HpFlow {
        HpFlow::at_full_rate()
    }

    fn on_send(&mut self, flow: &mut HpFlow, packet: &Sending) -> Option<Time> {
        flow.on_send(packet.now, packet.wire)
    }

    fn on_ack(&mut self, flow: &mut HpFlow, ack: &Acknowledged) -> Option<Time> {
        flow.acknowledged(self, ack)
    }
}

/// A source's state of a flow.
#[derive(Clone, Copy, Debug)]
pub struct HpFlow {
    state: State,
    received: u32,
    /// Start of its last packet.
    sent: Time,
}

impl HpFlow {
    /// At the link's rate.
    pub const fn at_full_rate() -> Self {
        Self {
            state: State::new(),
            received: 0,
            sent: 0,
        }
    }

    /// Time from the start of a packet to the start of the next one, if that exceeds its transmission time.
    #[inline]
    pub fn on_send(&mut self, now: Time, wire: Time) -> Option<Time> {
        self.sent = now;
        self.gap(wire)
    }

    fn gap(&self, wire: Time) -> Option<Time> {
        (self.state.ipd > ONE)
            .then(|| ((u128::from(self.state.ipd) * u128::from(wire)) >> FRAC) as Time)
    }

    /// Handles an ACK. Returns when the next packet may be sent at the new rate, if that applies to it.
    #[inline]
    pub fn acknowledged(&mut self, rules: &HpRules, ack: &Acknowledged) -> Option<Time> {
        self.received = self.received.wrapping_add(1);
        let echo = Feedback {
            packets: 1,
            ce: u32::from(ack.mark == Mark::Congestion),
            received: self.received,
            outstanding: ack.in_flight,
        };
        self.state.on_echo(&rules.policy, echo, ack.now / NS);
        (rules.after_ack).then(|| self.sent + self.gap(ack.wire).unwrap_or(ack.wire))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::cc::tests::{enqueue, marked, queue_view, switches};

    /// LIPD, one more packet time per decrease: marks on packets that were in flight at a decrease belong to its round,
    /// and cause no further one.
    #[test]
    fn a_round_decreases_once() {
        // Packet spacing after each of eight marked ACKs.
        let times = |round, in_flight| {
            let parameters = HpParameters {
                round,
                ..HpParameters::default()
            };
            let rules = parameters.rules(Function::Lipd).unwrap();
            let mut flow = HpFlow::at_full_rate();
            assert_eq!(flow.on_send(0, 1_000), None);
            let mut next = |mark| {
                let ack = Acknowledged {
                    now: 0,
                    rtt: 0,
                    mark,
                    in_flight,
                    wire: 1_000,
                };
                flow.acknowledged(&rules, &ack);
                flow.on_send(0, 1_000)
            };
            // At the full rate, there is nothing to raise.
            assert_eq!(next(Mark::None), None);
            [Mark::Congestion; 8].map(|mark| next(mark).unwrap() / 1_000)
        };
        assert_eq!(times(Round::Packets, 3), [2, 2, 2, 2, 3, 3, 3, 3]);
        // A window of one packet, without rounds.
        let each = [2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(times(Round::Packets, 0), each);
        assert_eq!(times(Round::Off, 3), each);
    }

    /// HP's buffers are at inputs: four packets of one input fill its buffer, regardless of their outputs; four packets
    /// of different inputs fill none.
    #[test]
    fn hp_marks_those_of_a_full_input() {
        let new = || switches(&["scheme=lipd/input", "hp.buffer=4"]);
        let same = [1, 2, 1, 2].map(|out| queue_view(0, out, 0, 1, 0));
        let mut full = new();
        enqueue(&mut full, &same);
        assert_eq!(marked(&mut full, &same), 4);
        let others = [3, 4, 5, 6].map(|input| queue_view(input, 1, 0, 1, 0));
        let mut shared = new();
        enqueue(&mut shared, &others);
        assert_eq!(marked(&mut shared, &others), 0);
    }

    /// Dropped packets do not occupy slots of their input.
    #[test]
    fn hp_does_not_count_what_is_dropped() {
        let mut switches = switches(&["scheme=lipd/input", "hp.buffer=4", "flow_control=none"]);
        let one = [queue_view(0, 1, 0, 1, 0)];
        for _ in 0..10 {
            enqueue(&mut switches, &one);
            switches.on_drop(&one[0]);
        }
        let three = [one[0]; 3];
        enqueue(&mut switches, &three);
        assert_eq!(marked(&mut switches, &three), 0);
    }

    /// Each class has its own buffers.
    #[test]
    fn hp_counts_by_class() {
        let mut switches = switches(&["scheme=lipd/input", "hp.buffer=4", "priorities=2"]);
        let both = [0, 0, 0, 1, 1, 1].map(|class| queue_view(0, 1, class, 2, 0));
        enqueue(&mut switches, &both);
        assert_eq!(marked(&mut switches, &both), 0);
        let own = [both[0]; 4];
        enqueue(&mut switches, &own);
        enqueue(&mut switches, &both[3..]);
        assert_eq!(marked(&mut switches, &both[3..]), 0);
        assert_eq!(marked(&mut switches, &own), 4);
    }
}
