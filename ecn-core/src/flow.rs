//! A flow, as a source's device knows it.

use crate::{echo, fixed, response};

/// Names a flow of one endpoint. Whole-key comparison: padding is part of it and always zero.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Source; IPv4 as `::ffff:a.b.c.d`.
    pub src: [u8; 16],
    /// Destination, likewise.
    pub dst: [u8; 16],
    /// Source port, 0 where the protocol has none.
    pub src_port: u16,
    /// Destination port, likewise.
    pub dst_port: u16,
    /// Endpoint number given by the agent: the same addresses may exist in two namespaces.
    pub endpoint: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Padding.
    pub _pad: u8,
}

/// [`Flow::flags`]: the TCP connection negotiated ECN; it keeps its own control.
pub const NEGOTIATED: u32 = 1;
/// State of a flow at its source. Everything under the flow's lock.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Response: inter-packet delay, end of the round.
    pub response: response::State,
    /// Echoes seen.
    pub echo: echo::Sender,
    /// Packets handed to the device.
    pub sent_packets: u64,
    /// Bytes handed to the device, with link headers.
    pub sent_bytes: u64,
    /// Packets that the receiver counted.
    pub acked_packets: u64,
    /// Of these, marked CE.
    pub marked_packets: u64,
    /// Marks ignored: one reaction per round.
    pub ignored_marks: u64,
    /// Decreases.
    pub decreases: u64,
    /// Rate limit, bytes per second.
    pub rate_bytes_per_s: u64,
    /// Rate limit last told to the agent.
    pub told_bytes_per_s: u64,
    /// Time of the first packet.
    pub created_ns: u64,
    /// Time of the last packet.
    pub last_sent_ns: u64,
    /// Time of the last accepted echo.
    pub last_echo_ns: u64,
    /// Minor number of the flow's class; 0: none was free, no limit.
    pub class: u32,
    /// [`NEGOTIATED`].
    pub flags: u32,
}

impl Flow {
    /// A flow that nothing is known of: at full rate.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            response: response::State::new(),
            echo: echo::Sender::new(),
            sent_packets: 0,
            sent_bytes: 0,
            acked_packets: 0,
            marked_packets: 0,
            ignored_marks: 0,
            decreases: 0,
            rate_bytes_per_s: 0,
            told_bytes_per_s: 0,
            created_ns: 0,
            last_sent_ns: 0,
            last_echo_ns: 0,
            class: 0,
            flags: 0,
        }
    }

    /// Packets that may be on their way at the flow's quietest moment, see
    /// [`echo::Sender::position`].
    #[inline(always)]
    #[must_use]
    pub fn quiet(&self) -> u32 {
        // At least one packet time: the divisor is never 0.
        let ipd = self.response.ipd | fixed::ONE;
        ((echo::QUIET_PACKET_TIMES << fixed::FRAC) / ipd) as u32
    }

    /// Whether the new rate is worth a message to the agent: every decrease of 1/64 or more, and
    /// increases from that size on. Smaller steps add up until they are.
    #[inline(always)]
    #[must_use]
    pub fn worth_telling(&self) -> bool {
        let (told, rate) = (self.told_bytes_per_s, self.rate_bytes_per_s);
        let difference = if rate > told { rate - told } else { told - rate };
        difference != 0 && difference >= told >> 6
    }
}

impl Default for Flow {
    fn default() -> Self {
        Self::new()
    }
}
