//! Congestion control: what a sender answers, one module per scheme.

pub mod dcqcn;

use crate::engine::Time;
use crate::keywords;

keywords! {
    /// How the network's congestion is controlled.
    Name {
        /// Not at all: every flow sends at the rate of its link.
        #[default]
        None = "none",
        /// Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015.
        Dcqcn = "dcqcn",
    }
}

/// A scheme with the state of all flows. Matching on it costs nothing that can be measured: it is the
/// same in every call of a run.
#[derive(Debug)]
pub enum Scheme {
    /// No control.
    None,
    /// DCQCN: a state per number of a flow.
    Dcqcn(dcqcn::Rules, Vec<dcqcn::Flow>),
}

impl Scheme {
    /// A flow begins under this number.
    pub fn start(&mut self, flow: u32) {
        if let Self::Dcqcn(rules, flows) = self {
            let flow = flow as usize;
            if flow >= flows.len() {
                flows.resize(flow + 1, dcqcn::Flow::new(rules));
            }
            flows[flow] = dcqcn::Flow::new(rules);
        }
    }

    /// A flow sends so many bytes: its rate in bytes per second, if that is less than its link's.
    #[inline]
    pub fn sends(&mut self, flow: u32, now: Time, bytes: u32) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Dcqcn(rules, flows) => flows[flow as usize].sends(rules, now, bytes),
        }
    }

    /// A receiver gets a marked packet: does it notify the sender?
    #[inline]
    pub fn notifies(&mut self, flow: u32, now: Time) -> bool {
        match self {
            Self::None => false,
            Self::Dcqcn(rules, flows) => flows[flow as usize].notifies(rules, now),
        }
    }

    /// A sender gets a notification.
    pub fn notified(&mut self, flow: u32, now: Time) {
        if let Self::Dcqcn(rules, flows) = self {
            flows[flow as usize].notified(rules, now);
        }
    }
}
