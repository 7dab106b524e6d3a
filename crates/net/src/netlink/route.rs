//! Routes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::message::{self, Answer, Request};
use super::socket::deleted;
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

impl RouteKind {
    fn number(self) -> u8 {
        match self {
            Self::Unicast => libc::RTN_UNICAST,
            Self::Local => libc::RTN_LOCAL,
            Self::Unreachable => libc::RTN_UNREACHABLE,
            Self::Blackhole => libc::RTN_BLACKHOLE,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        [Self::Unicast, Self::Local, Self::Unreachable, Self::Blackhole]
            .into_iter()
            .find(|kind| kind.number() == number)
    }
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

    /// Everything in `destination` counts as an address of this host (`local ... dev lo table
    /// ...`).
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

/// Size of `rtmsg`.
const INFO_BYTES: usize = 12;

impl RouteSocket {
    /// The routes of every table, both families; kinds other than [`RouteKind`]'s are left out.
    pub fn routes(&mut self) -> Result<Vec<Route>, NetlinkError> {
        let names: BTreeMap<u32, String> =
            self.links()?.into_iter().map(|link| (link.index, link.name)).collect();
        let request = Request::new(libc::RTM_GETROUTE, 0).body(&[0; INFO_BYTES]);
        let answers = self.netlink.dump(request, "list routes")?;
        Ok(answers.iter().filter_map(|answer| parse(answer, &names)).collect())
    }

    /// Adds a route, or replaces the one to the same destination in the same table.
    pub fn ensure_route(&mut self, route: &Route) -> Result<(), NetlinkError> {
        let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        let request = self.route_request(libc::RTM_NEWROUTE, flags, route)?;
        self.netlink.request(request, &format!("add a route to {}", route.destination)).map(drop)
    }

    /// Deletes a route; `false` when it was not there.
    pub fn delete_route(&mut self, route: &Route) -> Result<bool, NetlinkError> {
        let request = match self.route_request(libc::RTM_DELROUTE, 0, route) {
            // Routes go with their interface.
            Err(NetlinkError::NoSuchLink { .. }) => return Ok(false),
            other => other?,
        };
        let operation = format!("delete the route to {}", route.destination);
        let result = self.netlink.request(request, &operation);
        deleted(result, &[libc::ESRCH, libc::ENOENT])
    }

    fn route_request(
        &mut self,
        kind: u16,
        flags: i32,
        route: &Route,
    ) -> Result<Request, NetlinkError> {
        let scope = match route.kind {
            RouteKind::Local => libc::RT_SCOPE_HOST,
            RouteKind::Unicast if route.gateway.is_none() => libc::RT_SCOPE_LINK,
            _ => libc::RT_SCOPE_UNIVERSE,
        };
        let family = message::family_of(route.destination.addr());
        let length = route.destination.prefix_len();
        // The table's number may exceed a byte, so it goes into an attribute.
        let table = libc::RT_TABLE_UNSPEC;
        let protocol = libc::RTPROT_STATIC;
        let kind_number = route.kind.number();
        let body = [family, length, 0, 0, table, protocol, scope, kind_number, 0, 0, 0, 0];
        let mut request = Request::new(kind, flags).body(&body);
        request.address(libc::RTA_DST, route.destination.network());
        request.native_u32(libc::RTA_TABLE, route.table);
        if let Some(gateway) = route.gateway {
            request.address(libc::RTA_GATEWAY, gateway);
        }
        if let Some(source) = route.source {
            request.address(libc::RTA_PREFSRC, source);
        }
        if let Some(link) = &route.link {
            let index = self.require(link, "change a route")?.index;
            request.native_u32(libc::RTA_OIF, index);
        }
        Ok(request)
    }
}

fn parse(answer: &Answer, names: &BTreeMap<u32, String>) -> Option<Route> {
    let fixed = answer.payload.get(..INFO_BYTES)?;
    let any = match i32::from(fixed[0]) {
        libc::AF_INET => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        libc::AF_INET6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let mut route = Route {
        destination: IpNet::new(any, fixed[1]).ok()?,
        gateway: None,
        link: None,
        source: None,
        table: fixed[4].into(),
        kind: RouteKind::from_number(fixed[7])?,
    };
    for (kind, payload) in message::attributes_after(&answer.payload, INFO_BYTES) {
        match kind {
            libc::RTA_DST => {
                route.destination = IpNet::new(message::read_ip(payload)?, fixed[1]).ok()?;
            }
            libc::RTA_GATEWAY => route.gateway = message::read_ip(payload),
            libc::RTA_PREFSRC => route.source = message::read_ip(payload),
            libc::RTA_TABLE => route.table = message::read_u32(payload),
            libc::RTA_OIF => route.link = names.get(&message::read_u32(payload)).cloned(),
            _ => {}
        }
    }
    Some(route)
}
