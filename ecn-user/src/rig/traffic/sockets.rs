//! Our own senders and sinks: UDP and TCP.

use super::{Ending, Error, Flow, LOOK, Result, Shared, Transport, enter};
use crate::net::errno_of;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, MultiHeaders, SetSockOpt, SockFlag, SockType,
    SockaddrStorage, bind, connect, getsockopt, listen, recvmmsg, socket, sockopt,
};
use nix::sys::time::TimeVal;
use std::collections::{BTreeMap, HashMap};
use std::io::{IoSliceMut, Read, Write};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};

/// Receive buffer of a UDP sink, so that nothing is lost between port and counter.
const SINK_BUFFER: usize = 8 << 20;
/// Packets received by one system call.
const TOGETHER: usize = 64;

/// Opens all sockets, each in its namespace, and starts the threads; the senders wait.
pub(super) fn start<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared,
) -> Result<Vec<ScopedJoinHandle<'scope, Ending>>> {
    let mut sinks: BTreeMap<(SocketAddr, Transport), Vec<usize>> = BTreeMap::new();
    for (n, flow) in shared.plan.flows.iter().enumerate() {
        let sink = (flow.destination, flow.transport);
        sinks.entry(sink).or_default().push(n);
    }
    let mut threads = Vec::new();
    // Every thread reports once whether it is ready.
    let (ready, all_ready) = channel::<Result<()>>();
    let mut wait = |thread| {
        threads.push(thread);
        all_ready.recv().unwrap_or(Err(Error::Silent))
    };
    for ((_, transport), flows) in sinks {
        let ready = ready.clone();
        wait(scope.spawn(move || match transport {
            Transport::Tcp => tcp_sink(scope, shared, &flows, &ready),
            Transport::Udp => udp_sink(shared, &flows, &ready),
        }))?;
    }
    for n in 0..shared.plan.flows.len() {
        let ready = ready.clone();
        wait(scope.spawn(move || sender(shared, n, &ready)))?;
    }
    Ok(threads)
}

/// Runs a preparation, reports its result, and returns its value if it succeeded.
fn prepare<T>(ready: &Sender<Result<()>>, f: impl FnOnce() -> Result<T>) -> Option<T> {
    let (result, value) = match f() {
        Ok(value) => (Ok(()), Some(value)),
        Err(error) => (Err(error), None),
    };
    let _ = ready.send(result);
    value
}

fn sender(shared: &Shared, n: usize, ready: &Sender<Result<()>>) -> Ending {
    let flow = &shared.plan.flows[n];
    let open = || {
        enter(&flow.netns)?;
        open_sender(shared, flow)
    };
    let Some(socket) = prepare(ready, open) else {
        return Ok(None);
    };
    if !shared.wait_for_start(n) {
        return Ok(None);
    }
    if flow.transport == Transport::Tcp {
        if connect_tcp(shared, flow, &socket)? {
            return send_tcp(shared, flow, TcpStream::from(socket));
        }
        Ok(None)
    } else {
        send_udp(shared, n, UdpSocket::from(socket))
    }
}

fn open_sender(shared: &Shared, flow: &Flow) -> Result<OwnedFd> {
    let error = |what| failed(flow, &flow.netns, what);
    let (family, from) = (family(flow.source), SockaddrStorage::from(flow.source));
    let kind = match flow.transport {
        Transport::Tcp => SockType::Stream,
        Transport::Udp => SockType::Datagram,
    };
    let socket =
        socket(family, kind, SockFlag::SOCK_CLOEXEC, None).map_err(error("open a socket"))?;
    sockopt::ReuseAddr
        .set(&socket, &true)
        .map_err(error("re-use the address"))?;
    let look = TimeVal::new(0, LOOK.as_micros() as i64);
    sockopt::SendTimeout
        .set(&socket, &look)
        .map_err(error("set a time limit"))?;
    bind(socket.as_raw_fd(), &from).map_err(error("bind the source's address"))?;
    if flow.transport == Transport::Tcp {
        use_congestion_control(&socket, &shared.plan.congestion_control)?;
    } else {
        sockopt::SndBuf
            .set(&socket, &shared.plan.socket_buffer_bytes)
            .map_err(error("set the send buffer"))?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(flow.destination))
            .map_err(error("connect"))?;
    }
    Ok(socket)
}

/// Selects the congestion control of a socket, and checks that it is in use.
fn use_congestion_control(socket: &OwnedFd, asked: &str) -> Result<()> {
    let refused = |because: String| Error::CongestionControl {
        asked: asked.to_owned(),
        because,
        available: available(),
    };
    sockopt::TcpCongestion
        .set(socket, &asked.into())
        .map_err(|errno| refused(errno.to_string()))?;
    let got =
        getsockopt(socket, sockopt::TcpCongestion).map_err(|errno| refused(errno.to_string()))?;
    let got = got.to_string_lossy();
    match got.trim_end_matches('\0') {
        got if got == asked => Ok(()),
        got => Err(refused(format!("the socket has {got}"))),
    }
}

/// Whether this kernel supports a congestion control.
///
/// # Errors
///
/// Lists those that it supports.
pub fn check_congestion_control(asked: &str) -> Result<()> {
    let socket = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    );
    let socket = socket.map_err(|errno| Error::Process {
        what: "open a socket for",
        source: errno.into(),
    })?;
    use_congestion_control(&socket, asked)
}

fn available() -> String {
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let names = std::fs::read_to_string(path).unwrap_or_default();
    names.split_whitespace().collect::<Vec<_>>().join(", ")
}

fn send_udp(shared: &Shared, n: usize, socket: UdpSocket) -> Ending {
    let flow = &shared.plan.flows[n];
    let payload = vec![0; shared.plan.payload_bytes];
    let sent = &shared.counts[n].sent_packets;
    while !shared.stopped() {
        match socket.send(&payload).map_err(|error| errno_of(&error)) {
            Ok(_) => _ = sent.fetch_add(1, Relaxed),
            // A full buffer, a full queue, or a sink that did not exist a moment ago.
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS | Errno::ECONNREFUSED) => {}
            Err(errno) => return Err(failed(flow, &flow.netns, "send")(errno)),
        }
    }
    Ok(None)
}

/// Waits for the connection, however often its first packets are lost; false if the run is to stop.
fn connect_tcp(shared: &Shared, flow: &Flow, socket: &OwnedFd) -> Result<bool> {
    let to = SockaddrStorage::from(flow.destination);
    while !shared.stopped() {
        match connect(socket.as_raw_fd(), &to) {
            Ok(()) => return Ok(true),
            // The socket's timeout has expired; the kernel keeps trying.
            Err(Errno::EINPROGRESS | Errno::EALREADY | Errno::EINTR) => {}
            Err(errno) => return Err(failed(flow, &flow.netns, "connect")(errno)),
        }
    }
    Ok(false)
}

fn send_tcp(shared: &Shared, flow: &Flow, mut stream: TcpStream) -> Ending {
    let block = vec![0; 64 << 10];
    while !shared.stopped() {
        match stream.write(&block).map_err(|error| errno_of(&error)) {
            Ok(_) | Err(Errno::EAGAIN | Errno::EINTR) => {}
            // The sink may have stopped just before.
            Err(_) if shared.stopped() => break,
            Err(errno) => return Err(failed(flow, &flow.netns, "send")(errno)),
        }
    }
    // Discards the send queue: otherwise the kernel continues to send after the end.
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let _ = sockopt::Linger.set(&stream, &linger);
    Ok(None)
}

fn udp_sink(shared: &Shared, flows: &[usize], ready: &Sender<Result<()>>) -> Ending {
    let flow = &shared.plan.flows[flows[0]];
    let open = || {
        enter(&flow.sink_netns)?;
        let error = |what| failed(flow, &flow.sink_netns, what);
        let socket = UdpSocket::bind(flow.destination)
            .map_err(|io| error("bind the sink's address")(errno_of(&io)))?;
        sockopt::RcvBufForce
            .set(&socket, &SINK_BUFFER)
            .or_else(|_| sockopt::RcvBuf.set(&socket, &SINK_BUFFER))
            .map_err(error("set the receive buffer"))?;
        socket
            .set_read_timeout(Some(LOOK))
            .map_err(|io| error("set a time limit")(errno_of(&io)))?;
        Ok(socket)
    };
    let Some(socket) = prepare(ready, open) else {
        return Ok(None);
    };
    let by_source: HashMap<SocketAddr, usize> = flows
        .iter()
        .map(|n| (shared.plan.flows[*n].source, *n))
        .collect();

    // The payload is not needed: the kernel returns its length (MSG_TRUNC).
    let mut buffers = [[0u8; 8]; TOGETHER];
    while !shared.stopped() {
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(TOGETHER, None);
        let mut slices: Vec<_> = buffers.iter_mut().map(|b| [IoSliceMut::new(b)]).collect();
        let flags = MsgFlags::MSG_WAITFORONE | MsgFlags::MSG_TRUNC;
        match recvmmsg(
            socket.as_raw_fd(),
            &mut headers,
            slices.iter_mut(),
            flags,
            None,
        ) {
            Ok(received) => {
                for message in received {
                    let from = message.address.as_ref().and_then(std_address);
                    if let Some(n) = from.and_then(|from| by_source.get(&from)) {
                        let count = &shared.counts[*n];
                        count.received_packets.fetch_add(1, Relaxed);
                        count
                            .received_bytes
                            .fetch_add(message.bytes as u64, Relaxed);
                    }
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(errno) => return Err(failed(flow, &flow.sink_netns, "receive")(errno)),
        }
    }
    Ok(None)
}

fn tcp_sink<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared,
    flows: &[usize],
    ready: &Sender<Result<()>>,
) -> Ending {
    let flow = &shared.plan.flows[flows[0]];
    let error = |what| failed(flow, &flow.sink_netns, what);
    let open = || {
        enter(&flow.sink_netns)?;
        let kind = SockType::Stream;
        let socket = socket(family(flow.destination), kind, SockFlag::SOCK_CLOEXEC, None)
            .map_err(error("open a socket"))?;
        // A recent sink may leave connections that are not completely closed.
        sockopt::ReuseAddr
            .set(&socket, &true)
            .map_err(error("re-use the address"))?;
        let look = TimeVal::new(0, LOOK.as_micros() as i64);
        sockopt::ReceiveTimeout
            .set(&socket, &look)
            .map_err(error("set a time limit"))?;
        bind(socket.as_raw_fd(), &SockaddrStorage::from(flow.destination))
            .map_err(error("bind the sink's address"))?;
        listen(&socket, Backlog::MAXCONN).map_err(error("listen"))?;
        Ok(TcpListener::from(socket))
    };
    let Some(listener) = prepare(ready, open) else {
        return Ok(None);
    };
    while !shared.stopped() {
        match listener.accept() {
            Ok((stream, peer)) => {
                let from = |n: &&usize| shared.plan.flows[**n].source == peer;
                if let Some(&n) = flows.iter().find(from) {
                    scope.spawn(move || receive_tcp(shared, n, stream));
                }
            }
            Err(io) => match errno_of(&io) {
                Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED => {}
                errno => return Err(error("accept")(errno)),
            },
        }
    }
    Ok(None)
}

/// Counts what one connection receives, until it ends.
fn receive_tcp(shared: &Shared, n: usize, mut stream: TcpStream) {
    let mut buffer = vec![0; 256 << 10];
    let _ = stream.set_read_timeout(Some(LOOK));
    let count = &shared.counts[n].received_bytes;
    while !shared.stopped() {
        match stream.read(&mut buffer).map_err(|io| errno_of(&io)) {
            Ok(0) => return,
            Ok(len) => _ = count.fetch_add(len as u64, Relaxed),
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(_) => return,
        }
    }
}

fn failed<'a>(
    flow: &'a Flow,
    netns: &'a str,
    what: &'static str,
) -> impl Fn(Errno) -> Error + use<'a> {
    move |errno| Error::Socket {
        flow: flow.name.clone(),
        what,
        netns: netns.to_owned(),
        errno,
    }
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

fn std_address(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address
        .as_sockaddr_in()
        .map(|from| SocketAddrV4::from(*from).into());
    v4.or_else(|| {
        let from = SocketAddrV6::from(*address.as_sockaddr_in6()?);
        Some(SocketAddr::new((*from.ip()).into(), from.port()))
    })
}
