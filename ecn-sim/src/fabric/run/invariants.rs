//! What always holds in a run, and what is said when it does not.

use super::{Counts, Run, RunError};
use crate::engine::{NS, Time};
use crate::fabric::credit::blocks;
use crate::fabric::packet::NONE;
use crate::fabric::series::Series;

impl Run<'_> {
    /// There are no numbers left.
    #[cold]
    pub(in crate::fabric) fn too_many(&mut self, what: &'static str) {
        self.stop(RunError::TooMany(what));
    }

    /// Something that always holds does not, at a port.
    #[cold]
    pub(in crate::fabric) fn broken(&mut self, what: impl Into<String>, port: u32) {
        let error = RunError::Invariant {
            what: what.into(),
            place: self.topology.port_name(port),
            ns: self.now() / NS,
        };
        self.stop(error);
    }

    /// Keeps the first error, and has the run look at it before the next event.
    fn stop(&mut self, error: RunError) {
        self.error.get_or_insert(error);
        self.until_check = 0;
    }

    /// Looks at everything that waits: memory is what the queues hold.
    #[cold]
    pub(super) fn check(&mut self) {
        let mut came_by = vec![0_u64; self.ports.len()];
        for number in self.topology.hosts..self.ports.len() as u32 {
            let port = &self.ports[number as usize];
            let (mut id, mut queued) = (port.data.head, 0);
            let first = self.topology.ports(port.node).start;
            while id != NONE {
                let packet = &self.packets[id];
                queued += u64::from(packet.bytes);
                if self.lossless {
                    let ingress = first + u32::from(packet.ingress);
                    let bytes = u32::from(packet.bytes);
                    came_by[ingress as usize] += u64::from(match self.credits {
                        None => bytes,
                        Some(_) => blocks(bytes),
                    });
                }
                id = packet.link;
            }
            if queued != u64::from(port.queued) {
                return self.broken("a queue does not hold the bytes that it counts", number);
            }
        }
        let ports = self.topology.hosts..self.ports.len() as u32;
        let mut used = vec![0_u64; self.memories.len()];
        for number in ports {
            let port = &self.ports[number as usize];
            let held = match &self.credits {
                None => u64::from(port.shared) + u64::from(port.headroom),
                Some(credits) => u64::from(credits.held(number)),
            };
            if held != came_by[number as usize] {
                return self.broken("a port does not hold the bytes that came by it", number);
            }
            used[port.node as usize] += u64::from(if self.lossless {
                port.shared
            } else {
                port.queued
            });
        }
        for (switch, memory) in self.memories.iter().enumerate() {
            if memory.used != used[switch] || memory.used > memory.pool {
                let port = self.topology.ports(switch as u32).start;
                return self.broken("a memory does not hold what its ports do", port);
            }
        }
    }

    /// Data packets that wait in switches.
    fn waiting(&self) -> u64 {
        let mut waiting = 0;
        for port in &self.ports[self.topology.hosts as usize..] {
            let mut id = port.data.head;
            while id != NONE {
                waiting += 1;
                id = self.packets[id].link;
            }
        }
        waiting
    }

    /// Something that waits while nothing is to come.
    fn deadlock(&self) -> Option<u32> {
        (0..self.ports.len() as u32).find(|port| {
            let port = &self.ports[*port as usize];
            !port.data.is_empty() || !port.control.is_empty()
        })
    }
}

/// What all parts of a run counted, if all that always holds did.
///
/// # Errors
///
/// The first thing that did not.
pub fn finish(mut parts: Vec<Run>) -> Result<Counts, RunError> {
    for part in parts.iter_mut().filter(|part| part.error.is_none()) {
        part.check();
    }
    let errors = parts.iter_mut().filter_map(|part| part.error.take());
    let first = errors.min_by_key(|error| match error {
        RunError::Invariant { ns, .. } => *ns,
        _ => 0,
    });
    if let Some(error) = first {
        return Err(error);
    }
    let sum = |of: fn(&Run) -> u64| parts.iter().map(of).sum::<u64>();
    let waiting = sum(|part| part.waiting());
    let on_links: i64 = parts.iter().map(|part| part.data_on_links).sum();
    let (sent, delivered) = (sum(|part| part.data_sent), sum(|part| part.data_delivered));
    let dropped = sum(|part| part.counts.dropped_packets);
    let ns = parts
        .iter()
        .map(|part| part.now())
        .max()
        .unwrap_or_default()
        / NS;
    let known = delivered + dropped + waiting;
    if Some(sent) != known.checked_add_signed(on_links) {
        return Err(RunError::Invariant {
            what: format!(
                "{sent} data packets sent, {delivered} delivered, {dropped} dropped, \
                 {waiting} wait, {on_links} on links"
            ),
            place: "the end".to_owned(),
            ns,
        });
    }
    let over = parts.iter().all(|part| part.next_time() == Time::MAX);
    let flows = sum(|part| part.flows.len() as u64);
    let packets = sum(|part| part.packets.len() as u64);
    if over && (flows > 0 || packets > 0) {
        let stuck = parts
            .iter()
            .find_map(|part| Some(part.topology.port_name(part.deadlock()?)));
        return Err(RunError::Deadlock {
            waiting: packets,
            place: stuck.unwrap_or_else(|| "no port".to_owned()),
            ns,
        });
    }
    let mut counts = Counts::default();
    let end = parts
        .iter()
        .map(|part| part.now())
        .max()
        .unwrap_or_default();
    for mut part in parts {
        part.sample(end);
        match (&mut counts.series, part.series.take()) {
            (Some(series), Some(other)) => series.join(&other),
            (series, other) => *series = other.map(Series::ended),
        }
        if let Some(trace) = part.trace.take() {
            counts.trace.get_or_insert_default().extend(trace.changes);
        }
        counts.unfinished.extend(part.unfinished());
        let own = part.counts;
        counts.flows_started += own.flows_started;
        counts.finished.extend(own.finished);
        counts.last_end = counts.last_end.max(own.last_end);
        counts.dropped_packets += own.dropped_packets;
        counts.pause_frames += own.pause_frames;
        counts.marked_packets += own.marked_packets;
        counts.undetermined_packets += own.undetermined_packets;
        counts.data_packet_hops += own.data_packet_hops;
        counts.packet_hops += own.packet_hops;
        counts.events += own.events;
        counts.most_packets += part.packets.most() as u64;
    }
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
    use crate::fabric::{Scenario, parts::Part};

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

    /// A run to which something was done before it began.
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

    /// A port that is paused for ever holds up those before it.
    #[test]
    fn a_deadlock_stops_the_run() {
        let error = spoilt(&[], |run| {
            let to = run.upcoming.unwrap().to;
            let last = run.topology.peer[to as usize];
            run.ports[last as usize].off = true;
        });
        assert!(
            matches!(error, RunError::Deadlock { waiting: 1.., .. }),
            "{error}"
        );
    }

    /// The bound is sharp enough to matter: what is needed is used up to a packet or so.
    #[test]
    fn headroom_is_used() {
        let scenario = scenario(&["buffer=32kB", "thresholds=static", "xoff=2kB"]);
        let topology = scenario.topology().unwrap();
        let needed = scenario.headroom();
        for (missing, lossless) in [(0, true), (4 * 1_062, false)] {
            let mut run = Run::new(&scenario, &topology, Part::ALL, 1).unwrap();
            run.limits.headroom = (needed - missing) as u32;
            run.advance(Time::MAX);
            assert_eq!(finish(vec![run]).is_ok(), lossless, "{missing}");
        }
    }
}
