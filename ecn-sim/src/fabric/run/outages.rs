//! Links that fail and return during a run.

use super::Run;
use crate::engine::Time;
use crate::fabric::cc::Scheme;
use crate::fabric::failures::Lost;
use crate::fabric::packet::Kind;
use crate::fabric::switch::Classes;
use crate::fabric::topology::{Change, Topology};

/// State of outages in a run.
pub(in crate::fabric) struct Outages<'a> {
    /// By port, whether its link is down.
    down: Vec<bool>,
    /// Remaining changes.
    changes: &'a [Change],
    pub lost: Lost,
}

impl<'a> Outages<'a> {
    /// The outages of a topology, if any.
    pub(crate) fn of(topology: &'a Topology) -> Option<Box<Self>> {
        (!topology.changes.is_empty()).then(|| {
            Box::new(Self {
                down: vec![false; topology.peer.len()],
                changes: &topology.changes,
                lost: Lost::default(),
            })
        })
    }

    /// Whether a port's link is down, or `port` is not a port.
    fn is_down(&self, port: u32) -> bool {
        self.down.get(port as usize).is_none_or(|down| *down)
    }
}

impl<'a, S: Scheme> Run<'a, S> {
    /// Whether the link of the port given by a route is down, or there is no route.
    #[inline(always)]
    pub(super) fn is_down(&self, port: u32) -> bool {
        self.outages
            .as_ref()
            .is_some_and(|outages| outages.is_down(port))
    }

    /// Applies a change that is due no later than `first`, the time of the next event of any part. Returns the time
    /// from which to continue, and the time of the next change.
    pub(in crate::fabric) fn change_links(&mut self, first: Time) -> (Time, Time) {
        let Some(outages) = &mut self.outages else {
            return (first, Time::MAX);
        };
        let mut begin = first;
        if let Some((change, others)) = outages.changes.split_first()
            && change.time <= first
        {
            outages.changes = others;
            begin = change.time;
            self.change(change);
        }
        let next = self
            .outages
            .as_ref()
            .and_then(|outages| outages.changes.first());
        (begin, next.map_or(Time::MAX, |next| next.time))
    }

    fn change(&mut self, change: &'a Change) {
        if self.sample_due <= change.time {
            self.sample(change.time);
        }
        // Changes of links must not prolong the run.
        let before = self.scheduler.set_now(change.time);
        let down = |run: &mut Self, ports: &[u32], is_down| {
            if let Some(outages) = &mut run.outages {
                ports
                    .iter()
                    .for_each(|port| outages.down[*port as usize] = is_down);
            }
        };
        down(self, &change.fails, true);
        down(self, &change.returns, false);
        if let Some(routes) = &change.routes {
            self.routes = routes;
        }
        let own = |ports: &[u32]| -> Vec<u32> {
            let ports = ports.iter().copied();
            ports
                .filter(|port| self.part.has(self.topology, *port))
                .collect()
        };
        let (failed, returned) = (own(&change.fails), own(&change.returns));
        for port in &failed {
            // Prevents it from being woken.
            self.ports[*port as usize].wakes = true;
        }
        failed.into_iter().for_each(|port| self.fail(port));
        returned.into_iter().for_each(|port| self.return_to(port));
        self.scheduler.set_now(before);
    }

    /// Discards the packets waiting at a port, and the state that its link's ends have about each other.
    fn fail(&mut self, number: u32) {
        while let Some(id) = {
            let port = &mut self.ports[number as usize];
            port.control.pop(&mut self.packets)
        } {
            self.lose(id, |lost| &mut lost.queued);
        }
        if number >= self.topology.hosts {
            self.drain(number);
        }
        if !self.lossless {
            return;
        }
        let classes = self.ports.classes(number).len();
        for class in 0..classes as u8 {
            self.set_on(number, class, false);
            if let Some(credits) = &mut self.credits {
                credits.forget(self.ports.queue_index(number, class));
            }
        }
        if self.credits.is_none() {
            // Makes it announce which classes may be sent, once the link has returned.
            self.ports[number as usize].pause_sent = ((1_u16 << classes) - 1) as Classes;
        }
    }

    fn drain(&mut self, number: u32) {
        let switch = self.ports[number as usize].node;
        let first = self.topology.ports(switch).start;
        self.ports[number as usize].off = 0;
        while let Some((id, packet)) = self.ports.dequeue(number, &mut self.packets) {
            let from = (first + u32::from(packet.ingress), packet.class);
            let bytes = packet.bytes.into();
            self.on_drop(id, number);
            self.release(switch, from, bytes);
            self.lose(id, |lost| &mut lost.queued);
        }
    }

    /// A link has returned, and is idle: its ends announce what may be sent.
    fn return_to(&mut self, number: u32) {
        self.ports[number as usize].wakes = false;
        if self.credits.is_some() {
            let classes = self.ports.classes(number).len() as u8;
            for class in 0..classes {
                self.schedule_credit(self.ports.queue_index(number, class));
            }
        }
        self.wake(number);
    }

    /// Counts a packet as lost: for this reason if it is data, else as control.
    #[cold]
    pub(super) fn lose(&mut self, id: u32, why: fn(&mut Lost) -> &mut u64) {
        let kind = self.packets[id].kind;
        self.packets.remove(id);
        if let Some(outages) = &mut self.outages {
            let count = match kind {
                Kind::Data => why(&mut outages.lost),
                _ => &mut outages.lost.control,
            };
            *count += 1;
        }
    }
}
