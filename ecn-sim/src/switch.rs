//! HP's switch: buffers at the inputs, a crossbar, and `ecn-core`'s marking.
//!
//! A packet waits in the buffer of its input, and in a line for its output. Lines are in the order
//! of arrival, so that the front of one is its oldest packet over all inputs. A packet that finds
//! its output idle cuts through and never waits; the marking counts only those that do.

use std::collections::VecDeque;

use ecn_core::marking::{self, BACKLOG_UNKNOWN, Decision};

pub use crate::counters::PortTotals;
use crate::counters::{Counters, counters};
use crate::model::{
    Arbitration, BypassCounts, Counting, Crossbar, Marking, Model, OutputTrigger, Trigger,
};

/// An input buffer.
#[derive(Debug, Default)]
pub struct Input {
    /// Slots taken: by packets on their way here, waiting, and leaving.
    pub taken: u32,
    /// Packets whose header is here and whose tail has not left.
    pub present: u32,
    /// Packets that wait.
    pub waiting: u32,
    /// A packet is being read, which matters to a crossbar with single read ports.
    pub reading: bool,
    /// Packets that wait, oldest first: kept only where overtaking is limited.
    order: VecDeque<Waiting>,
}

/// A packet in the order of its input buffer.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    packet: u32,
    output: u8,
    overtaken: u32,
}

/// A packet in the line for an output.
#[derive(Clone, Copy, Debug)]
pub struct InLine {
    /// Its number.
    pub packet: u32,
    /// Slot of its input.
    pub input: u8,
}

/// A switch. Ports are numbered by their slots, from 1 on.
#[derive(Debug)]
pub struct Switch {
    counters: Counters,
    policy: marking::Policy,
    rules: Rules,
    /// By slot.
    pub inputs: Vec<Input>,
    /// The lines, by slot.
    pub lines: Vec<VecDeque<InLine>>,
    /// Whether an output transmits, by slot.
    pub busy: Vec<bool>,
    /// The input that was served last, by output slot.
    last_served: Vec<u8>,
}

/// What of the model a switch asks about.
#[derive(Debug)]
struct Rules {
    plain: bool,
    round_robin: bool,
    single_read: bool,
    bypass: u32,
    any_output: bool,
    before_dispatch: bool,
    full_present: bool,
    threshold_present: bool,
    crossing: bool,
}

impl Switch {
    /// An empty switch with port slots below `slots`.
    pub fn new(name: &str, slots: u32, model: &Model) -> Self {
        let policy = model.marking_policy(name, slots);
        let slots = slots as usize;
        let counters = Counters::new(slots);
        let any_output = model.bypass_counts == BypassCounts::AnyOutput;
        let mut rules = Rules {
            plain: false,
            round_robin: model.arbitration == Arbitration::RoundRobin,
            single_read: model.crossbar == Crossbar::Single,
            bypass: model.bypass.0,
            any_output,
            before_dispatch: model.trigger == Trigger::BeforeDispatch,
            full_present: model.full_counts == Counting::Present,
            threshold_present: model.threshold_counts == Counting::Present,
            crossing: model.output_trigger == OutputTrigger::Crossing,
        };
        // Lines in the order of arrival never overtake for the same output.
        rules.plain = !rules.round_robin
            && !rules.single_read
            && (rules.bypass > 0 && !any_output || rules.bypass == u32::MAX);
        Self {
            counters,
            policy,
            rules,
            inputs: std::iter::repeat_with(Input::default).take(slots).collect(),
            lines: vec![VecDeque::new(); slots],
            busy: vec![false; slots],
            last_served: vec![0; slots],
        }
    }

    /// Slots of an input buffer.
    pub const fn buffer(&self) -> u32 {
        self.policy.buffer
    }

    /// Is there a slot for a packet from upstream?
    pub fn has_slot(&self, input: u8) -> bool {
        self.inputs[input as usize].taken < self.policy.buffer
    }

    /// A packet's header is here. True if it cuts through now: `can_start` says whether its output's
    /// next hop could take it. Otherwise it waits, and marking is told.
    #[inline]
    pub fn arrive(&mut self, packet: u32, input: u8, output: u8, can_start: bool) -> bool {
        let (i, o) = (input as usize, output as usize);
        self.inputs[i].present += 1;
        // Whatever is in the line of an idle output with a slot ahead is held up at its own input.
        let can_start = can_start && !self.busy[o];
        if can_start && !self.rules.before_dispatch && self.may_go(input, u32::MAX) {
            if !self.rules.plain {
                self.overtake(input, u32::MAX);
                self.inputs[i].reading = true;
            }
            self.last_served[o] = input;
            self.busy[o] = true;
            if self.rules.full_present && self.inputs[i].present >= self.policy.buffer {
                counters!(&mut self.counters, c => c.fill(&self.policy, input));
                self.congest_leaving(input);
            }
            return true;
        }
        self.inputs[i].waiting += 1;
        self.lines[o].push_back(InLine { packet, input });
        if !self.rules.plain {
            self.inputs[i].order.push_back(Waiting {
                packet,
                output,
                overtaken: 0,
            });
        }
        let policy = self.policy_now(input, output);
        let Decision { input_trigger, .. } = counters!(&mut self.counters, c => {
            c.wait(&policy, input, output, 1, true)
        });
        if input_trigger != 0 && self.rules.full_present {
            self.congest_leaving(input);
        }
        false
    }

    /// A full buffer also holds the packets that are leaving it: their outputs are congested too.
    fn congest_leaving(&mut self, input: u8) {
        for output in 1..self.busy.len() {
            if self.busy[output] && self.last_served[output] == input {
                counters!(&mut self.counters, c => c.congest(&self.policy, output as u8));
            }
        }
    }

    /// The policy with what the model counts differently worked into its numbers.
    #[inline]
    fn policy_now(&self, input: u8, output: u8) -> marking::Policy {
        let mut policy = self.policy;
        if self.rules.full_present {
            let input = &self.inputs[input as usize];
            policy.buffer = policy.buffer.saturating_sub(input.present - input.waiting);
        }
        let o = output as usize;
        if self.rules.threshold_present && self.busy[o] {
            policy.threshold = policy.threshold.saturating_sub(1);
        }
        if self.rules.crossing && self.lines[o].len() as u64 > u64::from(policy.threshold) + 1 {
            policy.threshold = u32::MAX;
        }
        policy
    }

    /// Takes the packet that output `output` transmits next off its line; whether it is marked.
    #[inline]
    pub fn next(&mut self, output: u8) -> Option<(InLine, bool)> {
        let o = output as usize;
        if self.busy[o] {
            return None;
        }
        let at = if self.rules.plain {
            0
        } else {
            self.choose(output)?
        };
        let chosen = if at == 0 {
            self.lines[o].pop_front()?
        } else {
            self.lines[o].remove(at)?
        };
        let i = chosen.input as usize;
        if !self.rules.plain {
            self.overtake(chosen.input, chosen.packet);
            self.inputs[i]
                .order
                .retain(|waiting| waiting.packet != chosen.packet);
            self.inputs[i].reading = true;
        }
        self.last_served[o] = chosen.input;
        self.inputs[i].waiting -= 1;
        self.busy[o] = true;
        let Decision { mark, .. } = counters!(&mut self.counters, c => {
            c.depart(&self.policy, chosen.input, output, 1, true, BACKLOG_UNKNOWN)
        });
        Some((chosen, mark != 0))
    }

    /// Is there a packet that an output could transmit now, if the next switch has a slot?
    pub fn could_go(&self, output: u8) -> bool {
        let o = output as usize;
        let fit = || match self.rules.plain {
            true => !self.lines[o].is_empty(),
            false => self.choose(output).is_some(),
        };
        !self.busy[o] && fit()
    }

    /// Slots that the packets here take, without those on their way.
    pub fn slots_taken(&self, input: u8, free_at_head: bool) -> u32 {
        let input = &self.inputs[input as usize];
        if free_at_head {
            input.waiting
        } else {
            input.present
        }
    }

    /// The place in line of the packet to go next.
    fn choose(&self, output: u8) -> Option<usize> {
        let o = output as usize;
        let line = &self.lines[o];
        let allowed = |at: &usize| {
            let InLine { packet, input } = line[*at];
            self.may_go(input, packet)
        };
        let mut fit = (0..line.len()).filter(allowed);
        if !self.rules.round_robin {
            return fit.next();
        }
        let last = self.last_served[o];
        // After the last one served, by slot; of one input the oldest.
        fit.min_by_key(|&at| (line[at].input.wrapping_sub(last).wrapping_sub(1), at))
    }

    /// May a packet at `input` go past the older ones there? A number that none has stands for the
    /// newest.
    fn may_go(&self, input: u8, packet: u32) -> bool {
        let input = &self.inputs[input as usize];
        if self.rules.single_read && input.reading {
            return false;
        }
        let mut older = input
            .order
            .iter()
            .take_while(|waiting| waiting.packet != packet);
        match (self.rules.bypass, self.rules.any_output) {
            (u32::MAX, _) => true,
            (0, _) => older.next().is_none(),
            (limit, true) => older.all(|waiting| waiting.overtaken < limit),
            (_, false) => true,
        }
    }

    /// Counts the overtaking of what waits before `packet` at its input.
    fn overtake(&mut self, input: u8, packet: u32) {
        let order = &mut self.inputs[input as usize].order;
        for waiting in order
            .iter_mut()
            .take_while(|waiting| waiting.packet != packet)
        {
            waiting.overtaken += 1;
        }
    }

    /// The input whose packet an output transmits, or transmitted last.
    pub fn feeding(&self, output: u8) -> u8 {
        self.last_served[output as usize]
    }

    /// The tail of a packet has left by `output`; its input. Outputs that this may have been holding
    /// up are in [`Switch::held_up`].
    #[inline]
    pub fn leave(&mut self, output: u8) -> u8 {
        self.busy[output as usize] = false;
        let slot = self.feeding(output);
        let input = &mut self.inputs[slot as usize];
        input.present -= 1;
        input.reading = false;
        slot
    }

    /// Whether a packet waits for its output and for nothing else, so that what leaves holds up no
    /// other output's packets.
    #[inline]
    pub const fn is_plain(&self) -> bool {
        self.rules.plain
    }

    /// Outputs besides `output` with packets that the departure of one from `input` may let go.
    pub fn held_up(&self, input: u8, output: u8) -> Vec<u8> {
        let order = self.inputs[input as usize].order.iter();
        let mut outputs: Vec<u8> = order
            .map(|waiting| waiting.output)
            .filter(|o| *o != output)
            .collect();
        outputs.dedup();
        outputs
    }

    /// A port's totals.
    pub fn totals(&self, slot: u8) -> PortTotals {
        self.counters.totals(slot)
    }

    /// Compares the counters with what waits: `cnt1` of each output with its line, the occupancy of
    /// each input with its packets, `cnt2 <= cnt1`, and no buffer above its size.
    ///
    /// # Errors
    ///
    /// Says which differs.
    pub fn check(&self) -> Result<(), String> {
        for slot in 0..self.inputs.len() {
            let input = &self.inputs[slot];
            let (cnt1, cnt2, occupancy, from) = counters!(&self.counters, c => {
                let port = &c.ports[slot];
                (port.cnt1, port.cnt2, port.occupancy, port.to_mark_from)
            });
            let scan = self.lines[slot].len();
            let held = |line: &VecDeque<InLine>| {
                line.iter()
                    .filter(|waiting| waiting.input as usize == slot)
                    .count()
            };
            let waiting: usize = self.lines.iter().map(held).sum();
            let naive = self.policy.marking == Marking::Naive as u32;
            let sound = cnt1 as usize == scan
                && cnt2 <= cnt1
                && occupancy as usize == waiting
                && input.waiting as usize == waiting
                && input.waiting <= input.present
                && input.taken <= self.policy.buffer
                && (!naive || from <= occupancy);
            if !sound {
                return Err(format!(
                    "port {slot}: cnt1 {cnt1} of {scan} in line, cnt2 {cnt2}, occupancy \
                     {occupancy} of {waiting}, {} slots of {} taken, {from} to mark from here",
                    input.taken, self.policy.buffer
                ));
            }
        }
        Ok(())
    }
}
