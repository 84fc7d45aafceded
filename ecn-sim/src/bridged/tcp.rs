//! A TCP connection controlled by losses: slow start, congestion avoidance, fast retransmit, and a timeout.
//!
//! Packets are numbered in the order of transmission, including retransmissions, and each is acknowledged by its number
//! (as with SACK and timestamps). Paths do not reorder, so a packet is lost if three later ones have arrived. Not
//! modelled: the handshake, delayed ACKs, tail-loss probes, pacing, and slow receivers.

use std::collections::VecDeque;

use crate::engine::{MS, Time};
use crate::traffic::Algorithm;

/// Initial window, packets (RFC 6928).
const FIRST_WINDOW: f64 = 10.0;
/// Maximum window, packets: about what Linux's default receive buffer permits.
const MOST: f64 = 4_000.0;
/// Number of later packets that must arrive before an older one is considered lost.
const DUPLICATES: u64 = 3;
/// Minimum time by which a timeout exceeds the round trip, as in Linux; and the timeout before that is known.
const LEAST_TIMEOUT: Time = 200 * MS;
const FIRST_TIMEOUT: Time = 1_000 * MS;
/// Increase of the round-trip time that ends cubic's slow start (HyStart, RFC 9406).
const DELAYED: Time = 4 * MS;
/// RFC 9438: C, in packets per s^3, and the factor by which a loss multiplies the window.
const C: f64 = 0.4;
const BETA: f64 = 0.7;

/// A packet in flight.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u64,
    at: Time,
}

/// A connection's sender.
#[derive(Debug)]
pub(crate) struct Tcp {
    algorithm: Algorithm,
    /// Congestion window, packets.
    window: f64,
    /// Slow-start threshold.
    threshold: f64,
    /// Packets not yet sent.
    unsent: u64,
    /// Packets to retransmit.
    lost: u64,
    outstanding: VecDeque<Sent>,
    /// Number of the next packet.
    next: u64,
    /// Packets below this number were sent before the last decrease: their loss causes no further one.
    recovered: u64,
    /// Packets below this number were sent while the window was the limit: it may grow for their ACKs.
    full: u64,
    smoothed: Option<Time>,
    variation: Time,
    least: Time,
    backoff: u32,
    /// When it times out.
    pub deadline: Time,
    /// Cubic: window before the last loss; when it started to grow again, with that growth's parameters; and Reno's
    /// window.
    before: f64,
    epoch: Option<(Time, f64, f64)>,
    reno: f64,
}

impl Tcp {
    /// A connection with `packets` packets to send.
    pub(crate) fn new(algorithm: Algorithm, packets: u64) -> Self {
        Self {
            algorithm,
            window: FIRST_WINDOW,
            threshold: f64::INFINITY,
            unsent: packets,
            lost: 0,
            outstanding: VecDeque::new(),
            next: 0,
            recovered: 0,
            full: 0,
            smoothed: None,
            variation: 0,
            least: Time::MAX,
            backoff: 0,
            deadline: Time::MAX,
            before: 0.0,
            epoch: None,
            reno: 0.0,
        }
    }

    /// Whether it may send a packet.
    pub(crate) fn may_send(&self) -> bool {
        (self.lost > 0 || self.unsent > 0) && (self.outstanding.len() as f64) < self.window.floor()
    }

    /// Whether all packets are acknowledged.
    pub(crate) fn is_done(&self) -> bool {
        self.unsent == 0 && self.lost == 0 && self.outstanding.is_empty()
    }

    /// Sends a packet: returns its number.
    pub(crate) fn send(&mut self, now: Time) -> u64 {
        let number = self.next;
        self.next += 1;
        if self.lost > 0 {
            self.lost -= 1;
        } else {
            self.unsent = self.unsent.saturating_sub(1);
        }
        self.outstanding.push_back(Sent { number, at: now });
        if self.outstanding.len() as f64 >= self.window.floor() {
            self.full = self.next;
        }
        if self.deadline == Time::MAX {
            self.deadline = now + self.timeout();
        }
        number
    }

    fn timeout(&self) -> Time {
        let timeout = match self.smoothed {
            None => FIRST_TIMEOUT,
            Some(smoothed) => smoothed + (4 * self.variation).max(LEAST_TIMEOUT),
        };
        timeout << self.backoff.min(6)
    }

    /// Handles the acknowledgement of this packet.
    pub(crate) fn on_ack(&mut self, now: Time, number: u64) {
        let found = self.outstanding.binary_search_by_key(&number, |s| s.number);
        let Ok(place) = found else {
            // It was considered lost after a timeout, and has been retransmitted.
            return;
        };
        let Some(sent) = self.outstanding.remove(place) else {
            return;
        };
        self.backoff = 0;
        self.measure(now - sent.at);
        let mut loss = false;
        while let Some(oldest) = self.outstanding.front()
            && oldest.number + DUPLICATES <= number
        {
            loss |= oldest.number >= self.recovered;
            self.lost += 1;
            self.outstanding.pop_front();
        }
        if loss {
            self.on_loss();
        } else if (self.recovered..self.full).contains(&number) {
            self.grow(now, now - sent.at);
        }
        self.deadline = if self.outstanding.is_empty() {
            Time::MAX
        } else {
            now + self.timeout()
        };
    }

    /// Updates the round-trip estimates (RFC 6298).
    fn measure(&mut self, trip: Time) {
        self.least = self.least.min(trip);
        let smoothed = match self.smoothed {
            None => {
                self.variation = trip / 2;
                trip
            }
            Some(smoothed) => {
                self.variation = (3 * self.variation + smoothed.abs_diff(trip)) / 4;
                (7 * smoothed + trip) / 8
            }
        };
        self.smoothed = Some(smoothed);
    }

    fn grow(&mut self, now: Time, trip: Time) {
        if self.window < self.threshold {
            if self.algorithm == Algorithm::Cubic && trip > self.least + DELAYED {
                self.threshold = self.window;
            }
            self.window += 1.0;
        } else {
            self.window += match self.algorithm {
                Algorithm::Reno => 1.0 / self.window,
                Algorithm::Cubic => self.cubic(now),
            };
        }
        self.window = self.window.min(MOST);
    }

    /// Cubic's window increase for an ACK.
    fn cubic(&mut self, now: Time) -> f64 {
        let window = self.window;
        let (began, delay, origin) = *self.epoch.get_or_insert_with(|| {
            self.reno = window;
            let missing = (self.before - window).max(0.0);
            (now, (missing / C).cbrt(), window.max(self.before))
        });
        let s = (now + self.least - began) as f64 / (1e12) - delay;
        let target = (origin + C * s * s * s).clamp(window, 1.5 * window);
        self.reno += 3.0 * (1.0 - BETA) / (1.0 + BETA) / window;
        ((target - window) / window).max(self.reno - window)
    }

    fn on_loss(&mut self) {
        self.recovered = self.next;
        self.decrease();
        self.window = self.threshold;
    }

    fn decrease(&mut self) {
        let left = match self.algorithm {
            Algorithm::Reno => 0.5,
            Algorithm::Cubic => BETA,
        };
        // Fast convergence: a flow whose window has shrunk since the last loss releases some of its share to others.
        self.before = if self.window < self.before {
            self.window * (1.0 + BETA) / 2.0
        } else {
            self.window
        };
        self.epoch = None;
        self.threshold = (self.window * left).max(2.0);
    }

    /// Handles the expiry of the deadline. True if the connection timed out; all packets in flight then count as lost.
    pub(crate) fn on_timeout(&mut self, now: Time) -> bool {
        if now < self.deadline || self.outstanding.is_empty() {
            return false;
        }
        self.lost += self.outstanding.len() as u64;
        self.outstanding.clear();
        if self.backoff == 0 {
            self.decrease();
        }
        self.recovered = self.next;
        self.window = 1.0;
        self.backoff += 1;
        self.deadline = Time::MAX;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: Time = MS;

    /// Sends as many packets as permitted, and loses those chosen by `lose`.
    fn round(tcp: &mut Tcp, now: Time, lose: impl Fn(u64) -> bool) -> u64 {
        let mut sent = Vec::new();
        while tcp.may_send() {
            sent.push(tcp.send(now));
        }
        for &number in sent.iter().filter(|number| !lose(**number)) {
            tcp.on_ack(now + TRIP, number);
        }
        sent.len() as u64
    }

    #[test]
    fn the_window_doubles_until_a_loss_and_then_grows_by_one() {
        let mut tcp = Tcp::new(Algorithm::Reno, u64::MAX);
        let rounds: Vec<u64> = (0..3)
            .map(|n| round(&mut tcp, n * TRIP, |_| false))
            .collect();
        assert_eq!(rounds, [10, 20, 40]);
        // 80 are sent, one is lost: the window is halved once.
        assert_eq!(round(&mut tcp, 3 * TRIP, |number| number == 75), 80);
        assert!((40.0..44.0).contains(&tcp.window), "{}", tcp.window);
        let first = round(&mut tcp, 4 * TRIP, |_| false);
        let later: Vec<u64> = (5..9)
            .map(|n| round(&mut tcp, n * TRIP, |_| false))
            .collect();
        assert!(
            later.windows(2).all(|two| two[1] - two[0] <= 1) && later[3] >= first + 3,
            "{first} {later:?}"
        );
    }

    #[test]
    fn what_is_lost_is_sent_again_until_all_has_arrived() {
        let mut tcp = Tcp::new(Algorithm::Cubic, 20);
        round(&mut tcp, 0, |number| number == 3 || number == 4);
        assert_eq!((tcp.lost, tcp.unsent, tcp.is_done()), (2, 10, false));
        let mut now = TRIP;
        while !tcp.is_done() {
            round(&mut tcp, now, |_| false);
            now += TRIP;
        }
        assert_eq!(tcp.next, 22);
        assert_eq!(tcp.deadline, Time::MAX);
    }

    #[test]
    fn a_lost_tail_waits_for_the_timeout() {
        let mut tcp = Tcp::new(Algorithm::Cubic, 2);
        round(&mut tcp, 0, |number| number == 1);
        assert!(!tcp.is_done() && !tcp.may_send());
        // The round-trip time plus 200 ms, counted from the ACK.
        assert_eq!(tcp.deadline, TRIP + TRIP + LEAST_TIMEOUT);
        assert!(!tcp.on_timeout(tcp.deadline - 1));
        assert!(tcp.on_timeout(tcp.deadline));
        assert_eq!((tcp.window, tcp.lost), (1.0, 1));
        let now = 202 * MS;
        let number = tcp.send(now);
        assert_eq!(
            tcp.deadline,
            now + 2 * (TRIP + LEAST_TIMEOUT),
            "twice as long"
        );
        tcp.on_ack(now + TRIP, number);
        assert!(tcp.is_done());
    }

    #[test]
    fn cubic_comes_back_to_where_it_was() {
        let mut tcp = Tcp::new(Algorithm::Cubic, u64::MAX);
        (tcp.window, tcp.threshold, tcp.least) = (100.0, 2.0, 50 * MS);
        tcp.on_loss();
        assert_eq!((tcp.window, tcp.before), (70.0, 100.0));
        tcp.recovered = 0;
        // K = (30 / 0.4)^(1/3) = 4.2 s.
        let mut at_k = 0.0;
        for n in 0..40u64 {
            round(&mut tcp, n * 200 * MS, |_| false);
            if n == 21 {
                at_k = tcp.window;
            }
        }
        assert!((95.0..106.0).contains(&at_k), "{at_k}");
        assert!(tcp.window > at_k + 10.0, "{}", tcp.window);
    }
}
