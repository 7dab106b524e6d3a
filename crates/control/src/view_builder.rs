//! From objects to the view that proxies get, one change at a time.
//!
//! [`Builder::apply`] takes events of the registry and returns the changes of the view, and nothing
//! for resources that stay the same. It keeps indexes by namespace, label, node, owner and listed
//! address, so a changed object costs only what depends on it and not the whole mesh. Names and
//! meanings are istiod's, except where a policy would fail open (see [`policy`]). Nothing here
//! reads a file or a clock, or uses the network.

mod entries;
pub(crate) mod gateways;
mod known;
mod peer_auth;
pub(crate) mod records;
pub(crate) mod selectors;
pub(crate) mod services;
pub(crate) mod slices;
pub(crate) mod store;
mod vips;
pub(crate) mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ambit_model::Text;
use ambit_model::intern::Interner;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::policy::Policy;
use ambit_model::service::Service;
use ambit_model::view::{Change, View};
use ambit_model::workload::Workload;

use self::records::Member;
use self::store::{PolicyOrigin, Store};
pub(crate) use self::vips::Vips;
use crate::registry::Event;
use ambit_manifest::ObjectName;
use ambit_manifest::istio::PeerAuthentication;
use ambit_manifest::policy::{self, StatusCondition};

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
}

impl Builder {
    /// A builder that knows no object yet, and the addresses that earlier runs allocated.
    pub(crate) fn new(mesh: Mesh, vips: Vips) -> Self {
        let mut view = View::default();
        view.apply(Change::Policy(peer_auth::static_strict(&mesh.root_namespace)));
        Self {
            mesh,
            store: Store::default(),
            view,
            interner: Interner::default(),
            vips,
            listed_workloads: BTreeMap::new(),
            conditions: BTreeMap::new(),
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

    /// Takes events in order; answers with what changed in the view. A policy comes before the
    /// workloads that name it, and goes after them.
    pub(crate) fn apply(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<Change> {
        let mut dirty = Dirty::default();
        for event in events {
            self.store.ingest(&self.mesh, event, &mut dirty);
        }
        let mut changes = Vec::new();
        let mut removed = Vec::new();
        for name in dirty.policies {
            match self.policy(&name) {
                Some(policy) => {
                    let same = self.view.policy(&name).is_some_and(|known| **known == policy);
                    changes.extend((!same).then_some(Change::Policy(policy)));
                }
                None if self.view.policy(&name).is_some() => {
                    removed.push(Change::RemovePolicy(name));
                }
                None => {}
            }
        }
        for name in dirty.services {
            changes.extend(self.service_change(&name));
        }
        for member in dirty.members {
            let uid = self.store.uid(&self.mesh, &member);
            changes.extend(self.workload_change(uid, self.member(&member)));
        }
        changes.extend(self.listing_changes(dirty.listings));
        changes.extend(removed);
        for change in &changes {
            self.view.apply(change.clone());
        }
        changes
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
            return Some(services::build(&self.mesh, object, record, &namespace, gateways));
        }
        let Some((object, entry)) = self.store.entry_of_host(name) else {
            self.vips.release(&name.namespace, &name.hostname);
            return None;
        };
        let needs_address = entries::hosts_without_address(&entry).contains(&&*name.hostname);
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
        let (host, gateways) = (&name.hostname, self.store.gateways());
        let mesh = &self.mesh;
        Some(entries::service(mesh, &object, &entry, host, &allocated, &namespace, gateways))
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
