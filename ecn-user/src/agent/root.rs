//! What stands at the root of an endpoint's device, and by what rates are enforced there.

use nix::errno::Errno;

use super::{Error, Result};
use crate::{
    config::Enforcement,
    net::{
        self, NetNs, Netlink, ROOT,
        htb::{self, EndpointHtb},
        netlink::Link,
    },
};

/// Handle of an fq, or of an mq with fq below it, that is ours.
pub const FQ_MAJOR: u16 = 0xec0d;
/// Room in an fq of ours: the programs drop by bytes before it is full, at any size of packets.
const FQ_FLOW_PACKETS: u32 = 8_192;
/// The same for all flows together.
const FQ_PACKETS: u32 = 131_072;
/// Most that a flow may have waiting for its departure: [`EndpointHtb::leaf_packets`], or a few of the
/// largest super-packets.
const QUEUE_BYTES: u64 = 256 << 10;

/// The root qdisc of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Root {
    /// The kernel's own choice, which sorts nobody's packets by time.
    Default {
        /// One qdisc for each transmit queue.
        multi_queue: bool,
    },
    /// fq, or mq with nothing but fq below it.
    Fq {
        /// Its number; 0: the kernel's own choice.
        major: u16,
        /// Packets of a flow that fit.
        flow_packets: u32,
    },
    /// Our HTB: the rig's, or one that an agent left.
    Htb,
    /// Somebody's.
    Other {
        /// `netem`, `tbf`, ...
        kind: String,
        /// Its number.
        major: u16,
    },
}

impl Root {
    /// What is there now; nothing if the device is not.
    pub(super) fn look(nl: &Netlink, ifindex: u32) -> Result<Option<Self>> {
        let all = nl.qdiscs()?;
        let Some(root) = all
            .iter()
            .find(|qdisc| qdisc.ifindex == ifindex && qdisc.parent == ROOT)
        else {
            return Ok(None);
        };
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
            return Ok(Some(Self::Fq {
                major,
                flow_packets,
            }));
        }
        Ok(Some(match (major, root.kind.as_str()) {
            (0, _) => Self::Default { multi_queue },
            (htb::ENDPOINT_MAJOR, "htb") => Self::Htb,
            // An mq of ours whose queues somebody has changed is somebody's.
            (major, kind) => Self::Other {
                kind: kind.to_owned(),
                major,
            },
        }))
    }

    /// Major number under which its queues' qdiscs hang; 0 where it has none of its own.
    pub(super) const fn major(&self) -> u16 {
        match self {
            Self::Default { .. } => 0,
            Self::Htb => htb::ENDPOINT_MAJOR,
            Self::Fq { major, .. } | Self::Other { major, .. } => *major,
        }
    }
}

/// How rates are enforced at a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    /// Never [`Enforcement::Auto`].
    pub(super) enforcement: Enforcement,
    /// For people: why this one.
    pub(super) why: String,
    /// The root qdisc is ours to remove.
    pub(super) installed: bool,
    /// The root qdisc that this was chosen for.
    pub(super) root: Root,
    /// Most that a flow may have waiting, with [`Enforcement::Edt`].
    pub(super) queue_bytes: u64,
}

/// A device whose enforcement is to be chosen.
pub(super) struct Device<'a> {
    pub(super) nl: &'a Netlink,
    pub(super) ns: &'a NetNs,
    pub(super) link: &'a Link,
    pub(super) layout: &'a EndpointHtb,
    pub(super) wanted: Enforcement,
    /// Whether TCP sockets can be paced, or what is missing.
    pub(super) sockets: std::result::Result<(), &'a str>,
}

impl Device<'_> {
    /// Chooses by what is there and what can be installed, and installs it.
    ///
    /// # Errors
    ///
    /// The user has a root qdisc of another kind, or the kernel has not what was asked for; then
    /// nothing has changed.
    pub(super) fn choose(&self) -> Result<Choice> {
        let root = Root::look(self.nl, self.link.index)?;
        let root = root.unwrap_or(Root::Default { multi_queue: false });
        match (self.wanted, &root) {
            (Enforcement::Pacing, _) => match self.sockets {
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
                Ok(self.choice(Enforcement::Htb, "our HTB is there already", root))
            }
            (_, Root::Default { .. }) => self.install(),
            // fq in place of the kernel's default: handle 0 is nobody's.
            (Enforcement::Htb, Root::Fq { major: 0, .. }) => self.install(),
            (_, Root::Htb) => Err(self.refusal("htb", htb::ENDPOINT_MAJOR)),
            (_, Root::Fq { major, .. }) => Err(self.refusal("fq", *major)),
            (_, Root::Other { kind, major }) => Err(self.refusal(kind, *major)),
        }
    }

    /// As [`Device::choose`], while traffic runs: what cannot be is done without, with a warning.
    pub(super) fn choose_again(&self) -> Result<Choice> {
        match self.choose() {
            Err(Error::Configuration(why)) => {
                let root = Root::look(self.nl, self.link.index)?;
                let root = root.unwrap_or(Root::Default { multi_queue: false });
                let because = "another root qdisc took our place";
                // What paces in sockets needs no qdisc.
                if self.wanted == Enforcement::Auto && self.sockets.is_ok() {
                    tracing::warn!("{why}; until then only TCP sockets here are limited");
                    return Ok(self.choice(Enforcement::Pacing, because, root));
                }
                tracing::warn!("{why}; until then its flows are not limited");
                Ok(self.choice(Enforcement::None, because, root))
            }
            other => other,
        }
    }

    /// In place of the kernel's own qdisc.
    fn install(&self) -> Result<Choice> {
        let mut lacking = "as configured".to_owned();
        if matches!(self.wanted, Enforcement::Auto | Enforcement::Edt) {
            match self.install_fq() {
                Ok(()) => {
                    let why = "the kernel has fq";
                    return self.installed(Enforcement::Edt, why);
                }
                Err(error) if is_unknown(&error) => {
                    lacking = "no fq in this kernel".to_owned();
                }
                Err(error) => return Err(error.into()),
            }
        }
        if matches!(self.wanted, Enforcement::Auto | Enforcement::Htb) {
            match self.layout.install(self.nl) {
                Ok(()) => return self.installed(Enforcement::Htb, &lacking),
                Err(error) if is_unknown(&error) => {
                    lacking = match self.wanted {
                        Enforcement::Auto => "neither fq nor HTB in this kernel",
                        _ => "no HTB in this kernel",
                    }
                    .to_owned();
                }
                Err(error) => return Err(error.into()),
            }
        }
        if self.wanted != Enforcement::Auto {
            return Err(self.impossible(&lacking));
        }
        match self.sockets {
            Ok(()) => {
                return Ok(Choice {
                    installed: false,
                    ..self.installed(Enforcement::Pacing, &lacking)?
                });
            }
            Err(missing) => lacking = format!("{lacking}, and {missing}"),
        }
        let (device, netns) = (&self.link.name, self.ns.name());
        tracing::warn!(
            "device {device} (namespace {netns}): {lacking}: rates are computed and shown, not enforced"
        );
        Ok(Choice {
            installed: false,
            ..self.installed(Enforcement::None, &lacking)?
        })
    }

    /// An fq for each transmit queue.
    fn install_fq(&self) -> net::Result<()> {
        let index = self.link.index;
        let root = |all: Vec<net::Qdisc>| {
            let at_root = |qdisc: &net::Qdisc| qdisc.ifindex == index && qdisc.parent == ROOT;
            all.iter().find(|qdisc| at_root(qdisc)).cloned()
        };
        let fq = |major, parent| {
            self.nl
                .fq(index, major, parent, FQ_FLOW_PACKETS, FQ_PACKETS)
        };
        if root(self.nl.qdiscs()?).is_none_or(|root| root.kind != "mq") {
            return fq(FQ_MAJOR, ROOT);
        }
        self.nl.mq_root(index, FQ_MAJOR)?;
        let all = self.nl.qdiscs()?;
        let Some(mq) = root(all.clone()) else {
            return Ok(());
        };
        for queue in all.iter().filter(|qdisc| qdisc.is_child_of(&mq)) {
            if let Err(error) = fq(0, queue.parent) {
                self.nl.delete_root_qdisc(index)?;
                return Err(error);
            }
        }
        Ok(())
    }

    fn installed(&self, enforcement: Enforcement, why: &str) -> Result<Choice> {
        let root = Root::look(self.nl, self.link.index)?;
        let root = root.unwrap_or(Root::Default { multi_queue: false });
        Ok(Choice {
            installed: true,
            ..self.choice(enforcement, why, root)
        })
    }

    fn choice(&self, enforcement: Enforcement, why: &str, root: Root) -> Choice {
        let frame = u64::from(self.layout.frame_bytes);
        let wanted = QUEUE_BYTES.max(u64::from(self.layout.leaf_packets) * frame);
        let queue_bytes = match root {
            // What it would drop is dropped before it: there it would be charged.
            Root::Fq { flow_packets, .. } => wanted.min(u64::from(flow_packets) * frame),
            _ => wanted,
        };
        Choice {
            enforcement,
            why: why.to_owned(),
            installed: matches!(
                root,
                Root::Fq {
                    major: FQ_MAJOR,
                    ..
                }
            ),
            root,
            queue_bytes,
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

/// The kernel does not know this kind of qdisc.
fn is_unknown(error: &net::Error) -> bool {
    error.errno() == Some(Errno::ENOENT)
}
