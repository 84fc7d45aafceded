//! The victim's round-trip times in a phase: of a ping beside its flow, and as measured by its own TCP.
//!
//! The ping shows queueing in the network. As a separate flow, it excludes queueing at the source, in the class of the
//! victim's flow, which TCP's own time includes.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use ecn_report::statistics::percentile;
use nix::{
    errno::Errno,
    sys::{
        socket::{
            AddressFamily, MsgFlags, SetSockOpt, SockFlag, SockProtocol, SockType, SockaddrStorage,
            connect, recv, send, socket, sockopt,
        },
        time::TimeVal,
    },
};

use super::{
    cpu,
    topology::{Result, Rig, Role},
    traffic::{Flow, Transport},
};
use crate::{
    agent::enforce::now_ns,
    net::{self, NetNs, diag::TcpDiag},
};

/// Interval at which the victim's times are sampled.
const INTERVAL: Duration = Duration::from_millis(10);
/// ICMP header (RFC 792, RFC 4443) with identifier and sequence, then the time of sending.
const HEADER: usize = 8;
/// The default of ping.
const LEN: usize = 64;
/// Types of echo requests and replies, IPv4 and IPv6.
const TYPES: [[u8; 2]; 2] = [[8, 0], [128, 129]];
/// Identifier of our pings in the namespace.
const IDENTIFIER: u16 = 0xec0e;

/// Round-trip times, microseconds.
#[derive(Default)]
pub struct RoundTrips {
    ping: Vec<u64>,
    tcp: Vec<u64>,
    /// Processor time of the measurement.
    pub cpu: Duration,
}

/// The median and the 99th percentile of the times, if there are any.
fn percentiles(times: &mut [u64]) -> [Option<u64>; 2] {
    times.sort_unstable();
    [50, 99].map(|percent| percentile(times, percent))
}

impl RoundTrips {
    /// Median and 99th percentile of pings, us.
    pub fn ping(&mut self) -> [Option<u64>; 2] {
        percentiles(&mut self.ping)
    }

    /// The same percentiles of the victim's TCP, smoothed by it.
    pub fn tcp(&mut self) -> [Option<u64>; 2] {
        percentiles(&mut self.tcp)
    }
}

/// Measures round-trip times on its own thread.
pub struct RttMeter {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<RoundTrips>,
}

impl RttMeter {
    /// Starts, if the rig has a victim. `flow`: the victim's, if known.
    pub fn start(rig: &Rig, ipv6: bool, flow: Option<&Flow>) -> Result<Option<Self>> {
        let host = |role| rig.hosts().iter().find(move |host| host.role == role);
        let (Some(victim), Some(sink)) = (host(Role::Victim), host(Role::VictimSink)) else {
            return Ok(None);
        };
        let ns = NetNs::named(&victim.netns)?;
        let to: IpAddr = if ipv6 {
            sink.ipv6.into()
        } else {
            sink.ipv4.into()
        };
        let ping = ns
            .run(move || Ping::open(to))
            .map_err(|errno| net::Error::Namespace {
                what: "ping from",
                name: victim.netns.clone(),
                errno,
            })?;
        let flow = flow.filter(|flow| flow.transport == Transport::Tcp);
        let tcp = match flow {
            Some(flow) => Some((TcpDiag::open(&ns)?, flow.source, flow.destination)),
            None => None,
        };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || measure(&stopped, &ping, tcp.as_ref()));
        Ok(Some(Self { stop, thread }))
    }

    /// Stops, and returns the times.
    pub fn stop(self) -> RoundTrips {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

fn measure(
    stopped: &AtomicBool,
    ping: &Ping,
    tcp: Option<&(TcpDiag, SocketAddr, SocketAddr)>,
) -> RoundTrips {
    let mut trips = RoundTrips::default();
    let mut next = now_ns();
    while !stopped.load(Ordering::Relaxed) {
        ping.send();
        next += INTERVAL.as_nanos() as u64;
        if let Some((diag, local, remote)) = tcp {
            let rtt = diag.rtt_us(*local, *remote).ok().flatten();
            trips.tcp.extend(rtt.map(u64::from));
        }
        loop {
            trips.ping.extend(ping.receive());
            if now_ns() >= next {
                break;
            }
        }
    }
    trips.cpu = cpu::of_thread();
    trips
}

/// A socket for echo requests to one host.
struct Ping {
    socket: OwnedFd,
    ipv6: bool,
}

impl Ping {
    fn open(to: IpAddr) -> nix::Result<Self> {
        let (family, protocol) = match to {
            IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
            IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
        };
        let socket = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        let patience = TimeVal::new(0, INTERVAL.as_micros() as i64 / 4);
        sockopt::ReceiveTimeout.set(&socket, &patience)?;
        let address = SockaddrStorage::from(SocketAddr::new(to, 0));
        connect(socket.as_raw_fd(), &address)?;
        Ok(Self {
            socket,
            ipv6: to.is_ipv6(),
        })
    }

    /// A lost ping is neither a time nor an error.
    fn send(&self) {
        let mut packet = [0; LEN];
        packet[0] = TYPES[usize::from(self.ipv6)][0];
        packet[4..6].copy_from_slice(&IDENTIFIER.to_be_bytes());
        packet[HEADER..HEADER + 8].copy_from_slice(&now_ns().to_ne_bytes());
        if !self.ipv6 {
            // The kernel computes the checksum of ICMPv6 itself.
            let sum = checksum(&packet);
            packet[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        let _ = send(self.socket.as_raw_fd(), &packet, MsgFlags::MSG_DONTWAIT);
    }

    /// The next reply's time, us; `None` if none arrives for a while.
    fn receive(&self) -> Option<u64> {
        let mut buffer = [0; 128];
        let len = match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Ok(len) => len,
            Err(Errno::EAGAIN | Errno::EINTR) => return None,
            Err(_) => {
                // The device may have been removed: no busy loop.
                thread::sleep(INTERVAL / 4);
                return None;
            }
        };
        // IPv4 packets include their header.
        let at = if self.ipv6 {
            0
        } else {
            usize::from(buffer[0] & 0xf) * 4
        };
        sent_ns(buffer.get(at..len)?, self.ipv6).map(|sent| now_ns().saturating_sub(sent) / 1000)
    }
}

/// When the request to this reply was sent, if it is ours.
fn sent_ns(reply: &[u8], ipv6: bool) -> Option<u64> {
    let ours = *reply.first()? == TYPES[usize::from(ipv6)][1]
        && reply.get(4..6)? == IDENTIFIER.to_be_bytes();
    let time = reply.get(HEADER..HEADER + 8)?;
    ours.then(|| time.try_into().map(u64::from_ne_bytes).ok())?
}

/// Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| {
        let low = word.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([word[0], low]))
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::testing::{TempNs, require_root};

    #[test]
    fn the_checksum_is_that_of_rfc_1071() {
        // The example of its section 3, whose sum is ddf2.
        let words = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(checksum(&words), !0xddf2);
    }

    #[test]
    fn pings_come_back_with_their_time() {
        require_root!();
        let ns = TempNs::new("ping");
        for to in ["127.0.0.1", "::1"] {
            let to: IpAddr = to.parse().expect("an address");
            let ping = ns.run(move || Ping::open(to)).expect("open");
            ping.send();
            // Our own socket receives the request too, and skips it.
            let time = (0..4).find_map(|_| ping.receive());
            assert!(time.is_some_and(|us| us < 1_000_000), "{to}: {time:?}");
        }
    }

    #[test]
    fn no_times_are_no_percentiles() {
        assert_eq!(RoundTrips::default().ping(), [None, None]);
        let mut trips = RoundTrips {
            tcp: (1..=100).rev().collect(),
            ..RoundTrips::default()
        };
        assert_eq!(trips.tcp(), [Some(50), Some(99)]);
    }
}
