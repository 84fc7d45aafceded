//! Takes the readings that [`health`](super::health) evaluates, and reports what it finds.
//!
//! Ports are read once a second, with the sweep for stale counters, and flows as the sweep for idle ones visits them,
//! so that nothing is read twice.

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::Ordering,
};

use ecn_core::{
    abi::{self, Count},
    fixed::FRAC,
    flow::{Flow, Key},
    response,
};

use super::{
    Inner, Result, enforce,
    health::{
        self, Change, EndpointReading, FlowsSeen, Health, Journal, PortQueue, PortReading, Reading,
        Shortages, Subject, Warning,
    },
};
use crate::{cli::log, datapath::Maps};

/// The queue of a port that marks is looked up once in this time: tc may change it.
const LOOKUP_NS: u64 = 10_000_000_000;

/// State of the health checks.
#[derive(Default)]
pub(super) struct Watch {
    health: Health,
    journal: Journal,
    /// Result of the last complete pass over the flow table, by endpoint number.
    flows: BTreeMap<u16, FlowsSeen>,
    /// Result of the current pass so far.
    gathered: BTreeMap<u16, FlowsSeen>,
    /// Policies of endpoints that have flows, cached for a second.
    policies: HashMap<u16, abi::Endpoint>,
    /// Queues of ports, by bridge and slot.
    queues: HashMap<(u32, u32), Known>,
}

/// What was looked up of a port's queue.
#[derive(Default)]
struct Known {
    /// Packets that should have been marked, at the last reading.
    asked: u64,
    /// When it was looked up.
    at_ns: u64,
    queue: PortQueue,
}

impl Watch {
    /// Takes a part of the flow table; `last`: the last one of this pass.
    pub(super) fn add_flows(
        &mut self,
        maps: &Maps,
        flows: &[(Key, Flow)],
        last: bool,
        now_ns: u64,
    ) {
        for (key, flow) in flows {
            let number = key.endpoint;
            let policy = self.policies.entry(number).or_insert_with(|| {
                let policy = maps.endpoint(number.into());
                policy.unwrap_or_default()
            });
            let seen = self.gathered.entry(number).or_default();
            seen.add(key, flow, policy, now_ns);
        }
        if last {
            self.flows = std::mem::take(&mut self.gathered);
        }
    }

    /// The current warnings.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        self.journal.warnings()
    }

    /// Adds the queues of ports; `look_up`: that of the n-th port, which is called if the port has marked since the last
    /// reading.
    fn add_queues(
        &mut self,
        ports: &mut [PortReading],
        now_ns: u64,
        mut look_up: impl FnMut(usize) -> PortQueue,
    ) {
        self.queues
            .retain(|id, _| ports.iter().any(|port| port.id == *id));
        for (at, port) in ports.iter_mut().enumerate() {
            let known = self.queues.entry(port.id).or_default();
            let asked = port.counters.marked + port.counters.unmarkable;
            let marks = std::mem::replace(&mut known.asked, asked) < asked;
            if marks && (known.at_ns == 0 || now_ns.saturating_sub(known.at_ns) >= LOOKUP_NS) {
                known.at_ns = now_ns;
                known.queue = look_up(at);
            }
            port.queue = known.queue;
        }
    }
}

impl Inner {
    /// The work of every second: corrects stale counters and evaluates health.
    pub(super) fn every_second(&mut self) -> Result<()> {
        let ports = self.sweep_bridges()?;
        self.check_health(ports)?;
        crate::sys::calls::trim_heap();
        Ok(())
    }

    fn check_health(&mut self, mut ports: Vec<PortReading>) -> Result<()> {
        let now_ns = enforce::now_ns();
        let bridges = &self.bridges;
        let numbers: Vec<(u32, u32)> = ports.iter().map(|port| port.id).collect();
        self.watch.add_queues(&mut ports, now_ns, |at| {
            let port = numbers.get(at).copied();
            let queue =
                port.and_then(|(number, slot)| Some(bridges.get(&number)?.port_queue(slot)));
            queue.unwrap_or_default()
        });
        let endpoints = self.endpoint_readings();
        self.watch.policies.clear();
        let count = |what| self.maps.count(what);
        let refused = self.shared.refused.load(Ordering::Relaxed);
        let reading = Reading {
            now_ns,
            ports,
            endpoints,
            shortages: Shortages {
                flows: count(Count::FlowsFull)?,
                receivers: count(Count::ReceiversFull)?,
                classes: count(Count::ClassesFull)? + refused,
                most_flows: self.config.flow.max.into(),
            },
            fullest: [
                self.fullest(abi::TABLE_FLOWS),
                self.fullest(abi::TABLE_RECEIVERS),
            ],
            echo_protocol: self.config.echo.protocol,
        };
        let found = self.watch.health.read(&reading);
        let (changed, changes) = self.watch.journal.take(found, now_ns);
        for change in changes {
            match change {
                Change::Appeared(warning) => tracing::warn!("{warning}"),
                Change::Over(Warning { kind, subject, .. }) => {
                    tracing::info!("{subject}: over ({})", kind.name());
                }
            }
        }
        let lost = std::mem::replace(&mut self.log_lines_lost, log::lost());
        if changed || self.unwritten || lost != self.log_lines_lost {
            self.save_state();
        }
        Ok(())
    }

    /// The endpoint that has the most entries in a table.
    fn fullest(&self, table: u32) -> Subject {
        let most = self
            .endpoints
            .iter()
            .max_by_key(|(number, _)| self.maps.held(table, **number).unwrap_or(0));
        most.map_or_else(Subject::default, |(_, endpoint)| endpoint.subject())
    }

    /// Endpoints that have limited flows, flows without echoes, or rates that are not enforced.
    fn endpoint_readings(&self) -> Vec<EndpointReading> {
        let readings = self.endpoints.iter().filter_map(|(&number, endpoint)| {
            let number = u16::try_from(number).ok()?;
            let nothing = FlowsSeen::default();
            let flows = self.watch.flows.get(&number).unwrap_or(&nothing);
            let not_enforced = endpoint.lacking().map(str::to_owned);
            if *flows == nothing && not_enforced.is_none() {
                return None;
            }
            let policy = self.maps.endpoint(number.into()).ok()?;
            let floor = health::floor_ipd(&policy).max(1 << FRAC);
            Some(EndpointReading {
                number,
                subject: endpoint.subject(),
                link_bytes_per_s: policy.link_bytes_per_s,
                floor_bytes_per_s: response::rate(floor, policy.link_bytes_per_s),
                fractional: health::is_fractional(&policy),
                not_enforced,
                flows: flows.clone(),
            })
        });
        readings.collect()
    }
}
