//! Statistics of runs and samples.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

/// Mean and standard deviation over seeds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Mean.
    pub mean: f64,
    /// Standard deviation of one run.
    pub sd: f64,
    /// Number of runs.
    pub n: usize,
}

impl Sample {
    /// Statistics of the given values. Without values the mean is unknown; with one, the deviation is.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        let n = values.len();
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
        let sd = if n > 1 {
            (squares / (n - 1) as f64).sqrt()
        } else {
            f64::NAN
        };
        Self { mean, sd, n }
    }

    /// The difference between one run of each sample.
    pub fn minus(&self, other: &Self) -> Self {
        Self {
            mean: self.mean - other.mean,
            sd: self.sd.hypot(other.sd),
            n: self.n.min(other.n),
        }
    }

    /// Half the width of the 95 % confidence interval of the mean, from Student's t distribution for few independent
    /// runs. `None` for a single run.
    pub fn half_width(&self) -> Option<f64> {
        half_width(self.sd, self.n)
    }

    /// Half the width of the 95 % confidence interval around `pooled`, an estimate from the observations of all runs,
    /// which is not the mean of the runs' estimates: for percentiles (sectioning: Asmussen and Glynn, "Stochastic
    /// Simulation", 2007, III.5; Nakayama, "Confidence intervals for quantiles using sectioning when applying
    /// variance-reduction techniques", TOMACS 24(4), 2014).
    pub fn half_width_around(&self, pooled: f64) -> Option<f64> {
        // Deviations from the pooled estimate instead of the mean.
        let n = self.n as f64;
        let squares = self.sd.powi(2) + n / (n - 1.0) * (self.mean - pooled).powi(2);
        half_width(squares.sqrt(), self.n)
    }

    /// Twice the standard error of the mean.
    pub fn error(&self) -> f64 {
        2.0 * self.sd / (self.n.max(1) as f64).sqrt()
    }

    /// Whether the mean exceeds another significantly: by more than two standard errors of the difference.
    pub fn is_above(&self, other: &Self) -> bool {
        let difference = self.minus(other);
        difference.mean > difference.error()
    }
}

/// The smallest of sorted values such that `percent` percent of them do not exceed it (nearest rank); `None` without
/// values.
pub fn percentile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Jain's fairness index of the rates `x_i` of `n` flows: `(sum x_i)^2 / (n sum x_i^2)`.
///
/// 1 if all are equal, `1/n` if one has all; `None` without flows or traffic. (Jain, Chiu,
/// Hawe: A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
/// Computer Systems, DEC-TR-301, 1984.)
pub fn jain(rates: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for x in rates {
        n += 1.0;
        sum += x;
        squares += x * x;
    }
    (squares > 0.0).then(|| sum * sum / (n * squares))
}

fn half_width(sd: f64, n: usize) -> Option<f64> {
    let freedom = n.checked_sub(1).filter(|freedom| *freedom > 0)?;
    let t = StudentsT::new(0.0, 1.0, freedom as f64).ok()?;
    Some(t.inverse_cdf(0.975) * sd / (n as f64).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compared with standard t tables: 12.706 for two runs, 2.776 for five, 2.045 for thirty.
    #[test]
    fn intervals_are_those_of_students_t() {
        for (n, t) in [(2_usize, 12.706), (5, 2.776), (30, 2.045)] {
            let sample = Sample::of((0..n).map(|value| value as f64));
            let found = sample
                .half_width()
                .map(|half| half * (n as f64).sqrt() / sample.sd);
            assert!(
                found.is_some_and(|found| (found - t).abs() < 1e-3),
                "{n}: {found:?}"
            );
        }
        assert_eq!(Sample::of([1.0]).half_width(), None);
        assert_eq!(Sample::of([]).half_width(), None);
        assert_eq!(Sample::of([3.0; 4]).half_width(), Some(0.0));
    }

    /// Runs with 1, 2 and 6 around a pooled estimate of 2: deviations of -1, 0 and 4, and 4.303 from the t table.
    #[test]
    fn sections_deviate_from_the_pooled_estimate() {
        let sample = Sample::of([1.0, 2.0, 6.0]);
        let expected = 4.303 * (17.0_f64 / 2.0 / 3.0).sqrt();
        let found = sample.half_width_around(2.0).unwrap_or_default();
        assert!((found - expected).abs() < 1e-2, "{found}");
        assert_eq!(sample.half_width_around(3.0), sample.half_width());
        assert_eq!(Sample::of([1.0]).half_width_around(2.0), None);
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let at = |percent| percentile(&[1, 2, 3, 4, 5], percent);
        assert_eq!(
            [0, 20, 21, 50, 99, 100].map(at),
            [1, 1, 2, 3, 5, 5].map(Some)
        );
        assert_eq!(percentile::<f64>(&[], 50), None);
    }

    #[test]
    fn jain_has_its_known_values() {
        assert_eq!(jain([3.0, 3.0, 3.0]), Some(1.0));
        assert_eq!(jain([1.0, 0.0, 0.0, 0.0]), Some(0.25));
        // The paper's example: 20 dollars each for 20 of 100 people is 20 % fair.
        let mut dollars = [0.0; 100];
        dollars[..20].fill(20.0);
        assert!((jain(dollars).unwrap_or_default() - 0.2).abs() < 1e-12);
        let uneven = jain([1.0, 2.0, 3.0]).unwrap_or_default();
        assert!((uneven - 36.0 / 42.0).abs() < 1e-12);
        assert_eq!(jain([]), None);
        assert_eq!(jain([0.0, 0.0]), None);
    }
}
