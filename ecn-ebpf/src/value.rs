//! Access to map values that other programs and CPUs write: locks, single words, atomic totals.

use core::arch::asm;

use ecn_core::abi::LockedFlow;

/// Runs `$body` with `$value` (a `&mut` to `$field`) locked; it must not call functions.
macro_rules! with_lock {
    ($pointer:expr, $field:ident as $value:ident => $body:expr) => {{
        // SAFETY: the lock serialises all programs that access the value.
        unsafe {
            let entry = $pointer;
            aya_ebpf::helpers::bpf_spin_lock((&raw mut (*entry).lock).cast());
            let $value = &mut (*entry).$field;
            let result = $body;
            aya_ebpf::helpers::bpf_spin_unlock((&raw mut (*entry).lock).cast());
            result
        }
    }};
}
pub(crate) use with_lock;

/// Reads a word of a value without its lock.
macro_rules! read_once {
    ($pointer:expr, $($field:ident).+) => {
        // SAFETY: one word of a map value.
        unsafe { core::ptr::read_volatile(&raw const (*$pointer).$($field).+) }
    };
}
pub(crate) use read_once;

/// Writes a word of a value without its lock.
macro_rules! write_once {
    ($pointer:expr, $($field:ident).+, $value:expr) => {
        // SAFETY: one word of a map value.
        unsafe { core::ptr::write_volatile(&raw mut (*$pointer).$($field).+, $value) }
    };
}
pub(crate) use write_once;

/// Adds to a total without a lock, which would take 50 ns per packet. In assembly, since the target has no atomic types,
/// and the compiler miscompiles their results (llvm/llvm-project#91888).
#[inline(always)]
pub fn atomic_add(total: *mut u64, n: u64) {
    // SAFETY: a word of a map value, aligned.
    unsafe {
        asm!(
            // The register is cleared, which compiled code has no reason to do: a test recognises this addition by it, and
            // finds those that the compiler made.
            "lock *(u64 *)({total} + 0) += {n}",
            "{n} = 0",
            total = in(reg) total,
            n = inout(reg) n => _,
        );
    }
}

/// Reads an entry of an array of words; 0 if it does not exist.
#[inline(always)]
pub fn read_word(entry: Option<&u64>) -> u64 {
    match entry {
        // SAFETY: one word, written by others.
        Some(word) => unsafe { core::ptr::read_volatile(word) },
        None => 0,
    }
}

/// The flow's class, which never changes once assigned; 0: none.
#[inline(always)]
pub fn class_of(f: *mut LockedFlow) -> u32 {
    read_once!(f, flow.class)
}
