//! What a waypoint needs to know of layer 7: which names it asks the control plane for.
//!
//! Its view of workloads and services says which services it fronts; what is known of these says
//! where their routes lead and which policies hold. Nothing here says where a request goes.

use std::collections::BTreeSet;

use crate::http::certificate::CertificateName;
use crate::names::{PolicyName, ServiceName};
use crate::service::Service;
use crate::view::{Change, View};
use crate::workload::{GatewayAddress, GatewayDestination, Workload};

/// Names that a waypoint asks for.
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
        let fronted = self.services().filter(|it| self.is_fronted_by(it, own));
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
                let waypoints = |it: &Service| (it.waypoint.clone(), it.weighted_waypoints.clone());
                let old = self.service(&new.key).map(|old| waypoints(old)).unwrap_or_default();
                // Others may name the waypoint by an address of its service ...
                new.key == *own || old != waypoints(new)
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
            | Change::RemoveGateway(_) => false,
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
