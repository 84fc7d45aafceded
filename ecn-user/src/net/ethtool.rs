//! Device features through the `SIOCETHTOOL` ioctl: offloads and link speed.

use super::sys::ethtool_ioctl;
use super::{Error, NetNs, Result};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use std::os::fd::{AsFd, OwnedFd};

const ETHTOOL_GSET: u32 = 0x01;
/// `struct ethtool_cmd` is 44 bytes.
const GSET_WORDS: usize = 11;

/// An offload that can be enabled and disabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offload {
    /// TCP segmentation.
    Tso,
    /// Generic segmentation.
    Gso,
    /// Generic receive: merges packets of a flow.
    Gro,
    /// Checksums of sent packets.
    TxChecksum,
}

impl Offload {
    /// All of them, in an order in which each can be disabled.
    pub const ALL: [Self; 4] = [Self::Tso, Self::Gso, Self::Gro, Self::TxChecksum];

    /// The commands to read and to write it.
    fn commands(self) -> (u32, u32) {
        match self {
            Self::Tso => (0x1e, 0x1f),
            Self::Gso => (0x23, 0x24),
            Self::Gro => (0x2b, 0x2c),
            Self::TxChecksum => (0x16, 0x17),
        }
    }
}

/// Access to the features of devices in one namespace.
#[derive(Debug)]
pub struct Ethtool {
    socket: OwnedFd,
    netns: String,
}

impl Ethtool {
    /// Opens a socket inside the namespace.
    pub fn open(ns: &NetNs) -> Result<Self> {
        let open = || {
            socket(
                AddressFamily::Inet,
                SockType::Datagram,
                SockFlag::SOCK_CLOEXEC,
                None,
            )
        };
        match ns.run(open) {
            Ok(socket) => Ok(Self {
                socket,
                netns: ns.name().to_owned(),
            }),
            Err(errno) => Err(Error::Namespace {
                what: "open a socket in",
                name: ns.name().to_owned(),
                errno,
            }),
        }
    }

    /// Whether an offload is enabled.
    pub fn is_on(&self, link: &str, offload: Offload) -> Result<bool> {
        let mut data = [offload.commands().0, 0];
        self.ioctl(link, &mut data, || format!("read {offload:?}"))?;
        Ok(data[1] != 0)
    }

    /// Enables or disables an offload.
    pub fn set(&self, link: &str, offload: Offload, on: bool) -> Result<()> {
        let mut data = [offload.commands().1, u32::from(on)];
        self.ioctl(link, &mut data, || format!("switch {offload:?} to {on}"))
    }

    /// Disables all offloads: each packet is then one frame, with a complete checksum.
    pub fn all_off(&self, link: &str) -> Result<()> {
        Offload::ALL
            .iter()
            .try_for_each(|offload| self.set(link, *offload, false))
    }

    /// Link speed in Mbit/s, if the driver reports it (a veth reports 10000, whatever its real speed).
    pub fn speed_mbit_per_s(&self, link: &str) -> Result<Option<u32>> {
        let mut data = [0; GSET_WORDS];
        data[0] = ETHTOOL_GSET;
        match self.ioctl(link, &mut data, || "read the speed".to_owned()) {
            Ok(()) => {}
            Err(error) if error.errno() == Some(nix::errno::Errno::EOPNOTSUPP) => return Ok(None),
            Err(error) => return Err(error),
        }
        // speed: 16 bits at byte 12; speed_hi: 16 bits at byte 28.
        let low = u32::from(half(data[3], 0));
        let high = u32::from(half(data[7], 0));
        let speed = high << 16 | low;
        // All ones, in 16 or 32 bits, mean unknown.
        Ok(Some(speed).filter(|speed| !matches!(speed, 0 | 0xffff | 0xffff_ffff)))
    }

    fn ioctl<const WORDS: usize>(
        &self,
        link: &str,
        data: &mut [u32; WORDS],
        what: impl Fn() -> String,
    ) -> Result<()> {
        ethtool_ioctl(self.socket.as_fd(), link, data).map_err(|errno| Error::Ethtool {
            what: what(),
            link: link.to_owned(),
            netns: self.netns.clone(),
            errno,
        })
    }
}

/// The n-th 16 bits of a word, in memory order.
fn half(word: u32, n: usize) -> u16 {
    let bytes = word.to_ne_bytes();
    u16::from_ne_bytes([bytes[2 * n], bytes[2 * n + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::testing::{TempNs, require_root};
    use crate::net::{Netlink, VethEnd};

    #[test]
    fn offloads_of_a_veth_go_off() {
        require_root!();
        let ns = TempNs::new("eth");
        let nl = Netlink::open(&ns).expect("open");
        let end = |name| VethEnd {
            name,
            ..VethEnd::default()
        };
        nl.add_veth(&end("p1"), &end("p2"), &ns, 1500)
            .expect("veth");
        let ethtool = Ethtool::open(&ns).expect("open");
        assert!(ethtool.is_on("p1", Offload::Tso).expect("read"));
        ethtool.all_off("p1").expect("off");
        for offload in Offload::ALL {
            assert!(!ethtool.is_on("p1", offload).expect("read"), "{offload:?}");
        }
        assert_eq!(ethtool.speed_mbit_per_s("p1").expect("speed"), Some(10_000));
        assert_eq!(ethtool.speed_mbit_per_s("lo").expect("speed"), None);
        let error = ethtool
            .all_off("nothing")
            .expect_err("no such link")
            .to_string();
        assert!(
            error.contains("nothing") && error.contains("ENODEV"),
            "{error}"
        );
    }
}
