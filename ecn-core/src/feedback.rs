//! What feedback reports, of echoes ([`echo`](crate::echo)) and of TCP ACKs ([`ace`](crate::ace)) alike.

/// What an accepted echo or ACK reports beyond the last one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedbackDelta {
    /// Packets that the receiver counted since.
    pub packets: u32,
    /// Of these, packets that an earlier delta already contained, without their marks.
    pub late: u32,
    /// Of [`packets`](Self::packets), those marked CE.
    pub ce: u32,
    /// Echoes in between that were lost.
    pub lost_echoes: u32,
    /// The last of the source's own packets that the feedback covers, see
    /// [`echo::Sender::position`](crate::echo::Sender::position).
    pub position: u32,
    /// Packets that left after that one.
    pub outstanding: u32,
    /// A [`Headroom`](crate::echo::Headroom).
    pub headroom: u32,
    /// Of the unmarked ones, retransmissions: as many were lost, most likely.
    pub retransmitted: u32,
}
