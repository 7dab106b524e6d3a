//! nftables without the `nft` program: tables as values, applied atomically over netlink.
//!
//! A [`Table`] describes everything Ambit wants in one table of its own; [`Nftables::replace`] swaps it in as one
//! transaction, so that no packet ever meets half of it. Tables of others are never read nor touched.
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

mod rule;
mod set;
mod table;

use std::net::IpAddr;

pub use rule::{ConnectionState, Direction, Protocol, Rule, SocketOwner};
pub use set::{ServiceKey, Set, Verdict};
pub use table::{Chain, ChainKind, Family, Hook, Priority, Table};

use crate::namespace::NetNs;
use crate::netlink::NetlinkError;
use crate::netlink::socket::NetlinkSocket;

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

    /// Makes each table exactly what is given, all in one transaction: old content goes, new content comes.
    pub fn replace(&mut self, _tables: &[Table]) -> Result<(), NetlinkError> {
        let _ = &self.netlink;
        unimplemented!()
    }

    /// Deletes a table with everything in it; `false` when there was none.
    pub fn delete(&mut self, _family: Family, _table: &str) -> Result<bool, NetlinkError> {
        unimplemented!()
    }

    /// Adds addresses to a set of addresses of an existing table; those already there stay.
    pub fn add_addresses(
        &mut self,
        _family: Family,
        _table: &str,
        _set: &str,
        _addresses: &[IpAddr],
    ) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Removes addresses from a set of addresses; those that are not there are fine.
    pub fn remove_addresses(
        &mut self,
        _family: Family,
        _table: &str,
        _set: &str,
        _addresses: &[IpAddr],
    ) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// The rules of a table, chain by chain in the order the kernel evaluates them. Empty when there is no table.
    pub fn list_rules(
        &mut self,
        _family: Family,
        _table: &str,
    ) -> Result<Vec<RuleInfo>, NetlinkError> {
        unimplemented!()
    }

    /// Compares the kernel's table with the wanted one. Empty: nobody has tampered with it.
    pub fn verify(&mut self, _table: &Table) -> Result<Vec<Difference>, NetlinkError> {
        unimplemented!()
    }
}

/// Tells when any nftables content of a namespace changes, whoever changes it.
#[derive(Debug)]
pub struct Watch {}

impl Watch {
    /// Subscribes for the given namespace. Needs a tokio runtime.
    pub fn open_in(_namespace: &NetNs) -> Result<Self, NetlinkError> {
        unimplemented!()
    }

    /// Waits for the next change (several at once count as one). Own changes are reported too. Cancel safe.
    pub async fn changed(&mut self) -> Result<(), NetlinkError> {
        unimplemented!()
    }
}
