//! Placeholder: one classifier that lets everything pass, and one map.
#![no_std]
#![no_main]

use aya_ebpf::{
    macros::{classifier, map},
    maps::Array,
    programs::TcContext,
};

/// Placeholder.
#[map]
static ECN_CFG: Array<u64> = Array::with_max_entries(1, 0);

/// Lets every frame pass (-1, the next program of the hook).
#[classifier]
pub fn ecn_pass(_ctx: TcContext) -> i32 {
    if let Some(count) = ECN_CFG.get_ptr_mut(0) {
        // SAFETY: the pointer is into the map's value, which lives as long as the program.
        unsafe { *count += 1 };
    }
    -1
}

/// What the kernel is told about the licence.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
pub static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}
