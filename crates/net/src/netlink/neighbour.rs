//! Neighbours: which hardware address an IP address on the link has.

use std::net::IpAddr;

use super::{NetlinkError, RouteSocket};

/// A permanent neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// On which interface.
    pub link: String,
    /// Whose address.
    pub ip: IpAddr,
    /// Where frames to it go.
    pub mac: [u8; 6],
}

impl RouteSocket {
    /// Adds or replaces a permanent neighbour, so that no resolution is needed.
    pub fn ensure_neighbour(&mut self, _neighbour: &Neighbour) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Deletes a neighbour; `false` when it was not there.
    pub fn delete_neighbour(&mut self, _neighbour: &Neighbour) -> Result<bool, NetlinkError> {
        unimplemented!()
    }
}
