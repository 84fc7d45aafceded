//! Pacing by earliest departure time (EDT): each packet is stamped with the time at which it may leave.
//!
//! The kernel's fq holds a packet until its time stamp. The packets of a flow get
//!
//! ```text
//! t = max(t_last + bytes/rate, now, TCP's own time)        t_last = t
//! ```
//!
//! so a packet leaves at the rate that was in force when it was stamped. After a decrease the next packet compensates, as
//! if the queued ones had been stamped at the new rate:
//!
//! ```text
//! t_last <- now + (t_last - now) old rate / new rate
//! ```
//!
//! An increase does not change stamped times and applies from the next packet on. At a constant rate a flow sends at most
//! rate x interval plus one packet in any interval. Times are nanoseconds of the monotonic clock, which fq uses.
//!
//! As in Linux's `samples/bpf/hbm_edt.c` and cilium's `bpf/lib/edt.h`.

/// Maximum queueing time of a flow's packets: those beyond it are dropped here, and not charged.
pub const HORIZON_NS: u64 = 2_000_000_000;

/// Latest departure time, relative to now, however low the rate: fq drops packets 10 s ahead (its horizon).
pub const MAX_AHEAD_NS: u64 = 8_000_000_000;

/// Queue limit of a limited flow at its source, as time at the flow's rate: a few control-loop delays, since all packets
/// of the flow wait that long.
pub const QUEUE_NS: u64 = 10_000_000;

/// A queue that was not empty for this long is a standing queue. CoDel's interval, RFC 8289 section 4.2.
pub(crate) const STANDING_NS: u64 = 100_000_000;

/// Limit of a standing queue, in addition to one packet, for flows that do not keep their own queue short. Stamped packets
/// leave at their old rate, so the queue delays each rate change.
pub const STANDING_QUEUE_NS: u64 = 4_000_000;

/// [`STANDING_QUEUE_NS`], or no limit for TCP, which keeps its own queue short.
#[inline(always)]
#[must_use]
pub const fn standing_queue_ns(is_tcp: bool) -> u64 {
    STANDING_QUEUE_NS | (is_tcp as u64) << 62
}

/// [`QUEUE_NS`] in bytes.
#[inline(always)]
#[must_use]
pub const fn queue_bytes(rate_bytes_per_s: u64) -> u64 {
    rate_bytes_per_s / (1_000_000_000 / QUEUE_NS)
}

/// Result of [`Pacer::departure`] for a packet to be dropped.
pub const DROPPED: u64 = u64::MAX;

/// Transmission time of `bytes` at a rate, rounded up so that the rate is not exceeded. A rate of 0 counts as 1. Exact up
/// to 18 GB.
#[inline(always)]
#[must_use]
pub const fn duration_ns(bytes: u64, rate_bytes_per_s: u64) -> u64 {
    let rate = if rate_bytes_per_s == 0 {
        1
    } else {
        rate_bytes_per_s
    };
    (bytes * 1_000_000_000).wrapping_add(rate - 1) / rate
}

/// All bits set if `a` is negative as a signed number, else 0. Hidden from the compiler, which would branch.
#[inline(always)]
fn sign_mask(a: u64) -> u64 {
    core::hint::black_box((a as i64 >> 63) as u64)
}

/// All bits set if a < b, else 0. They differ by less than 2^63.
#[inline(always)]
fn less_mask(a: u64, b: u64) -> u64 {
    sign_mask(a.wrapping_sub(b))
}

/// `yes` if all bits of `which` are set, `no` if none are.
#[inline(always)]
fn select(which: u64, yes: u64, no: u64) -> u64 {
    no ^ ((yes ^ no) & which)
}

/// `a`, or `b` if `a` is 0; both below 2^63.
#[inline(always)]
#[must_use]
pub fn nonzero_or(a: u64, b: u64) -> u64 {
    select(sign_mask(a.wrapping_neg()), a, b)
}

/// State of a flow's pacer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pacer {
    /// Departure time of the last packet; 0: none.
    pub last_ns: u64,
    /// [`Pacer::last_ns`] when the rate last rose to twice `base_bytes_per_s`: packets until then leave at lower rates and
    /// do not count for the queue limit.
    pub slower_until_ns: u64,
    /// The lowest rate since then.
    pub base_bytes_per_s: u64,
    /// When a packet last found the queue empty.
    pub empty_ns: u64,
    /// Rate at which the last packet was stamped.
    pub rate_bytes_per_s: u64,
}

impl Pacer {
    /// A pacer without packets.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            last_ns: 0,
            slower_until_ns: 0,
            base_bytes_per_s: 0,
            empty_ns: 0,
            rate_bytes_per_s: 0,
        }
    }

    /// Departure time of a packet; [`DROPPED`], without charge, if the queue is longer than [`HORIZON_NS`] or
    /// `queue_bytes` (twice that while the rate rises). A packet that finds the queue empty is never dropped.
    ///
    /// `standing_queue_ns`, below 2^63: limit of a standing queue, in addition to one packet.
    ///
    /// `stamp_ns`: the packet's time stamp, 0 if none or of another clock. Anything beyond [`MAX_AHEAD_NS`] is of another
    /// clock too: a receive time is decades ahead.
    #[inline(always)]
    pub fn departure(
        &mut self,
        now_ns: u64,
        stamp_ns: u64,
        bytes: u64,
        rate_bytes_per_s: u64,
        queue_bytes: u64,
        standing_queue_ns: u64,
    ) -> u64 {
        const SHIFT: u32 = 10;
        // Masks instead of branches, each of which would double the verifier's paths.
        let last = self.last_ns;
        let waits = last.wrapping_sub(now_ns);
        let waits = waits & !sign_mask(waits);
        let packet_ns = duration_ns(bytes, rate_bytes_per_s);
        let empty = !sign_mask(waits.wrapping_neg());
        // The next packet compensates for those queued at a higher rate. Fits 63 bits up to 1 TB/s; `| 1` for the division.
        let old = self.rate_bytes_per_s;
        let stretched =
            ((waits >> SHIFT) * old / (rate_bytes_per_s | 1)).min(MAX_AHEAD_NS >> SHIFT) << SHIFT;
        let fell = less_mask(rate_bytes_per_s, old);
        let waits = select(fell, stretched, waits);
        let last = select(fell & !empty, now_ns + stretched, last);
        self.empty_ns = select(empty, now_ns, self.empty_ns);
        let stands = less_mask(STANDING_NS, now_ns.wrapping_sub(self.empty_ns));
        let full = less_mask(standing_queue_ns.wrapping_add(packet_ns), waits);
        let base = self.base_bytes_per_s;
        let rises = !less_mask(rate_bytes_per_s >> 1, base);
        let falls = less_mask(rate_bytes_per_s, base);
        self.slower_until_ns = select(rises, last, self.slower_until_ns);
        self.base_bytes_per_s = select(rises | falls, rate_bytes_per_s, base);
        let slower = self.slower_until_ns;
        let from = select(less_mask(now_ns, slower), slower, now_ns);
        let ahead = last.wrapping_sub(from);
        let ahead = ahead & !sign_mask(ahead);
        // ahead x rate is the queue's length, in units of 1024 ns: fits 63 bits up to 1 TB/s.
        let most = queue_bytes * (1_000_000_000 >> SHIFT);
        let long = less_mask(most, (ahead >> SHIFT) * self.base_bytes_per_s);
        if stands & full | less_mask(HORIZON_NS, waits) | long != 0 {
            return DROPPED;
        }
        let furthest = now_ns + MAX_AHEAD_NS;
        let mut at = last + packet_ns;
        at = select(less_mask(at, now_ns), now_ns, at);
        let later = less_mask(at, stamp_ns) & !less_mask(furthest, stamp_ns);
        at = select(later, stamp_ns, at);
        at = select(less_mask(furthest, at), furthest, at);
        self.last_ns = at;
        self.rate_bytes_per_s = rate_bytes_per_s;
        at
    }
}

/// Major number of the HTB root at an endpoint: flow classes are `ec0e:MINOR`.
pub const HTB_MAJOR: u16 = 0xec0e;
/// Top byte of an `skb->priority` that holds a class in the next two bytes.
const PRIORITY: u32 = 0xed << 24;
/// `TC_PRIO_MAX`: the part of the priority by which fq and pfifo_fast select a band.
const TC_PRIO_MAX: u32 = 15;
/// `TC_PRIO_CONTROL`: fq before Linux 6.7 sends it immediately, whatever its departure time.
const TC_PRIO_CONTROL: u32 = 7;

/// The priority that stores a packet's class if there is no HTB. Its low byte, by which qdiscs classify, remains the
/// application's.
#[inline(always)]
#[must_use]
pub const fn priority(class: u32, old: u32) -> u32 {
    let mut low = old & 0xff;
    if low & TC_PRIO_MAX == TC_PRIO_CONTROL {
        low -= 1;
    }
    PRIORITY | (class & 0xffff) << 8 | low
}

/// The class in a departing packet's priority, by HTB or by [`priority`]; 0: none.
#[inline(always)]
#[must_use]
pub const fn class(priority: u32) -> u32 {
    if priority >> 16 == HTB_MAJOR as u32 {
        priority & 0xffff
    } else if priority & 0xff00_0000 == PRIORITY {
        priority >> 8 & 0xffff
    } else {
        0
    }
}

/// `SO_MAX_PACING_RATE` without a limit.
pub const UNLIMITED: u32 = u32::MAX;

/// `SO_MAX_PACING_RATE` for a rate on the wire: TCP paces payload, in frames of `mss` bytes of it and `headers` bytes of
/// headers. Never [`UNLIMITED`], never 0.
#[inline(always)]
#[must_use]
pub const fn socket_rate(rate_bytes_per_s: u64, mss: u32, headers: u32) -> u32 {
    // A connection without an MSS has sent no data yet.
    let mss = if mss == 0 { 536 } else { mss as u64 };
    const MOST: u64 = UNLIMITED as u64 - 1;
    let rate = if rate_bytes_per_s > MOST * 2 {
        MOST * 2
    } else {
        rate_bytes_per_s
    };
    let payload = rate * mss / (mss + headers as u64);
    if payload > MOST {
        MOST as u32
    } else if payload == 0 {
        1
    } else {
        payload as u32
    }
}
