//! HP's switch: input buffers, a crossbar, and the marking of `ecn-core`.
//!
//! A packet waits in the buffer of its input and in a queue for its output. Queues are in order of arrival, so the head
//! of each is its oldest packet over all inputs. A packet whose output is idle cuts through without waiting; marking
//! counts only packets that wait.

use std::collections::VecDeque;

use ecn_core::marking::{self, BACKLOG_UNKNOWN, Decision};

pub(crate) use crate::counters::PortTotals;
use ecn_core::marking::Marking;

use crate::counters::{Counters, counters};
use crate::engine::{NS, Time};
use crate::model::{
    Arbitration, BypassCounts, Counting, Crossbar, MarkBy, Model, OutputTrigger, Trigger,
};

/// A port: an input buffer, and an output.
#[derive(Debug, Default)]
pub(crate) struct Port {
    /// The packets that wait for the output, oldest first.
    pub queue: VecDeque<Queued>,
    /// Whether the output is transmitting.
    pub busy: bool,
    /// The input that the output served last.
    last_served: u8,
    /// The channel to the input; each departure returns a credit to it.
    pub upstream: u32,
    /// Packets at the input whose header has arrived and whose tail has not left.
    pub present: u32,
    /// Packets at the input that wait.
    pub waiting: u32,
    /// Whether a packet is being read at the input, for crossbars with a single read port.
    pub reading: bool,
    /// Packets that wait at the input, oldest first. Kept only if overtaking is limited.
    order: VecDeque<Waiting>,
    /// When packets last waited for a credit here; [`Time::MAX`] if they still do.
    blocked_until: Option<Time>,
    /// Packets marked by scan.
    marked: u64,
}

/// A waiting packet, in its place in the order of arrival at its input.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    packet: u32,
    output: u8,
    overtaken: u32,
}

/// A packet in the queue for an output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    /// Its number.
    pub packet: u32,
    /// Slot of its input.
    pub input: u8,
    /// A scan has chosen the packet for marking.
    chosen: bool,
}

/// A switch. Ports are numbered by their slots, from 1 on.
#[derive(Debug)]
pub(crate) struct Switch {
    counters: Counters,
    /// Its `buffer` is the occupancy at which the input trigger fires.
    policy: marking::Policy,
    /// Slots of an input buffer.
    slots: u32,
    rules: Rules,
    /// By slot.
    pub ports: Vec<Port>,
}

/// Settings of the model that a switch uses.
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
    scan: bool,
    /// For this long after an output lacked a credit, it does not count as congested.
    spare_blocked: Time,
}

impl Switch {
    /// An empty switch. `receiving`: by port slot, the channel that leads to it.
    pub(crate) fn new(name: &str, receiving: &[u32], model: &Model) -> Self {
        let policy = model.marking_policy(name, receiving.len() as u32);
        let counters = Counters::new(receiving.len());
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
            scan: model.mark_by == MarkBy::Scan,
            spare_blocked: model.spare_blocked.as_nanos() * NS,
        };
        // Packets in an oldest-first queue never overtake packets for the same output.
        rules.plain = !rules.round_robin
            && !rules.single_read
            && (rules.bypass > 0 && !any_output || rules.bypass == u32::MAX);
        Self {
            counters,
            policy,
            slots: model.buffer,
            rules,
            ports: receiving
                .iter()
                .map(|&upstream| Port {
                    upstream,
                    ..Port::default()
                })
                .collect(),
        }
    }

    /// Handles the arrival of a packet's header. True if it cuts through now; otherwise it waits and is counted for
    /// marking. `has_credit`: the next hop of its output has a free slot.
    #[inline(always)]
    pub(crate) fn arrive(
        &mut self,
        now: Time,
        packet: u32,
        input: u8,
        output: u8,
        has_credit: bool,
    ) -> bool {
        let (i, o) = (input as usize, output as usize);
        self.ports[i].present += 1;
        // Packets queued for an idle output whose next hop has a slot are held up at their own inputs.
        let can_start = has_credit && !self.ports[o].busy && !self.rules.before_dispatch;
        if can_start && (self.rules.plain || self.may_go(input, u32::MAX)) {
            if !self.rules.plain {
                self.overtake(input, u32::MAX);
                self.ports[i].reading = true;
            }
            let out = &mut self.ports[o];
            (out.busy, out.last_served) = (true, input);
            if self.rules.full_present && self.ports[i].present >= self.policy.buffer {
                counters!(&mut self.counters, c => c.on_input_full(&self.policy, input));
                self.congest_leaving(input);
                self.choose_for_input(now, input);
            }
            return true;
        }
        self.ports[i].waiting += 1;
        self.ports[o].queue.push_back(Queued {
            packet,
            input,
            chosen: false,
        });
        if !has_credit {
            self.lacks_credit(output);
        }
        if !self.rules.plain {
            self.ports[i].order.push_back(Waiting {
                packet,
                output,
                overtaken: 0,
            });
        }
        let policy = self.policy_now(input, output);
        let decision = counters!(&mut self.counters, c => {
            c.on_enqueue_waiting(&policy, input, output, 1, true)
        });
        if decision.input_trigger != 0 {
            if self.rules.full_present {
                self.congest_leaving(input);
            }
            self.choose_for_input(now, input);
        }
        if decision.output_trigger != 0 && self.rules.scan {
            let queue = self.ports[o].queue.iter_mut();
            queue.for_each(|waiting| waiting.chosen = true);
        }
        false
    }

    /// Marking by scan: chooses the packets that the input trigger marks.
    fn choose_for_input(&mut self, now: Time, input: u8) {
        if !self.rules.scan || self.policy.marking == Marking::None as u32 {
            return;
        }
        let naive = self.policy.marking == Marking::Naive as u32;
        let spare = self.rules.spare_blocked;
        for port in self.ports.iter_mut().skip(1) {
            let is_blocked = |until: Time| until.saturating_add(spare) > now;
            if spare > 0 && port.blocked_until.is_some_and(is_blocked) {
                continue;
            }
            let is_leaving = self.rules.full_present && port.busy && port.last_served == input;
            let is_congested = is_leaving || port.queue.iter().any(|one| one.input == input);
            for waiting in &mut port.queue {
                waiting.chosen |= if naive {
                    waiting.input == input
                } else {
                    is_congested
                };
            }
        }
    }

    /// An output has no credit: it is blocked if a packet waits only for that.
    #[inline]
    pub(crate) fn lacks_credit(&mut self, output: u8) {
        let port = &mut self.ports[output as usize];
        if self.rules.spare_blocked > 0 && !port.busy && !port.queue.is_empty() {
            port.blocked_until = Some(Time::MAX);
        }
    }

    /// A credit has returned to this output.
    #[inline]
    pub(crate) fn has_credit(&mut self, now: Time, output: u8) {
        let port = &mut self.ports[output as usize];
        if port.blocked_until == Some(Time::MAX) {
            port.blocked_until = Some(now);
        }
    }

    /// A full buffer also holds the packets that are leaving it: their outputs count as congested, too.
    fn congest_leaving(&mut self, input: u8) {
        for (output, port) in self.ports.iter().enumerate().skip(1) {
            if port.busy && port.last_served == input {
                counters!(&mut self.counters, c => c.on_output_congested(&self.policy, output as u8));
            }
        }
    }

    /// The policy, with its numbers adjusted for what the model counts differently.
    #[inline]
    fn policy_now(&self, input: u8, output: u8) -> marking::Policy {
        let mut policy = self.policy;
        if self.rules.full_present {
            let input = &self.ports[input as usize];
            policy.buffer = policy.buffer.saturating_sub(input.present - input.waiting);
        }
        let output = &self.ports[output as usize];
        if self.rules.threshold_present && output.busy {
            policy.threshold = policy.threshold.saturating_sub(1);
        }
        if self.rules.crossing && output.queue.len() as u64 > u64::from(policy.threshold) + 1 {
            policy.threshold = u32::MAX;
        }
        policy
    }

    /// Dequeues the packet that `output` transmits next. Returns it, and whether it is marked.
    #[inline(always)]
    pub(crate) fn next(&mut self, output: u8) -> Option<(Queued, bool)> {
        if self.ports[output as usize].busy {
            return None;
        }
        let at = if self.rules.plain {
            0
        } else {
            self.choose(output)?
        };
        let out = &mut self.ports[output as usize];
        let chosen = if at == 0 {
            out.queue.pop_front()?
        } else {
            out.queue.remove(at)?
        };
        (out.busy, out.last_served) = (true, chosen.input);
        if !self.rules.plain {
            self.overtake(chosen.input, chosen.packet);
            let input = &mut self.ports[chosen.input as usize];
            input
                .order
                .retain(|waiting| waiting.packet != chosen.packet);
            input.reading = true;
        }
        self.ports[chosen.input as usize].waiting -= 1;
        let Decision { mark, .. } = counters!(&mut self.counters, c => {
            c.on_dequeue(&self.policy, chosen.input, output, 1, true, BACKLOG_UNKNOWN)
        });
        if !self.rules.scan {
            return Some((chosen, mark != 0));
        }
        self.ports[output as usize].marked += u64::from(chosen.chosen);
        Some((chosen, chosen.chosen))
    }

    /// Whether `output` could transmit a packet now, if the next switch has a slot.
    pub(crate) fn could_go(&self, output: u8) -> bool {
        let out = &self.ports[output as usize];
        let fit = || match self.rules.plain {
            true => !out.queue.is_empty(),
            false => self.choose(output).is_some(),
        };
        !out.busy && fit()
    }

    /// Slots taken by the packets at an input, without packets still in flight to it.
    pub(crate) fn slots_taken(&self, input: u8, free_at_head: bool) -> u32 {
        let input = &self.ports[input as usize];
        if free_at_head {
            input.waiting
        } else {
            input.present
        }
    }

    /// Index in the queue of the packet to send next.
    fn choose(&self, output: u8) -> Option<usize> {
        let Port {
            queue, last_served, ..
        } = &self.ports[output as usize];
        let allowed = |at: &usize| {
            let Queued { packet, input, .. } = queue[*at];
            self.may_go(input, packet)
        };
        let mut fit = (0..queue.len()).filter(allowed);
        if !self.rules.round_robin {
            return fit.next();
        }
        // The next input in slot order after the last one served; its oldest packet.
        fit.min_by_key(|&at| {
            (
                queue[at].input.wrapping_sub(*last_served).wrapping_sub(1),
                at,
            )
        })
    }

    /// Whether a packet at `input` may overtake the older ones there. A `packet` that is not in the buffer counts as
    /// the newest.
    fn may_go(&self, input: u8, packet: u32) -> bool {
        let input = &self.ports[input as usize];
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

    /// Counts overtaking against the packets that wait before `packet` at its input.
    fn overtake(&mut self, input: u8, packet: u32) {
        let order = &mut self.ports[input as usize].order;
        for waiting in order
            .iter_mut()
            .take_while(|waiting| waiting.packet != packet)
        {
            waiting.overtaken += 1;
        }
    }

    /// The tail of a packet has left through `output`; returns its input. [`Switch::held_up`] gives the outputs that it
    /// may have held up.
    #[inline]
    pub(crate) fn leave(&mut self, output: u8) -> u8 {
        let out = &mut self.ports[output as usize];
        out.busy = false;
        let slot = out.last_served;
        let input = &mut self.ports[slot as usize];
        input.present -= 1;
        input.reading = false;
        slot
    }

    /// Whether packets wait for nothing but their output, so that a departure never releases packets for other outputs.
    #[inline(always)]
    pub(crate) const fn is_plain(&self) -> bool {
        self.rules.plain
    }

    /// Outputs besides `output` with packets that a departure from `input` may release.
    pub(crate) fn held_up(&self, input: u8, output: u8) -> Vec<u8> {
        let order = self.ports[input as usize].order.iter();
        let mut outputs: Vec<u8> = order
            .map(|waiting| waiting.output)
            .filter(|o| *o != output)
            .collect();
        outputs.dedup();
        outputs
    }

    /// A port's totals.
    pub(crate) fn totals(&self, slot: u8) -> PortTotals {
        let totals = counters!(&self.counters, c => c.ports[slot as usize]).into();
        if self.rules.scan {
            PortTotals {
                marked: self.ports[slot as usize].marked,
                ..totals
            }
        } else {
            totals
        }
    }

    /// Compares counters with queues: `cnt1` of each output with its queue length, the occupancy of each input with its
    /// packets; checks that `cnt2 <= cnt1` and that no buffer is overfull. With `free_at_head`, packets on their way
    /// out take no slot.
    ///
    /// # Errors
    ///
    /// Describes the first difference.
    pub(crate) fn check(&self, free_at_head: bool) -> Result<(), String> {
        for (slot, input) in self.ports.iter().enumerate() {
            let (cnt1, cnt2, occupancy, from) = counters!(&self.counters, c => {
                let port = &c.ports[slot];
                (port.cnt1, port.cnt2, port.occupancy, port.to_mark_from)
            });
            let scan = input.queue.len();
            let held = |port: &Port| {
                port.queue
                    .iter()
                    .filter(|waiting| waiting.input as usize == slot)
                    .count()
            };
            let waiting: usize = self.ports.iter().map(held).sum();
            let naive = self.policy.marking == Marking::Naive as u32;
            let sound = cnt1 as usize == scan
                && cnt2 <= cnt1
                && occupancy as usize == waiting
                && input.waiting as usize == waiting
                && input.waiting <= input.present
                && (!naive || from <= occupancy);
            if !sound {
                return Err(format!(
                    "port {slot}: cnt1 {cnt1} of {scan} queued, cnt2 {cnt2}, occupancy \
                     {occupancy} of {waiting}, {from} to mark from here"
                ));
            }
            let taken = self.slots_taken(slot as u8, free_at_head);
            if taken > self.slots {
                return Err(format!(
                    "port {slot}: {taken} packets in a buffer of {}",
                    self.slots
                ));
            }
        }
        Ok(())
    }
}
