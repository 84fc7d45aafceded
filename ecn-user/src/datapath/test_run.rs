//! Runs programs on given packets (`BPF_PROG_TEST_RUN`), for tests and benchmarks.

use std::time::Duration;

use aya::programs::{TestRun as _, TestRunOptions};

use super::{Copy, Error, Result, classifier};

/// A packet and its metadata. The kernel requires `ifindex` to be a device of the calling thread's namespace.
#[derive(Clone, Copy, Debug, Default)]
pub struct TestPacket<'a> {
    /// From the Ethernet header on.
    pub frame: &'a [u8],
    /// The device.
    pub ifindex: u32,
    /// The device at which it arrived.
    pub ingress_ifindex: u32,
    /// Segments; 0 for an ordinary packet.
    pub gso_segs: u32,
    /// Bytes on the wire; 0: those of the frame.
    pub wire_len: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// `skb->cb`, the first words.
    pub cb: [u32; 2],
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The program's return value.
    pub value: i32,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// Mean time of a run.
    pub time: Duration,
}

/// Words of `struct __sk_buff` (linux/bpf.h), and the positions of some fields.
const WORDS: usize = 48;
const MARK: usize = 2;
const INGRESS_IFINDEX: usize = 9;
const IFINDEX: usize = 10;
const CB: usize = 12;
const WIRE_LEN: usize = 40;
const GSO_SEGS: usize = 41;

impl TestPacket<'_> {
    fn context(&self) -> Vec<u8> {
        let mut words = [0u32; WORDS];
        words[MARK] = self.mark;
        words[INGRESS_IFINDEX] = self.ingress_ifindex;
        words[IFINDEX] = self.ifindex;
        words[CB..CB + self.cb.len()].copy_from_slice(&self.cb);
        words[WIRE_LEN] = self.wire_len;
        words[GSO_SEGS] = self.gso_segs;
        words.into_iter().flat_map(u32::to_ne_bytes).collect()
    }
}

impl Copy {
    /// Runs a tcx program `repeat` times on a packet: always on the same bytes, so that it may find what it has written
    /// before.
    ///
    /// # Errors
    ///
    /// The verifier or the kernel refused it.
    pub fn test_run(
        &mut self,
        program: &str,
        packet: &TestPacket<'_>,
        repeat: u32,
    ) -> Result<Verdict> {
        let classifier = classifier(&mut self.ebpf, program)?;
        if classifier.fd().is_err() {
            classifier.load().map_err(Error::program(program))?;
        }
        let mut frame = vec![0; packet.frame.len() + 256];
        let context = packet.context();
        let options = TestRunOptions {
            data_in: Some(packet.frame),
            data_out: Some(&mut frame),
            ctx_in: Some(&context),
            repeat,
            ..TestRunOptions::new()
        };
        let result = classifier
            .test_run(options)
            .map_err(Error::program(program))?;
        frame.truncate(result.data_size_out as usize);
        Ok(Verdict {
            value: result.return_value as i32,
            frame,
            time: result.duration,
        })
    }
}
