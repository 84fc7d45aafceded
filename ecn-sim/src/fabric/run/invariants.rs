//! What always holds in a run, and what is said when it does not.

use super::{Run, RunError};
use crate::engine::NS;
use crate::fabric::packet::NONE;

impl Run<'_> {
    /// There are no numbers left.
    #[cold]
    pub(in crate::fabric) fn too_many(&mut self, what: &'static str) {
        self.error.get_or_insert(RunError::TooMany(what));
    }

    /// Something that always holds does not, at a port.
    #[cold]
    pub(in crate::fabric) fn broken(&mut self, what: impl Into<String>, port: u32) {
        let error = RunError::Invariant {
            what: what.into(),
            place: self.topology.port_name(port),
            ns: self.now() / NS,
        };
        self.error.get_or_insert(error);
    }

    /// Looks at everything that waits: no packet is lost, and memory is what the queues hold.
    #[cold]
    pub(super) fn check(&mut self) {
        let mut waiting = 0;
        let mut came_by = vec![0_u64; self.ports.len()];
        for number in self.topology.hosts..self.ports.len() as u32 {
            let (mut id, mut queued) = (self.ports[number as usize].data.head, 0);
            while id != NONE {
                let packet = &self.packets[id];
                queued += u64::from(packet.bytes);
                if self.lossless {
                    came_by[packet.ingress as usize] += u64::from(packet.bytes);
                }
                waiting += 1;
                id = packet.next;
            }
            if queued != u64::from(self.ports[number as usize].queued) {
                return self.broken("a queue does not hold the bytes that it counts", number);
            }
        }
        let ports = self.topology.hosts..self.ports.len() as u32;
        let mut used = vec![0_u64; self.memories.len()];
        for number in ports {
            let port = &self.ports[number as usize];
            let held = u64::from(port.shared) + u64::from(port.headroom);
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
        let known =
            self.data_delivered + self.counts.dropped_packets + self.data_on_links + waiting;
        if self.data_sent != known {
            let what = format!(
                "{} data packets sent, {known} accounted for",
                self.data_sent
            );
            self.broken(what, 0);
        }
    }

    /// Nothing is to come, and flows are not finished.
    #[cold]
    pub(super) fn deadlock(&mut self) {
        let stuck = (0..self.ports.len() as u32).find(|port| {
            let port = &self.ports[*port as usize];
            !port.data.is_empty() || !port.control.is_empty()
        });
        self.error = Some(RunError::Deadlock {
            waiting: self.packets.len() as u64,
            place: stuck.map_or("no port".to_owned(), |port| self.topology.port_name(port)),
            ns: self.now() / NS,
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::fabric::Scenario;

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
        let mut run = Run::new(&scenario, &topology, 1).unwrap();
        spoil(&mut run);
        run.run().unwrap_err()
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
            run.ports[last as usize].paused = true;
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
            let mut run = Run::new(&scenario, &topology, 1).unwrap();
            run.limits.headroom = (needed - missing) as u32;
            assert_eq!(run.run().is_ok(), lossless, "{missing}");
        }
    }
}
