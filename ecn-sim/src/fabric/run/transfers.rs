//! Payload transferred by each flow in windows of a run.
//!
//! All flows are read at the start and at the end of a window, so there is no cost per packet.

use std::collections::BTreeMap;

use ecn_report::statistics::jain;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Run;
use crate::engine::{MS, Time};
use crate::fabric::cc::Scheme;
use crate::fabric::measure::Finished;
use crate::fabric::topology::Topology;

/// A window of a run, as `ecn sim run -j` prints it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct WindowReport {
    /// Start, ms.
    pub from_ms: f64,
    /// End, ms: that of the run, if the run ended in the window.
    pub to_ms: f64,
    /// Flows that had data to send in the window.
    pub flows: u64,
    /// Acknowledged payload over the length of the window; null, like the next two, if the run ended before the window.
    pub goodput_bytes_per_s: Option<u64>,
    /// Jain's index of the flows' goodputs: acknowledged payload over the time in which a flow had data to send; also
    /// null if nothing was acknowledged.
    pub jain: Option<f64>,
    /// Goodput by sending host.
    pub senders_bytes_per_s: Option<BTreeMap<String, u64>>,
    /// By class, if flows have classes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub classes: BTreeMap<String, ClassReport>,
}

/// A class of flows (of `[[flows]]`, or Fig. 1's) over some time.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ClassReport {
    /// Flows that had data to send.
    pub flows: u64,
    /// Acknowledged payload over that time.
    pub goodput_bytes_per_s: u64,
    /// Jain's index of the flows' goodputs: acknowledged payload over the time in which a flow had data to send; null
    /// if nothing was acknowledged.
    pub jain: Option<f64>,
}

/// Payload transferred by flows between two times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transfers {
    /// Start of the window.
    pub from: Time,
    /// End of the window.
    pub to: Time,
    /// The flows that started before its end, in order of starts, each with the payload acknowledged in the window.
    pub flows: Vec<Finished>,
}

impl Transfers {
    /// The report of this window; `end`: end of the run.
    pub(in crate::fabric) fn report(
        &self,
        topology: &Topology,
        classes: &[String],
        end: Time,
    ) -> WindowReport {
        let to = if self.from < end {
            self.to.min(end)
        } else {
            self.to
        };
        let ms = |time: Time| time as f64 / MS as f64;
        let active = |flow: &Finished| self.active(flow, to);
        let flows = || self.flows.iter().filter(|flow| active(flow) > 0);
        let time = to - self.from;
        let per_s = |bytes: u64| (bytes as f64 * 1e12 / time as f64) as u64;
        let is_known = self.from < end;
        let senders = || {
            let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
            for flow in flows() {
                *bytes.entry(flow.from).or_default() += flow.bytes;
            }
            let named = |(host, bytes)| (topology.host_name(host), per_s(bytes));
            bytes.into_iter().map(named).collect()
        };
        WindowReport {
            from_ms: ms(self.from),
            to_ms: ms(to),
            flows: flows().count() as u64,
            goodput_bytes_per_s: is_known.then(|| per_s(flows().map(|flow| flow.bytes).sum())),
            jain: jain(
                flows()
                    .filter(|_| is_known)
                    .map(|flow| flow.bytes as f64 / active(flow) as f64),
            ),
            senders_bytes_per_s: is_known.then(senders),
            classes: match is_known {
                true => self.by_class(classes, to),
                false => BTreeMap::new(),
            },
        }
    }

    /// How long a flow had data to send, up to `to`.
    fn active(&self, flow: &Finished, to: Time) -> Time {
        let until = to.min(flow.start + flow.time);
        until.saturating_sub(self.from.max(flow.start))
    }

    /// Reports of the classes with these names, up to `to`.
    pub(in crate::fabric) fn by_class(
        &self,
        names: &[String],
        to: Time,
    ) -> BTreeMap<String, ClassReport> {
        let time = (to - self.from).max(1) as f64;
        let class = |(label, name): (u16, &String)| {
            let own = self.flows.iter().filter(|flow| flow.label == label);
            let own: Vec<&Finished> = own.filter(|flow| self.active(flow, to) > 0).collect();
            let bytes: u64 = own.iter().map(|flow| flow.bytes).sum();
            let rates = own.iter();
            let rates = rates.map(|flow| flow.bytes as f64 / self.active(flow, to) as f64);
            let report = ClassReport {
                flows: own.len() as u64,
                goodput_bytes_per_s: (bytes as f64 * 1e12 / time) as u64,
                jain: jain(rates),
            };
            (name.clone(), report)
        };
        (0..).zip(names).map(class).collect()
    }

    /// Payload rate of the selected flows, bytes per second.
    pub fn rate(&self, of: impl Fn(&Finished) -> bool) -> f64 {
        let flows = self.flows.iter().filter(|flow| of(flow));
        let bytes: u64 = flows.map(|flow| flow.bytes).sum();
        bytes as f64 * 1e12 / (self.to - self.from).max(1) as f64
    }
}

/// Payload transferred by all flows up to given times.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    windows: Vec<(Time, Time)>,
    /// When to read, without duplicates.
    times: Vec<Time>,
    /// The readings so far.
    read: Vec<Vec<Finished>>,
}

impl<S: Scheme> Run<'_, S> {
    /// Sets the windows in which to count.
    pub(in crate::fabric) fn read_in(&mut self, windows: &[(Time, Time)]) {
        let mut times: Vec<Time> = windows.iter().flat_map(|&(a, b)| [a, b]).collect();
        times.sort_unstable();
        times.dedup();
        let first = times.first().copied().unwrap_or(Time::MAX);
        self.sample_due = self.sample_due.min(first);
        self.reading = Reading {
            windows: windows.to_vec(),
            times,
            read: Vec::new(),
        };
    }

    /// Takes the readings that are due before `time`'s events. Returns the time of the next one.
    pub(in crate::fabric) fn read_flows(&mut self, time: Time) -> Time {
        loop {
            let next = self.reading.times.get(self.reading.read.len());
            match next {
                Some(&at) if at <= time => {
                    let flows = self.flows_at(at);
                    self.reading.read.push(flows);
                }
                _ => return next.copied().unwrap_or(Time::MAX),
            }
        }
    }

    fn flows_at(&self, at: Time) -> Vec<Finished> {
        let finished = self.counts.finished.iter().copied();
        let mut flows: Vec<Finished> = finished.chain(self.unfinished(at)).collect();
        flows.sort_unstable_by_key(|flow| flow.id);
        flows
    }

    /// The transfers in each window, at the end of the run.
    pub(in crate::fabric) fn transfers(&self, end: Time) -> impl Iterator<Item = Transfers> {
        let last = self.flows_at(end);
        let Reading {
            windows,
            times,
            read,
        } = &self.reading;
        windows.iter().map(move |&(from, to)| {
            let at = |time| {
                let index = times.binary_search(&time).unwrap_or(times.len());
                read.get(index).unwrap_or(&last)
            };
            let before = at(from);
            let since = |flow: &Finished| {
                let earlier = before.binary_search_by_key(&flow.id, |earlier| earlier.id);
                let earlier = earlier.map_or(0, |index| before[index].bytes);
                Finished {
                    bytes: flow.bytes - earlier,
                    ..*flow
                }
            };
            Transfers {
                from,
                to,
                flows: at(to).iter().map(since).collect(),
            }
        })
    }
}

/// Adds the flows of another part of the network, for the same windows.
pub fn join(all: &mut Vec<Transfers>, others: impl Iterator<Item = Transfers>) {
    for (index, other) in others.enumerate() {
        match all.get_mut(index) {
            None => all.push(other),
            Some(own) => {
                own.flows.extend(other.flows);
                own.flows.sort_unstable_by_key(|flow| flow.id);
            }
        }
    }
}
