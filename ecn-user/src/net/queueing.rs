//! Queueing disciplines and classes: listing and setup. Fast changes of rates are in `htb`.

use super::Result;
use super::htb::{self, show_classid};
use super::netlink::Netlink;
use super::wire::{self, Message, text, u32_at, u64_at};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use nix::errno::Errno;

/// Parent of a root qdisc.
pub const ROOT: u32 = 0xffff_ffff;

const TCMSG: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_STATS2: u16 = 7;
const TCA_STATS_BASIC: u16 = 1;
const TCA_STATS_QUEUE: u16 = 3;
const TCA_STATS_APP: u16 = 4;
const TCA_STATS_PKT64: u16 = 8;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_DIRECT_QLEN: u16 = 5;
/// Maximum queue of packets that bypass an HTB's classes: the kernel's default.
const DIRECT_PACKETS: u32 = 1_000;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_FQ_PLIMIT: u16 = 1;
const TCA_FQ_FLOW_PLIMIT: u16 = 2;

/// A queueing discipline and its counters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Qdisc {
    /// Index of its device.
    pub ifindex: u32,
    /// `htb`, `pfifo`, `noqueue`, ...
    pub kind: String,
    /// Its handle, `major << 16`.
    pub handle: u32,
    /// Its parent class; [`ROOT`] for the device's own.
    pub parent: u32,
    /// Packets waiting, its children's included.
    pub qlen_packets: u32,
    /// Bytes waiting.
    pub backlog_bytes: u32,
    /// Packets dropped.
    pub drops: u32,
    /// Bytes sent, with Ethernet header.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// How often it had to hold a packet back.
    pub overlimits: u32,
    /// Its capacity, for a `pfifo` (packets), `bfifo` or `tbf` (bytes); per flow for an `fq` (packets).
    pub limit: Option<u32>,
    /// Its rate, bytes per second, for a `tbf`.
    pub rate_bytes_per_s: Option<u64>,
    /// Its drops by cause, for an `fq`.
    pub fq: Option<FqDrops>,
}

/// Drops of an fq by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FqDrops {
    /// Packets whose departure time was beyond its horizon; 0 before Linux 5.8, which has none.
    pub horizon: u64,
    /// Packets of flows whose queues were at the limit.
    pub flow_limit: u64,
}

/// From `struct tc_fq_qd_stats` of linux/pkt_sched.h.
fn parse_fq(stats: &[u8]) -> Option<FqDrops> {
    Some(FqDrops {
        flow_limit: u64_at(stats, 32)?,
        horizon: u64_at(stats, 88).unwrap_or(0),
    })
}

impl Qdisc {
    /// Its major number, `ec0e:` in tc; `0:` is the kernel's default.
    pub const fn major(&self) -> u16 {
        (self.handle >> 16) as u16
    }

    /// Whether it is a child of `parent`, another qdisc of the device.
    pub const fn is_child_of(&self, parent: &Self) -> bool {
        self.ifindex == parent.ifindex
            && self.parent != ROOT
            && self.parent >> 16 == parent.handle >> 16
            && self.parent & 0xffff != 0
    }
}

/// A class of an HTB and its counters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClassStats {
    /// `major << 16 | minor`.
    pub classid: u32,
    /// Its parent class or qdisc.
    pub parent: u32,
    /// Guaranteed rate.
    pub rate_bytes_per_s: u64,
    /// Highest rate.
    pub ceil_bytes_per_s: u64,
    /// Bytes sent, with Ethernet header.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Packets dropped because its queue was full.
    pub drops: u32,
    /// Packets waiting.
    pub qlen_packets: u32,
    /// Bytes waiting.
    pub backlog_bytes: u32,
    /// How often it had to hold a packet back.
    pub overlimits: u32,
}

/// Rates of an HTB class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HtbRate {
    /// Guaranteed rate.
    pub rate_bytes_per_s: u64,
    /// Highest rate, by borrowing from the parent.
    pub ceil_bytes_per_s: u64,
    /// Burst at the guaranteed rate.
    pub burst_bytes: u32,
    /// Burst at the highest rate.
    pub cburst_bytes: u32,
    /// Bytes sent per turn when classes compete for the parent's rate.
    pub quantum_bytes: u32,
}

impl HtbRate {
    /// One fixed rate, bursts and turns of one frame.
    pub fn fixed(bytes_per_s: u64, frame_bytes: u32) -> Self {
        Self::borrowing(bytes_per_s, bytes_per_s, frame_bytes)
    }

    /// A guaranteed and a highest rate, bursts and turns of one frame.
    pub fn borrowing(rate_bytes_per_s: u64, ceil_bytes_per_s: u64, frame_bytes: u32) -> Self {
        Self {
            rate_bytes_per_s,
            ceil_bytes_per_s,
            burst_bytes: frame_bytes,
            cburst_bytes: frame_bytes,
            quantum_bytes: frame_bytes,
        }
    }
}

impl Netlink {
    /// All qdiscs of the namespace.
    pub fn qdiscs(&self) -> Result<Vec<Qdisc>> {
        let message = Message::raw(libc::RTM_GETQDISC, 0).tc(0, 0, 0);
        self.dump("list the qdiscs", &message, |kind, payload| {
            if kind == libc::RTM_NEWQDISC {
                parse_qdisc(payload)
            } else {
                None
            }
        })
    }

    /// The root qdisc of a device, and how many packets of `frame_bytes` its queue holds, if it has one queue whose
    /// limit is known.
    pub fn root_queue(
        &self,
        ifindex: u32,
        frame_bytes: u32,
    ) -> Result<Option<(Qdisc, Option<u32>)>> {
        let all = self.qdiscs()?;
        let root = root_of(&all, ifindex);
        Ok(root.map(|root| (root.clone(), capacity(&all, root, frame_bytes))))
    }

    /// The root qdisc of a device.
    pub fn root_qdisc(&self, ifindex: u32) -> Result<Option<Qdisc>> {
        Ok(root_of(&self.qdiscs()?, ifindex).cloned())
    }

    /// Replaces a device's root qdisc by an HTB. Packets that select no class go to the class
    /// `handle_major:default_minor`; with 0 they bypass all classes, ahead of them.
    pub fn replace_htb_root(
        &self,
        ifindex: u32,
        handle_major: u16,
        default_minor: u16,
    ) -> Result<()> {
        self.delete_root_qdisc(ifindex)?;
        // struct tc_htb_glob: version 3, rate2quantum, default class, debug, direct packets.
        let glob = [3, 10, u32::from(default_minor), 0, 0]
            .map(u32::to_ne_bytes)
            .concat();
        let message = Message::request(libc::RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL)
            .tc(ifindex, u32::from(handle_major) << 16, ROOT)
            .attr_str(TCA_KIND, "htb")
            .nest_raw(TCA_OPTIONS, |options| {
                // The default is the device's txqueuelen, which may be 0.
                let options = options.attr_u32(TCA_HTB_DIRECT_QLEN, DIRECT_PACKETS);
                options.attr(TCA_HTB_INIT, &glob)
            });
        self.request(message, || format!("add an HTB to interface {ifindex}"))
    }

    /// Adds an fq at `parent` ([`ROOT`] or a class of an mq), replacing the kernel's default one, with limits in
    /// packets per flow and for all; handle 0 lets the kernel choose.
    pub fn fq(
        &self,
        ifindex: u32,
        handle_major: u16,
        parent: u32,
        flow_packets: u32,
        packets: u32,
    ) -> Result<()> {
        let flags = if parent == ROOT {
            NLM_F_CREATE | NLM_F_EXCL
        } else {
            NLM_F_CREATE | NLM_F_REPLACE
        };
        let message = Message::request(libc::RTM_NEWQDISC, flags)
            .tc(ifindex, u32::from(handle_major) << 16, parent)
            .attr_str(TCA_KIND, "fq")
            .nest_raw(TCA_OPTIONS, |options| {
                options
                    .attr_u32(TCA_FQ_PLIMIT, packets)
                    .attr_u32(TCA_FQ_FLOW_PLIMIT, flow_packets)
            });
        self.request(message, || format!("add an fq to interface {ifindex}"))
    }

    /// Adds an mq at the root of a device: a qdisc per transmit queue.
    pub fn mq_root(&self, ifindex: u32, handle_major: u16) -> Result<()> {
        let message = Message::request(libc::RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL)
            .tc(ifindex, u32::from(handle_major) << 16, ROOT)
            .attr_str(TCA_KIND, "mq");
        self.request(message, || format!("add an mq to interface {ifindex}"))
    }

    /// Creates or changes a class of an HTB.
    pub fn htb_class(&self, ifindex: u32, classid: u32, parent: u32, rate: &HtbRate) -> Result<()> {
        let mut message = Message::request(libc::RTM_NEWTCLASS, NLM_F_CREATE);
        message
            .bytes
            .extend_from_slice(&htb::class_payload(ifindex, classid, parent, rate));
        self.request(message, || {
            format!("set class {} of interface {ifindex}", show_classid(classid))
        })
    }

    /// Adds a queue to a class, with a limit in packets; handle 0 lets the kernel choose.
    pub fn pfifo_leaf(
        &self,
        ifindex: u32,
        parent: u32,
        handle: u32,
        limit_packets: u32,
    ) -> Result<()> {
        self.fifo_leaf("pfifo", ifindex, parent, handle, limit_packets)
    }

    /// Adds a queue to a class, with a limit in packets (`pfifo`) or bytes (`bfifo`).
    pub fn fifo_leaf(
        &self,
        kind: &'static str,
        ifindex: u32,
        parent: u32,
        handle: u32,
        limit: u32,
    ) -> Result<()> {
        let message = Message::request(libc::RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE)
            .tc(ifindex, handle, parent)
            .attr_str(TCA_KIND, kind)
            .attr_u32(TCA_OPTIONS, limit);
        self.request(message, || {
            format!(
                "add a {kind} to class {} of interface {ifindex}",
                show_classid(parent)
            )
        })
    }

    /// Removes the root qdisc; the device gets its default back. No error if it already has that.
    pub fn delete_root_qdisc(&self, ifindex: u32) -> Result<()> {
        let message = Message::request(libc::RTM_DELQDISC, 0).tc(ifindex, 0, ROOT);
        match self.request(message, || {
            format!("delete the root qdisc of interface {ifindex}")
        }) {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Removes a class with its queued packets.
    pub fn delete_class(&self, ifindex: u32, classid: u32) -> Result<()> {
        let message = Message::request(libc::RTM_DELTCLASS, 0).tc(ifindex, classid, 0);
        self.request(message, || {
            format!(
                "delete class {} of interface {ifindex}",
                show_classid(classid)
            )
        })
    }

    /// All classes of a device with their counters.
    pub fn class_stats(&self, ifindex: u32) -> Result<Vec<ClassStats>> {
        let message = Message::raw(libc::RTM_GETTCLASS, 0).tc(ifindex, 0, 0);
        self.dump("list the classes", &message, |kind, payload| {
            if kind == libc::RTM_NEWTCLASS {
                parse_class(payload)
            } else {
                None
            }
        })
    }
}

/// Counters that qdiscs and classes share.
#[derive(Default)]
struct Counters {
    bytes: u64,
    packets: u64,
    qlen: u32,
    backlog: u32,
    drops: u32,
    overlimits: u32,
}

fn parse_counters(stats: &[u8]) -> Option<Counters> {
    let mut counters = Counters::default();
    for (kind, value) in wire::attributes(stats) {
        match kind {
            TCA_STATS_BASIC => {
                counters.bytes = u64_at(value, 0)?;
                counters.packets = counters.packets.max(u64::from(u32_at(value, 8)?));
            }
            // Present only if the 32 bits above are too few.
            TCA_STATS_PKT64 => counters.packets = u64_at(value, 0)?,
            TCA_STATS_QUEUE => {
                counters.qlen = u32_at(value, 0)?;
                counters.backlog = u32_at(value, 4)?;
                counters.drops = u32_at(value, 8)?;
                counters.overlimits = u32_at(value, 16)?;
            }
            _ => {}
        }
    }
    Some(counters)
}

/// The root qdisc of a device.
fn root_of(all: &[Qdisc], ifindex: u32) -> Option<&Qdisc> {
    all.iter()
        .find(|qdisc| qdisc.ifindex == ifindex && qdisc.parent == ROOT)
}

/// How many packets the queue of a root qdisc holds, if it has one queue whose limit is known.
fn capacity(all: &[Qdisc], root: &Qdisc, frame_bytes: u32) -> Option<u32> {
    let queue = match root.kind.as_str() {
        // A queue that replaces its own is listed, its own is not.
        "tbf" => all.iter().find(|q| q.is_child_of(root)).unwrap_or(root),
        _ => root,
    };
    match queue.kind.as_str() {
        "pfifo" => queue.limit,
        "bfifo" | "tbf" => queue.limit?.checked_div(frame_bytes),
        _ => None,
    }
}

/// The rate (bytes per second) and limit (bytes) out of `struct tc_tbf_qopt` of linux/pkt_sched.h; its 32 bits may be
/// too few for the rate.
fn parse_tbf(options: &[u8]) -> (Option<u64>, Option<u32>) {
    let of = |wanted| wire::attributes(options).find(|(kind, _)| *kind == wanted);
    let parameters = of(TCA_TBF_PARMS).map(|(_, parameters)| parameters);
    let rate = match of(TCA_TBF_RATE64) {
        Some((_, rate)) => u64_at(rate, 0),
        None => parameters.and_then(|p| u32_at(p, 8)).map(u64::from),
    };
    (rate, parameters.and_then(|p| u32_at(p, 24)))
}

fn parse_qdisc(payload: &[u8]) -> Option<Qdisc> {
    let mut qdisc = Qdisc {
        ifindex: u32_at(payload, 4)?,
        handle: u32_at(payload, 8)?,
        parent: u32_at(payload, 12)?,
        ..Qdisc::default()
    };
    for (kind, value) in wire::attributes_after(payload, TCMSG) {
        match kind {
            TCA_KIND => qdisc.kind = text(value),
            TCA_OPTIONS if matches!(qdisc.kind.as_str(), "pfifo" | "bfifo") => {
                qdisc.limit = u32_at(value, 0);
            }
            TCA_OPTIONS if qdisc.kind == "fq" => {
                qdisc.limit = wire::attributes(value)
                    .find(|(kind, _)| *kind == TCA_FQ_FLOW_PLIMIT)
                    .and_then(|(_, packets)| u32_at(packets, 0));
            }
            TCA_OPTIONS if qdisc.kind == "tbf" => {
                (qdisc.rate_bytes_per_s, qdisc.limit) = parse_tbf(value);
            }
            TCA_STATS2 => {
                let counters = parse_counters(value)?;
                qdisc.bytes = counters.bytes;
                qdisc.packets = counters.packets;
                qdisc.qlen_packets = counters.qlen;
                qdisc.backlog_bytes = counters.backlog;
                qdisc.drops = counters.drops;
                qdisc.overlimits = counters.overlimits;
                if qdisc.kind == "fq" {
                    let own = wire::attributes(value).find(|(kind, _)| *kind == TCA_STATS_APP);
                    qdisc.fq = own.and_then(|(_, own)| parse_fq(own));
                }
            }
            _ => {}
        }
    }
    Some(qdisc)
}

fn parse_class(payload: &[u8]) -> Option<ClassStats> {
    let mut class = ClassStats {
        classid: u32_at(payload, 8)?,
        parent: u32_at(payload, 12)?,
        ..ClassStats::default()
    };
    for (kind, value) in wire::attributes_after(payload, TCMSG) {
        match kind {
            TCA_OPTIONS => {
                (class.rate_bytes_per_s, class.ceil_bytes_per_s) = htb::parse_rates(value)?;
            }
            TCA_STATS2 => {
                let counters = parse_counters(value)?;
                class.bytes = counters.bytes;
                class.packets = counters.packets;
                class.qlen_packets = counters.qlen;
                class.backlog_bytes = counters.backlog;
                class.drops = counters.drops;
                class.overlimits = counters.overlimits;
            }
            _ => {}
        }
    }
    Some(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = (4 + value.len()) as u16;
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes
    }

    #[test]
    fn rate_and_limit_of_a_tbf() {
        // struct tc_ratespec: two bytes, three 16-bit fields, the rate.
        let mut parameters = vec![0; 36];
        parameters[8..12].copy_from_slice(&1_250_000_u32.to_ne_bytes());
        // Then the peak rate's, and the limit.
        parameters[24..28].copy_from_slice(&150_000_u32.to_ne_bytes());
        let narrow = attribute(TCA_TBF_PARMS, &parameters);
        assert_eq!(parse_tbf(&narrow), (Some(1_250_000), Some(150_000)));
        parameters[8..12].copy_from_slice(&u32::MAX.to_ne_bytes());
        let wide = [
            attribute(TCA_TBF_PARMS, &parameters),
            attribute(TCA_TBF_RATE64, &12_500_000_000_u64.to_ne_bytes()),
        ];
        assert_eq!(
            parse_tbf(&wide.concat()),
            (Some(12_500_000_000), Some(150_000))
        );
        assert_eq!(parse_tbf(&[]), (None, None));
    }

    #[test]
    fn capacity_is_that_of_the_queue_that_packets_wait_in() {
        let qdisc = |kind: &str, handle: u32, parent: u32, limit: Option<u32>| Qdisc {
            ifindex: 1,
            kind: kind.to_owned(),
            handle,
            parent,
            limit,
            ..Qdisc::default()
        };
        let tbf = qdisc("tbf", 0x8001_0000, ROOT, Some(10_000));
        let of = |all: &[Qdisc]| capacity(all, &all[0], 1514);
        assert_eq!(of(std::slice::from_ref(&tbf)), Some(6));
        let queue = qdisc("pfifo", 0x8002_0000, 0x8001_0001, Some(50));
        assert_eq!(of(&[tbf.clone(), queue]), Some(50));
        let queue = qdisc("fq_codel", 0x8002_0000, 0x8001_0001, None);
        assert_eq!(of(&[tbf, queue]), None);
        assert_eq!(of(&[qdisc("bfifo", 0x10000, ROOT, Some(30_280))]), Some(20));
        assert_eq!(of(&[qdisc("htb", 0x10000, ROOT, None)]), None);
    }
}
