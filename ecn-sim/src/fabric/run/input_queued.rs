//! HP's switch: packets wait in slots of the input at which they arrived, any number of outputs can read an input at a
//! time, and headers are forwarded before the rest has arrived (cut-through).
//!
//! Order, overtaking and marking are implemented by `Switch`; this module connects it to the network. A packet takes
//! a slot of the next switch's input from its start on a link until its tail has left that switch. Its credit returns
//! at once, without a message.

use ecn_core::marking::Marking;

use super::Run;
use crate::bounds::ModelError;
use crate::engine::{NS, Time};
use crate::fabric::cc::{Hp, Name, Scheme, Switch as _};
use crate::fabric::packet::Packet;
use crate::fabric::parameters;
use crate::fabric::scenario::Scenario;
use crate::fabric::topology::Topology;
use crate::model::{Forwarding, Model, SlotFreed};
use crate::switch::Switch;

/// All switches of a network, and the credits for their slots.
#[derive(Debug)]
pub struct InputQueued {
    switches: Vec<Switch>,
    /// Slots of an input.
    slots: u32,
    /// By port: free slots at the other end of its link; unlimited at a host.
    credits: Vec<u32>,
    /// Whether a slot is freed when the header leaves.
    free_at_head: bool,
    /// Whether packets are stored before they are forwarded.
    whole: bool,
    /// From the arrival of the data needed for forwarding to the earliest departure.
    forwarding: Time,
}

/// Slot of a port in [`Switch`], where they start at 1.
const fn slot(own: u16) -> u8 {
    own as u8 + 1
}

impl InputQueued {
    /// The switches of a scenario; `None` if they are of another kind.
    ///
    /// # Errors
    ///
    /// A switch has more ports than marking can number, or HP's parameters are invalid.
    pub fn new(scenario: &Scenario, topology: &Topology) -> Result<Option<Self>, ModelError> {
        let params = &scenario.parameters;
        if params.switch != parameters::Switch::InputQueued {
            return Ok(None);
        }
        let most = topology.most_ports();
        if most > 255 {
            let reason =
                format!("HP's marking supports switches with up to 255 ports, and one has {most}");
            return Err(ModelError::new("switch", params.switch, reason));
        }
        let marking = match params.scheme {
            Name::Hp(Hp(_, marking)) => marking,
            _ => Marking::None,
        };
        let hp = &scenario.schemes.hp;
        let model = Model {
            buffer: params.slots,
            bypass: params.bypass,
            bypass_counts: params.bypass_counts,
            arbitration: params.arbitration,
            crossbar: params.crossbar,
            mark_in: params.mark_in.clone(),
            ..hp.model(marking, params.link_rate, scenario.frame())
        };
        let switch = |(number, name): (u32, &String)| {
            let ports = topology
                .ports(number)
                .map(|port| topology.peer[port as usize]);
            // Slot 0 is unused.
            let upstream: Vec<u32> = std::iter::once(0).chain(ports).collect();
            Switch::new(name, &upstream, &model)
        };
        let to_host = |peer: &u32| *peer < topology.hosts;
        Ok(Some(Self {
            switches: (0..).zip(&topology.names).map(switch).collect(),
            slots: params.slots,
            credits: (topology.peer.iter())
                .map(|peer| {
                    if to_host(peer) {
                        u32::MAX
                    } else {
                        params.slots
                    }
                })
                .collect(),
            free_at_head: params.slot_freed == SlotFreed::Head,
            whole: params.forwarding == Forwarding::StoreAndForward,
            forwarding: params.forwarding_delay.as_nanos() * NS,
        }))
    }

    /// From the time at which data with transmission time `wire` starts to arrive at a switch until the switch can
    /// forward it. `wire` is 0 for anything but data, which always cuts through.
    #[inline]
    pub const fn forwarding(&self, wire: Time) -> Time {
        self.forwarding + if self.whole { wire } else { 0 }
    }

    /// Whether data packets are stored before they are forwarded.
    pub const fn stores(&self) -> bool {
        self.whole
    }

    /// A port starts a data packet. Returns whether there is a credit for another one.
    #[inline]
    pub fn on_transmit(&mut self, port: u32) -> bool {
        let credits = &mut self.credits[port as usize];
        if *credits != u32::MAX {
            *credits -= 1;
        }
        *credits > 0
    }

    /// The packets that wait in a switch.
    pub fn waiting(&self, switch: u32) -> impl Iterator<Item = u32> {
        let ports = self.switches[switch as usize].ports.iter();
        ports
            .flat_map(|port| &port.queue)
            .map(|waiting| waiting.packet)
    }

    /// Compares the switches' counters with their waiting packets.
    ///
    /// # Errors
    ///
    /// The port with a difference, and a description of it.
    pub fn check(&self, topology: &Topology) -> Result<(), (u32, String)> {
        for (number, switch) in (0..).zip(&self.switches) {
            let ports = topology.ports(number);
            switch
                .check(self.free_at_head)
                .map_err(|what| (ports.start, what))?;
            for port in ports {
                let upstream = topology.peer[port as usize];
                let free = self.credits[upstream as usize];
                let taken = switch.slots_taken(slot(topology.port_index(port)), self.free_at_head);
                // The others are in flight.
                if free.saturating_add(taken) > self.slots {
                    let slots = self.slots;
                    let what = format!("{free} credits, and {taken} packets in {slots} slots");
                    return Err((port, what));
                }
            }
        }
        Ok(())
    }
}

impl<S: Scheme> Run<'_, S> {
    /// Handles a packet's header at a switch: the packet cuts through, or waits.
    pub(in crate::fabric) fn arrive_input_queued(&mut self, id: u32, ingress: u32, lane: usize) {
        let now = self.now();
        let came_by = &self.ports[ingress as usize];
        let (number, own) = (came_by.node, came_by.index);
        let packet = &mut self.packets[id];
        packet.ingress = own;
        let Packet { bytes, class, .. } = *packet;
        let to = packet.destination.into();
        let out = self.topology.route(number, to, packet.hash());
        let port = &self.ports[out as usize];
        let idle = !port.wakes && port.busy_until <= now;
        let (output, can_start) = (slot(port.index), idle && port.off >> class & 1 == 0);
        let Some(input_queued) = &mut self.input_queued else {
            return;
        };
        let switch = &mut input_queued.switches[number as usize];
        let waits = !switch.arrive(now, id, slot(own), output, can_start);
        if (waits && self.hooks.waiting || self.hooks.passing) && self.marks(number) {
            self.on_enqueue(id, out, waits);
        }
        if !waits {
            self.send(out, id, lane);
            self.wakes_at_end(out);
            return self.head_left(ingress);
        }
        if let Some(met) = self.congestion_met(out, class) {
            self.packets[id].flags |= met;
        }
        self.ports.on_enqueue(out, class, bytes.into());
        // If triggers precede dispatch, the packet has not been offered to the output yet.
        self.wake(out);
    }

    /// Starts the next packet of an idle output, if one may be sent.
    pub(in crate::fabric) fn take_next(&mut self, out: u32) {
        let port = &self.ports[out as usize];
        let (number, output) = (port.node, slot(port.index));
        let Some(input_queued) = &mut self.input_queued else {
            return;
        };
        if port.off & 1 != 0 {
            return;
        }
        let switch = &mut input_queued.switches[number as usize];
        let Some((next, marks)) = switch.next(output) else {
            return;
        };
        let empty = switch.ports[output as usize].queue.is_empty();
        let id = next.packet;
        let Packet {
            bytes, class, mark, ..
        } = self.packets[id];
        self.ports.on_dequeue(out, class, bytes.into(), empty);
        let view = self.queue_view(id, out);
        if marks {
            self.packets[id].mark = ecn_core::tcd::Mark::Congestion;
        }
        if self.hooks.leaving && self.marks(number) {
            self.switch.on_dequeue(&view, &mut self.packets[id], true);
        }
        self.record_mark(&view, mark, id);
        self.send(out, id, self.lane(id));
        self.wakes_at_end(out);
        let ingress = self.topology.ports(number).start + u32::from(next.input) - 1;
        self.head_left(ingress);
        self.wake_unblocked(number, next.input, output);
    }

    /// A header that arrived at this port has left: frees its slot, if that is when slots are freed.
    #[inline]
    fn head_left(&mut self, ingress: u32) {
        if self
            .input_queued
            .as_ref()
            .is_some_and(|switches| switches.free_at_head)
        {
            self.free_slot(ingress);
        }
    }

    /// Frees a slot at the input of a port: its credit may release the other end.
    #[inline]
    fn free_slot(&mut self, ingress: u32) {
        let upstream = self.topology.peer[ingress as usize];
        if let Some(switches) = &mut self.input_queued {
            switches.credits[upstream as usize] += 1;
        }
        self.set_on(upstream, 0, true);
        self.wake(upstream);
    }

    /// The tail of an output's packet has left. If it was data, continues with the next packet and frees the slot.
    pub(in crate::fabric) fn tail_left(&mut self, out: u32) {
        let port = &self.ports[out as usize];
        let (number, output) = (port.node, slot(port.index));
        let Some(input_queued) = &mut self.input_queued else {
            return;
        };
        let switch = &mut input_queued.switches[number as usize];
        if !switch.ports[output as usize].busy {
            return self.serve(out);
        }
        let input = switch.leave(output);
        let free_at_head = input_queued.free_at_head;
        self.serve(out);
        self.wake_unblocked(number, input, output);
        if !free_at_head {
            self.free_slot(self.topology.ports(number).start + u32::from(input) - 1);
        }
    }

    /// Wakes the outputs whose packets were held up by the packet that has left `input` through `output`.
    #[inline]
    fn wake_unblocked(&mut self, number: u32, input: u8, output: u8) {
        let Some(input_queued) = &self.input_queued else {
            return;
        };
        let switch = &input_queued.switches[number as usize];
        if switch.is_plain() {
            return;
        }
        let first = self.topology.ports(number).start;
        for other in switch.held_up(input, output) {
            self.wake(first + u32::from(other) - 1);
        }
    }
}
