use super::*;
use std::collections::HashSet;

/// The links that a packet crosses.
fn walk(topology: &Topology, from: u32, to: u32, hash: u32) -> Vec<u32> {
    let mut port = from;
    let mut crossed = vec![port];
    loop {
        let peer = topology.peer[port as usize];
        if peer < topology.hosts {
            assert_eq!(peer, to);
            return crossed;
        }
        port = topology.route(topology.node[peer as usize], to, hash);
        crossed.push(port);
    }
}

#[test]
fn a_fat_tree_has_its_numbers() {
    for (hosts, k) in [
        (2, 2),
        (3, 4),
        (16, 4),
        (17, 6),
        (128, 8),
        (129, 10),
        (1024, 16),
    ] {
        assert_eq!(fat_tree_ports(hosts), k);
    }
    let topology = Topology::new(fat_tree(128, 8)).unwrap();
    assert_eq!(topology.names.len(), 80);
    // Each switch uses all its ports: 80 * 8 + 128 host ports.
    assert_eq!(topology.peer.len(), 768);
    assert_eq!(topology.hops(0, 3), 2);
    assert_eq!(topology.hops(0, 4), 4);
    assert_eq!(topology.hops(0, 16), 6);
}

/// Switches share their routes: the tables of 5,120 switches for 2,048 edges have few distinct blocks.
#[test]
fn the_largest_fat_tree_has_few_routes() {
    let topology = Topology::new(fat_tree(65_536, 64)).unwrap();
    assert!(topology.routes.len() < 200, "{}", topology.routes.len());
    assert!(topology.used.iter().all(|used| *used));
    assert_eq!((topology.longest(), topology.fewest_ports()), (6, 64));
    for (from, to, links) in [(0, 31, 2), (32, 0, 4), (1_023, 1_024, 6), (65_535, 0, 6)] {
        assert_eq!(topology.hops(from, to), links);
        assert_eq!(walk(&topology, from, to, 7).len() as u32, links);
    }
}

/// A ring of five switches: each path of two links continues where another one starts.
#[test]
fn wait_cycles_are_found() {
    for plan in [
        fat_tree(54, 6),
        leaf_spine(21, 4, 3),
        dumbbell(5),
        parking_lot(8, 4),
        chain(19),
    ] {
        assert_eq!(Topology::new(plan).unwrap().wait_cycle(), None);
    }
    let mut plan = parking_lot(5, 5);
    plan.links.push((End::Switch(4), End::Switch(0)));
    let topology = Topology::new(plan).unwrap();
    let cycle = topology.wait_cycle().unwrap();
    assert_eq!(cycle.len(), 5);
    let switches: HashSet<u32> = (cycle.iter().map(|port| topology.node[*port as usize])).collect();
    assert_eq!(switches.len(), 5);
}

#[test]
fn packets_arrive_on_shortest_paths() {
    for plan in [
        fat_tree(54, 6),
        fat_tree(20, 6),
        leaf_spine(21, 4, 3),
        dumbbell(5),
        parking_lot(11, 4),
        chain(19),
    ] {
        let topology = Topology::new(plan).unwrap();
        for from in 0..topology.hosts {
            for to in (0..topology.hosts).filter(|to| *to != from) {
                let crossed = walk(&topology, from, to, from * 977 + to);
                assert_eq!(crossed.len() as u32, topology.hops(from, to));
            }
        }
    }
}

#[test]
fn flows_spread_over_all_paths() {
    let topology = Topology::new(fat_tree(128, 8)).unwrap();
    let mut uses: HashMap<u32, u32> = HashMap::new();
    // Flows are numbered consecutively.
    for hash in 0..16_000u32 {
        let core = walk(&topology, 0, 127, hash)[2];
        *uses.entry(core).or_default() += 1;
    }
    // 16 paths through the cores, each with a sixteenth; a deviation of 5 sigma is 15 %.
    assert_eq!(uses.len(), 16);
    assert!(uses.values().all(|n| (850..=1150).contains(n)), "{uses:?}");
    let first: HashSet<u32> = (0..100).map(|_| walk(&topology, 0, 127, 42)[1]).collect();
    assert_eq!(first.len(), 1);
}

/// Flows with consecutive numbers choose as if at random: over groups of 64 flows, the number of flows per path has the
/// variance of the binomial distribution, at each switch and with each seed.
#[test]
fn choices_are_random_at_each_switch() {
    const FLOWS: u32 = 64;
    const GROUPS: u32 = 500;
    let (leaves, spines) = (16, 8);
    let expected = f64::from(FLOWS) / f64::from(spines);
    let variance = expected * (1.0 - 1.0 / f64::from(spines));
    for seed in [1, 2, 77] {
        let topology = Topology::new(leaf_spine(leaves, leaves, spines)).unwrap();
        let topology = topology.seeded(seed);
        for leaf in 0..leaves {
            let to = (leaf + 1) % leaves;
            let group = |group: u32| {
                let mut uses = vec![0.0; spines as usize];
                for hash in group * FLOWS..(group + 1) * FLOWS {
                    let port = walk(&topology, leaf, to, hash)[1];
                    uses[(port + spines - topology.ports(leaf).end) as usize] += 1.0;
                }
                let squares = uses.iter().map(|uses| (uses - expected).powi(2));
                squares.sum::<f64>() / f64::from(spines)
            };
            let found = (0..GROUPS).map(group).sum::<f64>() / f64::from(GROUPS) / variance;
            // The standard deviation of this ratio is sqrt(2 / (500 * 7)) = 0.024.
            assert!((0.88..1.12).contains(&found), "leaf{leaf}, {seed}: {found}");
        }
    }
}

/// The choices of an edge switch and of the next one are independent: flows that share a link are spread over all of the
/// links that follow (no polarisation).
#[test]
fn tiers_choose_independently() {
    let topology = Topology::new(fat_tree(128, 8)).unwrap();
    let ways = 4;
    let cells = ways * ways;
    for host in [0, 4, 8, 12, 16, 60, 112] {
        let mut uses: HashMap<[u32; 2], u32> = HashMap::new();
        for hash in 0..16_000 {
            let path = walk(&topology, host, (host + 64) % 128, hash);
            *uses.entry([path[1], path[2]]).or_default() += 1;
        }
        let expected = 16_000.0 / f64::from(cells);
        let squares = uses.values().map(|n| (f64::from(*n) - expected).powi(2));
        let chi_square = squares.sum::<f64>() / expected;
        assert_eq!(uses.len() as u32, cells);
        // Pearson's chi-square test with 15 degrees of freedom: 0.1 % and 99.9 %.
        assert!((3.48..37.7).contains(&chi_square), "h{host}: {chi_square}");
    }
}

#[test]
fn pictures_are_of_what_is_in_use() {
    let figure = |plan| Topology::new(plan).unwrap().figure("", "note");
    let whole = figure(fat_tree(128, 8));
    assert_eq!((whole.switches.len(), whole.links.len()), (80, 256));
    assert_eq!(whole.note, "note");
    // Four pods of eight, and the cores, which are numbered after all edge and aggregation switches.
    let half = figure(fat_tree(64, 8));
    assert_eq!((half.switches.len(), half.links.len()), (48, 128));
    assert_eq!(half.switches[16], "agg0");
    assert!(
        half.note.contains("not drawn: 32 switches"),
        "{}",
        half.note
    );
    assert_eq!(half.hosts[63], ("h63".to_owned(), 15));
}

#[test]
fn what_is_not_connected_is_named() {
    let mut plan = dumbbell(4);
    plan.links.pop();
    let error = Topology::new(plan).unwrap_err();
    assert_eq!(error, "right cannot reach left, the switch of h0, h1");
    for (link, needed) in [
        (None, "host h4 has no link"),
        (Some((End::Host(4), End::Host(0))), "h4 and h0 are hosts"),
        (
            Some((End::Switch(1), End::Switch(1))),
            "of right ends where it begins",
        ),
        (Some((End::Switch(1), End::Host(0))), "host h0 has 2 links"),
    ] {
        let mut plan = dumbbell(4);
        plan.hosts = 5;
        plan.links.extend(link);
        let error = Topology::new(plan).unwrap_err();
        assert!(error.contains(needed), "{error}");
    }
}

/// A flow from the first host to the last crosses all switches. The victim of a chain shares the ports between switches
/// with S1, but not the last port.
#[test]
fn rows_are_crossed_from_end_to_end() {
    for (hosts, switches) in [(2, 2), (4, 4), (11, 4), (40, 7)] {
        let topology = Topology::new(parking_lot(hosts, switches)).unwrap();
        assert_eq!(topology.hops(0, hosts - 1), switches + 1);
        let at: HashSet<u32> = (0..hosts)
            .map(|host| topology.node[topology.peer[host as usize] as usize])
            .collect();
        assert_eq!(at.len() as u32, switches);
    }
    let topology = Topology::new(chain(19)).unwrap();
    let names = |host| topology.host_name(host);
    assert_eq!(
        [0, 1, 2, 3, 4, 18].map(names),
        ["S0", "S1", "R0", "R1", "A0", "A14"]
    );
    let (victim, other) = (walk(&topology, 0, 2, 5), walk(&topology, 1, 3, 9));
    assert_eq!(victim[1..4], other[1..4]);
    assert_ne!(victim[4], other[4]);
    assert_eq!(walk(&topology, 4, 3, 1)[1], other[4]);
}
