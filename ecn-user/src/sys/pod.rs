//! Map values in the form that aya requires.

use std::os::fd::{AsRawFd, BorrowedFd};

use ecn_core::{abi, backward, flow, marking, shares, vqueue};

/// A value that is read from and written to maps as bytes.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub(crate) struct Raw<T>(pub T);

macro_rules! pod {
    ($($t:ty),+ $(,)?) => {
        $(
            // SAFETY: `repr(C)`, integers only, no implicit padding (sizes are asserted in
            // `ecn_core::abi`), so any bytes are a value and a value is only its bytes.
            unsafe impl aya::Pod for Raw<$t> {}
        )+
    };
}

pod!(
    abi::Control,
    abi::Device,
    abi::DeviceKey,
    abi::Endpoint,
    abi::LockedFlow,
    abi::LockedReceiver,
    abi::LockedPoint,
    abi::Near,
    abi::Offsets,
    abi::Siblings,
    backward::Policy,
    flow::Key,
    marking::Policy,
);

/// Borrows the descriptor of an owner that only exposes its number.
pub(crate) fn borrow<T: AsRawFd>(owner: &T) -> BorrowedFd<'_> {
    // SAFETY: the owner keeps it open as long as it is borrowed.
    unsafe { BorrowedFd::borrow_raw(owner.as_raw_fd()) }
}

/// Reads a plain value from bytes that a program wrote.
///
/// Returns `None` if there are too few.
pub(crate) fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    (bytes.len() >= size_of::<T>()).then(|| {
        // SAFETY: long enough, and any bytes are a `Plain`.
        unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
    })
}

/// The bytes of a plain value.
pub(crate) fn bytes<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: a `Plain` has no padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Values of the ABI that are exchanged as bytes.
///
/// # Safety
///
/// `repr(C)`, integers only, no implicit padding.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: asserted in `ecn_core::abi`.
unsafe impl Plain for abi::RateEvent {}
// SAFETY: as above.
unsafe impl Plain for abi::PortEvent {}
// SAFETY: as above.
unsafe impl Plain for shares::Output {}
// SAFETY: as above.
unsafe impl Plain for shares::Source {}
// SAFETY: as above.
unsafe impl Plain for abi::PortReset {}
// SAFETY: as above.
unsafe impl Plain for abi::FlowChange {}
// SAFETY: as above.
unsafe impl Plain for flow::Key {}
// SAFETY: as above.
unsafe impl Plain for abi::LockedFlow {}
// SAFETY: as above.
unsafe impl Plain for abi::LockedReceiver {}
// SAFETY: as above.
unsafe impl Plain for marking::Port {}
// SAFETY: as above.
unsafe impl Plain for vqueue::Queue {}
