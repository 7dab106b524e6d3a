//! Which gateways at the edge do what the waypoint of a service does.
//!
//! Those whose routes lead to the service, if it asks for it: whoever made such a route speaks for
//! the service, or was granted by who does. So do those whose routes lead to another service of
//! which the own routes lead on to it. Nothing here may name a gateway to a service that does not
//! ask, because the service's pods then take what that gateway has judged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_model::http::gateway::{GatewayRoute, GatewayRouteName};
use ambit_model::http::service::ServiceHttp;
use ambit_model::names::ServiceName;
use ambit_model::service::Service;
use ambit_model::view::{Change, View};
use ambit_words::labels::INGRESS_USE_WAYPOINT;

use super::selectors::Labels;

/// Who leads to the services that may be entered.
#[derive(Debug, Default)]
pub(super) struct Entrances {
    /// The routes of gateways, by the services to which they lead.
    routes: Leading<GatewayRouteName>,
    /// The services, by those to which their own routes lead: whoever enters one sends on to them.
    services: Leading<ServiceName>,
}

/// Whether what comes through gateways is to pass the waypoint, if a service or its namespace says.
pub(super) fn uses_waypoint(labels: &Labels, of_namespace: &Labels) -> Option<bool> {
    let said = [labels, of_namespace].into_iter().find_map(|it| it.get(INGRESS_USE_WAYPOINT));
    said?.parse().ok()
}

impl Entrances {
    /// Follows a change of a gateway's or a service's routes, before the view has it; answers with
    /// the services for which something may be another entrance then.
    pub(super) fn follow(&mut self, view: &View, change: &Change) -> BTreeSet<ServiceName> {
        let known = |name: &GatewayRouteName| connected(view.gateway_route(name).map(|it| &**it));
        let sent_on = |name: &ServiceName| sent_on(view.http_service(name).map(|it| &**it));
        match change {
            Change::GatewayRoute(new) => {
                let (old, new_ones) = (known(&new.name), connected(Some(new)));
                let changed = self.routes.lead(&new.name, &old, &new_ones);
                changed.iter().flat_map(sent_on).chain(changed.iter().cloned()).collect()
            }
            Change::RemoveGatewayRoute(name) => {
                let changed = self.routes.lead(name, &known(name), &BTreeSet::new());
                changed.iter().flat_map(sent_on).chain(changed.iter().cloned()).collect()
            }
            Change::HttpService(new) => {
                let (old, new_ones) = (sent_on(&new.service), self::sent_on(Some(new)));
                self.services.lead(&new.service, &old, &new_ones)
            }
            Change::RemoveHttpService(name) => {
                self.services.lead(name, &sent_on(name), &BTreeSet::new())
            }
            _ => BTreeSet::new(),
        }
    }

    /// Follows a change of a service, before the view has it; answers with the services for which
    /// something may be another entrance then.
    pub(super) fn follow_service(view: &View, change: &Change) -> BTreeSet<ServiceName> {
        let Change::Service(new) = change else { return BTreeSet::new() };
        let is_same = view
            .service(&new.key)
            .is_some_and(|old| (&old.entrances, &old.waypoint) == (&new.entrances, &new.waypoint));
        if is_same { BTreeSet::new() } else { sent_on(view.http_service(&new.key).map(|it| &**it)) }
    }

    /// Says of a service with a waypoint, of which this is said, where it is entered.
    pub(super) fn enter(&self, view: &View, service: &mut Service, uses_waypoint: Option<bool>) {
        service.ingress_use_waypoint = uses_waypoint == Some(true);
        if uses_waypoint == Some(false) && service.waypoint_service().is_some() {
            // What another waypoint stands before is reached through that one.
            let is_entered = |name: &&ServiceName| {
                let is_it =
                    |it: &Arc<Service>| !it.entrances.is_empty() && it.waypoint == service.waypoint;
                view.service(name).is_some_and(is_it)
            };
            let by_routes = self.services.to(&service.key).filter(is_entered);
            let entered = by_routes.chain([&service.key]);
            let routes = entered.flat_map(|it| self.routes.to(it));
            let gateways: BTreeSet<_> = routes.map(|it| &it.gateway).collect();
            service.entrances = gateways.into_iter().cloned().collect();
        }
    }
}

/// The services to which the routes of a service's makers lead.
fn sent_on(service: Option<&ServiceHttp>) -> BTreeSet<ServiceName> {
    let groups = service.into_iter().flat_map(|it| it.routes.groups());
    let groups = groups.filter(|it| it.client_namespace.is_none());
    let rules = groups.flat_map(|it| &it.rules);
    rules.flat_map(|it| it.destinations()).cloned().collect()
}

/// The services to which a route of a gateway leads connections.
fn connected(route: Option<&GatewayRoute>) -> BTreeSet<ServiceName> {
    let route = route.filter(|it| !it.takes_datagrams());
    route.into_iter().flat_map(|it| it.destinations()).cloned().collect()
}

/// What leads to services, by these.
#[derive(Debug)]
struct Leading<From>(BTreeMap<ServiceName, BTreeSet<From>>);

impl<From> Default for Leading<From> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<From: Ord + Clone> Leading<From> {
    /// What leads to a service.
    fn to(&self, service: &ServiceName) -> impl Iterator<Item = &From> {
        self.0.get(service).into_iter().flatten()
    }

    /// `from` led to the old ones and leads to the new ones; answers with those that differ.
    fn lead(
        &mut self,
        from: &From,
        old: &BTreeSet<ServiceName>,
        new: &BTreeSet<ServiceName>,
    ) -> BTreeSet<ServiceName> {
        for service in old.difference(new) {
            if let Some(all) = self.0.get_mut(service) {
                all.remove(from);
                if all.is_empty() {
                    self.0.remove(service);
                }
            }
        }
        for service in new.difference(old) {
            self.0.entry(service.clone()).or_default().insert(from.clone());
        }
        old.symmetric_difference(new).cloned().collect()
    }
}
