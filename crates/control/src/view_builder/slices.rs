//! EndpointSlices: where Services without a selector lead.
//!
//! An address that is a pod's makes that pod a member of the Service, with its identity and its
//! tunnel; any other becomes a workload of its own, named as istiod's, in plain TCP. A pod of
//! another namespace is no member: what a Service demands of those who reach its members, a
//! waypoint for one, is not for strangers to demand. The proxy finds such a pod's tunnel by its
//! address all the same. Nothing here may decide who is a pod: that is the store's to know.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::names;
use ambit_manifest::slice::BY_NAME;
use ambit_model::Text;
use ambit_model::workload::{PortMapping, Workload};
use ambit_words::labels::SERVICE_NAME;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::records::{NamedPorts, ServiceRecord};
use super::{Dirty, Listing, Mesh, services};

/// Most endpoints of a Service that are no pods, as many as an Endpoints object may have.
const OUTSIDE_MAX: usize = 1000;

/// An EndpointSlice of a Service.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SliceRecord {
    /// The Service.
    pub(super) service: ObjectName,
    /// The TCP ports of all its endpoints, by the name of the Service's port.
    ports: NamedPorts,
    endpoints: Vec<EndpointRecord>,
}

/// An endpoint of a slice.
#[derive(Debug, Clone, PartialEq)]
struct EndpointRecord {
    address: IpAddr,
    is_ready: bool,
    /// The pod of the slice's namespace that it says it is.
    pod: Option<Text>,
}

impl SliceRecord {
    /// What `slice` says; `None` if it is of no Service or holds no addresses.
    pub(super) fn new(slice: &EndpointSlice) -> Option<Self> {
        let service = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
        if slice.address_type == BY_NAME {
            return None;
        }
        let namespace = ObjectName::of(&slice.metadata).namespace;
        let ports = slice.ports.iter().flatten();
        let ports = ports.filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP");
        // A port without a number leads nowhere, as for kube-proxy.
        let ports = ports.filter_map(|port| {
            Some((port.name.clone().unwrap_or_default(), u16::try_from(port.port?).ok()?))
        });
        let endpoints = slice.endpoints.iter().flatten();
        Some(Self {
            service: ObjectName::new(&namespace, service),
            ports: ports.collect(),
            endpoints: endpoints.filter_map(|it| EndpointRecord::new(it, &namespace)).collect(),
        })
    }

    /// The pods that its endpoints say they are.
    pub(super) fn pods(&self) -> impl Iterator<Item = ObjectName> {
        let namespace = &self.service.namespace;
        let named = self.endpoints.iter().filter_map(|it| it.pod.as_ref());
        named.map(|pod| ObjectName { namespace: namespace.clone(), name: pod.clone() })
    }

    /// The addresses of endpoints that do not say which pod they are.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let nameless = self.endpoints.iter().filter(|it| it.pod.is_none());
        nameless.map(|it| it.address)
    }

    fn keys(&self) -> impl Iterator<Item = Key> {
        let namespace = &self.service.namespace;
        let by_address = self.addresses().map(|address| Key::Address(namespace.clone(), address));
        self.pods().map(Key::Pod).chain(by_address)
    }
}

impl EndpointRecord {
    fn new(endpoint: &Endpoint, namespace: &str) -> Option<Self> {
        let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready);
        let target = endpoint.target_ref.as_ref().filter(|target| {
            let is_here = target.namespace.as_deref().is_none_or(|it| it == namespace);
            is_here && target.kind.as_deref() == Some("Pod")
        });
        Some(Self {
            // What further addresses mean is not defined.
            address: names::address(endpoint.addresses.first()?)?,
            is_ready: ready.unwrap_or(true),
            pod: target.and_then(|target| target.name.as_deref()).map(Text::from),
        })
    }
}

/// By what a slice names an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Pod(ObjectName),
    Address(Text, IpAddr),
}

/// The slices of all Services.
#[derive(Debug, Default)]
pub(super) struct Slices {
    all: BTreeMap<ObjectName, SliceRecord>,
    by_service: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
    by_endpoint: BTreeMap<Key, BTreeSet<ObjectName>>,
}

impl Slices {
    /// The slice of this name.
    pub(super) fn slice(&self, name: &ObjectName) -> Option<&SliceRecord> {
        self.all.get(name)
    }

    /// Puts or removes a slice; answers with what was there.
    pub(super) fn put(
        &mut self,
        name: ObjectName,
        record: Option<SliceRecord>,
    ) -> Option<SliceRecord> {
        let old = self.all.remove(&name);
        if let Some(old) = &old {
            unlink(&mut self.by_service, &old.service, &name);
            old.keys().for_each(|key| unlink(&mut self.by_endpoint, &key, &name));
        }
        if let Some(record) = record {
            self.by_service.entry(record.service.clone()).or_default().insert(name.clone());
            for key in record.keys() {
                self.by_endpoint.entry(key).or_default().insert(name.clone());
            }
            self.all.insert(name, record);
        }
        old
    }

    /// The slices of a Service.
    pub(super) fn of_service(&self, service: &ObjectName) -> impl Iterator<Item = &SliceRecord> {
        let names = self.by_service.get(service).into_iter().flatten();
        names.filter_map(|name| self.all.get(name))
    }

    /// Marks what must be built again because of a pod that has these addresses to itself.
    pub(super) fn mark(&self, pod: &ObjectName, addresses: &[IpAddr], dirty: &mut Dirty) {
        let slices = self.naming(pod, addresses);
        dirty.listings.extend(slices.map(|(_, slice)| Listing::Slices(slice.service.clone())));
    }

    /// What slices list for a Service.
    pub(super) fn listed(&self, service: &ObjectName) -> Vec<Listed<'_>> {
        let names = self.by_service.get(service).into_iter().flatten();
        let slices = names.filter_map(|name| self.all.get_key_value(name));
        slices.flat_map(|(name, slice)| Listed::of(name, slice)).collect()
    }

    /// What slices list for a pod that has these addresses to itself, by Service.
    pub(super) fn listed_for(
        &self,
        pod: &ObjectName,
        addresses: &[IpAddr],
    ) -> BTreeMap<&ObjectName, Vec<Listed<'_>>> {
        let mut by_service: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (name, slice) in self.naming(pod, addresses) {
            let its = Listed::of(name, slice).filter(|listed| match listed.pod() {
                Some(named) => named == *pod,
                None => addresses.contains(&listed.address()),
            });
            by_service.entry(&slice.service).or_default().extend(its);
        }
        by_service
    }

    /// The slices that name a pod, or one of these addresses.
    fn naming(
        &self,
        pod: &ObjectName,
        addresses: &[IpAddr],
    ) -> impl Iterator<Item = (&ObjectName, &SliceRecord)> {
        let by_address = addresses.iter().map(|ip| Key::Address(pod.namespace.clone(), *ip));
        let keys = std::iter::once(Key::Pod(pod.clone())).chain(by_address);
        let names = keys.filter_map(|key| self.by_endpoint.get(&key)).flatten();
        let names: BTreeSet<&ObjectName> = names.collect();
        names.into_iter().filter_map(|name| self.all.get_key_value(name))
    }
}

fn unlink<K: Ord>(index: &mut BTreeMap<K, BTreeSet<ObjectName>>, key: &K, name: &ObjectName) {
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}

/// An endpoint in the slice that lists it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Listed<'a> {
    name: &'a ObjectName,
    slice: &'a SliceRecord,
    endpoint: &'a EndpointRecord,
}

impl<'a> Listed<'a> {
    fn of(name: &'a ObjectName, slice: &'a SliceRecord) -> impl Iterator<Item = Self> {
        slice.endpoints.iter().map(move |endpoint| Self { name, slice, endpoint })
    }

    /// Its address.
    pub(super) fn address(&self) -> IpAddr {
        self.endpoint.address
    }

    /// The pod that it says it is.
    pub(super) fn pod(&self) -> Option<ObjectName> {
        let namespace = &self.slice.service.namespace;
        let name = self.endpoint.pod.clone()?;
        Some(ObjectName { namespace: namespace.clone(), name })
    }
}

/// What those who list one endpoint say together: whether it is ready, and the ports on which it
/// serves. Who lists it as unready is heard only if all do.
fn together(service: &ServiceRecord, listed: &[Listed<'_>]) -> (bool, Vec<PortMapping>) {
    let is_ready = listed.iter().any(|it| it.endpoint.is_ready);
    let heard = || listed.iter().filter(|it| it.endpoint.is_ready == is_ready);
    let target = |name: &str| heard().find_map(|it| it.slice.ports.get(name)).copied();
    (is_ready, services::listed_ports(service, target))
}

/// The ports on which a pod that is listed so serves `service`: none while it is not ready. It is
/// an endpoint all the same, held to the policies and the waypoint of the Service.
pub(super) fn member_ports(service: &ServiceRecord, listed: &[Listed<'_>]) -> Vec<PortMapping> {
    let (is_ready, ports) = together(service, listed);
    if is_ready || services::takes_unready(service) { ports } else { Vec::new() }
}

/// The workloads of endpoints that are no pods: one for each address, however often it is listed,
/// and the first [`OUTSIDE_MAX`] of a Service, for every proxy of the mesh gets them.
pub(super) fn workloads(
    mesh: &Mesh,
    service: &ServiceRecord,
    listed: &[Listed<'_>],
) -> Vec<Workload> {
    let mut by_address: BTreeMap<IpAddr, Vec<Listed<'_>>> = BTreeMap::new();
    for it in listed {
        by_address.entry(it.address()).or_default().push(*it);
    }
    let mut all: Vec<Workload> =
        by_address.values().map(|listed| workload(mesh, service, listed)).collect();
    // Those that are ready first.
    all.sort_by_key(|workload| !workload.healthy);
    all.truncate(OUTSIDE_MAX);
    all
}

fn workload(mesh: &Mesh, service: &ServiceRecord, listed: &[Listed<'_>]) -> Workload {
    let Listed { name: ObjectName { namespace, name }, slice, endpoint } = listed[0];
    let (cluster, address) = (&mesh.cluster_id, endpoint.address);
    let uid = format!("{cluster}/discovery.k8s.io/EndpointSlice/{namespace}/{name}/{address}");
    let mut workload = Workload::named(uid, namespace.clone(), name.clone());
    let (is_ready, ports) = together(service, listed);
    workload.addresses = vec![address].into();
    workload.trust_domain = mesh.trust_domain.clone();
    workload.cluster_id = mesh.cluster_id.clone();
    workload.healthy = is_ready;
    // Whoever writes a slice may name any address: none of them becomes its own.
    workload.host_network = true;
    workload.services =
        Arc::new(BTreeMap::from([(services::service_name(mesh, &slice.service), ports)]));
    workload
}
