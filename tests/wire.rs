//! Packet sockets and taps: whole frames in and out of a device. The tests' only unsafe code.

use std::{
    io,
    os::{
        fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    time::{Duration, Instant},
};

use ecn_user::net::NetNs;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{setsockopt, sockopt},
};

/// A tap device: frames sent to it are read here, and frames written here arrive at it.
pub struct Tap(OwnedFd);

impl Tap {
    /// Creates it, with this Ethernet address or a random one; removed when dropped.
    pub fn make(ns: &NetNs, name: &str, mac: Option<[u8; 6]>) -> Self {
        let tap = ns.run(|| tap(name, mac));
        Self(tap.unwrap_or_else(|error| panic!("make the tap {name}: {error}")))
    }

    /// Carries all readable frames to another tap, and drops those for which it has no room.
    pub fn carry_to(&self, other: &Self) {
        let mut frame = [0; 2048];
        while let Ok(len @ 1..) = nix::unistd::read(&self.0, &mut frame) {
            // A device may be down while the lab is being built.
            let _ = nix::unistd::write(&other.0, &frame[..len]);
        }
    }

    /// Waits until one of two taps is readable.
    pub fn wait(&self, other: &Self, patience: Duration) {
        let mut fds = [&self.0, &other.0].map(|fd| PollFd::new(fd.as_fd(), PollFlags::POLLIN));
        let timeout = PollTimeout::try_from(patience).unwrap_or(PollTimeout::MAX);
        let _ = poll(&mut fds, timeout);
    }
}

fn tap(name: &str, mac: Option<[u8; 6]>) -> io::Result<OwnedFd> {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: integers and addresses, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: reads and writes the request, which outlives the call.
    Errno::result(unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    if let Some(mac) = mac {
        // SAFETY: as above.
        let mut address: libc::sockaddr = unsafe { std::mem::zeroed() };
        address.sa_family = libc::ARPHRD_ETHER;
        for (to, from) in address.sa_data.iter_mut().zip(mac) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_hwaddr = address;
        // SAFETY: reads the request, which outlives the call.
        let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::SIOCSIFHWADDR, &raw const request) };
        Errno::result(set)?;
    }
    Ok(file.into())
}

/// A packet socket on one device.
pub struct Wire(OwnedFd);

impl Wire {
    /// Sends, and receives every frame that arrives at a device, before programs see it.
    pub fn open(ns: &NetNs, ifindex: u32) -> Self {
        Self(ns.run(|| packet_socket(ifindex)).expect("a packet socket"))
    }

    /// Sends a frame; blocks while too many of this socket's frames are queued.
    pub fn send(&self, frame: &[u8]) {
        loop {
            match nix::unistd::write(&self.0, frame) {
                Ok(sent) => return assert_eq!(sent, frame.len()),
                // A full queue: dropped, and counted there.
                Err(Errno::ENOBUFS) => return,
                Err(Errno::EINTR) => {}
                Err(errno) => panic!("send a frame: {errno}"),
            }
        }
    }

    /// Limits its queued frames, so that queues drop none of them.
    pub fn send_slowly(self) -> Self {
        setsockopt(&self.0, sockopt::SndBuf, &8192).expect("send buffer");
        self
    }

    /// Allows so many queued frames that sending never blocks.
    pub fn never_waits(self) -> Self {
        setsockopt(&self.0, sockopt::SndBufForce, &(256 << 20)).expect("send buffer");
        self
    }

    /// From now on every sent frame begins with a `virtio_net_hdr`: packets that the device has to segment, as guests send
    /// them.
    pub fn with_offload(self) -> Self {
        const PACKET_VNET_HDR: libc::c_int = 15;
        option(&self.0, PACKET_VNET_HDR, 1).expect("offload");
        self
    }

    /// The next frame that arrives.
    pub fn next(&self, patience: Duration) -> Option<Vec<u8>> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(Errno::EINTR) => continue,
                Err(errno) => panic!("poll: {errno}"),
            }
            match receive(&self.0) {
                Ok(Some(frame)) => return Some(frame),
                Ok(None) => {}
                Err(error) => panic!("receive a frame: {error}"),
            }
        }
    }

    /// All frames until none has arrived for this time.
    pub fn all(&self, quiet: Duration) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.next(quiet)).collect()
    }
}

fn option(fd: &OwnedFd, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: an open descriptor, and an integer of the length that is given.
    let ret = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if ret == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn packet_socket(ifindex: u32) -> io::Result<OwnedFd> {
    let all = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: takes integers; a socket of protocol 0 receives nothing until it is bound.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
    option(&fd, libc::PACKET_AUXDATA, 1)?;
    option(&fd, PACKET_IGNORE_OUTGOING, 1)?;
    setsockopt(&fd, sockopt::RcvBufForce, &(32 << 20))?;
    // SAFETY: plain data for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = ifindex as i32;
    // SAFETY: the address has the given length and is of the socket's family.
    let ret = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    if ret == 0 {
        Ok(fd)
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Receives a frame, with the VLAN tag that the kernel stripped inserted again.
fn receive(fd: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let mut frame = vec![0u8; 70_000];
    let mut control = [0u64; 16];
    let mut part = libc::iovec {
        iov_base: frame.as_mut_ptr().cast(),
        iov_len: frame.len(),
    };
    // SAFETY: plain data for which zeros are valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: all buffers outlive the call and have the given lengths.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    if len < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN) => Ok(None),
            _ => Err(error),
        };
    }
    frame.truncate(len as usize);
    // SAFETY: the kernel filled the control buffer, which outlives the walk.
    let tag = unsafe {
        let mut tag = None;
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            let (level, kind) = ((*header).cmsg_level, (*header).cmsg_type);
            if level == libc::SOL_PACKET && kind == libc::PACKET_AUXDATA {
                let data = libc::CMSG_DATA(header).cast::<libc::tpacket_auxdata>();
                let data = data.read_unaligned();
                if data.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                    tag = Some((data.tp_vlan_tpid, data.tp_vlan_tci));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        tag
    };
    if let Some((ethertype, tci)) = tag {
        frame = crate::frames::tagged(&frame, ethertype, tci);
    }
    Ok(Some(frame))
}
