//! Backward congestion notification (BCN): the congested bridge itself notifies the source.
//!
//! ```text
//! congestion point, for a sampled frame:   Qoff = Qeq - q,  Qdelta = q - q at the last sample
//!     frame of a rate limiter (tagged):    notify
//!     other:                               notify if q > Qeq
//! reaction point:                          Fb = Qoff - W Qdelta
//!     Fb < 0:                              rate <- rate (1 - Gd |Fb|)
//!     Fb > 0:                              rate <- rate + Gi Fb Ru
//!     at the link's rate:                  the limiter is removed
//! ```
//!
//! Source: H. Barrass, "Reactive Congestion Management (using Backward Congestion Notification)", January 2006. It
//! calls Qoff the offset from the equilibrium and does not say which way; only Qeq - q lets both terms
//! of Fb be negative for a queue that is long and grows. It gives no gains: [`Gains::defaults`] are from
//! memory (`docs/sources.md`). Gains are per frame, queues are in bytes.

use core::fmt;

use crate::fixed::{self, FRAC};
use crate::response::Ratio;

/// Gains and bounds of both points.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Qeq.
    pub equilibrium_bytes: u32,
    /// W.
    pub weight: u32,
    /// Share of the rate that a byte of negative feedback takes, [`FRAC`] fractional bits.
    decrease: u64,
    /// Bytes per second that a byte of positive feedback gives, 24 fractional bits.
    increase: u64,
    /// The link's rate: no limiter is faster.
    pub line_bytes_per_s: u64,
    /// No limiter is slower.
    pub min_bytes_per_s: u64,
}

/// Fractional bits of [`Policy::increase`].
const GAIN_FRAC: u32 = 24;

/// What a [`Policy`] is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gains {
    /// Qeq: the queue that is aimed at.
    pub equilibrium_bytes: u32,
    /// W: how much more a change of the queue counts than its length.
    pub weight: u32,
    /// Gd: share of the rate that a frame of negative feedback takes.
    pub decrease: Ratio,
    /// Gi: rate units that a frame of positive feedback gives.
    pub increase: Ratio,
    /// Ru.
    pub unit_bytes_per_s: u64,
    /// Bytes of a frame.
    pub frame_bytes: u32,
    /// The link's rate.
    pub line_bytes_per_s: u64,
    /// Lowest rate of a limiter.
    pub min_bytes_per_s: u64,
}

impl Gains {
    /// W = 2, Gd = 1/128, Gi = 4, Qeq = 16 frames; at 10 Gb/s Ru = 8 Mb/s and frames of 1500 bytes, scaled with the rate so
    /// that all time constants stay the same; lowest rate Ru. None of these is in the source.
    ///
    /// At 100 Gb/s with a feedback delay of 12 us 2, 10 and 20 sources settle at 159 of 160 packets of 1500 bytes; with
    /// gains for such packets, at 12 to 19 of 16, oscillating by up to 47.
    #[must_use]
    pub const fn defaults(line_bytes_per_s: u64) -> Self {
        const fn at_least_1(share: u64) -> u64 {
            if share == 0 { 1 } else { share }
        }
        let unit = at_least_1(line_bytes_per_s / 1_250);
        let frame = at_least_1(line_bytes_per_s / 2_500 * 3 / 1_000);
        let frame = if frame > MAX_QUEUE_BYTES as u64 {
            MAX_QUEUE_BYTES
        } else {
            frame as u32
        };
        Self {
            equilibrium_bytes: frame.saturating_mul(16),
            weight: 2,
            decrease: Ratio::new(1, 128),
            increase: Ratio::new(4, 1),
            unit_bytes_per_s: unit,
            frame_bytes: frame,
            line_bytes_per_s,
            min_bytes_per_s: unit,
        }
    }
}

/// Why a [`Policy`] cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyError {
    /// W is above 1024.
    Weight,
    /// Gd is 0, above 1 for a frame, or too small for the fixed point.
    Decrease,
    /// Gi Ru is 0 or does not fit.
    Increase,
    /// A frame of 0 bytes.
    Frame,
    /// The lowest rate is 0 or above the link's, or that is 2^63 or more.
    Rate,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weight => "the weight must be between 0 and 1024",
            Self::Decrease => "the decrease gain must be above 0 and at most 1",
            Self::Increase => {
                "the increase gain times the rate unit must be above 0 and at most the link's rate"
            }
            Self::Frame => "the frame must have at least 1 byte",
            Self::Rate => "the lowest rate must be between 1 byte per second and the link's rate",
        })
    }
}

impl core::error::Error for PolicyError {}

impl Policy {
    /// Checks gains and converts them to fixed point.
    ///
    /// # Errors
    ///
    /// A value out of range.
    pub const fn new(gains: &Gains) -> Result<Self, PolicyError> {
        let line = gains.line_bytes_per_s;
        if gains.weight > 1024 {
            return Err(PolicyError::Weight);
        }
        if gains.frame_bytes == 0 {
            return Err(PolicyError::Frame);
        }
        if gains.min_bytes_per_s == 0 || gains.min_bytes_per_s > line || line >> 63 != 0 {
            return Err(PolicyError::Rate);
        }
        let frame = gains.frame_bytes as u64;
        let Some(den) = gains.decrease.den.checked_mul(frame) else {
            return Err(PolicyError::Decrease);
        };
        if gains.decrease.num > gains.decrease.den {
            return Err(PolicyError::Decrease);
        }
        let Some(decrease @ 1..) = fixed::ratio(gains.decrease.num, den, FRAC) else {
            return Err(PolicyError::Decrease);
        };
        let (Some(num), Some(den)) = (
            gains.increase.num.checked_mul(gains.unit_bytes_per_s),
            gains.increase.den.checked_mul(frame),
        ) else {
            return Err(PolicyError::Increase);
        };
        let Some(increase @ 1..) = fixed::ratio(num, den, GAIN_FRAC) else {
            return Err(PolicyError::Increase);
        };
        if increase >> GAIN_FRAC > line {
            return Err(PolicyError::Increase);
        }
        Ok(Self {
            equilibrium_bytes: gains.equilibrium_bytes,
            weight: gains.weight,
            decrease,
            increase,
            line_bytes_per_s: line,
            min_bytes_per_s: gains.min_bytes_per_s,
        })
    }
}

/// Unit of what a notification carries, bytes.
const UNIT: i32 = 64;

/// [`Feedback::to_word`] of BCN(0, 0): the queue is severely congested, and the source is to stop for a random time.
pub const STOP: u32 = 0;

/// What a notification carries.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Feedback {
    /// Qoff = Qeq - q, bytes.
    pub offset_bytes: i32,
    /// Qdelta, bytes.
    pub delta_bytes: i32,
}

impl Feedback {
    /// Fb, bytes.
    #[inline(always)]
    #[must_use]
    pub const fn value(self, weight: u32) -> i64 {
        self.offset_bytes as i64 - weight as i64 * self.delta_bytes as i64
    }

    /// With an offset of at most `equilibrium_bytes` and a change of at most twice that: the range that QCN quantises,
    /// Qeq (2 w + 1). Otherwise one sample of a queue that was long for a moment takes all of a rate, and a source that
    /// hardly sends is hardly sampled.
    #[inline(always)]
    #[must_use]
    pub fn saturated(self, equilibrium_bytes: u32) -> Self {
        let most = equilibrium_bytes.min(MAX_QUEUE_BYTES / 2) as i32;
        Self {
            offset_bytes: self.offset_bytes.clamp(-most, most),
            delta_bytes: self.delta_bytes.clamp(-2 * most, 2 * most),
        }
    }

    /// Both as a notification carries them: 16 bits each, in units of 64 bytes.
    #[inline(always)]
    #[must_use]
    pub fn to_word(self) -> u32 {
        let field = |bytes: i32| (bytes / UNIT).clamp(i16::MIN.into(), i16::MAX.into()) as u16;
        (field(self.offset_bytes) as u32) << 16 | field(self.delta_bytes) as u32
    }

    /// The inverse of [`Feedback::to_word`].
    #[inline(always)]
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        Self {
            offset_bytes: (word >> 16) as u16 as i16 as i32 * UNIT,
            delta_bytes: word as u16 as i16 as i32 * UNIT,
        }
    }
}

/// The queue at a congestion point.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct CongestionPoint {
    /// Its length at the last sample.
    pub sampled_bytes: u32,
}

/// Queues are below this, so that differences of two fit 32 bits.
const MAX_QUEUE_BYTES: u32 = i32::MAX as u32;

impl CongestionPoint {
    /// Samples a frame (one of about 100, as the caller decides) that finds `queue_bytes` waiting, of `equilibrium_bytes`
    /// that are aimed at. Returns the notification for its source, if any.
    #[inline(always)]
    pub fn sample(
        &mut self,
        equilibrium_bytes: u32,
        queue_bytes: u32,
        tagged: bool,
    ) -> Option<Feedback> {
        let feedback = self.measure(equilibrium_bytes, queue_bytes);
        (tagged || queue_bytes > equilibrium_bytes).then_some(feedback)
    }

    /// [`CongestionPoint::sample`] of a tagged frame.
    #[inline(always)]
    pub fn measure(&mut self, equilibrium_bytes: u32, queue_bytes: u32) -> Feedback {
        let queue = queue_bytes.min(MAX_QUEUE_BYTES);
        let before = core::mem::replace(&mut self.sampled_bytes, queue);
        Feedback {
            offset_bytes: equilibrium_bytes.min(MAX_QUEUE_BYTES) as i32 - queue as i32,
            delta_bytes: queue as i32 - before as i32,
        }
    }
}

/// A reaction point's rate limiter; it tags the frames that it passes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Limiter {
    /// 0: no limit.
    rate_bytes_per_s: u64,
}

impl Limiter {
    /// With a rate in bytes per second; 0: no limit.
    #[inline(always)]
    #[must_use]
    pub const fn new(rate_bytes_per_s: u64) -> Self {
        Self { rate_bytes_per_s }
    }

    /// Its rate; `None`: no limit, frames are sent at the link's rate and untagged.
    #[inline(always)]
    #[must_use]
    pub const fn rate(&self) -> Option<u64> {
        match self.rate_bytes_per_s {
            0 => None,
            rate => Some(rate),
        }
    }

    /// Applies a notification. Negative feedback installs a limiter; at the link's rate it is removed.
    #[inline(always)]
    pub fn on_feedback(&mut self, policy: &Policy, feedback: Feedback) {
        let line = policy.line_bytes_per_s;
        let rate = self.rate().unwrap_or(line);
        let value = feedback.value(policy.weight);
        let bytes = value.unsigned_abs();
        let next = if value < 0 {
            // At most all of it, 32 fractional bits.
            let cut = fixed::mul_shift(bytes, policy.decrease, FRAC - 32).min(1 << 32);
            rate - fixed::mul_32(rate, cut)
        } else {
            let gain = fixed::mul_shift(bytes, policy.increase, GAIN_FRAC);
            rate.saturating_add(gain)
        };
        self.rate_bytes_per_s = if next >= line {
            0
        } else {
            next.max(policy.min_bytes_per_s)
        };
    }
}

/// Which frames share a limiter, from fine to coarse.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Granularity {
    /// Source, destination and priority.
    #[default]
    Flow = 0,
    /// Destination and priority.
    Destination = 1,
    /// Priority.
    Priority = 2,
    /// The whole link.
    Link = 3,
}

impl Granularity {
    /// The next coarser one.
    #[must_use]
    pub const fn coarser(self) -> Option<Self> {
        match self {
            Self::Flow => Some(Self::Destination),
            Self::Destination => Some(Self::Priority),
            Self::Priority => Some(Self::Link),
            Self::Link => None,
        }
    }
}

/// The frames of a limiter; fields that its granularity ignores are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Key {
    /// Address.
    pub source: u64,
    /// Address.
    pub destination: u64,
    /// Of the frame.
    pub priority: u32,
    /// A [`Granularity`].
    pub granularity: u32,
}

impl Key {
    /// The key of frames from `source` to `destination` with this priority.
    #[inline(always)]
    #[must_use]
    pub fn new(granularity: Granularity, source: u64, destination: u64, priority: u8) -> Self {
        let finer = |than| granularity < than;
        Self {
            source: if finer(Granularity::Destination) {
                source
            } else {
                0
            },
            destination: if finer(Granularity::Priority) {
                destination
            } else {
                0
            },
            priority: if finer(Granularity::Link) {
                priority.into()
            } else {
                0
            },
            granularity: granularity as u32,
        }
    }

    /// The finest key, from `granularity` on, for which `has_limiter` (a limiter is installed or free), else that of the
    /// whole link, for which the caller keeps one.
    #[must_use]
    pub fn fall_back(
        granularity: Granularity,
        source: u64,
        destination: u64,
        priority: u8,
        mut has_limiter: impl FnMut(Self) -> bool,
    ) -> Self {
        let mut granularity = granularity;
        loop {
            let key = Self::new(granularity, source, destination, priority);
            match granularity.coarser() {
                Some(coarser) if !has_limiter(key) => granularity = coarser,
                _ => return key,
            }
        }
    }
}
