//! What waypoints know of a service beyond layer 4: what its ports speak, its routes, its policies.
//!
//! A waypoint takes a service of which it gets nothing for one that is not known yet, so there is
//! something for each. A route of the service's own namespace is for everybody (a producer's), one
//! of another namespace for that namespace's clients alone (a consumer's). Nothing here may leave a
//! route out because something of it cannot be honoured: its rules then answer 500.

use std::collections::BTreeMap;

use ambit_manifest::gateway::Unbound;
use ambit_manifest::policy::StatusCondition;
use ambit_manifest::routes::GrantFrom;
use ambit_manifest::routing::{
    self, Backends, Known, Parent, ParentKind, Port, Routing, entry_ports, entry_protocols,
    service_datagram_ports, service_ports, service_protocols,
};
use ambit_manifest::{Kind, ObjectName};
use ambit_model::Text;
use ambit_model::http::bytes::BytesRoutes;
use ambit_model::http::service::{Protocol, RouteGroup, Routes, ServiceHttp};
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::view::View;
use ambit_model::workload::GatewayDestination;

use super::Mesh;
use super::backend_tls;
use super::edge::Edges;
use super::routes::{ParentName, Route, RouteName, parent_name};
use super::services::service_name;
use super::store::Store;

/// The type of the condition of a route's parent that says whether a waypoint routes by it;
/// istiod's for the same.
pub(crate) const RESOLVED_WAYPOINTS: &str = "ResolvedWaypoints";

/// What is there for routes to refer to.
pub(super) struct Present<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) store: &'a Store,
    pub(super) view: &'a View,
}

impl Backends for Present<'_> {
    fn service(&self, namespace: &str, name: &str) -> Option<Known> {
        let object = ObjectName::new(namespace, name);
        let record = self.store.service(&object)?;
        let name = service_name(self.mesh, &object);
        let (ports, datagrams) =
            (service_ports(&record.object), service_datagram_ports(&record.object));
        Some(Known { name, ports, datagrams: Some(datagrams) })
    }

    fn host(&self, namespace: &str, hostname: &str) -> Option<Known> {
        let name = self.view.service_by_hostname(hostname, namespace)?.key.clone();
        let owner = owner(self.mesh, self.store, &name)?;
        let ports = ports(self.store, &owner)?;
        Some(Known { name, ports, datagrams: Some(Vec::new()) })
    }

    fn is_granted(&self, from: &GrantFrom, namespace: &str, service: &str) -> bool {
        self.store.routes().is_granted(from, namespace, ("", "Service", service))
    }

    fn has_subset(&self, service: &ServiceName, subset: &str) -> bool {
        let client = clients_namespace(self.view, service);
        self.store.destination_rules().has_subset(self.mesh, service, &client, subset)
    }
}

/// The object that a service is made of.
pub(super) fn owner(mesh: &Mesh, store: &Store, name: &ServiceName) -> Option<ParentName> {
    if let Some((object, _)) = store.kubernetes_service(mesh, name) {
        return Some((ParentKind::Service, object.clone()));
    }
    store.entry_of_host(name).map(|(object, _)| (ParentKind::ServiceEntry, object))
}

/// The ports of a parent that exists.
pub(crate) fn ports(store: &Store, parent: &ParentName) -> Option<Vec<Port>> {
    let (kind, name) = parent;
    match kind {
        ParentKind::Service => store.service(name).map(|it| service_ports(&it.object)),
        ParentKind::ServiceEntry => store.service_entry(name).map(|it| entry_ports(it)),
        ParentKind::Gateway | ParentKind::ListenerSet => None,
    }
}

/// What holds for the requests to a service.
pub(super) fn build(
    present: &Present<'_>,
    routings: &BTreeMap<RouteName, Routing>,
    owner: &ParentName,
    service: ServiceName,
    policies: Vec<PolicyName>,
) -> ServiceHttp {
    let store = present.store;
    let ports = ports(store, owner).unwrap_or_default();
    let (mut groups, mut bytes) = (Vec::new(), Vec::new());
    for (name, route) in store.routes().of_parent(owner) {
        let Some(routing) = routings.get(name) else { continue };
        let namespace = &name.1.namespace;
        let parents = route.parents();
        let here = parents.iter().filter(|parent| parent_name(parent) == *owner);
        for port in here.filter_map(|parent| parent.port(Some(&ports)).ok()) {
            let client_namespace = (*namespace != service.namespace).then(|| namespace.clone());
            if routing.connections.is_empty() {
                let rules = routing.rules.clone();
                groups.push(RouteGroup { client_namespace, port, rules });
            } else {
                let rules = routing.connections.clone();
                bytes.push(RouteGroup { client_namespace, port, rules });
            }
        }
    }
    let client = clients_namespace(present.view, &service);
    let of_virtual_services = store.virtual_services().groups(present, &service, &ports, &client);
    groups.extend(of_virtual_services.0);
    bytes.extend(of_virtual_services.1);
    let mut said = store.destination_rules().of_service(present, &service, owner, &client);
    backend_tls::decide(store, owner, &ports, &mut said);
    ServiceHttp {
        protocols: protocols(store, owner).unwrap_or_default(),
        routes: Routes::new(groups),
        bytes: BytesRoutes::new(bytes),
        policies,
        traffic: said.traffic,
        subsets: said.subsets,
        ..ServiceHttp::named(service)
    }
}

/// The namespace from which a service is asked, as Istio's resources see it: that of its waypoint,
/// else its own.
pub(super) fn clients_namespace(view: &View, service: &ServiceName) -> Text {
    let gateway = view.service(service).and_then(|it| it.waypoint.as_ref());
    match gateway.map(|it| &it.destination) {
        Some(GatewayDestination::Hostname(waypoint)) => waypoint.namespace.clone(),
        _ => service.namespace.clone(),
    }
}

/// The conditions of a route for each service, Gateway and ListenerSet that it names; none for what
/// is of another controller.
pub(crate) fn conditions<'r>(
    edges: &Edges<'_>,
    route: &'r Route,
    routing: &Routing,
) -> Vec<(Parent<'r>, Vec<StatusCondition>)> {
    let all = routing::conditions(routing);
    let of_parent = |parent: Parent<'r>| {
        let conditions = match parent.kind {
            ParentKind::Gateway | ParentKind::ListenerSet => {
                at_gateway(edges, route, &parent, &all)
            }
            ParentKind::Service | ParentKind::ServiceEntry => {
                at_service(edges.store(), route, &parent, routing, &all)
            }
        };
        (parent, conditions)
    };
    route.parents().into_iter().map(of_parent).collect()
}

/// What of the conditions of a route holds where its parent does not take it, and why not.
fn refused(all: &[StatusCondition], why: StatusCondition) -> Vec<StatusCondition> {
    let is_of_parent = |it: &&StatusCondition| ["Accepted", "PartiallyInvalid"].contains(&it.kind);
    let others = all.iter().filter(|it| !is_of_parent(it));
    [why].into_iter().chain(others.cloned()).collect()
}

fn at_service(
    store: &Store,
    route: &Route,
    parent: &Parent<'_>,
    routing: &Routing,
    all: &[StatusCondition],
) -> Vec<StatusCondition> {
    if let Err(why) = attaches(store, routing, parent) {
        return refused(all, routing::without_parent(why));
    }
    let mut conditions = all.to_vec();
    if let Some(displaced) = displaced(store, route, parent) {
        let message = displaced.message();
        if displaced.is_whole {
            return refused(all, routing::not_accepted("Conflicted", message));
        }
        let accepted = conditions.iter_mut().find(|it| it.kind == "Accepted");
        accepted.into_iter().for_each(|it| it.message = format!("{}; {message}", it.message));
    }
    conditions.push(resolved_waypoints(store, &parent_name(parent)));
    conditions
}

fn at_gateway(
    edges: &Edges<'_>,
    route: &Route,
    parent: &Parent<'_>,
    all: &[StatusCondition],
) -> Vec<StatusCondition> {
    let (name, store) = (parent_name(parent), edges.store());
    if store.gateways().of_parent(&name).is_some_and(|it| store.gateways().is_waypoint(it)) {
        let message = "a waypoint is asked for the routes of Services: name each Service that this \
                       route is for as a parent, and not the waypoint's Gateway";
        return vec![routing::without_parent(message.to_owned())];
    }
    match edges.of_parent(parent).map(|edge| edge.attach(store, route, parent)) {
        Some(Ok(_)) => all.to_vec(),
        Some(Err(why)) => refused(all, why),
        None => Vec::new(),
    }
}

/// Whether a waypoint reads the requests to a parent of a route. Without one nobody does.
fn resolved_waypoints(store: &Store, parent: &ParentName) -> StatusCondition {
    let kind = RESOLVED_WAYPOINTS;
    match store.waypoint_of(parent) {
        Ok(waypoint) => {
            let message = format!("the waypoint {waypoint} routes by it");
            StatusCondition { kind, status: "True", reason: "ResolvedWaypoints", message }
        }
        Err(why) => {
            let unbound = store.binding(parent).and_then(|it| it.bound.err());
            let reason = unbound.map_or("MissingUseWaypointLabel", Unbound::reason);
            let message = format!("nobody routes by it: {why}");
            StatusCondition { kind, status: "False", reason, message }
        }
    }
}

/// Whether a route has anything to route at a parent; an error says why not.
pub(crate) fn attaches(
    store: &Store,
    routing: &Routing,
    parent: &Parent<'_>,
) -> Result<(), String> {
    let name = parent_name(parent);
    let ports = ports(store, &name);
    let port = parent.port(ports.as_deref())?;
    match routing.connections[..] {
        [] => Ok(()),
        [..] => has_connections(store, &name, ports.as_deref().unwrap_or_default(), port),
    }
}

/// Whether a route of connections at this port of a parent, or at all of them, has anything to
/// route: what is declared to be HTTP is routed by its requests.
fn has_connections(
    store: &Store,
    parent: &ParentName,
    ports: &[Port],
    port: Option<u16>,
) -> Result<(), String> {
    let protocols = protocols(store, parent).unwrap_or_default();
    let is_http =
        |number: u16| matches!(protocols.get(&number), Some(Protocol::Http | Protocol::Http2));
    let is_meant = |it: &&Port| port.is_none_or(|port| port == it.number);
    let meant: Vec<u16> = ports.iter().filter(is_meant).map(|it| it.number).collect();
    if !meant.is_empty() && meant.iter().all(|number| is_http(*number)) {
        let what = port.map_or("every port".to_owned(), |port| format!("port {port}"));
        return Err(format!(
            "{what} is declared to speak HTTP, whose requests this route does not see; use an \
             HTTPRoute, or declare `appProtocol: tcp`"
        ));
    }
    Ok(())
}

/// An HTTPRoute at a parent where GRPCRoutes take its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Displaced {
    /// The ports, each with a GRPCRoute that holds there.
    by: BTreeMap<u16, ObjectName>,
    /// Whether no port is left to it.
    pub(crate) is_whole: bool,
}

impl Displaced {
    /// What happens, as a sentence.
    pub(crate) fn message(&self) -> String {
        let at = |(port, by): (&u16, &ObjectName)| {
            format!("port {port} (GRPCRoute {}/{})", by.namespace, by.name)
        };
        let ports: Vec<String> = self.by.iter().map(at).collect();
        format!(
            "only GRPCRoutes hold at {}: where both kinds are attached to a port, no HTTPRoute \
             does (GEP-1294)",
            ports.join(", ")
        )
    }
}

/// Where GRPCRoutes for the same clients take the place of a route at a parent.
pub(crate) fn displaced(store: &Store, route: &Route, parent: &Parent<'_>) -> Option<Displaced> {
    let Route::Http(own) = route else { return None };
    let namespace = own.metadata.namespace.as_deref().unwrap_or_default();
    let owner = parent_name(parent);
    let ports = ports(store, &owner)?;
    let meant = parent.port(Some(&ports)).ok()?;
    let is_at = |port: &Port, at: Option<u16>| at.is_none_or(|it| it == port.number);
    let others = store.routes().of_parent(&owner);
    // Those of another namespace are for other clients.
    let others = others
        .filter(|((kind, name), _)| *kind == Kind::GrpcRoute && *name.namespace == *namespace);
    let mut by = BTreeMap::new();
    for ((_, name), other) in others {
        for there in other.parents().iter().filter(|it| parent_name(it) == owner) {
            let Ok(at) = there.port(Some(&ports)) else { continue };
            for port in ports.iter().filter(|it| is_at(it, meant) && is_at(it, at)) {
                by.entry(port.number).or_insert_with(|| name.clone());
            }
        }
    }
    let is_whole = ports.iter().filter(|it| is_at(it, meant)).all(|it| by.contains_key(&it.number));
    (!by.is_empty()).then_some(Displaced { by, is_whole })
}

/// What the ports of a parent that exists are declared to speak.
fn protocols(store: &Store, (kind, object): &ParentName) -> Option<BTreeMap<u16, Protocol>> {
    match kind {
        ParentKind::Service => store.service(object).map(|it| service_protocols(&it.object)),
        ParentKind::ServiceEntry => store.service_entry(object).map(|it| entry_protocols(it)),
        ParentKind::Gateway | ParentKind::ListenerSet => None,
    }
}
