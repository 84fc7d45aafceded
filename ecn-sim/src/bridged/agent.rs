//! The agent's part of the control loop: it reads new rates from a ring and changes classes, all pending ones in one
//! batch.

use ecn_core::flow;

use crate::bridged::sender::RateUpdate;
use crate::engine::Time;

/// The agent's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Waiting for a decrease or the end of the period.
    Polling,
    /// Waiting for the kernel to apply changes.
    Enforcing,
    /// Waiting, to collect decreases in one batch.
    Pausing,
}

/// The agent. A single one enforces the rates of all flows.
#[derive(Debug)]
pub(crate) struct Agent {
    doing: Doing,
    /// Updates in the ring.
    ring: Vec<RateUpdate>,
    /// Updates being enforced.
    batch: Vec<RateUpdate>,
    period: Time,
    pause: Time,
    delay: Time,
    /// When it runs next.
    pub due: Time,
}

impl Agent {
    /// `packet_time`: of a packet at the fastest of its links. `delay`: from its wake-up until rates are in force.
    pub(crate) fn new(period: Time, packet_time: Time, delay: Time) -> Self {
        Self {
            doing: Doing::Polling,
            ring: Vec::new(),
            batch: Vec::new(),
            period,
            pause: flow::batch_delay(period, packet_time),
            delay,
            due: period,
        }
    }

    /// A program has put an event into the ring. True if this changes when the agent runs next.
    pub(crate) fn on_rate_event(&mut self, now: Time, update: RateUpdate) -> bool {
        self.ring.push(update);
        let wakes = self.doing == Doing::Polling && update.decreased && self.due > now;
        if wakes {
            self.due = now;
        }
        wakes
    }

    /// Runs the agent. Returns the rates that are now in force; the agent runs next at [`Agent::due`].
    pub(crate) fn run(&mut self, now: Time) -> Vec<RateUpdate> {
        let in_force = match self.doing {
            Doing::Enforcing => {
                (self.doing, self.due) = (Doing::Pausing, now + self.pause);
                return std::mem::take(&mut self.batch);
            }
            // With a non-empty ring, polling ends at once.
            Doing::Pausing if self.ring.is_empty() => {
                (self.doing, self.due) = (Doing::Polling, now + self.period);
                return Vec::new();
            }
            Doing::Polling | Doing::Pausing => Vec::new(),
        };
        if self.ring.is_empty() {
            self.due = now + self.period;
        } else {
            self.batch = std::mem::take(&mut self.ring);
            (self.doing, self.due) = (Doing::Enforcing, now + self.delay);
        }
        in_force
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(flow: u32, decrease: bool) -> RateUpdate {
        RateUpdate {
            flow,
            rate_bytes_per_s: 1,
            decreased: decrease,
            pending: None,
            marked: None,
        }
    }

    /// Period 1000, packet time 40: the pause is 480.
    #[test]
    fn increases_wait_for_the_period_and_decreases_do_not() {
        let mut agent = Agent::new(1000, 40, 30);
        assert!(!agent.on_rate_event(10, update(1, false)));
        assert_eq!(agent.due, 1000);
        assert!(agent.on_rate_event(20, update(2, true)));
        assert!(!agent.on_rate_event(20, update(3, true)), "it is awake");
        assert_eq!(agent.due, 20);
        assert!(agent.run(20).is_empty());
        assert_eq!(agent.due, 50);
        assert!(!agent.on_rate_event(40, update(4, true)), "it is busy");
        let flows: Vec<u32> = agent.run(50).iter().map(|update| update.flow).collect();
        assert_eq!((flows, agent.due), (vec![1, 2, 3], 530));
        // Events of the pause are read right after it.
        assert!(agent.run(530).is_empty());
        assert_eq!(agent.due, 560);
        assert_eq!(agent.run(560).len(), 1);
        assert!(agent.run(1040).is_empty());
        assert_eq!(agent.due, 2040);
        assert!(!agent.on_rate_event(1100, update(5, false)));
        assert!(agent.run(2040).is_empty());
        assert_eq!(agent.run(2070).len(), 1);
    }
}
