//! Named sets and verdict maps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Protocol;

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

/// A named set or map of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    pub(crate) name: String,
    pub(crate) content: SetContent,
}

/// The kinds of sets in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SetContent {
    Ipv4(BTreeSet<Ipv4Addr>),
    Ipv6(BTreeSet<Ipv6Addr>),
    Services { ipv6: bool, verdicts: BTreeMap<ServiceKey, Verdict> },
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

    /// A map from service address to verdict, for `Rule::service_verdict`. Keys of the other family are left out.
    pub fn services(
        name: &str,
        ipv6: bool,
        verdicts: impl IntoIterator<Item = (ServiceKey, Verdict)>,
    ) -> Self {
        let verdicts = verdicts.into_iter().filter(|(key, _)| key.ip.is_ipv6() == ipv6).collect();
        Self { name: name.to_owned(), content: SetContent::Services { ipv6, verdicts } }
    }
}
