//! R1 to R9: the response.

use ecn_core::response::Function;
use ecn_report::statistics::Sample;
use ecn_sim::scenario::{Hp, Victim};

use super::{Bench, Claim};
use crate::Figure as F;
use crate::curves::{Curve, RMIN};
use crate::figures::{FLOWS, RESPONSES, SLIDE_BUFFERS, root, upper};
use crate::runs::{Case, Outcome, STOP_MS, Scheme};
use crate::statement::{Found, Kind};

fn r1(_: &Bench<'_>, found: &mut Found) {
    for curve in Curve::all() {
        let (time, _) = curve.full_increase();
        let about = match curve.function {
            Function::Fimd => 2_000.0,
            _ => 65_000.0,
        };
        found.require((time / about - 1.0).abs() <= 0.05);
        let name = format!("{} (packet times)", upper(curve.function));
        found.value(name, time);
    }
}

fn r2(_: &Bench<'_>, found: &mut Found) {
    let [_, fimd, aimd] = Curve::all();
    for (name, r) in [("1", 1.0), ("1/2", 0.5), ("1/10", 0.1)] {
        let (fast, slow) = (fimd.measured_recovery(r), aimd.measured_recovery(r));
        found.require(slow >= 10.0 * fast);
        found.value(format!("FIMD, from r = {name} (packet times)"), fast);
        found.value(format!("AIMD, from r = {name}"), slow);
    }
}

fn r3(_: &Bench<'_>, found: &mut Found) {
    let [lipd, ..] = Curve::all();
    let decrease = |r: f64| 1.0 - lipd.marked(r) / r;
    let decreases = [1.0, 0.5, 0.25, 0.1, 0.05, 1.0 / 64.0].map(decrease);
    let falls = decreases.windows(2).all(|pair| pair[0] > pair[1]);
    found.require(falls && decrease(1.0) >= 0.49 && decrease(0.05) <= 0.05);
    found.value("decrease at r = 1", decrease(1.0));
    found.value("decrease at r = 1/20", decrease(0.05));
}

/// Root use by response, with a buffer of slide 15.
fn slide_roots(b: &Bench<'_>, buffer: u32) -> [Sample; 3] {
    RESPONSES.map(|response| {
        let case = Case::fig4(Scheme::Input, buffer, b.lengths.long).response(response);
        b.runs.last(&case, root)
    })
}

fn r4(b: &Bench<'_>, found: &mut Found) {
    let all: Vec<(u32, [Sample; 3])> = SLIDE_BUFFERS.map(|n| (n, slide_roots(b, n))).collect();
    let means = [0, 1, 2].map(|at| Sample::of(all.iter().map(|(_, roots)| roots[at].mean)).mean);
    for (response, mean) in RESPONSES.into_iter().zip(means) {
        let name = format!("root, {}, mean of all buffers", upper(response));
        found.value(name, mean);
    }
    let lipd_above = all.iter().all(|(_, [lipd, _, aimd])| lipd.is_above(aimd));
    // Where FIMD is not above AIMD by more than chance explains.
    let misses: Vec<u32> = (all.iter())
        .filter(|(_, [_, fimd, aimd])| !fimd.is_above(aimd))
        .map(|(buffer, _)| *buffer)
        .collect();
    let distance = |[_, fimd, aimd]: &[Sample; 3]| fimd.mean - aimd.mean;
    let closest = all
        .iter()
        .min_by(|a, b| distance(&a.1).total_cmp(&distance(&b.1)))
        .map(|(buffer, _)| *buffer);
    let mut note = String::new();
    for (buffer, [_, fimd, aimd]) in &all {
        let is_miss = misses.contains(buffer);
        if is_miss || closest == Some(*buffer) {
            found.sample(format!("root, FIMD, {buffer} slots"), fimd);
            found.sample("AIMD", aimd);
        }
        // Before anything is measured, all are alike, and no other runs are needed.
        if !is_miss || fimd.n == 0 {
            continue;
        }
        let [quiet_fimd, quiet_aimd] = [Function::Fimd, Function::Aimd].map(|response| {
            let case = Case::fig4(Scheme::Input, *buffer, b.lengths.long).response(response);
            b.runs.last(&case.with(|c| c.hp.victim = Victim::Off), root)
        });
        let order = match aimd.is_above(fimd) {
            true => "below AIMD",
            false => "not distinguishable from AIMD",
        };
        note += &format!(
            "With {buffer} slots FIMD is {order} ({:.3}, {:.3}); with `victim=off` it is {:.3}, {:.3}. ",
            fimd.mean, aimd.mean, quiet_fimd.mean, quiet_aimd.mean
        );
    }
    note += "The slides do not say whether the victim was on.";
    let [lipd, fimd, aimd] = means;
    let known = lipd > aimd
        && fimd > aimd
        && lipd_above
        && misses.iter().all(|buffer| [5, 6].contains(buffer));
    found.require(known && misses.is_empty());
    found.explain(known, note);
}

fn r5(b: &Bench<'_>, found: &mut Found) {
    let by_flows = FLOWS.map(|flows| {
        RESPONSES.map(|response| {
            let case = Case::fig4(Scheme::Input, 4, b.lengths.long);
            b.runs.last(&case.flows(flows).response(response), root)
        })
    });
    let by_buffer = [6, 8, 10].map(|buffer| slide_roots(b, buffer));
    let patterns = [&by_flows[..], &by_buffer].concat();
    let highest = patterns
        .iter()
        .all(|[lipd, fimd, aimd]| lipd.mean > fimd.mean && lipd.mean > aimd.mean);
    for (at, response) in RESPONSES.into_iter().enumerate() {
        let mean = Sample::of(patterns.iter().map(|roots| roots[at].mean)).mean;
        let name = format!(
            "root, {}, mean of {} patterns",
            upper(response),
            patterns.len()
        );
        found.value(name, mean);
    }
    let adapt = RESPONSES.map(|response| {
        let case = Case::locals_stop(Scheme::Input).response(response);
        Sample::of(b.runs.of(&case).iter().map(back_after))
    });
    for (response, time) in RESPONSES.into_iter().zip(&adapt) {
        let name = format!(
            "ms until the root link is 90 % used after the local flows stop, {}",
            upper(response)
        );
        found.sample(name, time);
    }
    let [lipd, fimd, aimd] = adapt.map(|time| time.mean);
    found.require(highest && fimd < lipd && fimd < aimd);
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

fn r7(_: &Bench<'_>, found: &mut Found) {
    let hp = Hp::default();
    let packet_ms = f64::from(hp.packet_bytes) / hp.link_rate.bytes_per_s() as f64 * 1e3;
    let published = [(1417, 134.999), (365, 4.235), (32765, 134.999)];
    for (curve, (acks, ms)) in Curve::all().into_iter().zip(published) {
        let (off, (least, above)) = (curve.largest_error(), curve.avoidance());
        let (time, counted) = curve.full_increase();
        let time_ms = time * packet_ms;
        found.require(off <= 1e-6 && least.abs() <= 1e-6 && above < -1e-6 && counted == acks);
        // To the precision of the reference.
        found.require((time_ms - ms).abs() <= 5e-4);
        let name = upper(curve.function);
        found.value(format!("{name}: largest relative error"), off);
        let at_least = format!("{name}: finc(fdec(r))/r - 1 where fdec(r) = Rmin");
        found.value(at_least, least);
        found.value(format!("{name}: most of it above"), above);
        found.value(format!("{name}: ms from Rmin to Rmax (of {ms})"), time_ms);
        let all = format!("{name}: unmarked ACKs from Rmin to Rmax (of {acks})");
        found.value(all, counted as f64);
    }
}

/// The rates of R8 and R9: a slow and a fast flow.
const TWO: (f64, f64) = (0.05, 0.25);

fn r8(_: &Bench<'_>, found: &mut Found) {
    for curve in Curve::all() {
        let slow = curve.measured_recovery(TWO.0);
        let fast = curve.measured_recovery(TWO.1);
        found.require(match curve.function {
            Function::Aimd => slow < fast,
            _ => (slow / fast - 1.0).abs() <= 1e-6 && (slow * RMIN - 1.0).abs() <= 1e-6,
        });
        let name = upper(curve.function);
        found.value(format!("{name}: r = 1/20 back after (packet times)"), slow);
        found.value(format!("{name}: r = 1/4 back after"), fast);
    }
}

fn r9(_: &Bench<'_>, found: &mut Found) {
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
    found.require(quotient.abs() <= 1e-6 && difference.abs() <= 1e-6);
    found.value("FIMD: relative change of r1/r2", quotient);
    found.value("LIPD: relative change of 1/r1 - 1/r2", difference);
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
