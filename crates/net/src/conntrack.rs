//! Connection tracking entries: what became of a translated packet, and forgetting it.
//!
//! Entries outlive the rules that made them: a UDP exchange that was redirected stays redirected until its entry is
//! gone. Un-enrolment therefore deletes the entries of captured DNS.

use std::net::SocketAddr;

use crate::namespace::NetNs;
use crate::netlink::NetlinkError;
use crate::netlink::socket::NetlinkSocket;
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

    /// How the client sent the packets whose answers look like `reply` (from the redirected socket to the client).
    pub fn original_of_reply(
        &mut self,
        _reply: &Tuple,
        _zone: u16,
    ) -> Result<Option<Tuple>, NetlinkError> {
        let _ = &self.netlink;
        unimplemented!()
    }

    /// Every TCP and UDP entry.
    pub fn entries(&mut self) -> Result<Vec<Entry>, NetlinkError> {
        unimplemented!()
    }

    /// Deletes the entries that `wanted` picks; returns how many.
    pub fn delete_matching(
        &mut self,
        _wanted: impl Fn(&Entry) -> bool,
    ) -> Result<usize, NetlinkError> {
        unimplemented!()
    }
}
