//! Kubernetes Services to the services of the view, and the ports on which a member serves them.
//!
//! A service keeps the waypoint that it names even if there is none: proxies then refuse its
//! connections. Nothing here may look at endpoints; those are the members' own records.

use std::net::IpAddr;

use ambit_manifest::ObjectName;
use ambit_manifest::names;
use ambit_model::names::{NetworkAddress, ServiceName};
use ambit_model::service::{IpFamilies, LoadBalancing, Mode, Scope, Service, VirtualAddress};
use ambit_model::workload::{AppProtocol, PortMapping};
use ambit_words::annotations::USE_WAYPOINT_CANARY_WEIGHT;
use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Mesh;
use super::gateways::{Gateways, Naming, Shares};
use super::records::{NamedPorts, NamespaceRecord, ServiceRecord, TRAFFIC_DISTRIBUTION};

/// Kubernetes' default for session affinity.
const DEFAULT_AFFINITY_SECONDS: i32 = 10_800;

/// The service's name in the view.
pub(crate) fn service_name(mesh: &Mesh, name: &ObjectName) -> ServiceName {
    let ObjectName { namespace, name } = name;
    ServiceName::new(namespace.clone(), format!("{name}.{namespace}.svc.{}", mesh.domain))
}

/// The service of `record`.
pub(crate) fn build(
    mesh: &Mesh,
    name: &ObjectName,
    record: &ServiceRecord,
    namespace: &NamespaceRecord,
    gateways: &Gateways,
) -> Service {
    let spec = record.object.spec.clone().unwrap_or_default();
    let metadata = &record.object.metadata;
    let key = service_name(mesh, name);
    let labels = metadata.labels.clone().unwrap_or_default();
    let distribution = spec
        .traffic_distribution
        .clone()
        .or_else(|| metadata.annotations.as_ref()?.get(TRAFFIC_DISTRIBUTION).cloned())
        .or_else(|| namespace.traffic_distribution.clone());
    let of_namespace = &namespace.labels;
    let naming =
        Naming { namespace: &name.namespace, labels: &labels, of_namespace, is_workload: false };
    let shares = shares(record, namespace);
    Service {
        name: name.name.clone(),
        addresses: addresses(&spec),
        ports: tcp_ports(&spec).map(|port| own_port(record, port)).collect(),
        waypoint: gateways.waypoint(mesh, &naming),
        weighted_waypoints: gateways.weighted(mesh, &naming, shares),
        load_balancing: load_balancing(&spec, distribution.as_deref()),
        ip_families: ip_families(&spec),
        canonical: true,
        ..Service::named(key.namespace, key.hostname)
    }
}

/// What is said of the share of its canary waypoint.
pub(crate) fn shares<'a>(record: &'a ServiceRecord, namespace: &'a NamespaceRecord) -> Shares<'a> {
    let annotations = record.object.metadata.annotations.as_ref();
    let own = annotations.and_then(|all| all.get(USE_WAYPOINT_CANARY_WEIGHT));
    Shares { own: own.map(String::as_str), of_namespace: namespace.canary_weight.as_deref() }
}

fn addresses(spec: &ServiceSpec) -> Vec<VirtualAddress> {
    let listed = spec.cluster_ips.iter().flatten();
    let mut addresses: Vec<IpAddr> = listed.filter_map(|ip| names::address(ip)).collect();
    if addresses.is_empty() {
        addresses.extend(spec.cluster_ip.iter().filter_map(|ip| names::address(ip)));
    }
    addresses.into_iter().map(virtual_address).collect()
}

/// A single address on the mesh's only network.
pub(crate) fn virtual_address(ip: IpAddr) -> VirtualAddress {
    VirtualAddress { address: NetworkAddress::new("", ip), prefix_len: None }
}

fn tcp_ports(spec: &ServiceSpec) -> impl Iterator<Item = &ServicePort> {
    let ports = spec.ports.iter().flatten();
    ports.filter(|port| port.protocol.as_deref().unwrap_or("TCP") == "TCP")
}

/// A port of the service itself. Without a selector its slices alone say where it leads, each
/// endpoint's for itself: one that does not list the port does not serve it.
fn own_port(record: &ServiceRecord, port: &ServicePort) -> PortMapping {
    let own = service_port(port);
    let target_port = if record.selector.is_empty() { 0 } else { own.target_port };
    PortMapping { target_port, ..own }
}

fn service_port(port: &ServicePort) -> PortMapping {
    PortMapping {
        service_port: u16::try_from(port.port).unwrap_or_default(),
        target_port: match &port.target_port {
            Some(IntOrString::Int(target)) => u16::try_from(*target).unwrap_or_default(),
            Some(IntOrString::String(_)) => 0,
            None => u16::try_from(port.port).unwrap_or_default(),
        },
        app_protocol: app_protocol(port.app_protocol.as_deref(), port.name.as_deref()),
    }
}

/// The ports on which a member with these named ports serves `record`; a name that it lacks serves
/// nothing.
pub(crate) fn member_ports(record: &ServiceRecord, named_ports: &NamedPorts) -> Vec<PortMapping> {
    served_ports(record, |port| match &port.target_port {
        Some(IntOrString::String(name)) => named_ports.get(name).copied(),
        _ => Some(service_port(port).target_port),
    })
}

/// The ports on which an endpoint that is listed serves `record`; `target` says where, by the name
/// of the service's port.
pub(crate) fn listed_ports(
    record: &ServiceRecord,
    target: impl Fn(&str) -> Option<u16>,
) -> Vec<PortMapping> {
    served_ports(record, |port| target(port.name.as_deref().unwrap_or_default()))
}

fn served_ports(
    record: &ServiceRecord,
    target: impl Fn(&ServicePort) -> Option<u16>,
) -> Vec<PortMapping> {
    let ports = record.object.spec.iter().flat_map(tcp_ports);
    let served = ports
        .filter_map(|port| Some(PortMapping { target_port: target(port)?, ..service_port(port) }));
    served.collect()
}

/// Whether `record` takes endpoints that are not ready.
pub(crate) fn takes_unready(record: &ServiceRecord) -> bool {
    let spec = record.object.spec.as_ref();
    spec.and_then(|spec| spec.publish_not_ready_addresses).unwrap_or_default()
}

/// What a port speaks: its declared protocol, else the first word of its name.
pub(crate) fn app_protocol(declared: Option<&str>, name: Option<&str>) -> AppProtocol {
    let declared = declared.map(str::to_lowercase);
    let word = match declared.as_deref() {
        Some("kubernetes.io/h2c") => "http2",
        Some(declared) => declared,
        None => name.unwrap_or_default().split('-').next().unwrap_or_default(),
    };
    match word {
        "http" => AppProtocol::Http11,
        "http2" | "h2c" => AppProtocol::Http2,
        "grpc" => AppProtocol::Grpc,
        "tcp" => AppProtocol::Tcp,
        "tls" | "https" => AppProtocol::Tls,
        _ => AppProtocol::Unknown,
    }
}

fn load_balancing(spec: &ServiceSpec, distribution: Option<&str>) -> LoadBalancing {
    let (mode, routing_preference) = if spec.internal_traffic_policy.as_deref() == Some("Local") {
        (Mode::Strict, vec![Scope::Node])
    } else {
        match distribution {
            Some("PreferClose" | "PreferSameZone") => {
                (Mode::Failover, vec![Scope::Network, Scope::Region, Scope::Zone])
            }
            Some("PreferSameNode") => (
                Mode::Failover,
                vec![Scope::Network, Scope::Region, Scope::Zone, Scope::Subzone, Scope::Node],
            ),
            _ => (Mode::Unspecified, Vec::new()),
        }
    };
    let client_ip = spec.session_affinity.as_deref() == Some("ClientIP");
    let timeout =
        spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let seconds = timeout.and_then(|it| it.timeout_seconds).unwrap_or(DEFAULT_AFFINITY_SECONDS);
    LoadBalancing {
        routing_preference,
        mode,
        allow_unhealthy: spec.publish_not_ready_addresses.unwrap_or_default(),
        client_affinity_seconds: client_ip.then(|| u32::try_from(seconds).unwrap_or_default()),
    }
}

fn ip_families(spec: &ServiceSpec) -> IpFamilies {
    let families = spec.ip_families.as_deref().unwrap_or_default();
    let has = |family| families.iter().any(|it| it == family);
    match (has("IPv4"), has("IPv6")) {
        (true, true) => IpFamilies::Dual,
        (true, false) => IpFamilies::Ipv4Only,
        (false, true) => IpFamilies::Ipv6Only,
        (false, false) => IpFamilies::Automatic,
    }
}
