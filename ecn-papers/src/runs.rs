//! The runs that figures and statements need: each is executed once, on all cores, and shared.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use ecn_core::marking::Marking;
use ecn_core::response::Function;
use ecn_report::statistics::Sample;
use ecn_sim::engine::{MS, Time};
use ecn_sim::measure::{Record, Window, flows_of};
use ecn_sim::model::{Model, Response};
use ecn_sim::network::Network;
use ecn_sim::parallel::{cores, in_parallel};
use ecn_sim::report::{HpWindow, RunError, hp_shares, hp_window};
use ecn_sim::scenario::{Hp, Scenario, ScenarioError, Topology, Victim};
use ecn_sim::simulation::{self, Options, SimulationError};
use ecn_units::DurationText;

use crate::{Progress, ReproduceError};

/// Width of the sliding windows of Fig. 2 and 3.
const SLIDING: Time = 2 * MS;
/// Step of the series behind these.
const STEP: Time = MS / 10;
/// When the local flows stop in [`Case::locals_stop`], ms.
pub(crate) const STOP_MS: u64 = 40;

/// The ways of marking that the papers compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// No marking, and no response.
    Uncontrolled,
    /// Mechanism 1.
    Naive,
    /// Mechanism 2, "threshold none" in Fig. 4.
    Input,
    /// Mechanism 3 with this threshold, packets.
    Threshold(u32),
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uncontrolled => f.write_str("uncontrolled"),
            Self::Naive => f.write_str("naive"),
            Self::Input => f.write_str("input-triggered"),
            Self::Threshold(packets) => write!(f, "threshold {packets}"),
        }
    }
}

/// A change of a case.
pub(crate) type Change = fn(&mut Case);

/// What is run, for each seed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Case {
    pub(crate) hp: Hp,
    pub(crate) model: Model,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// Rates; also a series, of the first seed, if the victim is not always on.
    Rates,
    /// The series of every seed, of a run in which the local flows stop.
    LocalsStop,
    /// The counters, at each event.
    Check,
}

impl Case {
    /// 100 ms with the victim from 40 to 60 ms: Fig. 2 and 3.
    pub(crate) fn fig3(scheme: Scheme) -> Self {
        let mut model = Model::default();
        let (marking, threshold) = match scheme {
            Scheme::Uncontrolled => (Marking::None, 0),
            Scheme::Naive => (Marking::Naive, 0),
            Scheme::Input => (Marking::Input, 0),
            Scheme::Threshold(threshold) => (Marking::InputOutput, threshold),
        };
        (model.marking, model.threshold) = (marking, threshold);
        if scheme == Scheme::Uncontrolled {
            model.response = Response::Function(Function::None);
        }
        Self {
            hp: Hp::default(),
            model,
            what: What::Rates,
        }
    }

    /// A long run with the victim always on: Fig. 4.
    pub(crate) fn fig4(scheme: Scheme, buffer: u32, length: DurationText) -> Self {
        let mut case = Self::fig3(scheme).buffer(buffer);
        (case.hp.victim, case.hp.duration) = (Victim::On, length);
        case
    }

    /// With this many slots in each input buffer.
    pub(crate) fn buffer(mut self, packets: u32) -> Self {
        self.model.buffer = packets;
        self
    }

    /// With this many local, and as many remote flows.
    pub(crate) fn flows(mut self, flows: u32) -> Self {
        self.hp.flows = flows;
        self
    }

    pub(crate) fn with(mut self, change: Change) -> Self {
        change(&mut self);
        self
    }

    pub(crate) fn response(mut self, function: Function) -> Self {
        self.model.response = Response::Function(function);
        self
    }

    /// Sets a key of the scenario from `KEY=VALUE`.
    pub(crate) fn set(&mut self, setting: &str) -> Result<(), ScenarioError> {
        let mut scenario = self.scenario();
        scenario.set_text(setting)?;
        self.model = scenario.model;
        if let Topology::Hp(hp) = scenario.topology {
            self.hp = hp;
        }
        Ok(())
    }

    /// A run in which the local flows stop at [`STOP_MS`] and leave their share to the others, with a
    /// series for each seed.
    pub(crate) fn locals_stop(scheme: Scheme) -> Self {
        let mut case = Self::fig3(scheme);
        case.hp.victim = Victim::Off;
        case.what = What::LocalsStop;
        case
    }

    /// A short run in which all counters are compared with a scan after each event.
    pub(crate) fn checked(mut self) -> Self {
        let ms = DurationText::from_millis;
        (self.hp.victim, self.hp.duration) = (Victim::During(ms(4), ms(8)), ms(10));
        self.what = What::Check;
        self
    }

    /// The same text for the same case.
    fn key(&self) -> String {
        format!("{self:?}")
    }

    fn duration(&self) -> Time {
        self.scenario().duration()
    }

    fn scenario(&self) -> Scenario {
        Scenario {
            topology: Topology::Hp(self.hp.clone()),
            model: self.model.clone(),
            ..Scenario::hp()
        }
    }

    pub(crate) fn run(&self, seed: u64) -> Result<Outcome, RunError> {
        let mut scenario = self.scenario();
        if self.what == What::LocalsStop {
            let mut description = self.hp.describe().map_err(SimulationError::from)?;
            let flows = description.flows.iter_mut();
            for flow in flows.filter(|flow| flow.class == "local") {
                flow.stop = Some(DurationText::from_millis(STOP_MS));
            }
            scenario.topology = Topology::Described {
                description,
                duration: self.hp.duration,
            };
        }
        let (network, duration) = (scenario.network()?, scenario.duration());
        let windows = match self.what {
            What::Check => Vec::new(),
            _ if self.hp.victim == Victim::On => vec![(duration / 5, duration)],
            _ => vec![(10 * MS, 39 * MS), (44 * MS, 58 * MS)],
        };
        let with_series = match self.what {
            What::Rates => seed == 1 && self.hp.victim != Victim::On,
            What::LocalsStop => true,
            What::Check => false,
        };
        let options = Options {
            seed,
            duration,
            windows,
            series_step: if with_series { STEP } else { 0 },
            check: self.what == What::Check,
            ..Options::default()
        };
        let record = match simulation::run(&network, &self.model, None, &options) {
            Ok(record) => record,
            Err(error @ SimulationError::Invariant { .. }) => {
                return Ok(Outcome {
                    violation: Some(error.to_string()),
                    ..Outcome::default()
                });
            }
            Err(error) => return Err(error.into()),
        };
        let at_inter_switch = network
            .channel("inter-switch")
            .and_then(|channel| network.channels[channel].receiver);
        Ok(Outcome {
            windows: record
                .windows
                .iter()
                .map(|window| Rates {
                    shares: hp_window(&network, window),
                    spread_local: spread(&network, window, "local"),
                    spread_remote: spread(&network, window, "remote"),
                })
                .collect(),
            marked_local: flows(&network, "local")
                .map(|flow| record.marked_packets[flow])
                .sum(),
            marked: record.marked_packets.iter().sum(),
            inter_switch_triggers: at_inter_switch.map_or(0, |(switch, slot)| {
                record.ports[switch as usize][slot as usize].input_triggers
            }),
            series: record
                .sliding(SLIDING)
                .map(|(at, counts)| (at, hp_shares(&network, &counts, SLIDING)))
                .collect(),
            violation: None,
            unaccounted: unaccounted(&record),
            packet_hops: record.packet_hops,
            events: record.events,
            checked_events: record.checked_events,
        })
    }
}

/// Packets sent that are neither delivered nor in flight, or delivered or in flight without having been sent.
fn unaccounted(record: &Record) -> u64 {
    let found = std::iter::zip(&record.delivered_packets, &record.in_flight_packets);
    std::iter::zip(&record.sent_packets, found)
        .map(|(sent, (delivered, in_flight))| sent.abs_diff(delivered + in_flight))
        .sum()
}

/// The flows of a class.
fn flows(network: &Network, class: &str) -> impl Iterator<Item = usize> {
    let class = network.classes.iter().position(|name| name == class);
    class.into_iter().flat_map(|class| flows_of(network, class))
}

/// Largest over smallest rate in a class.
fn spread(network: &Network, window: &Window, class: &str) -> f64 {
    let packets = || flows(network, class).map(|flow| window.counts.flow_packets[flow]);
    let ends = packets().max().zip(packets().min());
    ends.map_or(f64::NAN, |(most, least)| most as f64 / least as f64)
}

/// One window of a run.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    pub(crate) shares: HpWindow,
    /// Largest over smallest rate of the local flows.
    pub(crate) spread_local: f64,
    /// And of the remote ones.
    pub(crate) spread_remote: f64,
}

/// What is kept of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Fig. 4: its last four fifths. Fig. 2 and 3: 10 to 39 ms, before the victim; and 44 to 58 ms, with it.
    pub(crate) windows: Vec<Rates>,
    /// Marked packets, of local flows and of all.
    pub(crate) marked_local: u64,
    pub(crate) marked: u64,
    /// Times that the input buffer behind the inter-switch link was full.
    pub(crate) inter_switch_triggers: u64,
    /// Middle of a 2 ms window, ms, and the shares in it.
    pub(crate) series: Vec<(f64, HpWindow)>,
    /// An invariant that did not hold.
    pub(crate) violation: Option<String>,
    /// See [`unaccounted`].
    pub(crate) unaccounted: u64,
    pub(crate) packet_hops: u64,
    pub(crate) events: u64,
    /// Events after which the counters were compared.
    pub(crate) checked_events: u64,
}

/// Outcomes by case. A case that has not been run is recorded when it is requested, and is empty until
/// [`Runs::run_wanted`]: callers need no list of their cases in advance.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    seeds: u64,
    outcomes: BTreeMap<String, Vec<Outcome>>,
    wanted: RefCell<BTreeMap<String, Case>>,
}

impl Runs {
    /// Nothing has been run. Seeds are 1 to `seeds`.
    pub(crate) fn new(seeds: u64) -> Self {
        Self {
            seeds,
            ..Self::default()
        }
    }

    /// A case's outcomes, by seed.
    pub(crate) fn of(&self, case: &Case) -> &[Outcome] {
        let key = case.key();
        if let Some(outcomes) = self.outcomes.get(&key) {
            return outcomes;
        }
        self.wanted.borrow_mut().insert(key, case.clone());
        &[]
    }

    /// A value of a case's last window.
    pub(crate) fn last(&self, case: &Case, value: impl Fn(&Rates) -> f64) -> Sample {
        let last = |outcome: &Outcome| outcome.windows.last().map(&value);
        Sample::of(self.of(case).iter().filter_map(last))
    }

    /// A value of its first window.
    pub(crate) fn first(&self, case: &Case, value: impl Fn(&Rates) -> f64) -> Sample {
        let first = |outcome: &Outcome| outcome.windows.first().map(&value);
        Sample::of(self.of(case).iter().filter_map(first))
    }

    /// Executes the requested runs with `run`, usually [`Case::run`], which gets a case and a seed. False if none was
    /// requested.
    pub(crate) fn run_wanted(
        &mut self,
        progress: &dyn Progress,
        run: impl Fn(&Case, u64) -> Result<Outcome, RunError> + Sync,
    ) -> Result<bool, ReproduceError> {
        let wanted = self.wanted.take();
        if wanted.is_empty() {
            return Ok(false);
        }
        let mut jobs: Vec<(&String, &Case, u64)> = wanted
            .iter()
            .flat_map(|(key, case)| (1..=self.seeds).map(move |seed| (key, case, seed)))
            .collect();
        // Longest first, so that no core is left running a long one alone.
        jobs.sort_by_key(|(_, case, _)| std::cmp::Reverse(case.duration()));
        progress.begin(jobs.iter().map(|(_, case, _)| case.duration()).sum());
        let done = in_parallel(jobs.len(), cores(), |index| {
            let (_, case, seed) = jobs[index];
            let outcome = run(case, seed);
            progress.advance(case.duration());
            Ok::<_, ReproduceError>(outcome?)
        });
        progress.end();
        // Sorting by duration has kept the order of a case's seeds.
        for ((key, ..), outcome) in jobs.into_iter().zip(done?) {
            self.outcomes.entry(key.clone()).or_default().push(outcome);
        }
        Ok(true)
    }

    /// Packets unaccounted for in all runs so far.
    pub(crate) fn unaccounted(&self) -> u64 {
        let all = self.outcomes.values().flatten();
        all.map(|outcome| outcome.unaccounted).sum()
    }

    /// Number of runs so far, and packets that crossed a link in them.
    pub(crate) fn totals(&self) -> (usize, u64) {
        let all = || self.outcomes.values().flatten();
        let packet_hops = all().map(|outcome| outcome.packet_hops).sum();
        (all().count(), packet_hops)
    }
}
