//! What a waypoint needs to know of layer 7: which names it asks the control plane for.
//!
//! Its view of workloads and services says which services it fronts; what is known of these says
//! where their routes lead and which policies hold. Nothing here says where a request goes.

use std::collections::BTreeSet;

use crate::names::{PolicyName, ServiceName};
use crate::service::Service;
use crate::view::View;
use crate::workload::{GatewayAddress, GatewayDestination};

/// Names that a waypoint asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Services of which it needs a [`ServiceHttp`](crate::http::service::ServiceHttp).
    pub services: BTreeSet<ServiceName>,
    /// Policies that read requests.
    pub policies: BTreeSet<PolicyName>,
}

impl View {
    /// What the waypoint whose own service is `own` needs: all of the services that name it as
    /// their waypoint, of those to which their routes lead, and of its own, which holds for
    /// workloads that name it.
    pub fn needed_by_waypoint(&self, own: &ServiceName) -> Needed {
        let fronted = self.services().filter(|it| self.is_fronted_by(it, own));
        let mut fronted: BTreeSet<ServiceName> = fronted.map(|it| it.key.clone()).collect();
        fronted.insert(own.clone());
        let known = || fronted.iter().filter_map(|name| self.http_service(name));
        let policies = known().flat_map(|it| &it.policies).cloned().collect();
        let destinations = known().flat_map(|it| it.routes.destinations());
        let destinations: BTreeSet<_> = destinations.cloned().collect();
        Needed { services: &fronted | &destinations, policies }
    }

    /// Whether a service names this waypoint, also as one of several.
    fn is_fronted_by(&self, service: &Service, own: &ServiceName) -> bool {
        let several = service.weighted_waypoints.iter().map(|(gateway, _)| gateway);
        service.waypoint.iter().chain(several).any(|gateway| self.is_waypoint(gateway, own))
    }

    /// Whether this is the waypoint whose own service is `own`.
    fn is_waypoint(&self, gateway: &GatewayAddress, own: &ServiceName) -> bool {
        match &gateway.destination {
            GatewayDestination::Hostname(name) => name == own,
            GatewayDestination::Refused(_) => false,
            GatewayDestination::Address(at) => {
                let service = self.service_at(&at.network, at.ip, &own.namespace);
                let workload = self.workload_at(&at.network, at.ip);
                service.is_some_and(|it| it.key == *own)
                    || workload.is_some_and(|it| it.services.contains_key(own))
            }
        }
    }
}
