//! Reads a capture back: TCP streams reassembled from their segments.
//!
//! Retransmissions and overlaps count once; order on the wire does not matter. Missing bytes are
//! never made up: a stream with a hole reports it.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use super::pcap;
use super::stream::Stream;
use super::tls_records::TlsSummary;

/// Largest file that is read.
const MAX_FILE_BYTES: u64 = 2 << 30;

const ETHERNET_BYTES: usize = 14;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const IPV6_HEADER_BYTES: usize = 40;
const TCP: u8 = 6;
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// A capture read back.
#[derive(Debug, Default)]
pub struct Trace {
    streams: Vec<Stream>,
    /// Frames without TCP, as they are.
    others: Vec<Vec<u8>>,
}

impl Trace {
    /// Reads a classic pcap file of Ethernet frames.
    pub fn read(path: &Path) -> io::Result<Self> {
        if std::fs::metadata(path)?.len() > MAX_FILE_BYTES {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "capture file over 2 GiB"));
        }
        let file = std::fs::read(path)?;
        let frames = pcap::frames(&file)
            .map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))?;
        Ok(Self::from_frames(&frames))
    }

    fn from_frames(frames: &[&[u8]]) -> Self {
        let mut assembly = Assembly::default();
        let mut others = Vec::new();
        for frame in frames {
            match parse_frame(frame) {
                Some(segment) => assembly.add(&segment),
                None => others.push(frame.to_vec()),
            }
        }
        let streams = assembly.streams.into_iter().map(Assembling::finish).collect();
        Self { streams, others }
    }

    /// Every direction of every TCP connection, in the order of its first frame.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// How often `marker` occurs in TCP payload, across segment borders, or in any other frame.
    pub fn count_marker(&self, marker: &[u8]) -> usize {
        let streams = self.streams.iter().map(|stream| stream.payload.as_slice());
        let others = self.others.iter().map(Vec::as_slice);
        streams.chain(others).map(|bytes| count_occurrences(bytes, marker)).sum()
    }

    /// Bytes of TCP payload, both directions, by the port that was connected to.
    pub fn payload_by_port(&self) -> BTreeMap<u16, u64> {
        let mut bytes = BTreeMap::new();
        for stream in &self.streams {
            *bytes.entry(stream.server_port).or_default() += stream.payload.len() as u64;
        }
        bytes
    }

    /// What the connections to `port` consist of.
    pub fn tls_summary(&self, port: u16) -> TlsSummary {
        let mut summary = TlsSummary::default();
        let of_port = self.streams.iter().filter(|stream| stream.server_port == port);
        of_port.filter(|stream| !stream.payload.is_empty()).for_each(|stream| summary.add(stream));
        summary
    }
}

fn count_occurrences(bytes: &[u8], marker: &[u8]) -> usize {
    let Some((first, rest)) = marker.split_first() else { return 0 };
    let starts = bytes.iter().enumerate().filter(|(_, byte)| *byte == first);
    starts.filter(|(at, _)| bytes[at + 1..].starts_with(rest)).count()
}

/// One TCP segment.
#[derive(Debug)]
struct Segment<'a> {
    source: SocketAddr,
    destination: SocketAddr,
    sequence: u32,
    flags: u8,
    payload: &'a [u8],
}

/// `None` for anything but TCP.
fn parse_frame(frame: &[u8]) -> Option<Segment<'_>> {
    let packet = frame.get(ETHERNET_BYTES..)?;
    let (source, destination, tcp): (IpAddr, IpAddr, &[u8]) = match read_u16(frame, 12)? {
        ETHERTYPE_IPV4 => {
            let header_bytes = usize::from(packet.first()? & 0x0f) * 4;
            let total = usize::from(read_u16(packet, 2)?);
            // Fragments have no header of their own; a total of 0 is a packet over 64 KiB.
            let fragment = read_u16(packet, 6)? & 0x3fff;
            if *packet.get(9)? != TCP || fragment != 0 {
                return None;
            }
            let end = if total == 0 { packet.len() } else { total };
            let [source, destination] = [12, 16].map(|at| packet.get(at..)?.first_chunk::<4>());
            let (source, destination) = (Ipv4Addr::from(*source?), Ipv4Addr::from(*destination?));
            (source.into(), destination.into(), packet.get(header_bytes..end)?)
        }
        ETHERTYPE_IPV6 => {
            let length = usize::from(read_u16(packet, 4)?);
            if *packet.get(6)? != TCP {
                return None;
            }
            let end = if length == 0 { packet.len() } else { IPV6_HEADER_BYTES + length };
            let [source, destination] = [8, 24].map(|at| packet.get(at..)?.first_chunk::<16>());
            let (source, destination) = (Ipv6Addr::from(*source?), Ipv6Addr::from(*destination?));
            (source.into(), destination.into(), packet.get(IPV6_HEADER_BYTES..end)?)
        }
        _ => return None,
    };
    let header_bytes = usize::from(tcp.get(12)? >> 4) * 4;
    Some(Segment {
        source: SocketAddr::new(source, read_u16(tcp, 0)?),
        destination: SocketAddr::new(destination, read_u16(tcp, 2)?),
        sequence: u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?),
        flags: *tcp.get(13)?,
        payload: tcp.get(header_bytes..)?,
    })
}

fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// All streams so far, and which one a pair of addresses currently means.
#[derive(Debug, Default)]
struct Assembly {
    streams: Vec<Assembling>,
    current: HashMap<(SocketAddr, SocketAddr), usize>,
}

impl Assembly {
    fn add(&mut self, segment: &Segment<'_>) {
        let key = (segment.source, segment.destination);
        let begins = segment.flags & SYN != 0;
        let known = self.current.get(&key).copied().filter(|index| {
            // The same addresses may be used again, for another connection.
            !begins || self.streams[*index].first == Some(segment.sequence.wrapping_add(1))
        });
        let index = known.unwrap_or_else(|| {
            self.streams.push(Assembling::new(segment));
            self.current.insert(key, self.streams.len() - 1);
            self.streams.len() - 1
        });
        self.streams[index].add(segment);
    }
}

/// A stream that may get more segments.
#[derive(Debug)]
struct Assembling {
    stream: Stream,
    /// Sequence number of the first byte, if the SYN was seen.
    first: Option<u32>,
    /// Sequence number of the next byte in order.
    next: u32,
    /// Segments beyond a hole, by position in the payload.
    waiting: BTreeMap<u64, Vec<u8>>,
}

impl Assembling {
    fn new(segment: &Segment<'_>) -> Self {
        let (source, destination) = (segment.source, segment.destination);
        let server_port = match (segment.flags & SYN != 0, segment.flags & ACK != 0) {
            (true, false) => destination.port(),
            (true, true) => source.port(),
            // By custom servers have the lower port.
            (false, _) => source.port().min(destination.port()),
        };
        let begins = segment.flags & SYN != 0;
        let next = if begins { segment.sequence.wrapping_add(1) } else { segment.sequence };
        let stream =
            Stream { source, destination, server_port, complete: begins, payload: Vec::new() };
        Self { stream, first: begins.then_some(next), next, waiting: BTreeMap::new() }
    }

    fn add(&mut self, segment: &Segment<'_>) {
        if segment.flags & SYN != 0 || segment.payload.is_empty() {
            return;
        }
        let ahead = segment.sequence.wrapping_sub(self.next).cast_signed();
        if ahead > 0 {
            let at = self.stream.payload.len() as u64 + u64::from(ahead.unsigned_abs());
            let known = self.waiting.entry(at).or_default();
            if known.len() < segment.payload.len() {
                *known = segment.payload.to_vec();
            }
            return;
        }
        let seen = ahead.unsigned_abs() as usize;
        self.append(segment.payload.get(seen..).unwrap_or_default());
        while let Some(entry) = self.waiting.first_entry() {
            let end = self.stream.payload.len() as u64;
            if *entry.key() > end {
                break;
            }
            let (at, payload) = entry.remove_entry();
            self.append(payload.get((end - at) as usize..).unwrap_or_default());
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        self.stream.payload.extend_from_slice(bytes);
        self.next = self.next.wrapping_add(bytes.len() as u32);
    }

    /// What waits beyond a hole is kept for the search, but the stream is no longer complete.
    fn finish(mut self) -> Stream {
        self.stream.complete &= self.waiting.is_empty();
        for payload in std::mem::take(&mut self.waiting).into_values() {
            self.append(&payload);
        }
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: &str = "10.0.0.1:40000";
    const SERVER: &str = "10.0.0.2:15008";

    fn segment<'a>(sequence: u32, flags: u8, payload: &'a [u8]) -> Segment<'a> {
        let (source, destination) = (CLIENT.parse().unwrap(), SERVER.parse().unwrap());
        Segment { source, destination, sequence, flags, payload }
    }

    fn assemble(segments: &[Segment<'_>]) -> Vec<Stream> {
        let mut assembly = Assembly::default();
        segments.iter().for_each(|segment| assembly.add(segment));
        assembly.streams.into_iter().map(Assembling::finish).collect()
    }

    fn check(segments: &[Segment<'_>], payload: &[u8], complete: bool) {
        let [stream] = &assemble(segments)[..] else { panic!("one stream") };
        assert_eq!((stream.payload.as_slice(), stream.complete), (payload, complete));
    }

    #[test]
    fn segments_are_put_in_order_and_repeated_bytes_count_once() {
        let start = u32::MAX - 2;
        let at = |offset: u32| start.wrapping_add(1).wrapping_add(offset);
        check(
            &[
                segment(start, SYN, b""),
                segment(at(3), ACK, b"def"),
                segment(at(8), ACK, b"i"),
                segment(at(0), ACK, b"abc"),
                segment(at(0), ACK, b"abcd"),
                segment(at(5), ACK, b"fgh"),
                segment(at(8), ACK, b"ij"),
            ],
            b"abcdefghij",
            true,
        );
    }

    #[test]
    fn a_hole_or_a_missing_start_shows() {
        check(
            &[segment(9, SYN, b""), segment(10, ACK, b"a"), segment(12, ACK, b"c")],
            b"ac",
            false,
        );
        check(&[segment(10, ACK, b"abc")], b"abc", false);
    }

    #[test]
    fn reused_addresses_are_another_stream() {
        let streams = assemble(&[
            segment(1, SYN, b""),
            segment(1, SYN, b""),
            segment(2, ACK, b"one"),
            segment(90, SYN, b""),
            segment(91, ACK, b"two"),
        ]);
        let payloads: Vec<&[u8]> = streams.iter().map(|stream| stream.payload.as_slice()).collect();
        assert_eq!(payloads, [b"one", b"two"]);
        assert!(streams.iter().all(|stream| stream.server_port == 15008));
    }

    #[test]
    fn markers_are_counted_anywhere() {
        assert_eq!(count_occurrences(b"xaaax", b"aa"), 2);
        assert_eq!(count_occurrences(b"ab", b"abc"), 0);
        assert_eq!(count_occurrences(b"ab", b""), 0);
    }

    #[test]
    fn malformed_frames_are_not_tcp() {
        let mut frame = vec![0; ETHERNET_BYTES];
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
        frame.extend([0x4f, 0, 0, 20, 0, 0, 0, 0, 64, TCP, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0]);
        for end in 0..frame.len() {
            assert!(parse_frame(&frame[..end]).is_none());
        }
    }
}
