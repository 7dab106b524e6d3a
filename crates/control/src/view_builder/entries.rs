//! ServiceEntry and WorkloadEntry to services and workloads.
//!
//! A ServiceEntry is one service for each of its hosts, and one workload for each listed endpoint;
//! endpoints that it selects are members with their own records. Names of workloads are Istio's.
//! Nothing here may resolve a DNS name: proxies look up endpoints that are names, and waypoints the
//! names that clients ask for below a wildcard.

use std::net::IpAddr;
use std::sync::Arc;

use ambit_manifest::ObjectName;
use ambit_manifest::istio::{
    Resolution, ServiceEntry, ServiceEntrySpec, WorkloadEntry, WorkloadEntrySpec,
};
use ambit_manifest::names::{address, address_block};
use ambit_model::Text;
use ambit_model::address::not_for_entries;
use ambit_model::names::{NetworkAddress, ServiceName, entry_uid};
use ambit_model::service::{LoadBalancing, Mode, Service, VirtualAddress};
use ambit_model::workload::{GatewayAddress, Locality, PortMapping, Tunnel, Workload};
use ambit_words::annotations::USE_WAYPOINT_CANARY_WEIGHT;
use ambit_words::labels::{APP_NAME, CANONICAL_NAME, CANONICAL_REVISION, TUNNEL, TUNNEL_HTTP};

use super::Mesh;
use super::gateways::{Gateways, Naming, Shares};
use super::records::NamespaceRecord;
use super::selectors::Labels;
use super::services::{app_protocol, virtual_address};

/// Label that forbids allocating addresses to a ServiceEntry.
const AUTO_ALLOCATE: &str = "networking.istio.io/enable-autoallocate-ip";

/// How the endpoints are found, NONE when not said.
pub(crate) fn resolution(spec: &ServiceEntrySpec) -> Resolution {
    spec.resolution.unwrap_or(Resolution::None)
}

/// Whether a host of `entry` needs allocated addresses.
pub(crate) fn needs_address(
    mesh: &Mesh,
    name: &ObjectName,
    entry: &ServiceEntry,
    host: &str,
    namespace: &NamespaceRecord,
    gateways: &Gateways,
) -> bool {
    let spec = &entry.spec;
    let labels = entry.metadata.labels.as_ref();
    let forbidden =
        labels.and_then(|labels| labels.get(AUTO_ALLOCATE)).is_some_and(|value| value == "false");
    if forbidden || !spec.addresses.is_empty() {
        return false;
    }
    match resolution(spec) {
        Resolution::None => false,
        // Only a waypoint hears which name is meant.
        Resolution::DynamicDns => waypoint(mesh, name, entry, namespace, gateways).is_some(),
        Resolution::Static | Resolution::Dns | Resolution::DnsRoundRobin => !host.starts_with('*'),
    }
}

/// The waypoint of an entry.
fn waypoint(
    mesh: &Mesh,
    name: &ObjectName,
    entry: &ServiceEntry,
    namespace: &NamespaceRecord,
    gateways: &Gateways,
) -> Option<GatewayAddress> {
    let labels = entry.metadata.labels.clone().unwrap_or_default();
    let of_namespace = &namespace.labels;
    let naming =
        Naming { namespace: &name.namespace, labels: &labels, of_namespace, is_workload: false };
    gateways.waypoint(mesh, &naming)
}

/// The service of one host of `entry`.
pub(crate) fn service(
    mesh: &Mesh,
    name: &ObjectName,
    entry: &ServiceEntry,
    host: &str,
    allocated: &[IpAddr],
    namespace: &NamespaceRecord,
    gateways: &Gateways,
) -> Service {
    let spec = &entry.spec;
    let listed = spec.addresses.iter().filter_map(|address| address_block(address));
    let listed = listed.filter(|block| not_for_entries(block.addr()).is_none());
    let listed = listed.map(|block| VirtualAddress {
        address: NetworkAddress::new("", block.addr()),
        prefix_len: (block.prefix_len() < block.max_prefix_len()).then_some(block.prefix_len()),
    });
    let allocated = allocated.iter().map(|ip| virtual_address(*ip));
    let waypoint = waypoint(mesh, name, entry, namespace, gateways);
    let passes_through = match resolution(spec) {
        Resolution::None => true,
        Resolution::DynamicDns => waypoint.is_none(),
        Resolution::Static | Resolution::Dns | Resolution::DnsRoundRobin => false,
    };
    let labels = entry.metadata.labels.clone().unwrap_or_default();
    let of_namespace = &namespace.labels;
    let naming =
        Naming { namespace: &name.namespace, labels: &labels, of_namespace, is_workload: false };
    Service {
        name: name.name.clone(),
        addresses: listed.chain(allocated).collect(),
        ports: ports(spec, None),
        subject_alt_names: spec.subject_alt_names.iter().map(|san| san.as_str().into()).collect(),
        waypoint,
        weighted_waypoints: gateways.weighted(mesh, &naming, shares(entry, namespace)),
        load_balancing: LoadBalancing {
            mode: if passes_through { Mode::Passthrough } else { Mode::Unspecified },
            ..LoadBalancing::default()
        },
        namespace_only: !spec.export_to.is_empty()
            && spec.export_to.iter().all(|it| it == "." || it == "~" || **it == *name.namespace),
        ..Service::named(name.namespace.clone(), host)
    }
}

/// What is said of the share of its canary waypoint.
pub(crate) fn shares<'a>(entry: &'a ServiceEntry, namespace: &'a NamespaceRecord) -> Shares<'a> {
    let annotations = entry.metadata.annotations.as_ref();
    let own = annotations.and_then(|all| all.get(USE_WAYPOINT_CANARY_WEIGHT));
    Shares { own: own.map(String::as_str), of_namespace: namespace.canary_weight.as_deref() }
}

/// The ports of a ServiceEntry, as `endpoint` serves them.
fn ports(spec: &ServiceEntrySpec, endpoint: Option<&WorkloadEntrySpec>) -> Vec<PortMapping> {
    let mapping = |port: &ambit_manifest::istio::ServicePort| {
        let target = endpoint.and_then(|endpoint| endpoint.ports.get(&port.name)).copied();
        let target =
            target.unwrap_or(if port.target_port == 0 { port.number } else { port.target_port });
        PortMapping {
            service_port: u16::try_from(port.number).unwrap_or_default(),
            target_port: u16::try_from(target).unwrap_or_default(),
            app_protocol: app_protocol(Some(&port.protocol), Some(&port.name)),
        }
    };
    spec.ports
        .iter()
        .filter(|port| !port.protocol.eq_ignore_ascii_case("UDP"))
        .map(mapping)
        .collect()
}

/// The ports on which a member that `entry` selects serves it.
pub(crate) fn member_ports(
    entry: &ServiceEntry,
    endpoint: Option<&WorkloadEntrySpec>,
) -> Vec<PortMapping> {
    ports(&entry.spec, endpoint)
}

/// The workloads of the listed endpoints of `entry`, or of the names themselves when DNS finds
/// them.
pub(crate) fn endpoints(mesh: &Mesh, name: &ObjectName, entry: &ServiceEntry) -> Vec<Workload> {
    let spec = &entry.spec;
    let is_dynamic = resolution(spec) == Resolution::DynamicDns;
    let resolves =
        is_dynamic || matches!(resolution(spec), Resolution::Dns | Resolution::DnsRoundRobin);
    if spec.endpoints.is_empty() && spec.workload_selector.is_none() && resolves {
        let by_name = spec.hosts.iter().filter(|host| is_dynamic || !host.starts_with('*'));
        let endpoint = |host: &String| WorkloadEntrySpec {
            address: host.clone(),
            ..WorkloadEntrySpec::default()
        };
        return by_name
            .map(|host| self::endpoint(mesh, name, entry, &endpoint(host), Some(host.as_str())))
            .collect();
    }
    spec.endpoints
        .iter()
        .map(|endpoint| self::endpoint(mesh, name, entry, endpoint, None))
        .collect()
}

/// The uid of the workload that a ServiceEntry lists at an address.
pub(super) fn endpoint_uid(mesh: &Mesh, entry: &ObjectName, address: &str) -> String {
    let ObjectName { namespace, name } = entry;
    let cluster = &mesh.cluster_id;
    format!("{cluster}/networking.istio.io/ServiceEntry/{namespace}/{name}/{address}")
}

/// One endpoint, of all hosts or of `only`.
fn endpoint(
    mesh: &Mesh,
    name: &ObjectName,
    entry: &ServiceEntry,
    spec: &WorkloadEntrySpec,
    only: Option<&str>,
) -> Workload {
    let ObjectName { namespace, name: entry_name } = name;
    let uid = endpoint_uid(mesh, name, &spec.address);
    let mut workload = of_spec(
        mesh,
        Workload::named(uid, namespace.clone(), entry_name.clone()),
        spec,
        &spec.labels,
    );
    let hosts =
        entry.spec.hosts.iter().filter(|host| only.is_none_or(|only| only == host.as_str()));
    for host in hosts {
        let key = ServiceName::new(namespace.clone(), host.as_str());
        workload.serve(key, ports(&entry.spec, Some(spec)));
    }
    workload
}

/// The workload of a WorkloadEntry, without its services.
pub(crate) fn workload(
    mesh: &Mesh,
    name: &ObjectName,
    entry: &WorkloadEntry,
    of_namespace: &NamespaceRecord,
    gateways: &Gateways,
) -> Workload {
    let ObjectName { namespace, name } = name;
    let uid = entry_uid(&mesh.cluster_id, namespace, name);
    let workload = Workload::named(uid, namespace.clone(), name.clone());
    let labels = entry.labels();
    let mut workload = of_spec(mesh, workload, &entry.spec, &labels);
    let of_namespace = &of_namespace.labels;
    let naming = Naming { namespace, labels: &labels, of_namespace, is_workload: true };
    workload.waypoint = gateways.waypoint(mesh, &naming).map(Arc::new);
    workload
}

fn of_spec(
    mesh: &Mesh,
    mut workload: Workload,
    spec: &WorkloadEntrySpec,
    labels: &Labels,
) -> Workload {
    match address(&spec.address) {
        // It has no address, then: what leads there is refused.
        Some(ip) if not_for_entries(ip).is_some() => {}
        Some(ip) => workload.addresses = vec![ip].into(),
        None => workload.hostname = spec.address.as_str().into(),
    }
    workload.trust_domain = mesh.trust_domain.clone();
    if !spec.service_account.is_empty() {
        workload.service_account = spec.service_account.as_str().into();
    }
    if labels.get(TUNNEL).is_some_and(|value| value == TUNNEL_HTTP) {
        workload.tunnel = Tunnel::Hbone;
    }
    workload.workload_name = workload.name.clone();
    (workload.canonical_name, workload.canonical_revision) = canonical(labels, &workload.name);
    workload.network = spec.network.as_str().into();
    workload.cluster_id = mesh.cluster_id.clone();
    workload.locality = Arc::new(locality(&spec.locality));
    workload.capacity = spec.weight.unwrap_or(1);
    workload
}

fn locality(text: &str) -> Locality {
    let mut parts = text.splitn(3, '/').map(Text::from);
    let mut next = || parts.next().unwrap_or_default();
    Locality { region: next(), zone: next(), subzone: next() }
}

/// Canonical service and revision, from the labels that Istio looks at.
pub(crate) fn canonical(labels: &Labels, fallback: &Text) -> (Text, Text) {
    let first = |keys: &[&str]| {
        keys.iter().find_map(|key| labels.get(*key)).map(|it| Text::from(it.as_str()))
    };
    let name = first(&[CANONICAL_NAME, APP_NAME, "app"]);
    let revision = first(&[CANONICAL_REVISION, "app.kubernetes.io/version", "version"]);
    (name.unwrap_or_else(|| fallback.clone()), revision.unwrap_or_else(|| Arc::from("latest")))
}
