//! Short transfers: a server that answers requests with a number of bytes, and clients that open connections at a steady
//! rate or keep theirs. Client and server are a thread each.

use std::{
    collections::VecDeque,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ecn_tests::lab::Host;
use hdrhistogram::Histogram;
use nix::{
    errno::Errno,
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
        socket::{
            AddressFamily, Backlog, MsgFlags, SetSockOpt as _, SockFlag, SockType, SockaddrStorage,
            bind, connect, listen, recv, send, socket, sockopt,
        },
    },
};

use super::load::delays;

const PORT: u16 = 5003;
/// A request, about as long as a browser's shortest.
const REQUEST: usize = 100;
/// A transfer that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(5);

/// How clients open connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clients {
    /// New connections per second, each for one transfer.
    New(u32),
    /// Number of connections, each with one transfer after the other.
    Kept(u32),
}

/// Results of the measured time.
pub struct Transfers {
    /// From the first packet of the connection, or the request, to the last byte; us.
    pub times: Histogram<u64>,
    /// Transfers that failed or took too long.
    pub failed: u64,
    /// Bytes of all responses.
    pub bytes: u64,
}

/// Server and clients; stopped by [`Web::stop`].
pub struct Web {
    flags: Arc<Flags>,
    server: JoinHandle<()>,
    clients: JoinHandle<Transfers>,
}

#[derive(Default)]
struct Flags {
    measures: AtomicBool,
    /// Set when clients open no more connections.
    closing: AtomicBool,
    stop: AtomicBool,
    bytes: AtomicU64,
}

impl Web {
    /// Starts both; responses have this length.
    pub fn start(server: &Host, client: &Host, clients: Clients, bytes: usize) -> Self {
        let flags = Arc::new(Flags::default());
        let at = SocketAddr::new(server.v4.into(), PORT);
        let listener = server.ns.run(|| listener(at));
        let shared = Arc::clone(&flags);
        let server = thread::spawn(move || serve(&listener, bytes, clients, &shared));
        let range = "/proc/sys/net/ipv4/ip_local_port_range";
        let set = || std::fs::write(range, "10000 65000");
        client.ns.run(set).expect("a range of ports");
        let (ns, shared) = (super::meters::same(&client.ns), Arc::clone(&flags));
        let clients = thread::spawn(move || {
            ns.enter().expect("the client's namespace");
            Client::new(at, bytes, clients).run(&shared)
        });
        Self {
            flags,
            server,
            clients,
        }
    }

    /// Whether transfers that start from now on are measured.
    pub fn measure(&self, on: bool) {
        self.flags.measures.store(on, Relaxed);
    }

    /// Response bytes received so far.
    pub fn bytes(&self) -> u64 {
        self.flags.bytes.load(Relaxed)
    }

    /// Starts no new transfers.
    pub fn close(&self) {
        self.flags.closing.store(true, Relaxed);
    }

    /// Stops both.
    pub fn stop(self) -> Transfers {
        self.flags.stop.store(true, Relaxed);
        self.server.join().expect("the server");
        self.clients.join().expect("the clients")
    }
}

fn listener(at: SocketAddr) -> TcpListener {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Inet, SockType::Stream, flags, None).expect("a socket");
    bind(fd.as_raw_fd(), &SockaddrStorage::from(at)).expect("bind");
    listen(&fd, Backlog::MAXCONN).expect("listen");
    TcpListener::from(fd)
}

const BOTH: EpollFlags = EpollFlags::EPOLLIN
    .union(EpollFlags::EPOLLOUT)
    .union(EpollFlags::EPOLLET);

/// One connection of the server.
struct Served {
    stream: TcpStream,
    received: usize,
    left: usize,
}

fn serve(listener: &TcpListener, bytes: usize, clients: Clients, flags: &Flags) {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll");
    let event = EpollEvent::new(EpollFlags::EPOLLIN, u64::MAX);
    epoll.add(listener, event).expect("epoll");
    let mut slots = Slots::default();
    let answer = vec![0x5a; bytes];
    let close = matches!(clients, Clients::New(_));
    while !flags.stop.load(Relaxed) {
        let mut events = [EpollEvent::empty(); 256];
        let found = epoll.wait(&mut events, 20u8).unwrap_or(0);
        for event in &events[..found] {
            if event.data() == u64::MAX {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).expect("nonblocking");
                    let _ = stream.set_nodelay(true);
                    let n = slots.put(Served {
                        stream,
                        received: 0,
                        left: 0,
                    });
                    let stream = &slots.all[n].as_ref().expect("just put").stream;
                    epoll
                        .add(stream, EpollEvent::new(BOTH, n as u64))
                        .expect("epoll");
                }
                continue;
            }
            let n = event.data() as usize;
            let Some(served) = slots.all.get_mut(n).and_then(Option::as_mut) else {
                continue;
            };
            if !answer_one(served, &answer, close) {
                slots.free(n);
            }
        }
    }
}

/// Continues a connection; false when it is finished.
fn answer_one(served: &mut Served, answer: &[u8], close: bool) -> bool {
    let fd = served.stream.as_raw_fd();
    let mut buffer = [0; 1024];
    loop {
        match recv(fd, &mut buffer, MsgFlags::empty()) {
            Ok(0) => return false,
            Ok(len) => {
                served.received += len;
                while served.received >= REQUEST {
                    served.received -= REQUEST;
                    served.left += answer.len();
                }
            }
            Err(Errno::EAGAIN) => break,
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
    while served.left > 0 {
        let len = served.left.min(answer.len());
        match send(fd, &answer[..len], MsgFlags::MSG_NOSIGNAL) {
            Ok(sent) => served.left -= sent,
            Err(Errno::EAGAIN) => return true,
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
        if served.left == 0 && close {
            return false;
        }
    }
    true
}

/// Connections by number.
struct Slots<T> {
    all: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slots<T> {
    fn put(&mut self, value: T) -> usize {
        let n = self.free.pop().unwrap_or_else(|| {
            self.all.push(None);
            self.all.len() - 1
        });
        self.all[n] = Some(value);
        n
    }

    fn free(&mut self, n: usize) {
        if self.all[n].take().is_some() {
            self.free.push(n);
        }
    }
}

/// One transfer.
struct Transfer {
    fd: OwnedFd,
    start: Instant,
    number: u64,
    requested: bool,
    left: usize,
    counts: bool,
}

struct Client {
    to: SocketAddr,
    bytes: usize,
    clients: Clients,
    epoll: Epoll,
    slots: Slots<Transfer>,
    /// By age: number and slot.
    ages: VecDeque<(u64, usize, Instant)>,
    next: u64,
    found: Transfers,
}

impl Client {
    fn new(to: SocketAddr, bytes: usize, clients: Clients) -> Self {
        Self {
            to,
            bytes,
            clients,
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("epoll"),
            slots: Slots::default(),
            ages: VecDeque::new(),
            next: 0,
            found: Transfers {
                times: delays(),
                failed: 0,
                bytes: 0,
            },
        }
    }

    fn run(mut self, flags: &Flags) -> Transfers {
        let start = Instant::now();
        let mut opened = 0u64;
        while !flags.stop.load(Relaxed) {
            let closing = flags.closing.load(Relaxed);
            let due = match self.clients {
                Clients::New(per_s) => (start.elapsed().as_secs_f64() * f64::from(per_s)) as u64,
                Clients::Kept(all) => {
                    let open = self.slots.all.len() - self.slots.free.len();
                    opened + u64::from(all).saturating_sub(open as u64)
                }
            };
            if closing {
                opened = opened.max(due);
            }
            while opened < due {
                opened += 1;
                self.open(flags);
            }
            // In time for the next connection.
            let wait = if matches!(self.clients, Clients::New(_)) {
                1u8
            } else {
                20
            };
            let mut events = [EpollEvent::empty(); 256];
            let found = self.epoll.wait(&mut events, wait).unwrap_or(0);
            for event in &events[..found] {
                self.go_on(event.data() as usize, flags);
            }
            self.give_up();
        }
        self.found
    }

    fn open(&mut self, flags: &Flags) {
        let kind = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let counts = flags.measures.load(Relaxed);
        let fd = match socket(AddressFamily::Inet, SockType::Stream, kind, None) {
            // More are waiting than its host's share of the port allows.
            Err(Errno::EMFILE) => {
                self.found.failed += u64::from(counts);
                return;
            }
            fd => fd.expect("a socket"),
        };
        sockopt::TcpNoDelay.set(&fd, &true).expect("no delay");
        match connect(fd.as_raw_fd(), &SockaddrStorage::from(self.to)) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(_) => {
                self.found.failed += u64::from(counts);
                return;
            }
        }
        self.next += 1;
        let (number, start) = (self.next, Instant::now());
        let n = self.slots.put(Transfer {
            fd,
            start,
            number,
            requested: false,
            left: self.bytes,
            counts,
        });
        let fd = &self.slots.all[n].as_ref().expect("just put").fd;
        self.epoll
            .add(fd, EpollEvent::new(BOTH, n as u64))
            .expect("epoll");
        self.ages.push_back((number, n, start));
    }

    /// Continues a transfer.
    fn go_on(&mut self, n: usize, flags: &Flags) {
        let Some(transfer) = self.slots.all.get_mut(n).and_then(Option::as_mut) else {
            return;
        };
        let fd = transfer.fd.as_raw_fd();
        if !transfer.requested {
            match send(fd, &[0x5a; REQUEST], MsgFlags::MSG_NOSIGNAL) {
                Ok(_) => transfer.requested = true,
                Err(Errno::EAGAIN | Errno::ENOTCONN) => return,
                Err(_) => return self.fail(n),
            }
        }
        let mut buffer = [0; 16 << 10];
        loop {
            match recv(fd, &mut buffer, MsgFlags::empty()) {
                Ok(len @ 1..) => {
                    flags.bytes.fetch_add(len as u64, Relaxed);
                    transfer.left = transfer.left.saturating_sub(len);
                    if transfer.counts {
                        self.found.bytes += len as u64;
                    }
                    if transfer.left > 0 {
                        continue;
                    }
                    if transfer.counts {
                        let us = transfer.start.elapsed().as_micros() as u64;
                        self.found.times.saturating_record(us);
                    }
                    if matches!(self.clients, Clients::New(_)) || flags.closing.load(Relaxed) {
                        return self.slots.free(n);
                    }
                    // The next one on the same connection.
                    self.next += 1;
                    transfer.number = self.next;
                    transfer.start = Instant::now();
                    transfer.left = self.bytes;
                    transfer.counts = flags.measures.load(Relaxed);
                    self.ages.push_back((self.next, n, transfer.start));
                    if send(fd, &[0x5a; REQUEST], MsgFlags::MSG_NOSIGNAL).is_err() {
                        return self.fail(n);
                    }
                }
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                _ => return self.fail(n),
            }
        }
    }

    fn fail(&mut self, n: usize) {
        if let Some(transfer) = &self.slots.all[n] {
            self.found.failed += u64::from(transfer.counts);
        }
        self.slots.free(n);
    }

    /// Counts transfers that take too long as failed.
    fn give_up(&mut self) {
        while let Some(&(number, n, start)) = self.ages.front() {
            if start.elapsed() < PATIENCE {
                let over = self.slots.all[n]
                    .as_ref()
                    .is_none_or(|t| t.number != number);
                if !over {
                    return;
                }
            } else if self.slots.all[n]
                .as_ref()
                .is_some_and(|t| t.number == number)
            {
                self.fail(n);
            }
            self.ages.pop_front();
        }
    }
}
