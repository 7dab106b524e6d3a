//! Services: stable names and addresses in front of workloads.

use std::net::IpAddr;

use crate::Text;
use crate::names::{NetworkAddress, ServiceName};
use crate::workload::{GatewayAddress, GatewayDestination, PortMapping};

/// One service as the control plane describes it (istio.workload.Service).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its short name.
    pub name: Text,
    /// Namespace and hostname.
    pub key: ServiceName,
    /// Its virtual addresses; none for a headless service.
    pub addresses: Vec<VirtualAddress>,
    /// Its ports. A target port of 0 is looked up on the workload.
    pub ports: Vec<PortMapping>,
    /// Further identities its endpoints may prove.
    pub subject_alt_names: Vec<Text>,
    /// The waypoint its traffic must pass.
    pub waypoint: Option<GatewayAddress>,
    /// Waypoints among which its traffic is split; empty means `waypoint` alone.
    pub weighted_waypoints: Vec<(GatewayAddress, u32)>,
    /// The services of the gateways at the edge that do what its waypoint does, so that what they
    /// send need not pass it. They count only beside a waypoint.
    pub entrances: Vec<ServiceName>,
    /// How an endpoint is chosen.
    pub load_balancing: LoadBalancing,
    /// Which families its name resolves to.
    pub ip_families: IpFamilies,
    /// It is the canonical service of its hostname.
    pub canonical: bool,
    /// Gateways too send through the waypoint.
    pub ingress_use_waypoint: bool,
    /// It is visible in its own namespace only.
    pub namespace_only: bool,
}

/// An address, or for some ServiceEntries a whole block of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VirtualAddress {
    /// The address, or the first of the block.
    pub address: NetworkAddress,
    /// The prefix length of a block; absent for one address.
    pub prefix_len: Option<u8>,
}

/// How an endpoint of a service is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancing {
    /// What must, or should, agree with the client, most general first.
    pub routing_preference: Vec<Scope>,
    /// What happens when not all of it agrees.
    pub mode: Mode,
    /// Endpoints that are not ready take traffic too.
    pub allow_unhealthy: bool,
    /// Connections of one client address stay with one endpoint for this long (ClientIP affinity).
    pub client_affinity_seconds: Option<u32>,
}

/// One step of locality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names of the protocol's enum are their description")]
pub enum Scope {
    Region,
    Zone,
    Subzone,
    Node,
    Cluster,
    Network,
}

/// What the routing preference means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Nothing: every endpoint is as good as the other.
    #[default]
    Unspecified,
    /// Only endpoints that agree in everything.
    Strict,
    /// The endpoints that agree in most, in order.
    Failover,
    /// No choice: the original destination.
    Passthrough,
}

/// Which address families a name resolves to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names of the protocol's enum are their description")]
pub enum IpFamilies {
    #[default]
    Automatic,
    Ipv4Only,
    Ipv6Only,
    Dual,
}

impl Service {
    /// By which address an endpoint is chosen for a client that came to `like`: one of that family,
    /// unless the service has addresses of the other family alone. A gateway's client came to the
    /// gateway, and knows nothing of the families of what is behind it.
    pub fn like(&self, like: IpAddr) -> IpAddr {
        let mut families = self.addresses.iter().map(|it| it.address.ip);
        match families.clone().any(|ip| ip.is_ipv4() == like.is_ipv4()) {
            true => like,
            false => families.next().unwrap_or(like),
        }
    }

    /// A service with nothing but its names; everything else as the protocol elides it.
    pub fn named(namespace: impl Into<Text>, hostname: impl Into<Text>) -> Self {
        let key = ServiceName::new(namespace, hostname);
        let name = key.hostname.split('.').next().unwrap_or_default().into();
        Self {
            name,
            key,
            addresses: Vec::new(),
            ports: Vec::new(),
            subject_alt_names: Vec::new(),
            waypoint: None,
            weighted_waypoints: Vec::new(),
            entrances: Vec::new(),
            load_balancing: LoadBalancing::default(),
            ip_families: IpFamilies::default(),
            canonical: false,
            ingress_use_waypoint: false,
            namespace_only: false,
        }
    }

    /// Whether its traffic must pass a waypoint.
    pub fn has_waypoint(&self) -> bool {
        let mut shares = self.weighted_waypoints.iter().map(|(_, share)| *share);
        self.waypoint.is_some() || shares.any(|share| share > 0)
    }

    /// The service of the waypoint that it names, if it is named so.
    pub fn waypoint_service(&self) -> Option<&ServiceName> {
        match &self.waypoint.as_ref()?.destination {
            GatewayDestination::Hostname(name) => Some(name),
            GatewayDestination::Refused(_) | GatewayDestination::Address(_) => None,
        }
    }

    /// Whether the gateway whose own service is `own` does what its waypoint does.
    pub fn enters_at(&self, own: &ServiceName) -> bool {
        self.has_waypoint() && self.entrances.contains(own)
    }

    /// Who its traffic must pass, and who judges it in place of these.
    pub(crate) fn passes(
        &self,
    ) -> (&Option<GatewayAddress>, &[(GatewayAddress, u32)], &[ServiceName]) {
        (&self.waypoint, &self.weighted_waypoints, &self.entrances)
    }

    /// The port with this number.
    pub fn port(&self, service_port: u16) -> Option<&PortMapping> {
        self.ports.iter().find(|port| port.service_port == service_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_chosen_in_a_family_of_the_service() {
        let check = |addresses: &[&str], like: &str, expected: &str| {
            let mut service = Service::named("app", "web.app.svc.cluster.local");
            service.addresses = addresses
                .iter()
                .map(|ip| VirtualAddress {
                    address: NetworkAddress { network: "".into(), ip: ip.parse().unwrap() },
                    prefix_len: None,
                })
                .collect();
            let like: IpAddr = like.parse().unwrap();
            assert_eq!(service.like(like).to_string(), expected, "{addresses:?}");
        };
        check(&["10.0.0.1"], "10.9.9.9", "10.9.9.9");
        check(&["10.0.0.1"], "fd00::9", "10.0.0.1");
        check(&["fd00::1"], "10.9.9.9", "fd00::1");
        check(&["10.0.0.1", "fd00::1"], "fd00::9", "fd00::9");
        check(&[], "fd00::9", "fd00::9");
    }
}
