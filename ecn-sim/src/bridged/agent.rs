//! The agent's part of the loop: it takes new rates from a ring and moves classes, all that wait at
//! once.

use ecn_core::flow;

use crate::bridged::sender::News;
use crate::engine::Time;

/// What the agent waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// For a decrease, or the end of the period.
    Polling,
    /// For the kernel to make its changes.
    Enforcing,
    /// For decreases to come together.
    Pausing,
}

/// The agent. One moves the rates of all flows.
#[derive(Debug)]
pub struct Agent {
    doing: Doing,
    /// Rates that it has not seen.
    ring: Vec<News>,
    /// Rates that it is enforcing.
    batch: Vec<News>,
    period: Time,
    pause: Time,
    delay: Time,
    /// When it goes on.
    pub due: Time,
}

impl Agent {
    /// With its period, the time of a packet at the fastest of its links, and the time from its waking
    /// until rates are in force.
    pub fn new(period: Time, packet_time: Time, delay: Time) -> Self {
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

    /// A program has news. True if the agent now goes on at another time.
    pub fn tell(&mut self, now: Time, news: News) -> bool {
        self.ring.push(news);
        let wakes = self.doing == Doing::Polling && news.pending.is_some() && self.due > now;
        if wakes {
            self.due = now;
        }
        wakes
    }

    /// It goes on. Returns the rates that are in force now; the agent next goes on at [`Agent::due`].
    pub fn go_on(&mut self, now: Time) -> Vec<News> {
        let in_force = match self.doing {
            Doing::Enforcing => {
                (self.doing, self.due) = (Doing::Pausing, now + self.pause);
                return std::mem::take(&mut self.batch);
            }
            // The ring is not empty: polling ends at once.
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

    fn news(flow: u32, decrease: bool) -> News {
        News {
            flow,
            rate_bytes_per_s: 1,
            pending: decrease.then_some(1),
            marked: None,
        }
    }

    /// Period 1000, a packet of 100: it pauses for 500.
    #[test]
    fn increases_wait_for_the_period_and_decreases_do_not() {
        let mut agent = Agent::new(1000, 100, 30);
        assert!(!agent.tell(10, news(1, false)));
        assert_eq!(agent.due, 1000);
        assert!(agent.tell(20, news(2, true)));
        assert!(!agent.tell(20, news(3, true)), "it is awake");
        assert_eq!(agent.due, 20);
        assert!(agent.go_on(20).is_empty());
        assert_eq!(agent.due, 50);
        assert!(!agent.tell(40, news(4, true)), "it is busy");
        let flows: Vec<u32> = agent.go_on(50).iter().map(|news| news.flow).collect();
        assert_eq!((flows, agent.due), (vec![1, 2, 3], 550));
        // What came meanwhile is taken at once after the pause.
        assert!(agent.go_on(550).is_empty());
        assert_eq!(agent.due, 580);
        assert_eq!(agent.go_on(580).len(), 1);
        assert!(agent.go_on(1080).is_empty());
        assert_eq!(agent.due, 2080);
        assert!(!agent.tell(1100, news(5, false)));
        assert!(agent.go_on(2080).is_empty());
        assert_eq!(agent.go_on(2110).len(), 1);
    }
}
