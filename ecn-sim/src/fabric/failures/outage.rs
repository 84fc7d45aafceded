//! When a link is down.

use crate::engine::Time;

/// A link that is down for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Index in [`Plan::links`](crate::fabric::topology::Plan::links).
    pub link: usize,
    /// When it fails.
    pub from: Time,
    /// When it returns, if it does.
    pub to: Option<Time>,
    /// Delay until routes change.
    pub reroute: Time,
}

impl Outage {
    /// Whether it is down from before the run until its end.
    pub const fn is_permanent(&self) -> bool {
        self.from == 0 && self.to.is_none()
    }

    /// When routes start to avoid it, and when they use it again.
    fn known(&self) -> (Time, Option<Time>) {
        let from = match self.from {
            0 => 0,
            from => from + self.reroute,
        };
        (from, self.to.map(|to| to + self.reroute))
    }

    /// The times at which anything changes.
    pub fn times(&self) -> impl Iterator<Item = Time> {
        let (from, to) = self.known();
        [self.from, from].into_iter().chain(self.to).chain(to)
    }

    /// Whether routes change at this time.
    pub fn moves_routes(&self, time: Time) -> bool {
        let (from, to) = self.known();
        from == time || to == Some(time)
    }

    /// Whether routes avoid it at this time.
    pub fn is_avoided(&self, time: Time) -> bool {
        let (from, to) = self.known();
        from <= time && to.is_none_or(|to| time < to)
    }
}
