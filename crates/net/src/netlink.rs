//! Links, addresses, routes, rules and neighbours of one network namespace, over rtnetlink.
//!
//! A [`RouteSocket`] belongs to the namespace it was opened in, whatever thread uses it later.
//! Calls are synchronous and short; each takes the kernel microseconds. Every `ensure_*` and
//! `delete_*` is idempotent, so a caller that restarts half-way simply does it all again. Nothing
//! here touches an object that the caller did not name.

pub(crate) mod message;
pub(crate) mod socket;

mod address;
mod link;
mod neighbour;
mod route;
mod rule;
mod watch;

use std::io;

pub use address::Address;
pub use link::{Link, LinkKind};
pub use neighbour::Neighbour;
pub use route::{MAIN_TABLE, Route, RouteKind};
pub use rule::Rule;
pub use watch::LinkWatch;

use crate::namespace::NetNs;
use socket::NetlinkSocket;

/// Why the kernel's network configuration could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// No netlink socket.
    #[error("open a netlink socket")]
    Open(#[source] io::Error),
    /// The kernel refused; without `NET_ADMIN` in the namespace's user namespace it refuses
    /// everything.
    #[error("{operation}")]
    Refused {
        /// What was asked for.
        operation: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The kernel's answer does not have the form its documentation promises.
    #[error("{operation}: unexpected answer of the kernel: {reason}")]
    Malformed {
        /// What was asked for.
        operation: String,
        /// What is wrong with the answer.
        reason: &'static str,
    },
    /// There is no such interface in this namespace.
    #[error("{operation}: there is no interface {name:?} in this network namespace")]
    NoSuchLink {
        /// What was asked for.
        operation: &'static str,
        /// The interface.
        name: String,
    },
    /// An interface of that name exists and is of another kind.
    #[error("interface {name:?} exists and is not a {wanted}; delete it or choose another name")]
    OtherKind {
        /// The interface.
        name: String,
        /// What it should be.
        wanted: LinkKind,
    },
    /// The rule says something that nftables cannot do.
    #[error("nftables rule {comment:?}: {reason}")]
    Unusable {
        /// The comment of the rule.
        comment: String,
        /// What is wrong with it.
        reason: &'static str,
    },
}

impl NetlinkError {
    /// Whether this kernel cannot do it, now or later.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno(), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
    }

    /// Whether something that was named is not there: a table, a device, a kind of chain.
    pub fn is_not_found(&self) -> bool {
        matches!(self.errno(), Some(libc::ENOENT | libc::ENODEV))
    }

    /// The error number of the kernel, if it was the kernel that refused.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } | Self::Open(source) => source.raw_os_error(),
            Self::Malformed { .. }
            | Self::NoSuchLink { .. }
            | Self::OtherKind { .. }
            | Self::Unusable { .. } => None,
        }
    }
}

/// A connection to the routing part of the kernel, for the namespace it was opened in.
#[derive(Debug)]
pub struct RouteSocket {
    netlink: NetlinkSocket,
}

impl RouteSocket {
    /// For the calling thread's namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { netlink: NetlinkSocket::open(libc::NETLINK_ROUTE)? })
    }

    /// For the given namespace.
    pub fn open_in(namespace: &NetNs) -> Result<Self, NetlinkError> {
        namespace.run(Self::open).map_err(NetlinkError::Open)?
    }
}
