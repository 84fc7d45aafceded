//! BCN's parameters.

use ecn_core::bcn::{Gains, Granularity, Policy, PolicyError};
use ecn_core::response::Ratio;
use ecn_units::{Fraction, Rate, Size, keywords};
use serde::{Deserialize, Serialize};

use crate::bounds::{ModelError, in_range};
use crate::fabric::auto::Auto;

keywords! {
    /// Packets that share a rate limiter, as long as a host has enough limiters.
    Sharing {
        /// Source, destination and priority.
        #[default]
        Flow = "flow",
        /// Destination and priority.
        Destination = "destination",
        /// Priority.
        Priority = "priority",
        /// The whole link.
        Link = "link",
    }
}

impl From<Sharing> for Granularity {
    fn from(sharing: Sharing) -> Self {
        match sharing {
            Sharing::Flow => Self::Flow,
            Sharing::Destination => Self::Destination,
            Sharing::Priority => Self::Priority,
            Sharing::Link => Self::Link,
        }
    }
}

/// BCN's parameters, with the source of each default in `docs/sources.md`: S is Barrass 2006, which has no gains.
#[derive(Clone, Debug, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BcnParameters {
    /// Qeq: equilibrium queue length. `auto`: 24 kB x rate / 10 Gb/s (from memory), or 8 full packets if that is more,
    /// as otherwise a single packet would be congestion on slow links.
    pub qeq: Auto<Size>,
    /// W: weight of the queue's change relative to its length (from memory).
    pub w: u32,
    /// Pm: sampling probability of packets (S). Above 0 and at most 1.
    pub pm: Fraction,
    /// Gd: fraction of the rate by which a frame of negative feedback decreases it (from memory).
    pub gd: Fraction,
    /// Gi: rate units by which a frame of positive feedback increases the rate (from memory).
    pub gi: Fraction,
    /// Ru: rate unit. `auto`: 1/1250 of the link's rate (from memory: 8 Mb/s at 10 Gb/s).
    pub rate_unit: Auto<Rate>,
    /// Size of the frame to which the gains refer. `auto`: 1500 B x rate / 10 Gb/s (D: Gd = 1/128 is per frame), or
    /// half a full packet if that is more.
    pub gain_frame: Auto<Size>,
    /// Lowest rate. `auto`: a rate unit, at which a sender is still sampled only once in `1/pm` packets. The gains are
    /// for queues of up to 128 frames: one sample of a longer queue reduces the rate to this.
    pub min_rate: Auto<Rate>,
    /// Packets that share a rate limiter (S; the finest).
    pub sharing: Sharing,
    /// Rate limiters per host, one of them reserved for its link; if there are too few, more flows share one. S has no
    /// number; QCN's MIB has up to 100. A shared limiter limits all of its flows, but only flows that pass the
    /// congestion point that lowered it raise it.
    #[schemars(extend("unit" = "limiters"))]
    pub limiters: u32,
}

impl Default for BcnParameters {
    fn default() -> Self {
        Self {
            qeq: Auto::Auto,
            w: 2,
            pm: Fraction::ratio(1, 100),
            gd: Fraction::ratio(1, 128),
            gi: Fraction::ratio(4, 1),
            rate_unit: Auto::Auto,
            gain_frame: Auto::Auto,
            min_rate: Auto::Auto,
            sharing: Sharing::Flow,
            limiters: 100,
        }
    }
}

/// The parameters in computational form.
#[derive(Clone, Copy, Debug)]
pub struct BcnRules {
    /// Policy of congestion and reaction points.
    pub policy: Policy,
    /// The finest set of packets that shares a limiter.
    pub granularity: Granularity,
    /// Limiters of a host, including the one for its link.
    pub limiters: u32,
    /// Sampling probability, in 2^-32.
    pub sampled: u64,
}

impl BcnRules {
    /// Whether to sample a packet; `random`: 32 random bits.
    pub fn samples(&self, random: u32) -> bool {
        u64::from(random) < self.sampled
    }
}

impl BcnParameters {
    /// Parameters for bridges, determined with the rig's model. At 100 Mb/s and 1/100, twenty flows are sampled three
    /// times a second each, and lose packets with Gi = 4; at 1/10 they need Gi = 1/2, and every 12th packet causes a
    /// message. At 1/90, every 55th packet does.
    pub fn bridge() -> Self {
        Self {
            pm: Fraction::ratio(1, 90),
            gi: Fraction::ratio(1, 1),
            ..Self::default()
        }
    }

    /// Checks constraints that the types do not express.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name. `frame`: a full packet, bytes.
    pub fn rules(&self, line: Rate, frame: u32) -> Result<BcnRules, ModelError> {
        if self.pm.numerator() == 0 || self.pm > Fraction::ratio(1, 1) {
            return Err(ModelError::new(
                "pm",
                self.pm,
                "must be above 0 and at most 1",
            ));
        }
        in_range("limiters", self.limiters, 1..=100_000)?;
        let usual = Gains::defaults(line.bytes_per_s());
        let bytes = |key, size: Auto<Size>, usual: u32| match size {
            Auto::Auto => Ok(usual),
            Auto::Is(size) if (1..=1_000_000_000).contains(&size.bytes()) => {
                Ok(size.bytes() as u32)
            }
            Auto::Is(size) => Err(ModelError::new(key, size, "must be between 1B and 1GB")),
        };
        let rate = |rate: Auto<Rate>, usual| match rate {
            Auto::Auto => usual,
            Auto::Is(rate) => rate.bytes_per_s(),
        };
        let ratio = |f: Fraction| Ratio::new(f.numerator().into(), f.denominator().into());
        let unit = rate(self.rate_unit, usual.unit_bytes_per_s);
        let equilibrium = usual.equilibrium_bytes.max(8 * frame);
        let gain_frame = usual.frame_bytes.max(frame / 2);
        let gains = Gains {
            equilibrium_bytes: bytes("qeq", self.qeq, equilibrium)?,
            weight: self.w,
            decrease: ratio(self.gd),
            increase: ratio(self.gi),
            unit_bytes_per_s: unit,
            frame_bytes: bytes("gain_frame", self.gain_frame, gain_frame)?,
            line_bytes_per_s: line.bytes_per_s(),
            min_bytes_per_s: rate(self.min_rate, unit),
        };
        let policy = Policy::new(&gains).map_err(|error| match error {
            PolicyError::Weight => ModelError::new("w", self.w, error),
            PolicyError::Decrease => ModelError::new("gd", self.gd, error),
            PolicyError::Increase => ModelError::new("gi", self.gi, error),
            PolicyError::Frame => ModelError::new("gain_frame", self.gain_frame, error),
            PolicyError::Rate => ModelError::new("min_rate", self.min_rate, error),
        })?;
        Ok(BcnRules {
            policy,
            granularity: self.sharing.into(),
            limiters: self.limiters,
            sampled: self.pm.of(1 << 32),
        })
    }
}
