//! Trace of a simulated bridge, for replay through the kernel programs.

use ecn_core::abi::PortEventKind;
use ecn_core::marking::{Decision, Policy, Port};

/// An event with the decision and the resulting counters. Packets have one segment and can be marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The kind of event.
    pub kind: PortEventKind,
    /// Slot of the input port.
    pub input: u8,
    /// Slot of the output port.
    pub output: u8,
    /// Length of the queue after a departure; otherwise [`ecn_core::marking::BACKLOG_UNKNOWN`].
    pub backlog: u32,
    /// The decision.
    pub decision: Decision,
    /// Counters by slot.
    pub ports: Vec<Port>,
}

/// The first events of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The policy, constant over the trace.
    pub policy: Policy,
    /// The events, in order.
    pub events: Vec<Event>,
    most: usize,
}

impl Trace {
    pub(crate) const fn new(policy: Policy, most: usize) -> Self {
        Self {
            policy,
            events: Vec::new(),
            most,
        }
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.events.len() >= self.most
    }
}
