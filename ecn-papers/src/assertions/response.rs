//! R1 to R9: the response.

use ecn_core::response::Function;
use ecn_report::statistics::Sample;
use ecn_sim::scenario::{Hp, Victim};

use super::{Bench, Claim, Found, Kind, Measured, exact, found, named};
use crate::Figure as F;
use crate::curves::{Curve, RMIN};
use crate::figures::{FLOWS, RESPONSES, SLIDE_BUFFERS, root};
use crate::runs::{Case, Outcome, STOP_MS, Scheme};

/// A function's name as the papers write it.
fn upper(function: Function) -> String {
    function.name().to_uppercase()
}

fn r1(_: &Bench<'_>) -> Found {
    let times = Curve::all().map(|curve| (curve.function, curve.full_increase().0));
    let holds = times.iter().all(|(function, time)| {
        let about = if *function == Function::Fimd {
            2_000.0
        } else {
            65_000.0
        };
        (time / about - 1.0).abs() <= 0.05
    });
    let measured =
        times.map(|(function, time)| exact(format!("{} (packet times)", upper(function)), time));
    found(holds, measured)
}

fn r2(_: &Bench<'_>) -> Found {
    let mut found = Found::default();
    let [_, fimd, aimd] = Curve::all();
    for (name, r) in [("1", 1.0), ("1/2", 0.5), ("1/10", 0.1)] {
        let (fast, slow) = (fimd.measured_recovery(r), aimd.measured_recovery(r));
        found.require(slow >= 10.0 * fast);
        found.value(format!("FIMD, from r = {name} (packet times)"), fast);
        found.value(format!("AIMD, from r = {name}"), slow);
    }
    found
}

fn r3(_: &Bench<'_>) -> Found {
    let [lipd, ..] = Curve::all();
    let decrease = |r: f64| 1.0 - lipd.marked(r) / r;
    let rates = [1.0, 0.5, 0.25, 0.1, 0.05, 1.0 / 64.0];
    let falls = rates
        .windows(2)
        .all(|pair| decrease(pair[0]) > decrease(pair[1]));
    found(
        falls && decrease(1.0) >= 0.49 && decrease(0.05) <= 0.05,
        [
            exact("decrease at r = 1", decrease(1.0)),
            exact("decrease at r = 1/20", decrease(0.05)),
        ],
    )
}

/// Root use by response, over the buffers of slide 15.
fn slide_roots(b: &Bench<'_>, buffer: u32) -> [Sample; 3] {
    RESPONSES.map(|response| {
        let case = Case::fig4(Scheme::Input, buffer, b.lengths.long).response(response);
        b.runs.last(&case, root)
    })
}

/// Buffers at which LIPD and FIMD are not above AIMD by more than chance explains.
fn not_above(all: &[(u32, [Sample; 3])]) -> [Vec<u32>; 2] {
    [0, 1].map(|at| {
        let not = all
            .iter()
            .filter(|(_, roots)| !roots[at].is_above(&roots[2]));
        not.map(|(buffer, _)| *buffer).collect()
    })
}

fn r4(b: &Bench<'_>) -> Found {
    let all: Vec<(u32, [Sample; 3])> = SLIDE_BUFFERS.map(|n| (n, slide_roots(b, n))).collect();
    let [lipd, fimd, aimd] =
        [0, 1, 2].map(|at| Sample::of(all.iter().map(|(_, roots)| roots[at].mean)).mean);
    let mut measured = vec![
        exact("root, LIPD, mean of all buffers", lipd),
        exact("root, FIMD, mean of all buffers", fimd),
        exact("root, AIMD, mean of all buffers", aimd),
    ];
    let [lipd_not, fimd_not] = not_above(&all);
    let closest = all
        .iter()
        .min_by(|a, b| (a.1[1].mean - a.1[2].mean).total_cmp(&(b.1[1].mean - b.1[2].mean)))
        .map(|(buffer, _)| *buffer);
    let mut note = String::new();
    for (buffer, [_, fimd, aimd]) in &all {
        if !fimd_not.contains(buffer) && closest != Some(*buffer) {
            continue;
        }
        measured.push(named(format!("root, FIMD, {buffer} slots"), fimd));
        measured.push(named("AIMD", aimd));
        // Before anything is measured, all are alike, and no other runs are needed.
        if !fimd_not.contains(buffer) || fimd.n == 0 {
            continue;
        }
        // The influence of the victim.
        let [quiet_fimd, quiet_aimd] = [Function::Fimd, Function::Aimd].map(|response| {
            let mut case = Case::fig4(Scheme::Input, *buffer, b.lengths.long);
            case.hp.victim = Victim::Off;
            b.runs.last(&case.response(response), root)
        });
        let order = if aimd.is_above(fimd) {
            "below AIMD"
        } else {
            "not distinguishable from AIMD"
        };
        note += &format!(
            "With {buffer} slots FIMD is {order} ({:.3}, {:.3}); with `victim=off` it is {:.3}, {:.3}. ",
            fimd.mean, aimd.mean, quiet_fimd.mean, quiet_aimd.mean
        );
    }
    note += "The slides do not say whether the victim was on.";
    let known = lipd > aimd
        && fimd > aimd
        && lipd_not.is_empty()
        && fimd_not.iter().all(|buffer| [5, 6].contains(buffer));
    found(known && fimd_not.is_empty(), measured).known(known, note)
}

fn r5(b: &Bench<'_>) -> Found {
    let mut patterns: Vec<(String, [Sample; 3])> = FLOWS
        .iter()
        .map(|&flows| {
            let of = RESPONSES.map(|response| {
                let case = Case::fig4(Scheme::Input, 4, b.lengths.long);
                b.runs.last(&case.flows(flows).response(response), root)
            });
            (format!("{flows} flows"), of)
        })
        .collect();
    patterns.extend([6, 8, 10].map(|n| (format!("{n} slots"), slide_roots(b, n))));
    let highest = patterns
        .iter()
        .all(|(_, [lipd, fimd, aimd])| lipd.mean > fimd.mean && lipd.mean > aimd.mean);
    let adapt = RESPONSES.map(|response| {
        let outcomes = b
            .runs
            .of(&Case::locals_stop(Scheme::Input).response(response));
        Sample::of(outcomes.iter().map(back_after))
    });
    let fastest = adapt[1].mean < adapt[0].mean && adapt[1].mean < adapt[2].mean;
    let mut measured: Vec<Measured> = std::iter::zip(RESPONSES, 0..3)
        .map(|(response, at)| {
            let mean = Sample::of(patterns.iter().map(|(_, roots)| roots[at].mean));
            let name = format!(
                "root, {}, mean of {} patterns",
                upper(response),
                patterns.len()
            );
            exact(name, mean.mean)
        })
        .collect();
    measured.extend(std::iter::zip(RESPONSES, adapt).map(|(response, time)| {
        let name = format!(
            "ms until the root link is 90 % used after the local flows stop, {}",
            upper(response)
        );
        named(name, &time)
    }));
    found(highest && fastest, measured)
}

/// Time from the stop of the local flows until the others use 90 % of the root link, ms; to the end of
/// the run if they do not.
fn back_after(outcome: &Outcome) -> f64 {
    let stop = STOP_MS as f64;
    let mut after = outcome.series.iter().filter(|(at, _)| *at >= stop + 1.0);
    let back = after.clone().find(|(_, shares)| shares.root >= 0.9);
    back.or_else(|| after.next_back())
        .map_or(f64::NAN, |(at, _)| at - stop)
}

fn r7(_: &Bench<'_>) -> Found {
    let mut found = Found::default();
    let hp = Hp::default();
    let packet_ms = f64::from(hp.packet_bytes) / hp.link_rate.bytes_per_s() as f64 * 1e3;
    let published = [(1417, 134.999), (365, 4.235), (32765, 134.999)];
    for (curve, (acks, ms)) in Curve::all().into_iter().zip(published) {
        let name = upper(curve.function);
        let (off, (least, above)) = (curve.largest_error(), curve.avoidance());
        let (time, counted) = curve.full_increase();
        found.require(off <= 1e-6 && least.abs() <= 1e-6 && above < -1e-6 && counted == acks);
        // To the precision of the reference.
        found.require((time * packet_ms - ms).abs() <= 5e-4);
        found.value(format!("{name}: largest relative error"), off);
        found.value(
            format!("{name}: finc(fdec(r))/r - 1 where fdec(r) = Rmin"),
            least,
        );
        found.value(format!("{name}: most of it above"), above);
        found.value(
            format!("{name}: ms from Rmin to Rmax (of {ms})"),
            time * packet_ms,
        );
        found.value(
            format!("{name}: unmarked ACKs from Rmin to Rmax (of {acks})"),
            counted as f64,
        );
    }
    found
}

/// The rates of R8 and R9: a slow and a fast flow.
const TWO: (f64, f64) = (0.05, 0.25);

fn r8(_: &Bench<'_>) -> Found {
    let mut found = Found::default();
    for curve in Curve::all() {
        let (slow, fast) = (
            curve.measured_recovery(TWO.0),
            curve.measured_recovery(TWO.1),
        );
        found.require(match curve.function {
            Function::Aimd => slow < fast,
            _ => (slow / fast - 1.0).abs() <= 1e-6 && (slow * RMIN - 1.0).abs() <= 1e-6,
        });
        let name = upper(curve.function);
        found.value(format!("{name}: r = 1/20 back after (packet times)"), slow);
        found.value(format!("{name}: r = 1/4 back after"), fast);
    }
    found
}

fn r9(_: &Bench<'_>) -> Found {
    // After a mark and a time of 1/Rmin.
    let cycle = |curve: Curve, r: f64| {
        let low = curve.marked(r);
        let (time, rate) = curve
            .walk(low)
            .take_while(|(time, _)| *time <= 1.0 / RMIN)
            .last()
            .unwrap_or((0.0, low));
        let rest = 1.0 / RMIN - time;
        // Finc determines the rate after the last ACK, but not beyond that.
        if rest <= 1.0 / rate + 1e-6 {
            curve.increase(curve.time_of(rate) + rest)
        } else {
            f64::NAN
        }
    };
    let [lipd, fimd, _] = Curve::all();
    let quotient = (cycle(fimd, TWO.0) / cycle(fimd, TWO.1)) / (TWO.0 / TWO.1) - 1.0;
    let difference =
        (1.0 / cycle(lipd, TWO.0) - 1.0 / cycle(lipd, TWO.1)) / (1.0 / TWO.0 - 1.0 / TWO.1) - 1.0;
    found(
        quotient.abs() <= 1e-6 && difference.abs() <= 1e-6,
        [
            exact("FIMD: relative change of r1/r2", quotient),
            exact("LIPD: relative change of 1/r1 - 1/r2", difference),
        ],
    )
}

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        id: "R1",
        kind: Kind::Slides,
        about: &[F::Slide14],
        published: "FIMD reaches Rmax at about 2K packet times, AIMD and LIPD at about 65K",
        band: "within 5 %",
        judge: r1,
    },
    Claim {
        id: "R2",
        kind: Kind::Slides,
        about: &[F::Slide14],
        published: "FIMD recovers rate much faster than AIMD",
        band: "at least 10 times, from r = 1, 1/2 and 1/10",
        judge: r2,
    },
    Claim {
        id: "R3",
        kind: Kind::Slides,
        about: &[F::Slide14],
        published: "LIPD: large decreases at high rate, small ones at low rate",
        band: "1/2 at r = 1, at most 5 % at r = 1/20, falling with r",
        judge: r3,
    },
    Claim {
        id: "R4",
        kind: Kind::Slides,
        about: &[F::Slide15],
        published: "FIMD and LIPD outperform AIMD over buffers of 4 to 11",
        band: "higher root use over all buffers, and at each by more than 2 standard errors",
        judge: r4,
    },
    Claim {
        id: "R5",
        kind: Kind::Notes,
        about: &[F::Slide15],
        published: "over several traffic patterns LIPD gives the highest utilization, FIMD adapts fastest to change",
        band: "strict, in each of 7 patterns; and after the local flows stop",
        judge: r5,
    },
    Claim {
        id: "R6",
        kind: Kind::Slides,
        about: &[F::Fig2],
        published: "remote flows take about 30 % of the inter-switch link without control",
        band: "0.27 to 0.31",
        judge: super::marking::p3,
    },
    Claim {
        id: "R7",
        kind: Kind::Derived,
        about: &[F::Slide14],
        published: "fdec, finc, Finc, Trec and the three conditions are those of the equations",
        band: "1e-6, ACK counts exact, ms to 3 digits",
        judge: r7,
    },
    Claim {
        id: "R8",
        kind: Kind::Derived,
        about: &[F::Slide14],
        published: "after one synchronous mark FIMD and LIPD flows are back at the same time (256), AIMD flows the slower one first",
        band: "1e-6; strict",
        judge: r8,
    },
    Claim {
        id: "R9",
        kind: Kind::Derived,
        about: &[F::Slide14],
        published: "a synchronous decrease and recovery keeps r1/r2 (FIMD) and 1/r1 - 1/r2 (LIPD)",
        band: "1e-6",
        judge: r9,
    },
];
