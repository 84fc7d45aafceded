//! T2 and T10: the state of a port after its pauses.

use ecn_core::tcd::{Mark, State};
use ecn_sim::engine::{MS, Time, US};
use ecn_sim::fabric::measure::Finished;
use ecn_sim::fabric::parameters::FlowControl;
use ecn_sim::fabric::series::Change;
use ecn_sim::fabric::{Counts, Kind, Scenario};

use super::{Judged, kmin, queues};
use crate::ReproduceError;
use crate::assertions::{exact, found};
use crate::schemes::chain::{
    Burst, C, FLOW, FRAME, ONCE, PAUSE, PFC, TRACE, chain, changes, ports, told, train,
};
use crate::schemes::{Bench, flow, scenario};

/// max(T_on) by the formula in `docs/sources.md` for a scenario at 40 Gb/s, us, regardless of the value that its ports
/// use.
fn max_on(scenario: &Scenario) -> f64 {
    /// The lowest congestion degree to be detected.
    const EPSILON: f64 = 0.05;
    let own = &scenario.parameters;
    if own.flow_control == FlowControl::Cbfc {
        return own.credit_period.as_nanos() as f64 / 1e3;
    }
    // In both directions: a frame that delays the pause, the pause itself, and the first frame of data.
    let delay = own.link_delay.as_nanos() as f64 / 1e3;
    let tau = 2.0 * delay + (2.0 * FRAME + PAUSE) / C * 1e6;
    (1.0 + EPSILON) / EPSILON * (scenario.xon_gap() as f64 / C * 1e6 + tau)
}

fn rtt(scenario: &Scenario) -> f64 {
    scenario.network(3, 2).idle_rtt as f64 / US as f64
}

/// Marks of flows across a port that is never paused: P3.
#[derive(Debug)]
struct AtOnce {
    /// How many there are, and how many get CE.
    flows: u32,
    congested: u32,
    /// Time from when a queue is observed above the threshold until the port counts as congested, and until the last
    /// flow has its first CE, us.
    state: f64,
    received: f64,
    /// The queue may have been above it for up to this time, us.
    step: f64,
    rtt: f64,
}

impl AtOnce {
    fn hold(&self) -> bool {
        self.flows > 0
            && self.congested == self.flows
            && (-self.step..=1.0).contains(&self.state)
            && self.received <= self.rtt
    }
}

/// Few senders, so that the queue takes 3 us to reach the threshold.
const FEW: Burst = Burst {
    senders: 3,
    bytes: 640_000,
    flow: 640_000,
};

fn at_once(bench: &Bench, settings: &[&str]) -> Result<AtOnce, ReproduceError> {
    let chain = chain(&[PFC, settings], FEW, MS)?;
    let counts = bench.run_with(&chain, 1, &TRACE)?;
    let p3 = ports(&chain)?[3];
    let of_burst = |flow: &Finished| flow.from > 3;
    let [flows, ..] = told(&counts, of_burst);
    let above = series_above(&counts, p3, kmin(&chain));
    let since = |time: Option<Time>| match (time, above) {
        (Some(time), Some(above)) => (time as f64 - above as f64) / US as f64,
        _ => f64::INFINITY,
    };
    let (congested, last) = told_from(&counts, 0, of_burst);
    Ok(AtOnce {
        flows,
        congested,
        state: since(first(&counts, p3, 0, State::Congestion)),
        received: since(last),
        step: counts.series.as_ref().map_or(0, |series| series.step) as f64 / US as f64,
        rtt: rtt(&chain),
    })
}

pub(super) fn t2(bench: &Bench) -> Judged {
    let own = "scheme=dcqcn+tcd";
    let never = at_once(bench, &[own])?;
    let (paused, link) = paused_link(&[PFC, &[own]], 540)?;
    let after = after_the_last_pause(bench, &paused, link, late)?;
    // Reported: they fill it while it is paused.
    let (full, link) = paused_link(&[PFC, &[own]], 300)?;
    let of_full = after_the_last_pause(bench, &full, link, late)?;
    let measured = [
        exact(
            format!("never paused: flows of {} with CE", never.flows),
            never.congested,
        ),
        exact(
            format!(
                "from a queue seen above the threshold to the state, us (sampled each {} us)",
                never.step
            ),
            never.state,
        ),
        exact(
            format!("to the last flow's first CE, us (RTT {:.1})", never.rtt),
            never.received,
        ),
        exact(
            format!("paused: flows of {} with CE afterwards", after.flows),
            after.congested,
        ),
        exact(
            format!(
                "from the last pause's end to the last flow's first CE, us (max(T_on) + RTT {:.1})",
                after.bound
            ),
            after.received,
        ),
        exact("full when it ends: to that CE, us", of_full.received),
    ];
    Ok(found(never.hold() && after.hold(), measured).noted(
        "Paused: a link with two flows whose queue grows when the last pause ends. A queue that is full by then, due to pauses of \
         its own inputs, looks like data that was held back, and is distinguished from it after twice the time for which it was paused.",
    ))
}

/// The link of a dumbbell, shared by traffic to a congested host and two long flows that start this much later, us.
fn paused_link(settings: &[&[&str]], late_us: u64) -> Result<(Scenario, u32), ReproduceError> {
    let late = late_us * US;
    let mut flows = vec![flow(late, 1, 8, 2_000_000), flow(late, 2, 9, 2_000_000)];
    for from in [0, 6, 7] {
        flows.extend(train((from, 5), FLOW, 0.9, (0, 250 * US)));
    }
    let settings = [settings.concat(), vec!["hosts=10"]].concat();
    let scenario = scenario(Kind::Dumbbell, &settings, flows)?;
    let link = scenario.topology()?.route(0, 5, 0);
    Ok((scenario, link))
}

/// Those two.
const fn late(flow: &Finished) -> bool {
    matches!(flow.from, 1 | 2)
}

/// Marks of the flows across a port that was paused.
#[derive(Debug)]
struct After {
    /// How many there are, and how many get CE after the last pause.
    flows: u32,
    congested: u32,
    /// From that pause's end until each of these has its first CE, at its receiver, us.
    received: f64,
    /// max(T_on) and a round trip, us.
    bound: f64,
}

impl After {
    fn hold(&self) -> bool {
        self.flows > 0 && self.congested == self.flows && self.received <= self.bound
    }
}

fn after_the_last_pause(
    bench: &Bench,
    scenario: &Scenario,
    port: u32,
    of: impl Fn(&Finished) -> bool,
) -> Result<After, ReproduceError> {
    let counts = bench.run_with(scenario, 1, &TRACE)?;
    let on = last_on(&counts, port);
    let (congested, last) = told_from(&counts, on.unwrap_or(Time::MAX), &of);
    let [flows, ..] = told(&counts, of);
    Ok(After {
        flows,
        congested,
        received: last
            .zip(on)
            .map_or(f64::INFINITY, |(last, on)| (last - on) as f64 / US as f64),
        bound: max_on(scenario) + rtt(scenario),
    })
}

/// How many of these flows get CE from a time on, and when the last of them gets its first.
fn told_from(counts: &Counts, from: Time, of: impl Fn(&Finished) -> bool) -> (u32, Option<Time>) {
    let flows = counts.finished.iter().filter(|flow| of(flow));
    let first = |flow: &Finished| {
        let mut at_host = changes(counts, flow.to).filter(|t| t.time >= from);
        let told = at_host
            .find(|t| matches!(t.change, Change::Mark(Mark::Congestion, id, _) if id == flow.id));
        told.map(|t| t.time)
    };
    let times: Vec<Time> = flows.filter_map(first).collect();
    (times.len() as u32, times.iter().copied().max())
}

/// When a port's last pause ends.
fn last_on(counts: &Counts, port: u32) -> Option<Time> {
    let on = changes(counts, port).filter(|t| t.change == Change::On);
    on.last().map(|t| t.time)
}

/// When a port first has this state, from a time on.
fn first(counts: &Counts, port: u32, from: Time, state: State) -> Option<Time> {
    let mut changes = changes(counts, port).filter(|t| t.time >= from);
    changes
        .find(|t| t.change == Change::State(state))
        .map(|t| t.time)
}

fn series_above(counts: &Counts, port: u32, limit: u64) -> Option<Time> {
    queues(counts, port)
        .into_iter()
        .find(|(_, queue)| u64::from(*queue) > limit)
        .map(|(time, _)| time)
}

/// How long P0, P1 and P2 are undetermined after their last pauses, us, and whether they are non-congested then.
fn returns(bench: &Bench, settings: &[&str]) -> Result<[(f64, bool); 3], ReproduceError> {
    let chain = chain(&[PFC, settings], ONCE, MS)?;
    let counts = bench.run_with(&chain, 1, &TRACE)?;
    let [p0, p1, p2, _] = ports(&chain)?;
    Ok([p0, p1, p2].map(|port| {
        // A port that was never paused is not evidence.
        let on = last_on(&counts, port).unwrap_or(Time::MAX);
        let left = changes(&counts, port).find(|t| {
            t.time > on && matches!(t.change, Change::State(state) if state != State::Undetermined)
        });
        let took = left.map_or(f64::INFINITY, |t| (t.time - on) as f64 / US as f64);
        let to_0 = left.is_some_and(|t| t.change == Change::State(State::NonCongestion));
        (took, to_0)
    }))
}

/// max(T_on) on the chain, plus the time until the next packet reveals its end, us.
fn returned_by() -> Result<f64, ReproduceError> {
    Ok(max_on(&chain(&[PFC], ONCE, MS)?) + 1.0)
}

pub(super) fn t10(bench: &Bench) -> Judged {
    let bound = returned_by()?;
    let all = returns(bench, &["scheme=dcqcn+tcd"])?;
    let holds = all.iter().all(|(took, to_0)| *to_0 && *took <= bound);
    let measured = ["P0", "P1", "P2"]
        .into_iter()
        .zip(all)
        .map(|(name, (took, _))| {
            exact(
                format!("{name} in / after the last pause, us (bound {bound:.1})"),
                took,
            )
        });
    Ok(found(holds, measured.collect::<Vec<_>>()))
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
        for (network, scheme, late_us) in [
            (PFC, "dcqcn", 500),
            (PFC, "timely", 560),
            (CBFC, "ibcc", 500),
        ] {
            let name = format!("scheme={scheme}+tcd");
            let (scenario, link) = paused_link(&[network, &[&name]], late_us).unwrap();
            let after = after_the_last_pause(&bench, &scenario, link, late).unwrap();
            assert!(after.hold(), "{name}: {after:?}");
        }
        let (full, link) = paused_link(&[PFC, &["scheme=dcqcn+tcd"]], 300).unwrap();
        let after = after_the_last_pause(&bench, &full, link, late).unwrap();
        // It is paused from 113 us on, with interruptions, and for the last time until 491 us.
        let most = 2.0 * (491.0 - 113.0);
        assert_eq!(after.congested, after.flows);
        assert!((after.bound..most).contains(&after.received), "{after:?}");
    }

    /// T2 and T10 can fail: ports that wait for longer than max(T_on), or for shorter queues than they should.
    #[test]
    fn slow_and_hasty_ports_are_noticed() {
        let bench = Bench::new(1);
        let own = "scheme=dcqcn+tcd";
        let slow = [own, "tcd.max_on=70us"];
        let (scenario, link) = paused_link(&[PFC, &slow], 540).unwrap();
        let after = after_the_last_pause(&bench, &scenario, link, late).unwrap();
        assert!(after.congested == after.flows && !after.hold(), "{after:?}");
        let all = returns(&bench, &slow).unwrap();
        let bound = returned_by().unwrap();
        assert!(
            all.iter().all(|(took, _)| (bound..80.0).contains(took)),
            "{all:?}"
        );
        assert!(at_once(&bench, &[own]).unwrap().hold());
        for threshold in ["20kB", "60kB"] {
            let threshold = format!("tcd.threshold={threshold}");
            let hasty = at_once(&bench, &[own, &threshold]).unwrap();
            assert!(hasty.congested == hasty.flows && !hasty.hold(), "{hasty:?}");
        }
    }
}
