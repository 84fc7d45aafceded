//! T5 to T8: ON and OFF periods of senders that wait for one output.

use ecn_sim::engine::{Time, US};
use ecn_sim::fabric::series::Change;
use ecn_sim::fabric::{Counts, RunError, Scenario};

use crate::ReproduceError;
use crate::schemes::chain::{C, FRAME, FRAME_US, PAUSE, changes, incast, on_periods};
use crate::schemes::{Bench, Judged};
use crate::statement::Found;

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
        let settings = format!(
            "thresholds=static xoff={}B xon_gap={}B link_delay={}us headroom={:.0}B",
            XOFF * FRAME,
            (XOFF - self.xon) * FRAME,
            self.delay_us,
            self.headroom.ceil()
        );
        incast(self.number, &settings, 8_000_000 / u64::from(self.number))
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

fn us(time: Time) -> f64 {
    time as f64 / US as f64
}

fn cycles(bench: &Bench, senders: &Senders) -> Result<Cycles, ReproduceError> {
    let scenario = senders.scenario()?;
    let topology = scenario.topology()?;
    let counts = bench.traced(&scenario)?;
    // The rest of the frame that is in transmission when a pause arrives.
    let rest = |on: f64| (on / FRAME_US).ceil() * FRAME_US - on;
    let number = f64::from(senders.number);
    let mut cycles = Cycles {
        on: 0.0,
        off: 0.0,
        tau: tau(senders.delay_us),
        shares: Vec::new(),
        queue: (f64::INFINITY, 0.0),
    };
    let (mut starts, mut last) = (Vec::new(), Time::MAX);
    for sender in 0..senders.number {
        let periods = on_periods(&counts, sender);
        // In the last cycles, other flows have finished.
        let used = &periods[..periods.len().saturating_sub(3)];
        let ([(start, stop), (again, _), ..], [whole @ .., (end, _)]) = (used, used) else {
            continue;
        };
        let (length, gap) = (us(stop - start), us(again - stop));
        cycles.on += (length + rest(length)) / number;
        cycles.off += (gap - rest(length)) / number;
        cycles.tau += rest(length) / number;
        let lengths = whole.iter().map(|(on, off)| us(off - on));
        let sum: f64 = lengths.map(|length| length + rest(length)).sum();
        let time = us(end - start);
        let arrived = delivered(&counts, sender, (*start, *end)) as f64 * FRAME / 1_000.0;
        let shares = (sum / time, arrived / (time * C / 1e6));
        cycles.shares.push(shares);
        starts.push((sender, *start));
        last = last.min(*end);
    }
    let (shortest, longest) = (&mut cycles.queue.0, &mut cycles.queue.1);
    for (sender, start) in starts {
        for traced in changes(&counts, topology.peer[sender as usize]) {
            if let Change::Holds(bytes) = traced.change {
                *longest = longest.max(bytes.into());
                if (start..last).contains(&traced.time) {
                    *shortest = shortest.min(bytes.into());
                }
            }
        }
    }
    Ok(cycles)
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

pub(super) fn t5(bench: &Bench, found: &mut Found) -> Judged {
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
    found.note = "Queues consist of whole packets: a pause is sent when one lifts the queue above \
        Xoff, and withdrawn when one leaves it at or below Xon. So all thresholds within a \
        packet are equivalent, and B0 is known to within a packet, which is 2 MTU times of \
        T_on at C/2; here both are half-way between whole packets. Senders into one output, \
        whose ingress queues drain alike: each one's first cycle, as more than two get out \
        of step later. Two are judged. With three the queue falls in steps of 3 MTU times, \
        so one MTU time cannot be resolved; reported."
        .to_owned();
    Ok(())
}

pub(super) fn t6(bench: &Bench, found: &mut Found) -> Judged {
    for number in SENDERS {
        let c = cycles(bench, &Senders::new(number, XON, 1))?;
        let senders = f64::from(number);
        let mean =
            |value: fn(&(f64, f64)) -> f64| c.shares.iter().map(value).sum::<f64>() / senders;
        let on = mean(|share| share.0);
        // A sender without complete cycles counts as 0.
        found.require((on * senders - 1.0).abs() <= 0.01);
        let carried = mean(|share| share.1) * senders;
        let name = format!(
            "mean ON fraction of {number} senders (1/{number}; the output is used to {carried:.4})"
        );
        found.value(name, on);
        let off = |(share, drain): &(f64, f64)| (share / drain - 1.0).abs();
        let most = c.shares.iter().map(off).fold(0.0, f64::max);
        let name = "largest relative difference of an ON fraction from what its sender delivered";
        found.value(name, most);
    }
    Ok(())
}

pub(super) fn t7(bench: &Bench, found: &mut Found) -> Judged {
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
        let name = format!("{number} senders: shortest queue, bytes (bound, {drain}: {least:.0})");
        found.value(name, shortest);
        found.value(format!("longest, bytes (bound {most:.0})"), longest);
    }
    let whole = Senders::new(4, XON, 1);
    let half = Senders {
        headroom: whole.headroom / 2.0,
        ..whole
    };
    // Either rejected before the start, or stopped by a packet that does not fit.
    let fails = match bench.traced(&half.scenario()?) {
        Err(ReproduceError::Fabric(RunError::Value(error))) => error.key == "headroom",
        Err(ReproduceError::Fabric(RunError::Invariant { .. })) => true,
        Err(other) => return Err(other),
        Ok(_) => false,
    };
    found.require(fails && (half.headroom..=whole.headroom).contains(&used));
    let name = format!(
        "most of a headroom of {:.0} that is used, bytes",
        whole.headroom
    );
    found.value(name, used);
    let name = format!(
        "runs with {:.0} that are refused or lose a packet",
        half.headroom
    );
    found.value(name, u8::from(fails));
    found.note =
        "Each ingress queue after each event, from the start on; the shortest from the first \
        pause to the last while all send. More than two senders get out of step: what one \
        sends then waits behind what others have sent, and its queue drains not at all for a \
        time and alone for another, so that the bounds are those of Rd = 0 and Rd = C."
            .to_owned();
    Ok(())
}

pub(super) fn t8(bench: &Bench, found: &mut Found) -> Judged {
    let period = 10.0;
    for senders in SENDERS {
        let settings = "flow_control=cbfc buffer=200kB credit_period=10us";
        let counts = bench.traced(&incast(senders, settings, 1_000_000)?)?;
        // All senders are active until the end of the first flow.
        let ends = counts.finished.iter().map(|flow| flow.start + flow.time);
        let end = ends.min().unwrap_or(0);
        let lengths: Vec<f64> = on_periods(&counts, 0)
            .into_iter()
            .filter(|(_, off)| *off < end)
            .map(|(on, off)| us(off - on))
            .collect();
        let count = lengths.len();
        let longest = lengths.iter().copied().fold(0.0, f64::max);
        let mean = lengths.iter().sum::<f64>() / count as f64;
        found.require(count >= 10 && longest <= period);
        let name = format!("longest of {count} ON at Rd = C/{senders}, us (Tc {period})");
        found.value(name, longest);
        let expected = period / f64::from(senders);
        found.value(format!("mean, us (Tc Rd/C = {expected:.2})"), mean);
    }
    Ok(())
}
