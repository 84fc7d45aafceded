//! The kernel programs: read context, look up maps, call [`ecn_core`], write maps.
//!
//! The way of a packet, and of its echo:
//!
//! ```text
//! source's device                     bridge port o                       receiver's device
//!   ecn_flow_out (tcx egress)           ecn_port_out (tcx egress)           ecn_flow_in (tcx ingress)
//!     flow, ECT(0), class or time         arrival: cnt1, triggers, mark       counts packets and CE,
//!   [HTB, or fq]                        [the port's queue]                    clones a packet back
//!   ecn_depart (tp_btf)                 ecn_depart (tp_btf): cnt1 down      ecn_flow_out (tcx egress)
//!     counts what has left              ecn_drop (tp_btf): cnt1 down          turns it into an echo
//!   ecn_flow_in (tcx ingress)           [wire]  ecn_wire_end (tcx ingress)
//!     echo: response, new rate            departure marking writes CE
//! ```
//!
//! TCP's echo is in the flags of its ACKs: `ecn_flow_out` writes it at the receiver, `ecn_flow_in` reads it
//! at the source and takes it off again.
//!
//! Every program lets pass what it does not know, and returns "no opinion" so that others' programs
//! on the same hook run too.

#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "without the borrow a copy is made on the stack, which is small"
)]
// SAFETY comments: map values and context pointers are the verifier's to judge, not the compiler's;
// a program that broke their rules would not load.

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
