//! `ecn-core`'s marking state, in the size that a switch asks for.

use ecn_core::marking;

/// The counters of a switch, as large as its number of ports asks for.
#[derive(Debug)]
pub(crate) enum Counters {
    Small(Box<marking::Switch<16>>),
    Medium(Box<marking::Switch<64>>),
    Large(Box<marking::Switch<256>>),
}

/// Calls a method of the counters, whatever their size.
macro_rules! counters {
    ($counters:expr, $name:ident => $call:expr) => {
        match $counters {
            Counters::Small($name) => $call,
            Counters::Medium($name) => $call,
            Counters::Large($name) => $call,
        }
    };
}
pub(crate) use counters;

/// Totals of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortTotals {
    /// Arrivals that found the input buffer full.
    pub input_triggers: u64,
    /// Arrivals that found more than the threshold waiting for this output.
    pub output_triggers: u64,
    /// Packets marked.
    pub marked: u64,
}

impl Counters {
    /// For port slots below `slots`.
    pub fn new(slots: usize) -> Self {
        match slots {
            0..=16 => Self::Small(Box::default()),
            17..=64 => Self::Medium(Box::default()),
            _ => Self::Large(Box::default()),
        }
    }

    /// A port's totals.
    pub fn totals(&self, slot: u8) -> PortTotals {
        counters!(self, c => {
            let port = &c.ports[slot as usize];
            PortTotals {
                input_triggers: port.input_triggers,
                output_triggers: port.output_triggers,
                marked: port.marked,
            }
        })
    }
}
