//! Access to packets: what `aya_ebpf` has no accessor for.

use aya_ebpf::{
    EbpfContext as _,
    bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM},
    helpers::{
        bpf_l3_csum_replace, bpf_probe_read_kernel_buf, bpf_skb_ecn_set_ce, bpf_skb_load_bytes,
        bpf_skb_store_bytes,
    },
    programs::TcContext,
};
use ecn_core::packet::{self, ETHERNET, IP_WINDOW};

/// "No opinion": later programs on the hook run too (tcx and clsact alike).
pub const NEXT: i32 = -1;
/// Drop the packet: it was ours alone.
pub const SHOT: i32 = 2;

/// A packet with its network header.
pub struct Packet {
    pub ctx: TcContext,
    /// Offset of the network header.
    pub l3: u32,
    /// The network header.
    pub window: [u8; IP_WINDOW],
}

#[inline(always)]
pub fn raw(ctx: &TcContext) -> *mut __sk_buff {
    ctx.as_ptr().cast()
}

/// Reads a context field; the verifier rewrites it to the real structure.
macro_rules! field {
    ($ctx:expr, $name:ident) => {
        // SAFETY: the context outlives the program; the field is one that tc programs may read.
        unsafe { (*$crate::skb::raw($ctx)).$name }
    };
}
pub(crate) use field;

/// Segments of a super-packet; 1 for an ordinary one.
#[inline(always)]
pub fn segments(ctx: &TcContext) -> u32 {
    let n = field!(ctx, gso_segs);
    if n == 0 { 1 } else { n }
}

#[inline(always)]
pub fn load<const N: usize>(ctx: &TcContext, offset: u32) -> Option<[u8; N]> {
    let mut b = [0u8; N];
    // SAFETY: writes N bytes to b, or zeros them and fails.
    let ret =
        unsafe { bpf_skb_load_bytes(raw(ctx).cast(), offset, b.as_mut_ptr().cast(), N as u32) };
    if ret == 0 { Some(b) } else { None }
}

#[inline(always)]
pub fn store<const N: usize>(ctx: &TcContext, offset: u32, b: &[u8; N], flags: u64) -> bool {
    // SAFETY: reads N bytes of b.
    unsafe { bpf_skb_store_bytes(raw(ctx).cast(), offset, b.as_ptr().cast(), N as u32, flags) == 0 }
}

impl Packet {
    #[inline(always)]
    pub fn new(ctx: TcContext) -> Self {
        Self {
            ctx,
            l3: ETHERNET as u32,
            window: [0; IP_WINDOW],
        }
    }

    /// Reads an IPv4 or IPv6 header behind an Ethernet header and up to one tag in the frame (others
    /// are in metadata). False: anything else. In place, because the stack is small.
    #[inline(always)]
    pub fn read_ip(&mut self) -> bool {
        let mut ethertype = u16::from_be(field!(&self.ctx, protocol) as u16);
        if ethertype == packet::ETHERTYPE_VLAN || ethertype == packet::ETHERTYPE_QINQ {
            let Some(inner) = load::<2>(&self.ctx, self.l3 + 2) else {
                return false;
            };
            ethertype = u16::from_be_bytes(inner);
            self.l3 += 4;
        }
        if ethertype == packet::ETHERTYPE_IPV4 {
            // A packet may be shorter than an IPv6 header.
            (self.read(IP_WINDOW as u32) || self.read(20)) && self.window[0] >> 4 == 4
        } else if ethertype == packet::ETHERTYPE_IPV6 {
            self.read(IP_WINDOW as u32) && self.window[0] >> 4 == 6
        } else {
            false
        }
    }

    #[inline(always)]
    fn read(&mut self, len: u32) -> bool {
        // SAFETY: len is at most the window's length.
        unsafe {
            bpf_skb_load_bytes(
                raw(&self.ctx).cast(),
                self.l3,
                self.window.as_mut_ptr().cast(),
                len,
            ) == 0
        }
    }

    /// Whether it belongs to the network itself, see [`packet::is_control`].
    #[inline(always)]
    pub fn is_control(&self) -> bool {
        let mut upper = 0;
        if self.window[0] >> 4 == 6
            && self.window[6] == packet::protocol::ICMPV6
            && let Some(b) = load::<1>(&self.ctx, self.l3 + IP_WINDOW as u32)
        {
            upper = b[0];
        }
        packet::is_control(&self.window, upper)
    }

    /// Sets the ECN field and mends the IPv4 header checksum.
    #[inline(always)]
    pub fn set_ecn(&mut self, codepoint: u8) -> bool {
        let (first, old) = (self.window[0], self.window[1]);
        let v4 = first >> 4 == 4;
        let new = if v4 {
            old & !3 | codepoint
        } else {
            old & !0x30 | codepoint << 4
        };
        self.window[1] = new;
        if v4 {
            let from = u16::from_ne_bytes([first, old]) as u64;
            let to = u16::from_ne_bytes([first, new]) as u64;
            // SAFETY: offsets within the header that was read.
            let ret =
                unsafe { bpf_l3_csum_replace(raw(&self.ctx).cast(), self.l3 + 10, from, to, 2) };
            ret == 0 && store(&self.ctx, self.l3 + 1, &[new], 0)
        } else {
            // No header checksum; a receive checksum over the packet must follow the change.
            store(&self.ctx, self.l3 + 1, &[new], BPF_F_RECOMPUTE_CSUM as u64)
        }
    }

    /// Marks. The helper does nothing on clones (flooded frames): then the bytes are copied. Behind
    /// a tag in the bytes it would write into that tag, which the kernel takes for the network header.
    #[inline(always)]
    pub fn mark(&mut self) -> bool {
        if self.l3 != ETHERNET as u32 {
            return self.set_ecn(packet::CE);
        }
        // SAFETY: takes the context only.
        let ret = unsafe { bpf_skb_ecn_set_ce(raw(&self.ctx).cast()) };
        ret == 1 || self.set_ecn(packet::CE)
    }
}

/// Reads a member of a kernel structure behind a BTF pointer, at an offset known at load time.
///
/// # Safety
///
/// `base` must come from a BTF tracepoint's argument, or from such a read; the verifier checks that
/// a member of this size lies there.
#[inline(always)]
pub unsafe fn member<T: Copy>(base: *const u8, offset: u32) -> T {
    // SAFETY: by contract.
    unsafe { core::ptr::read_volatile(base.add(offset as usize).cast::<T>()) }
}

/// Reads kernel memory that has no BTF type.
#[inline(always)]
pub fn kernel<const N: usize>(address: u64) -> Option<[u8; N]> {
    let mut b = [0u8; N];
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel_buf(address as *const u8, &mut b) }.ok()?;
    Some(b)
}
