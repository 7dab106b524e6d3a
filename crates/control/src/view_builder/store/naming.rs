//! Gateways, what adds listeners to them, and what may name them as waypoints.

use std::collections::BTreeSet;
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::sets::ListenerSet;
use ambit_manifest::gateway::{Gateway, GatewayClass, Unbound};
use ambit_manifest::routes::ReferenceGrant;
use ambit_manifest::routing::ParentKind;
use ambit_model::Text;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_words::labels::{GATEWAY_NAME, USE_WAYPOINT};

use super::Store;
use crate::view_builder::gateways::{Canary, Gateways, Naming, names};
use crate::view_builder::routes::{ParentName, Route};
use crate::view_builder::selectors::Labels;
use crate::view_builder::{Dirty, Mesh, entries, services};

/// The waypoint that an object names.
#[derive(Debug)]
pub(crate) struct Binding {
    /// Its Gateway.
    pub(crate) waypoint: ObjectName,
    /// Whether it is the object's waypoint.
    pub(crate) bound: Result<(), Unbound>,
    /// The canary beside it.
    pub(crate) canary: Option<Canary>,
}

impl Store {
    /// One that knows no object yet.
    pub(crate) fn new(mesh: &Mesh) -> Self {
        Self { gateways: Gateways::new(mesh.stands_in), ..Self::default() }
    }

    pub(super) fn put_gateway(
        &mut self,
        mesh: &Mesh,
        name: ObjectName,
        gateway: Option<Arc<Gateway>>,
        dirty: &mut Dirty,
    ) {
        if self.gateways.put(name.clone(), gateway) {
            self.mark_naming(mesh, &name, dirty);
            self.mark_selecting(mesh, &name.namespace, dirty);
            dirty.gateways.insert(name);
        }
    }

    pub(super) fn put_listener_set(
        &mut self,
        name: &ObjectName,
        set: Option<Arc<ListenerSet>>,
        dirty: &mut Dirty,
    ) {
        let gateways = self.gateways.put_set(name, set);
        self.mark_attaching(gateways, dirty);
    }

    /// Marks Gateways to which other routes may be attached.
    pub(super) fn mark_attaching(
        &self,
        gateways: impl IntoIterator<Item = ObjectName>,
        dirty: &mut Dirty,
    ) {
        for gateway in gateways {
            dirty.parents.insert((ParentKind::Gateway, gateway.clone()));
            dirty.gateways.insert(gateway);
        }
    }

    /// The ListenerSets that a Gateway takes, in their order.
    pub(crate) fn taken_sets(
        &self,
        name: &ObjectName,
        gateway: &Gateway,
    ) -> Vec<&Arc<ListenerSet>> {
        let named = self.gateways.sets().of(name);
        let taken = named.filter(|(set, _)| {
            let labels = self.namespace(&set.namespace).labels;
            gateway.spec.takes_sets_of(&name.namespace, &set.namespace, &labels)
        });
        let mut taken: Vec<&Arc<ListenerSet>> = taken.map(|(_, set)| set).collect();
        taken.sort_by(|one, other| one.order(other));
        taken
    }

    pub(super) fn put_route(
        &mut self,
        mesh: &Mesh,
        name: ObjectName,
        route: Route,
        dirty: &mut Dirty,
    ) {
        self.routes.put(mesh, (route.kind(), name), Some(route), dirty);
    }

    /// Marks the policies that may select pods of this namespace.
    fn mark_selecting(&self, mesh: &Mesh, namespace: &Text, dirty: &mut Dirty) {
        for namespace in [namespace, &mesh.root_namespace] {
            let here = super::in_namespace(&self.policies, namespace);
            dirty.policies.extend(here.map(|(name, _)| PolicyName {
                namespace: name.namespace.clone(),
                name: name.name.clone(),
            }));
        }
    }

    /// Puts or removes a grant, which may be for what Gateways name as well.
    pub(super) fn put_grant(
        &mut self,
        name: ObjectName,
        grant: Option<Arc<ReferenceGrant>>,
        dirty: &mut Dirty,
    ) {
        dirty.gateways.extend(self.gateways.referring_to(&name.namespace).cloned());
        self.routes.put_grant(name, grant, dirty);
    }

    pub(super) fn put_gateway_class(
        &mut self,
        mesh: &Mesh,
        name: Text,
        class: Option<Arc<GatewayClass>>,
        dirty: &mut Dirty,
    ) {
        let before = self.gateways.position(&name);
        for gateway in self.gateways.put_class(name.clone(), class) {
            self.mark_naming(mesh, &gateway, dirty);
            self.mark_selecting(mesh, &gateway.namespace, dirty);
            dirty.gateways.insert(gateway);
        }
        if self.gateways.position(&name) != before {
            // A policy that is attached to the class begins or ceases to hold, for any service.
            dirty.services.extend(self.services.keys().map(|it| services::service_name(mesh, it)));
            dirty.services.extend(self.hosts.keys().cloned());
        }
    }

    /// Marks what may name a Gateway as its waypoint, and the Gateway's own pods.
    fn mark_naming(&self, mesh: &Mesh, gateway: &ObjectName, dirty: &mut Dirty) {
        let named_by = |labels: &Labels| names(labels, &gateway.name);
        let naming = self.namespaces.iter().filter(|(_, record)| named_by(&record.labels));
        let naming: BTreeSet<&Text> = naming.map(|(name, _)| name).collect();
        for namespace in &naming {
            dirty.members.extend(self.members.select(namespace, &Labels::new()));
        }
        let label = |key: &str| Labels::from([(key.to_owned(), gateway.name.to_string())]);
        dirty.members.extend(self.members.select_everywhere(&label(USE_WAYPOINT)));
        dirty.members.extend(self.members.select(&gateway.namespace, &label(GATEWAY_NAME)));
        // A Service of the waypoint's own has no waypoint, so it may be any of the namespace.
        let is_marked = |name: &ObjectName, labels: Option<&Labels>| {
            name.namespace == gateway.namespace
                || naming.contains(&name.namespace)
                || labels.is_some_and(named_by)
        };
        let services = self.services.iter();
        let services =
            services.filter(|(name, it)| is_marked(name, it.object.metadata.labels.as_ref()));
        for (name, _) in services {
            dirty.services.insert(services::service_name(mesh, name));
            if self.attached_policies.contains_key(name) {
                self.mark_endpoints(mesh, name, dirty);
            }
        }
        let entries = self.service_entries.iter();
        let entries = entries.filter(|(name, it)| is_marked(name, it.metadata.labels.as_ref()));
        for (name, entry) in entries {
            let hosts = entry.spec.hosts.iter();
            let service = |host: &String| ServiceName::new(name.namespace.clone(), host.as_str());
            dirty.services.extend(hosts.map(service));
        }
    }

    /// The waypoint that a Service or ServiceEntry names.
    pub(crate) fn binding(&self, (kind, name): &ParentName) -> Option<Binding> {
        let record = self.namespace(&name.namespace);
        let (labels, shares) = match kind {
            ParentKind::Service => {
                let service = self.services.get(name)?;
                let labels = service.object.metadata.labels.as_ref();
                (labels, services::shares(service, &record))
            }
            ParentKind::ServiceEntry => {
                let entry = self.service_entries.get(name)?;
                (entry.metadata.labels.as_ref(), entries::shares(entry, &record))
            }
            ParentKind::Gateway | ParentKind::ListenerSet => return None,
        };
        let none = Labels::new();
        let naming = Naming {
            namespace: &name.namespace,
            labels: labels.unwrap_or(&none),
            of_namespace: &record.labels,
            is_workload: false,
        };
        let (_, waypoint, bound) = self.gateways.named(&naming)?;
        Some(Binding { waypoint, bound, canary: self.gateways.canary(&naming, shares) })
    }

    /// The waypoint that reads the requests to a Service or ServiceEntry, or why none does.
    pub(crate) fn waypoint_of(&self, parent: &ParentName) -> Result<String, String> {
        let Some(binding) = self.binding(parent) else {
            return Err(format!("neither it nor its namespace has the label {USE_WAYPOINT}"));
        };
        let waypoint = format!("{}/{}", binding.waypoint.namespace, binding.waypoint.name);
        match binding.bound {
            Ok(()) => Ok(waypoint),
            Err(unbound) => {
                Err(format!("the waypoint {waypoint} {}; {}", unbound.what(), unbound.remedy()))
            }
        }
    }

    /// The waypoint that a WorkloadEntry names.
    pub(crate) fn binding_of_workload(&self, name: &ObjectName) -> Option<Binding> {
        let record = self.namespace(&name.namespace);
        let labels = self.workload_entries.get(name)?.labels();
        let (namespace, labels, of_namespace) = (&name.namespace, &labels, &record.labels);
        let naming = Naming { namespace, labels, of_namespace, is_workload: true };
        let (_, waypoint, bound) = self.gateways.named(&naming)?;
        Some(Binding { waypoint, bound, canary: None })
    }

    /// Whether a Service names a waypoint. Its endpoints then admit nobody else.
    pub(super) fn is_fronted(&self, name: &ObjectName) -> bool {
        self.binding(&(ParentKind::Service, name.clone())).is_some()
    }
}
