//! TCP between two hosts.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
};

use ecn_tests::lab::Host;

/// Moves so many bytes; returns how many were sent and received.
pub fn transfer(from: &Host, to: &Host, bytes: usize) -> (usize, usize) {
    let at = SocketAddr::new(to.v4.into(), 5001);
    let listener = to.ns.run(|| TcpListener::bind(at)).expect("listen");
    let receiving = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        let mut received = 0;
        let mut buffer = vec![0; 1 << 16];
        loop {
            match stream.read(&mut buffer).expect("receive") {
                0 => return received,
                len => received += len,
            }
        }
    });
    let mut stream = from.ns.run(|| TcpStream::connect(at)).expect("connect");
    // Whole segments: else it is up to the moment how many a transfer takes.
    let chunk = vec![0x5a; 45 * 1448];
    let mut sent = 0;
    while sent < bytes {
        let len = chunk.len().min(bytes - sent);
        stream.write_all(&chunk[..len]).expect("send");
        sent += len;
    }
    drop(stream);
    (sent, receiving.join().expect("the receiver"))
}
