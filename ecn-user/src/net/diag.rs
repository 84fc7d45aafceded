//! Statistics of the kernel's TCP: of a connection (sock_diag), and of a namespace (`snmp`).

use super::netlink::{Netlink, open_socket};
use super::wire::{self, Message, u32_at};
use super::{NetNs, Result};
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use nix::errno::Errno;
use std::net::{IpAddr, SocketAddr};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `struct inet_diag_msg`.
const INET_DIAG_MSG: usize = 72;
const INET_DIAG_INFO: u16 = 2;
/// `tcpi_rtt` in `struct tcp_info`.
const TCPI_RTT: usize = 68;
/// Any state.
const ALL_STATES: u32 = u32::MAX;
/// Matches any socket with these addresses.
const NO_COOKIE: [u8; 8] = [0xff; 8];

/// Queries TCP connections of one namespace.
#[derive(Debug)]
pub struct TcpDiag(Netlink);

impl TcpDiag {
    /// Opens a socket inside `ns`.
    pub fn open(ns: &NetNs) -> Result<Self> {
        let socket = open_socket(ns, NETLINK_SOCK_DIAG)?;
        Ok(Self(Netlink::over(socket, ns)))
    }

    /// Smoothed round-trip time of the connection between two addresses, microseconds (RFC 6298); `None` if there is no
    /// such connection.
    pub fn rtt_us(&self, local: SocketAddr, remote: SocketAddr) -> Result<Option<u32>> {
        let family = if local.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let address = |address: SocketAddr| {
            let mut bytes = [0; 16];
            match address.ip() {
                IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
                IpAddr::V6(ip) => bytes = ip.octets(),
            }
            bytes
        };
        let ports = [local.port().to_be_bytes(), remote.port().to_be_bytes()].concat();
        let extension = 1 << (INET_DIAG_INFO - 1);
        let message = Message::request(SOCK_DIAG_BY_FAMILY, 0)
            .put(&[family as u8, libc::IPPROTO_TCP as u8, extension, 0])
            .put(&ALL_STATES.to_ne_bytes())
            .put(&ports)
            .put(&address(local))
            .put(&address(remote))
            .put(&[0; 4])
            .put(&NO_COOKIE);
        let mut rtt = None;
        let what = |_| format!("look at the connection {local} to {remote}");
        let asked = self.0.exchange(vec![message], what, |kind, payload| {
            if kind == SOCK_DIAG_BY_FAMILY {
                let mut attributes = wire::attributes_after(payload, INET_DIAG_MSG);
                let info = attributes.find(|(kind, _)| *kind == INET_DIAG_INFO);
                rtt = info.and_then(|(_, info)| u32_at(info, TCPI_RTT));
            }
        });
        match asked {
            Err(error) if error.errno() == Some(Errno::ENOENT) => Ok(None),
            other => other.map(|()| rtt),
        }
    }
}

/// TCP counters of a namespace since its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpCounters {
    /// Retransmitted segments.
    pub retransmitted_segments: u64,
    /// Established connections that a reset ended; each end counts it.
    pub resets: u64,
    /// Segments received with a wrong checksum.
    pub checksum_errors: u64,
}

impl TcpCounters {
    /// Reads them; zeros if the kernel does not provide any.
    pub fn read(ns: &NetNs) -> Self {
        let read = || std::fs::read_to_string("/proc/thread-self/net/snmp");
        Self::parse(&ns.run(read).unwrap_or_default())
    }

    /// The first of the two lines `Tcp:` has the names, the second the values.
    fn parse(snmp: &str) -> Self {
        let mut lines = snmp.lines().filter_map(|line| line.strip_prefix("Tcp:"));
        let mut next = || lines.next().unwrap_or_default().split_whitespace();
        let (names, values) = (next(), next());
        let of = |name: &str| {
            let found = names.clone().zip(values.clone()).find(|(n, _)| *n == name);
            found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
        };
        Self {
            retransmitted_segments: of("RetransSegs"),
            resets: of("EstabResets"),
            checksum_errors: of("InCsumErrors"),
        }
    }
}

impl std::ops::AddAssign for TcpCounters {
    fn add_assign(&mut self, other: Self) {
        self.retransmitted_segments += other.retransmitted_segments;
        self.resets += other.resets;
        self.checksum_errors += other.checksum_errors;
    }
}

impl std::ops::Sub for TcpCounters {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        let since = u64::saturating_sub;
        Self {
            retransmitted_segments: since(
                self.retransmitted_segments,
                before.retransmitted_segments,
            ),
            resets: since(self.resets, before.resets),
            checksum_errors: since(self.checksum_errors, before.checksum_errors),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::testing::{TempNs, require_root};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn counters_are_found_by_name() {
        let text = "Ip: Forwarding\nIp: 1\n\
                    Tcp: RtoMin MaxConn EstabResets RetransSegs InCsumErrors\n\
                    Tcp: 200 -1 7 11 13\nUdp: InCsumErrors\nUdp: 99\n";
        let counters = TcpCounters::parse(text);
        let found = (
            counters.resets,
            counters.retransmitted_segments,
            counters.checksum_errors,
        );
        assert_eq!(found, (7, 11, 13));
        assert_eq!(TcpCounters::parse(""), TcpCounters::default());
    }

    #[test]
    fn a_connection_has_a_round_trip_time_and_its_reset_is_counted() {
        require_root!();
        let ns = TempNs::new("diag");
        let (mut client, mut server) = ns.run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
            let address = listener.local_addr().expect("address");
            let client = TcpStream::connect(address).expect("connect");
            (client, listener.accept().expect("accept").0)
        });
        let (local, remote) = (
            client.local_addr().expect("address"),
            client.peer_addr().expect("address"),
        );
        client.write_all(b"hello").expect("send");
        server.read_exact(&mut [0; 5]).expect("receive");
        let diag = TcpDiag::open(&ns).expect("open");
        let rtt = diag.rtt_us(local, remote).expect("ask");
        assert!(rtt.is_some_and(|us| us > 0 && us < 1_000_000), "{rtt:?}");
        let other = SocketAddr::new(local.ip(), 1);
        assert_eq!(diag.rtt_us(other, remote).expect("ask"), None);

        let before = TcpCounters::read(&ns);
        client.write_all(b"unread").expect("send");
        drop(server); // with unread data: a reset
        let _ = client.read(&mut [0; 5]);
        let since = TcpCounters::read(&ns) - before;
        assert_eq!((since.resets, since.checksum_errors), (2, 0), "both ends");
    }
}
