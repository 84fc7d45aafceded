//! Ternary congestion detection (TCD): did congestion build a queue, or did pauses of its port?
//!
//! With hop-by-hop flow control (PFC, or credits), a queue alone shows little: behind a paused port one builds up of flows
//! that never reach the congestion. In that ON-OFF pattern no port is ON for longer than max(T_on) at a time
//! ([`max_on_pfc_ns`], [`max_on_cbfc_ns`]), so a longer ON proves that the pattern is over. A queue is then either
//! congestion, or a backlog of the pauses:
//!
//! ```text
//! paused, or ON for up to max(T_on):                        undetermined
//! from then on:
//!     queue not above the threshold:                        non-congestion
//!     queue was empty since the port resumed, or is longer than then by more than `growth`, or
//!     the port was ON for `patience` times as long as OFF before, and the queue is longer than its
//!     least since by more than `growth`:                    congestion
//!     else:                                                 non-congestion
//! after congestion, and if never paused, by the threshold alone
//! ```
//!
//! `growth` ([`growth_bytes`]) is what the smallest relevant congestion adds in max(T_on): congestion that starts when the
//! pause ends is detected as soon as the pattern is over (T2). A backlog in this port only drains; a backlog of a port
//! behind it arrives as fast as it leaves (T1). (From two such ports twice as much arrives: where they merge, and there
//! was no backlog before, that is congestion.)
//!
//! The length of a queue that was at the pause threshold when the port resumed is ambiguous: congestion keeps it there,
//! and so do the backlogs of many paused inputs. Those need time: inputs with a total load r of the link drain the backlog
//! of a pause T in r/(1 - r) T, so `patience` is 2 for loads up to two thirds. After that a queue that still grows is
//! judged congestion, wrongly so at higher loads: of 302 flows of TCD's victim 33 see congestion where loads of 0.3 and
//! 0.6 merge, and 5 of 100 with 0.1 and 0.8, although no port is overloaded. With a `patience` of 9, which is
//! 0.9/(1 - 0.9), none do. Under PFC `growth` is also the swing of an ingress queue from pause to pause (T7).
//!
//! Sources: "Congestion Detection in Lossless Networks" (SIGCOMM 2021) for the three states and the two signals; how
//! the end of the pattern is judged is this project's, see R in `docs/sources.md`. There are no timers: the caller
//! reports each pause, resume and dequeue. One [`Port`] per egress port and priority (PFC) or virtual lane (credits).

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
    /// Congested: pauses did not build the queue (1).
    Congestion = 1,
    /// In the ON-OFF pattern (/).
    Undetermined = 2,
}

/// A packet's mark of the ports that it passed; a greater one overrides a smaller one.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Mark {
    /// Only non-congestion ports.
    #[default]
    None = 0,
    /// An undetermined port, no congested one (UE).
    Undetermined = 1,
    /// A congested port (CE).
    Congestion = 2,
}

impl Mark {
    /// The mark after a port in this state: CE overrides UE, and no mark is ever removed (T9).
    #[inline(always)]
    #[must_use]
    pub fn combined_with(self, state: State) -> Self {
        self.max(match state {
            State::NonCongestion => Self::None,
            State::Undetermined => Self::Undetermined,
            State::Congestion => Self::Congestion,
        })
    }

    /// Reads an ECN field.
    #[inline(always)]
    #[must_use]
    pub const fn from_ecn(field: u8) -> Self {
        match field & 3 {
            UE => Self::Undetermined,
            CE => Self::Congestion,
            _ => Self::None,
        }
    }

    /// The ECN field of an ECN-capable packet with this mark.
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

/// A packet's ECN field after a port in this state; Not-ECT stays.
#[inline(always)]
#[must_use]
pub fn mark_ecn(field: u8, state: State) -> u8 {
    if field & 3 == NOT_ECT {
        NOT_ECT
    } else {
        Mark::from_ecn(field).combined_with(state).ecn()
    }
}

/// Parameters of the detection.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Queue length above which a port can be congested: the ECN threshold of the congestion control.
    pub threshold_bytes: u64,
    /// max(T_on): longest ON of the ON-OFF pattern.
    pub max_on_ns: u64,
    /// Growth of a queue that shows congestion ([`growth_bytes`]).
    pub growth_bytes: u64,
    /// Longest time in which a backlog drains, in units of the time that the port was OFF.
    pub patience: u64,
}

const CONGESTION: u16 = State::Congestion as u16;
const UNDETERMINED: u16 = State::Undetermined as u16;

/// Never paused, or known to be congested since.
const FREE: u16 = 0;
const PAUSED: u16 = 1;
/// ON after a pause.
const RESUMED: u16 = 2;

/// An egress port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Port {
    /// When it was last paused or resumed.
    since_ns: u64,
    /// How long it was OFF in this pattern.
    off_ns: u32,
    /// Its queue when it resumed, saturated.
    first_bytes: u32,
    /// Its shortest queue since; [`UNKNOWN`] until a packet is sent.
    least_bytes: u32,
    /// A [`State`].
    state: u16,
    /// FREE, PAUSED or RESUMED.
    phase: u16,
}

const UNKNOWN: u32 = u32::MAX;

const _: () = assert!(size_of::<Port>() == 24);

impl Port {
    /// The port may not send: it was paused, or is out of credits. No effect if it is paused already.
    #[inline(always)]
    pub fn on_pause(&mut self, policy: &Policy, now_ns: u64) {
        if self.phase == PAUSED {
            return;
        }
        if !self.in_on_off_pattern(policy, now_ns) {
            self.off_ns = 0;
        }
        self.state = UNDETERMINED;
        self.phase = PAUSED;
        self.since_ns = now_ns;
    }

    /// The port may send again. No effect unless it is paused.
    #[inline(always)]
    pub fn on_resume(&mut self, now_ns: u64) {
        if self.phase == PAUSED {
            let off_ns = self.elapsed_ns(now_ns).saturating_add(self.off_ns.into());
            self.off_ns = off_ns.min(u32::MAX.into()) as u32;
            self.phase = RESUMED;
            self.since_ns = now_ns;
            self.least_bytes = UNKNOWN;
        }
    }

    /// A packet is dequeued and leaves `queue_bytes` behind. Returns the state to mark it with.
    #[inline(always)]
    pub fn on_dequeue(&mut self, policy: &Policy, now_ns: u64, queue_bytes: u64) -> State {
        let congested = queue_bytes > policy.threshold_bytes;
        if self.phase == RESUMED {
            let queue = queue_bytes.min((UNKNOWN - 1).into()) as u32;
            if self.least_bytes == UNKNOWN {
                self.first_bytes = queue;
            }
            self.least_bytes = self.least_bytes.min(queue);
        }
        let judged = if self.in_on_off_pattern(policy, now_ns) {
            State::Undetermined
        } else if congested && !self.held_back(policy, now_ns, queue_bytes) {
            self.phase = FREE;
            State::Congestion
        } else {
            State::NonCongestion
        };
        self.state = judged as u16;
        judged
    }

    /// Time since it was last paused or resumed.
    #[inline(always)]
    const fn elapsed_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.since_ns)
    }

    /// It may be in the pattern.
    #[inline(always)]
    fn in_on_off_pattern(&self, policy: &Policy, now_ns: u64) -> bool {
        self.phase == PAUSED || self.phase == RESUMED && self.elapsed_ns(now_ns) <= policy.max_on_ns
    }

    /// Whether the queue may be a backlog of pauses.
    #[inline(always)]
    fn held_back(&self, policy: &Policy, now_ns: u64, queue_bytes: u64) -> bool {
        if self.phase != RESUMED || self.least_bytes == 0 {
            return false;
        }
        let drains_ns = policy.patience.saturating_mul(self.off_ns.into());
        let before = if self.elapsed_ns(now_ns) > drains_ns {
            self.least_bytes
        } else {
            self.first_bytes
        };
        queue_bytes <= policy.growth_bytes.saturating_add(before.into())
    }

    /// The current state, for a reader that sees this queue. A port with an empty queue at the end of the pattern is
    /// non-congested; otherwise the next packet decides.
    #[inline(always)]
    #[must_use]
    pub fn state(&self, policy: &Policy, now_ns: u64, queue_bytes: u64) -> State {
        match self.state {
            CONGESTION => State::Congestion,
            UNDETERMINED if queue_bytes > 0 || self.in_on_off_pattern(policy, now_ns) => {
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
/// with B0 = Xoff - Xon, C the link's rate, and tau the time from a pause to its effect. T_on is unbounded as the
/// congestion degree epsilon approaches 0 (C = (1 + epsilon) times the drain rate), so epsilon is the smallest one that
/// matters; the paper's is 0.05 (from memory). `None`: a rate or epsilon of 0, or too long for 64 bits.
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

/// What congestion of degree epsilon adds to a queue in max(T_on), rounded down:
///
/// ```text
/// epsilon/(1 + epsilon) C max(T_on)
/// ```
///
/// Under PFC that is B0 + C tau, the swing of an ingress queue from pause to pause (T7). `None`: the denominator of epsilon
/// is 0, or too much for 64 bits.
#[must_use]
pub fn growth_bytes(max_on_ns: u64, rate_bytes_per_s: u64, epsilon: Ratio) -> Option<u64> {
    const FRAC: u32 = 24;
    let rate = fixed::ratio(rate_bytes_per_s, 1_000_000_000, FRAC)?;
    let both = epsilon.num.checked_add(epsilon.den)?;
    let share = fixed::ratio(epsilon.num, both, 32).filter(|_| epsilon.den != 0)?;
    let sent = fixed::mul_shift(rate, max_on_ns, FRAC);
    let growth = fixed::mul_shift(sent, share, 32);
    (sent != u64::MAX).then_some(growth)
}
