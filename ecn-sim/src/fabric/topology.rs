//! Connections of a network, and the ports through which switches reach hosts.
//!
//! A topology is a function that names switches and lists links ([`Plan`]). Routes follow from the links: all ports on
//! shortest paths, for each pair of a switch and an *edge* switch (one that has hosts), so that memory grows with
//! switches and not with pairs of hosts.

mod plans;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;

pub use plans::*;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use ecn_core::fixed::GOLDEN;
use ecn_report::figure::{NetworkFigure, Special};
use ecn_units::DurationText;
use foldhash::fast::FixedState;

use super::failures::outage::Outage;
use super::links::LinkOverride;
use super::packet::NONE;
use crate::engine::{NS, Time};

/// One end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A host, with a single link.
    Host(u32),
    /// A switch.
    Switch(u32),
}

/// Hosts, switches and links.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Number of hosts.
    pub hosts: u32,
    /// Names of the hosts; if empty, they are `h0`, `h1` and so on.
    pub host_names: Vec<String>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// Links, each in both directions.
    pub links: Vec<(End, End)>,
    /// Rates and delays that differ, by index into `links`.
    pub link_overrides: BTreeMap<usize, LinkOverride>,
    /// Links that are down at some time.
    pub outages: Vec<Outage>,
}

fn host_name(names: &[String], host: u32) -> String {
    let named = names.get(host as usize);
    named.cloned().unwrap_or_else(|| format!("h{host}"))
}

impl Plan {
    /// Name of a host.
    pub fn host_name(&self, host: u32) -> String {
        host_name(&self.host_names, host)
    }

    /// Name of a host or switch.
    pub fn name(&self, end: End) -> String {
        match end {
            End::Host(host) => self.host_name(host),
            End::Switch(switch) => self.switches[switch as usize].clone(),
        }
    }

    fn check(&self) -> Result<(), String> {
        let mut links_of = vec![0_u32; self.hosts as usize];
        for &(a, b) in &self.links {
            let names = || (self.name(a), self.name(b));
            match (a, b) {
                (End::Host(_), End::Host(_)) => {
                    let (a, b) = names();
                    return Err(format!(
                        "{a} and {b} are hosts: a link needs a switch at one end"
                    ));
                }
                (End::Switch(_), End::Switch(_)) if a == b => {
                    return Err(format!("a link of {} ends where it begins", names().0));
                }
                (End::Host(host), _) | (_, End::Host(host)) => links_of[host as usize] += 1,
                _ => {}
            }
        }
        match (0..).zip(links_of).find(|(_, links)| *links != 1) {
            None => Ok(()),
            Some((host, 0)) => Err(format!("host {} has no link", self.host_name(host))),
            Some((host, links)) => {
                let name = self.host_name(host);
                Err(format!("host {name} has {links} links: it must have one"))
            }
        }
    }
}

/// The route of a switch to an edge switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Route {
    /// Index of its ports in [`Topology::sets`].
    first: u32,
    /// Number of ports; 0 if it is that switch, or cannot reach it.
    ports: u16,
    /// Links up to the edge switch, or [`UNREACHABLE`].
    distance: u16,
}

/// Distance of an edge switch that failed links have disconnected.
const UNREACHABLE: u16 = u16::MAX;

/// A step of SplitMix64: each bit of the result depends on all bits (Steele, Lea and Flood, "Fast splittable pseudorandom
/// number generators", OOPSLA 2014; constants of Stafford's variant 13). A single multiplication is not enough: it spreads
/// consecutive numbers more evenly than chance.
const fn mix(number: u64) -> u64 {
    let mixed = number.wrapping_add(GOLDEN);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

impl Route {
    const NONE: Self = Self {
        first: 0,
        ports: 0,
        distance: UNREACHABLE,
    };
}

/// Edge switches whose routes are computed and stored together.
const BLOCK: usize = 32;

/// A set of a block's edges, as bits.
type Edges = u32;

/// Sets of ports without duplicates.
#[derive(Default)]
struct Sets {
    ports: Vec<u32>,
    known: HashMap<Vec<u32>, u32, FixedState>,
}

impl Sets {
    /// Groups edges at this distance from a switch by the set of ports that lead to them. `ahead`: by port, the edges
    /// to which it leads.
    fn divide(&mut self, ahead: &[Edges], edges: Edges, distance: u16, row: &mut [Route; BLOCK]) {
        let mut left = edges;
        while left != 0 {
            let first = left & left.wrapping_neg();
            let (mut alike, mut set) = (left, Vec::new());
            for (port, edges) in (0..).zip(ahead) {
                if edges & first == 0 {
                    alike &= !edges;
                } else {
                    alike &= edges;
                    set.push(port);
                }
            }
            left &= !alike;
            let route = Route {
                ports: set.len() as u16,
                first: *self.known.entry(set).or_insert_with_key(|set| {
                    self.ports.extend(set);
                    (self.ports.len() - set.len()) as u32
                }),
                distance,
            };
            for (bit, own) in row.iter_mut().enumerate() {
                if alike >> bit & 1 != 0 {
                    *own = route;
                }
            }
        }
    }
}

/// A runnable network. Ports are numbered consecutively: that of host `h` is `h`, followed by those of each switch.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Number of hosts.
    pub hosts: u32,
    /// Names of the switches.
    pub names: Vec<String>,
    /// Names of the hosts, if not derived from their numbers.
    host_names: Vec<String>,
    /// First port of each switch, and the end of the last one's.
    first_port: Vec<u32>,
    /// The port at the other end.
    pub peer: Vec<u32>,
    /// By port, rates and delays of links that differ; empty if all are alike.
    pub link_overrides: Vec<LinkOverride>,
    /// The switch of each port; for a host's port, the host.
    pub node: Vec<u32>,
    /// The edge of each host, as an index into a switch's routes.
    edge_of: Vec<u32>,
    /// Number of edges.
    edges: u32,
    /// By switch and block of edges, the index in `routes`.
    blocks: Vec<u32>,
    /// Blocks without duplicates, for all switches: few enough to stay in the caches, as each packet needs a route at
    /// each switch.
    routes: Vec<[Route; BLOCK]>,
    /// Ports, as indices at their switch.
    sets: Vec<u32>,
    /// Which switches are on a path between hosts: not, for example, those in pods of a fat tree without hosts.
    used: Vec<bool>,
    /// Links between the two edges that are farthest apart.
    farthest: u16,
    /// Mixed into the hash that selects among equal paths.
    salt: u32,
    /// By port, whether routes avoid its link; empty if all are used.
    down: Vec<bool>,
    /// Links that fail or return during a run, by time.
    pub changes: Vec<Change>,
}

/// Links that fail or return, and changed routes, at a time.
#[derive(Clone, Debug)]
pub struct Change {
    /// The time; the change precedes all other events at it.
    pub time: Time,
    /// Ports of links that fail.
    pub fails: Vec<u32>,
    /// Ports of links that return.
    pub returns: Vec<u32>,
    /// The new routes, if they change.
    pub routes: Option<Topology>,
}

impl Topology {
    /// Numbers the ports and computes the routes.
    ///
    /// # Errors
    ///
    /// A host without a link or with two, a link without a switch or from a switch to itself, or a switch that cannot
    /// reach a host; by name.
    pub fn new(plan: Plan) -> Result<Self, String> {
        plan.check()?;
        let (hosts, switches) = (plan.hosts, plan.switches.len() as u32);
        let mut first_port = vec![0; switches as usize + 1];
        for end in plan.links.iter().flat_map(|(a, b)| [a, b]) {
            if let End::Switch(switch) = *end {
                first_port[switch as usize + 1] += 1;
            }
        }
        first_port[0] = hosts;
        for index in 1..first_port.len() {
            first_port[index] += first_port[index - 1];
        }
        let ports = first_port.last().copied().unwrap_or(hosts) as usize;
        let (mut peer, mut node) = (vec![u32::MAX; ports], vec![0; ports]);
        let mut next = first_port.clone();
        let mut port_of = |end: End| match end {
            End::Host(host) => (host, host),
            End::Switch(switch) => {
                let port = next[switch as usize];
                next[switch as usize] += 1;
                (port, switch)
            }
        };
        let alike = plan.link_overrides.is_empty();
        let mut link_overrides = vec![LinkOverride::default(); if alike { 0 } else { ports }];
        let mut ends = Vec::with_capacity(plan.links.len());
        for (number, (a, b)) in plan.links.into_iter().enumerate() {
            let ((a, node_a), (b, node_b)) = (port_of(a), port_of(b));
            ends.push([a, b]);
            if let Some(own) = plan.link_overrides.get(&number) {
                (link_overrides[a as usize], link_overrides[b as usize]) = (*own, *own);
            }
            (peer[a as usize], peer[b as usize]) = (b, a);
            (node[a as usize], node[b as usize]) = (node_a, node_b);
        }
        let mut topology = Self {
            hosts,
            names: plan.switches,
            host_names: plan.host_names,
            first_port,
            peer,
            link_overrides,
            node,
            edge_of: Vec::new(),
            edges: 0,
            blocks: Vec::new(),
            routes: Vec::new(),
            sets: Vec::new(),
            used: Vec::new(),
            farthest: 0,
            salt: 0,
            down: Vec::new(),
            changes: Vec::new(),
        };
        topology.find_edges();
        let (always, changing): (Vec<&Outage>, _) = plan
            .outages
            .iter()
            .partition(|outage| outage.is_permanent());
        topology.avoid(always.into_iter(), &ends);
        topology.find_routes()?;
        topology.changes = topology.changes_by(&changing, &ends)?;
        Ok(topology)
    }

    /// Excludes these links from routes, too.
    fn avoid<'a>(&mut self, outages: impl Iterator<Item = &'a Outage>, ends: &[[u32; 2]]) {
        for port in outages.flat_map(|outage| ends[outage.link]) {
            self.down.resize(self.peer.len(), false);
            self.down[port as usize] = true;
        }
    }

    fn changes_by(&self, outages: &[&Outage], ends: &[[u32; 2]]) -> Result<Vec<Change>, String> {
        let times = outages.iter().flat_map(|outage| outage.times());
        let times: BTreeSet<Time> = times.collect();
        let ports = |of: &dyn Fn(&Outage) -> bool| {
            let outages = outages.iter().filter(|outage| of(outage));
            outages.flat_map(|outage| ends[outage.link]).collect()
        };
        let change = |time| {
            let moves = outages.iter().any(|outage| outage.moves_routes(time));
            let routes = moves.then(|| {
                let mut routes = self.clone();
                let avoided = outages.iter().filter(|outage| outage.is_avoided(time));
                routes.avoid(avoided.copied(), ends);
                routes.find_routes().map(|()| routes)
            });
            Ok(Change {
                time,
                fails: ports(&|outage| outage.from == time),
                returns: ports(&|outage| outage.to == Some(time)),
                routes: routes.transpose()?,
            })
        };
        times.into_iter().map(change).collect()
    }

    /// Selects the paths of a seed: with each seed, flows choose differently among equal paths. The first seed's paths
    /// depend on the flows' numbers only.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Self {
        let salt = (seed.wrapping_sub(1).wrapping_mul(GOLDEN) >> 32) as u32;
        let mut seeded = Self { salt, ..self };
        for change in &mut seeded.changes {
            let routes = change.routes.iter_mut();
            routes.for_each(|routes| routes.salt = salt);
        }
        seeded
    }

    fn find_edges(&mut self) {
        let mut number = HashMap::new();
        for host in 0..self.hosts {
            let switch = self.edge(host);
            let next = number.len() as u32;
            self.edge_of.push(*number.entry(switch).or_insert(next));
        }
        self.edges = number.len() as u32;
    }

    fn find_routes(&mut self) -> Result<(), String> {
        let mut edges = vec![0; self.edges as usize];
        for (host, edge) in (0..).zip(&self.edge_of) {
            edges[*edge as usize] = self.edge(host);
        }
        let (switches, count) = (self.names.len(), edges.len().div_ceil(BLOCK));
        self.used = vec![false; switches];
        self.blocks = vec![0; switches * count];
        (self.routes, self.farthest) = (Vec::new(), 0);
        let ports = 0..self.peer.len() as u32;
        let neighbours: Vec<_> = ports.map(|port| self.neighbour(port)).collect();
        let (mut sets, mut known) = (Sets::default(), HashMap::<_, _, FixedState>::default());
        for (block, targets) in edges.chunks(BLOCK).enumerate() {
            let levels = self.levels(targets, &neighbours)?;
            let mut rows = vec![[Route::NONE; BLOCK]; switches];
            for (bit, target) in targets.iter().enumerate() {
                rows[*target as usize][bit] = Route::default();
            }
            // Edges to which data passes each switch, and edges to which it is nearer than the switches of the level.
            let (mut by, mut nearer) = (vec![0; switches], vec![0; switches]);
            for edge in &edges {
                by[*edge as usize] = Edges::MAX;
            }
            let mut ahead = Vec::new();
            for distance in (1..levels.len()).rev() {
                for (switch, edges) in &levels[distance - 1] {
                    nearer[*switch as usize] = *edges;
                }
                for &(switch, edges) in &levels[distance] {
                    ahead.clear();
                    for there in &neighbours[self.range(switch)] {
                        let there = there.map(|there| there as usize);
                        let on = there.map_or(0, |there| nearer[there] & edges);
                        ahead.push(on);
                        if let Some(there) = there {
                            by[there] |= by[switch as usize] & on;
                        }
                    }
                    let row = &mut rows[switch as usize];
                    sets.divide(&ahead, edges, distance as u16, row);
                }
                for (switch, _) in &levels[distance - 1] {
                    nearer[*switch as usize] = 0;
                }
            }
            for (switch, row) in rows.iter().enumerate() {
                self.used[switch] |= by[switch] != 0;
                self.blocks[switch * count + block] = *known.entry(*row).or_insert_with(|| {
                    self.routes.push(*row);
                    self.routes.len() as u32 - 1
                });
            }
            let own = edges.iter().flat_map(|edge| &rows[*edge as usize]);
            let distances = own.map(|route| route.distance);
            let farthest = distances.filter(|distance| *distance != UNREACHABLE).max();
            self.farthest = self.farthest.max(farthest.unwrap_or_default());
        }
        self.sets = sets.ports;
        Ok(())
    }

    /// By distance, the switches that are at that distance from some of the targets, with these: one search for all
    /// targets (Then et al., "The more the merrier: efficient multi-source graph traversal", PVLDB 8(4), 2014).
    fn levels(
        &self,
        targets: &[u32],
        neighbours: &[Option<u32>],
    ) -> Result<Vec<Vec<(u32, Edges)>>, String> {
        let (mut reached, mut next) = (vec![0; self.names.len()], vec![0; self.names.len()]);
        let own = |(bit, target): (usize, &u32)| (*target, 1 << bit);
        let mut level: Vec<(u32, Edges)> = targets.iter().enumerate().map(own).collect();
        for (switch, edges) in &level {
            reached[*switch as usize] = *edges;
        }
        let mut levels = Vec::new();
        while !level.is_empty() {
            let mut found = Vec::new();
            for (switch, edges) in &level {
                for there in neighbours[self.range(*switch)].iter().flatten() {
                    let new = edges & !reached[*there as usize];
                    if new != 0 && next[*there as usize] == 0 {
                        found.push(*there);
                    }
                    next[*there as usize] |= new;
                }
            }
            levels.push(level);
            let enter = |switch: u32| {
                let edges = std::mem::take(&mut next[switch as usize]);
                reached[switch as usize] |= edges;
                (switch, edges)
            };
            level = found.into_iter().map(enter).collect();
        }
        // Links are bidirectional: a switch that reaches one edge reaches all. Switches disconnected by failed links
        // are unused.
        if let Some(from) = reached.iter().position(|edges| edges & 1 == 0)
            && self.down.is_empty()
        {
            let (from, to) = (&self.names[from], &self.names[targets[0] as usize]);
            let hosts = self.some_hosts(targets[0]);
            return Err(format!("{from} cannot reach {to}, the switch of {hosts}"));
        }
        Ok(levels)
    }

    /// Names of the hosts at a switch, or of the first few.
    fn some_hosts(&self, switch: u32) -> String {
        const FEW: usize = 4;
        let here = |host: &u32| self.node[self.peer[*host as usize] as usize] == switch;
        let mut hosts = (0..self.hosts).filter(here);
        let few: Vec<String> = hosts
            .by_ref()
            .take(FEW)
            .map(|host| self.host_name(host))
            .collect();
        match hosts.count() {
            0 => few.join(", "),
            more => format!("{} and {more} more", few.join(", ")),
        }
    }

    /// The switches by their distance from the nearest host, starting with those that have hosts.
    pub fn tiers(&self) -> Vec<Vec<u32>> {
        let mut tier: Vec<Option<usize>> = vec![None; self.names.len()];
        for host in 0..self.hosts {
            tier[self.edge(host) as usize] = Some(0);
        }
        let of_tier = |tier: &[Option<usize>], wanted| {
            let found = (0..self.names.len() as u32).filter(|s| tier[*s as usize] == Some(wanted));
            found.collect::<Vec<_>>()
        };
        let mut tiers = vec![of_tier(&tier, 0)];
        loop {
            let next = tiers.len();
            for switch in &tiers[next - 1] {
                for port in self.ports(*switch) {
                    if let Some(there) = self.neighbour(port) {
                        tier[there as usize].get_or_insert(next);
                    }
                }
            }
            let found = of_tier(&tier, next);
            if found.is_empty() {
                return tiers;
            }
            tiers.push(found);
        }
    }

    /// The switch at the other end of a port's link, if there is one and the link is up.
    fn neighbour(&self, port: u32) -> Option<u32> {
        let peer = self.peer[port as usize];
        (peer >= self.hosts && !self.is_down(port)).then(|| self.node[peer as usize])
    }

    /// Whether routes avoid the link of a port.
    pub fn is_down(&self, port: u32) -> bool {
        self.down.get(port as usize).is_some_and(|down| *down)
    }

    /// Whether any host, or switch with hosts, is unreachable from others.
    pub fn is_parted(&self) -> bool {
        let hosts = 0..self.hosts;
        let cut_off = |edge| self.route_to_edge(self.edge(0), edge).distance == UNREACHABLE;
        !self.down.is_empty()
            && (hosts.into_iter().any(|host| self.is_down(host)) || (0..self.edges).any(cut_off))
    }

    /// Whether packets of a host can reach another one.
    pub fn reaches(&self, from: u32, to: u32) -> bool {
        let route = self.route_to_edge(self.edge(from), self.edge_of[to as usize]);
        route.distance != UNREACHABLE && !self.is_down(from) && !self.is_down(to)
    }

    /// The ports of a switch.
    pub fn ports(&self, switch: u32) -> std::ops::Range<u32> {
        self.first_port[switch as usize]..self.first_port[switch as usize + 1]
    }

    /// [`Self::ports`] as indices.
    fn range(&self, switch: u32) -> std::ops::Range<usize> {
        let ports = self.ports(switch);
        ports.start as usize..ports.end as usize
    }

    /// Number of ports of the smallest switch on a path between hosts.
    pub fn fewest_ports(&self) -> u32 {
        let switches = (0..).zip(&self.used).filter(|(_, used)| **used);
        let ports = switches.map(|(switch, _)| self.ports(switch).len());
        ports.min().unwrap_or_default() as u32
    }

    /// Number of ports of the largest switch.
    pub fn most_ports(&self) -> u32 {
        let ports = (0..self.names.len() as u32).map(|switch| self.ports(switch).len());
        ports.max().unwrap_or_default() as u32
    }

    /// Index of a port at its switch; 0 for a host's.
    pub fn port_index(&self, port: u32) -> u16 {
        if port < self.hosts {
            return 0;
        }
        (port - self.ports(self.node[port as usize]).start) as u16
    }

    /// The switch of a host.
    pub fn edge(&self, host: u32) -> u32 {
        self.node[self.peer[host as usize] as usize]
    }

    /// The port through which a switch sends packets with this hash to a host. It is always the same for a hash;
    /// switches choose independently of each other, because each mixes its number into the hash. [`NONE`] if the host
    /// is unreachable.
    #[inline]
    pub fn route(&self, switch: u32, host: u32, hash: u32) -> u32 {
        let route = self.route_to_edge(switch, self.edge_of[host as usize]);
        let choice = match route.ports {
            0 if route.distance == UNREACHABLE => return NONE,
            // The host is at this switch.
            0 => return self.peer[host as usize],
            1 => 0,
            ports => {
                let mixed = mix(u64::from(hash ^ self.salt) << 32 | u64::from(switch));
                ((mixed >> 32) * u64::from(ports)) >> 32
            }
        };
        self.first_port[switch as usize] + self.sets[route.first as usize + choice as usize]
    }

    /// The ports that packets with this hash pass from one host to another.
    pub fn path(&self, from: u32, to: u32, hash: u32) -> Vec<u32> {
        let mut ports = vec![from];
        let mut next = self.peer[from as usize];
        while next >= self.hosts {
            let port = self.route(self.node[next as usize], to, hash);
            ports.push(port);
            next = self.peer[port as usize];
        }
        ports
    }

    /// The route of a switch to an edge.
    #[inline]
    fn route_to_edge(&self, switch: u32, edge: u32) -> Route {
        let blocks = (self.edges as usize).div_ceil(BLOCK);
        let edge = edge as usize;
        let block = self.blocks[switch as usize * blocks + edge / BLOCK];
        self.routes[block as usize][edge % BLOCK]
    }

    /// Number of links between two hosts.
    pub fn hops(&self, from: u32, to: u32) -> u32 {
        let route = self.route_to_edge(self.edge(from), self.edge_of[to as usize]);
        2 + u32::from(route.distance)
    }

    /// Name of a host.
    pub fn host_name(&self, host: u32) -> String {
        host_name(&self.host_names, host)
    }

    /// Number of links of the longest path.
    pub fn longest(&self) -> u32 {
        2 + u32::from(self.farthest)
    }

    /// Calls `visit` with each switch on a path from a host to an edge, for all edges, and the index of the routes
    /// in use. `routes` are in force one after the other: a packet that used earlier ones may continue with later ones.
    fn visit_paths(&self, routes: &[&Self], mut visit: impl FnMut(u32, u32, usize)) {
        let mut edges: Vec<u32> = (0..self.hosts).map(|host| self.edge(host)).collect();
        edges.sort_unstable();
        edges.dedup();
        let start =
            (0..routes.len()).flat_map(|moved| edges.iter().map(move |edge| (*edge, moved)));
        let start: Vec<(u32, usize)> = start.collect();
        for target in 0..self.edges {
            let mut reached = start.clone();
            let mut seen = vec![false; self.names.len() * routes.len()];
            while let Some((switch, moved)) = reached.pop() {
                let state = switch as usize * routes.len() + moved;
                if std::mem::replace(&mut seen[state], true) {
                    continue;
                }
                visit(switch, target, moved);
                let ports = routes[moved].ports_to(switch, target);
                for there in ports.filter_map(|port| routes[moved].neighbour(port)) {
                    reached.extend((moved..routes.len()).map(|moved| (there, moved)));
                }
            }
        }
    }

    /// The ports through which a switch reaches an edge.
    fn ports_to(&self, switch: u32, edge: u32) -> impl Iterator<Item = u32> {
        let route = self.route_to_edge(switch, edge);
        let own = &self.sets[route.first as usize..][..route.ports.into()];
        let first = self.first_port[switch as usize];
        own.iter().map(move |port| first + port)
    }

    /// A cycle of ports that wait for each other, if routes permit one: data that can leave one port only when the next
    /// has room may then be blocked forever (Dally and Seitz, IEEE Transactions on Computers 36(5), 1987). Where routes
    /// change, packets that were queued under old routes leave under new ones.
    pub fn wait_cycle(&self) -> Option<Vec<u32>> {
        let moved = self
            .changes
            .iter()
            .filter_map(|change| change.routes.as_ref());
        let all: Vec<&Self> = std::iter::once(self).chain(moved).collect();
        match all[..] {
            [only] => self.cycle_of(&[only]),
            _ => all.windows(2).find_map(|both| self.cycle_of(both)),
        }
    }

    fn cycle_of(&self, routes: &[&Self]) -> Option<Vec<u32>> {
        let mut next: Vec<Vec<u32>> = vec![Vec::new(); self.peer.len()];
        self.visit_paths(routes, |switch, target, moved| {
            for port in routes[moved].ports_to(switch, target) {
                if let Some(there) = routes[moved].neighbour(port) {
                    let after = routes[moved..].iter();
                    let ports = after.flat_map(|after| after.ports_to(there, target));
                    next[port as usize].extend(ports);
                }
            }
        });
        for ports in &mut next {
            ports.sort_unstable();
            ports.dedup();
        }
        // Depth-first search: reaching a port on the current path closes a cycle.
        let mut done = vec![false; next.len()];
        for start in 0..next.len() as u32 {
            let mut path = vec![(start, 0)];
            while let Some((port, tried)) = path.last_mut() {
                let port = *port;
                let Some(&ahead) = next[port as usize].get(*tried) else {
                    done[port as usize] = true;
                    path.pop();
                    continue;
                };
                *tried += 1;
                if let Some(first) = path.iter().position(|(port, _)| *port == ahead) {
                    return Some(path[first..].iter().map(|(port, _)| *port).collect());
                }
                if !done[ahead as usize] {
                    path.push((ahead, 0));
                }
            }
        }
        None
    }

    /// A figure, without switches that are on no path between hosts, except if that is due to failed links.
    pub fn figure(&self, title: &str, note: &str) -> NetworkFigure {
        let mut used = self.used.clone();
        for port in self.hosts..self.peer.len() as u32 {
            used[self.node[port as usize] as usize] |= self.fails_at_all(port);
        }
        let used = &used;
        // Indices among the switches that are drawn.
        let drawn: Vec<usize> = used
            .iter()
            .scan(0, |next, used| {
                let number = *next;
                *next += usize::from(*used);
                Some(number)
            })
            .collect();
        let unused = used.iter().filter(|used| !**used).count();
        let note = match unused {
            0 => note.to_owned(),
            _ => {
                format!("{note}; not drawn: {unused} switches out of use")
            }
        };
        let names = self.names.iter().zip(used).filter(|(_, used)| **used);
        let (mut links, mut special) = (Vec::new(), BTreeMap::new());
        for port in self.hosts..self.peer.len() as u32 {
            let peer = self.peer[port as usize];
            let [a, b] = [port, peer].map(|port| self.node[port as usize] as usize);
            if peer > port && used[a] && used[b] {
                let failed = self.fails_at_all(port);
                let label = self.link_label(port);
                if failed || !label.is_empty() {
                    special.insert(links.len(), Special { failed, label });
                }
                links.push((drawn[a], drawn[b]));
            }
        }
        let host = |host| (self.host_name(host), drawn[self.edge(host) as usize]);
        let failed = (0..self.hosts).filter(|host| self.fails_at_all(*host));
        NetworkFigure {
            title: title.to_owned(),
            note,
            switches: names.map(|(name, _)| name.clone()).collect(),
            hosts: (0..self.hosts).map(host).collect(),
            links,
            special,
            failed_hosts: failed.map(|host| self.host_name(host)).collect(),
        }
    }

    fn fails_at_all(&self, port: u32) -> bool {
        let fails = |change: &Change| change.fails.contains(&port);
        self.is_down(port) || self.changes.iter().any(fails)
    }

    /// When the link of a port is down, or its rate and delay if they differ.
    fn link_label(&self, port: u32) -> String {
        if self.is_down(port) {
            return "down".to_owned();
        }
        let time = |time| DurationText::from_nanos(time / NS).to_string();
        let mut label: Vec<String> = Vec::new();
        for change in &self.changes {
            if change.fails.contains(&port) {
                label.push(format!("down {}..", time(change.time)));
            }
            if change.returns.contains(&port)
                && let Some(label) = label.last_mut()
            {
                label.push_str(&time(change.time));
            }
        }
        let own = self
            .link_overrides
            .get(port as usize)
            .copied()
            .unwrap_or_default();
        label.extend(own.rate.map(|rate| rate.to_string()));
        label.extend(own.delay.map(|delay| delay.to_string()));
        label.join(", ")
    }

    /// Name of a port.
    pub fn port_name(&self, port: u32) -> String {
        let node = self.node[port as usize];
        if port < self.hosts {
            return format!("host {}", self.host_name(node));
        }
        let own = self.port_index(port);
        format!("{} port {own}", self.names[node as usize])
    }
}
