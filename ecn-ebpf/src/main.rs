//! The kernel programs: read context, look up maps, call [`ecn_core`], write maps.
//!
//! Path of a packet and of its echo:
//!
//! ```text
//! source's device                     bridge port o                       receiver's device
//!   ecn_flow_out (tcx egress)           ecn_port_out (tcx egress)           ecn_flow_in (tcx ingress)
//!     flow, ECT(0), class or time         arrival: cnt1, triggers, mark       counts packets and CE,
//!   [HTB, or fq]                        [the port's queue]                    clones a packet back
//!   ecn_depart (tp_btf)                 ecn_depart (tp_btf): cnt1 down      ecn_flow_out (tcx egress)
//!     counts departures                 ecn_drop (tp_btf): cnt1 down          turns it into an echo
//!   ecn_flow_in (tcx ingress)           [wire]  ecn_wire_end (tcx ingress)
//!     echo: response, new rate            departure marking writes CE
//! ```
//!
//! For TCP the CE count travels in the ECN flags of ACKs instead: `ecn_flow_out` sets them at the receiver,
//! `ecn_flow_in` reads and clears them at the source.
//!
//! Programs pass packets that they do not recognise, with the verdict "no opinion", so that other programs on the
//! same hook run too.

#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "passing by value would copy to the stack, which is small"
)]
// SAFETY comments: accesses to map values and context fields are checked by the verifier, not by the compiler; a
// program with an invalid access does not load.

mod backward;
mod classify;
mod clock;
mod echo;
mod egress;
mod endpoint;
mod ingress;
mod maps;
mod pacing;
mod reply;
mod response;
mod skb;
mod socket;
mod switch;
mod tables;
mod tcp;
mod value;
mod xdp;

#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
