//! The part of a network that one thread simulates.

use super::topology::Topology;

/// One of the parts of a network.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    pub(super) number: u16,
    pub(super) count: u16,
    /// By switch; a host belongs to the part of its switch.
    pub(super) of_switch: &'a [u16],
}

impl<'a> Part<'a> {
    /// The whole network.
    pub const ALL: Part<'static> = Part {
        number: 0,
        count: 1,
        of_switch: &[],
    };

    /// Its number.
    #[inline]
    pub const fn number(&self) -> u16 {
        self.number
    }

    /// Number of parts.
    pub fn count(&self) -> usize {
        self.count.into()
    }

    /// The part that contains a port.
    pub fn of(&self, topology: &Topology, port: u32) -> u16 {
        if self.count == 1 {
            return 0;
        }
        let switch = if port < topology.hosts {
            topology.edge(port)
        } else {
            topology.node[port as usize]
        };
        self.of_switch[switch as usize]
    }

    /// Whether a port is in this part. A host's port has the host's number.
    #[inline]
    pub fn has(&self, topology: &Topology, port: u32) -> bool {
        self.count == 1 || self.of(topology, port) == self.number
    }
}
