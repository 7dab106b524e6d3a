//! Named sets and verdict maps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Protocol;
use super::abi::set as types;
use super::encode::port_word;
use crate::netlink::message::{self, ip_bytes};

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// Goes on to the next base chain.
    Accept,
    /// Is gone.
    Drop,
    /// Back to the calling chain; the default in a base chain.
    Return,
    /// Through another chain and back.
    Jump(String),
    /// Through another chain and not back.
    Goto(String),
}

/// What a service map goes by: destination address, protocol and destination port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServiceKey {
    /// Destination address; of the family of the map.
    pub ip: IpAddr,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Destination port.
    pub port: u16,
}

/// A TCP connection of this namespace, by its two ends; both of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Connection {
    /// The end that is here.
    pub local: SocketAddr,
    /// The other one.
    pub remote: SocketAddr,
}

/// A named set or map of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub(super) name: String,
    pub(super) content: SetContent,
}

/// The kinds of sets in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SetContent {
    Ipv4(BTreeSet<Ipv4Addr>),
    Ipv6(BTreeSet<Ipv6Addr>),
    Services { ipv6: bool, verdicts: BTreeMap<ServiceKey, Verdict> },
    Connections { ipv6: bool, connections: BTreeSet<Connection> },
}

impl Set {
    /// A set of IPv4 addresses, for `Rule::destination_in` and `Rule::source_in`.
    pub fn ipv4(name: &str, addresses: impl IntoIterator<Item = Ipv4Addr>) -> Self {
        Self { name: name.to_owned(), content: SetContent::Ipv4(addresses.into_iter().collect()) }
    }

    /// A set of IPv6 addresses.
    pub fn ipv6(name: &str, addresses: impl IntoIterator<Item = Ipv6Addr>) -> Self {
        Self { name: name.to_owned(), content: SetContent::Ipv6(addresses.into_iter().collect()) }
    }

    /// A set of connections, for `Rule::received_for` and `Rule::sent_from`. Those of the other
    /// family are left out.
    pub fn connections(
        name: &str,
        ipv6: bool,
        connections: impl IntoIterator<Item = Connection>,
    ) -> Self {
        let of_family = |it: &Connection| it.local.is_ipv6() == ipv6 && it.remote.is_ipv6() == ipv6;
        let connections = connections.into_iter().filter(of_family).collect();
        Self { name: name.to_owned(), content: SetContent::Connections { ipv6, connections } }
    }

    /// A map from service address to verdict, for `Rule::service_verdict`. Keys of the other family
    /// are left out.
    pub fn services(
        name: &str,
        ipv6: bool,
        verdicts: impl IntoIterator<Item = (ServiceKey, Verdict)>,
    ) -> Self {
        let verdicts = verdicts.into_iter().filter(|(key, _)| key.ip.is_ipv6() == ipv6).collect();
        Self { name: name.to_owned(), content: SetContent::Services { ipv6, verdicts } }
    }
}

/// An element as the kernel keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) key: Vec<u8>,
    pub(super) data: Option<ElementData>,
}

/// What a map has for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ElementData {
    Value(Vec<u8>),
    Verdict(Verdict),
}

impl Element {
    /// A member of a set of addresses.
    pub(super) fn address(ip: IpAddr) -> Self {
        Self { key: ip_bytes(ip), data: None }
    }

    /// A member of a set of connections.
    pub(super) fn connection(connection: Connection) -> Self {
        Self { key: connection.bytes(), data: None }
    }
}

impl SetContent {
    /// Type and size of the keys.
    pub(super) fn key_type(&self) -> (u32, u32) {
        let service = |address| {
            (((address << types::TYPE_BITS) | types::PROTOCOL) << types::TYPE_BITS) | types::SERVICE
        };
        let ends = |address| {
            let end = (address << types::TYPE_BITS) | types::SERVICE;
            (end << (2 * types::TYPE_BITS)) | end
        };
        match self {
            Self::Connections { ipv6: false, .. } => (ends(types::IPV4), 16),
            Self::Connections { ipv6: true, .. } => (ends(types::IPV6), 40),
            Self::Ipv4(_) => (types::IPV4, 4),
            Self::Ipv6(_) => (types::IPV6, 16),
            Self::Services { ipv6: false, .. } => (service(types::IPV4), 12),
            Self::Services { ipv6: true, .. } => (service(types::IPV6), 24),
        }
    }

    /// All elements.
    pub(super) fn elements(&self) -> Vec<Element> {
        match self {
            Self::Ipv4(addresses) => {
                addresses.iter().map(|ip| Element::address((*ip).into())).collect()
            }
            Self::Ipv6(addresses) => {
                addresses.iter().map(|ip| Element::address((*ip).into())).collect()
            }
            Self::Connections { connections, .. } => {
                connections.iter().copied().map(Element::connection).collect()
            }
            Self::Services { verdicts, .. } => verdicts
                .iter()
                .map(|(key, verdict)| Element {
                    key: key.bytes(),
                    data: Some(ElementData::Verdict(verdict.clone())),
                })
                .collect(),
        }
    }
}

impl Connection {
    /// Each part begins a register word of its own.
    fn bytes(&self) -> Vec<u8> {
        let end = |end: SocketAddr| {
            let mut bytes = ip_bytes(end.ip());
            bytes.extend(port_word(end.port()));
            bytes
        };
        [end(self.local), end(self.remote)].concat()
    }

    /// From the key of an element; nothing for one of another length.
    pub(super) fn read(key: &[u8]) -> Option<Self> {
        let end = |bytes: &[u8]| {
            let (ip, port) = bytes.split_at(bytes.len().checked_sub(4)?);
            let port = u16::from_be_bytes(*port.first_chunk()?);
            Some(SocketAddr::new(message::read_ip(ip)?, port))
        };
        let (local, remote) = key.split_at(key.len() / 2);
        Some(Self { local: end(local)?, remote: end(remote)? })
    }
}

impl ServiceKey {
    /// Each part begins a register word of its own.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = ip_bytes(self.ip);
        bytes.extend([self.protocol.number(), 0, 0, 0]);
        bytes.extend(port_word(self.port));
        bytes
    }
}
