//! Greedy senders and their receivers: a thread per host, whatever the number of flows.

use std::{
    collections::VecDeque,
    io::IoSliceMut,
    net::{SocketAddr, SocketAddrV4, TcpListener, UdpSocket},
    os::fd::{AsFd as _, AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use ecn_tests::lab::{FRAME, Host, Lab};
use hdrhistogram::Histogram;
use nix::{
    cmsg_space,
    errno::Errno,
    poll::{PollFd, PollFlags, poll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        socket::{
            AddressFamily, ControlMessageOwned, MsgFlags, MultiHeaders, SetSockOpt as _, SockFlag,
            SockType, SockaddrStorage, bind, connect, recv, recvmmsg, send, setsockopt, socket,
            sockopt,
        },
        time::TimeSpec,
    },
    time::{ClockId, clock_gettime},
};

/// Ports of the receivers.
const UDP: u16 = 5000;
const TCP: u16 = 5001;
/// Source port of the first flow.
const FIRST: u16 = 20_000;
/// Payload of a full frame.
pub const PAYLOAD: usize = FRAME as usize - 14 - 28;
/// How often threads check whether to stop.
const LOOK_MS: u8 = 20;
/// Packets sent between two polls of the sockets.
const TURN: usize = 16;

/// How a flow sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// UDP, as fast as its socket accepts it.
    Udp,
    /// TCP, with this congestion control.
    Tcp(&'static str),
}

/// A greedy flow.
#[derive(Debug, Clone)]
pub struct Flow {
    /// Sending host.
    pub from: usize,
    /// Receiving host.
    pub to: usize,
    /// How.
    pub kind: Kind,
    /// Times at which it sends, since the start; always if empty.
    pub times: Vec<(Duration, Duration)>,
}

impl Flow {
    /// A flow that never stops.
    pub const fn new(from: usize, to: usize, kind: Kind) -> Self {
        Self {
            from,
            to,
            kind,
            times: Vec::new(),
        }
    }

    /// Whether it sends at this time.
    fn is_on(&self, at: Duration) -> bool {
        let within = |(start, end): &(Duration, Duration)| (*start..*end).contains(&at);
        self.times.is_empty() || self.times.iter().any(within)
    }
}

/// Received part of a flow.
#[derive(Debug, Default)]
pub struct Count {
    /// Payload.
    pub bytes: AtomicU64,
    /// Packets; not counted for TCP.
    pub packets: AtomicU64,
}

/// How they send.
#[derive(Debug, Clone, Copy)]
pub struct How {
    /// Rate of a host's NIC, frames, bytes per second.
    pub nic_bytes_per_s: u64,
    /// `SO_SNDBUF` of UDP; else the system's default.
    pub sndbuf: Option<usize>,
    /// Bytes written to TCP at a time.
    pub write: usize,
}

/// Wall clock, as in the kernel's receive timestamps.
pub fn clock_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_REALTIME)
        .map(|t| t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64)
        .expect("a clock")
}

/// Shared by all threads.
#[derive(Debug)]
pub struct Shared {
    /// Of each flow.
    pub counts: Vec<Count>,
    /// When flows start, wall clock; 0 while they wait.
    start_ns: AtomicU64,
    /// Whether delays are recorded.
    pub measures: AtomicBool,
    stop: AtomicBool,
}

impl Shared {
    /// Time since the start.
    fn since_start(&self) -> Option<Duration> {
        let start = self.start_ns.load(Relaxed);
        (start > 0).then(|| Duration::from_nanos(clock_ns().saturating_sub(start)))
    }
}

/// Running flows; stopped when dropped.
pub struct Load {
    /// Counters.
    pub shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    sinks: Vec<JoinHandle<Histogram<u64>>>,
}

impl Load {
    /// Opens all sockets, and connects flows that send from the start, as iperf3 does: hundreds of simultaneous SYNs
    /// would test the length of the accept queue. Nothing is sent yet.
    pub fn open(lab: &Lab, flows: &[Flow], how: How) -> Self {
        let shared = Arc::new(Shared {
            counts: flows.iter().map(|_| Count::default()).collect(),
            start_ns: AtomicU64::new(0),
            measures: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut load = Self {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            sinks: Vec::new(),
        };
        for (number, host) in lab.hosts.iter().enumerate() {
            let to_us = |udp: bool| {
                let ours = |flow: &&Flow| flow.to == number && (flow.kind == Kind::Udp) == udp;
                flows.iter().any(|flow| ours(&flow))
            };
            if to_us(true) {
                let (socket, shared) = (sink(host, UDP), Arc::clone(&shared));
                let thread = std::thread::spawn(move || receive_udp(&socket, &shared));
                load.sinks.push(thread);
            }
            if to_us(false) {
                let at = SocketAddr::new(host.v4.into(), TCP);
                let listener = host.ns.run(|| TcpListener::bind(at)).expect("listen");
                let shared = Arc::clone(&shared);
                let thread = std::thread::spawn(move || receive_tcp(&listener, &shared));
                load.threads.push(thread);
            }
        }
        let (ready, opened) = std::sync::mpsc::channel::<()>();
        for (number, host) in lab.hosts.iter().enumerate() {
            let ours = flows.iter().enumerate();
            let ours: Vec<_> = ours.filter(|(_, flow)| flow.from == number).collect();
            if ours.is_empty() {
                continue;
            }
            let senders = ours.into_iter().map(|(n, flow)| Sender {
                flow: flow.clone(),
                from: SocketAddrV4::new(host.v4, FIRST + n as u16).into(),
                to: SocketAddr::new(
                    lab.hosts[flow.to].v4.into(),
                    if flow.kind == Kind::Udp { UDP } else { TCP },
                ),
                socket: None,
                queued: false,
            });
            let senders: Vec<_> = senders.collect();
            let (ns, shared) = (super::meters::same(&host.ns), Arc::clone(&shared));
            let ready = ready.clone();
            load.threads.push(std::thread::spawn(move || {
                ns.enter().expect("the host's namespace");
                let mut senders = Senders::new(senders, how);
                senders.connect();
                drop(ready);
                senders.run(&shared);
            }));
        }
        drop(ready);
        // All are ready when every thread has dropped its sender.
        let _ = opened.recv();
        load
    }

    /// Starts; returns the wall clock at the start.
    pub fn start(&self) -> u64 {
        let now = clock_ns();
        self.shared.start_ns.store(now, Relaxed);
        now
    }

    /// Stops all; returns one-way delays of UDP, us.
    pub fn stop(mut self) -> Histogram<u64> {
        self.end();
        let mut all = delays();
        for sink in self.sinks.drain(..) {
            let delays = sink.join().expect("a receiver");
            all.add(delays).expect("delays");
        }
        all
    }

    fn end(&mut self) {
        self.shared.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().expect("a thread of the load");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
    }
}

/// An empty histogram of delays in us, up to a minute.
pub fn delays() -> Histogram<u64> {
    Histogram::new_with_max(60_000_000, 3).expect("a histogram")
}

/// One of a host's flows.
struct Sender {
    flow: Flow,
    from: SocketAddr,
    to: SocketAddr,
    socket: Option<OwnedFd>,
    /// Whether it is among the flows that can send.
    queued: bool,
}

impl Sender {
    /// Its socket, connected or connecting.
    fn open(&self, how: How) -> OwnedFd {
        let kind = match self.flow.kind {
            Kind::Udp => SockType::Datagram,
            Kind::Tcp(_) => SockType::Stream,
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let fd = socket(AddressFamily::Inet, kind, flags, None).expect("a socket");
        sockopt::ReuseAddr.set(&fd, &true).expect("re-use");
        match self.flow.kind {
            Kind::Udp => {
                if let Some(bytes) = how.sndbuf {
                    setsockopt(&fd, sockopt::SndBuf, &bytes).expect("send buffer");
                }
            }
            Kind::Tcp(control) => {
                let control = std::ffi::OsString::from(control);
                let set = sockopt::TcpCongestion.set(&fd, &control);
                set.expect("a congestion control that was looked for");
                // Resets the connection when closed: queued data must not be sent.
                let linger = libc::linger {
                    l_onoff: 1,
                    l_linger: 0,
                };
                sockopt::Linger.set(&fd, &linger).expect("linger");
            }
        }
        bind(fd.as_raw_fd(), &SockaddrStorage::from(self.from)).expect("bind");
        match connect(fd.as_raw_fd(), &SockaddrStorage::from(self.to)) {
            Ok(()) | Err(Errno::EINPROGRESS) => fd,
            Err(errno) => panic!("connect to {}: {errno}", self.to),
        }
    }
}

/// All flows of a host.
struct Senders {
    flows: Vec<Sender>,
    how: How,
    epoll: Epoll,
    ready: VecDeque<usize>,
    /// Token bucket of the NIC, bytes.
    tokens: f64,
    filled: Duration,
    payload: Vec<u8>,
}

impl Senders {
    fn new(flows: Vec<Sender>, how: How) -> Self {
        Self {
            flows,
            how,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll"),
            ready: VecDeque::new(),
            tokens: 0.0,
            filled: Duration::ZERO,
            payload: vec![0x5a; how.write],
        }
    }

    fn run(mut self, shared: &Shared) {
        while !shared.stop.load(Relaxed) {
            let Some(now) = shared.since_start() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            self.switch(now);
            self.poll();
            self.send(shared);
        }
    }

    /// Connects the flows that are due at the start, one after the other.
    fn connect(&mut self) {
        for n in 0..self.flows.len() {
            if !self.flows[n].flow.is_on(Duration::ZERO) {
                continue;
            }
            self.open(n);
            if self.flows[n].flow.kind != Kind::Udp {
                let fd = self.flows[n].socket.as_ref().expect("just opened").as_fd();
                let made = poll(&mut [PollFd::new(fd, PollFlags::POLLOUT)], 5_000u16);
                assert_eq!(made, Ok(1), "connect to {}", self.flows[n].to);
            }
        }
    }

    fn open(&mut self, n: usize) {
        let socket = self.flows[n].open(self.how);
        let event = EpollEvent::new(WRITABLE, n as u64);
        self.epoll.add(&socket, event).expect("epoll");
        self.flows[n].socket = Some(socket);
    }

    /// Opens and closes flows that are due.
    fn switch(&mut self, now: Duration) {
        for n in 0..self.flows.len() {
            let flow = &mut self.flows[n];
            match (flow.flow.is_on(now), flow.socket.is_some()) {
                (true, false) => self.open(n),
                (false, true) => {
                    flow.socket = None;
                    flow.queued = false;
                    self.ready.retain(|other| *other != n);
                }
                _ => {}
            }
        }
    }

    /// Finds flows that can send; waits if none can.
    fn poll(&mut self) {
        let mut events = [EpollEvent::empty(); 64];
        let wait = if self.ready.is_empty() { LOOK_MS } else { 0 };
        let found = match self.epoll.wait(&mut events, wait) {
            Ok(found) => found,
            Err(Errno::EINTR) => 0,
            Err(errno) => panic!("epoll: {errno}"),
        };
        for event in &events[..found] {
            let n = event.data() as usize;
            if self.flows[n].socket.is_some() && !self.flows[n].queued {
                self.flows[n].queued = true;
                self.ready.push_back(n);
            }
        }
    }

    fn send(&mut self, shared: &Shared) {
        for _ in 0..TURN {
            let Some(n) = self.ready.pop_front() else {
                return;
            };
            let udp = self.flows[n].flow.kind == Kind::Udp;
            if udp && !self.nic_has_room(shared) {
                self.ready.push_front(n);
                return;
            }
            let flow = &mut self.flows[n];
            let Some(socket) = &flow.socket else { continue };
            let sent = if udp {
                self.payload[..8].copy_from_slice(&clock_ns().to_ne_bytes());
                send(
                    socket.as_raw_fd(),
                    &self.payload[..PAYLOAD],
                    MsgFlags::empty(),
                )
            } else {
                send(socket.as_raw_fd(), &self.payload, MsgFlags::MSG_NOSIGNAL)
            };
            match sent {
                Ok(_) => {
                    if udp {
                        self.tokens -= f64::from(FRAME);
                    }
                    self.ready.push_back(n);
                }
                Err(Errno::EAGAIN | Errno::ENOTCONN) => {
                    flow.queued = false;
                    let event = EpollEvent::new(WRITABLE, n as u64);
                    let fd = socket.as_fd();
                    let mut event = event;
                    self.epoll.modify(fd, &mut event).expect("epoll");
                }
                Err(Errno::ENOBUFS | Errno::EINTR | Errno::ECONNREFUSED) if udp => {
                    self.ready.push_back(n);
                }
                // A connection that timed out, or was reset: another one is opened.
                Err(_) => {
                    flow.queued = false;
                    flow.socket = None;
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Whether the NIC accepts a packet now; waits a moment if not.
    fn nic_has_room(&mut self, shared: &Shared) -> bool {
        let frame = f64::from(FRAME);
        let now = shared.since_start().unwrap_or_default();
        let rate = self.how.nic_bytes_per_s as f64;
        let new = (now - self.filled).as_secs_f64() * rate;
        self.filled = now;
        // Makes up for late timers up to this amount.
        self.tokens = (self.tokens + new).min(rate * 1.5e-3 + 2.0 * frame);
        if self.tokens >= frame {
            return true;
        }
        let lacking = ((frame - self.tokens) / rate).max(400e-6);
        std::thread::sleep(Duration::from_secs_f64(lacking));
        false
    }
}

/// Reported once, until armed again.
const WRITABLE: EpollFlags = EpollFlags::EPOLLOUT.union(EpollFlags::EPOLLONESHOT);

/// A socket that receives with the kernel's timestamps.
pub fn sink(host: &Host, port: u16) -> UdpSocket {
    let at = SocketAddr::new(host.v4.into(), port);
    let socket = host.ns.run(|| UdpSocket::bind(at)).expect("a UDP socket");
    setsockopt(&socket, sockopt::RcvBufForce, &(16 << 20)).expect("receive buffer");
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true).expect("time stamps");
    let look = Duration::from_millis(LOOK_MS.into());
    socket.set_read_timeout(Some(look)).expect("timeout");
    socket
}

/// Receives up to 32 queued packets: source port, first 16 bytes, length, and receive time.
pub fn receive(socket: &UdpSocket, mut packet: impl FnMut(u16, &[u8; 16], usize, u64)) {
    const TOGETHER: usize = 32;
    let mut buffers = [[0u8; 16]; TOGETHER];
    let mut headers =
        MultiHeaders::<SockaddrStorage>::preallocate(TOGETHER, Some(cmsg_space!(TimeSpec)));
    let mut found = [(0u16, 0usize, 0u64); TOGETHER];
    let mut n = 0;
    {
        let mut slices: Vec<_> = buffers.iter_mut().map(|b| [IoSliceMut::new(b)]).collect();
        let flags = MsgFlags::MSG_WAITFORONE | MsgFlags::MSG_TRUNC;
        let fd = socket.as_raw_fd();
        match recvmmsg(fd, &mut headers, slices.iter_mut(), flags, None) {
            Ok(received) => {
                for message in received {
                    let from = message.address.as_ref().and_then(|a| a.as_sockaddr_in());
                    let stamp = message.cmsgs().ok().and_then(|mut all| {
                        all.find_map(|one| match one {
                            ControlMessageOwned::ScmTimestampns(at) => {
                                Some(at.tv_sec() as u64 * 1_000_000_000 + at.tv_nsec() as u64)
                            }
                            _ => None,
                        })
                    });
                    found[n] = (
                        from.map_or(0, |from| from.port()),
                        message.bytes,
                        stamp.unwrap_or_else(clock_ns),
                    );
                    n += 1;
                }
            }
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(errno) => panic!("receive: {errno}"),
        }
    }
    for ((port, len, at), bytes) in found[..n].iter().zip(&buffers) {
        packet(*port, bytes, *len, *at);
    }
}

/// When a packet was sent, from its first 8 bytes.
pub fn sent_ns(bytes: &[u8; 16]) -> u64 {
    u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"))
}

fn receive_udp(socket: &UdpSocket, shared: &Shared) -> Histogram<u64> {
    let mut delays = delays();
    while !shared.stop.load(Relaxed) {
        let measures = shared.measures.load(Relaxed);
        receive(socket, |port, bytes, len, at| {
            let count = shared.counts.get(usize::from(port.wrapping_sub(FIRST)));
            if let Some(count) = count {
                count.packets.fetch_add(1, Relaxed);
                count.bytes.fetch_add(len as u64, Relaxed);
                if measures {
                    delays.saturating_record(at.saturating_sub(sent_ns(bytes)) / 1000);
                }
            }
        });
    }
    delays
}

fn receive_tcp(listener: &TcpListener, shared: &Shared) {
    listener.set_nonblocking(true).expect("nonblocking");
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let readable = |n: u64| EpollEvent::new(EpollFlags::EPOLLIN, n);
    epoll.add(listener, readable(u64::MAX)).expect("epoll");
    let mut streams: Vec<Option<std::net::TcpStream>> = Vec::new();
    streams.resize_with(shared.counts.len(), || None);
    let mut nothing = vec![0; 256 << 10];
    while !shared.stop.load(Relaxed) {
        let mut events = [EpollEvent::empty(); 64];
        let found = epoll.wait(&mut events, LOOK_MS).unwrap_or(0);
        for event in &events[..found] {
            let n = event.data();
            if n == u64::MAX {
                let Ok((stream, peer)) = listener.accept() else {
                    continue;
                };
                let n = usize::from(peer.port().wrapping_sub(FIRST));
                if n < streams.len() {
                    stream.set_nonblocking(true).expect("nonblocking");
                    epoll.add(&stream, readable(n as u64)).expect("epoll");
                    streams[n] = Some(stream);
                }
                continue;
            }
            let n = n as usize;
            let Some(stream) = &streams[n] else { continue };
            // Discarded in the kernel.
            match recv(stream.as_raw_fd(), &mut nothing, MsgFlags::MSG_TRUNC) {
                Ok(len @ 1..) => _ = shared.counts[n].bytes.fetch_add(len as u64, Relaxed),
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                _ => streams[n] = None,
            }
        }
    }
}
