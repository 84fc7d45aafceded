//! Timers on time, by Linux's power management quality of service.

use std::{
    fs::{File, OpenOptions},
    io::Write as _,
};

const CPU_DMA_LATENCY: &str = "/dev/cpu_dma_latency";

/// Keeps idle CPUs awake until it is dropped, as cyclictest does: one that sleeps takes up to milliseconds to wake in a
/// virtual machine, and a port's link is idle while its timer is late.
///
/// The kernel's documentation: power/pm_qos_interface.rst.
#[derive(Debug)]
pub struct AwakeCpus {
    _request: File,
}

impl AwakeCpus {
    /// `None` if this kernel, or the rights of this process, do not allow it.
    pub fn request() -> Option<Self> {
        let mut request = OpenOptions::new().write(true).open(CPU_DMA_LATENCY).ok()?;
        // Microseconds; the request lasts until the file is closed.
        request.write_all(&0_i32.to_ne_bytes()).ok()?;
        Some(Self { _request: request })
    }
}
