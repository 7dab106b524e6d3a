//! Where HTTPRoutes and GRPCRoutes meet: at one port of a service only routes of one kind hold, and
//! that is the more specific one (GEP-1294, "Route types"). The tables leave the others out
//! (`ambit_model::http::service`); what is said of them is decided here.

use std::collections::BTreeMap;

use ambit_manifest::routing::{Parent, Port};
use ambit_manifest::{Kind, ObjectName};

use super::http_services::ports;
use super::routes::{Route, parent_name};
use super::store::Store;

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
