//! Invariants of a run, and reports of violations.

use super::{Counts, Run, RunError};
use crate::engine::{NS, Time};
use crate::fabric::cc::Scheme;
use crate::fabric::credit::blocks;
use crate::fabric::failures::Lost;
use crate::fabric::packet::{NONE, Packet};
use crate::fabric::transfers::join;

impl<S: Scheme> Run<'_, S> {
    /// All numbers are in use.
    #[cold]
    pub(in crate::fabric) fn too_many(&mut self, what: &'static str) {
        self.stop(RunError::TooMany(what));
    }

    /// Reports a violated invariant at a port.
    #[cold]
    pub(in crate::fabric) fn broken(&mut self, what: impl Into<String>, port: u32) {
        self.breaks(what.into(), self.topology.port_name(port));
    }

    /// Reports a violated invariant in a class of a port's data.
    #[cold]
    pub(super) fn broken_in(&mut self, what: impl Into<String>, port: u32, class: u8) {
        self.breaks(what.into(), self.name(port, class));
    }

    fn breaks(&mut self, what: String, place: String) {
        let ns = self.now() / NS;
        self.stop(RunError::Invariant { what, place, ns });
    }

    /// Name of a port, with the class if there are several.
    fn name(&self, port: u32, class: u8) -> String {
        let name = self.topology.port_name(port);
        if self.ports.classes(port).len() == 1 {
            name
        } else {
            format!("{name} priority {class}")
        }
    }

    /// Keeps the first error, and makes the run stop before the next event.
    pub(in crate::fabric) fn stop(&mut self, error: RunError) {
        self.error.get_or_insert(error);
        self.watch_due = 0;
    }

    /// Checks everything that waits: the memory in use must equal the contents of the queues.
    #[cold]
    pub(super) fn check(&mut self) {
        if let Some(switches) = &self.input_queued {
            if let Err((port, what)) = switches.check(self.topology) {
                self.broken(what, port);
            }
            return;
        }
        let queues = self.ports.queue_index(self.topology.hosts, 0)..self.ports.queues();
        let mut by_ingress = vec![0_u64; queues.end as usize];
        let mut queued = vec![0_u64; queues.end as usize];
        for queue in queues.clone() {
            let (number, class) = self.ports.port_and_class(queue);
            let switch = self.ports[number as usize].node;
            let first = self.topology.ports(switch).start;
            let mut count = |packet: &Packet, out: u32| {
                queued[out as usize] += u64::from(packet.bytes);
                if self.lossless {
                    let ingress = first + u32::from(packet.ingress);
                    let bytes = u32::from(packet.bytes);
                    let at = self.ports.queue_index(ingress, class);
                    by_ingress[at as usize] += u64::from(match self.credits {
                        None => bytes,
                        Some(_) => blocks(bytes),
                    });
                }
            };
            for packet in self.listed(self.ports.class(number, class).first()) {
                count(packet, queue);
            }
            for packet in self.listed(self.second(queue)) {
                let to = packet.destination.into();
                let out = self.topology.route(switch, to, packet.hash());
                count(packet, self.ports.queue_index(out, class));
            }
        }
        for queue in queues.clone() {
            let (number, class) = self.ports.port_and_class(queue);
            if queued[queue as usize] != u64::from(self.ports.class(number, class).queued) {
                let what = "a queue does not hold the bytes that it counts";
                return self.broken_in(what, number, class);
            }
        }
        let mut used = vec![0_u64; self.memories.len()];
        for queue in queues {
            let (number, class) = self.ports.port_and_class(queue);
            let own = self.ports.class(number, class);
            let held = match &self.credits {
                None => u64::from(own.shared) + u64::from(own.headroom),
                Some(credits) => u64::from(credits.held(queue)),
            };
            if held != by_ingress[queue as usize] {
                let what = "a port does not hold the bytes that arrived at it";
                return self.broken_in(what, number, class);
            }
            let switch = self.ports[number as usize].node;
            used[switch as usize] += u64::from(if self.lossless {
                own.shared
            } else {
                own.queued
            });
        }
        for (switch, memory) in self.memories.iter().enumerate() {
            if memory.used != used[switch] || memory.used > memory.pool {
                let port = self.topology.ports(switch as u32).start;
                return self.broken("a memory does not hold what its ports do", port);
            }
        }
    }

    /// This packet and those linked behind it.
    fn listed(&self, first: u32) -> impl Iterator<Item = &Packet> {
        let mut id = first;
        std::iter::from_fn(move || {
            let packet = self.packets.get(id)?;
            id = packet.link;
            Some(packet)
        })
    }

    /// With input-buffered switches, the second packet of an input and class: the first one is in an output's queue.
    fn second(&self, queue: u32) -> u32 {
        let inputs = self.inputs.as_ref();
        inputs.map_or(NONE, |inputs| inputs.second(queue))
    }

    /// Number of data packets waiting in switches.
    fn waiting(&self) -> u64 {
        if let Some(switches) = &self.input_queued {
            let all = 0..self.topology.names.len() as u32;
            return all
                .map(|number| switches.waiting(number).count() as u64)
                .sum();
        }
        let queues = self.ports.queue_index(self.topology.hosts, 0)..self.ports.queues();
        let waiting = queues.map(|queue| {
            let (number, class) = self.ports.port_and_class(queue);
            let first = self.ports.class(number, class).first();
            self.listed(first).count() + self.listed(self.second(queue)).count()
        });
        waiting.sum::<usize>() as u64
    }

    /// The location of a packet that waits although no event is pending.
    fn deadlock(&self) -> Option<String> {
        let ports = (0..).zip(self.ports.iter());
        let mut stuck = ports.filter(|(_, port)| port.has_waiting());
        let (number, _) = stuck.next()?;
        let mut classes = self.ports.classes(number);
        let class = classes.find(|(_, class)| class.first() != NONE);
        Some(match class {
            Some((class, _)) => self.name(number, class),
            None => self.topology.port_name(number),
        })
    }
}

/// When a run ended: at its limit if events are left, else with the last event.
pub fn end_of<S: Scheme>(parts: &[Run<S>]) -> Time {
    let end = if is_over(parts) {
        parts.iter().map(Run::now).max()
    } else {
        parts.iter().map(|part| part.limit).max()
    };
    end.unwrap_or_default()
}

/// Whether no events are left.
fn is_over<S: Scheme>(parts: &[Run<S>]) -> bool {
    parts.iter().all(|part| part.next_time() == Time::MAX)
}

/// The counts of all parts of a run, if no invariant was violated.
///
/// # Errors
///
/// The first violation.
pub fn finish<S: Scheme>(mut parts: Vec<Run<S>>) -> Result<Counts, RunError> {
    for part in parts.iter_mut().filter(|part| part.error.is_none()) {
        part.check();
    }
    let errors = parts.iter_mut().filter_map(|part| part.error.take());
    let first = errors.min_by_key(|error| match error {
        RunError::Invariant { ns, .. } => *ns,
        RunError::Stopped { .. } => Time::MAX,
        _ => 0,
    });
    if let Some(error) = first {
        return Err(error);
    }
    let sum = |of: fn(&Run<S>) -> u64| parts.iter().map(of).sum::<u64>();
    let waiting = sum(|part| part.waiting());
    let on_links: i64 = parts.iter().map(|part| part.data_on_links).sum();
    let (sent, delivered) = (sum(|part| part.data_sent), sum(|part| part.data_delivered));
    let dropped = sum(|part| part.counts.dropped_packets);
    let mut lost = Lost::default();
    for outages in parts.iter().filter_map(|part| part.outages.as_ref()) {
        lost.add(&outages.lost);
    }
    let end = end_of(&parts);
    let ns = end / NS;
    let known = delivered + dropped + lost.data() + waiting;
    if Some(sent) != known.checked_add_signed(on_links) {
        return Err(RunError::Invariant {
            what: format!(
                "{sent} data packets sent, {delivered} delivered, {dropped} dropped, \
                 {} lost, {waiting} wait, {on_links} on links",
                lost.data()
            ),
            place: "the end".to_owned(),
            ns,
        });
    }
    let flows = sum(|part| part.flows.len() as u64);
    let packets = sum(|part| part.packets.len() as u64);
    if is_over(&parts) && (flows > 0 || packets > 0) {
        let stuck = parts.iter().find_map(Run::deadlock);
        return Err(RunError::Deadlock {
            waiting: packets,
            place: stuck.unwrap_or_else(|| "no port".to_owned()),
            ns,
        });
    }
    let mut counts = Counts {
        end,
        lost,
        ..Counts::default()
    };
    for mut part in parts {
        match (&mut counts.series, part.series.take()) {
            (Some(series), Some(other)) => series.join(&other),
            (series, other) => *series = other,
        }
        if let Some(trace) = part.trace.take() {
            counts.trace.get_or_insert_default().extend(trace.changes);
        }
        join(&mut counts.windows, part.transfers(end));
        counts.unfinished.extend(part.unfinished(end));
        let own = part.counts;
        counts.flows_started += own.flows_started;
        counts.finished.extend(own.finished);
        counts.last_end = counts.last_end.max(own.last_end);
        counts.dropped_packets += own.dropped_packets;
        counts.pause_frames += own.pause_frames;
        counts.marked_packets += own.marked_packets;
        counts.undetermined_packets += own.undetermined_packets;
        counts.data_packets += part.data_sent;
        counts.data_packet_hops += part.hops[1];
        counts.packet_hops += part.hops[0] + part.hops[1];
        counts.events += own.events;
        counts.most_packets += part.packets.most() as u64;
    }
    let flows = counts.finished.iter().chain(&counts.unfinished);
    counts.head_of_line_victims = flows.filter(|flow| flow.is_victim()).count() as u64;
    if let Some(trace) = &mut counts.trace {
        trace.sort_by_key(|change| (change.time, change.port));
    }
    counts.finished.sort_unstable_by_key(|flow| flow.id);
    counts.unfinished.sort_unstable_by_key(|flow| flow.id);
    Ok(counts)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::{Scenario, part::Part};

    fn scenario(settings: &[&str]) -> Scenario {
        let mut scenario = Scenario::find("fat-tree").unwrap();
        for setting in ["hosts=16", "senders=8", "flow_size=300kB"]
            .iter()
            .chain(settings)
        {
            scenario.set_text(setting).unwrap();
        }
        scenario
    }

    /// The error of a run that is modified by `spoil` before it starts.
    fn spoilt(settings: &[&str], spoil: impl Fn(&mut Run)) -> RunError {
        let scenario = scenario(settings);
        let topology = scenario.topology().unwrap();
        let mut run = Run::new(&scenario, &topology, Part::ALL, 1).unwrap();
        spoil(&mut run);
        run.advance(Time::MAX);
        finish(vec![run]).unwrap_err()
    }

    #[test]
    fn a_drop_in_a_lossless_run_stops_it() {
        let small = &["buffer=32kB"];
        let error = spoilt(small, |run| run.limits.headroom = 20_000).to_string();
        assert!(error.contains("a drop in a lossless run, at "), "{error}");
        assert!(
            error.contains(" port ") && error.ends_with(" ns"),
            "{error}"
        );
    }

    #[test]
    fn a_lost_packet_stops_the_run() {
        let error = spoilt(&[], |run| run.data_sent = 1).to_string();
        assert!(error.contains("packets sent, "), "{error}");
    }

    #[test]
    fn memory_that_is_not_given_back_stops_the_run() {
        let error = spoilt(&[], |run| run.memories[0].used = 1).to_string();
        assert!(error.contains("a memory does not hold"), "{error}");
    }

    /// A port that is paused forever blocks those upstream.
    #[test]
    fn a_deadlock_stops_the_run() {
        for (priorities, paused) in [(1, 0), (3, 2)] {
            let error = spoilt(&[&format!("priorities={priorities}")], |run| {
                let to = run.upcoming.unwrap().to;
                let last = run.topology.peer[to as usize];
                run.ports[last as usize].off = 1 << paused;
            });
            assert!(
                matches!(error, RunError::Deadlock { waiting: 1.., .. }),
                "{error}"
            );
            // The class is named if there are several.
            let named = error.to_string().contains(" priority 2, and nothing moves");
            assert_eq!(named, priorities == 3, "{error}");
        }
    }

    /// The bound is tight: all but about one packet of it is used.
    #[test]
    fn headroom_is_used() {
        for (priorities, buffer) in [(1, "32kB"), (2, "60kB")] {
            let (priorities, buffer) = (
                format!("priorities={priorities}"),
                format!("buffer={buffer}"),
            );
            let scenario = scenario(&[&priorities, &buffer, "thresholds=static", "xoff=2kB"]);
            let topology = scenario.topology().unwrap();
            for (missing, lossless) in [(0, true), (4 * 1_062, false)] {
                let mut run = Run::new(&scenario, &topology, Part::ALL, 1).unwrap();
                run.limits.headroom -= missing;
                run.advance(Time::MAX);
                assert_eq!(
                    finish(vec![run]).is_ok(),
                    lossless,
                    "{missing} {priorities}"
                );
            }
        }
    }
}
