//! HP's design method: from a decrease function to its increase function.
//!
//! Rates are fractions of Rmax, times are packet times at Rmax. The method (INFOCOM 2003, slides 11
//! to 13) takes fdec and asks for the curve Finc(t), the rate after time t without a mark:
//!
//! ```text
//! Finc(0) = Rmin    Finc(t) = fdec(Finc(t + Trec))    Trec = 1/Rmin
//! finc(r) = Finc(t_r + 1/r)    where Finc(t_r) = r
//! ```
//!
//! # Choice of the solution
//!
//! The equation leaves the shape of Finc free on one interval of length Trec: any increasing curve from fdec(r) to r
//! will do, and fdec extends it to all other intervals. With the level A(r) = t_r / Trec the equation is Abel's,
//! A(fdec(r)) = A(r) - 1. Of its solutions we use the principal one, which has no ripples of period 1 towards r = 0:
//! Koenigs' for fdec(r) ~ λr, Fatou's for fdec(r) ~ r (as for LIPD), Böttcher's for fdec(r) ~ r^p. All are limits of
//! one construction: the orbit
//!
//! ```text
//! o_0 = 1    o_(j+1) = fdec(o_j)    A(o_j) = -j
//! ```
//!
//! becomes ever smoother in j as it approaches 0. Far down, A is therefore interpolated by the polynomial through eight
//! neighbouring points of the orbit, in ln r (or in ln(-ln r) if that is smoother); anywhere above,
//! A(r) = A(fdec^n(r)) + n. The possible error of this choice is measured by the difference to the polynomial through
//! six points: [`Design::shape_error`]. If the orbit does not become smooth, there is no principal solution; the curve
//! then still fulfils the equation, but [`Design::shape_error`] is large.

pub mod expression;
mod report;
mod table;

use ecn_core::response::{Function, Policy, PolicyError, Ratio};
use ecn_units::Fraction;
use expression::{ALLOWED, Expression, ExpressionError};

pub use report::{Condition, Curve, Recovery, Report, figure};
pub use table::{Fit, Table, TableError};

/// Errors of the design method.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// The text is not an expression.
    #[error("`{text}` is not a decrease function: {error}")]
    Expression {
        /// The text.
        text: String,
        /// The problem.
        error: ExpressionError,
    },
    /// The expression does not lower every rate.
    #[error(
        "`{text}` is not a decrease function: {reason}; it needs 0 < fdec(r) < r and grows \
         with r, for 0 < r <= 1, in {ALLOWED}"
    )]
    NotDecreasing {
        /// The expression.
        text: String,
        /// The rate at which it fails, and how.
        reason: String,
    },
    /// Rmin is out of range.
    #[error("rmin = {rmin} is not usable: {error}")]
    Rmin {
        /// The value.
        rmin: Fraction,
        /// The problem.
        error: PolicyError,
    },
}

/// Maximum number of marks from Rmax down to Rmin.
const MOST_MARKS: usize = 1_000_000;
/// Lower limit of the orbit: below it, powers of r lose precision.
const SMALLEST: f64 = 1e-280;
/// The orbit is continued below Rmin up to this length, because the principal solution is defined by its behaviour near
/// 0.
const MARKS: usize = 400;
/// The curve is interpolated in the orbit from this number of marks below Rmax on, or later if it is not smooth there
/// yet.
const ANCHOR: usize = 256;
/// Error of a level that is indistinguishable from rounding errors.
const SMOOTH: f64 = 1e-10;
/// Error of a level above which the orbit is not smooth: only linear interpolation is then sure to be monotonic.
const ROUGH: f64 = 1e-3;
/// Number of points of an interpolating polynomial.
const NODES: usize = 8;

/// A decrease function with its increase function.
#[derive(Debug, Clone)]
pub struct Design {
    decrease: Expression,
    rmin: Fraction,
    /// Rates after 0, 1, 2, ... marks from Rmax on.
    orbit: Vec<f64>,
    /// At and below `orbit[anchor]`, levels are interpolated in the orbit.
    anchor: usize,
    /// Whether to interpolate in ln(-ln r) instead of ln r.
    twice: bool,
    /// Number of points of the orbit used for the interpolation of a level.
    nodes: usize,
    shape_error: f64,
    /// Level of Rmin.
    floor: f64,
}

impl Design {
    /// Computes the increase function for `decrease`, an expression in r, and the rate floor `rmin`.
    ///
    /// # Errors
    ///
    /// `decrease` is not a decrease function, or so weak that more than a million marks lie between Rmax and Rmin;
    /// `rmin` is not within 1/65536 <= rmin < 1.
    pub fn new(decrease: &str, rmin: Fraction) -> Result<Self, Error> {
        let ratio = Ratio::new(rmin.numerator().into(), rmin.denominator().into());
        Policy::new(Function::Lipd, ratio, Policy::HP_M)
            .map_err(|error| Error::Rmin { rmin, error })?;
        // For messages: a single line, truncated if long.
        let decrease = decrease.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut text = decrease.chars().take(80).collect::<String>();
        if text.len() < decrease.len() {
            text.push('…');
        }
        let text = || text.clone();
        let decrease = Expression::parse(&decrease).map_err(|error| Error::Expression {
            text: text(),
            error,
        })?;
        check(&decrease, rmin.as_f64())
            .and_then(|()| orbit(&decrease, rmin.as_f64() / 2.0))
            .map(|orbit| Self::on(decrease, rmin, orbit))
            .map_err(|reason| Error::NotDecreasing {
                text: text(),
                reason,
            })
    }

    /// Chooses where, and in which coordinate, levels are interpolated in the orbit.
    fn on(decrease: Expression, rmin: Fraction, orbit: Vec<f64>) -> Self {
        let mut design = Self {
            decrease,
            rmin,
            orbit,
            anchor: 0,
            twice: false,
            nodes: NODES,
            shape_error: f64::INFINITY,
            floor: 0.0,
        };
        let last = design.orbit.len() - 2;
        let early = (NODES / 2).min(last);
        for twice in [false, true] {
            if design.shape_error <= SMOOTH {
                break;
            }
            let rough: Vec<f64> = (early..=last).map(|j| design.roughness(j, twice)).collect();
            // The worst of four neighbours, as one may look smooth by chance, and of all points from here to Rmin: a
            // bend may follow later, and slow orbits take longer steps there.
            let mut worst: Vec<f64> = (0..rough.len())
                .map(|index| {
                    let near = rough.iter().skip(index).take(4);
                    near.copied().fold(0.0, f64::max)
                })
                .collect();
            let deepest = design.orbit.partition_point(|r| *r >= rmin.as_f64());
            for index in (0..deepest.saturating_sub(early)).rev() {
                if let Some(after) = worst.get(index + 1).copied() {
                    worst[index] = worst[index].max(after);
                }
            }
            let errors = || worst.iter().copied().zip(early..);
            let best = errors()
                .find(|(error, j)| {
                    *error <= SMOOTH && (*j >= ANCHOR || design.orbit[*j] < rmin.as_f64())
                })
                .or_else(|| errors().min_by(|a, b| a.0.total_cmp(&b.0)));
            if let Some((error, anchor)) = best.filter(|best| best.0 < design.shape_error) {
                (design.shape_error, design.anchor, design.twice) = (error, anchor, twice);
            }
        }
        if design.shape_error > ROUGH {
            (design.nodes, design.twice) = (2, false);
        }
        design.floor = design.level(rmin.as_f64());
        design
    }

    /// Difference, in levels, between the polynomials through eight and through six points of the orbit, from its
    /// point j to the next one.
    fn roughness(&self, j: usize, twice: bool) -> f64 {
        let r = (self.orbit[j] * self.orbit[j + 1]).sqrt();
        let at = |nodes| self.interpolate(r, j, nodes, twice);
        let error = (at(NODES) - at(NODES - 2)).abs();
        if error.is_finite() {
            error
        } else {
            f64::INFINITY
        }
    }

    /// The level of r, between the points j and j + 1 of the orbit.
    fn interpolate(&self, r: f64, j: usize, nodes: usize, twice: bool) -> f64 {
        let middle = self.orbit[j];
        // Relative to a neighbour, to keep the precision of slow orbits' short steps.
        let x = |r: f64| {
            if twice {
                (r.ln() / middle.ln()).ln()
            } else {
                (r / middle).ln()
            }
        };
        let start = (j + 1)
            .saturating_sub(nodes / 2)
            .min(self.orbit.len().saturating_sub(nodes));
        let mut xs = [0.0; NODES];
        let near = self.orbit.iter().skip(start).take(nodes);
        let count = near.len();
        for (slot, o) in xs.iter_mut().zip(near) {
            *slot = x(*o);
        }
        let (xs, x) = (&xs[..count], x(r));
        let mut steps = 0.0;
        for (i, xi) in xs.iter().enumerate() {
            let mut term = (start + i) as f64 - j as f64;
            for (k, xk) in xs.iter().enumerate() {
                if k != i {
                    term *= (x - xk) / (xi - xk);
                }
            }
            steps += term;
        }
        -(j as f64) - steps
    }

    /// A(r) = (t_r - t_1) / Trec: 0 at Rmax, and 1 less per mark. For rates down to Rmin/2.
    fn level(&self, r: f64) -> f64 {
        let (mut r, mut marks) = (r, 0.0);
        while r > self.orbit[self.anchor] {
            r = self.decrease.at(r);
            marks += 1.0;
        }
        let above = self.orbit.partition_point(|o| *o >= r).saturating_sub(1);
        let j = above.min(self.orbit.len() - 2);
        let level = self.interpolate(r, j, self.nodes, self.twice);
        marks + level.clamp(-(j as f64) - 1.0, -(j as f64))
    }

    /// The rate at a level; Rmax for levels >= 0. Regula falsi (Illinois) in ln r.
    fn rate(&self, level: f64) -> f64 {
        if level >= 0.0 {
            return 1.0;
        }
        let j = ((-level) as usize).min(self.orbit.len() - 2);
        let (mut a, mut b) = (self.orbit[j + 1].ln(), self.orbit[j].ln());
        let (mut fa, mut fb) = (-(j as f64) - 1.0 - level, -(j as f64) - level);
        for _ in 0..200 {
            if fb == 0.0 || (b - a).abs() <= 1e-15 {
                break;
            }
            let secant = b - fb * (b - a) / (fb - fa);
            let x = if secant.is_finite() {
                secant
            } else {
                (a + b) / 2.0
            };
            let fx = self.level(x.exp()) - level;
            if fx.signum() == fb.signum() {
                fa /= 2.0;
            } else {
                (a, fa) = (b, fb);
            }
            let moved = (x - b).abs();
            (b, fb) = (x, fx);
            if moved < 1e-15 || (moved < 1e-9 && fx.abs() <= 1e-12 + 1e-15 * level.abs()) {
                break;
            }
        }
        b.exp().min(1.0)
    }

    /// The decrease function as given.
    pub fn decrease_text(&self) -> &str {
        self.decrease.text()
    }

    /// The rate floor as a fraction of Rmax.
    pub fn rmin(&self) -> Fraction {
        self.rmin
    }

    /// Trec = 1/Rmin (slide 12), in packet times.
    pub fn recovery_time(&self) -> f64 {
        1.0 / self.rmin.as_f64()
    }

    /// Maximum deviation of the curve from the principal solution within one Trec, in units of Trec; see the module
    /// documentation. The three conditions hold regardless. The relative error of a rate is this times ln(r / fdec(r)).
    pub fn shape_error(&self) -> f64 {
        self.shape_error
    }

    /// fdec(r), without the floor Rmin.
    pub fn decrease(&self, r: f64) -> f64 {
        self.decrease.at(r)
    }

    /// finc(r) = Finc(t_r + 1/r), at most 1 (slide 13); for Rmin <= r <= 1.
    pub fn increase(&self, r: f64) -> f64 {
        self.rate(self.level(r) + self.rmin.as_f64() / r)
    }

    /// 1/finc(r), also where finc(r) would exceed 1: there the curve is continued as a parabola through its last
    /// points. For tables, which interpolate best without a bend.
    fn increased_delay(&self, r: f64) -> f64 {
        let level = self.level(r) + self.rmin.as_f64() / r;
        let delay = |level| 1.0 / self.rate(level);
        if level <= 0.0 {
            return delay(level);
        }
        (3.0 - 3.0 * delay(-level) + delay(-2.0 * level)).clamp(0.0, 1.0)
    }

    /// Finc(t) for t >= 0 in packet times, at most 1.
    pub fn rate_after(&self, time: f64) -> f64 {
        self.rate(self.floor + time * self.rmin.as_f64())
    }

    /// t_r, the time from Rmin to r without a mark, in packet times; for Rmin <= r <= 1.
    pub fn time_to(&self, r: f64) -> f64 {
        (self.level(r) - self.floor) * self.recovery_time()
    }
}

/// Checks that `f` is positive, below r and increasing on a grid over Rmin/4..1, and above Rmin at 1.
fn check(f: &Expression, rmin: f64) -> Result<(), String> {
    const STEPS: i32 = 4_000;
    let lowest = rmin / 4.0;
    let most = lowered(f, 1.0)?;
    if most < rmin {
        return Err(format!(
            "fdec(1) = {most:.6} is below rmin: one mark for all rates"
        ));
    }
    let by_factors = (0..=STEPS).map(|i| lowest.powf(f64::from(STEPS - i) / f64::from(STEPS)));
    let evenly = (1..=STEPS).map(|i| f64::from(i) / f64::from(STEPS));
    let grids: [&mut dyn Iterator<Item = f64>; 2] = [
        &mut by_factors.into_iter(),
        &mut evenly.filter(|r| *r >= lowest),
    ];
    for grid in grids {
        let mut before: Option<(f64, f64)> = None;
        for r in grid {
            let value = lowered(f, r)?;
            if let Some((r0, v0)) = before.filter(|(_, v0)| *v0 >= value) {
                return Err(format!(
                    "it does not grow: fdec({r0:.6}) = {v0:.6}, but fdec({r:.6}) = {value:.6}"
                ));
            }
            before = Some((r, value));
        }
    }
    Ok(())
}

/// fdec(r), if it is positive and below r.
fn lowered(f: &Expression, r: f64) -> Result<f64, String> {
    let value = f.at(r);
    if !value.is_finite() {
        Err(format!("fdec({r:.6}) is not a number"))
    } else if value <= 0.0 {
        Err(format!("fdec({r:.6}) = {value:.6} is not above 0"))
    } else if value >= r {
        Err(format!("fdec({r:.6}) = {value:.6} is not below r"))
    } else {
        Ok(value)
    }
}

/// Rates after 0, 1, 2, ... marks: down to `lowest`, and below it as far as useful.
fn orbit(f: &Expression, lowest: f64) -> Result<Vec<f64>, String> {
    let mut orbit = vec![1.0];
    let (mut r, mut below) = (1.0, 0);
    while below < NODES || orbit.len() < MARKS {
        let next = match lowered(f, r) {
            Ok(next) => next,
            // Rounding errors near 0 do not count against the function.
            Err(_) if r < 1e-9 && r < lowest && orbit.len() > 2 => break,
            Err(reason) => return Err(reason),
        };
        orbit.push(next);
        if orbit.len() > MOST_MARKS {
            return Err(format!(
                "it is too weak: {MOST_MARKS} marks lower the rate from 1 to {next:.6} only"
            ));
        }
        r = next;
        if r < lowest {
            below += 1;
        }
        if r < SMALLEST {
            break;
        }
    }
    Ok(orbit)
}

#[cfg(test)]
mod tests;
