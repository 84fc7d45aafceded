//! A device on which flows are limited: its root qdisc, the classes of its limited flows, and when both are removed.
//!
//! Without marks nothing is installed: the root qdisc is installed for the first limited flow, and removed [`LINGER`]
//! after the last one. A flow's class is created at its first decrease, and removed when the flow has been at full rate
//! for [`FREE`], is silent, or has ended. Packets without a class overtake those that wait in one, so the class of a
//! flow that uses much of the link, in which packets wait, is kept for [`FREE_BUSY`].

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Duration,
};

use ecn_core::{
    abi,
    flow::{self, ANY_PROTOCOL, Flow, Key},
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

/// How long our root qdisc remains after the last limit: removing and reinstalling it costs the packets of a
/// millisecond.
const LINGER: Duration = Duration::from_secs(10);
/// How long a flow has to be at full rate before its class is removed.
const FREE: Duration = Duration::from_secs(1);
/// The same for a flow that sends at more than 1/[`BUSY`] of the link's rate. A TCP flow alone at a port as fast as its
/// link, 100 Mbit/s, had a burst, some 15 spurious retransmissions and marks whenever its class was removed: 92 to
/// 93 %.
const FREE_BUSY: Duration = Duration::from_mins(1);
const BUSY: u64 = 8;
/// A flow that is silent for this long restarts ([`flow::IDLE_NS`]); its class is unused by then.
const SILENT_NS: u64 = flow::IDLE_NS + 100_000_000;
/// Flows examined per [`Target::review`].
const AT_ONCE: usize = 2048;
/// Factor by which a flow's rate has to change before its queue is resized.
const LEAF_STEP: u64 = 2;
/// While no agent runs, each flow's rate is lower by one part in this many. With unchanged rates, queues grew by 37
/// packets while one agent was replaced by another at 100 Mbit/s.
const LEFT: u64 = 8;
/// Delay before installation of the root qdisc is retried after a refusal.
const PATIENCE_NS: u64 = 1_000_000_000;

/// A flow that is limited, or was recently.
#[derive(Clone, Copy, Debug)]
struct Limited {
    key: Key,
    rate_bytes_per_s: u64,
    /// The rate and the largest packet for which its queue is sized.
    leaf_rate: u64,
    largest_packet: u32,
    /// When it reached full rate, ns, and how many bytes it had sent by then.
    free_since: Option<(u64, u64)>,
    /// Its class is unused, and is removed at the next review.
    closing: bool,
}

/// The flow's largest packet, to size its queue; 0 for TCP, whose super-packets follow the device's limit, and for flows
/// that share a limiter, whose queue holds any packet.
fn largest_packet(flow: &Flow, key: Key) -> u32 {
    match key.protocol {
        protocol::TCP | ANY_PROTOCOL => 0,
        _ => flow.largest_bytes,
    }
}

/// Whether a flow that has sent `bytes` in `ns` at full rate needs no class any more.
fn is_free(ns: u64, bytes: u64, link_bytes_per_s: u64) -> bool {
    let rate = u128::from(bytes) * 1_000_000_000 / u128::from(ns.max(1));
    let is_busy = rate * u128::from(BUSY) > u128::from(link_bytes_per_s);
    let wait = if is_busy { FREE_BUSY } else { FREE };
    u128::from(ns) >= wait.as_nanos()
}

/// A device on which flows are limited.
pub struct Target {
    /// For messages.
    name: String,
    layout: EndpointHtb,
    enforcement: Enforcement,
    space: Arc<Space>,
    socket: ClassSocket,
    whose: Whose,
    /// Maximum segments of a super-packet: before the agent, and now if that is less.
    segments_before: Option<u32>,
    segments: Option<u32>,
    limited: BTreeMap<u32, Limited>,
    /// The class examined last.
    cursor: u32,
    /// When a flow was last limited.
    used_ns: u64,
    /// Installation of the root qdisc is not retried before this time.
    refused_until_ns: u64,
}

/// Result of enforcing rates.
#[derive(Debug, Default)]
pub(super) struct Enforced {
    /// Changes that the kernel made.
    pub changed: usize,
    /// Flows for which it refused a class, with the class.
    pub refused: Vec<(Key, u32)>,
    /// Some flows are newly limited.
    pub is_new: bool,
}

/// Result of a review.
#[derive(Debug, Default)]
pub(super) struct Review {
    /// Classes that no flow has any more: free for others.
    pub freed: Vec<u32>,
    /// Flows of connections that have ended, whose classes were removed.
    pub ended: Vec<(Key, Flow)>,
}

impl Target {
    /// A device on which nothing is limited yet. `segments_before`, `segments`: maximum segments of a super-packet
    /// before an agent changed it, and now.
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

    /// Updates the layout after a change of the device; classes follow with their next rate.
    pub(super) fn set_layout(&mut self, layout: EndpointHtb) {
        self.layout = layout;
    }

    /// The layout of its queueing discipline.
    pub(super) fn layout(&self) -> &EndpointHtb {
        &self.layout
    }

    /// Whether flows are limited there, or were recently.
    pub(super) fn is_in_use(&self) -> bool {
        self.is_installed() || !self.limited.is_empty()
    }

    /// Whether our root qdisc is installed.
    pub(super) fn is_installed(&self) -> bool {
        self.whose == Whose::Ours
    }

    /// Whether this root qdisc is the expected one; `base`: the one without the agent.
    pub(super) fn expects(&self, root: &Root, base: &Root) -> bool {
        match (self.whose, self.enforcement) {
            (Whose::Ours, Enforcement::Htb) => *root == Root::Htb,
            (Whose::Ours, Enforcement::Edt) => root.major() == FQ_MAJOR,
            // Our root, taken over, has been removed by now; the one without the agent is unknown.
            _ => root == base || base.is_ours() && root.major() == 0,
        }
    }

    /// Whether this class is limited here.
    pub(super) fn has(&self, class: u32) -> bool {
        self.limited.contains_key(&class)
    }

    /// Installs the root qdisc that limits need. False: not possible at present.
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

    /// Keeps TCP's super-packets short: their maximum follows the total rate of the limited flows. UDP's are not made
    /// shorter by it, but segmented behind HTB, and would arrive as bursts, so they set a minimum.
    fn limit_super_packets(&mut self) {
        let Some(before) = self.segments_before else {
            return;
        };
        let most = if self.limited.is_empty() {
            before
        } else {
            let rates = self.limited.values().map(|flow| flow.rate_bytes_per_s);
            let largest = self.limited.values().map(|flow| flow.largest_packet);
            let of_udp = self.layout.segments_of(largest.max().unwrap_or(0));
            let most = self.layout.super_packet_segments(rates.sum());
            most.max(of_udp).min(before)
        };
        let now = self.segments.unwrap_or(before);
        // Small changes are not worth it: every connection would look up its route again.
        if most == now || most != before && now != before && most * 2 > now && most < now * 2 {
            return;
        }
        match self.space.nl.set_gso_max_segs(self.layout.ifindex, most) {
            Ok(()) => self.segments = Some(most).filter(|most| *most != before),
            // Old kernels: limits work, with longer bursts.
            Err(error) => {
                tracing::warn!("{error}");
                self.segments_before = None;
            }
        }
    }

    /// Respects a maximum that a user has set at the device since. The kernel sends no notification of such a change.
    fn follow_super_packets(&mut self) {
        let Some(before) = self.segments_before.filter(|_| !self.limited.is_empty()) else {
            return;
        };
        // If this fails, the device is gone.
        if let Ok(Some(now)) = self.space.nl.gso_max_segs(self.layout.ifindex)
            && now != self.segments.unwrap_or(before)
        {
            (self.segments_before, self.segments) = (Some(now), None);
        }
    }

    /// Adds the messages for a new rate to a batch: the class if it does not exist, its rate, its queue. Returns
    /// whether the limit is new, or was about to be removed.
    fn set(&mut self, maps: &Maps, batch: &mut ClassBatch, event: &abi::RateEvent) -> bool {
        let (class, key, rate) = (event.class, event.key, event.rate_bytes_per_s);
        let minor = class as u16;
        let by_class = self.enforcement == Enforcement::Htb;
        let largest = match self.limited.get(&class) {
            Some(flow) => flow.largest_packet,
            None => maps.flow(&key).map_or(0, |flow| largest_packet(&flow, key)),
        };
        let segments = self.segments.unwrap_or(1);
        let leaf = if key.protocol == ANY_PROTOCOL {
            self.layout.shared_leaf_bytes(rate)
        } else {
            self.layout.leaf_bytes(minor, rate, segments, largest)
        };
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
            largest_packet: largest,
            free_since: None,
            closing: false,
        };
        self.limited.insert(class, flow);
        true
    }

    /// Enforces rates of flows. New limits, and decreases that wait for them, are confirmed to the programs
    /// ([`abi::in_force`]).
    ///
    /// # Errors
    ///
    /// The kernel accepted none of the changes.
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
            // An existing class was removed with its root: the next decrease recreates it.
            let _ = maps.clear_in_force(class);
            let of = |event: &abi::RateEvent| event.class == class;
            if rates.iter().position(of).is_some_and(|at| fresh[at]) {
                refused.push((flow.key, class));
            }
        }
        for (event, fresh) in rates.iter().zip(fresh) {
            let acknowledged =
                (fresh || event.pending != 0) && self.enforcement != Enforcement::Pacing;
            if acknowledged
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

    /// Whether another target limits the same device in the same way.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let of = |target: &Self| (target.layout.ifindex, target.enforcement, target.whose);
        of(self) == of(other)
    }

    /// Takes over the flows of a target that [is like](Self::is_like) this one.
    pub(super) fn continue_from(&mut self, before: Self) {
        self.limited = before.limited;
        self.segments = before.segments;
        self.used_ns = before.used_ns;
    }

    /// Takes over what another agent has limited here: these flows, each with its intended rate in bytes per second.
    /// Other classes are removed.
    ///
    /// # Errors
    ///
    /// The kernel accepted none of the changes.
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
                    // Unknown until the first review.
                    largest_packet: 0,
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
            // Refused classes are retried at their flows' next decreases.
            self.enforce(maps, &mut batch, &events, now_ns)?;
        } else if !batch.is_empty() {
            batch.send(&mut self.socket)?;
        }
        self.limit_super_packets();
        Ok(())
    }

    /// Examines limited flows: classes that are no longer needed are removed, and [`LINGER`] after the last one the
    /// root qdisc. `pinned`: whether a user has set the rate of a class.
    ///
    /// # Errors
    ///
    /// The kernel accepted none of the changes.
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
            } else if !short && largest > limited.largest_packet {
                limited.largest_packet = largest;
                if by_class {
                    // Otherwise packets longer than its queue would always be dropped.
                    let segments = self.segments.unwrap_or(1);
                    let minor = class as u16;
                    let leaf = self
                        .layout
                        .leaf_bytes(minor, limited.leaf_rate, segments, largest);
                    self.layout.set_flow_leaf(batch, minor, leaf);
                }
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
        self.follow_super_packets();
        self.limit_super_packets();
        Ok(review)
    }

    /// Removes the root qdisc when nothing has been limited for [`LINGER`].
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

    /// Forgets all limits, whose classes were removed with the root qdisc.
    pub(super) fn forget(&mut self, maps: &mut Maps) {
        for (class, flow) in std::mem::take(&mut self.limited) {
            let _ = maps.clear_in_force(class);
            if class < abi::FIRST_CLASS {
                maps.reset_short(u32::from(flow.key.endpoint));
            }
        }
    }

    /// Removes everything from the device, which must still be the same one.
    pub(super) fn detach(&mut self, maps: &mut Maps) {
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
            // The device may have been removed with its namespace.
            tracing::debug!("{error}");
        }
        self.forget(maps);
        self.limit_super_packets();
    }

    /// Leaves the device to the next agent. Until that starts, no decrease is enforced, so flows get slightly less than
    /// their rates, except those set by users (`pinned`). False: no limit here needs an agent.
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

    /// The rate of an existing class, bytes per second.
    pub(super) fn rate(&self, class: u32) -> Option<u64> {
        self.limited.get(&class).map(|flow| flow.rate_bytes_per_s)
    }

    /// The flow of an existing class.
    pub(super) fn key(&self, class: u32) -> Option<Key> {
        self.limited.get(&class).map(|flow| flow.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow flow at full rate loses its class after a second; one that uses the link, after a minute.
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
        // It was fast only at first.
        assert!(is_free(16 * SECOND, 2 * LINK, LINK));
    }
}
