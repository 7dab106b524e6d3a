//! Routes that meet at one service, of which not all count, and routes at ports that speak
//! something else.
//!
//! Each route is right by itself, so each of these is a warning. It names both objects, and says
//! which of them counts.

use std::collections::{BTreeMap, BTreeSet};

use ambit_model::http::service::Protocol;
use ambit_model::names::ServiceName;

use super::All;
use crate::istio::IstioObject;
use crate::routes::RouteSpec;
use crate::routing::{self, Backends, Parent, entry_protocols, service_protocols};
use crate::virtual_service::VirtualService;
use crate::{Finding, Kind, Object, ObjectKey, Typed};

/// What a route is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Carried {
    Requests,
    Connections,
}

/// A route at a service.
struct Attached {
    carried: Carried,
    /// Where in the object it is said.
    field: String,
    service: ServiceName,
    /// The service, as people write it.
    shown: String,
    /// The ports; none if it is for all.
    ports: BTreeSet<u16>,
    protocols: BTreeMap<u16, Protocol>,
}

/// A route at a service, and its ports.
type Other<'a> = (&'a ObjectKey, BTreeSet<u16>);

/// Who routes for each service.
pub(super) struct Meetings<'a> {
    /// By what is routed, and the service.
    by_service: BTreeMap<(Carried, ServiceName), Vec<Other<'a>>>,
    of_input: BTreeMap<&'a ObjectKey, Vec<Attached>>,
}

impl<'a> Meetings<'a> {
    /// Those of all objects, looked up only if the input has a route.
    pub(super) fn of(all: &'a All<'_>, input: &'a [Object]) -> Self {
        let of_input = input.iter().map(|object| (&object.key, attached(all, &object.typed)));
        let of_input: BTreeMap<&ObjectKey, Vec<Attached>> =
            of_input.filter(|(_, attached)| !attached.is_empty()).collect();
        let mut by_service: BTreeMap<_, Vec<_>> = BTreeMap::new();
        let objects = all.objects.iter().filter(|_| !of_input.is_empty());
        for (key, typed) in objects {
            for it in attached(all, typed) {
                by_service.entry((it.carried, it.service)).or_default().push((key, it.ports));
            }
        }
        Self { by_service, of_input }
    }

    /// Warns about an object of the input.
    pub(super) fn check(&self, object: &Object, warnings: &mut Vec<Finding>) {
        let mut told = BTreeSet::new();
        for own in self.of_input.get(&object.key).into_iter().flatten() {
            if let Some((what, remedy)) = unspoken(object.key.kind, own) {
                warnings.push(object.finding(&own.field, what, remedy));
            }
            let there = self.by_service.get(&(own.carried, own.service.clone()));
            let others = there.into_iter().flatten().filter(|(key, _)| **key != object.key);
            for (other, _) in others.filter(|(_, ports)| meet(&own.ports, ports)) {
                let Some((what, remedy)) = meeting(&object.key, other, own) else { continue };
                // One of each kind says enough.
                if told.insert((other.kind, own.shown.clone())) {
                    warnings.push(object.finding(&own.field, what, remedy));
                }
            }
        }
    }
}

fn meet(one: &BTreeSet<u16>, other: &BTreeSet<u16>) -> bool {
    one.is_empty() || other.is_empty() || !one.is_disjoint(other)
}

/// What becomes of two routes at one port of a service, if not both count.
fn meeting(own: &ObjectKey, other: &ObjectKey, at: &Attached) -> Option<(String, &'static str)> {
    let shown = &at.shown;
    let is_same_clients = own.namespace == other.namespace;
    Some(match (own.kind, other.kind) {
        (Kind::HttpRoute, Kind::GrpcRoute) if is_same_clients => (
            format!("{other} is attached to the same port of {shown}: only GRPCRoutes count there"),
            "put all rules into routes of one kind, or attach them to different ports",
        ),
        (Kind::GrpcRoute, Kind::HttpRoute) if is_same_clients => (
            format!(
                "{other} is attached to the same port of {shown}: only this one and other \
                 GRPCRoutes count there"
            ),
            "put all rules into routes of one kind, or attach them to different ports",
        ),
        (Kind::VirtualService, Kind::VirtualService) => (
            format!(
                "{other} routes for {shown} too: the older of the two is asked first, and Istio \
                 may take only one of them"
            ),
            "put their routes into one VirtualService, in the order that is meant",
        ),
        (Kind::VirtualService, _) => (
            format!("{other} routes for {shown} too, and is asked before this one"),
            "keep the routes of one API",
        ),
        (_, Kind::VirtualService) => (
            format!("{other} routes for {shown} too, and is asked after this one"),
            "keep the routes of one API",
        ),
        _ => return None,
    })
}

/// Why a route of the Gateway API has no effect at its ports.
fn unspoken(kind: Kind, own: &Attached) -> Option<(String, &'static str)> {
    if kind == Kind::VirtualService {
        return None;
    }
    let is_of_requests = |port: &u16| match own.protocols.get(port).copied().unwrap_or_default() {
        Protocol::Http | Protocol::Http2 => Some(true),
        Protocol::Tcp | Protocol::Tls => Some(false),
        Protocol::Detect => None,
    };
    let wanted = own.carried == Carried::Requests;
    let port = own.ports.iter().find(|port| is_of_requests(port) == Some(!wanted))?;
    let shown = &own.shown;
    Some(match own.carried {
        Carried::Connections => (
            format!(
                "port {port} of {shown} is declared to speak HTTP: no connection there is routed \
                 by this {kind}"
            ),
            "use an HTTPRoute or a GRPCRoute, or declare the port with `appProtocol: tcp`",
        ),
        Carried::Requests => (
            format!(
                "port {port} of {shown} is declared to speak no HTTP: no request there is routed \
                 by this {kind}"
            ),
            "declare the port with `appProtocol: http`, or use a TCPRoute or a TLSRoute",
        ),
    })
}

/// The services for which an object routes.
fn attached(all: &All<'_>, typed: &Typed) -> Vec<Attached> {
    match typed {
        Typed::HttpRoute(route) => of_route(all, route, Carried::Requests),
        Typed::GrpcRoute(route) => of_route(all, route, Carried::Requests),
        Typed::TlsRoute(route) => of_route(all, route, Carried::Connections),
        Typed::TcpRoute(route) => of_route(all, route, Carried::Connections),
        Typed::VirtualService(service) => of_virtual_service(all, service),
        _ => Vec::new(),
    }
}

fn of_route<R: Default>(
    all: &All<'_>,
    route: &IstioObject<RouteSpec<R>>,
    carried: Carried,
) -> Vec<Attached> {
    let own = route.metadata.namespace.as_deref().unwrap_or("default");
    let parents = routing::parents(&route.spec, own);
    let attached = parents.filter_map(|parent| {
        let port = parent.port(all.ports(&parent).as_deref()).ok()?;
        let (service, protocols) = of_parent(all, &parent)?;
        Some(Attached {
            carried,
            field: format!("spec.parentRefs[{}]", parent.index),
            service,
            shown: format!("{} {}/{}", Kind::from(parent.kind), parent.namespace, parent.name),
            ports: port.into_iter().collect(),
            protocols,
        })
    });
    attached.collect()
}

/// The service of a parent, the first of a ServiceEntry, and what its ports speak.
fn of_parent(all: &All<'_>, parent: &Parent<'_>) -> Option<(ServiceName, BTreeMap<u16, Protocol>)> {
    let key = ObjectKey::new(Kind::from(parent.kind), parent.namespace, parent.name);
    match all.objects.get(&key)? {
        Typed::Service(service) => {
            let known = Backends::service(all, parent.namespace, parent.name)?;
            Some((known.name, service_protocols(service)))
        }
        Typed::ServiceEntry(entry) => {
            let name = ServiceName::new(parent.namespace, entry.spec.hosts.first()?.as_str());
            Some((name, entry_protocols(entry)))
        }
        _ => None,
    }
}

fn of_virtual_service(all: &All<'_>, written: &VirtualService) -> Vec<Attached> {
    let (spec, namespace) = (&written.spec, written.metadata.namespace.as_deref());
    if !spec.is_of_mesh() {
        return Vec::new();
    }
    let port = |port: Option<i64>| port.and_then(|it| u16::try_from(it).ok());
    let requests = spec.http.iter().map(|it| it.matches.iter().map(|it| port(it.port)).collect());
    let connections = spec.tls.iter().chain(&spec.tcp);
    let connections = connections.map(|it| it.matches.iter().map(|it| port(it.port)).collect());
    let carried =
        [(Carried::Requests, at_ports(requests)), (Carried::Connections, at_ports(connections))];
    let mut attached = Vec::new();
    for (index, host) in spec.hosts.iter().enumerate() {
        let known = all.known(namespace.unwrap_or("default"), host);
        let Some(known) = known.filter(|_| !host.starts_with('*')) else { continue };
        for (carried, ports) in &carried {
            attached.extend(ports.clone().map(|ports| Attached {
                carried: *carried,
                field: format!("spec.hosts[{index}]"),
                service: known.name.clone(),
                shown: format!("the host `{}`", known.name.hostname),
                ports,
                protocols: BTreeMap::new(),
            }));
        }
    }
    attached
}

/// The ports of all matches, none if one of them is for every port; `None` if there is no route.
fn at_ports(routes: impl Iterator<Item = Vec<Option<u16>>>) -> Option<BTreeSet<u16>> {
    let routes: Vec<Vec<Option<u16>>> = routes.collect();
    if routes.is_empty() {
        return None;
    }
    let is_for_all = |matches: &Vec<Option<u16>>| matches.is_empty() || matches.contains(&None);
    if routes.iter().any(is_for_all) {
        return Some(BTreeSet::new());
    }
    Some(routes.into_iter().flatten().flatten().collect())
}
