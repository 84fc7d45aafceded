//! QCN's parameters.

use ecn_core::qcn::{INTERVALS, Policy};
use ecn_units::{DurationText, Fraction, Rate, Size, keywords};
use serde::{Deserialize, Serialize};

use crate::bounds::{LONGEST_DELAY, ModelError, in_range};
use crate::engine::NS;
use crate::fabric::auto::Auto;

keywords! {
    /// Whether a notification lowers the target rate RT to the current rate RC.
    ClampTarget {
        /// Only if the rate was increased since the last decrease, as QCN does (V1, V2).
        #[default]
        Off = "off",
        /// Always (V3).
        On = "on",
    }
}

/// QCN's parameters: the defaults of the 802.1Q congestion notification MIB, which are for 10 Gb/s.
///
/// `auto` is the MIB's value at 10 Gb/s, scaled with the link's rate, so that a queue or a stage lasts equally long:
/// the loop is the same, and only packets are relatively smaller. On slow links it is at least half as many full
/// packets as the MIB's value has frames of 1500 B; otherwise a single packet would be congestion.
#[derive(Clone, Debug, PartialEq, schemars::JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QcnParameters {
    /// Qeq: equilibrium queue length. `auto`: 26 kB x rate / 10 Gb/s (V).
    pub qeq: Auto<Size>,
    /// W: weight of the queue's change relative to its length (V: the MIB has the exponent, 1).
    pub w: u32,
    /// Bytes between two samples of a queue that is not congested. `auto`: 150 kB x rate / 10 Gb/s (V).
    pub sample: Auto<Size>,
    /// Relative variation of the bytes between samples, in each direction; otherwise one of several flows that take
    /// turns is sampled again and again (from memory).
    pub jitter: Fraction,
    /// Gd: fraction of the rate by which a unit of feedback, of at most 63, decreases it (V: the MIB has the exponent,
    /// 7).
    pub gd: Fraction,
    /// Minimum fraction of the rate that remains after a notification (V).
    pub min_decrease: Fraction,
    /// Length of a stage by volume. `auto`: 150 kB x rate / 10 Gb/s (V).
    pub byte_limit: Auto<Size>,
    /// If not 0, a stage by volume lasts for the bytes that the current rate sends in this time, so that fast flows
    /// complete no more stages than slow ones (Hayashi et al. 2011: 240us). Not in the standard.
    pub volume_time: DurationText,
    /// Length of a stage by time (V).
    pub stage_timer: DurationText,
    /// First stage in which the target rises; the stages before it are fast recovery (`< 5`, V).
    #[schemars(extend("unit" = "stages"))]
    pub stages: u32,
    /// Active increase. `auto`: 1/2000 of the link's rate (V: 5 Mb/s at 10 Gb/s).
    pub rai: Auto<Rate>,
    /// Hyper-active increase. `auto`: 1/200.
    pub rhai: Auto<Rate>,
    /// Lowest rate. `auto`: 1/2000.
    pub min_rate: Auto<Rate>,
    /// Whether a notification lowers the target rate to the current rate even if no stage by volume was completed since
    /// the last notification. In the standard it does not.
    pub clamp_target: ClampTarget,
}

impl Default for QcnParameters {
    fn default() -> Self {
        Self {
            qeq: Auto::Auto,
            w: 2,
            sample: Auto::Auto,
            jitter: Fraction::ratio(3, 20),
            gd: Fraction::ratio(1, 128),
            min_decrease: Fraction::ratio(1, 2),
            byte_limit: Auto::Auto,
            volume_time: DurationText::from_nanos(0),
            stage_timer: DurationText::from_millis(15),
            stages: 5,
            rai: Auto::Auto,
            rhai: Auto::Auto,
            min_rate: Auto::Auto,
            clamp_target: ClampTarget::Off,
        }
    }
}

/// An Ethernet frame, which converts the MIB's bytes to packets.
const FRAME: u64 = 1_500;

/// The parameters in computational form: bytes per second, bytes and picoseconds.
#[derive(Clone, Copy, Debug)]
pub struct QcnRules {
    /// Policy of the reaction point.
    pub policy: Policy,
    /// Equilibrium queue length, bytes.
    pub qeq: u32,
    /// Weight of the queue's change.
    pub w: u32,
    /// Bytes until the next sample, by the upper 3 bits of the feedback.
    pub intervals: [u32; 8],
    /// Relative variation of these, in 2^-32.
    pub jitter: u64,
}

impl QcnParameters {
    /// Parameters for bridges, determined with the rig's model. At 100 Mb/s, the standard's 15 ms correspond to 125
    /// packets of 1500 B, not 12,500: twenty flows increase so often that one packet in 16 causes a message and 36
    /// packets wait.
    pub fn bridge() -> Self {
        Self {
            stage_timer: DurationText::from_millis(150),
            ..Self::default()
        }
    }

    /// Checks constraints that the types do not express.
    ///
    /// # Errors
    ///
    /// A value out of its range, by name. `frame`: a full packet, bytes.
    pub fn rules(&self, line: Rate, frame: u32) -> Result<QcnRules, ModelError> {
        let zero = Fraction::ratio(0, 1);
        for (key, value) in [("gd", self.gd), ("min_decrease", self.min_decrease)] {
            in_range(key, value, zero..=Fraction::ratio(1, 1))?;
        }
        in_range("jitter", self.jitter, zero..=Fraction::ratio(1, 2))?;
        in_range("w", self.w, 0..=64)?;
        in_range("stages", self.stages, 0..=1_000)?;
        let shortest = DurationText::from_micros(1);
        in_range("stage_timer", self.stage_timer, shortest..=LONGEST_DELAY)?;
        if self.volume_time > LONGEST_DELAY {
            let reason = "must be at most 1s";
            return Err(ModelError::new("volume_time", self.volume_time, reason));
        }
        let bytes = |key, size: Auto<Size>, at_10_gbit: u64| {
            let scaled = u128::from(line.bytes_per_s()) * u128::from(at_10_gbit) / 1_250_000_000;
            let packets = at_10_gbit / FRAME * u64::from(frame) / 2;
            let size = size.or(Size::from_bytes((scaled as u64).max(packets).max(1_000)));
            let (least, most) = (Size::from_bytes(1_000), Size::from_bytes(1_000_000_000));
            in_range(key, size, least..=most).map(Size::bytes)
        };
        let share = |rate: Auto<Rate>, of: u64| match rate {
            Auto::Auto => (line.bytes_per_s() / of).max(1),
            Auto::Is(rate) => rate.bytes_per_s(),
        };
        let min_rate = share(self.min_rate, 2_000);
        if min_rate > line.bytes_per_s() {
            let reason = format!("must be at most the links' rate, {line}");
            return Err(ModelError::new("min_rate", self.min_rate, reason));
        }
        let sample = bytes("sample", self.sample, INTERVALS[0].into())?;
        let line = line.bytes_per_s();
        Ok(QcnRules {
            policy: Policy {
                line_bytes_per_s: line,
                min_bytes_per_s: min_rate,
                decrease: self.gd.of(1 << 32),
                min_decrease: self.min_decrease.of(1 << 32),
                volume_bytes: bytes("byte_limit", self.byte_limit, 150_000)?,
                volume_time: (self.volume_time.as_nanos() << 32).div_ceil(1_000_000_000),
                stage_time: self.stage_timer.as_nanos() * NS,
                // At most the rate of a link, so that sums are far from overflow.
                active_bytes_per_s: share(self.rai, 2_000).min(line),
                hyper_bytes_per_s: share(self.rhai, 200).min(line),
                stages: self.stages,
                clamp_target: (self.clamp_target == ClampTarget::On).into(),
            },
            qeq: bytes("qeq", self.qeq, 26_000)? as u32,
            w: self.w,
            intervals: INTERVALS
                .map(|interval| (sample * u64::from(interval) / u64::from(INTERVALS[0])) as u32),
            jitter: self.jitter.of(1 << 32),
        })
    }
}
