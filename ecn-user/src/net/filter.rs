//! Programs on clsact, through netlink: the predecessor of tcx. Such a filter outlives the process that added it.

use super::netlink::Netlink;
use super::wire::{self, Message, text, u32_at};
use super::{Error, Result};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Parent of clsact itself, and of the filters on its two hooks (linux/pkt_sched.h).
const CLSACT: u32 = 0xffff_fff1;
const INGRESS: u32 = 0xffff_fff2;
const EGRESS: u32 = 0xffff_fff3;
const CLSACT_HANDLE: u32 = 0xffff_0000;

const TCMSG: usize = 20;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_FD: u16 = 6;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_FLAGS: u16 = 8;
/// The program's return value is the verdict.
const DIRECT_ACTION: u32 = 1;

/// Priority of our filters: behind those that users number themselves.
pub const PRIORITY: u16 = 0xec0e;

/// A program on clsact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Index of its device.
    pub ifindex: u32,
    /// At egress instead of ingress.
    pub egress: bool,
    /// Its priority.
    pub priority: u16,
    /// Its handle at this priority.
    pub handle: u32,
    /// The program's name.
    pub name: String,
}

/// `struct tcmsg` of a filter for all protocols.
fn message(kind: u16, flags: u16, filter: &Filter) -> Message {
    let parent = if filter.egress { EGRESS } else { INGRESS };
    let info = u32::from(filter.priority) << 16 | u32::from((libc::ETH_P_ALL as u16).to_be());
    Message::request(kind, flags)
        .put(&[0; 4])
        .put(&filter.ifindex.to_ne_bytes())
        .put(&filter.handle.to_ne_bytes())
        .put(&parent.to_ne_bytes())
        .put(&info.to_ne_bytes())
}

impl Netlink {
    /// Adds a clsact to a device. False: it already has one.
    pub fn add_clsact(&self, ifindex: u32) -> Result<bool> {
        let message = Message::request(libc::RTM_NEWQDISC, NLM_F_CREATE | NLM_F_EXCL)
            .tc(ifindex, CLSACT_HANDLE, CLSACT)
            .attr_str(TCA_KIND, "clsact");
        match self.request(message, || format!("add a clsact to interface {ifindex}")) {
            Ok(()) => Ok(true),
            Err(error) if error.errno() == Some(Errno::EEXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes a device's clsact with all its filters.
    pub fn delete_clsact(&self, ifindex: u32) -> Result<()> {
        let message = Message::request(libc::RTM_DELQDISC, 0).tc(ifindex, CLSACT_HANDLE, CLSACT);
        self.request(message, || {
            format!("delete the clsact of interface {ifindex}")
        })
    }

    /// Adds a program, or replaces the one with this handle.
    pub fn set_filter(&self, filter: &Filter, program: BorrowedFd<'_>) -> Result<()> {
        let message = message(libc::RTM_NEWTFILTER, NLM_F_CREATE | NLM_F_REPLACE, filter)
            .attr_str(TCA_KIND, "bpf")
            .nest_raw(TCA_OPTIONS, |options| {
                options
                    .attr_u32(TCA_BPF_FD, program.as_raw_fd() as u32)
                    .attr_str(TCA_BPF_NAME, &filter.name)
                    .attr_u32(TCA_BPF_FLAGS, DIRECT_ACTION)
            });
        self.request(message, || {
            format!("add {} to interface {}", filter.name, filter.ifindex)
        })
    }

    /// Removes a program.
    pub fn delete_filter(&self, filter: &Filter) -> Result<()> {
        let message = message(libc::RTM_DELTFILTER, 0, filter).attr_str(TCA_KIND, "bpf");
        self.request(message, || {
            format!("delete {} of interface {}", filter.name, filter.ifindex)
        })
    }

    /// Filters of any kind on a device's clsact; programs have a name.
    pub fn filters(&self, ifindex: u32) -> Result<Vec<Filter>> {
        let mut filters = Vec::new();
        for (egress, parent) in [(false, INGRESS), (true, EGRESS)] {
            let message = Message::raw(libc::RTM_GETTFILTER, 0).tc(ifindex, 0, parent);
            let found = self.dump("list the filters", &message, |kind, payload| {
                (kind == libc::RTM_NEWTFILTER)
                    .then(|| parse(payload, egress))
                    .flatten()
            });
            match found {
                Ok(found) => filters.extend(found),
                // No clsact.
                Err(Error::Netlink {
                    errno: Errno::EINVAL | Errno::ENOENT,
                    ..
                }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filters)
    }
}

fn parse(payload: &[u8], egress: bool) -> Option<Filter> {
    let mut filter = Filter {
        ifindex: u32_at(payload, 4)?,
        egress,
        handle: u32_at(payload, 8)?,
        priority: (u32_at(payload, 16)? >> 16) as u16,
        name: String::new(),
    };
    // The classifier itself is listed too, without a handle.
    if filter.handle == 0 {
        return None;
    }
    for (kind, value) in wire::attributes(payload.get(TCMSG..)?) {
        if kind == TCA_OPTIONS {
            let name = wire::attributes(value).find(|(kind, _)| *kind == TCA_BPF_NAME);
            filter.name = name.map(|(_, name)| text(name)).unwrap_or_default();
        }
    }
    Some(filter)
}
