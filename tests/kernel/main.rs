//! Tests on the real kernel, in namespaces of their own.

mod attach;
mod chaos;
mod counters;
mod devices;
mod differential;
mod echo;
mod echo_faults;
mod edt;
mod forged;
mod full;
mod killed;
mod pacing;
mod parsed;
mod pins;
mod rate;
mod replay;
mod rig;
mod super_packets;
mod tcp;
mod tunnels;
mod twin;
mod untouched;
mod verifier;
mod virtual_queue;
mod xdp;
mod zero;
