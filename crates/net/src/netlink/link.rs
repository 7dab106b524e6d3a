//! Interfaces: loopback, bridges, veth pairs.

use std::fmt;

use super::{NetlinkError, RouteSocket};
use crate::namespace::NetNs;

/// The kinds of interface that Ambit makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// A switch in the kernel.
    Bridge,
    /// One end of a virtual cable.
    Veth,
}

impl fmt::Display for LinkKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Bridge => "bridge",
            Self::Veth => "veth",
        })
    }
}

/// An interface as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Number within the namespace.
    pub index: u32,
    /// Name within the namespace.
    pub name: String,
    /// `bridge`, `veth`, ...; empty for hardware and loopback.
    pub kind: String,
    /// Administratively up.
    pub up: bool,
    /// Largest packet.
    pub mtu: u32,
    /// Hardware address.
    pub mac: [u8; 6],
    /// Index of the bridge that it is a port of.
    pub master: Option<u32>,
}

impl RouteSocket {
    /// Every interface of the namespace.
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        unimplemented!()
    }

    /// The interface of that name, if there is one.
    pub fn link(&mut self, _name: &str) -> Result<Option<Link>, NetlinkError> {
        unimplemented!()
    }

    /// Makes a bridge unless there is one of that name. It is down until [`RouteSocket::set_up`].
    pub fn ensure_bridge(&mut self, _name: &str) -> Result<Link, NetlinkError> {
        unimplemented!()
    }

    /// Makes a veth pair unless `name` exists as one: `name` here, `peer` in `peer_namespace` (or here for `None`).
    ///
    /// Both ends are down.
    pub fn ensure_veth(
        &mut self,
        _name: &str,
        _peer: &str,
        _peer_namespace: Option<&NetNs>,
    ) -> Result<Link, NetlinkError> {
        unimplemented!()
    }

    /// Moves an interface into another namespace.
    pub fn move_link(&mut self, _name: &str, _namespace: &NetNs) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Switches an interface on.
    pub fn set_up(&mut self, _name: &str) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Switches an interface off.
    pub fn set_down(&mut self, _name: &str) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Sets the largest packet.
    pub fn set_mtu(&mut self, _name: &str, _mtu: u32) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Makes an interface a port of a bridge.
    pub fn set_master(&mut self, _name: &str, _bridge: &str) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Lets a bridge port send frames back out of the port they came from (a pod that reaches itself by a VIP).
    pub fn set_hairpin(&mut self, _name: &str) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Deletes an interface (a veth's other end goes too); `false` when there was none.
    pub fn delete_link(&mut self, _name: &str) -> Result<bool, NetlinkError> {
        unimplemented!()
    }
}
