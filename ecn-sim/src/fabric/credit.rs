//! Credit-based flow control of InfiniBand (CBFC). Each port has a buffer for arriving data, and advertises to the
//! other end of the link how much that may send, in blocks. With several data lanes, each has its own buffer, credits
//! and messages; "port" below means one of its lanes.
//!
//! Control has its own virtual lane, which never lacks credits. Messages are sent only after a change, which makes no
//! difference because none is lost; counters are wider than on the wire (12 bits).

use ecn_core::fixed::GOLDEN;

use crate::engine::Time;

/// Bytes of a block.
pub const BLOCK: u64 = 64;

/// Number of blocks of a packet.
#[inline]
pub const fn blocks(bytes: u32) -> u32 {
    bytes.div_ceil(BLOCK as u32)
}

/// Both ends of a port's link.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// Blocks sent (FCTBS).
    sent: u32,
    /// Limit of `sent` (FCCL).
    limit: u32,
    /// Blocks received (ABR).
    received: u32,
    /// Received blocks that are still buffered.
    held: u32,
    /// The last advertised limit.
    advertised: u32,
    /// Whether a message is pending.
    due: bool,
}

/// The credits of all ports.
#[derive(Clone, Debug)]
pub struct Credits {
    links: Vec<Link>,
    /// Size of a buffer, blocks.
    buffer: u32,
    /// Size of the longest packet, blocks.
    longest: u32,
    period: Time,
}

impl Credits {
    /// For `ports` ports with buffers of `buffer` bytes and packets of up to `longest` bytes, with advertisements every
    /// `period`.
    pub fn new(ports: usize, buffer: u64, longest: u32, period: Time) -> Self {
        let buffer = (buffer / BLOCK) as u32;
        let link = Link {
            sent: 0,
            limit: buffer,
            received: 0,
            held: 0,
            advertised: buffer,
            due: false,
        };
        Self {
            links: vec![link; ports],
            buffer,
            longest: blocks(longest),
            period,
        }
    }

    /// A port sends data. Returns whether there are credits for another packet of any length.
    #[inline]
    pub fn send(&mut self, port: u32, bytes: u32) -> bool {
        let link = &mut self.links[port as usize];
        link.sent = link.sent.wrapping_add(blocks(bytes));
        link.limit.wrapping_sub(link.sent) >= self.longest
    }

    /// A port receives credits. Returns whether they suffice for a packet of any length.
    pub fn on_update(&mut self, port: u32, limit: u32) -> bool {
        let link = &mut self.links[port as usize];
        link.limit = limit;
        link.limit.wrapping_sub(link.sent) >= self.longest
    }

    /// Data arrives at a port; `waits`: it is buffered. False if the buffer is full.
    #[inline]
    pub fn take(&mut self, port: u32, bytes: u32, waits: bool) -> bool {
        let link = &mut self.links[port as usize];
        link.received = link.received.wrapping_add(blocks(bytes));
        if waits {
            link.held += blocks(bytes);
        }
        link.held <= self.buffer
    }

    /// Data that arrived at a port leaves its buffer.
    #[inline]
    pub fn give(&mut self, port: u32, bytes: u32) {
        self.links[port as usize].held -= blocks(bytes);
    }

    /// The time of a port's next credit message, if its credits have changed and none is scheduled. Ports send at
    /// different phases of the period.
    #[inline]
    pub fn due(&mut self, port: u32, now: Time) -> Option<Time> {
        let period = self.period;
        let limit = self.limit(port);
        let link = &mut self.links[port as usize];
        if link.due || link.advertised == limit {
            return None;
        }
        link.due = true;
        let phase = (u64::from(port).wrapping_mul(GOLDEN) >> 20) % period;
        Some((now + period - phase) / period * period + phase)
    }

    /// The credit message of a port: blocks received plus free ones.
    pub fn advertise(&mut self, port: u32) -> u32 {
        let limit = self.limit(port);
        let link = &mut self.links[port as usize];
        link.due = false;
        link.advertised = limit;
        limit
    }

    /// A port's link fails. When it returns, the counters restart at 0, and the other end's buffer is unknown.
    pub fn forget(&mut self, port: u32) {
        let link = &mut self.links[port as usize];
        (link.sent, link.limit, link.received, link.advertised) = (0, 0, 0, 0);
    }

    /// Buffered blocks of a port.
    pub fn held(&self, port: u32) -> u32 {
        self.links[port as usize].held
    }

    fn limit(&self, port: u32) -> u32 {
        let link = &self.links[port as usize];
        link.received.wrapping_add(self.buffer - link.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_advertised_credits_can_be_used() {
        // Ten blocks, packets of up to three blocks.
        let (mut sender, mut receiver) = (
            Credits::new(1, 640, 190, 1_000),
            Credits::new(1, 640, 190, 1_000),
        );
        assert!(
            sender.send(0, 190) && sender.send(0, 129) && sender.send(0, 1) && !sender.send(0, 1)
        );
        for bytes in [190, 129, 1, 1] {
            assert!(receiver.take(0, bytes, true));
        }
        // Ten blocks in total, regardless of what is buffered.
        assert_eq!(receiver.due(0, 500), None);
        receiver.give(0, 129);
        let due = receiver.due(0, 500);
        assert!(due.is_some_and(|due| (500..=1_500).contains(&due)));
        assert_eq!(receiver.due(0, 600), None);
        assert_eq!((receiver.advertise(0), receiver.held(0)), (13, 5));
        assert!(sender.on_update(0, 13) && sender.send(0, 65) && !sender.send(0, 64));
        // A packet that passes at once frees its blocks at once.
        assert!(receiver.take(0, 129, false) && receiver.advertise(0) == 16);
    }

    /// At most one message per period, and not all ports at the same time.
    #[test]
    fn ports_advertise_once_a_period_at_staggered_times() {
        const PERIOD: Time = 1_000;
        let mut credits = Credits::new(8, 640, 190, PERIOD);
        let mut phases: Vec<Time> = Vec::new();
        for port in 0..8 {
            let mut sent = Vec::new();
            let mut now = 10 * PERIOD;
            for _ in 0..5 {
                assert!(credits.take(port, 64, false));
                let due = credits.due(port, now);
                let due = due.expect("a new advertisement");
                assert!((now + 1..=now + PERIOD).contains(&due), "{now} {due}");
                sent.push(due);
                credits.advertise(port);
                now = due;
            }
            assert!(sent.windows(2).all(|two| two[1] - two[0] == PERIOD));
            phases.push(sent[0] % PERIOD);
        }
        phases.sort_unstable();
        phases.dedup();
        assert!(phases.len() > 5, "{phases:?}");
    }

    /// Counters wrap around.
    #[test]
    fn credits_go_on_for_ever() {
        let mut link = Credits::new(1, 640, 640, 1_000);
        link.links[0].sent = u32::MAX - 4;
        link.links[0].received = u32::MAX - 4;
        let advertised = link.advertise(0);
        assert!(link.on_update(0, advertised) && !link.send(0, 640));
    }
}
