//! A response as a table of the inter-packet delay: a human-readable file, and a look-up in integer arithmetic that a
//! kernel program could also use.
//!
//! The file is TOML. Its points are at delays of 2^i (1 + k/n) packet times, n = `steps_per_octave`, from 1 to just
//! above 1/Rmin. A point contains the change of the delay rather than the new delay, so that the small steps of
//! unmarked ACKs keep their precision. Both columns are interpolated linearly, which makes LIPD and the decrease of
//! FIMD exact.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ecn_core::fixed::{FRAC, ONE, mul_32, mul_hi, ratio};
use ecn_core::response::IPD_LIMIT;
use ecn_units::Fraction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Design;
use crate::endpoint::Designed;

/// First line of the format's description, and the value of `format`.
const FORMAT: &str = "ecn response table";
const VERSION: u32 = 1;
/// Maximum relative error of a delay in a new table, where that can be reached.
const WANTED: f64 = 5e-5;

/// An invalid table.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the response table {}: {reason}", path.display())]
pub struct TableError {
    path: PathBuf,
    reason: String,
}

/// The file's structure.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format: String,
    version: u32,
    decrease: String,
    rmin: Fraction,
    steps_per_octave: u32,
    /// Only for readers: the names describe the numbers.
    #[serde(rename = "columns")]
    _columns: Vec<String>,
    points: Vec<[f64; 3]>,
}

/// Response of a flow's delay to marked and unmarked ACKs.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    decrease: String,
    rmin: Fraction,
    /// 1/Rmin, [`FRAC`] fractional bits.
    ipd_max: u64,
    /// Binary logarithm of the steps per octave.
    step_bits: u32,
    /// By point: the increment for a mark ([`FRAC`] fractional bits), and the fraction that an unmarked ACK subtracts
    /// (64 fractional bits).
    points: Vec<[u64; 2]>,
}

/// How exact a table is.
#[derive(Debug, Clone, Copy, PartialEq, Default, JsonSchema, Serialize)]
pub struct Fit {
    /// Largest error of a new delay, as a fraction of it.
    pub relative_error: f64,
    /// The rate from which it is reached.
    pub at_rate: f64,
}

/// Position of a delay: the point at or before it, and the fraction of the distance to the next one, with 32 fractional
/// bits. For `ipd` >= [`ONE`].
const fn place(ipd: u64, step_bits: u32) -> (usize, u64) {
    let zeros = ipd.leading_zeros();
    let octave = (63 - FRAC).wrapping_sub(zeros) as usize;
    // The bits below the leading one; the upper ones of these are the step number.
    let rest = ipd << zeros << 1;
    let step = (rest >> (64 - step_bits)) as usize;
    ((octave << step_bits) + step, (rest << step_bits) >> 32)
}

/// The delay of a point, in packet times.
fn delay(index: usize, step_bits: u32) -> f64 {
    let steps = (1_usize << step_bits) as f64;
    let step = (index & ((1 << step_bits) - 1)) as f64;
    2_f64.powi((index >> step_bits) as i32) * (1.0 + step / steps)
}

impl Table {
    /// The table of a design, fine enough for a relative error of new delays below 5e-5. The error is larger only where
    /// finc has a vertical tangent (at r = 1, if fdec is flat there); see [`Fit`].
    pub fn of(design: &Design) -> (Self, Fit) {
        let mut step_bits = 6;
        loop {
            let table = Self::with_steps(design, step_bits);
            let fit = table.fit(design);
            if fit.relative_error < WANTED || step_bits == 11 {
                return (table, fit);
            }
            step_bits += 1;
        }
    }

    fn with_steps(design: &Design, step_bits: u32) -> Self {
        let rmin = design.rmin();
        let mut table = Self {
            decrease: design.decrease_text().to_owned(),
            rmin,
            ipd_max: ipd_max(rmin),
            step_bits,
            points: Vec::new(),
        };
        let point = |index| {
            let ipd = delay(index, step_bits);
            let r = 1.0 / ipd;
            let adds = (1.0 / design.decrease(r) - ipd).min(IPD_LIMIT as f64);
            let takes = 1.0 - design.increased_delay(r) / ipd;
            fixed(adds, takes)
        };
        table.points = (0..table.length()).map(point).collect();
        table
    }

    /// Number of points of the table: one beyond 1/Rmin for the last interval.
    fn length(&self) -> usize {
        place(self.ipd_max, self.step_bits).0 + 2
    }

    /// Maximum relative error of both functions, at two positions between any two points.
    fn fit(&self, design: &Design) -> Fit {
        let (largest, unit) = (design.recovery_time(), ONE as f64);
        let mut fit = Fit::default();
        for probe in 0..(self.points.len() - 1) * 2 {
            let (index, part) = (probe / 2, if probe % 2 == 0 { 0.4 } else { 0.7 });
            let [from, to] = [index, index + 1].map(|index| delay(index, self.step_bits));
            let ipd = from + (to - from) * part;
            if ipd > largest {
                break;
            }
            let marked = (1.0 / design.decrease(1.0 / ipd)).min(largest);
            let unmarked = 1.0 / design.increase(1.0 / ipd);
            let fixed = (ipd * unit) as u64;
            for (found, exact) in [
                (self.marked(fixed), marked),
                (self.unmarked(fixed), unmarked),
            ] {
                let relative_error = (found as f64 / unit / exact - 1.0).abs();
                if relative_error > fit.relative_error {
                    fit = Fit {
                        relative_error,
                        at_rate: 1.0 / ipd,
                    };
                }
            }
        }
        fit
    }

    /// Reads a table.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not a table of this version.
    pub fn load(path: &Path) -> Result<Self, TableError> {
        let error = |reason: String| TableError {
            path: path.to_owned(),
            reason,
        };
        let text = crate::text_file::read(path).map_err(|e| error(e.to_string()))?;
        Self::parse(&text).map_err(error)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .and_then(|span| text.get(..span.start))
                .map_or(1, |before| before.matches('\n').count() + 1);
            let message = error.message().lines().collect::<Vec<_>>().join(" ");
            format!("line {line}: {message}")
        })?;
        if file.format != FORMAT {
            return Err(format!("format is `{}`, not `{FORMAT}`", file.format));
        }
        if file.version != VERSION {
            return Err(format!(
                "version {} is not known, only {VERSION}",
                file.version
            ));
        }
        let steps = file.steps_per_octave;
        if !steps.is_power_of_two() || !(2..=4096).contains(&steps) {
            return Err(format!(
                "steps_per_octave = {steps}: must be a power of two between 2 and 4096"
            ));
        }
        let mut table = Self {
            decrease: file.decrease,
            rmin: file.rmin,
            ipd_max: ipd_max(file.rmin),
            step_bits: steps.trailing_zeros(),
            points: Vec::new(),
        };
        if table.ipd_max <= ONE || table.ipd_max > IPD_LIMIT << FRAC {
            return Err(format!(
                "rmin = {} is not from 1/65536 to below 1",
                file.rmin
            ));
        }
        if file.points.len() != table.length() {
            return Err(format!(
                "{} points, but rmin = {} with {steps} steps per octave takes {}",
                file.points.len(),
                file.rmin,
                table.length()
            ));
        }
        for (index, [ipd, adds, takes]) in file.points.into_iter().enumerate() {
            let expected = delay(index, table.step_bits);
            if ipd.is_nan() || (ipd - expected).abs() > 1e-9 * expected {
                return Err(format!("point {index} is at {ipd} instead of {expected}"));
            }
            if !(adds > 0.0 && adds <= IPD_LIMIT as f64 && takes > 0.0 && takes < 1.0) {
                return Err(format!(
                    "point {index}: a mark adds {adds}, which is to be above 0 and at most \
                     {IPD_LIMIT}, and an unmarked ACK takes {takes}, which is to be between 0 and 1"
                ));
            }
            table.points.push(fixed(adds, takes));
        }
        Ok(table)
    }

    /// The table in its file format.
    pub fn to_toml(&self) -> String {
        let mut text = format!(
            "# How a flow's inter-packet delay (ipd, in packet times at Rmax; the rate is Rmax/ipd) answers\n\
             # to ACKs: a marked one adds the second number of a point, an unmarked one takes the third as\n\
             # a share of the delay. Points stand at 2^i (1 + k/steps_per_octave); between them both numbers\n\
             # change evenly. The result is kept within 1 and 1/rmin.\n\
             # Made by `ecn design` from the decrease function of the rate r.\n\
             format = \"{FORMAT}\"\n\
             version = {VERSION}\n\
             decrease = {}\n\
             rmin = \"{}\"\n\
             steps_per_octave = {}\n\
             columns = [\"ipd_packet_times\", \"marked_adds_packet_times\", \"unmarked_takes_share\"]\n\
             points = [\n",
            toml::Value::from(self.decrease.as_str()),
            self.rmin,
            1_u32 << self.step_bits,
        );
        for (index, [adds, takes]) in self.points.iter().enumerate() {
            let _ = writeln!(
                text,
                "  [{:?}, {:?}, {:?}],",
                delay(index, self.step_bits),
                *adds as f64 / ONE as f64,
                *takes as f64 / 2_f64.powi(64),
            );
        }
        text + "]\n"
    }

    /// The decrease function as given.
    pub fn decrease_text(&self) -> &str {
        &self.decrease
    }

    /// The rate floor as a fraction of Rmax.
    pub fn rmin(&self) -> Fraction {
        self.rmin
    }

    /// Number of points.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// Number of unmarked ACKs from Rmin to Rmax.
    pub(super) fn acks(&self) -> u64 {
        let (mut ipd, mut acks) = (self.ipd_max, 0);
        // Each step is at least one unit, even if the product is less than 2^-40.
        while ipd > ONE {
            ipd = self.unmarked(ipd).min(ipd - 1);
            acks += 1;
        }
        acks
    }

    /// Limits a delay to [1, 1/Rmin].
    fn clamp(&self, ipd: u64) -> u64 {
        ipd.clamp(ONE, self.ipd_max)
    }

    /// Interpolates a column at a delay within [1, 1/Rmin].
    fn at(&self, ipd: u64, column: usize) -> u64 {
        let (index, way) = place(ipd, self.step_bits);
        let (here, next) = (self.points[index][column], self.points[index + 1][column]);
        mul_32(here, (1 << 32) - way) + mul_32(next, way)
    }

    /// The delay after a marked ACK, r <- max(Rmin, fdec(r)), in packet times with [`FRAC`] fractional bits, as in
    /// `ecn_core::response::marked`. Integer arithmetic only.
    pub fn marked(&self, ipd: u64) -> u64 {
        let ipd = self.clamp(ipd);
        self.clamp(ipd + self.at(ipd, 0))
    }

    /// The delay after an unmarked ACK, r <- min(Rmax, finc(r)). As [`Table::marked`].
    pub fn unmarked(&self, ipd: u64) -> u64 {
        let ipd = self.clamp(ipd);
        self.clamp(ipd - mul_hi(ipd, self.at(ipd, 1)))
    }
}

impl Designed for Table {
    fn marked(&self, ipd: u64) -> u64 {
        self.marked(ipd)
    }

    fn unmarked(&self, ipd: u64) -> u64 {
        self.unmarked(ipd)
    }
}

/// 1/Rmin with [`FRAC`] fractional bits; 0 if out of range.
fn ipd_max(rmin: Fraction) -> u64 {
    ratio(rmin.denominator().into(), rmin.numerator().into(), FRAC).unwrap_or(0)
}

/// A point in fixed point. At least one unit, because a zero step would stop all changes.
fn fixed(adds: f64, takes: f64) -> [u64; 2] {
    [
        ((adds * ONE as f64).round() as u64).max(1),
        ((takes * 2_f64.powi(64)).round() as u64).max(1),
    ]
}
