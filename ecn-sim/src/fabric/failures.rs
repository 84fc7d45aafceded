//! Links that are down from the start, or fail and return during a run.
//!
//! Packets on the link when it fails, and those waiting at its ports, are lost. Routes change to the shortest remaining
//! paths at once, or after `reroute`; until then, packets routed to the link are lost, too. When the link returns, its
//! ends have no state about each other: neither sends data until the other end has announced which classes it may send
//! (PFC), or how much (credits). Senders go back to the first missing packet, in lossless networks as well.

pub(super) mod outage;

use std::collections::BTreeMap;
use std::fmt;

use ecn_units::{DurationText, nearest, suggestion};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use outage::Outage;

use super::parameters::FabricParameters;
use super::topology::{End, Plan, Topology};
use super::workload::Arrivals;
use crate::bounds::ModelError;
use crate::engine::{NS, Time};
use crate::settings::pairs;

/// Links that are down for some time, as specified in a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// The ends; with ranges, several links.
    link: [String; 2],
    /// When it fails; if missing, before the run.
    from: Option<DurationText>,
    /// When it returns, if it does.
    to: Option<DurationText>,
    /// Delay from the link's failure or return until routes change; if missing, they change at once.
    reroute: Option<DurationText>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b] = &self.link;
        write!(f, "{a} to {b}")?;
        match (self.from, self.to) {
            (None, None) => Ok(()),
            (Some(from), None) => write!(f, ", from {from}"),
            (from, Some(to)) => {
                let from = from.unwrap_or(DurationText::from_nanos(0));
                write!(f, ", {from}..{to}")
            }
        }
    }
}

/// Packets that were lost because links failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Lost {
    /// Data packets that were on a link when it failed.
    pub on_link: u64,
    /// Those that waited at one of its ports.
    pub queued: u64,
    /// Those whose route led over it before routes moved, or that had none.
    pub no_route: u64,
    /// ACKs, notifications and messages of ports, for any of these reasons.
    pub control: u64,
}

impl Lost {
    /// All lost data packets.
    pub const fn data(&self) -> u64 {
        self.on_link + self.queued + self.no_route
    }

    /// Adds the packets lost in another part of the network.
    pub const fn add(&mut self, other: &Self) {
        self.on_link += other.on_link;
        self.queued += other.queued;
        self.no_route += other.no_route;
        self.control += other.control;
    }
}

fn refused(failure: &Failure, reason: impl fmt::Display) -> ModelError {
    ModelError::new("failures", failure, reason)
}

/// The outages of a plan's links.
///
/// # Errors
///
/// An unknown name or link, or inconsistent times.
pub fn outages(
    failures: &[Failure],
    plan: &Plan,
    usual: &FabricParameters,
) -> Result<Vec<Outage>, ModelError> {
    let mut all: Vec<Outage> = Vec::new();
    if failures.is_empty() {
        return Ok(all);
    }
    let named = Named::of(plan);
    for failure in failures {
        let [a, b] = &failure.link;
        for (a, b) in pairs(a, b).map_err(|reason| refused(failure, reason))? {
            let links = named.links(&a, &b);
            for link in links.map_err(|reason| refused(failure, reason))? {
                let outage = failure.of(link, plan, usual)?;
                let overlaps = |other: &&Outage| {
                    let ends = |outage: &Outage| outage.to.unwrap_or(Time::MAX);
                    other.link == link && outage.from <= ends(other) && other.from <= ends(&outage)
                };
                if all.iter().any(|other| overlaps(&other)) {
                    let reason =
                        format!("{a} to {b} is down in another of [[failures]] at that time");
                    return Err(refused(failure, reason));
                }
                all.push(outage);
            }
        }
    }
    Ok(all)
}

impl Failure {
    /// Whether it is down from before the run until its end.
    pub fn is_permanent(&self) -> bool {
        self.to.is_none() && self.from.is_none_or(DurationText::is_zero)
    }

    fn of(&self, link: usize, plan: &Plan, usual: &FabricParameters) -> Result<Outage, ModelError> {
        let longest = DurationText::from_secs(3_600);
        let times = [self.from, self.to, self.reroute];
        if times.iter().flatten().any(|time| *time > longest) {
            return Err(refused(self, format!("times must be at most {longest}")));
        }
        let [from, to, reroute] = times.map(|time| time.map(|time| time.as_nanos() * NS));
        let from = from.unwrap_or(0);
        let own = plan.link_overrides.get(&link).copied().unwrap_or_default();
        let own = own.link(usual);
        // So that packets sent before the failure cannot be mistaken for packets sent after the return.
        let least = own.delay + own.wire_time(usual.payload + usual.header) + NS;
        if to.is_some_and(|to| to < from + least) {
            let least = DurationText::from_nanos(least.div_ceil(NS));
            let reason =
                format!("must be down for at least {least}, the time of a packet on the link");
            return Err(refused(self, reason));
        }
        Ok(Outage {
            link,
            from,
            to,
            reroute: reroute.unwrap_or(0),
        })
    }
}

/// The nodes of a plan and the links between them, by name.
struct Named<'a> {
    plan: &'a Plan,
    ends: BTreeMap<String, End>,
}

impl<'a> Named<'a> {
    fn of(plan: &'a Plan) -> Self {
        let hosts = (0..plan.hosts).map(|host| (plan.host_name(host), End::Host(host)));
        let switches = plan.switches.iter().cloned().zip((0..).map(End::Switch));
        Self {
            plan,
            ends: hosts.chain(switches).collect(),
        }
    }

    fn end(&self, name: &str) -> Result<End, String> {
        self.ends.get(name).copied().ok_or_else(|| {
            let hint = nearest(name, self.ends.keys().map(String::as_str));
            let hint = hint.map(|near| format!(": did you mean `{near}`?"));
            format!(
                "unknown host or switch `{name}`{}",
                hint.unwrap_or_default()
            )
        })
    }

    /// All links between two nodes.
    fn links(&self, a: &str, b: &str) -> Result<Vec<usize>, String> {
        let (end, other) = (self.end(a)?, self.end(b)?);
        let links = || self.plan.links.iter().enumerate();
        let between = links().filter(|(_, ends)| [(end, other), (other, end)].contains(ends));
        let found: Vec<usize> = between.map(|(link, _)| link).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let of_it = links().filter_map(|(_, (from, to))| match end {
            end if *from == end => Some(self.plan.name(*to)),
            end if *to == end => Some(self.plan.name(*from)),
            _ => None,
        });
        let of_it: Vec<String> = of_it.collect();
        let hint = suggestion(b, &of_it.iter().map(String::as_str).collect::<Vec<_>>());
        Err(format!("no link from `{a}` to `{b}`: {hint}"))
    }
}

/// Rejects flows between hosts that failed links disconnect.
///
/// # Errors
///
/// The hosts' names.
pub fn check(
    topology: &Topology,
    flows: impl FnOnce() -> Result<Arrivals, ModelError>,
) -> Result<(), ModelError> {
    const FEW: usize = 4;
    let moved = topology.changes.iter().filter_map(|change| {
        let routes = change.routes.as_ref()?;
        Some((change.time, routes))
    });
    let all: Vec<_> = std::iter::once((0, topology)).chain(moved).collect();
    let parted: Vec<_> = all
        .into_iter()
        .filter(|(_, routes)| routes.is_parted())
        .collect();
    if parted.is_empty() {
        return Ok(());
    }
    let mut hosts: Vec<(u32, u32)> = Vec::new();
    let mut since = Time::MAX;
    for flow in flows()? {
        let apart = parted
            .iter()
            .find(|(_, routes)| !routes.reaches(flow.from, flow.to));
        if let Some((time, _)) = apart
            && !hosts.contains(&(flow.from, flow.to))
        {
            since = since.min(*time);
            hosts.push((flow.from, flow.to));
            if hosts.len() > FEW {
                break;
            }
        }
    }
    if hosts.is_empty() {
        return Ok(());
    }
    let mut names: Vec<String> = hosts
        .iter()
        .take(FEW)
        .map(|(from, to)| {
            format!(
                "{} to {}",
                topology.host_name(*from),
                topology.host_name(*to)
            )
        })
        .collect();
    if hosts.len() > FEW {
        names.push("others".to_owned());
    }
    let since = DurationText::from_nanos(since / NS);
    let reason = format!(
        "no path is left from {since} on for flows from {}",
        names.join(", ")
    );
    Err(ModelError::new("failures", "[[failures]]", reason))
}
