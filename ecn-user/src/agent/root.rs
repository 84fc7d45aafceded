//! The root qdisc of an endpoint's device, and the choice of how rates are enforced there.

use std::{path::Path, sync::OnceLock};

use nix::sched::{CloneFlags, unshare};

use super::{Error, Result};
use crate::{
    config::{Enforcement, LimitBy},
    datapath,
    net::{
        self, NetNs, Netlink, Qdisc, ROOT,
        htb::{self, EndpointHtb},
        netlink::Link,
    },
};

/// Handle of an fq, or of an mq with fq below it, that an agent has installed.
pub const FQ_MAJOR: u16 = 0xec0d;
/// Capacity for a flow in our fq, packets: the programs drop by bytes before it is full, at any packet size.
const FQ_FLOW_PACKETS: u32 = 8_192;
/// The same for all flows together.
const FQ_PACKETS: u32 = 131_072;

/// The root qdisc of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// The kernel's default, which does not sort packets by departure time.
    Default {
        /// One qdisc for each transmit queue.
        multi_queue: bool,
    },
    /// fq, or mq with nothing but fq below it.
    Fq {
        /// Its major number; 0: the kernel's default.
        major: u16,
        /// Maximum packets per flow.
        flow_packets: u32,
    },
    /// HTB of ours: the rig's, or one that an agent left.
    Htb,
    /// Installed by somebody else.
    Other {
        /// `netem`, `tbf`, ...
        kind: String,
        /// Its major number.
        major: u16,
    },
}

impl Root {
    /// The current root qdisc; `None` if the device does not exist.
    pub(super) fn of_device(nl: &Netlink, ifindex: u32) -> Result<Option<Self>> {
        Ok(Self::among(&nl.qdiscs()?, ifindex))
    }

    /// A device's root qdisc, if any; `all`: at least the qdiscs of this device.
    pub(super) fn among(all: &[Qdisc], ifindex: u32) -> Option<Self> {
        let root = all
            .iter()
            .find(|qdisc| qdisc.ifindex == ifindex && qdisc.parent == ROOT)?;
        let multi_queue = root.kind == "mq";
        let of_queues: Vec<_> = if multi_queue {
            all.iter().filter(|qdisc| qdisc.is_child_of(root)).collect()
        } else {
            vec![root]
        };
        let major = root.major();
        if !of_queues.is_empty() && of_queues.iter().all(|qdisc| qdisc.kind == "fq") {
            let limits = of_queues.iter().filter_map(|qdisc| qdisc.limit);
            let flow_packets = limits.min().unwrap_or(FQ_FLOW_PACKETS);
            return Some(Self::Fq {
                major,
                flow_packets,
            });
        }
        Some(match (major, root.kind.as_str()) {
            (0, _) => Self::Default { multi_queue },
            (htb::ENDPOINT_MAJOR, "htb") => Self::Htb,
            // An mq of ours with changed queues counts as somebody else's.
            (major, kind) => Self::Other {
                kind: kind.to_owned(),
                major,
            },
        })
    }

    /// Whether an agent has installed it.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self.major(), htb::ENDPOINT_MAJOR | FQ_MAJOR)
    }

    /// Major number that its queues' qdiscs have as parent; 0 if it has none.
    pub(super) const fn major(&self) -> u16 {
        match self {
            Self::Default { .. } => 0,
            Self::Htb => htb::ENDPOINT_MAJOR,
            Self::Fq { major, .. } | Self::Other { major, .. } => *major,
        }
    }
}

/// Owner of the root qdisc that an enforcement needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// Not ours to install or remove: somebody else's, or none is needed.
    Theirs,
    /// Ours, and installed.
    Ours,
    /// Ours, to be installed when a flow is limited.
    Later,
}

/// How rates are enforced at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Never [`Enforcement::Auto`].
    pub(super) enforcement: Enforcement,
    /// For messages: why it was chosen.
    pub(super) why: String,
    /// Owner of the root qdisc that it needs.
    pub(super) whose: Whose,
    /// The root qdisc for which it was chosen.
    pub(super) root: Root,
    /// What a flow may always have waiting, with [`Enforcement::Edt`], bytes.
    pub(super) queue_bytes: u64,
    /// For a warning: why not all flows are limited, though they should be, and what to do.
    pub(super) lacking: Option<String>,
}

/// A device for which an enforcement is chosen.
pub(super) struct Device<'a> {
    pub(super) nl: &'a Netlink,
    pub(super) ns: &'a NetNs,
    pub(super) link: &'a Link,
    pub(super) layout: &'a EndpointHtb,
    pub(super) wanted: Enforcement,
    /// What is limited.
    pub(super) limit_by: LimitBy,
    /// The configured cgroup whose sockets may be paced.
    pub(super) cgroup: Option<&'a Path>,
}

impl Device<'_> {
    /// Chooses by what exists and what could be installed. Changes nothing.
    ///
    /// # Errors
    ///
    /// The user has a root qdisc of another kind, or the kernel lacks what was asked for.
    pub(super) fn choose(&self) -> Result<Choice> {
        let root = Root::of_device(self.nl, self.link.index)?;
        let root = root.unwrap_or(Root::Default { multi_queue: false });
        match (self.wanted, &root) {
            (Enforcement::Pacing, _) => match self.sockets() {
                Ok(()) => Ok(self.choice(Enforcement::Pacing, "as configured", root)),
                Err(missing) => Err(self.impossible(missing)),
            },
            (Enforcement::None, _) => Ok(self.choice(Enforcement::None, "as configured", root)),
            (Enforcement::Edt | Enforcement::Auto, Root::Fq { major, .. }) => {
                let why = match *major {
                    FQ_MAJOR => "an agent left its fq there",
                    0 => "fq is the kernel's default here",
                    _ => "the device has an fq of yours",
                };
                Ok(self.choice(Enforcement::Edt, why, root))
            }
            (Enforcement::Htb | Enforcement::Auto, Root::Htb) => {
                let mut choice = self.choice(Enforcement::Htb, "our HTB is there already", root);
                if !self.layout.is_link(self.nl)? {
                    choice.whose = Whose::Ours;
                }
                Ok(choice)
            }
            (_, Root::Default { .. }) => self.install(root),
            // fq as the kernel's default: with handle 0, nobody has installed it.
            (Enforcement::Htb, Root::Fq { major: 0, .. }) => self.install(root),
            (_, Root::Htb) => Err(self.refusal("htb", htb::ENDPOINT_MAJOR)),
            (_, Root::Fq { major, .. }) => Err(self.refusal("fq", *major)),
            (_, Root::Other { kind, major }) => Err(self.refusal(kind, *major)),
        }
    }

    /// [`Device::choose`] while traffic runs: falls back, with a warning, if a choice is impossible.
    pub(super) fn choose_again(&self) -> Result<Choice> {
        match self.choose() {
            Err(Error::Configuration(why)) => {
                let root = Root::of_device(self.nl, self.link.index)?;
                let root = root.unwrap_or(Root::Default { multi_queue: false });
                // Pacing in sockets needs no qdisc.
                let (instead, limited) =
                    if self.wanted == Enforcement::Auto && self.sockets().is_ok() {
                        (Enforcement::Pacing, "only TCP sockets here are limited")
                    } else {
                        (Enforcement::None, "its flows are not limited")
                    };
                Ok(Choice {
                    lacking: Some(format!("{why}; until then {limited}")),
                    ..self.choice(instead, "another root qdisc took our place", root)
                })
            }
            other => other,
        }
    }

    /// Whether TCP sockets can be paced, or what is missing. Reads every mount of the machine.
    fn sockets(&self) -> std::result::Result<(), &'static str> {
        if self.limit_by != LimitBy::Flow {
            return Err("pacing in sockets limits single flows only");
        }
        datapath::cgroup(self.cgroup).map(drop)
    }

    /// Chooses what will replace the kernel's default qdisc once a flow is limited.
    fn install(&self, root: Root) -> Result<Choice> {
        let can = Kernel::get()?;
        let mut lacking = "as configured".to_owned();
        if matches!(self.wanted, Enforcement::Auto | Enforcement::Edt) {
            if can.fq {
                return Ok(self.later(Enforcement::Edt, "the kernel has fq", root));
            }
            lacking = "no fq in this kernel".to_owned();
        }
        if matches!(self.wanted, Enforcement::Auto | Enforcement::Htb) {
            if can.htb {
                return Ok(self.later(Enforcement::Htb, &lacking, root));
            }
            lacking = match self.wanted {
                Enforcement::Auto => "neither fq nor HTB in this kernel",
                _ => "no HTB in this kernel",
            }
            .to_owned();
        }
        if self.wanted != Enforcement::Auto {
            return Err(self.impossible(&lacking));
        }
        match self.sockets() {
            Ok(()) => return Ok(self.choice(Enforcement::Pacing, &lacking, root)),
            Err(missing) => lacking = format!("{lacking}, and {missing}"),
        }
        Ok(Choice {
            lacking: Some(format!(
                "{lacking}: rates are computed and shown, not enforced"
            )),
            ..self.choice(Enforcement::None, &lacking, root)
        })
    }

    fn later(&self, enforcement: Enforcement, why: &str, root: Root) -> Choice {
        Choice {
            whose: Whose::Later,
            ..self.choice(enforcement, why, root)
        }
    }

    fn choice(&self, enforcement: Enforcement, why: &str, root: Root) -> Choice {
        let frame = u64::from(self.layout.frame_bytes);
        let frames = match self.limit_by {
            LimitBy::Flow => htb::LEAF_FRAMES,
            _ => htb::SHARED_LEAF_FRAMES,
        };
        let wanted = u64::from(frames) * frame;
        let queue_bytes = match root {
            // Packets beyond fq's limit are dropped before it: in fq they would be charged.
            Root::Fq { flow_packets, .. } => wanted.min(u64::from(flow_packets) * frame),
            _ => wanted,
        };
        let ours = matches!(
            root,
            Root::Fq {
                major: FQ_MAJOR,
                ..
            }
        );
        Choice {
            enforcement,
            why: why.to_owned(),
            whose: if ours { Whose::Ours } else { Whose::Theirs },
            root,
            queue_bytes,
            lacking: None,
        }
    }

    fn impossible(&self, missing: &str) -> Error {
        let (device, netns) = (&self.link.name, self.ns.name());
        Error::Configuration(format!(
            "device {device} (namespace {netns}): enforcement = \"{}\" is not possible, {missing}: use \
             \"auto\"",
            self.wanted
        ))
    }

    fn refusal(&self, kind: &str, major: u16) -> Error {
        let (device, netns) = (&self.link.name, self.ns.name());
        Error::Configuration(format!(
            "device {device} (namespace {netns}) has a {kind} root qdisc of its own ({major:x}:): \
             remove it (tc qdisc del dev {device} root), or use enforcement = \"none\""
        ))
    }
}

/// Installs an fq for each transmit queue, in place of the device's root.
pub(super) fn install_fq(nl: &Netlink, index: u32) -> net::Result<()> {
    let root = |all: Vec<Qdisc>| {
        let at_root = |qdisc: &Qdisc| qdisc.ifindex == index && qdisc.parent == ROOT;
        all.iter().find(|qdisc| at_root(qdisc)).cloned()
    };
    let fq = |major, parent| nl.fq(index, major, parent, FQ_FLOW_PACKETS, FQ_PACKETS);
    if root(nl.qdiscs()?).is_none_or(|root| root.kind != "mq") {
        return fq(FQ_MAJOR, ROOT);
    }
    nl.mq_root(index, FQ_MAJOR)?;
    let all = nl.qdiscs()?;
    let Some(mq) = root(all.clone()) else {
        return Ok(());
    };
    for queue in all.iter().filter(|qdisc| qdisc.is_child_of(&mq)) {
        if let Err(error) = fq(0, queue.parent) {
            nl.delete_root_qdisc(index)?;
            return Err(error);
        }
    }
    Ok(())
}

/// The qdiscs that this kernel supports, probed on the loopback device of a private namespace.
#[derive(Clone, Copy, Debug, Default)]
struct Kernel {
    fq: bool,
    htb: bool,
}

impl Kernel {
    fn get() -> Result<Self> {
        static KERNEL: OnceLock<Kernel> = OnceLock::new();
        if let Some(kernel) = KERNEL.get() {
            return Ok(*kernel);
        }
        // The namespace ends with the thread.
        let tried = std::thread::spawn(Self::probe).join();
        let kernel = tried.unwrap_or(Ok(Self::default()))?;
        Ok(*KERNEL.get_or_init(|| kernel))
    }

    fn probe() -> net::Result<Self> {
        const LOOPBACK: u32 = 1;
        unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| net::Error::Namespace {
            what: "create",
            name: String::new(),
            errno,
        })?;
        let nl = Netlink::open(&NetNs::from_path("/proc/thread-self/ns/net")?)?;
        let fq = nl.fq(LOOPBACK, FQ_MAJOR, ROOT, FQ_FLOW_PACKETS, FQ_PACKETS);
        nl.delete_root_qdisc(LOOPBACK)?;
        let layout = EndpointHtb {
            ifindex: LOOPBACK,
            link_bytes_per_s: 12_500_000,
            frame_bytes: 1514,
        };
        let htb = layout
            .install(&nl)
            .and_then(|()| layout.add_flow_class(&nl, htb::FIRST_FLOW_MINOR, 1_250_000));
        for error in [&fq, &htb]
            .into_iter()
            .filter_map(|tried| tried.as_ref().err())
        {
            tracing::debug!("{error}");
        }
        Ok(Self {
            fq: fq.is_ok(),
            htb: htb.is_ok(),
        })
    }
}
