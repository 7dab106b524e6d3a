//! Checks Gateway and GatewayClass.
//!
//! A listener that no waypoint serves is a warning: the Gateway's status says the same, in a
//! cluster too, and nothing is sent there. Gateways at the edge have rules of their own.

use ambit_words::annotations::GATEWAY_SERVICE_ACCOUNT;
use ambit_words::labels::WAYPOINT_FOR;

use super::core::number;
use super::edge;
use super::names::{dns_label, dns_subdomain, require};
use crate::finding::{Issues, Path};
use crate::gateway::{Gateway, GatewayClassSpec, Position, Traffic, UNSUPPORTED_REMEDY};
use crate::waypoint::names;
use crate::waypoint::parameters::config_map;

/// Most listeners of a Gateway, by the API's rules.
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
    let at = at.field("listeners");
    if spec.listeners.is_empty() || spec.listeners.len() > LISTENERS_MAX {
        let (what, count) = (format!("1 to {LISTENERS_MAX} listeners"), spec.listeners.len());
        issues.error(&at, format!("a Gateway has {what}, here are {count}"), "list them");
    }
    let position = Position::of_class(&spec.gateway_class_name, None);
    let is_waypoint = position == Some(Position::Waypoint);
    for (index, listener) in spec.listeners.iter().enumerate() {
        let at = at.index(index);
        require(issues, &at.field("name"), dns_subdomain, &listener.name);
        number(i64::from(listener.port), &at.field("port"), issues);
        if spec.listeners[..index].iter().any(|other| other.name == listener.name) {
            issues.error(&at.field("name"), "two listeners have this name", "rename one");
        }
        let namespaces = listener.allowed_routes.iter().filter_map(|it| it.namespaces.as_ref());
        for from in namespaces.filter_map(|it| it.from.as_deref()) {
            if !["Same", "All", "Selector", "None"].contains(&from) {
                let at = at.field("allowedRoutes").field("namespaces").field("from");
                issues.error(&at, format!("`{from}` is no choice"), "use Same, All or Selector");
            }
        }
        if is_waypoint && let Err(what) = listener.judge() {
            issues.warn(&at, what, UNSUPPORTED_REMEDY);
        }
    }
    if position == Some(Position::Edge) {
        edge::gateway(spec, issues);
    }
    if let Some(position) = position {
        made(gateway, position, issues);
    }
    traffic(gateway, issues);
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
