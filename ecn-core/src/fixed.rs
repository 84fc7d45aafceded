//! Fixed-point arithmetic for the rate response: unsigned 64-bit integers only.
//!
//! The functions run in kernel programs as well as on the host, and the BPF instruction set limits them: no floating
//! point, no 128-bit integers, no signed division, no function that can panic, and loops only at compile time.
//! Products of two 64-bit numbers are assembled from 32-bit halves.
//!
//! # Scales
//!
//! | name | unit of the last bit | holds |
//! |---|---|---|
//! | [`FRAC`] | 2^-40 | inter-packet delays in packet times, the decrease factor |
//! | [`LOG_FRAC`] | 2^-58 | binary logarithms, below 64 |
//!
//! 40 fractional bits and not fewer, because one unmarked ACK of AIMD near r = Rmax moves the rate
//! by (m - 1)(Rmin/Rmax)², which is 2^-16 at Rmin = Rmax/256, but 2^-32 at Rmin = Rmax/65536. Not
//! more, because a delay goes up to 65536 and needs some bits of headroom above for one decrease.

/// Fractional bits of an inter-packet delay and of the decrease factor.
pub const FRAC: u32 = 40;

/// 1 in the scale of [`FRAC`]: the inter-packet delay at full rate, one packet time.
pub const ONE: u64 = 1 << FRAC;

/// Fractional bits of a binary logarithm.
pub const LOG_FRAC: u32 = 58;

/// Multiplier of Fibonacci hashing, 2^64 over the golden ratio.
pub const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// ln 2, 32 fractional bits.
pub(crate) const LN_2: u64 = 0xb172_17f8;

/// log2 e, 31 fractional bits.
const LOG2_E: u64 = 0xb8aa_3b29;

/// 2^(-1/64), 63 fractional bits, rounded down.
const STEP: u64 = 0x7e9f_0606_7a43_60ba;

/// Table index bits: both tables below have 64 entries.
const INDEX_BITS: u32 = 6;
const ENTRIES: usize = 1 << INDEX_BITS;
const INDEX_MASK: u64 = ENTRIES as u64 - 1;

/// 2^(-i/64), 63 fractional bits.
static POWERS: [u64; ENTRIES] = powers();

/// 64/(64 + i) rounded up to 31 fractional bits, and minus its logarithm, [`LOG_FRAC`] fractional
/// bits.
static LOGS: [(u64, u64); ENTRIES] = logs();

const fn powers() -> [u64; ENTRIES] {
    let mut table = [1 << 63; ENTRIES];
    let mut i = 1;
    while i < ENTRIES {
        table[i] = mul_shift(table[i - 1], STEP, 63);
        i += 1;
    }
    table
}

const fn logs() -> [(u64, u64); ENTRIES] {
    let mut table = [(1 << 31, 0); ENTRIES];
    let mut i = 1;
    while i < ENTRIES {
        let reciprocal = (64u64 << 31).div_ceil(64 + i as u64);
        let Some(log) = log2_ratio(1 << 31, reciprocal) else {
            panic!("a reciprocal of 1 to 2 is at most 1")
        };
        table[i] = (reciprocal, log);
        i += 1;
    }
    table
}

/// Product of two 64-bit numbers as (high, low) halves of 128 bits.
#[inline(always)]
pub const fn mul_wide(a: u64, b: u64) -> (u64, u64) {
    const LOW: u64 = 0xffff_ffff;
    let (a1, a0) = (a >> 32, a & LOW);
    let (b1, b0) = (b >> 32, b & LOW);
    let (x, y, z) = (a1 * b0, a0 * b1, (a0 * b0) >> 32);
    // Half of x + y + z, without overflow; the carry of the dropped bits is their majority. Masks and carries would
    // be the usual way, but LLVM 22 recognises them and turns them back into a 128-bit multiplication, which BPF does
    // not have.
    let carry = (x & y | z & (x | y)) & 1;
    let half = (x >> 1) + (y >> 1) + (z >> 1) + carry;
    (a1 * b1 + (half >> 31), a.wrapping_mul(b))
}

/// Upper half of the product: a·b / 2^64, rounded down.
#[inline(always)]
pub const fn mul_hi(a: u64, b: u64) -> u64 {
    mul_wide(a, b).0
}

/// a·b / 2^32 rounded down, for b up to 2^32.
#[inline(always)]
pub const fn mul_32(a: u64, b: u64) -> u64 {
    (a >> 32) * b + (((a & 0xffff_ffff) * b) >> 32)
}

/// The 64 bits of a·b from bit `shift` on, for shift 1 to 63: a·b / 2^shift rounded down, if that fits 64 bits.
/// Without a branch, which would multiply the paths through a kernel program.
#[inline(always)]
pub const fn mul_bits(a: u64, b: u64, shift: u32) -> u64 {
    let shift = shift & 63;
    let (hi, lo) = mul_wide(a, b);
    // In two steps, since a shift by 64 would be undefined: shift = 0 gives hi << 64 = 0.
    ((hi << (63 - shift)) << 1) | (lo >> shift)
}

/// a·b / 2^shift rounded down, for shift 1 to 63; `u64::MAX` if that does not fit.
#[inline(always)]
pub const fn mul_shift(a: u64, b: u64, shift: u32) -> u64 {
    let shift = shift & 63;
    let (hi, lo) = mul_wide(a, b);
    if hi >> shift != 0 {
        return u64::MAX;
    }
    ((hi << (63 - shift)) << 1) | (lo >> shift)
}

/// Product of two numbers of [`FRAC`] fractional bits, rounded down; `u64::MAX` if it does not fit.
#[inline(always)]
pub(crate) const fn mul(a: u64, b: u64) -> u64 {
    mul_shift(a, b, FRAC)
}

/// Reads a value back from a map, so that the kernel's verifier no longer tracks it. Otherwise it would verify the rest of
/// the program once per branch before this.
#[inline(always)]
pub fn opaque<T: Copy>(place: &mut T) -> T {
    #[cfg(target_arch = "bpf")]
    return *core::hint::black_box(place);
    #[cfg(not(target_arch = "bpf"))]
    *place
}

/// 1 if `a < b`, else 0, for numbers below 2^63. In kernel programs without a branch, which would double the verifier's
/// paths.
#[inline(always)]
#[must_use]
pub fn is_below(a: u64, b: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    return core::hint::black_box(a.wrapping_sub(b)) >> 63;
    #[cfg(not(target_arch = "bpf"))]
    u64::from(a < b)
}

/// The smaller of two numbers below 2^63. In kernel programs without a branch, which would double the verifier's paths;
/// in assembly, since the compiler turns masks back into branches.
#[inline(always)]
pub(crate) fn min(a: u64, b: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut r = a;
        // SAFETY: arithmetic on registers.
        unsafe {
            core::arch::asm!(
                "{r} -= {b}", "{t} = {r}", "{t} s>>= 63", "{r} &= {t}", "{r} += {b}",
                r = inout(reg) r, b = in(reg) b, t = out(reg) _,
                options(pure, nomem, nostack)
            );
        }
        r
    }
    #[cfg(not(target_arch = "bpf"))]
    a.min(b)
}

/// The larger of two numbers below 2^63, as [`min`].
#[inline(always)]
pub(crate) fn max(a: u64, b: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        a.wrapping_add(b).wrapping_sub(min(a, b))
    }
    #[cfg(not(target_arch = "bpf"))]
    a.max(b)
}

/// a - b for numbers below 2^63, at least 0, as [`min`].
#[inline(always)]
pub(crate) fn saturating_sub(a: u64, b: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        a.wrapping_sub(min(a, b))
    }
    #[cfg(not(target_arch = "bpf"))]
    a.saturating_sub(b)
}

/// value · 2^-log for a value below 2^63 and a logarithm of [`LOG_FRAC`] fractional bits.
///
/// Table of 64 powers, then 1 - 2^-f for f < 1/64 as a polynomial of degree 4. Computes and subtracts the difference
/// from 1, so that a very small decrease keeps its relative precision (2^-30); the result is within 4e-12 and two
/// units of the last place of the exact one, and never above `value`.
#[inline(always)]
pub const fn shrink(value: u64, log: u64) -> u64 {
    const REST: u32 = LOG_FRAC - INDEX_BITS;
    // x = f ln 2 < 0.0109: 64 fractional bits, and 38 for the terms that matter less.
    let f = (log & ((1 << REST) - 1)) << (64 - LOG_FRAC);
    let x = mul_32(f, LN_2);
    let x38 = x >> 26;
    // 1 - e^-x = x - x·y, y = x (1/2 - x (1/6 - x/24)).
    let t = C6 - ((x38 * C24) >> 38);
    let t = C2 - ((x38 * t) >> 38);
    let y38 = (x38 * t) >> 32;
    let gone = x - ((x38 * y38) >> 12);
    let value = value - mul_hi(value, gone);
    let power = POWERS[((log >> REST) & INDEX_MASK) as usize];
    mul_hi(value << 1, power) >> (log >> LOG_FRAC)
}

/// log2(value / 2^frac), [`LOG_FRAC`] fractional bits, for value >= 2^frac
/// (meaningless below).
///
/// Table of 64 logarithms and reciprocals, then ln(1 + d) for d < 1/64 as a polynomial of degree
/// 5: absolute error below 4e-12; for arguments near 1 the relative error is below 2^-30, or that of
/// the last place.
#[inline(always)]
pub const fn log2(value: u64, frac: u32) -> u64 {
    let frac = frac & 63;
    let zeros = value.leading_zeros();
    let mantissa = value << (zeros & 63);
    let (reciprocal, log) = LOGS[((mantissa >> (63 - INDEX_BITS)) & INDEX_MASK) as usize];
    // What is left, mantissa · reciprocal = 1 + d: 69 fractional bits, and 38.
    let d = (mul_32(mantissa, reciprocal) & ((1 << 62) - 1)) << 7;
    let d38 = d >> 31;
    // ln(1 + d) = d - d·y, y = d (1/2 - d (1/3 - d (1/4 - d/5))).
    let t = C4 - ((d38 * C5) >> 38);
    let t = C3 - ((d38 * t) >> 38);
    let t = C2 - ((d38 * t) >> 38);
    let y38 = (d38 * t) >> 32;
    let ln = d - ((d38 * y38) >> 7);
    let whole = 63u32.wrapping_sub(zeros).wrapping_sub(frac) as u64;
    (whole << LOG_FRAC).wrapping_add(log + (mul_32(ln, LOG2_E) >> 10))
}

// 1/n, 32 fractional bits.
const C2: u64 = (1 << 32) / 2;
const C3: u64 = (1 << 32) / 3;
const C4: u64 = (1 << 32) / 4;
const C5: u64 = (1 << 32) / 5;
const C6: u64 = (1 << 32) / 6;
const C24: u64 = (1 << 32) / 24;

/// num/den with `bits` fractional bits, rounded to nearest, digit by digit: for constants and for
/// user space. `None` if den is 0 or above 2^63, or if the result does not fit 64 bits.
pub const fn ratio(num: u64, den: u64, bits: u32) -> Option<u64> {
    if den == 0 || den > 1 << 63 {
        return None;
    }
    let mut quotient = num / den;
    let mut rest = num % den;
    let mut i = 0;
    while i < bits {
        if quotient >> 63 != 0 {
            return None;
        }
        rest <<= 1;
        quotient <<= 1;
        if rest >= den {
            rest -= den;
            quotient += 1;
        }
        i += 1;
    }
    if rest >= den - rest {
        quotient.checked_add(1)
    } else {
        Some(quotient)
    }
}

/// log2(num/den) for num >= den, [`LOG_FRAC`] fractional bits, one bit per squaring: for constants
/// and for user space. Exact to 2 units of the last place. `None` if num < den, den is 0 or above
/// 2^63.
pub(crate) const fn log2_ratio(num: u64, den: u64) -> Option<u64> {
    if den == 0 || den > 1 << 63 || num < den {
        return None;
    }
    // num/den = 2^whole · mantissa, 1 <= mantissa < 2; den cannot overflow below num.
    let mut whole = 0u64;
    let mut den = den;
    while num / 2 >= den {
        den <<= 1;
        whole += 1;
    }
    let Some(mut mantissa) = ratio(num, den, 63) else {
        // Rounded up to 2 exactly.
        return Some((whole + 1) << LOG_FRAC);
    };
    let mut log = 0u64;
    let mut i = 0;
    // One bit more than is kept, for rounding.
    while i < LOG_FRAC + 1 {
        let square = mul_hi(mantissa, mantissa);
        log <<= 1;
        // The square has 62 fractional bits: at least 2 when its top bit is set.
        if square >> 63 != 0 {
            log |= 1;
            mantissa = square;
        } else {
            mantissa = mul_shift(mantissa, mantissa, 63);
        }
        i += 1;
    }
    Some((whole << LOG_FRAC) + log.div_ceil(2))
}
