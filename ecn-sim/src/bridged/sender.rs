//! A flow between two kernel endpoints: `ecn-core`'s flow and receiver, and the HTB class that limits the flow's rate.

use ecn_core::echo::{Headroom, Receiver};
use ecn_core::flow::Flow;
use ecn_core::{
    abi::{self, Siblings},
    backward::{self, Report},
    echo, reaction, response,
};

use crate::bridged::source::Source;
use crate::engine::{NS, Time};

/// HTB's token bucket. A class with tokens may send, and pays for the packet afterwards. Unused tokens accumulate up to
/// a burst.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// When the debt is paid off.
    pub ready: Time,
}

impl Bucket {
    /// Charges `cost` for a packet, with accumulated tokens limited to `burst`.
    pub(crate) fn charge(&mut self, now: Time, cost: Time, burst: Time) {
        self.ready = self.ready.max(now.saturating_sub(burst)) + cost;
    }
}

/// An event for the agent, as [`abi::RateEvent`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateUpdate {
    /// The flow.
    pub flow: u32,
    /// Its new rate.
    pub rate_bytes_per_s: u64,
    /// Whether it is lower than before.
    pub decreased: bool,
    /// The decrease's number, if the agent must report when it is in force.
    pub pending: Option<u32>,
    /// When the packet that caused the update was marked.
    pub marked: Option<Time>,
}

/// A flow.
#[derive(Debug)]
pub(crate) struct Sender {
    /// Index of its path, which several flows may share.
    pub path: u32,
    /// Index of its host's device.
    pub device: u32,
    /// Its traffic source.
    pub source: Source,
    /// Whether its host runs the agent.
    pub controlled: bool,
    /// When its source's timer fires.
    pub timer: Option<Time>,
    /// When it began.
    pub began: Time,
    flow: Flow,
    receiver: Receiver,
    /// Packets that have left the source's device.
    pub departed: u64,
    in_force: u64,
    /// Transmission time of a packet at the rate in force.
    pub packet_time: Time,
    /// The flow's class.
    pub class: Bucket,
    /// Whether the flow is running.
    pub active: bool,
    /// When the oldest marked packet without an echo was marked.
    pub marked: Option<Time>,
    link_bytes_per_s: u64,
    packet_bytes: u32,
    /// Transmission time of a packet at the link's rate.
    packet_ns: u64,
}

/// Properties common to all flows of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// Index of the path.
    pub path: u32,
    /// Whether its host runs the agent.
    pub controlled: bool,
    /// Index of its host's device.
    pub device: u32,
    /// Initial inter-packet delay.
    pub ipd: u64,
    /// Rate of its host's link.
    pub link_bytes_per_s: u64,
    /// Size of its packets.
    pub packet_bytes: u32,
}

/// What the flows of a host's device have in common.
#[derive(Debug)]
pub(crate) struct Host<'a> {
    /// Their response to marks.
    pub policy: &'a response::Policy,
    /// Their mean rate.
    pub siblings: &'a mut Siblings,
}

impl Sender {
    /// A flow that begins now.
    pub(crate) fn new(kind: Kind, source: Source, now: Time) -> Self {
        let Kind {
            ipd,
            link_bytes_per_s,
            packet_bytes,
            ..
        } = kind;
        let mut flow = Flow {
            class: abi::FIRST_CLASS,
            ..Flow::new()
        };
        flow.response.ipd = ipd;
        let rate = response::rate(ipd, link_bytes_per_s);
        (flow.rate_bytes_per_s, flow.notified_bytes_per_s) = (rate, rate);
        let mut sender = Self {
            path: kind.path,
            device: kind.device,
            source,
            controlled: kind.controlled,
            timer: None,
            began: now,
            flow,
            receiver: Receiver::new(),
            departed: 0,
            in_force: 0,
            packet_time: 0,
            class: Bucket::default(),
            active: false,
            marked: None,
            link_bytes_per_s,
            packet_bytes,
            packet_ns: response::packet_ns(packet_bytes, link_bytes_per_s),
        };
        if kind.controlled {
            sender.set_rate(rate);
        }
        sender
    }

    fn set_rate(&mut self, bytes_per_s: u64) {
        let ps = u128::from(self.packet_bytes) * 1_000_000_000_000;
        let time = ps.div_ceil(u128::from(bytes_per_s.max(1)));
        self.packet_time = Time::try_from(time).unwrap_or(Time::MAX);
    }

    /// Whether it has a packet to send.
    pub(crate) fn has_packet(&self) -> bool {
        self.active && self.source.has_packet()
    }

    /// Sends a packet: returns its number, and when it was generated.
    pub(crate) fn send(&mut self, now: Time) -> (u64, Time) {
        self.departed += 1;
        self.flow.sent_packets += 1;
        self.flow.sent_bytes += u64::from(self.packet_bytes);
        self.class.charge(now, self.packet_time, self.packet_time);
        self.source.send(now)
    }

    /// The agent has applied an update: packets sent from now on are charged at the new rate; a debt is unchanged.
    pub(crate) fn enforce(&mut self, update: &RateUpdate) {
        self.set_rate(update.rate_bytes_per_s);
        if let Some(decrease) = update.pending {
            // As in the agent: up to two packets may be between the class and the counter.
            let departed = (self.departed as u32).wrapping_add(2);
            self.in_force = abi::in_force(decrease, departed);
        }
    }

    /// Handles a notification, or the periodic work of the flow's limiter. Returns the update for the agent, if any.
    pub(crate) fn on_notification(
        &mut self,
        policy: &reaction::Policy,
        number: u32,
        report: &Report,
        now: Time,
    ) -> Option<RateUpdate> {
        if report.flags & backward::BY_CLOCK == 0 {
            self.flow.accept_notification(report).ok()?;
        }
        let decreases = self.flow.decreases;
        let notify = self
            .flow
            .react(policy, report, self.link_bytes_per_s, now / NS);
        let decreased = self.flow.decreases != decreases;
        let marked = self.marked.take_if(|_| decreased);
        notify.then_some(RateUpdate {
            flow: number,
            rate_bytes_per_s: self.flow.rate_bytes_per_s,
            decreased,
            pending: None,
            marked,
        })
    }

    /// Whether notifications limit its rate.
    pub(crate) fn reacts(&self) -> bool {
        self.flow.reaction.rate().is_some()
    }

    /// Handles a message of a port, or counts departed packets if that is due. Returns the update for the agent, if
    /// any.
    pub(crate) fn on_report(
        &mut self,
        host: Host<'_>,
        number: u32,
        report: &Report,
        echoes: bool,
        now: Time,
    ) -> Option<RateUpdate> {
        let delta = self.flow.on_report(report, self.departed as u32, echoes);
        self.respond(host, number, &delta.ok()?, now)
    }

    /// Whether the flow's periodic work is due with the packet that it sends now.
    pub(crate) fn is_due(&self, echoes: bool, now: Time) -> bool {
        let since = (now / NS).saturating_sub(self.flow.last_echo_ns);
        let alone =
            self.flow.is_self_clocked(echoes) && self.flow.is_limited(self.link_bytes_per_s);
        (alone || self.reacts()) && since >= backward::CLOCK_NS
    }

    /// A packet has reached the receiver, and its echo, if one was due, the source. Returns the update for the agent,
    /// if any.
    pub(crate) fn deliver(
        &mut self,
        host: Host<'_>,
        echo: &echo::Policy,
        number: u32,
        marked: bool,
        // The ECN field with which an echo that requests headroom returns.
        return_path: impl FnOnce() -> u8,
        now: Time,
    ) -> Option<RateUpdate> {
        let (bytes, now_ns) = (self.packet_bytes.into(), now / NS);
        if !self.receiver.count(echo, 1, bytes, marked, now_ns) {
            return None;
        }
        let mut echo = self.receiver.echo(0, 0, 0);
        if Receiver::requests_headroom(self.receiver.last_ce_ns, now_ns) {
            echo.headroom = Headroom::of(return_path());
        }
        let (sent, departed) = (self.flow.sent_packets as u32, self.departed as u32);
        let quiet = self.flow.quiet();
        let delta = self.flow.echo.on_echo(&echo, sent, departed, quiet).ok()?;
        self.respond(host, number, &delta, now)
    }

    fn respond(
        &mut self,
        Host { policy, siblings }: Host<'_>,
        number: u32,
        delta: &echo::FeedbackDelta,
        now: Time,
    ) -> Option<RateUpdate> {
        let (departed, now_ns) = (self.departed as u32, now / NS);
        let was = self.marked;
        if delta.ce != 0 {
            self.marked = None;
        }
        let link = self.link_bytes_per_s;
        let policy = &response::Policy {
            packet_ns: self.packet_ns,
            ..*policy
        };
        let flow = &mut self.flow;
        flow.response
            .compare_with_siblings(siblings.initial_ipd(now_ns));
        let (reaction, notify) = flow.respond(policy, delta, self.in_force, departed, link, now_ns);
        if reaction.decreased != 0 {
            siblings.ipd = siblings.mean_ipd(flow.response.ipd, now_ns);
            siblings.at_ns = now_ns;
        }
        notify.then_some(RateUpdate {
            flow: number,
            rate_bytes_per_s: self.flow.rate_bytes_per_s,
            decreased: reaction.decreased != 0,
            pending: (self.flow.pending != 0).then_some(self.flow.decreases as u32),
            marked: was.filter(|_| reaction.decreased != 0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ecn_core::packet;
    use ecn_core::response::{Function, Policy, Ratio, Round};

    const PACKET: Time = 165_440 * NS;

    #[test]
    fn a_bucket_makes_up_for_a_burst_and_no_more() {
        let mut bucket = Bucket::default();
        let mut sent = 0;
        // Always late by half a packet time: no packet is lost.
        for n in 0..100 {
            assert!(bucket.ready <= n * PACKET);
            bucket.charge(n * PACKET + PACKET / 2, PACKET, PACKET);
        }
        // After ten idle packet times, two packets at once: one from saved tokens, and one that causes the debt.
        let now = 110 * PACKET;
        while bucket.ready <= now {
            bucket.charge(now, PACKET, PACKET);
            sent += 1;
        }
        assert_eq!((sent, bucket.ready), (2, 111 * PACKET));
    }

    #[test]
    fn a_mark_halves_the_rate_once_it_is_in_force() {
        let policy = Policy::new(Function::Lipd, Ratio::new(1, 64), Ratio::new(2, 1))
            .expect("a policy")
            .with_round(Round::Packets, 0);
        let echo = echo::Policy::default();
        let kind = Kind {
            path: 0,
            device: 0,
            controlled: true,
            ipd: ecn_core::fixed::ONE,
            link_bytes_per_s: 12_500_000,
            packet_bytes: 2068,
        };
        let mut siblings = Siblings::default();
        let mut deliver = |sender: &mut Sender, now| {
            let host = Host {
                policy: &policy,
                siblings: &mut siblings,
            };
            sender.deliver(host, &echo, 7, true, || packet::NOT_ECT, now)
        };
        let mut sender = Sender::new(kind, Source::Greedy, 0);
        assert_eq!(sender.packet_time, PACKET);
        for n in 0..3 {
            sender.send(n * PACKET);
        }
        let update = deliver(&mut sender, 3 * PACKET);
        let update = update.expect("a decrease");
        assert_eq!((update.flow, update.pending), (7, Some(1)));
        assert_eq!(update.rate_bytes_per_s, 6_250_000);
        assert_eq!(sender.packet_time, PACKET, "not in force yet");
        // Packets in flight at the time of the decrease cause no response.
        assert!(deliver(&mut sender, 4 * PACKET).is_none());
        let owed = sender.class.ready;
        sender.enforce(&update);
        assert_eq!((sender.packet_time, sender.class.ready), (2 * PACKET, owed));
    }
}
