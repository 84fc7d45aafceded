//! Rate response of a source to marked and unmarked ACKs, as in HP's congestion control.
//!
//! A switch marks packets, the receiver echoes the marks, and the source changes its rate r: a
//! marked packet applies the decrease function fdec, an unmarked one the increase function finc.
//! The state of a flow is not the rate but the inter-packet delay
//!
//! ```text
//! ipd = Rmax / r      start to start, in packet transmission times at Rmax; 1 at full rate
//! ```
//!
//! because LIPD is linear in it and because it is what a pacer enforces. Rates below are fractions
//! of Rmax; the delay is confined to [1, Rmax/Rmin].
//!
//! | | fdec(r) | finc(r) | on the delay |
//! |---|---|---|---|
//! | LIPD | r/(1 + r) | r/(1 - Rmin) | ipd + 1; ipd (1 - Rmin) |
//! | FIMD | r/m | r m^(Rmin/r) | ipd m; ipd m^(-ipd Rmin) |
//! | AIMD | r/m | r + (m - 1) Rmin²/r | ipd m; ipd / (1 + (m - 1)(ipd Rmin)²) |
//!
//! Sources: Santos, Turner, Janakiraman, "End-to-End Congestion Control for InfiniBand", INFOCOM
//! 2003 (HPL-2002-359), with the slides of the talk; the clamps and the increase of FIMD also in
//! claims of US 7,920,476. The increase of AIMD is printed in neither: it follows from the paper's
//! design method (finc(fdec(r)) <= r with equality where fdec(r) = Rmin) and ends the increase
//! curve where the slides draw it, at 65K packet times.
//!
//! # Fractional steps
//!
//! HP's functions respond to one packet per round trip, since their window is one packet. Without a window a flow has many
//! packets per round: a full step for each mark decreases its rate far too much, and one full step per round oscillates
//! (two flows use .78 of a link). [`Round::Fractional`] applies a fraction of a step to every packet instead. With t = the
//! time between packets at the flow's rate:
//!
//! ```text
//! mark:     ipd <- ipd (1 + w/100),            w = max(t / (t + 75 us), 1/8) (1 + min(t / 14 ms, 2))
//! no mark:  ipd <- ipd (1 - w t' / 2.5 s),     t' = 0.12 ms + t 80 ms / (t + 80 ms)
//! ```
//!
//! The equilibrium is LIPD's: p / (1 - p) = 40 t' / s, so flows with the same fraction p of marked packets have the
//! same rate, and a flow that is marked at two ports has nearly the rate of one that is marked only at the busier
//! one. The weight w makes the steps of fast flows smaller, since they take more of them, and those of slow flows
//! larger: with steps of 1/100, four hundred flows that start together would take ten seconds to share a port. An
//! application-limited flow counts as slow too: at a mark, the t of the second factor is the time since the last
//! echo. t' is t, except for slow flows, whose feedback is late, and for fast flows, 0.5 % of whose packets may be
//! marked without a net decrease: bursts of late timers occasionally fill a buffer of four packets at any load. All
//! constants are times and packets, so they depend neither on the rate of the source's link nor on the number of
//! flows. FIMD and AIMD in the same form, with u = t / 1 ms:
//!
//! | | mark | no mark |
//! |---|---|---|
//! | LIPD | w/100 | w t' / 2.5 s |
//! | FIMD | w u log2 m / 100 | w u t' log2 m / 2.5 s |
//! | AIMD | w u log2 m / 100 | w u² t' (m - 1) / 2.5 s |
//!
//! A train of marks decreases a rate by at most 1/16, and by as much again for every 20 ms that it lasts: a queue that
//! grew while a machine was stalled for some milliseconds marks all packets until it is empty, whatever the load. These
//! maxima are multiplied by the flow's rate relative to the mean of its siblings, the flows of the same endpoint, within
//! 1/2 and 2: with the same maximum for all, rates would not become equal where most marks come in trains. While
//! bridges report headroom ([`crate::echo::Headroom`]), packets of fast flows have a weight of 1 in the increase, which is
//! eight times as large, 16 times after 36 ms, and so on up to 128 times. A flow that is not marked although ports are
//! busy, since it has less than its share ([`crate::shares`]), increases faster after .32 s and 64 packets.
//!
//! Overload is answered immediately: when nearly every packet of a window was marked and packets arrive at less than the
//! limit, the limit is lowered towards the rate of arrivals ([`State::on_echo`]).
//!
//! Nothing here reads a clock. A kernel program calls [`State::on_echo`] for each echo; a simulator may call [`marked`] and
//! [`unmarked`] packet by packet.

use core::fmt;
use core::num::NonZeroU64;

use crate::fixed::{self, FRAC, LOG_FRAC, ONE, mul, mul_32, mul_bits, mul_hi, mul_shift};

/// Highest inter-packet delay that any policy can have, in packet times: Rmin >= Rmax/65536.
pub const IPD_LIMIT: u64 = 65536;

/// Maximum number of decreases per echo with [`Round::Off`] (otherwise one). A power of two.
pub const MAX_DECREASES: u32 = 8;

/// The response functions, as numbered in [`Policy::function`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
#[cfg_attr(
    feature = "text",
    derive(schemars::JsonSchema),
    schemars(inline, rename_all = "kebab-case")
)]
pub enum Function {
    /// No control: the delay never changes.
    None = 0,
    /// Linear inter-packet delay: a mark adds one packet time.
    #[default]
    Lipd = 1,
    /// Fast increase, multiplicative decrease: recovery in 1/Rmin from any rate.
    Fimd = 2,
    /// Additive increase, multiplicative decrease.
    Aimd = 3,
}

impl Function {
    /// Every function, in the order of its number.
    pub const ALL: [Self; 4] = [Self::None, Self::Lipd, Self::Fimd, Self::Aimd];

    /// The value of [`Policy::function`].
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|f| *f as u32 == number)
    }

    /// The name in commands, scenarios and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lipd => "lipd",
            Self::Fimd => "fimd",
            Self::Aimd => "aimd",
        }
    }
}

/// When marks are ignored because the source has already reacted to the event they report; as
/// numbered in [`Policy::round`].
///
/// With a window of one packet (the paper's) there is never an older packet in flight at a
/// decrease, so the rule has no effect there. Without a window, all packets that were in flight
/// when the rate was cut still carry marks of the same queue, and each would cut it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u32)]
pub enum Round {
    /// Every mark counts, as in the paper.
    Off = 0,
    /// Marks on packets that were sent before the last decrease are ignored, counted in packets.
    #[default]
    Packets = 1,
    /// Marks are ignored for [`Policy::round_ns`] after a decrease.
    Time = 2,
    /// Every packet applies a fraction of a step, see the [module](self).
    Fractional = 3,
}

/// A fraction: Rmin/Rmax (`1/256`) or the decrease factor (`2`, `3/2`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio {
    /// Numerator.
    pub num: u64,
    /// Denominator.
    pub den: u64,
}

impl Ratio {
    /// num/den; any two quantities of one unit, such as rates in bytes per second.
    pub const fn new(num: u64, den: u64) -> Self {
        Self { num, den }
    }
}

/// Why the parameters of a [`Policy`] are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyError {
    /// Rmin or a denominator is 0.
    Zero,
    /// Rmin >= Rmax.
    RminTooLarge,
    /// Rmin < Rmax/65536.
    RminTooSmall,
    /// m <= 1: a mark would not lower the rate.
    FactorTooSmall,
    /// m > 16.
    FactorTooLarge,
    /// A numerator or denominator above 2^63.
    Overflow,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zero => "rmin and denominators must not be 0",
            Self::RminTooLarge => "rmin must be below 1 (the link's rate)",
            Self::RminTooSmall => "rmin must be at least 1/65536 of the link's rate",
            Self::FactorTooSmall => "m must be above 1: a mark has to lower the rate",
            Self::FactorTooLarge => "m must be at most 16",
            Self::Overflow => "numerators and denominators must be at most 2^63",
        })
    }
}

impl core::error::Error for PolicyError {}

/// Parameters of the response, precomputed by user space.
///
/// Part of an eBPF map value: integers only, no padding, 80 bytes. All zero means no control. Use [`Policy::new`]; other
/// values of the derived fields give wrong rates, but never a panic or a delay outside [1, `ipd_max`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Policy {
    /// A [`Function`] by number; unknown numbers act as [`Function::None`].
    pub function: u32,
    /// A [`Round`] by number; unknown numbers act as [`Round::Off`].
    pub round: u32,
    /// Time during which marks are ignored after a decrease, for [`Round::Time`].
    pub round_ns: u64,
    /// Rmax/Rmin, [`FRAC`] fractional bits: the highest delay.
    pub ipd_max: u64,
    /// Decrease factor m of FIMD and AIMD, [`FRAC`] fractional bits.
    pub m: u64,
    /// log2 m, [`FRAC`] fractional bits: exponent of FIMD's increase.
    pub log2_m: u64,
    /// Rmin/Rmax, 64 fractional bits.
    pub rmin: u64,
    /// -log2(1 - Rmin/Rmax), [`LOG_FRAC`] fractional bits: exponent of LIPD's increase.
    pub log2_lipd: u64,
    /// ln m, 59 fractional bits: FIMD, several ACKs at once.
    pub ln_m: u64,
    /// m - 1, 59 fractional bits: AIMD's increase.
    pub m_less_1: u64,
    /// Packet transmission time at Rmax, for [`Round::Fractional`].
    pub packet_ns: u64,
}

const _: () = {
    use core::mem::{align_of, offset_of, size_of};
    assert!(size_of::<Policy>() == 80 && align_of::<Policy>() == 8);
    assert!(offset_of!(Policy, function) == 0);
    assert!(offset_of!(Policy, round) == 4);
    assert!(offset_of!(Policy, round_ns) == 8);
    assert!(offset_of!(Policy, ipd_max) == 16);
    assert!(offset_of!(Policy, m) == 24);
    assert!(offset_of!(Policy, log2_m) == 32);
    assert!(offset_of!(Policy, rmin) == 40);
    assert!(offset_of!(Policy, log2_lipd) == 48);
    assert!(offset_of!(Policy, ln_m) == 56);
    assert!(offset_of!(Policy, m_less_1) == 64);
    assert!(offset_of!(Policy, packet_ns) == 72);
    assert!(size_of::<State>() == 72 && align_of::<State>() == 8);
    assert!(offset_of!(State, ipd) == 0);
    assert!(offset_of!(State, round_end) == 8);
    assert!(offset_of!(State, round_packets) == 12);
    assert!(offset_of!(State, round_until_ns) == 16);
    assert!(offset_of!(State, window_ns) == 32);
};

/// Fractional bits of the gains (m - 1, ln m) and of the relative increase of one step: m <= 16
/// leaves one bit of headroom for 1 + x.
const GAIN_FRAC: u32 = 59;

impl Policy {
    /// HP's constants, Rmin = Rmax/256: the only value that puts the ends of the increase curves
    /// where slide 14 labels them (2K and 65K packet times).
    pub const HP_RMIN: Ratio = Ratio::new(1, 256);

    /// HP's constants, m = 2 (slide 14).
    pub const HP_M: Ratio = Ratio::new(2, 1);

    /// A policy with rate floor `rmin` (fraction of Rmax, 1/65536 <= rmin < 1) and decrease factor
    /// `m` (1 < m <= 16; checked even for LIPD, which does not use it). Reacts once per round counted in packets; see
    /// [`Policy::with_round`].
    ///
    /// AIMD's step near full rate, (m - 1) rmin², is at least 2^-40: with smaller ones a flow recovers somewhat
    /// faster than by the equation.
    ///
    /// # Errors
    ///
    /// A value out of range.
    pub const fn new(function: Function, rmin: Ratio, m: Ratio) -> Result<Self, PolicyError> {
        const MOST: u64 = 1 << 63;
        if rmin.num == 0 || rmin.den == 0 || m.den == 0 {
            return Err(PolicyError::Zero);
        }
        if rmin.num > MOST || rmin.den > MOST || m.num > MOST || m.den > MOST {
            return Err(PolicyError::Overflow);
        }
        if rmin.num >= rmin.den {
            return Err(PolicyError::RminTooLarge);
        }
        if m.num <= m.den {
            return Err(PolicyError::FactorTooSmall);
        }
        let Some(ipd_max) = fixed::ratio(rmin.den, rmin.num, FRAC) else {
            return Err(PolicyError::RminTooSmall);
        };
        if ipd_max > IPD_LIMIT << FRAC {
            return Err(PolicyError::RminTooSmall);
        }
        let Some(factor) = fixed::ratio(m.num, m.den, FRAC) else {
            return Err(PolicyError::FactorTooLarge);
        };
        if factor > 16 << FRAC {
            return Err(PolicyError::FactorTooLarge);
        }
        // Rmin or m is so close to 1 that fixed point rounds it to 1.
        if ipd_max <= ONE {
            return Err(PolicyError::RminTooLarge);
        }
        if factor <= ONE {
            return Err(PolicyError::FactorTooSmall);
        }
        let (Some(share), Some(log2_lipd), Some(log2_m), Some(m_less_1)) = (
            fixed::ratio(rmin.num, rmin.den, 64),
            fixed::log2_ratio(rmin.den, rmin.den - rmin.num),
            fixed::log2_ratio(m.num, m.den),
            fixed::ratio(m.num - m.den, m.den, GAIN_FRAC),
        ) else {
            return Err(PolicyError::Overflow);
        };
        Ok(Self {
            function: function as u32,
            round: Round::Packets as u32,
            round_ns: 0,
            ipd_max,
            m: factor,
            log2_m: (log2_m + (1 << (LOG_FRAC - FRAC - 1))) >> (LOG_FRAC - FRAC),
            rmin: share,
            log2_lipd,
            ln_m: mul_32(log2_m, fixed::LN_2) << (GAIN_FRAC - LOG_FRAC),
            m_less_1,
            packet_ns: 0,
        })
    }

    /// HP's constants: Rmin = Rmax/256, m = 2.
    pub const fn hp(function: Function) -> Self {
        match Self::new(function, Self::HP_RMIN, Self::HP_M) {
            Ok(policy) => policy,
            Err(_) => Self::none(),
        }
    }

    /// No control; the same as [`Policy::default`].
    pub const fn none() -> Self {
        Self {
            function: Function::None as u32,
            round: Round::Off as u32,
            round_ns: 0,
            ipd_max: 0,
            m: 0,
            log2_m: 0,
            rmin: 0,
            log2_lipd: 0,
            ln_m: 0,
            m_less_1: 0,
            packet_ns: 0,
        }
    }

    /// The same policy in fractional steps, on a link that sends a packet in `packet_ns`.
    pub const fn fractional(mut self, packet_ns: u64) -> Self {
        self.round = Round::Fractional as u32;
        self.packet_ns = packet_ns;
        self
    }

    /// The same policy with another round rule; `round_ns` matters for [`Round::Time`] only.
    pub const fn with_round(mut self, round: Round, round_ns: u64) -> Self {
        self.round = round as u32;
        self.round_ns = round_ns;
        self
    }

    /// Clamps the delay to [1, `ipd_max`]; the state may be that of another policy, or all zero.
    #[inline(always)]
    fn clamp(&self, ipd: u64) -> u64 {
        // Not clamp to ipd_max: that could panic where it is below 1.
        ipd.min(self.ipd_max).clamp(ONE, IPD_LIMIT << FRAC)
    }

    /// ipd · Rmin = Rmin/r, at most 1, with 63 fractional bits.
    #[inline(always)]
    fn load(&self, ipd: u64) -> u64 {
        mul_bits(ipd, self.rmin, 64 + FRAC - 63)
    }
}

// The constants below are those of [`Round::Fractional`].

/// Number of marks that increase the delay of a slow flow by a factor of e.
const STEP_PACKETS: u64 = 100;
/// Time between packets at which the weight of a packet is 1/2.
const FAST_NS: u64 = 75_000;
/// Minimum weight of a packet, 16 fractional bits.
const MIN_WEIGHT: u64 = 1 << 13;
/// Time between packets at which the weight doubles, since slow flows get few marks.
const FEW_NS: u64 = 14_000_000;
/// The weight is multiplied by at most 1 + this.
const FEW_MAX: u64 = 2;
/// Time between packets at which the increase per packet is half of what would be proportional to that time.
const SLOW_NS: u64 = 80_000_000;
/// Added to the time between packets, to offset marks that bursts cause at any load.
const BURSTS_NS: u64 = 120_000;
/// Time in which the rate of a slow flow increases by a factor of e without marks.
const RECOVERY_NS: u64 = 2_500_000_000;
/// Interval at which FIMD, AIMD with m = 2 and LIPD take the same steps.
const REFERENCE_NS: u64 = 1_000_000;
/// Largest decrease by a train of marks, 32 fractional bits: a queue that grew while a machine was stalled marks all
/// packets until it is empty.
const TRAIN_ALLOWANCE: u64 = (1 << 32) / 16;
/// A flow's rate relative to its siblings' mean, by which that is multiplied, is limited to this and to 1 / this, since
/// siblings may be limited by other ports.
const RELATIVE_MAX: u64 = 2;
/// Time in which the allowance is renewed.
const TRAIN_NS: u64 = 20_000_000;
/// log2 of the initial factor by which headroom makes the increase larger.
const HEADROOM_SHIFT: u64 = 3;
/// Time after which that factor doubles.
const HEADROOM_DOUBLES_NS: u64 = 36_000_000;
/// log2 of the maximum of that factor.
const HEADROOM_MAX_SHIFT: u64 = 7;
/// Maximum increase per echo with headroom, unless the increase would be larger without.
const HEADROOM_STEP: u64 = ONE / 32;
/// For slow flows that maximum is the time between packets divided by this, at most 4 [`HEADROOM_STEP`].
const HEADROOM_TIME_NS: u64 = 80_000_000;
/// How long a report of headroom is valid.
const HEADROOM_HOLDS_NS: u64 = 60_000_000;
/// A flow without marks for this long, and for [`SPARED_PACKETS`], has less than its share and increases faster although
/// ports are busy. At equilibrium marks are eight times as frequent.
const SPARED_NS: u64 = 320_000_000;
/// See [`SPARED_NS`].
const SPARED_PACKETS: u64 = 64;
/// Time after which the factor of that increase doubles.
const SPARED_DOUBLES_NS: u64 = 120_000_000;
/// log2 of the maximum of that factor.
const SPARED_MAX_SHIFT: u64 = 6;
/// A longer time between two echoes counts as a pause of the application.
const PAUSE_NS: u64 = 64_000_000;
/// Minimum packets and time of a window that shows overload, if packets arrive at less than a quarter of the limit.
const OVERLOAD_FAR: (u64, u64) = (3, 1_000_000);
/// A window continues while at most one packet in this many is unmarked: sources below their share are spared at
/// times.
const OVERLOAD_SHARE: u64 = 4;
/// As [`OVERLOAD_FAR`], if packets arrive faster.
const OVERLOAD_NEAR: (u64, u64) = (8, 2_000_000);
/// If packets are less than [`FAST_NS`] apart, a window must be longer by this many times its longest time without an
/// echo: to such a flow, two stalls of a millisecond each, and the packets that waited between them, look like
/// overload.
const OVERLOAD_GAPS: u64 = 2;
/// Maximum part of the longest time without an echo that is not counted, for flows slower than [`SLOW_FLOW_NS`].
const STALL_NS: u64 = 8_000_000;
/// Minimum time between packets of a slow flow: 6 Mbit/s.
const SLOW_FLOW_NS: u64 = 2_000_000;

/// 0 if the time is 0, else 1; for times below 2^63.
#[inline(always)]
const fn is_set(time_ns: u64) -> u64 {
    0u64.wrapping_sub(time_ns) >> 63
}

/// `step` times `factor` (20 fractional bits), at most 1/2, with [`FRAC`] fractional bits.
#[inline(always)]
fn scaled(step: u64, factor: u64) -> u64 {
    fixed::min(mul_bits(fixed::min(step, ONE), factor, 20), ONE / 2)
}

/// The delay after a window with overload: that of the arriving packets, but at most 3/2 of the old one, since
/// overload is not shared fairly. If packets arrive at less than a quarter of the limit: 8/5 of their delay, so that
/// the queue empties; not of a delay above [`PAUSE_NS`], since the application may send no faster.
#[inline(always)]
fn limit_after_overload(ipd: u64, interval_ns: u64, delivered_ns: u64, packet_ns: u64) -> u64 {
    if delivered_ns == 0 {
        return ipd;
    }
    let far = delivered_ns >= 4 * interval_ns;
    let limit_ns = if far {
        delivered_ns.max(delivered_ns.min(PAUSE_NS) / 5 * 8)
    } else {
        delivered_ns
    };
    let in_packets = (limit_ns.min(1 << 36) << 16) / packet_ns;
    let limit = in_packets.min(IPD_LIMIT << 16) << (FRAC - 16);
    let limit = if far { limit } else { limit.min(ipd + ipd / 2) };
    limit.max(ipd)
}

const NONE: u32 = Function::None as u32;
const LIPD: u32 = Function::Lipd as u32;
const FIMD: u32 = Function::Fimd as u32;
const AIMD: u32 = Function::Aimd as u32;

/// The delay after a marked ACK: r <- max(Rmin, fdec(r)).
///
/// LIPD: ipd + 1, that is r/(1 + r); FIMD and AIMD: ipd m, that is r/m (INFOCOM 2003; US
/// 7,920,476 for the clamp). Delays have [`FRAC`] fractional bits.
#[inline(always)]
pub fn marked(policy: &Policy, ipd: u64) -> u64 {
    match policy.function {
        LIPD => policy.clamp(policy.clamp(ipd) + ONE),
        FIMD | AIMD => {
            let ipd = policy.clamp(ipd);
            // 65536 · 16 at most.
            policy.clamp(mul_bits(ipd, policy.m, FRAC))
        }
        _ => ipd,
    }
}

/// [`marked`], 1 to [`MAX_DECREASES`] times.
#[inline(always)]
fn marked_times(policy: &Policy, ipd: u64, times: u32) -> u64 {
    let more = (times as u64).wrapping_sub(1) & (MAX_DECREASES as u64 - 1);
    if policy.function == LIPD {
        return policy.clamp(policy.clamp(ipd) + ((more + 1) << FRAC));
    }
    let mut factor = policy.m;
    if more != 0 {
        // m^more by its binary digits. Not a loop: a loop with an end that depends on data costs the kernel's
        // verifier ten times as much. m is at most 16, so that up to m⁴ fits.
        let square = mul_bits(policy.m, policy.m, FRAC);
        let fourth = mul_bits(square, square, FRAC);
        factor = mul_bits(factor, power_digit(policy.m, more), FRAC);
        factor = mul_bits(factor, power_digit(square, more >> 1), FRAC);
        factor = mul(factor, power_digit(fourth, more >> 2));
    }
    policy.clamp(mul(policy.clamp(ipd), factor))
}

/// `factor` if the last bit of `digits` is set, else 1; without a branch.
#[inline(always)]
fn power_digit(factor: u64, digits: u64) -> u64 {
    ONE + (factor.wrapping_sub(ONE) & (digits & 1).wrapping_neg())
}

/// The delay after `acks` unmarked ACKs in a row: r <- min(Rmax, finc(r)), `acks` times.
///
/// One ACK is finc itself: LIPD r/(1 - Rmin), FIMD r m^(Rmin/r), AIMD r + (m - 1) Rmin²/r.
///
/// Several ACKs are applied without a loop: for LIPD by a power, (1 - Rmin)^acks; for FIMD and AIMD the first two as
/// steps and the others by a function n that counts ACKs. In the variables
///
/// ```text
/// FIMD  z = r / (Rmin ln m)          one ACK: z e^(1/z)
/// AIMD  s = r² / ((m - 1) Rmin²)     one ACK: s + 2 + 1/s
/// ```
///
/// Rmin and m cancel, and n(z) with n(next z) = n(z) + 1 has the expansion
///
/// ```text
/// FIMD  n(z) = z   - ln(z)/2 + 1/(6 z) + 1/(16 z²) + ...
/// AIMD  n(s) = s/2 - ln(s)/4 + 1/(8 s) + 5/(96 s²) + ...
/// ```
///
/// which is accurate, two steps from any start (z >= 3.9, s >= 6.2), to 1e-4 of the rate for FIMD and to 1e-5 for
/// AIMD, and far more accurate at higher rates. The leading term is again Finc over time: r'² = r² + 2 n (m - 1)
/// Rmin² for AIMD.
#[inline(always)]
pub fn unmarked(policy: &Policy, mut ipd: u64, acks: u32) -> u64 {
    increase(policy, &mut ipd, acks);
    ipd
}

/// [`unmarked`], in place.
#[inline(always)]
fn increase(policy: &Policy, place: &mut u64, acks: u32) {
    if policy.function == NONE || policy.function > AIMD {
        return;
    }
    *place = policy.clamp(*place);
    let mut ipd = fixed::opaque(place);
    if acks == 0 {
        return;
    }
    if policy.function == LIPD && acks == 1 {
        *place = policy.clamp(ipd - mul_hi(ipd, policy.rmin));
        return;
    }
    let (mut left, mut step) = (acks, 0);
    while step < 3 {
        let load = policy.load(ipd);
        let single = step < 2;
        // Binary logarithm of the factor by which the delay shrinks.
        let log;
        if policy.function == LIPD {
            log = mul_shift((left as u64) << 32, policy.log2_lipd, 32);
            left = 0;
        } else if policy.function == FIMD && single {
            log = mul_bits(load, policy.log2_m, 63 + FRAC - LOG_FRAC);
            left -= 1;
        } else {
            let (q, n, c1, c2, root);
            if policy.function == FIMD {
                // 1/z = ln m · Rmin/r.
                q = mul_bits(load, policy.ln_m, 63);
                (n, c1, c2, root) = (left as u64, C_1_6, C_1_16, 0);
            } else {
                // 1/s = (m - 1)(Rmin/r)² is the fraction by which one ACK raises the rate; over several ACKs the rate
                // grows with the root of s.
                q = mul_bits(mul_hi(load, load), policy.m_less_1, 62);
                let n_root = if single { (1, 0) } else { (2 * left as u64, 1) };
                (n, c1, c2, root) = (n_root.0, C_1_4, C_5_48, n_root.1);
            }
            log = growth(q, n, c1, c2, if single { 0 } else { 3 }) >> root;
            left = if single { left - 1 } else { 0 };
        }
        // At least one unit: AIMD's step with a low floor and m near 1 can be smaller.
        *place = fixed::shrink(ipd, log).min(ipd - 1).max(ONE);
        ipd = fixed::opaque(place);
        if left == 0 || ipd == ONE {
            break;
        }
        step += 1;
    }
}

// Coefficients of the expansions, 32 fractional bits.
const C_1_6: u64 = (1 << 32) / 6;
const C_1_16: u64 = (1 << 32) / 16;
const C_1_4: u64 = (1 << 32) / 4;
const C_5_48: u64 = 5 * (1 << 32) / 48;

/// log2 of the factor by which z (FIMD) or s (AIMD) grows, [`LOG_FRAC`] fractional bits.
///
/// `q` is 1/z or 1/s with [`GAIN_FRAC`] fractional bits, `n` the growth of the expansion's linear term. The growth t
/// solves
///
/// ```text
/// t = n + ln(1 + t q)/2 + w q (c1 + c2 q (2 - w)),   w = t q / (1 + t q)
/// ```
///
/// by iteration from t = n; each one divides the error by 5 or more. No iteration: t = n.
#[inline(always)]
fn growth(q: u64, n: u64, c1: u64, c2: u64, iterations: u32) -> u64 {
    const T_FRAC: u32 = 28;
    // 1 + t q is below 2^16 or, from n = 2^15 on, 2^32: as many fractional bits as that leaves.
    let frac = 31 + 16 * (n.wrapping_sub(1 << 15) >> 63) as u32;
    let n = n << T_FRAC;
    let mut t = n;
    let mut i = 0;
    loop {
        let sum = mul_bits(t, q, T_FRAC + GAIN_FRAC - frac).wrapping_add(1 << frac);
        let log = fixed::log2(sum, frac);
        if i >= iterations || i >= 3 {
            return log;
        }
        let half_ln = mul_32(log, fixed::LN_2) >> (LOG_FRAC + 1 - T_FRAC);
        // | 1 for the compiler, which cannot see that a sum of 1 or more is not 0.
        let reciprocal = (1 << 63) / ((sum >> (frac - 31)) | 1);
        let w = (1u64 << 32).wrapping_sub(reciprocal) & 0xffff_ffff;
        // At most 1/2 from here on for any policy of Policy::new.
        let q = (q >> (GAIN_FRAC - 32)) & 0xffff_ffff;
        let c = c1 + ((((c2 * q) >> 32) * ((2 << 32) - w)) >> 32);
        t = n + half_ln + (((((w * q) >> 32) * c) >> 32) >> (32 - T_FRAC));
        i += 1;
    }
}

/// Transmission time of a packet of `bytes` at a rate, nanoseconds: [`Policy::packet_ns`].
#[must_use]
pub const fn packet_ns(bytes: u32, rate_bytes_per_s: u64) -> u64 {
    let rate = if rate_bytes_per_s == 0 {
        1
    } else {
        rate_bytes_per_s
    };
    bytes as u64 * 1_000_000_000 / rate
}

/// The rate of a delay, bytes per second: Rmax/ipd, rounded down.
///
/// Exact for every Rmax; delays outside [1, 65536] count as the nearer end.
#[inline(always)]
pub fn rate(ipd: u64, rmax_bytes_per_s: u64) -> u64 {
    // Never 0, but the compiler cannot be relied on to see it.
    let Some(ipd) = NonZeroU64::new(ipd.clamp(ONE, IPD_LIMIT << FRAC)) else {
        return rmax_bytes_per_s;
    };
    divide(rmax_bytes_per_s, ipd)
}

/// The inter-packet delay at a rate in bytes per second, given Rmax: the inverse of [`rate`], both below 2^56.
#[inline(always)]
#[must_use]
pub fn ipd(bytes_per_s: u64, rmax_bytes_per_s: u64) -> u64 {
    match NonZeroU64::new(bytes_per_s) {
        Some(rate) => divide(rmax_bytes_per_s, rate).clamp(ONE, IPD_LIMIT << FRAC),
        None => ONE,
    }
}

/// a / b, [`FRAC`] fractional bits, b below 2^56: long division in five digits of 8 bits, so that a remainder is below
/// 2^56.
#[inline(always)]
fn divide(a: u64, b: NonZeroU64) -> u64 {
    let mut quotient = a / b;
    let mut rest = a % b;
    let mut digit = 0;
    while digit < FRAC / 8 {
        rest <<= 8;
        quotient = (quotient << 8) | (rest / b);
        rest %= b;
        digit += 1;
    }
    quotient
}

/// The feedback of one echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Feedback {
    /// Packets that this echo newly acknowledges: one with HP's ACK per packet, more with coalesced echoes.
    pub packets: u32,
    /// Marked packets among them.
    pub ce: u32,
    /// The receiver's running packet count, including this echo's; wraps.
    pub received: u32,
    /// Packets in flight, sent but not counted in `received`.
    pub outstanding: u32,
}

/// Reaction to one echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Reaction {
    /// Decreases applied.
    pub decreased: u32,
    /// Marks that caused no decrease.
    pub ignored: u32,
}

/// State of a flow's response. Part of an eBPF map value: integers only, no padding, 72 bytes.
///
/// All zero is a flow that has not reacted yet, at full rate; [`State::new`] has that rate explicitly.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct State {
    /// Inter-packet delay in packet times, [`FRAC`] fractional bits.
    pub ipd: u64,
    /// Receiver's running packet count of the last packet that was sent before the last decrease.
    pub round_end: u32,
    /// Packets outstanding at that decrease; 0 when the round is over. [`Round::Fractional`]: packets of this window that
    /// were not marked.
    pub round_packets: u32,
    /// Until when marks are ignored, with [`Round::Time`].
    pub round_until_ns: u64,
    /// [`Round::Fractional`]: time of the last echo.
    pub last_ns: u64,
    /// [`Round::Fractional`]: start of the window in which overload is detected; 0: none.
    pub window_ns: u64,
    /// [`Round::Fractional`]: packets acknowledged in this window.
    pub window_packets: u32,
    /// [`Round::Fractional`]: longest time without an echo in this window.
    pub longest_ns: u32,
    /// [`Round::Fractional`]: the fraction by which marks may still decrease the rate, 32 fractional bits.
    pub allowance: u32,
    /// [`Round::Fractional`]: maximum of `allowance`, [`State::compare_with_siblings`]; 0: 1/16.
    pub max_allowance: u32,
    /// [`Round::Fractional`]: since when there has been headroom; without reports of it, the time of the last mark
    /// plus the flow's pauses since.
    pub free_since_ns: u64,
    /// [`Round::Fractional`]: when an echo last reported headroom; 0: never, or there was a mark or a busy port
    /// since.
    pub headroom_ns: u64,
}

impl State {
    /// A flow that starts at full rate, as in the paper's Fig. 2.
    #[inline(always)]
    pub const fn new() -> Self {
        Self {
            ipd: ONE,
            round_end: 0,
            round_packets: 0,
            round_until_ns: 0,
            last_ns: 0,
            window_ns: 0,
            window_packets: 0,
            longest_ns: 0,
            allowance: 0,
            max_allowance: 0,
            free_since_ns: 0,
            headroom_ns: 0,
        }
    }

    /// Extends the round to packet `until`, before which the decreased rate was not in force. `received` as in
    /// [`Feedback`]. No effect if the round lasts longer anyway.
    #[inline(always)]
    pub(crate) fn extend_round(&mut self, received: u32, until: u32) {
        let ahead = until.wrapping_sub(received);
        let further = self.round_packets == 0 || until.wrapping_sub(self.round_end) as i32 > 0;
        if further && ahead as i32 >= 0 {
            self.round_end = until;
            // At least 1, since 0 means that the round is over.
            self.round_packets = ahead.max(1);
        }
    }

    /// [`State::on_echo`] in fractional steps: `ce` of `packets` packets were marked.
    #[inline(always)]
    fn on_fractional_echo(&mut self, policy: &Policy, packets: u32, ce: u32, now_ns: u64) {
        // Up to 134 ms, 1.5 kB at 90 kbit/s. `| 1` for the divisions.
        let packet_ns = policy.packet_ns.min((1 << 27) - 1) | 1;
        self.ipd = self.ipd.clamp(ONE, IPD_LIMIT << FRAC);
        let ipd = fixed::opaque(&mut self.ipd);
        let interval_ns = mul_bits(ipd, packet_ns, FRAC) | 1;
        // Another CPU may have processed an echo since this one read the clock.
        let now_ns = fixed::max(now_ns, self.last_ns);
        let gap_ns = fixed::min(now_ns - self.last_ns, u32::MAX as u64);
        self.last_ns = now_ns;
        self.renew_allowance(gap_ns);
        let delivered = self.detect_overload(interval_ns, packets, ce, gap_ns as u32, now_ns);
        self.ipd = limit_after_overload(ipd, interval_ns, delivered, packet_ns);
        let mut ipd = fixed::opaque(&mut self.ipd);
        // u of the module's table, 10 fractional bits, within 1/64 and 64.
        let relative = fixed::min(fixed::max(interval_ns / (REFERENCE_NS >> 10), 16), 1 << 16);
        let (mut up, mut down) = (1 << 20, 1 << 20);
        if policy.function != LIPD {
            down = ((relative << 10) * (policy.log2_m >> 20 & 0xff_ffff)) >> 20;
            up = if policy.function == FIMD {
                down
            } else {
                (relative * relative * (policy.m_less_1 >> (GAIN_FRAC - 20))) >> 20
            };
        }
        let interval_ns = interval_ns.min(1 << 36);
        // w of the module's text, 16 fractional bits.
        let weight = fixed::max((interval_ns << 16) / (interval_ns + FAST_NS), MIN_WEIGHT);
        let apart_ns = gap_ns * is_set(ce as u64) / (packets | (packets == 0) as u32) as u64;
        let apart_ns = fixed::min(fixed::max(apart_ns, interval_ns), FEW_MAX * FEW_NS);
        let weight = (weight * (FEW_NS + apart_ns) / FEW_NS) & 0xf_ffff;
        let unmarked = (packets - ce) as u64;
        if unmarked != 0 {
            let slowed_ns = BURSTS_NS + interval_ns * SLOW_NS / (SLOW_NS + interval_ns);
            let whole = slowed_ns * (ONE / RECOVERY_NS) * fixed::min(unmarked, 1 << 10);
            let mut step = fixed::min((whole * weight) >> 16, ONE);
            // 1 or 0 without a branch, which would double the verifier's paths.
            let paused = PAUSE_NS.wrapping_sub(gap_ns) >> 63;
            let counts = is_set(self.free_since_ns) & !is_set(self.headroom_ns);
            self.free_since_ns += gap_ns * (paused & counts);
            let room = self.growth_shift(interval_ns, now_ns);
            if room != 0 {
                let most = fixed::max(
                    fixed::min(slowed_ns * (ONE / HEADROOM_TIME_NS), 4 * HEADROOM_STEP),
                    HEADROOM_STEP,
                );
                step = fixed::max(fixed::min(whole << room, most), step);
            }
            self.ipd = ipd - mul_bits(ipd, scaled(step, up), FRAC);
            ipd = fixed::opaque(&mut self.ipd);
        }
        if ce != 0 {
            self.headroom_ns = 0;
            self.free_since_ns = now_ns;
        }
        if ce != 0 && delivered == 0 {
            let step = (ONE >> 16) / STEP_PACKETS * weight * fixed::min(ce as u64, 1 << 10);
            let step = fixed::min(scaled(step, down), (self.allowance as u64) << (FRAC - 32));
            self.allowance -= (step >> (FRAC - 32)) as u32;
            ipd += mul_bits(ipd, step, FRAC);
        }
        self.ipd = ipd.clamp(ONE, IPD_LIMIT << FRAC);
    }

    /// Sets the largest decrease by a train of marks: in proportion to the flow's rate relative to its siblings, whose mean
    /// delay is `sibling_ipd` ([`ONE`]: unknown). With the same maximum for all, trains would decrease fast and slow flows
    /// of a host alike, and unequal rates would remain.
    #[inline(always)]
    pub fn compare_with_siblings(&mut self, sibling_ipd: u64) {
        let is_known = ONE.wrapping_sub(sibling_ipd) >> 63;
        // 8 fractional bits.
        let relative = sibling_ipd / ((self.ipd >> 8) | 1);
        let relative = fixed::max(
            fixed::min(relative, RELATIVE_MAX << 8),
            (1 << 8) / RELATIVE_MAX,
        );
        self.max_allowance = (is_known * relative * (TRAIN_ALLOWANCE >> 8)) as u32;
    }

    /// Renews the allowance for trains of marks after `gap_ns` without an echo.
    #[inline(always)]
    fn renew_allowance(&mut self, gap_ns: u64) {
        let unknown = 1 ^ is_set(self.max_allowance as u64);
        let most = self.max_allowance as u64 + unknown * TRAIN_ALLOWANCE;
        let renewed = fixed::min(gap_ns, TRAIN_NS) * most / TRAIN_NS;
        self.allowance = fixed::min(self.allowance as u64 + renewed, most) as u32;
    }

    /// Processes an echo's report of headroom, a [`crate::echo::Headroom`] by number.
    #[inline(always)]
    pub fn on_headroom(&mut self, headroom: u32, now_ns: u64) {
        if headroom == crate::echo::Headroom::Free as u32 {
            let long_ago = now_ns.wrapping_sub(self.headroom_ns) > HEADROOM_HOLDS_NS;
            if self.headroom_ns == 0 || long_ago {
                self.free_since_ns = now_ns;
            }
            self.headroom_ns = now_ns;
        } else if headroom == crate::echo::Headroom::Busy as u32 {
            self.headroom_ns = 0;
        }
    }

    /// Processes a retransmission timeout of TCP: a full queue dropped packets, whose marks never arrive. A limited
    /// flow halves its rate, and gets at most that of its siblings, with delay `sibling_ipd` ([`Round::Fractional`]
    /// only). No effect unless `timed_out` is 1: a branch in the caller would double the verifier's paths.
    #[inline(always)]
    pub fn on_timeout(&mut self, policy: &Policy, timed_out: u64, sibling_ipd: u64) {
        let is_limited = ONE.wrapping_sub(self.ipd) >> 63;
        let other_round = is_set((policy.round ^ Round::Fractional as u32) as u64);
        let timed_out = timed_out & is_limited & !other_round;
        let half = self.ipd << timed_out;
        let above = (sibling_ipd * timed_out).wrapping_sub(half);
        // 0 if it wrapped.
        self.ipd = half.wrapping_add(above & (above >> 63).wrapping_sub(1));
    }

    /// log2 of the factor by which the increase is currently larger.
    #[inline(always)]
    fn growth_shift(&self, interval_ns: u64, now_ns: u64) -> u64 {
        let since = fixed::saturating_sub(now_ns, self.free_since_ns);
        if self.headroom_ns != 0 && now_ns.wrapping_sub(self.headroom_ns) <= HEADROOM_HOLDS_NS {
            return fixed::min(
                HEADROOM_SHIFT + since / HEADROOM_DOUBLES_NS,
                HEADROOM_MAX_SHIFT,
            );
        }
        let after = SPARED_NS - SPARED_DOUBLES_NS + SPARED_PACKETS * interval_ns;
        let since = since * is_set(self.free_since_ns);
        fixed::min(
            fixed::saturating_sub(since, after) / SPARED_DOUBLES_NS,
            SPARED_MAX_SHIFT,
        )
    }

    /// Time between arriving packets if a window shows overload: nearly every packet was marked, and packets arrive at
    /// less than the limit. 0: no overload.
    ///
    /// The longest time without an echo is not counted, since a machine that was stalled looks like a slow network. For
    /// slow flows only [`STALL_NS`] of it are not counted: a stall is a few of their packets, and TCP that lost most of a
    /// window gives little other feedback. Of a time above [`PAUSE_NS`] only that much counts, since the application may
    /// have paused, or as much as the longest so far: the next packet of a flow that always takes that long.
    #[inline(always)]
    fn detect_overload(
        &mut self,
        interval_ns: u64,
        packets: u32,
        ce: u32,
        gap_ns: u32,
        now_ns: u64,
    ) -> u64 {
        self.round_packets = self.round_packets.wrapping_add(packets - ce);
        let few = self.round_packets as u64 * OVERLOAD_SHARE > self.window_packets as u64;
        if self.window_ns == 0 || few & (ce < packets) {
            // The packets of the first echo were sent before the window started.
            self.window_ns = now_ns;
            self.window_packets = 0;
            self.round_packets = 0;
            self.longest_ns = 0;
            return 0;
        }
        self.window_packets = self.window_packets.wrapping_add(packets);
        let counted_ns = fixed::max(self.longest_ns as u64, PAUSE_NS);
        self.longest_ns = self.longest_ns.max(gap_ns);
        self.window_ns += fixed::saturating_sub(gap_ns as u64, counted_ns);
        let count = (self.window_packets.saturating_sub(packets)) as u64;
        let count = count | (count == 0) as u64;
        let slow = (interval_ns >= SLOW_FLOW_NS) as u64;
        let left_out = (self.longest_ns as u64).min(STALL_NS | slow.wrapping_sub(1));
        let elapsed = fixed::saturating_sub(now_ns.wrapping_sub(self.window_ns), left_out);
        let delivered = elapsed / count;
        // Three marks in a row may be chance, or the end of a queue: few packets are sufficient only where they arrive
        // far below the limit.
        let far = delivered >= 4 * interval_ns;
        let ends = if far { OVERLOAD_FAR } else { OVERLOAD_NEAR };
        // 1 or 0 without a branch, as above.
        let fast = interval_ns.wrapping_sub(FAST_NS) >> 63;
        let gaps = fast * OVERLOAD_GAPS * self.longest_ns as u64;
        if elapsed < ends.1 + gaps || count < ends.0 {
            return 0;
        }
        self.window_ns = now_ns;
        self.window_packets = 0;
        self.round_packets = 0;
        self.longest_ns = 0;
        if delivered > interval_ns + interval_ns / 4 {
            delivered
        } else {
            0
        }
    }

    /// Applies one echo: the increase for its unmarked packets, and a decrease for its marked packets unless the
    /// round rule ignores them. An ignored mark causes neither.
    ///
    /// The positions of marked packets in a coalesced echo are unknown. They are assumed to be its last ones, which is the
    /// cautious choice: a mark is as likely as possible to be after the last decrease, and the decrease is applied after
    /// the increases. With [`Round::Packets`] and [`Round::Time`] there is at most one decrease, with [`Round::Off`] at
    /// most [`MAX_DECREASES`]. An echo per packet (`packets` = 1) needs no assumption.
    ///
    /// A round of [`Round::Packets`] covers the receiver's counts `round_end` - `round_packets` <= count <= `round_end` in
    /// serial number arithmetic (as RFC 1982). It ends as soon as the count leaves that range on either side, so neither a
    /// flow without marks for 2^31 packets nor a receiver that restarts its count ignores marks. In the paper's case, a
    /// window of one packet, `outstanding` is 0 and every mark counts.
    #[inline(always)]
    pub fn on_echo(&mut self, policy: &Policy, echo: Feedback, now_ns: u64) -> Reaction {
        let none = Reaction {
            decreased: 0,
            ignored: 0,
        };
        if policy.function == NONE || policy.function > AIMD {
            return none;
        }
        let ce = echo.ce.min(echo.packets);
        if policy.round == Round::Fractional as u32 {
            self.on_fractional_echo(policy, echo.packets, ce, now_ns);
            return Reaction {
                decreased: (ce != 0) as u32,
                ignored: 0,
            };
        }
        increase(policy, &mut self.ipd, echo.packets - ce);
        let ipd = fixed::opaque(&mut self.ipd);

        let wanted = if policy.round == Round::Packets as u32 {
            let mut new = ce;
            if self.round_packets != 0 {
                let ahead = self.round_end.wrapping_sub(echo.received);
                if ahead.wrapping_sub(1) < self.round_packets {
                    // All its packets were sent before the end of the round.
                    new = 0;
                } else {
                    self.round_packets = 0;
                    new = new.min(ahead.wrapping_neg());
                }
            }
            new.min(1)
        } else if policy.round == Round::Time as u32 {
            // A time more than a round ahead belongs to another clock or policy.
            let left = self.round_until_ns.saturating_sub(now_ns);
            if left == 0 || left > policy.round_ns {
                ce.min(1)
            } else {
                0
            }
        } else {
            ce.min(MAX_DECREASES)
        };

        if wanted != 0 {
            self.ipd = marked_times(policy, ipd, wanted);
            self.round_end = echo.received.wrapping_add(echo.outstanding);
            self.round_packets = echo.outstanding;
            self.round_until_ns = now_ns.saturating_add(policy.round_ns);
        }
        Reaction {
            decreased: wanted,
            ignored: ce - wanted,
        }
    }
}
