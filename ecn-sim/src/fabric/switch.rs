//! A shared-memory, output-queued switch: its ports, what they may hold, and when they pause others.

use super::packet::List;
use crate::engine::Time;

/// A port, of a switch or a host: in a cache line of its own.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct Port {
    /// When its transmission ends.
    pub busy_until: Time,
    /// ACKs and notifications that wait; they go before data.
    pub control: List,
    /// Data that waits; of a host: the flows that are ready.
    pub data: List,
    /// Bytes of data that wait here to go out.
    pub queued: u32,
    /// Bytes that came by this port and wait in the shared memory.
    pub shared: u32,
    /// Bytes that came by it and wait in its headroom.
    pub headroom: u32,
    /// The port at the other end.
    pub peer: u32,
    /// Its switch, or host.
    pub node: u32,
    /// Which of its switch's ports it is.
    pub own: u16,
    /// The part of the network that has the other end.
    pub part: u16,
    /// An event is to come when its transmission ends.
    pub wakes: bool,
    /// The other end may not be sent data.
    pub off: bool,
    /// The other end is to be told of its credits.
    pub credit: bool,
    /// The other end is to be paused.
    pub pause_wanted: bool,
    /// The other end was told to pause, last.
    pub pause_sent: bool,
}

const _: () = assert!(size_of::<Port>() == 64);

impl Port {
    /// Has it to tell the other end something, before all else?
    #[inline]
    pub const fn has_to_tell(&self) -> bool {
        self.credit || self.pause_wanted != self.pause_sent
    }

    /// Has it something that it may send?
    #[inline]
    pub const fn has_work(&self) -> bool {
        self.has_to_tell() || !self.control.is_empty() || !(self.off || self.data.is_empty())
    }
}

/// A switch's memory.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes that its ports share.
    pub pool: u64,
    /// Of those in use.
    pub used: u64,
}

/// How much of the shared memory a port may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// So many bytes.
    Static(u64),
    /// So many 65536ths of what is free (Choudhury and Hahne, "Dynamic queue length thresholds", 1998).
    Dynamic(u64),
}

/// What ports may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of a port: what came by it (PFC), or waits for it (tail drop).
    pub threshold: Threshold,
    /// The other end goes on when the port is this far below.
    pub gap: u64,
    /// Bytes that a port has for what arrives after it asked for a pause.
    pub headroom: u32,
}

impl Limits {
    #[inline]
    fn threshold(&self, memory: &Memory) -> u64 {
        match self.threshold {
            Threshold::Static(bytes) => bytes,
            Threshold::Dynamic(factor) => ((memory.pool - memory.used) * factor) >> 16,
        }
    }

    fn fits(&self, memory: &Memory, held: u32, bytes: u32) -> bool {
        let held = u64::from(held) + u64::from(bytes);
        held <= self.threshold(memory) && memory.used + u64::from(bytes) <= memory.pool
    }

    /// PFC: takes a packet in that came by `port`, which wants a pause once its share of the memory is
    /// used up; `false` if even its headroom is full.
    #[inline]
    pub fn take(&self, memory: &mut Memory, port: &mut Port, bytes: u32) -> bool {
        if port.headroom == 0 && self.fits(memory, port.shared, bytes) {
            memory.used += u64::from(bytes);
            port.shared += bytes;
            return true;
        }
        port.pause_wanted = true;
        port.headroom += bytes;
        port.headroom <= self.headroom
    }

    /// PFC: gives the memory of a packet back; headroom first.
    #[inline]
    pub fn give(&self, memory: &mut Memory, port: &mut Port, bytes: u32) {
        let kept = bytes.min(port.headroom);
        port.headroom -= kept;
        let shared = bytes - kept;
        port.shared -= shared;
        memory.used -= u64::from(shared);
        if port.pause_wanted
            && port.headroom == 0
            // An empty port goes on whatever others hold: nothing would tell it when they hold less.
            && (port.shared == 0 || u64::from(port.shared) + self.gap <= self.threshold(memory))
        {
            port.pause_wanted = false;
        }
    }

    /// Tail drop: takes a packet in that is to leave by `port`, if it fits.
    #[inline]
    pub fn take_tail(&self, memory: &mut Memory, port: &Port, bytes: u32) -> bool {
        let fits = self.fits(memory, port.queued, bytes);
        if fits {
            memory.used += u64::from(bytes);
        }
        fits
    }
}

/// Headroom that no packet overflows: from the moment that a port wants a pause, a frame of its own
/// may hold up the pause frame, and the other end starts frames until that has arrived and ends the
/// last one after it. One more is what tips the port over.
pub fn headroom_needed(bytes_per_s: u64, delay_ps: Time, frame: u64, pause: u64) -> u64 {
    let in_flight = u128::from(bytes_per_s) * 2 * u128::from(delay_ps);
    in_flight.div_ceil(1_000_000_000_000) as u64 + 3 * frame + pause
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_up_to_the_threshold_then_headroom_then_full() {
        let limits = Limits {
            threshold: Threshold::Dynamic(1 << 15),
            gap: 2_000,
            headroom: 3_000,
        };
        let mut memory = Memory {
            pool: 12_000,
            used: 0,
        };
        let (mut a, mut b) = (Port::default(), Port::default());
        // Half of what is free: 4 of 12 for one port, 6 - 2 = 4 more for nobody.
        for _ in 0..4 {
            assert!(limits.take(&mut memory, &mut a, 1_000));
        }
        assert!(!a.pause_wanted);
        assert!(limits.take(&mut memory, &mut a, 1_000));
        assert!(a.pause_wanted && a.headroom == 1_000 && memory.used == 4_000);
        assert!(limits.take(&mut memory, &mut b, 1_000));
        assert!(limits.take(&mut memory, &mut a, 2_000));
        assert!(!limits.take(&mut memory, &mut a, 1));
        a.headroom -= 1;
        // Headroom empties first; then the port has to be a gap below its threshold.
        limits.give(&mut memory, &mut a, 3_000);
        assert!(a.pause_wanted && a.headroom == 0 && a.shared == 4_000);
        limits.give(&mut memory, &mut a, 1_000);
        assert!(a.pause_wanted);
        limits.give(&mut memory, &mut a, 1_000);
        assert!(!a.pause_wanted && a.shared == 2_000 && memory.used == 3_000);
    }

    #[test]
    fn an_empty_port_goes_on_whatever_others_hold() {
        let limits = Limits {
            threshold: Threshold::Static(500),
            gap: 2_000,
            headroom: 1_000,
        };
        let mut memory = Memory { pool: 10, used: 10 };
        let mut port = Port::default();
        assert!(limits.take(&mut memory, &mut port, 1_000) && port.pause_wanted);
        limits.give(&mut memory, &mut port, 1_000);
        assert!(!port.pause_wanted);
    }

    #[test]
    fn headroom_is_a_round_trip_and_three_frames() {
        // 100 Gb/s and 1 us: 25 kB on the link and back.
        let needed = headroom_needed(12_500_000_000, 1_000_000, 1_062, 64);
        assert_eq!(needed, 25_000 + 3 * 1_062 + 64);
    }
}
