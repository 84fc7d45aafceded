//! Sources: a window, and a rate adjusted by ACKs.

use std::sync::Arc;

use ecn_core::fixed::{FRAC, ONE};
use ecn_core::response::{self, Feedback, Policy, Round, State};

use crate::engine::{NS, Time};
use crate::model::Spacing;

/// The response of all sources.
#[derive(Clone, Debug)]
pub(crate) enum Control {
    /// One of the papers' functions.
    Policy(Policy),
    /// A designed function, given as a table.
    Table(Arc<dyn Designed>),
}

/// A pair of decrease and increase functions that are not given by an equation.
pub trait Designed: std::fmt::Debug + Send + Sync {
    /// The inter-packet delay after a marked ACK.
    fn marked(&self, ipd: u64) -> u64;
    /// The inter-packet delay after an unmarked ACK.
    fn unmarked(&self, ipd: u64) -> u64;
}

/// The sending end of a flow.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    state: State,
    packet_time: Time,
    /// Packets in flight.
    pub in_flight: u32,
    /// Packets put in its host's queue.
    pub sent: u64,
    /// Whether one of them is still queued: another one would follow it more closely than the rate permits.
    in_line: bool,
    received: u32,
    /// Whether it is active.
    pub active: bool,
    /// It must not start another packet before this time.
    pub not_before: Time,
    /// Time of the scheduled wake-up.
    pub timer: Option<Time>,
    last_start: Time,
    started: bool,
    spaced_at_send: bool,
}

impl Source {
    /// An idle source with this initial inter-packet delay (`ecn-core`'s fixed point).
    pub(crate) fn new(packet_time: Time, ipd: u64, spacing: Spacing) -> Self {
        Self {
            state: State {
                ipd,
                ..State::new()
            },
            packet_time,
            in_flight: 0,
            sent: 0,
            in_line: false,
            received: 0,
            active: false,
            not_before: 0,
            timer: None,
            last_start: 0,
            started: false,
            spaced_at_send: spacing == Spacing::AtSend,
        }
    }

    /// Whether everything but its rate permits another packet.
    #[inline]
    pub(crate) const fn may_send(&self, window: u32) -> bool {
        self.active && !self.in_line && self.in_flight < window
    }

    /// Records that a packet was queued at its host.
    #[inline]
    pub(crate) const fn send(&mut self) {
        self.in_flight += 1;
        self.sent += 1;
        self.in_line = true;
    }

    /// Handles a wake-up; false if it is stale because an earlier one replaced it.
    #[inline]
    pub(crate) fn wake(&mut self, now: Time) -> bool {
        let due = self.timer.is_none_or(|timer| timer <= now);
        if due {
            self.timer = None;
        }
        due
    }

    /// Records that a packet of this source starts its transmission.
    #[inline]
    pub(crate) fn start(&mut self, now: Time) {
        self.in_line = false;
        self.last_start = now;
        self.started = true;
        self.space();
    }

    fn space(&mut self) {
        // Whole packet times and the fraction separately: both products fit.
        let whole = (self.state.ipd >> FRAC) * self.packet_time;
        let part = (u128::from(self.state.ipd & (ONE - 1)) * u128::from(self.packet_time)) >> FRAC;
        self.not_before = self.last_start + whole + part as Time;
    }

    /// Handles an ACK.
    #[inline]
    pub(crate) fn on_ack(&mut self, control: &Control, marked: bool, now: Time) {
        self.in_flight -= 1;
        self.received = self.received.wrapping_add(1);
        match control {
            Control::Policy(policy) if policy.round == Round::Off as u32 => {
                self.state.ipd = if marked {
                    response::marked(policy, self.state.ipd)
                } else {
                    response::unmarked(policy, self.state.ipd, 1)
                };
            }
            Control::Policy(policy) => {
                let echo = Feedback {
                    packets: 1,
                    ce: marked.into(),
                    received: self.received,
                    outstanding: self.in_flight,
                };
                self.state.on_echo(policy, echo, now / NS);
            }
            Control::Table(table) => {
                self.state.ipd = if marked {
                    table.marked(self.state.ipd)
                } else {
                    table.unmarked(self.state.ipd)
                };
            }
        }
        if self.started && !self.spaced_at_send {
            self.space();
        }
    }
}
