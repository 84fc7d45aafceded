//! What makes no sense, and is refused with what is allowed.

use ecn_units::{DurationText, Size};

use super::{Kind, Scenario};
use crate::fabric::auto::Auto;
use crate::fabric::cc::Scheme as _;
use crate::fabric::parameters::{FlowControl, Parameters, Switch};
use crate::fabric::switch::MOST_CLASSES;
use crate::fabric::topology::fat_tree_ports;
use crate::fabric::workload::{Workload, carried};
use crate::model::{LONGEST_DELAY, MOST_PACKETS, ModelError, in_range};
use crate::scenario::shown;

/// Longest delay of a link.
const LONGEST_LINK: DurationText = DurationText::from_millis(100);

impl Scenario {
    /// Checks what the types leave open.
    ///
    /// # Errors
    ///
    /// A value out of its range, or one that means nothing for what was chosen, by name.
    pub fn check(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        self.check_idle()?;
        self.check_plan()?;
        self.check_switch()?;
        self.check_packets()?;
        self.check_links()?;
        self.check_times()?;
        self.check_memory()?;
        self.check_workload()?;
        self.check_sizes()?;
        if own.window.or(Size::from_bytes(u64::MAX)).bytes() < u64::from(own.payload) {
            let reason = format!("at least a packet's payload, {}, is allowed", own.payload);
            return Err(ModelError::new("window", own.window, reason));
        }
        own.scheme.sender(&self.network(1, 2)).map(drop)
    }

    /// No key is set that does nothing here.
    fn check_idle(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        if let Some(key) = self.idle().into_iter().next() {
            let value = self.all_keys().remove(&key);
            let others = [
                ("workload", own.workload.to_string()),
                ("incast_load", own.incast_load.to_string()),
                ("switch", own.switch.to_string()),
                ("flow_control", own.flow_control.to_string()),
                ("thresholds", own.thresholds.to_string()),
                ("scheme", own.scheme.to_string()),
            ];
            let others = others.iter().filter(|(other, _)| *other != key);
            let others: String = others
                .map(|(key, value)| format!(", {key}={value}"))
                .collect();
            let reason = format!("it has no meaning with {}{others}", self.name());
            let value = value.as_ref().map(shown).unwrap_or_default();
            return Err(ModelError::new(key, value, reason));
        }
        Ok(())
    }

    /// What the kind of switch asks of the rest.
    fn check_switch(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        if own.switch == Switch::Crossbar && own.flow_control == FlowControl::None {
            let reason = "its inputs drop nothing: pfc or cbfc is allowed with switch=crossbar";
            return Err(ModelError::new("flow_control", own.flow_control, reason));
        }
        if own.switch == Switch::InputQueued {
            if own.flow_control != FlowControl::Cbfc {
                let reason = "must be cbfc with switch=input-queued";
                return Err(ModelError::new("flow_control", own.flow_control, reason));
            }
            if self.own_links().next().is_some() {
                let reason = "links with a rate or delay of their own need another switch";
                return Err(ModelError::new("switch", own.switch, reason));
            }
            in_range("priorities", own.priorities, 1..=1)?;
            in_range("slots", own.slots, 1..=MOST_PACKETS)?;
            let delay = own.forwarding_delay;
            if delay.is_zero() || delay > LONGEST_DELAY {
                let reason = format!("must be above 0 and at most {LONGEST_DELAY}");
                return Err(ModelError::new("forwarding_delay", delay, reason));
            }
        }
        if own.switch != Switch::SharedMemory && self.links_change() {
            let reason = "links that fail or return during a run need switch=shared-memory; those \
                          that are down from before it to its end, without `from` and `to`, do not";
            return Err(ModelError::new("switch", own.switch, reason));
        }
        Ok(())
    }

    /// Sizes of packets, and their classes.
    fn check_packets(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        in_range("payload", own.payload, 64..=9_216)?;
        in_range("priorities", own.priorities, 1..=u32::from(MOST_CLASSES))?;
        let others = self.flows.iter().flatten();
        if let Some(class) = others
            .map(|flow| flow.priority)
            .max()
            .filter(|class| u32::from(*class) >= own.priorities)
        {
            let reason = format!("a flow has priority {class}, and they count from 0");
            return Err(ModelError::new("priorities", own.priorities, reason));
        }
        in_range("header", own.header, 0..=256)?;
        Ok(())
    }

    /// Rates and delays of links that have their own.
    fn check_links(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        let (slow, fast) = (125_000, 1_250_000_000_000);
        let rates = self.own_links().filter_map(|own| own.rate);
        for (key, rate) in [("link_rate", own.link_rate)]
            .into_iter()
            .chain(rates.map(|rate| ("links.rate", rate)))
        {
            if !(slow..=fast).contains(&rate.bytes_per_s()) {
                let reason = "must be between 1mbit and 10tbit";
                return Err(ModelError::new(key, rate, reason));
            }
        }
        let delays = self.own_links().filter_map(|own| own.delay);
        if let Some(delay) = delays.max().filter(|delay| *delay > LONGEST_LINK) {
            let reason = format!("must be at most {LONGEST_LINK}");
            return Err(ModelError::new("links.delay", delay, reason));
        }
        Ok(())
    }

    /// Times.
    fn check_times(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        for (key, value, most) in [
            ("link_delay", own.link_delay, LONGEST_LINK),
            ("limit", own.limit, DurationText::from_secs(3_600)),
            ("duration", own.duration, own.limit),
            ("stagger", own.stagger, LONGEST_DELAY),
        ] {
            if value > most && !self.strange().contains(&key) {
                return Err(ModelError::new(
                    key,
                    value,
                    format!("at most {most} is allowed"),
                ));
            }
        }
        if let Auto::Is(value) = own.retransmit_after
            && !(1_000..=1_000_000_000).contains(&value.as_nanos())
        {
            let reason = "1us to 1s is allowed";
            return Err(ModelError::new("retransmit_after", value, reason));
        }
        if !(100..=1_000_000).contains(&own.credit_period.as_nanos()) {
            let (value, reason) = (own.credit_period, "100ns to 1ms is allowed");
            return Err(ModelError::new("credit_period", value, reason));
        }
        Ok(())
    }

    /// Hosts and senders of the workload.
    fn check_workload(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        if own.workload == Workload::AllReduce && own.hosts > 2_048 {
            let reason = "up to 2048 is allowed with workload=all-reduce: flows are numbered";
            return Err(ModelError::new("hosts", own.hosts, reason));
        }
        if own.workload == Workload::AllToAll && own.hosts > 2_048 {
            let reason =
                "up to 2048 is allowed with workload=all-to-all: all flows are there at once";
            return Err(ModelError::new("hosts", own.hosts, reason));
        }
        if own.workload == Workload::Incast && self.flows.is_none() {
            let most = own.hosts - 1;
            if !(1..=most).contains(&own.senders) {
                let reason = format!("1 to {most} is allowed with hosts={}", own.hosts);
                return Err(ModelError::new("senders", own.senders, reason));
            }
        }
        if own.workload == Workload::Chain {
            if self.plan.is_some() || self.kind != Kind::Chain {
                let reason = "it is of the topology `chain` only";
                return Err(ModelError::new("workload", &own.workload, reason));
            }
            in_range("hosts", own.hosts, 5..=16_384)?;
            in_range("senders", own.senders, 1..=own.hosts - 4)?;
            if own.burst_gap.is_zero() {
                let reason = "more than 0 is allowed";
                return Err(ModelError::new("burst_gap", own.burst_gap, reason));
            }
        }
        if own.workload == Workload::Fig1 {
            if self.plan.is_some() || self.kind != Kind::Fig1 {
                let reason = "it is of the topology `fig1` only";
                return Err(ModelError::new("workload", &own.workload, reason));
            }
            in_range("hosts", own.hosts, 5..=16_384)?;
        }
        if own.incast_load.numerator() > 0 {
            in_range("incast_senders", own.incast_senders, 1..=own.hosts - 1)?;
        }
        Ok(())
    }

    /// Sizes and loads of flows.
    fn check_sizes(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        let most = u64::from(own.payload) * u64::from(u32::MAX / 2);
        if own.workload == Workload::Greedy && carried(own) > most {
            let reason = format!("flows of at most {most} bytes are allowed");
            return Err(ModelError::new("duration", own.duration, reason));
        }
        for (key, size) in [
            ("flow_size", own.flow_size),
            ("incast_size", own.incast_size),
        ] {
            if !(1..=most).contains(&size.bytes()) {
                let reason = format!("1 byte to {most} bytes is allowed");
                return Err(ModelError::new(key, size, reason));
            }
        }
        if own.incast_load.as_f64() > 1.0 {
            let reason = "0 to 1 is allowed";
            return Err(ModelError::new("incast_load", own.incast_load, reason));
        }
        let (load, reason) = (own.load.as_f64(), "more than 0 up to 1 is allowed");
        if !(load > 0.0 && load <= 1.0) {
            return Err(ModelError::new("load", own.load, reason));
        }
        Ok(())
    }

    /// Checks what the topology depends on.
    pub(super) fn check_plan(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        // Packets name hosts in 16 bits; what a file lists or cuts is searched for circles.
        let described = self.plan.is_some() || !self.failures.is_empty();
        let most = if described { 16_384 } else { 65_536 };
        in_range("hosts", own.hosts, 2..=most)?;
        if self.plan.is_none() && self.kind == Kind::FatTree {
            let k = self.ports_of_a_switch();
            let least = fat_tree_ports(own.hosts);
            if k < least || k > 64 || !k.is_multiple_of(2) {
                let reason = format!(
                    "must be an even number between {least} (the fewest ports for {} hosts) and 64",
                    own.hosts
                );
                return Err(ModelError::new("k", k, reason));
            }
        }
        if self.kind == Kind::ParkingLot {
            let most = own.hosts.min(64);
            in_range("switches", self.switches_in_a_row(), 2..=most)?;
        }
        in_range("leaves", own.leaves, 1..=512)?;
        in_range("spines", own.spines, 1..=256).map(drop)
    }

    fn check_memory(&self) -> Result<(), ModelError> {
        let own = &self.parameters;
        let frame = u64::from(self.frame());
        let headroom = self.headroom();
        if own.flow_control == FlowControl::Pfc {
            let auto = Self {
                parameters: Parameters {
                    headroom: Auto::Auto,
                    ..own.clone()
                },
                ..self.clone()
            };
            let needed = auto.headroom();
            if headroom < needed {
                let each = match own.priorities {
                    1 => String::new(),
                    several => format!(", of each of {several} priorities"),
                };
                let reason = format!(
                    "too little to be lossless: {needed} bytes are needed, for what is in flight when a pause is asked for{each}"
                );
                return Err(ModelError::new("headroom", own.headroom, reason));
            }
        }
        let (least, most) = (self.least_buffer(), 64_000_000);
        if least > most {
            let reason = format!(
                "{least} bytes of buffer per port would be needed, and 64MB is the most that is allowed"
            );
            return Err(ModelError::new("link_delay", own.link_delay, reason));
        }
        let in_slots = own.switch == Switch::InputQueued;
        if !in_slots && !(least..=most).contains(&own.buffer.bytes()) {
            let of = match own.flow_control {
                FlowControl::Cbfc => "two packets for each lane, in blocks of 64".to_owned(),
                _ => format!("headroom {headroom} and two packets"),
            };
            let reason = format!("{least} bytes per port ({of}) to 64MB is allowed");
            return Err(ModelError::new("buffer", own.buffer, reason));
        }
        if own.alpha.numerator() == 0 || own.alpha.as_f64() > 64.0 {
            let reason = "more than 0 up to 64 is allowed";
            return Err(ModelError::new("alpha", own.alpha, reason));
        }
        if own.xoff.bytes() < frame {
            let reason = format!("at least a packet, {frame} bytes, is allowed");
            return Err(ModelError::new("xoff", own.xoff, reason));
        }
        Ok(())
    }
}
