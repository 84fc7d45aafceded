//! Netlink messages as bytes: a builder and a reader for the few kinds that this crate needs.
//!
//! netlink-packet-route does not support HTB, and the fast path of `htb` needs its own layout anyway, so messages are
//! written in one way instead of two.

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};

/// Bytes of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;
/// Flag bits of an attribute's kind: nested, network byte order.
const KIND_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000;

/// Rounds up to the alignment of netlink.
pub(super) const fn align(len: usize) -> usize {
    (len + 3) & !3
}

/// A message under construction.
#[derive(Debug, Clone)]
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
}

impl Message {
    /// A request of this kind that asks for an acknowledgement.
    pub(super) fn request(kind: u16, flags: u16) -> Self {
        Self::raw(kind, flags | NLM_F_REQUEST | NLM_F_ACK)
    }

    /// A message with exactly these flags.
    pub(super) fn raw(kind: u16, flags: u16) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]);
        Self { bytes }
    }

    /// Appends bytes of a fixed header.
    pub(super) fn put(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(align(self.bytes.len()), 0);
        self
    }

    /// `struct ifinfomsg`.
    pub(super) fn ifinfo(self, index: u32, flags: u32, change: u32) -> Self {
        self.put(&[0; 4])
            .put(&index.to_ne_bytes())
            .put(&flags.to_ne_bytes())
            .put(&change.to_ne_bytes())
    }

    /// `struct tcmsg`.
    pub(super) fn tc(self, index: u32, handle: u32, parent: u32) -> Self {
        self.put(&[0; 4])
            .put(&index.to_ne_bytes())
            .put(&handle.to_ne_bytes())
            .put(&parent.to_ne_bytes())
            .put(&[0; 4])
    }

    /// An attribute.
    pub(super) fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        self.bytes
            .extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.put(value)
    }

    pub(super) fn attr_u8(self, kind: u16, value: u8) -> Self {
        self.attr(kind, &[value])
    }

    pub(super) fn attr_u32(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    pub(super) fn attr_str(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    /// An attribute that holds attributes.
    pub(super) fn nest(self, kind: u16, inner: impl FnOnce(Self) -> Self) -> Self {
        self.nest_raw(kind | NESTED, inner)
    }

    /// The same without the flag, which old kernels do not expect in link and tc options.
    pub(super) fn nest_raw(mut self, kind: u16, inner: impl FnOnce(Self) -> Self) -> Self {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        let mut done = inner(self);
        let len = (done.bytes.len() - at) as u16;
        done.bytes[at..at + 2].copy_from_slice(&len.to_ne_bytes());
        done
    }

    /// Writes length and sequence number.
    pub(super) fn seal(&mut self, sequence: u32) {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
    }
}

/// A received message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received<'a> {
    pub(super) kind: u16,
    pub(super) flags: u16,
    pub(super) sequence: u32,
    pub(super) payload: &'a [u8],
}

/// The messages in one datagram; stops at the first that is truncated.
pub(super) fn messages(mut rest: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let len = u32_at(rest, 0)? as usize;
        let payload = rest.get(HEADER..len)?;
        let message = Received {
            kind: u16_at(rest, 4)?,
            flags: u16_at(rest, 6)?,
            sequence: u32_at(rest, 8)?,
            payload,
        };
        rest = rest.get(align(len)..).unwrap_or(&[]);
        Some(message)
    })
}

/// The attributes in `rest`: kind without flag bits, and value.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = u16_at(rest, 0)? as usize;
        let kind = u16_at(rest, 2)? & KIND_MASK;
        let value = rest.get(4..len)?;
        rest = rest.get(align(len)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// The attributes behind a fixed header of `header` bytes.
pub(super) fn attributes_after(
    payload: &[u8],
    header: usize,
) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(payload.get(header..).unwrap_or(&[]))
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// Text up to the first zero byte.
pub(super) fn text(bytes: &[u8]) -> String {
    let end = bytes
        .iter()
        .position(|&byte| byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let mut message = Message::request(20, 0)
            .put(&[1, 2, 3])
            .attr_u32(7, 9)
            .nest(8, |m| m.attr_str(1, "htb").attr_u8(2, 5));
        message.seal(42);
        let all: Vec<_> = messages(&message.bytes).collect();
        assert_eq!(all.len(), 1);
        assert_eq!((all[0].kind, all[0].sequence), (20, 42));
        let attrs: Vec<_> = attributes_after(all[0].payload, 4).collect();
        assert_eq!(attrs[0], (7, &9u32.to_ne_bytes()[..]));
        let inner: Vec<_> = attributes(attrs[1].1).collect();
        assert_eq!(text(inner[0].1), "htb");
        assert_eq!(inner[1], (2, &[5][..]));
    }

    #[test]
    fn cut_off_bytes_end_the_walk() {
        let mut message = Message::request(20, 0).attr_u32(7, 9);
        message.seal(1);
        for cut in 0..message.bytes.len() {
            assert_eq!(messages(&message.bytes[..cut]).count(), 0);
        }
        assert_eq!(attributes(&[8, 0, 1]).count(), 0);
        assert_eq!(attributes(&[0, 0, 0, 0]).count(), 0);
    }
}
