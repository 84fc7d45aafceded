//! T5 to T8: ON and OFF periods of senders that wait for one output.

use ecn_sim::engine::{Time, US};
use ecn_sim::fabric::series::Change;
use ecn_sim::fabric::{Counts, RunError, Scenario};

use super::{Judged, TRACE};
use crate::ReproduceError;
use crate::assertions::Found;
use crate::schemes::Bench;
use crate::schemes::chain::{C, FRAME, FRAME_US, PAUSE, changes, merge, spells};

/// Packets: a pause is sent above XOFF, and withdrawn at XON. Half-way between whole packets, of which queues consist:
/// XOFF is exceeded by the 200th, and XON reached with the 100th.
const XOFF: f64 = 199.5;
const XON: f64 = 100.5;

/// Senders into one output, with links of this delay, that are paused at XOFF up to `xon` packets.
#[derive(Clone, Copy)]
struct Senders {
    number: u32,
    xon: f64,
    delay_us: u32,
    /// Headroom for data that arrives after a pause was sent, bytes.
    headroom: f64,
}

impl Senders {
    fn new(number: u32, xon: f64, delay_us: u32) -> Self {
        // C tau + 2 MTU (T7), if the pause arrives just after the start of a frame.
        let tau = tau(delay_us) + FRAME_US;
        let headroom = C * tau / 1e6 + 2.0 * FRAME;
        Self {
            number,
            xon,
            delay_us,
            headroom,
        }
    }

    fn scenario(&self) -> Result<Scenario, ReproduceError> {
        let xoff = format!("xoff={}B", XOFF * FRAME);
        let gap = format!("xon_gap={}B", (XOFF - self.xon) * FRAME);
        let delay = format!("link_delay={}us", self.delay_us);
        let headroom = format!("headroom={:.0}B", self.headroom.ceil());
        let settings = ["thresholds=static", &xoff, &gap, &delay, &headroom];
        merge(self.number, &settings, 8_000_000 / u64::from(self.number))
    }
}

/// The control loop without the rest of a frame, us: both ways on the link, and the pause.
fn tau(delay_us: u32) -> f64 {
    2.0 * f64::from(delay_us) + PAUSE / C * 1e6
}

/// ON and OFF periods of paused senders.
struct Cycles {
    /// ON, with the frame that a pause does not interrupt, us: mean of all senders' first.
    on: f64,
    /// OFF, without that, us.
    off: f64,
    /// The control loop with the rest of that frame, us.
    tau: f64,
    /// By sender, over all whole cycles: ON fraction, and delivered data as a fraction of what a link can carry.
    shares: Vec<(f64, f64)>,
    /// The shortest ingress queue while all senders alternate between ON and OFF, and the longest one at any time,
    /// bytes.
    queue: (f64, f64),
}

fn cycles(bench: &Bench, senders: &Senders) -> Result<Cycles, ReproduceError> {
    let scenario = senders.scenario()?;
    let topology = scenario.topology()?;
    let counts = bench.run_with(&scenario, 1, &TRACE)?;
    let us = |time: Time| time as f64 / US as f64;
    // The rest of the frame that is in transmission when a pause arrives.
    let rest = |on: f64| (on / FRAME_US).ceil() * FRAME_US - on;
    let mut tau = tau(senders.delay_us);
    let (mut on, mut off) = (0.0, 0.0);
    let (mut shares, mut from, mut last) = (Vec::new(), Vec::new(), Time::MAX);
    let number = f64::from(senders.number);
    for sender in 0..senders.number {
        let all = spells(&counts, sender);
        // In the last cycles, other flows have finished.
        let Some(used) = all.len().checked_sub(3).map(|count| &all[..count]) else {
            continue;
        };
        let [(start, stop), (again, _), ..] = *used else {
            continue;
        };
        let (length, gap) = (us(stop - start), us(again - stop));
        on += (length + rest(length)) / number;
        off += (gap - rest(length)) / number;
        tau += rest(length) / number;
        let whole = &used[..used.len() - 1];
        let end = used[used.len() - 1].0;
        let sum: f64 = whole
            .iter()
            .map(|s| us(s.1 - s.0) + rest(us(s.1 - s.0)))
            .sum();
        let arrived = delivered(&counts, sender, (start, end)) as f64 * FRAME / 1_000.0;
        shares.push((sum / us(end - start), arrived / (us(end - start) * C / 1e6)));
        from.push((sender, start));
        last = last.min(end);
    }
    let mut queue = (f64::INFINITY, 0.0_f64);
    for (sender, start) in from {
        for traced in changes(&counts, topology.peer[sender as usize]) {
            let Change::Holds(bytes) = traced.change else {
                continue;
            };
            queue.1 = queue.1.max(bytes.into());
            if (start..last).contains(&traced.time) {
                queue.0 = queue.0.min(bytes.into());
            }
        }
    }
    Ok(Cycles {
        on,
        off,
        tau,
        shares,
        queue,
    })
}

/// Payload of a sender's only flow that arrived in this time.
fn delivered(counts: &Counts, sender: u32, (from, to): (Time, Time)) -> u64 {
    let Some(series) = &counts.series else {
        return 0;
    };
    let points = (1..).zip(&series.points);
    let within = points.filter(|(number, _)| (from..to).contains(&series.time(*number)));
    within.map(|(_, point)| point.flows[sender as usize]).sum()
}

const SENDERS: [u32; 3] = [2, 3, 4];

pub(super) fn t5(bench: &Bench) -> Judged {
    let mut found = Found::default();
    for (number, xon, delay_us) in [
        (2, 150.5, 1),
        (2, XON, 1),
        (2, 50.5, 1),
        (2, XON, 2),
        (3, XON, 1),
    ] {
        let c = cycles(bench, &Senders::new(number, xon, delay_us))?;
        let drain = C / f64::from(number);
        let moved = (XOFF - xon) * FRAME + C * c.tau / 1e6;
        let (on, off) = (moved / (C - drain) * 1e6, moved / drain * 1e6);
        let off_by = (c.on - on).abs().max((c.off - off).abs());
        // For three senders, the queue falls by one packet in three packet times.
        found.require(number > 2 || off_by <= FRAME_US);
        let name = format!(
            "Rd = C/{number}, B0 {} packets, {delay_us} us links",
            XOFF - xon
        );
        found.value(format!("{name}: T_on, us (formula {on:.2})"), c.on);
        found.value(format!("T_off, us (formula {off:.2})"), c.off);
        found.value("error, MTU times", off_by / FRAME_US);
    }
    Ok(found.noted(
        "Queues consist of whole packets: a pause is sent when one lifts the queue above Xoff, and withdrawn when one leaves it at or \
         below Xon. So all thresholds within a packet are equivalent, and B0 is known to within a packet, which is 2 MTU times of \
         T_on at C/2; here both are half-way between whole packets. Senders into one output, whose ingress queues drain \
         alike: each one's first cycle, as more than two get out of step later. Two are judged. With three the queue falls in \
         steps of 3 MTU times, so one MTU time cannot be resolved; reported.",
    ))
}

pub(super) fn t6(bench: &Bench) -> Judged {
    let mut found = Found::default();
    for number in SENDERS {
        let c = cycles(bench, &Senders::new(number, XON, 1))?;
        let senders = f64::from(number);
        let mean =
            |value: fn(&(f64, f64)) -> f64| c.shares.iter().map(value).sum::<f64>() / senders;
        let on = mean(|share| share.0);
        // A sender without complete cycles counts as 0.
        found.require((on * senders - 1.0).abs() <= 0.01);
        let carried = mean(|share| share.1) * senders;
        found.value(
            format!("mean ON fraction of {number} senders (1/{number}; the output is used to {carried:.4})"),
            on,
        );
        let off = |(share, drain): &(f64, f64)| (share / drain - 1.0).abs();
        let most = c.shares.iter().map(off).fold(0.0, f64::max);
        found.value(
            "largest relative difference of an ON fraction from what its sender delivered",
            most,
        );
    }
    Ok(found)
}

pub(super) fn t7(bench: &Bench) -> Judged {
    let mut found = Found::default();
    let mut used = 0.0_f64;
    for number in SENDERS {
        let c = cycles(bench, &Senders::new(number, XON, 1))?;
        // Drain rate of one queue while another is paused: for two in phase, a half; for more, any rate.
        let (low, high) = if number == 2 { (0.5, 0.5) } else { (0.0, 1.0) };
        let flight = C * c.tau / 1e6;
        let least = XON * FRAME - high * flight;
        let most = XOFF * FRAME + (1.0 - low) * flight;
        let (shortest, longest) = c.queue;
        found.require(shortest >= least - FRAME && longest <= most + FRAME);
        // Whole packets below Xoff are not in the headroom.
        used = used.max(longest - XOFF.floor() * FRAME);
        let drain = if number == 2 { "Rd = C/2" } else { "any Rd" };
        found.value(
            format!("{number} senders: shortest queue, bytes (bound, {drain}: {least:.0})"),
            shortest,
        );
        found.value(format!("longest, bytes (bound {most:.0})"), longest);
    }
    let whole = Senders::new(4, XON, 1);
    let half = Senders {
        headroom: whole.headroom / 2.0,
        ..whole
    };
    // Either rejected before the start, or stopped by a packet that does not fit.
    let fails = match bench.run_with(&half.scenario()?, 1, &TRACE) {
        Err(ReproduceError::Fabric(RunError::Value(error))) => error.key == "headroom",
        Err(ReproduceError::Fabric(RunError::Invariant { .. })) => true,
        Err(other) => return Err(other),
        Ok(_) => false,
    };
    found.require(fails && (half.headroom..=whole.headroom).contains(&used));
    found.value(
        format!(
            "most of a headroom of {:.0} that is used, bytes",
            whole.headroom
        ),
        used,
    );
    found.value(
        format!(
            "runs with {:.0} that are refused or lose a packet",
            half.headroom
        ),
        u32::from(fails),
    );
    Ok(found.noted(
        "Each ingress queue after each event, from the start on; the shortest from the first pause to the last while all send. More \
         than two senders get out of step: what one sends then waits behind what others have sent, and its queue drains not at \
         all for a time and alone for another, so that the bounds are those of Rd = 0 and Rd = C.",
    ))
}

pub(super) fn t8(bench: &Bench) -> Judged {
    let mut found = Found::default();
    let period = 10.0;
    for senders in SENDERS {
        let scenario = merge(
            senders,
            &["flow_control=cbfc", "buffer=200kB", "credit_period=10us"],
            1_000_000,
        )?;
        let counts = bench.run_with(&scenario, 1, &TRACE)?;
        let all = spells(&counts, 0);
        // All senders are active until the end of the first flow.
        let end = counts
            .finished
            .iter()
            .map(|flow| flow.start + flow.time)
            .min()
            .unwrap_or(0);
        let lengths: Vec<f64> = all
            .iter()
            .filter(|s| s.1 < end)
            .map(|s| (s.1 - s.0) as f64 / US as f64)
            .collect();
        let longest = lengths.iter().copied().fold(0.0, f64::max);
        let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
        found.require(lengths.len() >= 10 && longest <= period);
        found.value(
            format!(
                "longest of {} ON at Rd = C/{senders}, us (Tc {period})",
                lengths.len()
            ),
            longest,
        );
        found.value(
            format!("mean, us (Tc Rd/C = {:.2})", period / f64::from(senders)),
            mean,
        );
    }
    Ok(found)
}
