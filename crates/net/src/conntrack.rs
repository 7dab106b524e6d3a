//! Connection tracking entries: reads how a packet was translated, and deletes entries.
//!
//! Entries outlive the rules that made them: a UDP exchange that was redirected stays redirected
//! until its entry is gone. Un-enrolment therefore deletes the entries of captured DNS.

use std::net::{IpAddr, SocketAddr};

use crate::namespace::NetNs;
use crate::netlink::NetlinkError;
use crate::netlink::message::{self, Request, find};
use crate::netlink::socket::{NetlinkSocket, deleted};
use crate::nftables::Protocol;

/// One way of a tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Sender.
    pub source: SocketAddr,
    /// Receiver.
    pub destination: SocketAddr,
}

/// A tracked connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As the first packet was sent.
    pub original: Tuple,
    /// As answers arrive here.
    pub reply: Tuple,
    /// The connection mark.
    pub mark: u32,
    /// The zone.
    pub zone: u16,
}

/// `NFNL_SUBSYS_CTNETLINK`.
const SUBSYSTEM: u16 = 1;
const GET: u16 = 1;
const DELETE: u16 = 2;
const GET_STATISTICS: u16 = 5;
/// Size of `nfgenmsg`.
const GENERIC_BYTES: usize = 4;
/// Entry attributes.
const ORIGINAL: u16 = 1;
const REPLY: u16 = 2;
const MARK: u16 = 8;
const ZONE: u16 = 18;
/// Attribute of the statistics: entries of the namespace.
const COUNT: u16 = 1;
/// Tuple attributes.
const ADDRESSES: u16 = 1;
const TRANSPORT: u16 = 2;
/// Address attributes.
const SOURCE_V4: u16 = 1;
const DESTINATION_V4: u16 = 2;
const SOURCE_V6: u16 = 3;
const DESTINATION_V6: u16 = 4;
/// Transport attributes.
const PROTOCOL: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

/// A connection to connection tracking, for the namespace it was opened in.
#[derive(Debug)]
pub struct Conntrack {
    netlink: NetlinkSocket,
}

impl Conntrack {
    /// For the calling thread's namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { netlink: NetlinkSocket::open(libc::NETLINK_NETFILTER)? })
    }

    /// For the given namespace.
    pub fn open_in(namespace: &NetNs) -> Result<Self, NetlinkError> {
        namespace.run(Self::open).map_err(NetlinkError::Open)?
    }

    /// How the client sent the packets whose answers look like `reply` (from the redirected socket
    /// to the client).
    pub fn original_of_reply(
        &mut self,
        reply: &Tuple,
        zone: u16,
    ) -> Result<Option<Tuple>, NetlinkError> {
        let mut request = request(GET, reply.source.ip());
        write_tuple(&mut request, REPLY, reply);
        request.attribute(ZONE, &zone.to_be_bytes());
        match self.netlink.request(request, "look up a tracked connection") {
            Ok(answers) => {
                let entry = answers.iter().find_map(|answer| read_entry(&answer.payload));
                Ok(entry.map(|entry| entry.original))
            }
            Err(error) if error.errno() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// How many entries the namespace has, of any protocol.
    pub fn count(&mut self) -> Result<u32, NetlinkError> {
        let kind = (SUBSYSTEM << 8) | GET_STATISTICS;
        let request = Request::new(kind, 0).body(&[0; GENERIC_BYTES]);
        let answers = self.netlink.request(request, "count tracked connections")?;
        let count = |payload: &[u8]| {
            find(payload.get(GENERIC_BYTES..)?, COUNT).map(message::read_network_u32)
        };
        Ok(answers.iter().find_map(|answer| count(&answer.payload)).unwrap_or(u32::MAX))
    }

    /// Every TCP and UDP entry.
    ///
    /// The kernel looks for them through the table of all namespaces, some 10 ms of processor time
    /// on a large computer, so that it is asked first whether there are any.
    pub fn entries(&mut self) -> Result<Vec<Entry>, NetlinkError> {
        if matches!(self.count(), Ok(0)) {
            return Ok(Vec::new());
        }
        let request = Request::new((SUBSYSTEM << 8) | GET, 0).body(&[0; GENERIC_BYTES]);
        let answers = self.netlink.dump(request, "list tracked connections")?;
        Ok(answers.iter().filter_map(|answer| read_entry(&answer.payload)).collect())
    }

    /// Deletes the entries that `wanted` picks; returns how many.
    pub fn delete_matching(
        &mut self,
        wanted: impl Fn(&Entry) -> bool,
    ) -> Result<usize, NetlinkError> {
        let entries = self.entries()?;
        self.delete(entries.iter().filter(|entry| wanted(entry)))
    }

    /// Deletes these entries; returns how many were still there.
    pub fn delete<'a>(
        &mut self,
        entries: impl IntoIterator<Item = &'a Entry>,
    ) -> Result<usize, NetlinkError> {
        let mut count = 0;
        for entry in entries {
            let mut request = request(DELETE, entry.original.source.ip());
            write_tuple(&mut request, ORIGINAL, &entry.original);
            request.attribute(ZONE, &entry.zone.to_be_bytes());
            let result = self.netlink.request(request, "delete a tracked connection");
            // It may have expired meanwhile.
            count += usize::from(deleted(result, &[libc::ENOENT])?);
        }
        Ok(count)
    }
}

fn request(kind: u16, ip: IpAddr) -> Request {
    let generic = [message::family_of(ip), 0, 0, 0];
    Request::new((SUBSYSTEM << 8) | kind, 0).body(&generic)
}

fn write_tuple(request: &mut Request, which: u16, tuple: &Tuple) {
    let kinds = match tuple.source {
        SocketAddr::V4(_) => [SOURCE_V4, DESTINATION_V4],
        SocketAddr::V6(_) => [SOURCE_V6, DESTINATION_V6],
    };
    request.nested(which, |content| {
        content.nested(ADDRESSES, |addresses| {
            addresses.address(kinds[0], tuple.source.ip());
            addresses.address(kinds[1], tuple.destination.ip());
        });
        content.nested(TRANSPORT, |transport| {
            transport.attribute(PROTOCOL, &[tuple.protocol.number()]);
            transport.attribute(SOURCE_PORT, &tuple.source.port().to_be_bytes());
            transport.attribute(DESTINATION_PORT, &tuple.destination.port().to_be_bytes());
        });
    });
}

/// `None` for what is neither TCP nor UDP.
fn read_entry(payload: &[u8]) -> Option<Entry> {
    let attributes = payload.get(GENERIC_BYTES..)?;
    let zone = find(attributes, ZONE).and_then(|bytes| bytes.first_chunk());
    Some(Entry {
        original: read_tuple(find(attributes, ORIGINAL)?)?,
        reply: read_tuple(find(attributes, REPLY)?)?,
        mark: find(attributes, MARK).map_or(0, message::read_network_u32),
        zone: zone.map_or(0, |bytes| u16::from_be_bytes(*bytes)),
    })
}

fn read_tuple(tuple: &[u8]) -> Option<Tuple> {
    let (addresses, transport) = (find(tuple, ADDRESSES)?, find(tuple, TRANSPORT)?);
    let ip = |v4, v6| message::read_ip(find(addresses, v4).or_else(|| find(addresses, v6))?);
    let port = |kind| find(transport, kind)?.first_chunk().map(|port| u16::from_be_bytes(*port));
    let number = *find(transport, PROTOCOL)?.first()?;
    let protocol =
        [Protocol::Tcp, Protocol::Udp].into_iter().find(|known| known.number() == number)?;
    Some(Tuple {
        protocol,
        source: SocketAddr::new(ip(SOURCE_V4, SOURCE_V6)?, port(SOURCE_PORT)?),
        destination: SocketAddr::new(ip(DESTINATION_V4, DESTINATION_V6)?, port(DESTINATION_PORT)?),
    })
}
