//! From objects to the view that proxies get, one change at a time.
//!
//! [`Builder::apply`] takes events of the registry and returns the changes of the view, and nothing
//! for resources that stay the same. It keeps indexes by namespace, label, node, owner and listed
//! address, so a changed object costs only what depends on it and not the whole mesh. Names and
//! meanings are istiod's, except where a policy would fail open (see [`policy`]). Nothing here
//! reads a file or a clock, or uses the network.

mod authorizers;
pub(crate) mod backend_tls;
mod certificates;
mod client_roots;
mod destination_rules;
pub(crate) mod edge;
mod entrances;
mod entries;
pub(crate) mod gateways;
mod hosts;
pub(crate) mod http_services;
mod known;
mod listener_sets;
mod peer_auth;
pub(crate) mod records;
mod request_policies;
pub(crate) mod routes;
pub(crate) mod selectors;
pub(crate) mod services;
pub(crate) mod slices;
pub(crate) mod store;
pub(crate) mod traffic_policies;
mod vips;
mod virtual_services;
pub(crate) mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_model::Text;
use ambit_model::http::gateway::{Gateway, GatewayRoute, GatewayRouteName};
use ambit_model::http::policy::RequestPolicy;
use ambit_model::http::rule::Origin;
use ambit_model::http::service::ServiceHttp;
use ambit_model::http::telemetry::Telemetry;
use ambit_model::intern::Interner;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::Policy;
use ambit_model::service::Service;
use ambit_model::view::{Change, View};
use ambit_model::workload::Workload;

use self::edge::Edge;
use self::entrances::{Entrances, uses_waypoint};
use self::http_services::Present;
use self::records::Member;
use self::request_policies::{Held, Scope};
use self::routes::{ParentName, RouteName};
use self::selectors::Labels;
use self::store::{PolicyOrigin, Store};
pub(crate) use self::vips::Vips;
use crate::registry::Event;
use ambit_manifest::ObjectName;
use ambit_manifest::istio::{Action, AuthorizationPolicy, PeerAuthentication};
use ambit_manifest::policy::{self, StatusCondition};
use ambit_manifest::remarks::Remark;
use ambit_manifest::routing::{ParentKind, Routing};
use ambit_manifest::traffic_policy::Section;
use ambit_manifest::virtual_service::VirtualService;

/// What names the mesh, the same for every object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mesh {
    /// The cluster's name, part of every workload's.
    pub(crate) cluster_id: Text,
    /// The trust domain of all identities.
    pub(crate) trust_domain: Text,
    /// The namespace whose policies hold everywhere.
    pub(crate) root_namespace: Text,
    /// The DNS suffix of services.
    pub(crate) domain: Text,
    /// Whether Gateways of Istio's class at the edge are ours.
    pub(crate) stands_in: bool,
}

#[cfg(test)]
impl Mesh {
    /// The mesh of an installation without settings.
    pub(crate) fn sample() -> Self {
        use ambit_words::names::{
            DEFAULT_CLUSTER_DOMAIN, DEFAULT_MESH_NAMESPACE, DEFAULT_TRUST_DOMAIN,
        };

        Self {
            cluster_id: "Kubernetes".into(),
            trust_domain: DEFAULT_TRUST_DOMAIN.into(),
            root_namespace: DEFAULT_MESH_NAMESPACE.into(),
            domain: DEFAULT_CLUSTER_DOMAIN.into(),
            stands_in: false,
        }
    }
}

/// What must be built again after some events.
#[derive(Debug, Default)]
struct Dirty {
    members: BTreeSet<Member>,
    services: BTreeSet<ServiceName>,
    policies: BTreeSet<PolicyName>,
    listings: BTreeSet<Listing>,
    routes: BTreeSet<RouteName>,
    /// Whose requests go elsewhere, or are bounded otherwise.
    parents: BTreeSet<ParentName>,
    /// Routes, and to what each is or was attached.
    attached: BTreeSet<(ParentName, RouteName)>,
    /// Gateways at the edge whose listeners may have changed, and so where any route is attached.
    gateways: BTreeSet<ObjectName>,
}

/// Objects that list endpoints by address; each address may be its own workload.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Listing {
    /// A ServiceEntry.
    Entry(ObjectName),
    /// The EndpointSlices of a Service.
    Slices(ObjectName),
}

/// The view, and all that it is made of.
#[derive(Debug)]
pub(crate) struct Builder {
    mesh: Mesh,
    store: Store,
    view: View,
    interner: Interner,
    vips: Vips,
    listed_workloads: BTreeMap<Listing, BTreeSet<Text>>,
    conditions: BTreeMap<ObjectName, StatusCondition>,
    routings: BTreeMap<RouteName, Routing>,
    /// The Gateways at the edge that the view has, each by the name of its service.
    edges: BTreeMap<ObjectName, ServiceName>,
    entrances: Entrances,
    /// The policies that waypoints enforce, and for which requests.
    request_policies: BTreeMap<PolicyName, (Scope, Arc<RequestPolicy>)>,
}

impl Builder {
    /// A builder that knows no object yet, and the addresses that earlier runs allocated.
    pub(crate) fn new(mesh: Mesh, vips: Vips) -> Self {
        let mut view = View::default();
        view.apply(Change::Policy(peer_auth::static_strict(&mesh.root_namespace)));
        Self {
            store: Store::new(&mesh),
            mesh,
            view,
            interner: Interner::default(),
            vips,
            listed_workloads: BTreeMap::new(),
            conditions: BTreeMap::new(),
            routings: BTreeMap::new(),
            edges: BTreeMap::new(),
            entrances: Entrances::default(),
            request_policies: BTreeMap::new(),
        }
    }

    /// The resources that exist whatever the registry holds.
    pub(crate) fn initial(&self) -> Vec<Change> {
        vec![Change::Policy(peer_auth::static_strict(&self.mesh.root_namespace))]
    }

    /// The view that the events so far make.
    pub(crate) fn view(&self) -> &View {
        &self.view
    }

    /// What the pods of a Gateway at the edge are sent, if it is ours.
    pub(crate) fn gateway(&self, name: &ObjectName) -> Option<&Arc<Gateway>> {
        self.view.gateway(self.edges.get(name)?)
    }

    /// The objects themselves.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// What names the mesh.
    pub(crate) fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    /// The addresses allocated so far, if that changed since it was last asked.
    pub(crate) fn changed_vips(&mut self) -> Option<&Vips> {
        self.vips.take_changed().then_some(&self.vips)
    }

    /// The condition to report for an AuthorizationPolicy.
    pub(crate) fn condition(&self, policy: &ObjectName) -> Option<&StatusCondition> {
        self.conditions.get(policy)
    }

    /// The PeerAuthentication that a policy which no user wrote enforces at a pod or
    /// WorkloadEntry.
    pub(crate) fn peer_authentication(
        &self,
        policy: &PolicyName,
        workload: &ObjectName,
    ) -> Option<&PeerAuthentication> {
        self.store.mutual_tls_of(&self.mesh, workload)?.enforced_by(policy)
    }

    /// Why the provider of a CUSTOM policy cannot be asked, if so.
    pub(crate) fn provider_problem(&self, policy: &AuthorizationPolicy) -> Option<String> {
        let is_custom = policy.spec.action == Action::Custom;
        let provider = policy.spec.provider.as_ref().filter(|_| is_custom)?;
        authorizers::find(&self.present(), &provider.name).err()
    }

    /// What waypoints make of a CUSTOM policy that is theirs to enforce.
    pub(crate) fn provider_condition(
        &self,
        policy: &AuthorizationPolicy,
    ) -> Option<StatusCondition> {
        let provider = policy.spec.provider.as_ref()?;
        let scope = request_policies::scope(&self.mesh, policy);
        let namespace = policy.metadata.namespace.as_deref().unwrap_or_default();
        let is_theirs = scope.is_asked(self.store.gateways(), namespace);
        if policy.spec.action != Action::Custom || !is_theirs {
            return None;
        }
        let (status, reason, message) = match self.provider_problem(policy) {
            Some(why) => ("False", "Invalid", format!("{why}: what its rules match is refused")),
            None => ("True", "Accepted", format!("waypoints ask the provider {}", provider.name)),
        };
        Some(StatusCondition { kind: policy::WAYPOINT_ACCEPTED, status, reason, message })
    }

    /// What a route means.
    pub(crate) fn routing(&self, route: &RouteName) -> Option<&Routing> {
        self.routings.get(route)
    }

    /// The TrafficPolicy that decides a section for the requests to a service, if this rule of a
    /// route answers them.
    pub(crate) fn traffic_policy(
        &self,
        section: Section,
        name: &ServiceName,
        route: Option<&Origin>,
    ) -> Option<&ObjectName> {
        let policies = self.store.traffic_policies();
        let producers = route.filter(|origin| origin.is_producers(name));
        if let Some(own) = producers.and_then(|origin| policies.of_route(section, origin)) {
            return Some(own);
        }
        let owner = http_services::owner(&self.mesh, &self.store, name)?;
        let service = self.view.service(name).map(|it| &**it);
        let held = Held { name, owner: &owner, service, gateways: self.store.gateways() };
        policies.deciding(&self.mesh, section, &held).map(|(name, _)| name)
    }

    /// The DestinationRule that bounds the requests to a service, or to a subset of it.
    pub(crate) fn destination_rule(
        &self,
        name: &ServiceName,
        subset: Option<&str>,
    ) -> Option<&ObjectName> {
        let client = http_services::clients_namespace(&self.view, name);
        self.store.destination_rules().deciding_traffic(&self.mesh, name, &client, subset)
    }

    /// Takes events in order; answers with what changed in the view. A policy comes before the
    /// workloads that name it, and goes after them.
    pub(crate) fn apply(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Change> {
        let mut dirty = Dirty::default();
        for event in events {
            self.store.ingest(&self.mesh, event, &mut dirty);
        }
        let mut changes = Vec::new();
        let mut removed = Vec::new();
        for name in &dirty.policies {
            match self.policy(name) {
                Some(policy) => {
                    let same = self.view.policy(name).is_some_and(|known| **known == policy);
                    changes.extend((!same).then_some(Change::Policy(policy)));
                }
                None if self.view.policy(name).is_some() => {
                    removed.push(Change::RemovePolicy(name.clone()));
                }
                None => {}
            }
        }
        for name in &dirty.services {
            changes.extend(self.service_change(name));
        }
        let mut parted = BTreeSet::new();
        for member in std::mem::take(&mut dirty.members) {
            let uid = self.store.uid(&self.mesh, &member);
            let built = self.member(&member);
            parted.extend(self.with_subsets(&uid, built.as_ref()));
            changes.extend(self.workload_change(uid, built));
        }
        changes.extend(self.listing_changes(std::mem::take(&mut dirty.listings)));
        changes.extend(removed);
        let mut led_to = BTreeSet::new();
        for change in &changes {
            led_to.extend(Entrances::follow_service(&self.view, change));
            self.view.apply(change.clone());
        }
        let (of_policies, removed, held) = self.policy_changes(&dirty.policies);
        dirty.services.extend(held);
        dirty.services.extend(parted);
        let of_services = self.http_changes(dirty);
        let of_requests: Vec<Change> =
            of_policies.into_iter().chain(of_services).chain(removed).collect();
        for change in &of_requests {
            led_to.extend(self.entrances.follow(&self.view, change));
            self.view.apply(change.clone());
        }
        changes.extend(of_requests);
        while let Some(name) = led_to.pop_first() {
            let Some(change) = self.service_change(&name) else { continue };
            led_to.extend(Entrances::follow_service(&self.view, &change));
            self.view.apply(change.clone());
            changes.push(change);
        }
        changes
    }

    /// What changes of policies that waypoints enforce: those that are there, those that are gone,
    /// and the services for which one of them holds or held.
    fn policy_changes(
        &mut self,
        names: &BTreeSet<PolicyName>,
    ) -> (Vec<Change>, Vec<Change>, BTreeSet<ServiceName>) {
        let (mut changes, mut removed, mut scopes) = (Vec::new(), Vec::new(), Vec::new());
        for name in names {
            let object = ObjectName { namespace: name.namespace.clone(), name: name.name.clone() };
            let scoped = self.store.policy(&object).map(|policy| {
                let scope = request_policies::scope(&self.mesh, policy);
                (scope, request_policies::enforced(&self.mesh, policy))
            });
            let scoped =
                scoped.filter(|(scope, _)| scope.is_asked(self.store.gateways(), &name.namespace));
            let old = self.request_policies.get(name).cloned();
            let asks = |it: &RequestPolicy| authorizers::provider(it).cloned();
            let is_provider_same =
                old.as_ref().map(|it| asks(&it.1)) == scoped.as_ref().map(|it| asks(&it.1));
            let is_policy_same = match (&old, &scoped) {
                (Some((_, old)), Some((_, new))) => **old == *new,
                (None, None) => true,
                _ => false,
            };
            let (old_scope, new_scope) =
                (old.map(|it| it.0), scoped.as_ref().map(|it| it.0.clone()));
            if old_scope != new_scope || !is_provider_same {
                let both = old_scope.into_iter().chain(new_scope);
                scopes.extend(both.map(|scope| (name.namespace.clone(), scope)));
            }
            match scoped {
                Some((scope, policy)) => {
                    let policy = Arc::new(policy);
                    self.request_policies.insert(name.clone(), (scope, policy.clone()));
                    changes.extend((!is_policy_same).then_some(Change::RequestPolicy(policy)));
                }
                None if self.request_policies.remove(name).is_some() => {
                    removed.push(Change::RemoveRequestPolicy(name.clone()));
                }
                None => {}
            }
        }
        let services = if scopes.is_empty() { BTreeSet::new() } else { self.held_by(&scopes) };
        (changes, removed, services)
    }

    /// The services for which policies of these namespaces and scopes hold.
    fn held_by(&self, scopes: &[(Text, Scope)]) -> BTreeSet<ServiceName> {
        let held = self.view.services().filter(|service| {
            let name = &service.key;
            let Some(owner) = http_services::owner(&self.mesh, &self.store, name) else {
                return false;
            };
            let (service, gateways) = (Some(&***service), self.store.gateways());
            let held = Held { name, owner: &owner, service, gateways };
            scopes.iter().any(|(namespace, scope)| scope.holds(&self.mesh, namespace, &held))
        });
        held.map(|service| service.key.clone()).collect()
    }

    /// What changes of requests to services, and of gateways at the edge. Routes are read again
    /// where they or what they refer to changed, so this comes after the services.
    fn http_changes(&mut self, dirty: Dirty) -> Vec<Change> {
        let Dirty { mut services, mut routes, mut parents, mut attached, gateways, .. } = dirty;
        let mut routed = BTreeSet::new();
        for name in &services {
            routes.extend(self.store.routes().referring_to(&name.hostname).cloned());
            for host in self.store.virtual_services().routing_to(&self.mesh, &name.hostname) {
                routed.extend(self.store.services_of_host(&self.mesh, &host));
            }
        }
        services.extend(routed);
        if authorizers::is_among(&self.mesh, &self.store, &services) {
            let is_telling = |it: &ServiceHttp| it.telemetry != Telemetry::default();
            let asking = self.view.http_services();
            let asking = asking.filter(|it| !it.authorizers.is_empty() || is_telling(it));
            services.extend(asking.map(|it| it.service.clone()));
        }
        for name in routes {
            let Some(route) = self.store.routes().get(&name) else {
                self.routings.remove(&name);
                continue;
            };
            let routing = route.read(&self.present());
            if self.routings.get(&name) != Some(&routing) {
                let of_route = || route.parents().into_iter().map(|it| routes::parent_name(&it));
                parents.extend(of_route());
                attached.extend(of_route().map(|parent| (parent, name.clone())));
                self.routings.insert(name, routing);
            }
        }
        for (kind, object) in parents {
            match kind {
                ParentKind::Service => {
                    services.insert(services::service_name(&self.mesh, &object));
                }
                ParentKind::ServiceEntry => {
                    let entry = self.store.service_entry(&object);
                    let hosts = entry.iter().flat_map(|entry| &entry.spec.hosts);
                    let name =
                        |host: &String| ServiceName::new(object.namespace.clone(), host.as_str());
                    services.extend(hosts.map(name));
                }
                ParentKind::Gateway | ParentKind::ListenerSet => {
                    let known = self.store.gateways();
                    let named = (kind, object);
                    let Some(gateway) = known.of_parent(&named) else { continue };
                    services.insert(known.service_of(&self.mesh, gateway));
                }
            }
        }
        let services: Vec<Change> =
            services.into_iter().filter_map(|name| self.http_change(name)).collect();
        let of_gateways = self.gateway_changes(&gateways);
        let of_routes = self.gateway_route_changes(&attached, &gateways);
        services.into_iter().chain(of_gateways).chain(of_routes).collect()
    }

    /// What changes of single routes of gateways at the edge, but for these gateways.
    fn gateway_route_changes(
        &self,
        attached: &BTreeSet<(ParentName, RouteName)>,
        whole: &BTreeSet<ObjectName>,
    ) -> Vec<Change> {
        let mut at: BTreeMap<&ObjectName, BTreeSet<&RouteName>> = BTreeMap::new();
        for (parent, route) in attached {
            let gateway = self.store.gateways().of_parent(parent);
            if let Some(gateway) = gateway.filter(|it| !whole.contains(it)) {
                at.entry(gateway).or_default().insert(route);
            }
        }
        let mut changes = Vec::new();
        for (gateway, routes) in at {
            let (Some(edge), Some(service)) =
                (Edge::find(&self.store, gateway), self.edges.get(gateway))
            else {
                continue;
            };
            for name in routes {
                match edge.attached_route(&self.store, &self.routings, service, name) {
                    Some(route) => changes.extend(self.gateway_route_change(route)),
                    None => {
                        let (gateway, route) = (service.clone(), edge::attached_name(name));
                        let name = GatewayRouteName { gateway, route };
                        let is_known = self.view.gateway_route(&name).is_some();
                        changes.extend(is_known.then_some(Change::RemoveGatewayRoute(name)));
                    }
                }
            }
        }
        changes
    }

    fn gateway_route_change(&self, route: GatewayRoute) -> Option<Change> {
        let is_same = self.view.gateway_route(&route.name).is_some_and(|known| **known == route);
        (!is_same).then(|| Change::GatewayRoute(Arc::new(route)))
    }

    /// What changes of all routes of these services when this gateway is behind `new`.
    fn all_gateway_route_changes(
        &self,
        edge: Option<&Edge<'_>>,
        services: &BTreeSet<&ServiceName>,
        new: Option<&ServiceName>,
    ) -> Vec<Change> {
        let attached = edge.zip(new);
        let attached = attached.map(|(edge, own)| edge.attached(&self.store, &self.routings, own));
        let attached = attached.unwrap_or_default();
        let known = services.iter().flat_map(|it| self.view.gateway_routes(it));
        let is_gone = |name: &GatewayRouteName| {
            new != Some(&name.gateway) || !attached.contains_key(&name.route)
        };
        let gone = known.map(|it| &it.name).filter(|name| is_gone(name)).cloned();
        let gone: Vec<Change> = gone.map(Change::RemoveGatewayRoute).collect();
        let there = attached.into_values().filter_map(|it| self.gateway_route_change(it));
        gone.into_iter().chain(there).collect()
    }

    /// The Gateway at the edge of this name, if it is the one behind its service. Of several that
    /// ask for a service of one name the first is.
    fn edge(&self, name: &ObjectName) -> Option<(Edge<'_>, ServiceName)> {
        let edge = Edge::find(&self.store, name)?;
        let gateways = self.store.gateways();
        let service = gateways.service_of(&self.mesh, name);
        (gateways.edge_behind(&self.mesh, &service) == Some(name)).then_some((edge, service))
    }

    /// What changes of gateways at the edge, with all of their routes.
    fn gateway_changes(&mut self, names: &BTreeSet<ObjectName>) -> Vec<Change> {
        let (mut changes, mut names) = (Vec::new(), names.clone());
        while let Some(name) = names.pop_first() {
            let (edge, new) = self.edge(&name).unzip();
            let built = edge.as_ref().zip(new.as_ref());
            let built = built.map(|(edge, own)| edge.build(&self.store, own.clone()));
            let left = self.edges.get(&name).filter(|old| Some(*old) != new.as_ref());
            let heir = left.and_then(|it| self.store.gateways().edge_behind(&self.mesh, it));
            let heir = heir.filter(|it| **it != name).cloned();
            // What is sent as the service's is then the heir's to change.
            let old = self.edges.get(&name).filter(|_| heir.is_none()).cloned();
            // Another may have been behind the new one until now.
            let both: BTreeSet<&ServiceName> = old.iter().chain(&new).collect();
            let of_certificates =
                certificates::changes(&self.store, &self.view, &both, built.as_ref());
            changes.extend(of_certificates);
            let of_routes = self.all_gateway_route_changes(edge.as_ref(), &both, new.as_ref());
            names.extend(heir);
            self.edges.retain(|it, service| *it != name && Some(&*service) != new.as_ref());
            changes.extend(old.filter(|it| Some(it) != new.as_ref()).map(Change::RemoveGateway));
            if let (Some(built), Some(new)) = (built, new) {
                self.edges.insert(name, new);
                let known = self.view.gateway(&built.service);
                let is_news = known.is_none_or(|known| **known != built);
                changes.extend(is_news.then(|| Change::Gateway(Arc::new(built))));
            }
            changes.extend(of_routes);
        }
        changes
    }

    /// What is there for routes to refer to.
    fn present(&self) -> Present<'_> {
        Present { mesh: &self.mesh, store: &self.store, view: &self.view }
    }

    /// What of a VirtualService is wrong, is not honoured, or is not there.
    pub(crate) fn virtual_service_remarks(&self, service: &VirtualService) -> Vec<Remark> {
        self.store.virtual_services().remarks(&self.present(), service)
    }

    /// The services with subsets that a workload served or serves: it may be in another one now.
    fn with_subsets(&self, uid: &str, built: Option<&Workload>) -> Vec<ServiceName> {
        let old = self.view.workload(uid).into_iter().flat_map(|it| it.services.keys());
        let all = old.chain(built.into_iter().flat_map(|it| it.services.keys()));
        let is_parted = |name: &&ServiceName| {
            self.view.http_service(name).is_some_and(|it| !it.subsets.is_empty())
        };
        all.filter(is_parted).cloned().collect()
    }

    /// What of a Telemetry is wrong, or is not honoured.
    pub(crate) fn telemetry_remarks(&self, name: &ObjectName) -> Vec<Remark> {
        Store::telemetry_remarks(&self.present(), name)
    }

    /// How many services a Telemetry holds for.
    pub(crate) fn telemetry_services(&self, name: &ObjectName) -> usize {
        let (present, gateways) = (self.present(), self.store.gateways());
        let is_held = |service: &&Arc<Service>| {
            let key = &service.key;
            http_services::owner(&self.mesh, &self.store, key).is_some_and(|owner| {
                let service = Some(&***service);
                let held = Held { name: key, owner: &owner, service, gateways };
                Store::is_told(&present, name, &held)
            })
        };
        self.view.services().filter(is_held).count()
    }

    fn http_change(&self, name: ServiceName) -> Option<Change> {
        let known = self.view.http_service(&name);
        let Some(owner) = http_services::owner(&self.mesh, &self.store, &name) else {
            return known.is_some().then_some(Change::RemoveHttpService(name));
        };
        let service = self.view.service(&name).map(|it| &**it);
        let gateways = self.store.gateways();
        let held = Held { name: &name, owner: &owner, service, gateways };
        let policies = self.request_policies.iter();
        let policies = policies
            .filter(|(policy, (scope, _))| scope.holds(&self.mesh, &policy.namespace, &held));
        let (names, held_policies): (Vec<_>, Vec<_>) =
            policies.map(|(name, (_, policy))| (name.clone(), &**policy)).unzip();
        let authorizers = authorizers::of_policies(&self.present(), held_policies.into_iter());
        let authentication = self.store.authentication(&self.mesh, &held);
        let edge = gateways.edge_behind(&self.mesh, &name);
        let edge = edge.and_then(|edge| Edge::find(&self.store, edge));
        let edge: Vec<_> = edge.iter().flat_map(Edge::parents).collect();
        let parents = || [&owner].into_iter().chain(&edge);
        let routes = || {
            let attached = parents().flat_map(|parent| self.store.routes().of_parent(parent));
            attached.map(|(name, _)| name)
        };
        let traffic = self.store.traffic_policies();
        let rate_limits = traffic.rate_limits(&self.mesh, &held, routes());
        let limits = traffic.limits(&self.mesh, &held, routes());
        let compression = traffic.compression(&self.mesh, &held, routes());
        let health_check = traffic.health_check(&self.mesh, &held);
        let telemetry = Store::telemetry(&self.present(), &held);
        let built = http_services::build(&self.present(), &self.routings, &owner, name, names);
        let built = ServiceHttp {
            authentication,
            authorizers,
            rate_limits,
            limits,
            compression,
            health_check,
            telemetry,
            ..built
        };
        let is_news = known.is_none_or(|known| **known != built);
        is_news.then(|| Change::HttpService(Arc::new(built)))
    }

    fn policy(&mut self, name: &PolicyName) -> Option<Policy> {
        match self.store.policy_origin(&self.mesh, name) {
            PolicyOrigin::PeerAuthentication(effective) => effective.converted(),
            PolicyOrigin::Authorization(object, source) => {
                let converted = policy::convert(&source, &self.mesh.root_namespace);
                self.conditions.insert(object, converted.condition);
                converted.policy
            }
            PolicyOrigin::Gone(object) => {
                self.conditions.remove(&object);
                None
            }
        }
    }

    fn service_change(&mut self, name: &ServiceName) -> Option<Change> {
        let known = self.view.service(name).cloned();
        match (self.service(name), known) {
            (Some(service), Some(known)) if *known == service => None,
            (Some(service), _) => Some(Change::Service(service)),
            (None, Some(_)) => Some(Change::RemoveAddress(name.to_string().into())),
            (None, None) => None,
        }
    }

    /// The service of this name: a Kubernetes Service before a ServiceEntry, an older entry before
    /// a younger.
    fn service(&mut self, name: &ServiceName) -> Option<Service> {
        let namespace = self.store.namespace(&name.namespace);
        if let Some((object, record)) = self.store.kubernetes_service(&self.mesh, name) {
            let gateways = self.store.gateways();
            let mut service = services::build(&self.mesh, object, record, &namespace, gateways);
            let labels = record.object.metadata.labels.as_ref();
            let said = uses_waypoint(labels.unwrap_or(&Labels::new()), &namespace.labels);
            self.entrances.enter(&self.view, &mut service, said);
            return Some(service);
        }
        let Some((object, entry)) = self.store.entry_of_host(name) else {
            self.vips.release(&name.namespace, &name.hostname);
            return None;
        };
        let (host, mesh, gateways) = (&name.hostname, &self.mesh, self.store.gateways());
        let needs_address =
            entries::needs_address(mesh, &object, &entry, host, &namespace, gateways);
        let allocated = if needs_address {
            match self.vips.allocate(&name.namespace, &name.hostname) {
                Ok(addresses) => addresses.to_vec(),
                Err(error) => {
                    tracing::error!(service = %name, %error, "no address for this host");
                    Vec::new()
                }
            }
        } else {
            self.vips.release(&name.namespace, &name.hostname);
            Vec::new()
        };
        let (mesh, gateways) = (&self.mesh, self.store.gateways());
        let mut service =
            entries::service(mesh, &object, &entry, host, &allocated, &namespace, gateways);
        let labels = entry.metadata.labels.as_ref();
        let said = uses_waypoint(labels.unwrap_or(&Labels::new()), &namespace.labels);
        self.entrances.enter(&self.view, &mut service, said);
        Some(service)
    }

    fn workload_change(&mut self, uid: Text, workload: Option<Workload>) -> Option<Change> {
        match (workload, self.view.workload(&uid)) {
            (Some(workload), Some(known)) if **known == workload => None,
            (Some(mut workload), _) => {
                self.interner.workload(&mut workload);
                Some(Change::Workload(workload))
            }
            (None, Some(_)) => Some(Change::RemoveAddress(uid)),
            (None, None) => None,
        }
    }

    /// The workload of a pod or WorkloadEntry, with what it serves and what policies it is held to.
    fn member(&self, member: &Member) -> Option<Workload> {
        let namespace = self.store.namespace(member.namespace());
        let gateways = self.store.gateways();
        let (mut workload, serving) = match member {
            Member::Pod(name) => {
                let (pod, state) = self.store.pod(name)?;
                let node = self.store.node(&pod.node);
                let mesh = &self.mesh;
                let workload =
                    workloads::build(mesh, name, pod, state, node, &namespace, gateways)?;
                (workload, self.store.served_by_pod(&self.mesh, name, pod, state))
            }
            Member::Entry(name) => {
                let entry = self.store.workload_entry(name)?;
                let workload = entries::workload(&self.mesh, name, entry, &namespace, gateways);
                (workload, self.store.served_by_entry(&self.mesh, name, entry))
            }
        };
        // Also a WorkloadEntry's computer may have a proxy.
        workload.registry_only = self.store.mesh_config().registry_only;
        workload.policies = self.store.policies_of(&self.mesh, member, serving.keys());
        workload.services = Arc::new(serving);
        Some(workload)
    }

    /// What changes where these listings did. What one no longer lists goes last: a slice that
    /// changes its Service moves its workloads from one listing to another.
    fn listing_changes(&mut self, listings: BTreeSet<Listing>) -> Vec<Change> {
        let mut changes = Vec::new();
        let (mut known, mut listed) = (BTreeSet::new(), BTreeSet::new());
        for listing in listings {
            let built = self.listed(&listing);
            let uids: BTreeSet<Text> = built.iter().map(|workload| workload.uid.clone()).collect();
            for workload in built {
                changes.extend(self.workload_change(workload.uid.clone(), Some(workload)));
            }
            known.extend(self.listed_workloads.remove(&listing).unwrap_or_default());
            listed.extend(uids.iter().cloned());
            if !uids.is_empty() {
                self.listed_workloads.insert(listing, uids);
            }
        }
        changes.extend(known.difference(&listed).cloned().map(Change::RemoveAddress));
        changes
    }

    /// The workloads of a listing's own.
    fn listed(&self, listing: &Listing) -> Vec<Workload> {
        let built = match listing {
            Listing::Entry(name) => {
                let entry = self.store.service_entry(name);
                entry.map(|entry| entries::endpoints(&self.mesh, name, entry))
            }
            Listing::Slices(service) => {
                let listed = self.store.listed_outside_of_pods(service);
                listed.map(|(service, listed)| slices::workloads(&self.mesh, service, &listed))
            }
        };
        built.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
