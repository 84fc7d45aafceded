//! What a run assumes: the mechanisms under study, and each choice that the papers leave open.

use crate::keywords;

keywords! {
    /// Which packets a bridge marks.
    Marking {
        /// Packets are counted but never marked.
        None = "none",
        /// A full input buffer: all packets in it.
        Naive = "naive",
        /// A full input buffer: all packets in the bridge for the outputs of its packets.
        Input = "input",
        /// As `Input`, and more packets waiting for one output than the threshold.
        #[default]
        InputOutput = "input-output",
    }
}

keywords! {
    /// How a flow's rate answers to marked and unmarked packets.
    Function {
        /// The rate stays at the link rate.
        None = "none",
        /// Linear inter-packet delay.
        #[default]
        Lipd = "lipd",
        /// Fast increase, multiplicative decrease.
        Fimd = "fimd",
        /// Additive increase, multiplicative decrease.
        Aimd = "aimd",
    }
}
