//! Checks Gateway, ListenerSet and GatewayClass.
//!
//! A listener that no waypoint serves is a warning: the Gateway's status says the same, in a
//! cluster too, and nothing is sent there. Gateways at the edge have rules of their own.

use ambit_words::annotations::GATEWAY_SERVICE_ACCOUNT;
use ambit_words::labels::WAYPOINT_FOR;

use super::core::number;
use super::names::{dns_label, dns_subdomain, require};
use super::{acme, edge};
use crate::finding::{Issues, Path};
use crate::gateway::sets::ListenerSet;
use crate::gateway::{
    Gateway, GatewayClassSpec, Listener, Position, RouteNamespaces, Traffic, UNSUPPORTED_REMEDY,
};
use crate::waypoint::names;
use crate::waypoint::parameters::config_map;

/// Most listeners of a Gateway or of a ListenerSet, by the API's rules.
const LISTENERS_MAX: usize = 64;

/// Checks a GatewayClass.
pub(crate) fn class(spec: &GatewayClassSpec, at: &Path, issues: &mut Issues) {
    if spec.controller_name.is_empty() {
        let at = at.field("controllerName");
        issues.error(&at, "the class has no controller", "name it, as in ambit.io/mesh-controller");
    }
}

/// Checks a Gateway.
pub(crate) fn gateway(gateway: &Gateway, issues: &mut Issues) {
    let (spec, at) = (&gateway.spec, Path::at("spec"));
    require(issues, &at.field("gatewayClassName"), dns_subdomain, &spec.gateway_class_name);
    let position = Position::of_class(&spec.gateway_class_name, None);
    let is_waypoint = position == Some(Position::Waypoint);
    listeners(&spec.listeners, "Gateway", &at.field("listeners"), issues);
    for (index, listener) in spec.listeners.iter().enumerate().filter(|_| is_waypoint) {
        if let Err(what) = listener.judge() {
            issues.warn(&at.field("listeners").index(index), what, UNSUPPORTED_REMEDY);
        }
    }
    if let Some(allowed) = &spec.allowed_listeners {
        let at = at.field("allowedListeners");
        from(allowed.namespaces.as_ref(), &at, issues);
        if is_waypoint {
            issues.warn(&at, "a waypoint takes no ListenerSet", "remove it");
        }
    }
    if position == Some(Position::Edge) {
        edge::gateway(spec, issues);
    }
    if let Some(position) = position {
        made(gateway, position, issues);
    }
    acme::gateway(gateway, position, issues);
    traffic(gateway, issues);
}

/// Checks a ListenerSet. Its Gateway may be there later, and of any class: those of waypoints take
/// none.
pub(crate) fn listener_set(set: &ListenerSet, issues: &mut Issues) {
    let (spec, at) = (&set.spec, Path::at("spec"));
    let (parent, at_parent) = (&spec.parent_ref, at.field("parentRef"));
    if !parent.is_gateway() {
        let kind = parent.kind.as_deref().unwrap_or("Gateway");
        let group = parent.group.as_deref().unwrap_or_default();
        let what = format!("a ListenerSet is added to a Gateway, not to {kind} of group {group:?}");
        issues.error(&at_parent, what, "name a Gateway of group gateway.networking.k8s.io");
    }
    require(issues, &at_parent.field("name"), dns_subdomain, &parent.name);
    if let Some(namespace) = &parent.namespace {
        require(issues, &at_parent.field("namespace"), dns_label, namespace);
    }
    listeners(&spec.listeners, "ListenerSet", &at.field("listeners"), issues);
    edge::listener_set(set, issues);
}

/// Checks what holds for listeners of every position.
fn listeners(all: &[Listener], kind: &str, at: &Path, issues: &mut Issues) {
    if all.is_empty() || all.len() > LISTENERS_MAX {
        let (what, count) = (format!("1 to {LISTENERS_MAX} listeners"), all.len());
        issues.error(at, format!("a {kind} has {what}, here are {count}"), "list them");
    }
    for (index, listener) in all.iter().enumerate() {
        let at = at.index(index);
        require(issues, &at.field("name"), dns_subdomain, &listener.name);
        number(i64::from(listener.port), &at.field("port"), issues);
        if all[..index].iter().any(|other| other.name == listener.name) {
            issues.error(&at.field("name"), "two listeners have this name", "rename one");
        }
        if let Some(allowed) = &listener.allowed_routes {
            from(allowed.namespaces.as_ref(), &at.field("allowedRoutes"), issues);
        }
    }
}

/// Checks which namespaces are chosen.
fn from(namespaces: Option<&RouteNamespaces>, at: &Path, issues: &mut Issues) {
    let at = at.field("namespaces").field("from");
    if let Some(from) = namespaces.and_then(|it| it.from.as_deref())
        && !["Same", "All", "Selector", "None"].contains(&from)
    {
        issues.error(&at, format!("`{from}` is no choice"), "use Same, All or Selector");
    }
}

/// What objects are made of it, and how they are called.
fn made(gateway: &Gateway, position: Position, issues: &mut Issues) {
    if let Some(Err(what)) = config_map(gateway) {
        let at = Path::at("spec").field("infrastructure").field("parametersRef");
        issues.error(&at, what, "or remove it");
    }
    // Its Service has this name.
    let names = names(gateway, position);
    require(issues, &Path::at("metadata").field("name"), dns_label, &names.objects);
    let at = Path::at("metadata").field("annotations").field(GATEWAY_SERVICE_ACCOUNT);
    require(issues, &at, dns_subdomain, &names.account);
}

/// A misspelt value would silently send traffic around the waypoint.
fn traffic(gateway: &Gateway, issues: &mut Issues) {
    if let Err(text) = Traffic::of(gateway.metadata.labels.as_ref()) {
        let at = Path::at("metadata").field("labels").field(WAYPOINT_FOR);
        let remedy = "use service, workload, all or none";
        issues.error(&at, format!("`{text}` is no traffic that a waypoint is for"), remedy);
    }
}
