//! Services and the pods behind them, from the registry: the input for service addresses and DNS.
//!
//! Pure: a mirror in, views out. An endpoint is a pod that a service selects, with an address. The
//! caller decides whether it must be ready, since some services publish endpoints that are not.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ambit_net::nftables::Protocol;
use k8s_openapi::api::core::v1::{Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::Value;

use super::plan::PodName;
use crate::controller::decode;
use crate::objects::ObjectRef;
use crate::registry::Mirror;

/// A service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its virtual addresses; none for a headless one.
    pub addresses: Vec<IpAddr>,
    /// Its ports.
    pub ports: Vec<PortView>,
    /// The pods it selects.
    pub endpoints: Vec<Endpoint>,
    /// A client stays with its endpoint.
    pub client_affinity: bool,
    /// Only endpoints on the client's node count.
    pub local_only: bool,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortView {
    /// Its name, empty for the only one.
    pub name: String,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// Its protocol, if declared other than by its name.
    pub application_protocol: Option<String>,
}

/// A pod behind a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its host name if the service is its subdomain.
    pub hostname: Option<String>,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its node.
    pub node: String,
    /// It takes traffic, by itself or because the service does not ask.
    pub ready: bool,
    /// Its port for each port of the service; none where it does not name one.
    pub ports: Vec<Option<u16>>,
}

impl ServiceView {
    /// Which of its ports this port of TCP or UDP is.
    pub(crate) fn port(&self, protocol: Protocol, port: u16) -> Result<usize, String> {
        let is_such = |it: &&PortView| it.protocol == protocol;
        let found = self.ports.iter().position(|it| is_such(&it) && it.port == port);
        found.ok_or_else(|| {
            let Self { namespace, name, .. } = self;
            let of = if protocol == Protocol::Udp { "UDP" } else { "TCP" };
            let ports: Vec<_> =
                self.ports.iter().filter(is_such).map(|it| it.port.to_string()).collect();
            let ports = if ports.is_empty() { "none".to_owned() } else { ports.join(", ") };
            format!("service {namespace}/{name} has no {of} port {port}; it has {ports}")
        })
    }
}

impl Endpoint {
    /// Where it takes what comes to a port of the service.
    pub(crate) fn at(&self, port: usize) -> Option<SocketAddr> {
        let number = self.ports.get(port).copied().flatten()?;
        Some(SocketAddr::new(*self.addresses.first()?, number))
    }
}

/// Every service of the registry.
pub(crate) fn services(mirror: &Mirror) -> Vec<ServiceView> {
    views(mirror.of_plural("services"), mirror.of_plural("pods"), mirror)
}

/// These services, with those of these pods that they select.
pub(crate) fn views<'a>(
    services: impl Iterator<Item = (&'a ObjectRef, &'a Value)>,
    all: impl Iterator<Item = (&'a ObjectRef, &'a Value)>,
    mirror: &Mirror,
) -> Vec<ServiceView> {
    let mut pods: BTreeMap<String, Vec<Pod>> = BTreeMap::new();
    for (object, value) in all {
        pods.entry(object.namespace.clone().unwrap_or_default()).or_default().push(decode(value));
    }
    let view = |value| {
        let service: Service = decode(value);
        let namespace = service.metadata.namespace.clone().unwrap_or_default();
        let pods = pods.get(&namespace).map(Vec::as_slice).unwrap_or_default();
        view(&service, pods, mirror)
    };
    services.map(|(_, value)| view(value)).collect()
}

fn view(service: &Service, pods: &[Pod], mirror: &Mirror) -> ServiceView {
    let spec = service.spec.clone().unwrap_or_default();
    let name = service.metadata.name.clone().unwrap_or_default();
    let ports = spec.ports.unwrap_or_default();
    let selector = spec.selector.unwrap_or_default();
    let unready_too = spec.publish_not_ready_addresses == Some(true);
    let selected = |pod: &&Pod| {
        let labels = pod.metadata.labels.as_ref();
        let label = |key: &String| labels.and_then(|labels| labels.get(key));
        !selector.is_empty() && selector.iter().all(|(key, value)| label(key) == Some(value))
    };
    let endpoints = pods.iter().filter(selected);
    ServiceView {
        addresses: spec.cluster_ips.iter().flatten().filter_map(|ip| ip.parse().ok()).collect(),
        endpoints: endpoints
            .filter_map(|pod| endpoint(pod, &name, &ports, unready_too, mirror))
            .collect(),
        ports: ports.iter().filter_map(port_view).collect(),
        client_affinity: spec.session_affinity.as_deref() == Some("ClientIP"),
        local_only: spec.internal_traffic_policy.as_deref() == Some("Local"),
        namespace: service.metadata.namespace.clone().unwrap_or_default(),
        name,
    }
}

fn port_view(port: &ServicePort) -> Option<PortView> {
    Some(PortView {
        name: port.name.clone().unwrap_or_default(),
        protocol: protocol(port.protocol.as_deref())?,
        port: u16::try_from(port.port).ok()?,
        application_protocol: port.app_protocol.clone(),
    })
}

fn protocol(name: Option<&str>) -> Option<Protocol> {
    match name {
        None | Some("TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some(_) => None,
    }
}

fn endpoint(
    pod: &Pod,
    service: &str,
    ports: &[ServicePort],
    unready_too: bool,
    mirror: &Mirror,
) -> Option<Endpoint> {
    let names = PodName::of(pod);
    let status = mirror.status(&names.namespace, &names.name, &names.uid)?;
    let going = pod.metadata.deletion_timestamp.is_some();
    let spec = pod.spec.as_ref()?;
    if status.pod_ips.is_empty() || (going && !unready_too) {
        return None;
    }
    let of_service = spec.subdomain.as_deref() == Some(service);
    Some(Endpoint {
        hostname: spec.hostname.clone().filter(|_| of_service),
        addresses: status.pod_ips.clone(),
        node: status.node.clone(),
        ready: status.ready || unready_too,
        ports: ports
            .iter()
            .filter(|port| port_view(port).is_some())
            .map(|port| target_port(port, pod))
            .collect(),
    })
}

fn target_port(port: &ServicePort, pod: &Pod) -> Option<u16> {
    let number = match &port.target_port {
        None => port.port,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) => {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let wanted = protocol(port.protocol.as_deref());
            containers
                .flat_map(|container| container.ports.iter().flatten())
                .find(|candidate| {
                    candidate.name.as_deref() == Some(name)
                        && protocol(candidate.protocol.as_deref()) == wanted
                })?
                .container_port
        }
    };
    u16::try_from(number).ok()
}
