//! XDP at a sender's device: echoes are consumed before the kernel allocates socket buffers for them.
//!
//! The first program to see a received packet. Echoes are dropped here once processed; everything else passes
//! unchanged, including packets that cannot be parsed, which the tc program counts.

use aya_ebpf::{
    bindings::{xdp_action, xdp_md},
    macros::xdp,
    programs::XdpContext,
};
use ecn_core::{
    abi::{self, Count},
    echo::{self, Echo, Headroom},
    flow::Key,
    packet::{self, Buffer, Read},
};

use crate::{
    maps::{ECN_ENDPOINT, ENDPOINT, constant, control, count},
    response,
    value::Zero,
};

/// Bound on the offset of a header, required by the verifier.
const LAST_OFFSET: u32 = 0x7ff;

/// The bytes of a frame in the driver's buffer.
struct Frame {
    context: *mut xdp_md,
    zero: Zero,
}

impl Frame {
    #[inline(always)]
    fn new(context: *mut xdp_md) -> Self {
        // SAFETY: the context outlives the program; XDP programs may read this field.
        let zero = unsafe {
            let queue = &raw const (*context).rx_queue_index;
            Zero::from_reads(queue.read_volatile(), queue.read_volatile())
        };
        Self { context, zero }
    }
}

impl Read for Frame {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        // SAFETY: the context outlives the program; XDP programs may read both fields.
        let (data, end) = unsafe {
            (
                (*self.context).data as usize,
                (*self.context).data_end as usize,
            )
        };
        // Opaque, or the compiler subtracts offsets from one pointer in 32 bits, which the verifier refuses.
        self.opaque(end.wrapping_sub(data) as u64) as u32
    }

    #[inline(always)]
    fn read<'a, const N: usize>(&self, at: u32, to: &'a mut Buffer<N>) -> Option<&'a [u8; N]> {
        if at > LAST_OFFSET {
            return None;
        }
        // Bounds the register that is added to the packet pointer: the compiler may know that the offset is small, and omit
        // the comparison. Volatile, or it would omit the mask, too.
        // SAFETY: a local variable.
        let at = unsafe { core::ptr::read_volatile(&raw const at) } & LAST_OFFSET;
        // SAFETY: within the frame, as compared here; writes N bytes.
        unsafe {
            let from = (*self.context).data as usize + at as usize;
            // A single byte would be compared as `from < data_end`, from which the verifier derives no bound.
            if from + N.max(2) > (*self.context).data_end as usize {
                return None;
            }
            let from = from as *const u8;
            to.filled(|to| {
                let mut i = 0;
                while i < N {
                    *to.add(i) = from.add(i).read_volatile();
                    i += 1;
                }
                true
            })
        }
    }

    #[inline(always)]
    fn opaque(&self, word: u64) -> u64 {
        self.zero.hide(word)
    }
}

/// For drivers with multi-buffer frames (kernel 5.18); an echo fits into the first buffer.
#[xdp(frags)]
pub fn ecn_ep_xdp_f(ctx: XdpContext) -> u32 {
    verdict(&ctx)
}

#[xdp]
pub fn ecn_ep_xdp(ctx: XdpContext) -> u32 {
    verdict(&ctx)
}

#[inline(always)]
fn verdict(ctx: &XdpContext) -> u32 {
    match try_echo(ctx) {
        Some(()) => xdp_action::XDP_DROP,
        None => xdp_action::XDP_PASS,
    }
}

#[inline(always)]
fn try_echo(ctx: &XdpContext) -> Option<()> {
    let control = control()?;
    if control.flags & abi::BYPASS != 0 {
        return None;
    }
    let number = constant(&ENDPOINT);
    let endpoint = ECN_ENDPOINT.get(number)?;
    if endpoint.flags & abi::CONTROL_FLOWS == 0 {
        return None;
    }
    let frame = Frame::new(ctx.ctx);
    let ip = packet::parse(&frame).ok()?;
    if ip.protocol as u32 != endpoint.echo.protocol || !ip.unicast || ip.fragment {
        return None;
    }
    let mut key = Key {
        endpoint: number as u16,
        ..Key::default()
    };
    if !packet::addresses(&frame, &ip, &mut key.src, &mut key.dst) {
        return None;
    }
    let mut b = Buffer::<{ echo::LEN }>::new();
    let mut e = Echo::parse(frame.read(ip.upper(), &mut b)?)?;
    let mut tag = Buffer::<{ echo::TAG_LEN }>::new();
    let tag = if e.signed {
        u64::from_be_bytes(*frame.read(ip.upper() + echo::LEN as u32, &mut tag)?)
    } else {
        0
    };
    if !(endpoint.echo).accepts(&e, tag, &key.src, &key.dst) {
        // The tc program drops and counts it.
        return None;
    }
    e.headroom = Headroom::of(ip.ecn());
    // An echo of an unknown flow may have been flooded to this device; the tc program decides.
    let f = response::find_flow(&e, &mut key)?;
    response::on_echo(ctx, &e, f, &key, endpoint, control.flags);
    count(Count::EchoXdp, 1);
    Some(())
}
