//! Hosts: a NIC that sends one packet at a time, round-robin over the classes of data and, in each class, over the
//! flows that are ready. A host answers each data packet with an ACK.
//!
//! A sender and a receiver share only packets, so they may be in different parts of the network.

use std::collections::hash_map::Entry;

use ecn_core::tcd::Mark;

use super::{Event, Run};
use crate::engine::{NS, Time};
use crate::fabric::cc::{Acknowledged, Cnm, Endpoints, LastNotification, Scheme, Sender, Sending};
use crate::fabric::links::{self, CutThrough, Link};
use crate::fabric::measure::Finished;
use crate::fabric::packet::{HELD, Kind, LAST, Linked, NONE, Packet};
use crate::fabric::workload::{Arrival, UNLIMITED};

/// Scheduling state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Waiting for ACKs.
    Waits,
    /// In the queue of its host and class.
    Ready,
    /// Waiting until its rate permits a packet, to be queued then.
    Paced,
}

/// A flow at its sender.
#[derive(Clone, Copy, Debug)]
pub struct SenderFlow<S> {
    bytes: u64,
    start: Time,
    /// When its rate permits the next packet.
    next_time: Time,
    /// When it stops sending.
    stop: Time,
    /// When it last made progress.
    progress: Time,
    /// Its number, in order of starts.
    id: u32,
    from: u32,
    to: u32,
    packets: u32,
    /// Number of the packet to send next.
    next: u32,
    /// All packets below this number are acknowledged.
    acked: u32,
    /// The next flow in its host's queue.
    link: u32,
    state: State,
    /// Class of its data.
    class: u8,
    /// Number of its report class.
    label: u16,
    /// ACKs that reported a congested port.
    marked: u32,
    /// ACKs that reported undetermined ports only.
    undetermined: u32,
    /// Union of the flags of all its ACKs.
    flags: u8,
    /// Number of times its timeout is doubled: one per expiry without progress.
    backoff: u8,
    /// Whether its timer is pending.
    timed: bool,
    finished: bool,
    /// Maximum rate offered by its application, bytes per second.
    rate: u64,
    scheme: S,
}

/// A flow at its receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receiver {
    /// Number of the next expected packet.
    expected: u32,
    /// Whether it has requested that packet.
    asked: bool,
    /// Its last notification.
    notified: LastNotification,
}

impl<S> SenderFlow<S> {
    const fn endpoints(&self) -> Endpoints {
        Endpoints {
            from: self.from,
            to: self.to,
            class: self.class,
        }
    }

    /// Its results so far, with `bytes` transferred, without its completion time.
    fn so_far(&self, bytes: u64) -> Finished {
        Finished {
            id: self.id,
            from: self.from,
            to: self.to,
            bytes,
            start: self.start,
            priority: self.class,
            label: self.label,
            time: 0,
            slowdown: 0.0,
            marked: self.marked,
            undetermined: self.undetermined,
            flags: self.flags,
        }
    }
}

impl<S> Linked for SenderFlow<S> {
    #[inline]
    fn next(&mut self) -> &mut u32 {
        &mut self.link
    }
}

/// Time until an application that offers this rate, bytes per second, has the next packet.
#[inline]
const fn offered_time(rate: u64, bytes: u32) -> Time {
    match rate {
        UNLIMITED => 0,
        // Less than 2^64: packets are shorter than 2^14 bytes.
        rate => bytes as u64 * 1_000_000_000_000 / rate,
    }
}

/// Maximum number of doublings of a timer.
const MOST_BACKOFF: u8 = 6;

impl<S: Scheme> Run<'_, S> {
    /// A flow starts.
    pub(in crate::fabric) fn start(&mut self, id: u32, arrival: Arrival) {
        let now = self.now();
        let packets = arrival.bytes.div_ceil(self.payload.into()) as u32;
        self.counts.flows_started += 1;
        let timed = self.repeats;
        let endpoints = Endpoints {
            from: arrival.from,
            to: arrival.to,
            class: arrival.priority,
        };
        let flow = self.flows.insert(SenderFlow {
            bytes: arrival.bytes,
            start: now,
            next_time: now,
            stop: arrival.stop,
            progress: now,
            id,
            from: arrival.from,
            to: arrival.to,
            packets,
            next: 0,
            acked: 0,
            link: NONE,
            state: State::Waits,
            class: arrival.priority,
            label: arrival.label,
            marked: 0,
            undetermined: 0,
            flags: 0,
            backoff: 0,
            timed,
            finished: false,
            rate: arrival.rate,
            scheme: self.sender.on_start(endpoints),
        });
        let Some(flow) = flow else {
            return self.too_many("flows");
        };
        if timed {
            self.at(now + self.retransmit_after, Event::Timer, flow);
        }
        self.try_send(flow);
    }

    /// Queues or paces a waiting flow, if it may send.
    fn try_send(&mut self, number: u32) {
        let now = self.now();
        let flow = &mut self.flows[number];
        if now >= flow.stop && flow.next < flow.packets {
            return self.stop_flow(number);
        }
        if flow.state != State::Waits
            || flow.next >= flow.packets
            || flow.next - flow.acked >= self.window
        {
            return;
        }
        if flow.next_time > now {
            flow.state = State::Paced;
            let time = flow.next_time;
            return self.at(time, Event::Paced, number);
        }
        flow.state = State::Ready;
        let (port, class) = (flow.from, flow.class);
        self.ports.push(port, class, &mut self.flows, number);
        self.wake(port);
    }

    /// Ends a flow with the packets sent so far.
    #[cold]
    fn stop_flow(&mut self, number: u32) {
        let flow = &mut self.flows[number];
        flow.packets = flow.next;
        flow.bytes = u64::from(flow.packets) * u64::from(self.payload);
        if flow.acked == flow.packets {
            self.finish(number);
        }
    }

    /// Handles the expiry of a flow's pacing timer.
    pub(in crate::fabric) fn paced(&mut self, number: u32) {
        let flow = &mut self.flows[number];
        flow.state = State::Waits;
        if flow.finished {
            self.retire(number);
        } else {
            self.try_send(number);
        }
    }

    /// Sends a packet of the first flow in one of a host's queues; `false` if all are empty.
    #[inline]
    pub(in crate::fabric) fn send_next(&mut self, port: u32) -> bool {
        let now = self.now();
        let held = self.ports[port as usize].held();
        loop {
            let Some(number) = self.ports.pop(port, &mut self.flows) else {
                return false;
            };
            let flow = &mut self.flows[number];
            flow.state = State::Waits;
            if now >= flow.stop && flow.next < flow.packets {
                self.stop_flow(number);
                continue;
            }
            if flow.next >= flow.packets {
                // Everything was acknowledged while it was queued for retransmission.
                self.retire(number);
                continue;
            }
            let packet = flow.next;
            flow.next += 1;
            let payload = if flow.next == flow.packets {
                flow.bytes - u64::from(packet) * u64::from(self.payload)
            } else {
                self.payload.into()
            };
            let bytes = payload as u32 + self.header;
            let from = flow.from;
            let wire = self.wire_time_at(from, bytes);
            let end = now + wire;
            let flow = &mut self.flows[number];
            let endpoints = flow.endpoints();
            let tag = self.sender.tag(endpoints);
            let sending = Sending {
                now,
                endpoints,
                bytes,
                wire,
            };
            let gap = self.sender.on_send(&mut flow.scheme, &sending);
            flow.next_time = gap.map_or(end, |gap| now + gap);
            flow.next_time = flow.next_time.max(now + offered_time(flow.rate, bytes));
            // Queued again at once if it will be ready when the port is.
            let more = flow.next < flow.packets && flow.next - flow.acked < self.window;
            if more {
                flow.state = if flow.next_time <= end {
                    State::Ready
                } else {
                    State::Paced
                };
            }
            let (state, time, class) = (flow.state, flow.next_time, flow.class);
            let id = self.packets.insert(Packet {
                flow: number,
                id: flow.id,
                number: packet,
                link: NONE,
                note: tag.unwrap_or((now / NS) as u32),
                source: flow.from as u16,
                destination: flow.to as u16,
                ingress: 0,
                bytes: bytes as u16,
                kind: Kind::Data,
                mark: Mark::None,
                flags: if packet + 1 == flow.packets { LAST } else { 0 }
                    | if held >> class & 1 != 0 { HELD } else { 0 },
                class,
            });
            match state {
                State::Ready => self.ports.push(port, class, &mut self.flows, number),
                State::Paced => self.at(time, Event::Paced, number),
                State::Waits => {}
            }
            let Some(id) = id else {
                self.too_many("packets");
                return false;
            };
            self.data_sent += 1;
            self.transmit(port, id);
            return true;
        }
    }

    /// Handles an answer that has arrived at its destination host.
    #[inline]
    pub(in crate::fabric) fn receive(&mut self, number: u32) {
        let packet = self.packets[number];
        match packet.kind {
            Kind::Ack | Kind::Nak => self.acknowledge(packet),
            Kind::Cnp => {
                let now = self.now();
                let flow = &mut self.flows[packet.flow];
                if flow.id == packet.id {
                    self.sender
                        .on_notification(&mut flow.scheme, now, packet.mark);
                }
            }
            Kind::Cnm => {
                let now = self.now();
                let flow = &mut self.flows[packet.flow];
                // The limiter of a finished flow was removed with it (BCN).
                if flow.id == packet.id && !flow.finished {
                    let notice = Cnm {
                        point: packet.number,
                        feedback: packet.note,
                    };
                    let endpoints = flow.endpoints();
                    self.sender
                        .on_feedback(&mut flow.scheme, now, endpoints, notice);
                }
            }
            Kind::Data | Kind::Pause | Kind::Resume | Kind::Credit => {
                return self.broken("a port's message went beyond its link", packet.link);
            }
        }
        self.packets.remove(number);
    }

    /// Handles data that has arrived at its destination host.
    #[inline]
    pub(in crate::fabric) fn receive_data(&mut self, number: u32) {
        let now = self.now();
        let packet = self.packets[number];
        let to = u32::from(packet.destination);
        self.data_delivered += 1;
        self.host_takes(to, packet.class, packet.bytes.into());
        let mut entry = match self.receivers.entry(packet.id) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => entry.insert_entry(Receiver::default()),
        };
        let receiver = entry.get_mut();
        let mut kind = Kind::Ack;
        let mut answers = true;
        let mut complete = false;
        if packet.number == receiver.expected {
            receiver.expected += 1;
            receiver.asked = false;
            complete = packet.flags & LAST != 0;
            if let Some(series) = &mut self.series {
                let payload = u32::from(packet.bytes) - self.header;
                series.deliver(packet.id, payload.into());
            }
        } else if packet.number > receiver.expected {
            if !self.repeats {
                return self.broken("a packet is missing in a lossless run", to);
            }
            kind = Kind::Nak;
            answers = !receiver.asked;
            receiver.asked = true;
        }
        let answer = Packet {
            number: receiver.expected,
            source: packet.destination,
            destination: packet.source,
            bytes: self.ack_bytes as u16,
            kind,
            ..packet
        };
        let notifies = match packet.mark {
            Mark::None => false,
            mark => {
                if let Some(trace) = &mut self.trace {
                    trace.on_mark(now, to, &packet);
                }
                self.sender.on_mark(&mut receiver.notified, now, mark)
            }
        };
        // If packets can be lost, late copies of others may follow.
        if complete && !self.repeats {
            entry.remove();
        }
        if notifies {
            let cnp = Packet {
                bytes: self.cnp_bytes as u16,
                kind: Kind::Cnp,
                ..answer
            };
            match self.packets.insert(cnp) {
                Some(cnp) => self.send_control(to, cnp),
                None => return self.too_many("packets"),
            }
        }
        if answers {
            // The packet is turned into its ACK.
            self.packets[number] = answer;
            self.send_control(to, number);
        } else {
            self.packets.remove(number);
        }
        if complete
            && let Some(ring) = self.ring
            && let Some((id, next)) = ring.after(packet.id, to)
        {
            self.start(id, next);
        }
    }

    fn acknowledge(&mut self, ack: Packet) {
        let now = self.now();
        let flow = &mut self.flows[ack.flow];
        // The slot of a finished flow may be in use by another.
        if flow.finished || flow.id != ack.id {
            return;
        }
        if ack.number > flow.acked {
            flow.acked = ack.number;
            flow.progress = now;
            flow.backoff = 0;
            flow.next = flow.next.max(flow.acked);
        }
        if ack.kind == Kind::Nak && ack.number >= flow.acked {
            flow.next = ack.number;
        }
        match ack.mark {
            Mark::None => {}
            Mark::Undetermined => flow.undetermined += 1,
            Mark::Congestion => flow.marked += 1,
        }
        flow.flags |= ack.flags;
        let in_flight = flow.next - flow.acked;
        let ack_ns = (now / NS) as u32;
        let acknowledged = Acknowledged {
            now,
            rtt: Time::from(ack_ns.wrapping_sub(ack.note)) * NS,
            mark: ack.mark,
            in_flight,
            wire: self.data_time,
        };
        if let Some(time) = self.sender.on_ack(&mut flow.scheme, &acknowledged) {
            flow.next_time = time;
        }
        if flow.acked == flow.packets {
            self.finish(ack.flow);
        } else if flow.state == State::Waits {
            self.try_send(ack.flow);
        }
    }

    /// Handles a flow's last ACK.
    fn finish(&mut self, number: u32) {
        let now = self.now();
        let flow = &mut self.flows[number];
        flow.finished = true;
        let flow = *flow;
        self.sender.on_finish(flow.endpoints());
        let ideal = self.ideal(&flow);
        let time = now - flow.start;
        self.counts.last_end = now;
        self.counts.finished.push(Finished {
            time,
            slowdown: time as f64 / ideal as f64,
            ..flow.so_far(flow.bytes)
        });
        self.retire(number);
    }

    /// Retransmission timer. Without progress since the last expiry, the flow retransmits all unacknowledged packets,
    /// and doubles its timeout: two flows that repeat at the same pace could fill the queue in front of each other
    /// forever.
    pub(in crate::fabric) fn timer(&mut self, number: u32) {
        let now = self.now();
        let flow = &mut self.flows[number];
        if flow.finished {
            flow.timed = false;
            return self.retire(number);
        }
        if now - flow.progress >= self.retransmit_after << flow.backoff {
            flow.progress = now;
            flow.next = flow.acked;
            flow.backoff = (flow.backoff + 1).min(MOST_BACKOFF);
        }
        let time = flow.progress + (self.retransmit_after << flow.backoff);
        self.at(time, Event::Timer, number);
        self.try_send(number);
    }

    /// Unfinished flows, with their acknowledged payload and without a slowdown.
    pub(in crate::fabric) fn unfinished(&self, end: Time) -> impl Iterator<Item = Finished> {
        let flows = self.flows.values().filter(|flow| !flow.finished);
        flows.map(move |flow| Finished {
            time: end - flow.start,
            ..flow.so_far(u64::from(flow.acked) * u64::from(self.payload))
        })
    }

    /// Frees the slot of a flow that is finished and not referred to by any event.
    #[inline]
    fn retire(&mut self, number: u32) {
        let flow = &self.flows[number];
        if flow.finished && !flow.timed && flow.state == State::Waits {
            self.flows.remove(number);
        }
    }

    /// Completion time of a flow alone in an idle network, at the rate that its application offers ([`links::ideal`]).
    fn ideal(&self, flow: &SenderFlow<<S::Sender as Sender>::Flow>) -> Time {
        let payload = u64::from(self.payload);
        // A flow that stopped before its first packet has none.
        let packets = flow.bytes.div_ceil(payload).max(1);
        let rest = (flow.bytes - (packets - 1) * payload) as u32 + self.header;
        let path = |from, to, hash| -> Vec<Link> {
            match &self.links {
                None => vec![self.link; self.topology.hops(from, to) as usize],
                Some(links) => {
                    let ports = self.topology.path(from, to, hash).into_iter();
                    ports.map(|port| links[port as usize]).collect()
                }
            }
        };
        let there = path(flow.from, flow.to, flow.id);
        let back = path(flow.to, flow.from, !flow.id);
        let gap = offered_time(flow.rate, self.full);
        let bytes = [self.full, rest, self.ack_bytes];
        match &self.input_queued {
            None => links::ideal(&there, &back, packets, gap, bytes),
            Some(switches) => {
                let switches = CutThrough {
                    delay: switches.forwarding(0),
                    stores: switches.stores(),
                };
                switches.ideal(&there, &back, packets, gap, bytes)
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::engine::MS;
    use crate::fabric::cc::bcn::UNTAGGED;
    use crate::fabric::part::Part;
    use crate::fabric::{Scenario, topology::Topology};
    use ecn_core::bcn::Feedback;

    /// One flow between two hosts, through a switch that drops packets that do not fit.
    fn with_run(scheme: &str, then: impl FnOnce(Run, &Topology)) {
        let mut scenario = Scenario::find("leaf-spine").unwrap();
        for setting in [
            "hosts=2",
            "leaves=1",
            "spines=1",
            "senders=1",
            "flow_control=none",
            "flow_size=10MB",
            scheme,
        ] {
            scenario.set_text(setting).unwrap();
        }
        let topology = scenario.topology().unwrap();
        then(
            Run::new(&scenario, &topology, Part::ALL, 1).unwrap(),
            &topology,
        );
    }

    /// The timeout of a flow without progress doubles, up to 64 times.
    #[test]
    fn a_flow_without_progress_waits_twice_as_long() {
        with_run("scheme=none", |mut run, topology| {
            run.advance(1);
            let to = run.flows[0].to;
            run.ports[topology.peer[to as usize] as usize].off = 1;
            for (ms, last, backoff) in [
                (2, 1, 1),
                (6, 3, 2),
                (14, 7, 3),
                (30, 15, 4),
                (62, 31, 5),
                (126, 63, 6),
                (190, 127, 6),
                (254, 191, 6),
            ] {
                run.advance(ms * MS);
                let flow = &run.flows[0];
                assert_eq!((flow.progress, flow.backoff), (last * MS, backoff));
            }
        });
    }

    /// A receiver requests a missing packet once; it requests the next missing one only after that has arrived.
    #[test]
    fn what_is_missing_is_asked_for_once() {
        with_run("scheme=none", |mut run, _| {
            let mut answer = |number| {
                let before = run.packets.len();
                let data = Packet {
                    id: 9,
                    flow: 0,
                    destination: 1,
                    bytes: 1_062,
                    ..Packet::of_link(Kind::Data, 0, number)
                };
                let id = run.packets.insert(data).unwrap();
                run.receive_data(id);
                let answered = run.packets.len() > before;
                answered.then(|| (run.packets[id].kind, run.packets[id].number))
            };
            assert_eq!(answer(0), Some((Kind::Ack, 1)));
            assert_eq!(answer(2), Some((Kind::Nak, 1)));
            assert_eq!([answer(3), answer(4)], [None; 2]);
            assert_eq!(answer(1), Some((Kind::Ack, 2)));
            assert_eq!(answer(3), Some((Kind::Nak, 2)));
            // A needless retransmission of a packet that has arrived.
            assert_eq!(answer(0), Some((Kind::Ack, 2)));
        });
    }

    /// A flow goes back at once when it is requested to; an ACK alone does not indicate missing packets.
    #[test]
    fn a_flow_goes_back_when_it_is_asked_to() {
        with_run("scheme=none", |mut run, _| {
            // A microsecond: twelve packets, and no answer yet.
            run.advance(1_000 * NS);
            let flow = run.flows[0];
            assert!(flow.next > 10 && flow.acked == 0);
            let mut deliver_to = |id, kind, number| {
                let id = run.packets.insert(Packet {
                    flow: 0,
                    id,
                    ..Packet::of_link(kind, 0, number)
                });
                run.receive(id.unwrap());
                (run.flows[0].acked, run.flows[0].next)
            };
            let mut deliver = |kind, number| deliver_to(flow.id, kind, number);
            assert_eq!(deliver(Kind::Ack, 2), (2, flow.next));
            assert_eq!(deliver(Kind::Nak, 3), (3, 3));
            // Packets that it would have retransmitted have arrived in the meantime.
            assert_eq!(deliver(Kind::Ack, 8), (8, 8));
            // An ACK for an earlier flow in the same slot is ignored.
            assert_eq!(deliver_to(flow.id + 1, Kind::Ack, 10), (8, 8));
        });
    }

    /// A switch's message about a finished flow creates no limiter, which would never be removed.
    #[test]
    fn a_finished_flow_ignores_notifications() {
        for finished in [true, false] {
            with_run("scheme=bcn", |mut run, _| {
                run.advance(1);
                run.flows[0].finished = finished;
                let endpoints = run.flows[0].endpoints();
                let far_above_its_aim = Feedback {
                    offset_bytes: -64_000,
                    delta_bytes: 0,
                };
                let id = run.packets.insert(Packet {
                    flow: 0,
                    id: run.flows[0].id,
                    note: far_above_its_aim.to_word(),
                    ..Packet::of_link(Kind::Cnm, 0, 7)
                });
                run.receive(id.unwrap());
                let tag = if finished { UNTAGGED } else { 7 };
                assert_eq!(run.sender.tag(endpoints), Some(tag));
            });
        }
    }
}
