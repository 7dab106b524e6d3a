//! nftables without the `nft` program: tables as values, applied atomically over netlink.
//!
//! A [`Table`] describes everything Ambit wants in one table of its own; [`Nftables::replace`]
//! swaps it in as one transaction, so no packet ever meets half of it. Other programs' tables are
//! not touched, except for chains that the caller passes to [`Nftables::delete_chains`].
//!
//! ```no_run
//! use ambit_net::nftables::{Chain, Family, Hook, Nftables, Priority, Protocol, Rule, Table};
//!
//! let redirect = Rule::new("outbound")
//!     .protocol(Protocol::Tcp)
//!     .destination_not("127.0.0.1/32".parse().expect("literal"))
//!     .mark_not(0x539, 0xfff)
//!     .redirect(15001);
//! let table = Table::new(Family::Ip, "ambit")
//!     .chain(Chain::nat("output", Hook::Output, Priority::DESTINATION_NAT).rule(redirect));
//! Nftables::open()?.replace(&[table])?;
//! # Ok::<(), ambit_net::netlink::NetlinkError>(())
//! ```

mod abi;
mod code;
mod encode;
mod foreign;
#[cfg(test)]
mod frame_tests;
mod read;
mod rule;
mod set;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

pub use rule::{ConnectionState, Direction, Protocol, Rule, SocketOwner};
pub use set::{Connection, ServiceKey, Set, Verdict};
pub use table::{Chain, ChainKind, Family, Hook, Priority, Table};

use abi::{attribute, message};
use encode::{Described, Encoded};
use read::Listing;
use set::Element;

use crate::namespace::NetNs;
use crate::netlink::NetlinkError;
use crate::netlink::message::{Answer, Request};
use crate::netlink::socket::{NetlinkSocket, Subscription, deleted};

/// A rule as the kernel has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleInfo {
    /// The chain it is in.
    pub chain: String,
    /// The kernel's number for it.
    pub handle: u64,
    /// Its comment; rules of Ambit always have one.
    pub comment: String,
    /// Digest of what it does, equal for equal rules (counters and handles left out).
    pub digest: u64,
}

/// What a table should have and what it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    /// The table is not there at all.
    NoTable {
        /// Its name.
        table: String,
    },
    /// A chain is missing, or is attached to another hook, priority or policy.
    Chain {
        /// Its name.
        chain: String,
    },
    /// The rules of a chain are not those wanted, in the order wanted.
    Rules {
        /// The chain.
        chain: String,
        /// Position of the first that differs.
        position: usize,
        /// The comment of the wanted one, or of the one too many.
        comment: String,
    },
    /// The table has a chain that it should not have.
    ExtraChain {
        /// Its name.
        chain: String,
    },
    /// A set or map is missing or has other elements.
    Set {
        /// Its name.
        set: String,
    },
}

/// A connection to nftables, for the namespace it was opened in.
#[derive(Debug)]
pub struct Nftables {
    netlink: NetlinkSocket,
}

impl Nftables {
    /// For the calling thread's namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { netlink: NetlinkSocket::open(libc::NETLINK_NETFILTER)? })
    }

    /// For the given namespace.
    pub fn open_in(namespace: &NetNs) -> Result<Self, NetlinkError> {
        namespace.run(Self::open).map_err(NetlinkError::Open)?
    }

    /// Makes each table equal to the given one, all in one transaction: old content is removed.
    pub fn replace(&mut self, tables: &[Table]) -> Result<(), NetlinkError> {
        let mut encoded = Encoded::default();
        for table in tables {
            // Creating before deleting makes the deletion succeed whether or not it existed.
            for kind in [message::NEW_TABLE, message::DELETE_TABLE] {
                let request = encode::table_message(kind, table.family, &table.name);
                let describe = format!("replace nftables table {}", table.name);
                encoded.messages.push((request, describe));
            }
            encoded.add(table)?;
        }
        self.commit(encoded.messages)
    }

    /// Deletes a table with everything in it; `false` when there was none.
    pub fn delete(&mut self, family: Family, table: &str) -> Result<bool, NetlinkError> {
        let request = encode::table_message(message::DELETE_TABLE, family, table);
        let result = self.commit(vec![(request, format!("delete nftables table {table}"))]);
        deleted(result, &[libc::ENOENT])
    }

    /// Adds addresses to a set of addresses of an existing table; those already there stay.
    pub fn add_addresses(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        addresses: &[IpAddr],
    ) -> Result<(), NetlinkError> {
        let elements: Vec<Element> = addresses.iter().copied().map(Element::address).collect();
        self.change_elements(message::NEW_ELEMENTS, family, table, set, &elements)
    }

    /// Removes addresses from a set of addresses; those that are not there are fine.
    pub fn remove_addresses(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        addresses: &[IpAddr],
    ) -> Result<(), NetlinkError> {
        let elements = addresses.iter().copied().map(Element::address);
        self.remove_elements(family, table, set, elements)
    }

    /// The connections in a set of connections; nothing when there is no such table or set.
    pub fn connections(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Option<BTreeSet<Connection>>, NetlinkError> {
        let answers = match self.element_messages(family, table, set) {
            Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(None),
            answers => answers?,
        };
        let keys = answers.iter().flat_map(|answer| read::element_keys(&answer.payload));
        Ok(Some(keys.filter_map(|key| Connection::read(&key)).collect()))
    }

    /// Removes connections from a set of connections; those that are not there are fine.
    pub fn remove_connections(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        connections: &[Connection],
    ) -> Result<(), NetlinkError> {
        let elements = connections.iter().copied().map(Element::connection);
        self.remove_elements(family, table, set, elements)
    }

    fn remove_elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
        elements: impl Iterator<Item = Element>,
    ) -> Result<(), NetlinkError> {
        let answers = self.element_messages(family, table, set)?;
        let present: BTreeSet<Vec<u8>> =
            answers.iter().flat_map(|answer| read::element_keys(&answer.payload)).collect();
        let elements: Vec<Element> =
            elements.filter(|element| present.contains(&element.key)).collect();
        self.change_elements(message::DELETE_ELEMENTS, family, table, set, &elements)
    }

    /// The rules of a table, each chain's in the order of evaluation. Empty when there is no table.
    pub fn list_rules(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Vec<RuleInfo>, NetlinkError> {
        let operation = format!("list the rules of nftables table {table}");
        let mut request = encode::object(message::GET_RULE, 0, family);
        request.text(attribute::RULE_TABLE, table);
        let mut rules = Vec::new();
        for answer in self.netlink.dump(request, &operation)? {
            if read::read_table(&answer.payload).as_deref() != Some(table) {
                continue;
            }
            let mut maps = Vec::new();
            for name in read::anonymous_sets(&answer.payload) {
                let digest = self.set_digest(family, table, &name)?;
                maps.push((name, digest));
            }
            let map_digest = |wanted: &str, _: Option<u32>| {
                maps.iter().find(|(name, _)| name == wanted).map_or(0, |(_, digest)| *digest)
            };
            rules.extend(read::read_rule(&answer.payload, &map_digest));
        }
        Ok(rules)
    }

    /// Compares the kernel's table with the wanted one. Empty if nothing has changed it.
    pub fn verify(&mut self, table: &Table) -> Result<Vec<Difference>, NetlinkError> {
        let request = encode::table_message(message::GET_TABLE, table.family, &table.name);
        let operation = format!("look up nftables table {}", table.name);
        if !deleted(self.netlink.request(request, &operation), &[libc::ENOENT])? {
            return Ok(vec![Difference::NoTable { table: table.name.clone() }]);
        }
        let wanted = expected(table)?;
        let mut found =
            Listing { rules: self.list_rules(table.family, &table.name)?, ..Listing::default() };
        let request = encode::object(message::GET_CHAIN, 0, table.family);
        let operation = format!("list the chains of nftables table {}", table.name);
        for answer in self.netlink.dump(request, &operation)? {
            if read::read_table(&answer.payload).as_ref() == Some(&table.name) {
                found.chains.extend(read::read_chain(&answer.payload));
            }
        }
        for set in &table.sets {
            match self.set_digest(table.family, &table.name, &set.name) {
                Ok(digest) => {
                    found.sets.insert(set.name.clone(), digest);
                }
                Err(error) if error.errno() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read::differences(&wanted, &found))
    }

    fn change_elements(
        &mut self,
        kind: u16,
        family: Family,
        table: &str,
        set: &str,
        elements: &[Element],
    ) -> Result<(), NetlinkError> {
        let messages: Vec<Described> = elements
            .chunks(encode::ELEMENTS_PER_MESSAGE)
            .map(|chunk| {
                let request = encode::elements_message(kind, family, table, set, chunk, None);
                (request, format!("change nftables set {set} of table {table}"))
            })
            .collect();
        if messages.is_empty() { Ok(()) } else { self.commit(messages) }
    }

    fn element_messages(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Vec<Answer>, NetlinkError> {
        let mut request = encode::object(message::GET_ELEMENTS, 0, family);
        request.text(attribute::ELEMENTS_TABLE, table);
        request.text(attribute::ELEMENTS_SET, set);
        self.netlink.dump(request, &format!("list nftables set {set} of table {table}"))
    }

    fn set_digest(&mut self, family: Family, table: &str, set: &str) -> Result<u64, NetlinkError> {
        let answers = self.element_messages(family, table, set)?;
        let elements = answers.iter().flat_map(|answer| read::element_digests(&answer.payload));
        Ok(read::set_digest(elements.collect()))
    }

    fn commit(&mut self, messages: Vec<Described>) -> Result<(), NetlinkError> {
        let (mut requests, descriptions): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
        requests.insert(0, encode::batch(abi::BATCH_BEGIN));
        requests.push(encode::batch(abi::BATCH_END));
        self.netlink.transaction(requests, |position| {
            // The first request of the batch opens it.
            let described =
                position.and_then(|position| descriptions.get(position.checked_sub(1)?));
            described.cloned().unwrap_or_else(|| "change nftables".to_owned())
        })
    }
}

/// What [`Nftables::verify`] should find for a table.
fn expected(table: &Table) -> Result<Listing, NetlinkError> {
    let mut encoded = Encoded::default();
    encoded.add(table)?;
    let of_kind = |kind: u16| {
        let requests = encoded.messages.iter().map(|(request, _)| request);
        requests.filter(move |request| request.kind() & 0xff == kind).map(Request::payload)
    };
    let mut elements: BTreeMap<(String, Option<u32>), Vec<u64>> =
        table.sets.iter().map(|set| ((set.name.clone(), None), Vec::new())).collect();
    for payload in of_kind(message::NEW_ELEMENTS) {
        if let Some(set) = read::read_set(payload) {
            elements.entry(set).or_default().extend(read::element_digests(payload));
        }
    }
    let digests: BTreeMap<(String, Option<u32>), u64> =
        elements.into_iter().map(|(set, elements)| (set, read::set_digest(elements))).collect();
    let map_digest =
        |name: &str, id| digests.get(&(name.to_owned(), id)).copied().unwrap_or_default();
    Ok(Listing {
        chains: of_kind(message::NEW_CHAIN).filter_map(read::read_chain).collect(),
        rules: of_kind(message::NEW_RULE)
            .filter_map(|payload| read::read_rule(payload, &map_digest))
            .collect(),
        sets: digests
            .iter()
            .filter(|((_, id), _)| id.is_none())
            .map(|((name, _), digest)| (name.clone(), *digest))
            .collect(),
    })
}

/// Reports when any nftables content of a namespace changes, whichever process changes it.
#[derive(Debug)]
pub struct Watch(Subscription);

impl Watch {
    /// Subscribes for the given namespace. Needs a tokio runtime.
    pub fn open_in(namespace: &NetNs) -> Result<Self, NetlinkError> {
        let open = || Subscription::open(libc::NETLINK_NETFILTER, abi::CHANGES_GROUP);
        namespace.run(open).map_err(NetlinkError::Open)?.map(Self)
    }

    /// Waits for the next change (several at once count as one). Own changes are reported too.
    /// Cancel safe.
    pub async fn changed(&mut self) -> Result<(), NetlinkError> {
        self.0.changed("wait for changes of nftables").await
    }
}
