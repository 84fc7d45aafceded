//! `ecn-core`'s marking state, in the size that a switch needs.

use ecn_core::marking;

/// State for up to 16, 64 or 256 port slots.
#[derive(Debug)]
pub(crate) enum BySize<S, M, L> {
    Small(Box<S>),
    Medium(Box<M>),
    Large(Box<L>),
}

/// The counters of a switch, sized by its number of port slots.
pub(crate) type Counters = BySize<marking::Switch<16>, marking::Switch<64>, marking::Switch<256>>;

/// Accesses the counters, whatever their size.
macro_rules! counters {
    ($counters:expr, $name:ident => $call:expr) => {
        match $counters {
            $crate::counters::BySize::Small($name) => $call,
            $crate::counters::BySize::Medium($name) => $call,
            $crate::counters::BySize::Large($name) => $call,
        }
    };
}
pub(crate) use counters;

/// Totals of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTotals {
    /// Arrivals that found the input buffer full.
    pub input_triggers: u64,
    /// Arrivals that found more packets than the threshold waiting for this output.
    pub output_triggers: u64,
    /// Packets marked.
    pub marked: u64,
}

impl<S: Default, M: Default, L: Default> BySize<S, M, L> {
    /// For port slots below `slots`.
    pub(crate) fn new(slots: usize) -> Self {
        match slots {
            0..=16 => Self::Small(Box::default()),
            17..=64 => Self::Medium(Box::default()),
            _ => Self::Large(Box::default()),
        }
    }
}

impl From<marking::Port> for PortTotals {
    fn from(port: marking::Port) -> Self {
        Self {
            input_triggers: port.input_triggers,
            output_triggers: port.output_triggers,
            marked: port.marked,
        }
    }
}
