//! The objects of the view, and which objects depend on which.
//!
//! [`Store::ingest`] takes one event and marks what must be built again; all other methods are
//! look-ups for building. Nothing here builds anything, and an event never marks more than its
//! object can affect.

mod authentications;
mod backend_tls;
mod credentials;
mod mesh_config;
mod naming;
mod policies;
mod telemetry;
mod traffic;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::gateway::acme::challenges;
use ambit_manifest::istio::{
    AuthorizationPolicy, PeerAuthentication, RequestAuthentication, ServiceEntry, WorkloadEntry,
    WorkloadSelector,
};
use ambit_manifest::mesh_config::MeshConfig;
use ambit_manifest::policy::KeySource;
use ambit_manifest::remarks::Remark;
use ambit_manifest::telemetry::{Said, Telemetry};
use ambit_manifest::{Kind, ObjectKey, Typed};
use ambit_model::Text;
use ambit_model::names::{PolicyName, ServiceName};
use ambit_model::workload::PortMapping;
use ambit_words::labels::USE_WAYPOINT;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::backend_tls::BackendTlsPolicies;
use super::destination_rules::DestinationRules;
use super::gateways::Gateways;
use super::known::{KnownPod, Repeated};
use super::peer_auth::{self, Effective};
use super::records::{Member, NamedPorts, NamespaceRecord, NodeRecord, PodRecord, ServiceRecord};
use super::routes::{Route, Routes};
use super::selectors::{Labels, Members, Selectors};
use super::slices::{Listed, SliceRecord, Slices};
use super::traffic_policies::TrafficPolicies;
use super::virtual_services::VirtualServices;
use super::workloads::{PodState, pod_uid};
use super::{Dirty, Listing, Mesh, entries, services, slices};
use crate::registry::{Event, IssuerKeys};

use self::credentials::Credentials;
pub(crate) use self::naming::Binding;

/// All objects of the registry that matter to the view.
#[derive(Debug, Default)]
pub(crate) struct Store {
    namespaces: BTreeMap<Text, NamespaceRecord>,
    nodes: BTreeMap<Text, NodeRecord>,
    pods: BTreeMap<ObjectName, Box<KnownPod>>,
    pods_by_node: HashMap<Text, BTreeSet<ObjectName>>,
    workload_entries: BTreeMap<ObjectName, Arc<WorkloadEntry>>,
    members: Members<Member>,
    services: BTreeMap<ObjectName, ServiceRecord>,
    service_selectors: Selectors<ObjectName>,
    slices: Slices,
    service_entries: BTreeMap<ObjectName, Arc<ServiceEntry>>,
    service_entry_selectors: Selectors<ObjectName>,
    hosts: BTreeMap<ServiceName, BTreeSet<ObjectName>>,
    policies: BTreeMap<ObjectName, Arc<AuthorizationPolicy>>,
    policy_selectors: Selectors<ObjectName>,
    /// The policies that are attached to each Service.
    attached_policies: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    peer_authentications: BTreeMap<ObjectName, Arc<PeerAuthentication>>,
    peer_selectors: Selectors<ObjectName>,
    request_authentications: BTreeMap<ObjectName, Arc<RequestAuthentication>>,
    issuer_keys: BTreeMap<KeySource, IssuerKeys>,
    gateways: Gateways,
    credentials: Credentials,
    routes: Routes,
    destination_rules: DestinationRules,
    virtual_services: VirtualServices,
    telemetries: BTreeMap<ObjectName, (Arc<Telemetry>, Said)>,
    mesh_config: (MeshConfig, Vec<Remark>),
    traffic_policies: TrafficPolicies,
    backend_tls: BackendTlsPolicies,
    repeated: Repeated,
}

/// What a policy of the view is made of.
#[derive(Debug)]
pub(crate) enum PolicyOrigin<'a> {
    /// An AuthorizationPolicy.
    Authorization(ObjectName, Arc<AuthorizationPolicy>),
    /// A PeerAuthentication, in its namespace and mesh.
    PeerAuthentication(Effective<'a>),
    /// An object that is gone.
    Gone(ObjectName),
}

impl Store {
    /// Takes one event and marks in `dirty` what depends on it.
    pub(super) fn ingest(&mut self, mesh: &Mesh, event: Event, dirty: &mut Dirty) {
        match event {
            Event::Put(typed) => self.put(mesh, typed, dirty),
            Event::Delete(key) => self.delete(mesh, &key, dirty),
            Event::PodStatus { namespace, name, status } => {
                let name = ObjectName { namespace, name };
                self.change_pod(name.clone(), dirty, |pod| pod.state.status = status);
                dirty.members.insert(Member::Pod(name));
            }
            Event::Captured { namespace, name, uid, notes } => {
                let name = ObjectName { namespace, name };
                self.change_pod(name.clone(), dirty, |pod| {
                    (pod.state.captured, pod.state.notes) = (uid, notes);
                });
                dirty.members.insert(Member::Pod(name));
            }
            Event::Uncaptured { namespace, name, obstacle } => {
                // Told, and otherwise without effect: nothing depends on it.
                let name = ObjectName { namespace, name };
                self.change_pod(name, dirty, |pod| pod.state.obstacle = obstacle.map(Box::new));
            }
            Event::IssuerKeys(source, keys) => self.put_issuer_keys(mesh, source, keys, dirty),
        }
    }

    /// Changes what is known about a pod; an entry without any facts is removed.
    fn change_pod(
        &mut self,
        mut name: ObjectName,
        dirty: &mut Dirty,
        change: impl FnOnce(&mut KnownPod),
    ) {
        self.repeated.share_text(&mut name.namespace);
        let pod = self.pods.entry(name.clone()).or_default();
        self.slices.mark(&name, pod.own_addresses(), dirty);
        change(pod);
        self.slices.mark(&name, pod.own_addresses(), dirty);
        self.repeated.share(pod);
        if **pod == KnownPod::default() {
            self.pods.remove(&name);
        }
    }

    fn put(&mut self, mesh: &Mesh, typed: Typed, dirty: &mut Dirty) {
        let name = ObjectName::of(typed.metadata());
        match typed {
            Typed::Namespace(object) => {
                self.put_namespace(mesh, &name.name, Some(NamespaceRecord::new(&object)), dirty);
            }
            Typed::Node(object) => self.put_node(&name.name, Some(NodeRecord::new(&object)), dirty),
            Typed::Pod(object) => self.put_pod(name, Some(PodRecord::new(&object)), dirty),
            Typed::Service(object) => {
                self.put_service(mesh, name, Some(ServiceRecord::new(&object)), dirty);
            }
            Typed::EndpointSlice(object) => self.put_slice(name, SliceRecord::new(&object), dirty),
            Typed::ServiceEntry(object) => self.put_service_entry(name, Some(object), dirty),
            Typed::WorkloadEntry(object) => self.put_workload_entry(name, Some(object), dirty),
            Typed::AuthorizationPolicy(object) => {
                self.put_policy(mesh, name, Some(object), dirty);
            }
            Typed::PeerAuthentication(object) => {
                self.put_peer_authentication(mesh, name, Some(object), dirty);
            }
            Typed::RequestAuthentication(object) => {
                self.put_request_authentication(mesh, name, Some(object), dirty);
            }
            Typed::Gateway(object) => self.put_gateway(mesh, name, Some(object), dirty),
            Typed::ListenerSet(object) => self.put_listener_set(&name, Some(object), dirty),
            Typed::GatewayClass(object) => {
                self.put_gateway_class(mesh, name.name, Some(object), dirty);
            }
            Typed::HttpRoute(object) => self.put_route(mesh, name, Route::Http(object), dirty),
            Typed::GrpcRoute(object) => self.put_route(mesh, name, Route::Grpc(object), dirty),
            Typed::TlsRoute(object) => self.put_route(mesh, name, Route::Tls(object), dirty),
            Typed::TcpRoute(object) => self.put_route(mesh, name, Route::Tcp(object), dirty),
            Typed::UdpRoute(object) => self.put_route(mesh, name, Route::Udp(object), dirty),
            Typed::DestinationRule(object) => {
                self.put_destination_rule(mesh, &name, Some(object), dirty);
            }
            Typed::VirtualService(object) => {
                self.put_virtual_service(mesh, &name, Some(object), dirty);
            }
            Typed::BackendTlsPolicy(object) => {
                self.put_backend_tls(mesh, &name, Some(object), dirty);
            }
            Typed::TrafficPolicy(object) => {
                self.put_traffic_policy(mesh, &name, Some(object), dirty);
            }
            Typed::Telemetry(object) => self.put_telemetry(mesh, name, Some(object), dirty),
            Typed::ReferenceGrant(object) => self.put_grant(name, Some(object), dirty),
            Typed::ConfigMap(object) => self.put_config_map(mesh, &name, Some(&object), dirty),
            Typed::Secret(object) => self.put_secret(name, Some(&object), dirty),
            // The machine starts pods from these; the view knows the pods.
            Typed::ServiceAccount(_)
            | Typed::Deployment(_)
            | Typed::StatefulSet(_)
            | Typed::DaemonSet(_)
            | Typed::Job(_)
            | Typed::CronJob(_)
            | Typed::PersistentVolumeClaim(_)
            | Typed::PodDisruptionBudget(_)
            | Typed::HorizontalPodAutoscaler(_) => {}
        }
    }

    fn delete(&mut self, mesh: &Mesh, key: &ObjectKey, dirty: &mut Dirty) {
        let name = ObjectName { namespace: key.namespace.clone(), name: key.name.clone() };
        match key.kind {
            Kind::Namespace => self.put_namespace(mesh, &key.name, None, dirty),
            Kind::Node => self.put_node(&key.name, None, dirty),
            Kind::Pod => self.put_pod(name, None, dirty),
            Kind::Service => self.put_service(mesh, name, None, dirty),
            Kind::EndpointSlice => self.put_slice(name, None, dirty),
            Kind::ServiceEntry => self.put_service_entry(name, None, dirty),
            Kind::WorkloadEntry => self.put_workload_entry(name, None, dirty),
            Kind::AuthorizationPolicy => self.put_policy(mesh, name, None, dirty),
            Kind::PeerAuthentication => self.put_peer_authentication(mesh, name, None, dirty),
            Kind::RequestAuthentication => {
                self.put_request_authentication(mesh, name, None, dirty);
            }
            Kind::Gateway => self.put_gateway(mesh, name, None, dirty),
            Kind::ListenerSet => self.put_listener_set(&name, None, dirty),
            Kind::GatewayClass => self.put_gateway_class(mesh, name.name, None, dirty),
            kind @ (Kind::HttpRoute
            | Kind::GrpcRoute
            | Kind::TlsRoute
            | Kind::TcpRoute
            | Kind::UdpRoute) => {
                self.routes.put(mesh, (kind, name), None, dirty);
            }
            Kind::DestinationRule => self.put_destination_rule(mesh, &name, None, dirty),
            Kind::VirtualService => self.put_virtual_service(mesh, &name, None, dirty),
            Kind::BackendTlsPolicy => self.put_backend_tls(mesh, &name, None, dirty),
            Kind::TrafficPolicy => self.put_traffic_policy(mesh, &name, None, dirty),
            Kind::Telemetry => self.put_telemetry(mesh, name, None, dirty),
            Kind::ReferenceGrant => self.put_grant(name, None, dirty),
            Kind::ConfigMap => self.put_config_map(mesh, &name, None, dirty),
            Kind::Secret => self.put_secret(name, None, dirty),
            Kind::ServiceAccount
            | Kind::Deployment
            | Kind::StatefulSet
            | Kind::DaemonSet
            | Kind::Job
            | Kind::CronJob
            | Kind::PersistentVolumeClaim
            | Kind::PodDisruptionBudget
            | Kind::HorizontalPodAutoscaler => {}
        }
    }

    fn put_namespace(
        &mut self,
        mesh: &Mesh,
        name: &Text,
        record: Option<NamespaceRecord>,
        dirty: &mut Dirty,
    ) {
        if replace(&mut self.namespaces, name.clone(), record) {
            let services = in_namespace(&self.services, name);
            dirty.services.extend(services.map(|(name, _)| services::service_name(mesh, name)));
            let hosts = self.hosts.keys().filter(|host| host.namespace == *name);
            dirty.services.extend(hosts.cloned());
            self.mark_attaching(self.gateways.selecting_namespaces().cloned(), dirty);
            if !self.gateways.is_empty() {
                dirty.members.extend(self.members.select(name, &Labels::new()));
            }
        }
    }

    fn put_node(&mut self, name: &Text, record: Option<NodeRecord>, dirty: &mut Dirty) {
        if replace(&mut self.nodes, name.clone(), record) {
            let pods = self.pods_by_node.get(name).into_iter().flatten();
            dirty.members.extend(pods.cloned().map(Member::Pod));
        }
    }

    fn put_pod(&mut self, name: ObjectName, record: Option<PodRecord>, dirty: &mut Dirty) {
        let old = self.pods.get(&name).and_then(|pod| pod.object.as_ref());
        if old == record.as_ref() {
            return;
        }
        dirty.members.insert(Member::Pod(name.clone()));
        if let Some(old) = old
            && let Some(pods) = self.pods_by_node.get_mut(&old.node)
        {
            pods.remove(&name);
            if pods.is_empty() {
                self.pods_by_node.remove(&old.node);
            }
        }
        self.change_pod(name.clone(), dirty, |pod| pod.object = record);
        // From here on in the texts that are kept already.
        let known = self.pods.get_key_value(&name);
        match known.and_then(|(name, pod)| Some((name, pod.object.as_ref()?))) {
            Some((name, pod)) => {
                let member = Member::Pod(name.clone());
                self.members.insert(&name.namespace, member, pod.labels.clone());
                self.pods_by_node.entry(pod.node.clone()).or_default().insert(name.clone());
            }
            None => self.members.remove(&name.namespace, &Member::Pod(name.clone())),
        }
    }

    fn put_service(
        &mut self,
        mesh: &Mesh,
        name: ObjectName,
        record: Option<ServiceRecord>,
        dirty: &mut Dirty,
    ) {
        let old = self.services.get(&name).cloned();
        let serves = |record: &ServiceRecord| {
            let ports = record.object.spec.as_ref().and_then(|spec| spec.ports.clone());
            let labels = record.object.metadata.labels.as_ref();
            // Whether policies that are attached to it hold at its endpoints.
            let waypoint = labels.and_then(|labels| labels.get(USE_WAYPOINT).cloned());
            (record.selector.clone(), ports, waypoint)
        };
        if old.as_ref().map(serves) != record.as_ref().map(serves) {
            for record in old.iter().chain(&record).filter(|record| !record.selector.is_empty()) {
                dirty.members.extend(self.members.select(&name.namespace, &record.selector));
            }
        }
        match &record {
            Some(record) => self.service_selectors.insert(
                &name.namespace,
                name.clone(),
                record.selector.clone(),
            ),
            None => self.service_selectors.remove(&name),
        }
        let answers =
            |record: &ServiceRecord| challenges(record.object.metadata.annotations.as_ref());
        let service = services::service_name(mesh, &name);
        if old.as_ref().map(answers).unwrap_or_default()
            != record.as_ref().map(answers).unwrap_or_default()
        {
            dirty.gateways.extend(self.gateways.edge_behind(mesh, &service).cloned());
        }
        dirty.services.insert(service);
        self.mark_listed(&name.namespace, self.slices.of_service(&name), dirty);
        self.mark_of_entries(mesh, &name, dirty);
        replace(&mut self.services, name, record);
    }

    fn put_slice(&mut self, name: ObjectName, slice: Option<SliceRecord>, dirty: &mut Dirty) {
        if self.slices.slice(&name) == slice.as_ref() {
            return;
        }
        let old = self.slices.put(name.clone(), slice);
        let both = old.iter().chain(self.slices.slice(&name));
        self.mark_listed(&name.namespace, both, dirty);
    }

    /// Marks the endpoints of a namespace's slices, whether they are pods or not.
    fn mark_listed<'a>(
        &self,
        namespace: &Text,
        slices: impl Iterator<Item = &'a SliceRecord>,
        dirty: &mut Dirty,
    ) {
        let mut addresses = BTreeSet::new();
        for slice in slices {
            addresses.extend(slice.addresses());
            dirty.members.extend(slice.pods().map(Member::Pod));
            dirty.listings.insert(Listing::Slices(slice.service.clone()));
        }
        let found = self.pods_at(namespace, &addresses);
        dirty.members.extend(found.map(|(name, _)| Member::Pod(name.clone())));
    }

    /// Marks what ServiceEntries of a Service's own host select beside its endpoints.
    fn mark_of_entries(&self, mesh: &Mesh, service: &ObjectName, dirty: &mut Dirty) {
        let owners = self.hosts.get(&services::service_name(mesh, service)).into_iter().flatten();
        let entries = owners.filter_map(|owner| self.service_entries.get(owner));
        for selector in entries.filter_map(|entry| entry.spec.workload_selector.as_ref()) {
            dirty.members.extend(self.members.select(&service.namespace, &selector.labels));
        }
    }

    /// The pods of a namespace that have one of these addresses to themselves.
    fn pods_at<'a>(
        &'a self,
        namespace: &Text,
        addresses: &'a BTreeSet<IpAddr>,
    ) -> impl Iterator<Item = (&'a ObjectName, &'a KnownPod)> {
        let pods = (!addresses.is_empty()).then(|| in_namespace(&self.pods, namespace));
        let pods = pods.into_iter().flatten().map(|(name, pod)| (name, &**pod));
        pods.filter(|(_, pod)| pod.own_addresses().iter().any(|ip| addresses.contains(ip)))
    }

    fn put_service_entry(
        &mut self,
        name: ObjectName,
        entry: Option<Arc<ServiceEntry>>,
        dirty: &mut Dirty,
    ) {
        let old = self.service_entries.get(&name).cloned();
        for entry in old.iter().chain(&entry) {
            let hosts = entry.spec.hosts.iter();
            dirty
                .services
                .extend(hosts.map(|host| ServiceName::new(name.namespace.clone(), host.as_str())));
            if let Some(selector) = &entry.spec.workload_selector {
                dirty.members.extend(self.members.select(&name.namespace, &selector.labels));
            }
        }
        for host in old.iter().flat_map(|entry| &entry.spec.hosts) {
            let key = ServiceName::new(name.namespace.clone(), host.as_str());
            if let Some(owners) = self.hosts.get_mut(&key) {
                owners.remove(&name);
                if owners.is_empty() {
                    self.hosts.remove(&key);
                }
            }
        }
        for host in entry.iter().flat_map(|entry| &entry.spec.hosts) {
            let key = ServiceName::new(name.namespace.clone(), host.as_str());
            self.hosts.entry(key).or_default().insert(name.clone());
        }
        match entry.as_ref().and_then(|entry| entry.spec.workload_selector.clone()) {
            Some(selector) => {
                let labels = Arc::new(selector.labels);
                self.service_entry_selectors.insert(&name.namespace, name.clone(), labels);
            }
            None => self.service_entry_selectors.remove(&name),
        }
        dirty.listings.insert(Listing::Entry(name.clone()));
        replace(&mut self.service_entries, name, entry);
    }

    fn put_workload_entry(
        &mut self,
        name: ObjectName,
        entry: Option<Arc<WorkloadEntry>>,
        dirty: &mut Dirty,
    ) {
        let member = Member::Entry(name.clone());
        match &entry {
            Some(entry) => {
                let labels = Arc::new(entry.labels());
                self.members.insert(&name.namespace, member.clone(), labels);
            }
            None => self.members.remove(&name.namespace, &member),
        }
        dirty.members.insert(member);
        replace(&mut self.workload_entries, name, entry);
    }

    fn mark_endpoints(&self, mesh: &Mesh, service: &ObjectName, dirty: &mut Dirty) {
        let Some(record) = self.services.get(service) else { return };
        self.mark_of_entries(mesh, service, dirty);
        if record.selector.is_empty() {
            self.mark_listed(&service.namespace, self.slices.of_service(service), dirty);
        } else {
            dirty.members.extend(self.members.select(&service.namespace, &record.selector));
        }
    }
}

/// What building asks.
impl Store {
    /// The namespace; one without an object has no labels.
    pub(crate) fn namespace(&self, name: &str) -> NamespaceRecord {
        self.namespaces.get(name).cloned().unwrap_or_default()
    }

    /// All namespaces that have an object.
    pub(crate) fn namespaces(&self) -> impl Iterator<Item = (&Text, &NamespaceRecord)> {
        self.namespaces.iter()
    }

    /// The Gateways and their classes.
    pub(crate) fn gateways(&self) -> &Gateways {
        &self.gateways
    }

    /// Whether the namespace has an object.
    pub(crate) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains_key(name)
    }

    /// The node.
    pub(crate) fn node(&self, name: &str) -> Option<&NodeRecord> {
        self.nodes.get(name)
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (&Text, &NodeRecord)> {
        self.nodes.iter()
    }

    /// The pod, and what is known besides its object.
    pub(crate) fn pod(&self, name: &ObjectName) -> Option<(&PodRecord, &PodState)> {
        let pod = self.pods.get(name)?;
        Some((pod.object.as_ref()?, &pod.state))
    }

    /// All pods.
    pub(crate) fn pods(&self) -> impl Iterator<Item = (&ObjectName, &PodRecord)> {
        self.pods.iter().filter_map(|(name, pod)| Some((name, pod.object.as_ref()?)))
    }

    /// The pods that were given to `node`.
    pub(crate) fn pods_on(&self, node: &str) -> impl Iterator<Item = &ObjectName> {
        self.pods_by_node.get(node).into_iter().flatten()
    }

    /// All Kubernetes Services.
    pub(crate) fn services(&self) -> impl Iterator<Item = (&ObjectName, &ServiceRecord)> {
        self.services.iter()
    }

    /// The Kubernetes Service.
    pub(crate) fn service(&self, name: &ObjectName) -> Option<&ServiceRecord> {
        self.services.get(name)
    }

    /// All routes, and the grants for them.
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// All ServiceEntries.
    pub(crate) fn service_entries(
        &self,
    ) -> impl Iterator<Item = (&ObjectName, &Arc<ServiceEntry>)> {
        self.service_entries.iter()
    }

    /// All WorkloadEntries.
    pub(crate) fn workload_entries(
        &self,
    ) -> impl Iterator<Item = (&ObjectName, &Arc<WorkloadEntry>)> {
        self.workload_entries.iter()
    }

    /// Whether a workload of `namespace`, or of any, has these labels.
    pub(crate) fn has_member(&self, namespace: Option<&str>, labels: &Labels) -> bool {
        match namespace {
            Some(namespace) => !self.members.select(namespace, labels).is_empty(),
            None => !self.members.select_everywhere(labels).is_empty(),
        }
    }

    /// All AuthorizationPolicies.
    pub(crate) fn policies(
        &self,
    ) -> impl Iterator<Item = (&ObjectName, &Arc<AuthorizationPolicy>)> {
        self.policies.iter()
    }

    /// The AuthorizationPolicy.
    pub(super) fn policy(&self, name: &ObjectName) -> Option<&Arc<AuthorizationPolicy>> {
        self.policies.get(name)
    }

    /// All PeerAuthentications.
    pub(crate) fn peer_authentications(
        &self,
    ) -> impl Iterator<Item = (&ObjectName, &Arc<PeerAuthentication>)> {
        self.peer_authentications.iter()
    }

    /// The WorkloadEntry.
    pub(crate) fn workload_entry(&self, name: &ObjectName) -> Option<&Arc<WorkloadEntry>> {
        self.workload_entries.get(name)
    }

    /// The ServiceEntry.
    pub(crate) fn service_entry(&self, name: &ObjectName) -> Option<&Arc<ServiceEntry>> {
        self.service_entries.get(name)
    }

    /// The uid of the workload that a member is or was.
    pub(super) fn uid(&self, mesh: &Mesh, member: &Member) -> Text {
        match member {
            Member::Pod(name) => pod_uid(mesh, name).into(),
            Member::Entry(ObjectName { namespace, name }) => {
                let cluster = &mesh.cluster_id;
                format!("{cluster}/networking.istio.io/WorkloadEntry/{namespace}/{name}").into()
            }
        }
    }

    /// The Kubernetes Service of this name.
    pub(crate) fn kubernetes_service(
        &self,
        mesh: &Mesh,
        name: &ServiceName,
    ) -> Option<(&ObjectName, &ServiceRecord)> {
        let suffix = format!(".{}.svc.{}", name.namespace, mesh.domain);
        let short = name.hostname.strip_suffix(suffix.as_str())?;
        self.services.get_key_value(&ObjectName::new(&name.namespace, short))
    }

    /// The ServiceEntry that a host belongs to: the oldest of those that name it.
    pub(super) fn entry_of_host(
        &self,
        name: &ServiceName,
    ) -> Option<(ObjectName, Arc<ServiceEntry>)> {
        let owners = self.hosts.get(name)?.iter();
        let owners = owners.filter_map(|owner| self.service_entries.get_key_value(owner));
        let oldest = owners.min_by_key(|(owner, entry)| age(&entry.metadata, owner))?;
        Some((oldest.0.clone(), oldest.1.clone()))
    }

    /// The services that have a pod as an endpoint, with the ports on which it serves them.
    pub(super) fn served_by_pod(
        &self,
        mesh: &Mesh,
        name: &ObjectName,
        pod: &PodRecord,
        state: &PodState,
    ) -> BTreeMap<ServiceName, Vec<PortMapping>> {
        let mut served =
            self.kubernetes_services(mesh, &name.namespace, &pod.labels, &pod.named_ports);
        for (service, listed) in self.slices.listed_for(name, state.own_addresses(pod)) {
            if let Some(record) = self.without_selector(service) {
                let ports = slices::member_ports(record, &listed);
                served.insert(services::service_name(mesh, service), ports);
            }
        }
        for (host, entry) in self.entries_selecting(&name.namespace, &pod.labels) {
            served.entry(host).or_insert_with(|| entries::member_ports(&entry, None));
        }
        served
    }

    /// What slices list for a Service without a selector and is no pod.
    pub(super) fn listed_outside_of_pods(
        &self,
        service: &ObjectName,
    ) -> Option<(&ServiceRecord, Vec<Listed<'_>>)> {
        let record = self.without_selector(service)?;
        let mut listed = self.slices.listed(service);
        let nameless = listed.iter().filter(|it| it.pod().is_none());
        let addresses: BTreeSet<IpAddr> = nameless.map(Listed::address).collect();
        let pods = self.pods_at(&service.namespace, &addresses);
        let taken = pods.flat_map(|(_, pod)| pod.own_addresses());
        let taken: BTreeSet<&IpAddr> = taken.filter(|ip| addresses.contains(*ip)).collect();
        let is_pod = |name: &ObjectName| self.pod(name).is_some();
        listed
            .retain(|it| !taken.contains(&it.address()) && !it.pod().as_ref().is_some_and(is_pod));
        Some((record, listed))
    }

    fn without_selector(&self, service: &ObjectName) -> Option<&ServiceRecord> {
        self.services.get(service).filter(|record| record.selector.is_empty())
    }

    /// The services that have a WorkloadEntry as an endpoint.
    pub(super) fn served_by_entry(
        &self,
        mesh: &Mesh,
        name: &ObjectName,
        entry: &WorkloadEntry,
    ) -> BTreeMap<ServiceName, Vec<PortMapping>> {
        let labels = entry.labels();
        let named = entry.spec.ports.iter();
        let named =
            named.filter_map(|(name, port)| Some((name.clone(), u16::try_from(*port).ok()?)));
        let named: NamedPorts = named.collect();
        let mut served = self.kubernetes_services(mesh, &name.namespace, &labels, &named);
        for (host, owner) in self.entries_selecting(&name.namespace, &labels) {
            served.entry(host).or_insert_with(|| entries::member_ports(&owner, Some(&entry.spec)));
        }
        served
    }

    fn kubernetes_services(
        &self,
        mesh: &Mesh,
        namespace: &Text,
        labels: &Labels,
        named_ports: &NamedPorts,
    ) -> BTreeMap<ServiceName, Vec<PortMapping>> {
        let selecting = self.service_selectors.selecting(namespace, labels);
        let records = selecting.iter().filter_map(|name| self.services.get_key_value(name));
        let ports = |(name, record): (&ObjectName, &ServiceRecord)| {
            (services::service_name(mesh, name), services::member_ports(record, named_ports))
        };
        records.map(ports).collect()
    }

    fn entries_selecting(
        &self,
        namespace: &Text,
        labels: &Labels,
    ) -> Vec<(ServiceName, Arc<ServiceEntry>)> {
        let selecting = self.service_entry_selectors.selecting(namespace, labels);
        let entries = selecting.iter().filter_map(|name| self.service_entries.get(name));
        let hosts = |entry: &Arc<ServiceEntry>| {
            let host =
                |host: &String| (ServiceName::new(namespace.clone(), host.as_str()), entry.clone());
            entry.spec.hosts.iter().map(host).collect::<Vec<_>>()
        };
        entries.flat_map(hosts).collect()
    }

    fn labels_of(&self, member: &Member) -> Option<Arc<Labels>> {
        match member {
            Member::Pod(name) => self.pod(name).map(|(pod, _)| pod.labels.clone()),
            Member::Entry(name) => {
                self.workload_entries.get(name).map(|entry| Arc::new(entry.labels()))
            }
        }
    }

    fn effective(&self, mesh: &Mesh, namespace: &Text, labels: &Labels) -> Effective<'_> {
        let selecting = self.peer_selectors.selecting(namespace, labels);
        let selecting =
            selecting.iter().filter_map(|name| self.peer_authentications.get_key_value(name));
        let workload = selecting.min_by_key(|(name, object)| age(&object.metadata, name));
        Effective { workload: workload.map(|(_, object)| &**object), ..self.wider(mesh, namespace) }
    }

    /// What the PeerAuthentications say of a pod or WorkloadEntry.
    pub(super) fn mutual_tls_of(&self, mesh: &Mesh, name: &ObjectName) -> Option<Effective<'_>> {
        let pod = self.labels_of(&Member::Pod(name.clone()));
        let labels = pod.or_else(|| self.labels_of(&Member::Entry(name.clone())))?;
        Some(self.effective(mesh, &name.namespace, &labels))
    }

    /// What mesh and namespace say, for objects and workloads of `namespace`.
    fn wider(&self, mesh: &Mesh, namespace: &Text) -> Effective<'_> {
        let of = |namespace: &Text| {
            let all = in_namespace(&self.peer_authentications, namespace);
            let all = all.filter(|(_, object)| selector(object.spec.selector.as_ref()).is_none());
            all.min_by_key(|(name, object)| age(&object.metadata, name))
                .map(|(_, object)| &**object)
        };
        let own = (*namespace != mesh.root_namespace).then(|| of(namespace)).flatten();
        Effective { mesh: of(&mesh.root_namespace), namespace: own, workload: None }
    }

    /// What the policy of this name is made of.
    pub(super) fn policy_origin(&self, mesh: &Mesh, name: &PolicyName) -> PolicyOrigin<'_> {
        if let Some(object) = peer_auth::origin(name) {
            return match self.peer_authentications.get(&object) {
                Some(own) if selector(own.spec.selector.as_ref()).is_some() => {
                    let wider = self.wider(mesh, &object.namespace);
                    PolicyOrigin::PeerAuthentication(Effective { workload: Some(own), ..wider })
                }
                _ => PolicyOrigin::Gone(object),
            };
        }
        let object = ObjectName { namespace: name.namespace.clone(), name: name.name.clone() };
        match self.policies.get(&object) {
            Some(policy) => PolicyOrigin::Authorization(object, policy.clone()),
            None => PolicyOrigin::Gone(object),
        }
    }
}

/// The labels of a selector that selects anything less than all.
pub(crate) fn selector(selector: Option<&WorkloadSelector>) -> Option<&Labels> {
    selector.map(|selector| &selector.match_labels).filter(|labels| !labels.is_empty())
}

/// Orders objects from old to young; objects without a time are ordered by name.
pub(super) fn age<'a>(
    metadata: &ObjectMeta,
    name: &'a ObjectName,
) -> (Option<i64>, &'a ObjectName) {
    let created = metadata.creation_timestamp.as_ref();
    (created.map(|time| time.0.as_second()), name)
}

fn in_namespace<'a, V>(
    map: &'a BTreeMap<ObjectName, V>,
    namespace: &Text,
) -> impl Iterator<Item = (&'a ObjectName, &'a V)> + use<'a, V> {
    let namespace = namespace.clone();
    let first = ObjectName { namespace: namespace.clone(), name: "".into() };
    map.range(first..).take_while(move |(name, _)| name.namespace == namespace)
}

/// Puts or removes; returns whether anything changed.
fn replace<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> bool {
    match value {
        Some(value) => {
            if map.get(&key) == Some(&value) {
                return false;
            }
            map.insert(key, value);
            true
        }
        None => map.remove(&key).is_some(),
    }
}
