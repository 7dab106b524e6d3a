//! Addresses of interfaces.

use ipnet::IpNet;

use super::{NetlinkError, RouteSocket};

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Which interface.
    pub link_index: u32,
    /// The address with the length of its subnet's prefix.
    pub address: IpNet,
}

impl RouteSocket {
    /// Every address of the namespace, both families.
    pub fn addresses(&mut self) -> Result<Vec<Address>, NetlinkError> {
        unimplemented!()
    }

    /// Gives an interface an address, usable at once (no duplicate address detection for IPv6).
    pub fn ensure_address(&mut self, _link: &str, _address: IpNet) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Takes an address away; `false` when it was not there.
    pub fn delete_address(&mut self, _link: &str, _address: IpNet) -> Result<bool, NetlinkError> {
        unimplemented!()
    }
}
