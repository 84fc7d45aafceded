//! Statements about TCD.

mod bottleneck;
mod cycles;
mod slowdowns;

use std::collections::{BTreeMap, BTreeSet};

use ecn_core::packet::CE;
use ecn_core::tcd::{Mark, State, UE, mark_ecn};
use ecn_sim::engine::{MS, Time, US};
use ecn_sim::fabric::Counts;
use ecn_sim::fabric::series::Change;

use super::chain::{
    ALTERNATING, CBFC, FRAME_US, ONCE, PFC, S0, S1, chain, chain_of, changes, notified, ports,
};
use super::{Bench, Claim, Judged};
use crate::ReproduceError;
use crate::statement::{Found, Kind};
use bottleneck::{t2, t10, t12};
use cycles::{t5, t6, t7, t8};
use slowdowns::t11;
#[cfg(test)]
pub(crate) use slowdowns::{Factors, judge_factors};

/// S0's and S1's parts of a link's rate in T1 and T3, as in [`chain`].
const LOADS: (f64, f64) = (0.3, 0.4);

/// T1 and T3: number of the victim's flows, of those with CE, and of those with UE only; over both bursts.
fn victims(bench: &Bench, settings: &str, loads: (f64, f64)) -> Result<[u32; 3], ReproduceError> {
    let mut all = [0; 3];
    for burst in [ONCE, ALTERNATING] {
        let counts = bench.run(&chain_of(settings, loads, burst, MS)?, 1)?;
        let notified = notified(&counts, |flow| flow.from == S0);
        all = [0, 1, 2].map(|index| all[index] + notified[index]);
    }
    Ok(all)
}

fn t1(bench: &Bench, found: &mut Found) -> Judged {
    for (scheme, network) in [("dcqcn+tcd", PFC), ("timely+tcd", PFC), ("ibcc+tcd", CBFC)] {
        let settings = format!("{network} scheme={scheme}");
        let [flows, congested, undetermined] = victims(bench, &settings, LOADS)?;
        found.require(congested == 0 && undetermined > 0);
        let name = format!("{scheme}: victim flows of {flows} with CE");
        found.value(name, congested);
        found.value("with UE", undetermined);
    }
    for loads @ (s0, s1) in [(0.3, 0.6), (0.1, 0.8)] {
        for patience in [2, 9] {
            let settings = format!("{PFC} scheme=dcqcn+tcd tcd.patience={patience}");
            let [flows, congested, _] = victims(bench, &settings, loads)?;
            let name =
                format!("reported: loads {s0} and {s1}, patience {patience}: of {flows} with CE");
            found.value(name, congested);
        }
    }
    found.note =
        "Higher loads in a port are only reported: the data that two paused inputs still hold \
        keeps its queue up as congestion would. If they use the link to r, that drains in \
        r/(1 - r) times the pauses: within a patience of 2 up to two thirds, and in 9 at \
        0.9."
            .to_owned();
    Ok(())
}

fn t3(bench: &Bench, found: &mut Found) -> Judged {
    for (scheme, network) in [("dcqcn", PFC), ("ibcc", CBFC)] {
        let settings = format!("{network} scheme={scheme}");
        let [flows, congested, _] = victims(bench, &settings, LOADS)?;
        found.require(congested > 0);
        let name = format!("{scheme}: victim flows of {flows} with a mark");
        found.value(name, congested);
    }
    Ok(())
}

/// T4, I7: P2 while it alternates between ON and OFF: number of periods, of changes to congestion (or root), and of
/// changes to undetermined (or victim).
pub(super) fn flips(bench: &Bench, scheme: &str) -> Result<([u32; 3], Counts), ReproduceError> {
    let network = if scheme.contains("dcqcn") { PFC } else { CBFC };
    let chain = chain(&format!("{network} scheme={scheme}"), ALTERNATING, MS)?;
    let counts = bench.traced(&chain)?;
    let p2 = ports(&chain)?[2];
    let changes_of = |change| changes(&counts, p2).filter(move |t| t.change == change);
    let last = changes_of(Change::Off).last().map_or(0, |t| t.time);
    let count = |change| changes_of(change).filter(|t| t.time <= last).count() as u32;
    let all = [
        Change::Off,
        Change::State(State::Congestion),
        Change::State(State::Undetermined),
    ];
    Ok((all.map(count), counts))
}

fn t4(bench: &Bench, found: &mut Found) -> Judged {
    for scheme in ["ibcc", "ibcc+tcd", "dcqcn+tcd"] {
        let ([off, root, victim], _) = flips(bench, scheme)?;
        found.value(format!("OFF, {scheme}"), off);
        found.value(format!("to 1, {scheme}"), root);
        found.value(format!("to /, {scheme}"), victim);
        found.require(off >= 10);
        found.require(match scheme {
            "ibcc" => root >= 10 && victim >= 10,
            _ => root == 0,
        });
    }
    Ok(())
}

fn t9(bench: &Bench, found: &mut Found) -> Judged {
    let states = [State::NonCongestion, State::Congestion, State::Undetermined];
    let (mut taken_back, mut raised) = (0, 0);
    for first in states {
        for second in states {
            let before = Mark::None.combined_with(first);
            let after = before.combined_with(second);
            taken_back += u32::from(after < before);
            raised += u32::from(after > before);
        }
    }
    let fields = (0..=3).flat_map(|field| states.map(|state| (field, mark_ecn(field, state))));
    taken_back += fields
        .filter(|(before, after)| {
            *before == CE && *after != CE || *before == UE && *after != UE && *after != CE
        })
        .count() as u32;
    // S1 passes the bottleneck last; if P0 is overloaded, S0 passes the ports behind it, which are paused.
    let last = crossed(bench, LOADS, S1)?;
    let before = crossed(bench, (0.8, 0.8), S0)?;
    found.require(taken_back == 0 && raised > 0);
    found.require(last.raised >= PACKETS && before.hidden >= PACKETS);
    found.require(last.lost + before.lost == 0);
    found.value("marks taken back, of all marks and states", taken_back);
    found.value("raised", raised);
    let name = "undetermined ports first: S1's packets from UE to CE";
    found.value(name, last.raised);
    found.value("packets that arrive without the CE they got", last.lost);
    let name = "a congested port first: S0's packets with CE that pass an undetermined one";
    found.value(name, before.hidden);
    found.value("packets that arrive without the CE they got", before.lost);
    Ok(())
}

/// This many packets suffice.
const PACKETS: u32 = 100;

/// Changes of the marks of a sender's packets on the chain.
struct Crossed {
    /// They got UE, and arrive with CE.
    raised: u32,
    /// They got CE before P2, and P2 was undetermined when they left by it.
    hidden: u32,
    /// They got CE, and arrive without it.
    lost: u32,
}

fn crossed(bench: &Bench, loads: (f64, f64), from: u32) -> Result<Crossed, ReproduceError> {
    let chain = chain_of(&format!("{PFC} scheme=dcqcn+tcd"), loads, ONCE, MS)?;
    let hosts = chain.topology()?.hosts;
    let [p0, p1, p2, _] = ports(&chain)?;
    let counts = bench.traced(&chain)?;
    let flows = counts.finished.iter().filter(|flow| flow.from == from);
    let flows: BTreeSet<u32> = flows.map(|flow| flow.id).collect();
    let marks = |mark: Mark, at: &dyn Fn(u32) -> bool| -> BTreeMap<(u32, u32), Time> {
        let all = counts.trace.iter().flatten().filter(|t| at(t.port));
        all.filter_map(|t| match t.change {
            Change::Mark(is, id, number) if is == mark && flows.contains(&id) => {
                Some(((id, number), t.time))
            }
            _ => None,
        })
        .collect()
    };
    let arrived = marks(Mark::Congestion, &|port| port < hosts);
    let got = marks(Mark::Congestion, &|port| port >= hosts);
    let undetermined = marks(Mark::Undetermined, &|port| port >= hosts);
    let states: Vec<(Time, State)> = changes(&counts, p2)
        .filter_map(|t| match t.change {
            Change::State(state) => Some((t.time, state)),
            _ => None,
        })
        .collect();
    let is_hidden = |left: Time| {
        let before = states.partition_point(|(time, _)| *time <= left);
        before > 0 && states[before - 1].1 == State::Undetermined
    };
    // Two links behind P2, the last of which is idle.
    let behind = 2 * (US + (FRAME_US * US as f64) as Time);
    let early = marks(Mark::Congestion, &|port| [p0, p1].contains(&port));
    let mut with_any_mark = marks(Mark::Undetermined, &|port| port < hosts);
    with_any_mark.extend(&arrived);
    let hidden = early.keys().filter(|packet| {
        let arrival = with_any_mark.get(packet);
        arrival.is_some_and(|time| is_hidden(time.saturating_sub(behind)))
    });
    let raised = undetermined.keys().filter(|p| arrived.contains_key(p));
    let lost = got.keys().filter(|p| !arrived.contains_key(p));
    Ok(Crossed {
        raised: raised.count() as u32,
        hidden: hidden.count() as u32,
        lost: lost.count() as u32,
    })
}

pub(super) const CLAIMS: &[Claim] = &[
    Claim {
        id: "T1",
        kind: Kind::Seed,
        published: "a flow that crosses only paused ports never receives CE",
        band: "chain, DCQCN, TIMELY and IB CC with TCD, loads of 0.3 and 0.4 that meet in P0: no flow of the victim gets CE, some get UE",
        judge: t1,
    },
    Claim {
        id: "T2",
        kind: Kind::Derived,
        published: "every flow across the true bottleneck receives CE within one max(T_on) + one RTT after pausing there stops, or at once if it is never paused",
        band: "each flow's first CE from then on, at its receiver: over a link whose queue grows when the pause ends (one that is full by then: reported only); max(T_on) by its formula. Never paused: state within a sample before and 1 us after the queue is seen above the threshold, CE within an RTT",
        judge: t2,
    },
    Claim {
        id: "T3",
        kind: Kind::Seed,
        published: "plain marking by the queue marks the victim in the same run",
        band: "DCQCN and IB CC: some of the victim's flows",
        judge: t3,
    },
    Claim {
        id: "T4",
        kind: Kind::Derived,
        published: "by IB's rule ports in the ON-OFF pattern flip between root and victim; with TCD they do not",
        band: "P2, up to its last OFF: 10 changes and more each way; none to congestion with TCD",
        judge: t4,
    },
    Claim {
        id: "T5",
        kind: Kind::Derived,
        published: "T_on = (B0 + C tau)/(C - Rd), T_off = (B0 + C tau)/Rd",
        band: "within 1 MTU time, B0 = Xoff - Xon, both half-way between whole packets; tau with the rest of the frame that a pause does not interrupt",
        judge: t5,
    },
    Claim {
        id: "T6",
        kind: Kind::Derived,
        published: "the ON fraction is Rd/C",
        band: "mean of all senders, which share a link alike: within 1 % of one by their number",
        judge: t6,
    },
    Claim {
        id: "T7",
        kind: Kind::Derived,
        published: "the queue stays within Xon - Rd tau and Xoff + (C - Rd) tau; no loss with headroom C tau + 2 MTU",
        band: "1 MTU more on each side: two senders with Rd = C/2; three and four with whatever Rd is, 0 above and C below. Headroom set to C tau + 2 MTU, tau with a whole frame: nothing lost; with half of it: refused or lost, and more than half is used",
        judge: t7,
    },
    Claim {
        id: "T8",
        kind: Kind::Derived,
        published: "CBFC: no ON is longer than Tc while the downstream is the bottleneck",
        band: "longest ON of a sender up to Tc",
        judge: t8,
    },
    Claim {
        id: "T9",
        kind: Kind::Derived,
        published: "CE is never downgraded to UE along a path",
        band: "no mark that a later port takes back; packet by packet with the bottleneck behind undetermined ports, and with a congested port before them",
        judge: t9,
    },
    Claim {
        id: "T10",
        kind: Kind::Derived,
        published: "after the burst the chain's ports go from / to 0, within max(T_on)",
        band: "the reference's own rule (R): P0, P1 and P2, all of which are paused; max(T_on) by its formula, and 1 us until a packet shows it",
        judge: t10,
    },
    Claim {
        id: "T11",
        kind: Kind::Seed,
        published: "with TCD the median and p99 FCT slowdown are up to 3.3 and 2.0 times better",
        band: "the best of five settings: mean over the seeds of the slowdown without TCD over that with it at least 3.3 and 2.0; none of DCQCN's worse",
        judge: t11,
    },
    Claim {
        id: "T12",
        kind: Kind::Derived,
        published: "max(T_on) = (1 + 1/epsilon)(B0/C + tau): the smaller epsilon, the later ports are released",
        band: "epsilon of 1, 1/4 and 1/20: P0, P1 and P2 after the burst within it and 1 us, each later than with the epsilon before; in the ON-OFF pattern no change of P2 to congestion",
        judge: t12,
    },
];

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::chain::{Burst, FLOW};
    use super::*;

    /// T1 can fail: a port that takes a pause's end for the pattern's, and any queue for one that grows.
    #[test]
    fn an_impatient_port_marks_the_victim() {
        let impatient = "tcd.max_on=0s tcd.growth=0B tcd.threshold=2kB";
        let settings = format!("{PFC} scheme=dcqcn+tcd {impatient}");
        let all = victims(&Bench::new(1), &settings, LOADS).unwrap();
        let [flows, congested, _] = all;
        assert!(flows > 0 && congested > 0, "{all:?}");
    }

    /// T3 can fail: nothing is marked below a threshold that no queue reaches.
    #[test]
    fn a_high_threshold_marks_nothing() {
        let settings = format!("{PFC} scheme=dcqcn dcqcn.kmin=2MB dcqcn.kmax=4MB");
        let all = victims(&Bench::new(1), &settings, LOADS).unwrap();
        assert_eq!(all[1], 0, "{all:?}");
    }

    /// T1 with other loads and bursts, flow control and links than its own: none where both together use a link up to two thirds, as
    /// is assumed.
    #[test]
    fn no_victim_is_congested_elsewhere() {
        let networks = [
            format!("{PFC} scheme=dcqcn+tcd"),
            format!("{PFC} scheme=dcqcn+tcd link_delay=3us"),
            format!("{CBFC} scheme=timely+tcd buffer=200kB"),
        ];
        let loads = [(0.3, 0.35), (0.2, 0.1), (0.4, 0.25), (0.1, 0.55)];
        let burst = |senders, bytes, flow| Burst {
            senders,
            bytes,
            flow,
        };
        let bursts = [
            burst(8, 128_000, 128_000),
            burst(15, 256_000, 256_000),
            burst(3, 1_000_000, 50_000),
            burst(1, 2_000_000, FLOW),
        ];
        let bench = Bench::new(1);
        let mut undetermined = 0;
        for settings in networks {
            for (load, burst) in loads
                .iter()
                .flat_map(|l| bursts.iter().map(move |b| (*l, *b)))
            {
                let chain = chain_of(&settings, load, burst, MS).unwrap();
                let counts = bench.run(&chain, 1).unwrap();
                let [flows, congested, some] = notified(&counts, |flow| flow.from == S0);
                assert!(flows > 0 && congested == 0, "{settings} {load:?} {burst:?}");
                undetermined += some;
            }
        }
        assert!(undetermined > 1_000, "{undetermined}");
    }
}
