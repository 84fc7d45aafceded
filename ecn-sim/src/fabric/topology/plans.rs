//! Plans of the built-in topologies.

use super::{End, Plan};

/// Smallest even number of ports for which a fat tree has at least `hosts` hosts, `k^3 / 4`.
pub fn fat_tree_ports(hosts: u32) -> u32 {
    let fits = |k: u64| k * k * k / 4 >= u64::from(hosts);
    (2..).step_by(2).find(|k| fits(u64::from(*k))).unwrap_or(2)
}

/// The k-ary fat tree (Al-Fares et al., SIGCOMM 2008): `k` pods of `k/2` edge and `k/2` aggregation
/// switches, `k^2/4` cores. Hosts fill it from the first pod on.
pub fn fat_tree(hosts: u32, k: u32) -> Plan {
    let half = k / 2;
    let (edges, aggregations) = (k * half, k * half);
    let mut plan = Plan {
        hosts,
        ..Plan::default()
    };
    for (kind, count) in [("edge", edges), ("agg", edges), ("core", half * half)] {
        let names = (0..count).map(|index| format!("{kind}{index}"));
        plan.switches.extend(names);
    }
    for host in 0..hosts {
        let edge = End::Switch(host / half);
        plan.links.push((End::Host(host), edge));
    }
    for edge in 0..edges {
        let pod = edge / half;
        for up in 0..half {
            let aggregation = End::Switch(edges + pod * half + up);
            plan.links.push((End::Switch(edge), aggregation));
        }
    }
    for aggregation in 0..aggregations {
        for up in 0..half {
            let core = edges + aggregations + aggregation % half * half + up;
            let aggregation = End::Switch(edges + aggregation);
            plan.links.push((aggregation, End::Switch(core)));
        }
    }
    plan
}

/// Leaves with equal numbers of hosts, as far as possible, and a link from each leaf to each spine.
pub fn leaf_spine(hosts: u32, leaves: u32, spines: u32) -> Plan {
    let mut plan = Plan {
        hosts,
        ..Plan::default()
    };
    plan.switches = (0..leaves).map(|index| format!("leaf{index}")).collect();
    plan.switches
        .extend((0..spines).map(|index| format!("spine{index}")));
    let per_leaf = hosts.div_ceil(leaves);
    for host in 0..hosts {
        plan.links
            .push((End::Host(host), End::Switch(host / per_leaf)));
    }
    for leaf in 0..leaves {
        for spine in 0..spines {
            plan.links
                .push((End::Switch(leaf), End::Switch(leaves + spine)));
        }
    }
    plan
}

/// Two switches with one link between them; the first half of the hosts on the left.
pub fn dumbbell(hosts: u32) -> Plan {
    let left = hosts.div_ceil(2);
    let mut links: Vec<_> = (0..hosts)
        .map(|host| (End::Host(host), End::Switch(u32::from(host >= left))))
        .collect();
    links.push((End::Switch(0), End::Switch(1)));
    Plan {
        hosts,
        host_names: Vec::new(),
        switches: vec!["left".to_owned(), "right".to_owned()],
        links,
        ..Plan::default()
    }
}

/// A chain of switches with about equal numbers of hosts. A flow from the first host to the last crosses all links
/// between switches; one from the last host of a switch to the first of the next crosses one.
pub fn parking_lot(hosts: u32, switches: u32) -> Plan {
    let switch_of = |host| (u64::from(host) * u64::from(switches) / u64::from(hosts)) as u32;
    Plan {
        hosts,
        host_names: Vec::new(),
        switches: (0..switches).map(|index| format!("s{index}")).collect(),
        links: (0..hosts)
            .map(|host| (End::Host(host), End::Switch(switch_of(host))))
            .chain(row(switches))
            .collect(),
        ..Plan::default()
    }
}

/// Links of a chain of switches.
fn row(switches: u32) -> impl Iterator<Item = (End, End)> {
    (1..switches).map(|next| (End::Switch(next - 1), End::Switch(next)))
}

/// Switches of [`chain`].
const CHAIN: u32 = 4;

/// TCD's Fig. 2 (we assigned the roles, because its labels were not legible):
///
/// | host | at | role |
/// |---|---|---|
/// | 0, `S0` | `T0` | sends to `R0`: the victim, which shares the chain with `S1`, but no congested port |
/// | 1, `S1` | `T0` | sends to `R1` |
/// | 2, `R0` | `T3` | |
/// | 3, `R1` | `T3` | the port to it, `P3`, is the one that bursts congest |
/// | 4 on, `A0`.. | `T3` | send bursts to `R1`; 15 in the paper |
///
/// `P0`, `P1` and `P2` are the ports from each of `T0`, `T1` and `T2` to the next; they are paused because of `P3`.
pub fn chain(hosts: u32) -> Plan {
    let ends = ["S0", "S1", "R0", "R1"].map(str::to_owned).into_iter();
    let bursts = (4..hosts).map(|host| format!("A{}", host - 4));
    Plan {
        hosts,
        host_names: ends.chain(bursts).take(hosts as usize).collect(),
        switches: (0..CHAIN).map(|index| format!("T{index}")).collect(),
        links: (0..hosts)
            .map(|host| {
                (
                    End::Host(host),
                    End::Switch(if host < 2 { 0 } else { CHAIN - 1 }),
                )
            })
            .chain(row(CHAIN))
            .collect(),
        ..Plan::default()
    }
}

/// Hosts of [`fig1`] before those that send to `BC`.
pub const FIG1_OTHERS: u32 = 3;

/// Number of local senders in [`fig1`]: half of those that send to `BC`; the others are remote.
pub const fn fig1_local(hosts: u32) -> u32 {
    hosts.saturating_sub(FIG1_OTHERS) / 2
}

/// Fig. 1 of HP's papers: switches `A` and `B`, and
///
/// | host | at | role |
/// |---|---|---|
/// | 0, `BC` | `B` | all but the victim send to it |
/// | 1, `BV` | `B` | the victim sends to it |
/// | 2, `AV` | `A` | the victim |
/// | 3 on, `B1`.. | `B` | local senders |
/// | then `A1`.. | `A` | remote ones |
pub fn fig1(hosts: u32) -> Plan {
    let local = fig1_local(hosts);
    let ends = ["BC", "BV", "AV"].map(str::to_owned).into_iter();
    let numbered = |letter, count| (1..=count).map(move |number| format!("{letter}{number}"));
    let remote = hosts.saturating_sub(FIG1_OTHERS + local);
    let names = ends
        .chain(numbered('B', local))
        .chain(numbered('A', remote));
    let is_at_a = |host| host == 2 || host >= FIG1_OTHERS + local;
    let links = (0..hosts).map(|host| (End::Host(host), End::Switch(u32::from(!is_at_a(host)))));
    Plan {
        hosts,
        host_names: names.take(hosts as usize).collect(),
        switches: ["A", "B"].map(str::to_owned).to_vec(),
        links: links.chain(row(2)).collect(),
        ..Plan::default()
    }
}
