//! Ternary congestion detection (TCD): is a queue there because too much comes, or because its port is
//! paused?
//!
//! Where switches hold each other up hop by hop (PFC, or credits), a queue alone says little: behind a paused
//! port one builds up of flows that go nowhere near the congestion. In that ON-OFF pattern no port is ON
//! for longer than max(T_on) at a time ([`max_on_pfc_ns`], [`max_on_cbfc_ns`]), so a longer ON proves that the
//! pattern is over. What waits then is either left over from it, and drains, or is congestion:
//!
//! ```text
//! paused:                                               undetermined
//! ON for max(T_on):                                     remember the queue
//! a window later:                                       queue longer and above threshold:      congestion
//!                                                       else:                                  non-congestion
//! from then on:                                         queue above threshold: congestion, else: non-congestion
//! ```
//!
//! A queue that is left over and still above the threshold is looked at window after window until it is gone:
//! else it would be congestion at the next packet. One that stays as it is, is left over too: behind another port whose
//! pause has ended as much comes as goes, and with those for congestion half of the victim's flows were marked in the
//! chain of the paper (T1).
//!
//! Sources: "Congestion Detection in Lossless Networks" (SIGCOMM 2021) for the three states and the two
//! signals; how exactly the pattern's end is judged is this project's, see `reference/tcd.md`, section 2.
//! Nothing happens by itself: a port is told when it is paused, when it goes on, and of each packet
//! that it begins to send. One [`Port`] per egress port and priority (PFC) or virtual lane (credits).

use crate::fixed;
use crate::packet::{CE, ECT_0, ECT_1, NOT_ECT};
use crate::response::Ratio;

/// ECN field of packets that can be marked.
pub const CAPABLE: u8 = ECT_0;
/// ECN field of packets that passed an undetermined port and no congestion port (UE). RFC 9331 gives this codepoint
/// to L4S: not for networks that are shared.
pub const UE: u8 = ECT_1;

/// State of an egress port.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum State {
    /// Not congested and not in the ON-OFF pattern (0).
    #[default]
    NonCongestion = 0,
    /// A queue that no pause built (1).
    Congestion = 1,
    /// In the ON-OFF pattern, which hides what it is (/).
    Undetermined = 2,
}

/// What a packet says of the ports that it passed, in the order in which one overrides another.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mark {
    /// Neither.
    #[default]
    None = 0,
    /// Undetermined ones, no congested one (UE).
    Undetermined = 1,
    /// A congested one (CE).
    Congestion = 2,
}

impl Mark {
    /// The mark of a packet that leaves by a port in this state: CE overrides UE, and nothing takes a
    /// mark back (T9).
    #[inline(always)]
    #[must_use]
    pub fn leaves_by(self, state: State) -> Self {
        self.max(match state {
            State::NonCongestion => Self::None,
            State::Undetermined => Self::Undetermined,
            State::Congestion => Self::Congestion,
        })
    }

    /// What an ECN field says.
    #[inline(always)]
    #[must_use]
    pub const fn from_ecn(field: u8) -> Self {
        match field & 3 {
            UE => Self::Undetermined,
            CE => Self::Congestion,
            _ => Self::None,
        }
    }

    /// The ECN field of a packet that can be marked.
    #[inline(always)]
    #[must_use]
    pub const fn ecn(self) -> u8 {
        match self {
            Self::None => CAPABLE,
            Self::Undetermined => UE,
            Self::Congestion => CE,
        }
    }
}

/// The ECN field of a packet that leaves by a port in this state; one that cannot be marked keeps its own.
#[inline(always)]
#[must_use]
pub fn ecn_leaving_by(field: u8, state: State) -> u8 {
    if field & 3 == NOT_ECT {
        NOT_ECT
    } else {
        Mark::from_ecn(field).leaves_by(state).ecn()
    }
}

/// How a port judges.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// A longer queue is congestion: the ECN threshold of the scheme that answers.
    pub threshold_bytes: u64,
    /// max(T_on): longest ON of the ON-OFF pattern.
    pub max_on_ns: u64,
    /// How long a port looks whether its queue drains, once the pattern is over. As long as `max_on_ns`
    /// where nothing else is known.
    pub window_ns: u64,
}

const CONGESTION: u32 = State::Congestion as u32;
const UNDETERMINED: u32 = State::Undetermined as u32;

const PAUSED: u32 = 1;
const ON: u32 = 0;
/// The pattern is over; the queue of then, or of a window ago, is known.
const LOOKING: u32 = 2;

/// An egress port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Port {
    /// When it went on; while it looks, when it began to.
    since_ns: u64,
    /// Its queue then.
    queue_bytes: u64,
    /// A [`State`].
    state: u32,
    /// ON, PAUSED or LOOKING.
    phase: u32,
}

const _: () = assert!(size_of::<Port>() == 24);

impl Port {
    /// The port may not send: it was paused, or its credits are used up.
    #[inline(always)]
    pub fn off(&mut self) {
        self.state = State::Undetermined as u32;
        self.phase = PAUSED;
    }

    /// The port may send again. Without an [`Port::off`] before it means nothing.
    #[inline(always)]
    pub fn on(&mut self, now_ns: u64) {
        if self.phase == PAUSED {
            self.phase = ON;
            self.since_ns = now_ns;
        }
    }

    /// A packet begins to be sent and leaves so many bytes behind; the state that it meets.
    #[inline(always)]
    pub fn dequeue(&mut self, policy: &Policy, now_ns: u64, queue_bytes: u64) -> State {
        let congested = queue_bytes > policy.threshold_bytes;
        let state = self.state(policy, now_ns);
        let undetermined = state == State::Undetermined;
        let mut held_ns = now_ns.saturating_sub(self.since_ns);
        if self.phase == ON && undetermined && held_ns >= policy.max_on_ns {
            self.look(now_ns, queue_bytes);
            held_ns = 0;
        }
        let judged = if self.phase == LOOKING {
            let over = held_ns >= policy.window_ns;
            if queue_bytes == 0 || !congested && (over || !undetermined) {
                self.phase = ON;
                State::NonCongestion
            } else if !over {
                state
            } else if queue_bytes > self.queue_bytes {
                self.phase = ON;
                State::Congestion
            } else {
                self.look(now_ns, queue_bytes);
                State::NonCongestion
            }
        } else if undetermined {
            state
        } else if congested {
            State::Congestion
        } else {
            State::NonCongestion
        };
        self.state = judged as u32;
        judged
    }

    #[inline(always)]
    fn look(&mut self, now_ns: u64, queue_bytes: u64) {
        self.phase = LOOKING;
        self.since_ns = now_ns;
        self.queue_bytes = queue_bytes;
    }

    /// The state, for those who only look. A port that was ON for max(T_on) and a window, and sent nothing
    /// after max(T_on), had nothing to send: it is non-congested.
    #[inline(always)]
    #[must_use]
    pub fn state(&self, policy: &Policy, now_ns: u64) -> State {
        let longest = policy.max_on_ns.saturating_add(policy.window_ns);
        match self.state {
            CONGESTION => State::Congestion,
            UNDETERMINED if self.phase != ON || now_ns.saturating_sub(self.since_ns) <= longest => {
                State::Undetermined
            }
            _ => State::NonCongestion,
        }
    }
}

/// max(T_on) under PFC, rounded up:
///
/// ```text
/// (1 + epsilon)/epsilon (B0/C + tau)
/// ```
///
/// with B0 = Xoff - Xon, C the link's rate, and tau the time from a pause to its effect. T_on grows without bound
/// as the congestion degree epsilon goes to 0 (C = (1 + epsilon) times what drains), so this is for the least
/// one that matters; the paper's is 0.05 (from memory). `None`: a rate or epsilon of 0, or too long for 64 bits.
#[must_use]
pub fn max_on_pfc_ns(
    xoff_less_xon_bytes: u32,
    rate_bytes_per_s: u64,
    tau_ns: u64,
    epsilon: Ratio,
) -> Option<u64> {
    const FRAC: u32 = 16;
    if epsilon.den == 0 {
        return None;
    }
    let gap = fixed::ratio(
        u64::from(xoff_less_xon_bytes) * 1_000_000_000,
        rate_bytes_per_s,
        FRAC,
    )?;
    let loop_ns = tau_ns.checked_mul(1 << FRAC)?.checked_add(gap)?;
    let factor = fixed::ratio(epsilon.num.checked_add(epsilon.den)?, epsilon.num, 32)?;
    let on = fixed::mul_shift(loop_ns, factor, 32);
    (on != u64::MAX).then_some(on.div_ceil(1 << FRAC))
}

/// max(T_on) with credits that are renewed every `period_ns`: T_on = Tc/(1 + epsilon) is below Tc whatever epsilon is.
#[must_use]
pub const fn max_on_cbfc_ns(period_ns: u64) -> u64 {
    period_ns
}
