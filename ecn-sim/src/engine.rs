//! Events in time order.
//!
//! Time is in integer picoseconds. Events at the same time come in the order in which they were
//! scheduled, so a run is the same to the byte wherever it is repeated.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Picoseconds since the start of the run.
pub type Time = u64;

/// Picoseconds per nanosecond.
pub const NS: Time = 1_000;
/// Picoseconds per millisecond.
pub const MS: Time = 1_000_000_000;

/// Bits of an event that say what happens; the sequence number is above them.
const PAYLOAD: u32 = 26;
/// Bits of a payload that number a packet, a channel, a flow or an instant.
pub const INDEX: u32 = PAYLOAD - 2;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The header of this packet can be forwarded by the switch at the end of its channel.
    Arrive(u32),
    /// The tail of the packet on this channel has left it.
    Tail(u32),
    /// This flow's ACK is back, or its time to send has come.
    Source(u32),
    /// The run comes to this one of its instants: a flow starts or stops, counters are read.
    Instant(u32),
}

impl Event {
    const fn pack(self) -> u64 {
        let (kind, index) = match self {
            Self::Arrive(index) => (0, index),
            Self::Tail(index) => (1, index),
            Self::Source(index) => (2, index),
            Self::Instant(index) => (3, index),
        };
        kind << INDEX | index as u64
    }

    const fn unpack(word: u64) -> Self {
        let index = (word & ((1 << INDEX) - 1)) as u32;
        match word >> INDEX & 3 {
            0 => Self::Arrive(index),
            1 => Self::Tail(index),
            2 => Self::Source(index),
            _ => Self::Instant(index),
        }
    }
}

/// Time above, then sequence number, then payload: the order of events is that of the numbers.
type Key = u128;

/// Something that gives keys back smallest first.
pub trait Queue: Default {
    /// Puts a key in; never smaller than the last that came out.
    fn push(&mut self, key: Key);
    /// Takes the smallest out.
    fn pop(&mut self) -> Option<Key>;
}

/// The standard library's binary heap.
#[derive(Debug, Default)]
pub struct Heap(BinaryHeap<Reverse<Key>>);

impl Queue for Heap {
    fn push(&mut self, key: Key) {
        self.0.push(Reverse(key));
    }

    fn pop(&mut self) -> Option<Key> {
        self.0.pop().map(|Reverse(key)| key)
    }
}

/// A calendar of days of 2^17 ps (131 ns), 512 to the year, with a heap for the years to come
/// (Brown, "Calendar queues", CACM 31(10), 1988, with a fixed width).
///
/// Packet times of the links under study are some days long, so a day holds few events.
#[derive(Debug)]
pub struct Calendar {
    /// Keys of one day each, largest first.
    days: Vec<Vec<Key>>,
    /// A bit per day that has keys.
    used: [u64; Self::DAYS / 64],
    /// The day up to which everything came out.
    today: u64,
    later: BinaryHeap<Reverse<Key>>,
}

impl Default for Calendar {
    fn default() -> Self {
        Self {
            days: vec![Vec::new(); Self::DAYS],
            used: [0; Self::DAYS / 64],
            today: 0,
            later: BinaryHeap::new(),
        }
    }
}

impl Calendar {
    const WIDTH: u32 = 17;
    const DAYS: usize = 512;

    const fn day(key: Key) -> u64 {
        (key >> (64 + Self::WIDTH)) as u64
    }

    fn enter(&mut self, key: Key) {
        let slot = Self::day(key) as usize % Self::DAYS;
        let day = &mut self.days[slot];
        // Few keys, most of them later than those that are there.
        let at = day
            .iter()
            .position(|other| *other < key)
            .unwrap_or(day.len());
        day.insert(at, key);
        self.used[slot / 64] |= 1 << (slot % 64);
    }

    /// The next slot with keys, from today on.
    fn next_used(&self) -> Option<usize> {
        let start = self.today as usize % Self::DAYS;
        let (word, bit) = (start / 64, start % 64);
        let words = self.used.len();
        let first = self.used[word] >> bit;
        if first != 0 {
            return Some(start + first.trailing_zeros() as usize);
        }
        // Round once; of the first word, then, what lies before today.
        (1..=words).find_map(|step| {
            let word = (word + step) % words;
            let bits = self.used[word];
            (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)
        })
    }
}

impl Queue for Calendar {
    fn push(&mut self, key: Key) {
        if Self::day(key) - self.today < Self::DAYS as u64 {
            self.enter(key);
        } else {
            self.later.push(Reverse(key));
        }
    }

    fn pop(&mut self) -> Option<Key> {
        let Some(slot) = self.next_used() else {
            let Reverse(key) = self.later.pop()?;
            self.today = Self::day(key);
            self.move_in();
            return Some(key);
        };
        let day = &mut self.days[slot];
        let key = day.pop()?;
        if day.is_empty() {
            self.used[slot / 64] &= !(1 << (slot % 64));
        }
        let today = Self::day(key);
        if today != self.today {
            self.today = today;
            self.move_in();
        }
        Some(key)
    }
}

impl Calendar {
    /// Enters what the year now reaches.
    fn move_in(&mut self) {
        while let Some(Reverse(key)) = self.later.peek()
            && Self::day(*key) - self.today < Self::DAYS as u64
        {
            let key = *key;
            self.later.pop();
            self.enter(key);
        }
    }
}

/// The events to come.
#[derive(Debug, Default)]
pub struct Agenda<Q> {
    queue: Q,
    now: Time,
    next: u64,
}

impl<Q: Queue> Agenda<Q> {
    /// The time of the event that came last.
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Events that came so far, or are still to come.
    pub const fn scheduled(&self) -> u64 {
        self.next
    }

    /// Schedules an event. A time in the past counts as now.
    #[inline]
    pub fn at(&mut self, time: Time, event: Event) {
        let low = self.next << PAYLOAD | event.pack();
        self.next += 1;
        self.queue
            .push(Key::from(time.max(self.now)) << 64 | Key::from(low));
    }

    /// The next event; the clock moves to it.
    #[inline]
    pub fn pop(&mut self) -> Option<Event> {
        let key = self.queue.pop()?;
        self.now = (key >> 64) as Time;
        Some(Event::unpack(key as u64))
    }
}
