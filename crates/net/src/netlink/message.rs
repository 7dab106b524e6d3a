//! The bytes of netlink messages: headers and attributes, written and read.
//!
//! Shared by all netlink code here (routing, nftables, connection tracking). Reading never panics:
//! a truncated attribute counts as absent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Size of `nlmsghdr`.
pub(crate) const HEADER_BYTES: usize = 16;
const ALIGNMENT: usize = 4;
const ATTRIBUTE_HEADER_BYTES: usize = 4;

/// The attribute contains attributes.
const NESTED: u16 = libc::NLA_F_NESTED as u16;
/// Bits of an attribute's kind that say how to read it, not what it is.
const KIND_FLAGS: u16 = NESTED | libc::NLA_F_NET_BYTEORDER as u16;

/// One message to the kernel, built front to back.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// A message of this kind; `NLM_F_REQUEST` is always set.
    pub(crate) fn new(kind: u16, flags: i32) -> Self {
        let flags = (flags | libc::NLM_F_REQUEST) as u16;
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        Self { bytes }
    }

    /// The fixed part that follows the header for this kind of message.
    pub(crate) fn body(mut self, body: &[u8]) -> Self {
        self.pad_after(body);
        self
    }

    /// Adds flags to the header.
    pub(crate) fn add_flags(&mut self, flags: i32) {
        let flags = self.flags() | flags as u16;
        self.bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
    }

    /// The header's flags.
    pub(crate) fn flags(&self) -> u16 {
        read_u16(&self.bytes[6..8])
    }

    /// The header's kind.
    pub(crate) fn kind(&self) -> u16 {
        read_u16(&self.bytes[4..6])
    }

    /// What follows the header.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// The message as it goes over the socket.
    pub(crate) fn finish(mut self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.bytes.len()).expect("a request is far below 4 GiB");
        self.bytes[0..4].copy_from_slice(&length.to_ne_bytes());
        self.bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        self.bytes
    }

    /// Appends an attribute.
    pub(crate) fn attribute(&mut self, kind: u16, payload: &[u8]) {
        let length = u16::try_from(ATTRIBUTE_HEADER_BYTES + payload.len());
        let length = length.expect("callers split what exceeds an attribute");
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.pad_after(payload);
    }

    /// Appends a number in the byte order of this machine.
    pub(crate) fn native_u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Appends a number in network byte order.
    pub(crate) fn network_u32(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_be_bytes());
    }

    /// Appends text.
    pub(crate) fn text(&mut self, kind: u16, text: &str) {
        let mut payload = text.as_bytes().to_vec();
        payload.push(0);
        self.attribute(kind, &payload);
    }

    /// Appends an address.
    pub(crate) fn address(&mut self, kind: u16, ip: IpAddr) {
        self.attribute(kind, &ip_bytes(ip));
    }

    /// Appends an attribute that consists of what `content` appends.
    pub(crate) fn nested(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.attribute(kind | NESTED, &[]);
        content(self);
        let length = u16::try_from(self.bytes.len() - start);
        let length = length.expect("callers split what exceeds an attribute");
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
    }

    /// Appends bytes as they are, inside of [`Request::nested`] only.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.pad_after(bytes);
    }

    fn pad_after(&mut self, payload: &[u8]) {
        self.bytes.extend_from_slice(payload);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
    }
}

/// One message from the kernel.
#[derive(Debug)]
pub(crate) struct Answer {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    /// `nlmsg_flags`.
    pub(crate) flags: u16,
    /// `nlmsg_seq`.
    pub(crate) sequence: u32,
    /// What follows the header.
    pub(crate) payload: Vec<u8>,
}

/// Splits a datagram into its messages.
pub(crate) fn answers(mut datagram: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while datagram.len() >= HEADER_BYTES {
        let length = read_u32(&datagram[0..4]) as usize;
        if length < HEADER_BYTES || length > datagram.len() {
            break;
        }
        answers.push(Answer {
            kind: read_u16(&datagram[4..6]),
            flags: read_u16(&datagram[6..8]),
            sequence: read_u32(&datagram[8..12]),
            payload: datagram[HEADER_BYTES..length].to_vec(),
        });
        datagram = &datagram[length.next_multiple_of(ALIGNMENT).min(datagram.len())..];
    }
    answers
}

/// The attributes in `bytes`, kind without its flags, until the first that is cut short.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let header = bytes.get(..ATTRIBUTE_HEADER_BYTES)?;
        let length = usize::from(read_u16(&header[0..2]));
        let kind = read_u16(&header[2..4]) & !KIND_FLAGS;
        let payload = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        bytes = &bytes[length.next_multiple_of(ALIGNMENT).min(bytes.len())..];
        Some((kind, payload))
    })
}

/// The attributes that follow a fixed part of `skip` bytes.
pub(crate) fn attributes_after(bytes: &[u8], skip: usize) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(bytes.get(skip..).unwrap_or_default())
}

/// The first attribute of that kind.
pub(crate) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, payload)| payload)
}

/// A number in this machine's byte order; what is missing counts as zero.
pub(crate) fn read_u16(bytes: &[u8]) -> u16 {
    bytes.first_chunk().map_or(0, |bytes| u16::from_ne_bytes(*bytes))
}

/// A number in this machine's byte order; what is missing counts as zero.
pub(crate) fn read_u32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// A number in network byte order; what is missing counts as zero.
pub(crate) fn read_network_u32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// Text up to its terminating NUL.
pub(crate) fn read_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// An address by its length.
pub(crate) fn read_ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
        16 => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// An address as the kernel wants it.
pub(crate) fn ip_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// `AF_INET` or `AF_INET6`.
pub(crate) fn family_of(ip: IpAddr) -> u8 {
    match ip {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_can_be_read() {
        let mut request = Request::new(7, libc::NLM_F_ACK).body(&[1, 2, 3]);
        request.text(1, "lo");
        request.nested(2, |inner| {
            inner.native_u32(3, 9);
            inner.address(4, "fd00::1".parse().unwrap());
        });
        request.network_u32(5, 258);
        let bytes = request.finish(42);

        let [answer] = &answers(&bytes)[..] else { panic!("one message") };
        assert_eq!((answer.kind, answer.sequence), (7, 42));
        assert_eq!(&answer.payload[..4], &[1, 2, 3, 0]);
        let found: Vec<_> = attributes_after(&answer.payload, 4).collect();
        assert_eq!(found.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [1, 2, 5]);
        assert_eq!(read_text(found[0].1), "lo");
        assert_eq!(read_u32(find(found[1].1, 3).unwrap()), 9);
        assert_eq!(read_ip(find(found[1].1, 4).unwrap()), Some("fd00::1".parse().unwrap()));
        assert_eq!(found[2].1, [0, 0, 1, 2]);
    }

    #[test]
    fn what_is_cut_short_is_not_there() {
        let mut request = Request::new(7, 0);
        request.native_u32(1, 1);
        request.native_u32(2, 2);
        let bytes = request.finish(1);
        for end in 0..bytes.len() {
            assert!(answers(&bytes[..end]).is_empty());
            assert!(attributes_after(&bytes[..end], HEADER_BYTES).count() < 2);
        }
        let absurd = [0_u8, 0, 1, 0, 9, 9];
        assert_eq!(attributes(&absurd).count(), 0);
    }
}
