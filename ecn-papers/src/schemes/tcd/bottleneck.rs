//! T2, T10 and T12: the state of a port after its pauses.

use ecn_core::tcd::{Mark, State};
use ecn_sim::engine::{MS, Time, US};
use ecn_sim::fabric::measure::Finished;
use ecn_sim::fabric::parameters::FlowControl;
use ecn_sim::fabric::series::{Change, Traced};
use ecn_sim::fabric::{Counts, Kind, Scenario};

use super::flips;
use crate::ReproduceError;
use crate::schemes::chain::{
    Burst, C, FLOW, FRAME, ONCE, PAUSE, PFC, chain, changes, periodic, ports,
};
use crate::schemes::{Bench, Judged, flow, scenario};
use crate::statement::Found;

/// The lowest congestion degree to be detected, by default.
const EPSILON: f64 = 0.05;

/// max(T_on) by the formula in `docs/sources.md` for a scenario at 40 Gb/s, us, regardless of the value that its ports
/// use.
fn max_on(scenario: &Scenario, epsilon: f64) -> f64 {
    let parameters = &scenario.parameters;
    if parameters.flow_control == FlowControl::Cbfc {
        return parameters.credit_period.as_nanos() as f64 / 1e3;
    }
    // In both directions: a frame that delays the pause, the pause itself, and the first frame of data.
    let delay = parameters.link_delay.as_nanos() as f64 / 1e3;
    let tau = 2.0 * delay + (2.0 * FRAME + PAUSE) / C * 1e6;
    (1.0 + epsilon) / epsilon * (scenario.xon_gap() as f64 / C * 1e6 + tau)
}

fn rtt(scenario: &Scenario) -> f64 {
    scenario.network(3, 2).idle_rtt as f64 / US as f64
}

/// Time since another, us; infinite if one of them is unknown.
fn since(earlier: Option<Time>, time: Option<Time>) -> f64 {
    let both = earlier.zip(time);
    both.map_or(f64::INFINITY, |(earlier, time)| {
        (time as f64 - earlier as f64) / US as f64
    })
}

/// CE that flows across a port get.
#[derive(Debug)]
struct Marks {
    /// How many flows there are, and how many get CE.
    flows: u32,
    congested: u32,
    /// Until the last of these has its first CE, at its receiver, us; and the most that this may take.
    received: f64,
    bound: f64,
}

impl Marks {
    /// CE that some flows get from `counted_from` on; times are since `start`.
    fn of(
        flows: impl Fn(&Finished) -> bool,
        counts: &Counts,
        counted_from: Time,
        start: Option<Time>,
        bound: f64,
    ) -> Self {
        let first = |flow: &&Finished| {
            let mut at_host = changes(counts, flow.to).filter(|t| t.time >= counted_from);
            let is_ce =
                |change| matches!(change, Change::Mark(Mark::Congestion, id, _) if id == flow.id);
            at_host.find(|t| is_ce(t.change)).map(|t| t.time)
        };
        let flows: Vec<&Finished> = counts.finished.iter().filter(|flow| flows(flow)).collect();
        let times: Vec<Time> = flows.iter().filter_map(first).collect();
        Self {
            flows: flows.len() as u32,
            congested: times.len() as u32,
            received: since(start, times.into_iter().max()),
            bound,
        }
    }

    fn all_congested(&self) -> bool {
        self.flows > 0 && self.congested == self.flows
    }

    fn hold(&self) -> bool {
        self.all_congested() && self.received <= self.bound
    }
}

/// What happens at a port that is never paused: P3.
#[derive(Debug)]
struct NeverPaused {
    /// From when a queue is seen above the threshold, within an RTT.
    marks: Marks,
    /// From then until the port counts as congested, us.
    state: f64,
    /// The queue may have been above it for up to this time, us.
    step: f64,
}

impl NeverPaused {
    fn holds(&self) -> bool {
        self.marks.hold() && (-self.step..=1.0).contains(&self.state)
    }
}

fn never_paused(bench: &Bench, settings: &str) -> Result<NeverPaused, ReproduceError> {
    /// Few senders, so that the queue takes 3 us to reach the threshold.
    const FEW: Burst = Burst {
        senders: 3,
        bytes: 640_000,
        flow: 640_000,
    };
    let chain = chain(&format!("{PFC} {settings}"), FEW, MS)?;
    let counts = bench.traced(&chain)?;
    let p3 = ports(&chain)?[3];
    // DCQCN's; with flow control, the number of ports is irrelevant.
    let (threshold, _) = chain.red_thresholds(2);
    let above = queue_above(&counts, p3, threshold);
    let is_congested = |t: &Traced| t.change == Change::State(State::Congestion);
    let state = changes(&counts, p3).find(is_congested).map(|t| t.time);
    let of_burst = |flow: &Finished| flow.from > 3;
    Ok(NeverPaused {
        marks: Marks::of(of_burst, &counts, 0, above, rtt(&chain)),
        state: since(above, state),
        step: counts.series.as_ref().map_or(0, |series| series.step) as f64 / US as f64,
    })
}

/// When the queue of a port is first seen above a limit.
fn queue_above(counts: &Counts, port: u32, limit: u64) -> Option<Time> {
    let series = counts.series.as_ref()?;
    let at = series.ports.iter().position(|other| *other == port)?;
    let mut points = (1..).zip(&series.points);
    let (number, _) = points.find(|(_, point)| u64::from(point.ports[at]) > limit)?;
    Some(series.time(number))
}

const TCD: &str = "scheme=dcqcn+tcd";

pub(super) fn t2(bench: &Bench, found: &mut Found) -> Judged {
    let never = never_paused(bench, TCD)?;
    let settings = format!("{PFC} {TCD}");
    let paused = after_the_last_pause(bench, &settings, 540)?;
    // Reported: they fill the link's queue while it is paused.
    let full = after_the_last_pause(bench, &settings, 300)?;
    found.require(never.holds() && paused.hold());
    let name = format!("never paused: flows of {} with CE", never.marks.flows);
    found.value(name, never.marks.congested);
    let name = format!(
        "from a queue seen above the threshold to the state, us (sampled each {} us)",
        never.step
    );
    found.value(name, never.state);
    let name = format!(
        "to the last flow's first CE, us (RTT {:.1})",
        never.marks.bound
    );
    found.value(name, never.marks.received);
    let name = format!("paused: flows of {} with CE afterwards", paused.flows);
    found.value(name, paused.congested);
    let name = format!(
        "from the last pause's end to the last flow's first CE, us (max(T_on) + RTT {:.1})",
        paused.bound
    );
    found.value(name, paused.received);
    found.value("full when it ends: to that CE, us", full.received);
    found.note =
        "Paused: a link with two flows whose queue grows when the last pause ends. A queue \
        that is full by then, due to pauses of its own inputs, looks like data that was held \
        back, and is distinguished from it after twice the time for which it was paused."
            .to_owned();
    Ok(())
}

/// The link of a dumbbell, shared by traffic to a congested host and two long flows that start this much later, us: the
/// CE that these get from the end of the link's last pause on, within max(T_on) and a round trip.
fn after_the_last_pause(
    bench: &Bench,
    settings: &str,
    late_us: u64,
) -> Result<Marks, ReproduceError> {
    let late = late_us * US;
    let long = [flow(late, 1, 8, 2_000_000), flow(late, 2, 9, 2_000_000)];
    let to_congested = [0, 6, 7].map(|from| periodic((from, 5), FLOW, 0.9, (0, 250 * US)));
    let flows = long.into_iter().chain(to_congested.into_iter().flatten());
    let scenario = scenario(Kind::Dumbbell, &format!("{settings} hosts=10"), flows)?;
    let link = scenario.topology()?.route(0, 5, 0);
    let counts = bench.traced(&scenario)?;
    let on = last_on(&counts, link);
    let is_long = |flow: &Finished| matches!(flow.from, 1 | 2);
    let bound = max_on(&scenario, EPSILON) + rtt(&scenario);
    let from = on.unwrap_or(Time::MAX);
    Ok(Marks::of(is_long, &counts, from, on, bound))
}

/// When a port's last pause ends.
fn last_on(counts: &Counts, port: u32) -> Option<Time> {
    let on = changes(counts, port).filter(|t| t.change == Change::On);
    on.last().map(|t| t.time)
}

/// How long P0, P1 and P2 are undetermined after their last pauses, us, and whether they are non-congested then.
fn returns(bench: &Bench, settings: &str) -> Result<[(f64, bool); 3], ReproduceError> {
    let chain = chain(&format!("{PFC} {settings}"), ONCE, MS)?;
    let counts = bench.traced(&chain)?;
    let [p0, p1, p2, _] = ports(&chain)?;
    Ok([p0, p1, p2].map(|port| {
        // A port that was never paused is not evidence.
        let on = last_on(&counts, port);
        let left = changes(&counts, port).find(|t| {
            t.time > on.unwrap_or(Time::MAX)
                && matches!(t.change, Change::State(state) if state != State::Undetermined)
        });
        let to_0 = left.is_some_and(|t| t.change == Change::State(State::NonCongestion));
        (since(on, left.map(|t| t.time)), to_0)
    }))
}

/// max(T_on) on the chain, plus the time until the next packet reveals its end, us.
fn returned_by(epsilon: f64) -> Result<f64, ReproduceError> {
    Ok(max_on(&chain(PFC, ONCE, MS)?, epsilon) + 1.0)
}

pub(super) fn t10(bench: &Bench, found: &mut Found) -> Judged {
    let bound = returned_by(EPSILON)?;
    for (port, (took, to_0)) in returns(bench, TCD)?.into_iter().enumerate() {
        found.require(to_0 && took <= bound);
        let name = format!("P{port} in / after the last pause, us (bound {bound:.1})");
        found.value(name, took);
    }
    Ok(())
}

pub(super) fn t12(bench: &Bench, found: &mut Found) -> Judged {
    let mut before = [0.0; 3];
    for (text, epsilon) in [("1/1", 1.0), ("1/4", 0.25), ("1/20", 0.05)] {
        let scheme = format!("dcqcn+tcd tcd.epsilon={text}");
        let bound = returned_by(epsilon)?;
        let released = returns(bench, &format!("scheme={scheme}"))?.map(|(took, _)| took);
        for (port, (took, earlier)) in released.into_iter().zip(before).enumerate() {
            found.require(earlier < took && took <= bound);
            let name =
                format!("epsilon {epsilon}: P{port} after the last pause, us (bound {bound:.1})");
            found.value(name, took);
        }
        before = released;
        let ([_, to_congestion, _], _) = flips(bench, &scheme)?;
        found.require(to_congestion == 0);
        found.value("changes of P2 to congestion", to_congestion);
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::schemes::chain::CBFC;

    /// T2 elsewhere: another time, credits; and a full queue, after twice its pauses.
    #[test]
    fn true_bottlenecks_are_congested_elsewhere() {
        let bench = Bench::new(1);
        for (settings, late_us) in [
            (format!("{PFC} scheme=dcqcn+tcd"), 500),
            (format!("{PFC} scheme=timely+tcd"), 560),
            (format!("{CBFC} scheme=ibcc+tcd"), 500),
        ] {
            let after = after_the_last_pause(&bench, &settings, late_us).unwrap();
            assert!(after.hold(), "{settings}: {after:?}");
        }
        let after = after_the_last_pause(&bench, &format!("{PFC} {TCD}"), 300).unwrap();
        // It is paused from 113 us on, with interruptions, and for the last time until 491 us.
        let most = 2.0 * (491.0 - 113.0);
        assert!(after.all_congested());
        assert!((after.bound..most).contains(&after.received), "{after:?}");
    }

    /// T2, T10 and T12 can fail: ports that wait for longer than max(T_on), or for shorter queues than they should.
    #[test]
    fn slow_and_hasty_ports_are_noticed() {
        let bench = Bench::new(1);
        let slow = format!("{TCD} tcd.max_on=70us");
        let after = after_the_last_pause(&bench, &format!("{PFC} {slow}"), 540).unwrap();
        assert!(after.all_congested() && !after.hold(), "{after:?}");
        let all = returns(&bench, &slow).unwrap();
        let bound = returned_by(EPSILON).unwrap();
        assert!(
            all.iter().all(|(took, _)| (bound..80.0).contains(took)),
            "{all:?}"
        );
        assert!(never_paused(&bench, TCD).unwrap().holds());
        for threshold in ["20kB", "60kB"] {
            let settings = format!("{TCD} tcd.threshold={threshold}");
            let hasty = never_paused(&bench, &settings).unwrap();
            assert!(hasty.marks.all_congested() && !hasty.holds(), "{hasty:?}");
        }
    }
}
