//! A device whose flows are limited: its root qdisc, the classes of its limited flows, and when they go again.
//!
//! Where nothing is marked there is nothing: the root qdisc comes with the first flow that is limited, and goes
//! [`LINGER`] after the last one was. A flow's class comes with its first decrease, and is removed when the flow has been
//! at full rate for [`FREE`], is silent, or has ended. What is not in a class overtakes what waits in one, so that the
//! class of a flow that uses much of the link, in which packets wait, stays for [`FREE_BUSY`].

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Duration,
};

use ecn_core::{
    abi,
    flow::{self, Flow, Key},
    packet::protocol,
};

use super::{
    discover::Space,
    root::{self, FQ_MAJOR, Root, Whose},
};
use crate::{
    config::Enforcement,
    datapath::Maps,
    net::{
        self,
        htb::{ClassBatch, ClassSocket, EndpointHtb},
    },
};

/// How long a root qdisc of ours stays when nothing is limited any more: taking it away and putting it back costs the
/// packets of a millisecond.
const LINGER: Duration = Duration::from_secs(10);
/// How long a flow is at full rate before its class is removed.
const FREE: Duration = Duration::from_secs(1);
/// The same of a flow that sends at more than 1/[`BUSY`] of the link's rate. A TCP flow alone at a port as fast as its
/// link, 100 Mbit/s, had a burst, some 15 spurious retransmissions and marks whenever its class was removed: 92 to 93 %.
const FREE_BUSY: Duration = Duration::from_mins(1);
const BUSY: u64 = 8;
/// A flow that is silent for this long starts over ([`flow::IDLE_NS`]); its class is not in use by then.
const SILENT_NS: u64 = flow::IDLE_NS + 100_000_000;
/// Flows that are looked at in one [`Target::review`].
const AT_ONCE: usize = 2048;
/// A flow's queue follows its rate in such steps.
const LEAF_STEP: u64 = 2;
/// A flow gives up one part in so many of its rate while no agent runs. Queues grew by 37 packets while one
/// was replaced by another at 100 Mbit/s, with rates as they had been.
const LEFT: u64 = 8;
/// After a refusal of the root qdisc, the next try.
const PATIENCE_NS: u64 = 1_000_000_000;

/// A flow that is limited, or was a moment ago.
#[derive(Clone, Copy, Debug)]
struct Limited {
    key: Key,
    rate_bytes_per_s: u64,
    /// The rate and the largest packet that its queue is sized for.
    leaf_rate: u64,
    leaf_packet: u32,
    /// Since when it has been at full rate, and the bytes that it had sent by then.
    free_since: Option<(u64, u64)>,
    /// Its class is not used any more, and goes at the next review.
    closing: bool,
}

/// The flow's largest packet, as far as its queue has to allow for it: TCP's super-packets follow the device's limit.
fn largest_packet(flow: &Flow, key: Key) -> u32 {
    if key.protocol == protocol::TCP {
        0
    } else {
        flow.largest_bytes
    }
}

/// Whether a flow that has sent so many bytes in the time that it has been at full rate needs no class any more.
fn is_free(ns: u64, bytes: u64, link_bytes_per_s: u64) -> bool {
    let rate = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
    let is_busy = rate * u128::from(BUSY) > u128::from(link_bytes_per_s);
    let wait = if is_busy { FREE_BUSY } else { FREE };
    u128::from(ns) >= wait.as_nanos()
}

/// A device.
pub struct Target {
    /// For people.
    name: String,
    layout: EndpointHtb,
    enforcement: Enforcement,
    space: Arc<Space>,
    socket: ClassSocket,
    whose: Whose,
    /// Segments of a super-packet at most before we came, and now if that is less.
    segments_before: Option<u32>,
    segments: Option<u32>,
    limited: BTreeMap<u32, Limited>,
    /// The last class that was looked at.
    cursor: u32,
    /// When something was limited last.
    used_ns: u64,
    /// Before that, the root qdisc is not tried again.
    refused_until_ns: u64,
}

/// What came of bringing rates into force.
#[derive(Debug, Default)]
pub struct Enforced {
    /// Changes that the kernel made.
    pub changed: usize,
    /// Flows that it refused, and their classes.
    pub refused: Vec<(Key, u32)>,
    /// Flows were limited that had not been before.
    pub is_new: bool,
}

/// What a review found.
#[derive(Debug, Default)]
pub struct Review {
    /// Classes whose flows have ended: free for others.
    pub freed: Vec<u32>,
    /// Flows of connections that have ended, and have no class any more.
    pub ended: Vec<(Key, Flow)>,
}

impl Target {
    /// A device on which nothing is limited yet. Segments of a super-packet at most: before an agent came, and now.
    ///
    /// # Errors
    ///
    /// No sockets.
    pub(super) fn open(
        space: &Arc<Space>,
        name: String,
        layout: EndpointHtb,
        enforcement: Enforcement,
        whose: Whose,
        (segments_before, segments): (Option<u32>, Option<u32>),
        now_ns: u64,
    ) -> net::Result<Self> {
        Ok(Self {
            name,
            layout,
            enforcement,
            space: Arc::clone(space),
            socket: ClassSocket::open(&space.ns)?,
            whose,
            segments_before,
            segments: segments.filter(|_| segments != segments_before),
            limited: BTreeMap::new(),
            cursor: 0,
            used_ns: now_ns,
            refused_until_ns: 0,
        })
    }

    /// The device has changed: classes get what follows from it with their next rate.
    pub(super) fn set_layout(&mut self, layout: EndpointHtb) {
        self.layout = layout;
    }

    /// The layout of its queueing discipline.
    pub(super) fn layout(&self) -> &EndpointHtb {
        &self.layout
    }

    /// Whether flows are limited there, or were a moment ago.
    pub(super) fn is_in_use(&self) -> bool {
        self.is_installed() || !self.limited.is_empty()
    }

    /// Whether its root qdisc is ours, and there.
    pub(super) fn is_installed(&self) -> bool {
        self.whose == Whose::Ours
    }

    /// Whether this root qdisc is the one that is to be there; `base`: without us.
    pub(super) fn expects(&self, root: &Root, base: &Root) -> bool {
        match (self.whose, self.enforcement) {
            (Whose::Ours, Enforcement::Htb) => *root == Root::Htb,
            (Whose::Ours, Enforcement::Edt) => root.major() == FQ_MAJOR,
            // What was ours when it was taken over has gone by now; what is without us was not seen.
            _ => root == base || base.is_ours() && root.major() == 0,
        }
    }

    /// Whether it knows the class.
    pub(super) fn has(&self, class: u32) -> bool {
        self.limited.contains_key(&class)
    }

    /// What is needed for any limit to be in force: the root qdisc and short super-packets. False: it cannot be had
    /// now.
    fn prepare(&mut self, now_ns: u64) -> bool {
        self.used_ns = now_ns;
        if self.whose != Whose::Later {
            return true;
        }
        if now_ns < self.refused_until_ns {
            return false;
        }
        let index = self.layout.ifindex;
        let installed = match self.enforcement {
            Enforcement::Htb => self.layout.install(&self.space.nl),
            Enforcement::Edt => root::install_fq(&self.space.nl, index),
            _ => Ok(()),
        };
        match installed {
            Ok(()) => {
                self.whose = Whose::Ours;
                tracing::debug!("endpoint {}: flows are limited from now on", self.name);
                true
            }
            Err(error) => {
                self.refused_until_ns = now_ns + PATIENCE_NS;
                tracing::debug!("endpoint {}: {error}", self.name);
                false
            }
        }
    }

    /// Keeps super-packets short, by what the limited flows have together.
    fn limit_super_packets(&mut self) {
        let Some(before) = self.segments_before else {
            return;
        };
        let rates = self.limited.values().map(|flow| flow.rate_bytes_per_s);
        let most = if self.limited.is_empty() {
            before
        } else {
            self.layout.super_packet_segments(rates.sum()).min(before)
        };
        let now = self.segments.unwrap_or(before);
        // Small changes are not worth it: every connection looks for its route again.
        if most == now || most != before && now != before && most * 2 > now && most < now * 2 {
            return;
        }
        match self.space.nl.set_gso_max_segs(self.layout.ifindex, most) {
            Ok(()) => self.segments = Some(most).filter(|most| *most != before),
            // Old kernels: it works, with longer bursts.
            Err(error) => {
                tracing::warn!("{error}");
                self.segments_before = None;
            }
        }
    }

    /// Adds the messages for a new rate to a batch: the class if it does not exist, its rate, its queue. True: it is new.
    fn set(&mut self, maps: &Maps, batch: &mut ClassBatch, event: &abi::RateEvent) -> bool {
        let (class, key, rate) = (event.class, event.key, event.rate_bytes_per_s);
        let minor = class as u16;
        let by_class = self.enforcement == Enforcement::Htb;
        let largest = match self.limited.get(&class) {
            Some(flow) => flow.leaf_packet,
            None if by_class => maps.flow(&key).map_or(0, |flow| largest_packet(&flow, key)),
            None => 0,
        };
        let segments = self.segments.unwrap_or(1);
        let leaf = self.layout.leaf_bytes(minor, rate, segments, largest);
        if let Some(flow) = self.limited.get_mut(&class) {
            flow.rate_bytes_per_s = rate;
            flow.free_since = None;
            if by_class {
                self.layout.set_flow_rate(batch, minor, rate);
                let steps = |a: u64, b: u64| a >= b.saturating_mul(LEAF_STEP);
                if steps(rate, flow.leaf_rate) || steps(flow.leaf_rate, rate) {
                    flow.leaf_rate = rate;
                    self.layout.set_flow_leaf(batch, minor, leaf);
                }
            }
            return std::mem::replace(&mut flow.closing, false);
        }
        if by_class {
            self.layout.make_flow(batch, minor, rate, leaf);
        }
        let flow = Limited {
            key,
            rate_bytes_per_s: rate,
            leaf_rate: rate,
            leaf_packet: largest,
            free_since: None,
            closing: false,
        };
        self.limited.insert(class, flow);
        true
    }

    /// Brings rates of flows into force, each with its class, key, and what [`abi::in_force`] says of it if its
    /// decrease waits for that.
    ///
    /// # Errors
    ///
    /// The kernel took nothing.
    pub(super) fn enforce(
        &mut self,
        maps: &mut Maps,
        batch: &mut ClassBatch,
        rates: &[abi::RateEvent],
        now_ns: u64,
    ) -> io::Result<Enforced> {
        if !self.prepare(now_ns) {
            return Ok(Enforced::default());
        }
        let fresh: Vec<bool> = rates
            .iter()
            .map(|event| self.set(maps, batch, event))
            .collect();
        let is_new = fresh.contains(&true);
        let mut changed = 0;
        if self.enforcement == Enforcement::Htb {
            changed = batch.send(&mut self.socket)?;
        }
        let mut refused = Vec::new();
        for failure in batch.failures() {
            tracing::debug!("{failure}");
            let class = failure.classid & 0xffff;
            let Some(flow) = self.limited.remove(&class) else {
                continue;
            };
            // An old one was removed with its root: the next decrease recreates it.
            let _ = maps.clear_in_force(class);
            let of = |event: &abi::RateEvent| event.class == class;
            if rates.iter().position(of).is_some_and(|at| fresh[at]) {
                refused.push((flow.key, class));
            }
        }
        for (event, fresh) in rates.iter().zip(fresh) {
            let said = (fresh || event.pending != 0) && self.enforcement != Enforcement::Pacing;
            if said
                && self.limited.contains_key(&event.class)
                && let Err(error) = maps.set_in_force(event.class, event.decrease)
            {
                tracing::error!("{error}");
            }
        }
        if is_new {
            self.limit_super_packets();
        }
        Ok(Enforced {
            changed,
            refused,
            is_new,
        })
    }

    /// Whether another one limits the same device in the same way.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let of = |target: &Self| (target.layout.ifindex, target.enforcement, target.whose);
        of(self) == of(other)
    }

    /// Goes on with the flows of another one that [is like](Self::is_like) it.
    pub(super) fn go_on(&mut self, before: Self) {
        self.limited = before.limited;
        self.segments = before.segments;
        self.used_ns = before.used_ns;
    }

    /// Goes on with what another agent has limited here: these flows, each with the rate that it is to have. Other
    /// classes are removed.
    ///
    /// # Errors
    ///
    /// The kernel took nothing.
    pub(super) fn adopt(
        &mut self,
        maps: &mut Maps,
        flows: &[(Key, Flow, u64)],
        now_ns: u64,
    ) -> io::Result<()> {
        let by_class = self.enforcement == Enforcement::Htb;
        let classes = if by_class {
            let classes = self.space.nl.class_stats(self.layout.ifindex);
            classes.map_err(io::Error::other)?
        } else {
            Vec::new()
        };
        let is_flows =
            |class: &u32| *class >> 16 == u32::from(abi::HTB_MAJOR) && class & 0xffff >= 0x10;
        let mut others: BTreeSet<u32> = classes
            .iter()
            .map(|of| of.classid)
            .filter(is_flows)
            .map(|of| of & 0xffff)
            .collect();
        let mut events = Vec::new();
        for &(key, flow, rate) in flows {
            let class = flow.class;
            let is_there = maps.is_in_force(class) && (!by_class || others.remove(&class));
            if is_there {
                let limited = Limited {
                    key,
                    rate_bytes_per_s: rate,
                    leaf_rate: rate,
                    // Unknown, until the first review.
                    leaf_packet: 0,
                    free_since: None,
                    closing: false,
                };
                self.limited.insert(class, limited);
            } else {
                let _ = maps.clear_in_force(class);
            }
            if is_there || rate < self.layout.link_bytes_per_s {
                events.push(abi::RateEvent {
                    endpoint: key.endpoint.into(),
                    class,
                    rate_bytes_per_s: rate,
                    decrease: flow.decreases as u32,
                    pending: flow.pending,
                    key,
                    ..abi::RateEvent::default()
                });
            }
        }
        let mut batch = ClassBatch::new();
        for class in others {
            let _ = maps.clear_in_force(class);
            self.layout.remove_flow(&mut batch, class as u16);
        }
        if !events.is_empty() {
            // Those with them that are refused are tried again at their flows' next decreases.
            self.enforce(maps, &mut batch, &events, now_ns)?;
        } else if !batch.is_empty() {
            batch.send(&mut self.socket)?;
        }
        self.limit_super_packets();
        Ok(())
    }

    /// Looks after flows that are limited: those that are no more give their classes back, and with the last one the
    /// root qdisc goes. `pinned`: whether people hold it at a rate.
    ///
    /// # Errors
    ///
    /// The kernel took nothing.
    pub(super) fn review(
        &mut self,
        maps: &mut Maps,
        batch: &mut ClassBatch,
        pinned: impl Fn(u32) -> bool,
        now_ns: u64,
    ) -> io::Result<Review> {
        let mut review = Review::default();
        if self.limited.is_empty() {
            self.rest(now_ns);
            return Ok(review);
        }
        self.used_ns = now_ns;
        let after = self.limited.range(self.cursor + 1..);
        let classes: Vec<u32> = after.map(|(class, _)| *class).take(AT_ONCE).collect();
        self.cursor = match classes.last() {
            Some(last) if classes.len() == AT_ONCE => *last,
            _ => 0,
        };
        let link = self.layout.link_bytes_per_s;
        let by_class = self.enforcement == Enforcement::Htb;
        let mut removed = Vec::new();
        for class in classes {
            let Some(limited) = self.limited.get_mut(&class) else {
                continue;
            };
            let short = class < abi::FIRST_CLASS;
            let flow = maps.flow(&limited.key);
            let flow = flow.filter(|flow| short || flow.class == class);
            if limited.closing {
                if by_class {
                    self.layout.remove_flow(batch, class as u16);
                }
                removed.push((class, limited.key, flow));
                continue;
            }
            let over = match &flow {
                None => true,
                Some(_) if pinned(class) => false,
                Some(flow) => {
                    let last = if short {
                        flow.last_echo_ns
                    } else {
                        flow.last_sent_ns
                    };
                    if flow.is_limited(link) {
                        limited.free_since = None;
                    } else if limited.free_since.is_none() {
                        limited.free_since = Some((now_ns, flow.sent_bytes));
                    }
                    flow.ended != 0
                        || now_ns.saturating_sub(last) > SILENT_NS
                        || limited.free_since.is_some_and(|(since_ns, sent_bytes)| {
                            let bytes = flow.sent_bytes.saturating_sub(sent_bytes);
                            is_free(now_ns.saturating_sub(since_ns), bytes, link)
                        })
                }
            };
            let largest = flow.map_or(0, |flow| largest_packet(&flow, limited.key));
            if over {
                limited.closing = true;
                let _ = maps.clear_in_force(class);
            } else if by_class && !short && largest > limited.leaf_packet {
                // Otherwise what is longer than its queue would always be dropped.
                limited.leaf_packet = largest;
                let segments = self.segments.unwrap_or(1);
                let minor = class as u16;
                let leaf = self
                    .layout
                    .leaf_bytes(minor, limited.leaf_rate, segments, largest);
                self.layout.set_flow_leaf(batch, minor, leaf);
            }
        }
        if !batch.is_empty() {
            batch.send(&mut self.socket)?;
        }
        for (class, key, flow) in removed {
            self.limited.remove(&class);
            if class < abi::FIRST_CLASS {
                maps.reset_short(u32::from(key.endpoint));
                continue;
            }
            match flow {
                None => review.freed.push(class),
                Some(flow) if flow.ended != 0 => review.ended.push((key, flow)),
                Some(_) => {}
            }
        }
        self.limit_super_packets();
        Ok(review)
    }

    /// Nothing is limited.
    fn rest(&mut self, now_ns: u64) {
        let since = now_ns.saturating_sub(self.used_ns);
        if self.whose != Whose::Ours || since < LINGER.as_nanos() as u64 {
            return;
        }
        match self.space.nl.delete_root_qdisc(self.layout.ifindex) {
            Ok(()) => {
                self.whose = Whose::Later;
                tracing::debug!("endpoint {}: nothing is limited any more", self.name);
            }
            Err(error) => {
                self.used_ns = now_ns;
                tracing::debug!("endpoint {}: {error}", self.name);
            }
        }
    }

    /// Forgets what is limited, since its classes were removed with their root. Returns the numbers of those that were
    /// ended or gone; the others' flows keep theirs.
    pub(super) fn forget(&mut self, maps: &mut Maps) {
        for (class, flow) in std::mem::take(&mut self.limited) {
            let _ = maps.clear_in_force(class);
            if class < abi::FIRST_CLASS {
                maps.reset_short(u32::from(flow.key.endpoint));
            }
        }
    }

    /// Takes everything off the device, which is the one that it was.
    pub(super) fn take_off(&mut self, maps: &mut Maps) {
        let result = if self.whose == Whose::Ours {
            self.space.nl.delete_root_qdisc(self.layout.ifindex)
        } else {
            Ok(())
        };
        if self.whose != Whose::Ours && self.enforcement == Enforcement::Htb {
            let mut batch = ClassBatch::new();
            for class in self.limited.keys() {
                self.layout.remove_flow(&mut batch, *class as u16);
            }
            let _ = batch.send(&mut self.socket);
        }
        if let Err(error) = result {
            // The device may be gone with its namespace.
            tracing::debug!("{error}");
        }
        self.forget(maps);
        self.limit_super_packets();
    }

    /// Leaves the device to the next agent. Until that is there no decrease comes into force, so that flows have a little
    /// less than their rates; not those that people hold (`pinned`). False: nothing is limited that needs an agent.
    pub(super) fn leave(&mut self, pinned: impl Fn(u32) -> bool) -> bool {
        if self.enforcement != Enforcement::Htb || self.limited.is_empty() {
            return false;
        }
        let mut batch = ClassBatch::new();
        for (&class, flow) in self.limited.iter().filter(|(class, _)| !pinned(**class)) {
            let rate = flow.rate_bytes_per_s - flow.rate_bytes_per_s / LEFT;
            self.layout.set_flow_rate(&mut batch, class as u16, rate);
        }
        if let Err(error) = batch.send(&mut self.socket) {
            tracing::debug!("endpoint {}: {error}", self.name);
        }
        true
    }

    /// The rate of a class that is there.
    pub(super) fn rate(&self, class: u32) -> Option<u64> {
        self.limited.get(&class).map(|flow| flow.rate_bytes_per_s)
    }

    /// The flow of a class that is there.
    pub(super) fn key(&self, class: u32) -> Option<Key> {
        self.limited.get(&class).map(|flow| flow.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow flow at full rate gives its class back after a second; one that uses the link, after a minute.
    #[test]
    fn a_class_stays_while_its_flow_uses_the_link() {
        const LINK: u64 = 12_500_000;
        const SECOND: u64 = 1_000_000_000;
        let slow = LINK / BUSY;
        assert!(!is_free(SECOND - 1, 0, LINK));
        assert!(is_free(SECOND, slow, LINK));
        assert!(!is_free(SECOND, slow + 1, LINK));
        assert!(!is_free(59 * SECOND, 59 * LINK, LINK));
        assert!(is_free(60 * SECOND, 60 * LINK, LINK));
        // It was fast at first.
        assert!(is_free(16 * SECOND, 2 * LINK, LINK));
    }
}
