//! Checks what routes name against the objects that are there: parents, backends, grants.
//!
//! All of it may be applied later, so each is a warning; until then the route answers 500 or
//! refuses connections, or nobody asks it.

use ambit_model::names::ServiceName;
use ambit_words::names::DEFAULT_CLUSTER_DOMAIN;

use super::All;
use crate::istio::IstioObject;
use crate::routes::{GrantFrom, RouteSpec};
use crate::routing::{
    self, Backends, Known, Parent, ParentKind, Port, Routing, entry_ports, service_datagram_ports,
    service_ports,
};
use crate::{Finding, Kind, Object, ObjectKey, Typed};

impl Backends for All<'_> {
    fn service(&self, namespace: &str, name: &str) -> Option<Known> {
        let key = ObjectKey::new(Kind::Service, namespace, name);
        let Typed::Service(service) = self.objects.get(&key)? else { return None };
        let hostname = format!("{name}.{namespace}.svc.{DEFAULT_CLUSTER_DOMAIN}");
        Some(Known {
            name: ServiceName::new(namespace, hostname),
            ports: service_ports(service),
            datagrams: Some(service_datagram_ports(service)),
        })
    }

    fn host(&self, _: &str, hostname: &str) -> Option<Known> {
        let suffix = format!(".svc.{DEFAULT_CLUSTER_DOMAIN}");
        let short = hostname.strip_suffix(suffix.as_str()).and_then(|it| it.split_once('.'));
        short.and_then(|(name, namespace)| Backends::service(self, namespace, name)).or_else(|| {
            self.objects.iter().find_map(|(key, typed)| {
                let Typed::ServiceEntry(entry) = typed else { return None };
                let is_it = entry.spec.hosts.iter().any(|host| host == hostname);
                let name = || ServiceName::new(key.namespace.clone(), hostname);
                is_it.then(|| Known {
                    name: name(),
                    ports: entry_ports(entry),
                    datagrams: Some(Vec::new()),
                })
            })
        })
    }

    fn is_granted(&self, from: &GrantFrom, namespace: &str, service: &str) -> bool {
        self.objects.iter().any(|(key, typed)| match typed {
            Typed::ReferenceGrant(grant) => {
                *key.namespace == *namespace
                    && routing::grants(&grant.spec, from, ("", "Service", service))
            }
            _ => false,
        })
    }

    fn has_subset(&self, service: &ServiceName, subset: &str) -> bool {
        self.objects.iter().any(|(key, typed)| match typed {
            Typed::DestinationRule(rule) => {
                let host = &rule.spec.host;
                let is_meant = match host.strip_prefix('*') {
                    Some(suffix) => service.hostname.ends_with(suffix),
                    None => self.known(&key.namespace, host).is_some_and(|it| it.name == *service),
                };
                is_meant && rule.spec.subsets.iter().any(|it| it.name == subset)
            }
            _ => false,
        })
    }
}

impl All<'_> {
    /// The service of a host as Istio's resources of this namespace write it.
    pub(super) fn known(&self, namespace: &str, host: &str) -> Option<Known> {
        match host.contains('.') {
            true => Backends::host(self, namespace, host),
            false => Backends::service(self, namespace, host),
        }
    }

    /// Warns about what a route names and is not there.
    pub(super) fn route<R: Default>(
        &self,
        object: &Object,
        route: &IstioObject<RouteSpec<R>>,
        routing: Routing,
        warnings: &mut Vec<Finding>,
    ) {
        let own = &*object.key.namespace;
        let parents: Vec<Parent<'_>> = routing::parents(&route.spec, own).collect();
        if object.key.kind == Kind::UdpRoute && parents.iter().any(|it| !it.kind.has_listeners()) {
            warnings.push(object.finding(
                "spec.parentRefs",
                "a UDPRoute attaches to Gateways and their ListenerSets alone: the mesh carries no \
                 datagrams",
                "remove the other parents",
            ));
        }
        let is_at_gateway = parents.iter().any(|it| it.kind.has_listeners());
        if parents.is_empty() {
            warnings.push(object.finding(
                "spec.parentRefs",
                "no Service, ServiceEntry or Gateway is among the parents: nothing asks this route",
                "name the Service that it is for (`group: \"\"`, `kind: Service`) or a Gateway",
            ));
        } else if !is_at_gateway
            && !route.spec.hostnames.is_empty()
            && routing.connections.is_empty()
        {
            warnings.push(object.finding(
                "spec.hostnames",
                "at a Service, hosts have no effect: whatever host they name, its requests are \
                 routed",
                "remove `hostnames`",
            ));
        }
        for parent in &parents {
            let unattached = match parent.kind {
                ParentKind::Gateway | ParentKind::ListenerSet => {
                    self.at_gateway(object, route.spec.hosts(), parent)
                }
                ParentKind::Service | ParentKind::ServiceEntry => {
                    let remedy = "correct the reference, or add what it names";
                    parent.port(self.ports(parent).as_deref()).map(drop).map_err(|it| (it, remedy))
                }
            };
            if let Err((what, remedy)) = unattached {
                let at = format!("spec.parentRefs[{}]", parent.index);
                warnings.push(object.finding(at, what, remedy));
            }
        }
        let is_of_requests = routing.connections.is_empty();
        for problem in routing.problems.into_iter().filter(|it| it.reason.is_of_reference()) {
            let lost = match is_of_requests {
                true if problem.is_of_copies() => "no copies are sent",
                true => "its share of requests is answered with 500",
                false => "its share of connections is refused",
            };
            let what = format!("{}; {lost}", problem.what);
            warnings.push(object.finding(problem.at.as_str(), what, problem.remedy));
        }
    }

    /// The ports of a parent that exists.
    pub(super) fn ports(&self, parent: &Parent<'_>) -> Option<Vec<Port>> {
        let key = ObjectKey::new(Kind::from(parent.kind), parent.namespace, parent.name);
        match self.objects.get(&key)? {
            Typed::Service(service) => Some(service_ports(service)),
            Typed::ServiceEntry(entry) => Some(entry_ports(entry)),
            _ => None,
        }
    }
}
