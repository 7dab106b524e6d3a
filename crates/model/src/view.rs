//! The immutable view: everything a proxy knows about the mesh.
//!
//! A view is made of persistent maps: a clone is a handful of reference counts, and one changed
//! workload among 100,000 costs the path to it. A reader holds its own view and never waits; a
//! writer clones, applies [`Change`]s and publishes. A view never decides anything by itself: the
//! questions are asked in [`crate::plan`] and [`crate::authorize`].

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;

use equivalent::Equivalent;
use imbl::{HashMap, OrdSet, Vector};

use crate::Text;
use crate::few::{Few, add, remove};
use crate::names::{NetworkAddress, PolicyName, ServiceName, WorkloadName};
use crate::policy::{Policy, PolicyScope};
use crate::service::{Service, VirtualAddress};
use crate::workload::Workload;

type Map<K, V> = HashMap<K, V>;

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
}

/// Everything a proxy knows about the mesh at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    workloads: Map<ByUid, ()>,
    /// By the hash of an address; those that have another one may be among them.
    workloads_by_address: Map<u64, Few<ByUid>>,
    workloads_by_name: Map<ByName, ()>,
    hasher: RandomState,
    services: Map<ServiceName, Arc<Service>>,
    services_by_address: Map<NetworkAddress, Few<ServiceName>>,
    services_by_hostname: Map<Text, Few<ServiceName>>,
    service_blocks: Vector<(VirtualAddress, ServiceName)>,
    endpoints: Map<ServiceName, Endpoints>,
    policies: Map<PolicyName, Arc<Policy>>,
    global_policies: OrdSet<PolicyName>,
    namespace_policies: Map<Text, OrdSet<PolicyName>>,
    authorization_version: u64,
}

/// A workload that is known by its uid: an index of them repeats none of their names.
#[derive(Clone, Debug)]
struct ByUid(Arc<Workload>);

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid == other.0.uid
    }
}

impl Eq for ByUid {}

impl Ord for ByUid {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.uid.cmp(&other.0.uid)
    }
}

impl PartialOrd for ByUid {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for ByUid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.uid.hash(state);
    }
}

impl Equivalent<ByUid> for str {
    fn equivalent(&self, key: &ByUid) -> bool {
        *self == *key.0.uid
    }
}

/// A workload that is known by its namespace and name.
#[derive(Clone, Debug)]
struct ByName(Arc<Workload>);

impl PartialEq for ByName {
    fn eq(&self, other: &Self) -> bool {
        (&self.0.namespace, &self.0.name) == (&other.0.namespace, &other.0.name)
    }
}

impl Eq for ByName {}

impl Hash for ByName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.0.namespace, &self.0.name).hash(state);
    }
}

impl Equivalent<ByName> for (&Text, &Text) {
    fn equivalent(&self, key: &ByName) -> bool {
        *self == (&key.0.namespace, &key.0.name)
    }
}

/// The workloads behind one service, in the order of their uid.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    members: Vector<Arc<Workload>>,
    largest_capacity: u32,
}

impl Endpoints {
    /// How many there are, ready or not.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// All of them, in the order of their uid.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.members.iter()
    }

    pub(crate) fn nth(&self, index: usize) -> Option<&Arc<Workload>> {
        self.members.get(index)
    }

    /// An upper bound of its members' capacities.
    pub(crate) fn largest_capacity(&self) -> u32 {
        self.largest_capacity
    }

    fn position(&self, uid: &str) -> Result<usize, usize> {
        self.members.binary_search_by(|member| (*member.uid).cmp(uid))
    }

    fn put(&mut self, workload: &Arc<Workload>) {
        self.largest_capacity = self.largest_capacity.max(workload.capacity);
        match self.position(&workload.uid) {
            Ok(index) => drop(self.members.set(index, workload.clone())),
            Err(index) => self.members.insert(index, workload.clone()),
        }
    }

    fn remove(&mut self, uid: &str) {
        if let Ok(index) = self.position(uid) {
            self.members.remove(index);
        }
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
        }
    }

    /// The workload of this uid.
    pub fn workload(&self, uid: &str) -> Option<&Arc<Workload>> {
        self.workloads.get_key_value(uid).map(|(ByUid(workload), ())| workload)
    }

    /// The workload of this name, as an agent names a pod.
    pub fn workload_named(&self, name: &WorkloadName) -> Option<&Arc<Workload>> {
        let key = (&name.namespace, &name.name);
        self.workloads_by_name.get_key_value(&key).map(|(ByName(workload), ())| workload)
    }

    /// The workload at this address. Workloads on their node's network have none of their own.
    pub fn workload_at(&self, network: &Text, ip: IpAddr) -> Option<&Arc<Workload>> {
        let candidates = self.workloads_by_address.get(&self.address_key(network, ip))?;
        let is_there = |workload: &&Arc<Workload>| {
            workload.network == *network && workload.addresses.contains(&ip)
        };
        candidates.iter().map(|ByUid(workload)| workload).find(is_there)
    }

    fn address_key(&self, network: &Text, ip: IpAddr) -> u64 {
        self.hasher.hash_one((network, ip))
    }

    /// The service of this name.
    pub fn service(&self, name: &ServiceName) -> Option<&Arc<Service>> {
        self.services.get(name)
    }

    /// The service at this virtual address, as seen from a namespace: its own before others', and
    /// never one that is private to another.
    pub fn service_at(&self, network: &Text, ip: IpAddr, from: &str) -> Option<&Arc<Service>> {
        let key = NetworkAddress::new(network.clone(), ip);
        let exact = self.services_by_address.get(&key);
        let exact = exact.and_then(|names| self.visible(names.iter(), from));
        exact.or_else(|| {
            let blocks = self.service_blocks.iter();
            let holding = blocks.filter(|(block, _)| holds(block, network, ip));
            let longest = holding.max_by_key(|(block, _)| block.prefix_len)?;
            self.visible(std::iter::once(&longest.1), from)
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

    /// The service with this hostname, as seen from a namespace.
    pub fn service_by_hostname(&self, hostname: &str, from: &str) -> Option<&Arc<Service>> {
        let names = self.services_by_hostname.get(hostname)?;
        self.visible(names.iter(), from)
    }

    fn visible<'a>(
        &'a self,
        names: impl Iterator<Item = &'a ServiceName>,
        from: &str,
    ) -> Option<&'a Arc<Service>> {
        let services = names.filter_map(|name| self.services.get(name));
        let seen = services.filter(|s| !s.namespace_only || &*s.key.namespace == from);
        seen.max_by_key(|s| (&*s.key.namespace == from, s.canonical))
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
    /// A name it bears of which the view knows nothing comes as an error.
    pub fn policies_of<'a>(
        &'a self,
        workload: &'a Workload,
    ) -> impl Iterator<Item = Result<&'a Arc<Policy>, &'a PolicyName>> {
        let namespaced = self.namespace_policies.get(&workload.namespace);
        let scoped = self.global_policies.iter().chain(namespaced.into_iter().flatten());
        scoped.chain(&workload.policies).map(|name| self.policies.get(name).ok_or(name))
    }

    /// All workloads, in no particular order.
    pub fn workloads(&self) -> impl Iterator<Item = &Arc<Workload>> {
        self.workloads.keys().map(|ByUid(workload)| workload)
    }

    /// All services, in no particular order.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values()
    }

    /// All policies, in no particular order.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.values()
    }

    /// Changes whenever the answer of [`View::authorize`] for a live connection may have changed.
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
        if !workload.host_network {
            for ip in &workload.addresses {
                let key = self.address_key(&workload.network, *ip);
                add(&mut self.workloads_by_address, key, ByUid(workload.clone()));
            }
        }
        self.workloads_by_name.insert(ByName(workload.clone()), ());
        for service in workload.services.keys() {
            self.endpoints.entry(service.clone()).or_default().put(&workload);
        }
        self.workloads.insert(ByUid(workload), ());
    }

    /// Removes the traces of `old`, except the endpoints that its successor keeps.
    fn forget_workload(&mut self, old: &Arc<Workload>, successor: Option<&Workload>) {
        for ip in &old.addresses {
            let key = self.address_key(&old.network, *ip);
            remove(&mut self.workloads_by_address, &key, &ByUid(old.clone()));
        }
        let name = ByName(old.clone());
        let found = self.workloads_by_name.get_key_value(&name);
        if found.is_some_and(|(found, ())| found.0.uid == old.uid) {
            self.workloads_by_name.remove(&name);
        }
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
        let old = self.services.get(&service.key).cloned();
        let waypoints = |it: &Service| (it.waypoint.clone(), it.weighted_waypoints.clone());
        if old.as_deref().map(waypoints).unwrap_or_default() != waypoints(&service) {
            self.authorization_version += 1;
        }
        if let Some(old) = old {
            self.forget_service(&old);
        }
        for address in &service.addresses {
            match address.prefix_len {
                None => {
                    let key = address.address.clone();
                    add(&mut self.services_by_address, key, service.key.clone());
                }
                Some(_) => self.service_blocks.push_back((address.clone(), service.key.clone())),
            }
        }
        let hostname = service.key.hostname.clone();
        add(&mut self.services_by_hostname, hostname, service.key.clone());
        self.services.insert(service.key.clone(), service);
    }

    fn forget_service(&mut self, old: &Service) {
        for address in &old.addresses {
            remove(&mut self.services_by_address, &address.address, &old.key);
        }
        self.service_blocks.retain(|(_, name)| *name != old.key);
        remove(&mut self.services_by_hostname, &old.key.hostname, &old.key);
    }

    fn remove_address(&mut self, name: &str) {
        if let Some((ByUid(old), ())) = self.workloads.remove_with_key(name) {
            self.forget_workload(&old, None);
        } else if let Ok(name) = name.parse::<ServiceName>()
            && let Some(old) = self.services.remove(&name)
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
        self.policies.insert(policy.key.clone(), policy);
    }

    fn remove_policy(&mut self, name: &PolicyName) {
        if self.policies.remove(name).is_some() {
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

fn holds(block: &VirtualAddress, network: &Text, ip: IpAddr) -> bool {
    let net = block.prefix_len.map(|len| ipnet::IpNet::new(block.address.ip, len));
    block.address.network == *network && matches!(net, Some(Ok(net)) if net.contains(&ip))
}
