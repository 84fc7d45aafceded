//! The mechanisms from outside: one binary, since each would compile what it uses of the library again.

mod abi;
mod ace;
mod backward;
mod bcn;
mod echo;
mod flow;
mod fractional;
mod fuzz;
mod marking;
mod notifications;
mod pacing;
mod packet;
mod response;
mod shares;
mod siphash;
mod tcd;
mod vqueue;
