//! Checks of scenarios; contradictions are rejected with the valid range.

use std::iter;

use ecn_units::{DurationText, Rate, Size};

use super::{Kind, Scenario};
use crate::bounds::{LONGEST_DELAY, MOST_PACKETS, ModelError, in_range};
use crate::fabric::auto::Auto;
use crate::fabric::cc::Scheme as _;
use crate::fabric::parameters::{FlowControl, Switch};
use crate::fabric::switch::MOST_CLASSES;
use crate::fabric::topology::fat_tree_ports;
use crate::fabric::workload::{Workload, carried};
use crate::settings::shown;

/// Maximum delay of a link.
const LONGEST_LINK: DurationText = DurationText::from_millis(100);

/// Rates of links, see [`is_link_rate`].
pub(super) const LINK_RATES: &str =
    "must be between 1mbit and 10tbit; a number without a unit is in bits per second";

/// Whether a link can have this rate.
pub(super) fn is_link_rate(rate: Rate) -> bool {
    (125_000..=1_250_000_000_000).contains(&rate.bytes_per_s())
}

impl Scenario {
    /// Checks constraints that the types do not express.
    ///
    /// # Errors
    ///
    /// A value that is out of its range or does not apply to the other values, by name.
    pub fn check(&self) -> Result<(), ModelError> {
        let params = &self.parameters;
        self.check_applicable()?;
        self.check_plan()?;
        self.check_switch()?;
        self.check_packets()?;
        self.check_links()?;
        self.check_times()?;
        self.check_memory()?;
        self.check_workload()?;
        self.check_sizes()?;
        if params.window.or(Size::from_bytes(u64::MAX)).bytes() < u64::from(params.payload) {
            let reason = format!("must be at least a packet's payload, {}", params.payload);
            return Err(ModelError::new("window", params.window, reason));
        }
        params.scheme.sender(&self.network(1, 2)).map(drop)
    }

    /// Checks that no key is set without effect.
    fn check_applicable(&self) -> Result<(), ModelError> {
        let Some(key) = self.set_but_inapplicable().into_iter().next() else {
            return Ok(());
        };
        let all = self.all_keys();
        let value = |key: &str| all.get(key).map(shown).unwrap_or_default();
        let others = [
            "workload",
            "incast_load",
            "switch",
            "flow_control",
            "thresholds",
            "scheme",
        ];
        let others = others.iter().filter(|other| **other != key);
        let others: String = others
            .map(|key| format!(", {key}={}", value(key)))
            .collect();
        let reason = format!("does not apply to {}{others}", self.name());
        Err(ModelError::new(key.as_str(), value(&key), reason))
    }

    /// Requirements of the kind of switch.
    fn check_switch(&self) -> Result<(), ModelError> {
        let params = &self.parameters;
        if params.switch == Switch::Crossbar && params.flow_control == FlowControl::None {
            let reason = "must be pfc or cbfc with switch=crossbar, whose inputs drop nothing";
            return Err(ModelError::new("flow_control", params.flow_control, reason));
        }
        if params.switch == Switch::InputQueued {
            if params.flow_control != FlowControl::Cbfc {
                let reason =
                    "must be cbfc with switch=input-queued, where a credit stands for a slot";
                return Err(ModelError::new("flow_control", params.flow_control, reason));
            }
            if params.priorities != 1 {
                let reason =
                    "must be 1 with switch=input-queued, whose slots take packets of any class";
                return Err(ModelError::new("priorities", params.priorities, reason));
            }
            in_range("slots", params.slots, 1..=MOST_PACKETS)?;
            let delay = params.forwarding_delay;
            if delay.is_zero() || delay > LONGEST_DELAY {
                let reason = format!("must be above 0 and at most {LONGEST_DELAY}");
                return Err(ModelError::new("forwarding_delay", delay, reason));
            }
        }
        if params.switch != Switch::SharedMemory && self.links_change() {
            let reason = "must be shared-memory if links fail or return during a run; links that \
                          are down for the whole run, without `from` and `to`, work with any switch";
            return Err(ModelError::new("switch", params.switch, reason));
        }
        Ok(())
    }

    /// Sizes and classes of packets.
    fn check_packets(&self) -> Result<(), ModelError> {
        let params = &self.parameters;
        in_range("payload", params.payload, 64..=9_216)?;
        in_range("priorities", params.priorities, 1..=u32::from(MOST_CLASSES))?;
        let classes = self.flows.iter().flatten().map(|flow| flow.priority);
        if let Some(class) = classes.max()
            && u32::from(class) >= params.priorities
        {
            let reason =
                format!("must be above {class}, the priority of a flow: priorities start at 0");
            return Err(ModelError::new("priorities", params.priorities, reason));
        }
        in_range("header", params.header, 0..=256).map(drop)
    }

    /// Rates and delays of links that differ.
    fn check_links(&self) -> Result<(), ModelError> {
        let params = &self.parameters;
        let rates = self.link_overrides().filter_map(|link| link.rate);
        let rates = rates.map(|rate| ("links.rate", rate));
        let mut rates = iter::once(("link_rate", params.link_rate)).chain(rates);
        if let Some((key, rate)) = rates.find(|(_, rate)| !is_link_rate(*rate)) {
            return Err(ModelError::new(key, rate, LINK_RATES));
        }
        let delays = self.link_overrides().filter_map(|link| link.delay);
        if let Some(delay) = delays.max().filter(|delay| *delay > LONGEST_LINK) {
            let reason = format!("must be at most {LONGEST_LINK}");
            return Err(ModelError::new("links.delay", delay, reason));
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), ModelError> {
        let params = &self.parameters;
        for (key, value, most) in [
            ("link_delay", params.link_delay, LONGEST_LINK),
            ("limit", params.limit, DurationText::from_secs(3_600)),
            ("duration", params.duration, params.limit),
            ("stagger", params.stagger, LONGEST_DELAY),
        ] {
            if value > most && !self.inapplicable_keys().contains(&key) {
                let reason = format!("must be at most {most}");
                return Err(ModelError::new(key, value, reason));
            }
        }
        if let Auto::Is(value) = params.retransmit_after
            && !(1_000..=1_000_000_000).contains(&value.as_nanos())
        {
            let reason = "must be between 1us and 1s";
            return Err(ModelError::new("retransmit_after", value, reason));
        }
        if !(100..=1_000_000).contains(&params.credit_period.as_nanos()) {
            let (value, reason) = (params.credit_period, "must be between 100ns and 1ms");
            return Err(ModelError::new("credit_period", value, reason));
        }
        Ok(())
    }

    /// Hosts and senders of the workload.
    fn check_workload(&self) -> Result<(), ModelError> {
        let params = &self.parameters;
        if params.workload == Workload::AllReduce && params.hosts > 2_048 {
            let reason = "must be at most 2048 with workload=all-reduce: too many flows to number";
            return Err(ModelError::new("hosts", params.hosts, reason));
        }
        if params.workload == Workload::AllToAll && params.hosts > 2_048 {
            let reason = "must be at most 2048 with workload=all-to-all: all flows start at once";
            return Err(ModelError::new("hosts", params.hosts, reason));
        }
        if params.workload == Workload::Incast && self.flows.is_none() {
            let (most, hosts) = (params.hosts - 1, params.hosts);
            if !(1..=most).contains(&params.senders) {
                let reason = format!("must be between 1 and {most} with hosts={hosts}");
                return Err(ModelError::new("senders", params.senders, reason));
            }
        }
        if params.workload == Workload::Chain {
            if self.plan.is_some() || self.kind != Kind::Chain {
                let reason = "applies to the topology `chain` only";
                return Err(ModelError::new("workload", &params.workload, reason));
            }
            in_range("hosts", params.hosts, 5..=16_384)?;
            in_range("senders", params.senders, 1..=params.hosts - 4)?;
            if params.burst_gap.is_zero() {
                let reason = "must be above 0";
                return Err(ModelError::new("burst_gap", params.burst_gap, reason));
            }
        }
        let lists_flows = params.workload == Workload::Flows;
        if lists_flows == self.entries.is_empty() && self.flows.is_none() {
            let reason = match lists_flows {
                true => "applies to files with [[flows]] only",
                false => "must be flows: the file has [[flows]]",
            };
            return Err(ModelError::new("workload", &params.workload, reason));
        }
        if params.workload == Workload::Fig1 {
            if self.plan.is_some() || self.kind != Kind::Fig1 {
                let reason = "applies to the topology `fig1` only";
                return Err(ModelError::new("workload", &params.workload, reason));
            }
            in_range("hosts", params.hosts, 5..=16_384)?;
        }
        if params.incast_load.numerator() > 0 {
            let most = params.hosts - 1;
            in_range("incast_senders", params.incast_senders, 1..=most)?;
        }
        Ok(())
    }

    /// Sizes and loads of flows.
    fn check_sizes(&self) -> Result<(), ModelError> {
        let params = &self.parameters;
        let most = u64::from(params.payload) * u64::from(u32::MAX / 2);
        if params.workload == Workload::Greedy && carried(params) > most {
            let reason = format!("must be shorter: a flow has at most {most} bytes");
            return Err(ModelError::new("duration", params.duration, reason));
        }
        for (key, size) in [
            ("flow_size", params.flow_size),
            ("incast_size", params.incast_size),
        ] {
            if !(1..=most).contains(&size.bytes()) {
                let reason = format!("must be between 1 and {most} bytes");
                return Err(ModelError::new(key, size, reason));
            }
        }
        if params.incast_load.as_f64() > 1.0 {
            let reason = "must be between 0 and 1";
            return Err(ModelError::new("incast_load", params.incast_load, reason));
        }
        let (load, reason) = (params.load.as_f64(), "must be above 0 and at most 1");
        if !(load > 0.0 && load <= 1.0) {
            return Err(ModelError::new("load", params.load, reason));
        }
        Ok(())
    }

    /// Checks the parameters that determine the topology.
    pub(super) fn check_plan(&self) -> Result<(), ModelError> {
        let params = &self.parameters;
        // Packets have 16 bits for hosts. Networks from files, or with failed links, are searched for cycles.
        let described = self.plan.is_some() || !self.failures.is_empty();
        let most = if described { 16_384 } else { 65_536 };
        in_range("hosts", params.hosts, 2..=most)?;
        if self.plan.is_none() && self.kind == Kind::FatTree {
            let k = self.ports_of_a_switch();
            let least = fat_tree_ports(params.hosts);
            if k < least || k > 64 || !k.is_multiple_of(2) {
                let reason = format!(
                    "must be an even number between {least} (the fewest ports for {} hosts) and 64",
                    params.hosts
                );
                return Err(ModelError::new("k", k, reason));
            }
        }
        if self.kind == Kind::ParkingLot {
            let most = params.hosts.min(64);
            in_range("switches", self.switches_in_a_row(), 2..=most)?;
        }
        in_range("leaves", params.leaves, 1..=512)?;
        in_range("spines", params.spines, 1..=256).map(drop)
    }

    fn check_memory(&self) -> Result<(), ModelError> {
        let params = &self.parameters;
        let frame = u64::from(self.frame());
        let headroom = self.headroom();
        let needed = self.needed_headroom();
        if params.flow_control == FlowControl::Pfc && headroom < needed {
            let each = match params.priorities {
                1 => String::new(),
                several => format!(", in each of {several} priorities"),
            };
            let reason = format!(
                "too little to be lossless: {needed} bytes are needed for data in flight when a pause is sent{each}"
            );
            return Err(ModelError::new("headroom", params.headroom, reason));
        }
        let (least, most) = (self.least_buffer(), 64_000_000);
        if least > most {
            let reason =
                format!("needs a buffer of {least} bytes per port, more than the maximum of 64MB");
            return Err(ModelError::new("link_delay", params.link_delay, reason));
        }
        let in_slots = params.switch == Switch::InputQueued;
        if !in_slots && !(least..=most).contains(&params.buffer.bytes()) {
            let of = match params.flow_control {
                FlowControl::Cbfc => "two packets for each lane, in blocks of 64".to_owned(),
                _ => format!("headroom {headroom} and two packets"),
            };
            let reason = format!("must be between {least} bytes per port ({of}) and 64MB");
            return Err(ModelError::new("buffer", params.buffer, reason));
        }
        if params.alpha.numerator() == 0 || params.alpha.as_f64() > 64.0 {
            let reason = "must be above 0 and at most 64";
            return Err(ModelError::new("alpha", params.alpha, reason));
        }
        if params.xoff.bytes() < frame {
            let reason = format!("must be at least a packet, {frame} bytes");
            return Err(ModelError::new("xoff", params.xoff, reason));
        }
        Ok(())
    }
}
