//! Access to packets for which `aya_ebpf` has no functions.

use core::{ffi::c_void, mem::MaybeUninit};

use aya_ebpf::{
    EbpfContext as _,
    bindings::{__sk_buff, BPF_F_RECOMPUTE_CSUM},
    helpers::{
        bpf_l3_csum_replace, bpf_probe_read_kernel, bpf_redirect, bpf_skb_ecn_set_ce,
        bpf_skb_load_bytes, bpf_skb_pull_data, bpf_skb_store_bytes, generated,
    },
    programs::TcContext,
};
use ecn_core::{
    abi::Count,
    flow::Key,
    packet::{self, Buffer, ETHERNET, IPV6, Ip, Pass, Read, Transport},
};

use crate::{
    maps::{ECN_TAIL, count},
    value::Zero,
};

/// "No opinion": later programs on the hook run too (tcx and clsact alike).
pub const NEXT: i32 = -1;
/// Drop the packet.
pub const SHOT: i32 = 2;

/// Longest transport header: TCP's with all options.
const LONGEST_TRANSPORT: u32 = 60;
/// Largest offset that is read directly; headers farther into a packet are read by the helper.
const FARTHEST: u32 = 1023;

pub struct Packet {
    pub ctx: TcContext,
    pub zero: Zero,
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

#[inline(always)]
pub fn load<const N: usize>(ctx: &TcContext, offset: u32) -> Option<[u8; N]> {
    let mut bytes = MaybeUninit::<[u8; N]>::uninit();
    // SAFETY: writes N bytes, zeros if it fails.
    let ret =
        unsafe { bpf_skb_load_bytes(raw(ctx).cast(), offset, bytes.as_mut_ptr().cast(), N as u32) };
    // SAFETY: written.
    (ret == 0).then(|| unsafe { bytes.assume_init() })
}

#[inline(always)]
pub fn store<const N: usize>(ctx: &TcContext, offset: u32, b: &[u8; N], flags: u64) -> bool {
    // SAFETY: reads N bytes of b.
    unsafe { bpf_skb_store_bytes(raw(ctx).cast(), offset, b.as_ptr().cast(), N as u32, flags) == 0 }
}

/// Tail-calls a program that is verified and loaded once. `word`, such as the endpoint number of this loaded copy, is
/// passed in `cb[0]`, which is free within one hook.
#[inline(always)]
pub fn tail_call(ctx: &TcContext, program: u32, word: u32) -> i32 {
    // SAFETY: tc programs may write this field; no value here needs `Drop` if the call does not return.
    unsafe {
        (*raw(ctx)).cb[0] = word;
        ECN_TAIL.tail_call(ctx, program);
    }
    NEXT
}

/// Sets where [`pass`] sends the packet: the number of another device, or 0.
#[inline(always)]
pub fn set_shaper(ctx: &TcContext, ifindex: u32) {
    // SAFETY: tc programs may write this field.
    unsafe { (*raw(ctx)).cb[4] = ifindex };
}

/// The verdict on a packet that passes an endpoint's programs, after [`set_shaper`].
#[inline(always)]
pub fn pass(ctx: &TcContext) -> i32 {
    match field!(ctx, cb)[4] {
        0 => NEXT,
        // SAFETY: takes numbers only.
        shaper => unsafe { bpf_redirect(shaper, 0) as i32 },
    }
}

/// The bytes of a tc program's packet.
#[derive(Clone, Copy)]
struct Bytes {
    context: *mut __sk_buff,
    zero: Zero,
}

impl Read for Bytes {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        // SAFETY: the context outlives the program; tc programs may read this field.
        unsafe { (*self.context).len }
    }

    #[inline(always)]
    fn read<'a, const N: usize>(&self, at: u32, to: &'a mut Buffer<N>) -> Option<&'a [u8; N]> {
        let fill = |to| {
            self.read_linear::<N>(at, to)
                // SAFETY: writes N bytes.
                || unsafe { bpf_skb_load_bytes(self.context.cast(), at, to.cast(), N as u32) == 0 }
        };
        // SAFETY: each of the two writes N bytes, or fails.
        unsafe { to.filled(fill) }
    }

    #[inline(always)]
    fn opaque(&self, word: u64) -> u64 {
        self.zero.hide(word)
    }
}

impl Bytes {
    /// Headers are nearly always in the linear part of a packet, which is read directly: the helper takes 15 ns.
    #[inline(always)]
    fn read_linear<const N: usize>(&self, at: u32, to: *mut u8) -> bool {
        // Compares a copy: from `at` itself the verifier would learn a bound, and keep two states where both paths
        // merge.
        let at = self.opaque(at.into()) as u32;
        if at > FARTHEST {
            return false;
        }
        // Bounds the register that is added to the packet pointer: 6.1 does not track a 32-bit xor. Volatile, or the
        // compiler would remove the mask.
        // SAFETY: a local variable.
        let at = unsafe { core::ptr::read_volatile(&raw const at) } & FARTHEST;
        // SAFETY: the context outlives the program; tc programs may read these fields.
        let (data, end) = unsafe {
            (
                (*self.context).data as usize,
                (*self.context).data_end as usize,
            )
        };
        let from = data + at as usize;
        // One byte more than needed: with a length of one the compiler turns `>` into `>=`, from which the verifier
        // derives no bound.
        if from + N >= end {
            return false;
        }
        let mut i = 0;
        while i < N {
            // Volatile, so that the byte is read here and not where it is used: the compiler would keep the pointer
            // until then in a register that, on another path, holds a number.
            // SAFETY: within the packet, as just compared; `to` has N bytes.
            unsafe { *to.add(i) = core::ptr::read_volatile((from + i) as *const u8) };
            i += 1;
        }
        true
    }
}

/// Counts malformed packets.
#[inline(always)]
fn parsed<T>(result: Result<T, Pass>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(pass) => {
            if pass == Pass::Malformed {
                count(Count::Unparsed, 1);
            }
            None
        }
    }
}

impl Packet {
    #[inline(always)]
    pub fn new(ctx: TcContext) -> Self {
        // SAFETY: tc programs may read this field.
        let (first, second) = unsafe {
            let mark = &raw const (*raw(&ctx)).mark;
            (mark.read_volatile(), mark.read_volatile())
        };
        let zero = Zero::from_reads(first, second);
        Self { ctx, zero }
    }

    /// Parses the headers, see [`packet::parse`]. `None`: the packet passes untouched.
    #[inline(always)]
    pub fn parse(&self) -> Option<Ip> {
        parsed(packet::parse(&self.bytes()))
    }

    #[inline(always)]
    fn bytes(&self) -> Bytes {
        Bytes {
            context: raw(&self.ctx),
            zero: self.zero,
        }
    }

    /// Writes the addresses, see [`packet::addresses`].
    #[inline(always)]
    pub fn addresses(&self, ip: &Ip, key: &mut Key) -> bool {
        packet::addresses(&self.bytes(), ip, &mut key.src, &mut key.dst)
    }

    /// Reads the transport header, see [`packet::transport`].
    #[inline(always)]
    pub fn transport(&self, ip: &Ip) -> Option<Transport> {
        parsed(packet::transport(&self.bytes(), ip))
    }

    /// See [`packet::ports`].
    #[inline(always)]
    pub fn ports(&self, ip: &Ip) -> Option<(u16, u16)> {
        packet::ports(&self.bytes(), ip)
    }

    /// Segments of a super-packet; 1 for an ordinary one.
    #[inline(always)]
    pub fn segments(&self, ip: &Ip) -> u32 {
        let (counted, size) = (field!(&self.ctx, gso_segs), field!(&self.ctx, gso_size));
        if counted != 0 || size == 0 {
            return packet::segments(counted, size, 0);
        }
        let header = match packet::transport(&self.bytes(), ip) {
            Ok(t) => t.header_len,
            Err(_) => 0,
        };
        packet::segments(counted, size, ip.upper_len().saturating_sub(header))
    }

    /// Pulls the headers into the linear part, where tracepoint programs can read them.
    #[inline(always)]
    pub fn pull_headers(&self, ip: &Ip) {
        let ordinary = ETHERNET + IPV6;
        if self.ctx.data() + ordinary > self.ctx.data_end() || ip.upper() > ordinary as u32 {
            let (all, headers) = (field!(&self.ctx, len), ip.upper() + LONGEST_TRANSPORT);
            let len = if all < headers { all } else { headers };
            // SAFETY: takes the context; packet pointers are not held.
            unsafe { bpf_skb_pull_data(raw(&self.ctx).cast(), len) };
        }
    }

    /// Sets the ECN field and updates the IPv4 header checksum.
    #[inline(always)]
    pub fn set_ecn(&self, ip: &Ip, codepoint: u8) -> bool {
        let (from, to) = (ip.start, [ip.start[0], ip.with_ecn(codepoint)]);
        if ip.version == 4 {
            let (from, to) = (u16::from_ne_bytes(from), u16::from_ne_bytes(to));
            // SAFETY: offsets within the header that was read.
            let ret = unsafe {
                bpf_l3_csum_replace(raw(&self.ctx).cast(), ip.l3 + 10, from as u64, to as u64, 2)
            };
            ret == 0 && store(&self.ctx, ip.l3, &to.to_ne_bytes(), 0)
        } else {
            // IPv6 has no header checksum, but a receive checksum over the packet must be updated.
            store(&self.ctx, ip.l3, &to, BPF_F_RECOMPUTE_CSUM as u64)
        }
    }

    /// Sets CE. The helper fails on clones (flooded frames), which [`Self::set_ecn`] copies before the write. It is
    /// not used with an in-band VLAN tag, which it would overwrite: the kernel's network header then points to the
    /// tag.
    #[inline(always)]
    pub fn mark(&self, ip: &Ip) -> bool {
        if ip.l3 != ETHERNET as u32 {
            return self.set_ecn(ip, packet::CE);
        }
        // SAFETY: takes the context only.
        let ret = unsafe { bpf_skb_ecn_set_ce(raw(&self.ctx).cast()) };
        ret == 1 || self.set_ecn(ip, packet::CE)
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
    // SAFETY: guaranteed by the caller.
    unsafe { core::ptr::read_volatile(base.add(offset as usize).cast::<T>()) }
}

/// The linear bytes of a packet at a tracepoint, which contain the headers: see [`Packet::pull_headers`].
pub struct Linear {
    /// Address of the Ethernet header.
    pub start: u64,
    /// Length of the frame.
    pub len: u32,
    /// Length of the linear part.
    pub linear: u32,
    pub zero: Zero,
}

impl Read for Linear {
    #[inline(always)]
    fn frame_len(&self) -> u32 {
        self.len
    }

    #[inline(always)]
    fn read<'a, const N: usize>(&self, at: u32, to: &'a mut Buffer<N>) -> Option<&'a [u8; N]> {
        if at + N as u32 > self.linear {
            return None;
        }
        let from = (self.start + at as u64) as *const c_void;
        // SAFETY: the helper checks the address, and writes N bytes.
        unsafe { to.filled(|to| generated::bpf_probe_read_kernel(to.cast(), N as u32, from) == 0) }
    }

    #[inline(always)]
    fn opaque(&self, word: u64) -> u64 {
        self.zero.hide(word)
    }
}

/// Reads kernel memory that has no BTF type.
#[inline(always)]
pub fn kernel<const N: usize>(address: u64) -> Option<[u8; N]> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(address as *const [u8; N]) }.ok()
}
