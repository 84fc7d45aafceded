//! Hosts: a NIC that sends one packet at a time, in turn for each flow that is ready, and answers each
//! data packet with an ACK.

use super::measure::Finished;
use super::packet::{Kind, Linked, NONE, Packet};
use super::run::{Event, Run};
use super::workload::Arrival;
use crate::engine::Time;

/// Where a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It waits for ACKs.
    Waits,
    /// It is in its host's line.
    Ready,
    /// It gets there when its rate allows.
    Paced,
}

/// A flow, both ends.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    bytes: u64,
    start: Time,
    /// When its rate allows the next packet.
    next_time: Time,
    /// When it last made progress.
    progress: Time,
    pub(super) from: u32,
    to: u32,
    packets: u32,
    /// Number of the packet to send next.
    next: u32,
    /// All before this one are acknowledged.
    acked: u32,
    /// Receiver: the one that comes next.
    expected: u32,
    /// Packets and events under way that name it.
    references: u32,
    /// Behind it in its host's line.
    link: u32,
    hash: u32,
    state: State,
    /// Its timer is so many times doubled: as often as it ran out since there was progress.
    backoff: u8,
    /// Receiver: it asked for `expected`.
    asked: bool,
    finished: bool,
}

impl Linked for Flow {
    #[inline]
    fn next(&mut self) -> &mut u32 {
        &mut self.link
    }
}

/// A timer is doubled at most so many times.
const MOST_BACKOFF: u8 = 6;

impl Run<'_> {
    /// A flow starts.
    pub(super) fn start(&mut self, arrival: Arrival) {
        let now = self.now();
        let packets = arrival.bytes.div_ceil(self.payload.into()) as u32;
        self.counts.flows_started += 1;
        let flow = self.flows.insert(Flow {
            bytes: arrival.bytes,
            start: now,
            next_time: now,
            progress: now,
            from: arrival.from,
            to: arrival.to,
            packets,
            next: 0,
            acked: 0,
            expected: 0,
            references: 0,
            link: NONE,
            // Well mixed where it is used.
            hash: self.counts.flows_started as u32,
            state: State::Waits,
            backoff: 0,
            asked: false,
            finished: false,
        });
        let Some(flow) = flow else {
            return self.too_many("flows");
        };
        self.scheme.start(flow);
        if !self.lossless {
            self.flows[flow].references += 1;
            self.at(now + self.retransmit_after, Event::Timer, flow);
        }
        self.go_on(flow);
    }

    /// A flow that waits goes on if it may.
    fn go_on(&mut self, number: u32) {
        let now = self.now();
        let flow = &mut self.flows[number];
        if flow.state != State::Waits
            || flow.next >= flow.packets
            || flow.next - flow.acked >= self.window
        {
            return;
        }
        if flow.next_time > now {
            flow.state = State::Paced;
            flow.references += 1;
            let time = flow.next_time;
            return self.at(time, Event::Paced, number);
        }
        flow.state = State::Ready;
        let port = flow.from;
        self.ports[port as usize].data.push(&mut self.flows, number);
        self.wake(port);
    }

    /// The time that its rate gave a flow has come.
    pub(super) fn paced(&mut self, number: u32) {
        let flow = &mut self.flows[number];
        flow.references -= 1;
        flow.state = State::Waits;
        self.go_on(number);
        self.retire(number);
    }

    /// The first flow in a host's line sends; `false` if there is none.
    #[inline]
    pub(super) fn emit(&mut self, port: u32) -> bool {
        let now = self.now();
        loop {
            let Some(number) = self.ports[port as usize].data.pop(&mut self.flows) else {
                return false;
            };
            let flow = &mut self.flows[number];
            flow.state = State::Waits;
            if flow.next >= flow.packets {
                // Acknowledged while it stood in line to send again.
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
            let id = self.packets.insert(Packet {
                flow: number,
                number: packet,
                next: NONE,
                port,
                ingress: NONE,
                destination: flow.to,
                hash: flow.hash,
                bytes: bytes as u16,
                kind: Kind::Data,
                marked: false,
            });
            let Some(id) = id else {
                self.too_many("packets");
                return false;
            };
            self.data_sent += 1;
            let end = now + self.wire_time(bytes);
            let flow = &mut self.flows[number];
            flow.references += 1;
            flow.next_time = match self.scheme.sends(number, now, bytes) {
                // Less than 2^64: a packet has less than 2^14 bytes.
                Some(rate) => now + u64::from(bytes) * 1_000_000_000_000 / rate,
                None => end,
            };
            // In line again at once, if it will be ready when the port is.
            if flow.next < flow.packets && flow.next - flow.acked < self.window {
                if flow.next_time <= end {
                    flow.state = State::Ready;
                    self.ports[port as usize].data.push(&mut self.flows, number);
                } else {
                    flow.state = State::Paced;
                    flow.references += 1;
                    let time = flow.next_time;
                    self.at(time, Event::Paced, number);
                }
            }
            self.transmit(port, id);
            return true;
        }
    }

    /// A packet is at its host.
    #[inline]
    pub(super) fn receive(&mut self, id: u32) {
        let packet = self.packets[id];
        let flow = packet.flow;
        match packet.kind {
            Kind::Data => self.receive_data(id),
            Kind::Ack | Kind::Nak => {
                self.acknowledge(packet);
                self.forget(id);
            }
            Kind::Cnp => {
                let now = self.now();
                self.scheme.notified(flow, now);
                self.forget(id);
            }
            Kind::Pause | Kind::Resume => {
                self.broken("a PFC frame went beyond its link", packet.port)
            }
        }
    }

    fn receive_data(&mut self, id: u32) {
        let packet = self.packets[id];
        self.data_delivered += 1;
        let flow = &mut self.flows[packet.flow];
        let (from, to, hash) = (flow.from, flow.to, !flow.hash);
        let mut kind = Kind::Ack;
        let mut answers = true;
        if packet.number == flow.expected {
            flow.expected += 1;
            flow.asked = false;
        } else if packet.number > flow.expected {
            if self.lossless {
                return self.broken("a packet is missing in a lossless run", to);
            }
            kind = Kind::Nak;
            answers = !flow.asked;
            flow.asked = true;
        }
        let expected = flow.expected;
        let answer = Packet {
            number: expected,
            destination: from,
            hash,
            bytes: self.ack_bytes as u16,
            kind,
            marked: false,
            ..packet
        };
        if packet.marked && self.scheme.notifies(packet.flow, self.now()) {
            self.flows[packet.flow].references += 1;
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
            // The packet goes back as its ACK.
            self.packets[id] = answer;
            self.send_control(to, id);
        } else {
            self.forget(id);
        }
    }

    fn acknowledge(&mut self, ack: Packet) {
        let now = self.now();
        let flow = &mut self.flows[ack.flow];
        if flow.finished {
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
        if flow.acked == flow.packets {
            flow.finished = true;
            let (bytes, start, from, to) = (flow.bytes, flow.start, flow.from, flow.to);
            let ideal = self.ideal(bytes, from, to);
            let time = now - start;
            self.counts.last_end = now;
            self.counts.finished.push(Finished {
                bytes,
                time,
                slowdown: time as f64 / ideal as f64,
            });
        } else if flow.state == State::Waits {
            self.go_on(ack.flow);
        }
    }

    /// Was there progress since this came last? If not, the flow sends again what is not acknowledged,
    /// and waits twice as long for the next time: two flows that repeat at the same pace can fill the
    /// queue in front of each other for ever.
    pub(super) fn timer(&mut self, number: u32) {
        let now = self.now();
        let flow = &mut self.flows[number];
        if flow.finished {
            flow.references -= 1;
            return self.retire(number);
        }
        if now - flow.progress >= self.retransmit_after << flow.backoff {
            flow.progress = now;
            flow.next = flow.acked;
            flow.backoff = (flow.backoff + 1).min(MOST_BACKOFF);
        }
        let time = flow.progress + (self.retransmit_after << flow.backoff);
        self.at(time, Event::Timer, number);
        self.go_on(number);
    }

    /// A packet is gone.
    #[inline]
    pub(super) fn forget(&mut self, id: u32) {
        let flow = self.packets[id].flow;
        self.packets.remove(id);
        self.flows[flow].references -= 1;
        self.retire(flow);
    }

    /// The number of a flow that is finished and named nowhere is free again.
    #[inline]
    fn retire(&mut self, number: u32) {
        let flow = &self.flows[number];
        if flow.finished && flow.references == 0 && flow.state == State::Waits {
            self.flows.remove(number);
        }
    }

    /// Completion time of a flow alone in an idle network: all packets leave back to back, the last
    /// crosses each further link behind the one before it, and its ACK goes back, behind that one's.
    pub(super) fn ideal(&self, bytes: u64, from: u32, to: u32) -> Time {
        let links = u64::from(self.topology.hops(from, to));
        let packets = bytes.div_ceil(self.payload.into());
        let full = self.wire_time(self.payload + self.header);
        let ack = self.wire_time(self.ack_bytes);
        let rest = bytes - (packets - 1) * u64::from(self.payload);
        let last = self.wire_time(rest as u32 + self.header);
        let data = if packets == 1 {
            links * last
        } else {
            (packets - 1) * full + (links - 1) * full + last.max(ack)
        };
        data + links * ack + 2 * links * self.delay
    }
}
