//! A TCP connection as the kernel lists it.

use crate::nftables::Connection;

/// Size of `inet_diag_sockid`.
pub(super) const ID_BYTES: usize = 48;

/// The kernel's numbers of the states in which bytes may still come: all but listening, closed and
/// `TIME_WAIT`.
pub(crate) const OPEN_STATES: [u8; 8] = [1, 2, 3, 4, 5, 8, 9, 11];

/// A TCP connection of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpConnection {
    /// Its ends; IPv4 in an IPv6 socket is IPv4.
    pub ends: Connection,
    /// The socket's mark; 0 also where the kernel does not say.
    pub mark: u32,
    /// How the kernel knows it, with its family.
    pub(super) id: Option<(u8, [u8; ID_BYTES])>,
}

impl TcpConnection {
    /// One that was listed elsewhere, and that [`destroy`](super::destroy) cannot end.
    pub fn listed(ends: Connection, mark: u32) -> Self {
        Self { ends, mark, id: None }
    }
}
