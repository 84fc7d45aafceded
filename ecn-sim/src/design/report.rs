//! Properties of a design: the three conditions, recovery times, and the curves of slide 14.

use ecn_core::fixed::ONE;
use ecn_report::figure::{Line, LineFigure, Panel};
use ecn_units::Fraction;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Design, Fit, Table};

/// Decrease factor of FIMD and AIMD, which are shown with the design (slide 14).
const M: f64 = 2.0;
/// Number of rates at which the conditions are checked.
const CHECKS: i32 = 1_000;
/// Tolerance of a condition, as a fraction: above the rounding errors of levels.
const TOLERANCE: f64 = 1e-6;
/// Rates at which recovery from a mark is shown.
const MARKED_AT: [f64; 7] = [1.0, 0.5, 0.25, 0.1, 1.0 / 20.0, 1.0 / 64.0, 1.0 / 128.0];

/// A condition on the increase function (slides 9 to 12), checked from Rmin to Rmax.
#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize)]
pub struct Condition {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub statement: &'static str,
    /// Whether it holds, within a millionth.
    pub holds: bool,
    /// By how much it is missed at worst, as a fraction of the right side; fulfilled with room to
    /// spare if negative.
    pub worst_excess: f64,
    /// The rate where that is.
    pub at_rate: f64,
}

/// One mark, and the time until the rate is what it was.
#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize)]
pub struct Recovery {
    /// The rate before the mark.
    pub rate: f64,
    /// The rate after it.
    pub marked_rate: f64,
    /// The time from there back to the rate before.
    pub recovery_packet_times: f64,
}

/// A response function as a whole.
#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize)]
pub struct Curve {
    /// `design`, `lipd`, `fimd` or `aimd`.
    pub name: &'static str,
    /// Time from Rmin to Rmax without a mark.
    pub rmin_to_rmax_packet_times: f64,
    /// Unmarked ACKs that this takes. The design's are counted with its table.
    pub rmin_to_rmax_acks: u64,
    /// Recovery from one mark at several rates, the same for all curves.
    pub recovery: Vec<Recovery>,
}

impl Curve {
    fn of(
        name: &'static str,
        rmin: f64,
        acks: u64,
        decrease: impl Fn(f64) -> f64,
        time_to: impl Fn(f64) -> f64,
    ) -> Self {
        let recovery = |rate| {
            let marked_rate = decrease(rate).max(rmin);
            Recovery {
                rate,
                marked_rate,
                recovery_packet_times: time_to(rate) - time_to(marked_rate),
            }
        };
        Self {
            name,
            rmin_to_rmax_packet_times: time_to(1.0),
            rmin_to_rmax_acks: acks,
            recovery: MARKED_AT
                .into_iter()
                .filter(|rate| *rate > rmin)
                .map(recovery)
                .collect(),
        }
    }
}

/// What `ecn design` found. Rates are fractions of Rmax.
#[derive(Debug, Clone, PartialEq, JsonSchema, Serialize)]
pub struct Report {
    /// The decrease function.
    pub decrease: String,
    /// The rate floor.
    pub rmin: Fraction,
    /// Trec = 1/Rmin.
    pub trec_packet_times: f64,
    /// [`Design::shape_error`], in units of Trec.
    pub shape_error_trec: f64,
    /// The three conditions.
    pub conditions: [Condition; 3],
    /// The design, and LIPD, FIMD and AIMD with the same Rmin and m = 2.
    pub curves: Vec<Curve>,
    /// Points of the table.
    pub table_points: usize,
    /// How exact the table is.
    pub table_fit: Fit,
    /// The first condition for the table, in fixed point.
    pub table_avoidance_excess: f64,
}

/// LIPD, FIMD and AIMD in closed form (hp-response, section 5); AIMD's linear increase is imposed.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Closed {
    Lipd,
    Fimd,
    Aimd,
}

impl Closed {
    const ALL: [Self; 3] = [Self::Lipd, Self::Fimd, Self::Aimd];

    fn name(self) -> &'static str {
        match self {
            Self::Lipd => "lipd",
            Self::Fimd => "fimd",
            Self::Aimd => "aimd",
        }
    }

    fn decrease(self, r: f64) -> f64 {
        match self {
            Self::Lipd => r / (1.0 + r),
            Self::Fimd | Self::Aimd => r / M,
        }
    }

    /// Finc⁻¹(r) in packet times.
    fn time_to(self, r: f64, rmin: f64) -> f64 {
        match self {
            Self::Lipd => (1.0 / rmin - 1.0 / r) / rmin,
            Self::Fimd => (r / rmin).ln() / M.ln() / rmin,
            Self::Aimd => (r - rmin) / ((M - 1.0) * rmin * rmin),
        }
    }

    /// Finc(t), at most 1.
    fn rate_after(self, t: f64, rmin: f64) -> f64 {
        let rate = match self {
            // The delay decreases linearly to 1.
            Self::Lipd => 1.0 / (1.0 / rmin - rmin * t).max(1.0),
            Self::Fimd => rmin * M.powf(rmin * t),
            Self::Aimd => rmin + (M - 1.0) * rmin * rmin * t,
        };
        rate.min(1.0)
    }

    /// Number of unmarked ACKs from Rmin to 1.
    fn acks(self, rmin: f64) -> u64 {
        let mut acks = 0;
        match self {
            Self::Lipd => return (rmin.ln() / (-rmin).ln_1p() - 1e-9).ceil() as u64,
            Self::Fimd => {
                let mut r = rmin;
                while r < 1.0 {
                    r *= M.powf(rmin / r);
                    acks += 1;
                }
            }
            Self::Aimd => {
                // In s = r²/((m - 1) Rmin²), an ACK maps s to s + 2 + 1/s, and far from 0 the number of ACKs up to s is
                // n(s) = s/2 - ln(s)/4 + 1/(8 s) + ... (see `ecn_core::response::unmarked`).
                let gain = (M - 1.0) * rmin * rmin;
                let (mut s, end) = (rmin * rmin / gain, 1.0 / gain);
                while s < end && acks < 1000 {
                    s += 2.0 + 1.0 / s;
                    acks += 1;
                }
                if s < end {
                    let n = |s: f64| s / 2.0 - s.ln() / 4.0 + 1.0 / (8.0 * s);
                    acks += (n(end) - n(s)).ceil() as u64;
                }
            }
        }
        acks
    }
}

impl Report {
    /// Checks and measures a design and its table.
    pub fn of(design: &Design, table: &Table, table_fit: Fit) -> Self {
        let rmin = design.rmin().as_f64();
        let mut curves = vec![Curve::of(
            "design",
            rmin,
            table.acks(),
            |r| design.decrease(r),
            |r| design.time_to(r),
        )];
        curves.extend(Closed::ALL.map(|closed| {
            let time_to = |r| closed.time_to(r, rmin);
            Curve::of(
                closed.name(),
                rmin,
                closed.acks(rmin),
                |r| closed.decrease(r),
                time_to,
            )
        }));
        Self {
            decrease: design.decrease_text().to_owned(),
            rmin: design.rmin(),
            trec_packet_times: design.recovery_time(),
            shape_error_trec: design.shape_error(),
            conditions: conditions(design),
            curves,
            table_points: table.points(),
            table_avoidance_excess: avoidance_excess(table),
            table_fit,
        }
    }
}

/// Checks the three conditions at rates from the lowest one whose decrease is not below Rmin. Solutions of the
/// functional equation fulfil them, so any excess is an error of the numerical solution.
fn conditions(design: &Design) -> [Condition; 3] {
    let rmin = design.rmin().as_f64();
    let first = design.rate_after(design.recovery_time());
    let rates: Vec<f64> = (0..=CHECKS)
        .map(|i| first.powf(f64::from(CHECKS - i) / f64::from(CHECKS)))
        .collect();
    let worst = |name, statement, excess: &mut dyn FnMut(f64) -> f64| {
        let (worst_excess, at_rate) = rates
            .iter()
            .map(|r| (excess(*r), *r))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .unwrap_or((f64::NAN, first));
        Condition {
            name,
            statement,
            holds: worst_excess <= TOLERANCE,
            worst_excess,
            at_rate,
        }
    };
    let lowered = |r| design.decrease(r).max(rmin);
    // In units of Trec.
    let recovery = |r| (design.time_to(r) - design.time_to(lowered(r))) * rmin;
    let mut longest = 0.0_f64;
    [
        worst(
            "congestion avoidance",
            "finc(fdec(r)) <= r where fdec(r) >= Rmin",
            &mut |r| design.increase(lowered(r)) / r - 1.0,
        ),
        worst(
            "fairness convergence",
            "Trec(r1) <= Trec(r2) for r1 < r2",
            &mut |r| {
                let time = recovery(r);
                let excess = longest - time;
                longest = longest.max(time);
                excess
            },
        ),
        worst("maximum utilisation", "Trec(r) = 1/Rmin", &mut |r| {
            (recovery(r) - 1.0).abs()
        }),
    ]
}

/// Maximum excess of finc(fdec(r)) over r with a table, as a fraction of r, where fdec(r) is above Rmin.
fn avoidance_excess(table: &Table) -> f64 {
    let unit = ONE as f64;
    let largest = table.marked(u64::MAX);
    (0..=CHECKS)
        .map(|i| {
            let low = table.rmin().as_f64();
            (low.powf(-f64::from(i) / f64::from(CHECKS)) * unit) as u64
        })
        .filter(|ipd| table.marked(*ipd) < largest)
        .map(|ipd| ipd as f64 / table.unmarked(table.marked(ipd)) as f64 - 1.0)
        .fold(f64::NEG_INFINITY, f64::max)
}

/// Slide 14: rate over time without marks, starting at Rmin, compared with LIPD, FIMD and AIMD.
pub fn figure(design: &Design) -> String {
    const POINTS: u32 = 2_000;
    let rmin = design.rmin().as_f64();
    let own = design.time_to(1.0);
    let end = Closed::ALL
        .iter()
        .map(|closed| closed.time_to(1.0, rmin))
        .fold(own, f64::max);
    let points = |rate: &dyn Fn(f64) -> f64| {
        (0..=POINTS)
            .map(|i| end * f64::from(i) / f64::from(POINTS))
            .map(|t| (t, rate(t)))
            .collect()
    };
    let text = design.decrease_text();
    let mut lines = vec![Line {
        label: "design".to_owned(),
        points: points(&|t| design.rate_after(t)),
        look: 4,
        ..Line::default()
    }];
    for (look, closed) in Closed::ALL.into_iter().enumerate() {
        lines.push(Line {
            label: closed.name().to_uppercase(),
            points: points(&|t| closed.rate_after(t, rmin)),
            look: look + 1,
            ..Line::default()
        });
    }
    LineFigure {
        title: format!("Increase after fdec(r) = {text}, Rmin = {}", design.rmin()),
        x_label: "time without a mark (packet times at Rmax)".to_owned(),
        y_label: "rate / Rmax".to_owned(),
        y_at_least: 1.0,
        panels: vec![Panel {
            title: format!("fdec(r) = {text}"),
            note: format!("Rmin = {}; m = 2", design.rmin()),
            lines,
        }],
        ..LineFigure::default()
    }
    .to_svg()
}
