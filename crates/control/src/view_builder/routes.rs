//! The routes of the registry, by what they attach to and by what they refer to.
//!
//! A change marks the routes and parents that it concerns, and nothing else: of five thousand
//! routes one that changes is read again, and one whose backend comes or goes. Nothing here says
//! what a route means; `ambit_manifest::routing` does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_manifest::routes::{
    BackendRef, GrantFrom, GrpcRoute, HttpRoute, ReferenceGrant, TcpRoute, TlsRoute, UdpRoute,
};
use ambit_manifest::routing::{self, Backends, Parent, ParentKind, Routing};
use ambit_manifest::{Kind, ObjectName};
use ambit_model::Text;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::services::service_name;
use super::{Dirty, Mesh};

/// A route, by its kind and name.
pub(crate) type RouteName = (Kind, ObjectName);
/// What a route attaches to.
pub(crate) type ParentName = (ParentKind, ObjectName);

/// A route as it is written.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Route {
    /// An HTTPRoute.
    Http(Arc<HttpRoute>),
    /// A GRPCRoute.
    Grpc(Arc<GrpcRoute>),
    /// A TLSRoute.
    Tls(Arc<TlsRoute>),
    /// A TCPRoute.
    Tcp(Arc<TcpRoute>),
    /// A UDPRoute.
    Udp(Arc<UdpRoute>),
}

/// All routes, and what lets them refer to other namespaces.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    routes: BTreeMap<RouteName, Route>,
    by_parent: BTreeMap<ParentName, BTreeSet<RouteName>>,
    /// By the host of a service that is a backend, or by its name where it is written as a host.
    by_backend: BTreeMap<Text, BTreeSet<RouteName>>,
    /// By a foreign namespace that they refer to.
    by_foreign: BTreeMap<Text, BTreeSet<RouteName>>,
    grants: BTreeMap<ObjectName, Arc<ReferenceGrant>>,
}

/// What a route refers to.
#[derive(Default)]
struct References {
    hosts: BTreeSet<Text>,
    namespaces: BTreeSet<Text>,
}

impl Route {
    /// Its name, labels, generation.
    pub(crate) fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Http(route) => &route.metadata,
            Self::Grpc(route) => &route.metadata,
            Self::Tls(route) | Self::Tcp(route) | Self::Udp(route) => &route.metadata,
        }
    }

    /// The services and Gateways that it attaches to. The mesh carries no datagrams, so a UDPRoute
    /// attaches to Gateways alone.
    pub(crate) fn parents(&self) -> Vec<Parent<'_>> {
        let namespace = self.metadata().namespace.as_deref().unwrap_or_default();
        match self {
            Self::Http(route) => routing::parents(&route.spec, namespace).collect(),
            Self::Grpc(route) => routing::parents(&route.spec, namespace).collect(),
            Self::Tls(route) | Self::Tcp(route) => {
                routing::parents(&route.spec, namespace).collect()
            }
            Self::Udp(route) => {
                let parents = routing::parents(&route.spec, namespace);
                parents.filter(|it| it.kind == ParentKind::Gateway).collect()
            }
        }
    }

    /// Its kind.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Http(_) => Kind::HttpRoute,
            Self::Grpc(_) => Kind::GrpcRoute,
            Self::Tls(_) => Kind::TlsRoute,
            Self::Tcp(_) => Kind::TcpRoute,
            Self::Udp(_) => Kind::UdpRoute,
        }
    }

    /// The hosts for which it is asked at a Gateway.
    pub(super) fn hosts(&self) -> &[String] {
        match self {
            Self::Http(route) => route.spec.hosts(),
            Self::Grpc(route) => route.spec.hosts(),
            Self::Tls(route) | Self::Tcp(route) | Self::Udp(route) => route.spec.hosts(),
        }
    }

    /// What it means.
    pub(super) fn read(&self, backends: &dyn Backends) -> Routing {
        match self {
            Self::Http(route) => routing::http(route, backends),
            Self::Grpc(route) => routing::grpc(route, backends),
            Self::Tls(route) => routing::tls(route, backends),
            Self::Tcp(route) => routing::tcp(route, backends),
            Self::Udp(route) => routing::udp(route, backends),
        }
    }

    fn backends(&self) -> Vec<&BackendRef> {
        match self {
            Self::Http(route) => route.spec.backends().collect(),
            Self::Grpc(route) => route.spec.backends().collect(),
            Self::Tls(route) | Self::Tcp(route) | Self::Udp(route) => {
                route.spec.backends().collect()
            }
        }
    }

    fn references(&self, mesh: &Mesh) -> References {
        let own = self.metadata().namespace.as_deref().unwrap_or_default();
        let mut references = References::default();
        for backend in self.backends() {
            if backend.kind.as_deref().unwrap_or("Service") != "Service" {
                references.hosts.insert(backend.name.as_str().into());
                continue;
            }
            let namespace = backend.namespace.as_deref().unwrap_or(own);
            let object = ObjectName::new(namespace, &backend.name);
            references.hosts.insert(service_name(mesh, &object).hostname);
            if namespace != own {
                references.namespaces.insert(namespace.into());
            }
        }
        references
    }
}

/// The name of what a reference means.
pub(crate) fn parent_name(parent: &Parent<'_>) -> ParentName {
    (parent.kind, ObjectName::new(parent.namespace, parent.name))
}

impl Routes {
    /// Puts or removes a route, and marks it and the parents that it has and had.
    pub(super) fn put(
        &mut self,
        mesh: &Mesh,
        name: RouteName,
        route: Option<Route>,
        dirty: &mut Dirty,
    ) {
        let old = match &route {
            Some(route) => self.routes.insert(name.clone(), route.clone()),
            None => self.routes.remove(&name),
        };
        if old == route {
            return;
        }
        if let Some(old) = &old {
            self.index(mesh, &name, old, dirty, |names, name| {
                names.remove(name);
            });
        }
        if let Some(route) = &route {
            self.index(mesh, &name, route, dirty, |names, name| {
                names.insert(name.clone());
            });
        }
        dirty.routes.insert(name);
    }

    /// Changes the indexes of one route, and marks its parents.
    fn index(
        &mut self,
        mesh: &Mesh,
        name: &RouteName,
        route: &Route,
        dirty: &mut Dirty,
        change: fn(&mut BTreeSet<RouteName>, &RouteName),
    ) {
        for parent in route.parents().iter().map(parent_name) {
            change_at(&mut self.by_parent, parent.clone(), name, change);
            dirty.attached.insert((parent.clone(), name.clone()));
            dirty.parents.insert(parent);
        }
        let References { hosts, namespaces } = route.references(mesh);
        for host in hosts {
            change_at(&mut self.by_backend, host, name, change);
        }
        for namespace in namespaces {
            change_at(&mut self.by_foreign, namespace, name, change);
        }
    }

    /// Puts or removes a grant, and marks the routes that refer to its namespace.
    pub(super) fn put_grant(
        &mut self,
        name: ObjectName,
        grant: Option<Arc<ReferenceGrant>>,
        dirty: &mut Dirty,
    ) {
        dirty.routes.extend(self.by_foreign.get(&name.namespace).into_iter().flatten().cloned());
        match grant {
            Some(grant) => self.grants.insert(name, grant),
            None => self.grants.remove(&name),
        };
    }

    /// The route.
    pub(crate) fn get(&self, name: &RouteName) -> Option<&Route> {
        self.routes.get(name)
    }

    /// All routes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RouteName, &Route)> {
        self.routes.iter()
    }

    /// The routes that attach to a parent.
    pub(super) fn of_parent(
        &self,
        parent: &ParentName,
    ) -> impl Iterator<Item = (&RouteName, &Route)> {
        let names = self.by_parent.get(parent).into_iter().flatten();
        names.filter_map(|name| self.routes.get_key_value(name))
    }

    /// The routes that have the service of this host as a backend.
    pub(super) fn referring_to(&self, host: &str) -> impl Iterator<Item = &RouteName> {
        self.by_backend.get(host).into_iter().flatten()
    }

    /// Whether a grant of `namespace` lets `from` refer to its object of this group, kind and name.
    pub(super) fn is_granted(
        &self,
        from: &GrantFrom,
        namespace: &str,
        target: (&str, &str, &str),
    ) -> bool {
        let first = ObjectName::new(namespace, "");
        let of_namespace = self.grants.range(first..);
        let mut of_namespace = of_namespace.take_while(|(name, _)| *name.namespace == *namespace);
        of_namespace.any(|(_, grant)| routing::grants(&grant.spec, from, target))
    }
}

fn change_at<K: Ord>(
    map: &mut BTreeMap<K, BTreeSet<RouteName>>,
    key: K,
    name: &RouteName,
    change: fn(&mut BTreeSet<RouteName>, &RouteName),
) {
    use std::collections::btree_map::Entry;
    match map.entry(key) {
        Entry::Occupied(mut entry) => {
            change(entry.get_mut(), name);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
        Entry::Vacant(entry) => {
            let mut names = BTreeSet::new();
            change(&mut names, name);
            if !names.is_empty() {
                entry.insert(names);
            }
        }
    }
}
