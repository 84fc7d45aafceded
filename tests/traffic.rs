//! Senders and receivers that use ordinary sockets.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::{Host, Lab};

/// A UDP socket of a host on this port; sending waits for the queue instead of overflowing it.
pub fn udp(host: &Host, ipv6: bool, port: u16) -> UdpSocket {
    let at = SocketAddr::new(host.address(ipv6), port);
    let socket = host.ns.run(|| UdpSocket::bind(at)).expect("a UDP socket");
    setsockopt(&socket, sockopt::SndBuf, &8192).expect("send buffer");
    setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20)).expect("receive buffer");
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("timeout");
    socket
}

/// A raw IPv4 socket of this protocol.
pub fn raw(host: &Host, protocol: u8) -> Socket {
    let open = || {
        Socket::new(
            Domain::IPV4,
            Type::RAW,
            Some(Protocol::from(i32::from(protocol))),
        )
    };
    let socket = host.ns.run(open).expect("a raw socket");
    socket
        .set_read_timeout(Some(Duration::from_millis(200)))
        .expect("timeout");
    setsockopt(&socket, sockopt::SndBuf, &8192).expect("send buffer");
    socket
}

/// A thread that repeats a step until it is dropped.
pub struct Repeated {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Repeated {
    /// Starts it.
    pub fn start(mut step: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                step();
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    /// Starts it, with this number of steps per second.
    pub fn paced(per_s: u64, mut step: impl FnMut(u64) + Send + 'static) -> Self {
        let (start, mut done) = (Instant::now(), 0);
        Self::start(move || {
            let due = start.elapsed().as_nanos() * u128::from(per_s) / 1_000_000_000;
            while u128::from(done) < due {
                step(done);
                done += 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        })
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A thread that sends UDP as fast as it can, and one that counts what arrives.
pub struct Stream {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Stream {
    /// Starts both, with this payload length.
    pub fn start(from: &Host, to: &Host, port: u16, payload: usize) -> Self {
        let sender = udp(from, false, port);
        Self::between(sender, from, to, port, payload)
    }

    /// As [`Stream::start`], with a socket buffer of a hundred packets: the sender may be late without a gap.
    pub fn deep(from: &Host, to: &Host, port: u16, payload: usize) -> Self {
        let sender = udp(from, false, port);
        setsockopt(&sender, sockopt::SndBufForce, &(128 << 10)).expect("send buffer");
        Self::between(sender, from, to, port, payload)
    }

    /// As [`Stream::start`], but sends without waiting, so that queues overflow.
    pub fn flood(from: &Host, to: &Host, port: u16, payload: usize) -> Self {
        let sender = udp(from, false, port);
        setsockopt(&sender, sockopt::SndBufForce, &(4 << 20)).expect("send buffer");
        Self::between(sender, from, to, port, payload)
    }

    fn between(sender: UdpSocket, _from: &Host, to: &Host, port: u16, payload: usize) -> Self {
        let receiver = udp(to, false, port);
        let target = SocketAddr::new(to.address(false), port);
        let stop = Arc::new(AtomicBool::new(false));
        let (sent, received) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        // Bounded, so that a stop is noticed while the queue is closed.
        sender
            .set_write_timeout(Some(Duration::from_millis(200)))
            .expect("timeout");
        let sending = {
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            std::thread::spawn(move || {
                let payload = vec![0x5a; payload];
                while !stop.load(Ordering::Relaxed) {
                    match sender.send_to(&payload, target) {
                        Ok(_) => {
                            sent.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        // The device was removed, or its queue is full.
                        Err(_) => std::thread::sleep(Duration::from_micros(100)),
                    }
                }
            })
        };
        let receiving = {
            let (stop, received) = (Arc::clone(&stop), Arc::clone(&received));
            std::thread::spawn(move || {
                let mut buffer = vec![0; 70_000];
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(len) = receiver.recv(&mut buffer) {
                        received.fetch_add(len as u64, Ordering::Relaxed);
                    }
                }
            })
        };
        Self {
            stop,
            sent,
            received,
            threads: vec![sending, receiving],
        }
    }

    /// Packets handed to the kernel so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Payload bytes received so far.
    pub fn received_bytes(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Payload bytes per second, measured from now on for this time.
    pub fn rate(&self, over: Duration) -> f64 {
        let (start, before) = (Instant::now(), self.received_bytes());
        std::thread::sleep(over);
        (self.received_bytes() - before) as f64 / start.elapsed().as_secs_f64()
    }

    /// Stops both.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A TCP connection from the first host to the second that sends as fast as it can.
pub struct Tcp {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Tcp {
    /// Connects and starts to send.
    pub fn start(lab: &Lab, port: u16) -> Self {
        let at = SocketAddr::new(lab.hosts[1].v4.into(), port);
        let listen = || TcpListener::bind(at);
        let listener = lab.hosts[1].ns.run(listen).expect("listen");
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let counted: Arc<AtomicU64> = Arc::clone(&received);
        let receiving = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut buffer = vec![0; 64 << 10];
            while let Ok(len @ 1..) = stream.read(&mut buffer) {
                counted.fetch_add(len as u64, Ordering::Relaxed);
            }
        });
        let connect = || TcpStream::connect(at);
        let mut stream = lab.hosts[0].ns.run(connect).expect("connect");
        let stopped = Arc::clone(&stop);
        let sending = std::thread::spawn(move || {
            let data = vec![7; 64 << 10];
            while !stopped.load(Ordering::Relaxed) && stream.write_all(&data).is_ok() {}
        });
        Self {
            stop,
            received,
            threads: vec![sending, receiving],
        }
    }

    /// Payload bytes per second, measured from now on for this time.
    pub fn rate(&self, over: Duration) -> f64 {
        let bytes = || self.received.load(Ordering::Relaxed);
        let (start, before) = (Instant::now(), bytes());
        std::thread::sleep(over);
        (bytes() - before) as f64 / start.elapsed().as_secs_f64()
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Sets the congestion control of a TCP socket.
pub fn congestion_control(socket: &TcpStream, name: &str) -> nix::Result<()> {
    setsockopt(socket, sockopt::TcpCongestion, &name.into())
}
