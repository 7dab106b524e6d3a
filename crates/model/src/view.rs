//! The immutable view: everything a proxy knows about the mesh.
//!
//! A view is made of persistent maps: a clone is a handful of reference counts, and one changed
//! workload among 100,000 costs the path to it. A reader holds its own view and never waits; a
//! writer clones, applies [`Change`]s and publishes. A view decides nothing itself: [`crate::plan`]
//! and [`crate::authorize`] do.

use std::cmp::Reverse;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

use foldhash::quality::RandomState;
use imbl::{OrdMap, OrdSet, Vector};

use crate::Text;
use crate::http::certificate::{Certificate, CertificateName};
use crate::http::gateway::{Gateway, GatewayRoute, GatewayRouteName};
use crate::http::policy::RequestPolicy;
use crate::http::service::ServiceHttp;
use crate::index::Index;
use crate::map::Map;
use crate::names::{NetworkAddress, PolicyName, ServiceName, WorkloadName};
use crate::policy::{Policy, PolicyScope};
use crate::service::{Service, VirtualAddress};
use crate::sieve::Sieve;
use crate::workload::Workload;

/// One change of a view.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A workload appeared or changed.
    Workload(Workload),
    /// A service appeared or changed.
    Service(Service),
    /// A policy appeared or changed.
    Policy(Policy),
    /// A workload (by uid) or a service (by `namespace/hostname`) is gone.
    RemoveAddress(Text),
    /// A policy is gone.
    RemovePolicy(PolicyName),
    /// What holds for the requests to a service appeared or changed.
    HttpService(Arc<ServiceHttp>),
    /// Nothing is known any more of the requests to a service.
    RemoveHttpService(ServiceName),
    /// A certificate of a gateway appeared or changed.
    Certificate(Arc<Certificate>),
    /// A certificate of a gateway is gone.
    RemoveCertificate(CertificateName),
    /// A gateway at the edge appeared or changed.
    Gateway(Arc<Gateway>),
    /// A gateway at the edge is gone.
    RemoveGateway(ServiceName),
    /// A route of a gateway at the edge appeared or changed, or is attached elsewhere.
    GatewayRoute(Arc<GatewayRoute>),
    /// A route of a gateway at the edge is there, and nobody here can read what it says.
    UnreadableGatewayRoute(GatewayRouteName),
    /// A route is not attached to a gateway at the edge any more.
    RemoveGatewayRoute(GatewayRouteName),
    /// A policy that reads requests appeared or changed.
    RequestPolicy(Arc<RequestPolicy>),
    /// A policy that reads requests is gone.
    RemoveRequestPolicy(PolicyName),
}

/// Everything a proxy knows about the mesh at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    workloads: Index<Workload>,
    workloads_by_address: Index<Workload>,
    workloads_by_name: Index<Workload>,
    hasher: RandomState,
    services: Index<Service>,
    services_by_address: Index<Service>,
    services_by_hostname: Index<Service>,
    service_blocks: Vector<(VirtualAddress, ServiceName)>,
    declared: Map<u16, OrdSet<ServiceName>>,
    workloads_by_host: Index<Workload>,
    endpoints: Map<ServiceName, Endpoints>,
    policies: Map<PolicyName, Arc<Policy>>,
    global_policies: OrdSet<PolicyName>,
    namespace_policies: Map<Text, OrdSet<PolicyName>>,
    sieve: Sieve,
    http_services: Map<ServiceName, Arc<ServiceHttp>>,
    certificates: Map<CertificateName, Arc<Certificate>>,
    /// With their routes attached.
    gateways: Map<ServiceName, Arc<Gateway>>,
    /// The routes of gateways, which may come first, by what is behind the gateway in their names.
    gateway_routes: Map<ServiceName, OrdMap<Text, Arc<GatewayRoute>>>,
    /// The routes of gateways that cannot be read. None of them is empty.
    unreadable_routes: Map<ServiceName, OrdSet<Text>>,
    request_policies: Map<PolicyName, Arc<RequestPolicy>>,
    authorization_version: u64,
}

/// The workloads behind one service, in the order of their uid.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    members: Members,
    largest_capacity: u32,
}

/// Workloads in the order of their uid.
#[derive(Clone, Debug)]
enum Members {
    /// At most [`FEW`], as most services have: a persistent vector takes room for 64.
    Few(Arc<[Arc<Workload>]>),
    /// More; a change copies only a part of them.
    Many(Vector<Arc<Workload>>),
}

/// Most members that are copied when one of them changes.
const FEW: usize = 32;

impl Default for Members {
    fn default() -> Self {
        Self::Few(Arc::default())
    }
}

impl Members {
    /// Replaces those in this range, at most one, by this one, if it is given.
    fn splice(&mut self, range: Range<usize>, workload: Option<&Arc<Workload>>) {
        match self {
            Self::Few(few) => {
                let (before, after) = (&few[..range.start], &few[range.end..]);
                let all = before.iter().chain(workload).chain(after).cloned();
                let len = few.len() - range.len() + usize::from(workload.is_some());
                *self =
                    if len > FEW { Self::Many(all.collect()) } else { Self::Few(all.collect()) };
            }
            Self::Many(many) => {
                match (range.is_empty(), workload) {
                    (false, Some(workload)) => drop(many.set(range.start, workload.clone())),
                    (false, None) => drop(many.remove(range.start)),
                    (true, Some(workload)) => many.insert(range.start, workload.clone()),
                    (true, None) => {}
                }
                // Not at once, or a member that comes and goes would copy all of them each time.
                if many.len() <= FEW / 2 {
                    *self = Self::Few(many.iter().cloned().collect());
                }
            }
        }
    }
}

impl Endpoints {
    /// How many there are, ready or not.
    pub fn len(&self) -> usize {
        match &self.members {
            Members::Few(few) => few.len(),
            Members::Many(many) => many.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in the order of their uid.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Workload>> {
        let (few, many) = match &self.members {
            Members::Few(few) => (Some(few.iter()), None),
            Members::Many(many) => (None, Some(many.iter())),
        };
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    pub(crate) fn nth(&self, index: usize) -> Option<&Arc<Workload>> {
        match &self.members {
            Members::Few(few) => few.get(index),
            Members::Many(many) => many.get(index),
        }
    }

    /// An upper bound of its members' capacities.
    pub(crate) fn largest_capacity(&self) -> u32 {
        self.largest_capacity
    }

    /// Where it is, or the empty range where it would be.
    fn place(&self, uid: &str) -> Range<usize> {
        let position = match &self.members {
            Members::Few(few) => few.binary_search_by(|member| (*member.uid).cmp(uid)),
            Members::Many(many) => many.binary_search_by(|member| (*member.uid).cmp(uid)),
        };
        match position {
            Ok(at) => at..at + 1,
            Err(at) => at..at,
        }
    }

    fn put(&mut self, workload: &Arc<Workload>) {
        self.largest_capacity = self.largest_capacity.max(workload.capacity);
        self.members.splice(self.place(&workload.uid), Some(workload));
    }

    fn remove(&mut self, uid: &str) {
        self.members.splice(self.place(uid), None);
    }
}

impl View {
    /// Applies one change. A change that names nothing known is a no-op, as on the wire.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Workload(workload) => self.put_workload(Arc::new(workload)),
            Change::Service(service) => self.put_service(Arc::new(service)),
            Change::Policy(policy) => self.put_policy(Arc::new(policy)),
            Change::RemoveAddress(name) => self.remove_address(&name),
            Change::RemovePolicy(name) => self.remove_policy(&name),
            Change::HttpService(it) => self.put_http_service(it),
            Change::RemoveHttpService(name) => self.remove_http_service(&name),
            Change::Certificate(it) => drop(self.certificates.insert(it.key.clone(), it)),
            Change::RemoveCertificate(name) => drop(self.certificates.remove(&name)),
            Change::Gateway(it) => self.put_gateway(it),
            Change::RemoveGateway(name) => drop(self.gateways.remove(&name)),
            Change::GatewayRoute(route) => self.attach(&route),
            Change::UnreadableGatewayRoute(name) => {
                self.detach(&name);
                self.unreadable_routes.entry(name.gateway).or_default().insert(name.route);
            }
            Change::RemoveGatewayRoute(name) => self.detach(&name),
            Change::RequestPolicy(policy) => {
                self.authorization_version += 1;
                self.request_policies.insert(policy.key.clone(), policy);
            }
            Change::RemoveRequestPolicy(name) => {
                let removed = self.request_policies.remove(&name);
                self.authorization_version += u64::from(removed.is_some());
            }
        }
    }

    /// The workload of this uid.
    pub fn workload(&self, uid: &str) -> Option<&Arc<Workload>> {
        self.workloads.get(self.hasher.hash_one(uid)).find(|it| *it.uid == *uid)
    }

    /// The workload of this name, as an agent names a pod: of several a pod before entries that
    /// somebody wrote, then the first by uid.
    pub fn workload_named(&self, name: &WorkloadName) -> Option<&Arc<Workload>> {
        let WorkloadName { namespace, name } = name;
        let candidates = || self.workloads_by_name.get(self.name_key(namespace, name));
        let is_named = |it: &&Arc<Workload>| it.namespace == *namespace && it.name == *name;
        let mut pods = candidates().filter(|it| it.is_pod());
        pods.find(is_named).or_else(|| candidates().find(is_named))
    }

    /// The workload at this address. Workloads on their node's network have none of their own.
    pub fn workload_at(&self, network: &Text, ip: IpAddr) -> Option<&Arc<Workload>> {
        let mut candidates = self.workloads_by_address.get(self.address_key(network, ip));
        let is_there = |workload: &&Arc<Workload>| {
            workload.network == *network && workload.addresses.contains(&ip)
        };
        candidates.find(is_there)
    }

    /// All workloads at this address, also those that only share it with their node.
    pub(crate) fn workloads_at(
        &self,
        network: &Text,
        ip: IpAddr,
    ) -> impl Iterator<Item = &Arc<Workload>> {
        let key = self.address_key(network, ip);
        let all = self.workloads_by_address.get(key).chain(self.workloads_by_host.get(key));
        all.filter(move |it| it.network == *network && it.addresses.contains(&ip))
    }

    /// What is declared for a port beside the cluster's own services.
    pub(crate) fn declared_at(&self, port: u16) -> impl Iterator<Item = &Arc<Service>> {
        let names = self.declared.get(&port).into_iter().flatten();
        names.filter_map(|name| self.service(name))
    }

    fn name_key(&self, namespace: &str, name: &str) -> u64 {
        self.hasher.hash_one((namespace, name))
    }

    fn address_key(&self, network: &Text, ip: IpAddr) -> u64 {
        self.hasher.hash_one((network, ip))
    }

    /// The service of this name.
    pub fn service(&self, name: &ServiceName) -> Option<&Arc<Service>> {
        self.services.get(self.hasher.hash_one(name)).find(|it| it.key == *name)
    }

    /// The service at this virtual address, as seen from a namespace: its own before others', and
    /// never one that is private to another.
    pub fn service_at(&self, network: &Text, ip: IpAddr, from: &str) -> Option<&Arc<Service>> {
        let candidates = self.services_by_address.get(self.address_key(network, ip));
        let exact = visible(candidates.filter(|it| is_at(it, network, ip)), from);
        exact.or_else(|| {
            let blocks = self.service_blocks.iter();
            let holding = blocks.filter(|(block, _)| holds(block, network, ip));
            let found = holding.filter_map(|(block, name)| {
                let service = self.service(name)?;
                let is_own = *service.key.namespace == *from;
                let is_seen = is_own || !service.namespace_only;
                is_seen.then_some(((is_own, block.prefix_len), service))
            });
            // Of two that say the same, every proxy takes the same, whichever it heard of first.
            let rank = |(rank, service): &(_, &Arc<Service>)| (*rank, Reverse(service.key.clone()));
            found.max_by_key(rank).map(|(_, service)| service)
        })
    }

    /// The service that a connection to this address means: one at that virtual address, unless the
    /// address is a pod's own. What one namespace declares must not take over another's pods.
    pub fn service_meant(&self, network: &Text, ip: IpAddr, from: &str) -> Option<&Arc<Service>> {
        let service = self.service_at(network, ip, from)?;
        let owner = self.workload_at(network, ip).filter(|workload| workload.is_pod());
        // The canonical services are the cluster's own, which gives no address away twice.
        let is_theirs =
            |pod: &Arc<Workload>| service.canonical || service.key.namespace == pod.namespace;
        owner.is_none_or(is_theirs).then_some(service)
    }

    /// A service at this virtual address that is for one namespace alone, and not for this one.
    pub fn private_at(&self, network: &Text, ip: IpAddr, from: &str) -> Option<&Arc<Service>> {
        let mut candidates = self.services_by_address.get(self.address_key(network, ip));
        let is_private = |it: &Service| it.namespace_only && *it.key.namespace != *from;
        candidates.find(|it| is_private(it) && is_at(it, network, ip))
    }

    /// Whether one of the cluster's own services has this very address, whoever may see it.
    pub(crate) fn is_canonical_at(&self, network: &Text, ip: IpAddr) -> bool {
        let mut candidates = self.services_by_address.get(self.address_key(network, ip));
        candidates.any(|it| it.canonical && is_at(it, network, ip))
    }

    /// The service with this hostname, as seen from a namespace.
    pub fn service_by_hostname(&self, hostname: &str, from: &str) -> Option<&Arc<Service>> {
        let candidates = self.services_by_hostname.get(self.hasher.hash_one(hostname));
        visible(candidates.filter(|it| *it.key.hostname == *hostname), from)
    }

    /// The workloads behind a service.
    pub fn endpoints(&self, name: &ServiceName) -> Option<&Endpoints> {
        self.endpoints.get(name)
    }

    /// The policy of this name.
    pub fn policy(&self, name: &PolicyName) -> Option<&Arc<Policy>> {
        self.policies.get(name)
    }

    /// The policies that hold for a workload: mesh-wide, of its namespace, and those it names.
    /// A name that the view does not know is returned as an error.
    pub fn policies_of<'a>(
        &'a self,
        workload: &'a Workload,
    ) -> impl Iterator<Item = Result<&'a Arc<Policy>, &'a PolicyName>> {
        let namespaced = self.namespace_policies.get(&workload.namespace);
        let scoped = self.global_policies.iter().chain(namespaced.into_iter().flatten());
        scoped.chain(&workload.policies).map(|name| self.policies.get(name).ok_or(name))
    }

    /// Whether there are policies of the mesh, or of this namespace.
    pub(crate) fn has_policies(&self, namespace: Option<&Text>) -> bool {
        match namespace {
            None => !self.global_policies.is_empty(),
            Some(namespace) => self.namespace_policies.contains_key(namespace),
        }
    }

    /// The policies of the mesh and of namespaces, by what matches them.
    pub(crate) fn sieve(&self) -> &Sieve {
        &self.sieve
    }

    /// What holds for the requests to a service; `None` where that is not known (yet), which is not
    /// the same as a service without routes and policies.
    pub fn http_service(&self, name: &ServiceName) -> Option<&Arc<ServiceHttp>> {
        self.http_services.get(name)
    }

    /// A gateway's certificate, by the Secret that its listeners name.
    pub fn certificate(&self, gateway: &ServiceName, secret: &str) -> Option<&Arc<Certificate>> {
        let name = CertificateName { gateway: gateway.clone(), secret: secret.into() };
        self.certificates.get(&name)
    }

    /// What the gateway serves that is behind this service. While one of its routes cannot be read
    /// it is nothing: other routes might take the requests.
    pub fn gateway(&self, name: &ServiceName) -> Option<&Arc<Gateway>> {
        self.gateways.get(name).filter(|_| !self.unreadable_routes.contains_key(name))
    }

    /// The routes of the gateway behind this service that cannot be read.
    pub fn unreadable_routes(&self, name: &ServiceName) -> impl Iterator<Item = &Text> {
        self.unreadable_routes.get(name).into_iter().flatten()
    }

    /// The routes of the gateway that is behind this service, in the order of their names.
    pub fn gateway_routes(&self, name: &ServiceName) -> impl Iterator<Item = &Arc<GatewayRoute>> {
        self.gateway_routes.get(name).into_iter().flat_map(|it| it.values())
    }

    /// A route of a gateway.
    pub fn gateway_route(&self, name: &GatewayRouteName) -> Option<&Arc<GatewayRoute>> {
        self.gateway_routes.get(&name.gateway)?.get(&name.route)
    }

    /// What is known of the requests to services, in no particular order.
    pub fn http_services(&self) -> impl Iterator<Item = &Arc<ServiceHttp>> {
        self.http_services.values()
    }

    /// The policies that hold for the requests to a service. A name that the view does not know is
    /// returned as an error.
    pub fn request_policies_of<'a>(
        &'a self,
        service: &'a ServiceHttp,
    ) -> impl Iterator<Item = Result<&'a Arc<RequestPolicy>, &'a PolicyName>> {
        service.policies.iter().map(|name| self.request_policies.get(name).ok_or(name))
    }

    /// All workloads, in no particular order.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.iter()
    }

    /// All services, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.iter()
    }

    /// All policies, in no particular order.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }

    /// Changes whenever the answer of [`View::authorize`] for a live connection, or of
    /// [`authorize`](crate::http::authorize::authorize) for a request, may have changed.
    pub fn authorization_version(&self) -> u64 {
        self.authorization_version
    }

    fn put_workload(&mut self, workload: Arc<Workload>) {
        let old = self.workload(&workload.uid).cloned();
        if concerns_authorization(old.as_deref(), &workload) {
            self.authorization_version += 1;
        }
        if let Some(old) = old {
            self.forget_workload(&old, Some(&workload));
        }
        for ip in &workload.addresses {
            let key = self.address_key(&workload.network, *ip);
            match workload.host_network {
                false => self.workloads_by_address.add(key, &workload),
                true => self.workloads_by_host.add(key, &workload),
            }
        }
        self.workloads_by_name.add(self.name_key(&workload.namespace, &workload.name), &workload);
        for service in workload.services.keys() {
            self.endpoints.entry(service.clone()).or_default().put(&workload);
        }
        self.workloads.add(self.hasher.hash_one(&*workload.uid), &workload);
    }

    /// Removes the traces of `old`, except the endpoints that its successor keeps.
    fn forget_workload(&mut self, old: &Arc<Workload>, successor: Option<&Workload>) {
        for ip in &old.addresses {
            let key = self.address_key(&old.network, *ip);
            match old.host_network {
                false => self.workloads_by_address.remove(key, old),
                true => self.workloads_by_host.remove(key, old),
            }
        }
        self.workloads_by_name.remove(self.name_key(&old.namespace, &old.name), old);
        self.workloads.remove(self.hasher.hash_one(&*old.uid), old);
        for service in old.services.keys() {
            if successor.is_some_and(|next| next.services.contains_key(service)) {
                continue;
            }
            let Some(endpoints) = self.endpoints.get_mut(service) else { continue };
            endpoints.remove(&old.uid);
            if endpoints.is_empty() {
                self.endpoints.remove(service);
            }
        }
    }

    fn put_service(&mut self, service: Arc<Service>) {
        let old = self.service(&service.key).cloned();
        let nothing = (&None, &[][..], &[][..]);
        if old.as_deref().map_or(nothing, Service::passes) != service.passes() {
            self.authorization_version += 1;
        }
        if let Some(old) = old {
            self.forget_service(&old);
        }
        for address in &service.addresses {
            match address.prefix_len {
                None => {
                    let NetworkAddress { network, ip } = &address.address;
                    let key = self.address_key(network, *ip);
                    self.services_by_address.add(key, &service);
                }
                Some(_) => self.service_blocks.push_back((address.clone(), service.key.clone())),
            }
        }
        for port in service.ports.iter().filter(|_| !service.canonical) {
            let names = self.declared.entry(port.service_port).or_default();
            names.insert(service.key.clone());
        }
        let hostname = self.hasher.hash_one(&*service.key.hostname);
        self.services_by_hostname.add(hostname, &service);
        self.services.add(self.hasher.hash_one(&service.key), &service);
    }

    fn forget_service(&mut self, old: &Arc<Service>) {
        for VirtualAddress { address, .. } in &old.addresses {
            let key = self.address_key(&address.network, address.ip);
            self.services_by_address.remove(key, old);
        }
        self.service_blocks.retain(|(_, name)| *name != old.key);
        for port in &old.ports {
            let Some(names) = self.declared.get_mut(&port.service_port) else { continue };
            names.remove(&old.key);
            if names.is_empty() {
                self.declared.remove(&port.service_port);
            }
        }
        self.services_by_hostname.remove(self.hasher.hash_one(&*old.key.hostname), old);
        self.services.remove(self.hasher.hash_one(&old.key), old);
    }

    fn remove_address(&mut self, name: &str) {
        if let Some(old) = self.workload(name).cloned() {
            self.forget_workload(&old, None);
        } else if let Ok(name) = name.parse::<ServiceName>()
            && let Some(old) = self.service(&name).cloned()
        {
            self.forget_service(&old);
        }
    }

    fn put_policy(&mut self, policy: Arc<Policy>) {
        self.remove_policy(&policy.key);
        self.authorization_version += 1;
        match policy.scope {
            PolicyScope::Global => drop(self.global_policies.insert(policy.key.clone())),
            PolicyScope::Namespace => {
                let names = self.namespace_policies.entry(policy.key.namespace.clone());
                names.or_default().insert(policy.key.clone());
            }
            PolicyScope::WorkloadSelector => {}
        }
        self.sieve.add(&policy);
        self.policies.insert(policy.key.clone(), policy);
    }

    /// What is attached stays attached.
    fn put_gateway(&mut self, mut it: Arc<Gateway>) {
        if let Some(routes) = self.gateway_routes.get(&it.service) {
            let gateway = Arc::make_mut(&mut it);
            routes.values().for_each(|route| gateway.attach(route));
        }
        self.gateways.insert(it.service.clone(), it);
    }

    fn attach(&mut self, route: &Arc<GatewayRoute>) {
        self.mark_readable(&route.name);
        let GatewayRouteName { gateway, route: name } = &route.name;
        let routes = self.gateway_routes.entry(gateway.clone()).or_default();
        let old = routes.insert(name.clone(), route.clone());
        if let Some(gateway) = self.gateways.get_mut(gateway).map(Arc::make_mut) {
            old.iter().for_each(|old| gateway.detach(old));
            gateway.attach(route);
        }
    }

    /// The route is not among those that cannot be read, or no longer.
    fn mark_readable(&mut self, name: &GatewayRouteName) {
        let Some(unreadable) = self.unreadable_routes.get_mut(&name.gateway) else { return };
        unreadable.remove(&name.route);
        if unreadable.is_empty() {
            self.unreadable_routes.remove(&name.gateway);
        }
    }

    fn detach(&mut self, name: &GatewayRouteName) {
        self.mark_readable(name);
        let Some(routes) = self.gateway_routes.get_mut(&name.gateway) else { return };
        let Some(old) = routes.remove(&name.route) else { return };
        if routes.is_empty() {
            self.gateway_routes.remove(&name.gateway);
        }
        if let Some(gateway) = self.gateways.get_mut(&name.gateway).map(Arc::make_mut) {
            gateway.detach(&old);
        }
    }

    fn put_http_service(&mut self, it: Arc<ServiceHttp>) {
        let old = self.http_services.get(&it.service);
        let same = |old: &ServiceHttp| {
            old.policies == it.policies
                && old.authorizers == it.authorizers
                && old.takes_bytes_like(&it)
        };
        if !old.is_some_and(|old| same(old)) {
            self.authorization_version += 1;
        }
        self.http_services.insert(it.service.clone(), it);
    }

    fn remove_http_service(&mut self, name: &ServiceName) {
        let removed = self.http_services.remove(name);
        self.authorization_version += u64::from(removed.is_some());
    }

    fn remove_policy(&mut self, name: &PolicyName) {
        if let Some(old) = self.policies.remove(name) {
            self.sieve.remove(&old);
            self.authorization_version += 1;
            self.global_policies.remove(name);
            let policies = self.namespace_policies.get_mut(&name.namespace);
            if policies.is_some_and(|policies| {
                policies.remove(name);
                policies.is_empty()
            }) {
                self.namespace_policies.remove(&name.namespace);
            }
        }
    }
}

/// Whether a workload's change can turn an allowed connection to it into a denied one.
fn concerns_authorization(old: Option<&Workload>, new: &Workload) -> bool {
    match old {
        Some(old) => {
            old.policies != new.policies
                || old.waypoint != new.waypoint
                || old.namespace != new.namespace
                || !old.services.keys().eq(new.services.keys())
        }
        None => !new.policies.is_empty() || new.waypoint.is_some(),
    }
}

/// The service that one sees from a namespace.
fn visible<'a>(
    services: impl Iterator<Item = &'a Arc<Service>>,
    from: &str,
) -> Option<&'a Arc<Service>> {
    let seen = services.filter(|s| !s.namespace_only || &*s.key.namespace == from);
    seen.max_by_key(|s| (&*s.key.namespace == from, s.canonical))
}

/// Whether it has this very address.
fn is_at(service: &Service, network: &Text, ip: IpAddr) -> bool {
    let mut addresses = service.addresses.iter().filter(|it| it.prefix_len.is_none());
    addresses.any(|it| it.address.ip == ip && it.address.network == *network)
}

fn holds(block: &VirtualAddress, network: &Text, ip: IpAddr) -> bool {
    let net = block.prefix_len.map(|len| ipnet::IpNet::new(block.address.ip, len));
    block.address.network == *network && matches!(net, Some(Ok(net)) if net.contains(&ip))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn endpoints_are_the_same_however_many_there_are() {
        let (mut endpoints, mut expected) = (Endpoints::default(), BTreeMap::new());
        let put = |endpoints: &mut Endpoints, expected: &mut BTreeMap<_, _>, at: u32, healthy| {
            let mut workload = Workload::named(format!("uid-{at:03}"), "shop", "web");
            workload.healthy = healthy;
            let workload = Arc::new(workload);
            endpoints.put(&workload);
            expected.insert(workload.uid.clone(), workload);
        };
        let check = |endpoints: &Endpoints, expected: &BTreeMap<Text, Arc<Workload>>| {
            let all: Vec<_> = endpoints.iter().cloned().collect();
            assert_eq!(all, expected.values().cloned().collect::<Vec<_>>());
            assert_eq!(endpoints.len(), all.len());
            for (index, workload) in all.iter().enumerate() {
                assert_eq!(endpoints.nth(index), Some(workload));
            }
            assert_eq!(endpoints.nth(all.len()), None);
        };
        // In an order that is neither, and each a second time.
        for step in 0..200 {
            put(&mut endpoints, &mut expected, step * 37 % 100, step >= 100);
            check(&endpoints, &expected);
        }
        for step in 0..101 {
            let uid: Text = format!("uid-{:03}", step * 61 % 101).into();
            endpoints.remove(&uid);
            expected.remove(&uid);
            check(&endpoints, &expected);
        }
        assert!(endpoints.is_empty());
    }
}
