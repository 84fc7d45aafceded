//! TCD's chain (its Fig. 2), for statements about TCD and IB CC: two senders share the ports P0, P1 and P2, and
//! hosts at the end congest P3, by which only one of the two goes.
//!
//! Both send short flows at a fraction of a link's rate. No port of the chain therefore gets more than it can send, and
//! what a scheme does to a flow does not affect the next: all schemes get the same traffic.

use ecn_sim::engine::{Time, US};
use ecn_sim::fabric::measure::Finished;
use ecn_sim::fabric::series::{Change, Traced};
use ecn_sim::fabric::workload::Arrival;
use ecn_sim::fabric::{Counts, Kind, Scenario};

use super::{ReproduceError, flow, scenario};

/// The victim, S0, which passes P0, P1 and P2.
pub(super) const S0: u32 = 0;
/// The other sender, which also passes P3.
pub(super) const S1: u32 = 1;
const R0: u32 = 2;
const R1: u32 = 3;
const A0: u32 = 4;

/// 40 Gb/s, bytes per second.
pub(super) const C: f64 = 5e9;

/// A full packet and a pause, bytes; and the packet's time on the wire, us.
pub(super) const FRAME: f64 = 1_062.0;
pub(super) const PAUSE: f64 = 64.0;
pub(super) const FRAME_US: f64 = FRAME / C * 1e6;

/// Ports at 40 Gb/s that pause at 320 kB and resume at 318 kB.
pub(super) const PFC: &str = "link_rate=40gbit thresholds=static xoff=320kB xon_gap=2kB";
/// The same with credits for as much data.
pub(super) const CBFC: &str = "link_rate=40gbit flow_control=cbfc buffer=320kB";

/// The bursts that congest the end of the chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub senders: u32,
    /// What each sends, at the rate of its link.
    pub bytes: u64,
    /// Bytes per flow.
    pub flow: u64,
}

/// All fifteen, once: the chain is paused once.
pub(super) const ONCE: Burst = Burst {
    senders: 15,
    bytes: 128_000,
    flow: 128_000,
};

/// Two, for a long time: S1 gets a third of P3, and the chain alternates between ON and OFF.
pub(super) const ALTERNATING: Burst = Burst {
    senders: 2,
    bytes: 1_500_000,
    flow: FLOW,
};

/// When the burst begins.
const BURST: Time = 100 * US;
/// A short flow, bytes.
pub(super) const FLOW: u64 = 10_000;

/// Flows of this many bytes from `start` up to `until`, with this share of a link's rate.
pub(super) fn periodic(
    (from, to): (u32, u32),
    bytes: u64,
    load: f64,
    (start, until): (Time, Time),
) -> impl Iterator<Item = Arrival> {
    let period = (bytes as f64 / (load * C) * 1e12) as Time;
    let number = (until - start).div_ceil(period);
    (0..number).map(move |number| flow(start + number * period, from, to, bytes))
}

/// S0 with 0.3 of a link's rate and S1 with 0.4, up to `until`, and a burst.
pub(super) fn chain(settings: &str, burst: Burst, until: Time) -> Result<Scenario, ReproduceError> {
    chain_of(settings, (0.3, 0.4), burst, until)
}

/// S0 and S1 with these parts of a link's rate, up to `until`, and a burst.
pub(super) fn chain_of(
    settings: &str,
    (s0, s1): (f64, f64),
    burst: Burst,
    until: Time,
) -> Result<Scenario, ReproduceError> {
    let end = BURST + (burst.bytes as f64 / C * 1e12) as Time;
    let bursts = (A0..A0 + burst.senders)
        .flat_map(|from| periodic((from, R1), burst.flow, 1.0, (BURST, end)));
    let flows = periodic((S0, R0), FLOW, s0, (0, until))
        .chain(periodic((S1, R1), FLOW, s1, (0, until)))
        .chain(bursts);
    scenario(Kind::Chain, settings, flows)
}

/// P0 to P3: the ports towards R1.
pub(super) fn ports(scenario: &Scenario) -> Result<[u32; 4], ReproduceError> {
    let topology = scenario.topology()?;
    Ok([0, 1, 2, 3].map(|switch| topology.route(switch, R1, 0)))
}

/// Senders into one output of their switch: each one's ingress queue drains with C/senders.
pub(super) fn incast(senders: u32, settings: &str, bytes: u64) -> Result<Scenario, ReproduceError> {
    let hosts = 2 * (senders + 1);
    let settings = format!("link_rate=40gbit hosts={hosts} {settings}");
    let flows = (0..senders).map(|from| flow(0, from, senders, bytes));
    scenario(Kind::Dumbbell, &settings, flows)
}

/// Of the selected flows: their number, how many were notified of congestion, and how many of undetermined ports only.
pub(super) fn notified(counts: &Counts, of: impl Fn(&Finished) -> bool) -> [u32; 3] {
    let count = |is: fn(&Finished) -> bool| {
        let flows = counts.finished.iter().filter(|flow| of(flow));
        flows.filter(|flow| is(flow)).count() as u32
    };
    [
        count(|_| true),
        count(|flow| flow.marked > 0),
        count(|flow| flow.marked == 0 && flow.undetermined > 0),
    ]
}

/// The changes of a port.
pub(super) fn changes(counts: &Counts, port: u32) -> impl Iterator<Item = Traced> {
    let all = counts.trace.iter().flatten().copied();
    all.filter(move |traced| traced.port == port)
}

/// Times at which a port was turned ON, and OFF again.
pub(super) fn on_periods(counts: &Counts, port: u32) -> Vec<(Time, Time)> {
    let toggles = changes(counts, port).filter(|t| matches!(t.change, Change::On | Change::Off));
    let toggles: Vec<Traced> = toggles.collect();
    let pairs = toggles
        .windows(2)
        .filter(|pair| pair[0].change == Change::On);
    pairs.map(|pair| (pair[0].time, pair[1].time)).collect()
}
