//! Routes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{NetlinkError, RouteSocket};

/// The main routing table.
pub const MAIN_TABLE: u32 = 254;

/// What happens to packets that take a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteKind {
    /// Sent on.
    Unicast,
    /// Delivered to this host.
    Local,
    /// Dropped with an ICMP error.
    Unreachable,
    /// Dropped silently.
    Blackhole,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Which packets; `0.0.0.0/0` or `::/0` for all.
    pub destination: IpNet,
    /// The next router, if the destination is not on the link itself.
    pub gateway: Option<IpAddr>,
    /// Which interface; may be left to the gateway.
    pub link: Option<String>,
    /// The address that packets of this host take.
    pub source: Option<IpAddr>,
    /// Which table.
    pub table: u32,
    /// What happens.
    pub kind: RouteKind,
}

impl Route {
    /// To `destination` by way of a router.
    pub fn via(destination: IpNet, gateway: IpAddr) -> Self {
        Self { gateway: Some(gateway), ..Self::unicast(destination) }
    }

    /// To `destination` straight out of an interface.
    pub fn on_link(destination: IpNet, link: &str) -> Self {
        Self { link: Some(link.to_owned()), ..Self::unicast(destination) }
    }

    /// Everything in `destination` counts as an address of this host (`local ... dev lo table ...`).
    pub fn local(destination: IpNet, table: u32) -> Self {
        Self {
            link: Some("lo".to_owned()),
            table,
            kind: RouteKind::Local,
            ..Self::unicast(destination)
        }
    }

    fn unicast(destination: IpNet) -> Self {
        Self {
            destination,
            gateway: None,
            link: None,
            source: None,
            table: MAIN_TABLE,
            kind: RouteKind::Unicast,
        }
    }
}

impl RouteSocket {
    /// Every route of every table, both families.
    pub fn routes(&mut self) -> Result<Vec<Route>, NetlinkError> {
        unimplemented!()
    }

    /// Adds a route, or replaces the one to the same destination in the same table.
    pub fn ensure_route(&mut self, _route: &Route) -> Result<(), NetlinkError> {
        unimplemented!()
    }

    /// Deletes a route; `false` when it was not there.
    pub fn delete_route(&mut self, _route: &Route) -> Result<bool, NetlinkError> {
        unimplemented!()
    }
}
