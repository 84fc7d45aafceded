//! Size distributions of flows.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use ecn_units::{KeywordError, serde_as_text};
use schemars::JsonSchema;

use super::kind::file_of;
use super::table;

/// A distribution of flow sizes.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(inline, rename_all = "kebab-case")]
pub enum Cdf {
    /// Web search (DCTCP, SIGCOMM 2010).
    WebSearch,
    /// Hadoop (Roy et al., SIGCOMM 2015).
    Hadoop,
    /// From a file of points, both numbers ascending, up to 100 percent: CSV (with or without a header
    /// `bytes,percent`), or separated by blanks, as in the traffic generator of HPCC's artifact.
    #[schemars(untagged, title = "file:FILE")]
    File(PathBuf),
}

const CDFS: &[&str] = &["web-search", "hadoop", "file:FILE"];

impl fmt::Display for Cdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WebSearch => f.write_str("web-search"),
            Self::Hadoop => f.write_str("hadoop"),
            Self::File(file) => write!(f, "file:{}", file.display()),
        }
    }
}

impl FromStr for Cdf {
    type Err = KeywordError;

    fn from_str(text: &str) -> Result<Self, KeywordError> {
        Ok(match text {
            "web-search" => Self::WebSearch,
            "hadoop" => Self::Hadoop,
            _ => Self::File(file_of(text).ok_or_else(|| KeywordError::new(text, CDFS))?),
        })
    }
}

serde_as_text!(@serde Cdf);

/// Points of a distribution, bytes and percent, from HPCC's artifact (`docs/sources.md`), with linear interpolation.
const WEB_SEARCH: &[(f64, f64)] = &[
    (0.0, 0.0),
    (10_000.0, 15.0),
    (20_000.0, 20.0),
    (30_000.0, 30.0),
    (50_000.0, 40.0),
    (80_000.0, 53.0),
    (200_000.0, 60.0),
    (1_000_000.0, 70.0),
    (2_000_000.0, 80.0),
    (5_000_000.0, 90.0),
    (10_000_000.0, 97.0),
    (30_000_000.0, 100.0),
];

const HADOOP: &[(f64, f64)] = &[
    (0.0, 0.0),
    (100.0, 1.0),
    (200.0, 2.0),
    (300.0, 5.0),
    (350.0, 15.0),
    (400.0, 20.0),
    (500.0, 30.0),
    (600.0, 40.0),
    (700.0, 50.0),
    (1_000.0, 60.0),
    (2_000.0, 67.0),
    (7_000.0, 70.0),
    (30_000.0, 72.0),
    (50_000.0, 82.0),
    (80_000.0, 87.0),
    (120_000.0, 90.0),
    (300_000.0, 95.0),
    (1_000_000.0, 97.5),
    (2_000_000.0, 99.0),
    (10_000_000.0, 100.0),
];

/// The points of a distribution, after checking them.
pub(super) fn points(cdf: &Cdf) -> Result<Vec<(f64, f64)>, String> {
    let Cdf::File(file) = cdf else {
        let built_in = match cdf {
            Cdf::Hadoop => HADOOP,
            _ => WEB_SEARCH,
        };
        return Ok(built_in.to_vec());
    };
    let mut points = vec![(0.0, 0.0)];
    for (line, [bytes, percent]) in table::points(file, ["bytes", "percent"])? {
        let last = points[points.len() - 1];
        if points.len() == 1 && percent == 0.0 && bytes >= last.0 {
            points[0].0 = bytes;
        } else if bytes < last.0 || percent < last.1 {
            let what = format_args!(
                "not monotone: {bytes} bytes, {percent} percent after {} bytes, {} percent",
                last.0, last.1
            );
            return Err(table::at(line, what));
        } else {
            points.push((bytes, percent));
        }
    }
    match points.last() {
        Some((bytes, 100.0)) if *bytes <= 1e12 => Ok(points),
        _ => Err("the last point must be 100 percent, at 1e12 bytes or less".to_owned()),
    }
}

/// Size at a percentage.
pub(super) fn size_at(points: &[(f64, f64)], percent: f64) -> f64 {
    let after = points.partition_point(|(_, p)| *p < percent).max(1);
    let ((x0, p0), (x1, p1)) = (points[after - 1], points[after.min(points.len() - 1)]);
    if p1 > p0 {
        x0 + (x1 - x0) * (percent - p0) / (p1 - p0)
    } else {
        x1
    }
}

/// Mean size.
pub(super) fn mean(points: &[(f64, f64)]) -> f64 {
    let part =
        |pair: &[(f64, f64)]| (pair[0].0 + pair[1].0) / 2.0 * (pair[1].1 - pair[0].1) / 100.0;
    points.windows(2).map(part).sum()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn sizes_follow_the_points() {
        assert_eq!(size_at(WEB_SEARCH, 53.0), 80_000.0);
        assert_eq!(size_at(WEB_SEARCH, 100.0), 30_000_000.0);
        assert_eq!(size_at(WEB_SEARCH, 0.0), 0.0);
        assert!((size_at(HADOOP, 63.5) - 1_500.0).abs() < 1e-6);
        // By hand, from the points: 1.7 MB and 120 kB.
        assert!(
            (mean(WEB_SEARCH) - 1_711_250.0).abs() < 1.0,
            "{}",
            mean(WEB_SEARCH)
        );
        assert!((mean(HADOOP) - 120_420.75).abs() < 1.0, "{}", mean(HADOOP));
    }

    #[test]
    fn files_are_read_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        for text in [
            "bytes,percent\n1000,50\n3000,100\n",
            "1000, 50\n3000, 100\n",
            "# HPCC's\n0 0\n1000\t50\n3000  100\n",
        ] {
            let cdf = Cdf::File(file("cdf", text));
            assert_eq!(mean(&points(&cdf).unwrap()), 1_250.0, "{text}");
        }
        for (text, needed) in [
            ("bytes,percent\n10,50\n5,100\n", "not monotone"),
            ("bytes,percent\n10,50\n20,40\n", "line 3: not monotone"),
            ("bytes,percent\n10,50\n", "100 percent"),
            ("bytes,percent\nten,50\n", "line 2: `ten`"),
            ("100 0\n10 0\n20 100\n", "line 2: not monotone"),
            ("size,p\n10,50\n", "must be bytes,percent, or numbers"),
            (
                "10 1 0.5\n20 1 1\n",
                "line 1: `10 1 0.5` instead of bytes,percent",
            ),
            ("10 .5\n20 1\n", "100 percent"),
            ("", "100 percent"),
        ] {
            let error = points(&Cdf::File(file("bad", text))).unwrap_err();
            assert!(error.contains(needed), "{error}");
        }
    }
}
