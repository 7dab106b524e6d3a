//! What a waypoint or a gateway needs to know of layer 7: the names it asks the control plane for.
//!
//! A waypoint's view of workloads and services says which services it fronts; what is known of
//! these says where their routes lead and which policies hold. Nothing here says where a request
//! goes.

use std::collections::BTreeSet;

use crate::http::certificate::CertificateName;
use crate::http::gateway::GatewayRoute;
use crate::names::{PolicyName, ServiceName};
use crate::service::Service;
use crate::view::{Change, View};
use crate::workload::{GatewayAddress, GatewayDestination, Workload};

/// Names that a waypoint or a gateway asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// Services of which it needs a [`ServiceHttp`](crate::http::service::ServiceHttp).
    pub services: BTreeSet<ServiceName>,
    /// Policies that read requests.
    pub policies: BTreeSet<PolicyName>,
    /// Its own certificates.
    pub certificates: BTreeSet<CertificateName>,
}

impl View {
    /// What the waypoint whose own service is `own` needs: all of the services that name it as
    /// their waypoint, of those to which their routes lead, which their policies ask or that count
    /// their requests, and of its own, which holds for workloads that name it. What holds where
    /// routes lead is asked of what comes from another namespace, and of clients' own routes.
    pub fn needed_by_waypoint(&self, own: &ServiceName) -> Needed {
        let fronted = self.services().filter(|it| self.is_served_by(it, own));
        let mut fronted: BTreeSet<ServiceName> = fronted.map(|it| it.key.clone()).collect();
        fronted.insert(own.clone());
        let known = || fronted.iter().filter_map(|name| self.http_service(name));
        let routed = known().flat_map(|it| it.routed());
        let routed = routed.filter_map(|name| self.http_service(name));
        let policies = known().chain(routed).flat_map(|it| &it.policies).cloned().collect();
        let destinations = known().flat_map(|it| it.destinations());
        let destinations: BTreeSet<_> = destinations.cloned().collect();
        Needed { services: &fronted | &destinations, policies, ..Needed::default() }
    }

    /// Whether a change of this view may change what that waypoint needs. Most do not, and to find
    /// out what it needs costs a walk over all services.
    pub fn changes_needs_of_waypoint(&self, own: &ServiceName, change: &Change) -> bool {
        match change {
            Change::Service(new) => {
                let old = self.service(&new.key);
                let nothing = (&None, &[][..], &[][..]);
                // Others may name the waypoint by an address of its service ...
                new.key == *own || old.map_or(nothing, |old| old.passes()) != new.passes()
            }
            // ... or of one of its workloads.
            Change::Workload(new) => {
                let old = self.workload(&new.uid);
                old.is_some_and(|old| old.services.contains_key(own))
                    || new.services.contains_key(own)
            }
            Change::RemoveAddress(name) => {
                let workload = self.workload(name);
                workload.is_none_or(|it| it.services.contains_key(own))
            }
            Change::HttpService(new) => self.http_service(&new.service).is_none_or(|old| {
                old.policies != new.policies || !old.destinations().eq(new.destinations())
            }),
            Change::RemoveHttpService(_) => true,
            Change::Policy(_)
            | Change::RemovePolicy(_)
            | Change::RequestPolicy(_)
            | Change::RemoveRequestPolicy(_)
            | Change::Certificate(_)
            | Change::RemoveCertificate(_)
            | Change::Gateway(_)
            | Change::RemoveGateway(_)
            | Change::GatewayRoute(_)
            | Change::UnreadableGatewayRoute(_)
            | Change::RemoveGatewayRoute(_) => false,
        }
    }

    /// Whether a workload names the waypoint whose own service is `own`.
    pub fn is_workload_fronted_by(&self, workload: &Workload, own: &ServiceName) -> bool {
        workload.waypoint.as_deref().is_some_and(|gateway| self.is_waypoint(gateway, own))
    }

    /// Whether a service names the waypoint whose own service is `own`, also as one of several.
    pub fn is_fronted_by(&self, service: &Service, own: &ServiceName) -> bool {
        let several = service.weighted_waypoints.iter().map(|(gateway, _)| gateway);
        service.waypoint.iter().chain(several).any(|gateway| self.is_waypoint(gateway, own))
    }

    /// Whether who has the service `own` is that waypoint, or a gateway that does what it does.
    pub fn is_served_by(&self, service: &Service, own: &ServiceName) -> bool {
        service.enters_at(own) || self.is_fronted_by(service, own)
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

impl View {
    /// What the gateway behind the service `own` needs to know of layer 7: all of its own service,
    /// whose policies judge what comes in, and of those to which its routes lead. Of services for
    /// which it does what their waypoint does it needs what a waypoint needs.
    pub fn needed_by_gateway(&self, own: &ServiceName) -> Needed {
        let mut needed = self.needed_by_waypoint(own);
        let routes = self.gateway_routes(own);
        needed.services.extend(routes.flat_map(|it| it.destinations()).cloned());
        needed.certificates.extend(self.gateway(own).iter().flat_map(|it| it.certificates()));
        needed
    }

    /// Whether a change of this view may change what that gateway needs.
    pub fn changes_needs_of_gateway(&self, own: &ServiceName, change: &Change) -> bool {
        match change {
            Change::Gateway(it) => it.service == *own,
            Change::RemoveGateway(name) => name == own,
            Change::GatewayRoute(new) => {
                let leads_elsewhere =
                    |old: &GatewayRoute| !old.destinations().eq(new.destinations());
                // Perhaps it was the last that could not be read.
                let is_served = self.gateway(own).is_some();
                new.name.gateway == *own
                    && (!is_served
                        || self.gateway_route(&new.name).is_none_or(|old| leads_elsewhere(old)))
            }
            Change::UnreadableGatewayRoute(name) | Change::RemoveGatewayRoute(name) => {
                name.gateway == *own
            }
            _ => self.changes_needs_of_waypoint(own, change),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::http::gateway::Gateway;
    use crate::http::service::ServiceHttp;

    #[test]
    fn a_gateway_needs_its_own_service_and_those_of_its_routes() {
        let own = ServiceName::new("edge", "ingress");
        let mut view = View::default();
        assert_eq!(view.needed_by_gateway(&own).services, [own.clone()].into());
        let change = Change::Gateway(Arc::new(Gateway::new(own.clone(), [])));
        assert!(view.changes_needs_of_gateway(&own, &change));
        assert!(!view.changes_needs_of_gateway(&ServiceName::new("edge", "other"), &change));
        view.apply(change);
        view.apply(Change::RemoveGateway(own.clone()));
        assert!(view.gateway(&own).is_none());
        // What enters there it has to judge.
        let mut web = Service::named("app", "web");
        let destination = GatewayDestination::Hostname(ServiceName::new("app", "waypoint"));
        web.waypoint = Some(GatewayAddress { destination, hbone_mtls_port: 15008 });
        view.apply(Change::Service(web.clone()));
        let mut http = ServiceHttp::named(web.key.clone());
        http.policies = vec![PolicyName::new("app", "p")];
        view.apply(Change::HttpService(Arc::new(http)));
        assert_eq!(view.needed_by_gateway(&own).services, [own.clone()].into());
        web.entrances = vec![own.clone()];
        let change = Change::Service(web.clone());
        assert!(view.changes_needs_of_gateway(&own, &change));
        let version = view.authorization_version();
        view.apply(change);
        assert!(view.authorization_version() > version, "who may come in is another question");
        let needed = view.needed_by_gateway(&own);
        assert_eq!(needed.services, [own, web.key].into());
        assert_eq!(needed.policies, [PolicyName::new("app", "p")].into());
    }
}
